use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

#[test]
fn keyslots_of_each_format() {
    let told = |format: &str, about: Value| {
        let header = header(&json!({"format": format, "header": about}), &ENGLISH).expect("a header");
        let row = |slot: &Keyslot| [&*slot.number, &*slot.kind, &*slot.derivation, &*slot.remarks].join("|");
        (header.keyslots.iter().map(row).collect::<Vec<_>>(), header.half_way)
    };
    let luks2 = json!({
        "requirements": ["online-reencrypt-v2"],
        "keyslots": [
            {"number": 0, "type": "luks2", "kdf": "argon2id", "iterations": 4, "memory": 1 << 30, "priority": "preferred", "opens": "the volume"},
            {"number": 3, "type": "luks2", "kdf": "pbkdf2", "hash": "sha256", "iterations": 1000, "priority": "normal"}
        ],
        "tokens": [{"type": "systemd-recovery", "keyslots": ["3"]}],
    });
    let rows =
        ["0|Password|argon2id, 4 iterations, 1 GiB|preferred", "3|Recovery key|pbkdf2, sha256, 1000 iterations|"];
    assert_eq!(told("LUKS2", luks2), (rows.map(str::to_owned).to_vec(), true));
    let luks1 = json!({"keyslots": [
        {"keyslot": 0, "active": false},
        {"keyslot": 1, "active": true, "kdf": {"type": "pbkdf2", "hash": "sha1", "iterations": 7}}
    ]});
    assert_eq!(told("LUKS1", luks1), (vec!["1|Password|pbkdf2, sha1, 7 iterations|".to_owned()], false));
    let slot = json!({"keyslot": 2, "type": "recovery password", "name": "home"});
    let bitlocker = |state: &str| told("BitLocker", json!({"state": state, "keyslots": [slot]}));
    assert_eq!(bitlocker("decryption interrupted"), (vec!["2|Recovery key||home".to_owned()], true));
    assert!(!bitlocker("encrypted").1 && header(&Value::Null, &ENGLISH).is_none());
}

#[test]
fn a_conversion_is_found_from_both_its_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let note = json!({"claviger_conversion": 1, "source": "/old.tc", "destination": path("new"), "format": "LUKS2"});
    fs::write(path("new.part.json"), note.to_string()).expect("a file");
    fs::write(path("other.part.json"), "{}").expect("a file");
    assert_eq!(conversion(Path::new("/old.tc"), folder.path()), None, "nothing is made of it yet");
    fs::write(path("new.part"), "").expect("a file");
    for looked_at in [Path::new("/old.tc"), &path("new"), &path("new.part")] {
        let found = conversion(looked_at, folder.path()).expect("a conversion");
        assert_eq!((found.destination, found.format.as_deref()), (path("new"), Some("LUKS2")));
    }
    assert_eq!(conversion(&path("old.tc"), folder.path()), None);
}

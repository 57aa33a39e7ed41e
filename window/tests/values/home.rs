use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

#[test]
fn what_is_listed_is_shown_with_its_state() {
    let one = |state: &str, more: Value| {
        let mut one = json!({"volume": "/v/it.luks", "dir": "/d", "filesystem": "exfat", "format": "LUKS2", "size": 1536, "state": state});
        one.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        mounted(&json!({ "volumes": [one] }), &ENGLISH).remove(0)
    };
    let open = one("alive", json!({ "read_only": true }));
    assert_eq!(open.facts(None, &ENGLISH), "LUKS2 · exFAT · 1.5 KiB · /d · read-only");
    assert_eq!(open.facts(Some((512, 1536)), &ENGLISH), "LUKS2 · exFAT · 512 bytes of 1.5 KiB used · /d · read-only");
    assert_eq!((open.state, open.name(), open.kind, open.lockable), (State::Open, "it.luks", Kind::Container, false));
    assert_eq!(open.trouble, None);
    assert!(one("alive", json!({ "lockable": true })).lockable);
    let served = one("alive", json!({ "volume": "nbd://h/v", "dir": null, "filesystem": "none", "uri": "nbd://l" }));
    assert_eq!((served.kind, &*served.facts(None, &ENGLISH)), (Kind::Network, "LUKS2 · 1.5 KiB · nbd://l"));
    assert_eq!(one("alive", json!({ "filesystem": "files" })).kind, Kind::Folder);
    assert_eq!(one("alive", json!({ "locked": true })).state, State::Locked);
    assert_eq!(one("silent", json!({})).trouble.as_deref(), Some(ENGLISH.server_silent));
    assert_eq!(one("dead", json!({ "failure": "disk gone" })).trouble.as_deref(), Some("disk gone"));
    assert_eq!(one("alive", json!({ "failed_writes": 2 })).trouble.as_deref(), Some(ENGLISH.writes_failed));
    let gone = one("alive", json!({ "volume": "/dev/nowhere" }));
    assert_eq!((gone.state, gone.trouble.as_deref()), (State::Open, Some(ENGLISH.drive_gone)));
    assert!(mounted(&Value::Null, &ENGLISH).is_empty());
}

#[test]
fn favourites_are_those_of_attach() {
    let all = favourites("[diary]\nvolume='~/d.tc'\ndir='/mnt/d'\noptions=['--read-only']", Path::new("/home/u"));
    let all = all.expect("TOML");
    assert_eq!((&*all[0].name, all[0].path.to_str()), ("diary", Some("/home/u/d.tc")));
    assert_eq!(
        (all[0].dir.as_deref(), &all[0].options[..]),
        (Some(Path::new("/mnt/d")), &["--read-only".to_owned()][..])
    );
    assert!(favourites("[diary]\nvolume=1", Path::new("/")).is_err());
}

#[test]
fn removable_drives_with_something_encrypted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (system, udev) = (folder.path().join("sys"), folder.path().join("udev"));
    fs::create_dir_all(udev.join("data")).expect("a folder");
    // Name, number, whether it is removable, and what udev says.
    let devices = [
        ("sda", "8:0", "0", "E:ID_FS_TYPE=crypto_LUKS"),
        ("sdb", "8:16", "1", "E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_LABEL=photos"),
        ("sdc", "8:32", "1", "E:ID_FS_TYPE=vfat"),
        ("sdd", "8:48", "1", "E:ID_MODEL=Stick"),
        ("sde", "8:64", "1", "E:ID_PART_TABLE_TYPE=dos"),
        ("sdf", "8:80", "1", ""),
    ];
    for (name, number, removable, says) in devices {
        let device = system.join("class/block").join(name);
        fs::create_dir_all(&device).expect("a folder");
        for (file, text) in [("removable", removable), ("dev", number), ("size", "2048")] {
            fs::write(device.join(file), text).expect("a file");
        }
        fs::write(udev.join("data").join(format!("b{number}")), says).expect("a file");
    }
    let found = drives(&system, &udev);
    let told: Vec<_> = found.iter().map(|drive| (&*drive.name, &*drive.facts, drive.kind)).collect();
    assert_eq!(told, [("photos", "LUKS · 1 MiB", Kind::Stick), ("Stick", "1 MiB", Kind::Stick)]);
}

#[test]
fn sizes() {
    let sizes = [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (5 << 40, "5 TiB")];
    assert!(sizes.iter().all(|(bytes, told)| size(*bytes) == *told), "{:?}", sizes.map(|(bytes, _)| size(bytes)));
}

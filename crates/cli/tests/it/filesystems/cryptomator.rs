//! Cryptomator vaults: each verb.

use std::fs;
use std::path::{Path, PathBuf};

use super::gocryptfs::{change_keeps_the_owner, files};
use crate::common::mounts::MountSpace;
use crate::common::*;

/// All files below a folder, the largest first.
fn stored(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(stored(&path)) } else { all.push(path) }
    }
    all.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).expect("a file").len()));
    all
}

#[test]
fn a_folder_is_converted_into_a_vault_changed_and_converted_out_of_it() {
    let folder = Folder::new();
    let (big, long) = files(&folder, "plain");
    let (plain, lower, password, new) =
        (folder.str("plain"), folder.str("lower"), &*folder.password, folder.str("new"));
    fs::write(&new, "another one").expect("a password file");
    let convert = ["convert", "--raw-source", "--new-format", "Cryptomator", "--new-password-file", password];
    run(convert.iter().chain(&[&*plain, &*lower])).succeeds();
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    let known = run(["identify", "--json", &lower]).succeeds().json();
    assert_eq!(
        (known[0]["format"].as_str(), known[0]["verdict"].as_str()),
        (Some("Cryptomator"), Some("yes")),
        "{known}"
    );
    assert!(on(&["tree"], &[]).succeeds().text().contains(&long));
    assert!(on(&["cat"], &["/Documents/old letters/big.bin"]).succeeds().out == big);
    assert_eq!(on(&["cat"], &[&format!("/Documents/{long}")]).succeeds().out, b"dear reader");
    let info = on(&["info", "--json"], &[]).succeeds().json();
    assert_eq!((info["files"].as_u64(), info["folders"].as_u64()), (Some(3), Some(2)), "{info}");
    assert_eq!(info["ciphers"]["AES-GCM-256"].as_u64(), Some(3), "{info}");
    let sound = on(&["verify", "--json"], &[]).succeeds().json();
    assert_eq!((sound["damaged"].as_bool(), sound["files"].as_u64()), (Some(false), Some(3)), "{sound}");
    let explained = run(["explain", "--password-file", &new, &lower]);
    assert_eq!(explained.code, 2, "{}", explained.err);
    run(["ls", "--password-file", &new, &lower]).fails(2, &["password"]);

    let (key_file, copy) =
        (folder.path("lower/masterkey.cryptomator"), folder.path("lower/masterkey.cryptomator.12AB34CD.bkup"));
    fs::copy(&key_file, &copy).expect("copied");
    let change = ["change", "--password-file", password, "--new-password-file", &new, &lower];
    change_keeps_the_owner(&key_file, 0o600, &change);
    let again = ["change", "--password-file", &new, "--new-password-file", &new, &lower];
    let changed = run(again).succeeds().text();
    assert!(changed.contains("masterkey.cryptomator.12AB34CD.bkup. Remove"), "{changed}");
    let changed = run(again.iter().chain(&["--json"])).succeeds().json();
    assert_eq!(changed["copies"][0].as_str(), Some("masterkey.cryptomator.12AB34CD.bkup"), "{changed}");
    assert!(copy.exists());
    fs::remove_file(&copy).expect("removed");

    let out = folder.str("out");
    run(["convert", "--raw", "--password-file", &new, &lower, &out]).succeeds();
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a file") == big);
    assert_eq!(fs::read_link(folder.path("out/link")).expect("a link"), Path::new("Documents"));
    let other = folder.str("other");
    let into = ["convert", "--password-file", &new, "--new-format", "gocryptfs", "--new-password-file", password];
    run(into.iter().chain(&[&*lower, &*other])).succeeds();
    assert!(run(["cat", "--password-file", password, &other, "/Documents/old letters/big.bin"]).succeeds().out == big);
}

#[test]
fn damage_is_named_and_the_rest_is_saved() {
    let folder = Folder::new();
    let (big, long) = files(&folder, "plain");
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let convert = ["convert", "--raw-source", "--new-format", "Cryptomator", "--new-password-file", password];
    run(convert.iter().chain(&[&*folder.str("plain"), &*lower])).succeeds();
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    let largest = &stored(Path::new(&lower))[0];
    let copy =
        largest.with_file_name(largest.file_name().expect("a name").to_string_lossy().replace(".c9r", " (1).c9r"));
    fs::copy(largest, &copy).expect("copied");
    let mut bytes = fs::read(largest).expect("a file");
    bytes[40_000] ^= 1;
    fs::write(largest, &bytes).expect("written");
    let found = on(&["verify"], &[]);
    assert!(found.code == 4 && found.text().contains("big.bin"), "{} {}", found.text(), found.err);
    assert!(found.text().contains("(1).c9r") && found.text().contains("sync program"), "{}", found.text());
    on(&["cat"], &["/Documents/old letters/big.bin"]).fails(4, &["verification"]);
    let out = folder.str("out");
    let saved = on(&["cp", "-r", "--salvage"], &[":/", &out]);
    assert!(saved.code == 4 && saved.text().contains("big.bin"), "{} {} {}", saved.code, saved.text(), saved.err);
    assert_eq!(fs::read(folder.path("out/Documents").join(&long)).expect("a file"), b"dear reader");
    fs::remove_file(&copy).expect("removed");
    bytes[40_000] ^= 1;
    fs::write(largest, &bytes).expect("written");
    // What an interrupted upload left, and what an interrupted change did.
    let half = stored(Path::new(&lower)).into_iter().find(|path| fs::read(path).is_ok_and(|bytes| bytes.len() == 107));
    fs::write(half.expect("a file of 11 bytes"), "").expect("written");
    fs::create_dir(largest.parent().expect("one").join("claviger.unfinished.0123456789abcdef")).expect("made");
    let found = on(&["verify", "--json"], &[]);
    let json = found.json();
    let states: Vec<_> = json["problems"].as_array().expect("a list").iter().map(|it| it["state"].as_str()).collect();
    assert_eq!((found.code, states), (4, vec![Some("unfinished"), Some("left-over")]), "{json}");
    on(&["cat"], &[&format!("/Documents/{long}")]).fails(4, &["empty, even without its header"]);
    let half = on(&["cp", "-r"], &[":/", &folder.str("half")]);
    assert!(half.code == 4 && half.text().contains("without its header"), "{} {}", half.text(), half.err);
    assert!(!folder.path("half/Documents").join(&long).exists());
    let half = on(&["convert", "--raw"], &[&folder.str("converted")]);
    assert!(half.code == 4 && half.text().contains("without its header"), "{} {}", half.text(), half.err);
    let whole = folder.path("out/Documents/old letters").join(copy.file_name().expect("a name"));
    assert!(fs::read(&whole).expect("the copy") == big);
    if let Ok(part) = fs::read(folder.path("out/Documents/old letters/big.bin")) {
        assert!(part.len() == big.len() && part[..32768] == big[..32768], "{}", part.len());
    }
    // Without its keys, nothing opens it, and nobody says that it is sound.
    fs::remove_file(folder.path("lower/masterkey.cryptomator")).expect("removed");
    on(&["ls"], &[]).fails(3, &["masterkey.cryptomator"]);
}

#[test]
fn a_vault_is_mounted_and_everything_that_was_written_is_there() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let (lower, dir, other) = (place.dir("lower"), place.dir("d"), place.dir("other"));
        let password = place.folder.password.clone();
        let created = place.run(["create", "--format", "Cryptomator", "--password-file", &password, &lower]).succeeds();
        assert!(created.text().contains("masterkey.cryptomator"), "{}", created.text());
        place.run(["create", "--format", "Cryptomator", "--password-file", &password, &lower]).fails(1, &["not empty"]);
        let mount = |dir: &str, more: &[&str]| {
            place.run(["mount", "--password-file", &password].iter().chain(more).chain(&[&*lower, dir]))
        };
        mount(&dir, &[]).succeeds();
        mount(&other, &[]).fails(9, &["in use", "is mounted at"]);
        let long = "l".repeat(240);
        let inside = format!(
            "set -e; cd {dir}; mkdir -p a/b; echo one >a/one; cp a/one a/b/two; mv a/b/two three; ln -s a/one link; \
             truncate -s 5000 three; test $(cat link) = one; rm a/one; test $(stat -c %s three) = 5000; \
             mkdir {long}; echo long >{long}/{long}; mv {long} a/; mv a/{long} .; rmdir a/b; mv a/../link l2; rm l2; \
             head -c 300000 /dev/urandom >big; cp big copy; truncate -s 100001 copy; truncate -s 300000 copy; \
             mkdir -p x/y/z; mv x/y .; rm -r x y; ! mkdir a/one/two; ! mv a a/inside; sync"
        );
        place.shell(&inside).succeeds();
        let sums = format!("cd {dir}; sha256sum big copy three {long}/{long}");
        let sum = place.shell(&sums).succeeds().text();
        place.unmount(&dir).succeeds();
        place.run(["verify", "--password-file", &password, &lower]).succeeds();
        mount(&dir, &["--read-only"]).succeeds();
        assert_eq!(place.shell(&sums).succeeds().text(), sum);
        place.shell(&format!("! touch {dir}/new; ! rm {dir}/big; ! mkdir {dir}/a/b")).succeeds();
        place.unmount(&dir).succeeds();
    }
}

#[test]
fn what_cryptomator_does_not_have_is_refused() {
    let folder = Folder::new();
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let create = |more: &[&str]| {
        run(["create", "--format", "Cryptomator", "--password-file", password].iter().chain(more).chain(&[&*lower]))
    };
    create(&["--key-size", "256"]).fails(1, &["fixed size"]);
    create(&["--cipher", "twofish"]).fails(1, &["twofish", "SIV_CTRMAC"]);
    create(&["--home"]).fails(1, &["--home"]);
    create(&["--hash", "SHA-512"]).fails(1, &["hash"]);
    assert!(!folder.path("lower").exists());
    create(&["--cipher", "siv_ctrmac"]).succeeds();
    run(["ls", "--password-file", password, &lower]).succeeds();
    let info = run(["info", "--password-file", password, &lower]).succeeds().text();
    assert!(info.contains("Cryptomator"), "{info}");
    let listed = run(["create", "--list", "--json"]).succeeds().text();
    assert!(listed.contains("Cryptomator") && listed.contains("SIV_GCM"), "{listed}");
}

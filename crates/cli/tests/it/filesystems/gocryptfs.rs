//! gocryptfs folders: each verb, and the same folder with gocryptfs itself.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::fido2::Fido2;
use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// A tree of a few files, one with a name that is too long to be stored whole.
pub fn files(folder: &Folder, name: &str) -> (Vec<u8>, String) {
    let (root, long) = (folder.path(name), "n".repeat(200));
    fs::create_dir_all(root.join("Documents/old letters")).expect("folders");
    let big = Random::new(7).bytes(70_001);
    fs::write(root.join("Documents/old letters/big.bin"), &big).expect("a file");
    fs::write(root.join("Documents").join(&long), "dear reader").expect("a file");
    fs::write(root.join("empty"), "").expect("a file");
    symlink("Documents", root.join("link")).expect("a link");
    (big, long)
}

/// The stored files below a folder that are not the format's own, the largest first.
fn stored(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let own = path.to_string_lossy().ends_with(".name") || path.to_string_lossy().contains("gocryptfs.diriv");
        match fs::symlink_metadata(&path).expect("it is there") {
            of if of.is_dir() => all.extend(stored(&path)),
            of if of.is_file() && !own && !path.ends_with("gocryptfs.conf") => all.push(path),
            _ => {}
        }
    }
    all.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).expect("a file").len()));
    all
}

/// Changes the password of a folder. The key file of another user stays that user's, also if root changes it.
pub fn change_keeps_the_owner(key_file: &Path, mode: u32, change: &[&str]) {
    let owner = if rustix::process::geteuid().is_root() { 65534 } else { rustix::process::geteuid().as_raw() };
    chown(key_file, Some(owner), None).expect("its owner");
    let changed = run(change).succeeds();
    let of = fs::metadata(key_file).expect("a file");
    assert_eq!((of.uid(), of.mode() & 0o777), (owner, mode));
    let name = key_file.file_name().expect("a name").to_string_lossy();
    assert!(changed.text().contains(&*name), "{}", changed.text());
    run(change).fails(2, &[]);
}

/// What gocryptfs says of the folder: whether it is sound.
fn fsck(lower: &str, password: &str) -> Option<bool> {
    let mut command = Command::new(tools::program("gocryptfs")?);
    let output = command.args(["-q", "-fsck", "-passfile", password, lower]).output().expect("it starts");
    Some(output.status.success())
}

#[test]
fn a_folder_is_converted_into_gocryptfs_changed_and_converted_out_of_it() {
    let folder = Folder::new();
    let (big, long) = files(&folder, "plain");
    let (plain, lower, password, new) =
        (folder.str("plain"), folder.str("lower"), &*folder.password, folder.str("new"));
    fs::write(&new, "another one").expect("a password file");
    let convert = ["convert", "--raw-source", "--new-format", "gocryptfs", "--new-password-file", password];
    run(convert.iter().chain(&[&*plain, &*lower])).succeeds();
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    assert_ne!(fsck(&lower, password), Some(false));
    let known = run(["identify", "--json", &lower]).succeeds().json();
    assert_eq!(
        (known[0]["format"].as_str(), known[0]["verdict"].as_str()),
        (Some("gocryptfs"), Some("yes")),
        "{known}"
    );
    assert!(on(&["tree"], &[]).succeeds().text().contains(&long));
    assert!(on(&["cat"], &["/Documents/old letters/big.bin"]).succeeds().out == big);
    assert_eq!(on(&["cat"], &[&format!("/Documents/{long}")]).succeeds().out, b"dear reader");
    let info = on(&["info", "--json"], &[]).succeeds().json();
    assert_eq!(info["files"].as_u64(), Some(3), "{info}");
    assert_eq!(info["ciphers"]["AES-GCM-256"].as_u64(), Some(2), "an empty file has no header: {info}");
    let sound = on(&["verify", "--json"], &[]).succeeds().json();
    assert_eq!((sound["damaged"].as_bool(), sound["files"].as_u64()), (Some(false), Some(3)), "{sound}");
    let explained = run(["explain", "--password-file", &new, &lower]);
    assert_eq!(explained.code, 2, "{}", explained.err);
    run(["ls", "--password-file", &new, &lower]).fails(2, &["password"]);

    let change = ["change", "--password-file", password, "--new-password-file", &new, &lower];
    change_keeps_the_owner(&folder.path("lower/gocryptfs.conf"), 0o400, &change);
    assert_ne!(fsck(&lower, &new), Some(false));
    assert_ne!(fsck(&lower, password), Some(true));
    run(["change", "--new-hash", "SHA-512", "--password-file", &new, "--new-password-file", password, &lower])
        .fails(1, &["hash"]);

    let out = folder.str("out");
    run(["convert", "--raw", "--password-file", &new, &lower, &out]).succeeds();
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a file") == big);
    assert_eq!(fs::read_link(folder.path("out/link")).expect("a link"), Path::new("Documents"));
    let other = folder.str("other");
    let into = ["convert", "--password-file", &new, "--new-format", "eCryptfs", "--new-password-file", password];
    // eCryptfs has no room for names of that length.
    let copied = run(into.iter().chain(&[&*lower, &*other]));
    assert!(copied.code == 6 && copied.text().contains("File name too long"), "{} {}", copied.code, copied.err);
    assert!(run(["cat", "--password-file", password, &other, "/Documents/old letters/big.bin"]).succeeds().out == big);
}

#[test]
fn damage_is_named_and_the_rest_is_saved() {
    let folder = Folder::new();
    let (big, long) = files(&folder, "plain");
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let convert = ["convert", "--raw-source", "--new-format", "gocryptfs", "--new-password-file", password];
    run(convert.iter().chain(&[&*folder.str("plain"), &*lower])).succeeds();
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    let largest = &stored(Path::new(&lower))[0];
    let mut bytes = fs::read(largest).expect("a file");
    bytes[20_000] ^= 1;
    fs::write(largest, &bytes).expect("written");
    let found = on(&["verify"], &[]);
    assert!(found.code == 4 && found.text().contains("big.bin"), "{} {}", found.text(), found.err);
    assert_ne!(fsck(&lower, password), Some(true));
    on(&["cat"], &["/Documents/old letters/big.bin"]).fails(4, &["verification"]);
    let out = folder.str("out");
    let saved = on(&["cp", "-r", "--salvage"], &[":/", &out]);
    assert!(saved.code == 4 && saved.text().contains("big.bin"), "{} {} {}", saved.code, saved.text(), saved.err);
    assert_eq!(fs::read(folder.path("out/Documents").join(&long)).expect("a file"), b"dear reader");
    if let Ok(part) = fs::read(folder.path("out/Documents/old letters/big.bin")) {
        assert!(part.len() == big.len() && part[..4096] == big[..4096], "{}", part.len());
    }
    // A file that ends in its header is not an empty one.
    fs::File::options().write(true).open(largest).and_then(|file| file.set_len(5)).expect("cut");
    let found = on(&["verify"], &[]);
    assert!(found.code == 4 && found.text().contains("in its header"), "{} {}", found.text(), found.err);
    let copied = on(&["cp", "-r"], &[":/", &folder.str("copy")]);
    assert!(copied.code == 4 && copied.text().contains("big.bin"), "{} {}", copied.text(), copied.err);
    // Without its configuration, nothing opens it, and nobody says that it is sound.
    fs::remove_file(folder.path("lower/gocryptfs.conf")).expect("removed");
    on(&["ls"], &[]).fails(3, &[]);
    on(&["ls", "--format", "gocryptfs"], &[]).fails(3, &["gocryptfs.conf"]);
    let explained = run(["explain", &lower]);
    let wanted = ["gocryptfs.diriv", "--format=gocryptfs", "--volume-key-file=FILE"];
    assert!(explained.code == 3 && wanted.iter().all(|word| explained.text().contains(word)), "{}", explained.text());
    assert!(!explained.text().contains("--format=eCryptfs"), "{}", explained.text());
}

#[test]
fn a_folder_is_mounted_and_gocryptfs_reads_what_was_written() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let (lower, dir, other) = (place.dir("lower"), place.dir("d"), place.dir("other"));
        let password = place.folder.password.clone();
        let created = place.run(["create", "--format", "gocryptfs", "--password-file", &password, &lower]).succeeds();
        assert!(created.text().contains("gocryptfs.conf"), "{}", created.text());
        place.run(["create", "--format", "gocryptfs", "--password-file", &password, &lower]).fails(1, &["not empty"]);
        let mount = |dir: &str, more: &[&str]| {
            place.run(["mount", "--password-file", &password].iter().chain(more).chain(&[&*lower, dir]))
        };
        mount(&dir, &[]).succeeds();
        mount(&other, &[]).fails(9, &["in use", "is mounted at"]);
        let change = ["change", "--password-file", &password, "--new-password-file", &password, &lower];
        place.run(change).fails(9, &["in use"]);
        let long = "l".repeat(240);
        let inside = format!(
            "set -e; cd {dir}; mkdir -p a/b; echo one >a/one; cp a/one a/b/two; mv a/b/two three; ln -s a/one link; \
             truncate -s 5000 three; test $(cat link) = one; rm a/one; test $(stat -c %s three) = 5000; \
             mkdir {long}; echo long >{long}/{long}; mv {long} a/; mv a/{long} .; rmdir a/b; \
             head -c 300000 /dev/urandom >big; cp big copy; truncate -s 100001 copy; truncate -s 300000 copy; sync"
        );
        place.shell(&inside).succeeds();
        place.unmount(&dir).succeeds();
        mount(&dir, &["--writeback", "--isolate-keys"]).fails(1, &["--isolate-keys"]);
        mount(&dir, &["--writeback"]).succeeds();
        // Lines that are collected while the file is open, and a page whose rest must be read first.
        place
            .shell(&format!(
                "cd {dir}; for i in $(seq 500); do echo $i; done >log; echo X | dd of=big bs=2 seek=999 conv=notrunc"
            ))
            .succeeds();
        place.unmount(&dir).succeeds();
        mount(&dir, &[]).succeeds();
        place
            .shell(&format!("cd {dir}; test $(wc -l <log) = 500; test $(tail -c 298002 big | head -c 2) = X"))
            .succeeds();
        let sum = place.shell(&format!("cd {dir}; sha256sum big copy three {long}/{long}")).succeeds().text();
        place.unmount(&dir).succeeds();
        if tools::program("gocryptfs").is_some() {
            place.shell(&format!("gocryptfs -q -fsck -passfile {password} {lower}")).succeeds();
            place.shell(&format!("gocryptfs -q -passfile {password} {lower} {dir}")).succeeds();
            let theirs = place.shell(&format!("cd {dir}; sha256sum big copy three {long}/{long}")).succeeds().text();
            let write = place
                .shell(&format!("echo theirs >{dir}/a/theirs; mv {dir}/{long} {dir}/a/short; fusermount3 -u {dir}"));
            write.succeeds();
            assert_eq!(theirs, sum);
            mount(&dir, &["--read-only"]).succeeds();
            let read = format!(
                "set -e; test $(cat {dir}/a/theirs) = theirs; test $(cat {dir}/a/short/{long}) = long; ! touch {dir}/new"
            );
            place.shell(&read).succeeds();
            place.unmount(&dir).succeeds();
        }
        place.run(["verify", "--password-file", &password, &lower]).succeeds();
    }
}

/// gocryptfs made the folder with a key in software, by libfido2's programs.
#[test]
fn a_folder_of_a_fido2_key_opens_with_that_key_alone() {
    let (Some(gocryptfs), Some(_)) = (tools::program("gocryptfs"), tools::program("fido2-assert")) else { return };
    if MountSpace::root().is_none() {
        return;
    }
    let (Some(key), Some(other)) = (Fido2::new(&["--pin", "1173"]), Fido2::new(&[])) else { return };
    let folder = Folder::new();
    let (lower, password) = (folder.str("lower"), &*folder.password);
    fs::create_dir(&lower).expect("it is new");
    let create = ["-init", "-q", "-scryptn", "10", "-fido2", &key.device, &lower];
    tools::run(Command::new(&gocryptfs).args(create));
    assert!(run(["identify", &lower]).succeeds().text().contains("a FIDO2 key opens"));
    let file = |name: &str, contents: &str| {
        fs::write(folder.path(name), contents).expect("a file");
        folder.str(name)
    };
    let (pin, wrong) = (file("pin", "1173\n"), file("wrong", "1174\n"));

    // Nobody types a password in vain.
    run(["ls", &lower]).fails(1, &["a FIDO2 key opens this folder", "--fido2-device", "--volume-key-file"]);
    run(["ls", "--password-file", password, &lower]).fails(1, &["no password does"]);
    run(["verify", "--password-file", password, &lower]).fails(1, &["no password does"]);
    run(["ls", "--fido2-device", &other.device, &lower]).fails(2, &["FIDO2 key"]);
    let with = |verb: &[&str], more: &[&str]| {
        let key = ["--fido2-device", &*key.device];
        run(verb.iter().chain(&key).chain(more).chain(&[&*lower]))
    };
    with(&["verify"], &[]).succeeds();
    with(&["verify"], &["--token-only"]).succeeds();
    let mounted = folder.str("mounted");
    fs::create_dir(&mounted).expect("it is new");
    tools::run(Command::new(&gocryptfs).args(["-q", "-fido2", &key.device, &lower, &mounted]));
    fs::write(folder.path("mounted/letter"), "dear reader").expect("there is room");
    tools::run(Command::new("fusermount3").args(["-u", &mounted]));
    let read = run(["cat", "--fido2-device", &key.device, &lower, "letter"]).succeeds().text();
    assert_eq!(read, "dear reader");

    // gocryptfs 2.5 also records under which conditions the key is asked.
    let config = folder.path("lower/gocryptfs.conf");
    let before = fs::read_to_string(&config).expect("it is there");
    let asked = |option: &str| {
        let options = format!("\"AssertOptions\": [\"{option}\"],\n\"CredentialID\"");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).expect("it is ours");
        fs::write(&config, before.replace("\"CredentialID\"", &options)).expect("it is ours");
    };
    asked("pin=true");
    with(&["verify"], &[]).fails(1, &["PIN", "--fido2-pin-file"]);
    with(&["verify"], &["--fido2-pin-file", &wrong]).fails(2, &["PIN"]);
    with(&["verify"], &["--fido2-pin-file", &pin]).succeeds();
    let nothing = before.replace("\"CredentialID\"", "\"AssertOptions\": null,\n\"CredentialID\"");
    fs::write(&config, nothing).expect("it is ours");
    with(&["verify"], &[]).succeeds();
    with(&["verify"], &["--password-file", password]).fails(1, &["no password does", "Omit the password"]);
    asked("uv=true");
    with(&["verify"], &["--fido2-pin-file", &pin]).succeeds();
    asked("rk=true");
    with(&["verify"], &[]).fails(5, &["rk=true"]);
    fs::write(&config, before).expect("it is ours");

    let changed = with(&["change"], &["--new-password-file", password]).succeeds();
    assert!(changed.err.contains("no longer"), "{}", changed.err);
    run(["verify", "--password-file", password, &lower]).succeeds();
    assert_eq!(fsck(&lower, password), Some(true));
    with(&["verify"], &[]).fails(1, &[]);
}

#[test]
fn what_gocryptfs_does_not_have_is_refused() {
    let folder = Folder::new();
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let create = |more: &[&str]| {
        run(["create", "--format", "gocryptfs", "--password-file", password].iter().chain(more).chain(&[&*lower]))
    };
    create(&["--key-size", "256"]).fails(1, &["fixed size"]);
    create(&["--cipher", "twofish"]).fails(1, &["twofish", "XChaCha20-Poly1305"]);
    create(&["--home"]).fails(1, &["--home"]);
    create(&["--hash", "SHA-512"]).fails(1, &["hash"]);
    assert!(!folder.path("lower").exists());
    for (cipher, name) in [("aes-siv", "one"), ("XChaCha20-Poly1305", "two")] {
        let lower = folder.str(name);
        run(["create", "--format", "gocryptfs", "--cipher", cipher, "--password-file", password, &lower]).succeeds();
        run(["ls", "--password-file", password, &lower]).succeeds();
        assert_ne!(fsck(&lower, password), Some(false));
    }
    let listed = run(["create", "--list", "--json"]).succeeds().text();
    assert!(listed.contains("gocryptfs") && listed.contains("AES-SIV"), "{listed}");
}

#[test]
fn a_plain_folder_is_shown_encrypted() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let (plain, dir, copy, out) = (place.dir("plain"), place.dir("d"), place.dir("copy"), place.dir("out"));
        let password = place.folder.password.clone();
        let (big, long) = files(&place.folder, "plain");
        let create = ["create", "--format", "gocryptfs", "--reverse", "--password-file", &password, &plain];
        place.run(["mount", "--reverse", "--password-file", &password, &plain, &dir]).fails(3, &["reverse.conf"]);
        let created = place.run(create).succeeds().text();
        assert!(created.contains("claviger mount --reverse") && created.contains("unchanged"), "{created}");
        place.run(create).fails(1, &["already has"]);
        let known = place.run(["identify", &plain]).succeeds().text();
        assert!(known.contains("gocryptfs can show encrypted") && known.contains("mount --reverse"), "{known}");
        let explained = place.run(["explain", &plain]);
        assert!(explained.code == 3 && explained.text().contains("mount --reverse"), "{}", explained.text());
        place.run(["mount", "--password-file", &password, &plain, &dir]).fails(3, &["not an encrypted folder"]);
        place.run(["verify", "--reverse", "--password-file", &password, &plain]).fails(1, &["--reverse"]);

        let mounted = place.run(["mount", "--reverse", "--password-file", &password, &plain, &dir]).succeeds().text();
        assert!(mounted.contains("read-only"), "{mounted}");
        place.shell(&format!("cd {dir}; ! touch new; ! rm gocryptfs.conf; ! mkdir x; cp -r . {copy}/view")).succeeds();
        if tools::program("gocryptfs").is_some() {
            let theirs = place.dir("theirs");
            let mount = format!("gocryptfs -q -reverse -passfile {password} {plain} {theirs}");
            place
                .shell(&format!("{mount}; diff -r --no-dereference {theirs} {dir}; fusermount3 -u {theirs}"))
                .succeeds();
        }
        place.unmount(&dir).succeeds();
        let view = format!("{copy}/view");
        place.run(["cp", "-r", "--password-file", &password, &view, ":/", &format!("{out}/plain")]).succeeds();
        let back = place.folder.path("out/plain");
        assert!(fs::read(back.join("Documents/old letters/big.bin")).expect("a file") == big);
        assert_eq!(fs::read(back.join("Documents").join(&long)).expect("a file"), b"dear reader");
        assert_eq!(fs::read_link(back.join("link")).expect("a link"), Path::new("Documents"));
        place.run(["verify", "--password-file", &password, &view]).succeeds();

        // Without a mount, and with another password.
        let new = place.folder.str("new");
        fs::write(&new, "another one").expect("a password file");
        let change = ["change", "--reverse", "--password-file", &password, "--new-password-file", &new, &plain];
        assert!(place.run(change).succeeds().text().contains(".gocryptfs.reverse.conf"));
        place.run(["ls", "--reverse", "--password-file", &password, &plain]).fails(2, &[]);
        let again = format!("{copy}/again");
        place.run(["cp", "-r", "--reverse", "--password-file", &new, &plain, ":/", &again]).succeeds();
        place.run(["ls", "--password-file", &new, &again]).succeeds();
        let other = ["create", "--format", "Cryptomator", "--reverse", "--password-file", &password, &plain];
        place.run(other).fails(5, &["Cryptomator"]);
        place.run(["create", "--reverse", "--size", "1M", &place.dir("volume")]).fails(1, &["--format gocryptfs"]);
    }
}

//! EncFS folders of Debian's encfs: the verbs that read them, and what the others say.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// A folder that encfs fills with a few files, below `place`. `None` where encfs is missing or nothing can be mounted.
fn made(folder: &Folder, name: &str, kind: &str) -> Option<(String, Vec<u8>)> {
    tools::root()?;
    let (lower, plain) = (folder.path(name), folder.path(&format!("{name}.plain")));
    [&lower, &plain].into_iter().for_each(|path| fs::create_dir(path).expect("a folder"));
    let mut encfs = Command::new(tools::program("encfs")?);
    let ask = format!("cat {}", folder.password);
    let started = encfs.args([kind, "--extpass", &ask]).args([&lower, &plain]).stdin(Stdio::null()).output();
    assert!(started.expect("it starts").status.success());
    let big = Random::new(7).bytes(70_001);
    fs::create_dir_all(plain.join("Documents/old letters")).expect("folders");
    fs::write(plain.join("Documents/old letters/big.bin"), &big).expect("a file");
    fs::write(plain.join("Documents/note"), "dear reader").expect("a file");
    fs::write(plain.join("empty"), "").expect("a file");
    symlink("Documents", plain.join("link")).expect("a link");
    let ended = Command::new("fusermount").arg("-u").arg(&plain).status();
    assert!(ended.expect("it starts").success());
    Some((folder.str(name), big))
}

/// The largest stored file below a folder.
fn largest(folder: &Path) -> PathBuf {
    let mut all = vec![folder.to_owned()];
    let mut at = 0;
    while at < all.len() {
        if fs::symlink_metadata(&all[at]).expect("it is there").is_dir() {
            all.extend(fs::read_dir(&all[at]).expect("a folder").map(|entry| entry.expect("an entry").path()));
        }
        at += 1;
    }
    let len =
        |path: &PathBuf| Some(fs::symlink_metadata(path).expect("a file")).filter(|of| of.is_file()).map(|of| of.len());
    all.into_iter().max_by_key(len).expect("a file")
}

#[test]
fn a_folder_is_read_verified_and_converted_and_never_changed() {
    let folder = Folder::new();
    let Some((lower, big)) = made(&folder, "lower", "--standard") else { return };
    let password = &*folder.password;
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    let known = run(["identify", "--json", &lower]).succeeds().json();
    assert_eq!((known[0]["format"].as_str(), known[0]["verdict"].as_str()), (Some("EncFS"), Some("yes")), "{known}");
    assert!(on(&["tree"], &[]).succeeds().text().contains("old letters"));
    assert!(on(&["cat"], &["/Documents/old letters/big.bin"]).succeeds().out == big);
    let listed = on(&["ls"], &[]).succeeds();
    assert!(listed.text().contains("Documents") && listed.err.contains("audit of 2014"), "{}", listed.err);
    let info = on(&["info", "--json"], &[]).succeeds().json();
    assert_eq!((info["files"].as_u64(), info["ciphers"]["AES-192"].as_u64()), (Some(3), Some(3)), "{info}");
    let sound = on(&["verify"], &[]).succeeds();
    assert!(sound.text().contains("correctness was not checked"), "{}", sound.text());
    assert!(sound.err.contains("not noticed"), "{}", sound.err);
    let json = on(&["verify", "--json"], &[]).succeeds().json();
    assert_eq!((json["contents_verified"].as_bool(), json["damaged"].as_bool()), (Some(false), Some(false)), "{json}");
    let explained = run(["explain", "--password-file", password, &lower]).succeeds();
    assert!(explained.text().contains("EncFS"), "{}", explained.text());

    let other = folder.str("other");
    fs::write(&other, "another one").expect("a password file");
    run(["ls", "--password-file", &other, &lower]).fails(2, &["password"]);
    run(["change", "--password-file", password, "--new-password-file", &other, &lower]).fails(5, &["encfsctl passwd"]);
    run(["create", "--format", "EncFS", "--password-file", password, &folder.str("new")]).fails(5, &["EncFS"]);
    assert!(!folder.path("new").exists());
    on(&["cp"], &[&other, ":/"]).fails(5, &["read-only"]);

    let out = folder.str("out");
    on(&["cp", "-r"], &[":/", &out]).succeeds();
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a file") == big);
    let vault = folder.str("vault");
    let into = ["convert", "--password-file", password, "--new-format", "gocryptfs", "--new-password-file", password];
    run(into.iter().chain(&[&*lower, &*vault])).succeeds();
    let copied = run(["cat", "--password-file", password, &vault, "/Documents/old letters/big.bin"]).succeeds();
    assert!(copied.out == big);
    let back = ["convert", "--raw-source", "--new-format", "EncFS", "--new-password-file", password, &out];
    run(back.iter().copied().chain([&*folder.str("back")])).fails(5, &["EncFS"]);
    assert!(!folder.path("back").exists() && !folder.path("back.part").exists());

    // A damaged configuration is not a wrong password.
    let config = folder.path("lower/.encfs6.xml");
    let text = fs::read_to_string(&config).expect("a file");
    fs::write(&config, text.replace("<keySize>192", "<keySize>193")).expect("written");
    on(&["ls"], &[]).fails(4, &["193"]);
}

#[test]
fn damage_is_named_and_the_rest_is_saved() {
    let folder = Folder::new();
    let Some((lower, big)) = made(&folder, "lower", "--paranoia") else { return };
    let on = |verb: &[&str], rest: &[&str]| {
        run(verb.iter().chain(&["--password-file", &*folder.password, &*lower]).chain(rest))
    };
    let sound = on(&["verify", "--json"], &[]).succeeds().json();
    assert_eq!(sound["contents_verified"].as_bool(), Some(true), "{sound}");
    let largest = largest(Path::new(&lower));
    let mut bytes = fs::read(&largest).expect("a file");
    bytes[20_000] ^= 1;
    fs::write(&largest, &bytes).expect("written");
    fs::write(Path::new(&lower).join("note (conflicted copy)"), "x").expect("written");
    let found = on(&["verify"], &[]);
    assert!(found.code == 4 && found.text().contains("big.bin"), "{} {}", found.text(), found.err);
    assert!(found.text().contains("conflicted copy"), "{}", found.text());
    on(&["cat"], &["/Documents/old letters/big.bin"]).fails(4, &["verification"]);
    let saved = on(&["cp", "-r", "--salvage"], &[":/", &folder.str("out")]);
    assert!(saved.code == 4 && saved.text().contains("big.bin"), "{} {} {}", saved.code, saved.text(), saved.err);
    assert_eq!(fs::read(folder.path("out/Documents/note")).expect("a file"), b"dear reader");
    if let Ok(part) = fs::read(folder.path("out/Documents/old letters/big.bin")) {
        assert!(part.len() == big.len() && part[..10_000] == big[..10_000], "{}", part.len());
    }
    fs::remove_file(folder.path("lower/.encfs6.xml")).expect("removed");
    on(&["ls"], &[]).fails(3, &[]);
    on(&["ls", "--format", "EncFS"], &[]).fails(3, &[".encfs6.xml"]);
}

#[test]
fn a_folder_is_mounted_for_reading() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let Some((lower, big)) = made(&place.folder, "lower", "--standard") else { return };
        // Another user reads it.
        tools::run(Command::new("chmod").args(["-R", "a+rX", &lower]));
        let (dir, password) = (place.dir("d"), place.folder.password.clone());
        place.run(["mount", "--read-only", "--password-file", &password, &lower, &dir]).succeeds();
        let read = format!(
            "set -e; cd {dir}; test \"$(cat Documents/note link/note)\" = 'dear readerdear reader'; \
             test $(readlink link) = Documents; ! touch new 2>/dev/null; cat 'Documents/old letters/big.bin'"
        );
        assert!(place.shell(&read).succeeds().out == big);
        place.unmount(&dir).succeeds();
    }
}

/// Gives the kernel a key and an empty folder its policy (linux/fscrypt.h), or takes the key away. 3 where the kernel has no fscrypt.
const FSCRYPT: &str = r#"
import errno, fcntl, os, struct, sys
what, mounted, folder = sys.argv[1:]
fs = os.open(mounted, os.O_RDONLY)
id = mounted + "/id"
try:
    if what == "add":
        add = bytearray(struct.pack("<II32sII32s64s", 2, 0, b"", 64, 0, b"", bytes(range(64))))
        fcntl.ioctl(fs, 0xC0506617, add, True)
        open(id, "wb").write(add[8:24])
        fcntl.ioctl(os.open(folder, os.O_RDONLY), 0x800C6613, struct.pack("<BBBB4x16s", 2, 1, 4, 2, add[8:24]))
    else:
        os.sync()
        fcntl.ioctl(fs, 0xC0406618, bytearray(struct.pack("<II32s24x", 2, 0, open(id, "rb").read())), True)
except OSError as e:
    sys.exit(3 if e.errno in (errno.ENOTTY, errno.EOPNOTSUPP) else str(e))
"#;

#[test]
fn a_folder_of_fscrypt_is_named_while_its_key_is_missing() {
    let (Some(place), Some(python)) = (MountSpace::root(), tools::program("python3")) else { return };
    let (image, script, dir) = (place.folder.str("image"), place.folder.str("fscrypt.py"), place.dir("d"));
    fs::write(&script, FSCRYPT).expect("written");
    let secret = format!("{dir}/secret");
    let metadata = format!("mkdir -p {secret} {dir}/.fscrypt/policies {dir}/.fscrypt/protectors");
    let make = format!("mke2fs -q -t ext4 -O encrypt {image} 64M; mount -o loop {image} {dir}; {metadata}");
    place.shell(&make).succeeds();
    let fscrypt = |what: &str| place.shell(&format!("{} {script} {what} {dir} {secret}", python.display()));
    let added = fscrypt("add");
    if added.code == 3 {
        place.shell(&format!("umount {dir}")).succeeds();
        return tools::skip("the kernel has no fscrypt").unwrap_or_default();
    }
    added.succeeds();
    let identified = |path: &str| {
        let known = run(["identify", "--json", path]).json();
        (known[0]["format"].as_str().map(str::to_owned), known[0]["verdict"].as_str().map(str::to_owned))
    };
    let fscrypts = |verdict: &str| (Some("fscrypt".to_owned()), Some(verdict.to_owned()));
    place.shell(&format!("mkdir -p {secret}/only/folders; echo one >{secret}/file")).succeeds();
    assert_ne!(identified(&secret), fscrypts("yes"));
    run(["ls", &secret]).fails(3, &["not an encrypted folder"]);
    fscrypt("remove").succeeds();
    assert_eq!(identified(&dir), fscrypts("possible"));
    assert_eq!(identified(&secret), fscrypts("yes"));
    run(["ls", &secret]).fails(5, &["fscrypt unlock FOLDER"]);
    let explained = run(["explain", &secret]);
    assert!(explained.code == 5 && explained.text().contains("As fscrypt"), "{} {}", explained.code, explained.text());
    // Without any file, only names show it.
    let inner = fs::read_dir(&secret).expect("listed").map(|entry| entry.expect("one").path());
    let folder = inner.into_iter().find(|path| path.is_dir()).expect("a folder");
    assert_eq!(identified(folder.to_str().expect("text")), fscrypts("possible"));
    place.shell(&format!("umount {dir}")).succeeds();
}

#[test]
fn folders_of_other_programs_are_named_and_nobody_is_asked_for_a_password() {
    let folder = Folder::new();
    let (lower, dir) = (folder.path("cryfs"), folder.path("d"));
    [&lower, &dir].into_iter().for_each(|path| fs::create_dir(path).expect("a folder"));
    match tools::root().and_then(|()| tools::program("cryfs")) {
        Some(program) => {
            let mut cryfs = Command::new(program);
            cryfs.env("CRYFS_FRONTEND", "noninteractive").env("CRYFS_NO_UPDATE_CHECK", "true");
            let password = fs::File::open(&folder.password).expect("a file");
            tools::run(cryfs.args([&lower, &dir]).stdin(password));
            tools::run(Command::new("fusermount").arg("-u").arg(&dir));
        }
        None => fs::write(lower.join("cryfs.config"), "cryfs.config;1;scrypt\0").expect("written"),
    }
    let lower = folder.str("cryfs");
    let known = run(["identify", "--json", &lower]).succeeds().json();
    assert_eq!((known[0]["format"].as_str(), known[0]["verdict"].as_str()), (Some("CryFS"), Some("yes")), "{known}");
    run(["ls", &lower]).fails(5, &["CryFS", "cryfs FOLDER MOUNTPOINT"]);
    run(["ls", "--password-file", &folder.password, &lower]).fails(5, &["CryFS"]);
    let explained = run(["explain", &lower]);
    assert!(explained.code == 5 && explained.text().contains("As CryFS"), "{} {}", explained.code, explained.text());
}

//! `claviger find`: what lies on a disk without a partition table, and opens by the name of its place.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use claviger_testkit::tools;
use serde_json::Value;

use crate::common::*;

const MIB: u64 = 1 << 20;

/// A sparse image of a disk.
struct Disk {
    folder: Folder,
    image: File,
}

impl Disk {
    fn new(len: u64) -> Self {
        let folder = Folder::new();
        let image = File::options().create_new(true).read(true).write(true).open(folder.path("disk.img")).expect("new");
        image.set_len(len).expect("there is room");
        Self { folder, image }
    }

    /// Puts the contents of a file on the disk, without its first bytes.
    fn put(&self, at: u64, file: &str, without: usize) {
        let bytes = fs::read(self.folder.path(file)).expect("made");
        self.image.write_all_at(&bytes[without..], at + without as u64).expect("there is room");
    }

    /// A file system with `len` bytes, made by a program with these options. `None` if that is missing.
    fn filesystem(&self, name: &str, len: u64, program: &[&str]) -> Option<()> {
        tools::program(program[0])?;
        File::create(self.folder.path(name)).and_then(|file| file.set_len(len)).expect("there is room");
        tools::run(Command::new(program[0]).args(&program[1..]).arg(self.folder.path(name)));
        Some(())
    }

    fn path(&self) -> String {
        self.folder.str("disk.img")
    }

    /// What is found: places, and what each is.
    fn found(&self, code: i32) -> (Vec<(u64, String)>, Value) {
        let ran = run(["find", "--json", &self.path()]);
        assert_eq!(ran.code, code, "{}", ran.err);
        let json = ran.json();
        let found = json["found"].as_array().expect("a list");
        let what = |place: &Value| {
            let kind = ["format", "kind", "what"].iter().find_map(|field| place[field].as_str()).expect("a kind");
            let by = place["by"].as_str().map_or(String::new(), |by| format!(" by {by}"));
            (place["at"].as_u64().expect("a number"), format!("{kind}{by}"))
        };
        (found.iter().map(what).collect(), json)
    }
}

#[test]
fn everything_on_a_disk_without_a_table_is_found_and_opens() {
    let disk = Disk::new(400 * MIB);
    let password = &*disk.folder.password;
    disk.folder.luks2("luks");
    // Where the first partition began in times of cylinders, between zeros.
    let odd = 80 * MIB + 63 * 512;
    let filled = ["create", "--format", "TrueCrypt", "--size", "4M", "--hash", "SHA-512", "--password-file", password];
    run(filled.iter().chain(&[&*disk.folder.str("tc")])).succeeds();
    let create = ["create", "--format", "BitLocker", "--quick", "--size", "64M", "--password-file", password];
    run(create.iter().chain(&[&*disk.folder.str("bl")])).succeeds();
    let made = [
        disk.filesystem("ext", 32 * MIB, &["mkfs.ext4", "-q", "-b", "1024", "-L", "home"]),
        disk.filesystem("ntfs", 16 * MIB, &["mkfs.ntfs", "-q", "-F", "-f"]),
        disk.filesystem("fat", 40 * MIB, &["mkfs.fat", "-F", "32"]),
    ];
    if made.contains(&None) {
        return;
    }
    disk.put(MIB, "luks", 0);
    disk.put(30 * MIB, "luks", 16384);
    disk.put(odd, "tc", 0);
    disk.put(100 * MIB, "bl", 0);
    disk.put(170 * MIB, "bl", 512);
    disk.put(240 * MIB, "ext", 0);
    disk.put(280 * MIB, "ext", 65536);
    disk.put(320 * MIB, "ntfs", 0);
    disk.put(340 * MIB, "fat", 0);
    let (found, json) = disk.found(0);
    let expected = [
        (MIB, "LUKS2"),
        (30 * MIB, "LUKS2 by its second header"),
        // LUKS does not say where it ends.
        (odd, "random-area"),
        (100 * MIB, "BitLocker"),
        (170 * MIB, "BitLocker by a copy of its metadata"),
        (240 * MIB, "ext4"),
        (280 * MIB, "ext4 by a copy of its superblock"),
        (320 * MIB, "NTFS"),
        (340 * MIB, "FAT32"),
    ];
    assert_eq!(found.iter().map(|(at, what)| (*at, &**what)).collect::<Vec<_>>(), expected, "{json:#}");
    let size = |at: u64| {
        json["found"].as_array().and_then(|all| all.iter().find(|place| place["at"] == at)).map(|it| it["len"].as_u64())
    };
    assert_eq!(size(240 * MIB), Some(Some(32 * MIB)));
    assert_eq!(size(320 * MIB), Some(Some(16 * MIB)));
    assert_eq!(size(340 * MIB), Some(Some(40 * MIB)));

    let text = run(["find", &disk.path()]).succeeds().text();
    for line in [
        "at 1 MiB: LUKS2 volume\n",
        "at 240 MiB: ext4 \"home\", 32 MiB\n",
        "perhaps data of the volume before, or a volume of TrueCrypt, VeraCrypt",
        "To try a password: claviger explain at:1048576@",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let names: Vec<_> = json["found"].as_array().expect("a list").iter().map(|place| place["path"].as_str()).collect();
    // A volume whose first sector is lost opens by the name of its format.
    let options: [&[&str]; 5] = [&[], &[], &["--truecrypt", "--hash", "SHA-512"], &[], &["--format", "BitLocker"]];
    for (name, options) in names.iter().zip(options) {
        let name = name.expect("text");
        let info = ["info", "--json", "--password-file", password, name];
        run(info.iter().chain(options)).succeeds();
    }
    for place in [5, 7, 8] {
        run(["ls", names[place].expect("text")]).succeeds();
    }
    assert_eq!(disk.found(0).0, found, "nothing was written");
}

/// A disk with new partitions keeps superblocks of old ones, which claim more than is theirs.
#[test]
fn what_lies_in_an_older_or_a_cut_file_system_is_found_too() {
    let disk = Disk::new(200 * MIB);
    let make =
        |name: &str, len, label: &str| disk.filesystem(name, len, &["mkfs.ext4", "-q", "-b", "1024", "-L", label]);
    if [make("old", 300 * MIB, "old"), make("new", 32 * MIB, "new")].contains(&None) {
        return;
    }
    let start = fs::read(disk.folder.path("old")).expect("made");
    disk.image.write_all_at(&start[..64 << 10], MIB).expect("there is room");
    disk.folder.luks2("luks");
    disk.put(60 * MIB, "luks", 0);
    disk.put(100 * MIB, "new", 0);
    disk.image.write_all_at(&noise(3 << 20), 150 * MIB).expect("there is room");
    let (found, json) = disk.found(0);
    assert_eq!(found, [(MIB, "ext4".into()), (60 * MIB, "LUKS2".into()), (100 * MIB, "ext4".into())], "{json:#}");
    let inside: Vec<_> = json["found"].as_array().expect("a list").iter().map(|it| it["inside"].as_bool()).collect();
    assert_eq!(inside, [Some(false), Some(false), Some(true)], "{json:#}");
    assert!(json["random_inside"].as_u64().is_some_and(|bytes| bytes >= 3 << 20), "{json:#}");
    let text = run(["find", &disk.path()]).succeeds().text();
    for line in ["\"old\", 300 MiB, 101 MiB of it are cut off", "\"new\", 32 MiB, inside the file system before it"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // All names open, also of what was cut off.
    for place in json["found"].as_array().expect("a list") {
        run(["identify", place["path"].as_str().expect("text")]);
    }
    let name = json["found"][0]["path"].as_str().expect("text");
    assert!(name.starts_with("at:1048576@"), "{name}");
    run(["ls", json["found"][2]["path"].as_str().expect("text")]).succeeds();
}

#[test]
fn a_part_is_written_only_where_it_ends() {
    let disk = Disk::new(64 * MIB);
    disk.folder.luks2("luks");
    disk.put(MIB, "luks", 0);
    disk.put(40 * MIB, "luks", 0);
    let password = &*disk.folder.password;
    let before = fs::read(disk.folder.path("disk.img")).expect("read");
    let (new, open) = (disk.folder.str("new"), format!("at:1M@{}", disk.path()));
    fs::write(&new, "another one").expect("a password file");
    let change =
        |name: &str| run(["keyslot", "change", "--password-file", password, "--new-password-file", &new, name]);
    change(&open).fails(1, &["only if its size is known", "at:OFFSET+SIZE@STORE"]);
    run(["create", "--force", "--quick", "--password-file", password, &open]).fails(1, &["only if its size is known"]);
    assert!(fs::read(disk.folder.path("disk.img")).expect("read") == before);
    change(&format!("at:1M+20M@{}", disk.path())).succeeds();
    let after = fs::read(disk.folder.path("disk.img")).expect("read");
    let differs = |at: u64, len: u64| {
        let range = at as usize..(at + len) as usize;
        before[range.clone()] != after[range]
    };
    assert!(differs(MIB, 20 * MIB) && !differs(0, MIB) && !differs(21 * MIB, 43 * MIB));
    run(["info", "--password-file", &new, &open]).succeeds();
    run(["info", "--password-file", password, &format!("at:40M@{}", disk.path())]).succeeds();
    run(["info", "--password-file", password, &format!("at:50M+20M@{}", disk.path())]).fails(1, &["ends at byte"]);
    // Names with signs that lists have.
    let odd = disk.folder.path("a,b (1)@c.img");
    fs::copy(disk.folder.path("disk.img"), &odd).expect("copied");
    let found = run(["find", "--json", &odd.display().to_string()]).succeeds().json();
    let name = found["found"][0]["path"].as_str().expect("text").to_owned();
    run(["info", "--password-file", &new, &name]).succeeds();
}

/// Bytes that look random.
fn noise(len: usize) -> Vec<u8> {
    let mut random = claviger_testkit::random::Random::new(1);
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn where_nothing_is_the_exit_code_says_so() {
    let disk = Disk::new(3 * MIB + 77);
    let (found, json) = disk.found(3);
    assert!(found.is_empty(), "{json:#}");
    // Text, and a file system's signature in it.
    disk.image.write_all_at(&b"XFSB and LUKS are names. ".repeat(40_000), MIB + 512).expect("there is room");
    let (found, json) = disk.found(3);
    assert!(found.is_empty(), "{json:#}");
}

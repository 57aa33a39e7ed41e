//! Volumes in the partitions of a disk, as a person opens them.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::*;
use claviger_testkit::tools;

/// Volumes of 1 MiB that are cheap to open.
const CHEAP: [&str; 6] = ["--format", "TrueCrypt", "--hash", "SHA-512", "--cipher", "AES"];

/// A disk of 8 MiB with two partitions, the second of which is a volume; and that volume by itself.
fn disk(folder: &Folder) -> Option<(String, String)> {
    let sfdisk = tools::program("sfdisk")?;
    let (disk, volume) = (folder.path("disk.img"), folder.path("volume"));
    fs::File::create(&disk).and_then(|f| f.set_len(8 << 20)).expect("a disk");
    let mut child = Command::new(sfdisk)
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(&disk)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sfdisk starts");
    let script = b"label: gpt\nstart=2048, size=2048, name=\"plain\"\nstart=4096, size=2048, name=\"sealed\"\n";
    child.stdin.take().expect("a pipe").write_all(script).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success());

    folder.volume("volume", "1M", &["--cipher", "AES"]);
    let mut bytes = fs::read(&disk).expect("the disk");
    bytes[2 << 20..3 << 20].copy_from_slice(&fs::read(&volume).expect("the volume"));
    fs::write(&disk, bytes).expect("the disk");
    Some((folder.str("disk.img"), folder.str("volume")))
}

#[test]
fn a_disk_says_which_partitions_could_be_volumes() {
    let folder = Folder::new();
    let Some((disk, _)) = disk(&folder) else { return };
    let found = run(["identify", "--json", &disk]).succeeds().json();
    let partitions = found[0]["partitions"].as_array().expect("a list");
    assert_eq!(found[0]["verdict"], "no");
    assert_eq!((&partitions[0]["number"], &partitions[0]["name"]), (&1.into(), &"plain".into()));
    assert!(partitions[0]["formats"].as_array().expect("a list").is_empty());
    assert_eq!((&partitions[1]["number"], &partitions[1]["start"]), (&2.into(), &(2 << 20).into()));
    assert_eq!(partitions[1]["formats"][0], "TrueCrypt");
    let text = run(["identify", &disk]).succeeds().text();
    assert!(text.contains("a disk with partitions that could be volumes"), "{text}");
    assert!(
        text.contains("partition 2 \"sealed\", 1 MiB, Linux: possibly TrueCrypt or VeraCrypt (--partition 2)"),
        "{text}"
    );

    assert!(text.contains(&format!("`claviger explain --partition=2 {disk}`")), "{text}");

    run(["info", "--password-file", &folder.password, &disk])
        .fails(3, &["Choose one with --partition", "could be volumes: 2"]);
}

#[test]
fn a_partition_opens_as_the_volume_that_it_is() {
    let folder = Folder::new();
    let Some((disk, volume)) = disk(&folder) else { return };
    let with = |verb: &[&str], more: &[&str], path: &str| {
        run([verb, &["--password-file", &folder.password], &CHEAP, more, &[path]].concat())
    };
    let before = sha256(&fs::read(&disk).expect("the disk"));
    let info = with(&["info", "--json"], &["--partition", "2"], &disk).succeeds().json();
    assert_eq!((&info["cipher"], &info["header"]), (&"AES".into(), &"primary".into()));
    assert_eq!(info["data_offset"], (2 << 20) + 131_072);
    let there = with(&["cat"], &["--partition", "2"], &disk).succeeds();
    let alone = with(&["cat"], &[], &volume).succeeds();
    assert!(there.out == alone.out && there.out.len() == (1 << 20) - 262_144);
    assert_eq!(sha256(&fs::read(&disk).expect("the disk")), before);

    with(&["info"], &["--partition", "7"], &disk).fails(1, &["there is no partition 7; existing: 1, 2"]);
    with(&["info"], &["--partition", "0"], &disk).fails(1, &["--partition"]);
    with(&["info"], &["--partition", "1"], &volume).fails(1, &["there is no partition table"]);
}

/// Headers are changed in the partition, and nowhere else.
#[test]
fn the_headers_of_a_volume_in_a_partition_are_changed_in_place() {
    let folder = Folder::new();
    let Some((disk, _)) = disk(&folder) else { return };
    let before = fs::read(&disk).expect("the disk");
    let new = folder.str("new password");
    fs::write(&new, "another one, longer than twenty").expect("a password file");
    let args = ["change", "--partition", "2", "--password-file", &folder.password, "--new-password-file", &new];
    run([&args[..], &CHEAP, &[&disk]].concat()).succeeds();
    let after = fs::read(&disk).expect("the disk");
    let changed: Vec<usize> =
        (0..after.len() / 512).filter(|i| after[i * 512..][..512] != before[i * 512..][..512]).collect();
    assert_eq!(changed, [4096, 4096 + 2048 - 256]);
    run([&["info", "--partition", "2", "--password-file", &new][..], &CHEAP, &[&disk]].concat()).succeeds();
}

/// The backup header of the volume goes to the beginning of the partition, not to that of the disk.
#[test]
fn a_header_is_restored_in_its_partition() {
    let folder = Folder::new();
    let Some((disk, _)) = disk(&folder) else { return };
    let mut before = fs::read(&disk).expect("the disk");
    before[2 << 20..][..512].fill(0);
    fs::write(&disk, &before).expect("the disk");
    let password = ["--partition", "2", "--password-file", &folder.password];
    run([&["header", "restore", "--embedded", "--yes"][..], &password, &CHEAP, &[&disk]].concat()).succeeds();
    let after = fs::read(&disk).expect("the disk");
    let changed: Vec<usize> =
        (0..after.len() / 512).filter(|i| after[i * 512..][..512] != before[i * 512..][..512]).collect();
    assert_eq!(changed, [4096]);
    run([&["info"][..], &password, &CHEAP, &[&disk]].concat()).succeeds();
}

#[test]
fn explain_looks_into_the_partitions() {
    let folder = Folder::new();
    let Some((disk, _)) = disk(&folder) else { return };
    let text = run(["explain", "--without-password", &disk]).text();
    assert!(text.contains("Partition 1 (1 MiB, Linux, called plain) is not a volume of a known format."), "{text}");
    assert!(text.contains("called sealed) could be a volume: TrueCrypt or VeraCrypt."), "{text}");
    let password = ["--partition", "2", "--password-file", &folder.password];
    let text = run([&["explain"][..], &password, &CHEAP, &[&disk]].concat()).succeeds().text();
    assert!(text.contains("It opens as a TrueCrypt volume") && text.contains("--partition=2"), "{text}");
}

#[test]
fn a_damaged_partition_table_is_told() {
    let folder = Folder::new();
    let Some((disk, _)) = disk(&folder) else { return };
    let mut bytes = fs::read(&disk).expect("the disk");
    let last = bytes.len() - 512;
    (bytes[520], bytes[last + 8]) = (0xff, 0xff);
    fs::write(&disk, bytes).expect("the disk");
    let text = run(["identify", &disk]).fails(3, &[]).text();
    assert!(text.contains("partition table: damaged: a header of revision"), "{text}");
    run(["info", "--password-file", &folder.password, "--partition", "2", &disk]).fails(4, &["damaged", "gdisk"]);
}

/// The disk of an encrypted system, which VeraCrypt made.
fn system(folder: &Folder) -> Option<String> {
    const NAME: &str = "tcrypt/sys_vc_1_mbr_part-sha256-xts-aes";
    let (archive, tar) = (tools::sample("cryptsetup/images.tar.xz")?, tools::program("tar")?);
    tools::run(Command::new(tar).arg("-xJf").arg(archive).arg("-C").arg(folder.path("")).arg(NAME));
    Some(folder.str(NAME))
}

#[test]
fn the_header_of_an_encrypted_system_is_changed_saved_and_restored() {
    let folder = Folder::new();
    let Some(disk) = system(&folder) else { return };
    let (old, new) = (folder.str("old password"), folder.str("new password"));
    fs::write(&old, "aaaaaaaaaaaa").expect("a password file");
    fs::write(&new, "typed on an American keyboard").expect("a password file");
    let (saved, before) = (folder.str("saved"), fs::read(&disk).expect("the disk"));
    let changed = || -> Vec<usize> {
        let after = fs::read(&disk).expect("the disk");
        before.chunks(512).zip(after.chunks(512)).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
    };
    let cheap = ["--hash", "SHA-256", "--cipher", "AES"];
    let with = |verb: &[&str], password: &str, rest: &[&str]| {
        run([verb, &cheap, &["--password-file", password], rest].concat())
    };
    with(&["header", "backup"], &old, &[&disk, &saved]).succeeds();
    assert_eq!(fs::read(&saved).expect("a backup").len(), 512);
    with(&["change", "--new-hash", "SHA-512", "--new-password-file", &new], &old, &[&disk]).fails(5, &["boot loader"]);
    assert!(changed().is_empty());
    let text = with(&["change", "--new-password-file", &new], &old, &[&disk]).succeeds();
    assert!(text.err.contains("rescue disk"), "{}", text.err);
    assert_eq!(changed(), [62]);
    with(&["info", "--partition", "1"], &new, &[&disk]).succeeds();
    with(&["info"], &old, &[&disk]).fails(2, &[]);
    with(&["verify"], &new, &[&disk]).succeeds();
    // With neither format nor table named: TrueCrypt's turn comes first.
    with(&["header", "restore", "--yes", "--force", "--from", &saved], &old, &[&disk]).succeeds();
    assert_eq!(changed(), [62]);
    with(&["info", "--partition", "1"], &old, &[&disk]).succeeds();
}

//! File systems that this program reads and writes itself, mounted.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::mounted::{MountedFolder, NOBODY, as_nobody, transports};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{program, run};

/// A place whose backing is a new FAT of a width, or an exFAT; or a reported skip.
pub fn made(kind: &str, size: usize) -> Option<MountedFolder> {
    transports()?;
    program(checker(kind))?;
    let place = MountedFolder::new(&vec![0; size]);
    let (mkfs, args) = if kind == "exFAT" { ("mkfs.exfat", vec![]) } else { ("mkfs.vfat", vec!["-F", kind]) };
    run(Command::new(program(mkfs)?).args(args).arg(place.backing()));
    Some(place)
}

fn checker(kind: &str) -> &'static str {
    if kind == "exFAT" { "fsck.exfat" } else { "fsck.vfat" }
}

/// Fails unless the program that checks it has nothing to say.
pub fn check(kind: &str, place: &MountedFolder) {
    run(Command::new(program(checker(kind)).expect("found before")).arg("-n").arg(place.backing()));
}

/// Every file below `folder`, by its path.
fn read_all(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((path, name)) = folders.pop() {
        for entry in fs::read_dir(path).expect("it is listed") {
            let entry = entry.expect("an entry");
            let name = format!("{name}/{}", entry.file_name().to_str().expect("text"));
            match entry.file_type().expect("a type").is_dir() {
                true => folders.push((entry.path(), name)),
                false => drop(files.insert(name, fs::read(entry.path()).expect("it is read"))),
            }
        }
    }
    files
}

#[test]
fn programs_work_on_a_mounted_fat_or_exfat_as_on_any_file_system() {
    for (kind, size) in [("12", 4 << 20), ("16", 20 << 20), ("32", 40 << 20), ("exFAT", 20 << 20)] {
        let Some(place) = made(kind, size) else { continue };
        let mut server = place.serve(&["tree"]);
        let root = place.folder();
        let mut random = Random::new(7);
        let mut model = BTreeMap::new();
        fs::create_dir_all(root.join("a folder/deeper")).expect("folders");
        for (path, len) in
            [("/small.txt", 10), ("/a folder/large", 1_200_000), ("/a folder/deeper/Ünïcode 日本", 70_000)]
        {
            let bytes = random.bytes(len);
            fs::write(root.join(&path[1..]), &bytes).expect("written");
            model.insert(path.to_owned(), bytes);
        }
        for i in 0..120 {
            let path = format!("/a folder/a file with a long name, number {i}");
            fs::write(root.join(&path[1..]), [i; 300]).expect("written");
            model.insert(path, vec![i; 300]);
        }
        // Append, write in the middle, cut, stretch.
        let large = root.join("a folder/large");
        let mut file = OpenOptions::new().append(true).open(&large).expect("it opens");
        file.write_all(b"appended").expect("written");
        let contents = model.get_mut("/a folder/large").expect("there");
        contents.extend(b"appended");
        let file = OpenOptions::new().write(true).open(&large).expect("it opens");
        file.write_all_at(b"in the middle", 600_000).expect("written");
        contents[600_000..600_013].copy_from_slice(b"in the middle");
        file.set_len(900_000).expect("cut");
        file.set_len(1_000_000).expect("stretched");
        contents.resize(900_000, 0);
        contents.resize(1_000_000, 0);
        file.sync_all().expect("durable");
        // Moved, replaced, removed.
        fs::rename(root.join("small.txt"), root.join("a folder/deeper/moved")).expect("moved");
        let moved = model.remove("/small.txt").expect("there");
        model.insert("/a folder/deeper/moved".into(), moved);
        fs::rename(
            root.join("a folder/a file with a long name, number 1"),
            root.join("a folder/a file with a long name, number 2"),
        )
        .expect("replaced");
        let one = model.remove("/a folder/a file with a long name, number 1").expect("there");
        model.insert("/a folder/a file with a long name, number 2".into(), one);
        fs::remove_file(root.join("a folder/a file with a long name, number 3")).expect("removed");
        model.remove("/a folder/a file with a long name, number 3");
        assert!(read_all(&root) == model, "{kind}");
        // A file that is removed while it is open.
        let gone = root.join("gone");
        let mut open = OpenOptions::new().read(true).write(true).create_new(true).open(&gone).expect("new");
        open.write_all(&[9; 50_000]).expect("written");
        fs::remove_file(&gone).expect("removed");
        fs::write(root.join("other"), [1; 50_000]).expect("written");
        open.seek(SeekFrom::Start(0)).expect("the beginning");
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).expect("it is still there");
        assert!(bytes == [9; 50_000]);
        drop(open);
        fs::remove_file(root.join("other")).expect("removed");
        // Modes and times.
        let metadata = fs::metadata(&large).expect("it is there");
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, 0));
        assert_eq!(fs::metadata(root.join("a folder")).expect("it is there").mode() & 0o777, 0o700);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_328_612_944);
        file.set_modified(time).expect("set");
        assert_eq!(fs::metadata(&large).expect("it is there").modified().expect("a time"), time);
        fs::set_permissions(&large, fs::Permissions::from_mode(0o644)).expect("accepted and forgotten");
        // Calls that the file system cannot carry out.
        assert!(std::os::unix::fs::symlink("x", root.join("link")).is_err());
        assert!(fs::write(root.join("a:b"), b"x").is_err());
        assert_eq!(
            fs::remove_dir(root.join("a folder")).expect_err("not empty").kind(),
            std::io::ErrorKind::DirectoryNotEmpty
        );
        drop(file);
        assert!(server.stop().success());
        assert_eq!(place.mount_line(), None);
        check(kind, &place);
        let server = place.serve(&["tree", "read-only"]);
        assert!(read_all(&root) == model, "{kind} again");
        let refused = fs::write(root.join("x"), b"x").expect_err("read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        drop(server);
    }
}

#[test]
fn a_user_without_privileges_mounts_a_fat_or_exfat() {
    for needed in ["fusermount3", "setpriv"] {
        let Some(_) = program(needed) else { return };
    }
    for kind in ["16", "exFAT"] {
        let Some(place) = made(kind, 20 << 20) else { continue };
        let mut server = place.serve_as_nobody(&["tree"]);
        assert!(place.mount_line().expect("it is mounted").contains("nosuid,nodev"));
        let script =
            "mkdir folder; head -c 3000000 /dev/urandom >folder/x; cp -p folder/x folder/y; cmp folder/x folder/y;
                      rm folder/x; stat -c '%a %u' folder folder/y; df . >/dev/null";
        let script = format!("cd '{}'; {script}", place.folder().display());
        let output = run(as_nobody().args(["sh", "-ec", &script]).current_dir("/"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("700 {NOBODY}\n600 {NOBODY}\n"));
        assert!(server.stop().success());
        check(kind, &place);
    }
}

#[test]
fn a_killed_server_leaves_all_that_was_made_durable() {
    for (round, kind) in (0..).zip(["16", "32", "exFAT", "16", "32", "exFAT"]) {
        let Some(place) = made(kind, 40 << 20) else { continue };
        let mut server = place.serve(&["tree"]);
        let root = place.folder();
        let mut random = Random::new(round);
        let durable = random.bytes(300_000);
        fs::create_dir(root.join("folder")).expect("a folder");
        let mut file = File::create(root.join("folder/durable")).expect("new");
        file.write_all(&durable).expect("written");
        file.sync_all().expect("durable");
        for i in 0..60 + 40 * round {
            fs::write(root.join(format!("folder/not yet {i}")), random.bytes(5000)).expect("written");
            if i % 3 == 0 {
                fs::remove_file(root.join(format!("folder/not yet {i}"))).expect("removed");
            }
        }
        drop(file);
        server.kill();
        drop(server);
        // Only the mark of being in use, lost clusters and a count that is not up to date may be left.
        let fsck = program(checker(kind)).expect("found before");
        let said = Command::new(&fsck).args(["-n", "-v"]).arg(place.backing()).output().expect("it starts");
        let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        for line in said.lines() {
            let words = ["shares clusters", "Bad", "Truncating", "Orphaned", "start does point", "differ", "ERROR"];
            let harmless = ["boot sector and its backup", "more clusters are allocated"];
            let bad = words.iter().any(|words| line.contains(words));
            assert!(!bad || harmless.iter().any(|words| line.contains(words)), "{kind}: {said}");
        }
        // exFAT's checker does not mention the mark.
        assert!(said.contains("Dirty bit is set") || place.bytes()[106] & 2 != 0, "{kind}: {said}");
        let server = place.serve(&["tree", "read-only"]);
        assert!(fs::read(root.join("folder/durable")).expect("it is there") == durable);
        drop(server);
    }
}

#[test]
fn ext4_is_shown_read_only() {
    let Some(_) = transports() else { return };
    let Some(mke2fs) = program("mke2fs") else { return };
    let place = MountedFolder::new(&vec![0; 16 << 20]);
    let source = tempfile::tempdir().expect("a folder");
    fs::create_dir(source.path().join("folder")).expect("a folder");
    let large = Random::new(1).bytes(2_000_000);
    fs::write(source.path().join("folder/large"), &large).expect("written");
    std::os::unix::fs::symlink("folder/large", source.path().join("link")).expect("a link");
    run(Command::new(mke2fs).args(["-q", "-t", "ext4", "-d"]).arg(source.path()).arg(place.backing()));
    let before = place.bytes();
    let mut server = place.serve(&["tree"]);
    let root = place.folder();
    assert!(fs::read(root.join("link")).expect("through the link") == large);
    let refused = fs::write(root.join("new"), b"x").expect_err("it can only be read");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(server.stop().success());
    assert!(place.bytes() == before);
}

#[test]
fn what_the_store_refuses_is_an_io_error_and_the_rest_goes_on() {
    for kind in ["16", "exFAT"] {
        let Some(place) = made(kind, 20 << 20) else { continue };
        // Somewhere in the data, after the first writes.
        let mut server = place.serve(&["tree", "refuse=10000000"]);
        let root = place.folder();
        fs::write(root.join("before"), [1; 5000]).expect("written");
        let large = fs::write(root.join("large"), vec![2; 15 << 20]).expect_err("refused");
        assert_eq!(large.raw_os_error(), Some(5), "{large}");
        assert!(fs::read(root.join("before")).expect("it is there") == [1; 5000]);
        fs::write(root.join("after"), [3; 5000]).expect("written");
        assert!(server.stop().success());
        check(kind, &place);
    }
}

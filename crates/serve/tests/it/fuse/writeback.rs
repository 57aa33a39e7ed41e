//! Mounts where the kernel collects writes: programs find no difference until something fails.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use claviger_testkit::fsx::{Folder, Plan, exercise_folder, seed};
use claviger_testkit::random::Random;
use claviger_testkit::stress;
use claviger_testkit::tools::run;

use crate::fuse::folder::{KNOWN, Passed, lower};
use crate::fuse::tree::{check, made};
use crate::mounted::{MountedFolder, NOBODY, as_nobody, transports};

const WORDS: &[&str] = &["writeback"];

/// The kernel reads parts of what is written, so a server that is not root cannot write to what it may not read.
const UNREADABLE: &str = "access: the owner's bits are the owner's only ones";

#[test]
fn a_folder_with_writeback_behaves_as_posix_wants() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root_with(WORDS, transport);
        passed.holds_against_posix(None, &KNOWN);
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
        let Some(passed) = Passed::by_nobody_with(WORDS, transport) else { return };
        passed.holds_against_posix(Some(NOBODY), &[KNOWN[0], UNREADABLE]);
        passed.ends();
    }
}

#[test]
fn with_writeback_many_threads_find_what_they_put_there_and_random_operations_do_what_a_model_says() {
    for (words, transport) in [WORDS, &["ecryptfs", "writeback"]].into_iter().zip(transports().into_iter().flatten()) {
        let passed = Passed::by_root_with(words, transport);
        let root = passed.place.folder();
        stress::run(&root, seed(), 300, 4).unwrap_or_else(|e| panic!("{e}"));
        let files = root.join("files");
        fs::create_dir(&files).expect("it is new");
        let mut folder = Folder::empty(&files, 16 << 20);
        exercise_folder(&mut folder, &Plan::operations(seed(), 2000)).unwrap_or_else(|e| panic!("{e}"));
        passed.ends();
    }
}

/// A file that is open twice, once for appending, and what is in it.
struct Model {
    file: File,
    end: File,
    bytes: Vec<u8>,
}

impl Model {
    const LARGEST: usize = 2 << 20;

    fn new(path: &Path) -> Self {
        let file = OpenOptions::new().write(true).read(true).create_new(true).open(path).expect("it is new");
        let end = OpenOptions::new().append(true).open(path).expect("it is there");
        Self { file, end, bytes: Vec::new() }
    }

    /// Changes or reads something. Other operations than closing leave the rest to the kernel.
    fn step(&mut self, random: &mut Random) {
        let at = random.below(Self::LARGEST);
        let longest = if random.below(8) == 0 { 200_000 } else { 700 };
        let len = 1 + random.below(longest);
        match random.below(20) {
            0..=7 => {
                let data = random.bytes(len);
                self.file.write_all_at(&data, at as u64).expect("there is room");
                self.bytes.resize(self.bytes.len().max(at + len), 0);
                self.bytes[at..at + len].copy_from_slice(&data);
            }
            8..=13 if self.bytes.len() < Self::LARGEST => {
                let data = random.bytes(len);
                self.end.write_all(&data).expect("there is room");
                self.bytes.extend(data);
            }
            14 => {
                self.file.set_len(at as u64).expect("it can be cut and stretched");
                self.bytes.resize(at, 0);
            }
            15 => self.file.sync_all().expect("it is written"),
            _ => {
                let at = at.min(self.bytes.len());
                let end = (at + len).min(self.bytes.len());
                let mut read = vec![0xee; end - at];
                self.file.read_exact_at(&mut read, at as u64).expect("it is read");
                assert!(read == self.bytes[at..end], "{at} to {end}");
                assert_eq!(self.file.metadata().expect("it is there").len(), self.bytes.len() as u64);
            }
        }
    }
}

#[test]
fn files_that_stay_open_hold_what_was_written_here_and_after_the_next_mount() {
    let places: [(&[&str], _); 3] = [
        (&["writeback"], Passed::by_root_with as fn(&[&str], &str) -> Passed),
        (&["ecryptfs", "writeback"], Passed::by_root_with),
        (&["tree", "writeback"], in_a_volume),
    ];
    for ((words, passed), transport) in places.into_iter().zip(transports().into_iter().flatten().cycle()) {
        let Passed { place, mut server } = passed(words, transport);
        let names = [1, 2, 3].map(|number| place.folder().join(format!("file {number}")));
        let mut models = names.each_ref().map(|name| Model::new(name));
        let mut random = Random::new(seed());
        for _ in 0..1500 {
            models[random.below(3)].step(&mut random);
        }
        // The last file stays open, and its name goes.
        fs::remove_file(&names[2]).expect("it is there");
        for _ in 0..20 {
            models[2].step(&mut random);
        }
        let [first, second, _] = models.map(|model| model.bytes);
        assert!(server.stop().success(), "{words:?}");
        drop(server);
        let folder = format!("folder={}", lower(&place).display());
        let mut again = words.iter().copied().filter(|word| *word != "writeback").collect::<Vec<_>>();
        again.extend((words[0] != "tree").then_some(&*folder));
        let mut server = place.serve(&again);
        for (name, bytes) in names.iter().zip([first, second]) {
            assert!(fs::read(name).expect("it is there") == bytes, "{words:?}: {}", name.display());
        }
        assert!(!names[2].exists());
        assert!(server.stop().success());
    }
}

/// A FAT of 40 MiB, or a test that has nothing to do.
fn in_a_volume(words: &[&str], transport: &str) -> Passed {
    let place = made("32", 40 << 20).expect("mkfs.vfat is among what tests need");
    let server = place.serve(&[words, &[transport]].concat());
    Passed { place, server }
}

/// What the volume refuses, a program learns when it closes or synchronises the file, and nothing else is lost.
#[test]
fn a_write_that_fails_later_is_told_by_closing_and_synchronising() {
    let Some(place) = made("16", 20 << 20) else { return };
    let mut server = place.serve(&["tree", "writeback", "refuse=10000000"]);
    let root = place.folder();
    fs::write(root.join("before"), [1; 5000]).expect("written");
    // All of the room: then it holds the byte that is refused, wherever the file begins.
    let room = rustix::fs::statvfs(&root).expect("mounted");
    let large = MountedFolder::new(&vec![2; (room.f_bavail * room.f_frsize) as usize]);
    let copied = Command::new("cp").arg(large.backing()).arg(root.join("large")).output().expect("cp, of coreutils");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(!copied.status.success() && said.contains("Input/output error"), "{said}");
    fs::remove_file(root.join("large")).expect("it is there");
    let file = File::create(root.join("large")).expect("there is room");
    // The kernel accepts every write until it reports a failure.
    let refused = large.bytes().chunks(64 << 10).try_for_each(|piece| (&file).write_all(piece));
    let refused = refused.and_then(|()| file.sync_all()).expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(5), "{refused}");
    drop(file);
    assert!(fs::read(root.join("before")).expect("it is there") == [1; 5000]);
    // There is no room for another file.
    let again = File::options().write(true).open(root.join("before")).expect("it is there");
    (&again).write_all(&[3; 5000]).and_then(|()| again.sync_all()).expect("written");
    drop(again);
    assert!(!server.stop().success(), "the server reports it, too");
    check("16", &place);
}

/// The kernel tells the first program that closes the file, which need not be the one that wrote.
#[test]
fn a_failed_write_that_another_program_was_told_is_told_by_the_server() {
    let Some(place) = made("16", 20 << 20) else { return };
    let mut server = place.serve(&["tree", "writeback"]);
    let path = place.folder().join("large");
    let mut writer = File::create(&path).expect("there is room");
    let reader = File::open(&path).expect("it is there");
    writer.write_all(&vec![3; 30 << 20]).expect("the kernel takes it");
    drop(reader);
    drop(writer);
    assert!(!server.stop().success());
    check("16", &place);
}

/// The kernel wants the time of a change to be set that the server's own change has set.
#[test]
fn a_user_writes_to_and_cuts_a_file_of_another_that_lets_all_write() {
    for transport in transports().into_iter().flatten() {
        let Some(passed) = Passed::by_nobody_with(WORDS, transport) else { return };
        let file = lower(&passed.place).join("file");
        fs::write(&file, "what was there before").expect("there is room");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("it is ours");
        let script = "printf abcdef >file && truncate -s 3 file && printf g >>file && test $(cat file) = abcg";
        run(as_nobody()
            .args(["sh", "-ec", &format!("cd '{}'; {script}", passed.place.folder().display())])
            .current_dir("/"));
        assert_eq!(fs::read(&file).expect("it is there"), b"abcg");
        passed.ends();
    }
}

/// What was synchronised or closed is in the folder; programs learn that the rest is lost.
#[test]
fn a_killed_server_loses_what_open_files_did_not_synchronise_and_nothing_else() {
    for transport in transports().into_iter().flatten() {
        let Passed { place, mut server } = Passed::by_root_with(&["ecryptfs", "writeback"], transport);
        let (root, mut random) = (place.folder(), Random::new(seed()));
        let closed = random.bytes(200_001);
        fs::write(root.join("closed"), &closed).expect("there is room");
        let file = File::create(root.join("open")).expect("it is new");
        let durable = random.bytes(100_001);
        file.write_all_at(&durable, 0).expect("there is room");
        file.sync_all().expect("it is written");
        file.write_all_at(&random.bytes(100_000), 100_001).expect("the kernel takes it");
        server.kill();
        drop(server);
        file.sync_all().expect_err("nobody is there to write it");
        drop(file);
        let server = place.serve(&[&format!("folder={}", lower(&place).display()), "ecryptfs", transport]);
        assert!(fs::read(root.join("closed")).expect("it is there") == closed);
        assert!(fs::read(root.join("open")).expect("it is there").starts_with(&durable));
        Passed { place, server }.ends();
    }
}

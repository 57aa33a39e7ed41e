//! A folder of eCryptfs, mounted: programs find little difference to a folder that is not encrypted.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use claviger_testkit::fsx::{Folder, Plan, exercise_folder, seed};
use claviger_testkit::stress;

use crate::fuse::folder::{KNOWN, Passed, lower, makes_no_devices};
use crate::mounted::{NOBODY, transports};

const WORDS: &[&str] = &["ecryptfs"];

/// Limits of the format: names and targets are shorter, and stored files have no holes.
const LIMITS: [&str; 5] = [
    KNOWN[0],
    "paths: names of 255 bytes and paths of 4095 work",
    "statvfs: says what is so",
    "symlink: the longest target, and what is no target",
    "truncate: far beyond the end is sparse",
];

/// Without permission to read a file, a user cannot know its size or change it. Root can, and does it for other users.
const UNREADABLE: [&str; 2] =
    ["open: O_PATH needs no permission and gives none", "truncate: needs the permission to write"];

/// The transport of trees. The other one is tested with a folder in clear.
fn transport() -> Option<&'static str> {
    transports().map(|[device, _]| device)
}

#[test]
fn an_encrypted_folder_of_root_behaves_as_posix_wants_for_root_and_for_a_user() {
    let Some(transport) = transport() else { return };
    let passed = Passed::by_root_with(WORDS, transport);
    passed.holds_against_posix(None, &LIMITS);
    passed.holds_against_posix(Some(NOBODY), &LIMITS);
    passed.ends();
}

#[test]
fn an_encrypted_folder_that_shows_no_devices_makes_none() {
    let Some(transport) = transport() else { return };
    let passed = Passed::by_root_with(&["ecryptfs", "no-devices"], transport);
    passed.refuses_what_is_odd();
    makes_no_devices(&passed);
    passed.ends();
}

#[test]
fn an_encrypted_folder_of_a_user_behaves_as_posix_wants() {
    let Some(passed) = transport().and_then(|transport| Passed::by_nobody_with(WORDS, transport)) else { return };
    passed.holds_against_posix(Some(NOBODY), &[&LIMITS[..], &UNREADABLE].concat());
    passed.ends();
}

#[test]
fn many_threads_find_in_an_encrypted_folder_what_they_put_there() {
    let Some(transport) = transport() else { return };
    let passed = Passed::by_root_with(WORDS, transport);
    stress::run(&passed.place.folder(), seed(), 400, 4).unwrap_or_else(|e| panic!("{e}"));
    passed.ends();
}

#[test]
fn random_operations_do_to_an_encrypted_folder_what_a_model_says() {
    for transport in transports().into_iter().flatten() {
        let Passed { place, mut server } = Passed::by_root_with(WORDS, transport);
        let (root, below) = (place.folder(), lower(&place));
        let mut folder = Folder::empty(&root, 16 << 20);
        exercise_folder(&mut folder, &Plan::operations(seed(), 3000)).unwrap_or_else(|e| panic!("{e}"));
        folder.compare().expect("all of it is there");
        assert!(server.stop().success());
        drop(server);
        // It is there when it is mounted anew, too, and below there is nothing in clear.
        let server = place.serve(&[&format!("folder={}", below.display()), "ecryptfs", transport]);
        folder.compare().expect("all of it is there");
        for entry in fs::read_dir(below).expect("it is listed") {
            let name = entry.expect("an entry").file_name();
            assert!(name.as_bytes().starts_with(b"ECRYPTFS_FNEK_ENCRYPTED."), "{name:?}");
        }
        Passed { place, server }.ends();
    }
}

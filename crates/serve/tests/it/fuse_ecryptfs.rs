//! A folder of eCryptfs, mounted: programs find little difference to a folder that is not encrypted.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use claviger_testkit::fsx::{Folder, Plan, exercise_folder, seed};
use claviger_testkit::stress;

use crate::fuse_folder::{KNOWN, Passed, lower};
use crate::mounted::{NOBODY, transports};

const WORDS: &[&str] = &["ecryptfs"];

#[test]
fn an_encrypted_folder_of_root_behaves_as_posix_wants_for_root_and_for_a_user() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root_with(WORDS, transport);
        passed.holds_against_posix(None, &KNOWN);
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
    }
}

#[test]
fn an_encrypted_folder_of_a_user_behaves_as_posix_wants() {
    for transport in transports().into_iter().flatten() {
        let Some(passed) = Passed::by_nobody_with(WORDS, transport) else { return };
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
    }
}

#[test]
fn many_threads_find_in_an_encrypted_folder_what_they_put_there() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root_with(WORDS, transport);
        stress::run(&passed.place.folder(), seed(), 400, 4).unwrap_or_else(|e| panic!("{e}"));
        passed.ends();
    }
}

#[test]
fn random_operations_do_to_an_encrypted_folder_what_a_model_says() {
    for transport in transports().into_iter().flatten() {
        let mut passed = Passed::by_root_with(WORDS, transport);
        let root = passed.place.folder();
        let mut folder = Folder::empty(&root, 16 << 20);
        exercise_folder(&mut folder, &Plan::operations(seed(), 3000)).unwrap_or_else(|e| panic!("{e}"));
        folder.compare().expect("all of it is there");
        // It is once more when it is mounted anew, and below there is nothing in clear.
        assert!(passed.server.stop().success());
        passed.server =
            passed.place.serve(&[&format!("folder={}", lower(&passed.place).display()), "ecryptfs", transport]);
        folder.compare().expect("all of it is there");
        let below = fs::read_dir(lower(&passed.place)).expect("it is listed").map(|entry| entry.expect("an entry"));
        assert!(below.into_iter().all(|entry| entry.file_name().as_bytes().starts_with(b"ECRYPTFS_FNEK_ENCRYPTED.")));
        passed.ends();
    }
}

//! A folder of this machine, mounted as it is: programs find no difference.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use claviger_testkit::fsx::{Folder, Plan, exercise_folder, seed};
use claviger_testkit::posix::{Options, Reference, read_only, read_only_contents, run, second_group};
use claviger_testkit::stress;
use claviger_testkit::tools::program;

use crate::mounted::{Mounted, NOBODY, Place, transports};

/// What is not as in the folder itself. Whose time of access changes is up to whoever reads, and that is the server, which has
/// a file open once for all programs.
const KNOWN: [&str; 1] = ["open: O_NOATIME is the owner's"];

/// A folder and one that shows it.
struct Passed {
    place: Place,
    server: Mounted,
}

impl Passed {
    /// As root, for all.
    fn by_root(transport: &str) -> Self {
        let place = places();
        let server = place.serve(&[&word(&place), transport]);
        assert_eq!(server.transport, transport);
        Self { place, server }
    }

    /// As a user, for that user; or a reported skip.
    fn by_nobody(transport: &str) -> Option<Self> {
        for needed in ["fusermount3", "setpriv"] {
            program(needed)?;
        }
        let place = places();
        for dir in [lower(&place), bare(&place)] {
            chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        // In the second group of the cases, too: who is in none can give nothing to it.
        let server = place.serve_as_nobody_in(&[second_group(NOBODY)], &[&word(&place), transport]);
        assert_eq!(server.transport, transport);
        Some(Self { place, server })
    }

    fn holds_against_posix(&self, user: Option<u32>) {
        let reference = Reference::Folder(bare(&self.place));
        let report = run(&self.place.folder(), &Options { user, reference, ..Options::default() });
        println!("{report}");
        assert!(report.failed.iter().all(|(name, _)| KNOWN.contains(name)), "{report}");
        assert!(report.passed.len() > report.skipped.len(), "{report}");
    }

    fn ends(mut self) {
        assert!(self.server.stop().success());
        assert_eq!(self.place.mount_line(), None);
    }
}

fn places() -> Place {
    let place = Place::new(b"");
    for dir in [lower(&place), bare(&place)] {
        fs::create_dir(&dir).expect("it is new");
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("it is ours");
    }
    place
}

fn lower(place: &Place) -> PathBuf {
    place.dir.path().join("lower")
}

/// One that is not mounted, beside it.
fn bare(place: &Place) -> PathBuf {
    place.dir.path().join("bare")
}

fn word(place: &Place) -> String {
    format!("folder={}", lower(place).display())
}

#[test]
fn a_folder_of_root_behaves_as_posix_wants_for_root_and_for_a_user() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        passed.holds_against_posix(None);
        passed.holds_against_posix(Some(NOBODY));
        passed.ends();
    }
}

#[test]
fn a_folder_of_a_user_behaves_as_posix_wants() {
    for transport in transports().into_iter().flatten() {
        let Some(passed) = Passed::by_nobody(transport) else { return };
        passed.holds_against_posix(Some(NOBODY));
        passed.ends();
    }
}

#[test]
fn nothing_is_written_to_a_folder_that_is_shown_read_only() {
    for transport in transports().into_iter().flatten() {
        let place = places();
        read_only_contents(&lower(&place)).expect("there is room");
        let server = place.serve(&[&word(&place), transport, "read-only"]);
        read_only(&place.folder()).unwrap_or_else(|e| panic!("{e}"));
        Passed { place, server }.ends();
    }
}

#[test]
fn many_threads_find_in_a_folder_what_they_put_there() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        stress::run(&passed.place.folder(), seed(), 400, 4).unwrap_or_else(|e| panic!("{e}"));
        passed.ends();
    }
}

#[test]
fn random_operations_do_to_a_folder_what_a_model_says() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        let root = passed.place.folder();
        let mut folder = Folder::empty(&root, 16 << 20);
        exercise_folder(&mut folder, &Plan::operations(seed(), 3000)).unwrap_or_else(|e| panic!("{e}"));
        folder.compare().expect("all of it is there");
        // What is below is the same.
        let below = fs::read_dir(lower(&passed.place)).expect("it is listed").count();
        assert_eq!(below, fs::read_dir(&root).expect("it is listed").count());
        passed.ends();
    }
}

#[test]
fn a_listing_of_a_hundred_thousand_names_has_each_once() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        for number in 0..100_000 {
            File::create(lower(&passed.place).join(format!("{number:05}"))).expect("there is room");
        }
        let listed = fs::read_dir(passed.place.folder()).expect("it is listed");
        let mut names: Vec<String> =
            listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort_unstable();
        assert!(names.iter().eq(&(0..100_000).map(|number| format!("{number:05}")).collect::<Vec<_>>()));
        passed.ends();
    }
}

//! A folder of this machine, mounted as it is: programs find no difference.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use claviger_testkit::fsx::{Folder, Plan, exercise_folder, seed};
use claviger_testkit::posix::{Options, Reference, read_only, read_only_contents, run, second_group};
use claviger_testkit::stress;
use claviger_testkit::tools::{program, run as run_program};

use crate::mounted::{Mounted, MountedFolder, NOBODY, as_nobody, transports};

/// Differences from the folder itself. O_NOATIME is up to the process that reads, which is the server, and it has each file open
/// only once for all programs.
pub const KNOWN: [&str; 1] = ["open: O_NOATIME is the owner's"];

/// Devices are refused before they are there, also where others copy or unpack them.
pub fn makes_no_devices(passed: &Passed) {
    let (shown, from) = (passed.place.folder(), passed.place.dir.path().join("devices"));
    fs::create_dir(&from).expect("it is new");
    let null = from.join("null").display().to_string();
    assert!(Command::new("mknod").args([&null, "c", "1", "3"]).status().expect("it starts").success());
    fs::write(from.join("file"), "a file").expect("there is room");
    let script = "cd \"$0\" && mknod c c 1 3; mknod b b 7 1; mkdir copied unpacked; cp -a \"$1\"/. copied; \
                  tar -C \"$1\" -c . | tar -C unpacked -x; true";
    let done = Command::new("sh").args(["-c", script]).args([&shown, &from]).output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.matches("not permitted").count() >= 4 && !said.contains("Input/output error"), "{said}");
    let left = |folder: PathBuf| {
        let mut names: Vec<_> =
            fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(left(shown.clone()), ["copied", "unpacked"]);
    assert_eq!((left(shown.join("copied")), left(shown.join("unpacked"))), (vec!["file".into()], vec!["file".into()]));
}

/// A folder and one that shows it.
pub struct Passed {
    pub place: MountedFolder,
    pub server: Mounted,
}

impl Passed {
    /// Serves it as root, for all users.
    pub fn by_root(transport: &str) -> Self {
        Self::by_root_with(&[], transport)
    }

    /// The same, with more words for the server.
    pub fn by_root_with(words: &[&str], transport: &str) -> Self {
        let place = places();
        let server = place.serve(&[&[&*word(&place), transport], words].concat());
        assert_eq!(server.transport, transport);
        Self { place, server }
    }

    /// Serves it as an ordinary user, for that user; reports a skip if that is impossible.
    pub fn by_nobody(transport: &str) -> Option<Self> {
        Self::by_nobody_with(&[], transport)
    }

    /// The same, with more words for the server.
    pub fn by_nobody_with(words: &[&str], transport: &str) -> Option<Self> {
        Self::by_nobody_in(&std::env::temp_dir(), words, transport)
    }

    /// The same, of a folder in the folder `place`.
    fn by_nobody_in(place: &Path, words: &[&str], transport: &str) -> Option<Self> {
        for needed in ["fusermount3", "setpriv"] {
            program(needed)?;
        }
        let place = places_in(place);
        for dir in [lower(&place), bare(&place)] {
            chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        // In the second group of the cases, too: who is in none can give nothing to it.
        let folder = word(&place);
        let words = [&[&*folder, transport], words].concat();
        let server = place.serve_as_nobody_in(&[second_group(NOBODY)], &words);
        assert_eq!(server.transport, transport);
        Some(Self { place, server })
    }

    pub fn holds_against_posix(&self, user: Option<u32>, known: &[&'static str]) {
        let reference = Reference::Folder(bare(&self.place));
        let options = Options { user, reference, without: known.to_vec(), ..Options::default() };
        let report = run(&self.place.folder(), &options);
        println!("{report}");
        assert!(report.failed.is_empty(), "{report}");
        assert!(report.passed.len() > report.skipped.len(), "{report}");
    }

    /// The cases about arguments that nobody gives by intention.
    pub fn refuses_what_is_odd(&self) {
        let options =
            Options { reference: Reference::Folder(bare(&self.place)), only: "odd: ".into(), ..Options::default() };
        let report = run(&self.place.folder(), &options);
        assert!(report.failed.is_empty() && report.skipped.is_empty(), "{report}");
    }

    pub fn ends(mut self) {
        assert!(self.server.stop().success());
        assert_eq!(self.place.mount_line(), None);
    }
}

fn places() -> MountedFolder {
    places_in(&std::env::temp_dir())
}

fn places_in(place: &Path) -> MountedFolder {
    let place = MountedFolder::new_in(place, b"");
    for dir in [lower(&place), bare(&place)] {
        fs::create_dir(&dir).expect("it is new");
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("it is ours");
    }
    place
}

pub fn lower(place: &MountedFolder) -> PathBuf {
    place.dir.path().join("lower")
}

/// One that is not mounted, beside it.
fn bare(place: &MountedFolder) -> PathBuf {
    place.dir.path().join("bare")
}

fn word(place: &MountedFolder) -> String {
    format!("folder={}", lower(place).display())
}

#[test]
fn a_folder_of_root_behaves_as_posix_wants_for_root_and_for_a_user() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        passed.holds_against_posix(None, &KNOWN);
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
    }
}

#[test]
fn a_folder_of_a_user_behaves_as_posix_wants() {
    for transport in transports().into_iter().flatten() {
        let Some(passed) = Passed::by_nobody(transport) else { return };
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
    }
}

/// As the program mounts it: devices are not shown as devices, so none can be created.
#[test]
fn a_folder_that_shows_no_devices_makes_none() {
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root_with(&["no-devices"], transport);
        passed.refuses_what_is_odd();
        makes_no_devices(&passed);
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

/// After this time the kernel asks again. The whole test happens within it, so the kernel relies on outdated answers.
#[test]
fn what_others_changed_a_moment_ago_is_not_overwritten_and_not_removed() {
    let append = |path: PathBuf| OpenOptions::new().append(true).open(path).expect("it is there");
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        let (below, shown) = (lower(&passed.place), passed.place.folder());

        fs::write(below.join("log"), "").expect("there is room");
        let (mut there, mut here) = (append(below.join("log")), append(shown.join("log")));
        for number in 0..3 {
            writeln!(there, "there {number}").expect("there is room");
            writeln!(here, "here {number}").expect("there is room");
        }
        let all = "there 0\nhere 0\nthere 1\nhere 1\nthere 2\nhere 2\n";
        assert_eq!(fs::read_to_string(below.join("log")).expect("it is read"), all);
        assert_eq!(fs::read_to_string(shown.join("log")).expect("it is read"), all);

        fs::create_dir(below.join("name")).expect("it is new");
        assert!(fs::metadata(shown.join("name")).expect("it is there").is_dir());
        fs::remove_dir(below.join("name")).expect("it is empty");
        fs::write(below.join("name"), "precious").expect("there is room");
        fs::remove_dir(shown.join("name")).expect_err("it is a file now");
        assert_eq!(fs::read(below.join("name")).expect("it is there"), b"precious");
        passed.ends();
    }
}

#[test]
fn in_a_sticky_folder_nobody_removes_or_moves_what_has_become_another_s() {
    let Some(_) = program("setpriv") else { return };
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        let (below, shown) = (lower(&passed.place).join("tmp"), passed.place.folder().join("tmp"));
        fs::create_dir(&below).expect("it is new");
        fs::set_permissions(&below, Permissions::from_mode(0o1777)).expect("it is ours");
        for attempt in ["rm -f x", "mv -f x y", "mv -f y x"] {
            for (name, owner) in [("x", NOBODY), ("y", NOBODY)] {
                fs::write(below.join(name), "theirs").expect("there is room");
                chown(below.join(name), Some(owner), Some(owner)).expect("root may");
            }
            // In one go, as the kernel forgets soon.
            let script = format!(
                "stat {shown}/x {shown}/y; rm {below}/x; touch {below}/x; \
                 cd {shown} && setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {attempt}",
                shown = shown.display(),
                below = below.display(),
            );
            let done = Command::new("sh").args(["-c", &script]).output().expect("it starts");
            assert!(!done.status.success(), "{attempt}");
            assert_eq!(fs::metadata(below.join("x")).expect("it is there").uid(), 0, "{attempt}");
            fs::remove_file(below.join("x")).expect("root may");
        }
        passed.ends();
    }
}

#[test]
fn whoever_is_not_of_its_group_does_not_say_who_else_runs_a_setgid_program() {
    let Some(_) = program("setpriv").and_then(|_| program("setfacl")) else { return };
    for transport in transports().into_iter().flatten() {
        let passed = Passed::by_root(transport);
        let program = lower(&passed.place).join("program");
        fs::write(&program, "").expect("there is room");
        chown(&program, Some(NOBODY), Some(0)).expect("root may");
        fs::set_permissions(&program, Permissions::from_mode(0o2750)).expect("it is ours");
        let mut command = Command::new("setpriv");
        let user = NOBODY.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "setfacl", "-m", "o::x"]);
        let done = command.arg(passed.place.folder().join("program")).status().expect("it starts");
        assert!(done.success());
        assert_eq!(fs::metadata(&program).expect("it is there").mode() & 0o7777, 0o751);
        passed.ends();
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
        // The lower folder has the same files.
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

/// Three programs wait for the disk, and one that works on the same processor does not notice.
#[test]
fn requests_that_wait_do_not_hold_up_others_of_their_processor() {
    /// Reads one page after this many MiB of a file.
    const READ: &str = "import os,sys; print(os.pread(os.open(sys.argv[1], os.O_RDONLY), 4096, int(sys.argv[2]) << 20) == bytes(4096))";
    /// Lists a folder. Opening the file would wait for its pages.
    const LIST: &str = "import os,sys; print(os.listdir(sys.argv[1]) == ['volume'])";
    let on_one_processor = |script: &str, path: &Path, mib: usize| {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", "timeout", "60", "python3", "-c", script]).arg(path).arg(mib.to_string());
        command.stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let printed = |child: Child| String::from_utf8(child.wait_with_output().expect("it ran").stdout).expect("text");
    for transport in transports().into_iter().flatten() {
        let (slow, place) = (MountedFolder::new(&[0; 8 << 20]), MountedFolder::new(b""));
        let until = slow.dir.path().join("until");
        let _below = slow.serve(&[&format!("until={}", until.display()), "device", "threads=8"]);
        let mut server = place.serve(&[&format!("folder={}", slow.folder().display()), transport]);
        let file = place.folder().join("volume");
        let mut waiting: Vec<Child> = (1..4).map(|mib| on_one_processor(READ, &file, mib)).collect();
        for _ in 0..20 {
            assert_eq!(printed(on_one_processor(LIST, &place.folder(), 0)), "True\n", "over {transport}");
        }
        for one in &mut waiting {
            assert!(one.try_wait().expect("it is ours").is_none(), "it still waits");
        }
        fs::write(&until, "").expect("there is room");
        for one in waiting {
            assert_eq!(printed(one), "True\n");
        }
        assert!(server.stop().success());
    }
}

/// Nodes without a descriptor are found again, and behave like all others. An overlay (of a container, say) gives them no lasting numbers;
/// a folder in memory does.
#[test]
fn a_folder_has_more_nodes_than_its_server_has_descriptors() {
    const SCRIPT: &str = r#"
import os, sys
top = sys.argv[1]
for folder in range(20):
    os.makedirs(f"{top}/a/{folder}")
    for number in range(50):
        with open(f"{top}/a/{folder}/{number}", "w") as file: file.write(f"{folder} {number}")
def check(top):
    for folder in range(20):
        assert sorted(map(int, os.listdir(f"{top}/{folder}"))) == list(range(50))
        for number in range(50):
            with open(f"{top}/{folder}/{number}") as file: assert file.read() == f"{folder} {number}"
            os.chmod(f"{top}/{folder}/{number}", 0o600 + number % 8)
            assert os.stat(f"{top}/{folder}/{number}").st_mode & 0o7 == number % 8
check(top + "/a")
check(top + "/a")
os.rename(top + "/a", top + "/b")
os.chdir(top + "/b/3")
check(top + "/b")
os.rename(top + "/b", top + "/c")
check(top + "/c")
assert len(os.listdir(".")) == 50
for folder in range(20):
    for number in range(50):
        os.rename(f"{top}/c/{folder}/{number}", f"{top}/c/{folder}/{number}.new")
        os.link(f"{top}/c/{folder}/{number}.new", f"{top}/c/{folder}/{number}")
        os.unlink(f"{top}/c/{folder}/{number}.new")
check(top + "/c")
"#;
    for transport in transports().into_iter().flatten() {
        let Some(passed) = Passed::by_nobody_in(Path::new("/dev/shm"), &["descriptors=200"], transport) else { return };
        let top = passed.place.folder();
        run_program(as_nobody().args(["python3", "-c", SCRIPT]).arg(&top));
        run_program(as_nobody().args(["rm", "-r"]).arg(top.join("c")));
        passed.holds_against_posix(Some(NOBODY), &KNOWN);
        passed.ends();
    }
}

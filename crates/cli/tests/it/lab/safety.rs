//! `claviger lab` writes to nothing that it did not make, and what is left of one that was killed goes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Folder, claviger, done, run};
use claviger_lab::measure::facility::Scratch;
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::tools;
use serde_json::Value;

/// A loop device on a file, for as long as this is there.
struct Disk {
    file: PathBuf,
    device: LoopDevice,
}

impl Disk {
    fn new(folder: &Folder, name: &str, len: u64) -> Option<Self> {
        let file = folder.path(name);
        fs::File::create(&file).and_then(|f| f.set_len(len)).expect("a file");
        Some(Self { device: LoopDevice::new(&file, &[])?, file })
    }

    fn device(&self) -> &str {
        self.device.path().to_str().expect("UTF-8")
    }

    fn is_all_zeros(&self) -> bool {
        fs::read(&self.file).expect("a file").iter().all(|b| *b == 0)
    }
}

#[test]
fn everything_is_done_on_each_of_several_media_or_on_none() {
    let folder = Folder::new();
    let Some(disk) = Disk::new(&folder, "disk", 200 << 20) else { return };
    let Some(other) = Disk::new(&folder, "other", 200 << 20) else { return };
    let (out, dir, study) = (folder.str("run"), folder.str("place"), folder.str("study.toml"));
    fs::create_dir(&dir).expect("a folder");
    fs::write(&study, MEDIA).expect("written");
    let lab = |more: &[&str]| {
        let words = ["lab", "run", "--study", &study, "--size", "64M", "--out", &out, "--dir", &dir];
        run(words.iter().chain(&["--device", disk.device(), "--device", other.device()]).chain(more))
    };
    // If one of the devices is in use, all are refused before the first is written to.
    let Some(over) = LoopDevice::new(other.device.path(), &[]) else { return };
    let refused = lab(&["--force", "--yes"]);
    drop(over);
    refused.fails(9, &["attached to"]);
    assert!(disk.is_all_zeros() && other.is_all_zeros() && !folder.path("run").exists());
    run(["lab", "run", "--dir", &dir, "--dir", &dir, "--out", &out])
        .fails(1, &["two of the media are called", "place"]);

    lab(&["--force", "--yes"]).succeeds();
    assert!(!disk.is_all_zeros() && !other.is_all_zeros());
    let stored: Value = serde_json::from_slice(&fs::read(folder.path("run/run.json")).expect("a run")).expect("JSON");
    assert_eq!(stored["run"]["failures"], Value::Array(Vec::new()));
    let label = |device: &str| device.rsplit('/').next().expect("a name").to_owned();
    let (first, second) = (label(disk.device()), label(other.device()));
    let passes = stored["run"]["passes"].as_array().expect("a list");
    let measured: BTreeSet<String> =
        passes.iter().filter_map(|pass| Some(pass["facility"].as_str()?.to_owned())).collect();
    let expected = ["", &format!("@{first}"), &format!("@{second}")]
        .map(|medium| ["plain", "LUKS2"].map(|name| format!("{name}{medium}")))
        .concat();
    assert_eq!(measured, expected.iter().cloned().collect());
    // Each loses against the baseline on its own medium.
    let cells = stored["summary"]["cells"].as_array().expect("a list");
    let baseline = |name: &str| cells.iter().find(|c| c["facility"] == *name).map(|c| c["baseline"].clone());
    assert_eq!(baseline(&expected[3]), Some(Value::from(expected[2].clone())));

    // A table is of the medium that it names; where the run has none, the reason stands there.
    let csv = fs::read_to_string(folder.path("run/study.csv")).expect("a table");
    let row = |title: &str| csv.lines().find(|line| line.contains(title)).unwrap_or_else(|| panic!("{title}: {csv}"));
    for (title, name) in [("first", "LUKS2"), ("second", &*expected[3]), ("third", &*expected[5])] {
        let fields: Vec<&str> = row(title).split(',').collect();
        assert!(fields.contains(&name), "{fields:?}");
        assert!(!row(title).contains("It needs"), "{}", row(title));
    }
    assert!(row("fourth").contains("It needs a medium number 4"), "{}", row("fourth"));
}

/// A study of one workload, with a table for each of four media.
const MEDIA: &str = r#"
name = "media"
title = "Media"
about = "One workload."
facilities = ["plain", "LUKS2"]
thorough = { scale = 0.001, repeats = 1, volume = 67108864 }
standard = { scale = 0.001, repeats = 1, volume = 67108864 }
quick = { scale = 0.001, repeats = 1, volume = 67108864 }

[[workload]]
name = "dd"
parameters = { size = 1048576, blocks = [1048576] }

[[table]]
title = "the media"
differs = "Nothing."
row = [{ title = "write", workload = "dd", operation = "write" }]
column = [
    { title = "first", facility = "LUKS2" },
    { title = "second", facility = "LUKS2", medium = 2 },
    { title = "third", facility = "LUKS2", medium = 3 },
]

[[table]]
title = "one that is not there"
medium = 4
differs = "Nothing."
row = [{ title = "write", workload = "dd", operation = "write" }]
column = [{ title = "fourth", facility = "LUKS2" }]
"#;

#[test]
fn a_device_is_lost_only_to_who_says_so_and_never_while_it_is_used() {
    let folder = Folder::new();
    let Some(disk) = Disk::new(&folder, "disk", 200 << 20) else { return };
    let out = folder.str("run");
    let lab = |more: &[&str]| {
        let words = ["lab", "run", "--facility", "LUKS2", "--workload", "dd", "--size", "64M", "--out", &out];
        run(words.iter().chain(&["--device", disk.device()]).chain(more))
    };
    lab(&[]).fails(1, &["--force"]);
    lab(&["--force"]).fails(1, &["--yes"]);
    run(["lab", "check", "--device", disk.device(), "--force", "folder"]).fails(1, &["--yes"]);
    assert!(disk.is_all_zeros());
    // Another loop device on it has no lock and no mount.
    let Some(over) = LoopDevice::new(disk.device.path(), &[]) else { return };
    let refused = lab(&["--force", "--yes"]);
    drop(over);
    refused.fails(9, &["attached to"]);
    assert!(disk.is_all_zeros() && !folder.path("run").exists());

    tools::run(Command::new("mkfs.ext4").args(["-q", disk.device()]));
    let mounted = folder.path("mounted");
    fs::create_dir(&mounted).expect("a folder");
    tools::run(Command::new("mount").arg(disk.device()).arg(&mounted));
    let refused = lab(&["--force", "--yes"]);
    tools::run(Command::new("umount").arg(&mounted));
    refused.fails(9, &["mounted"]);
    tools::run(Command::new("fsck.ext4").args(["-f", "-n", disk.device()]));
}

#[test]
fn a_stored_run_cannot_make_a_resumed_one_write_elsewhere() {
    let folder = Folder::new();
    let out = folder.str("run");
    run([
        "lab",
        "run",
        "--facility",
        "folder",
        "--workload",
        "dd",
        "--scale",
        "0.0005",
        "--repeats",
        "1:1",
        "--out",
        &out,
    ])
    .succeeds();
    run(["lab", "run", "--facility", "folder", "--workload", "dd", "--out", &out]).fails(1, &["already exists"]);
    let journal = folder.path("run/run.jsonl");
    let text = fs::read_to_string(&journal).expect("a journal");
    let resume = |text: &str| {
        fs::write(&journal, text).expect("written");
        run(["lab", "run", "--resume", &out])
    };
    let first = text.lines().next().expect("a line").to_owned() + "\n";
    for (from, to, words, code) in [
        ("\"scale\":0.0005", "\"scale\":1e20", "the scale must be above 0", 1),
        ("\"scale\":0.0005", "\"scale\":null", "null", 4),
        ("\"max_repeats\":1", "\"max_repeats\":99999999999", "1000 repeats", 1),
        ("\"facilities\":[\"folder\"]", "\"facilities\":[\"../x\"]", "there is no facility called", 1),
        ("\"workloads\":[\"dd\"]", "\"workloads\":[\"\\u001b\"]", "there is no workload called", 1),
    ] {
        assert!(first.contains(from), "{from}: {first}");
        resume(&first.replace(from, to)).fails(code, &[words]);
    }
    resume(&text[..40]).fails(4, &["before anything was measured"]);
    resume(&text.replacen("{\"sitting\"", "{\"sitting", 1)).fails(4, &["run.jsonl"]);

    let Some(disk) = Disk::new(&folder, "disk", 200 << 20) else { return };
    let backing = "\"backing\":{\"kind\":\"tmpfs\",\"path\":\"/dev/shm\"}";
    assert!(first.contains(backing), "{first}");
    let device = format!("\"backing\":{{\"kind\":\"device\",\"path\":\"{}\"}}", disk.device());
    resume(&first.replace(backing, &device)).fails(1, &["--force"]);
    assert!(disk.is_all_zeros());
    // Torn in the middle of its last line, it continues.
    resume(&text[..text.len() - 20]).succeeds();
}

/// Mounts, loop devices, processes and folders that the lab of this number has.
fn traces(pid: u32, place: &Path) -> Vec<String> {
    let mark = format!("claviger-lab-{pid}-");
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let mounts: Vec<String> = text(Path::new("/proc/self/mounts")).lines().map(ToOwned::to_owned).collect();
    let under = |dir: &str, name: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| text(&entry.path().join(name))).collect::<Vec<_>>()
    };
    let names = [place, Path::new("/dev/shm")].into_iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let names = names.flatten().map(|entry| entry.path().display().to_string());
    let all = mounts.into_iter().chain(under("/sys/block", "loop/backing_file")).chain(under("/proc", "environ"));
    all.chain(names).filter(|text| text.contains(&mark)).collect()
}

#[test]
fn what_a_killed_lab_left_is_removed_by_the_next() {
    if tools::root().is_none() || tools::program("mkfs.ext4").is_none() {
        return;
    }
    let folder = Folder::new();
    let stores = folder.path("stores");
    fs::create_dir(&stores).expect("a folder");
    let lab = |words: &str, out: &str| {
        let mut command = claviger();
        command.args(["lab", "run", "--out"]).arg(folder.path(out)).arg("--dir").arg(&stores);
        command.args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    // The file system in the volume is mounted, and files are being written.
    let child = lab("--facility LUKS2 --workload tree --scale 0.1 --size 600M --repeats 1:1", "killed").spawn();
    let mut child = child.expect("the program starts");
    let begun = Instant::now();
    let found = loop {
        let lab = lab_of(&stores);
        if let Some(pid) = lab.filter(|pid| traces(*pid, &stores).iter().any(|trace| trace.contains("ext4"))) {
            break pid;
        }
        if child.try_wait().expect("its status").is_some() {
            let ended = done(child.wait_with_output().expect("it has ended"));
            panic!("nothing was mounted: {}", ended.err);
        }
        assert!(
            begun.elapsed() < Duration::from_secs(100),
            "nothing is mounted: {:?}",
            lab.map(|p| traces(p, &stores))
        );
        thread::sleep(Duration::from_millis(10));
    };
    tools::run(Command::new("kill").args(["-KILL", &found.to_string()]));
    child.wait_with_output().expect("it is killed");
    assert!(!traces(found, &stores).is_empty(), "nothing was left: this shows nothing");
    let next = lab("--facility folder --workload dd --scale 0.0005 --repeats 1:1", "next").output();
    let next = done(next.expect("it ends")).succeeds();
    assert!(next.err.contains("what a killed lab had left"), "{}", next.err);
    assert_eq!(traces(found, &stores), Vec::<String>::new());
    assert!(fs::read_dir(&stores).expect("a folder").next().is_none());
}

/// The number of the lab that works there.
fn lab_of(stores: &Path) -> Option<u32> {
    let name = fs::read_dir(stores).expect("a folder").flatten().next()?.file_name().into_string().ok()?;
    name.strip_prefix("claviger-lab-")?.split('-').next()?.parse().ok()
}

/// The processes of the other are not to be seen from there.
#[test]
fn labs_leave_each_other_alone_side_by_side_and_across_pid_namespaces() {
    if tools::root().is_none() || tools::program("unshare").is_none() {
        return;
    }
    let folder = Folder::new();
    let own = Scratch::below(&folder.path("")).expect("a lab's folder");
    let check = ["lab", "check", "--size", "8M", "--dir", &folder.str(""), "plain"];
    let beside = run(check).succeeds();
    let name = own.path().display().to_string();
    assert!(own.path().exists() && !beside.err.contains(&name), "{}", beside.err);

    let mut within = Command::new("unshare");
    within.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_claviger")]).args(check);
    let within = done(within.stdin(Stdio::null()).output().expect("it starts")).succeeds();
    assert!(own.path().exists());
    let message = format!("{name} belongs to a lab of another system");
    assert!(within.err.contains(&message) && within.err.contains("rm -r"), "{}", within.err);
}

//! What the kernel encrypts, in user-mode Linux, which has dm-crypt and eCryptfs; and disks with large sectors.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use crate::common::run;
use claviger_lab::measure::facility::Scratch;
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::{tools, uml};
use serde_json::Value;

#[test]
fn what_the_kernel_encrypts_is_checked_and_measured_in_user_mode_linux() {
    if tools::program("cryptsetup").is_none() || tools::program("mount.ecryptfs").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (program, out) = (env!("CARGO_BIN_EXE_claviger"), folder.path().join("run"));
    let script = format!(
        "modprobe -a ecryptfs cbc ecb dm-crypt fuse
         {program} lab check --json --dir /dev/shm --size 8M dm-crypt/LUKS2 dm-crypt/LUKS1 dm-crypt/plain eCryptfs files/eCryptfs || exit
         {program} lab run --workload dd-tresorsgx --repeats 1 --size 64M --out {} \
             --facility dm-crypt/LUKS2 --facility dm-crypt/plain --facility eCryptfs --facility files/eCryptfs || exit
         ls /dev/mapper; losetup; grep claviger /proc/mounts; ls /dev/shm",
        out.display()
    );
    let Some(outcome) = uml::run(&script, &[], 200) else { return };
    assert_eq!(outcome.output.matches("\"encrypted_at_rest\": true").count(), 5, "{}", outcome.output);
    let left = outcome.output.rsplit("figures and reports are in").next().expect("a part");
    let left: Vec<&str> = left.lines().skip(1).collect();
    assert_eq!(left, ["control"], "a mapping, loop device, mount or file is left:\n{}", outcome.output);

    let run = json(&out.join("run.json"));
    assert_eq!(run["failures"], Value::Array(Vec::new()), "{}", outcome.output);
    let passes = run["passes"].as_array().expect("a list");
    let measured: BTreeSet<&str> = passes.iter().filter_map(|pass| pass["facility"].as_str()).collect();
    let facilities =
        ["dm-crypt/LUKS2", "dm-crypt/plain", "eCryptfs", "files/eCryptfs", "folder", "loop", "plain-files"];
    assert_eq!(measured, BTreeSet::from(facilities));
    // A warm-up and a pass.
    assert_eq!(passes.len(), facilities.len() * 2);
    for pass in passes {
        let measures = pass["measures"].as_array().expect("a list");
        assert!(measures.len() == 2 && measures.iter().all(|m| m["value"].as_f64() > Some(0.0)), "{pass:#}");
    }
    // eCryptfs has no direct I/O, and its baseline may have it: the report says so.
    let notes: Vec<&str> = run["notes"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(notes.iter().any(|note| note.starts_with("eCryptfs cannot bypass the page cache")), "{notes:?}");
}

/// The guest sees the host's folder, and neither its processes nor its locks.
#[test]
fn a_lab_of_another_kernel_leaves_this_one_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = Scratch::below(folder.path()).expect("a lab's folder");
    let (program, dir) = (env!("CARGO_BIN_EXE_claviger"), folder.path().display());
    let script = format!("modprobe fuse; {program} lab check --size 8M --dir {dir} plain");
    let Some(outcome) = uml::run(&script, &[], 200) else { return };
    assert!(own.path().exists(), "{}", outcome.output);
    let line = format!("{} belongs to a lab of another system", own.path().display());
    assert!(outcome.status == 0 && outcome.output.contains(&line), "{}", outcome.output);
}

/// A loop device with sectors of 4096 bytes, as many disks have them. It is detached when this is dropped.
struct LargeSectors {
    device: LoopDevice,
    _folder: tempfile::TempDir,
}

impl LargeSectors {
    fn new(len: u64) -> Option<Self> {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let image = folder.path().join("disk");
        File::create(&image).and_then(|file| file.set_len(len)).expect("an image");
        Some(Self { device: LoopDevice::new(&image, &["--sector-size", "4096"])?, _folder: folder })
    }

    fn device(&self) -> &str {
        self.device.path().to_str().expect("UTF-8")
    }
}

#[test]
fn sectors_of_4096_bytes_are_no_reason_to_go_through_the_page_cache() {
    let Some(disk) = LargeSectors::new(160 << 20) else { return };
    let on = ["--device", disk.device(), "--force", "--yes"];
    let check = [&["lab", "check", "--json", "--size", "16M"], &on[..], &["loop", "plain", "LUKS2"]].concat();
    let checked = run(check).succeeds().json();
    let direct: Vec<_> = checked["works"].as_array().expect("a list").iter().map(|trial| &trial["direct"]).collect();
    assert_eq!(direct, [true, true, true], "{checked:#}");

    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    // They take turns on the one device, the folder with a file system of its own.
    let what = ["--facility", "loop", "--facility", "folder", "--workload", "dd", "--repeats", "1", "--size", "64M"];
    let out_words = ["--out", out.to_str().expect("text")];
    run([&["lab", "run"], &what[..], &out_words, &on].concat()).succeeds();
    let measured = json(&out.join("run.json"));
    assert_eq!(measured["failures"], Value::Array(Vec::new()));
    let passes = measured["passes"].as_array().expect("a list");
    assert_eq!(passes.len(), 4, "{measured:#}");
    for pass in passes {
        let measures = pass["measures"].as_array().expect("a list");
        assert!(measures.iter().all(|m| m["case"]["x"].as_f64() >= Some(4096.0)), "{measures:#?}");
    }
    assert!(measured["notes"][0].as_str().is_some_and(|note| note.contains("smaller than 4096 bytes")), "{measured:#}");
}

/// The run in a stored report.
fn json(path: &Path) -> Value {
    let text = fs::read(path).expect("it was written");
    let stored: Value = serde_json::from_slice(&text).expect("JSON");
    stored.get("run").cloned().unwrap_or(stored)
}

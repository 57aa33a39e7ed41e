//! What facilities cost besides throughput, measured by the program.

use std::fs;

use crate::common::{Folder, run};
use claviger_testkit::tools;
use serde_json::Value;

/// The stored run of these workloads on these facilities: a warm-up and one pass of each, on small volumes in memory.
fn measured(facilities: &[&str], workloads: &[&str], size: &str) -> Option<Value> {
    fs::metadata("/dev/fuse").is_ok().then_some(()).or_else(|| tools::skip("there is no FUSE"))?;
    tools::program("mke2fs")?;
    let folder = Folder::new();
    let out = folder.str("run");
    let mut words = vec!["lab", "run", "--quick", "--repeats", "1:1", "--seed", "1", "--size", size, "--out", &out];
    words.extend(facilities.iter().flat_map(|name| ["--facility", name]));
    words.extend(workloads.iter().flat_map(|name| ["--workload", name]));
    run(words).succeeds();
    let stored = fs::read(folder.path("run").join("run.json")).expect("a stored run");
    let stored = serde_json::from_slice::<Value>(&stored).expect("JSON")["run"].take();
    assert_eq!(stored["failures"], Value::Array(Vec::new()), "{}", stored["failures"]);
    Some(stored)
}

/// Operations, places on the axis and values of the pass of this workload on this facility. The warm-up has the same cases.
fn pass(stored: &Value, workload: &str, facility: &str) -> Vec<(String, Option<f64>, f64)> {
    let passes = stored["passes"].as_array().expect("passes");
    let mut of_round = [Vec::new(), Vec::new()];
    for pass in passes.iter().filter(|pass| pass["workload"] == workload && pass["facility"] == facility) {
        let measures = pass["measures"].as_array().expect("measures").iter().map(|measure| {
            let operation = measure["case"]["operation"].as_str().expect("a name").to_owned();
            (operation, measure["case"]["x"].as_f64(), measure["value"].as_f64().expect("a number"))
        });
        of_round[usize::from(!pass["round"].is_null())] = measures.collect();
    }
    let [warm_up, measured] = of_round;
    let cases = |all: &[(String, Option<f64>, f64)]| all.iter().map(|m| (m.0.clone(), m.1)).collect::<Vec<_>>();
    assert_eq!(cases(&warm_up), cases(&measured), "{workload} on {facility}");
    measured
}

fn operations(measured: &[(String, Option<f64>, f64)]) -> Vec<&str> {
    measured.iter().map(|(operation, ..)| operation.as_str()).collect()
}

#[track_caller]
fn all_positive(measured: &[(String, Option<f64>, f64)]) {
    assert!(measured.iter().all(|(.., value)| *value > 0.0), "{measured:?}");
}

const QUICKLY: &str = "make quickly";
const BY_DEFAULT: &str = "make as by default";
const WITH_EXT4: &str = "make quickly, with ext4";
const UNLOCK: &str = "unlock";
const REFUSE: &str = "refuse a wrong passphrase";

#[test]
fn what_is_there_is_encrypted_in_place() {
    if tools::program("mkfs.vfat").is_none() {
        return;
    }
    let Some(stored) = measured(&["LUKS2", "BitLocker", "TrueCrypt"], &["in-place"], "64M") else { return };
    for facility in ["LUKS2", "BitLocker"] {
        let measured = pass(&stored, "in-place", facility);
        assert_eq!(operations(&measured), ["encrypt in place"], "{facility}");
        all_positive(&measured);
    }
    assert!(pass(&stored, "in-place", "TrueCrypt").is_empty());
}

#[test]
fn making_and_unlocking_have_a_cost() {
    let Some(stored) = measured(&["TrueCrypt", "nbd/TrueCrypt", "folder"], &["setup", "unlock"], "64M") else { return };
    let making = |facility| pass(&stored, "setup", facility);
    assert_eq!(operations(&making("plain")), [BY_DEFAULT, QUICKLY, WITH_EXT4]);
    assert_eq!(operations(&making("TrueCrypt")), [BY_DEFAULT, QUICKLY, WITH_EXT4]);
    all_positive(&making("TrueCrypt"));
    // A socket for block devices has no file system in it, and a folder is none that one could make one in.
    for facility in ["nbd/TrueCrypt", "folder"] {
        assert_eq!(operations(&making(facility)), [BY_DEFAULT, QUICKLY], "{facility}");
    }
    let unlocking = |facility| pass(&stored, "unlock", facility);
    for (facility, expected) in [
        ("plain", &[UNLOCK][..]),
        ("plain-nbd", &[UNLOCK]),
        ("folder", &[UNLOCK]),
        ("TrueCrypt", &[UNLOCK, REFUSE]),
        ("nbd/TrueCrypt", &[UNLOCK, REFUSE]),
    ] {
        assert_eq!(operations(&unlocking(facility)), expected, "{facility}");
        all_positive(&unlocking(facility));
    }
}

#[test]
fn more_open_volumes_take_more_memory_and_work_takes_processor_time() {
    let Some(stored) = measured(&["TrueCrypt", "folder"], &["memory", "processor"], "64M") else { return };
    for facility in ["plain", "TrueCrypt"] {
        let memory = pass(&stored, "memory", facility);
        let at_rest: Vec<_> =
            memory.iter().filter_map(|(_, volumes, bytes)| Some((volumes.as_ref()?, bytes))).collect();
        assert!(at_rest.is_sorted_by(|one, more| one.0 < more.0 && one.1 < more.1) && at_rest.len() == 3, "{memory:?}");
        assert_eq!(memory.len(), 6, "{memory:?}");
        assert!(operations(&memory).contains(&"the program on the disk"), "{memory:?}");
        all_positive(&memory);

        let processor = pass(&stored, "processor", facility);
        assert_eq!(processor.len(), 8, "{processor:?}");
        let own = |direction: &str| {
            let name = format!("{direction}, processor time per GB, its processes");
            processor.iter().find(|(operation, ..)| *operation == name).expect("is there").2
        };
        assert!(own("write") > 0.0 && own("read") > 0.0, "{processor:?}");
    }
    // Of what the kernel does there are figures of the whole machine alone.
    assert!(!operations(&pass(&stored, "processor", "folder")).iter().any(|name| name.contains("its processes")));
    assert!(pass(&stored, "memory", "folder").is_empty());
    let notes = stored["notes"].to_string();
    assert!(
        notes.contains("folder is not measured with memory") && notes.contains("work done in the kernel"),
        "{notes}"
    );
}

#[test]
fn a_system_boots_from_an_encrypted_volume() {
    let programs = ["linux.uml", "debootstrap", "unshare", "setpriv"];
    if tools::root().is_none() || programs.iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let Some(stored) = measured(&["TrueCrypt", "nbd/TrueCrypt"], &["boot"], "192M") else { return };
    for facility in ["plain", "TrueCrypt"] {
        let boot = pass(&stored, "boot", facility);
        all_positive(&boot);
        let seconds = |name: &str| boot.iter().find(|(operation, ..)| operation == name).expect("is there").2;
        let parts = ["start of the system", "first run of perl", "installing a package", "shutting down"];
        assert!(parts.iter().map(|part| seconds(part)).sum::<f64>() < seconds("all of it"), "{boot:?}");
    }
    assert!(pass(&stored, "boot", "nbd/TrueCrypt").is_empty());
}

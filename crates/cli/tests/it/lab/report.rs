//! `claviger lab report`: a stored run in all its forms. How a page looks in a browser is tested where pages are made.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::figures::{FacilityRecord, Measure, Pass, Run, RunPlan, SCHEMA, WorkloadRecord};
use claviger_lab::model::machine::{Conditions, Machine};
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};

fn claviger(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_claviger")).args(["lab", "report"]).args(args).output().expect("the program")
}

fn printed(args: &[&str]) -> String {
    let output = claviger(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Two facilities, of which one is half as fast as the other.
fn run() -> Run {
    let facility = |name: &str, baseline: Option<&str>| FacilityRecord {
        name: name.into(),
        title: format!("{name}, for a test"),
        baseline: baseline.map(Into::into),
        about: String::new(),
        version: None,
        commands: vec![],
        left_out: None,
    };
    let measure = |block: f64, rate: f64| Measure {
        case: Case::new("write").at(Axis::Block, block),
        value: rate,
        unit: Unit::BytesPerS,
        bytes: 1 << 20,
        seconds: 1.0,
        cpu_s: Some(0.5),
    };
    let pass = |round: usize, facility: &str, rate: f64| Pass {
        facility: facility.into(),
        workload: "dd".into(),
        round: Some(round),
        position: 0,
        at: String::new(),
        conditions: Conditions::default(),
        measures: vec![measure(512.0, rate * (1.0 + round as f64 / 1000.0)), measure(4096.0, 4.0 * rate)],
    };
    Run {
        schema: SCHEMA,
        plan: RunPlan::new(
            Plan {
                level: Level::Quick,
                scale: 1.0,
                backing: Backing::Tmpfs("/dev/shm".into()),
                more: Vec::new(),
                size: 1 << 20,
                facilities: vec!["plain".into(), "half".into()],
                workloads: vec!["dd".into()],
                min_repeats: 5,
                max_repeats: 6,
                steady: 0.03,
                seed: 1,
                caches: Caches::Warm,
                repeated: None,
            },
            None,
        ),
        machine: Machine::this(),
        facilities: vec![facility("plain", None), facility("half", Some("plain"))],
        workloads: vec![WorkloadRecord {
            name: "dd".into(),
            title: "dd by block size".into(),
            measures: "Writes.".into(),
            not: "Reads.".into(),
            version: None,
            left_out: None,
        }],
        generator: vec![],
        sittings: vec![],
        passes: (0..6).flat_map(|round| [pass(round, "plain", 2e8), pass(round, "half", 1e8)]).collect(),
        failures: vec![],
        traces: vec![],
        ciphers: vec![],
        notes: vec![],
    }
}

fn stored(dir: &Path) -> String {
    fs::write(dir.join("run.json"), serde_json::to_string(&run()).expect("JSON")).expect("the run");
    dir.to_str().expect("a path").to_owned()
}

#[test]
fn a_run_is_shown_in_every_form() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = stored(dir.path());
    let file = format!("{folder}/run.json");
    let text = printed(&[&folder]);
    assert_eq!(text, printed(&[&file]), "a folder is the run in it");
    assert!(text.contains("dd by block size") && text.contains("50.0"), "{text}");
    assert_eq!(printed(&[&file, "--csv"]).lines().count(), 1 + 4);
    assert_eq!(printed(&[&file, "--csv", "--raw"]).lines().count(), 1 + 24);
    // A report as JSON holds the run, and is one.
    let report = format!("{folder}/report.json");
    fs::write(&report, printed(&[&file, "--json"])).expect("a file");
    assert_eq!(text, printed(&[&report]));
}

#[test]
fn three_runs_are_told_side_by_side() {
    let [dir, none] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (path, empty) = (stored(dir.path()), none.path().join("run.json"));
    let path = path.as_str();
    fs::write(&empty, serde_json::to_string(&Run { passes: Vec::new(), ..run() }).expect("JSON")).expect("the run");
    let empty = empty.to_str().expect("a path");
    let text = printed(&[path, path, path]);
    assert!(
        text.contains("Machine 3: ")
            && text.contains("In 2 of")
            && text.contains("encryption is slower on all machines"),
        "{text}"
    );
    assert_eq!(text, printed(&[path, path, path, "--together"]));
    let json: serde_json::Value = serde_json::from_str(&printed(&[path, path, path, "--json"])).expect("JSON");
    let len = |field: &str| json[field].as_array().map(Vec::len);
    assert_eq!((len("machines"), len("figures"), &json["json_version"]), (Some(3), Some(2), &1.into()));
    assert!(claviger(&[path, path, empty]).status.success());
    for refused in
        [&[path, "--together"][..], &[path, path, path, "--html", "-"], &[path, path, "--together", "--least", "1"]]
    {
        let output = claviger(refused);
        assert!(!output.status.success() && output.stdout.is_empty(), "{refused:?}");
    }
    let output = claviger(&[path, empty, "--together"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("no two of these runs"), "{error}");
}

#[test]
fn a_page_takes_the_place_of_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = stored(dir.path());
    let page = format!("{folder}/page.html");
    assert_eq!(printed(&[&folder, "--html", &page]), "");
    let html = fs::read_to_string(&page).expect("the page");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg") && html.contains("half, for a test"));
    assert_eq!(html, printed(&[&folder, "--html", "-"]));
    fs::write(&page, "mine").expect("a file");
    let refused = claviger(&[&folder, "--html", &page]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("already exists"));
    assert_eq!(fs::read_to_string(&page).expect("the file"), "mine");
}

#[test]
fn what_is_no_run_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.json");
    fs::write(&file, "{\"schema\": 77}").expect("a file");
    let output = claviger(&[file.to_str().expect("a path")]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("format 77"), "{output:?}");
}

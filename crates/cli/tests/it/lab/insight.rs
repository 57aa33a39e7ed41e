//! Results from figures: published ones, comparisons of two runs, and recommendations.

use std::collections::BTreeSet;

use crate::common::*;
use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::figures::{FacilityRecord, Measure, Pass, Run, RunPlan, SCHEMA, Sitting, WorkloadRecord};
use claviger_lab::model::machine::{Conditions, Machine, Moment};
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};
use claviger_testkit::{terminal, tools};
use serde_json::{Value, json};

#[test]
fn published_figures_are_looked_through() {
    let all = run(["lab", "published", "--json"]).succeeds().json();
    assert_eq!(all.as_array().map(Vec::len), Some(2509 + 4508 + 321 + 1398 + 92));
    let losses =
        run(["lab", "published", "--losses", "--study", "bsi2010", "--table", "8", "--json"]).succeeds().json();
    let hp = losses.as_array().expect("a list").iter().find(|l| {
        l["platform"] == "HP EliteBook 8540p"
            && l["parameter"] == "block size 4096 B"
            && l["cpu_mode"] == "QuadCore 64-bit"
    });
    let loss = hp.expect("the HP EliteBook")["loss"].as_f64().expect("a number");
    assert!((loss - 0.92).abs() < 0.005, "{loss}");
    let csv = run(["lab", "published", "--study", "linux2013", "--csv"]).succeeds().text();
    assert_eq!(csv.lines().count(), 93);
    run(["lab", "published", "--facility", "rot13"]).fails(1, &["no published figure", "BitLocker"]);
    run(["lab", "published", "--study", "rantanen2013", "--losses"]).fails(1, &["unencrypted"]);
}

const ANSWERS: [&str; 8] = ["--for", "external", "--share-with", "windows,macos", "--threat", "theft", "--root", "no"];

/// A recommendation without its measurements, which are never the same twice.
fn recommendation(text: &str) -> Value {
    let from = text.find('{').unwrap_or_else(|| panic!("no JSON in {text}"));
    let mut json: Value = serde_json::from_str(&text[from..]).unwrap_or_else(|e| panic!("{e}: {text}"));
    json.as_object_mut().expect("an object").remove("measured");
    json
}

#[test]
fn questions_and_options_give_the_same_answer() {
    let by_options = recommendation(&run(["lab", "recommend", "--json"].iter().chain(&ANSWERS)).succeeds().text());
    assert_eq!(by_options["first"]["name"], "VeraCrypt");
    // By words, by numbers, and after an answer that is none.
    for answers in [["windows, macos", "external", "theft", "no"], ["2,3", "4", "1", "2"]] {
        let steps = json!([
            {"expect": "Which systems must be able to read and write it?"}, {"expect": "> "}, {"send": "amiga\n"},
            {"expect": "not one of the choices"}, {"expect": "> "}, {"send": format!("{}\n", answers[0])},
            {"expect": "What do you want to encrypt?"}, {"expect": "> "}, {"send": format!("{}\n", answers[1])},
            {"expect": "What should it protect against?"}, {"expect": "> "}, {"send": format!("{}\n", answers[2])},
            {"expect": "Do you have root rights"}, {"expect": "> "}, {"send": format!("{}\n", answers[3])},
        ]);
        let folder = Folder::new();
        let out = folder.path("out");
        let Some(mut command) = terminal::played(steps) else { return };
        command.args(["sh", "-c", "\"$0\" lab recommend --json > \"$1\""]);
        command.arg(env!("CARGO_BIN_EXE_claviger")).arg(&out);
        let ended: Value = serde_json::from_slice(&tools::run(&mut command).stdout).expect("JSON");
        assert_eq!(ended["code"], 0, "{ended}");
        assert_eq!(recommendation(&std::fs::read_to_string(&out).expect("a file")), by_options, "{answers:?}");
    }
}

#[test]
fn without_a_terminal_every_question_has_an_option() {
    for missing in 0..4 {
        let given = ANSWERS.chunks(2).enumerate().filter(|(i, _)| *i != missing).flat_map(|(_, pair)| pair.iter());
        let option = ANSWERS[2 * missing];
        run(["lab", "recommend"].iter().chain(given)).fails(1, &["no terminal", option]);
    }
    run(["lab", "recommend", "--for", "submarine"]).fails(1, &["submarine", "laptop"]);
}

#[test]
fn the_features_table_is_printed() {
    let table = run(["lab", "recommend", "--table", "--json"]).succeeds().json();
    let names: BTreeSet<&str> = table.as_array().expect("a list").iter().filter_map(|f| f["name"].as_str()).collect();
    assert!(names.contains("LUKS2") && names.contains("BitLocker") && names.len() >= 15);
    assert!(run(["lab", "recommend", "--table"]).succeeds().text().contains("Known weaknesses:"));
}

/// A run whose facilities keep these shares of the speed of the plain one, with 1 % between the rounds.
fn made_up(folder: &Folder, name: &str, shares: [f64; 2]) -> String {
    let names = ["plain", "LUKS2"];
    let measure = |share: f64, round: usize, block: f64| Measure {
        case: Case::new("write").at(Axis::Block, block),
        value: 1e9 * share * (1.0 + 0.0025 * round as f64),
        unit: Unit::BytesPerS,
        bytes: 1 << 20,
        seconds: 0.001,
        cpu_s: None,
    };
    let pass = |round: usize, facility: usize| Pass {
        facility: names[facility].into(),
        workload: "dd".into(),
        round: Some(round),
        position: facility,
        at: "2026-01-01T00:00:00Z".into(),
        conditions: Conditions::default(),
        measures: [512.0, 4096.0].map(|block| measure(shares[facility], round, block)).to_vec(),
    };
    let record = |name: &str, title: &str| FacilityRecord {
        name: name.into(),
        title: title.into(),
        baseline: (name != "plain").then(|| "plain".into()),
        about: String::new(),
        version: None,
        commands: Vec::new(),
        left_out: None,
    };
    let run = Run {
        schema: SCHEMA,
        plan: RunPlan::new(
            Plan {
                level: Level::Quick,
                scale: 1.0,
                backing: Backing::Tmpfs("/dev/shm".into()),
                more: Vec::new(),
                size: 1 << 26,
                facilities: names.map(String::from).to_vec(),
                workloads: vec!["dd".into()],
                min_repeats: 5,
                max_repeats: 5,
                steady: 0.03,
                seed: 1,
                caches: Caches::Dropped,
                repeated: None,
            },
            None,
        ),
        machine: Machine::this(),
        facilities: vec![
            record("plain", "not encrypted"),
            record("LUKS2", "this engine, LUKS2 format, aes-xts-plain64"),
        ],
        workloads: vec![WorkloadRecord {
            name: "dd".into(),
            title: "dd".into(),
            measures: "Writes.".into(),
            not: "Nothing else.".into(),
            version: None,
            left_out: None,
        }],
        generator: Vec::new(),
        sittings: vec![Sitting { before: Moment::now(), after: None, idle_cpu: 0.0 }],
        passes: (0..5).flat_map(|round| [pass(round, 0), pass(round, 1)]).collect(),
        failures: Vec::new(),
        traces: Vec::new(),
        ciphers: Vec::new(),
        notes: Vec::new(),
    };
    let path = folder.str(name);
    std::fs::write(&path, serde_json::to_vec(&run).expect("JSON")).expect("a file");
    path
}

#[test]
fn two_runs_are_compared() {
    let folder = Folder::new();
    let (old, same) = (made_up(&folder, "old.json", [1.0, 0.8]), made_up(&folder, "same.json", [1.0, 0.8]));
    let slower = made_up(&folder, "slower.json", [1.0, 0.7]);
    let report = |more: &[&str]| run(["lab", "report"].iter().chain(more));

    let text = report(&[&old, &same, "--fail-on-slower", "0"]).succeeds().text();
    assert!(text.contains("Of 4 figures 0 became slower and 0 faster"), "{text}");
    let text = report(&[&old, &slower]).succeeds().text();
    assert!(text.contains("Of 4 figures 2 became slower") && text.contains("-12.5"), "{text}");
    report(&[&old, &slower, "--fail-on-slower", "20"]).succeeds();
    let failed = report(&[&old, &slower, "--fail-on-slower", "10%"]).fails(1, &[]);
    assert!(failed.text().contains("-12.5"), "the report is printed before it fails: {failed:?}");
    report(&[&old, &slower, "--fail-on-slower", "5", "--least", "15"]).succeeds();

    let json = report(&[&old, &slower, "--json"]).succeeds().json();
    assert_eq!((&json["basis"], &json["cells"][0]["facility"]), (&json!("speeds"), &json!("LUKS2")));
    assert_eq!(report(&[&old, &slower, "--csv"]).succeeds().text().lines().count(), 5);
    let page = report(&[&old, &slower, "--html", "-"]).succeeds().text();
    assert!(
        page.contains("Compared with the old run") && page.contains("-12.5") && page.starts_with("<!DOCTYPE html>")
    );

    report(&[&old, "--fail-on-slower", "5"]).fails(1, &["two runs"]);
    report(&[&old, &slower, "--least", "many"]).fails(1, &["0 to 100"]);
}

#[test]
fn published_losses_stand_beside_a_run() {
    let folder = Folder::new();
    let path = made_up(&folder, "run.json", [1.0, 0.8]);
    let text = run(["lab", "report", &path, "--published"]).succeeds().text();
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("The HP EliteBook 8540p of 2010 lost") || flat.contains("HP EliteBook 8540p, 2010"),
        "{text}"
    );
    assert!(flat.contains("this machine loses 20.0 %") && flat.contains("BSI 2010, 5.3.3"), "{text}");
    assert!(!run(["lab", "report", &path]).succeeds().text().contains("BSI 2010"));
    let json = run(["lab", "report", &path, "--published", "--json"]).succeeds().json();
    assert!(json["extras"][0]["rows"].as_array().is_some_and(|rows| rows.len() > 10), "{}", json["extras"]);
    // The figures of the run decide.
    let with_run =
        run(["lab", "recommend", "--json", "--run", &path].iter().copied().chain(ANSWERS).chain(["--root", "yes"]));
    with_run.fails(1, &["--root"]);
    let args = ["--for", "laptop", "--share-with", "linux", "--threat", "theft", "--root", "yes"];
    let text = run(["lab", "recommend", "--run", &path].iter().copied().chain(args)).succeeds().text();
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("On this machine it loses 20.0 % against its baseline, the median of 2 figures"), "{text}");
}

//! Reports of a run, of a study that it repeats and of what changed, in every form.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use claviger_engine::Result;
use claviger_lab::measure::run::stored;
use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::figures::{Pass, Run, RunPlan};
use claviger_lab::model::plan::Plan;
use claviger_lab::model::statistics::LossVerdict;
use claviger_lab::model::study::{FigureSelector, Study};
use claviger_lab::show::changes::{Basis, CellName, FigureChange, RunChanges, RunDifference};
use claviger_lab::show::report::{Extra, RunReport, Text, csv};
use claviger_lab::show::summary::Summary;
use claviger_testkit::tools;

use super::sample;

/// A run in which nothing was measured.
fn empty() -> Run {
    let run = sample::run();
    let (passes, failures, traces, ciphers) = (vec![], vec![], vec![], vec![]);
    Run { passes, failures, traces, ciphers, sittings: vec![], workloads: vec![], ..run }
}

fn extras() -> Vec<Extra> {
    vec![Extra {
        title: "Published results".into(),
        text: vec!["The HP EliteBook of 2010 lost 92 %; <this> machine loses less.".into()],
        columns: vec!["study".into(), "loss %".into()],
        rows: vec![vec!["BSI 2010".into(), "92.0".into()], vec!["Linux 2013".into(), "97.8".into()]],
        ..Extra::default()
    }]
}

/// The page of a run, with a section of its own.
fn page(run: &Run) -> String {
    let summary = Summary::of(run);
    let extras = extras();
    RunReport { run, summary: &summary, extras: &extras }.html().expect("a page")
}

/// Every name and value of an attribute that could fetch something, and every tag.
fn tags(page: &str) -> impl Iterator<Item = &str> {
    page.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag)
}

#[test]
fn nothing_is_fetched_and_nothing_runs() {
    let page = page(&sample::run());
    for tag in tags(&page) {
        let name = tag.split([' ', '\n']).next().unwrap_or_default().to_ascii_lowercase();
        assert!(!["script", "img", "iframe", "object", "embed", "base", "form"].contains(&name.as_str()), "<{tag}>");
        assert!(name != "link" || tag.contains("href=\"data:,\""), "<{tag}>");
        assert!(!tag.contains(" on") && !tag.contains("src="), "<{tag}>");
    }
    assert!(
        !page.contains("http://") && !page.contains("https://") && !page.contains("@import") && !page.contains("url(")
    );
}

#[test]
fn what_others_wrote_is_shown_and_not_obeyed() {
    let page = page(&sample::run());
    assert!(!page.contains(sample::HOSTILE) && !page.contains("<i>markup") && !page.contains("Invalid <filesystem>"));
    assert!(page.contains("&#60;b&#62;&#38;&#34;&#39;"), "the name in the page");
    assert!(page.contains("&lt;b&gt;&amp;&quot;&apos;"), "the name in charts");
}

#[test]
fn a_page_of_little_is_a_page() {
    let whole = sample::run();
    let only = |name: &str| Run {
        facilities: whole.facilities.iter().filter(|f| f.name == name).cloned().collect(),
        passes: whole.passes.iter().filter(|p| p.facility == name).cloned().collect(),
        plan: RunPlan::new(Plan { facilities: vec![name.into()], ..(*whole.plan).clone() }, None),
        traces: vec![],
        ..whole.clone()
    };
    let failed = Run { failures: whole.failures.clone(), workloads: whole.workloads.clone(), ..empty() };
    for run in [empty(), failed, only("plain"), only("luks2")] {
        let page = page(&run);
        assert!(page.contains("</html>") && !page.contains("NaN") && !page.contains("inf,"));
    }
    let mut broken = only("plain");
    broken.passes.iter_mut().flat_map(|p| &mut p.measures).for_each(|m| m.value = f64::NAN);
    let page = page(&broken);
    assert!(!page.contains("NaN") && page.contains("are not numbers"));
}

/// What a browser makes of a page: its elements, and what it has to say. It reaches no network.
fn browsed(chromium: &Path, page: &str) -> (String, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.html");
    fs::write(&file, page).expect("the page");
    // Under load it may take its time, but not for ever.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(chromium).args([
        "--headless",
        // It will not start as root with one.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--disable-sync",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
    ]);
    command.env("HOME", dir.path()).arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    let output = tools::run(command.arg(format!("file://{}", file.display())));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// All charts are there, and the browser has nothing to complain of.
#[test]
fn a_browser_shows_every_chart() {
    let Some(chromium) = tools::program("chromium") else { return };
    let (_, log) = browsed(&chromium, "<!DOCTYPE html><script>console.error('planted')</script>");
    assert!(log.contains("CONSOLE") && log.contains("planted"), "complaints would be seen: {log}");
    let page = page(&sample::run());
    let (dom, log) = browsed(&chromium, &page);
    assert!(!log.contains("CONSOLE"), "{log}");
    // The browser has read each title as one: what was escaped wrongly would be missing.
    let titles = |page: &str| page.matches("<svg role=\"img\"").count();
    assert!(titles(&page) > 40, "{}", titles(&page));
    assert_eq!(titles(&dom), titles(&page));
    for title in [
        "dd: sequential transfers by block size, write, MB/s by block size in bytes (K is 1024): luks2",
        "dd: sequential transfers by block size, read, loss against the baseline by block size in bytes (K is 1024): luks2",
        "Operations as IOzone's, file of 64 MiB: writer, MB/s by block size in bytes (K is 1024): luks2",
        "fio: random and sequential requests, latency, µs",
        "fio: random and sequential requests, processor time against throughput",
        "Bonnie++, throughput, loss against the baseline",
        "Dbench by clients, throughput, MB/s by clients: luks2",
        "Making, unlocking and holding volumes, memory, MiB by open volumes: luks2",
        "Seek trace, luks2: a file written and then read at random",
        "Ciphers in memory, MB/s by buffer size",
    ] {
        assert!(dom.contains(&format!("<title>{title}</title>")), "{title}");
    }
}

/// Rows of a CSV file, read by another's parser, as names and values.
fn parsed(csv: &str) -> Vec<HashMap<String, String>> {
    let rows = ::csv::Reader::from_reader(csv.as_bytes()).into_deserialize().collect::<std::result::Result<_, _>>();
    rows.expect("comma-separated values")
}

fn near(text: &str, value: f64) -> bool {
    text.parse::<f64>().is_ok_and(|read| (read - value).abs() <= value.abs() * 1e-3 + 1e-6)
}

#[test]
fn comma_separated_values_hold_every_figure() {
    let run = sample::run();
    let summary = Summary::of(&run);
    let report = RunReport { run: &run, summary: &summary, extras: &[] };
    let cells = parsed(&report.cells_csv());
    assert_eq!(cells.len(), summary.cells.len());
    for (row, cell) in cells.iter().zip(&summary.cells) {
        assert_eq!((&row["facility"], &row["operation"]), (&cell.facility, &cell.case.operation));
        assert!(near(&row["median"], cell.median) && near(&row["low"], cell.low), "{row:?}");
        assert_eq!(row["loss"].is_empty(), cell.loss.is_none(), "{row:?}");
    }
    let samples = parsed(&report.samples_csv());
    let measures: Vec<_> = run.passes.iter().flat_map(|p| p.measures.iter().map(move |m| (p, m))).collect();
    assert_eq!(samples.len(), measures.len());
    for (row, (pass, measure)) in samples.iter().zip(measures) {
        assert!(near(&row["value"], measure.value), "{row:?}");
        assert_eq!(row["round"].parse().ok(), pass.round, "the warm-up is no number");
    }
}

/// A run that was written to a file, read from there.
fn stored_again(json: &str) -> Result<Run> {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.json");
    fs::write(&file, json).expect("a file");
    stored::load(&file)
}

#[test]
fn json_is_the_run_again() {
    let run = sample::run();
    let summary = Summary::of(&run);
    let json = serde_json::to_string(&RunReport { run: &run, summary: &summary, extras: &[] }).expect("JSON");
    let again = stored_again(&json).expect("the run");
    assert_eq!((again.plan, again.passes.len(), again.traces.len()), (run.plan, run.passes.len(), run.traces.len()));
    let figures = |passes: &[Pass]| passes.iter().flat_map(|p| &p.measures).map(|m| m.value).collect::<Vec<_>>();
    // serde_json reads the last binary digit of a number as it likes.
    let same = |(a, b): (&f64, &f64)| (a - b).abs() <= b.abs() * 1e-14;
    assert!(figures(&again.passes).iter().zip(&figures(&run.passes)).all(same));
}

#[test]
fn little_is_told_as_text_too() {
    let run = empty();
    let summary = Summary::of(&run);
    let report = RunReport { run: &run, summary: &summary, extras: &[] };
    assert!(report.text().contains("Machine and method") && !report.text().contains("NaN"));
    assert_eq!(report.cells_csv(), "");
    assert_eq!(report.samples_csv(), "");
}

fn changes() -> RunChanges {
    let place = |facility: &str| CellName {
        facility: facility.into(),
        workload: "dd".into(),
        case: Case::new("write").at(Axis::Block, 4096.0),
    };
    let change = |facility: &str, change: f64, verdict| FigureChange {
        place: place(facility),
        unit: Unit::BytesPerS,
        old: 1e9,
        new: 1e9 * (1.0 + change),
        change,
        low: change - 0.01,
        high: change + 0.01,
        false_discovery_rate: 1e-9,
        verdict,
    };
    RunChanges {
        basis: Basis::Speeds,
        because: Vec::new(),
        differences: vec![RunDifference { what: "kernel".into(), old: "Linux 6.1".into(), new: "Linux 6.18".into() }],
        least: 0.03,
        cells: vec![change("LUKS2", -0.1, LossVerdict::Slower), change("plain", 0.001, LossVerdict::Same)],
        only_old: vec![place("VeraCrypt")],
        only_new: Vec::new(),
        not_compared: Vec::new(),
    }
}

#[test]
fn what_differs_comes_first_and_what_did_not_change_is_counted() {
    let text = changes().text();
    let (differs, changed) = (text.find("Linux 6.18").expect("the kernel"), text.find("LUKS2").expect("the change"));
    assert!(differs < changed, "{text}");
    assert!(text.contains("Of 2 figures 1 became slower and 0 faster by 3.0 % or more; the other 1"), "{text}");
    assert!(text.contains("1 figures are only in the old run.") && !text.contains("VeraCrypt"), "{text}");
    let line = text.lines().find(|line| line.starts_with("LUKS2")).expect("a line");
    for cell in ["1000 MB/s", "900 MB/s", "-10.0", "-11.0 … -9.0", "slower"] {
        assert!(line.contains(cell), "{cell} is not in {line}");
    }
    assert!(!text.lines().any(|line| line.starts_with("plain")));
}

#[test]
fn csv_has_every_cell() {
    let changes = changes();
    let text = csv(&changes.cells);
    let rows: Vec<::csv::StringRecord> =
        ::csv::Reader::from_reader(text.as_bytes()).into_records().map(|r| r.expect("a record")).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0][0], &rows[1][13]), ("LUKS2", "no measurable difference"));
}

/// A study of what the sample run has.
const STUDY: &str = r#"
name = "sample"
title = "a study"
about = "It repeats something."
published = "bsi2010"
facilities = ["plain", "luks2", "zfs"]
thorough = { scale = 1.0, repeats = 24, volume = 1 }
standard = { scale = 0.01, repeats = 24, volume = 1 }
quick = { scale = 0.01, repeats = 5, volume = 1 }

[[workload]]
name = "dd"

[[table]]
number = "Table 8"
title = "dd"
differs = "Much."
chart = true
published = { platform = "HP EliteBook 8540p", cpu_mode = "QuadCore 64-bit", power_mode = "performance" }
row = [
    { title = "4 KiB", workload = "dd", operation = "write", x = 4096, published = { parameter = "block size 4096 B", direction = "write" } },
    { title = "512 B", workload = "dd", operation = "write", x = 512, published = { parameter = "block size 512 B", direction = "write" } },
]
column = [
    { title = "nothing", facility = "plain", published = { table = "6", facility = "none" } },
    { title = "AES", facility = "luks2", published = { table = "8", cipher = "AES-XTS", aes_acceleration = "off" }, against = "nothing" },
    { title = "ZFS", facility = "zfs" },
]

[[conclusion]]
text = "It is fast."
source = "5.3"
check = [{ workload = "dd", operation = "write", x = 1048576, facility = "luks2", against = "plain", at-least = 0.5 }]

[[conclusion]]
text = "It is slow."
source = "5.3"
check = [{ workload = "dd", operation = "write", x = 1048576, facility = "luks2", against = "plain", at-most = 0.5 }]

[[conclusion]]
text = "It is at 84 % or more."
source = "5.3"
check = [{ workload = "dd", operation = "write", x = 1048576, facility = "luks2", against = "plain", at-least = 0.84 }]

[[conclusion]]
text = "ZFS is fast."
source = "5.3"
check = [{ workload = "dd", operation = "write", x = 1048576, facility = "zfs", against = "plain", at-least = 0.5 }]
"#;

/// The sample run as one that repeats that study.
fn repeating() -> Run {
    let mut run = sample::run();
    run.plan = RunPlan::new((*run.plan).clone(), Some(toml::from_str(STUDY).expect("a study")));
    run
}

#[test]
fn the_published_figure_stands_beside_ours() {
    let run = repeating();
    let summary = Summary::of(&run);
    let extras = Extra::of_study(&run, &summary);
    let rows = &extras[1].rows;
    let ours =
        summary.cells.iter().find(|c| c.facility == "luks2" && c.case.operation == "write" && c.case.x == Some(4096.0));
    let aes = rows.iter().find(|row| row[1] == "AES").expect("a row");
    assert!(near(&aes[3], ours.expect("measured").median / 1e6), "{aes:?}");
    // Of 1843.2 MB/s in the study's way of counting: 91.97 %, as its table 9 has it.
    assert_eq!((aes[6].as_str(), aes[7].as_str()), ("148", "92.0"), "{aes:?}");
    let zfs = rows.iter().find(|row| row[1] == "ZFS").expect("a row");
    assert_eq!((zfs[3].as_str(), zfs[6].as_str()), ("–", ""));
    let text = RunReport { run: &run, summary: &summary, extras: &[] }.text();
    assert_eq!(text.matches("the program zpool is not installed").count(), 1, "{text}");
    assert!(text.contains("- zfs (dd): the program zpool is not installed"), "{text}");
    let csv = RunReport { run: &run, summary: &summary, extras: &[] }.study_csv();
    assert_eq!(csv.lines().count(), 7, "{csv}");
}

#[test]
fn what_cannot_be_compared_is_not() {
    let mut run = repeating();
    let row = |run: &Run| {
        let extras = Extra::of_study(run, &Summary::of(run));
        extras[1].rows.iter().find(|row| row[1] == "AES").expect("a row").clone()
    };
    // A time beside a rate.
    let mut study = run.plan.study().expect("a study").clone();
    let compiling = r#"published = { table = "16", platform = "HP EliteBook 8540p", facility = "TrueCrypt", workload = "compiling the Linux kernel" }"#;
    study.tables[0].published = Default::default();
    study.tables[0].rows[0].published = Some(Default::default());
    let column: BTreeMap<String, FigureSelector> = toml::from_str(compiling).expect("one");
    study.tables[0].columns[1].published = column.get("published").cloned();
    run.plan = RunPlan::new((*run.plan).clone(), Some(study));
    let aes = row(&run);
    assert_eq!((aes[2].as_str(), aes[6].as_str(), aes[8].as_str()), ("MB/s", "64 s", ""), "{aes:?}");
    run.machine.cpu_model = "UML".into();
    let extras = Extra::of_study(&run, &Summary::of(&run));
    assert!(extras[1].rows.iter().all(|row| row[3] == "–" || row[3].is_empty()), "{extras:?}");
    let summary = Summary::of(&run);
    let text = RunReport { run: &run, summary: &summary, extras: &[] }.text();
    assert_eq!(text.matches("user-mode Linux").count(), 1, "{text}");
    let said = &extras.last().expect("conclusions").rows;
    assert!(said.iter().all(|row| row[3] == "Cannot be said"), "{said:?}");
}

#[test]
fn conclusions_are_judged_by_whole_intervals() {
    let run = repeating();
    let extras = Extra::of_study(&run, &Summary::of(&run));
    let said = &extras.last().expect("conclusions").rows;
    for (text, verdict) in [
        ("It is fast.", "Still true"),
        ("It is slow.", "No longer"),
        ("It is at 84 %", "Cannot be said"),
        ("ZFS", "Cannot be said"),
    ] {
        assert!(said.iter().any(|row| row[0].starts_with(text) && row[3] == verdict), "{text}: {said:?}");
    }
    assert!(said.iter().any(|row| row[2].contains("zpool")), "{said:?}");
    let few = Run { passes: run.passes.iter().filter(|p| p.round < Some(3)).cloned().collect(), ..run };
    let extras = Extra::of_study(&few, &Summary::of(&few));
    let said = &extras.last().expect("conclusions").rows;
    assert!(said.iter().all(|row| row[3] == "Cannot be said"), "{said:?}");
}

#[test]
fn every_report_has_the_tables_and_a_stored_run_keeps_them() {
    let run = repeating();
    let stored = stored_again(&serde_json::to_string(&run).expect("JSON")).expect("a run");
    assert_eq!(stored.plan, run.plan);
    let summary = Summary::of(&stored);
    let extras = Extra::of_study(&stored, &summary);
    let report = RunReport { run: &stored, summary: &summary, extras: &extras };
    let (text, page) = (report.text(), report.html().expect("a page"));
    let json = serde_json::to_string(&report).expect("JSON");
    let markdown = report.study_markdown();
    assert!(markdown.starts_with("## a study\n\nIt repeats something.\n"), "{markdown}");
    assert!(markdown.contains("\n| what | nothing | AES |\n") && markdown.contains("\n|---|---|"), "{markdown}");
    assert!(markdown.contains("<br>study: 148 (−92.0 %) |"), "{markdown}");
    assert!(!summary.warnings.is_empty(), "its figures come from a few passes");
    for warning in &summary.warnings {
        let begin = warning.split(['<', '|', '*', '_']).next().expect("a text");
        assert!(markdown.contains(&format!("\n- {begin}")), "{warning}: {markdown}");
    }
    for of in [&text, &page, &json, &markdown] {
        assert!(of.contains("Table 8: dd") && of.contains("Much.") && of.contains("No longer"));
    }
    assert!(text.contains("- No longer: It is slow.") && markdown.contains("| It is slow. | 5.3 |"), "{text}");
    assert!(page.contains("<title>Table 8: dd: loss here and in the study</title>"), "the chart");
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(page.contains("<h1>a study, repeated on this machine</h1>"));
    assert!(at("Before you believe it") < at("It is slow.") && at("It is slow.") < at("<h2>Table 8: dd</h2>"));
    assert!(at("<h2>Table 8: dd</h2>") < at("<h2>Findings</h2>"));
    assert!(text.contains("5 to 12 passes") && text.contains("data of 1.0 %"), "{text}");
    let mut broken = run.clone();
    let study = Study { about: "\u{1b}[0m".into(), ..run.plan.study().expect("a study").clone() };
    broken.plan = RunPlan::new((*run.plan).clone(), Some(study));
    let error = stored_again(&serde_json::to_string(&broken).expect("JSON")).expect_err("refused");
    assert!(error.to_string().contains("not one line"), "{error}");
}

/// Each stored run in each form that people read.
#[test]
fn every_figure_of_a_stored_run_has_a_unit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies");
    let mut seen = 0;
    for file in fs::read_dir(folder).expect("runs").map(|entry| entry.expect("a file").path()) {
        let unpacked = Command::new("gzip").arg("-dc").arg(&file).output().expect("gzip").stdout;
        let run = stored_again(&String::from_utf8_lossy(&unpacked)).expect("a run");
        let summary = Summary::of(&run);
        let extras = [Extra::of_study(&run, &summary), Extra::published(&run, &summary)].concat();
        let report = RunReport { run: &run, summary: &summary, extras: &extras };
        let (page, markdown) = (report.html().expect("a page"), report.study_markdown());
        for form in [&page, &markdown, &report.text()] {
            let words = form.split(|c: char| !c.is_alphabetic());
            assert!(!words.into_iter().any(|word| ["inf", "NaN"].contains(&word)), "{}", file.display());
            assert!(!form.contains("– %") && !form.contains("…</text>"), "{}", file.display());
        }
        let tables = page.split("<table>").skip(1).map(|table| table.split("</table>").next().unwrap_or_default());
        let tables: Vec<Vec<Vec<String>>> = tables.map(rows_of_page).chain(tables_of_markdown(&markdown)).collect();
        for table in tables {
            let heading = table[0].clone();
            for row in &table[1..] {
                for (name, cell) in heading.iter().zip(row).skip(1) {
                    let of_row = heading.iter().position(|name| name == "unit").is_some_and(|at| !row[at].is_empty());
                    let known =
                        of_row || has_unit(name) || has_unit(cell) || row[0].rsplit(", ").next().is_some_and(has_unit);
                    assert!(known || !is_bare(cell), "{}: {name}: {row:?}", file.display());
                }
            }
        }
        seen += 1;
    }
    assert!(seen >= 5, "{seen} runs");
}

fn rows_of_page(table: &str) -> Vec<Vec<String>> {
    let cells = |row: &str| {
        let cells =
            row.split("<t").skip(1).filter_map(|cell| Some(cell.split_once('>')?.1.split('<').next()?.to_owned()));
        cells.collect()
    };
    table.split("<tr>").skip(1).map(cells).collect()
}

fn tables_of_markdown(text: &str) -> impl Iterator<Item = Vec<Vec<String>>> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let lines: Vec<&str> = text.lines().collect();
    let tables =
        lines.split(|line| !line.starts_with("| ") && !line.starts_with("|---")).filter(|table| table.len() > 1);
    let tables =
        tables.map(move |table| table.iter().filter(|line| !line.starts_with("|---")).map(|l| cells(l)).collect());
    tables.collect::<Vec<_>>().into_iter()
}

/// A number, or several, with nothing that says of what.
fn is_bare(cell: &str) -> bool {
    cell.contains(|c: char| c.is_ascii_digit()) && !cell.contains(|c: char| c.is_alphabetic() || matches!(c, '%' | '/'))
}

fn has_unit(text: &str) -> bool {
    let units = [
        "MB/s", "s/GB", "GiB", "MiB", "KiB", "s", "ms", "µs", "second", "%", "n", "count", "times", "requests",
        "bytes", "B",
    ];
    text.split([' ', ',']).any(|word| units.contains(&word))
}

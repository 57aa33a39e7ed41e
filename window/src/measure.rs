//! The benchmark as a value: one cipher after the other, the fastest first; and a run of the lab with what it found.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::form::{Field, Form, Input, unused};
use crate::home::size;
use crate::program::{Call, Done};
use crate::texts::Texts;

/// Sizes of buffers, in the words of `claviger benchmark`: those of TrueCrypt's window.
pub const BUFFERS: [&str; 10] = ["100KB", "500KB", "1MB", "5MB", "10MB", "50MB", "100MB", "200MB", "500MB", "1GB"];

pub struct Measure {
    pub buffer: usize,
    /// Whether the processor's AES instructions are used.
    pub aes: bool,
    /// Ciphers and cascades.
    pub ciphers: Vec<String>,
    pub rows: Vec<Row>,
    /// The one that is measured now.
    pub at: Option<usize>,
    pub trouble: Option<String>,
    /// What the lab is asked for.
    pub lab: Form,
    /// The folder of a run of the lab that was interrupted.
    pub interrupted: Option<PathBuf>,
    pub found: Option<RunResult>,
}

/// What a run of the lab found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunResult {
    pub facilities: Vec<String>,
    /// What was measured, and what each facility reached: nothing where it was not measured.
    pub rows: Vec<(String, Vec<String>)>,
    /// Findings and warnings.
    pub remarks: Vec<String>,
    /// The page with charts.
    pub page: PathBuf,
}

/// A cipher's speeds, in bytes per second.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Row {
    pub cipher: String,
    #[serde(rename = "encrypt_bytes_per_s")]
    pub encrypt: f64,
    #[serde(rename = "decrypt_bytes_per_s")]
    pub decrypt: f64,
    #[serde(rename = "mean_bytes_per_s")]
    pub mean: f64,
    #[serde(default)]
    pub kernel: String,
}

impl Measure {
    pub fn new(ciphers: Vec<String>, home: &Path, texts: &Texts) -> Self {
        let (rows, at, trouble, interrupted, found) = (Vec::new(), None, None, None, None);
        let mut it = Self { buffer: 3, aes: true, ciphers, rows, at, trouble, lab: lab(texts), interrupted, found };
        it.look_for_runs(home);
        it
    }

    /// Looks for earlier runs of the lab: an interrupted one, and a free name for the next one.
    pub fn look_for_runs(&mut self, home: &Path) {
        self.interrupted = interrupted(home);
        if let Some(Input::New(out)) = self.lab.field_mut(OUT).map(|field| &mut field.input) {
            *out = unused(home.join(RUN)).display().to_string();
        }
    }

    /// Starts over. Returns what to measure first.
    pub fn begin(&mut self) -> Option<Call> {
        self.rows.clear();
        self.trouble = None;
        self.at = Some(0);
        self.call()
    }

    /// Ends early. Figures so far stay.
    pub fn stop(&mut self) {
        self.at = None;
    }

    /// Takes a figure. Returns what to measure next.
    pub fn finished(&mut self, done: &Done) -> Option<Call> {
        match serde_json::from_value::<Vec<Row>>(done.out["ciphers"].clone()) {
            Ok(rows) => self.rows.extend(rows),
            Err(_) => {
                self.trouble.clone_from(&done.error);
                self.at = None;
            }
        }
        self.rows.sort_by(|a, b| b.mean.total_cmp(&a.mean));
        self.at = self.at.map(|at| at + 1).filter(|at| *at < self.ciphers.len());
        self.call()
    }

    fn call(&self) -> Option<Call> {
        let cipher = self.ciphers.get(self.at?)?;
        let call = Call::new(["benchmark", "--cipher", cipher, "--buffer", BUFFERS[self.buffer], "--repeats", "3"]);
        Some(if self.aes { call } else { call.with(["--no-aes"]) })
    }

    /// The length of a bar, from 0 to 1.
    pub fn share(&self, row: &Row) -> f32 {
        let most = self.rows.iter().map(|row| row.mean).fold(1.0, f64::max);
        (row.mean / most) as f32
    }
}

/// What a run of the lab is asked for.
fn lab(texts: &Texts) -> Form {
    let presets = ["", "sweep", "files", "network"].into_iter();
    let named = presets.zip([texts.usual, texts.preset_sweep, texts.preset_files, texts.preset_network]);
    let presets = named.map(|(said, called)| (said.to_owned(), called.to_owned())).collect();
    let text = |label, option| Field::more(label, option, Input::Text(String::new()));
    let fields = vec![
        Field::optional(texts.preset, "--preset", Input::Choice(0, presets)),
        Field::optional(texts.lab_dir, "--dir", Input::Folder(String::new())),
        Field::new(texts.lab_out, OUT, Input::New(String::new())),
        text(texts.facility, "--facility"),
        text(texts.workload, "--workload"),
        text(texts.repeats, "--repeats"),
    ];
    let form = Form::about(Path::new(""), &["lab", "run", "--quick"], fields);
    Form { volume: None, ..form }.said(texts.lab_title, texts.lab_explanation, texts.run_lab)
}

/// The beginning of the names of runs' folders.
const RUN: &str = "claviger-lab";
/// The option that names them.
pub const OUT: &str = "--out";
/// The page with charts in them.
const PAGE: &str = "report.html";

/// The folder of a run that was begun and has no report.
pub fn interrupted(home: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(RUN));
    named.map(|entry| entry.path()).find(|run| run.join("run.jsonl").is_file() && !run.join(PAGE).exists())
}

/// The results in the output of `claviger lab run`, for the run in `out`.
pub fn found(told: &Value, out: &Path) -> Option<RunResult> {
    #[derive(Deserialize)]
    struct Summary {
        cells: Vec<Cell>,
        findings: Vec<String>,
        warnings: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Cell {
        facility: String,
        workload: String,
        case: Case,
        unit: String,
        median: f64,
        loss: Option<Loss>,
    }
    #[derive(Deserialize)]
    struct Case {
        operation: String,
        series: String,
        x: Option<f64>,
        axis: String,
    }
    #[derive(Deserialize)]
    struct Loss {
        loss: f64,
    }
    let Summary { cells, findings, warnings } = serde_json::from_value(told["summary"].clone()).ok()?;
    let mut found = RunResult { remarks: [findings, warnings].concat(), page: out.join(PAGE), ..RunResult::default() };
    for Cell { facility, .. } in &cells {
        if !found.facilities.contains(facility) {
            found.facilities.push(facility.clone());
        }
    }
    for Cell { facility, workload, case, unit, median, loss } in cells {
        let x =
            case.x.map(|x| if ["clients", "volumes"].contains(&&*case.axis) { x.to_string() } else { size(x as u64) });
        let parts = [Some(workload), Some(case.operation), Some(case.series), x].into_iter().flatten();
        let what = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let lost = loss.map(|Loss { loss }| format!(" ({:+.0} %)", -100.0 * loss)).unwrap_or_default();
        let at = found.rows.iter().position(|row| row.0 == what).unwrap_or(found.rows.len());
        if at == found.rows.len() {
            found.rows.push((what, vec![String::new(); found.facilities.len()]));
        }
        let column = found.facilities.iter().position(|name| *name == facility)?;
        found.rows[at].1[column] = figure(median, &unit) + &lost;
    }
    Some(found)
}

/// A figure for people.
fn figure(value: f64, unit: &str) -> String {
    match unit {
        "bytes_per_s" => Row::speed(value),
        "per_s" => format!("{value:.0}/s"),
        "seconds" | "cost_seconds" if value < 0.1 => format!("{:.2} ms", value * 1e3),
        "seconds" | "cost_seconds" => format!("{value:.2} s"),
        "bytes" => size(value as u64),
        "share" => format!("{:.0} %", value * 100.0),
        _ => format!("{value:.1}"),
    }
}

impl Row {
    /// A speed for people, in powers of ten as disks are sold.
    pub fn speed(bytes: f64) -> String {
        if bytes >= 1e9 { format!("{:.1} GB/s", bytes / 1e9) } else { format!("{:.0} MB/s", bytes / 1e6) }
    }
}

#[cfg(test)]
#[path = "../tests/values/measure.rs"]
mod tests;

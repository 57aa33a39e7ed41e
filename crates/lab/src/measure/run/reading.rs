//! Reads a run, which may come from anybody, and checks that it can be reported.

use std::fs::File;
use std::path::Path;

use claviger_engine::internal::files;
use claviger_engine::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::model::figures::{Run, SCHEMA};
use crate::model::study::Study;
use crate::model::words::size;

/// The longest file of a run, in bytes: a thorough run of everything has tens of MB.
const FILE_MAX: u64 = 1 << 30;

/// The longest name or title, in bytes.
const NAME_MAX: usize = 1000;

/// No figure is larger, so that sums and squares stay finite.
const MOST: f64 = 1e30;

/// The bytes of a file that is no longer than a run's may be.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let open = || files::open_regular(path)?.ok_or_else(|| Error::misuse("not a regular file"));
    open().and_then(|file| read(&file)).map_err(|e| e.at(path))
}

/// The same for an open file.
pub(super) fn read(file: &File) -> Result<Vec<u8>> {
    let bytes = files::read_at_most(file, FILE_MAX)?;
    bytes.ok_or_else(|| Error::misuse(format!("longer than {}, which is too long for a run", size(FILE_MAX))))
}

/// Checks that an untrusted run can be reported: names fit on a line, and numbers can be calculated with.
pub(super) fn check(run: &Run) -> Result<()> {
    let malformed = |field: &'static str, what: String| Err(ErrorKind::Malformed { field, offset: 0, what }.into());
    let records = run.facilities.iter().flat_map(|f| [&f.name, &f.title]);
    let records = records.chain(run.workloads.iter().flat_map(|w| [&w.name, &w.title]));
    let of_passes = run.passes.iter().flat_map(|p| [&p.facility, &p.workload, &p.at]);
    let cases = || run.passes.iter().flat_map(|p| &p.measures);
    let of_cases = cases().flat_map(|m| [&m.case.operation, &m.case.series]);
    let of_rest = run.failures.iter().map(|f| &f.facility).chain(run.traces.iter().map(|t| &t.facility));
    let mut names = records.chain(of_passes).chain(of_cases).chain(of_rest);
    if let Some(name) = names.find(|name| name.len() > NAME_MAX || name.contains(char::is_control)) {
        return malformed("name", format!("{:?}", name.chars().take(80).collect::<String>()));
    }
    let of_measures = cases().flat_map(|m| [m.value, m.seconds, m.cpu_s.unwrap_or(0.0)]);
    let of_traces = run.traces.iter().flat_map(|t| &t.requests).map(|r| r.at);
    let of_plan = [run.plan.scale, run.plan.steady];
    let of_generator = run.generator.iter().map(|g| g.bytes_per_s);
    let of_ciphers =
        run.ciphers.iter().flat_map(|r| [r.encrypt_bytes_per_s, r.decrypt_bytes_per_s, r.mean_bytes_per_s]);
    let loads = run.passes.iter().filter_map(|p| p.conditions.others);
    let of_others = loads.flat_map(|l| [l.seconds, l.cpu_s, l.chance_s]);
    let mut numbers =
        of_measures.chain(of_traces).chain(of_others).chain(of_plan).chain(of_generator).chain(of_ciphers);
    if let Some(number) = numbers.find(|number| number.is_nan() || number.abs() > MOST) {
        return malformed("number", format!("{number:e} cannot be a measured value"));
    }
    run.plan.study().map_or(Ok(()), Study::check)?;
    match cases().filter_map(|m| m.case.x).find(|x| !(0.0..=MOST).contains(x)) {
        Some(x) => malformed("x", format!("{x:e} is not a position on an axis")),
        None => Ok(()),
    }
}

/// A run from JSON.
pub(crate) fn parse(text: &[u8]) -> Result<Run> {
    /// The version, which decides how the rest is parsed.
    #[derive(Deserialize)]
    struct Form {
        schema: u32,
    }
    let malformed =
        |e: serde_json::Error| Error::from(ErrorKind::Malformed { field: "run", offset: 0, what: e.to_string() });
    let mut json: serde_json::Value = serde_json::from_slice(text).map_err(malformed)?;
    let json = json.get_mut("run").map(serde_json::Value::take).unwrap_or(json);
    let form: Form = Form::deserialize(&json).map_err(malformed)?;
    if form.schema != SCHEMA {
        return Err(Error::unsupported(format!(
            "a run in format {}; this program supports format {SCHEMA}",
            form.schema
        )));
    }
    let run = serde_json::from_value(json).map_err(malformed)?;
    check(&run).map(|()| run)
}

//! A run that lies in files: what people give to say which one they mean.

use std::fs;
use std::path::Path;

use claviger_engine::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::run::{Run, SCHEMA, journal};

/// Name of a finished run's file in its folder.
pub const FILE: &str = "run.json";

/// The run in a folder, in its journal, or in a file of JSON: of the run alone, or of a whole report.
///
/// # Errors
/// `Io`; `Malformed` for what is no run; `Unsupported` for a run of another version.
pub fn load(path: &Path) -> Result<Run> {
    // The journal is there from the beginning, and is never older than what is made from it.
    if path.is_dir() {
        let journal = path.join(journal::FILE);
        return load(&if journal.exists() { journal } else { path.join(FILE) });
    }
    if path.file_name().is_some_and(|name| name == journal::FILE) {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Ok(journal::read(folder)?.run);
    }
    let text = fs::read(path).map_err(|e| Error::from(e).at(path))?;
    parse(&text).map_err(|e| e.at(path))
}

fn parse(text: &[u8]) -> Result<Run> {
    /// What says which form the rest has.
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
        return Err(Error::unsupported(format!("a run of form {}; this program knows form {SCHEMA}", form.schema)));
    }
    serde_json::from_value(json).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_run_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("run.json");
        let error = |text: &str| {
            fs::write(&file, text).expect("a file");
            load(&file).expect_err("no run").to_string()
        };
        assert!(error("{").contains("run.json"));
        assert!(error("{\"schema\": 99}").contains("form 99"));
        assert!(error("{\"schema\": 1}").contains("missing field"));
        assert!(error("[1]").contains("run.json"));
        assert!(load(dir.path().join("nothing").as_path()).is_err());
    }
}

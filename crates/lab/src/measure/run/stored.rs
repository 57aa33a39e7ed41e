//! A run stored in files, named by the user.

use std::path::Path;

use claviger_engine::internal::files;
use claviger_engine::{Error, Result};

use crate::measure::run::journal;
use crate::measure::run::reading::{parse, read_file};
use crate::model::figures::Run;

/// Name of a finished run's file in its folder.
pub const FILE: &str = "run.json";

/// The run in a folder, in its journal, or in a file of JSON: of the run alone, or of a whole report.
///
/// # Errors
/// `Io`; `Malformed` for anything that is not a run; `Unsupported` for a run of another version.
pub fn load(path: &Path) -> Result<Run> {
    // The journal exists from the beginning, and is never older than what is made from it.
    if path.is_dir() {
        let journal = path.join(journal::FILE);
        return load(&if journal.exists() { journal } else { path.join(FILE) });
    }
    if path.file_name().is_some_and(|name| name == journal::FILE) {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return journal::read(folder).map(|state| state.run);
    }
    parse(&read_file(path)?).map_err(|e| e.at(path))
}

/// Atomically replaces an old file, or a link, with a complete new one.
///
/// # Errors
/// `Io`.
pub fn write(path: &Path, text: &str) -> Result<()> {
    files::replace(path, text.as_bytes(), 0o644).map_err(|e| Error::from(e).at(path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_takes_the_place_of_a_link_and_not_of_what_it_names() {
        let dir = tempfile::tempdir().expect("a folder");
        let (other, link) = (dir.path().join("other"), dir.path().join("run.json"));
        fs::write(&other, "kept").expect("a file");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        write(&link, "new").expect("written");
        let read = |path| fs::read_to_string(path).expect("a file");
        assert_eq!((read(&other), read(&link)), ("kept".into(), "new".into()));
        assert!(link.symlink_metadata().expect("a file").is_file());
    }

    #[test]
    fn what_is_no_run_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("run.json");
        let error = |text: &str| {
            fs::write(&file, text).expect("a file");
            load(&file).expect_err("no run").to_string()
        };
        assert!(error("{").contains("run.json"));
        assert!(error("{\"schema\": 99}").contains("format 99"));
        assert!(error("{\"schema\": 1}").contains("missing field"));
        assert!(error("[1]").contains("run.json"));
        assert!(load(dir.path().join("nothing").as_path()).is_err());
    }
}

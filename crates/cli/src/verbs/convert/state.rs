//! The progress of a conversion, in a small file beside the new volume. It holds no contents and no password.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use claviger_engine::internal::files;
use claviger_engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// The version of the state file.
const VERSION: u32 = 1;

/// The longest state file, in bytes.
const MAX: u64 = 64 << 10;

/// The state of a conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the state file.
    claviger_conversion: u32,
    /// The conversion's source and destination.
    #[serde(flatten)]
    pub what: What,
    /// The bytes of plaintext that are durable in the new volume; `None` before its header is.
    pub done: Option<u64>,
}

/// Source and destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct What {
    /// The source, as an absolute path.
    pub source: PathBuf,
    /// The size of the source's plaintext, in bytes.
    pub source_size: u64,
    /// The destination, as an absolute path.
    pub destination: PathBuf,
    /// The destination's format; `None` for plaintext.
    pub format: Option<String>,
    /// The destination's size, in bytes.
    pub stored: u64,
}

impl State {
    /// The state before anything has been created.
    pub fn new(what: What) -> Self {
        Self { claviger_conversion: VERSION, what, done: None }
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// `Io`; `Misuse` for any other file.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let at = |e: io::Error| Error::from(e).at(path);
        let text = match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if metadata.is_file() && metadata.len() <= MAX => fs::read(path).map_err(at)?,
            Ok(_) => return Err(Error::misuse("not a conversion state file").at(path)),
            Err(e) => return Err(at(e)),
        };
        let state = serde_json::from_slice::<Self>(&text).ok().filter(|s| s.claviger_conversion == VERSION);
        let foreign = || Error::misuse("not a conversion state file, or one of another version");
        state.map(Some).ok_or_else(|| foreign().at(path))
    }

    /// Writes the file durably: the old one stays until the new one is complete.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::from);
        text.and_then(|text| files::replace(path, &text, 0o600)).map_err(|e| Error::from(e).at(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.json");
        assert_eq!(State::read(&path).expect("no file"), None);
        let what = What {
            source: "/a".into(),
            source_size: 7,
            destination: "/b".into(),
            format: Some("VeraCrypt".into()),
            stored: 9,
        };
        let state = State { done: Some(5), ..State::new(what) };
        State::new(state.what.clone()).write(&path).expect("written");
        state.write(&path).expect("written");
        assert_eq!(State::read(&path).expect("a file"), Some(state.clone()));
        let other = State { claviger_conversion: 2, ..state };
        other.write(&path).expect("written");
        assert!(State::read(&path).is_err(), "another version");
        fs::write(&path, "{}").expect("written");
        assert!(State::read(&path).is_err() && State::read(dir.path()).is_err(), "other things");
    }
}

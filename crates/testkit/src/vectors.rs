//! Test vectors: text files below `vectors/`, one folder for each cipher or mode.
//!
//! The first line names the source: `# Source: …`. Further lines that start with `#` are remarks. A record is a group of
//! lines `name = value`, ended by an empty line; what the names mean is up to the folder's reader.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file of vectors.
pub struct File {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// Where its vectors come from.
    pub source: String,
    /// Its records, at least one.
    pub records: Vec<Record>,
}

/// One vector.
pub struct Record {
    fields: BTreeMap<String, String>,
    /// File and line, for messages.
    pub place: String,
}

/// All files of a folder below `vectors/`, by name.
///
/// # Panics
/// If the folder has none, or one is malformed: a vector that is not read must not pass.
pub fn folder(name: &str) -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no vectors", folder.display());
    paths.into_iter().map(parse).collect()
}

impl Record {
    /// A field's text, if the record has the field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// A field's bytes, in hexadecimal.
    ///
    /// # Panics
    /// If there is no such field, or it is not hexadecimal.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let text = self.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.place));
        assert!(text.len().is_multiple_of(2) && text.is_ascii(), "{}: {name}", self.place);
        let digits = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16));
        digits.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{}: {name}: {e}", self.place))
    }

    /// A field's number, in decimal; `otherwise` if there is no such field.
    ///
    /// # Panics
    /// If it is no number.
    pub fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.get(name).map_or(otherwise, |n| n.parse().unwrap_or_else(|e| panic!("{}: {name}: {e}", self.place)))
    }
}

fn parse(path: PathBuf) -> File {
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let source = text.lines().next().and_then(|line| line.strip_prefix("# Source: "));
    let source = source.unwrap_or_else(|| panic!("{} names no source", path.display())).to_string();
    let mut records: Vec<Record> = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let place = format!("{}:{}", path.display(), number + 1);
        if line.trim().is_empty() {
            inside = false;
            continue;
        }
        if !inside {
            records.push(Record { fields: BTreeMap::new(), place: place.clone() });
            inside = true;
        }
        let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{place}: neither field nor remark"));
        let fields = &mut records.last_mut().expect("just made").fields;
        let before = fields.insert(name.trim().to_string(), value.trim().to_string());
        assert!(before.is_none(), "{place}: {} twice", name.trim());
    }
    assert!(!records.is_empty(), "{} has no records", path.display());
    File { path, source, records }
}

//! A disk that was split into files with numbers: `disk.001`, `disk.002` … The first one is named, and all are read as one.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::store::{Access, FileStore, JoinedStore};
use claviger_engine::{Error, Result, Store, diagnosis};

use crate::terminal::output;

/// The most parts: each needs an open file, and processes usually may open 1024.
const MOST: usize = 900;

/// The parts of the disk whose first part is at `path`, in order. `None` if the name has no number 0 or 1 of three or more digits, or
/// no other part is there.
///
/// # Errors
/// `Misuse` if a number is missing, or a part is not a regular file; `Unsupported` if there are too many parts.
pub fn find(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    let Some(named) = path.file_name().and_then(Numbered::of) else { return Ok(None) };
    let first = named.number;
    if first > 1 || !is_regular(path) {
        return Ok(None);
    }
    let mut numbers = named.others(folder_of(path)).map_err(|e| alone(Error::from(e), path))?;
    numbers.retain(|number| *number != first);
    numbers.sort_unstable();
    let part = |number| path.with_file_name(named.with(number));
    match numbers.first() {
        None => return Ok(None),
        // The second of several parts.
        Some(number) if *number < first => return Ok(None),
        Some(_) => {}
    }
    if numbers.len() >= MOST {
        let what = format!("a disk in {} files: at most {MOST} are joined", numbers.len() + 1);
        return Err(alone(Error::unsupported(what), path));
    }
    for (number, expected) in numbers.iter().zip(first + 1..) {
        if *number != expected {
            let missing = part(expected);
            let what = format!("the part {} of this split disk is missing", missing.display());
            return Err(alone(Error::misuse(what), path));
        }
    }
    let parts: Vec<_> = [path.to_owned()].into_iter().chain(numbers.into_iter().map(part)).collect();
    match parts.iter().find(|part| !is_regular(part)) {
        Some(other) => Err(alone(Error::misuse(format!("the part {} is not a regular file", other.display())), path)),
        // Then it is not the second part of another one.
        None if diagnosis::begins_a_volume(&parts[1]) => Ok(None),
        None => Ok(Some(parts)),
    }
}

/// Opens the parts as one store.
///
/// # Errors
/// `Misuse` if the sizes do not fit together; those of [`FileStore::open`].
pub fn open(parts: &[PathBuf]) -> Result<Arc<dyn Store>> {
    let (mut stores, mut len) = (Vec::<Arc<dyn Store>>::new(), 0);
    for (number, path) in parts.iter().enumerate() {
        let store = FileStore::open(path, Access::ReadOnly)?;
        if !store.is_at(path) {
            return Err(alone(Error::misuse("a symbolic link is not opened as a part of a split disk"), path));
        }
        let last = number + 1 == parts.len();
        if number == 0 {
            len = store.len();
        }
        if store.is_empty() || store.len() > len || store.len() < len && !last {
            let what = format!("this part has {} bytes, and the first part {len}", store.len());
            return Err(alone(Error::misuse(what).at(path), &parts[0]));
        }
        stores.push(Arc::new(store));
    }
    Ok(Arc::new(JoinedStore::new(stores)?))
}

/// The error, with a way to open the first part alone.
fn alone(error: Error, first: &Path) -> Error {
    let mut name = OsStr::new("raw:").to_owned();
    name.push(first);
    error.at(first).hint(format!("If this file is no part of a disk, name it {}.", output::command([name])))
}

fn is_regular(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file's name that ends with a dot and a number.
struct Numbered {
    /// The name with the dot, without the number.
    stem: Vec<u8>,
    number: u64,
    digits: usize,
}

impl Numbered {
    fn of(name: &OsStr) -> Option<Self> {
        let bytes = name.as_bytes();
        let dot = bytes.iter().rposition(|byte| *byte == b'.')?;
        let (stem, digits) = bytes.split_at(dot + 1);
        if stem.len() < 2 || digits.len() < 3 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Self { stem: stem.to_owned(), number, digits: digits.len() })
    }

    /// The name with another number.
    fn with(&self, number: u64) -> std::ffi::OsString {
        let mut name = OsStr::from_bytes(&self.stem).to_owned();
        name.push(format!("{number:0width$}", width = self.digits));
        name
    }

    /// The numbers of the files in `folder` that differ from this name only in the number. More digits follow only where the number needs
    /// them.
    fn others(&self, folder: &Path) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            numbers.extend(Self::of(&name).filter(|other| self.with(other.number) == name).map(|other| other.number));
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        names.iter().for_each(|name| fs::write(folder.path().join(name), "part").expect("written"));
        folder
    }

    fn found(names: &[&str], first: &str) -> std::result::Result<Option<Vec<String>>, String> {
        let folder = folder(names);
        let parts = find(&folder.path().join(first)).map_err(|e| e.to_string())?;
        let name = |part: PathBuf| part.file_name().expect("a name").to_string_lossy().into_owned();
        Ok(parts.map(|parts| parts.into_iter().map(name).collect()))
    }

    #[test]
    fn parts_are_those_with_the_next_numbers() {
        let all = |names: &[&str]| Ok(Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()));
        let three = ["d.001", "d.002", "d.003"];
        let more = ["d.img.001", "d.0004", "e.004", "d.4", "d.004.txt", "d.00a", "d.+04"];
        assert_eq!(found(&[&three[..], &more].concat(), "d.001"), all(&three));
        assert_eq!(found(&["d.000", "d.001"], "d.000"), all(&["d.000", "d.001"]));
        assert_eq!(found(&["d.dd.0001", "d.dd.0002"], "d.dd.0001"), all(&["d.dd.0001", "d.dd.0002"]));
        for (names, first) in [
            (&three[..], "d.002"),
            (&["d.000", "d.001", "d.002"], "d.001"),
            (&["d.001"], "d.001"),
            (&["d.01", "d.02"], "d.01"),
            (&[".001", ".002"], ".001"),
            (&["d.001", "d.0002"], "d.001"),
            (&["d.002"], "d.001"),
        ] {
            assert_eq!(found(names, first), Ok(None), "{names:?} {first}");
        }
    }

    #[test]
    fn a_missing_part_is_named() {
        let error = found(&["d.001", "d.002", "d.004"], "d.001").expect_err("a gap");
        assert!(error.contains("d.003 of this split disk is missing"), "{error}");
    }

    #[test]
    fn a_part_that_is_a_link_is_refused() {
        let folder = folder(&["d.001", "other"]);
        std::os::unix::fs::symlink("other", folder.path().join("d.002")).expect("a link");
        let error = find(&folder.path().join("d.001")).expect_err("a link").to_string();
        assert!(error.contains("d.002 is not a regular file"), "{error}");
        std::os::unix::fs::symlink("d.001", folder.path().join("l.001")).expect("a link");
        assert!(find(&folder.path().join("l.001")).expect("no parts").is_none());
    }

    #[test]
    fn only_the_last_part_is_shorter() {
        let parts = |lens: &[usize]| {
            let folder = tempfile::tempdir().expect("a folder");
            let write = |(number, len): (usize, &usize)| {
                let path = folder.path().join(format!("d.{number:03}"));
                fs::write(&path, vec![number as u8; *len]).map(|()| path).expect("written")
            };
            open(&lens.iter().enumerate().map(write).collect::<Vec<_>>()).map(|store| store.len())
        };
        assert_eq!(parts(&[512, 512, 7]).ok(), Some(1031));
        assert_eq!(parts(&[512, 512]).ok(), Some(1024));
        for wrong in [&[512, 511, 512][..], &[512, 513], &[512, 0], &[0, 0]] {
            let error = parts(wrong).err().unwrap_or_else(|| panic!("{wrong:?}")).to_string();
            assert!(error.contains("this part has"), "{error}");
        }
    }
}

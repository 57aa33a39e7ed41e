//! The segment files of a forensic image: `disk.E01`, `disk.E02` … `disk.E99`, `disk.EAA` … The first one is named, and the others lie
//! beside it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::store::{Access, EwfStore, FileStore};
use claviger_engine::{Error, Result, Store};

/// The most segments: each needs an open file, and processes usually may open 1024.
const MOST: usize = 900;

/// The segments of the image whose first one is at `path`, in order: those that are there.
///
/// # Errors
/// `Unsupported` if there are too many.
pub fn find(path: &Path) -> Result<Vec<PathBuf>> {
    let first = path.extension().map(OsStr::as_bytes).and_then(letter_of_first);
    let next = first.into_iter().flat_map(|letter| (2..).map_while(move |number| extension(letter, number)));
    let there =
        next.map(|extension| path.with_extension(extension)).take_while(|path| fs::symlink_metadata(path).is_ok());
    let segments: Vec<_> = [path.to_owned()].into_iter().chain(there.take(MOST)).collect();
    if segments.len() > MOST {
        return Err(Error::unsupported(format!("a forensic image in more than {MOST} files")).at(path));
    }
    Ok(segments)
}

/// Opens the image.
///
/// # Errors
/// `Misuse` for a segment that is a symbolic link; those of [`FileStore::open`] and [`EwfStore::open`].
pub fn open(segments: &[PathBuf]) -> Result<Arc<dyn Store>> {
    let mut stores = Vec::<Arc<dyn Store>>::new();
    for (number, path) in segments.iter().enumerate() {
        let store = FileStore::open(path, Access::ReadOnly)?;
        if number > 0 && !store.is_at(path) {
            return Err(Error::misuse("a symbolic link is not opened as a segment of a forensic image").at(path));
        }
        stores.push(Arc::new(store));
    }
    Ok(Arc::new(EwfStore::open(stores).map_err(|e| e.at(&segments[0]))?))
}

/// The letter of the first segment's extension, such as `E01`.
fn letter_of_first(extension: &[u8]) -> Option<u8> {
    match extension {
        [letter @ (b'E' | b'e' | b'S' | b's'), b'0', b'1'] => Some(*letter),
        _ => None,
    }
}

/// The extension of a segment: 99 numbers, then letters, the first of which goes on from that of the first segment.
fn extension(letter: u8, number: u32) -> Option<String> {
    let Some(beyond) = number.checked_sub(100) else { return Some(format!("{}{number:02}", char::from(letter))) };
    let (a, z) = if letter.is_ascii_uppercase() { (b'A', b'Z') } else { (b'a', b'z') };
    let first =
        u8::try_from(beyond / (26 * 26)).ok().and_then(|more| letter.checked_add(more)).filter(|first| *first <= z)?;
    let [second, third] = [beyond / 26 % 26, beyond % 26].map(|digit| a + digit as u8);
    Some([first, second, third].map(char::from).iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_follow_each_other() {
        let name = |number| extension(b'E', number);
        for (number, expected) in
            [(2, "E02"), (99, "E99"), (100, "EAA"), (101, "EAB"), (126, "EBA"), (775, "EZZ"), (776, "FAA")]
        {
            assert_eq!(name(number).as_deref(), Some(expected));
        }
        assert_eq!(name(99 + 22 * 676).as_deref(), Some("ZZZ"));
        assert_eq!(name(100 + 22 * 676), None);
        assert_eq!(extension(b's', 100).as_deref(), Some("saa"));
    }

    #[test]
    fn segments_are_those_that_are_there() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["d.E01", "d.E02", "d.E04", "e.E03", "d.e03"] {
            fs::write(folder.path().join(name), "segment").expect("written");
        }
        let found = |name: &str| find(&folder.path().join(name)).expect("few").len();
        assert_eq!([found("d.E01"), found("d.E02"), found("e.E03"), found("d.e03")], [2, 1, 1, 1]);
    }
}

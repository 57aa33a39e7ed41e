//! A new recovery key, as a value: its text and its QR code, read from the file that it was written to.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use claviger_crypto::Secret;
use claviger_crypto::secret::wipe_stack;
use qrcodegen_no_heap::{QrCode, QrCodeEcc, Version};

/// The longest key, in bytes.
const LONGEST: usize = 200;

/// The largest code: 213 bytes of text.
const LARGEST: Version = Version::new(10);

/// A new recovery key.
pub struct Recovery {
    /// Its file.
    pub file: PathBuf,
    text: Secret,
    /// A byte for each module of the code, 1 for a dark one, row by row.
    modules: Secret,
    /// The number of modules in a row.
    pub side: usize,
}

impl Recovery {
    /// Reads it.
    ///
    /// # Errors
    /// Those of reading, and if the file holds anything else.
    pub fn read(file: &Path) -> io::Result<Self> {
        let mut room = Secret::zeroed(LONGEST + 1);
        let (mut open, mut len) = (File::open(file)?, 0);
        while len < room.len() {
            match open.read(&mut room[len..])? {
                0 => break,
                more => len += more,
            }
        }
        let text = room[..len].trim_ascii();
        if text.is_empty() || len > LONGEST || !text.is_ascii() {
            return Err(io::Error::other("this is not a recovery key"));
        }
        let text = Secret::copy_from(text);
        let (modules, side) = code(&text);
        wipe_stack();
        Ok(Self { file: file.to_owned(), text, modules, side })
    }

    /// Its groups, two in a line.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let text = std::str::from_utf8(&self.text).unwrap_or_default();
        let group = text.find('-').map_or(text.len(), |at| at + 1);
        (0..text.len()).step_by((2 * group).max(1)).map(move |at| &text[at..text.len().min(at + 2 * group)])
    }

    /// Whether this module is dark.
    pub fn is_dark(&self, x: usize, y: usize) -> bool {
        self.modules[y * self.side + x] == 1
    }
}

#[inline(never)]
fn code(text: &Secret) -> (Secret, usize) {
    let (mut room, mut drawn) = (Secret::zeroed(LARGEST.buffer_len()), Secret::zeroed(LARGEST.buffer_len()));
    let text = std::str::from_utf8(text).expect("ASCII");
    let (least, ecc) = (Version::MIN, QrCodeEcc::Medium);
    let code = QrCode::encode_text(text, &mut room, &mut drawn, ecc, least, LARGEST, None, true).expect("a short text");
    let side = code.size() as usize;
    let mut modules = Secret::zeroed(side * side);
    for (at, module) in modules.iter_mut().enumerate() {
        *module = u8::from(code.get_module((at % side) as i32, (at / side) as i32));
    }
    (modules, side)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(contents: &[u8]) -> io::Result<Recovery> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), contents).expect("a file");
        Recovery::read(file.path())
    }

    #[test]
    fn a_key_is_shown_in_groups_and_as_a_code() {
        let key = "235818-357951-253979-013365-241120-245575-342914-591910";
        let recovery = read(format!("{key}\n").as_bytes()).expect("a key");
        assert_eq!(
            recovery.lines().collect::<Vec<_>>(),
            ["235818-357951-", "253979-013365-", "241120-245575-", "342914-591910"]
        );
        // The corner of a finder pattern, the light ring in it, and its dark centre (ISO/IEC 18004, 6.3.3.1).
        assert!(recovery.is_dark(0, 0) && !recovery.is_dark(1, 1) && recovery.is_dark(3, 3));
        assert_eq!(recovery.side % 4, 1);
    }

    #[test]
    fn anything_else_is_none() {
        for contents in [&b""[..], b"\n", &[b'x'; LONGEST + 1], "schlüssel".as_bytes()] {
            assert!(read(contents).is_err());
        }
        assert!(Recovery::read(Path::new("/no such file")).is_err());
    }
}

//! Paths as text: bytes that are not text, or that a terminal would interpret, become `\` and three octal digits, as in
//! the kernel's /proc/self/mountinfo (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Escapes a path for printing.
pub fn escape(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str(r"\134"),
                // C1 control characters take two bytes each in UTF-8.
                c if c.is_control() => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| text.push_str(&format!("\\{b:03o}")));
                }
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| text.push_str(&format!("\\{b:03o}")));
    }
    text
}

/// Undoes [`escape`].
pub fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = |b: &u8| matches!(b, b'0'..=b'7');
        rest = match after {
            [a, b, c, after @ ..] if first == b'\\' && *a <= b'3' && [a, b, c].into_iter().all(octal) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            _ => {
                bytes.push(first);
                after
            }
        };
    }
    OsString::from_vec(bytes).into()
}

/// A path in a record.
pub mod path {
    use super::{Path, PathBuf, escape, unescape};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&escape(path))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(unescape(String::deserialize(from)?.as_bytes()))
    }
}

/// An optional path in a record.
pub mod optional_path {
    use super::{PathBuf, escape, unescape};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => to.serialize_some(&escape(path)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(|text| unescape(text.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_comes_back_and_none_touches_the_terminal() {
        for bytes in [&b"/plain"[..], b"/a b\tc\nd\\e", b"/\\040", b"/\x1b[2J", b"/\xff\xfe", "/häß\u{9b}".as_bytes()]
        {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let text = escape(&path);
            assert!(!text.contains(char::is_control), "{text}");
            assert_eq!(unescape(text.as_bytes()), path, "{text}");
        }
        assert_eq!(unescape(br"\777\04"), PathBuf::from(r"\777\04"), "no escapes");
    }
}

//! Names of files in reports.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A file's name as a member of a report, which flattens it: `FIELD` with the name as text and, only if the name is not UTF-8,
/// `FIELD_bytes` with its bytes as hexadecimal digits. JSON holds only text, from which such a name could not be restored.
#[derive(Clone, Default)]
pub struct FileName {
    field: &'static str,
    text: String,
    bytes: Option<String>,
}

impl FileName {
    /// The name for the member `field`.
    pub fn new(field: &'static str, name: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref();
        let bytes = name.to_str().is_none().then(|| base16ct::lower::encode_string(name.as_bytes()));
        Self { field, text: name.to_string_lossy().into_owned(), bytes }
    }

    /// The name for the member `path`.
    pub fn path(path: impl AsRef<OsStr>) -> Self {
        Self::new("path", path)
    }
}

impl Deref for FileName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for FileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry(self.field, &self.text)?;
        if let Some(bytes) = &self.bytes {
            members.serialize_entry(&format!("{}_bytes", self.field), bytes)?;
        }
        members.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_is_not_text_is_given_as_bytes_too() {
        let json = |name: &[u8]| serde_json::to_string(&FileName::path(OsStr::from_bytes(name))).expect("JSON");
        assert_eq!(json("\u{fc}.tc".as_bytes()), "{\"path\":\"\u{fc}.tc\"}");
        assert_eq!(json(b"\xfc.tc"), "{\"path\":\"\u{fffd}.tc\",\"path_bytes\":\"fc2e7463\"}");
    }
}

//! Published test vectors: files with expected results, in folders below this crate's `vectors/`.
//!
//! A file has records separated by blank lines, and a record has lines `field = value`. A long value continues on
//! indented lines. `#` starts a comment line; those at the top name the source. Bytes are hexadecimal digits, a text in
//! quotation marks, or `counting N`: N bytes that count from 00 to ff repeatedly.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// One record of a file. The accessors panic with the file and the line of an error.
pub struct Vector {
    file: PathBuf,
    line: usize,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    value: String,
    line: usize,
    read: Cell<bool>,
}

/// Every record of every file in a folder, sorted by file name.
///
/// # Panics
/// If there is none, or a file cannot be parsed.
pub fn load(folder: &str) -> Vec<Vector> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("a folder that can be listed").path()).collect();
    files.sort();
    let vectors: Vec<Vector> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let name = file.strip_prefix(folder.parent().expect("it is below vectors/")).expect("it is below, too");
            parse(name, &text).unwrap_or_else(|e| panic!("{e}"))
        })
        .collect();
    assert!(!vectors.is_empty(), "{}: no vectors", folder.display());
    vectors
}

/// Hexadecimal bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Vector {
    /// A field's text.
    pub fn text(&self, name: &str) -> &str {
        &self.field(name).value
    }

    /// A field's bytes.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.bytes_or_none(name).unwrap_or_else(|| self.missing(name))
    }

    /// A field's bytes, if the field exists.
    pub fn bytes_or_none(&self, name: &str) -> Option<Vec<u8>> {
        let field = self.find(name)?;
        Some(parse_bytes(&field.value).unwrap_or_else(|| self.wrong(field, "bytes")))
    }

    /// A field's number, decimal or hexadecimal with `0x`.
    pub fn number(&self, name: &str) -> u64 {
        let field = self.field(name);
        let parsed = match field.value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => field.value.parse(),
        };
        parsed.unwrap_or_else(|_| self.wrong(field, "a number"))
    }

    /// A field's number, or `default` if the field is missing.
    pub fn number_or(&self, name: &str, default: u64) -> u64 {
        if self.fields.iter().any(|f| f.name == name) { self.number(name) } else { default }
    }

    /// Call this after reading everything: a field that nothing reads is a mistake.
    pub fn finish(&self) {
        if let Some(field) = self.fields.iter().find(|f| !f.read.get()) {
            panic!("{}:{}: nothing reads the field {}", self.file.display(), field.line, field.name);
        }
    }

    fn find(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name).inspect(|f| f.read.set(true))
    }

    fn field(&self, name: &str) -> &Field {
        self.find(name).unwrap_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> ! {
        panic!("{self}: no field {name}")
    }

    fn wrong(&self, field: &Field, expected: &str) -> ! {
        panic!("{}:{}: {} is not {expected}", self.file.display(), field.line, field.name)
    }
}

/// The file and the line at which the record starts.
impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

fn parse(file: &Path, text: &str) -> Result<Vec<Vector>, String> {
    let mut vectors: Vec<Vector> = Vec::new();
    let mut between = true;
    for (line, content) in (1..).zip(text.lines()) {
        let wrong = |what: &str| format!("{}:{line}: {what}", file.display());
        if line == 1 && !content.starts_with('#') {
            return Err(wrong("the file does not start with a comment that names its source"));
        }
        if content.starts_with('#') {
            continue;
        }
        if content.trim().is_empty() {
            between = true;
            continue;
        }
        if content.starts_with(char::is_whitespace) {
            let open = if between { None } else { vectors.last_mut().and_then(|v| v.fields.last_mut()) };
            let field = open.ok_or_else(|| wrong("an indented line without a field to continue"))?;
            field.value.push_str(content.trim());
            continue;
        }
        let (name, value) = content.split_once('=').ok_or_else(|| wrong("neither `field = value` nor a comment"))?;
        if between {
            vectors.push(Vector { file: file.to_owned(), line, fields: Vec::new() });
            between = false;
        }
        let fields = &mut vectors.last_mut().expect("one was pushed before the first field").fields;
        let name = name.trim().to_owned();
        if fields.iter().any(|f| f.name == name) {
            return Err(wrong(&format!("a second field {name} in the same record")));
        }
        fields.push(Field { name, value: value.trim().to_owned(), line, read: Cell::new(false) });
    }
    Ok(vectors)
}

fn parse_bytes(value: &str) -> Option<Vec<u8>> {
    if let Some(text) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
        return Some(text.as_bytes().to_vec());
    }
    if let Some(len) = value.strip_prefix("counting ") {
        return Some((0..=255).cycle().take(len.parse().ok()?).collect());
    }
    let nibble = |digit: u8| (digit as char).to_digit(16).map(|d| d as u8);
    let (pairs, odd) = value.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn parsed(text: &str) -> Result<Vec<Vector>, String> {
        parse(Path::new("aes/x.txt"), text)
    }

    #[test]
    fn records_fields_and_comments() {
        let vectors =
            parsed("# Source\nkey = 00ff\nsector = 0x10\n\n# more\n\nkey = 12\n  34\ntext = \"a=b\"\n").unwrap();
        assert_eq!(vectors.len(), 2);
        assert_eq!((vectors[0].bytes("key"), vectors[0].number("sector")), (vec![0, 255], 16));
        assert_eq!(vectors[0].number_or("times", 7), 7);
        vectors[0].finish();
        assert_eq!((vectors[1].bytes("key"), vectors[1].bytes("text")), (vec![0x12, 0x34], b"a=b".to_vec()));
        assert_eq!(vectors[1].to_string(), "aes/x.txt:7");
        assert_eq!(parse_bytes("counting 258").unwrap()[254..], [254, 255, 0, 1]);
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let error = |text| parsed(text).err().expect("a mistake");
        assert_eq!(error("# S\nkey = 00\nnonsense\n"), "aes/x.txt:3: neither `field = value` nor a comment");
        assert_eq!(error("# S\n\n  00\n"), "aes/x.txt:3: an indented line without a field to continue");
        assert_eq!(error("# S\nkey = 00\nkey = 01\n"), "aes/x.txt:3: a second field key in the same record");
        assert!(error("key = 00\n").contains("names its source"));

        let vector = &parsed("# S\n\nkey = 0g\nsector = x\n").unwrap()[0];
        let panic = |f: &dyn Fn()| {
            let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("a mistake");
            *panic.downcast::<String>().expect("a formatted message")
        };
        assert!(panic(&|| drop(vector.bytes("key"))).starts_with("aes/x.txt:3: key is not bytes"));
        assert_eq!(panic(&|| drop(vector.number("sector").to_string())), "aes/x.txt:4: sector is not a number");
        assert_eq!(panic(&|| drop(vector.bytes("key2"))), "aes/x.txt:3: no field key2");
        let unread = &parsed("# S\ntimes = 3\n").unwrap()[0];
        assert_eq!(panic(&|| unread.finish()), "aes/x.txt:2: nothing reads the field times");
    }
}

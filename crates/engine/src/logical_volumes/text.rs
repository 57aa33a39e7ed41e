//! LVM2's metadata text: sections of names and values. Source: lvm.conf(5), and lvm2's libdm/libdm-config.c for the syntax of names
//! and numbers.
//!
//! ```text
//! vg { id = "ELWuxp-…"  extent_size = 8192      # a comment
//!      logical_volumes { root { segment1 { stripes = ["pv0", 0] } } } }
//! ```

use std::collections::BTreeMap;

/// The deepest nesting of sections: a volume group has at most five levels.
const DEEPEST: usize = 16;

/// An error, and its offset in the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub at: usize,
    pub what: String,
}

#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Number(i64),
    Text(String),
    List(Vec<Value>),
    /// A number that is not whole; no value used here has one.
    Other,
}

#[derive(Debug, PartialEq)]
enum Entry {
    Value(Value),
    Section(Section),
}

/// Names, each with a value or a section.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Section(BTreeMap<String, Entry>);

impl Section {
    pub fn value(&self, name: &str) -> Option<&Value> {
        match self.0.get(name)? {
            Entry::Value(value) => Some(value),
            Entry::Section(_) => None,
        }
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        match self.0.get(name)? {
            Entry::Section(section) => Some(section),
            Entry::Value(_) => None,
        }
    }

    /// The sections, with their names.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.0.iter().filter_map(|(name, entry)| match entry {
            Entry::Section(section) => Some((&**name, section)),
            Entry::Value(_) => None,
        })
    }

    /// The values, with their names.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().filter_map(|(name, entry)| match entry {
            Entry::Value(value) => Some((&**name, value)),
            Entry::Section(_) => None,
        })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// `None` also for a negative number, because no value used here is negative.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The texts of a list, or a single text.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        self.value(name).map(Value::texts).unwrap_or_default()
    }
}

impl Value {
    /// The texts of a list, or the single text.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(values) => values.iter().flat_map(Self::texts).collect(),
            Self::Number(_) | Self::Other => Vec::new(),
        }
    }
}

/// Parses the text up to its end or to a zero byte.
pub(super) fn parse(text: &[u8]) -> Result<Section, Wrong> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let mut reader = Reader { text: &text[..end], at: 0 };
    reader.section(0)
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn wrong<T>(&self, what: &str) -> Result<T, Wrong> {
        Err(Wrong { at: self.at, what: what.to_owned() })
    }

    /// The next byte that is neither blank nor in a comment.
    fn next(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'#' => self.at += self.text[self.at..].iter().take_while(|byte| **byte != b'\n').count(),
                byte if byte.is_ascii_whitespace() => self.at += 1,
                byte => return Some(*byte),
            }
        }
        None
    }

    /// The entries up to the closing brace, or those of the whole text.
    fn section(&mut self, depth: usize) -> Result<Section, Wrong> {
        let mut section = Section::default();
        loop {
            match self.next() {
                None if depth == 0 => return Ok(section),
                Some(b'}') if depth > 0 => {
                    self.at += 1;
                    return Ok(section);
                }
                None => return self.wrong("a section is not closed"),
                Some(_) => {}
            }
            let name = self.name()?;
            let entry = match self.next() {
                Some(b'=') => {
                    self.at += 1;
                    Entry::Value(self.value()?)
                }
                Some(b'{') if depth == DEEPEST => return self.wrong("sections are nested too deep"),
                Some(b'{') => {
                    self.at += 1;
                    Entry::Section(self.section(depth + 1)?)
                }
                _ => return self.wrong("a name has no value"),
            };
            if section.0.insert(name, entry).is_some() {
                return self.wrong("a name occurs twice in a section");
            }
        }
    }

    fn name(&mut self) -> Result<String, Wrong> {
        let usual = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_.+-/".contains(byte);
        let len = self.text[self.at..].iter().take_while(usual).count();
        if len == 0 {
            return self.wrong("a name was expected");
        }
        Ok(self.take(len))
    }

    fn take(&mut self, len: usize) -> String {
        let taken = String::from_utf8_lossy(&self.text[self.at..self.at + len]).into_owned();
        self.at += len;
        taken
    }

    fn value(&mut self) -> Result<Value, Wrong> {
        match self.next() {
            Some(b'[') => {
                self.at += 1;
                self.list().map(Value::List)
            }
            _ => self.scalar(),
        }
    }

    /// The values up to the closing bracket. A comma after the last one is allowed.
    fn list(&mut self) -> Result<Vec<Value>, Wrong> {
        let mut values = Vec::new();
        loop {
            if self.next() == Some(b']') {
                self.at += 1;
                return Ok(values);
            }
            values.push(self.scalar()?);
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b']') => {}
                _ => return self.wrong("a list is not closed"),
            }
        }
    }

    fn scalar(&mut self) -> Result<Value, Wrong> {
        match self.next() {
            Some(b'"') => self.quoted().map(Value::Text),
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => self.number(),
            _ => self.wrong("a value was expected"),
        }
    }

    /// A quoted text. A backslash escapes a quotation mark or a backslash.
    fn quoted(&mut self) -> Result<String, Wrong> {
        self.at += 1;
        let mut bytes = Vec::new();
        while let Some(byte) = self.text.get(self.at) {
            self.at += 1;
            match (byte, self.text.get(self.at)) {
                (b'"', _) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                (b'\\', Some(escaped @ (b'"' | b'\\'))) => {
                    bytes.push(*escaped);
                    self.at += 1;
                }
                (byte, _) => bytes.push(*byte),
            }
        }
        self.wrong("a quoted text is not closed")
    }

    fn number(&mut self) -> Result<Value, Wrong> {
        let usual = |byte: &&u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let len = self.text[self.at..].iter().take_while(usual).count();
        let text = self.take(len);
        match (text.parse(), text.parse::<f64>()) {
            (Ok(number), _) => Ok(Value::Number(number)),
            (Err(_), Ok(_)) if text.contains('.') => Ok(Value::Other),
            _ => self.wrong("a number is invalid or too large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lvm_writes_is_read() {
        let text = b"# Generated\nvg{ id = \"a-b\"\tn=7 m = -1 f = 1.5\nlist = [\"x\", 3,] none = []\n\
                     s1 { q = \"say \\\"hi\\\" \\\\ \\n\" } } # end\ncontents = \"Text\"\n\0garbage {";
        let all = parse(text).expect("a text");
        assert_eq!(all.text("contents"), Some("Text"));
        let vg = all.section("vg").expect("a section");
        assert_eq!(
            (vg.text("id"), vg.number("n"), vg.number("m"), vg.number("id")),
            (Some("a-b"), Some(7), None, None)
        );
        assert_eq!((vg.value("f"), vg.value("s1"), vg.section("n")), (Some(&Value::Other), None, None));
        assert_eq!(vg.value("list"), Some(&Value::List(vec![Value::Text("x".into()), Value::Number(3)])));
        assert_eq!((vg.texts("list"), vg.texts("id"), vg.texts("none")), (vec!["x"], vec!["a-b"], vec![]));
        assert_eq!(vg.section("s1").and_then(|s| s.text("q")), Some("say \"hi\" \\ \\n"));
        assert_eq!(vg.sections().map(|(name, _)| name).collect::<Vec<_>>(), ["s1"]);
        assert_eq!(vg.values().count(), 6);
    }

    #[test]
    fn what_is_no_such_text_is_refused() {
        let deep = "a {".repeat(DEEPEST + 1) + &"}".repeat(DEEPEST + 1);
        for wrong in [
            "a",
            "a b",
            "a =",
            "= 1",
            "a = }",
            "a {",
            "}",
            "a { } }",
            "a = [1",
            "a = [1 2]",
            "a = [[1]]",
            "a = [,]",
            "a = \"open",
            "a = \"open\\\"",
            "a = 99999999999999999999",
            "a = 1-2",
            "a = -",
            "a = 1 a = 2",
            "a { } a = 2",
            "a = bare",
            "\u{e4} = 1",
            &deep,
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(parse(b"").map(|s| s.values().count()), Ok(0));
        let fits = "a {".repeat(DEEPEST) + &"}".repeat(DEEPEST);
        assert!(parse(fits.as_bytes()).is_ok());
    }
}

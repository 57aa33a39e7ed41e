//! Core Storage's property lists: XML without a declaration, in which a value may refer to an earlier one by its number (libfvde,
//! "FileVault Drive Encryption (FVDE)", section "Metadata block data type 0x0019").
//!
//! They are scanned, not validated: real ones need not be valid (same section). Unknown parts are skipped, and elements left open
//! at the end count as closed there.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The deepest supported nesting. Real lists have 5 levels.
const DEEPEST: usize = 64;

/// A property list: its values, which refer to each other by index.
#[derive(Default)]
pub(super) struct Plist(Vec<Node>);

enum Node {
    Dict(Vec<(String, usize)>),
    Array,
    /// A value, as text.
    Text(String),
    /// A reference to a value that does not exist.
    Dangling,
}

/// A dictionary in a list.
#[derive(Clone, Copy)]
pub(super) struct Dict<'a> {
    plist: &'a Plist,
    entries: &'a [(String, usize)],
}

impl Plist {
    /// Parses a list. `None` if it is nested too deeply.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Scanner::default().scan(&String::from_utf8_lossy(&bytes[..end]))
    }

    /// Returns every dictionary in it, the outer ones first.
    pub fn dicts(&self) -> impl Iterator<Item = Dict<'_>> {
        self.0.iter().filter_map(|node| match node {
            Node::Dict(entries) => Some(Dict { plist: self, entries }),
            _ => None,
        })
    }

    /// Returns the first value called `key` in any dictionary.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.dicts().find_map(|dict| dict.text(key))
    }

    /// Returns the first number called `key` in any dictionary.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.dicts().find_map(|dict| dict.number(key))
    }
}

impl<'a> Dict<'a> {
    /// Returns a value as text.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        let (_, value) = self.entries.iter().find(|(name, _)| name == key)?;
        match self.plist.0.get(*value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a number: hexadecimal if it begins with `0x`, otherwise decimal.
    pub fn number(&self, key: &str) -> Option<u64> {
        let text = self.text(key)?.trim();
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// Returns bytes, if they exist and are not damaged.
    pub fn data(&self, key: &str) -> Option<Vec<u8>> {
        let digits: String = self.text(key)?.split_ascii_whitespace().collect();
        STANDARD.decode(digits).ok().filter(|bytes| !bytes.is_empty())
    }
}

#[derive(Default)]
struct Scanner {
    nodes: Vec<Node>,
    /// The open dictionaries and arrays.
    open: Vec<Open>,
    /// The open value or key, and where its text begins.
    leaf: Option<Leaf>,
    /// Indices of values by their numbers.
    numbered: HashMap<String, usize>,
}

struct Open {
    node: usize,
    /// The key of the next value.
    key: Option<String>,
}

struct Leaf {
    key: bool,
    number: Option<String>,
    from: usize,
}

impl Scanner {
    fn scan(mut self, text: &str) -> Option<Plist> {
        let mut at = 0;
        while let Some(start) = text[at..].find('<').map(|found| at + found) {
            let rest = &text[start..];
            let tag = if rest.starts_with("<!--") { rest.find("-->").map(|end| end + 3) } else { end_of_tag(rest) };
            let Some(len) = tag else { break };
            if let Some(leaf) = self.leaf.take_if(|_| !rest.starts_with("<!")) {
                self.close_leaf(leaf, text, start);
            }
            at = start + len;
            if !self.tag(rest[1..len - 1].trim(), at) {
                return None;
            }
        }
        Some(Plist(self.nodes))
    }

    /// Processes a tag, the part between `<` and `>`; text begins at `behind`. Returns false if the nesting is too deep.
    fn tag(&mut self, tag: &str, behind: usize) -> bool {
        let (inside, empty) = tag.strip_suffix('/').map_or((tag, false), |inside| (inside, true));
        let name = inside.split_ascii_whitespace().next().unwrap_or_default();
        match name {
            "dict" | "array" => {
                let node = if name == "dict" { Node::Dict(Vec::new()) } else { Node::Array };
                let node = self.add(node, attribute(inside, "ID"));
                if !empty {
                    self.open.push(Open { node, key: None });
                }
            }
            "/dict" | "/array" => drop(self.open.pop()),
            "key" | "string" | "integer" | "data" | "date" | "real" => {
                let leaf =
                    Leaf { key: name == "key", number: attribute(inside, "ID").map(str::to_owned), from: behind };
                if empty {
                    self.close_leaf(leaf, "", 0);
                } else {
                    self.leaf = Some(leaf);
                }
            }
            "true" | "false" => drop(self.add(Node::Text(name.to_owned()), attribute(inside, "ID"))),
            "reference" => {
                let place = attribute(inside, "IDREF").and_then(|number| self.numbered.get(number).copied());
                let place = place.unwrap_or_else(|| {
                    self.nodes.push(Node::Dangling);
                    self.nodes.len() - 1
                });
                self.put(place);
            }
            _ => {}
        }
        self.open.len() <= DEEPEST
    }

    fn close_leaf(&mut self, leaf: Leaf, text: &str, end: usize) {
        let content = text.get(leaf.from..end).unwrap_or_default();
        let content = unescaped(content).into_owned();
        match self.open.last_mut().filter(|_| leaf.key) {
            Some(open) => open.key = Some(content),
            None => drop(self.add(Node::Text(content), leaf.number.as_deref())),
        }
    }

    /// Adds a value at the current position and returns its index.
    fn add(&mut self, node: Node, number: Option<&str>) -> usize {
        let place = self.nodes.len();
        self.nodes.push(node);
        if let Some(number) = number {
            self.numbered.insert(number.to_owned(), place);
        }
        self.put(place);
        place
    }

    /// Puts a value into the open dictionary.
    fn put(&mut self, place: usize) {
        let Some(open) = self.open.last_mut() else { return };
        if let (Some(Node::Dict(entries)), Some(key)) = (self.nodes.get_mut(open.node), open.key.take()) {
            entries.push((key, place));
        }
    }
}

/// Returns the length of the tag in front: a `>` in quotes does not end it.
fn end_of_tag(rest: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in rest.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

/// Returns the value of an attribute.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    tag.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim_matches(['"', '\'']))
}

/// Resolves XML's escapes in a text.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        // The longest character reference is that of U+10FFFF.
        let end = rest.bytes().take(12).position(|byte| byte == b';');
        let meant = end.and_then(|end| character(&rest[1..end]));
        plain.push(meant.unwrap_or('&'));
        rest = &rest[end.filter(|_| meant.is_some()).unwrap_or(0) + 1..];
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Returns the character of an XML entity.
fn character(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let digits = name.strip_prefix('#')?;
            let code = match digits.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => digits.parse(),
            };
            char::from_u32(code.ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "<dict ID=\"0\"><key>users</key><array ID=\"1\"><dict ID=\"2\"><key>box</key><data ID=\"3\">\n  AQID\n BA==</data>\
        <key>type</key><integer size=\"32\" ID=\"4\">0x10000001</integer><key>name</key><string ID=\"5\">A &lt;&#233;&amp;b&gt; &no</string>\
        <key>hint</key><reference IDREF=\"5\"/></dict></array><key>size</key><integer>512</integer><key>none</key><data/></dict>\0rest";

    #[test]
    fn values_are_found_by_their_names() {
        let list = Plist::parse(LIST.as_bytes()).expect("a list");
        assert_eq!(
            (list.number("size"), list.number("type"), list.text("none")),
            (Some(512), Some(0x1000_0001), Some(""))
        );
        let user = list.dicts().find(|dict| dict.text("box").is_some()).expect("the user");
        assert_eq!(user.data("box").as_deref(), Some(&[1, 2, 3, 4][..]));
        assert_eq!((user.text("name"), user.text("hint")), (Some("A <é&b> &no"), Some("A <é&b> &no")));
        assert_eq!((list.text("users"), list.dicts().count()), (None, 2));
    }

    #[test]
    fn what_is_not_valid_is_passed_over() {
        // A list truncated anywhere still has what came before.
        for end in 0..LIST.len() {
            let list = Plist::parse(&LIST.as_bytes()[..end]).expect("a list");
            assert_eq!(
                list.number("type").is_some(),
                end >= LIST.find("</integer>").expect("it is there") + 10,
                "{end}"
            );
        }
        for odd in [
            "",
            "<",
            "<dict>",
            "</dict></array>",
            "<key>k<string>v",
            "<reference IDREF=\"9\"/>",
            "<dict><key>k</key><reference/>",
        ] {
            assert!(Plist::parse(odd.as_bytes()).is_some_and(|list| list.text("k").is_none()), "{odd}");
        }
        let odd =
            "<?xml version='1.0'?><!DOCTYPE plist \"a>b\"><!-- <dict> --><plist><dict x='>'><key>k</key><real>1</real>";
        assert_eq!(Plist::parse(odd.as_bytes()).and_then(|list| list.number("k")), Some(1));
        assert_eq!(
            Plist::parse(b"<dict><key>k</key><data>!!</data>").and_then(|list| list.dicts().next()?.data("k")),
            None
        );
    }

    #[test]
    fn nesting_has_an_end() {
        assert!(Plist::parse("<array>".repeat(DEEPEST).as_bytes()).is_some());
        for tag in ["<array>", "<dict>", "<dict><key>k</key>"] {
            assert!(Plist::parse(tag.repeat(10_000).as_bytes()).is_none(), "{tag}");
        }
    }
}

//! ASN.1 in key and certificate files (ITU-T X.690): reads BER, because some programs write it, and writes DER.
//!
//! Reading copies nothing, so secrets stay in place. A structure is read in the order of its fields.

use std::borrow::Cow;

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// Tags (X.690, 8.1.2; X.680, table 1).
pub mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const BITS: u8 = 0x03;
    pub const OCTETS: u8 = 0x04;
    pub const NULL: u8 = 0x05;
    pub const OID: u8 = 0x06;
    pub const UTF8: u8 = 0x0c;
    pub const UTC_TIME: u8 = 0x17;
    pub const TIME: u8 = 0x18;
    pub const BMP: u8 = 0x1e;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
    /// Context-specific, primitive and constructed.
    pub const CONTEXT_0_PRIMITIVE: u8 = 0x80;
    pub const CONTEXT_0: u8 = 0xa0;
    pub const CONTEXT_3: u8 = 0xa3;
    /// The bit that marks a constructed value.
    pub const CONSTRUCTED: u8 = 0x20;
}

/// The deepest nesting of values of indefinite length, and of constructed strings.
const DEPTH: usize = 16;

/// A value.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Its tag.
    pub tag: u8,
    /// Its contents.
    pub content: &'a [u8],
    /// The whole value, with tag and length.
    pub whole: &'a [u8],
    /// The offset of the contents in the outermost value.
    at: usize,
}

/// A sequence of values.
#[derive(Clone)]
pub struct DerReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> DerReader<'a> {
    /// Reads values from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Whether no value is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The tag of the next value, if there is one.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// Returns the next value, with any tag.
    ///
    /// # Errors
    /// `Malformed`, naming `field`, if no value is left or it is incomplete.
    pub fn any(&mut self, field: &'static str) -> Result<Item<'a>> {
        let item = split(self.bytes, self.at, DEPTH).ok_or_else(|| self.damaged(field, "the value is incomplete"))?;
        self.bytes = &self.bytes[item.whole.len()..];
        self.at += item.whole.len();
        Ok(item)
    }

    /// Returns the next value, which must have that tag.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn expect(&mut self, tag: u8, field: &'static str) -> Result<Item<'a>> {
        match self.peek() {
            Some(found) if found == tag => self.any(field),
            Some(found) => Err(self.damaged(field, format!("a value of type {found:#04x}, not {tag:#04x}"))),
            None => Err(self.damaged(field, "it is missing")),
        }
    }

    /// Returns the next value if it has that tag.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn optional(&mut self, tag: u8, field: &'static str) -> Result<Option<Item<'a>>> {
        (self.peek() == Some(tag)).then(|| self.any(field)).transpose()
    }

    /// Reads inside the next value, which must have that tag.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn inside(&mut self, tag: u8, field: &'static str) -> Result<Self> {
        Ok(self.expect(tag, field)?.reader())
    }

    /// Reads inside the next value, which must be a sequence.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn sequence(&mut self, field: &'static str) -> Result<Self> {
        self.inside(tag::SEQUENCE, field)
    }

    /// The bytes of a non-negative integer, most significant byte first.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn integer(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let item = self.expect(tag::INTEGER, field)?;
        match item.content.first() {
            Some(first) if first & 0x80 == 0 => Ok(item.content),
            _ => Err(self.damaged(field, "an empty or negative number")),
        }
    }

    /// An integer of up to 32 bits.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn small(&mut self, field: &'static str) -> Result<u32> {
        let bytes = self.integer(field)?;
        let number = bytes.iter().try_fold(0u32, |sum, byte| Some(sum.checked_mul(256)? + u32::from(*byte)));
        number.ok_or_else(|| self.damaged(field, "too large a number"))
    }

    /// An object identifier, encoded.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn oid(&mut self, field: &'static str) -> Result<&'a [u8]> {
        Ok(self.expect(tag::OID, field)?.content)
    }

    /// An octet string. BER may split it into pieces.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn octets(&mut self, field: &'static str) -> Result<Cow<'a, [u8]>> {
        let tag = match self.peek() {
            Some(tag) if tag == tag::OCTETS | tag::CONSTRUCTED => tag,
            _ => tag::OCTETS,
        };
        self.expect(tag, field)?.octets(field)
    }

    /// A bit string that consists of whole bytes.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn bits(&mut self, field: &'static str) -> Result<&'a [u8]> {
        match self.expect(tag::BITS, field)?.content {
            [0, bytes @ ..] => Ok(bytes),
            _ => Err(self.damaged(field, "not whole bytes")),
        }
    }

    /// An error at the current position.
    pub fn damaged(&self, field: &'static str, what: impl Into<String>) -> Error {
        ErrorKind::Malformed { field, offset: self.at as u64, what: what.into() }.into()
    }
}

impl<'a> Item<'a> {
    /// Reads the values inside.
    pub fn reader(&self) -> DerReader<'a> {
        DerReader { bytes: self.content, at: self.at }
    }

    /// The contents of a string, with its pieces joined.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn octets(&self, field: &'static str) -> Result<Cow<'a, [u8]>> {
        if self.tag & tag::CONSTRUCTED == 0 {
            return Ok(Cow::Borrowed(self.content));
        }
        let mut all = Vec::new();
        let mut pieces = self.reader();
        while !pieces.is_empty() {
            // Nested pieces are legal, but no program writes them.
            all.extend_from_slice(pieces.expect(tag::OCTETS, field)?.content);
        }
        Ok(Cow::Owned(all))
    }
}

/// The first value of `bytes`, which begin at offset `at`. `None` if it is incomplete.
fn split(bytes: &[u8], at: usize, depth: usize) -> Option<Item<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    // Tags of more than one byte do not occur in the files read here.
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    if first == 0x80 {
        return indefinite(bytes, tag, at, depth.checked_sub(1)?);
    }
    let (len, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let (digits, rest) =
                rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
    };
    let content = rest.get(..len)?;
    let before = bytes.len() - rest.len();
    Some(Item { tag, content, whole: &bytes[..before + len], at: at + before })
}

/// A value of indefinite length: it ends with an end-of-contents marker (X.690, 8.1.3.6).
fn indefinite(bytes: &[u8], tag: u8, at: usize, depth: usize) -> Option<Item<'_>> {
    if tag & tag::CONSTRUCTED == 0 {
        return None;
    }
    let mut rest = &bytes[2..];
    while rest.get(..2)? != [0, 0] {
        rest = &rest[split(rest, 0, depth)?.whole.len()..];
    }
    let len = bytes.len() - rest.len();
    Some(Item { tag, content: &bytes[2..len], whole: &bytes[..len + 2], at: at + 2 })
}

/// A value with these contents, concatenated. Wiped on drop.
pub fn value(tag: u8, contents: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let len: usize = contents.iter().map(|part| part.len()).sum();
    // Allocate the full size at once: a growing vector would leave copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(len + 6));
    out.push(tag);
    match len {
        0..0x80 => out.push(len as u8),
        _ => {
            let digits = (len as u32).to_be_bytes();
            let zeros = digits.iter().take_while(|digit| **digit == 0).count();
            out.push(0x80 | (4 - zeros) as u8);
            out.extend_from_slice(&digits[zeros..]);
        }
    }
    contents.iter().for_each(|part| out.extend_from_slice(part));
    out
}

/// A sequence.
pub fn sequence(contents: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    value(tag::SEQUENCE, contents)
}

/// A non-negative number, from its bytes, most significant byte first.
pub fn integer(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    match &bytes[zeros..] {
        [] => value(tag::INTEGER, &[&[0]]),
        digits if digits[0] & 0x80 != 0 => value(tag::INTEGER, &[&[0], digits]),
        digits => value(tag::INTEGER, &[digits]),
    }
}

/// An AlgorithmIdentifier with its parameters.
pub fn algorithm(oid: &[u8], parameters: &[u8]) -> Zeroizing<Vec<u8>> {
    sequence(&[&value(tag::OID, &[oid]), parameters])
}

/// An object identifier in dotted form.
pub fn dotted(oid: &[u8]) -> String {
    let mut numbers = Vec::new();
    let mut number = 0u64;
    for byte in oid {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            match numbers.is_empty() {
                true => numbers.extend([(number / 40).min(2), number - 40 * (number / 40).min(2)]),
                false => numbers.push(number),
            }
            number = 0;
        }
    }
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_length_come_back() {
        for len in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let contents = vec![7; len];
            let written = value(tag::OCTETS, &[&contents]);
            let mut reader = DerReader::new(&written);
            assert_eq!(&*reader.octets("it").expect("whole"), &contents[..]);
            assert!(reader.is_empty());
            let cut = DerReader::new(&written[..written.len() - 1]).any("it").expect_err("cut short");
            assert!(matches!(cut.kind, ErrorKind::Malformed { field: "it", .. }), "{cut}");
        }
    }

    #[test]
    fn ber_is_read_too() {
        // A sequence of indefinite length with a string in two pieces, then a number.
        let bytes = [0x30, 0x80, 0x24, 0x80, 4, 1, b'a', 4, 2, b'b', b'c', 0, 0, 2, 1, 5, 0, 0, 2, 1, 9];
        let mut outer = DerReader::new(&bytes);
        let mut inner = outer.sequence("it").expect("whole");
        assert_eq!(&*inner.octets("it").expect("whole"), b"abc");
        assert_eq!((inner.small("it").expect("whole"), outer.small("it").expect("whole")), (5, 9));
        assert!(inner.is_empty() && outer.is_empty());
        let deep = [0x30, 0x80].repeat(1000);
        assert!(DerReader::new(&deep).any("it").is_err());
    }

    #[test]
    fn numbers_are_not_negative() {
        for (bytes, written) in
            [(&[0u8, 0][..], &[2u8, 1, 0][..]), (&[0x80], &[2, 2, 0, 0x80]), (&[0, 1, 2], &[2, 2, 1, 2])]
        {
            assert_eq!(&**integer(bytes), written);
        }
        assert!(DerReader::new(&[2, 1, 0x80]).integer("it").is_err() && DerReader::new(&[2, 0]).integer("it").is_err());
        assert!(DerReader::new(&[2, 5, 1, 0, 0, 0, 0]).small("it").is_err());
        assert_eq!(dotted(&[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 4]), "1.3.6.1.4.1.311.10.3.4");
    }
}

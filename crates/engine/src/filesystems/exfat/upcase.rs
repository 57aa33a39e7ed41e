//! The up-case table, which makes comparing names case-insensitive (section 7.2 of the specification).

use crate::trees::damaged;
use std::io;

/// The size of the largest table, in bytes: two for each UTF-16 unit.
pub const LONGEST: u64 = 2 << 16;

/// In a compressed table, this unit precedes the number of unchanged units (7.2.5.1).
const AS_THEY_ARE: u16 = 0xffff;

/// The upper-case form of each UTF-16 unit.
pub struct UpCase(Vec<u16>);

impl UpCase {
    /// Parses a stored table, whose checksum must be `sum`.
    pub fn parse(bytes: &[u8], sum: u32) -> io::Result<Self> {
        let found = bytes.iter().fold(0u32, |sum, byte| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
        if found != sum {
            return Err(damaged("up-case table", 0, "its checksum does not match"));
        }
        let mut table: Vec<u16> = Vec::with_capacity(1 << 16);
        let mut units = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        while let Some(unit) = units.next() {
            // As the last unit of an uncompressed table, this value stands for itself.
            let many = if unit == AS_THEY_ARE && table.len() < 0xffff { units.next() } else { None };
            let begin = table.len();
            match many {
                Some(many) => table.extend((begin..begin + usize::from(many)).map(|unit| unit as u16)),
                None => table.push(unit),
            }
            if table.len() > 1 << 16 {
                return Err(damaged("up-case table", 0, "it has more than 65,536 units"));
            }
        }
        table.extend((table.len()..1 << 16).map(|unit| unit as u16));
        Ok(Self(table))
    }

    /// A replacement for a missing table: Unicode's upper-case forms that have a single unit.
    pub fn unicode() -> Self {
        let capital = |unit: u16| {
            let upper = char::from_u32(unit.into()).map(char::to_uppercase);
            match upper.map(|mut upper| (upper.next(), upper.next())) {
                Some((Some(upper), None)) => u16::try_from(u32::from(upper)).unwrap_or(unit),
                _ => unit,
            }
        };
        Self((0..=u16::MAX).map(capital).collect())
    }

    /// The up-cased UTF-16 units of a name.
    pub fn folded(&self, name: &str) -> impl Iterator<Item = u16> {
        name.encode_utf16().map(|unit| self.0[usize::from(unit)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_tables_are_read_whole_or_shortened() {
        let table = |units: &[u16]| {
            let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            let sum = bytes.iter().fold(0u32, |sum, byte| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
            assert!(UpCase::parse(&bytes, sum ^ 1).is_err());
            UpCase::parse(&bytes, sum)
        };
        let folded = |table: UpCase, name: &str| String::from_utf16(&table.folded(name).collect::<Vec<_>>());
        let short = table(&[0xffff, 0x61, 0x41, 0x42]).expect("a table");
        assert_eq!(folded(short, "abcä🦀").as_deref().ok(), Some("ABcä🦀"));
        let whole: Vec<u16> = (0..=0xffff).collect();
        assert_eq!(folded(table(&whole).expect("a table"), "aB\u{ffff}").as_deref().ok(), Some("aB\u{ffff}"));
        assert_eq!(folded(UpCase::unicode(), "Größe ñ").as_deref().ok(), Some("GRÖßE Ñ"));
        assert!(table(&[0xffff, 0xffff, 0, 0]).is_err());
    }
}

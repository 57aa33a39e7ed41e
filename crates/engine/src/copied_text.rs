//! Text with a key, as people copy it: in UTF-8 or UTF-16, with any dashes and blanks between its groups.

use claviger_crypto::Secret;

/// Stands for a dash or white space in a [`simplified`] text.
pub const BETWEEN: u8 = b'-';

/// Stands for any other character that no key has.
pub const OTHER: u8 = b'?';

/// The numbers of a key's groups, in words: each kind of recovery key with several has eight.
pub const ORDINALS: [&str; 8] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/// Returns the text with one byte for each relevant character: digits, lower-case letters, [`BETWEEN`] and [`OTHER`].
pub fn simplified(typed: &[u8]) -> Secret {
    let mut text = Secret::zeroed(typed.len());
    let mut len = 0;
    let mut put = |c: char| {
        let simple = match c {
            '0'..='9' | 'a'..='z' => c as u8,
            'A'..='Z' => c.to_ascii_lowercase() as u8,
            // Full-width digits, as in East Asian texts.
            '\u{ff10}'..='\u{ff19}' => b'0' + (c as u32 - 0xff10) as u8,
            // Invisible marks: byte order, direction and joiners.
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => return,
            '-' | '\u{ad}' | '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}' => BETWEEN,
            _ if c.is_whitespace() => BETWEEN,
            _ => OTHER,
        };
        text[len] = simple;
        len += 1;
    };
    let utf16 = |unit: u16| char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER);
    match byte_order(typed) {
        Some(from) => typed.as_chunks::<2>().0.iter().for_each(|pair| put(utf16(from(*pair)))),
        None => {
            for chunk in typed.utf8_chunks() {
                chunk.valid().chars().for_each(&mut put);
                // In Windows-1252: dashes, the no-break space and the soft hyphen.
                let dash = |byte: &u8| matches!(byte, 0x96 | 0x97 | 0xa0 | 0xad);
                chunk.invalid().iter().for_each(|byte| put(if dash(byte) { '-' } else { char::REPLACEMENT_CHARACTER }));
            }
        }
    }
    Secret::copy_from(&text[..len])
}

type FromBytes = fn([u8; 2]) -> u16;

/// Returns how to read a text in UTF-16. If there is no byte order mark, a zero is the upper byte of an ASCII character.
fn byte_order(typed: &[u8]) -> Option<FromBytes> {
    let zeros = |at: usize| typed.iter().skip(at).step_by(2).filter(|byte| **byte == 0).count() * 4 > typed.len();
    match typed {
        [0xff, 0xfe, ..] => Some(u16::from_le_bytes),
        [0xfe, 0xff, ..] => Some(u16::from_be_bytes),
        _ if zeros(1) => Some(u16::from_le_bytes),
        _ if zeros(0) => Some(u16::from_be_bytes),
        _ => None,
    }
}

//! UUIDs as text (RFC 9562), the form in LUKS headers.

use crate::error::{Error, Result};
use crate::{hex, random};

/// The number of digits between hyphens.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// Returns the UUID in lower case, as `uuid_unparse` writes it.
///
/// # Errors
/// `Misuse` for what is not a UUID.
pub(in crate::formats) fn parse(text: &str) -> Result<String> {
    let groups: Vec<_> = text.split('-').map(|group| (group.len(), group)).collect();
    let fits = groups.iter().map(|(len, _)| *len).eq(GROUPS)
        && groups.iter().all(|(_, group)| group.bytes().all(|b| b.is_ascii_hexdigit()));
    if !fits {
        return Err(Error::misuse(format!("\"{}\" is not a UUID", text.escape_debug()))
            .hint("A UUID has 32 hexadecimal digits in groups of 8-4-4-4-12."));
    }
    Ok(text.to_ascii_lowercase())
}

/// Returns a new random UUID, of version 4.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(in crate::formats) fn random() -> Result<String> {
    let mut bytes = [0; 16];
    random::fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex::digits(&bytes);
    let mut rest = digits.as_str();
    let groups = GROUPS.map(|len| {
        let (group, more) = rest.split_at(len);
        rest = more;
        group
    });
    Ok(groups.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uuids_are_uuids() {
        let text = "E67C787C-64b5-4840-b7e6-c6fc9c9610b5";
        assert_eq!(parse(text).expect("it is one"), text.to_ascii_lowercase());
        for wrong in ["", "-", "e67c787c64b54840b7e6c6fc9c9610b5", &text[1..], "g67c787c-64b5-4840-b7e6-c6fc9c9610b5"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let (one, other) = (random().expect("good"), random().expect("good"));
        assert!(one != other && parse(&one).is_ok_and(|same| same == one));
        assert_eq!((&one[14..15], "89ab".contains(&one[19..20])), ("4", true));
    }
}

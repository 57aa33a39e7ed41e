//! Bytes as text.

use std::fmt::Write;

/// Two lower-case hexadecimal digits for each byte.
pub fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A GUID as text: the first three parts are little-endian numbers (UEFI specification, appendix A).
pub fn guid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let parts = [&[*d, *c, *b, *a][..], &[*f, *e], &[*h, *g], &rest[..2], &rest[2..]];
    parts.map(digits).join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(super::digits(&[0, 0x0f, 0xa5, 0xff]), "000fa5ff");
        assert_eq!(super::digits(&[]), "");
    }
}

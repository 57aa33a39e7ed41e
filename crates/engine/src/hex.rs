//! Hexadecimal text.

/// Encodes bytes as lower-case hexadecimal digits, and decodes digits.
pub use base16ct::{lower::encode_string as digits, mixed::decode, mixed::decode_vec};

/// A GUID as text: the first three parts are little-endian numbers (UEFI specification, appendix A).
pub fn guid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let parts = [&[*d, *c, *b, *a][..], &[*f, *e], &[*h, *g], &rest[..2], &rest[2..]];
    parts.map(digits).join("-")
}

/// A UUID as text, its bytes in order (RFC 9562, section 4).
pub fn uuid(bytes: &[u8; 16]) -> String {
    [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(digits).join("-")
}

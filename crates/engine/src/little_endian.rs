//! Numbers in little-endian byte order, at offsets known to be valid.

/// Two bytes.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..][..2].try_into().expect("two bytes"))
}

/// Four bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..][..4].try_into().expect("four bytes"))
}

/// Eight bytes.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..][..8].try_into().expect("eight bytes"))
}

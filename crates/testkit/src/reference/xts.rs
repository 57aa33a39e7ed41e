//! XTS (IEEE 1619-2007, section 5) over any cipher, for data units of whole blocks.

use super::{Block, Reference};

/// Applies `cipher` (the encryption or decryption of a block) to a data unit of any multiple of 16 bytes. `tweak` is
/// the data unit's encrypted tweak.
pub fn data_unit(tweak: Block, unit: &mut [u8], cipher: impl Fn(Block) -> Block) {
    assert!(unit.len().is_multiple_of(16));
    let mut t = tweak;
    for block in unit.chunks_mut(16) {
        let masked: Block = std::array::from_fn(|i| block[i] ^ t[i]);
        let done = cipher(masked);
        for (i, byte) in block.iter_mut().enumerate() {
            *byte = done[i] ^ t[i];
        }
        t = times_alpha(t);
    }
}

/// The encrypted tweak of data unit `number` (5.1: little-endian).
pub fn tweak(key2: &dyn Reference, number: u64) -> Block {
    key2.encrypt(u128::from(number).to_le_bytes())
}

/// 5.2: a byte at a time.
fn times_alpha(a: Block) -> Block {
    let mut carry = 0;
    let mut out = a.map(|byte| {
        let doubled = byte << 1 | carry;
        carry = byte >> 7;
        doubled
    });
    if carry == 1 {
        out[0] ^= 135;
    }
    out
}

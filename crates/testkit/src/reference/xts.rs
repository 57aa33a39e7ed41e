//! XTS (IEEE 1619-2007, 5.3 and 5.4) block by block over any cipher, for sectors that are multiples of 16 bytes.

use super::{Block, Keyed};

/// One layer of a cascade.
pub struct Layer {
    /// The cipher under the data key.
    pub data: Box<dyn Keyed>,
    /// The cipher under the tweak key.
    pub tweak: Box<dyn Keyed>,
}

/// One layer of XTS over sectors of `unit` bytes. The first has the number `first`; after the greatest number comes 0.
/// `block` is the cipher under the data key, in the wanted direction, and `tweak` *encrypts* under the tweak key.
pub fn crypt(block: impl Fn(&mut Block), tweak: impl Fn(&mut Block), unit: usize, first: u64, run: &mut [u8]) {
    let tweaks = tweaks(tweak, first, run.len() / unit);
    with_tweaks(block, &tweaks, unit, run);
}

/// The encrypted tweaks of `count` sectors.
pub fn tweaks(tweak: impl Fn(&mut Block), first: u64, count: usize) -> Vec<Block> {
    let numbers = (0..count as u64).map(|i| first.wrapping_add(i));
    let encrypted = numbers.map(|number| {
        let mut t = [0; 16];
        t[..8].copy_from_slice(&number.to_le_bytes());
        tweak(&mut t);
        t
    });
    encrypted.collect()
}

/// The part of [`crypt`] that follows the encryption of the tweaks.
pub fn with_tweaks(block: impl Fn(&mut Block), tweaks: &[Block], unit: usize, run: &mut [u8]) {
    assert!(unit.is_multiple_of(16) && run.len() == unit * tweaks.len());
    for (tweak, sector) in tweaks.iter().zip(run.chunks_exact_mut(unit)) {
        let mut t = *tweak;
        for data in sector.as_chunks_mut().0 {
            xor(data, &t);
            block(data);
            xor(data, &t);
            t = times_alpha(&t);
        }
    }
}

/// Encrypts with one layer after the other, each over the whole run.
pub fn cascade_encrypt(layers: &[Layer], unit: usize, first: u64, run: &mut [u8]) {
    for layer in layers {
        crypt(|b| layer.data.encrypt(b), |t| layer.tweak.encrypt(t), unit, first, run);
    }
}

/// The inverse of [`cascade_encrypt`], with the layers in the same order.
pub fn cascade_decrypt(layers: &[Layer], unit: usize, first: u64, run: &mut [u8]) {
    for layer in layers.iter().rev() {
        crypt(|b| layer.data.decrypt(b), |t| layer.tweak.encrypt(t), unit, first, run);
    }
}

/// Section 5.2: byte 0 holds the lowest coefficients.
fn times_alpha(t: &Block) -> Block {
    let mut out = [0; 16];
    for i in 0..16 {
        let carry_in = if i == 0 { 0 } else { t[i - 1] >> 7 };
        out[i] = t[i] << 1 | carry_in;
    }
    if t[15] & 0x80 != 0 {
        out[0] ^= 0x87;
    }
    out
}

fn xor(to: &mut Block, with: &Block) {
    to.iter_mut().zip(with).for_each(|(a, b)| *a ^= b);
}

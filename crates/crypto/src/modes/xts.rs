//! XTS (IEEE 1619-2007) with one cipher or a cascade of them.
//!
//! The tweak is the sector number as a 64-bit little-endian integer, padded with zeros to 16 bytes. A cascade applies
//! one whole XTS layer after another (TrueCrypt 7.1a, `EncryptBuffer`), each with a data and a tweak key of its own.

use super::SectorCipher;
use crate::ciphers::BlockCipher;

/// Sectors whose tweaks are encrypted together: enough to fill the widest kernel's pipeline.
const TWEAK_BATCH: usize = 16;

/// A cascade works through pieces of about this size, so that each piece stays in a 32-KiB L1 cache from its first
/// cipher to its last.
const CASCADE_PIECE: usize = 8 << 10;

/// One cipher of a cascade: its data key and its tweak key.
pub struct Layer {
    /// The cipher under the data key.
    pub data: Box<dyn BlockCipher>,
    /// The same cipher under the tweak key.
    pub tweak: Box<dyn BlockCipher>,
}

/// XTS over one or more ciphers.
pub struct Xts {
    layers: Vec<Layer>,
    sector_size: usize,
}

impl Xts {
    /// `layers` in the order in which they encrypt. `sector_size` in bytes.
    ///
    /// # Panics
    /// If there is no layer, a cipher's blocks are not 16 bytes, or `sector_size` is no multiple of 16: a format's
    /// code decides all three.
    pub fn new(layers: Vec<Layer>, sector_size: usize) -> Self {
        assert!(!layers.is_empty() && sector_size > 0 && sector_size.is_multiple_of(16));
        assert!(layers.iter().all(|l| l.data.block_size() == 16 && l.tweak.block_size() == 16));
        Self { layers, sector_size }
    }

    /// Calls `each` with every piece of the run and the number of its first sector.
    fn pieces(&self, first: u64, run: &mut [u8], mut each: impl FnMut(u64, &mut [u8])) {
        debug_assert!(run.len().is_multiple_of(self.sector_size));
        let sectors = match self.layers.len() {
            1 => TWEAK_BATCH,
            _ => (CASCADE_PIECE / self.sector_size).clamp(1, TWEAK_BATCH),
        };
        let mut number = first;
        for piece in run.chunks_mut(sectors * self.sector_size) {
            each(number, piece);
            number = number.wrapping_add(sectors as u64);
        }
    }
}

impl SectorCipher for Xts {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.pieces(first, run, |number, piece| {
            for layer in &self.layers {
                layer.with_tweaks(number, piece.len() / self.sector_size, |tweaks| {
                    layer.data.xts_encrypt(tweaks, self.sector_size, piece);
                });
            }
        });
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.pieces(first, run, |number, piece| {
            for layer in self.layers.iter().rev() {
                layer.with_tweaks(number, piece.len() / self.sector_size, |tweaks| {
                    layer.data.xts_decrypt(tweaks, self.sector_size, piece);
                });
            }
        });
    }
}

impl Layer {
    /// Encrypts the tweaks of `count` sectors from `number` on, in one go, and hands them to `then`.
    fn with_tweaks(&self, number: u64, count: usize, then: impl FnOnce(&[[u8; 16]])) {
        let mut tweaks = [[0u8; 16]; TWEAK_BATCH];
        let tweaks = &mut tweaks[..count];
        for (i, tweak) in tweaks.iter_mut().enumerate() {
            tweak[..8].copy_from_slice(&number.wrapping_add(i as u64).to_le_bytes());
        }
        self.tweak.encrypt_blocks(tweaks.as_flattened_mut());
        then(tweaks);
    }
}

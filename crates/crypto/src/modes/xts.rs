//! XTS (IEEE 1619-2007) with one cipher or a cascade of them.
//!
//! The tweak is the sector number as a 64-bit little-endian integer, padded with zeros to 16 bytes. A cascade applies
//! one whole XTS layer after another (TrueCrypt 7.1a, `EncryptBuffer`), each with a data and a tweak key of its own.

use std::slice;

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

/// XTS on top of any ECB kernel: the tweaks of up to 4 KiB at a time go through a buffer on the stack, so that even a kernel
/// which works on 64 blocks at once is kept busy.
pub(crate) fn through_buffer(tweaks: &[[u8; 16]], sector: usize, run: &mut [u8], mut ecb: impl FnMut(&mut [u8])) {
    let mut masks = [0u128; 256];
    let mut sectors = tweaks.iter();
    let (mut left, mut t) = (0, 0);
    for part in run.chunks_mut(16 * masks.len()) {
        let masks = &mut masks[..part.len() / 16];
        for mask in &mut *masks {
            if left == 0 {
                t = u128::from_le_bytes(*sectors.next().expect("a tweak for each sector"));
                left = sector / 16;
            }
            *mask = t;
            t = double(t);
            left -= 1;
        }
        xor(part, masks);
        ecb(part);
        xor(part, masks);
    }
}

/// The masks of a run of sectors: for each block the value that XTS xors before and after the cipher.
pub(crate) struct Masks<'a> {
    tweaks: slice::Iter<'a, [u8; 16]>,
    /// Blocks in a sector.
    per_sector: usize,
    /// Blocks left in this sector.
    left: usize,
    next: u128,
}

impl<'a> Masks<'a> {
    /// `tweaks` are the sectors' encrypted tweaks; `sector` is in bytes.
    pub(crate) fn new(tweaks: &'a [[u8; 16]], sector: usize) -> Self {
        Self { tweaks: tweaks.iter(), per_sector: sector / 16, left: 0, next: 0 }
    }

    /// For code that takes masks but runs without.
    pub(crate) fn none() -> Self {
        Self::new(&[], 16)
    }

    /// The masks of the next `out.len() / 16` blocks.
    #[inline(always)]
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let (mut out, _) = out.as_chunks_mut::<16>();
        while !out.is_empty() {
            if self.left == 0 {
                self.left = self.per_sector;
                self.next = u128::from_le_bytes(*self.tweaks.next().expect("a tweak for each sector of the run"));
            }
            let (now, later) = out.split_at_mut(self.left.min(out.len()));
            self.left -= now.len();
            for mask in now {
                *mask = self.next.to_le_bytes();
                self.next = double(self.next);
            }
            out = later;
        }
    }
}

/// Multiplies by x in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1. `t + t`: a shift of 128 bits compiles to a slow shrd.
pub(crate) fn double(t: u128) -> u128 {
    let carry = (t as i128 >> 127) as u128;
    t.wrapping_add(t) ^ (carry & 0x87)
}

fn xor(part: &mut [u8], masks: &[u128]) {
    for (block, mask) in part.chunks_exact_mut(16).zip(masks) {
        let b = u128::from_le_bytes((&*block).try_into().expect("blocks of 16 bytes")) ^ mask;
        block.copy_from_slice(&b.to_le_bytes());
    }
}

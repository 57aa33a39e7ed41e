//! XTS (IEEE 1619-2007) with one cipher or a cascade of them.
//!
//! The tweak is the sector number as a 64-bit little-endian integer, padded with zeros to 16 bytes. A cascade applies
//! one whole XTS layer after another (TrueCrypt 7.1a, `EncryptBuffer`), each with a data and a tweak key of its own.

use super::{IvMode, SectorCipher};
use crate::ciphers::BlockCipher;

/// Sectors whose tweaks are encrypted together: enough to fill the widest kernel's pipeline.
const TWEAK_BATCH: usize = 64;

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
    /// If there is no layer, a cipher's blocks are not 16 bytes, or `sector_size` is not a multiple of 16: a format's
    /// code decides all three.
    pub fn new(layers: Vec<Layer>, sector_size: usize) -> Self {
        assert!(!layers.is_empty() && sector_size > 0 && sector_size.is_multiple_of(16));
        assert!(layers.iter().all(|l| l.data.block_size() == 16 && l.tweak.block_size() == 16));
        Self { layers, sector_size }
    }

    /// Sectors per piece.
    fn in_a_piece(&self) -> usize {
        match self.layers.len() {
            1 => TWEAK_BATCH,
            _ => (CASCADE_PIECE / self.sector_size).clamp(1, TWEAK_BATCH),
        }
    }

    /// Calls `each` with every piece of the run and the IVs of its sectors.
    fn pieces(&self, first: u64, run: &mut [u8], mut each: impl FnMut(&[[u8; 16]], &mut [u8])) {
        super::assert_whole(run, self.sector_size);
        let mut number = first;
        for piece in run.chunks_mut(self.in_a_piece() * self.sector_size) {
            let mut ivs = [[0; 16]; TWEAK_BATCH];
            let ivs = &mut ivs[..piece.len() / self.sector_size];
            for iv in &mut *ivs {
                iv[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(1);
            }
            each(ivs, piece);
        }
    }

    fn encrypt_piece(&self, ivs: &[[u8; 16]], piece: &mut [u8]) {
        for layer in &self.layers {
            layer.with_tweaks(ivs, |tweaks| layer.data.xts_encrypt(tweaks, piece.len() / ivs.len(), piece));
        }
    }

    fn decrypt_piece(&self, ivs: &[[u8; 16]], piece: &mut [u8]) {
        for layer in self.layers.iter().rev() {
            layer.with_tweaks(ivs, |tweaks| layer.data.xts_decrypt(tweaks, piece.len() / ivs.len(), piece));
        }
    }
}

impl SectorCipher for Xts {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.pieces(first, run, |ivs, piece| self.encrypt_piece(ivs, piece));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.pieces(first, run, |ivs, piece| self.decrypt_piece(ivs, piece));
    }

    /// A second layer reads the first one's results from the run.
    fn in_registers(&self) -> bool {
        matches!(&self.layers[..], [layer] if layer.data.xts_in_registers())
    }
}

/// An IV is a sector's tweak before encryption.
impl IvMode for Xts {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        let (count, sector) = (self.in_a_piece(), super::sector_of(ivs, run));
        for (ivs, piece) in ivs.chunks(count).zip(run.chunks_mut(count * sector)) {
            self.encrypt_piece(ivs, piece);
        }
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        let (count, sector) = (self.in_a_piece(), super::sector_of(ivs, run));
        for (ivs, piece) in ivs.chunks(count).zip(run.chunks_mut(count * sector)) {
            self.decrypt_piece(ivs, piece);
        }
    }

    fn in_registers(&self) -> bool {
        SectorCipher::in_registers(self)
    }
}

impl Layer {
    /// Encrypts the IVs of at most [`TWEAK_BATCH`] sectors in one go, and passes the tweaks to `then`.
    fn with_tweaks(&self, ivs: &[[u8; 16]], then: impl FnOnce(&[[u8; 16]])) {
        let mut tweaks = [[0u8; 16]; TWEAK_BATCH];
        let tweaks = &mut tweaks[..ivs.len()];
        tweaks.copy_from_slice(ivs);
        self.tweak.encrypt_blocks(tweaks.as_flattened_mut());
        then(tweaks);
    }
}

//! Several block ciphers of one block size, applied to each block in turn: again a block cipher.
//!
//! LRW volumes and the outer CBC of TrueCrypt chain blocks once around the whole cascade (TrueCrypt 7.1a,
//! Common/Crypto.c, `EncryptBufferLRW128` and `EncryptBufferCBC`). XTS applies one whole layer after another and does
//! not use this.

use crate::ciphers::{BlockCipher, Sums};
use crate::tweak::add_around;

/// A cascade works through pieces of this size, so that each piece stays in the L1 cache from its first cipher to its
/// last.
const PIECE: usize = 4 << 10;

/// Ciphers of one block size in a row, as one cipher.
pub struct Cascade(Vec<Box<dyn BlockCipher>>);

impl Cascade {
    /// `ciphers` in the order in which they encrypt.
    ///
    /// # Panics
    /// If there is no cipher or their block sizes differ: a format's table decides both.
    pub fn new(ciphers: Vec<Box<dyn BlockCipher>>) -> Self {
        let block = ciphers.first().expect("a cascade has at least one cipher").block_size();
        assert!(ciphers.iter().all(|c| c.block_size() == block), "a cascade block by block needs one block size");
        Self(ciphers)
    }
}

impl BlockCipher for Cascade {
    fn block_size(&self) -> usize {
        self.0[0].block_size()
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        for piece in blocks.chunks_mut(PIECE) {
            self.0.iter().for_each(|c| c.encrypt_blocks(piece));
        }
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        for piece in blocks.chunks_mut(PIECE) {
            self.0.iter().rev().for_each(|c| c.decrypt_blocks(piece));
        }
    }

    fn masked_encrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        match &self.0[..] {
            [alone] => alone.masked_encrypt(masks, run),
            // The mask that one cipher adds last is the one that the next would add first.
            _ => add_around(self.block_size(), masks, run, |blocks| self.encrypt_blocks(blocks)),
        }
    }

    fn masked_decrypt(&self, masks: &Sums<'_>, run: &mut [u8]) {
        match &self.0[..] {
            [alone] => alone.masked_decrypt(masks, run),
            _ => add_around(self.block_size(), masks, run, |blocks| self.decrypt_blocks(blocks)),
        }
    }
}

//! CCM (NIST SP 800-38C) as in RFC 4309: the key ends with a salt, and each nonce begins with it. dm-crypt calls it
//! `rfc4309(ccm(…))`, and authenticates the sector's number, too, but not the IV (Linux, crypto/ccm.c, `crypto_rfc4309_crypt`).

use super::sealer::{Abreast, BATCH, Beside, NUMBER, Sectors, TAG};
use crate::ciphers::BlockCipher;
use crate::secret::LockedBox;

/// Bytes of the salt and of an IV.
pub(super) const SALT: usize = 3;
pub(super) const IV: usize = 8;

/// Bytes of a block.
const BLOCK: usize = 16;

/// Bytes of each sector that are worked on together.
const PART: usize = 256;

/// Lengths of 4 bytes (SP 800-38C, A.2.1 and A.3), as counters have them.
const COUNTER_BLOCK: u8 = 4 - 1;
/// With associated data, and tags of 16 bytes.
const FIRST_BLOCK: u8 = 1 << 6 | (TAG as u8 / 2 - 1) << 3 | COUNTER_BLOCK;

pub(super) struct Ccm {
    /// With blocks of 16 bytes.
    pub cipher: Box<dyn BlockCipher>,
    pub salt: LockedBox<[u8; SALT]>,
}

impl Abreast for Ccm {
    const IV: usize = IV;

    fn process<const DECRYPT: bool>(&self, Sectors { beside, size, run }: Sectors<'_>, tags: &mut [[u8; TAG]]) {
        if DECRYPT {
            self.add_streams(beside, size, run);
        }
        self.tags(beside, size, run, tags);
        if !DECRYPT {
            self.add_streams(beside, size, run);
        }
    }
}

impl Ccm {
    /// CBC-MACs of the sectors in clear, each encrypted with the first block of its stream.
    fn tags(&self, beside: &[Beside], size: usize, run: &[u8], tags: &mut [[u8; TAG]]) {
        let mut room = [[0; PART]; BATCH];
        let mut chain = |chains: &mut [[u8; BLOCK]], part: &dyn Fn(usize, &mut [u8]), len: usize| {
            let blocks = &mut room.as_flattened_mut()[..chains.len() * len];
            blocks.chunks_mut(len).enumerate().for_each(|(sector, blocks)| part(sector, blocks));
            self.cipher.cbc_encrypt_abreast(chains, len, blocks);
            chains.iter_mut().zip(blocks.chunks(len)).for_each(|(chain, blocks)| {
                chain.copy_from_slice(&blocks[len - BLOCK..]);
            });
        };
        tags.fill([0; TAG]);
        let begin = |sector: usize, blocks: &mut [u8]| {
            let (first, second) = blocks.split_at_mut(BLOCK);
            first.copy_from_slice(&self.block(FIRST_BLOCK, &beside[sector], size));
            second.fill(0);
            second[..2].copy_from_slice(&(NUMBER as u16).to_be_bytes());
            second[2..2 + NUMBER].copy_from_slice(&beside[sector][..NUMBER]);
        };
        chain(tags, &begin, 2 * BLOCK);
        for at in (0..size).step_by(PART) {
            let part = |sector: usize, blocks: &mut [u8]| blocks.copy_from_slice(&run[sector * size + at..][..PART]);
            chain(tags, &part, PART);
        }
        let mut masks = [[0; BLOCK]; BATCH];
        let masks = &mut masks[..tags.len()];
        masks.iter_mut().zip(beside).for_each(|(mask, beside)| *mask = self.block(COUNTER_BLOCK, beside, 0));
        self.cipher.encrypt_blocks(masks.as_flattened_mut());
        let masked = tags.as_flattened_mut().iter_mut().zip(masks.as_flattened());
        masked.for_each(|(tag, mask)| *tag ^= mask);
    }

    /// Encrypts or decrypts, which is the same.
    fn add_streams(&self, beside: &[Beside], size: usize, run: &mut [u8]) {
        let mut stream = [[0; BLOCK]; 2 * PART / BLOCK];
        for (sector, beside) in run.chunks_mut(size).zip(beside) {
            for (i, part) in sector.chunks_mut(2 * PART).enumerate() {
                // Counter 0 is the tag's.
                let numbers = 1 + i * stream.len()..;
                stream.iter_mut().zip(numbers).for_each(|(block, n)| *block = self.block(COUNTER_BLOCK, beside, n));
                self.cipher.encrypt_blocks(stream.as_flattened_mut());
                part.iter_mut().zip(stream.as_flattened()).for_each(|(byte, stream)| *byte ^= stream);
            }
        }
    }

    /// Flags, nonce, and a number of four bytes.
    fn block(&self, flags: u8, beside: &Beside, number: usize) -> [u8; BLOCK] {
        let mut block = [flags; BLOCK];
        block[1..1 + SALT].copy_from_slice(&*self.salt);
        block[1 + SALT..1 + SALT + IV].copy_from_slice(&beside[NUMBER..NUMBER + IV]);
        block[1 + SALT + IV..].copy_from_slice(&(number as u32).to_be_bytes());
        block
    }
}

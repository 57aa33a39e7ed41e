//! The modes that only need a block cipher and IVs: ECB and counter mode (NIST SP 800-38A).

use super::IvMode;
use crate::ciphers::BlockCipher;

/// Bytes of key stream made at a time.
const PIECE: usize = 4 << 10;

/// Each block by itself. Equal blocks stay equal: only old volumes use it.
pub struct Ecb(pub Box<dyn BlockCipher>);

impl IvMode for Ecb {
    fn encrypt_sectors(&self, _: &[[u8; 16]], run: &mut [u8]) {
        self.0.encrypt_blocks(run);
    }

    fn decrypt_sectors(&self, _: &[[u8; 16]], run: &mut [u8]) {
        self.0.decrypt_blocks(run);
    }
}

/// A key stream of encrypted counters. The IV is the first counter, a big-endian number as long as a block (Linux,
/// crypto/ctr.c). On a disk the key stream repeats whenever a sector is rewritten: only old volumes use it.
pub struct Ctr(pub Box<dyn BlockCipher>);

impl IvMode for Ctr {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        let block = self.0.block_size();
        let mut stream = [0; PIECE];
        for (iv, sector) in ivs.iter().zip(super::sectors(ivs, run)) {
            let mut counter = u128::from_be_bytes(*iv) >> (128 - 8 * block);
            for piece in sector.chunks_mut(PIECE) {
                let stream = &mut stream[..piece.len()];
                for block in stream.chunks_exact_mut(block) {
                    block.copy_from_slice(&counter.to_be_bytes()[16 - block.len()..]);
                    counter = counter.wrapping_add(1);
                }
                self.0.encrypt_blocks(stream);
                piece.iter_mut().zip(&*stream).for_each(|(byte, key)| *byte ^= key);
            }
        }
        super::wipe(&mut stream, 0);
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.encrypt_sectors(ivs, run);
    }
}

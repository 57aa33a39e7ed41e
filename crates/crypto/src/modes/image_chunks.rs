//! Chunks of the encrypted disk images of macOS: AES in CBC mode. A chunk's IV is the beginning of HMAC-SHA1 of its number, in 32 bits
//! big-endian, with a key of its own. Source: vilefault 2007 (vfdecrypt.c, `compute_iv` and `decrypt_chunk`).

use super::{Cbc, IvMode, SectorCipher, assert_whole};
use crate::ciphers::{Acceleration, aes};
use crate::hash::SHA1;
use crate::secret::{Secret, wipe_stack};

/// Chunks whose IVs are made at a time.
const BATCH: usize = 64;

/// The chunks of an image. They are counted from 0.
pub struct ImageChunks {
    cbc: Cbc,
    iv_key: Secret,
    size: usize,
}

impl ImageChunks {
    /// Chunks of `size` bytes under `key`, whose IVs are made with `iv_key`.
    ///
    /// # Panics
    /// If AES has no keys of that size, or `size` is not whole blocks.
    pub fn new(key: &[u8], iv_key: &[u8], size: usize, with: Acceleration) -> Self {
        assert!(size > 0 && size.is_multiple_of(16), "chunks are whole blocks");
        Self { cbc: Cbc(aes::AES.with_key(key, with)), iv_key: Secret::copy_from(iv_key), size }
    }

    /// Calls `each` with groups of chunks and their IVs.
    fn batches(&self, first: u64, run: &mut [u8], each: impl Fn(&[[u8; 16]], &mut [u8])) {
        assert_whole(run, self.size);
        let mut ivs = [[0; 16]; BATCH];
        let mut number = first;
        for batch in run.chunks_mut(BATCH * self.size) {
            let ivs = &mut ivs[..batch.len() / self.size];
            for iv in &mut *ivs {
                let mut digest = [0; 20];
                SHA1.hmac(&self.iv_key, &[&(number as u32).to_be_bytes()], &mut digest);
                iv.copy_from_slice(&digest[..16]);
                number = number.wrapping_add(1);
            }
            each(ivs, batch);
        }
        wipe_stack();
    }
}

impl SectorCipher for ImageChunks {
    fn sector_size(&self) -> usize {
        self.size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| self.cbc.encrypt_sectors(ivs, batch));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.batches(first, run, |ivs, batch| self.cbc.decrypt_sectors(ivs, batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash;

    /// The definition: one chunk at a time, with the IV computed by hand.
    #[test]
    fn each_chunk_is_cbc_with_the_iv_of_its_number() {
        for (bits, size) in [(128, 512), (256, 512), (256, 4096)] {
            let key: Vec<u8> = (0..bits / 8).map(|i| i as u8 * 7).collect();
            let iv_key: Vec<u8> = (0..20).map(|i| 200 - i).collect();
            let plain: Vec<u8> = (0..size * 150).map(|i| ((i * i) >> 7) as u8).collect();
            for acceleration in [Acceleration::On, Acceleration::Off] {
                let chunks = ImageChunks::new(&key, &iv_key, size, acceleration);
                let mut run = plain.clone();
                chunks.encrypt(41, &mut run);
                for (number, (ours, plain)) in (41u32..).zip(run.chunks(size).zip(plain.chunks(size))) {
                    let mut digest = [0; 20];
                    hash::by_name("sha1").expect("a hash").hmac(&iv_key, &[&number.to_be_bytes()], &mut digest);
                    let mut chunk = plain.to_vec();
                    let iv: [u8; 16] = digest[..16].try_into().expect("16 bytes");
                    Cbc(aes::AES.with_key(&key, acceleration)).encrypt_sectors(&[iv], &mut chunk);
                    assert!(chunk == ours, "chunk {number} of {size} bytes");
                }
                chunks.decrypt(41, &mut run);
                assert!(run == plain);
            }
        }
    }
}

//! LRW (Liskov, Rivest, Wagner 2002; IEEE P1619 draft of 2004): the mode of TrueCrypt 4.1 to 4.3a, and dm-crypt's
//! `lrw-benbi`.
//!
//! Each block is xored, before and after the cipher, with T = K·i: the product of the tweak key and the block's index
//! in GF(2^128), or in GF(2^64) for ciphers with blocks of 8 bytes. Facts, each from the sources named:
//! - Tweak key, index and product are big-endian: bit 0 of the polynomial is the lowest bit of the *last* byte. The
//!   fields are x^128 + x^7 + x^2 + x + 1 and x^64 + x^4 + x^3 + x + 1 (TrueCrypt, Common/GfMul.c, the basic
//!   algorithms of its self-test; Linux, crypto/lrw.c, for 128 bits only).
//! - Blocks of 8 bytes take the first 8 bytes of the tweak key (`Gf64TabInit`).
//! - The index of a block is 1 for the first block of the data area, and 1 for the first block of the header's
//!   encrypted part too (Common/Crypto.c, `DataUnit2LRWIndex` and `DecryptBuffer`; dm-crypt's `benbi`).
//! - A cascade shares one tweak key and one T for each block: x ^ T, all the ciphers, ^ T (`EncryptBufferLRW128`). A
//!   whole LRW layer per cipher, as cryptsetup stacks them, is the same: between two layers T cancels out.

use super::{Cascade, SectorCipher, wipe};
use crate::ciphers::BlockCipher;
use crate::secret::Locked;

/// Words of masks that are made at a time: 1 KiB, enough blocks to fill the widest kernel's pipeline.
const MASK_WORDS: usize = 128;

/// LRW over one or more ciphers.
pub struct Lrw {
    cipher: Cascade,
    tweak: Tweak,
    sector_size: usize,
    index_step: u64,
}

impl Lrw {
    /// `layers` in the order in which they encrypt. `tweak_key` is as long as a block, in bytes; of a longer one the
    /// first bytes count. `sector_size` in bytes.
    ///
    /// For TrueCrypt, the `first` of [`SectorCipher`] counts sectors from the first one of the *data area*, which has
    /// number 0: neither the header in front of a normal volume nor the host in front of a hidden one counts. For
    /// dm-crypt it counts from the start of the segment plus the table's `iv_offset`. The first block of sector `n`
    /// has the index `n * (sector_size / block_size) + 1`.
    ///
    /// # Panics
    /// If there is no layer, block sizes differ or are neither 8 nor 16, the tweak key is too short, or `sector_size`
    /// is no multiple of the block size: a format's code decides all of these.
    pub fn new(layers: Vec<Box<dyn BlockCipher>>, tweak_key: &[u8], sector_size: usize) -> Self {
        let cipher = Cascade::new(layers);
        let block = cipher.block_size();
        assert!(sector_size > 0 && sector_size.is_multiple_of(block));
        let tweak = Tweak::new(block, tweak_key);
        Self { cipher, tweak, sector_size, index_step: (sector_size / block) as u64 }
    }

    /// Block indexes from one sector to the next, where that is not the number of blocks in a sector: dm-crypt with
    /// `sector_size:4096` and `iv_large_sectors` goes on by 512 / block size only, so that the indexes of neighbouring
    /// sectors overlap (drivers/md/dm-crypt.c, `crypt_iv_benbi_gen`).
    pub fn with_index_step(mut self, blocks: u64) -> Self {
        self.index_step = blocks;
        self
    }

    /// Encrypts the 448 bytes of a TrueCrypt header from offset 64 on. The indexes of the blocks start at 1.
    pub fn encrypt_header(&self, header: &mut [u8]) {
        self.blocks(1, header, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    /// The inverse of [`Lrw::encrypt_header`].
    pub fn decrypt_header(&self, header: &mut [u8]) {
        self.blocks(1, header, |blocks| self.cipher.decrypt_blocks(blocks));
    }

    /// Runs `ecb` between the two xors over whole sectors.
    fn sectors(&self, first: u64, run: &mut [u8], ecb: impl Fn(&mut [u8])) {
        debug_assert!(run.len().is_multiple_of(self.sector_size));
        let index = |sector: u64| sector.wrapping_mul(self.index_step).wrapping_add(1);
        if self.index_step == (self.sector_size / self.cipher.block_size()) as u64 {
            self.blocks(index(first), run, ecb);
        } else {
            for (i, sector) in (0u64..).zip(run.chunks_exact_mut(self.sector_size)) {
                self.blocks(index(first.wrapping_add(i)), sector, &ecb);
            }
        }
    }

    /// Runs `ecb` between the two xors over blocks of consecutive indexes.
    fn blocks(&self, index: u64, run: &mut [u8], ecb: impl Fn(&mut [u8])) {
        debug_assert!(run.len().is_multiple_of(self.cipher.block_size()));
        let mut masks = [0u64; MASK_WORDS];
        let mut index = index;
        for part in run.chunks_mut(size_of_val(&masks)) {
            let masks = &mut masks[..part.len() / 8];
            self.tweak.masks(index, masks);
            xor(part, masks);
            ecb(part);
            xor(part, masks);
            index = index.wrapping_add((part.len() / self.cipher.block_size()) as u64);
        }
        // They are linear in the tweak key.
        wipe(&mut masks, 0);
    }
}

impl SectorCipher for Lrw {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.sectors(first, run, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.sectors(first, run, |blocks| self.cipher.decrypt_blocks(blocks));
    }
}

/// Products of the tweak key, ready to be added up. Which of them are looked up depends on block indexes alone, and
/// those are public: the time is independent of the key.
struct Tweak {
    /// Words of 8 bytes in a block: 1 or 2.
    words: usize,
    /// K·x^k for each bit k of an index, then K·(1 + x + … + x^k): what changes from one index to the next where k
    /// low bits carry. Words in memory order, so that adding them to blocks needs no swapping of bytes. Blocks of 8
    /// bytes use the first half of each.
    products: Locked<[u64; 256]>,
}

impl Tweak {
    fn new(block: usize, key: &[u8]) -> Self {
        assert!(matches!(block, 8 | 16) && key.len() >= block);
        let words = block / 8;
        let products = Locked::build(|products: &mut [u64; 256]| {
            let (powers, sums) = products.split_at_mut(128);
            let (mut power, mut sum) = (0u128, 0u128);
            for k in 0..64 {
                power = match (k, block) {
                    (0, _) => key[..block].iter().fold(0, |all, byte| all << 8 | u128::from(*byte)),
                    (_, 8) => u128::from(double64(power as u64)),
                    _ => super::xts::double(power),
                };
                sum ^= power;
                for (table, value) in [(&mut *powers, power), (&mut *sums, sum)] {
                    let bytes = value.to_be_bytes();
                    let (bytes, _) = bytes[16 - block..].as_chunks();
                    for (word, bytes) in table[k * words..][..words].iter_mut().zip(bytes) {
                        *word = u64::from_ne_bytes(*bytes);
                    }
                }
            }
        });
        Self { words, products }
    }

    /// The T of consecutive blocks from `index` on.
    fn masks(&self, index: u64, masks: &mut [u64]) {
        let (powers, sums) = self.products.split_at(128);
        match self.words {
            1 => fill::<1>(powers, sums, index, masks),
            _ => fill::<2>(powers, sums, index, masks),
        }
    }
}

fn fill<const WORDS: usize>(powers: &[u64], sums: &[u64], index: u64, masks: &mut [u64]) {
    let (powers, sums) = (powers.as_chunks::<WORDS>().0, sums.as_chunks::<WORDS>().0);
    let add = |t: [u64; WORDS], u: &[u64; WORDS]| std::array::from_fn(|i| t[i] ^ u[i]);
    let bits = (0..64).filter(|k| index >> k & 1 == 1);
    let mut t = bits.fold([0; WORDS], |t, k| add(t, &powers[k]));
    let mut index = index;
    for mask in masks.as_chunks_mut::<WORDS>().0 {
        *mask = t;
        // i ^ (i + 1) has all bits up to the lowest zero of i. After the last index of all comes 0.
        t = match index.trailing_ones() {
            64 => [0; WORDS],
            carries => add(t, &sums[carries as usize]),
        };
        index = index.wrapping_add(1);
    }
}

/// Multiplies by x in GF(2^64) modulo x^64 + x^4 + x^3 + x + 1.
fn double64(t: u64) -> u64 {
    t << 1 ^ ((t as i64 >> 63) as u64 & 0x1b)
}

fn xor(part: &mut [u8], masks: &[u64]) {
    for (word, mask) in part.as_chunks_mut::<8>().0.iter_mut().zip(masks) {
        *word = (u64::from_ne_bytes(*word) ^ mask).to_ne_bytes();
    }
}

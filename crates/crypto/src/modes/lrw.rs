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

use super::{Cascade, IvMode, SectorCipher, wipe};
use crate::ciphers::BlockCipher;
use crate::secret::LockedBox;

/// Words of masks computed at a time: 1 KiB, enough blocks to fill the widest kernel's pipeline.
const MASK_WORDS: usize = 128;

/// LRW over one or more ciphers.
pub struct Lrw {
    cipher: Cascade,
    tweak: Tweak,
    sector_size: usize,
}

impl Lrw {
    /// `layers` in the order in which they encrypt. `tweak_key` is as long as a block; of a longer one only the first
    /// bytes are used. `sector_size` in bytes.
    ///
    /// For TrueCrypt, the `first` of [`SectorCipher`] counts sectors from the first one of the *data area*, which has
    /// number 0: neither the header before a normal volume nor the host before a hidden one counts. For dm-crypt it
    /// counts from the start of the segment plus the table's `iv_offset`. The first block of sector `n` has the index
    /// `n * (sector_size / block_size) + 1`.
    ///
    /// # Panics
    /// If there is no layer, block sizes differ or are neither 8 nor 16, the tweak key is too short, or `sector_size`
    /// is not a multiple of the block size: a format's code decides all of these.
    pub fn new(layers: Vec<Box<dyn BlockCipher>>, tweak_key: &[u8], sector_size: usize) -> Self {
        let cipher = Cascade::new(layers);
        let block = cipher.block_size();
        assert!(sector_size > 0 && sector_size.is_multiple_of(block));
        let tweak = Tweak::new(block, tweak_key);
        Self { cipher, tweak, sector_size }
    }

    /// Encrypts the 448 bytes of a TrueCrypt header that follow the salt. The block indexes start at 1.
    pub fn encrypt_header(&self, header: &mut [u8]) {
        self.blocks(1, header, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    /// The inverse of [`Lrw::encrypt_header`].
    pub fn decrypt_header(&self, header: &mut [u8]) {
        self.blocks(1, header, |blocks| self.cipher.decrypt_blocks(blocks));
    }

    /// The index of a sector's first block, in 64-bit arithmetic, in TrueCrypt and in `benbi` alike.
    fn index(&self, sector: u64) -> u128 {
        sector.wrapping_mul((self.sector_size / self.cipher.block_size()) as u64).wrapping_add(1).into()
    }

    /// Runs `ecb` between the two xors over sectors with an IV each.
    fn sectors(&self, ivs: &[[u8; 16]], run: &mut [u8], ecb: impl Fn(&mut [u8])) {
        for (iv, sector) in ivs.iter().zip(super::sectors(ivs, run)) {
            let index = u128::from_be_bytes(*iv) >> (128 - self.cipher.block_size() * 8);
            self.blocks(index, sector, &ecb);
        }
    }

    /// Runs `ecb` between the two xors over blocks of consecutive indexes.
    fn blocks(&self, index: u128, run: &mut [u8], ecb: impl Fn(&mut [u8])) {
        assert!(run.len().is_multiple_of(self.cipher.block_size()), "{} bytes are no whole blocks", run.len());
        let mut masks = [0u64; MASK_WORDS];
        let mut index = index;
        for part in run.chunks_mut(size_of_val(&masks)) {
            let masks = &mut masks[..part.len() / 8];
            self.tweak.masks(index, masks);
            xor(part, masks);
            ecb(part);
            xor(part, masks);
            index = index.wrapping_add((part.len() / self.cipher.block_size()) as u128);
        }
        // They are linear in the tweak key.
        wipe(&mut masks, 0);
    }
}

/// An IV is the big-endian index of its sector's first block, in as many bytes as a block has. So dm-crypt's generators
/// of IVs other than `benbi` can drive LRW too: `plain64` puts the sector's number into the *high* half of the index,
/// byte by byte from the end (Linux, crypto/lrw.c).
impl IvMode for Lrw {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.sectors(ivs, run, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.sectors(ivs, run, |blocks| self.cipher.decrypt_blocks(blocks));
    }
}

impl SectorCipher for Lrw {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        super::assert_whole(run, self.sector_size);
        self.blocks(self.index(first), run, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        super::assert_whole(run, self.sector_size);
        self.blocks(self.index(first), run, |blocks| self.cipher.decrypt_blocks(blocks));
    }
}

/// Products of the tweak key, ready to be added up. Which of them are looked up depends only on block indexes, which
/// are public, so the time is independent of the key.
///
/// Words of 8 bytes are in memory order, so that adding them to blocks needs no byte swapping.
struct Tweak {
    /// Words in a block: 1 or 2.
    words: usize,
    /// K·x^k for each bit k of an index; then K·(1 + x + … + x^k); then K·j for the indexes j below [`GROUP`]. Blocks
    /// of 8 bytes use the first half of each part.
    products: LockedBox<[u64; 2 * BITS + 2 * BITS + 2 * GROUP]>,
}

/// Bits of an index.
const BITS: usize = 128;

/// Indexes that differ only in these low bits: their T differ by a known product and are independent of each other,
/// which suits vector units. A power of two.
const GROUP: usize = 16;

impl Tweak {
    fn new(block: usize, key: &[u8]) -> Self {
        assert!(matches!(block, 8 | 16) && key.len() >= block);
        let words = block / 8;
        let products = LockedBox::build(|products: &mut [u64; _]| {
            let (powers, rest) = products.split_at_mut(2 * BITS);
            let (sums, low) = rest.split_at_mut(2 * BITS);
            let (mut power, mut sum) = (0u128, 0u128);
            for k in 0..block * 8 {
                power = match (k, block) {
                    (0, _) => key[..block].iter().fold(0, |all, byte| all << 8 | u128::from(*byte)),
                    (_, 8) => u128::from(double64(power as u64)),
                    _ => crate::tweak::double(power),
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
            for j in 1..GROUP {
                // Split into the lowest bit and the rest, whose product is already known.
                let (less, bit) = (j & (j - 1), j.trailing_zeros() as usize);
                for w in 0..words {
                    low[j * words + w] = low[less * words + w] ^ powers[bit * words + w];
                }
            }
        });
        Self { words, products }
    }

    /// The T of consecutive blocks from `index` on.
    fn masks(&self, index: u128, masks: &mut [u64]) {
        match self.words {
            1 => self.fill::<1>(index, masks),
            _ => self.fill::<2>(index, masks),
        }
    }

    fn fill<const WORDS: usize>(&self, index: u128, masks: &mut [u64]) {
        let (powers, rest) = self.products.split_at(2 * BITS);
        let [powers, sums, low] = [powers, &rest[..2 * BITS], &rest[2 * BITS..]].map(|t| t.as_chunks::<WORDS>().0);
        let add = |t: [u64; WORDS], u: &[u64; WORDS]| std::array::from_fn(|i| t[i] ^ u[i]);
        let in_group = GROUP.trailing_zeros() as usize;
        let mut skip = index as usize % GROUP;
        let mut group = index >> in_group;
        let mut t = [0; WORDS];
        let mut bits = group;
        while bits != 0 {
            t = add(t, &powers[bits.trailing_zeros() as usize + in_group]);
            bits &= bits - 1;
        }
        let mut masks = masks.as_chunks_mut::<WORDS>().0;
        while !masks.is_empty() {
            let now = masks.split_off_mut(..masks.len().min(GROUP - skip)).expect("it is not longer");
            for (mask, low) in now.iter_mut().zip(&low[skip..]) {
                *mask = add(t, low);
            }
            // g ^ (g + 1) has all bits up to the lowest zero of g. After the last group of all comes 0.
            let carries = group.trailing_ones() as usize + in_group;
            t = match carries < WORDS * 64 {
                true => add(add(t, &sums[carries]), &sums[in_group - 1]),
                false => [0; WORDS],
            };
            group = group.wrapping_add(1);
            skip = 0;
        }
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

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
use crate::ciphers::{BlockCipher, Sums};
use crate::secret::LockedBox;

/// Groups of blocks whose masks are given to a cipher at a time.
const GROUPS: usize = 32;

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
        self.encrypt_from(1, header);
    }

    /// The inverse of [`Lrw::encrypt_header`].
    pub fn decrypt_header(&self, header: &mut [u8]) {
        self.decrypt_from(1, header);
    }

    /// The index of a sector's first block, in 64-bit arithmetic, in TrueCrypt and in `benbi` alike.
    fn index(&self, sector: u64) -> u128 {
        sector.wrapping_mul((self.sector_size / self.cipher.block_size()) as u64).wrapping_add(1).into()
    }

    /// Encrypts blocks of consecutive indexes.
    fn encrypt_from(&self, index: u128, run: &mut [u8]) {
        self.blocks(index, run, |masks, blocks| self.cipher.masked_encrypt(masks, blocks));
    }

    /// The inverse of [`Lrw::encrypt_from`].
    fn decrypt_from(&self, index: u128, run: &mut [u8]) {
        self.blocks(index, run, |masks, blocks| self.cipher.masked_decrypt(masks, blocks));
    }

    /// Calls `each` with runs of sectors whose indexes are consecutive, and with the first index of each run. Usually one run has
    /// all sectors.
    fn sectors(&self, ivs: &[[u8; 16]], run: &mut [u8], each: impl Fn(u128, &mut [u8])) {
        let (sector, block) = (super::sector_of(ivs, run), self.cipher.block_size());
        let index = |iv: &[u8; 16]| u128::from_be_bytes(*iv) >> (128 - block * 8);
        let blocks = (sector / block) as u128;
        let mut rest = run;
        for ivs in ivs.chunk_by(|one, next| index(one).wrapping_add(blocks) == index(next)) {
            let now = rest.split_off_mut(..ivs.len() * sector).expect("a sector for each IV");
            each(index(&ivs[0]), now);
        }
    }

    /// Calls `crypt` with the blocks, whose indexes are consecutive, and their masks.
    fn blocks(&self, index: u128, run: &mut [u8], crypt: impl Fn(&Sums<'_>, &mut [u8])) {
        let block = self.cipher.block_size();
        assert!(run.len().is_multiple_of(block), "{} bytes are no whole blocks", run.len());
        let mut groups = [0; GROUPS];
        let mut first = index as usize % Sums::GROUP;
        let mut group = index >> IN_GROUP;
        let mut rest = run;
        while !rest.is_empty() {
            let count = GROUPS.min((first + rest.len() / block).div_ceil(Sums::GROUP));
            let len = rest.len().min((count * Sums::GROUP - first) * block);
            let now = rest.split_off_mut(..len).expect("it is not longer");
            self.tweak.groups(group, &mut groups[..count]);
            crypt(&Sums { groups: &groups[..count], places: self.tweak.places(), first }, now);
            group = group.wrapping_add(count as u128);
            first = 0;
        }
        // The masks are linear in the tweak key, hence secret.
        wipe(&mut groups, 0);
    }
}

/// An IV is the big-endian index of its sector's first block, in as many bytes as a block has. So dm-crypt's generators
/// of IVs other than `benbi` can drive LRW too: `plain64` puts the sector's number into the *high* half of the index,
/// byte by byte from the end (Linux, crypto/lrw.c).
impl IvMode for Lrw {
    fn encrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.sectors(ivs, run, |index, run| self.encrypt_from(index, run));
    }

    fn decrypt_sectors(&self, ivs: &[[u8; 16]], run: &mut [u8]) {
        self.sectors(ivs, run, |index, run| self.decrypt_from(index, run));
    }
}

impl SectorCipher for Lrw {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        super::assert_whole(run, self.sector_size);
        self.encrypt_from(self.index(first), run);
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        super::assert_whole(run, self.sector_size);
        self.decrypt_from(self.index(first), run);
    }
}

/// Products of the tweak key, ready to be added up. Which of them are looked up depends only on block indexes, which
/// are public, so the time is independent of the key.
///
/// The products are in memory order, so adding them to blocks needs no byte swapping. For blocks of 8 bytes, only their first 8
/// bytes are set.
struct Tweak {
    /// Bits of an index: as many as a block has.
    bits: usize,
    /// K·x^k for each bit k of an index; then K·(1 + x + … + x^k); then K·j for the indexes j within a group.
    products: LockedBox<[u128; 2 * BITS + Sums::GROUP]>,
}

/// The most bits of an index.
const BITS: usize = 128;

/// The number of low index bits in which the blocks of a group differ. Their values T differ by a known product.
const IN_GROUP: usize = Sums::GROUP.trailing_zeros() as usize;

impl Tweak {
    fn new(block: usize, key: &[u8]) -> Self {
        assert!(matches!(block, 8 | 16) && key.len() >= block);
        let products = LockedBox::build(|products: &mut [u128; _]| {
            let (powers, rest) = products.split_at_mut(BITS);
            let (sums, places) = rest.split_at_mut(BITS);
            let (mut power, mut sum) = (0u128, 0u128);
            for k in 0..block * 8 {
                power = match (k, block) {
                    (0, _) => key[..block].iter().fold(0, |all, byte| all << 8 | u128::from(*byte)),
                    (_, 8) => u128::from(double64(power as u64)),
                    _ => crate::tweak::double(power),
                };
                sum ^= power;
                let in_memory = |value: u128| u128::from_ne_bytes((value << (128 - block * 8)).to_be_bytes());
                (powers[k], sums[k]) = (in_memory(power), in_memory(sum));
            }
            for j in 1..Sums::GROUP {
                // Split into the lowest bit and the rest, whose product is already known.
                let (less, bit) = (j & (j - 1), j.trailing_zeros() as usize);
                places[j] = places[less] ^ powers[bit];
            }
        });
        Self { bits: block * 8, products }
    }

    fn places(&self) -> &[u128; Sums::GROUP] {
        self.products.last_chunk().expect("they are the last ones")
    }

    /// The T of the first blocks of consecutive groups.
    fn groups(&self, mut group: u128, out: &mut [u128]) {
        let (powers, sums) = self.products.split_at(BITS);
        let mut t = 0;
        // The first group follows the last one.
        let mut bits = group & (u128::MAX >> IN_GROUP);
        while bits != 0 {
            t ^= powers[bits.trailing_zeros() as usize + IN_GROUP];
            bits &= bits - 1;
        }
        for out in out {
            *out = t;
            // g ^ (g + 1) has all bits up to the lowest zero of g. After the last group of all comes 0.
            let carries = group.trailing_ones() as usize + IN_GROUP;
            t = if carries < self.bits { t ^ sums[carries] ^ sums[IN_GROUP - 1] } else { 0 };
            group = group.wrapping_add(1);
        }
    }
}

/// Multiplies by x in GF(2^64) modulo x^64 + x^4 + x^3 + x + 1.
fn double64(t: u64) -> u64 {
    t << 1 ^ ((t as i64 >> 63) as u64 & 0x1b)
}

//! AES without AES instructions: bit-sliced, in constant time.
//!
//! The state of many blocks is held as 8 planes, one for each bit of a byte. A plane has 4 rows as in FIPS 197, a row has
//! several words, and a word has a byte for each of the 4 columns, in which each of 8 blocks has one bit. ShiftRows is then a
//! rotation of words and the row rotations of MixColumns are renamings.
#![allow(unsafe_code)]
#![expect(clippy::needless_range_loop, reason = "the same index runs through several arrays")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::{BitAnd, BitXor, Not};

use super::s_box::{inverse_sub_bytes, sub_bytes};
use super::schedule::Schedule;
use crate::ciphers::{BlockCipher, Kernel, assert_blocks};
use crate::secret::Locked;

/// With vectors of the processor's base line: 32 blocks at a time.
pub(super) const SOFT: Kernel = Kernel {
    name: "bit-sliced",
    usable: || true,
    aes_instructions: false,
    constant_time: true,
    expand: |key| Box::new(Soft { keys: SlicedKeys::new(key), crypt: crypt::<Portable> }),
};

/// With AVX2: 64 blocks at a time.
#[cfg(target_arch = "x86_64")]
pub(super) const SOFT_AVX2: Kernel = Kernel {
    name: "bit-sliced-avx2",
    usable: || is_x86_feature_detected!("avx2"),
    aes_instructions: false,
    constant_time: true,
    expand: |key| {
        Box::new(Soft {
            keys: SlicedKeys::new(key),
            // SAFETY: `Kernel::with_key` asks `usable`.
            crypt: |keys, decrypt, blocks| unsafe { crypt_avx2(keys, decrypt, blocks) },
        })
    },
};

/// The most words that an implementation of [`Words`] has.
const MOST_WORDS: usize = 8;

struct Soft {
    keys: SlicedKeys,
    crypt: fn(&SlicedKeys, bool, &mut [u8]),
}

impl BlockCipher for Soft {
    fn block_size(&self) -> usize {
        16
    }
    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        (self.crypt)(&self.keys, false, blocks);
    }
    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        (self.crypt)(&self.keys, true, blocks);
    }
}

/// Round keys as planes: for each round, plane and row a word, the same for all blocks.
struct SlicedKeys {
    words: Locked<[u32; 15 * 32]>,
    rounds: usize,
}

impl SlicedKeys {
    fn new(key: &[u8]) -> Self {
        let schedule = Schedule::new(key);
        let words = Locked::build(|words: &mut [u32; 15 * 32]| {
            for (key, words) in schedule.keys.encrypt.iter().zip(words.chunks_exact_mut(32)) {
                for (plane, rows) in words.chunks_exact_mut(4).enumerate() {
                    for (row, word) in rows.iter_mut().enumerate() {
                        let byte = |column: usize| (key[4 * column + row] >> plane & 1).wrapping_neg();
                        *word = u32::from_le_bytes(std::array::from_fn(byte));
                    }
                }
            }
        });
        Self { words, rounds: schedule.rounds }
    }

    fn of_round(&self, round: usize) -> &[u32; 32] {
        self.words[32 * round..][..32].try_into().expect("32 words a round")
    }
}

/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn crypt_avx2(keys: &SlicedKeys, decrypt: bool, blocks: &mut [u8]) {
    crypt::<Avx2>(keys, decrypt, blocks);
}

/// Encrypts or decrypts `8 * WORDS` blocks at a time, the last of them padded.
#[inline(always)]
fn crypt<T: Words>(keys: &SlicedKeys, decrypt: bool, blocks: &mut [u8]) {
    let mut groups = blocks.chunks_exact_mut(128 * T::WORDS);
    for group in &mut groups {
        crypt_group::<T>(keys, decrypt, group);
    }
    let rest = groups.into_remainder();
    if !rest.is_empty() {
        let mut padded = [0u8; 128 * MOST_WORDS];
        let padded = &mut padded[..128 * T::WORDS];
        padded[..rest.len()].copy_from_slice(rest);
        crypt_group::<T>(keys, decrypt, padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

#[inline(always)]
fn crypt_group<T: Words>(keys: &SlicedKeys, decrypt: bool, group: &mut [u8]) {
    let mut state = slice::<T>(group);
    if decrypt {
        add_key(&mut state, keys.of_round(keys.rounds));
        for round in (0..keys.rounds).rev() {
            shift_rows(&mut state, true);
            sub_rows::<T, true>(&mut state);
            add_key(&mut state, keys.of_round(round));
            if round > 0 {
                // As in `schedule::inverse_mix_column`.
                precondition(&mut state);
                mix_columns(&mut state);
            }
        }
    } else {
        add_key(&mut state, keys.of_round(0));
        for round in 1..=keys.rounds {
            sub_rows::<T, false>(&mut state);
            shift_rows(&mut state, false);
            if round < keys.rounds {
                mix_columns(&mut state);
            }
            add_key(&mut state, keys.of_round(round));
        }
    }
    unslice(state, group);
}

/// `state[plane][row]`.
type State<T> = [[T; 4]; 8];

/// `WORDS` words of 32 bits that one operation works on.
trait Words: Copy + BitXor<Output = Self> + BitAnd<Output = Self> + Not<Output = Self> {
    /// How many words.
    const WORDS: usize;
    fn splat(word: u32) -> Self;
    /// Takes a word from each of `WORDS` blocks in a row.
    fn from_blocks(blocks: &[u8], column: usize) -> Self;
    /// The inverse of `from_blocks`.
    fn to_blocks(self, blocks: &mut [u8], column: usize);
    fn shift_left<const BY: i32>(self) -> Self;
    fn shift_right<const BY: i32>(self) -> Self;
}

#[derive(Clone, Copy)]
struct Portable([u32; 4]);

impl Portable {
    #[inline(always)]
    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        let [a, b, c, d] = self.0;
        Self([f(a), f(b), f(c), f(d)])
    }
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let ([a, b, c, d], [e, g, h, i]) = (self.0, other.0);
        Self([f(a, e), f(b, g), f(c, h), f(d, i)])
    }
}

impl BitXor for Portable {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }
}

impl BitAnd for Portable {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
}

impl Not for Portable {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        self.map(|a| !a)
    }
}

impl Words for Portable {
    const WORDS: usize = 4;
    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self([word; 4])
    }
    #[inline(always)]
    fn from_blocks(blocks: &[u8], column: usize) -> Self {
        Self(std::array::from_fn(|w| word_at(blocks, w, column)))
    }
    #[inline(always)]
    fn to_blocks(self, blocks: &mut [u8], column: usize) {
        for (block, word) in blocks.chunks_exact_mut(16).zip(self.0) {
            block[4 * column..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
    #[inline(always)]
    fn shift_left<const BY: i32>(self) -> Self {
        self.map(|a| a << BY)
    }
    #[inline(always)]
    fn shift_right<const BY: i32>(self) -> Self {
        self.map(|a| a >> BY)
    }
}

/// 8 words in an AVX2 register. SAFETY of every block: these are only made and used inside `crypt_avx2`, whose caller
/// vouches for AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(__m256i);

#[cfg(target_arch = "x86_64")]
impl BitXor for Avx2 {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

#[cfg(target_arch = "x86_64")]
impl BitAnd for Avx2 {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_and_si256(self.0, other.0) })
    }
}

#[cfg(target_arch = "x86_64")]
impl Not for Avx2 {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_xor_si256(self.0, _mm256_set1_epi32(-1)) })
    }
}

#[cfg(target_arch = "x86_64")]
impl Words for Avx2 {
    const WORDS: usize = 8;
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_set1_epi32(word as i32) })
    }
    #[inline(always)]
    fn from_blocks(blocks: &[u8], column: usize) -> Self {
        let mut words = [0u32; 8];
        for (w, word) in words.iter_mut().enumerate() {
            *word = word_at(blocks, w, column);
        }
        // SAFETY: see `Avx2`; the array has the size of a register.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }
    #[inline(always)]
    fn to_blocks(self, blocks: &mut [u8], column: usize) {
        let mut words = [0u32; 8];
        // SAFETY: see `Avx2`; the array has the size of a register.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        for (block, word) in blocks.chunks_exact_mut(16).zip(words) {
            block[4 * column..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
    #[inline(always)]
    fn shift_left<const BY: i32>(self) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_slli_epi32::<BY>(self.0) })
    }
    #[inline(always)]
    fn shift_right<const BY: i32>(self) -> Self {
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_srli_epi32::<BY>(self.0) })
    }
}

#[inline(always)]
fn word_at(blocks: &[u8], block: usize, column: usize) -> u32 {
    u32::from_le_bytes(blocks[16 * block + 4 * column..][..4].try_into().expect("4 bytes"))
}

#[inline(always)]
fn add_key<T: Words>(state: &mut State<T>, key: &[u32; 32]) {
    for (plane, keys) in state.iter_mut().zip(key.chunks_exact(4)) {
        for (row, key) in plane.iter_mut().zip(keys) {
            *row = *row ^ T::splat(*key);
        }
    }
}

/// The S-box, or its inverse, on every row.
#[inline(always)]
fn sub_rows<T: Words, const INVERSE: bool>(state: &mut State<T>) {
    for row in 0..4 {
        let mut planes = [state[0][row]; 8];
        for p in 1..8 {
            planes[p] = state[p][row];
        }
        let planes = if INVERSE { inverse_sub_bytes(planes) } else { sub_bytes(planes) };
        for p in 0..8 {
            state[p][row] = planes[p];
        }
    }
}

/// Moves each row to the left by as many columns as its number, or to the right. The lowest byte is column 0.
#[inline(always)]
fn shift_rows<T: Words>(state: &mut State<T>, right: bool) {
    for plane in state {
        let [_, one, two, three] = plane;
        (*one, *three) = match right {
            false => (rotate::<T, 24, 8>(*one), rotate::<T, 8, 24>(*three)),
            true => (rotate::<T, 8, 24>(*one), rotate::<T, 24, 8>(*three)),
        };
        *two = rotate::<T, 16, 16>(*two);
    }
}

#[inline(always)]
fn rotate<T: Words, const LEFT: i32, const RIGHT: i32>(words: T) -> T {
    words.shift_left::<LEFT>() ^ words.shift_right::<RIGHT>()
}

/// Multiplies every byte by x.
#[inline(always)]
fn times_x<T: Copy + BitXor<Output = T>>(a: [T; 8]) -> [T; 8] {
    [a[7], a[0] ^ a[7], a[1], a[2] ^ a[7], a[3] ^ a[7], a[4], a[5], a[6]]
}

#[inline(always)]
fn mix_columns<T: Words>(state: &mut State<T>) {
    let before = *state;
    for r in 0..4 {
        let mut sum = [before[0][r]; 8];
        for p in 0..8 {
            sum[p] = before[p][r] ^ before[p][(r + 1) % 4];
        }
        let doubled = times_x(sum);
        for p in 0..8 {
            state[p][r] = doubled[p] ^ before[p][(r + 1) % 4] ^ before[p][(r + 2) % 4] ^ before[p][(r + 3) % 4];
        }
    }
}

/// Multiplies the columns by 05 00 04 00.
#[inline(always)]
fn precondition<T: Words>(state: &mut State<T>) {
    for r in 0..2 {
        let mut sum = [state[0][r]; 8];
        for p in 0..8 {
            sum[p] = state[p][r] ^ state[p][r + 2];
        }
        let quadrupled = times_x(times_x(sum));
        for p in 0..8 {
            state[p][r] = state[p][r] ^ quadrupled[p];
            state[p][r + 2] = state[p][r + 2] ^ quadrupled[p];
        }
    }
}

/// Bytes to planes. Block `k * WORDS + w` of the group has bit `k` of word `w`.
#[inline(always)]
fn slice<T: Words>(group: &[u8]) -> State<T> {
    let mut rows = [[T::splat(0); 4]; 8];
    for (rows, blocks) in rows.iter_mut().zip(group.chunks_exact(16 * T::WORDS)) {
        *rows = transpose_bytes([
            T::from_blocks(blocks, 0),
            T::from_blocks(blocks, 1),
            T::from_blocks(blocks, 2),
            T::from_blocks(blocks, 3),
        ]);
    }
    transpose_bits(&mut rows);
    rows
}

/// The inverse of [`slice`].
#[inline(always)]
fn unslice<T: Words>(mut rows: State<T>, group: &mut [u8]) {
    transpose_bits(&mut rows);
    for (rows, blocks) in rows.into_iter().zip(group.chunks_exact_mut(16 * T::WORDS)) {
        for (column, words) in transpose_bytes(rows).into_iter().enumerate() {
            words.to_blocks(blocks, column);
        }
    }
}

/// Transposes 4 words of 4 bytes.
#[inline(always)]
fn transpose_bytes<T: Words>(mut words: [T; 4]) -> [T; 4] {
    for (i, j) in [(0, 1), (2, 3)] {
        (words[i], words[j]) = swap_bits::<T, 8>(words[i], words[j], 0x00ff_00ff);
    }
    for (i, j) in [(0, 2), (1, 3)] {
        (words[i], words[j]) = swap_bits::<T, 16>(words[i], words[j], 0x0000_ffff);
    }
    words
}

/// For each row, transposes 8 words seen as 4 byte columns of 8 x 8 bits.
#[inline(always)]
fn transpose_bits<T: Words>(rows: &mut State<T>) {
    for r in 0..4 {
        for i in [0, 2, 4, 6] {
            (rows[i][r], rows[i + 1][r]) = swap_bits::<T, 1>(rows[i][r], rows[i + 1][r], 0x5555_5555);
        }
        for i in [0, 1, 4, 5] {
            (rows[i][r], rows[i + 2][r]) = swap_bits::<T, 2>(rows[i][r], rows[i + 2][r], 0x3333_3333);
        }
        for i in 0..4 {
            (rows[i][r], rows[i + 4][r]) = swap_bits::<T, 4>(rows[i][r], rows[i + 4][r], 0x0f0f_0f0f);
        }
    }
}

/// Exchanges the bits of `b` that `mask` selects with those of `a` that are `BY` places higher.
#[inline(always)]
fn swap_bits<T: Words, const BY: i32>(a: T, b: T, mask: u32) -> (T, T) {
    let difference = (a.shift_right::<BY>() ^ b) & T::splat(mask);
    (a ^ difference.shift_left::<BY>(), b ^ difference)
}

//! AES without AES instructions: bit-sliced, in constant time.
//!
//! The state of many blocks is held as 8 planes, one for each bit of a byte. A plane has 4 rows as in FIPS 197, a row has
//! several words, and a word has a byte for each of the 4 columns, in which each of 8 blocks has one bit. ShiftRows is then a
//! rotation of words and the row rotations of MixColumns are renamings.

#![expect(clippy::needless_range_loop, reason = "the same index runs through several arrays")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::{BitAnd, BitXor, Not};

use super::schedule::Schedule;
use crate::ciphers::{BlockCipher, Kernel};
use crate::secret::Locked;

/// With vectors of the processor's base line: 32 blocks at a time.
pub(super) const SOFT: Kernel = Kernel {
    name: "bit-sliced",
    usable: || true,
    aes_instructions: false,
    constant_time: true,
    with_key: |key| Box::new(Soft { keys: SlicedKeys::new(key), crypt: crypt::<Portable> }),
};

/// With AVX2: 64 blocks at a time.
#[cfg(target_arch = "x86_64")]
pub(super) const SOFT_AVX2: Kernel = Kernel {
    name: "bit-sliced-avx2",
    usable: || is_x86_feature_detected!("avx2"),
    aes_instructions: false,
    constant_time: true,
    with_key: |key| {
        Box::new(Soft {
            keys: SlicedKeys::new(key),
            // SAFETY: `usable` was asked before this kernel was chosen.
            crypt: |keys, decrypt, blocks| unsafe { crypt_avx2(keys, decrypt, blocks) },
        })
    },
};

/// The most words that an implementation of [`Words`] has.
const MOST_WORDS: usize = 8;

/// The S-box on 4 bytes, for the key schedule.
pub(super) fn sub_word(word: [u8; 4]) -> [u8; 4] {
    let planes = std::array::from_fn(|p| (0..4).fold(0u8, |plane, i| plane | ((word[i] >> p & 1) << i)));
    let planes = sub_bytes(planes);
    std::array::from_fn(|i| (0..8).fold(0u8, |byte, p| byte | ((planes[p] >> i & 1) << p)))
}

struct Soft {
    keys: SlicedKeys,
    crypt: fn(&SlicedKeys, bool, &mut [u8]),
}

impl BlockCipher for Soft {
    fn block_size(&self) -> usize {
        16
    }
    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        (self.crypt)(&self.keys, false, blocks);
    }
    fn decrypt_blocks(&self, blocks: &mut [u8]) {
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

/// The inverse S-box by way of the S-box: S = A after inversion, so inversion = A⁻¹ after S, and S⁻¹ = inversion after A⁻¹.
#[inline(always)]
fn inverse_sub_bytes<T>(planes: [T; 8]) -> [T; 8]
where
    T: Copy + BitXor<Output = T> + BitAnd<Output = T> + Not<Output = T>,
{
    inverse_affine(sub_bytes(inverse_affine(planes)))
}

/// The inverse of the S-box's affine map (FIPS 197, 5.3.2), of which the constant is 0x05.
#[inline(always)]
fn inverse_affine<T: Copy + BitXor<Output = T> + Not<Output = T>>(a: [T; 8]) -> [T; 8] {
    let mut out = a;
    for i in 0..8 {
        out[i] = a[(i + 2) % 8] ^ a[(i + 5) % 8] ^ a[(i + 7) % 8];
    }
    out[0] = !out[0];
    out[2] = !out[2];
    out
}

/// The S-box as a circuit: J. Boyar, R. Peralta, "A depth-16 circuit for the AES S-box" (2011), figures 5, 7 and 8, with the
/// names there. `u[0]` is the highest bit.
#[inline(always)]
fn sub_bytes<T>(planes: [T; 8]) -> [T; 8]
where
    T: Copy + BitXor<Output = T> + BitAnd<Output = T> + Not<Output = T>,
{
    let [u7, u6, u5, u4, u3, u2, u1, u0] = planes;

    // Linear, going in.
    let (t14, t13, t9, t8, t0) = (u3 ^ u5, u0 ^ u6, u0 ^ u3, u0 ^ u5, u1 ^ u2);
    let y1 = t0 ^ u7;
    let (y4, y12, y2, y5) = (y1 ^ u3, t13 ^ t14, y1 ^ u0, y1 ^ u6);
    let (y3, t1) = (y5 ^ t8, u4 ^ y12);
    let (y15, y20) = (t1 ^ u5, t1 ^ u1);
    let (y6, y10, y11) = (y15 ^ u7, y15 ^ t0, y20 ^ t9);
    let (y7, y17, y19, y16) = (u7 ^ y11, y10 ^ y11, y10 ^ t8, t0 ^ y11);
    let (y21, y18) = (t13 ^ y16, u0 ^ y16);
    let (y8, y9, y13, y14) = (t8, t9, t13, t14);

    // Inversion in GF(2^4)^2: shared products.
    let m1 = y12 & y15;
    let m2 = (y3 & y6) ^ m1;
    let m3 = (y4 & u7) ^ m1;
    let m4 = y13 & y16;
    let m5 = (y5 & y1) ^ m4;
    let m6 = (y2 & y7) ^ m4;
    let m7 = y9 & y11;
    let m8 = (y14 & y17) ^ m7;
    let m9 = (y8 & y10) ^ m7;
    let (a, b, c, d) = (m2 ^ m8 ^ y20, m3 ^ m9 ^ y19, m5 ^ m8 ^ y21, m6 ^ m9 ^ y18);
    // Inversion in GF(2^4).
    let ab = a ^ b;
    let ac = a & c;
    let e = d ^ ac;
    let p = (ab & e) ^ b;
    let cd = c ^ d;
    let q = ((b ^ ac) & cd) ^ d;
    let f = d & (e ^ q);
    let r = f ^ c ^ q;
    let s = ab ^ (p & (e ^ f));
    // Products with the result.
    let (sr, pq, ps, qr) = (s ^ r, p ^ q, p ^ s, q ^ r);
    let pqsr = pq ^ sr;
    let (z0, z1, z2) = (qr & y15, r & y6, q & u7);
    let (z3, z4, z5) = (ps & y16, s & y1, p & y7);
    let (z6, z7, z8) = (pq & y11, pqsr & y17, sr & y10);
    let (z9, z10, z11) = (qr & y12, r & y3, q & y4);
    let (z12, z13, z14) = (ps & y13, s & y5, p & y2);
    let (z15, z16, z17) = (pq & y9, pqsr & y14, sr & y8);

    // Linear, coming out.
    let t46 = z15 ^ z16;
    let t48 = z5 ^ z13;
    let t53 = z0 ^ z3;
    let t57 = z2 ^ z12 ^ t53;
    let t58 = z4 ^ t46;
    let t59 = z3 ^ z6 ^ z7;
    let t62 = z7 ^ z8 ^ t58;
    let t63 = z9 ^ z10 ^ t58;
    let t64 = z4 ^ t59;
    let t65 = z14 ^ t57 ^ t62;
    let t66 = z1 ^ t63;
    let s3 = t53 ^ t66;
    [
        t48 ^ !(t46 ^ t57),
        z12 ^ t48 ^ !t62,
        z10 ^ z11 ^ t65,
        z2 ^ z5 ^ t66,
        s3,
        z16 ^ z17 ^ !(t64 ^ t65),
        t64 ^ !s3,
        t59 ^ t63,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, 5.1.1: inversion in GF(2^8), then the affine map.
    fn s_box(x: u8) -> u8 {
        let product = |mut a: u8, mut b: u8| {
            let mut sum = 0;
            while b != 0 {
                sum ^= if b & 1 == 1 { a } else { 0 };
                a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1b };
                b >>= 1;
            }
            sum
        };
        let inverse = (0..=255u8).find(|&y| product(x, y) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, by| sum ^ inverse.rotate_left(by))
    }

    #[test]
    fn the_circuits_are_the_s_boxes() {
        for x in 0..=255u8 {
            assert_eq!(sub_word([x; 4]), [s_box(x); 4]);
            let planes = |byte: u8| std::array::from_fn(|p| if byte >> p & 1 == 1 { !0u8 } else { 0 });
            assert_eq!(inverse_sub_bytes(planes(s_box(x))), planes(x));
        }
    }
}

//! PBKDF2's blocks side by side, one in each lane of a vector, for hashes without instructions of their own: all blocks of a vector
//! take the time of one. A block depends only on password, salt and its number (RFC 8018, 5.2).
//!
//! The code is written for AVX2 and compiled once more for AVX-512VL, where the compiler turns pairs of shifts into rotations
//! and chains of logic into single instructions.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use zeroize::Zeroize;

use crate::kdf::{CHECK_EVERY, Prf};

/// The longest block of a hash, SHA3-224's, in bytes.
const LARGEST_BLOCK: usize = 144;

/// The arguments of PBKDF2, as for [`crate::hash::Hash::pbkdf2_blocks`].
pub(super) struct Task<'a> {
    pub password: &'a [u8],
    pub salt: &'a [u8],
    pub iterations: u32,
    pub index: u32,
    pub out: &'a mut [u8],
    pub go_on: &'a dyn Fn() -> bool,
    /// The hash itself.
    pub digest: fn(&[&[u8]], &mut [u8]),
}

/// A hash of several messages at a time, one in each lane.
pub(super) trait SideBySide {
    /// One word of each lane's message.
    type Vector: Vector;
    /// The states of all lanes: a vector for each word.
    type State: Copy;
    /// The digests of all lanes.
    type Digest: Copy + AsRef<[Self::Vector]> + AsMut<[Self::Vector]>;
    /// Bytes of a block.
    const BLOCK: usize;
    /// Whether words begin with their highest byte.
    const BIG_ENDIAN: bool;

    /// Builds digests from the words that `word` returns.
    fn digests(word: impl Fn(usize) -> Self::Vector) -> Self::Digest;

    /// The state after one block with the words that `word` returns.
    ///
    /// # Safety
    /// The processor has AVX2, as for all that follows.
    unsafe fn after(word: impl Fn(usize) -> Self::Vector) -> Self::State;

    /// The digests of messages that consist of one block and `digest`. `state` is the state after the block.
    ///
    /// # Safety
    /// As above.
    unsafe fn end(state: Self::State, digest: Self::Digest) -> Self::Digest;
}

/// Words in a vector.
pub(super) trait Vector: Copy {
    /// Bytes of a word.
    const WORD: usize;

    /// # Safety
    /// The processor has AVX2, as for all that follows.
    unsafe fn from_lanes(lane: impl Fn(usize) -> u64) -> Self;

    /// # Safety
    /// As above.
    unsafe fn lane(self, lane: usize) -> u64;

    /// # Safety
    /// As above.
    unsafe fn xor(self, other: Self) -> Self;
}

/// Whether this processor has the instructions.
pub(super) fn usable() -> bool {
    is_x86_feature_detected!("avx2")
}

/// How many blocks are derived at once.
pub(super) const fn at_once<H: SideBySide>() -> usize {
    size_of::<H::Vector>() / H::Vector::WORD
}

/// Derives the blocks of a task, which must fit into the lanes. Returns false when `go_on` said no. `P` computes the same hash for
/// one block at a time.
///
/// # Panics
/// If the processor is not [`usable`].
pub(super) fn derive<H: SideBySide, P: Prf>(task: Task<'_>) -> bool {
    assert!(usable());
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { with_avx512::<H, P>(task) }
    } else {
        // SAFETY: as above.
        unsafe { with_avx2::<H, P>(task) }
    }
}

#[target_feature(enable = "avx2,avx512f,avx512vl")]
fn with_avx512<H: SideBySide, P: Prf>(task: Task<'_>) -> bool {
    // SAFETY: AVX2 is there.
    unsafe { work::<H, P>(task) }
}

#[target_feature(enable = "avx2")]
fn with_avx2<H: SideBySide, P: Prf>(task: Task<'_>) -> bool {
    // SAFETY: AVX2 is there.
    unsafe { work::<H, P>(task) }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn work<H: SideBySide, P: Prf>(task: Task<'_>) -> bool {
    let Task { password, salt, iterations, index, out, go_on, digest } = task;
    let prf = P::new(password);
    let size = prf.of(&[]).as_ref().len();
    // Unused lanes repeat the first block.
    let blocks = out.chunks(size).len() as u32;
    let mut first: Vec<P::Output> =
        (0..blocks).map(|block| prf.of(&[salt, &index.wrapping_add(block).to_be_bytes()])).collect();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (inner, outer) = keyed::<H>(password, &|key| digest(&[password], &mut key[..size]));
        let mut u = H::digests(|word| {
            H::Vector::from_lanes(|lane| {
                let block = first.get(lane).unwrap_or(&first[0]).as_ref();
                word_of::<H>(&block[word * H::Vector::WORD..][..H::Vector::WORD])
            })
        });
        // The caller wipes the stack, but these blocks are not on it.
        first.iter_mut().for_each(|block| block.as_mut().zeroize());
        let mut sum = u;
        let mut done = 1;
        while done < iterations && go_on() {
            let next = iterations.min(done + CHECK_EVERY);
            for _ in done..next {
                u = H::end(outer, H::end(inner, u));
                sum.as_mut().iter_mut().zip(u.as_ref()).for_each(|(sum, u)| *sum = sum.xor(*u));
            }
            done = next;
        }
        let finished = done >= iterations;
        if finished {
            for (lane, block) in out.chunks_mut(size).enumerate() {
                for (bytes, vector) in block.chunks_mut(H::Vector::WORD).zip(sum.as_ref()) {
                    let word = vector.lane(lane);
                    let word = if H::BIG_ENDIAN { word.to_be_bytes() } else { word.to_le_bytes() };
                    let from = if H::BIG_ENDIAN { 8 - H::Vector::WORD } else { 0 };
                    bytes.copy_from_slice(&word[from..from + bytes.len()]);
                }
            }
        }
        finished
    }
}

/// The states of HMAC (RFC 2104) after its two key blocks.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn keyed<H: SideBySide>(password: &[u8], shorten: &dyn Fn(&mut [u8])) -> (H::State, H::State) {
    let mut key = [0; LARGEST_BLOCK];
    if password.len() > H::BLOCK {
        shorten(&mut key);
    } else {
        key[..password.len()].copy_from_slice(password);
    }
    // SAFETY: the caller vouches for the instructions.
    let after = |pad: u8| unsafe {
        H::after(|word| {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..H::Vector::WORD];
            bytes.copy_from_slice(&key[word * H::Vector::WORD..][..H::Vector::WORD]);
            bytes.iter_mut().for_each(|byte| *byte ^= pad);
            H::Vector::from_lanes(|_| word_of::<H>(bytes))
        })
    };
    let states = (after(0x36), after(0x5c));
    key.zeroize();
    states
}

fn word_of<H: SideBySide>(bytes: &[u8]) -> u64 {
    let up = |word: u64, byte: &u8| word << 8 | u64::from(*byte);
    if H::BIG_ENDIAN { bytes.iter().fold(0, up) } else { bytes.iter().rev().fold(0, up) }
}

/// Eight words of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Eight(__m256i);

/// Four words of 64 bits.
#[derive(Clone, Copy)]
pub(super) struct Four(pub(super) __m256i);

impl Vector for Eight {
    const WORD: usize = 4;

    #[inline(always)]
    unsafe fn from_lanes(lane: impl Fn(usize) -> u64) -> Self {
        let words: [u32; 8] = from_fn(|i| lane(i) as u32);
        // SAFETY: the array is as long as the vector, and the load takes any alignment.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn lane(self, lane: usize) -> u64 {
        let mut words = [0u32; 8];
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        u64::from(words[lane])
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller vouches for the instructions.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

impl Vector for Four {
    const WORD: usize = 8;

    #[inline(always)]
    unsafe fn from_lanes(lane: impl Fn(usize) -> u64) -> Self {
        let words: [u64; 4] = from_fn(lane);
        // SAFETY: the array is as long as the vector, and the load takes any alignment.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn lane(self, lane: usize) -> u64 {
        let mut words = [0u64; 4];
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        words[lane]
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller vouches for the instructions.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

/// Every word rotated right.
macro_rules! rotate {
    ($x:expr, $by:literal, 64) => {{
        let x = $x;
        _mm256_or_si256(_mm256_srli_epi64::<$by>(x), _mm256_slli_epi64::<{ 64 - $by }>(x))
    }};
    ($x:expr, $by:literal, 32) => {{
        let x = $x;
        _mm256_or_si256(_mm256_srli_epi32::<$by>(x), _mm256_slli_epi32::<{ 32 - $by }>(x))
    }};
}

/// Repeats the body with each of the numbers as a constant: indices of vectors in registers must be known to the compiler.
macro_rules! for_each {
    ($i:ident in [$($n:literal)*] $body:block) => {
        $({
            const $i: usize = $n;
            $body
        })*
    };
}
pub(crate) use for_each;

/// SHA-512 (FIPS 180-4).
pub(super) struct Sha512;

impl SideBySide for Sha512 {
    type Vector = Four;
    type State = [Four; 8];
    type Digest = Self::State;
    const BLOCK: usize = 128;
    const BIG_ENDIAN: bool = true;

    #[inline(always)]
    fn digests(word: impl Fn(usize) -> Four) -> Self::Digest {
        from_fn(word)
    }

    #[inline(always)]
    unsafe fn after(word: impl Fn(usize) -> Four) -> [Four; 8] {
        // SAFETY: the caller vouches for the instructions.
        unsafe { sha512(SHA512_BEGIN.map(|word| Four(_mm256_set1_epi64x(word as i64))), from_fn(word)) }
    }

    #[inline(always)]
    unsafe fn end(state: [Four; 8], digest: [Four; 8]) -> [Four; 8] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut block = [Four(_mm256_setzero_si256()); 16];
            block[..8].copy_from_slice(&digest);
            block[8] = Four(_mm256_set1_epi64x(i64::MIN));
            block[15] = Four(_mm256_set1_epi64x(8 * (128 + 64)));
            sha512(state, block)
        }
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn sha512(state: [Four; 8], block: [Four; 16]) -> [Four; 8] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let add = |a, b| _mm256_add_epi64(a, b);
        let xor3 = |a, b, c| _mm256_xor_si256(_mm256_xor_si256(a, b), c);
        let mut w = block.map(|word| word.0);
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state.map(|word| word.0);
        for (sixteen, constants) in SHA512_ROUNDS.as_chunks::<16>().0.iter().enumerate() {
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                if sixteen > 0 {
                    let (early, late) = (w[(I + 1) % 16], w[(I + 14) % 16]);
                    let early = xor3(rotate!(early, 1, 64), rotate!(early, 8, 64), _mm256_srli_epi64::<7>(early));
                    let late = xor3(rotate!(late, 19, 64), rotate!(late, 61, 64), _mm256_srli_epi64::<6>(late));
                    w[I] = add(add(w[I], early), add(w[(I + 9) % 16], late));
                }
                let choice = _mm256_xor_si256(g, _mm256_and_si256(e, _mm256_xor_si256(f, g)));
                let sum = xor3(rotate!(e, 14, 64), rotate!(e, 18, 64), rotate!(e, 41, 64));
                let constant = add(w[I], _mm256_set1_epi64x(constants[I] as i64));
                let first = add(add(h, constant), add(choice, sum));
                let majority = _mm256_xor_si256(b, _mm256_and_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(b, c)));
                let sum = xor3(rotate!(a, 28, 64), rotate!(a, 34, 64), rotate!(a, 39, 64));
                (h, g, f, e) = (g, f, e, add(d, first));
                (d, c, b, a) = (c, b, a, add(first, add(sum, majority)));
            });
        }
        let after = [a, b, c, d, e, f, g, h];
        from_fn(|i| Four(add(state[i].0, after[i])))
    }
}

/// RIPEMD-160 (Dobbertin, Bosselaers, Preneel, "RIPEMD-160: A Strengthened Version of RIPEMD", 1996).
pub(super) struct Ripemd160;

impl SideBySide for Ripemd160 {
    type Vector = Eight;
    type State = [Eight; 5];
    type Digest = Self::State;
    const BLOCK: usize = 64;
    const BIG_ENDIAN: bool = false;

    #[inline(always)]
    fn digests(word: impl Fn(usize) -> Eight) -> Self::Digest {
        from_fn(word)
    }

    #[inline(always)]
    unsafe fn after(word: impl Fn(usize) -> Eight) -> [Eight; 5] {
        // SAFETY: the caller vouches for the instructions.
        unsafe { ripemd160(RIPEMD_BEGIN.map(|word| Eight(_mm256_set1_epi32(word as i32))), from_fn(word)) }
    }

    #[inline(always)]
    unsafe fn end(state: [Eight; 5], digest: [Eight; 5]) -> [Eight; 5] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut block = [Eight(_mm256_setzero_si256()); 16];
            block[..5].copy_from_slice(&digest);
            block[5] = Eight(_mm256_set1_epi32(0x80));
            block[14] = Eight(_mm256_set1_epi32(8 * (64 + 20)));
            ripemd160(state, block)
        }
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn ripemd160(state: [Eight; 5], block: [Eight; 16]) -> [Eight; 5] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let add = |a, b| _mm256_add_epi32(a, b);
        let splat = |word: u32| _mm256_set1_epi32(word as i32);
        let (mut one, mut two) = (state.map(|word| word.0), state.map(|word| word.0));
        for_each!(ROUND in [0 1 2 3 4] {
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                let word = block[RIPEMD_WORDS[ROUND][I] as usize].0;
                let sum = add(add(one[0], mixed::<ROUND>(&one)), add(word, splat(RIPEMD_CONSTANTS[ROUND])));
                one = turned::<{ RIPEMD_SHIFTS[ROUND][I] }>(one, sum);
                let word = block[RIPEMD_WORDS_PARALLEL[ROUND][I] as usize].0;
                let constant = splat(RIPEMD_CONSTANTS_PARALLEL[ROUND]);
                let sum = add(add(two[0], mixed::<{ 4 - ROUND }>(&two)), add(word, constant));
                two = turned::<{ RIPEMD_SHIFTS_PARALLEL[ROUND][I] }>(two, sum);
            });
        });
        from_fn(|i| Eight(add(add(state[(i + 1) % 5].0, one[(i + 2) % 5]), two[(i + 3) % 5])))
    }
}

/// The line after a step. `sum` is the value that the step rotates to the left.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn turned<const BY: u32>([_, b, c, d, e]: [__m256i; 5], sum: __m256i) -> [__m256i; 5] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (by, back) = (_mm_cvtsi32_si128(BY as i32), _mm_cvtsi32_si128(32 - BY as i32));
        let turned = _mm256_or_si256(_mm256_sll_epi32(sum, by), _mm256_srl_epi32(sum, back));
        [e, _mm256_add_epi32(turned, e), b, rotate!(c, 22, 32), d]
    }
}

/// The Boolean function of a round.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn mixed<const ROUND: usize>(&[_, x, y, z, _]: &[__m256i; 5]) -> __m256i {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let xor = |a, b| _mm256_xor_si256(a, b);
        let (or, and) = (|a, b| _mm256_or_si256(a, b), |a, b| _mm256_and_si256(a, b));
        let not = |a| _mm256_xor_si256(a, _mm256_set1_epi32(-1));
        match ROUND {
            0 => xor(xor(x, y), z),
            1 => xor(z, and(x, xor(y, z))),
            2 => xor(or(x, not(y)), z),
            3 => xor(y, and(z, xor(x, y))),
            _ => xor(x, or(y, not(z))),
        }
    }
}

/// BLAKE2s with digests of 256 bits (RFC 7693), as HMAC uses it: without a key of its own.
pub(super) struct Blake2s;

impl SideBySide for Blake2s {
    type Vector = Eight;
    type State = [Eight; 8];
    type Digest = Self::State;
    const BLOCK: usize = 64;
    const BIG_ENDIAN: bool = false;

    #[inline(always)]
    fn digests(word: impl Fn(usize) -> Eight) -> Self::Digest {
        from_fn(word)
    }

    #[inline(always)]
    unsafe fn after(word: impl Fn(usize) -> Eight) -> [Eight; 8] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut begin = BLAKE2S_BEGIN;
            // Digest size, no key, one layer (section 2.5).
            begin[0] ^= 0x0101_0020;
            blake2s(begin.map(|word| Eight(_mm256_set1_epi32(word as i32))), from_fn(word), 64, false)
        }
    }

    #[inline(always)]
    unsafe fn end(state: [Eight; 8], digest: [Eight; 8]) -> [Eight; 8] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut block = [Eight(_mm256_setzero_si256()); 16];
            block[..8].copy_from_slice(&digest);
            blake2s(state, block, 64 + 32, true)
        }
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn blake2s(state: [Eight; 8], block: [Eight; 16], bytes: u32, last: bool) -> [Eight; 8] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let add = |a, b| _mm256_add_epi32(a, b);
        let xor = |a, b| _mm256_xor_si256(a, b);
        let mut begin = BLAKE2S_BEGIN;
        begin[4] ^= bytes;
        begin[6] ^= if last { u32::MAX } else { 0 };
        let mut v: [__m256i; 16] = from_fn(|i| if i < 8 { state[i].0 } else { _mm256_set1_epi32(begin[i - 8] as i32) });
        for order in &BLAKE2S_ORDER {
            for_each!(TURN in [0 1 2 3 4 5 6 7] {
                let [a, b, c, d] = BLAKE2S_PLACES[TURN];
                let (first, second) = (block[order[2 * TURN] as usize].0, block[order[2 * TURN + 1] as usize].0);
                v[a] = add(add(v[a], v[b]), first);
                v[d] = rotate!(xor(v[d], v[a]), 16, 32);
                v[c] = add(v[c], v[d]);
                v[b] = rotate!(xor(v[b], v[c]), 12, 32);
                v[a] = add(add(v[a], v[b]), second);
                v[d] = rotate!(xor(v[d], v[a]), 8, 32);
                v[c] = add(v[c], v[d]);
                v[b] = rotate!(xor(v[b], v[c]), 7, 32);
            });
        }
        from_fn(|i| Eight(xor(state[i].0, xor(v[i], v[i + 8]))))
    }
}

/// FIPS 180-4, section 5.3.5.
pub(super) const SHA512_BEGIN: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// FIPS 180-4, section 4.2.3.
pub(super) const SHA512_ROUNDS: [u64; 80] = [
    0x428a_2f98_d728_ae22,
    0x7137_4491_23ef_65cd,
    0xb5c0_fbcf_ec4d_3b2f,
    0xe9b5_dba5_8189_dbbc,
    0x3956_c25b_f348_b538,
    0x59f1_11f1_b605_d019,
    0x923f_82a4_af19_4f9b,
    0xab1c_5ed5_da6d_8118,
    0xd807_aa98_a303_0242,
    0x1283_5b01_4570_6fbe,
    0x2431_85be_4ee4_b28c,
    0x550c_7dc3_d5ff_b4e2,
    0x72be_5d74_f27b_896f,
    0x80de_b1fe_3b16_96b1,
    0x9bdc_06a7_25c7_1235,
    0xc19b_f174_cf69_2694,
    0xe49b_69c1_9ef1_4ad2,
    0xefbe_4786_384f_25e3,
    0x0fc1_9dc6_8b8c_d5b5,
    0x240c_a1cc_77ac_9c65,
    0x2de9_2c6f_592b_0275,
    0x4a74_84aa_6ea6_e483,
    0x5cb0_a9dc_bd41_fbd4,
    0x76f9_88da_8311_53b5,
    0x983e_5152_ee66_dfab,
    0xa831_c66d_2db4_3210,
    0xb003_27c8_98fb_213f,
    0xbf59_7fc7_beef_0ee4,
    0xc6e0_0bf3_3da8_8fc2,
    0xd5a7_9147_930a_a725,
    0x06ca_6351_e003_826f,
    0x1429_2967_0a0e_6e70,
    0x27b7_0a85_46d2_2ffc,
    0x2e1b_2138_5c26_c926,
    0x4d2c_6dfc_5ac4_2aed,
    0x5338_0d13_9d95_b3df,
    0x650a_7354_8baf_63de,
    0x766a_0abb_3c77_b2a8,
    0x81c2_c92e_47ed_aee6,
    0x9272_2c85_1482_353b,
    0xa2bf_e8a1_4cf1_0364,
    0xa81a_664b_bc42_3001,
    0xc24b_8b70_d0f8_9791,
    0xc76c_51a3_0654_be30,
    0xd192_e819_d6ef_5218,
    0xd699_0624_5565_a910,
    0xf40e_3585_5771_202a,
    0x106a_a070_32bb_d1b8,
    0x19a4_c116_b8d2_d0c8,
    0x1e37_6c08_5141_ab53,
    0x2748_774c_df8e_eb99,
    0x34b0_bcb5_e19b_48a8,
    0x391c_0cb3_c5c9_5a63,
    0x4ed8_aa4a_e341_8acb,
    0x5b9c_ca4f_7763_e373,
    0x682e_6ff3_d6b2_b8a3,
    0x748f_82ee_5def_b2fc,
    0x78a5_636f_4317_2f60,
    0x84c8_7814_a1f0_ab72,
    0x8cc7_0208_1a64_39ec,
    0x90be_fffa_2363_1e28,
    0xa450_6ceb_de82_bde9,
    0xbef9_a3f7_b2c6_7915,
    0xc671_78f2_e372_532b,
    0xca27_3ece_ea26_619c,
    0xd186_b8c7_21c0_c207,
    0xeada_7dd6_cde0_eb1e,
    0xf57d_4f7f_ee6e_d178,
    0x06f0_67aa_7217_6fba,
    0x0a63_7dc5_a2c8_98a6,
    0x113f_9804_bef9_0dae,
    0x1b71_0b35_131c_471b,
    0x28db_77f5_2304_7d84,
    0x32ca_ab7b_40c7_2493,
    0x3c9e_be0a_15c9_bebc,
    0x431d_67c4_9c10_0d4c,
    0x4cc5_d4be_cb3e_42b6,
    0x597f_299c_fc65_7e2a,
    0x5fcb_6fab_3ad6_faec,
    0x6c44_198c_4a47_5817,
];

const RIPEMD_BEGIN: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

const RIPEMD_CONSTANTS: [u32; 5] = [0, 0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xa953_fd4e];
const RIPEMD_CONSTANTS_PARALLEL: [u32; 5] = [0x50a2_8be6, 0x5c4d_d124, 0x6d70_3ef3, 0x7a6d_76e9, 0];

/// The words of the message in the order of each round, and how far each sum is rotated to the left; then those of the
/// parallel line.
const RIPEMD_WORDS: [[u8; 16]; 5] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [7, 4, 13, 1, 10, 6, 15, 3, 12, 0, 9, 5, 2, 14, 11, 8],
    [3, 10, 14, 4, 9, 15, 8, 1, 2, 7, 0, 6, 13, 11, 5, 12],
    [1, 9, 11, 10, 0, 8, 12, 4, 13, 3, 7, 15, 14, 5, 6, 2],
    [4, 0, 5, 9, 7, 12, 2, 10, 14, 1, 3, 8, 11, 6, 15, 13],
];
const RIPEMD_SHIFTS: [[u32; 16]; 5] = [
    [11, 14, 15, 12, 5, 8, 7, 9, 11, 13, 14, 15, 6, 7, 9, 8],
    [7, 6, 8, 13, 11, 9, 7, 15, 7, 12, 15, 9, 11, 7, 13, 12],
    [11, 13, 6, 7, 14, 9, 13, 15, 14, 8, 13, 6, 5, 12, 7, 5],
    [11, 12, 14, 15, 14, 15, 9, 8, 9, 14, 5, 6, 8, 6, 5, 12],
    [9, 15, 5, 11, 6, 8, 13, 12, 5, 12, 13, 14, 11, 8, 5, 6],
];
const RIPEMD_WORDS_PARALLEL: [[u8; 16]; 5] = [
    [5, 14, 7, 0, 9, 2, 11, 4, 13, 6, 15, 8, 1, 10, 3, 12],
    [6, 11, 3, 7, 0, 13, 5, 10, 14, 15, 8, 12, 4, 9, 1, 2],
    [15, 5, 1, 3, 7, 14, 6, 9, 11, 8, 12, 2, 10, 0, 4, 13],
    [8, 6, 4, 1, 3, 11, 15, 0, 5, 12, 2, 13, 9, 7, 10, 14],
    [12, 15, 10, 4, 1, 5, 8, 7, 6, 2, 13, 14, 0, 3, 9, 11],
];
const RIPEMD_SHIFTS_PARALLEL: [[u32; 16]; 5] = [
    [8, 9, 9, 11, 13, 15, 15, 5, 7, 7, 8, 11, 14, 14, 12, 6],
    [9, 13, 15, 7, 12, 8, 9, 11, 7, 7, 12, 7, 6, 15, 13, 11],
    [9, 7, 15, 11, 8, 6, 6, 14, 12, 13, 5, 14, 13, 13, 7, 5],
    [15, 5, 8, 11, 14, 14, 6, 14, 6, 9, 12, 9, 12, 5, 15, 8],
    [8, 5, 12, 9, 12, 5, 14, 6, 8, 13, 6, 5, 15, 13, 11, 11],
];

/// RFC 7693, section 2.6: SHA-256's initial state.
const BLAKE2S_BEGIN: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The words of the message in the order of each round (RFC 7693, section 2.7).
const BLAKE2S_ORDER: [[u8; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// Columns, then diagonals (RFC 7693, section 3.2).
const BLAKE2S_PLACES: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];

#[cfg(test)]
mod tests {
    use hmac::Hmac;

    use super::*;
    use crate::hash::keccak::Sha3;
    use crate::kdf::{Blake2sHmac, CachedHmac, pbkdf2_block};

    /// Checks every number of blocks, each with full and shorter lengths, and passwords of each kind, compiled both ways.
    fn same<H: SideBySide, P: Prf>(hash: &crate::hash::Hash) {
        let (size, digest) = (hash.size, hash.digest);
        if !usable() {
            return;
        }
        let text: Vec<u8> = (0..300).map(|i| (i * 11 + i / 7) as u8).collect();
        for (password, salt, iterations) in
            [(0, 0, 1), (9, 64, 2), (64, 5, 3), (65, 16, 70), (128, 64, 5), (129, 1, 200), (136, 3, 2), (200, 9, 3)]
        {
            for len in [1, size - 1, size, size + 1, 3 * size - 2, at_once::<H>() * size] {
                let (password, salt) = (&text[..password], &text[..salt]);
                let mut expected = vec![0; len];
                for (i, block) in expected.chunks_mut(size).enumerate() {
                    assert!(pbkdf2_block::<P>(password, salt, iterations, 7 + i as u32, block, &|| true));
                }
                let mut ways: Vec<unsafe fn(Task<'_>) -> bool> = vec![with_avx2::<H, P>];
                if is_x86_feature_detected!("avx512vl") {
                    ways.push(with_avx512::<H, P>);
                }
                for way in ways {
                    let mut out = vec![0; len];
                    let task = Task { password, salt, iterations, index: 7, out: &mut out, go_on: &|| true, digest };
                    // SAFETY: the processor has what each is compiled for.
                    assert!(unsafe { way(task) });
                    assert_eq!(out, expected, "{len} bytes");
                }
            }
        }
        let (out, go_on) = (&mut [0; 9], &|| false);
        let task = Task { password: b"", salt: b"", iterations: 1000, index: 1, out, go_on, digest };
        assert!(!derive::<H, P>(task), "somebody said no");
    }

    #[test]
    fn lanes_are_blocks() {
        same::<Sha512, Hmac<sha2::Sha512>>(&crate::hash::SHA512);
        same::<Ripemd160, Hmac<ripemd::Ripemd160>>(&crate::hash::RIPEMD160);
        same::<Blake2s, Blake2sHmac>(&crate::hash::BLAKE2S_256);
        same::<Sha3<4>, CachedHmac<sha3::Sha3_256>>(&crate::hash::SHA3_256);
        same::<Sha3<6>, CachedHmac<sha3::Sha3_384>>(&crate::hash::SHA3_384);
        same::<Sha3<8>, CachedHmac<sha3::Sha3_512>>(&crate::hash::SHA3_512);
    }
}

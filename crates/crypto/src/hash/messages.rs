//! SHA-256 and SHA-512 (FIPS 180-4) of many messages of one length, one in each lane of a vector: each round of a message waits for
//! the previous one, which leaves most of a processor idle, even with SHA instructions.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use digest::Digest;
use zeroize::Zeroize;

use super::lanes::{SHA512_BEGIN, SHA512_ROUNDS, for_each};
use crate::secret::Plain;
use crate::transpose;

/// The most messages side by side.
const LANES: usize = 16;

/// The size of SHA-512's blocks, the longest ones, in bytes.
const LONGEST: usize = 128;

/// The differences between both hashes.
pub(crate) trait Sha2: Copy + 'static {
    type Word: Copy;
    /// Eight words.
    type State: Plain + AsRef<[Self::Word]> + AsMut<[Self::Word]>;
    /// Bytes of a block. A digest is half as long, and the length at a message's end an eighth.
    const BLOCK: usize;
    const BEGIN: Self::State;
    /// The constants of all rounds.
    const ROUNDS: &'static [Self::Word];
    /// The fastest first; the last one runs everywhere.
    const KERNELS: &'static [Kernel<Self>];
    /// Absorbs whole blocks of one message.
    fn absorb(state: &mut Self::State, blocks: &[u8]);
    /// Writes the bytes of the state's words to `digest`.
    fn bytes(state: &Self::State, digest: &mut [u8]);
    fn digest(message: &[u8], digest: &mut [u8]);
}

#[derive(Clone, Copy)]
pub(crate) struct Sha256;

#[derive(Clone, Copy)]
pub(crate) struct Sha512;

impl Sha2 for Sha256 {
    type Word = u32;
    type State = [u32; 8];
    const BLOCK: usize = 64;
    const BEGIN: [u32; 8] = high_words(&SHA512_BEGIN);
    const ROUNDS: &'static [u32] = &high_words::<64, 80>(&SHA512_ROUNDS);
    const KERNELS: &'static [Kernel<Self>] = &[
        Kernel {
            name: "avx512",
            usable: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            lanes: 16,
            fewest: 11,
            // SAFETY: `usable` was asked.
            absorb: |states, blocks| unsafe { avx512::<Self, 16>(states, blocks) },
        },
        Kernel {
            name: "sha-instructions",
            usable: || is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1"),
            lanes: 2,
            fewest: 2,
            // SAFETY: `usable` was asked.
            absorb: |states, blocks| unsafe { sha_instructions(states, blocks) },
        },
        Kernel {
            name: "avx2",
            usable: || is_x86_feature_detected!("avx2"),
            lanes: 8,
            fewest: 3,
            // SAFETY: `usable` was asked.
            absorb: |states, blocks| unsafe { avx2::<Self, 8>(states, blocks) },
        },
        portable(),
    ];

    fn absorb(state: &mut [u32; 8], blocks: &[u8]) {
        sha2::block_api::compress256(state, blocks.as_chunks().0);
    }
    fn bytes(state: &[u32; 8], digest: &mut [u8]) {
        digest.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    }
    fn digest(message: &[u8], digest: &mut [u8]) {
        digest.copy_from_slice(&sha2::Sha256::digest(message));
    }
}

impl Sha2 for Sha512 {
    type Word = u64;
    type State = [u64; 8];
    const BLOCK: usize = 128;
    const BEGIN: [u64; 8] = SHA512_BEGIN;
    const ROUNDS: &'static [u64] = &SHA512_ROUNDS;
    const KERNELS: &'static [Kernel<Self>] = &[
        Kernel {
            name: "avx512",
            usable: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            lanes: 8,
            fewest: 3,
            // SAFETY: `usable` was asked.
            absorb: |states, blocks| unsafe { avx512::<Self, 8>(states, blocks) },
        },
        Kernel {
            name: "avx2",
            usable: || is_x86_feature_detected!("avx2"),
            lanes: 4,
            fewest: 3,
            // SAFETY: `usable` was asked.
            absorb: |states, blocks| unsafe { avx2::<Self, 4>(states, blocks) },
        },
        portable(),
    ];

    fn absorb(state: &mut [u64; 8], blocks: &[u8]) {
        sha2::block_api::compress512(state, blocks.as_chunks().0);
    }
    fn bytes(state: &[u64; 8], digest: &mut [u8]) {
        digest.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    }
    fn digest(message: &[u8], digest: &mut [u8]) {
        digest.copy_from_slice(&sha2::Sha512::digest(message));
    }
}

/// SHA-256's constants are the first 32 bits of the roots of which SHA-512 uses 64 bits.
const fn high_words<const N: usize, const M: usize>(from: &[u64; M]) -> [u32; N] {
    let mut words = [0; N];
    let mut i = 0;
    while i < N {
        words[i] = (from[i] >> 32) as u32;
        i += 1;
    }
    words
}

/// Messages of one length, in two parts each.
#[derive(Clone, Copy)]
pub(crate) struct Messages<'a, S: Sha2> {
    /// The state from which the messages continue, and the number of bytes hashed before.
    pub state: S::State,
    pub before: usize,
    /// The length of each message's beginning (less than a block), and all beginnings in a row.
    pub head: usize,
    pub heads: &'a [u8],
    /// The same for the rest of each message.
    pub body: usize,
    pub bodies: &'a [u8],
}

/// Computes the digests of `count` messages, one after the other.
///
/// # Panics
/// Unless the buffers fit `count` messages and digests.
pub(crate) fn digests<S: Sha2>(messages: Messages<'_, S>, count: usize, digests: &mut [u8]) {
    let Messages { head, heads, body, bodies, .. } = messages;
    let fit = heads.len() == count * head && bodies.len() == count * body && digests.len() == count * S::BLOCK / 2;
    assert!(head < S::BLOCK && fit, "a digest for each message");
    let mut first = 0;
    while first < count {
        let kernel = kernel_for::<S>(count - first);
        let end = count.min(first + kernel.lanes);
        let (heads, bodies) = (&heads[first * head..end * head], &bodies[first * body..end * body]);
        let digests = &mut digests[first * S::BLOCK / 2..end * S::BLOCK / 2];
        together(kernel, Messages { heads, bodies, ..messages }, digests);
        first = end;
    }
}

pub(crate) struct Kernel<S: Sha2> {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    name: &'static str,
    usable: fn() -> bool,
    lanes: usize,
    /// The number of messages from which this kernel is the fastest.
    fewest: usize,
    /// Absorbs the same number of whole blocks of each message.
    absorb: fn(&mut [S::State; LANES], &[&[u8]; LANES]),
}

const fn portable<S: Sha2>() -> Kernel<S> {
    Kernel {
        name: "portable",
        usable: || true,
        lanes: 1,
        fewest: 1,
        absorb: |states, blocks| S::absorb(&mut states[0], blocks[0]),
    }
}

fn kernel_for<S: Sha2>(messages: usize) -> &'static Kernel<S> {
    let fit = |kernel: &&Kernel<S>| kernel.fewest <= messages && (kernel.usable)();
    S::KERNELS.iter().find(fit).expect("the last one runs everywhere")
}

/// Digests of no more messages than a kernel has lanes.
fn together<S: Sha2>(kernel: &Kernel<S>, messages: Messages<'_, S>, digests: &mut [u8]) {
    let Messages { state, before, head, heads, body, bodies } = messages;
    let count = digests.len() / (S::BLOCK / 2);
    // Unused lanes repeat the first message.
    let this = |lane: usize| if lane < count { lane } else { 0 };
    let heads: [&[u8]; LANES] = from_fn(|lane| &heads[this(lane) * head..][..head]);
    let bodies: [&[u8]; LANES] = from_fn(|lane| &bodies[this(lane) * body..][..body]);
    let mut states = [state; LANES];
    let mut buffers = [[0; 2 * LONGEST]; LANES];
    // Bytes of a body that complete the block that its head begins.
    let begun = if head == 0 { 0 } else { body.min(S::BLOCK - head) };
    for ((buffer, head), body) in buffers.iter_mut().zip(heads).zip(bodies) {
        buffer[..head.len()].copy_from_slice(head);
        buffer[head.len()..head.len() + begun].copy_from_slice(&body[..begun]);
    }
    let mut buffered = head + begun;
    if buffered == S::BLOCK {
        (kernel.absorb)(&mut states, &buffers.each_ref().map(|buffer| &buffer[..S::BLOCK]));
        buffered = 0;
    }
    let whole = begun + (body - begun) / S::BLOCK * S::BLOCK;
    (kernel.absorb)(&mut states, &bodies.map(|body| &body[begun..whole]));
    // The rest, a bit, zeros, and the length of the whole message in bits.
    let rest = body - whole;
    let last = buffered + rest;
    let end = if last + 1 + S::BLOCK / 8 <= S::BLOCK { S::BLOCK } else { 2 * S::BLOCK };
    let bits = 8 * (before + head + body) as u64;
    for (buffer, body) in buffers.iter_mut().zip(bodies) {
        buffer[buffered..last].copy_from_slice(&body[whole..]);
        buffer[last..].fill(0);
        buffer[last] = 0x80;
        buffer[end - 8..end].copy_from_slice(&bits.to_be_bytes());
    }
    (kernel.absorb)(&mut states, &buffers.each_ref().map(|buffer| &buffer[..end]));
    digests.chunks_mut(S::BLOCK / 2).zip(&states).for_each(|(digest, state)| S::bytes(state, digest));
}

/// The state after the blocks of HMAC's two keys (RFC 2104).
pub(crate) fn keyed<S: Sha2>(key: &[u8], states: &mut [S::State; 2]) {
    let mut room = [0; LONGEST];
    let block = &mut room[..S::BLOCK];
    match key.len() <= S::BLOCK {
        true => block[..key.len()].copy_from_slice(key),
        false => S::digest(key, &mut block[..S::BLOCK / 2]),
    }
    // The second pad also removes the first one.
    for (state, pad) in states.iter_mut().zip([0x36, 0x36 ^ 0x5c]) {
        block.iter_mut().for_each(|byte| *byte ^= pad);
        *state = S::BEGIN;
        S::absorb(state, block);
    }
    room.zeroize();
}

/// # Safety
/// The processor must have the features named here.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512<S: Sha2, const N: usize>(states: &mut [S::State; LANES], blocks: &[&[u8]; LANES])
where
    __m512i: Vector<S, N>,
{
    // SAFETY: the caller vouches for the processor's features.
    unsafe { absorb::<S, __m512i, N>(states, blocks) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx2")]
unsafe fn avx2<S: Sha2, const N: usize>(states: &mut [S::State; LANES], blocks: &[&[u8]; LANES])
where
    __m256i: Vector<S, N>,
{
    // SAFETY: the caller vouches for the processor's features.
    unsafe { absorb::<S, __m256i, N>(states, blocks) }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn absorb<S: Sha2, V: Vector<S, N>, const N: usize>(states: &mut [S::State; LANES], blocks: &[&[u8]; LANES]) {
    // SAFETY: the caller vouches for the instructions; `words_of` reads a block from each lane.
    unsafe {
        let mut vectors: [V; 8] = from_fn(|word| V::from_words(from_fn(|lane| states[lane].as_ref()[word])));
        let len = blocks[0].len();
        assert!(blocks[..N].iter().all(|blocks| blocks.len() == len) && len.is_multiple_of(S::BLOCK));
        for at in (0..len).step_by(S::BLOCK) {
            vectors = compress::<S, V, N>(vectors, V::words_of(from_fn(|lane| blocks[lane].as_ptr().add(at))));
        }
        for (word, vector) in vectors.into_iter().enumerate() {
            for (state, new) in states.iter_mut().zip(vector.words()) {
                state.as_mut()[word] = new;
            }
        }
    }
}

/// FIPS 180-4, 6.2.2 and 6.4.2.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn compress<S: Sha2, V: Vector<S, N>, const N: usize>(state: [V; 8], block: [V; 16]) -> [V; 8] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut w = block;
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for (sixteen, constants) in S::ROUNDS.as_chunks::<16>().0.iter().enumerate() {
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                if sixteen > 0 {
                    let (early, late) = (w[(I + 1) % 16].early(), w[(I + 14) % 16].late());
                    w[I] = w[I].add(early).add(w[(I + 9) % 16].add(late));
                }
                let first = h.add(w[I].add(V::all(constants[I]))).add(V::choose(e, f, g).add(e.sum_of_e()));
                let second = a.sum_of_a().add(V::majority(a, b, c));
                (h, g, f, e) = (g, f, e, d.add(first));
                (d, c, b, a) = (c, b, a, first.add(second));
            });
        }
        let after = [a, b, c, d, e, f, g, h];
        from_fn(|i| state[i].add(after[i]))
    }
}

/// A vector with one word from each of `N` messages. Each method may only be called if the processor has the
/// instructions.
trait Vector<S: Sha2, const N: usize>: Copy {
    unsafe fn all(word: S::Word) -> Self;
    unsafe fn from_words(words: [S::Word; N]) -> Self;
    unsafe fn words(self) -> [S::Word; N];
    /// Reads a block at each address. Each vector has one word of all blocks.
    unsafe fn words_of(blocks: [*const u8; N]) -> [Self; 16];
    unsafe fn add(self, other: Self) -> Self;
    /// FIPS 180-4, 4.1.2 and 4.1.3: the functions written as small and great sigma, 0 and 1.
    unsafe fn early(self) -> Self;
    unsafe fn late(self) -> Self;
    unsafe fn sum_of_a(self) -> Self;
    unsafe fn sum_of_e(self) -> Self;
    /// `b` where `a` has ones, `c` elsewhere.
    unsafe fn choose(a: Self, b: Self, c: Self) -> Self;
    unsafe fn majority(a: Self, b: Self, c: Self) -> Self;
}

// In all implementations, loads and stores are unaligned and within the named arrays and blocks, and everything else works on
// registers. SAFETY of every block: the trait's promise about instructions, and the caller's about places.

/// Words in vectors of 512 bits. Arguments: the hash, lanes, the type of a set word, instructions, how words are read, and the
/// distances of the four functions, the third of which is a shift in the first two.
macro_rules! in_512_bits {
    ($sha:ty, $lanes:literal, $word:ty, $splat:ident, $add:ident, $rotate:ident, $shift:ident, $read:ident,
        $early:tt, $late:tt, $sum_of_a:tt, $sum_of_e:tt) => {
        impl Vector<$sha, $lanes> for __m512i {
            #[inline(always)]
            unsafe fn all(word: <$sha as Sha2>::Word) -> Self {
                // SAFETY: see above.
                unsafe { $splat(word as $word) }
            }
            #[inline(always)]
            unsafe fn from_words(words: [<$sha as Sha2>::Word; $lanes]) -> Self {
                // SAFETY: see above.
                unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
            }
            #[inline(always)]
            unsafe fn words(self) -> [<$sha as Sha2>::Word; $lanes] {
                let mut words = [0; $lanes];
                // SAFETY: see above.
                unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self) };
                words
            }
            #[inline(always)]
            unsafe fn words_of(blocks: [*const u8; $lanes]) -> [Self; 16] {
                // SAFETY: see above.
                unsafe { $read(blocks) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $add(self, other) }
            }
            in_512_bits!(early, $rotate, $shift, $early);
            in_512_bits!(late, $rotate, $shift, $late);
            in_512_bits!(sum_of_a, $rotate, $rotate, $sum_of_a);
            in_512_bits!(sum_of_e, $rotate, $rotate, $sum_of_e);
            #[inline(always)]
            unsafe fn choose(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                unsafe { _mm512_ternarylogic_epi32::<0xca>(a, b, c) }
            }
            #[inline(always)]
            unsafe fn majority(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                unsafe { _mm512_ternarylogic_epi32::<0xe8>(a, b, c) }
            }
        }
    };
    ($name:ident, $rotate:ident, $third:ident, [$one:literal $two:literal $three:literal]) => {
        #[inline(always)]
        unsafe fn $name(self) -> Self {
            // SAFETY: see above.
            unsafe {
                _mm512_ternarylogic_epi32::<0x96>($rotate::<$one>(self), $rotate::<$two>(self), $third::<$three>(self))
            }
        }
    };
}

in_512_bits!(Sha256, 16, i32, _mm512_set1_epi32, _mm512_add_epi32, _mm512_ror_epi32, _mm512_srli_epi32, read_16,
    [7 18 3], [17 19 10], [2 13 22], [6 11 25]);
in_512_bits!(Sha512, 8, i64, _mm512_set1_epi64, _mm512_add_epi64, _mm512_ror_epi64, _mm512_srli_epi64, read_8,
    [1 8 7], [19 61 6], [28 34 39], [14 18 41]);

/// The same in vectors of 256 bits, which have no rotation: shifts right and left, and the bits of a word.
macro_rules! in_256_bits {
    ($sha:ty, $lanes:literal, $word:ty, $splat:ident, $add:ident, $right:ident, $left:ident, $bits:literal, $read:ident,
        $early:tt, $late:tt, $sum_of_a:tt, $sum_of_e:tt) => {
        impl Vector<$sha, $lanes> for __m256i {
            #[inline(always)]
            unsafe fn all(word: <$sha as Sha2>::Word) -> Self {
                // SAFETY: see above.
                unsafe { $splat(word as $word) }
            }
            #[inline(always)]
            unsafe fn from_words(words: [<$sha as Sha2>::Word; $lanes]) -> Self {
                // SAFETY: see above.
                unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
            }
            #[inline(always)]
            unsafe fn words(self) -> [<$sha as Sha2>::Word; $lanes] {
                let mut words = [0; $lanes];
                // SAFETY: see above.
                unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self) };
                words
            }
            #[inline(always)]
            unsafe fn words_of(blocks: [*const u8; $lanes]) -> [Self; 16] {
                // SAFETY: see above.
                unsafe { $read(blocks) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $add(self, other) }
            }
            in_256_bits!(shifted early, $right, $left, $bits, $early);
            in_256_bits!(shifted late, $right, $left, $bits, $late);
            in_256_bits!(rotated sum_of_a, $right, $left, $bits, $sum_of_a);
            in_256_bits!(rotated sum_of_e, $right, $left, $bits, $sum_of_e);
            #[inline(always)]
            unsafe fn choose(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                unsafe { _mm256_xor_si256(c, _mm256_and_si256(a, _mm256_xor_si256(b, c))) }
            }
            #[inline(always)]
            unsafe fn majority(a: Self, b: Self, c: Self) -> Self {
                // SAFETY: see above.
                unsafe { _mm256_xor_si256(b, _mm256_and_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(b, c))) }
            }
        }
    };
    (shifted $name:ident, $right:ident, $left:ident, $bits:literal, [$one:literal $two:literal $three:literal]) => {
        #[inline(always)]
        unsafe fn $name(self) -> Self {
            // SAFETY: see above.
            unsafe {
                let one = _mm256_or_si256($right::<$one>(self), $left::<{ $bits - $one }>(self));
                let two = _mm256_or_si256($right::<$two>(self), $left::<{ $bits - $two }>(self));
                _mm256_xor_si256(_mm256_xor_si256(one, two), $right::<$three>(self))
            }
        }
    };
    (rotated $name:ident, $right:ident, $left:ident, $bits:literal, [$one:literal $two:literal $three:literal]) => {
        #[inline(always)]
        unsafe fn $name(self) -> Self {
            // SAFETY: see above.
            unsafe {
                let one = _mm256_or_si256($right::<$one>(self), $left::<{ $bits - $one }>(self));
                let two = _mm256_or_si256($right::<$two>(self), $left::<{ $bits - $two }>(self));
                let three = _mm256_or_si256($right::<$three>(self), $left::<{ $bits - $three }>(self));
                _mm256_xor_si256(_mm256_xor_si256(one, two), three)
            }
        }
    };
}

in_256_bits!(Sha256, 8, i32, _mm256_set1_epi32, _mm256_add_epi32, _mm256_srli_epi32, _mm256_slli_epi32, 32, read_8_narrow,
    [7 18 3], [17 19 10], [2 13 22], [6 11 25]);
in_256_bits!(Sha512, 4, i64, _mm256_set1_epi64x, _mm256_add_epi64, _mm256_srli_epi64, _mm256_slli_epi64, 64, read_4,
    [1 8 7], [19 61 6], [28 34 39], [14 18 41]);

/// The shuffle of 16 bytes after which words of 32 bits begin with their lowest byte.
const ORDER_32: [i64; 2] = [0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203];
/// The same for words of 64 bits.
const ORDER_64: [i64; 2] = [0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607];

/// # Safety
/// A block of SHA-256 is at each place; the processor has AVX-512F and AVX-512BW.
#[inline(always)]
unsafe fn read_16(blocks: [*const u8; 16]) -> [__m512i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let order = _mm512_broadcast_i32x4(_mm_set_epi64x(ORDER_32[0], ORDER_32[1]));
        transpose::of_16(blocks.map(|block| _mm512_shuffle_epi8(_mm512_loadu_si512(block.cast()), order)))
    }
}

/// # Safety
/// A block of SHA-512 is at each place; the processor has AVX-512F and AVX-512BW.
#[inline(always)]
unsafe fn read_8(blocks: [*const u8; 8]) -> [__m512i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let order = _mm512_broadcast_i32x4(_mm_set_epi64x(ORDER_64[0], ORDER_64[1]));
        let mut words = [_mm512_setzero_si512(); 16];
        for (half, words) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let row = |block: *const u8| _mm512_loadu_si512(block.add(64 * half).cast());
            *words = transpose::of_8_long(blocks.map(|block| _mm512_shuffle_epi8(row(block), order)));
        }
        words
    }
}

/// # Safety
/// A block of SHA-256 is at each place; the processor has AVX2.
#[inline(always)]
unsafe fn read_8_narrow(blocks: [*const u8; 8]) -> [__m256i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let order = _mm256_broadcastsi128_si256(_mm_set_epi64x(ORDER_32[0], ORDER_32[1]));
        let mut words = [_mm256_setzero_si256(); 16];
        for (half, words) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let row = |block: *const u8| _mm256_loadu_si256(block.add(32 * half).cast());
            *words = transpose::of_8(blocks.map(|block| _mm256_shuffle_epi8(row(block), order)));
        }
        words
    }
}

/// # Safety
/// A block of SHA-512 is at each place; the processor has AVX2.
#[inline(always)]
unsafe fn read_4(blocks: [*const u8; 4]) -> [__m256i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let order = _mm256_broadcastsi128_si256(_mm_set_epi64x(ORDER_64[0], ORDER_64[1]));
        let mut words = [_mm256_setzero_si256(); 16];
        for (quarter, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let row = |block: *const u8| _mm256_loadu_si256(block.add(32 * quarter).cast());
            *words = transpose::of_4_long(blocks.map(|block| _mm256_shuffle_epi8(row(block), order)));
        }
        words
    }
}

/// Absorbs two messages with the SHA instructions: a single message would wait for its own results half of the time.
///
/// # Safety
/// The processor must have the features named here.
#[target_feature(enable = "sha,sse4.1")]
unsafe fn sha_instructions(states: &mut [[u32; 8]; LANES], blocks: &[&[u8]; LANES]) {
    let order = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    // The instructions want the words A, B, E, F and C, D, G, H together, the first one highest.
    let word = |state: &[u32; 8], words: [usize; 4]| {
        let [a, b, c, d] = words.map(|word| state[word] as i32);
        _mm_set_epi32(a, b, c, d)
    };
    let mut abef: [__m128i; 2] = from_fn(|i| word(&states[i], [0, 1, 4, 5]));
    let mut cdgh: [__m128i; 2] = from_fn(|i| word(&states[i], [2, 3, 6, 7]));
    let pairs = blocks[0].as_chunks::<64>().0.iter().zip(blocks[1].as_chunks::<64>().0);
    for (one, two) in pairs {
        let before = (abef, cdgh);
        let quarter = |block: &[u8; 64], i: usize| {
            // SAFETY: 16 bytes of the block, at any alignment.
            _mm_shuffle_epi8(unsafe { _mm_loadu_si128(block[16 * i..][..16].as_ptr().cast()) }, order)
        };
        let mut w: [[__m128i; 4]; 2] = [from_fn(|i| quarter(one, i)), from_fn(|i| quarter(two, i))];
        for_each!(FOUR in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
            let at = |i: usize| Sha256::ROUNDS[4 * FOUR + i] as i32;
            let constants = _mm_set_epi32(at(3), at(2), at(1), at(0));
            for_each!(I in [0 1] {
                let words = &mut w[I];
                let [first, second, third, last] = from_fn(|i| words[(FOUR + i) % 4]);
                if matches!(FOUR, 4..) {
                    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(first, second), _mm_alignr_epi8::<4>(last, third));
                    words[FOUR % 4] = _mm_sha256msg2_epu32(sum, last);
                }
                let two = _mm_add_epi32(words[FOUR % 4], constants);
                cdgh[I] = _mm_sha256rnds2_epu32(cdgh[I], abef[I], two);
                abef[I] = _mm_sha256rnds2_epu32(abef[I], cdgh[I], _mm_shuffle_epi32::<0x0e>(two));
            });
        });
        for i in 0..2 {
            abef[i] = _mm_add_epi32(abef[i], before.0[i]);
            cdgh[i] = _mm_add_epi32(cdgh[i], before.1[i]);
        }
    }
    for i in 0..2 {
        let mut words = [[0u32; 4]; 2];
        for (words, vector) in words.iter_mut().zip([abef[i], cdgh[i]]) {
            // SAFETY: the array is as long as the vector, at any alignment.
            unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), vector) };
        }
        let [[f, e, b, a], [h, g, d, c]] = words;
        states[i] = [a, b, c, d, e, f, g, h];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_testkit::random::Random;

    #[test]
    fn every_kernel_gives_the_digests_of_the_crate() {
        every_kernel::<Sha256>();
        every_kernel::<Sha512>();
    }

    fn every_kernel<S: Sha2>() {
        let mut random = Random::new(1);
        for kernel in S::KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for head in [0, 1, 24, 55, 63, S::BLOCK - 1] {
                for body in [0, 1, 8, 31, 32, 39, 40, 54, 55, 56, 63, 64, 65, 87, 88, 111, 112, 119, 120, 512, 4096] {
                    for count in [1, kernel.lanes.div_ceil(2), kernel.lanes] {
                        let (heads, bodies) = (random.bytes(count * head), random.bytes(count * body));
                        let messages =
                            Messages::<S> { state: S::BEGIN, before: 0, head, heads: &heads, body, bodies: &bodies };
                        let mut found = vec![0; count * S::BLOCK / 2];
                        together(kernel, messages, &mut found);
                        let right = by_the_crate(&[], messages, count);
                        assert_eq!(found, right, "{}: {count}, {head} {body}", kernel.name);
                    }
                }
            }
        }
    }

    #[test]
    fn any_number_of_messages_goes_on_from_a_state() {
        from_a_state::<Sha256>();
        from_a_state::<Sha512>();
    }

    fn from_a_state<S: Sha2>() {
        let mut random = Random::new(2);
        let before = random.bytes(S::BLOCK);
        let mut state = S::BEGIN;
        S::absorb(&mut state, &before);
        for count in 0..=2 * LANES + 2 {
            let (heads, bodies) = (random.bytes(count * 24), random.bytes(count * 70));
            let messages =
                Messages::<S> { state, before: S::BLOCK, head: 24, heads: &heads, body: 70, bodies: &bodies };
            let mut found = vec![0; count * S::BLOCK / 2];
            digests(messages, count, &mut found);
            assert_eq!(found, by_the_crate(&before, messages, count), "{count}");
        }
    }

    fn by_the_crate<S: Sha2>(before: &[u8], messages: Messages<'_, S>, count: usize) -> Vec<u8> {
        let Messages { head, heads, body, bodies, .. } = messages;
        let mut digests = vec![0; count * S::BLOCK / 2];
        for (i, digest) in digests.chunks_mut(S::BLOCK / 2).enumerate() {
            let message = [before, &heads[i * head..][..head], &bodies[i * body..][..body]].concat();
            S::digest(&message, digest);
        }
        digests
    }
}

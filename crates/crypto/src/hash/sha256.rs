//! SHA-256 (FIPS 180-4) of many messages of one length, one in each lane of a vector: a chain of rounds waits for itself, and
//! leaves most of a processor idle, with its SHA instructions too.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;
use std::array::from_fn;

use digest::Digest;
use zeroize::Zeroize;

use super::lanes::{SHA512_BEGIN, SHA512_ROUNDS, for_each};
use crate::transpose;

/// Eight words.
pub(crate) type State = [u32; 8];

/// Bytes of a block.
const BLOCK: usize = 64;

/// The most messages side by side.
const LANES: usize = 16;

/// The initial state: the roots of which SHA-512 takes 64 bits.
pub(crate) const BEGIN: State = high_words(&SHA512_BEGIN);

const ROUNDS: [u32; 64] = high_words(&SHA512_ROUNDS);

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
pub(crate) struct Messages<'a> {
    /// The state that they go on from, and how many bytes came before.
    pub state: State,
    pub before: usize,
    /// So many bytes of each, less than a block, one after the other: how they begin.
    pub head: usize,
    pub heads: &'a [u8],
    /// The same for how they go on.
    pub body: usize,
    pub bodies: &'a [u8],
}

/// The digests of messages.
///
/// # Panics
/// Unless there is a digest for each.
pub(crate) fn digests(messages: Messages<'_>, digests: &mut [[u8; 32]]) {
    let Messages { head, heads, body, bodies, .. } = messages;
    let count = digests.len();
    assert!(head < BLOCK && heads.len() == count * head && bodies.len() == count * body, "a digest for each message");
    let mut first = 0;
    while first < count {
        let kernel = kernel_for(count - first);
        let end = count.min(first + kernel.lanes);
        let (heads, bodies) = (&heads[first * head..end * head], &bodies[first * body..end * body]);
        together(kernel, Messages { heads, bodies, ..messages }, &mut digests[first..end]);
        first = end;
    }
}

struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    name: &'static str,
    usable: fn() -> bool,
    lanes: usize,
    /// From so many messages on it is the fastest.
    fewest: usize,
    /// Takes in whole blocks: as many of each message.
    absorb: fn(&mut [State; LANES], &[&[u8]; LANES]),
}

/// The fastest first; the last one runs everywhere.
const KERNELS: &[Kernel] = &[
    Kernel {
        name: "avx512",
        usable: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
        lanes: 16,
        fewest: 11,
        // SAFETY: `usable` was asked.
        absorb: |states, blocks| unsafe { avx512(states, blocks) },
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
        absorb: |states, blocks| unsafe { avx2(states, blocks) },
    },
    Kernel { name: "portable", usable: || true, lanes: 1, fewest: 1, absorb: portable },
];

fn kernel_for(messages: usize) -> &'static Kernel {
    let fit = |kernel: &&Kernel| kernel.fewest <= messages && (kernel.usable)();
    KERNELS.iter().find(fit).expect("the last one runs everywhere")
}

/// Digests of no more messages than a kernel has lanes.
fn together(kernel: &Kernel, messages: Messages<'_>, digests: &mut [[u8; 32]]) {
    let Messages { state, before, head, heads, body, bodies } = messages;
    // Lanes that nobody asked for have the first message again.
    let this = |lane: usize| if lane < digests.len() { lane } else { 0 };
    let heads: [&[u8]; LANES] = from_fn(|lane| &heads[this(lane) * head..][..head]);
    let bodies: [&[u8]; LANES] = from_fn(|lane| &bodies[this(lane) * body..][..body]);
    let mut states = [state; LANES];
    let mut buffers = [[0; 2 * BLOCK]; LANES];
    // Bytes of a body that complete the block that its head begins.
    let begun = if head == 0 { 0 } else { body.min(BLOCK - head) };
    for ((buffer, head), body) in buffers.iter_mut().zip(heads).zip(bodies) {
        buffer[..head.len()].copy_from_slice(head);
        buffer[head.len()..head.len() + begun].copy_from_slice(&body[..begun]);
    }
    let mut buffered = head + begun;
    if buffered == BLOCK {
        (kernel.absorb)(&mut states, &buffers.each_ref().map(|buffer| &buffer[..BLOCK]));
        buffered = 0;
    }
    let whole = begun + (body - begun) / BLOCK * BLOCK;
    (kernel.absorb)(&mut states, &bodies.map(|body| &body[begun..whole]));
    // The rest, a bit, zeros, and the length of all in bits.
    let rest = body - whole;
    let last = buffered + rest;
    let end = if last + 9 <= BLOCK { BLOCK } else { 2 * BLOCK };
    let bits = 8 * (before + head + body) as u64;
    for (buffer, body) in buffers.iter_mut().zip(bodies) {
        buffer[buffered..last].copy_from_slice(&body[whole..]);
        buffer[last..].fill(0);
        buffer[last] = 0x80;
        buffer[end - 8..end].copy_from_slice(&bits.to_be_bytes());
    }
    (kernel.absorb)(&mut states, &buffers.each_ref().map(|buffer| &buffer[..end]));
    for (digest, state) in digests.iter_mut().zip(&states) {
        digest.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    }
}

/// The state after the blocks of HMAC's two keys (RFC 2104).
pub(crate) fn keyed(key: &[u8], states: &mut [State; 2]) {
    let mut block = [0; BLOCK];
    match key.len() {
        0..=BLOCK => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&sha2::Sha256::digest(key)),
    }
    for (state, pad) in states.iter_mut().zip([0x36, 0x5c]) {
        *state = BEGIN;
        sha2::block_api::compress256(state, &[block.map(|byte| byte ^ pad)]);
    }
    block.zeroize();
}

fn portable(states: &mut [State; LANES], blocks: &[&[u8]; LANES]) {
    sha2::block_api::compress256(&mut states[0], blocks[0].as_chunks().0);
}

/// # Safety
/// The processor must have the features named here.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512(states: &mut [State; LANES], blocks: &[&[u8]; LANES]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { absorb::<__m512i, 16>(states, blocks) }
}

/// # Safety
/// The processor must have the feature named here.
#[target_feature(enable = "avx2")]
unsafe fn avx2(states: &mut [State; LANES], blocks: &[&[u8]; LANES]) {
    // SAFETY: the caller vouches for the processor's features.
    unsafe { absorb::<__m256i, 8>(states, blocks) }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn absorb<V: Vector<N>, const N: usize>(states: &mut [State; LANES], blocks: &[&[u8]; LANES]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut vectors: [V; 8] = from_fn(|word| V::from_words(from_fn(|lane| states[lane][word])));
        let lanes: [&[[u8; BLOCK]]; N] = from_fn(|lane| blocks[lane].as_chunks().0);
        for number in 0..lanes[0].len() {
            vectors = compress(vectors, V::words_of(lanes.map(|blocks| &blocks[number])));
        }
        for (word, vector) in vectors.into_iter().enumerate() {
            for (state, new) in states.iter_mut().zip(vector.words()) {
                state[word] = new;
            }
        }
    }
}

/// FIPS 180-4, 6.2.2.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn compress<V: Vector<N>, const N: usize>(state: [V; 8], block: [V; 16]) -> [V; 8] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut w = block;
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for (sixteen, constants) in ROUNDS.as_chunks::<16>().0.iter().enumerate() {
            for_each!(I in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                if sixteen > 0 {
                    let (early, late) = (w[(I + 1) % 16], w[(I + 14) % 16]);
                    let early = V::xor3(early.rotate::<7>(), early.rotate::<18>(), early.shift::<3>());
                    let late = V::xor3(late.rotate::<17>(), late.rotate::<19>(), late.shift::<10>());
                    w[I] = w[I].add(early).add(w[(I + 9) % 16].add(late));
                }
                let sum = V::xor3(e.rotate::<6>(), e.rotate::<11>(), e.rotate::<25>());
                let first = h.add(w[I].add(V::all(constants[I]))).add(V::choose(e, f, g).add(sum));
                let sum = V::xor3(a.rotate::<2>(), a.rotate::<13>(), a.rotate::<22>());
                let second = sum.add(V::majority(a, b, c));
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
trait Vector<const N: usize>: Copy {
    unsafe fn all(word: u32) -> Self;
    unsafe fn from_words(words: [u32; N]) -> Self;
    unsafe fn words(self) -> [u32; N];
    /// The words of the blocks, each vector with one word of all blocks.
    unsafe fn words_of(blocks: [&[u8; BLOCK]; N]) -> [Self; 16];
    unsafe fn add(self, other: Self) -> Self;
    /// Right.
    unsafe fn rotate<const BY: i32>(self) -> Self;
    /// Right.
    unsafe fn shift<const BY: u32>(self) -> Self;
    unsafe fn xor3(a: Self, b: Self, c: Self) -> Self;
    /// `b` where `a` has ones, `c` elsewhere.
    unsafe fn choose(a: Self, b: Self, c: Self) -> Self;
    unsafe fn majority(a: Self, b: Self, c: Self) -> Self;
}

// In both implementations, loads and stores are unaligned and within the named arrays, and everything else works on
// registers. SAFETY of every block: the trait's promise about instructions.

impl Vector<16> for __m512i {
    #[inline(always)]
    unsafe fn all(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn from_words(words: [u32; 16]) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn words(self) -> [u32; 16] {
        let mut words = [0; 16];
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self) };
        words
    }
    #[inline(always)]
    unsafe fn words_of(blocks: [&[u8; BLOCK]; 16]) -> [Self; 16] {
        // SAFETY: see above.
        unsafe {
            let order = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
            let rows = blocks.map(|block| _mm512_shuffle_epi8(_mm512_loadu_si512(block.as_ptr().cast()), order));
            transpose::of_16(rows)
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: i32>(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_ror_epi32::<BY>(self) }
    }
    #[inline(always)]
    unsafe fn shift<const BY: u32>(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_srli_epi32::<BY>(self) }
    }
    #[inline(always)]
    unsafe fn xor3(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_ternarylogic_epi32::<0x96>(a, b, c) }
    }
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

impl Vector<8> for __m256i {
    #[inline(always)]
    unsafe fn all(word: u32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn from_words(words: [u32; 8]) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn words(self) -> [u32; 8] {
        let mut words = [0; 8];
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self) };
        words
    }
    #[inline(always)]
    unsafe fn words_of(blocks: [&[u8; BLOCK]; 8]) -> [Self; 16] {
        // SAFETY: see above.
        unsafe {
            let order = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
            let mut words = [_mm256_setzero_si256(); 16];
            for (half, words) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let row = |block: &[u8; BLOCK]| _mm256_loadu_si256(block[32 * half..][..32].as_ptr().cast());
                *words = transpose::of_8(blocks.map(|block| _mm256_shuffle_epi8(row(block), order)));
            }
            words
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_add_epi32(self, other) }
    }
    #[inline(always)]
    unsafe fn rotate<const BY: i32>(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let (right, left) = (_mm256_set1_epi32(BY), _mm256_set1_epi32(32 - BY));
            _mm256_or_si256(_mm256_srlv_epi32(self, right), _mm256_sllv_epi32(self, left))
        }
    }
    #[inline(always)]
    unsafe fn shift<const BY: u32>(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_srlv_epi32(self, _mm256_set1_epi32(BY as i32)) }
    }
    #[inline(always)]
    unsafe fn xor3(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(a, _mm256_xor_si256(b, c)) }
    }
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

/// Two messages by the SHA instructions: either waits for itself half of the time.
///
/// # Safety
/// The processor must have the features named here.
#[target_feature(enable = "sha,sse4.1")]
unsafe fn sha_instructions(states: &mut [State; LANES], blocks: &[&[u8]; LANES]) {
    let order = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    // The instructions want the words A, B, E, F and C, D, G, H together, the first one highest.
    let word = |state: &State, words: [usize; 4]| {
        let [a, b, c, d] = words.map(|word| state[word] as i32);
        _mm_set_epi32(a, b, c, d)
    };
    let mut abef: [__m128i; 2] = from_fn(|i| word(&states[i], [0, 1, 4, 5]));
    let mut cdgh: [__m128i; 2] = from_fn(|i| word(&states[i], [2, 3, 6, 7]));
    let pairs = blocks[0].as_chunks::<BLOCK>().0.iter().zip(blocks[1].as_chunks::<BLOCK>().0);
    for (one, two) in pairs {
        let before = (abef, cdgh);
        let quarter = |block: &[u8; BLOCK], i: usize| {
            // SAFETY: 16 bytes of the block, at any alignment.
            _mm_shuffle_epi8(unsafe { _mm_loadu_si128(block[16 * i..][..16].as_ptr().cast()) }, order)
        };
        let mut w: [[__m128i; 4]; 2] = [from_fn(|i| quarter(one, i)), from_fn(|i| quarter(two, i))];
        for_each!(FOUR in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
            let at = |i: usize| ROUNDS[4 * FOUR + i] as i32;
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
        let mut random = Random::new(1);
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for head in [0, 1, 24, 55, 63] {
                for body in [0, 1, 8, 31, 32, 39, 40, 54, 55, 56, 63, 64, 65, 119, 120, 512, 4096] {
                    for count in [1, kernel.lanes.div_ceil(2), kernel.lanes] {
                        let (heads, bodies) = (random.bytes(count * head), random.bytes(count * body));
                        let messages = Messages { state: BEGIN, before: 0, head, heads: &heads, body, bodies: &bodies };
                        let mut found = vec![[0; 32]; count];
                        together(kernel, messages, &mut found);
                        assert_eq!(
                            found,
                            by_the_crate(&[], messages, count),
                            "{}: {count}, {head} {body}",
                            kernel.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn any_number_of_messages_goes_on_from_a_state() {
        let mut random = Random::new(2);
        let before = random.bytes(BLOCK);
        let mut state = BEGIN;
        sha2::block_api::compress256(&mut state, before.as_chunks().0);
        for count in 0..=2 * LANES + 2 {
            let (heads, bodies) = (random.bytes(count * 24), random.bytes(count * 70));
            let messages = Messages { state, before: BLOCK, head: 24, heads: &heads, body: 70, bodies: &bodies };
            let mut found = vec![[0; 32]; count];
            digests(messages, &mut found);
            assert_eq!(found, by_the_crate(&before, messages, count), "{count}");
        }
    }

    fn by_the_crate(before: &[u8], messages: Messages<'_>, count: usize) -> Vec<[u8; 32]> {
        let Messages { head, heads, body, bodies, .. } = messages;
        let parts = |i: usize| [before, &heads[i * head..][..head], &bodies[i * body..][..body]].concat();
        (0..count).map(|i| sha2::Sha256::digest(parts(i)).into()).collect()
    }
}

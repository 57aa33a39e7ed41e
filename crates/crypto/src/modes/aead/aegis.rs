//! AEGIS-128 (Wu, Preneel, "AEGIS: A Fast Authenticated Encryption Algorithm", v1.1, CAESAR 2016), as in Linux
//! (crypto/aegis128-core.c). The later AEGIS-128L and AEGIS-256 are different ciphers.
//!
//! A block of a sector is five rounds of AES that do not wait for each other, but the next block waits for all of them. So a
//! kernel works on several sectors side by side: one in each block of a vector, and two vectors.
#![allow(unsafe_code, reason = "vector intrinsics")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array::from_fn;

use aes::Block;
use aes::hazmat::cipher_round;

use super::sealer::{BESIDE, Beside, NUMBER, Sectors};

/// Size of a block, of the key, of the IV and of the tag, in bytes.
pub(super) const SIZE: usize = 16;

/// Constants, the Fibonacci numbers modulo 256 (section 2.1 of the paper).
const CONST_0: [u8; SIZE] =
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62];
const CONST_1: [u8; SIZE] =
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd];

/// The most sectors side by side.
const MOST: usize = 8;

/// Encrypts or decrypts sectors in place, and writes their tags.
///
/// # Panics
/// Unless `run` is a sector of whole blocks for each tag and each entry of `beside`.
pub(super) fn process<const DECRYPT: bool>(key: &[u8; SIZE], sectors: Sectors<'_>, tags: &mut [[u8; SIZE]]) {
    let kernel = KERNELS.iter().find(|kernel| (kernel.usable)()).expect("the last one runs everywhere");
    with_kernel::<DECRYPT>(kernel, key, sectors, tags);
}

struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    name: &'static str,
    usable: fn() -> bool,
    encrypt: Run,
    decrypt: Run,
}

/// May only be called on a processor that can run the kernel, with sectors that fit.
type Run = unsafe fn(&[u8; SIZE], Sectors<'_>, &mut [[u8; SIZE]]);

/// The fastest first; the last one runs everywhere.
const KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "vaes512",
        usable: || {
            is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
        },
        encrypt: vaes512::<false>,
        decrypt: vaes512::<true>,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "vaes256",
        usable: || {
            is_x86_feature_detected!("aes") && is_x86_feature_detected!("vaes") && is_x86_feature_detected!("avx2")
        },
        encrypt: vaes256::<false>,
        decrypt: vaes256::<true>,
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "aesni",
        usable: || is_x86_feature_detected!("aes"),
        encrypt: aesni::<false>,
        decrypt: aesni::<true>,
    },
    Kernel {
        name: "portable",
        usable: || true,
        encrypt: together::<Portable, Portable, false>,
        decrypt: together::<Portable, Portable, true>,
    },
];

fn with_kernel<const DECRYPT: bool>(kernel: &Kernel, key: &[u8; SIZE], sectors: Sectors<'_>, tags: &mut [[u8; SIZE]]) {
    let Sectors { beside, size, ref run, .. } = sectors;
    let count = tags.len();
    assert!(beside.len() == count && Some(run.len()) == count.checked_mul(size), "a tag for each sector");
    assert!(size.is_multiple_of(SIZE), "{size} bytes are no whole blocks");
    // SAFETY: `usable` was asked, and the sectors fit.
    unsafe { if DECRYPT { (kernel.decrypt)(key, sectors, tags) } else { (kernel.encrypt)(key, sectors, tags) } }
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes,vaes,avx512f,avx512vl")]
unsafe fn vaes512<const DECRYPT: bool>(key: &[u8; SIZE], sectors: Sectors<'_>, tags: &mut [[u8; SIZE]]) {
    // SAFETY: the caller's promise.
    unsafe { together::<__m512i, __m128i, DECRYPT>(key, sectors, tags) }
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes,vaes,avx2")]
unsafe fn vaes256<const DECRYPT: bool>(key: &[u8; SIZE], sectors: Sectors<'_>, tags: &mut [[u8; SIZE]]) {
    // SAFETY: the caller's promise.
    unsafe { together::<__m256i, __m128i, DECRYPT>(key, sectors, tags) }
}

/// # Safety
/// The processor has the features named here, and the sectors fit.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes,sse2")]
unsafe fn aesni<const DECRYPT: bool>(key: &[u8; SIZE], sectors: Sectors<'_>, tags: &mut [[u8; SIZE]]) {
    // SAFETY: the caller's promise.
    unsafe { together::<__m128i, __m128i, DECRYPT>(key, sectors, tags) }
}

/// Processes two vectors of sectors at a time, and the remaining sectors one by one, in vectors of one block.
///
/// # Safety
/// `run` is a sector of whole blocks for each tag and each entry of `beside`; the processor has the instructions of both vectors.
#[inline(always)]
unsafe fn together<V: Lanes, One: Lanes, const DECRYPT: bool>(
    key: &[u8; SIZE],
    sectors: Sectors<'_>,
    tags: &mut [[u8; SIZE]],
) {
    let Sectors { beside, size, run } = sectors;
    let mut at = 0;
    while at < tags.len() {
        let rest = (&beside[at..], &mut run[at * size..], &mut tags[at..]);
        // SAFETY: the caller's promise; so many sectors are left.
        unsafe {
            if rest.2.len() >= 2 * V::LANES {
                group::<V, 2, DECRYPT>(key, rest.0, size, rest.1, rest.2);
                at += 2 * V::LANES;
            } else {
                group::<One, 1, DECRYPT>(key, rest.0, size, rest.1, rest.2);
                at += One::LANES;
            }
        }
    }
}

/// Processes the first `N` vectors of sectors.
///
/// # Safety
/// There are as many sectors of whole blocks, entries of `beside` and tags; the processor has the vector's instructions.
#[inline(always)]
unsafe fn group<V: Lanes, const N: usize, const DECRYPT: bool>(
    key: &[u8; SIZE],
    beside: &[Beside],
    size: usize,
    run: &mut [u8],
    tags: &mut [[u8; SIZE]],
) {
    let mut heads = [[0; 2 * SIZE]; MOST];
    heads.iter_mut().zip(beside).for_each(|(head, beside)| head[..BESIDE].copy_from_slice(beside));
    let heads = heads.as_flattened();
    let (run, tags) = (run.as_mut_ptr(), tags.as_mut_ptr().cast::<u8>());
    // SAFETY: the caller's promise. Vector `i` has sectors `i * V::LANES` and after.
    unsafe {
        let head = |at: usize| from_fn(|i| V::gather(heads.as_ptr().add(i * V::LANES * 2 * SIZE + at), 2 * SIZE));
        let place = |i: usize, at: usize| run.add(i * V::LANES * size + at);
        let mut state = State::<V, N>::new(V::splat(key), head(NUMBER));
        state.update(head(0));
        state.update(head(SIZE));
        for at in (0..size).step_by(SIZE) {
            let given: [V; N] = from_fn(|i| V::gather(place(i, at), size));
            let stream = state.stream();
            let made: [V; N] = from_fn(|i| given[i].xor(stream[i]));
            state.update(if DECRYPT { made } else { given });
            made.iter().enumerate().for_each(|(i, made)| made.scatter(place(i, at), size));
        }
        let sums = state.tags(BESIDE, size);
        sums.iter().enumerate().for_each(|(i, tag)| tag.scatter(tags.add(i * V::LANES * SIZE), SIZE));
    }
}

/// Five blocks for each sector.
struct State<V, const N: usize>([[V; 5]; N]);

/// Each method may only be called if the processor has the vector's instructions.
impl<V: Lanes, const N: usize> State<V, N> {
    #[inline(always)]
    unsafe fn new(key: V, ivs: [V; N]) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let (zero, one) = (V::splat(&CONST_0), V::splat(&CONST_1));
            let mut state = Self(ivs.map(|iv| [key.xor(iv), one, zero, key.xor(zero), key.xor(one)]));
            for _ in 0..5 {
                state.update([key; N]);
                state.update(ivs.map(|iv| key.xor(iv)));
            }
            state
        }
    }

    /// The function StateUpdate128.
    #[inline(always)]
    unsafe fn update(&mut self, messages: [V; N]) {
        for ([s0, s1, s2, s3, s4], message) in self.0.iter_mut().zip(messages) {
            // SAFETY: the caller's promise.
            unsafe {
                let first = s4.round(s0.xor(message));
                (*s4, *s3, *s2, *s1, *s0) = (s3.round(*s4), s2.round(*s3), s1.round(*s2), s0.round(*s1), first);
            }
        }
    }

    #[inline(always)]
    unsafe fn stream(&self) -> [V; N] {
        // SAFETY: the caller's promise.
        self.0.map(|[_, s1, s2, s3, s4]| unsafe { s1.xor(s4).xor(s2.and(s3)) })
    }

    /// `beside` and `size` are lengths in bytes.
    #[inline(always)]
    unsafe fn tags(mut self, beside: usize, size: usize) -> [V; N] {
        let mut lengths = [0; SIZE];
        lengths[..8].copy_from_slice(&(beside as u64 * 8).to_le_bytes());
        lengths[8..].copy_from_slice(&(size as u64 * 8).to_le_bytes());
        // SAFETY: the caller's promise.
        unsafe {
            let lengths = V::splat(&lengths);
            let last = from_fn(|i| lengths.xor(self.0[i][3]));
            for _ in 0..7 {
                self.update(last);
            }
            self.0.map(|[s0, s1, s2, s3, s4]| s0.xor(s1).xor(s2).xor(s3).xor(s4))
        }
    }
}

/// A vector with one block of each of several sectors. Each method may only be called if the processor has the instructions that
/// the implementation names, and that a kernel is entered with.
trait Lanes: Copy {
    /// Blocks in a vector.
    const LANES: usize;
    /// Reads a block from every `stride` bytes.
    unsafe fn gather(from: *const u8, stride: usize) -> Self;
    /// Writes a block to every `stride` bytes.
    unsafe fn scatter(self, to: *mut u8, stride: usize);
    /// The same block in every lane.
    unsafe fn splat(block: &[u8; SIZE]) -> Self;
    /// A round of AES.
    unsafe fn round(self, key: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
}

// SAFETY of every block below: the trait's promise about instructions, and for memory the caller's about places. Loads and stores
// are unaligned.

#[derive(Clone, Copy)]
struct Portable([u8; SIZE]);

impl Lanes for Portable {
    const LANES: usize = 1;
    unsafe fn gather(from: *const u8, _: usize) -> Self {
        // SAFETY: see above.
        Self(unsafe { from.cast::<[u8; SIZE]>().read() })
    }
    unsafe fn scatter(self, to: *mut u8, _: usize) {
        // SAFETY: see above.
        unsafe { to.cast::<[u8; SIZE]>().write(self.0) }
    }
    unsafe fn splat(block: &[u8; SIZE]) -> Self {
        Self(*block)
    }
    unsafe fn round(self, key: Self) -> Self {
        let mut block = Block::from(self.0);
        cipher_round(&mut block, &Block::from(key.0));
        Self(block.into())
    }
    unsafe fn xor(self, other: Self) -> Self {
        Self((u128::from_ne_bytes(self.0) ^ u128::from_ne_bytes(other.0)).to_ne_bytes())
    }
    unsafe fn and(self, other: Self) -> Self {
        Self((u128::from_ne_bytes(self.0) & u128::from_ne_bytes(other.0)).to_ne_bytes())
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m128i {
    const LANES: usize = 1;
    #[inline(always)]
    unsafe fn gather(from: *const u8, _: usize) -> Self {
        // SAFETY: see above.
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn scatter(self, to: *mut u8, _: usize) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn splat(block: &[u8; SIZE]) -> Self {
        // SAFETY: see above.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn round(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_aesenc_si128(self, key) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_xor_si128(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm_and_si128(self, other) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m256i {
    const LANES: usize = 2;
    #[inline(always)]
    unsafe fn gather(from: *const u8, stride: usize) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu2_m128i(from.add(stride).cast(), from.cast()) }
    }
    #[inline(always)]
    unsafe fn scatter(self, to: *mut u8, stride: usize) {
        // SAFETY: see above.
        unsafe { _mm256_storeu2_m128i(to.add(stride).cast(), to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn splat(block: &[u8; SIZE]) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(block.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn round(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_aesenc_epi128(self, key) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(self, other) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512i {
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn gather(from: *const u8, stride: usize) -> Self {
        // SAFETY: see above.
        unsafe {
            let block = |i: usize| _mm_loadu_si128(from.add(i * stride).cast());
            let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(block(0)), block(1));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, block(2)), block(3))
        }
    }
    #[inline(always)]
    unsafe fn scatter(self, to: *mut u8, stride: usize) {
        // SAFETY: see above.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm512_castsi512_si128(self));
            _mm_storeu_si128(to.add(stride).cast(), _mm512_extracti32x4_epi32::<1>(self));
            _mm_storeu_si128(to.add(2 * stride).cast(), _mm512_extracti32x4_epi32::<2>(self));
            _mm_storeu_si128(to.add(3 * stride).cast(), _mm512_extracti32x4_epi32::<3>(self));
        }
    }
    #[inline(always)]
    unsafe fn splat(block: &[u8; SIZE]) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn round(self, key: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_aesenc_epi128(self, key) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(self, other) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test vector at the end of the paper's section on AEGIS-128, also in Linux, crypto/testmgr.h,
    /// `aegis128_tv_template`.
    #[test]
    fn a_vector_of_the_paper() {
        let (mut text, key) = ([0; SIZE], Portable([0; SIZE]));
        // SAFETY: it takes no instructions.
        let tag = unsafe {
            let mut state = State::<Portable, 1>::new(key, [key]);
            let [stream] = state.stream();
            state.update([key]);
            text = (u128::from_ne_bytes(text) ^ u128::from_ne_bytes(stream.0)).to_ne_bytes();
            let [tag] = state.tags(0, text.len());
            tag.0
        };
        assert_eq!(hex(&text), "951b050fa72b1a2fc16d2e1f01b07d7e");
        assert_eq!(hex(&tag), "a7d2a99773249542f422217ee888d5f1");
    }

    /// Each kernel and the portable one agree, for every number of sectors up to more than two groups.
    #[test]
    fn all_kernels_agree() {
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for size in [0, 16, 48, 512] {
                for count in 0..=2 * MOST + 3 {
                    let key = from_fn(|i| i as u8 * 7 + 1);
                    let beside: Vec<Beside> = (0..count).map(|n| from_fn(|i| (n * 31 + i * 5) as u8)).collect();
                    let plain: Vec<u8> = (0..count * size).map(|i| (i * 11 + i / 256) as u8).collect();
                    let process = |kernel, decrypt, run: &mut [u8]| {
                        let sectors = Sectors { beside: &beside, size, run };
                        let mut tags = vec![[0xee; SIZE]; count];
                        match decrypt {
                            true => with_kernel::<true>(kernel, &key, sectors, &mut tags),
                            false => with_kernel::<false>(kernel, &key, sectors, &mut tags),
                        }
                        tags
                    };
                    let (mut right, mut run) = (plain.clone(), plain.clone());
                    let tags = process(KERNELS.last().expect("a kernel"), false, &mut right);
                    let what = format!("{}, {count} sectors of {size}", kernel.name);
                    assert_eq!(process(kernel, false, &mut run), tags, "{what}");
                    assert_eq!(run, right, "{what}");
                    assert_eq!(process(kernel, true, &mut run), tags, "{what}, decrypting");
                    assert_eq!(run, plain, "{what}, decrypting");
                }
            }
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }
}

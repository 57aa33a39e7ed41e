//! Camellia's vectors. With VBMI or GFNI, an S-box is a few instructions. Otherwise AES instructions do the inversion, and byte
//! shuffles the affine functions before and after it.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use super::s_boxes::{By, S1, S2, S3, S4, after, before, halves, matrix};
use super::{Bytes, Camellia, Entries, Half, Keys, Masks, Subkey, group, schedule};
use crate::ciphers::Kernel;
use crate::ciphers::wide::{groups, padded};
use crate::vbmi;

/// VBMI on 512-bit vectors, 64 blocks: an S-box is two permutations.
pub(in crate::ciphers) const VBMI: Kernel = Kernel {
    name: "vbmi-gfni",
    usable: vbmi::usable,
    aes_instructions: false,
    constant_time: true,
    expand: |key| Camellia::with_key(key, &OF_VBMI),
};

/// GFNI on 256-bit vectors, 32 blocks.
pub(in crate::ciphers) const GFNI256: Kernel = Kernel {
    name: "gfni256",
    usable: || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
    aes_instructions: false,
    constant_time: true,
    expand: |key| Camellia::with_key(key, &OF_GFNI256),
};

/// AES instructions on 256-bit vectors, 32 blocks.
pub(in crate::ciphers) const VAES256: Kernel = Kernel {
    name: "vaes256",
    usable: || is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vaes"),
    aes_instructions: true,
    constant_time: true,
    expand: |key| Camellia::with_key(key, &OF_VAES256),
};

/// AES instructions on the halves of 256-bit vectors, 32 blocks.
pub(in crate::ciphers) const AESNI: Kernel = Kernel {
    name: "aesni-avx2",
    usable: || is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx2"),
    aes_instructions: true,
    constant_time: true,
    expand: |key| Camellia::with_key(key, &OF_AESNI),
};

/// The instructions of each kernel, and the functions that enter it with them.
macro_rules! entries {
    ($entries:ident, $vector:ty, $group:literal, $features:literal) => {
        static $entries: Entries = {
            #[target_feature(enable = $features)]
            fn schedule_here(key: &[u8], keys: &mut Keys) {
                schedule::<$vector>(key, keys);
            }

            #[target_feature(enable = $features)]
            fn group_here<const MASKED: bool>(keys: &[Subkey], masks: &[u8; $group], blocks: &mut [u8; $group]) {
                group::<$vector, MASKED>(keys, masks, blocks);
            }

            #[target_feature(enable = $features)]
            fn crypt_here<const MASKED: bool>(keys: &[Subkey], mut masks: Masks<'_>, run: &mut [u8]) {
                let rest = groups::<$group, MASKED>(&mut masks, run, |masks, blocks| {
                    group_here::<MASKED>(keys, masks, blocks);
                });
                padded::<$group, MASKED>(&mut masks, rest, |masks, blocks| {
                    group_here::<MASKED>(keys, masks, blocks);
                });
            }

            Entries { schedule: schedule_here, crypt: crypt_here::<false>, masked: crypt_here::<true> }
        };
    };
}
entries!(OF_VBMI, Vbmi, 1024, "avx512f,avx512bw,avx512vbmi,gfni");
entries!(OF_GFNI256, Gfni256, 512, "avx2,gfni");
entries!(OF_VAES256, Aes256<true>, 512, "avx2,aes,vaes");
entries!(OF_AESNI, Aes256<false>, 512, "avx2,aes");

// Values of the three types only come from the functions above.

#[derive(Clone, Copy)]
struct Vbmi(__m512i);

#[derive(Clone, Copy)]
struct Gfni256(__m256i);

/// With AES instructions for whole vectors, or for halves.
#[derive(Clone, Copy)]
struct Aes256<const WHOLE: bool>(__m256i);

// SAFETY of every block: a value of the type exists, or is about to be made by one of the functions above, so that the processor has
// the instructions; what is loaded or stored is as long as the vector, and may have any alignment.

/// The S-boxes of a half's bytes. For each: whether its input is rotated, and by how many bits its output is rotated.
macro_rules! s_boxes {
    ($s_box:ident, $x:ident) => {{
        let [a, b, c, d, e, f, g, h] = $x;
        [
            $s_box!(a, false, 0),
            $s_box!(b, false, 1),
            $s_box!(c, false, 7),
            $s_box!(d, true, 0),
            $s_box!(e, false, 1),
            $s_box!(f, false, 7),
            $s_box!(g, true, 0),
            $s_box!(h, false, 0),
        ]
    }};
}

impl Bytes for Vbmi {
    const BLOCKS: usize = 64;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn doubled(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_epi8(self.0, self.0) })
    }

    #[inline(always)]
    fn highest(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_and_si512(_mm512_srli_epi16::<7>(self.0), _mm512_set1_epi8(1)) })
    }

    #[inline(always)]
    fn first(self) -> u8 {
        // SAFETY: see above.
        (unsafe { _mm512_cvtsi512_si32(self.0) }) as u8
    }

    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        let bytes: &[u8; 64] = bytes.first_chunk().expect("a byte for each block");
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8]) {
        let bytes: &mut [u8; 64] = bytes.first_chunk_mut().expect("a byte for each block");
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn interleave(self, other: Self) -> [Self; 2] {
        // SAFETY: see above.
        unsafe { [Self(_mm512_unpacklo_epi8(self.0, other.0)), Self(_mm512_unpackhi_epi8(self.0, other.0))] }
    }

    #[inline(always)]
    fn substitute<const BACK: bool>([a, b, c, d, e, f, g, h]: Half<Self>) -> Half<Self> {
        // SAFETY: see above.
        let s_box = |table, x: Self| Self(unsafe { vbmi::substitute(table, x.0) });
        [
            s_box(&S1, a),
            s_box(&S2, b),
            s_box(&S3, c),
            s_box(&S4, d),
            s_box(&S2, e),
            s_box(&S3, f),
            s_box(&S4, g),
            s_box(&S1, h),
        ]
    }

    #[inline(always)]
    fn moved<const BACK: bool>(self) -> Self {
        self
    }

    /// Adding three terms is one instruction, so this makes chains of additions short instead of few.
    #[inline(always)]
    fn mix([a, b, c, d, e, f, g, h]: Half<Self>, to: &mut Half<Self>) {
        to[0] = sum(sum(a, c, d), sum(f, g, h), to[0]);
        to[1] = sum(sum(a, b, d), sum(e, g, h), to[1]);
        to[2] = sum(sum(a, b, c), sum(e, f, h), to[2]);
        to[3] = sum(sum(b, c, d), sum(e, f, g), to[3]);
        to[4] = sum(sum(a, b, f), g.xor(h), to[4]);
        to[5] = sum(sum(b, c, e), g.xor(h), to[5]);
        to[6] = sum(sum(c, d, e), f.xor(h), to[6]);
        to[7] = sum(sum(a, d, e), f.xor(g), to[7]);
    }
}

#[inline(always)]
fn sum(a: Vbmi, b: Vbmi, c: Vbmi) -> Vbmi {
    // SAFETY: see above.
    Vbmi(unsafe { vbmi::xor3(a.0, b.0, c.0) })
}

/// The methods that both kinds of 256-bit vectors share.
macro_rules! bytes_256 {
    () => {
        const BLOCKS: usize = 32;

        #[inline(always)]
        fn splat(word: u32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
        }

        #[inline(always)]
        fn xor(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_xor_si256(self.0, other.0) })
        }

        #[inline(always)]
        fn and(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_and_si256(self.0, other.0) })
        }

        #[inline(always)]
        fn or(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_or_si256(self.0, other.0) })
        }

        #[inline(always)]
        fn doubled(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_epi8(self.0, self.0) })
        }

        #[inline(always)]
        fn highest(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_and_si256(_mm256_srli_epi16::<7>(self.0), _mm256_set1_epi8(1)) })
        }

        #[inline(always)]
        fn first(self) -> u8 {
            // SAFETY: see above.
            (unsafe { _mm256_cvtsi256_si32(self.0) }) as u8
        }

        #[inline(always)]
        fn load(bytes: &[u8]) -> Self {
            let bytes: &[u8; 32] = bytes.first_chunk().expect("a byte for each block");
            // SAFETY: see above.
            Self(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
        }

        #[inline(always)]
        fn store(self, bytes: &mut [u8]) {
            let bytes: &mut [u8; 32] = bytes.first_chunk_mut().expect("a byte for each block");
            // SAFETY: see above.
            unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), self.0) }
        }

        #[inline(always)]
        fn interleave(self, other: Self) -> [Self; 2] {
            // SAFETY: see above.
            unsafe { [Self(_mm256_unpacklo_epi8(self.0, other.0)), Self(_mm256_unpackhi_epi8(self.0, other.0))] }
        }
    };
}

impl Bytes for Gfni256 {
    bytes_256!();

    #[inline(always)]
    fn substitute<const BACK: bool>(x: Half<Self>) -> Half<Self> {
        macro_rules! s_box {
            ($x:expr, $turned:literal, $rotation:literal) => {{
                const BEFORE: i32 = before(By::Inversion, $turned)[0] as i32;
                const AFTER: i32 = after(By::Inversion, $rotation)[0] as i32;
                // SAFETY: see above.
                Self(unsafe {
                    let matrix_before = _mm256_set1_epi64x(const { matrix(before(By::Inversion, $turned)) });
                    let matrix_after = _mm256_set1_epi64x(const { matrix(after(By::Inversion, $rotation)) });
                    let y = _mm256_gf2p8affine_epi64_epi8::<BEFORE>($x.0, matrix_before);
                    _mm256_gf2p8affineinv_epi64_epi8::<AFTER>(y, matrix_after)
                })
            }};
        }
        s_boxes!(s_box, x)
    }

    #[inline(always)]
    fn moved<const BACK: bool>(self) -> Self {
        self
    }
}

/// AES's last round moves bytes, too, and decryption's last round moves them back. So the halves of blocks are in different orders.
impl<const WHOLE: bool> Bytes for Aes256<WHOLE> {
    bytes_256!();

    #[inline(always)]
    fn substitute<const BACK: bool>(x: Half<Self>) -> Half<Self> {
        macro_rules! s_box {
            ($x:expr, $turned:literal, $rotation:literal) => {{
                match BACK {
                    false => {
                        let y = $x.through(const { &halves(before(By::Aes, $turned)) });
                        y.inverted::<false>().through(const { &halves(after(By::Aes, $rotation)) })
                    }
                    true => {
                        let y = $x.through(const { &halves(before(By::AesInverse, $turned)) });
                        y.inverted::<true>().through(const { &halves(after(By::AesInverse, $rotation)) })
                    }
                }
            }};
        }
        s_boxes!(s_box, x)
    }

    #[inline(always)]
    fn moved<const BACK: bool>(self) -> Self {
        // Rows of a square that is filled column by column, rotated by their number.
        const ORDER: [[u8; 16]; 2] = {
            let mut order = [[0; 16]; 2];
            let mut i = 0;
            while i < 16 {
                let from = (i + 4 * (i % 4)) % 16;
                order[0][i] = from as u8;
                order[1][from] = i as u8;
                i += 1;
            }
            order
        };
        self.shuffled(const { &ORDER[BACK as usize] })
    }
}

impl<const WHOLE: bool> Aes256<WHOLE> {
    /// The bytes that 16 numbers below 16 stand for.
    #[inline(always)]
    fn table(bytes: &[u8; 16]) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn shuffled(self, order: &[u8; 16]) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_shuffle_epi8(self.0, Self::table(order)) })
    }

    /// An affine function.
    #[inline(always)]
    fn through(self, [low, high]: &[[u8; 16]; 2]) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            let four = _mm256_set1_epi8(15);
            let of_low = _mm256_shuffle_epi8(Self::table(low), _mm256_and_si256(self.0, four));
            let shifted = _mm256_and_si256(_mm256_srli_epi16::<4>(self.0), four);
            _mm256_xor_si256(of_low, _mm256_shuffle_epi8(Self::table(high), shifted))
        })
    }

    /// AES's S-box, or its inverse.
    #[inline(always)]
    fn inverted<const BACK: bool>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            if WHOLE {
                let zero = _mm256_setzero_si256();
                return Self(match BACK {
                    false => _mm256_aesenclast_epi128(self.0, zero),
                    true => _mm256_aesdeclast_epi128(self.0, zero),
                });
            }
            let zero = _mm_setzero_si128();
            let [low, high] = [_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0)];
            match BACK {
                false => _mm256_set_m128i(_mm_aesenclast_si128(high, zero), _mm_aesenclast_si128(low, zero)),
                true => _mm256_set_m128i(_mm_aesdeclast_si128(high, zero), _mm_aesdeclast_si128(low, zero)),
            }
        })
    }
}

//! Serpent with NEON, which every AArch64 has: four sets of four blocks, which fit the 32 registers.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::aarch64::*;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::binary::Lanes;
use super::rounds::{RoundKeys, run};
use crate::ciphers::wide::block_cipher;
use crate::secret::LockedBox;
use crate::tweak::Masks;

pub(super) struct Neon(pub(super) LockedBox<RoundKeys>);

block_cipher!([] Neon);

impl Neon {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        run::crypt::<Q, 4, DECRYPT, MASKED>(&self.0, masks, run);
    }
}

/// Four lanes.
#[derive(Clone, Copy)]
struct Q(uint32x4_t);

// SAFETY of every block: this is an AArch64.

impl BitXor for Q {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { veorq_u32(self.0, other.0) })
    }
}

impl BitAnd for Q {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vandq_u32(self.0, other.0) })
    }
}

impl BitOr for Q {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vorrq_u32(self.0, other.0) })
    }
}

impl Not for Q {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vmvnq_u32(self.0) })
    }
}

impl Lanes for Q {
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { vdupq_n_u32(word) })
    }

    #[inline(always)]
    fn shl<const N: i32>(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vshlq_n_u32::<N>(self.0) })
    }

    #[inline(always)]
    fn rotl<const N: i32>(self) -> Self {
        // The count of a right shift by a constant is not a constant expression in N. A shift to the left by a negative
        // count is one to the right.
        // SAFETY: see above.
        self.shl::<N>() | Self(unsafe { vshlq_u32(self.0, vdupq_n_s32(N - 32)) })
    }

    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        assert!(bytes.len() == 16);
        // SAFETY: as above; the slice is long enough, and the load takes any alignment.
        Self(unsafe { vreinterpretq_u32_u8(vld1q_u8(bytes.as_ptr())) })
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8]) {
        assert!(bytes.len() == 16);
        // SAFETY: as above; the slice is long enough, and the store takes any alignment.
        unsafe { vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_u32(self.0)) }
    }

    #[inline(always)]
    fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: see above.
        unsafe {
            let [ab0, cd0] = [vtrn1q_u32(a.0, b.0), vtrn1q_u32(c.0, d.0)].map(|pairs| vreinterpretq_u64_u32(pairs));
            let [ab1, cd1] = [vtrn2q_u32(a.0, b.0), vtrn2q_u32(c.0, d.0)].map(|pairs| vreinterpretq_u64_u32(pairs));
            [vtrn1q_u64(ab0, cd0), vtrn1q_u64(ab1, cd1), vtrn2q_u64(ab0, cd0), vtrn2q_u64(ab1, cd1)]
                .map(|row| Self(vreinterpretq_u32_u64(row)))
        }
    }
}

//! Serpent on arrays of words, for any target. The compiler may or may not vectorise them.

use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::binary::Lanes;

/// `N` lanes.
#[derive(Clone, Copy)]
pub(super) struct Words<const N: usize>([u32; N]);

impl<const N: usize> Words<N> {
    #[inline(always)]
    fn each(self, f: impl Fn(u32) -> u32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn both(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl<const N: usize> BitXor for Words<N> {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        self.both(other, |a, b| a ^ b)
    }
}

impl<const N: usize> BitAnd for Words<N> {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        self.both(other, |a, b| a & b)
    }
}

impl<const N: usize> BitOr for Words<N> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        self.both(other, |a, b| a | b)
    }
}

impl<const N: usize> Not for Words<N> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        self.each(|a| !a)
    }
}

impl<const N: usize> Lanes for Words<N> {
    const LANES: usize = N;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self([word; N])
    }

    #[inline(always)]
    fn shl<const S: i32>(self) -> Self {
        self.each(|a| a << S)
    }

    #[inline(always)]
    fn rotl<const S: i32>(self) -> Self {
        self.each(|a| a.rotate_left(S as u32))
    }

    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks();
        Self(std::array::from_fn(|i| u32::from_le_bytes(words[i])))
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8]) {
        let (words, _) = bytes.as_chunks_mut();
        for (to, word) in words.iter_mut().zip(self.0) {
            *to = word.to_le_bytes();
        }
    }

    /// Each four lanes of the four vectors are a matrix of four by four.
    #[inline(always)]
    fn transpose(set: [Self; 4]) -> [Self; 4] {
        const { assert!(N.is_multiple_of(4) || N == 1) };
        if N == 1 {
            return set;
        }
        std::array::from_fn(|row| Self(std::array::from_fn(|i| set[i % 4].0[i / 4 * 4 + row])))
    }
}

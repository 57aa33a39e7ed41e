//! Serpent's S-boxes in gates of two inputs: 109 gates for the eight, 12 to 15 each.
//!
//! Found by our own search: breadth first from both ends, the identity and the S-box, over steps that xor a function of
//! some registers into another one. Each step is its own inverse, so the same steps in reverse order give the inverse
//! S-box. The functions are normalised, N(x) = S(x) ^ S(0), which lets the search do without NOT (see
//! [`super::rounds`]); an AND takes either input inverted, which is one instruction on x86.

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// A vector of 32-bit lanes. Bit operations and shifts work on each lane by itself.
pub(super) trait Lanes:
    Copy + BitXor<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
    /// Number of lanes, and so of blocks in a set of four vectors.
    const LANES: usize;

    /// Every lane is `word`.
    fn splat(word: u32) -> Self;
    /// Shifts left by `N` bits.
    fn shl<const N: i32>(self) -> Self;
    /// Rotates left by `N` bits.
    fn rotl<const N: i32>(self) -> Self;

    /// `LANES * 4` bytes, at any alignment.
    fn load(bytes: &[u8]) -> Self;
    /// The inverse of `load`.
    fn store(self, bytes: &mut [u8]);
    /// Transposes blocks into words and back: an involution. In which lane a block ends up does not matter.
    fn transpose(set: [Self; 4]) -> [Self; 4];

    /// N of an S-box. The default uses gates of two inputs.
    #[inline(always)]
    fn substitute<const BOX: usize>(x: [Self; 4]) -> [Self; 4] {
        forward::<_, BOX>(x)
    }

    /// The inverse of `substitute`.
    #[inline(always)]
    fn unsubstitute<const BOX: usize>(y: [Self; 4]) -> [Self; 4] {
        inverse::<_, BOX>(y)
    }
}

/// N of the S-box `BOX` (0..8).
#[inline(always)]
pub(super) fn forward<L: Lanes, const BOX: usize>(x: [L; 4]) -> [L; 4] {
    match BOX {
        0 => n0(x),
        1 => n1(x),
        2 => n2(x),
        3 => n3(x),
        4 => n4(x),
        5 => n5(x),
        6 => n6(x),
        _ => n7(x),
    }
}

/// The inverse of [`forward`].
#[inline(always)]
pub(super) fn inverse<L: Lanes, const BOX: usize>(y: [L; 4]) -> [L; 4] {
    match BOX {
        0 => n0_inverse(y),
        1 => n1_inverse(y),
        2 => n2_inverse(y),
        3 => n3_inverse(y),
        4 => n4_inverse(y),
        5 => n5_inverse(y),
        6 => n6_inverse(y),
        _ => n7_inverse(y),
    }
}

/// Turns the steps into a function, and the reversed steps into another.
macro_rules! circuit {
    ($forward:ident, $inverse:ident, [$($in:ident),*] => [$($out:ident),*], $($target:ident ^= $value:expr;)*) => {
        #[inline(always)]
        fn $forward<L: Lanes>([$(mut $in),*]: [L; 4]) -> [L; 4] {
            $($target = $target ^ ($value);)*
            [$($out),*]
        }

        #[inline(always)]
        fn $inverse<L: Lanes>([$(mut $out),*]: [L; 4]) -> [L; 4] {
            backwards!([] $($target ^= $value;)*);
            [$($in),*]
        }
    };
}

macro_rules! backwards {
    ([$($target:ident ^= $value:expr;)*]) => { $($target = $target ^ ($value);)* };
    ([$($done:tt)*] $target:ident ^= $value:expr; $($rest:tt)*) => {
        backwards!([$target ^= $value; $($done)*] $($rest)*)
    };
}

circuit! { n0, n0_inverse, [a, b, c, d] => [a, d, b, c],
    b ^= d | a; d ^= !a & b; a ^= b & d; d ^= a & !c; c ^= b; a ^= d; a ^= c; b ^= d & a;
}
circuit! { n1, n1_inverse, [a, b, c, d] => [d, c, a, b],
    a ^= b; c ^= a & b; b ^= !d & a; a ^= b & c; d ^= a; b ^= d; c ^= d; a ^= c; d ^= b & c;
}
circuit! { n2, n2_inverse, [a, b, c, d] => [b, c, d, a],
    d ^= a & c; a ^= b & d; b ^= c; c ^= d & !a; a ^= b; b ^= d; d ^= a & !c; c ^= d;
}
circuit! { n3, n3_inverse, [a, b, c, d] => [a, b, c, d],
    a ^= b; c ^= !d & b; d ^= (b & c) | a; b ^= d & !a; b ^= c; a ^= b & !c; c ^= d; d ^= !a & c; b ^= d;
}
circuit! { n4, n4_inverse, [a, b, c, d] => [c, a, b, d],
    c ^= d & !a; a ^= b | c; d ^= a; b ^= (c | a) & !d; c ^= b; a ^= c; c ^= !d & b; b ^= c | a;
}
circuit! { n5, n5_inverse, [a, b, c, d] => [c, a, d, b],
    c ^= !a & b; b ^= c | d; a ^= b; d ^= (b & !c) | a; c ^= d; b ^= c; c ^= d | a; d ^= b | c;
}
circuit! { n6, n6_inverse, [a, b, c, d] => [d, b, a, c],
    a ^= d; c ^= d & !a; b ^= c; d ^= !a & b; a ^= !c & d; d ^= c; a ^= b; c ^= d & !a; d ^= a;
}
circuit! { n7, n7_inverse, [a, b, c, d] => [d, c, b, a],
    d ^= !b & c; c ^= d & a; b ^= c; c ^= (a & !b) | d; a ^= b; b ^= c | d; d ^= !a & b; c ^= a; b ^= d;
}

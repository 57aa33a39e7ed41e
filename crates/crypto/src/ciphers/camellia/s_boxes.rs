//! Camellia's S-boxes as operations that processors have: an inversion in AES's field between two affine functions.
//!
//! S1 is an inversion in another field of 256 elements between two affine functions (the designers' specification of 2001, section
//! 4.4). That field is isomorphic to AES's, and the isomorphism becomes part of the functions. S2 and S3 are S1 with rotated
//! outputs, S4 is S1 with rotated inputs. AES's own S-box and its inverse are each an inversion and one more affine function.

use crate::gf256::multiply;

/// AES's field (FIPS 197, section 4.2).
const MODULUS: u16 = 0x11b;

/// An affine function of a byte, as a table of its values.
pub(super) type Affine = [u8; 256];

/// The affine function that S1 applies before the inversion.
const BEFORE: Affine = {
    // The image in AES's field of each bit of the input, the lowest first. It follows from the specification, where the field's
    // generator is one of the eight roots of its polynomial in AES's field; this is one of them.
    let bits = [0xb8, 0x03, 0xd9, 0x17, 0x0d, 0x59, 0x84, 0xee];
    let mut before = [0; 256];
    let mut x = 0;
    while x < 256 {
        let mut bit = 0;
        while bit < 8 {
            if (x ^ 0xc5) >> bit & 1 == 1 {
                before[x] ^= bits[bit];
            }
            bit += 1;
        }
        x += 1;
    }
    before
};

const INVERSION: [u8; 256] = {
    let mut inversion = [0; 256];
    let mut x = 1;
    while x < 256 {
        // The 254th power.
        let (mut power, mut square, mut i) = (1, x as u8, 1);
        while i < 8 {
            square = multiply(square, square, MODULUS);
            power = multiply(power, square, MODULUS);
            i += 1;
        }
        inversion[x] = power;
        x += 1;
    }
    inversion
};

/// AES's S-box (FIPS 197, section 5.1.1).
const AES: [u8; 256] = {
    let mut s_box = [0; 256];
    let mut x = 0;
    while x < 256 {
        let y = INVERSION[x];
        s_box[x] = y ^ y.rotate_left(1) ^ y.rotate_left(2) ^ y.rotate_left(3) ^ y.rotate_left(4) ^ 0x63;
        x += 1;
    }
    s_box
};

/// How the processor inverts.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// With an instruction for the inversion alone.
    Inversion,
    /// AES's S-box.
    Aes,
    /// The inverse of AES's S-box.
    AesInverse,
}

/// The affine function before the inversion, in S-boxes 1 to 3, and in S-box 4 with `turned`.
pub(super) const fn before(by: By, turned: bool) -> Affine {
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let y = BEFORE[(x as u8).rotate_left(turned as u32) as usize];
        table[x] = match by {
            By::Inversion | By::Aes => y,
            // AES's inverse S-box maps this value to y's inverse.
            By::AesInverse => AES[INVERSION[y as usize] as usize],
        };
        x += 1;
    }
    checked(table)
}

/// The affine function after the inversion, with the output rotated to the left: in S-boxes 1 and 4 by 0, in S-box 2 by 1, in S-box
/// 3 by 7.
pub(super) const fn after(by: By, rotation: u32) -> Affine {
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let inverse = INVERSION[BEFORE[x] as usize];
        let inverted = match by {
            By::Inversion | By::AesInverse => inverse,
            By::Aes => AES[BEFORE[x] as usize],
        };
        table[inverted as usize] = S1[x].rotate_left(rotation);
        x += 1;
    }
    checked(table)
}

/// Refuses to compile if the function is not affine.
const fn checked(of: Affine) -> Affine {
    let mut x = 0;
    while x < 256 {
        let mut bit = 0;
        while bit < 8 {
            assert!(of[x ^ 1 << bit] == of[x] ^ of[1 << bit] ^ of[0]);
            bit += 1;
        }
        x += 1;
    }
    of
}

/// The function as a matrix of bits (Intel's manual, GF2P8AFFINEQB): byte 7 - i selects the bits of the input whose sum is bit i of
/// the output. The function's constant is its value at 0.
pub(super) const fn matrix(of: Affine) -> i64 {
    let mut matrix = 0;
    let mut bit = 0;
    while bit < 64 {
        let (out, input) = (bit / 8, bit % 8);
        if (of[1 << input] ^ of[0]) >> out & 1 == 1 {
            matrix |= 1 << (8 * (7 - out) + input);
        }
        bit += 1;
    }
    matrix
}

/// The function as two tables, whose values are added: for the lower four bits, and for the higher ones.
pub(super) const fn halves(of: Affine) -> [[u8; 16]; 2] {
    let mut halves = [[0; 16]; 2];
    let mut x = 0;
    while x < 16 {
        halves[0][x] = of[x];
        halves[1][x] = of[16 * x] ^ of[0];
        x += 1;
    }
    halves
}

pub(super) static S2: [u8; 256] = turned(0, 1);
pub(super) static S3: [u8; 256] = turned(0, 7);
pub(super) static S4: [u8; 256] = turned(1, 0);

/// S1 with inputs and outputs rotated to the left.
const fn turned(input: u32, output: u32) -> [u8; 256] {
    let mut s_box = [0; 256];
    let mut x = 0;
    while x < 256 {
        s_box[x] = S1[(x as u8).rotate_left(input) as usize].rotate_left(output);
        x += 1;
    }
    s_box
}

/// Section 2.4.1.
#[rustfmt::skip]
pub(super) static S1: [u8; 256] = [
    0x70, 0x82, 0x2c, 0xec, 0xb3, 0x27, 0xc0, 0xe5, 0xe4, 0x85, 0x57, 0x35, 0xea, 0x0c, 0xae, 0x41,
    0x23, 0xef, 0x6b, 0x93, 0x45, 0x19, 0xa5, 0x21, 0xed, 0x0e, 0x4f, 0x4e, 0x1d, 0x65, 0x92, 0xbd,
    0x86, 0xb8, 0xaf, 0x8f, 0x7c, 0xeb, 0x1f, 0xce, 0x3e, 0x30, 0xdc, 0x5f, 0x5e, 0xc5, 0x0b, 0x1a,
    0xa6, 0xe1, 0x39, 0xca, 0xd5, 0x47, 0x5d, 0x3d, 0xd9, 0x01, 0x5a, 0xd6, 0x51, 0x56, 0x6c, 0x4d,
    0x8b, 0x0d, 0x9a, 0x66, 0xfb, 0xcc, 0xb0, 0x2d, 0x74, 0x12, 0x2b, 0x20, 0xf0, 0xb1, 0x84, 0x99,
    0xdf, 0x4c, 0xcb, 0xc2, 0x34, 0x7e, 0x76, 0x05, 0x6d, 0xb7, 0xa9, 0x31, 0xd1, 0x17, 0x04, 0xd7,
    0x14, 0x58, 0x3a, 0x61, 0xde, 0x1b, 0x11, 0x1c, 0x32, 0x0f, 0x9c, 0x16, 0x53, 0x18, 0xf2, 0x22,
    0xfe, 0x44, 0xcf, 0xb2, 0xc3, 0xb5, 0x7a, 0x91, 0x24, 0x08, 0xe8, 0xa8, 0x60, 0xfc, 0x69, 0x50,
    0xaa, 0xd0, 0xa0, 0x7d, 0xa1, 0x89, 0x62, 0x97, 0x54, 0x5b, 0x1e, 0x95, 0xe0, 0xff, 0x64, 0xd2,
    0x10, 0xc4, 0x00, 0x48, 0xa3, 0xf7, 0x75, 0xdb, 0x8a, 0x03, 0xe6, 0xda, 0x09, 0x3f, 0xdd, 0x94,
    0x87, 0x5c, 0x83, 0x02, 0xcd, 0x4a, 0x90, 0x33, 0x73, 0x67, 0xf6, 0xf3, 0x9d, 0x7f, 0xbf, 0xe2,
    0x52, 0x9b, 0xd8, 0x26, 0xc8, 0x37, 0xc6, 0x3b, 0x81, 0x96, 0x6f, 0x4b, 0x13, 0xbe, 0x63, 0x2e,
    0xe9, 0x79, 0xa7, 0x8c, 0x9f, 0x6e, 0xbc, 0x8e, 0x29, 0xf5, 0xf9, 0xb6, 0x2f, 0xfd, 0xb4, 0x59,
    0x78, 0x98, 0x06, 0x6a, 0xe7, 0x46, 0x71, 0xba, 0xd4, 0x25, 0xab, 0x42, 0x88, 0xa2, 0x8d, 0xfa,
    0x72, 0x07, 0xb9, 0x55, 0xf8, 0xee, 0xac, 0x0a, 0x36, 0x49, 0x2a, 0x68, 0x3c, 0x38, 0xf1, 0xa4,
    0x40, 0x28, 0xd3, 0x7b, 0xbb, 0xc9, 0x43, 0xc1, 0x15, 0xe3, 0xad, 0xf4, 0x77, 0xc7, 0x80, 0x9e,
];

//! Streebog's and Whirlpool's rounds on AVX-512 VBMI and GFNI, in constant time.
//!
//! Both hashes work on 64 bytes, which are one vector. A round sends every byte through an S-box, whose 256 bytes are four vectors:
//! two permutations of 128 bytes each. The rest of a round is linear: each byte of the result is the sum of eight bytes, each
//! multiplied by a constant of a field of 256 elements. One permutation moves the first of the eight into place for all 64 bytes of
//! the result at once, another the second, and so on. Each multiplication is a matrix of bits, which GFNI applies to the eight
//! bytes that share it.
//!
//! Some 24 instructions replace 64 look-ups in tables of 16 KiB. A compression has two chains of rounds, one of keys and one of
//! data, which hide each other's latencies.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use crate::gf256::matrix;
use crate::vbmi::{load, store, substitute, xor3};

/// The modulus of both fields, x^8 + x^4 + x^3 + x^2 + 1.
const MODULUS: u16 = 0x11d;

/// A round without its key.
struct Round {
    s_box: [u8; 256],
    /// The places of the bytes of each of the eight summands.
    places: [[u8; 64]; 8],
    /// The multiplication for each summand and each eight bytes of the result.
    factors: [[u64; 8]; 8],
}

/// Streebog's compression g (RFC 6986, section 8): `h` becomes the next state.
///
/// # Safety
/// The processor is [`crate::vbmi::usable`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(super) unsafe fn streebog(h: &mut [u8; 64], n: &[u8; 64], m: &[u8; 64]) {
    let turned = load(&TRANSPOSED);
    let turn = |bytes: &[u8; 64]| _mm512_permutexvar_epi8(turned, load(bytes));
    let (state, m) = (turn(h), turn(m));
    let mut key = round(&STREEBOG, _mm512_xor_si512(state, turn(n)));
    let mut block = m;
    for constant in &STREEBOG_KEYS {
        block = round(&STREEBOG, _mm512_xor_si512(block, key));
        key = round(&STREEBOG, _mm512_xor_si512(key, load(constant)));
    }
    let next = _mm512_xor_si512(xor3(block, key, m), state);
    store(_mm512_permutexvar_epi8(turned, next), h);
}

/// Whirlpool's compression (ISO/IEC 10118-3, dedicated hash-function 7): `h` becomes the next state.
///
/// # Safety
/// The processor is [`crate::vbmi::usable`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(super) unsafe fn whirlpool(h: &mut [u8; 64], m: &[u8; 64]) {
    let (state, m) = (load(h), load(m));
    let mut key = state;
    let mut block = _mm512_xor_si512(m, key);
    for constant in &WHIRLPOOL_KEYS {
        key = _mm512_xor_si512(round(&WHIRLPOOL, key), load(constant));
        block = _mm512_xor_si512(round(&WHIRLPOOL, block), key);
    }
    store(xor3(state, block, m), h);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn round(round: &Round, x: __m512i) -> __m512i {
    let y = substitute(&round.s_box, x);
    let mut terms = [_mm512_setzero_si512(); 8];
    for ((term, places), factors) in terms.iter_mut().zip(&round.places).zip(&round.factors) {
        let there = _mm512_permutexvar_epi8(load(places), y);
        *term = _mm512_gf2p8affine_epi64_epi8::<0>(there, load_words(factors));
    }
    let [a, b, c, d, e, f, g, h] = terms;
    _mm512_xor_si512(xor3(xor3(a, b, c), d, e), xor3(f, g, h))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn load_words(words: &[u64; 8]) -> __m512i {
    // SAFETY: the array is as long as the vector, and the load takes any alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// Exchanges rows and columns. Streebog's rows are columns here, so that its own transposition is part of the places of the
/// summands.
static TRANSPOSED: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = (i % 8 * 8 + i / 8) as u8;
        i += 1;
    }
    places
};

static STREEBOG: Round = {
    let (mut places, mut factors) = ([[0; 64]; 8], [[0; 8]; 8]);
    let mut k = 0;
    while k < 8 {
        let mut row = 0;
        while row < 8 {
            let from = (row + k) % 8;
            factors[k][row] = matrix(L[from][row], MODULUS);
            let mut column = 0;
            while column < 8 {
                places[k][8 * row + column] = (8 * column + from) as u8;
                column += 1;
            }
            row += 1;
        }
        k += 1;
    }
    Round { s_box: PI, places, factors }
};

static WHIRLPOOL: Round = {
    let (mut places, mut factors) = ([[0; 64]; 8], [[0; 8]; 8]);
    let mut k = 0;
    while k < 8 {
        let mut i = 0;
        while i < 64 {
            let (row, column) = (i / 8, (i % 8 + 8 - k) % 8);
            // A column is shifted down by its number before it is multiplied.
            places[k][i] = ((row + 8 - column) % 8 * 8 + column) as u8;
            i += 1;
        }
        factors[k] = [matrix(CIRCULANT[k], MODULUS); 8];
        k += 1;
    }
    Round { s_box: WHIRLPOOL_S_BOX, places, factors }
};

/// Streebog's iteration constants, rows for columns.
static STREEBOG_KEYS: [[u8; 64]; 12] = {
    let mut keys = [[0; 64]; 12];
    let mut i = 0;
    while i < 12 * 64 {
        let (key, byte) = (i / 64, i % 64);
        keys[key][byte] = (C[key][byte % 8] >> (8 * (byte / 8))) as u8;
        i += 1;
    }
    keys
};

/// Whirlpool's round constants: the S-box, eight bytes for each.
static WHIRLPOOL_KEYS: [[u8; 64]; 10] = {
    let mut keys = [[0; 64]; 10];
    let mut i = 0;
    while i < 80 {
        keys[i / 8][i % 8] = WHIRLPOOL_S_BOX[i];
        i += 1;
    }
    keys
};

/// Whirlpool's S-box, of two boxes of four bits: the exponential E with its inverse, and R.
const WHIRLPOOL_S_BOX: [u8; 256] = {
    const E: [u8; 16] = [0x1, 0xb, 0x9, 0xc, 0xd, 0x6, 0xf, 0x3, 0xe, 0x8, 0x7, 0x4, 0xa, 0x2, 0x5, 0x0];
    const R: [u8; 16] = [0x7, 0xc, 0xb, 0xd, 0xe, 0x4, 0x9, 0xf, 0x6, 0x3, 0x8, 0xa, 0x2, 0x5, 0x1, 0x0];
    let (mut inverse, mut s_box) = ([0; 16], [0; 256]);
    let mut x = 0;
    while x < 16 {
        inverse[E[x] as usize] = x as u8;
        x += 1;
    }
    let mut x = 0;
    while x < 256 {
        let (high, low) = (E[x >> 4], inverse[x & 15]);
        let middle = R[(high ^ low) as usize];
        s_box[x] = E[(high ^ middle) as usize] << 4 | inverse[(low ^ middle) as usize];
        x += 1;
    }
    s_box
};

/// The first row of Whirlpool's circulant matrix.
const CIRCULANT: [u8; 8] = [1, 1, 4, 1, 8, 5, 2, 9];

/// Streebog's linear transformation: the factors of byte `j` of eight for each byte of the result. RFC 6986, section 6.4, has it as
/// bits. The row of its 64-bit words for the lowest bit of a byte has these bytes, and the seven rows after it their products with
/// 2, 4 ... 128 (Kazymyrov and Kazymyrova, "Algebraic Aspects of the Russian Hash Standard GOST R 34.11-2012").
const L: [[u8; 8]; 8] = [
    [0x83, 0xe0, 0x8e, 0x2b, 0x4b, 0x31, 0x1c, 0x64],
    [0x18, 0xdc, 0xf5, 0x9e, 0x4f, 0x47, 0x8b, 0xa4],
    [0x28, 0x77, 0x32, 0x8a, 0xd9, 0x86, 0x7d, 0xf9],
    [0x9e, 0xa8, 0x10, 0x18, 0x65, 0x8c, 0x06, 0x5b],
    [0x38, 0xc1, 0x93, 0xba, 0x8c, 0x65, 0x21, 0x03],
    [0x50, 0x89, 0x8a, 0x32, 0xa9, 0x9c, 0xcc, 0xac],
    [0x8e, 0x98, 0x83, 0x1a, 0x01, 0x0f, 0xb6, 0x46],
    [0x64, 0x87, 0x46, 0xb2, 0x07, 0x8b, 0x47, 0x83],
];

/// Streebog's S-box π (RFC 6986, section 6.2), which Kuznyechik has, too.
#[rustfmt::skip]
pub(crate) const PI: [u8; 256] = [
    252, 238, 221, 17, 207, 110, 49, 22, 251, 196, 250, 218, 35, 197, 4, 77,
    233, 119, 240, 219, 147, 46, 153, 186, 23, 54, 241, 187, 20, 205, 95, 193,
    249, 24, 101, 90, 226, 92, 239, 33, 129, 28, 60, 66, 139, 1, 142, 79,
    5, 132, 2, 174, 227, 106, 143, 160, 6, 11, 237, 152, 127, 212, 211, 31,
    235, 52, 44, 81, 234, 200, 72, 171, 242, 42, 104, 162, 253, 58, 206, 204,
    181, 112, 14, 86, 8, 12, 118, 18, 191, 114, 19, 71, 156, 183, 93, 135,
    21, 161, 150, 41, 16, 123, 154, 199, 243, 145, 120, 111, 157, 158, 178, 177,
    50, 117, 25, 61, 255, 53, 138, 126, 109, 84, 198, 128, 195, 189, 13, 87,
    223, 245, 36, 169, 62, 168, 67, 201, 215, 121, 214, 246, 124, 34, 185, 3,
    224, 15, 236, 222, 122, 148, 176, 188, 220, 232, 40, 80, 78, 51, 10, 74,
    167, 151, 96, 115, 30, 0, 98, 68, 26, 184, 56, 130, 100, 159, 38, 65,
    173, 69, 70, 146, 39, 94, 85, 47, 140, 163, 165, 125, 105, 213, 149, 59,
    7, 88, 179, 64, 134, 172, 29, 247, 48, 55, 107, 228, 136, 217, 231, 137,
    225, 27, 131, 73, 76, 63, 248, 254, 141, 83, 170, 144, 202, 216, 133, 97,
    32, 113, 103, 164, 45, 43, 9, 91, 203, 155, 37, 208, 190, 229, 108, 82,
    89, 166, 116, 210, 230, 244, 180, 192, 209, 102, 175, 194, 57, 75, 99, 182,
];

/// Streebog's iteration constants (RFC 6986, section 6.5), as words whose lowest byte comes first.
#[rustfmt::skip]
const C: [[u64; 8]; 12] = [
    [
        0xdd80_6559_f2a6_4507, 0x0576_7436_cc74_4d23, 0xa242_2a08_a460_d315, 0x4b7c_e091_9267_6901,
        0x714e_b88d_7585_c4fc, 0x2f6a_7643_2e45_d016, 0xebcb_2f81_c065_7c1f, 0xb108_5bda_1eca_dae9,
    ],
    [
        0xe679_0470_21b1_9bb7, 0x55dd_a21b_d7cb_cd56, 0x5cb5_61c2_db0a_a7ca, 0x9ab5_176b_12d6_9958,
        0x61d5_5e0f_16b5_0131, 0xf3fe_ea72_0a23_2b98, 0x4fe3_9d46_0f70_b5d7, 0x6fa3_b58a_a99d_2f1a,
    ],
    [
        0x991e_96f5_0aba_0ab2, 0xc2b6_f443_867a_db31, 0xc1c9_3a37_6062_db09, 0xd3e2_0fe4_9035_9eb1,
        0xf2ea_7514_b129_7b7b, 0x06f1_5e5f_529c_1f8b, 0x0a39_fc28_6a3d_8435, 0xf574_dcac_2bce_2fc7,
    ],
    [
        0x220c_bebc_84e3_d12e, 0x3453_eaa1_93e8_37f1, 0xd8b7_1333_9352_03be, 0xa9d7_2c82_ed03_d675,
        0x9d72_1cad_685e_353f, 0x488e_857e_335c_3c7d, 0xf948_e1a0_5d71_e4dd, 0xef1f_dfb3_e815_66d2,
    ],
    [
        0x6017_58fd_7c6c_fe57, 0x7a56_a27e_a9ea_63f5, 0xdfff_00b7_2327_1a16, 0xbfcd_1747_253a_f5a3,
        0x359e_35d7_800f_ffbd, 0x7f15_1c1f_1686_104a, 0x9a3f_410c_6ca9_2363, 0x4bea_6bac_ad47_4799,
    ],
    [
        0xfa68_407a_4664_7d6e, 0xbf71_c572_3690_4f35, 0x0af2_1f66_c2be_c6b6, 0xcffa_a6b7_1c9a_b7b4,
        0x187f_9ab4_9af0_8ec6, 0x2d66_c4f9_5142_a46c, 0x6fa4_c33b_7a30_39c0, 0xae4f_aeae_1d3a_d3d9,
    ],
    [
        0x8886_564d_3a14_d493, 0x3517_454c_a23c_4af3, 0x0647_6983_284a_0504, 0x0992_abc5_2d82_2c37,
        0xd347_3e33_197a_93c9, 0x399e_c6c7_e6bf_87c9, 0x51ac_86fe_bf24_0954, 0xf4c7_0e16_eeaa_c5ec,
    ],
    [
        0xa47f_0dd4_bf02_e71e, 0x36ac_c235_5951_a8d9, 0x69d1_8d2b_d1a5_c42f, 0xf489_2bcb_929b_0690,
        0x89b4_443b_4ddb_c49a, 0x4eb7_f871_9c36_de1e, 0x03e7_aa02_0c6e_4141, 0x9b1f_5b42_4d93_c9a7,
    ],
    [
        0x7261_4451_8323_5adb, 0x0e38_dc92_cb1f_2a60, 0x7b2b_8a9a_a607_9c54, 0x800a_440b_dbb2_ceb1,
        0x3cd9_55b7_e00d_0984, 0x3a7d_3a1b_2589_4224, 0x944c_9ad8_ec16_5fde, 0x378f_5a54_1631_229b,
    ],
    [
        0x74b4_c7fb_9845_9ced, 0x3698_fad1_153b_b6c3, 0x7a1e_6c30_3b76_52f4, 0x9fe7_6702_af69_334b,
        0x1fff_e18a_1b33_6103, 0x8941_e71c_ff8a_78db, 0x382a_e548_b2e4_f3f3, 0xabbe_dea6_8005_6f52,
    ],
    [
        0x6bca_a4cd_81f3_2d1b, 0xdea2_594a_c06f_d85d, 0xefba_cd1d_7d47_6e98, 0x8a1d_71ef_ea48_b9ca,
        0x2001_8021_1484_6679, 0xd8fa_6bbb_ebab_0761, 0x3002_c6cd_635a_fe94, 0x7bcd_9ed0_efc8_89fb,
    ],
    [
        0x48bc_924a_f11b_d720, 0xfaf4_17d5_d9b2_1b99, 0xe71d_a4aa_88e1_2852, 0x5d80_ef9d_1891_cc86,
        0xf820_12d4_3021_9f9b, 0xcda4_3c32_bcdf_1d77, 0xd213_80b0_0449_b17a, 0x378e_e767_f116_31ba,
    ],
];

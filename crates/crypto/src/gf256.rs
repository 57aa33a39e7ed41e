//! Arithmetic in fields of 256 elements, for tables, matrices and key schedules.

/// The product of two elements of GF(2)\[x\] modulo `modulus`, a polynomial of degree 8. Only for constants, key setup and data
/// that are not secret: it is slow, and its time depends on `b`.
pub const fn multiply(a: u8, b: u8, modulus: u16) -> u8 {
    let (mut a, mut b, mut product) = (a as u16, b, 0);
    while b != 0 {
        product ^= a * (b & 1) as u16;
        a = (a << 1) ^ ((a >> 7) * modulus);
        b >>= 1;
    }
    product as u8
}

/// The multiplication by `factor` as a matrix of bits: the byte 7 - i selects the bits of the input whose sum is bit i of
/// the output (Intel's manual, GF2P8AFFINEQB).
#[cfg(target_arch = "x86_64")]
pub(crate) const fn matrix(factor: u8, modulus: u16) -> u64 {
    let mut matrix = 0;
    let mut bit = 0;
    while bit < 64 {
        let (out, input) = (bit / 8, bit % 8);
        if multiply(1 << input, factor, modulus) >> out & 1 == 1 {
            matrix |= 1 << (8 * (7 - out) + input);
        }
        bit += 1;
    }
    matrix
}

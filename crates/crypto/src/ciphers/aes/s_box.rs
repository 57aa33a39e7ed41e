//! The S-box (FIPS 197, 5.1.1) as a circuit on planes of bits, in constant time.

use std::ops::{BitAnd, BitXor, Not};

/// The S-box on 4 bytes, for the key schedule.
pub(super) fn sub_word(word: [u8; 4]) -> [u8; 4] {
    let planes = std::array::from_fn(|p| (0..4).fold(0u8, |plane, i| plane | ((word[i] >> p & 1) << i)));
    let planes = sub_bytes(planes);
    std::array::from_fn(|i| (0..8).fold(0u8, |byte, p| byte | ((planes[p] >> i & 1) << p)))
}

/// The inverse S-box by way of the S-box: S = A after inversion, so inversion = A⁻¹ after S, and S⁻¹ = inversion after A⁻¹.
#[inline(always)]
pub(super) fn inverse_sub_bytes<T>(planes: [T; 8]) -> [T; 8]
where
    T: Copy + BitXor<Output = T> + BitAnd<Output = T> + Not<Output = T>,
{
    inverse_affine(sub_bytes(inverse_affine(planes)))
}

/// The inverse of the S-box's affine map (FIPS 197, 5.3.2), of which the constant is 0x05.
#[inline(always)]
fn inverse_affine<T: Copy + BitXor<Output = T> + Not<Output = T>>(a: [T; 8]) -> [T; 8] {
    let mut out = a;
    for i in 0..8 {
        out[i] = a[(i + 2) % 8] ^ a[(i + 5) % 8] ^ a[(i + 7) % 8];
    }
    out[0] = !out[0];
    out[2] = !out[2];
    out
}

/// The S-box as a circuit: J. Boyar, R. Peralta, "A depth-16 circuit for the AES S-box" (2011), figures 5, 7 and 8, with the
/// names there. `u[0]` is the highest bit.
#[inline(always)]
pub(super) fn sub_bytes<T>(planes: [T; 8]) -> [T; 8]
where
    T: Copy + BitXor<Output = T> + BitAnd<Output = T> + Not<Output = T>,
{
    let [u7, u6, u5, u4, u3, u2, u1, u0] = planes;

    // Linear, going in.
    let (t14, t13, t9, t8, t0) = (u3 ^ u5, u0 ^ u6, u0 ^ u3, u0 ^ u5, u1 ^ u2);
    let y1 = t0 ^ u7;
    let (y4, y12, y2, y5) = (y1 ^ u3, t13 ^ t14, y1 ^ u0, y1 ^ u6);
    let (y3, t1) = (y5 ^ t8, u4 ^ y12);
    let (y15, y20) = (t1 ^ u5, t1 ^ u1);
    let (y6, y10, y11) = (y15 ^ u7, y15 ^ t0, y20 ^ t9);
    let (y7, y17, y19, y16) = (u7 ^ y11, y10 ^ y11, y10 ^ t8, t0 ^ y11);
    let (y21, y18) = (t13 ^ y16, u0 ^ y16);
    let (y8, y9, y13, y14) = (t8, t9, t13, t14);

    // Inversion in GF(2^4)^2: shared products.
    let m1 = y12 & y15;
    let m2 = (y3 & y6) ^ m1;
    let m3 = (y4 & u7) ^ m1;
    let m4 = y13 & y16;
    let m5 = (y5 & y1) ^ m4;
    let m6 = (y2 & y7) ^ m4;
    let m7 = y9 & y11;
    let m8 = (y14 & y17) ^ m7;
    let m9 = (y8 & y10) ^ m7;
    let (a, b, c, d) = (m2 ^ m8 ^ y20, m3 ^ m9 ^ y19, m5 ^ m8 ^ y21, m6 ^ m9 ^ y18);
    // Inversion in GF(2^4).
    let ab = a ^ b;
    let ac = a & c;
    let e = d ^ ac;
    let p = (ab & e) ^ b;
    let cd = c ^ d;
    let q = ((b ^ ac) & cd) ^ d;
    let f = d & (e ^ q);
    let r = f ^ c ^ q;
    let s = ab ^ (p & (e ^ f));
    // Products with the result.
    let (sr, pq, ps, qr) = (s ^ r, p ^ q, p ^ s, q ^ r);
    let pqsr = pq ^ sr;
    let (z0, z1, z2) = (qr & y15, r & y6, q & u7);
    let (z3, z4, z5) = (ps & y16, s & y1, p & y7);
    let (z6, z7, z8) = (pq & y11, pqsr & y17, sr & y10);
    let (z9, z10, z11) = (qr & y12, r & y3, q & y4);
    let (z12, z13, z14) = (ps & y13, s & y5, p & y2);
    let (z15, z16, z17) = (pq & y9, pqsr & y14, sr & y8);

    // Linear, coming out.
    let t46 = z15 ^ z16;
    let t48 = z5 ^ z13;
    let t53 = z0 ^ z3;
    let t57 = z2 ^ z12 ^ t53;
    let t58 = z4 ^ t46;
    let t59 = z3 ^ z6 ^ z7;
    let t62 = z7 ^ z8 ^ t58;
    let t63 = z9 ^ z10 ^ t58;
    let t64 = z4 ^ t59;
    let t65 = z14 ^ t57 ^ t62;
    let t66 = z1 ^ t63;
    let s3 = t53 ^ t66;
    [
        t48 ^ !(t46 ^ t57),
        z12 ^ t48 ^ !t62,
        z10 ^ z11 ^ t65,
        z2 ^ z5 ^ t66,
        s3,
        z16 ^ z17 ^ !(t64 ^ t65),
        t64 ^ !s3,
        t59 ^ t63,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, 5.1.1: inversion in GF(2^8), then the affine map.
    fn s_box(x: u8) -> u8 {
        let product = |mut a: u8, mut b: u8| {
            let mut sum = 0;
            while b != 0 {
                sum ^= if b & 1 == 1 { a } else { 0 };
                a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1b };
                b >>= 1;
            }
            sum
        };
        let inverse = (0..=255u8).find(|&y| product(x, y) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, by| sum ^ inverse.rotate_left(by))
    }

    #[test]
    fn the_circuits_are_the_s_boxes() {
        for x in 0..=255u8 {
            assert_eq!(sub_word([x; 4]), [s_box(x); 4]);
            let planes = |byte: u8| std::array::from_fn(|p| if byte >> p & 1 == 1 { !0u8 } else { 0 });
            assert_eq!(inverse_sub_bytes(planes(s_box(x))), planes(x));
        }
    }
}

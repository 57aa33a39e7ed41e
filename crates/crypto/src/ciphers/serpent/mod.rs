//! Serpent (Anderson, Biham, Knudsen 1998) with keys of 16, 24 or 32 bytes.
//!
//! The byte order is that of the NESSIE vectors, TrueCrypt and Linux: blocks and keys are little-endian words.
//!
//! All kernels are bit-sliced: their timing depends on neither key nor data. Expanding a key is bit-sliced too.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
mod binary;
mod portable;
mod rounds;
#[cfg(target_arch = "x86_64")]
mod ternary;
#[cfg(target_arch = "x86_64")]
mod x86;

use self::binary::Lanes;
use self::portable::Words;
use self::rounds::{RoundKeys, SBOXES, linear, run};
use super::wide::block_cipher;
use super::{BlockCipher, Cipher, Kernel};
use crate::secret::LockedBox;
use crate::tweak::Masks;

/// Serpent.
pub static SERPENT: Cipher = Cipher {
    name: "Serpent",
    block_size: 16,
    key_sizes: &[16, 24, 32],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        kernel("avx512", x86::avx512_usable, |key| Box::new(x86::Avx512(schedule(key)))),
        #[cfg(target_arch = "x86_64")]
        kernel("avx2", x86::avx2_usable, |key| Box::new(x86::Avx2(schedule(key)))),
        #[cfg(target_arch = "x86_64")]
        kernel("sse2", || true, |key| Box::new(x86::Sse2(schedule(key)))),
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        kernel("neon", || true, |key| Box::new(aarch64::Neon(schedule(key)))),
        kernel("portable", || true, |key| Box::new(Portable(schedule(key)))),
    ],
};

const fn kernel(name: &'static str, usable: fn() -> bool, expand: fn(&[u8]) -> Box<dyn BlockCipher>) -> Kernel {
    Kernel { name, usable, aes_instructions: false, constant_time: true, expand }
}

/// Runs everywhere: four blocks at a time, in case the compiler vectorises them.
struct Portable(LockedBox<RoundKeys>);

impl Portable {
    fn crypt<const DECRYPT: bool, const MASKED: bool>(&self, masks: Masks<'_>, run: &mut [u8]) {
        run::crypt::<Words<4>, 1, DECRYPT, MASKED>(&self.0, masks, run);
    }
}

block_cipher!([] Portable);

/// The round keys of a key of 16, 24 or 32 bytes, including the constants that [`rounds`] leaves to them.
fn schedule(key: &[u8]) -> LockedBox<RoundKeys> {
    /// The golden ratio's fraction, from the specification.
    const PHI: u32 = 0x9E37_79B9;
    assert!(matches!(key.len(), 16 | 24 | 32));
    LockedBox::build(|keys: &mut RoundKeys| {
        // A shorter key is padded with a one bit and zeros.
        let mut padded = [0u8; 33];
        padded[..key.len()].copy_from_slice(key);
        padded[key.len()] = 1;
        let mut last: [u32; 8] = std::array::from_fn(|i| {
            u32::from_le_bytes([padded[4 * i], padded[4 * i + 1], padded[4 * i + 2], padded[4 * i + 3]])
        });
        for (i, word) in keys.as_flattened_mut().iter_mut().enumerate() {
            let next = (last[0] ^ last[3] ^ last[5] ^ last[7] ^ PHI ^ i as u32).rotate_left(11);
            last.rotate_left(1);
            last[7] = next;
            *word = next;
        }
        let mut constant = [Words::splat(0); 4];
        for (i, key) in keys.iter_mut().enumerate() {
            // Round key i goes through S-box 3 - i mod 8, here as N and its constant.
            let number = (35 - i) % 8;
            let words = substitute(number, key.map(Words::splat));
            for (((to, word), zero), carried) in key.iter_mut().zip(words).zip(at_zero(number)).zip(constant) {
                let mut bytes = [0; 4];
                (word ^ zero ^ carried).store(&mut bytes);
                *to = u32::from_le_bytes(bytes);
            }
            // The constant that round i's N leaves out. The last round has no linear transformation.
            let left_out = at_zero(i % 8);
            constant = if i < 31 { linear(left_out) } else { left_out };
        }
        zeroize::Zeroize::zeroize(&mut padded);
        zeroize::Zeroize::zeroize(&mut last);
    })
}

/// N of an S-box whose number is only known at run time.
fn substitute(box_number: usize, x: [Words<1>; 4]) -> [Words<1>; 4] {
    match box_number {
        0 => Lanes::substitute::<0>(x),
        1 => Lanes::substitute::<1>(x),
        2 => Lanes::substitute::<2>(x),
        3 => Lanes::substitute::<3>(x),
        4 => Lanes::substitute::<4>(x),
        5 => Lanes::substitute::<5>(x),
        6 => Lanes::substitute::<6>(x),
        _ => Lanes::substitute::<7>(x),
    }
}

/// S(0) of an S-box, in all lanes.
fn at_zero(box_number: usize) -> [Words<1>; 4] {
    std::array::from_fn(|bit| Words::splat(u32::from(SBOXES[box_number][0] >> bit & 1).wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every possible input of an S-box, one per bit.
    const INPUTS: [u32; 4] = [0xAAAA, 0xCCCC, 0xF0F0, 0xFF00];

    #[test]
    fn circuits_are_the_specified_sboxes() {
        for (number, sbox) in SBOXES.iter().enumerate() {
            let y = substitute(number, INPUTS.map(Words::splat)).map(word);
            for (x, expected) in sbox.iter().enumerate() {
                let got = (0..4).map(|bit| (y[bit] >> x & 1) << bit).sum::<u32>() as u8;
                assert_eq!(got ^ sbox[0], *expected, "S{number}({x})");
            }
        }
    }

    fn word(w: Words<1>) -> u32 {
        let mut bytes = [0; 4];
        w.store(&mut bytes);
        u32::from_le_bytes(bytes)
    }
}

//! Keys encrypted with other keys (RFC 3394, "AES Key Wrap").

use crate::ciphers::{Acceleration, aes::AES};
use crate::secret::Secret;

/// Bytes by which a wrapped key is longer than the key.
pub const OVERHEAD: usize = 8;

/// The expected first half of a block at the end (section 2.2.3.1).
const INTEGRITY: [u8; 8] = [0xa6; 8];

/// Encrypts a key of two or more times 8 bytes (section 2.2.1).
///
/// # Panics
/// If `kek` is no key of AES, or if the key has another length.
pub fn wrap(kek: &[u8], key: &[u8], acceleration: Acceleration) -> Vec<u8> {
    assert!(is_whole(key.len()), "a key of {} bytes cannot be wrapped", key.len());
    let aes = AES.with_key(kek, acceleration);
    let mut registers = Secret::concat(&[&INTEGRITY, key]);
    let mut block = Secret::zeroed(16);
    let halves = key.len() / 8;
    for step in 1..=6 * halves {
        let at = 8 * ((step - 1) % halves + 1);
        block[..8].copy_from_slice(&registers[..8]);
        block[8..].copy_from_slice(&registers[at..at + 8]);
        aes.encrypt_blocks(&mut block);
        add(&mut block[..8], step);
        registers[..8].copy_from_slice(&block[..8]);
        registers[at..at + 8].copy_from_slice(&block[8..]);
    }
    registers.to_vec()
}

/// Returns the key in `wrapped`, if `kek` wrapped it (section 2.2.2).
///
/// # Panics
/// If `kek` is no key of AES.
pub fn unwrap(kek: &[u8], wrapped: &[u8], acceleration: Acceleration) -> Option<Secret> {
    let halves = wrapped.len().checked_sub(OVERHEAD).filter(|len| is_whole(*len))? / 8;
    let aes = AES.with_key(kek, acceleration);
    let mut registers = Secret::copy_from(wrapped);
    let mut block = Secret::zeroed(16);
    for step in (1..=6 * halves).rev() {
        let at = 8 * ((step - 1) % halves + 1);
        block[..8].copy_from_slice(&registers[..8]);
        block[8..].copy_from_slice(&registers[at..at + 8]);
        add(&mut block[..8], step);
        aes.decrypt_blocks(&mut block);
        registers[..8].copy_from_slice(&block[..8]);
        registers[at..at + 8].copy_from_slice(&block[8..]);
    }
    let intact = Secret::copy_from(&registers[..8]).same_as(&INTEGRITY);
    intact.then(|| Secret::copy_from(&registers[8..]))
}

fn is_whole(len: usize) -> bool {
    len >= 16 && len.is_multiple_of(8)
}

/// Adds the number of a step to half a block.
fn add(half: &mut [u8], step: usize) {
    half.iter_mut().zip((step as u64).to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(len: u8) -> Vec<u8> {
        (0..len).collect()
    }

    /// Sections 4.1 and 4.6: the shortest and the longest keys.
    #[test]
    fn keys_are_wrapped_as_in_the_rfc() {
        let data: Vec<u8> = (0..16).map(|i| i << 4 | i).collect();
        let long = [data.clone(), key(16)].concat();
        let short_wrapped =
            b"\x1f\xa6\x8b\x0a\x81\x12\xb4\x47\xae\xf3\x4b\xd8\xfb\x5a\x7b\x82\x9d\x3e\x86\x23\x71\xd2\xcf\xe5";
        let long_wrapped =
            b"\x28\xc9\xf4\x04\xc4\xb8\x10\xf4\xcb\xcc\xb3\x5c\xfb\x87\xf8\x26\x3f\x57\x86\xe2\xd8\x0e\xd3\x26\
            \xcb\xc7\xf0\xe7\x1a\x99\xf4\x3b\xfb\x98\x8b\x9b\x7a\x02\xdd\x21";
        for (kek, plain, wrapped) in [(key(16), &data, &short_wrapped[..]), (key(32), &long, &long_wrapped[..])] {
            assert_eq!(wrap(&kek, plain, Acceleration::On), wrapped);
            assert!(unwrap(&kek, wrapped, Acceleration::On).expect("it is intact").same_as(plain));
            for at in 0..wrapped.len() {
                let mut changed = wrapped.to_vec();
                changed[at] ^= 1;
                assert!(unwrap(&kek, &changed, Acceleration::On).is_none(), "byte {at}");
            }
        }
    }

    #[test]
    fn what_has_not_the_size_of_a_wrapped_key_is_none() {
        for len in [0, 7, 8, 16, 23, 25, 39] {
            assert!(unwrap(&key(32), &vec![0; len], Acceleration::On).is_none(), "{len} bytes");
        }
    }
}

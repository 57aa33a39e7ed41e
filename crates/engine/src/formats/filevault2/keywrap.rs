//! Keys encrypted with other keys (RFC 3394, "AES Key Wrap"). In Core Storage, all of them have 16 bytes.

use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::{Acceleration, Secret};

/// The size of every key, in bytes.
pub(super) const KEY: usize = 16;

/// The size of a wrapped key, in bytes.
pub(super) const WRAPPED: usize = KEY + 8;

/// The expected first half of a block at the end (RFC 3394, section 2.2.3.1).
const INTEGRITY: [u8; 8] = [0xa6; 8];

/// Returns the key in `wrapped`, if `kek` wrapped it (RFC 3394, section 2.2.2).
pub(super) fn unwrap(kek: &[u8], wrapped: &[u8; WRAPPED], acceleration: Acceleration) -> Option<Secret> {
    let aes = AES.with_key(kek, acceleration);
    let mut registers = Secret::copy_from(wrapped);
    let mut block = Secret::zeroed(16);
    let halves = KEY / 8;
    for step in (1..=6 * halves).rev() {
        let at = 8 * ((step - 1) % halves + 1);
        block[..8].copy_from_slice(&registers[..8]);
        block[8..].copy_from_slice(&registers[at..at + 8]);
        block[..8].iter_mut().zip((step as u64).to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        aes.decrypt_blocks(&mut block);
        registers[..8].copy_from_slice(&block[..8]);
        registers[at..at + 8].copy_from_slice(&block[8..]);
    }
    let intact = Secret::copy_from(&registers[..8]).same_as(&INTEGRITY);
    intact.then(|| Secret::copy_from(&registers[8..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3394, section 4.1.
    #[test]
    fn the_vector_of_the_rfc() {
        let kek: Vec<u8> = (0..16).collect();
        let mut wrapped =
            *b"\x1f\xa6\x8b\x0a\x81\x12\xb4\x47\xae\xf3\x4b\xd8\xfb\x5a\x7b\x82\x9d\x3e\x86\x23\x71\xd2\xcf\xe5";
        let key = unwrap(&kek, &wrapped, Acceleration::On).expect("it is intact");
        let expected: Vec<u8> = (0..16).map(|i| i << 4 | i).collect();
        assert!(key.same_as(&expected));
        wrapped[23] ^= 1;
        assert!(unwrap(&kek, &wrapped, Acceleration::On).is_none());
    }
}

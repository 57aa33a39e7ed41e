//! AES-GCM (NIST SP 800-38D) over whole messages, as JWEs are sealed (RFC 7518, 5.3): nonces of 12 bytes, tags of 16.

use crate::ciphers::{Acceleration, aes};
use crate::modes::aead::{Gcm, MessageCipher};
use crate::secret::{Secret, wipe_stack};

/// Bytes of a nonce.
pub const NONCE: usize = 12;
/// Bytes of a tag.
pub const TAG: usize = 16;

/// Encrypts `plain` under an AES key and returns the ciphertext, which is as long as `plain`, and the tag over it and `beside`. A
/// nonce must never be used twice under one key.
///
/// # Panics
/// If the key is not one of AES.
pub fn seal(key: &[u8], nonce: &[u8; NONCE], beside: &[u8], plain: &[u8]) -> (Vec<u8>, [u8; TAG]) {
    let (mut sealed, mut tag) = (plain.to_vec(), [0; TAG]);
    Gcm::new(aes::AES.with_key(key, Acceleration::On)).seal(nonce, beside, &mut sealed, &mut tag);
    wipe_stack();
    (sealed, tag)
}

/// The inverse of [`seal`]; `None` if the tag is wrong: another key, or the message was changed.
///
/// # Panics
/// If the key is not one of AES.
pub fn open(key: &[u8], nonce: &[u8; NONCE], beside: &[u8], sealed: &[u8], tag: &[u8; TAG]) -> Option<Secret> {
    let mut plain = Secret::copy_from(sealed);
    let right = Gcm::new(aes::AES.with_key(key, Acceleration::On)).open(nonce, beside, &mut plain, tag);
    wipe_stack();
    right.then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 16 of "The Galois/Counter Mode of Operation" (McGrew, Viega), which SP 800-38D names.
    #[test]
    fn seals_as_the_specification_says() {
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
        };
        let key = bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
        let nonce: [u8; NONCE] = bytes("cafebabefacedbaddecaf888").try_into().expect("a nonce");
        let beside = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let plain = bytes(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let expected = bytes(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        );
        let (sealed, mut tag) = seal(&key, &nonce, &beside, &plain);
        assert_eq!(sealed, expected);
        assert_eq!(tag[..], bytes("76fc6ece0f4e1768cddf8853bb2d551b"));
        assert!(open(&key, &nonce, &beside, &sealed, &tag).is_some_and(|opened| opened.same_as(&plain)));
        tag[0] ^= 1;
        assert!(open(&key, &nonce, &beside, &sealed, &tag).is_none());
        assert!(seal(&key, &nonce, b"", b"").0.is_empty());
    }
}

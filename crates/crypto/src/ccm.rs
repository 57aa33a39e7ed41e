//! AES-CCM (NIST SP 800-38C, RFC 3610) over whole messages, as BitLocker seals keys in its metadata: nonces of 12 bytes, tags of
//! 16, no associated data.

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::ciphers::{Acceleration, BlockCipher, aes};
use crate::secret::{Secret, wipe_stack};

/// Bytes of a nonce.
pub const NONCE: usize = 12;
/// Bytes of a tag.
pub const TAG: usize = 16;
/// Bytes of the longest message: three bytes are left for its length.
pub const LONGEST: usize = (1 << 24) - 1;

/// Tags of 16 bytes, lengths of 3, no associated data (SP 800-38C, A.2.1).
const FIRST_BLOCK: u8 = (TAG as u8 / 2 - 1) << 3 | COUNTER_BLOCK;
/// Counters of 3 bytes (A.3).
const COUNTER_BLOCK: u8 = 3 - 1;

/// Encrypts `plain` under an AES key. Returns the tag and the ciphertext, which is as long as `plain`. A nonce must never be used
/// twice under one key.
///
/// # Panics
/// If the key is not one of AES, or the message longer than [`LONGEST`].
pub fn seal(key: &[u8], nonce: &[u8; NONCE], plain: &[u8]) -> ([u8; TAG], Vec<u8>) {
    assert!(plain.len() <= LONGEST, "a message of {} bytes is too long for CCM", plain.len());
    let cipher = aes::AES.with_key(key, Acceleration::On);
    let tag = tag(&*cipher, nonce, plain);
    let mut sealed = plain.to_vec();
    xor_stream(&*cipher, nonce, &mut sealed);
    wipe_stack();
    (tag, sealed)
}

/// The inverse of [`seal`]; `None` if the tag is wrong: another key, or the message was changed.
///
/// # Panics
/// If the key is not one of AES.
pub fn open(key: &[u8], nonce: &[u8; NONCE], tag: &[u8; TAG], sealed: &[u8]) -> Option<Secret> {
    if sealed.len() > LONGEST {
        return None;
    }
    let cipher = aes::AES.with_key(key, Acceleration::On);
    let mut plain = Secret::copy_from(sealed);
    xor_stream(&*cipher, nonce, &mut plain);
    let right = self::tag(&*cipher, nonce, &plain);
    wipe_stack();
    bool::from(right.ct_eq(tag)).then_some(plain)
}

/// The CBC-MAC of the message, encrypted with the first block of the key stream.
fn tag(cipher: &dyn BlockCipher, nonce: &[u8; NONCE], plain: &[u8]) -> [u8; TAG] {
    let mut mac = block(FIRST_BLOCK, nonce, plain.len());
    cipher.encrypt_blocks(&mut mac);
    for part in plain.chunks(mac.len()) {
        mac.iter_mut().zip(part).for_each(|(mac, byte)| *mac ^= byte);
        cipher.encrypt_blocks(&mut mac);
    }
    let mut tag = block(COUNTER_BLOCK, nonce, 0);
    cipher.encrypt_blocks(&mut tag);
    tag.iter_mut().zip(&mac).for_each(|(tag, mac)| *tag ^= mac);
    mac.zeroize();
    tag
}

/// Encrypts or decrypts, which is the same.
fn xor_stream(cipher: &dyn BlockCipher, nonce: &[u8; NONCE], message: &mut [u8]) {
    let mut stream = [[0; 16]; 32];
    for (i, part) in message.chunks_mut(stream.as_flattened().len()).enumerate() {
        for (j, counter) in stream.iter_mut().enumerate() {
            *counter = block(COUNTER_BLOCK, nonce, i * 32 + j + 1);
        }
        cipher.encrypt_blocks(stream.as_flattened_mut());
        part.iter_mut().zip(stream.as_flattened()).for_each(|(byte, stream)| *byte ^= stream);
    }
    stream.as_flattened_mut().zeroize();
}

/// Flags, nonce, and a number of three bytes.
fn block(flags: u8, nonce: &[u8; NONCE], number: usize) -> [u8; 16] {
    let mut block = [flags; 16];
    block[1..=NONCE].copy_from_slice(nonce);
    block[NONCE + 1..].copy_from_slice(&(number as u32).to_be_bytes()[1..]);
    block
}

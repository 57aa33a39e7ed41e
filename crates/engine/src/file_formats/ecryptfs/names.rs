//! Encrypted names. Targets of symbolic links are encrypted in the same way (Linux 6.1, fs/ecryptfs/keystore.c,
//! `ecryptfs_write_tag_70_packet`; crypto.c, `ecryptfs_encode_for_filename`).
//!
//! A name is a prefix and a packet in 64 characters: tag 70, the key's signature, the cipher's number, and in ECB mode padding
//! without zeros, a zero, and the name. The padding is derived from the key. So a name always has the same ciphertext, and
//! decryption can be verified.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use claviger_crypto::hash::MD5;
use claviger_crypto::secret::{LockedBox, wipe_after_sectors};
use claviger_crypto::{Acceleration, BlockCipher};

use super::header::{packet_len, push_packet};
use super::suite::Suite;
use super::token::{Signature, Token};

/// The prefix of each encrypted name.
const PREFIX: &[u8] = b"ECRYPTFS_FNEK_ENCRYPTED.";

/// The 64 digits of encoded names, in order of value.
const DIGITS: &[u8; 64] = b"-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The value of each byte as a digit; 64 or more for one that is none.
const VALUES: [u8; 256] = {
    let (mut values, mut value) = ([u8::MAX; 256], 0);
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

const TAG: u8 = 70;

/// The fewest bytes of padding in front of the zero.
const FILLING: usize = 16;

/// The longest padding that a block of 16 bytes could need, plus one byte.
const FILLING_MOST: usize = 32;

/// The replacement for zeros in the padding.
const NOT_ZERO: u8 = 0x42;

/// The longest stored name, in bytes: no file system allows more. The tree below reports its own limit.
pub(super) const LONGEST: usize = 255;

/// The longest stored target of a symbolic link (path_resolution(7)), in bytes.
pub(super) const TARGET_MOST: usize = 4095;

/// The facts about its key in an encrypted name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NameKey {
    pub signature: Signature,
    pub code: u8,
}

/// The packet in a name: the key that it needs, and its ciphertext.
struct Packet {
    key: NameKey,
    sealed: Vec<u8>,
}

/// Encrypts and decrypts names.
pub(super) struct Names {
    key: NameKey,
    cipher: Box<dyn BlockCipher>,
    filling: LockedBox<[u8; FILLING_MOST]>,
}

/// The key that a name needs; `None` if the name is not encrypted.
pub(super) fn key_of(stored: &OsStr) -> Option<NameKey> {
    Packet::of(stored.as_bytes()).map(|packet| packet.key)
}

/// Whether a name begins with the prefix of encrypted names, in upper or lower case.
pub(super) fn begins(stored: &OsStr) -> bool {
    stored.as_bytes().get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
}

impl Names {
    /// Names encrypted with a passphrase's key.
    pub fn new(token: &Token, suite: Suite, acceleration: Acceleration) -> Self {
        let filling = LockedBox::build(|filling: &mut [u8; FILLING_MOST]| {
            let (first, second) = filling.split_at_mut(FILLING);
            MD5.digest(&[token.key()], first);
            MD5.digest(&[first], second);
            filling.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = NOT_ZERO);
        });
        let key = NameKey { signature: token.signature, code: suite.code() };
        Self { key, cipher: token.cipher(suite, acceleration), filling }
    }

    /// The signature of the key.
    pub fn signature(&self) -> Signature {
        self.key.signature
    }

    /// The block size of the cipher, in bytes.
    pub fn block(&self) -> usize {
        self.cipher.block_size()
    }

    /// The name in clear; `None` if it is not encrypted, or not with this key.
    pub fn plain(&self, stored: &OsStr) -> Option<OsString> {
        let Packet { key, sealed: mut bytes } = Packet::of(stored.as_bytes())?;
        if key != self.key || !bytes.len().is_multiple_of(self.cipher.block_size()) {
            return None;
        }
        self.cipher.decrypt_blocks(&mut bytes);
        wipe_after_sectors();
        let filling = bytes.iter().position(|byte| *byte == 0)?;
        let name = &bytes[filling + 1..];
        let same = filling == self.filling_before(name.len()) && bytes[..filling] == self.filling[..filling];
        (same && !name.is_empty()).then(|| OsString::from_vec(name.to_vec()))
    }

    /// The stored form of the name, of any length.
    pub fn stored(&self, plain: &OsStr) -> OsString {
        let mut bytes = self.filling[..self.filling_before(plain.len())].to_vec();
        bytes.push(0);
        bytes.extend(plain.as_bytes());
        self.cipher.encrypt_blocks(&mut bytes);
        wipe_after_sectors();
        let mut packet = Vec::with_capacity(bytes.len() + 13);
        push_packet(&mut packet, TAG, &[&self.key.signature, &[self.key.code], &bytes]);
        let mut text = PREFIX.to_vec();
        for group in packet.chunks(3) {
            let word = group.iter().chain(&[0; 2]).take(3).fold(0, |word, byte| word << 8 | usize::from(*byte));
            text.extend([18, 12, 6, 0].map(|shift| DIGITS[word >> shift & 63]));
        }
        OsString::from_vec(text)
    }

    /// Bytes of padding before a name of `name` bytes.
    fn filling_before(&self, name: usize) -> usize {
        let least = FILLING + 1 + name;
        FILLING + least.next_multiple_of(self.cipher.block_size()) - least
    }
}

/// The longest name whose stored form has at most `stored` bytes, for a cipher with this block size.
pub(super) fn longest(block: usize, stored: usize) -> usize {
    let packet = stored.saturating_sub(PREFIX.len()) / 4 * 3;
    // The packet's length field has one byte below 192, and two above.
    let body = packet.saturating_sub(2);
    let body = if body < 192 { body } else { body - 1 };
    (body.saturating_sub(9) / block * block).saturating_sub(FILLING + 1)
}

impl Packet {
    /// The packet in a name; `None` if there is none, or it differs from how eCryptfs writes it.
    fn of(stored: &[u8]) -> Option<Self> {
        let digits = stored.strip_prefix(PREFIX)?;
        if !digits.len().is_multiple_of(4) {
            return None;
        }
        let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
        for group in digits.chunks(4) {
            let word = group.iter().try_fold(0, |word: u32, digit| Some(word << 6 | u32::from(value(*digit)?)))?;
            bytes.extend(&word.to_be_bytes()[1..]);
        }
        let (TAG, rest) = bytes.split_first().map(|(tag, rest)| (*tag, rest))? else { return None };
        let (len, written) = packet_len(rest)?;
        let body = rest.get(written..written + len)?;
        let behind = &rest[written + len..];
        let (head, sealed) = body.split_first_chunk::<9>()?;
        let whole = behind.len() < 3 && behind.iter().all(|byte| *byte == 0) && !sealed.is_empty();
        let [signature @ .., code] = *head;
        whole.then(|| Self { key: NameKey { signature, code }, sealed: sealed.to_vec() })
    }
}

/// The value of a digit.
fn value(digit: u8) -> Option<u8> {
    Some(VALUES[usize::from(digit)]).filter(|value| *value < DIGITS.len() as u8)
}

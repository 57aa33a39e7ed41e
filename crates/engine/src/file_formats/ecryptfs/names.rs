//! Encrypted names, and targets of symbolic links, which are encrypted as names are (Linux 6.1, fs/ecryptfs/keystore.c,
//! `ecryptfs_write_tag_70_packet`; crypto.c, `ecryptfs_encode_for_filename`).
//!
//! A name is a prefix and a packet in 64 characters: tag 70, the signature of the key, the number of the cipher, and in ECB a filling without
//! zeros, a zero, and the name. The filling follows from the key, so that a name is always encrypted to the same, and whether it decrypts
//! can be told.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use claviger_crypto::hash::MD5;
use claviger_crypto::secret::{LockedBox, wipe_after_sectors};
use claviger_crypto::{Acceleration, BlockCipher};

use super::header::{packet_len, push_packet};
use super::suite::Suite;
use super::token::{Signature, Token};

/// What each encrypted name begins with.
const PREFIX: &[u8] = b"ECRYPTFS_FNEK_ENCRYPTED.";

/// The digits of a name, in order.
const DIGITS: &[u8; 64] = b"-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const TAG: u8 = 70;

/// The fewest bytes of filling in front of the zero.
const FILLING: usize = 16;

/// As much filling as a block of 16 bytes can ask for, a byte more than is ever used.
const FILLING_MOST: usize = 32;

/// What stands for a zero in the filling.
const NOT_ZERO: u8 = 0x42;

/// The longest name as it is stored, in bytes: longer than any file system has them. What the one below has, it says itself.
pub(super) const LONGEST: usize = 255;

/// The longest target of a symbolic link as it is stored (path_resolution(7)), in bytes.
pub(super) const TARGET_MOST: usize = 4095;

/// What a name says of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NameKey {
    pub signature: Signature,
    pub code: u8,
}

/// The packet in a name: whose key it needs, and its ciphertext.
struct Packet {
    key: NameKey,
    sealed: Vec<u8>,
}

/// What encrypts names.
pub(super) struct Names {
    key: NameKey,
    cipher: Box<dyn BlockCipher>,
    filling: LockedBox<[u8; FILLING_MOST]>,
}

/// Whose key a name needs; nothing if it is not encrypted.
pub(super) fn key_of(stored: &OsStr) -> Option<NameKey> {
    Packet::of(stored.as_bytes()).map(|packet| packet.key)
}

/// Whether a name begins as an encrypted one does, in whatever letters.
pub(super) fn begins(stored: &OsStr) -> bool {
    stored.as_bytes().get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
}

impl Names {
    /// Names under a passphrase's key.
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

    /// That of its key.
    pub fn signature(&self) -> Signature {
        self.key.signature
    }

    /// Size of its cipher's blocks, in bytes.
    pub fn block(&self) -> usize {
        self.cipher.block_size()
    }

    /// The name in clear; nothing if it is not encrypted, or otherwise than here.
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

    /// The name as it is stored, of whatever length.
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

    /// Bytes of filling before a name of so many bytes.
    fn filling_before(&self, name: usize) -> usize {
        let least = FILLING + 1 + name;
        FILLING + least.next_multiple_of(self.cipher.block_size()) - least
    }
}

/// The longest name whose stored form has `stored` bytes at most, where the cipher has blocks of so many bytes.
pub(super) fn longest(block: usize, stored: usize) -> usize {
    let packet = stored.saturating_sub(PREFIX.len()) / 4 * 3;
    // With as many bytes for the length as that length needs.
    let body = packet.saturating_sub(2);
    let body = if body < 192 { body } else { body - 1 };
    (body.saturating_sub(9) / block * block).saturating_sub(FILLING + 1)
}

impl Packet {
    /// The packet in a name; nothing if there is none, or it is not written as eCryptfs does it.
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
    DIGITS.iter().position(|d| *d == digit).map(|at| at as u8)
}

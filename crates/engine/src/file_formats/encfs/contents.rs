//! The blocks of a file (CipherFileIO.cpp and MACFileIO.cpp of EncFS 1.9.5), as messages that are sealed one by one.
//!
//! A whole block is a chain of CBC, a shorter one at the end of a file a stream. Encrypted with the data are a checksum in front of
//! them, and random bytes, if the folder has them.

use std::sync::Arc;

use claviger_crypto::modes::MessageCipher;

use super::coder::Coder;

/// Bytes of a number of a block, and of a file's IV.
const NUMBER: usize = 8;

/// A folder's blocks.
pub(super) struct Blocks {
    pub coder: Arc<Coder>,
    /// Bytes of a whole block as it is stored.
    pub size: usize,
    /// Bytes of a checksum, at most 8.
    pub checksum: usize,
    /// Bytes of random data after it.
    pub random: usize,
}

impl Blocks {
    /// What a block's IV depends on: its number and the file's IV.
    fn seed(beside: &[u8]) -> u64 {
        let (number, file) = beside.split_at(NUMBER);
        let value = |bytes: &[u8]| bytes.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
        value(number) ^ value(file)
    }

    /// The checksum of what follows it, as it is stored. All zeros if it has no bytes.
    fn checksum(&self, rest: &[u8]) -> [u8; 8] {
        match self.checksum {
            0 => [0; 8],
            _ => self.coder.checksum(&[rest], None).to_le_bytes(),
        }
    }
}

impl MessageCipher for Blocks {
    fn nonce_size(&self) -> usize {
        0
    }

    fn tag_size(&self) -> usize {
        self.checksum + self.random
    }

    /// The random bytes are those that are in `tag`.
    fn seal(&self, _nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]) {
        let mut block = [&*tag, &*message].concat();
        let (checksum, rest) = block.split_at_mut(self.checksum);
        checksum.copy_from_slice(&self.checksum(rest)[..self.checksum]);
        match block.len() == self.size {
            true => self.coder.encrypt_blocks(Self::seed(beside), &mut block),
            false => self.coder.encrypt_stream(Self::seed(beside), &mut block),
        }
        let (sealed_tag, sealed) = block.split_at(tag.len());
        tag.copy_from_slice(sealed_tag);
        message.copy_from_slice(sealed);
    }

    fn open(&self, _nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool {
        let decrypt = |block: &mut [u8]| match block.len() == self.size {
            true => self.coder.decrypt_blocks(Self::seed(beside), block),
            false => self.coder.decrypt_stream(Self::seed(beside), block),
        };
        if tag.is_empty() {
            decrypt(message);
            return true;
        }
        let mut block = [tag, &*message].concat();
        decrypt(&mut block);
        message.copy_from_slice(&block[tag.len()..]);
        let (checksum, rest) = block.split_at(self.checksum);
        // In a time that does not depend on the bytes.
        checksum.iter().zip(self.checksum(rest)).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }
}

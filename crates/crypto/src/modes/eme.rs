//! EME, ECB-Mix-ECB (Halevi, Rogaway, "A Parallelizable Enciphering Mode", 2003): each bit of the ciphertext depends on each bit of
//! the message and of the tweak. It has no tag.

use zeroize::Zeroize;

use crate::ciphers::BlockCipher;
use crate::secret::LockedBox;
use crate::tweak::double;

/// Bytes of a block.
const BLOCK: usize = 16;

/// The longest message, in bytes: as many blocks as a block has bits (section 3).
const LONGEST: usize = 128 * BLOCK;

/// A wide-block cipher for messages of 1 to 128 blocks.
pub struct Eme {
    cipher: Box<dyn BlockCipher>,
    /// L: twice the encrypted block of zeros.
    mask: LockedBox<u128>,
}

impl Eme {
    /// The longest message, in bytes.
    pub const LONGEST: usize = LONGEST;

    /// Makes the mode from a cipher with blocks of 16 bytes.
    pub fn new(cipher: Box<dyn BlockCipher>) -> Self {
        let mask = LockedBox::build(|mask: &mut u128| {
            let mut zero = [0; BLOCK];
            cipher.encrypt_blocks(&mut zero);
            *mask = double(u128::from_le_bytes(zero));
            zero.zeroize();
        });
        Self { cipher, mask }
    }

    /// Encrypts a message in place.
    ///
    /// # Panics
    /// Unless it is whole blocks, at least one and at most [`Eme::LONGEST`] bytes.
    pub fn encrypt(&self, tweak: &[u8; BLOCK], message: &mut [u8]) {
        self.transform(tweak, message, |blocks| self.cipher.encrypt_blocks(blocks));
    }

    /// The inverse of [`Eme::encrypt`].
    ///
    /// # Panics
    /// Like [`Eme::encrypt`].
    pub fn decrypt(&self, tweak: &[u8; BLOCK], message: &mut [u8]) {
        self.transform(tweak, message, |blocks| self.cipher.decrypt_blocks(blocks));
    }

    /// Section 3, figure 2: both directions only differ in that of the cipher.
    fn transform(&self, tweak: &[u8; BLOCK], message: &mut [u8], each: impl Fn(&mut [u8])) {
        let whole = !message.is_empty() && message.len().is_multiple_of(BLOCK) && message.len() <= LONGEST;
        assert!(whole, "EME takes 1 to 128 blocks of {BLOCK} bytes, not {} bytes", message.len());
        let (blocks, _) = message.as_chunks_mut::<BLOCK>();
        let tweak = u128::from_le_bytes(*tweak);
        self.mask(blocks);
        each(blocks.as_flattened_mut());
        let mixed = sum(blocks) ^ tweak;
        let mut sealed = mixed.to_le_bytes();
        each(&mut sealed);
        let sealed = u128::from_le_bytes(sealed);
        let mut mask = mixed ^ sealed;
        for block in &mut blocks[1..] {
            mask = double(mask);
            *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
        }
        blocks[0] = (sealed ^ tweak ^ sum(&blocks[1..])).to_le_bytes();
        each(blocks.as_flattened_mut());
        self.mask(blocks);
    }

    /// Adds L to the first block, and twice as much to each one that follows.
    fn mask(&self, blocks: &mut [[u8; BLOCK]]) {
        let mut mask = *self.mask;
        for block in blocks {
            *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
            mask = double(mask);
        }
    }
}

fn sum(blocks: &[[u8; BLOCK]]) -> u128 {
    blocks.iter().fold(0, |sum, block| sum ^ u128::from_le_bytes(*block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ciphers::{Acceleration, aes};

    fn digits(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// With a key, a tweak and a message of zeros: 32 blocks are a test vector of EME-32 (IEEE P1619.2, draft), in both directions;
    /// one block and 128 blocks are from the tests of gocryptfs's library (rfjakob/eme, eme_test.go).
    #[test]
    fn it_encrypts_as_published() {
        let eme = Eme::new(aes::AES.with_key(&[0; 32], Acceleration::On));
        let made = |len: usize, encrypt: bool| {
            let mut message = vec![0; len];
            if encrypt {
                eme.encrypt(&[0; 16], &mut message)
            } else {
                eme.decrypt(&[0; 16], &mut message)
            }
            message
        };
        assert_eq!(digits(&made(16, true)), "f1b9ce8ca15a4ba9fb476905434b9fd3");
        for (len, encrypt, ends) in [
            (512, true, ["9f2e6c3daecae79e8839b0588ff378cd", "ac209c2cd3cc577c28eedaafcedd89a6"]),
            (512, false, ["080905dee8ebcc89f68bd1af635db3f5", "3af804a5c9dab34420f260e4bd840829"]),
            (2048, true, ["630500884158a8d41216aaa6351e92ea", "4eb93771340ed9e323d09e4256b7e5ac"]),
        ] {
            let message = made(len, encrypt);
            assert_eq!([&message[..16], &message[len - 16..]].map(digits), ends, "{len} bytes");
        }
    }

    #[test]
    fn every_length_decrypts_and_depends_on_the_tweak() {
        let eme = Eme::new(aes::AES.with_key(&[5; 32], Acceleration::On));
        for blocks in [1, 2, 3, 16, 127, 128] {
            let plain: Vec<u8> = (0..blocks * BLOCK).map(|i| (i * 7) as u8).collect();
            let mut message = plain.clone();
            eme.encrypt(&[1; 16], &mut message);
            let mut other = message.clone();
            eme.decrypt(&[1; 16], &mut message);
            eme.decrypt(&[2; 16], &mut other);
            assert!(message == plain && other != plain, "{blocks} blocks");
        }
    }
}

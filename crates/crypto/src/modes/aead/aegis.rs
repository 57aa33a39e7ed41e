//! AEGIS-128 (Wu, Preneel, "AEGIS: A Fast Authenticated Encryption Algorithm", v1.1, CAESAR 2016), as in Linux
//! (crypto/aegis128-core.c). The later AEGIS-128L and AEGIS-256 are different ciphers.

use aes::Block;
use aes::hazmat::cipher_round;
use zeroize::Zeroize;

/// Size of a block, of the key, of the IV and of the tag, in bytes.
pub(super) const SIZE: usize = 16;

/// Constants, the Fibonacci numbers modulo 256 (section 2.1 of the paper).
const CONST_0: [u8; SIZE] =
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62];
const CONST_1: [u8; SIZE] =
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd];

/// Encrypts `text` in place and returns the tag.
pub(super) fn encrypt(key: &[u8; SIZE], iv: &[u8; SIZE], aad: &[u8], text: &mut [u8]) -> [u8; SIZE] {
    let mut state = State::new(key, iv, aad);
    for block in text.chunks_mut(SIZE) {
        let stream = state.stream();
        let plain = padded(block);
        block.iter_mut().zip(stream).for_each(|(b, s)| *b ^= s);
        state.update(&plain);
    }
    state.tag(aad.len(), text.len())
}

/// Decrypts `text` in place and returns the expected tag.
pub(super) fn decrypt(key: &[u8; SIZE], iv: &[u8; SIZE], aad: &[u8], text: &mut [u8]) -> [u8; SIZE] {
    let mut state = State::new(key, iv, aad);
    for block in text.chunks_mut(SIZE) {
        let stream = state.stream();
        block.iter_mut().zip(stream).for_each(|(b, s)| *b ^= s);
        state.update(&padded(block));
    }
    state.tag(aad.len(), text.len())
}

/// Five blocks that depend on the key; wiped when dropped.
struct State([Block; 5]);

impl State {
    fn new(key: &[u8; SIZE], iv: &[u8; SIZE], aad: &[u8]) -> Self {
        let mut mixed = xor(key, iv);
        let mut state = Self([mixed, CONST_1, CONST_0, xor(key, &CONST_0), xor(key, &CONST_1)].map(Block::from));
        for _ in 0..5 {
            state.update(key);
            state.update(&mixed);
        }
        mixed.zeroize();
        aad.chunks(SIZE).for_each(|block| state.update(&padded(block)));
        state
    }

    /// The function StateUpdate128.
    fn update(&mut self, message: &[u8; SIZE]) {
        let [s0, s1, s2, s3, s4] = &mut self.0;
        let last = *s4;
        let round = |block: &mut Block, from: &Block| {
            let key = *block;
            *block = *from;
            cipher_round(block, &key);
        };
        round(s4, s3);
        round(s3, s2);
        round(s2, s1);
        round(s1, s0);
        s0.iter_mut().zip(message).for_each(|(s, m)| *s ^= m);
        round(s0, &last);
    }

    fn stream(&self) -> [u8; SIZE] {
        let [_, s1, s2, s3, s4] = &self.0;
        std::array::from_fn(|i| s1[i] ^ s4[i] ^ (s2[i] & s3[i]))
    }

    /// `aad` and `text` are lengths in bytes.
    fn tag(mut self, aad: usize, text: usize) -> [u8; SIZE] {
        let mut lengths = [0; SIZE];
        lengths[..8].copy_from_slice(&(aad as u64 * 8).to_le_bytes());
        lengths[8..].copy_from_slice(&(text as u64 * 8).to_le_bytes());
        let last: [u8; SIZE] = std::array::from_fn(|i| lengths[i] ^ self.0[3][i]);
        for _ in 0..7 {
            self.update(&last);
        }
        std::array::from_fn(|i| self.0.iter().fold(0, |sum, block| sum ^ block[i]))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|block| block.as_mut_slice().zeroize());
    }
}

fn xor(one: &[u8; SIZE], other: &[u8; SIZE]) -> [u8; SIZE] {
    std::array::from_fn(|i| one[i] ^ other[i])
}

/// At most one block, zero-padded.
fn padded(bytes: &[u8]) -> [u8; SIZE] {
    let mut block = [0; SIZE];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors at the end of the paper's section on AEGIS-128, also in Linux, crypto/testmgr.h,
    /// `aegis128_tv_template`.
    #[test]
    fn vectors_of_the_paper() {
        let mut text = [0; 16];
        let tag = encrypt(&[0; 16], &[0; 16], &[], &mut text);
        assert_eq!(hex(&text), "951b050fa72b1a2fc16d2e1f01b07d7e");
        assert_eq!(hex(&tag), "a7d2a99773249542f422217ee888d5f1");
        assert_eq!(decrypt(&[0; 16], &[0; 16], &[], &mut text), tag);
        assert_eq!(text, [0; 16]);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }
}

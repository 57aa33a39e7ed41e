//! Slow scalar reference implementations, written directly from the specifications, for checking the fast kernels.
//!
//! Speed and timing do not matter here: tests compare with these ciphers and never use them for secrets.

pub mod aes;
pub mod camellia;
pub mod elephant;
pub mod kuznyechik;
pub mod legacy;
pub mod serpent;
pub mod twofish;
pub mod xts;

/// A block of 16 bytes.
pub type Block = [u8; 16];

/// A keyed block cipher that works on one block in place.
pub trait Keyed {
    /// Encrypts a block.
    fn encrypt(&self, block: &mut Block);
    /// Decrypts a block.
    fn decrypt(&self, block: &mut Block);
}

/// A reference cipher.
pub struct Cipher {
    /// Its name in the engine's table of ciphers.
    pub name: &'static str,
    /// Key sizes in bytes.
    pub key_sizes: &'static [usize],
    /// Expands a key of one of these sizes.
    pub with_key: fn(&[u8]) -> Box<dyn Keyed>,
}

/// Every reference cipher.
pub static CIPHERS: &[Cipher] = &[
    Cipher { name: "AES", key_sizes: &[16, 24, 32], with_key: |key| Box::new(aes::Aes::new(key)) },
    Cipher { name: "Serpent", key_sizes: &[16, 24, 32], with_key: |key| Box::new(serpent::Serpent::new(key)) },
    Cipher { name: "Twofish", key_sizes: &[16, 24, 32], with_key: |key| Box::new(twofish::Twofish::new(key)) },
    Cipher { name: "Camellia", key_sizes: &[16, 24, 32], with_key: |key| Box::new(camellia::Camellia::new(key)) },
    Cipher { name: "Kuznyechik", key_sizes: &[32], with_key: |key| Box::new(kuznyechik::Kuznyechik::new(key)) },
];

/// The reference for the cipher that the engine calls `name`.
pub fn cipher(name: &str) -> Option<&'static Cipher> {
    CIPHERS.iter().find(|c| c.name == name)
}

/// Encrypts each block by itself.
pub fn ecb_encrypt(cipher: &dyn Keyed, blocks: &mut [u8]) {
    each_block(blocks, |block| cipher.encrypt(block));
}

/// Decrypts each block by itself.
pub fn ecb_decrypt(cipher: &dyn Keyed, blocks: &mut [u8]) {
    each_block(blocks, |block| cipher.decrypt(block));
}

fn each_block(blocks: &mut [u8], each: impl FnMut(&mut Block)) {
    let (blocks, rest) = blocks.as_chunks_mut();
    assert!(rest.is_empty(), "{} bytes past the last whole block", rest.len());
    blocks.iter_mut().for_each(each);
}

/// The product of two polynomials over GF(2), modulo one of degree 8 whose bits `modulus` holds.
fn multiply_mod(a: u8, b: u8, modulus: u16) -> u8 {
    let mut product = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0u16, |sum, bit| sum ^ u16::from(a) << bit);
    for bit in (8..16).rev() {
        if product >> bit & 1 == 1 {
            product ^= modulus << (bit - 8);
        }
    }
    product as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{self, Vector};

    #[test]
    fn block_vectors_hold() {
        for (cipher, folder) in CIPHERS.iter().zip(["aes", "serpent", "twofish", "camellia", "kuznyechik"]) {
            let vectors = vectors::load(folder);
            assert!(cipher.key_sizes.iter().all(|size| vectors.iter().any(|v| v.bytes("key").len() == *size)));
            for v in vectors {
                let keyed = (cipher.with_key)(&v.bytes("key"));
                let (plain, cipher) = (v.bytes("plaintext"), v.bytes("ciphertext"));
                let times = v.number_or("times", 1);
                v.finish();
                let mut data = plain.clone();
                (0..times).for_each(|_| ecb_encrypt(&*keyed, &mut data));
                assert!(data == cipher, "{v}: encrypts to {}", vectors::hex(&data));
                (0..times).for_each(|_| ecb_decrypt(&*keyed, &mut data));
                assert!(data == plain, "{v}: decrypts to {}", vectors::hex(&data));
            }
        }
    }

    #[test]
    fn xts_vectors_hold() {
        for v in vectors::load("xts") {
            let layers = xts_layers(&v);
            let (unit, sector) = (v.number("unit") as usize, v.number("sector"));
            let plain = v.bytes("plaintext");
            let mut data = plain.clone();
            xts::cascade_encrypt(&layers, unit, sector, &mut data);
            if let Some(cipher) = v.bytes_or_none("ciphertext") {
                assert!(data == cipher, "{v}: encrypts to {}", vectors::hex(&data));
            } else {
                let crc = u64::from(legacy::crc32(&data));
                assert!(crc == v.number("crc32"), "{v}: encrypts to something with a CRC of {crc:#010x}");
            }
            v.finish();
            xts::cascade_decrypt(&layers, unit, sector, &mut data);
            assert!(data == plain, "{v}: does not decrypt to the plaintext");
        }
    }

    /// Ciphers are in TrueCrypt's order for cascades: the first to encrypt comes last.
    fn xts_layers(v: &Vector) -> Vec<xts::Layer> {
        let (key, key2) = (v.bytes("key"), v.bytes("key2"));
        let names: Vec<&str> = v.text("cipher").rsplit('-').collect();
        let size = key.len() / names.len();
        let layers = names.iter().zip(key.chunks(size)).zip(key2.chunks(size)).map(|((name, key), key2)| {
            let cipher = cipher(name).unwrap_or_else(|| panic!("{v}: no cipher {name}"));
            xts::Layer { data: (cipher.with_key)(key), tweak: (cipher.with_key)(key2) }
        });
        layers.collect()
    }

    #[test]
    fn multiplies_as_in_fips_197_4_2() {
        assert_eq!(multiply_mod(0x57, 0x83, 0x11b), 0xc1);
        assert_eq!(multiply_mod(0x57, 0x13, 0x11b), 0xfe);
    }
}

//! Ciphers straight from their specifications: slow, scalar, and written without a look at the fast ones.

pub mod aes;
pub mod serpent;
pub mod twofish;
pub mod xts;

/// A block of 16 bytes.
pub type Block = [u8; 16];

/// A keyed cipher of 16-byte blocks.
pub trait Reference {
    /// Encrypts one block.
    fn encrypt(&self, block: Block) -> Block;
    /// Decrypts one block.
    fn decrypt(&self, block: Block) -> Block;
}

/// The reference of a cipher by the name that it has in the table of ciphers, if there is one.
pub fn by_name(cipher: &str, key: &[u8]) -> Option<Box<dyn Reference>> {
    match cipher {
        "AES" => Some(Box::new(aes::Aes::new(key))),
        "Serpent" => Some(Box::new(serpent::Serpent::new(key))),
        "Twofish" => Some(Box::new(twofish::Twofish::new(key))),
        _ => None,
    }
}

/// The product of two elements of GF(2)\[x\] modulo `modulus`, a polynomial of degree 8.
fn multiply(a: u8, b: u8, modulus: u32) -> u8 {
    let mut product = (0..8).filter(|i| b >> i & 1 == 1).fold(0, |p, i| p ^ u32::from(a) << i);
    for i in (8..15).rev() {
        if product >> i & 1 == 1 {
            product ^= modulus << (i - 8);
        }
    }
    product as u8
}

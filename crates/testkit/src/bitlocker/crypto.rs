//! A simple implementation of BitLocker's cryptography from published descriptions: Ferguson, "AES-CBC + Elephant
//! diffuser" (2006), RFC 3610 for CCM, IEEE 1619 for XTS.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use sha2::{Digest, Sha256};

use crate::reference::{Block, xts};

/// The cipher of the sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// AES-128 in CBC mode with the Elephant diffuser.
    CbcElephant128,
    /// AES-256 in CBC mode with the Elephant diffuser.
    CbcElephant256,
    /// AES-128 in CBC mode.
    Cbc128,
    /// AES-256 in CBC mode.
    Cbc256,
    /// AES-128 in XTS mode.
    Xts128,
    /// AES-256 in XTS mode.
    Xts256,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 6] =
        [Self::CbcElephant128, Self::CbcElephant256, Self::Cbc128, Self::Cbc256, Self::Xts128, Self::Xts256];

    /// The method's number in the metadata.
    pub fn number(self) -> u16 {
        0x8000 + Self::ALL.iter().position(|&method| method == self).expect("it is one of all") as u16
    }

    /// Length of the stored full volume encryption key, in bytes.
    pub fn key_len(self) -> usize {
        [64, 64, 16, 32, 32, 64][usize::from(self.number() - 0x8000)]
    }

    /// The cipher under a full volume encryption key.
    ///
    /// # Panics
    /// If the key is not `key_len` bytes long.
    pub fn cipher(self, key: &[u8]) -> SectorCipher {
        assert_eq!(key.len(), self.key_len());
        let (data, other) = match self {
            Self::CbcElephant128 => (&key[..16], Some(&key[32..48])),
            Self::CbcElephant256 | Self::Xts256 => (&key[..32], Some(&key[32..])),
            Self::Cbc128 | Self::Cbc256 => (key, None),
            Self::Xts128 => (&key[..16], Some(&key[16..])),
        };
        let xts = matches!(self, Self::Xts128 | Self::Xts256);
        SectorCipher { xts, data: Aes::new(data), other: other.map(Aes::new) }
    }
}

/// Encrypts sectors.
pub struct SectorCipher {
    xts: bool,
    data: Aes,
    /// The tweak key of XTS, or the sector key of the diffuser.
    other: Option<Aes>,
}

impl SectorCipher {
    /// Encrypts in place the sector whose first byte is at byte `offset` of the volume.
    pub fn encrypt(&self, offset: u64, sector: &mut [u8]) {
        match &self.other {
            Some(tweak) if self.xts => {
                let number = offset / sector.len() as u64;
                xts::crypt(|b| self.data.encrypt(b), |t| tweak.encrypt(t), sector.len(), number, sector);
            }
            Some(sector_key) => {
                xor_sector_key(sector_key, offset, sector);
                diffuse(sector);
                self.cbc_encrypt(offset, sector);
            }
            None => self.cbc_encrypt(offset, sector),
        }
    }

    /// Decrypts in place the sector whose first byte is at byte `offset` of the volume.
    pub fn decrypt(&self, offset: u64, sector: &mut [u8]) {
        match &self.other {
            Some(tweak) if self.xts => {
                let number = offset / sector.len() as u64;
                xts::crypt(|b| self.data.decrypt(b), |t| tweak.encrypt(t), sector.len(), number, sector);
            }
            Some(sector_key) => {
                self.cbc_decrypt(offset, sector);
                undiffuse(sector);
                xor_sector_key(sector_key, offset, sector);
            }
            None => self.cbc_decrypt(offset, sector),
        }
    }

    fn cbc_encrypt(&self, offset: u64, sector: &mut [u8]) {
        let mut last = le128(offset);
        self.data.encrypt(&mut last);
        for block in sector.as_chunks_mut().0 {
            xor(block, &last);
            self.data.encrypt(block);
            last = *block;
        }
    }

    fn cbc_decrypt(&self, offset: u64, sector: &mut [u8]) {
        let mut last = le128(offset);
        self.data.encrypt(&mut last);
        for block in sector.as_chunks_mut().0 {
            let encrypted = *block;
            self.data.decrypt(block);
            xor(block, &last);
            last = encrypted;
        }
    }
}

/// Another project's AES: the slow reference would take minutes for a volume.
enum Aes {
    Short(aes::Aes128),
    Long(aes::Aes256),
}

impl Aes {
    fn new(key: &[u8]) -> Self {
        match key.len() {
            16 => Self::Short(aes::Aes128::new_from_slice(key).expect("16 bytes")),
            _ => Self::Long(aes::Aes256::new_from_slice(key).expect("32 bytes")),
        }
    }

    fn encrypt(&self, block: &mut Block) {
        match self {
            Self::Short(aes) => aes.encrypt_block(block.into()),
            Self::Long(aes) => aes.encrypt_block(block.into()),
        }
    }

    fn decrypt(&self, block: &mut Block) {
        match self {
            Self::Short(aes) => aes.decrypt_block(block.into()),
            Self::Long(aes) => aes.decrypt_block(block.into()),
        }
    }
}

fn le128(number: u64) -> Block {
    u128::from(number).to_le_bytes()
}

fn xor(to: &mut [u8], with: &[u8]) {
    to.iter_mut().zip(with).for_each(|(a, b)| *a ^= b);
}

fn xor_sector_key(key: &Aes, offset: u64, sector: &mut [u8]) {
    let (mut low, mut high) = (le128(offset), le128(offset));
    high[15] = 0x80;
    key.encrypt(&mut low);
    key.encrypt(&mut high);
    let pad = [low, high].concat();
    sector.chunks_mut(32).for_each(|part| xor(part, &pad));
}

const A: [u32; 4] = [9, 0, 13, 0];
const B: [u32; 4] = [0, 10, 0, 25];

/// Decryption as in the paper: `d[i] += d[i ± near] ^ rotl(d[i ± far])`, B before A.
fn undiffuse(sector: &mut [u8]) {
    in_words(sector, |d| {
        let n = d.len();
        for i in (0..3).flat_map(|_| 0..n) {
            d[i] = d[i].wrapping_add(d[(i + 2) % n] ^ d[(i + 5) % n].rotate_left(B[i % 4]));
        }
        for i in (0..5).flat_map(|_| 0..n) {
            d[i] = d[i].wrapping_add(d[(i + n - 2) % n] ^ d[(i + n - 5) % n].rotate_left(A[i % 4]));
        }
    });
}

/// The inverse of `undiffuse`.
fn diffuse(sector: &mut [u8]) {
    in_words(sector, |d| {
        let n = d.len();
        for i in (0..5).flat_map(|_| (0..n).rev()) {
            d[i] = d[i].wrapping_sub(d[(i + n - 2) % n] ^ d[(i + n - 5) % n].rotate_left(A[i % 4]));
        }
        for i in (0..3).flat_map(|_| (0..n).rev()) {
            d[i] = d[i].wrapping_sub(d[(i + 2) % n] ^ d[(i + 5) % n].rotate_left(B[i % 4]));
        }
    });
}

fn in_words(sector: &mut [u8], work: impl FnOnce(&mut [u32])) {
    let mut words: Vec<u32> = sector.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    work(&mut words);
    sector.copy_from_slice(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
}

/// AES-256-CCM with L = 3 and a tag of 16 bytes (RFC 3610): tag, then ciphertext.
pub fn ccm_seal(key: &[u8], nonce: &[u8; 12], plain: &[u8]) -> Vec<u8> {
    let aes = Aes::new(key);
    let counter = |number: usize| -> Block {
        let mut block = [0; 16];
        block[0] = 3 - 1;
        block[1..13].copy_from_slice(nonce);
        block[13..].copy_from_slice(&(number as u32).to_be_bytes()[1..]);
        aes.encrypt(&mut block);
        block
    };
    let mut mac: Block = [0; 16];
    mac[0] = (((16 - 2) / 2) << 3) | (3 - 1);
    mac[1..13].copy_from_slice(nonce);
    mac[13..].copy_from_slice(&(plain.len() as u32).to_be_bytes()[1..]);
    aes.encrypt(&mut mac);
    for part in plain.chunks(16) {
        xor(&mut mac, part);
        aes.encrypt(&mut mac);
    }
    xor(&mut mac, &counter(0));
    let mut sealed = mac.to_vec();
    for (i, part) in plain.chunks(16).enumerate() {
        let mut part = part.to_vec();
        xor(&mut part, &counter(i + 1));
        sealed.extend(part);
    }
    sealed
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The secret that a password is stretched from.
pub fn password_secret(password: &str) -> [u8; 32] {
    let text: Vec<u8> = password.encode_utf16().flat_map(u16::to_le_bytes).collect();
    sha256(&sha256(&text))
}

/// The key that 2^20 rounds of SHA-256 derive from a secret. Computed once per process for each secret and salt.
pub fn stretch(secret: [u8; 32], salt: [u8; 16]) -> [u8; 32] {
    type Stretched = HashMap<([u8; 32], [u8; 16]), Arc<OnceLock<[u8; 32]>>>;
    static STRETCHED: LazyLock<Mutex<Stretched>> = LazyLock::new(Mutex::default);
    let place = STRETCHED.lock().expect("nobody panics with it").entry((secret, salt)).or_default().clone();
    *place.get_or_init(|| {
        let mut hash = [0; 32];
        for i in 0u64..1 << 20 {
            let round = Sha256::new().chain_update(hash).chain_update(secret).chain_update(salt);
            hash = round.chain_update(i.to_le_bytes()).finalize().into();
        }
        hash
    })
}

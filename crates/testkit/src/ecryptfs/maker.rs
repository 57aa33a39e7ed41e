//! A maker of files, names and wrapped passphrases, written from the documents and from the kernel's output. It is
//! simple and slow, and can make each part wrong.
//!
//! Sources: Linux, fs/ecryptfs/ecryptfs_kernel.h, crypto.c and keystore.c; RFC 2440, sections 5.1, 5.3 and 5.9; ecryptfs-utils,
//! src/libecryptfs/key_management.c.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use md5::Md5;
use sha2::{Digest, Sha512};

/// Size of an extent, in bytes.
pub const EXTENT: usize = 4096;
/// Size of the header before the contents, in bytes.
pub const HEADER: usize = 2 * EXTENT;
/// The salt for contents, the same in all programs.
pub const SALT: [u8; 8] = [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];
/// The salt for names: meant as hexadecimal digits, but used as text.
pub const NAME_SALT: [u8; 8] = *b"99887766";
/// The XOR of a marker's two words.
pub const MARKER: u32 = 0x3c81_b7f5;
/// Flag: the contents are encrypted.
pub const ENCRYPTED: u32 = 2;
/// Flag: the metadata are in an extended attribute.
pub const IN_ATTRIBUTE: u32 = 4;
/// Flag: names are encrypted.
pub const ENCRYPTED_NAMES: u32 = 8;

/// The beginning of encrypted names.
pub const PREFIX: &str = "ECRYPTFS_FNEK_ENCRYPTED.";

/// A cipher and its key size in bytes.
pub type Cipher = (&'static str, usize);

/// All ciphers and key sizes with which kernel 6.1 makes and reads files: the sizes that its ciphers support and that
/// fill whole blocks, and AES-192.
pub const CIPHERS: &[Cipher] = &[
    ("aes", 16),
    ("aes", 24),
    ("aes", 32),
    ("blowfish", 8),
    ("blowfish", 16),
    ("blowfish", 24),
    ("blowfish", 32),
    ("blowfish", 40),
    ("blowfish", 48),
    ("blowfish", 56),
    ("des3_ede", 24),
    ("twofish", 16),
    ("twofish", 32),
    ("cast5", 8),
    ("cast5", 16),
    ("cast6", 16),
    ("cast6", 32),
];

/// The code of a cipher (`ecryptfs_cipher_code_str_map`).
pub fn code((name, key_bytes): Cipher) -> u8 {
    match (name, key_bytes) {
        ("des3_ede", _) => 2,
        ("cast5", _) => 3,
        ("blowfish", _) => 4,
        ("aes", 16) => 7,
        ("aes", 24) => 8,
        ("aes", _) => 9,
        ("twofish", _) => 10,
        ("cast6", _) => 11,
        _ => panic!("no cipher is called {name}"),
    }
}

/// Block size of a cipher, in bytes.
pub fn block(name: &str) -> usize {
    if matches!(name, "aes" | "twofish" | "cast6") { 16 } else { 8 }
}

type Blocks = fn(&[u8], &mut [u8]);

fn encrypt_with<C: KeyInit + BlockCipherEncrypt + BlockSizeUser>(key: &[u8], blocks: &mut [u8]) {
    let cipher = C::new_from_slice(key).expect("a key of that size");
    for block in blocks.chunks_exact_mut(C::block_size()) {
        cipher.encrypt_block(<&mut Array<u8, C::BlockSize>>::try_from(block).expect("a block"));
    }
}

fn decrypt_with<C: KeyInit + BlockCipherDecrypt + BlockSizeUser>(key: &[u8], blocks: &mut [u8]) {
    let cipher = C::new_from_slice(key).expect("a key of that size");
    for block in blocks.chunks_exact_mut(C::block_size()) {
        cipher.decrypt_block(<&mut Array<u8, C::BlockSize>>::try_from(block).expect("a block"));
    }
}

fn both((name, key_bytes): Cipher) -> (Blocks, Blocks) {
    match (name, key_bytes) {
        ("aes", 16) => (encrypt_with::<Aes128>, decrypt_with::<Aes128>),
        ("aes", 24) => (encrypt_with::<Aes192>, decrypt_with::<Aes192>),
        ("aes", 32) => (encrypt_with::<Aes256>, decrypt_with::<Aes256>),
        ("blowfish", _) => (encrypt_with::<blowfish::Blowfish>, decrypt_with::<blowfish::Blowfish>),
        ("des3_ede", 24) => (encrypt_with::<des::TdesEde3>, decrypt_with::<des::TdesEde3>),
        ("twofish", _) => (encrypt_with::<twofish::Twofish>, decrypt_with::<twofish::Twofish>),
        ("cast5", _) => (encrypt_with::<cast5::Cast5>, decrypt_with::<cast5::Cast5>),
        ("cast6", _) => (encrypt_with::<cast6::Cast6>, decrypt_with::<cast6::Cast6>),
        _ => panic!("{name} has no keys of {key_bytes} bytes"),
    }
}

/// Encrypts each block by itself.
pub fn ecb_encrypt(cipher: Cipher, key: &[u8], blocks: &mut [u8]) {
    both(cipher).0(&key[..cipher.1], blocks);
}

/// The inverse of [`ecb_encrypt`].
pub fn ecb_decrypt(cipher: Cipher, key: &[u8], blocks: &mut [u8]) {
    both(cipher).1(&key[..cipher.1], blocks);
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    Md5::digest(parts.concat()).into()
}

fn xor(a: &mut [u8], b: &[u8]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
}

/// The key and the signature of a passphrase. Each is computed once.
pub fn stretched(passphrase: &[u8], salt: [u8; 8]) -> ([u8; 64], [u8; 8]) {
    type Known = HashMap<Vec<u8>, ([u8; 64], [u8; 8])>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let salted = [&salt, passphrase].concat();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(salted).or_insert_with_key(|salted| stretch(salted))
}

fn stretch(salted: &[u8]) -> ([u8; 64], [u8; 8]) {
    let mut key: [u8; 64] = Sha512::digest(salted).into();
    for _ in 1..65_536 {
        key = Sha512::digest(key).into();
    }
    let signature = Sha512::digest(key)[..8].try_into().expect("eight bytes");
    (key, signature)
}

/// A packet: tag, length and body (RFC 2440, section 4.2.2.1 and 4.2.2.2).
pub fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = match body.len() {
        short @ ..192 => vec![short as u8],
        long => vec![((long - 192) / 256 + 192) as u8, ((long - 192) % 256) as u8],
    };
    [&[tag], &length[..], body].concat()
}

/// The packets 3 and 11, with a file's key wrapped by a passphrase.
pub fn passphrase_packets(cipher: Cipher, salt: [u8; 8], wrapped: &[u8], signature: [u8; 8]) -> Vec<u8> {
    let wrapping = [&[4, code(cipher), 3, 1], &salt[..], &[0x60], wrapped].concat();
    let named = [&[0x62, 8], &b"_CONSOLE"[..], &[0; 4], &signature].concat();
    [packet(0x8c, &wrapping), packet(0xed, &named)].concat()
}

/// The packet 1, with a file's key wrapped for a public key.
pub fn public_key_packet(signature: [u8; 8], wrapped: &[u8]) -> Vec<u8> {
    packet(0x01, &[&[3], &signature[..], &[1], wrapped].concat())
}

/// Description of a file to make. All fields can be changed.
#[derive(Clone, Debug)]
pub struct File {
    /// The passphrases, each of which opens it.
    pub passphrases: Vec<String>,
    /// Its salt.
    pub salt: [u8; 8],
    /// The cipher.
    pub cipher: Cipher,
    /// The file's own key.
    pub key: Vec<u8>,
    /// Its contents.
    pub plaintext: Vec<u8>,
    /// Flags.
    pub flags: u32,
}

impl File {
    /// A file like the kernel's, with its header in front.
    pub fn new(passphrase: &str, cipher: Cipher, plaintext: &[u8]) -> Self {
        Self {
            passphrases: vec![passphrase.to_owned()],
            salt: SALT,
            cipher,
            key: (0..cipher.1 as u8).map(|i| i.wrapping_mul(37) ^ 0x5a).collect(),
            plaintext: plaintext.to_vec(),
            flags: ENCRYPTED,
        }
    }

    /// Size, marker, flags, extents and packets: the content of the attribute, or the beginning of the file.
    pub fn metadata(&self) -> Vec<u8> {
        let marker = 0x1122_3344u32;
        let mut all = (self.plaintext.len() as u64).to_be_bytes().to_vec();
        for word in [marker, marker ^ MARKER, 3 << 24 | self.flags, EXTENT as u32] {
            all.extend(word.to_be_bytes());
        }
        all.extend(((HEADER / EXTENT) as u16).to_be_bytes());
        for passphrase in &self.passphrases {
            let (wrapping, signature) = stretched(passphrase.as_bytes(), self.salt);
            // 24 bytes of key do not fill the blocks of AES.
            let mut wrapped = self.key.clone();
            wrapped.resize(wrapped.len().next_multiple_of(block(self.cipher.0)), 0);
            ecb_encrypt(self.cipher, &wrapping, &mut wrapped);
            all.extend(passphrase_packets(self.cipher, self.salt, &wrapped, signature));
        }
        all
    }

    /// The encrypted contents, in whole extents.
    pub fn contents(&self) -> Vec<u8> {
        let mut bytes = self.plaintext.clone();
        bytes.resize(bytes.len().next_multiple_of(EXTENT), 0);
        let (root, size) = (md5(&[&self.key]), block(self.cipher.0));
        for (number, extent) in bytes.chunks_mut(EXTENT).enumerate() {
            let mut text = number.to_string().into_bytes();
            text.resize(16, 0);
            let mut before = md5(&[&root, &text])[..size].to_vec();
            for block in extent.chunks_mut(size) {
                xor(block, &before);
                ecb_encrypt(self.cipher, &self.key, block);
                before.copy_from_slice(block);
            }
        }
        bytes
    }

    /// The whole stored file.
    pub fn stored(&self) -> Vec<u8> {
        with_header(&self.metadata(), &self.contents())
    }
}

/// A stored file: metadata, padded to the header's length, and contents.
pub fn with_header(metadata: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut all = metadata.to_vec();
    all.resize(HEADER, 0);
    all.extend(contents);
    all
}

/// The stored form of a name, or of a link's target.
pub fn name(passphrase: &str, cipher: Cipher, plain: &[u8]) -> String {
    let (key, signature) = stretched(passphrase.as_bytes(), NAME_SALT);
    named(&key, signature, cipher, &padded(&key, cipher, plain))
}

/// The padding, a zero and the name: whole blocks, with at least 16 bytes of padding.
pub fn padded(key: &[u8; 64], (cipher, _): Cipher, plain: &[u8]) -> Vec<u8> {
    let len = (16 + 1 + plain.len()).next_multiple_of(block(cipher));
    let mut front = Vec::new();
    let mut hash = md5(&[key]);
    while front.len() < len - 1 - plain.len() {
        front.extend(hash.map(|byte| if byte == 0 { 0x42 } else { byte }));
        hash = md5(&[&hash]);
    }
    front.truncate(len - 1 - plain.len());
    [&front[..], &[0], plain].concat()
}

/// The stored form of a name, from any whole blocks.
pub fn named(key: &[u8; 64], signature: [u8; 8], cipher: Cipher, blocks: &[u8]) -> String {
    let mut blocks = blocks.to_vec();
    ecb_encrypt(cipher, key, &mut blocks);
    encoded(&packet(0x46, &[&signature[..], &[code(cipher)], &blocks].concat()))
}

/// Encodes bytes as in names, six bits per letter.
pub fn encoded(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut text = PREFIX.to_owned();
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.extend([18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift) as usize & 63])));
    }
    text
}

/// A file `wrapped-passphrase` of version 2 or, without a salt, of version 1.
pub fn wrapped(passphrase: &str, wrapping: &str, salt: Option<[u8; 8]>) -> Vec<u8> {
    let (key, signature) = stretched(wrapping.as_bytes(), salt.unwrap_or(SALT));
    let mut padded = passphrase.as_bytes().to_vec();
    padded.resize(padded.len().next_multiple_of(16), 0);
    ecb_encrypt(("aes", 16), &key, &mut padded);
    let front = salt.map_or(Vec::new(), |salt| [&[0x3a, 2], &salt[..]].concat());
    [&front[..], crate::vectors::hex(&signature).as_bytes(), &padded].concat()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ecryptfs::kernel::{Case, Lower, Mount, run};
    use crate::ecryptfs::utils;
    use crate::operations::file;

    /// The signature of the passphrase `pw`, from the kernel's helper.
    #[test]
    fn signatures_are_those_of_others() {
        assert_eq!(stretched(b"pw", SALT).1, [0x05, 0x3f, 0x8c, 0xee, 0xba, 0x68, 0xd6, 0xb0]);
        assert_eq!(stretched(b"pw", NAME_SALT).1, [0x3c, 0x1f, 0xf0, 0x04, 0xb9, 0x12, 0x79, 0x51]);
    }

    #[test]
    fn the_kernel_reads_what_is_made_here() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let sizes = [0, 1, 4095, 4096, 4097, 50_000];
        let plain = |size: usize| crate::random::Random::new(size as u64).bytes(size);
        for (number, cipher) in CIPHERS.iter().enumerate() {
            let lower = dir.path().join(number.to_string());
            fs::create_dir(&lower).expect("it is new");
            for size in sizes {
                let made = File { flags: ENCRYPTED | ENCRYPTED_NAMES, ..File::new("pw", *cipher, &plain(size)) };
                let name = name("of names", *cipher, format!("file {size}").as_bytes());
                fs::write(lower.join(name), made.stored()).expect("there is room");
            }
        }
        let lowers: Vec<_> = (0..CIPHERS.len()).map(|number| dir.path().join(number.to_string())).collect();
        let mount = |(lower, cipher)| {
            let (lower, of_names) = (Lower::Folder(lower), Some("of names"));
            Mount { lower, passphrase: "pw", of_names, cipher, options: "" }
        };
        let mounts = lowers.iter().map(std::path::PathBuf::as_path).zip(CIPHERS.iter().copied()).map(mount);
        let cases: Vec<_> = mounts.map(|mount| Case { mount, operations: &[] }).collect();
        let Some(outcomes) = run(&cases, &[]) else { return };
        for (outcome, cipher) in outcomes.iter().zip(CIPHERS) {
            assert_eq!(outcome.failed, [""; 0], "{cipher:?}");
            let expected = sizes.map(|size| (format!("file {size}").into(), file(&plain(size), 1)));
            assert_eq!(outcome.listing, expected.into(), "{cipher:?}");
        }
    }

    #[test]
    fn ecryptfs_utils_unwrap_what_is_made_here() {
        for salt in [None, Some([9; 8])] {
            for passphrase in
                ["short", "sixteen letters!", "a passphrase of exactly sixty-four letters is the longest one .."]
            {
                let Some(unwrapped) = utils::unwrap(&wrapped(passphrase, "login", salt), "login") else { return };
                assert_eq!(unwrapped.as_deref(), Ok(passphrase));
            }
        }
    }
}

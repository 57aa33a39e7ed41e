//! The ciphers of eCryptfs (Linux 6.1, fs/ecryptfs/crypto.c, `ecryptfs_cipher_code_str_map`; the codes are those of RFC 2440, 9.2).

use claviger_crypto::Cipher;
use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::ciphers::legacy::{BLOWFISH_BE, CAST5, CAST6, TRIPLE_DES};
use claviger_crypto::ciphers::twofish::TWOFISH;

use crate::error::{Error, Result};

/// The default key size of the kernel and ecryptfs-utils, in bytes.
const DEFAULT_KEY: usize = 16;

/// AES-192 has its own code, and its keys are stored with eight zeros after them: code, key bytes, stored bytes.
const AES_192: (u8, usize, usize) = (8, 24, 32);

/// A cipher.
struct Row {
    /// The kernel's name for it.
    name: &'static str,
    cipher: &'static Cipher,
    code: u8,
}

static ROWS: &[Row] = &[
    Row { name: "aes", cipher: &AES, code: 7 },
    Row { name: "blowfish", cipher: &BLOWFISH_BE, code: 4 },
    Row { name: "des3_ede", cipher: &TRIPLE_DES, code: 2 },
    Row { name: "twofish", cipher: &TWOFISH, code: 10 },
    Row { name: "cast6", cipher: &CAST6, code: 11 },
    Row { name: "cast5", cipher: &CAST5, code: 3 },
];

/// The kernel's names of all ciphers, the default first.
pub fn ciphers() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// A cipher, and the size of its keys in bytes.
#[derive(Clone, Copy)]
pub(super) struct Suite {
    row: &'static Row,
    pub key_bytes: usize,
}

impl PartialEq for Suite {
    fn eq(&self, other: &Self) -> bool {
        (self.row.code, self.key_bytes) == (other.row.code, other.key_bytes)
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self { row: &ROWS[0], key_bytes: DEFAULT_KEY }
    }
}

impl Suite {
    /// The requested cipher, by the kernel's name or ours, and key size. The default replaces what was not given.
    ///
    /// # Errors
    /// `Misuse`, with a list of the supported ciphers or sizes.
    pub fn asked(name: Option<&str>, key_bytes: Option<usize>) -> Result<Self> {
        let called = |row: &&Row, name: &str| [row.name, row.cipher.name].iter().any(|n| n.eq_ignore_ascii_case(name));
        let row = name.map_or(Some(&ROWS[0]), |name| ROWS.iter().find(|row| called(row, name)));
        let row = row.ok_or_else(|| {
            let names = ciphers();
            Error::misuse(format!("eCryptfs has no cipher called {}", name.unwrap_or_default()))
                .hint(format!("Known: {}.", names.join(", ")))
        })?;
        let sizes: Vec<_> = row.key_sizes().collect();
        let key_bytes = key_bytes.unwrap_or(if sizes.contains(&DEFAULT_KEY) { DEFAULT_KEY } else { sizes[0] });
        if !sizes.contains(&key_bytes) {
            let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
            return Err(Error::misuse(format!("eCryptfs has no {key_bytes}-byte keys for {}", row.name)).hint(
                format!("It has: {}. The kernel encrypts a file's key in whole cipher blocks.", sizes.join(", ")),
            ));
        }
        Ok(Self { row, key_bytes })
    }

    /// The cipher of a file whose key is stored in `sealed` bytes. The error says what is wrong with it.
    pub fn of_file(code: u8, sealed: usize) -> std::result::Result<Self, String> {
        let row = row_of(code).ok_or_else(|| format!("cipher number {code}"))?;
        let key_bytes = if code == AES_192.0 { AES_192.1 } else { sealed };
        let fits = row.key_sizes().any(|size| size == key_bytes) && Self { row, key_bytes }.sealed_bytes() == sealed;
        fits.then_some(Self { row, key_bytes }).ok_or_else(|| format!("a {sealed}-byte key for {}", row.name))
    }

    /// The ciphers that a name with this code may use: for most ciphers the code does not tell the key size.
    pub fn of_name(code: u8) -> Vec<Self> {
        let Some(row) = row_of(code) else { return Vec::new() };
        let of_code = |key_bytes: &usize| Self { row, key_bytes: *key_bytes }.code() == code;
        row.cipher.key_sizes.iter().copied().filter(of_code).map(|key_bytes| Self { row, key_bytes }).collect()
    }

    /// The code of RFC 2440.
    pub fn code(self) -> u8 {
        match (self.row.name, self.key_bytes) {
            ("aes", 24) => AES_192.0,
            ("aes", 32) => 9,
            _ => self.row.code,
        }
    }

    /// The stored size of a file's key, in bytes.
    pub fn sealed_bytes(self) -> usize {
        if self.code() == AES_192.0 { AES_192.2 } else { self.key_bytes }
    }

    pub fn cipher(self) -> &'static Cipher {
        self.row.cipher
    }
}

impl Row {
    /// The sizes of a file's key: whole blocks, because the key is encrypted block by block.
    fn key_sizes(&self) -> impl Iterator<Item = usize> {
        let whole = |size: &usize| size.is_multiple_of(self.cipher.block_size) || self.name == "aes";
        self.cipher.key_sizes.iter().copied().filter(whole)
    }
}

fn row_of(code: u8) -> Option<&'static Row> {
    let code = if matches!(code, 8 | 9) { 7 } else { code };
    ROWS.iter().find(|row| row.code == code)
}

//! The ciphers of eCryptfs (Linux 6.1, fs/ecryptfs/crypto.c, `ecryptfs_cipher_code_str_map`; the codes are those of RFC 2440, 9.2).

use claviger_crypto::Cipher;
use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::ciphers::legacy::{BLOWFISH_BE, CAST5, CAST6, TRIPLE_DES};
use claviger_crypto::ciphers::twofish::TWOFISH;

use crate::error::{Error, Result};

/// Bytes of the key that the kernel and ecryptfs-utils take where nobody asks for others.
const DEFAULT_KEY: usize = 16;

/// AES with keys of 192 bits has a code of its own, and its keys are stored with eight zeros behind them.
const AES_192: (u8, usize, usize) = (8, 24, 32);

/// A cipher.
struct Row {
    /// What the kernel calls it.
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
    /// The one that is asked for: a cipher by the kernel's name or by ours, and the size of its keys; the default for what is not.
    ///
    /// # Errors
    /// `Misuse`, with what there is.
    pub fn asked(name: Option<&str>, key_bytes: Option<usize>) -> Result<Self> {
        let called = |row: &&Row, name: &str| [row.name, row.cipher.name].iter().any(|n| n.eq_ignore_ascii_case(name));
        let row = name.map_or(Some(&ROWS[0]), |name| ROWS.iter().find(|row| called(row, name)));
        let row = row.ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
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

    /// That of a file whose key is stored in `sealed` bytes; an error says what is wrong with it.
    pub fn of_file(code: u8, sealed: usize) -> std::result::Result<Self, String> {
        let row = row_of(code).ok_or_else(|| format!("cipher number {code}"))?;
        let key_bytes = if code == AES_192.0 { AES_192.1 } else { sealed };
        let fits = row.key_sizes().any(|size| size == key_bytes) && Self { row, key_bytes }.sealed_bytes() == sealed;
        fits.then_some(Self { row, key_bytes }).ok_or_else(|| format!("a {sealed}-byte key for {}", row.name))
    }

    /// Those that a name of this code may be encrypted with: of most ciphers it does not say how long the key is.
    pub fn of_name(code: u8) -> Vec<Self> {
        let Some(row) = row_of(code) else { return Vec::new() };
        let of_code = |key_bytes: &usize| Self { row, key_bytes: *key_bytes }.code() == code;
        row.cipher.key_sizes.iter().copied().filter(of_code).map(|key_bytes| Self { row, key_bytes }).collect()
    }

    /// RFC 2440's number.
    pub fn code(self) -> u8 {
        match (self.row.name, self.key_bytes) {
            ("aes", 24) => AES_192.0,
            ("aes", 32) => 9,
            _ => self.row.code,
        }
    }

    /// Bytes in which a file's key is stored.
    pub fn sealed_bytes(self) -> usize {
        if self.code() == AES_192.0 { AES_192.2 } else { self.key_bytes }
    }

    /// What encrypts.
    pub fn cipher(self) -> &'static Cipher {
        self.row.cipher
    }
}

impl Row {
    /// Sizes of a file's key: whole blocks, since they are encrypted as such.
    fn key_sizes(&self) -> impl Iterator<Item = usize> {
        let whole = |size: &usize| size.is_multiple_of(self.cipher.block_size) || self.name == "aes";
        self.cipher.key_sizes.iter().copied().filter(whole)
    }
}

fn row_of(code: u8) -> Option<&'static Row> {
    let code = if matches!(code, 8 | 9) { 7 } else { code };
    ROWS.iter().find(|row| row.code == code)
}

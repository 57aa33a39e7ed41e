//! The keys of a vault and what they encrypt: names, the places of folders, headers, and small files as a whole (cryptolib,
//! v1 and v2, FileNameCryptorImpl.java, FileHeaderCryptorImpl.java and FileContentCryptorImpl.java).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use claviger_crypto::hash::SHA1;
use claviger_crypto::modes::aead::{self, Siv};
use claviger_crypto::secret::wipe_after_sectors;
use claviger_crypto::{Acceleration, Secret};
use rustix::io::Errno;
use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;
use zeroize::Zeroize;

use super::config::{CipherCombo, Config, KEY};
use crate::error::Result;
use crate::file_formats::NameIv;
use crate::key_process::folder::{
    ContentKey, FolderKeyHandle, FolderKeyProcess, FolderKeys, KeylessContents, KeylessFolder,
};
use crate::random;
use crate::volume::{BlockSealing, SealedLayout, Sealing};

/// How stored names end, and shortened ones (cryptofs, Constants.java).
pub(super) const WHOLE: &str = ".c9r";
pub(super) const SHORTENED: &str = ".c9s";

/// Bytes of plaintext in a block.
pub(super) const BLOCK: usize = 32 << 10;

/// Bytes of a synthetic IV.
const IV: usize = 16;

/// The payload of a header: eight bytes that once were the file's size, and the key of its contents.
const PAYLOAD: usize = 8 + KEY;

/// Bytes of a file's header.
pub(super) fn header_size(combo: CipherCombo) -> usize {
    PAYLOAD + overhead(combo)
}

/// Bytes of a nonce and a tag.
pub(super) fn overhead(combo: CipherCombo) -> usize {
    match combo {
        CipherCombo::SivGcm => NONCE + 16,
        CipherCombo::SivCtrMac => 16 + 32,
    }
}

/// Bytes of a nonce of GCM.
const NONCE: usize = 12;

/// An unlocked vault: its keys, or a handle to them, and its properties.
pub(super) struct Vault {
    pub config: Config,
    keys: Arc<dyn FolderKeys>,
}

/// The keys themselves.
struct Secrets {
    config: Config,
    /// What seals headers.
    header: Sealing,
    /// Authenticates contents, in AES-CTR.
    mac: Secret,
    siv: Siv,
    acceleration: Acceleration,
}

impl Secrets {
    fn new(config: Config, master: &Secret, acceleration: Acceleration) -> Self {
        let (enc, mac) = master.split_at(KEY);
        let cipher = match config.combo {
            CipherCombo::SivGcm => aead::gcm(enc, NONCE, acceleration),
            CipherCombo::SivCtrMac => aead::ctr_hmac_sha256(enc, mac, &[], acceleration),
        };
        // Cryptomator's order of the two keys of AES-SIV (siv-mode, SivMode.java).
        let siv = Siv::new(&Secret::concat(&[mac, enc]), acceleration);
        wipe_after_sectors();
        let header = Sealing { cipher: cipher.into(), tag_first: false };
        Self { config, header, mac: Secret::copy_from(mac), siv, acceleration }
    }

    /// The layout of the file with this header and key.
    fn layout(&self, header: &[u8], key: &[u8]) -> SealedLayout {
        let nonce = &header[..self.header.cipher.nonce_size()];
        let (cipher, beside) = match self.config.combo {
            CipherCombo::SivGcm => (aead::gcm(key, NONCE, self.acceleration), nonce.to_vec()),
            CipherCombo::SivCtrMac => (aead::ctr_hmac_sha256(key, &self.mac, nonce, self.acceleration), Vec::new()),
        };
        wipe_after_sectors();
        let sealing = Sealing { cipher: cipher.into(), tag_first: false };
        let sealing = BlockSealing::Here { sealing, beside };
        SealedLayout { sealing, block: BLOCK, stored_at: header.len() as u64, holes: false }
    }
}

impl FolderKeys for Secrets {
    fn open(&self, header: &[u8]) -> io::Result<Option<ContentKey>> {
        if header.len() != header_size(self.config.combo) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut payload = Secret::zeroed(PAYLOAD);
        let right = self.header.open_in(&[], header, &mut payload);
        Ok(right.then(|| ContentKey::Blocks(self.layout(header, &payload[8..]))))
    }

    fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
        let mut payload = Secret::zeroed(PAYLOAD);
        random::fill(&mut payload)?;
        payload[..8].fill(0xff);
        let header = self.header.seal(&[], &payload)?;
        let layout = self.layout(&header, &payload[8..]);
        Ok((header, ContentKey::Blocks(layout)))
    }

    fn plain_name(&self, folder: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        let bytes = match self.config.is_old() {
            true => from_base32(stored.as_bytes()),
            false => stored.as_bytes().strip_suffix(WHOLE.as_bytes()).and_then(|name| URL_SAFE.decode(name).ok()),
        };
        let bytes = bytes.unwrap_or_default();
        let Some((iv, name)) = bytes.split_first_chunk::<IV>() else { return Ok(None) };
        let mut name = name.to_vec();
        let right = self.siv.open_with(&[folder], &mut name, iv);
        wipe_after_sectors();
        if !right {
            // It may be anything that was encrypted with this key.
            name.zeroize();
            return Ok(None);
        }
        Ok(String::from_utf8(name).ok().map(OsString::from))
    }

    fn stored_name(&self, folder: &[u8], plain: &OsStr) -> io::Result<OsString> {
        let mut name = plain.as_bytes().to_vec();
        let iv = self.siv.seal_with(&[folder], &mut name);
        wipe_after_sectors();
        let bytes = [&iv[..], &name].concat();
        Ok(if self.config.is_old() { base32(&bytes) } else { URL_SAFE.encode(bytes) + WHOLE }.into())
    }

    fn place(&self, folder: &[u8]) -> io::Result<Vec<u8>> {
        let mut id = folder.to_vec();
        let iv = self.siv.seal_with(&[], &mut id);
        wipe_after_sectors();
        let mut hash = vec![0; 20];
        SHA1.checksum(&[&iv, &id], &mut hash);
        Ok(hash)
    }
}

impl Vault {
    /// A vault whose keys are in this process.
    pub fn new(config: Config, master: &Secret, acceleration: Acceleration) -> Self {
        Self { config, keys: Arc::new(Secrets::new(config, master, acceleration)) }
    }

    /// A vault whose keys are in the key process.
    pub fn with_key_process(outline: KeylessFolder, key_process: Arc<dyn FolderKeyProcess>) -> Result<Self> {
        let keys = Arc::new(FolderKeyHandle::new(key_process, &outline)?);
        Ok(Self { config: Config::deserialize(outline.of_format).map_err(io::Error::from)?, keys })
    }

    /// Splits the keys from everything else.
    pub fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        let of_format = serde_json::to_value(self.config).map_err(io::Error::from)?;
        let stored_at = self.header_size() as u64;
        let contents =
            KeylessContents::Blocks { block: BLOCK, overhead: overhead(self.config.combo), stored_at, holes: false };
        Ok((KeylessFolder { of_format, contents }, Arc::clone(&self.keys)))
    }

    // Names

    /// The stored name in the folder with this ID: the name in form NFC, encrypted, in Base64.
    ///
    /// # Errors
    /// `ILSEQ` if it is no Unicode; those of a key process.
    pub fn stored_name(&self, plain: &OsStr, folder: &NameIv) -> io::Result<OsString> {
        let name: String = plain.to_str().ok_or(Errno::ILSEQ)?.nfc().collect();
        self.keys.stored_name(folder, name.as_ref())
    }

    /// The name that a stored one stands for, in the form that was encrypted.
    ///
    /// # Errors
    /// Those of a key process.
    pub fn plain_name(&self, stored: &OsStr, folder: &NameIv) -> io::Result<Option<OsString>> {
        self.keys.plain_name(folder, stored)
    }

    /// The name of an entry that has this stored name. Names that are too long are replaced by a hash (cryptofs,
    /// LongFileNameProvider.java).
    pub fn entry_name(&self, stored: &OsStr) -> OsString {
        if stored.len() <= self.config.threshold || !ends(stored, WHOLE) {
            return stored.to_owned();
        }
        let mut hash = [0; 20];
        SHA1.checksum(&[stored.as_bytes()], &mut hash);
        (URL_SAFE.encode(hash) + SHORTENED).into()
    }

    /// Where the folder with this ID is: the names of two folders below `d`.
    ///
    /// # Errors
    /// Those of a key process.
    pub fn place(&self, folder: &[u8]) -> io::Result<[String; 2]> {
        let digits = base32(&self.keys.place(folder)?);
        let (first, second) = digits.split_at_checked(2).ok_or(io::ErrorKind::InvalidData)?;
        Ok([first.to_owned(), second.to_owned()])
    }

    // Contents

    pub fn header_size(&self) -> usize {
        header_size(self.config.combo)
    }

    /// The plaintext size of a file with `stored` bytes.
    pub fn size(&self, stored: u64) -> u64 {
        plain_size(self.config.combo, stored)
    }

    /// A new header, and the layout of its file.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes; those of a key process.
    pub fn new_header(&self) -> io::Result<(Vec<u8>, SealedLayout)> {
        let (header, key) = self.keys.create()?;
        Ok((header, key.blocks()?))
    }

    /// The layout of the file with this header, of the right size; `None` if it is of another vault, or was changed.
    ///
    /// # Errors
    /// Those of a key process.
    pub fn open_header(&self, header: &[u8]) -> io::Result<Option<SealedLayout>> {
        self.keys.open(header)?.map(ContentKey::blocks).transpose()
    }

    /// The stored form of a file of at most one block.
    ///
    /// # Errors
    /// Those of [`Vault::new_header`].
    pub fn seal_small(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let (mut stored, layout) = self.new_header()?;
        if !plain.is_empty() {
            stored.extend(layout.seal_message(plain)?);
        }
        Ok(stored)
    }

    /// The contents of a file of at most one block; `None` if it fails verification.
    ///
    /// # Errors
    /// Those of a key process.
    pub fn open_small(&self, stored: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let Some((header, block)) = stored.split_at_checked(self.header_size()) else { return Ok(None) };
        match self.open_header(header)? {
            Some(_) if block.is_empty() => Ok(Some(Vec::new())),
            Some(layout) => layout.open_message(block),
            None => Ok(None),
        }
    }

    /// The most bytes of a file that [`Vault::open_small`] opens.
    pub fn most_small(&self) -> usize {
        self.header_size() + BLOCK + overhead(self.config.combo)
    }
}

/// See [`Vault::size`]. Whatever is shorter than a header is empty.
pub(super) fn plain_size(combo: CipherCombo, stored: u64) -> u64 {
    let blocks = stored.saturating_sub(header_size(combo) as u64);
    crate::volume::plain_size(blocks, BLOCK, overhead(combo))
}

/// Whether a name ends so.
pub(super) fn ends(name: &OsStr, end: &str) -> bool {
    name.as_bytes().ends_with(end.as_bytes())
}

/// The digits of Base32 (RFC 4648, 6).
const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Bytes in Base32, with padding.
pub(super) fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digit = |at: usize| (0..5).fold(0, |digit, past| digit << 1 | bit(5 * at + past));
    let digits = (0..(8 * bytes.len()).div_ceil(5)).map(|at| char::from(DIGITS[usize::from(digit(at))]));
    let padding = (0..).map(|_| '=').take(bytes.len().div_ceil(5) * 8 - (8 * bytes.len()).div_ceil(5));
    digits.chain(padding).collect()
}

/// The reverse; `None` if nothing has this form.
fn from_base32(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let values: Option<Vec<_>> =
        text[..digits].iter().map(|digit| DIGITS.iter().position(|known| known == digit)).collect();
    let values = values?;
    let bit = |at: usize| (values[at / 5] >> (4 - at % 5) & 1) as u8;
    let byte = |at: usize| (0..8).fold(0, |byte, past| byte << 1 | bit(8 * at + past));
    let bytes: Vec<u8> = (0..5 * digits / 8).map(byte).collect();
    (base32(&bytes).as_bytes() == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn vault(combo: CipherCombo) -> Vault {
        Vault::new(Config::new(combo), &Secret::zeroed(64), Acceleration::On)
    }

    /// cryptolib, v2/FileHeaderCryptorImplTest.java and v1/FileContentCryptorImplTest.java: all keys are zero, and so are nonces and
    /// keys of contents.
    #[test]
    fn headers_and_files_of_cryptolibs_tests_open() {
        let header = "AAAAAAAAAAAAAAAAMVi/wrKflJEHTsXTuvOdGHJgA8o3pip00aL1jnUGNY7dSrEoTUrhey+maVG6P0F2RBmZR74SjU0=";
        let header = STANDARD.decode(header).expect("Base64");
        assert!(vault(CipherCombo::SivGcm).open_header(&header).expect("no key process").is_some());
        let file = "AAAAAAAAAAAAAAAAAAAAACNqP4ddv3Z2rUiiFJKEIIdTD4r7x0U2ualjtPHEy3OLzqdAPU1ga24VjC86+zlHN49BfM\
            dzvHF3f9EE0LSnRLSsu6ps3IRcJgAAAAAAAAAAAAAAAAAAAAC08KwUzWD+5t8kxipYZGvVj719S6Z+RGH1cZcl9SEoEV7XUZ4rzO6+hdzo";
        let file = STANDARD.decode(file).expect("Base64");
        let of = vault(CipherCombo::SivCtrMac);
        let open = |file: &[u8]| of.open_small(file).expect("no key process");
        assert_eq!(open(&file).as_deref(), Some(&b"hello world"[..]));
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert_eq!(open(&changed), None, "byte {at}");
        }
    }

    /// RFC 4648, section 10.
    #[test]
    fn base32_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "MY======"),
            ("fo", "MZXQ===="),
            ("foo", "MZXW6==="),
            ("foob", "MZXW6YQ="),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI======"),
        ] {
            assert_eq!(base32(bytes.as_bytes()), text);
            assert_eq!(from_base32(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(base32(&[0xff; 20]), "7".repeat(32));
        for wrong in ["M", "MZ======", "my======", "MY=====", "MY", "M1======", "=", "========", "MY======MY======"] {
            assert_eq!(from_base32(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn names_come_back_only_in_their_folder_and_composed() {
        let of = vault(CipherCombo::SivGcm);
        let (here, there) = (NameIv::new(b"here").expect("short"), NameIv::default());
        let stored = of.stored_name("u\u{308}ber".as_ref(), &here).expect("text");
        assert_eq!(of.plain_name(&stored, &here).expect("no key process"), Some("\u{fc}ber".into()));
        assert_eq!(of.plain_name(&stored, &there).expect("no key process"), None);
        assert_eq!(of.stored_name("\u{fc}ber".as_ref(), &here).expect("text"), stored);
        assert!(of.stored_name(OsStr::from_bytes(b"\xff"), &here).is_err());
    }

    #[test]
    fn a_long_name_is_shortened_to_its_hash() {
        let of = vault(CipherCombo::SivGcm);
        let stored = |len| of.stored_name("n".repeat(len).as_ref(), &NameIv::default()).expect("text");
        assert_eq!((stored(146).len(), stored(147).len()), (220, 224));
        assert_eq!(of.entry_name(&stored(146)), stored(146));
        let short = of.entry_name(&stored(147));
        assert!(short.len() == 32 && ends(&short, "=.c9s"), "{}", short.display());
    }
}

//! The keys of a vault and what they encrypt: names, the places of folders, headers, and small files as a whole (cryptolib,
//! v1 and v2, FileNameCryptorImpl.java, FileHeaderCryptorImpl.java and FileContentCryptorImpl.java).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use claviger_crypto::hash::SHA1;
use claviger_crypto::modes::aead::{self, Siv};
use claviger_crypto::secret::wipe_after_sectors;
use claviger_crypto::{Acceleration, Secret};
use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::config::{CipherCombo, Config, KEY};
use crate::file_formats::NameIv;
use crate::random;
use crate::volume::{SealedLayout, Sealing};

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

/// An unlocked vault.
pub(super) struct Vault {
    pub config: Config,
    /// What seals headers.
    header: Sealing,
    /// Authenticates contents, in AES-CTR.
    mac: Secret,
    siv: Siv,
    acceleration: Acceleration,
}

impl Vault {
    pub fn new(config: Config, master: &Secret, acceleration: Acceleration) -> Self {
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

    // Names

    /// The stored name in the folder with this ID: the name in form NFC, encrypted, in Base64. `None` if it is no Unicode.
    pub fn stored_name(&self, plain: &OsStr, folder: &NameIv) -> Option<OsString> {
        let mut name: Vec<u8> = plain.to_str()?.nfc().collect::<String>().into_bytes();
        let iv = self.siv.seal_with(&[folder], &mut name);
        wipe_after_sectors();
        Some((URL_SAFE.encode([&iv[..], &name].concat()) + WHOLE).into())
    }

    /// The name that a stored one stands for. Another form of it would be another name.
    pub fn plain_name(&self, stored: &OsStr, folder: &NameIv) -> Option<OsString> {
        let bytes = URL_SAFE.decode(stored.as_bytes().strip_suffix(WHOLE.as_bytes())?).ok()?;
        let (iv, mut name) = bytes.split_first_chunk::<IV>().map(|(iv, name)| (*iv, name.to_vec()))?;
        let right = self.siv.open_with(&[folder], &mut name, &iv);
        wipe_after_sectors();
        let text = String::from_utf8(name).ok().filter(|text| right && is_nfc(text))?;
        Some(text.into())
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
    pub fn place(&self, folder: &[u8]) -> [String; 2] {
        let mut id = folder.to_vec();
        let iv = self.siv.seal_with(&[], &mut id);
        wipe_after_sectors();
        let mut hash = [0; 20];
        SHA1.checksum(&[&iv, &id], &mut hash);
        let digits = base32(&hash);
        let (first, second) = digits.split_at(2);
        [first.to_owned(), second.to_owned()]
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
    /// `Io` if the system has no random bytes.
    pub fn new_header(&self) -> io::Result<(Vec<u8>, SealedLayout)> {
        let mut payload = Secret::zeroed(PAYLOAD);
        random::fill(&mut payload)?;
        payload[..8].fill(0xff);
        let header = self.header.seal(&[], &payload)?;
        let layout = self.layout(&header, &payload[8..]);
        Ok((header, layout))
    }

    /// The layout of the file with this header; `None` if it is of another vault, or was changed.
    pub fn open_header(&self, header: &[u8]) -> Option<SealedLayout> {
        let mut payload = Secret::zeroed(PAYLOAD);
        let right = header.len() == self.header_size() && self.header.open_in(&[], header, &mut payload);
        right.then(|| self.layout(header, &payload[8..]))
    }

    fn layout(&self, header: &[u8], key: &[u8]) -> SealedLayout {
        let nonce = &header[..self.header.cipher.nonce_size()];
        let (cipher, beside) = match self.config.combo {
            CipherCombo::SivGcm => (aead::gcm(key, NONCE, self.acceleration), nonce.to_vec()),
            CipherCombo::SivCtrMac => (aead::ctr_hmac_sha256(key, &self.mac, nonce, self.acceleration), Vec::new()),
        };
        wipe_after_sectors();
        let sealing = Sealing { cipher: cipher.into(), tag_first: false };
        SealedLayout { sealing, block: BLOCK, stored_at: header.len() as u64, beside, holes: false }
    }

    /// The stored form of a file of at most one block.
    ///
    /// # Errors
    /// Those of [`Vault::new_header`].
    pub fn seal_small(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let (mut stored, layout) = self.new_header()?;
        if !plain.is_empty() {
            stored.extend(layout.sealing.seal(&layout.beside(0), plain)?);
        }
        Ok(stored)
    }

    /// The contents of a file of at most one block; `None` if it fails verification.
    pub fn open_small(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let (header, block) = stored.split_at_checked(self.header_size())?;
        let layout = self.open_header(header)?;
        if block.is_empty() {
            return Some(Vec::new());
        }
        layout.sealing.open(&layout.beside(0), block)
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

/// Base32 (RFC 4648, 6) of bytes that need no padding.
fn base32(bytes: &[u8; 20]) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let digit = |at: usize| (0..5).fold(0, |digit, past| digit << 1 | bit(5 * at + past));
    (0..32).map(|at| char::from(DIGITS[usize::from(digit(at))])).collect()
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
        assert!(vault(CipherCombo::SivGcm).open_header(&header).is_some());
        let file = "AAAAAAAAAAAAAAAAAAAAACNqP4ddv3Z2rUiiFJKEIIdTD4r7x0U2ualjtPHEy3OLzqdAPU1ga24VjC86+zlHN49BfM\
            dzvHF3f9EE0LSnRLSsu6ps3IRcJgAAAAAAAAAAAAAAAAAAAAC08KwUzWD+5t8kxipYZGvVj719S6Z+RGH1cZcl9SEoEV7XUZ4rzO6+hdzo";
        let file = STANDARD.decode(file).expect("Base64");
        let of = vault(CipherCombo::SivCtrMac);
        assert_eq!(of.open_small(&file).as_deref(), Some(&b"hello world"[..]));
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert_eq!(of.open_small(&changed), None, "byte {at}");
        }
    }

    /// RFC 4648, section 10, for whole groups of digits.
    #[test]
    fn base32_is_that_of_the_rfc() {
        assert_eq!(base32(b"foobafoobafoobafooba"), "MZXW6YTB".repeat(4));
        assert_eq!(base32(&[0xff; 20]), "7".repeat(32));
    }

    #[test]
    fn names_come_back_only_in_their_folder_and_composed() {
        let of = vault(CipherCombo::SivGcm);
        let (here, there) = (NameIv::new(b"here").expect("short"), NameIv::default());
        let stored = of.stored_name("u\u{308}ber".as_ref(), &here).expect("text");
        assert_eq!(of.plain_name(&stored, &here), Some("\u{fc}ber".into()));
        assert_eq!(of.plain_name(&stored, &there), None);
        assert_eq!(of.stored_name("\u{fc}ber".as_ref(), &here), Some(stored));
        assert_eq!(of.stored_name(OsStr::from_bytes(b"\xff"), &here), None);
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

//! `.encfs6.xml`: the encrypted volume key, the cost of its derivation, and the properties of the folder (FileUtils.cpp and FSConfig.h
//! of EncFS 1.9.5, `readV6Config`).
//!
//! EncFS 1.4 to 1.6 wrote it with Boost, which only numbers the versions differently.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use claviger_crypto::Secret;
use claviger_crypto::hash::SHA1;
use claviger_crypto::secret::wipe_after_sectors;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::binary;
use super::coder::{Coder, NoSuite, Suite};
use super::names::{NameCoder, Naming};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};

/// The file in the root folder.
pub const CONFIG: &str = ".encfs6.xml";

/// The names that versions before 2008 gave it, the newer first, and what is in theirs.
const CONFIG_5: &str = ".encfs5";
const CONFIG_4: &str = ".encfs4";
const OF_OLDER: &str = "keyData";

/// All its names, the newest first: EncFS takes the first that is there.
pub(super) const CONFIGS: [&str; 3] = [CONFIG, CONFIG_5, CONFIG_4];

/// The most bytes that are read of it.
pub(super) const MOST: usize = 64 << 10;

/// The deepest nesting of its elements. EncFS writes four.
const DEEPEST: usize = 16;

/// What the file begins with, after declarations, and what encloses the configuration in it: one of two names.
const ARCHIVE: &str = "boost_serialization";
const ENCLOSING: [&str; 2] = ["cfg", "config"];

/// Bytes of the checksum of the volume key.
const CHECKSUM: usize = 4;

/// The version since which passwords are salted, and how Boost 1.42 counts those around it.
const SALTED: u64 = 20_080_816;
const OF_BOOST: [(u64, u64); 3] = [(20, 20_100_713), (26_800, SALTED), (26_797, 20_080_813)];

/// The oldest version.
const OLDEST: u64 = 20_040_813;

/// Rounds of the derivation without a salt (SSL_Cipher.cpp, `BytesToKey`).
const OLD_ROUNDS: usize = 16;

/// Bytes of a key for Blowfish that version 1 of the ciphers derives. The rest of a longer one is zero.
const OLD_KEY: usize = 16;

/// The largest block, in bytes. EncFS asks for 64 to 4096.
const MOST_BLOCK: u64 = 64 << 10;

/// The most bytes of a block's checksum.
const MOST_CHECKSUM: u64 = 8;

/// Base64 with or without padding: Boost and EncFS differ.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A valid configuration.
pub(super) struct Config {
    /// The file's name.
    file: &'static str,
    pub suite: Suite,
    naming: Naming,
    chained_names: bool,
    /// Whether each file has an IV of its own.
    pub file_ivs: bool,
    /// Whether that is encrypted in a way that depends on the path.
    pub by_path: bool,
    /// Bytes of a stored block.
    pub block: usize,
    /// Bytes of its checksum, and of random data after it.
    pub checksum: usize,
    pub random: usize,
    /// Whether a block of zeros is a hole.
    pub holes: bool,
    sealed_key: Vec<u8>,
    salt: Vec<u8>,
    iterations: u32,
}

/// Whether this looks like the file of that name, valid or not.
pub(super) fn is_config(file: &str, bytes: &[u8]) -> bool {
    if file == CONFIG { has(bytes, ARCHIVE) && has(bytes, "encodedKeyData") } else { has(bytes, OF_OLDER) }
}

fn has(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

fn malformed(what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field: CONFIG, offset: 0, what: what.into() }.into()
}

/// The texts in the file, by the names of their elements: `nameAlg/major`.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let xml = |e: &dyn std::fmt::Display| malformed(format!("invalid XML: {e}"));
        let text = std::str::from_utf8(bytes).map_err(|e| xml(&e))?;
        let (mut reader, mut path, mut fields) = (Reader::from_str(text), Vec::new(), Vec::new());
        loop {
            match reader.read_event().map_err(|e| xml(&e))? {
                Event::Start(element) => {
                    path.push(String::from_utf8_lossy(element.name().as_ref()).into_owned());
                    if path.len() > DEEPEST {
                        return Err(malformed("its elements are nested too deep"));
                    }
                    if let Some(name) = of_archive(&path).filter(|name| name.is_empty()) {
                        fields.extend(version(&element).map(|version| (format!("{name}@version"), version)));
                    }
                    fields.extend(of_archive(&path).map(|name| (name, String::new())));
                }
                Event::End(_) => drop(path.pop()),
                Event::Text(text) => {
                    // Only a field that was begun last has a text.
                    if let Some((name, value)) = fields.last_mut()
                        && of_archive(&path).as_ref() == Some(name)
                    {
                        value.push_str(&text.decode().map_err(|e| xml(&e))?);
                    }
                }
                Event::Eof => break,
                _ => {}
            }
        }
        if path.is_empty() { Ok(Self(fields)) } else { Err(malformed("invalid XML: it ends too early")) }
    }

    /// The first field of that name.
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim())
    }

    fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name).ok_or_else(|| malformed(format!("no {name} in it")))?;
        text.parse().map_err(|_| malformed(format!("{name} is not a number: {:?}", shown(text))))
    }

    fn switch(&self, name: &str) -> Result<bool> {
        // The oldest versions have fewer of them.
        if self.text(name).is_none() { Ok(false) } else { Ok(self.number(name)? != 0) }
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let text = self.text(name).ok_or_else(|| malformed(format!("no {name} in it")))?;
        let digits: Vec<_> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        BASE64.decode(digits).map_err(|e| malformed(format!("the Base64 of {name} is invalid: {e}")))
    }

    fn version(&self) -> Result<u64> {
        let names = ["version", "@version"];
        let name =
            names.into_iter().find(|name| self.text(name).is_some()).ok_or_else(|| malformed("no version in it"))?;
        let version = self.number(name)?;
        Ok(OF_BOOST.iter().find(|(number, _)| *number == version).map_or(version, |(_, version)| *version))
    }
}

/// The path of an element below the configuration; empty for the configuration itself.
fn of_archive(path: &[String]) -> Option<String> {
    match path {
        [archive, enclosing, rest @ ..] if archive == ARCHIVE && ENCLOSING.contains(&&**enclosing) => {
            Some(rest.join("/"))
        }
        _ => None,
    }
}

fn version(element: &BytesStart<'_>) -> Option<String> {
    let attribute = element.try_get_attribute("version").ok()??;
    Some(String::from_utf8_lossy(&attribute.value).into_owned())
}

impl Config {
    /// Reads the file of that name.
    ///
    /// # Errors
    /// `Malformed`; `Unsupported` with the name of a feature.
    pub fn parse(file: &'static str, bytes: &[u8]) -> Result<Self> {
        let whole = |fields: Option<_>| fields.map(Fields).ok_or_else(|| malformed("it ends too early"));
        let fields = match file {
            CONFIG_5 => whole(binary::of_5(bytes)),
            CONFIG_4 => whole(binary::of_4(bytes)),
            _ => Fields::parse(bytes),
        };
        fields.and_then(|fields| Self::of(file, &fields)).map_err(|e| match e.kind {
            ErrorKind::Malformed { offset, what, .. } => ErrorKind::Malformed { field: file, offset, what }.into(),
            _ => e,
        })
    }

    fn of(file: &'static str, fields: &Fields) -> Result<Self> {
        let version = fields.version()?;
        if version < OLDEST {
            return Err(malformed(format!("its version is {version}")));
        }
        let suite = suite(fields)?;
        let naming = naming(fields)?;
        let salted = version >= SALTED;
        let config = Self {
            file,
            suite,
            naming,
            chained_names: fields.switch("chainedNameIV")?,
            file_ivs: fields.switch("uniqueIV")?,
            by_path: fields.switch("externalIVChaining")?,
            block: block(fields, &suite)?,
            checksum: at_most(fields, "blockMACBytes", MOST_CHECKSUM)?,
            random: at_most(fields, "blockMACRandBytes", MOST_BLOCK)?,
            holes: fields.switch("allowHoles")?,
            sealed_key: fields.bytes("encodedKeyData")?,
            salt: if salted { fields.bytes("saltData")? } else { Vec::new() },
            iterations: if salted { iterations(fields)? } else { 0 },
        };
        if config.sealed_key.len() != CHECKSUM + suite.len() {
            return Err(malformed(format!("the encrypted volume key has {} bytes", config.sealed_key.len())));
        }
        if config.block <= config.overhead() {
            return Err(malformed(format!("blocks of {} bytes have no room for data", config.block)));
        }
        if !config.salt.is_empty() && config.iterations == 0 {
            return Err(malformed("the passphrase has a salt, but no iterations"));
        }
        Ok(config)
    }

    /// Bytes of a block that are not data.
    pub fn overhead(&self) -> usize {
        self.checksum + self.random
    }

    /// Where a file's first block begins.
    pub fn header(&self) -> usize {
        if self.file_ivs { super::HEADER } else { 0 }
    }

    pub fn names(&self) -> NameCoder {
        NameCoder { naming: self.naming, chained: self.chained_names }
    }

    /// Whether names are encrypted.
    pub fn encrypts_names(&self) -> bool {
        self.naming != Naming::Null
    }

    /// The volume key in place (`readKey`).
    ///
    /// # Errors
    /// `WrongCredential`, `Cancelled`; those of [`Unlock::may_take`].
    pub fn coder(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Arc<Coder>> {
        let coder = Coder::new(&self.suite, &self.key_of(passphrase, with)?, with.acceleration);
        let (checksum, sealed) = self.sealed_key.split_at(CHECKSUM);
        let checksum = checksum.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
        let mut key = Secret::copy_from(sealed);
        coder.decrypt_stream(checksum, &mut key);
        let whole = coder.checksum(&[&key], None);
        wipe_after_sectors();
        if (whole >> 32) as u32 ^ whole as u32 != checksum as u32 {
            let file = self.file;
            let what = format!("the passphrase does not open the volume key in {file}");
            return Err(Error::new(ErrorKind::WrongCredential(what)).hint(format!(
                "After a change of the passphrase, an older {file} opens with the old one. A damaged volume key looks the same."
            )));
        }
        Ok(Arc::new(Coder::new(&self.suite, &key, with.acceleration)))
    }

    /// The key and the IV that the passphrase gives (FSConfig, `makeKey`).
    fn key_of(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<Secret> {
        if self.salt.is_empty() {
            return Ok(self.old_key_of(passphrase));
        }
        let mut key = Secret::zeroed(self.suite.len());
        with.ask(microseconds(self.iterations, key.len()))?;
        let go_on = || !with.cancelled();
        match SHA1.pbkdf2(passphrase, &self.salt, self.iterations, &mut key, &go_on) {
            true => Ok(key),
            false => Err(ErrorKind::Cancelled.into()),
        }
    }

    /// OpenSSL's derivation without a salt: digests, each of the one before and the passphrase, 16 times over.
    fn old_key_of(&self, passphrase: &Secret) -> Secret {
        let mut derived = Secret::zeroed(self.suite.len().next_multiple_of(SHA1.size));
        let mut digest = Secret::zeroed(0);
        for part in derived.chunks_mut(SHA1.size) {
            let mut next = Secret::zeroed(SHA1.size);
            SHA1.digest(&[&digest, passphrase], &mut next);
            for _ in 1..OLD_ROUNDS {
                let before = Secret::copy_from(&next);
                SHA1.digest(&[&before], &mut next);
            }
            part.copy_from_slice(&next);
            digest = next;
        }
        let blowfish = self.suite.cipher.block_size < 16;
        let at = if self.suite.version == 1 && blowfish { OLD_KEY } else { self.suite.key };
        let mut key = Secret::zeroed(self.suite.len());
        let iv = self.suite.cipher.block_size;
        key[..at].copy_from_slice(&derived[..at]);
        key[self.suite.key..].copy_from_slice(&derived[at..][..iv]);
        key
    }
}

/// The beginning of a text, which may have any length.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn suite(fields: &Fields) -> Result<Suite> {
    let name = fields.text("cipherAlg/name").ok_or_else(|| malformed("no cipherAlg in it"))?;
    let (version, bits) = (fields.number("cipherAlg/major")?, fields.number("keySize")?);
    Suite::of(name, version, bits).map_err(|why| match why {
        NoSuite::Unknown => Error::unsupported(format!("the cipher {:?} of EncFS, version {version}", shown(name))),
        NoSuite::KeySize => malformed(format!("{name} has no keys of {bits} bits")),
    })
}

fn naming(fields: &Fields) -> Result<Naming> {
    let name = fields.text("nameAlg/name").ok_or_else(|| malformed("no nameAlg in it"))?;
    let version = fields.number("nameAlg/major")?;
    Naming::of(name, version).ok_or_else(|| {
        Error::unsupported(format!("the encoding of names {:?} of EncFS, version {version}", shown(name)))
    })
}

fn block(fields: &Fields, suite: &Suite) -> Result<usize> {
    match fields.number("blockSize")? {
        size if (1..=MOST_BLOCK).contains(&size) && size.is_multiple_of(suite.cipher.block_size as u64) => {
            Ok(size as usize)
        }
        size => Err(malformed(format!("EncFS has no blocks of {size} bytes"))),
    }
}

fn at_most(fields: &Fields, name: &str, most: u64) -> Result<usize> {
    match fields.text(name).map_or(Ok(0), |_| fields.number(name))? {
        number if number <= most => Ok(number as usize),
        number => Err(malformed(format!("{name} is {number}, more than {most}"))),
    }
}

fn iterations(fields: &Fields) -> Result<u32> {
    let number = fields.number("kdfIterations")?;
    let fits = i32::try_from(number).ok().and_then(|number| u32::try_from(number).ok());
    fits.ok_or_else(|| malformed(format!("EncFS has no {number} iterations")))
}

/// The time that a derivation of `len` bytes takes on this machine, from that of few iterations.
fn microseconds(iterations: u32, len: usize) -> u64 {
    const FEW: u32 = 1000;
    static OF_FEW: OnceLock<u64> = OnceLock::new();
    let of_few = *OF_FEW.get_or_init(|| {
        let start = Instant::now();
        SHA1.pbkdf2(b"", b"", FEW, &mut [0; 20], &|| true);
        start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
    });
    let blocks = len.div_ceil(SHA1.size) as u64;
    of_few.max(1).saturating_mul(blocks).saturating_mul(iterations.into()) / u64::from(FEW)
}

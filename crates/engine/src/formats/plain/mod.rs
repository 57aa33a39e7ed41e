//! Plain dm-crypt: no header, no salt, only ciphertext (cryptsetup(8), "PLAIN MODE"), and its predecessor cryptoloop.

mod cryptmount;
mod cryptoloop;
mod key;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::{Secret, hash};

use super::headerless::{self, HeaderlessArea, HeaderlessVolume};
use super::takes::{Parameter, Takes, check_opening};
use super::{Choices, Creator, Format, Header, Unlocked, Verdict, stored_behind};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock, whole_keyfile};
use crate::error::{Error, ErrorKind, Result};
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;
use key::Hashing;

pub use cryptoloop::CRYPTOLOOP;

/// Plain dm-crypt.
pub static PLAIN: PlainDmCrypt = PlainDmCrypt;

/// See [`PLAIN`].
pub struct PlainDmCrypt;

/// The default cipher, as in cryptsetup 1.0 to 2.6 (2.6.1, configure.ac, `plain-cipher`, `plain-mode`).
const CIPHER: &str = "aes-cbc-essiv:sha256";

/// The default hash of a passphrase (`plain-hash`).
const HASH: &str = "ripemd160";

/// The default size of the key, in bits (`plain-keybits`).
const KEY_BITS: u32 = 256;

/// The default cipher for a key in a cryptmount key file (cmtab(5), `cipher`).
const CRYPTMOUNT_CIPHER: &str = "aes-cbc-plain";

/// The longest key, in bits: 64 keys of AES-256 and one more.
const KEY_BITS_MAX: u32 = 65 * 256;

impl Format for PlainDmCrypt {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn identify(&self, _store: &dyn Store) -> Result<Verdict> {
        Ok(headerless::verdict("plain"))
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Ok(Box::new(PlainHeader(Arc::clone(store))))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        Takes {
            creating: &[Hash, Cipher, KeySize, SectorSize, Offset],
            opening: &[
                Hash,
                Cipher,
                KeySize,
                SectorSize,
                Offset,
                FirstSector,
                DataSize,
                LargeVectors,
                Keyfile,
                VolumeKey,
            ],
        }
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn guess_work(&self, spec: &Spec<'_>) -> Option<GuessWork> {
        let hash = hash::by_name(spec.hash.unwrap_or(HASH));
        Some(GuessWork::Hash { hash: hash.map_or("no hash", |hash| hash.name), times: 1, compressions: 1 })
    }

    fn headerless(&self) -> bool {
        true
    }
}

impl Creator for PlainDmCrypt {
    fn choices(&self) -> Choices {
        Choices {
            ciphers: vec![
                CIPHER,
                "aes-xts-plain64",
                "serpent-xts-plain64",
                "twofish-xts-plain64",
                "camellia-xts-plain64",
            ],
            hashes: vec![HASH, "sha256", "sha512", "whirlpool", "plain"],
            complete: false,
            min_len: headerless::UNIT,
        }
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        let with = self.takes().reopening(spec, first);
        // Nothing is written before it is certain that the parameters can open the volume.
        let parameters = Parameters::of(&with)?;
        let place = HeaderlessArea::find(store.len(), &with.headerless, 0)?;
        headerless::cipher_of(&parameters.cipher, &parameters.key, place.sectors, with.acceleration)?;
        headerless::create(store, &place, spec)
    }

    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64> {
        stored_behind(spec.data_offset.unwrap_or(0), plain, spec)
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        HeaderlessArea::find(len, &self.takes().reopening(spec, &[]).headerless, 0).map(drop)
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        asks_passphrase(keyfiles)
    }
}

struct PlainHeader(Arc<dyn Store>);

impl Header for PlainHeader {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let store = &*self.0;
        check_opening(PLAIN.name(), &PLAIN.takes(), with)?;
        let parameters = Parameters::of(with)?;
        let place = HeaderlessArea::find(store.len(), &with.headerless, 0)?;
        let volume = HeaderlessVolume {
            format: PLAIN.name(),
            kind: "PLAIN",
            cipher: &parameters.cipher,
            key: &parameters.key,
            key_bits: parameters.key.len() as u32 * 8,
            hash: parameters.hash,
            iterations: parameters.iterations,
            place,
        };
        let (mut unlocked, contents) = volume.unlock(store, with, begun)?;
        unlocked.warnings.extend(parameters.warnings);
        unlocked.warnings.extend(contents.warning(PLAIN.name()));
        Ok(unlocked)
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(PLAIN.name(), PLAIN.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.0
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        asks_passphrase(keyfiles)
    }
}

/// A keyfile is the key, unless it is a cryptmount key file, which a passphrase opens.
fn asks_passphrase(keyfiles: &[Credential]) -> bool {
    let locked = |c: &Credential| matches!(c, Credential::Keyfile(contents) if cryptmount::is_one(contents));
    !keyfiles.iter().any(|c| matches!(c, Credential::Keyfile(_))) || keyfiles.iter().any(locked)
}

/// The key and its parameters.
struct Parameters {
    cipher: String,
    key: Secret,
    hash: Option<&'static str>,
    iterations: u32,
    warnings: Vec<Warning>,
}

impl Parameters {
    fn of(with: &Unlock<'_>) -> Result<Self> {
        let mut taken = Vec::new();
        let mut warnings = Vec::new();
        let bits = key_bits(with)?;
        let cipher = |default: &'static str, taken: &mut Vec<String>| {
            with.cipher.unwrap_or_else(|| {
                taken.push(format!("the cipher {default}"));
                default
            })
        };
        let size = |taken: &mut Vec<String>| {
            bits.unwrap_or_else(|| {
                taken.push(format!("a key of {KEY_BITS} bits"));
                KEY_BITS
            }) as usize
                / 8
        };
        let hashed = with.hash.is_some_and(|hash| !hash.eq_ignore_ascii_case("plain"));
        let ignored = |warnings: &mut Vec<Warning>| {
            if hashed {
                let unused = Warning::from("The hash is not used: a key file is the key itself.");
                warnings.push(unused.advise(Advice::GiveAsPassphrase));
            }
        };
        let (cipher, key, hash, iterations) = match with.credentials {
            [Credential::Passphrase(text)] => {
                let cipher = cipher(CIPHER, &mut taken);
                let hash = with.hash.unwrap_or_else(|| {
                    taken.push(format!("the hash {HASH}"));
                    HASH
                });
                let hashing = Hashing::parse(hash)?;
                (cipher, hashing.key(text, size(&mut taken))?, Some(hashing.name()), 1)
            }
            [one, other] => match (one, other) {
                (Credential::Keyfile(file), Credential::Passphrase(text))
                | (Credential::Passphrase(text), Credential::Keyfile(file))
                    if cryptmount::is_one(file) =>
                {
                    ignored(&mut warnings);
                    let opened = cryptmount::open(file, text, &|| !with.cancelled())?;
                    let key = match bits.map(|bits| bits as usize / 8) {
                        None => opened.key,
                        Some(len) if len <= opened.key.len() => Secret::copy_from(&opened.key[..len]),
                        Some(len) => {
                            let (has, needed) = (opened.key.len() * 8, len * 8);
                            let what = format!("the key in the key file has {has} bits, but {needed} were requested");
                            return Err(Error::misuse(what));
                        }
                    };
                    (cipher(CRYPTMOUNT_CIPHER, &mut taken), key, Some("SHA-1"), opened.iterations)
                }
                _ => return Err(wrong_credentials(with.credentials)),
            },
            [Credential::Keyfile(file)] if cryptmount::is_one(file) => {
                return Err(Error::misuse("this is a cryptmount key file, which needs a passphrase"));
            }
            [Credential::Keyfile(file)] => {
                let cipher = cipher(CIPHER, &mut taken);
                ignored(&mut warnings);
                let key = key::of_file(whole_keyfile(file)?, size(&mut taken));
                let key = key.map_err(|e| if hashed { e.advise(Advice::GiveAsPassphrase) } else { e })?;
                (cipher, key, None, 0)
            }
            [Credential::VolumeKey(key)] => {
                if bits.is_some_and(|bits| bits as usize != key.len() * 8) {
                    return Err(Error::misuse(format!("the volume key has {} bits", key.len() * 8)));
                }
                (cipher(CIPHER, &mut taken), Secret::copy_from(key), None, 0)
            }
            other => return Err(wrong_credentials(other)),
        };
        if !taken.is_empty() {
            warnings.push(format!(
                "Not recorded and not given; assumed {}, as cryptsetup before 2.7 does. (Newer ones assume aes-xts-plain64 and \
                 sha256.)",
                taken.join(", ")
            ).into());
        }
        Ok(Self { cipher: cipher.to_owned(), key, hash, iterations, warnings })
    }
}

/// The requested size of the key, in bits.
fn key_bits(with: &Unlock<'_>) -> Result<Option<u32>> {
    match with.headerless.key_bits {
        Some(bits) if bits == 0 || bits > KEY_BITS_MAX || !bits.is_multiple_of(8) => Err(Error::misuse(format!(
            "a key of {bits} bits is not possible: whole bytes, at most {KEY_BITS_MAX} bits"
        ))),
        bits => Ok(bits),
    }
}

fn wrong_credentials(credentials: &[Credential]) -> Error {
    match credentials {
        [] => Error::misuse("a passphrase or a key file is needed"),
        [one] => ErrorKind::CredentialKind { format: PLAIN.name(), kind: one.kind() }.into(),
        _ => Error::misuse("a plain volume takes one passphrase or one key file, not both")
            .hint("Omit the passphrase if you give a key file."),
    }
}
/// Reads a key file of cryptmount's own kind: [`crate::fuzzing`].
pub(crate) fn fuzz_keyfile(bytes: &[u8]) {
    let _ = cryptmount::is_one(bytes);
    // The file sets the iterations, so none are done.
    let _ = cryptmount::open(bytes, b"passphrase", &|| false);
}

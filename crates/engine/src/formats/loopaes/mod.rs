//! loop-AES: no header. A key file, usually encrypted by gpg, holds 1, 64 or 65 keys (loop-AES.README; the patch of loop-AES to
//! util-linux; cryptsetup, lib/loopaes/loopaes.c).
//!
//! | version | keys | cipher of dm-crypt |
//! |---|---|---|
//! | 1 | one | `aes-cbc-plain64` |
//! | 2 | 64, one for each of 64 sectors | `aes:64-cbc-lmk` |
//! | 3 | 64, and a seed of the initialisation vectors | `aes:64-cbc-lmk`, with a 65th key |

mod gpg;
mod keys;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash;

use super::headerless::{self, HeaderlessArea, HeaderlessVolume, UNIT};
use super::takes::{Parameter, Takes, check_opening};
use super::{Choices, Creator, Facts, Format, Header, Unlocked, Verdict, stored_behind};
use crate::advice::Warning;
use crate::credential::{Credential, Unlock, whole_keyfile};
use crate::error::{Error, ErrorKind, Result};
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;
use keys::{Keys, Single};

pub use keys::new_keyfile;

/// loop-AES.
pub static LOOP_AES: LoopAes = LoopAes;

/// Its name.
const LOOP_AES_NAME: &str = "loop-AES";

/// See [`LOOP_AES`].
pub struct LoopAes;

/// Ciphers that loop-AES has or had in its collection, by dm-crypt's names, the default first.
const CIPHERS: [&str; 4] = ["aes", "serpent", "twofish", "blowfish"];

/// Sizes of keys, in bits, the default first: loop-AES's own `AES128`.
const KEY_BITS: [u32; 3] = [128, 192, 256];

impl Format for LoopAes {
    fn name(&self) -> &'static str {
        LOOP_AES_NAME
    }

    fn identify(&self, _store: &dyn Store) -> Result<Verdict> {
        Ok(headerless::verdict(LOOP_AES_NAME))
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Ok(Box::new(LoopAesHeader(Arc::clone(store))))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        Takes {
            creating: &[Hash, Cipher, KeySize, SectorSize, Offset, FreshKeyfile],
            opening: &[Hash, Cipher, KeySize, SectorSize, Offset, FirstSector, DataSize, Seed, KeyRounds, Keyfile],
        }
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn guess_work(&self, _spec: &Spec<'_>) -> Option<GuessWork> {
        let bytes: u64 = gpg::COUNT.parse().ok()?;
        Some(GuessWork::Hash { hash: hash::SHA512.name, times: bytes / 128, compressions: 1 })
    }

    fn headerless(&self) -> bool {
        true
    }
}

impl Creator for LoopAes {
    fn choices(&self) -> Choices {
        let hashes = vec!["sha256", "sha384", "sha512"];
        Choices { ciphers: CIPHERS.to_vec(), hashes, complete: false, min_len: UNIT }
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        let with = self.takes().reopening(spec, first);
        // Nothing is written before it is certain that the parameters can open the volume.
        let parameters = Parameters::of(&with)?;
        let place = place(store.len(), &with)?;
        headerless::cipher_of(&parameters.specification, &parameters.key, place.sectors, with.acceleration)?;
        headerless::create(store, &place, spec)
    }

    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64> {
        stored_behind(spec.data_offset.unwrap_or(0), plain, spec)
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        place(len, &self.takes().reopening(spec, &[])).map(drop)
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        asks_passphrase(keyfiles)
    }

    /// The key file determines mode and vectors, and the key size determines the hash.
    fn opened_with(&self, facts: &Facts, spec: &Spec<'_>) -> (String, Option<String>) {
        (facts.cipher.trim_end_matches(":64").to_owned(), spec.hash.map(ToOwned::to_owned))
    }

    fn fresh_keyfile(&self) -> Result<Secret> {
        new_keyfile()
    }

    fn locked_keyfile(&self, contents: &Secret, passphrase: &Secret) -> Result<Vec<u8>> {
        gpg::encrypt(contents, passphrase)
    }
}

struct LoopAesHeader(Arc<dyn Store>);

impl Header for LoopAesHeader {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let store = &*self.0;
        check_opening(LOOP_AES.name(), &LOOP_AES.takes(), with)?;
        let place = place(store.len(), with)?;
        let parameters = Parameters::of(with)?;
        let volume = HeaderlessVolume {
            format: LOOP_AES.name(),
            kind: "LOOPAES",
            cipher: &parameters.specification,
            key: &parameters.key,
            key_bits: parameters.bits,
            hash: parameters.hash,
            iterations: parameters.iterations,
            place,
        };
        let (unlocked, contents) = volume.unlock(store, with, begun)?;
        let mut warnings = parameters.warnings;
        warnings.extend(contents.warning(LOOP_AES.name()));
        Ok(Unlocked { warnings, ..unlocked })
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(LOOP_AES.name(), LOOP_AES.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.0
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        asks_passphrase(keyfiles)
    }

    fn check_key_process(&self, credentials: &[Credential]) -> Result<()> {
        let by_gpg = |c: &Credential| matches!(c, Credential::Keyfile(file) if gpg::kind(file) != gpg::Kind::None);
        match credentials.iter().any(by_gpg) {
            true => Err(Error::unsupported("a key process for a gpg-encrypted key file")
                .hint("The key process cannot start gpg. Open it without a key process.")),
            false => Ok(()),
        }
    }
}

/// A key file in plain text needs no passphrase, and neither does one for a secret key in an agent.
fn asks_passphrase(keyfiles: &[Credential]) -> bool {
    let locked = |c: &Credential| matches!(c, Credential::Keyfile(file) if gpg::kind(file) == gpg::Kind::Passphrase);
    !keyfiles.iter().any(|c| matches!(c, Credential::Keyfile(_))) || keyfiles.iter().any(locked)
}

/// Sectors are numbered from the beginning of the store, not of the data, unless `skip` is given: that is the meaning of an offset
/// with an `@` (loop-AES.README; losetup(8) of loop-AES, `-o`).
fn place(store_len: u64, with: &Unlock<'_>) -> Result<HeaderlessArea> {
    let asked = &with.headerless;
    if asked.sector_size.is_some_and(|size| u64::from(size) != UNIT) {
        return Err(Error::misuse(format!("loop-AES volumes have sectors of {UNIT} bytes")));
    }
    HeaderlessArea::find(store_len, asked, asked.offset.unwrap_or(0) / UNIT)
}

/// The keys and their parameters.
struct Parameters {
    specification: String,
    key: Secret,
    bits: u32,
    hash: Option<&'static str>,
    iterations: u32,
    warnings: Vec<Warning>,
}

impl Parameters {
    fn of(with: &Unlock<'_>) -> Result<Self> {
        let mut warnings = Vec::new();
        let cipher = with.cipher.unwrap_or(CIPHERS[0]).to_ascii_lowercase();
        let (cipher, named) = cipher_and_bits(&cipher)?;
        let bits = match (with.headerless.key_bits.or(named), with.credentials) {
            (Some(bits), _) if KEY_BITS.contains(&bits) => bits,
            (Some(bits), _) => {
                return Err(Error::misuse(format!("loop-AES has keys of 128, 192 or 256 bits, not {bits}")));
            }
            (None, _) => {
                warnings.push(
                    format!(
                        "The key size is not recorded in the volume and was not given: {} bits were assumed.",
                        KEY_BITS[0]
                    )
                    .into(),
                );
                KEY_BITS[0]
            }
        };
        let keys = keys_of(with)?;
        let hash = keys::Hashing::parse(with.hash, bits)?;
        let name = hash.name();
        let len = bits as usize / 8;
        let single =
            Single { seed: with.seed, iterations_k: with.headerless.iterations_k, go_on: &|| !with.cancelled() };
        if keys.count() > 1 && (with.seed.is_some() || with.headerless.iterations_k.is_some()) {
            return Err(Error::misuse(
                "a seed and iterations apply only to volumes with one key; this key file has \
                 more",
            ));
        }
        let key = keys.hashed(&hash, len, &single)?;
        let specification =
            if keys.count() == 1 { format!("{cipher}-cbc-plain64") } else { format!("{cipher}:64-cbc-lmk") };
        Specification::parse(&specification).map_err(|e| Error::unsupported(e.to_string()))?;
        let iterations = single.iterations_k.unwrap_or(0).saturating_mul(1000).max(1);
        if keys.count() == 1 {
            warnings.push(
                "A loop-AES volume with one key is weak: its IVs are predictable, so outsiders can \
                 recognise specially prepared contents."
                    .into(),
            );
        }
        Ok(Self { specification, key, bits, hash: name, iterations, warnings })
    }
}

/// Splits loop-AES's `AES256` or dm-crypt's `aes` into the cipher and the key size, if given.
fn cipher_and_bits(text: &str) -> Result<(&str, Option<u32>)> {
    let name = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let bits = if name.len() == text.len() { None } else { text[name.len()..].parse().ok() };
    let name = name.trim_end_matches('-');
    match CIPHERS.contains(&name) {
        true => Ok((name, bits)),
        false => Err(Error::misuse(format!("loop-AES has no cipher {text}; it has: {}", CIPHERS.join(", ")))
            .hint("The key file determines the mode and the IVs.")),
    }
}

/// Returns the lines of the key file, decrypted if gpg encrypted it, or the passphrase itself.
fn keys_of(with: &Unlock<'_>) -> Result<Keys> {
    let wrong = |what: &str| Err(Error::misuse(what));
    match with.credentials {
        [Credential::Passphrase(text)] => Ok(Keys::of_passphrase(text)),
        [Credential::Keyfile(file)] => {
            let file = whole_keyfile(file)?;
            match gpg::kind(file) {
                gpg::Kind::None => Keys::parse(file),
                gpg::Kind::Passphrase => wrong("this key file is encrypted by gpg and needs a passphrase"),
                gpg::Kind::SecretKey => Keys::parse(&gpg::decrypt(file, None, &|| with.cancelled())?),
            }
        }
        [Credential::Keyfile(file), Credential::Passphrase(text)]
        | [Credential::Passphrase(text), Credential::Keyfile(file)] => {
            let file = whole_keyfile(file)?;
            if gpg::kind(file) == gpg::Kind::None {
                return wrong("this key file is not encrypted and takes no passphrase");
            }
            Keys::parse(&gpg::decrypt(file, Some(text), &|| with.cancelled())?)
        }
        [other] => Err(ErrorKind::CredentialKind { format: LOOP_AES.name(), kind: other.kind() }.into()),
        [] => wrong("a passphrase or a key file is needed"),
        _ => wrong("a loop-AES volume takes one key file and the passphrase that opens it"),
    }
}

/// Reads a key file: [`crate::fuzzing`].
pub(crate) fn fuzz_keyfile(bytes: &[u8]) {
    let _ = gpg::kind(bytes);
    if let (Ok(keys), Ok(hash)) = (Keys::parse(bytes), keys::Hashing::parse(None, 256)) {
        let single = Single { seed: None, iterations_k: None, go_on: &|| true };
        let _ = keys.hashed(&hash, 32, &single);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_have_the_names_of_loop_aes_and_of_dm_crypt() {
        for (text, expected) in [
            ("aes", ("aes", None)),
            ("aes128", ("aes", Some(128))),
            ("aes256", ("aes", Some(256))),
            ("serpent-192", ("serpent", Some(192))),
            ("blowfish", ("blowfish", None)),
        ] {
            assert_eq!(cipher_and_bits(text).expect("a cipher"), expected);
        }
        for text in ["", "aes-cbc", "mars", "256", "aes-xts-plain64"] {
            assert!(cipher_and_bits(text).is_err(), "{text}");
        }
    }
}

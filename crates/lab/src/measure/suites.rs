//! The ciphers and cascades that TrueCrypt offers, and what dm-crypt's specifications name, keyed for measuring.

use std::sync::Arc;

use claviger_crypto::ciphers::{Cipher, aes};
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::modes::Xts;
use claviger_crypto::modes::xts::Layer;
use claviger_crypto::{Acceleration, CIPHERS, SectorCipher};
use claviger_engine::formats::Creator;
use claviger_engine::formats::truecrypt::TRUECRYPT;
use claviger_engine::{Error, Result};

use crate::model::ciphers::{AesAcceleration, CipherKernels};

/// Key size in bytes of every cipher in TrueCrypt.
const KEY: usize = 32;

impl AesAcceleration {
    /// The state on this machine if `wanted` is requested.
    pub fn here(wanted: Acceleration) -> Self {
        match wanted {
            _ if !aes::AES.kernels.iter().any(|k| k.aes_instructions && (k.usable)()) => Self::NotAvailable,
            Acceleration::On => Self::On,
            Acceleration::Off => Self::Off,
        }
    }
}

/// A cipher, or a cascade of them.
#[derive(Clone)]
pub struct Suite {
    /// As TrueCrypt prints it: `AES-Twofish` encrypts with Twofish first. Or as dm-crypt has it: `aes-xts-plain64`.
    pub name: String,
    ciphers: Vec<&'static Cipher>,
    /// The specification, and the bytes of its key.
    specified: Option<(Specification, usize)>,
}

/// All of them, in the order in which TrueCrypt lists them.
pub fn all() -> Vec<Suite> {
    TRUECRYPT.choices().ciphers.into_iter().map(Suite::of_truecrypt).collect()
}

/// The suites with these names, ignoring case, in TrueCrypt's order; all if no name is given.
///
/// # Errors
/// `Misuse` for an unknown name.
pub fn named(names: &[String]) -> Result<Vec<Suite>> {
    let is = |suite: &Suite, name: &String| suite.name.eq_ignore_ascii_case(name);
    if let Some(unknown) = names.iter().find(|name| !all().iter().any(|s| is(s, name))) {
        let hint = format!("The ciphers are: {}.", TRUECRYPT.choices().ciphers.join(", "));
        return Err(Error::misuse(format!("there is no cipher or cascade called {unknown}")).hint(hint));
    }
    Ok(all().into_iter().filter(|s| names.is_empty() || names.iter().any(|name| is(s, name))).collect())
}

/// Like [`named`], but a name may be a specification of dm-crypt, whose key then has `key_bits`, or else as many as fit
/// up to 256 for each cipher, as in cryptsetup's own benchmark.
///
/// # Errors
/// `Misuse` if a name is neither, or the key or sectors of `sector` bytes do not fit.
pub fn named_or_specified(names: &[String], key_bits: Option<u32>, sector: usize) -> Result<Vec<Suite>> {
    let truecrypt = |name: &&String| all().iter().any(|s| s.name.eq_ignore_ascii_case(name));
    let (ours, others): (Vec<_>, Vec<_>) = names.iter().partition(truecrypt);
    let specified = others.iter().map(|text| {
        Suite::of_specification(text, key_bits, sector).map_err(|why| {
            let all = TRUECRYPT.choices().ciphers.join(", ");
            Error::misuse(format!("{text}: {why}"))
                .hint(format!("The ciphers are {all}, and dm-crypt specifications such as aes-xts-plain64."))
        })
    });
    let specified = specified.collect::<Result<Vec<_>>>()?;
    let ours: Vec<_> = ours.into_iter().cloned().collect();
    let mut suites = if ours.is_empty() && !specified.is_empty() { Vec::new() } else { named(&ours)? };
    suites.extend(specified);
    Ok(suites)
}

impl Suite {
    fn of_truecrypt(name: &'static str) -> Self {
        Self { name: name.to_owned(), ciphers: parts(name), specified: None }
    }

    fn of_specification(text: &str, key_bits: Option<u32>, sector: usize) -> std::result::Result<Self, String> {
        let known = Specification::parse(text).map_err(|e| e.to_string())?;
        let most = |len: &&usize| **len <= if known.is_xts() { 2 * KEY } else { KEY };
        let sizes = known.key_sizes();
        let usual = sizes.iter().filter(most).max().or(sizes.iter().min()).copied().unwrap_or_default();
        let len = key_bits.map_or(usual, |bits| bits as usize / 8);
        let sectors = Sectors { size: sector, ..Sectors::default() };
        known.with_key(&key_of(len), sectors, Acceleration::On).map_err(|e| e.to_string())?;
        let named =
            |c: &&&'static Cipher| text.split(['-', ':', '(', ')']).any(|word| word.eq_ignore_ascii_case(c.name));
        let ciphers = CIPHERS.iter().filter(named).copied().collect();
        Ok(Self { name: text.to_owned(), ciphers, specified: Some((known, len)) })
    }

    /// Its cipher for sectors of `sector_size` bytes, in XTS unless it is specified otherwise, under a fixed key: speed
    /// does not depend on it.
    pub fn keyed(&self, sector_size: usize, acceleration: Acceleration) -> Arc<dyn SectorCipher> {
        if let Some((known, len)) = &self.specified {
            let sectors = Sectors { size: sector_size, ..Sectors::default() };
            let cipher = known.with_key(&key_of(*len), sectors, acceleration);
            return cipher.expect("the key and the sectors were tried before");
        }
        let layer = |cipher: &&'static Cipher| Layer {
            data: cipher.with_key(&[0x35; KEY], acceleration),
            tweak: cipher.with_key(&[0x36; KEY], acceleration),
        };
        Arc::new(Xts::new(self.ciphers.iter().rev().map(layer).collect(), sector_size))
    }

    /// The kernels that do the work, in the order of the name: `vaes256`, or `aesni + portable` for a cascade.
    pub fn kernel(&self, acceleration: Acceleration) -> String {
        let kernels: Vec<_> = self.ciphers.iter().map(|c| c.best(acceleration).name).collect();
        kernels.join(" + ")
    }

    /// Whether one of these kernels uses AES instructions.
    pub fn uses_aes_instructions(&self, acceleration: Acceleration) -> bool {
        self.ciphers.iter().any(|c| c.best(acceleration).aes_instructions)
    }
}

/// For each cipher of a suite, the kernels that it runs on here.
pub fn chosen() -> Vec<CipherKernels> {
    let suites = all();
    let used = CIPHERS.iter().filter(|c| suites.iter().any(|s| s.ciphers.iter().any(|part| part.name == c.name)));
    let chosen = |c: &&'static Cipher| CipherKernels {
        cipher: c.name.into(),
        accelerated: c.best(Acceleration::On).name.into(),
        without_aes_instructions: c.best(Acceleration::Off).name.into(),
    };
    used.map(chosen).collect()
}

/// A key whose parts are not the same.
fn key_of(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 0x35) as u8).collect()
}

fn parts(name: &str) -> Vec<&'static Cipher> {
    let cipher = |part| CIPHERS.iter().copied().find(|c| c.name == part).expect("suites are made of known ciphers");
    name.split('-').map(cipher).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_made_of_known_ciphers() {
        assert_eq!(all().len(), 8);
        for suite in all() {
            assert_eq!(suite.ciphers.len(), suite.name.split('-').count());
            let cipher = suite.keyed(512, Acceleration::On);
            let mut run = vec![7; 2048];
            cipher.encrypt(3, &mut run);
            suite.keyed(512, Acceleration::Off).decrypt(3, &mut run);
            assert_eq!(run, vec![7; 2048], "{}", suite.name);
        }
    }

    #[test]
    fn names_narrow_and_unknown_ones_are_misuse() {
        let chosen = named(&["serpent".into(), "AES".into()]).unwrap();
        assert_eq!(chosen.iter().map(|s| &*s.name).collect::<Vec<_>>(), ["AES", "Serpent"]);
        assert!(named(&["ROT13".into()]).is_err());
    }

    #[test]
    fn specifications_of_dm_crypt_are_suites_too() {
        let names = ["aes-cbc-essiv:sha256".to_owned(), "Serpent".to_owned(), "aes-xts-plain64".to_owned()];
        let chosen = named_or_specified(&names, None, 512).expect("suites");
        let found: Vec<_> = chosen.iter().map(|s| (&*s.name, s.specified.as_ref().map(|(_, len)| *len))).collect();
        assert_eq!(found, [("Serpent", None), ("aes-cbc-essiv:sha256", Some(32)), ("aes-xts-plain64", Some(64))]);
        for suite in &chosen {
            let mut run = vec![7; 2048];
            suite.keyed(512, Acceleration::On).encrypt(3, &mut run);
            suite.keyed(512, Acceleration::Off).decrypt(3, &mut run);
            assert_eq!(run, vec![7; 2048], "{}", suite.name);
        }
        let one = ["aes-xts-plain64".to_owned()];
        assert_eq!(named_or_specified(&one, Some(256), 512).expect("a suite").len(), 1);
        for (name, bits) in [("rot13-cbc-plain", None), ("aes-xts-plain64", Some(100)), ("nonsense", None)] {
            assert!(named_or_specified(&[name.to_owned()], bits, 512).is_err(), "{name}");
        }
        assert_eq!(named_or_specified(&[], None, 512).expect("suites").len(), 8);
    }
}

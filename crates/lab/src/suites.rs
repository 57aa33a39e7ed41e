//! The ciphers and cascades that TrueCrypt offers, keyed for measuring.

use claviger_crypto::ciphers::{Cipher, aes};
use claviger_crypto::modes::Xts;
use claviger_crypto::modes::xts::Layer;
use claviger_crypto::{Acceleration, CIPHERS, SectorCipher};
use claviger_engine::formats::truecrypt::TRUECRYPT;
use claviger_engine::{Error, Format, Result};
use serde::Serialize;

/// Key size in bytes of every cipher in TrueCrypt.
const KEY: usize = 32;

/// Whether ciphers used the processor's AES instructions. TrueCrypt's window has a line for it: Yes, No, N/A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AesAcceleration {
    /// The processor has them, and AES uses them.
    #[serde(rename = "on")]
    On,
    /// The processor has them, and they were switched off.
    #[serde(rename = "off")]
    Off,
    /// The processor has none that a kernel of ours can use.
    #[serde(rename = "not available")]
    NotAvailable,
}

impl AesAcceleration {
    /// What it is here when `wanted` is asked for.
    pub fn here(wanted: Acceleration) -> Self {
        match wanted {
            _ if !aes::AES.kernels.iter().any(|k| k.aes_instructions && (k.usable)()) => Self::NotAvailable,
            Acceleration::On => Self::On,
            Acceleration::Off => Self::Off,
        }
    }

    /// As JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::NotAvailable => "not available",
        }
    }
}

/// A cipher, or a cascade of them.
#[derive(Clone)]
pub struct Suite {
    /// As TrueCrypt prints it: `AES-Twofish` encrypts with Twofish first.
    pub name: &'static str,
    ciphers: Vec<&'static Cipher>,
}

/// All of them, in the order in which TrueCrypt lists them.
pub fn all() -> Vec<Suite> {
    TRUECRYPT.choices().ciphers.into_iter().map(|name| Suite { name, ciphers: parts(name) }).collect()
}

/// Those of these names, whatever their case, in TrueCrypt's order; all if no name is given.
///
/// # Errors
/// `Misuse` if there is none of some name.
pub fn named(names: &[String]) -> Result<Vec<Suite>> {
    let is = |suite: &Suite, name: &String| suite.name.eq_ignore_ascii_case(name);
    if let Some(unknown) = names.iter().find(|name| !all().iter().any(|s| is(s, name))) {
        let hint = format!("There are: {}.", TRUECRYPT.choices().ciphers.join(", "));
        return Err(Error::misuse(format!("no cipher or cascade is called {unknown}")).hint(hint));
    }
    Ok(all().into_iter().filter(|s| names.is_empty() || names.iter().any(|name| is(s, name))).collect())
}

impl Suite {
    /// Its XTS cipher for sectors of `sector_size` bytes, under a fixed key: speed does not depend on it.
    pub fn keyed(&self, sector_size: usize, acceleration: Acceleration) -> Box<dyn SectorCipher> {
        let layer = |cipher: &&'static Cipher| Layer {
            data: cipher.with_key(&[0x35; KEY], acceleration),
            tweak: cipher.with_key(&[0x36; KEY], acceleration),
        };
        Box::new(Xts::new(self.ciphers.iter().rev().map(layer).collect(), sector_size))
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

/// The kernels that a cipher runs on here.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// The cipher.
    pub cipher: &'static str,
    /// The kernel when AES instructions are allowed.
    pub accelerated: &'static str,
    /// The kernel when they are not.
    pub without_aes_instructions: &'static str,
}

/// For each cipher of a suite, the kernels that it runs on here.
pub fn chosen() -> Vec<Chosen> {
    let suites = all();
    let used = CIPHERS.iter().filter(|c| suites.iter().any(|s| s.ciphers.iter().any(|part| part.name == c.name)));
    let chosen = |c: &&'static Cipher| Chosen {
        cipher: c.name,
        accelerated: c.best(Acceleration::On).name,
        without_aes_instructions: c.best(Acceleration::Off).name,
    };
    used.map(chosen).collect()
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
        assert_eq!(chosen.iter().map(|s| s.name).collect::<Vec<_>>(), ["AES", "Serpent"]);
        assert!(named(&["ROT13".into()]).is_err());
    }
}

//! Cryptoloop: encryption in the loop device of Linux 2.4 (kerneli's patch) and 2.6, set up by `losetup -e` and `mount -o
//! encryption=`. No current program writes it; it is supported to rescue data.
//!
//! It encrypts sectors of 512 bytes in CBC mode, with the sector's number in 32 bits as the initialisation vector (Linux 2.6,
//! drivers/block/cryptoloop.c, `cryptoloop_transfer`): dm-crypt's `cbc-plain`. The key is derived from the passphrase in one of the
//! ways of the losetup of that time (util-linux of loop-AES, loDev_rmd160HashTwiceWithA, loDev_unhashed2_key_setup): `rmd160`
//! hashes it with and without an `A` before it, `unhashed2` takes its first 31 bytes, and `sha256`, `sha384` and `sha512` hash it
//! once. Nothing records which was used. So parameters that are not given are tried, and recognisable contents decide.

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::Secret;

use super::key::Hashing;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::headerless::{self, Contents, HeaderlessArea, HeaderlessVolume};
use crate::formats::takes::{Parameter, Takes, check_opening};
use crate::formats::{Format, Header, Unlocked, Verdict};
use crate::store::Store;

/// Cryptoloop.
pub static CRYPTOLOOP: Cryptoloop = Cryptoloop;

/// See [`CRYPTOLOOP`].
pub struct Cryptoloop;

/// The ciphers of the kernels of that time, with their key sizes in bits, usual ones first.
static CIPHERS: &[(&str, &[u32])] = &[
    ("aes", &[128, 256, 192]),
    ("twofish", &[256, 128, 192, 160]),
    ("serpent", &[256, 128, 192]),
    ("blowfish", &[256, 128, 160, 192, 448]),
    ("cast6", &[256, 128, 192]),
    ("cast5", &[128]),
    ("des3_ede", &[192]),
];

/// Derivations of a key from a passphrase, by losetup's and cryptsetup's names.
static HASHES: &[(&str, &str)] = &[
    ("rmd160", "ripemd160"),
    ("unhashed2", UNHASHED),
    ("sha512", "sha512"),
    ("sha256", "sha256"),
    ("sha384", "sha384"),
    // SuSE's twofish of 2001: the hash without the second round.
    ("rmd160:20", "ripemd160:20"),
];

/// The first 31 bytes of the passphrase.
const UNHASHED: &str = "plain";

/// How many bytes of an unhashed passphrase are used: the buffer ends with a zero.
const UNHASHED_MAX: usize = 31;

impl Format for Cryptoloop {
    fn name(&self) -> &'static str {
        "cryptoloop"
    }

    fn identify(&self, _store: &dyn Store) -> Result<Verdict> {
        Ok(headerless::verdict("cryptoloop"))
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Ok(Box::new(CryptoloopHeader(Arc::clone(store))))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        let opening = &[Hash, Cipher, KeySize, SectorSize, Offset, FirstSector, DataSize, LargeVectors];
        Takes { creating: &[], opening }
    }

    fn headerless(&self) -> bool {
        true
    }
}

struct CryptoloopHeader(Arc<dyn Store>);

/// One way to open a volume.
struct Trial {
    cipher: String,
    hash: &'static str,
    bits: u32,
}

impl Header for CryptoloopHeader {
    /// Opens with the first combination for which the contents make sense; if all parameters are given, with these.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let store = &*self.0;
        check_opening(CRYPTOLOOP.name(), &CRYPTOLOOP.takes(), with)?;
        let [Credential::Passphrase(passphrase)] = with.credentials else {
            return Err(Error::misuse("a cryptoloop volume takes one passphrase and nothing else"));
        };
        let place = HeaderlessArea::find(store.len(), &with.headerless, 0)?;
        let ways = ways(with)?;
        let mut failed = None;
        for (tried, way) in ways.iter().enumerate() {
            if with.cancelled() {
                return Err(ErrorKind::Cancelled.into());
            }
            if let Some(progress) = with.progress {
                progress(tried as u64, ways.len() as u64);
            }
            match way.open(store, with, passphrase, place, begun) {
                Ok((unlocked, contents)) if contents.makes_sense() || ways.len() == 1 => {
                    let mut warnings = vec![WEAK.into()];
                    warnings.extend(contents.warning(CRYPTOLOOP.name()));
                    let trials = tried as u64 + 1;
                    return Ok(Unlocked { warnings, trials, derivations: trials, took: begun.elapsed(), ..unlocked });
                }
                Ok(_) => {}
                Err(e) if matches!(e.kind, ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. }) => failed = Some(e),
                Err(e) => return Err(e),
            }
        }
        match failed {
            Some(e) if ways.len() == 1 => Err(e),
            _ => Err(nothing_opens(&ways)),
        }
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(CRYPTOLOOP.name(), CRYPTOLOOP.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.0
    }
}

/// The warning for every volume.
const WEAK: &str = "Cryptoloop is weak: its IVs are predictable, so outsiders can recognise specially prepared \
     contents, and its passphrase is hashed once without salt. Copy the contents to a volume of another format.";

fn nothing_opens(ways: &[Trial]) -> Error {
    let what = format!(
        "none of the {} ways tried gave anything recognisable. Cryptoloop volumes have no signature: a wrong \
         passphrase, an untried cipher or offset, and a file of another kind look the same",
        ways.len()
    );
    Error::new(ErrorKind::WrongCredential(what)).hint(
        "Check the passphrase; give the offset if the data do not begin at byte 0. If you give the cipher, \
         hash and key size, the volume opens without a check.",
    )
}

/// Returns the combinations that the options allow.
fn ways(with: &Unlock<'_>) -> Result<Vec<Trial>> {
    let ciphers: Vec<(String, Vec<u32>)> = match with.cipher {
        None => CIPHERS.iter().map(|(name, sizes)| (format!("{name}-cbc-plain"), sizes.to_vec())).collect(),
        Some(cipher) => {
            let (name, mode) = cipher.split_once('-').unwrap_or((cipher, "cbc-plain"));
            let mode = if mode == "cbc" { "cbc-plain" } else { mode };
            let sizes =
                CIPHERS.iter().find(|(known, _)| *known == name).map_or(&[128, 192, 256][..], |(_, sizes)| sizes);
            vec![(format!("{name}-{mode}"), sizes.to_vec())]
        }
    };
    let hashes: Vec<&'static str> = match with.hash {
        None => HASHES.iter().map(|(_, ours)| *ours).collect(),
        Some(hash) => {
            let found = HASHES.iter().find(|(name, ours)| *name == hash || *ours == hash).map(|(_, ours)| *ours);
            let all = || HASHES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            vec![found.ok_or_else(|| Error::misuse(format!("cryptoloop had no hash {hash}; it had: {}", all())))?]
        }
    };
    let mut ways = Vec::new();
    for (cipher, sizes) in ciphers {
        let sizes = with.headerless.key_bits.map_or(sizes, |bits| vec![bits]);
        for hash in &hashes {
            ways.extend(sizes.iter().map(|bits| Trial { cipher: cipher.clone(), hash, bits: *bits }));
        }
    }
    Ok(ways)
}

impl Trial {
    fn open(
        &self,
        store: &dyn Store,
        with: &Unlock<'_>,
        passphrase: &[u8],
        place: HeaderlessArea,
        begun: Instant,
    ) -> Result<(Unlocked, Contents)> {
        if self.bits == 0 || !self.bits.is_multiple_of(8) || self.bits > super::KEY_BITS_MAX {
            return Err(Error::misuse(format!("keys cannot have {} bits", self.bits)));
        }
        let key = self.key(passphrase)?;
        let volume = HeaderlessVolume {
            format: CRYPTOLOOP.name(),
            kind: "PLAIN",
            cipher: &self.cipher,
            key: &key,
            key_bits: self.bits,
            hash: Some(Hashing::parse(self.hash)?.name()),
            iterations: 1,
            place,
        };
        volume.unlock(store, with, begun)
    }

    fn key(&self, passphrase: &[u8]) -> Result<Secret> {
        let len = self.bits as usize / 8;
        let used = if self.hash == UNHASHED { &passphrase[..passphrase.len().min(UNHASHED_MAX)] } else { passphrase };
        Hashing::parse(self.hash)?.key(used, len)
    }
}

//! Encrypted disk images of macOS (DMG), read-only: those that `hdiutil` and Disk Utility have made since Mac OS X 10.5. They may hold a
//! disk, or the image of one that is compressed. The sources are named in `header.rs`.
//!
//! The data are encrypted with AES in CBC mode, in chunks: see [`ImageChunks`].

mod header;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::ciphers::{aes, legacy};
use claviger_crypto::modes::{Cbc, ImageChunks, IvMode};
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret, SectorCipher, hash};

use super::luks::kdf::Kdf;
use super::luks::makes_sense;
use super::takes::{Parameter, Takes, check_opening};
use super::{Facts, Format, Header, HeaderTrace, Unlocked, Verdict, wiped};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::store::Store;
use crate::volume::{Layout, Payload, Segment};
use header::{IV_KEY, ImageHeader, WrappedKey, WrappingCipher};

/// The type of [`DMG`].
pub struct Dmg(());

/// Encrypted disk images of macOS.
pub static DMG: Dmg = Dmg(());

/// The name.
const NAME: &str = "DMG";

/// What follows the keys in a wrapped key.
const END_OF_KEYS: &[u8] = b"CKIE\0";

impl Format for Dmg {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const { &[HeaderTrace::first(0, header::MARK)] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        header::identify(store)
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        let header = wiped(NAME, header::read(&**store))?;
        Ok(Box::new(DmgHeader { store: Arc::clone(store), header }))
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::VolumeKey] }
    }
}

/// A header that has been read.
struct DmgHeader {
    store: Arc<dyn Store>,
    header: ImageHeader,
}

impl Header for DmgHeader {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        wiped(NAME, self.unlocked(with))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(NAME, DMG.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn effort(&self, _with: &Unlock<'_>) -> u64 {
        self.wrapped().iter().flatten().map(cost).fold(0, u64::saturating_add).max(1)
    }
}

/// The volume key, and how it was found.
struct OpenedKey {
    /// The data key, then the key for IVs.
    key: Secret,
    /// Iterations of its wrapped key. `None` if the key itself was given.
    iterations: Option<u32>,
    /// Whether anything proves that it is the right key.
    checked: bool,
    trials: u64,
}

impl DmgHeader {
    fn unlocked(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        check_opening(NAME, &DMG.takes(), with)?;
        let opened = self.open_key(with)?;
        with.has_opened();
        let header = &self.header;
        let (key, iv_key) = opened.key.split_at(header.key);
        let cipher = Arc::new(ImageChunks::new(key, iv_key, header.chunk as usize, with.acceleration));
        let (size, warning) = self.size(with)?;
        let recognised = opened.checked || makes_sense(&*self.store, header.offset, &*cipher)?;
        let layout = self.layout(&cipher, size)?;
        let facts = Facts {
            key_bits: 8 * header.key as u32,
            hash: opened.iterations.map(|_| "SHA-1".into()),
            iterations: opened.iterations.unwrap_or_default(),
            header_version: 2,
            opened_by: opened.iterations.is_none().then(|| "volume key".to_owned()),
            uuid: Some(hex::uuid(&header.uuid)),
            ..Facts::new(NAME, "aes", "cbc-hmac-sha1", &layout)
        };
        let (warnings, trials) = (warning.into_iter().collect(), opened.trials);
        Ok(Unlocked { layout, facts, warnings, trials, derivations: trials, took: begun.elapsed(), recognised })
    }

    /// The size of the plaintext, in bytes, and a warning if the file was cut short.
    fn size(&self, with: &Unlock<'_>) -> Result<(u64, Option<Warning>)> {
        let ImageHeader { chunk, size, offset, .. } = self.header;
        let (end, there) = (offset + size.next_multiple_of(chunk), self.store.len());
        if end <= there {
            return Ok((size, None));
        }
        let what = format!("the image ends at byte {end}, but the file is cut short at byte {there}");
        let left = there.saturating_sub(offset) / chunk * chunk;
        if !with.truncated || left == 0 {
            return Err(Error::from(ErrorKind::Malformed { field: "data size", offset: 56, what })
                .hint("Find a complete copy of the file.")
                .advise(Advice::OpenTruncated));
        }
        Ok((left, Some(format!("Read-only: {what}.").into())))
    }

    fn layout(&self, cipher: &Arc<ImageChunks>, size: u64) -> Result<Layout> {
        let ImageHeader { chunk, offset, .. } = self.header;
        let whole = size / chunk * chunk;
        let segment = |at, len, payload| Segment { at, len, stored_at: offset + at, payload, writable: false };
        let mut segments = Vec::new();
        if whole > 0 {
            segments.push(segment(0, whole, Payload::crypt(Arc::<ImageChunks>::clone(cipher), 0)));
        }
        // The end of a compressed image is where its contents are described: nothing may follow it.
        if size > whole {
            let mut last = vec![0; chunk as usize];
            self.store.read_at(offset + whole, &mut last)?;
            cipher.decrypt(whole / chunk, &mut last);
            last.truncate((size - whole) as usize);
            segments.push(segment(whole, size - whole, Payload::Fixed(last.into())));
        }
        Layout::new(segments)
    }

    fn open_key(&self, with: &Unlock<'_>) -> Result<OpenedKey> {
        match with.credentials {
            [Credential::VolumeKey(key)] if key.len() == self.header.key + IV_KEY => {
                Ok(OpenedKey { key: Secret::copy_from(key), iterations: None, checked: false, trials: 0 })
            }
            [Credential::VolumeKey(key)] => {
                let what = format!("the volume key has {} bytes, not {}", self.header.key + IV_KEY, key.len());
                Err(ErrorKind::WrongCredential(what).into())
            }
            [Credential::Passphrase(passphrase)] => self.by_passphrase(passphrase, with),
            [] => Err(Error::misuse("a passphrase is needed")),
            [other] => Err(ErrorKind::CredentialKind { format: NAME, kind: other.kind() }.into()),
            _ => Err(Error::misuse("a DMG takes one passphrase and nothing else")),
        }
    }

    /// The keys that are wrapped with passphrases, or why one cannot be tried.
    fn wrapped(&self) -> Vec<Result<WrappedKey>> {
        self.header.wrapped.iter().map(|place| header::wrapped(&*self.store, *place)).collect()
    }

    fn by_passphrase(&self, passphrase: &Secret, with: &Unlock<'_>) -> Result<OpenedKey> {
        let total = self.effort(with);
        with.ask(total)?;
        let (mut done, mut trials) = (0, 0);
        let all = self.wrapped();
        for wrapped in all.iter().flatten() {
            let len = wrapped.cipher.key_len();
            let derived = kdf(wrapped).derive(passphrase, &wrapped.salt, len, with)?;
            trials += 1;
            done += cost(wrapped);
            if let Some(progress) = with.progress {
                progress(done.min(total), total);
            }
            if let Some((key, checked)) = unwrapped(wrapped, &derived, self.header.key, with.acceleration) {
                return Ok(OpenedKey { key, iterations: Some(wrapped.iterations), checked, trials });
            }
        }
        Err(self.none_opens(all))
    }

    /// The error if no wrapped key opened.
    fn none_opens(&self, wrapped: Vec<Result<WrappedKey>>) -> Error {
        let tried = wrapped.iter().flatten().count();
        match (wrapped.into_iter().find_map(Result::err), tried) {
            (Some(error), 0) => error,
            (None, 0) if self.header.certificates > 0 => {
                Error::unsupported("a disk image that opens only with a certificate")
            }
            (None, 0) => Error::unsupported("a disk image that no passphrase opens"),
            (Some(_), _) => Error::from(ErrorKind::WrongCredential("wrong passphrase".into()))
                .hint("Or it belongs to a wrapped key that is damaged or not supported."),
            (None, _) => ErrorKind::WrongCredential("wrong passphrase".into()).into(),
        }
    }
}

fn kdf(wrapped: &WrappedKey) -> Kdf {
    Kdf::Pbkdf2 { hash: &hash::SHA1, iterations: wrapped.iterations }
}

/// The estimated time to try it on one thread, in microseconds.
fn cost(wrapped: &WrappedKey) -> u64 {
    kdf(wrapped).effort(wrapped.cipher.key_len()).max(1)
}

/// The volume key, of a data key of `len` bytes and the key for IVs, and whether a mark proves it. `None` if the derived key is wrong.
fn unwrapped(wrapped: &WrappedKey, derived: &[u8], len: usize, with: Acceleration) -> Option<(Secret, bool)> {
    let cipher = match wrapped.cipher {
        WrappingCipher::TripleDes => legacy::TRIPLE_DES.with_key(derived, with),
        WrappingCipher::Aes(_) => aes::AES.with_key(derived, with),
    };
    let mut plain = Secret::copy_from(&wrapped.key);
    Cbc(cipher).decrypt_sectors(&[wrapped.iv], &mut plain);
    wipe_stack();
    let padding = usize::from(*plain.last()?);
    let end = plain.len().checked_sub(padding).filter(|_| (1..=wrapped.cipher.block()).contains(&padding))?;
    let good = plain[end..].iter().all(|byte| usize::from(*byte) == padding);
    let keys = len + IV_KEY;
    // By chance, one of 256 wrong keys has padding of one byte.
    let marked = end == keys + END_OF_KEYS.len() && plain[keys..end] == *END_OF_KEYS;
    (good && (marked || end == keys)).then(|| (Secret::copy_from(&plain[..keys]), marked))
}

//! Common parts of formats without a header: where the data are, what their contents show, and creating volumes.

use std::time::Instant;

use claviger_crypto::dmcrypt::{self, Sectors, Specification};
use claviger_crypto::{Acceleration, Secret, SectorCipher};

use super::{Facts, Unlocked, Verdict, WhichHeader, filling, unencrypted};
use crate::advice::Warning;
use crate::credential::{Headerless, Unlock};
use crate::error::{Error, Result};
use crate::filesystems::{detect, magic};
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::{KernelCipher, Layout, Payload, Segment};

/// The unit in which sectors are numbered, in bytes.
pub(super) const UNIT: u64 = 512;

/// The verdict of such a format about any store.
pub(super) fn verdict(name: &str) -> Verdict {
    Verdict::No(vec![
        "its volumes have no header and look random".into(),
        format!("they open only with --format {name}"),
    ])
}

/// The place of the data in a store, and their division into sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderlessArea {
    /// The offset of the data, in bytes.
    pub offset: u64,
    /// Their length, in bytes: whole sectors.
    pub len: u64,
    /// The size and numbering of sectors.
    pub sectors: Sectors,
}

impl HeaderlessArea {
    /// Returns the area that `asked` describes, in a store of `store_len` bytes. A last incomplete unit does not count, since the
    /// kernel does not see it. If `asked` gives no first sector number, sectors are numbered from `skip`.
    ///
    /// # Errors
    /// `Misuse` for parameters that dm-crypt refuses (drivers/md/dm-crypt.c, `crypt_ctr`), and for an area past the end of the
    /// store.
    pub fn find(store_len: u64, asked: &Headerless, skip: u64) -> Result<Self> {
        let size = asked.sector_size.unwrap_or(512);
        if !matches!(size, 512 | 1024 | 2048 | 4096) {
            return Err(Error::misuse(format!("sectors have 512, 1024, 2048 or 4096 bytes, not {size}")));
        }
        let offset = asked.offset.unwrap_or(0);
        if !offset.is_multiple_of(UNIT) {
            return Err(Error::misuse(format!(
                "the data cannot begin at byte {offset}: it is not a multiple of {UNIT}"
            )));
        }
        let room = (store_len - store_len % UNIT).saturating_sub(offset);
        let len = asked.size.unwrap_or(room);
        if len > room {
            return Err(Error::misuse(format!("{len} bytes from byte {offset} on reach past the end, at {store_len}")));
        }
        if len == 0 {
            return Err(Error::misuse(format!("no data from byte {offset} on: the file ends at {store_len}")));
        }
        if !len.is_multiple_of(u64::from(size)) {
            return Err(Error::misuse(format!(
                "{len} bytes of data are not a whole number of sectors of {size} bytes"
            ))
            .hint("If the file has grown, give the data size."));
        }
        let skip = asked.skip.unwrap_or(skip);
        let fits = skip.is_multiple_of(u64::from(size) / UNIT) && skip.checked_add(len / UNIT).is_some();
        if !fits {
            return Err(Error::misuse(format!("{size}-byte sectors cannot be numbered from {skip}")));
        }
        Ok(Self { offset, len, sectors: Sectors { size: size as usize, large_iv: asked.large_iv, iv_offset: skip } })
    }
}

/// Returns the cipher of a specification from the user.
///
/// # Errors
/// `Misuse` for an invalid specification or a key that does not fit it, `Unsupported`.
pub(super) fn cipher_of(
    text: &str,
    key: &[u8],
    sectors: Sectors,
    with: Acceleration,
) -> Result<std::sync::Arc<dyn SectorCipher>> {
    Specification::parse(text).and_then(|cipher| cipher.with_key(key, sectors, with)).map_err(|e| match e {
        dmcrypt::DmCryptError::Unsupported(what) => Error::unsupported(format!("the cipher specification {what}")),
        dmcrypt::DmCryptError::KeySize(len, fit) => {
            let fit: Vec<_> = fit.iter().map(|size| (size * 8).to_string()).collect();
            Error::misuse(format!("{text} takes no key of {} bits; it takes {}", len * 8, fit.join(", ")))
                .hint("Give the key size.")
        }
        dmcrypt::DmCryptError::Syntax(_) => {
            Error::misuse(e.to_string()).hint("Examples: aes-xts-plain64, aes-cbc-essiv:sha256.")
        }
    })
}

/// A volume without a header: everything needed to open it.
pub(super) struct HeaderlessVolume<'a> {
    /// The format's name.
    pub format: &'static str,
    /// cryptsetup's type for it in the kernel.
    pub kind: &'static str,
    /// The cipher specification.
    pub cipher: &'a str,
    /// The whole key.
    pub key: &'a Secret,
    /// The part of it that one cipher uses, in bits.
    pub key_bits: u32,
    /// The hash that turned the credential into the key, or `none`.
    pub hash: Option<&'static str>,
    /// The number of its iterations.
    pub iterations: u32,
    /// The place of the data.
    pub place: HeaderlessArea,
}

impl HeaderlessVolume<'_> {
    /// Returns the layout, and what its contents show. Any key opens the volume: the caller must warn if no contents are
    /// recognised.
    ///
    /// # Errors
    /// Those of [`cipher_of`], and `Io`.
    pub fn unlock(&self, store: &dyn Store, with: &Unlock<'_>, begun: Instant) -> Result<(Unlocked, Contents)> {
        let HeaderlessArea { offset, len, sectors } = self.place;
        let null = unencrypted::is_null(self.cipher);
        let payload = match null {
            true => Payload::Clear,
            false => {
                let cipher = cipher_of(self.cipher, self.key, sectors, with.acceleration)?;
                let layer = || {
                    let (specification, key) = (self.cipher.to_owned(), Secret::copy_from(self.key));
                    vec![KernelCipher { specification, key, sectors, integrity: None }]
                };
                Payload::crypt(cipher, 0).with_kernel(with.for_kernel.then(layer))
            }
        };
        let contents = Contents::of(store, &self.place, &payload)?;
        let writable = !null || with.write_unencrypted;
        let layout = Layout::new(vec![Segment { at: 0, len, stored_at: offset, payload, writable }])?
            .for_kernel(with.for_kernel.then_some(self.kind));
        let (cipher, mode) = self.cipher.split_once('-').unwrap_or((self.cipher, ""));
        let facts = Facts {
            format: self.format,
            cipher: cipher.to_owned(),
            mode: mode.to_owned(),
            key_bits: self.key_bits,
            hash: self.hash.map(Into::into),
            iterations: self.iterations,
            derivation: None,
            memory: None,
            pim: None,
            header_version: 0,
            header: WhichHeader::None,
            opened_by: None,
            hidden: false,
            keyslot: None,
            uuid: None,
            label: None,
            integrity: None,
            sector_size: sectors.size as u32,
            size: len,
            data_offset: offset,
            created: None,
            header_written: None,
        };
        let unlocked = Unlocked {
            layout,
            facts,
            warnings: if null { vec![unencrypted::warning(with)] } else { Vec::new() },
            trials: 1,
            derivations: 1,
            took: begun.elapsed(),
            recognised: contents != Contents::Nothing,
        };
        Ok((unlocked, contents))
    }
}

/// What the contents show: the only evidence for or against the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// A known signature: a file system, a partition table, another volume.
    Known(&'static str),
    /// No known signature, but the plaintext is less random than the stored bytes.
    Something,
    /// The key is right, but the sector numbering is wrong: sectors of zeros decrypt to zeros except for their first blocks.
    Misnumbered,
    /// The result of a wrong key, or of an empty volume.
    Nothing,
}

impl Contents {
    fn of(store: &dyn Store, place: &HeaderlessArea, payload: &Payload) -> Result<Self> {
        let looked_at = (detect::LOOKED_AT as u64).next_multiple_of(4096).min(place.len);
        let mut stored = vec![0; looked_at as usize];
        store.read_at(place.offset, &mut stored)?;
        let mut plain = Secret::copy_from(&stored);
        if let Payload::Crypt { cipher, first, .. } = payload {
            cipher.decrypt(*first, &mut plain);
        }
        Ok(Self::look(&stored, &plain))
    }

    fn look(stored: &[u8], plain: &[u8]) -> Self {
        // Sectors that were never written decrypt to something regular with every key.
        let written = || {
            let sectors = stored.chunks_exact(UNIT as usize).zip(plain.chunks_exact(UNIT as usize));
            sectors.filter(|(stored, _)| magic::looks_random(stored)).map(|(_, plain)| plain)
        };
        /// The largest block size of a cipher, in bytes, or the size of loop-AES's changes to a sector.
        const FIRST: usize = 32;
        let zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
        let misnumbered = |sector: &[u8]| zero(&sector[FIRST..]) && !zero(&sector[..FIRST]);
        // A superblock or a short text in front of zeros looks the same. But there are not several of these, and other sectors are
        // all zeros.
        let least = if magic::known(plain).is_some() { 8 } else { 2 };
        if !written().any(zero) && written().filter(|sector| misnumbered(sector)).count() >= least {
            return Self::Misnumbered;
        }
        match magic::known(plain) {
            Some(what) => Self::Known(what),
            None if written().any(|sector| !magic::looks_random(sector)) => Self::Something,
            None => Self::Nothing,
        }
    }

    /// Whether the contents show that the key is right.
    pub fn makes_sense(&self) -> bool {
        matches!(self, Self::Known(_) | Self::Something)
    }

    /// A warning for the user, if the contents call for one.
    pub fn warning(&self, format: &str) -> Option<Warning> {
        match self {
            Self::Known(_) | Self::Something => None,
            Self::Misnumbered => Some(
                "The key seems right, but the sector numbers wrong: the first bytes of sectors decrypt to noise. \
                 Before writing, check the offset, the first sector's number, the sector size and the cipher's IV."
                    .into(),
            ),
            Self::Nothing => Some(
                format!(
                    "Nothing in it is recognised. {format} volumes have no header: a wrong passphrase, key file, \
                 cipher, hash, key size or offset looks the same as an empty volume. Be sure before writing: writes \
                 with a wrong key destroy the data."
                )
                .into(),
            ),
        }
    }
}

/// Fills a new volume with bytes that look like ciphertext, unless `spec.quick` is set. Creating a volume without a header takes
/// nothing else.
///
/// # Errors
/// `Cancelled`, `Io`.
pub(super) fn create(store: &dyn Store, place: &HeaderlessArea, spec: &Spec<'_>) -> Result<()> {
    if spec.quick {
        return Ok(());
    }
    filling::fill(store, place.offset..place.offset + place.len, spec)?;
    Ok(store.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn places_are_those_that_dm_crypt_takes() {
        let asked = Headerless::default();
        let place = HeaderlessArea::find(10_000, &asked, 0).expect("a place");
        assert_eq!((place.offset, place.len, place.sectors), (0, 9728, Sectors::default()));
        let asked =
            Headerless { offset: Some(1024), size: Some(4096), skip: Some(8), sector_size: Some(4096), ..asked };
        let place = HeaderlessArea::find(10_000, &asked, 2).expect("a place");
        assert_eq!((place.offset, place.len, place.sectors.size, place.sectors.iv_offset), (1024, 4096, 4096, 8));
        assert_eq!(
            HeaderlessArea::find(10_000, &Headerless { skip: None, ..asked }, 16).expect("a place").sectors.iv_offset,
            16
        );
        for wrong in [
            Headerless { sector_size: Some(513), ..asked },
            Headerless { sector_size: Some(8192), ..asked },
            Headerless { offset: Some(100), ..asked },
            Headerless { offset: Some(10_240), size: None, ..asked },
            Headerless { offset: Some(u64::MAX - 511), ..asked },
            Headerless { size: Some(16_384), ..asked },
            Headerless { size: Some(0), ..asked },
            Headerless { size: Some(512), ..asked },
            Headerless { skip: Some(7), ..asked },
            Headerless { skip: Some(u64::MAX - 7), ..asked },
        ] {
            let error = HeaderlessArea::find(10_000, &wrong, 0).expect_err("it does not fit");
            assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{wrong:?}: {error}");
        }
        assert!(HeaderlessArea::find(100, &Headerless::default(), 0).is_err());
    }
}

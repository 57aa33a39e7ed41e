//! FileVault 2: encrypted logical volumes of Core Storage from Mac OS X 10.7 to macOS 10.12, read-only. The sources are libfvde's
//! document "FileVault Drive Encryption (FVDE)" and cryptsetup 2.6.1, lib/fvault2/fvault2.c; files and sections are named where
//! they are used.
//!
//! The data are encrypted by AES-128 in XTS mode, sectors of 512 bytes, numbered from the beginning of the logical volume. They
//! usually contain HFS+, for which there is no reader here: the kernel's `hfsplus` mounts it.

mod context;
pub(super) mod describe;
mod header;
mod metadata;
mod plist;
mod unlock;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::{Secret, SectorCipher};

use super::header_facts::{FormatFacts, HeaderFacts};
use super::luks::{cipher_error, makes_sense};
use super::takes::{Parameter, Takes, check_opening};
use super::{Facts, Format, Header, HeaderTrace, Unlocked, Verdict, WhichHeader, wiped};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{MemoryStore, Store};
use crate::volume::{KernelCipher, Layout, Payload, Segment};
pub use context::FileVault2Conversion;
use context::{Context, User};
pub use describe::{
    EncryptionContextFacts, FileVault2Facts, FileVault2User, LogicalVolumeFacts, LogicalVolumePart, PhysicalVolumeFacts,
};
use header::VolumeHeader;
use metadata::{LogicalVolume, Metadata};

/// The type of [`FILEVAULT2`].
pub struct FileVault2(());

/// FileVault 2.
pub static FILEVAULT2: FileVault2 = FileVault2(());

/// The name.
const NAME: &str = "FileVault2";

/// cryptsetup's type for it in the kernel (lib/libcryptsetup.h, `CRYPT_FVAULT2`).
const KIND: &str = "FVAULT2";

/// dm-crypt's name for the data's cipher.
const CIPHER: &str = "aes";
const MODE: &str = "xts-plain64";

/// The size of a sector, in bytes.
const SECTOR: u64 = 512;

impl Format for FileVault2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const { &[HeaderTrace::first(88, b"CS\x01\0\0\0")] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        Ok(match header::mark(store)? {
            Some(why) => Verdict::Yes(vec![why.into()]),
            None => Verdict::No(vec!["no Core Storage volume header".into()]),
        })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        let read = || {
            let header = VolumeHeader::read(&**store)?;
            let metadata = metadata::read(&**store, &header)?;
            Ok(FileVault2Header { store: Arc::clone(store), header, metadata })
        };
        Ok(Box::new(wiped(NAME, read())?))
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::VolumeKey] }
    }
}

/// A header that has been read.
struct FileVault2Header {
    store: Arc<dyn Store>,
    header: VolumeHeader,
    metadata: Metadata,
}

impl Header for FileVault2Header {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        wiped(NAME, self.unlocked(with))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(NAME, FILEVAULT2.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn describe(&self) -> Option<HeaderFacts> {
        Some(HeaderFacts::new(None, FormatFacts::FileVault2(describe::facts(self))))
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        self.context().map_or(1, |context| unlock::effort(context, with))
    }
}

impl FileVault2Header {
    fn context(&self) -> Option<&Context> {
        self.metadata.context().ok()?
    }

    fn unlocked(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        check_opening(NAME, &FILEVAULT2.takes(), with)?;
        let mut warnings = self.warnings();
        let opened = unlock::open_key(&self.metadata, with)?;
        with.has_opened();
        let specification = Specification::parse(&format!("{CIPHER}-{MODE}")).map_err(|e| cipher_error(e, 0))?;
        let cipher = specification.with_key(&opened.key, Sectors::default(), with.acceleration);
        let cipher = cipher.map_err(|e| cipher_error(e, 0))?;
        let kernel = with.for_kernel.then_some(opened.key);
        let runs = self.runs(&*cipher)?;
        warnings.extend(self.cut_short(&runs, with)?);
        let recognised = opened.checked || self.shows(&runs, &*cipher)?;
        let segment = |run: &Run| {
            let layer = |key: &Secret| KernelCipher {
                specification: specification.to_string(),
                key: Secret::copy_from(key),
                sectors: Sectors::default(),
                integrity: None,
            };
            let payload = Payload::crypt(Arc::clone(&cipher), run.at / SECTOR);
            let payload = payload.with_kernel(kernel.as_ref().map(|key| vec![layer(key)]));
            Segment { at: run.at, len: run.len, stored_at: run.stored_at, payload, writable: false }
        };
        let layout = Layout::new(runs.iter().map(segment).collect())?.for_kernel(with.for_kernel.then_some(KIND));
        let facts = self.facts(&layout, opened.user);
        let trials = opened.trials;
        Ok(Unlocked { layout, facts, warnings, trials, derivations: trials, took: begun.elapsed(), recognised })
    }

    /// Warnings about damage that does not keep the volume from being opened.
    fn warnings(&self) -> Vec<Warning> {
        let mut warnings: Vec<Warning> = self.metadata.warnings.iter().map(|what| what.clone().into()).collect();
        if self.header.at > 0 {
            warnings.push("The volume header in front is damaged: its copy at the end was used.".into());
        }
        if self.context().is_some_and(Context::half_way) {
            warnings.push(
                "The volume's encryption or decryption is not finished: parts that are unencrypted on the disk read \
                 as noise."
                    .into(),
            );
        }
        warnings
    }

    /// Returns the runs of the logical volume in the store. cryptsetup counts its blocks from the beginning of the physical volume,
    /// libfvde from the place that another metadata block gives. If both are possible, the data decide.
    fn runs(&self, cipher: &dyn SectorCipher) -> Result<Vec<Run>> {
        let volume = &self.metadata.volume;
        let from = |beginning| runs(&self.header, volume, beginning);
        if volume.beginning == 0 {
            return from(0);
        }
        let relative = from(volume.beginning);
        if volume.parts[0].physical == 0 {
            return relative;
        }
        match relative {
            Ok(runs) if self.shows(&runs, cipher)? => Ok(runs),
            _ => from(0),
        }
    }

    /// Whether the contents show that they are decrypted correctly.
    fn shows(&self, runs: &[Run], cipher: &dyn SectorCipher) -> Result<bool> {
        let at = runs[0].stored_at;
        Ok(at < self.store.len() && makes_sense(&*self.store, at, cipher)?)
    }

    /// Returns a warning about data missing from the store.
    fn cut_short(&self, runs: &[Run], with: &Unlock<'_>) -> Result<Option<Warning>> {
        let end = runs.iter().map(|run| run.stored_at + run.len).max().unwrap_or_default();
        let there = self.store.len();
        if end <= there {
            return Ok(None);
        }
        let what = format!("the volume ends at byte {end}, but the file is cut short at byte {there}");
        if !with.truncated {
            let field = "parts of the logical volume";
            return Err(Error::from(ErrorKind::Malformed { field, offset: self.header.at, what })
                .hint("Find a complete copy of the file.")
                .advise(Advice::OpenTruncated));
        }
        Ok(Some(format!("Read-only: {what}.").into()))
    }

    fn facts(&self, layout: &Layout, user: Option<usize>) -> Facts {
        let volume = &self.metadata.volume;
        let user = user.and_then(|place| Some((place, &self.context()?.users[place])));
        let iterations = user.and_then(|(_, user)| Some(user.wrapped.as_ref().ok()?.iterations));
        Facts {
            key_bits: 256,
            hash: user.map(|_| "SHA-256".into()),
            iterations: iterations.unwrap_or_default(),
            header_version: 1,
            header: if self.header.at == 0 { WhichHeader::Primary } else { WhichHeader::Backup },
            opened_by: Some(user.map_or("volume key".to_owned(), |(place, user)| called(place, user))),
            uuid: volume.uuid.clone(),
            label: volume.name.clone(),
            ..Facts::new(NAME, CIPHER, MODE, layout)
        }
    }
}

/// Reads plain metadata blocks and tries to open what they describe, except for key derivations, whose cost they set.
pub(crate) fn fuzz_metadata(bytes: &[u8]) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
    let header = VolumeHeader {
        at: 0,
        volume_size: store.len(),
        block_size: 4096,
        labels: [0; 4],
        metadata_key: [0; 16],
        uuid: [0; 16],
        group: [0; 16],
    };
    let Ok(metadata) = metadata::in_clear(bytes) else { return };
    let header = FileVault2Header { store, header, metadata };
    describe::facts(&header);
    let cancel = AtomicBool::new(true);
    let key = Credential::VolumeKey(Secret::zeroed(16));
    for credential in [key, Credential::Passphrase(Secret::copy_from(&[b'x'; 24]))] {
        let credentials = [credential];
        let with = Unlock { cancel: Some(&cancel), for_kernel: true, ..Unlock::with(&credentials) };
        let _ = header.effort(&with);
        let _ = header.unlocked(&with);
    }
}

/// A user's name for people: the name, or the index.
fn called(place: usize, user: &User) -> String {
    user.name.as_ref().map_or_else(|| format!("user {place}"), |name| format!("user {name}"))
}

/// Bytes of a logical volume that are contiguous in the store.
struct Run {
    at: u64,
    len: u64,
    stored_at: u64,
}

/// Returns the runs of a logical volume whose parts are counted from block `beginning`.
fn runs(header: &VolumeHeader, volume: &LogicalVolume, beginning: u64) -> Result<Vec<Run>> {
    let malformed =
        |what: String| ErrorKind::Malformed { field: "parts of the logical volume", offset: header.at, what };
    let mut end = 0;
    let mut runs = Vec::new();
    for part in &volume.parts {
        if part.disk != 0 {
            return Err(metadata::other_disk());
        }
        let bytes =
            |blocks: u64| header.byte_of(blocks).ok_or_else(|| malformed(format!("block {blocks} has no position")));
        let at = bytes(part.logical)?;
        if at != end {
            return Err(
                malformed(format!("they are not contiguous: one ends at byte {end}, the next begins at {at}")).into()
            );
        }
        let left = volume.size - at;
        // cryptsetup assumes that a volume is in one piece, and ignores that piece's length.
        let len = if volume.parts.len() == 1 { left } else { bytes(part.blocks)?.min(left) };
        let stored_at = bytes(beginning.saturating_add(part.physical))?;
        if len == 0 || stored_at.checked_add(len).is_none() || stored_at == 0 || !len.is_multiple_of(SECTOR) {
            return Err(malformed(format!("{len} bytes of the volume cannot lie at byte {stored_at}")).into());
        }
        runs.push(Run { at, len, stored_at });
        end = at + len;
        if end == volume.size {
            break;
        }
    }
    match end == volume.size {
        true => Ok(runs),
        false => Err(malformed(format!("they cover {end} of the volume's {} bytes", volume.size)).into()),
    }
}

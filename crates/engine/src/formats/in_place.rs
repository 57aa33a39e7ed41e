//! In-place conversion of volumes, zone by zone: from plaintext to ciphertext and back, or to another key.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::{FORMATS, Format, Verdict, VolumeInUse};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::key_process::KeyProcess;
use crate::key_process::volume::Keys;
use crate::spec::{Cost, Spec};
use crate::store::{InUseConversion, Store};
use crate::volume::{ConversionKind, VolumeEncryption};

/// The goal of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// The whole volume is encrypted.
    Encrypted,
    /// Only plaintext is left, without the format.
    Plain,
}

/// The stores of the volume to convert.
#[derive(Clone, Copy)]
pub struct InPlaceStores<'a> {
    /// The store of the data.
    pub data: &'a Arc<dyn Store>,
    /// The store of the header, if it is detached.
    pub header: Option<&'a Arc<dyn Store>>,
}

impl<'a> InPlaceStores<'a> {
    /// Returns the header's store.
    pub fn header(&self) -> &'a Arc<dyn Store> {
        self.header.unwrap_or(self.data)
    }
}

impl<'a> From<&'a Arc<dyn Store>> for InPlaceStores<'a> {
    fn from(data: &'a Arc<dyn Store>) -> Self {
        Self { data, header: None }
    }
}

/// Consents to the first change, which removes these keyslots, or refuses with an error.
pub type Consent<'a> = dyn Fn(&[u32]) -> Result<()> + 'a;

/// The parameters of a conversion. `None` means unchanged, or the default. Everything except `zone` and `consent` is for a
/// [`Reencrypter`].
#[derive(Clone, Copy, Default)]
pub struct ReencryptionRequest<'a> {
    /// The maximum size of a zone, in bytes.
    pub zone: Option<u64>,
    /// Called just before the first change, with the keyslots that will be removed with the old key. If it returns an error,
    /// nothing is changed.
    pub consent: Option<&'a Consent<'a>>,
    /// Cipher specification: `aes-xts-plain64`.
    pub cipher: Option<&'a str>,
    /// Size of the new volume key, in bits.
    pub key_bits: Option<u32>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// How the hot zone survives an interruption: `checksum`, `journal` or `none`. The default is `checksum`, unless it could not
    /// repair a torn sector: then it is `journal`.
    pub resilience: Option<&'a str>,
    /// Hash of the checksums, by its name: `sha256`.
    pub checksum: Option<&'a str>,
    /// Whether to run from the end to the beginning.
    pub backward: bool,
    /// Hash of the new keyslot's key derivation, by its name.
    pub hash: Option<&'a str>,
    /// The cost of the new keyslot's derivation. The default is that of the keyslot that opens.
    pub cost: Cost<'a>,
    /// How many unused bytes at the end of the plaintext make space for a header in front.
    pub room: Option<u64>,
    /// The highest rate, in bytes per second. The default is as fast as possible, or as the other users of a volume in use permit.
    pub rate: Option<u64>,
}

impl ReencryptionRequest<'_> {
    /// Asks for consent to the first change, which removes these keyslots.
    pub(super) fn agreed(&self, ending: &[u32]) -> Result<()> {
        self.consent.map_or(Ok(()), |consent| consent(ending))
    }
}

/// A conversion whose keys are in a key process, as plain data for the process that uses the volume and does the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeylessConversion {
    /// A digest of the header that the keys have proven.
    pub(super) header: Vec<u8>,
    /// What it does.
    pub kind: ConversionKind,
    /// How the volume is encrypted afterwards.
    pub encryption: VolumeEncryption,
    /// The keyslots that open only the old key and are removed with it.
    pub ending: Vec<u32>,
    /// What the process that uses the volume is asked for.
    pub request: InUseConversion,
}

/// The key processes of a volume in use.
pub struct KeyProcesses<'a> {
    /// The one that the handles in the volume's layout ask.
    pub current: &'a Arc<dyn KeyProcess>,
    /// A process that has the keys of the conversion.
    pub next: &'a Arc<dyn KeyProcess>,
    /// Makes `current` ask `next` from now on. Called once, while no request to the volume is in progress.
    pub exchange: &'a mut dyn FnMut(),
}

/// Converts volumes of a format in place.
pub trait InPlaceConverter: Sync {
    /// Unlocks and checks a volume for conversion. Writes nothing before `consent`. `towards` begins a conversion or reverses one;
    /// without it, a conversion that this or another program began is resumed.
    ///
    /// # Errors
    /// Those of unlocking; `Misuse` if there is nothing to do, `Unsupported` for a volume that this program cannot convert,
    /// `Malformed`.
    fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>>;

    /// Turns the plaintext in the store into a volume that `first` opens. All of its data are still plaintext afterwards; a
    /// conversion encrypts them.
    ///
    /// # Errors
    /// `Unsupported` if this program cannot do it; `Misuse` if there is too little space; those of
    /// [`Format::create`](super::Format::create).
    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<()>;

    /// Resumes the conversion of a volume that this process uses, while it is read and written: see [`VolumeInUse::convert`], which
    /// has checked that it can follow.
    ///
    /// # Errors
    /// Those of [`InPlaceConverter::conversion`] and [`InPlaceConversion::run`].
    fn convert_in_use(
        &self,
        volume: VolumeInUse<'_>,
        with: &Unlock<'_>,
        request: &InUseConversion,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()>;

    /// The same for a volume whose keys are in a key process: see [`VolumeInUse::convert_with_key_process`].
    ///
    /// # Errors
    /// `Unsupported` for formats that cannot do it; those of [`InPlaceConverter::convert_in_use`].
    fn convert_with_key_process(
        &self,
        _volume: VolumeInUse<'_>,
        _keyless: &KeylessConversion,
        _key_processes: KeyProcesses<'_>,
        _progress: &dyn Fn(u64, u64),
        _cancel: &AtomicBool,
    ) -> Result<()> {
        Err(no_key_process())
    }

    /// Returns the extended converter, if volumes can get another key.
    fn reencrypter(&self) -> Option<&dyn Reencrypter> {
        None
    }
}

/// A converter that can also change the key, and supports all of a [`ReencryptionRequest`] and detached headers.
pub trait Reencrypter: Sync {
    /// Whether the volume in the store is being converted; `None` if there is no header of the format at all.
    ///
    /// # Errors
    /// `Malformed` and `Unsupported` for a header that cannot be read; `Io`.
    fn status(&self, header: &dyn Store) -> Result<Option<bool>>;

    /// Returns how long a new store for the header of such a conversion of `data` must be, in bytes.
    ///
    /// # Errors
    /// Those of reading the header in front of the data.
    fn new_header_len(&self, data: &dyn Store, towards: Towards) -> Result<u64>;

    /// If the stores are in use by a process that lends them: refuses what that process cannot do.
    ///
    /// # Errors
    /// `Unsupported`, with the reason; those of reading the header.
    fn must_be_possible_in_use(
        &self,
        stores: InPlaceStores<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<()>;

    /// Begins to reencrypt a volume with another key, and another cipher or sector size if asked for. The new key gets a keyslot
    /// for the same passphrase.
    ///
    /// # Errors
    /// Those of [`InPlaceConverter::conversion`].
    fn reencryption<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>>;
}

/// A conversion, ready to begin or to be resumed.
pub trait InPlaceConversion {
    /// How many bytes are converted, and how many there are.
    fn progress(&self) -> (u64, u64);

    /// What it does.
    fn kind(&self) -> ConversionKind;

    /// The keyslots that open only the old key and are removed with it.
    fn ending(&self) -> &[u32] {
        &[]
    }

    /// Runs to the end, or until `cancel` is set. Converted zones stay converted, and the volume can be used and resumed.
    /// `progress` gets the number of converted bytes and of all bytes.
    ///
    /// # Errors
    /// `Cancelled`; `Io`, after which it can be resumed too.
    fn run(self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()>;

    /// Instead of running it: returns its keys for a key process, and everything else for the process that uses the volume.
    ///
    /// # Errors
    /// `Unsupported` for formats that cannot do it.
    fn into_keys(self: Box<Self>) -> Result<(KeylessConversion, Keys)> {
        Err(no_key_process())
    }
}

fn no_key_process() -> Error {
    Error::unsupported("converting a volume of this format while it is in use with --isolate-keys")
        .hint("Nothing was changed. Unmount it first.")
}

/// Returns the format of the volume in the store, if it has a converter.
///
/// # Errors
/// `Io`.
pub fn convertible(store: &dyn Store) -> Result<Option<(&'static dyn Format, &'static dyn InPlaceConverter)>> {
    for format in FORMATS.iter().copied() {
        if let Some(converter) = format.in_place_converter()
            && matches!(format.identify(store)?, Verdict::Yes(_))
        {
            return Ok(Some((format, converter)));
        }
    }
    Ok(None)
}

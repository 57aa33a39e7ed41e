//! What converts volumes where they lie, whole zones at a time: plaintext into ciphertext, and back, or to another key.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{FORMATS, Format, Verdict};
use crate::credential::{Credential, Unlock};
use crate::error::Result;
use crate::spec::{Cost, Spec};
use crate::store::Store;

/// What a conversion is to end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// All of it encrypted.
    Encrypted,
    /// Only plaintext, without the format.
    Plain,
}

/// What is converted.
#[derive(Clone, Copy)]
pub struct InPlaceStores<'a> {
    /// What the data are in.
    pub data: &'a Arc<dyn Store>,
    /// What the header is in, where that is a store of its own.
    pub header: Option<&'a Arc<dyn Store>>,
}

impl<'a> InPlaceStores<'a> {
    /// What the header is in.
    pub fn header(&self) -> &'a Arc<dyn Store> {
        self.header.unwrap_or(self.data)
    }
}

impl<'a> From<&'a Arc<dyn Store>> for InPlaceStores<'a> {
    fn from(data: &'a Arc<dyn Store>) -> Self {
        Self { data, header: None }
    }
}

/// Agrees to the first change, which ends these keyslots, or refuses it with an error.
pub type Consent<'a> = dyn Fn(&[u32]) -> Result<()> + 'a;

/// How a volume is converted. What is `None` stays as it is, or takes the default. All but `zone` and `consent` are for a
/// [`Reencrypter`].
#[derive(Clone, Copy, Default)]
pub struct ReencryptionRequest<'a> {
    /// How many bytes are rewritten at a time, at most.
    pub zone: Option<u64>,
    /// Asked just before the first change, with the keyslots that end with the old key. Its error is returned, and nothing is
    /// changed.
    pub consent: Option<&'a Consent<'a>>,
    /// Cipher specification: `aes-xts-plain64`.
    pub cipher: Option<&'a str>,
    /// Size of the new volume key, in bits.
    pub key_bits: Option<u32>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// What saves the hot zone: `checksum`, `journal` or `none`. If nothing is said, it is checksums, unless a torn sector could not
    /// be put together again with them: then it is a journal.
    pub resilience: Option<&'a str>,
    /// Hash of the checksums, by its name: `sha256`.
    pub checksum: Option<&'a str>,
    /// From the end on.
    pub backward: bool,
    /// Hash of the new keyslot's key derivation, by its name.
    pub hash: Option<&'a str>,
    /// What the new keyslot's derivation is to cost; as the keyslot that opens, if nothing is said.
    pub cost: Cost<'a>,
    /// Unused bytes at the end of plaintext that make room for a header in front.
    pub room: Option<u64>,
}

impl ReencryptionRequest<'_> {
    /// Asks for consent to the first change, which ends these keyslots.
    ///
    /// # Errors
    /// Those of `consent`.
    pub(super) fn agreed(&self, ending: &[u32]) -> Result<()> {
        self.consent.map_or(Ok(()), |consent| consent(ending))
    }
}

/// What converts volumes of a format where they lie.
pub trait InPlaceConverter: Sync {
    /// A volume that is converted, or is to be, unlocked and checked. Writes nothing before `consent`. `towards` begins a conversion or
    /// turns one round; without it one goes on that has begun, whichever program began it.
    ///
    /// # Errors
    /// Those of unlocking; `Misuse` if there is nothing to do, `Unsupported` for a volume that this program cannot convert, `Malformed`.
    fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>>;

    /// Makes a volume of the plaintext in the store, opened by `first`. All of its data are still plaintext afterwards; a
    /// conversion encrypts them.
    ///
    /// # Errors
    /// `Unsupported` where this program has no way to; `Misuse` where there is no room; those of
    /// [`Format::create`](super::Format::create).
    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<()>;

    /// What it can do beyond that, where volumes can get another key.
    fn reencrypter(&self) -> Option<&dyn Reencrypter> {
        None
    }
}

/// A converter that also changes the key, takes all of a [`ReencryptionRequest`], and takes headers in stores of their own.
pub trait Reencrypter: Sync {
    /// Whether there is a volume in the store whose conversion goes on; nothing if there is no header of the format at all.
    ///
    /// # Errors
    /// `Malformed` and `Unsupported` for a header that cannot be read; `Io`.
    fn status(&self, header: &dyn Store) -> Result<Option<bool>>;

    /// How long a new store has to be that takes the header of such a conversion of `data`, in bytes.
    ///
    /// # Errors
    /// Those of reading the header in front of the data.
    fn new_header_len(&self, data: &dyn Store, towards: Towards) -> Result<u64>;

    /// Begins to rewrite a volume with another key, and with another cipher or sector size if asked for. The new key gets a keyslot
    /// that opens with the same passphrase.
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

/// A conversion, ready to begin or to go on.
pub trait InPlaceConversion {
    /// Bytes that are as they are to be, and all there are.
    fn progress(&self) -> (u64, u64);

    /// The keyslots that open the old key alone, and end with it.
    fn ending(&self) -> &[u32] {
        &[]
    }

    /// Goes on to the end, or until `cancel` says to stop: what is done then stays, and the volume can be used and gone on with.
    /// `progress` is told the bytes that are done and all there are.
    ///
    /// # Errors
    /// `Cancelled`; `Io`, after which it can be gone on with too.
    fn run(self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()>;
}

/// The format of what is in the store, if it has a converter.
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

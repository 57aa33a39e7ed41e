//! What converts volumes where they lie, whole zones at a time: plaintext into ciphertext, and back. LUKS2, whose reencryption does
//! more, has a way of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{FORMATS, Format, Verdict};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::store::Store;

/// What a conversion is to end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// All of it encrypted.
    Encrypted,
    /// Only plaintext, without the format.
    Plain,
}

/// What converts volumes of a format where they lie.
pub trait InPlaceConverter: Sync {
    /// A volume that is converted, or is to be, unlocked and checked. Writes nothing. `towards` begins a conversion or turns one round;
    /// without it one goes on that has begun, whichever program began it. `zone` is how many bytes are rewritten at a time, at most.
    ///
    /// # Errors
    /// Those of unlocking; `Misuse` if there is nothing to do, `Unsupported` for a volume that this program cannot convert, `Malformed`.
    fn conversion(
        &self,
        store: &Arc<dyn Store>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        zone: Option<u64>,
    ) -> Result<Box<dyn InPlaceConversion>>;

    /// Makes a volume of the plaintext in the store, opened by `first`. All of its data are still plaintext afterwards; a
    /// conversion encrypts them.
    ///
    /// # Errors
    /// `Unsupported` where the format or this program has no way to; `Misuse` where there is no room; those of
    /// [`Format::create`](super::Format::create).
    fn begin_encryption(&self, _store: &Arc<dyn Store>, _spec: &Spec<'_>, _first: &[Credential]) -> Result<()> {
        Err(Error::unsupported("encrypting existing data in place"))
    }
}

/// A conversion, ready to begin or to go on.
pub trait InPlaceConversion {
    /// Bytes that are as they are to be, and all there are.
    fn progress(&self) -> (u64, u64);

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

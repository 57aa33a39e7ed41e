//! Reencryption as an in-place conversion.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    Beginning, HeaderAndData, Reencryption, ReencryptionState, VolumeKeys, begin, begin_decryption,
    begin_detached_encryption, begin_encryption, header_len, in_use, moves_header, status,
};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::in_place::{
    InPlaceConversion, InPlaceConverter, InPlaceStores, Reencrypter, ReencryptionRequest, Towards,
};
use crate::formats::luks2::Luks2;
use crate::formats::luks2::metadata::{MetadataSegment, Size};
use crate::formats::luks2::read::{ReadHeader, read};
use crate::spec::Spec;
use crate::store::{FileStore, InUseReencryption, Lender, Store};
use crate::volume::Volume;

/// The size of the store of a new detached header, in bytes: cryptsetup's default.
const NEW_HEADER: u64 = 16 << 20;

impl InPlaceConverter for Luks2 {
    fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let both = HeaderAndData::of(stores);
        lender_must_follow(&both, towards, request)?;
        let ending = match towards {
            // Half a header, left by an interruption, cannot be read.
            Some(Towards::Plain) if both.detached && moves_header(both.header, both.data)? => {
                request.agreed(&[])?;
                begin_decryption(both.header, both.data, with, request)?;
                Vec::new()
            }
            Some(Towards::Plain) => carry_out(begin(&both, with, request, true)?, &both, request)?,
            // The volume was created when the conversion began.
            Some(Towards::Encrypted) | None => Vec::new(),
        };
        resumed(both, with, request, ending)
    }

    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<()> {
        let both = HeaderAndData::of(stores);
        lender_must_follow(&both, Some(Towards::Encrypted), request)?;
        if both.detached {
            return carry_out(begin_detached_encryption(&both, spec, first, request)?, &both, request).map(drop);
        }
        let room = request.room.ok_or_else(|| Error::misuse("the header needs room"))?;
        request.agreed(&[])?;
        begin_encryption(both.data, room, spec, first, request)
    }

    fn reencrypter(&self) -> Option<&dyn Reencrypter> {
        Some(self)
    }
}

impl Reencrypter for Luks2 {
    fn status(&self, header: &dyn Store) -> Result<Option<bool>> {
        status(header)
    }

    fn new_header_len(&self, data: &dyn Store, towards: Towards) -> Result<u64> {
        match towards {
            Towards::Encrypted => Ok(NEW_HEADER),
            Towards::Plain => header_len(data),
        }
    }

    fn reencryption<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let both = HeaderAndData::of(stores);
        lender_must_follow(&both, None, request)?;
        let ending = carry_out(begin(&both, with, request, false)?, &both, request)?;
        resumed(both, with, request, ending)
    }

    fn may_reencrypt_in_use(&self, volume: &Volume, request: &InUseReencryption) -> Result<()> {
        in_use::must_follow(volume, request)
    }

    fn reencrypt_in_use(
        &self,
        volume: &Volume,
        with: &Unlock<'_>,
        request: &InUseReencryption,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        in_use::run(volume, with, request, progress, cancel)
    }
}

/// If the volume is in use by a process that lends it: asks whether it can follow, before anything is changed.
fn lender_must_follow(
    stores: &HeaderAndData<'_>,
    towards: Option<Towards>,
    request: &ReencryptionRequest<'_>,
) -> Result<()> {
    let Some(lender) = lender(stores) else { return Ok(()) };
    let refused = |why: &str| {
        Err(Error::unsupported(format!("reencrypting it while it is in use: {why}"))
            .hint("Unmount it first. Nothing was changed."))
    };
    match towards {
        _ if stores.detached => return refused("its header is detached"),
        Some(Towards::Encrypted) => return refused("it already is a volume"),
        Some(Towards::Plain) => return refused("it needs another file for the header"),
        None => {}
    }
    if request.resilience == Some("none") {
        return refused("its zones would have no protection");
    }
    let header = read(stores.header)?;
    lender.may_reencrypt(&asked_for(&header, stores, request)?)
}

/// The process that lends the data, if the volume is in use.
fn lender<'a>(stores: &HeaderAndData<'a>) -> Option<&'a dyn Lender> {
    stores.data.file().and_then(FileStore::lender)
}

/// What the lender is asked for.
fn asked_for(
    header: &ReadHeader,
    stores: &HeaderAndData<'_>,
    request: &ReencryptionRequest<'_>,
) -> Result<InUseReencryption> {
    let start = header.metadata.segments.values().map(|segment| segment.offset.0).min().unwrap_or_default();
    let stored = stores.data.len();
    let len = match (ReencryptionState::of(&header.metadata, stored)?, header.metadata.segments.values().next()) {
        (Some(state), _) => state.size,
        (None, Some(MetadataSegment { size: Size::Fixed(size), .. })) => *size,
        (None, _) => stored.saturating_sub(start),
    };
    Ok(InUseReencryption { start, len, zone: request.zone, rate: request.rate })
}

impl<'a> HeaderAndData<'a> {
    fn of(stores: InPlaceStores<'a>) -> Self {
        Self { header: &**stores.header(), data: &**stores.data, detached: stores.header.is_some() }
    }
}

/// Begins it, once the caller consents. Returns the keyslots that will be removed.
fn carry_out(beginning: Beginning, stores: &HeaderAndData<'_>, request: &ReencryptionRequest<'_>) -> Result<Vec<u32>> {
    request.agreed(&beginning.ending)?;
    beginning.edit.carry_out(stores.header)?;
    Ok(beginning.ending)
}

fn resumed<'a>(
    stores: HeaderAndData<'a>,
    with: &Unlock<'_>,
    request: &ReencryptionRequest<'_>,
    ending: Vec<u32>,
) -> Result<Box<dyn InPlaceConversion + 'a>> {
    let reencryption = Reencryption::resume(stores, with, request.zone)?.at_rate(request.rate);
    let by_lender = match lender(&stores) {
        Some(lender) => Some((lender, asked_for(&reencryption.record.header, &stores, request)?)),
        None => None,
    };
    Ok(Box::new(Begun { reencryption, ending, by_lender }))
}

/// A reencryption that has begun.
struct Begun<'a> {
    reencryption: Reencryption<'a>,
    ending: Vec<u32>,
    /// The process that uses the volume and does the work, and what it is asked for.
    by_lender: Option<(&'a dyn Lender, InUseReencryption)>,
}

impl InPlaceConversion for Begun<'_> {
    fn progress(&self) -> (u64, u64) {
        let progress = self.reencryption.progress();
        (progress.done, progress.size)
    }

    fn ending(&self) -> &[u32] {
        &self.ending
    }

    fn run(self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        let Some((lender, request)) = self.by_lender else { return self.reencryption.run(progress, cancel) };
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
        }
        let VolumeKeys { previous, last, same } = &self.reencryption.keys;
        let last = last.as_ref().filter(|_| !same);
        let keys: Vec<_> = [previous.as_ref(), last].into_iter().flatten().collect();
        lender.reencrypt(&request, &keys, progress, cancel)
    }
}

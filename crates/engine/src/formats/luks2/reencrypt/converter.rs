//! Reencryption as an in-place conversion.

use std::sync::atomic::{AtomicBool, Ordering};

use claviger_crypto::Secret;

use super::{
    Beginning, HeaderAndData, Record, Reencryption, ReencryptionState, VolumeKeys, begin, begin_decryption,
    begin_detached_encryption, begin_encryption, digest_of, header_len, moves_header, status,
};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::VolumeInUse;
use crate::formats::in_place::{
    InPlaceConversion, InPlaceConverter, InPlaceStores, KeyProcesses, KeylessConversion, Reencrypter,
    ReencryptionRequest, Towards,
};
use crate::formats::luks2::metadata::{MetadataSegment, Size};
use crate::formats::luks2::read::{ReadHeader, read};
use crate::formats::luks2::{Luks2, NAME};
use crate::key_process::volume::Keys;
use crate::spec::Spec;
use crate::store::{Handover, InUseConversion, Lender, Store};
use crate::volume::{ConversionKind, VolumeEncryption};

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
        must_be_possible_in_use(&both, towards, request)?;
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
        must_be_possible_in_use(&both, Some(Towards::Encrypted), request)?;
        if both.detached {
            return carry_out(begin_detached_encryption(&both, spec, first, request)?, &both, request).map(drop);
        }
        let room = request.room.ok_or_else(|| Error::misuse("the header needs room"))?;
        request.agreed(&[])?;
        begin_encryption(both.data, room, spec, first, request)
    }

    fn convert_in_use(
        &self,
        volume: VolumeInUse<'_>,
        with: &Unlock<'_>,
        request: &InUseConversion,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let stores = HeaderAndData::of(InPlaceStores { data: volume.data(), header: volume.header() });
        let reencryption = Reencryption::resume(stores, with, None)?.at_rate(request.rate);
        reencryption.followed_by(&volume, request.zone)?.run(progress, cancel)
    }

    fn convert_with_key_process(
        &self,
        volume: VolumeInUse<'_>,
        keyless: &KeylessConversion,
        new: KeyProcesses<'_>,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let stores = HeaderAndData::of(InPlaceStores { data: volume.data(), header: volume.header() });
        let with = |key_process| Reencryption::with_key_process(stores, keyless, key_process);
        let reencryption = with(new.next)?.followed_by(&volume, keyless.request.zone)?;
        volume.must_match(reencryption.layout()?)?;
        drop(reencryption);
        let mut reencryption = with(new.current)?.followed_by(&volume, keyless.request.zone)?;
        reencryption.exchange(new.exchange)?;
        reencryption.run(progress, cancel)
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

    fn must_be_possible_in_use(
        &self,
        stores: InPlaceStores<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<()> {
        must_be_possible_in_use(&HeaderAndData::of(stores), towards, request)
    }

    fn reencryption<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let both = HeaderAndData::of(stores);
        must_be_possible_in_use(&both, None, request)?;
        let ending = carry_out(begin(&both, with, request, false)?, &both, request)?;
        resumed(both, with, request, ending)
    }
}

/// If the volume is in use by a process that lends it: refuses what that process cannot do, before anything is changed.
fn must_be_possible_in_use(
    stores: &HeaderAndData<'_>,
    towards: Option<Towards>,
    request: &ReencryptionRequest<'_>,
) -> Result<()> {
    const BEGIN: &str = "Unmount it. Begin with `claviger reencrypt --decrypt --init-only --header FILE VOLUME`. Then mount it with \
                         --header, and continue with --resume.";
    const UNMOUNT: &str = "Unmount it first.";
    if lender(stores).is_none() {
        return Ok(());
    }
    let begun = read(stores.header).and_then(|header| ReencryptionState::of(&header.metadata, stores.data.len()));
    let (why, hint) = match towards {
        _ if stores.detached && stores.header.file().is_none() => ("its header is in a remote store", UNMOUNT),
        Some(Towards::Encrypted) => ("an encryption cannot begin", UNMOUNT),
        Some(Towards::Plain) if !stores.detached || moves_header(stores.header, stores.data)? => {
            ("the decryption moves its header to a separate file", BEGIN)
        }
        _ if request.resilience == Some("none") => ("its zones would have no protection", UNMOUNT),
        // What cannot be read, the conversion itself reports.
        _ => match begun.ok().flatten().and_then(|state| state.not_in_use()) {
            Some(why) => (why, UNMOUNT),
            None => return Ok(()),
        },
    };
    let what = format!("converting it while it is in use: {why}");
    Err(Error::unsupported(what).hint(format!("Nothing was changed. {hint}")))
}

/// The process that lends the data, if the volume is in use.
fn lender<'a>(stores: &HeaderAndData<'a>) -> Option<&'a dyn Lender> {
    stores.data.lender()
}

/// What the lender is asked for.
fn asked_for(
    header: &ReadHeader,
    stores: &HeaderAndData<'_>,
    request: &ReencryptionRequest<'_>,
) -> Result<InUseConversion> {
    let stored = stores.data.len();
    let len = match (ReencryptionState::of(&header.metadata, stored)?, header.metadata.segments.values().next()) {
        (Some(state), _) => state.size,
        (None, Some(MetadataSegment { size: Size::Fixed(size), .. })) => *size,
        (None, segment) => stored.saturating_sub(segment.map_or(0, |segment| segment.offset.0)),
    };
    Ok(InUseConversion { len, zone: request.zone, rate: request.rate })
}

impl<'a> HeaderAndData<'a> {
    fn of(stores: InPlaceStores<'a>) -> Self {
        Self { header: &**stores.header(), data: &**stores.data, detached: stores.header.is_some() }
    }
}

/// Begins it, once the process that uses the volume, if there is one, and the caller agree. Returns the keyslots that will be
/// removed.
fn carry_out(beginning: Beginning, stores: &HeaderAndData<'_>, request: &ReencryptionRequest<'_>) -> Result<Vec<u32>> {
    if let (Some(lender), Some(key)) = (lender(stores), &beginning.key) {
        let asked = asked_for(&read(stores.header)?, stores, request)?;
        lender.may_convert(&asked, &handover(stores, &[key]))?;
    }
    request.agreed(&beginning.ending)?;
    beginning.edit.carry_out(stores.header)?;
    Ok(beginning.ending)
}

fn handover<'a>(stores: &HeaderAndData<'a>, keys: &'a [&'a Secret]) -> Handover<'a> {
    Handover { keys, header: stores.header.file().filter(|_| stores.detached) }
}

fn resumed<'a>(
    stores: HeaderAndData<'a>,
    with: &Unlock<'_>,
    request: &ReencryptionRequest<'_>,
    ending: Vec<u32>,
) -> Result<Box<dyn InPlaceConversion + 'a>> {
    let reencryption = Reencryption::resume(stores, with, request.zone)?.at_rate(request.rate);
    let request = asked_for(&reencryption.record.header, &stores, request)?;
    Ok(Box::new(Begun { reencryption, ending, request, lender: lender(&stores) }))
}

/// A reencryption that has begun.
struct Begun<'a> {
    reencryption: Reencryption<'a>,
    ending: Vec<u32>,
    /// What a process that uses the volume is asked for.
    request: InUseConversion,
    /// The process that uses the volume and does the work.
    lender: Option<&'a dyn Lender>,
}

impl InPlaceConversion for Begun<'_> {
    fn progress(&self) -> (u64, u64) {
        let progress = self.reencryption.progress();
        (progress.done, progress.size)
    }

    fn kind(&self) -> ConversionKind {
        self.reencryption.state().mode
    }

    fn ending(&self) -> &[u32] {
        &self.ending
    }

    fn run(self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        let Some(lender) = self.lender else { return self.reencryption.run(progress, cancel) };
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
        }
        let VolumeKeys { previous, last, same } = &self.reencryption.keys;
        let stores = &self.reencryption.record.stores;
        let last = last.as_ref().filter(|_| !same);
        let keys: Vec<_> = [previous.as_ref(), last].into_iter().flatten().collect();
        lender.convert(&self.request, &handover(stores, &keys), progress, cancel)
    }

    fn into_keys(self: Box<Self>) -> Result<(KeylessConversion, Keys)> {
        let Self { reencryption, ending, request, .. } = *self;
        let Record { header, state, .. } = &reencryption.record;
        let encryption =
            state.last.segment.encryption.as_deref().map_or_else(VolumeEncryption::none, |specification| {
                let (cipher, mode) = specification.split_once('-').unwrap_or((specification, ""));
                VolumeEncryption { format: NAME.to_owned(), cipher: cipher.to_owned(), mode: mode.to_owned() }
            });
        let header = digest_of(&header.metadata)?;
        let keyless = KeylessConversion { header, kind: state.mode, encryption, ending, request };
        Ok((keyless, reencryption.ciphers.keys()))
    }
}

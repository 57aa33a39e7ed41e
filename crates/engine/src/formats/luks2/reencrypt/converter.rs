//! Reencryption as an in-place conversion.

use std::sync::atomic::AtomicBool;

use super::{
    Beginning, HeaderAndData, Reencryption, begin, begin_decryption, begin_detached_encryption, begin_encryption,
    header_len, moves_header, status,
};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::formats::in_place::{
    InPlaceConversion, InPlaceConverter, InPlaceStores, Reencrypter, ReencryptionRequest, Towards,
};
use crate::formats::luks2::Luks2;
use crate::spec::Spec;
use crate::store::Store;

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
        let ending = carry_out(begin(&both, with, request, false)?, &both, request)?;
        resumed(both, with, request, ending)
    }
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
    let reencryption = Reencryption::resume(stores, with, request.zone)?;
    Ok(Box::new(Begun { reencryption, ending }))
}

/// A reencryption that has begun.
struct Begun<'a> {
    reencryption: Reencryption<'a>,
    ending: Vec<u32>,
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
        self.reencryption.run(progress, cancel)
    }
}

//! Changes what opens a volume: encrypts its headers anew and keeps the volume key.
//!
//! As in TrueCrypt itself (7.1a, CoreBase.cpp, `CoreBase::ChangePassword`), an old copy of a header, such as a header backup, still
//! opens the volume with the old password. Only the 512 bytes of the headers are written; the rest of their areas is random
//! already.

use super::opened::{OpenedVolumeHeader, restore_first};
use super::seal::Seal;
use super::trials::OpenedHeader;
use super::{Family, backup, by_name, check_pim, create, keyfiles, resize, system, verify};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::formats::editor::{fixed_size, none_lost};
use crate::formats::takes::check_new;
use crate::formats::{HeaderBackup, HeaderEditor, NewCredential, Prepared, Resizing, RestoreFrom, Verified, wiped};
use crate::store::Store;

impl HeaderEditor for Family {
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
        wiped(self.name, change(self, store, with, new))
    }

    fn back_up(&self, store: &dyn Store, with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup> {
        wiped(self.name, backup::back_up(self, store, with, hidden))
    }

    fn back_up_under(&self, store: &dyn Store, with: &Unlock<'_>, new: &[Credential]) -> Result<HeaderBackup> {
        wiped(self.name, backup::back_up_under(self, store, with, new))
    }

    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
        wiped(self.name, backup::restore(self, store, from, with, unproven))
    }

    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
        wiped(self.name, verify::verify(self, store, with))
    }

    fn repair(&self, _store: &dyn Store, _with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared> {
        none_lost(lost)?;
        let error = Error::unsupported("repairing headers that are encrypted as a whole");
        wiped(
            self.name,
            Err(error.hint("There may be a backup at the end of the volume.").advise(Advice::RestoreEmbedded)),
        )
    }

    fn resize(
        &self,
        store: &dyn Store,
        _data: Option<&dyn Store>,
        with: Option<&Unlock<'_>>,
        size: u64,
    ) -> Result<Resizing> {
        let with = with.ok_or_else(fixed_size)?;
        wiped(self.name, resize::resize(self, store, with, size))
    }

    fn size_sealed(&self) -> bool {
        true
    }
}

fn change(family: &Family, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
    check_new(family, new)?;
    let password = keyfiles::password(family, new.credentials)?;
    check_pim(new.pim)?;
    let kdf = new.hash.map(|name| by_name("hash", family.kdfs, |k| k.name, name)).transpose()?;
    if let Some(kdf) = kdf.filter(|k| !k.creatable) {
        return Err(Error::misuse(format!("{} is no longer used for new headers", kdf.name)));
    }
    let mut opened = OpenedVolumeHeader::of_volume_or_system(family, store, &Unlock { truncated: false, ..*with })?;
    if opened.data_end() > store.len() {
        return Err(
            Error::misuse("the file was cut short; nothing was changed").hint("Find a complete copy of the file.")
        );
    }
    if opened.position.backup {
        return Err(restore_first(opened.position));
    }
    let OpenedHeader { suite, mode, derivation, .. } = opened.found;
    let (of_system, new_pim) = (opened.position.system, new.pim.or(with.pim));
    if opened.found.fields.boots {
        let changed = kdf.filter(|kdf| !std::ptr::eq(*kdf, derivation.kdf));
        let loader = if of_system { system::Loader::on(store)? } else { system::Loader::of_hidden() };
        loader.check(new.credentials, changed, new_pim)?;
    }
    let derivation = match (kdf, new.pim) {
        (None, None) => derivation,
        (kdf, _) => kdf.unwrap_or(derivation.kdf).derivation(new_pim, of_system),
    };
    create::not_too_cheap(&derivation, new_pim, new.credentials, of_system)?;
    let seal =
        Seal { suite, mode, derivation, password: &password, memory: with.memory, cancelled: &|| with.cancelled() };
    let steps = opened.steps(family, store, with, &seal)?;
    Ok(opened.prepared(family, &derivation, steps))
}

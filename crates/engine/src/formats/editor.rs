//! Changing, saving, restoring and checking headers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::change::{
    HeaderAttributes, HeaderBackup, NewCredential, Prepared, Protection, RecoveryPassword, Removal, RestoreFrom,
    TokenChange, Verified,
};
use super::resizing::Resizing;
use crate::credential::Unlock;
use crate::error::{Error, Result};
use crate::store::Store;

/// What changes a format's headers. It builds [`Edit`](crate::edit::Edit)s and carries none out: nothing here writes.
///
/// It belongs to the format and not to a header that was read, because headers are restored where there are none any more.
pub trait HeaderEditor: Sync {
    /// What is to be written so that `new` opens the volume that `with` opens now, and `with` does not any more. The volume's
    /// key, its data and all other volumes in the store stay as they are.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for new credentials that the format does not take, and where only a backup of the
    /// header opens: that is to be restored first.
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared>;

    /// The contents of a header backup, encrypted with new salt: the header that `with` opens and, if given, that of the
    /// hidden volume which `hidden` opens.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if `hidden` opens no hidden volume, or `with` and `hidden` open the same one.
    fn back_up(&self, store: &dyn Store, with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup>;

    /// What is to be written so that the header which `with` opens in a backup opens the volume again.
    ///
    /// # Errors
    /// `WrongCredential` if nothing in the backup opens; `NotThisFormat` for what is no header backup; `Misuse` if it does not
    /// fit the volume, or nothing shows that it belongs to it and `unproven` is false.
    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared>;

    /// Whether there are header backups: [`HeaderEditor::back_up`] and [`HeaderEditor::restore`].
    fn has_backups(&self) -> bool {
        true
    }

    /// Looks at every copy of the header, and at what should look random.
    ///
    /// # Errors
    /// Those of `Header::unlock`: some copy has to open.
    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified>;

    /// What is to be written so that `new` opens the volume too, by a keyslot of its own: `at`, or the first free one.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if no keyslot is free, or `at` is not; `Unsupported` where there are no keyslots.
    fn add(
        &self,
        _store: &dyn Store,
        _with: &Unlock<'_>,
        _new: &NewCredential<'_>,
        _at: Option<u32>,
    ) -> Result<Prepared> {
        Err(Error::unsupported("keyslots: this format has none"))
    }

    /// What is to be written so that a keyslot opens nothing any more, and cannot be brought back.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for the last keyslot, unless `last` allows it; `Unsupported` where there are none.
    fn remove(&self, _store: &dyn Store, _which: Removal<'_>, _last: bool) -> Result<Prepared> {
        Err(Error::unsupported("keyslots: this format has none"))
    }

    /// What is to be written so that the header says what `to` says, and everything else as it does now. Where a header is
    /// [sealed](HeaderEditor::sealed), `with` opens the volume.
    ///
    /// # Errors
    /// `Misuse` for what the format does not have; `Unsupported`; those of `Header::unlock` where it is sealed.
    fn set(&self, _store: &dyn Store, _with: Option<&Unlock<'_>>, _to: &HeaderAttributes<'_>) -> Result<Prepared> {
        Err(Error::unsupported("labels and UUIDs: this format has none that can be changed"))
    }

    /// Whether the header is sealed as a whole, so that every change of it takes a credential.
    fn sealed(&self) -> bool {
        false
    }

    /// What is to be written so that the volume's key is protected in another way. Nothing if it is already.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` where nobody could open the volume any more, or a keyslot cannot follow; `Unsupported`.
    fn protect(&self, _store: &dyn Store, _with: &Unlock<'_>, _how: Protection) -> Result<Prepared> {
        Err(Error::unsupported("suspending protection or renewing the intermediate key: this format has neither"))
    }

    /// The recovery passwords of the volume, which whoever opens it can read again.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Unsupported` where there are none.
    fn recovery_passwords(&self, _store: &dyn Store, _with: &Unlock<'_>) -> Result<Vec<RecoveryPassword>> {
        Err(Error::unsupported("recovery passwords: this format has none"))
    }

    /// What is to be written so that what is damaged in the header is right again, and the keyslots `lost` are out of use: those of
    /// which a damaged record says nothing that can be true. `with` helps where only a credential tells what is right; what it has
    /// of progress and cancellation counts for the search for what is left of a header.
    ///
    /// # Errors
    /// `Malformed` where it cannot be; `Misuse` where a credential is needed and none is given, and for a keyslot that is not lost;
    /// `Unsupported`, also for keyslots without such records; those of `Header::unlock`; `Cancelled`.
    fn repair(&self, _store: &dyn Store, _with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared> {
        none_lost(lost)?;
        Err(Error::unsupported("repairing headers of this format"))
    }

    /// Whether the header can be read, saved and restored without any credential, since only keys are encrypted in it.
    fn public(&self) -> bool {
        false
    }

    /// The tokens in the header, by their numbers: what other programs keep there to find a passphrase.
    ///
    /// # Errors
    /// Those of `Format::open`; `Unsupported` where there are none.
    fn tokens(&self, _store: &dyn Store) -> Result<BTreeMap<u32, Value>> {
        Err(Error::unsupported("tokens: this format has none"))
    }

    /// What is to be written so that the tokens are changed.
    ///
    /// # Errors
    /// `Misuse` for what is no token, or has no place; `Unsupported` where there are none.
    fn change_tokens(&self, _store: &dyn Store, _change: TokenChange<'_>) -> Result<Prepared> {
        Err(Error::unsupported("tokens: this format has none"))
    }

    /// What is to be written so that the volume is one of another format, with the same key, data and keyslots. `detached`
    /// says that the header has the store to itself.
    ///
    /// # Errors
    /// `Misuse` where the other format cannot say what the header says; `Unsupported` for any other pair of formats.
    fn convert(&self, _store: &dyn Store, to: &str, _detached: bool) -> Result<Prepared> {
        Err(Error::unsupported(format!("converting headers of this format to {to}")))
    }

    /// What is to be done so that the volume's plaintext has `size` bytes. `data` is what the data are in, where the header is
    /// detached. Where the size is [sealed](HeaderEditor::size_sealed), `with` opens the volume; with [`Unlock::protect`] a hidden
    /// volume that is there is a reason to refuse.
    ///
    /// # Errors
    /// `Misuse` for a size that cannot be, a hidden volume, or one that would be lost; `Unsupported` where the size is sealed and
    /// `with` is none; those of `Header::unlock`.
    fn resize(
        &self,
        _store: &dyn Store,
        _data: Option<&dyn Store>,
        _with: Option<&Unlock<'_>>,
        _size: u64,
    ) -> Result<Resizing> {
        Err(fixed_size())
    }

    /// Whether the size can be changed only by whoever opens the volume.
    fn size_sealed(&self) -> bool {
        false
    }
}

/// Fails for lost keyslots, of a format whose keyslots have no records that could be damaged.
pub(super) fn none_lost(lost: &[u32]) -> Result<()> {
    match lost {
        [] => Ok(()),
        _ => Err(Error::unsupported("disabling damaged keyslots of this format")),
    }
}

pub(super) fn fixed_size() -> Error {
    Error::unsupported("resizing volumes of this format")
}

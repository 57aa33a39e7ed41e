//! Changes, backs up, restores and checks headers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::change::{
    HeaderAttributes, HeaderBackup, NewCredential, Prepared, Protection, RecoveryPassword, Removal, RestoreFrom,
    TokenChange, Verified,
};
use super::resizing::Resizing;
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::store::Store;

/// The editor of a format's headers. It builds [`Edit`](crate::edit::Edit)s and does not carry them out: nothing here writes.
///
/// It belongs to the format and not to a header that was read, because headers can be restored where none exist any more.
pub trait HeaderEditor: Sync {
    /// Prepares a change after which `new` opens the volume instead of `with`. The volume key, the data and all other volumes in
    /// the store stay the same.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for new credentials that the format does not support, and if only a backup of the header
    /// opens: it must be restored first.
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared>;

    /// Returns the contents of a header backup, encrypted with new salt: the header that `with` opens and, if `hidden` is given,
    /// the hidden volume's header that this opens.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if `hidden` opens no hidden volume, or `with` and `hidden` open the same volume.
    fn back_up(&self, store: &dyn Store, with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup>;

    /// Prepares the restoration of the header that `with` opens in a backup.
    ///
    /// # Errors
    /// `WrongCredential` if nothing in the backup opens; `NotThisFormat` for a file that is not a header backup; `Misuse` if it
    /// does not fit the volume, or nothing proves that it belongs to the volume and `unproven` is false.
    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared>;

    /// Whether the format has header backups: [`HeaderEditor::back_up`] and [`HeaderEditor::restore`].
    fn has_backups(&self) -> bool {
        true
    }

    /// Checks every copy of the header, and whether the areas look random that should.
    ///
    /// # Errors
    /// Those of `Header::unlock`: one copy must open.
    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified>;

    /// Prepares a new keyslot for `new`: number `at`, or the first free one.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if no keyslot is free, or `at` is not; `Unsupported` if the format has no keyslots.
    fn add(
        &self,
        _store: &dyn Store,
        _with: &Unlock<'_>,
        _new: &NewCredential<'_>,
        _at: Option<u32>,
    ) -> Result<Prepared> {
        Err(no_keyslots())
    }

    /// Prepares a change after which keyslot `number` holds the passphrase in `new`, and its only token is the one in `new`. `with`
    /// may open any keyslot. The old keyslot and token work until the new ones do.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if the keyslot has not exactly one token, which is only for this keyslot; `Unsupported` if
    /// the format has no tokens.
    fn replace(
        &self,
        _store: &dyn Store,
        _with: &Unlock<'_>,
        _new: &NewCredential<'_>,
        _number: u32,
    ) -> Result<Prepared> {
        Err(Error::unsupported("tokens: this format has none"))
    }

    /// Prepares the irreversible removal of a keyslot.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for the last keyslot, unless `last` allows it; `Unsupported` if the format has none.
    fn remove(&self, _store: &dyn Store, _which: Removal<'_>, _last: bool) -> Result<Prepared> {
        Err(no_keyslots())
    }

    /// Prepares a change of the attributes in `to`; all others stay the same. If the header is [sealed](HeaderEditor::sealed),
    /// `with` must open the volume.
    ///
    /// # Errors
    /// `Misuse` for attributes that the format does not have; `Unsupported`; those of `Header::unlock` if the header is sealed.
    fn set(&self, _store: &dyn Store, _with: Option<&Unlock<'_>>, _to: &HeaderAttributes<'_>) -> Result<Prepared> {
        Err(Error::unsupported("labels and UUIDs: this format has none that can be changed"))
    }

    /// Whether the whole header is sealed, so that every change takes a credential.
    fn sealed(&self) -> bool {
        false
    }

    /// Prepares a change of how the volume key is protected. Empty if it already is.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if nobody could open the volume any more, or a keyslot cannot be changed accordingly;
    /// `Unsupported`.
    fn protect(&self, _store: &dyn Store, _with: &Unlock<'_>, _how: Protection) -> Result<Prepared> {
        Err(Error::unsupported("suspending protection or renewing the intermediate key: this format has neither"))
    }

    /// Returns the recovery passwords of the volume, which anybody who opens it can read.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Unsupported` if the format has none.
    fn recovery_passwords(&self, _store: &dyn Store, _with: &Unlock<'_>) -> Result<Vec<RecoveryPassword>> {
        Err(Error::unsupported("recovery passwords: this format has none"))
    }

    /// Returns the numbers of the keyslots that are marked as a recovery key's, or open with a recovery password.
    ///
    /// # Errors
    /// Those of `Format::open`.
    fn recovery_keyslots(&self, _store: &dyn Store) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    /// Returns a header backup like [`HeaderEditor::back_up`], which opens with `new` instead of `with`, without a PIM.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for new credentials that the format does not support; `Unsupported` if a backup of the
    /// format opens with the volume's own credentials only.
    fn back_up_under(&self, _store: &dyn Store, _with: &Unlock<'_>, _new: &[Credential]) -> Result<HeaderBackup> {
        Err(Error::unsupported("a header backup with a password of its own: this format has none"))
    }

    /// Prepares the repair of a damaged header. Takes the keyslots `lost`, whose damaged records cannot be reconstructed, out of
    /// use. `with` is for cases that need a credential to find the right version. Its progress and cancellation also apply to the
    /// search for remains of a header.
    ///
    /// # Errors
    /// `Malformed` if it cannot be repaired; `Misuse` if a credential is needed and none is given, and for a keyslot that is not
    /// lost; `Unsupported`, also for keyslots without such records; those of `Header::unlock`; `Cancelled`.
    fn repair(&self, store: &dyn Store, with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared>;

    /// Whether the header can be read, backed up and restored without a credential, since only its keys are encrypted.
    fn public(&self) -> bool {
        false
    }

    /// Returns the tokens in the header, by number. Other programs store in them what they need to find a passphrase.
    ///
    /// # Errors
    /// Those of `Format::open`; `Unsupported` if the format has none.
    fn tokens(&self, _store: &dyn Store) -> Result<BTreeMap<u32, Value>> {
        Err(Error::unsupported("tokens: this format has none"))
    }

    /// Prepares a change of the tokens.
    ///
    /// # Errors
    /// `Misuse` for an invalid token, or one that does not fit; `Unsupported` if the format has none.
    fn change_tokens(&self, _store: &dyn Store, _change: TokenChange<'_>) -> Result<Prepared> {
        Err(Error::unsupported("tokens: this format has none"))
    }

    /// Prepares a conversion to another format, with the same key, data and keyslots. `detached` means that the store holds only
    /// the header.
    ///
    /// # Errors
    /// `Misuse` if the other format cannot express the header; `Unsupported` for any other pair of formats.
    fn convert(&self, _store: &dyn Store, to: &str, _detached: bool) -> Result<Prepared> {
        Err(Error::unsupported(format!("converting headers of this format to {to}")).advise(Advice::CopyVolume))
    }

    /// Prepares to resize the volume to a plaintext of `size` bytes. `data` is the data's store if the header is detached. If the
    /// size is [sealed](HeaderEditor::size_sealed), `with` must open the volume. With [`Unlock::protect`], a hidden volume is a
    /// reason to refuse.
    ///
    /// # Errors
    /// `Misuse` for an impossible size, for a hidden volume, or if one would be lost; `Unsupported` if the size is sealed and
    /// `with` is missing; those of `Header::unlock`.
    fn resize(
        &self,
        _store: &dyn Store,
        _data: Option<&dyn Store>,
        _with: Option<&Unlock<'_>>,
        _size: u64,
    ) -> Result<Resizing> {
        Err(fixed_size())
    }

    /// Whether changing the size takes a credential that opens the volume.
    fn size_sealed(&self) -> bool {
        false
    }
}

/// Fails if there are lost keyslots, for formats whose keyslots have no records that could be damaged.
pub(super) fn none_lost(lost: &[u32]) -> Result<()> {
    match lost {
        [] => Ok(()),
        _ => Err(Error::unsupported("disabling damaged keyslots of this format")),
    }
}

fn no_keyslots() -> Error {
    Error::unsupported("keyslots: this format has none").advise(Advice::ChangeCredential)
}

pub(super) fn fixed_size() -> Error {
    Error::unsupported("resizing volumes of this format").advise(Advice::CopyVolume)
}

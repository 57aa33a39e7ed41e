//! What makes new volumes.

use std::sync::Arc;

use claviger_crypto::Secret;
use serde::Serialize;

use super::{Facts, Format};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::spec::{Reserved, Spec};
use crate::store::Store;

/// What makes new volumes of a format. Those who want one call [`Format::create`], which checks first that the format takes
/// what is asked for.
pub trait Creator: Sync {
    /// Ciphers, hashes and sizes to choose from.
    fn choices(&self) -> Choices;

    /// What [`Format::create`] does.
    ///
    /// # Errors
    /// Those of [`Format::create`].
    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()>;

    /// How many bytes a new volume by `spec` takes in its store if its plaintext has `plain` bytes, or the next larger possible
    /// size.
    ///
    /// # Errors
    /// `Misuse` if no volume can have that size; `Unsupported` if the format cannot calculate it.
    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64>;

    /// Whether a new volume that is to open with these keyfiles needs a passphrase to be asked for, too.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// The cipher and the hash, as [`Unlock`] takes them, that open a volume which was created as `spec` says and of which `facts`
    /// are known: for formats without a header.
    fn opened_with(&self, facts: &Facts, spec: &Spec<'_>) -> (String, Option<String>) {
        let hash = facts.hash.as_deref().map(|hash| spec.hash.unwrap_or(hash).to_owned());
        // dm-crypt has a mode for a cipher's name alone.
        let mode = Some(&facts.mode).filter(|mode| !mode.is_empty()).map(|mode| format!("-{mode}"));
        (format!("{}{}", facts.cipher, mode.unwrap_or_default()), hash)
    }

    /// The contents of a new file of keys, for formats that take [`Parameter::FreshKeyfile`](super::takes::Parameter::FreshKeyfile).
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_keyfile(&self) -> Result<Secret> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// Such contents, encrypted so that `passphrase` opens them.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn locked_keyfile(&self, _contents: &Secret, _passphrase: &Secret) -> Result<Vec<u8>> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// A new recovery password, as text, for formats that take [`Parameter::RecoveryPassword`](super::takes::Parameter::RecoveryPassword). It opens a volume or a keyslot that is made
    /// with it as a [`Credential::Passphrase`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_password(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery passwords: this format has none"))
    }

    /// A new recovery key, as text, for formats that take [`Parameter::RecoveryKey`](super::takes::Parameter::RecoveryKey). A keyslot that is added with it as a
    /// [`Credential::Passphrase`] is marked as that of a recovery key.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_key(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery keys: this format has none"))
    }

    /// The name and the contents of a new startup key's file, for formats that take [`Parameter::StartupKey`](super::takes::Parameter::StartupKey). It opens a volume or a
    /// keyslot that is made with it as a [`Credential::Keyfile`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_startup_key(&self) -> Result<(String, Secret)> {
        Err(Error::unsupported("startup keys: this format has none"))
    }

    /// The reserved areas of a new volume in a store of `len` bytes, in the order of the offsets in
    /// [`crate::spec::ReservedAt::At`].
    ///
    /// # Errors
    /// Those of [`Format::create`] for a volume of that size.
    fn reserved(&self, _len: u64, _spec: &Spec<'_>) -> Result<Vec<Reserved>> {
        Ok(Vec::new())
    }

    /// What [`Format::hidden_room`] does, for formats that take [`Parameter::HiddenVolume`](super::takes::Parameter::HiddenVolume).
    ///
    /// # Errors
    /// Those of [`Format::hidden_room`].
    fn room_for_hidden(&self, _store: &Arc<dyn Store>, _outer: &Unlock<'_>) -> Result<HiddenRoom> {
        Err(Error::unsupported("hidden volumes: this format has none"))
    }

    /// What [`Format::create_hidden`] does.
    ///
    /// # Errors
    /// Those of [`Format::create_hidden`].
    fn create_hidden_volume(
        &self,
        _store: &Arc<dyn Store>,
        _outer: &Unlock<'_>,
        _spec: &Spec<'_>,
        _first: &[Credential],
    ) -> Result<()> {
        Err(Error::unsupported("hidden volumes: this format has none"))
    }
}

/// What makes new volumes of the format.
///
/// # Errors
/// `Unsupported` where nothing does.
pub fn creator_of(format: &dyn Format) -> Result<&dyn Creator> {
    format.creator().ok_or_else(|| not_created(format.name()))
}

/// The error for creating a volume of a format that this program only opens.
pub(super) fn not_created(name: &str) -> Error {
    Error::unsupported(format!("creating {name} volumes")).hint("Create a LUKS or VeraCrypt volume instead.")
}

/// The room for a hidden volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HiddenRoom {
    /// Size of the largest plaintext that is safe, in bytes.
    pub largest: u64,
    /// Size of the smallest one, in bytes.
    pub smallest: u64,
    /// The file system of the outer volume.
    pub filesystem: &'static str,
    /// Where its free space begins, in bytes of the outer volume.
    pub free_at: u64,
    /// Size of the outer volume's plaintext, in bytes.
    pub outer_size: u64,
    /// Whether what is stored there now looks random. If not, as where the outer volume was never filled, a hidden volume stands
    /// out.
    pub looks_random: bool,
}

/// What a format can create.
#[derive(Clone, Debug, Serialize)]
pub struct Choices {
    /// Ciphers and cascades, the default first.
    pub ciphers: Vec<&'static str>,
    /// Hashes, the default first.
    pub hashes: Vec<&'static str>,
    /// Whether these are all. Elsewhere everything is taken that dm-crypt has a name for.
    #[serde(skip)]
    pub complete: bool,
    /// The smallest volume, in bytes, headers included.
    pub min_len: u64,
}

/// Bytes of store for `plain` bytes of plaintext, in whole sectors, behind `offset` bytes of header.
pub(super) fn stored_behind(offset: u64, plain: u64, spec: &Spec<'_>) -> Result<u64> {
    let len = plain.checked_next_multiple_of(spec.sector_size.unwrap_or(512).max(512).into());
    let len = len.and_then(|len| len.checked_add(offset));
    len.ok_or_else(|| Error::misuse(format!("{plain} bytes from byte {offset} on exceed 2^64")))
}

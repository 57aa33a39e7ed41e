//! Creates volumes.

use std::sync::Arc;

use claviger_crypto::Secret;
use serde::Serialize;

use super::{Facts, Format};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::spec::{Reserved, Spec};
use crate::store::Store;

/// The creator of a format's volumes. Callers use [`Format::create`], which checks first that the format supports the request.
pub trait Creator: Sync {
    /// The choice of ciphers, hashes and sizes.
    fn choices(&self) -> Choices;

    /// Implements [`Format::create`].
    ///
    /// # Errors
    /// Those of [`Format::create`].
    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()>;

    /// Returns the store size of a new volume according to `spec`, in bytes, for a plaintext of `plain` bytes or the next larger
    /// possible size.
    ///
    /// # Errors
    /// `Misuse` if no volume can have that size; `Unsupported` if the format cannot calculate it.
    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64>;

    /// Whether a new volume with these keyfiles also needs a passphrase.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// The cipher and the hash, for [`Unlock`], that open a volume created with `spec` whose facts are `facts`: for formats without
    /// a header.
    fn opened_with(&self, facts: &Facts, spec: &Spec<'_>) -> (String, Option<String>) {
        let hash = facts.hash.as_deref().map(|hash| spec.hash.unwrap_or(hash).to_owned());
        // dm-crypt has a default mode for a cipher without one.
        let mode = Some(&facts.mode).filter(|mode| !mode.is_empty()).map(|mode| format!("-{mode}"));
        (format!("{}{}", facts.cipher, mode.unwrap_or_default()), hash)
    }

    /// Returns the contents of a new key file, for formats that support
    /// [`Parameter::FreshKeyfile`](super::takes::Parameter::FreshKeyfile).
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_keyfile(&self) -> Result<Secret> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// Encrypts such contents so that `passphrase` opens them.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn locked_keyfile(&self, _contents: &Secret, _passphrase: &Secret) -> Result<Vec<u8>> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// Returns a new recovery password as text, for formats that support
    /// [`Parameter::RecoveryPassword`](super::takes::Parameter::RecoveryPassword). It opens a volume or a keyslot that is created
    /// with it as a [`Credential::Passphrase`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_password(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery passwords: this format has none"))
    }

    /// Returns a new recovery key as text, for formats that support
    /// [`Parameter::RecoveryKey`](super::takes::Parameter::RecoveryKey). A keyslot that is added with it as a
    /// [`Credential::Passphrase`] is marked as a recovery key's.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_key(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery keys: this format has none"))
    }

    /// Returns the name and the contents of a new startup key file, for formats that support
    /// [`Parameter::StartupKey`](super::takes::Parameter::StartupKey). It opens a volume or a keyslot that is created with it as a
    /// [`Credential::Keyfile`].
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

    /// Checks whether a volume that fills `len` bytes can be created according to `spec`, as far as that does not depend on credentials:
    /// before anybody types a password. Not for a detached header.
    ///
    /// # Errors
    /// Those of [`Format::create`].
    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()>;

    /// Implements [`Format::hidden_room`], for formats that support
    /// [`Parameter::HiddenVolume`](super::takes::Parameter::HiddenVolume).
    ///
    /// # Errors
    /// Those of [`Format::hidden_room`].
    fn room_for_hidden(&self, _store: &Arc<dyn Store>, _outer: &Unlock<'_>) -> Result<HiddenRoom> {
        Err(Error::unsupported("hidden volumes: this format has none"))
    }

    /// Implements [`Format::create_hidden`].
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

/// Returns the creator of the format's volumes.
///
/// # Errors
/// `Unsupported` if there is none.
pub fn creator_of(format: &dyn Format) -> Result<&dyn Creator> {
    format.creator().ok_or_else(|| not_created(format.name()))
}

/// The error for creating a volume of a format that this program can only open.
pub(super) fn not_created(name: &str) -> Error {
    Error::unsupported(format!("creating {name} volumes")).hint("Create a LUKS or VeraCrypt volume instead.")
}

/// The space for a hidden volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HiddenRoom {
    /// The size of the largest safe plaintext, in bytes.
    pub largest: u64,
    /// The size of the smallest plaintext, in bytes.
    pub smallest: u64,
    /// The file system of the outer volume.
    pub filesystem: &'static str,
    /// Where the free space begins, in bytes of the outer volume.
    pub free_at: u64,
    /// Size of the outer volume's plaintext, in bytes.
    pub outer_size: u64,
    /// Whether the bytes stored there look random. If not, because the outer volume was never filled, a hidden volume is
    /// conspicuous.
    pub looks_random: bool,
}

impl HiddenRoom {
    /// Checks whether a plaintext of `size` bytes fits.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn check(&self, size: u64) -> Result<()> {
        let Self { largest, smallest, filesystem, .. } = self;
        if largest < smallest {
            return Err(Error::misuse(format!(
                "no room for a hidden volume: it needs {smallest} bytes, but only {largest} are free at the end of \
                 the {filesystem} file system"
            ))
            .hint("Free space between files does not count. Defragment the file system, or remove files."));
        }
        if !(smallest..=largest).contains(&&size) || !size.is_multiple_of(512) {
            return Err(Error::misuse(format!(
                "the hidden volume cannot have {size} bytes: it needs {smallest} to {largest} bytes, in multiples of \
                 512 (a larger one would overwrite the outer {filesystem} file system)"
            )));
        }
        Ok(())
    }
}

/// The choices for creating a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Choices {
    /// Ciphers and cascades, the default first.
    pub ciphers: Vec<&'static str>,
    /// Hashes, the default first.
    pub hashes: Vec<&'static str>,
    /// Whether these are all. Otherwise every name that dm-crypt knows is accepted.
    #[serde(skip)]
    pub complete: bool,
    /// The size of the smallest volume, headers included, in bytes.
    pub min_len: u64,
}

/// The store size for `plain` bytes of plaintext in whole sectors, after `offset` bytes of header, in bytes.
pub(super) fn stored_behind(offset: u64, plain: u64, spec: &Spec<'_>) -> Result<u64> {
    let len = plain.checked_next_multiple_of(spec.sector_size.unwrap_or(512).max(512).into());
    let len = len.and_then(|len| len.checked_add(offset));
    len.ok_or_else(|| Error::misuse(format!("{plain} bytes from byte {offset} on exceed 2^64")))
}

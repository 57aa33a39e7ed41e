//! The interface of a format, which is a row of the format table.

use std::sync::Arc;

use claviger_crypto::Secret;

use super::creator::not_created;
use super::takes::{self, Parameter, Purpose, Takes};
use super::{Creator, Header, HeaderEditor, HiddenRoom, InPlaceConverter, Verdict};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;

/// A signature in a sector of a header or of its copy.
pub struct HeaderTrace {
    /// How to call that header: `its second header`.
    pub name: &'static str,
    /// The offset of the signature in its sector of 512 bytes.
    pub at: usize,
    /// The signature.
    pub bytes: &'static [u8],
    /// The possible offsets of that sector in its volume, in bytes, from its contents.
    pub offsets: fn(&[u8]) -> Vec<u64>,
    /// How many of the headers that fit each other are intact in a volume, if that one is at this offset; 0 if that one is not.
    pub intact: fn(&dyn Store, u64) -> Result<usize>,
}

impl HeaderTrace {
    /// The signature of the first header, at the beginning of the volume: [`Format::identify`] checks it.
    pub(super) const fn first(at: usize, bytes: &'static [u8]) -> Self {
        Self { name: "its header", at, bytes, offsets: |_| vec![0], intact: |_, _| Ok(0) }
    }
}

/// A format of encrypted volumes.
pub trait Format: Sync {
    /// Its name: `TrueCrypt`.
    fn name(&self) -> &'static str;

    /// Identifies the store. Reads little and needs no credential.
    ///
    /// # Errors
    /// `Io`.
    fn identify(&self, store: &dyn Store) -> Result<Verdict>;

    /// Reads the header without unlocking it.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`, `Unsupported`, `Io`.
    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>>;

    /// Like [`Format::open`], for a header in another file or device than its `data`.
    ///
    /// # Errors
    /// Those of [`Format::open`]; `Misuse` if the format has no detached headers.
    fn open_detached(&self, _header: &Arc<dyn Store>, _data: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        takes::check(self.name(), &self.takes(), Purpose::Opening, &[Parameter::DetachedHeader])?;
        Err(Error::unsupported(format!("detached headers of {}", self.name())))
    }

    /// Like [`Format::open`], for the header of an encrypted system on its boot disk. `None` if the disk is not one.
    ///
    /// # Errors
    /// `Io`.
    fn open_system(&self, _disk: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// Like [`Format::open`], for header backups on a disk whose partition table was written over the volume. There
    /// [`Format::open`] looks for an encrypted system. `None` if it finds the backups itself.
    ///
    /// # Errors
    /// Those of [`Format::open`].
    fn open_overwritten(&self, _store: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// The parameters for creating and opening its volumes.
    fn takes(&self) -> Takes;

    /// Returns the creator of its volumes, if this program can create them.
    fn creator(&self) -> Option<&dyn Creator> {
        None
    }

    /// Creates a volume that fills `store`, opened by `first`, after checking that the format supports everything in `spec`. Writes
    /// the header last, so that nothing opens an unfinished volume.
    ///
    /// # Errors
    /// `Misuse`, `CredentialKind`, `Cancelled`, `Io`; `Unsupported` if there is no [`Format::creator`].
    fn create(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &spec.parameters())?;
        creator.create_volume(store, spec, first)
    }

    /// Returns the possible sizes of a hidden volume in the volume that `outer` opens, according to the outer file system.
    ///
    /// # Errors
    /// Those of [`Header::unlock`] and [`crate::filesystems::free_tail::free_tail`]; `Misuse` if there can be none.
    fn hidden_room(&self, store: &Arc<dyn Store>, outer: &Unlock<'_>) -> Result<HiddenRoom> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &[Parameter::HiddenVolume])?;
        creator.room_for_hidden(store, outer)
    }

    /// Creates a hidden volume, opened by `first`, in the free space at the end of the volume that `outer` opens. Writes only to
    /// that space and to the places of the hidden headers. The header comes last.
    ///
    /// # Errors
    /// Those of [`Format::create`] and [`Format::hidden_room`], and `Misuse` if the size does not fit there.
    fn create_hidden(
        &self,
        store: &Arc<dyn Store>,
        outer: &Unlock<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
    ) -> Result<()> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        let asked = [&[Parameter::HiddenVolume], &spec.parameters()[..]].concat();
        takes::check(self.name(), &self.takes(), Purpose::Creating, &asked)?;
        creator.create_hidden_volume(store, outer, spec, first)
    }

    /// Refuses a passphrase that no volume or keyslot can have: one that is too long, for example. Creating and changing volumes checks
    /// this, too.
    ///
    /// # Errors
    /// `Misuse`.
    fn check_new_passphrase(&self, _passphrase: &Secret) -> Result<()> {
        Ok(())
    }

    /// Chooses the cost of a volume created according to `spec`, or of a keyslot, where it is measured: in this process, such volumes and
    /// keyslots get this cost from now on, and [`Format::guess_work`] is exact.
    ///
    /// # Errors
    /// `Misuse` for a cost that the format does not take; `TooLittleMemory`, `Cancelled`.
    fn choose_cost(&self, _spec: &Spec<'_>) -> Result<()> {
        Ok(())
    }

    /// The work of one guess of a passphrase that opens a volume created according to `spec`, or a keyslot with its cost: roughly where
    /// the cost is measured. `None` if the format has no passphrases or `spec` is wrong.
    fn guess_work(&self, _spec: &Spec<'_>) -> Option<GuessWork> {
        None
    }

    /// Finds the remains of a volume whose beginning is lost: searches further than [`Format::identify`]. [`Format::open`] finds
    /// them, too.
    ///
    /// # Errors
    /// `Io`.
    fn remains(&self, _store: &dyn Store) -> Result<Option<String>> {
        Ok(None)
    }

    /// Signatures of its headers and their copies, for a search of a whole disk. Empty if it has none.
    fn traces(&self) -> &'static [HeaderTrace] {
        &[]
    }

    /// The offsets of header backups, in bytes before the end of the store. Empty if there are none.
    fn backups_before_end(&self) -> &'static [u64] {
        &[]
    }

    /// Whether its volumes have no header at all. They cannot be told from random bytes, so they open only if the user names the
    /// format. [`crate::credential::Headerless`] describes them.
    fn headerless(&self) -> bool {
        false
    }

    /// Whether a header can be in another file or device than its data: [`Format::open_detached`].
    fn detachable(&self) -> bool {
        self.takes().opens_with(Parameter::DetachedHeader)
    }

    /// Returns the editor of its headers, if it has headers and this program can change them.
    fn editor(&self) -> Option<&dyn HeaderEditor> {
        None
    }

    /// Returns the converter of its volumes, if this program can convert them in place.
    fn in_place_converter(&self) -> Option<&dyn InPlaceConverter> {
        None
    }
}

//! What a format is: a row of the table.

use std::sync::Arc;

use serde::Serialize;

use super::creator::not_created;
use super::takes::{self, Parameter, Purpose, Takes};
use super::{Creator, Header, HeaderEditor, HiddenRoom, InPlaceConverter};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::store::Store;

/// What a look at a store without any credential tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    /// Not this format, and why.
    No(String),
    /// It could be: the format has no mark to know it by. And why.
    Possible(String),
    /// It is. And why.
    Yes(String),
}

/// A format of encrypted volumes.
pub trait Format: Sync {
    /// Its name: `TrueCrypt`.
    fn name(&self) -> &'static str;

    /// What a look at the store tells. Reads little and needs no credential.
    ///
    /// # Errors
    /// `Io`.
    fn identify(&self, store: &dyn Store) -> Result<Verdict>;

    /// Reads the header, still locked.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`, `Unsupported`, `Io`.
    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>>;

    /// Like [`Format::open`], for a header in another file or device than its `data`.
    ///
    /// # Errors
    /// Those of [`Format::open`]; `Misuse` where the format has no detached headers.
    fn open_detached(&self, _header: &Arc<dyn Store>, _data: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        takes::check(self.name(), &self.takes(), Purpose::Opening, &[Parameter::DetachedHeader])?;
        Err(Error::unsupported(format!("detached headers of {}", self.name())))
    }

    /// Like [`Format::open`], for the header of an encrypted system on the disk that it starts from. Nothing if the disk is
    /// none.
    ///
    /// # Errors
    /// `Io`.
    fn open_system(&self, _disk: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// Like [`Format::open`], for backups of headers on a disk whose partition table was written over the volume: there [`Format::open`]
    /// looks for an encrypted system. Nothing where it finds the backups itself.
    ///
    /// # Errors
    /// Those of [`Format::open`].
    fn open_overwritten(&self, _store: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// What its volumes can be created and opened with.
    fn takes(&self) -> Takes;

    /// What makes new volumes, where this program does.
    fn creator(&self) -> Option<&dyn Creator> {
        None
    }

    /// Makes a volume that fills `store`, opened by `first`, once it is known that the format takes all that `spec` asks for.
    /// Writes the header last, so that what is there before the end opens with nothing.
    ///
    /// # Errors
    /// `Misuse`, `CredentialKind`, `Cancelled`, `Io`; `Unsupported` where there is no [`Format::creator`].
    fn create(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &spec.parameters())?;
        creator.create_volume(store, spec, first)
    }

    /// The possible sizes of a hidden volume in the volume that `outer` opens, according to the outer file system.
    ///
    /// # Errors
    /// Those of [`Header::unlock`] and [`crate::filesystems::free_tail::free_tail`]; `Misuse` where there can be none.
    fn hidden_room(&self, store: &Arc<dyn Store>, outer: &Unlock<'_>) -> Result<HiddenRoom> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &[Parameter::HiddenVolume])?;
        creator.room_for_hidden(store, outer)
    }

    /// Makes a hidden volume, opened by `first`, in the free space at the end of the one that `outer` opens. Writes nothing
    /// outside that space and the places of the hidden headers, and the header last.
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

    /// What is left of a volume whose beginning is none any more: looks further than [`Format::identify`]. [`Format::open`] finds it, too.
    ///
    /// # Errors
    /// `Io`.
    fn remains(&self, _store: &dyn Store) -> Result<Option<String>> {
        Ok(None)
    }

    /// Where backups of headers are, in bytes before the end of the store; nothing if there are none.
    fn backups_before_end(&self) -> &'static [u64] {
        &[]
    }

    /// Whether its volumes have no header at all. Nothing tells them from random bytes, so that one opens only where somebody
    /// names the format; it then takes [`crate::credential::Headerless`].
    fn headerless(&self) -> bool {
        false
    }

    /// Whether a header may be in another file or device than its data: [`Format::open_detached`].
    fn detachable(&self) -> bool {
        self.takes().opens_with(Parameter::DetachedHeader)
    }

    /// What changes headers, where the format has them and this program can.
    fn editor(&self) -> Option<&dyn HeaderEditor> {
        None
    }

    /// What converts volumes where they lie, where this program can.
    fn in_place_converter(&self) -> Option<&dyn InPlaceConverter> {
        None
    }
}

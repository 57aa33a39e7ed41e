//! A LUKS2 header that is being changed: the way that all changes take.

use super::binary::Binary;
use super::metadata::Metadata;
use super::read::{ReadHeader, read};
use super::{NAME, write};
use crate::advice::Warning;
use crate::edit::{Edit, Step};
use crate::error::{Error, Result};
use crate::formats::{Derivation, Prepared};
use crate::store::Store;

/// A header that is being changed: what it is now, and what it is to be.
pub(super) struct Change<'a> {
    pub store: &'a dyn Store,
    /// As it is.
    pub header: ReadHeader,
    /// As it is to be, but for the sequence number and the salts.
    pub binary: Binary,
    /// As they are to be.
    pub metadata: Metadata,
    /// What is to be written before the header.
    pub before: Vec<Step>,
    /// What is to be written once the new header is there.
    pub after: Vec<Step>,
    /// The keyslot that it is about.
    pub keyslot: Option<u32>,
    /// How its key is derived from now on.
    pub derivation: Option<Derivation>,
    /// What a person must know.
    pub warnings: Vec<Warning>,
}

impl<'a> Change<'a> {
    /// Of the header in `store`, if it may be changed.
    pub fn of(store: &'a dyn Store) -> Result<Self> {
        let header = read(store)?;
        nothing_required(&header.metadata)?;
        let (binary, metadata) = (header.binary.clone(), header.metadata.clone());
        let warnings = Vec::new();
        Ok(Self {
            store,
            header,
            binary,
            metadata,
            before: Vec::new(),
            after: Vec::new(),
            keyslot: None,
            derivation: None,
            warnings,
        })
    }

    /// The steps, in order. Nothing is to be written where nothing is changed.
    pub fn prepared(self) -> Result<Prepared> {
        let Self { store, header, binary, metadata, before, after, keyslot, derivation, warnings } = self;
        let seen = header.seen.clone();
        let mut steps = before;
        if metadata != header.metadata || binary != header.binary || !after.is_empty() {
            steps.extend(write::steps(store, &header, binary, &metadata)?);
            steps.extend(after);
        }
        let edit = Edit::new(steps).made_for(seen);
        Ok(Prepared { edit, format: NAME, hidden: false, keyslot, derivation, warnings })
    }
}

/// A volume that requires something of programs, such as to finish a reencryption, is not for those that do not know it; what is
/// known here has ways of its own.
pub(super) fn nothing_required(metadata: &Metadata) -> Result<()> {
    let mandatory = metadata.config.requirements.as_ref().map_or(&[][..], |required| &required.mandatory);
    match mandatory {
        [] => Ok(()),
        all => {
            let hint = if all.iter().any(|r| r.starts_with("online-reencrypt")) {
                "It is being reencrypted. Finish that first."
            } else {
                "Nothing was changed. Use the program that created it."
            };
            Err(Error::unsupported(format!("changing a header that requires {}", all.join(", "))).hint(hint))
        }
    }
}

/// A label or subsystem: any text on one line. Its length is the binary header's matter.
pub(super) fn text(what: &str, text: &str) -> Result<Vec<u8>> {
    if text.chars().any(char::is_control) {
        return Err(Error::misuse(format!("a {what} must be a single line of text")));
    }
    Ok(text.as_bytes().to_vec())
}

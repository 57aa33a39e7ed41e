//! A LUKS2 header that is being changed: the procedure that all changes share.

use super::binary::Binary;
use super::metadata::Metadata;
use super::read::{ReadHeader, read};
use super::{NAME, write};
use crate::advice::Warning;
use crate::edit::{Edit, Step};
use crate::error::{Error, Result};
use crate::formats::{Derivation, Prepared};
use crate::store::Store;

/// A header that is being changed: its current and its new state.
pub(super) struct Change<'a> {
    pub store: &'a dyn Store,
    /// The current header.
    pub header: ReadHeader,
    /// The new binary header, except for sequence number and salts.
    pub binary: Binary,
    /// The new metadata.
    pub metadata: Metadata,
    /// Steps to write before the header.
    pub before: Vec<Step>,
    /// Steps to write after the new header.
    pub after: Vec<Step>,
    /// The keyslot that is changed.
    pub keyslot: Option<u32>,
    /// The new key derivation of that keyslot.
    pub derivation: Option<Derivation>,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
}

impl<'a> Change<'a> {
    /// Reads the header in `store`, if it may be changed.
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

    /// Returns the steps in order: none if nothing changes.
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

/// Refuses a volume with mandatory requirements, such as an unfinished reencryption. Programs that do not know these must not
/// change it, and known requirements are handled elsewhere.
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

/// Checks a label or subsystem: any text on one line. The binary header checks its length.
pub(super) fn text(what: &str, text: &str) -> Result<Vec<u8>> {
    if text.chars().any(char::is_control) {
        return Err(Error::misuse(format!("a {what} must be a single line of text")));
    }
    Ok(text.as_bytes().to_vec())
}

//! Changes of LUKS2 headers: the way that all of them take, and the small ones.

use std::collections::BTreeMap;

use claviger_crypto::secret::wipe_stack;
use serde_json::Value;

use super::binary::Binary;
use super::metadata::{Metadata, Size};
use super::read::{ReadHeader, read};
use super::{NAME, backup, convert, keyslots, tokens, write};
use crate::advice::Warning;
use crate::credential::Unlock;
use crate::edit::{Edit, Step};
use crate::error::{Error, Result};
use crate::formats::luks::uuid;
use crate::formats::{
    Attributes, Derivation, HeaderBackup, KeyslotEditor, NewCredential, Prepared, Removal, Resizing, RestoreFrom,
    TokenChange, Verified,
};
use crate::store::Store;

/// What changes the headers of LUKS2.
pub(super) struct Editor;

impl KeyslotEditor for Editor {
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
        told(keyslots::change(store, with, new))
    }

    fn add(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
        told(keyslots::add(store, with, new, at))
    }

    fn remove(&self, store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
        told(keyslots::remove(store, which, last))
    }

    fn set(&self, store: &dyn Store, to: &Attributes<'_>) -> Result<Prepared> {
        told(set(store, to))
    }

    fn repair(&self, store: &dyn Store) -> Result<Prepared> {
        told(backup::repair(store))
    }

    fn back_up(&self, store: &dyn Store, _with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup> {
        let none = || Error::misuse("a LUKS volume has no hidden volume in it");
        told(if hidden.is_some() { Err(none()) } else { backup::back_up(store) })
    }

    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
        told(backup::restore(store, from, with, unproven))
    }

    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
        told(backup::verify(store, with))
    }

    fn public(&self) -> bool {
        true
    }

    fn tokens(&self, store: &dyn Store) -> Result<BTreeMap<u32, Value>> {
        let tokens = |header: ReadHeader| header.metadata.tokens.into_iter().map(|(n, t)| (n, Value::Object(t)));
        told(read(store).map(|header| tokens(header).collect()))
    }

    fn change_tokens(&self, store: &dyn Store, change: TokenChange<'_>) -> Result<Prepared> {
        told(tokens::change(store, change))
    }

    fn convert(&self, store: &dyn Store, to: &str, detached: bool) -> Result<Prepared> {
        told(convert::to_luks1(store, to, detached))
    }

    fn resize(&self, store: &dyn Store, data: Option<&dyn Store>, size: u64) -> Result<Resizing> {
        told(resize(store, data, size))
    }
}

fn told<T>(result: Result<T>) -> Result<T> {
    wipe_stack();
    result.map_err(|e| e.in_format(NAME))
}

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
                "It is being reencrypted: finish that first."
            } else {
                "Use the program that made it. Nothing was changed."
            };
            Err(Error::unsupported(format!("changing a header that requires {}", all.join(", "))).hint(hint))
        }
    }
}

/// Flags that cryptsetup keeps with a volume (luks2_json_metadata.c, `persistent_flags`).
const FLAGS: [&str; 6] = [
    "allow-discards",
    "same-cpu-crypt",
    "submit-from-crypt-cpus",
    "no-journal",
    "no-read-workqueue",
    "no-write-workqueue",
];

fn set(store: &dyn Store, to: &Attributes<'_>) -> Result<Prepared> {
    let mut change = Change::of(store)?;
    if let Some(text) = to.uuid {
        change.binary.uuid = uuid::parse(text)?.into_bytes();
    }
    if let Some(label) = to.label {
        change.binary.label = text("label", label)?;
    }
    if let Some(subsystem) = to.subsystem {
        change.binary.subsystem = text("subsystem", subsystem)?;
    }
    if let Some((number, priority)) = to.priority {
        if priority > 2 {
            return Err(Error::misuse(format!("no keyslot has the priority {priority}"))
                .hint("There are 0 (only if named), 1 (normal) and 2 (first)."));
        }
        keyslots::at(&mut change.metadata, number)?.priority = Some(priority);
        change.keyslot = Some(number);
    }
    if let Some(flags) = to.flags {
        // One that is there and unknown here may stay: whoever put it there knows it.
        let kept = &change.header.metadata.config.flags;
        if let Some(unknown) = flags.iter().find(|flag| !FLAGS.contains(&flag.as_str()) && !kept.contains(flag)) {
            return Err(Error::misuse(format!("no flag is called \"{}\"", unknown.escape_debug()))
                .hint(format!("There are: {}.", FLAGS.join(", "))));
        }
        change.metadata.config.flags = flags.to_vec();
    }
    change.prepared()
}

/// A label or subsystem: any text on one line. Its length is the binary header's matter.
pub(super) fn text(what: &str, text: &str) -> Result<Vec<u8>> {
    if text.chars().any(char::is_control) {
        return Err(Error::misuse(format!("a {what} is text on one line")));
    }
    Ok(text.as_bytes().to_vec())
}

/// Of a volume of one segment. One that is as long as its store needs no change of the header.
fn resize(store: &dyn Store, data: Option<&dyn Store>, size: u64) -> Result<Resizing> {
    let mut change = Change::of(store)?;
    let store_len = data.map_or(store.len(), Store::len);
    let areas = change.metadata.config.keyslots_size.0;
    let header_end = change.binary.hdr_size.saturating_mul(2).saturating_add(areas);
    let (1, Some(segment)) = (change.metadata.segments.len(), change.metadata.segments.values_mut().next()) else {
        return Err(Error::unsupported("changing the size of a volume of several segments"));
    };
    if segment.integrity.is_some() {
        return Err(Error::unsupported("changing the size of a volume with integrity protection")
            .hint("Its tags lie between its data. Make a new volume and copy."));
    }
    if data.is_none() && (segment.offset.0 < header_end || store_len <= segment.offset.0) {
        // Its file would be given the size of the data, and lose keyslots.
        return Err(Error::misuse("it is a detached header: the data are in another file or device")
            .hint("A volume of dynamic size follows the size of its file or device by itself."));
    }
    let sector = u64::from(segment.sector_size.unwrap_or(512));
    if size == 0 || !size.is_multiple_of(sector) {
        return Err(Error::misuse(format!("{size} bytes: the volume is made of whole sectors of {sector} bytes")));
    }
    let len = segment.offset.0.checked_add(size);
    let len = len.ok_or_else(|| Error::misuse(format!("{size} bytes are more than any file has")))?;
    let start = segment.offset.0;
    let before = match segment.size {
        Size::Dynamic => store_len.saturating_sub(segment.offset.0) / sector * sector,
        Size::Fixed(before) => {
            segment.size = Size::Fixed(size);
            before
        }
    };
    let end = start.saturating_add(before);
    Ok(Resizing { prepared: change.prepared()?, len, end, before })
}

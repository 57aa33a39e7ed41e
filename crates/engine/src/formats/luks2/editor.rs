//! The editor of LUKS2 headers, and its small changes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::change::{Change, text};
use super::metadata::Size;
use super::read::{ReadHeader, read};
use super::{LUKS2, NAME, backup, convert, keyslots, recovery, tokens};
use crate::advice::Advice;
use crate::credential::Unlock;
use crate::error::{Error, Result};
use crate::formats::editor::none_lost;
use crate::formats::luks::uuid;
use crate::formats::takes::check_new;
use crate::formats::{
    HeaderAttributes, HeaderBackup, HeaderEditor, NewCredential, Prepared, Removal, Resizing, RestoreFrom, TokenChange,
    Verified, wiped,
};
use crate::store::Store;

/// The editor of LUKS2 headers.
pub(super) struct Editor;

impl HeaderEditor for Editor {
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared> {
        wiped(NAME, check_new(&LUKS2, new).and_then(|()| keyslots::change(store, with, new)))
    }

    fn add(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, at: Option<u32>) -> Result<Prepared> {
        wiped(NAME, check_new(&LUKS2, new).and_then(|()| keyslots::add(store, with, new, at)))
    }

    fn replace(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>, number: u32) -> Result<Prepared> {
        wiped(NAME, check_new(&LUKS2, new).and_then(|()| keyslots::replace(store, with, new, number)))
    }

    fn remove(&self, store: &dyn Store, which: Removal<'_>, last: bool) -> Result<Prepared> {
        wiped(NAME, keyslots::remove(store, which, last))
    }

    fn set(&self, store: &dyn Store, _with: Option<&Unlock<'_>>, to: &HeaderAttributes<'_>) -> Result<Prepared> {
        wiped(NAME, set(store, to))
    }

    fn repair(&self, store: &dyn Store, with: Option<&Unlock<'_>>, lost: &[u32]) -> Result<Prepared> {
        none_lost(lost)?;
        wiped(NAME, backup::repair(store, with.unwrap_or(&Unlock::with(&[]))))
    }

    fn back_up(&self, store: &dyn Store, _with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup> {
        let none = || Error::misuse("a LUKS volume cannot contain a hidden volume");
        wiped(NAME, if hidden.is_some() { Err(none()) } else { backup::back_up(store) })
    }

    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared> {
        wiped(NAME, backup::restore(store, from, with, unproven))
    }

    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified> {
        wiped(NAME, backup::verify(store, with))
    }

    fn public(&self) -> bool {
        true
    }

    fn tokens(&self, store: &dyn Store) -> Result<BTreeMap<u32, Value>> {
        let tokens = |header: ReadHeader| header.metadata.tokens.into_iter().map(|(n, t)| (n, Value::Object(t)));
        wiped(NAME, read(store).map(|header| tokens(header).collect()))
    }

    fn recovery_keyslots(&self, store: &dyn Store) -> Result<Vec<u32>> {
        let header = wiped(NAME, read(store))?;
        let marked = |number: &u32| recovery::is_marked(&header.metadata, *number);
        Ok(header.metadata.keyslots.keys().copied().filter(marked).collect())
    }

    fn change_tokens(&self, store: &dyn Store, change: TokenChange<'_>) -> Result<Prepared> {
        wiped(NAME, tokens::change(store, change))
    }

    fn convert(&self, store: &dyn Store, to: &str, detached: bool) -> Result<Prepared> {
        wiped(NAME, convert::to_luks1(store, to, detached))
    }

    fn resize(
        &self,
        store: &dyn Store,
        data: Option<&dyn Store>,
        _with: Option<&Unlock<'_>>,
        size: u64,
    ) -> Result<Resizing> {
        wiped(NAME, resize(store, data, size))
    }
}

/// Persistent flags of cryptsetup (luks2_json_metadata.c, `persistent_flags`).
const FLAGS: [&str; 6] = [
    "allow-discards",
    "same-cpu-crypt",
    "submit-from-crypt-cpus",
    "no-journal",
    "no-read-workqueue",
    "no-write-workqueue",
];

fn set(store: &dyn Store, to: &HeaderAttributes<'_>) -> Result<Prepared> {
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
            return Err(Error::misuse(format!("{priority} is not a keyslot priority"))
                .hint("Use 0 (only if named), 1 (normal) or 2 (first)."));
        }
        keyslots::at(&mut change.metadata, number)?.priority = Some(priority);
        change.keyslot = Some(number);
    }
    if let Some(flags) = to.flags {
        // An unknown flag that is already set may stay: the program that set it knows it.
        let kept = &change.header.metadata.config.flags;
        if let Some(unknown) = flags.iter().find(|flag| !FLAGS.contains(&flag.as_str()) && !kept.contains(flag)) {
            return Err(Error::misuse(format!("no flag is called \"{}\"", unknown.escape_debug()))
                .hint(format!("Known: {}.", FLAGS.join(", "))));
        }
        change.metadata.config.flags = flags.to_vec();
    }
    change.prepared()
}

/// Resizes a volume of one segment. A volume of dynamic size needs no change of the header.
fn resize(store: &dyn Store, data: Option<&dyn Store>, size: u64) -> Result<Resizing> {
    let mut change = Change::of(store)?;
    let store_len = data.map_or(store.len(), Store::len);
    let areas = change.metadata.config.keyslots_size.0;
    let header_end = change.binary.hdr_size.saturating_mul(2).saturating_add(areas);
    let (1, Some(segment)) = (change.metadata.segments.len(), change.metadata.segments.values_mut().next()) else {
        return Err(Error::unsupported("resizing a volume with several segments").advise(Advice::CopyVolume));
    };
    if segment.integrity.is_some() {
        return Err(Error::unsupported("resizing a volume with integrity protection")
            .hint("Its tags are interleaved with its data.")
            .advise(Advice::CopyVolume));
    }
    if data.is_none() && (segment.offset.0 < header_end || store_len <= segment.offset.0) {
        // The detached header's file would be resized to the data's size, and lose keyslots.
        return Err(Error::misuse("it is a detached header: the data are in another file or device")
            .hint("A volume of dynamic size follows its file or device automatically."));
    }
    let sector = u64::from(segment.sector_size.unwrap_or(512));
    if size == 0 || !size.is_multiple_of(sector) {
        return Err(Error::misuse(format!("{size} bytes is not a whole number of {sector}-byte sectors")));
    }
    let len = segment.offset.0.checked_add(size);
    let len = len.ok_or_else(|| Error::misuse(format!("{size} bytes is larger than any file can be")))?;
    let start = segment.offset.0;
    let before = match segment.size {
        Size::Dynamic => store_len.saturating_sub(segment.offset.0) / sector * sector,
        Size::Fixed(before) => {
            segment.size = Size::Fixed(size);
            before
        }
    };
    let end = start.saturating_add(before);
    Ok(Resizing { prepared: change.prepared()?, len, end, before, size, start })
}

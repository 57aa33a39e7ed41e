//! Logical volumes of LVM2, located in the store of a physical volume, or in those of several. A typical laptop has them inside its
//! encrypted volume. Writes go to a logical volume's own extents; this module never writes metadata. On several physical volumes,
//! logical volumes are only read.
//!
//! Linear and striped volumes that lie on the given physical volumes can be opened. All others are refused, with the volume's name
//! and kind: mirrors, RAID, thin volumes, caches, snapshots, integrity, and volumes partly on another physical volume.

mod label;
mod metadata;
mod text;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::partitions;
use crate::store::{Extent, JoinedStore, MappedStore, SliceStore, Store};

use label::{Label, Text};

/// The volume group that a physical volume belongs to, from the metadata on it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// Its name: letters, digits and `_.+-` only.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The version of its metadata.
    pub seqno: u64,
    /// Size of an extent, in bytes.
    pub extent_size: u64,
    /// How many of its physical volumes were not given.
    pub missing: usize,
    /// Its logical volumes, by name, without those that are only parts of others.
    pub volumes: Vec<LogicalVolume>,
    /// Warnings for the user, such as about a damaged copy; whole sentences.
    pub warnings: Vec<String>,
}

/// A logical volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogicalVolume {
    /// Its name, without that of the group: letters, digits and `_.+-` only.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its size in bytes.
    pub len: u64,
    /// Why it is read-only, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// Why it cannot be opened, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The name of its group.
    #[serde(skip)]
    group: String,
    /// Its extents; empty if it cannot be opened.
    #[serde(skip)]
    extents: Vec<Extent>,
}

impl Group {
    /// The full names of the volumes that can be opened.
    pub fn openable(&self) -> Vec<String> {
        self.volumes.iter().filter(|v| v.refused.is_none()).map(LogicalVolume::full_name).collect()
    }
}

impl LogicalVolume {
    /// Its name with that of the group: `GROUP/VOLUME`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }

    /// Opens the volume as a store of its own; `store` is the one it was found in.
    ///
    /// # Errors
    /// `Unsupported` if its kind is not supported, `Malformed` if part of it is missing.
    pub fn open(&self, store: Arc<dyn Store>) -> Result<MappedStore> {
        let Some(why) = &self.refused else {
            return Ok(MappedStore::new(store, &self.extents, self.read_only.is_none())?);
        };
        let what = format!("the logical volume {}: {why}", self.full_name());
        Err(match &**why {
            metadata::PAST_THE_END => {
                malformed("stripes", store.len(), what).hint("If the volume was cut short, find a complete copy.")
            }
            _ => Error::unsupported(what),
        })
    }
}

/// The volume group of the physical volume in `store`; `None` if it is not a physical volume.
///
/// # Errors
/// `Malformed` if the metadata contradict themselves or the store, or if every copy is damaged; `NotThisFormat` for a physical
/// volume without a group; `Unsupported` for one without metadata; `Io`.
pub fn read(store: &dyn Store) -> Result<Option<Group>> {
    let Some(label) = label::read(store)? else { return Ok(None) };
    let on = [label.on(0, store.len())];
    let mut newest: Option<Group> = None;
    let mut wrong = Vec::new();
    for text in label.texts(store)? {
        match text.and_then(|text| metadata::group(&text.bytes, text.at, &on)).map(|(group, _)| group) {
            Ok(group) if newest.as_ref().is_none_or(|newest| newest.seqno < group.seqno) => newest = Some(group),
            Ok(_) => {}
            Err(e) => wrong.push(e),
        }
    }
    let mut wrong = wrong.into_iter();
    match newest {
        Some(mut group) => {
            group.warnings.extend(wrong.map(|e| unusable(&e)));
            Ok(Some(group))
        }
        None => Err(wrong.next().unwrap_or_else(|| label.without_group())),
    }
}

fn unusable(error: &Error) -> String {
    format!("A copy of LVM2's metadata cannot be used: {}.", error.kind)
}

/// A volume group whose physical volumes were found in several stores.
pub struct FoundGroup {
    /// Its description, from the newest metadata.
    pub group: Group,
    /// The stores that hold its physical volumes, by their position in what was given.
    pub stores: Vec<usize>,
    /// Its physical volumes, one after another.
    data: Arc<dyn Store>,
}

impl FoundGroup {
    /// The logical volume of that name, without that of the group.
    ///
    /// # Errors
    /// `Misuse` if there is none.
    pub fn volume(&self, name: &str) -> Result<&LogicalVolume> {
        self.group.volumes.iter().find(|volume| volume.name == name).ok_or_else(|| none_named(&self.group, name))
    }

    /// Opens a logical volume of the group. It is read-only if the group has several physical volumes here.
    ///
    /// # Errors
    /// Those of [`LogicalVolume::open`].
    pub fn open(&self, volume: &LogicalVolume) -> Result<MappedStore> {
        volume.open(Arc::clone(&self.data))
    }
}

/// A group, the physical volumes in it, by their position among those found, and the text that describes it.
type GroupText<'a> = (Group, Vec<usize>, &'a Text);

const OLDER: &str = "One of the physical volumes has older metadata: it was away while the group was changed, and its data may be outdated.";

/// A physical volume that was found.
struct PhysicalVolume {
    /// The store that it is, or that has it in a partition.
    number: usize,
    store: Arc<dyn Store>,
    label: Label,
    texts: Vec<Text>,
    /// Why other texts cannot be used.
    wrong: Vec<Error>,
}

/// The volume groups in these stores, which are physical volumes or have them in partitions. Each group is read from the newest
/// metadata on any of its physical volumes.
///
/// # Errors
/// `Misuse` if a physical volume is there twice; if there is no group, those of [`read`].
pub fn groups(stores: &[Arc<dyn Store>]) -> Result<Vec<FoundGroup>> {
    let mut physical = Vec::new();
    let mut wrong = Vec::new();
    for (number, store) in stores.iter().enumerate() {
        for candidate in candidates(store) {
            match physical_volume(number, candidate) {
                Ok(found) => physical.extend(found),
                Err(e) => wrong.push(e),
            }
        }
    }
    check_twice(&physical)?;
    let mut newest = Vec::new();
    // The version of the newest metadata on each physical volume that has some.
    let mut versions = Vec::new();
    let on: Vec<_> = physical.iter().map(|pv| pv.label.on(0, pv.store.len())).collect();
    for pv in &physical {
        let mut version = None;
        for text in &pv.texts {
            match metadata::group(&text.bytes, text.at, &on) {
                Ok((group, members)) => {
                    version = version.max(Some(group.seqno));
                    take_if_newer(&mut newest, (group, members, text));
                }
                Err(e) => wrong.push(e),
            }
        }
        versions.push(version);
    }
    if newest.is_empty() {
        let without = || physical.first().map(|pv| pv.label.without_group());
        return wrong.into_iter().next().or_else(without).map_or(Ok(Vec::new()), Err);
    }
    let found = |(group, members, text): GroupText<'_>| {
        let is_older = |member: &usize| versions[*member].is_some_and(|version| version < group.seqno);
        let mut found = found(&members, text, &physical)?;
        if members.iter().any(is_older) {
            found.group.warnings.push(OLDER.to_owned());
        }
        Ok(found)
    };
    newest.into_iter().map(found).collect()
}

/// Keeps the newest description of each group.
fn take_if_newer<'a>(newest: &mut Vec<GroupText<'a>>, found: GroupText<'a>) {
    match newest.iter_mut().find(|(known, ..)| known.uuid == found.0.uuid) {
        Some(known) if known.0.seqno < found.0.seqno => *known = found,
        Some(_) => {}
        None => newest.push(found),
    }
}

/// What may be a physical volume: the store itself, or each of its partitions.
fn candidates(store: &Arc<dyn Store>) -> Vec<Arc<dyn Store>> {
    // A damaged table counts as none, and a partition past the end of a disk that was cut short is not there.
    let partitions = partitions::read(&**store).ok().flatten().into_iter().flat_map(|table| table.partitions);
    let partitions = partitions.filter(|partition| !partition.extended);
    let slices = partitions.filter_map(|p| SliceStore::new(Arc::clone(store), p.start, p.len).ok());
    [Arc::clone(store)].into_iter().chain(slices.map(|slice| Arc::new(slice) as Arc<dyn Store>)).collect()
}

fn physical_volume(number: usize, store: Arc<dyn Store>) -> Result<Option<PhysicalVolume>> {
    let Some(label) = label::read(&*store)? else { return Ok(None) };
    let (mut texts, mut wrong) = (Vec::new(), Vec::new());
    for text in label.texts(&*store)? {
        match text {
            Ok(text) => texts.push(text),
            Err(e) => wrong.push(e),
        }
    }
    Ok(Some(PhysicalVolume { number, store, label, texts, wrong }))
}

fn check_twice(physical: &[PhysicalVolume]) -> Result<()> {
    for (i, pv) in physical.iter().enumerate() {
        if physical[..i].iter().any(|other| other.label.uuid == pv.label.uuid) {
            let what = format!("the LVM2 physical volume {} is there twice", pv.label.uuid);
            return Err(Error::misuse(what).hint("Give each disk once, and no copy beside the original."));
        }
    }
    Ok(())
}

/// Puts the group together from those physical volumes.
fn found(members: &[usize], text: &Text, physical: &[PhysicalVolume]) -> Result<FoundGroup> {
    let mut members: Vec<_> = members.iter().map(|member| &physical[*member]).collect();
    members.sort_by_key(|pv| pv.number);
    let mut end = 0u64;
    let mut on = Vec::new();
    for PhysicalVolume { label, store, .. } in &members {
        on.push(label.on(end, store.len()));
        end = end.checked_add(store.len()).ok_or(std::io::ErrorKind::InvalidInput).map_err(std::io::Error::from)?;
    }
    let (mut group, _) = metadata::group(&text.bytes, text.at, &on)?;
    group.warnings.extend(members.iter().flat_map(|pv| &pv.wrong).map(unusable));
    let data = match &members[..] {
        [one] => Arc::clone(&one.store),
        several => Arc::new(JoinedStore::new(several.iter().map(|pv| Arc::clone(&pv.store)))?),
    };
    let mut stores: Vec<_> = members.iter().map(|pv| pv.number).collect();
    stores.dedup();
    Ok(FoundGroup { group, stores, data })
}

/// The logical volume called `GROUP/VOLUME` or `VOLUME`, and its group.
///
/// # Errors
/// `Misuse` if there is none; those of [`read`].
pub fn find(store: &dyn Store, name: &str) -> Result<(Group, LogicalVolume)> {
    let group = read(store)?.ok_or_else(|| {
        let what = format!("there is no logical volume {name}: this is not an LVM2 physical volume");
        Error::misuse(what).hint("If it holds a file system, omit the logical volume's name.")
    })?;
    let (of, own) = name.split_once('/').unwrap_or((&group.name, name));
    let found = group.volumes.iter().find(|v| of == group.name && v.name == own).cloned();
    match found {
        Some(volume) => Ok((group, volume)),
        None => Err(none_named(&group, name)),
    }
}

fn none_named(group: &Group, name: &str) -> Error {
    let what = match group.volumes.iter().map(LogicalVolume::full_name).collect::<Vec<_>>() {
        known if known.is_empty() => format!("there is no logical volume {name}: the group {} is empty", group.name),
        known => format!("there is no logical volume {name}; existing: {}", known.join(", ")),
    };
    Error::misuse(what)
}

/// Opens the logical volume `GROUP/VOLUME` whose group lies in these stores, each with a name for messages: physical volumes, or disks
/// with partitions that are. It is read-only if several physical volumes of the group are there. Returns also the group and the
/// volume's description.
///
/// # Errors
/// `Misuse` if there is no such group or volume, if there are several groups of this name, and if a store has no part of it; those of
/// [`groups`] and [`LogicalVolume::open`].
pub fn open_in(stores: &[(String, Arc<dyn Store>)], name: &str) -> Result<(Group, LogicalVolume, MappedStore)> {
    let only: Vec<_> = stores.iter().map(|(_, store)| Arc::clone(store)).collect();
    let (group_name, own) = name.split_once('/').ok_or_else(|| Error::misuse(format!("{name} names no group")))?;
    let all = groups(&only)?;
    let known: Vec<_> = all.iter().map(|found| found.group.name.clone()).collect();
    let mut named = all.into_iter().filter(|found| found.group.name == group_name);
    let found = match (named.next(), named.next()) {
        (Some(found), None) => found,
        (Some(_), Some(_)) => {
            let what = format!("there are several volume groups called {group_name}");
            return Err(Error::misuse(what).hint("Give only the disks of one of them."));
        }
        (None, _) if known.is_empty() => {
            let what = format!("there is no logical volume {name}: no LVM2 physical volume, here or in a partition");
            return Err(Error::misuse(what).hint("If it holds a file system, omit the logical volume's name."));
        }
        (None, _) => {
            let what = format!("there is no volume group {group_name}; existing: {}", known.join(", "));
            return Err(Error::misuse(what));
        }
    };
    if let Some((other, _)) = stores.iter().enumerate().find(|(i, _)| !found.stores.contains(i)).map(|(_, store)| store)
    {
        let what = format!("no physical volume of the group {group_name}, here or in a partition");
        return Err(Error::misuse(what).at(other.as_ref()).hint("Give only the disks of the group."));
    }
    let volume = found.volume(own)?.clone();
    let mapped = found.open(&volume).map_err(|e| match volume.refused.as_deref() {
        Some(metadata::ELSEWHERE) => e.hint(format!("Give the group's other disks, too: lvm:{name}@DISK,DISK.")),
        _ => e,
    })?;
    Ok((found.group, volume, mapped))
}

/// Opens the logical volume of that name as a store of its own, with its description.
///
/// # Errors
/// Those of [`find`] and [`LogicalVolume::open`].
pub fn open(store: Arc<dyn Store>, name: &str) -> Result<(LogicalVolume, MappedStore)> {
    let (_, volume) = find(&*store, name)?;
    let mapped = volume.open(store)?;
    Ok((volume, mapped))
}

fn malformed(field: &'static str, offset: u64, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset, what: what.into() }.into()
}

/// Parses metadata without a store, for the fuzz target.
pub(crate) fn fuzz_metadata(text: &[u8]) {
    /// The size of a physical volume of 1 GiB; its UUID is the one in the corpus.
    const LEN: u64 = 1 << 30;
    let uuid = "0123456789abcdefghijABCDEFGHIJxy";
    let reserved = vec![0..2048, 4096..1 << 20];
    let on = [metadata::On { uuid, base: 0, len: LEN, reserved: reserved.clone() }];
    let Ok((group, _)) = metadata::group(text, 0, &on) else { return };
    let mut used = reserved;
    for volume in &group.volumes {
        for extent in &volume.extents {
            let len = extent.len / extent.runs.len() as u64;
            used.extend(extent.runs.iter().map(|at| *at..*at + len));
        }
        assert_eq!(volume.extents.iter().map(|extent| extent.len).sum::<u64>() == volume.len, volume.refused.is_none());
    }
    used.sort_by_key(|range| range.start);
    assert!(used.iter().all(|range| range.end <= LEN), "nothing is outside");
    assert!(used.windows(2).all(|pair| pair[0].end <= pair[1].start), "nothing is used twice");
}

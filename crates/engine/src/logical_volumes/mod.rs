//! Logical volumes of LVM2, located in the store of a physical volume. A typical laptop has them inside its encrypted volume.
//! Writes go to a logical volume's own extents; this module never writes metadata.
//!
//! Linear and striped volumes that lie on this one physical volume can be opened. All others are refused, with the volume's name
//! and kind: mirrors, RAID, thin volumes, caches, snapshots, integrity, and volumes partly on another physical volume.

mod label;
mod metadata;
mod text;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Extent, MappedStore, Store};

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
    let on = metadata::On { uuid: &label.uuid, len: store.len(), reserved: label.reserved().collect() };
    let mut newest: Option<Group> = None;
    let mut wrong = Vec::new();
    for text in label.texts(store)? {
        match text.and_then(|text| metadata::group(&text.bytes, text.at, &on)) {
            Ok(group) if newest.as_ref().is_none_or(|newest| newest.seqno < group.seqno) => newest = Some(group),
            Ok(_) => {}
            Err(e) => wrong.push(e),
        }
    }
    let mut wrong = wrong.into_iter();
    match newest {
        Some(mut group) => {
            let warnings = wrong.map(|e| format!("A copy of LVM2's metadata cannot be used: {}.", e.kind));
            group.warnings.extend(warnings);
            Ok(Some(group))
        }
        None => Err(wrong.next().unwrap_or_else(|| {
            ErrorKind::NotThisFormat("it is an LVM2 physical volume without a volume group".into()).into()
        })),
    }
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
        None if group.volumes.is_empty() => {
            Err(Error::misuse(format!("there is no logical volume {name}: the group {} is empty", group.name)))
        }
        None => {
            let known: Vec<_> = group.volumes.iter().map(LogicalVolume::full_name).collect();
            Err(Error::misuse(format!("there is no logical volume {name}; existing: {}", known.join(", "))))
        }
    }
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
    let on = metadata::On { uuid, len: LEN, reserved: reserved.clone() };
    let Ok(group) = metadata::group(text, 0, &on) else { return };
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

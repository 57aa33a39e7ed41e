//! Partition tables: where the partitions of a disk are. This module never writes.

mod gpt;
mod mbr;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{SliceStore, Store};

/// Sector size in a master boot record, in bytes. Disks with sectors of 4096 bytes use GPT.
const SECTOR: u64 = 512;

/// The partition table of a disk.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PartitionTable {
    /// MBR or GPT.
    pub kind: TableKind,
    /// The table's sector size, in bytes.
    pub sector_size: u32,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
    /// Warnings, such as about a damaged copy; whole sentences.
    pub warnings: Vec<String>,
}

/// A kind of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TableKind {
    /// The PC's master boot record, with its chain of logical partitions.
    Mbr,
    /// The GUID partition table of UEFI.
    Gpt,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Partition {
    /// Its number in Linux: from 1; logical partitions of a master boot record from 5.
    pub number: u32,
    /// Offset on the disk, in bytes.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its type: two hexadecimal digits in a master boot record (`83`), a GUID in a GPT.
    pub kind: String,
    /// The usual contents of partitions of this type: `Linux`, `EFI system` …; `None` for a rare type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual: Option<&'static str>,
    /// Its name, if it is in a GPT and has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it only contains logical partitions (master boot record).
    pub extended: bool,
}

impl Partition {
    /// End on the disk, in bytes.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The partition table of `store`, or `None` if there is none. Every partition returned lies within the store, and none
/// overlaps another, except that an extended one contains the logical ones.
///
/// # Errors
/// `Malformed` if there is a table that contradicts itself or the store; `Io`.
pub fn read(store: &dyn Store) -> Result<Option<PartitionTable>> {
    if store.len() < 2 * SECTOR {
        return Ok(None);
    }
    let mut first = [0; SECTOR as usize];
    store.read_at(0, &mut first)?;
    let table = match mbr::classify(&first) {
        mbr::Kind::Protective => Some(gpt::read(store)?),
        mbr::Kind::Table => Some(mbr::read(store, &first)?),
        // The first sector was cleared, but the GPT after it says where everything is.
        mbr::Kind::Empty if first == [0; SECTOR as usize] => gpt::read_unprotected(store)?,
        mbr::Kind::Empty | mbr::Kind::None => None,
    };
    table.map(|table| checked(table, store.len())).transpose()
}

/// The partition with that number, as a store of its own.
///
/// # Errors
/// `Misuse` if there is no table, no such partition, or it only contains others; those of [`read`].
pub fn slice(store: Arc<dyn Store>, number: u32) -> Result<SliceStore> {
    let partition = find(&*store, number)?;
    Ok(SliceStore::new(store, partition.start, partition.len)?)
}

/// The partition with that number.
///
/// # Errors
/// Those of [`slice`](fn@slice).
pub fn find(store: &dyn Store, number: u32) -> Result<Partition> {
    let table = read(store)?.ok_or_else(|| {
        Error::misuse(format!("there is no partition {number}: there is no partition table"))
            .hint("If this is a partition itself, omit the partition number.")
    })?;
    let known: Vec<String> = table.partitions.iter().filter(|p| !p.extended).map(|p| p.number.to_string()).collect();
    let partition = table.partitions.into_iter().find(|p| p.number == number);
    match partition {
        Some(partition) if partition.extended => Err(Error::misuse(format!(
            "partition {number} is extended and only contains logical ones; choose one of: {}",
            known.join(", ")
        ))),
        Some(partition) => Ok(partition),
        None if known.is_empty() => {
            Err(Error::misuse(format!("there is no partition {number}: the partition table is empty")))
        }
        None => Err(Error::misuse(format!("there is no partition {number}; existing: {}", known.join(", ")))),
    }
}

/// Checks that apply to tables of every kind.
fn checked(mut table: PartitionTable, len: u64) -> Result<PartitionTable> {
    table.partitions.sort_by_key(|p| p.number);
    for p in &table.partitions {
        let end = p.start.checked_add(p.len);
        if p.start == 0 || p.len == 0 || end.is_none_or(|end| end > len) {
            let what =
                format!("partition {} has {} bytes at byte {}, but the disk has {len} bytes", p.number, p.len, p.start);
            return Err(malformed("position of a partition", p.start, what)
                .hint("If the disk image was cut short, find a complete copy."));
        }
    }
    let mut by_start: Vec<&Partition> = table.partitions.iter().filter(|p| !p.extended).collect();
    by_start.sort_by_key(|p| p.start);
    for pair in by_start.windows(2) {
        if pair[0].end() > pair[1].start {
            let what = format!("partitions {} and {} overlap", pair[0].number, pair[1].number);
            return Err(malformed("position of a partition", pair[1].start, what));
        }
    }
    // An extended partition overlaps the logical ones that it contains, and no others.
    for extended in table.partitions.iter().filter(|p| p.extended) {
        let others = table.partitions.iter().filter(|p| p.number != extended.number && p.number <= 4);
        if let Some(other) = others.into_iter().find(|p| p.start < extended.end() && extended.start < p.end()) {
            let what = format!("partitions {} and {} overlap", extended.number, other.number);
            return Err(malformed("position of a partition", other.start, what));
        }
    }
    Ok(table)
}

fn malformed(field: &'static str, offset: u64, what: String) -> Error {
    Error::new(ErrorKind::Malformed { field, offset, what })
}

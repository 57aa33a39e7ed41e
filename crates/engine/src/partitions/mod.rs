//! Partition tables: where the partitions of a disk are. Nothing in here writes.

mod gpt;
mod mbr;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{SliceStore, Store};

/// A sector as the master boot record counts them, in bytes. Disks whose sectors have 4096 bytes have GPT.
const SECTOR: u64 = 512;

/// The partition table of a disk.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Which kind of table.
    pub kind: TableKind,
    /// Bytes that the table calls a sector.
    pub sector_size: u32,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
    /// What a person must know: a copy that was damaged. Whole sentences.
    pub warnings: Vec<String>,
}

/// A kind of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// The master boot record of the PC, with its chain of logical partitions.
    Mbr,
    /// The GUID partition table of UEFI.
    Gpt,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// Its number, as Linux counts: from 1 on, logical ones of a master boot record from 5 on.
    pub number: u32,
    /// Where it begins on the disk, in bytes.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its type: two hexadecimal digits in a master boot record (`83`), a GUID in a GPT.
    pub kind: String,
    /// What is usual in partitions of this type: `Linux`, `EFI system` … Nothing for a rare one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual: Option<&'static str>,
    /// Its name, in a GPT that gives it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it only contains the logical partitions of a master boot record.
    pub extended: bool,
}

impl Partition {
    /// Where it ends on the disk, in bytes.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The partition table of `store`, or nothing if there is none. Every partition of what comes back lies within the store, and
/// none overlaps another (but an extended one holds the logical ones).
///
/// # Errors
/// `Malformed` if there is a table, but what it says cannot be; `Io`.
pub fn read(store: &dyn Store) -> Result<Option<Table>> {
    if store.len() < 2 * SECTOR {
        return Ok(None);
    }
    let mut first = [0; SECTOR as usize];
    store.read_at(0, &mut first)?;
    let table = match mbr::classify(&first) {
        mbr::Kind::Protective => Some(gpt::read(store)?),
        mbr::Kind::Table => Some(mbr::read(store, &first)?),
        // Somebody cleared the first sector, and what says where everything is follows it.
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
/// Those of [`slice`].
pub fn find(store: &dyn Store, number: u32) -> Result<Partition> {
    let table = read(store)?.ok_or_else(|| {
        Error::misuse(format!("there is no partition {number}: no partition table is there"))
            .hint("If it is a partition itself, open it without a number.")
    })?;
    let known: Vec<String> = table.partitions.iter().filter(|p| !p.extended).map(|p| p.number.to_string()).collect();
    let partition = table.partitions.into_iter().find(|p| p.number == number);
    match partition {
        Some(partition) if partition.extended => Err(Error::misuse(format!(
            "partition {number} only contains the logical ones; those to open are: {}",
            known.join(", ")
        ))),
        Some(partition) => Ok(partition),
        None if known.is_empty() => {
            Err(Error::misuse(format!("there is no partition {number}: the partition table is empty")))
        }
        None => Err(Error::misuse(format!("there is no partition {number}; there are: {}", known.join(", ")))),
    }
}

/// What holds for tables of every kind.
fn checked(mut table: Table, len: u64) -> Result<Table> {
    table.partitions.sort_by_key(|p| p.number);
    for p in &table.partitions {
        let end = p.start.checked_add(p.len);
        if p.start == 0 || p.len == 0 || end.is_none_or(|end| end > len) {
            let what = format!(
                "partition {} has {} bytes from byte {} on, but the disk has {len} bytes",
                p.number, p.len, p.start
            );
            return Err(malformed("place of a partition", p.start, what)
                .hint("If the image of the disk was cut short, find a complete copy."));
        }
    }
    let mut by_start: Vec<&Partition> = table.partitions.iter().filter(|p| !p.extended).collect();
    by_start.sort_by_key(|p| p.start);
    for pair in by_start.windows(2) {
        if pair[0].end() > pair[1].start {
            let what = format!("partitions {} and {} overlap", pair[0].number, pair[1].number);
            return Err(malformed("place of a partition", pair[1].start, what));
        }
    }
    // An extended partition overlaps the logical ones that it contains, and no other.
    for extended in table.partitions.iter().filter(|p| p.extended) {
        let others = table.partitions.iter().filter(|p| p.number != extended.number && p.number <= 4);
        if let Some(other) = others.into_iter().find(|p| p.start < extended.end() && extended.start < p.end()) {
            let what = format!("partitions {} and {} overlap", extended.number, other.number);
            return Err(malformed("place of a partition", other.start, what));
        }
    }
    Ok(table)
}

fn malformed(field: &'static str, offset: u64, what: String) -> Error {
    Error::new(ErrorKind::Malformed { field, offset, what })
}

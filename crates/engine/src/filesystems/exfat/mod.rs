//! exFAT, for reading and writing. It shares files, folders and the order of durable changes with FAT; this module has only the
//! differences.
//!
//! Facts are from Microsoft's "exFAT file system specification" (version 1.00), called "the specification" here. New clusters are
//! always linked in the table. Files with contiguous, unlinked clusters stay that way until they grow.

pub(super) mod bitmap;
pub(super) mod boot_sector;
mod entry;
pub(super) mod free_tail;
mod upcase;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

pub(super) use boot_sector::{DIRTY, PERCENT};

use super::fat::Fat;
use super::fat::boot_sector::BootSector;
use super::fat::layout::{EntryLayout, FoundEntry, Parsed, Record};
use super::fat::name::Alias;
use super::fat::node::{ROOT, State};
use super::fat::pages::Pages;
use super::fat::table::Chain;
use crate::error::Result;
use crate::little_endian::{u32_at, u64_at};
use crate::store::Store;
use crate::trees::damaged;
use bitmap::Bitmap;
use entry::Set;
use upcase::UpCase;

/// The largest folder, in bytes (section 6.1 of the specification).
const LARGEST_FOLDER: u32 = 256 << 20;

/// Entries of the root folder that are not files (7.1, 7.2).
const BITMAP: u8 = 0x81;
const UP_CASE: u8 = 0x82;
const LABEL: u8 = 0x83;
/// Type bit of an entry: unknown entries with this bit may be ignored (6.2.1.3).
const BENIGN: u8 = 0x20;

/// Opens the exFAT file system of a store. Nothing is written before the first change.
///
/// # Errors
/// `Malformed`, `Unsupported`, `Io`.
pub fn open(store: Arc<dyn Store>) -> Result<Fat> {
    let (boot, from_copy) = boot_sector::read(&*store)?;
    let plain = Arc::new(ExFat { per_sector: boot.sector / entry::LEN as u32, upcase: UpCase::unicode() });
    let mut state = State::new(store.clone(), boot.clone(), plain)?;
    let mut faults = Vec::new();
    if from_copy {
        faults.push("its main boot sectors are damaged; their copy is used".to_owned());
    }
    if boot.state_byte & boot_sector::FAILURE != 0 {
        faults.push("it is marked as a failing medium".to_owned());
    }
    if boot.tables != 1 {
        faults.push("it is a TexFAT, with two tables".to_owned());
    }
    let root = state.folder_bytes(ROOT)?;
    let system = System::find(&root, boot.only_table == Some(1));
    faults.extend(system.unknown.then(|| "its root folder has entries of an unknown kind".to_owned()));
    let mut taken = vec![state.chain_of(ROOT)?];
    match system.bitmap(&store, &boot, &mut state) {
        Ok((bitmap, chain)) => {
            state.table.bitmap = Some(bitmap);
            taken.push(chain);
        }
        Err(e) => faults.push(e.to_string()),
    }
    match system.upcase(&store, &boot, &mut state) {
        Ok((upcase, chain)) => {
            state.layout = Arc::new(ExFat { per_sector: boot.sector / entry::LEN as u32, upcase });
            taken.push(chain);
        }
        Err(e) => faults.push(e.to_string()),
    }
    if let Err(e) = state.reserve(&taken) {
        faults.push(e.to_string());
    }
    Fat::of(store, state, faults)
}

/// The root folder's entries about the file system itself.
#[derive(Default)]
struct System {
    bitmap: Option<[u8; entry::LEN]>,
    upcase: Option<[u8; entry::LEN]>,
    /// Whether an unknown entry must not be ignored, so that the file system is unsupported.
    unknown: bool,
}

impl System {
    /// Searches the root folder. `second` selects the second bitmap.
    fn find(root: &[u8], second: bool) -> Self {
        let mut system = Self::default();
        let entries = root.as_chunks::<{ entry::LEN }>().0;
        for entry in entries.iter().take_while(|entry| entry[0] != 0) {
            match entry[0] {
                BITMAP if (entry[1] & 1 != 0) == second => system.bitmap = system.bitmap.or(Some(*entry)),
                UP_CASE => system.upcase = system.upcase.or(Some(*entry)),
                BITMAP | LABEL | entry::FILE => {}
                // An unknown entry that is in use, begins a set and must not be ignored.
                kind if kind & 0xc0 == entry::IN_USE && kind & BENIGN == 0 => system.unknown = true,
                _ => {}
            }
        }
        system
    }

    fn bitmap(&self, store: &Arc<dyn Store>, boot: &BootSector, state: &mut State) -> io::Result<(Bitmap, Chain)> {
        let needed = u64::from(boot.clusters).div_ceil(8);
        let chain = self.chain(self.bitmap, "allocation bitmap", needed..=u64::MAX, boot, state)?;
        let pieces = chain.runs().map(|run| (boot.cluster_at(run.start), run.len() as u64 * u64::from(boot.cluster)));
        let mut bitmap = Bitmap::new(Pages::new(store.clone(), vec![pieces.collect()], boot.sector), boot.clusters);
        if chain.iter().any(|cluster| bitmap.is_free(cluster).unwrap_or(true)) {
            return Err(damaged("allocation bitmap", 0, "it marks itself as free"));
        }
        Ok((bitmap, chain))
    }

    fn upcase(&self, store: &Arc<dyn Store>, boot: &BootSector, state: &mut State) -> io::Result<(UpCase, Chain)> {
        let chain = self.chain(self.upcase, "up-case table", 2..=upcase::LONGEST, boot, state)?;
        let mut bytes = vec![0; self.upcase.map_or(0, |entry| u64_at(&entry, 24)) as usize];
        let mut rest = &mut bytes[..];
        for cluster in chain.iter() {
            let len = rest.len().min(boot.cluster as usize);
            let (piece, after) = rest.split_at_mut(len);
            store.read_at(boot.cluster_at(cluster), piece)?;
            rest = after;
        }
        Ok((UpCase::parse(&bytes, self.upcase.map_or(0, |entry| u32_at(&entry, 4)))?, chain))
    }

    /// The clusters of the bitmap or the table at `entry`, whose length must lie within `sound`.
    fn chain(
        &self,
        entry: Option<[u8; entry::LEN]>,
        what: &'static str,
        sound: std::ops::RangeInclusive<u64>,
        boot: &BootSector,
        state: &mut State,
    ) -> io::Result<Chain> {
        let entry = entry.ok_or_else(|| damaged(what, 0, format!("the root folder has no entry for the {what}")))?;
        let len = u64_at(&entry, 24);
        let mut chain = state.table.chain(u32_at(&entry, 20), boot.clusters)?;
        let held = u64::from(chain.count()) * u64::from(boot.cluster);
        if !sound.contains(&len) || held < len {
            return Err(damaged(what, 24, format!("{len} bytes cannot be right")));
        }
        chain.cut(len.div_ceil(boot.cluster.into()) as u32);
        Ok(chain)
    }
}

/// exFAT's entries and names.
struct ExFat {
    /// The number of entries in a sector.
    per_sector: u32,
    upcase: UpCase,
}

impl EntryLayout for ExFat {
    fn name(&self) -> &'static str {
        "exFAT"
    }

    fn checker(&self) -> &'static str {
        "fsck.exfat"
    }

    fn largest(&self) -> u64 {
        u64::MAX
    }

    fn most_entries(&self) -> u32 {
        LARGEST_FOLDER / entry::LEN as u32
    }

    fn unbroken(&self) -> Option<u32> {
        Some(self.per_sector)
    }

    fn folded(&self, name: &str) -> String {
        String::from_utf16_lossy(&self.upcase.folded(name).collect::<Vec<_>>())
    }

    fn parse(&self, folder: &[u8], is_root: bool) -> Parsed {
        entry::parse(folder, is_root)
    }

    fn removed(&self, first: u8) -> u8 {
        first & !entry::IN_USE
    }

    fn new_record(&self, is_folder: bool, now: SystemTime) -> Box<dyn Record> {
        Box::new(Set::new(is_folder, now))
    }

    fn named(&self, name: &str, record: &dyn Record, _aliases: &HashSet<Alias>) -> io::Result<(FoundEntry, Vec<u8>)> {
        let set = Set::named(&record.bytes(), name, &self.upcase);
        let set = set
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidFilename, "the name is too long for its entry set"))?;
        let bytes = set.bytes();
        let slots = 0..(bytes.len() / entry::LEN) as u32;
        Ok((FoundEntry { name: name.to_owned(), alias: None, entry: Box::new(set), slots, at: 0 }, bytes))
    }

    fn dots(&self, _cluster: u32, _above: u32, _now: SystemTime) -> Vec<u8> {
        Vec::new()
    }
}

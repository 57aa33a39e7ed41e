//! Files and folders in memory, and changes to them. `commit` makes them durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use super::boot_sector::{BootSector, Root, Width};
use super::entry::{self, FatEntry};
use super::folder::Folder;
use super::layout::{EntryLayout, FoundEntry, Record};
use super::name;
use super::table::{Chain, ChainEnd, Link, Table};
use crate::store::Store;
use crate::trees::{Attributes, Node, NodeKind, Space, damaged};

/// The root folder.
pub const ROOT: Node = 1;

/// Bytes written at a time.
const PIECE: usize = 1 << 20;

/// The number of zeros written at a time while others wait.
pub(super) const FILL: u64 = 4 << 20;

/// Bytes of a folder read at a time: whole sectors.
const FOLDER_PIECE: usize = 64 << 10;

/// The state of the file system, including changes that are not yet durable.
pub struct State {
    pub(super) store: Arc<dyn Store>,
    pub(super) boot: BootSector,
    pub layout: Arc<dyn EntryLayout>,
    pub table: Table,
    /// Changed sectors of folders, by offset.
    pub(super) sectors: BTreeMap<u64, Vec<u8>>,
    /// The sectors to write after all others are durable.
    pub(super) last: BTreeSet<u64>,
    /// New clusters by the former last cluster of their chain. They are linked once they are durable: until then, the link would
    /// lead to free clusters.
    pub(super) joins: BTreeMap<u32, u32>,
    /// Clusters to be freed once the entries that named them are durably removed: the first cluster of each run, and the run's end.
    pub(super) freed: BTreeMap<u32, u32>,
    /// Runs of clusters that belong to no file, although the table does not mark them.
    reserved: Vec<Range<u32>>,
    /// Whether written contents may not be durable yet.
    pub(super) contents_written: bool,
    /// Whether this program marked the file system as mounted.
    pub(super) marked: bool,
    /// Whether the file system was already marked as mounted.
    pub(super) was_marked: bool,
    /// The count of free clusters last written to FSInfo.
    pub(super) told_free: Option<u32>,
    /// Why no more changes are accepted: a write failed, so the state of the store is unknown.
    pub(super) failed: Option<String>,
    nodes: HashMap<Node, Known>,
    /// Nodes by the offset of their record.
    places: HashMap<u64, Node>,
    folders: HashMap<Node, Folder>,
    next: Node,
}

/// A file or folder.
struct Known {
    parent: Node,
    /// The offset of its record; `None` for the root and for a removed file.
    place: Option<u64>,
    entry: Box<dyn Record>,
    chain: Option<Chain>,
    /// Number of open handles.
    held: u32,
    removed: bool,
}

/// The old name of a renamed or moved file. It will be removed.
pub struct OldName {
    folder: Node,
    at: u32,
    entry: Box<dyn Record>,
    /// The sector with the record of the new name, and the sectors with all its entries.
    new: u64,
    parts: BTreeSet<u64>,
}

impl Known {
    fn new(parent: Node, place: Option<u64>, entry: Box<dyn Record>, chain: Option<Chain>) -> Self {
        Self { parent, place, entry, chain, held: 0, removed: false }
    }
}

impl State {
    pub fn new(store: Arc<dyn Store>, boot: BootSector, layout: Arc<dyn EntryLayout>) -> io::Result<Self> {
        let table = Table::new(store.clone(), &boot);
        let mut entry = layout.new_record(true, SystemTime::UNIX_EPOCH);
        if let Root::Cluster(first) = boot.root {
            entry.set_first(first);
        }
        let root = Known::new(ROOT, None, entry, None);
        let mut state = Self {
            store,
            boot,
            layout,
            table,
            sectors: BTreeMap::new(),
            last: BTreeSet::new(),
            joins: BTreeMap::new(),
            freed: BTreeMap::new(),
            reserved: Vec::new(),
            contents_written: false,
            marked: false,
            was_marked: false,
            told_free: None,
            failed: None,
            nodes: HashMap::from([(ROOT, root)]),
            places: HashMap::new(),
            folders: HashMap::new(),
            next: ROOT + 1,
        };
        state.was_marked = !state.was_clean()?;
        state.read_info()?;
        Ok(state)
    }

    pub fn lookup(&mut self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let Some(name) = name.to_str() else { return Err(ErrorKind::NotFound.into()) };
        let folder = self.folder(folder)?;
        let found = folder.find(name).map(|(_, held)| held.node);
        found.ok_or_else(|| if folder.is_cut() { cut_folder() } else { ErrorKind::NotFound.into() })
    }

    pub fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let known = self.known(node)?;
        let entry = &known.entry;
        let (kind, size) = if entry.is_folder() { (NodeKind::Folder, 0) } else { (NodeKind::File, entry.size()) };
        Ok(Attributes {
            modified: entry.modified(),
            accessed: entry.accessed(),
            created: entry.created(),
            read_only: entry.read_only(),
            ..Attributes::new(kind, size, node)
        })
    }

    /// Why some names of a folder are unknown: they lie past the end of the store.
    pub fn cut(&mut self, folder: Node) -> io::Result<Option<io::Error>> {
        Ok(self.folder(folder)?.is_cut().then(cut_folder))
    }

    /// The known names in a folder, their nodes, and whether each is a folder.
    pub fn list(&mut self, folder: Node) -> io::Result<Vec<(String, Node, bool)>> {
        let held: Vec<_> = self.folder(folder)?.held.values().map(|h| (h.name.clone(), h.node)).collect();
        held.into_iter().map(|(name, node)| Ok((name, node, self.known(node)?.entry.is_folder()))).collect()
    }

    /// The pieces of the store that hold the `len` bytes at `offset` of a file, in order, and how many of these bytes the file has.
    /// Bytes beyond the pieces are zeros.
    pub fn pieces(&mut self, file: Node, offset: u64, len: usize) -> io::Result<(usize, Vec<(u64, usize)>)> {
        let entry = &self.file(file)?.entry;
        let (end, valid) = (entry.size().min(offset.saturating_add(len as u64)), entry.valid());
        if offset >= end {
            return Ok((0, Vec::new()));
        }
        self.load_chain(file)?;
        let chain = self.known(file)?.chain.as_ref().ok_or(ErrorKind::InvalidData)?;
        Ok(((end - offset) as usize, split(&self.boot, chain, offset, end.min(valid))?))
    }

    /// Writes contents, in place or past the end. The entry and the chain change only on success.
    pub fn write(&mut self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).ok_or(ErrorKind::FileTooLarge)?;
        let (size, valid) = self.sizes(file)?;
        let taken = self.lengthen(file, end)?;
        let written = self.zero(file, valid, offset.max(valid)).and_then(|()| self.put(file, offset, data));
        self.settle(file, taken, (end.max(size), end.max(valid)), written)
    }

    pub fn must_fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        let (_, valid) = self.sizes(file)?;
        // exFAT records how many bytes were written; the rest reads as zeros anyway.
        Ok(to.saturating_sub(valid) > FILL && (writes || !self.is_exfat()))
    }

    /// Writes the first of the zeros before `to`, if there are very many. Returns whether there were any.
    pub fn fill(&mut self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        if !self.must_fill(file, to, writes)? {
            return Ok(false);
        }
        let (_, valid) = self.sizes(file)?;
        if to.checked_add(writes.into()).is_none_or(|end| end > self.layout.largest()) {
            return Err(too_large());
        }
        self.load_chain(file)?;
        let held = self.known(file)?.chain.as_ref().map_or(0, Chain::count);
        // Write only if all of it fits.
        if to.div_ceil(self.boot.cluster.into()) > u64::from(held) + u64::from(self.table.free()?) {
            return Err(io::Error::new(ErrorKind::StorageFull, "the file system is full"));
        }
        self.write(file, valid, &vec![0; FILL as usize])?;
        Ok(true)
    }

    /// Changes the size. Returns whether [`State::cut_clusters`] has clusters to free once the entry is durable.
    pub fn set_len(&mut self, file: Node, len: u64) -> io::Result<bool> {
        let (size, valid) = self.sizes(file)?;
        if len > size {
            let taken = self.lengthen(file, len)?;
            // exFAT records how many bytes were written.
            let written = if self.is_exfat() { valid } else { len };
            let done = self.zero(file, valid, written);
            self.settle(file, taken, (len, written), done)?;
            return Ok(false);
        }
        if len == size {
            return Ok(false);
        }
        self.load_chain(file)?;
        let kept = len.div_ceil(u64::from(self.boot.cluster)) as u32;
        let known = self.known_mut(file)?;
        let surplus = known.chain.as_ref().is_some_and(|c| c.count() > kept);
        known.entry.set_size(len, valid.min(len));
        known.entry.set_modified(SystemTime::now());
        if len == 0 {
            // The new entry no longer names the chain, so cutting it need not wait.
            known.entry.set_first(0);
            let chain = known.chain.take().unwrap_or_default();
            known.chain = Some(Chain::default());
            self.give_back(&chain)?;
        }
        self.put_entry(file)?;
        Ok(len != 0 && surplus)
    }

    /// Cuts off the clusters past the end of a truncated file whose new size is durable. They become free once the shortened chain
    /// is durable too.
    pub fn cut_clusters(&mut self, file: Node, moving: &RwLock<()>) -> io::Result<()> {
        self.begin()?;
        let _exclusive = moving.write().unwrap_or_else(PoisonError::into_inner);
        let kept = self.known(file)?.entry.size().div_ceil(u64::from(self.boot.cluster)) as u32;
        let Some(chain) = self.known_mut(file)?.chain.as_mut() else { return Ok(()) };
        let rest = chain.cut(kept);
        let last = chain.last();
        self.give_back(&rest)?;
        last.map_or(Ok(()), |last| self.table.set(last, Link::End))
    }

    pub fn set_times(
        &mut self,
        node: Node,
        modified: Option<SystemTime>,
        accessed: Option<SystemTime>,
    ) -> io::Result<()> {
        self.refuse_faulty(node)?;
        let known = self.known_mut(node)?;
        modified.into_iter().for_each(|t| known.entry.set_modified(t));
        accessed.into_iter().for_each(|t| known.entry.set_accessed(t));
        self.put_entry(node)
    }

    /// Creates an empty file or folder.
    pub fn create(&mut self, folder: Node, name: &OsStr, is_folder: bool) -> io::Result<Node> {
        let name = name::checked(name, self.layout.name())?;
        if self.folder(folder)?.find(name).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let now = SystemTime::now();
        let mut entry = self.layout.new_record(is_folder, now);
        let mut chain = Chain::default();
        if is_folder {
            let taken = self.table.take(1, None)?;
            chain.push(taken[0]);
            entry.set_first(taken[0]);
            let len = u64::from(self.boot.cluster);
            if self.is_exfat() {
                entry.set_size(len, len);
            }
            if let Err(e) = self.write_new_folder(folder, taken[0], now) {
                self.table.set(taken[0], Link::Free)?;
                return Err(e);
            }
        }
        match self.add_name(folder, name, &*entry) {
            Ok((place, found)) => {
                let node = self.number(Known::new(folder, Some(place), found.entry.copy(), Some(chain)));
                self.places.insert(place, node);
                self.folder(folder)?.insert(&found, node);
                self.touch(folder)?;
                Ok(node)
            }
            Err(e) => {
                // No entry names the clusters and nothing was written: they are free at once.
                chain.iter().try_for_each(|cluster| self.table.set(cluster, Link::Free))?;
                Err(e)
            }
        }
    }

    /// Removes a file or an empty folder.
    pub fn remove(&mut self, folder: Node, name: &OsStr) -> io::Result<()> {
        let node = self.lookup(folder, name)?;
        let at = self.slot(folder, node)?;
        if self.known(node)?.entry.is_folder() {
            self.refuse_full(node)?;
        }
        // Report a damaged chain before anything changes.
        self.load_chain(node)?;
        self.unname(folder, at)?;
        self.drop_node(node)?;
        self.touch(folder)
    }

    fn refuse_full(&mut self, node: Node) -> io::Result<()> {
        let checker = self.layout.checker();
        let folder = self.folder(node)?;
        match (folder.is_empty(), folder.held.is_empty()) {
            (true, _) => Ok(()),
            (_, false) => Err(ErrorKind::DirectoryNotEmpty.into()),
            _ => {
                let what = format!("the folder has damaged entries: run {checker} first");
                Err(io::Error::new(ErrorKind::DirectoryNotEmpty, what))
            }
        }
    }

    /// Fails if the folder, or the folder of the file, has damaged entries. They may be files, and a change might lose them.
    pub fn refuse_damaged(&mut self, node: Node) -> io::Result<()> {
        let Ok(known) = self.known(node) else { return Ok(()) };
        let folder = if known.entry.is_folder() { node } else { known.parent };
        if known.removed {
            return Ok(());
        }
        let checker = self.layout.checker();
        let Some(why) = self.folder(folder)?.damage() else { return Ok(()) };
        let what = format!("the folder is read-only because it has damaged entries ({why}): run {checker} first");
        Err(io::Error::new(ErrorKind::ReadOnlyFilesystem, what))
    }

    /// Gives a node a new name, in the same folder or another. Returns the old name, if it must be removed; it still exists.
    pub fn rename(
        &mut self,
        folder: Node,
        name: &OsStr,
        to_folder: Node,
        to_name: &OsStr,
        replace: bool,
    ) -> io::Result<Option<OldName>> {
        let new_name = name::checked(to_name, self.layout.name())?.to_owned();
        let node = self.lookup(folder, name)?;
        self.refuse_faulty(node)?;
        let at = self.slot(folder, node)?;
        let existing = self.folder(to_folder)?.find(&new_name).map(|(at, held)| (at, held.node, held.name.clone()));
        let is_folder = self.known(node)?.entry.is_folder();
        if is_folder {
            self.refuse_loop(node, to_folder)?;
        }
        let existing = match existing {
            Some((_, other, shown)) if other == node => {
                if shown == new_name && folder == to_folder {
                    return Ok(None);
                }
                None
            }
            other => other,
        };
        let mut entry = self.known(node)?.entry.copy();
        let was = entry.copy();
        entry.set_leaving(false);
        let mut parts = BTreeSet::new();
        let place = match existing {
            Some((other_at, other, _)) => {
                self.refuse_replacing(other, is_folder, replace)?;
                self.load_chain(other)?;
                self.take_over(to_folder, other_at, other, node)?
            }
            None => {
                let (place, found) = self.add_name(to_folder, &new_name, &*entry)?;
                self.folder(to_folder)?.insert(&found, node);
                parts = self.sectors_of(to_folder, found.slots)?;
                self.known_mut(node)?.entry = found.entry;
                place
            }
        };
        if is_folder && folder != to_folder {
            self.point_up(node, to_folder)?;
        }
        self.known_mut(node)?.parent = to_folder;
        self.put_at(node, place)?;
        self.touch(folder)?;
        self.touch(to_folder)?;
        Ok(Some(OldName { folder, at, entry: was, new: self.sector_of(place), parts }))
    }

    /// The node and those of its ancestors whose records span two sectors, outermost first. Such records cannot be changed
    /// atomically; only other programs write them.
    pub fn in_two_sectors(&self, node: Node) -> Vec<Node> {
        let mut found = Vec::new();
        let mut at = node;
        // The root and removed files have no place.
        while let Some(known) = self.nodes.get(&at)
            && let Some(place) = known.place
            && found.len() <= self.nodes.len()
        {
            if self.parted(place, &*known.entry) {
                found.push(at);
            }
            at = known.parent;
        }
        found.reverse();
        found
    }

    fn parted(&self, place: u64, entry: &dyn Record) -> bool {
        place % u64::from(self.boot.sector) + entry.fixed() as u64 > self.boot.sector.into()
    }

    /// Writes the entries of a node again in another place. The old entries still exist afterwards.
    pub fn relocate(&mut self, node: Node) -> io::Result<OldName> {
        self.refuse_faulty(node)?;
        let known = self.known(node)?;
        let (folder, mut entry) = (known.parent, known.entry.copy());
        let was = entry.copy();
        entry.set_leaving(false);
        let at = self.slot(folder, node)?;
        let name = self.folder(folder)?.held.get(&at).map(|held| held.name.clone()).ok_or(ErrorKind::NotFound)?;
        let (place, found) = self.add_name(folder, &name, &*entry)?;
        self.folder(folder)?.insert(&found, node);
        let parts = self.sectors_of(folder, found.slots)?;
        self.known_mut(node)?.entry = found.entry;
        self.put_at(node, place)?;
        Ok(OldName { folder, at, entry: was, new: self.sector_of(place), parts })
    }

    /// Records the new offset of a node's record.
    fn put_at(&mut self, node: Node, place: u64) -> io::Result<()> {
        if let Some(old) = self.known_mut(node)?.place.replace(place) {
            self.places.remove(&old);
        }
        self.places.insert(place, node);
        Ok(())
    }

    /// Whether one sector holds both the new name and the old record, so that a single write changes both.
    pub fn in_one_sector(&mut self, old: &OldName) -> bool {
        let Ok(place) = self.slot_at(old.folder, old.at) else { return false };
        // The long name of the old record may be in another sector; at worst it is left behind.
        let sector = self.sector_of(place);
        !self.parted(place, &*old.entry) && sector == old.new && old.parts.iter().all(|part| *part == sector)
    }

    /// Marks the record of an old name, before the record of the new name is written. After a crash, the mark shows which of the
    /// two is the old one.
    pub fn mark_leaving(&mut self, old: &OldName) -> io::Result<()> {
        let place = self.slot_at(old.folder, old.at)?;
        self.last.insert(old.new);
        // A record in two sectors cannot be marked atomically. It is only moved, under the same name.
        if self.parted(place, &*old.entry) {
            return Ok(());
        }
        let mut entry = old.entry.copy();
        entry.set_leaving(true);
        self.put_bytes(place, &entry.bytes()[..entry.fixed()])
    }

    /// Removes a node's previous name.
    pub fn remove_name(&mut self, old: &OldName) -> io::Result<()> {
        self.unname(old.folder, old.at)
    }

    fn sector_of(&self, place: u64) -> u64 {
        place - place % u64::from(self.boot.sector)
    }

    /// The sectors that hold these entries of a folder.
    fn sectors_of(&mut self, folder: Node, slots: Range<u32>) -> io::Result<BTreeSet<u64>> {
        slots.map(|slot| self.slot_at(folder, slot).map(|place| self.sector_of(place))).collect()
    }

    pub fn hold(&mut self, file: Node) {
        if let Some(known) = self.nodes.get_mut(&file) {
            known.held += 1;
        }
    }

    pub fn release(&mut self, file: Node) -> io::Result<()> {
        let Some(known) = self.nodes.get_mut(&file) else { return Ok(()) };
        known.held = known.held.saturating_sub(1);
        if known.held > 0 || !known.removed {
            return Ok(());
        }
        self.begin()?;
        self.forget(file)
    }

    pub fn space(&mut self) -> io::Result<Space> {
        let cluster = u64::from(self.boot.cluster);
        let freed: u64 = self.freed.iter().map(|(begin, end)| u64::from(end - begin)).sum();
        let free = u64::from(self.table.free()?) + freed;
        Ok(Space::new(u64::from(self.boot.clusters) * cluster, free * cluster, self.boot.cluster))
    }

    /// Whether released clusters are not free yet.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// The clusters of a file or folder.
    pub fn chain_of(&mut self, node: Node) -> io::Result<Chain> {
        self.load_chain(node)?;
        Ok(self.known(node)?.chain.clone().unwrap_or_default())
    }

    /// Reserves these clusters: they belong to no file.
    ///
    /// # Errors
    /// Damage, if two of the chains share a cluster.
    pub fn reserve(&mut self, chains: &[Chain]) -> io::Result<()> {
        for run in chains.iter().flat_map(Chain::runs) {
            self.refuse_reserved(&run)?;
            self.reserved.push(run);
        }
        Ok(())
    }

    fn refuse_reserved(&self, run: &Range<u32>) -> io::Result<()> {
        match self.reserved.iter().find(|other| run.start < other.end && other.start < run.end) {
            None => Ok(()),
            Some(other) => {
                let cluster = run.start.max(other.start);
                Err(damaged("first cluster", 0, format!("cluster {cluster} belongs to the file system itself")))
            }
        }
    }

    // Files

    fn known(&self, node: Node) -> io::Result<&Known> {
        self.nodes.get(&node).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn known_mut(&mut self, node: Node) -> io::Result<&mut Known> {
        self.nodes.get_mut(&node).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn file(&self, node: Node) -> io::Result<&Known> {
        let known = self.known(node)?;
        if known.entry.is_folder() { Err(ErrorKind::IsADirectory.into()) } else { Ok(known) }
    }

    fn number(&mut self, known: Known) -> Node {
        let node = self.next;
        self.next += 1;
        self.nodes.insert(node, known);
        node
    }

    fn is_exfat(&self) -> bool {
        self.boot.width == Width::ExFat
    }

    /// Fails for a damaged record: rewriting it would make it look intact.
    fn refuse_faulty(&self, node: Node) -> io::Result<()> {
        let known = self.known(node)?;
        let fault = known.entry.fault().map(|fault| damaged("directory entries", known.place.unwrap_or(0), fault));
        fault.map_or(Ok(()), Err)
    }

    /// The size of a file, and the number of bytes that were written.
    fn sizes(&self, node: Node) -> io::Result<(u64, u64)> {
        self.file(node).map(|known| (known.entry.size(), known.entry.valid()))
    }

    /// The first cluster of a file or folder. In FAT12 and FAT16 the high half does not count and may hold anything.
    fn first(&self, entry: &dyn Record) -> u32 {
        match self.boot.width {
            Width::Bits12 | Width::Bits16 => entry.first() & 0xffff,
            Width::Bits32 | Width::ExFat => entry.first(),
        }
    }

    /// Reads the chain of a file or folder, unless it is already in memory.
    fn load_chain(&mut self, node: Node) -> io::Result<()> {
        let known = self.known(node)?;
        if known.chain.is_some() {
            return Ok(());
        }
        self.refuse_faulty(node)?;
        let (entry, place) = (known.entry.copy(), known.place.unwrap_or(0));
        let (is_folder, size) = (entry.is_folder(), entry.size());
        let cluster = u64::from(self.boot.cluster);
        let most = self.most_clusters(is_folder);
        // FAT does not record the size of a folder, and neither file system records that of the root.
        let sized = !is_folder || self.is_exfat() && node != ROOT;
        let mut chain = match self.first(&*entry) {
            0 if sized => Chain::default(),
            first if entry.contiguous() => self.table.contiguous(first, size.div_ceil(cluster), most)?,
            first => self.table.chain(first, most)?,
        };
        if sized && u64::from(chain.count()) * cluster < size {
            let what = format!("a file of {size} bytes has {} clusters of {cluster}", chain.count());
            return Err(damaged("size", place, what));
        }
        if sized && is_folder {
            chain.cut(size.div_ceil(cluster) as u32);
        }
        if node != ROOT {
            chain.runs().try_for_each(|run| self.refuse_reserved(&run))?;
        }
        self.known_mut(node)?.chain = Some(chain);
        Ok(())
    }

    /// The offset of the root folder, if it has its own area.
    pub(super) fn fixed_root(&self) -> Option<u64> {
        if let Root::Fixed { at, .. } = self.boot.root { Some(at) } else { None }
    }

    /// Whether some of these clusters belong to the file system itself. Files with such clusters are neither read nor changed.
    pub(super) fn is_reserved(&self, chain: &Chain) -> bool {
        chain.runs().any(|run| self.refuse_reserved(&run).is_err())
    }

    fn most_clusters(&self, is_folder: bool) -> u32 {
        let cluster = u64::from(self.boot.cluster);
        match is_folder {
            true => (u64::from(self.layout.most_entries()) * entry::LEN as u64 / cluster).max(1) as u32,
            false => self.boot.clusters,
        }
    }

    /// The clusters of a record, even if it is damaged, and how their chain ends.
    pub(super) fn trace(&mut self, entry: &dyn Record) -> io::Result<(Chain, ChainEnd)> {
        let most = self.most_clusters(entry.is_folder());
        match self.first(entry) {
            0 => Ok((Chain::default(), ChainEnd::Sound)),
            first if entry.contiguous() => {
                let count = entry.size().div_ceil(self.boot.cluster.into());
                Ok((self.table.contiguous(first, count, most)?, ChainEnd::Sound))
            }
            first => self.table.trace(first, most),
        }
    }

    /// Allocates the clusters that a file of `end` bytes lacks, and adds them to its chain without linking them yet.
    fn lengthen(&mut self, file: Node, end: u64) -> io::Result<Vec<u32>> {
        if end > self.layout.largest() {
            return Err(too_large());
        }
        self.file(file)?;
        self.load_chain(file)?;
        let (count, last) = match &self.known(file)?.chain {
            Some(chain) => (chain.count(), chain.last()),
            None => (0, None),
        };
        let needed = end.div_ceil(u64::from(self.boot.cluster));
        let needed = u32::try_from(needed).map_err(|_| ErrorKind::FileTooLarge)?;
        let taken = if needed > count { self.table.take(needed - count, last)? } else { Vec::new() };
        if !taken.is_empty() {
            self.link(file)?;
        }
        let chain = self.known_mut(file)?.chain.get_or_insert_default();
        taken.iter().for_each(|cluster| chain.push(*cluster));
        Ok(taken)
    }

    /// Links the clusters of a file or folder in the table, unless they are linked. The chain must be in memory.
    fn link(&mut self, node: Node) -> io::Result<()> {
        let known = self.known_mut(node)?;
        if !known.entry.contiguous() {
            return Ok(());
        }
        known.entry.set_linked();
        let chain = known.chain.clone().unwrap_or_default();
        for (cluster, next) in chain.iter().zip(chain.iter().skip(1).map(Link::Next).chain([Link::End])) {
            self.table.set(cluster, next)?;
        }
        Ok(())
    }

    /// Completes [`State::lengthen`]: on success links the clusters and sets the size and the number of written bytes; on failure
    /// frees the clusters.
    fn settle(
        &mut self,
        file: Node,
        taken: Vec<u32>,
        (size, valid): (u64, u64),
        written: io::Result<()>,
    ) -> io::Result<()> {
        let before = taken.len() as u32;
        let known = self.known_mut(file)?;
        let chain = known.chain.get_or_insert_default();
        let old = chain.count() - before;
        if let Err(e) = written {
            chain.cut(old);
            taken.into_iter().try_for_each(|cluster| self.table.set(cluster, Link::Free))?;
            return Err(e);
        }
        let last_old = old.checked_sub(1).and_then(|index| chain.at(index));
        if old == 0 {
            known.entry.set_first(chain.first().unwrap_or(0));
        }
        known.entry.set_size(size, valid);
        known.entry.set_modified(SystemTime::now());
        known.entry.set_archive();
        if let (Some((last, _)), Some(first)) = (last_old, taken.first()) {
            self.joins.insert(last, *first);
        }
        self.put_entry(file)
    }

    /// Writes zeros to part of a file.
    fn zero(&mut self, file: Node, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; (to.saturating_sub(from)).min(PIECE as u64) as usize];
        let mut at = from;
        while at < to {
            let len = (to - at).min(PIECE as u64) as usize;
            self.put(file, at, &zeros[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// Writes contents to the existing clusters of a file.
    fn put(&mut self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let chain = self.known(file)?.chain.as_ref().ok_or(ErrorKind::InvalidData)?;
        let pieces = split(&self.boot, chain, offset, offset + data.len() as u64)?;
        self.contents_written = true;
        let mut buffer = Vec::new();
        let mut rest = data;
        for (at, len) in pieces {
            let (piece, after) = rest.split_at(len);
            for (i, part) in piece.chunks(PIECE).enumerate() {
                // A store overwrites the data that it writes.
                buffer.clear();
                buffer.extend_from_slice(part);
                self.store.write_clobbering(at + (i * PIECE) as u64, &mut buffer)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Marks clusters as to be freed.
    fn give_back(&mut self, chain: &Chain) -> io::Result<()> {
        for run in chain.runs() {
            let before = self.freed.range(..run.end).next_back();
            if let Some((begin, _)) = before.filter(|(_, end)| **end > run.start) {
                let twice = run.start.max(*begin);
                return Err(damaged("file allocation table", 0, format!("cluster {twice} belongs to two files")));
            }
        }
        self.freed.extend(chain.runs().map(|run| (run.start, run.end)));
        Ok(())
    }

    /// Drops a node whose name was removed. Frees its clusters unless it is open.
    fn drop_node(&mut self, node: Node) -> io::Result<()> {
        let known = self.known_mut(node)?;
        known.removed = true;
        let place = known.place.take();
        let held = known.held > 0;
        if let Some(place) = place {
            self.places.remove(&place);
        }
        self.folders.remove(&node);
        if held { Ok(()) } else { self.forget(node) }
    }

    fn forget(&mut self, node: Node) -> io::Result<()> {
        let Some(known) = self.nodes.remove(&node) else { return Ok(()) };
        self.give_back(&known.chain.unwrap_or_default())
    }

    // Folders

    /// The folder; reads it unless it is in memory.
    fn folder(&mut self, node: Node) -> io::Result<&mut Folder> {
        if !self.folders.contains_key(&node) {
            if !self.known(node)?.entry.is_folder() {
                return Err(ErrorKind::NotADirectory.into());
            }
            let bytes = self.folder_bytes(node)?;
            let parsed = self.parse_folder(node, &bytes)?;
            self.folders.insert(node, parsed);
        }
        self.folders.get_mut(&node).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn parse_folder(&mut self, node: Node, bytes: &[u8]) -> io::Result<Folder> {
        let mut failed = None;
        let slots = match (node, self.boot.root, &self.known(node)?.chain) {
            (ROOT, Root::Fixed { len, .. }, _) => len / entry::LEN as u64,
            (_, _, Some(chain)) => u64::from(chain.count()) * u64::from(self.boot.cluster) / entry::LEN as u64,
            (_, _, None) => 0,
        };
        let parsed = self.layout.parse(bytes, node == ROOT);
        let folder = Folder::new(&self.layout.clone(), bytes, parsed, slots as u32, |found| {
            let place = self.slot_at(node, found.at).unwrap_or_else(|e| {
                failed = Some(e);
                0
            });
            if let Some(known) = self.places.get(&place) {
                return *known;
            }
            let number = self.number(Known::new(node, Some(place), found.entry.copy(), None));
            self.places.insert(place, number);
            number
        });
        failed.map_or(Ok(folder), Err)
    }

    /// The current bytes of a folder, including unwritten changes, up to the piece that ends with an unused entry.
    pub fn folder_bytes(&mut self, node: Node) -> io::Result<Vec<u8>> {
        if !matches!((node, self.boot.root), (ROOT, Root::Fixed { .. })) {
            self.load_chain(node)?;
        }
        self.bytes_of(self.known(node)?.chain.as_ref())
    }

    /// The bytes of a folder with these clusters. Without clusters, those of the root in its own area.
    pub(super) fn bytes_of(&self, chain: Option<&Chain>) -> io::Result<Vec<u8>> {
        let pieces = match (chain, self.boot.root) {
            (Some(chain), _) => split(&self.boot, chain, 0, u64::from(chain.count()) * u64::from(self.boot.cluster))?,
            (None, Root::Fixed { at, len }) => vec![(at, len as usize)],
            (None, Root::Cluster(_)) => Vec::new(),
        };
        let mut bytes = Vec::new();
        // A large cluster may hold few entries, so it is read in pieces.
        let parts = pieces.into_iter().flat_map(|(at, len)| {
            (0..len).step_by(FOLDER_PIECE).map(move |into| (at + into as u64, FOLDER_PIECE.min(len - into)))
        });
        for (at, len) in parts {
            let begin = bytes.len();
            bytes.resize(begin + len, 0);
            let there = self.read_before_end(at, &mut bytes[begin..])?;
            bytes.truncate(begin + there);
            let piece = &mut bytes[begin..];
            for (sector, changed) in self.sectors.range(at..at + there as u64) {
                let into = (sector - at) as usize;
                let end = (into + changed.len()).min(there);
                piece[into..end].copy_from_slice(&changed[..end - into]);
            }
            if there < len || piece[len - entry::LEN] == entry::END {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads whole sectors, and returns how many bytes. Of a store that is cut short, and therefore not written, reads those before its
    /// end.
    fn read_before_end(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        let is_cut = !self.store.writable() || self.boot.len > self.store.len();
        let past_end = |e: &io::Error| is_cut && e.kind() == ErrorKind::UnexpectedEof;
        match self.store.read_at(at, out) {
            Err(e) if past_end(&e) => {}
            read => return read.map(|()| out.len()),
        }
        let sector = self.boot.sector as usize;
        for (i, piece) in out.chunks_mut(sector).enumerate() {
            match self.store.read_at(at + (i * sector) as u64, piece) {
                Err(e) if past_end(&e) => return Ok(i * sector),
                read => read?,
            }
        }
        Ok(out.len())
    }

    /// The offset in the store of an entry of a folder.
    fn slot_at(&mut self, folder: Node, slot: u32) -> io::Result<u64> {
        let into = u64::from(slot) * entry::LEN as u64;
        if let (ROOT, Root::Fixed { at, .. }) = (folder, self.boot.root) {
            return Ok(at + into);
        }
        self.load_chain(folder)?;
        let chain = self.known(folder)?.chain.as_ref().ok_or(ErrorKind::InvalidData)?;
        let cluster = u64::from(self.boot.cluster);
        let (number, _) = chain.at((into / cluster) as u32).ok_or(ErrorKind::InvalidData)?;
        Ok(self.boot.cluster_at(number) + into % cluster)
    }

    /// The index of the first entry of a node's record in its folder.
    fn slot(&mut self, folder: Node, node: Node) -> io::Result<u32> {
        let found = self.folder(folder)?.held.iter().find(|(_, held)| held.node == node).map(|(at, _)| *at);
        found.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Adds a named record to a folder, which grows if it is full.
    fn add_name(&mut self, folder: Node, name: &str, entry: &dyn Record) -> io::Result<(u64, FoundEntry)> {
        let layout = self.layout.clone();
        let (mut found, bytes) = layout.named(name, entry, &self.folder(folder)?.aliases)?;
        let count = found.slots.end;
        let begin = loop {
            match self.folder(folder)?.room(count) {
                Some(begin) => break begin,
                None => self.grow_folder(folder)?,
            }
        };
        let (end, space) = (self.folder(folder)?.end(), self.folder(folder)?.slots());
        (found.slots, found.at) = (begin..begin + count, begin + found.at);
        // Skipped entries are marked as free, so that they do not end the folder.
        for slot in end..begin {
            let place = self.slot_at(folder, slot)?;
            self.put_bytes(place, &[layout.removed(bytes[0])])?;
        }
        for (slot, bytes) in found.slots.clone().zip(bytes.chunks(entry::LEN)) {
            let place = self.slot_at(folder, slot)?;
            self.put_bytes(place, bytes)?;
        }
        let place = self.slot_at(folder, found.at)?;
        let mut sectors = match self.is_exfat() {
            true => self.sectors_of(folder, found.slots.clone())?,
            // If its long name is missing, a file still has the short one.
            false => BTreeSet::from([self.sector_of(place)]),
        };
        // The entries after the last used one are undefined, so the next entry must mark the end.
        let next = found.slots.end;
        if next > end && next < space {
            let place = self.slot_at(folder, next)?;
            if self.bytes_at(place)?[0] != entry::END {
                sectors.insert(self.sector_of(place));
            }
            self.put_bytes(place, &[entry::END; entry::LEN])?;
        }
        // An exFAT set without its names is damaged, and bytes after the end are not entries. So the record is written last.
        if sectors.len() > 1 {
            self.last.insert(self.sector_of(place));
        }
        Ok((place, found))
    }

    /// Removes the name whose record begins at entry `at`.
    fn unname(&mut self, folder: Node, at: u32) -> io::Result<()> {
        let Some(held) = self.folder(folder)?.remove(at) else { return Err(ErrorKind::NotFound.into()) };
        let record = self.slot_at(folder, at)?;
        let places: Vec<_> = held.slots.map(|slot| self.slot_at(folder, slot)).collect::<io::Result<_>>()?;
        if self.is_exfat() {
            // An exFAT set without its names is damaged, but names without a set are harmless. So the record is removed first.
            let others = places.iter().map(|place| self.sector_of(*place)).filter(|at| *at != self.sector_of(record));
            let others: Vec<_> = others.collect();
            self.last.extend(others);
        }
        self.remove_entries(&places)
    }

    /// Marks entries as free.
    pub(super) fn remove_entries(&mut self, places: &[u64]) -> io::Result<()> {
        for place in places {
            let first = self.layout.removed(self.bytes_at(*place)?[0]);
            self.put_bytes(*place, &[first])?;
        }
        Ok(())
    }

    /// Adds a cluster of zeros to a folder.
    fn grow_folder(&mut self, folder: Node) -> io::Result<()> {
        let full = || io::Error::new(ErrorKind::StorageFull, "the folder is full");
        let entries = self.boot.cluster / entry::LEN as u32;
        let fixed = folder == ROOT && matches!(self.boot.root, Root::Fixed { .. });
        if fixed || self.folder(folder)?.slots().saturating_add(entries) > self.layout.most_entries() {
            return Err(full());
        }
        self.load_chain(folder)?;
        let last = self.known(folder)?.chain.as_ref().and_then(Chain::last);
        let taken = self.table.take(1, last)?;
        self.contents_written = true;
        let zeros =
            self.store.write_clobbering(self.boot.cluster_at(taken[0]), &mut vec![0; self.boot.cluster as usize]);
        if let Err(e) = zeros {
            self.table.set(taken[0], Link::Free)?;
            return Err(e);
        }
        self.link(folder)?;
        match last {
            Some(last) => drop(self.joins.insert(last, taken[0])),
            None => self.known_mut(folder)?.entry.set_first(taken[0]),
        }
        let cluster = u64::from(self.boot.cluster);
        let exfat = self.is_exfat();
        let known = self.known_mut(folder)?;
        let chain = known.chain.get_or_insert_default();
        chain.push(taken[0]);
        let len = u64::from(chain.count()) * cluster;
        self.folder(folder)?.grow(entries);
        if exfat {
            self.known_mut(folder)?.entry.set_size(len, len);
            self.put_entry(folder)?;
        }
        Ok(())
    }

    /// Writes the cluster of a new folder: `.` and `..` for FAT, then zeros.
    fn write_new_folder(&mut self, parent: Node, cluster: u32, now: SystemTime) -> io::Result<()> {
        let mut bytes = self.layout.dots(cluster, self.number_above(parent)?, now);
        bytes.resize(self.boot.cluster as usize, 0);
        self.contents_written = true;
        self.store.write_clobbering(self.boot.cluster_at(cluster), &mut bytes)
    }

    /// The cluster that `..` names in a child folder of `parent`: 0 for the root.
    fn number_above(&self, parent: Node) -> io::Result<u32> {
        if parent == ROOT { Ok(0) } else { Ok(self.first(&*self.known(parent)?.entry)) }
    }

    /// Updates the `..` entry of a moved folder.
    fn point_up(&mut self, node: Node, parent: Node) -> io::Result<()> {
        if self.is_exfat() {
            return Ok(());
        }
        let place = self.slot_at(node, 1)?;
        let number = self.number_above(parent)?;
        let mut above = FatEntry(self.bytes_at(place)?);
        if above.alias() == *b"..         " {
            above.set_first(number);
            self.put_bytes(place, &above.0)?;
        }
        Ok(())
    }

    fn refuse_loop(&self, node: Node, to: Node) -> io::Result<()> {
        let mut above = to;
        for _ in 0..=self.nodes.len() {
            if above == node {
                return Err(io::Error::new(ErrorKind::InvalidInput, "a folder cannot be moved into itself"));
            }
            if above == ROOT {
                return Ok(());
            }
            above = self.known(above)?.parent;
        }
        Err(ErrorKind::InvalidInput.into())
    }

    fn refuse_replacing(&mut self, other: Node, by_folder: bool, replace: bool) -> io::Result<()> {
        if !replace {
            return Err(ErrorKind::AlreadyExists.into());
        }
        match (by_folder, self.known(other)?.entry.is_folder()) {
            (true, false) => Err(ErrorKind::NotADirectory.into()),
            (false, true) => Err(ErrorKind::IsADirectory.into()),
            (true, true) => self.refuse_full(other),
            _ => Ok(()),
        }
    }

    /// Makes the record of `other` name the contents of `node`, and drops `other`. The name stays valid at every moment, because a
    /// sector is written as a whole.
    fn take_over(&mut self, folder: Node, at: u32, other: Node, node: Node) -> io::Result<u64> {
        let place = self.known(other)?.place.ok_or(ErrorKind::NotFound)?;
        let entry = self.known(other)?.entry.with_contents_of(&*self.known(node)?.entry);
        self.put_bytes(place, &entry.bytes()[..entry.fixed()])?;
        self.drop_node(other)?;
        self.known_mut(node)?.entry = entry;
        if let Some(held) = self.folder(folder)?.held.get_mut(&at) {
            held.node = node;
        }
        Ok(place)
    }

    /// Updates a folder's modification time.
    fn touch(&mut self, folder: Node) -> io::Result<()> {
        // A folder whose record still spans two sectors keeps its time: nothing depends on it.
        let known = self.known(folder)?;
        if folder == ROOT || known.place.is_some_and(|place| self.parted(place, &*known.entry)) {
            return Ok(());
        }
        self.known_mut(folder)?.entry.set_modified(SystemTime::now());
        self.put_entry(folder)
    }

    // Entries

    /// Writes a node's record, if it still has one.
    fn put_entry(&mut self, node: Node) -> io::Result<()> {
        let known = self.known(node)?;
        let Some(place) = known.place else { return Ok(()) };
        if self.parted(place, &*known.entry) {
            return Err(io::Error::other("a file's entries span two sectors"));
        }
        let bytes = known.entry.bytes();
        let fixed = known.entry.fixed();
        self.put_bytes(place, &bytes[..fixed])
    }

    /// Changes bytes of a folder's sector, in memory.
    fn put_bytes(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        let sector = u64::from(self.boot.sector);
        let (begin, into) = (place / sector * sector, (place % sector) as usize);
        let store = &self.store;
        let held = match self.sectors.entry(begin) {
            std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
            std::collections::btree_map::Entry::Vacant(empty) => {
                let mut bytes = vec![0; sector as usize];
                store.read_at(begin, &mut bytes)?;
                empty.insert(bytes)
            }
        };
        held[into..into + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn bytes_at(&self, place: u64) -> io::Result<[u8; entry::LEN]> {
        let sector = u64::from(self.boot.sector);
        let mut bytes = [0; entry::LEN];
        match self.sectors.get(&(place / sector * sector)) {
            Some(held) => bytes.copy_from_slice(&held[(place % sector) as usize..][..entry::LEN]),
            None => self.store.read_at(place, &mut bytes)?,
        }
        Ok(bytes)
    }
}

/// The error for names in the part of a folder that lies past the end of the store.
pub fn cut_folder() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the rest of the folder lies past the end of the volume")
}

fn too_large() -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, "FAT files must be smaller than 4 GiB")
}

/// The locations in the store of the bytes `from..to` of a file, in order, with neighbouring pieces merged.
fn split(boot: &BootSector, chain: &Chain, from: u64, to: u64) -> io::Result<Vec<(u64, usize)>> {
    let cluster = u64::from(boot.cluster);
    let mut pieces = Vec::new();
    let mut at = from;
    while at < to {
        let (number, run) = chain.at((at / cluster) as u32).ok_or(ErrorKind::InvalidData)?;
        let into = at % cluster;
        let len = (u64::from(run) * cluster - into).min(to - at);
        pieces.push((boot.cluster_at(number) + into, len as usize));
        at += len;
    }
    Ok(pieces)
}

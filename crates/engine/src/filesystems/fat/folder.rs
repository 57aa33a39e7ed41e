//! A folder in memory: its contents and its free entries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::entry::{END, LEN};
use super::layout::{EntryLayout, FoundEntry, Parsed};
use super::name::{Alias, shown};
use crate::trees::Node;

/// A folder that has been read.
pub struct Folder {
    /// The files and folders, by the index of the first entry of their record.
    pub held: BTreeMap<u32, FolderItem>,
    by_name: HashMap<String, u32>,
    by_alias: HashMap<String, u32>,
    /// Aliases in use.
    pub aliases: HashSet<Alias>,
    /// Which entries up to `end` are in use.
    used: Vec<bool>,
    /// The number of entries that fit.
    slots: u32,
    layout: Arc<dyn EntryLayout>,
    /// Why some entries that may have been a file or folder are damaged.
    damage: Option<&'static str>,
    /// Whether it contains parts of names without a file.
    stray_names: bool,
    is_cut: bool,
}

/// A file or folder in a folder.
pub struct FolderItem {
    pub name: String,
    pub node: Node,
    /// The indexes of its entries, including those of the name.
    pub slots: Range<u32>,
    alias: Option<Alias>,
}

impl Folder {
    /// A folder with these bytes and space for `slots` entries. `node` assigns a number to each file and folder.
    pub fn new(
        layout: &Arc<dyn EntryLayout>,
        bytes: &[u8],
        parsed: Parsed,
        slots: u32,
        mut node: impl FnMut(&FoundEntry) -> Node,
    ) -> Self {
        let Parsed { found, end, damaged, stray_names } = parsed;
        let entries = bytes.as_chunks::<LEN>().0.iter().take(end as usize);
        let mut folder = Self {
            held: BTreeMap::new(),
            by_name: HashMap::new(),
            by_alias: HashMap::new(),
            aliases: HashSet::new(),
            used: entries.map(|entry| layout.removed(entry[0]) != entry[0]).collect(),
            slots,
            layout: layout.clone(),
            damage: damaged.first().map(|damaged| damaged.why),
            stray_names: !stray_names.is_empty(),
            is_cut: bytes.len() < slots as usize * LEN
                && bytes.len().checked_sub(LEN).is_none_or(|last| bytes[last] != END),
        };
        for found in found {
            // If several have the same name, the first one is used.
            let before = folder.by_name.get(&layout.folded(&found.name)).copied();
            let node = node(&found);
            folder.insert(&found, node);
            before.into_iter().for_each(|at| folder.prefer(&found.name, at));
        }
        folder
    }

    /// Whether the store ends before the folder does.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether removing the folder would lose nothing. Damaged entries count as contents.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.damage.is_none() && !self.stray_names
    }

    /// Why some entries that may have been a file or folder are damaged. Overwriting such entries would lose them.
    pub fn damage(&self) -> Option<&'static str> {
        self.damage
    }

    /// Adds a file or folder that was found or created.
    pub fn insert(&mut self, found: &FoundEntry, node: Node) {
        self.prefer(&found.name, found.at);
        if let Some(alias) = found.alias {
            self.by_alias.insert(self.layout.folded(&shown(&alias, 0)), found.at);
            self.aliases.insert(alias);
        }
        if self.used.len() < found.slots.end as usize {
            self.used.resize(found.slots.end as usize, false);
        }
        self.used[found.slots.start as usize..found.slots.end as usize].fill(true);
        let held = FolderItem { name: found.name.clone(), node, slots: found.slots.clone(), alias: found.alias };
        self.held.insert(found.at, held);
    }

    /// Removes the file or folder whose record begins at entry `at`.
    pub fn remove(&mut self, at: u32) -> Option<FolderItem> {
        let held = self.held.remove(&at)?;
        self.used[held.slots.start as usize..held.slots.end as usize].fill(false);
        let alias = held.alias.map(|alias| shown(&alias, 0)).unwrap_or_default();
        for (names, name) in [(&mut self.by_name, &held.name), (&mut self.by_alias, &alias)] {
            let folded = self.layout.folded(name);
            if names.get(&folded) == Some(&at) {
                names.remove(&folded);
            }
        }
        if let Some(alias) = held.alias {
            self.aliases.remove(&alias);
        }
        Some(held)
    }

    /// Finds a name, ignoring case. Returns the index of the first entry of the record, and the file or folder.
    pub fn find(&self, name: &str) -> Option<(u32, &FolderItem)> {
        let folded = self.layout.folded(name);
        let at = self.by_name.get(&folded).or_else(|| self.by_alias.get(&folded))?;
        Some((*at, self.held.get(at)?))
    }

    /// Makes a name refer to the record at entry `at`.
    fn prefer(&mut self, name: &str, at: u32) {
        self.by_name.insert(self.layout.folded(name), at);
    }

    /// The number of entries before the first unused one. The bytes after that entry are undefined.
    pub fn end(&self) -> u32 {
        self.used.len() as u32
    }

    /// The first of `count` consecutive free entries.
    pub fn room(&self, count: u32) -> Option<u32> {
        let mut free = 0u32;
        for (at, used) in (0..self.slots).zip(self.used.iter().chain(std::iter::repeat(&false))) {
            let begins = |entries| at.is_multiple_of(entries) && (count <= entries || !free.is_multiple_of(entries));
            let before = if self.layout.unbroken().is_some_and(begins) { 0 } else { free };
            free = if *used { 0 } else { before + 1 };
            if free == count {
                return Some(at + 1 - count);
            }
        }
        None
    }

    /// The number of entries that fit.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Adds space for this many entries.
    pub fn grow(&mut self, entries: u32) {
        self.slots += entries;
    }
}

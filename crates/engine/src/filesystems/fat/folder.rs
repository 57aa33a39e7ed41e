//! A folder in memory: its contents and its free entries.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::entry::{self, Found};
use super::name::{Alias, folded, shown};
use crate::trees::Node;

/// A folder that has been read.
#[derive(Default)]
pub struct Folder {
    /// Its contents, by the index of their last entry.
    pub held: BTreeMap<u32, Held>,
    by_name: HashMap<String, u32>,
    by_alias: HashMap<String, u32>,
    /// Aliases in use.
    pub aliases: HashSet<Alias>,
    /// Which of its entries are in use.
    used: Vec<bool>,
    /// Entries before the first that was never used; anything may follow it.
    pub end: u32,
}

/// A file or folder in a folder.
pub struct Held {
    pub name: String,
    pub node: Node,
    /// Index of its first entry.
    pub begin: u32,
    alias: Alias,
}

impl Folder {
    /// Parses a folder's bytes; `node` gives each of its entries a number.
    pub fn parse(bytes: &[u8], mut node: impl FnMut(&Found) -> Node) -> Self {
        let (found, end) = entry::parse(bytes);
        let mut folder = Self { end, ..Self::default() };
        let slots = bytes.as_chunks::<{ entry::LEN }>().0;
        folder.used = (0..).zip(slots).map(|(i, slot)| i < end && slot[0] != entry::REMOVED).collect();
        for found in found {
            // The first of several with the same name counts.
            let before = folder.by_name.get(&folded(&found.name)).copied();
            let node = node(&found);
            folder.insert(&found, node);
            before.into_iter().for_each(|at| folder.prefer(&found.name, at));
        }
        folder
    }

    /// Adds something that was found or created.
    pub fn insert(&mut self, found: &Found, node: Node) {
        let alias = found.entry.alias();
        self.prefer(&found.name, found.at);
        self.by_alias.insert(folded(&shown(&alias, 0)), found.at);
        self.aliases.insert(alias);
        self.used[found.begin as usize..=found.at as usize].fill(true);
        self.end = self.end.max(found.at + 1);
        self.held.insert(found.at, Held { name: found.name.clone(), node, begin: found.begin, alias });
    }

    /// Removes what ends at entry `at`.
    pub fn remove(&mut self, at: u32) -> Option<Held> {
        let held = self.held.remove(&at)?;
        self.used[held.begin as usize..=at as usize].fill(false);
        for (names, name) in [(&mut self.by_name, &held.name), (&mut self.by_alias, &shown(&held.alias, 0))] {
            let folded = folded(name);
            if names.get(&folded) == Some(&at) {
                names.remove(&folded);
            }
        }
        self.aliases.remove(&held.alias);
        Some(held)
    }

    /// Finds a name, ignoring case: the index of its last entry, and the file or folder.
    pub fn find(&self, name: &str) -> Option<(u32, &Held)> {
        let folded = folded(name);
        let at = self.by_name.get(&folded).or_else(|| self.by_alias.get(&folded))?;
        Some((*at, self.held.get(at)?))
    }

    /// Makes a name refer to what ends at entry `at`.
    fn prefer(&mut self, name: &str, at: u32) {
        self.by_name.insert(folded(name), at);
    }

    /// The first of `count` consecutive free entries.
    pub fn room(&self, count: u32) -> Option<u32> {
        let mut free = 0;
        for (at, used) in (0..).zip(&self.used) {
            free = if *used { 0 } else { free + 1 };
            if free == count {
                return Some(at + 1 - count);
            }
        }
        None
    }

    /// The number of entries it has space for.
    pub fn slots(&self) -> u32 {
        self.used.len() as u32
    }

    /// Adds space for `entries` more.
    pub fn grow(&mut self, entries: u32) {
        self.used.resize(self.used.len() + entries as usize, false);
    }
}

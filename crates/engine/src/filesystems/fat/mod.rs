//! FAT12, FAT16 and FAT32 with long names, for reading and writing; and what exFAT has in common with them, which is all
//! but `layout` and the boot sectors.
//!
//! Facts are from Microsoft's "FAT: General Overview of On-Disk Format" (version 1.03, 2000), called "the
//! specification" here, and from what Linux, mtools and dosfstools do where it leaves a choice.
//!
//! Crash safety: contents are written at once; everything else is kept in memory and written by `commit`, in an order
//! in which no entry ever names clusters of another file: allocated clusters, then entries, then freed clusters, each
//! made durable before the next. Freed clusters are not reused before that. So at worst clusters are lost, or a file
//! that was just moved still has its old name too.

pub mod boot;
mod commit;
mod entry;
mod folder;
pub(super) mod layout;
pub(super) mod name;
pub(super) mod node;
pub(super) mod pages;
pub(super) mod table;
pub(super) mod time;

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use crate::error::Result;
use crate::store::Store;
use crate::trees::{self, Attributes, Entry, NewNode, Node, NodeKind, Renaming, Space, Tree, Use};
use boot::Boot;
use layout::Layout;
use node::{OldName, State};

pub(crate) use time::date_of;

/// A store's FAT or exFAT file system.
pub struct Fat {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// Held for reading while contents are read without the state's lock, and for writing while clusters become free.
    moving: RwLock<()>,
    layout: Arc<dyn Layout>,
    /// Whether the store is shorter than the file system, which forbids writing.
    cut_short: bool,
    /// What else forbids writing.
    faults: Vec<String>,
    unclean: bool,
}

impl Fat {
    /// Opens the file system. Nothing is written before the first change.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`, `Io`.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let mut bytes = vec![0; store.len().min(boot::LEN as u64) as usize];
        store.read_at(0, &mut bytes)?;
        let boot = Boot::parse(&bytes)?;
        if boot.data + u64::from(boot.cluster) > store.len() {
            return Err(trees::damaged("all sectors", 32, "the store ends before the first file").into());
        }
        let state = State::new(store.clone(), boot, Arc::new(entry::Plain))?;
        Self::of(store, state, Vec::new())
    }

    /// A file system that is not written if there are `faults`.
    pub(super) fn of(store: Arc<dyn Store>, mut state: State, faults: Vec<String>) -> Result<Self> {
        let cut_short = state.boot.len > store.len();
        let unclean = !state.was_clean()?;
        let layout = state.layout.clone();
        Ok(Self { store, state: Mutex::new(state), moving: RwLock::new(()), layout, cut_short, faults, unclean })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a change: marks the file system as mounted first.
    fn change(&self) -> io::Result<MutexGuard<'_, State>> {
        if !self.writable() {
            return Err(trees::read_only());
        }
        let mut state = self.state();
        state.begin()?;
        Ok(state)
    }

    fn commit(&self, state: &mut State) -> io::Result<()> {
        state.commit(&self.moving)
    }

    /// Makes records that lie in two sectors lie in one, before they are changed: that of `node`, and those above it.
    fn gather(&self, node: Node) -> io::Result<()> {
        let mut state = self.change()?;
        for node in state.in_two_sectors(node) {
            let old = state.relocate(node)?;
            self.replace_name(&mut state, &old)?;
        }
        Ok(())
    }

    /// Removes a name that has another beside it. The new one must be durable before: a crash in between leaves both, never
    /// neither.
    fn replace_name(&self, state: &mut State, old: &OldName) -> io::Result<()> {
        if !state.in_one_sector(old) {
            self.commit(state)?;
            state.begin()?;
        }
        state.remove_name(old)
    }

    /// Carries out a change. If the file system is full although clusters were released, frees them and tries once
    /// more; commits if many changes wait.
    fn with_room<T>(&self, mut change: impl FnMut(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.change()?;
        let mut result = change(&mut state);
        if matches!(&result, Err(e) if e.kind() == io::ErrorKind::StorageFull) && state.has_freed() {
            self.commit(&mut state)?;
            state.begin()?;
            result = change(&mut state);
        }
        if state.waits() {
            self.commit(&mut state)?;
        }
        result
    }
}

impl Tree for Fat {
    fn root(&self) -> Node {
        node::ROOT
    }

    fn writable(&self) -> bool {
        self.store.writable() && !self.cut_short && self.faults.is_empty()
    }

    fn folds_case(&self) -> bool {
        true
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.unclean {
            let checker = self.layout.checker();
            warnings.push(format!("the file system was not unmounted cleanly: run {checker} before writing to it"));
        }
        if !self.faults.is_empty() {
            warnings.push(format!("the file system can only be read: {}", self.faults.join("; ")));
        }
        if self.cut_short {
            warnings.push("the file system is longer than its volume: files at its end are lost".into());
        }
        warnings
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.state().lookup(folder, name)
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.state().attributes(node)
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        let mut state = self.state();
        let all = state.list(folder)?;
        let entry = |(name, node, is_folder)| {
            let kind = if is_folder { NodeKind::Folder } else { NodeKind::File };
            Entry { name: OsString::from(name), node, kind }
        };
        Ok(all.into_iter().map(entry).collect())
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        let (read, pieces) = state.pieces(file, offset, out.len())?;
        let _unmoved = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        drop(state);
        let mut rest = &mut out[..read];
        for (at, len) in pieces {
            let (piece, after) = rest.split_at_mut(len);
            self.store.read_at(at, piece)?;
            rest = after;
        }
        rest.fill(0);
        Ok(read)
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.gather(file)?;
        self.with_room(|state| state.write(file, offset, data))
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.gather(file)?;
        let given_back = self.with_room(|state| state.set_len(file, len))?;
        if given_back {
            // The entry must be durable before the clusters past the new end are freed.
            let mut state = self.change()?;
            self.commit(&mut state)?;
            state.cut_clusters(file, &self.moving)?;
        }
        Ok(())
    }

    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.gather(node)?;
        self.change()?.set_times(node, modified, accessed)
    }

    fn create(&self, folder: Node, name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        self.gather(folder)?;
        self.with_room(|state| state.create(folder, name, false))
    }

    fn make_folder(&self, folder: Node, name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        self.gather(folder)?;
        self.with_room(|state| state.create(folder, name, true))
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        let replace = match how {
            Renaming::Replace => true,
            Renaming::Keep => false,
            Renaming::Exchange => return Err(self.without("exchange of names")),
        };
        let replaced = self.state().lookup(to_folder, to_name).unwrap_or(to_folder);
        [folder, replaced].into_iter().try_for_each(|node| self.gather(node))?;
        let Some(old) = self.with_room(|state| state.rename(folder, name, to_folder, to_name, replace))? else {
            return Ok(());
        };
        self.replace_name(&mut *self.change()?, &old)
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        // It works where the file system is full, too.
        let gathered = self.gather(folder);
        gathered.or_else(|e| if e.kind() == io::ErrorKind::StorageFull { Ok(()) } else { Err(e) })?;
        self.with_room(|state| state.remove(folder, name))
    }

    fn open(&self, file: Node, _usage: Use) -> io::Result<()> {
        self.state().hold(file);
        Ok(())
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.state().release(file)
    }

    fn flush(&self) -> io::Result<()> {
        self.commit(&mut self.state())
    }

    fn finish(&self) -> io::Result<()> {
        let mut state = self.state();
        self.commit(&mut state)?;
        state.end()
    }

    fn space(&self) -> io::Result<Space> {
        self.state().space()
    }
}

impl Drop for Fat {
    fn drop(&mut self) {
        // Callers who want to know whether it succeeded have called `finish`.
        let _ = self.finish();
    }
}

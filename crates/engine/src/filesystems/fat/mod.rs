//! FAT12, FAT16 and FAT32 with long names, for reading and writing.
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
mod name;
mod node;
mod table;
mod time;

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use crate::error::Result;
use crate::store::Store;
use crate::trees::{self, Attributes, Entry, NewNode, Node, NodeKind, Renaming, Space, Tree, Use};
use boot::Boot;
use node::State;

pub(crate) use time::date_of;

/// A store's FAT file system.
pub struct Fat {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// Held for reading while contents are read without the state's lock, and for writing while clusters become free.
    moving: RwLock<()>,
    /// Whether the store is shorter than the file system, which forbids writing.
    cut_short: bool,
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
        let cut_short = boot.len > store.len();
        let mut state = State::new(store.clone(), boot)?;
        let unclean = !state.was_clean()?;
        Ok(Self { store, state: Mutex::new(state), moving: RwLock::new(()), cut_short, unclean })
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
        self.store.writable() && !self.cut_short
    }

    fn folds_case(&self) -> bool {
        true
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.unclean {
            warnings.push("the file system was not unmounted cleanly: run fsck.vfat before writing to it".into());
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
        Ok(read)
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with_room(|state| state.write(file, offset, data))
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
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
        self.change()?.set_times(node, modified, accessed)
    }

    fn create(&self, folder: Node, name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        self.with_room(|state| state.create(folder, name, false))
    }

    fn make_folder(&self, folder: Node, name: &OsStr, _new: &NewNode) -> io::Result<Node> {
        self.with_room(|state| state.create(folder, name, true))
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        let replace = match how {
            Renaming::Replace => true,
            Renaming::Keep => false,
            Renaming::Exchange => return Err(self.without("exchange of names")),
        };
        let Some(old) = self.with_room(|state| state.rename(folder, name, to_folder, to_name, replace))? else {
            return Ok(());
        };
        // The new name must be durable before the old one is removed: a crash in between leaves both, never neither.
        let mut state = self.change()?;
        if !state.in_one_sector(&old) {
            self.commit(&mut state)?;
            state.begin()?;
        }
        state.remove_name(&old)
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
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

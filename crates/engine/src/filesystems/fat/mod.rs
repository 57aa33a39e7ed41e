//! FAT12, FAT16 and FAT32 with long names, for reading and writing. Also everything that exFAT shares with them: all except
//! `layout` and the boot sectors.
//!
//! Facts are from Microsoft's "FAT: General Overview of On-Disk Format" (version 1.03, 2000), called "the specification" here.
//! Where it leaves a choice, they are from Linux, mtools and dosfstools.
//!
//! Crash safety: contents are written at once. Everything else is kept in memory, and `commit` writes it in four steps, each made
//! durable before the next: allocated clusters, the links to them, entries, freed clusters. So no entry ever names clusters of
//! another file, and a crash at worst loses clusters. Freed clusters are not reused before the last step.
//!
//! A file that is renamed from one sector to another briefly has both names. The old name is first marked as such. After a crash,
//! the next opening removes it (`survey`). If two names of the same clusters lack this mark, another program made them, and nothing
//! is written.

pub(crate) mod boot_sector;
mod commit;
mod entry;
mod folder;
pub(super) mod free_tail;
pub(super) mod layout;
pub(super) mod name;
pub(super) mod node;
pub(super) mod pages;
mod survey;
pub(super) mod table;
pub(super) mod time;

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::store::Store;
use crate::trees::{self, Attributes, Entry, LeftOut, Listing, NewNode, Node, NodeKind, Renaming, Space, Tree, Use};
use boot_sector::BootSector;
use layout::EntryLayout;
use node::{OldName, State};

pub(crate) use time::date_of;

/// While a file is filled with zeros, others may need the state. How often the filling thread pauses for them, and for how long.
const TURNS: usize = 20;
const TURN: Duration = Duration::from_micros(100);

/// The number of zero pieces after which they are made durable, so that a later flush does not wait for all of them.
const DURABLE: usize = 16;

/// A store's FAT or exFAT file system.
pub struct Fat {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// The number of threads waiting for the state.
    waiting: AtomicUsize,
    /// The number of zero pieces written.
    fills: AtomicUsize,
    /// Held for reading while contents are read without the state's lock, and for writing while clusters become free.
    moving: RwLock<()>,
    layout: Arc<dyn EntryLayout>,
    /// Whether the store is shorter than the file system, which forbids writing.
    cut_short: bool,
    /// Other reasons for refusing writes.
    faults: Vec<String>,
    /// Other warnings for the user.
    notes: Vec<String>,
    unclean: bool,
}

impl Fat {
    /// Opens the file system. Nothing is written before the first change.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`, `Io`.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let mut bytes = vec![0; store.len().min(boot_sector::LEN as u64) as usize];
        store.read_at(0, &mut bytes)?;
        let boot = BootSector::parse(&bytes)?;
        if boot.data + u64::from(boot.cluster) > store.len() {
            return Err(trees::damaged("number of sectors", 32, "the store ends before the first file").into());
        }
        let state = State::new(store.clone(), boot, Arc::new(entry::FatLayout))?;
        Self::of(store, state, Vec::new())
    }

    /// A file system. It is read-only if there are `faults`.
    pub(super) fn of(store: Arc<dyn Store>, mut state: State, mut faults: Vec<String>) -> Result<Self> {
        let cut_short = state.boot.len > store.len();
        let unclean = !state.was_clean()?;
        let mut notes = Vec::new();
        if store.writable() && !cut_short && faults.is_empty() {
            // A file system that cannot be read completely is not written.
            let survey = state.survey(unclean).unwrap_or_else(|e| survey::Survey {
                faults: vec![format!("its folders cannot be checked: {e}")],
                ..survey::Survey::default()
            });
            faults = survey.faults;
            notes = survey.notes;
            if faults.is_empty() {
                state.remove_entries(&survey.superfluous)?;
            }
        }
        let layout = state.layout.clone();
        Ok(Self {
            store,
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            fills: AtomicUsize::new(0),
            moving: RwLock::new(()),
            layout,
            cut_short,
            faults,
            notes,
            unclean,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Fills a file with zeros up to `to`. Returns its previous size if that has changed.
    fn filled(&self, file: Node, to: u64, writes: bool) -> io::Result<Option<u64>> {
        if !self.must_fill(file, to, writes)? {
            return Ok(None);
        }
        let before = self.attributes(file)?.size;
        let mut some = false;
        loop {
            match self.fill(file, to, writes) {
                Ok(true) => some = true,
                Ok(false) => return Ok(some.then_some(before)),
                Err(e) => {
                    self.unfill(file, some.then_some(before), to);
                    return Err(e);
                }
            }
        }
    }

    /// Removes the zeros again, unless someone wrote after them in the meantime.
    fn unfill(&self, file: Node, before: Option<u64>, to: u64) {
        let Some(before) = before else { return };
        let grown = self.attributes(file).is_ok_and(|now| (before..=to).contains(&now.size) && now.size != before);
        if grown {
            // Report the original error, not one from the clean-up.
            let _ = self.set_len(file, before);
        }
    }

    /// The state, for a change. Marks the file system as mounted first.
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

    /// Moves the records of `node` and its ancestors into one sector each before a change, if they span two. Fails if the folder
    /// has damaged entries.
    fn gather(&self, node: Node) -> io::Result<()> {
        let mut state = self.change()?;
        state.refuse_damaged(node)?;
        self.join_records(&mut state, node)
    }

    /// Moves the records of `node` and its ancestors into one sector each, if they span two.
    fn join_records(&self, state: &mut State, node: Node) -> io::Result<()> {
        for node in state.in_two_sectors(node) {
            let old = state.relocate(node)?;
            self.replace_name(state, &old)?;
        }
        Ok(())
    }

    /// Removes an old name once the new one is durable. A crash in between leaves both names, never neither, and the old one is
    /// marked. The old name is removed at once, because the new one must not change before.
    fn replace_name(&self, state: &mut State, old: &OldName) -> io::Result<()> {
        if state.in_one_sector(old) {
            return state.remove_name(old);
        }
        state.mark_leaving(old)?;
        self.commit(state)?;
        state.begin()?;
        state.remove_name(old)?;
        self.commit(state)
    }

    /// Makes a change. If the file system is full but clusters were released, frees them and tries again. Commits if many changes
    /// wait.
    fn with_room<T>(&self, change: impl FnMut(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.change()?;
        let result = self.make_room(&mut state, change);
        if state.waits() {
            self.commit(&mut state)?;
        }
        result
    }

    fn make_room<T>(&self, state: &mut State, mut change: impl FnMut(&mut State) -> io::Result<T>) -> io::Result<T> {
        let result = change(state);
        if matches!(&result, Err(e) if e.kind() == io::ErrorKind::StorageFull) && state.has_freed() {
            self.commit(state)?;
            state.begin()?;
            return change(state);
        }
        result
    }
}

/// The error of a file whose contents lie past the end of the store.
fn cut_file(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "its contents reach past the end of the volume"),
        _ => error,
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
        if self.unclean && self.faults.is_empty() {
            let checker = self.layout.checker();
            warnings.push(format!("the file system was not unmounted cleanly: run {checker} before writing to it"));
        }
        if !self.faults.is_empty() {
            warnings.push(format!("the file system is read-only: {}", self.faults.join("; ")));
        }
        warnings.extend(self.notes.iter().cloned());
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
        let Listing { entries, left_out } = self.list_all(folder)?;
        if left_out.is_empty() { Ok(entries) } else { Err(node::cut_folder()) }
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        let mut state = self.state();
        let all = state.list(folder)?;
        let entry = |(name, node, is_folder)| {
            let kind = if is_folder { NodeKind::Folder } else { NodeKind::File };
            Entry { name: OsString::from(name), node, kind }
        };
        let rest =
            |why: io::Error| LeftOut { name: OsString::new(), kind: NodeKind::Special, why: why.into(), listed: false };
        let left_out = state.cut(folder)?.map(rest).into_iter().collect();
        Ok(Listing { entries: all.into_iter().map(entry).collect(), left_out })
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        let (read, pieces) = state.pieces(file, offset, out.len())?;
        let _unmoved = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        drop(state);
        let mut rest = &mut out[..read];
        for (at, len) in pieces {
            let (piece, after) = rest.split_at_mut(len);
            self.store.read_at(at, piece).map_err(cut_file)?;
            rest = after;
        }
        rest.fill(0);
        Ok(read)
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        let before = self.filled(file, offset, true)?;
        self.gather(file)?;
        let written = self.with_room(|state| state.write(file, offset, data));
        if written.is_err() {
            self.unfill(file, before, offset);
        }
        written
    }

    fn must_fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        self.state().must_fill(file, to, writes)
    }

    fn fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        if !self.must_fill(file, to, writes)? {
            return Ok(false);
        }
        self.gather(file)?;
        let some = self.with_room(|state| state.fill(file, to, writes))?;
        if some {
            // A mutex is not fair: without a pause, this thread would take it again first.
            for _ in 0..TURNS {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    break;
                }
                thread::sleep(TURN);
            }
            if self.fills.fetch_add(1, Ordering::Relaxed) % DURABLE == DURABLE - 1 {
                self.store.flush()?;
            }
        }
        Ok(some)
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.filled(file, len, false)?;
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
            Renaming::Exchange => return Err(self.without("exchanging names")),
        };
        let replaced = self.state().lookup(to_folder, to_name).unwrap_or(to_folder);
        [folder, to_folder, replaced].into_iter().try_for_each(|node| self.gather(node))?;
        let mut state = self.change()?;
        // A record in two sectors cannot be marked as an old name.
        if let Ok(renamed) = state.lookup(folder, name) {
            self.join_records(&mut state, renamed)?;
        }
        // The pending order of sectors must not conflict with the order of the two names.
        if !state.last.is_empty() {
            self.commit(&mut state)?;
            state.begin()?;
        }
        // The lock is held until both names are durable and the old one is marked, so nobody sees both.
        match self.make_room(&mut state, |state| state.rename(folder, name, to_folder, to_name, replace))? {
            Some(old) => self.replace_name(&mut state, &old),
            None => Ok(()),
        }
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        // Removing must work on a full file system too.
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
        // A caller that needs the result has already called `finish`.
        let _ = self.finish();
    }
}

//! Names in a tree of encrypted files, and the files that some formats keep for them.
//!
//! The whole form of a shortened name is stored before the node that needs it, and removed after it. A new folder gets its own file
//! under another name, and then its name; one that is removed loses its name first. So a program killed at any moment leaves a node
//! with its old or its new name, and at most a file or an empty folder without a use, which listings report.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BOTH, Stacked};
use crate::error::Error;
use crate::file_formats::new_files::numbered;
use crate::file_formats::{FolderFile, NameIv, NameRole, StoredFolder, no_name};
use crate::random;
use crate::trees::{Entry, HeldNode, LeftOut, Listing, NewNode, Node, Renaming, Unsynced, is_name};

/// The most folders whose [`NameIv`]s are remembered.
const MOST_IVS: usize = 4096;

/// The longest whole name, in bytes: 256 bytes in Base64.
const LONGEST_WHOLE: usize = 344;

/// Permissions of files that hold names: everybody who may enter a folder may read them, and nobody changes them.
const READABLE: u16 = 0o444;

/// What is known of names.
#[derive(Default)]
pub(super) struct Names {
    /// How many names were left out when a folder was last listed, by its number in the tree below. Its node changes if it is
    /// forgotten and found again.
    left_out: Mutex<HashMap<u64, LeftOutNames>>,
    /// Whether names that do not decrypt are shown as they are stored.
    shows_stored: AtomicBool,
    /// By the folder's node, until that is given back: its number could be another folder's afterwards.
    ivs: Mutex<HashMap<Node, NameIv>>,
    /// Held while a shortened name is made or removed, so that its node is never without the whole name.
    shortening: Mutex<()>,
    /// Whether files that hold names were written and not synced yet.
    unsynced: Unsynced,
}

impl Names {
    pub(super) fn shows_stored(&self) -> bool {
        self.shows_stored.load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self, node: Node) {
        self.ivs().remove(&node);
    }

    fn ivs(&self) -> MutexGuard<'_, HashMap<Node, NameIv>> {
        self.ivs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many names of a folder were left out.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeftOutNames {
    /// Those that do not decrypt.
    undecrypted: usize,
    /// Those that decrypt to what no file can be called.
    unfit: usize,
    /// Those that the tree below left out: what is stored under them is damaged or incomplete.
    damaged: usize,
}

/// A stored name.
struct Stored {
    /// The name of the node.
    name: OsString,
    /// The file that holds the whole name, and the whole name, if `name` is a shortened one.
    whole: Option<(OsString, OsString)>,
}

/// How a name in the tree below is shown.
pub(crate) enum Shown {
    /// As this name.
    Name(OsString),
    /// Not at all: it belongs to the format.
    Hidden,
    /// Not at all: it does not decrypt, for this reason.
    Without(Error),
    /// Not at all: it decrypts, and no file can be called so, for this reason.
    Unfit(Error),
}

impl Stacked {
    /// How many names were left out of listings because they do not decrypt, or to invalid ones.
    pub fn left_out(&self) -> usize {
        let LeftOutNames { undecrypted, unfit, .. } = self.all_left_out();
        undecrypted + unfit
    }

    fn all_left_out(&self) -> LeftOutNames {
        let left_out = self.names.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        left_out.values().fold(LeftOutNames::default(), |all, of| LeftOutNames {
            undecrypted: all.undecrypted + of.undecrypted,
            unfit: all.unfit + of.unfit,
            damaged: all.damaged + of.damaged,
        })
    }

    /// Warnings about names that were left out.
    pub(super) fn name_warnings(&self) -> impl Iterator<Item = String> {
        let LeftOutNames { undecrypted, unfit, damaged } = self.all_left_out();
        let unfit = match unfit {
            0 => None,
            1 => Some("1 decrypted name is not valid, and is not shown. claviger verify names it.".to_owned()),
            more => {
                Some(format!("{more} decrypted names are not valid, and are not shown. claviger verify names them."))
            }
        };
        let undecrypted = match undecrypted {
            0 => None,
            1 => Some("1 name does not decrypt with this key and is not shown.".to_owned()),
            more => Some(format!("{more} names do not decrypt with this key and are not shown.")),
        };
        let damaged = match damaged {
            0 => None,
            1 => Some(
                "1 file or folder is damaged or incomplete, and is not shown. claviger verify names it.".to_owned(),
            ),
            more => Some(format!(
                "{more} files or folders are damaged or incomplete, and are not shown. claviger verify names them."
            )),
        };
        [undecrypted, unfit, damaged].into_iter().flatten()
    }

    /// From now on shows names that do not decrypt as they are stored, for data rescue. A stored name that equals a decrypted name
    /// stays hidden. Folders that nothing leads to are shown in a folder of their own.
    pub fn show_stored_names(&self) {
        self.keys.show_lost();
        self.names.shows_stored.store(true, Ordering::Relaxed);
    }

    fn of(&self, folder: Node) -> StoredFolder<'_> {
        StoredFolder { tree: &*self.lower, folder }
    }

    /// What the names in a folder depend on. Its node must be held.
    pub(crate) fn name_iv(&self, folder: Node) -> io::Result<NameIv> {
        if self.keys.folder_file().is_none() {
            return self.keys.name_iv(self.of(folder));
        }
        if let Some(iv) = self.names.ivs().get(&folder) {
            return Ok(*iv);
        }
        let iv = self.keys.name_iv(self.of(folder))?;
        let mut ivs = self.names.ivs();
        if ivs.len() == MOST_IVS {
            ivs.clear();
        }
        ivs.insert(folder, iv);
        Ok(iv)
    }

    /// Forgets what the names in a folder depend on, for callers that give its node back to the tree below.
    pub(crate) fn forget_names(&self, folder: Node) {
        self.names.forget(folder);
    }

    /// The stored form of a name in a folder.
    fn stored_name(&self, folder: Node, name: &OsStr) -> io::Result<Stored> {
        if !is_name(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let whole = self.keys.stored_name(name, &self.name_iv(folder)?)?;
        let Some(short) = self.keys.shortened(&whole) else {
            return match self.keys.role(&whole, self.of(folder).is_root()) {
                NameRole::Own => {
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the format has a file of this name"))
                }
                _ => Ok(Stored { name: whole, whole: None }),
            };
        };
        match self.keys.role(&short, false) {
            NameRole::Shortened { whole_in } => Ok(Stored { name: short, whole: Some((whole_in, whole)) }),
            _ => Err(io::ErrorKind::InvalidFilename.into()),
        }
    }

    /// Calls `find` with the stored form of `name`; if stored names are shown, also with `name` itself.
    pub(super) fn find_stored(
        &self,
        folder: Node,
        name: &OsStr,
        find: impl Fn(&OsStr) -> io::Result<Node>,
    ) -> io::Result<Node> {
        let found = self.stored_name(folder, name).and_then(|stored| find(&stored.name));
        let Err(e) = &found else { return found };
        let missing = matches!(
            e.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::InvalidFilename
                | io::ErrorKind::InvalidData
                | io::ErrorKind::PermissionDenied
        );
        match missing
            && self.names.shows_stored()
            && matches!(self.shown(folder, name)?, Shown::Without(_) | Shown::Unfit(_))
        {
            true => find(name),
            false => found,
        }
    }

    /// How a name in a folder of the tree below is shown.
    pub(crate) fn shown(&self, folder: Node, stored: &OsStr) -> io::Result<Shown> {
        let (whole, iv) = match self.keys.role(stored, self.of(folder).is_root()) {
            NameRole::Own => return Ok(Shown::Hidden),
            NameRole::WholeNameOf(short) => return self.shown_whole(folder, &short),
            NameRole::Name => (Cow::Borrowed(stored), self.name_iv(folder)),
            NameRole::Shortened { whole_in } => match self.whole_name(folder, stored, &whole_in)? {
                Ok(whole) => (Cow::Owned(whole), self.name_iv(folder)),
                Err(why) => return Ok(Shown::Without(why)),
            },
        };
        let iv = match iv {
            Ok(iv) => iv,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Ok(Shown::Without(no_name("what the folder's names depend on is missing or damaged")));
            }
            Err(e) => return Err(e),
        };
        Ok(match self.keys.plain_name(&whole, &iv)? {
            Some(name) if is_name(&name) => self.keys.why_unfit(&name).map_or(Shown::Name(name), Shown::Unfit),
            Some(_) => Shown::Unfit(no_name("it decrypts to an invalid file name")),
            None => Shown::Without(self.keys.why_no_name(&whole)),
        })
    }

    /// The whole form of a shortened name, or why there is none.
    fn whole_name(&self, folder: Node, short: &OsStr, whole_in: &OsStr) -> io::Result<Result<OsString, Error>> {
        let bytes = match self.of(folder).read(whole_in, LONGEST_WHOLE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(no_name(&format!("the file with its whole name is missing: {}", whole_in.display()))));
            }
            read => read?,
        };
        let whole = bytes.map(OsString::from_vec);
        let fits = whole.filter(|whole| self.keys.shortened(whole).as_deref() == Some(short));
        Ok(fits.ok_or_else(|| no_name(&format!("the file with its whole name is damaged: {}", whole_in.display()))))
    }

    /// How a file is shown that holds the whole name of the node called `short`.
    fn shown_whole(&self, folder: Node, short: &OsStr) -> io::Result<Shown> {
        match HeldNode::lookup(&*self.lower, folder, short) {
            Ok(_) => Ok(Shown::Hidden),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Ok(Shown::Without(no_name("the node whose name it holds is gone")))
            }
            Err(e) => Err(e),
        }
    }

    /// The entries of a folder, and the names that are left out.
    pub(super) fn listing(&self, folder: Node) -> io::Result<Listing> {
        let Listing { entries: stored, mut left_out } = self.lower.list_all(folder)?;
        let mut some =
            LeftOutNames { damaged: left_out.iter().filter(|name| !name.listed).count(), ..LeftOutNames::default() };
        if let Err(e) = self.name_iv(folder) {
            left_out.push(LeftOut {
                name: OsString::new(),
                kind: crate::trees::NodeKind::File,
                why: unreadable(e)?,
                listed: false,
            });
        }
        let (mut entries, mut without) = (Vec::with_capacity(stored.len()), Vec::new());
        for entry in stored {
            match self.shown(folder, &entry.name)? {
                Shown::Name(name) => entries.push(Entry { name, ..entry }),
                Shown::Hidden => {}
                Shown::Without(why) => without.push((entry, why, false)),
                Shown::Unfit(why) => without.push((entry, why, true)),
            }
        }
        let shown = self.names.shows_stored() && !without.is_empty();
        let taken: HashSet<_> = if shown { entries.iter().map(|e| e.name.clone()).collect() } else { HashSet::new() };
        for (entry, why, decrypts) in without {
            let listed = shown && !taken.contains(&entry.name);
            left_out.push(LeftOut { name: entry.name.clone(), kind: entry.kind, why, listed });
            match listed {
                true => entries.push(entry),
                false if decrypts => some.unfit += 1,
                false => some.undecrypted += 1,
            }
        }
        self.note_left_out(folder, some)?;
        Ok(Listing { entries, left_out })
    }

    /// Records how many names of a folder were left out.
    fn note_left_out(&self, folder: Node, some: LeftOutNames) -> io::Result<()> {
        let mut left_out = self.names.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        let none = some == LeftOutNames::default();
        if !none || !left_out.is_empty() {
            let number = self.lower.attributes(folder)?.number;
            if none {
                left_out.remove(&number)
            } else {
                left_out.insert(number, some)
            };
        }
        Ok(())
    }

    // Changes

    /// Makes files that hold names durable, before anything that has such a name.
    pub(super) fn sync_names(&self) -> io::Result<()> {
        self.names.unsynced.flush(&*self.lower)
    }

    /// Held while a node with one of these names is made, renamed or removed.
    fn shortening(&self, names: &[&Stored]) -> Option<MutexGuard<'_, ()>> {
        let any = names.iter().any(|stored| stored.whole.is_some());
        any.then(|| self.names.shortening.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a node with a new name: `make` gets the stored one.
    pub(super) fn name_new(
        &self,
        folder: Node,
        name: &OsStr,
        new: &NewNode,
        make: impl FnOnce(&OsStr) -> io::Result<Node>,
    ) -> io::Result<Node> {
        let stored = self.stored_name(folder, name)?;
        let _alone = self.shortening(&[&stored]);
        self.with_whole_name(folder, &stored, new, || make(&stored.name))
    }

    /// Stores the whole name, if there is one, before it calls `make`.
    fn with_whole_name<T>(
        &self,
        folder: Node,
        stored: &Stored,
        new: &NewNode,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some((file, whole)) = &stored.whole else { return make() };
        let written = self.store_whole(folder, file, whole, new)?;
        make().inspect_err(|_| {
            if written {
                // Best effort: the original error is reported.
                let _ = self.lower.remove(folder, file);
            }
        })
    }

    /// Writes the file that holds a whole name. Returns whether it was not there yet. A damaged one, such as the rest of an
    /// interrupted attempt, is replaced.
    fn store_whole(&self, folder: Node, file: &OsStr, whole: &OsStr, new: &NewNode) -> io::Result<bool> {
        match self.write_new(folder, file, whole.as_bytes(), new) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let there = self.of(folder).read(file, LONGEST_WHOLE)?;
                if there.as_deref() != Some(whole.as_bytes()) {
                    self.lower.remove(folder, file)?;
                    self.write_new(folder, file, whole.as_bytes(), new)?;
                }
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }

    /// Writes a new file with these contents, of the owner of `new`.
    fn write_new(&self, folder: Node, name: &OsStr, contents: &[u8], new: &NewNode) -> io::Result<()> {
        let new = NewNode { mode: Some(READABLE), owner: new.owner };
        let file = HeldNode::new(&*self.lower, self.lower.create_open(folder, name, &new, BOTH)?);
        let written = self.lower.write_at(file.node(), 0, contents);
        let written = written.and(self.lower.release(file.node()));
        self.names.unsynced.note();
        written.inspect_err(|_| drop(self.lower.remove(folder, name)))
    }

    /// Makes a folder, with its own file if the format has one.
    pub(super) fn new_folder(&self, folder: Node, stored: &OsStr, new: &NewNode) -> io::Result<Node> {
        let Some(own) = self.keys.folder_file() else { return self.lower.make_folder(folder, stored, new) };
        match HeldNode::lookup(&*self.lower, folder, stored) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let unfinished = unfinished(&own)?;
        let mode = new.mode.map(|mode| mode | 0o700);
        let node = self.lower.make_folder(folder, &unfinished, &NewNode { mode, owner: new.owner })?;
        let finish = || {
            let mut bytes = vec![0; own.len];
            random::fill(&mut bytes)?;
            self.write_new(node, own.name.as_ref(), &bytes, new)?;
            if let Some(wanted) = new.mode.filter(|wanted| Some(*wanted) != mode)
                && let Some(now) = self.lower.attributes(node)?.mode
            {
                // It may have inherited bits from its parent.
                self.lower.set_mode(node, now & 0o7000 | wanted)?;
            }
            self.lower.rename(folder, &unfinished, folder, stored, Renaming::Replace)
        };
        finish().map(|()| node).inspect_err(|_| {
            // Best effort: the original error is reported.
            let _ = self.lower.remove(node, own.name.as_ref());
            let _ = self.lower.remove(folder, &unfinished);
            self.lower.forget(node, 1);
        })
    }

    /// Removes a node, and what holds its whole name.
    pub(super) fn remove_stored(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        let stored = self.stored_name(folder, name)?;
        let _alone = self.shortening(&[&stored]);
        self.lower.remove(folder, &stored.name).or_else(|e| match self.keys.folder_file() {
            Some(own) if is_not_empty(&e) => self.remove_folder(folder, &stored.name, own),
            _ => Err(e),
        })?;
        self.drop_whole(folder, &stored);
        Ok(())
    }

    /// Removes the file that holds the whole name of a node that is gone. If that fails, a listing reports it.
    fn drop_whole(&self, folder: Node, stored: &Stored) {
        let Some((file, _)) = &stored.whole else { return };
        if matches!(HeldNode::lookup(&*self.lower, folder, &stored.name), Err(e) if e.kind() == io::ErrorKind::NotFound)
        {
            let _ = self.lower.remove(folder, file);
        }
    }

    /// Removes a folder that holds nothing but its own file.
    fn remove_folder(&self, folder: Node, stored: &OsStr, own: FolderFile) -> io::Result<()> {
        let held = HeldNode::lookup(&*self.lower, folder, stored)?;
        let empty = |node| Ok::<_, io::Error>(self.lower.list(node)?.iter().all(|entry| entry.name == own.name));
        if !empty(held.node())? {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let contents = self.of(held.node()).read(own.name.as_ref(), own.len)?.unwrap_or_default();
        let of = self.lower.attributes(held.node())?;
        let closed = of.mode.filter(|mode| mode & 0o700 != 0o700);
        let unfinished = unfinished(&own)?;
        self.lower.rename(folder, stored, folder, &unfinished, Renaming::Replace)?;
        let remove = || {
            // Somebody may have made something in it in the meantime.
            if !empty(held.node())? {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            if let Some(mode) = closed {
                self.lower.set_mode(held.node(), mode | 0o700)?;
            }
            self.lower.remove(held.node(), own.name.as_ref())?;
            self.lower.remove(folder, &unfinished)
        };
        remove().inspect_err(|_| {
            // Best effort: the original error is reported.
            let new = NewNode { mode: None, owner: of.owner };
            let _ = self.write_new(held.node(), own.name.as_ref(), &contents, &new);
            if let Some(mode) = closed {
                let _ = self.lower.set_mode(held.node(), mode);
            }
            let _ = self.lower.rename(folder, &unfinished, folder, stored, Renaming::Keep);
        })?;
        self.names.forget(held.node());
        Ok(())
    }

    /// Renames a node, and moves what holds its whole name.
    pub(super) fn rename_stored(&self, from: (Node, &OsStr), to: (Node, &OsStr), how: Renaming) -> io::Result<()> {
        let (old, new) = (self.stored_name(from.0, from.1)?, self.stored_name(to.0, to.1)?);
        let _alone = self.shortening(&[&old, &new]);
        let rename = || self.lower.rename(from.0, &old.name, to.0, &new.name, how);
        if how == Renaming::Exchange {
            // Both whole names are there already, and stay.
            return rename();
        }
        self.with_whole_name(to.0, &new, &NewNode::default(), || match (rename(), self.keys.folder_file()) {
            (Err(e), Some(own)) if how == Renaming::Replace && is_not_empty(&e) => {
                self.remove_folder(to.0, &new.name, own).and_then(|()| rename())
            }
            (renamed, _) => renamed,
        })?;
        self.drop_whole(from.0, &old);
        Ok(())
    }
}

/// Whether a folder was not removed or replaced because there is something in it: rename(2) has two errors for that.
fn is_not_empty(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

/// A new name for a folder that has no name of its own yet, or no longer.
fn unfinished(own: &FolderFile) -> io::Result<OsString> {
    numbered(own.unfinished)
}

/// Why no name of a folder can be read. Errors that say nothing about the folder stay errors.
fn unreadable(error: io::Error) -> io::Result<Error> {
    match error.kind() {
        io::ErrorKind::InvalidData => Ok(Error::from(error)),
        _ => Err(error),
    }
}

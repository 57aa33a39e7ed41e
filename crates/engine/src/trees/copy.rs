//! Copies one tree into another. A copy can be interrupted and resumed: files that are there already and equal stay.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::{Attributes, Entry, HeldNode, Listing, NewNode, Node, NodeKind, OpenFile, Setting, Special, Tree, Use};
use crate::error::{Error, ErrorKind, Result};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The deepest nesting of folders that is copied. A damaged file system may have loops.
const DEEPEST: usize = 256;

/// A tree that outlives the copying.
type Whole = dyn Tree + 'static;

/// The progress of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Files, links and special files.
    pub files: u64,
    /// Folders.
    pub folders: u64,
    /// Bytes of file contents.
    pub bytes: u64,
}

/// Copies all of `from` into `to`: files, folders, symbolic and hard links and special files, with permissions, owners, times and
/// extended attributes where `to` supports them. A file of `to` with equal contents stays as it is; any other file is replaced.
/// A copy whose original can no longer be read stays. `each` is called after each file, and its error ends the copy.
///
/// Whatever cannot be read, or cannot exist in `to`, is reported to `left` and skipped. An error from `left` ends the copy.
///
/// # Errors
/// Those of `to`, of `each` and of `left`.
pub fn copy(
    from: &Whole,
    to: &Whole,
    each: &mut dyn FnMut(CopyProgress) -> Result<()>,
    left: &mut dyn FnMut(&Path, Error) -> Result<()>,
) -> Result<CopyProgress> {
    let mut copying = Copying { from, to, each, left, links: HashMap::new(), done: CopyProgress::default() };
    copying.folder(from.root(), to.root(), Path::new("/"), 0)?;
    for (path, why) in from.lost()? {
        (copying.left)(&Path::new("/").join(path), why)?;
    }
    to.flush()?;
    Ok(copying.done)
}

/// Reads both trees and compares names, kinds, contents and link targets, except for what was `left` out of the copy.
///
/// # Errors
/// `Malformed` where they differ, with the path; those of the trees, and of `each`.
pub fn compare(
    from: &Whole,
    to: &Whole,
    each: &mut dyn FnMut(CopyProgress) -> Result<()>,
    left: &HashSet<PathBuf>,
) -> Result<CopyProgress> {
    let mut comparing = Comparing { from, to, each, left, done: CopyProgress::default() };
    comparing.folder(from.root(), to.root(), Path::new("/"), 0)?;
    Ok(comparing.done)
}

/// The result of copying one item.
type Copied<T> = std::result::Result<T, Trouble>;

/// Why an item was not copied.
enum Trouble {
    /// Only this item is skipped: it cannot be read, or cannot exist in the copy.
    One(io::Error),
    /// The whole copy ends.
    All(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::All(error)
    }
}

/// An error of the destination: its file system does not support this name or kind of node, or it fails altogether.
fn of_copy(error: io::Error) -> Trouble {
    match error.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => {
            Trouble::One(error)
        }
        _ => Trouble::All(error.into()),
    }
}

struct Copying<'a> {
    from: &'a Whole,
    to: &'a Whole,
    each: &'a mut dyn FnMut(CopyProgress) -> Result<()>,
    left: &'a mut dyn FnMut(&Path, Error) -> Result<()>,
    /// The first path of each file with several names, by number.
    links: HashMap<u64, PathBuf>,
    done: CopyProgress,
}

impl<'a> Copying<'a> {
    fn folder(&mut self, from: Node, to: Node, path: &Path, depth: usize) -> Result<()> {
        if depth >= DEEPEST {
            return (self.left)(path, Error::unsupported(format!("copying folders that are {DEEPEST} deep")));
        }
        let Listing { entries, left_out } = match sorted(self.from, from) {
            Ok(listing) => listing,
            Err(e) => return (self.left)(path, e.into()),
        };
        for name in left_out {
            (self.left)(&path.join(&name.name), name.why)?;
        }
        for entry in entries {
            let path = path.join(&entry.name);
            match self.entry(from, &entry, to, &path, depth) {
                Ok(()) => {}
                Err(Trouble::One(e)) => (self.left)(&path, e.into())?,
                Err(Trouble::All(e)) => return Err(e.at(&path)),
            }
            (self.each)(self.done)?;
        }
        Ok(())
    }

    fn entry(&mut self, from: Node, entry: &Entry, to: Node, path: &Path, depth: usize) -> Copied<()> {
        let source = HeldNode::take(self.from, from, entry).map_err(Trouble::One)?;
        let of = self.from.attributes(source.node()).map_err(Trouble::One)?;
        if of.kind == NodeKind::Folder {
            let made = self.made_folder(to, &entry.name, &of).map_err(of_copy)?;
            self.folder(source.node(), made.node(), path, depth + 1)?;
            self.finish(source.node(), made.node(), &of)?;
            self.done.folders += 1;
        } else {
            self.leaf(source.node(), &of, to, &entry.name, path)?;
            self.done.files += 1;
        }
        Ok(())
    }

    fn made_folder(&self, to: Node, name: &OsStr, of: &Attributes) -> io::Result<HeldNode<&'a Whole>> {
        match HeldNode::lookup(self.to, to, name) {
            Ok(there) if self.to.attributes(there.node())?.kind == NodeKind::Folder => Ok(there),
            Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
            // The owner may write into it until it is complete.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let new = NewNode { mode: of.mode.map(|mode| mode | 0o700), owner: None };
                Ok(HeldNode::new(self.to, self.to.make_folder(to, name, &new)?))
            }
            Err(e) => Err(e),
        }
    }

    /// Copies a node other than a folder.
    fn leaf(&mut self, source: Node, of: &Attributes, to: Node, name: &OsStr, path: &Path) -> Copied<()> {
        if let Some(first) = self.links.get(&of.number).filter(|_| of.links > 1) {
            return self.one_more_name(first, to, name).map_err(of_copy);
        }
        let made = match (self.kept(source, of, to, name)?, of.kind) {
            (Some(kept), _) => kept,
            (None, NodeKind::File) => self.file(source, of, to, name)?,
            (None, NodeKind::Link) => {
                let target = self.from.link_target(source).map_err(Trouble::One)?;
                HeldNode::new(self.to, self.to.make_link(to, name, &target, &NewNode::default()).map_err(of_copy)?)
            }
            (None, _) => self.special(source, of, to, name)?,
        };
        if of.kind == NodeKind::File {
            self.done.bytes = self.done.bytes.saturating_add(of.size);
        }
        if of.links > 1 {
            self.links.insert(of.number, path.to_owned());
        }
        self.finish(source, made.node(), of)
    }

    fn special(&self, source: Node, of: &Attributes, to: Node, name: &OsStr) -> Copied<HeldNode<&'a Whole>> {
        let Some(special) = of.special else {
            // If the tree refuses to read it, report the tree's reason.
            let why = self.from.read_at(source, 0, &mut [0]).err();
            return Err(Trouble::One(why.unwrap_or_else(|| io::ErrorKind::Unsupported.into())));
        };
        let made = self.to.make_special(to, name, special, &NewNode { mode: of.mode, owner: None });
        made.map(|made| HeldNode::new(self.to, made)).map_err(|e| match e.kind() {
            // Only root can create devices.
            io::ErrorKind::PermissionDenied => Trouble::One(e),
            _ => of_copy(e),
        })
    }

    fn one_more_name(&self, first: &Path, to: Node, name: &OsStr) -> io::Result<()> {
        let known = HeldNode::find(self.to, first.as_os_str())?;
        if let Ok(there) = HeldNode::lookup(self.to, to, name) {
            if self.to.attributes(there.node())?.number == self.to.attributes(known.node())?.number {
                return Ok(());
            }
            self.to.remove(to, name)?;
        }
        let again = self.to.add_name(known.node(), to, name)?;
        self.to.forget(again, 1);
        Ok(())
    }

    /// Keeps what an earlier run copied if it is equal, and removes anything else, unless the source can no longer be read.
    fn kept(&self, source: Node, of: &Attributes, to: Node, name: &OsStr) -> Copied<Option<HeldNode<&'a Whole>>> {
        let there = match HeldNode::lookup(self.to, to, name) {
            Ok(there) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(of_copy(e)),
        };
        let has = self.to.attributes(there.node()).map_err(of_copy)?;
        // A file that cannot be read is the remains of an interrupted copy.
        if same_leaf(self.from, source, of, self.to, there.node(), &has).unwrap_or(false) {
            return Ok(Some(there));
        }
        drop(there);
        self.read_all(source, of).map_err(|e| Trouble::One(earlier_stays(e)))?;
        self.to.remove(to, name).map(|()| None).map_err(of_copy)
    }

    /// Reads a node whose copy will be replaced: that may be the only copy left.
    fn read_all(&self, source: Node, of: &Attributes) -> io::Result<()> {
        match of.kind {
            NodeKind::File => pieces(self.from, source, of.size, |_, _| io::Result::Ok(true)).map(drop),
            NodeKind::Link => self.from.link_target(source).map(drop),
            NodeKind::Folder | NodeKind::Special => Ok(()),
        }
    }

    fn file(&self, source: Node, of: &Attributes, to: Node, name: &OsStr) -> Copied<HeldNode<&'a Whole>> {
        let usage = Use { read: false, write: true };
        let new = NewNode { mode: of.mode.map(|mode| mode & 0o777 | 0o600), owner: None };
        let made = HeldNode::new(self.to, self.to.create_open(to, name, &new, usage).map_err(of_copy)?);
        let written = pieces(self.from, source, of.size, |at, piece| {
            self.to.write_at(made.node(), at, piece).map_err(|e| Trouble::All(e.into())).map(|()| true)
        });
        let released = self.to.release(made.node()).map_err(|e| Trouble::All(e.into()));
        if let Err(Trouble::One(_)) = &written {
            // Do not leave half a file behind.
            self.to.remove(to, name).map_err(|e| Trouble::All(e.into()))?;
        }
        written?;
        released.map(|()| made)
    }

    /// Sets the attributes last: writing changes times, and permissions may forbid it.
    fn finish(&self, source: Node, made: Node, of: &Attributes) -> Copied<()> {
        const SET_IDS: u16 = 0o6000;
        let to = |e: io::Error| Trouble::All(e.into());
        let mut is_owners = true;
        if let Some((user, group)) = of.owner
            && self.to.attributes(made).map_err(to)?.owner != Some((user, group))
        {
            // Only root can give files away. Otherwise set-user-ID bits are dropped, or programs would run as the user who copies.
            is_owners = self.to.set_owner(made, Some(user), Some(group)).is_ok();
        }
        // Changing the owner clears capabilities, so set them afterwards.
        let extended = self.extended(source, made).map_err(Trouble::One);
        if let (Some(mode), false) = (of.mode, of.kind == NodeKind::Link) {
            optional(self.to.set_mode(made, if is_owners { mode } else { mode & !SET_IDS })).map_err(to)?;
        }
        optional(self.to.set_times(made, of.modified, of.accessed)).map_err(to)?;
        extended
    }

    fn extended(&self, source: Node, made: Node) -> io::Result<()> {
        let names = match self.from.list_extended(source) {
            Ok(names) => names,
            Err(_) => return Ok(()),
        };
        for name in names {
            if let Some(value) = self.from.extended(source, &name)? {
                // Attributes that only root may write are skipped.
                let _ = self.to.set_extended(made, &name, &value, Setting::Any);
            }
        }
        Ok(())
    }
}

/// Adds to the reason why a node cannot be read that its earlier copy stays.
fn earlier_stays(error: io::Error) -> io::Error {
    const STAYS: &str = "; the copy of the earlier run stays";
    let mut error = Error::from(error);
    match &mut error.kind {
        ErrorKind::Io(e) => *e = io::Error::new(e.kind(), format!("{e}{STAYS}")),
        ErrorKind::Malformed { what, .. }
        | ErrorKind::Unsupported { what }
        | ErrorKind::NotThisFormat(what)
        | ErrorKind::WrongCredential(what) => what.push_str(STAYS),
        _ => {}
    }
    error.into()
}

/// Ignores an operation that the file system does not support.
fn optional(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|e| if e.kind() == io::ErrorKind::Unsupported { Ok(()) } else { Err(e) })
}

struct Comparing<'a> {
    from: &'a Whole,
    to: &'a Whole,
    each: &'a mut dyn FnMut(CopyProgress) -> Result<()>,
    left: &'a HashSet<PathBuf>,
    done: CopyProgress,
}

impl Comparing<'_> {
    fn folder(&mut self, from: Node, to: Node, path: &Path, depth: usize) -> Result<()> {
        if depth >= DEEPEST {
            return Err(Error::unsupported(format!("comparing folders that are {DEEPEST} deep")).at(path));
        }
        if self.left.contains(path) {
            return Ok(());
        }
        let there = |entry: &Entry| !self.left.contains(&path.join(&entry.name));
        let all = |tree, folder| -> Result<Vec<Entry>> {
            let listing = sorted(tree, folder).map_err(|e| at(e, path))?;
            Ok(listing.entries.into_iter().filter(there).collect())
        };
        let (names, copies) = (all(self.from, from)?, all(self.to, to)?);
        let has = |entries: &[Entry]| -> Vec<OsString> { entries.iter().map(|e| e.name.clone()).collect() };
        if has(&names) != has(&copies) {
            return Err(differ("the copy has different names in it", path));
        }
        for (entry, copy) in names.iter().zip(&copies) {
            let path = path.join(&entry.name);
            let source = HeldNode::take(self.from, from, entry).map_err(|e| at(e, &path))?;
            let copied = HeldNode::take(self.to, to, copy).map_err(|e| at(e, &path))?;
            let of = self.from.attributes(source.node()).map_err(|e| at(e, &path))?;
            let has = self.to.attributes(copied.node()).map_err(|e| at(e, &path))?;
            if of.kind == NodeKind::Folder && has.kind == NodeKind::Folder {
                self.folder(source.node(), copied.node(), &path, depth + 1)?;
                self.done.folders += 1;
            } else if same_leaf(self.from, source.node(), &of, self.to, copied.node(), &has)
                .map_err(|e| at(e, &path))?
            {
                self.done.files += 1;
                self.done.bytes = self.done.bytes.saturating_add(if of.kind == NodeKind::File { of.size } else { 0 });
            } else {
                return Err(differ("the copy differs", &path));
            }
            (self.each)(self.done)?;
        }
        Ok(())
    }
}

fn differ(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Malformed { field: "copy", offset: 0, what: what.into() }).at(path)
}

fn at(error: io::Error, path: &Path) -> Error {
    Error::from(error).at(path)
}

fn sorted(tree: &Whole, folder: Node) -> io::Result<Listing> {
    let mut listing = tree.list_all(folder)?;
    listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listing)
}

/// Whether two nodes other than folders are equal.
fn same_leaf(
    from: &Whole,
    source: Node,
    of: &Attributes,
    to: &Whole,
    copy: Node,
    has: &Attributes,
) -> io::Result<bool> {
    Ok(match (of.kind, has.kind) {
        (NodeKind::File, NodeKind::File) => {
            let mut buffer = vec![0; PIECE.min(of.size as usize)];
            of.size == has.size
                && pieces(from, source, of.size, |at, piece| {
                    let same = &mut buffer[..piece.len()];
                    io::Result::Ok(to.read_at(copy, at, same)? == piece.len() && same == piece)
                })?
        }
        (NodeKind::Link, NodeKind::Link) => from.link_target(source)? == to.link_target(copy)?,
        (NodeKind::Special, NodeKind::Special) => {
            // A device has nothing but its number.
            let of_device =
                |s: Option<Special>| matches!(s, Some(Special::BlockDevice(_) | Special::CharacterDevice(_)));
            of.special == has.special || !of_device(of.special) && !of_device(has.special)
        }
        _ => false,
    })
}

/// Reads a file piece by piece while `each` returns true. Returns whether it always did.
fn pieces<E: From<Unread>>(
    tree: &Whole,
    file: Node,
    size: u64,
    mut each: impl FnMut(u64, &[u8]) -> std::result::Result<bool, E>,
) -> std::result::Result<bool, E> {
    let mut buffer = vec![0; PIECE.min(size as usize)];
    let mut done = 0;
    // If opening fails, reading fails as well and gives the reason.
    let _open = OpenFile::new(tree, file);
    if size == 0 {
        // A file that looks empty may be damaged.
        tree.read_at(file, 0, &mut [0]).map_err(Unread)?;
    }
    while done < size {
        let len = (size - done).min(PIECE as u64) as usize;
        let read = tree.read_at(file, done, &mut buffer[..len]).map_err(Unread)?;
        if read == 0 {
            return Err(
                Unread(io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than its recorded size")).into()
            );
        }
        if !each(done, &buffer[..read])? {
            return Ok(false);
        }
        done += read as u64;
    }
    Ok(true)
}

/// An error of the file being read.
struct Unread(io::Error);

impl From<Unread> for Trouble {
    fn from(Unread(error): Unread) -> Self {
        Self::One(error)
    }
}

impl From<Unread> for io::Error {
    fn from(Unread(error): Unread) -> Self {
        error
    }
}

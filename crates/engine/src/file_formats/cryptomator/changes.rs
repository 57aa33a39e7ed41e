//! How entries of a vault's folders are made, moved and removed.
//!
//! An entry with files in it is complete before it gets its name, and loses its name before its files. One that gets a name of
//! another form is moved by its file: to an entry that is incomplete until then. So a program killed at any moment leaves each entry
//! with its old or its new name, and at most something without a use, which checks report. Before a file replaces a link, or the
//! reverse, that is renamed (`claviger.replaced.…`). Files that a sync program left in an entry are never removed with it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use rustix::io::Errno;

use super::config::uuid;
use super::keys::LONGEST;
use super::tree::{
    DATA, DIR_ID, Held, LONGEST_ID, NAME, Part, REPLACED, Stored, UNFINISHED, VaultTree, Way, is_missing,
    is_unfinished, keep, place, subfolder,
};
use super::vault::{SHORTENED, WHOLE, ends};
use crate::file_formats::new_files::numbered;
use crate::file_formats::{NameIv, StoredFolder};
use crate::trees::{Entry, NewNode, Node, NodeKind, Renaming, Tree, Use, damaged};

const BOTH: Use = Use { read: true, write: true };

impl VaultTree {
    // New entries

    pub(super) fn new_file(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        check_new(name)?;
        let entry = self.vault().entry_name(name);
        if !ends(&entry, SHORTENED) {
            return self.lower.create_open(folder, &entry, new, usage);
        }
        let _alone = self.changing();
        let mut made = None;
        let named = self.new_bundle(folder, name, new, Part::File, |bundle| {
            made = Some(self.lower.create_open(bundle, Part::File.file(), new, usage)?);
            Ok(())
        });
        if let (Err(_), Some(node)) = (&named, made) {
            // Best effort: the original error is reported.
            let _ = self.lower.release(node);
            self.lower.forget(node, 1);
        }
        named.and(made.ok_or_else(|| io::ErrorKind::NotFound.into()))
    }

    pub(super) fn new_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<()> {
        check_new(name)?;
        let _alone = self.changing();
        let fill = |bundle| self.write(bundle, Part::Link.file(), target.as_bytes(), new);
        self.new_bundle(folder, name, new, Part::Link, fill)
    }

    pub(super) fn new_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        check_new(name)?;
        let _alone = self.changing();
        self.must_be_free(folder, &self.vault().entry_name(name))?;
        let way = Way { parent: self.id(folder)?, name: name.to_owned() };
        let id = NameIv::new(uuid()?.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        let node = self.new_place(&id, new)?;
        let fill = |bundle| self.write(bundle, Part::Folder.file(), &id, new);
        let made = self.new_bundle(folder, name, new, Part::Folder, fill);
        made.inspect_err(|_| {
            // Best effort: the original error is reported.
            let _ = self.remove_place(&id, node);
            self.lower.forget(node, 1);
        })?;
        self.ways().insert(id, way);
        Ok(self.give_folder(node, id))
    }

    /// Makes the folder for the entries of the one with this ID.
    fn new_place(&self, id: &NameIv, new: &NewNode) -> io::Result<Node> {
        let names = self.vault().place(id)?;
        let [first, second] = &names;
        let beside = NewNode { mode: None, owner: new.owner };
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        let above = match subfolder(&*self.lower, data.node(), first) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Held::new(&*self.lower, self.lower.make_folder(data.node(), first.as_ref(), &beside)?)
            }
            found => found?,
        };
        let mode = new.mode.map(|mode| mode | 0o700);
        let made = self.lower.make_folder(above.node(), second.as_ref(), &NewNode { mode, owner: new.owner })?;
        let made = Held::new(&*self.lower, made);
        let finish = || {
            self.write_id(made.node(), id, new)?;
            if let Some(wanted) = new.mode.filter(|wanted| Some(*wanted) != mode)
                && let Some(now) = self.lower.attributes(made.node())?.mode
            {
                // It may have inherited bits from its parent.
                self.lower.set_mode(made.node(), now & 0o7000 | wanted)?;
            }
            Ok(())
        };
        let finished: io::Result<()> = finish();
        finished.inspect_err(|_| drop(self.remove_place_at(&names, id, made.node())))?;
        Ok(keep(made))
    }

    /// Stores the ID of a folder in it, from format 8 on.
    fn write_id(&self, place: Node, id: &NameIv, new: &NewNode) -> io::Result<()> {
        match self.vault().config.has_ids() {
            true => self.write(place, DIR_ID.as_ref(), &self.vault().seal_small(id)?, new),
            false => Ok(()),
        }
    }

    /// Makes an entry with files in it, which `fill` makes.
    fn new_bundle(
        &self,
        folder: Node,
        name: &OsStr,
        new: &NewNode,
        part: Part,
        fill: impl FnOnce(Node) -> io::Result<()>,
    ) -> io::Result<()> {
        let entry = self.vault().entry_name(name);
        self.must_be_free(folder, &entry)?;
        let (unfinished, bundle) = self.unnamed_bundle(folder, new)?;
        let finish = || {
            self.write_whole_name(bundle.node(), &entry, name, new)?;
            fill(bundle.node())?;
            self.lower.rename(folder, &unfinished, folder, &entry, Renaming::Replace)
        };
        finish().inspect_err(|_| self.discard_bundle(folder, &unfinished, bundle.node(), Some(part)))
    }

    fn unnamed_bundle(&self, folder: Node, new: &NewNode) -> io::Result<(OsString, Held<'_>)> {
        let unfinished = unfinished()?;
        let made = self.lower.make_folder(folder, &unfinished, &NewNode { mode: None, owner: new.owner })?;
        Ok((unfinished, Held::new(&*self.lower, made)))
    }

    fn write_whole_name(&self, bundle: Node, entry: &OsStr, name: &OsStr, new: &NewNode) -> io::Result<()> {
        if ends(entry, SHORTENED) { self.write(bundle, NAME.as_ref(), name.as_bytes(), new) } else { Ok(()) }
    }

    /// Writes a new file beside contents.
    fn write(&self, folder: Node, name: &OsStr, contents: &[u8], new: &NewNode) -> io::Result<()> {
        let new = NewNode { mode: None, owner: new.owner };
        let file = Held::new(&*self.lower, self.lower.create_open(folder, name, &new, BOTH)?);
        let written = self.lower.write_at(file.node(), 0, contents);
        self.unsynced.note();
        written.and(self.lower.release(file.node()))
    }

    /// Fails if there is an entry of this name. The rest of an interrupted move is removed.
    fn must_be_free(&self, folder: Node, entry: &OsStr) -> io::Result<()> {
        let there = match Held::lookup(&*self.lower, folder, entry) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            there => there?,
        };
        match self.lower.list(there.node()) {
            Ok(files) if files.iter().all(|file| file.name == NAME) => {
                self.discard_bundle(folder, entry, there.node(), None);
                Ok(())
            }
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    // Removed entries

    pub(super) fn remove_entry(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        let _alone = self.changing();
        let entry = self.stored(folder, name)?;
        match (&entry.bundle, entry.part) {
            (None, _) => self.lower.remove(folder, &entry.name),
            (Some(_), Part::Folder) => {
                let (id, place) = self.own_folder(folder, name, &entry)?;
                self.must_be_empty(place.node())?;
                self.retire(folder, &entry, || self.remove_place(&id, place.node()))?;
                self.ways().remove(&id);
                Ok(())
            }
            (Some(_), Part::File | Part::Link) => self.retire(folder, &entry, || Ok(())),
        }
    }

    /// The folder that an entry leads to, and no other.
    fn own_folder(&self, parent: Node, name: &OsStr, entry: &Stored<'_>) -> io::Result<(NameIv, Held<'_>)> {
        let id = self.leads_to(entry)?;
        let way = Way { parent: self.id(parent)?, name: name.to_owned() };
        Ok((id, self.folder(id, way)?))
    }

    fn must_be_empty(&self, place: Node) -> io::Result<()> {
        let listing = self.lower.list_all(place)?;
        let mut empty = listing.left_out.is_empty();
        for entry in listing.entries.iter().filter(|entry| entry.name != DIR_ID) {
            empty = empty && self.is_needless(place, entry)?;
        }
        if empty { Ok(()) } else { Err(io::ErrorKind::DirectoryNotEmpty.into()) }
    }

    /// Whether an interrupted change left this and nobody needs it: it holds nothing but an entry's own files, and leads to no folder
    /// with anything in it.
    pub(super) fn is_needless(&self, folder: Node, entry: &Entry) -> io::Result<bool> {
        if entry.kind != NodeKind::Folder || !is_unfinished(&entry.name) {
            return Ok(false);
        }
        let bundle = Held::take(&*self.lower, folder, entry)?;
        let listing = self.lower.list_all(bundle.node())?;
        let own = |file: &Entry| {
            let known = file.name == NAME || Part::ALL.iter().any(|part| file.name == part.file());
            known && file.kind == NodeKind::File
        };
        if !listing.left_out.is_empty() || !listing.entries.iter().all(own) {
            return Ok(false);
        }
        if listing.entries.iter().all(|file| file.name != Part::Folder.file()) {
            return Ok(true);
        }
        let of = StoredFolder { tree: &*self.lower, folder: bundle.node() };
        let Some(id) = of.read(Part::Folder.file(), LONGEST_ID)? else { return Ok(false) };
        match NameIv::new(&id).map(|id| place(&*self.lower, self.vault(), &id)) {
            _ if id.is_empty() => Ok(true),
            Some(Ok(place)) => Ok(self.lower.list(place.node())?.iter().all(|entry| entry.name == DIR_ID)),
            Some(Err(e)) if is_missing(&e) => Ok(true),
            Some(Err(e)) => Err(e),
            None => Ok(false),
        }
    }

    /// Removes from a folder what nobody needs.
    fn remove_needless(&self, place: Node) -> io::Result<()> {
        for entry in self.lower.list(place)? {
            if self.is_needless(place, &entry)? {
                let bundle = Held::take(&*self.lower, place, &entry)?;
                // No other files: somebody may have made some in the meantime.
                Part::ALL.iter().for_each(|part| drop(self.lower.remove(bundle.node(), part.file())));
                self.discard_bundle(place, &entry.name, bundle.node(), None);
            }
        }
        Ok(())
    }

    /// Takes its name from an entry, calls `then`, and removes it.
    fn retire(&self, folder: Node, entry: &Stored<'_>, then: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.must_be_alone(entry)?;
        let unfinished = unfinished()?;
        self.lower.rename(folder, &entry.name, folder, &unfinished, Renaming::Replace)?;
        // Best effort: the original error is reported.
        then().inspect_err(|_| drop(self.rename_to_free((folder, &unfinished), (folder, &entry.name))))?;
        self.discard(folder, &unfinished, entry, Some(entry.part));
        Ok(())
    }

    /// Fails if an entry holds anything besides its own files: it may be somebody's.
    fn must_be_alone(&self, entry: &Stored<'_>) -> io::Result<()> {
        let Some(bundle) = &entry.bundle else { return Ok(()) };
        let own = |name: &OsStr| name == NAME || name == entry.part.file();
        let listing = self.lower.list_all(bundle.node())?;
        match listing.left_out.is_empty() && listing.entries.iter().all(|file| own(&file.name)) {
            true => Ok(()),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    /// Removes what is left of an entry: under this name, and with this file if that is still there.
    fn discard(&self, folder: Node, name: &OsStr, entry: &Stored<'_>, part: Option<Part>) {
        if let Some(bundle) = &entry.bundle {
            self.discard_bundle(folder, name, bundle.node(), part);
        }
    }

    /// Removes a folder that is no entry, and these files in it. If it holds anything else, it stays, and a check reports it.
    fn discard_bundle(&self, folder: Node, name: &OsStr, bundle: Node, part: Option<Part>) {
        for file in part.map(Part::file).into_iter().chain([OsStr::new(NAME)]) {
            let _ = self.lower.remove(bundle, file);
        }
        let _ = self.lower.remove(folder, name);
    }

    /// Renames to a name that is free. Some file systems cannot refuse to replace another one: they are asked for it first.
    fn rename_to_free(&self, from: (Node, &OsStr), to: (Node, &OsStr)) -> io::Result<()> {
        match self.lower.rename(from.0, from.1, to.0, to.1, Renaming::Keep) {
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                match Held::lookup(&*self.lower, to.0, to.1) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        self.lower.rename(from.0, from.1, to.0, to.1, Renaming::Replace)
                    }
                    there => there.and(Err(io::ErrorKind::AlreadyExists.into())),
                }
            }
            renamed => renamed,
        }
    }

    /// Removes the empty folder for the entries of the one with this ID. If that fails, it is as before.
    fn remove_place(&self, id: &NameIv, place: Node) -> io::Result<()> {
        self.remove_place_at(&self.vault().place(id)?, id, place)
    }

    /// The same for a folder at that place.
    fn remove_place_at(&self, [first, second]: &[String; 2], id: &NameIv, place: Node) -> io::Result<()> {
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        let above = subfolder(&*self.lower, data.node(), first)?;
        let of = self.lower.attributes(place)?;
        let closed = of.mode.filter(|mode| mode & 0o700 != 0o700);
        if let Some(mode) = closed {
            self.lower.set_mode(place, mode | 0o700)?;
        }
        let remove = || {
            self.remove_needless(place)?;
            match self.lower.remove(place, DIR_ID.as_ref()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            self.lower.remove(above.node(), second.as_ref())
        };
        remove().inspect_err(|_| {
            // Best effort: the original error is reported.
            let _ = self.write_id(place, id, &NewNode { mode: None, owner: of.owner });
            if let Some(mode) = closed {
                let _ = self.lower.set_mode(place, mode);
            }
        })?;
        // Other folders may be in it.
        let _ = self.lower.remove(data.node(), first.as_ref());
        Ok(())
    }

    // Moved entries

    pub(super) fn rename_entry(&self, from: (Node, &OsStr), to: (Node, &OsStr), how: Renaming) -> io::Result<()> {
        check_new(to.1)?;
        let _alone = self.changing();
        let moved = self.stored(from.0, from.1)?;
        self.must_stay_outside(from, &moved, to.0)?;
        // Names depend on the files that were written beside contents.
        self.unsynced.flush(&*self.lower)?;
        let there = match self.stored(to.0, to.1) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            // It may be the rest of an interrupted move.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                self.must_be_free(to.0, &self.vault().entry_name(to.1))?;
                None
            }
            there => Some(there?),
        };
        match (there, how) {
            (Some(there), Renaming::Exchange) => self.exchange(from, &moved, to, &there),
            (None, Renaming::Exchange) => Err(io::ErrorKind::NotFound.into()),
            (Some(_), Renaming::Keep) => Err(io::ErrorKind::AlreadyExists.into()),
            (Some(there), Renaming::Replace) if from.0 == to.0 && moved.name == there.name => Ok(()),
            (Some(there), Renaming::Replace) => self.replace(from, &moved, to, &there),
            (None, Renaming::Replace | Renaming::Keep) => self.move_to_free(from, &moved, to),
        }?;
        self.follow(&moved, from, to)
    }

    /// Records the new entry that leads to a folder.
    fn follow(&self, moved: &Stored<'_>, from: (Node, &OsStr), to: (Node, &OsStr)) -> io::Result<()> {
        if moved.part == Part::Folder {
            let old = Way { parent: self.id(from.0)?, name: from.1.to_owned() };
            let new = Way { parent: self.id(to.0)?, name: to.1.to_owned() };
            self.ways().values_mut().filter(|way| **way == old).for_each(|way| *way = new.clone());
        }
        Ok(())
    }

    /// Fails if a folder would be moved into itself: the places of folders do not show it.
    fn must_stay_outside(&self, from: (Node, &OsStr), moved: &Stored<'_>, to: Node) -> io::Result<()> {
        if moved.part != Part::Folder {
            return Ok(());
        }
        let (moved, _) = self.own_folder(from.0, from.1, moved)?;
        let (mut at, ways) = (self.id(to)?, self.ways());
        for _ in 0..=ways.len() {
            if at == moved {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            match ways.get(&at) {
                Some(way) => at = way.parent,
                None => break,
            }
        }
        Ok(())
    }

    fn move_to_free(&self, from: (Node, &OsStr), moved: &Stored<'_>, to: (Node, &OsStr)) -> io::Result<()> {
        let entry = self.vault().entry_name(to.1);
        if !ends(&entry, SHORTENED) && !ends(&moved.name, SHORTENED) {
            return self.rename_to_free((from.0, &moved.name), (to.0, &entry));
        }
        self.must_be_alone(moved)?;
        if !ends(&entry, SHORTENED) && moved.part == Part::File {
            self.move_file(from.0, moved, (to.0, &entry))?;
        } else {
            let bundle = self.incomplete(to, &entry, moved)?;
            let moving = self.move_file(from.0, moved, (bundle.node(), moved.part.file()));
            // Not the file: it may have been moved in spite of the error.
            moving.inspect_err(|_| self.discard_bundle(to.0, &entry, bundle.node(), None))?;
        }
        self.drop_old(from.0, moved);
        Ok(())
    }

    /// Makes an entry that lacks its file, but not the whole name.
    fn incomplete(&self, to: (Node, &OsStr), entry: &OsStr, moved: &Stored<'_>) -> io::Result<Held<'_>> {
        let new = NewNode { mode: None, owner: self.lower.attributes(moved.file.node())?.owner };
        let bundle = Held::new(&*self.lower, self.lower.make_folder(to.0, entry, &new)?);
        // The old name goes as soon as the file is here.
        let named =
            self.write_whole_name(bundle.node(), entry, to.1, &new).and_then(|()| self.unsynced.flush(&*self.lower));
        named.inspect_err(|_| self.discard_bundle(to.0, entry, bundle.node(), None))?;
        Ok(bundle)
    }

    /// Moves the file that makes an entry what it is. One that is there is replaced.
    fn move_file(&self, folder: Node, moved: &Stored<'_>, to: (Node, &OsStr)) -> io::Result<()> {
        match &moved.bundle {
            None => self.lower.rename(folder, &moved.name, to.0, to.1, Renaming::Replace),
            Some(bundle) => self.lower.rename(bundle.node(), moved.part.file(), to.0, to.1, Renaming::Replace),
        }
    }

    /// Removes what is left of an entry whose file was moved.
    fn drop_old(&self, folder: Node, moved: &Stored<'_>) {
        self.discard(folder, &moved.name, moved, None);
    }

    fn replace(
        &self,
        from: (Node, &OsStr),
        moved: &Stored<'_>,
        to: (Node, &OsStr),
        there: &Stored<'_>,
    ) -> io::Result<()> {
        let place = match &there.bundle {
            None => (to.0, &*there.name),
            Some(bundle) => (bundle.node(), there.part.file()),
        };
        self.must_be_alone(moved)?;
        match (moved.part, there.part) {
            (Part::Folder, Part::Folder) => {
                let (id, old) = self.own_folder(to.0, to.1, there)?;
                self.must_be_empty(old.node())?;
                self.move_file(from.0, moved, place)?;
                // If that fails, a check reports it.
                let _ = self.remove_place(&id, old.node());
                self.ways().remove(&id);
            }
            (Part::Folder, _) => return Err(io::ErrorKind::NotADirectory.into()),
            (_, Part::Folder) => return Err(io::ErrorKind::IsADirectory.into()),
            (a, b) if a == b => self.move_file(from.0, moved, place)?,
            _ => return self.replace_other_part(from, moved, to, there),
        }
        self.drop_old(from.0, moved);
        Ok(())
    }

    /// Replaces a file with a link, or the reverse.
    fn replace_other_part(
        &self,
        from: (Node, &OsStr),
        moved: &Stored<'_>,
        to: (Node, &OsStr),
        there: &Stored<'_>,
    ) -> io::Result<()> {
        self.must_be_alone(there)?;
        let replaced = numbered(REPLACED)?;
        self.rename_to_free((to.0, &there.name), (to.0, &replaced))?;
        let moving = self.move_to_free(from, moved, to);
        // Best effort: the original error is reported.
        moving.inspect_err(|_| drop(self.rename_to_free((to.0, &replaced), (to.0, &there.name))))?;
        match &there.bundle {
            Some(_) => self.discard(to.0, &replaced, there, Some(there.part)),
            None => self.lower.remove(to.0, &replaced)?,
        }
        Ok(())
    }

    fn exchange(
        &self,
        from: (Node, &OsStr),
        moved: &Stored<'_>,
        to: (Node, &OsStr),
        there: &Stored<'_>,
    ) -> io::Result<()> {
        if ends(&moved.name, SHORTENED) || ends(&there.name, SHORTENED) {
            return Err(self.without("way to exchange names that are shortened"));
        }
        self.must_stay_outside(to, there, from.0)?;
        self.lower.rename(from.0, &moved.name, to.0, &there.name, Renaming::Exchange)?;
        if there.part == Part::Folder {
            self.ways().remove(&self.leads_to(&self.stored(from.0, from.1)?)?);
        }
        Ok(())
    }
}

/// Fails for a name that decrypts to a longer one than Unix allows.
fn check_new(name: &OsStr) -> io::Result<()> {
    let encrypted = name.as_bytes().strip_suffix(WHOLE.as_bytes()).and_then(|name| URL_SAFE.decode(name).ok());
    match encrypted {
        Some(encrypted) if encrypted.len() > 16 + LONGEST => Err(Errno::NAMETOOLONG.into()),
        Some(_) => Ok(()),
        None => Err(damaged("name", 0, "it is not encrypted")),
    }
}

/// A new name for an entry that has no name of its own yet, or no longer.
fn unfinished() -> io::Result<OsString> {
    numbered(UNFINISHED)
}

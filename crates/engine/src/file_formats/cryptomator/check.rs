//! What a vault stores and its tree does not show.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::tree::{DATA, DIR_ID, Held, NAME, Part, VaultTree, is_unfinished, subfolder, why_foreign};
use super::vault::{SHORTENED, WHOLE, ends};
use super::{is_of_root, left_over};
use crate::file_formats::{NameIv, NotShown, StoredFolder};
use crate::trees::{Entry, Node, NodeKind};

/// How many names in a lost folder are reported.
const REPORTED_NAMES: usize = 3;

/// The state of a folder's `dirid.c9r`.
enum Backup {
    Right,
    Missing,
    Wrong(&'static str),
}

/// What was found so far.
#[derive(Default)]
pub(super) struct Findings {
    wrong: Vec<NotShown>,
    /// Whether any folder has a `dirid.c9r`, and those that have none.
    backups: bool,
    without: Vec<PathBuf>,
}

impl Findings {
    fn add(&mut self, path: &Path, what: impl Into<String>) {
        self.push(path, what.into(), false, false);
    }

    /// Adds something that an interrupted change left.
    fn add_left_over(&mut self, path: &Path, what: impl Into<String>) {
        self.push(path, what.into(), false, true);
    }

    /// Adds something that holds contents.
    fn add_lost(&mut self, path: &Path, what: impl Into<String>) {
        self.push(path, what.into(), true, false);
    }

    fn push(&mut self, path: &Path, what: String, lost: bool, left_over: bool) {
        self.wrong.push(NotShown { path: path.to_owned(), what, lost, left_over });
    }
}

impl VaultTree {
    /// Folders that nothing leads to, their missing `dirid.c9r`, and whatever else is stored between folders and entries. Every
    /// folder must have been listed.
    pub(super) fn not_shown(&self) -> io::Result<Vec<NotShown>> {
        let mut found = Findings::default();
        self.check_beside(&mut found)?;
        let reached = self.reached()?;
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        for first in self.folders(data.node(), Path::new(DATA), &mut found)? {
            let path = Path::new(DATA).join(&first.name);
            let above = Held::take(&*self.lower, data.node(), &first)?;
            for second in self.folders(above.node(), &path, &mut found)? {
                let path = path.join(&second.name);
                let place = Held::take(&*self.lower, above.node(), &second)?;
                let here = [&first, &second].map(|entry| entry.name.to_string_lossy().into_owned());
                match reached.get(&here) {
                    Some(id) => self.check_folder(place.node(), id, &path, &mut found)?,
                    None if self.shows_lost(&here) => {}
                    None => self.add_lost_folder(place.node(), &here, &path, &mut found)?,
                }
            }
        }
        // Cryptomator before 1.7 made none.
        if found.backups {
            let missing = "Its dirid.c9r is missing, which would tell whose folder it is if its dir.c9r were lost.";
            for path in std::mem::take(&mut found.without) {
                found.add(&path, missing);
            }
        }
        Ok(found.wrong)
    }

    /// The folders that something leads to, by their places.
    pub(super) fn reached(&self) -> io::Result<HashMap<[String; 2], NameIv>> {
        let ways = self.ways();
        ways.keys().chain([&NameIv::default()]).map(|id| Ok((self.vault().place(id)?, *id))).collect()
    }

    /// Finds what does not belong beside the folders of the vault.
    fn check_beside(&self, found: &mut Findings) -> io::Result<()> {
        let beside = self.lower.list_all(self.lower.root())?;
        for name in beside.left_out {
            found.add(Path::new(&name.name), format!("It cannot be read: {}.", name.why.kind));
        }
        for entry in beside.entries {
            match entry.kind {
                NodeKind::File if is_of_root(&entry.name) => {}
                NodeKind::Folder if entry.name == DATA || self.is_own_folder(&entry.name) => {}
                NodeKind::File if left_over(&entry.name) => {
                    found.add_left_over(Path::new(&entry.name), sentence(why_foreign(&entry.name)));
                }
                _ => found.add(Path::new(&entry.name), sentence(why_foreign(&entry.name))),
            }
        }
        Ok(())
    }

    /// The folders in a folder in which only folders belong.
    pub(super) fn folders(&self, folder: Node, path: &Path, found: &mut Findings) -> io::Result<Vec<Entry>> {
        let listing = self.lower.list_all(folder)?;
        for name in listing.left_out {
            found.add(&path.join(&name.name), format!("It cannot be read: {}.", name.why.kind));
        }
        let (mut folders, others): (Vec<_>, Vec<_>) =
            listing.entries.into_iter().partition(|entry| entry.kind == NodeKind::Folder);
        others.iter().for_each(|entry| found.add(&path.join(&entry.name), "It is not part of the vault."));
        folders.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(folders)
    }

    fn check_folder(&self, place: Node, id: &NameIv, path: &Path, found: &mut Findings) -> io::Result<()> {
        if self.vault().config.has_ids() {
            match self.backup(place, id)? {
                Backup::Right => found.backups = true,
                Backup::Missing => found.without.push(path.to_owned()),
                Backup::Wrong(what) => found.add(&path.join(DIR_ID), what),
            }
        }
        for entry in self.lower.list(place)? {
            // A listing names the others.
            if self.is_needless(place, &entry)? {
                found.add_left_over(&path.join(&entry.name), sentence(why_foreign(&entry.name)));
            } else if entry.kind == NodeKind::Folder && is_unfinished(&entry.name) {
                let what = "An interrupted change left it, and it holds files that are not shown.";
                found.add_lost(&path.join(&entry.name), what);
            } else if entry.kind == NodeKind::Folder && (ends(&entry.name, WHOLE) || ends(&entry.name, SHORTENED)) {
                self.check_bundle(place, &entry, &path.join(&entry.name), found)?;
            }
        }
        Ok(())
    }

    fn backup(&self, place: Node, id: &NameIv) -> io::Result<Backup> {
        let of = StoredFolder { tree: &*self.lower, folder: place };
        let stored = match of.read(DIR_ID.as_ref(), self.vault().most_small()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Backup::Missing),
            stored => stored?,
        };
        Ok(match stored.map_or(Ok(None), |stored| self.vault().open_small(&stored))? {
            Some(plain) if plain == **id => Backup::Right,
            Some(_) => Backup::Wrong("It belongs to another folder."),
            None => Backup::Wrong("It fails verification: it was changed, or its transfer was interrupted."),
        })
    }

    /// Finds files in an entry that do not belong there: copies that a sync program kept.
    fn check_bundle(&self, place: Node, entry: &Entry, path: &Path, found: &mut Findings) -> io::Result<()> {
        let shortened = ends(&entry.name, SHORTENED);
        let bundle = Held::take(&*self.lower, place, entry)?;
        let mut parts = 0;
        for file in self.lower.list(bundle.node())? {
            let is_part = Part::ALL.iter().any(|part| file.name == part.file() && (shortened || *part != Part::File));
            parts += usize::from(is_part);
            if !(is_part || shortened && file.name == NAME) {
                found.add_lost(
                    &path.join(&file.name),
                    "It does not belong here: a sync program may have kept another version.",
                );
            }
        }
        if parts > 1 {
            let what = "It holds more than one of dir.c9r, symlink.c9r and contents.c9r: only the first is shown.";
            found.add_lost(path, what);
        }
        Ok(())
    }

    /// Adds a folder that nothing leads to. `here` is its place.
    fn add_lost_folder(&self, place: Node, here: &[String; 2], path: &Path, found: &mut Findings) -> io::Result<()> {
        let id = self.backed_up_id(place);
        let entries = match self.lower.list(place) {
            Ok(entries) => entries,
            Err(e) => {
                found.add_lost(path, format!("Nothing leads to this folder, and it cannot be read: {e}."));
                return Ok(());
            }
        };
        let entries: Vec<_> = entries.into_iter().filter(|entry| entry.name != DIR_ID).collect();
        let count = match entries.len() {
            0 => {
                let what =
                    "Nothing leads to this folder, and it is empty. Once everything is in sync, it can be removed.";
                found.add(path, what);
                return Ok(());
            }
            1 => "1 entry".to_owned(),
            more => format!("{more} entries"),
        };
        let Some(id) = id else {
            let what =
                format!("Nothing leads to this folder. It holds {count}, whose names do not decrypt without its ID.");
            found.add_lost(path, what);
            return Ok(());
        };
        let right = self.vault().place(&id)?;
        let moved = if right == *here { String::new() } else { format!(" It belongs at {DATA}/{}.", right.join("/")) };
        let plain = |entry: &Entry| Some(self.vault().plain_name(&entry.name, &id).ok()??.display().to_string());
        let names: Vec<_> = entries.iter().filter_map(plain).take(REPORTED_NAMES).collect();
        let id = String::from_utf8_lossy(&id).into_owned();
        let names = names.join(", ");
        let what =
            format!("Nothing leads to this folder, with the ID {id:?}.{moved} It holds {count}, among them: {names}.");
        found.add_lost(path, what);
        Ok(())
    }
}

/// A clause as a whole sentence.
fn sentence(clause: &str) -> String {
    let (first, rest) = clause.split_at(1);
    format!("{}{rest}.", first.to_uppercase())
}

//! Folders that nothing leads to, shown in a folder of their own for data rescue. Its node is that of `d`.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use super::check::Findings;
use super::tree::{DATA, DIR_ID, Held, VaultTree, Way, What, keep, left_out, place, subfolder};
use super::vault::{SHORTENED, WHOLE, ends};
use crate::file_formats::{NameIv, StoredFolder, no_name};
use crate::trees::{Entry, HeldNode, Listing, Node, NodeKind, Tree};

/// The folder in the root that shows them, unless there is one of this name.
const SHOWN_IN: &str = "claviger.lost";

/// What the names in it depend on. No folder has this ID.
const IV: &[u8] = b"\0lost";

/// The deepest nesting of folders that is followed.
const DEEPEST: usize = 256;

/// A folder that nothing leads to.
pub(super) struct LostFolder {
    /// The names of the two folders below `d`.
    here: [String; 2],
    /// Its ID. Without it, its names do not decrypt: something that is no ID takes its place.
    id: NameIv,
    known: bool,
}

impl LostFolder {
    fn name(&self) -> OsString {
        let id = if self.known { String::from_utf8_lossy(&self.id).replace('/', "_") } else { self.here.concat() };
        id.into()
    }

    fn why(&self) -> &'static str {
        match self.known {
            true => "nothing leads to this folder: its dir.c9r is missing",
            false => "nothing leads to this folder, and its dirid.c9r is missing or damaged",
        }
    }
}

impl VaultTree {
    /// From now on shows folders that nothing leads to.
    pub(super) fn show_lost(&self) {
        // If they cannot be found, they are reported as lost.
        self.lost.get_or_init(|| self.find_lost().unwrap_or_default());
    }

    pub(super) fn shows_lost(&self, here: &[String; 2]) -> bool {
        self.lost_folders().iter().any(|lost| lost.here == *here)
    }

    fn lost_folders(&self) -> &[LostFolder] {
        self.lost.get().map_or(&[], Vec::as_slice)
    }

    /// Those that are not inside another one, and one of each that are inside each other.
    fn find_lost(&self) -> io::Result<Vec<LostFolder>> {
        if self.stored(self.root(), &self.stored_lost(SHOWN_IN.as_ref())?).is_ok() {
            // They cannot be shown, and are reported as lost.
            return Ok(Vec::new());
        }
        self.reach(self.root(), 0);
        let reached = self.reached()?;
        let (mut all, mut inner, mut ignored) = (Vec::new(), HashMap::new(), Findings::default());
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        for first in self.folders(data.node(), Path::new(DATA), &mut ignored)? {
            let Ok(above) = Held::take(&*self.lower, data.node(), &first) else { continue };
            for second in self.folders(above.node(), Path::new(DATA), &mut ignored).unwrap_or_default() {
                let here = [&first, &second].map(|entry| entry.name.to_string_lossy().into_owned());
                if reached.contains_key(&here) {
                    continue;
                }
                // One that cannot be read is reported as lost, and hides no other.
                let Ok(place) = Held::take(&*self.lower, above.node(), &second) else { continue };
                let Ok(entries) = self.lower.list(place.node()) else { continue };
                if entries.iter().any(|entry| entry.name != DIR_ID) {
                    // Two folders never have the same ID: a copy has none.
                    let free = |id: &NameIv| !inner.contains_key(id) && !self.ways().contains_key(id);
                    let found = self.backed_up_id(place.node()).filter(free);
                    let Some(id) = found.or_else(|| NameIv::new(format!("\0{}", all.len()).as_bytes())) else {
                        continue;
                    };
                    inner.insert(id, self.led_to(place.node()).unwrap_or_default());
                    all.push(LostFolder { id, known: found.is_some(), here });
                }
            }
        }
        // An entry in a lost folder that leads to a lost folder tells the ID of that one.
        let place = |id: &NameIv| Ok((self.vault().place(id)?, *id));
        let led_to: HashMap<_, _> = inner.values().flatten().map(place).collect::<io::Result<_>>()?;
        for lost in all.iter_mut().filter(|lost| !lost.known) {
            if let Some(id) = led_to.get(&lost.here).filter(|id| !inner.contains_key(*id))
                && let Some(contents) = inner.remove(&lost.id)
            {
                inner.insert(*id, contents);
                (lost.id, lost.known) = (*id, true);
            }
        }
        let anywhere: HashSet<_> = inner.values().flatten().copied().collect();
        let mut seen = HashSet::new();
        let (tops, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|lost| !anywhere.contains(&lost.id));
        let shown: Vec<_> = tops.into_iter().chain(others).filter(|lost| see(lost.id, &inner, &mut seen)).collect();
        for lost in &shown {
            // So no entry in it leads to it.
            self.ways().insert(lost.id, Way { parent: lost_iv(), name: self.stored_lost(&lost.name())? });
        }
        Ok(shown)
    }

    /// Lists all folders below one: then it is known what leads to each.
    fn reach(&self, folder: Node, depth: usize) {
        let Ok(listing) = self.list_all(folder) else { return };
        for entry in listing.entries.iter().filter(|entry| entry.kind == NodeKind::Folder && depth < DEEPEST) {
            if let Ok(inner) = HeldNode::take(self, folder, entry) {
                self.reach(inner.node(), depth + 1);
            }
        }
    }

    /// The IDs that the entries of a folder lead to.
    fn led_to(&self, place: Node) -> io::Result<Vec<NameIv>> {
        let leads_to = |name: &OsStr| self.leads_to(&self.stored(place, name).ok()?).ok();
        let entries = self.lower.list(place)?.into_iter();
        if self.vault().config.is_old() {
            return Ok(entries.filter_map(|entry| leads_to(&self.shown_old(&entry).ok()?.name)).collect());
        }
        let entries = entries.filter(|entry| entry.kind == NodeKind::Folder);
        let entries = entries.filter(|entry| ends(&entry.name, WHOLE) || ends(&entry.name, SHORTENED));
        Ok(entries.filter_map(|entry| leads_to(&entry.name)).collect())
    }

    /// The ID that a folder holds itself.
    pub(super) fn backed_up_id(&self, place: Node) -> Option<NameIv> {
        let of = StoredFolder { tree: &*self.lower, folder: place };
        let stored = of.read(DIR_ID.as_ref(), self.vault().most_small()).ok()??;
        NameIv::new(&self.vault().open_small(&stored).ok()??).filter(|id| !id.is_empty())
    }

    // As entries

    fn stored_lost(&self, name: &OsStr) -> io::Result<OsString> {
        let iv = if name == SHOWN_IN { NameIv::default() } else { lost_iv() };
        self.vault().stored_name(name, &iv)
    }

    /// The entry of the root that shows lost folders, if there are any.
    pub(super) fn lost_entry(&self) -> io::Result<Option<Entry>> {
        if self.lost_folders().is_empty() {
            return Ok(None);
        }
        let name = self.stored_lost(SHOWN_IN.as_ref())?;
        if self.stored(self.root(), &name).is_ok() {
            return Ok(None);
        }
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        let node = self.lower.attributes(data.node())?.number;
        Ok(Some(Entry { name, node, kind: NodeKind::Folder }))
    }

    pub(super) fn list_lost(&self) -> io::Result<Listing> {
        let mut listing = Listing { entries: Vec::new(), left_out: Vec::new() };
        for lost in self.lost_folders() {
            let number = |held: Held<'_>| Ok(self.lower.attributes(held.node())?.number);
            // Copying reports one that cannot be read now.
            let node = self.lost_place(lost).and_then(number).unwrap_or_default();
            let (stored, kind) = (self.stored_lost(&lost.name())?, NodeKind::Folder);
            let shown = Entry { name: lost.name(), node, kind };
            listing.left_out.push(left_out(&shown, no_name(lost.why()), true));
            listing.entries.push(Entry { name: stored, ..shown });
        }
        Ok(listing)
    }

    /// The folder with this ID, also if it is shown as a lost one.
    pub(super) fn place_or_lost(&self, id: &NameIv) -> io::Result<Held<'_>> {
        match self.lost_folders().iter().find(|lost| lost.id == *id) {
            Some(lost) => self.lost_place(lost),
            None => place(&*self.lower, self.vault(), id),
        }
    }

    fn lost_place(&self, lost: &LostFolder) -> io::Result<Held<'_>> {
        let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
        let above = subfolder(&*self.lower, data.node(), &lost.here[0])?;
        subfolder(&*self.lower, above.node(), &lost.here[1])
    }

    /// The node of that stored name in the root or in the folder that shows lost folders.
    pub(super) fn lookup_lost(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        if folder == self.root() {
            return match self.lost_entry()? {
                Some(entry) if entry.name == name => {
                    let data = subfolder(&*self.lower, self.lower.root(), DATA)?;
                    Ok(self.give(keep(data), What::Lost))
                }
                _ => Err(io::ErrorKind::NotFound.into()),
            };
        }
        for lost in self.lost_folders() {
            if self.stored_lost(&lost.name())? == name {
                return Ok(self.give_folder(keep(self.lost_place(lost)?), lost.id));
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

pub(super) fn lost_iv() -> NameIv {
    NameIv::new(IV).expect("it is short")
}

/// Marks all that is inside a folder as seen. False if the folder was seen before.
fn see(id: NameIv, inner: &HashMap<NameIv, Vec<NameIv>>, seen: &mut HashSet<NameIv>) -> bool {
    let new = seen.insert(id);
    let mut left = vec![id];
    while let Some(id) = left.pop() {
        left.extend(inner.get(&id).into_iter().flatten().filter(|id| seen.insert(**id)));
    }
    new
}

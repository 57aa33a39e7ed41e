//! A vault's folders as a tree. They are stored side by side, each below `d` at a place that the hash of its ID gives. An entry of a
//! folder is a file, or a folder of its own with a file in it that says what it is (cryptofs, CryptoPathMapper.java):
//!
//! ```text
//! NAME.c9r               a file
//! NAME.c9r/dir.c9r       a folder: its ID
//! NAME.c9r/symlink.c9r   a symbolic link: its target, encrypted like a file
//! HASH.c9s/name.c9s      the NAME.c9r that is too long, beside contents.c9r, dir.c9r or symlink.c9r
//! ```
//!
//! This tree shows stored names, whole ones. Its nodes are those of the tree below: of the folder with the entries, or of the file
//! with the contents. Only one entry leads to each folder: copies of `dir.c9r` would show a folder twice, or in itself.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use super::lost::{LostFolder, lost_iv};
use super::vault::{SHORTENED, Vault, WHOLE, ends};
use super::{is_of_root, left_over};
use crate::error::{Error, ErrorKind};
use crate::file_formats::new_files::is_numbered;
use crate::file_formats::{NameIv, StoredFolder, no_name};
use crate::trees::{
    Attributes, Entry, HeldNode, LeftOut, Listing, NewNode, Node, NodeKind, Renaming, Space, Special, Tree, Unsynced,
    Use, damaged, shrink,
};

/// The folder with all folders.
pub(super) const DATA: &str = "d";

/// The file in a folder that holds its ID, encrypted, in case nothing leads to it any more. Since Cryptomator 1.7.
pub(super) const DIR_ID: &str = "dirid.c9r";

/// The file in a shortened entry that holds its whole name.
pub(super) const NAME: &str = "name.c9s";

/// How the names of unfinished entries begin, and of those that are being removed: nobody misses what they hold. No name of the format
/// begins this way.
pub(super) const UNFINISHED: &str = "claviger.unfinished.";

/// How the names of entries begin that a file or link of another form is about to replace.
pub(super) const REPLACED: &str = "claviger.replaced.";

/// How marks of files that are in use end (cryptofs 2.10, Constants.java, `INUSE_FILE_SUFFIX`).
const IN_USE: &str = ".c9u";

/// The longest whole name (cryptofs, LongFileNameProvider.java, `MAX_FILENAME_BUFFER_SIZE`), and the longest ID, in bytes.
pub(super) const LONGEST_WHOLE: usize = 10 << 10;
pub(super) const LONGEST_ID: usize = 36;

pub(super) type Held<'a> = HeldNode<&'a (dyn Tree + 'static)>;

/// See the module.
pub(super) struct VaultTree {
    pub(super) lower: Arc<dyn Tree>,
    vault: Vault,
    /// The folder with the entries of the root, held for as long as this lives.
    root: HeldNode<Arc<dyn Tree>>,
    nodes: Mutex<HashMap<Node, Known>>,
    /// The entry that leads to each folder.
    ways: Mutex<HashMap<NameIv, Way>>,
    /// Held while entries change.
    changing: Mutex<()>,
    /// Whether files were written beside contents and not synced yet.
    pub(super) unsynced: Unsynced,
    /// Folders that nothing leads to, once they are shown.
    pub(super) lost: OnceLock<Vec<LostFolder>>,
}

/// A node that was returned, and how often.
struct Known {
    what: What,
    times: u64,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    Folder(NameIv),
    Link,
    /// The folder that shows lost folders.
    Lost,
}

/// An entry: the ID of its folder and its whole stored name.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub parent: NameIv,
    pub name: OsString,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Folder,
    Link,
    File,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Folder, Self::Link, Self::File];

    /// The file that makes a folder such an entry.
    pub fn file(self) -> &'static OsStr {
        OsStr::new(match self {
            Self::Folder => "dir.c9r",
            Self::Link => "symlink.c9r",
            Self::File => "contents.c9r",
        })
    }
}

/// A stored entry.
pub(super) struct Stored<'a> {
    /// Its name in the tree below: shortened, if it is too long.
    pub name: OsString,
    /// The folder that stands for it, unless it is a file alone.
    pub bundle: Option<Held<'a>>,
    pub part: Part,
    /// The file that makes it what it is, or that holds its contents.
    pub file: Held<'a>,
}

impl VaultTree {
    /// The folders of the vault `lower`.
    ///
    /// # Errors
    /// `InvalidData` if its root folder is missing; those of the tree.
    pub fn new(lower: Arc<dyn Tree>, vault: Vault) -> io::Result<Self> {
        let root = keep(place(&*lower, &vault, &NameIv::default())?);
        Ok(Self {
            root: HeldNode::new(lower.clone(), root),
            lower,
            vault,
            nodes: Mutex::default(),
            ways: Mutex::default(),
            changing: Mutex::default(),
            unsynced: Unsynced::default(),
            lost: OnceLock::new(),
        })
    }

    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// The ID of a folder. Its node must be held.
    pub fn id(&self, folder: Node) -> io::Result<NameIv> {
        match self.nodes().get(&folder).map(|known| known.what) {
            _ if folder == self.root.node() => Ok(NameIv::default()),
            Some(What::Folder(id)) => Ok(id),
            Some(What::Lost) => Ok(lost_iv()),
            Some(What::Link) | None => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Node, Known>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ways(&self) -> MutexGuard<'_, HashMap<NameIv, Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a node of a folder to a caller, who gives it back.
    pub(super) fn give_folder(&self, node: Node, id: NameIv) -> Node {
        self.give(node, What::Folder(id))
    }

    pub(super) fn give(&self, node: Node, what: What) -> Node {
        self.nodes().entry(node).or_insert(Known { what, times: 0 }).times += 1;
        node
    }

    // Entries

    /// The entry that has this whole stored name in a folder.
    pub(super) fn stored(&self, folder: Node, name: &OsStr) -> io::Result<Stored<'_>> {
        if self.vault.config.is_old() {
            return self.stored_old(folder, name);
        }
        let name = self.vault.entry_name(name);
        let node = Held::lookup(&*self.lower, folder, &name)?;
        match self.lower.attributes(node.node())?.kind {
            NodeKind::File => Ok(Stored { name, bundle: None, part: Part::File, file: node }),
            NodeKind::Folder => {
                let (part, file) = self.part(node.node(), ends(&name, SHORTENED))?;
                Ok(Stored { name, bundle: Some(node), part, file })
            }
            NodeKind::Link | NodeKind::Special => Err(damaged("entry", 0, NO_ENTRY)),
        }
    }

    /// What a folder makes an entry, and the file that does.
    fn part(&self, bundle: Node, shortened: bool) -> io::Result<(Part, Held<'_>)> {
        // A file needs no folder, unless its name is shortened.
        let parts = Part::ALL.into_iter().filter(|part| shortened || *part != Part::File);
        for part in parts {
            match Held::lookup(&*self.lower, bundle, part.file()) {
                Ok(file) if self.lower.attributes(file.node())?.kind == NodeKind::File => return Ok((part, file)),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let missing = if shortened { "dir.c9r, symlink.c9r or contents.c9r" } else { "dir.c9r or symlink.c9r" };
        Err(damaged("entry", 0, format!("there is no {missing} in it")))
    }

    /// The ID in an entry that leads to a folder.
    pub(super) fn leads_to(&self, entry: &Stored<'_>) -> io::Result<NameIv> {
        let wrong = |what: &str| damaged(self.vault.config.leading_file(), 0, what);
        if entry.part != Part::Folder {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mut id = vec![0; LONGEST_ID + 1];
        let len = self.lower.read_at(entry.file.node(), 0, &mut id)?;
        id.truncate(len);
        if len > LONGEST_ID {
            return Err(wrong("it is too long for the ID of a folder"));
        }
        match NameIv::new(&id) {
            _ if id.is_empty() => {
                Err(wrong("it is empty: its transfer was interrupted, or it would lead to the root folder"))
            }
            Some(iv) if id.iter().all(u8::is_ascii_graphic) => Ok(iv),
            _ => Err(wrong("it holds no ID of a folder")),
        }
    }

    /// The folder with this ID, if the entry `way` is the only one that leads to it.
    pub(super) fn folder(&self, id: NameIv, way: Way) -> io::Result<Held<'_>> {
        if let Some(other) = self.other_way(id, way)? {
            let name = self.vault.plain_name(&other.name, &other.parent)?.unwrap_or(other.name);
            let what = format!("it is a copy: {} leads to the same folder, and is shown", name.display());
            return Err(damaged(self.vault.config.leading_file(), 0, what));
        }
        place(&*self.lower, &self.vault, &id)
    }

    /// Another entry that leads to the folder with this ID. The first one that was seen is the right one, while it is there.
    fn other_way(&self, id: NameIv, way: Way) -> io::Result<Option<Way>> {
        let first = self.ways().entry(id).or_insert_with(|| way.clone()).clone();
        if first == way {
            return Ok(None);
        }
        if self.still_leads(&first, &id)? {
            return Ok(Some(first));
        }
        self.ways().insert(id, way);
        Ok(None)
    }

    fn still_leads(&self, way: &Way, id: &NameIv) -> io::Result<bool> {
        if way.parent == lost_iv() {
            return Ok(true);
        }
        let leads = || {
            let parent = self.place_or_lost(&way.parent)?;
            self.leads_to(&self.stored(parent.node(), &way.name)?)
        };
        match leads() {
            Ok(leads_to) => Ok(leads_to == *id),
            Err(e) if is_missing(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The node of an entry, for a caller.
    fn open(&self, parent: NameIv, name: &OsStr, entry: Stored<'_>) -> io::Result<Node> {
        match entry.part {
            Part::File => Ok(keep(entry.file)),
            Part::Link => Ok(self.give(keep(entry.file), What::Link)),
            Part::Folder => {
                let id = self.leads_to(&entry)?;
                let folder = self.folder(id, Way { parent, name: name.to_owned() })?;
                Ok(self.give_folder(keep(folder), id))
            }
        }
    }

    /// A file of the vault itself, which the root has beside its entries.
    fn own_file(&self, name: &OsStr) -> io::Result<Node> {
        if !is_of_root(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = Held::lookup(&*self.lower, self.lower.root(), name)?;
        match self.lower.attributes(file.node())?.kind {
            NodeKind::File => Ok(keep(file)),
            NodeKind::Folder | NodeKind::Link | NodeKind::Special => Err(io::ErrorKind::NotFound.into()),
        }
    }

    // Listings

    fn list_entry(&self, folder: Node, id: NameIv, entry: Entry, to: &mut Listing) -> io::Result<()> {
        let listed = match entry.kind {
            // Nothing to show: a mark of Cryptomator for a file that somebody has open.
            NodeKind::File if ends(&entry.name, IN_USE) => return Ok(()),
            // A check names it.
            NodeKind::Folder if is_unfinished(&entry.name) => return Ok(()),
            _ if !ends(&entry.name, WHOLE) && !ends(&entry.name, SHORTENED) => {
                Err(damaged("entry", 0, why_foreign(&entry.name)))
            }
            NodeKind::Link | NodeKind::Special => Err(damaged("entry", 0, NO_ENTRY)),
            _ if self.vault.entry_name(&entry.name) != entry.name => {
                Err(damaged("entry", 0, "its name is not shortened"))
            }
            NodeKind::File => Ok(entry.clone()),
            NodeKind::Folder => self.bundle(folder, id, &entry.name),
        };
        match listed {
            Ok(entry) => to.entries.push(entry),
            Err(e) if is_missing(&e) => to.left_out.push(left_out(&entry, self.why(&entry.name, &id, e), false)),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The entry that a folder stands for.
    fn bundle(&self, folder: Node, parent: NameIv, stored: &OsStr) -> io::Result<Entry> {
        let name = self.whole_name(folder, stored)?.unwrap_or_else(|| stored.to_owned());
        let entry = self.stored(folder, &name)?;
        let number = |node| self.lower.attributes(node).map(|of| of.number);
        let (kind, node) = match entry.part {
            Part::File => (NodeKind::File, number(entry.file.node())?),
            Part::Link => (NodeKind::Link, number(entry.file.node())?),
            Part::Folder => {
                let folder = self.folder(self.leads_to(&entry)?, Way { parent, name: name.clone() })?;
                (NodeKind::Folder, number(folder.node())?)
            }
        };
        Ok(Entry { name, node, kind })
    }

    /// The whole name of a shortened entry. `None` if it has none, or if it is missing or damaged.
    fn whole_name(&self, folder: Node, stored: &OsStr) -> io::Result<Option<OsString>> {
        if !ends(stored, SHORTENED) {
            return Ok(None);
        }
        let bundle = Held::lookup(&*self.lower, folder, stored)?;
        let of = StoredFolder { tree: &*self.lower, folder: bundle.node() };
        match of.read(NAME.as_ref(), LONGEST_WHOLE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => {
                let whole = read?.map(OsString::from_vec);
                Ok(whole.filter(|whole| whole != stored && self.vault.entry_name(whole) == stored))
            }
        }
    }

    /// Why an entry is not shown, with its name if that decrypts.
    pub(super) fn why(&self, stored: &OsStr, folder: &NameIv, error: io::Error) -> Error {
        let what = match Error::from(error).kind {
            ErrorKind::Malformed { field: "entry", what, .. } => what,
            ErrorKind::Malformed { field, what, .. } => format!("{field}: {what}"),
            other => other.to_string(),
        };
        match self.vault.plain_name(stored, folder).ok().flatten() {
            Some(name) => no_name(&format!("{what}. Its name is {}", name.display())),
            None => no_name(&what),
        }
    }
}

pub(super) const NO_ENTRY: &str = "it is neither a file nor a folder, and Cryptomator stores nothing else";

/// Whether an interrupted change leaves an entry of this name.
pub(super) fn is_unfinished(name: &OsStr) -> bool {
    is_numbered(name, UNFINISHED)
}

/// Why something is not shown that no name of the format has.
pub(super) fn why_foreign(name: &OsStr) -> &'static str {
    let begins = |start: &str| name.as_bytes().starts_with(start.as_bytes());
    match () {
        () if begins(UNFINISHED) => "it is left over from making, moving or removing something, and can be removed",
        () if begins(REPLACED) => "an interrupted rename left it: it holds what the rename was about to replace",
        () if left_over(name) => "it is left over from a change of the password, and can be removed",
        () if (begins("vault") || begins("masterkey")) && name.to_string_lossy().contains(".cryptomator") => {
            "a sync program kept this copy of another version of a file of the vault"
        }
        () => "it is not part of the vault",
    }
}

/// The folder with the entries of the one with this ID.
pub(super) fn place<'a>(lower: &'a (dyn Tree + 'static), vault: &Vault, id: &NameIv) -> io::Result<Held<'a>> {
    let [first, second] = vault.place(id)?;
    let missing = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if id.is_empty() => {
            damaged("d", 0, format!("the root folder is missing: {DATA}/{first}/{second}"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let what = format!("the folder that it leads to is missing: {DATA}/{first}/{second}");
            damaged(vault.config.leading_file(), 0, what)
        }
        _ => e,
    };
    let step = |folder: Node, name: &str| subfolder(lower, folder, name).map_err(missing);
    let data = step(lower.root(), DATA)?;
    step(step(data.node(), &first)?.node(), &second)
}

/// A folder, but nothing that a symbolic link leads to.
pub(super) fn subfolder<'a>(lower: &'a (dyn Tree + 'static), folder: Node, name: &str) -> io::Result<Held<'a>> {
    let found = Held::lookup(lower, folder, name.as_ref())?;
    match lower.attributes(found.node())?.kind {
        NodeKind::Folder => Ok(found),
        NodeKind::File | NodeKind::Link | NodeKind::Special => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Takes a node out of its guard. The caller gives it back.
pub(super) fn keep(held: Held<'_>) -> Node {
    let node = held.node();
    std::mem::forget(held);
    node
}

/// Whether the error says that something is missing or damaged. Others say nothing about the vault.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn left_out(entry: &Entry, why: Error, listed: bool) -> LeftOut {
    LeftOut { name: entry.name.clone(), kind: entry.kind, why, listed }
}

impl Tree for VaultTree {
    fn root(&self) -> Node {
        self.root.node()
    }

    fn writable(&self) -> bool {
        self.lower.writable()
    }

    fn folds_case(&self) -> bool {
        self.lower.folds_case()
    }

    fn changes_elsewhere(&self) -> bool {
        self.lower.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.lower.warnings()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let parent = self.id(folder)?;
        if parent == lost_iv() {
            return self.lookup_lost(folder, name);
        }
        match self.stored(folder, name) {
            Ok(entry) => self.open(parent, name, entry),
            Err(e) if e.kind() == io::ErrorKind::NotFound && folder == self.root.node() => match self.own_file(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => self.lookup_lost(folder, name),
                own => own,
            },
            Err(e) => Err(e),
        }
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.lookup(folder, &entry.name)
    }

    fn forget(&self, node: Node, times: u64) {
        let mut nodes = self.nodes();
        if let Some(known) = nodes.get_mut(&node) {
            known.times = known.times.saturating_sub(times);
            if known.times == 0 {
                nodes.remove(&node);
                shrink(&mut nodes);
            }
        }
        drop(nodes);
        self.lower.forget(node, times);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let of = self.lower.attributes(node)?;
        let what = self.nodes().get(&node).map(|known| known.what);
        Ok(match what {
            Some(What::Link) => Attributes { kind: NodeKind::Link, ..of },
            // Links of the folder below count entries of any kind.
            _ if of.kind == NodeKind::Folder => Attributes { links: 1, ..of },
            _ => of,
        })
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        Ok(self.list_all(folder)?.entries)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        let id = self.id(folder)?;
        if id == lost_iv() {
            return self.list_lost();
        }
        let below = self.lower.list_all(folder)?;
        let mut listing = Listing { entries: Vec::with_capacity(below.entries.len()), left_out: below.left_out };
        match self.vault.config.is_old() {
            true => self.list_old(id, below.entries, &mut listing)?,
            false => {
                below.entries.into_iter().try_for_each(|entry| self.list_entry(folder, id, entry, &mut listing))?
            }
        }
        if folder == self.root() {
            listing.entries.extend(self.lost_entry()?);
        }
        Ok(listing)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.lower.read_at(file, offset, out)
    }

    /// The stored form of the target.
    fn link_target(&self, link: Node) -> io::Result<OsString> {
        let mut bytes = vec![0; self.vault.most_small() + 1];
        let len = self.lower.read_at(link, 0, &mut bytes)?;
        if len == bytes.len() {
            return Err(damaged("target", 0, "it is too long"));
        }
        bytes.truncate(len);
        Ok(OsString::from_vec(bytes))
    }

    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.lower.write_at(file, offset, data)
    }

    fn write_in_place(&self, file: Node, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.lower.write_in_place(file, offset, data)
    }

    fn append(&self, file: Node, data: &[u8]) -> io::Result<()> {
        self.lower.append(file, data)
    }

    fn must_fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        self.lower.must_fill(file, to, writes)
    }

    fn fill(&self, file: Node, to: u64, writes: bool) -> io::Result<bool> {
        self.lower.fill(file, to, writes)
    }

    fn set_len(&self, file: Node, len: u64) -> io::Result<()> {
        self.lower.set_len(file, len)
    }

    fn reserve(&self, file: Node, offset: u64, len: u64) -> io::Result<()> {
        self.lower.reserve(file, offset, len)
    }

    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.lower.set_times(node, modified, accessed)
    }

    fn set_mode(&self, node: Node, mode: u16) -> io::Result<()> {
        self.lower.set_mode(node, mode)
    }

    fn set_owner(&self, node: Node, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.lower.set_owner(node, user, group)
    }

    fn create(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        let node = self.create_open(folder, name, new, Use { read: true, write: true })?;
        self.release(node).inspect_err(|_| self.forget(node, 1)).map(|()| node)
    }

    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        self.new_file(folder, name, new, usage)
    }

    fn make_folder(&self, folder: Node, name: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.new_folder(folder, name, new)
    }

    fn make_link(&self, folder: Node, name: &OsStr, target: &OsStr, new: &NewNode) -> io::Result<Node> {
        self.new_link(folder, name, target, new)?;
        self.lookup(folder, name)
    }

    fn make_special(&self, _folder: Node, _name: &OsStr, _special: Special, _new: &NewNode) -> io::Result<Node> {
        Err(self.without("pipes, sockets and devices"))
    }

    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to_name: &OsStr, how: Renaming) -> io::Result<()> {
        self.rename_entry((folder, name), (to_folder, to_name), how)
    }

    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        self.remove_entry(folder, name)
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        self.lower.open(file, usage)
    }

    fn release(&self, file: Node) -> io::Result<()> {
        self.lower.release(file)
    }

    fn sync(&self, node: Node, contents_only: bool) -> io::Result<()> {
        self.unsynced.flush(&*self.lower)?;
        self.lower.sync(node, contents_only)
    }

    fn flush(&self) -> io::Result<()> {
        self.lower.flush()
    }

    fn finish(&self) -> io::Result<()> {
        self.lower.finish()
    }

    fn space(&self) -> io::Result<Space> {
        self.lower.space()
    }
}

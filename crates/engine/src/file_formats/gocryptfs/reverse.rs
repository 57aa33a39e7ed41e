//! Reverse mode: a plain folder, shown as an encrypted one (gocryptfs 2.3, internal/fusefrontend_reverse and internal/pathiv).
//!
//! What is random in a stored folder is derived from paths here, so the view is always the same. AES-SIV allows that.

use std::collections::HashMap;
use std::collections::hash_map;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use claviger_crypto::hash::SHA256;
use claviger_crypto::secret::wipe_after_sectors;

use super::config::CONFIG;
use super::keys::{BLOCK, FOLDER_FILE, HEADER, ID, Keys, NO_FILE, VERSION, WHOLE};
use crate::error::{Error, Result};
use crate::file_formats::{FileKeys, FileKind, NameIv, NameRole, StoredFile, no_name};
use crate::key_process::folder::{FolderKeys, KeylessFolder};
use crate::trees::{
    Attributes, Entry, HeldNode, LeftOut, Listing, Node, NodeKind, Space, Tree, Use, read_only, shrink,
};
use crate::volume::Sealing;

/// The configuration in the plain folder. The view shows it as [`CONFIG`].
pub(super) const REVERSE_CONFIG: &str = ".gocryptfs.reverse.conf";

/// What values are derived for (pathiv.go).
const OF_FOLDER: &str = "DIRIV";
const OF_FILE: &str = "FILEID";
const OF_BLOCKS: &str = "BLOCK0IV";
const OF_LINK: &str = "SYMLINKIV";

/// Bits in the numbers of files that only the view has (inomap.go).
const IV_NUMBER: u64 = 1 << 48;
const NAME_NUMBER: u64 = 2 << 48;

/// Anybody may read those files: who may search the folder knows what they say.
const MODE: u16 = 0o444;

/// How many blocks are read together.
const BATCH: usize = 32;

/// How many long names are remembered.
const MOST_LONG: usize = 1 << 14;

/// The root of the view.
const ROOT: Node = 1;

/// The value for this path in the view, without a slash in front.
fn of_path(path: &OsStr, what_for: &str) -> [u8; ID] {
    let mut hash = [0; 32];
    SHA256.checksum(&[path.as_bytes(), &[0], what_for.as_bytes()], &mut hash);
    *hash.first_chunk().expect("as long")
}

fn below(path: &OsStr, name: &OsStr) -> OsString {
    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
    OsStr::from_bytes(&[path.as_bytes(), slash, name.as_bytes()].concat()).to_owned()
}

/// What a file is sealed with.
#[derive(Clone, Copy)]
struct FileIvs {
    id: [u8; ID],
    /// The nonce of the first block.
    first: [u8; ID],
}

impl FileIvs {
    fn of(path: &OsStr) -> Self {
        Self { id: of_path(path, OF_FILE), first: of_path(path, OF_BLOCKS) }
    }

    /// The nonce of a block: its number is added to the second half.
    fn nonce(&self, block: u64) -> [u8; ID] {
        let sum = u128::from_be_bytes(self.first);
        let low = (sum as u64).wrapping_add(block);
        (sum & !u128::from(u64::MAX) | u128::from(low)).to_be_bytes()
    }
}

type Held = Arc<HeldNode<Arc<dyn Tree>>>;

/// A node of the view.
struct ViewNode {
    path: OsString,
    /// The node that is shown, or whose owner and times a file has that only the view has.
    lower: Held,
    shown: ShownAs,
    ivs: OnceLock<FileIvs>,
}

enum ShownAs {
    Encrypted,
    /// Unchanged: the configuration.
    Same,
    /// A file that only the view has: its contents, and the bits in its number.
    Own(Vec<u8>, u64),
}

impl ViewNode {
    fn is_root(&self) -> bool {
        self.path.is_empty()
    }
}

/// The nodes that were handed out, until they are given back.
struct Nodes {
    /// With how often each was handed out.
    all: HashMap<Node, (Arc<ViewNode>, u64)>,
    /// By path and by the node below.
    known: HashMap<(OsString, Node), Node>,
    next: Node,
}

/// The encrypted view of a plain folder. It cannot be written to.
pub(super) struct ReverseTree {
    lower: Arc<dyn Tree>,
    keys: Arc<Keys>,
    sealing: Arc<Sealing>,
    root: Arc<ViewNode>,
    nodes: Mutex<Nodes>,
    /// What files with several names are sealed with, by number and time of creation: the path that was opened first gives it.
    linked: Mutex<HashMap<(u64, Option<SystemTime>), FileIvs>>,
    /// The plain names of long paths. A path always has the same one.
    long: Mutex<HashMap<OsString, OsString>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReverseTree {
    fn new(lower: Arc<dyn Tree>, keys: Arc<Keys>, sealing: Arc<Sealing>) -> Self {
        let held = Arc::new(HeldNode::new(lower.clone(), lower.root()));
        let (path, shown, ivs) = (OsString::new(), ShownAs::Encrypted, OnceLock::new());
        let root = Arc::new(ViewNode { path, lower: held, shown, ivs });
        let nodes = Nodes { all: HashMap::new(), known: HashMap::new(), next: ROOT + 1 };
        let (nodes, linked, long) = (Mutex::new(nodes), Mutex::default(), Mutex::default());
        Self { lower, keys, sealing, root, nodes, linked, long }
    }

    // Nodes

    fn node(&self, node: Node) -> io::Result<Arc<ViewNode>> {
        if node == ROOT {
            return Ok(self.root.clone());
        }
        let found = locked(&self.nodes).all.get(&node).map(|(found, _)| found.clone());
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn folder(&self, node: Node) -> io::Result<Arc<ViewNode>> {
        let folder = self.node(node)?;
        match folder.shown {
            ShownAs::Encrypted => Ok(folder),
            ShownAs::Same | ShownAs::Own(..) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn hand_out(&self, path: OsString, lower: Held, shown: ShownAs) -> Node {
        let mut nodes = locked(&self.nodes);
        let Nodes { all, known, next } = &mut *nodes;
        let node = match known.entry((path.clone(), lower.node())) {
            hash_map::Entry::Occupied(there) => *there.get(),
            hash_map::Entry::Vacant(new) => {
                *next += 1;
                *new.insert(*next - 1)
            }
        };
        let ivs = OnceLock::new();
        all.entry(node).or_insert_with(|| (Arc::new(ViewNode { path, lower, shown, ivs }), 0)).1 += 1;
        node
    }

    // Names

    fn name_iv(&self, folder: &ViewNode) -> [u8; ID] {
        if self.keys.folder_file().is_some() { of_path(&folder.path, OF_FOLDER) } else { [0; ID] }
    }

    /// The name in the view, and the whole one if that is shortened.
    fn name_of(&self, folder: &ViewNode, plain: &OsStr) -> io::Result<(OsString, Option<OsString>)> {
        let whole = self.keys.stored_name(plain, &self.name_iv(folder).into())?;
        match self.keys.shortened(&whole) {
            _ if folder.is_root() && whole == CONFIG => {
                let what = format!("{REVERSE_CONFIG} has that name in the view: rename this file");
                Err(no_name(&what).into())
            }
            Some(short) => Ok((short, Some(whole))),
            None => Ok((whole, None)),
        }
    }

    /// Whether it is the configuration, which the view does not encrypt.
    fn is_config(folder: &ViewNode, plain: &OsStr) -> bool {
        folder.is_root() && plain == REVERSE_CONFIG
    }

    /// The plain name of an encrypted one.
    fn plain_name(&self, folder: &ViewNode, name: &OsStr) -> io::Result<OsString> {
        let plain = self.keys.plain_name(name, &self.name_iv(folder).into())?.filter(|plain| {
            // A name in another encoding is no name of the view.
            !Self::is_config(folder, plain) && self.name_of(folder, plain).is_ok_and(|(of, _)| of == name)
        });
        plain.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The plain name of a shortened one. If it is not known, every name in the folder is tried.
    fn long_name(&self, folder: &ViewNode, short: &OsStr) -> io::Result<OsString> {
        let path = below(&folder.path, short);
        if let Some(known) = locked(&self.long).get(&path) {
            return Ok(known.clone());
        }
        for entry in self.lower.list(folder.lower.node())? {
            if let Ok((name, Some(_))) = self.name_of(folder, &entry.name) {
                self.remember(below(&folder.path, &name), &entry.name);
                if name == short {
                    return Ok(entry.name);
                }
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn remember(&self, path: OsString, plain: &OsStr) {
        let mut long = locked(&self.long);
        if long.len() == MOST_LONG {
            long.clear();
        }
        long.insert(path, plain.to_owned());
    }

    fn below(&self, folder: &ViewNode, plain: &OsStr) -> io::Result<Held> {
        let node = self.lower.lookup(folder.lower.node(), plain)?;
        Ok(Arc::new(HeldNode::new(self.lower.clone(), node)))
    }

    fn found(&self, folder: &ViewNode, name: &OsStr) -> io::Result<(Held, ShownAs)> {
        match self.keys.role(name, folder.is_root()) {
            NameRole::Own if name == FOLDER_FILE.name => {
                if self.lower.attributes(folder.lower.node())?.kind != NodeKind::Folder {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                let iv = self.name_iv(folder).to_vec();
                Ok((folder.lower.clone(), ShownAs::Own(iv, IV_NUMBER)))
            }
            NameRole::Own => Ok((self.below(folder, REVERSE_CONFIG.as_ref())?, ShownAs::Same)),
            NameRole::Name => Ok((self.below(folder, &self.plain_name(folder, name)?)?, ShownAs::Encrypted)),
            NameRole::Shortened { .. } => Ok((self.below(folder, &self.long_name(folder, name)?)?, ShownAs::Encrypted)),
            NameRole::WholeNameOf(short) => {
                let plain = self.long_name(folder, &short)?;
                let (_, whole) = self.name_of(folder, &plain)?;
                let whole = whole.unwrap_or_default().as_bytes().to_vec();
                Ok((self.below(folder, &plain)?, ShownAs::Own(whole, NAME_NUMBER)))
            }
        }
    }

    fn listing(&self, folder: Node) -> io::Result<Listing> {
        let folder = self.folder(folder)?;
        let mut listing = self.lower.list_all(folder.lower.node())?;
        let file = |name: &OsStr, node| Entry { name: name.to_owned(), node, kind: NodeKind::File };
        let mut own = Vec::new();
        if self.keys.folder_file().is_some() {
            let number = self.lower.attributes(folder.lower.node())?.number;
            own.push(file(FOLDER_FILE.name.as_ref(), number ^ IV_NUMBER));
        }
        let left_out = &mut listing.left_out;
        listing.entries.retain_mut(|entry| {
            if Self::is_config(&folder, &entry.name) {
                entry.name = CONFIG.into();
                return true;
            }
            match self.name_of(&folder, &entry.name) {
                Ok((name, whole)) => {
                    if whole.is_some() {
                        self.remember(below(&folder.path, &name), &entry.name);
                        let mut whole_in = name.clone();
                        whole_in.push(WHOLE);
                        own.push(file(&whole_in, entry.node ^ NAME_NUMBER));
                    }
                    entry.name = name;
                    true
                }
                Err(e) => {
                    let (name, kind, why) = (entry.name.clone(), entry.kind, Error::from(e));
                    left_out.push(LeftOut { name, kind, why, listed: false });
                    false
                }
            }
        });
        listing.entries.extend(own);
        Ok(listing)
    }

    // Contents

    /// What a file is sealed with. All names of one lead to the same contents.
    fn ivs(&self, node: &ViewNode) -> io::Result<FileIvs> {
        if let Some(ivs) = node.ivs.get() {
            return Ok(*ivs);
        }
        let of = self.lower.attributes(node.lower.node())?;
        let own = FileIvs::of(&node.path);
        let mut linked = locked(&self.linked);
        let ivs = match of.links {
            0 | 1 => linked.get(&(of.number, of.created)).copied().unwrap_or(own),
            _ => *linked.entry((of.number, of.created)).or_insert(own),
        };
        Ok(*node.ivs.get_or_init(|| ivs))
    }

    fn stored_block(&self) -> u64 {
        (BLOCK + self.sealing.overhead()) as u64
    }

    /// The size of a file in the view. An empty one has no header.
    fn size(&self, plain: u64) -> u64 {
        let overhead = plain.div_ceil(BLOCK as u64).saturating_mul(self.sealing.overhead() as u64);
        if plain == 0 { 0 } else { plain.saturating_add(overhead).saturating_add(HEADER as u64) }
    }

    fn read_encrypted(&self, node: &ViewNode, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let ivs = self.ivs(node)?;
        let mut done = 0;
        while done < out.len() {
            match self.read_batch(node, &ivs, offset + done as u64, &mut out[done..])? {
                ControlFlow::Continue(read) => done += read,
                ControlFlow::Break(read) => return Ok(done + read),
            }
        }
        Ok(done)
    }

    /// Seals the next blocks of a file as they are now, and returns how many bytes that gave. `Break` at the end of the file.
    fn read_batch(
        &self,
        node: &ViewNode,
        ivs: &FileIvs,
        at: u64,
        out: &mut [u8],
    ) -> io::Result<ControlFlow<usize, usize>> {
        let (sealing, header, stored_block) = (&self.sealing, HEADER as u64, self.stored_block());
        let first = at.saturating_sub(header) / stored_block;
        let start = if first == 0 { 0 } else { header + first * stored_block };
        let skip = (at - start) as usize;
        let blocks = (skip + out.len()).div_ceil(stored_block as usize).min(BATCH);
        let mut plain = vec![0; blocks * BLOCK];
        let read = self.lower.read_at(node.lower.node(), first * BLOCK as u64, &mut plain)?;
        let mut stored = Vec::with_capacity(HEADER + blocks * stored_block as usize);
        if first == 0 && read > 0 {
            stored.extend(VERSION.iter().chain(&ivs.id));
        }
        for (number, block) in (first..).zip(plain[..read].chunks(BLOCK)) {
            let place = stored.len();
            stored.resize(place + block.len() + sealing.overhead(), 0);
            let beside = [&number.to_be_bytes()[..], &ivs.id].concat();
            sealing.seal_into(&ivs.nonce(number), &beside, block, &mut stored[place..]);
        }
        wipe_after_sectors();
        let len = copy(&stored, skip, out);
        // A block that the file's end cuts now may be whole with the next read.
        Ok(if read < plain.len() || len == 0 { ControlFlow::Break(len) } else { ControlFlow::Continue(len) })
    }

    /// The target of a link, sealed like a block of no file.
    fn target(&self, link: &ViewNode) -> io::Result<OsString> {
        let plain = self.lower.link_target(link.lower.node())?;
        if !self.keys.encrypts_names() || plain.is_empty() {
            return Ok(plain);
        }
        // gocryptfs names the link twice here.
        let name = link.path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let nonce = of_path(&below(&link.path, OsStr::from_bytes(name)), OF_LINK);
        let mut sealed = vec![0; plain.len() + self.sealing.overhead()];
        self.sealing.seal_into(&nonce, &NO_FILE, plain.as_bytes(), &mut sealed);
        wipe_after_sectors();
        self.keys.stored_sealed_target(&sealed)
    }
}

/// Copies what there is from `skip` on.
fn copy(from: &[u8], skip: usize, to: &mut [u8]) -> usize {
    let from = from.get(skip..).unwrap_or_default();
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    len
}

impl Tree for ReverseTree {
    fn root(&self) -> Node {
        ROOT
    }

    fn changes_elsewhere(&self) -> bool {
        self.lower.changes_elsewhere()
    }

    fn warnings(&self) -> Vec<String> {
        self.lower.warnings()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let folder = self.folder(folder)?;
        let (lower, shown) = self.found(&folder, name)?;
        Ok(self.hand_out(below(&folder.path, name), lower, shown))
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        self.lookup(folder, &entry.name)
    }

    fn forget(&self, node: Node, times: u64) {
        let mut nodes = locked(&self.nodes);
        let hash_map::Entry::Occupied(mut there) = nodes.all.entry(node) else { return };
        there.get_mut().1 = there.get().1.saturating_sub(times);
        if there.get().1 > 0 {
            return;
        }
        let (gone, _) = there.remove();
        nodes.known.remove(&(gone.path.clone(), gone.lower.node()));
        shrink(&mut nodes.all);
        shrink(&mut nodes.known);
        drop(nodes);
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let node = self.node(node)?;
        let of = self.lower.attributes(node.lower.node())?;
        Ok(match (&node.shown, of.kind) {
            (ShownAs::Own(bytes, bits), _) => {
                let (kind, special, mode, stored) = (NodeKind::File, None, Some(MODE), None);
                let (number, size) = (of.number ^ bits, bytes.len() as u64);
                Attributes { kind, special, number, links: 1, size, stored, mode, ..of }
            }
            // A hole below is none here: a program that skips holes would lose what seals them.
            (ShownAs::Encrypted, NodeKind::File) => Attributes { size: self.size(of.size), stored: None, ..of },
            (ShownAs::Encrypted, NodeKind::Link) => {
                Attributes { size: self.target(&node).map_or(0, |target| target.len() as u64), ..of }
            }
            _ => of,
        })
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        Ok(self.listing(folder)?.entries)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        self.listing(folder)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let node = self.node(file)?;
        match &node.shown {
            ShownAs::Encrypted => self.read_encrypted(&node, offset, out),
            ShownAs::Same => self.lower.read_at(node.lower.node(), offset, out),
            ShownAs::Own(bytes, _) => Ok(copy(bytes, usize::try_from(offset).unwrap_or(usize::MAX), out)),
        }
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        let node = self.node(link)?;
        match node.shown {
            ShownAs::Encrypted => self.target(&node),
            ShownAs::Same | ShownAs::Own(..) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// gocryptfs 2.3 shows none.
    fn extended(&self, _node: Node, _name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn list_extended(&self, _node: Node) -> io::Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    fn open(&self, file: Node, usage: Use) -> io::Result<()> {
        let node = self.node(file)?;
        match node.shown {
            _ if usage.write => Err(read_only()),
            ShownAs::Own(..) => Ok(()),
            ShownAs::Same => self.lower.open(node.lower.node(), usage),
            ShownAs::Encrypted => {
                self.lower.open(node.lower.node(), usage)?;
                self.ivs(&node).map(drop).inspect_err(|_| drop(self.lower.release(node.lower.node())))
            }
        }
    }

    fn release(&self, file: Node) -> io::Result<()> {
        let node = self.node(file)?;
        match node.shown {
            ShownAs::Own(..) => Ok(()),
            ShownAs::Same | ShownAs::Encrypted => self.lower.release(node.lower.node()),
        }
    }

    fn space(&self) -> io::Result<Space> {
        self.lower.space()
    }
}

/// The keys of a folder in reverse mode: they make the view, and nothing is decrypted.
pub(super) struct ReverseKeys {
    pub keys: Arc<Keys>,
    /// What seals contents, with nonces that depend on the path.
    pub sealing: Arc<Sealing>,
}

impl FileKeys for ReverseKeys {
    fn arranged(&self, lower: Arc<dyn Tree>) -> Arc<dyn Tree> {
        Arc::new(ReverseTree::new(lower, self.keys.clone(), self.sealing.clone()))
    }

    fn layout(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Ok(FileKind::Clear)
    }

    fn begin(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Err(read_only())
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn plain_name(&self, stored: &OsStr, _iv: &NameIv) -> io::Result<Option<OsString>> {
        Ok(Some(stored.to_owned()))
    }

    fn stored_name(&self, plain: &OsStr, _iv: &NameIv) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }

    fn verifies(&self) -> bool {
        false
    }

    fn read_only(&self) -> bool {
        true
    }

    fn proven(&self) -> bool {
        self.keys.proven()
    }

    fn warnings(&self) -> Vec<String> {
        let unproven = "The master key could not be checked: nothing in a plain folder shows whether it is right.";
        if self.proven() { Vec::new() } else { vec![unproven.to_owned()] }
    }

    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        Err(Error::unsupported("a key process for a plain folder that is shown encrypted"))
    }
}

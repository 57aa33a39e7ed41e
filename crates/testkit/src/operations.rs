//! Operations on a tree, applied to a model in memory and through a [`Tree`]. Other implementations, such as a real
//! kernel, are compared with both.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use claviger_engine::trees::{HeldNode, NewNode, NodeKind, Renaming, Tree};
use sha2::{Digest, Sha256};

use crate::random::Random;

/// One step. Paths are relative to the root of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes a folder.
    Folder(OsString),
    /// Makes an empty file.
    File(OsString),
    /// Makes a symbolic link to a target.
    Link(OsString, OsString),
    /// Writes bytes at an offset of an existing file.
    Write(OsString, u64, Vec<u8>),
    /// Appends bytes to an existing file.
    Append(OsString, Vec<u8>),
    /// Shortens or extends a file.
    Resize(OsString, u64),
    /// Renames the first path to the second, which is replaced.
    Rename(OsString, OsString),
    /// Gives the file at the first path the second as an additional name.
    AddName(OsString, OsString),
    /// Removes a file, a link or an empty folder.
    Remove(OsString),
}

/// The node at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A folder.
    Folder,
    /// A file: its size, its number of names, and the SHA-256 of its contents.
    File(u64, u32, [u8; 32]),
    /// A symbolic link, and its target.
    Link(OsString),
    /// Something unreadable, with the system's error number, if any.
    Unreadable(Option<i32>),
}

/// All nodes of a tree, by path.
pub type Listing = BTreeMap<OsString, Seen>;

/// The listing's entry for a file with these bytes.
pub fn file(bytes: &[u8], names: u32) -> Seen {
    Seen::File(bytes.len() as u64, names, Sha256::digest(bytes).into())
}

/// The expected contents of a tree.
#[derive(Clone, Debug, Default)]
pub struct Model {
    nodes: BTreeMap<OsString, Node>,
    /// Contents, by a number that all names of a file share.
    files: BTreeMap<usize, Vec<u8>>,
    made: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Folder,
    File(usize),
    Link(OsString),
}

impl Model {
    /// Applies one step.
    ///
    /// # Panics
    /// If the step cannot be done: models are for steps that succeed.
    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Folder(path) => self.insert(path, Node::Folder),
            Operation::File(path) => {
                self.made += 1;
                self.files.insert(self.made, Vec::new());
                self.insert(path, Node::File(self.made));
            }
            Operation::Link(path, target) => self.insert(path, Node::Link(target.clone())),
            Operation::Write(path, at, data) => write(self.bytes(path), *at as usize, data),
            Operation::Append(path, data) => self.bytes(path).extend(data),
            Operation::Resize(path, len) => self.bytes(path).resize(*len as usize, 0),
            Operation::Rename(from, to) => {
                // A rename between two names of one file does nothing (POSIX, rename()).
                if from == to || matches!(self.nodes[from], Node::File(_)) && self.nodes.get(to) == self.nodes.get(from)
                {
                    return;
                }
                self.nodes.remove(to);
                let moved: Vec<_> = self.nodes.keys().filter(|path| is_below(path, from)).cloned().collect();
                for path in moved {
                    let node = self.nodes.remove(&path).expect("it is there");
                    let rest = &path.as_encoded_bytes()[from.len()..];
                    let mut new = to.clone();
                    new.push(String::from_utf8(rest.to_vec()).expect("text"));
                    self.nodes.insert(new, node);
                }
            }
            Operation::AddName(of, path) => self.insert(path, self.nodes[of].clone()),
            Operation::Remove(path) => drop(self.nodes.remove(path).expect("it is there")),
        }
    }

    /// Applies all steps.
    pub fn after(mut self, operations: &[Operation]) -> Self {
        operations.iter().for_each(|operation| self.apply(operation));
        self
    }

    fn insert(&mut self, path: &OsStr, node: Node) {
        assert_eq!(self.nodes.insert(path.to_owned(), node), None, "{path:?} is there already");
    }

    fn bytes(&mut self, path: &OsStr) -> &mut Vec<u8> {
        let Some(Node::File(number)) = self.nodes.get(path) else { panic!("{path:?} is no file") };
        self.files.get_mut(number).expect("it has contents")
    }

    /// The expected listing.
    pub fn listing(&self) -> Listing {
        let names = |number| self.nodes.values().filter(|node| **node == Node::File(number)).count() as u32;
        let seen = |node: &Node| match node {
            Node::Folder => Seen::Folder,
            Node::File(number) => file(&self.files[number], names(*number)),
            Node::Link(target) => Seen::Link(target.clone()),
        };
        self.nodes.iter().map(|(path, node)| (path.clone(), seen(node))).collect()
    }

    /// A random possible step, near the bounds of extents of `extent` bytes.
    pub fn step(&self, random: &mut Random, extent: usize) -> Operation {
        let new = |random: &mut Random| {
            let folders = self.paths(|node| *node == Node::Folder);
            let name = format!("n{}", random.below(1 << 30));
            match random.below(folders.len() + 1) {
                0 => OsString::from(name),
                n => Path::new(&folders[n - 1]).join(name).into(),
            }
        };
        let files = self.paths(|node| matches!(node, Node::File(_)));
        if files.len() < 4 || files.len() < 12 && random.below(8) == 0 {
            return Operation::File(new(random));
        }
        let file = random.choose(&files).clone();
        let Some(Node::File(number)) = self.nodes.get(&file) else { unreachable!("it is a file") };
        let size = self.files[number].len();
        let (at, len) = (border(random, extent), border(random, extent));
        match random.below(16) {
            0..=3 => Operation::Write(file, at as u64, random.bytes(len)),
            4 if size > 0 => Operation::Write(file, random.below(size) as u64, random.bytes(len)),
            4 | 5 => Operation::Append(file, random.bytes(len)),
            6..=8 => Operation::Resize(file, len as u64),
            9 => Operation::Resize(file, (size + at) as u64),
            10 => Operation::Rename(file, new(random)),
            11 => Operation::Rename(file, random.choose(&files).clone()),
            12 => Operation::AddName(file, new(random)),
            13 => Operation::Remove(file),
            14 => Operation::Link(new(random), format!("../{}", "t".repeat(random.below(60))).into()),
            _ => Operation::Folder(new(random)),
        }
    }

    fn paths(&self, of: impl Fn(&Node) -> bool) -> Vec<OsString> {
        self.nodes.iter().filter(|(_, node)| of(node)).map(|(path, _)| path.clone()).collect()
    }
}

fn is_below(path: &OsStr, folder: &OsStr) -> bool {
    Path::new(path).starts_with(folder)
}

fn write(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() {
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
    }
}

/// A number near a small multiple of `extent`, or any number below a few extents.
fn border(random: &mut Random, extent: usize) -> usize {
    match random.below(3) {
        0 => (random.below(5) * extent).saturating_add_signed(random.below(3) as isize - 1),
        1 => random.below(600),
        _ => random.below(5 * extent),
    }
}

/// Applies one step through a tree.
///
/// # Errors
/// Those of the tree.
pub fn apply(tree: &(dyn Tree + 'static), operation: &Operation) -> io::Result<()> {
    const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };
    const NEW_FOLDER: NewNode = NewNode { mode: Some(0o755), owner: None };
    let at = |path: &OsStr| HeldNode::find(tree, path);
    match operation {
        Operation::Folder(path) => {
            let (folder, name) = parent(tree, path)?;
            tree.make_folder(folder.node(), &name, &NEW_FOLDER).map(|node| drop(HeldNode::new(tree, node)))
        }
        Operation::File(path) => {
            let (folder, name) = parent(tree, path)?;
            tree.create(folder.node(), &name, &NEW).map(|node| drop(HeldNode::new(tree, node)))
        }
        Operation::Link(path, target) => {
            let (folder, name) = parent(tree, path)?;
            tree.make_link(folder.node(), &name, target, &NEW).map(|node| drop(HeldNode::new(tree, node)))
        }
        Operation::Write(path, offset, data) => tree.write_at(at(path)?.node(), *offset, data),
        Operation::Append(path, data) => tree.append(at(path)?.node(), data),
        Operation::Resize(path, len) => tree.set_len(at(path)?.node(), *len),
        Operation::Rename(from, to) => {
            let ((folder, name), (to_folder, to_name)) = (parent(tree, from)?, parent(tree, to)?);
            tree.rename(folder.node(), &name, to_folder.node(), &to_name, Renaming::Replace)
        }
        Operation::AddName(of, path) => {
            let (file, (folder, name)) = (at(of)?, parent(tree, path)?);
            tree.add_name(file.node(), folder.node(), &name).map(|node| drop(HeldNode::new(tree, node)))
        }
        Operation::Remove(path) => {
            let (folder, name) = parent(tree, path)?;
            tree.remove(folder.node(), &name)
        }
    }
}

fn parent<'a>(
    tree: &'a (dyn Tree + 'static),
    path: &OsStr,
) -> io::Result<(HeldNode<&'a (dyn Tree + 'static)>, OsString)> {
    let path = Path::new(path);
    let folder = path.parent().map_or(OsStr::new(""), Path::as_os_str);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((HeldNode::find(tree, folder)?, name.to_owned()))
}

/// Lists all nodes of a tree, and reads each file whole.
///
/// # Errors
/// Those of listing folders; anything else that cannot be read is [`Seen::Unreadable`].
pub fn listing(tree: &(dyn Tree + 'static)) -> io::Result<Listing> {
    let mut all = Listing::new();
    let mut folders = vec![OsString::new()];
    while let Some(folder) = folders.pop() {
        let node = HeldNode::find(tree, &folder)?;
        for entry in tree.list(node.node())? {
            let path: OsString = Path::new(&folder).join(&entry.name).into();
            if entry.kind == NodeKind::Folder {
                folders.push(path.clone());
            }
            let taken = HeldNode::take(tree, node.node(), &entry)?;
            let seen = seen(tree, taken.node()).unwrap_or_else(|e| Seen::Unreadable(e.raw_os_error()));
            all.insert(path, seen);
        }
    }
    Ok(all)
}

fn seen(tree: &dyn Tree, node: u64) -> io::Result<Seen> {
    let of = tree.attributes(node)?;
    Ok(match of.kind {
        NodeKind::Folder => Seen::Folder,
        NodeKind::Link => Seen::Link(tree.link_target(node)?),
        NodeKind::File => file(&contents(tree, node)?, of.links),
        NodeKind::Special => Seen::Unreadable(None),
    })
}

/// Reads a whole file.
///
/// # Errors
/// Those of reading it; `UnexpectedEof` if it is shorter than its attributes say.
pub fn contents(tree: &dyn Tree, file: u64) -> io::Result<Vec<u8>> {
    let size = tree.attributes(file)?.size as usize;
    let mut bytes = vec![0xee; size + 1];
    let read = tree.read_at(file, 0, &mut bytes)?;
    if read != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(size);
    Ok(bytes)
}

/// The differences between two listings, as text.
pub fn differences(expected: &Listing, found: &Listing) -> Vec<String> {
    let paths = expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path)));
    let differing = paths.filter(|path| expected.get(*path) != found.get(*path));
    differing.map(|path| format!("{path:?}: {:?} instead of {:?}", found.get(path), expected.get(path))).collect()
}

//! The files in a volume or folder.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use claviger_engine::trees::{self, Attributes, HeldNode, NewNode, NodeKind, Renaming, Tree, Use};
use claviger_engine::{Error, ErrorKind, Result, Store, filesystems};

use crate::Here;

/// Files in plaintext, in the process that opened them.
pub struct Files {
    tree: Here<Arc<dyn Tree>>,
    /// The file system, or the format of the folder.
    pub kind: &'static str,
    /// What a person must know: whole sentences.
    pub warnings: Vec<String>,
    _header: Option<Arc<dyn Store>>,
}

/// A file or folder.
type LockedVolume = HeldNode<Arc<dyn Tree>>;

impl Files {
    pub(crate) fn new(
        tree: Arc<dyn Tree>,
        kind: &'static str,
        warnings: Vec<String>,
        header: Option<Arc<dyn Store>>,
    ) -> Self {
        Self { tree: Here::new(tree), kind, warnings, _header: header }
    }

    pub(crate) fn of(store: Arc<dyn Store>, header: Option<Arc<dyn Store>>) -> Result<Self> {
        let (found, tree) = filesystems::open(store)?;
        let warnings = tree.warnings();
        Ok(Self::new(tree.into(), found.kind.name(), warnings, header))
    }

    fn find(&self, path: &OsStr) -> Result<LockedVolume> {
        let tree = self.tree.get()?;
        Ok(HeldNode::new(Arc::clone(tree), trees::find(&**tree, path)?))
    }

    /// The folder that `path` is in, or is to be, and its name there.
    fn place<'p>(&self, path: &'p OsStr) -> Result<(LockedVolume, &'p OsStr)> {
        let bytes = path.as_bytes();
        let end = bytes.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let start = bytes[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
        let name = OsStr::from_bytes(&bytes[start..end]);
        if matches!(name.as_bytes(), b"" | b"." | b"..") {
            return Err(Error::misuse(format!("{} names no file", path.display())));
        }
        Ok((self.find(OsStr::from_bytes(&bytes[..start]))?, name))
    }

    /// Whether anything can be changed.
    ///
    /// # Errors
    /// That of [`Here::get`], as all of these have.
    pub fn writable(&self) -> Result<bool> {
        Ok(self.tree.get()?.writable())
    }

    /// What is known of what is at `path`.
    ///
    /// # Errors
    /// Those of [`Tree::lookup`].
    pub fn attributes(&self, path: &OsStr) -> Result<Attributes> {
        let found = self.find(path)?;
        Ok(self.tree.get()?.attributes(found.node())?)
    }

    /// The names in the folder at `path`, and what is known of each.
    ///
    /// # Errors
    /// Those of [`Tree::list`].
    pub fn list(&self, path: &OsStr) -> Result<Vec<(OsString, Attributes)>> {
        let (tree, folder) = (self.tree.get()?, self.find(path)?);
        let named = |entry: trees::Entry| {
            let node = HeldNode::take(&**tree, folder.node(), &entry)?;
            Ok((entry.name, tree.attributes(node.node())?))
        };
        tree.list(folder.node())?.into_iter().map(named).collect()
    }

    /// The target of the symbolic link at `path`.
    ///
    /// # Errors
    /// Those of [`Tree::link_target`].
    pub fn link_target(&self, path: &OsStr) -> Result<OsString> {
        let found = self.find(path)?;
        Ok(self.tree.get()?.link_target(found.node())?)
    }

    /// Opens the file at `path`; with `usage.write` it is made if it is not there, and with `new` it must not be.
    ///
    /// # Errors
    /// Those of [`Tree::open`] and [`Tree::create`]; `Misuse` for what is no file.
    pub fn open(&self, path: &OsStr, usage: Use, new: bool) -> Result<File> {
        let tree = self.tree.get()?;
        let found = match self.find(path) {
            Err(e) if usage.write && is_missing(&e) => {
                let (folder, name) = self.place(path)?;
                HeldNode::new(Arc::clone(tree), tree.create(folder.node(), name, &NewNode::default())?)
            }
            Ok(_) if new => return Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists).into()),
            found => found?,
        };
        match tree.attributes(found.node())?.kind {
            NodeKind::File => {}
            NodeKind::Folder => return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory).into()),
            NodeKind::Link | NodeKind::Special => return Err(Error::misuse("it is no file, but a link or a device")),
        }
        tree.open(found.node(), usage)?;
        Ok(File(Here::new(OpenNode { tree: Arc::clone(tree), found })))
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// Those of [`Tree::make_folder`].
    pub fn make_folder(&self, path: &OsStr) -> Result<()> {
        let (tree, (folder, name)) = (self.tree.get()?, self.place(path)?);
        drop(HeldNode::new(Arc::clone(tree), tree.make_folder(folder.node(), name, &NewNode::default())?));
        Ok(())
    }

    /// Removes a file or an empty folder.
    ///
    /// # Errors
    /// Those of [`Tree::remove`].
    pub fn remove(&self, path: &OsStr) -> Result<()> {
        let (folder, name) = self.place(path)?;
        Ok(self.tree.get()?.remove(folder.node(), name)?)
    }

    /// Gives what is at `from` another name. A file that has it is replaced.
    ///
    /// # Errors
    /// Those of [`Tree::rename`].
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        let ((folder, name), (to_folder, to_name)) = (self.place(from)?, self.place(to)?);
        Ok(self.tree.get()?.rename(folder.node(), name, to_folder.node(), to_name, Renaming::Replace)?)
    }

    /// Makes all changes durable, and marks the file system as cleanly unmounted.
    ///
    /// # Errors
    /// Those of [`Tree::finish`].
    pub fn finish(&self) -> Result<()> {
        let tree = self.tree.get()?;
        if tree.writable() { Ok(tree.finish()?) } else { Ok(()) }
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::Io(e) if e.kind() == std::io::ErrorKind::NotFound)
}

/// An open file, which keeps open what it is in.
pub struct File(Here<OpenNode>);

struct OpenNode {
    tree: Arc<dyn Tree>,
    found: LockedVolume,
}

impl Drop for OpenNode {
    fn drop(&mut self) {
        // Whoever wants to know whether all is written has asked.
        let _ = self.tree.release(self.found.node());
    }
}

impl File {
    /// Its size now, in bytes.
    ///
    /// # Errors
    /// Those of [`Tree::attributes`].
    pub fn size(&self) -> Result<u64> {
        let OpenNode { tree, found } = self.0.get()?;
        Ok(tree.attributes(found.node())?.size)
    }

    /// Reads from byte `offset` on, to its end at most.
    ///
    /// # Errors
    /// Those of [`Tree::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let OpenNode { tree, found } = self.0.get()?;
        Ok(tree.read_at(found.node(), offset, out)?)
    }

    /// Writes all of `data` from byte `offset` on.
    ///
    /// # Errors
    /// Those of [`Tree::write_at`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let OpenNode { tree, found } = self.0.get()?;
        Ok(tree.write_at(found.node(), offset, data)?)
    }

    /// Changes its size; what is new is zero.
    ///
    /// # Errors
    /// Those of [`Tree::set_len`].
    pub fn set_len(&self, len: u64) -> Result<()> {
        let OpenNode { tree, found } = self.0.get()?;
        Ok(tree.set_len(found.node(), len)?)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Those of [`Tree::sync`].
    pub fn flush(&self) -> Result<()> {
        let OpenNode { tree, found } = self.0.get()?;
        if tree.writable() { Ok(tree.sync(found.node(), false)?) } else { Ok(()) }
    }
}

//! The files inside a volume that is not mounted: shared by `ls`, `tree`, `cat --file` and `cp`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use claviger_crypto::pool::Pool;
use claviger_engine::file_formats::Stacked;
use claviger_engine::filesystems::{self, Filesystem};
use claviger_engine::opening::OpenFolder;
use claviger_engine::store::Access;
use claviger_engine::trees::{Attributes, Entry, HeldNode, Listing, Node, NodeKind, Tree};
use claviger_engine::{Error, ErrorKind, FileFormat, Opened, Store, partitions};
use claviger_lab::model::words;

use crate::opening::logical_volume::LogicalVolumeArgs;
use crate::opening::plaintext::with_threads;
use crate::opening::{OpenArgs, ProtectArgs};
use crate::terminal::{advice, output};

/// Which of the file systems inside.
#[derive(clap::Args, Default)]
pub struct InsideArgs {
    /// The partition inside the volume, where it holds a partition table
    #[arg(long, value_name = "N")]
    inner_partition: Option<u32>,

    #[command(flatten)]
    logical_volume: LogicalVolumeArgs,
}

/// The files of an open volume.
pub struct Inside {
    pub tree: Arc<dyn Tree>,
    /// The file system that holds the files; `None` for a folder of the host.
    pub filesystem: Option<Filesystem>,
    /// Where `tree` begins, if it is an encrypted folder in that file system.
    begins: PathBuf,
    /// Whether the files are unencrypted.
    pub in_clear: bool,
    /// The details of an encrypted folder.
    pub folder: Option<Folder>,
}

/// An encrypted folder.
pub struct Folder {
    pub tree: Arc<Stacked>,
    /// The stored, encrypted files, with the same nodes.
    pub lower: Arc<dyn Tree>,
    pub format: &'static dyn FileFormat,
}

impl InsideArgs {
    /// The arguments for a logical volume alone.
    pub fn of(logical_volume: LogicalVolumeArgs) -> Self {
        Self { logical_volume, ..Self::default() }
    }

    /// The partition or logical volume that the options name in `store`. Prints warnings.
    pub fn part(&self, open: &OpenArgs, mut store: Arc<dyn Store>) -> claviger_engine::Result<Arc<dyn Store>> {
        if let Some(number) = self.inner_partition {
            store = Arc::new(partitions::slice(store, number).map_err(|e| e.at(&open.path))?);
        }
        self.logical_volume.within(store, false).map_err(|e| e.at(&open.path))
    }

    /// Opens the volume, its file system, and the encrypted folder into which `path` leads, if the options ask for one. Prints
    /// warnings.
    pub fn open(&self, open: &OpenArgs, access: Access, path: &OsStr) -> anyhow::Result<Inside> {
        self.inside(open, open.open_for_files(access)?, path)
    }

    /// Like [`InsideArgs::open`], but also protects the hidden volume if the options ask for it.
    pub fn open_protecting(
        &self,
        open: &OpenArgs,
        access: Access,
        protect: &ProtectArgs,
        path: &OsStr,
    ) -> anyhow::Result<Inside> {
        self.inside(open, open.open_for_files_protecting(access, protect)?, path)
    }

    fn inside(&self, open: &OpenArgs, opened: Opened, path: &OsStr) -> anyhow::Result<Inside> {
        let inside = match opened {
            Opened::Files(_) if self.inner_partition.is_some() || self.logical_volume.given() => {
                return Err(Error::misuse("an encrypted folder has no partitions or logical volumes")
                    .at(&open.path)
                    .into());
            }
            Opened::Files(folder) => Inside::of(*folder, None),
            Opened::Bytes(_) | Opened::Clear(_) => {
                let outer = self.outer(open, opened)?;
                match open.open_inner_folder(&outer.tree, path, outer.in_clear, false)? {
                    Some(folder) => Inside::of(folder, outer.filesystem),
                    None => outer,
                }
            }
        };
        inside.tree.warnings().iter().for_each(|w| output::warn(w));
        Ok(inside)
    }

    /// The encrypted folder into which `path` leads. The warnings of the file system are among the folder's.
    ///
    /// # Errors
    /// `NotThisFormat` if there is none.
    pub fn folder(&self, open: &OpenArgs, opened: Opened, path: &OsStr) -> anyhow::Result<OpenFolder> {
        let outer = self.outer(open, opened)?;
        let folder = open.open_inner_folder(&outer.tree, path, outer.in_clear, true)?;
        let none = || Error::new(ErrorKind::NotThisFormat(format!("{} is not in an encrypted folder", shown(path))));
        Ok(folder.ok_or_else(|| none().at(&open.path))?)
    }

    /// The file system in what was opened.
    pub fn outer(&self, open: &OpenArgs, opened: Opened) -> anyhow::Result<Inside> {
        let (store, in_clear) = self.bytes(open, opened)?;
        self.over(open, store, in_clear)
    }

    /// The bytes that hold the file system, and whether they are unencrypted. Prints warnings.
    pub fn bytes(&self, open: &OpenArgs, opened: Opened) -> anyhow::Result<(Arc<dyn Store>, bool)> {
        let (store, in_clear): (Arc<dyn Store>, _) = match opened {
            Opened::Clear(store) => (store, true),
            volume => {
                let opened = volume.bytes()?;
                advice::warn(&opened.warnings);
                (Arc::new(with_threads(opened.volume)), false)
            }
        };
        Ok((self.part(open, store)?, in_clear))
    }

    /// The file system in these bytes.
    pub fn over(&self, open: &OpenArgs, store: Arc<dyn Store>, in_clear: bool) -> anyhow::Result<Inside> {
        let (filesystem, tree) =
            filesystems::open(store.clone()).map_err(|e| self.explained(e, &*store).at(&open.path))?;
        Ok(Inside { tree: tree.into(), filesystem: Some(filesystem), begins: PathBuf::new(), in_clear, folder: None })
    }

    /// Adds a hint to the error if the volume holds a partition table.
    fn explained(&self, error: Error, store: &dyn Store) -> Error {
        match partitions::read(store) {
            Ok(Some(table)) if self.inner_partition.is_none() && error.hint.is_none() => {
                let numbers: Vec<_> = table.partitions.iter().map(|p| p.number.to_string()).collect();
                error.hint(format!("It holds partitions. Choose one with --inner-partition: {}.", numbers.join(", ")))
            }
            _ => error,
        }
    }
}

/// A node of the volume's files, held while it is used.
pub type FoundNode<'a> = HeldNode<&'a (dyn Tree + 'static)>;

impl Inside {
    fn of(folder: OpenFolder, filesystem: Option<Filesystem>) -> Self {
        let OpenFolder { tree, lower, format, path, .. } = folder;
        let tree = tree.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO)));
        let tree = Arc::new(tree);
        let folder = Some(Folder { tree: tree.clone(), lower, format });
        Self { tree, filesystem, begins: path.into(), in_clear: false, folder }
    }

    /// The files as stored, with the same nodes.
    pub fn stored(&self) -> &dyn Tree {
        self.folder.as_ref().map_or(&*self.tree, |folder| &*folder.lower)
    }

    /// The node at a path inside the volume: a folder, if the path ends with a slash.
    pub fn find(&self, path: &OsStr) -> Result<FoundNode<'_>, Error> {
        let found = HeldNode::find(&*self.tree, self.below(path)?).map_err(|e| tree_error(e, path))?;
        if names_folder(path) && self.attributes(found.node(), path)?.kind != NodeKind::Folder {
            return Err(tree_error(io::ErrorKind::NotADirectory.into(), path));
        }
        Ok(found)
    }

    /// The path relative to the start of the tree.
    fn below<'a>(&self, path: &'a OsStr) -> Result<&'a OsStr, Error> {
        let below = Path::new(path).strip_prefix(&self.begins).map(Path::as_os_str);
        below.map_err(|_| {
            let (path, folder) = (shown(path), shown(self.begins.as_os_str()));
            Error::misuse(format!("{path} is not in the opened encrypted folder, {folder}"))
        })
    }

    /// The node of an entry of `folder`.
    pub fn take(&self, folder: Node, entry: &Entry, path: &OsStr) -> Result<FoundNode<'_>, Error> {
        HeldNode::take(&*self.tree, folder, entry).map_err(|e| tree_error(e, path))
    }

    /// The attributes of a node.
    pub fn attributes(&self, node: Node, path: &OsStr) -> Result<Attributes, Error> {
        self.tree.attributes(node).map_err(|e| tree_error(e, path))
    }

    /// The entries of a folder, sorted by name, and the names that cannot be shown.
    pub fn list(&self, folder: Node, path: &OsStr) -> Result<Listing, Error> {
        let mut list = self.tree.list_all(folder).map_err(|e| tree_error(e, path))?;
        list.entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(list)
    }

    /// Why something that is not a file, folder or link cannot be read.
    pub fn why_special(&self, node: Node) -> Error {
        // Some trees give a reason of their own.
        let read = self.tree.read_at(node, 0, &mut [0]).err();
        let why = read.filter(|e| !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory));
        why.map_or_else(|| Error::unsupported("it is a device, pipe or socket"), Error::from)
    }
}

/// A path inside a volume without its leading colon, which `cp` uses.
pub fn inside(path: &OsStr) -> &OsStr {
    OsStr::from_bytes(path.as_bytes().strip_prefix(b":").unwrap_or(path.as_bytes()))
}

/// Whether a path can only be a folder's, because of the slash at its end.
pub fn names_folder(path: &OsStr) -> bool {
    path.as_bytes().ends_with(b"/") || path.as_bytes().ends_with(b"/.")
}

/// `name` in `folder`.
pub fn below(folder: &OsStr, name: &OsStr) -> OsString {
    let mut path = folder.as_bytes().to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend(name.as_bytes());
    OsString::from_vec(path)
}

/// An error of a tree, with the path inside the volume.
pub fn tree_error(error: io::Error, path: &OsStr) -> Error {
    let shown = shown(path);
    match error.kind() {
        io::ErrorKind::NotFound => Error::misuse(format!("there is no {shown} in the volume")),
        io::ErrorKind::NotADirectory => Error::misuse(format!("{shown} in the volume is not a folder")),
        io::ErrorKind::IsADirectory => Error::misuse(format!("{shown} in the volume is a folder")),
        io::ErrorKind::AlreadyExists => Error::misuse(format!("{shown} already exists in the volume")),
        io::ErrorKind::ReadOnlyFilesystem => Error::unsupported(format!("writing {shown}: {error}")),
        _ => {
            // Our own errors keep their kind and their path.
            let error = Error::from(error);
            error.at(Path::new(&format!("{shown} in the volume")))
        }
    }
}

/// A name for display: escapes characters that move the cursor or change the writing direction.
pub fn shown(name: &OsStr) -> String {
    let mut text = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if words::obeyed(c) || c == '\\' {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    text
}

/// Seconds since 1970.
pub fn seconds(time: Option<SystemTime>) -> Option<i64> {
    let time = time?;
    Some(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    })
}

/// The name of a kind of node in JSON and text.
pub fn kind_name(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Folder => "folder",
        NodeKind::Link => "link",
        NodeKind::Special => "special",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_with_the_terminal() {
        for (name, text) in [
            (&b"plain \xc3\xa4"[..], "plain ä"),
            (b"a\nb\x1b[2J", "a\\nb\\u{1b}[2J"),
            (b"\xff\xfe", "\\xff\\xfe"),
            ("x\u{202e}gpj".as_bytes(), "x\\u{202e}gpj"),
            (b"back\\slash", "back\\\\slash"),
        ] {
            assert_eq!(shown(OsStr::from_bytes(name)), text);
        }
    }
}

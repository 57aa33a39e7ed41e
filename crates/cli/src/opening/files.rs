//! The files inside a volume, without mounting it: what `ls`, `tree`, `cat --file` and `cp` share.

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
    /// The file system that they are in; a folder of the host has none of its own.
    pub filesystem: Option<Filesystem>,
    /// Where `tree` begins, if it is a folder of encrypted files in that file system.
    begins: PathBuf,
    /// Whether nothing encrypts them.
    pub in_clear: bool,
    /// Of a folder of encrypted files, what there is of it besides.
    pub folder: Option<Folder>,
}

/// A folder of encrypted files.
pub struct Folder {
    pub tree: Arc<Stacked>,
    /// The same as it is stored, with the same nodes.
    pub lower: Arc<dyn Tree>,
    pub format: &'static dyn FileFormat,
}

impl InsideArgs {
    /// That of a logical volume.
    pub fn of(logical_volume: LogicalVolumeArgs) -> Self {
        Self { logical_volume, ..Self::default() }
    }

    /// The part of these bytes that is named. Warnings are told.
    pub fn part(&self, open: &OpenArgs, mut store: Arc<dyn Store>) -> claviger_engine::Result<Arc<dyn Store>> {
        if let Some(number) = self.inner_partition {
            store = Arc::new(partitions::slice(store, number).map_err(|e| e.at(&open.path))?);
        }
        self.logical_volume.within(store, false).map_err(|e| e.at(&open.path))
    }

    /// Opens the volume, the file system inside, and the folder of encrypted files in that into which `path` leads, if there is one
    /// that is to be opened. Warnings are told.
    pub fn open(&self, open: &OpenArgs, access: Access, path: &OsStr) -> anyhow::Result<Inside> {
        self.inside(open, open.open_for_files(access)?, path)
    }

    /// The same, with the hidden volume in it protected if that is asked for.
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

    /// The folder of encrypted files into which `path` leads in what is open.
    ///
    /// # Errors
    /// `NotThisFormat` if there is none.
    pub fn folder(&self, open: &OpenArgs, opened: Opened, path: &OsStr) -> anyhow::Result<OpenFolder> {
        let outer = self.outer(open, opened)?;
        outer.tree.warnings().iter().for_each(|w| output::warn(w));
        let folder = open.open_inner_folder(&outer.tree, path, outer.in_clear, true)?;
        let none = || Error::new(ErrorKind::NotThisFormat(format!("{} is not in an encrypted folder", shown(path))));
        Ok(folder.ok_or_else(|| none().at(&open.path))?)
    }

    /// The file system in what has bytes.
    pub fn outer(&self, open: &OpenArgs, opened: Opened) -> anyhow::Result<Inside> {
        let (store, in_clear) = self.bytes(open, opened)?;
        self.over(open, store, in_clear)
    }

    /// The bytes that hold the file system, and whether nothing encrypts them. Warnings are told.
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

    /// The error, with what to try where the volume holds partitions.
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

/// A node of the volume's files, as long as it is used.
pub type FoundNode<'a> = HeldNode<&'a (dyn Tree + 'static)>;

impl Inside {
    fn of(folder: OpenFolder, filesystem: Option<Filesystem>) -> Self {
        let OpenFolder { tree, lower, format, path, .. } = folder;
        let tree = tree.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO)));
        let tree = Arc::new(tree);
        let folder = Some(Folder { tree: tree.clone(), lower, format });
        Self { tree, filesystem, begins: path.into(), in_clear: false, folder }
    }

    /// The files as they are stored, with the same nodes.
    pub fn stored(&self) -> &dyn Tree {
        self.folder.as_ref().map_or(&*self.tree, |folder| &*folder.lower)
    }

    /// The node at a path inside the volume.
    pub fn find(&self, path: &OsStr) -> Result<FoundNode<'_>, Error> {
        HeldNode::find(&*self.tree, self.below(path)?).map_err(|e| tree_error(e, path))
    }

    /// The path from where the tree begins.
    fn below<'a>(&self, path: &'a OsStr) -> Result<&'a OsStr, Error> {
        let below = Path::new(path).strip_prefix(&self.begins).map(Path::as_os_str);
        below.map_err(|_| {
            let (path, folder) = (shown(path), shown(self.begins.as_os_str()));
            Error::misuse(format!("{path} is not in the opened encrypted folder, {folder}"))
        })
    }

    /// The node that an entry of `folder` names.
    pub fn take(&self, folder: Node, entry: &Entry, path: &OsStr) -> Result<FoundNode<'_>, Error> {
        HeldNode::take(&*self.tree, folder, entry).map_err(|e| tree_error(e, path))
    }

    /// What is known about it.
    pub fn attributes(&self, node: Node, path: &OsStr) -> Result<Attributes, Error> {
        self.tree.attributes(node).map_err(|e| tree_error(e, path))
    }

    /// What a folder holds, sorted by name, and what of it cannot be shown.
    pub fn list(&self, folder: Node, path: &OsStr) -> Result<Listing, Error> {
        let mut list = self.tree.list_all(folder).map_err(|e| tree_error(e, path))?;
        list.entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(list)
    }

    /// Why something that is neither a file, a folder nor a link is not read.
    pub fn why_special(&self, node: Node) -> Error {
        // A tree that does not read something for a reason says it.
        let read = self.tree.read_at(node, 0, &mut [0]).err();
        let why = read.filter(|e| !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory));
        why.map_or_else(|| Error::unsupported("it is a device, pipe or socket"), Error::from)
    }
}

/// A path inside a volume, which may begin with a colon as in `cp`.
pub fn inside(path: &OsStr) -> &OsStr {
    OsStr::from_bytes(path.as_bytes().strip_prefix(b":").unwrap_or(path.as_bytes()))
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

/// An error of a tree, about a path inside.
pub fn tree_error(error: io::Error, path: &OsStr) -> Error {
    let shown = shown(path);
    match error.kind() {
        io::ErrorKind::NotFound => Error::misuse(format!("there is no {shown} in the volume")),
        io::ErrorKind::NotADirectory => Error::misuse(format!("{shown} in the volume is not a folder")),
        io::ErrorKind::IsADirectory => Error::misuse(format!("{shown} in the volume is a folder")),
        io::ErrorKind::AlreadyExists => Error::misuse(format!("{shown} already exists in the volume")),
        io::ErrorKind::ReadOnlyFilesystem => Error::unsupported(format!("writing {shown}: {error}")),
        _ => {
            // One of ours keeps its kind, and so does the path that it is about.
            let error = Error::from(error);
            error.at(Path::new(&format!("{shown} in the volume")))
        }
    }
}

/// A name for people: what would move the cursor, or turn the text around, is escaped.
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

/// What a kind is called in JSON and text.
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

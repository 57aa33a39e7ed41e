//! Files and names of eCryptfs, in a folder that stays open, since opening one derives a key.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use claviger_engine::file_formats::{self, FileFormat, Stacked, StoredFile};
use claviger_engine::trees::{Attributes, Entry, Node, NodeKind, Setting, Space, Tree};
use claviger_engine::{Credential, Secret, Unlock};

use crate::corpus::PASSPHRASE;

const ROOT: Node = 1;
const FILE: Node = 2;
const LINK: Node = 3;

/// The maximum size of a stored file, in bytes: headers may claim that contents begin anywhere.
const ROOM: usize = 1 << 20;

/// A stored file and a link with the same name.
#[derive(Default)]
struct Lower(Mutex<Held>);

#[derive(Default)]
struct Held {
    file: Vec<u8>,
    attribute: Option<Vec<u8>>,
    name: OsString,
}

impl Lower {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tree for Lower {
    fn root(&self) -> Node {
        ROOT
    }
    fn writable(&self) -> bool {
        true
    }
    fn lookup(&self, _folder: Node, name: &OsStr) -> io::Result<Node> {
        if name == self.held().name { Ok(FILE) } else { Err(io::ErrorKind::NotFound.into()) }
    }
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let (kind, size) = match node {
            ROOT => (NodeKind::Folder, 0),
            FILE => (NodeKind::File, self.held().file.len()),
            _ => (NodeKind::Link, self.held().name.len()),
        };
        Ok(Attributes::new(kind, size as u64, node))
    }
    fn list(&self, _folder: Node) -> io::Result<Vec<Entry>> {
        let name = self.held().name.clone();
        Ok(if name.is_empty() { Vec::new() } else { vec![Entry { name, node: FILE, kind: NodeKind::File }] })
    }
    fn read_at(&self, _file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let held = self.held();
        let there = held.file.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }
    fn link_target(&self, _link: Node) -> io::Result<OsString> {
        Ok(self.held().name.clone())
    }
    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        if self.held().file.len() as u64 <= end {
            self.set_len(file, end)?;
        }
        self.held().file[offset as usize..end as usize].copy_from_slice(data);
        Ok(())
    }
    fn set_len(&self, _file: Node, len: u64) -> io::Result<()> {
        if len > ROOM as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.held().file.resize(len as usize, 0);
        Ok(())
    }
    fn extended(&self, _node: Node, _name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        Ok(self.held().attribute.clone())
    }
    fn set_extended(&self, _node: Node, _name: &OsStr, value: &[u8], _how: Setting) -> io::Result<()> {
        self.held().attribute = Some(value.to_vec());
        Ok(())
    }
    fn space(&self) -> io::Result<Space> {
        Ok(Space::new(ROOM as u64, ROOM as u64, 512))
    }
}

/// An encrypted folder and its decrypted tree. Locked while one input is tried.
static FOLDER: LazyLock<Mutex<(Arc<Lower>, Stacked)>> = LazyLock::new(|| {
    let lower = Arc::new(Lower::default());
    let passphrase = [Credential::Passphrase(Secret::copy_from(PASSPHRASE.as_bytes()))];
    let tree = file_formats::open(lower.clone(), Some("eCryptfs"), &Unlock::with(&passphrase)).expect("it opens");
    Mutex::new((lower, tree))
});

/// A file that begins with these bytes, and one with them in its attribute: read, extended and truncated.
pub fn header(bytes: &[u8]) {
    let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let (lower, tree) = &*folder;
    for (file, attribute) in [(bytes.to_vec(), None), (vec![9; 8192], Some(bytes.to_vec()))] {
        *lower.held() = Held { file, attribute, name: OsString::new() };
        let of = StoredFile { tree: &**lower, file: FILE, contents: FILE };
        let _ = file_formats::ECRYPTFS.facts(of);
        let size = tree.attributes(FILE).map_or(0, |of| of.size);
        for at in [0, 4090, size.saturating_sub(5)] {
            let _ = tree.read_at(FILE, at, &mut [0; 700]);
        }
        let written = tree.write_at(FILE, 10, b"some bytes").is_ok();
        let mut out = [0; 10];
        assert!(
            !written || tree.read_at(FILE, 10, &mut out).is_ok() && out == *b"some bytes",
            "what was written is not there"
        );
        let _ = tree.append(FILE, &[7; 5000]);
        for len in [5000, 3, 0] {
            let _ = tree.set_len(FILE, len);
        }
    }
}

/// A stored name and the target of a link. Names that are shown must be found again.
pub fn name(bytes: &[u8]) {
    let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let (lower, tree) = &*folder;
    *lower.held() = Held { name: OsString::from_vec(bytes.to_vec()), ..Held::default() };
    for entry in tree.list(ROOT).expect("it is listed") {
        assert_eq!(tree.lookup(ROOT, &entry.name).ok(), Some(FILE), "{:?} is shown, and leads elsewhere", entry.name);
    }
    let _ = tree.link_target(LINK);
    let _ = tree.attributes(LINK);
}

/// The size that the folder shows for a file, and the name under which it shows one.
#[cfg(test)]
pub fn shown(file: &[u8], name: &[u8]) -> (Option<u64>, Option<OsString>) {
    let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let (lower, tree) = &*folder;
    *lower.held() = Held { file: file.to_vec(), attribute: None, name: OsString::from_vec(name.to_vec()) };
    let read = tree.read_at(FILE, 0, &mut [0; 10]).is_ok();
    let size = tree.attributes(FILE).ok().filter(|_| read).map(|of| of.size);
    (size, tree.list(ROOT).expect("it is listed").pop().map(|entry| entry.name))
}

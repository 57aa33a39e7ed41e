//! Unlocking a folder: the key process reads it through the other process, as it reads a volume. Only what unlocking
//! needs is shared.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use claviger_engine::file_formats::Beside;
use claviger_engine::opening::{FoundFolder, Locked};
use claviger_engine::trees::{Attributes, Entry, Node, NodeKind, Space, Tree};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::opening::{Folder, FolderRequest, Hello, IoSide, KeyProcessMessage, KeySide, PIECE, Terms, Turns};
use crate::messages::receive_bytes;

/// The most names of a folder that are sent: more than unlocking reads.
const MOST_NAMES: usize = 200_000;

/// The maximum length of an answer, in bytes: that many names of maximum length.
const LONGEST: usize = 64 << 20;

/// Kinds are sent as their index in this list.
const KINDS: [NodeKind; 4] = [NodeKind::File, NodeKind::Folder, NodeKind::Link, NodeKind::Special];

impl IoSide {
    /// [`IoSide::serve_until_open`] for an encrypted folder that this process has found. Nothing is written.
    ///
    /// # Errors
    /// Those of [`IoSide::serve_until_open`]; `InvalidInput` if this is not an encrypted folder.
    pub fn serve_folder_until_open<T: DeserializeOwned>(
        &self,
        locked: &Locked,
        terms: &Terms<'_>,
    ) -> io::Result<Option<T>> {
        let found = locked.stored_files().zip(locked.file_format());
        let ((tree, beside), format) = found.ok_or(io::ErrorKind::InvalidInput)?;
        let folder = Folder {
            root: tree.root(),
            writable: tree.writable(),
            format: format.name().to_owned(),
            wrapped_passphrase: beside.wrapped_passphrase.clone(),
            signatures: beside.signatures.clone(),
        };
        self.attend(&Hello::of_folder(folder, terms), terms, |message| match message {
            KeyProcessMessage::Folder(request) => {
                let answer = request.carry_out(&**tree).map_err(|e| as_os(&e));
                let found = answer.is_ok();
                self.answer(answer.as_ref().map(drop).map_err(|e| io::Error::from_raw_os_error(*e)))?;
                if found { send(self.socket(), &answer.unwrap_or_default()) } else { Ok(()) }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// The error number for the other process, which may need to know that something is missing or unsupported.
fn as_os(error: &io::Error) -> i32 {
    let by_kind = || match error.kind() {
        io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    };
    error.raw_os_error().unwrap_or_else(|| by_kind().raw_os_error())
}

impl FolderRequest {
    fn carry_out(&self, tree: &dyn Tree) -> io::Result<Vec<u8>> {
        let node = |node: Node| node.to_le_bytes().to_vec();
        match self {
            Self::List { folder } => Ok(listed(&tree.list(*folder)?)),
            Self::Lookup { folder, name } => tree.lookup(*folder, OsStr::from_bytes(name)).map(node),
            Self::Take { folder, name, node: number, kind } => {
                let kind = *KINDS.get(usize::from(*kind)).ok_or(io::ErrorKind::InvalidData)?;
                let name = OsStr::from_bytes(name).to_owned();
                tree.take(*folder, &Entry { name, node: *number, kind }).map(node)
            }
            Self::Read { file, offset, len } => {
                let mut bytes = vec![0; (*len as usize).min(PIECE)];
                let read = tree.read_at(*file, *offset, &mut bytes)?;
                bytes.truncate(read);
                Ok(bytes)
            }
            Self::Extended { node, name } => {
                let value = tree.extended(*node, OsStr::from_bytes(name))?;
                Ok(value.map_or(Vec::new(), |value| [&[1], &value[..]].concat()))
            }
            Self::Attributes { node } => {
                let of = tree.attributes(*node)?;
                Ok([&[kind_number(of.kind)][..], &of.size.to_le_bytes(), &of.number.to_le_bytes()].concat())
            }
            Self::LinkTarget { link } => tree.link_target(*link).map(OsString::into_vec),
            Self::Forget { node, times } => {
                tree.forget(*node, *times);
                Ok(Vec::new())
            }
        }
    }
}

fn kind_number(kind: NodeKind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or_default() as u8
}

/// Encodes entries one after the other: number, kind, and the name with its length in front.
fn listed(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Entry { name, node, kind } in entries.iter().take(MOST_NAMES) {
        bytes.extend(node.to_le_bytes());
        bytes.push(kind_number(*kind));
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// Decodes the first entry of [`listed`]'s output. Also returns the rest.
fn entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (node, rest) = bytes.split_first_chunk()?;
    let ([kind, len @ ..], rest) = rest.split_first_chunk::<3>()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
    let kind = *KINDS.get(usize::from(*kind))?;
    let name = OsStr::from_bytes(name).to_owned();
    Some((Entry { name, node: Node::from_le_bytes(*node), kind }, rest))
}

fn send(mut socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    socket.write_all(&(bytes.len() as u32).to_le_bytes())?;
    socket.write_all(bytes)
}

impl KeySide {
    /// The folder, read-only, if a folder is shared.
    pub fn folder(&self) -> Option<FoundFolder> {
        let Folder { root, writable, format, wrapped_passphrase, signatures } = self.folder.clone()?;
        let mut beside = Beside::default();
        (beside.wrapped_passphrase, beside.signatures) = (wrapped_passphrase, signatures);
        let tree = ForwardedTree { channel: Arc::clone(&self.socket), root, writable };
        Some(FoundFolder { tree: Arc::new(tree), format, beside })
    }
}

/// A tree in the other process, limited to what unlocking reads.
struct ForwardedTree {
    channel: Arc<Turns>,
    root: Node,
    writable: bool,
}

impl ForwardedTree {
    fn ask(&self, request: FolderRequest) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        let heard = |socket: &UnixStream| receive_bytes(socket, LONGEST).map(|bytes| answer = bytes);
        self.channel.turn(&KeyProcessMessage::Folder(request), |_| Ok(()), heard)?;
        Ok(answer)
    }

    fn node(&self, request: FolderRequest) -> io::Result<Node> {
        let bytes = self.ask(request)?.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Node::from_le_bytes(bytes))
    }
}

impl Tree for ForwardedTree {
    fn root(&self) -> Node {
        self.root
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.node(FolderRequest::Lookup { folder, name: name.as_bytes().to_vec() })
    }

    fn take(&self, folder: Node, entry: &Entry) -> io::Result<Node> {
        let kind = kind_number(entry.kind);
        self.node(FolderRequest::Take { folder, name: entry.name.clone().into_vec(), node: entry.node, kind })
    }

    fn forget(&self, node: Node, times: u64) {
        // A process that has ended has forgotten the node already.
        let _ = self.ask(FolderRequest::Forget { node, times });
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        let bytes = self.ask(FolderRequest::Attributes { node })?;
        let known = || {
            let (kind, rest) = bytes.split_first()?;
            let (size, number) = rest.split_first_chunk()?;
            let number = u64::from_le_bytes(number.try_into().ok()?);
            Some(Attributes::new(*KINDS.get(usize::from(*kind))?, u64::from_le_bytes(*size), number))
        };
        known().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        self.ask(FolderRequest::LinkTarget { link }).map(OsString::from_vec)
    }

    fn space(&self) -> io::Result<Space> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        let bytes = self.ask(FolderRequest::List { folder })?;
        let (mut entries, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let (first, behind) = entry(rest).ok_or(io::ErrorKind::InvalidData)?;
            entries.push(first);
            rest = behind;
        }
        Ok(entries)
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(PIECE);
        let bytes = self.ask(FolderRequest::Read { file, offset, len: len as u32 })?;
        let to = out.get_mut(..bytes.len()).ok_or(io::ErrorKind::InvalidData)?;
        to.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        let bytes = self.ask(FolderRequest::Extended { node, name: name.as_bytes().to_vec() })?;
        Ok(bytes.split_first().map(|(_, value)| value.to_vec()))
    }
}

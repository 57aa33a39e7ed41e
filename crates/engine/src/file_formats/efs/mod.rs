//! EFS of NTFS: each file has its own key, which `$EFS` holds encrypted for every recipient.
//!
//! Names are in clear. Two kinds of trees show such files. Our own NTFS reader reports where ciphertext is ([`Tree::ciphertext`]).
//! In a folder that ntfs-3g mounted with `efs_raw`, a file is its ciphertext plus two bytes with the number of padding bytes. Both
//! show `$EFS` as the extended attribute [`EFS_INFO`].

mod fek;
mod info;
mod write;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Arc;
use std::{io, iter};

use claviger_crypto::{Acceleration, SectorCipher};
use fek::Fek;
pub use info::{EfsInfo, KeyEntry, KeyOwner};
pub use write::{RawFile, Recipient, change, check, decrypt, encrypt, share, unshare};

use super::{FileFacts, FileFormat, FileKeys, FileKind, FileLayout, FileState, NameIv, StoredFile};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::parameters::{Parameter, Takes};
use crate::private_keys::PrivateKey;
use crate::trees::{EFS_INFO, NTFS_ATTRIBUTES, Node, Tree, damaged};
use crate::verdict::Verdict;
use crate::volume::{Layout, Payload, Segment};

/// Bytes encrypted together.
const SECTOR: u64 = 512;

/// The length of what follows the ciphertext where ntfs-3g shows it: the number of padding bytes.
const TRAILER: u64 = 2;

/// The name that ntfs-3g lists [`EFS_INFO`] under.
const EFS_INFO_ALIAS: &str = "user.ntfs.efsinfo";

/// The Windows file attribute that marks an encrypted file (`FILE_ATTRIBUTE_ENCRYPTED`).
const ENCRYPTED: u32 = 0x4000;

/// The encrypted files of an NTFS volume.
pub static EFS: Efs = Efs;

/// See [`EFS`].
pub struct Efs;

impl FileFormat for Efs {
    fn name(&self) -> &'static str {
        "EFS"
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::PrivateKey] }
    }

    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        false
    }

    fn identify(&self, lower: &dyn Tree) -> Result<Verdict> {
        let attributes = attribute(lower, lower.root(), NTFS_ATTRIBUTES)?.and_then(|bytes| bytes.try_into().ok());
        Ok(match attributes.map(u32::from_le_bytes) {
            None => Verdict::No(vec!["not a folder on NTFS".into()]),
            Some(flags) if flags & ENCRYPTED != 0 => {
                Verdict::Yes(vec!["an NTFS folder marked as encrypted (EFS)".into()])
            }
            Some(_) => Verdict::Possible(vec!["an NTFS folder, which may hold encrypted files (EFS)".into()]),
        })
    }

    fn unlock(&self, lower: &Arc<dyn Tree>, with: &Unlock<'_>) -> Result<Box<dyn FileKeys>> {
        let keys = with.credentials.iter().map(|credential| match credential {
            Credential::PrivateKey(key) => Ok(key.clone()),
            other => Err(ErrorKind::CredentialKind { format: "EFS", kind: other.kind() }.into()),
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        lower.show_ciphertext();
        Ok(Box::new(Keys { keys, acceleration: with.acceleration }))
    }

    fn facts(&self, of: StoredFile<'_>) -> Result<FileFacts> {
        let stored = of.tree.attributes(of.contents)?.size;
        let Some(bytes) = attribute(of.tree, of.file, EFS_INFO)? else { return Ok(FileFacts::clear(stored)) };
        let facts = FileFacts {
            state: FileState::Encrypted,
            size: None,
            metadata: Some("the stream $EFS".to_owned()),
            ..FileFacts::clear(stored)
        };
        let info = match EfsInfo::parse(&bytes) {
            Ok(info) => info,
            Err(e) => {
                let unsupported = matches!(e.kind, ErrorKind::Unsupported { .. });
                let state = if unsupported { FileState::Unsupported } else { FileState::Damaged };
                return Ok(FileFacts { state, problem: Some(format!("Its $EFS cannot be read: {e}.")), ..facts });
            }
        };
        let facts = FileFacts { version: Some(info.version), keys: info.keys(), ..facts };
        match shape(of) {
            Ok(shape) => Ok(FileFacts { size: Some(shape.size), ..facts }),
            Err(e) => Ok(FileFacts { state: FileState::Damaged, problem: Some(format!("{e}.")), ..facts }),
        }
    }
}

/// The recipients of a file. `None` if the file is in clear.
///
/// # Errors
/// Those of the tree, and those of [`EfsInfo::parse`].
pub fn info(tree: &dyn Tree, file: Node) -> Result<Option<EfsInfo>> {
    attribute(tree, file, EFS_INFO)?.map(|bytes| EfsInfo::parse(&bytes)).transpose()
}

/// The value of an extended attribute; `None` if the tree has no attributes.
fn attribute(tree: &dyn Tree, node: Node, name: &str) -> io::Result<Option<Vec<u8>>> {
    tree.extended(node, OsStr::new(name)).or_else(|e| match e.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::ReadOnlyFilesystem => Ok(None),
        _ => Err(e),
    })
}

/// The size and the stored ranges of an encrypted file.
struct Shape {
    /// Bytes of plaintext.
    size: u64,
    /// The ranges with ciphertext; the rest of the plaintext is zeros.
    stored: Vec<Range<u64>>,
}

fn shape(of: StoredFile<'_>) -> io::Result<Shape> {
    if let Some(kept) = of.tree.ciphertext(of.contents)? {
        return Ok(Shape { size: kept.size, stored: kept.stored });
    }
    let stored = of.tree.attributes(of.contents)?.size;
    if stored == 0 {
        return Ok(Shape { size: 0, stored: Vec::new() });
    }
    if stored % SECTOR != TRAILER {
        return Err(damaged("size", 0, format!("{stored} bytes are not whole sectors and padding")));
    }
    let (end, mut padding) = (stored - TRAILER, [0; TRAILER as usize]);
    if !matches!(of.tree.read_at(of.contents, end, &mut padding), Ok(read) if read == padding.len()) {
        return Err(not_told());
    }
    match u64::from(u16::from_le_bytes(padding)) {
        padding if padding < SECTOR && padding < end => {
            Ok(Shape { size: end - padding, stored: iter::once(0..end).collect() })
        }
        padding => Err(damaged("padding", end, format!("{padding} bytes are not valid padding"))),
    }
}

/// The error for an unknown padding length: if the ciphertext fills its last cluster, ntfs-3g looks for the length beyond it.
fn not_told() -> io::Error {
    let what = "determining this file's length: ntfs-3g hides it where the ciphertext fills its last cluster";
    Error::unsupported(what).hint("Unmount it and read the device or image itself.").into()
}

impl Shape {
    fn layout(&self, cipher: &Arc<dyn SectorCipher>) -> io::Result<FileLayout> {
        let end = self.size.checked_next_multiple_of(SECTOR).ok_or(io::ErrorKind::FileTooLarge)?;
        let (mut segments, mut at) = (Vec::new(), 0);
        for part in &self.stored {
            let part = part.start.min(end)..part.end.min(end);
            if part.start > at {
                segments.push(segment(at..part.start, Payload::Zero));
            }
            if !part.is_empty() {
                segments.push(segment(part.clone(), Payload::crypt(cipher.clone(), part.start / SECTOR)));
            }
            at = part.end;
        }
        if at < end {
            segments.push(segment(at..end, Payload::Zero));
        }
        FileLayout::new(Layout::new(segments)?, self.size)
    }
}

fn segment(range: Range<u64>, payload: Payload) -> Segment {
    Segment { at: range.start, len: range.end - range.start, stored_at: range.start, payload, writable: false }
}

/// The private keys of a user.
struct Keys {
    keys: Vec<Arc<dyn PrivateKey>>,
    acceleration: Acceleration,
}

impl FileKeys for Keys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let Some(info) = info(of.tree, of.file)? else { return Ok(FileKind::Clear) };
        let fek = Fek::open(&info, &self.keys).map_err(|e| e.in_format("EFS"))?;
        shape(of)?.layout(&fek.sectors(self.acceleration)).map(FileKind::Encrypted)
    }

    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        match attribute(of.tree, of.file, EFS_INFO)? {
            None => Ok(None),
            Some(_) => shape(of).map(|shape| Some(shape.size)),
        }
    }

    fn begin(&self, _of: StoredFile<'_>) -> io::Result<FileKind> {
        Err(not_here())
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(not_here())
    }

    fn plain_name(&self, stored: &OsStr, _iv: &NameIv) -> io::Result<Option<OsString>> {
        Ok(Some(stored.to_owned()))
    }

    fn stored_name(&self, plain: &OsStr, _iv: &NameIv) -> io::Result<OsString> {
        Ok(plain.to_owned())
    }

    fn hides(&self, attribute: &OsStr) -> bool {
        attribute == EFS_INFO || attribute == EFS_INFO_ALIAS
    }
}

/// The error for a change in place: encrypted files are only written as a whole, by an explicit command.
fn not_here() -> io::Error {
    Error::unsupported("creating or resizing files next to EFS-encrypted ones").into()
}

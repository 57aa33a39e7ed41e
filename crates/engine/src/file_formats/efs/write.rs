//! Changes to encrypted files that ntfs-3g shows raw (`efs_raw`). This module never writes to an NTFS volume itself.
//!
//! ntfs-3g accepts `$EFS` only once per file. So every change creates a new file beside the old one: it writes contents and `$EFS`,
//! syncs them, reads them back and compares, then renames. A change interrupted before that leaves the old file and part of a new
//! one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use claviger_crypto::modes::efs::EfsCipher;
use claviger_crypto::rsa::RsaPublicKey;
use claviger_crypto::{Acceleration, SectorCipher};

use super::fek::Fek;
use super::{EfsInfo, KeyEntry, KeyOwner, SECTOR, TRAILER, attribute, info, shape};
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::StoredFile;
use crate::hex;
use crate::private_keys::{Certificate, PrivateKey};
use crate::random;
use crate::store::Store;
use crate::trees::{
    Attributes, EFS_INFO, HeldNode, NTFS_ATTRIBUTES, NewNode, Node, NodeKind, Renaming, Setting, Tree, Use,
};

/// Bytes copied at a time: whole sectors.
const PIECE: u64 = 1 << 20;

/// The version of EFS that allows all supported ciphers and RSA keys.
const VERSION: u32 = 2;

/// The extended attribute with a file's access control list, which the new file inherits.
const ACCESS: &str = "system.ntfs_acl";

/// Prefixes of extended attributes: those that are really streams, and those that are aliases of `system.ntfs_…`.
const STREAM: &str = "user.";
const ALIAS: &str = "user.ntfs.";

/// A user or recovery agent that a file is encrypted for.
#[derive(Clone, Debug)]
pub struct Recipient {
    /// The public key of the certificate.
    pub key: RsaPublicKey,
    /// The owner as the file records it. Windows and ntfsdecrypt find a key by its thumbprint.
    pub owner: KeyOwner,
}

impl Recipient {
    /// The recipient with the private key of a certificate.
    ///
    /// # Errors
    /// `Unsupported` if the certificate's key is not RSA.
    pub fn of(certificate: &Certificate) -> Result<Self> {
        let key = certificate.public.clone().ok_or_else(|| {
            Error::unsupported(format!("EFS for certificates with non-RSA keys ({})", certificate.subject))
        })?;
        let (thumbprint, name) = (Some(certificate.thumbprint.into()), Some(certificate.subject.clone()));
        Ok(Self { key, owner: KeyOwner { thumbprint, name, ..KeyOwner::default() } })
    }
}

/// A file in a folder that ntfs-3g mounted with `efs_raw`.
#[derive(Clone, Copy)]
pub struct RawFile<'a> {
    /// The tree with the folder.
    pub tree: &'a (dyn Tree + 'static),
    /// The folder.
    pub folder: Node,
    /// The file's name in the folder.
    pub name: &'a OsStr,
    /// The plaintext size in bytes, if it was read from the NTFS volume itself. Where the ciphertext ends with a cluster, ntfs-3g
    /// fails with EIO instead of reporting the padding, and only this field helps.
    pub size: Option<u64>,
    /// Called for each piece that was read, with its number of bytes: once for writing and once for comparing. An error from it
    /// ends the change and leaves the file as it was.
    pub watch: Option<&'a dyn Fn(u64) -> Result<()>>,
}

/// Refuses a file that cannot be changed, as [`encrypt`] and the other changes do first. Writes nothing.
///
/// # Errors
/// `Misuse` if it has several names or streams, or is not a file; `Unsupported` if ntfs-3g does not show files raw; `Io`.
pub fn check(place: RawFile<'_>) -> Result<()> {
    Old::open(place).map(drop)
}

/// Encrypts a file in clear: the `users` can read it and the `agents` can recover it.
///
/// # Errors
/// `Misuse` if the file is encrypted already or no user is given; those of [`check`]. On an error the file is unchanged.
pub fn encrypt(place: RawFile<'_>, users: &[Recipient], agents: &[Recipient], cipher: EfsCipher) -> Result<()> {
    let old = Old::open(place)?;
    if old.info.is_some() {
        return Err(Error::misuse("the file is already encrypted").hint("To give more people access, share it."));
    }
    if users.is_empty() {
        return Err(Error::misuse("a file must be encrypted for at least one user"));
    }
    let fek = Fek::generate(cipher)?;
    let entries = |of: &[Recipient]| of.iter().map(|one| entry(&fek, one)).collect::<Result<Vec<_>>>();
    let mut id = [0; 16];
    random::fill(&mut id)?;
    let info = EfsInfo { version: VERSION, id, users: entries(users)?, agents: entries(agents)? };
    let sectors = fek.sectors(Acceleration::On);
    old.replace(
        &old.contents(old.attributes.size, Transfer::Encrypt(&*sectors), &|at, out| old.read(at, out)),
        Some(&info),
    )
}

/// Replaces the contents of an encrypted file with those of a store. The recipients stay the same.
///
/// # Errors
/// `WrongCredential` if none of the keys opens the file; those of [`encrypt`]. On an error the file is unchanged.
pub fn change(place: RawFile<'_>, keys: &[Arc<dyn PrivateKey>], contents: &dyn Store) -> Result<()> {
    let old = Old::open(place)?;
    let info = old.encrypted()?;
    let sectors = Fek::open(info, keys)?.sectors(Acceleration::On);
    let read = |at, out: &mut [u8]| contents.read_at(at, out);
    let new = old.contents(contents.len(), Transfer::Encrypt(&*sectors), &read);
    old.replace(&Contents { modified: None, ..new }, Some(info))
}

/// Adds users who can read an encrypted file, and agents who can recover it.
///
/// # Errors
/// Those of [`EfsInfo::shared`] and of [`encrypt`].
pub fn share(
    place: RawFile<'_>,
    keys: &[Arc<dyn PrivateKey>],
    users: &[Recipient],
    agents: &[Recipient],
) -> Result<()> {
    let old = Old::open(place)?;
    old.replace_info(&old.encrypted()?.shared(keys, users, agents)?)
}

/// Removes the recipients with these thumbprints from a file. Former recipients may have kept the file's key: future secrets belong
/// in a new file.
///
/// # Errors
/// Those of [`EfsInfo::without`] and of [`encrypt`].
pub fn unshare(place: RawFile<'_>, thumbprints: &[Vec<u8>]) -> Result<()> {
    let old = Old::open(place)?;
    old.replace_info(&old.encrypted()?.without(thumbprints)?)
}

impl EfsInfo {
    /// Fails if none of these keys opens the file.
    ///
    /// # Errors
    /// `WrongCredential`, naming the recipients; those of the keys.
    pub fn opens(&self, keys: &[Arc<dyn PrivateKey>]) -> Result<()> {
        Fek::open(self, keys).map(drop)
    }

    /// Returns a copy with more users and agents. This needs a key that opens the file.
    ///
    /// # Errors
    /// `Misuse` if a recipient is there already or named twice; those of [`EfsInfo::opens`].
    pub fn shared(&self, keys: &[Arc<dyn PrivateKey>], users: &[Recipient], agents: &[Recipient]) -> Result<Self> {
        let fek = Fek::open(self, keys)?;
        let mut info = self.clone();
        for (with, is_agent) in users.iter().map(|one| (one, false)).chain(agents.iter().map(|one| (one, true))) {
            if info.is_for(with) {
                return Err(Error::misuse(format!("the file is already encrypted for {}", with.owner)));
            }
            let list = if is_agent { &mut info.agents } else { &mut info.users };
            list.push(entry(&fek, with)?);
        }
        Ok(info)
    }

    /// Whether the file is encrypted for this recipient, judged by thumbprint.
    pub fn is_for(&self, one: &Recipient) -> bool {
        one.owner.thumbprint.is_some() && self.entries().any(|entry| entry.owner.thumbprint == one.owner.thumbprint)
    }

    /// Returns a copy without the certificates with these thumbprints.
    ///
    /// # Errors
    /// `Misuse` if the file is not encrypted for one of them, or if no user would be left.
    pub fn without(&self, thumbprints: &[Vec<u8>]) -> Result<Self> {
        let mut info = self.clone();
        for thumbprint in thumbprints {
            let before = info.entries().count();
            let stays = |entry: &KeyEntry| entry.owner.thumbprint.as_ref() != Some(thumbprint);
            info.users.retain(stays);
            info.agents.retain(stays);
            if info.entries().count() == before {
                let what = format!(
                    "the file is not encrypted for the certificate with the thumbprint {}",
                    hex::digits(thumbprint)
                );
                return Err(Error::misuse(what));
            }
        }
        match info.users.is_empty() {
            true => Err(Error::misuse("nobody could read the file any more").hint("Share it first, or decrypt it.")),
            false => Ok(info),
        }
    }
}

/// Decrypts a file permanently.
///
/// # Errors
/// Those of [`change`].
pub fn decrypt(place: RawFile<'_>, keys: &[Arc<dyn PrivateKey>]) -> Result<()> {
    let old = Old::open(place)?;
    let sectors = Fek::open(old.encrypted()?, keys)?.sectors(Acceleration::On);
    let read = |at, out: &mut [u8]| read_plain(place.tree, old.node.node(), &*sectors, at, out);
    old.replace(&old.contents(old.size()?, Transfer::Clear, &read), None)
}

fn entry(fek: &Fek, of: &Recipient) -> Result<KeyEntry> {
    Ok(KeyEntry::new(of.owner.clone(), &fek.encrypted_for(&of.key)?))
}

/// The new contents of a file, read in pieces from the beginning.
struct Contents<'a> {
    /// Bytes of plaintext.
    size: u64,
    how: Transfer<'a>,
    read: &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    /// The modification time; the current time if there is none.
    modified: Option<SystemTime>,
    watch: Option<&'a dyn Fn(u64) -> Result<()>>,
}

/// The data read, and how they are stored.
#[derive(Clone, Copy)]
enum Transfer<'a> {
    /// Plaintext, stored in clear.
    Clear,
    /// Plaintext, stored encrypted.
    Encrypt(&'a dyn SectorCipher),
    /// Ciphertext, stored as it is.
    Ciphertext,
}

impl Contents<'_> {
    /// Calls `each` with each piece and its offset. Only the last piece is shorter than the others.
    fn pieces(&self, mut each: impl FnMut(u64, &mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        let len = match self.how {
            Transfer::Clear | Transfer::Encrypt(_) => self.size,
            Transfer::Ciphertext => self.size.next_multiple_of(SECTOR),
        };
        let mut piece = Vec::new();
        for at in (0..len).step_by(PIECE as usize) {
            piece.resize((len - at).min(PIECE) as usize, 0);
            (self.read)(at, &mut piece)?;
            let len = piece.len() as u64;
            each(at, &mut piece)?;
            if let Some(watch) = self.watch {
                watch(len)?;
            }
        }
        Ok(())
    }

    /// The trailer after the ciphertext, with its offset.
    fn trailer(&self) -> Option<(u64, [u8; 2])> {
        let end = self.size.next_multiple_of(SECTOR);
        let wanted = self.size > 0 && !matches!(self.how, Transfer::Clear);
        wanted.then(|| (end, ((end - self.size) as u16).to_le_bytes()))
    }

    fn write(&self, tree: &dyn Tree, node: Node) -> io::Result<()> {
        self.pieces(|at, piece| {
            if let Transfer::Encrypt(sectors) = self.how {
                piece.resize(piece.len().next_multiple_of(SECTOR as usize), 0);
                sectors.encrypt(at / SECTOR, piece);
            }
            tree.write_at(node, at, piece)
        })?;
        if let Some((end, padding)) = self.trailer() {
            tree.write_at(node, end, &padding)?;
        }
        tree.sync(node, true)
    }

    /// Reads back what was written and compares it.
    fn check(&self, tree: &dyn Tree, node: Node, info: Option<&EfsInfo>) -> Result<()> {
        let stored = self.trailer().map_or(self.size, |(end, padding)| end + padding.len() as u64);
        let mut same = tree.attributes(node)?.size == stored && super::info(tree, node)?.as_ref() == info;
        self.pieces(|at, piece| {
            let mut back = vec![0; piece.len()];
            match self.how {
                Transfer::Encrypt(sectors) => read_plain(tree, node, sectors, at, &mut back)?,
                Transfer::Clear | Transfer::Ciphertext => read_exact(tree, node, at, &mut back)?,
            }
            same &= back == *piece;
            Ok(())
        })?;
        if same { Ok(()) } else { Err(io::Error::other("the data read back differ from the data written").into()) }
    }
}

/// The file before the change.
struct Old<'a> {
    place: RawFile<'a>,
    node: HeldNode<&'a (dyn Tree + 'static)>,
    attributes: Attributes,
    info: Option<EfsInfo>,
}

impl<'a> Old<'a> {
    fn open(place: RawFile<'a>) -> Result<Self> {
        let tree = place.tree;
        let node = HeldNode::lookup(tree, place.folder, place.name)?;
        let attributes = tree.attributes(node.node())?;
        if attributes.kind != NodeKind::File {
            return Err(Error::misuse("only files can be encrypted"));
        }
        if attributes.links > 1 {
            let names = attributes.links;
            return Err(Error::misuse(format!(
                "the file has {names} names (hard links), and only one of them would \
                 change"
            )));
        }
        if attribute(tree, node.node(), NTFS_ATTRIBUTES)?.is_none() {
            return Err(Error::unsupported("encrypting files (EFS) outside an NTFS mounted by ntfs-3g"));
        }
        let names = tree.list_extended(node.node())?.into_iter().map(|name| name.to_string_lossy().into_owned());
        let mut streams = names.filter(|name| name.starts_with(STREAM) && !name.starts_with(ALIAS));
        if let Some(stream) = streams.next() {
            let name = &stream[STREAM.len()..];
            return Err(Error::unsupported(format!("changing a file with alternate data streams: {name}")));
        }
        let info = info(tree, node.node())?;
        Ok(Self { place, node, attributes, info })
    }

    fn encrypted(&self) -> Result<&EfsInfo> {
        self.info.as_ref().ok_or_else(|| Error::misuse("the file is not encrypted"))
    }

    /// The plaintext size of an encrypted file, in bytes.
    fn size(&self) -> Result<u64> {
        let stored = StoredFile { tree: self.place.tree, file: self.node.node(), contents: self.node.node() };
        let end = self.attributes.size.saturating_sub(TRAILER);
        match self.place.size {
            Some(size) if size.checked_next_multiple_of(SECTOR) == Some(end) => Ok(size),
            Some(_) => Err(Error::misuse("the file's size does not fit its ciphertext")),
            None => Ok(shape(stored)?.size),
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact(self.place.tree, self.node.node(), at, out)
    }

    /// Replaces the recipients and keeps the contents.
    fn replace_info(&self, info: &EfsInfo) -> Result<()> {
        self.replace(&self.contents(self.size()?, Transfer::Ciphertext, &|at, out| self.read(at, out)), Some(info))
    }

    /// Contents with the modification time of the old file.
    fn contents<'c>(
        &self,
        size: u64,
        how: Transfer<'c>,
        read: &'c dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> Contents<'c>
    where
        'a: 'c,
    {
        Contents { size, how, read, modified: self.attributes.modified, watch: self.place.watch }
    }

    /// Replaces the file with a new one.
    fn replace(&self, contents: &Contents<'_>, info: Option<&EfsInfo>) -> Result<()> {
        let RawFile { tree, folder, name, .. } = self.place;
        let temporary = beside()?;
        let new = NewNode { mode: self.attributes.mode, owner: self.attributes.owner };
        let node = tree.create_open(folder, &temporary, &new, Use { read: true, write: true })?;
        let node = HeldNode::new(tree, node);
        let written = contents.write(tree, node.node());
        let released = tree.release(node.node());
        let done = written.and(released).map_err(Error::from).and_then(|()| {
            if let Some(info) = info {
                tree.set_extended(node.node(), OsStr::new(EFS_INFO), &info.to_bytes(), Setting::Create)?;
            }
            self.inherit(node.node(), contents.modified)?;
            tree.sync(node.node(), false)?;
            contents.check(tree, node.node(), info)?;
            self.unchanged()?;
            Ok(tree.rename(folder, &temporary, folder, name, Renaming::Replace)?)
        });
        if let Err(e) = done {
            // Best effort: report the original error, not a failed clean-up.
            let _ = tree.remove(folder, &temporary);
            return Err(e);
        }
        Ok(tree.sync(folder, false)?)
    }

    /// Copies everything except the contents from the old file to the new one.
    fn inherit(&self, node: Node, modified: Option<SystemTime>) -> Result<()> {
        if let Some(access) = attribute(self.place.tree, self.node.node(), ACCESS)? {
            self.place.tree.set_extended(node, OsStr::new(ACCESS), &access, Setting::Any)?;
        }
        Ok(self.place.tree.set_times(node, modified, self.attributes.accessed)?)
    }

    /// Refuses a file that changed in the meantime.
    fn unchanged(&self) -> Result<()> {
        let now = self.place.tree.attributes(self.node.node())?;
        if (now.size, now.modified, now.links)
            != (self.attributes.size, self.attributes.modified, self.attributes.links)
        {
            return Err(Error::new(ErrorKind::InUse { holder: None })
                .hint("Another program has just changed the file. Nothing was changed. Try again."));
        }
        Ok(())
    }
}

/// Reads and decrypts from the beginning of a sector.
fn read_plain(tree: &dyn Tree, node: Node, sectors: &dyn SectorCipher, at: u64, out: &mut [u8]) -> io::Result<()> {
    let mut run = vec![0; out.len().next_multiple_of(SECTOR as usize)];
    read_exact(tree, node, at, &mut run)?;
    sectors.decrypt(at / SECTOR, &mut run);
    out.copy_from_slice(&run[..out.len()]);
    Ok(())
}

fn read_exact(tree: &dyn Tree, node: Node, at: u64, out: &mut [u8]) -> io::Result<()> {
    match tree.read_at(node, at, out)? {
        read if read == out.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A unique name for the new file.
fn beside() -> Result<OsString> {
    let mut number = [0; 8];
    random::fill(&mut number)?;
    Ok(format!(".claviger-{:016x}", u64::from_le_bytes(number)).into())
}

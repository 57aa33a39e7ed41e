//! NTFS, for reading, through the crate `ntfs`.
//!
//! The crate finds records and names; this module locates the bytes of a stream. Reparse points are read if their data are in the
//! file itself. Encrypted files (EFS) are read only on request, as ciphertext.

pub(crate) mod boot_sector;
pub(super) mod free_tail;
mod lznt1;
mod reparse;
mod stream;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use lznt1::decompress;
use ntfs::indexes::NtfsFileNameIndex;
use ntfs::structured_values::{NtfsFileAttributeFlags, NtfsFileNamespace, NtfsVolumeFlags};
use ntfs::{KnownNtfsFileRecordNumber, NtfsAttributeFlags, NtfsAttributeType, NtfsError, NtfsFile, NtfsTime};
use stream::Stream;

use super::guard::{StoreReader, guarded};
use crate::advice::Advice;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::trees::{
    Attributes, Ciphertext, EFS_INFO, Entry, LeftOut, Listing, NTFS_ATTRIBUTES, Node, NodeKind, Space, Tree, damaged,
    is_name,
};

/// The warning for read access.
const HIBERNATED: &str = "Windows is hibernated or used fast startup here: recent changes may not be visible";

/// Records below this one belong to the file system itself.
const FIRST_USER_RECORD: u64 = 24;

/// The bytes that finding a file may read, in addition to the store's size.
const ALLOWANCE: u64 = 64 << 20;

/// The lowest bits of a node, which hold the file's record number. The bits above hold the number of the stream, counted from 1, or
/// 0 for the contents.
const RECORD_BITS: u32 = 48;

/// The most streams that are cached, and the most parts that they may have in total.
const REMEMBERED: usize = 16;
const REMEMBERED_PARTS: usize = 1 << 20;

/// The largest `$EFS`, in bytes (MS-EFSR, 2.2.2.1, has the same limit).
const LARGEST_EFS_INFO: u64 = 256 << 10;

/// The NTFS file system of a store. A node is a file record's number, combined with the number of a stream.
pub struct Ntfs {
    volume: Mutex<OpenedNtfs>,
    /// The streams read last, the latest at the end. They never become outdated, because nothing is written.
    remembered: Mutex<VecDeque<(Node, Arc<Stream>)>>,
    store: Arc<dyn Store>,
    /// Whether the ciphertext of encrypted files may be read.
    shows_ciphertext: AtomicBool,
    warnings: Vec<String>,
}

struct OpenedNtfs {
    ntfs: ntfs::Ntfs,
    reader: StoreReader,
}

impl Ntfs {
    /// Opens the file system.
    ///
    /// # Errors
    /// `Malformed`, `Io`.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let mut reader = StoreReader::new(store.clone());
        reader.allow(ALLOWANCE);
        let (ntfs, warnings) = guarded(|| {
            let mut ntfs = ntfs::Ntfs::new(&mut reader).map_err(io_error)?;
            ntfs.read_upcase_table(&mut reader).map_err(io_error)?;
            let flags = ntfs.volume_info(&mut reader).map_err(io_error)?.flags();
            let warning = "the file system was not unmounted cleanly: the latest changes may be missing";
            let dirty = flags.contains(NtfsVolumeFlags::IS_DIRTY);
            Ok((ntfs, dirty.then(|| warning.to_owned()).into_iter().collect()))
        })?;
        let volume = Mutex::new(OpenedNtfs { ntfs, reader });
        let (remembered, shows_ciphertext) = (Mutex::default(), AtomicBool::new(false));
        let mut opened = Self { volume, remembered, store, shows_ciphertext, warnings };
        opened.warnings.extend(opened.interrupted_encryption());
        // Errors are ignored here: later reads report them.
        if opened.is_hibernated().unwrap_or(false) {
            opened.warnings.push(HIBERNATED.to_owned());
        }
        Ok(opened)
    }

    /// Whether Windows has hibernated or shut down with fast startup. It then relies on its cached state of the file system
    /// (ntfs-3g, libntfs-3g/volume.c, `ntfs_volume_check_hiberfile`).
    ///
    /// # Errors
    /// `Io`.
    pub fn is_hibernated(&self) -> io::Result<bool> {
        let file = match self.lookup(self.root(), OsStr::new("hiberfil.sys")) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let mut mark = [0; 4];
        let read = self.read_at(file, 0, &mut mark)?;
        Ok(read == mark.len() && mark.eq_ignore_ascii_case(b"hibr"))
    }

    fn volume(&self) -> MutexGuard<'_, OpenedNtfs> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with a file. Finding the file may read at most `allowed` bytes.
    fn with_file<T>(
        &self,
        node: Node,
        allowed: u64,
        work: impl FnOnce(&NtfsFile<'_>, &mut StoreReader) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut volume = self.volume();
        let OpenedNtfs { ntfs, reader } = &mut *volume;
        reader.allow(allowed);
        guarded(|| {
            let file = ntfs.file(reader, record(node)).map_err(io_error)?;
            work(&file, reader)
        })
    }

    /// The contents of a node: a named stream or the unnamed one. A file may have no contents at all.
    fn contents(&self, node: Node) -> io::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.remembered(node) {
            return Ok(Some(known));
        }
        let found = self.with_file(node, self.store.len().saturating_add(ALLOWANCE), |file, reader| {
            let name = stream_name(node, file, reader)?;
            let tag = self.tag(file, reader)?;
            match kind(file.is_directory(), tag) {
                _ if !name.is_empty() => {}
                NodeKind::Folder => return Err(ErrorKind::IsADirectory.into()),
                NodeKind::Link => return Err(ErrorKind::InvalidInput.into()),
                NodeKind::Special => return Err(unread(tag)),
                NodeKind::File if tag.is_none_or(|tag| tag.is_some_and(reparse::is_cloud)) => {}
                NodeKind::File => return Err(unread(tag)),
            }
            let cloud = tag.flatten().filter(|tag| name.is_empty() && reparse::is_cloud(*tag));
            let mut found = Stream::find(file, reader, NtfsAttributeType::Data, &name)?;
            found.iter_mut().for_each(|stream| stream.cloud = cloud);
            Ok(found)
        })?;
        Ok(found.map(|stream| self.remember(node, Arc::new(stream))))
    }

    /// The tag of a file's or folder's reparse point, if it is one. The inner value is `None` if the tag cannot be read.
    fn tag(&self, file: &NtfsFile<'_>, reader: &mut StoreReader) -> io::Result<Option<Option<u32>>> {
        let flags = file.info().map_err(io_error)?.file_attributes();
        if !flags.contains(NtfsFileAttributeFlags::REPARSE_POINT) {
            return Ok(None);
        }
        let mut tag = [0; 4];
        let point = Stream::find(file, reader, NtfsAttributeType::ReparsePoint, "").ok().flatten();
        let read = point.and_then(|point| point.read_at(&*self.store, 0, &mut tag).ok());
        Ok(Some((read == Some(tag.len())).then(|| u32::from_le_bytes(tag))))
    }

    fn remembered(&self, node: Node) -> Option<Arc<Stream>> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let place = remembered.iter().position(|(of, _)| *of == node)?;
        let found = remembered.remove(place)?;
        let stream = found.1.clone();
        remembered.push_back(found);
        Some(stream)
    }

    fn remember(&self, node: Node, stream: Arc<Stream>) -> Arc<Stream> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.push_back((node, stream.clone()));
        let parts = |all: &VecDeque<(Node, Arc<Stream>)>| all.iter().map(|(_, stream)| stream.parts()).sum::<usize>();
        while remembered.len() > REMEMBERED || parts(&remembered) > REMEMBERED_PARTS {
            remembered.pop_front();
        }
        stream
    }

    /// A warning if Windows stopped while encrypting or decrypting a file. Windows completes that when it uses the volume again
    /// (Windows Internals, 4th edition, "Encrypting File System Security").
    fn interrupted_encryption(&self) -> Option<String> {
        let folder = self.lookup(self.root(), OsStr::new("System Volume Information")).ok()?;
        let left = self.list(folder).ok()?.into_iter().map(|entry| entry.name);
        let left = left.filter(|name| name.to_str().is_some_and(is_log_of_efs)).collect::<Vec<_>>();
        let one = left.first()?.display();
        Some(format!(
            "Windows stopped while encrypting or decrypting a file (System Volume Information has {one}): only the \
             EFS0.TMP beside that file may be complete"
        ))
    }
}

/// Whether a file in `System Volume Information` is one that EFS uses while it encrypts or decrypts another file: `EFS0.LOG`.
fn is_log_of_efs(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let number = name.strip_prefix("EFS").and_then(|rest| rest.strip_suffix(".LOG").or(rest.strip_suffix(".TMP")));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The number of the file's record.
fn record(node: Node) -> u64 {
    node & ((1 << RECORD_BITS) - 1)
}

/// The name of the stream that a node refers to; empty for the contents.
fn stream_name(node: Node, file: &NtfsFile<'_>, reader: &mut StoreReader) -> io::Result<String> {
    match (node >> RECORD_BITS).checked_sub(1) {
        None => Ok(String::new()),
        Some(number) => {
            let mut names = stream_names(file, reader)?.into_iter();
            names.nth(number as usize).ok_or_else(|| ErrorKind::NotFound.into())
        }
    }
}

fn stream_names(file: &NtfsFile<'_>, reader: &mut StoreReader) -> io::Result<Vec<String>> {
    let names = stream::names(file, reader, NtfsAttributeType::Data)?;
    Ok(names.into_iter().filter(|name| !name.is_empty()).collect())
}

impl Tree for Ntfs {
    fn root(&self) -> Node {
        KnownNtfsFileRecordNumber::RootDirectory as u64
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        let Some(name) = name.to_str() else { return Err(ErrorKind::NotFound.into()) };
        self.with_file(folder, ALLOWANCE, |file, reader| {
            let index = file.directory_index(reader).map_err(io_error)?;
            let mut finder = index.finder();
            let found = NtfsFileNameIndex::find(&mut finder, file.ntfs(), reader, name);
            let found = found.ok_or(ErrorKind::NotFound)?.map_err(|e| told_of_index(e, file.ntfs()))?;
            let number = found.file_reference().file_record_number();
            let hidden = number < FIRST_USER_RECORD;
            if hidden { Err(ErrorKind::NotFound.into()) } else { Ok(number) }
        })
    }

    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.with_file(node, ALLOWANCE, |file, reader| {
            let info = file.info().map_err(io_error)?;
            let name = stream_name(node, file, reader)?;
            let kind = match name.is_empty() {
                true => kind(file.is_directory(), self.tag(file, reader)?),
                false => NodeKind::File,
            };
            let head = match kind {
                NodeKind::File => Stream::head(file, reader, &name)?,
                NodeKind::Folder | NodeKind::Link | NodeKind::Special => None,
            };
            Ok(Attributes {
                modified: time(info.modification_time()),
                accessed: time(info.access_time()),
                created: time(info.creation_time()),
                read_only: info.file_attributes().contains(NtfsFileAttributeFlags::READ_ONLY),
                encrypted: match head {
                    Some((_, flags)) => flags.contains(NtfsAttributeFlags::ENCRYPTED),
                    None => info.file_attributes().contains(NtfsFileAttributeFlags::ENCRYPTED),
                },
                ..Attributes::new(kind, head.map_or(0, |(size, _)| size), node)
            })
        })
    }

    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        Ok(self.list_all(folder)?.entries)
    }

    fn list_all(&self, folder: Node) -> io::Result<Listing> {
        let allowed = self.store.len().saturating_add(ALLOWANCE);
        self.with_file(folder, allowed, |file, reader| {
            let index = file.directory_index(reader).map_err(io_error)?;
            let mut entries = index.entries();
            let (mut list, mut points) = (Listing::default(), Vec::new());
            while let Some(entry) = entries.next(reader) {
                let entry = entry.map_err(|e| told_of_index(e, file.ntfs()))?;
                let name = entry.key().ok_or_else(|| damaged("index", 0, "an entry has no name"))?.map_err(io_error)?;
                let number = entry.file_reference().file_record_number();
                if number < FIRST_USER_RECORD || name.namespace() == NtfsFileNamespace::Dos {
                    continue;
                }
                let kind = kind(name.is_directory(), None);
                let shown = OsString::from(name.name().to_string_lossy());
                if !is_name(&shown) {
                    let why = Error::unsupported("a name that no Unix file can have");
                    list.left_out.push(LeftOut { name: shown, kind, why, listed: false });
                    continue;
                }
                if name.file_attributes().contains(NtfsFileAttributeFlags::REPARSE_POINT) {
                    points.push(list.entries.len());
                }
                list.entries.push(Entry { name: shown, node: number, kind });
            }
            for entry in points {
                let entry = &mut list.entries[entry];
                // An error in examining the node is reported when it is used.
                if let Ok(found) = file.ntfs().file(reader, entry.node) {
                    entry.kind = kind(found.is_directory(), self.tag(&found, reader)?);
                }
            }
            Ok(list)
        })
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let Some(contents) = self.contents(file)? else { return Ok(0) };
        // In an empty file, nothing is encrypted.
        if contents.encrypted() && contents.size > 0 && !self.shows_ciphertext.load(Ordering::Relaxed) {
            let why = Error::unsupported("reading a file encrypted by EFS");
            return Err(why.advise(Advice::GivePrivateKey).into());
        }
        contents.read_at(&*self.store, offset, out)
    }

    fn link_target(&self, link: Node) -> io::Result<OsString> {
        let point = self.with_file(link, ALLOWANCE, |file, reader| {
            Stream::find(file, reader, NtfsAttributeType::ReparsePoint, "")
        })?;
        let point = point.ok_or(ErrorKind::InvalidInput)?;
        let mut bytes = vec![0; point.size.min(reparse::LARGEST as u64) as usize];
        let read = point.read_at(&*self.store, 0, &mut bytes)?;
        reparse::target(&bytes[..read])
    }

    fn stream(&self, file: Node, name: &OsStr) -> io::Result<Node> {
        let names = self.with_file(file, ALLOWANCE, stream_names)?;
        let number = names.iter().position(|known| name == known.as_str()).ok_or(ErrorKind::NotFound)?;
        Ok(record(file) | (number as u64 + 1) << RECORD_BITS)
    }

    fn streams(&self, file: Node) -> io::Result<Vec<OsString>> {
        Ok(self.with_file(file, ALLOWANCE, stream_names)?.into_iter().map(OsString::from).collect())
    }

    fn show_ciphertext(&self) {
        self.shows_ciphertext.store(true, Ordering::Relaxed);
    }

    fn ciphertext(&self, file: Node) -> io::Result<Option<Ciphertext>> {
        let contents = self.contents(file)?.filter(|contents| contents.encrypted());
        Ok(contents.map(|contents| Ciphertext { size: contents.size, stored: contents.sectors() }))
    }

    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        if name == NTFS_ATTRIBUTES {
            let flags =
                self.with_file(node, ALLOWANCE, |file, _| Ok(file.info().map_err(io_error)?.file_attributes()))?;
            return Ok(Some(flags.bits().to_le_bytes().to_vec()));
        }
        // Each stream of a file is encrypted or not on its own.
        let clear = matches!(self.contents(node), Ok(Some(contents)) if !contents.encrypted());
        if name != EFS_INFO || clear {
            return Ok(None);
        }
        let info = self.with_file(node, ALLOWANCE, |file, reader| {
            Stream::find(file, reader, NtfsAttributeType::LoggedUtilityStream, "$EFS")
        })?;
        let Some(info) = info else { return Ok(None) };
        if info.size > LARGEST_EFS_INFO || info.encrypted() {
            return Err(damaged("$EFS", 0, format!("it has {} bytes", info.size)));
        }
        let mut bytes = vec![0; info.size as usize];
        let read = info.read_at(&*self.store, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(Some(bytes))
    }

    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        let names = self.with_file(node, ALLOWANCE, |file, reader| {
            stream::names(file, reader, NtfsAttributeType::LoggedUtilityStream)
        })?;
        Ok(names.into_iter().filter(|name| name == "$EFS").map(|_| EFS_INFO.into()).collect())
    }

    fn space(&self) -> io::Result<Space> {
        let volume = self.volume();
        Ok(Space::new(volume.ntfs.size(), 0, volume.ntfs.cluster_size()))
    }
}

/// The kind of a node. `tag` is that of its reparse point, if it is one.
fn kind(is_folder: bool, tag: Option<Option<u32>>) -> NodeKind {
    match tag {
        None if is_folder => NodeKind::Folder,
        None => NodeKind::File,
        Some(Some(tag)) => reparse::kind(tag, is_folder),
        Some(None) => NodeKind::Special,
    }
}

/// Why a reparse point is not read.
fn unread(tag: Option<Option<u32>>) -> io::Error {
    let unknown = || Error::unsupported("reading a reparse point");
    tag.flatten().map_or_else(unknown, reparse::unread).into()
}

/// Converts a time from units of 100 nanoseconds since 1601.
fn time(time: NtfsTime) -> Option<SystemTime> {
    /// Seconds from 1601 to 1970.
    const TO_1970: u64 = 11_644_473_600;
    let units = time.nt_timestamp();
    let since_1601 = Duration::from_secs(units / 10_000_000) + Duration::from_nanos(units % 10_000_000 * 100);
    let since = since_1601.checked_sub(Duration::from_secs(TO_1970));
    match since {
        Some(since) => UNIX_EPOCH.checked_add(since),
        None => UNIX_EPOCH.checked_sub(Duration::from_secs(TO_1970).checked_sub(since_1601)?),
    }
}

/// The crate treats an index's record numbers as cluster numbers. If clusters are larger than records, they are sector numbers, and
/// the crate reports the wrong record.
fn told_of_index(error: NtfsError, ntfs: &ntfs::Ntfs) -> io::Error {
    /// The size of an index record in every NTFS seen so far, in bytes.
    const INDEX_RECORD: u32 = 4096;
    match error {
        NtfsError::VcnOutOfBoundsInIndexAllocation { .. } | NtfsError::VcnMismatchInIndexAllocation { .. }
            if ntfs.cluster_size() > INDEX_RECORD =>
        {
            let what = format!("listing large folders on NTFS with clusters of {} bytes", ntfs.cluster_size());
            Error::unsupported(what).into()
        }
        other => io_error(other),
    }
}

/// Converts the crate's error.
fn io_error(error: NtfsError) -> io::Error {
    match error {
        NtfsError::Io(e) => e,
        NtfsError::NotADirectory { .. } => ErrorKind::NotADirectory.into(),
        other => damaged("NTFS", 0, other.to_string()),
    }
}

//! NTFS, for reading, through the crate `ntfs`.
//!
//! The crate finds records and names; where the bytes of a stream are is found out here. Reparse points are listed, but not read,
//! and encrypted files (EFS) only by who asks for their ciphertext.

mod lznt1;
mod stream;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use lznt1::decompress;
use ntfs::indexes::NtfsFileNameIndex;
use ntfs::structured_values::{NtfsFileAttributeFlags, NtfsFileName, NtfsFileNamespace, NtfsVolumeFlags};
use ntfs::{KnownNtfsFileRecordNumber, NtfsAttributeFlags, NtfsAttributeType, NtfsError, NtfsFile, NtfsTime};
use stream::Stream;

use super::guard::{Reader, guarded};
use crate::error::Result;
use crate::store::Store;
use crate::trees::{Attributes, Ciphertext, EFS_INFO, Entry, NTFS_ATTRIBUTES, Node, NodeKind, Space, Tree, damaged};

/// Records below this one belong to the file system itself.
const FIRST_USER_RECORD: u64 = 24;

/// Bytes that may be read to find something, on top of the store's size.
const ALLOWANCE: u64 = 64 << 20;

/// Bits of a node that are the number of the file's record. Those above are 0, or say which of its streams it is, counted from 1.
const RECORD_BITS: u32 = 48;

/// Streams that are remembered, and parts that those have altogether.
const REMEMBERED: usize = 16;
const REMEMBERED_PARTS: usize = 1 << 20;

/// The most bytes of `$EFS` (MS-EFSR, 2.2.2.1, has the same limit).
const LARGEST_EFS_INFO: u64 = 256 << 10;

/// A store's NTFS. Nodes are numbers of file records and of streams in them.
pub struct Ntfs {
    volume: Mutex<Opened>,
    /// What was read last, the latest last. Nothing in it changes: nothing is written here.
    remembered: Mutex<VecDeque<(Node, Arc<Stream>)>>,
    store: Arc<dyn Store>,
    /// Whether the ciphertext of encrypted files may be read.
    shows_ciphertext: AtomicBool,
    warnings: Vec<String>,
}

struct Opened {
    ntfs: ntfs::Ntfs,
    reader: Reader,
}

impl Ntfs {
    /// Opens the file system.
    ///
    /// # Errors
    /// `Malformed`, `Io`.
    pub fn open(store: Arc<dyn Store>) -> Result<Self> {
        let mut reader = Reader::new(store.clone());
        reader.allow(ALLOWANCE);
        let (ntfs, warnings) = guarded(|| {
            let mut ntfs = ntfs::Ntfs::new(&mut reader).map_err(io_error)?;
            ntfs.read_upcase_table(&mut reader).map_err(io_error)?;
            let flags = ntfs.volume_info(&mut reader).map_err(io_error)?.flags();
            let warning = "the file system was not unmounted cleanly: the latest changes may be missing";
            let dirty = flags.contains(NtfsVolumeFlags::IS_DIRTY);
            Ok((ntfs, dirty.then(|| warning.to_owned()).into_iter().collect()))
        })?;
        let volume = Mutex::new(Opened { ntfs, reader });
        let (remembered, shows_ciphertext) = (Mutex::default(), AtomicBool::new(false));
        let mut opened = Self { volume, remembered, store, shows_ciphertext, warnings };
        opened.warnings.extend(opened.interrupted_encryption());
        Ok(opened)
    }

    fn volume(&self) -> MutexGuard<'_, Opened> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with a file; finding it may read at most `allowed` bytes.
    fn with_file<T>(
        &self,
        node: Node,
        allowed: u64,
        work: impl FnOnce(&NtfsFile<'_>, &mut Reader) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut volume = self.volume();
        let Opened { ntfs, reader } = &mut *volume;
        reader.allow(allowed);
        guarded(|| {
            let file = ntfs.file(reader, record(node)).map_err(io_error)?;
            work(&file, reader)
        })
    }

    /// The contents of a node: a stream that has a name, or the one that has none. A file may have none at all.
    fn contents(&self, node: Node) -> io::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.remembered(node) {
            return Ok(Some(known));
        }
        let found = self.with_file(node, self.store.len().saturating_add(ALLOWANCE), |file, reader| {
            let info = file.info().map_err(io_error)?;
            let name = stream_name(node, file, reader)?;
            match kind(file.is_directory(), info.file_attributes()) {
                _ if !name.is_empty() => {}
                NodeKind::Folder => return Err(ErrorKind::IsADirectory.into()),
                NodeKind::Special => return Err(self.behind(file, reader)),
                NodeKind::File | NodeKind::Link => {}
            }
            Stream::find(file, reader, NtfsAttributeType::Data, &name)
        })?;
        Ok(found.map(|stream| self.remember(node, Arc::new(stream))))
    }

    /// Why the reparse point that a file is cannot be read (MS-FSCC, 2.1.2).
    fn behind(&self, file: &NtfsFile<'_>, reader: &mut Reader) -> io::Error {
        /// That of the Windows Overlay Filter: the contents are in another stream, by XPRESS or LZX, or in a WIM.
        const WOF: u32 = 0x8000_0017;
        let point = Stream::find(file, reader, NtfsAttributeType::ReparsePoint, "").ok().flatten();
        let mut tag = [0; 4];
        let read = point.map(|point| point.read_at(&*self.store, 0, &mut tag));
        match (read, u32::from_le_bytes(tag)) {
            (Some(Ok(4)), WOF) => {
                crate::Error::unsupported("reading this file: Windows has compressed it as one of its system (WOF)")
                    .hint("Windows makes it an ordinary one: `compact /u /exe FILE`.")
                    .into()
            }
            (Some(Ok(4)), tag) => unsupported(&format!("it is a reparse point ({tag:#010x})")),
            _ => unsupported("it is a reparse point"),
        }
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

    /// What Windows leaves of a file that it was encrypting or decrypting when it stopped, as a warning. Windows finishes that itself
    /// when it uses the volume again (Windows Internals, 4th edition, "Encrypting File System Security").
    fn interrupted_encryption(&self) -> Option<String> {
        let folder = self.lookup(self.root(), OsStr::new("System Volume Information")).ok()?;
        let left = self.list(folder).ok()?.into_iter().map(|entry| entry.name);
        let left = left.filter(|name| name.to_str().is_some_and(is_log_of_efs)).collect::<Vec<_>>();
        let one = left.first()?.display();
        Some(format!(
            "Windows was encrypting or decrypting a file when it stopped (System Volume Information has {one}): the file may be whole \
             only in the EFS0.TMP beside it"
        ))
    }
}

/// Whether a file in `System Volume Information` is one that EFS keeps while it encrypts or decrypts another: `EFS0.LOG`.
fn is_log_of_efs(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let number = name.strip_prefix("EFS").and_then(|rest| rest.strip_suffix(".LOG").or(rest.strip_suffix(".TMP")));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The number of the file's record.
fn record(node: Node) -> u64 {
    node & ((1 << RECORD_BITS) - 1)
}

/// The name of the stream that a node is. The contents have none.
fn stream_name(node: Node, file: &NtfsFile<'_>, reader: &mut Reader) -> io::Result<String> {
    match (node >> RECORD_BITS).checked_sub(1) {
        None => Ok(String::new()),
        Some(number) => {
            let mut names = stream_names(file, reader)?.into_iter();
            names.nth(number as usize).ok_or_else(|| ErrorKind::NotFound.into())
        }
    }
}

fn stream_names(file: &NtfsFile<'_>, reader: &mut Reader) -> io::Result<Vec<String>> {
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
                true => kind(file.is_directory(), info.file_attributes()),
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
        let allowed = self.store.len().saturating_add(ALLOWANCE);
        self.with_file(folder, allowed, |file, reader| {
            let index = file.directory_index(reader).map_err(io_error)?;
            let mut entries = index.entries();
            let mut list = Vec::new();
            while let Some(entry) = entries.next(reader) {
                let entry = entry.map_err(|e| told_of_index(e, file.ntfs()))?;
                let name = entry.key().ok_or_else(|| damaged("index", 0, "an entry has no name"))?.map_err(io_error)?;
                let number = entry.file_reference().file_record_number();
                if let Some(shown) = shown(&name).filter(|_| number >= FIRST_USER_RECORD) {
                    let kind = kind(name.is_directory(), name.file_attributes());
                    list.push(Entry { name: shown, node: number, kind });
                }
            }
            Ok(list)
        })
    }

    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let Some(contents) = self.contents(file)? else { return Ok(0) };
        if contents.encrypted() && !self.shows_ciphertext.load(Ordering::Relaxed) {
            return Err(unsupported("it is encrypted (EFS)"));
        }
        contents.read_at(&*self.store, offset, out)
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
        // Of a file, each stream by itself is encrypted or not.
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

fn kind(is_folder: bool, flags: NtfsFileAttributeFlags) -> NodeKind {
    match () {
        () if flags.contains(NtfsFileAttributeFlags::REPARSE_POINT) => NodeKind::Special,
        () if is_folder => NodeKind::Folder,
        () => NodeKind::File,
    }
}

/// The name to show; `None` for the short name beside a long one, and for an unusable name.
fn shown(name: &NtfsFileName) -> Option<OsString> {
    if name.namespace() == NtfsFileNamespace::Dos {
        return None;
    }
    let shown = name.name().to_string_lossy();
    let usable = !shown.is_empty() && shown != "." && shown != ".." && !shown.contains(['/', '\0']);
    usable.then(|| shown.into())
}

/// Converts from units of 100 nanoseconds since 1601.
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

fn unsupported(what: &str) -> io::Error {
    crate::Error::unsupported(format!("reading this file: {what}")).into()
}

/// The crate takes an index's record numbers for clusters; if clusters are larger than records, they count sectors. The
/// crate notices that it got the wrong record.
fn told_of_index(error: NtfsError, ntfs: &ntfs::Ntfs) -> io::Error {
    /// Bytes of an index record, in every NTFS seen so far.
    const INDEX_RECORD: u32 = 4096;
    match error {
        NtfsError::VcnOutOfBoundsInIndexAllocation { .. } | NtfsError::VcnMismatchInIndexAllocation { .. }
            if ntfs.cluster_size() > INDEX_RECORD =>
        {
            let what = format!("listing a large folder of an NTFS with clusters of {} bytes", ntfs.cluster_size());
            crate::Error::unsupported(what).into()
        }
        other => io_error(other),
    }
}

/// The crate's error as ours.
fn io_error(error: NtfsError) -> io::Error {
    match error {
        NtfsError::Io(e) => e,
        NtfsError::NotADirectory { .. } => ErrorKind::NotADirectory.into(),
        other => damaged("NTFS", 0, other.to_string()),
    }
}

//! NTFS, for reading, through the crate `ntfs`.
//!
//! The crate ignores that a file's allocated but never written part reads as zeros; this is handled here. Compressed
//! and encrypted files and reparse points are listed, but not read.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ntfs::attribute_value::NtfsAttributeValue;
use ntfs::indexes::NtfsFileNameIndex;
use ntfs::structured_values::{NtfsFileAttributeFlags, NtfsFileName, NtfsFileNamespace, NtfsVolumeFlags};
use ntfs::{KnownNtfsFileRecordNumber, NtfsAttributeFlags, NtfsError, NtfsFile, NtfsReadSeek, NtfsTime};

use super::guard::{Reader, guarded};
use crate::error::Result;
use crate::store::Store;
use crate::trees::{Attributes, Entry, Node, NodeKind, Space, Tree, damaged};

/// Records below this one belong to the file system itself.
const FIRST_USER_RECORD: u64 = 24;

/// Bytes that may be read to find something, on top of the store's size.
const ALLOWANCE: u64 = 64 << 20;

/// A store's NTFS. Nodes are file record numbers.
pub struct Ntfs {
    volume: Mutex<Opened>,
    store: Arc<dyn Store>,
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
        Ok(Self { volume: Mutex::new(Opened { ntfs, reader }), store, warnings })
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
            let file = ntfs.file(reader, node).map_err(io_error)?;
            work(&file, reader)
        })
    }
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
            let kind = kind(file.is_directory(), info.file_attributes());
            let size = match kind {
                NodeKind::File => {
                    let data = file.data(reader, "").transpose().map_err(io_error)?;
                    let attribute = data.as_ref().map(|item| item.to_attribute()).transpose().map_err(io_error)?;
                    attribute.map_or(0, |a| a.value_length())
                }
                _ => 0,
            };
            Ok(Attributes {
                modified: time(info.modification_time()),
                accessed: time(info.access_time()),
                created: time(info.creation_time()),
                read_only: info.file_attributes().contains(NtfsFileAttributeFlags::READ_ONLY),
                ..Attributes::new(kind, size, node)
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
        let allowed = ALLOWANCE + out.len() as u64;
        self.with_file(file, allowed, |file, reader| {
            if file.is_directory() {
                return Err(ErrorKind::IsADirectory.into());
            }
            let flags = file.info().map_err(io_error)?.file_attributes();
            if flags.contains(NtfsFileAttributeFlags::REPARSE_POINT) {
                return Err(unsupported("it is a reparse point"));
            }
            let Some(item) = file.data(reader, "") else { return Ok(0) };
            let item = item.map_err(io_error)?;
            let attribute = item.to_attribute().map_err(io_error)?;
            let how = attribute.flags();
            if how.contains(NtfsAttributeFlags::ENCRYPTED) {
                return Err(unsupported("it is encrypted (EFS)"));
            }
            if how.contains(NtfsAttributeFlags::COMPRESSED) {
                return Err(unsupported("it is compressed"));
            }
            let mut value = attribute.value(reader).map_err(io_error)?;
            let size = value.len();
            if offset >= size {
                return Ok(0);
            }
            let out = &mut out[..];
            let wanted = (out.len() as u64).min(size - offset) as usize;
            let written = match attribute.is_resident() {
                true => size,
                false => self.initialized(&attribute)?,
            };
            let there = written.saturating_sub(offset).min(wanted as u64) as usize;
            read_value(&mut value, reader, offset, &mut out[..there])?;
            out[there..wanted].fill(0);
            Ok(wanted)
        })
    }

    fn space(&self) -> io::Result<Space> {
        let volume = self.volume();
        Ok(Space::new(volume.ntfs.size(), 0, volume.ntfs.cluster_size()))
    }
}

impl Ntfs {
    /// How much of a file was ever written: a field 56 bytes into its attribute's header.
    fn initialized(&self, attribute: &ntfs::NtfsAttribute<'_, '_>) -> io::Result<u64> {
        const FIELD: u64 = 56;
        let header = attribute.position().value().ok_or_else(|| damaged("attribute", 0, "it has no position"))?;
        let at = header.get() + FIELD;
        let mut bytes = [0; 8];
        self.store.read_at(at, &mut bytes)?;
        // The last two bytes of each 512 are kept elsewhere (the update sequence). Here they are the highest of a size,
        // which are zero.
        if at % 512 == 504 {
            bytes[6..].fill(0);
        }
        Ok(u64::from_le_bytes(bytes))
    }
}

fn read_value(
    value: &mut NtfsAttributeValue<'_, '_>,
    reader: &mut Reader,
    offset: u64,
    out: &mut [u8],
) -> io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    value.seek(reader, SeekFrom::Start(offset)).map_err(io_error)?;
    value.read_exact(reader, out).map_err(io_error)
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

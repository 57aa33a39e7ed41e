//! Explains why something does not open, within the limits of its format: what a store looks like without a credential, and which
//! other form of a password opens it.

mod content;
mod forms;
mod keeping;
mod keyboards;
pub mod observer;
mod scan;
mod search;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::arrays::{self, ArrayMember};
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::{FILE_FORMATS, FileFormat};
pub use crate::filesystems::magic::DiskAccess;
use crate::filesystems::{self, Filesystem, disk_images, magic};
use crate::formats::partition::{self, Candidate};
use crate::formats::{self, FORMATS, Format, Header, Verdict};
use crate::opening;
use crate::partitions;
use crate::store::{Access, FileStore, SliceStore, Store};
use crate::trees::host::HostFolder;
pub use content::{Content, Look};
pub use forms::{Change, Form, forms};
pub use keeping::worth_keeping;
pub use scan::{DiskFind, DiskScan, FoundOnDisk, scan};
pub use search::{Difference, Match, Search, SearchStep, TrialEffort, search};

/// How many bytes at the beginning of a store contain all signatures.
const START: u64 = 0x10000 + 4096;

/// What a store looks like without a credential.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Size in bytes.
    pub size: u64,
    /// Bytes after the last whole sector of 512 bytes: a disk has none.
    pub beyond_sectors: u64,
    /// What its bytes look like.
    pub content: Option<Content>,
    /// A signature that identifies it.
    pub mark: Option<Mark>,
    /// An unencrypted file system.
    pub filesystem: Option<Filesystem>,
    /// The partitions, if it is a disk with a partition table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Candidate>,
    /// What is wrong with its partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_trouble: Option<String>,
    /// What it, or each of its partitions, is in an array of Linux RAID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raid_members: Vec<ArrayMember>,
    /// What is wrong with its RAID superblock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raid_trouble: Option<String>,
    /// The verdict of each format.
    pub formats: Vec<Opinion>,
    /// The remains of a volume whose beginning was overwritten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remains: Vec<Remains>,
    /// Volumes that begin somewhere inside, without a partition table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_partitions: Vec<LostPartition>,
}

/// A volume in a lost partition.
#[derive(Clone, Debug, Serialize)]
pub struct LostPartition {
    /// The format.
    pub format: &'static str,
    /// Its offset, in bytes.
    pub at: u64,
}

/// The remains of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Remains {
    /// The format.
    pub format: &'static str,
    /// What was found: `there are metadata of BitLocker at byte 4096`.
    pub what: String,
}

/// What a signature identifies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// With an article: `a LUKS2 volume`.
    pub what: String,
    /// The program that opens it, if it can be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<&'static str>,
    /// Whether it is encrypted or compressed, which explains random-looking bytes.
    pub looks_random: bool,
    /// How to reach the disk in it, if known.
    #[serde(skip)]
    pub way: Option<DiskAccess>,
}

/// The verdict of one format.
#[derive(Clone, Debug, Serialize)]
pub struct Opinion {
    /// The format.
    pub format: &'static str,
    /// Its verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Examines `store`.
///
/// # Errors
/// `Io`.
pub fn look(store: &Arc<dyn Store>) -> Result<Diagnosis> {
    let size = store.len();
    let mut formats = Vec::new();
    for format in FORMATS {
        formats.push(Opinion { format: format.name(), verdict: format.identify(&**store)? });
    }
    let content = if size == 0 { None } else { Some(Content::of(&**store)?) };
    let mark = mark(&**store)?;
    let filesystem = filesystems::detect(&**store)?;
    let in_clear = begins_in_clear(content, mark.as_ref());
    // Random-looking bytes or a file system exclude partitions: a table's signature has only two bytes.
    let is_disk = filesystem.is_none() && in_clear;
    let (partitions, partition_trouble) = if is_disk { partitions(store)? } else { (Vec::new(), None) };
    let (raid_members, raid_trouble) = raid_members(store);
    let beyond_sectors = size % 512;
    // A random-looking beginning is that of a volume, or of data that never were one.
    let sure = formats.iter().any(|o| matches!(o.verdict, Verdict::Yes(_)));
    let remains = if !sure && in_clear { remains(&**store)? } else { Vec::new() };
    Ok(Diagnosis {
        size,
        beyond_sectors,
        content,
        mark,
        filesystem,
        partitions,
        partition_trouble,
        raid_members,
        raid_trouble,
        formats,
        remains,
        lost_partitions: Vec::new(),
    })
}

/// Examines a folder of this machine: the verdict of each file format that encrypts.
///
/// # Errors
/// `Io`.
pub fn look_at_folder(path: &Path) -> Result<Vec<Opinion>> {
    let tree = HostFolder::open(path, Access::ReadOnly)?;
    let empty = opening::format_of_empty(path).map(FileFormat::name);
    let verdict = |format: &dyn FileFormat| match empty {
        Some(name) if name == format.name() => {
            Ok(Verdict::Yes(vec!["it is empty, and the files beside it belong to it".to_owned()]))
        }
        _ => format.identify(&tree).map_err(|e| e.at(path)),
    };
    let formats = FILE_FORMATS.iter().filter(|format| format.encrypts());
    formats.map(|format| Ok(Opinion { format: format.name(), verdict: verdict(*format)? })).collect()
}

/// Whether its beginning is neither random-looking nor identified as encrypted or compressed.
fn begins_in_clear(content: Option<Content>, mark: Option<&Mark>) -> bool {
    content.is_some_and(|c| c.begins != Look::Random) && !mark.is_some_and(|m| m.looks_random)
}

/// Volumes with a signature where partitions usually begin: at whole mebibytes, and after the first track or table.
fn lost_partitions(store: &Arc<dyn Store>) -> Result<Vec<LostPartition>> {
    const ALIGNMENT: u64 = 1 << 20;
    const MOST: u64 = 4096;
    let aligned = (1..=MOST).map(|place| place * ALIGNMENT);
    let mut all = Vec::new();
    for at in [34 * 512, 63 * 512].into_iter().chain(aligned).take_while(|at| at + 512 <= store.len()) {
        let mut sector = [0; 512];
        store.read_at(at, &mut sector)?;
        if magic::compressed_or_encrypted(&sector).is_none() {
            continue;
        }
        let part = SliceStore::new(Arc::clone(store), at, store.len() - at)?;
        for format in FORMATS {
            if matches!(format.identify(&part)?, Verdict::Yes(_)) {
                all.push(LostPartition { format: format.name(), at });
            }
        }
    }
    Ok(all)
}

/// The formats with backup headers at the end of a store, if something there looks like one.
fn with_backups(store: &dyn Store) -> Result<Vec<&'static dyn Format>> {
    let mut candidates = Vec::new();
    for format in FORMATS {
        for before_end in format.backups_before_end() {
            let at = store.len().checked_sub(*before_end);
            if at.map_or(Ok(false), |at| content::could_be_a_header(store, at))? {
                candidates.push(*format);
                break;
            }
        }
    }
    Ok(candidates)
}

/// Whether a part of a store looks random, judged by samples.
///
/// # Errors
/// `Io`.
pub fn looks_random(store: &dyn Store, part: Range<u64>) -> Result<bool> {
    const SAMPLES: u64 = 64;
    let sectors = part.end.saturating_sub(part.start) / 512;
    for sample in 0..SAMPLES.min(sectors) {
        let sector = (u128::from(sectors) * u128::from(sample) / u128::from(SAMPLES.min(sectors))) as u64;
        if content::look_at(store, part.start + sector * 512, 512)? != Look::Random {
            return Ok(false);
        }
    }
    Ok(sectors > 0)
}

/// What overwrote the beginning of a store, to complete "was overwritten by …". `None` if it looks random, like a volume without a
/// signature.
///
/// # Errors
/// `Io`.
pub fn overwritten_by(store: &dyn Store) -> Result<Option<String>> {
    let mut start = vec![0; store.len().min(START) as usize];
    store.read_at(0, &mut start)?;
    let sector = &start[..start.len().min(512)];
    Ok(match magic::known(&start) {
        Some(what) => Some(what.to_owned()),
        None if sector.iter().all(|byte| *byte == 0) => Some("zeros".to_owned()),
        None => (!magic::looks_random(sector)).then(|| "something else".to_owned()),
    })
}

fn remains(store: &dyn Store) -> Result<Vec<Remains>> {
    let mut all = Vec::new();
    for format in FORMATS {
        all.extend(format.remains(store)?.map(|what| Remains { format: format.name(), what }));
    }
    Ok(all)
}

/// The partitions of a disk, or what is wrong with its partition table.
fn partitions(disk: &Arc<dyn Store>) -> Result<(Vec<Candidate>, Option<String>)> {
    match partition::candidates(disk) {
        Ok(candidates) => Ok((candidates.unwrap_or_default(), None)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        Err(e) => Ok((Vec::new(), Some(e.kind.to_string()))),
    }
}

/// What a store is in arrays, or what is wrong with its superblock.
fn raid_members(store: &Arc<dyn Store>) -> (Vec<ArrayMember>, Option<String>) {
    match arrays::members(store) {
        Ok(members) => (members, None),
        Err(e) => (Vec::new(), Some(e.kind.to_string())),
    }
}

/// The image of a disk in the file or block device at `path`, if it is opened here, proven by more than its signature. Takes no lock, and reads
/// nothing but the beginning and the end.
///
/// # Errors
/// Those of [`FileStore::open`], except `InUse`.
pub fn disk_image(path: &Path) -> Result<Option<Mark>> {
    let store = FileStore::unlocked(path)?;
    let image = mark(&store).map_err(|e| e.at(path))?;
    Ok(image.filter(|mark| matches!(mark.way, Some(DiskAccess::Image(_) | DiskAccess::Evidence))))
}

/// Whether the file at `path` begins with the signature of a volume. Takes no lock. A file that cannot be read does not.
pub fn begins_a_volume(path: &Path) -> bool {
    let Ok(store) = FileStore::unlocked(path) else { return false };
    FORMATS.iter().any(|format| matches!(format.identify(&store), Ok(Verdict::Yes(_))))
}

fn mark(store: &dyn Store) -> Result<Option<Mark>> {
    let mut start = vec![0; store.len().min(START) as usize];
    store.read_at(0, &mut start)?;
    let is_proven = |way| match way {
        Some(DiskAccess::Image(format)) => disk_images::proven(format, store, &start),
        _ => true,
    };
    let at_the_end = at_the_end(store)?.filter(|mark| is_proven(mark.way));
    // The data of a fixed disk of Virtual PC begin with the disk's own first sector.
    if at_the_end.as_ref().is_some_and(|mark| matches!(mark.way, Some(DiskAccess::Image(_)))) {
        return Ok(at_the_end);
    }
    if let Some(what) = magic::compressed_or_encrypted(&start) {
        let (opened_by, way) = magic::opened_by(&start);
        if is_proven(way) {
            return Ok(Some(Mark { what: what.to_owned(), opened_by, looks_random: true, way }));
        }
        return Ok(at_the_end);
    }
    let mark = |what: &str| Mark { what: what.to_owned(), opened_by: None, looks_random: false, way: None };
    Ok(at_the_end.or_else(|| magic::known(&start).map(mark)))
}

/// What the signature in the last sector identifies.
fn at_the_end(store: &dyn Store) -> Result<Option<Mark>> {
    let Some(last) = store.len().checked_sub(512) else { return Ok(None) };
    let mut sector = [0; 512];
    store.read_at(last, &mut sector)?;
    let marked = magic::at_the_end(&sector);
    Ok(marked.map(|(what, by, way)| Mark { what: what.to_owned(), opened_by: Some(by), looks_random: true, way }))
}

/// A possible format of a store, with its header, still locked.
pub struct UnlockTarget {
    /// The format.
    pub format: &'static str,
    /// The number of its partition, if it is in one.
    pub partition: Option<u32>,
    /// The header to unlock.
    pub header: Box<dyn Header>,
}

impl Diagnosis {
    /// Fills in `lost_partitions`, which [`look`] leaves empty because this needs thousands of short reads.
    ///
    /// # Errors
    /// `Io`.
    pub fn find_lost_partitions(&mut self, store: &Arc<dyn Store>) -> Result<()> {
        let in_clear = begins_in_clear(self.content, self.mark.as_ref());
        if in_clear && !self.sure() && self.filesystem.is_none() && self.partitions.is_empty() {
            self.lost_partitions = lost_partitions(store)?;
        }
        Ok(())
    }

    /// The targets worth trying: the format that is `named`, or every possible format of the store, then those of its partitions.
    ///
    /// # Errors
    /// Those of opening the named format; `Io`.
    pub fn targets(&self, store: &Arc<dyn Store>, named: Option<&str>) -> Result<Vec<UnlockTarget>> {
        /// The most partitions tried.
        const PARTITIONS: usize = 8;
        let open = |format: &'static dyn Format| -> Result<UnlockTarget> {
            let header = format.open(store).map_err(|e| e.in_format(format.name()))?;
            Ok(UnlockTarget { format: format.name(), partition: None, header })
        };
        let overwritten = |format: &'static dyn Format| {
            let header = format.open_overwritten(store).ok().flatten()?;
            Some(UnlockTarget { format: format.name(), partition: None, header })
        };
        let only = named.map(|name| formats::named(&**store, name)).transpose()?;
        let candidates = only.map_or_else(|| self.candidates(&**store), |format| Ok(vec![format]))?;
        // A format that finds nothing to try is not a candidate.
        let (mut targets, mut wrong) = (Vec::new(), None);
        for format in &candidates {
            match open(*format) {
                Ok(target) => targets.push(target),
                Err(error) => wrong = Some(error),
            }
        }
        targets.extend(candidates.iter().filter_map(|f| overwritten(*f)));
        for Candidate { partition, formats } in self.partitions.iter().take(PARTITIONS) {
            // If a volume in a partition was overwritten, its backups at the end are left.
            let backed_up = if formats.is_empty() {
                with_backups(&partitions::slice(Arc::clone(store), partition.number)?)?
            } else {
                Vec::new()
            };
            let formats = formats.iter().copied().chain(backed_up.into_iter().map(Format::name));
            for format in formats.filter(|name| only.is_none_or(|only| only.name() == *name)) {
                if let Ok(header) = partition::open(store, partition.number, Some(format), false) {
                    targets.push(UnlockTarget { format, partition: Some(partition.number), header });
                }
            }
        }
        match wrong {
            Some(error) if only.is_some() && targets.is_empty() => Err(error),
            _ => Ok(targets),
        }
    }

    /// The possible formats, in table order: those that recognise it. If its beginning was overwritten, those with backup headers
    /// at the end, if something there looks like one.
    ///
    /// # Errors
    /// `Io`.
    pub fn candidates(&self, store: &dyn Store) -> Result<Vec<&'static dyn Format>> {
        // If a signature identifies the format, formats without a signature are excluded.
        let sure = self.sure();
        let possible = |o: &&Opinion| match o.verdict {
            Verdict::Yes(_) => true,
            Verdict::Possible(_) => !sure,
            Verdict::No(_) => false,
        };
        let mut names: Vec<_> = self.formats.iter().filter(possible).map(|o| o.format).collect();
        names.extend(self.remains.iter().map(|remains| remains.format));
        if !names.is_empty() {
            return Ok(FORMATS.iter().copied().filter(|f| names.contains(&f.name())).collect());
        }
        // A member of an array ends with data from the middle of the array.
        if self.mark.as_ref().is_some_and(|m| m.looks_random) || !self.raid_members.is_empty() {
            return Ok(Vec::new());
        }
        with_backups(store)
    }

    /// Whether a signature identifies the format.
    pub fn sure(&self) -> bool {
        self.formats.iter().any(|o| matches!(o.verdict, Verdict::Yes(_)))
    }

    /// The formats whose signature it has.
    pub fn marked(&self) -> Vec<&'static str> {
        self.formats.iter().filter(|o| matches!(o.verdict, Verdict::Yes(_))).map(|o| o.format).collect()
    }

    /// Whether it could be a volume of a format without a header: random bytes without any other explanation.
    pub fn could_be_headerless(&self) -> bool {
        let nothing_else =
            self.mark.is_none() && self.filesystem.is_none() && self.partitions.is_empty() && !self.sure();
        nothing_else && self.content.is_some_and(|content| content.begins == Look::Random)
    }

    /// Why the format identified by its signature cannot read its header, if so.
    pub fn damage(&self, store: &Arc<dyn Store>) -> Option<Error> {
        let marked = self.formats.iter().filter(|o| matches!(o.verdict, Verdict::Yes(_)));
        let formats = marked.filter_map(|o| FORMATS.iter().find(|f| f.name() == o.format));
        formats.filter_map(|format| format.open(store).err().map(|e| e.in_format(format.name()))).next()
    }

    /// Whether its beginning is no longer a volume, although something at its end could be a backup header.
    pub fn beginning_lost(&self) -> bool {
        self.formats.iter().all(|o| matches!(o.verdict, Verdict::No(_)))
    }
}

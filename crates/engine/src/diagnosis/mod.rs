//! Why something does not open, as far as its format allows one to know: what a store looks like without any credential,
//! and which other form of a password opens it.

mod content;
mod forms;
mod keeping;
mod keyboards;
pub mod observer;
mod search;

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
pub use crate::filesystems::magic::DiskAccess;
use crate::filesystems::{self, Filesystem, magic};
use crate::formats::partition::{self, Candidate};
use crate::formats::{self, FORMATS, Format, Header, Verdict};
use crate::partitions;
use crate::store::{SliceStore, Store};
pub use content::{Content, Look};
pub use forms::{Change, Form, forms};
pub use keeping::worth_keeping;
pub use search::{Difference, Match, Search, SearchStep, search};

/// Bytes at the beginning of a store that have all marks in them.
const START: u64 = 0x10000 + 4096;

/// A store as it looks without any credential.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Size in bytes.
    pub size: u64,
    /// Bytes behind the last whole sector of 512 bytes: a disk has none.
    pub beyond_sectors: u64,
    /// What its bytes look like.
    pub content: Option<Content>,
    /// A mark that tells what it is.
    pub mark: Option<Mark>,
    /// A file system that is not encrypted.
    pub filesystem: Option<Filesystem>,
    /// Its partitions, where it is a disk with a table of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Candidate>,
    /// What is wrong with its partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_trouble: Option<String>,
    /// What each format says of it.
    pub formats: Vec<Opinion>,
    /// What is left of a volume whose beginning is none any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remains: Vec<Remains>,
    /// Volumes that begin somewhere in it, where no partition table says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_partitions: Vec<LostPartition>,
}

/// A volume in what was a partition.
#[derive(Clone, Debug, Serialize)]
pub struct LostPartition {
    /// The format.
    pub format: &'static str,
    /// Where it begins, in bytes.
    pub at: u64,
}

/// What is left of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Remains {
    /// The format.
    pub format: &'static str,
    /// What there is: `there are metadata of BitLocker at byte 4096`.
    pub what: String,
}

/// What a mark says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// With an article: `a LUKS2 volume`.
    pub what: String,
    /// The program that opens it, where it is something to be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<&'static str>,
    /// Whether it is encrypted or compressed: that explains why it looks random.
    pub looks_random: bool,
    /// How the disk in it is reached, where that is known.
    #[serde(skip)]
    pub way: Option<DiskAccess>,
}

/// What one format says.
#[derive(Clone, Debug, Serialize)]
pub struct Opinion {
    /// The format.
    pub format: &'static str,
    /// Its verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Looks at `store`.
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
    // What looks random, or holds a file system, has no partitions: the mark of a table has two bytes.
    let is_disk = filesystem.is_none() && in_clear;
    let (partitions, partition_trouble) = if is_disk { partitions(store)? } else { (Vec::new(), None) };
    let beyond_sectors = size % 512;
    // A beginning that looks random is that of a volume, or of what was always something else.
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
        formats,
        remains,
        lost_partitions: Vec::new(),
    })
}

/// Whether something begins it that does not look random, and that nothing explains as encrypted or compressed.
fn begins_in_clear(content: Option<Content>, mark: Option<&Mark>) -> bool {
    content.is_some_and(|c| c.begins != Look::Random) && !mark.is_some_and(|m| m.looks_random)
}

/// Volumes with a mark where partitions usually begin: at whole mebibytes, and behind the first track or table.
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

/// The formats that keep backups of headers at the end of a store, where something there looks like one.
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

/// Whether the bytes of a part of a store look random, according to samples.
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

/// What overwrote the beginning of a store, to complete "was overwritten by …". Nothing if it looks random, as a volume without a
/// mark does.
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

/// The partitions of a disk, or what is wrong with the table of them.
fn partitions(disk: &Arc<dyn Store>) -> Result<(Vec<Candidate>, Option<String>)> {
    match partition::candidates(disk) {
        Ok(candidates) => Ok((candidates.unwrap_or_default(), None)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        Err(e) => Ok((Vec::new(), Some(e.kind.to_string()))),
    }
}

fn mark(store: &dyn Store) -> Result<Option<Mark>> {
    let mut start = vec![0; store.len().min(START) as usize];
    store.read_at(0, &mut start)?;
    if let Some(what) = magic::compressed_or_encrypted(&start) {
        let (opened_by, way) = magic::opened_by(&start);
        return Ok(Some(Mark { what: what.to_owned(), opened_by, looks_random: true, way }));
    }
    if let Some(last) = store.len().checked_sub(512) {
        let mut sector = [0; 512];
        store.read_at(last, &mut sector)?;
        if let Some((what, by, way)) = magic::at_the_end(&sector) {
            return Ok(Some(Mark { what: what.to_owned(), opened_by: Some(by), looks_random: true, way }));
        }
    }
    Ok(magic::known(&start).map(|what| Mark { what: what.to_owned(), opened_by: None, looks_random: false, way: None }))
}

/// What a store could be a volume of, and the header of that, still locked.
pub struct UnlockTarget {
    /// The format.
    pub format: &'static str,
    /// The partition of the disk that it is in.
    pub partition: Option<u32>,
    /// What is to be unlocked.
    pub header: Box<dyn Header>,
}

impl Diagnosis {
    /// Fills in `lost_partitions`, which [`look`] leaves empty: this makes thousands of short reads.
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

    /// What is worth trying: the format that is `named`, or every one that it could be of, then those that its partitions could be
    /// of.
    ///
    /// # Errors
    /// Those of opening the format that is named; `Io`.
    pub fn targets(&self, store: &Arc<dyn Store>, named: Option<&str>) -> Result<Vec<UnlockTarget>> {
        /// Partitions that are tried.
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
        // One that finds nothing to try is no candidate.
        let (mut targets, mut wrong) = (Vec::new(), None);
        for format in &candidates {
            match open(*format) {
                Ok(target) => targets.push(target),
                Err(error) => wrong = Some(error),
            }
        }
        targets.extend(candidates.iter().filter_map(|f| overwritten(*f)));
        for Candidate { partition, formats } in self.partitions.iter().take(PARTITIONS) {
            // What was written over a volume in a partition leaves the backups at its end.
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

    /// The formats that it could be a volume of, in the order of their table: those that say so, or, where its beginning
    /// was overwritten by something else, those that keep backups of their headers at the end, if something there looks
    /// like one.
    ///
    /// # Errors
    /// `Io`.
    pub fn candidates(&self, store: &dyn Store) -> Result<Vec<&'static dyn Format>> {
        // A format that knows its mark leaves nothing to those that have none.
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
        if self.mark.as_ref().is_some_and(|m| m.looks_random) {
            return Ok(Vec::new());
        }
        with_backups(store)
    }

    /// Whether a format has a mark that says what it is.
    pub fn sure(&self) -> bool {
        self.formats.iter().any(|o| matches!(o.verdict, Verdict::Yes(_)))
    }

    /// The formats whose mark it has.
    pub fn marked(&self) -> Vec<&'static str> {
        self.formats.iter().filter(|o| matches!(o.verdict, Verdict::Yes(_))).map(|o| o.format).collect()
    }

    /// Whether it could be a volume of a format without any header: random bytes that nothing else explains.
    pub fn could_be_headerless(&self) -> bool {
        let nothing_else =
            self.mark.is_none() && self.filesystem.is_none() && self.partitions.is_empty() && !self.sure();
        nothing_else && self.content.is_some_and(|content| content.begins == Look::Random)
    }

    /// Why the format whose mark it has cannot read its header, if it cannot.
    pub fn damage(&self, store: &Arc<dyn Store>) -> Option<Error> {
        let marked = self.formats.iter().filter(|o| matches!(o.verdict, Verdict::Yes(_)));
        let formats = marked.filter_map(|o| FORMATS.iter().find(|f| f.name() == o.format));
        formats.filter_map(|format| format.open(store).err().map(|e| e.in_format(format.name()))).next()
    }

    /// Whether its beginning is none of a volume although something at its end could be a backup of a header.
    pub fn beginning_lost(&self) -> bool {
        self.formats.iter().all(|o| matches!(o.verdict, Verdict::No(_)))
    }
}

//! Volumes in partitions of a disk: those that fill a partition, and partitions of an encrypted system, whose header is outside.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::takes::Takes;
use super::{FORMATS, Facts, Header, Sealed, UnlockPlan, Unlocked, Verdict};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::partitions::{self, Partition};
use crate::store::{SliceStore, Store};
use crate::volume::{Payload, Segment, Volume};

/// A partition, and the formats it could have.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// The partition.
    #[serde(flatten)]
    pub partition: Partition,
    /// The names of the formats that answer `Possible` or `Yes`.
    pub formats: Vec<&'static str>,
}

/// Returns the partitions of a disk, except extended ones, and which of them could be volumes. `None` if there is no partition
/// table.
///
/// # Errors
/// Those of [`partitions::read`].
pub fn candidates(disk: &Arc<dyn Store>) -> Result<Option<Vec<Candidate>>> {
    let Some(table) = partitions::read(&**disk)? else { return Ok(None) };
    let candidate = |partition: Partition| {
        let slice = SliceStore::new(Arc::clone(disk), partition.start, partition.len)?;
        let mut formats = Vec::new();
        for format in FORMATS {
            if !matches!(format.identify(&slice)?, Verdict::No(_)) {
                formats.push(format.name());
            }
        }
        Ok(Candidate { partition, formats })
    };
    table.partitions.into_iter().filter(|p| !p.extended).map(candidate).collect::<Result<_>>().map(Some)
}

/// Like [`super::open`], or [`super::open_by_backup`] if `backup` is set, for a volume that fills the partition `number` of a disk,
/// or for that partition of an encrypted system. Unlocking returns a layout of the whole disk's store.
///
/// # Errors
/// Those of [`partitions::find`] and [`super::open`].
pub fn open(disk: &Arc<dyn Store>, number: u32, name: Option<&str>, backup: bool) -> Result<Box<dyn Header>> {
    let formats = match name {
        Some(name) => vec![super::by_name(name)?],
        None => FORMATS.to_vec(),
    };
    let mut systems = Vec::new();
    for format in formats {
        systems.extend(format.open_system(disk)?);
    }
    let inside = match partitions::find(&**disk, number) {
        Ok(partition) => Inside::open(disk, &partition, name, backup),
        Err(e) => Err(e),
    };
    match inside {
        // The table of logical partitions may itself be encrypted: it is read again once the system is open.
        Err(_) if !systems.is_empty() => {
            Ok(Box::new(InPartition { disk: Arc::clone(disk), number, systems, inside: None }))
        }
        inside => Ok(Box::new(InPartition { disk: Arc::clone(disk), number, systems, inside: Some(inside?) })),
    }
}

struct InPartition {
    disk: Arc<dyn Store>,
    number: u32,
    systems: Vec<Box<dyn Header>>,
    inside: Option<Inside>,
}

/// A volume that fills a partition.
struct Inside {
    start: u64,
    header: Box<dyn Header>,
}

impl Inside {
    fn open(disk: &Arc<dyn Store>, partition: &Partition, name: Option<&str>, backup: bool) -> Result<Self> {
        let slice: Arc<dyn Store> = Arc::new(SliceStore::new(Arc::clone(disk), partition.start, partition.len)?);
        let (_, header) =
            if backup && name.is_none() { super::open_by_backup(&slice) } else { super::open(&slice, name) }?;
        Ok(Self { start: partition.start, header })
    }

    /// Returns what was unlocked in the partition as a part of the disk.
    fn on_disk(&self, unlocked: Unlocked) -> Result<Unlocked> {
        let facts = Facts { data_offset: unlocked.facts.data_offset + self.start, ..unlocked.facts };
        Ok(Unlocked { layout: unlocked.layout.moved(self.start)?, facts, ..unlocked })
    }
}

impl Header for InPartition {
    /// Tries the system first: its derivations are cheaper, and an encrypted partition of it looks the same as a volume.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let total = self.effort(with);
        let mut before = 0;
        let mut wrong: Option<Error> = None;
        let mut attempt = |header: &dyn Header| {
            let effort = header.effort(with);
            let show = |done: u64, _| {
                if let Some(progress) = with.progress {
                    progress(before + done.min(effort), total);
                }
            };
            let unlocked = header.unlock(&Unlock { progress: Some(&show), ..*with });
            before += effort;
            match unlocked {
                Ok(unlocked) => Ok(Some(Unlocked { took: begun.elapsed(), ..unlocked })),
                // The last error is the most specific, unless a header could not be tried.
                Err(e) if may_be_another(&e.kind) => {
                    wrong = wrong.take().filter(left_out).or(Some(e));
                    Ok(None)
                }
                Err(e) => Err(e),
            }
        };
        let mut opened = None;
        for header in &self.systems {
            if let Some(system) = attempt(&**header)? {
                opened = self.part_of(system)?;
                if opened.is_none() && self.inside.is_none() {
                    return Err(Error::misuse(format!("partition {} of this disk is not encrypted", self.number))
                        .hint("Another part of the disk is encrypted: its system header opens."));
                }
                break;
            }
        }
        if let (None, Some(inside)) = (&opened, &self.inside) {
            opened = attempt(&*inside.header)?.map(|volume| inside.on_disk(volume)).transpose()?;
        }
        if let (Some(progress), true) = (with.progress, opened.is_some()) {
            progress(total, total);
        }
        opened.ok_or_else(|| wrong.expect("something was tried, or the partition was not opened"))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        let inside = self.inside.iter().map(|inside| &inside.header);
        self.systems.iter().chain(inside).flat_map(|header| header.takes()).collect()
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.disk
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        let inside = self.inside.as_ref().map(|inside| &inside.header);
        self.systems.iter().chain(inside).any(|header| header.asks_passphrase(keyfiles))
    }

    fn sealed(&self) -> Vec<Sealed> {
        self.inside.as_ref().map_or_else(Vec::new, |inside| inside.header.sealed())
    }

    fn plan(&self, with: &Unlock<'_>) -> Option<UnlockPlan> {
        self.inside.as_ref()?.header.plan(with)
    }

    fn check_key_process(&self, credentials: &[Credential]) -> Result<()> {
        self.inside.as_ref().map_or(Ok(()), |inside| inside.header.check_key_process(credentials))
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        let systems = self.systems.iter().map(|header| header.effort(with)).sum::<u64>();
        systems + self.inside.as_ref().map_or(0, |inside| inside.header.effort(with))
    }
}

/// Whether an error with one header allows others to open.
fn may_be_another(kind: &ErrorKind) -> bool {
    use ErrorKind::{CredentialKind, Misuse, TooLittleMemory, WrongCredential};
    matches!(kind, WrongCredential(_) | Misuse(_) | CredentialKind { .. } | TooLittleMemory { .. })
}

fn left_out(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::TooLittleMemory { .. })
}

impl InPartition {
    /// Returns only the partition of an open system; `None` if it is not encrypted.
    fn part_of(&self, unlocked: Unlocked) -> Result<Option<Unlocked>> {
        let whole = unlocked.layout;
        let plain = Volume::new(Arc::clone(&self.disk), whole.part(0, whole.len())?);
        let partition = partitions::find(&plain, self.number)?;
        let layout = whole.part(partition.start, partition.len)?;
        let of_system: u64 = layout.segments().iter().filter(|s| of_system(s)).map(|s| s.len).sum();
        let mut warnings = unlocked.warnings;
        match of_system {
            0 => return Ok(None),
            all if all == partition.len => {}
            part => warnings.push(
                format!(
                    "Only {part} of the partition's {} bytes belong to the encrypted system; the rest is read-only.",
                    partition.len
                )
                .into(),
            ),
        }
        let facts = Facts { size: layout.len(), ..unlocked.facts };
        Ok(Some(Unlocked { layout, facts, warnings, ..unlocked }))
    }
}

/// Whether the segment is encrypted, or would be in a completely encrypted system.
fn of_system(segment: &Segment) -> bool {
    segment.writable || matches!(segment.payload, Payload::Crypt { .. })
}

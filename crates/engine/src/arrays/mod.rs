//! Arrays of Linux's software RAID (md), assembled from their members without the kernel. People take disks out of a NAS and have
//! such members: whole disks, or partitions of them.
//!
//! Arrays are only read. A write would have to change parities and the members' superblocks together, without a moment in which the
//! array is neither old nor new.
//!
//! Superblocks have checksums but no key, so everything in them is checked: nothing outside a member's data is read as its data, and
//! members are never mixed with an older state of the same array.

mod assembly;
mod geometry;
mod parity;
mod store;
mod superblock;

use std::sync::Arc;

use serde::Serialize;

use crate::error::Result;
use crate::partitions;
use crate::store::{SliceStore, Store};
pub use assembly::{AssembledArray, assemble};
pub use store::ArrayStore;
use superblock::Superblock;

/// Why nothing is written to an array.
pub const READ_ONLY: &str =
    "the array is read-only here, because a write would have to change its parities and superblocks, too";

/// A RAID level of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RaidLevel {
    /// The members one behind another.
    Linear,
    /// Stripes over all members.
    Raid0,
    /// The same data on each member.
    Raid1,
    /// Stripes, with parity on the last member.
    Raid4,
    /// Stripes, with parity on each member in turn.
    Raid5,
    /// Stripes, with two parities on each pair of members in turn.
    Raid6,
    /// Stripes of copies.
    Raid10,
}

impl RaidLevel {
    /// Its name: `RAID 5`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear RAID",
            Self::Raid0 => "RAID 0",
            Self::Raid1 => "RAID 1",
            Self::Raid4 => "RAID 4",
            Self::Raid5 => "RAID 5",
            Self::Raid6 => "RAID 6",
            Self::Raid10 => "RAID 10",
        }
    }

    fn has_redundancy(self) -> bool {
        !matches!(self, Self::Linear | Self::Raid0)
    }

    /// How many members of each row hold parity.
    fn parities(self) -> u64 {
        match self {
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    fn fewest_devices(self) -> u64 {
        match self {
            Self::Linear | Self::Raid0 | Self::Raid1 => 1,
            Self::Raid4 | Self::Raid5 | Self::Raid10 => 2,
            Self::Raid6 => 4,
        }
    }
}

/// What a member of an array says about itself and its array.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ArrayMember {
    /// The number of the partition that is the member; `None` if the whole store is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The array's name, without the host's. Arrays with metadata 0.90 have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The array's UUID, as mdadm prints it.
    pub uuid: String,
    /// The array's level.
    pub level: RaidLevel,
    /// The number of devices of the array, without spares.
    pub devices: u32,
    /// The member's position among them, from 0; `None` for a spare, a faulty member or a journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// The version of the metadata: `0.90`, `1.0`, `1.1` or `1.2`.
    pub metadata: &'static str,
    /// Counts changes: members with different numbers hold different states of the array.
    pub events: u64,
    /// Whether the array was shut down properly and was in sync then.
    pub clean: bool,
    /// Whether a bitmap records writes under way.
    pub bitmap: bool,
    /// Whether other members are preferred for reading.
    pub write_mostly: bool,
}

impl ArrayMember {
    fn of(superblock: &Superblock, partition: Option<u32>) -> Self {
        let role = superblock.role_in(superblock);
        Self {
            partition,
            name: superblock.short_name().map(str::to_owned),
            uuid: superblock.uuid.clone(),
            level: superblock.level,
            devices: superblock.devices,
            device: (role < superblock::JOURNAL).then_some(u32::from(role)),
            metadata: superblock.version,
            events: superblock.events,
            clean: superblock.clean,
            bitmap: superblock.bitmap,
            write_mostly: superblock.write_mostly,
        }
    }

    /// Its array in words: `the Linux RAID array data`. Without a name, by UUID.
    pub fn array(&self) -> String {
        format!("the Linux RAID array {}", self.name.as_ref().unwrap_or(&self.uuid))
    }

    /// What it is: `a member of the Linux RAID array data (RAID 5, device 2 of 4)`. Devices count from 1 here.
    pub fn describe(&self) -> String {
        let position = match self.device {
            Some(device) => format!("device {} of {}", device + 1, self.devices),
            None => format!("not in use, {} devices", self.devices),
        };
        format!("a member of {} ({}, {position})", self.array(), self.level.name())
    }
}

/// The members in `store`: itself, or partitions of it.
///
/// # Errors
/// `Malformed`, `Unsupported` and `Io`, if a superblock is damaged, not supported or cannot be read, and there is no other member. A
/// damaged partition table counts as none.
pub fn members(store: &Arc<dyn Store>) -> Result<Vec<ArrayMember>> {
    Ok(found(store)?.iter().map(|member| ArrayMember::of(&member.superblock, member.partition)).collect())
}

/// The member that `store` itself is, if it is one.
///
/// # Errors
/// Those of [`members`].
pub fn member(store: &dyn Store) -> Result<Option<ArrayMember>> {
    Ok(superblock::read(store)?.map(|superblock| ArrayMember::of(&superblock, None)))
}

/// A member that was found, and where.
struct FoundMember {
    superblock: Superblock,
    partition: Option<u32>,
    store: Arc<dyn Store>,
}

fn found(store: &Arc<dyn Store>) -> Result<Vec<FoundMember>> {
    let table = partitions::read(&**store).ok().flatten();
    let partitions = table.map(|table| table.partitions).unwrap_or_default();
    let whole = superblock::read(&**store)?;
    // The end of the last partition may be that of the disk: then its superblock is found in both.
    let whole = whole.filter(|whole| !partitions.iter().any(|p| p.start <= whole.at && whole.at < p.end()));
    if let Some(superblock) = whole {
        return Ok(vec![FoundMember { superblock, partition: None, store: Arc::clone(store) }]);
    }
    let (mut members, mut wrong) = (Vec::new(), None);
    for partition in partitions.iter().filter(|partition| !partition.extended) {
        let part: Arc<dyn Store> = Arc::new(SliceStore::new(Arc::clone(store), partition.start, partition.len)?);
        match superblock::read(&*part) {
            Ok(Some(superblock)) => {
                members.push(FoundMember { superblock, partition: Some(partition.number), store: part });
            }
            Ok(None) => {}
            Err(e) => wrong = Some(e),
        }
    }
    match wrong {
        Some(error) if members.is_empty() => Err(error),
        _ => Ok(members),
    }
}

/// Assembles what a store holds as if it were the only member, for the fuzz target. Every read of an assembled array ends.
pub(crate) fn fuzz_member(store: Arc<dyn Store>) {
    let _ = members(&store);
    let Ok(array) = assemble(vec![("one".to_owned(), store)], None) else { return };
    let len = array.store.len();
    for at in [0, len / 3, len.saturating_sub(5000)] {
        let _ = array.store.read_at(at, &mut vec![0; (len - at).min(5000) as usize]);
    }
}

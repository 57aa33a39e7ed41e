//! The superblock of a member: versions 0.90, 1.0, 1.1 and 1.2 of md's metadata. Sources: Linux, include/uapi/linux/raid/md_p.h
//! (`mdp_super_t`, `struct mdp_superblock_1`), and drivers/md/md.c (`super_90_load`, `super_90_validate`, `super_1_load`,
//! `super_1_validate`), which says where each version lies and how it is checked.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::store::Store;

use super::RaidLevel;

/// md counts in sectors of 512 bytes.
const SECTOR: u64 = 512;

/// `MD_SB_MAGIC`.
const MAGIC: u32 = 0xa92b_4efc;

/// `MD_DISK_ROLE_SPARE`.
pub(super) const SPARE: u16 = 0xffff;
/// `MD_DISK_ROLE_FAULTY`.
pub(super) const FAULTY: u16 = 0xfffe;
/// `MD_DISK_ROLE_JOURNAL`.
pub(super) const JOURNAL: u16 = 0xfffd;

/// Bits of the feature map (`MD_FEATURE_…`).
mod feature {
    pub const BITMAP: u32 = 1;
    pub const RECOVERY_OFFSET: u32 = 2;
    pub const RESHAPE: u32 = 4;
    pub const BAD_BLOCKS: u32 = 8;
    pub const REPLACEMENT: u32 = 16;
    pub const JOURNAL: u32 = 512;
    /// With one or several partial parity logs.
    pub const PPL: u32 = 1024 | 2048;
    pub const RAID0_LAYOUT: u32 = 4096;
    /// All bits that Linux 6.1 knows.
    pub const KNOWN: u32 = 8191;
}

/// A member's superblock, in the units of this program: bytes.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    /// The version of the metadata, as mdadm prints it.
    pub version: &'static str,
    /// Its offset in the store.
    pub at: u64,
    /// The array's UUID, as mdadm prints it.
    pub uuid: String,
    /// The array's name, which may begin with that of the host: `nas:data`. Version 0.90 has none.
    pub name: Option<String>,
    pub level: RaidLevel,
    /// The number of the level's layout. `None` if the metadata do not record it.
    pub layout: Option<u32>,
    /// Size of a chunk; 0 if the level has none.
    pub chunk: u64,
    /// The number of devices without spares.
    pub devices: u32,
    /// Where the data begin in the store.
    pub data: u64,
    /// The bytes of data in this member.
    pub len: u64,
    /// Where a rebuild of this member has got to in its data; `None` if it is complete.
    pub rebuilt: Option<u64>,
    /// The member's index in `roles`.
    pub number: usize,
    /// The member's own UUID. Version 0.90 has none.
    pub device_uuid: Option<[u8; 16]>,
    /// The position of each member in the array, or [`SPARE`], [`FAULTY`] or [`JOURNAL`].
    pub roles: Vec<u16>,
    /// Counts the changes of the metadata: of two members, the one with the higher count was used longer.
    pub events: u64,
    /// Whether the array was shut down, and all its copies and parities are right.
    pub clean: bool,
    /// Whether the array is changing its shape.
    pub reshaping: bool,
    pub write_mostly: bool,
    /// Whether the member is to take the place of one that is still there.
    pub replacement: bool,
    pub bitmap: bool,
    /// Whether data may lie in a journal that were not yet written to the array.
    pub journal: bool,
    /// Whether the array has partial parity logs.
    pub ppl: bool,
    /// Parts of the data that could not be written, in order.
    pub bad: Vec<Range<u64>>,
}

impl Superblock {
    /// The member's position in the array according to `table`, the superblock of another member or its own.
    pub fn role_in(&self, table: &Self) -> u16 {
        table.roles.get(self.number).copied().unwrap_or(SPARE)
    }

    /// The name that mdadm gives the array: without the host.
    pub fn short_name(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        Some(name.split_once(':').map_or(name, |(_, own)| own)).filter(|name| !name.is_empty())
    }
}

/// The superblock in `store`; `None` if there is none.
///
/// # Errors
/// `Malformed` if it contradicts itself, its checksum or the store; `Unsupported` for a version, level or feature that this program
/// does not know; `Io`.
pub(super) fn read(store: &dyn Store) -> Result<Option<Superblock>> {
    // `super_1_load`: at the end, after 4 KiB, and at the beginning.
    let sectors = store.len() / SECTOR;
    let at_end = sectors.checked_sub(16).map(|at| at / 8 * 8 * SECTOR);
    for (version, at) in [("1.2", Some(4096)), ("1.1", Some(0)), ("1.0", at_end)] {
        let Some(at) = at.filter(|at| at.saturating_add(4096) <= store.len()) else { continue };
        let mut bytes = vec![0; 4096];
        store.read_at(at, &mut bytes)?;
        if u32_at(&bytes, 0) == MAGIC && u32_at(&bytes, 4) == 1 && u64_at(&bytes, 144) == at / SECTOR {
            return version_1(store, version, at, &bytes).map(Some);
        }
    }
    // `MD_NEW_SIZE_SECTORS`: 64 KiB before the last multiple of 64 KiB.
    let Some(at) = (sectors / 128).checked_sub(1).map(|at| at * 128 * SECTOR) else { return Ok(None) };
    let mut bytes = vec![0; 4096];
    store.read_at(at, &mut bytes)?;
    match u32_at(&bytes, 0) {
        MAGIC if u32_at(&bytes, 4) == 0 => version_0(at, &bytes).map(Some),
        swapped if swapped == MAGIC.swap_bytes() && u32_at(&bytes, 4) == 0 => {
            Err(Error::unsupported("big-endian metadata 0.90 of Linux RAID, made on a processor of another byte order")
                .hint("Convert it there, or with mdadm: `mdadm --assemble --update=byteorder`."))
        }
        _ => Ok(None),
    }
}

fn version_1(store: &dyn Store, version: &'static str, at: u64, bytes: &[u8]) -> Result<Superblock> {
    /// Where the table of roles begins, and how many it can have.
    const ROLES: usize = 256;
    let count = u32_at(bytes, 220) as usize;
    if count > (bytes.len() - ROLES) / 2 {
        return Err(malformed("max_dev", at + 220, format!("a table of {count} members does not fit")));
    }
    if checksum_1(&bytes[..ROLES + 2 * count]) != u32_at(bytes, 216) {
        return Err(malformed("sb_csum", at + 216, "the checksum of the RAID superblock is wrong".to_owned()));
    }
    let features = u32_at(bytes, 8);
    if features & !feature::KNOWN != 0 {
        return Err(Error::unsupported(format!("Linux RAID with unknown features ({features:#x})")));
    }
    let has = |bit| features & bit != 0;
    let level = level(u32_at(bytes, 72), at + 72)?;
    let sectors = |field, offset| in_bytes(u64_at(bytes, offset), field, at + offset as u64);
    let (data, data_size) = (sectors("data_offset", 128)?, sectors("data_size", 136)?);
    let end = data.checked_add(data_size).filter(|end| *end <= store.len());
    if end.is_none() {
        let what = format!(
            "the data of the member end at byte {}, but only {} exist",
            data.saturating_add(data_size),
            store.len()
        );
        return Err(malformed("data_size", at + 136, what).hint("If the image was cut short, find a complete copy."));
    }
    let size = sectors("size", 80)?;
    let len = if level.has_redundancy() { size } else { data_size };
    if len > data_size {
        return Err(malformed(
            "size",
            at + 80,
            format!("{size} bytes of each member are used, but this one has {data_size}"),
        ));
    }
    let roles: Vec<_> = bytes[ROLES..][..2 * count].chunks_exact(2).map(|role| u16_at(role, 0)).collect();
    let number = u32_at(bytes, 160) as usize;
    let role = roles.get(number).copied().unwrap_or(SPARE);
    let rebuilds = has(feature::RECOVERY_OFFSET) && role != JOURNAL;
    let bad = if has(feature::BAD_BLOCKS) { bad_blocks(store, at, bytes, data)? } else { Vec::new() };
    let layout = u32_at(bytes, 76);
    Ok(Superblock {
        version,
        at,
        uuid: uuid(&bytes[16..32]),
        name: name(&bytes[32..64]),
        level,
        layout: (level != RaidLevel::Raid0 || has(feature::RAID0_LAYOUT)).then_some(layout),
        chunk: u64::from(u32_at(bytes, 88)) * SECTOR,
        devices: u32_at(bytes, 92),
        data,
        len,
        rebuilt: rebuilds.then(|| u64_at(bytes, 152).saturating_mul(SECTOR)),
        number,
        device_uuid: bytes[168..184].first_chunk().copied(),
        roles,
        events: u64_at(bytes, 200),
        clean: u64_at(bytes, 208) == u64::MAX,
        reshaping: has(feature::RESHAPE),
        write_mostly: bytes[184] & 1 != 0,
        replacement: has(feature::REPLACEMENT),
        bitmap: has(feature::BITMAP) && !has(feature::PPL),
        journal: has(feature::JOURNAL),
        ppl: has(feature::PPL),
        bad,
    })
}

/// `calc_sb_1_csum`: the sum of the words and the odd half word, with its own field as zero, folded once.
fn checksum_1(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(4).enumerate().filter(|(i, _)| *i != 216 / 4);
    fold(words.map(|(_, word)| if word.len() == 4 { u32_at(word, 0) } else { u32::from(u16_at(word, 0)) }))
}

fn fold(words: impl Iterator<Item = u32>) -> u32 {
    let sum: u64 = words.map(u64::from).sum();
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

/// The log of bad blocks (`super_1_load`): numbers whose lower ten bits are a length. They count from the beginning of the store.
fn bad_blocks(store: &dyn Store, at: u64, bytes: &[u8], data: u64) -> Result<Vec<Range<u64>>> {
    /// The longest log that Linux reads.
    const LONGEST: u64 = 4096;
    let (shift, len) = (u32::from(bytes[185]), u64::from(u16_at(bytes, 186)) * SECTOR);
    let offset = i64::from(u32_at(bytes, 188) as i32) * SECTOR as i64;
    let place = at.checked_add_signed(offset).filter(|place| place.saturating_add(len) <= store.len());
    let place = place.filter(|_| offset != 0 && len <= LONGEST && shift < 32).ok_or_else(|| {
        malformed("bblog_offset", at + 188, format!("a list of bad blocks of {len} bytes, {offset} bytes from here"))
    })?;
    let mut log = vec![0; len as usize];
    store.read_at(place, &mut log)?;
    let numbers = log.chunks_exact(8).map(|number| u64_at(number, 0)).take_while(|number| *number != u64::MAX);
    let scaled =
        |number: u64| u64::try_from(u128::from(number) << shift).map_or(u64::MAX, |n| n.saturating_mul(SECTOR));
    let mut bad: Vec<_> = numbers
        .map(|number| (scaled(number >> 10), scaled(number & 0x3ff)))
        .map(|(start, len)| start.saturating_sub(data)..start.saturating_add(len).saturating_sub(data))
        .filter(|range| !range.is_empty())
        .collect();
    bad.sort_by_key(|range| range.start);
    Ok(bad)
}

fn version_0(at: u64, bytes: &[u8]) -> Result<Superblock> {
    /// Where the descriptors of 27 disks begin, and that of this one.
    const DISKS: usize = 128;
    const THIS: usize = 992;
    const DESCRIPTOR: usize = 32;
    let word = |number: usize| u32_at(bytes, 4 * number);
    let sum = fold((0..1024).filter(|number| *number != 38).map(word));
    if sum != word(38) {
        return Err(malformed("sb_csum", at + 4 * 38, "the checksum of the RAID superblock is wrong".to_owned()));
    }
    let minor = word(2);
    if !matches!(minor, 90 | 91) {
        return Err(Error::unsupported(format!("Linux RAID metadata 0.{minor}")));
    }
    let level = level(word(7), at + 28)?;
    let size = u64::from(word(8)) * 1024;
    if level.has_redundancy() && size > at {
        return Err(malformed("size", at + 32, format!("{size} bytes of each member are used, but this one has {at}"))
            .hint("If the image was cut short, find a complete copy."));
    }
    let state_of = |place: usize| (word(place + 3), word(place + 4));
    let role = |number: usize| {
        // `MD_DISK_FAULTY` is bit 0, `MD_DISK_SYNC` bit 2.
        let (role, state) = state_of(DISKS + number * DESCRIPTOR);
        match (state & 1 != 0, state & 4 != 0) {
            (true, _) => FAULTY,
            (false, true) => u16::try_from(role).unwrap_or(SPARE),
            (false, false) => SPARE,
        }
    };
    let events = |low: usize| u64::from(word(low + 1)) << 32 | u64::from(word(low));
    let state = word(33);
    let resynced = events(39) == events(41) && word(43) == u32::MAX;
    Ok(Superblock {
        version: "0.90",
        at,
        uuid: [5, 13, 14, 15].map(|number| format!("{:08x}", word(number))).join(":"),
        name: None,
        level,
        layout: (level != RaidLevel::Raid0).then(|| word(64)),
        chunk: u64::from(word(65)),
        devices: word(10),
        data: 0,
        len: if level.has_redundancy() { size } else { at },
        rebuilt: None,
        number: word(THIS) as usize,
        device_uuid: None,
        roles: (0..27).map(role).collect(),
        events: events(39),
        // `MD_SB_CLEAN` is bit 0, `MD_SB_BITMAP_PRESENT` bit 8; `MD_DISK_WRITEMOSTLY` is bit 9 of a disk's state.
        clean: state & 1 != 0 || resynced,
        reshaping: minor == 91,
        write_mostly: state_of(THIS).1 & 1 << 9 != 0,
        replacement: false,
        bitmap: state & 1 << 8 != 0,
        journal: false,
        ppl: false,
        bad: Vec::new(),
    })
}

fn level(number: u32, at: u64) -> Result<RaidLevel> {
    Ok(match number as i32 {
        -1 => RaidLevel::Linear,
        0 => RaidLevel::Raid0,
        1 => RaidLevel::Raid1,
        4 => RaidLevel::Raid4,
        5 => RaidLevel::Raid5,
        6 => RaidLevel::Raid6,
        10 => RaidLevel::Raid10,
        -4 => return Err(Error::unsupported("the RAID level multipath")),
        -5 => return Err(Error::unsupported("the RAID level faulty")),
        -100 => return Err(Error::unsupported("containers of a RAID controller's firmware (DDF, IMSM)")),
        number => return Err(malformed("level", at, format!("there is no RAID level {number}"))),
    })
}

fn in_bytes(sectors: u64, field: &'static str, at: u64) -> Result<u64> {
    sectors
        .checked_mul(SECTOR)
        .ok_or_else(|| malformed(field, at, format!("{sectors} sectors are more than any disk has")))
}

/// mdadm's form of a UUID: four groups of eight digits.
fn uuid(bytes: &[u8]) -> String {
    bytes.chunks(4).map(hex::digits).collect::<Vec<_>>().join(":")
}

fn name(bytes: &[u8]) -> Option<String> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).replace(char::is_control, "?");
    (!text.is_empty()).then_some(text)
}

fn malformed(field: &'static str, offset: u64, what: String) -> Error {
    ErrorKind::Malformed { field, offset, what }.into()
}

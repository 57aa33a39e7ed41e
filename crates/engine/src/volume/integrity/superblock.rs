//! dm-integrity's superblock, and the geometry that follows from it (Linux, drivers/md/dm-integrity.c: `struct
//! superblock`, `calculate_device_limits`, `get_metadata_sector_and_offset`, `get_data_sector`,
//! `initialize_superblock`).

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a sector, the unit of everything in the superblock.
pub(super) const SECTOR: u64 = 512;
/// Size of the superblock and the reserved space after it, in bytes.
pub(super) const SUPERBLOCK: usize = 4096;
/// Sectors of a journal section that hold its entries.
pub(super) const ENTRY_SECTORS: u64 = 8;
/// The length of the commit id at the end of each journal sector, in bytes.
pub(super) const COMMIT_ID: usize = 8;

/// The beginning of a superblock.
pub(crate) const MAGIC: &[u8; 8] = b"integrt\0";
/// The newest version that Linux writes for the features used here: it came with the fixed-padding flag.
const VERSION: u8 = 4;
const NEWEST_VERSION: u8 = 5;

const FLAG_JOURNAL_MAC: u32 = 0x1;
const FLAG_RECALCULATING: u32 = 0x2;
const FLAG_DIRTY_BITMAP: u32 = 0x4;
const FLAG_FIXED_PADDING: u32 = 0x8;
/// A flag to salt the hashes that dm-integrity computes itself. It is irrelevant if a cipher makes the tags.
const FLAG_FIXED_HMAC: u32 = 0x10;
const FLAG_INLINE: u32 = 0x20;

/// The default number of sectors between two runs of tags, as a power of two, and its limits.
const DEFAULT_LOG2_INTERLEAVE: u8 = 15;
const LOG2_INTERLEAVE: std::ops::RangeInclusive<u8> = 3..=31;
/// The journal's share of the device, as a power of two, and the most sectors it may have.
const JOURNAL_PART: u32 = 7;
const LONGEST_JOURNAL: u64 = 131_072;
/// Sectors of tags that Linux reads at a time. Areas must begin at multiples of it, or Linux would look for tags in the wrong
/// place.
const BUFFER_SECTORS: u64 = 128;
/// The unit that runs of tags are rounded up to, in bytes: with the fixed-padding flag, and without.
const PADDING: u64 = 4096;
const EXCESSIVE_PADDING: u64 = 131_072;
/// Sectors per bit of the bitmap, as a power of two: only recorded, since only dm-integrity's own hashes use it.
const LOG2_BITMAP: u32 = 15;
/// The longest tag: a journal entry, with its numbers and the tag, has to fit into a sector beside a MAC.
pub(super) const MAX_TAG: usize = 424;
/// The largest journal that is accepted, in bytes: sixteen times the longest that Linux makes by default.
const MAX_JOURNAL: u64 = 1 << 30;
/// Sectors of the largest block.
const LONGEST_BLOCK: u64 = 8;

/// Where everything is, in sectors of 512 bytes and in blocks, which are the sectors with a tag. Offsets are relative
/// to the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Size of a tag, in bytes.
    pub tag: usize,
    /// Size of a block, in sectors.
    pub block_sectors: u64,
    log2_interleave: u8,
    fixed_padding: bool,
    /// Sectors of tags in front of the blocks of one area.
    tag_run: u64,
    /// Sections of the journal.
    pub sections: u32,
    /// Sectors for data.
    pub provided: u64,
    /// The salt that dm-integrity hashes before each sector, if its hash has a key and `fix_hmac` was requested.
    pub salt: Option<[u8; 16]>,
}

impl Geometry {
    /// Parses the superblock of an area of `len` bytes. `made` has the sizes of a tag and of a block in bytes, as the area's cipher
    /// uses them; `None` if dm-integrity computes the tags, and the superblock has the sizes.
    ///
    /// `at` is the superblock's offset, for error messages.
    ///
    /// # Errors
    /// `Malformed`, naming the field; `Unsupported` for features that dm-crypt's tags never need.
    pub fn parse(bytes: &[u8; SUPERBLOCK], at: u64, len: u64, made: Option<(usize, usize)>) -> Result<Self> {
        let bad = |field, from: u64, what: String| Error::new(ErrorKind::Malformed { field, offset: at + from, what });
        let (le16, le32, le64) = (
            |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]),
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")),
        );
        if &bytes[..8] != MAGIC {
            return Err(bad("integrity magic", 0, "there is no dm-integrity superblock".into())
                .hint("The data area has no tags, or its beginning was overwritten, so its data cannot be verified."));
        }
        match bytes[8] {
            1..=NEWEST_VERSION => {}
            0 => return Err(bad("integrity version", 8, "it is 0".into())),
            newer => return Err(Error::unsupported(format!("dm-integrity version {newer}"))),
        }
        // Linux keeps the flag set after it has finished.
        let computed = le64(32) >= le64(16);
        supported(le32(24), computed)?;
        let tag = usize::from(le16(10));
        match made {
            Some((made, _)) if made != tag => {
                return Err(bad("integrity tag size", 10, format!("tags of {tag} bytes, but the cipher makes {made}")));
            }
            None if tag == 0 || tag > MAX_TAG => {
                return Err(bad("integrity tag size", 10, format!("tags of {tag} bytes")));
            }
            _ => {}
        }
        let log2_interleave = bytes[9];
        if log2_interleave == 0 {
            return Err(Error::unsupported("tags on a separate device (dm-integrity's meta_device)"));
        }
        if !LOG2_INTERLEAVE.contains(&log2_interleave) {
            return Err(bad("interleave sectors", 9, format!("2^{log2_interleave}")));
        }
        let block_sectors = 1u64.checked_shl(bytes[28].into()).filter(|sectors| *sectors <= LONGEST_BLOCK);
        let block_sectors = match made {
            Some((_, block)) if block_sectors != Some(block as u64 / SECTOR) => {
                let what = format!("2^{}, but the cipher's are {block} bytes", bytes[28]);
                return Err(bad("sectors per block", 28, what));
            }
            _ => block_sectors.ok_or_else(|| bad("sectors per block", 28, format!("2^{}", bytes[28])))?,
        };
        let flags = le32(24);
        let geometry =
            Self::new(tag, block_sectors, log2_interleave, flags & FLAG_FIXED_PADDING != 0, le32(12), le64(16));
        let salt = (flags & FLAG_FIXED_HMAC != 0).then(|| *bytes[48..].first_chunk().expect("sixteen bytes"));
        let geometry = Self { salt, ..geometry };
        if geometry.sections == 0 {
            return Err(bad("journal sections", 12, "there is no journal".into()));
        }
        if !geometry.journal_fits(len) {
            return Err(bad("journal sections", 12, format!("{} sections reach past the end", geometry.sections)));
        }
        if geometry.provided == 0 || !geometry.provided.is_multiple_of(block_sectors) {
            return Err(bad("provided data sectors", 16, format!("{} sectors", geometry.provided)));
        }
        if !geometry.data_fits(len) {
            let end = u128::from(at) + geometry.end() * u128::from(SECTOR);
            let what = format!("{} sectors reach past the end, to byte {end}", geometry.provided);
            return Err(bad("provided data sectors", 16, what).hint(
                "If it was cut short, find a complete copy. Or extend a copy to that length with `truncate --size` \
                 to read the rest.",
            ));
        }
        if !geometry.is_aligned() {
            return Err(Error::unsupported(format!(
                "tags that are interleaved with {} sectors",
                1u64 << log2_interleave
            )));
        }
        Ok(geometry)
    }

    /// The geometry Linux would choose for an area of `len` bytes at the end of a store.
    ///
    /// `device` is the size of the store in bytes; Linux derives the journal's size from it.
    ///
    /// # Errors
    /// `Misuse` if there is not enough room, or if the tag is too long.
    pub fn plan(len: u64, device: u64, tag: usize, block: usize) -> Result<Self> {
        if tag == 0 || tag > MAX_TAG || !matches!(block, 512 | 1024 | 2048 | 4096) {
            return Err(Error::misuse(format!("sectors of {block} bytes cannot have tags of {tag} bytes")));
        }
        let journal = ((device / SECTOR) >> JOURNAL_PART).min(LONGEST_JOURNAL);
        let mut geometry = Self::new(tag, block as u64 / SECTOR, DEFAULT_LOG2_INTERLEAVE, true, 1, 0);
        geometry.sections = (journal / geometry.section_sectors()).max(1) as u32;
        // The most that fits, bit by bit from the highest down to 8 sectors, the largest block.
        for bit in (3..63).rev() {
            let smaller = geometry.provided;
            geometry.provided |= 1 << bit;
            if !geometry.data_fits(len) {
                geometry.provided = smaller;
            }
        }
        match geometry.provided > 0 && geometry.journal_fits(len) {
            true => Ok(geometry),
            false => Err(Error::misuse(format!("{len} bytes leave no room for data beside a journal and tags"))),
        }
    }

    fn new(
        tag: usize,
        block_sectors: u64,
        log2_interleave: u8,
        fixed_padding: bool,
        sections: u32,
        provided: u64,
    ) -> Self {
        let tags = (tag as u64) << log2_interleave;
        let padding = if fixed_padding { PADDING } else { EXCESSIVE_PADDING };
        let tag_run = (tags / block_sectors).next_multiple_of(padding) / SECTOR;
        Self { tag, block_sectors, log2_interleave, fixed_padding, tag_run, sections, provided, salt: None }
    }

    /// The superblock's bytes.
    pub fn superblock(&self) -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = VERSION;
        bytes[9] = self.log2_interleave;
        bytes[10..12].copy_from_slice(&(self.tag as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sections.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.provided.to_le_bytes());
        let flags = if self.fixed_padding { FLAG_FIXED_PADDING } else { 0 };
        bytes[24..28].copy_from_slice(&flags.to_le_bytes());
        let log2_block = self.block_sectors.trailing_zeros();
        bytes[28] = log2_block as u8;
        let bits = (self.journal_sectors() << 12).min(u32::MAX.into());
        let log2_bit = (LOG2_BITMAP..63).find(|log2| self.provided.div_ceil(1 << log2) <= bits).unwrap_or(LOG2_BITMAP);
        bytes[29] = (log2_bit - log2_block) as u8;
        bytes
    }

    /// Size of a block, in bytes.
    pub fn block(&self) -> usize {
        (self.block_sectors * SECTOR) as usize
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.provided / self.block_sectors
    }

    /// Size of a journal entry, in bytes: the sector's number, the last bytes of each sector of the block, its tag.
    pub fn entry(&self) -> usize {
        (8 + 8 * self.block_sectors as usize + self.tag).next_multiple_of(8)
    }

    /// Blocks per journal section.
    pub fn section_entries(&self) -> u32 {
        (((SECTOR as usize - COMMIT_ID) / self.entry()) as u64 * ENTRY_SECTORS) as u32
    }

    /// Sectors per journal section.
    pub fn section_sectors(&self) -> u64 {
        ENTRY_SECTORS + u64::from(self.section_entries()) * self.block_sectors
    }

    /// Offset of a journal section, in bytes.
    pub fn section_at(&self, section: u32) -> u64 {
        SUPERBLOCK as u64 + u64::from(section) * self.section_sectors() * SECTOR
    }

    /// Offset of a block, in bytes.
    pub fn data_at(&self, block: u64) -> u64 {
        let (area, into) = self.area(block);
        let before = (area << self.log2_interleave) + (area + 1) * self.tag_run;
        (self.initial_sectors() + before + into * self.block_sectors) * SECTOR
    }

    /// Offset of a block's tag, in bytes. The tags of the next blocks of the same area follow it.
    pub fn tag_at(&self, block: u64) -> u64 {
        let (area, into) = self.area(block);
        let before = (area << self.log2_interleave) + area * self.tag_run;
        (self.initial_sectors() + before) * SECTOR + into * self.tag as u64
    }

    /// How many blocks from `block` on are contiguous, together with their tags.
    pub fn together(&self, block: u64) -> u64 {
        let per_area = (1 << self.log2_interleave) / self.block_sectors;
        per_area - block % per_area
    }

    fn area(&self, block: u64) -> (u64, u64) {
        let per_area = (1 << self.log2_interleave) / self.block_sectors;
        (block / per_area, block % per_area)
    }

    fn journal_sectors(&self) -> u64 {
        u64::from(self.sections) * self.section_sectors()
    }

    fn initial_sectors(&self) -> u64 {
        SUPERBLOCK as u64 / SECTOR + self.journal_sectors()
    }

    fn journal_fits(&self, len: u64) -> bool {
        let padded = self.initial_sectors() + PADDING / SECTOR;
        padded < len / SECTOR
            && self.initial_sectors() <= u32::MAX.into()
            && self.journal_sectors() * SECTOR <= MAX_JOURNAL
    }

    /// Whether the last sector lies within `len` bytes.
    fn data_fits(&self, len: u64) -> bool {
        self.provided > 0 && self.end() <= u128::from(len / SECTOR)
    }

    /// Number of sectors up to the end of the last one provided; there is at least one. Called with numbers from a
    /// disk.
    fn end(&self) -> u128 {
        let last = self.provided.saturating_sub(1);
        let (area, into) = (last >> self.log2_interleave, last & ((1 << self.log2_interleave) - 1));
        let before = u128::from(area << self.log2_interleave) + (u128::from(area) + 1) * u128::from(self.tag_run);
        u128::from(self.initial_sectors()) + before + u128::from(into) + 1
    }

    /// Whether Linux finds the tags of every area: it looks for them in units of the largest power of two that divides
    /// a run of tags, up to 128 sectors.
    fn is_aligned(&self) -> bool {
        let unit = BUFFER_SECTORS.min(1 << self.tag_run.trailing_zeros());
        (1u64 << self.log2_interleave).is_multiple_of(unit)
    }
}

/// Refuses, by name, features that matter only if dm-integrity computes the tags itself or protects its journal. `computed` is
/// whether it has finished computing tags.
fn supported(flags: u32, computed: bool) -> Result<()> {
    let known = FLAG_FIXED_PADDING | FLAG_FIXED_HMAC | if computed { FLAG_RECALCULATING } else { 0 };
    let what = match flags & !known {
        0 => return Ok(()),
        f if f & FLAG_INLINE != 0 => "tags in the disk's own sectors (dm-integrity's inline mode)".to_owned(),
        f if f & FLAG_JOURNAL_MAC != 0 => "a journal of dm-integrity with a MAC".to_owned(),
        f if f & FLAG_DIRTY_BITMAP != 0 => "dm-integrity's bitmap mode".to_owned(),
        f if f & FLAG_RECALCULATING != 0 => "tags still being computed by dm-integrity".to_owned(),
        f => format!("dm-integrity's flag {f:#x}"),
    };
    Err(Error::unsupported(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of Linux 6.1 and cryptsetup 2.6.1 for devices of 8 MiB with data at 1 MiB: tag, sector size, sectors provided,
    /// sections and size of the journal, from their superblocks and from `dmsetup table`.
    #[test]
    fn a_plan_is_what_linux_makes() {
        for (tag, block, provided, journal) in [
            (32, 512, 0x2fa0, 88),
            (64, 4096, 0x3530, 200),
            (48, 512, 0x2b78, 128),
            (28, 512, 0x30a0, 88),
            (32, 4096, 0x35f0, 264),
            (16, 512, 0x3378, 128),
        ] {
            let plan = Geometry::plan(7 << 20, 8 << 20, tag, block).expect("there is room");
            assert_eq!((plan.provided, plan.journal_sectors()), (provided, journal), "{tag} {block}");
            let bytes: [u8; SUPERBLOCK] = plan.superblock().try_into().expect("its size");
            assert_eq!(bytes[29], if block == 512 { 0x0f } else { 0x0c });
            assert_eq!(Geometry::parse(&bytes, 0, 7 << 20, Some((tag, block))).expect("it is good"), plan);
        }
        assert!(matches!(Geometry::plan(64 << 10, 64 << 10, 32, 512).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    }

    #[test]
    fn each_defect_has_its_error() {
        let plan = Geometry::plan(7 << 20, 8 << 20, 32, 4096).expect("there is room");
        let with = |at: usize, bytes: &[u8]| {
            let mut block: [u8; SUPERBLOCK] = plan.superblock().try_into().expect("its size");
            block[at..at + bytes.len()].copy_from_slice(bytes);
            match Geometry::parse(&block, 1 << 20, 7 << 20, Some((32, 4096))).map_err(|e| e.kind) {
                Err(ErrorKind::Malformed { field, offset, .. }) => format!("{field} {}", offset - (1 << 20)),
                Err(ErrorKind::Unsupported { what }) => what,
                other => format!("{other:?}"),
            }
        };
        assert_eq!(with(0, b"I"), "integrity magic 0");
        assert_eq!(with(8, &[0]), "integrity version 8");
        assert_eq!(with(8, &[6]), "dm-integrity version 6");
        assert_eq!(with(9, &[2]), "interleave sectors 9");
        assert_eq!(with(9, &[32]), "interleave sectors 9");
        assert_eq!(with(9, &[255]), "interleave sectors 9");
        assert_eq!(with(10, &[33]), "integrity tag size 10");
        assert_eq!(with(12, &[0]), "journal sections 12");
        assert_eq!(with(12, &[0xff; 4]), "journal sections 12");
        assert_eq!(with(16, &[0; 8]), "provided data sectors 16");
        assert_eq!(with(16, &[0xf9]), "provided data sectors 16");
        assert_eq!(with(16, &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), "provided data sectors 16");
        assert_eq!(with(16, &(plan.provided + 8).to_le_bytes()), "provided data sectors 16");
        assert_eq!(with(28, &[0]), "sectors per block 28");
        assert_eq!(with(28, &[200]), "sectors per block 28");
        assert_eq!(with(24, &[0x9]), "a journal of dm-integrity with a MAC");
        assert_eq!(with(24, &[0xa]), "tags still being computed by dm-integrity");
        let done = [&[0xa, 0, 0, 0, 3, 15, 0, 0][..], &plan.provided.to_le_bytes()].concat();
        assert!(with(24, &done).starts_with("Ok("), "all tags are made");
        let nearly = [&[0xa, 0, 0, 0, 3, 15, 0, 0][..], &(plan.provided - 8).to_le_bytes()].concat();
        assert_eq!(with(24, &nearly), "tags still being computed by dm-integrity");
        assert_eq!(with(24, &[0xc]), "dm-integrity's bitmap mode");
        assert_eq!(with(24, &[0x28]), "tags in the disk's own sectors (dm-integrity's inline mode)");
        assert_eq!(with(24, &[0x88]), "dm-integrity's flag 0x80");
    }

    #[test]
    fn no_two_things_are_in_the_same_place() {
        for (tag, block, log2_interleave) in [(28, 512, 8), (48, 4096, 10), (32, 1024, 15), (424, 4096, 7)] {
            let mut geometry = Geometry::new(tag, block / SECTOR, log2_interleave, true, 3, 0);
            geometry.provided = (5 << log2_interleave) + 8;
            let mut places = vec![(0, SUPERBLOCK as u64)];
            places.extend((0..3).map(|s| (geometry.section_at(s), geometry.section_sectors() * SECTOR)));
            for at in 0..geometry.blocks() {
                places.push((geometry.tag_at(at), tag as u64));
                places.push((geometry.data_at(at), block));
            }
            places.sort_unstable();
            assert!(places.windows(2).all(|p| p[0].0 + p[0].1 <= p[1].0), "{tag} {block}");
            let end = places.last().map_or(0, |p| p.0 + p.1);
            assert!(geometry.data_fits(end) && !geometry.data_fits(end - SECTOR));
        }
    }
}

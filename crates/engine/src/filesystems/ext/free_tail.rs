//! Where the free space at the end of an ext2, ext3 or ext4 begins.
//!
//! Source: Linux, Documentation/filesystems/ext4 ("The Super Block", "Block Group Descriptors", "Bitmaps") and
//! fs/ext4/balloc.c.

use std::ops::Range;

use crate::error::Result;
use crate::filesystems::detect;
use crate::filesystems::tail::{
    TailReport, count_bits, in_store, last_bit, malformed, not_clean, not_understood, read,
};
use crate::little_endian::{u16_at, u32_at};
use crate::store::Store;

/// Offset and length of the superblock, in bytes.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_LEN: usize = 1024;
/// The magic number, and its offset in the superblock.
const MARK: u16 = 0xef53;
const MARK_AT: usize = 56;

/// States: unmounted cleanly; errors were found; orphans are being deleted.
const STATE_VALID: u16 = 1;
const STATE_ERRORS: u16 = 2;
const STATE_ORPHANS: u16 = 4;

/// `s_feature_compat`: only two groups have copies of the superblock.
const SPARSE_SUPER2: u32 = 0x200;

/// `s_feature_incompat`: features that a program must support to read.
const FILETYPE: u32 = 0x2;
const RECOVER: u32 = 0x4;
const META_BG: u32 = 0x10;
const EXTENTS: u32 = 0x40;
const SIXTY_FOUR_BIT: u32 = 0x80;
const FLEX_BG: u32 = 0x200;
const EA_INODE: u32 = 0x400;
const CHECKSUM_SEED: u32 = 0x2000;
const LARGE_DIR: u32 = 0x4000;
const INLINE_DATA: u32 = 0x8000;
const ENCRYPT: u32 = 0x1_0000;
const CASEFOLD: u32 = 0x2_0000;
/// Features that do not change the meaning of the bitmaps, or that are supported here.
const INCOMPAT_KNOWN: u32 = FILETYPE
    | META_BG
    | EXTENTS
    | SIXTY_FOUR_BIT
    | FLEX_BG
    | EA_INODE
    | CHECKSUM_SEED
    | LARGE_DIR
    | INLINE_DATA
    | ENCRYPT
    | CASEFOLD;

/// `s_feature_ro_compat`: features that a program must support to write. Sparse superblocks, large files, B-tree directories, huge
/// files, many subdirectories, larger inodes, quota, projects, verity.
const SPARSE_SUPER: u32 = 0x1;
const GDT_CHECKSUM: u32 = 0x10;
const BIGALLOC: u32 = 0x200;
const METADATA_CHECKSUM: u32 = 0x400;
const ORPHANS: u32 = 0x1_0000;
const RO_COMPAT_KNOWN: u32 = SPARSE_SUPER
    | 0x2
    | 0x4
    | 0x8
    | GDT_CHECKSUM
    | 0x20
    | 0x40
    | 0x100
    | BIGALLOC
    | METADATA_CHECKSUM
    | 0x2000
    | 0x8000;

/// A group's flag: its block bitmap was never written, because the group only holds metadata.
const BLOCK_UNINIT: u16 = 2;

pub fn find(store: &dyn Store, _first: &[u8]) -> Result<Option<TailReport>> {
    if store.len() < SUPERBLOCK + SUPERBLOCK_LEN as u64 {
        return Ok(None);
    }
    let superblock = read(store, "superblock", SUPERBLOCK, SUPERBLOCK_LEN)?;
    if u16_at(&superblock, MARK_AT) != MARK {
        return Ok(None);
    }
    let fs = Fs::of(store, &superblock)?;
    let descriptors = (0..fs.groups).map(|group| fs.descriptor(group)).collect::<Result<Vec<_>>>()?;
    let metadata = fs.metadata(&descriptors);
    let mut last = metadata.iter().map(|m| m.end).max().unwrap_or(0).min(fs.blocks);
    let mut free = 0;
    for (group, descriptor) in (0..).zip(&descriptors) {
        let (used, free_here) = fs.look_at_bitmap(group, descriptor, &metadata)?;
        last = last.max(used);
        free += free_here;
    }
    if free != fs.free_clusters {
        let why = format!("{} clusters are free, but the superblock says {}", free, fs.free_clusters);
        return Err(not_clean(fs.name, &why));
    }
    Ok(Some(TailReport { filesystem: fs.name, used: last * fs.block, end: fs.blocks * fs.block, keeps_rest: false }))
}

/// The superblock's fields. Positions are block numbers.
struct Fs<'a> {
    store: &'a dyn Store,
    name: &'static str,
    /// The block size, in bytes.
    block: u64,
    blocks: u64,
    first_block: u64,
    blocks_per_group: u64,
    /// The number of blocks per bit of a bitmap.
    cluster: u64,
    groups: u64,
    inode_table_blocks: u64,
    /// The size of a group descriptor, in bytes.
    descriptor_len: u64,
    descriptors_per_block: u64,
    first_meta_group: u64,
    reserved_descriptor_blocks: u64,
    backup_groups: [u32; 2],
    free_clusters: u64,
    compat: u32,
    incompat: u32,
    ro_compat: u32,
}

/// The contents of a group descriptor.
struct Descriptor {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    /// The number of free clusters.
    free: u64,
    flags: u16,
}

impl<'a> Fs<'a> {
    fn of(store: &'a dyn Store, s: &[u8]) -> Result<Self> {
        let revision = u32_at(s, 76);
        // Revision 0 has no features, so the feature fields are meaningless.
        let feature = |at| if revision == 0 { 0 } else { u32_at(s, at) };
        let (compat, incompat, ro_compat) = (feature(92), feature(96), feature(100));
        let name = detect::ext_kind_of(compat, incompat, ro_compat).name();
        check_clean(s, name, incompat, ro_compat)?;
        let unknown = (incompat & !INCOMPAT_KNOWN, ro_compat & !RO_COMPAT_KNOWN);
        if unknown != (0, 0) || revision > 1 {
            let what = format_args!("unsupported features ({:#x}, {:#x})", unknown.0, unknown.1).to_string();
            return Err(not_understood(name, what));
        }
        let wrong = |field, at: usize, what: String| malformed(field, SUPERBLOCK + at as u64, what);
        let (log_block, log_cluster) = (u32_at(s, 24), u32_at(s, 28));
        if log_block > 6 {
            return Err(wrong("size of a block", 24, format!("2^{log_block} KiB")));
        }
        let block = 1024u64 << log_block;
        let bigalloc = ro_compat & BIGALLOC != 0;
        if log_cluster < log_block || log_cluster > 20 || !bigalloc && log_cluster != log_block {
            return Err(wrong("size of a cluster", 28, format!("2^{log_cluster} KiB")));
        }
        let cluster = 1u64 << (log_cluster - log_block);
        let wide = incompat & SIXTY_FOUR_BIT != 0;
        let high = |at: usize| if wide { u64::from(u32_at(s, at)) << 32 } else { 0 };
        let blocks = u64::from(u32_at(s, 4)) | high(336);
        let (first_block, per_group) = (u64::from(u32_at(s, 20)), u64::from(u32_at(s, 32)));
        let bytes = blocks.checked_mul(block);
        in_store(store, "number of blocks", 0, bytes.ok_or_else(|| wrong("number of blocks", 4, "too large".into()))?)?;
        let per_bitmap = block * 8;
        if per_group < 256 || !per_group.is_multiple_of(8 * cluster) || per_group / cluster > per_bitmap {
            return Err(wrong("blocks per group", 32, format!("{per_group}")));
        }
        if u64::from(u32_at(s, 36)) * cluster != per_group {
            return Err(wrong("clusters per group", 36, format!("{}", u32_at(s, 36))));
        }
        // The superblock is in the first block of the file system.
        if first_block != u64::from(block == 1024 && !bigalloc) || blocks <= first_block {
            return Err(wrong("first block", 20, format!("{first_block} of {blocks}")));
        }
        let inodes_per_group = u64::from(u32_at(s, 40));
        let inode = if revision == 0 { 128 } else { u64::from(u16_at(s, 88)) };
        if inodes_per_group == 0 || inodes_per_group > per_bitmap || !inode.is_power_of_two() || inode > block {
            return Err(wrong("inodes", 40, format!("{inodes_per_group} in a group, of {inode} bytes")));
        }
        let descriptor_len = if wide { u64::from(u16_at(s, 254)) } else { 32 };
        if wide && (descriptor_len < 64 || !descriptor_len.is_power_of_two() || descriptor_len > 1024) {
            return Err(wrong("size of a group descriptor", 254, format!("{descriptor_len} bytes")));
        }
        let inode_table_blocks = (inodes_per_group * inode).div_ceil(block);
        if inode_table_blocks >= per_group {
            return Err(wrong("inodes", 40, format!("{inodes_per_group} do not fit in a group")));
        }
        Ok(Self {
            store,
            name,
            block,
            blocks,
            first_block,
            blocks_per_group: per_group,
            cluster,
            groups: (blocks - first_block).div_ceil(per_group),
            inode_table_blocks,
            descriptor_len,
            descriptors_per_block: block / descriptor_len,
            first_meta_group: u64::from(u32_at(s, 260)),
            reserved_descriptor_blocks: u64::from(u16_at(s, 206)),
            backup_groups: [u32_at(s, 588), u32_at(s, 592)],
            // The count is in blocks, whatever the cluster size.
            free_clusters: (u64::from(u32_at(s, 12)) | high(344)) / if bigalloc { cluster } else { 1 },
            compat,
            incompat,
            ro_compat,
        })
    }

    fn group_start(&self, group: u64) -> u64 {
        self.first_block + group * self.blocks_per_group
    }

    fn has_superblock(&self, group: u64) -> bool {
        let power_of = |base: u64| {
            std::iter::successors(Some(base), |n| n.checked_mul(base)).take_while(|n| *n <= group).any(|n| n == group)
        };
        match group {
            0 => true,
            _ if self.compat & SPARSE_SUPER2 != 0 => self.backup_groups.iter().any(|g| u64::from(*g) == group),
            1 => true,
            _ if self.ro_compat & SPARSE_SUPER == 0 => true,
            _ => [3, 5, 7].into_iter().any(power_of),
        }
    }

    /// Whether a group's descriptors are in its meta group instead of at the beginning.
    fn in_meta_group(&self, group: u64) -> bool {
        self.incompat & META_BG != 0 && group / self.descriptors_per_block >= self.first_meta_group
    }

    /// The block that holds a group's descriptor.
    fn descriptor_block(&self, group: u64) -> u64 {
        let block = group / self.descriptors_per_block;
        if !self.in_meta_group(group) {
            return self.first_block + 1 + block + u64::from(self.block == 1024 && self.first_block == 0);
        }
        let first = block * self.descriptors_per_block;
        // The descriptors are in the block after the superblock, if the group has a copy of it.
        let shift = u64::from(first == 0 && self.block == 1024 && self.first_block == 0);
        self.group_start(first) + u64::from(self.has_superblock(first)) + shift
    }

    fn descriptor(&self, group: u64) -> Result<Descriptor> {
        let at = self.descriptor_block(group) * self.block + group % self.descriptors_per_block * self.descriptor_len;
        let d = read(self.store, "group descriptor", at, self.descriptor_len as usize)?;
        let wide = d.len() >= 64;
        let number = |low: usize, high: usize| {
            u64::from(u32_at(&d, low)) | if wide { u64::from(u32_at(&d, high)) << 32 } else { 0 }
        };
        let free = u64::from(u16_at(&d, 12)) | if wide { u64::from(u16_at(&d, 44)) << 16 } else { 0 };
        let found = Descriptor {
            block_bitmap: number(0, 32),
            inode_bitmap: number(4, 36),
            inode_table: number(8, 40),
            free,
            flags: u16_at(&d, 18),
        };
        let tables = [(found.block_bitmap, 1), (found.inode_bitmap, 1), (found.inode_table, self.inode_table_blocks)];
        for (start, len) in tables {
            if start <= self.first_block || start.checked_add(len).is_none_or(|end| end > self.blocks) {
                return Err(malformed("group descriptor", at, format!("block {start} is not in group {group}")));
            }
        }
        Ok(found)
    }

    /// The blocks of all metadata at known positions, sorted by their start.
    fn metadata(&self, descriptors: &[Descriptor]) -> Vec<Range<u64>> {
        let of = |(group, d): (u64, &Descriptor)| {
            let start = self.group_start(group);
            [
                start..self.copies_end(group).max(start),
                d.block_bitmap..d.block_bitmap + 1,
                d.inode_bitmap..d.inode_bitmap + 1,
                d.inode_table..d.inode_table + self.inode_table_blocks,
            ]
        };
        let mut all: Vec<_> = (0..).zip(descriptors).flat_map(of).filter(|blocks| !blocks.is_empty()).collect();
        all.sort_by_key(|blocks| blocks.start);
        all
    }

    /// The end of the copies of the superblock and group descriptors at the beginning of a group (Linux,
    /// fs/ext4/balloc.c, `ext4_num_base_meta_clusters` and `ext4_bg_num_gdb`).
    fn copies_end(&self, group: u64) -> u64 {
        let superblock = u64::from(self.has_superblock(group));
        let descriptors = if self.in_meta_group(group) {
            let into = group % self.descriptors_per_block;
            u64::from(into <= 1 || into == self.descriptors_per_block - 1)
        } else if superblock == 0 {
            0
        } else {
            let all = self.groups.div_ceil(self.descriptors_per_block);
            let here = if self.incompat & META_BG != 0 { all.min(self.first_meta_group) } else { all };
            here + self.reserved_descriptor_blocks
        };
        match superblock + descriptors {
            0 => 0,
            count => self.group_start(group) + count,
        }
    }

    /// The end of the last block that a group's bitmap marks as in use, and the number of free clusters. That number must equal the
    /// count in the descriptor: each confirms the other.
    fn look_at_bitmap(&self, group: u64, descriptor: &Descriptor, metadata: &[Range<u64>]) -> Result<(u64, u64)> {
        let start = self.group_start(group);
        let blocks = self.blocks_per_group.min(self.blocks - start);
        let clusters = blocks.div_ceil(self.cluster);
        let never_written =
            self.ro_compat & (GDT_CHECKSUM | METADATA_CHECKSUM) != 0 && descriptor.flags & BLOCK_UNINIT != 0;
        if never_written {
            // The group holds only metadata, most of it at known positions. The count must match.
            return match self.uninit_used(group, clusters, metadata) {
                used if used + descriptor.free == clusters => Ok((0, descriptor.free)),
                used => Err(self.count_differs(group, clusters.saturating_sub(used), descriptor.free)),
            };
        }
        let bitmap =
            read(self.store, "block bitmap", descriptor.block_bitmap * self.block, clusters.div_ceil(8) as usize)?;
        let free = clusters - count_bits(&bitmap, clusters);
        if free != descriptor.free {
            return Err(self.count_differs(group, free, descriptor.free));
        }
        let last = last_bit(&bitmap, clusters);
        Ok((last.map_or(0, |bit| (start + (bit + 1) * self.cluster).min(self.blocks)), free))
    }

    /// The number of clusters in use in a group whose bitmap was never written. They hold metadata, which with flexible groups may
    /// belong to other groups.
    fn uninit_used(&self, group: u64, clusters: u64, metadata: &[Range<u64>]) -> u64 {
        let start = self.group_start(group);
        let end = start + clusters * self.cluster;
        let mut used = vec![0; clusters.div_ceil(8) as usize];
        // No metadata are longer than a group: those that begin more than a group earlier end before this one.
        let first = metadata.partition_point(|m| m.start + self.blocks_per_group < start);
        for blocks in metadata[first..].iter().take_while(|m| m.start < end) {
            let (from, to) = (blocks.start.max(start), blocks.end.min(end).max(start));
            for cluster in (from - start) / self.cluster..(to - start).div_ceil(self.cluster) {
                used[(cluster / 8) as usize] |= 1 << (cluster % 8);
            }
        }
        count_bits(&used, clusters)
    }

    fn count_differs(&self, group: u64, free: u64, recorded: u64) -> crate::error::Error {
        not_clean(self.name, &format!("{free} clusters of group {group} are free, but its descriptor says {recorded}"))
    }
}

fn check_clean(s: &[u8], name: &str, incompat: u32, ro_compat: u32) -> Result<()> {
    let state = u16_at(s, 58);
    if incompat & RECOVER != 0 {
        return Err(not_clean(name, "its journal has not been replayed"));
    }
    if state & (STATE_VALID | STATE_ERRORS | STATE_ORPHANS) != STATE_VALID {
        return Err(not_clean(name, "it was not unmounted, or errors were found in it"));
    }
    if ro_compat & ORPHANS != 0 || u32_at(s, 232) != 0 {
        return Err(not_clean(name, "deleted files still take space in it"));
    }
    Ok(())
}

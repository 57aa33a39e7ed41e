//! Where the free space at the end of a FAT12, FAT16 or FAT32 begins.

use super::boot_sector::{BootSector, Root, SIGNATURE, Width};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::tail::{TailReport, in_store, malformed, not_clean, not_understood, pieces, read};
use crate::store::Store;

/// The bit that Linux sets while the file system is mounted (uapi/linux/msdos_fs.h, `FAT_STATE_DIRTY`).
const STATE_DIRTY: u8 = 1;

/// The number of FAT entries read at a time: even, because two entries of FAT12 share a byte.
const PIECE: u64 = 1 << 18;

pub fn find(store: &dyn Store, first: &[u8]) -> Result<Option<TailReport>> {
    let jump = matches!(first[0], 0xeb | 0xe9);
    let boot = match BootSector::parse(first) {
        Err(Error { kind: ErrorKind::Malformed { .. }, .. }) => return Ok(None),
        boot => boot?,
    };
    if !jump || first[510..] != SIGNATURE || boot.tables > 2 {
        return Ok(None);
    }
    check(store, &boot)?;
    let last = last_used(store, &boot)?;
    if let Root::Cluster(root) = boot.root
        && last < Some(root)
    {
        return Err(malformed("cluster of the root directory", 44, "it is marked as free"));
    }
    let used = last.map_or(boot.data, |last| boot.cluster_at(last + 1));
    let end = boot.cluster_at(boot.clusters + 2);
    Ok(Some(TailReport { filesystem: boot.width.kind().name(), used, end, keeps_rest: false }))
}

fn check(store: &dyn Store, boot: &BootSector) -> Result<()> {
    let name = boot.width.kind().name();
    in_store(store, "number of sectors", 0, boot.len)?;
    let clusters = (boot.len - boot.data) / u64::from(boot.cluster);
    if clusters != u64::from(boot.clusters) {
        return Err(malformed("sectors per FAT", 22, format!("too few for {clusters} clusters")));
    }
    if boot.only_table.is_some() {
        return Err(not_understood(name, "only one FAT in use"));
    }
    if boot.state_byte & STATE_DIRTY != 0 {
        return Err(not_clean(name, "it was not unmounted"));
    }
    // Entry 0 repeats the media byte. The two highest bits of entry 1 mean: unmounted cleanly, and no error occurred.
    let start = read(store, "FAT", boot.table, 8)?;
    if start[0] != 0xf0 && start[0] < 0xf8 {
        return Err(malformed("FAT", boot.table, "it does not begin with a media byte"));
    }
    let fine = match boot.width {
        Width::Bits12 | Width::ExFat => 0,
        Width::Bits16 => 0xc000,
        Width::Bits32 => 0x0c00_0000,
    };
    match boot.width.value(1, &start[boot.width.place(1) as usize..]) & fine == fine {
        true => Ok(()),
        false => Err(not_clean(name, "it was not unmounted, or an error occurred")),
    }
}

/// The last cluster in use; clusters are numbered from 2 on. All copies of the FAT must agree.
fn last_used(store: &dyn Store, boot: &BootSector) -> Result<Option<u32>> {
    let width = boot.width;
    let mut last = None;
    for piece in pieces(0..u64::from(boot.clusters) + 2, PIECE) {
        let (begin, end) = (piece.start as u32, piece.end as u32);
        let at = width.place(begin);
        let size = (width.place(end - 1) - at) as usize + width.len();
        let fat = read(store, "FAT", boot.table + at, size)?;
        for copy in 1..u64::from(boot.tables) {
            if read(store, "FAT", boot.table + copy * boot.table_len + at, size)? != fat {
                return Err(not_clean(width.kind().name(), "its FATs differ"));
            }
        }
        let in_use = |cluster: &u32| width.value(*cluster, &fat[(width.place(*cluster) - at) as usize..]) != 0;
        last = (begin.max(2)..end).rev().find(in_use).or(last);
    }
    Ok(last)
}

//! Finds data that a store's owner would miss, before the store is overwritten with unreadable data.

use std::ops::Range;
use std::sync::Arc;

use super::{Look, content, look};
use crate::error::{Error, Result};
use crate::filesystems::{Kind, swap};
use crate::formats;
use crate::store::{SliceStore, Store};

/// Data worth keeping in the `area` of `store`, or in front of it and reaching into it, as the end of "it holds …". `None` for a
/// swap area, bytes that look random from the beginning, or zeros alone.
///
/// Random-looking bytes may be a volume without a signature, but what an earlier random key left looks the same.
///
/// # Errors
/// `Misuse` for an area that extends past the end; `Io`.
pub fn worth_keeping(store: &Arc<dyn Store>, area: Range<u64>) -> Result<Option<String>> {
    let len = area.end.checked_sub(area.start);
    let part = len.and_then(|len| SliceStore::new(Arc::clone(store), area.start, len).ok());
    let part: Arc<dyn Store> = Arc::new(part.ok_or_else(|| Error::misuse("the data extend past the end"))?);
    if area.start > 0
        && let Some(what) = around(store, area.start)?
    {
        return Ok(Some(what));
    }
    inside(&part)
}

/// Data that begin in front of the area and reach into it. A small file system that ends there does not: people create one for its
/// label and UUID.
fn around(store: &Arc<dyn Store>, end: u64) -> Result<Option<String>> {
    let seen = look(store)?;
    let small = match &seen.filesystem {
        Some(found) if matches!(found.kind, Kind::Ext2 | Kind::Ext3 | Kind::Ext4) => ext_len(&**store)? <= end,
        _ => false,
    };
    Ok(if small { None } else { named(&seen) })
}

/// The size of an ext file system from its superblock, in bytes (Linux, fs/ext4/ext4.h, `struct ext4_super_block`).
fn ext_len(store: &dyn Store) -> Result<u64> {
    let mut superblock = [0; 512];
    store.read_at(1024, &mut superblock)?;
    let number = |at: usize| u32::from_le_bytes(superblock[at..][..4].try_into().expect("four bytes"));
    // A block has 1 KiB times 2 to the power of `log`, and at most 64 KiB.
    let (blocks, log) = (u64::from(number(4)) | u64::from(number(0x150)) << 32, number(24));
    Ok(if log > 6 { u64::MAX } else { blocks.saturating_mul(1024 << log) })
}

fn inside(part: &Arc<dyn Store>) -> Result<Option<String>> {
    if swap::is_asleep(&**part)? {
        return Ok(Some("a hibernated system in a swap area".to_owned()));
    }
    let seen = look(part)?;
    if !seen.sure() && seen.filesystem.as_ref().is_some_and(|found| found.kind == Kind::Swap) {
        return Ok(None);
    }
    if let Some(what) = named(&seen) {
        return Ok(Some(what));
    }
    match content::look_at(&**part, 0, part.len().min(content::AT_A_PLACE))? {
        Look::Random => Ok(None),
        // If its beginning is empty, it may hold something further on.
        Look::Zeros => formats::occupied(&**part),
        Look::Ordered => Ok(Some("data of an unknown kind".to_owned())),
    }
}

/// Data with a known signature, file system or format.
fn named(seen: &super::Diagnosis) -> Option<String> {
    if let Some(mark) = &seen.mark {
        return Some(mark.what.clone());
    }
    if let Some(found) = &seen.filesystem {
        return Some(found.kind.described().to_owned());
    }
    if let Some(opinion) = seen.formats.iter().find(|o| matches!(o.verdict, formats::Verdict::Yes(_))) {
        return Some(format!("a {} volume", opinion.format));
    }
    if !seen.partitions.is_empty() || seen.partition_trouble.is_some() {
        return Some("a partition table".to_owned());
    }
    seen.remains.first().map(|remains| format!("remains of a {} volume", remains.format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::store::MemoryStore;

    const LEN: usize = 1 << 20;

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        random::fill(&mut bytes).expect("random bytes");
        bytes
    }

    fn kept(bytes: &[u8], from: u64) -> Option<String> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes.to_vec()));
        worth_keeping(&store, from..bytes.len() as u64).expect("it is read")
    }

    #[test]
    fn zeros_noise_and_swap_areas_are_not_missed() {
        assert_eq!(kept(&vec![0; LEN], 0), None);
        assert_eq!(kept(&noise(LEN), 0), None);
        let swap = MemoryStore::new(vec![0; LEN]);
        swap::make(&swap, 4096).expect("a swap area");
        let mut swap = swap.to_vec();
        swap[8192..8200].copy_from_slice(b"a page. ");
        assert_eq!(kept(&swap, 0), None);
        // An earlier key leaves noise at the beginning, whatever follows.
        let mut used = noise(4096);
        used.extend(b"something else. ".repeat((LEN - 4096) / 16));
        assert_eq!(kept(&used, 0), None);
        swap[4086..4096].copy_from_slice(b"S1SUSPEND\0");
        assert!(kept(&swap, 0).expect("refused").contains("hibernated"));
    }

    #[test]
    fn all_else_is_named() {
        let mut luks = noise(LEN);
        luks[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
        assert!(kept(&luks, 0).expect("refused").contains("LUKS2"));
        assert!(kept(&b"some text without any mark. ".repeat(40_000), 0).expect("refused").contains("unknown"));
        let mut far = vec![0; LEN];
        far[LEN - 5000..LEN - 4000].fill(b'x');
        assert!(kept(&far, 0).expect("refused").contains("unknown"));
        let mut table = noise(LEN);
        table[..512].fill(0);
        table[510..512].copy_from_slice(b"\x55\xaa");
        assert!(kept(&table, 0).is_some());
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0; 4096]));
        assert!(worth_keeping(&store, 0..4097).is_err());
    }

    #[test]
    fn what_is_in_front_counts_as_far_as_it_reaches() {
        let mut bytes = noise(LEN);
        bytes[..65_536].fill(0);
        assert_eq!(kept(&bytes, 65_536), None);
        // 64 blocks of 1 KiB, and then one more.
        let ext = |blocks: u32| {
            let mut bytes = bytes.clone();
            bytes[1024 + 4..][..4].copy_from_slice(&blocks.to_le_bytes());
            bytes[1024 + 40..][..4].copy_from_slice(&8u32.to_le_bytes());
            bytes[1024 + 56..][..2].copy_from_slice(b"\x53\xef");
            bytes
        };
        assert!(kept(&ext(64), 0).expect("refused").contains("ext2"));
        assert_eq!(kept(&ext(64), 65_536), None);
        assert!(kept(&ext(65), 65_536).expect("refused").contains("ext2"));
        bytes[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
        assert!(kept(&bytes, 65_536).is_some());
    }
}

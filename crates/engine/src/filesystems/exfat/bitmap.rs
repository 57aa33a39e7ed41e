//! The allocation bitmap: one bit per cluster, lowest bit first (section 7.1.5 of the specification).

use std::io;
use std::ops::Range;

use crate::filesystems::fat::pages::Pages;

/// The allocation bitmap, with its clusters numbered from 2.
pub struct Bitmap {
    pages: Pages,
    clusters: u32,
}

impl Bitmap {
    /// A bitmap for `clusters` clusters, whose bytes are in `pages`.
    pub fn new(pages: Pages, clusters: u32) -> Self {
        Self { pages, clusters }
    }

    pub fn is_free(&mut self, cluster: u32) -> io::Result<bool> {
        let (at, bit) = place(cluster);
        Ok(self.pages.bytes(at)?[0] & bit == 0)
    }

    pub fn set(&mut self, cluster: u32, free: bool) -> io::Result<()> {
        if self.is_free(cluster)? != free {
            let (at, bit) = place(cluster);
            self.pages.change(at, 1)?[0] ^= bit;
        }
        Ok(())
    }

    /// The first free cluster in this range.
    pub fn next_free(&mut self, among: Range<u32>) -> io::Result<Option<u32>> {
        let mut cluster = among.start;
        while cluster < among.end {
            let (at, bit) = place(cluster);
            let bytes = self.pages.bytes(at)?;
            // Ignore the bits before this cluster.
            let first = (bytes[0] | (bit - 1)).trailing_ones();
            if first < 8 {
                let found = (cluster - 2) / 8 * 8 + first + 2;
                return Ok((found < among.end).then_some(found));
            }
            let full = 1 + bytes[1..].iter().take_while(|byte| **byte == 0xff).count() as u32;
            cluster = ((cluster - 2) / 8 + full).saturating_mul(8).saturating_add(2);
        }
        Ok(None)
    }

    /// Counts the free clusters.
    pub fn free(&mut self) -> io::Result<u32> {
        let (mut used, mut at) = (0, 0);
        let len = u64::from(self.clusters).div_ceil(8);
        while at < len {
            let bytes = self.pages.bytes(at)?;
            let bytes = &bytes[..bytes.len().min((len - at) as usize)];
            used += bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
            at += bytes.len() as u64;
            // The bits after the last cluster are undefined.
            if at == len && !self.clusters.is_multiple_of(8) {
                used -= (bytes[bytes.len() - 1] >> (self.clusters % 8)).count_ones();
            }
        }
        Ok(self.clusters - used)
    }

    /// Writes changes. Returns whether there were any.
    pub fn write_out(&mut self) -> io::Result<bool> {
        self.pages.write_out()
    }
}

/// The offset of a cluster's byte in the bitmap, and the cluster's bit in this byte.
fn place(cluster: u32) -> (u64, u8) {
    (u64::from((cluster - 2) / 8), 1 << ((cluster - 2) % 8))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn what_is_free_is_found_and_counted() {
        // The bitmap is in two pieces, the second piece lying before the first, and covers 20 clusters more than one page has bits.
        let (page, clusters) = (12 << 10, 8 * (12 << 10) + 20u32);
        let store = Arc::new(MemoryStore::new(vec![0xff; 64 << 10]));
        let pages = Pages::new(store.clone(), vec![vec![(16 << 10, 10 << 10), (0, 4 << 10)]], 512);
        let mut bitmap = Bitmap::new(pages, clusters);
        assert_eq!((bitmap.free().expect("counted"), bitmap.next_free(2..clusters + 2).expect("read")), (0, None));
        let free = [2, 9, 10, 700, 8 * page + 1, 8 * page + 2, clusters + 1];
        for cluster in free {
            bitmap.set(cluster, true).expect("set");
        }
        let mut found = Vec::new();
        let mut from = 2;
        while let Some(cluster) = bitmap.next_free(from..clusters + 2).expect("read") {
            found.push(cluster);
            from = cluster + 1;
        }
        assert_eq!((&found[..], bitmap.free().expect("counted")), (&free[..], 7));
        assert_eq!(bitmap.next_free(11..700).expect("read"), None);
        assert!(bitmap.write_out().expect("written") && !bitmap.write_out().expect("nothing to do"));
        let bytes = store.to_vec();
        let last = (u64::from(clusters - 1) / 8 - (10 << 10)) as usize;
        assert_eq!((bytes[16 << 10], bytes[last]), (0b0111_1110, 0xff ^ 1 << ((clusters - 1) % 8)));
        bitmap.set(9, false).expect("set");
        assert_eq!(bitmap.next_free(3..clusters).expect("read"), Some(10));
    }
}

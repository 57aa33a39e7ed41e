//! The file allocation table: the successor of each cluster. It is cached in pages, and changes stay in memory until they are
//! written out.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::boot_sector::{BootSector, Width};
use super::pages::Pages;
use crate::filesystems::exfat::bitmap::Bitmap;
use crate::little_endian::{u16_at, u32_at};
use crate::store::Store;
use crate::trees::damaged;

/// The table's entry for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The cluster is free.
    Free,
    /// The number of the next cluster, which may not exist.
    Next(u32),
    /// The last cluster of its file.
    End,
    /// The cluster is unusable.
    Bad,
}

impl Width {
    /// The offset of an entry in the table.
    pub fn place(self, cluster: u32) -> u64 {
        match self {
            Self::Bits12 => u64::from(cluster) + u64::from(cluster / 2),
            Self::Bits16 => u64::from(cluster) * 2,
            Self::Bits32 | Self::ExFat => u64::from(cluster) * 4,
        }
    }

    /// The number of bytes at that offset that hold the entry.
    pub fn len(self) -> usize {
        if matches!(self, Self::Bits12 | Self::Bits16) { 2 } else { 4 }
    }

    /// The value of an entry, given the bytes at its offset. It has at most 28 bits, except with exFAT.
    pub fn value(self, cluster: u32, bytes: &[u8]) -> u32 {
        match self {
            Self::Bits12 if cluster.is_multiple_of(2) => u32::from(u16_at(bytes, 0)) & 0xfff,
            Self::Bits12 => u32::from(u16_at(bytes, 0)) >> 4,
            Self::Bits16 => u16_at(bytes, 0).into(),
            // The highest four bits are reserved.
            Self::Bits32 => u32_at(bytes, 0) & 0x0fff_ffff,
            Self::ExFat => u32_at(bytes, 0),
        }
    }
}

/// How a chain of clusters ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainEnd {
    /// With an end mark.
    Sound,
    /// At a number outside the table.
    Outside(u32),
    /// At a free cluster, which is not part of the chain.
    Free(u32),
    /// At a cluster marked as bad.
    Bad(u32),
}

/// The table, with all its copies.
pub struct Table {
    width: Width,
    clusters: u32,
    /// The offset of the copy that is read.
    begin: u64,
    pages: Pages,
    /// The bitmap of exFAT, where the table does not record which clusters are in use.
    pub bitmap: Option<Bitmap>,
    /// The cluster at which the search for a free one begins.
    pub hint: u32,
    /// The number of free clusters, once known.
    free: Option<u32>,
}

impl Table {
    /// The table of the file system described by `boot`.
    pub fn new(store: Arc<dyn Store>, boot: &BootSector) -> Self {
        let numbers = boot.only_table.map_or(0..boot.tables, |only| only..only + 1);
        let copies: Vec<_> =
            numbers.map(|n| vec![(boot.table + u64::from(n) * boot.table_len, boot.table_len)]).collect();
        Self {
            width: boot.width,
            clusters: boot.clusters,
            begin: copies[0][0].0,
            pages: Pages::new(store, copies, boot.sector),
            bitmap: None,
            hint: 2,
            free: None,
        }
    }

    /// The successor of a cluster, which must exist.
    pub fn get(&mut self, cluster: u32) -> io::Result<Link> {
        let value = self.raw(cluster)?;
        let (bad, end) = match self.width {
            Width::Bits12 => (0xff7, 0xff8),
            Width::Bits16 => (0xfff7, 0xfff8),
            Width::Bits32 => (0x0fff_fff7, 0x0fff_fff8),
            Width::ExFat => (0xffff_fff7, 0xffff_fff8),
        };
        Ok(match value {
            0 => Link::Free,
            v if v >= end => Link::End,
            v if v == bad => Link::Bad,
            v => Link::Next(v),
        })
    }

    /// Sets the successor of a cluster, in memory. Updates the count of free clusters.
    pub fn set(&mut self, cluster: u32, link: Link) -> io::Result<()> {
        let was_free = self.is_free(cluster)?;
        let value = match link {
            Link::Free => 0,
            Link::Next(next) => next,
            Link::End => 0xffff_ffff,
            Link::Bad => 0xffff_fff7,
        };
        // exFAT ignores the table entry of a cluster that the bitmap marks as free.
        if self.bitmap.is_none() || link != Link::Free {
            self.set_raw(cluster, value)?;
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.set(cluster, link == Link::Free)?;
        }
        if let Some(free) = &mut self.free {
            *free = free.saturating_add(u32::from(link == Link::Free && !was_free));
            *free = free.saturating_sub(u32::from(link != Link::Free && was_free));
        }
        Ok(())
    }

    /// Whether a cluster is free to be allocated.
    pub fn is_free(&mut self, cluster: u32) -> io::Result<bool> {
        match &mut self.bitmap {
            Some(bitmap) => bitmap.is_free(cluster),
            None => Ok(self.raw(cluster)? == 0),
        }
    }

    /// The first free cluster in this range.
    fn next_free(&mut self, among: Range<u32>) -> io::Result<Option<u32>> {
        if let Some(bitmap) = &mut self.bitmap {
            return bitmap.next_free(among);
        }
        for cluster in among {
            if self.raw(cluster)? == 0 {
                return Ok(Some(cluster));
            }
        }
        Ok(None)
    }

    /// The bit of entry 1 that marks a clean unmount (`ClnShutBitMask` of the specification). FAT12 and exFAT have no such bit.
    fn clean_bit(&self) -> u32 {
        match self.width {
            Width::Bits12 | Width::ExFat => 0,
            Width::Bits16 => 0x8000,
            Width::Bits32 => 0x0800_0000,
        }
    }

    /// Whether the table says that the file system was unmounted cleanly.
    pub fn clean(&mut self) -> io::Result<bool> {
        Ok(self.raw(1)? & self.clean_bit() == self.clean_bit())
    }

    /// Sets or clears the clean mark, in memory.
    pub fn set_clean(&mut self, clean: bool) -> io::Result<()> {
        let (value, bit) = (self.raw(1)?, self.clean_bit());
        if bit == 0 {
            return Ok(());
        }
        self.set_raw(1, if clean { value | bit } else { value & !bit })
    }

    /// The chain of clusters that begins at `first`.
    ///
    /// # Errors
    /// Damage: a cluster that does not exist or is free, a loop, or more than `most` clusters.
    pub fn chain(&mut self, first: u32, most: u32) -> io::Result<Chain> {
        let (chain, end) = self.trace(first, most)?;
        let what = match end {
            ChainEnd::Sound => return Ok(chain),
            ChainEnd::Outside(cluster) => (cluster, format!("a file uses cluster {cluster}, which does not exist")),
            ChainEnd::Free(cluster) => (cluster, format!("a file uses cluster {cluster}, which is marked as free")),
            ChainEnd::Bad(cluster) => (cluster, format!("a file uses cluster {cluster}, which is marked as bad")),
        };
        Err(self.wrong(what.0, what.1))
    }

    /// The chain of clusters from `first` on, and how it ends.
    ///
    /// # Errors
    /// Damage: a loop, or more than `most` clusters.
    pub fn trace(&mut self, first: u32, most: u32) -> io::Result<(Chain, ChainEnd)> {
        let mut chain = Chain::default();
        // Brent's algorithm: meeting the marked cluster again means a loop; the mark moves on at powers of two.
        let (mut marked, mut move_at) = (first, 1);
        let mut cluster = first;
        loop {
            if !(2..self.clusters + 2).contains(&cluster) {
                return Ok((chain, ChainEnd::Outside(cluster)));
            }
            if chain.count >= most {
                return Err(self.wrong(first, format!("the file that begins at cluster {first} has too many clusters")));
            }
            let link = self.get(cluster)?;
            if link == Link::Free {
                return Ok((chain, ChainEnd::Free(cluster)));
            }
            chain.push(cluster);
            cluster = match link {
                Link::Next(next) => next,
                Link::Bad => return Ok((chain, ChainEnd::Bad(cluster))),
                Link::End | Link::Free => return Ok((chain, ChainEnd::Sound)),
            };
            if cluster == marked {
                return Err(self.wrong(cluster, format!("the clusters of a file form a loop at {cluster}")));
            }
            if chain.count == move_at {
                (marked, move_at) = (cluster, move_at.saturating_mul(2));
            }
        }
    }

    /// The chain of `count` contiguous clusters from `first` on.
    ///
    /// # Errors
    /// Damage: a cluster that does not exist, or more than `most`.
    pub fn contiguous(&self, first: u32, count: u64, most: u32) -> io::Result<Chain> {
        let end = u64::from(first) + count;
        if first < 2 || count > most.into() || end > u64::from(self.clusters) + 2 {
            return Err(self.wrong(first, format!("a file has {count} clusters from cluster {first} on")));
        }
        let count = count as u32;
        let run = Run { index: 0, cluster: first, len: count };
        Ok(Chain { runs: if count == 0 { Vec::new() } else { vec![run] }, count })
    }

    /// Allocates `count` free clusters, preferably after `near`, and links them, in memory. Allocates none if there are too few.
    ///
    /// # Errors
    /// `StorageFull`.
    pub fn take(&mut self, count: u32, near: Option<u32>) -> io::Result<Vec<u32>> {
        let start = near.map_or(self.hint, |c| c + 1);
        let start = if (2..self.clusters + 2).contains(&start) { start } else { 2 };
        let mut taken = Vec::new();
        for mut among in [start..self.clusters + 2, 2..start] {
            while taken.len() < count as usize
                && let Some(cluster) = self.next_free(among.clone())?
            {
                taken.push(cluster);
                among.start = cluster + 1;
            }
        }
        if taken.len() < count as usize {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the file system is full"));
        }
        for pair in taken.windows(2) {
            self.set(pair[0], Link::Next(pair[1]))?;
        }
        if let Some(last) = taken.last() {
            self.set(*last, Link::End)?;
            self.hint = last + 1;
        }
        Ok(taken)
    }

    /// The number of free clusters. The first call reads the whole table, unless `assume` was called.
    pub fn free(&mut self) -> io::Result<u32> {
        if let Some(free) = self.free {
            return Ok(free);
        }
        let free = match &mut self.bitmap {
            Some(bitmap) => bitmap.free()?,
            // An exFAT without a bitmap is not written.
            None if self.width == Width::ExFat => 0,
            None => {
                let mut free = 0;
                for cluster in 2..self.clusters + 2 {
                    free += u32::from(self.raw(cluster)? == 0);
                }
                free
            }
        };
        self.free = Some(free);
        Ok(free)
    }

    /// Sets the count of free clusters from another source.
    pub fn assume(&mut self, free: u32) {
        self.free = Some(free);
    }

    /// Number of free clusters, if known.
    pub fn known_free(&self) -> Option<u32> {
        self.free
    }

    /// Writes changes to every copy. Returns whether there were any.
    ///
    /// # Errors
    /// Those of the store; all changes then remain to be written.
    pub fn write_out(&mut self) -> io::Result<bool> {
        let bitmap = self.bitmap.as_mut().map_or(Ok(false), Bitmap::write_out)?;
        Ok(self.pages.write_out()? || bitmap)
    }

    fn raw(&mut self, cluster: u32) -> io::Result<u32> {
        Ok(self.width.value(cluster, self.pages.bytes(self.width.place(cluster))?))
    }

    fn set_raw(&mut self, cluster: u32, value: u32) -> io::Result<()> {
        let width = self.width;
        let bytes = self.pages.change(width.place(cluster), width.len())?;
        let new = value.to_le_bytes();
        match width {
            Width::Bits12 if cluster.is_multiple_of(2) => {
                bytes[0] = new[0];
                bytes[1] = bytes[1] & 0xf0 | new[1] & 0x0f;
            }
            Width::Bits12 => {
                bytes[0] = bytes[0] & 0x0f | new[0] << 4;
                bytes[1] = new[0] >> 4 | new[1] << 4;
            }
            Width::Bits16 => bytes.copy_from_slice(&new[..2]),
            Width::Bits32 => {
                // The highest four bits are reserved.
                bytes[..3].copy_from_slice(&new[..3]);
                bytes[3] = bytes[3] & 0xf0 | new[3] & 0x0f;
            }
            Width::ExFat => bytes.copy_from_slice(&new),
        }
        Ok(())
    }

    fn wrong(&self, cluster: u32, what: String) -> io::Error {
        damaged("file allocation table", self.begin + self.width.place(cluster), what)
    }
}

/// A file's clusters in order, as runs of consecutive clusters.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    runs: Vec<Run>,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// The index of the run's first cluster in the file.
    index: u32,
    cluster: u32,
    len: u32,
}

impl Chain {
    /// Number of clusters.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Appends a cluster.
    pub fn push(&mut self, cluster: u32) {
        match self.runs.last_mut() {
            Some(run) if run.cluster + run.len == cluster => run.len += 1,
            _ => self.runs.push(Run { index: self.count, cluster, len: 1 }),
        }
        self.count += 1;
    }

    /// Cluster `index` of the file, and the length of the contiguous run that begins there.
    pub fn at(&self, index: u32) -> Option<(u32, u32)> {
        let run = self.runs[..self.runs.partition_point(|r| r.index <= index)].last()?;
        let past = index - run.index;
        (past < run.len).then(|| (run.cluster + past, run.len - past))
    }

    /// The first cluster.
    pub fn first(&self) -> Option<u32> {
        self.runs.first().map(|r| r.cluster)
    }

    /// The last cluster.
    pub fn last(&self) -> Option<u32> {
        self.runs.last().map(|r| r.cluster + r.len - 1)
    }

    /// All clusters.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.runs().flatten()
    }

    /// Runs of consecutive clusters, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u32>> {
        self.runs.iter().map(|r| r.cluster..r.cluster + r.len)
    }

    /// Removes all but the first `count` clusters, and returns the rest.
    pub fn cut(&mut self, count: u32) -> Self {
        let (mut kept, mut rest) = (Self::default(), Self::default());
        for run in &self.runs {
            let keep = count.saturating_sub(run.index).min(run.len);
            kept.append(run.cluster, keep);
            rest.append(run.cluster + keep, run.len - keep);
        }
        *self = kept;
        rest
    }

    fn append(&mut self, cluster: u32, len: u32) {
        if len > 0 {
            self.runs.push(Run { index: self.count, cluster, len });
            self.count += len;
        }
    }
}

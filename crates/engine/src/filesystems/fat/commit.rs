//! Makes changes durable, in an order that limits the damage of a crash.

use std::io;
use std::sync::{PoisonError, RwLock};

use super::boot_sector::Width;
use super::node::State;
use super::table::Link;
use crate::filesystems::exfat;

/// The most changed folder sectors that may wait in memory, and the unit for the limit of waiting clusters.
const MAY_WAIT: usize = 8192;

/// The mark for a mounted file system: the lowest bit of the boot sector's state byte. For exFAT see [`exfat::DIRTY`].
const IN_USE: u8 = 1;

/// FSInfo: signatures, the count of free clusters, and a hint for the next free one (section "FAT32 FSInfo Sector Structure" of the
/// specification).
const INFO_LEN: usize = 512;
const INFO_MARKS: [(usize, [u8; 4]); 3] = [(0, *b"RRaA"), (484, *b"rrAa"), (508, [0, 0, 0x55, 0xaa])];
const INFO_FREE: usize = 488;
const INFO_NEXT: usize = 492;

impl State {
    /// Whether both the boot sector and the table say that it was unmounted cleanly.
    pub fn was_clean(&mut self) -> io::Result<bool> {
        Ok(self.boot.state_byte & self.in_use() == 0 && self.table.clean()?)
    }

    /// The bit of the boot sector's state byte that marks the file system as mounted.
    fn in_use(&self) -> u8 {
        if self.boot.width == Width::ExFat { exfat::DIRTY } else { IN_USE }
    }

    /// Marks the file system as mounted before the first change.
    ///
    /// # Errors
    /// Those of the store; the error of an earlier failed change.
    pub fn begin(&mut self) -> io::Result<()> {
        self.nothing_lost()?;
        if self.marked {
            return Ok(());
        }
        // Count the free clusters now, because later steps rely on the count.
        self.table.free()?;
        if !self.was_marked {
            self.set_mark(true)?;
        }
        self.marked = true;
        // Write the repairs planned at opening before anything else changes.
        let done = self.write_sectors();
        if let Err(e) = &done {
            self.failed = Some(e.to_string());
        }
        done
    }

    /// Marks the file system as unmounted, if this program marked it as mounted. All changes must be durable.
    ///
    /// # Errors
    /// Those of the store; the error of an earlier failed change. The mark then stays.
    pub fn end(&mut self) -> io::Result<()> {
        self.nothing_lost()?;
        if !self.marked {
            return Ok(());
        }
        if !self.was_marked {
            self.set_mark(false)?;
        }
        self.marked = false;
        Ok(())
    }

    /// Whether enough changes wait to be worth writing.
    pub fn waits(&self) -> bool {
        self.sectors.len() > MAY_WAIT || self.joins.len().max(self.freed.len()) > MAY_WAIT * 16
    }

    /// Makes all changes durable. Holds `moving` while it frees clusters that may still be read.
    ///
    /// # Errors
    /// Those of the store. Afterwards the state of the store is unknown, so nothing can be changed any more. Every later call fails
    /// too, because its caller's changes may be among those lost.
    pub fn commit(&mut self, moving: &RwLock<()>) -> io::Result<()> {
        self.nothing_lost()?;
        if !self.marked {
            return Ok(());
        }
        let done = self.write_all(moving);
        if let Err(e) = &done {
            self.failed = Some(e.to_string());
        }
        done
    }

    /// Fails if changes could not be written earlier.
    fn nothing_lost(&self) -> io::Result<()> {
        let Some(why) = &self.failed else { return Ok(()) };
        let what = format!("writing stopped because an earlier write failed: {why}");
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, what))
    }

    fn write_all(&mut self, moving: &RwLock<()>) -> io::Result<()> {
        // Contents and new folders come first: no entry names them yet.
        if std::mem::take(&mut self.contents_written) {
            self.store.flush()?;
        }
        if self.table.write_out()? {
            self.store.flush()?;
        }
        if !self.joins.is_empty() {
            for (cluster, next) in std::mem::take(&mut self.joins) {
                self.table.set(cluster, Link::Next(next))?;
            }
            self.table.write_out()?;
            self.store.flush()?;
        }
        self.write_sectors()?;
        let mut written = false;
        if !self.freed.is_empty() {
            let _exclusive = moving.write().unwrap_or_else(PoisonError::into_inner);
            for cluster in std::mem::take(&mut self.freed).into_iter().flat_map(|(begin, end)| begin..end) {
                self.table.set(cluster, Link::Free)?;
            }
            written |= self.table.write_out()?;
        }
        written |= self.write_info()?;
        if written { self.store.flush() } else { Ok(()) }
    }

    fn write_sectors(&mut self) -> io::Result<()> {
        let last = std::mem::take(&mut self.last);
        for now in [false, true] {
            let mut some = false;
            for (at, bytes) in self.sectors.iter().filter(|(at, _)| last.contains(at) == now) {
                self.store.write_clobbering(*at, &mut bytes.clone())?;
                some = true;
            }
            if some {
                self.store.flush()?;
            }
        }
        self.sectors.clear();
        Ok(())
    }

    /// Sets or clears both marks for a mounted file system.
    fn set_mark(&mut self, in_use: bool) -> io::Result<()> {
        self.table.set_clean(!in_use)?;
        let state = self.boot.state_byte & !self.in_use() | if in_use { self.in_use() } else { 0 };
        self.store.write_clobbering(self.boot.state, &mut [state])?;
        if let (Width::ExFat, false, Some(free)) = (self.boot.width, in_use, self.table.known_free()) {
            let used = u64::from(self.boot.clusters - free) * 100 / u64::from(self.boot.clusters);
            self.store.write_clobbering(exfat::PERCENT, &mut [used as u8])?;
        }
        self.boot.state_byte = state;
        self.table.write_out()?;
        self.store.flush()
    }

    /// Reads the count of free clusters from FSInfo, if it is reliable.
    pub(super) fn read_info(&mut self) -> io::Result<()> {
        let Some(info) = self.info()? else { return Ok(()) };
        let number = |at: usize| u32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let (free, next) = (number(INFO_FREE), number(INFO_NEXT));
        if self.boot.has(next) {
            self.table.hint = next;
        }
        if free <= self.boot.clusters && !self.was_marked {
            self.table.assume(free);
            self.told_free = Some(free);
        }
        Ok(())
    }

    /// Writes the count of free clusters to FSInfo if it changed. Returns whether it was written.
    fn write_info(&mut self) -> io::Result<bool> {
        let free = self.table.known_free();
        if free == self.told_free {
            return Ok(false);
        }
        let (Some(at), Some(free), Some(mut info)) = (self.boot.info, free, self.info()?) else { return Ok(false) };
        info[INFO_FREE..INFO_FREE + 4].copy_from_slice(&free.to_le_bytes());
        info[INFO_NEXT..INFO_NEXT + 4].copy_from_slice(&self.table.hint.to_le_bytes());
        self.store.write_clobbering(at, &mut info)?;
        self.told_free = Some(free);
        Ok(true)
    }

    /// The FSInfo sector, if its signatures are valid.
    fn info(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(at) = self.boot.info else { return Ok(None) };
        let mut bytes = vec![0; INFO_LEN];
        self.store.read_at(at, &mut bytes)?;
        Ok(INFO_MARKS.iter().all(|(at, mark)| bytes[*at..].starts_with(mark)).then_some(bytes))
    }
}

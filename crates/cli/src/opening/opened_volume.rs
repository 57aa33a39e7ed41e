//! A volume that has been opened, and what is served of it.

use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::pool::Pool;
use claviger_engine::formats::Facts;
use claviger_engine::opening::OpenVolume;
use claviger_engine::store::SMALLEST_SECTOR;
use claviger_engine::volume::Mapping;
use claviger_engine::{Result, Store, Volume, filesystems};

use crate::opening::logical_volume::{LogicalVolumeArgs, smaller_sectors};
use crate::terminal::{advice, output};

/// A volume that has been opened.
pub struct OpenedVolume {
    pub volume: Volume,
    /// What is known about it.
    pub facts: Facts,
    /// Size of the file or device.
    pub stored: u64,
    /// What a person must know.
    pub warnings: Vec<String>,
    /// Header decryptions that were tried.
    pub trials: u64,
    /// How long that took.
    pub took: Duration,
    /// What the kernel needs to do the same, if that was asked for and it can.
    pub mapping: Option<Mapping>,
    /// What the header is in, where it is detached: nobody changes it for as long as the volume is open.
    pub _header: Option<Arc<dyn Store>>,
}

impl From<OpenVolume> for OpenedVolume {
    fn from(open: OpenVolume) -> Self {
        let OpenVolume { volume, facts, stored, warnings, trials, took, mapping, header, .. } = open;
        Self { volume, facts, stored, warnings: advice::texts(&warnings), trials, took, mapping, _header: header }
    }
}

impl OpenedVolume {
    /// Tells the warnings.
    pub fn warn(&self) {
        self.warnings.iter().for_each(|w| output::warn(w));
    }

    /// Its plaintext for other programs, or that of the logical volume in it, and its warnings told. Sectors are shown as large
    /// as the volume has them, unless something is inside that was made for smaller ones, which no disk of larger ones could
    /// hold.
    pub fn into_served(mut self, within: &LogicalVolumeArgs, to_write: bool) -> Result<Arc<dyn Store>> {
        if within.given() {
            self.warn();
            return within.within(Arc::new(self.with_threads().volume), to_write);
        }
        if let Some(inside) = self.smaller_inside() {
            self.volume = self.volume.with_sector_size(inside);
        }
        self.warn();
        Ok(Arc::new(self.with_threads().volume))
    }

    /// The size of sectors that what is inside was made for, if the volume has larger ones. Warns of it.
    pub fn smaller_inside(&mut self) -> Option<u64> {
        let own = self.volume.sector_size();
        if own == SMALLEST_SECTOR {
            return None;
        }
        // What cannot be read is no reason not to serve the rest: sectors with tags may never have been written.
        let inside = filesystems::sector_size(&self.volume).ok().flatten().filter(|inside| *inside < own);
        self.warnings.extend(inside.map(|inside| smaller_sectors(inside, own)));
        inside
    }

    /// With the threads of this machine, for large reads.
    pub fn with_threads(mut self) -> Self {
        // Between two large reads there is a write to standard output: an idle helper may sleep.
        let pool = Pool::for_this_machine(Duration::ZERO);
        self.volume = self.volume.with_pool(Arc::new(pool));
        self
    }
}

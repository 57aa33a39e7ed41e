//! An opened volume and its plaintext.

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
    /// Its format, cipher and sizes.
    pub facts: Facts,
    /// Size of the file or device.
    pub stored: u64,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Header decryptions that were tried.
    pub trials: u64,
    /// The time that these took.
    pub took: Duration,
    /// The parameters for dm-crypt, if they were requested and it supports the volume.
    pub mapping: Option<Mapping>,
    /// The detached header's store. It stays locked while this value lives.
    pub _header: Option<Arc<dyn Store>>,
}

impl From<OpenVolume> for OpenedVolume {
    fn from(open: OpenVolume) -> Self {
        let OpenVolume { volume, facts, stored, warnings, trials, took, mapping, header, .. } = open;
        Self { volume, facts, stored, warnings: advice::texts(&warnings), trials, took, mapping, _header: header }
    }
}

impl OpenedVolume {
    /// Prints the warnings.
    pub fn warn(&self) {
        self.warnings.iter().for_each(|w| output::warn(w));
    }

    /// The plaintext for other programs, or that of a logical volume in it; prints the warnings. Sectors have the volume's size,
    /// unless a file system inside was made for smaller ones: a disk with larger sectors could not hold it.
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

    /// The smaller sector size that the file system inside expects, if any. Adds a warning.
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

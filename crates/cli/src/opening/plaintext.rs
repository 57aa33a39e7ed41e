//! The plaintext of an open volume, as other programs see it.

use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::pool::Pool;
use claviger_engine::store::SMALLEST_SECTOR;
use claviger_engine::{Store, Volume, filesystems};

use crate::terminal::output;

/// The smaller sector size that the file system inside expects, if any, in bytes. Prints a warning about it.
pub fn smaller_sectors(store: &dyn Store) -> Option<u64> {
    let own = store.sector_size();
    if own == SMALLEST_SECTOR {
        return None;
    }
    // An unreadable sector does not prevent serving the rest: sectors with tags may never have been written.
    let inside = filesystems::sector_size(store).ok().flatten().filter(|inside| *inside < own)?;
    output::warn(&format!(
        "The file system expects {inside}-byte sectors, but the volume has {own}-byte ones. That works here, but \
         dm-crypt and cryptsetup cannot mount it. To fix it, copy the files out, create a file system with \
         {own}-byte sectors, and copy them back."
    ));
    Some(inside)
}

/// Gives the volume this machine's threads, for large reads.
pub fn with_threads(volume: Volume) -> Volume {
    // Idle helper threads may sleep: between two large reads there is a write to standard output.
    let pool = Pool::for_this_machine(Duration::ZERO);
    volume.with_pool(Arc::new(pool))
}

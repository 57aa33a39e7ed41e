//! The logical volume inside a volume that holds LVM2.

use std::sync::Arc;

use claviger_engine::Store;
use claviger_engine::logical_volumes::{self, Group, LogicalVolume};
use claviger_engine::store::MappedStore;

use crate::opening::plaintext::smaller_sectors;
use crate::terminal::output;

/// Which one.
#[derive(clap::Args, Clone, Default)]
pub struct LogicalVolumeArgs {
    /// The logical volume inside, if the volume holds LVM2: GROUP/VOLUME or VOLUME
    #[arg(long, value_name = "NAME")]
    logical_volume: Option<String>,
}

impl LogicalVolumeArgs {
    /// Whether an option names a logical volume.
    pub fn given(&self) -> bool {
        self.logical_volume.is_some()
    }

    /// The logical volume in `store`, or `store` itself if no option names one. Prints warnings. `to_write` says whether the
    /// caller will write to it.
    pub fn within(&self, store: Arc<dyn Store>, to_write: bool) -> claviger_engine::Result<Arc<dyn Store>> {
        let Some(name) = &self.logical_volume else { return Ok(store) };
        named(store, name, to_write)
    }
}

/// The logical volume of that name in `store`. Prints warnings. `to_write` says whether the caller will write to it.
///
/// # Errors
/// Those of [`logical_volumes::find`] and of opening it.
fn named(store: Arc<dyn Store>, name: &str, to_write: bool) -> claviger_engine::Result<Arc<dyn Store>> {
    let (group, volume) = logical_volumes::find(&*store, name)?;
    let mapped = volume.open(store)?;
    Ok(shown(&group, &volume, mapped, to_write))
}

/// The logical volume `GROUP/VOLUME` on those disks, each with a name for messages. Prints warnings.
///
/// # Errors
/// Those of [`logical_volumes::open_in`].
pub fn in_group(
    disks: &[(String, Arc<dyn Store>)],
    name: &str,
    to_write: bool,
) -> claviger_engine::Result<Arc<dyn Store>> {
    let (group, volume, mapped) = logical_volumes::open_in(disks, name)?;
    Ok(shown(&group, &volume, mapped, to_write))
}

/// Prints the warnings, and gives the volume the sector size of its file system.
fn shown(group: &Group, volume: &LogicalVolume, mapped: MappedStore, to_write: bool) -> Arc<dyn Store> {
    group.warnings.iter().for_each(|warning| output::warn(warning));
    if let Some(why) = volume.read_only.as_ref().filter(|_| to_write) {
        output::warn(&format!("{} is read-only: {why}.", volume.full_name()));
    }
    match smaller_sectors(&mapped) {
        Some(inside) => Arc::new(mapped.with_sector_size(inside)),
        None => Arc::new(mapped),
    }
}

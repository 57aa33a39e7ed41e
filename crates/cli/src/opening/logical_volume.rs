//! The logical volume inside a volume that holds LVM2.

use std::sync::Arc;

use claviger_engine::Store;
use claviger_engine::logical_volumes;

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
pub fn named(store: Arc<dyn Store>, name: &str, to_write: bool) -> claviger_engine::Result<Arc<dyn Store>> {
    let (group, volume) = logical_volumes::find(&*store, name)?;
    group.warnings.iter().for_each(|warning| output::warn(warning));
    let mapped = volume.open(store)?;
    if let Some(why) = volume.read_only.as_ref().filter(|_| to_write) {
        output::warn(&format!("{} is read-only: {why}.", volume.full_name()));
    }
    Ok(match smaller_sectors(&mapped) {
        Some(inside) => Arc::new(mapped.with_sector_size(inside)),
        None => Arc::new(mapped),
    })
}

//! A block device for the lab, whose contents will be lost.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Result};

use crate::opening::overwrite::Overwrite;

/// Fails unless the device may be overwritten, which takes `--force` and a confirmation even if it looks empty. A device that
/// is mounted or otherwise in use is always refused.
pub fn may_be_lost(device: &Path, overwrite: Overwrite) -> Result<()> {
    let metadata = fs::metadata(device).map_err(|e| Error::from(e).at(device))?;
    if !metadata.file_type().is_block_device() {
        return Err(Error::misuse("this is not a block device")
            .at(device)
            .hint("Files and folders cannot be used as one."));
    }
    overwrite.check(device, &FileStore::open(device, Access::ReadWrite)?, "device")
}

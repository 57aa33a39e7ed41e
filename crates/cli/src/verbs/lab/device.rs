//! A block device that the lab is to work on, and whose contents are lost.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Result};

use crate::opening::overwrite::Overwrite;

/// Fails unless it may be overwritten: by `--force` and an answer, even where it looks empty. What is mounted or otherwise in
/// use never may.
pub fn may_be_lost(device: &Path, overwrite: Overwrite) -> Result<()> {
    let metadata = fs::metadata(device).map_err(|e| Error::from(e).at(device))?;
    if !metadata.file_type().is_block_device() {
        return Err(Error::misuse("this is not a block device")
            .at(device)
            .hint("Files and folders cannot be used as one."));
    }
    overwrite.check(device, &FileStore::open(device, Access::ReadWrite)?, "device")
}

//! Whether a volume's data bypass the system's page cache.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use clap::builder::BoolishValueParser;
use claviger_engine::Store;
use claviger_engine::store::Bypass;

use crate::terminal::output;

/// Past the cache or through it.
#[derive(clap::Args, Clone, Default)]
pub struct DirectArgs {
    /// Bypass the system's page cache (O_DIRECT) [default: yes for block devices and for reencryption]
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    direct: Option<bool>,
}

impl DirectArgs {
    /// Makes a store bypass the cache if the option says so, or by `default`; `what` names the store in errors. The
    /// store lies at `path` and must not be in use yet.
    pub fn apply(&self, what: Bypass, default: bool, path: &Path, store: &dyn Store) {
        if self.direct.unwrap_or(default) && !store.bypass_cache(what) && self.direct == Some(true) {
            output::warn(&format!(
                "{}: its file system does not support direct I/O; the page cache is used.",
                path.display()
            ));
        }
    }
}

/// Whether `path` is a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

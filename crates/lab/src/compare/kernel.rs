//! Volumes that the kernel's device-mapper opens in the place of our engine.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use claviger_engine::volume::Mapping;
use claviger_engine::{Acceleration, Error, Result};
use claviger_serve::kernel::{self, Request};
use serde::Serialize;

use crate::transfer::FileDevice;

/// Whether the kernel's dm-crypt is measured beside our engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "measured", content = "why")]
pub enum Beside {
    /// It is.
    Yes,
    /// It is not, and why: a whole sentence.
    No(String),
}

impl Beside {
    /// Whether this process may set up mappings, and the kernel can be measured in the way that is asked for.
    pub fn here(queue_depth: usize, acceleration: Acceleration) -> Self {
        let why = if queue_depth > 1 {
            "its device is read and written by one request at a time".to_owned()
        } else if acceleration == Acceleration::Off {
            "it cannot be told to do without AES instructions".to_owned()
        } else {
            match kernel::available() {
                Ok(()) => return Self::Yes,
                Err(e) => e.kind.to_string(),
            }
        };
        Self::No(format!("The kernel's dm-crypt is not measured beside: {why}."))
    }
}

/// A mapping of the kernel over a loop device on `file`, around the page cache, which would hide what encryption costs. It is gone
/// when what is returned is dropped, or the process ends in whatever way.
///
/// # Errors
/// Those of [`kernel::attach`].
pub fn mapped(file: &Path, mapping: &Mapping) -> Result<FileDevice> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("claviger-lab-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let request = Request { name: &name, store: file, mapping, uuid: None, read_only: false };
    let attached = kernel::attach(&request)?;
    let device = FileDevice::open(&attached.device, true).map_err(|e| Error::from(e).at(&attached.device));
    // Whether or not it was opened.
    kernel::detach_when_unused(&name)?;
    device
}

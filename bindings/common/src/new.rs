//! New volumes.

use std::fs;
use std::path::Path;

use claviger_engine::internal::files;
use claviger_engine::spec::Cost;
use claviger_engine::store::FileStore;
use claviger_engine::{Credential, Error, Result, Spec, Store, formats};

use crate::{Job, Options, Secrets};

/// How a new volume is made, beside what [`Options`] say of its format, cipher, hash, PIM and keyfiles.
#[derive(Clone, Default)]
pub struct NewVolume {
    /// Bytes of the file.
    pub size: u64,
    /// Whether what is not used is left as zeros, so that everybody sees how much is in use.
    pub quick: bool,
    /// The label.
    pub label: Option<String>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// Size of the volume key, in bits.
    pub key_bits: Option<u32>,
    /// What protects the data against changes.
    pub integrity: Option<String>,
    /// The key derivation function.
    pub kdf: Option<String>,
    /// How long it is to take here, in milliseconds.
    pub kdf_time_ms: Option<u32>,
    /// Its iterations, exactly.
    pub kdf_iterations: Option<u32>,
    /// Its memory, in KiB.
    pub kdf_memory_kib: Option<u32>,
}

/// Makes a volume in a new file, which nobody else can read: VeraCrypt's, if no format is named. What exists is never overwritten, and
/// nothing is left behind if it fails.
///
/// # Errors
/// Those of [`FileStore::create`] and of [`claviger_engine::Format::create`].
pub fn create(path: &Path, new: &NewVolume, options: &Options, secrets: &Secrets, job: &Job) -> Result<()> {
    let format = formats::by_name(options.format.as_deref().unwrap_or("VeraCrypt"))?;
    let credentials = secrets.credentials(&options.keyfiles)?;
    // A volume that anybody opens, and that looks as if nobody could.
    if credentials.iter().all(Credential::is_empty) {
        return Err(Error::misuse("a new volume takes a password or a keyfile").at(path));
    }
    let cost = Cost {
        kdf: new.kdf.as_deref(),
        time_ms: new.kdf_time_ms,
        iterations: new.kdf_iterations,
        memory_kib: new.kdf_memory_kib,
        ..Cost::default()
    };
    let tell = |done, all| job.tell(done, all);
    let spec = Spec {
        cipher: options.cipher.as_deref(),
        hash: options.hash.as_deref(),
        pim: options.pim,
        cost,
        key_bits: new.key_bits,
        sector_size: new.sector_size,
        integrity: new.integrity.as_deref(),
        label: new.label.as_deref(),
        quick: new.quick,
        cancel: Some(&job.cancel),
        progress: Some(&tell),
        ..Spec::default()
    };
    let store = FileStore::create(path, new.size / 512 * 512)?;
    let created = format.create(&store, &spec, &credentials).and_then(|()| Ok(store.flush()?));
    let created = created.and_then(|()| Ok(files::sync_folder(path)?));
    created.map_err(|e| e.at(path)).inspect_err(|_| drop(fs::remove_file(path)))
}

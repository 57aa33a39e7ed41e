//! What this process serves, as `claviger list` sees it.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use claviger_engine::Store;
use claviger_engine::formats::Facts;
use claviger_engine::store::CountedStore;
use claviger_serve::sessions::{Process, Record, Status};

use crate::opening::remote;

/// What stands for a file system in an encrypted folder.
pub const FILES: &str = "files";

/// What the server says of itself. `locked` is there where its keys can be forgotten.
pub fn status(store: &CountedStore<Arc<dyn Store>>, locked: Option<&impl Fn() -> bool>) -> Status {
    let locked = locked.is_some_and(|locked| locked());
    Status { traffic: store.traffic(), damage_prevented: store.damage_prevented(), locked }
}

/// The record of a volume, or of a file that is not decrypted, which this process serves from now on.
pub fn record(path: &Path, facts: Option<&Facts>, size: u64) -> anyhow::Result<Record> {
    const NONE: &str = "none";
    Ok(Record {
        volume: remote::absolute(path)?,
        dir: None,
        uri: None,
        filesystem: None,
        format: facts.map_or(NONE, |facts| facts.format).to_owned(),
        cipher: facts.map_or(NONE, |facts| &facts.cipher).to_owned(),
        mode: facts.map_or(NONE, |facts| &facts.mode).to_owned(),
        size,
        read_only: false,
        since: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        server: Process::this()?,
        driver: None,
        loop_device: None,
        failure: None,
    })
}

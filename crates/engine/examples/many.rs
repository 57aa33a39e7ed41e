//! Opens many volumes in one process, and measures what that takes: `cargo run --release -p claviger-engine --example many COUNT`.
//!
//! They are of LUKS2, each with keys of its own, in memory. Prints what each takes of time and of memory, and how fast all of them are
//! read by turns, 64 KiB at a time, beside one of them alone. The limit on locked memory is that of whoever starts it (`prlimit
//! --memlock=…`).

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, Opening, Pool, Result, Secret, Spec, Store, Unlock, Volume, formats};

/// Bytes of a volume's data, and in front of them.
const DATA: u64 = 256 << 10;
const FRONT: u64 = 512 << 10;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

fn main() -> Result<()> {
    let count: usize = match std::env::args().nth(1).map(|count| count.parse()) {
        Some(Ok(count @ 1..)) => count,
        _ => return Err(Error::misuse("usage: many COUNT")),
    };
    open_and_read(count)
}

/// Does it all.
pub fn open_and_read(count: usize) -> Result<()> {
    let credentials = [Credential::Passphrase(Secret::copy_from(b"open sesame"))];
    let stores = (0..count).map(|_| new(&credentials)).collect::<Result<Vec<_>>>()?;
    // One pool for all: each would start threads of its own.
    let pool = Arc::new(Pool::for_this_machine(Duration::ZERO));
    let (before, start) = (memory(), Instant::now());
    let open = |store: Arc<dyn Store>| -> Result<Volume> {
        let opened = Opening::store(store).find()?.unlock(&Unlock::with(&credentials))?.bytes()?;
        Ok(opened.volume.with_pool(Arc::clone(&pool)))
    };
    let volumes = stores.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    let took = start.elapsed() / count as u32;
    let each = memory().map(|(name, bytes)| {
        let was = before.iter().find(|(before, _)| *before == name).map_or(0, |(_, was)| *was);
        format!("{name} {}", bytes.saturating_sub(was) / count as u64)
    });
    println!("{count} volumes: each took {took:?}; bytes of each: {}", each.join(", "));
    println!("GB/s: one {:.2}, all by turns {:.2}", rate(&volumes[..1])?, rate(&volumes)?);
    Ok(())
}

/// A new volume, which opens at once.
fn new(credentials: &[Credential]) -> Result<Arc<dyn Store>> {
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let spec = Spec { cost, data_offset: Some(FRONT), quick: true, ..Spec::default() };
    let store = Arc::new(MemoryStore::new(vec![0; (FRONT + DATA) as usize]));
    formats::by_name("LUKS2")?.create(&*store, &spec, credentials)?;
    Ok(store)
}

/// GB that are read in a second.
fn rate(volumes: &[Volume]) -> Result<f64> {
    const ALL: usize = 2 << 30;
    let mut buffer = vec![0; PIECE];
    let start = Instant::now();
    for number in 0..ALL / PIECE {
        let turn = (number / volumes.len()) as u64;
        volumes[number % volumes.len()].read_at(turn * PIECE as u64 % DATA, &mut buffer)?;
    }
    Ok(ALL as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// What this process has of each kind of memory, in bytes (proc_pid_status(5)).
fn memory() -> [(&'static str, u64); 3] {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["RssAnon", "VmLck", "VmSize"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        (name, kib.unwrap_or(0) << 10)
    })
}

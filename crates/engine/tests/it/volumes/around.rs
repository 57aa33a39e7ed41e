//! A store that is far away, with what is around kept: the same bytes, and few requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use claviger_engine::Store;
use claviger_engine::store::{AroundStore, CountedStore, MemoryStore};

const LEN: usize = (1 << 20) + 700;

fn some() -> Vec<u8> {
    (0..LEN).map(|i| (i / 251 + i) as u8).collect()
}

/// Of which one sector cannot be read.
struct Scratched(MemoryStore, u64);

impl Store for Scratched {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match offset < self.1 + 512 && self.1 < offset + out.len() as u64 {
            true => Err(io::Error::other("scratched")),
            false => self.0.read_at(offset, out),
        }
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

fn read(store: &dyn Store, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    store.read_at(at as u64, &mut out).expect("readable");
    out
}

#[test]
fn small_reads_make_few_requests() {
    let counted = Arc::new(CountedStore::new(Arc::new(MemoryStore::new(some()))));
    let around = AroundStore::new(Arc::clone(&counted) as _);
    let all = some();
    for at in (0..LEN - 4096).step_by(4096).chain([LEN - 300, 7, 131_000, LEN - 4096]) {
        let len = 4096.min(LEN - at);
        assert_eq!(read(&around, at, len), all[at..at + len], "at {at}");
    }
    assert_eq!(counted.traffic().read, LEN as u64, "each byte once");
    assert_eq!(read(&around, 5, 300_000), all[5..300_005]);
    assert!(around.read_at(LEN as u64 - 1, &mut [0; 2]).is_err());
}

#[test]
fn what_is_written_is_read() {
    let around = AroundStore::new(Arc::new(MemoryStore::new(some())));
    let mut model = some();
    for (n, at) in [0, 130_000, 131_071, 700_000, LEN - 9].into_iter().enumerate() {
        read(&around, at, 9);
        around.write_clobbering(at as u64, &mut [n as u8; 9]).expect("writable");
        model[at..at + 9].fill(n as u8);
        assert_eq!(read(&around, 0, LEN), model);
        let from = at.saturating_sub(200);
        assert_eq!(read(&around, from, 209), model[from..from + 209]);
    }
}

#[test]
fn what_cannot_be_read_costs_only_itself() {
    let around = AroundStore::new(Arc::new(Scratched(MemoryStore::new(some()), 200_192)));
    let all = some();
    assert_eq!(read(&around, 199_000, 1000), all[199_000..200_000]);
    assert_eq!(read(&around, 200_704, 512), all[200_704..201_216]);
    assert!(around.read_at(200_300, &mut [0; 4]).is_err());
}

/// Each thread has its own part of blocks that all share. It reads what it has written, no matter what the others do.
#[test]
fn nobody_reads_what_was_there_before_his_own_write() {
    let around = AroundStore::new(Arc::new(MemoryStore::new(vec![0; 1 << 20])));
    let writes = AtomicU64::new(0);
    thread::scope(|scope| {
        for me in 0..4u64 {
            let (around, writes) = (&around, &writes);
            scope.spawn(move || {
                for n in 0..2000u64 {
                    let at = (n % 7) * 150_000 + me * 16;
                    around.write_clobbering(at, &mut (n ^ (me << 32)).to_le_bytes()).expect("writable");
                    assert_eq!(read(around, at as usize, 8), (n ^ (me << 32)).to_le_bytes());
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(writes.into_inner(), 8000);
}

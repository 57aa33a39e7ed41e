//! What small random writes cost in a volume with tags, in time and in what is written to the store, beside the writes that dm-integrity
//! makes of the same requests: `tagged_writes FILE REQUESTS THREADS REQUESTS-PER-FLUSH SECTOR THEIR-WRITES THEIR-BYTES THEIR-FLUSHES`, the
//! last three in all. FILE is made, of 1 GiB, and stays. A flush for each 0 requests is one at the end.

use std::env;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::aead::AeadSpecification;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::volume::integrity;
use claviger_engine::{Acceleration, Layout, Result, Store, Volume};

const SIZE: u64 = 1 << 30;
const REQUEST: u64 = 4096;

/// Counts writes, their bytes, and flushes.
struct Counted {
    inner: FileStore,
    counts: [AtomicU64; 3],
}

impl Store for Counted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.counts[0].fetch_add(1, Relaxed);
        self.counts[1].fetch_add(data.len() as u64, Relaxed);
        self.inner.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.counts[2].fetch_add(1, Relaxed);
        self.inner.flush()
    }
    fn still_whole(&self) -> io::Result<()> {
        self.inner.still_whole()
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).expect("a number");
    let (path, requests, threads, per_flush, sector) =
        (Path::new(&words[0]), number(1), number(2), number(3), number(4));
    std::fs::File::create(path)?.set_len(SIZE)?;
    let store = || -> Result<Arc<Counted>> {
        Ok(Arc::new(Counted { inner: FileStore::open(path, Access::ReadWrite)?, counts: Default::default() }))
    };
    {
        let store = store()?;
        let cipher = AeadSpecification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
        let sectors = Sectors { size: sector as usize, ..Sectors::default() };
        let cipher = cipher.with_key(&[7; 96], sectors, Acceleration::On).expect("it fits");
        integrity::format(&*store, 0, SIZE, &*cipher, &mut |_, _| Ok(()))?;
        let area = integrity::open(&*store, 0, SIZE, cipher.tag_size(), cipher.sector_size())?;
        let layout = Layout::new(vec![integrity::segment(Arc::new(area), 0, cipher, true)?])?;
        let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout);
        // The first write of all moves what is in the journal, which is nothing.
        volume.write_clobbering(0, &mut [0; 512])?;
        volume.flush()?;
        run(
            "ours",
            &store,
            requests,
            threads,
            per_flush,
            &|random, nth| {
                let at = random % (volume.len() / REQUEST) * REQUEST;
                volume.write_clobbering(at, &mut vec![nth as u8; REQUEST as usize])
            },
            &|| volume.flush(),
        );
        let started = Instant::now();
        drop(volume);
        println!("closing: {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    }
    let store = store()?;
    let (writes, bytes, flushes) = (number(5), number(6), number(7));
    let (len, done) = (bytes / writes.max(1), AtomicU64::new(0));
    run(
        "dm-integrity's pattern",
        &store,
        requests,
        threads,
        0,
        &|random, _| {
            let nth = done.fetch_add(1, Relaxed);
            let of = |all: u64| (nth + 1) * all / requests - nth * all / requests;
            for i in 0..of(writes) {
                let at = random.wrapping_mul(i * 2 + 3) % ((SIZE - len) / 512) * 512;
                store.write_clobbering(at, &mut vec![i as u8; len as usize])?;
            }
            (0..of(flushes)).try_for_each(|_| store.flush())
        },
        &|| store.flush(),
    );
    Ok(())
}

/// Makes the requests on so many threads, and says what they took.
fn run(
    what: &str,
    store: &Counted,
    requests: u64,
    threads: u64,
    per_flush: u64,
    request: &(dyn Fn(u64, u64) -> io::Result<()> + Sync),
    flush: &(dyn Fn() -> io::Result<()> + Sync),
) {
    let counts = || [0, 1, 2].map(|i| store.counts[i].load(Relaxed));
    let (before, started) = (counts(), Instant::now());
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ (thread << 32);
                for nth in 1..=requests / threads {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    request(random, nth).expect("it is written");
                    if per_flush > 0 && nth % per_flush == 0 {
                        flush().expect("it is flushed");
                    }
                }
            });
        }
    });
    flush().expect("it is flushed");
    let seconds = started.elapsed().as_secs_f64();
    let [writes, bytes, flushes] = std::array::from_fn(|i| counts()[i] - before[i]);
    println!(
        "{what}: {:.0} requests/s; for each: {:.2} writes, {:.1} KiB, {:.3} flushes",
        requests as f64 / seconds,
        writes as f64 / requests as f64,
        bytes as f64 / 1024.0 / requests as f64,
        flushes as f64 / requests as f64
    );
}

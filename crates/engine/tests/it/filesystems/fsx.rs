//! Volumes under random operations, against a model.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::noise;
use claviger_crypto::ciphers::{aes::AES, serpent::SERPENT};
use claviger_crypto::modes::{TrueCryptCbc, Xts, xts};
use claviger_crypto::pool::Pool;
use claviger_engine::store::{MemoryStore, SliceStore};
use claviger_engine::{Acceleration, Layout, Payload, SectorCipher, Segment, Store, Volume};
use claviger_testkit::fsx::{Plan, StoreDisk, exercise, seed};

/// Where the data begin in the store, and the bytes before them.
const AT: usize = 4096 + 512;

fn xts(sector_size: usize) -> Arc<dyn SectorCipher> {
    let layer = |data, tweak| xts::Layer {
        data: SERPENT.with_key(&noise(32, data), Acceleration::On),
        tweak: AES.with_key(&noise(32, tweak), Acceleration::On),
    };
    Arc::new(Xts::new(vec![layer(1, 2)], sector_size))
}

fn cbc() -> Arc<dyn SectorCipher> {
    let seed = noise(32, 6).try_into().expect("32 bytes");
    Arc::new(TrueCryptCbc::outer(vec![AES.with_key(&noise(32, 5), Acceleration::On)], &seed, 512))
}

/// Three segments under one cipher, stored in another order, so that requests cross their borders.
fn layout(cipher: &Arc<dyn SectorCipher>, part: usize) -> Layout {
    let segment = |n: usize, stored: usize| Segment {
        at: (n * part) as u64,
        len: part as u64,
        stored_at: (AT + stored * part) as u64,
        payload: Payload::crypt(Arc::clone(cipher), (n * 1_000_000) as u64),
        writable: true,
    };
    Layout::new(vec![segment(0, 1), segment(1, 2), segment(2, 0)]).expect("a good layout")
}

/// A store of noise that is also where the exerciser's volumes lie, and what the volume holds at first.
fn begin(cipher: &Arc<dyn SectorCipher>, part: usize) -> (Arc<MemoryStore>, Vec<u8>) {
    let store = Arc::new(MemoryStore::new(noise(AT + 3 * part + 777, 8)));
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout(cipher, part));
    let mut model = vec![0; 3 * part];
    volume.read_at(0, &mut model).expect("a good read");
    (store, model)
}

fn around(store: &MemoryStore, part: usize) -> (Vec<u8>, Vec<u8>) {
    let all = store.to_vec();
    (all[..AT].to_vec(), all[AT + 3 * part..].to_vec())
}

#[test]
fn volumes_hold_what_was_written_whatever_the_requests() {
    const PART: usize = 96 << 10;
    for (cipher, pool) in [(xts(512), false), (xts(4096), false), (cbc(), false), (xts(512), true), (xts(4096), true)] {
        // Only requests of a megabyte and more are shared out over a pool.
        let part = if pool { 1 << 20 } else { PART };
        let (store, mut model) = begin(&cipher, part);
        let before = around(&store, part);
        let pool = pool.then(|| Arc::new(Pool::new(3, Duration::from_micros(20))));
        let open = || {
            let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout(&cipher, part));
            Ok(match &pool {
                Some(pool) => Arc::new(volume.with_pool(Arc::clone(pool))) as Arc<dyn Store>,
                None => Arc::new(volume),
            })
        };
        let mut disk = StoreDisk::new(open).expect("it opens");
        let mut plan = Plan::operations(seed(), if pool.is_some() { 150 } else { 3000 });
        if pool.is_some() {
            plan.longest = 3 << 20;
        }
        exercise(&mut disk, &mut model, &plan).unwrap_or_else(|f| panic!("{f}"));
        assert!(around(&store, part) == before, "bytes around the volume were written");
    }
}

/// Windows border on each other inside sectors: a sector's two halves belong to two threads.
#[test]
fn threads_that_write_parts_of_the_same_sectors_do_not_undo_each_other() {
    const PART: usize = 4096;
    const THREADS: usize = 4;
    for cipher in [xts(512), xts(4096), cbc()] {
        let (store, model) = begin(&cipher, PART);
        let volume: Arc<dyn Store> = Arc::new(Volume::new(store as Arc<dyn Store>, layout(&cipher, PART)));
        let window = 3 * PART / THREADS + 100;
        let seed = seed();
        thread::scope(|scope| {
            for n in 0..THREADS {
                let start = n * window;
                let len = window.min(model.len() - start);
                let mut model = model[start..][..len].to_vec();
                let slice = SliceStore::new(Arc::clone(&volume), start as u64, len as u64).expect("it is inside");
                let slice: Arc<dyn Store> = Arc::new(slice);
                scope.spawn(move || {
                    let mut disk = StoreDisk::new(|| Ok(Arc::clone(&slice))).expect("it opens");
                    let mut plan = Plan::operations(seed + n as u64, 4000);
                    plan.longest = 1500;
                    exercise(&mut disk, &mut model, &plan).unwrap_or_else(|f| panic!("{f}"));
                });
            }
        });
    }
}

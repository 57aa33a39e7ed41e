//! No key stays in a register of any thread, whichever kernel has worked. One test in a process of its own: it looks at all threads.

#[path = "it/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use claviger_crypto::ciphers::CIPHERS;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::modes::{Xts, xts};
use claviger_crypto::pool::Pool;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Acceleration, Layout, Payload, SectorCipher, Segment, Store, Volume};
use claviger_testkit::processes::{Memory, Registers, found};
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;
use support::noise;

/// Large enough for a request that is shared out over the threads of a pool.
const LEN: usize = 3 << 20;

/// One of each mode and of each source of initialisation vectors that keeps something of the key.
const SPECIFICATIONS: &[(&str, usize)] = &[
    ("aes-cbc-essiv:sha256", 32),
    ("aes-cbc-eboiv", 32),
    ("aes-cbc-elephant", 64),
    ("aes-cbc-tcw", 64),
    ("aes:64-cbc-lmk", 65 * 32),
    ("aes-lrw-benbi", 48),
    ("aes-ctr-plain64", 32),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("twofish-cbc-essiv:sha256", 32),
];

/// Makes a sector cipher: on the thread that uses it, so that no other one has ever had its key.
type Make = Box<dyn FnOnce() -> Arc<dyn SectorCipher> + Send>;

/// Each kernel that this processor has under XTS, and the other modes.
fn ciphers() -> Vec<(String, Make)> {
    let mut all: Vec<(String, Make)> = Vec::new();
    for cipher in CIPHERS.iter().filter(|cipher| cipher.block_size == 16) {
        let size = *cipher.key_sizes.last().expect("a cipher has key sizes");
        for kernel in cipher.kernels.iter().filter(|kernel| (kernel.usable)()) {
            let seed = all.len() as u64;
            let make = move || {
                let [data, tweak] = keys(size, seed).map(|key| kernel.with_key(&key));
                Arc::new(Xts::new(vec![xts::Layer { data, tweak }], 512)) as Arc<dyn SectorCipher>
            };
            all.push((format!("{} {}", cipher.name, kernel.name), Box::new(make)));
        }
    }
    for &(text, size) in SPECIFICATIONS {
        let make = move || {
            let specification = Specification::parse(text).expect("it is known");
            specification.with_key(&noise(size, 99), Sectors::default(), Acceleration::On).expect("it fits")
        };
        all.push((text.to_owned(), Box::new(make)));
    }
    all
}

fn keys(size: usize, seed: u64) -> [Vec<u8>; 2] {
    [noise(size, 2 * seed + 1000), noise(size, 2 * seed + 1001)]
}

/// Writes and reads, in large and small pieces, with and without the help of a pool.
fn use_volume(make: Make) -> (Volume, Arc<Pool>) {
    let (cipher, pool) = (make(), Arc::new(Pool::new(2, Duration::ZERO)));
    let payload = Payload::crypt(cipher, 0);
    let segment = Segment { at: 0, len: LEN as u64, stored_at: 0, payload, writable: true };
    let layout = Layout::new(vec![segment]).expect("a good layout");
    let volume = Volume::new(Arc::new(MemoryStore::new(vec![0; LEN])), layout).with_pool(Arc::clone(&pool));
    let mut buffer = vec![0x5a; LEN];
    for part in [0..LEN, 4096..8192, 100..700] {
        volume.write_clobbering(part.start as u64, &mut buffer[part.clone()]).expect("a store in memory");
        volume.read_at(part.start as u64, &mut buffer[part]).expect("a store in memory");
    }
    assert!(buffer[..100].iter().all(|byte| *byte == 0x5a));
    (volume, pool)
}

#[test]
fn no_thread_keeps_keys_in_its_registers() {
    if tools::root().is_none() {
        return;
    }
    let ciphers = ciphers();
    let (names, makes): (Vec<String>, Vec<Make>) = ciphers.into_iter().unzip();
    let (used, all_used) = mpsc::channel();
    let threads: Vec<_> = makes
        .into_iter()
        .map(|make| {
            let used = used.clone();
            let (end, ended) = mpsc::channel::<()>();
            let thread = thread::spawn(move || {
                let volume = use_volume(make);
                used.send(()).expect("the test waits");
                let _ = ended.recv();
                drop(volume);
            });
            (thread, end)
        })
        .collect();
    names.iter().for_each(|_| all_used.recv().expect("no thread panics"));
    let Some(registers) = Registers::of(std::process::id()) else { return };
    // Each of them, its pool's other thread, and this one.
    assert!(registers.threads > 2 * names.len(), "{} threads", registers.threads);

    let needles = Memory::of(std::process::id()).locked_as_vectors();
    let known: BTreeSet<&[u8]> = needles.iter().map(|(_, bytes)| &bytes[..]).collect();
    for (seed, _) in names.iter().enumerate().filter(|(_, name)| name.starts_with("AES") && !name.contains("sliced")) {
        for key in keys(32, seed as u64) {
            let round_keys = Aes::new(&key).round_keys().to_vec();
            assert!(round_keys.iter().all(|key| known.contains(&key[..])), "the scan knows the round keys");
        }
    }
    let found = found(&registers.bytes, &needles);
    assert!(found.is_empty(), "{} of {}: {found:?}", found.len(), needles.len());
    for (thread, end) in threads {
        drop(end);
        thread.join().expect("it ends");
    }
}

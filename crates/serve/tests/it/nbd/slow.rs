//! Stores that take their time: requests of one connection are worked on side by side, and answered as if they were not.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use claviger_engine::Store;
use claviger_engine::store::MemoryStore;
use claviger_serve::nbd::{Client, Replies};

use crate::common::{Random, Serving, memory, noise};

/// Slots that requests are made for, and their size in bytes.
const SLOTS: usize = 64;
const SLOT: usize = 4096;

/// A store that takes at least so long for everything.
struct Slow {
    inner: Arc<MemoryStore>,
    takes: Duration,
    /// Reads wait until so many are there.
    together: AtomicUsize,
    inside: Mutex<usize>,
    came: Condvar,
    /// Names of the threads that came.
    threads: Mutex<Vec<String>>,
    fails: AtomicBool,
}

impl Slow {
    fn new(bytes: &[u8], takes: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner: memory(bytes),
            takes,
            together: AtomicUsize::new(0),
            inside: Mutex::new(0),
            came: Condvar::new(),
            threads: Mutex::default(),
            fails: AtomicBool::new(false),
        })
    }

    fn wait(&self) -> io::Result<()> {
        self.threads.lock().expect("no panic").push(thread::current().name().unwrap_or_default().to_owned());
        thread::sleep(self.takes);
        if self.fails.load(Ordering::SeqCst) { Err(io::Error::other("planted")) } else { Ok(()) }
    }
}

impl Store for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.wait()?;
        let together = self.together.load(Ordering::SeqCst);
        let mut inside = self.inside.lock().expect("no panic");
        *inside += 1;
        self.came.notify_all();
        let few = |inside: &mut usize| *inside < together;
        let (inside, waited) = self.came.wait_timeout_while(inside, Duration::from_secs(60), few).expect("no panic");
        assert!(!waited.timed_out(), "{} of {together} requests have come", *inside);
        drop(inside);
        self.inner.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.wait()?;
        self.inner.write_clobbering(offset, data)?;
        data.fill(0xdd); // as the trait allows
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn as_many_requests_reach_the_store_as_were_sent() {
    let bytes = noise(SLOTS * SLOT, 1);
    let store = Slow::new(&bytes, Duration::from_millis(1));
    let serving = Serving::store(store.clone());
    let mut client = serving.client();
    let mut out = vec![0; SLOT];
    for _ in 0..3 {
        client.read_at(0, &mut out).expect("it is there");
    }
    // All but one, which may be carried out by the thread that receives, and holds up what comes after it.
    *store.inside.lock().expect("no panic") = 0;
    store.together.store(SLOTS - 1, Ordering::SeqCst);
    let cookies: HashMap<u64, usize> =
        (0..SLOTS).map(|slot| (client.submit_read((slot * SLOT) as u64, SLOT as u32), slot)).collect();
    for _ in 0..SLOTS {
        let done = client.complete(&mut out).expect("an answer");
        done.result.expect("it was read");
        let at = cookies[&done.cookie] * SLOT;
        assert!(out == bytes[at..at + SLOT], "slot {}", at / SLOT);
    }
    serving.stop().expect("nothing is lost");
}

#[test]
fn a_lone_request_wakes_nobody() {
    let store = Slow::new(&noise(SLOTS * SLOT, 2), Duration::from_millis(1));
    let serving = Serving::store(store.clone());
    let mut client = serving.client();
    for slot in 0..20 {
        client.write_at((slot * SLOT) as u64, &[1; SLOT]).expect("there is room");
        client.read_at((slot * SLOT) as u64, &mut vec![0; SLOT]).expect("it is there");
    }
    let threads = store.threads.lock().expect("no panic");
    assert!(threads.len() == 40 && threads.iter().all(|name| *name == threads[0]), "{threads:?}");
}

#[test]
fn answers_are_right_whatever_is_under_way() {
    for replies in [Replies::Structured, Replies::Simple] {
        // Behind the slots is what large reads are for: nobody writes there.
        let mut expected = noise(SLOTS * SLOT + (3 << 20), 3);
        let store = Slow::new(&expected, Duration::from_micros(300));
        let serving = Serving::store(store.clone());
        let mut client = Client::connect_with(&serving.address, "disk", replies).expect("it answers");
        let mut random = Random::new(7);
        let mut out = vec![0; 3 << 20];
        for round in 0..60 {
            store.fails.store(round % 10 == 9, Ordering::SeqCst);
            // Each slot once, so that it does not matter in which order they are done.
            let mut sent = HashMap::new();
            for slot in 0..SLOTS {
                let (from, len) = (slot * SLOT + random.below(1000), 1 + random.below(3000));
                let cookie = match random.below(2) {
                    0 => client.submit_read(from as u64, len as u32),
                    _ => {
                        let data = noise(len, random.number());
                        let cookie = client.submit_write(from as u64, &data).expect("it is sent");
                        if round % 10 != 9 {
                            expected[from..from + len].copy_from_slice(&data);
                        }
                        cookie
                    }
                };
                sent.insert(cookie, from..from + len);
                if slot == SLOTS / 2 && round % 4 == 0 {
                    let from = SLOTS * SLOT + 5;
                    let len = (2 << 20) + 77;
                    sent.insert(client.submit_read(from as u64, len as u32), from..from + len);
                }
            }
            while !sent.is_empty() {
                let done = client.complete(&mut out).expect("an answer");
                let range = sent.remove(&done.cookie).expect("it was asked for once");
                assert_eq!(done.result.is_err(), round % 10 == 9, "{:?}", done.result);
                if done.result.is_ok() && done.len > 0 {
                    assert!(out[..done.len] == expected[range.clone()], "{replies:?}, round {round}, {range:?}");
                }
            }
            client.flush().expect("it never fails");
        }
        assert!(store.threads.lock().expect("no panic").iter().any(|name| name == "nbd-helper"));
        serving.stop().expect("nothing is lost");
        assert!(store.inner.to_vec() == expected);
    }
}

#[test]
fn what_was_sent_is_answered_before_the_end() {
    let store = Slow::new(&[0; SLOTS * SLOT], Duration::from_millis(20));
    let serving = Serving::store(store.clone());
    let mut client = serving.client();
    client.write_at(0, &[1; SLOT]).expect("there is room");
    for slot in 0..SLOTS {
        client.submit_write((slot * SLOT) as u64, &[2; SLOT]).expect("it is sent");
    }
    // The first answer shows that all of it has arrived, or is about to.
    client.complete(&mut []).expect("an answer").result.expect("written");
    serving.handle.stop();
    for _ in 1..SLOTS {
        client.complete(&mut []).expect("an answer").result.expect("written");
    }
    serving.finished().expect("nothing is lost");
    assert!(store.inner.to_vec() == vec![2; SLOTS * SLOT]);
}

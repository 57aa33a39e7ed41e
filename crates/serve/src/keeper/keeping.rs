//! The keeper's side: threads that encrypt and decrypt what is asked in shared memory, which may say anything.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use claviger_engine::Secret;
use claviger_engine::volume::kept::{KeyRange, Keys, Refused, wipe_traces};
use rustix::thread::futex::{self, Flags};

use super::shared_sys::{ROOM, Request, SLOTS, Shared};
use super::{ANSWERED, ASKED, DECRYPT, DONE, ENCRYPT, REFUSED, WIPED, WRONG};
use crate::spin::{Awake, Running, Sleeping, Spinner};

/// How long a thread looks for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Bytes that are copied, worked on and copied back at a time: they stay in the L1 cache.
const PIECE: usize = 16 << 10;

/// What the threads share.
pub(super) struct Kept {
    pub shared: Shared,
    /// Nothing once they have been wiped.
    pub keys: RwLock<Option<Keys>>,
    pub awake: Awake,
}

/// A thread that panics takes the keeper along: whoever waits for its answer would wait for ever.
struct Together;

impl Drop for Together {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

impl Kept {
    /// Starts a thread for each slot. All memory that they need is there then.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        for slot in 0..SLOTS {
            let (kept, room) = (Arc::clone(self), Secret::zeroed(PIECE));
            thread::Builder::new()
                .name(format!("slot-{slot}"))
                .stack_size(128 << 10)
                .spawn(move || kept.serve(slot, room))?;
        }
        Ok(())
    }

    /// Wipes the keys, once no thread uses them.
    pub fn wipe(&self) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn serve(&self, slot: usize, mut room: Secret) {
        let _all = Together;
        let _counted = Running::new(&self.awake);
        let request = self.shared.request(slot);
        let mut spinner = Spinner::default();
        loop {
            self.wait_for(request, &mut spinner);
            let answer = self.answer(slot, request, &mut room);
            request.answer.store(answer, Ordering::Relaxed);
            // Either this is seen by an asker that is about to sleep, or that it sleeps is seen here.
            request.state.store(ANSWERED, Ordering::SeqCst);
            // An asker that is awake goes on meanwhile.
            wipe_traces();
            if request.asker_sleeps.load(Ordering::SeqCst) != 0 {
                let _ = futex::wake(&request.state, Flags::empty(), 1);
            }
        }
    }

    fn wait_for(&self, request: &Request, spinner: &mut Spinner) {
        let asked = || request.state.load(Ordering::SeqCst) == ASKED;
        let spun = spinner.spin(&self.awake, SPIN, || Ok(asked().then_some(())));
        if asked() || spun.is_ok_and(|found| found.is_some()) {
            return;
        }
        let _asleep = Sleeping::new(&self.awake);
        request.keeper_sleeps.store(1, Ordering::SeqCst);
        while !asked() {
            // Whatever else somebody has written there is waited on no longer than until it changes.
            let seen = request.state.load(Ordering::SeqCst);
            if seen != ASKED {
                let _ = futex::wait(&request.state, Flags::empty(), seen, None);
            }
        }
        request.keeper_sleeps.store(0, Ordering::SeqCst);
    }

    /// Carries out what is asked. Each field is read once: what it says later counts for nothing.
    fn answer(&self, slot: usize, request: &Request, room: &mut [u8]) -> u32 {
        let encrypt = match request.order.load(Ordering::Acquire) {
            DECRYPT => false,
            ENCRYPT => true,
            _ => return REFUSED,
        };
        let (segment, len) = (request.segment.load(Ordering::Relaxed), request.len.load(Ordering::Relaxed) as usize);
        let into = request.into.load(Ordering::Relaxed);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let Some(keys) = &*keys else { return WIPED };
        if len > ROOM {
            return REFUSED;
        }
        match keys.range(encrypt, segment, into, len) {
            Ok(range) if fits(&range, len, room.len()) => {
                self.carry_out(&range, encrypt, slot, len, room).map_or_else(|sector| WRONG + sector, |()| DONE)
            }
            Ok(_) | Err(Refused) => REFUSED,
        }
    }

    /// In memory of this process, piece by piece; the tags of all sectors lie behind the last one. The first sector whose tag is wrong
    /// is the end: nothing of its piece gets out.
    fn carry_out(
        &self,
        range: &KeyRange<'_>,
        encrypt: bool,
        slot: usize,
        len: usize,
        room: &mut [u8],
    ) -> Result<(), u32> {
        let (sector, tag) = (range.sector_size(), range.tag_size());
        let piece = room.len() / (sector + tag) * sector;
        for past in (0..len).step_by(piece) {
            let (run, rest) = room.split_at_mut(piece.min(len - past));
            let first = past / sector;
            let (tags, tags_at) = (&mut rest[..run.len() / sector * tag], len + first * tag);
            self.shared.copy_out(slot, past, run);
            if !encrypt {
                self.shared.copy_out(slot, tags_at, tags);
            }
            range.carry_out(past as u64, run, tags).map_err(|wrong| first as u32 + wrong)?;
            self.shared.copy_in(slot, past, run);
            if encrypt {
                self.shared.copy_in(slot, tags_at, tags);
            }
        }
        Ok(())
    }
}

/// Whether `len` bytes of data, and the tags of their sectors, have room in a slot, and a sector in `room` bytes of this process.
fn fits(range: &KeyRange<'_>, len: usize, room: usize) -> bool {
    let (sector, tag) = (range.sector_size(), range.tag_size());
    len + len / sector * tag <= ROOM && sector + tag <= room
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use claviger_crypto::modes::aead;
    use claviger_engine::store::MemoryStore;
    use claviger_engine::volume::integrity;
    use claviger_engine::{Acceleration, Layout, Payload, Sectors, Segment, Specification};

    use super::*;

    const LEN: usize = 64 << 10;

    /// A segment in clear and one of sectors of 512 bytes, of `aes-xts-plain64`.
    fn layout() -> Layout {
        let specification = Specification::parse("aes-xts-plain64").expect("a specification");
        let key: Vec<u8> = (0..64).collect();
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("a key that fits");
        let segment = |at, payload| Segment { at, len: LEN as u64, stored_at: at, payload, writable: true };
        let segments = vec![segment(0, Payload::Clear), segment(LEN as u64, Payload::crypt(cipher, 3))];
        Layout::new(segments).expect("a good layout")
    }

    /// The other process's view of the memory, as it could look there.
    fn keeper() -> (Arc<Kept>, Shared) {
        keeper_of(&layout())
    }

    fn keeper_of(layout: &Layout) -> (Arc<Kept>, Shared) {
        let shared = Shared::create().expect("memory");
        let other = Shared::open(shared.fd().try_clone_to_owned().expect("a descriptor")).expect("the same memory");
        let keys = RwLock::new(Some(Keys::of(layout, true)));
        let kept = Arc::new(Kept { shared, keys, awake: Awake::new() });
        kept.start().expect("threads");
        (kept, other)
    }

    fn ask(shared: &Shared, slot: usize, [order, segment, len]: [u32; 3], into: u64) -> u32 {
        let request = shared.request(slot);
        request.order.store(order, Ordering::Relaxed);
        request.segment.store(segment, Ordering::Relaxed);
        request.len.store(len, Ordering::Relaxed);
        request.into.store(into, Ordering::Relaxed);
        request.answer.store(77, Ordering::Relaxed);
        request.state.store(ASKED, Ordering::SeqCst);
        let _ = futex::wake(&request.state, Flags::empty(), 1);
        while request.state.load(Ordering::SeqCst) != ANSWERED {
            thread::yield_now();
        }
        request.answer.load(Ordering::Relaxed)
    }

    #[test]
    fn hostile_requests_are_refused_and_harm_nothing() {
        let (kept, shared) = keeper();
        let bytes: Vec<u8> = (0..ROOM).map(|i| (i / 3) as u8).collect();
        (0..3).for_each(|slot| shared.copy_in(slot, 0, &bytes));
        for (what, into) in [
            ([0, 1, 512], 0),
            ([3, 1, 512], 0),
            ([u32::MAX, 1, 512], 0),
            ([DECRYPT, 0, 512], 0),
            ([DECRYPT, 2, 512], 0),
            ([DECRYPT, u32::MAX, 512], 0),
            ([DECRYPT, 1, 0], 0),
            ([DECRYPT, 1, 511], 0),
            ([DECRYPT, 1, 512], 1),
            ([DECRYPT, 1, LEN as u32 + 512], 0),
            ([DECRYPT, 1, 512], LEN as u64),
            ([ENCRYPT, 1, 512], u64::MAX - 511),
            ([ENCRYPT, 1, 1024], u64::MAX - 511),
            ([ENCRYPT, 1, ROOM as u32 + 512], 0),
            ([ENCRYPT, 1, !511], 0),
        ] {
            assert_eq!(ask(&shared, 1, what, into), REFUSED, "{what:?} {into}");
        }
        let mut now = vec![0; ROOM];
        for slot in 0..3 {
            shared.copy_out(slot, 0, &mut now);
            assert!(now == bytes, "slot {slot}");
        }
        // A state that is none wakes nobody, and nothing is lost by it.
        shared.request(1).state.store(0xdead_beef, Ordering::SeqCst);
        let _ = futex::wake(&shared.request(1).state, Flags::empty(), 1);
        assert_eq!(ask(&shared, 1, [ENCRYPT, 1, LEN as u32 - 512], 512), DONE);
        let mut expected = bytes.clone();
        let layout = layout();
        let Payload::Crypt { cipher, first, .. } = &layout.segments()[1].payload else { panic!("encrypted") };
        cipher.encrypt(first + 1, &mut expected[..LEN - 512]);
        shared.copy_out(1, 0, &mut now);
        assert!(now == expected, "what is asked for is done, and nothing behind it");
        kept.wipe();
        assert_eq!(ask(&shared, 1, [DECRYPT, 1, 512], 0), WIPED);
    }

    #[test]
    fn tags_without_room_are_refused_and_wrong_ones_are_named() {
        let specification = aead::Specification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
        let cipher = specification.with_key(&[7; 96], Sectors::default(), Acceleration::On).expect("it fits");
        let store = MemoryStore::new(vec![0; 8 << 20]);
        integrity::format(&store, 0, 8 << 20, &*cipher, &mut |_, _| Ok(())).expect("there is room");
        let area = integrity::open(&store, 0, 8 << 20, 32, 512).expect("it is good");
        let segment = integrity::segment(Arc::new(area), 0, cipher, true).expect("they fit");
        let (_kept, shared) = keeper_of(&Layout::new(vec![segment]).expect("one segment"));
        let bytes: Vec<u8> = (0..ROOM).map(|i| (i / 5) as u8).collect();
        (0..3).for_each(|slot| shared.copy_in(slot, 0, &bytes));
        let most = ROOM / (512 + 32) * 512;
        for len in [ROOM, most + 512] {
            assert_eq!(ask(&shared, 1, [ENCRYPT, 0, len as u32], 0), REFUSED, "{len}");
        }
        let order = |order| ask(&shared, 1, [order, 0, most as u32], 512);
        assert_eq!((order(ENCRYPT), order(DECRYPT)), (DONE, DONE));
        let mut now = vec![0; ROOM];
        shared.copy_out(1, 0, &mut now);
        assert!(now[..most] == bytes[..most]);
        assert_eq!(order(ENCRYPT), DONE);
        let mut one = [0];
        shared.copy_out(1, 40 * 512 + 7, &mut one);
        shared.copy_in(1, 40 * 512 + 7, &[one[0] ^ 1]);
        shared.copy_out(1, 0, &mut now);
        assert_eq!(order(DECRYPT), WRONG + 40);
        let mut after = vec![0; ROOM];
        shared.copy_out(1, 0, &mut after);
        assert!(after[32 * 512..most] == now[32 * 512..most], "nothing of what was not verified gets out");
        for slot in [0, 2] {
            shared.copy_out(slot, 0, &mut now);
            assert!(now == bytes, "slot {slot}");
        }
    }

    #[test]
    fn memory_of_another_size_or_that_may_shrink_is_refused() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

        let shared = Shared::create().expect("memory");
        assert!(ftruncate(shared.fd(), 0).is_err() && ftruncate(shared.fd(), 1 << 40).is_err(), "it is sealed");
        for len in [0, 4096, 4096 + (SLOTS * ROOM) as u64] {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
            ftruncate(&fd, len).expect("a size");
            assert!(Shared::open(fd.as_fd().try_clone_to_owned().expect("a descriptor")).is_err(), "{len}");
        }
    }
}

//! The client side: the process without keys.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::key_process::{KeyProcess, PartAccess, StoredAccess};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{Shutdown, shutdown};
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

use super::shared_sys::{KeyRequest, ROOM, SLOTS, Slot, Slots, TURNS};
use super::{ANSWERED, ASKED, DECRYPT, DONE, ENCRYPT, FOLDER_MOST, WIPED, WRONG};
use crate::aligned;
use crate::wait::wait;

/// How long a thread polls for the answer before it sleeps: about as long as the key process needs for a part of a large request.
const SPIN: Duration = Duration::from_micros(100);

/// How long a thread sleeps before it checks whether the key process still lives.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Bytes in each part for the key process: small enough to be still in a cache when this process continues with them.
const PART: usize = 128 << 10;

const _: () = assert!(TURNS * PART <= ROOM);

/// Sends requests to the key process, which wipes its keys and ends when this is dropped.
pub struct KeyClient {
    shared: Arc<Connected>,
    watcher: Mutex<Option<thread::JoinHandle<()>>>,
    /// Servers allocate their buffers from this pool, where the key process can work on them in place.
    _buffers: aligned::PoolInUse,
}

struct Connected {
    slots: Slots,
    socket: OwnedFd,
    /// Number of processors: the most slots that one request takes.
    processors: usize,
    /// The key process no longer answers.
    gone: AtomicBool,
    /// This side closed the connection.
    closed: AtomicBool,
}

impl KeyClient {
    /// Uses these slots. Calls `lost` once if the key process ends before this value is dropped.
    pub(super) fn new(slots: Slots, socket: UnixStream, lost: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let (gone, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Connected { slots, socket: socket.into(), processors, gone, closed });
        let watched = Arc::clone(&shared);
        let watch = move || {
            // The key process sends nothing more, so the socket only becomes readable at its end.
            while !wait(&mut [PollFd::new(&watched.socket, PollFlags::IN)], None).unwrap_or(true) {}
            watched.gone.store(true, Ordering::SeqCst);
            let turns = (0..SLOTS).flat_map(|slot| (0..TURNS).map(move |turn| (slot, turn)));
            turns.for_each(|(slot, turn)| wake(watched.slots.shared().request(slot, turn)));
            if !watched.closed.load(Ordering::SeqCst) {
                lost();
            }
        };
        let watcher = thread::Builder::new().name("key-process".into()).stack_size(64 << 10).spawn(watch)?;
        let _buffers = aligned::PoolInUse::new(shared.slots.buffer_pool());
        Ok(Self { shared, watcher: Mutex::new(Some(watcher)), _buffers })
    }
}

impl KeyClient {
    /// Whether the key process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::SeqCst)
    }

    /// Tells the key process to end, and waits for it.
    pub(super) fn end(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // The key process reads this as the end, and its own end stops the watcher.
        let _ = shutdown(self.shared.socket.as_fd(), Shutdown::Write);
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(watcher) = watcher {
            let _ = watcher.join();
        }
    }
}

impl Drop for KeyClient {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let _ = shutdown(self.shared.socket.as_fd(), Shutdown::Both);
        // The watcher itself may drop the last reference.
        match self.watcher.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            Some(watcher) if watcher.thread().id() != thread::current().id() => drop(watcher.join()),
            _ => {}
        }
    }
}

impl KeyProcess for KeyClient {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        let (here, len) = (self.shared.slots.shared().position(out), out.len());
        self.each_part([DECRYPT, segment], into, len, here, &mut Decrypting { out, read })
    }

    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        let (here, len) = (self.shared.slots.shared().position(data), data.len());
        self.each_part([ENCRYPT, segment], into, len, here, &mut Encrypting { data, write })
    }

    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        let mut slot = self.slot(out.len() + tags)?;
        read(slot.memory(0, out.len() + tags))?;
        let wrong = self.shared.ask_tagged(&mut slot, [DECRYPT, segment], into, out.len())?;
        out.copy_from_slice(slot.memory(0, out.len()));
        Ok(wrong)
    }

    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        let mut slot = self.slot(data.len() + tags)?;
        slot.memory(0, data.len()).copy_from_slice(data);
        self.shared.ask(&mut slot, [ENCRYPT, segment], into, data.len())?;
        write(slot.memory(0, data.len() + tags))
    }
}

impl KeyClient {
    /// Sends a request about a folder's keys: see [`super::files`].
    pub(super) fn ask_of_folder(&self, order: u32, file: u32, said: &[u8]) -> io::Result<Vec<u8>> {
        if said.len() > FOLDER_MOST {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let mut slot = self.slot(4 + FOLDER_MOST)?;
        slot.memory(0, said.len()).copy_from_slice(said);
        self.shared.ask(&mut slot, [order, file], 0, said.len())?;
        let (len, answer) = slot.memory(0, 4 + FOLDER_MOST).split_at(4);
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
        answer.get(..len as usize).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Processes all `len` bytes of a request part by part, with this process and the key process working in parallel.
    /// The bytes are at `here` in the shared data, or elsewhere in this process.
    fn each_part(
        &self,
        order: [u32; 2],
        into: u64,
        len: usize,
        here: Option<usize>,
        work: &mut dyn Part,
    ) -> io::Result<()> {
        let shared = &*self.shared;
        let (slots, parts) = (vec![shared.slots.take()], VecDeque::new());
        let mut in_flight = InFlight { connected: shared, slots, parts, copied: here.is_none() };
        for past in (0..len).step_by(PART) {
            let part = past..len.min(past + PART);
            let slot = in_flight.free_slot(work)?;
            let slot_of = &mut in_flight.slots[slot];
            let (turn, len) = (slot_of.turn(), part.len());
            work.before(part.clone(), here.is_none().then(|| slot_of.memory(turn * PART, len)))?;
            let in_slot = || slot_of.range(turn * PART, len);
            let at = here.map_or_else(in_slot, |here| here + part.start..here + part.end);
            shared.post(slot_of.next(), order, into + past as u64, at);
            in_flight.parts.push_back(Asked { slot, turn, part });
        }
        while !in_flight.parts.is_empty() {
            in_flight.finish_one(work)?;
        }
        Ok(())
    }

    fn slot(&self, len: usize) -> io::Result<Slot<'_>> {
        if len > ROOM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than the key process takes at once"));
        }
        Ok(self.shared.slots.take())
    }
}

impl Connected {
    /// Sends a request for the first `len` bytes of a slot.
    fn ask(&self, slot: &mut Slot<'_>, order: [u32; 2], into: u64, len: usize) -> io::Result<()> {
        self.ask_tagged(slot, order, into, len)?.map_or(Ok(()), |_| Err(refused()))
    }

    /// The same for sectors that may have tags. Returns the sector whose tag is wrong, if any.
    fn ask_tagged(&self, slot: &mut Slot<'_>, order: [u32; 2], into: u64, len: usize) -> io::Result<Option<u32>> {
        let request = slot.next();
        self.post(request, order, into, slot.range(0, len));
        self.answer(request)
    }

    /// Posts a request for a range of the data.
    fn post(&self, request: &KeyRequest, [order, segment]: [u32; 2], into: u64, data: Range<usize>) {
        request.order.store(order, Ordering::Relaxed);
        request.segment.store(segment, Ordering::Relaxed);
        request.into.store(into, Ordering::Relaxed);
        request.at.store(data.start as u32, Ordering::Relaxed);
        request.len.store(data.len() as u32, Ordering::Relaxed);
        // Either a key process about to sleep sees this store, or this thread sees that the key process sleeps.
        request.state.store(ASKED, Ordering::SeqCst);
        if request.key_process_sleeps.load(Ordering::SeqCst) != 0 {
            wake(request);
        }
    }

    /// Waits for the answer.
    fn answer(&self, request: &KeyRequest) -> io::Result<Option<u32>> {
        let begun = Instant::now();
        while request.state.load(Ordering::Acquire) != ANSWERED {
            if begun.elapsed() < SPIN {
                thread::yield_now();
                continue;
            }
            if self.gone.load(Ordering::SeqCst) {
                return Err(gone());
            }
            request.asker_sleeps.store(1, Ordering::SeqCst);
            // Interrupted, timed out or woken: the state tells.
            let _ = futex::wait(&request.state, Flags::empty(), ASKED, Some(&TICK));
            request.asker_sleeps.store(0, Ordering::SeqCst);
        }
        match request.answer.load(Ordering::Relaxed) {
            DONE => Ok(None),
            WIPED => Err(gone()),
            wrong @ WRONG.. => Ok(Some(wrong - WRONG)),
            _ => Err(refused()),
        }
    }
}

/// Work on each part of a request before and after the key process. It applies to the part itself, or to `room` if the
/// part is not in the channel's memory.
trait Part {
    fn before(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()>;
    fn after(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()>;
}

struct Decrypting<'a> {
    out: &'a mut [u8],
    read: &'a mut PartAccess<'a>,
}

impl Part for Decrypting<'_> {
    fn before(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()> {
        (self.read)(part.start, room.unwrap_or(&mut self.out[part]))
    }

    fn after(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()> {
        if let Some(room) = room {
            self.out[part].copy_from_slice(room);
        }
        Ok(())
    }
}

struct Encrypting<'a> {
    data: &'a mut [u8],
    write: &'a mut PartAccess<'a>,
}

impl Part for Encrypting<'_> {
    fn before(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()> {
        if let Some(room) = room {
            room.copy_from_slice(&self.data[part]);
        }
        Ok(())
    }

    fn after(&mut self, part: Range<usize>, room: Option<&mut [u8]>) -> io::Result<()> {
        (self.write)(part.start, room.unwrap_or(&mut self.data[part]))
    }
}

/// The parts of a request that the key process works on.
struct InFlight<'a> {
    connected: &'a Connected,
    slots: Vec<Slot<'a>>,
    /// The oldest part first.
    parts: VecDeque<Asked>,
    /// Whether the parts are copied to slots.
    copied: bool,
}

struct Asked {
    slot: usize,
    turn: usize,
    part: Range<usize>,
}

impl InFlight<'_> {
    /// Waits for the oldest part and completes it.
    fn finish_one(&mut self, work: &mut dyn Part) -> io::Result<()> {
        let Some(Asked { slot, turn, part }) = self.parts.pop_front() else { return Ok(()) };
        let slot = &mut self.slots[slot];
        if self.connected.answer(slot.request(turn))?.is_some() {
            return Err(refused());
        }
        let len = part.len();
        work.after(part, self.copied.then(|| slot.memory(turn * PART, len)))
    }

    /// A slot with a turn left: a new one if the key process is behind.
    fn free_slot(&mut self, work: &mut dyn Part) -> io::Result<usize> {
        loop {
            while self.parts.front().is_some_and(|oldest| self.is_done(oldest)) {
                self.finish_one(work)?;
            }
            let waiting = |slot| self.parts.iter().filter(|asked| asked.slot == slot).count();
            if let Some(slot) = (0..self.slots.len()).find(|slot| waiting(*slot) < TURNS) {
                return Ok(slot);
            }
            let more = self.slots.len() < self.connected.processors;
            match more.then(|| self.connected.slots.try_take()).flatten() {
                Some(slot) => self.slots.push(slot),
                None => self.finish_one(work)?,
            }
        }
    }

    fn is_done(&self, asked: &Asked) -> bool {
        self.slots[asked.slot].request(asked.turn).state.load(Ordering::Acquire) == ANSWERED
    }
}

impl Drop for InFlight<'_> {
    /// The memory and the slots must stay untouched until the key process is done with them.
    fn drop(&mut self) {
        for Asked { slot, turn, .. } in self.parts.drain(..) {
            let _ = self.connected.answer(self.slots[slot].request(turn));
        }
    }
}

/// The error for requests after the key process has ended.
fn gone() -> io::Error {
    io::Error::other("the key process has exited")
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the key process refuses this")
}

fn wake(request: &KeyRequest) {
    let _ = futex::wake(&request.state, Flags::empty(), 1);
}

#[cfg(test)]
mod tests {

    use claviger_engine::key_process::volume::Keys;
    use claviger_engine::{Acceleration, Layout, Payload, Sectors, Segment, Specification};
    use claviger_testkit::random::Random;

    use super::super::server::KeyServer;
    use super::super::server::started;
    use super::super::shared_sys::BufferPool;
    use super::*;

    const LEN: usize = 3 * SLOTS * PART + 512;

    /// For each cipher, the key process works on pooled data in place, in its own memory, or in pieces of another size than a part.
    const CIPHERS: [(&str, usize); 4] =
        [("aes-xts-plain64", 64), ("serpent-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32), ("aes:64-cbc-lmk", 2048)];

    fn layout((cipher, key): (&str, usize)) -> Layout {
        let key: Vec<u8> = (0..key).map(|i| (i * 7 / 3) as u8).collect();
        let specification = Specification::parse(cipher).expect("a specification");
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("a key that fits");
        let len = 2 * LEN as u64;
        Layout::new(vec![Segment { at: 0, len, stored_at: 0, payload: Payload::crypt(cipher, 5), writable: true }])
            .expect("a layout")
    }

    /// A key process in threads of this process, its client, and its memory pool.
    fn key_process(layout: &Layout) -> (Arc<KeyServer>, KeyClient, BufferPool, UnixStream) {
        let (server, other) = started(Keys::of(layout, true));
        let slots = Slots::new(other);
        let buffer_pool = slots.buffer_pool();
        let (socket, key_end) = UnixStream::pair().expect("a socket");
        (server, KeyClient::new(slots, socket, || ()).expect("a thread"), buffer_pool, key_end)
    }

    #[test]
    fn requests_of_any_length_are_worked_on_wherever_they_are() {
        for cipher in CIPHERS {
            let layout = layout(cipher);
            let (_server, client, buffer_pool, _socket) = key_process(&layout);
            let Payload::Crypt { cipher: own, first, .. } = &layout.segments()[0].payload else { panic!("encrypted") };
            let plain: Vec<u8> = (0..LEN).map(|i| (i / 5) as u8).collect();
            for len in [512, PART - 512, PART, PART + 512, 5 * PART, LEN] {
                let mut expected = plain[..len].to_vec();
                own.encrypt(first + 9, &mut expected);
                let mut pooled = buffer_pool.allocate(len).expect("there is room");
                let mut mine = vec![0; len];
                for data in [&mut mine[..], &mut pooled[..len]] {
                    data.copy_from_slice(&plain[..len]);
                    let mut written = vec![0; len];
                    let mut write = |past: usize, stored: &mut [u8]| -> io::Result<()> {
                        written[past..][..stored.len()].copy_from_slice(stored);
                        Ok(())
                    };
                    client.encrypt(0, 9 * 512, data, &mut write).expect("encrypted");
                    assert!(written == expected, "{cipher:?} {len}");
                    let mut read = |past: usize, stored: &mut [u8]| -> io::Result<()> {
                        let len = stored.len();
                        stored.copy_from_slice(&expected[past..][..len]);
                        Ok(())
                    };
                    client.decrypt(0, 9 * 512, data, &mut read).expect("decrypted");
                    assert!(data == &plain[..len], "{cipher:?} {len}");
                }
            }
        }
    }

    /// More threads than slots ask at random, so both sides poll and sleep in every order. A thread that is not woken
    /// would wait forever.
    #[test]
    fn whoever_asks_at_whatever_moment_is_answered_with_what_is_theirs() {
        let layout = layout(CIPHERS[0]);
        let (_server, client, buffer_pool, _socket) = key_process(&layout);
        let Payload::Crypt { cipher: own, first, .. } = &layout.segments()[0].payload else { panic!("encrypted") };
        let ask = |seed: u64| {
            let mut random = Random::new(seed);
            for _ in 0..60 {
                let (sectors, len) = (random.below(LEN / 512) as u64, 512 * (1 + random.below(3 * PART / 512)));
                let (plain, mut mine, mut pooled) = (random.bytes(len), vec![0; len], buffer_pool.allocate(len));
                let mut expected = plain.clone();
                own.encrypt(first + sectors, &mut expected);
                let data = pooled
                    .as_deref_mut()
                    .filter(|_| seed.is_multiple_of(2))
                    .map_or(&mut mine[..], |pooled| &mut pooled[..len]);
                let mut read = |past: usize, stored: &mut [u8]| -> io::Result<()> {
                    let len = stored.len();
                    stored.copy_from_slice(&expected[past..][..len]);
                    Ok(())
                };
                client.decrypt(0, sectors * 512, data, &mut read).expect("decrypted");
                assert!(*data == plain[..], "{seed}: {len} bytes at {sectors}");
                // About as long as either side polls before it sleeps, or shorter, or longer.
                thread::sleep(Duration::from_micros(random.below(200) as u64));
            }
        };
        thread::scope(|scope| {
            (0..SLOTS as u64 + 8).for_each(|seed| {
                drop(scope.spawn({
                    let ask = &ask;
                    move || ask(seed)
                }))
            })
        });
    }

    /// A failure in any part does not affect later requests.
    #[test]
    fn a_part_that_fails_leaves_the_channel_as_it_was() {
        // The segment must not be the last one, which may grow.
        let [segment] = layout(CIPHERS[0]).segments().to_vec().try_into().expect("one segment");
        let after = Segment { at: segment.len, stored_at: segment.len, payload: Payload::Clear, ..segment.clone() };
        let layout = Layout::new(vec![segment, after]).expect("a good layout");
        let (_server, client, buffer_pool, _socket) = key_process(&layout);
        let mut pooled = buffer_pool.allocate(LEN).expect("there is room");
        let mut mine = vec![0; LEN];
        for bad in (0..LEN).step_by(PART).chain((0..LEN).step_by(3 * PART)) {
            let mut fail = |past: usize, _: &mut [u8]| -> io::Result<()> {
                if past == bad { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            };
            for data in [&mut mine[..], &mut pooled[..LEN]] {
                for error in [client.decrypt(0, 0, data, &mut fail), client.encrypt(0, 0, data, &mut fail)] {
                    assert_eq!(error.expect_err("it fails").kind(), io::ErrorKind::StorageFull);
                }
                // The first parts are inside the segment, the last ones are not.
                let into = 2 * LEN as u64 - bad as u64;
                if bad > 0 {
                    let error = client.decrypt(0, into, data, &mut |_, _| Ok(())).expect_err("it is refused");
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                }
                let (mut once, mut twice) = (vec![3; 1024], vec![3; 1024]);
                let mut written = Vec::new();
                client
                    .encrypt(0, 512, &mut once, &mut |_, stored| -> io::Result<()> {
                        written = stored.to_vec();
                        Ok(())
                    })
                    .expect("encrypted");
                let mut read = |_, stored: &mut [u8]| -> io::Result<()> {
                    stored.copy_from_slice(&written);
                    Ok(())
                };
                client.decrypt(0, 512, &mut twice, &mut read).expect("decrypted");
                assert_eq!(twice, [3; 1024]);
            }
        }
    }

    #[test]
    fn who_asks_hears_that_the_key_process_has_gone_or_that_its_keys_have() {
        let layout = layout(CIPHERS[0]);
        let (server, client, buffer_pool, socket) = key_process(&layout);
        server.wipe();
        let mut pooled = buffer_pool.allocate(LEN).expect("there is room");
        assert!(client.decrypt(0, 0, &mut pooled[..LEN], &mut |_, _| Ok(())).is_err());
        // Nobody answers from now on: the server checks for its end only when idle.
        drop(socket);
        assert!(client.encrypt(0, 0, &mut pooled[..LEN], &mut |_, _| Ok(())).is_err());
        assert!(client.decrypt(0, 0, &mut [0; 512], &mut |_, _| Ok(())).is_err());
    }
}

//! The side of the process that has no keys.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::volume::kept::{Access, Keeper};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{Shutdown, shutdown};
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

use super::files;
use super::shared_sys::{ROOM, Request, SLOTS, Slot, Slots};
use super::{ANSWERED, ASKED, DECRYPT, DONE, ENCRYPT, WIPED, WRONG};
use crate::wait::wait;

/// How long a thread looks for the answer before it sleeps: about as long as the keeper takes for a piece of a large request.
const SPIN: Duration = Duration::from_micros(100);

/// How long it sleeps before it looks whether the keeper still lives.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Asks the keeper. On drop the keeper wipes its keys and ends.
pub struct Asking {
    shared: Arc<Connected>,
    watcher: Option<thread::JoinHandle<()>>,
}

struct Connected {
    slots: Slots,
    socket: OwnedFd,
    /// Nobody answers any more.
    gone: AtomicBool,
    /// That is because this side wanted it.
    closed: AtomicBool,
}

impl Asking {
    /// Over these slots. Calls `lost` once if the keeper goes before this value does.
    pub(super) fn new(slots: Slots, socket: UnixStream, lost: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (gone, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Connected { slots, socket: socket.into(), gone, closed });
        let watched = Arc::clone(&shared);
        let watch = move || {
            // The keeper says nothing any more: what comes is its end.
            while !wait(&mut [PollFd::new(&watched.socket, PollFlags::IN)], None).unwrap_or(true) {}
            watched.gone.store(true, Ordering::SeqCst);
            (0..SLOTS).for_each(|slot| wake(watched.slots.shared().request(slot)));
            if !watched.closed.load(Ordering::SeqCst) {
                lost();
            }
        };
        let watcher = thread::Builder::new().name("keeper".into()).stack_size(64 << 10).spawn(watch)?;
        Ok(Self { shared, watcher: Some(watcher) })
    }
}

impl Asking {
    /// Lets the keeper go, and waits until it has ended.
    pub(super) fn end(mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // It reads this as the end, and the watcher its own.
        let _ = shutdown(self.shared.socket.as_fd(), Shutdown::Write);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let _ = shutdown(self.shared.socket.as_fd(), Shutdown::Both);
        // It may be the watcher itself that drops the last reference.
        match self.watcher.take() {
            Some(watcher) if watcher.thread().id() != thread::current().id() => drop(watcher.join()),
            _ => {}
        }
    }
}

impl Keeper for Asking {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut Access<'_>) -> io::Result<()> {
        let mut slot = self.slot(out.len())?;
        read(slot.memory(out.len()))?;
        self.shared.ask(&slot, DECRYPT, segment, into, out.len())?;
        out.copy_from_slice(slot.memory(out.len()));
        Ok(())
    }

    fn encrypt(&self, segment: u32, into: u64, data: &[u8], write: &mut Access<'_>) -> io::Result<()> {
        let mut slot = self.slot(data.len())?;
        slot.memory(data.len()).copy_from_slice(data);
        self.shared.ask(&slot, ENCRYPT, segment, into, data.len())?;
        write(slot.memory(data.len()))
    }

    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut Access<'_>,
    ) -> io::Result<Option<u32>> {
        let mut slot = self.slot(out.len() + tags)?;
        read(slot.memory(out.len() + tags))?;
        let wrong = self.shared.ask_tagged(&slot, DECRYPT, segment, into, out.len())?;
        out.copy_from_slice(slot.memory(out.len()));
        Ok(wrong)
    }

    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut Access<'_>,
    ) -> io::Result<()> {
        let mut slot = self.slot(data.len() + tags)?;
        slot.memory(data.len()).copy_from_slice(data);
        self.shared.ask(&slot, ENCRYPT, segment, into, data.len())?;
        write(slot.memory(data.len() + tags))
    }
}

impl Asking {
    /// Has something done with the keys of a folder: see [`files`].
    pub(super) fn ask_of_folder(&self, order: u32, file: u32, said: &[u8]) -> io::Result<Vec<u8>> {
        if said.len() > files::MOST {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let mut slot = self.slot(4 + files::MOST)?;
        slot.memory(said.len()).copy_from_slice(said);
        self.shared.ask(&slot, order, file, 0, said.len())?;
        let (len, answer) = slot.memory(4 + files::MOST).split_at(4);
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
        answer.get(..len as usize).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn slot(&self, len: usize) -> io::Result<Slot<'_>> {
        if len > ROOM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than the keeper takes at a time"));
        }
        Ok(self.shared.slots.take())
    }
}

impl Connected {
    fn ask(&self, slot: &Slot<'_>, order: u32, segment: u32, into: u64, len: usize) -> io::Result<()> {
        self.ask_tagged(slot, order, segment, into, len)?.map_or(Ok(()), |_| Err(refused()))
    }

    /// The same for sectors that may have tags, of which one may be wrong.
    fn ask_tagged(&self, slot: &Slot<'_>, order: u32, segment: u32, into: u64, len: usize) -> io::Result<Option<u32>> {
        let request = slot.request();
        request.order.store(order, Ordering::Relaxed);
        request.segment.store(segment, Ordering::Relaxed);
        request.into.store(into, Ordering::Relaxed);
        request.len.store(len as u32, Ordering::Relaxed);
        // Either this is seen by a keeper that is about to sleep, or that it sleeps is seen here.
        request.state.store(ASKED, Ordering::SeqCst);
        if request.keeper_sleeps.load(Ordering::SeqCst) != 0 {
            wake(request);
        }
        self.wait_for_answer(request)?;
        match request.answer.load(Ordering::Relaxed) {
            DONE => Ok(None),
            WIPED => Err(gone()),
            wrong @ WRONG.. => Ok(Some(wrong - WRONG)),
            _ => Err(refused()),
        }
    }

    fn wait_for_answer(&self, request: &Request) -> io::Result<()> {
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
            // Interrupted, too late, or woken: the state says it.
            let _ = futex::wait(&request.state, Flags::empty(), ASKED, Some(&TICK));
            request.asker_sleeps.store(0, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// What a request comes to when there is nobody to carry it out.
fn gone() -> io::Error {
    io::Error::other("the process that held the keys has ended")
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the process that holds the keys refuses this")
}

fn wake(request: &Request) {
    let _ = futex::wake(&request.state, Flags::empty(), 1);
}

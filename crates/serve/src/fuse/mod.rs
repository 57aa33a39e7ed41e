//! Mounts a store as a folder with one file, `volume`, whose contents are the store's.
//!
//! The file's size is fixed, and the file and folder belong to one user. There is no cache between programs and the
//! store: the store has taken every write that was reported as done. This program speaks FUSE directly with the kernel,
//! over /dev/fuse or, where available, io_uring. Folders and files are mounted the same way: [`tree`].
//!
//! ```no_run
//! use std::sync::Arc;
//! use claviger_engine::store::{Access, FileStore};
//! use claviger_serve::fuse::{self, FuseOptions, Image};
//!
//! let store = FileStore::open("disk.img".as_ref(), Access::ReadWrite)?;
//! let mounted = fuse::mount(Image::new(Arc::new(store)), "/mnt/disk".as_ref(), FuseOptions::default())?;
//! let handle = mounted.handle(); // .stop() ends it, from any thread
//! mounted.run()?;
//! # Ok::<(), claviger_engine::Error>(())
//! ```
//!
//! While a program serves a file, it must not use that file itself, except from threads that the server does not wait
//! for. It must not start other programs either: between fork and exec, the new process holds the old one's open files.

mod answers;
mod device;
mod image;
mod listening;
mod mount;
mod protocol;
mod sys;
pub mod tree;
mod uring;
mod uring_sys;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::{Error, Result, Store};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::mount::unmount::Detached;
use crate::spin::Awake;
use answers::Answers;
use device::{Channel, End};
pub use image::NAME;
use image::ServedImage;
use listening::Listening;
pub use mount::available;
use mount::{MountedFolder, NewMount};
use uring::ProcessorThread;

/// A store that is mounted.
pub struct Image {
    /// The store to show.
    pub store: Arc<dyn Store>,
    /// Whether writes are refused even if the store is writable.
    pub read_only: bool,
    /// The user who owns the file. Only this user and root may use it.
    pub uid: u32,
    /// The file's group, which has no access.
    pub gid: u32,
}

impl Image {
    /// An image that belongs to the user of this process and is writable if `store` is.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { store, read_only: false, uid, gid }
    }
}

/// How the kernel's requests are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FuseTransport {
    /// The fastest transport that the kernel supports.
    #[default]
    Auto,
    /// /dev/fuse.
    Device,
    /// io_uring: Linux 6.14, with the parameter `enable_uring` of the module fuse.
    Uring,
}

/// Tuning options. The defaults suit most uses.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// How the kernel's requests are received.
    pub transport: FuseTransport,
    /// Threads that serve requests from /dev/fuse, and so the number of requests that the store works on at a time. All
    /// but two rest while these two are not busy. A store that bypasses the page cache gets at least 64.
    pub threads: usize,
    /// How long a thread polls /dev/fuse for its next request before it sleeps, while processors are free.
    pub spin: Duration,
    /// The source in `/proc/mounts`: the volume.
    pub source: String,
    /// Whether the kernel checks other users' permissions instead of refusing them all. The permissions allow only
    /// root, including setuid-root programs. Without root, this needs `user_allow_other` in /etc/fuse.conf.
    pub shared: bool,
    /// How long users of the folder have to leave it after the server stops. Then they are cut off.
    pub grace: Duration,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            transport: FuseTransport::Auto,
            threads: thread::available_parallelism().map_or(2, usize::from).clamp(2, 8),
            source: "claviger".into(),
            shared: false,
            spin: Duration::from_micros(50),
            grace: Duration::from_secs(5),
        }
    }
}

/// A mounted image or tree. Dropping it unmounts.
pub struct FuseMount {
    // Listed first, to unmount before the connection is closed.
    place: MountedFolder,
    workers: Mutex<Vec<Worker>>,
    shared: Arc<Shared>,
    uring: bool,
}

/// Stops serving, from any thread. A handle keeps nothing open: when [`FuseMount::run`] returns, the store is released.
#[derive(Clone)]
pub struct FuseHandle(Arc<Control>);

/// Mounts `image` on the folder `dir`. Programs that access it wait until [`FuseMount::run`] is called.
///
/// Root mounts directly; other users mount through fusermount3.
///
/// # Errors
/// `Io` if mounting fails; `Unsupported` if the kernel is too old or lacks the requested transport.
pub fn mount(image: Image, dir: &Path, options: FuseOptions) -> Result<FuseMount> {
    let read_only = image.read_only || !image.store.writable();
    let (source, uid, shared) = (&*options.source, image.uid, options.shared);
    let new = NewMount { dir, source, read_only, uid, shared, devices: false, setuid: false };
    let options = options_for(&*image.store, options.clone());
    serve(&new, Box::new(ServedImage::new(image)), options)
}

/// The options for a store. If each request waits for a disk, the disk is busy only if many requests are in flight,
/// each on its own thread; over io_uring, a processor has few threads.
fn options_for(store: &dyn Store, options: FuseOptions) -> FuseOptions {
    /// Requests that the kernel itself keeps in flight.
    const DEPTH: usize = 64;
    if !store.bypasses_cache() {
        return options;
    }
    let transport = if options.transport == FuseTransport::Auto { FuseTransport::Device } else { options.transport };
    FuseOptions { threads: options.threads.max(DEPTH), transport, ..options }
}

/// Answers the kernel's messages for an image: [`crate::fuzzing`].
pub(crate) fn fuzz(image: Image, messages: &[u8]) {
    device::fuzz(&ServedImage::new(image), messages);
}

/// Mounts a folder whose requests `served` answers.
fn serve(new: &NewMount<'_>, served: Box<dyn Answers>, options: FuseOptions) -> Result<FuseMount> {
    if options.transport == FuseTransport::Uring && !uring::is_allowed() {
        return Err(no_uring());
    }
    let control = Control::new()?;
    let (place, fd) = mount::mount(new)?;
    let mut channel = Channel::new(fd);
    let threads = match options.transport {
        FuseTransport::Device => Vec::new(),
        // Falls back to /dev/fuse without an error.
        FuseTransport::Auto if uring::is_allowed() => uring::threads(channel.fd()).unwrap_or_default(),
        FuseTransport::Auto => Vec::new(),
        FuseTransport::Uring => uring::threads(channel.fd())?,
    };
    let uring = channel.negotiate(served.wants(), !threads.is_empty()).map_err(|e| e.at(new.dir))?.uring;
    if options.transport == FuseTransport::Uring && !uring {
        return Err(no_uring());
    }
    let mut workers = Vec::new();
    if uring {
        workers.extend(threads.into_iter().map(|thread| Worker::Uring(Box::new(thread))));
    } else {
        for _ in 1..options.threads {
            workers.push(Worker::Device(Channel::new(mount::another(channel.fd())?)));
        }
    }
    // Needed for io_uring, too: some messages always come over /dev/fuse, and all of them until every queue is served.
    workers.push(Worker::Device(channel));
    let listening = Listening::new(workers.iter().filter(|worker| matches!(worker, Worker::Device(_))).count());
    let shared = Shared { served, options, control: Arc::new(control), awake: Awake::new(), listening };
    Ok(FuseMount { place, workers: Mutex::new(workers), shared: Arc::new(shared), uring })
}

fn no_uring() -> Error {
    Error::unsupported("FUSE over io_uring")
        .hint("It needs Linux 6.14 or later, enabled by root: echo Y >/sys/module/fuse/parameters/enable_uring")
}

impl FuseMount {
    /// A handle that stops the server.
    pub fn handle(&self) -> FuseHandle {
        FuseHandle(Arc::clone(&self.shared.control))
    }

    /// Whether requests come over io_uring.
    pub fn uses_uring(&self) -> bool {
        self.uring
    }

    /// Serves until the folder is unmounted or [`FuseHandle::stop`] is called. On return the folder is never mounted
    /// any more, and written data are durable, or this fails.
    ///
    /// # Errors
    /// `Io` if the connection breaks, the final flush fails or the folder is still mounted; `Misuse` for a second call.
    pub fn run(&self) -> Result<()> {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        if workers.is_empty() {
            return Err(Error::misuse("this has already been served"));
        }
        let shared = &*self.shared;
        shared.control.state().working = workers.len();
        let (served, unmounted) = thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut result = Ok(());
            for (number, worker) in workers.into_iter().enumerate() {
                let leaving = Leaving(shared);
                let work = move || leaving.with(worker.serve(shared));
                match thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, work) {
                    Ok(thread) => threads.push(thread),
                    Err(e) => {
                        shared.control.give_up();
                        result = Err(e);
                    }
                }
            }
            let flusher = shared.served.flushed_every().map(|time| {
                let keep = move || shared.keep_durable(time);
                thread::Builder::new().name("flush".into()).spawn_scoped(scope, keep)
            });
            let unmounted = shared.control.supervise(&self.place, shared.options.grace);
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")));
                result = result.and(ended);
            }
            // A program that needs durable data calls fsync.
            drop(flusher.map(|flusher| flusher.map(thread::ScopedJoinHandle::join)));
            (result, unmounted)
        });
        served.and(shared.served.finish())?;
        unmounted
    }
}

impl FuseHandle {
    /// Stops serving without waiting: [`FuseMount::run`] returns when everything is done.
    ///
    /// The folder is unmounted as soon as nobody uses it, or after [`FuseOptions::grace`] in any case.
    pub fn stop(&self) {
        self.0.state().stop = true;
        self.0.changed.notify_all();
    }
}

/// One thread's part of the connection.
enum Worker {
    Device(Channel),
    Uring(Box<ProcessorThread>),
}

impl Worker {
    fn serve(self, shared: &Shared) -> io::Result<End> {
        match self {
            Self::Device(mut channel) => channel.serve(shared),
            Self::Uring(mut thread) => thread.serve(shared),
        }
    }
}

/// State shared by the threads of a server.
struct Shared {
    served: Box<dyn Answers>,
    options: FuseOptions,
    control: Arc<Control>,
    /// Threads that are not asleep.
    awake: Awake,
    /// Threads that wait for requests from /dev/fuse.
    listening: Listening,
}

impl Shared {
    /// Makes changes durable at intervals, until the server ends.
    fn keep_durable(&self, every: Duration) {
        while self.control.wait(Some(every), |state| state.failed).working > 0 && !self.control.is_ending() {
            // Programs that need the result call fsync, and the final flush reports errors too.
            let _ = self.served.flush();
        }
    }
}

/// State shared between the handle and the workers.
struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// Workers must end.
    ending: AtomicBool,
    /// Readable once `ending` is set.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    /// A handle has asked to stop.
    stop: bool,
    /// A worker failed: requests may stay unanswered.
    failed: bool,
    /// Workers that have not ended yet.
    working: usize,
}

impl Control {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), changed: Condvar::new(), ending: AtomicBool::new(false), wake })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no worker is left, `enough` holds or the time is over.
    fn wait(&self, time: Option<Duration>, enough: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waits = |state: &mut State| state.working > 0 && !enough(state);
        match time {
            None => self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.changed.wait_timeout_while(self.state(), time, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Waits until the workers end or a stop is requested, then makes sure that they end. Fails if the folder is still
    /// mounted.
    fn supervise(&self, place: &MountedFolder, grace: Duration) -> Result<()> {
        let mut state = self.wait(None, |state| state.stop || state.failed);
        let grace = if state.failed { Duration::ZERO } else { grace };
        let deadline = Instant::now() + grace;
        while state.working > 0 && !state.failed && Instant::now() < deadline {
            drop(state);
            // The workers serve the unmount like any request, so pending writes are still written.
            if !matches!(place.unmount(), Ok(Detached::Busy)) {
                break;
            }
            state = self.wait(Some(Duration::from_millis(50)), |state| state.failed);
        }
        let unmounted = place.detach();
        self.end();
        unmounted
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Ends everything at once, because some programs may wait for an answer that never comes. Without workers the
    /// kernel ends the connection, and all waiting programs, including an unmount, get an error.
    fn give_up(&self) {
        self.state().failed = true;
        self.end();
        self.changed.notify_all();
    }

    fn end(&self) {
        self.ending.store(true, Ordering::Release);
        // This fails only if the counter overflows, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Removes a worker from the count, however it ends.
struct Leaving<'a>(&'a Shared);

impl Leaving<'_> {
    fn with<T>(&self, ended: io::Result<T>) -> io::Result<()> {
        if ended.is_err() {
            self.0.control.give_up();
        }
        ended.map(drop)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let control = &self.0.control;
        control.state().working -= 1;
        if thread::panicking() {
            control.give_up();
        }
        control.changed.notify_all();
        // The other workers see for themselves why the server ends.
        self.0.listening.over();
    }
}

//! A store as a file: a mounted folder with one file, `volume`, whose contents are the store's.
//!
//! The file never grows or shrinks, it and the folder belong to one user, and there is no cache between the programs that
//! use it and the store: what a program was told to be written, the store has taken. FUSE is spoken directly with the kernel,
//! over /dev/fuse or, where the kernel has it, io_uring. Folders and files are mounted the same way: [`tree`].
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
//! A program must not use the file that it serves itself, except from threads that the server does not wait for, and must
//! start no other program while it does: between fork and exec the new process holds what this one has open.

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

use crate::spin::Awake;
use answers::Answers;
use device::{Channel, End};
pub use image::NAME;
use image::ServedImage;
use listening::Listening;
pub use mount::available;
use mount::{Gone, MountedFolder, Wish};
use uring::Processor;

/// A store that is mounted.
pub struct Image {
    /// What is served.
    pub store: Arc<dyn Store>,
    /// Whether writes are refused, even if the store could take them.
    pub read_only: bool,
    /// The user whom the file belongs to, and who alone may use it, besides root.
    pub uid: u32,
    /// The file's group, which may do nothing with it.
    pub gid: u32,
}

impl Image {
    /// An image that belongs to the user of this process and can be written if `store` can.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { store, read_only: false, uid, gid }
    }
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FuseTransport {
    /// The fastest that the kernel allows.
    #[default]
    Auto,
    /// /dev/fuse.
    Device,
    /// io_uring: Linux 6.14, with the parameter `enable_uring` of the module fuse.
    Uring,
}

/// Tuning. The defaults are right for most.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// How requests come from the kernel.
    pub transport: FuseTransport,
    /// Threads that serve requests from /dev/fuse, and so requests that the store works on at a time. All but two rest as long
    /// as these are not busy. There are 64 at least where the store goes past the page cache.
    pub threads: usize,
    /// Time that a thread may look for its next request on /dev/fuse before it sleeps, while processors are free.
    pub spin: Duration,
    /// What `/proc/mounts` is to name as the source: the volume.
    pub source: String,
    /// Whether the kernel lets other users as far as the permissions, which let in none but root: programs that are setuid
    /// root count as others. Without root it takes `user_allow_other` in /etc/fuse.conf.
    pub shared: bool,
    /// Time that users of the folder have to leave it once the server stops; then they are cut off.
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
    // Unmounted before the connection is closed.
    place: MountedFolder,
    workers: Mutex<Vec<Worker>>,
    shared: Arc<Shared>,
    uring: bool,
}

/// Stops serving, from any thread. It keeps nothing open: when [`FuseMount::run`] returns, the store is let go.
#[derive(Clone)]
pub struct FuseHandle(Arc<Control>);

/// Mounts `image` on the folder `dir`. Programs that use it wait until [`FuseMount::run`] is called.
///
/// Root mounts by itself, others through the program fusermount3.
///
/// # Errors
/// `Io` where that is not possible, `Unsupported` for a kernel that is too old or has not the transport that is asked for.
pub fn mount(image: Image, dir: &Path, options: FuseOptions) -> Result<FuseMount> {
    let read_only = image.read_only || !image.store.writable();
    let wish = Wish {
        dir,
        source: &options.source,
        read_only,
        uid: image.uid,
        shared: options.shared,
        devices: false,
        setuid: false,
    };
    let options = options_for(&*image.store, options.clone());
    serve(&wish, Box::new(ServedImage::new(image)), options)
}

/// The options for a store. Where each request waits for a disk, a disk is busy only if many are under way, each on a thread; over
/// io_uring one thread serves all requests of a processor.
fn options_for(store: &dyn Store, options: FuseOptions) -> FuseOptions {
    /// Requests that the kernel keeps under way for itself.
    const DEPTH: usize = 64;
    if !store.bypasses_cache() {
        return options;
    }
    let transport = if options.transport == FuseTransport::Auto { FuseTransport::Device } else { options.transport };
    FuseOptions { threads: options.threads.max(DEPTH), transport, ..options }
}

/// Answers messages of the kernel for an image: [`crate::fuzzing`].
pub(crate) fn fuzz(image: Image, messages: &[u8]) {
    device::fuzz(&ServedImage::new(image), messages);
}

/// Mounts what `served` answers for.
fn serve(wish: &Wish<'_>, served: Box<dyn Answers>, options: FuseOptions) -> Result<FuseMount> {
    if options.transport == FuseTransport::Uring && !uring::is_allowed() {
        return Err(no_uring());
    }
    let control = Control::new()?;
    let (place, fd) = mount::mount(wish)?;
    let mut channel = Channel::new(fd);
    let queues = match options.transport {
        FuseTransport::Device => Vec::new(),
        // Where it is not to be had, it is not missed.
        FuseTransport::Auto if uring::is_allowed() => uring::processors(channel.fd()).unwrap_or_default(),
        FuseTransport::Auto => Vec::new(),
        FuseTransport::Uring => uring::processors(channel.fd())?,
    };
    let uring = channel.negotiate(served.wants(), !queues.is_empty()).map_err(|e| e.at(wish.dir))?.uring;
    if options.transport == FuseTransport::Uring && !uring {
        return Err(no_uring());
    }
    let mut workers = Vec::new();
    if uring {
        workers.extend(queues.into_iter().map(|queue| Worker::Uring(Box::new(queue))));
    } else {
        for _ in 1..options.threads {
            workers.push(Worker::Device(Channel::new(mount::another(channel.fd())?)));
        }
    }
    // Over io_uring, too: some messages always come this way, and all of them until all queues are served.
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
    /// What stops it.
    pub fn handle(&self) -> FuseHandle {
        FuseHandle(Arc::clone(&self.shared.control))
    }

    /// Whether requests come over io_uring.
    pub fn uses_uring(&self) -> bool {
        self.uring
    }

    /// Serves until it is unmounted or [`FuseHandle::stop`] is called. Whatever happens, it is not mounted any more on return,
    /// and what was written is durable, or this fails.
    ///
    /// # Errors
    /// `Io` if the connection breaks or the store cannot be made durable at the end, `Misuse` for a second call.
    pub fn run(&self) -> Result<()> {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        if workers.is_empty() {
            return Err(Error::misuse("this was served already"));
        }
        let shared = &*self.shared;
        shared.control.state().working = workers.len();
        let served = thread::scope(|scope| {
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
            shared.control.supervise(&self.place, shared.options.grace);
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")));
                result = result.and(ended);
            }
            // It is missed by nobody who asks for fsync.
            drop(flusher.map(|flusher| flusher.map(thread::ScopedJoinHandle::join)));
            result
        });
        Ok(served.and(shared.served.finish())?)
    }
}

impl FuseHandle {
    /// Stops serving: [`FuseMount::run`] returns when all is done. Never waits.
    ///
    /// It unmounts as soon as nobody uses the folder, and after [`FuseOptions::grace`] anyway.
    pub fn stop(&self) {
        self.0.state().stop = true;
        self.0.changed.notify_all();
    }
}

/// One thread's part of the connection.
enum Worker {
    Device(Channel),
    Uring(Box<Processor>),
}

impl Worker {
    fn serve(self, shared: &Shared) -> io::Result<End> {
        match self {
            Self::Device(mut channel) => channel.serve(shared),
            Self::Uring(mut processor) => processor.serve(shared),
        }
    }
}

/// What the threads of a server share.
struct Shared {
    served: Box<dyn Answers>,
    options: FuseOptions,
    control: Arc<Control>,
    /// Threads that do not sleep.
    awake: Awake,
    /// Threads that wait for requests from /dev/fuse.
    listening: Listening,
}

impl Shared {
    /// Makes changes durable from time to time, until the server ends.
    fn keep_durable(&self, every: Duration) {
        while self.control.wait(Some(every), |state| state.failed).working > 0 && !self.control.is_ending() {
            // A program that wants to know asks by fsync; the end of it all tells too.
            let _ = self.served.flush();
        }
    }
}

/// What a server is to do.
struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// Workers are to end.
    ending: AtomicBool,
    /// Readable from then on.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Somebody has asked to stop.
    stop: bool,
    /// A worker has given up: requests may stay without an answer.
    failed: bool,
    /// Workers that have not ended.
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

    /// Waits until no worker is left, or `enough`, or the time is over.
    fn wait(&self, time: Option<Duration>, enough: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waits = |state: &mut State| state.working > 0 && !enough(state);
        match time {
            None => self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.changed.wait_timeout_while(self.state(), time, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Waits until the workers have ended, or are to end, and sees to it that they do.
    fn supervise(&self, place: &MountedFolder, grace: Duration) {
        let mut state = self.wait(None, |state| state.stop || state.failed);
        let grace = if state.failed { Duration::ZERO } else { grace };
        let deadline = Instant::now() + grace;
        while state.working > 0 && !state.failed && Instant::now() < deadline {
            drop(state);
            // Served by the workers as everything else: what is left to be written is written.
            if !matches!(place.unmount(), Ok(Gone::Busy)) {
                break;
            }
            state = self.wait(Some(Duration::from_millis(50)), |state| state.failed);
        }
        place.detach();
        self.end();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Ends everything at once: somebody may wait for an answer that does not come. Without any worker the kernel ends the
    /// connection, and whoever waits gets an error; an unmounting that waits, too.
    fn give_up(&self) {
        self.state().failed = true;
        self.end();
        self.changed.notify_all();
    }

    fn end(&self) {
        self.ending.store(true, Ordering::Release);
        // It fails only if the counter overflows, and then it is readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Counts a worker out when it ends, however it ends.
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
        // The others see for themselves why it ends.
        self.0.listening.over();
    }
}

//! Mounting a volume: its plaintext as a file, and the file system inside it on top.
//!
//! For root, the kernel mounts the file system from a loop device on that file. For users, a program reads and writes
//! the file, or this process serves the file system itself. Teardown always begins at the top: first the file system,
//! then the file below it. It is complete when everything has been written to the store.

mod apart;
pub(crate) mod drivers;
mod growing;
mod holders;
mod image;
pub(crate) mod loop_device;
mod loop_sys;
pub mod mountinfo;
pub(crate) mod unmount;

use std::fs;
use std::io;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::file_formats::Stacked;
use claviger_engine::filesystems::{self, Kind};
use claviger_engine::store::{CountedStore, Traffic};
use claviger_engine::trees::Tree;
use claviger_engine::{Error, ErrorKind, Result, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Signal, geteuid};

use crate::fuse::tree::Showing;
use crate::fuse::{self, FuseOptions, FuseTransport};
use crate::sessions::{Live, Process, escape};
use drivers::{Call, MountMethod, Mounter, Program};
use image::ServedMount;
use unmount::{Detached, InView, detach, end_driver, flush, in_view};

pub use apart::apart;
pub use drivers::find as find_program;
pub use growing::{can_grow, filesystem_growth, follow_size, grow_filesystem};
pub use loop_device::LoopDevice;
pub use unmount::{Ended, clean_all, end, unmount};

/// How long a program may take to mount a file system: it may have to replay a journal.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which file system to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The one detected in the volume.
    Auto,
    /// None: the folder shows the plaintext as one file.
    None,
    /// The one with this name.
    Named(String),
    /// A writable one of this kind, by a FUSE program even where the kernel could mount it. A read-only mount is an
    /// error, as with ntfs-3g after Windows has hibernated. This process may use it itself, [`apart`].
    Program(Kind),
}

/// What to mount, where and how.
pub struct MountRequest {
    /// An empty folder, as an absolute path without symbolic links.
    pub dir: PathBuf,
    /// The file system inside.
    pub filesystem: Choice,
    /// Whether to mount read-only.
    pub read_only: bool,
    /// Options for the file system.
    pub options: Vec<String>,
    /// Whether the kernel holds back writes: see [`Showing::writeback`]. Only where this process itself serves the files.
    pub writeback: bool,
}

/// When to end, apart from an unmount.
pub struct Until<'a> {
    /// Becomes readable with each signal that asks for the end; the bytes are consumed.
    pub signals: BorrowedFd<'a>,
    /// Ends when this process does.
    pub parent: Option<Process>,
    /// Ends when nothing has been read or written for this long.
    pub idle: Option<Duration>,
    /// Whether an idle mount must stay for now, because a request may be waiting for keys.
    pub waits: &'a dyn Fn() -> bool,
}

/// A mounted volume.
pub struct MountedVolume {
    source: Source,
    dir: PathBuf,
    /// What this process serves: the file, or the file system itself.
    served: ServedMount,
    /// The mount on top of the file.
    top: Top,
    /// Warnings for the user.
    warnings: Vec<String>,
    /// Dropped last: once the mount is no longer listed, the volume's lock is released too.
    live: Live,
}

/// The plaintext that is served.
enum Source {
    /// The plaintext of a volume.
    Bytes(Arc<CountedStore<Arc<dyn Store>>>),
    /// The plaintext of a folder.
    Files(Arc<Stacked>),
}

impl Source {
    fn traffic(&self) -> Traffic {
        match self {
            Self::Bytes(store) => store.traffic(),
            Self::Files(tree) => tree.traffic(),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self {
            Self::Bytes(store) => store.flush(),
            Self::Files(tree) => tree.flush(),
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Self::Bytes(store) => store.failure(),
            Self::Files(tree) => tree.failure(),
        }
    }
}

/// The mount on top of the served file.
enum Top {
    /// Nothing.
    Nothing,
    /// The kernel's file system.
    Kernel,
    /// The file system of a program.
    Program(Child),
}

/// Mounts the volume whose plaintext is `store`.
///
/// # Errors
/// `Misuse` if the folder is not empty; `NotThisFormat` if no file system is found; `Unsupported` if nothing can mount
/// it here; `Io`. Nothing stays mounted.
pub fn mount(
    store: Arc<CountedStore<Arc<dyn Store>>>,
    request: &MountRequest,
    mut live: Live,
) -> Result<MountedVolume> {
    let who = mounter();
    let asked = asks_read_only(request);
    let read_only = request.read_only || !store.writable();
    let way = match &request.filesystem {
        Choice::None => None,
        Choice::Auto => Some(drivers::way(detect(&*store)?, who, read_only)?),
        Choice::Named(name) => Some(drivers::way_by_name(name, who, read_only)?),
        Choice::Program(kind) => Some(drivers::way_by_program(*kind, who)?),
    };
    if request.writeback && !matches!(way, Some(MountMethod::Own(_))) {
        let what = "--writeback is for encrypted folders, and for FAT and exFAT without the kernel's driver";
        return Err(Error::misuse(what).hint("Omit --writeback."));
    }
    let dir = &request.dir;
    let to_write = matches!(request.filesystem, Choice::Program(_));
    // While any thread of a process lives, its ring's memory stays and holds the connection: see [`apart`].
    let transport = if to_write { FuseTransport::Device } else { FuseTransport::Auto };
    let mut mounting = Mounting {
        dir,
        read_only,
        options: &request.options,
        writeback: request.writeback,
        transport,
        store: &store,
        live: &mut live,
    };
    let instead = match &way {
        Some(MountMethod::Program { program, .. }) if who == Mounter::Root && !to_write => Some(program.name),
        Some(MountMethod::Own(_)) if who == Mounter::Root => Some("claviger"),
        _ => None,
    };
    let (served, top, name, mut warnings) = match way {
        None => {
            mounting.read_only |= asked;
            (mounting.image_at(dir, false)?, Top::Nothing, "none".to_owned(), Vec::new())
        }
        Some(MountMethod::Own(kind)) => {
            mounting.read_only |= asked;
            let (served, warnings) = mounting.own()?;
            (served, Top::Nothing, kind.mount_type().to_owned(), warnings)
        }
        Some(MountMethod::Kernel { kind, unreplayed }) => {
            let (served, warnings) = mounting.kernel(&kind, unreplayed)?;
            (served, Top::Kernel, kind, warnings)
        }
        Some(MountMethod::Program { path, program, kind }) => {
            let (served, child) = mounting.program(&path, program, to_write)?;
            (served, Top::Program(child), kind.mount_type().to_owned(), Vec::new())
        }
    };
    warnings.extend(
        instead.map(|by| format!("The kernel's drivers need loop devices, which are missing here: {by} mounts it.")),
    );
    let source = Source::Bytes(Arc::clone(&store));
    let mut mounted = MountedVolume { live, source, dir: dir.clone(), served, top, warnings };
    // One that must be writable was checked before.
    let turned = !matches!(mounted.top, Top::Nothing) && !read_only && !to_write && is_read_only(dir)?;
    // A user who asked for read-only needs no reason.
    if turned && !asked {
        let store: Arc<dyn Store> = store;
        mounted.warnings.push(why_read_only(&store, &name));
    }
    mounted.named(name, turned)
}

/// Whether the user's options ask for a read-only mount.
fn asks_read_only(request: &MountRequest) -> bool {
    request.options.iter().any(|option| option == "ro")
}

/// Whether the file system at `dir` takes no writes. Some FUSE programs turn read-only without telling the kernel.
fn is_read_only(dir: &Path) -> io::Result<bool> {
    let refused = || access(dir, Access::WRITE_OK) == Err(Errno::ROFS);
    Ok(mountinfo::at(dir)?.is_some_and(|mount| mount.read_only) || refused())
}

/// Why a file system that should be writable is read-only.
fn why_read_only(store: &Arc<dyn Store>, name: &str) -> String {
    match filesystems::is_hibernated(store) {
        Ok(true) => "The mount is read-only: Windows is hibernated or used fast startup. Start Windows and shut it \
             down fully: `shutdown /s /f /t 0`."
            .to_owned(),
        _ => format!(
            "The mount is read-only: the {name} driver found the file system unsafe to write. Check it (chkdsk, fsck)."
        ),
    }
}

/// Mounts the plaintext of an encrypted folder of the format `name`. For root, it is visible to all users, with the
/// files' owners and modes; for others, it is private. With the option `dev`, root also gets working device nodes.
///
/// # Errors
/// `Misuse` for a file system or other options, which only volumes have; `Io`. Nothing stays mounted.
pub fn mount_folder(tree: Arc<Stacked>, name: &str, request: &MountRequest, live: Live) -> Result<MountedVolume> {
    let others: Vec<_> = request.options.iter().filter(|option| *option != "ro").collect();
    let devices = match &others[..] {
        [] => false,
        [option] if *option == "dev" && geteuid().is_root() => true,
        _ => {
            return Err(Error::misuse("an encrypted folder does not support these mount options")
                .hint("It takes `-o ro`, and for root `-o dev`."));
        }
    };
    if request.filesystem != Choice::Auto {
        return Err(Error::misuse("an encrypted folder holds no file system").hint("Omit --filesystem."));
    }
    let source = escape(&live.session().record.volume);
    let options = FuseOptions { source, shared: geteuid().is_root(), ..FuseOptions::default() };
    let writeback = request.writeback;
    let showing = Showing { devices, writeback, ..Showing::folder(request.read_only || asks_read_only(request)) };
    let served = ServedMount::folder(Arc::clone(&tree) as _, showing, &request.dir, options)?;
    // Reports names at the top that cannot be shown. Those further down would take too long.
    let _ = tree.list(tree.root());
    let (dir, warnings) = (request.dir.clone(), tree.warnings());
    let mounted = MountedVolume { live, source: Source::Files(tree), dir, served, top: Top::Nothing, warnings };
    mounted.named(name.to_owned(), false)
}

/// Whether [`Choice::Program`] of this kind can be mounted here.
///
/// # Errors
/// `Unsupported`; `Io` with what to install; those of [`fuse::available`].
pub fn has_program(kind: Kind) -> Result<()> {
    drivers::way_by_program(kind, mounter())?;
    fuse::available()
}

/// Whether the kernel's drivers can mount volumes here: for root, with loop devices.
pub fn by_kernel() -> bool {
    mounter() == Mounter::Kernel
}

fn mounter() -> Mounter {
    match geteuid().is_root() {
        true if loop_device::available() => Mounter::Kernel,
        true => Mounter::Root,
        false => Mounter::User,
    }
}

/// The kind of file system in the store.
fn detect(store: &dyn Store) -> Result<Kind> {
    let found = filesystems::detect(store)?;
    let none = "A new volume has no file system yet. Create one with `claviger create --filesystem` together with \
         the volume, or with mkfs on the file shown by --filesystem none.";
    match found {
        Some(found) if found.kind.holds_files() => Ok(found.kind),
        Some(found) if found.kind == Kind::Lvm => {
            Err(filesystems::instead_of_files(store).hint("To show the plaintext as one file, use --filesystem none."))
        }
        Some(found) => Err(Error::unsupported(format!("it holds {}, which cannot be mounted", found.kind.described()))
            .hint("To show the plaintext as one file, use --filesystem none.")),
        None => {
            let nothing = filesystems::nothing(store);
            Err(if nothing.hint.is_some() { nothing } else { nothing.hint(none) })
        }
    }
}

/// The common parameters of all kinds of mounts.
struct Mounting<'a> {
    dir: &'a Path,
    read_only: bool,
    options: &'a [String],
    writeback: bool,
    transport: FuseTransport,
    store: &'a Arc<CountedStore<Arc<dyn Store>>>,
    live: &'a mut Live,
}

impl Mounting<'_> {
    /// The plaintext as a file in `dir`.
    fn image_at(&self, dir: &Path, shared: bool) -> Result<ServedMount> {
        let store: Arc<dyn Store> = Arc::<CountedStore<_>>::clone(self.store);
        ServedMount::image(store, self.read_only, dir, self.options(shared))
    }

    /// The plaintext as a file in this session's private folder, and the file's path.
    fn private_image(&self, shared: bool) -> Result<(ServedMount, PathBuf)> {
        let dir = self.live.session().image_dir();
        fs::create_dir(&dir).map_err(|e| Error::from(e).at(&dir))?;
        Ok((self.image_at(&dir, shared)?, dir.join(image::NAME)))
    }

    fn own(&self) -> Result<(ServedMount, Vec<String>)> {
        let store: Arc<dyn Store> = Arc::<CountedStore<_>>::clone(self.store);
        let showing = Showing { writeback: self.writeback, ..Showing::volume(self.read_only) };
        ServedMount::tree(store, showing, self.dir, self.options(false))
    }

    /// The options, with the volume as the source in the system's list of mounts.
    fn options(&self, shared: bool) -> FuseOptions {
        let source = escape(&self.live.session().record.volume);
        FuseOptions { transport: self.transport, source, shared, ..FuseOptions::default() }
    }

    fn kernel(&mut self, kind: &str, unreplayed: Option<&str>) -> Result<(ServedMount, Vec<String>)> {
        let (served, image) = self.private_image(false)?;
        let device = LoopDevice::attach(&image, self.read_only, Some(self.store.sector_size()))?;
        self.live.update(|record| record.loop_device = Some(device.path().to_owned()))?;
        let Err(first) = self.kernel_mount(kind, device.path(), None) else { return Ok((served, Vec::new())) };
        // Replaying a journal writes. A read-only mount leaves out the journal's changes.
        let Some(option) = unreplayed.filter(|_| self.read_only) else { return Err(first) };
        self.kernel_mount(kind, device.path(), Some(option)).map_err(|_| first)?;
        let warning = "the journal was not replayed, and cannot be on a read-only mount: files may be outdated";
        Ok((served, vec![warning.to_owned()]))
    }

    /// Runs mount(8), which knows which options are flags and explains the kernel's errors.
    fn kernel_mount(&self, kind: &str, device: &Path, option: Option<&str>) -> Result<()> {
        let own = ["nosuid", "nodev", if self.read_only { "ro" } else { "rw" }];
        let options: Vec<_> = own.into_iter().chain(self.options.iter().map(String::as_str)).chain(option).collect();
        let mut command = Command::new(drivers::find("mount").unwrap_or_else(|| "mount".into()));
        // -i: no helper, which could be this very program; -n: no second list of mounts.
        command.args(["-i", "-n", "-t", kind, "-o", &options.join(","), "--"]).arg(device).arg(self.dir);
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        let output = command.output().map_err(|e| Error::from(e).at(Path::new("mount")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(said(&format!("mounting {kind}"), &output.stderr).at(self.dir))
    }

    fn program(&mut self, path: &Path, program: &Program, to_write: bool) -> Result<(ServedMount, Child)> {
        let (served, image) = self.private_image(program.setuid && !geteuid().is_root())?;
        let call = Call { image: &image, dir: self.dir, read_only: self.read_only, options: self.options };
        let mut child = program.command(path, &call).spawn().map_err(|e| Error::from(e).at(path))?;
        let started = Process::of(child.id()).map_err(Error::from);
        let listening = listen(child.stderr.take().expect("it is a pipe"));
        let mounted = started.and_then(|process| {
            self.live.update(|record| record.driver = Some(process))?;
            wait_until_mounted(&mut child, self.dir)
        });
        let writable = || Ok::<_, Error>(mountinfo::at(self.dir)?.is_some_and(|mount| !mount.read_only));
        let usable = mounted.and_then(|mounted| Ok(mounted && (!to_write || writable()?)));
        match usable {
            Ok(true) => Ok((served, child)),
            failed => {
                let _ = child.kill();
                let _ = child.wait();
                if mountinfo::at(self.dir)?.is_some() {
                    let _ = detach(self.dir, true);
                }
                failed?;
                let words = listening.join().unwrap_or_default();
                Err(said(program.name, &words).at(self.dir))
            }
        }
    }
}

/// Waits until something is mounted at `dir`. Returns false if the program ends first.
fn wait_until_mounted(child: &mut Child, dir: &Path) -> Result<bool> {
    let begin = Instant::now();
    loop {
        if mountinfo::at(dir)?.is_some() {
            return Ok(true);
        }
        if child.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a program's messages while it runs, and keeps the last of them.
fn listen(mut from: ChildStderr) -> thread::JoinHandle<Vec<u8>> {
    const KEPT: usize = 4096;
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            kept.extend_from_slice(&buffer[..n]);
            kept.drain(..kept.len().saturating_sub(KEPT));
        }
        kept
    })
}

/// Another program's error, in its own words.
fn said(who: &str, words: &[u8]) -> Error {
    Error::new(ErrorKind::Io(io::Error::other(format!("{who} failed: {}", in_one_line(words)))))
}

/// A program's messages, fit to print.
fn in_one_line(words: &[u8]) -> String {
    let words = String::from_utf8_lossy(words);
    let lines: Vec<_> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let words = if lines.is_empty() { "it exited without a message".to_owned() } else { lines.join(" ") };
    words.replace(char::is_control, "?")
}

impl MountedVolume {
    /// Names the file system. `turned`: it became read-only although it should be writable.
    fn named(mut self, filesystem: String, turned: bool) -> Result<Self> {
        let read_only = self.served.read_only() || turned;
        self.live.update(|record| {
            record.filesystem = Some(filesystem);
            record.read_only = read_only;
        })?;
        Ok(self)
    }

    /// The session being served.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until it is unmounted by any program, or asked to end. All data are written when this returns.
    ///
    /// # Errors
    /// `Io` if the last writes could not be stored; then the session record says so too.
    pub fn serve(mut self, until: &Until<'_>) -> Result<()> {
        let ended = self.wait(until).and_then(|signals| self.finish(until, signals));
        // However serving ended, writes must be durable.
        let flushed = self.source.flush().map_err(Error::from);
        let written = ended.and(flushed).and_then(|()| self.all_taken());
        if let Err(e) = &written {
            let failure = e.to_string();
            let _ = self.live.update(|record| record.failure = Some(failure));
        }
        written
    }

    /// Fails if any write failed: a file system that writes back later reports errors to nobody.
    fn all_taken(&self) -> Result<()> {
        let Some(failure) = self.source.failure() else { return Ok(()) };
        let count = self.source.traffic().failed_writes;
        let what = format!("{count} writes failed, the first with: {failure}; their data may be lost");
        Err(Error::new(ErrorKind::Io(io::Error::other(what))))
    }

    /// Waits until the volume is unmounted. Returns how many signals asked for that.
    fn wait(&mut self, until: &Until<'_>) -> Result<u32> {
        let changes = mountinfo::watch()?;
        let parent = match &until.parent {
            Some(process) => match process.watch() {
                Some(fd) => Some(fd),
                None => return self.take_down().map(|()| 0),
            },
            None => None,
        };
        let mut idle = until.idle.map(|limit| Idle::new(limit, self.source.traffic()));
        while self.in_place()? {
            let timeout = idle.as_ref().map(|idle| idle.next_look());
            let woken = self.sleep(&changes, until.signals, parent.as_ref(), timeout)?;
            if woken.signalled || woken.orphaned {
                self.take_down()?;
                return Ok(u32::from(woken.signalled));
            }
            if let Some(idle) = &mut idle
                && idle.over(self.source.traffic())
                && ((until.waits)() || !matches!(self.detach(false), Ok(Detached::Done)))
            {
                // The mount is in use, although nothing was read from the volume, or cannot be unmounted: it stays.
                idle.again();
            }
        }
        Ok(0)
    }

    /// Whether the mount is still there.
    fn in_place(&mut self) -> Result<bool> {
        Ok(match &mut self.top {
            Top::Nothing => !self.served.ended(),
            Top::Program(child) => child.try_wait()?.is_none(),
            Top::Kernel => {
                let device = self.live.session().record.loop_device.as_deref();
                mountinfo::mounts()?.iter().any(|mount| Some(&*mount.source) == device)
            }
        })
    }

    /// Sleeps until something happens.
    fn sleep(
        &self,
        changes: &fs::File,
        signals: BorrowedFd<'_>,
        parent: Option<&OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<Woken> {
        let child = match &self.top {
            Top::Program(child) => Process::of(child.id()).ok().and_then(|process| process.watch()),
            _ => None,
        };
        let mut fds = vec![
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(changes, PollFlags::PRI),
            PollFd::from_borrowed_fd(self.served.end(), PollFlags::IN),
        ];
        fds.extend(parent.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let asking = fds.len();
        fds.extend(child.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // The wait is bounded: the mount is checked at intervals even if the kernel reports nothing.
        const LONGEST: Duration = Duration::from_secs(10);
        let timeout = Timespec::try_from(timeout.unwrap_or(LONGEST).min(LONGEST)).expect("some seconds fit");
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let signalled = ready(&fds[0]);
        let orphaned = fds[3..asking].iter().any(ready);
        if signalled {
            take(signals);
        }
        Ok(Woken { signalled, orphaned })
    }

    /// Unmounts even while in use: users keep their open files, and the mount ends when they are done.
    fn take_down(&mut self) -> Result<()> {
        if self.in_place()? && !matches!(self.detach(false), Ok(Detached::Done)) {
            flush(&self.dir);
            self.detach(true)?;
        }
        Ok(())
    }

    /// Unmounts, unless something else is mounted on top.
    fn detach(&self, lazy: bool) -> Result<Detached> {
        match in_view(&self.live.session().record)? {
            InView::Ours | InView::Nothing => detach(&self.dir, lazy),
            InView::Others => Ok(Detached::Busy),
        }
    }

    /// Takes down what is below the file system once nobody uses it. A second signal ends the wait, and open files then fail.
    fn finish(&mut self, until: &Until<'_>, mut signals_seen: u32) -> Result<()> {
        let mut pause = Duration::from_millis(1);
        let mut forced = false;
        while !self.down(forced)? {
            // Unmounting ends before the last close of a loop device, by milliseconds or for as long as programs hold it.
            let timeout = Timespec::try_from(pause).expect("a short time fits");
            let mut signals = [PollFd::new(&until.signals, PollFlags::IN)];
            if poll(&mut signals, Some(&timeout)).is_ok_and(|n| n > 0) {
                take(until.signals);
                signals_seen += 1;
                forced = signals_seen > 1;
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
        self.top = Top::Nothing;
        self.served.join()
    }

    /// Whether everything is down. `forced` does not wait for users.
    fn down(&mut self, forced: bool) -> Result<bool> {
        if let Top::Program(child) = &mut self.top {
            if forced {
                let _ = Process::of(child.id()).map(|process| process.signal(Signal::TERM));
            }
            if child.try_wait()?.is_none() {
                return Ok(false);
            }
        }
        match (self.served.ended(), &self.top) {
            (true, _) => Ok(true),
            // This is the mount point itself, which was unmounted.
            (false, Top::Nothing) if forced => {
                self.served.stop();
                Ok(false)
            }
            (false, Top::Nothing) => Ok(false),
            (false, _) => {
                let image = self.live.session().image_dir();
                if mountinfo::at(&image)?.is_some() {
                    detach(&image, forced)?;
                }
                if forced {
                    self.served.stop();
                }
                Ok(self.served.ended())
            }
        }
    }
}

impl Drop for MountedVolume {
    /// Nothing may stay mounted without a server.
    fn drop(&mut self) {
        if !matches!(self.top, Top::Nothing) {
            let _ = self.detach(true);
        }
        if let Top::Program(child) = &mut self.top {
            let _ = Process::of(child.id()).map(|program| end_driver(&program));
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why a wait ended.
struct Woken {
    /// A signal asked for the end.
    signalled: bool,
    /// The process that this one serves has ended.
    orphaned: bool,
}

/// Consumes the bytes that signals wrote.
fn take(signals: BorrowedFd<'_>) {
    let _ = rustix::io::read(signals, &mut [0; 64]);
}

/// When data was last transferred.
struct Idle {
    limit: Duration,
    since: Instant,
    traffic: Traffic,
}

impl Idle {
    fn new(limit: Duration, traffic: Traffic) -> Self {
        Self { limit, since: Instant::now(), traffic }
    }

    /// How long until the limit could be reached.
    fn next_look(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed()).max(Duration::from_millis(10))
    }

    /// Whether the limit is reached, given the traffic so far.
    fn over(&mut self, traffic: Traffic) -> bool {
        if traffic != self.traffic {
            *self = Self::new(self.limit, traffic);
        }
        self.since.elapsed() >= self.limit
    }

    fn again(&mut self) {
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_when_nothing_went_through() {
        let mut idle = Idle::new(Duration::ZERO, Traffic::default());
        assert!(idle.over(Traffic::default()));
        let mut idle = Idle::new(Duration::from_secs(1000), Traffic::default());
        idle.since -= Duration::from_secs(1000);
        assert!(!idle.over(Traffic { read: 1, ..Traffic::default() }), "something was read since");
        idle.since -= Duration::from_secs(1000);
        assert!(idle.over(Traffic { read: 1, ..Traffic::default() }));
        idle.again();
        assert!(!idle.over(Traffic { read: 1, ..Traffic::default() }));
    }

    #[test]
    fn what_programs_say_is_fit_to_print() {
        let error = said("mount", b"  mount: /x: bad \x1b[2J superblock\n\n  dmesg(1) may\n");
        assert_eq!(error.to_string(), "mount failed: mount: /x: bad ?[2J superblock dmesg(1) may");
        assert_eq!(said("x", b"").to_string(), "x failed: it exited without a message");
    }
}

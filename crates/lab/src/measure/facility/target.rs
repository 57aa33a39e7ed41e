//! A facility in use: created in a store of its own, opened, and used as bytes or as files.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use claviger_engine::internal::random;
use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::mount::mountinfo;

use super::filesystem::{self, MountedFilesystem};
use super::process::{Background, Left, READY, Runner, private_file, retry};
use super::store::FacilityStore;
use super::surface::Surface;
use super::trial::holds;
use super::words::Words;
use super::{CommandStep, Facility, Gives, config_folder};
use crate::measure::lab::Lab;
use crate::measure::memory::Buffer;
use crate::measure::meter::Meter;
use crate::measure::names::tag;
use crate::measure::processes;
use crate::measure::transfer::Data;
use crate::model::figures::Elapsed;
use crate::model::parameters::FilesystemKind;

/// Length of a passphrase: VeraCrypt requires 20 characters for a low PIM.
const PASSPHRASE: usize = 32;

/// The longest name of a socket, in bytes (unix(7), `sun_path` with a zero at its end).
const SOCKET_NAME_MAX: usize = 107;

/// The pass number in the data that fill a volume. No workload uses it.
const FILLING: u64 = u64::MAX;

/// Name of the large file in a folder that stands for bytes.
const BYTES: &str = "claviger-lab-bytes";

/// Bytes that are compared after encrypting in place.
const COMPARED: usize = 64 << 10;

/// Bytes that are written at once when a volume is filled.
const LARGE: usize = 1 << 20;

/// A facility with a store of its own. Dropping it closes it and removes the store.
///
/// One thread makes, opens and closes it. Programs in the background end with that thread, so they do not outlive a lab
/// that is killed.
pub struct FacilityTarget {
    facility: Facility,
    words: Words,
    /// A folder for mount points, sockets, passphrases, what programs print.
    dir: PathBuf,
    /// Where it is opened.
    open: PathBuf,
    store: FacilityStore,
    runner: Runner,
    /// Bytes of the volume.
    size: u64,
    data: Data,
    /// Programs that serve it, in the order in which they were started.
    background: Vec<Background>,
    /// What else its commands left behind.
    left: Vec<Left>,
    filesystem: Option<MountedFilesystem>,
    state: State,
}

#[derive(Default)]
struct State {
    /// Whether it was created and still exists.
    made: bool,
    /// Whether steps to open it must be undone.
    opened: bool,
    /// Whether all of its bytes have been written.
    filled: bool,
    /// The file system that was made in its bytes, if nothing was written over it since.
    formatted: Option<FilesystemKind>,
}

/// Which passphrase a facility is opened with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passphrase {
    Right,
    Wrong,
}

impl FacilityTarget {
    /// A facility with a store of its own, not made yet.
    ///
    /// # Errors
    /// `Io` where there is no room.
    pub fn new(facility: &Facility, lab: &Lab) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", tag(), COUNT.fetch_add(1, Ordering::Relaxed));
        let real = |path: &Path| path.canonicalize().map_err(|e| Error::from(e).at(path));
        let (scratch, stores) = (real(&lab.scratch)?, real(&lab.stores)?);
        // Stores in memory may be in the same folder.
        let dir = scratch.join(format!("{id}.d"));
        private_folder(&dir)?;
        let made = Self::in_folder(facility, lab, &id, &dir, &stores);
        made.inspect_err(|_| {
            let _ = fs::remove_dir_all(&dir);
        })
    }

    fn in_folder(facility: &Facility, lab: &Lab, id: &str, dir: &Path, stores: &Path) -> Result<Self> {
        let open = dir.join("open");
        let password_file = dir.join("password");
        if facility.gives == Gives::Nbd && open.as_os_str().len() > SOCKET_NAME_MAX {
            return Err(
                Error::misuse(format!("too long for a socket's name: at most {SOCKET_NAME_MAX} bytes")).at(&open)
            );
        }
        let size = lab.plan.size - lab.plan.size % 4096;
        let mut words = Words::default();
        words.set_path("open", &open)?;
        words.set_path("dir", dir)?;
        words.set_path("password-file", &password_file)?;
        words.set_path("claviger", &lab.program)?;
        words.set_path("config", &config_folder())?;
        words.set_path("trace-file", &dir.join("trace"))?;
        words.set("id", id);
        words.set("size", size.to_string());
        words.set("kib", (size / 1024).to_string());
        words.set_list("cheap", &facility.cheap);
        words.set_list("trace", &[]);
        let mut target = Self {
            facility: facility.clone(),
            words,
            dir: dir.to_owned(),
            open,
            store: FacilityStore::new(facility.store, id, size, &lab.plan.backing, stores)?,
            runner: Runner { dir: dir.to_owned(), id: id.to_owned(), cancelled: lab.cancelled },
            size,
            data: Data::new(lab.plan.seed),
            background: Vec::new(),
            left: Vec::new(),
            filesystem: None,
            state: State::default(),
        };
        target.words.set_path("store", &target.store.path())?;
        target.set_passphrase(&random_letters()?)?;
        Ok(target)
    }

    /// What it is.
    pub fn facility(&self) -> &Facility {
        &self.facility
    }

    /// Creates the encrypted store anew, after closing it. Its old contents are lost.
    ///
    /// # Errors
    /// `Io` with what the command printed; `Cancelled`.
    pub fn create(&mut self) -> Result<Elapsed> {
        self.words.set_list("cheap", &self.facility.cheap);
        self.create_by(None, &self.facility.create.clone())
    }

    /// Creates it from a store full of plaintext, as people do who encrypt a disk with data on it. Closes it first; its
    /// old contents are lost. Returns the number of bytes and the time.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`]; `Unsupported` where it cannot; `Io` where the contents have changed.
    pub fn encrypt_in_place(&mut self) -> Result<(u64, Elapsed)> {
        let Facility { name, encrypt, plaintext, .. } = self.facility.clone();
        if encrypt.is_empty() {
            return Err(Error::unsupported(format!("encrypting in place by {name}")));
        }
        self.words.set_list("cheap", &self.facility.cheap);
        let elapsed = self.create_by(Some(&plaintext), &encrypt)?;
        self.state.filled = true;
        let surface = self.bytes()?;
        // In the middle there is no file system's own data.
        let at = (surface.len / 2).next_multiple_of(1 << 20);
        let (mut is, mut was) = (Buffer::new(COMPARED), Buffer::new(COMPARED));
        surface.device()?.read(at, &mut is)?;
        self.data.fill(FILLING, at, &mut was);
        match *is == *was {
            true => Ok((surface.len, elapsed)),
            false => {
                let what = format!("{name}: encrypting in place changed the data");
                Err(ErrorKind::Io(std::io::Error::other(what)).into())
            }
        }
    }

    /// Creates it anew by [`Facility::create_default`], or like [`FacilityTarget::create`] if there is none. Opening it then
    /// costs as much as in normal use.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`].
    pub fn create_default(&mut self) -> Result<Elapsed> {
        let Facility { create, create_default, .. } = &self.facility;
        self.words.set_list("cheap", &[]);
        self.create_by(None, &if create_default.is_empty() { create } else { create_default }.clone())
    }

    /// Tries to open it with a wrong passphrase: how long it takes to be refused. It is closed before and after.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`]; `Unsupported` where it opens, since it cannot tell, or where no step uses a passphrase.
    pub fn refuse(&mut self) -> Result<Elapsed> {
        let name = &self.facility.name;
        if !self.facility.open.iter().any(CommandStep::uses_passphrase) {
            return Err(Error::unsupported(format!("a wrong passphrase for {name}: it opens without one")));
        }
        // It opens with the right passphrase, so the passphrase is the reason for the refusal.
        self.open()?;
        self.close()?;
        let meter = Meter::start();
        let opened = self.open_with(Passphrase::Wrong);
        let elapsed = meter.elapsed();
        match opened {
            Ok(()) => {
                self.close()?;
                let what = format!("{}: a wrong passphrase opens it", self.facility.name);
                Err(Error::unsupported(what))
            }
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => Err(e),
            Err(_) => Ok(elapsed),
        }
    }

    /// Opens it if it is closed, and creates it first if it was never created. A user's device has room for one
    /// facility: there it is created anew if another was there in the meantime.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`]; `InUse` where another is open on the user's device.
    pub fn open(&mut self) -> Result<Elapsed> {
        if self.state.opened {
            return Ok(Elapsed { seconds: 0.0, cpu_s: 0.0 });
        }
        if !self.store.take(&self.runner)? || !self.state.made {
            self.create()?;
        }
        let meter = Meter::start();
        self.open_with(Passphrase::Right)?;
        let elapsed = meter.elapsed();
        self.left = Left::with(&self.runner.id);
        self.left.retain(|left| self.background.iter().all(|known| known.pid() != left.pid));
        self.left.iter().for_each(|left| processes::left_behind(left.pid));
        Ok(elapsed)
    }

    /// Opens it so that each request is written to the file `trace` when it has been answered: `claviger mount --help`
    /// says how. Closes it before. It is complete when the target is closed.
    ///
    /// # Errors
    /// As [`FacilityTarget::open`]; `Unsupported` where the server is not ours.
    pub fn open_traced(&mut self, trace: &Path) -> Result<Elapsed> {
        if self.facility.trace.is_empty() {
            return Err(Error::unsupported(format!("a trace of requests by {}", self.facility.name)));
        }
        self.close()?;
        self.words.set_path("trace-file", &std::path::absolute(trace)?)?;
        self.words.set_list("trace", &self.facility.trace);
        let opened = self.open();
        self.words.set_list("trace", &[]);
        opened
    }

    /// The block device that holds its encrypted data, where one does.
    pub fn device(&self) -> Option<&Path> {
        self.store.device()
    }

    /// Closes it, with the file system that was made in it: everything is in the store then.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`].
    pub fn close(&mut self) -> Result<()> {
        let unmounted = self.filesystem.take().map_or(Ok(()), MountedFilesystem::close);
        if !self.state.opened {
            return unmounted;
        }
        let closed = self.undo(true);
        let synced = self.store.sync();
        unmounted.and(closed).and(synced).map_err(|e| self.named(e))
    }

    /// Its bytes, opened if necessary. For a facility that gives a folder, a large file in it. All bytes have been
    /// written. A file system that was made in it is gone.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`].
    pub fn bytes(&mut self) -> Result<Surface> {
        if let Some(filesystem) = self.filesystem.take() {
            filesystem.close().map_err(|e| self.named(e))?;
        }
        self.state.formatted = None;
        self.open()?;
        let opened = self.opened()?;
        let found = match self.facility.gives {
            Gives::Nbd => Surface::of_nbd(&opened, self.size),
            Gives::Bytes => Surface::of_file(&opened, self.size),
            Gives::Folder => large_file(&opened.join(BYTES), self.size),
        };
        let mut surface = found.map_err(|e| self.named(e))?;
        if !self.state.filled {
            self.fill(&surface).map_err(|e| self.named(e))?;
            self.state.filled = true;
            if self.facility.gives == Gives::Folder {
                // Direct I/O could not be tested before the file had contents.
                surface = Surface::of_file(&opened.join(BYTES), self.size)?;
            }
        }
        Ok(surface)
    }

    /// Its folder, with the usual file system: see [`FacilityTarget::folder_of`].
    ///
    /// # Errors
    /// As there.
    pub fn folder(&mut self) -> Result<PathBuf> {
        self.folder_of(FilesystemKind::Ext4)
    }

    /// Its folder, opened if necessary. If the facility gives bytes, such a file system is created and mounted in them, once. If
    /// it gives a folder, the large file that stood for bytes is removed. The folder may hold what the last workload left.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`]; `Unsupported` where bytes have no folder, such as over NBD.
    pub fn folder_of(&mut self, kind: FilesystemKind) -> Result<PathBuf> {
        if self.facility.gives == Gives::Nbd {
            let what = format!("files in {}: it is a socket for block devices", self.facility.name);
            return Err(Error::unsupported(what));
        }
        self.open()?;
        let opened = self.opened()?;
        if self.state.formatted.is_some_and(|of| of != kind)
            && let Some(other) = self.filesystem.take()
        {
            other.close().map_err(|e| self.named(e))?;
        }
        let top = match (&self.filesystem, self.facility.gives) {
            (Some(filesystem), _) => filesystem.dir().to_owned(),
            (None, Gives::Folder) => {
                // There need not be room for both.
                self.state.filled = false;
                remove_if_there(&opened.join(BYTES)).map_err(|e| self.named(e))?;
                opened
            }
            (None, Gives::Bytes | Gives::Nbd) => {
                let dir = self.dir.join("files");
                let mounted = match self.state.formatted == Some(kind) {
                    true => MountedFilesystem::mount(kind, &opened, &dir, &self.runner),
                    false => self.format(kind, &opened, &dir),
                };
                let mounted = mounted.map_err(|e| self.named(e))?;
                self.state.formatted = Some(kind);
                self.filesystem.insert(mounted).dir().to_owned()
            }
        };
        // Not the root folder: lost+found or the large file is there.
        let folder = top.join("files");
        fs::create_dir_all(&folder).map_err(|e| self.named(Error::from(e).at(&folder)))?;
        Ok(folder)
    }

    /// The known processes that serve it while it is open: those that its commands left running.
    /// Empty for what the kernel does.
    pub fn processes(&self) -> Vec<u32> {
        let left = self.left.iter().filter(|left| left.runs()).map(|left| left.pid);
        self.background.iter().map(Background::pid).chain(left).collect()
    }

    /// Whether these bytes stand anywhere in the encrypted data, as they are. It is closed before.
    ///
    /// # Errors
    /// As [`FacilityTarget::create`].
    pub fn store_holds(&mut self, bytes: &[u8]) -> Result<bool> {
        self.close()?;
        self.store.take(&self.runner)?;
        let found = holds(&self.store.contents(), bytes);
        self.store.give();
        found
    }

    /// Takes the steps in an empty store, or in one full of plaintext after the steps that make it one.
    fn create_by(&mut self, plaintext: Option<&[CommandStep]>, steps: &[CommandStep]) -> Result<Elapsed> {
        self.close()?;
        self.store.take_for_new()?;
        self.state = State::default();
        self.store.clear(&self.runner)?;
        self.words.set_path("store", &self.store.path())?;
        make_mount_point(&self.open, self.facility.gives)?;
        self.must_be_ours()?;
        if let Some(plaintext) = plaintext {
            self.fill(&Surface::of_file(&self.store.path(), self.size)?)?;
            plaintext.iter().try_for_each(|step| self.run(step))?;
            self.store.sync()?;
        }
        let meter = Meter::start();
        // If a step fails halfway, closing undoes it.
        self.state.opened = true;
        let done = steps.iter().try_for_each(|step| self.run(step));
        let elapsed = meter.elapsed();
        if let Err(e) = done {
            let _ = self.undo(false);
            return Err(self.named(e));
        }
        self.state.opened = false;
        if !self.background.is_empty() {
            // Made by being opened for the first time.
            self.undo(true).map_err(|e| self.named(e))?;
        }
        self.state.made = true;
        Ok(elapsed)
    }

    fn open_with(&mut self, passphrase: Passphrase) -> Result<()> {
        make_mount_point(&self.open, self.facility.gives)?;
        self.must_be_ours()?;
        let right = fs::read_to_string(self.dir.join("password"))?;
        if passphrase == Passphrase::Wrong {
            self.set_passphrase(&random_letters()?)?;
        }
        self.state.opened = true;
        let steps = self.facility.open.clone();
        let done = steps.iter().try_for_each(|step| self.run(step)).and_then(|()| self.is_there());
        if passphrase == Passphrase::Wrong {
            self.set_passphrase(&right)?;
        }
        done.map_err(|e| {
            let _ = self.undo(false);
            self.named(e)
        })
    }

    fn run(&mut self, step: &CommandStep) -> Result<()> {
        let step = self.words.step(step)?;
        self.background.extend(self.runner.run(&step, &self.open)?);
        Ok(())
    }

    /// Fails unless the plaintext is where the facility says. Servers have to answer: a socket is there before anybody
    /// listens, and some ask for the key only when somebody connects.
    fn is_there(&mut self) -> Result<()> {
        let opened = self.opened()?;
        if self.facility.gives != Gives::Nbd {
            return fs::metadata(&opened).map(|_| ()).map_err(|e| Error::from(e).at(&opened));
        }
        let begun = Instant::now();
        loop {
            let refused = match Surface::of_nbd(&opened, self.size) {
                Err(e) if is_refused(&e) => e,
                answered => return answered.map(|_| ()),
            };
            match self.background.last_mut() {
                Some(server) if begun.elapsed() < READY => server.goes_on(Duration::from_millis(1))?,
                _ => return Err(refused),
            }
            if (self.runner.cancelled)() {
                return Err(ErrorKind::Cancelled.into());
            }
        }
    }

    /// Fails if something that is not the lab's already exists where the plaintext will appear, such as a mapping of
    /// that name. The lab would overwrite and close it.
    fn must_be_ours(&self) -> Result<()> {
        let opened = self.opened()?;
        let parts = || opened.components().all(|part| part != Component::ParentDir);
        let own = |place: &Path| opened.starts_with(place) && parts();
        if own(&self.dir) || own(&self.store.path()) || opened.symlink_metadata().is_err() {
            return Ok(());
        }
        let what = format!("{}: this existed before it was opened, and is not the lab's", self.facility.name);
        Err(Error::misuse(what)
            .at(&opened)
            .hint("Close the files that are open there, or use another folder for the facility."))
    }

    fn opened(&self) -> Result<PathBuf> {
        self.words.text(&self.facility.opened).map(PathBuf::from)
    }

    /// Runs the steps that close it, and makes sure that nothing is left. Returns the first error. `expected` says whether it
    /// was completely open: otherwise steps without anything to undo may fail.
    fn undo(&mut self, expected: bool) -> Result<()> {
        self.state.opened = false;
        let runner = Runner { cancelled: || false, ..self.runner.clone() };
        let mut first = Ok(());
        for step in self.facility.close.clone() {
            let close = || self.words.step(&step).and_then(|step| runner.run(&step, &self.open)).map(|_| ());
            let mut closed = close();
            if expected && closed.is_err() {
                // A program that inspects all processes keeps a mount busy for a moment.
                closed = retry(|| close().ok()).map_or(closed, Ok);
            }
            first = first.and(closed);
        }
        let has_steps = !self.facility.close.is_empty();
        first = first.and(self.end_background(has_steps));
        if mountinfo::at(&self.open).is_ok_and(|mount| mount.is_some()) {
            let still = format!("{} is still mounted after closing", self.open.display());
            let taken_down = filesystem::take_down(&self.open);
            first = first.and(taken_down).and(Err(ErrorKind::Io(std::io::Error::other(still)).into()));
        }
        for left in std::mem::take(&mut self.left) {
            if !left.end() {
                let what = format!("process {} was still running after closing, and was killed", left.pid);
                first = first.and(Err(ErrorKind::Io(std::io::Error::other(what)).into()));
            }
        }
        self.store.give();
        if expected { first } else { Ok(()) }
    }

    fn end_background(&mut self, asked: bool) -> Result<()> {
        let mut first = Ok(());
        while let Some(program) = self.background.pop() {
            first = first.and(program.close(asked));
        }
        first
    }

    /// Creates a file system in all its bytes, and mounts it on `dir`. The bytes are written first: some facilities are filled
    /// when they are created, and the others and the baseline would otherwise have holes.
    fn format(&mut self, kind: FilesystemKind, opened: &Path, dir: &Path) -> Result<MountedFilesystem> {
        self.state.formatted = None;
        let surface = Surface::of_file(opened, self.size)?;
        if !self.state.filled {
            self.fill(&surface)?;
            self.state.filled = true;
        }
        MountedFilesystem::make(kind, opened, Some(surface.len), dir, &self.runner)
    }

    /// Writes all bytes once, so that reads find data and writes find no holes.
    fn fill(&self, surface: &Surface) -> Result<()> {
        let mut device = surface.device()?;
        let mut buffer = Buffer::new(LARGE);
        let mut at = 0;
        while at < surface.len {
            if (self.runner.cancelled)() {
                return Err(ErrorKind::Cancelled.into());
            }
            let part = &mut buffer[..(surface.len - at).min(LARGE as u64) as usize];
            self.data.fill(FILLING, at, part);
            device.write(at, part)?;
            at += part.len() as u64;
        }
        Ok(device.flush()?)
    }

    fn set_passphrase(&mut self, passphrase: &str) -> Result<()> {
        private_file(&self.dir.join("password"), passphrase.as_bytes())?;
        self.words.set("password", passphrase);
        Ok(())
    }

    fn named(&self, error: Error) -> Error {
        let path = error.path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
        let kind = match error.kind {
            ErrorKind::Io(e) => {
                let what = format!("{}: {path}{e}", self.facility.name);
                ErrorKind::Io(std::io::Error::new(e.kind(), what))
            }
            other => return Error { kind: other, ..error },
        };
        Error { kind, path: None, ..error }
    }
}

impl Drop for FacilityTarget {
    fn drop(&mut self) {
        let _ = self.close();
        self.store.give();
        // Never below something that is still mounted.
        let below = mountinfo::mounts().map(|all| all.iter().any(|mount| mount.dir.starts_with(&self.dir)));
        if !below.unwrap_or(true) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Whether nobody listens at a socket.
fn is_refused(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// The folder on which it is mounted, or nothing where it is opened as a socket.
fn make_mount_point(open: &Path, gives: Gives) -> Result<()> {
    let made = match gives {
        Gives::Nbd => fs::remove_file(open),
        Gives::Bytes | Gives::Folder => fs::create_dir(open),
    };
    match made {
        Err(e) if matches!(e.kind(), std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotFound) => Ok(()),
        made => made.map_err(|e| Error::from(e).at(open)),
    }
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| Error::from(e).at(path)),
    }
}

/// A file of this length in a folder.
fn large_file(path: &Path, len: u64) -> Result<Surface> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    file.and_then(|file| file.set_len(len)).map_err(|e| Error::from(e).at(path))?;
    Surface::of_file(path, len)
}

fn private_folder(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(dir).map_err(|e| Error::from(e).at(dir))
}

/// A random passphrase.
fn random_letters() -> Result<String> {
    let mut bytes = [0; PASSPHRASE];
    random::fill(&mut bytes)?;
    Ok(bytes.iter().map(|b| char::from(b'a' + b % 26)).collect())
}

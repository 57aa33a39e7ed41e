//! The environment of a case: its own folder, other users, and a list of failures.

use std::fmt::{Debug, Display};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    self as sys_fs, AtFlags, CWD, Dev, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::{Errno, Result};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The unprivileged user for cases that need one, unless the whole run is already another user's.
pub const PLAIN: u32 = 4242;

/// A user different from [`PLAIN`].
pub const STRANGER: u32 = 65534;

/// A user's second group, which new files do not get.
pub fn second_group(user: u32) -> u32 {
    user + 100_000
}

/// A timestamp that stands for the time of the call.
pub const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: sys_fs::UTIME_NOW as _ };

/// The reason why a case ends early.
#[derive(Debug)]
pub enum Stop {
    /// Something is wrong.
    Wrong(String),
    /// The case tests something optional that is missing.
    Unsupported(String),
}

/// The result of a case.
pub type Done = std::result::Result<(), Stop>;

impl From<Errno> for Stop {
    #[track_caller]
    fn from(errno: Errno) -> Self {
        Self::Wrong(format!("unexpected {} at {}", name(errno), Location::caller()))
    }
}

impl From<io::Error> for Stop {
    #[track_caller]
    fn from(error: io::Error) -> Self {
        Self::Wrong(format!("unexpected “{error}” at {}", Location::caller()))
    }
}

/// The folder and the tools of one case.
pub struct Ctx {
    dir: PathBuf,
    probe: PathBuf,
    /// The user of the run.
    me: u32,
    wrong: Mutex<Vec<String>>,
}

impl Ctx {
    /// A case in the existing, empty folder `home`; `me` is the user of the calling thread.
    pub(super) fn new(home: &Path, me: u32) -> Result<Self> {
        let (dir, probe) = (home.join("w"), home.join("clock"));
        sys_fs::mkdir(&dir, mode(0o777))?;
        creat(&probe, 0o666)?;
        Ok(Self { dir, probe, me, wrong: Mutex::new(Vec::new()) })
    }

    /// The failures of the whole case, which ended with `done`.
    pub(super) fn verdict(self, done: Done) -> Done {
        let mut wrong = self.wrong.into_inner().expect("no case panics in here");
        match done {
            Err(Stop::Unsupported(why)) if wrong.is_empty() => return Err(Stop::Unsupported(why)),
            Err(Stop::Unsupported(why) | Stop::Wrong(why)) => wrong.push(why),
            Ok(()) => (),
        }
        if wrong.is_empty() { Ok(()) } else { Err(Stop::Wrong(wrong.join("; "))) }
    }

    /// The folder of the case: initially empty, and writable by everybody.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether the run's user is root.
    pub fn is_root(&self) -> bool {
        self.me == 0
    }

    /// The user of [`Ctx::as_plain`].
    pub fn plain(&self) -> u32 {
        if self.is_root() { PLAIN } else { self.me }
    }

    /// Runs `steps` as an unprivileged user: the run's user, or [`PLAIN`] if that is root.
    ///
    /// # Errors
    /// Those of `steps`.
    pub fn as_plain(&self, steps: impl FnOnce() -> Done + Send) -> Done {
        if self.is_root() { self.as_user(PLAIN, steps) } else { steps() }
    }

    /// Runs `steps` as another user, who has two groups; root only.
    ///
    /// # Errors
    /// Those of `steps`.
    pub fn as_user(&self, user: u32, steps: impl FnOnce() -> Done + Send) -> Done {
        as_user(user, steps).map_err(Stop::from)?
    }

    #[track_caller]
    fn note(&self, what: String) {
        let place = Location::caller();
        let line = format!("{what} ({}:{})", place.file().rsplit('/').next().unwrap_or_default(), place.line());
        self.wrong.lock().expect("no case panics in here").push(line);
    }

    /// A call must fail in this way.
    #[track_caller]
    pub fn fails<T>(&self, what: impl Display, result: Result<T>, expected: Errno) {
        self.fails_with(what, result, &[expected]);
    }

    /// A call must fail in one of these ways.
    #[track_caller]
    pub fn fails_with<T>(&self, what: impl Display, result: Result<T>, expected: &[Errno]) {
        let seen = result.err();
        if !seen.is_some_and(|errno| expected.contains(&errno)) {
            let expected: Vec<_> = expected.iter().map(|&errno| name(errno)).collect();
            let seen = seen.map_or("success".into(), name);
            self.note(format!("{what}: expected {}, saw {seen}", expected.join(" or ")));
        }
    }

    /// A call must work.
    #[track_caller]
    pub fn works<T>(&self, what: impl Display, result: Result<T>) -> Option<T> {
        result.map_err(|errno| self.note(format!("{what}: expected success, saw {}", name(errno)))).ok()
    }

    /// Two things must be the same.
    #[track_caller]
    pub fn same<T: PartialEq + Debug>(&self, what: impl Display, seen: T, expected: T) {
        if seen != expected {
            self.note(format!("{what}: expected {expected:?}, saw {seen:?}"));
        }
    }

    /// Something must hold.
    #[track_caller]
    pub fn holds(&self, what: impl Display, holds: bool) {
        if !holds {
            self.note(format!("not so: {what}"));
        }
    }

    /// The permissions of a file, all twelve bits.
    #[track_caller]
    pub fn mode_is(&self, what: impl Display, path: &Path, expected: u32) {
        match sys_fs::lstat(path) {
            Ok(stat) if stat.st_mode & 0o7777 == expected => (),
            Ok(stat) => self.note(format!("{what}: expected mode {expected:o}, saw {:o}", stat.st_mode & 0o7777)),
            Err(errno) => self.note(format!("{what}: lstat: {}", name(errno))),
        }
    }

    /// Waits until the file system's clock has advanced, so later changes have a later time than earlier ones.
    ///
    /// # Errors
    /// If the clock does not advance.
    pub fn tick(&self) -> Done {
        let end = Instant::now() + Duration::from_secs(10);
        let now = || -> Result<(i64, i64)> {
            // Everybody with write permission may do this.
            utimens(&self.probe, &Timestamps { last_access: NOW, last_modification: NOW })?;
            sys_fs::stat(&self.probe).map(changed)
        };
        let start = now()?;
        while now()? <= start {
            if Instant::now() > end {
                return Err(Stop::Wrong("utimensat does not set the time of change".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// `action` must update exactly those times of `path` that `times` names, of modification (`m`) and change (`c`),
    /// and the access time (`a`) if it is named.
    ///
    /// # Errors
    /// If the times cannot be read.
    #[track_caller]
    pub fn touches<T>(&self, what: &str, path: &Path, times: &str, action: impl FnOnce() -> Result<T>) -> Done {
        let before = sys_fs::lstat(path)?;
        self.tick()?;
        self.works(what, action());
        let after = sys_fs::lstat(path)?;
        let mut seen = String::new();
        for (letter, is_new) in [
            ('a', accessed(after) > accessed(before) && times.contains('a')),
            ('m', modified(after) > modified(before)),
            ('c', changed(after) > changed(before)),
        ] {
            seen.extend(is_new.then_some(letter));
        }
        self.same(format_args!("new times of {} by {what}", show(path)), seen.as_str(), times);
        Ok(())
    }

    /// A new file of nine bytes, mode 644.
    ///
    /// # Errors
    /// Those of making it.
    pub fn file(&self, name: &str) -> std::result::Result<PathBuf, Stop> {
        let path = self.path(name);
        let fd = creat(&path, 0o644)?;
        rustix::io::write(fd, b"contents\n")?;
        Ok(path)
    }

    /// A new folder, mode 755.
    ///
    /// # Errors
    /// Those of making it.
    pub fn folder(&self, name: &str) -> std::result::Result<PathBuf, Stop> {
        let path = self.path(name);
        sys_fs::mkdir(&path, mode(0o755))?;
        Ok(path)
    }

    /// A new symbolic link.
    ///
    /// # Errors
    /// Those of making it.
    pub fn symlink(&self, name: &str, target: impl AsRef<Path>) -> std::result::Result<PathBuf, Stop> {
        let path = self.path(name);
        sys_fs::symlink(target.as_ref(), &path)?;
        Ok(path)
    }

    /// One node of each kind that this user can make; folders and files are empty.
    ///
    /// # Errors
    /// Those of making them.
    pub fn one_of_each(&self) -> std::result::Result<Vec<(&'static str, PathBuf)>, Stop> {
        let kinds = ["file", "folder", "fifo", "socket", "symlink", "char", "block"];
        let mut all: Vec<_> = kinds.map(|kind| (kind, self.path(&format!("a {kind}")))).into();
        all.truncate(if self.is_root() { 7 } else { 5 });
        all.iter().try_for_each(|(kind, path)| make(kind, path))?;
        Ok(all)
    }
}

/// Makes a node of this kind.
///
/// # Errors
/// Those of the call.
pub fn make(kind: &str, path: &Path) -> Result<()> {
    let node = |kind, device| mknod(path, kind, 0o644, device);
    match kind {
        "file" => creat(path, 0o644).map(drop),
        "folder" => sys_fs::mkdir(path, mode(0o755)),
        "fifo" => node(FileType::Fifo, 0),
        "socket" => node(FileType::Socket, 0),
        "symlink" => sys_fs::symlink("nowhere", path),
        // The null device and the first loop device (admin-guide/devices.txt of Linux); nobody opens them.
        "char" => node(FileType::CharacterDevice, sys_fs::makedev(1, 3)),
        "block" => node(FileType::BlockDevice, sys_fs::makedev(7, 0)),
        _ => unreachable!("no such kind: {kind}"),
    }
}

/// Runs `steps` in a thread of another user, who also has a second group. Threads that it starts belong to that user,
/// too. Root only.
///
/// # Errors
/// If this process may not become that user.
///
/// # Panics
/// If `steps` panic.
pub fn as_user<T: Send>(user: u32, steps: impl FnOnce() -> T + Send) -> Result<T> {
    let all = || become_user(user).map(|()| steps());
    thread::scope(|scope| scope.spawn(all).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes only the calling thread another user's, permanently.
pub(super) fn become_user(user: u32) -> Result<()> {
    let (uid, gid, second) = (Uid::from_raw(user), Gid::from_raw(user), Gid::from_raw(second_group(user)));
    set_thread_groups(&[gid, second])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Removes `dir` and its contents, even if the owner may not enter parts of it.
pub(super) fn clear(dir: &Path) {
    let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            clear(&entry.path());
        } else {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

/// The last part of a path.
pub fn show(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A mode of all twelve bits.
pub fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

/// open(2), with mode 644 for new files.
pub fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    sys_fs::open(path, flags | OFlags::CLOEXEC, mode(0o644))
}

/// Creates a file, or truncates an existing one, and opens it for reading and writing.
pub fn creat(path: &Path, bits: u32) -> Result<OwnedFd> {
    sys_fs::open(path, OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC, mode(bits))
}

/// mknod(2).
pub fn mknod(path: &Path, kind: FileType, bits: u32, device: Dev) -> Result<()> {
    sys_fs::mknodat(CWD, path, kind, mode(bits), device)
}

/// chmod(2).
pub fn chmod(path: &Path, bits: u32) -> Result<()> {
    sys_fs::chmod(path, mode(bits))
}

/// chown(2), which follows links.
pub fn chown(path: &Path, user: impl Into<Option<u32>>, group: impl Into<Option<u32>>) -> Result<()> {
    sys_fs::chown(path, user.into().map(Uid::from_raw), group.into().map(Gid::from_raw))
}

/// lchown(2), which does not follow links.
pub fn lchown(path: &Path, user: impl Into<Option<u32>>, group: impl Into<Option<u32>>) -> Result<()> {
    let (user, group) = (user.into().map(Uid::from_raw), group.into().map(Gid::from_raw));
    sys_fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)
}

/// utimensat(2), which follows links.
pub fn utimens(path: &Path, times: &Timestamps) -> Result<()> {
    sys_fs::utimensat(CWD, path, times, AtFlags::empty())
}

/// renameat2(2).
pub fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
    sys_fs::renameat_with(CWD, from, CWD, to, flags)
}

/// Seconds and nanoseconds of the last access, the last modification and the last change.
pub fn accessed(stat: Stat) -> (i64, i64) {
    (stat.st_atime as i64, stat.st_atime_nsec as i64)
}

/// See [`accessed`].
pub fn modified(stat: Stat) -> (i64, i64) {
    (stat.st_mtime as i64, stat.st_mtime_nsec as i64)
}

/// See [`accessed`].
pub fn changed(stat: Stat) -> (i64, i64) {
    (stat.st_ctime as i64, stat.st_ctime_nsec as i64)
}

/// The name of an error in errno(3).
pub fn name(errno: Errno) -> String {
    const NAMES: [(Errno, &str); 32] = [
        (Errno::ACCESS, "EACCES"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::BADF, "EBADF"),
        (Errno::BUSY, "EBUSY"),
        (Errno::EXIST, "EEXIST"),
        (Errno::FBIG, "EFBIG"),
        (Errno::INTR, "EINTR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::IO, "EIO"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::LOOP, "ELOOP"),
        (Errno::MLINK, "EMLINK"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NODATA, "ENODATA"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOENT, "ENOENT"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::NOTCONN, "ENOTCONN"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::NXIO, "ENXIO"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::OVERFLOW, "EOVERFLOW"),
        (Errno::PERM, "EPERM"),
        (Errno::RANGE, "ERANGE"),
        (Errno::ROFS, "EROFS"),
        (Errno::SPIPE, "ESPIPE"),
        (Errno::STALE, "ESTALE"),
        (Errno::TXTBSY, "ETXTBSY"),
        (Errno::XDEV, "EXDEV"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == errno).map(|(_, name)| (*name).to_owned());
    known.unwrap_or_else(|| format!("errno {}", errno.raw_os_error()))
}

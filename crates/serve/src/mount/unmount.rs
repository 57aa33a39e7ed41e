//! Unmounting: permissions, processes that keep the mount busy, and cleanup after a killed server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use claviger_engine::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, geteuid};

use super::drivers::find;
use super::holders::holders;
use super::loop_device::detach_below;
use super::{in_one_line, mountinfo};
use crate::sessions::{self, Process, Runtime, Session, SessionRecord, escape};

/// How long to look for processes that keep a mount busy.
const LOOK: Duration = Duration::from_secs(3);

/// The result of unmounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    /// Nothing is mounted there any more.
    Done,
    /// The mount is in use.
    Busy,
}

/// Unmounts `dir`, an absolute path without symbolic links. Succeeds if nothing is mounted there.
///
/// # Errors
/// `Io` if it is still mounted, with what to try; `InUse`, naming the processes.
pub fn unmount(dir: &Path) -> Result<()> {
    match detach_patiently(dir)? {
        Detached::Done => Ok(()),
        Detached::Busy => Err(busy(dir)),
    }
}

/// Unmounts `dir`. With `lazy` the mount disappears at once, and ends when its last user closes it.
///
/// # Errors
/// `Io` if it is still mounted, with what to try.
pub(crate) fn detach(dir: &Path, lazy: bool) -> Result<Detached> {
    detach_this(dir, mount_id(dir)?, lazy)
}

/// Unmounts `dir`. A mount that is busy is tried a few times: programs that look at every mount of the machine (mkfs.btrfs, df) use
/// each for an instant.
fn detach_patiently(dir: &Path) -> Result<Detached> {
    let id = mount_id(dir)?;
    for pause in [10, 30, 90, 270].map(Duration::from_millis) {
        if mount_id(dir)? != id || detach_this(dir, id, false)? == Detached::Done {
            return Ok(Detached::Done);
        }
        std::thread::sleep(pause);
    }
    detach_this(dir, id, false)
}

fn mount_id(dir: &Path) -> Result<Option<u32>> {
    Ok(mountinfo::at(dir)?.map(|mount| mount.id))
}

/// Unmounts the mount with that ID from `dir`.
fn detach_this(dir: &Path, id: Option<u32>, lazy: bool) -> Result<Detached> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let tried = match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | flags) {
        Err(Errno::PERM | Errno::ACCESS) if !geteuid().is_root() => by_program(dir, lazy),
        tried => tried.map_err(io::Error::from),
    };
    let after = mount_id(dir)?;
    match tried {
        Err(e) if is_busy(&e) => Ok(Detached::Busy),
        // Another process may have been faster, which is just as good.
        _ if after.is_none() || after != id => Ok(Detached::Done),
        tried => Err(still_mounted(dir, tried.err())),
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

/// The program that mounts for unprivileged users, by its present or former name.
pub(crate) fn fusermount() -> Option<PathBuf> {
    find("fusermount3").or_else(|| find("fusermount"))
}

/// Unmounts a user's FUSE mount. fusermount3 needs /etc/mtab; umount does not, and since util-linux 2.34 it unmounts
/// users' own FUSE mounts.
fn by_program(dir: &Path, lazy: bool) -> io::Result<()> {
    let run = |program: PathBuf, option: &str, lazily: &str| -> io::Result<()> {
        let mut command = Command::new(program);
        command.arg(option).args(lazy.then_some(lazily)).arg("--").arg(dir).env("LC_ALL", "C").current_dir("/");
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
        let why = in_one_line(&output.stderr);
        match output.status.success() {
            true => Ok(()),
            // The name of the folder comes earlier in the message.
            false if why.trim_end_matches('.').ends_with("busy") => Err(Errno::BUSY.into()),
            false => Err(io::Error::other(why)),
        }
    };
    let first = match fusermount() {
        Some(program) => run(program, "-u", "-z"),
        None => Err(io::Error::other("fusermount3 is not installed; it is in the package fuse3")),
    };
    first.or_else(|first| match find("umount") {
        Some(umount) if !is_busy(&first) => {
            run(umount, "-i", "-l").map_err(|second| if is_busy(&second) { second } else { first })
        }
        _ => Err(first),
    })
}

/// The error for a mount that could not be unmounted, and why not if that is known.
fn still_mounted(dir: &Path, why: Option<io::Error>) -> Error {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let error = Error::new(ErrorKind::Io(io::Error::other(format!("it is still mounted{why}")))).at(dir);
    error.hint(match (geteuid().is_root(), Path::new("/etc/mtab").exists()) {
        (true, _) => "To unmount it: `umount DIR`",
        (false, true) => "To unmount it: `fusermount3 -u DIR`",
        (false, false) => {
            "fusermount3 needs /etc/mtab. As root: `ln -s /proc/self/mounts /etc/mtab`. Then: `fusermount3 -u DIR`"
        }
    })
}

/// Unmounts a session's volume and waits until its server has written everything and ended; cleans up after a killed
/// server. With `force` the mount disappears even if in use, without waiting for its users.
///
/// # Errors
/// `InUse`, naming the processes; `Io` if the last writes could not be stored, or if the server does not end within
/// `patience`.
pub fn end(session: &Session, force: bool, patience: Duration) -> Result<Ended> {
    if !session.alive() {
        return clean(&session.folder, Some(session)).map(|()| Ended::CleanedUp);
    }
    let server = session.record.server;
    if let Some(dir) = &session.record.dir {
        match in_view(&session.record).map_err(|e| Error::from(e).at(dir))? {
            InView::Nothing => {}
            InView::Others => {
                return Err(Error::new(ErrorKind::InUse {
                    holder: Some("something else is mounted on top of it".into()),
                })
                .at(dir)
                .hint("Unmount that first."));
            }
            InView::Ours => match detach_patiently(dir)? {
                Detached::Busy if force => {
                    flush(dir);
                    detach(dir, true)?;
                    // With `force`, users may keep it open forever.
                    let ended = server.wait_for_end(Some(Duration::from_secs(1)))?;
                    return if ended { outcome(session) } else { Ok(Ended::Lazily) };
                }
                Detached::Busy => return Err(busy(dir)),
                Detached::Done => {}
            },
        }
    }
    // The server notices the unmount by itself. A signal would make it hurry where it should take its time.
    if session.record.dir.is_none() || session.record.filesystem.is_none() {
        server.signal(Signal::TERM);
    }
    if !server.wait_for_end(Some(patience))? {
        let what = format!("its server, process {}, has not exited after {} s", server.pid, patience.as_secs());
        return Err(Error::new(ErrorKind::Io(io::Error::other(what)))
            .at(&session.record.volume)
            .hint("It may still be writing. Check `claviger list`, and try again."));
    }
    outcome(session)
}

/// The result of [`end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything is written, and the server has ended.
    Done,
    /// The mount is no longer visible, and its server runs until nobody uses it.
    Lazily,
    /// The server had been killed, and its remains have been removed.
    CleanedUp,
}

/// The server's report of a failure at its end, if any.
fn outcome(session: &Session) -> Result<Ended> {
    let last = Session::read(&session.folder);
    let cleaned = if session.folder.exists() { clean(&session.folder, last.as_ref()) } else { Ok(()) };
    match last.and_then(|s| s.record.failure) {
        Some(failure) => Err(Error::new(ErrorKind::Io(io::Error::other(failure))).at(&session.record.volume)),
        None => cleaned.map(|()| Ended::Done),
    }
}

/// Removes what killed servers of this user left behind. Returns the folders of the sessions that were removed.
///
/// # Errors
/// `Io` if the runtime folder cannot be read.
pub fn clean_all(runtime: &Runtime) -> Result<Vec<PathBuf>> {
    let left = runtime.left_over()?;
    Ok(left.into_iter().filter(|folder| clean(folder, Session::read(folder).as_ref()).is_ok()).collect())
}

/// Unmounts, detaches and removes what a dead server's session left behind. Every step is tried, even if earlier ones failed.
/// The record stays as long as something is still mounted.
fn clean(folder: &Path, session: Option<&Session>) -> Result<()> {
    let mut unmounted = Ok(());
    if let Some(session) = session {
        let record = &session.record;
        if let Some(dir) = record.dir.as_ref().filter(|_| in_view(record).is_ok_and(|view| view == InView::Ours)) {
            unmounted = detach(dir, true).map(drop);
        }
        record.driver.iter().for_each(end_driver);
    }
    let image = folder.join("image");
    if geteuid().is_root() {
        detach_below(&image);
    }
    if mountinfo::at(&image).is_ok_and(|mount| mount.is_some()) {
        unmounted = unmounted.and(detach(&image, true).map(drop));
    }
    if unmounted.is_ok() {
        sessions::remove(folder);
    }
    unmounted
}

/// Ends the program of a file system: with time to write what it caches, then by force.
pub(super) fn end_driver(driver: &Process) {
    driver.signal(Signal::TERM);
    if !driver.wait_for_end(Some(Duration::from_secs(5))).unwrap_or(true) {
        driver.signal(Signal::KILL);
    }
}

/// What is visible at a session's mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InView {
    /// The session's volume.
    Ours,
    /// Another mount, on top of it or since.
    Others,
    /// No mount.
    Nothing,
}

/// Checks what is mounted at the recorded path. Mount and device numbers of a killed server are reused, so mounts are
/// identified by their source.
pub(super) fn in_view(record: &SessionRecord) -> io::Result<InView> {
    let Some(dir) = &record.dir else { return Ok(InView::Nothing) };
    let Some(mount) = mountinfo::at(dir)? else { return Ok(InView::Nothing) };
    let ours = match (&record.loop_device, record.driver) {
        (Some(device), _) => mount.source == *device,
        // Other programs choose their own source names.
        (None, Some(_)) => mount.kind.starts_with("fuse"),
        (None, None) => mount.kind.starts_with("fuse") && mount.source == Path::new(&escape(&record.volume)),
    };
    Ok(if ours { InView::Ours } else { InView::Others })
}

/// Writes the kernel's cached data to the volume, ignoring errors.
pub(super) fn flush(dir: &Path) {
    if let Ok(dir) = std::fs::File::open(dir) {
        let _ = rustix::fs::syncfs(dir);
    }
}

/// The error for a busy mount, with the processes that use it.
fn busy(dir: &Path) -> Error {
    let own = std::process::id();
    let others = holders(dir, LOOK).into_iter().filter(|holder| holder.pid != own);
    let mut who: Vec<_> = others.map(|holder| holder.to_string()).collect();
    let nested = mountinfo::mounts().unwrap_or_default();
    let nested = nested.iter().filter(|mount| mount.dir != dir && mount.dir.starts_with(dir));
    who.extend(nested.map(|mount| format!("{} is mounted inside it", escape(&mount.dir))));
    const SHOWN: usize = 10;
    let more = who.len().saturating_sub(SHOWN);
    who.truncate(SHOWN);
    if more > 0 {
        who.push(format!("and {more} more"));
    }
    let holder = (!who.is_empty()).then(|| who.join("; "));
    Error::new(ErrorKind::InUse { holder }).at(dir).hint(
        "End these processes or close the files, and try again. To detach the mount now, add --force; it ends with \
         its last user.",
    )
}

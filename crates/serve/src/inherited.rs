//! Inherited descriptors above the three standard ones. A started program gets them only if they are passed on, and
//! never one that a secret was read from: a password in a file could be read again.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FileType, Stat, fstat, stat};
use rustix::io::{DupFlags, Errno, FdFlags, dup3, fcntl_getfd, fcntl_setfd};

/// The inherited descriptors' numbers.
static INHERITED: OnceLock<Vec<RawFd>> = OnceLock::new();

/// Device and inode of the files that secrets were read from.
static SECRET: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Marks the inherited descriptors close-on-exec. Call this once, before anything is opened.
pub fn keep() {
    INHERITED.get_or_init(|| {
        let numbers = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Descriptors this process opens itself, such as the folder read here, are close-on-exec anyway.
        let passed = |number: &RawFd| *number > 2 && fcntl_getfd(borrow(*number)).is_ok_and(|flags| flags.is_empty());
        let all: Vec<_> = numbers.filter(passed).collect();
        all.iter().for_each(|number| set(*number, FdFlags::CLOEXEC));
        all
    });
}

/// Lets programs started from now on inherit the descriptors that no secret came from.
pub fn pass_on() {
    let secret = SECRET.lock().unwrap_or_else(PoisonError::into_inner);
    numbers()
        .filter(|number| !fstat(borrow(*number)).is_ok_and(|stat| secret.contains(&(stat.st_dev, stat.st_ino))))
        .for_each(|number| set(number, FdFlags::empty()));
}

/// Lets programs started from now on inherit all of them: for this program itself, which reads secrets from them.
pub fn pass_on_all() {
    numbers().for_each(|number| set(number, FdFlags::empty()));
}

/// Stops passing on this file, under whatever number it was inherited, because a secret came from it. If it is standard
/// input, that becomes `/dev/null`.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn hide(secret: &Stat) -> io::Result<()> {
    // A secret typed at a terminal cannot be read again, and programs may need the terminal.
    if FileType::from_raw_mode(secret.st_mode) == FileType::CharacterDevice {
        return Ok(());
    }
    let file = (secret.st_dev, secret.st_ino);
    let is_it = |fd: BorrowedFd<'_>| fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == file);
    SECRET.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    numbers().filter(|number| is_it(borrow(*number))).for_each(|number| set(number, FdFlags::CLOEXEC));
    if is_it(io::stdin().as_fd()) {
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    }
    Ok(())
}

/// Stops passing on any of the descriptors, because another process of this program reads the secrets and this one does
/// not know from which. This includes standard input, unless it is a terminal.
///
/// # Errors
/// Those of [`hide`].
pub fn hide_all() -> io::Result<()> {
    for number in numbers() {
        set(number, FdFlags::CLOEXEC);
    }
    for number in numbers().chain([0]) {
        if let Ok(stat) = fstat(borrow(number)) {
            hide(&stat)?;
        }
    }
    Ok(())
}

/// Replaces inherited files by `/dev/null`, except those in `used`. Another process of this program may have read
/// secrets from them, and nothing in this process may read them again.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn forget_files(used: &[&Path]) -> io::Result<()> {
    let used: Vec<_> = used.iter().filter_map(|path| stat(*path).ok()).map(|stat| (stat.st_dev, stat.st_ino)).collect();
    let null = File::open("/dev/null")?;
    for number in numbers() {
        let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_file();
        if fstat(borrow(number)).is_ok_and(|stat| is_file(&stat) && !used.contains(&(stat.st_dev, stat.st_ino))) {
            // SAFETY: nothing in this process owns such a descriptor, and this does not close it either.
            let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
            dup3(&null, &mut fd, DupFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// The inherited descriptor of this number itself, for descriptors that this program passed to itself.
///
/// # Errors
/// `EBADF` if it was not inherited.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if !numbers().any(|inherited| inherited == number) {
        return Err(Errno::BADF.into());
    }
    borrow(number).try_clone_to_owned()
}

/// Reopens the inherited descriptor of this number, or duplicates it if that is impossible (sockets, and files of
/// other users). Standard output and error are refused, because started programs get them.
///
/// # Errors
/// `EBADF` if it was not inherited; those of opening it.
pub fn open(number: RawFd) -> io::Result<OwnedFd> {
    if number != 0 && !numbers().any(|inherited| inherited == number) {
        return Err(Errno::BADF.into());
    }
    match File::open(format!("/proc/self/fd/{number}")) {
        Ok(file) => Ok(file.into()),
        Err(_) => borrow(number).try_clone_to_owned(),
    }
}

fn numbers() -> impl Iterator<Item = RawFd> {
    INHERITED.get().into_iter().flatten().copied()
}

fn set(number: RawFd, flags: FdFlags) {
    // Fails if it has been closed since.
    let _ = fcntl_setfd(borrow(number), flags);
}

/// A descriptor this process inherited.
fn borrow<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the number is not -1. Nothing in this process owns such a descriptor, so nothing closes it; if it was
    // closed nevertheless, calls with it fail.
    unsafe { BorrowedFd::borrow_raw(number) }
}

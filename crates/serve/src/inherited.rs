//! Descriptors above the three standard ones that this process was started with. A program that it starts gets them only where
//! they are passed on, and none that a secret came from: from a file, a password could be read again.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// Their numbers.
static INHERITED: OnceLock<Vec<RawFd>> = OnceLock::new();

/// Device and inode of what secrets came from.
static SECRET: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Keeps them from programs that this process starts. To be called once, before anything is opened.
pub fn keep() {
    INHERITED.get_or_init(|| {
        let numbers = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // What this process opens itself, such as the folder that is read here, no program gets.
        let passed = |number: &RawFd| *number > 2 && fcntl_getfd(borrow(*number)).is_ok_and(|flags| flags.is_empty());
        let all: Vec<_> = numbers.filter(passed).collect();
        all.iter().for_each(|number| set(*number, FdFlags::CLOEXEC));
        all
    });
}

/// Lets programs that are started from now on have those that no secret came from.
pub fn pass_on() {
    let secret = SECRET.lock().unwrap_or_else(PoisonError::into_inner);
    numbers()
        .filter(|number| !fstat(borrow(*number)).is_ok_and(|stat| secret.contains(&(stat.st_dev, stat.st_ino))))
        .for_each(|number| set(number, FdFlags::empty()));
}

/// Lets programs that are started from now on have all of them: for this program itself, which is to read secrets from them.
pub fn pass_on_all() {
    numbers().for_each(|number| set(number, FdFlags::empty()));
}

/// No program gets this file any more, under whatever number it was inherited: a secret came from it. Where it is standard input,
/// that is `/dev/null` from now on.
///
/// # Errors
/// Where there is no `/dev/null`.
pub fn hide(secret: &Stat) -> io::Result<()> {
    // What a terminal gave is gone, and others may use it.
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

/// The descriptor of this number, opened anew, or the same again where it cannot be: sockets, and files of other users. Not standard
/// output and error, which programs get that are started.
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
    // It fails for one that is not open any more.
    let _ = fcntl_setfd(borrow(number), flags);
}

/// A descriptor that this process was started with.
fn borrow<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the number is not -1. Nothing in this process owns such a descriptor, so nothing closes it; if it was closed all the
    // same, calls with it fail.
    unsafe { BorrowedFd::borrow_raw(number) }
}

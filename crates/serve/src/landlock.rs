//! Landlock: limits what this thread, and the programs it starts, may do with files. rustix has no such calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// The access that stays allowed to a file, or to everything in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// Read and list a folder, read its files and run them.
    Run,
    /// Read one file.
    Read,
    /// Read and write one file.
    Write,
}

// Rights (Linux, include/uapi/linux/landlock.h, "Filesystem flags").
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
#[derive(Default)]
struct Ruleset {
    fs: u64,
    net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

impl May {
    fn rights(self) -> u64 {
        match self {
            Self::Run => EXECUTE | READ_FILE | READ_DIR,
            Self::Read => READ_FILE | IOCTL_DEV,
            Self::Write => READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV,
        }
    }
}

/// Takes all rights that Landlock knows away from this thread and the programs it starts, except these. The rights
/// cover files, TCP ports, and abstract sockets and processes outside. `no_new_privs` must be set already.
///
/// # Errors
/// If the kernel lacks Landlock or refuses a rule.
pub fn restrict(rules: &[(BorrowedFd<'_>, May)]) -> io::Result<()> {
    // SAFETY: this form takes no memory and gives the version.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<Ruleset>(), 0_usize, CREATE_RULESET_VERSION)
    };
    check(version)?;
    // The number of rights in each version.
    let rights = match version {
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let handled: u64 = (1 << rights) - 1;
    let two = |since| if version >= since { 0b11 } else { 0 };
    let ruleset = Ruleset { fs: handled, net: two(4), scoped: two(6) };
    let size = match version {
        ..4 => size_of::<u64>(),
        4 | 5 => 2 * size_of::<u64>(),
        _ => size_of::<Ruleset>(),
    };
    // SAFETY: the kernel reads `size` bytes of the structure, which has as many.
    let number = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size, 0_u32) })?;
    // SAFETY: the kernel has just returned the descriptor, and nobody else knows it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(number as i32) };
    for (file, may) in rules {
        let rule = PathBeneath { allowed: may.rights() & handled, parent: file.as_raw_fd() };
        // SAFETY: the kernel reads the structure, which has the layout that it expects; both descriptors are open.
        check(unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0_u32)
        })?;
    }
    // SAFETY: the call takes no memory.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) }).map(drop)
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

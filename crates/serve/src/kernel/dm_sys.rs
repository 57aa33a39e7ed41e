//! The device-mapper's ioctl interface (linux/dm-ioctl.h) and the kernel's keyrings (add_key(2), keyctl(2)), which no crate
//! wraps that would keep keys in memory that is wiped.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;

use claviger_engine::Secret;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Bytes of `struct dm_ioctl`, which every request begins with.
pub const HEADER: usize = 312;

/// Where the fields of `struct dm_ioctl` are, in bytes.
pub mod field {
    /// Three numbers of 4 bytes: the version of the interface.
    pub const VERSION: usize = 0;
    /// Bytes of the whole buffer: 4 bytes.
    pub const DATA_SIZE: usize = 12;
    /// Where what follows the header begins: 4 bytes.
    pub const DATA_START: usize = 16;
    /// Number of targets: 4 bytes.
    pub const TARGET_COUNT: usize = 20;
    /// Flags: 4 bytes.
    pub const FLAGS: usize = 28;
    /// Number of the event, and of a request what udev is told: 4 bytes.
    pub const EVENT: usize = 32;
    /// The device's number: 8 bytes.
    pub const DEVICE: usize = 40;
    /// The name, ended by a zero: 128 bytes.
    pub const NAME: usize = 48;
    /// The UUID, ended by a zero: 129 bytes.
    pub const UUID: usize = 176;
}

/// The longest name, in bytes (`DM_NAME_LEN` without the zero).
pub const NAME_MAX: usize = 127;
/// The longest UUID, in bytes (`DM_UUID_LEN` without the zero).
pub const UUID_MAX: usize = 128;

/// `DM_READONLY_FLAG`.
pub const READ_ONLY: u32 = 1;
/// `DM_SECURE_DATA_FLAG`: the kernel wipes its copy of the request.
pub const SECURE_DATA: u32 = 1 << 15;
/// `DM_DEFERRED_REMOVE`: a device that is open is removed when it is closed (Linux 3.13).
pub const DEFERRED_REMOVE: u32 = 1 << 17;

/// A command (`DM_DEV_CREATE_CMD` …).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// `DM_VERSION_CMD`.
    Version = 0,
    /// `DM_DEV_CREATE_CMD`.
    Create = 3,
    /// `DM_DEV_REMOVE_CMD`.
    Remove = 4,
    /// `DM_DEV_SUSPEND_CMD`: without its flag it resumes.
    Resume = 6,
    /// `DM_DEV_STATUS_CMD`.
    Status = 7,
    /// `DM_TABLE_LOAD_CMD`.
    Load = 9,
    /// `DM_TABLE_DEPS_CMD`.
    Deps = 11,
}

/// Sends the request and overwrites it with the answer.
pub fn call(control: &File, command: Command, request: &mut Secret) -> io::Result<()> {
    let size = u32::try_from(request.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    assert!(request.len() >= HEADER, "a request begins with its header");
    request[field::DATA_SIZE..][..4].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: each of these commands takes a `struct dm_ioctl` and, behind it, as many bytes as its data_size says, which is
    // the length of the buffer: the kernel neither reads nor writes past it.
    Ok(unsafe { ioctl(control, Call { command, request }) }?)
}

struct Call<'a> {
    command: Command,
    request: &'a mut Secret,
}

// SAFETY: the opcode is the one that linux/dm-ioctl.h makes of the command and of `struct dm_ioctl`, whose size is HEADER; the
// pointer is to a buffer of this process that lives through the call, and there is no other result.
unsafe impl Ioctl for Call<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<[u8; HEADER]>(0xfd, self.command as u8)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.request.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// A key in this thread's keyring that the kernel alone can read. It is gone when this is dropped.
pub struct KeyringKey(libc::c_long);

/// `KEY_SPEC_THREAD_KEYRING`.
const THREAD_KEYRING: libc::c_long = -1;
/// `KEYCTL_REVOKE`.
const REVOKE: libc::c_long = 3;
/// `KEYCTL_UNLINK`.
const UNLINK: libc::c_long = 9;

impl KeyringKey {
    /// Adds a key of the type `logon`, whose description has a prefix that ends with a colon.
    ///
    /// # Errors
    /// Whatever add_key(2) says.
    pub fn add(description: &str, key: &Secret) -> io::Result<Self> {
        let description = CString::new(description)?;
        // SAFETY: add_key reads two strings that end with a zero and `key.len()` bytes of the payload; all of them live through
        // the call.
        let number = unsafe {
            libc::syscall(
                libc::SYS_add_key,
                c"logon".as_ptr(),
                description.as_ptr(),
                key.as_ptr(),
                key.len(),
                THREAD_KEYRING,
            )
        };
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(number)) }
    }
}

impl Drop for KeyringKey {
    fn drop(&mut self) {
        // SAFETY: keyctl with these commands takes numbers only and touches no memory of this process.
        unsafe {
            libc::syscall(libc::SYS_keyctl, REVOKE, self.0);
            libc::syscall(libc::SYS_keyctl, UNLINK, self.0, THREAD_KEYRING);
        }
    }
}

//! The device-mapper's ioctl interface (linux/dm-ioctl.h) and the kernel's keyrings (add_key(2), keyctl(2)): no crate
//! wraps them with buffers that are wiped.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;

use claviger_engine::Secret;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Size of `struct dm_ioctl`, which begins every request, in bytes.
pub const HEADER: usize = 312;

/// Offsets of the fields of `struct dm_ioctl`, in bytes.
pub mod field {
    /// Three numbers of 4 bytes: the version of the interface.
    pub const VERSION: usize = 0;
    /// Size of the whole buffer: 4 bytes.
    pub const DATA_SIZE: usize = 12;
    /// Offset of the data after the header: 4 bytes.
    pub const DATA_START: usize = 16;
    /// Number of targets: 4 bytes.
    pub const TARGET_COUNT: usize = 20;
    /// Flags: 4 bytes.
    pub const FLAGS: usize = 28;
    /// Number of the event, or in a request the cookie for udev: 4 bytes.
    pub const EVENT: usize = 32;
    /// The device's number: 8 bytes.
    pub const DEVICE: usize = 40;
    /// The name, NUL-terminated: 128 bytes.
    pub const NAME: usize = 48;
    /// The UUID, NUL-terminated: 129 bytes.
    pub const UUID: usize = 176;
}

/// The longest name, in bytes (`DM_NAME_LEN` without the NUL).
pub const NAME_MAX: usize = 127;
/// The longest UUID, in bytes (`DM_UUID_LEN` without the NUL).
pub const UUID_MAX: usize = 128;

/// `DM_READONLY_FLAG`.
pub const READ_ONLY: u32 = 1;
/// `DM_SECURE_DATA_FLAG`: the kernel wipes its copy of the request.
pub const SECURE_DATA: u32 = 1 << 15;

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
    /// `DM_DEV_SUSPEND_CMD`: without its flag, it resumes.
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
    // SAFETY: each of these commands takes a `struct dm_ioctl` followed by as many bytes as its data_size says, which
    // is the length of the buffer: the kernel neither reads nor writes past it.
    Ok(unsafe { ioctl(control, Call { command, request }) }?)
}

struct Call<'a> {
    command: Command,
    request: &'a mut Secret,
}

// SAFETY: the opcode is what linux/dm-ioctl.h derives from the command and `struct dm_ioctl`, whose size is HEADER; the
// pointer is to a buffer of this process that outlives the call, and there is no other result.
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

/// A key in this thread's keyring that only the kernel can read. Dropping it removes the key.
pub struct KeyringKey(libc::c_long);

/// `KEY_SPEC_THREAD_KEYRING`.
const THREAD_KEYRING: libc::c_long = -1;
/// `KEYCTL_REVOKE`.
const REVOKE: libc::c_long = 3;
/// `KEYCTL_UNLINK`.
const UNLINK: libc::c_long = 9;

impl KeyringKey {
    /// Adds a key of type `logon`, whose description has a prefix that ends with a colon.
    ///
    /// # Errors
    /// Those of add_key(2).
    pub fn add(description: &str, key: &Secret) -> io::Result<Self> {
        let description = CString::new(description)?;
        // SAFETY: add_key reads two NUL-terminated strings and `key.len()` bytes of payload; all of them outlive the
        // call.
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
        // SAFETY: with these commands keyctl takes only numbers and touches no memory of this process.
        unsafe {
            libc::syscall(libc::SYS_keyctl, REVOKE, self.0);
            libc::syscall(libc::SYS_keyctl, UNLINK, self.0, THREAD_KEYRING);
        }
    }
}

//! The system calls of loop devices (linux/loop.h; Documentation/admin-guide/devices.txt), which no crate wraps.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_SET_CAPACITY: Opcode = 0x4c07;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;

/// Read-only.
pub const READ_ONLY: u32 = 1;
/// Detaches itself when the last user closes it.
pub const AUTOCLEAR: u32 = 4;
/// Bypasses the page cache of the backing file.
pub const DIRECT_IO: u32 = 16;

/// `struct loop_config` (linux/loop.h).
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64` (linux/loop.h). Only the flags and the name are set.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Attaches `backing` to the loop device `device`, with sectors of `block_size` bytes, or of the kernel's choice if
/// that is 0.
pub fn configure(device: &File, backing: &File, flags: u32, block_size: u32, name: &[u8]) -> io::Result<()> {
    let mut file_name = [0; 64];
    let len = name.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&name[..len]);
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(backing.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let config = Config { fd, block_size, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`, which `Config` matches field by field.
    let request = unsafe { Setter::<LOOP_CONFIGURE, Config>::new(config) };
    // SAFETY: the kernel only reads the struct, and the descriptor in it stays open while `backing` is borrowed.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Detaches the backing file, now or when the last user closes the device.
pub fn clear(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    let request = unsafe { NoArg::<LOOP_CLR_FD>::new() };
    // SAFETY: as above; it touches no memory of this process.
    Ok(unsafe { ioctl(device, request) }?)
}

/// Gives the device the present size of its backing file.
pub fn follow_size(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    let request = unsafe { NoArg::<LOOP_SET_CAPACITY>::new() };
    // SAFETY: as above; it touches no memory of this process.
    Ok(unsafe { ioctl(device, request) }?)
}

/// The number of a free loop device, which is created if necessary.
pub fn free_number(control: &File) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number; it touches no memory of this process.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

struct GetFree;

// SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory; its result is the return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(number.cast_unsigned())
    }
}

const _: () = assert!(size_of::<Config>() == 304 && size_of::<Info>() == 232);

//! The memory that two processes share: a slot for each request in flight. `unsafe`, because another process writes to it too.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Requests that can be in flight: a thread of the keeper waits for each.
pub const SLOTS: usize = 16;

/// Bytes that a request may have. Only what is used takes memory.
pub const ROOM: usize = 1 << 20;

/// Bytes in front of the slots: what is asked, for each of them.
const HEAD: usize = 4096;

const LEN: usize = HEAD + SLOTS * ROOM;

/// Its size never changes: neither process can make the other's accesses fail.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What is asked in a slot. Whoever asks writes all but `answer` and `keeper_sleeps`.
#[repr(C, align(128))]
pub struct Request {
    /// Whose turn it is: a futex.
    pub state: AtomicU32,
    pub asker_sleeps: AtomicU32,
    pub keeper_sleeps: AtomicU32,
    /// What is to be done.
    pub order: AtomicU32,
    pub segment: AtomicU32,
    /// Bytes, from the beginning of the slot.
    pub len: AtomicU32,
    /// Where they belong in the segment, in bytes.
    pub into: AtomicU64,
    pub answer: AtomicU32,
}

const _: () = assert!(SLOTS * size_of::<Request>() <= HEAD);

/// The mapped memory. Unmapped on drop.
pub struct Shared {
    at: NonNull<u8>,
    fd: OwnedFd,
}

// SAFETY: it is an address of memory that lives as long as the value; who may use which bytes of it, the methods say.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// New memory, zeroed.
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("claviger-keeper", flags)?;
        ftruncate(&fd, LEN as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        Self::map(fd)
    }

    /// That of another process, if it is as [`Shared::create`] makes it.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        if fstat(&fd)?.st_size != LEN as i64 || !fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("this is no memory of a channel between two processes"));
        }
        Self::map(fd)
    }

    fn map(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address of the kernel's choice, aliases nothing of this process.
        let at = unsafe { mmap(ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) }?;
        Ok(Self { at: NonNull::new(at.cast()).expect("mmap returns no null"), fd })
    }

    /// The descriptor, for the other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What is asked in a slot.
    pub fn request(&self, slot: usize) -> &Request {
        assert!(slot < SLOTS);
        // SAFETY: the requests are at the beginning of the mapping, whose alignment is a page; every byte pattern is a value of
        // atomics, and these may change at any time.
        unsafe { &*self.at.as_ptr().cast::<Request>().add(slot) }
    }

    /// Copies out what is `past` bytes into a slot. What comes is whatever the other process makes of it meanwhile.
    pub fn copy_out(&self, slot: usize, past: usize, to: &mut [u8]) {
        let from = self.place(slot, past, to.len());
        // SAFETY: `place` has checked the range; a mapping of this process overlaps none of its other memory. No reference to the
        // shared bytes is made.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` to `past` bytes into a slot.
    pub fn copy_in(&self, slot: usize, past: usize, from: &[u8]) {
        let to = self.place(slot, past, from.len());
        // SAFETY: as in `copy_out`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn place(&self, slot: usize, past: usize, len: usize) -> *mut u8 {
        assert!(slot < SLOTS && past.checked_add(len).is_some_and(|end| end <= ROOM));
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.at.as_ptr().add(HEAD + slot * ROOM + past) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), LEN) };
    }
}

/// The slots, for the process that asks.
pub struct Slots {
    shared: Shared,
    /// The one used last comes last: the keeper's thread for it may still be awake.
    free: Mutex<Vec<usize>>,
    freed: Condvar,
}

impl Slots {
    pub fn new(shared: Shared) -> Self {
        Self { shared, free: Mutex::new((0..SLOTS).rev().collect()), freed: Condvar::new() }
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A slot that nobody uses. Waits for one.
    pub fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(number) = free.pop() {
                return Slot { slots: self, number };
            }
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A slot of one's own.
pub struct Slot<'a> {
    slots: &'a Slots,
    number: usize,
}

impl Slot<'_> {
    pub fn request(&self) -> &Request {
        self.slots.shared.request(self.number)
    }

    /// The first `len` bytes of it.
    pub fn memory(&mut self, len: usize) -> &mut [u8] {
        let at = self.slots.shared.place(self.number, 0, len);
        // SAFETY: in this process the slot is this value's alone, which is borrowed for as long. The keeper, which is trusted with
        // the keys, touches it only between a request and its answer, while nobody here has this borrow.
        unsafe { slice::from_raw_parts_mut(at, len) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        self.slots.freed.notify_one();
    }
}

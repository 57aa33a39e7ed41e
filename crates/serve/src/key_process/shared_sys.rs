//! Memory shared by two processes: a slot for each request in flight, and room for the servers' buffers, which are
//! processed in place. `unsafe`, because the other process writes to it too.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use claviger_engine::key_process::volume::KeyRange;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::aligned::Aligned;

/// Number of slots, each with its thread in the key process.
pub const SLOTS: usize = 16;

/// Requests that can be in flight per slot: its thread carries them out in turn.
pub const TURNS: usize = 4;

/// Maximum length of a request, in bytes.
pub const ROOM: usize = 1 << 20;

/// Bytes in front of the data: the requests of all slots.
const HEAD: usize = 8192;

/// Bytes for data: first each slot's, then the buffer pool's. Only the used part takes memory.
pub const DATA: usize = 256 << 20;

const LEN: usize = HEAD + DATA;

/// The size never changes, so neither process can make the other's accesses fail.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A request. The client writes all fields except `answer` and `key_process_sleeps`.
#[repr(C, align(128))]
pub struct KeyRequest {
    /// Whose turn it is: a futex.
    pub state: AtomicU32,
    pub asker_sleeps: AtomicU32,
    pub key_process_sleeps: AtomicU32,
    /// What to do.
    pub order: AtomicU32,
    pub segment: AtomicU32,
    pub len: AtomicU32,
    /// Offset of the bytes in the data.
    pub at: AtomicU32,
    /// Offset of the bytes in the segment.
    pub into: AtomicU64,
    pub answer: AtomicU32,
}

const _: () =
    assert!(SLOTS * TURNS * size_of::<KeyRequest>() <= HEAD && SLOTS * ROOM < DATA && DATA <= u32::MAX as usize);

/// The mapped memory. Unmapped on drop.
pub struct Shared {
    at: NonNull<u8>,
    fd: OwnedFd,
}

// SAFETY: the address is that of memory that lives as long as this value. The methods say who may use which bytes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// New memory, zeroed.
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("claviger-key-process", flags)?;
        ftruncate(&fd, LEN as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        Self::map(fd)
    }

    /// Maps another process's memory, if it was made by [`Shared::create`].
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        if fstat(&fd)?.st_size != LEN as i64 || !fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("this is not the shared memory of a key process"));
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

    /// The request of a slot at this turn.
    pub fn request(&self, slot: usize, turn: usize) -> &KeyRequest {
        assert!(slot < SLOTS && turn < TURNS);
        // SAFETY: the requests are at the beginning of the mapping, which is aligned to a page. Every byte pattern is a
        // valid atomic, and atomics may change at any time.
        unsafe { &*self.at.as_ptr().cast::<KeyRequest>().add(slot * TURNS + turn) }
    }

    /// Copies bytes out of the data. The other process may change them at the same time.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.place(at, to.len());
        // SAFETY: `place` has checked the range; a mapping of this process overlaps none of its other memory. No reference to the
        // shared bytes is made.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` into the data.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.place(at, from.len());
        // SAFETY: as in `copy_out`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Encrypts or decrypts a range in place, if that works in registers only. Returns whether it was done.
    pub fn carry_out(&self, range: &KeyRange<'_>, at: usize, len: usize) -> bool {
        if !range.in_registers() {
            return false;
        }
        // SAFETY: `place` checks that the range is within the mapping. The other process, or another thread of this
        // one, may write there at any time. A cipher that works in registers loads and stores each block, and neither
        // branches nor indexes memory by its contents: such a write only changes bytes of the data.
        let run = unsafe { slice::from_raw_parts_mut(self.place(at, len), len) };
        range.carry_out(0, run, &mut []).is_ok()
    }

    /// The position of `bytes` in the data, if they are there.
    pub fn position(&self, bytes: &[u8]) -> Option<usize> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.place(0, 0) as usize)?;
        (at.checked_add(bytes.len())? <= DATA).then_some(at)
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= DATA));
        // SAFETY: the range is within the mapping, as was just checked.
        unsafe { self.at.as_ptr().add(HEAD + at) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), LEN) };
    }
}

/// The slots, for the client.
pub struct Slots {
    shared: Arc<Shared>,
    /// Each slot with its next turn. The most recently used comes last, as the key process's thread for it may still be awake.
    free: Mutex<Vec<(usize, usize)>>,
    freed: Condvar,
    unallocated: Arc<Mutex<FreeRanges>>,
}

impl Slots {
    pub fn new(shared: impl Into<Arc<Shared>>) -> Self {
        let unallocated = Arc::new(Mutex::new(FreeRanges(std::iter::once(SLOTS * ROOM..DATA).collect())));
        let free = Mutex::new((0..SLOTS).rev().map(|slot| (slot, 0)).collect());
        Self { shared: shared.into(), free, freed: Condvar::new(), unallocated }
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Takes a free slot. Waits for one.
    pub fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((number, turn)) = free.pop() {
                return Slot { slots: self, number, turn };
            }
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a free slot, if there is one.
    pub fn try_take(&self) -> Option<Slot<'_>> {
        let (number, turn) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Slot { slots: self, number, turn })
    }

    /// The pool of this channel's memory.
    pub fn buffer_pool(&self) -> BufferPool {
        BufferPool { shared: Arc::clone(&self.shared), free: Arc::clone(&self.unallocated) }
    }
}

/// A slot for exclusive use.
pub struct Slot<'a> {
    slots: &'a Slots,
    number: usize,
    turn: usize,
}

impl<'a> Slot<'a> {
    /// The index of its next request.
    pub fn turn(&self) -> usize {
        self.turn
    }

    /// The next request, which must be made now.
    pub fn next(&mut self) -> &'a KeyRequest {
        let turn = self.turn;
        self.turn = (turn + 1) % TURNS;
        self.request(turn)
    }

    pub fn request(&self, turn: usize) -> &'a KeyRequest {
        self.slots.shared.request(self.number, turn)
    }

    /// The position in the data of `len` bytes at `at` of this slot's memory.
    pub fn range(&self, at: usize, len: usize) -> Range<usize> {
        assert!(at + len <= ROOM);
        let at = self.number * ROOM + at;
        at..at + len
    }

    /// These bytes of the slot's memory.
    pub fn memory(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = self.slots.shared.place(self.range(at, len).start, len);
        // SAFETY: in this process, only this value uses the slot, and the result borrows it. The key process is trusted
        // with the keys. It touches the bytes only between a request that names them and its answer, and meanwhile
        // nobody here has this borrow.
        unsafe { slice::from_raw_parts_mut(at, len) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).push((self.number, self.turn));
        self.slots.freed.notify_one();
    }
}

/// Allocates buffers in a channel's memory, where the key process works on them in place.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
    free: Arc<Mutex<FreeRanges>>,
}

/// The unallocated ranges of the data, in order.
struct FreeRanges(Vec<Range<usize>>);

impl BufferPool {
    /// Allocates zeroed, page-aligned memory of at least `len` bytes. None if there is not enough left.
    pub fn allocate(&self, len: usize) -> Option<Room> {
        let len = len.checked_next_multiple_of(Aligned::PAGE)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let part = free.0.iter_mut().find(|part| part.len() >= len)?;
        let at = part.start;
        part.start += len;
        free.0.retain(|part| !part.is_empty());
        Some(Room { buffer_pool: self.clone(), range: at..at + len })
    }

    fn give_back(&self, range: Range<usize>) {
        // Frees the memory until it is allocated again, zeroed.
        let (from, len) = ((HEAD + range.start) as u64, range.len() as u64);
        if fallocate(&self.shared.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len).is_err() {
            return; // then it is never allocated again
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let after = free.0.partition_point(|part| part.start < range.start);
        free.0.insert(after, range);
        // Merges neighbouring ranges.
        free.0.dedup_by(|next, part| {
            let touch = part.end == next.start;
            if touch {
                part.end = next.end;
            }
            touch
        });
    }
}

/// Memory from a pool. It stays valid as long as this value, even after the key process has ended.
pub struct Room {
    buffer_pool: BufferPool,
    range: Range<usize>,
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = self.buffer_pool.shared.place(self.range.start, self.range.len());
        // SAFETY: nobody else here has this part of the data. The key process is trusted with the keys. It touches the
        // bytes only between a request that names them and its answer, and the thread that sent the request has
        // borrowed them for that time.
        unsafe { slice::from_raw_parts(at, self.range.len()) }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.buffer_pool.shared.place(self.range.start, self.range.len());
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(at, self.range.len()) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.buffer_pool.give_back(self.range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_zeroed_nobody_elses_and_comes_back() {
        let slots = Slots::new(Shared::create().expect("memory"));
        let buffer_pool = slots.buffer_pool();
        let mut rooms: Vec<Room> =
            [1, 4096, 4097, 1 << 20].map(|len| buffer_pool.allocate(len).expect("there is room")).into();
        for (n, room) in rooms.iter_mut().enumerate() {
            assert!(room.as_ptr().addr().is_multiple_of(Aligned::PAGE) && room.iter().all(|byte| *byte == 0));
            assert!(slots.shared().position(room).is_some_and(|at| at >= SLOTS * ROOM));
            room.fill(n as u8 + 1);
        }
        for (n, room) in rooms.iter().enumerate() {
            assert!(room.iter().all(|byte| *byte == n as u8 + 1), "room {n}");
        }
        // In whatever order they are freed, one range remains.
        for n in [1, 0, 1, 0] {
            rooms.remove(n);
        }
        let mut all = buffer_pool.allocate(DATA - SLOTS * ROOM).expect("all of it");
        assert!(all[..2 << 20].iter().all(|byte| *byte == 0), "nothing is left of what was there");
        assert!(buffer_pool.allocate(1).is_none());
        assert!(buffer_pool.allocate(usize::MAX).is_none());
        all[7] = 7;
        // The memory stays valid after the rest of the channel is dropped.
        drop((slots, buffer_pool));
        assert_eq!(all[7], 7);
        let elsewhere = vec![0; 4096];
        let slots = Slots::new(Shared::create().expect("memory"));
        for bytes in [&elsewhere[..], &all[..], &[]] {
            assert!(slots.shared().position(bytes).is_none() || bytes.is_empty());
        }
    }
}

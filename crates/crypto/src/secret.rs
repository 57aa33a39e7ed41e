//! Memory for secrets: locked, left out of core dumps and forked children, wiped when dropped, never printed.
#![allow(unsafe_code, reason = "locked pages of memory")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, slice};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::registers;

/// Secret bytes: a password, a keyfile's pool, a derived or a volume key.
///
/// Each lives in pages that hold only secrets. The pages are locked into memory if the limit on locked memory allows, excluded from
/// core dumps, emptied in forked children and wiped on drop. There is no `Clone`, no `Display`, and `Debug` shows the length only.
pub struct Secret(Pages);

impl Secret {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self(Pages::new(len))
    }

    /// `len` zero bytes, or `None` if the system cannot provide them.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        Pages::try_new(len).map(Self)
    }

    /// A copy of `bytes`. The caller wipes the original.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroed(bytes.len());
        secret.copy_from_slice(bytes);
        secret
    }

    /// Moves `bytes` here and wipes their old place, including spare capacity.
    pub fn from_vec(mut bytes: Vec<u8>) -> Self {
        let secret = Self::copy_from(&bytes);
        bytes.zeroize();
        secret
    }

    /// The bytes of all parts, one after the other. The caller wipes the originals.
    pub fn concat(parts: &[&[u8]]) -> Self {
        let mut secret = Self::zeroed(parts.iter().map(|part| part.len()).sum());
        let mut at = 0;
        for part in parts {
            secret[at..][..part.len()].copy_from_slice(part);
            at += part.len();
        }
        secret
    }

    /// Compares in a time that only depends on the lengths.
    pub fn same_as(&self, other: &[u8]) -> bool {
        self.ct_eq(other).into()
    }
}

impl Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Secret {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len())
    }
}

/// A value without pointers or a destructor, such as a key schedule, in memory like [`Secret`]'s. Initially all zeros.
pub struct LockedBox<T: Plain> {
    pages: Pages,
    holds: std::marker::PhantomData<T>,
}

/// Types for which every byte pattern is valid, including all zeros.
///
/// # Safety
/// The type has no padding that matters, no pointers, no niches, and an alignment of at most a page.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: integers have no niches.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u128 {}
// SAFETY: arrays have neither padding nor niches that their elements have not.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

impl<T: Plain> LockedBox<T> {
    /// All zeros.
    pub fn zeroed() -> Self {
        Self { pages: Pages::new(size_of::<T>()), holds: std::marker::PhantomData }
    }

    /// Fills the value in place, so that it exists nowhere else.
    pub fn build(fill: impl FnOnce(&mut T)) -> Self {
        let mut locked = Self::zeroed();
        fill(&mut locked);
        locked
    }
}

impl<T: Plain> Deref for LockedBox<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the pages are mapped, at least `size_of::<T>()` long and aligned for it, live as long as `self`, and any
        // bytes are a value of a `Plain` type.
        unsafe { self.pages.at.cast().as_ref() }
    }
}

impl<T: Plain> DerefMut for LockedBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { self.pages.at.cast().as_mut() }
    }
}

/// A value of another crate's type, such as a key schedule, in memory like [`Secret`]'s. Its destructor runs.
pub struct Resident<T> {
    pages: Pages,
    holds: std::marker::PhantomData<T>,
}

impl<T> Resident<T> {
    /// Stores the result of `make`, and wipes the stack that `make` used.
    pub fn build(make: impl FnOnce() -> T) -> Self {
        const { assert!(align_of::<T>() <= 4096, "no page is smaller") };
        /// Runs in a frame of its own, below the caller's when that wipes the stack.
        #[inline(never)]
        fn place<T>(pages: &Pages, make: impl FnOnce() -> T) {
            // SAFETY: the pages are fresh, at least `size_of::<T>()` long and aligned for it, and nothing else refers to
            // them.
            unsafe { pages.at.cast::<T>().write(make()) };
        }
        let pages = Pages::new(size_of::<T>());
        place(&pages, make);
        wipe_stack();
        Self { pages, holds: std::marker::PhantomData }
    }
}

impl<T> Deref for Resident<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `build` put a value there; it lives as long as `self`.
        unsafe { self.pages.at.cast().as_ref() }
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        // SAFETY: `build` put a value there, which nobody has taken out; the pages are wiped after this.
        unsafe { self.pages.at.cast::<T>().drop_in_place() };
    }
}

/// Wipes the part of this thread's stack below the caller, where calls that have returned may have left secrets, and
/// then its vector registers.
pub fn wipe_stack() {
    // Our deepest key derivations and trials stay far below this.
    overwrite::<{ 64 << 10 }>();
    registers::wipe();
}

/// Like [`wipe_stack`], but deep enough for numbers of 16,384 bits with tables of their powers.
pub(crate) fn wipe_deep() {
    overwrite::<{ 256 << 10 }>();
    registers::wipe();
}

/// Like [`wipe_stack`], but only as deep as a sector cipher's calls: kernels spill round keys for which they have no
/// registers left. Takes a few hundred nanoseconds at most, so that every piece of a request can end with it.
pub fn wipe_after_sectors() {
    overwrite::<{ 16 << 10 }>();
    registers::wipe();
}

#[inline(never)]
fn overwrite<const DEPTH: usize>() {
    // The black box keeps the compiler from optimising the writes away.
    std::hint::black_box(&mut [0u8; DEPTH]);
}

/// Whether secrets are kept where the kernel itself has no address for them.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Puts new secrets of less than 4 MiB into memory that the kernel removes from its own map (memfd_secret(2)). No other process can
/// read it, not even root's through `/proc/PID/mem`, and it is never in swap or in a hibernation image. A process that calls this
/// must not fork: its children would share that memory. Returns whether the kernel supports it; otherwise nothing changes.
pub fn hide_from_kernel() -> bool {
    let has = hidden_mapping(1).is_ok();
    HIDDEN.store(has, Ordering::Relaxed);
    has
}

/// Secrets that should be in hidden memory and are not.
static VISIBLE: AtomicU64 = AtomicU64::new(0);

/// The number of secrets of less than 4 MiB that went into ordinary memory since [`hide_from_kernel`], for example above the limit
/// on locked memory.
pub fn not_hidden() -> u64 {
    VISIBLE.load(Ordering::Relaxed)
}

/// A new mapping of hidden memory, filled with zeros.
fn hidden_mapping(len: usize) -> io::Result<Mapping> {
    let len = len.next_multiple_of(rustix::param::page_size());
    // SAFETY: the call takes no memory.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned the descriptor, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    rustix::fs::ftruncate(&fd, len as u64)?;
    // SAFETY: a new mapping, at an address of the kernel's choice, of a file that nobody else has.
    let at =
        unsafe { mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) }?;
    Ok(Mapping { at: NonNull::new(at.cast()).expect("mmap returns no null"), len })
}

/// From this many bytes on, huge pages are requested: Argon2, which jumps about in them, is faster with them.
const HUGE: usize = 4 << 20;

/// Sizes of slots in bytes, ascending. A secret that fits into a slot shares pages with others. A mount with many files open has a
/// key for each of them.
const SLOTS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// Bytes mapped together for slots of one size, but at most as many slots as [`Slab::used`] has bits. Few, since the limit on
/// locked memory may be 64 KiB.
const TOGETHER: usize = 8 << 10;

/// The slabs with room, for each size in [`SLOTS`]. A slab stays mapped while one of its slots is in use; one empty slab is kept
/// for the next secret.
static WITH_ROOM: [Mutex<Vec<Arc<Slab>>>; SLOTS.len()] = [const { Mutex::new(Vec::new()) }; _];

/// Memory for one secret: a slot among others, or pages of its own. Zeros at first.
struct Pages {
    at: NonNull<u8>,
    len: usize,
    place: Backing,
}

enum Backing {
    Own(Mapping),
    Slot { slab: Arc<Slab>, number: usize },
}

/// Slots of one size.
struct Slab {
    mapping: Mapping,
    /// Index of the size in [`SLOTS`].
    size: usize,
    /// A bit for each slot. Changed under the lock of [`WITH_ROOM`].
    used: AtomicU64,
}

/// Pages that hold nothing but secrets. Unmapped on drop.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes belong to this value alone; shared references only read them.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}
// SAFETY: the field is only an address. `Pages` knows who may use the bytes there.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Pages {
    fn new(len: usize) -> Self {
        Self::try_new(len).expect("a few pages of memory")
    }

    /// `None` if the kernel refuses the mapping.
    fn try_new(len: usize) -> Option<Self> {
        // A slot is aligned to its size, a power of two, and so at least as strictly as its contents require.
        match SLOTS.iter().position(|slot| len <= *slot) {
            Some(size) => {
                let (slab, number) = Slab::take(size)?;
                let at = slab.slot(number);
                Some(Self { at, len, place: Backing::Slot { slab, number } })
            }
            None => {
                let mapping = Mapping::new(len)?;
                Some(Self { at: mapping.at, len, place: Backing::Own(mapping) })
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped at `at` and, being anonymous memory, initialised; nobody else has them.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the borrow unique.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }

    /// Bytes that are this value's alone: the slot, or all of its pages.
    fn room(&self) -> usize {
        match &self.place {
            Backing::Own(mapping) => mapping.len,
            Backing::Slot { slab, .. } => SLOTS[slab.size],
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Word by word: byte by byte, Argon2's hundreds of megabytes would take a while. SAFETY: slots and pages are whole numbers
        // of words, ours and initialised, and integers have no niches.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr().cast::<u64>(), self.room() / 8) }.zeroize();
        compiler_fence(Ordering::SeqCst);
        if let Backing::Slot { slab, number } = &self.place {
            Slab::give_back(slab, *number);
        }
        // The code that last copied or used the secret may have left it in registers or on the stack.
        registers::wipe();
    }
}

impl Slab {
    /// Takes an unused slot of this size, zeroed.
    fn take(size: usize) -> Option<(Arc<Self>, usize)> {
        let mut with_room = lock(&WITH_ROOM[size]);
        let slab = match with_room.last() {
            Some(slab) => Arc::clone(slab),
            None => {
                let mapping = Mapping::new(SLOTS[size] * slots(size))?;
                let slab = Arc::new(Self { mapping, size, used: AtomicU64::new(0) });
                with_room.push(Arc::clone(&slab));
                slab
            }
        };
        let used = slab.used.load(Ordering::Relaxed);
        let number = used.trailing_ones();
        let used = used | 1 << number;
        slab.used.store(used, Ordering::Relaxed);
        if used == full(size) {
            with_room.pop();
        }
        Some((slab, number as usize))
    }

    /// Takes back a slot, which has been wiped.
    fn give_back(slab: &Arc<Self>, number: usize) {
        let mut with_room = lock(&WITH_ROOM[slab.size]);
        let before = slab.used.load(Ordering::Relaxed);
        let used = before & !(1 << number);
        slab.used.store(used, Ordering::Relaxed);
        if before == full(slab.size) {
            with_room.push(Arc::clone(slab));
        }
        if used == 0 && with_room.len() > 1 {
            with_room.retain(|other| !Arc::ptr_eq(other, slab));
        }
    }

    fn slot(&self, number: usize) -> NonNull<u8> {
        assert!(number < slots(self.size));
        // SAFETY: the mapping has so many slots.
        unsafe { self.mapping.at.add(number * SLOTS[self.size]) }
    }
}

impl Mapping {
    /// Whole pages for `len` bytes. `None` if the kernel refuses.
    fn new(len: usize) -> Option<Self> {
        if HIDDEN.load(Ordering::Relaxed) && len < HUGE {
            // Hidden memory counts towards the limit on locked memory. Above it, a secret goes into ordinary memory.
            if let Ok(mapping) = hidden_mapping(len) {
                return Some(mapping);
            }
            VISIBLE.fetch_add(1, Ordering::Relaxed);
        }
        let len = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: a new private anonymous mapping, at an address of the kernel's choice, aliases nothing.
        let at = unsafe {
            mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let at: NonNull<u8> = NonNull::new(at.ok()?.cast()).expect("mmap returns no null");
        // Locking fails past RLIMIT_MEMLOCK, and the advice on old kernels. Then the secret is no worse off than in
        // ordinary memory, and refusing to open a volume over it would help nobody. SAFETY: the range is the mapping
        // just made.
        unsafe {
            if len >= HUGE {
                let _ = mm::madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage);
            }
            let _ = mm::mlock(at.as_ptr().cast(), len);
            let _ = mm::madvise(at.as_ptr().cast(), len, Advice::LinuxDontDump);
            let _ = mm::madvise(at.as_ptr().cast(), len, Advice::LinuxWipeOnFork);
        }
        Some(Self { at, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nothing refers to it any more. Unmapping unlocks it.
        let _ = unsafe { mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// How many slots of a size are mapped together.
const fn slots(size: usize) -> usize {
    let slots = TOGETHER / SLOTS[size];
    if slots < u64::BITS as usize { slots } else { u64::BITS as usize }
}

/// [`Slab::used`] when all slots are in use.
const fn full(size: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - slots(size))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_length_only() {
        assert_eq!(format!("{:?}", Secret::copy_from(b"hunter2")), "Secret(7 bytes)");
    }

    #[test]
    fn compares_by_content_and_length() {
        let secret = Secret::from_vec(b"abc".to_vec());
        assert!(secret.same_as(b"abc"));
        assert!(!secret.same_as(b"abd") && !secret.same_as(b"ab") && !secret.same_as(b""));
        assert!(Secret::zeroed(0).same_as(b""));
    }

    #[test]
    fn small_ones_share_pages_and_nothing_else() {
        let mut secrets: Vec<(usize, Secret)> = Vec::new();
        let mut seed = 7_usize;
        for round in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if secrets.len() < 500 && !round_ends(seed) {
                let mut secret = Secret::zeroed((seed >> 20) % 2500);
                assert!(secret.iter().all(|b| *b == 0), "zeros at first, whoever had the place before");
                secret.fill(round as u8);
                secrets.push((round, secret));
            } else if !secrets.is_empty() {
                let (round, secret) = secrets.swap_remove((seed >> 20) % secrets.len());
                assert!(secret.iter().all(|b| *b == round as u8), "{round}");
            }
        }
        for (round, secret) in secrets {
            assert!(secret.iter().all(|b| *b == round as u8), "{round}");
        }

        fn round_ends(seed: usize) -> bool {
            (seed >> 50) % 5 < 2
        }
    }

    #[test]
    fn what_is_in_a_slot_is_aligned() {
        #[derive(Clone, Copy)]
        #[repr(C, align(64))]
        struct Vectors([u8; 192]);
        // SAFETY: bytes, and no padding.
        unsafe impl Plain for Vectors {}
        let boxes: Vec<_> = (0..100).map(|_| LockedBox::<Vectors>::zeroed()).collect();
        assert!(boxes.iter().all(|vectors| vectors.0.as_ptr().addr().is_multiple_of(64)));
    }

    #[test]
    fn pages_are_marked_for_no_dump_and_wipe_on_fork() {
        for len in [16, 10_000] {
            let secret = Secret::zeroed(len);
            let at = secret.as_ptr().addr();
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
            let mut holds_it = false;
            let flags = smaps.lines().find_map(|line| {
                if let Some((from, to)) = line.split_whitespace().next().and_then(|range| range.split_once('-')) {
                    let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16));
                    holds_it = from.is_ok_and(|from| from <= at) && to.is_ok_and(|to| at < to);
                }
                line.strip_prefix("VmFlags:").filter(|_| holds_it)
            });
            let flags = flags.expect("the mapping is listed, with its flags");
            assert!(flags.contains(" dd") && flags.contains(" wf"), "{len}: {flags}");
        }
    }
}

//! Memory for secrets: locked, left out of core dumps and forked children, wiped when dropped, never printed.
#![allow(unsafe_code, reason = "locked pages of memory")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};
use std::{fmt, slice};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::registers;

/// Secret bytes: a password, a keyfile's pool, a derived or a volume key.
///
/// Each lives in pages that hold nothing but secrets, which are locked into memory if the limit on locked memory allows, excluded from core
/// dumps, emptied in forked children and wiped on drop. There is no `Clone`, no `Display`, and `Debug` shows the length
/// only.
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

// SAFETY: integers have no niches, and arrays of such types have neither padding nor niches.
unsafe impl<const N: usize> Plain for [u8; N] {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u32; N] {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u64; N] {}
// SAFETY: as above.
unsafe impl<const N: usize, const M: usize> Plain for [[u32; N]; M] {}

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
        // SAFETY: the pages are mapped, page-aligned, at least `size_of::<T>()` long, live as long as `self`, and any
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
    /// Stores the result of `make` and wipes what that left on the stack.
    pub fn build(make: impl FnOnce() -> T) -> Self {
        const { assert!(align_of::<T>() <= 4096, "no page is smaller") };
        /// Runs in a frame of its own, below the caller's when that wipes the stack.
        #[inline(never)]
        fn place<T>(pages: &Pages, make: impl FnOnce() -> T) {
            // SAFETY: the pages are fresh, page-aligned, at least `size_of::<T>()` long, and nothing else refers to
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

/// From this many bytes on, huge pages are requested: Argon2, which jumps about in them, is faster with them.
const HUGE: usize = 4 << 20;

/// Room for a secret: a slot among others, or anonymous pages of its own if it is large.
struct Pages {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this value alone; shared references only read them.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize) -> Self {
        Self::try_new(len).expect("a few pages of memory")
    }

    /// `None` if the kernel refuses the mapping.
    fn try_new(len: usize) -> Option<Self> {
        let at = match slots::class(len) {
            Some(class) => slots::take(class)?,
            None => Self::map(Self::mapped(len))?,
        };
        Some(Self { at, len })
    }

    /// So many bytes, whole pages, all zero.
    fn map(mapped: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new private anonymous mapping, at an address of the kernel's choice, aliases nothing.
        let at = unsafe {
            mm::mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let at: NonNull<u8> = NonNull::new(at.ok()?.cast()).expect("mmap returns no null");
        // Locking fails past RLIMIT_MEMLOCK, and the advice on old kernels. Then the secret is no worse off than in
        // ordinary memory, and refusing to open a volume over it would help nobody. SAFETY: the range is the mapping
        // just made.
        unsafe {
            if mapped >= HUGE {
                let _ = mm::madvise(at.as_ptr().cast(), mapped, Advice::LinuxHugepage);
            }
            let _ = mm::mlock(at.as_ptr().cast(), mapped);
            let _ = mm::madvise(at.as_ptr().cast(), mapped, Advice::LinuxDontDump);
            let _ = mm::madvise(at.as_ptr().cast(), mapped, Advice::LinuxWipeOnFork);
        }
        Some(at)
    }

    /// # Safety
    /// [`Pages::map`] returned this place for so many bytes, and nothing refers to it any more.
    unsafe fn unmap(at: NonNull<u8>, mapped: usize) {
        // SAFETY: the caller vouches for the mapping. Unmapping unlocks it.
        let _ = unsafe { mm::munmap(at.as_ptr().cast(), mapped) };
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped at `at` and, being anonymous memory, initialised.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the borrow unique.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }

    /// Whole pages for `len` bytes. mmap does not accept a length of zero.
    fn mapped(len: usize) -> usize {
        len.max(1).next_multiple_of(rustix::param::page_size())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let class = slots::class(self.len);
        let room = class.map_or_else(|| Self::mapped(self.len), slots::size);
        // Word by word: byte by byte, Argon2's hundreds of megabytes would take a while. SAFETY: the room is whole words, is ours
        // and initialised, and integers have no niches.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr().cast::<u64>(), room / 8) }.zeroize();
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the room is ours, of this size, and nothing refers to it any more.
        unsafe {
            match class {
                Some(class) => slots::give_back(class, self.at),
                None => Self::unmap(self.at, room),
            }
        }
        // Whoever copied or used it last may have left it in registers or on the stack.
        registers::wipe();
    }
}

/// Slots for small secrets, which share pages: a folder has a key and its schedule for each open file, and there may be very many.
/// What is free is zero.
mod slots {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The size of a slot, as a power of two: of the smallest and of the largest class.
    const SMALLEST: u32 = 6;
    const LARGEST: u32 = 10;
    const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;

    /// Slots that are mapped together, one for each bit.
    const TOGETHER: usize = u64::BITS as usize;

    /// Slots of one size.
    struct Class {
        /// Where slots lie, and which of them are free.
        groups: BTreeMap<usize, u64>,
        /// Groups of which some are free.
        open: BTreeSet<usize>,
    }

    static SLOTS: [Mutex<Class>; CLASSES] =
        [const { Mutex::new(Class { groups: BTreeMap::new(), open: BTreeSet::new() }) }; CLASSES];

    /// The class for so many bytes; none if they are too many.
    pub(super) fn class(len: usize) -> Option<usize> {
        let power = len.max(1).next_power_of_two().trailing_zeros().max(SMALLEST);
        (len <= 1 << LARGEST).then(|| (power - SMALLEST) as usize)
    }

    /// Bytes of a slot.
    pub(super) fn size(class: usize) -> usize {
        1 << (class + SMALLEST as usize)
    }

    fn of(class: usize) -> MutexGuard<'static, Class> {
        SLOTS[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot that is free, aligned to its size; `None` if the kernel refuses a mapping.
    pub(super) fn take(class: usize) -> Option<NonNull<u8>> {
        let mut slots = of(class);
        let group = match slots.open.first() {
            Some(group) => *group,
            None => {
                let group = Pages::map(mapped(class))?.expose_provenance().get();
                slots.groups.insert(group, u64::MAX);
                slots.open.insert(group);
                group
            }
        };
        let free = slots.groups.get_mut(&group).expect("every open group is there");
        let at = group + free.trailing_zeros() as usize * size(class);
        *free &= *free - 1;
        if *free == 0 {
            slots.open.remove(&group);
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(at))
    }

    /// # Safety
    /// [`take`] returned this slot for this class, all of it is zero, and nothing refers to it any more.
    pub(super) unsafe fn give_back(class: usize, at: NonNull<u8>) {
        let mut slots = of(class);
        let at = at.addr().get();
        let (&group, free) = slots.groups.range_mut(..=at).next_back().expect("the slot is in a group");
        *free |= 1 << ((at - group) / size(class));
        let unused = *free == u64::MAX;
        slots.open.insert(group);
        // One is kept: who opens and closes one file after the other would map and unmap each time.
        if unused && slots.open.len() > 1 {
            slots.groups.remove(&group);
            slots.open.remove(&group);
            let at = NonNull::new(std::ptr::with_exposed_provenance_mut(group)).expect("a mapping");
            // SAFETY: `take` has mapped it, and no slot of it is in use.
            unsafe { Pages::unmap(at, mapped(class)) };
        }
    }

    /// Bytes of a group.
    fn mapped(class: usize) -> usize {
        Pages::mapped(TOGETHER * size(class))
    }
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
    fn many_small_secrets_share_pages_and_none_their_bytes() {
        for len in [0, 1, 63, 64, 65, 512, 1023, 1024, 1025] {
            let fill = |i: usize| Secret::copy_from(&vec![i as u8 + 1; len]);
            let mut secrets: Vec<_> = (0..200).map(fill).collect();
            // Every other one goes, and others come in their place.
            secrets.iter_mut().step_by(2).for_each(|secret| *secret = Secret::zeroed(len));
            for (i, secret) in secrets.iter().enumerate() {
                let byte = if i % 2 == 0 { 0 } else { i as u8 + 1 };
                assert!(secret.iter().all(|b| *b == byte), "{len} bytes, the one with the number {i}");
            }
            let mut places: Vec<_> = secrets.iter().map(|secret| secret.as_ptr() as usize).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= len.max(64)), "{len} bytes");
            if len == 64 {
                let mut pages: Vec<_> = places.iter().map(|at| at / 4096).collect();
                pages.dedup();
                assert!(pages.len() < 100, "they are in {} pages", pages.len());
            }
        }
    }

    #[test]
    fn threads_take_and_give_back_at_once() {
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..2000usize {
                        held.push(Secret::copy_from(&[thread; 100]));
                        if round % 3 == 0 {
                            assert!(held.swap_remove(round / 7 % held.len()).same_as(&[thread; 100]));
                        }
                    }
                    assert!(held.iter().all(|secret| secret.same_as(&[thread; 100])));
                });
            }
        });
    }

    #[test]
    fn small_secrets_are_in_pages_for_no_dump_and_wiped_on_fork() {
        let secret = Secret::zeroed(100);
        let at = secret.as_ptr() as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut inside = false;
        for line in smaps.lines() {
            if let Some((from, to)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
                let hex = |text| usize::from_str_radix(text, 16).ok();
                inside = hex(from).zip(hex(to)).is_some_and(|(from, to)| (from..to).contains(&at));
            }
            if inside && line.starts_with("VmFlags:") {
                assert!(line.contains(" dd") && line.contains(" wf"), "{line}");
                return;
            }
        }
        panic!("the mapping is listed");
    }

    #[test]
    fn pages_are_marked_for_no_dump_and_wipe_on_fork() {
        let secret = Secret::zeroed(10_000);
        let start = format!("{:x}-", secret.as_ptr() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let entry = smaps.split_inclusive("VmFlags:").collect::<Vec<_>>();
        let at = entry.iter().position(|e| e.contains(&start)).expect("the mapping is listed");
        let flags = entry[at + 1].lines().next().expect("a line of flags");
        assert!(flags.contains(" dd") && flags.contains(" wf"), "{flags}");
    }
}

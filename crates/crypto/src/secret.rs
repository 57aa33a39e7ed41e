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
/// Each lives in pages of its own that are locked into memory if the limit on locked memory allows, excluded from core
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

/// Like [`wipe_stack`], and as deep as numbers of 16,384 bits with tables of their powers go.
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

/// From this many bytes on, huge pages are requested: Argon2, which jumps about in them, is faster with them.
const HUGE: usize = 4 << 20;

/// Anonymous pages of their own.
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
        let mapped = Self::mapped(len);
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
        Some(Self { at, len })
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
        // Word by word: byte by byte, Argon2's hundreds of megabytes would take a while. SAFETY: the mapping is made of
        // whole pages, is ours and initialised, and integers have no niches.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr().cast::<u64>(), Self::mapped(self.len) / 8) }.zeroize();
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the mapping is ours, of this size, and nothing refers to it any more. Unmapping unlocks it.
        let _ = unsafe { mm::munmap(self.at.as_ptr().cast(), Self::mapped(self.len)) };
        // Whoever copied or used it last may have left it in registers or on the stack.
        registers::wipe();
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

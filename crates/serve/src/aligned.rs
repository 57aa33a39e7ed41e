//! Memory that the kernel copies to and from quickly, and that a key process works on in place.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::key_process::{BufferPool, Room};

/// The pool for new buffers, if there is one. All servers of a process share it, as they share one allocator.
static POOL: RwLock<Option<BufferPool>> = RwLock::new(None);

/// How often [`POOL`] has changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Places new buffers in this pool until the value is dropped or another pool is in use.
pub struct PoolInUse(u64);

impl PoolInUse {
    pub fn new(pool: BufferPool) -> Self {
        let mut current = POOL.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(pool);
        Self(CHANGES.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

impl Drop for PoolInUse {
    fn drop(&mut self) {
        let mut current = POOL.write().unwrap_or_else(PoisonError::into_inner);
        if CHANGES.load(Ordering::SeqCst) == self.0 {
            CHANGES.fetch_add(1, Ordering::SeqCst);
            *current = None;
        }
    }
}

/// Bytes aligned to 4096, and so to a page and a cache line: copying to an address that is not a multiple of 16 is
/// several times slower.
#[derive(Default)]
pub struct Aligned {
    memory: Memory,
    len: usize,
    /// The value of [`CHANGES`] when the memory was allocated.
    changes: u64,
}

enum Memory {
    /// Memory of this process; the buffer begins at this byte.
    Own(Vec<u8>, usize),
    Pooled(Room),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Own(Vec::new(), 0)
    }
}

impl Aligned {
    /// The alignment, in bytes: a page.
    pub const PAGE: usize = 4096;

    /// Size of a cache line, in bytes: the least alignment for parts of a buffer.
    pub const LINE: usize = 64;

    /// A zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        let mut new = Self::default();
        new.reserve(len);
        new
    }

    /// Makes the buffer at least `len` bytes long and moves it to the current pool. Growing and moving discard the contents.
    pub fn reserve(&mut self, len: usize) {
        let changes = CHANGES.load(Ordering::SeqCst);
        if self.len >= len && self.changes == changes {
            return;
        }
        let len = len.max(self.len);
        *self = Self::default(); // freed first
        let pool = POOL.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.memory = match pool.and_then(|pool| pool.allocate(len)) {
            Some(room) => Memory::Pooled(room),
            None => {
                let own = vec![0; len + Self::PAGE];
                let skip = (own.as_ptr() as usize).wrapping_neg() % Self::PAGE;
                Memory::Own(own, skip)
            }
        };
        (self.len, self.changes) = (len, changes);
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(own, skip) => &own[*skip..*skip + self.len],
            Memory::Pooled(room) => &room[..self.len],
        }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(own, skip) => &mut own[*skip..*skip + self.len],
            Memory::Pooled(room) => &mut room[..self.len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_only_grows() {
        let mut memory = Aligned::default();
        assert!(memory.is_empty());
        for len in [1, 64, 100_000, 5, (1 << 20) + 1] {
            let before = memory.len();
            memory.reserve(len);
            assert!(memory.len() >= len.max(before));
            assert_eq!(memory.as_ptr() as usize % Aligned::PAGE, 0);
        }
    }
}

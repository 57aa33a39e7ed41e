//! Memory that the kernel copies to and from quickly, and that a key process works on in place.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::key_process::{BufferPool, Room};

/// The pools in use, with their numbers. New buffers go to the last one. All servers of a process share it, as they share one allocator.
static POOLS: RwLock<Vec<(u64, BufferPool)>> = RwLock::new(Vec::new());

/// How often [`POOLS`] has changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Places new buffers in this pool, until the value is dropped or another pool is in use.
pub struct PoolInUse(u64);

impl PoolInUse {
    pub fn new(pool: BufferPool) -> Self {
        let mut pools = POOLS.write().unwrap_or_else(PoisonError::into_inner);
        let number = CHANGES.fetch_add(1, Ordering::SeqCst) + 1;
        pools.push((number, pool));
        Self(number)
    }
}

impl Drop for PoolInUse {
    fn drop(&mut self) {
        let mut pools = POOLS.write().unwrap_or_else(PoisonError::into_inner);
        if pools.last().is_some_and(|(number, _)| *number == self.0) {
            CHANGES.fetch_add(1, Ordering::SeqCst);
        }
        pools.retain(|(number, _)| *number != self.0);
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
        let pool = POOLS.read().unwrap_or_else(PoisonError::into_inner).last().map(|(_, pool)| pool.clone());
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
    use crate::key_process::{Shared, Slots};

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

    /// The key process of a conversion that fails leaves the pool of the volume's own.
    #[test]
    fn the_pool_before_is_in_use_again_after_the_last_one() {
        let pool = || PoolInUse::new(Slots::new(Shared::create().expect("memory")).buffer_pool());
        let numbers = || POOLS.read().expect("no test panics").iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let (first, second) = (pool(), pool());
        assert!([first.0, second.0].iter().all(|number| numbers().contains(number)));
        let (number, changes) = (second.0, CHANGES.load(Ordering::SeqCst));
        drop(second);
        assert!(numbers().contains(&first.0) && !numbers().contains(&number));
        assert!(CHANGES.load(Ordering::SeqCst) > changes, "buffers move back");
    }
}

//! Memory that the kernel copies to and from quickly.

use std::ops::{Deref, DerefMut};

/// Bytes aligned to 4096, and so to a page and a cache line: copying to an address that is not a multiple of 16 is
/// several times slower.
#[derive(Default)]
pub struct Aligned {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Aligned {
    /// The alignment, in bytes: a page.
    pub const PAGE: usize = 4096;

    /// Size of a cache line, in bytes: what parts of a buffer should be aligned to at least.
    pub const LINE: usize = 64;

    /// A zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        let mut new = Self::default();
        new.reserve(len);
        new
    }

    /// Makes it at least `len` bytes long. Growing discards the contents.
    pub fn reserve(&mut self, len: usize) {
        if self.len >= len {
            return;
        }
        *self = Self::default(); // freed first
        self.memory = vec![0; len + Self::PAGE];
        self.skip = (self.memory.as_ptr() as usize).wrapping_neg() % Self::PAGE;
        self.len = len;
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.len]
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

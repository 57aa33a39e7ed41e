//! Page-aligned buffers whose pages are mapped before the clock starts.

use std::ops::{Deref, DerefMut};

/// Alignment of every buffer, in bytes: a page. Kernel copies into misaligned buffers are several times as slow, and a
/// vector kernel's loads must not split cache lines.
const ALIGN: usize = 4096;

/// Page-aligned memory.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes, touched once, so that no page fault happens during a measurement.
    pub fn new(len: usize) -> Self {
        let mut bytes = Vec::new();
        // Not `vec![0; n]`: that maps pages lazily.
        bytes.resize(len + ALIGN, 0x5a);
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, len }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_on_a_page() {
        for len in [1, 100, 4096, 102_400] {
            let buffer = Buffer::new(len);
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % ALIGN), (len, 0));
        }
    }
}

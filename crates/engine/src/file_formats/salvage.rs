use std::io;
use std::sync::Arc;

use super::FileLayout;
use crate::store::Store;
use crate::trees::{Node, NodeStore, Tree};
use crate::volume::Volume;

/// The largest block, in bytes, of ciphers whose blocks can be decrypted without those that follow.
const BLOCK: u64 = 16;

/// The readable part of a file that was cut short.
pub struct Salvage {
    volume: Volume,
    size: u64,
    there: u64,
}

impl Salvage {
    pub(super) fn of(tree: &Arc<dyn Tree>, file: Node, layout: FileLayout) -> io::Result<Self> {
        let stored = tree.attributes(file)?.size;
        let size = layout.size();
        let layout = layout.into_layout();
        let whole = |s: &crate::volume::Segment| match stored.saturating_sub(s.stored_at) {
            all if all >= s.len => s.len,
            some => some - some % BLOCK,
        };
        // The first incomplete segment is the last one with any data.
        let mut there = 0;
        for segment in layout.segments() {
            there = segment.at + whole(segment);
            if whole(segment) < segment.len {
                break;
            }
        }
        let volume = Volume::new(Arc::new(Padded(NodeStore::new(tree.clone(), file))), layout);
        Ok(Self { volume, size, there: there.min(size) })
    }

    /// The plaintext size that the metadata record, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The plaintext size that is left, in bytes, from the beginning.
    pub fn there(&self) -> u64 {
        self.there
    }

    /// Reads plaintext that is left.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end; those of the tree.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(out.len() as u64) {
            Some(end) if end <= self.there => self.volume.read_at(offset, out),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A file with zeros after its end, so that its last sector can be decrypted.
struct Padded(NodeStore);

impl Store for Padded {
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.0.len().saturating_sub(offset).min(out.len() as u64) as usize;
        let (front, behind) = out.split_at_mut(there);
        behind.fill(0);
        if front.is_empty() { Ok(()) } else { self.0.read_at(offset, front) }
    }

    fn write_clobbering(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Err(crate::trees::read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn writable(&self) -> bool {
        false
    }
}

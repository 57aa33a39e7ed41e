//! Copies the whole plaintext of one volume into another, then reads both again to compare.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::in_order;
use crate::store::Store;

/// Bytes compared at a time: enough to keep every CPU busy.
const CHUNK: u64 = 4 << 20;

/// Bytes between two checkpoints.
const CHECKPOINT: u64 = 64 << 20;

/// The unit of holes: the block size of most file systems.
const BLOCK: usize = 4096;

/// A copy of one store in another that is at least as long. Space past the end of the source becomes zeros.
pub struct VolumeCopy<'a> {
    /// The store to copy; never written.
    pub source: &'a dyn Store,
    /// The store to write.
    pub destination: &'a dyn Store,
    /// Whether zeros can be skipped because unwritten parts of the destination read as zeros. True for a new sparse file, never for
    /// an encrypted volume, whose unwritten parts read as noise.
    pub holes: bool,
    /// Set to stop.
    pub cancel: Option<&'a AtomicBool>,
    /// Called with the bytes done and the total.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl VolumeCopy<'_> {
    /// Copies from byte `from` to the end of the destination. Calls `checkpoint` at intervals, and at the end, with how much is
    /// copied and durable. Returns the bytes left as holes.
    ///
    /// # Errors
    /// `Io`, `Cancelled`, `Misuse` if the destination is too short, and those of `checkpoint`.
    pub fn copy(&self, from: u64, checkpoint: &mut (dyn FnMut(u64) -> Result<()> + Send)) -> Result<u64> {
        self.fits()?;
        let end = self.destination.len();
        let (mut left_out, mut durable) = (0, from);
        let read = |at, out: &mut [u8]| self.read_source(at, out);
        in_order::read(from..end, read, |at, piece, read| -> Result<()> {
            read?;
            self.not_cancelled(|| self.settle(at, checkpoint))?;
            (self.progress)(at, end);
            let next = at + piece.len() as u64;
            if self.holes {
                left_out += self.write_sparse(at, piece)?;
            } else {
                self.destination.write_clobbering(at, piece)?;
            }
            if next - durable >= CHECKPOINT {
                self.settle(next, checkpoint)?;
                durable = next;
            }
            Ok(())
        })?;
        (self.progress)(end, end);
        self.settle(end, checkpoint)?;
        Ok(left_out)
    }

    /// Reads a byte range of both stores and compares.
    ///
    /// # Errors
    /// `Malformed` with the offset of the first byte that differs; `Io`, `Cancelled`, `Misuse` if the destination is
    /// too short.
    pub fn compare(&self, range: Range<u64>) -> Result<()> {
        self.fits()?;
        let end = range.end.min(self.destination.len());
        let (mut ours, mut theirs) = (self.buffer(), self.buffer());
        let mut at = range.start;
        while at < end {
            self.not_cancelled(|| Ok(()))?;
            (self.progress)(at - range.start, end - range.start);
            let (ours, theirs) = (part(&mut ours, at, end), part(&mut theirs, at, end));
            self.read_source(at, ours)?;
            self.destination.read_at(at, theirs)?;
            if let Some(differs) = ours.iter().zip(&*theirs).position(|(a, b)| a != b) {
                let what =
                    "the data read back differ from the data written, or the source changed during the copy".to_owned();
                return Err(ErrorKind::Malformed { field: "copy", offset: at + differs as u64, what }.into());
            }
            at += ours.len() as u64;
        }
        (self.progress)(end - range.start.min(end), end - range.start.min(end));
        Ok(())
    }

    fn fits(&self) -> Result<()> {
        let (source, destination) = (self.source.len(), self.destination.len());
        if destination >= source {
            return Ok(());
        }
        Err(Error::misuse(format!("the source has {source} bytes, but the destination only {destination}")))
    }

    fn buffer(&self) -> Vec<u8> {
        vec![0; self.destination.len().min(CHUNK) as usize]
    }

    /// Flushes what was copied, then reports it to `checkpoint`.
    fn settle(&self, at: u64, checkpoint: &mut (dyn FnMut(u64) -> Result<()> + Send)) -> Result<()> {
        self.destination.flush()?;
        checkpoint(at)
    }

    fn not_cancelled(&self, before: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Ok(());
        }
        before()?;
        Err(ErrorKind::Cancelled.into())
    }

    /// Reads from the source, with zeros past its end.
    fn read_source(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.source.len().saturating_sub(at).min(out.len() as u64) as usize;
        let (bytes, behind) = out.split_at_mut(there);
        behind.fill(0);
        self.source.read_at(at, bytes)
    }

    /// Writes the runs of blocks that are not all zeros. Returns the number of bytes skipped.
    fn write_sparse(&self, at: u64, chunk: &mut [u8]) -> io::Result<u64> {
        let mut zeros = 0;
        for run in runs(chunk) {
            match run {
                Run::Zeros(len) => zeros += len as u64,
                Run::Data(range) => self.destination.write_clobbering(at + range.start as u64, &mut chunk[range])?,
            }
        }
        Ok(zeros)
    }
}

/// Consecutive blocks of one kind.
#[derive(Debug, PartialEq)]
enum Run {
    Zeros(usize),
    Data(Range<usize>),
}

/// The runs of a chunk, in order.
fn runs(chunk: &[u8]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (i, block) in chunk.chunks(BLOCK).enumerate() {
        let (from, to) = (i * BLOCK, i * BLOCK + block.len());
        let zeros = block.iter().all(|b| *b == 0);
        match (runs.last_mut(), zeros) {
            (Some(Run::Zeros(len)), true) => *len += block.len(),
            (Some(Run::Data(range)), false) => range.end = to,
            (_, true) => runs.push(Run::Zeros(block.len())),
            (_, false) => runs.push(Run::Data(from..to)),
        }
    }
    runs
}

/// The part of the buffer for offset `at`, if everything ends at `end`.
fn part(buffer: &mut [u8], at: u64, end: u64) -> &mut [u8] {
    let len = (end - at).min(buffer.len() as u64) as usize;
    &mut buffer[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn conversion<'a>(source: &'a MemoryStore, destination: &'a MemoryStore, holes: bool) -> VolumeCopy<'a> {
        VolumeCopy { source, destination, holes, cancel: None, progress: &|_, _| {} }
    }

    fn bytes(store: &MemoryStore) -> Vec<u8> {
        let mut all = vec![0; store.len() as usize];
        store.read_at(0, &mut all).expect("it is read");
        all
    }

    /// Data, zeros, data within one block, and an end that is not a whole block.
    fn some() -> Vec<u8> {
        let mut some = vec![0; 5 * BLOCK + 7];
        some[..BLOCK].fill(1);
        some[3 * BLOCK + 9] = 2;
        some[5 * BLOCK] = 3;
        some
    }

    #[test]
    fn what_is_copied_is_the_same_and_zeros_behind_it() {
        let source = MemoryStore::new(some());
        for holes in [false, true] {
            let destination = MemoryStore::new(vec![if holes { 0 } else { 9 }; some().len() + 100]);
            let conversion = conversion(&source, &destination, holes);
            let mut reported = Vec::new();
            let left_out = conversion
                .copy(0, &mut |at| {
                    reported.push(at);
                    Ok(())
                })
                .expect("a copy");
            assert_eq!(left_out, if holes { 3 * BLOCK as u64 } else { 0 });
            assert_eq!(reported, [destination.len()]);
            assert_eq!(bytes(&destination), [some(), vec![0; 100]].concat());
            conversion.compare(0..u64::MAX).expect("the same");
        }
    }

    #[test]
    fn a_difference_is_told_with_its_place() {
        let (source, mut other) = (MemoryStore::new(some()), some());
        other[4 * BLOCK + 5] ^= 1;
        let destination = MemoryStore::new(other);
        let conversion = conversion(&source, &destination, false);
        let error = conversion.compare(0..u64::MAX).expect_err("a difference");
        assert!(matches!(error.kind, ErrorKind::Malformed { offset, .. } if offset == 4 * BLOCK as u64 + 5), "{error}");
        conversion.compare(0..4 * BLOCK as u64).expect("the same so far");
    }

    #[test]
    fn what_is_done_is_told_before_it_stops() {
        let (source, destination) = (MemoryStore::new(some()), MemoryStore::new(some()));
        let stop = AtomicBool::new(true);
        let conversion = VolumeCopy { cancel: Some(&stop), ..conversion(&source, &destination, false) };
        let mut reported = None;
        let error = conversion
            .copy(BLOCK as u64, &mut |at| {
                reported = Some(at);
                Ok(())
            })
            .expect_err("cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled) && reported == Some(BLOCK as u64));
    }

    #[test]
    fn nothing_is_cut_off() {
        let (source, destination) = (MemoryStore::new(some()), MemoryStore::new(vec![0; 100]));
        let conversion = conversion(&source, &destination, false);
        assert!(matches!(conversion.copy(0, &mut |_| Ok(())).expect_err("too short").kind, ErrorKind::Misuse(_)));
        assert!(conversion.compare(0..100).is_err() && bytes(&destination) == vec![0; 100]);
    }
}

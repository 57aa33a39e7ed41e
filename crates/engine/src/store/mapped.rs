use std::io;
use std::sync::Arc;

use super::{Store, check_range, largest_sector};

/// A store that consists of parts of another store: extents, in order.
pub struct MappedStore {
    inner: Arc<dyn Store>,
    /// The offset of each extent in this store, in bytes, and the extent. The first offset is 0.
    extents: Vec<(u64, Extent)>,
    len: u64,
    writable: bool,
    sector_size: u64,
}

/// A part of a [`MappedStore`]: either one run of bytes, or chunks taken from several runs in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes. The runs have equal shares of it, in whole chunks.
    pub len: u64,
    /// Bytes taken from one run before the next one's turn. With a single run, its whole length.
    pub chunk: u64,
    /// The offsets of the runs in the store below, in bytes.
    pub runs: Vec<u64>,
}

/// Bytes that are contiguous in both stores.
struct Piece {
    at: u64,
    len: usize,
}

impl Extent {
    /// A single run of bytes.
    pub fn linear(at: u64, len: u64) -> Self {
        Self { len, chunk: len, runs: vec![at] }
    }

    /// The length of each run, in bytes. `None` if the fields contradict each other.
    fn run_len(&self) -> Option<u64> {
        let len = self.len.checked_div(self.runs.len() as u64)?;
        let whole = len > 0 && self.len.is_multiple_of(self.runs.len() as u64);
        (whole && self.chunk > 0 && len.is_multiple_of(self.chunk)).then_some(len)
    }

    /// The piece that begins `within` bytes after the extent's beginning, of at most `most` bytes.
    fn piece(&self, within: u64, most: usize) -> Piece {
        let (chunk, inside) = (within / self.chunk, within % self.chunk);
        let (row, run) = (chunk / self.runs.len() as u64, chunk % self.runs.len() as u64);
        let left = usize::try_from(self.chunk - inside).unwrap_or(usize::MAX);
        Piece { at: self.runs[run as usize] + row * self.chunk + inside, len: left.min(most) }
    }
}

impl MappedStore {
    /// These extents of `inner`. The result is writable if `inner` is and `writable` is set.
    ///
    /// # Errors
    /// `UnexpectedEof` if an extent reaches past the end of `inner`; `InvalidInput` if the fields of an extent contradict each
    /// other.
    pub fn new(inner: Arc<dyn Store>, extents: &[Extent], writable: bool) -> io::Result<Self> {
        let mut len = 0u64;
        let mut placed = Vec::with_capacity(extents.len());
        for extent in extents {
            let run_len = extent.run_len().ok_or(io::ErrorKind::InvalidInput)?;
            if !extent.runs.iter().all(|at| at.checked_add(run_len).is_some_and(|end| end <= inner.len())) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            placed.push((len, extent.clone()));
            len = len.checked_add(extent.len).ok_or(io::ErrorKind::InvalidInput)?;
        }
        // The sector size of the store below, if all runs and chunks consist of its whole sectors.
        let borders = extents.iter().flat_map(|extent| extent.runs.iter().chain([&extent.chunk]));
        let sector_size = largest_sector(inner.sector_size(), borders.fold(len, |all, border| all | border));
        Ok(Self { inner, extents: placed, len, writable, sector_size })
    }

    /// The same store, reporting a smaller sector size.
    pub fn with_sector_size(self, size: u64) -> Self {
        Self { sector_size: largest_sector(self.sector_size, size), ..self }
    }

    /// The piece that begins at `offset`, which must lie within the store.
    fn piece(&self, offset: u64, most: usize) -> Piece {
        let (start, extent) = &self.extents[self.extents.partition_point(|(start, _)| *start <= offset) - 1];
        // An extent consists of whole chunks, so no chunk reaches into the next extent.
        extent.piece(offset - start, most)
    }
}

impl Store for MappedStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len)?;
        let mut done = 0;
        while done < out.len() {
            let Piece { at, len } = self.piece(offset + done as u64, out.len() - done);
            self.inner.read_at(at, &mut out[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        check_range(offset, data.len(), self.len)?;
        let mut done = 0;
        while done < data.len() {
            let Piece { at, len } = self.piece(offset + done as u64, data.len() - done);
            self.inner.write_clobbering(at, &mut data[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn writable(&self) -> bool {
        self.writable && self.inner.writable()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        check_range(offset, len, self.len)?;
        let mut done = 0;
        while done < len {
            let piece = self.piece(offset + done as u64, len - done);
            self.inner.discard(piece.at, piece.len as u64)?;
            done += piece.len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// The store below has 64 bytes. This store has 8 of them, then 16 in chunks of 4 from two runs, then 6.
    fn extents() -> [Extent; 3] {
        [Extent::linear(40, 8), Extent { len: 16, chunk: 4, runs: vec![0, 20] }, Extent::linear(58, 6)]
    }

    /// The offset of each byte in the store below.
    fn places() -> Vec<usize> {
        let striped = [0..4, 20..24, 4..8, 24..28].into_iter().flatten();
        (40..48).chain(striped).chain(58..64).collect()
    }

    #[test]
    fn every_range_is_read_and_written_where_it_is_and_nowhere_else() {
        let places = places();
        for offset in 0..=places.len() {
            for end in offset..=places.len() {
                let below = Arc::new(MemoryStore::new((0..64).collect()));
                let store = MappedStore::new(below.clone(), &extents(), true).expect("extents");
                assert_eq!(store.len(), places.len() as u64);
                let mut out = vec![0; end - offset];
                store.read_at(offset as u64, &mut out).expect("a range");
                assert!(out.iter().zip(&places[offset..end]).all(|(byte, at)| usize::from(*byte) == *at));
                store.write_clobbering(offset as u64, &mut vec![0xff; end - offset]).expect("a range");
                for (at, byte) in below.to_vec().into_iter().enumerate() {
                    let written = places[offset..end].contains(&at);
                    assert_eq!(byte, if written { 0xff } else { at as u8 });
                }
            }
        }
    }

    #[test]
    fn what_is_outside_or_read_only_is_refused_before_anything_is_written() {
        let below = Arc::new(MemoryStore::new(vec![0; 64]));
        let store = MappedStore::new(below.clone(), &extents(), true).expect("extents");
        for (offset, len) in [(0, 31), (30, 1), (31, 0), (u64::MAX, 1), (u64::MAX, 2)] {
            assert!(store.write_clobbering(offset, &mut vec![1; len]).is_err(), "{offset} {len}");
            assert!(store.read_at(offset, &mut vec![1; len]).is_err(), "{offset} {len}");
        }
        let read_only = MappedStore::new(below.clone(), &extents(), false).expect("extents");
        assert!(!read_only.writable() && store.writable());
        let error = read_only.write_clobbering(0, &mut [1]).expect_err("read-only");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(read_only.discard(0, 1).is_err());
        assert!(below.to_vec().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn extents_that_cannot_be_are_refused() {
        let striped = |len, chunk, runs: &[u64]| Extent { len, chunk, runs: runs.to_vec() };
        for wrong in [
            Extent::linear(60, 5),
            Extent::linear(u64::MAX, 5),
            Extent::linear(0, 0),
            striped(16, 4, &[]),
            striped(16, 0, &[0, 20]),
            striped(16, 3, &[0, 20]),
            striped(15, 4, &[0, 20]),
            striped(16, 16, &[0, 20]),
            striped(16, 4, &[0, 57]),
        ] {
            let below = Arc::new(MemoryStore::new(vec![0; 64]));
            assert!(MappedStore::new(below, std::slice::from_ref(&wrong), true).is_err(), "{wrong:?}");
        }
    }
}

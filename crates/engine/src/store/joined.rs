use std::io;
use std::sync::Arc;

use super::{SMALLEST_SECTOR, Store, check_range, largest_sector};

/// Several stores, one after another, read as one. It is read-only.
pub struct JoinedStore {
    /// The offset of each part in this store, in bytes, and the part. No part is empty.
    parts: Vec<(u64, Arc<dyn Store>)>,
    len: u64,
    sector_size: u64,
}

impl JoinedStore {
    /// These parts, in order. Empty ones are left out.
    ///
    /// # Errors
    /// `InvalidInput` if their sizes add up to more than 64 bits can hold.
    pub fn new(parts: impl IntoIterator<Item = Arc<dyn Store>>) -> io::Result<Self> {
        let (mut placed, mut len, mut sector_size) = (Vec::new(), 0u64, u64::MAX);
        for part in parts {
            let end = len.checked_add(part.len()).ok_or(io::ErrorKind::InvalidInput)?;
            if end > len {
                // Larger sectors must not cross the border between two parts.
                sector_size = largest_sector(part.sector_size().min(sector_size), end);
                placed.push((len, part));
            }
            len = end;
        }
        Ok(Self { parts: placed, len, sector_size: if len == 0 { SMALLEST_SECTOR } else { sector_size } })
    }
}

impl Store for JoinedStore {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len)?;
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (start, part) = &self.parts[self.parts.partition_point(|(start, _)| *start <= at) - 1];
            let left = usize::try_from(start + part.len() - at).unwrap_or(usize::MAX);
            let end = done + left.min(out.len() - done);
            part.read_at(at - start, &mut out[done..end])?;
            done = end;
        }
        Ok(())
    }

    fn write_clobbering(&self, _offset: u64, _data: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn still_whole(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(|(_, part)| part.still_whole())
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn writable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn joined(lens: &[u8]) -> JoinedStore {
        let mut next = 0;
        let parts = lens.iter().map(|len| {
            let bytes = (next..next + len).collect();
            next += len;
            Arc::new(MemoryStore::new(bytes)) as Arc<dyn Store>
        });
        JoinedStore::new(parts.collect::<Vec<_>>()).expect("parts")
    }

    #[test]
    fn every_range_is_read_across_the_borders() {
        for lens in [&[][..], &[5], &[4, 4, 3], &[0, 4, 0, 1, 0], &[1, 1, 1]] {
            let store = joined(lens);
            let len = lens.iter().map(|len| u64::from(*len)).sum::<u64>();
            assert_eq!(store.len(), len);
            for start in 0..=len {
                for end in start..=len {
                    let mut out = vec![0xff; (end - start) as usize];
                    store.read_at(start, &mut out).expect("a range");
                    assert!(out.iter().copied().eq(start as u8..end as u8), "{lens:?} {start} {end}");
                }
            }
            for (start, count) in [(0, len + 1), (len, 1), (u64::MAX, 1)] {
                assert!(store.read_at(start, &mut vec![0; count as usize]).is_err(), "{lens:?} {start}");
            }
        }
    }

    #[test]
    fn nothing_is_written() {
        let store = joined(&[4, 4]);
        assert!(!store.writable() && store.write_clobbering(0, &mut [1]).is_err());
        let mut out = [0; 8];
        store.read_at(0, &mut out).expect("all of it");
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

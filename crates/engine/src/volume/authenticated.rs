//! A segment whose sectors have tags: a sector that was never written or that somebody else changed is an error.

use std::io;

use claviger_crypto::modes::AuthenticatedCipher;

use super::CHUNK;
use super::integrity::{TaggedSectors, random_tags};
use crate::store::Store;

/// A segment and its store. Offsets are relative to the segment's beginning, in bytes.
pub(super) struct Authenticated<'a> {
    pub store: &'a dyn Store,
    /// Offset of the area in the store.
    pub base: u64,
    pub area: &'a TaggedSectors,
    pub cipher: &'a dyn AuthenticatedCipher,
    /// Number of the segment's first sector in the area.
    pub first: u64,
}

impl Authenticated<'_> {
    /// Reads and verifies. The caller makes sure that nobody writes meanwhile.
    pub fn read(&self, into: u64, out: &mut [u8]) -> io::Result<()> {
        let result = self.each_chunk(into, out.len(), |sectors, within, at| {
            let part = &mut out[at..][..sectors.wanted];
            if within == 0 && part.len() == sectors.len {
                return self.read_whole(sectors.first, part);
            }
            let mut buffer = vec![0; sectors.len];
            self.read_whole(sectors.first, &mut buffer)?;
            part.copy_from_slice(&buffer[within..][..part.len()]);
            Ok(())
        });
        if result.is_err() {
            // Neither ciphertext nor data that failed verification may leak out.
            out.fill(0);
        }
        result
    }

    /// Writes. The sectors of the first and the last byte must verify, as they are read first. The caller makes sure
    /// that nobody else reads or writes meanwhile.
    pub fn write(&self, into: u64, data: &mut [u8]) -> io::Result<()> {
        let sector = self.cipher.sector_size();
        self.each_chunk(into, data.len(), |sectors, within, at| {
            let part = &data[at..][..sectors.wanted];
            let mut buffer = vec![0; sectors.len];
            let end = within + part.len();
            if within > 0 {
                self.read_whole(sectors.first, &mut buffer[..sector])?;
            }
            // The first sector may also be the last.
            if end < sectors.len && (within == 0 || sectors.len > sector) {
                let last = sectors.len - sector;
                self.read_whole(sectors.first + (last / sector) as u64, &mut buffer[last..])?;
            }
            buffer[within..end].copy_from_slice(part);
            let mut tags = random_tags(sectors.len / sector * self.cipher.tag_size())?;
            self.cipher.encrypt(sectors.first, &mut buffer, &mut tags);
            self.area.write(self.store, self.base, sectors.first, &buffer, &tags)
        })
    }

    fn read_whole(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let sector = self.cipher.sector_size();
        let mut tags = vec![0; out.len() / sector * self.cipher.tag_size()];
        self.area.read(self.store, self.base, first, out, &mut tags)?;
        self.cipher.decrypt(first, out, &tags).map_err(|wrong| {
            let at = (wrong.0 - self.first) * sector as u64;
            io::Error::new(io::ErrorKind::InvalidData, format!("{wrong} (byte {at} of the segment)"))
        })
    }

    /// Calls `each` with whole sectors of the request, the request's offset in them, and its part of the buffer.
    fn each_chunk(
        &self,
        into: u64,
        len: usize,
        mut each: impl FnMut(&Sectors, usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let sector = self.cipher.sector_size();
        let mut done = 0;
        while done < len {
            let from = into + done as u64;
            let within = (from % sector as u64) as usize;
            let part = (len - done).min(CHUNK - within);
            let sectors = Sectors {
                first: self.first + from / sector as u64,
                len: (within + part).next_multiple_of(sector),
                wanted: part,
            };
            each(&sectors, within, done)?;
            done += part;
        }
        Ok(())
    }
}

/// Whole sectors.
struct Sectors {
    /// Number of the first one in the area.
    first: u64,
    /// Their length in bytes.
    len: usize,
    /// How many of these bytes were requested.
    wanted: usize,
}

//! A segment whose sectors have tags: reading a sector that was never written, or was changed by others, is an error.

use std::io;

use claviger_crypto::modes::AuthenticatedCipher;
use claviger_crypto::modes::aead::WrongTag;

use super::CHUNK;
use super::integrity::{TaggedSectors, random_tags};
use crate::key_process::KeyHandle;
use crate::store::Store;

/// A segment and its store. Offsets are relative to the segment's beginning, in bytes.
pub(super) struct Authenticated<'a> {
    pub store: &'a dyn Store,
    /// Offset of the area in the store.
    pub base: u64,
    pub area: &'a TaggedSectors,
    pub key: TagKey<'a>,
    /// Number of the segment's first sector in the area.
    pub first: u64,
}

/// Where the key is.
pub(super) enum TagKey<'a> {
    Here(&'a dyn AuthenticatedCipher),
    KeyHandle(&'a KeyHandle),
}

impl Authenticated<'_> {
    /// Reads and verifies. A sector that is written concurrently reads as before or after the write.
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

    /// Writes. The first and the last sector must verify if they are written in part, because they are read first. Waits for others
    /// who write the same sectors.
    pub fn write(&self, into: u64, data: &mut [u8]) -> io::Result<()> {
        let sector = self.area.sector_size();
        let number = |at: u64| self.first + at / sector as u64;
        let _taken = self.area.take(number(into)..number((into + data.len() as u64).next_multiple_of(sector as u64)));
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
            self.write_whole(sectors.first, &mut buffer)
        })
    }

    fn write_whole(&self, first: u64, data: &mut [u8]) -> io::Result<()> {
        let (len, tags) = (data.len(), self.tags_of(data.len()));
        match self.key {
            TagKey::Here(cipher) => {
                let mut tags = random_tags(tags)?;
                cipher.encrypt(first, data, &mut tags);
                self.area.write(self.store, self.base, first, data, &tags)
            }
            TagKey::KeyHandle(handle) => handle.encrypt_tagged(self.into(first), data, tags, &mut |stored| {
                let (data, tags) = stored.split_at(len);
                self.area.write(self.store, self.base, first, data, tags)
            }),
        }
    }

    fn read_whole(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let (len, tags) = (out.len(), self.tags_of(out.len()));
        let verified = match self.key {
            TagKey::Here(cipher) => {
                let mut tags = vec![0; tags];
                self.area.read(self.store, self.base, first, out, &mut tags)?;
                cipher.decrypt(first, out, &tags)
            }
            TagKey::KeyHandle(handle) => handle
                .decrypt_tagged(self.into(first), out, tags, &mut |stored| {
                    let (data, tags) = stored.split_at_mut(len);
                    self.area.read(self.store, self.base, first, data, tags)
                })?
                .map_or(Ok(()), |wrong| Err(WrongTag(first + u64::from(wrong)))),
        };
        verified.map_err(|wrong| {
            let at = self.into(wrong.0);
            io::Error::new(io::ErrorKind::InvalidData, format!("{wrong} (byte {at} of the segment)"))
        })
    }

    /// The size of the tags of `len` bytes of data.
    fn tags_of(&self, len: usize) -> usize {
        len / self.area.sector_size() * self.area.tag_size()
    }

    /// The offset in the segment of the sector with this number in the area, in bytes.
    fn into(&self, number: u64) -> u64 {
        (number - self.first) * self.area.sector_size() as u64
    }

    /// Calls `each` with whole sectors of the request, the request's offset in them, and its part of the buffer.
    fn each_chunk(
        &self,
        into: u64,
        len: usize,
        mut each: impl FnMut(&Sectors, usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let sector = self.area.sector_size();
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

//! Evaluates recordings of the kernel's dm-log-writes, to find what a disk may hold if power fails at any point.

use std::io;
use std::ops::Range;

use crate::random::Random;

/// Requests in the order of completion (the kernel's Documentation/admin-guide/device-mapper/log-writes.rst and the
/// structures in drivers/md/dm-log-writes.c).
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    /// When this request is done, everything written before the previous flush in the log is on the disk.
    flush: bool,
    /// This request's data are on the disk when it is done.
    fua: bool,
    /// The position of the write on the disk, and of its data in the log, in bytes.
    write: Option<(usize, Range<usize>)>,
    mark: Option<String>,
}

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry; the text of a mark follows in the same sector.
const ENTRY: usize = 32;

impl Log {
    /// Reads a log device.
    ///
    /// # Errors
    /// `InvalidData` if this is not a log, or ends early.
    pub fn new(bytes: Vec<u8>) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8).ok_or_else(|| bad("the log ends early"))?;
            Ok::<_, io::Error>(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        if (number(0)?, number(8)?) != (MAGIC, VERSION) {
            return Err(bad("no log of dm-log-writes"));
        }
        let (count, sector) = (number(16)?, (number(24)? & 0xffff_ffff) as usize);
        let mut at = sector;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (place, sectors, flags) = (number(at)? as usize, number(at + 8)? as usize, number(at + 16)?);
            let text = at + ENTRY..at + ENTRY + number(at + 24)? as usize;
            let mark =
                (flags & MARK != 0).then(|| String::from_utf8_lossy(&bytes[text]).trim_end_matches('\0').to_owned());
            at += sector;
            let written = flags & (MARK | DISCARD) == 0 && sectors > 0;
            let write = written.then(|| (place * sector, at..at + sectors * sector));
            at += if written { sectors * sector } else { 0 };
            entries.push(Entry { flush: flags & FLUSH != 0, fua: flags & FUA != 0, write, mark });
        }
        if at > bytes.len() {
            return Err(bad("the log ends early"));
        }
        Ok(Self { bytes, entries })
    }

    /// Number of requests: power may fail after any of them.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The marks, each with the number of requests before it.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.entries.iter().enumerate().filter_map(|(at, entry)| Some((at + 1, entry.mark.as_deref()?)))
    }

    /// Turns the disk's previous contents into what it may hold if power fails after `cut` requests: all flushed data,
    /// and any of the rest.
    pub fn replay(&self, disk: &mut [u8], cut: usize, random: &mut Random) {
        let flushed = self.entries[..cut].iter().rposition(|entry| entry.flush).unwrap_or(0);
        for (at, entry) in self.entries[..cut].iter().enumerate() {
            if let Some((to, from)) = &entry.write
                && (at < flushed || entry.fua || random.below(2) == 0)
            {
                disk[*to..to + from.len()].copy_from_slice(&self.bytes[from.clone()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of these requests, in sectors of 512 bytes: position, fill byte, flags.
    fn log(requests: &[(u64, u8, u64)]) -> Log {
        let sector = |numbers: &[u64]| {
            let mut sector: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            sector.resize(512, 0);
            sector
        };
        let mut bytes = sector(&[MAGIC, VERSION, requests.len() as u64, 512]);
        for (at, byte, flags) in requests {
            let mark = flags & MARK != 0;
            let mut entry = sector(&[*at, u64::from(!mark), *flags, if mark { 1 } else { 0 }]);
            entry[ENTRY] = if mark { *byte } else { 0 };
            bytes.extend(entry);
            bytes.extend(if mark { Vec::new() } else { vec![*byte; 512] });
        }
        Log::new(bytes).expect("a log")
    }

    #[test]
    fn what_was_flushed_is_always_there_and_the_rest_at_times() {
        let log = log(&[(0, 1, 0), (1, 2, FLUSH), (0, b'm', MARK), (2, 3, FUA), (3, 4, 0)]);
        assert_eq!(log.marks().collect::<Vec<_>>(), [(3, "m")]);
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut disk = vec![0; 4 * 512];
            log.replay(&mut disk, log.len(), &mut random);
            seen.insert([disk[0], disk[512], disk[1024], disk[1536]]);
        }
        // The flush happened before the data of its own request.
        let expected = [[1, 0, 3, 0], [1, 0, 3, 4], [1, 2, 3, 0], [1, 2, 3, 4]];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
        let mut disk = vec![0; 4 * 512];
        log.replay(&mut disk, 1, &mut random);
        assert!(disk[512..].iter().all(|byte| *byte == 0));
        assert!(Log::new(vec![0; 4096]).is_err());
    }
}

//! The sweep: sequential transfers in blocks of one size, one request at a time, as dd makes them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use claviger_serve::nbd::Client;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::measure::memory::Buffer;
use crate::model::parameters::SECTOR;
use crate::model::random::Random;

/// Bytes of random data that are repeated: small enough to stay in the second-level cache, so that making data costs
/// little against moving it.
const POOL: usize = 256 << 10;

/// The clock is read once per this many bytes: with blocks of 512 bytes, reading it for each block would distort the
/// figure.
const LOOK: u64 = 64 << 10;

/// How often the rate at which data are made is measured, and for how long each time.
const RATES: usize = 8;
const RATE_TIME: Duration = Duration::from_millis(5);

/// What a workload runs on.
pub trait Device {
    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// Whatever the backing reports.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes `data` from `offset` on, or begins to: [`Device::flush`] waits for the rest. May leave anything in
    /// `data`.
    ///
    /// # Errors
    /// Whatever the backing reports.
    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Makes all writes durable.
    ///
    /// # Errors
    /// Whatever the backing reports.
    fn flush(&mut self) -> io::Result<()>;
}

/// A file or block device.
pub struct FileDevice(File);

impl FileDevice {
    /// Opens it for reading and writing, around the page cache if `direct`: then requests are whole sectors, from
    /// buffers that begin on a page border.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let flags = if direct { OFlags::DIRECT.bits().cast_signed() } else { 0 };
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map(Self)
    }
}

impl Device for FileDevice {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// One request at a time; the client sleeps until the answer comes.
impl Device for Client {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out)
    }

    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.write_at(offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Client::flush(self)
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferDirection {
    /// Into the device, including a flush.
    Write,
    /// Out of the device.
    Read,
}

impl TransferDirection {
    /// Both, in the order in which they are measured.
    pub const BOTH: [Self; 2] = [Self::Write, Self::Read];
}

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Which way.
    pub direction: TransferDirection,
    /// Bytes of each request.
    pub block: usize,
    /// Bytes in all, unless time runs out.
    pub size: u64,
    /// When time runs out.
    pub limit: Duration,
}

/// What a transfer did.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Bytes that were actually moved.
    pub bytes: u64,
    /// How long that took, including the flush after writes.
    pub took: Duration,
}

/// Carries the transfer out. What it writes carries the mark `pass`.
///
/// # Errors
/// Those of the device.
pub fn run(device: &mut dyn Device, data: &Data, transfer: &Transfer, pass: u64) -> io::Result<Moved> {
    let Transfer { direction, block, size, limit } = *transfer;
    let mut buffer = Buffer::new(block);
    let (mut at, mut next_look) = (0, LOOK);
    let start = Instant::now();
    while at + block as u64 <= size {
        match direction {
            TransferDirection::Write => {
                data.fill(pass, at, &mut buffer);
                device.write(at, &mut buffer)?;
            }
            TransferDirection::Read => device.read(at, &mut buffer)?,
        }
        at += block as u64;
        if at >= next_look {
            next_look = at + LOOK;
            if start.elapsed() >= limit {
                break;
            }
        }
    }
    if direction == TransferDirection::Write {
        device.flush()?;
    }
    Ok(Moved { bytes: at, took: start.elapsed() })
}

/// Incompressible data, different at each place and in each pass: random bytes, repeated every 256 KiB, in which each
/// sector begins with its number and the pass.
pub struct Data {
    pool: Buffer,
    /// Whether each sector has its number, so that no two are alike.
    numbered: bool,
}

impl Data {
    /// Data that depends on the seed.
    pub fn new(seed: u64) -> Self {
        let mut pool = Buffer::new(POOL);
        Random::new(seed).fill(&mut pool);
        Self { pool, numbered: true }
    }

    /// Zeros, and nothing else: a read that returns them proves little.
    pub fn zeros() -> Self {
        Self { pool: Buffer::new(POOL), numbered: false }
    }

    /// Fills `out` with what belongs at `offset`. Both are whole sectors.
    pub fn fill(&self, pass: u64, offset: u64, out: &mut [u8]) {
        let mut from = offset as usize % POOL;
        let mut rest = &mut *out;
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(POOL - from));
            part.copy_from_slice(&self.pool[from..][..part.len()]);
            (from, rest) = (0, after);
        }
        if !self.numbered {
            return;
        }
        for (sector, number) in out.chunks_exact_mut(SECTOR).zip(offset / SECTOR as u64..) {
            sector[..8].copy_from_slice(&number.to_le_bytes());
            sector[8..16].copy_from_slice(&pass.to_le_bytes());
        }
    }

    /// Bytes per second at which blocks of this size are made, on one thread: no write can be faster. The fastest of
    /// several attempts, since others on the machine only make one slower.
    pub fn rate(&self, block: usize) -> f64 {
        let mut buffer = Buffer::new(block);
        (0..RATES).map(|_| self.rate_once(&mut buffer)).fold(0.0, f64::max)
    }

    fn rate_once(&self, buffer: &mut [u8]) -> f64 {
        let (start, mut bytes) = (Instant::now(), 0u64);
        while start.elapsed() < RATE_TIME {
            for _ in 0..POOL / buffer.len().min(POOL) {
                self.fill(1, bytes, buffer);
                std::hint::black_box(&mut *buffer);
                bytes += buffer.len() as u64;
            }
        }
        bytes as f64 / start.elapsed().as_secs_f64()
    }
}

/// Which pass wrote what, where every pass begins at 0.
#[derive(Default)]
pub struct WrittenPasses {
    /// Ends of ranges, rising, and the pass that wrote each last.
    ranges: Vec<(u64, u64)>,
}

impl WrittenPasses {
    /// The pass wrote everything up to `end`.
    pub fn add(&mut self, end: u64, pass: u64) {
        self.ranges.retain(|(other, _)| *other > end);
        self.ranges.insert(0, (end, pass));
    }

    /// Reads back what lies before `upto`, in requests of `block` bytes, and compares each sector.
    ///
    /// # Errors
    /// Those of the device.
    pub fn compare(&self, device: &mut dyn Device, data: &Data, block: usize, upto: u64) -> io::Result<Compared> {
        let (mut got, mut expected) = (Buffer::new(block), Buffer::new(block));
        let mut compared = Compared { bytes: 0, same: 0 };
        for &(end, pass) in &self.ranges {
            while compared.bytes < end.min(upto) {
                let (at, left) = (compared.bytes, end.min(upto) - compared.bytes);
                let len = usize::try_from(left).map_or(block, |left| left.min(block));
                let (got, expected) = (&mut got[..len], &mut expected[..len]);
                device.read(at, got)?;
                data.fill(pass, at, expected);
                let same = got.chunks(SECTOR).zip(expected.chunks(SECTOR)).filter(|(a, b)| a == b).count();
                compared.same += (same * SECTOR) as u64;
                compared.bytes += len as u64;
            }
        }
        Ok(compared)
    }
}

/// The result of comparing data with what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes in sectors that are as they were written.
    pub same: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) struct Memory(pub(crate) Vec<u8>);

    impl Device for Memory {
        fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
            Ok(())
        }
        fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            self.0[offset as usize..][..data.len()].copy_from_slice(data);
            data.fill(0xee); // as a volume may
            Ok(())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn transfer(direction: TransferDirection, size: u64) -> Transfer {
        Transfer { direction, block: 2048, size, limit: Duration::from_secs(60) }
    }

    #[test]
    fn what_is_written_is_verified_and_damage_is_found() {
        let (data, size) = (Data::new(1), 1 << 20);
        let (mut device, mut written) = (Memory(vec![0; size]), WrittenPasses::default());
        for (end, pass) in [(size as u64, 1), (600 << 10, 2), (10 << 10, 3), (20 << 10, 4)] {
            let moved = run(&mut device, &data, &transfer(TransferDirection::Write, end), pass).unwrap();
            assert_eq!(moved.bytes, end);
            written.add(end, pass);
        }
        assert_eq!(written.ranges, [(20 << 10, 4), (600 << 10, 2), (1 << 20, 1)]);
        let all = Compared { bytes: 1 << 20, same: 1 << 20 };
        assert_eq!(written.compare(&mut device, &data, 64 << 10, u64::MAX).unwrap(), all);
        assert_eq!(written.compare(&mut device, &data, 64 << 10, 1024).unwrap(), Compared { bytes: 1024, same: 1024 });
        assert_eq!(run(&mut device, &data, &transfer(TransferDirection::Read, 1 << 20), 0).unwrap().bytes, 1 << 20);
        device.0[700_000] ^= 1;
        let one_less = Compared { same: (1 << 20) - SECTOR as u64, ..all };
        assert_eq!(written.compare(&mut device, &data, 64 << 10, u64::MAX).unwrap(), one_less);
    }

    #[test]
    fn a_limit_ends_a_transfer_and_the_bytes_are_those_moved() {
        let mut device = Memory(vec![0; 1 << 20]);
        let short = Transfer { limit: Duration::ZERO, ..transfer(TransferDirection::Write, 1 << 20) };
        assert_eq!(run(&mut device, &Data::new(1), &short, 1).unwrap().bytes, LOOK);
    }

    #[test]
    fn data_differs_by_place_and_pass_and_not_by_block_size() {
        let data = Data::new(9);
        let filled = |pass, offset, len| {
            let mut out = vec![0; len];
            data.fill(pass, offset, &mut out);
            out
        };
        let whole = filled(1, 0, 2 * POOL);
        assert_eq!(filled(1, 512, POOL), whole[512..][..POOL]);
        assert_ne!(whole[..SECTOR], whole[POOL..][..SECTOR]);
        assert_ne!(filled(1, 0, SECTOR), filled(2, 0, SECTOR));
    }
}

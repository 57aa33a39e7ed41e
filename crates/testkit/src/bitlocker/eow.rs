//! Encrypt-on-write: bitmaps of the encrypted chunks, and the log of the chunk being converted.

use std::ops::Range;

/// 92a84d3b-dd80-4d0e-9e4e-b1e3284eaed8, as on disk.
pub const IDENTIFIER: [u8; 16] =
    [0x3b, 0x4d, 0xa8, 0x92, 0x80, 0xdd, 0x0e, 0x4d, 0x9e, 0x4e, 0xb1, 0xe3, 0x28, 0x4e, 0xae, 0xd8];

/// Bytes in the log for each sector.
const LOGGED: usize = 16;

/// Settings of a volume that encrypts each chunk when it is first written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptOnWrite {
    /// Bytes per bit of a bitmap: 8 MiB on Windows.
    pub chunk: u64,
    /// Number of bitmaps. All cover the same number of chunks, except that the last may cover fewer.
    pub regions: u64,
    /// Plaintext chunks, counted from the start of the volume.
    pub plain: Vec<u64>,
    /// A chunk being converted, and how many of its sectors are done. Only the log records this.
    pub under_way: Option<(u64, u64)>,
}

impl EncryptOnWrite {
    /// Whether the data at byte `at` are encrypted.
    pub fn is_encrypted(&self, at: u64, sector_size: u64) -> bool {
        let chunk = at / self.chunk;
        let converted =
            self.under_way.is_some_and(|(c, sectors)| c == chunk && at % self.chunk / sector_size < sectors);
        self.plain.contains(&chunk) == converted
    }

    /// The part of a volume of `size` bytes that each bitmap covers.
    fn regions(&self, size: u64) -> Vec<Range<u64>> {
        let len = size.div_ceil(self.chunk).div_ceil(self.regions) * self.chunk;
        (0..size).step_by(len as usize).map(|start| start..size.min(start + len)).collect()
    }

    /// The bitmap of a region, the lowest bit for its first chunk.
    fn bitmap(&self, region: &Range<u64>) -> Vec<u8> {
        let chunks = (region.end - region.start).div_ceil(self.chunk);
        let first = region.start / self.chunk;
        let mut bits = vec![0; chunks.div_ceil(8) as usize];
        for chunk in (0..chunks).filter(|chunk| !self.plain.contains(&(first + chunk))) {
            bits[(chunk / 8) as usize] |= 1 << (chunk % 8);
        }
        bits
    }

    /// Whether any byte of a bitmap has both zero and one bits.
    pub fn is_mixed(&self, size: u64) -> bool {
        self.regions(size).iter().any(|region| self.bitmap(region).iter().any(|byte| !matches!(byte, 0 | 0xFF)))
    }
}

/// Positions of the structures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Both copies of the information block.
    pub information: [u64; 2],
    /// Size of each, in bytes.
    pub information_len: u64,
    /// One bitmap per region, each with two records, of which the newer is valid.
    pub bitmaps: Vec<u64>,
    /// Size of each, in bytes.
    pub bitmap_len: u64,
    /// One log per region.
    pub logs: Vec<u64>,
    /// Size of each, in bytes.
    pub log_len: u64,
    size: u64,
    sector_size: u64,
}

/// Alignment of the structures, in bytes.
const ALIGNED: u64 = 4096;

impl Layout {
    /// Lays out the structures of a volume of `size` bytes: the second information block at the second place,
    /// everything else at the first.
    pub fn new(on_write: &EncryptOnWrite, size: u64, sector_size: u64, places: [u64; 2]) -> Self {
        let regions = on_write.regions(size).len() as u64;
        let information_len = (56 + 8 * regions).next_multiple_of(sector_size);
        let bitmap_len = (3 * sector_size).next_multiple_of(ALIGNED);
        let log_len = (512 + 2 * slot_len(on_write, sector_size)).next_multiple_of(ALIGNED);
        let mut next = places[0];
        let mut take = |len: u64| {
            let at = next;
            next = (next + len).next_multiple_of(ALIGNED);
            at
        };
        let information = [take(information_len), places[1]];
        let bitmaps = (0..regions).map(|_| take(bitmap_len)).collect();
        let logs = (0..regions).map(|_| take(log_len)).collect();
        Self { information, information_len, bitmaps, bitmap_len, logs, log_len, size, sector_size }
    }

    /// Areas that are zero in the plaintext. Readers disagree whether the last bytes of an information block's 4096 are
    /// reserved, so these are encrypted zeros.
    pub fn reserved(&self) -> Vec<Range<u64>> {
        self.areas(ALIGNED)
    }

    fn areas(&self, information_len: u64) -> Vec<Range<u64>> {
        let area = |len: u64| move |&at: &u64| at..at + len;
        let information = self.information.iter().map(area(information_len));
        let bitmaps = self.bitmaps.iter().map(area(self.bitmap_len));
        information.chain(bitmaps).chain(self.logs.iter().map(area(self.log_len))).collect()
    }

    /// Writes all structures. `old` is the previous content of the chunk being converted.
    pub fn write(&self, on_write: &EncryptOnWrite, image: &mut [u8], old: Option<&[u8]>) {
        for area in self.areas(self.information_len) {
            image[area.start as usize..area.end as usize].fill(0);
        }
        let mut put = |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let information = self.information(on_write);
        self.information.iter().for_each(|&at| put(at, &information));
        for (i, region) in on_write.regions(self.size).iter().enumerate() {
            put(self.bitmaps[i], &self.bitmap(on_write, i, region));
            let under_way = on_write.under_way.map(|(chunk, _)| chunk * on_write.chunk);
            let logged = under_way.filter(|at| region.contains(at)).zip(old);
            put(self.logs[i], &self.log(on_write, logged));
        }
    }

    fn information(&self, on_write: &EncryptOnWrite) -> Vec<u8> {
        let regions = self.bitmaps.len();
        let mut bytes = b"FVE-EOW\0".to_vec();
        bytes.extend([0x38, 56 + 8 * regions as u16].map(u16::to_le_bytes).concat());
        let sector = self.sector_size as u32;
        let slot = slot_len(on_write, self.sector_size) as u32;
        let numbers = [sector, sector, on_write.chunk as u32, self.log_len as u32, slot, regions as u32, 0];
        bytes.extend(numbers.map(u32::to_le_bytes).concat());
        self.information.iter().chain(&self.bitmaps).for_each(|at| bytes.extend(at.to_le_bytes()));
        with_crc(bytes, 36)
    }

    fn bitmap(&self, on_write: &EncryptOnWrite, index: usize, region: &Range<u64>) -> Vec<u8> {
        let sector = self.sector_size as u32;
        let mut header = b"FVE-EOWBM\0".to_vec();
        header.extend(0x3Cu16.to_le_bytes());
        header.extend([self.bitmap_len as u32, index as u32].map(u32::to_le_bytes).concat());
        header.extend([region.start, region.end - region.start, self.logs[index]].map(u64::to_le_bytes).concat());
        header.extend([sector, 2 * sector, sector, 0].map(u32::to_le_bytes).concat());
        header.resize(sector as usize, 0);

        let bits = on_write.bitmap(region);
        let chunks = (region.end - region.start).div_ceil(on_write.chunk) as u32;
        let record = |sequence: u64, bits: &[u8]| {
            let mut record = b"FVE-EOWBR\0".to_vec();
            record.extend(0x24u16.to_le_bytes());
            record.extend([sector, chunks].map(u32::to_le_bytes).concat());
            record.extend(sequence.to_le_bytes());
            record.extend([0; 8]);
            record.extend(bits);
            record.resize(sector as usize, 0);
            with_crc(record, 32)
        };
        // The older record says the opposite; it comes first in some regions and second in others.
        let contrary: Vec<u8> = bits.iter().map(|byte| !byte).collect();
        let mut records = [record(7, &bits), record(6, &contrary)];
        records.rotate_left(index % 2);
        [with_crc(header, 56), records.concat()].concat()
    }

    /// The log: its header, then two slots, of which the second is newer. `logged` is the offset of a chunk and its
    /// bytes before conversion.
    fn log(&self, on_write: &EncryptOnWrite, logged: Option<(u64, &[u8])>) -> Vec<u8> {
        let mut log = b"OLRDHEVF2\0".to_vec();
        log.resize(512, 0);
        log.extend(self.slot(on_write, 4, 0, &[]));
        let (at, old) = logged.unwrap_or((0, &[]));
        log.extend(self.slot(on_write, 5, at, old));
        log
    }

    fn slot(&self, on_write: &EncryptOnWrite, sequence: u64, at: u64, old: &[u8]) -> Vec<u8> {
        let data: Vec<u8> =
            old.chunks(self.sector_size as usize).flat_map(|sector| &sector[..LOGGED]).copied().collect();
        let mut header = [0x20u16, 1].map(u16::to_le_bytes).concat();
        header.extend([sequence, at].map(u64::to_le_bytes).concat());
        header.extend([data.len() as u32, crc32fast::hash(&data)].map(u32::to_le_bytes).concat());
        header.extend(crc32fast::hash(&header).to_le_bytes());
        header.resize(512, 0);
        let mut slot = header.clone();
        slot.extend(data);
        slot.resize(slot_len(on_write, self.sector_size) as usize - 512, 0);
        slot.extend(header);
        slot
    }
}

/// Size of a slot: header, data of all sectors of a chunk, and the header again.
fn slot_len(on_write: &EncryptOnWrite, sector_size: u64) -> u64 {
    512 + on_write.chunk / sector_size * LOGGED as u64 + 512
}

/// Writes the CRC of all bytes at `at`, which holds zeros before.
fn with_crc(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

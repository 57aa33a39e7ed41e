//! A maker of members of Linux RAID arrays, written only from Linux's include/uapi/linux/raid/md_p.h. It shares no code with the
//! reader. The kernel's own members check the reader, too.

/// Offset of the data in members with metadata 1.x, in bytes.
pub const DATA: usize = 16 << 10;

/// Description of a member.
#[derive(Clone, Copy)]
pub struct MemberRecipe {
    /// The version of the metadata: `0.90`, `1.0`, `1.1` or `1.2`.
    pub version: &'static str,
    /// Linux's number of the level.
    pub level: i32,
    /// The number of its layout.
    pub layout: u32,
    /// Size of a chunk, in bytes.
    pub chunk: u32,
    /// The number of devices.
    pub devices: u32,
    /// The position of this one.
    pub role: u16,
    /// The count of changes.
    pub events: u64,
    /// The first byte of the array's UUID, which is followed by zeros.
    pub array: u8,
    /// Bits of the feature map.
    pub features: u32,
    /// Where a rebuild has got to, in sectors of 512 bytes: counts with bit 1 of the feature map.
    pub rebuilt: u64,
    /// The array's name with the host's.
    pub name: &'static str,
}

impl Default for MemberRecipe {
    /// The first of two mirrors.
    fn default() -> Self {
        Self {
            version: "1.2",
            level: 1,
            layout: 0,
            chunk: 0,
            devices: 2,
            role: 0,
            events: 9,
            array: 7,
            features: 0,
            rebuilt: 0,
            name: "nas:data",
        }
    }
}

impl MemberRecipe {
    /// Makes a member with these data: a whole number of chunks, and of KiB.
    pub fn make(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = if self.version == "0.90" { self.version_0(data) } else { self.version_1(data) };
        seal(&mut bytes);
        bytes
    }

    fn version_1(&self, data: &[u8]) -> Vec<u8> {
        let begin = if self.version == "1.0" { 0 } else { DATA };
        let mut bytes = vec![0; begin];
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len() + (64 << 10), 0);
        let at = match self.version {
            "1.0" => at_end(&bytes).expect("it is long enough"),
            "1.1" => 0,
            _ => 4096,
        };
        let sectors = data.len() as u64 / 512;
        let block = &mut bytes[at..][..4096];
        put(block, 0, &[0xa92b_4efc, 1, self.features]);
        block[16] = self.array;
        block[32..][..self.name.len()].copy_from_slice(self.name.as_bytes());
        put(block, 72, &[self.level as u32, self.layout, sectors as u32, 0, self.chunk / 512, self.devices]);
        put_long(block, 128, &[begin as u64 / 512, sectors, at as u64 / 512, self.rebuilt]);
        put(block, 160, &[u32::from(self.role)]);
        block[168] = self.role as u8 + 1;
        put_long(block, 200, &[self.events, u64::MAX]);
        put(block, 220, &[64]);
        for role in 0..64u16 {
            let value = if u32::from(role) < self.devices { role } else { 0xffff };
            block[256 + 2 * usize::from(role)..][..2].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn version_0(&self, data: &[u8]) -> Vec<u8> {
        let at = data.len().next_multiple_of(64 << 10);
        let mut bytes = data.to_vec();
        bytes.resize(at + (64 << 10), 0);
        let mut word = |number: usize, values: &[u32]| put(&mut bytes[at..], 4 * number, values);
        word(0, &[0xa92b_4efc, 0, 90, 0, 0, u32::from(self.array), 0, self.level as u32, (data.len() / 1024) as u32]);
        word(9, &[self.devices, self.devices, 0, 0, 1, 2, 3]);
        // Clean.
        word(33, &[1]);
        word(39, &[self.events as u32, (self.events >> 32) as u32]);
        word(64, &[self.layout, self.chunk]);
        for role in 0..self.devices {
            // Active and in sync.
            word(128 + 32 * role as usize, &[role, 0, 0, role, 6]);
        }
        word(992, &[u32::from(self.role), 0, 0, u32::from(self.role), 6]);
        bytes
    }
}

/// Corrects the checksums of all superblocks in a member.
pub fn seal(bytes: &mut [u8]) {
    for at in [Some(4096), Some(0), at_end(bytes)].into_iter().flatten() {
        let Some(block) = bytes.get_mut(at..at + 4096).filter(|block| is_superblock(block, 1)) else { continue };
        let count = u32::from_le_bytes(block[220..224].try_into().expect("four bytes")) as usize;
        let len = (256 + 2 * count.min(1920)).min(4096);
        put(block, 216, &[0]);
        let sum = sum(&block[..len]);
        put(block, 216, &[sum]);
    }
    let Some(at) = (bytes.len() >> 16).checked_sub(1).map(|at| at << 16) else { return };
    let block = &mut bytes[at..at + 4096];
    if is_superblock(block, 0) {
        put(block, 152, &[0]);
        let sum = sum(block);
        put(block, 152, &[sum]);
    }
}

fn is_superblock(block: &[u8], major: u8) -> bool {
    block[..8] == [0xfc, 0x4e, 0x2b, 0xa9, major, 0, 0, 0]
}

/// At least 8 KiB before the end, at a whole multiple of 4 KiB.
fn at_end(bytes: &[u8]) -> Option<usize> {
    (bytes.len() / 512).checked_sub(16).map(|sector| (sector & !7) * 512)
}

/// The sum of little-endian words, with the carries added once.
fn sum(bytes: &[u8]) -> u32 {
    let word = |part: &[u8]| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let sum: u64 = bytes.chunks(4).map(word).sum();
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

fn put(bytes: &mut [u8], at: usize, numbers: &[u32]) {
    for (i, number) in numbers.iter().enumerate() {
        bytes[at + 4 * i..][..4].copy_from_slice(&number.to_le_bytes());
    }
}

fn put_long(bytes: &mut [u8], at: usize, numbers: &[u64]) {
    for (i, number) in numbers.iter().enumerate() {
        bytes[at + 8 * i..][..8].copy_from_slice(&number.to_le_bytes());
    }
}

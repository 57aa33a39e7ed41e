//! The FAT32 file system in front of a To Go volume, which explains the volume to systems without BitLocker.

const RESERVED: u64 = 33;
const CLUSTER: u64 = 1024;
const README: &[u8] = b"This drive is encrypted with BitLocker.\r\n";

/// 4967d63b-2e29-4ad8-8399-f6a339e3d001, as on disk: volumes since Windows 7.
pub const IDENTIFIER: [u8; 16] =
    [0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];

/// b580060e-778a-4057-b39a-e3df8e81b1a1, as on disk.
const TO_GO: [u8; 16] =
    [0x0e, 0x06, 0x80, 0xb5, 0x8a, 0x77, 0x57, 0x40, 0xb3, 0x9a, 0xe3, 0xdf, 0x8e, 0x81, 0xb1, 0xa1];

fn clusters(size: u64) -> u64 {
    (size - RESERVED * 512) / CLUSTER
}

fn fat_sectors(size: u64) -> u64 {
    ((clusters(size) + 2) * 4).div_ceil(512)
}

/// Size of the file system in bytes, on a volume of `size` bytes. The relocated header has this size.
pub fn len(size: u64) -> u64 {
    ((RESERVED + fat_sectors(size)) * 512 + 2 * CLUSTER).next_multiple_of(0x4000)
}

/// Writes the file system over the first `len` bytes of a volume. All clusters after it are marked bad.
pub fn write(image: &mut [u8], len: u64, metadata: &[u64; 3]) {
    let size = image.len() as u64;
    let fats = fat_sectors(size);
    let area = &mut image[..len as usize];
    area.fill(0);
    let mut put = |at: u64, bytes: &[u8]| area[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(0, b"\xeb\x58\x90MSWIN4.1");
    put(11, &512u16.to_le_bytes());
    put(13, &[(CLUSTER / 512) as u8]);
    put(14, &(RESERVED as u16).to_le_bytes());
    put(16, &[1]);
    put(21, &[0xF8, 0, 0, 63, 0, 255, 0]);
    put(32, &((size / 512) as u32).to_le_bytes());
    put(36, &(fats as u32).to_le_bytes());
    put(44, &[2]);
    put(48, &[1, 0, 6, 0]);
    put(64, &[0x80, 1, 0x29, 1, 2, 3, 4]);
    put(71, b"NO NAME    FAT32   ");
    put(408, &TO_GO);
    put(424, &IDENTIFIER);
    put(440, &metadata.map(u64::to_le_bytes).concat());
    put(464, b"rSvD\x02\0\0\0");
    put(510, &[0x55, 0xAA]);
    put(512, b"RRaA");
    put(512 + 484, b"rrAa\0\0\0\0\xff\xff\xff\xff");
    put(512 + 510, &[0x55, 0xAA]);

    let fat = RESERVED * 512;
    put(fat, &[0xF8, 0xFF, 0xFF, 0x0F, 0xFF, 0xFF, 0xFF, 0x0F]);
    for cluster in 2..clusters(size) + 2 {
        // The chains of the root folder and the file end at once; all other clusters are bad.
        let entry: u32 = if cluster < 4 { 0x0FFF_FFFF } else { 0x0FFF_FFF7 };
        put(fat + 4 * cluster, &entry.to_le_bytes());
    }
    let root = fat + fats * 512;
    put(root, b"README  TXT\x20");
    put(root + 26, &3u16.to_le_bytes());
    put(root + 28, &(README.len() as u32).to_le_bytes());
    put(root + CLUSTER, README);
}

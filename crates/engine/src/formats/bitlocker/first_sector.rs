//! Builds the first sector of a new volume: what [`Boot`](super::boot::Boot) reads, and what other programs and a BIOS expect.

use super::boot::{ENCRYPT_ON_WRITE, LEN, TO_GO_SIGNATURE, WINDOWS_7};
use super::discovery::Discovery;
use super::guid::Guid;
use super::metadata::{COPIES, SIGNATURE};

/// b580060e-778a-4057-b39a-e3df8e81b1a1: in front of the other one in To Go volumes.
const TO_GO: Guid =
    Guid([0x0e, 0x06, 0x80, 0xb5, 0x8a, 0x77, 0x57, 0x40, 0xb3, 0x9a, 0xe3, 0xdf, 0x8e, 0x81, 0xb1, 0xa1]);

/// Jumps to [`CODE`].
const JUMP: [u8; 3] = [0xeb, 0x58, 0x90];
const CODE_AT: usize = 90;
/// Prints the text after it, then halts. Real mode, loaded at 0x7c00.
const CODE: [u8; 25] = [
    0x31, 0xc0, // xor ax, ax
    0x8e, 0xd8, // mov ds, ax
    0xbe, 0x73, 0x7c, // mov si, the text
    0xfc, // cld
    0xac, // next: lodsb
    0x84, 0xc0, // test al, al
    0x74, 0x09, // jz halt
    0xb4, 0x0e, // mov ah, 0x0e
    0xbb, 0x07, 0x00, // mov bx, 7
    0xcd, 0x10, // int 0x10
    0xeb, 0xf2, // jmp next
    0xf4, // halt: hlt
    0xeb, 0xfd, // jmp halt
];
const TEXT: &[u8] = b"BitLocker volume, nothing starts from it\r\n\0";

/// The size of a cluster in the sector without a file system, in bytes.
const CLUSTER: u32 = 4096;

/// The sector of a volume whose sectors have `sector_size` bytes. With `eow`, the volume is encrypted as it is written.
pub(super) fn plain(sector_size: u32, metadata: [u64; COPIES], eow: Option<[u64; 2]>) -> [u8; LEN] {
    let mut sector = common(sector_size, (CLUSTER / sector_size).max(1) as u8);
    put(&mut sector, 3, SIGNATURE);
    put(&mut sector, 36, &0x1fe0u32.to_le_bytes());
    put(&mut sector, 64, &[0x80]);
    put(&mut sector, 160, &if eow.is_some() { ENCRYPT_ON_WRITE } else { WINDOWS_7 }.0);
    put_places(&mut sector, 176, &metadata);
    put_places(&mut sector, 200, &eow.unwrap_or_default());
    // Windows has texts here. Without them the sector could pass for a partition table.
    sector[0x198..0x1e8].fill(b'x');
    sector
}

/// The sector of a volume after a discovery volume: a FAT32 with the volume's sector size.
pub(super) fn to_go(fat: &Discovery, metadata: [u64; COPIES]) -> [u8; LEN] {
    let mut sector = common(fat.sector as u32, fat.cluster_sectors as u8);
    put(&mut sector, 3, TO_GO_SIGNATURE);
    put(&mut sector, 14, &(Discovery::RESERVED as u16).to_le_bytes());
    put(&mut sector, 16, &[1]);
    put(&mut sector, 32, &(fat.sectors as u32).to_le_bytes());
    put(&mut sector, 36, &(fat.fat_sectors as u32).to_le_bytes());
    put(&mut sector, 44, &Discovery::ROOT.to_le_bytes());
    put(&mut sector, 64, &[0x80]);
    put(&mut sector, 67, &fat.serial);
    put(&mut sector, 0x198, &TO_GO.0);
    put(&mut sector, 424, &WINDOWS_7.0);
    put_places(&mut sector, 440, &metadata);
    put(&mut sector, 464, b"rSvD\x02\0\0\0");
    sector[474..0x1e8].fill(b'x');
    sector
}

/// The fields that both share.
fn common(sector_size: u32, cluster_sectors: u8) -> [u8; LEN] {
    let mut sector = [0; LEN];
    put(&mut sector, 0, &JUMP);
    put(&mut sector, 11, &(sector_size as u16).to_le_bytes());
    put(&mut sector, 13, &[cluster_sectors]);
    put(&mut sector, 21, &[0xf8]);
    // Sectors per track and heads, as in every BIOS.
    put(&mut sector, 24, &63u16.to_le_bytes());
    put(&mut sector, 26, &255u16.to_le_bytes());
    put(&mut sector, 48, &(Discovery::INFO as u16).to_le_bytes());
    put(&mut sector, 50, &(Discovery::BACKUP as u16).to_le_bytes());
    put(&mut sector, 66, &[0x29]);
    put(&mut sector, 71, b"NO NAME    FAT32   ");
    put(&mut sector, CODE_AT, &CODE);
    put(&mut sector, CODE_AT + CODE.len(), TEXT);
    sector[0x1e8..0x1fb].fill(0xff);
    put(&mut sector, 0x1fb, &[0x00, 0x1f, 0x2c, 0x55, 0xaa]);
    sector
}

fn put_places(sector: &mut [u8; LEN], at: usize, places: &[u64]) {
    for (number, place) in places.iter().enumerate() {
        put(sector, at + 8 * number, &place.to_le_bytes());
    }
}

fn put(sector: &mut [u8; LEN], at: usize, bytes: &[u8]) {
    sector[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::super::boot::{Boot, Kind};
    use super::*;

    const PLACES: [u64; COPIES] = [0x10_0000, 0x20_0000, 0x30_0000];

    #[test]
    fn what_is_written_is_read() {
        for (sector_size, cluster_sectors) in [(512, 8), (4096, 1)] {
            let sector = plain(sector_size, PLACES, None);
            let boot = Boot::parse(&sector).expect("it is one");
            assert_eq!((boot.kind, boot.sector_size, boot.cluster), (Kind::Windows7, sector_size, 4096));
            assert_eq!((boot.metadata, sector[13]), (PLACES.to_vec(), cluster_sectors));
        }
        let fat = Discovery::of(100 << 20, 512).expect("it is large enough");
        let boot = Boot::parse(&to_go(&fat, PLACES)).expect("it is one");
        assert_eq!((boot.kind, boot.sector_size, boot.metadata), (Kind::ToGo, 512, PLACES.to_vec()));
    }

    #[test]
    fn the_code_finds_its_text() {
        let text = u16::from_le_bytes([CODE[5], CODE[6]]);
        assert_eq!(usize::from(text), 0x7c00 + CODE_AT + CODE.len());
        assert!(CODE_AT + CODE.len() + TEXT.len() <= 160, "the GUID is behind it");
    }
}

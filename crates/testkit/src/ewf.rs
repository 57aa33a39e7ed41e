//! Forensic images of EnCase, version 1, for tests: made without the code that reads them (libewf, "Expert Witness Compression Format
//! (EWF)").

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::mz_adler32_oxide;

/// An image in one segment, with chunks of this many sectors of 512 bytes; every second chunk is compressed.
pub fn image(disk: &[u8], sectors: usize) -> Vec<u8> {
    let chunk = sectors * 512;
    let mut image = b"EVF\x09\x0d\x0a\xff\0\x01\x01\0\0\0".to_vec();
    let mut volume = vec![0; 1048];
    volume[0] = 1;
    volume[4..8].copy_from_slice(&(disk.len().div_ceil(chunk) as u32).to_le_bytes());
    volume[8..12].copy_from_slice(&(sectors as u32).to_le_bytes());
    volume[12..16].copy_from_slice(&512u32.to_le_bytes());
    volume[16..24].copy_from_slice(&(disk.len() as u64 / 512).to_le_bytes());
    section(&mut image, "volume", &summed(volume));
    let data_at = image.len() + 76;
    let (mut data, mut entries) = (Vec::new(), Vec::new());
    for (number, bytes) in disk.chunks(chunk).enumerate() {
        let compressed = number % 2 == 0;
        let entry = (data_at + data.len()) as u32 | if compressed { 1 << 31 } else { 0 };
        entries.extend(entry.to_le_bytes());
        data.extend(if compressed { compress_to_vec_zlib(bytes, 6) } else { summed(bytes.to_vec()) });
    }
    section(&mut image, "sectors", &data);
    let mut start = vec![0; 20];
    start[..4].copy_from_slice(&(entries.len() as u32 / 4).to_le_bytes());
    let table = [summed(start), summed(entries)].concat();
    section(&mut image, "table", &table);
    section(&mut image, "table2", &table);
    section(&mut image, "done", &[]);
    image
}

fn section(image: &mut Vec<u8>, kind: &str, data: &[u8]) {
    let size = 76 + data.len() as u64;
    let next = image.len() as u64 + if kind == "done" { 0 } else { size };
    let mut descriptor = vec![0; 72];
    descriptor[..kind.len()].copy_from_slice(kind.as_bytes());
    descriptor[16..24].copy_from_slice(&next.to_le_bytes());
    descriptor[24..32].copy_from_slice(&size.to_le_bytes());
    image.extend(summed(descriptor));
    image.extend(data);
}

/// The bytes and their checksum.
fn summed(bytes: Vec<u8>) -> Vec<u8> {
    let sum = mz_adler32_oxide(1, &bytes).to_le_bytes();
    [&bytes[..], &sum].concat()
}

//! The parents of differencing disks, which hold the data that these lack.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The text for a parent without a name.
const NAMELESS: &str = "without a name";

/// The parent of a disk of Virtual PC (Virtual Hard Disk Image Format Specification, "Hard Disk Footer Format" and "Dynamic Disk
/// Header Format").
pub(super) fn of_vhd(file: &File) -> Option<String> {
    const DIFFERENCING: u32 = 4;
    let len = file.metadata().ok()?.len();
    // The footer, its older form that is one byte shorter, and its copy at the beginning.
    let footers = [len.saturating_sub(512), len.saturating_sub(511), 0].map(|at| read::<512>(file, at));
    let footer = footers
        .into_iter()
        .flatten()
        .find(|footer| footer.starts_with(b"conectix") && footer[60..64] == DIFFERENCING.to_be_bytes())?;
    let header = u64::from_be_bytes(*footer[16..].first_chunk()?);
    let name = read::<512>(file, header.saturating_add(64)).unwrap_or([0; 512]);
    let units = name.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
    Some(text(units.take_while(|unit| *unit != 0)))
}

/// The parent of a disk of Hyper-V ([MS-VHDX], sections 2.2.3, 2.6.1.2, 2.6.2.1 and 2.6.2.6).
pub(super) fn of_vhdx(file: &File) -> Option<String> {
    const METADATA: [u8; 16] = *b"\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e";
    const PARAMETERS: [u8; 16] = *b"\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b";
    const LOCATOR: [u8; 16] = *b"\x2d\x5f\xd3\xa8\x0b\xb3\x4d\x45\xab\xf7\xd3\xd8\x48\x34\xab\x0c";
    const HAS_PARENT: u8 = 1 << 1;
    // There are two copies; qemu reads the first.
    let regions = read::<65536>(file, 192 << 10)?;
    let region = regions[16..].chunks_exact(32).find(|entry| entry.starts_with(&METADATA))?;
    let metadata = u64::from_le_bytes(*region[16..].first_chunk()?);
    let table = read::<65536>(file, metadata)?;
    let item = |id: &[u8; 16]| {
        let entry = table[32..].chunks_exact(32).find(|entry| entry.starts_with(id))?;
        metadata.checked_add(u64::from(u32::from_le_bytes(*entry[16..].first_chunk()?)))
    };
    let parameters = read::<8>(file, item(&PARAMETERS)?)?;
    if parameters[4] & HAS_PARENT == 0 {
        return None;
    }
    let named = || {
        let locator = read::<4096>(file, item(&LOCATOR)?)?;
        let count = usize::from(u16::from_le_bytes(*locator[18..].first_chunk()?));
        let entries = locator[20..].chunks_exact(12).take(count);
        let string = |at: &[u8], len: &[u8]| {
            let at = u32::from_le_bytes(*at.first_chunk()?) as usize;
            let bytes = locator.get(at..)?.get(..usize::from(u16::from_le_bytes(*len.first_chunk()?)))?;
            Some(text(bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]))))
        };
        let pairs = entries.filter_map(|entry| Some((string(entry, &entry[8..])?, string(&entry[4..], &entry[10..])?)));
        pairs.filter(|(key, _)| key.ends_with("path")).map(|(_, value)| value).next()
    };
    Some(named().unwrap_or_else(|| NAMELESS.to_owned()))
}

fn read<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn text(units: impl Iterator<Item = u16>) -> String {
    let text: String = char::decode_utf16(units).map(|char| char.unwrap_or('\u{fffd}')).collect();
    if text.is_empty() { NAMELESS.to_owned() } else { text }
}

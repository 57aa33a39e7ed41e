//! The other files that a disk image needs, such as its parent, which holds the data that it lacks.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The text for a file without a name.
pub(super) const NAMELESS: &str = "without a name";

/// The first other file that an image names, and what it is for; `format` is qemu's name of the image's format.
pub(super) fn named(format: &str, file: &File) -> Option<(&'static str, String)> {
    match format {
        "qcow2" => of_qcow2(file),
        "qed" => of_qed(file),
        "vmdk" => of_vmdk(file),
        "vpc" => of_vhd(file).map(|name| ("parent", name)),
        "vhdx" => of_vhdx(file).map(|name| ("parent", name)),
        _ => None,
    }
}

/// qemu, docs/interop/qcow2.rst, "Header" and "Header extensions".
fn of_qcow2(file: &File) -> Option<(&'static str, String)> {
    const EXTERNAL_DATA: u64 = 1 << 2;
    const DATA_FILE: u32 = 0x4441_5441;
    /// More extensions than any image has.
    const MOST_EXTENSIONS: usize = 1000;
    let header: [u8; 104] = padded(file, 0);
    let big_32 = |at: usize| u32::from_be_bytes(header[at..][..4].try_into().expect("4 bytes"));
    let big_64 = |at: usize| u64::from_be_bytes(header[at..][..8].try_into().expect("8 bytes"));
    if !header.starts_with(b"QFI\xfb") {
        return None;
    }
    if big_64(8) != 0 {
        return Some(("backing file", name(file, big_64(8), big_32(16))));
    }
    if big_32(4) < 3 || big_64(72) & EXTERNAL_DATA == 0 {
        return None;
    }
    let mut at = u64::from(big_32(100));
    for _ in 0..MOST_EXTENSIONS {
        let extension: [u8; 8] = padded(file, at);
        let [kind, len] = [0, 4].map(|at| u32::from_be_bytes(extension[at..][..4].try_into().expect("4 bytes")));
        match kind {
            0 => break,
            DATA_FILE => return Some(("data file", name(file, at + 8, len))),
            _ => at += 8 + u64::from(len).next_multiple_of(8),
        }
    }
    Some(("data file", NAMELESS.to_owned()))
}

/// qemu, docs/interop/qed_spec.rst, "Header".
fn of_qed(file: &File) -> Option<(&'static str, String)> {
    const BACKED: u64 = 1 << 0;
    let header: [u8; 64] = padded(file, 0);
    let little_32 = |at: usize| u32::from_le_bytes(header[at..][..4].try_into().expect("4 bytes"));
    let backed = u64::from_le_bytes(header[16..24].try_into().expect("8 bytes")) & BACKED != 0;
    (header.starts_with(b"QED\0") && backed).then(|| ("backing file", name(file, little_32(56).into(), little_32(60))))
}

/// VMware Virtual Disk Format 5.0, "The Descriptor File" and "Hosted Sparse Extents". An image without the signature of an extent is a
/// descriptor, and so is the one in an extent without a size (qemu, block/vmdk.c). A descriptor without a type opens nothing.
fn of_vmdk(file: &File) -> Option<(&'static str, String)> {
    const SECTOR: u64 = 512;
    const PARENT: &str = "parentFileNameHint";
    const TYPE: &str = "createType";
    /// What qemu reads of a descriptor in an extent, and of one that is the whole image, in bytes.
    const IN_EXTENT: usize = 20 * SECTOR as usize;
    const LONGEST: usize = 1 << 20;
    let header: [u8; 44] = padded(file, 0);
    let number = |at: usize| u64::from_le_bytes(header[at..][..8].try_into().expect("8 bytes"));
    if header.starts_with(b"COWD") {
        return None;
    }
    let (size, at) = match header.starts_with(b"KDMV") {
        true => (number(12), number(28).saturating_mul(SECTOR)),
        false => (0, 0),
    };
    let mut text = vec![0; if size == 0 { LONGEST } else { IN_EXTENT }];
    let len = file.read_at(&mut text, at).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..len]);
    let quoted = |after: &str| after.split('"').nth(1).unwrap_or(NAMELESS).to_owned();
    if size == 0 {
        let extent = text.split_once("RW").map_or(NAMELESS.to_owned(), |(_, after)| quoted(after));
        return text.contains(TYPE).then_some(("extent", extent));
    }
    text.split_once(PARENT).map(|(_, after)| ("parent", quoted(after)))
}

/// The parent of a disk of Virtual PC (Virtual Hard Disk Image Format Specification, "Hard Disk Footer Format" and "Dynamic Disk
/// Header Format").
fn of_vhd(file: &File) -> Option<String> {
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
fn of_vhdx(file: &File) -> Option<String> {
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

/// The bytes that are there, and zeros after them: qemu reads whole sectors.
fn padded<const N: usize>(file: &File, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    let _ = file.read_at(&mut bytes, at);
    bytes
}

/// A name in the file. Names have at most 1023 bytes (qcow2.rst).
fn name(file: &File, at: u64, len: u32) -> String {
    let mut bytes = vec![0; (len as usize).min(1023)];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) if !bytes.is_empty() => String::from_utf8_lossy(&bytes).into_owned(),
        _ => NAMELESS.to_owned(),
    }
}

fn text(units: impl Iterator<Item = u16>) -> String {
    let text: String = char::decode_utf16(units).map(|char| char.unwrap_or('\u{fffd}')).collect();
    if text.is_empty() { NAMELESS.to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_testkit::tools;
    use std::fs;
    use std::process::Command;

    #[test]
    fn what_images_of_qemu_name_is_found_and_nothing_else() {
        let Some(qemu_img) = tools::program("qemu-img") else { return };
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("base"), vec![0; 1 << 20]).expect("written");
        let found = |format: &str, more: &[&str]| {
            let image = path("image");
            let _ = fs::remove_file(&image);
            let mut create = Command::new(&qemu_img);
            create
                .args(["create", "-q", "-f", format])
                .args(more)
                .arg(&image)
                .args((!more.contains(&"-b")).then_some("1M"));
            tools::run(&mut create);
            named(format, &File::open(&image).expect("it is there"))
        };
        let is = |found: Option<(&'static str, String)>, kind: &str, name: &str| {
            assert!(found.as_ref().is_some_and(|(what, named)| *what == kind && named.contains(name)), "{found:?}");
        };
        let base = path("base");
        for format in ["qcow2", "qed"] {
            is(found(format, &["-F", "raw", "-b", &base]), "backing file", &base);
        }
        is(found("qcow2", &["-F", "raw", "-b", &base, "-o", "compat=0.10"]), "backing file", &base);
        is(found("qcow2", &["-o", &format!("data_file={}", path("data"))]), "data file", "data");
        is(found("vmdk", &["-o", "subformat=monolithicFlat"]), "extent", "image-flat");
        is(found("vmdk", &["-o", "subformat=twoGbMaxExtentSparse"]), "extent", "image-s001");
        tools::run(Command::new(&qemu_img).args(["create", "-q", "-f", "vmdk", &path("parent.vmdk"), "1M"]));
        is(found("vmdk", &["-F", "vmdk", "-b", &path("parent.vmdk")]), "parent", "parent.vmdk");
        for (format, more) in [
            ("qcow2", &[][..]),
            ("qcow2", &["-o", "compat=0.10"]),
            ("qcow2", &["-o", "cluster_size=512"]),
            ("qed", &[]),
            ("vmdk", &[]),
            ("vmdk", &["-o", "subformat=streamOptimized"]),
            ("vhdx", &[]),
            ("vpc", &[]),
            ("vdi", &[]),
            ("parallels", &[]),
        ] {
            assert_eq!(found(format, more), None, "{format} {more:?}");
        }
    }

    #[test]
    fn an_extent_without_a_size_is_a_descriptor() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("image");
        let found = |size: u64, text: &str| {
            let mut bytes = vec![0; 1024];
            bytes[..8].copy_from_slice(b"KDMV\x01\0\0\0");
            bytes[12..20].copy_from_slice(&size.to_le_bytes());
            bytes[28..36].copy_from_slice(&1u64.to_le_bytes());
            bytes[512..][..text.len()].copy_from_slice(text.as_bytes());
            fs::write(&path, bytes).expect("written");
            named("vmdk", &File::open(&path).expect("it is there"))
        };
        let text = "# Disk DescriptorFile\ncreateType=\"vmfs\"\nRW 2048 FLAT \"/etc/shadow\" 0\n";
        assert_eq!(found(0, text), Some(("extent", "/etc/shadow".to_owned())));
        assert_eq!(found(0, &text.replace(' ', "\n")), Some(("extent", "/etc/shadow".to_owned())));
        assert_eq!(found(2048, text), None, "a descriptor that is not used");
        assert_eq!(found(0, ""), None, "no descriptor");
        fs::write(&path, "createType=\"vmfs\"\nRW 1 VMFS \"/dev/zero\"").expect("written");
        let short = named("vmdk", &File::open(&path).expect("it is there"));
        assert_eq!(short, Some(("extent", "/dev/zero".to_owned())));
        for contents in ["no image", &"a file that is no image ".repeat(100)] {
            fs::write(&path, contents).expect("written");
            for format in ["qcow2", "qed", "vmdk", "vpc", "vhdx"] {
                assert_eq!(named(format, &File::open(&path).expect("it is there")), None, "{format}");
            }
        }
    }
}

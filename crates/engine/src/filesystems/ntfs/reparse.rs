//! Reparse points: files and folders that Windows reads through a driver (MS-FSCC, 2.1.2).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use crate::error::Error;
use crate::little_endian::u32_at;
use crate::trees::{NodeKind, damaged};

/// The longest reparse point, in bytes (MS-FSCC, 2.1.2: 16 KiB of data after the header).
pub const LARGEST: usize = (16 << 10) + 24;

/// The tag of a file of a cloud service, such as OneDrive. The mask omits the four bits with the service's number.
const CLOUD: u32 = 0x9000_001a;
const CLOUD_MASK: u32 = 0xffff_0fff;

/// The tag of the Windows Overlay Filter: the contents are in another stream, compressed with XPRESS or LZX, or in a WIM.
const WOF: u32 = 0x8000_0017;

/// The tag of a file whose contents are in the volume's chunk store.
const DEDUPLICATED: u32 = 0x8000_0013;

const MOUNT_POINT: u32 = 0xa000_0003;
const SYMLINK: u32 = 0xa000_000c;

/// The tag of a symbolic link created by the Windows Subsystem for Linux.
const LX_SYMLINK: u32 = 0xa000_001d;

/// The tag bit for folders that may have children.
const HAS_CHILDREN: u32 = 0x1000_0000;

/// The kind of a node with this tag.
pub fn kind(tag: u32, is_folder: bool) -> NodeKind {
    match tag {
        MOUNT_POINT | SYMLINK | LX_SYMLINK => NodeKind::Link,
        _ if is_folder && tag & HAS_CHILDREN != 0 => NodeKind::Folder,
        _ if !is_folder && (is_cloud(tag) || tag == WOF || tag == DEDUPLICATED) => NodeKind::File,
        _ => NodeKind::Special,
    }
}

/// Whether this is a cloud file: parts that are not on the disk are in the cloud, and all others are plain contents.
pub fn is_cloud(tag: u32) -> bool {
    tag & CLOUD_MASK == CLOUD
}

/// The error for a node with this tag that cannot be read.
pub fn unread(tag: u32) -> Error {
    match tag {
        WOF => Error::unsupported("reading a system file compressed by Windows (WOF)")
            .hint("Decompress it in Windows: `compact /u /exe FILE`."),
        DEDUPLICATED => Error::unsupported("reading a file deduplicated by Windows").hint(
            "Copy it on a Windows Server with this volume, or undo deduplication there: `Start-DedupJob -Type \
                 Unoptimization`.",
        ),
        tag if is_cloud(tag) => {
            Error::unsupported("reading a file that is stored only in the cloud (such as OneDrive)")
                .hint("Download it there, or choose \"Always keep on this device\" in Windows.")
        }
        tag => Error::unsupported(format!("reading a reparse point ({tag:#010x})")),
    }
}

/// The target of a symbolic link or junction with these bytes. A relative target becomes a Unix path; an absolute one stays in
/// Windows notation.
pub fn target(point: &[u8]) -> io::Result<OsString> {
    let malformed = || damaged("reparse point", 0, "a symbolic link has no target");
    let tag = if point.len() < 8 { return Err(malformed()) } else { u32_at(point, 0) };
    let u16_at = |at: usize| point.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let data = 8..8 + u16_at(4).unwrap_or_default();
    let data = point.get(data).ok_or_else(malformed)?;
    if tag == LX_SYMLINK {
        // The target follows a version number.
        let target = data.get(4..).filter(|target| !target.is_empty()).ok_or_else(malformed)?;
        return Ok(OsString::from_vec(target.to_vec()));
    }
    let (names, relative) = match tag {
        SYMLINK => (12, data.len() >= 12 && u32_at(data, 8) & 1 != 0),
        _ => (8, false),
    };
    let name = |at: usize| -> Option<String> {
        let (from, len) = (u16_at(8 + at)?, u16_at(10 + at)?);
        let (units, rest) = data.get(names + from..)?.get(..len)?.as_chunks::<2>();
        let text = String::from_utf16_lossy(&units.iter().map(|unit| u16::from_le_bytes(*unit)).collect::<Vec<_>>());
        (rest.is_empty() && !text.is_empty() && !text.contains('\0')).then_some(text)
    };
    let substitute = name(0).map(|name| name.strip_prefix("\\??\\").map(str::to_owned).unwrap_or(name));
    let target = if relative { substitute.map(|name| name.replace('\\', "/")) } else { name(4).or(substitute) };
    target.map(OsString::from).ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reparse point with a substitute and a print name.
    fn point(tag: u32, flags: Option<u32>, substitute: &str, print: &str) -> Vec<u8> {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        let (substitute, print) = (utf16(substitute), utf16(print));
        let lens = [0, substitute.len(), substitute.len(), print.len()];
        let mut data: Vec<u8> = lens.iter().flat_map(|n| (*n as u16).to_le_bytes()).collect();
        data.extend(flags.iter().flat_map(|flags| flags.to_le_bytes()));
        data.extend(substitute);
        data.extend(print);
        [&tag.to_le_bytes()[..], &(data.len() as u16).to_le_bytes(), &[0; 2], &data].concat()
    }

    #[test]
    fn links_are_told_with_their_targets() {
        for (bytes, is) in [
            (point(SYMLINK, Some(1), "..\\Größe\\a.txt", ""), "../Größe/a.txt"),
            (point(SYMLINK, Some(0), "\\??\\C:\\Users\\Public", "C:\\Users\\Public"), "C:\\Users\\Public"),
            (point(MOUNT_POINT, None, "\\??\\C:\\ProgramData", ""), "C:\\ProgramData"),
            ([&LX_SYMLINK.to_le_bytes()[..], &[8, 0, 0, 0, 2, 0, 0, 0], b"/etc"].concat(), "/etc"),
        ] {
            assert_eq!(target(&bytes).expect("a target"), is);
            for len in 0..bytes.len() {
                assert!(target(&bytes[..len]).is_err(), "{is} cut to {len}");
            }
        }
    }

    #[test]
    fn what_has_its_data_on_the_disk_is_a_file() {
        for service in 0..16 {
            let tag = CLOUD | service << 12;
            assert_eq!((kind(tag, false), kind(tag, true)), (NodeKind::File, NodeKind::Folder), "{tag:#x}");
            assert!(unread(tag).to_string().contains("in the cloud"));
        }
        assert_eq!((kind(WOF, false), kind(DEDUPLICATED, false)), (NodeKind::File, NodeKind::File));
        assert_eq!((kind(0x8000_001b, false), kind(0x8000_0018, true)), (NodeKind::Special, NodeKind::Special));
        assert!(unread(DEDUPLICATED).to_string().contains("deduplicated"));
        assert!(unread(0x8000_001b).to_string().contains("0x8000001b"));
    }
}

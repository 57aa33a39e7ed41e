//! The mounts in this process's namespace (proc_pid_mountinfo(5)).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::sessions::unescape;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's ID, which is reused after unmounting.
    pub id: u32,
    /// ID of the parent mount.
    pub parent: u32,
    /// The device, as `MAJOR:MINOR`.
    pub device: String,
    /// The mount point.
    pub dir: PathBuf,
    /// File system type with its subtype: `ext4`, `fuse.claviger`.
    pub kind: String,
    /// The mount source, as it was named for mount(2).
    pub source: PathBuf,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// All mounts, in the order in which they were made.
///
/// # Errors
/// `Io`.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The mount visible at `dir`: the last one there. The path is compared, not looked up, which would block on a server
/// that does not answer.
///
/// # Errors
/// `Io`.
pub fn at(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// A descriptor that gets POLLPRI when mounts change.
///
/// # Errors
/// `Io`.
pub fn watch() -> io::Result<File> {
    File::open("/proc/self/mountinfo")
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = String::from_utf8_lossy(fields.next()?).into_owned();
    let _root = fields.next()?;
    let dir = unescape(fields.next()?);
    let mut read_only = fields.next()?.split(|b| *b == b',').any(|option| option == b"ro");
    // Skips optional fields, up to a single hyphen.
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    read_only |= fields.next().is_some_and(|own| own.split(|b| *b == b',').any(|option| option == b"ro"));
    Some(Mount { id, parent, device, dir, kind, source, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:7 - ext3 /dev/ro\134ot rw,errors=continue";
        let mount = parse(line).expect("a mount");
        assert_eq!((mount.id, mount.parent, &*mount.device, &*mount.kind), (36, 35, "98:0", "ext3"));
        assert_eq!((mount.dir, mount.source, mount.read_only), ("/mnt 2".into(), r"/dev/ro\ot".into(), false));
        for line in ["5 4 0:21 / /m ro - ext4 /dev/x rw", "5 4 0:21 / /m rw,noatime - fuseblk /dev/x ro,user_id=0"] {
            assert!(parse(line.as_bytes()).expect("a mount").read_only, "{line}");
        }
        let mount = parse(b"5 4 0:21 / /proc rw - fuse.claviger none rw").expect("a mount");
        assert_eq!((mount.kind, mount.dir), ("fuse.claviger".into(), "/proc".into()));
        assert!(parse(b"5 4 0:21 / /proc rw").is_none() && parse(b"").is_none());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).expect("procfs").is_some());
        assert!(at(Path::new("/no/such")).expect("procfs").is_none());
    }
}

//! Unusual arguments: a file system must refuse unsupported operations with a meaningful error, and without any effect.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, OFlags, RenameFlags, SeekFrom, XattrFlags, fallocate, ftruncate, linkat,
    lsetxattr, makedev, mkdir, removexattr, seek, setxattr, symlink,
};
use rustix::io::{Errno, Result, pread, pwrite};

use super::Case;
use super::context::{Ctx, Done, creat, mknod, mode, open, rename_with};

pub(super) const CASES: &[Case] = &[
    Case::anyone("odd: what is refused is not half done, and no fault of a disk", refused),
    Case::anyone("odd: what is too long for any name or link", long),
    Case::anyone("odd: ends of files that no disk has", far),
];

/// An operation that may succeed or fail.
type Attempt<'a> = (String, Box<dyn Fn() -> Result<()> + 'a>);

/// The contents of the folder: names, kinds, sizes and link counts.
fn contents(folder: &Path) -> std::io::Result<BTreeMap<OsString, (String, u64, u64)>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let known = entry.metadata()?;
            let of = known.file_type();
            let kind = format!("{of:?} {} {}", of.is_char_device(), of.is_block_device());
            let size = if of.is_dir() { 0 } else { known.len() };
            Ok((entry.file_name(), (kind, size, known.nlink())))
        })
        .collect()
}

/// Tries each operation. A failed one must change nothing, and must not report a broken disk.
fn each(ctx: &Ctx, attempts: Vec<Attempt<'_>>) -> Done {
    for (what, attempt) in attempts {
        let before = contents(ctx.dir())?;
        if let Err(errno) = attempt() {
            ctx.holds(format_args!("{what}: an error that says why"), errno != Errno::IO);
            ctx.same(format_args!("{what}: what is left of it"), contents(ctx.dir())?, before);
        }
    }
    Ok(())
}

fn attempt<'a, T>(what: impl Into<String>, run: impl Fn() -> Result<T> + 'a) -> Attempt<'a> {
    (what.into(), Box::new(move || run().map(drop)))
}

fn refused(ctx: &Ctx) -> Done {
    let (file, other, folder) = (ctx.file("file")?, ctx.file("other")?, ctx.folder("folder")?);
    let link = ctx.symlink("link", "file")?;
    let opened: OwnedFd = open(&file, OFlags::RDWR)?;
    let mut attempts = Vec::new();
    for (kind, number) in [
        (FileType::CharacterDevice, makedev(1, 3)),
        // The node that an overlay makes for a deleted name.
        (FileType::CharacterDevice, makedev(0, 0)),
        (FileType::BlockDevice, makedev(7, 1)),
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::RegularFile, 0),
        (FileType::Directory, 0),
    ] {
        for bits in [0o644, 0o7777] {
            let path = ctx.path(&format!("{kind:?} {number} {bits}"));
            attempts.push(attempt(format!("mknod {kind:?} {number:x}"), move || mknod(&path, kind, bits, number)));
        }
    }
    for name in ["user.ecryptfs", "user.x", "trusted.x", "security.x", "system.posix_acl_access", "none.x"] {
        for len in [0, 1, 4096, 65_536, 65_537] {
            let (value, at) = (vec![7; len], file.clone());
            let set = move || setxattr(&at, name, &value, XattrFlags::empty());
            attempts.push(attempt(format!("setxattr {name} {len}"), set));
        }
        let at = file.clone();
        attempts.push(attempt(format!("removexattr {name}"), move || removexattr(&at, name)));
    }
    attempts.push(attempt("setxattr of a link", || lsetxattr(&link, "user.x", b"x", XattrFlags::empty())));
    for flags in [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
    ] {
        let file = &opened;
        attempts.push(attempt(format!("fallocate {flags:?}"), move || fallocate(file, flags, 0, 8192)));
    }
    for bits in 0..=8 {
        let (from, to) = (other.clone(), file.clone());
        let flags = RenameFlags::from_bits_retain(bits);
        attempts.push(attempt(format!("rename, flags {bits}"), move || rename_with(&from, &to, flags)));
        let (from, to) = (file.clone(), ctx.path("none"));
        attempts.push(attempt(format!("rename to nothing, flags {bits}"), move || match bits {
            // A move that succeeds, which is not tested here.
            0 | 1 => Ok(()),
            _ => rename_with(&from, &to, flags),
        }));
    }
    attempts.push(attempt("a file without a name", || open(&folder, OFlags::TMPFILE | OFlags::RDWR)));
    attempts.push(attempt("link of a folder", || linkat(CWD, &folder, CWD, ctx.path("second"), AtFlags::empty())));
    attempts.push(attempt("a folder to be written", || open(&folder, OFlags::WRONLY)));
    attempts.push(attempt("data behind the end", || seek(&opened, SeekFrom::Data(1 << 40))));
    attempts.push(attempt("a hole behind the end", || seek(&opened, SeekFrom::Hole(1 << 40))));
    each(ctx, attempts)
}

fn long(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let mut attempts = Vec::new();
    for len in [143, 144, 200, 255, 256] {
        let name = |kind: &str| ctx.path(&format!("{kind}{}", "n".repeat(len - 1)));
        let (made, folder, pipe, link, second) = (name("f"), name("d"), name("p"), name("l"), name("s"));
        let (from, to) = (ctx.path("moved"), name("m"));
        let linked = file.clone();
        attempts.push(attempt(format!("a file's name of {len}"), move || creat(&made, 0o644)));
        attempts.push(attempt(format!("a folder's name of {len}"), move || mkdir(&folder, mode(0o755))));
        attempts.push(attempt(format!("a fifo's name of {len}"), move || mknod(&pipe, FileType::Fifo, 0o644, 0)));
        attempts.push(attempt(format!("a link's name of {len}"), move || symlink("file", &link)));
        let add = move || linkat(CWD, &linked, CWD, &second, AtFlags::empty());
        attempts.push(attempt(format!("a second name of {len}"), add));
        creat(&from, 0o644)?;
        attempts.push(attempt(format!("a new name of {len}"), move || match from.exists() {
            true => rename_with(&from, &to, RenameFlags::empty()),
            false => Ok(()),
        }));
    }
    for len in [1000, 2900, 3000, 3050, 3100, 4095, 4096] {
        let path = ctx.path(&format!("target {len}"));
        attempts.push(attempt(format!("a target of {len}"), move || symlink("t".repeat(len), &path)));
    }
    each(ctx, attempts)
}

fn far(ctx: &Ctx) -> Done {
    let file = open(&ctx.file("file")?, OFlags::RDWR)?;
    let mut attempts = Vec::new();
    for end in [999_999_999_999_999, 1 << 62, i64::MAX as u64 - 1, i64::MAX as u64] {
        let file = &file;
        // Undoes a successful truncation before the next attempt.
        attempts.push(attempt(format!("truncate to {end}"), move || {
            ftruncate(file, end).and_then(|()| ftruncate(file, 0))
        }));
        attempts
            .push(attempt(format!("write at {end}"), move || pwrite(file, b"x", end).and_then(|_| ftruncate(file, 0))));
        attempts.push(attempt(format!("read at {end}"), move || pread(file, &mut [0; 8], end)));
    }
    each(ctx, attempts)
}

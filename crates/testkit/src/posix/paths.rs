//! Path errors, independent of the operation: each condition for each call that takes a path.

use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, OFlags, Timestamps, XattrFlags, access, getxattr, link, listxattr, lstat, mkdir, readlink, removexattr,
    rename, rmdir, setxattr, stat, statfs, symlink, unlink,
};
use rustix::io::{Errno, Result};

use super::Case;
use super::context::{Ctx, Done, NOW, chmod, chown, creat, lchown, make, mode, open, utimens};
use super::sys;

pub(super) const CASES: &[Case] = &[
    Case::anyone("paths: ENOTDIR where a file is used as a folder, by every call", through_file),
    Case::anyone("paths: ENOTDIR or EEXIST for a file with a slash behind it", slash_behind_file),
    Case::anyone("paths: ENOENT where a folder is missing, by every call", through_nothing),
    Case::anyone("paths: ENOENT where the last name is missing, by every call that needs it", missing),
    Case::anyone("paths: ENOENT for an empty path, by every call", empty),
    Case::anyone("paths: ENAMETOOLONG for a name of 256 bytes, by every call", long_name),
    Case::anyone("paths: ENAMETOOLONG for a folder's name of 256 bytes, by every call", long_folder),
    Case::anyone("paths: ENAMETOOLONG for a path of 4096 bytes, by every call", long_path),
    Case::anyone("paths: names of 255 bytes and paths of 4095 work", longest),
    Case::anyone("paths: ELOOP where links go in circles, by every call", circles),
    Case::anyone("paths: 40 links in a row are followed, 41 are not", many_links),
    Case::anyone("paths: EEXIST for what is there, of every kind, by every call that makes something", there_already),
    Case::anyone("paths: EACCES where a folder may not be searched, by every call", unsearchable),
    Case::anyone("paths: EACCES where a folder may not be written, by every call that changes it", unwritable),
    Case::anyone("paths: dots and doubled slashes mean what they mean", dots),
    Case::anyone("paths: names are bytes, and case counts", bytes),
];

/// A call that takes a path.
pub(super) struct Call {
    pub(super) name: &'static str,
    /// What the call needs at that path.
    pub(super) needs: Needs,
    /// Whether a link as the last component is followed.
    follows: bool,
    /// Runs the call with a path, and with an existing file for calls that take two.
    pub(super) run: fn(&Path, &Path) -> Result<()>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Needs {
    /// An existing node.
    Something,
    /// An existing node, whose name the call removes.
    Removes,
    /// No node: the call makes one.
    Nothing,
}

const fn call(name: &'static str, needs: Needs, follows: bool, run: fn(&Path, &Path) -> Result<()>) -> Call {
    Call { name, needs, follows, run }
}

pub(super) const CALLS: &[Call] = &[
    call("open", Needs::Something, true, |p, _| open(p, OFlags::RDONLY).map(drop)),
    call("open for writing", Needs::Something, true, |p, _| open(p, OFlags::WRONLY).map(drop)),
    call("stat", Needs::Something, true, |p, _| stat(p).map(drop)),
    call("lstat", Needs::Something, false, |p, _| lstat(p).map(drop)),
    call("access", Needs::Something, true, |p, _| access(p, Access::EXISTS)),
    call("statfs", Needs::Something, true, |p, _| statfs(p).map(drop)),
    call("truncate", Needs::Something, true, |p, _| sys::truncate(p, 0)),
    call("chmod", Needs::Something, true, |p, _| chmod(p, 0o644)),
    call("chown", Needs::Something, true, |p, _| chown(p, None, None)),
    call("lchown", Needs::Something, false, |p, _| lchown(p, None, None)),
    call("utimensat", Needs::Something, true, |p, _| {
        utimens(p, &Timestamps { last_access: NOW, last_modification: NOW })
    }),
    call("readlink", Needs::Something, false, |p, _| readlink(p, Vec::new()).map(drop)),
    call("getxattr", Needs::Something, true, |p, _| getxattr(p, "user.x", &mut [0u8; 1]).map(drop)),
    call("setxattr", Needs::Something, true, |p, _| setxattr(p, "user.x", b"1", XattrFlags::empty())),
    call("listxattr", Needs::Something, true, |p, _| listxattr(p, &mut [0u8; 100]).map(drop)),
    call("removexattr", Needs::Something, true, |p, _| removexattr(p, "user.x")),
    call("link from", Needs::Something, false, |p, other| link(p, other.with_extension("link"))),
    call("rename from", Needs::Removes, false, |p, other| rename(p, other)),
    call("unlink", Needs::Removes, false, |p, _| unlink(p)),
    call("rmdir", Needs::Removes, false, |p, _| rmdir(p)),
    call("creat", Needs::Nothing, true, |p, _| creat(p, 0o644).map(drop)),
    call("open with O_EXCL", Needs::Nothing, false, |p, _| {
        open(p, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(drop)
    }),
    call("mkdir", Needs::Nothing, false, |p, _| mkdir(p, mode(0o755))),
    call("mkfifo", Needs::Nothing, false, |p, _| make("fifo", p)),
    call("mknod", Needs::Nothing, false, |p, _| make("socket", p)),
    call("symlink", Needs::Nothing, false, |p, _| symlink("target", p)),
    call("link to", Needs::Nothing, false, |p, other| link(other, p)),
    call("rename to", Needs::Nothing, false, |p, other| rename(other, p)),
];

/// All calls selected by `which` must fail with `expected`.
fn all_fail(ctx: &Ctx, which: impl Fn(&Call) -> bool, path: &Path, other: &Path, expected: &[Errno]) {
    for call in CALLS.iter().filter(|call| which(call)) {
        ctx.fails_with(call.name, (call.run)(path, other), expected);
    }
}

fn through_file(ctx: &Ctx) -> Done {
    let (file, other) = (ctx.file("file")?, ctx.file("other")?);
    all_fail(ctx, |_| true, &file.join("name"), &other, &[Errno::NOTDIR]);
    all_fail(ctx, |_| true, &file.join("folder/name"), &other, &[Errno::NOTDIR]);
    Ok(())
}

fn slash_behind_file(ctx: &Ctx) -> Done {
    ctx.file("file")?;
    let (path, other) = (ctx.path("file/"), ctx.file("other")?);
    let makes = |call: &Call| call.needs == Needs::Nothing;
    all_fail(ctx, |call| !makes(call), &path, &other, &[Errno::NOTDIR]);
    // With O_CREAT, the error is about the trailing slash; otherwise about the existing node.
    all_fail(ctx, makes, &path, &other, &[Errno::EXIST, Errno::NOTDIR, Errno::ISDIR]);
    ctx.same("size", stat(ctx.path("file"))?.st_size, 9);
    Ok(())
}

fn through_nothing(ctx: &Ctx) -> Done {
    let other = ctx.file("other")?;
    all_fail(ctx, |_| true, &ctx.path("missing/name"), &other, &[Errno::NOENT]);
    ctx.symlink("link", "missing")?;
    all_fail(ctx, |_| true, &ctx.path("link/name"), &other, &[Errno::NOENT]);
    Ok(())
}

fn missing(ctx: &Ctx) -> Done {
    let other = ctx.file("other")?;
    all_fail(ctx, |call| call.needs != Needs::Nothing, &ctx.path("missing"), &other, &[Errno::NOENT]);
    let link = ctx.symlink("link", "missing")?;
    let followed = |call: &Call| call.follows && call.needs == Needs::Something;
    all_fail(ctx, followed, &link, &other, &[Errno::NOENT]);
    Ok(())
}

fn empty(ctx: &Ctx) -> Done {
    all_fail(ctx, |_| true, Path::new(""), &ctx.file("other")?, &[Errno::NOENT]);
    Ok(())
}

fn long_name(ctx: &Ctx) -> Done {
    all_fail(ctx, |_| true, &ctx.path(&"n".repeat(256)), &ctx.file("other")?, &[Errno::NAMETOOLONG]);
    Ok(())
}

fn long_folder(ctx: &Ctx) -> Done {
    let path = ctx.path(&"n".repeat(256)).join("name");
    all_fail(ctx, |_| true, &path, &ctx.file("other")?, &[Errno::NAMETOOLONG]);
    Ok(())
}

/// A path to `name` of exactly `len` bytes.
fn padded(ctx: &Ctx, name: &str, len: usize) -> PathBuf {
    let (dir, end) = (ctx.dir().to_str().expect("text"), format!("/{name}"));
    let room = len - dir.len() - end.len();
    let padding = format!("{}{}", "/.".repeat(room / 2), "/".repeat(room % 2));
    PathBuf::from(format!("{dir}{padding}{end}"))
}

fn long_path(ctx: &Ctx) -> Done {
    all_fail(ctx, |_| true, &padded(ctx, "name", 4096), &ctx.file("other")?, &[Errno::NAMETOOLONG]);
    Ok(())
}

fn longest(ctx: &Ctx) -> Done {
    let other = ctx.file("other")?;
    for (what, name) in [("names of 255 bytes", "n".repeat(255)), ("paths of 4095 bytes", "name".into())] {
        let path = if name.len() == 255 { ctx.path(&name) } else { padded(ctx, &name, 4095) };
        for call in CALLS.iter().filter(|call| call.needs == Needs::Nothing && call.name != "rename to") {
            ctx.works(format_args!("{}: {what}", call.name), (call.run)(&path, &other));
            ctx.works("looking", lstat(&path));
            ctx.works("removing", if call.name == "mkdir" { rmdir(&path) } else { unlink(&path) });
        }
        ctx.works(format_args!("rename to: {what}"), rename(&other, &path));
        ctx.works(format_args!("rename from: {what}"), rename(&path, &other));
    }
    Ok(())
}

fn circles(ctx: &Ctx) -> Done {
    let other = ctx.file("other")?;
    let (one, _) = (ctx.symlink("one", "two")?, ctx.symlink("two", "one")?);
    all_fail(ctx, |_| true, &one.join("name"), &other, &[Errno::LOOP]);
    all_fail(ctx, |call| call.follows, &one, &other, &[Errno::LOOP]);
    let itself = ctx.symlink("itself", "itself")?;
    all_fail(ctx, |call| call.follows, &itself, &other, &[Errno::LOOP]);
    Ok(())
}

fn many_links(ctx: &Ctx) -> Done {
    ctx.file("0")?;
    for i in 1..=41 {
        ctx.symlink(&i.to_string(), (i - 1).to_string())?;
    }
    ctx.works("40 links", stat(ctx.path("40")));
    ctx.fails("41 links", stat(ctx.path("41")), Errno::LOOP);
    Ok(())
}

fn there_already(ctx: &Ctx) -> Done {
    let other = ctx.file("other")?;
    let refuses = |call: &Call| call.needs == Needs::Nothing && !["creat", "rename to"].contains(&call.name);
    for (kind, path) in ctx.one_of_each()? {
        let before = lstat(&path)?;
        all_fail(ctx, refuses, &path, &other, &[Errno::EXIST]);
        let after = lstat(&path)?;
        ctx.same(kind, (after.st_ino, after.st_mode, after.st_size), (before.st_ino, before.st_mode, before.st_size));
    }
    all_fail(ctx, refuses, &ctx.path("."), &other, &[Errno::EXIST]);
    Ok(())
}

fn unsearchable(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let (folder, other) = (ctx.folder("folder")?, ctx.file("other")?);
        let inside = ctx.file("folder/file")?;
        chmod(&folder, 0o600)?;
        all_fail(ctx, |_| true, &inside, &other, &[Errno::ACCESS]);
        all_fail(ctx, |_| true, &folder.join("missing"), &other, &[Errno::ACCESS]);
        ctx.works("listing it", std::fs::read_dir(&folder).map_err(|_| Errno::ACCESS));
        chmod(&folder, 0o100)?;
        ctx.works("with x only", open(&inside, OFlags::RDONLY));
        ctx.fails("listing with x only", open(&folder, OFlags::RDONLY), Errno::ACCESS);
        Ok(())
    })
}

fn unwritable(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let (folder, other) = (ctx.folder("folder")?, ctx.file("other")?);
        let (inside, inner) = (ctx.file("folder/file")?, ctx.folder("folder/folder")?);
        chmod(&folder, 0o555)?;
        all_fail(ctx, |call| call.needs == Needs::Nothing, &folder.join("new"), &other, &[Errno::ACCESS]);
        let removes = |call: &Call| call.needs == Needs::Removes && call.name != "rmdir";
        all_fail(ctx, removes, &inside, &other, &[Errno::ACCESS]);
        ctx.fails("rmdir", rmdir(&inner), Errno::ACCESS);
        ctx.works("writing to a file in it", open(&inside, OFlags::WRONLY));
        Ok(())
    })
}

fn dots(ctx: &Ctx) -> Done {
    let (folder, file) = (ctx.folder("folder")?, ctx.file("file")?);
    let number = stat(&file)?.st_ino;
    for path in ["./file", "folder/../file", "folder//..//file", "folder/./.././file"] {
        ctx.same(path, stat(ctx.path(path)).map(|s| s.st_ino), Ok(number));
    }
    ctx.fails("a file's parent", stat(ctx.path("file/../file")), Errno::NOTDIR);
    ctx.fails("rmdir .", rmdir(folder.join(".")), Errno::INVAL);
    ctx.fails("rmdir ..", rmdir(folder.join("..")), Errno::NOTEMPTY);
    ctx.fails("rename .", rename(folder.join("."), ctx.path("new")), Errno::BUSY);
    ctx.fails("rename to ..", rename(&folder, ctx.path("folder/..")), Errno::BUSY);
    ctx.fails_with("unlink .", unlink(folder.join(".")), &[Errno::ISDIR, Errno::PERM]);
    Ok(())
}

fn bytes(ctx: &Ctx) -> Done {
    use std::os::unix::ffi::OsStrExt;
    let names: [&[u8]; 8] =
        [b"name", b"NAME", b" name ", b"n\\a:m*e?", b"\xff\xfe", "é".as_bytes(), "e\u{301}".as_bytes(), b"line\nline"];
    for name in names {
        let path = ctx.dir().join(std::ffi::OsStr::from_bytes(name));
        ctx.works(format_args!("{name:?}"), open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR));
    }
    let mut listed: Vec<_> = std::fs::read_dir(ctx.dir())?.collect::<std::io::Result<Vec<_>>>()?;
    listed.sort_by_key(std::fs::DirEntry::file_name);
    let mut expected = names.to_vec();
    expected.sort_unstable();
    let seen: Vec<Vec<u8>> = listed.iter().map(|entry| entry.file_name().as_bytes().to_vec()).collect();
    ctx.same("names", seen, expected.into_iter().map(<[u8]>::to_vec).collect());
    Ok(())
}

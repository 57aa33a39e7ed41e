//! link(2), unlink(2), symlink(2), readlink(2), and files that lose their names while they are open.

use std::fs;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, fstat, link, linkat, lstat, readlink, stat, symlink, unlink, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::Case;
use super::context::{Ctx, Done, PLAIN, STRANGER, Stop, chmod, chown, lchown, make, open};

pub(super) const CASES: &[Case] = &[
    Case::anyone("link: all names are one file", one_file),
    Case::anyone("link: of every kind but folders", kinds),
    Case::anyone("link: to a symbolic link, and through it where that is asked for", of_symlink),
    Case::anyone("link: times of the file and of the folder", link_times),
    Case::anyone("unlink: takes one name, and counts", counts),
    Case::anyone("unlink: every kind but folders", unlink_kinds),
    Case::anyone("unlink: times of the file and of the folder", unlink_times),
    Case::anyone("unlink: a file that cannot be read or written", unlink_unreadable),
    Case::root("unlink: in a sticky folder only what is one's own", unlink_sticky),
    Case::anyone("symlink: holds what it was given, whatever that is", targets),
    Case::anyone("symlink: the longest target, and what is no target", target_lengths),
    Case::anyone("symlink: times of the folder", symlink_times),
    Case::anyone("readlink: of all that is no link is EINVAL", not_links),
    Case::anyone("readlink: through folders and relative to the link", relative),
    Case::anyone("removed: what is open can be read and written on", removed_file),
    Case::anyone("removed: and changed in all other ways", removed_changes),
    Case::anyone("removed: a new file of that name is another one", removed_and_new),
    Case::anyone("removed: by its last of several names", removed_one_of_two),
];

fn one_file(ctx: &Ctx) -> Done {
    let (one, two, folder) = (ctx.file("one")?, ctx.path("two"), ctx.folder("folder")?);
    link(&one, &two)?;
    link(&two, folder.join("three"))?;
    let numbers = |path: &Path| stat(path).map(|s| (s.st_ino, s.st_nlink as u64, s.st_mode));
    let expected = numbers(&one)?;
    ctx.same("links", expected.1, 3);
    ctx.same("second", numbers(&two)?, expected);
    ctx.same("third", numbers(&folder.join("three"))?, expected);
    fs::write(&two, "new contents")?;
    ctx.same("contents", fs::read(folder.join("three"))?, b"new contents".to_vec());
    chmod(&one, 0o600)?;
    ctx.mode_is("mode", &two, 0o600);
    Ok(())
}

fn kinds(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        let new = ctx.path(&format!("second {kind}"));
        if kind == "folder" {
            ctx.fails(kind, link(&path, &new), Errno::PERM);
        } else {
            ctx.works(kind, link(&path, &new));
            ctx.same(kind, lstat(&new).map(|s| (s.st_ino, s.st_nlink as u64)), lstat(&path).map(|s| (s.st_ino, 2)));
        }
    }
    Ok(())
}

fn of_symlink(ctx: &Ctx) -> Done {
    let (file, to_file) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    link(&to_file, ctx.path("1"))?;
    ctx.same("the link", lstat(ctx.path("1"))?.st_ino, lstat(&to_file)?.st_ino);
    linkat(CWD, &to_file, CWD, ctx.path("2"), AtFlags::SYMLINK_FOLLOW)?;
    ctx.same("the file", lstat(ctx.path("2"))?.st_ino, lstat(&file)?.st_ino);
    let nowhere = ctx.symlink("nowhere", "missing")?;
    let followed = linkat(CWD, &nowhere, CWD, ctx.path("3"), AtFlags::SYMLINK_FOLLOW);
    ctx.fails("through a link to nowhere", followed, Errno::NOENT);
    Ok(())
}

fn link_times(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    ctx.touches("link", &file, "c", || link(&file, folder.join("1")))?;
    ctx.touches("link", &folder, "mc", || link(&file, folder.join("2")))?;
    ctx.touches("what fails", &file, "", || {
        ctx.fails("link", link(&file, folder.join("2")), Errno::EXIST);
        Ok(())
    })
}

fn counts(ctx: &Ctx) -> Done {
    let (one, two) = (ctx.file("one")?, ctx.path("two"));
    link(&one, &two)?;
    ctx.works("unlink", unlink(&one));
    ctx.same("links", stat(&two)?.st_nlink as u64, 1);
    ctx.same("contents", fs::read(&two)?, b"contents\n".to_vec());
    ctx.fails("the old name", stat(&one), Errno::NOENT);
    ctx.fails("once more", unlink(&one), Errno::NOENT);
    Ok(())
}

fn unlink_kinds(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        if kind == "folder" {
            // ISDIR on Linux; POSIX specifies EPERM.
            ctx.fails_with(kind, unlink(&path), &[Errno::ISDIR, Errno::PERM]);
            ctx.works("as a folder", unlinkat(CWD, &path, AtFlags::REMOVEDIR));
        } else {
            ctx.fails(format_args!("{kind} as a folder"), unlinkat(CWD, &path, AtFlags::REMOVEDIR), Errno::NOTDIR);
            ctx.works(kind, unlink(&path));
        }
        ctx.fails(kind, lstat(&path), Errno::NOENT);
    }
    let (file, to_file) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    ctx.works("a link", unlink(&to_file));
    ctx.works("what it led to", stat(&file));
    Ok(())
}

fn unlink_times(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    link(&file, folder.join("1"))?;
    link(&file, folder.join("2"))?;
    ctx.touches("unlink", &file, "c", || unlink(folder.join("1")))?;
    ctx.touches("unlink", &folder, "mc", || unlink(folder.join("2")))?;
    ctx.touches("what fails", &folder, "", || {
        ctx.fails("unlink", unlink(folder.join("2")), Errno::NOENT);
        Ok(())
    })
}

fn unlink_unreadable(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        chmod(&file, 0)?;
        ctx.works("unlink", unlink(&file));
        Ok(())
    })
}

fn unlink_sticky(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    chmod(&folder, 0o1777)?;
    for kind in ["file", "fifo", "symlink"] {
        for (owner, user) in [("own", PLAIN), ("theirs", STRANGER)] {
            let path = folder.join(format!("{owner} {kind}"));
            make(kind, &path)?;
            lchown(&path, user, user)?;
        }
        ctx.as_plain(|| {
            ctx.fails(format_args!("theirs: {kind}"), unlink(folder.join(format!("theirs {kind}"))), Errno::PERM);
            ctx.works(format_args!("own: {kind}"), unlink(folder.join(format!("own {kind}"))));
            Ok(())
        })?;
    }
    // The folder's owner may do this, too.
    chown(&folder, PLAIN, PLAIN)?;
    ctx.as_plain(|| {
        ctx.works("in one's own folder", unlink(folder.join("theirs file")));
        Ok(())
    })
}

fn targets(ctx: &Ctx) -> Done {
    let targets = ["x", ".", "..", "/", "a//b/", "no/such/thing", " ", "/proc/self", "ключ"];
    for (i, target) in targets.iter().enumerate() {
        let path = ctx.symlink(&i.to_string(), target)?;
        ctx.same("target", readlink(&path, Vec::new())?.to_bytes(), target.as_bytes());
        let stat = lstat(&path)?;
        ctx.same("kind", FileType::from_raw_mode(stat.st_mode), FileType::Symlink);
        ctx.same("size", stat.st_size, target.len() as i64);
        ctx.same("links", stat.st_nlink as u64, 1);
    }
    Ok(())
}

fn target_lengths(ctx: &Ctx) -> Done {
    for len in [59, 60, 255, 1023, 4095] {
        let target = "t".repeat(len);
        if let Some(()) = ctx.works(len, symlink(&target, ctx.path(&len.to_string()))) {
            ctx.same(len, readlink(ctx.path(&len.to_string()), Vec::new())?.to_bytes().len(), len);
        }
    }
    ctx.fails("4096 bytes", symlink("t".repeat(4096), ctx.path("long")), Errno::NAMETOOLONG);
    ctx.fails("an empty one", symlink("", ctx.path("empty")), Errno::NOENT);
    Ok(())
}

fn symlink_times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.touches("symlink", &folder, "mc", || symlink("target", folder.join("link")))?;
    ctx.touches("readlink", &folder, "", || readlink(folder.join("link"), Vec::new()))
}

fn not_links(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        if kind != "symlink" {
            ctx.fails(kind, readlink(&path, Vec::new()), Errno::INVAL);
        }
    }
    Ok(())
}

fn relative(ctx: &Ctx) -> Done {
    ctx.folder("folder")?;
    ctx.folder("folder/inner")?;
    ctx.file("file")?;
    symlink("../../file", ctx.path("folder/inner/link"))?;
    symlink("inner/link", ctx.path("folder/link"))?;
    ctx.symlink("to folder", "folder/inner")?;
    let number = stat(ctx.path("file"))?.st_ino;
    for path in ["folder/link", "folder/inner/link", "to folder/link"] {
        ctx.same(path, stat(ctx.path(path)).map(|s| s.st_ino), Ok(number));
    }
    Ok(())
}

fn removed_file(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let (fd, reader) = (open(&file, OFlags::RDWR)?, open(&file, OFlags::RDONLY)?);
    unlink(&file)?;
    ctx.same("links", fstat(&fd)?.st_nlink as u64, 0);
    let mut bytes = [0; 16];
    ctx.same("reading", pread(&fd, &mut bytes, 0), Ok(9));
    ctx.works("writing", pwrite(&fd, &[7; 10_000], 4));
    ctx.same("size", fstat(&reader)?.st_size, 10_004);
    ctx.same("reading by another", pread(&reader, &mut bytes, 0), Ok(16));
    ctx.same("what is read", &bytes[..6], b"cont\x07\x07");
    ctx.same("entries", fs::read_dir(ctx.dir())?.count(), 0);
    ctx.works("the folder goes", rustix::fs::rmdir(ctx.dir()));
    ctx.works("writing on", pwrite(&fd, b"x", 0));
    Ok(())
}

fn removed_changes(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let fd = open(&file, OFlags::RDWR)?;
    unlink(&file)?;
    ctx.works("fchmod", rustix::fs::fchmod(&fd, super::context::mode(0o600)));
    ctx.same("mode", fstat(&fd)?.st_mode & 0o7777, 0o600);
    ctx.works("ftruncate", rustix::fs::ftruncate(&fd, 3));
    ctx.same("size", fstat(&fd)?.st_size, 3);
    ctx.works("fsync", rustix::fs::fsync(&fd));
    let time = rustix::fs::Timespec { tv_sec: 1000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    ctx.works("futimens", rustix::fs::futimens(&fd, &times));
    ctx.same("time", fstat(&fd)?.st_mtime as i64, 1000);
    Ok(())
}

fn removed_and_new(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let old = open(&file, OFlags::RDWR)?;
    unlink(&file)?;
    fs::write(&file, "new")?;
    ctx.holds("another number", fstat(&old)?.st_ino != stat(&file)?.st_ino);
    pwrite(&old, b"OLD", 0)?;
    ctx.same("the new one", fs::read(&file)?, b"new".to_vec());
    Ok(())
}

fn removed_one_of_two(ctx: &Ctx) -> Done {
    let (one, two) = (ctx.file("one")?, ctx.path("two"));
    link(&one, &two)?;
    let fd = open(&one, OFlags::RDWR)?;
    unlink(&one)?;
    ctx.same("links", fstat(&fd)?.st_nlink as u64, 1);
    pwrite(&fd, b"CONTENTS", 0)?;
    ctx.same("by the other name", fs::read(&two)?, b"CONTENTS\n".to_vec());
    unlink(&two)?;
    if fstat(&fd)?.st_nlink != 0 {
        return Err(Stop::Wrong("it has links left".into()));
    }
    ctx.works("writing on", pwrite(&fd, b"x", 0));
    Ok(())
}

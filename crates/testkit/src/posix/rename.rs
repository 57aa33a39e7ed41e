//! rename(2) and renameat2(2).

use std::fs;
use std::path::Path;

use rustix::fs::{OFlags, RenameFlags, lstat, mkdir, rename, stat, symlink};
use rustix::io::Errno;

use super::Case;
use super::context::{Ctx, Done, PLAIN, STRANGER, Stop, chmod, lchown, make, mode, name, open, rename_with};

pub(super) const CASES: &[Case] = &[
    Case::anyone("rename: every kind gets its new name and stays what it is", every_kind),
    Case::anyone("rename: over what is there, of every kind that is no folder", over),
    Case::anyone("rename: a folder over an empty one, and not over a full one", folder_over_folder),
    Case::anyone("rename: a folder over a file is ENOTDIR, a file over a folder EISDIR", mixed),
    Case::anyone("rename: a folder into itself is EINVAL", into_itself),
    Case::anyone("rename: a folder over its own parent is ENOTEMPTY", over_parent),
    Case::anyone("rename: two names of one file stay both", same_file),
    Case::anyone("rename: a name onto itself changes nothing", onto_itself),
    Case::anyone("rename: a link itself, not what it leads to", links),
    Case::anyone("rename: what is open stays so, also what is replaced", open_files),
    Case::anyone("rename: the parent of a moved folder is the new one", parent),
    Case::anyone("rename: numbers of links of folders follow", folder_links),
    Case::anyone("rename: times of both folders and of the file", times),
    Case::anyone("rename: a folder with a slash behind it, and a file with one", slashes),
    Case::anyone("rename: a folder that its owner may not write cannot get another parent", unwritable_folder),
    Case::anyone("rename: to another file system is EXDEV", other_file_system),
    Case::anyone("rename: NOREPLACE", noreplace),
    Case::anyone("rename: EXCHANGE", exchange),
    Case::anyone("rename: flags that exclude each other", bad_flags),
    Case::root("rename: WHITEOUT leaves a device 0:0", whiteout),
    Case::root("rename: in a sticky folder only what is one's own", sticky),
];

fn every_kind(ctx: &Ctx) -> Done {
    for (kind, from) in ctx.one_of_each()? {
        let (before, to) = (lstat(&from)?, ctx.path(&format!("new {kind}")));
        ctx.works(kind, rename(&from, &to));
        ctx.fails(format_args!("{kind}: the old name"), lstat(&from), Errno::NOENT);
        let after = lstat(&to)?;
        let facts = |s: rustix::fs::Stat| (s.st_ino, s.st_mode, s.st_nlink as u64, s.st_rdev, s.st_size);
        ctx.same(kind, facts(after), facts(before));
    }
    Ok(())
}

fn over(ctx: &Ctx) -> Done {
    for (kind, to) in ctx.one_of_each()? {
        if kind != "folder" {
            let from = ctx.file("from")?;
            ctx.works(kind, rename(&from, &to));
            ctx.same(kind, fs::read(&to)?, b"contents\n".to_vec());
            ctx.fails(kind, lstat(&from), Errno::NOENT);
        }
    }
    Ok(())
}

fn folder_over_folder(ctx: &Ctx) -> Done {
    let (from, empty, full) = (ctx.folder("from")?, ctx.folder("empty")?, ctx.folder("full")?);
    ctx.file("from/inside")?;
    ctx.file("full/inside")?;
    ctx.fails_with("a full one", rename(&from, &full), &[Errno::NOTEMPTY, Errno::EXIST]);
    ctx.works("an empty one", rename(&from, &empty));
    ctx.works("what was inside", stat(empty.join("inside")));
    ctx.fails("the old name", stat(&from), Errno::NOENT);
    Ok(())
}

fn mixed(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        if kind != "folder" {
            ctx.fails(format_args!("a folder over a {kind}"), rename(ctx.path("a folder"), &path), Errno::NOTDIR);
            ctx.fails(format_args!("a {kind} over a folder"), rename(&path, ctx.path("a folder")), Errno::ISDIR);
        }
    }
    Ok(())
}

fn into_itself(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.folder("folder/inner")?;
    for path in ["folder/new", "folder/inner/new", "folder/inner"] {
        ctx.fails(path, rename(&folder, ctx.path(path)), Errno::INVAL);
    }
    Ok(())
}

fn over_parent(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    let inner = ctx.folder("folder/inner")?;
    ctx.fails_with("a folder", rename(&inner, &folder), &[Errno::NOTEMPTY, Errno::EXIST]);
    ctx.fails_with("a file", rename(ctx.file("folder/file")?, &folder), &[Errno::NOTEMPTY, Errno::EXIST, Errno::ISDIR]);
    Ok(())
}

fn same_file(ctx: &Ctx) -> Done {
    let (one, two) = (ctx.file("one")?, ctx.path("two"));
    fs::hard_link(&one, &two)?;
    ctx.works("rename", rename(&one, &two));
    ctx.same("links", (stat(&one)?.st_nlink as u64, stat(&two)?.st_nlink as u64), (2, 2));
    Ok(())
}

fn onto_itself(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    ctx.touches("a file", &file, "", || rename(&file, &file))?;
    ctx.touches("a folder", &folder, "", || rename(&folder, &folder))
}

fn links(ctx: &Ctx) -> Done {
    let (file, link) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    ctx.works("from a link", rename(&link, ctx.path("new")));
    ctx.same("target", fs::read_link(ctx.path("new"))?.as_path(), Path::new("file"));
    ctx.works("over a link", rename(&file, ctx.path("new")));
    ctx.holds("no link any more", lstat(ctx.path("new"))?.st_size == 9);
    ctx.fails("the old name", lstat(&file), Errno::NOENT);
    Ok(())
}

fn open_files(ctx: &Ctx) -> Done {
    let (from, to) = (ctx.file("from")?, ctx.path("to"));
    fs::write(&to, "what was there")?;
    let (moved, replaced) = (open(&from, OFlags::RDWR)?, open(&to, OFlags::RDWR)?);
    rename(&from, &to)?;
    ctx.same("links of what was replaced", rustix::fs::fstat(&replaced)?.st_nlink as u64, 0);
    let mut bytes = [0; 32];
    let len = rustix::io::pread(&replaced, &mut bytes, 0)?;
    ctx.same("what was replaced", &bytes[..len], b"what was there".as_slice());
    rustix::io::pwrite(&moved, b"changed!", 0)?;
    ctx.same("what was moved", fs::read(&to)?, b"changed!\n".to_vec());
    Ok(())
}

fn parent(ctx: &Ctx) -> Done {
    let (from, to) = (ctx.folder("from")?, ctx.folder("to")?);
    let moved = ctx.folder("from/moved")?;
    rename(&moved, to.join("moved"))?;
    ctx.same("..", stat(to.join("moved/.."))?.st_ino, stat(&to)?.st_ino);
    ctx.works("the old parent is empty", rustix::fs::rmdir(&from));
    Ok(())
}

fn folder_links(ctx: &Ctx) -> Done {
    let (from, to) = (ctx.folder("from")?, ctx.folder("to")?);
    let moved = ctx.folder("from/moved")?;
    let count = |path: &Path| stat(path).map(|s| s.st_nlink as u64);
    if count(&from)? != 3 {
        return Err(Stop::Unsupported("folders do not count theirs".into()));
    }
    rename(&moved, to.join("moved"))?;
    ctx.same("links", (count(&from)?, count(&to)?), (2, 3));
    mkdir(from.join("other"), mode(0o755))?;
    rename(from.join("other"), to.join("moved"))?;
    ctx.same("links, when one was replaced", (count(&from)?, count(&to)?), (2, 3));
    Ok(())
}

fn times(ctx: &Ctx) -> Done {
    let (from, to) = (ctx.folder("from")?, ctx.folder("to")?);
    let file = ctx.file("from/file")?;
    ctx.touches("moving away", &from, "mc", || rename(&file, to.join("file")))?;
    ctx.touches("moving in", &from, "mc", || rename(to.join("file"), &file))?;
    ctx.touches("moving away", &to, "", || rename(&file, from.join("other")))?;
    ctx.touches("what fails", &from, "", || {
        ctx.fails("nothing there", rename(from.join("none"), to.join("none")), Errno::NOENT);
        Ok(())
    })
}

fn slashes(ctx: &Ctx) -> Done {
    ctx.folder("folder")?;
    ctx.file("file")?;
    ctx.works("a folder", rename(ctx.path("folder/"), ctx.path("new/")));
    ctx.fails("a file from", rename(ctx.path("file/"), ctx.path("new file")), Errno::NOTDIR);
    ctx.fails("a file to", rename(ctx.path("file"), ctx.path("new file/")), Errno::NOTDIR);
    Ok(())
}

fn unwritable_folder(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let (folder, to) = (ctx.folder("folder")?, ctx.folder("to")?);
        chmod(&folder, 0o500)?;
        // The folder's `..` would have to change.
        ctx.fails("another parent", rename(&folder, to.join("folder")), Errno::ACCESS);
        ctx.works("the same parent", rename(&folder, ctx.path("new")));
        Ok(())
    })
}

fn other_file_system(ctx: &Ctx) -> Done {
    let elsewhere = Path::new("/dev/shm");
    if stat(elsewhere)?.st_dev == stat(ctx.dir())?.st_dev {
        return Err(Stop::Unsupported("/dev/shm is the same file system".into()));
    }
    let (file, there) = (ctx.file("file")?, elsewhere.join(format!("claviger-posix-{}", std::process::id())));
    ctx.fails("rename", rename(&file, &there), Errno::XDEV);
    ctx.fails("link", rustix::fs::link(&file, &there), Errno::XDEV);
    ctx.same("size", stat(&file)?.st_size, 9);
    Ok(())
}

/// Whether the file system supports these flags.
fn known(ctx: &Ctx, flags: RenameFlags) -> Done {
    let (one, two) = (ctx.file("known 1")?, ctx.file("known 2")?);
    match rename_with(&one, &two, flags) {
        Err(e @ (Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) => {
            Err(Stop::Unsupported(format!("{flags:?} is {}", name(e))))
        }
        _ => Ok(()),
    }
}

fn noreplace(ctx: &Ctx) -> Done {
    known(ctx, RenameFlags::NOREPLACE)?;
    let from = ctx.file("from")?;
    for (kind, to) in ctx.one_of_each()? {
        ctx.fails(kind, rename_with(&from, &to, RenameFlags::NOREPLACE), Errno::EXIST);
    }
    ctx.fails("itself", rename_with(&from, &from, RenameFlags::NOREPLACE), Errno::EXIST);
    ctx.works("a new name", rename_with(&from, &ctx.path("new"), RenameFlags::NOREPLACE));
    ctx.fails("the old name", rename_with(&from, &ctx.path("2"), RenameFlags::NOREPLACE), Errno::NOENT);
    Ok(())
}

fn exchange(ctx: &Ctx) -> Done {
    known(ctx, RenameFlags::EXCHANGE)?;
    let all = ctx.one_of_each()?;
    ctx.folder("apart")?;
    let apart = ctx.file("apart/file")?;
    for (kind, path) in &all {
        let numbers = |one: &Path, two: &Path| Ok::<_, Errno>((lstat(one)?.st_ino, lstat(two)?.st_ino));
        let before = numbers(&apart, path)?;
        ctx.works(kind, rename_with(&apart, path, RenameFlags::EXCHANGE));
        ctx.same(kind, numbers(path, &apart)?, before);
    }
    ctx.fails("nothing there", rename_with(&apart, &ctx.path("none"), RenameFlags::EXCHANGE), Errno::NOENT);
    let folder = ctx.folder("folder")?;
    let inner = ctx.folder("folder/inner")?;
    ctx.fails("a folder and one in it", rename_with(&folder, &inner, RenameFlags::EXCHANGE), Errno::INVAL);
    ctx.fails("a folder and its parent", rename_with(&inner, &folder, RenameFlags::EXCHANGE), Errno::INVAL);
    let full = ctx.folder("full")?;
    ctx.file("full/file")?;
    ctx.works("two full folders", rename_with(&full, &folder, RenameFlags::EXCHANGE));
    ctx.works("what was in the first", lstat(folder.join("file")));
    ctx.works("what was in the second", lstat(full.join("inner")));
    Ok(())
}

fn bad_flags(ctx: &Ctx) -> Done {
    let (one, two) = (ctx.file("one")?, ctx.file("two")?);
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    ctx.fails("NOREPLACE and EXCHANGE", rename_with(&one, &two, both), Errno::INVAL);
    ctx.fails("flags nobody knows", rename_with(&one, &two, RenameFlags::from_bits_retain(1 << 20)), Errno::INVAL);
    Ok(())
}

fn whiteout(ctx: &Ctx) -> Done {
    let (file, new) = (ctx.file("file")?, ctx.path("new"));
    match rename_with(&file, &new, RenameFlags::WHITEOUT) {
        Err(e @ (Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) => {
            return Err(Stop::Unsupported(format!("WHITEOUT is {}", name(e))));
        }
        done => done?,
    }
    let left = lstat(&file)?;
    ctx.same("what is left", (left.st_mode & 0o170_000, left.st_rdev), (0o020_000, 0));
    ctx.works("the new name", stat(&new));
    Ok(())
}

fn sticky(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    chmod(&folder, 0o1777)?;
    for (name, user) in [("theirs", STRANGER), ("own", PLAIN)] {
        for kind in ["file", "folder", "symlink"] {
            let path = folder.join(format!("{name} {kind}"));
            make(kind, &path)?;
            lchown(&path, user, user)?;
        }
    }
    ctx.as_plain(|| {
        for kind in ["file", "folder", "symlink"] {
            let (own, theirs) = (folder.join(format!("own {kind}")), folder.join(format!("theirs {kind}")));
            ctx.fails(format_args!("away: {kind}"), rename(&theirs, ctx.path("new")), Errno::PERM);
            ctx.fails(format_args!("over: {kind}"), rename(&own, &theirs), Errno::PERM);
            ctx.works(format_args!("own: {kind}"), rename(&own, folder.join("new")));
            ctx.works(format_args!("own, away: {kind}"), rename(folder.join("new"), ctx.path(&format!("new {kind}"))));
        }
        ctx.works("a new link", symlink("x", folder.join("link")));
        Ok(())
    })
}

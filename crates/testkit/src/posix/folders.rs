//! mkdir(2), rmdir(2), and reading folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{Dir, FileType, OFlags, fstat, lstat, mkdir, rmdir, stat, unlink};
use rustix::io::Errno;
use rustix::process::umask;

use super::Case;
use super::context::{Ctx, Done, PLAIN, STRANGER, Stop, chmod, chown, creat, mode, open};

/// More names than a system reads at once or a block of a folder holds.
const MANY: usize = 5000;

pub(super) const CASES: &[Case] = &[
    Case::anyone("mkdir: mode, owner, links and what is in it", new_folder),
    Case::anyone("mkdir: times of the folder around it", mkdir_times),
    Case::anyone("mkdir: with a slash behind the name, and over a link to nowhere", mkdir_names),
    Case::anyone("rmdir: an empty one goes, a full one stays", rmdir_empty),
    Case::anyone("rmdir: only folders", rmdir_others),
    Case::anyone("rmdir: times of the folder around it", rmdir_times),
    Case::anyone("rmdir: a folder that is open", rmdir_open),
    Case::anyone("rmdir: one that may not be entered", rmdir_shut),
    Case::root("rmdir: in a sticky folder only what is one's own", rmdir_sticky),
    Case::anyone("folders: the number of links counts folders in them", links),
    Case::anyone("readdir: lists dots, names, numbers and kinds", lists),
    Case::anyone("readdir: sees what came and went after a rewind", rewinds),
    Case::anyone("readdir: thousands of names, each once", many),
    Case::anyone("readdir: what is there all the time is listed once, whatever else is removed", removed_meanwhile),
    Case::anyone("readdir: goes on from any place that it named", seeks),
    Case::anyone("readdir: sets the time of access only", reading_times),
];

fn new_folder(ctx: &Ctx) -> Done {
    for (bits, mask, expected) in [(0o755, 0, 0o755), (0o777, 0o027, 0o750), (0, 0, 0), (0o1777, 0, 0o1777)] {
        let path = ctx.path(&format!("{bits:o}"));
        umask(mode(mask));
        let made = mkdir(&path, mode(bits));
        umask(mode(0));
        made?;
        ctx.mode_is(format_args!("{bits:o}"), &path, expected);
        let stat = lstat(&path)?;
        ctx.same("kind", FileType::from_raw_mode(stat.st_mode), FileType::Directory);
        ctx.same("owner", stat.st_uid, rustix::process::geteuid().as_raw());
    }
    ctx.same("entries", fs::read_dir(ctx.path("755"))?.count(), 0);
    ctx.same("its parent", stat(ctx.path("755/.."))?.st_ino, stat(ctx.dir())?.st_ino);
    Ok(())
}

fn mkdir_times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.touches("mkdir", &folder, "mc", || mkdir(folder.join("new"), mode(0o755)))?;
    ctx.touches("what fails", &folder, "", || {
        ctx.fails("mkdir", mkdir(folder.join("new"), mode(0o755)), Errno::EXIST);
        Ok(())
    })
}

fn mkdir_names(ctx: &Ctx) -> Done {
    ctx.works("a slash", mkdir(ctx.path("folder/"), mode(0o755)));
    ctx.symlink("link", "missing")?;
    ctx.fails("a link to nowhere", mkdir(ctx.path("link"), mode(0o755)), Errno::EXIST);
    ctx.fails("the root", mkdir("/", mode(0o755)), Errno::EXIST);
    Ok(())
}

fn rmdir_empty(ctx: &Ctx) -> Done {
    let (folder, file) = (ctx.folder("folder")?, ctx.file("folder/file")?);
    ctx.fails_with("a full one", rmdir(&folder), &[Errno::NOTEMPTY, Errno::EXIST]);
    unlink(&file)?;
    ctx.symlink("folder/link", "x")?;
    ctx.fails_with("one with a link", rmdir(&folder), &[Errno::NOTEMPTY, Errno::EXIST]);
    unlink(ctx.path("folder/link"))?;
    ctx.works("an empty one", rmdir(&folder));
    ctx.fails("once more", rmdir(&folder), Errno::NOENT);
    Ok(())
}

fn rmdir_others(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        if kind != "folder" {
            ctx.fails(kind, rmdir(&path), Errno::NOTDIR);
        }
    }
    let link = ctx.symlink("link", "a folder")?;
    ctx.fails("a link to a folder", rmdir(&link), Errno::NOTDIR);
    ctx.works("a slash", rmdir(ctx.path("a folder/")));
    Ok(())
}

fn rmdir_times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    mkdir(folder.join("inner"), mode(0o755))?;
    ctx.touches("rmdir", &folder, "mc", || rmdir(folder.join("inner")))?;
    ctx.touches("what fails", &folder, "", || {
        ctx.fails("rmdir", rmdir(folder.join("inner")), Errno::NOENT);
        Ok(())
    })
}

fn rmdir_open(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    let fd = open(&folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
    ctx.works("rmdir", rmdir(&folder));
    ctx.same("links", fstat(&fd)?.st_nlink as u64, 0);
    let within = rustix::fs::openat(&fd, "new", OFlags::CREATE | OFlags::WRONLY, mode(0o644));
    ctx.fails("a file in it", within, Errno::NOENT);
    ctx.fails("a folder in it", rustix::fs::mkdirat(&fd, "new", mode(0o755)), Errno::NOENT);
    ctx.same("names", names(&fd)?.len(), 0);
    Ok(())
}

fn rmdir_shut(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let folder = ctx.folder("folder")?;
        chmod(&folder, 0)?;
        ctx.works("rmdir", rmdir(&folder));
        Ok(())
    })
}

fn rmdir_sticky(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    chmod(&folder, 0o1777)?;
    for (name, user) in [("own", PLAIN), ("theirs", STRANGER)] {
        mkdir(folder.join(name), mode(0o777))?;
        chown(&folder.join(name), user, user)?;
    }
    ctx.as_plain(|| {
        ctx.fails("theirs", rmdir(folder.join("theirs")), Errno::PERM);
        ctx.works("own", rmdir(folder.join("own")));
        Ok(())
    })
}

fn links(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    let count = || stat(&folder).map(|s| s.st_nlink as u64);
    if count()? != 2 {
        return Err(Stop::Unsupported("folders do not count theirs".into()));
    }
    for i in 0..5 {
        mkdir(folder.join(i.to_string()), mode(0o755))?;
    }
    ctx.file("folder/file")?;
    ctx.same("with five", count(), Ok(7));
    rmdir(folder.join("3"))?;
    ctx.same("with four", count(), Ok(6));
    Ok(())
}

/// The names in a folder in the order of reading, without dots.
fn names(fd: impl std::os::fd::AsFd) -> rustix::io::Result<Vec<String>> {
    let all = Dir::read_from(fd)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    all.filter(|name| !matches!(name.as_deref(), Ok("." | ".."))).collect()
}

fn listing(dir: &Path) -> rustix::io::Result<Vec<String>> {
    names(open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?)
}

fn lists(ctx: &Ctx) -> Done {
    let all = ctx.one_of_each()?;
    let fd = open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut seen = BTreeSet::new();
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let stat = lstat(ctx.path(&name))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        ctx.holds(format_args!("the kind of {name}"), [kind, FileType::Unknown].contains(&entry.file_type()));
        if name != ".." {
            ctx.same(format_args!("the number of {name}"), entry.ino(), stat.st_ino);
        }
        ctx.holds(format_args!("{name} comes once"), seen.insert(name.clone()));
    }
    let paths = all.iter().map(|(_, path)| super::context::show(path));
    ctx.same("names", seen, paths.chain([".".into(), "..".into()]).collect());
    Ok(())
}

fn rewinds(ctx: &Ctx) -> Done {
    ctx.file("one")?;
    let mut dir = Dir::read_from(open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY)?)?;
    ctx.same("entries", dir.by_ref().count(), 3);
    ctx.file("two")?;
    unlink(ctx.path("one"))?;
    dir.rewind();
    let mut all =
        dir.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect::<rustix::io::Result<Vec<_>>>()?;
    all.sort();
    ctx.same("names", all, vec![".".into(), "..".into(), "two".into()]);
    Ok(())
}

fn numbered(i: usize) -> String {
    format!("{i:05} {}", "n".repeat(i % 60))
}

fn fill(dir: &Path) -> Done {
    for i in 0..MANY {
        creat(&dir.join(numbered(i)), 0o644)?;
    }
    Ok(())
}

fn many(ctx: &Ctx) -> Done {
    fill(ctx.dir())?;
    let mut seen = listing(ctx.dir())?;
    seen.sort();
    ctx.holds("all names, each once", seen.iter().eq((0..MANY).map(numbered).collect::<Vec<_>>().iter()));
    for i in 0..MANY {
        unlink(ctx.path(&numbered(i)))?;
    }
    ctx.same("names left", listing(ctx.dir())?, Vec::new());
    Ok(())
}

fn removed_meanwhile(ctx: &Ctx) -> Done {
    fill(ctx.dir())?;
    let (mut left, mut count) = (Vec::new(), 0);
    for entry in Dir::read_from(open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY)?)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        // Every second name is removed as soon as it is read, as by `rm -r`.
        count += 1;
        if count % 2 == 0 {
            unlink(ctx.path(&name))?;
        } else {
            left.push(name);
        }
    }
    ctx.same("names read", count, MANY);
    let mut seen = listing(ctx.dir())?;
    left.sort();
    seen.sort();
    ctx.holds("those that were not removed are left", left == seen);
    Ok(())
}

fn seeks(ctx: &Ctx) -> Done {
    for i in 0..500 {
        creat(&ctx.path(&numbered(i)), 0o644)?;
    }
    let mut dir = Dir::read_from(open(ctx.dir(), OFlags::RDONLY | OFlags::DIRECTORY)?)?;
    let mut all = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry?;
        // The position after this entry, where the next one begins.
        all.push((entry.file_name().to_owned(), entry.offset()));
    }
    for i in [0, 1, 250, 100, 499, 7, all.len() - 2] {
        dir.seek(all[i].1)?;
        let next = dir.read().transpose()?.map(|entry| entry.file_name().to_owned());
        ctx.same(format_args!("what follows entry {i}"), next.as_ref(), Some(&all[i + 1].0));
    }
    dir.seek(all[all.len() - 1].1)?;
    ctx.holds("the end", dir.read().is_none());
    Ok(())
}

fn reading_times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.file("folder/file")?;
    ctx.touches("reading", &folder, "", || listing(&folder))?;
    ctx.touches("looking a name up", &folder, "", || stat(folder.join("file")))
}

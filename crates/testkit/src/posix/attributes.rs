//! chmod(2), chown(2) and utimensat(2).

use std::fs;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens, lstat, stat, utimensat,
};
use rustix::io::{Errno, read, write};

use super::Case;
use super::context::{
    Ctx, Done, NOW, PLAIN, STRANGER, accessed, changed, chmod, chown, lchown, mode, modified, open, second_group,
    utimens,
};

pub(super) const CASES: &[Case] = &[
    Case::anyone("chmod: all twelve bits, of every kind", all_bits),
    Case::anyone("chmod: follows links", chmod_follows),
    Case::anyone("chmod: by descriptor, also one that only reads", by_descriptor),
    Case::anyone("chmod: sets the time of change only", chmod_times),
    Case::root("chmod: of what is another's is EPERM", chmod_others),
    Case::root("chmod: the set-group-id bit goes where the group is not one's own", foreign_group),
    Case::anyone("chown: to oneself, and to a second group", to_own),
    Case::root("chown: root gives to anybody", to_anybody),
    Case::root("chown: who is not root gives nothing away", not_away),
    Case::root("chown: follows links, lchown does not", chown_links),
    Case::anyone("chown: sets the time of change", chown_times),
    Case::anyone("chown: clears the set-id bits of a file", chown_clears),
    Case::root("chown: clears them for root, too, and leaves folders alone", chown_clears_for_root),
    Case::anyone("write: clears the set-id bits for those who are not root", write_clears),
    Case::root("write: by root leaves the set-id bits", write_by_root),
    Case::anyone("utimensat: sets what it is told, to the nanosecond", exact_times),
    Case::anyone("utimensat: one of both, now, or neither", some_times),
    Case::anyone("utimensat: follows links, or not", times_of_links),
    Case::anyone("utimensat: of folders, fifos, and by descriptor", times_of_kinds),
    Case::anyone("utimensat: times before 1970 and after 2038", far_times),
    Case::anyone("utimensat: no such nanoseconds", bad_times),
    Case::root("utimensat: of what is another's", times_of_others),
    Case::anyone("times: of reading and writing", data_times),
];

fn all_bits(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()?.iter().filter(|(kind, _)| *kind != "symlink") {
        for bits in [0, 0o644, 0o111, 0o777, 0o1777, 0o2755, 0o4755, 0o7000, 0o7777] {
            ctx.works(format_args!("{kind} {bits:o}"), chmod(path, bits));
            ctx.mode_is(format_args!("{kind}"), path, bits);
        }
        chmod(path, 0o755)?;
    }
    Ok(())
}

fn chmod_follows(ctx: &Ctx) -> Done {
    let (file, link) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    chmod(&link, 0o604)?;
    ctx.mode_is("the file", &file, 0o604);
    ctx.holds("the link is one", FileType::from_raw_mode(lstat(&link)?.st_mode).is_symlink());
    Ok(())
}

fn by_descriptor(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    for flags in [OFlags::RDONLY, OFlags::RDWR] {
        let fd = open(&file, flags)?;
        ctx.works("fchmod", fchmod(&fd, mode(0o751)));
        ctx.mode_is("mode", &file, 0o751);
        chmod(&file, 0o644)?;
        ctx.same("what the descriptor sees", rustix::fs::fstat(&fd)?.st_mode & 0o7777, 0o644);
    }
    ctx.fails("a path only", fchmod(open(&file, OFlags::PATH)?, mode(0)), Errno::BADF);
    Ok(())
}

fn chmod_times(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    ctx.touches("chmod", &file, "c", || chmod(&file, 0o600))?;
    ctx.touches("chmod", &folder, "c", || chmod(&folder, 0o700))
}

fn chmod_others(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    chmod(&file, 0o666)?;
    chown(&file, STRANGER, PLAIN)?;
    ctx.as_plain(|| {
        ctx.fails("a file", chmod(&file, 0o777), Errno::PERM);
        ctx.fails("by descriptor", fchmod(open(&file, OFlags::RDWR)?, mode(0o777)), Errno::PERM);
        ctx.fails("a folder", chmod(&folder, 0o777), Errno::PERM);
        Ok(())
    })?;
    ctx.mode_is("the file", &file, 0o666);
    Ok(())
}

fn foreign_group(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    chown(&file, PLAIN, STRANGER)?;
    chown(&folder, PLAIN, STRANGER)?;
    ctx.as_plain(|| {
        ctx.works("chmod", chmod(&file, 0o6755));
        ctx.mode_is("a file", &file, 0o4755);
        ctx.works("chmod of a folder", chmod(&folder, 0o2755));
        ctx.mode_is("a folder", &folder, 0o755);
        Ok(())
    })?;
    chown(&file, PLAIN, second_group(PLAIN))?;
    ctx.as_plain(|| {
        ctx.works("chmod", chmod(&file, 0o2755));
        ctx.mode_is("a file of the second group", &file, 0o2755);
        Ok(())
    })
}

fn owner(path: &Path) -> rustix::io::Result<(u32, u32)> {
    lstat(path).map(|s| (s.st_uid, s.st_gid))
}

fn to_own(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let (file, me) = (ctx.file("file")?, ctx.plain());
        ctx.works("nobody", chown(&file, None, None));
        ctx.works("oneself", chown(&file, me, None));
        ctx.fails("root", chown(&file, 0, None), Errno::PERM);
        let groups = rustix::process::getgroups()?;
        for group in groups.iter().map(|group| group.as_raw()) {
            ctx.works("one's group", chown(&file, None, group));
            ctx.same("owner", owner(&file), Ok((me, group)));
        }
        ctx.fails("root's group", chown(&file, None, 0), if me == 0 { Errno::INVAL } else { Errno::PERM });
        Ok(())
    })
}

fn to_anybody(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        ctx.works(kind, lchown(&path, PLAIN, STRANGER));
        ctx.same(kind, owner(&path), Ok((PLAIN, STRANGER)));
        ctx.works(kind, lchown(&path, None, PLAIN));
        ctx.same(kind, owner(&path), Ok((PLAIN, PLAIN)));
        ctx.works(kind, lchown(&path, 3_000_000_000, 4_000_000_000));
        ctx.same(kind, owner(&path), Ok((3_000_000_000, 4_000_000_000)));
    }
    Ok(())
}

fn not_away(ctx: &Ctx) -> Done {
    let theirs = ctx.file("theirs")?;
    ctx.as_plain(|| {
        let own = ctx.file("own")?;
        ctx.fails("own file", chown(&own, STRANGER, None), Errno::PERM);
        ctx.fails("own file's group", chown(&own, None, STRANGER), Errno::PERM);
        ctx.fails("another's file", chown(&theirs, PLAIN, None), Errno::PERM);
        ctx.fails("another's group", chown(&theirs, None, PLAIN), Errno::PERM);
        ctx.same("own", owner(&own), Ok((PLAIN, PLAIN)));
        Ok(())
    })?;
    ctx.same("theirs", owner(&theirs), Ok((0, 0)));
    Ok(())
}

fn chown_links(ctx: &Ctx) -> Done {
    let (file, link) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    chown(&link, PLAIN, PLAIN)?;
    ctx.same("chown", (owner(&file), owner(&link)), (Ok((PLAIN, PLAIN)), Ok((0, 0))));
    lchown(&link, STRANGER, STRANGER)?;
    ctx.same("lchown", (owner(&file), owner(&link)), (Ok((PLAIN, PLAIN)), Ok((STRANGER, STRANGER))));
    Ok(())
}

fn chown_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let (me, _) = owner(&file)?;
    ctx.touches("chown", &file, "c", || chown(&file, me, None))
}

fn chown_clears(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let (file, me) = (ctx.file("file")?, ctx.plain());
        for (before, after) in [(0o6755, 0o755), (0o4644, 0o644), (0o2755, 0o755)] {
            chmod(&file, before)?;
            chown(&file, me, None)?;
            ctx.mode_is(format_args!("{before:o}"), &file, after);
        }
        Ok(())
    })
}

fn chown_clears_for_root(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    chmod(&file, 0o6755)?;
    chmod(&folder, 0o6755)?;
    chown(&file, PLAIN, PLAIN)?;
    chown(&folder, PLAIN, PLAIN)?;
    ctx.mode_is("a file", &file, 0o755);
    ctx.mode_is("a folder", &folder, 0o6755);
    // Without the group's execute permission, the bit requests mandatory locks, not a group (chown(2)).
    chmod(&file, 0o2644)?;
    chown(&file, STRANGER, PLAIN)?;
    ctx.mode_is("a file of mandatory locks", &file, 0o2644);
    Ok(())
}

fn write_clears(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        for (before, after) in [(0o6777, 0o777), (0o4755, 0o755), (0o2711, 0o711)] {
            chmod(&file, before)?;
            let fd = open(&file, OFlags::WRONLY)?;
            ctx.mode_is(format_args!("{before:o}, opened"), &file, before);
            write(fd, b"x")?;
            ctx.mode_is(format_args!("{before:o}, written"), &file, after);
        }
        Ok(())
    })
}

fn write_by_root(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    chmod(&file, 0o6755)?;
    write(open(&file, OFlags::WRONLY)?, b"x")?;
    ctx.mode_is("mode", &file, 0o6755);
    Ok(())
}

const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };

fn both(access: Timespec, modification: Timespec) -> Timestamps {
    Timestamps { last_access: access, last_modification: modification }
}

fn at(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: seconds as _, tv_nsec: nanoseconds as _ }
}

fn exact_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let before = stat(&file)?;
    ctx.tick()?;
    for (access, modification) in [((1_000_000_000, 123_456_789), (1_234_567_890, 987_654_321)), ((0, 0), (1, 1))] {
        utimens(&file, &both(at(access.0, access.1), at(modification.0, modification.1)))?;
        let stat = stat(&file)?;
        ctx.same("times", (accessed(stat), modified(stat)), (access, modification));
        ctx.holds("the time of change is now", changed(stat) > changed(before));
    }
    Ok(())
}

fn some_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    utimens(&file, &both(at(1000, 1), at(2000, 2)))?;
    utimens(&file, &both(at(3000, 3), OMIT))?;
    ctx.same("access", (accessed(stat(&file)?), modified(stat(&file)?)), ((3000, 3), (2000, 2)));
    utimens(&file, &both(OMIT, at(4000, 4)))?;
    ctx.same("modification", (accessed(stat(&file)?), modified(stat(&file)?)), ((3000, 3), (4000, 4)));
    ctx.touches("neither", &file, "", || utimens(&file, &both(OMIT, OMIT)))?;
    utimens(&file, &both(NOW, OMIT))?;
    let stat = stat(&file)?;
    ctx.holds("access is now", accessed(stat) >= changed(stat) && modified(stat) == (4000, 4));
    ctx.touches("both now", &file, "amc", || utimens(&file, &both(NOW, NOW)))
}

fn times_of_links(ctx: &Ctx) -> Done {
    let (file, link) = (ctx.file("file")?, ctx.symlink("link", "file")?);
    utimens(&link, &both(at(1000, 0), at(2000, 0)))?;
    ctx.same("the file", modified(stat(&file)?), (2000, 0));
    ctx.holds("not the link", modified(lstat(&link)?) != (2000, 0));
    utimensat(CWD, &link, &both(at(3000, 0), at(4000, 5)), AtFlags::SYMLINK_NOFOLLOW)?;
    ctx.same("the link", modified(lstat(&link)?), (4000, 5));
    ctx.same("not the file", modified(stat(&file)?), (2000, 0));
    Ok(())
}

fn times_of_kinds(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()?.iter().filter(|(kind, _)| *kind != "symlink") {
        ctx.works(kind, utimens(path, &both(at(1000, 7), at(2000, 8))));
        ctx.same(kind, modified(stat(path)?), (2000, 8));
    }
    let fd = open(&ctx.path("a file"), OFlags::RDONLY)?;
    ctx.works("futimens", futimens(&fd, &both(at(5000, 0), at(6000, 0))));
    ctx.same("by descriptor", modified(stat(ctx.path("a file"))?), (6000, 0));
    Ok(())
}

fn far_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    for seconds in [-1, -1_000_000_000, i64::from(i32::MAX) + 1, 4_294_967_296] {
        utimens(&file, &both(at(seconds, 5), at(seconds, 6)))?;
        ctx.same("times", (accessed(stat(&file)?), modified(stat(&file)?)), ((seconds, 5), (seconds, 6)));
    }
    Ok(())
}

fn bad_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.fails("a whole second", utimens(&file, &both(at(1, 1_000_000_000), at(1, 0))), Errno::INVAL);
    ctx.fails("negative", utimens(&file, &both(at(1, 0), at(1, -1))), Errno::INVAL);
    Ok(())
}

fn times_of_others(ctx: &Ctx) -> Done {
    let (writable, readable) = (ctx.file("writable")?, ctx.file("readable")?);
    chmod(&writable, 0o666)?;
    ctx.as_plain(|| {
        ctx.works("now, of what one may write", utimens(&writable, &both(NOW, NOW)));
        ctx.fails("now, of what one may not", utimens(&readable, &both(NOW, NOW)), Errno::ACCESS);
        for path in [&writable, &readable] {
            ctx.fails("a time", utimens(path, &both(at(1, 0), at(1, 0))), Errno::PERM);
            ctx.fails("one now, one a time", utimens(path, &both(NOW, at(1, 0))), Errno::PERM);
            ctx.works("neither", utimens(path, &both(OMIT, OMIT)));
        }
        Ok(())
    })
}

fn data_times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    let fd = open(&file, OFlags::RDWR)?;
    ctx.touches("write", &file, "mc", || write(&fd, b"changed"))?;
    ctx.touches("nothing written", &file, "", || write(&fd, b""))?;
    // With `relatime`, the first access after a change counts (mount(8)).
    ctx.touches("read", &file, "a", || read(open(&file, OFlags::RDONLY)?, &mut [0; 4]))?;
    ctx.touches("stat", &file, "", || stat(&file))?;
    ctx.touches("open and close", &file, "", || open(&file, OFlags::RDWR))?;
    fs::read(&file)?;
    Ok(())
}

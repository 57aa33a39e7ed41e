//! truncate(2) and ftruncate(2).

use std::fs;
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, stat};
use rustix::io::Errno;

use super::Case;
use super::context::{Ctx, Done, Stop, chmod, make, open};
use super::sys::{ftruncate, truncate};

pub(super) const CASES: &[Case] = &[
    Case::anyone("truncate: shorter, longer with zeros, and cut again", lengths),
    Case::anyone("truncate: what was cut off does not come back", cut_is_gone),
    Case::anyone("truncate: sets the times of modification and change", times),
    Case::anyone("truncate: what cannot be cut", refused),
    Case::anyone("truncate: more than a file may have is EFBIG", too_long),
    Case::anyone("truncate: needs the permission to write", permission),
    Case::anyone("truncate: a descriptor that writes may cut what it may not open again", by_descriptor),
    Case::anyone("truncate: clears the set-id bits for those who are not root", clears_set_id),
    Case::anyone("truncate: far beyond the end is sparse", sparse),
];

fn lengths(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    for len in [4, 100_000, 5000, 0, 1] {
        ctx.works(len, truncate(&file, len));
        ctx.same("size", stat(&file)?.st_size, len);
        ctx.same("bytes", fs::read(&file)?.len() as i64, len);
        let fd = open(&file, OFlags::RDWR)?;
        ctx.works(len + 7, ftruncate(&fd, len + 7));
        ctx.same("size by descriptor", stat(&file)?.st_size, len + 7);
    }
    Ok(())
}

fn cut_is_gone(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![0x55; 20_000])?;
    for len in [10_001, 4096, 1, 0] {
        truncate(&path, len)?;
        truncate(&path, 20_000)?;
        let seen = fs::read(&path)?;
        ctx.holds(format_args!("zeros from {len}"), seen[len as usize..].iter().all(|&byte| byte == 0));
        ctx.holds(format_args!("bytes before {len}"), seen[..len as usize].iter().all(|&byte| byte == 0x55));
        fs::write(&path, vec![0x55; 20_000])?;
    }
    Ok(())
}

fn times(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.touches("cutting", &file, "mc", || truncate(&file, 3))?;
    ctx.touches("lengthening", &file, "mc", || truncate(&file, 30))?;
    // Unlike POSIX, Linux updates the times even if the length stays (truncate(2)); this test leaves that case open.
    let fd = open(&file, OFlags::RDWR)?;
    ctx.touches("cutting by descriptor", &file, "mc", || ftruncate(&fd, 2))?;
    ctx.touches("what fails", &file, "", || {
        ctx.fails("a negative length", ftruncate(&fd, -1), Errno::INVAL);
        Ok(())
    })
}

fn refused(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.fails("a negative length", truncate(&file, -1), Errno::INVAL);
    ctx.fails("a folder", truncate(&ctx.folder("folder")?, 0), Errno::ISDIR);
    make("fifo", &ctx.path("fifo"))?;
    ctx.fails("a fifo", truncate(&ctx.path("fifo"), 0), Errno::INVAL);
    ctx.fails("by a descriptor that reads", ftruncate(open(&file, OFlags::RDONLY)?, 0), Errno::INVAL);
    ctx.same("size", stat(&file)?.st_size, 9);
    Ok(())
}

fn too_long(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    match truncate(&file, i64::MAX) {
        Ok(()) => return Err(Stop::Unsupported("files may have any length".into())),
        done => ctx.fails_with("the largest number", done, &[Errno::FBIG, Errno::INVAL]),
    }
    ctx.same("size", stat(&file)?.st_size, 9);
    Ok(())
}

fn permission(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        chmod(&file, 0o444)?;
        ctx.fails("mode 444", truncate(&file, 0), Errno::ACCESS);
        chmod(&file, 0o200)?;
        ctx.works("mode 200", truncate(&file, 0));
        Ok(())
    })
}

fn by_descriptor(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        let fd = open(&file, OFlags::RDWR)?;
        chmod(&file, 0)?;
        ctx.works("ftruncate", ftruncate(&fd, 3));
        ctx.fails("truncate", truncate(&file, 0), Errno::ACCESS);
        ctx.same("size", stat(&file)?.st_size, 3);
        Ok(())
    })
}

fn clears_set_id(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let file = ctx.file("file")?;
        for (before, after) in [(0o6755, 0o755), (0o4711, 0o711), (0o2755, 0o755)] {
            chmod(&file, before)?;
            truncate(&file, 3)?;
            ctx.mode_is(format_args!("{before:o}"), &file, after);
        }
        Ok(())
    })
}

fn sparse(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, b"start")?;
    let len = 3 << 30;
    truncate(&path, len)?;
    let stat = stat(&path)?;
    ctx.same("size", stat.st_size, len);
    ctx.holds("little is stored", stat.st_blocks < 2048);
    let file = fs::File::options().read(true).write(true).open(&path)?;
    file.write_all_at(b"end", len as u64 - 3)?;
    let mut bytes = [0xee; 8];
    file.read_exact_at(&mut bytes, len as u64 - 8)?;
    ctx.same("the end", &bytes, b"\0\0\0\0\0end");
    Ok(())
}

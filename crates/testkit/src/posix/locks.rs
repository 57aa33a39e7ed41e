//! flock(2), and locks of bytes (fcntl(2)).

use libc::{F_RDLCK, F_UNLCK, F_WRLCK};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::Case;
use super::context::{Ctx, Done, chmod, open};
use super::sys::{Holder, lock, lock_in_the_way};

pub(super) const CASES: &[Case] = &[
    Case::anyone("flock: readers share, a writer is alone", whole_files),
    Case::anyone("flock: changes from one kind to the other", changes),
    Case::anyone("flock: belongs to the open file, and goes with its last descriptor", belongs),
    Case::anyone("flock: of folders, and by descriptors that only read", of_others),
    Case::anyone("fcntl: locks of bytes are in each other's way only where they meet", ranges),
    Case::anyone("fcntl: who asks is told what is in the way", asked),
    Case::anyone("fcntl: parts are given back", parts),
    Case::anyone("fcntl: a process loses its locks with any descriptor of the file", with_any_descriptor),
    Case::anyone("fcntl: a lock to read needs a descriptor that reads, and so on", directions),
];

const SHARED: FlockOperation = FlockOperation::NonBlockingLockShared;
const ALONE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

fn whole_files(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let fd = || open(&path, OFlags::RDWR);
    let (one, two, three) = (fd()?, fd()?, fd()?);
    ctx.works("first reader", flock(&one, SHARED));
    ctx.works("second reader", flock(&two, SHARED));
    ctx.fails("a writer beside readers", flock(&three, ALONE), Errno::AGAIN);
    flock(&one, FlockOperation::Unlock)?;
    flock(&two, FlockOperation::Unlock)?;
    ctx.works("a writer", flock(&three, ALONE));
    ctx.fails("a reader beside a writer", flock(&one, SHARED), Errno::AGAIN);
    ctx.fails("a second writer", flock(&two, ALONE), Errno::AGAIN);
    Ok(())
}

fn changes(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    ctx.works("alone", flock(&one, ALONE));
    ctx.works("shared then", flock(&one, SHARED));
    ctx.works("another reader", flock(&two, SHARED));
    ctx.fails("alone again", flock(&one, ALONE), Errno::AGAIN);
    Ok(())
}

fn belongs(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    let copy = one.try_clone()?;
    flock(&one, ALONE)?;
    ctx.works("again, by a copy", flock(&copy, ALONE));
    drop(open(&path, OFlags::RDWR)?);
    drop(one);
    ctx.fails("with the copy open", flock(&two, ALONE), Errno::AGAIN);
    drop(copy);
    ctx.works("with none open", flock(&two, ALONE));
    Ok(())
}

fn of_others(ctx: &Ctx) -> Done {
    let (folder, file) = (ctx.folder("folder")?, ctx.file("file")?);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let (one, two) = (open(&folder, flags)?, open(&folder, flags)?);
    ctx.works("a folder", flock(&one, ALONE));
    ctx.fails("the folder once more", flock(&two, SHARED), Errno::AGAIN);
    chmod(&file, 0o444)?;
    ctx.works("by one that reads", flock(open(&file, OFlags::RDONLY)?, ALONE));
    Ok(())
}

fn ranges(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    // Both kinds of locks conflict with each other, too.
    for (holder, other) in [(Holder::OpenFile, Holder::OpenFile), (Holder::Process, Holder::OpenFile)] {
        lock(&one, holder, F_WRLCK, 10, 10)?;
        ctx.fails_with("the middle", lock(&two, other, F_WRLCK, 15, 1), &[Errno::AGAIN, Errno::ACCESS]);
        ctx.fails_with("to read", lock(&two, other, F_RDLCK, 0, 0), &[Errno::AGAIN, Errno::ACCESS]);
        ctx.works("before it", lock(&two, other, F_WRLCK, 0, 10));
        ctx.works("behind it", lock(&two, other, F_WRLCK, 20, 0));
        ctx.works("far beyond the file", lock(&two, other, F_WRLCK, 1 << 40, 1));
        lock(&one, holder, F_RDLCK, 10, 10)?;
        ctx.works("readers share", lock(&two, other, F_RDLCK, 12, 3));
        lock(&one, holder, F_UNLCK, 0, 0)?;
        lock(&two, other, F_UNLCK, 0, 0)?;
        ctx.works("when it is gone", lock(&two, other, F_WRLCK, 0, 0));
        lock(&two, other, F_UNLCK, 0, 0)?;
    }
    Ok(())
}

fn asked(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    lock(&one, Holder::OpenFile, F_WRLCK, 100, 50)?;
    ctx.same("in the way", lock_in_the_way(&two, F_RDLCK, 120, 1), Ok((F_WRLCK, 100)));
    ctx.same("nothing in the way", lock_in_the_way(&two, F_WRLCK, 0, 100).map(|(kind, _)| kind), Ok(F_UNLCK));
    ctx.same("not in its own", lock_in_the_way(&one, F_WRLCK, 100, 50).map(|(kind, _)| kind), Ok(F_UNLCK));
    Ok(())
}

fn parts(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    lock(&one, Holder::OpenFile, F_WRLCK, 0, 100)?;
    lock(&one, Holder::OpenFile, F_UNLCK, 40, 20)?;
    ctx.works("the part", lock(&two, Holder::OpenFile, F_WRLCK, 40, 20));
    for start in [39, 60] {
        let taken = lock(&two, Holder::OpenFile, F_WRLCK, start, 1);
        ctx.fails_with(format_args!("byte {start}"), taken, &[Errno::AGAIN, Errno::ACCESS]);
    }
    Ok(())
}

fn with_any_descriptor(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, other) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    lock(&one, Holder::Process, F_WRLCK, 0, 0)?;
    let taken = lock(&other, Holder::OpenFile, F_WRLCK, 0, 0);
    ctx.fails_with("held", taken, &[Errno::AGAIN, Errno::ACCESS]);
    drop(open(&path, OFlags::RDONLY)?);
    ctx.works("after another descriptor was closed", lock(&other, Holder::OpenFile, F_WRLCK, 0, 0));
    Ok(())
}

fn directions(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (reads, writes) = (open(&path, OFlags::RDONLY)?, open(&path, OFlags::WRONLY)?);
    ctx.fails("to write, by one that reads", lock(&reads, Holder::Process, F_WRLCK, 0, 1), Errno::BADF);
    ctx.fails("to read, by one that writes", lock(&writes, Holder::Process, F_RDLCK, 0, 1), Errno::BADF);
    Ok(())
}

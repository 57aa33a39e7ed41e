//! Contents of files: reading, writing, holes, mappings and durability.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, fsync, seek, stat, statvfs};
use rustix::io::{Errno, pread, pwrite, read, write};

use super::Case;
use super::context::{Ctx, Done, Stop, chmod, make, name, open};
use super::sys::{Mapped, truncate};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case::anyone("data: what is written is read, at odd places and lengths", odd_places),
    Case::anyone("data: one descriptor sees at once what another wrote", seen_at_once),
    Case::anyone("data: the end of a file, and beyond it", the_end),
    Case::anyone("data: a gap is zeros", gaps),
    Case::anyone("data: places that are none", bad_places),
    Case::anyone("data: two descriptors have two places, copies of one have one", places),
    Case::anyone("data: O_DIRECT, where there is such a thing", direct),
    Case::anyone("mmap: shared changes are in the file, and the file's in the mapping", shared),
    Case::anyone("mmap: private changes are not", private),
    Case::anyone("mmap: lives on without a name and without a descriptor", mapped_and_removed),
    Case::anyone("mmap: sets the times", mapped_times),
    Case::anyone("fsync: of files and folders", syncs),
    Case::anyone("fallocate: room, with and without a new size", allocates),
    Case::anyone("fallocate: holes", punches),
    Case::anyone("fallocate: zeros", zeros),
    Case::anyone("lseek: data and holes", data_and_holes),
    Case::anyone("copy_file_range: copies", copies),
    Case::anyone("statvfs: says what is so", says),
];

fn odd_places(ctx: &Ctx) -> Done {
    let (path, mut random) = (ctx.path("file"), Random::new(1));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    let mut expected = vec![0; 300_000];
    file.write_all_at(&expected, 0)?;
    for _ in 0..100 {
        let (at, len) = (random.below(290_000), random.below(10_000));
        let bytes = random.bytes(len);
        file.write_all_at(&bytes, at as u64)?;
        expected[at..at + len].copy_from_slice(&bytes);
        let (at, len) = (random.below(290_000), random.below(10_000));
        let mut seen = vec![0; len];
        file.read_exact_at(&mut seen, at as u64)?;
        ctx.holds(format_args!("{len} bytes at {at}"), seen == expected[at..at + len]);
    }
    drop(file);
    ctx.holds("all of it", fs::read(&path)? == expected);
    Ok(())
}

fn seen_at_once(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    for i in 0..20u8 {
        let at = u64::from(i) * 1000;
        pwrite(&one, &[i; 500], at)?;
        let mut seen = [0xee; 500];
        ctx.same("length", pread(&two, &mut seen, at), Ok(500));
        ctx.holds("bytes", seen == [i; 500]);
        ctx.same("size", rustix::fs::fstat(&two)?.st_size as u64, at + 500);
    }
    rustix::fs::ftruncate(&two, 100)?;
    ctx.same("after a cut", pread(&one, &mut [0; 500], 0), Ok(100));
    Ok(())
}

fn the_end(ctx: &Ctx) -> Done {
    let fd = open(&ctx.file("file")?, OFlags::RDWR)?;
    ctx.same("across the end", pread(&fd, &mut [0; 100], 5), Ok(4));
    ctx.same("at the end", pread(&fd, &mut [0; 100], 9), Ok(0));
    ctx.same("beyond the end", pread(&fd, &mut [0; 100], 1 << 40), Ok(0));
    Ok(())
}

fn gaps(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    pwrite(open(&path, OFlags::WRONLY)?, b"end", 70_000)?;
    let bytes = fs::read(&path)?;
    ctx.same("size", bytes.len(), 70_003);
    ctx.holds("zeros between", bytes[9..70_000].iter().all(|&byte| byte == 0));
    ctx.holds("the rest", bytes.starts_with(b"contents\n") && bytes.ends_with(b"end"));
    Ok(())
}

fn bad_places(ctx: &Ctx) -> Done {
    let fd = open(&ctx.file("file")?, OFlags::RDWR)?;
    ctx.fails("a negative place", pread(&fd, &mut [0; 1], u64::MAX), Errno::INVAL);
    ctx.fails("seeking there", seek(&fd, SeekFrom::Current(-1)), Errno::INVAL);
    ctx.fails_with("the last place", pwrite(&fd, b"xx", i64::MAX as u64), &[Errno::FBIG, Errno::INVAL]);
    make("fifo", &ctx.path("fifo"))?;
    let fifo = open(&ctx.path("fifo"), OFlags::RDWR)?;
    ctx.fails("seeking in a fifo", seek(&fifo, SeekFrom::Start(0)), Errno::SPIPE);
    Ok(())
}

fn places(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (one, two) = (open(&path, OFlags::RDWR)?, open(&path, OFlags::RDWR)?);
    let copy = one.try_clone()?;
    let mut bytes = [0; 3];
    read(&one, &mut bytes)?;
    ctx.same("the other", seek(&two, SeekFrom::Current(0)), Ok(0));
    ctx.same("the copy", seek(&copy, SeekFrom::Current(0)), Ok(3));
    ctx.same("the end", seek(&copy, SeekFrom::End(1)), Ok(10));
    write(&one, b"x")?;
    ctx.same("size", stat(&path)?.st_size, 11);
    Ok(())
}

fn direct(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![7; 16 << 10])?;
    let fd = match open(&path, OFlags::RDWR | OFlags::DIRECT) {
        Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) => {
            return Err(Stop::Unsupported(format!("no O_DIRECT: {}", name(e))));
        }
        other => other?,
    };
    // Room for a page-aligned piece.
    let mut room = vec![0; 8192];
    let start = room.as_ptr().align_offset(4096);
    let page = &mut room[start..][..4096];
    ctx.same("reading", pread(&fd, &mut *page, 8192), Ok(4096));
    ctx.holds("bytes", page.iter().all(|&byte| byte == 7));
    page.fill(9);
    ctx.same("writing", pwrite(&fd, &*page, 4096), Ok(4096));
    let mut expected = vec![7; 16 << 10];
    expected[4096..8192].fill(9);
    ctx.holds("what others read", fs::read(&path)? == expected);
    Ok(())
}

fn shared(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![1; 10_000])?;
    let fd = open(&path, OFlags::RDWR)?;
    let mut map = match Mapped::new(&fd, 10_000, true) {
        Err(Errno::NODEV) => return Err(Stop::Unsupported("no shared mappings".into())),
        other => other?,
    };
    ctx.same("what was there", map.read(9_990, 10), vec![1; 10]);
    map.write(4090, b"across a page");
    let mut seen = [0; 13];
    pread(&fd, &mut seen, 4090)?;
    ctx.same("read", &seen, b"across a page");
    pwrite(&fd, b"written", 5000)?;
    ctx.same("in the mapping", map.read(5000, 7), b"written".to_vec());
    ctx.works("msync", map.sync());
    drop((map, fd));
    let mut expected = vec![1; 10_000];
    expected[4090..4103].copy_from_slice(b"across a page");
    expected[5000..5007].copy_from_slice(b"written");
    ctx.holds("all of it", fs::read(&path)? == expected);
    ctx.fails(
        "shared, by a descriptor that reads",
        Mapped::new(open(&path, OFlags::RDONLY)?, 100, true),
        Errno::ACCESS,
    );
    Ok(())
}

fn private(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let mut map = Mapped::new(open(&path, OFlags::RDONLY)?, 9, false)?;
    map.write(0, b"CHANGED");
    ctx.same("in the mapping", map.read(0, 9), b"CHANGEDs\n".to_vec());
    ctx.same("in the file", fs::read(&path)?, b"contents\n".to_vec());
    Ok(())
}

fn mapped_and_removed(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![3; 8192])?;
    let fd = open(&path, OFlags::RDWR)?;
    let mut map = match Mapped::new(&fd, 8192, true) {
        Err(Errno::NODEV) => return Err(Stop::Unsupported("no shared mappings".into())),
        other => other?,
    };
    rustix::fs::unlink(&path)?;
    drop(fd);
    map.write(4000, b"still there");
    ctx.works("msync", map.sync());
    ctx.same("bytes", map.read(4000, 12), b"still there\x03".to_vec());
    ctx.works("the folder goes", rustix::fs::rmdir(ctx.dir()));
    Ok(())
}

fn mapped_times(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let mut map = match Mapped::new(open(&path, OFlags::RDWR)?, 9, true) {
        Err(Errno::NODEV) => return Err(Stop::Unsupported("no shared mappings".into())),
        other => other?,
    };
    ctx.touches("a write and msync", &path, "mc", || {
        map.write(0, b"C");
        map.sync()
    })
}

fn syncs(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    let fd = open(&file, OFlags::RDWR)?;
    write(&fd, b"data")?;
    ctx.works("fsync", fsync(&fd));
    ctx.works("fdatasync", rustix::fs::fdatasync(&fd));
    ctx.works("of one that reads", fsync(open(&file, OFlags::RDONLY)?));
    let dir = open(&folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
    ctx.works("of a folder", fsync(&dir));
    ctx.works("syncfs", rustix::fs::syncfs(&dir));
    make("fifo", &ctx.path("fifo"))?;
    ctx.fails("of a fifo", fsync(open(&ctx.path("fifo"), OFlags::RDWR)?), Errno::INVAL);
    Ok(())
}

/// Some file systems have no fallocate, or not this mode.
fn optional(done: rustix::io::Result<()>, what: &str) -> Done {
    match done {
        Err(e @ (Errno::OPNOTSUPP | Errno::NOSYS)) => Err(Stop::Unsupported(format!("{what} is {}", name(e)))),
        done => Ok(done?),
    }
}

fn allocates(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let fd = open(&path, OFlags::RDWR)?;
    optional(fallocate(&fd, FallocateFlags::empty(), 0, 50_000), "fallocate")?;
    ctx.same("size", stat(&path)?.st_size, 50_000);
    ctx.same("what was there", fs::read(&path)?[..10].to_vec(), b"contents\n\0".to_vec());
    optional(fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 200_000), "KEEP_SIZE")?;
    ctx.same("size kept", stat(&path)?.st_size, 50_000);
    ctx.holds("room", stat(&path)?.st_blocks * 512 >= 200_000);
    ctx.fails("no length", fallocate(&fd, FallocateFlags::empty(), 0, 0), Errno::INVAL);
    let reader = open(&path, OFlags::RDONLY)?;
    ctx.fails("one that reads", fallocate(&reader, FallocateFlags::empty(), 0, 10), Errno::BADF);
    Ok(())
}

fn punches(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![9; 100_000])?;
    let fd = open(&path, OFlags::RDWR)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    optional(fallocate(&fd, flags, 10_000, 50_000), "PUNCH_HOLE")?;
    let bytes = fs::read(&path)?;
    ctx.same("size", bytes.len(), 100_000);
    ctx.holds("zeros", bytes[10_000..60_000].iter().all(|&byte| byte == 0));
    ctx.holds("the rest", bytes[..10_000].iter().chain(&bytes[60_000..]).all(|&byte| byte == 9));
    ctx.fails("a hole that grows the file", fallocate(&fd, FallocateFlags::PUNCH_HOLE, 0, 10), Errno::OPNOTSUPP);
    Ok(())
}

fn zeros(ctx: &Ctx) -> Done {
    let path = ctx.path("file");
    fs::write(&path, vec![9; 100])?;
    optional(fallocate(open(&path, OFlags::RDWR)?, FallocateFlags::ZERO_RANGE, 0, 5), "ZERO_RANGE")?;
    let bytes = fs::read(&path)?;
    ctx.same("zeroed", &bytes[..6], &[0, 0, 0, 0, 0, 9]);
    ctx.same("size", bytes.len(), 100);
    Ok(())
}

fn data_and_holes(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    truncate(&path, 1 << 20)?;
    let fd = open(&path, OFlags::RDWR)?;
    ctx.same("data", seek(&fd, SeekFrom::Data(0)), Ok(0));
    let hole = ctx.works("a hole", seek(&fd, SeekFrom::Hole(0)));
    ctx.holds("behind the data, at the end at the latest", hole.is_some_and(|at| (9..=1 << 20).contains(&at)));
    ctx.fails("data behind the end", seek(&fd, SeekFrom::Data(1 << 20)), Errno::NXIO);
    ctx.fails("a hole behind the end", seek(&fd, SeekFrom::Hole(1 << 20)), Errno::NXIO);
    Ok(())
}

fn copies(ctx: &Ctx) -> Done {
    let (from, to) = (ctx.path("from"), ctx.path("to"));
    let bytes = Random::new(9).bytes(200_000);
    fs::write(&from, &bytes)?;
    let (source, target) = (open(&from, OFlags::RDONLY)?, open(&to, OFlags::CREATE | OFlags::RDWR)?);
    let (mut read, mut written) = (1000, 0);
    while copy_file_range(&source, Some(&mut read), &target, Some(&mut written), 300_000)? > 0 {}
    ctx.same("places", (read, written), (200_000, 199_000));
    ctx.holds("bytes", fs::read(&to)? == bytes[1000..]);
    ctx.fails("into one that reads", copy_file_range(&target, None, &source, None, 10), Errno::BADF);
    Ok(())
}

fn says(ctx: &Ctx) -> Done {
    let (file, folder) = (ctx.file("file")?, ctx.folder("folder")?);
    let all = statvfs(&file)?;
    ctx.same("the longest name", all.f_namemax, 255);
    ctx.holds("sizes of blocks", all.f_bsize > 0 && all.f_frsize > 0);
    ctx.holds("free is no more than all", all.f_bfree <= all.f_blocks && all.f_bavail <= all.f_bfree);
    ctx.holds("free files are no more than all", all.f_ffree <= all.f_files);
    ctx.same("of a folder", statvfs(&folder)?.f_blocks, all.f_blocks);
    ctx.same("by descriptor", rustix::fs::fstatvfs(open(&file, OFlags::RDONLY)?)?.f_blocks, all.f_blocks);
    chmod(&file, 0)?;
    ctx.works("of what cannot be read", statvfs(&file));
    Ok(())
}

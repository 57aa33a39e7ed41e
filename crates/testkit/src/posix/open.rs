//! open(2) and creat(2).

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::fs::{FileType, OFlags, fstat, lstat, mkdir, stat};
use rustix::io::{Errno, read, write};
use rustix::process::umask;

use super::Case;
use super::context::{Ctx, Done, Stop, chmod, chown, creat, mode, open};

pub(super) const CASES: &[Case] = &[
    Case::anyone("open: a new file has the mode, less the umask, and its maker as the owner", new_file),
    Case::anyone("open: a new file changes the times of its folder", new_file_times),
    Case::anyone("open: O_EXCL refuses every kind that is there, links to nowhere too", exclusive),
    Case::anyone("open: O_CREAT follows a link to nowhere", creates_through_link),
    Case::anyone("open: a file that is not there", missing),
    Case::anyone("open: folders open for reading only", folders),
    Case::anyone("open: O_DIRECTORY takes folders only", directory),
    Case::anyone("open: O_NOFOLLOW takes no link", nofollow),
    Case::anyone("open: O_TRUNC empties and sets the times", truncates),
    Case::anyone("open: O_APPEND writes at the end, wherever one was", appends),
    Case::anyone("open: what is opened for reading cannot be written, and the other way round", directions),
    Case::anyone("open: a fifo without a reader, and a socket", no_peer),
    Case::anyone("open: a mode of 0 does not bind the descriptor that made the file", mode_zero),
    Case::anyone("open: O_TMPFILE has no name until it gets one", tmpfile),
    Case::anyone("open: a program that runs cannot be written", busy_text),
    Case::anyone("open: O_NOATIME is the owner's", noatime_of_own),
    Case::root("open: O_NOATIME is not a stranger's", noatime_of_others),
    Case::anyone("open: O_PATH needs no permission and gives none", path_only),
];

fn new_file(ctx: &Ctx) -> Done {
    for (bits, mask, expected) in [(0o644, 0, 0o644), (0o777, 0o022, 0o755), (0o666, 0o077, 0o600), (0, 0, 0)] {
        let path = ctx.path(&format!("{bits:o} {mask:o}"));
        umask(mode(mask));
        let created = creat(&path, bits);
        umask(mode(0));
        let stat = fstat(created?)?;
        ctx.mode_is(format_args!("{bits:o} less {mask:o}"), &path, expected);
        ctx.same("owner", stat.st_uid, rustix::process::geteuid().as_raw());
        ctx.same("size and links", (stat.st_size, stat.st_nlink as u64), (0, 1));
        ctx.same("kind", FileType::from_raw_mode(stat.st_mode), FileType::RegularFile);
    }
    ctx.as_plain(|| {
        let stat = fstat(creat(&ctx.path("plain"), 0o600)?)?;
        ctx.same("owner and group", (stat.st_uid, stat.st_gid), (ctx.plain(), rustix::process::getegid().as_raw()));
        Ok(())
    })
}

fn new_file_times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.touches("creating", &folder, "mc", || creat(&folder.join("file"), 0o644))?;
    ctx.touches("opening again", &folder, "", || open(&folder.join("file"), OFlags::CREATE | OFlags::RDWR))
}

fn exclusive(ctx: &Ctx) -> Done {
    for (kind, path) in ctx.one_of_each()? {
        ctx.fails(kind, open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR), Errno::EXIST);
    }
    Ok(())
}

fn creates_through_link(ctx: &Ctx) -> Done {
    let link = ctx.symlink("link", "target")?;
    ctx.works("creating", open(&link, OFlags::CREATE | OFlags::RDWR));
    ctx.holds("the target is a file", stat(ctx.path("target")).is_ok());
    ctx.holds("the link is a link", FileType::from_raw_mode(lstat(&link)?.st_mode).is_symlink());
    Ok(())
}

fn missing(ctx: &Ctx) -> Done {
    ctx.fails("reading", open(&ctx.path("missing"), OFlags::RDONLY), Errno::NOENT);
    ctx.fails("writing", open(&ctx.path("missing"), OFlags::WRONLY | OFlags::TRUNC), Errno::NOENT);
    let link = ctx.symlink("link", "missing")?;
    ctx.fails("through a link", open(&link, OFlags::RDWR), Errno::NOENT);
    ctx.fails("a name with a slash", open(&ctx.path("new/"), OFlags::CREATE | OFlags::RDWR), Errno::ISDIR);
    Ok(())
}

fn folders(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.works("reading", open(&folder, OFlags::RDONLY));
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::CREATE | OFlags::RDWR] {
        ctx.fails(format_args!("{flags:?}"), open(&folder, flags), Errno::ISDIR);
    }
    ctx.fails("reading from it", read(open(&folder, OFlags::RDONLY)?, &mut [0; 8]), Errno::ISDIR);
    Ok(())
}

fn directory(ctx: &Ctx) -> Done {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    for (kind, path) in ctx.one_of_each()? {
        match kind {
            "folder" => drop(ctx.works(kind, open(&path, flags))),
            "symlink" => ctx.fails(kind, open(&path, flags), Errno::NOENT),
            _ => ctx.fails(kind, open(&path, flags), Errno::NOTDIR),
        }
    }
    let link = ctx.symlink("to a folder", "a folder")?;
    ctx.works("through a link", open(&link, flags));
    ctx.fails("a link itself", open(&link, flags | OFlags::NOFOLLOW), Errno::NOTDIR);
    Ok(())
}

fn nofollow(ctx: &Ctx) -> Done {
    ctx.file("file")?;
    let folder = ctx.folder("folder")?;
    ctx.file("folder/inside")?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
    ctx.fails("a link to a file", open(&ctx.symlink("1", "file")?, flags), Errno::LOOP);
    ctx.fails("a link to nowhere", open(&ctx.symlink("2", "nowhere")?, flags), Errno::LOOP);
    ctx.fails("creating", open(&ctx.path("2"), flags | OFlags::CREATE), Errno::LOOP);
    ctx.symlink("3", &folder)?;
    ctx.works("links before the last name", open(&ctx.path("3/inside"), flags));
    ctx.works("no link", open(&ctx.path("file"), flags));
    Ok(())
}

fn truncates(ctx: &Ctx) -> Done {
    let file = ctx.file("file")?;
    ctx.touches("O_TRUNC", &file, "mc", || open(&file, OFlags::WRONLY | OFlags::TRUNC))?;
    ctx.same("size", stat(&file)?.st_size, 0);
    ctx.as_plain(|| {
        let own = ctx.file("own")?;
        chmod(&own, 0o444)?;
        ctx.fails("a file that is not writable", open(&own, OFlags::WRONLY | OFlags::TRUNC), Errno::ACCESS);
        ctx.same("its size", stat(&own)?.st_size, 9);
        Ok(())
    })
}

fn appends(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let one = open(&path, OFlags::RDWR | OFlags::APPEND)?;
    let two = open(&path, OFlags::WRONLY | OFlags::APPEND)?;
    rustix::fs::seek(&one, rustix::fs::SeekFrom::Start(2))?;
    for (fd, bytes) in [(&one, b"1"), (&two, b"2"), (&one, b"3"), (&two, b"4")] {
        write(fd, bytes)?;
    }
    ctx.same("contents", fs::read(&path)?, b"contents\n1234".to_vec());
    // Linux appends even with pwrite (pwrite(2), BUGS).
    rustix::io::pwrite(&one, b"5", 0)?;
    ctx.same("contents after pwrite", fs::read(&path)?, b"contents\n12345".to_vec());
    Ok(())
}

fn directions(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    let (reader, writer) = (open(&path, OFlags::RDONLY)?, open(&path, OFlags::WRONLY)?);
    ctx.fails("writing", write(&reader, b"x"), Errno::BADF);
    ctx.fails("reading", read(&writer, &mut [0; 1]), Errno::BADF);
    ctx.fails("cutting", rustix::fs::ftruncate(&reader, 0), Errno::INVAL);
    ctx.same("size", stat(&path)?.st_size, 9);
    Ok(())
}

fn no_peer(ctx: &Ctx) -> Done {
    ctx.one_of_each()?;
    ctx.fails("a fifo", open(&ctx.path("a fifo"), OFlags::WRONLY | OFlags::NONBLOCK), Errno::NXIO);
    ctx.works("a fifo to read", open(&ctx.path("a fifo"), OFlags::RDONLY | OFlags::NONBLOCK));
    ctx.fails("a socket", open(&ctx.path("a socket"), OFlags::RDWR), Errno::NXIO);
    Ok(())
}

fn mode_zero(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let path = ctx.path("file");
        let fd = creat(&path, 0)?;
        ctx.works("writing", write(&fd, b"text"));
        ctx.same("what is read", fs::File::from(fd).read_at(&mut [0; 8], 0)?, 4);
        ctx.fails("opening it again", open(&path, OFlags::RDONLY), Errno::ACCESS);
        Ok(())
    })
}

fn tmpfile(ctx: &Ctx) -> Done {
    let fd = match rustix::fs::open(ctx.dir(), OFlags::TMPFILE | OFlags::RDWR, mode(0o640)) {
        Err(e @ (Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL)) => {
            return Err(Stop::Unsupported(format!("no O_TMPFILE: {}", super::context::name(e))));
        }
        other => other?,
    };
    write(&fd, b"text")?;
    ctx.same("links", fstat(&fd)?.st_nlink as u64, 0);
    ctx.same("entries", fs::read_dir(ctx.dir())?.count(), 0);
    let (proc, named) = (format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)), ctx.path("named"));
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    ctx.works("naming it", rustix::fs::linkat(rustix::fs::CWD, proc, rustix::fs::CWD, &named, follow));
    ctx.same("contents", fs::read(&named)?, b"text".to_vec());
    ctx.mode_is("mode", &named, 0o640);
    Ok(())
}

fn busy_text(ctx: &Ctx) -> Done {
    let path = ctx.path("program");
    // A separate copy of `sleep`. In a multi-call binary, the name selects the program.
    let original = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| fs::metadata(path).is_ok());
    fs::copy(original.ok_or(Stop::Unsupported("there is no /bin/sleep".into()))?, &path)?;
    chmod(&path, 0o755)?;
    let start = || Command::new(&path).arg("100").stdin(Stdio::null()).spawn();
    // A child of another test may briefly hold the file that was open for writing here.
    let mut started = start();
    for _ in 0..100 {
        if !matches!(&started, Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        started = start();
    }
    let mut running = match started {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Stop::Unsupported("no program runs there (noexec)".into()));
        }
        other => other?,
    };
    ctx.fails("writing", open(&path, OFlags::WRONLY), Errno::TXTBSY);
    ctx.fails("cutting", super::sys::truncate(&path, 0), Errno::TXTBSY);
    ctx.works("reading", open(&path, OFlags::RDONLY));
    let _ = running.kill();
    running.wait()?;
    ctx.works("writing afterwards", open(&path, OFlags::WRONLY));
    Ok(())
}

fn noatime_of_own(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let path = ctx.file("file")?;
        let fd = ctx.works("the owner", open(&path, OFlags::RDONLY | OFlags::NOATIME));
        let before = stat(&path)?;
        ctx.tick()?;
        fd.map_or(Ok(0), |fd| read(fd, &mut [0; 4]))?;
        ctx.same("time of access", super::context::accessed(stat(&path)?), super::context::accessed(before));
        Ok(())
    })
}

fn noatime_of_others(ctx: &Ctx) -> Done {
    let path = ctx.file("file")?;
    chown(&path, 0, 0)?;
    ctx.as_plain(|| {
        ctx.fails("a stranger", open(&path, OFlags::RDONLY | OFlags::NOATIME), Errno::PERM);
        Ok(())
    })
}

fn path_only(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        let path = ctx.file("file")?;
        chmod(&path, 0)?;
        let fd = open(&path, OFlags::PATH)?;
        ctx.fails("reading", read(&fd, &mut [0; 1]), Errno::BADF);
        ctx.same("size", fstat(&fd)?.st_size, 9);
        mkdir(ctx.path("shut"), mode(0))?;
        ctx.works("a folder", open(&ctx.path("shut"), OFlags::PATH | OFlags::DIRECTORY));
        Ok(())
    })
}

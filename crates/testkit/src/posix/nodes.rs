//! mknod(2) and mkfifo(3): fifos, sockets, devices.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use rustix::fs::{FileType, OFlags, lstat, makedev};
use rustix::io::Errno;
use rustix::process::umask;

use super::Case;
use super::context::{Ctx, Done, Stop, mknod, mode, open};

pub(super) const CASES: &[Case] = &[
    Case::anyone("mknod: fifos, sockets and files, with mode and owner", without_root),
    Case::anyone("mknod: times of the folder", times),
    Case::anyone("mknod: what passes through a fifo", fifo),
    Case::anyone("mknod: who listens at a socket is found", socket),
    Case::anyone("mknod: devices are root's, and folders nobody's", refused),
    Case::root("mknod: devices keep their numbers", devices),
];

fn without_root(ctx: &Ctx) -> Done {
    for kind in [FileType::Fifo, FileType::Socket, FileType::RegularFile] {
        let path = ctx.path(&format!("{kind:?}"));
        umask(mode(0o027));
        let made = mknod(&path, kind, 0o666, 0);
        umask(mode(0));
        ctx.works(format_args!("{kind:?}"), made);
        let stat = lstat(&path)?;
        ctx.same("kind", FileType::from_raw_mode(stat.st_mode), kind);
        ctx.mode_is("mode", &path, 0o640);
        ctx.same("owner", stat.st_uid, rustix::process::geteuid().as_raw());
        ctx.same("size and links", (stat.st_size, stat.st_nlink as u64), (0, 1));
    }
    Ok(())
}

fn times(ctx: &Ctx) -> Done {
    let folder = ctx.folder("folder")?;
    ctx.touches("a fifo", &folder, "mc", || mknod(&folder.join("fifo"), FileType::Fifo, 0o644, 0))
}

fn fifo(ctx: &Ctx) -> Done {
    let path = ctx.path("fifo");
    mknod(&path, FileType::Fifo, 0o600, 0)?;
    let sender = path.clone();
    let writer = thread::spawn(move || File::options().write(true).open(sender)?.write_all(b"through a fifo"));
    let mut text = String::new();
    File::open(&path)?.read_to_string(&mut text)?;
    writer.join().map_err(|_| Stop::Wrong("the writer panicked".into()))??;
    ctx.same("text", text.as_str(), "through a fifo");
    Ok(())
}

fn socket(ctx: &Ctx) -> Done {
    // A socket's address has room for only 107 bytes.
    let folder = open(ctx.dir(), OFlags::PATH | OFlags::DIRECTORY)?;
    let path = format!("/proc/self/fd/{}/socket", std::os::fd::AsRawFd::as_raw_fd(&folder));
    let listener = UnixListener::bind(&path)?;
    ctx.same("kind", FileType::from_raw_mode(lstat(ctx.path("socket"))?.st_mode), FileType::Socket);
    let mut client = UnixStream::connect(&path)?;
    client.write_all(b"hello")?;
    let mut bytes = [0; 5];
    listener.accept()?.0.read_exact(&mut bytes)?;
    ctx.same("bytes", &bytes, b"hello");
    ctx.holds(
        "a second one is refused",
        UnixListener::bind(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::AddrInUse),
    );
    Ok(())
}

fn refused(ctx: &Ctx) -> Done {
    ctx.as_plain(|| {
        for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
            ctx.fails(format_args!("{kind:?}"), mknod(&ctx.path("new"), kind, 0o644, makedev(1, 3)), Errno::PERM);
        }
        ctx.fails("a folder", mknod(&ctx.path("new"), FileType::Directory, 0o755, 0), Errno::PERM);
        ctx.fails("a link", mknod(&ctx.path("new"), FileType::Symlink, 0o755, 0), Errno::INVAL);
        ctx.same("entries", fs::read_dir(ctx.dir())?.count(), 0);
        Ok(())
    })
}

fn devices(ctx: &Ctx) -> Done {
    let numbers = [makedev(1, 3), makedev(255, 255), makedev(259, 1 << 16 | 7)];
    for (i, number) in numbers.into_iter().enumerate() {
        for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
            let path = ctx.path(&format!("{kind:?} {i}"));
            ctx.works(format_args!("{kind:?} {number:x}"), mknod(&path, kind, 0o640, number));
            let stat = lstat(&path)?;
            ctx.same("kind and number", (FileType::from_raw_mode(stat.st_mode), stat.st_rdev), (kind, number));
            ctx.mode_is("mode", &path, 0o640);
        }
    }
    Ok(())
}

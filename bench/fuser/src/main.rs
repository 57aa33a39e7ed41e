//! Serves a plain file as a file through the crate fuser, as well as it goes: direct I/O, large requests, aligned memory.
//! Usage: claviger-bench-fuser FOLDER FILE [THREADS]. Runs until it is unmounted.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

const FILE: INodeNo = INodeNo(2);
const VALID: Duration = Duration::from_secs(3600);
const MAX_DATA: usize = 1 << 20;

thread_local! {
    /// Room for a read, and for one page more: the data begin at a page.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATA + 4096]);
}

struct Plain {
    file: File,
    len: u64,
}

impl Plain {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let (size, kind, perm) = match node {
            FILE => (self.len, FileType::RegularFile, 0o600),
            _ => (0, FileType::Directory, 0o500),
        };
        let (atime, mtime, ctime, crtime) = (UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH);
        let blocks = size.div_ceil(512);
        FileAttr {
            ino: node,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Plain {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config.set_max_write(MAX_DATA as u32).map_err(|_| io::ErrorKind::Unsupported)?;
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "volume" {
            reply.entry(&VALID, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(node));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let skip = (buffer.as_ptr() as usize).wrapping_neg() % 4096;
            let out = &mut buffer[skip..][..(size as usize).min(MAX_DATA)];
            match self.file.read_at(out, offset) {
                Ok(n) => reply.data(&out[..n]),
                Err(e) => reply.error(e.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file.write_at(data, offset) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.file.sync_data() {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e.into()),
        }
    }
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (folder, path, threads) = match &args[..] {
        [folder, path] => (folder, path, 1),
        [folder, path, threads] => (folder, path, threads.parse().map_err(io::Error::other)?),
        _ => return Err(io::Error::other("claviger-bench-fuser FOLDER FILE [THREADS]")),
    };
    let file = OpenOptions::new().read(true).write(true).open(Path::new(path))?;
    let len = file.metadata()?.len();
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    fuser::mount(Plain { file, len }, folder, &config)
}

//! Mounts a file as a file until standard input ends: for benchmarks, and for tests that need a server of their own.
//!
//! ```text
//! sleep infinity | fuse_serve FOLDER disk.img        the file as it is
//! … fuse_serve FOLDER disk.img xts                   its AES-256-XTS plaintext under a fixed key
//! … fuse_serve FOLDER 64M                            so many zero bytes in memory
//! ```
//!
//! Further words: `direct` (past the page cache), `tree` (the file system in it, not the file itself), `folder=DIR` (that folder as it is, and for all where root
//! serves it), `descriptors=N` (no more may be open), `ecryptfs` (its plaintext, under the passphrase `passphrase`), `read-only`, `writeback`, `device`, `uring`, `threads=N`,
//! `spin=MICROSECONDS`, `uid=N`, `gid=N`, `source=NAME`, `grace=MILLISECONDS`, and what
//! is to go wrong: `bad=OFFSET` (reads and writes that touch this byte fail), `refuse=OFFSET` (writes that touch it are not
//! permitted), `panic=OFFSET` (reads that touch it panic), `until=FILE` (reads after the first MiB wait for this file), `lossy` (flushing fails, but only the first time), `short=N` (the
//! store really ends N bytes sooner). Prints a line once it serves.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::pool::Pool;
use claviger_crypto::{Acceleration, ciphers};
use claviger_engine::store::{Access, Bypass, FileStore, MemoryStore};
use claviger_engine::trees::Tree;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Error, Layout, Payload, Result, Secret, Segment, Store, Unlock, Volume};
use claviger_engine::{file_formats, filesystems};
use claviger_serve::fuse::tree::Showing;
use claviger_serve::fuse::{self, FuseHandle, FuseOptions, FuseTransport, Image};
use rustix::process::{Resource, Rlimit, setrlimit};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    serve(&args)
}

/// Does what the words say.
pub fn serve(args: &[String]) -> Result<()> {
    let [folder, path, words @ ..] = args else {
        return Err(Error::misuse("fuse_serve FOLDER FILE|SIZE [xts] [read-only] [device|uring] [threads=…] …"));
    };
    let access = if words.iter().any(|w| w == "read-only") { Access::ReadOnly } else { Access::ReadWrite };
    let mut store: Arc<dyn Store> = match path.strip_suffix('M').and_then(|n| n.parse::<usize>().ok()) {
        Some(mib) => Arc::new(MemoryStore::new(vec![0; mib << 20])),
        None => Arc::new(FileStore::open(Path::new(path), access)?),
    };
    let mut options = FuseOptions::default();
    let mut trouble = Trouble::default();
    let mut image = Image::new(Arc::new(MemoryStore::new(Vec::new())));
    let (mut tree, mut writeback) = (false, false);
    let (mut passed_through, mut encrypted, mut devices) = (None, false, true);
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u64>().map_err(|_| Error::misuse(format!("{word}: no number")));
        match key {
            "direct" if store.bypass_cache(Bypass::All) => {}
            "direct" => return Err(Error::unsupported("a way past the page cache")),
            "xts" => store = xts_volume(store)?,
            "tree" => tree = true,
            "folder" => passed_through = Some(value),
            "ecryptfs" => encrypted = true,
            "descriptors" => {
                let most = Some(number()?);
                setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).map_err(io::Error::from)?;
            }
            "no-devices" => devices = false,
            "read-only" => image.read_only = true,
            "writeback" => writeback = true,
            "device" => options.transport = FuseTransport::Device,
            "uring" => options.transport = FuseTransport::Uring,
            "threads" => options.threads = number()? as usize,
            "spin" => options.spin = Duration::from_micros(number()?),
            "uid" => image.uid = number()? as u32,
            "gid" => image.gid = number()? as u32,
            "source" => options.source = value.to_owned(),
            "grace" => options.grace = Duration::from_millis(number()?),
            "bad" => trouble.bad = Some(number()?),
            "refuse" => trouble.refuse = Some(number()?),
            "panic" => trouble.panic = Some(number()?),
            "until" => trouble.until = Some(value.into()),
            "lossy" => trouble.lossy = AtomicBool::new(true),
            "short" => trouble.short = number()?,
            _ => return Err(Error::misuse(format!("{word}: what is that?"))),
        }
    }
    if let Some(lower) = passed_through {
        options.shared = rustix::process::geteuid().is_root();
        let showing = Showing { devices, setuid: devices, writeback, ..Showing::folder(image.read_only) };
        let lower: Arc<dyn Tree> = Arc::new(HostFolder::open(Path::new(lower), access)?);
        let tree = if encrypted { ecryptfs(lower)? } else { lower };
        return serve_tree(tree, showing, folder, options);
    }
    image.store = Arc::new(Troubled { store, trouble });
    if tree {
        let (_, tree) = filesystems::open(image.store)?;
        let showing = Showing { writeback, ..Showing::volume(image.read_only) };
        return serve_tree(Arc::from(tree), showing, folder, options);
    }
    let mounted = fuse::mount(image, Path::new(folder), options)?;
    println!("{}", if mounted.uses_uring() { "uring" } else { "device" });
    io::stdout().flush()?;
    stop_with_input(mounted.handle());
    mounted.run()
}

fn serve_tree(tree: Arc<dyn Tree>, showing: Showing, folder: &str, options: FuseOptions) -> Result<()> {
    let mounted = fuse::tree::mount(tree, showing, Path::new(folder), options)?;
    println!("{}", if mounted.uses_uring() { "uring" } else { "device" });
    io::stdout().flush()?;
    stop_with_input(mounted.handle());
    mounted.run()
}

fn stop_with_input(handle: FuseHandle) {
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        handle.stop();
    });
}

fn ecryptfs(lower: Arc<dyn Tree>) -> Result<Arc<dyn Tree>> {
    let passphrase = [Credential::Passphrase(Secret::copy_from(b"passphrase"))];
    Ok(Arc::new(file_formats::open(lower, Some("eCryptfs"), &Unlock::with(&passphrase))?))
}

fn xts_volume(store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
    let key = |byte| ciphers::aes::AES.with_key(&[byte; 32], Acceleration::On);
    let cipher = Arc::new(Xts::new(vec![Layer { data: key(1), tweak: key(2) }], 512));
    let payload = Payload::crypt(cipher, 0);
    let len = store.len() - store.len() % 512;
    let layout = Layout::new(vec![Segment { at: 0, len, stored_at: 0, payload, writable: store.writable() }])?;
    Ok(Arc::new(Volume::new(store, layout).with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO)))))
}

/// What is to go wrong.
#[derive(Default)]
struct Trouble {
    bad: Option<u64>,
    refuse: Option<u64>,
    panic: Option<u64>,
    until: Option<PathBuf>,
    lossy: AtomicBool,
    short: u64,
}

struct Troubled {
    store: Arc<dyn Store>,
    trouble: Trouble,
}

impl Troubled {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset + len as u64;
        if self.trouble.bad.is_some_and(|bad| (offset..end).contains(&bad)) {
            return Err(io::Error::other("planted"));
        }
        if end > self.store.len() - self.trouble.short {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

impl Store for Troubled {
    fn bypasses_cache(&self) -> bool {
        self.store.bypasses_cache()
    }
    fn len(&self) -> u64 {
        self.store.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(offset, out.len())?;
        let panics = |at| (offset..offset + out.len() as u64).contains(&at);
        if self.trouble.panic.is_some_and(panics) {
            // A panic without its report, in which whoever looks for failed tests would find one.
            std::panic::resume_unwind(Box::new("planted"));
        }
        while self.trouble.until.as_ref().is_some_and(|until| offset >= 1 << 20 && !until.exists()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.store.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        if self.trouble.refuse.is_some_and(|at| (offset..offset + data.len() as u64).contains(&at)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.store.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        if self.trouble.lossy.swap(false, Ordering::Relaxed) {
            return Err(io::Error::other("planted"));
        }
        self.store.flush()
    }
    fn writable(&self) -> bool {
        self.store.writable()
    }
}

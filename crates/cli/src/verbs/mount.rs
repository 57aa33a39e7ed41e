//! `claviger mount`: the files of a volume in a folder.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::pool::Pool;
use claviger_engine::file_formats::Stacked;
use claviger_engine::opening::OpenFolder;
use claviger_engine::store::{Access, Bypass, CountedStore, SMALLEST_SECTOR};
use claviger_engine::trees::Tree;
use claviger_engine::{Error, ErrorKind, Opened, Store};
use claviger_serve::fuse;
use claviger_serve::mount::{self, Choice, Mounted, Request, Until};
use claviger_serve::sessions::{Process, Record, Runtime, Status, escape};
use serde::Serialize;

use crate::opening::direct::{DirectArgs, is_block_device};
use crate::opening::files::{self, InsideArgs};
use crate::opening::logical_volume::LogicalVolumeArgs;
use crate::opening::mount_point::{self, MountPoint};
use crate::opening::{OpenArgs, OpenedVolume, ProtectArgs};
use crate::process::background::{self, BackgroundArgs};
use crate::process::guard;
use crate::process::key_process::{self, KeyProcessArgs, Locking, RegisterArgs};
use crate::process::served::{FILES, record, status};
use crate::process::traced::TraceArgs;
use crate::terminal::output::{self, ReaderGone, Report};
use crate::terminal::{cancel, duration};

/// Mount a volume's files on a folder
///
/// Detects the file system inside and mounts it: as root with the kernel's drivers, otherwise with programs that work
/// without root (fuse2fs for ext2, ext3 and ext4, ntfs-3g for NTFS; FAT and exFAT need none). It stays in the background until
/// `claviger unmount` or `umount` writes everything and ends it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger mount old.tc
  claviger mount old.tc /mnt/old
  claviger mount --read-only old.tc /mnt/old
  claviger mount --filesystem none old.tc /mnt/old && xxd /mnt/old/volume | head
  claviger mount ~/.Private ~/Private
  claviger mount --format clear folder /mnt/same
  claviger mount --idle 10m -o noatime old.tc /mnt/old
  claviger mount --logical-volume vg/root laptop.luks /mnt/root
  claviger unmount /mnt/old

In /etc/fstab, and with `mount -t fuse.claviger VOLUME DIR -o OPTIONS`:
  /srv/old.tc  /mnt/old  fuse.claviger  noauto,keyfile=/root/key,password-file=/root/pw,ro  0 0")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The mount point: an empty folder. By itself one with the volume's name is made where removable drives are mounted, and removed
    /// in the end
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,

    /// The file system inside: `auto` detects it, `none` shows the plaintext as one file called `volume`
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    filesystem: String,

    /// Mount the encrypted folder at PATH inside
    #[arg(long, value_name = "PATH")]
    folder: Option<OsString>,

    /// Change nothing, neither the volume's bytes nor its timestamps
    #[arg(long)]
    read_only: bool,

    /// Mount options for the file system, separated by commas. May be repeated
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,

    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(long)]
    foreground: bool,

    /// Unmount after this long without a read or write: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle: Option<Duration>,

    /// Unmount when the process that started this one ends
    #[arg(long)]
    with_parent: bool,

    /// Take the file as it is, without decryption: what the same way costs without encryption
    #[arg(long, conflicts_with_all = ["password", "keyfiles", "format", "hash", "cipher", "backup_header", "no_aes", "truncated", "hidden", "isolate_keys"])]
    raw: bool,

    #[command(flatten)]
    logical_volume: LogicalVolumeArgs,

    #[command(flatten)]
    direct: DirectArgs,

    #[command(flatten)]
    trace: TraceArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    key_process: KeyProcessArgs,

    #[command(flatten)]
    registers: RegisterArgs,

    #[command(flatten)]
    told: BackgroundArgs,

    #[command(flatten)]
    protect: ProtectArgs,
}

impl Args {
    /// Whether it is a folder of encrypted files inside that is mounted.
    fn wants_folder(&self) -> bool {
        self.folder.is_some() || self.open.wants_folder()
    }

    fn access(&self) -> Access {
        if self.read_only { Access::ReadOnly } else { Access::ReadWrite }
    }

    fn request(&self, dir: PathBuf) -> Request {
        let filesystem = match &*self.filesystem {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            name => Choice::Named(name.to_owned()),
        };
        Request { dir, filesystem, read_only: self.read_only, options: self.options.clone() }
    }
}

#[derive(Serialize)]
struct MountReport {
    volume: String,
    dir: String,
    filesystem: String,
    format: String,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// Size of the sectors that a file system in it should be made for, in bytes.
    sector_size: u64,
    read_only: bool,
    /// Whether a hidden volume in it is protected.
    protects_hidden: bool,
    /// What people should know before they rely on it, such as why it can only be read.
    warnings: Vec<String>,
    /// The process that serves it.
    pid: u32,
}

/// Carries the verb out. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        apart(&args.open.path, dir)?;
    }
    args.registers.check(&args.key_process)?;
    if args.key_process.which().is_some() {
        return args.key_process.keep(&args.open, Some(args.access()), Some(&args.protect), &args.registers);
    }
    let is_folder = args.open.path.is_dir();
    if is_folder && args.logical_volume.given() {
        return Err(Error::misuse("a folder has no logical volumes inside").at(&args.open.path).into());
    }
    if args.key_process.asked() && args.wants_folder() && !is_folder {
        return Err(key_process::no_folders().at(&args.open.path).into());
    }
    fuse::available()?;
    if !args.foreground && !args.told.background() {
        // What a killed server left is no reason to refuse its folder.
        mount::clean_all(&Runtime::of_this_user()?)?;
        // What can be seen from here should not take a process.
        if let Some(dir) = &args.dir {
            mount_point::empty_folder(dir)?;
        }
        return background::start(words, Stdio::inherit());
    }
    guard::no_dumps();
    cancel::install()?;
    let parent = if args.with_parent { Some(args.told.caller()?) } else { None };
    let runtime = Runtime::of_this_user()?;
    mount::clean_all(&runtime)?;
    let point = MountPoint::new(args.dir.as_deref(), &args.open.path, &runtime)?;
    let dir = point.path().to_owned();

    let access = args.access();
    let at = |e: Error| e.at(&args.open.path);
    let mut locking = None;
    let (facts, volume) = if args.raw {
        (None, args.logical_volume.within(args.open.raw(access)?, !args.read_only).map_err(at)?)
    } else if args.key_process.asked() && is_folder {
        let folder = args.key_process.open_folder(&args.open, access, words)?;
        serve_folder(args, folder, dir, parent, &runtime)?;
        return args.key_process.check();
    } else if args.key_process.asked() {
        let (opened, keys) = args.key_process.open(&args.open, access, words)?;
        locking = Some(keys);
        (Some(opened.facts.clone()), opened.into_served(&args.logical_volume, !args.read_only).map_err(at)?)
    } else {
        match args.open.open_for_files_protecting(access, &args.protect)? {
            Opened::Files(folder) => return serve_folder(args, *folder, dir, parent, &runtime),
            opened if args.wants_folder() => {
                let path = args.folder.as_deref().unwrap_or(OsStr::new("/"));
                let folder =
                    InsideArgs::of(args.logical_volume.clone()).folder(&args.open, opened, files::inside(path))?;
                return serve_folder(args, folder, dir, parent, &runtime);
            }
            Opened::Bytes(volume) => {
                let opened = OpenedVolume::from(*volume);
                (Some(opened.facts.clone()), opened.into_served(&args.logical_volume, !args.read_only).map_err(at)?)
            }
            Opened::Clear(_) => {
                let what = ErrorKind::NotThisFormat("it holds a file system that is not encrypted".into());
                let hint = "--raw mounts it as it is; --folder names a folder in it whose files are encrypted.";
                return Err(Error::new(what).hint(hint).at(&args.open.path).into());
            }
        }
    };
    let record = record(&args.open.path, facts.as_ref(), volume.len())?;
    let record = Record { dir: Some(dir.clone()), ..record };
    let sector_size = volume.sector_size();
    // The kernel's file systems have a cache above. Those that are programs, and our own, may rely on the one below.
    let cached_above = args.filesystem == "none" || rustix::process::geteuid().is_root();
    let default = cached_above && is_block_device(&args.open.path);
    args.direct.apply(Bypass::All, default, &args.open.path, &*volume);
    let store = Arc::new(CountedStore::new(args.trace.over(volume)?));
    // From here on a signal has to be noticed by whoever waits in `poll`.
    let signals = signals()?;
    cancel::check()?;

    let request = args.request(dir);
    let live = runtime.begin(record)?;
    // Whoever asks does not keep the volume open, and locked, when it is not served any more.
    let counted = Arc::downgrade(&store);
    let locked = locking.as_ref().map(Locking::locked);
    let of_status = locking.as_ref().map(Locking::locked);
    let control =
        live.answer(move || counted.upgrade().map(|store| status(&store, of_status.as_ref())).unwrap_or_default())?;
    let locks = locking.map(|locking| locking.listen(live.session())).transpose()?;
    let mounted = mount::mount(store, &request, live).map_err(|e| e.at(&args.open.path))?;
    let waits = || locked.as_ref().is_some_and(|locked| locked());
    serve(args, mounted, sector_size, signals, parent, &waits)?;
    drop((control, locks));
    args.key_process.check()
}

/// Mounts an encrypted folder, and serves it to the end.
fn serve_folder(
    args: &Args,
    folder: OpenFolder,
    dir: PathBuf,
    parent: Option<Process>,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    args.trace.refuse()?;
    let OpenFolder { tree, format, .. } = folder;
    let size = tree.space()?.total;
    let record = Record { dir: Some(dir.clone()), ..record(&args.open.path, None, size)? };
    let record = Record { format: format.name().to_owned(), ..record };
    let tree = Arc::new(tree.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO))));
    let signals = signals()?;
    cancel::check()?;
    let live = runtime.begin(record)?;
    let counted = Arc::downgrade(&tree);
    let status = |tree: Arc<Stacked>| Status { traffic: tree.traffic(), ..Status::default() };
    let control = live.answer(move || counted.upgrade().map(status).unwrap_or_default())?;
    let mounted = mount::mount_folder(tree, FILES, &args.request(dir), live).map_err(|e| e.at(&args.open.path))?;
    serve(args, mounted, SMALLEST_SECTOR, signals, parent, &|| false)?;
    drop(control);
    Ok(())
}

/// Says what is mounted where, and serves it to the end.
fn serve(
    args: &Args,
    mounted: Mounted,
    sector_size: u64,
    signals: UnixStream,
    parent: Option<Process>,
    waits: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    cancel::serving();
    mounted.warnings().iter().for_each(|w| output::warn(w));
    let Record { volume, dir, filesystem, format, size, read_only, server, .. } =
        mounted.live().session().record.clone();
    let report = MountReport {
        volume: escape(&volume),
        dir: dir.as_deref().map(escape).unwrap_or_default(),
        filesystem: filesystem.unwrap_or_default(),
        format,
        size,
        sector_size,
        read_only,
        protects_hidden: args.protect.asked(),
        warnings: mounted.warnings().to_vec(),
        pid: server.pid,
    };
    match output::print(&report, args.json) {
        Err(e) if e.is::<ReaderGone>() => {}
        printed => printed?,
    }
    args.told.ready()?;
    let until = Until { signals: signals.as_fd(), parent, idle: args.idle, waits };
    Ok(mounted.serve(&until).map_err(|e| e.at(&args.open.path))?)
}

/// Readable when a signal has come that asks for the end.
fn signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in cancel::SIGNALS {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    // One that came before is noticed too.
    if cancel::cancelled() {
        (&write).write_all(b"1")?;
    }
    Ok(read)
}

/// Refuses to mount a folder over itself, or inside itself: what is encrypted would be out of reach, or show up in its own plaintext.
fn apart(lower: &Path, dir: &Path) -> anyhow::Result<()> {
    let (Ok(lower), Ok(to)) = (lower.canonicalize(), dir.canonicalize()) else { return Ok(()) };
    match lower.is_dir() && to.starts_with(&lower) {
        true => Err(Error::misuse("a folder is not mounted over or inside itself")
            .at(dir)
            .hint("Choose an empty folder elsewhere.")
            .into()),
        false => Ok(()),
    }
}

impl Report for MountReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { volume, dir, filesystem, format, sector_size, read_only, protects_hidden, .. } = self;
        let how = match (read_only, protects_hidden) {
            (true, _) => ", read-only",
            (_, true) => ", with the hidden volume in it protected",
            _ => "",
        };
        match &**filesystem {
            "none" => {
                writeln!(out, "{volume} ({format}) is the file {dir}/volume{how}.")?;
                if *sector_size > SMALLEST_SECTOR {
                    // A file has no sectors, so the programs that make file systems cannot know.
                    writeln!(
                        out,
                        "A file system in it should be made for sectors of {sector_size} bytes: mkfs.ext4 -b {sector_size}, \
                         mkfs.vfat -S {sector_size}, mkfs.xfs -s size={sector_size}."
                    )?;
                }
            }
            FILES => {
                writeln!(out, "{volume} ({format}) is mounted at {dir}{how}.")?;
                if rustix::process::geteuid().is_root() {
                    writeln!(out, "Accessible to all users, subject to file permissions.")?;
                }
            }
            filesystem => writeln!(out, "{volume} ({format}, {filesystem}) is mounted at {dir}{how}.")?,
        }
        writeln!(out, "To unmount: {}", output::command(["claviger", "unmount", dir]))
    }
}

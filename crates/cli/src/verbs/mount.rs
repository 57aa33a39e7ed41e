//! `claviger mount`: mounts the files of a volume on a folder.

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
use claviger_engine::store::{Access, SMALLEST_SECTOR};
use claviger_engine::trees::Tree;
use claviger_engine::{Error, ErrorKind, Opened, Store, diagnosis};
use claviger_serve::fuse;
use claviger_serve::mount::{self, Choice, MountRequest, MountedVolume, Until};
use claviger_serve::sessions::{Process, Runtime, SessionRecord, Status, escape};
use serde::Serialize;

use crate::opening::files::{self, InsideArgs};
use crate::opening::mount_point::{self, MountPoint};
use crate::opening::{OpenArgs, ProtectArgs};
use crate::process::background;
use crate::process::guard;
use crate::process::key_process::{self, Locking};
use crate::process::served::{FILES, ServedArgs, ServedVolume, answer, record};
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, duration};

/// Mount a volume's files on a folder
///
/// Detects the file system inside and mounts it. Root uses the kernel's drivers; other users, and root without loop
/// devices, need fuse2fs for ext2, ext3 and ext4, and ntfs-3g for NTFS, but nothing for FAT and exFAT. The mount stays
/// in the background until `claviger unmount` or `umount` writes everything and ends it.
///
/// A volume in a disk image (qcow2, VMDK, VHDX …) is mounted read-only. To write to it, name the format: vhdx:disk.vhdx.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger mount old.tc
  claviger mount old.tc /mnt/old
  claviger mount --read-only old.tc /mnt/old
  claviger mount --filesystem none old.tc /mnt/old && xxd /mnt/old/volume | head
  claviger mount ~/.Private ~/Private
  claviger mount --reverse ~/Documents ~/encrypted
  claviger mount --format clear folder /mnt/same
  claviger mount --idle 10m -o noatime old.tc /mnt/old
  claviger mount --logical-volume vg/root laptop.luks /mnt/root
  claviger unmount /mnt/old

In /etc/fstab, and with `mount -t fuse.claviger VOLUME DIR -o OPTIONS`:
  /srv/old.tc  /mnt/old  fuse.claviger  noauto,keyfile=/root/key,password-file=/root/pw,ro  0 0")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Mount point, an empty folder [default: a new folder with the volume's name where removable drives are mounted]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,

    /// The file system inside: `auto` detects it, `none` shows the plaintext as one file called `volume`
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    filesystem: String,

    /// Mount the encrypted folder at PATH inside
    #[arg(long, value_name = "PATH")]
    folder: Option<OsString>,

    /// Mount read-only, without changing the volume's bytes or timestamps
    #[arg(long)]
    read_only: bool,

    /// Mount options for the file system, separated by commas. May be repeated
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,

    /// Let the kernel collect small writes, which makes them several times as fast. Programs learn of a failed write only
    /// when they close or synchronise the file; if claviger is killed, open files lose what was not synchronised; and
    /// nobody else may change the files meanwhile. For encrypted folders, and for FAT and exFAT that claviger itself serves
    #[arg(long, conflicts_with = "read_only")]
    writeback: bool,

    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(long)]
    foreground: bool,

    /// Unmount after this long without a read or write: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle: Option<Duration>,

    /// Unmount when the process that started this one ends
    #[arg(long)]
    with_parent: bool,

    #[command(flatten)]
    served: ServedArgs,

    #[command(flatten)]
    protect: ProtectArgs,
}

impl Args {
    /// Whether to mount an encrypted folder inside the volume.
    fn wants_folder(&self) -> bool {
        self.folder.is_some() || self.open.wants_folder()
    }

    fn access(&self) -> Access {
        if self.read_only() || self.open.how.folder.reverse() { Access::ReadOnly } else { Access::ReadWrite }
    }

    fn read_only(&self) -> bool {
        self.read_only || self.open.in_disk_in_file()
    }

    fn request(&self, dir: PathBuf) -> MountRequest {
        let filesystem = match &*self.filesystem {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            name => Choice::Named(name.to_owned()),
        };
        let (read_only, options) = (self.read_only(), self.options.clone());
        MountRequest { dir, filesystem, read_only, options, writeback: self.writeback }
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
    /// The sector size for a file system in the volume, in bytes.
    sector_size: u64,
    /// Whether nothing seems to be in it.
    #[serde(skip)]
    empty: bool,
    read_only: bool,
    /// Whether a hidden volume is protected.
    protects_hidden: bool,
    /// Warnings, such as why the volume is read-only.
    warnings: Vec<String>,
    /// The process that serves the volume.
    pid: u32,
}

/// Runs the verb. `words` is the command line, as this verb sees it.
pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        apart(&args.open.path, dir)?;
    }
    let (access, served) = (args.access(), &args.served);
    if served.worked_as_key_process(&args.open, access, &args.protect)? {
        return Ok(());
    }
    let is_folder = args.open.path.is_dir();
    if is_folder && served.logical_volume.given() {
        return Err(Error::misuse("an encrypted folder has no logical volumes").at(&args.open.path).into());
    }
    if args.writeback && args.filesystem == "none" {
        return Err(Error::misuse("--writeback does not go with --filesystem none").hint("Omit one of them.").into());
    }
    if served.key_process.asked() && args.writeback {
        return Err(Error::misuse("--writeback does not go with --isolate-keys")
            .hint("`claviger lock` could not write what the kernel still holds back. Omit one of them.")
            .into());
    }
    if served.key_process.asked() && args.open.how.folder.reverse() {
        return Err(Error::unsupported("--isolate-keys for the encrypted view of a plain folder")
            .at(&args.open.path)
            .hint("Omit --isolate-keys.")
            .into());
    }
    if served.key_process.asked() && args.wants_folder() && !is_folder {
        return Err(key_process::no_folders().at(&args.open.path).into());
    }
    fuse::available()?;
    if !args.foreground && !served.background.in_background() {
        // A mount left by a killed server must not block its folder.
        mount::clean_all(&Runtime::of_this_user()?)?;
        // Checked here, without starting another process.
        if let Some(dir) = &args.dir {
            mount_point::empty_folder(dir)?;
        }
        return background::start(words, Stdio::inherit());
    }
    guard::no_dumps();
    cancel::install()?;
    if !args.read_only {
        args.open.note_read_only();
    }
    let parent = if args.with_parent { Some(served.background.caller()?) } else { None };
    let runtime = Runtime::of_this_user()?;
    mount::clean_all(&runtime)?;
    let point = MountPoint::new(args.dir.as_deref(), &args.open.path, &runtime)?;
    let dir = point.path().to_owned();

    if served.key_process.asked() && is_folder {
        let folder = served.key_process.open_folder(&args.open, access, words)?;
        serve_folder(args, folder, dir, parent, &runtime)?;
        return served.key_process.check();
    }
    let volume = match served.open_otherwise(&args.open, access, words)? {
        Some(volume) => volume,
        None => match args.open.open_for_files_protecting(access, &args.protect)? {
            Opened::Files(folder) => return serve_folder(args, *folder, dir, parent, &runtime),
            opened if args.wants_folder() => {
                let path = args.folder.as_deref().unwrap_or(OsStr::new("/"));
                let within = InsideArgs::of(served.logical_volume.clone());
                let folder = within.folder(&args.open, opened, files::inside(path))?;
                return serve_folder(args, folder, dir, parent, &runtime);
            }
            Opened::Bytes(volume) => served.volume(&args.open, *volume, access, None)?,
            Opened::Clear(_) => {
                let what = ErrorKind::NotThisFormat("it holds an unencrypted file system".into());
                let hint = "To mount it as is, add --raw. To mount an encrypted folder in it, add --folder PATH.";
                return Err(Error::new(what).hint(hint).at(&args.open.path).into());
            }
        },
    };
    let ServedVolume { facts, store, locking } = volume;
    let record = record(&args.open.path, facts.as_ref(), store.len())?;
    let record = SessionRecord { dir: Some(dir.clone()), ..record };
    let sector_size = store.sector_size();
    // The kernel's file systems have a cache above this store. File systems in user space, and ours, may rely on one below.
    let cached_above = args.filesystem == "none" || mount::by_kernel();
    let store = Arc::new(served.counted(&args.open, store, cached_above)?);
    // From here on, a signal must wake threads that wait in `poll`.
    let signals = signals()?;
    cancel::check()?;

    let request = args.request(dir);
    let live = runtime.begin(record)?;
    let locked = locking.as_ref().map(Locking::locked);
    let answering = answer(&live, &store, facts.as_ref(), locking)?;
    let empty = args.filesystem == "none" && looks_empty(&*store).unwrap_or(false);
    let mounted = mount::mount(store, &request, live).map_err(|e| e.at(&args.open.path))?;
    let waits = || locked.as_ref().is_some_and(|locked| locked());
    let contents = Contents { sector_size, empty };
    serve(args, mounted, contents, signals, parent, &waits)?;
    drop(answering);
    served.key_process.check()
}

/// Mounts an encrypted folder, and serves it until it is unmounted.
fn serve_folder(
    args: &Args,
    folder: OpenFolder,
    dir: PathBuf,
    parent: Option<Process>,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    args.served.trace.refuse()?;
    let OpenFolder { tree, format, .. } = folder;
    let size = tree.space()?.total;
    let record = SessionRecord { dir: Some(dir.clone()), ..record(&args.open.path, None, size)? };
    let record = SessionRecord { format: format.name().to_owned(), ..record };
    let tree = Arc::new(tree.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO))));
    let signals = signals()?;
    cancel::check()?;
    let live = runtime.begin(record)?;
    let counted = Arc::downgrade(&tree);
    let status = |tree: Arc<Stacked>| Status { traffic: tree.traffic(), ..Status::default() };
    let control = live.answer(move || counted.upgrade().map(status).unwrap_or_default())?;
    let mounted = mount::mount_folder(tree, FILES, &args.request(dir), live).map_err(|e| e.at(&args.open.path))?;
    let contents = Contents { sector_size: SMALLEST_SECTOR, empty: false };
    serve(args, mounted, contents, signals, parent, &|| false)?;
    drop(control);
    Ok(())
}

/// What the report says of the plaintext.
struct Contents {
    sector_size: u64,
    empty: bool,
}

/// Whether nothing seems to be in the volume: it begins with zeros or noise.
fn looks_empty(store: &dyn Store) -> claviger_engine::Result<bool> {
    const LOOKED_AT: u64 = 128 << 10;
    let part = 0..LOOKED_AT.min(store.len());
    let mut start = vec![0; part.end as usize];
    store.read_at(0, &mut start)?;
    Ok(start.iter().all(|byte| *byte == 0) || diagnosis::looks_random(store, part)?)
}

/// Reports the mount, and serves it until it is unmounted.
fn serve(
    args: &Args,
    mounted: MountedVolume,
    contents: Contents,
    signals: UnixStream,
    parent: Option<Process>,
    waits: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    cancel::serving();
    mounted.warnings().iter().for_each(|w| output::warn(w));
    if args.writeback && mounted.live().session().record.read_only {
        output::warn("--writeback has no effect: the mount is read-only.");
    }
    let SessionRecord { volume, dir, filesystem, format, size, read_only, server, .. } =
        mounted.live().session().record.clone();
    let report = MountReport {
        volume: escape(&volume),
        dir: dir.as_deref().map(escape).unwrap_or_default(),
        filesystem: filesystem.unwrap_or_default(),
        format,
        size,
        sector_size: contents.sector_size,
        empty: contents.empty,
        read_only,
        protects_hidden: args.protect.asked(),
        warnings: mounted.warnings().to_vec(),
        pid: server.pid,
    };
    args.served.ready(&report)?;
    let until = Until { signals: signals.as_fd(), parent, idle: args.idle, waits };
    Ok(mounted.serve(&until).map_err(|e| e.at(&args.open.path))?)
}

/// Becomes readable when a signal asks this process to end.
fn signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in cancel::SIGNALS {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    // A signal that came earlier counts, too.
    if cancel::cancelled() {
        (&write).write_all(b"1")?;
    }
    Ok(read)
}

/// Refuses to mount a folder over or inside itself: its encrypted files would be unreachable, or appear in their own plaintext.
fn apart(lower: &Path, dir: &Path) -> anyhow::Result<()> {
    let (Ok(lower), Ok(to)) = (lower.canonicalize(), dir.canonicalize()) else { return Ok(()) };
    match lower.is_dir() && to.starts_with(&lower) {
        true => Err(Error::misuse("a folder cannot be mounted over or inside itself")
            .at(dir)
            .hint("Choose an empty folder elsewhere.")
            .into()),
        false => Ok(()),
    }
}

impl Report for MountReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { volume, dir, filesystem, format, sector_size, empty, read_only, protects_hidden, .. } = self;
        let how = match (read_only, protects_hidden) {
            (true, _) => ", read-only",
            (_, true) => ", with the hidden volume in it protected",
            _ => "",
        };
        match &**filesystem {
            "none" => {
                writeln!(out, "{volume} ({format}) is the file {dir}/volume{how}.")?;
                if *empty && *sector_size > SMALLEST_SECTOR {
                    // A file has no sector size, so programs that create file systems cannot detect it.
                    writeln!(
                        out,
                        "No file system was recognised in that file. An encrypted volume looks the same, and creating a file \
                         system would destroy it. If the file is empty: mkfs.ext4 -b {sector_size}, \
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

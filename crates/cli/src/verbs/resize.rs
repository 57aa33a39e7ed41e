//! `claviger resize`: grows or shrinks a volume.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;

use claviger_engine::diagnosis;
use claviger_engine::formats::Resizing;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Advice, Error, ErrorKind, Spec, Store, Unlock};
use claviger_serve::mount;
use claviger_serve::sessions::{Runtime, Session, SessionRecord};
use serde::Serialize;

use crate::opening::editing::Named;
use crate::opening::{OpenArgs, ProtectArgs};
use crate::opening::{full_disk, remote};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt, size};

/// Fewer bytes than this are only the remainder after whole sectors, and may be lost without a question.
const SECTOR: u64 = 4096;

/// Resize a volume in a file
///
/// For LUKS, TrueCrypt and VeraCrypt. --size is the space for files; `create --size` is the whole file, header
/// included.
///
/// A volume that you have mounted or serve can grow, too: the mount follows, and NBD clients see the new size when they connect
/// again. If its device or remote store has grown, omit --size. To shrink it, or to resize one that is open with --protect-hidden or
/// has tags, unmount it first.
///
/// The file system inside is not resized, unless --filesystem says so: shrink it before, or grow it afterwards. With the volume mounted by
/// `claviger mount --filesystem none VOLUME DIR`, use `resize2fs DIR/volume` or `ntfsresize DIR/volume`. Mounted with
/// its file system, Btrfs is resized by `btrfs filesystem resize`, and XFS grown by `xfs_growfs`; XFS cannot shrink.
/// FAT and exFAT keep their size: copy their files to a new volume. Data that are cut off are lost.
///
/// LUKS needs no passphrase; TrueCrypt and VeraCrypt do, since their encrypted headers record the size. Both header
/// copies are rewritten, and the backup moves to the new end.
///
/// Only its password reveals a hidden volume. Growing the outer volume loses the hidden header's backup, and the
/// grown outer file system overwrites the hidden volume. A hidden volume from before TrueCrypt 6.0, whose only header
/// is at the end, is lost. Shrinking cuts a hidden volume off. With --protect-hidden, nothing is changed if there is
/// one.
///
/// New space is allocated at once and filled with random-looking bytes, which read as noise inside. If space runs
/// out, or on Ctrl-C, the volume keeps its size. If the program is killed, the file may remain longer; repeat
/// the command to continue.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger resize --size 2G disk.luks
  claviger resize --size 2G --filesystem /srv/mounted.luks
  claviger resize /dev/vg/mounted
  claviger resize --size 2G --protect-hidden container.hc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    protect: ProtectArgs,

    /// New size of the space for files: 2G, 1.5GiB. The file is larger by the volume's header [default: what the file, device or
    /// remote store offers to a LUKS volume that is mounted or served]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,

    /// Also grow the file system in it: ext3, ext4, XFS or Btrfs, mounted by claviger as root
    #[arg(long)]
    filesystem: bool,

    /// Do not fill the new space. Faster, but reveals which parts are in use
    #[arg(long)]
    quick: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Resized {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The old size of the plaintext, in bytes.
    before: u64,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// Size of the file, in bytes.
    stored: u64,
    /// Whether the file system in it has grown, too.
    filesystem_grown: bool,
    /// If the volume is mounted or served: the record of that.
    #[serde(skip)]
    in_use: Option<SessionRecord>,
}

/// The bytes of the file that will be lost. Bytes after a volume of fixed size do not belong to it, but are cut off or filled
/// nevertheless.
fn lost(resizing: &Resizing, args: &Args, stored: u64) -> u64 {
    let cut_off = resizing.before.saturating_sub(resizing.size).max(stored.saturating_sub(resizing.len));
    let filled = if args.quick { 0 } else { resizing.len.min(stored).saturating_sub(resizing.end) };
    cut_off.max(filled)
}

/// A prepared change of a volume in a file.
struct Ready<'a> {
    resizing: Resizing,
    file: &'a FileStore,
    format: &'static str,
    /// What else is lost with the bytes that are cut off, as a sentence.
    also_lost: &'static str,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    cancel::install()?;
    let header = args.open.header_args();
    let at = |e: Error| e.at(&header.path);
    let named = header.find(Access::ReadWrite)?;
    refuse(args, &named).map_err(at)?;
    let Some(size) = args.size else { return args.follow(&named) };
    if !named.editor.size_sealed() {
        let resizing = named.editor.resize(&*named.store, None, None, size).map_err(at)?;
        let format = named.format.name();
        let file = named.file.as_deref().ok_or_else(|| at(no_file()))?;
        return args.carry_out(Ready { resizing, file, format, also_lost: "" });
    }
    // The lock would block the next one.
    drop(named);
    let editing = args.open.edit(Access::ReadWrite)?;
    let hidden = args.protect.read()?;
    let with = Unlock { protect: args.protect.protect(hidden.as_deref()), ..editing.narrow() };
    let resizing = editing.editor.resize(&*editing.store, None, Some(&with), size).map_err(at)?;
    drop(hidden);
    let format = editing.format.name();
    let file = editing.file().ok_or_else(|| at(no_file()))?;
    args.carry_out(Ready { resizing, file, format, also_lost: " So is a hidden volume there." })
}

/// The size of a remote store is up to its owner.
fn no_file() -> Error {
    Error::unsupported("resizing a volume that is not in a local file")
        .hint("A LUKS volume of dynamic size follows the size of its store automatically.")
}

/// Refuses what no format supports.
fn refuse(args: &Args, named: &Named) -> claviger_engine::Result<()> {
    if args.open.files().len() > 1 {
        return Err(Error::misuse(
            "a volume with a detached header follows the size of its file or device \
             automatically",
        )
        .hint("To resize the file's own volume, omit --header."));
    }
    if args.open.header_args().in_partition() {
        return Err(Error::misuse("a partition's size is set by its partition table"));
    }
    if args.protect.asked() && !named.editor.size_sealed() {
        return Err(
            Error::misuse(format!("{} has no hidden volumes", named.format.name())).hint("Omit --protect-hidden.")
        );
    }
    if args.protect.on_stdin() && args.open.password_on_stdin() {
        return Err(Error::misuse("only one of the two passwords can come from standard input"));
    }
    let Some(file) = &named.file else { return args.size.map_or(Ok(()), |_| Err(no_file())) };
    if file.is_block_device() && args.size.is_some() {
        let error = Error::unsupported("resizing a block device");
        return Err(match named.editor.size_sealed() {
            true => error.advise(Advice::CopyVolume),
            false => error.hint("A volume of dynamic size follows the size of its device automatically."),
        });
    }
    Ok(())
}

/// Describes the bytes of a file after its volume.
fn left_behind(file: &FileStore, end: u64) -> claviger_engine::Result<&'static str> {
    Ok(match diagnosis::looks_random(file, end..file.len())? {
        true => "They look random, like the leftovers of an interrupted `claviger resize`.",
        false => "They do not look like the leftovers of an interrupted `claviger resize`.",
    })
}

impl Args {
    /// Asks if data will be lost, changes the volume and reports it.
    fn carry_out(&self, ready: Ready<'_>) -> anyhow::Result<()> {
        let Ready { resizing, file, format, also_lost } = ready;
        let at = |e: Error| e.at(&self.open.path);
        let path = FileName::path(&self.open.path);
        let before = resizing.before;
        let size = resizing.size;
        let in_use = self.in_use(file)?.map(|session| session.record);
        if file.lender().is_some() && (size < before || resizing.len < file.len()) {
            let holder = Some("claviger mounts or serves it, so it can only grow".to_owned());
            return Err(
                at(Error::new(ErrorKind::InUse { holder }).hint("Nothing was changed. Unmount it first.")).into()
            );
        }
        let growth = self.filesystem_growth(before, size, in_use.as_ref())?;
        let resized =
            Resized { path, format, before, size, stored: resizing.len, filesystem_grown: growth.is_some(), in_use };
        let lost = lost(&resizing, self, file.len());
        if lost >= SECTOR && !self.yes {
            let (lost, path) = (size::exact(lost), output::printable(&resized.path));
            let question = match (size < before, resizing.len < file.len()) {
                (true, _) => format!(
                    "The last {lost} of {path} will be cut off and lost.{also_lost} The file system in it must \
                     already be smaller: resize2fs, ntfsresize and btrfs can shrink theirs. Did you shrink it?"
                ),
                (false, true) => format!(
                    "{path} has {lost} after the volume's end, which will be cut off and lost.{also_lost} Continue?"
                ),
                // The volume grows into bytes that the file already has.
                (false, false) => format!(
                    "{path} has {lost} after the volume, which will be overwritten and become part of it. {} \
                     Anything stored there is lost, but no file in the volume.{also_lost} Continue?",
                    left_behind(file, resizing.end).map_err(at)?
                ),
            };
            prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("the size was not changed{why}"))))?;
        }
        advice::warn(&resizing.prepared.warnings);
        let bar = Progress::bytes("Filling");
        let show = |done, all| bar.at(done, all);
        let spec = Spec { quick: self.quick, cancel: Some(cancel::flag()), progress: Some(&show), ..Spec::default() };
        let before = file.len();
        let done = resizing.carry_out(file, &spec);
        drop(bar);
        done.map_err(|e| at(full_disk::explained(e, &self.open.path, resizing.len.saturating_sub(before))))?;
        self.report(resized, growth)
    }

    /// Lets a volume of dynamic size that is in use have the present size of its file or device.
    fn follow(&self, named: &Named) -> anyhow::Result<()> {
        let at = |e: Error| e.at(&self.open.path);
        let store = &*named.store;
        if store.lender().is_none() {
            let hint = match &named.file {
                Some(_) => "Give --size. A volume of dynamic size follows its file or device when it is opened.",
                None => "A volume of dynamic size follows its store when it is opened.",
            };
            return Err(at(Error::misuse("the volume is not in use, and there is no --size").hint(hint)).into());
        }
        if named.editor.size_sealed() {
            let what = "its header states its size, whatever the file has";
            return Err(at(Error::misuse(what).hint("Give --size.")).into());
        }
        // Nothing of this is written: only the present size matters.
        store.measure().map_err(|e| at(e.into()))?;
        let present = named.editor.resize(store, None, None, SECTOR).map_err(at)?;
        let session = self.in_use(store)?;
        let before = session.as_ref().and_then(|session| session.status()?.size).unwrap_or(present.before);
        let in_use = session.map(|session| session.record);
        let growth = self.filesystem_growth(before, present.before, in_use.as_ref())?;
        present.follow(store).map_err(at)?;
        let resized = Resized {
            path: FileName::path(&self.open.path),
            format: named.format.name(),
            before,
            size: present.before,
            stored: store.len(),
            filesystem_grown: growth.is_some(),
            in_use,
        };
        self.report(resized, growth)
    }

    /// Grows the file system, and reports what was done.
    fn report(&self, resized: Resized, growth: Option<Vec<OsString>>) -> anyhow::Result<()> {
        if let Some(growth) = growth {
            mount::grow_filesystem(&growth).map_err(|e| {
                let left = format!("The volume has grown, its file system has not: {}", output::command(&growth));
                e.at(&self.open.path).hint(left)
            })?;
        }
        output::print(&resized, self.json)
    }

    /// The session of the process that lends the store, unless its record has another name for a file.
    fn in_use(&self, store: &dyn Store) -> claviger_engine::Result<Option<Session>> {
        if store.lender().is_none() {
            return Ok(None);
        }
        let number = store.file().map(FileStore::number).transpose()?;
        let identity = remote::identity(&self.open.path)?;
        let is_it = |record: &SessionRecord| match number {
            Some(number) => fs::metadata(&record.volume).is_ok_and(|volume| (volume.dev(), volume.ino()) == number),
            None => identity.is_some() && record.remote == identity,
        };
        let here = |session: &Session| session.alive() && is_it(&session.record);
        Ok(Runtime::of_this_user()?.sessions()?.into_iter().find(here))
    }

    /// The command for --filesystem.
    fn filesystem_growth(
        &self,
        before: u64,
        size: u64,
        in_use: Option<&SessionRecord>,
    ) -> claviger_engine::Result<Option<Vec<OsString>>> {
        if !self.filesystem {
            return Ok(None);
        }
        let at = |e: Error| e.at(&self.open.path);
        if size < before {
            return Err(
                at(Error::misuse("--filesystem only grows a file system").hint("Shrink it before the volume.")),
            );
        }
        let record = in_use.ok_or_else(|| {
            at(Error::misuse("the volume is not mounted").hint("Mount it as root first, or omit --filesystem."))
        })?;
        let command = mount::filesystem_growth(record)?;
        mount::can_grow(&command)?;
        Ok(Some(command))
    }
}

impl Report for Resized {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format: _, before, size, stored, filesystem_grown, in_use } = self;
        let (shown, whole) = (output::printable(path), size::short(*stored));
        writeln!(out, "{shown}: {} of {whole} for files, previously {}", size::exact(*size), size::exact(*before))?;
        match in_use {
            Some(SessionRecord { remote: Some(_), .. }) if size == before => {
                return writeln!(
                    out,
                    "Its server reports no other size. If the store has grown, the server may have to be restarted."
                );
            }
            _ if size <= before => return Ok(()),
            _ => {}
        }
        if *filesystem_grown {
            return writeln!(out, "The file system in it has grown, too.");
        }
        let growth = in_use.as_ref().and_then(|record| mount::filesystem_growth(record).ok());
        if let Some(command) = growth {
            return writeln!(out, "Now grow the file system in it: {}", output::command(command));
        }
        match in_use {
            Some(SessionRecord { uri: Some(_), .. }) => {
                return writeln!(out, "NBD clients see the new size when they connect again.");
            }
            Some(SessionRecord { dir: Some(dir), filesystem: Some(none), .. }) if none == "none" => {
                let file = dir.join("volume");
                let command = output::command([OsStr::new("resize2fs"), file.as_os_str()]);
                return writeln!(out, "Now grow the file system in it, for ext2 to ext4: {command}");
            }
            Some(_) => writeln!(out, "Now unmount it, and grow the file system in it:")?,
            None => writeln!(out, "Now grow the file system in it:")?,
        }
        let mount = |options: &[&str]| {
            let words = ["claviger", "mount"].into_iter().chain(options.iter().copied());
            output::command(words.chain([&**path, "DIR"]))
        };
        writeln!(out, "  ext2 to 4, NTFS: {}", mount(&["--filesystem", "none"]))?;
        writeln!(out, "    then e2fsck -f DIR/volume && resize2fs DIR/volume")?;
        writeln!(out, "    or   ntfsresize DIR/volume")?;
        writeln!(out, "  XFS, Btrfs, as root: {}", mount(&[]))?;
        writeln!(out, "    then xfs_growfs DIR")?;
        writeln!(out, "    or   btrfs filesystem resize max DIR")?;
        writeln!(out, "  FAT and exFAT keep their size: copy the files to a new, larger volume.")
    }
}

//! `claviger cp`: copies files out of a volume or into it, without mounting it.

mod salvage;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use claviger_engine::internal::files::{rename_new, sync_folder};
use claviger_engine::store::Access;
use claviger_engine::trees::{Entry, HeldNode, NewNode, Node, NodeKind, OpenFile, Renaming, Tree, Use};
use claviger_engine::{Error, ErrorKind};
use serde::Serialize;

use crate::opening::files::{self, FoundNode, Inside, InsideArgs, tree_error};
use crate::opening::full_disk;
use crate::opening::{OpenArgs, ProtectArgs};
use crate::terminal::exit::Silent;
use crate::terminal::left_out::LeftOut;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, size};
use crate::verbs::tree::DEEPEST;
use salvage::Salvaged;

/// What to try where a slash at the end names a folder that does not exist.
const WITHOUT_SLASH: &str = "For a file of that name, omit the slash at the end.";

/// The bytes copied at a time.
const PIECE: usize = 4 << 20;

/// Copy files out of a volume or into it, without mounting it
///
/// A path inside the volume begins with a colon; other paths are on this machine. Either the destination or all
/// sources are inside the volume. Reads FAT, exFAT, NTFS, ext2, ext3 and ext4, and writes FAT and exFAT. Nothing is
/// overwritten without --force. Symbolic links are copied last and never followed. A file appears under its name only
/// when it is complete.
///
/// Files that cannot be copied are listed, and copying continues: unreadable or undecryptable files, names that the
/// destination cannot hold, pipes, sockets and devices. The exit status is then 4 if something is damaged, else 6, 2
/// or 5. From NTFS, contents are copied; alternate data streams are only counted.
///
/// VOLUME may also be an encrypted folder or an unencrypted image. With an option for encrypted folders, the one on
/// the path is opened.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger cp old.tc :/letters/1998.doc .
  claviger cp -r old.tc :/ everything/
  claviger cp old.tc report.pdf notes.txt :/letters/
  claviger cp -r --force old.tc photos :/
  claviger cp -r --format eCryptfs disk.img :/home/.ecryptfs/me/.Private home/
  claviger cp --protect-hidden outer.tc letter.txt :/")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The sources, then the destination; paths inside the volume begin with `:`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    /// Copy folders with their contents
    #[arg(short, long)]
    recursive: bool,

    /// Overwrite files
    #[arg(short, long)]
    force: bool,

    /// Also copy out what is left of damaged files, and files whose names do not decrypt, under their stored names;
    /// exit with 4 if there are any
    #[arg(long)]
    salvage: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    which: InsideArgs,

    #[command(flatten)]
    protect: ProtectArgs,
}

#[derive(Default, Serialize)]
struct Copied {
    files: u64,
    folders: u64,
    /// Symbolic links.
    links: u64,
    bytes: u64,
    /// What was left out, and why.
    left_out: LeftOut,
    /// Files that were copied only in part, or under their stored names, with `--salvage`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    salvaged: Vec<Salvaged>,
    /// NTFS alternate data streams of the copied files, which were not copied: `PATH:STREAM`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<String>,
}

impl Copied {
    /// Whether nothing was copied.
    fn nothing(&self) -> bool {
        self.files + self.folders + self.links == 0 && self.salvaged.is_empty()
    }

    /// Records the outcome for a file. Fails if copying cannot continue.
    fn note<T>(&mut self, path: &OsStr, done: Done<T>) -> anyhow::Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Trouble::One(why)) => Ok(self.left_out.add(path, why).map(|()| None)?),
            Err(Trouble::All(error)) => Err(error),
        }
    }
}

/// The outcome of copying a file.
type Done<T> = Result<T, Trouble>;

/// Why a file was not copied.
#[derive(Debug)]
enum Trouble {
    /// Only this file is left out: it cannot be read, or the destination cannot hold it.
    One(Error),
    /// Copying cannot continue.
    All(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::All(error.into())
    }
}

impl Trouble {
    /// Says of a full disk what the file needs.
    fn of_full_disk<F>(self, item: &Item<F>) -> Self {
        match self {
            Self::All(error) => Self::All(match error.downcast::<Error>() {
                Ok(error) => full_disk::explained(error, &item.to, item.size).into(),
                Err(error) => error,
            }),
            one @ Self::One(_) => one,
        }
    }
}

/// An error of the destination: either it cannot hold this name or kind of file, or it fails as a whole.
fn of_destination(error: Error) -> Trouble {
    let refuses = |kind| {
        matches!(kind, io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
    };
    match &error.kind {
        ErrorKind::Unsupported { .. } => Trouble::One(error),
        ErrorKind::Io(e) if refuses(e.kind()) => Trouble::One(error),
        _ => Trouble::All(error.into()),
    }
}

/// A file, folder or link to copy. Folders come before their contents.
struct Item<F> {
    from: F,
    from_path: OsString,
    to: PathBuf,
    is_folder: bool,
    size: u64,
    /// The target of a symbolic link.
    target: Option<OsString>,
    /// Whether the name does not decrypt, and is therefore the stored one.
    stored_name: bool,
}

/// Moves links to the end, so that nothing is ever written through a copied link.
fn links_last<F>(items: &mut [Item<F>]) {
    items.sort_by_key(|item| item.target.is_some());
}

/// A source inside the volume. Only folders are kept open until then: there may be more files than can be open.
enum Source<'a> {
    Named(Rc<FoundNode<'a>>),
    In(Rc<FoundNode<'a>>, Entry),
}

impl<'a> Source<'a> {
    fn held(&self, opened: &'a Inside, path: &OsStr) -> Result<Rc<FoundNode<'a>>, Error> {
        match self {
            Self::Named(found) => Ok(found.clone()),
            Self::In(folder, entry) => opened.take(folder.node(), entry, path).map(Rc::new),
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Some((to, from)) = args.paths.split_last().filter(|(_, from)| !from.is_empty()) else {
        return Err(Error::misuse("the source or the destination is missing")
            .hint("To copy out: `claviger cp VOLUME :/FILE FOLDER`. To copy in: `claviger cp VOLUME FILE :/`.")
            .into());
    };
    let is_inside = |path: &OsString| path.as_bytes().starts_with(b":");
    let mut copied = match (from.iter().all(is_inside), from.iter().any(is_inside), is_inside(to)) {
        (true, _, false) => {
            let first = files::inside(&from[0]);
            let opened = args.which.open_protecting(&args.open, Access::ReadOnly, &args.protect, first)?;
            out(args, &opened, from, Path::new(to))?
        }
        (_, false, true) => {
            let opened = args.which.open_protecting(&args.open, Access::ReadWrite, &args.protect, files::inside(to))?;
            if opened.in_clear {
                let what = "it is not encrypted: anybody could read files copied into it";
                return Err(Error::misuse(what).at(&args.open.path).into());
            }
            if args.salvage {
                return Err(Error::misuse("--salvage only works for copying out of the volume").into());
            }
            if !opened.tree.writable() {
                let what = format!(
                    "{} is read-only without the kernel",
                    opened.filesystem.as_ref().map_or("this folder", |f| f.kind.name())
                );
                let hint =
                    "Without the kernel, only FAT and exFAT can be written. For others, use `claviger mount VOLUME`.";
                return Err(Error::unsupported(what).hint(hint).at(&args.open.path).into());
            }
            let copied = into(args, &opened, from, files::inside(to));
            // Files that were copied before an error stay, durably.
            let finished = opened.tree.finish().map_err(|e| Error::from(e).at(&args.open.path));
            let copied = copied?;
            finished?;
            copied
        }
        _ => {
            let what = "either all sources or the destination must be inside the volume";
            return Err(Error::misuse(what)
                .hint("Paths inside the volume begin with a colon, as in :/letters.")
                .into());
        }
    };
    if copied.nothing() && copied.left_out.len() == 1 {
        // The only requested file could not be copied.
        let only = std::mem::take(&mut copied.left_out).into_only();
        return only.map_or(Ok(()), |why| Err(why.into()));
    }
    output::print(&copied, args.json)?;
    if copied.salvaged.is_empty() { copied.left_out.end() } else { Err(Silent::damaged().into()) }
}

impl Report for Copied {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (files, folders) = (size::count(self.files, "file"), size::count(self.folders, "folder"));
        let links = match self.links {
            0 => String::new(),
            links => format!(", {}", size::count(links, "symbolic link")),
        };
        writeln!(out, "{files} and {folders} copied, {}{links}", size::exact(self.bytes))?;
        if let Some(first) = self.streams.first() {
            let all = self.streams.len();
            writeln!(
                out,
                "not copied: {}, such as {first}{}",
                size::count(all as u64, "alternate data stream"),
                if all > 1 { " (--json lists them)" } else { "" }
            )?;
        }
        self.left_out.tell(out)?;
        self.salvaged.iter().try_for_each(|file| match (file.copied, file.lost) {
            _ if file.as_stored => writeln!(out, "saved under its stored name: {} ({})", file.path, file.why),
            (0, _) => writeln!(out, "nothing salvaged of {}: {}", file.path, file.why),
            (copied, 0) => writeln!(out, "salvaged {copied} of {} bytes of {}: {}", file.size, file.path, file.why),
            (copied, lost) => writeln!(
                out,
                "salvaged {copied} of {} bytes of {}, {lost} of them zeros: {}",
                file.size, file.path, file.why
            ),
        })
    }
}

// Out of the volume

fn out(args: &Args, opened: &Inside, from: &[OsString], to: &Path) -> anyhow::Result<Copied> {
    let into_folder = to.is_dir();
    if from.len() > 1 && !into_folder {
        return Err(Error::misuse("to copy several files, the destination must be a folder").at(to).into());
    }
    if let (true, Some(folder)) = (args.salvage, &opened.folder) {
        folder.tree.show_stored_names();
    }
    let (above, stored_names, items) = (Vec::new(), HashSet::new(), Vec::new());
    let mut plan = Plan { args, opened, above, stored_names, items, copied: Copied::default() };
    for path in from {
        let path = files::inside(path);
        let name = Path::new(path).file_name();
        // The root has no name: its contents are copied.
        let item_to = match name {
            Some(name) if into_folder => to.join(name),
            _ => to.to_owned(),
        };
        match opened.find(path) {
            Ok(found) => plan.add(Source::Named(Rc::new(found)), path, item_to)?,
            Err(e) => plan.copied.left_out.add(path, e)?,
        }
    }
    let Plan { mut items, mut copied, .. } = plan;
    let whole = args.recursive && from.iter().any(|path| Path::new(files::inside(path)).file_name().is_none());
    if let Some(folder) = opened.folder.as_ref().filter(|_| whole) {
        for (path, why) in folder.tree.lost().map_err(Error::from)? {
            copied.left_out.add(Path::new("/").join(path).as_os_str(), why)?;
        }
    }
    links_last(&mut items);
    // Sizes in a damaged file system may be arbitrary.
    let all = items.iter().fold(0u64, |all, item| all.saturating_add(item.size));
    let bar = Progress::bytes("Copying");
    let mut missing: Vec<PathBuf> = Vec::new();
    for item in items {
        cancel::check()?;
        // The contents of a folder that cannot be created are left out, too.
        if missing.iter().any(|folder| item.to.starts_with(folder)) {
            continue;
        }
        let path = &item.from_path;
        if item.is_folder {
            match copied.note(path, make_folder(&item.to, item.to == to))? {
                // The root is not counted: it is the destination's folder, which only may be new.
                Some(made) => copied.folders += u64::from(made && Path::new(path).file_name().is_some()),
                None => missing.push(item.to),
            }
        } else if let Some(target) = &item.target {
            copied.links += u64::from(copied.note(path, link_out(args, &item, target))?.is_some());
        } else {
            let before = copied.bytes;
            let done = file_out(args, opened, &item, |done| bar.at(before.saturating_add(done), all));
            let done = done.map_err(|e| e.of_full_disk(&item));
            let done = copied.note(path, done)?;
            if item.stored_name {
                let made = |file: &FileOut| file.salvaged.as_ref().map_or(Some(item.size), Salvaged::size_if_made);
                salvage::note_size(&mut copied.salvaged, path, done.as_ref().and_then(made));
            }
            let Some(FileOut { salvaged, streams }) = done else { continue };
            let (size, made) = salvaged.as_ref().map_or((item.size, true), |file| (file.copied, file.made()));
            copied.files += u64::from(made);
            copied.bytes = copied.bytes.saturating_add(size);
            copied.salvaged.extend(salvaged);
            copied.streams.extend(streams.iter().map(|name| format!("{}:{}", files::shown(path), files::shown(name))));
        }
    }
    Ok(copied)
}

/// What is known before anything is written.
struct Plan<'a> {
    args: &'a Args,
    opened: &'a Inside,
    /// The ancestors of the current folder: a folder that contains itself is not entered again.
    above: Vec<Node>,
    /// The folders that hold names that do not decrypt.
    stored_names: HashSet<OsString>,
    items: Vec<Item<Source<'a>>>,
    copied: Copied,
}

impl<'a> Plan<'a> {
    /// Adds a file, or a folder with its contents.
    fn add(&mut self, from: Source<'a>, path: &OsStr, to: PathBuf) -> anyhow::Result<()> {
        cancel::check()?;
        let planned = self.item(from, path, to);
        self.copied.note(path, planned)?;
        Ok(())
    }

    fn item(&mut self, from: Source<'a>, path: &OsStr, to: PathBuf) -> Done<()> {
        let found = from.held(self.opened, path).map_err(Trouble::One)?;
        let node = found.node();
        if self.above.contains(&node) || self.above.len() >= DEEPEST {
            return Err(Trouble::One(malformed("folder", "it contains itself or is nested too deep")));
        }
        let attributes = self.opened.attributes(node, path).map_err(Trouble::One)?;
        if attributes.kind != NodeKind::Folder && files::names_folder(to.as_os_str()) {
            let hint = format!("Create it first with mkdir. {WITHOUT_SLASH}");
            return Err(Error::misuse("there is no such folder").at(&to).hint(hint).into());
        }
        let (from_path, size) = (path.to_owned(), attributes.size);
        let stored_name = self.stored_names.contains(path);
        let item = Item { from, from_path, to, is_folder: false, size, target: None, stored_name };
        match attributes.kind {
            NodeKind::File => self.items.push(item),
            NodeKind::Link => {
                let target = self.opened.tree.link_target(node).map_err(|e| Trouble::One(e.into()))?;
                self.items.push(Item { size: 0, target: Some(target), ..item });
            }
            NodeKind::Special => return Err(Trouble::One(self.opened.why_special(node))),
            NodeKind::Folder if !self.args.recursive => {
                let what = format!("{} is a folder", files::shown(path));
                return Err(Error::misuse(what).hint("To copy folders, add -r.").into());
            }
            NodeKind::Folder => {
                let to = item.to.clone();
                self.items.push(Item { is_folder: true, size: 0, ..item });
                self.above.push(node);
                let done = self.contents(&found, path, &to);
                self.above.pop();
                done?;
            }
        }
        Ok(())
    }

    fn contents(&mut self, folder: &Rc<FoundNode<'a>>, path: &OsStr, to: &Path) -> Done<()> {
        let list = self.opened.list(folder.node(), path).map_err(Trouble::One)?;
        for name in list.left_out {
            let path = files::below(path, &name.name);
            if name.listed {
                self.copied.salvaged.push(Salvaged::under_stored_name(files::shown(&path), &name.why));
                self.stored_names.insert(path);
            } else {
                self.copied.left_out.add(&path, name.why)?;
            }
        }
        for entry in list.entries {
            let inner = files::below(path, &entry.name);
            // A tree should return no such names. In any case, nothing may be written outside the destination.
            let plain = Path::new(&entry.name).components().eq([std::path::Component::Normal(&entry.name)]);
            if !plain || entry.name.as_bytes().contains(&0) {
                self.copied.left_out.add(&inner, malformed("name", "no file can have it"))?;
            } else {
                let to = to.join(&entry.name);
                self.add(Source::In(folder.clone(), entry), &inner, to)?;
            }
        }
        Ok(())
    }
}

fn malformed(field: &'static str, what: &str) -> Error {
    ErrorKind::Malformed { field, offset: 0, what: what.into() }.into()
}

/// Creates a folder on this machine unless it exists; returns whether it is new. A link to a folder counts only if the user
/// `named` it: a found link may lead anywhere.
fn make_folder(path: &Path, named: bool) -> Done<bool> {
    let at = |e: io::Error| of_destination(Error::from(e).at(path));
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let there = if named { fs::metadata(path) } else { fs::symlink_metadata(path) }.map_err(at)?;
            if there.is_dir() { Ok(false) } else { Err(exists(path).into()) }
        }
        Err(e) => Err(at(e)),
    }
}

fn exists(path: &Path) -> Error {
    Error::misuse("it already exists").at(path).hint("To overwrite files, add --force.")
}

/// Whether a file or link may get this name: without --force, existing files are never replaced.
fn may_take(args: &Args, to: &Path) -> anyhow::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(there) if there.is_dir() => Err(Error::misuse("it is a folder").at(to).into()),
        Ok(there) if is_volume(&there, args) => {
            Err(Error::misuse("it is the volume being copied from").at(to).hint("Nothing was changed.").into())
        }
        Ok(_) if !args.force => Err(exists(to).into()),
        _ => Ok(()),
    }
}

/// Creates a symbolic link with any target.
fn link_out<F>(args: &Args, item: &Item<F>, target: &OsStr) -> Done<()> {
    let to = &item.to;
    may_take(args, to)?;
    let made = match fs::symlink_metadata(to) {
        // The replacement is atomic.
        Ok(_) => {
            let temporary = to.with_file_name(format!(".claviger-{}.link", std::process::id()));
            symlink(target, &temporary)
                .and_then(|()| fs::rename(&temporary, to).inspect_err(|_| drop(fs::remove_file(&temporary))))
        }
        Err(_) => symlink(target, to),
    };
    made.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(to).into(),
        io::ErrorKind::StorageFull => Error::from(e).at(to).into(),
        // The file system has no links, or the target is not a path: an empty one, for instance.
        _ => Trouble::One(Error::unsupported(format!("creating a symbolic link there: {e}"))),
    })
}

/// The outcome of a file.
struct FileOut {
    /// Why the file is incomplete or has its stored name, with `--salvage`.
    salvaged: Option<Salvaged>,
    /// The names of the file's streams.
    streams: Vec<OsString>,
}

/// Copies a file, or with `--salvage` its readable part.
fn file_out<'a>(args: &Args, opened: &'a Inside, item: &Item<Source<'a>>, show: impl Fn(u64)) -> Done<FileOut> {
    let to = &item.to;
    let at = |e: io::Error| of_destination(Error::from(e).at(to));
    may_take(args, to)?;
    let found = item.from.held(opened, &item.from_path).map_err(Trouble::One)?;
    let node = found.node();
    let attributes = opened.attributes(node, &item.from_path).map_err(Trouble::One)?;
    let partial = Partial::new(to, attributes.mode.map_or(0o666, |mode| u32::from(mode) & 0o777))?;
    let mut buffer = vec![0; PIECE.min(item.size.max(1) as usize)];
    let mut done = 0;
    let mut salvaged = None;
    // If opening fails, reading fails as well, with the reason.
    let _open = OpenFile::new(&*opened.tree, node);
    // An empty file is read once, too: it may be damaged.
    loop {
        cancel::check()?;
        let len = (item.size - done).clamp(1, PIECE as u64) as usize;
        let read = opened.tree.read_at(node, done, &mut buffer[..len]).and_then(|read| match read {
            0 if item.size > 0 => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than its recorded size"))
            }
            read => Ok(read),
        });
        let read = match read.map_err(Error::from) {
            Ok(read) => read,
            // In an empty file, nothing is encrypted.
            Err(why) if item.size == 0 && is_about_the_key(&why) => 0,
            Err(why) if args.salvage => {
                let path = (&*item.from_path, item.stored_name);
                let file = salvage::rest(opened, node, path, (done, item.size), &why, &partial.file)?;
                // A file that cannot be read without a key, or at all, is left out; the existing one stays.
                if !file.made() && is_about_the_key(&why) {
                    return Err(Trouble::One(why));
                }
                if !file.made() {
                    return Ok(FileOut { salvaged: Some(file), streams: Vec::new() });
                }
                salvaged = Some(file);
                break;
            }
            Err(why) => return Err(Trouble::One(why)),
        };
        // It may have grown since it was listed.
        let read = read.min((item.size - done) as usize);
        (&partial.file).write_all(&buffer[..read]).map_err(at)?;
        done += read as u64;
        show(done);
        if done >= item.size {
            break;
        }
    }
    if let Some(modified) = attributes.modified
        && let Err(e) = partial.file.set_times(FileTimes::new().set_modified(modified))
    {
        // Some file systems cannot store every time; the file is kept anyway.
        output::warn(&format!("{}: its date was not kept: {e}", output::printable(&to.to_string_lossy())));
    }
    partial.complete(to, args.force)?;
    Ok(FileOut { salvaged, streams: opened.tree.streams(node).unwrap_or_default() })
}

fn is_about_the_key(why: &Error) -> bool {
    matches!(why.kind, ErrorKind::Unsupported { .. } | ErrorKind::WrongCredential(_))
}

/// Whether this is the file that holds the volume: replacing it would destroy the volume.
fn is_volume(there: &fs::Metadata, args: &Args) -> bool {
    fs::metadata(&args.open.path).is_ok_and(|volume| (volume.dev(), volume.ino()) == (there.dev(), there.ino()))
}

/// A file that is being written under a temporary name beside its final one. Removed when dropped.
struct Partial {
    path: PathBuf,
    file: File,
    complete: bool,
}

impl Partial {
    fn new(to: &Path, mode: u32) -> anyhow::Result<Self> {
        let folder = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for number in 0..1000 {
            let path = folder.join(format!(".claviger-{}-{number}.part", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(mode | 0o200).open(&path) {
                Ok(file) => return Ok(Self { path, file, complete: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::from(e).at(to).into()),
            }
        }
        Err(Error::misuse("its folder is full of partial files").at(to).into())
    }

    fn complete(mut self, to: &Path, replace: bool) -> Done<()> {
        let renamed = match replace {
            // After a power cut, either the old file or its complete successor must exist, and every copy reported as done.
            true => self.file.sync_all().and_then(|()| fs::rename(&self.path, to)).and_then(|()| sync_folder(to)),
            false => rename_new(&self.path, to),
        };
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => exists(to).into(),
            _ => of_destination(Error::from(e).at(to)),
        })?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.complete {
            let _ = fs::remove_file(&self.path);
        }
    }
}

// Into the volume

fn into(args: &Args, opened: &Inside, from: &[OsString], to: &OsStr) -> anyhow::Result<Copied> {
    let existing = match opened.find(to) {
        Ok(found) => Some(opened.attributes(found.node(), to)?.kind),
        Err(e) if matches!(e.kind, ErrorKind::Misuse(_)) => None,
        Err(e) => return Err(e.into()),
    };
    let into_folder = existing == Some(NodeKind::Folder);
    if from.len() > 1 && !into_folder {
        return Err(Error::misuse(format!(
            "to copy several files, the destination must be a folder, and {} is none",
            files::shown(to)
        ))
        .into());
    }
    let mut copied = Copied::default();
    let mut items = Vec::new();
    for path in from {
        let path = Path::new(path);
        let to = match path.file_name() {
            Some(name) if into_folder => files::below(to, name),
            _ => to.to_owned(),
        };
        let planned = plan_in(args, path, to.into(), 0, &mut items, &mut copied);
        copied.note(path.as_os_str(), planned)?;
    }
    links_last(&mut items);
    let all: u64 = items.iter().map(|item| item.size).sum();
    let free = opened.tree.space().map_err(Error::from)?.free;
    if all > free {
        return Err(Error::from(full_disk::of_sizes(all, free)).at(&args.open.path).into());
    }
    let bar = Progress::bytes("Copying");
    let mut missing: Vec<PathBuf> = Vec::new();
    for item in items {
        cancel::check()?;
        // The contents of a folder that cannot be created are left out, too.
        if missing.iter().any(|folder| item.to.starts_with(folder)) {
            continue;
        }
        let (from, is_folder) = (item.from_path.clone(), item.is_folder);
        let done = item_in(args, opened, &item, &mut copied, |done| bar.at(done, all));
        if copied.note(&from, done)?.is_none() && is_folder {
            missing.push(item.to);
        }
    }
    Ok(copied)
}

fn item_in(args: &Args, opened: &Inside, item: &Item<PathBuf>, copied: &mut Copied, show: impl Fn(u64)) -> Done<()> {
    let to = item.to.as_os_str();
    let name = item.to.file_name().unwrap_or_default();
    let parent = item.to.parent().unwrap_or(Path::new("/")).as_os_str();
    let found = opened.find(parent)?;
    let folder = found.node();
    if item.is_folder {
        if !name.is_empty() && HeldNode::lookup(&*opened.tree, folder, name).is_err() {
            let made = opened.tree.make_folder(folder, name, &NewNode::default());
            opened.tree.forget(made.map_err(|e| of_destination(tree_error(e, to)))?, 1);
            copied.folders += 1;
        }
    } else if let Some(target) = &item.target {
        link_in(args, opened, (folder, name), item, target)?;
        copied.links += 1;
    } else {
        let size = file_in(args, opened, item, folder, name, |done| show(copied.bytes + done))?;
        copied.files += 1;
        copied.bytes += size;
    }
    Ok(())
}

fn plan_in(
    args: &Args,
    path: &Path,
    to: PathBuf,
    depth: usize,
    items: &mut Vec<Item<PathBuf>>,
    copied: &mut Copied,
) -> Done<()> {
    cancel::check()?;
    let unread = |e: io::Error| Trouble::One(e.into());
    // A path on the command line may be a link; links in folders are not followed.
    let metadata = if depth == 0 { fs::metadata(path) } else { fs::symlink_metadata(path) }.map_err(unread)?;
    let is_folder = metadata.is_dir();
    if is_folder && !args.recursive {
        return Err(Error::misuse("it is a folder").at(path).hint("To copy folders, add -r.").into());
    }
    if !is_folder && files::names_folder(to.as_os_str()) {
        let what = format!("{} is not a folder in the volume", files::shown(to.as_os_str()));
        let hint = format!("To create it there, copy an empty folder with -r. {WITHOUT_SLASH}");
        return Err(Error::misuse(what).hint(hint).into());
    }
    if depth >= DEEPEST {
        return Err(Trouble::One(Error::unsupported("it is nested too deep")));
    }
    let (from, from_path) = (path.to_owned(), path.as_os_str().to_owned());
    let item = Item { from, from_path, to, is_folder, size: 0, target: None, stored_name: false };
    if metadata.is_symlink() {
        let target = fs::read_link(path).map_err(unread)?;
        items.push(Item { target: Some(target.into()), ..item });
    } else if is_folder {
        let to = item.to.clone();
        items.push(item);
        let mut inner: Vec<_> = fs::read_dir(path).map_err(unread)?.collect::<io::Result<_>>().map_err(unread)?;
        inner.sort_by_key(fs::DirEntry::file_name);
        for entry in inner {
            let path = entry.path();
            let planned = plan_in(args, &path, to.join(entry.file_name()), depth + 1, items, copied);
            copied.note(path.as_os_str(), planned)?;
        }
    } else if metadata.is_file() {
        items.push(Item { size: metadata.len(), ..item });
    } else {
        return Err(Trouble::One(Error::unsupported("it is a device, pipe or socket")));
    }
    Ok(())
}

/// Creates a symbolic link in the volume, if its file system has links.
fn link_in(
    args: &Args,
    opened: &Inside,
    (folder, name): (Node, &OsStr),
    item: &Item<PathBuf>,
    target: &OsStr,
) -> Done<()> {
    let tree = &*opened.tree;
    let inside = |e: io::Error| of_destination(tree_error(e, item.to.as_os_str()));
    may_take_inside(args, opened, folder, name, item)?;
    let temporary = OsString::from(format!("claviger-{}.link", std::process::id()));
    let made = tree.make_link(folder, &temporary, target, &NewNode::default()).map_err(|e| match e.kind() {
        io::ErrorKind::Unsupported => Trouble::One(Error::unsupported(format!("a symbolic link there: {e}"))),
        _ => inside(e),
    })?;
    let made = HeldNode::new(tree, made);
    let how = if args.force { Renaming::Replace } else { Renaming::Keep };
    let renamed = tree.rename(folder, &temporary, folder, name, how).map_err(inside);
    drop(made);
    if renamed.is_err() {
        // Best effort: the original error is reported, not one that follows from it.
        let _ = tree.remove(folder, &temporary);
    }
    renamed
}

/// Whether a file or link may get this name inside: without --force, existing files are never replaced.
fn may_take_inside(
    args: &Args,
    opened: &Inside,
    folder: Node,
    name: &OsStr,
    item: &Item<PathBuf>,
) -> anyhow::Result<()> {
    let tree = &*opened.tree;
    let to = item.to.as_os_str();
    match HeldNode::lookup(tree, folder, name) {
        Ok(there) if tree.attributes(there.node()).map_err(|e| tree_error(e, to))?.kind == NodeKind::Folder => {
            Err(Error::misuse(format!("{} in the volume is a folder", files::shown(to))).into())
        }
        Ok(_) if !args.force => {
            let what = format!("{} is already in the volume", files::shown(to));
            Err(Error::misuse(what).hint("To overwrite files, add --force.").into())
        }
        _ => Ok(()),
    }
}

/// Copies a file in under a temporary name, and renames it at the end. Returns its size.
fn file_in(
    args: &Args,
    opened: &Inside,
    item: &Item<PathBuf>,
    folder: Node,
    name: &OsStr,
    show: impl Fn(u64),
) -> Done<u64> {
    let tree = &*opened.tree;
    let inside = |e: io::Error| of_destination(tree_error(e, item.to.as_os_str()));
    may_take_inside(args, opened, folder, name, item)?;
    let file = File::open(&item.from).map_err(|e| Trouble::One(e.into()))?;
    let temporary = OsString::from(format!("claviger-{}.part", std::process::id()));
    let usage = Use { read: false, write: true };
    let made = tree.create_open(folder, &temporary, &NewNode::default(), usage).map_err(inside)?;
    let made = HeldNode::new(tree, made);
    let node = made.node();
    let copied = (|| -> Done<u64> {
        let size = contents_in(opened, file, item, node, show);
        let released = tree.release(node).map_err(inside);
        let size = size?;
        released?;
        let how = if args.force { Renaming::Replace } else { Renaming::Keep };
        tree.rename(folder, &temporary, folder, name, how).map_err(inside)?;
        Ok(size)
    })();
    if copied.is_err() {
        // Best effort: the original error is reported, not one that follows from it.
        let _ = tree.remove(folder, &temporary);
    }
    copied
}

fn contents_in(opened: &Inside, mut file: File, item: &Item<PathBuf>, node: Node, show: impl Fn(u64)) -> Done<u64> {
    let at = |e: io::Error| Trouble::One(e.into());
    let inside = |e: io::Error| of_destination(tree_error(e, item.to.as_os_str()));
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    loop {
        cancel::check()?;
        let read = file.read(&mut buffer).map_err(at)?;
        if read == 0 {
            break;
        }
        opened.tree.write_at(node, done, &buffer[..read]).map_err(inside)?;
        done += read as u64;
        show(done);
    }
    let modified = file.metadata().and_then(|m| m.modified()).map_err(at)?;
    opened.tree.set_times(node, Some(modified), None).map_err(inside)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_followed_only_where_a_person_named_it() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (elsewhere, link) = (dir.path().join("elsewhere"), dir.path().join("link"));
        assert!(make_folder(&elsewhere, false).expect("made") && !make_folder(&elsewhere, false).expect("there"));
        symlink(&elsewhere, &link).expect("a link");
        assert!(!make_folder(&link, true).expect("a folder"));
        let Err(Trouble::All(error)) = make_folder(&link, false) else { panic!("what is in it may be anywhere") };
        let error = error.to_string();
        assert!(error.contains("already exists"), "{error}");
    }
}

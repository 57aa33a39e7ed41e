//! `claviger cp`: files out of a volume and into it, without mounting it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use claviger_engine::store::Access;
use claviger_engine::store::files::{rename_new, sync_folder};
use claviger_engine::trees::{Entry, Held, NewNode, Node, NodeKind, OpenFile, Renaming, Use};
use claviger_engine::{Error, ErrorKind};
use serde::Serialize;

use crate::opening::files::{self, Found, Inside, InsideArgs, tree_error};
use crate::opening::{OpenArgs, ProtectArgs};
use crate::terminal::exit::Silent;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, size};
use crate::verbs::folders::salvage::{self, Salvaged};
use crate::verbs::tree::DEEPEST;

/// Bytes that are copied at a time.
const PIECE: usize = 4 << 20;

/// Copy files out of a volume or into it, without mounting it
///
/// A path inside the volume begins with a colon; other paths are on this machine. Either the destination or all sources
/// are inside the volume. Reads FAT, exFAT, NTFS, ext2, ext3 and ext4, and writes FAT and exFAT. Nothing is overwritten without --force.
/// Symbolic links are copied as such, after all else, and never followed; what cannot be copied is reported. A file appears under its name
/// only when it is complete.
///
/// VOLUME may also be a folder whose files are encrypted one by one, or an image that is not encrypted; with an option for such
/// folders, the one in it into which the paths lead is opened.
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

    /// Copy what is left of files that are damaged or cut short, out of the volume, and go on; ends with 4 if there are some
    #[arg(long)]
    salvage: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

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
    left_out: Vec<String>,
    /// What was not copied whole, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    salvaged: Vec<Salvaged>,
}

/// Something to copy. Folders come before what is in them.
struct Item<F> {
    from: F,
    from_path: OsString,
    to: PathBuf,
    is_folder: bool,
    size: u64,
    /// Of a symbolic link, where it points to.
    target: Option<OsString>,
}

/// Puts links behind all else: nothing is ever written through one that was in what is copied.
fn links_last<F>(items: &mut [Item<F>]) {
    items.sort_by_key(|item| item.target.is_some());
}

/// Something inside to copy. Only folders are held until then: of files there may be more than can be.
enum Source<'a> {
    Named(Rc<Found<'a>>),
    In(Rc<Found<'a>>, Entry),
}

impl<'a> Source<'a> {
    fn held(&self, opened: &'a Inside, path: &OsStr) -> Result<Rc<Found<'a>>, Error> {
        match self {
            Self::Named(found) => Ok(found.clone()),
            Self::In(folder, entry) => opened.take(folder.node(), entry, path).map(Rc::new),
        }
    }
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Some((to, from)) = args.paths.split_last().filter(|(_, from)| !from.is_empty()) else {
        return Err(Error::misuse("from where to where?")
            .hint("Out of the volume: `claviger cp VOLUME :/FILE FOLDER`. Into it: `claviger cp VOLUME FILE :/`.")
            .into());
    };
    let is_inside = |path: &OsString| path.as_bytes().starts_with(b":");
    let copied = match (from.iter().all(is_inside), from.iter().any(is_inside), is_inside(to)) {
        (true, _, false) => {
            let first = files::inside(&from[0]);
            let opened = args.which.open_protecting(&args.open, Access::ReadOnly, &args.protect, first)?;
            out(args, &opened, from, Path::new(to))?
        }
        (_, false, true) => {
            let opened = args.which.open_protecting(&args.open, Access::ReadWrite, &args.protect, files::inside(to))?;
            if opened.in_clear {
                let what = "it is not encrypted: everybody could read what is copied into it";
                return Err(Error::misuse(what).at(&args.open.path).into());
            }
            if args.salvage {
                return Err(Error::misuse("--salvage is for copying out of the volume").into());
            }
            if !opened.tree.writable() {
                let what = format!(
                    "{} can only be read without the kernel",
                    opened.filesystem.as_ref().map_or("this folder", |f| f.kind.name())
                );
                let hint = "Of the file systems that can be read without the kernel, only FAT and exFAT can be written; `mount` can do more.";
                return Err(Error::unsupported(what).hint(hint).at(&args.open.path).into());
            }
            let copied = into(args, &opened, from, files::inside(to));
            // What was copied before an error is kept, and durable.
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
    output::print(&copied, args.json)?;
    if copied.salvaged.is_empty() { Ok(()) } else { Err(Silent::damaged().into()) }
}

impl Report for Copied {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let plural = |n: u64| if n == 1 { "" } else { "s" };
        let (files, folders) = (self.files, self.folders);
        let (files_s, folders_s) = (plural(files), plural(folders));
        let links = match self.links {
            0 => String::new(),
            links => format!(", {links} symbolic link{}", plural(links)),
        };
        writeln!(
            out,
            "{files} file{files_s} and {folders} folder{folders_s} copied, {}{links}",
            size::exact(self.bytes)
        )?;
        self.left_out.iter().try_for_each(|what| writeln!(out, "left out: {what}"))?;
        self.salvaged.iter().try_for_each(|file| match (file.copied, file.lost) {
            (0, _) => writeln!(out, "nothing left of {}: {}", file.path, file.why),
            (copied, 0) => writeln!(out, "{copied} of {} bytes left of {}: {}", file.size, file.path, file.why),
            (copied, lost) => writeln!(
                out,
                "{copied} of {} bytes left of {}, {lost} of them are zeros: {}",
                file.size, file.path, file.why
            ),
        })
    }
}

// Out of the volume

fn out(args: &Args, opened: &Inside, from: &[OsString], to: &Path) -> anyhow::Result<Copied> {
    let into_folder = to.is_dir();
    if !into_folder && !args.recursive && to.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Error::misuse("there is no such folder").at(to).hint("Make it first: mkdir.").into());
    }
    if from.len() > 1 && !into_folder {
        return Err(Error::misuse("several files need a folder as their destination").at(to).into());
    }
    let mut copied = Copied::default();
    let mut items = Vec::new();
    for path in from {
        let path = files::inside(path);
        let from = Source::Named(Rc::new(opened.find(path)?));
        let name = Path::new(path).file_name();
        // The root has no name: what is in it is copied.
        let item_to = match name {
            Some(name) if into_folder => to.join(name),
            _ => to.to_owned(),
        };
        plan_out(args, opened, (from, path), item_to, &mut Vec::new(), &mut items, &mut copied)?;
    }
    links_last(&mut items);
    // What a damaged file system says of sizes may be anything.
    let all = items.iter().fold(0u64, |all, item| all.saturating_add(item.size));
    let bar = Progress::bytes("Copying");
    for item in items {
        cancel::check()?;
        if item.is_folder {
            copied.folders += u64::from(make_folder(&item.to, item.to == to)?);
        } else if let Some(target) = &item.target {
            link_out(args, &item, target, &mut copied)?;
        } else {
            let salvaged = file_out(args, opened, &item, |done| bar.at(copied.bytes.saturating_add(done), all))?;
            let (size, made) = salvaged.as_ref().map_or((item.size, true), |file| (file.copied, file.copied > 0));
            copied.files += u64::from(made);
            copied.bytes = copied.bytes.saturating_add(size);
            copied.salvaged.extend(salvaged);
        }
    }
    Ok(copied)
}

fn plan_out<'a>(
    args: &Args,
    opened: &'a Inside,
    (from, path): (Source<'a>, &OsStr),
    to: PathBuf,
    above: &mut Vec<Node>,
    items: &mut Vec<Item<Source<'a>>>,
    copied: &mut Copied,
) -> anyhow::Result<()> {
    cancel::check()?;
    let found = from.held(opened, path)?;
    let node = found.node();
    if above.contains(&node) || above.len() >= DEEPEST {
        copied.left_out.push(format!("{} (a folder in itself, or too deep)", files::shown(path)));
        return Ok(());
    }
    let attributes = opened.attributes(node, path)?;
    let is_folder = attributes.kind == NodeKind::Folder;
    match attributes.kind {
        NodeKind::Folder if !args.recursive => {
            return Err(Error::misuse(format!("{} is a folder", files::shown(path))).hint("-r copies folders.").into());
        }
        NodeKind::Folder | NodeKind::File => {}
        NodeKind::Link => {
            match opened.tree.link_target(node) {
                Ok(target) => {
                    let target = Some(target);
                    items.push(Item { from, from_path: path.to_owned(), to, is_folder: false, size: 0, target });
                }
                Err(e) => copied.left_out.push(format!("{} (link: {})", files::shown(path), Error::from(e))),
            }
            return Ok(());
        }
        kind => {
            // A tree that does not read something for a reason says it.
            let read = opened.tree.read_at(node, 0, &mut [0]);
            let why = read.err().filter(|e| e.kind() == io::ErrorKind::Unsupported).map(|e| Error::from(e).to_string());
            let what = why.unwrap_or_else(|| files::kind_name(kind).to_owned());
            copied.left_out.push(format!("{} ({what})", files::shown(path)));
            return Ok(());
        }
    }
    let (size, target) = (attributes.size, None);
    items.push(Item { from, from_path: path.to_owned(), to: to.clone(), is_folder, size, target });
    if !is_folder {
        return Ok(());
    }
    above.push(node);
    for entry in opened.list(node, path)? {
        let inner = files::below(path, &entry.name);
        // A tree gives no such names; whatever it gives, nothing is written outside of the destination.
        let plain = Path::new(&entry.name).components().eq([std::path::Component::Normal(&entry.name)]);
        if !plain || entry.name.as_bytes().contains(&0) {
            copied.left_out.push(format!("{} (no name for a file)", files::shown(&inner)));
        } else {
            let to = to.join(&entry.name);
            plan_out(args, opened, (Source::In(found.clone(), entry), &inner), to, above, items, copied)?;
        }
    }
    above.pop();
    Ok(())
}

/// Makes a folder of this machine, unless it is there. A link to one is none, unless a person `named` it: what is in it may be
/// anywhere. Whether it is new.
fn make_folder(path: &Path, named: bool) -> anyhow::Result<bool> {
    let at = |e: io::Error| Error::from(e).at(path);
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let there = if named { fs::metadata(path) } else { fs::symlink_metadata(path) }.map_err(at)?;
            if there.is_dir() { Ok(false) } else { Err(exists(path).into()) }
        }
        Err(e) => Err(at(e).into()),
    }
}

fn exists(path: &Path) -> Error {
    Error::misuse("it already exists").at(path).hint("--force overwrites files.")
}

/// Whether a file or link may get this name: nothing that is there is lost without --force.
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

/// Makes a symbolic link, wherever it points to.
fn link_out<F>(args: &Args, item: &Item<F>, target: &OsStr, copied: &mut Copied) -> anyhow::Result<()> {
    let to = &item.to;
    may_take(args, to)?;
    let made = match fs::symlink_metadata(to) {
        // What is replaced is replaced at once.
        Ok(_) => {
            let temporary = to.with_file_name(format!(".claviger-{}.link", std::process::id()));
            symlink(target, &temporary)
                .and_then(|()| fs::rename(&temporary, to).inspect_err(|_| drop(fs::remove_file(&temporary))))
        }
        Err(_) => symlink(target, to),
    };
    match made {
        Ok(()) => copied.links += 1,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(exists(to).into()),
        // A file system without links, or a target that is no path, such as an empty one.
        Err(e) if e.kind() != io::ErrorKind::StorageFull => {
            copied.left_out.push(format!("{} (link: {e})", files::shown(&item.from_path)));
        }
        Err(e) => return Err(Error::from(e).at(to).into()),
    }
    Ok(())
}

/// Copies a file; what is left of it, if it cannot be read whole and that was asked for.
fn file_out<'a>(
    args: &Args,
    opened: &'a Inside,
    item: &Item<Source<'a>>,
    show: impl Fn(u64),
) -> anyhow::Result<Option<Salvaged>> {
    let to = &item.to;
    let at = |e: io::Error| Error::from(e).at(to);
    may_take(args, to)?;
    let found = item.from.held(opened, &item.from_path)?;
    let node = found.node();
    let attributes = opened.attributes(node, &item.from_path)?;
    let partial = Partial::new(to, attributes.mode.map_or(0o666, |mode| u32::from(mode) & 0o777))?;
    let mut buffer = vec![0; PIECE.min(item.size.max(1) as usize)];
    let mut done = 0;
    let mut salvaged = None;
    // What cannot be opened is not read either, and that says why.
    let _open = OpenFile::new(&*opened.tree, node);
    while done < item.size {
        cancel::check()?;
        let len = (item.size - done).min(PIECE as u64) as usize;
        let read = match opened.tree.read_at(node, done, &mut buffer[..len]) {
            Ok(read) => read,
            Err(e) if args.salvage => {
                let (path, why) = (files::shown(&item.from_path), Error::from(e));
                let file = salvage::rest(opened, node, path, (done, item.size), &why, &partial.file)?;
                if file.copied == 0 {
                    return Ok(Some(file));
                }
                salvaged = Some(file);
                break;
            }
            Err(e) => return Err(tree_error(e, &item.from_path).into()),
        };
        if read == 0 {
            let what = format!("{} ends before its size", files::shown(&item.from_path));
            return Err(Error::new(ErrorKind::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))).into());
        }
        (&partial.file).write_all(&buffer[..read]).map_err(at)?;
        done += read as u64;
        show(done);
    }
    if let Some(modified) = attributes.modified {
        // Some file systems cannot hold every time: no reason to lose the file.
        let _ = partial.file.set_times(FileTimes::new().set_modified(modified));
    }
    partial.complete(to, args.force)?;
    Ok(salvaged)
}

/// Whether this is the file that holds the volume: putting another in its place would be the end of the volume.
fn is_volume(there: &fs::Metadata, args: &Args) -> bool {
    fs::metadata(&args.open.path).is_ok_and(|volume| (volume.dev(), volume.ino()) == (there.dev(), there.ino()))
}

/// A file that is being written, under a name of its own beside the one that it will have. Dropped, it is removed.
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

    fn complete(mut self, to: &Path, replace: bool) -> anyhow::Result<()> {
        let renamed = match replace {
            // What is replaced must not be gone, after a power cut, before its successor is there; and what was said to be done is.
            true => self.file.sync_all().and_then(|()| fs::rename(&self.path, to)).and_then(|()| sync_folder(to)),
            false => rename_new(&self.path, to),
        };
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => exists(to),
            _ => Error::from(e).at(to),
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
            "several files need a folder as their destination, and {} is none",
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
        plan_in(args, path, to.into(), 0, &mut items, &mut copied)?;
    }
    links_last(&mut items);
    let all: u64 = items.iter().map(|item| item.size).sum();
    let free = opened.tree.space().map_err(Error::from)?.free;
    if all > free {
        let what = format!("{} do not fit into the {} of free space", size::exact(all), size::exact(free));
        return Err(Error::from(io::Error::new(io::ErrorKind::StorageFull, what)).at(&args.open.path).into());
    }
    let bar = Progress::bytes("Copying");
    for item in items {
        cancel::check()?;
        let to = item.to.as_os_str();
        let name = item.to.file_name().unwrap_or_default();
        let parent = item.to.parent().unwrap_or(Path::new("/")).as_os_str();
        let found = opened.find(parent)?;
        let folder = found.node();
        if item.is_folder {
            let is_there = name.is_empty() || Held::lookup(&*opened.tree, folder, name).is_ok();
            if !is_there {
                let made = opened.tree.make_folder(folder, name, &NewNode::default()).map_err(|e| tree_error(e, to))?;
                opened.tree.forget(made, 1);
                copied.folders += 1;
            }
        } else if let Some(target) = &item.target {
            link_in(args, opened, (folder, name), &item, target, &mut copied)?;
        } else {
            let size = file_in(args, opened, &item, folder, name, |done| bar.at(copied.bytes + done, all))?;
            copied.files += 1;
            copied.bytes += size;
        }
    }
    Ok(copied)
}

fn plan_in(
    args: &Args,
    path: &Path,
    to: PathBuf,
    depth: usize,
    items: &mut Vec<Item<PathBuf>>,
    copied: &mut Copied,
) -> anyhow::Result<()> {
    cancel::check()?;
    let at = |e: io::Error| Error::from(e).at(path);
    // What the person names may be a link; what is found in folders is not followed.
    let metadata = if depth == 0 { fs::metadata(path) } else { fs::symlink_metadata(path) }.map_err(at)?;
    if metadata.is_symlink() {
        let (from, from_path) = (path.to_owned(), path.as_os_str().to_owned());
        let target = Some(fs::read_link(path).map_err(at)?.into());
        items.push(Item { from, from_path, to, is_folder: false, size: 0, target });
        return Ok(());
    }
    let is_folder = metadata.is_dir();
    if is_folder && !args.recursive {
        return Err(Error::misuse("it is a folder").at(path).hint("-r copies folders.").into());
    }
    if !is_folder && !metadata.is_file() || depth >= DEEPEST {
        copied.left_out.push(format!("{} (neither file nor folder)", files::shown(path.as_os_str())));
        return Ok(());
    }
    let size = if is_folder { 0 } else { metadata.len() };
    let (from, from_path) = (path.to_owned(), path.as_os_str().to_owned());
    items.push(Item { from, from_path, to: to.clone(), is_folder, size, target: None });
    if is_folder {
        let mut inner: Vec<_> = fs::read_dir(path).map_err(at)?.collect::<io::Result<_>>().map_err(at)?;
        inner.sort_by_key(fs::DirEntry::file_name);
        for entry in inner {
            plan_in(args, &entry.path(), to.join(entry.file_name()), depth + 1, items, copied)?;
        }
    }
    Ok(())
}

/// Makes a symbolic link in the volume, where its file system has such.
fn link_in(
    args: &Args,
    opened: &Inside,
    (folder, name): (Node, &OsStr),
    item: &Item<PathBuf>,
    target: &OsStr,
    copied: &mut Copied,
) -> anyhow::Result<()> {
    let tree = &*opened.tree;
    let inside = |e: io::Error| tree_error(e, item.to.as_os_str());
    may_take_inside(args, opened, folder, name, item)?;
    let temporary = OsString::from(format!("claviger-{}.link", std::process::id()));
    let made = match tree.make_link(folder, &temporary, target, &NewNode::default()) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {
            copied.left_out.push(format!("{} (link: {e})", files::shown(&item.from_path)));
            return Ok(());
        }
        made => Held::new(tree, made.map_err(inside)?),
    };
    let how = if args.force { Renaming::Replace } else { Renaming::Keep };
    let renamed = tree.rename(folder, &temporary, folder, name, how).map_err(inside);
    drop(made);
    if renamed.is_err() {
        // Best effort: what went wrong is told, not what follows from it.
        let _ = tree.remove(folder, &temporary);
    }
    renamed?;
    copied.links += 1;
    Ok(())
}

/// Whether a file or link may get this name inside: nothing that is there is lost without --force.
fn may_take_inside(
    args: &Args,
    opened: &Inside,
    folder: Node,
    name: &OsStr,
    item: &Item<PathBuf>,
) -> anyhow::Result<()> {
    let tree = &*opened.tree;
    let to = item.to.as_os_str();
    match Held::lookup(tree, folder, name) {
        Ok(there) if tree.attributes(there.node()).map_err(|e| tree_error(e, to))?.kind == NodeKind::Folder => {
            Err(Error::misuse(format!("{} in the volume is a folder", files::shown(to))).into())
        }
        Ok(_) if !args.force => {
            let what = format!("{} is in the volume already", files::shown(to));
            Err(Error::misuse(what).hint("--force overwrites files.").into())
        }
        _ => Ok(()),
    }
}

/// Copies a file in under a name of its own, which becomes the right one at the end. How large it is.
fn file_in(
    args: &Args,
    opened: &Inside,
    item: &Item<PathBuf>,
    folder: Node,
    name: &OsStr,
    show: impl Fn(u64),
) -> anyhow::Result<u64> {
    let tree = &*opened.tree;
    let inside = |e: io::Error| tree_error(e, item.to.as_os_str());
    may_take_inside(args, opened, folder, name, item)?;
    let file = File::open(&item.from).map_err(|e| Error::from(e).at(&item.from))?;
    let temporary = OsString::from(format!("claviger-{}.part", std::process::id()));
    let usage = Use { read: false, write: true };
    let made = tree.create_open(folder, &temporary, &NewNode::default(), usage).map_err(inside)?;
    let made = Held::new(tree, made);
    let node = made.node();
    let copied = (|| -> anyhow::Result<u64> {
        let size = contents_in(opened, file, item, node, show);
        let released = tree.release(node).map_err(inside);
        let size = size?;
        released?;
        let how = if args.force { Renaming::Replace } else { Renaming::Keep };
        tree.rename(folder, &temporary, folder, name, how).map_err(inside)?;
        Ok(size)
    })();
    if copied.is_err() {
        // Best effort: what went wrong is told, not what follows from it.
        let _ = tree.remove(folder, &temporary);
    }
    copied
}

fn contents_in(
    opened: &Inside,
    mut file: File,
    item: &Item<PathBuf>,
    node: Node,
    show: impl Fn(u64),
) -> anyhow::Result<u64> {
    let at = |e: io::Error| Error::from(e).at(&item.from);
    let inside = |e: io::Error| tree_error(e, item.to.as_os_str());
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
        let error = make_folder(&link, false).expect_err("what is in it may be anywhere").to_string();
        assert!(error.contains("already exists"), "{error}");
    }
}

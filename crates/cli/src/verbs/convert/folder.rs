//! `claviger convert` for a folder: copies its files into a new folder, encrypted or not.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats;
use claviger_engine::internal::files;
use claviger_engine::store::Access;
use claviger_engine::trees::copy::{self, CopyProgress};
use claviger_engine::trees::{Tree, host::HostFolder};
use claviger_engine::{Error, Opening, Result, Unlock};
use serde::Serialize;

use super::args::Args;
use crate::opening::new_file;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::left_out::LeftOut;
use crate::terminal::output::{self, Report};
use crate::terminal::size::count;
use crate::terminal::{cancel, progress, size};
use crate::verbs::create;

/// The format of a new folder, if none is named.
const DEFAULT_FORMAT: &str = "eCryptfs";

#[derive(Serialize)]
struct Converted {
    #[serde(flatten)]
    source: FileName,
    #[serde(flatten)]
    destination: FileName,
    /// Files that are not in the copy, and why.
    left_out: LeftOut,
    /// The formats; `None` for an unencrypted folder.
    from: Option<&'static str>,
    to: Option<&'static str>,
    #[serde(flatten)]
    copied: CopyProgress,
}

/// Copies a whole folder into a new one, and compares both. Only reads the source.
pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    args.check_for_folder()?;
    let destination = &args.destination;
    new_file::must_be_new(destination)?;
    let part = part(destination);
    let begun = part.exists();
    if begun != args.resume {
        let (what, hint) = match begun {
            true => ("a conversion to it was interrupted", "Continue with --resume, or remove the folder first."),
            false => ("there is no interrupted conversion", "Omit --resume."),
        };
        return Err(Error::misuse(what).at(&part).hint(hint).into());
    }
    apart(&args.open.path, destination)?;
    let (from, source) = source(args)?;
    source.warnings().iter().for_each(|warning| output::warn(warning));
    if !begun {
        DirBuilder::new().mode(0o700).create(&part).map_err(|e| Error::from(e).at(&part))?;
    }
    let copied = target(args, &part).and_then(|(to, target)| {
        if begun {
            target.warnings().iter().for_each(|warning| output::warn(warning));
        }
        Ok((to, convert(&*source, &*target)?))
    });
    let (to, (copied, left_out)) = copied.inspect_err(|_| {
        // Fails for a folder with files, which stays for --resume.
        let _ = fs::remove_dir(&part);
    })?;
    files::rename_new(&part, destination)
        .and_then(|()| files::sync_folder(destination))
        .map_err(|e| Error::from(e).at(destination))?;
    let source = FileName::new("source", &args.open.path);
    let destination = FileName::new("destination", destination);
    let converted = Converted { source, destination, left_out, from, to, copied };
    output::print(&converted, args.json)?;
    if !converted.left_out.is_empty() {
        output::warn("the copy is incomplete: keep the source");
    }
    converted.left_out.end()
}

/// Copies everything, and compares everything that the copy can hold.
fn convert(source: &(dyn Tree + 'static), target: &(dyn Tree + 'static)) -> Result<(CopyProgress, LeftOut)> {
    let bar = progress::Progress::spinner();
    let show = |what: &str, done: CopyProgress| {
        bar.tell(format!("{what}: {} files, {}", done.files, size::short(done.bytes)));
        cancel::check()
    };
    let (mut left_out, mut paths) = (LeftOut::default(), HashSet::new());
    copy::copy(source, target, &mut |done| show("Copying", done), &mut |path, why| {
        paths.insert(path.to_owned());
        left_out.add(path.as_os_str(), why)
    })?;
    let copied = copy::compare(source, target, &mut |done| show("Comparing", done), &paths)?;
    Ok((copied, left_out))
}

type SourceTree = (Option<&'static str>, Arc<dyn Tree>);

/// The source.
fn source(args: &Args) -> anyhow::Result<SourceTree> {
    if args.raw_source {
        let folder = HostFolder::open(&args.open.path, Access::ReadOnly)?;
        folder.lock().map_err(|e| e.at(&args.open.path))?;
        return Ok((None, Arc::new(folder)));
    }
    let found = args.open.find_folder(Access::ReadOnly, None)?;
    let opened = found.unlock(&mut found.credentials()?)?;
    Ok((Some(opened.format.name()), Arc::new(opened.tree)))
}

/// The target, in the folder `part`.
fn target(args: &Args, part: &Path) -> anyhow::Result<SourceTree> {
    if args.raw {
        let folder = HostFolder::open(part, Access::ReadWrite)?;
        folder.lock().map_err(|e| e.at(part))?;
        return Ok((None, Arc::new(folder)));
    }
    let format = file_formats::named(args.new_format.as_deref().unwrap_or(DEFAULT_FORMAT))?;
    let meter = StrengthMeter::of_folder(format);
    let source = args.new.source().judged(&meter);
    let new = match format.key_file() {
        Some(file) => !part.join(file).exists(),
        // In an empty folder, nothing can prove that a password is right.
        None => fs::read_dir(part).map_err(|e| Error::from(e).at(part))?.next().is_none(),
    };
    let mut credentials = if new { source.read_new()?.into() } else { source.read()? };
    let key_bytes = args.new_key_size.map(|bits| bits.div_ceil(8) as usize);
    let mut folder = FolderOptions { cipher: args.new_cipher.as_deref(), key_bytes, ..FolderOptions::default() };
    if new {
        create::folder::empty(format, part, create::folder::only_password(format, &credentials)?, folder)?;
    }
    if format.key_file().is_some() {
        // The file says the rest.
        folder = FolderOptions::default();
    }
    let locked = Opening::path(part).access(Access::ReadWrite).format(format.name()).find()?;
    let opened =
        credentials.open(|credentials| locked.unlock(&Unlock { folder, ..Unlock::with(credentials) })?.files())?;
    Ok((Some(format.name()), Arc::new(opened.tree)))
}

/// The name of the new folder until it is complete.
fn part(destination: &Path) -> PathBuf {
    let mut name = OsString::from(destination);
    name.push(".part");
    name.into()
}

/// Refuses a destination inside the source: it would be copied into itself.
fn apart(source: &Path, destination: &Path) -> Result<()> {
    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|e| Error::from(e).at(parent))?;
    let source = source.canonicalize().map_err(|e| Error::from(e).at(source))?;
    match parent.starts_with(&source) {
        true => Err(Error::misuse("the new folder would be inside the source folder").at(destination)),
        false => Ok(()),
    }
}

impl Report for Converted {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { source, destination, from, to, copied, left_out } = self;
        let (files, folders) = (count(copied.files, "file"), count(copied.folders, "folder"));
        let named = |format: &Option<&'static str>| format.unwrap_or("not encrypted");
        writeln!(
            out,
            "{source} ({}) was copied to {destination} ({}): {files} and {folders}, {}; both were compared and are \
             identical.",
            named(from),
            named(to),
            size::exact(copied.bytes)
        )?;
        left_out.tell(out)
    }
}

//! `claviger info` for an encrypted folder, and for a file in it.

use std::ffi::OsStr;
use std::io::{self, Write};

use claviger_engine::file_formats::{Beside, FILE_FORMATS, FileFacts, FileState, FolderSurvey, StoredFile};
use claviger_engine::opening::OpenFolder;
use claviger_engine::store::Access;
use claviger_engine::trees::NodeKind;
use claviger_engine::{Error, FileFormat};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::files::{self, Inside, InsideArgs};
use crate::terminal::advice;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::size;
use crate::terminal::size::count;
use crate::verbs::survey;

#[derive(Serialize)]
struct FolderInfo {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The signatures of the given keys.
    signatures: Vec<String>,
    #[serde(flatten)]
    survey: FolderSurvey,
    beside: Beside,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct FileInfo {
    #[serde(flatten)]
    path: FileName,
    #[serde(flatten)]
    file: FileName,
    #[serde(skip)]
    shown: String,
    format: Option<&'static str>,
    #[serde(flatten)]
    facts: FileFacts,
}

/// Shows the folder itself, or the file or encrypted folder to which `inside` leads.
pub fn run(open: &OpenArgs, inside: Option<&OsStr>, json: bool) -> anyhow::Result<()> {
    if let Some(path) = inside {
        let opened = InsideArgs::default().open(open, Access::ReadOnly, path)?;
        let found = opened.find(path)?;
        let kind = opened.attributes(found.node(), path)?.kind;
        match kind {
            NodeKind::File => return file(open, &opened, found.node(), path, json),
            NodeKind::Folder => {}
            NodeKind::Link | NodeKind::Special => {
                let what = format!("{} in the volume is neither a file nor a folder", files::shown(path));
                return Err(Error::misuse(what).into());
            }
        }
    }
    let found = open.find_folder(Access::ReadOnly, inside)?;
    let path = found.path.clone();
    let OpenFolder { tree, lower, format, beside, .. } = found.unlock(&mut found.credentials()?)?;
    let survey = survey::of(format, &*lower, Some(&tree))?;
    let warnings = claviger_engine::trees::Tree::warnings(&tree);
    warnings.iter().for_each(|w| output::warn(w));
    let signatures = tree.signatures();
    // Files for another key are not damaged.
    let damaged = survey.problems.iter().any(|problem| problem.is_damage() && !problem.other_key);
    output::print(&FolderInfo { path, format: format.name(), signatures, survey, beside, warnings }, json)?;
    if damaged { Err(Silent::damaged().into()) } else { Ok(()) }
}

/// Shows a file in an open folder, or what is known about it without its key.
fn file(open: &OpenArgs, opened: &Inside, node: u64, path: &OsStr, json: bool) -> anyhow::Result<()> {
    let at = |e: Error| e.at(path.as_ref());
    let (tree, formats): (_, Vec<&dyn FileFormat>) = match &opened.folder {
        Some(folder) => (&folder.lower, vec![folder.format]),
        // Files of a format with a key file do not show by themselves what they are.
        None => (&opened.tree, FILE_FORMATS.iter().copied().filter(|format| format.key_file().is_none()).collect()),
    };
    let mut known = None;
    for format in formats {
        let facts = format.facts(StoredFile { tree: &**tree, file: node, contents: node }).map_err(at)?;
        // An empty file may be unencrypted, unless it is in a folder of the format.
        let unknown = facts.state == FileState::Unfinished && opened.folder.is_none();
        let clear = facts.state == FileState::Clear || unknown;
        if !clear || known.is_none() {
            let name = (!clear).then_some(format.name());
            known = Some((name, facts));
        }
    }
    let Some((format, facts)) = known else { return Err(Error::misuse("there are no formats").into()) };
    let (shown, file) = (files::shown(path), FileName::new("file", path));
    output::print(&FileInfo { path: FileName::path(&open.path), file, shown, format, facts }, json)
}

impl Report for FolderInfo {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, signatures, survey, beside, warnings: _ } = self;
        writeln!(out, "{}", output::printable(path))?;
        let mut line = |name: &str, value: String| writeln!(out, "  {name:<15} {value}");
        line("format", (*format).to_owned())?;
        line("files", format!("{}, {}", count(survey.files, "file"), size::exact(survey.bytes)))?;
        line("folders", survey.folders.to_string())?;
        if !survey.ciphers.is_empty() {
            line("cipher", survey::shares(&survey.ciphers))?;
        }
        if !survey.keys.is_empty() {
            line("for the keys", survey::shares(&survey.keys))?;
        }
        match &signatures[..] {
            [] => {}
            [contents] => line("key given", contents.clone())?,
            [contents, names, ..] => line("keys given", format!("{contents}, for names {names}"))?,
        }
        if survey.clear > 0 {
            line("not encrypted", count(survey.clear, "file"))?;
        }
        if survey.foreign_names > 0 {
            line("names", format!("{} cannot be read", survey.foreign_names))?;
        }
        let problems = survey.problems.iter().filter(|problem| problem.is_damage()).count();
        if problems > 0 {
            let verify = advice::with_volume("`claviger verify VOLUME` lists them");
            line("problems", format!("{problems}: {verify}"))?;
        }
        if let Some(folder) = &beside.folder {
            let wrapped = if beside.wrapped_passphrase.is_some() { "" } else { ", without a wrapped passphrase" };
            line("belongs to it", format!("{}{wrapped}", files::shown(folder.as_os_str())))?;
        }
        if let Some(mount_point) = &beside.mount_point {
            let how = if beside.auto_mount { ", when its owner logs in" } else { "" };
            line("mounted at", format!("{}{how}", files::shown(mount_point.as_os_str())))?;
        }
        Ok(())
    }
}

impl Report for FileInfo {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path: _, file: _, shown, format, facts } = self;
        writeln!(out, "{shown}")?;
        let mut line = |name: &str, value: String| writeln!(out, "  {name:<15} {value}");
        line("format", format.unwrap_or("not encrypted").to_owned())?;
        if let Some(cipher) = &facts.cipher {
            let bits = facts.key_bits.map(|bits| format!(", key of {bits} bits")).unwrap_or_default();
            line("cipher", format!("{cipher}{bits}"))?;
        }
        if !facts.keys.is_empty() {
            line("for the keys", survey::few(&facts.keys))?;
        }
        if let Some(size) = facts.size {
            line("size", size::exact(size))?;
        }
        line("stored", size::exact(facts.stored))?;
        if let Some(metadata) = &facts.metadata {
            let version = facts.version.map(|n| format!(", version {n}")).unwrap_or_default();
            line("header", format!("in {metadata}{version}"))?;
        }
        if let Some(problem) = &facts.problem {
            line("damaged", problem.clone())?;
        }
        Ok(())
    }
}

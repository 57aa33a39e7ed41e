//! `claviger ls`: lists a folder inside a volume.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use claviger_engine::Result;
use claviger_engine::file_formats::efs::{self, EfsInfo};
use claviger_engine::filesystems::{Filesystem, Kind};
use claviger_engine::store::Access;
use claviger_engine::trees::{Node, NodeKind};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::files::{self, Inside, InsideArgs};
use crate::terminal::file_name::FileName;
use crate::terminal::left_out::LeftOut;
use crate::terminal::output::{self, Report};

/// List a folder inside a volume, without mounting it
///
/// Reads FAT, exFAT, NTFS, ext2, ext3 and ext4. Nothing is written. Control characters in names are escaped. Files
/// encrypted by NTFS (EFS) are marked; --long shows for whom, by shortened thumbprints. Names that cannot be shown,
/// such as altered encrypted ones, are reported on standard error, and the exit status is not 0.
///
/// VOLUME may also be an encrypted folder or an unencrypted image. With an option for encrypted folders, the one on
/// PATH is opened.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger ls old.tc
  claviger ls -l old.tc /letters
  claviger ls --json old.tc /letters < password.txt --password-file -")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The folder or file inside the volume
    #[arg(value_name = "PATH", default_value = "/")]
    inside: OsString,

    /// Also show sizes and times
    #[arg(short, long)]
    long: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    which: InsideArgs,
}

#[derive(Serialize)]
struct Listing {
    #[serde(skip_serializing_if = "Option::is_none")]
    filesystem: Option<Filesystem>,
    #[serde(flatten)]
    path: FileName,
    entries: Vec<Row>,
    /// Names that cannot be shown, and why.
    left_out: LeftOut,
    #[serde(skip)]
    long: bool,
}

/// An entry of the folder.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    name: FileName,
    #[serde(skip)]
    shown: String,
    kind: NodeKind,
    /// The size in bytes.
    size: u64,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<i64>,
    /// The permission bits, if the file system has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u16>,
    /// The target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Whether the file is encrypted (EFS), on an NTFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    encrypted: Option<bool>,
    /// The users and agents for whom the file is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
    /// The same, abbreviated.
    #[serde(skip)]
    short: Option<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = files::inside(&args.inside);
    let opened = args.which.open(&args.open, Access::ReadOnly, path)?;
    let found = opened.find(path)?;
    let node = found.node();
    let mut left_out = LeftOut::default();
    let entries = match opened.attributes(node, path)?.kind {
        NodeKind::Folder => rows(&opened, node, path, &mut left_out)?,
        _ => vec![row(&opened, path, node, path)?],
    };
    let path = FileName::path(path);
    let listing = Listing { filesystem: opened.filesystem.clone(), path, entries, left_out, long: args.long };
    output::print(&listing, args.json)?;
    if !args.json {
        listing.left_out.warn();
    }
    listing.left_out.end()
}

fn rows(opened: &Inside, folder: Node, path: &OsStr, left_out: &mut LeftOut) -> anyhow::Result<Vec<Row>> {
    let list = opened.list(folder, path)?;
    left_out.add_names(path, list.left_out)?;
    let mut rows = Vec::with_capacity(list.entries.len());
    for entry in list.entries {
        let path = files::below(path, &entry.name);
        let found = opened.take(folder, &entry, &path);
        match found.and_then(|found| row(opened, &entry.name, found.node(), &path)) {
            Ok(row) => rows.push(row),
            Err(e) => left_out.add(&path, e)?,
        }
    }
    Ok(rows)
}

fn row(opened: &Inside, name: &OsStr, node: Node, path: &OsStr) -> Result<Row> {
    let attributes = opened.attributes(node, path)?;
    let target = match attributes.kind {
        NodeKind::Link => opened.tree.link_target(node).ok(),
        _ => None,
    };
    let on_ntfs = opened.filesystem.as_ref().is_some_and(|found| found.kind == Kind::Ntfs);
    let encrypted = on_ntfs.then_some(attributes.encrypted);
    // `info` reports damage.
    let info = match (encrypted, attributes.kind) {
        (Some(true), NodeKind::File) => efs::info(opened.stored(), node).ok().flatten(),
        _ => None,
    };
    Ok(Row {
        encrypted,
        keys: info.as_ref().map(EfsInfo::keys),
        short: info.as_ref().map(EfsInfo::short),
        name: FileName::new("name", name),
        shown: files::shown(name),
        kind: attributes.kind,
        size: attributes.size,
        modified: files::seconds(attributes.modified),
        mode: attributes.mode,
        target: target.map(|t| files::shown(&t)),
    })
}

impl Report for Listing {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.entries.iter().map(|e| e.size.to_string().len()).max().unwrap_or(0);
        for entry in &self.entries {
            if self.long {
                let kind = files::kind_name(entry.kind);
                let time = entry.modified.map(claviger_lab::model::words::date_and_time);
                let time = time.map_or_else(|| "-".repeat(19), |(date, time)| format!("{date} {time}"));
                write!(out, "{kind:<7} {:>width$}  {time}  ", entry.size)?;
            }
            let slash = if entry.kind == NodeKind::Folder { "/" } else { "" };
            write!(out, "{}{slash}", entry.shown)?;
            match &entry.target {
                Some(target) if self.long => write!(out, " -> {target}")?,
                _ => {}
            }
            match (entry.encrypted, &entry.short) {
                (Some(true), Some(keys)) if self.long => {
                    writeln!(out, "  [encrypted for {}]", output::printable(keys))?
                }
                (Some(true), _) => writeln!(out, "  [encrypted]")?,
                _ => writeln!(out)?,
            }
        }
        Ok(())
    }
}

//! `claviger tree`: lists all folders and files inside a volume.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use claviger_engine::filesystems::Filesystem;
use claviger_engine::store::Access;
use claviger_engine::trees::{Entry, Node, NodeKind};
use claviger_engine::{Error, ErrorKind};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::files::{self, Inside, InsideArgs};
use crate::terminal::file_name::FileName;
use crate::terminal::left_out::LeftOut;
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, size};

/// The deepest level of folders that is entered: a damaged file system may be endless.
pub const DEEPEST: usize = 256;

/// Show all folders and files inside a volume, without mounting it
///
/// Reads FAT, exFAT, NTFS, ext2, ext3 and ext4. Nothing is written. Control characters in names are escaped.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger tree old.tc
  claviger tree --json old.tc /letters")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The folder inside the volume
    #[arg(value_name = "PATH", default_value = "/")]
    inside: OsString,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    which: InsideArgs,
}

#[derive(Serialize)]
struct Whole {
    #[serde(skip_serializing_if = "Option::is_none")]
    filesystem: Option<Filesystem>,
    path: String,
    folders: u64,
    files: u64,
    /// The total size of all files, in bytes.
    bytes: u64,
    entries: Vec<Branch>,
    /// Names that cannot be shown, and why.
    left_out: LeftOut,
}

#[derive(Serialize)]
struct Branch {
    #[serde(flatten)]
    name: FileName,
    #[serde(skip)]
    shown: String,
    kind: NodeKind,
    /// The size in bytes.
    size: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Branch>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = files::inside(&args.inside);
    let opened = args.which.open(&args.open, Access::ReadOnly, path)?;
    let found = opened.find(path)?;
    let node = found.node();
    let mut whole = Whole {
        filesystem: opened.filesystem.clone(),
        path: files::shown(path),
        folders: 0,
        files: 0,
        bytes: 0,
        entries: Vec::new(),
        left_out: LeftOut::default(),
    };
    whole.entries = branches(&opened, node, path, &mut vec![node], &mut whole)?;
    output::print(&whole, args.json)?;
    if !args.json {
        whole.left_out.warn();
    }
    whole.left_out.end()
}

/// The contents of a folder and its subfolders. `above` holds the ancestors: a folder that contains itself is not entered
/// again.
fn branches(
    opened: &Inside,
    folder: Node,
    path: &OsStr,
    above: &mut Vec<Node>,
    whole: &mut Whole,
) -> anyhow::Result<Vec<Branch>> {
    cancel::check()?;
    let list = opened.list(folder, path)?;
    whole.left_out.add_names(path, list.left_out)?;
    let mut branches = Vec::new();
    for entry in list.entries {
        let path = files::below(path, &entry.name);
        match branch(opened, folder, &entry, &path, above, whole) {
            Ok(branch) => branches.push(branch),
            Err(e) => whole.left_out.add(&path, e.downcast::<Error>()?)?,
        }
    }
    Ok(branches)
}

fn branch(
    opened: &Inside,
    folder: Node,
    entry: &Entry,
    path: &OsStr,
    above: &mut Vec<Node>,
    whole: &mut Whole,
) -> anyhow::Result<Branch> {
    let found = opened.take(folder, entry, path)?;
    let node = found.node();
    let size = opened.attributes(node, path)?.size;
    let mut entries = Vec::new();
    if entry.kind == NodeKind::Folder {
        whole.folders += 1;
        if above.contains(&node) || above.len() >= DEEPEST {
            let what = ErrorKind::Malformed {
                field: "folder",
                offset: 0,
                what: "it contains itself or is nested too deep".into(),
            };
            whole.left_out.add(path, what)?;
        } else {
            above.push(node);
            // A folder that cannot be listed is still shown.
            match branches(opened, node, path, above, whole) {
                Ok(list) => entries = list,
                Err(e) => whole.left_out.add(path, e.downcast::<Error>()?)?,
            }
            above.pop();
        }
    } else {
        whole.files += 1;
        whole.bytes = whole.bytes.saturating_add(size);
    }
    let name = FileName::new("name", &entry.name);
    Ok(Branch { name, shown: files::shown(&entry.name), kind: entry.kind, size, entries })
}

impl Report for Whole {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.path)?;
        draw(&self.entries, "", out)?;
        let (folders, files) = (size::count(self.folders, "folder"), size::count(self.files, "file"));
        writeln!(out, "\n{folders}, {files}, {}", size::exact(self.bytes))
    }
}

fn draw(branches: &[Branch], indent: &str, out: &mut dyn Write) -> io::Result<()> {
    for (i, branch) in branches.iter().enumerate() {
        let last = i + 1 == branches.len();
        let slash = if branch.kind == NodeKind::Folder { "/" } else { "" };
        writeln!(out, "{indent}{}{}{slash}", if last { "└── " } else { "├── " }, branch.shown)?;
        draw(&branch.entries, &format!("{indent}{}", if last { "    " } else { "│   " }), out)?;
    }
    Ok(())
}

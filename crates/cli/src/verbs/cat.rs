//! `claviger cat`: writes the plaintext to standard output.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::sync::Arc;

use claviger_engine::Error;
use claviger_engine::internal::in_order;
use claviger_engine::store::Access;
use claviger_engine::trees::{NodeKind, OpenFile};

use crate::opening::OpenArgs;
use crate::opening::files::{self, InsideArgs};
use crate::terminal::progress::{self, Progress};
use crate::terminal::{advice, cancel, output, size};

/// The bytes of a file read at a time.
const CHUNK: u64 = 4 << 20;

/// The bytes read at a time after reading a larger piece failed.
const SECTOR: usize = 512;

/// Write the decrypted contents to standard output
///
/// Nothing is written to the volume. Sizes are bytes, or a number with K, M, G, T or KiB, MiB … (powers of 1024) or KB,
/// MB … (powers of 1000).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger cat old.tc > image.img
  claviger cat --offset 1M --length 4K old.tc | xxd
  claviger cat old.tc /letters/1998.txt | less")]
pub struct Args {
    /// Where to begin, in bytes of the plaintext
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    offset: u64,

    /// How many bytes [default: all to the end]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    length: Option<u64>,

    /// Output this file inside the volume instead of the whole volume
    #[arg(long, value_name = "PATH")]
    file: Option<OsString>,

    #[command(flatten)]
    which: InsideArgs,

    #[command(flatten)]
    open: OpenArgs,

    /// The same as --file PATH
    #[arg(value_name = "PATH", conflicts_with = "file")]
    inside: Option<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = args.file.as_ref().or(args.inside.as_ref()) {
        return file(args, files::inside(path));
    }
    if io::stdout().is_terminal() {
        return Err(Error::misuse("the volume's contents are binary and would go to the terminal")
            .hint(
                "Send them to a file or program: `> image.img`, `| xxd`. To print one file: `claviger cat VOLUME \
                 :/FILE`.",
            )
            .into());
    }
    let opened = args.open.open(Access::ReadOnly)?;
    advice::warn(&opened.warnings);
    let store = args.which.part(&args.open, Arc::new(opened.volume))?;
    let size = store.len();
    let past = |what: String| Error::misuse(format!("{what} of {size} bytes")).at(&args.open.path);
    if args.offset > size {
        return Err(past(format!("byte {} is past the end of the volume", args.offset)).into());
    }
    let length = args.length.unwrap_or(size - args.offset);
    if length > size - args.offset {
        let what = format!("{length} bytes at byte {} reach past the end of the volume", args.offset);
        return Err(past(what).into());
    }

    let mut stdout = output::wide()?;
    cancel::check()?;
    cancel::end_at_once();
    let range = args.offset..args.offset + length;
    let bar = progress::wanted(&stdout).then(|| Progress::bytes("Reading"));
    in_order::read(
        range,
        |at, piece| store.read_at(at, piece),
        |at, piece, read| {
            if let Some(bar) = &bar {
                bar.at(at - args.offset + piece.len() as u64, length);
            }
            if read.is_ok() {
                return output::write(&mut stdout, piece);
            }
            // On an error, still output the sectors before the first unreadable one.
            for (i, sector) in piece.chunks_mut(SECTOR).enumerate() {
                let from = at + (i * SECTOR) as u64;
                store.read_at(from, sector).map_err(|e| Error::from(e).at(&args.open.path))?;
                output::write(&mut stdout, sector)?;
            }
            Ok(())
        },
    )
}

/// Outputs a file of the file system inside.
fn file(args: &Args, path: &OsStr) -> anyhow::Result<()> {
    let opened = args.which.open(&args.open, Access::ReadOnly, path)?;
    let found = opened.find(path)?;
    let node = found.node();
    let attributes = opened.attributes(node, path)?;
    let misuse = |what: String| anyhow::Error::from(Error::misuse(format!("{} {what}", files::shown(path))));
    if attributes.kind == NodeKind::Special {
        return Err(opened.why_special(node).at(format!("{} in the volume", files::shown(path)).as_ref()).into());
    }
    if attributes.kind != NodeKind::File {
        return Err(misuse(format!("in the volume is a {}, not a file", files::kind_name(attributes.kind))));
    }
    let size = attributes.size;
    let length = args.length.unwrap_or(size.saturating_sub(args.offset));
    if args.offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(misuse(format!("in the volume has only {size} bytes")));
    }
    let mut stdout = output::wide()?;
    cancel::check()?;
    cancel::end_at_once();
    let mut buffer = vec![0; CHUNK.min(length) as usize];
    let (mut at, end) = (args.offset, args.offset + length);
    let bar = progress::wanted(&stdout).then(|| Progress::bytes("Reading"));
    // If opening fails, reading fails as well, with the reason.
    let _open = OpenFile::new(&*opened.tree, node);
    if size == 0 {
        // A file that looks empty may be damaged.
        opened.tree.read_at(node, 0, &mut [0]).map_err(|e| files::tree_error(e, path))?;
    }
    while at < end {
        let chunk = &mut buffer[..(end - at).min(CHUNK) as usize];
        let read = opened.tree.read_at(node, at, chunk).map_err(|e| files::tree_error(e, path))?;
        if read == 0 {
            return Err(misuse("in the volume is shorter than its recorded size".into()));
        }
        output::write(&mut stdout, &chunk[..read])?;
        at += read as u64;
        if let Some(bar) = &bar {
            bar.at(at - args.offset, length);
        }
    }
    Ok(())
}

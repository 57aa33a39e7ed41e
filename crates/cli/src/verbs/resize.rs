//! `claviger resize`: a longer or a shorter volume.

use std::io::{self, Write};

use claviger_engine::formats::Resizing;
use claviger_engine::store::Access;
use claviger_engine::{Error, Spec};
use serde::Serialize;

use crate::opening::editing::HeaderArgs;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, prompt, size};

/// Less than this is what is left of a volume of whole sectors, in bytes.
const SECTOR: u64 = 4096;

/// Make a volume in a file longer or shorter
///
/// For formats that do not say how long a volume is, or say it where it can be changed: LUKS. The file system inside is not
/// touched: it is to be made smaller before, or larger afterwards. What is cut off is lost. No passphrase is needed.
///
/// New room is taken at once, and filled with random-looking bytes as that of a new volume is: inside it reads as noise. If there
/// is too little room, or on Ctrl-C, the volume keeps its size. Killed, it may be left longer than before; the same command goes on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger resize --size 2G disk.luks")]
pub struct Args {
    #[command(flatten)]
    header: HeaderArgs,

    /// Size of the plaintext from now on
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: u64,

    /// Do not fill the new room. Faster, but shows which parts of it have been used
    #[arg(long)]
    quick: bool,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Resized {
    path: String,
    format: &'static str,
    /// Size of the plaintext before, in bytes.
    before: u64,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// Size of the file, in bytes.
    stored: u64,
}

/// Bytes of the file that there will be no way back to. What is behind a volume of fixed size is not its own, and is cut off or
/// filled all the same.
fn lost(resizing: &Resizing, args: &Args, stored: u64) -> u64 {
    let cut_off = resizing.before.saturating_sub(args.size).max(stored.saturating_sub(resizing.len));
    let filled = if args.quick { 0 } else { resizing.len.min(stored).saturating_sub(resizing.end) };
    cut_off.max(filled)
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cancel = cancel::install()?;
    let path = &args.header.path;
    let at = |e: Error| e.at(path);
    let named = args.header.find(Access::ReadWrite)?;
    if named.file.is_block_device() {
        return Err(at(Error::unsupported("resizing a block device")
            .hint("A volume of dynamic size adapts to the size of its device by itself."))
        .into());
    }
    if args.header.in_partition() {
        return Err(at(Error::misuse("the size of a partition is set by its partition table")).into());
    }
    let resizing = named.editor.resize(&*named.store, None, args.size).map_err(at)?;
    let resized = Resized {
        path: named.path(),
        format: named.format.name(),
        before: resizing.before,
        size: args.size,
        stored: resizing.len,
    };
    let lost = lost(&resizing, args, named.store.len());
    if lost >= SECTOR && !args.yes {
        let lost = size::exact(lost);
        let question = format!(
            "The last {lost} of {} are {} and lost. Has its file system been shrunk already? (yes/no) ",
            resized.path,
            if args.size < resizing.before || resizing.len < named.store.len() { "cut off" } else { "filled" }
        );
        prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("the size was not changed{why}"))))?;
    }
    let bar = Progress::bytes("Filling");
    let show = |done, all| bar.at(done, all);
    let spec = Spec { quick: args.quick, cancel: Some(cancel), progress: Some(&show), ..Spec::default() };
    let done = resizing.carry_out(&named.file, &spec);
    drop(bar);
    done.map_err(at)?;
    output::print(&resized, args.json)
}

impl Report for Resized {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format: _, before, size, stored: _ } = self;
        writeln!(out, "{path}: {} for files, {} before", size::exact(*size), size::exact(*before))
    }
}

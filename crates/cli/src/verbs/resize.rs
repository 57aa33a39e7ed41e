//! `claviger resize`: a longer or a shorter volume.

use std::io::{self, Write};

use claviger_engine::diagnosis;
use claviger_engine::formats::Resizing;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Spec, Store, Unlock};
use serde::Serialize;

use crate::opening::editing::Named;
use crate::opening::{OpenArgs, ProtectArgs};
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt, size};

/// Less than this is what is left of a volume of whole sectors, in bytes.
const SECTOR: u64 = 4096;

/// Make a volume in a file longer or shorter
///
/// For LUKS, TrueCrypt and VeraCrypt. The file system inside is not touched: it is to be made smaller before, or larger afterwards.
/// What is cut off is lost. A LUKS volume takes no passphrase; TrueCrypt's and VeraCrypt's headers say the size where only the
/// password reads it. Both copies of such a header are written anew, and the backup lies at the new end.
///
/// Nothing but its password shows a hidden volume, so without it nothing can be done for one. In a longer outer volume it is
/// stranded: it still opens by its header in front, but the backup of that header is gone, and the outer file system, once it is
/// larger, writes over it. One from before TrueCrypt 6.0 has its only header at the end of the file and is lost. A shorter outer volume
/// cuts a hidden one off. With --protect-hidden the size is not changed if there is one.
///
/// New room is taken at once, and filled with random-looking bytes as that of a new volume is: inside it reads as noise. If there
/// is too little room, or on Ctrl-C, the volume keeps its size. Killed, it may be left longer than before; the same command goes on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger resize --size 2G disk.luks
  claviger resize --size 2G --protect-hidden container.hc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    protect: ProtectArgs,

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
    json: bool,
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

/// A change that is ready, of the volume in a file.
struct Ready<'a> {
    resizing: Resizing,
    file: &'a FileStore,
    format: &'static str,
    /// What else is lost with what is cut off, in a sentence.
    also_lost: &'static str,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    cancel::install()?;
    let header = args.open.header_args();
    let at = |e: Error| e.at(&header.path);
    let named = header.find(Access::ReadWrite)?;
    refuse(args, &named).map_err(at)?;
    if !named.editor.size_sealed() {
        let resizing = named.editor.resize(&*named.store, None, None, args.size).map_err(at)?;
        let format = named.format.name();
        let file = named.file.as_deref().ok_or_else(|| at(no_file()))?;
        return args.carry_out(Ready { resizing, file, format, also_lost: "" });
    }
    // Its lock would be in the way of the next one.
    drop(named);
    let editing = args.open.edit(Access::ReadWrite)?;
    let hidden = args.protect.read()?;
    let with = Unlock { protect: args.protect.protect(hidden.as_deref()), ..editing.narrow() };
    let resizing = editing.editor.resize(&*editing.store, None, Some(&with), args.size).map_err(at)?;
    drop(hidden);
    let format = editing.format.name();
    let file = editing.file().ok_or_else(|| at(no_file()))?;
    args.carry_out(Ready { resizing, file, format, also_lost: " So is a hidden volume there." })
}

/// Of what is elsewhere its owner says how large it is.
fn no_file() -> Error {
    Error::unsupported("resizing what is not in a file here")
        .hint("A LUKS volume of dynamic size adapts to the size of what it is in by itself.")
}

/// Refuses what the format need not be asked about.
fn refuse(args: &Args, named: &Named) -> claviger_engine::Result<()> {
    if args.open.files().len() > 1 {
        return Err(Error::misuse("a volume with a detached header follows the size of its file or device by itself")
            .hint("Leave out --header to change what the file itself holds."));
    }
    let Some(file) = &named.file else { return Err(no_file()) };
    if file.is_block_device() {
        let hint = match named.editor.size_sealed() {
            true => "Copy what is on it to a container of the size that you want.",
            false => "A volume of dynamic size adapts to the size of its device by itself.",
        };
        return Err(Error::unsupported("resizing a block device").hint(hint));
    }
    if args.open.header_args().in_partition() {
        return Err(Error::misuse("the size of a partition is set by its partition table"));
    }
    if args.protect.asked() && !named.editor.size_sealed() {
        return Err(
            Error::misuse(format!("{} has no hidden volumes", named.format.name())).hint("Leave out --protect-hidden.")
        );
    }
    if args.protect.on_stdin() && args.open.password_on_stdin() {
        return Err(Error::misuse("only one of the two passwords can come from standard input"));
    }
    Ok(())
}

/// What the bytes of a file behind its volume look like.
fn left_behind(file: &FileStore, end: u64) -> claviger_engine::Result<&'static str> {
    Ok(match diagnosis::looks_random(file, end..file.len())? {
        true => "They look random, as an interrupted `claviger resize` leaves them.",
        false => "They do not look as an interrupted `claviger resize` leaves them.",
    })
}

impl Args {
    /// Asks where something is lost, changes the volume and tells of it.
    fn carry_out(&self, ready: Ready<'_>) -> anyhow::Result<()> {
        let Ready { resizing, file, format, also_lost } = ready;
        let at = |e: Error| e.at(&self.open.path);
        let path = self.open.path.display().to_string();
        let resized = Resized { path, format, before: resizing.before, size: self.size, stored: resizing.len };
        let lost = lost(&resizing, self, file.len());
        if lost >= SECTOR && !self.yes {
            let (lost, path) = (size::exact(lost), output::printable(&resized.path));
            let question = match (self.size < resizing.before, resizing.len < file.len()) {
                (true, _) => format!(
                    "The last {lost} of {path} are cut off and lost.{also_lost} Has its file system been shrunk already? (yes/no) "
                ),
                (false, true) => format!(
                    "{path} has {lost} behind the volume's end, which are cut off. Whatever is stored there is lost.{also_lost} Go on? \
                     (yes/no) "
                ),
                // The volume grows into what the file has already.
                (false, false) => format!(
                    "{path} has {lost} behind the volume, which become part of it and are filled. {} Whatever else is stored there is \
                     lost; no file in the volume is.{also_lost} Go on? (yes/no) ",
                    left_behind(file, resizing.end).map_err(at)?
                ),
            };
            prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("the size was not changed{why}"))))?;
        }
        advice::warn(&resizing.prepared.warnings);
        let bar = Progress::bytes("Filling");
        let show = |done, all| bar.at(done, all);
        let spec = Spec { quick: self.quick, cancel: Some(cancel::flag()), progress: Some(&show), ..Spec::default() };
        let done = resizing.carry_out(file, &spec);
        drop(bar);
        done.map_err(at)?;
        output::print(&resized, self.json)
    }
}

impl Report for Resized {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format: _, before, size, stored: _ } = self;
        let path = output::printable(path);
        writeln!(out, "{path}: {} for files, {} before", size::exact(*size), size::exact(*before))
    }
}

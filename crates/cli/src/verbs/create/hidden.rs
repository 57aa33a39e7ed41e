//! `claviger create --hidden`: creates a volume in the free space of another.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use claviger_engine::formats::{self, Facts};
use claviger_engine::opening::HeaderFound;
use claviger_engine::store::Access;
use claviger_engine::{Error, ErrorKind, HiddenRoom, Spec, Unlock, Volume};
use serde::Serialize;

use super::args::{Args, HiddenVolumeArgs};
use super::choose::choose;
use super::filesystem::{FileSystem, NewFileSystem};
use super::leaving;
use super::report::tell_filling;
use crate::opening::UnlockArgs;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt, size};

#[derive(Serialize)]
struct Hidden {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    cipher: String,
    hash: Cow<'static, str>,
    hidden: bool,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// The offset and size of the available room.
    room: HiddenRoom,
    quick: bool,
    /// The file system that was created in the hidden volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    filesystem: Option<&'static str>,
    /// The time for everything, in seconds.
    seconds: f64,
    /// The time to fill the data area and flush it, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    filling_seconds: Option<f64>,
}

pub fn run(args: &Args, path: &Path) -> anyhow::Result<()> {
    guard::no_dumps();
    let cancel = cancel::install()?;
    let at = |e: Error| e.at(path);
    let HiddenVolumeArgs { hidden_cipher, inner, .. } = &args.hidden;
    if inner.credentials.source().on_stdin() && args.credentials.on_stdin() {
        return Err(Error::misuse("only one of the two passwords can come from standard input").into());
    }
    let filesystem = args.filesystem.map(|kind| NewFileSystem { kind, sector: 512, label: args.label.as_deref() });
    filesystem.iter().try_for_each(|filesystem| filesystem.check(false))?;

    // The outer volume and its room.
    let how = UnlockArgs::new(args.format.clone(), args.cipher.clone(), args.hash.clone(), args.pim);
    let HeaderFound { store, header, .. } = how.opening(path)?.access(Access::ReadWrite).find_header()?;
    let mut outer_credentials = args.credentials.read()?;
    let unlocked = outer_credentials.open(|credentials| {
        let bar = Progress::trials("Opening");
        let show = |done, all| bar.at(done, all);
        header.unlock(&Unlock { cancel: Some(cancel), progress: Some(&show), ..how.unlock(credentials) })
    });
    let unlocked = unlocked.map_err(at)?;
    advice::warn(&unlocked.warnings);
    let Facts { format, cipher, hash, .. } = unlocked.facts;
    let outer =
        Unlock { cancel: Some(cancel), hash: hash.as_deref(), cipher: Some(&cipher), ..how.unlock(&outer_credentials) };
    let format = formats::by_name(format)?;
    let room = format.hidden_room(&store, &outer).map_err(at)?;
    if !room.looks_random {
        output::warn(
            "The outer volume's free space does not look random, as after --quick, so the file reveals the new \
             data. To hide them, use an outer volume made without --quick.",
        );
    }
    let hidden_size = args.size.map_or(room.largest, |size| size - size % 512);
    room.check(hidden_size).map_err(at)?;
    filesystem.iter().try_for_each(|filesystem| filesystem.check_room(hidden_size)).map_err(at)?;
    consent(args, path, &room)?;

    // The hidden volume.
    let choices = formats::creator_of(format)?.choices();
    let spec = Spec {
        cipher: choose("cipher", hidden_cipher.as_deref(), &choices.ciphers, choices.complete)?,
        hash: choose("hash", inner.hidden_hash.as_deref(), &choices.hashes, choices.complete)?,
        pim: inner.hidden_pim,
        hidden_size: Some(hidden_size),
        quick: args.quick,
        cancel: Some(cancel),
        ..Spec::default()
    };
    let meter = StrengthMeter::of(format, &spec);
    let credentials = inner.credentials.source().judged(&meter).read_new()?;
    cancel::check()?;
    let begin = Instant::now();
    let bar = Progress::bytes(if args.quick { "Creating" } else { "Filling" });
    let filling = OnceLock::new();
    let show = |done, all| {
        filling.get_or_init(Instant::now);
        bar.at(done, all);
    };
    let done = format.create_hidden(&store, &outer, &Spec { progress: Some(&show), ..spec }, &credentials);
    bar.clear();
    done.map_err(|e| match &e.kind {
        ErrorKind::Cancelled => at(e).hint("The outer volume and its files are unchanged."),
        _ => at(e),
    })?;
    let end = Instant::now();
    let unlocked =
        format.open(&store).map_err(at)?.unlock(&format.takes().reopening(&spec, &credentials)).map_err(at)?;
    if let Some(filesystem) = filesystem {
        let made = filesystem.make_in(Volume::new(store, unlocked.layout));
        made.map_err(|e| at(leaving(e, "The hidden volume exists, without a file system.")))?;
    }
    let facts = unlocked.facts;
    let hidden = Hidden {
        path: FileName::path(path),
        format: facts.format,
        hash: facts.hash_name(),
        cipher: facts.cipher,
        hidden: facts.hidden,
        size: facts.size,
        room,
        quick: args.quick,
        filesystem: args.filesystem.map(FileSystem::name),
        seconds: (end - begin).as_secs_f64(),
        filling_seconds: filling.get().map(|begin| (end - *begin).as_secs_f64()),
    };
    output::print(&hidden, args.json)
}

/// Asks before the free space is overwritten: an existing hidden volume in it would not show.
fn consent(args: &Args, path: &Path, room: &HiddenRoom) -> claviger_engine::Result<()> {
    if args.overwrite.force && args.overwrite.yes {
        return Ok(());
    }
    let HiddenRoom { largest, filesystem, .. } = room;
    let room = format!("after the files of its {filesystem} file system there is room for {}", size::exact(*largest));
    let question =
        format!("{}: {room}.\nAny existing hidden volume there will be lost. Create a new one?", path.display());
    let refused = |why: &str| Error::misuse(format!("no hidden volume was created{why}; {room}")).at(path);
    prompt::consent(&question, "--force --yes", refused)
}

impl Report for Hidden {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, cipher, hash, size, room, seconds, filling_seconds, .. } = self;
        let path = output::printable(path);
        writeln!(out, "{path}: hidden {format} volume, {cipher}, {hash}, {} for files", size::exact(*size))?;
        let largest = size::exact(room.largest);
        writeln!(out, "The outer {} file system had free space for {largest}.", room.filesystem)?;
        tell_filling(out, *size, *seconds, *filling_seconds)?;
        if let Some(name) = self.filesystem {
            writeln!(out, "It holds an empty {name} file system.")?;
        }
        writeln!(out, "From now on, open the outer volume with --read-only or --protect-hidden: writing to it")?;
        writeln!(out, "without protection may destroy the hidden one.")
    }
}

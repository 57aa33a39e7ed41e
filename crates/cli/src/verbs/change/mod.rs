//! `claviger change`: another password, other keyfiles, another hash.

mod folder;

use std::borrow::Cow;
use std::io::{self, Write};

use claviger_engine::Error;
use claviger_engine::formats::NewCredential;
use claviger_engine::store::Access;
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::cost::CostArgs;
use crate::opening::credentials::NewCredentialArgs;
use crate::terminal::output::{self, Report};
use crate::terminal::{advice, cancel};

/// Change the password, the keyfiles or the key derivation of a volume
///
/// Every copy of its header is encrypted anew, one after the other: each is written, flushed and read back before the next, so
/// that a crash at any moment leaves one that opens, with the old password or the new one. The data and their key stay as
/// they are. With the password of a hidden volume, that one's headers are changed and no others.
///
/// Of an encrypted system it is the header in sector 62 of the disk, and nothing else is written. The passphrase, typed on an
/// American keyboard when the computer starts, and the PIM have to be such as the boot loader takes. The hash stays.
///
/// Of a folder of eCryptfs in a home, its passphrase, which stays, is wrapped by a new login password.
///
/// Whoever has an old copy of the header, such as a header backup, and knows the old password still opens the volume. Where
/// that matters, make a new volume and copy the files. On an SSD, or a file system that keeps old blocks, the old header
/// itself may survive, too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger change old.tc
  claviger change --keep-password --new-keyfile key.bin old.tc
  claviger change --keep-password --new-hash Whirlpool old.tc
  claviger change --password-file old.txt --new-password-file new.txt --json old.tc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    new: NewCredentialArgs,

    /// Hash of the key derivation from now on, or Argon2id
    #[arg(long, value_name = "NAME", help_heading = "New password and keyfiles")]
    new_hash: Option<String>,

    /// PIM from now on; 0 is the default number of iterations
    #[arg(long, value_name = "N", help_heading = "New password and keyfiles")]
    new_pim: Option<u32>,

    #[command(flatten)]
    cost: CostArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Changed {
    path: String,
    format: &'static str,
    hidden: bool,
    /// What was written, in order.
    written: Vec<String>,
    hash: Cow<'static, str>,
    iterations: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pim: Option<u32>,
    warnings: Vec<String>,
    /// Whether there are no header backups of the format.
    #[serde(skip)]
    sealed: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.open.password_on_stdin() && args.new.on_stdin() {
        return Err(Error::misuse("standard input can give one password, not both").into());
    }
    if args.open.path.is_dir() {
        if args.new_hash.is_some() || args.new_pim.is_some() || !args.cost.cost()?.parameters().is_empty() {
            return Err(Error::misuse("a wrapped passphrase has no hash, PIM or cost to choose").into());
        }
        return folder::run(&args.open, &args.new, args.json);
    }
    let cost = args.cost.cost()?;
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let credentials = args.new.read(&editing.credentials)?;
    let new = NewCredential {
        credentials: &credentials,
        hash: args.new_hash.as_deref(),
        pim: args.new_pim,
        cost,
        ..NewCredential::default()
    };
    let prepared = editing.editor.change(&*editing.store, &editing.narrow(), &new).map_err(at)?;
    cancel::check()?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    let pim = args.new_pim.or(editing.facts.pim);
    let facts =
        editing.opens_with(&credentials, prepared.derivation.map(|d| d.hash), pim, prepared.keyslot).map_err(at)?;
    let warnings = advice::warn(&prepared.warnings);
    let changed = Changed {
        path: editing.path().display().to_string(),
        format: prepared.format,
        hidden: prepared.hidden,
        written: prepared.edit.steps.iter().map(|s| s.what.clone()).collect(),
        hash: facts.hash,
        iterations: facts.iterations,
        pim: facts.pim,
        warnings,
        sealed: editing.editor.sealed(),
    };
    output::print(&changed, args.json)
}

impl Report for Changed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format: _, hidden, written, hash, iterations, pim: _, warnings: _, sealed } = self;
        let whose = if *hidden { "hidden volume" } else { "volume" };
        writeln!(
            out,
            "{}: the {whose} opens with the new password or keyfiles only, and has been opened with them.",
            output::printable(path)
        )?;
        match iterations {
            0 => writeln!(out, "Written: {}.", written.join(", "))?,
            _ => writeln!(out, "Written: {}; {hash}, {iterations} iterations.", written.join(", "))?,
        }
        if *sealed {
            return writeln!(out, "Whoever has an older copy of the volume still opens that with the old ones.");
        }
        writeln!(
            out,
            "A header backup made earlier still opens it with the old ones: destroy it, and make a new one with `claviger \
             header backup`."
        )
    }
}

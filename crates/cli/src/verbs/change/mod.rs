//! `claviger change`: changes password, keyfiles or hash.

mod folder;

use std::borrow::Cow;
use std::io::{self, Write};

use claviger_engine::Error;
use claviger_engine::formats::NewCredential;
use claviger_engine::store::Access;
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::cost::CostArgs;
use crate::opening::credentials::{NewCredentialArgs, one_on_stdin};
use crate::opening::strength::StrengthMeter;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::{advice, cancel};

/// Change the password, the keyfiles or the key derivation of a volume
///
/// Each copy of the header is re-encrypted, flushed and read back before the next, so a crash always leaves one that
/// opens, with the old or the new password. The data and their key do not change. With a hidden volume's password,
/// only its headers are changed.
///
/// For an encrypted system, only the header in sector 62 of the disk is changed. The boot loader must accept the
/// passphrase, typed with the US keyboard layout, and the PIM. The hash does not change.
///
/// For an eCryptfs home folder, the unchanged passphrase is wrapped with a new login password. For a gocryptfs folder or a
/// Cryptomator vault, its key is sealed with the new password.
///
/// Anybody with an old copy of the header, such as a header backup, and the old password can still open the volume.
/// If that matters, create a new volume and copy the files. On SSDs and copy-on-write file systems, the old header
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

    /// New hash of the key derivation, or Argon2id
    #[arg(long, value_name = "NAME", help_heading = "New password and keyfiles")]
    new_hash: Option<String>,

    /// New PIM; 0 for the default number of iterations
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
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    hidden: bool,
    /// The keyslot that was changed. Others still open the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    keyslot: Option<u32>,
    /// What was written, in order.
    written: Vec<String>,
    hash: Cow<'static, str>,
    iterations: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pim: Option<u32>,
    warnings: Vec<String>,
    /// Whether the format has no header backups.
    #[serde(skip)]
    sealed: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    one_on_stdin(args.open.password_on_stdin(), args.new.on_stdin())?;
    if args.open.path.is_dir() {
        if args.new_hash.is_some() || args.new_pim.is_some() || !args.cost.cost()?.parameters().is_empty() {
            return Err(Error::misuse("a wrapped passphrase has no hash, PIM or cost").into());
        }
        return folder::run(&args.open, &args.new, args.json);
    }
    let cost = args.cost.cost()?;
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let judged = editing.judged(args.new_hash.as_deref(), args.new_pim, cost);
    let credentials = args.new.read(&editing.credentials, &StrengthMeter::of(editing.format, &judged))?;
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
        path: FileName::path(editing.path()),
        format: prepared.format,
        hidden: prepared.hidden,
        keyslot: facts.keyslot,
        written: prepared.edit.steps.iter().map(|s| s.what.clone()).collect(),
        hash: facts.hash_name(),
        iterations: facts.iterations,
        pim: facts.pim,
        warnings,
        sealed: editing.editor.sealed(),
    };
    output::print(&changed, args.json)
}

impl Report for Changed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format: _, hidden, keyslot, written, hash, iterations, pim: _, warnings: _, sealed } = self;
        let what = match keyslot {
            Some(number) => &format!("keyslot {number}"),
            None if *hidden => "the hidden volume",
            None => "the volume",
        };
        writeln!(
            out,
            "{}: {what} now opens only with the new password or keyfiles. Checked by opening it.",
            output::printable(path)
        )?;
        match iterations {
            0 => writeln!(out, "Written: {}.", written.join(", "))?,
            _ => writeln!(out, "Written: {}; {hash}, {iterations} iterations.", written.join(", "))?,
        }
        if *sealed {
            return writeln!(out, "Older copies of the volume still open with the old ones.");
        }
        let next = "Earlier header backups still open it with the old ones. Destroy them, and make a new one: \
                    `claviger header backup VOLUME FILE`.";
        writeln!(out, "{}", advice::with_header(next))
    }
}

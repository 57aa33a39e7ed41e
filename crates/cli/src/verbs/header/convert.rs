//! `claviger header convert`: LUKS1 to LUKS2 and back.

use std::path::PathBuf;

use claviger_engine::store::Access;
use claviger_engine::{Error, Unlock};

use crate::opening::editing::HeaderArgs;
use crate::opening::new_file;
use crate::terminal::{advice, prompt};

/// Turn a LUKS1 header into one of LUKS2, or back, with the same key, data and passphrases
///
/// To LUKS1 only what that can say: keyslots of PBKDF2, sectors of 512 bytes, no tokens. At any moment one of the two headers opens,
/// as long as a disk writes a sector whole or not at all. A header backup is made all the same.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("backup_or_not").required(true), after_help = "Examples:
  claviger header convert --to LUKS2 --backup old-header.bin disk.luks
  claviger header convert --to LUKS1 --no-backup disk.luks")]
pub struct Args {
    #[command(flatten)]
    header: HeaderArgs,

    /// The format from now on: LUKS1 or LUKS2
    #[arg(long, value_name = "NAME")]
    to: String,

    /// Save the header as it is in this file, which must not exist
    #[arg(long, value_name = "FILE", group = "backup_or_not")]
    backup: Option<PathBuf>,

    /// Save nothing
    #[arg(long, group = "backup_or_not")]
    no_backup: bool,

    /// It is a detached header: the file holds nothing else
    #[arg(long)]
    detached: bool,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub fn run(args: &Args) -> anyhow::Result<()> {
    let at = |e: Error| e.at(&args.header.path);
    if let Some(file) = &args.backup {
        new_file::must_be_new(file)?;
    }
    let named = args.header.find(Access::ReadWrite)?;
    let prepared = named.editor.convert(&*named.store, &args.to, args.detached).map_err(at)?;
    if !args.yes {
        let question = format!("{} Turn it into {}? (yes/no) ", named.announcement(&prepared), prepared.format);
        prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("nothing was changed{why}"))))?;
    }
    if let Some(file) = &args.backup {
        let backup = named.editor.back_up(&*named.store, &Unlock::with(&[]), None).map_err(at)?;
        advice::warn(&backup.warnings);
        new_file::write(file, &backup.bytes)?;
    }
    named.carry_out(prepared, args.json)
}

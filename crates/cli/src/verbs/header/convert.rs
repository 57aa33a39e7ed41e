//! `claviger header convert`: converts LUKS1 to LUKS2 and back.

use std::path::PathBuf;

use claviger_engine::store::Access;
use claviger_engine::{Error, Unlock};

use crate::opening::editing::HeaderArgs;
use crate::opening::new_file;
use crate::terminal::{advice, prompt};

/// Convert a LUKS1 header to LUKS2 or back, with the same key, data and passphrases
///
/// LUKS1 supports only PBKDF2 keyslots, 512-byte sectors and no tokens. If interrupted, one of the two headers still
/// opens, provided the disk writes sectors atomically. A header backup is made anyway.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("backup_or_not").required(true), after_help = "Examples:
  claviger header convert --to LUKS2 --backup old-header.bin disk.luks
  claviger header convert --to LUKS1 --no-backup disk.luks")]
pub struct Args {
    #[command(flatten)]
    header: HeaderArgs,

    /// New format: LUKS1 or LUKS2
    #[arg(long, value_name = "NAME")]
    to: String,

    /// Back up the current header to this new file
    #[arg(long, value_name = "FILE", group = "backup_or_not")]
    backup: Option<PathBuf>,

    /// Make no header backup
    #[arg(long, group = "backup_or_not")]
    no_backup: bool,

    /// Treat the file as a detached header, which holds nothing else
    #[arg(long)]
    detached: bool,

    /// Do not ask for confirmation
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
    let named = args.header.find(Access::ReadWrite)?.unused()?;
    let prepared = named.editor.convert(&*named.store, &args.to, args.detached).map_err(at)?;
    if !args.yes {
        let question = format!("{} Convert it to {}?", named.announcement(&prepared), prepared.format);
        prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("nothing was changed{why}"))))?;
    }
    if let Some(file) = &args.backup {
        let backup = named.editor.back_up(&*named.store, &Unlock::with(&[]), None).map_err(at)?;
        advice::warn(&backup.warnings);
        new_file::write(file, &backup.bytes)?;
    }
    named.carry_out(prepared, args.json)
}

//! `claviger recovery make`: makes a recovery key.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::formats::RestoreFrom;
use claviger_engine::store::{Access, MemoryStore};
use claviger_engine::{Error, Unlock};
use serde::Serialize;

use super::output_args::{NewKey, OutputArgs, Saved};
use super::{RecoveryKind, add, alone, command, kind_of};
use crate::opening::editing::Editing;
use crate::opening::{OpenArgs, new_file};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::{advice, cancel};

/// Make a recovery key
///
/// LUKS2 and BitLocker get one more keyslot for it. VeraCrypt and TrueCrypt have one password only: the key opens a
/// header backup (--backup FILE), which `header restore` puts back. The key is not shown again, except by BitLocker.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger recovery make disk.luks
  claviger recovery make --output recovery.txt disk.luks
  claviger recovery make --qr stick.bitlocker
  claviger recovery make --shares 3:5 --output recovery.txt disk.luks
  claviger recovery make --backup old.hc.header --output recovery.txt old.hc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    output: OutputArgs,

    /// For VeraCrypt and TrueCrypt: write a header backup that the recovery key opens to the new FILE
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
pub struct Made {
    #[serde(flatten)]
    pub path: FileName,
    pub format: &'static str,
    /// The keyslot of the recovery key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyslot: Option<u32>,
    /// The keyslot that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<u32>,
    #[serde(flatten)]
    pub saved: Saved,
    /// The header backup.
    #[serde(flatten)]
    pub backup: Option<FileName>,
    pub warnings: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check(args.json)?;
    args.backup.as_deref().map_or(Ok(()), new_file::must_be_new)?;
    let backup = args.backup.as_deref();
    if let Some(kind) = kind_of(&args.open)? {
        check_backup(kind, backup, &args.open.path)?;
    }
    let editing = args.open.edit(if backup.is_some() { Access::ReadOnly } else { Access::ReadWrite })?;
    let kind = RecoveryKind::of(editing.format, editing.path()).map_err(|e| e.at(editing.path()))?;
    check_backup(kind, backup, editing.path())?;
    let mut new = args.output.new_key(kind.fresh(editing.format)?)?;
    let made = match backup {
        Some(file) => back_up(&editing, &mut new, file)?,
        None => add_to(&editing, kind, &mut new)?,
    };
    output::print(&made, args.json)?;
    new.show()
}

/// Fails if a backup is given for a format with keyslots, and the other way round.
fn check_backup(kind: RecoveryKind, backup: Option<&Path>, path: &Path) -> claviger_engine::Result<()> {
    match (kind, backup) {
        (RecoveryKind::Backup, None) => {
            Err(Error::misuse("this volume has no room for a second key: its recovery key opens a header backup")
                .at(path)
                .hint(command("Name a new file for the backup:", "make --backup FILE")))
        }
        (RecoveryKind::Letters | RecoveryKind::Digits, Some(_)) => {
            Err(Error::misuse("--backup is for VeraCrypt and TrueCrypt: here the volume keeps the recovery key")
                .at(path))
        }
        _ => Ok(()),
    }
}

/// Adds the key to the volume.
pub fn add_to(editing: &Editing<'_>, kind: RecoveryKind, new: &mut NewKey<'_>) -> claviger_engine::Result<Made> {
    let prepared = add(editing, kind, new)?;
    Ok(Made {
        path: FileName::path(editing.path()),
        format: prepared.format,
        keyslot: prepared.keyslot,
        removed: None,
        saved: new.saved(),
        backup: None,
        warnings: advice::warn(&prepared.warnings),
    })
}

/// Writes a header backup that the key opens.
fn back_up(editing: &Editing<'_>, new: &mut NewKey<'_>, file: &Path) -> claviger_engine::Result<Made> {
    let at = |e: Error| e.at(editing.path());
    let key = alone(&new.key);
    let backup = editing.editor.back_up_under(&*editing.store, &editing.narrow(), &key).map_err(at)?;
    // The backup must open with the key alone, as after it is restored.
    let with = Unlock { credentials: &key, pim: None, ..editing.narrow() };
    let stored = MemoryStore::new(backup.bytes.clone());
    editing.editor.restore(&*editing.store, RestoreFrom::Backup(&stored), &with, true).map_err(at)?;
    cancel::check()?;
    new.save()?;
    new_file::write(file, &backup.bytes).inspect_err(|_| new.unsave())?;
    Ok(Made {
        path: FileName::path(editing.path()),
        format: backup.format,
        keyslot: None,
        removed: None,
        saved: new.saved(),
        backup: Some(FileName::new("backup", file)),
        warnings: advice::warn(&backup.warnings),
    })
}

impl Report for Made {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, keyslot, removed, saved, backup, warnings: _ } = self;
        let path = output::printable(path);
        match keyslot {
            Some(keyslot) => writeln!(out, "{path}: {format}: a new recovery key opens keyslot {keyslot}.")?,
            None => writeln!(out, "{path}: {format}: a new recovery key opens its header backup.")?,
        }
        if let Some(removed) = removed {
            writeln!(out, "The old recovery key, which was in keyslot {removed}, no longer works.")?;
        }
        if let Some(backup) = backup {
            let backup = output::printable(backup);
            writeln!(out, "{backup}: the header backup. To use it: claviger header restore --from {backup} {path}")?;
        }
        saved.text(out)
    }
}

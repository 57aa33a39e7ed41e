//! `claviger recovery check`: checks that a recovery key still opens the volume.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use claviger_engine::file_formats::ecryptfs;
use claviger_engine::formats::RestoreFrom;
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, Secret, Unlock, recovery};
use serde::Serialize;

use super::{RecoveryKind, command, kind_of};
use crate::opening::{OpenArgs, remote};
use crate::process::guard;
use crate::terminal::cancel;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::verbs::header;

/// Check that a recovery key still opens the volume
///
/// Asks for the recovery key. For VeraCrypt and TrueCrypt, --backup names the header backup that it opens. Nothing is
/// written. The exit status is 2 if it does not open the volume, or is not its recovery key.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger recovery check disk.luks
  claviger recovery check --password-file recovery.txt stick.bitlocker
  claviger recovery check --backup old.hc.header old.hc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The header backup that the recovery key opens
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Checked {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyslot: Option<u32>,
    /// The header backup.
    #[serde(flatten)]
    backup: Option<FileName>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let open = OpenArgs { credentials: args.open.credentials.clone().asking_for_recovery_key(), ..args.open.clone() };
    let checked = if open.path.is_dir() {
        folder(&open)?
    } else if let Some(file) = &args.backup {
        backup(&open, file)?
    } else if kind_of(&open)? == Some(RecoveryKind::Backup) {
        return Err(Error::misuse("the recovery key of this volume opens a header backup")
            .at(&open.path)
            .hint(command("Name it:", "check --backup FILE"))
            .into());
    } else {
        keyslot(&open)?
    };
    output::print(&checked, args.json)
}

/// The error for a credential that opens the volume, but is not its recovery key.
fn not_it(what: String) -> Error {
    Error::new(ErrorKind::WrongCredential(what))
}

fn keyslot(open: &OpenArgs) -> anyhow::Result<Checked> {
    let editing = open.prove()?;
    let at = |e: Error| e.at(editing.path());
    RecoveryKind::of(editing.format, editing.path()).map_err(at)?;
    let keyslots = editing.editor.recovery_keyslots(&*editing.store).map_err(at)?;
    let keyslot = editing.facts.keyslot;
    if !keyslot.is_some_and(|keyslot| keyslots.contains(&keyslot)) {
        let opened = keyslot.map(|number| format!("keyslot {number}")).unwrap_or("the volume".to_owned());
        return Err(at(not_it(format!("this opens {opened}, but is not a recovery key"))).into());
    }
    Ok(Checked { path: FileName::path(editing.path()), format: editing.facts.format, keyslot, backup: None })
}

fn backup(open: &OpenArgs, file: &Path) -> anyhow::Result<Checked> {
    guard::no_dumps();
    let cancel = cancel::install()?;
    let store = open.how.opening(&open.path)?.access(Access::ReadOnly).stored()?;
    let from = remote::open(file, Access::ReadOnly)?;
    let mut credentials = open.read_credentials()?;
    let opened = AtomicBool::new(false);
    let checked = credentials.open(|credentials| {
        let typed = passphrase(credentials)?;
        let key = [Credential::Passphrase(recovery::read_digits(typed)?)];
        let bar = Progress::trials("Opening");
        let show = |done, all| bar.at(done, all);
        let with =
            Unlock { cancel: Some(cancel), progress: Some(&show), opened: Some(&opened), ..open.how.unlock(&key) };
        header::prepare_restore(&*store, RestoreFrom::Backup(&*from), &with, open.format(), false)
    });
    let (_, prepared) = checked.map_err(|e| match e.kind {
        ErrorKind::WrongCredential(_) | ErrorKind::NotThisFormat(_) => e.at(file),
        ErrorKind::Misuse(_) if opened.load(Ordering::Relaxed) => {
            e.at(&open.path).hint("The recovery key opens the backup. Either the backup is another volume's, or the volume holds nothing yet.")
        }
        _ => e.at(&open.path),
    })?;
    let backup = Some(FileName::new("backup", file));
    Ok(Checked { path: FileName::path(&open.path), format: prepared.format, keyslot: None, backup })
}

fn folder(open: &OpenArgs) -> anyhow::Result<Checked> {
    let found = open.find_folder(Access::ReadOnly, None)?;
    let mut credentials = found.credentials()?;
    let opened = found.unlock(&mut credentials)?;
    let [contents, _] = ecryptfs::signatures(passphrase(&credentials)?)?;
    if !opened.tree.signatures().contains(&contents) {
        let what = "this unwraps the folder's mount passphrase, but is not it";
        return Err(not_it(what.to_owned()).at(&open.path).into());
    }
    Ok(Checked { path: FileName::path(&open.path), format: "eCryptfs", keyslot: None, backup: None })
}

fn passphrase(credentials: &[Credential]) -> claviger_engine::Result<&Secret> {
    match credentials {
        [Credential::Passphrase(text)] => Ok(text),
        _ => Err(Error::misuse("a recovery key needs no other credential")),
    }
}

impl Report for Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let path = output::printable(&self.path);
        match (self.keyslot, &self.backup) {
            (Some(keyslot), _) => writeln!(out, "{path}: the recovery key works: it opens keyslot {keyslot}"),
            (None, Some(backup)) => {
                let backup = output::printable(backup);
                writeln!(out, "{path}: the recovery key works: it opens the header backup {backup}")
            }
            (None, None) => writeln!(out, "{path}: the recovery key works: it is the mount passphrase"),
        }
    }
}

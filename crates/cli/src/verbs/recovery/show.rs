//! `claviger recovery show` and `claviger keyslot recovery`: show what a volume or folder stores of its recovery keys.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::file_formats::ecryptfs;
use claviger_engine::formats::RecoveryPassword;
use claviger_engine::formats::takes::Parameter;
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, FileFormat, Secret};
use serde::Serialize;

use super::{RecoveryKind, command, kind_of};
use crate::opening::{OpenArgs, new_file};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};

/// Show or save the recovery passwords of a BitLocker volume, or the mount passphrase of an eCryptfs folder
///
/// Any credential that opens the volume reveals them. Print them and keep them somewhere else.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger recovery show disk.bitlocker
  claviger recovery show --output recovery.txt disk.bitlocker
  claviger recovery show ~/.Private")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Write them to the new FILE, readable only by you
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print JSON, without the recovery passwords
    #[arg(long, requires = "output")]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    #[serde(flatten)]
    file: FileName,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recovery_passwords: Vec<Known>,
}

/// The identification of a recovery password.
#[derive(Serialize)]
struct Known {
    keyslot: u32,
    guid: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    args.output.as_deref().map_or(Ok(()), new_file::must_be_new)?;
    if args.open.path.is_dir() {
        return folder(args);
    }
    if let Some(kind) = kind_of(&args.open)? {
        check_kind(kind, &args.open.path)?;
    }
    let editing = args.open.edit(Access::ReadOnly)?;
    let at = |e: Error| e.at(editing.path());
    check_kind(RecoveryKind::of(editing.format, editing.path()).map_err(at)?, editing.path())?;
    let all = editing.editor.recovery_passwords(&*editing.store, &editing.narrow()).map_err(at)?;
    if all.is_empty() {
        return Err(
            at(Error::misuse("no recovery password opens this volume").hint(command("To make one:", "make"))).into()
        );
    }
    let path = FileName::path(editing.path());
    let text = recovery_text(&path, &all);
    let recovery_passwords =
        all.into_iter().map(|RecoveryPassword { keyslot, guid, .. }| Known { keyslot, guid }).collect();
    args.print(path, editing.facts.format, &text, recovery_passwords)
}

/// Fails for volumes that store only what checks a recovery key.
fn check_kind(kind: RecoveryKind, path: &Path) -> claviger_engine::Result<()> {
    let (what, verb) = match kind {
        RecoveryKind::Digits => return Ok(()),
        RecoveryKind::Letters => ("showing the recovery key: LUKS2 does not store it", "replace"),
        RecoveryKind::Backup => ("showing the recovery key: this format does not store it", "make --backup FILE"),
    };
    Err(Error::unsupported(what).at(path).hint(command("To make another one:", verb)))
}

/// Shows the mount passphrase of an encrypted folder, which its password unwraps.
fn folder(args: &Args) -> anyhow::Result<()> {
    let open = &args.open;
    let found = open.find_folder(Access::ReadOnly, None)?;
    if found.locked.file_format().is_none_or(|format| !format.takes().opens_with(Parameter::WrappedPassphrase)) {
        return Err(Error::unsupported("recovery keys of this folder").at(&open.path).into());
    }
    let beside = found.locked.stored_files().and_then(|(_, beside)| beside.folder.clone());
    let file = open.how.folder.wrapped_file()?.or(beside.map(|folder| folder.join(ecryptfs::WRAPPED)));
    let Some(file) = file else {
        return Err(Error::unsupported(
            "showing the mount passphrase: the folder stores none, its password is the passphrase",
        )
        .at(&open.path)
        .hint("Keep the password on paper. If there is a wrapped-passphrase file, name it: --wrapped-passphrase FILE")
        .into());
    };
    let wrapped = ecryptfs::read_wrapped(&file)?;
    let passphrase = open.read_credentials()?.open(|credentials| match credentials {
        [Credential::Passphrase(password)] => ecryptfs::unwrap_passphrase(&wrapped, password),
        _ => Err(Error::misuse("a wrapped passphrase takes a password and nothing else")),
    });
    let passphrase = passphrase.map_err(|e| e.at(&file))?;
    let path = FileName::path(&open.path);
    let head = format!(
        "eCryptfs recovery\n\nFolder: {}\n\nThe mount passphrase opens the folder without its file \
         wrapped-passphrase and without the login password.\n\nMount passphrase:\n\n    ",
        output::printable(&path)
    );
    args.print(path, ecryptfs::ECRYPTFS.name(), &Secret::concat(&[head.as_bytes(), &passphrase, b"\n"]), Vec::new())
}

impl Args {
    /// Shows the text, or writes it to the file and reports that.
    fn print(&self, path: FileName, format: &'static str, text: &Secret, known: Vec<Known>) -> anyhow::Result<()> {
        let Some(file) = &self.output else { return output::write(&mut output::raw()?, text) };
        new_file::write(file, text)?;
        let file = FileName::new("file", file);
        output::print(&Shown { path, format, file, recovery_passwords: known }, self.json)
    }
}

/// The text to print and keep: each recovery password with the identifier that Windows shows when it asks for it.
fn recovery_text(path: &str, all: &[RecoveryPassword]) -> Secret {
    let mut parts: Vec<Cow<'_, [u8]>> = Vec::new();
    let head = format!(
        "BitLocker recovery\n\nVolume: {}\n\nWindows shows an identifier when it asks for a recovery password. If \
         it begins like one of these,\nthe recovery password below it opens the volume.\n",
        output::printable(path)
    );
    parts.push(head.into_bytes().into());
    for RecoveryPassword { guid, password, .. } in all {
        let head = format!("\nIdentifier:\n\n    {}\n\nRecovery password:\n\n    ", guid.to_uppercase());
        parts.extend([head.into_bytes().into(), Cow::Borrowed(&**password), Cow::Borrowed(&b"\n"[..])]);
    }
    Secret::concat(&parts.iter().map(|part| &**part).collect::<Vec<_>>())
}

impl Report for Shown {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, file, recovery_passwords, .. } = self;
        let what = match recovery_passwords.len() {
            0 => "the mount passphrase".to_owned(),
            1 => "the recovery password".to_owned(),
            count => format!("the {count} recovery passwords"),
        };
        let (file, path) = (output::printable(file), output::printable(path));
        writeln!(out, "{file}: {what} of {path}. Keep it somewhere else.")
    }
}

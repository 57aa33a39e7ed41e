//! `claviger recovery`: makes, shows, checks and replaces the recovery key of a volume.

mod check;
mod join;
mod make;
mod output_args;
mod replace;
mod show;

use std::path::Path;

use claviger_engine::formats::takes::{Parameter, Purpose};
use claviger_engine::formats::{self, Prepared};
use claviger_engine::{Credential, Error, ErrorKind, Format, Result, Secret, Unlock, recovery};

use crate::opening::OpenArgs;
use crate::opening::cost::CHEAPEST;
use crate::opening::editing::Editing;
use crate::terminal::{advice, cancel, output};
use output_args::NewKey;
use serde_json::Map;
pub use show::{Args as ShowArgs, run as show};

/// Make, show, check or replace the recovery key of a volume
///
/// A recovery key is a password that the program generates, to keep on paper: for LUKS2, eight groups of letters, as
/// systemd-cryptenroll makes them; for BitLocker, eight groups of digits. For VeraCrypt and TrueCrypt, it opens a
/// header backup. An eCryptfs folder has its mount passphrase.
#[derive(clap::Args)]
#[command(mut_subcommands(|part| part.mut_args(only_with_header)))]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// Hides the options for formats without a header, which have no recovery keys.
fn only_with_header(arg: clap::Arg) -> clap::Arg {
    if arg.get_help_heading() == Some("Formats without a header") { arg.hide(true) } else { arg }
}

#[derive(clap::Subcommand)]
enum What {
    Make(Box<make::Args>),
    Show(Box<show::Args>),
    Check(Box<check::Args>),
    Replace(Box<replace::Args>),
    Join(join::Args),
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Make(args) => make::run(args),
        What::Show(args) => show::run(args),
        What::Check(args) => check::run(args),
        What::Replace(args) => replace::run(args),
        What::Join(args) => join::run(args),
    }
}

/// What a format has for a recovery key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecoveryKind {
    /// A keyslot with a key of letters.
    Letters,
    /// A keyslot with a key of digits.
    Digits,
    /// A header backup that another password opens.
    Backup,
}

impl RecoveryKind {
    /// The kind for volumes of the format.
    ///
    /// # Errors
    /// `Unsupported`, with what to do instead.
    fn of(format: &'static dyn Format, path: &Path) -> Result<Self> {
        let takes = format.takes();
        let creating = takes.to(Purpose::Creating);
        if creating.contains(&Parameter::RecoveryKey) {
            return Ok(Self::Letters);
        }
        if creating.contains(&Parameter::RecoveryPassword) {
            return Ok(Self::Digits);
        }
        if format.editor().is_some_and(|editor| editor.has_backups() && !editor.public()) {
            return Ok(Self::Backup);
        }
        let error = Error::unsupported(format!("recovery keys of {}", format.name()));
        Err(match format.editor() {
            Some(_) => {
                let path = output::command([path]);
                error.hint(format!("To add a passphrase to keep on paper: claviger keyslot add {path}"))
            }
            None => error.hint("Keep its password and keyfiles somewhere else, too."),
        })
    }

    /// Returns a new key.
    fn fresh(self, format: &'static dyn Format) -> Result<Secret> {
        match self {
            Self::Letters => formats::creator_of(format)?.fresh_recovery_key(),
            Self::Digits => formats::creator_of(format)?.fresh_recovery_password(),
            Self::Backup => recovery::fresh_digits(),
        }
    }
}

/// Finds out what the volume has for a recovery key before anybody types a password. `None` if only opening it shows its format.
fn kind_of(open: &OpenArgs) -> Result<Option<RecoveryKind>> {
    if open.path.is_dir() {
        return Err(Error::unsupported("another recovery key for an encrypted folder").at(&open.path).hint(command(
            "If this is an eCryptfs folder, its recovery key is its mount passphrase. To show it:",
            "show",
        )));
    }
    // With a detached header, and if nothing is found here, opening it gives the error.
    let found = open.how.header_file().is_none().then(|| open.header_args().opening()?.find_header());
    let format = found.and_then(Result::ok).map(|found| found.format);
    format.map(|format| RecoveryKind::of(format, &open.path)).transpose().map_err(|e| e.at(&open.path))
}

/// Adds a keyslot that the new key opens.
fn add(editing: &Editing<'_>, kind: RecoveryKind, new: &mut NewKey<'_>) -> Result<Prepared> {
    let key = &alone(&new.key);
    let at = |e: Error| e.at(editing.path());
    // The key cannot be guessed: stretching adds nothing.
    let cost = if kind == RecoveryKind::Letters { CHEAPEST } else { Default::default() };
    // Without its token, the key would open only as it is written.
    let mark = Map::from_iter([("type".to_owned(), recovery::TOKEN.into())]);
    let token = (kind == RecoveryKind::Letters).then_some(&mark);
    let credential = formats::NewCredential { credentials: key, cost, token, ..Default::default() };
    let prepared = editing.editor.add(&*editing.store, &editing.narrow(), &credential, None).map_err(at)?;
    cancel::check()?;
    // The key is saved before a keyslot depends on it.
    new.save()?;
    prepared.edit.carry_out(&*editing.store).map_err(|e| {
        // After an `Io` error the key might open the volume.
        if let ErrorKind::InUse { .. } | ErrorKind::Misuse(_) = &e.kind {
            new.unsave();
        }
        at(e)
    })?;
    editing.opens_with(key, None, None, prepared.keyslot).map_err(at)?;
    Ok(prepared)
}

/// A hint with a command of this verb for the volume.
fn command(before: &str, words: &str) -> String {
    format!("{before} {}", advice::with_volume(&format!("`claviger recovery {words} VOLUME`")))
}

/// The key as the only credential.
fn alone(key: &Secret) -> [Credential; 1] {
    [Credential::Passphrase(Secret::copy_from(key))]
}

/// The credentials, for any keyslot.
fn by_any_keyslot<'a>(editing: &'a Editing<'_>, credentials: &'a [Credential]) -> Unlock<'a> {
    Unlock { credentials, hash: None, cipher: None, keyslot: None, ..editing.wide() }
}

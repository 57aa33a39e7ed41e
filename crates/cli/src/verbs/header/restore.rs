//! `claviger header restore`: restores a header from a file, or from the backup at the end of the volume.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::formats::{self, Derivation, Prepared, RestoreFrom};
use claviger_engine::partitions;
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Store, Unlock};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::credentials::ReadCredentials;
use crate::opening::editing::{self, editor_of};
use crate::opening::remote;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt};

/// Restore a header from a file or from the backup at the end of the volume
///
/// Give the password of the header in the backup; it selects the normal or the hidden volume's header. Nothing is
/// written unless the header opens, fits the volume, and is proven to belong to it by the volume's own header or by
/// data that decrypt to more than noise.
///
/// An encrypted system's header is restored from such a backup, from `EFI/VeraCrypt/svh_bak` of an EFI rescue disk,
/// or from a BIOS rescue disk image. The boot loader and the partition table do not change.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true), after_help = "Examples:
  claviger header restore --embedded old.tc
  claviger header restore --from old.tc.header old.tc
  claviger header restore --from 'VeraCrypt Rescue Disk.iso' /dev/sda")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// A header backup, or an encrypted system's rescue disk image
    #[arg(long, value_name = "FILE", group = "source")]
    from: Option<PathBuf>,

    /// Use the backup header at the end of the volume
    #[arg(long, group = "source")]
    embedded: bool,

    /// Restore it even if nothing proves that it belongs to this volume
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    let cancel = cancel::install()?;
    let path = &args.open.path;
    let at = |e: Error| e.at(path);
    let store = args.open.how.opening(path)?.access(Access::ReadWrite).stored()?;
    let file = args.from.as_deref().map(|from| remote::open(from, Access::ReadOnly)).transpose()?;
    let from = file.as_ref().map_or(RestoreFrom::Embedded, |f| RestoreFrom::Backup(&**f));
    let public = file.as_ref().is_some_and(is_public);
    // A public backup can be compared with the volume's intact header. Without that, only data that decrypt prove that the
    // backup belongs here.
    let unneeded = public && !args.open.credentials.given() && (args.force || is_public(&store));
    let mut credentials = match unneeded {
        true => ReadCredentials::default(),
        false => match args.open.credentials.read_for(asks(file.as_ref())) {
            // Nobody can be asked: then nothing proves it, and the error says so.
            Err(e) if public && !args.open.credentials.given() && matches!(e.kind, ErrorKind::Misuse(_)) => {
                ReadCredentials::default()
            }
            read => read?,
        },
    };
    let prepared = credentials.open(|credentials| {
        let bar = Progress::trials("Opening");
        let show = |done, all| bar.at(done, all);
        let with = Unlock { cancel: Some(cancel), progress: Some(&show), ..args.open.how.unlock(credentials) };
        prepare(&*store, from, &with, args.open.how.format(), args.force)
    });
    let credentials = credentials.into_vec();
    let with = Unlock { cancel: Some(cancel), ..args.open.how.unlock(&credentials) };
    let (format, prepared) = prepared.map_err(|e| match (&e.kind, &args.from) {
        (ErrorKind::NotThisFormat(_) | ErrorKind::WrongCredential(_), Some(from)) => e.at(from),
        _ => at(e),
    })?;
    let warnings = advice::warn(&prepared.warnings);
    if !prepared.edit.steps.is_empty() {
        // A header that belongs in a partition would overwrite the disk's partition table.
        let table = reaches_table(&prepared) && !matches!(partitions::read(&*store), Ok(None));
        consent(args, path, &prepared, public, table)?;
        prepared.edit.carry_out(&*store).map_err(at)?;
        match public {
            true => sound(format, &*store, &with).map_err(at)?,
            false => opens(format, &store, &credentials, &with, &prepared).map_err(at)?,
        }
    }
    let restored = Restored {
        path: FileName::path(path),
        format: prepared.format,
        hidden: prepared.hidden,
        written: prepared.edit.steps.iter().map(|s| s.what.clone()).collect(),
        derivation: prepared.derivation,
        warnings,
        tried: !credentials.is_empty(),
    };
    output::print(&restored, args.json)
}

/// Whether a step writes to where partition tables are: the boot sector, and the smallest GPT after it.
fn reaches_table(prepared: &Prepared) -> bool {
    prepared.hidden || prepared.edit.steps.iter().any(|step| step.at < 34 * 512)
}

/// Prepares the restoration, as the named format or as each possible one.
pub fn prepare(
    store: &dyn Store,
    from: RestoreFrom<'_>,
    with: &Unlock<'_>,
    format: Option<&str>,
    force: bool,
) -> claviger_engine::Result<(&'static dyn Format, Prepared)> {
    if let Some(name) = format {
        let format = formats::by_name(name)?;
        return Ok((format, editor_of(format)?.restore(store, from, with, force)?));
    }
    let mut last: Option<Error> = None;
    for &format in FORMATS {
        let Some(editor) = format.editor() else { continue };
        // Skips a format that has no such hash, PIM or length.
        if let Err(e) = takes::check(format.name(), &format.takes(), Purpose::Opening, &with.parameters()) {
            last = last.or(Some(e));
            continue;
        }
        match editor.restore(store, from, with, force) {
            Ok(prepared) => return Ok((format, prepared)),
            Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => last = Some(e),
            Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => last = last.or(Some(e)),
            Err(e) if matches!(e.kind, ErrorKind::Misuse(_)) && e.hint.is_none() && e.advice.is_none() => {
                last = last.or(Some(e))
            }
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| Error::unsupported("header backups")))
}

fn consent(args: &Args, path: &Path, prepared: &Prepared, public: bool, table: bool) -> claviger_engine::Result<()> {
    if args.yes {
        return Ok(());
    }
    let from = args.from.as_deref().map_or("the backup at its end".to_owned(), |f| f.display().to_string());
    let whose = if prepared.hidden { "hidden volume's header" } else { "header" };
    let lost = if table {
        "There is a partition table, which will be overwritten; to choose a partition, use --partition. "
    } else {
        ""
    };
    let opens_with = match public {
        true => "only the passphrases of the backup",
        false => "only the password you have just given",
    };
    let question = format!(
        "{lost}The {whose} of {} will be replaced by the one in {from}. The volume will then open with \
         {opens_with}. Replace it?",
        output::printable(&path.to_string_lossy())
    );
    prompt::consent(&question, "--yes", |why| Error::misuse(format!("the header was not replaced{why}")).at(path))
}

/// Whether to ask for a password besides keyfiles, which depends on the backup's format.
fn asks(file: Option<&Arc<dyn Store>>) -> impl FnOnce(&[Credential]) -> bool {
    move |keyfiles| {
        let header = file.and_then(|file| formats::open(file, None).ok());
        header.is_none_or(|(_, header)| header.asks_passphrase(keyfiles))
    }
}

/// Verifies a header that needs no password, with the given credentials if there are any.
fn sound(format: &'static dyn Format, store: &dyn Store, with: &Unlock<'_>) -> claviger_engine::Result<()> {
    editor_of(format)?.verify(store, &Unlock { progress: None, ..*with }).map(drop)
}

/// Opens the volume with the written header.
fn opens(
    format: &dyn Format,
    store: &Arc<dyn Store>,
    credentials: &[Credential],
    with: &Unlock<'_>,
    prepared: &Prepared,
) -> claviger_engine::Result<()> {
    let header = HeaderChoice::One { hidden: prepared.hidden, backup: false };
    let with = Unlock { credentials, hash: prepared.derivation.map(|d| d.hash), header, progress: None, ..*with };
    format.open(store)?.unlock(&with).map(|_| ())
}
/// Whether headers of the backup's format are restored without a passphrase.
fn is_public(file: &Arc<dyn Store>) -> bool {
    formats::open(file, None).is_ok_and(|(format, _)| editing::is_public(format))
}

#[derive(Serialize)]
struct Restored {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    hidden: bool,
    /// The steps that were written, in order; empty if nothing was damaged.
    written: Vec<String>,
    #[serde(flatten)]
    derivation: Option<Derivation>,
    warnings: Vec<String>,
    /// Whether a password opened the restored header.
    #[serde(skip)]
    tried: bool,
}
impl Report for Restored {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, written, hidden, tried, .. } = self;
        let whose = if *hidden { "hidden volume" } else { "volume" };
        let proof = match tried {
            true => format!("checked by opening the {whose}"),
            false => "it is readable; no passphrase was tried".to_owned(),
        };
        let path = output::printable(path);
        match &written[..] {
            [] if *tried => writeln!(
                out,
                "{path}: nothing to do: the {whose}'s header in front is identical and \
                 opens"
            ),
            [] => writeln!(
                out,
                "{path}: nothing to do: the {whose}'s header in front is identical; no passphrase was tried"
            ),
            written => writeln!(out, "{path}: restored {}; {proof}", written.join(", ")),
        }
    }
}

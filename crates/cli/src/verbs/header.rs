//! `claviger header`: header backups, in files and at the end of the volume.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::formats::{self, Derivation, HeaderBackup, Prepared, RestoreFrom};
use claviger_engine::partitions;
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Store, Unlock};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::credentials::HiddenCredentialArgs;
use crate::opening::editing::{self, editor_of};
use crate::opening::remote;
use crate::opening::{header_changes, new_file};
use crate::process::guard;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt, show};

/// Show, save or restore a volume's headers
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Show(show::Args),
    Set(header_changes::SetArgs),
    Repair(header_changes::RepairArgs),
    Convert(header_changes::ConvertArgs),
}

/// Save the headers in a file
///
/// If its header is destroyed, a volume is lost, whatever is left of its data. The file has the format of TrueCrypt and
/// VeraCrypt, looks random, and will always open with the volume's present password: keep it as safe as the volume.
/// Never overwrites a file.
///
/// Of an encrypted system its header in sector 62 of the disk is saved, 512 bytes, as VeraCrypt has it on its rescue disks.
///
/// With --with-hidden the header of a hidden volume is saved too. Without, random bytes take its place.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger header backup old.tc old.tc.header
  claviger header backup --with-hidden old.tc old.tc.header
  claviger header restore --from old.tc.header old.tc")]
struct BackupArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// The file to create
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Save the header of the hidden volume too; its password is asked for
    #[arg(long = "with-hidden", id = "hidden")]
    hidden: bool,

    /// The PIM of the hidden volume
    #[arg(long, value_name = "N", requires = "hidden")]
    hidden_pim: Option<u32>,

    #[command(flatten)]
    hidden_credentials: HiddenCredentialArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bring a header back, from a file or from the backup at the end of the volume
///
/// The password is that which the header in the backup has. Whether the normal or the hidden volume's header is restored
/// depends on which of them it opens. Nothing is written unless the header opens, fits the volume, and something shows that it
/// belongs to it: the volume's own header, or data that decrypt to more than noise.
///
/// The header of an encrypted system is taken from such a backup, from `EFI/VeraCrypt/svh_bak` of a rescue disk for EFI, or from the
/// image of a rescue disk for a BIOS. Its boot loader and partition table stay as they are.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true), after_help = "Examples:
  claviger header restore --embedded old.tc
  claviger header restore --from old.tc.header old.tc
  claviger header restore --from 'VeraCrypt Rescue Disk.iso' /dev/sda")]
struct RestoreArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// A header backup, or of an encrypted system the image of its rescue disk
    #[arg(long, value_name = "FILE", group = "source")]
    from: Option<PathBuf>,

    /// Take the backup header at the end of the volume
    #[arg(long, group = "source")]
    embedded: bool,

    /// Restore it although nothing shows that it belongs to this volume
    #[arg(long)]
    force: bool,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Saved {
    path: String,
    file: String,
    format: &'static str,
    /// Which headers are in it.
    headers: Vec<&'static str>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Restored {
    path: String,
    format: &'static str,
    hidden: bool,
    /// What was written, in order; nothing if all was as it should be.
    written: Vec<String>,
    #[serde(flatten)]
    derivation: Option<Derivation>,
    warnings: Vec<String>,
    /// Whether a password opened the volume by it.
    #[serde(skip)]
    tried: bool,
}

impl Args {
    /// Whether errors are told as JSON.
    pub fn json(&self) -> bool {
        match &self.what {
            What::Backup(args) => args.json,
            What::Restore(args) => args.json,
            What::Show(args) => args.json,
            What::Set(args) => args.json,
            What::Repair(args) => args.json,
            What::Convert(args) => args.json,
        }
    }
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Backup(args) => back_up(args),
        What::Restore(args) => restore(args),
        What::Show(args) => show::run(args),
        What::Set(args) => header_changes::set(args),
        What::Repair(args) => header_changes::repair(args),
        What::Convert(args) => header_changes::convert(args),
    }
}

fn back_up(args: &BackupArgs) -> anyhow::Result<()> {
    if args.open.password_on_stdin() && args.hidden_credentials.source().on_stdin() {
        return Err(Error::misuse("standard input can give one password, not both").into());
    }
    new_file::must_be_new(&args.file)?;
    if let Some(saved) = back_up_public(args)? {
        return output::print(&saved, args.json);
    }
    let editing = args.open.edit(Access::ReadOnly)?;
    let hidden = args.hidden.then(|| args.hidden_credentials.source().read()).transpose()?;
    let hidden = hidden.as_deref().map(|credentials| Unlock {
        credentials,
        hash: None,
        cipher: None,
        pim: args.hidden_pim,
        ..editing.wide()
    });
    let bar = Progress::steps("Saving");
    bar.at(0, 1);
    let backup = editing.editor.back_up(&*editing.store, &editing.narrow(), hidden.as_ref());
    bar.clear();
    let backup = backup.map_err(|e| e.at(editing.path()))?;
    let warnings = advice::warn(&backup.warnings);
    cancel::check()?;
    new_file::write(&args.file, &backup.bytes)?;
    let saved = Saved {
        path: editing.path().display().to_string(),
        file: args.file.display().to_string(),
        format: backup.format,
        headers: backup.headers,
        warnings,
    };
    output::print(&saved, args.json)
}

/// A header that can be saved by whoever can read it: no passphrase is asked for.
fn back_up_public(args: &BackupArgs) -> anyhow::Result<Option<Saved>> {
    guard::no_dumps();
    cancel::install()?;
    let header = args.open.header_args();
    let Ok(named) = header.find(Access::ReadOnly) else { return Ok(None) };
    if !named.editor.public() || args.hidden {
        return Ok(None);
    }
    let backup = named.editor.back_up(&*named.store, &Unlock::with(&[]), None).map_err(|e| e.at(&header.path))?;
    let warnings = advice::warn(&backup.warnings);
    new_file::write(&args.file, &backup.bytes)?;
    let HeaderBackup { format, headers, .. } = backup;
    Ok(Some(Saved { path: named.path(), file: args.file.display().to_string(), format, headers, warnings }))
}

/// Whether the backup is of a format whose headers are restored without a passphrase.
fn is_public(file: &Arc<dyn Store>) -> bool {
    formats::open(file, None).is_ok_and(|(format, _)| editing::is_public(format))
}

fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    guard::no_dumps();
    let cancel = cancel::install()?;
    let path = &args.open.path;
    let at = |e: Error| e.at(path);
    let store = args.open.how.opening(path)?.access(Access::ReadWrite).stored()?;
    let file = args.from.as_deref().map(|from| remote::open(from, Access::ReadOnly)).transpose()?;
    let from = file.as_ref().map_or(RestoreFrom::Embedded, |f| RestoreFrom::Backup(&**f));
    let public = file.as_ref().is_some_and(is_public);
    // Beside a header in front a backup that anybody can read is compared with that; without one, only what decrypts shows that it
    // belongs here.
    let unneeded = public && !args.open.credentials.given() && (args.force || is_public(&store));
    let credentials = match unneeded {
        true => Vec::new(),
        false => match args.open.credentials.read_for(asks(file.as_ref())) {
            // Nobody can be asked: then nothing shows it, and that is what is said.
            Err(e) if public && !args.open.credentials.given() && matches!(e.kind, ErrorKind::Misuse(_)) => Vec::new(),
            read => read?,
        },
    };
    let bar = Progress::trials("Opening");
    let show = |done, all| bar.at(done, all);
    let with = Unlock { cancel: Some(cancel), progress: Some(&show), ..args.open.how.unlock(&credentials) };
    let prepared = prepare(&*store, from, &with, args);
    bar.clear();
    let (format, prepared) = prepared.map_err(|e| match (&e.kind, &args.from) {
        (ErrorKind::NotThisFormat(_) | ErrorKind::WrongCredential(_), Some(from)) => e.at(from),
        _ => at(e),
    })?;
    let warnings = advice::warn(&prepared.warnings);
    if !prepared.edit.steps.is_empty() {
        // What belongs in a partition would take the disk's table away.
        let table = reaches_table(&prepared) && !matches!(partitions::read(&*store), Ok(None));
        consent(args, path, &prepared, public, table)?;
        prepared.edit.carry_out(&*store).map_err(at)?;
        match public {
            true => sound(format, &*store, &with).map_err(at)?,
            false => opens(format, &store, &credentials, &with, &prepared).map_err(at)?,
        }
    }
    let restored = Restored {
        path: path.display().to_string(),
        format: prepared.format,
        hidden: prepared.hidden,
        written: prepared.edit.steps.iter().map(|s| s.what.clone()).collect(),
        derivation: prepared.derivation,
        warnings,
        tried: !credentials.is_empty(),
    };
    output::print(&restored, args.json)
}

/// Whether something is written to where partition tables are: the boot sector, and of a GPT as many sectors as it has at least.
fn reaches_table(prepared: &Prepared) -> bool {
    prepared.hidden || prepared.edit.steps.iter().any(|step| step.at < 34 * 512)
}

/// As the format that is named, or as each that it could be of.
fn prepare(
    store: &dyn Store,
    from: RestoreFrom<'_>,
    with: &Unlock<'_>,
    args: &RestoreArgs,
) -> claviger_engine::Result<(&'static dyn Format, Prepared)> {
    if let Some(name) = args.open.how.format() {
        let format = formats::by_name(name)?;
        return Ok((format, editor_of(format)?.restore(store, from, with, args.force)?));
    }
    let mut last: Option<Error> = None;
    for &format in FORMATS {
        let Some(editor) = format.editor() else { continue };
        // A hash, a PIM or a length of another format.
        if let Err(e) = takes::check(format.name(), &format.takes(), Purpose::Opening, &with.parameters()) {
            last = last.or(Some(e));
            continue;
        }
        match editor.restore(store, from, with, args.force) {
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

fn consent(
    args: &RestoreArgs,
    path: &Path,
    prepared: &Prepared,
    public: bool,
    table: bool,
) -> claviger_engine::Result<()> {
    if args.yes {
        return Ok(());
    }
    let from = args.from.as_deref().map_or("the backup at its end".to_owned(), |f| f.display().to_string());
    let whose = if prepared.hidden { "hidden volume's header" } else { "header" };
    let lost = if table {
        "There is a partition table, which is overwritten: a partition is chosen by --partition. "
    } else {
        ""
    };
    let opens_with = match public {
        true => "the passphrases that the backup has, and no longer with others",
        false => "the password that you have just given, and no longer with another one",
    };
    let question = format!(
        "{lost}The {whose} of {} is replaced by that in {from}. From then on the volume opens with {opens_with} that it may have now. \
         Replace it? (yes/no) ",
        output::printable(&path.to_string_lossy())
    );
    prompt::consent(&question, "--yes", |why| Error::misuse(format!("the header was not replaced{why}")).at(path))
}

/// Whether a password is asked for beside keyfiles: as the format of the backup has it.
fn asks(file: Option<&Arc<dyn Store>>) -> impl FnOnce(&[Credential]) -> bool {
    move |keyfiles| {
        let header = file.and_then(|file| formats::open(file, None).ok());
        header.is_none_or(|(_, header)| header.asks_passphrase(keyfiles))
    }
}

/// Reads a header that needs no password, and tries what was given, if anything was.
fn sound(format: &'static dyn Format, store: &dyn Store, with: &Unlock<'_>) -> claviger_engine::Result<()> {
    editor_of(format)?.verify(store, &Unlock { progress: None, ..*with }).map(drop)
}

/// Opens the volume with what has been written.
fn opens(
    format: &dyn Format,
    store: &Arc<dyn Store>,
    credentials: &[Credential],
    with: &Unlock<'_>,
    prepared: &Prepared,
) -> claviger_engine::Result<()> {
    use claviger_engine::credential::HeaderChoice;
    let header = HeaderChoice::One { hidden: prepared.hidden, backup: false };
    let with = Unlock { credentials, hash: prepared.derivation.map(|d| d.hash), header, progress: None, ..*with };
    format.open(store)?.unlock(&with).map(|_| ())
}

impl Report for Saved {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, file, format: _, headers, warnings: _ } = self;
        let (file, path) = (output::printable(file), output::printable(path));
        writeln!(out, "{file}: backup of {path}, with the {} header", headers.join(" and the "))?;
        writeln!(
            out,
            "It opens with the passwords that the volume has now, whatever is changed later. Keep it elsewhere."
        )
    }
}

impl Report for Restored {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, written, hidden, tried, .. } = self;
        let whose = if *hidden { "hidden volume" } else { "volume" };
        let proof = match tried {
            true => format!("the {whose} has been opened with it"),
            false => "it can be read; no passphrase was tried".to_owned(),
        };
        let path = output::printable(path);
        match &written[..] {
            [] if *tried => writeln!(out, "{path}: nothing to do, the {whose}'s header in front opens and is the same"),
            [] => writeln!(
                out,
                "{path}: nothing to do, the {whose}'s header in front is the same; no passphrase was tried"
            ),
            written => writeln!(out, "{path}: restored {}; {proof}", written.join(", ")),
        }
    }
}

//! `claviger header set`, `repair`, `convert`: changes of headers that need no passphrase.

use std::path::PathBuf;

use claviger_engine::formats::{HeaderAttributes, Prepared};
use claviger_engine::store::Access;
use claviger_engine::{Advice, Credential, Error, ErrorKind, Unlock};

use crate::opening::credentials::CredentialArgs;
use crate::opening::editing::{HeaderArgs, Named};
use crate::opening::patience::PatienceArgs;
use crate::opening::{OpenArgs, new_file};
use crate::process::guard;
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt};

/// Set the UUID, label, subsystem and flags of a LUKS volume, or the label of a BitLocker volume
///
/// A LUKS header is changed without a passphrase. BitLocker's metadata are sealed: what opens the volume is asked for.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true), after_help = "Examples:
  claviger header set --label backup disk.luks
  claviger header set --label 'HOST D: 22.11.2026' --password-file password.txt disk.bitlocker
  claviger header set --flag allow-discards --flag no-read-workqueue disk.luks")]
pub struct SetArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// The UUID from now on
    #[arg(long, value_name = "UUID", group = "what")]
    uuid: Option<String>,

    /// The label from now on; empty for none. LUKS2 and BitLocker only
    #[arg(long, value_name = "TEXT", group = "what")]
    label: Option<String>,

    /// The subsystem from now on, a second label. LUKS2 only
    #[arg(long, value_name = "TEXT", group = "what")]
    subsystem: Option<String>,

    /// A flag that is kept with the volume, all of them being named: allow-discards, same-cpu-crypt, submit-from-crypt-cpus,
    /// no-journal, no-read-workqueue, no-write-workqueue. LUKS2 only
    #[arg(long = "flag", value_name = "FLAG", group = "what")]
    flags: Vec<String>,

    /// No flags from now on
    #[arg(long, group = "what", conflicts_with = "flags")]
    no_flags: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Put right what is damaged in a header, where it can be told without a passphrase
///
/// BitLocker has three copies of its metadata, and a first sector that leads to them. What is damaged is written anew from a copy that
/// is whole; if the first sector is gone, name the format. Only where whole copies differ does it take a password to tell which counts.
///
/// LUKS2 has two copies of its header: one that is damaged or old is written anew, as the other one is, or as its checksum proves that
/// it was (`wipefs` takes only a few bytes). Of LUKS1 those fields are put right of which only one value can be meant; if its first
/// bytes are gone, a password has to show that the rest is whole. Keys are never touched: a keyslot that is overwritten is lost.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger header repair disk.luks
  claviger header repair --password-file password.txt wiped.luks
  claviger header repair --disable-slot 5 disk.luks")]
pub struct RepairArgs {
    #[command(flatten)]
    header: HeaderArgs,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// Disable this keyslot, whose record is damaged beyond repair, for good. LUKS1 only
    #[arg(long = "disable-slot", value_name = "N")]
    lost: Vec<u32>,

    #[command(flatten)]
    patience: PatienceArgs,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Turn a LUKS1 header into one of LUKS2, or back, with the same key, data and passphrases
///
/// To LUKS1 only what that can say: keyslots of PBKDF2, sectors of 512 bytes, no tokens. At any moment one of the two headers opens,
/// as long as a disk writes a sector whole or not at all. A header backup is made all the same.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("backup_or_not").required(true), after_help = "Examples:
  claviger header convert --to LUKS2 --backup old-header.bin disk.luks
  claviger header convert --to LUKS1 --no-backup disk.luks")]
pub struct ConvertArgs {
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
    pub json: bool,
}

/// Carries `header set` out.
pub fn set(args: &SetArgs) -> anyhow::Result<()> {
    let flags = (args.no_flags || !args.flags.is_empty()).then_some(args.flags.as_slice());
    let to = HeaderAttributes {
        uuid: args.uuid.as_deref(),
        label: args.label.as_deref(),
        subsystem: args.subsystem.as_deref(),
        priority: None,
        flags,
    };
    let header = args.open.header_args();
    let named = header.find(Access::ReadWrite)?;
    if !named.editor.sealed() {
        let prepared = named.editor.set(&*named.store, &to).map_err(|e| e.at(&header.path))?;
        return named.carry_out(prepared, args.json);
    }
    // Its lock would be in the way of the next one.
    drop(named);
    let editing = args.open.edit(Access::ReadWrite)?;
    let prepared = editing.editor.set_opened(&*editing.store, &editing.narrow(), &to);
    editing.carry_out(prepared.map_err(|e| e.at(editing.path()))?, args.json)
}

impl RepairArgs {
    /// What is to be written. A sealed header may take a credential, which is asked for then.
    fn prepared(&self, named: &Named) -> claviger_engine::Result<Prepared> {
        let cancel = cancel::install()?;
        let repaired = |credentials: &[Credential]| {
            let bar = Progress::steps("Searching");
            let show = |done, all| bar.at(done, all);
            let may_take = self.patience.may_take();
            let with = Unlock { cancel: Some(cancel), progress: Some(&show), may_take, ..Unlock::with(credentials) };
            named.editor.repair_without(&*named.store, &with, &self.lost)
        };
        let read = || {
            guard::no_dumps();
            self.credentials.read_for(|keyfiles| named.header.asks_passphrase(keyfiles))
        };
        if self.credentials.given() && !named.editor.sealed() {
            return repaired(&read()?);
        }
        let proof = |e: &Error| named.editor.sealed() || e.advice.as_deref() == Some(&Advice::GiveCredential);
        match repaired(&[]) {
            Err(e) if matches!(e.kind, ErrorKind::Misuse(_)) && proof(&e) => match read() {
                // Why one is needed says more than that nobody can be asked.
                Err(nobody) if matches!(nobody.kind, ErrorKind::Misuse(_)) && !self.credentials.given() => Err(e),
                read => repaired(&read?),
            },
            prepared => prepared,
        }
    }
}

/// Carries `header repair` out.
pub fn repair(args: &RepairArgs) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadWrite)?;
    let prepared = args.prepared(&named).map_err(|e| e.at(&args.header.path))?;
    let wanted = !prepared.edit.steps.is_empty() && !args.yes;
    if wanted {
        let question = format!("{} Repair it? (yes/no) ", announcement(&named, &prepared));
        prompt::consent(&question, "--yes", |why| {
            Error::misuse(format!("nothing was repaired{why}")).at(&args.header.path)
        })?;
    }
    named.carry_out(prepared, args.json)
}

/// Carries `header convert` out.
pub fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let at = |e: Error| e.at(&args.header.path);
    if let Some(file) = &args.backup {
        new_file::must_be_new(file)?;
    }
    let named = args.header.find(Access::ReadWrite)?;
    let prepared = named.editor.convert(&*named.store, &args.to, args.detached).map_err(at)?;
    if !args.yes {
        let question = format!("{} Turn it into {}? (yes/no) ", announcement(&named, &prepared), prepared.format);
        prompt::consent(&question, "--yes", |why| at(Error::misuse(format!("nothing was changed{why}"))))?;
    }
    if let Some(file) = &args.backup {
        let backup = named.editor.back_up(&*named.store, &Unlock::with(&[]), None).map_err(at)?;
        advice::warn(&backup.warnings);
        new_file::write(file, &backup.bytes)?;
    }
    named.carry_out(prepared, args.json)
}

/// What is about to be written.
fn announcement(named: &Named, prepared: &Prepared) -> String {
    let steps: Vec<_> = prepared.edit.steps.iter().map(|s| s.what.as_str()).collect();
    format!("{} is a {} volume. To be written: {}.", named.path(), named.format.name(), steps.join(", "))
}

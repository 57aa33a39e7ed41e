//! `claviger keyslot`: manages the passphrases of a volume that can have several.

mod reseal;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::fido2;
use claviger_engine::formats::bitlocker::TpmSealing;
use claviger_engine::formats::luks2::{Luks2Opens, Luks2Priority};
use claviger_engine::formats::takes::{self, Parameter, Purpose};
use claviger_engine::formats::{self, HeaderAttributes, HeaderFacts, KeyslotFacts, NewCredential, Protection, Removal};
use claviger_engine::store::Access;
use claviger_engine::tpm2::{Envelope, Pcrs, Policy, Signed};
use claviger_engine::{Credential, Error, ErrorKind, Secret, Spec, Unlock};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::opening::OpenArgs;
use crate::opening::binding::{self, BindArgs, SECURE_BOOT, WINDOWS};
use crate::opening::cost::CostArgs;
use crate::opening::credentials::{NewCredentialArgs, ReadCredentials, one_on_stdin};
use crate::opening::editing::{Editing, HeaderArgs, Written};
use crate::opening::strength::StrengthMeter;
use crate::opening::{cost, new_file, tokens};
use crate::process::guard;
use crate::terminal::date::date;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, prompt, size};
use crate::verbs::{change, recovery};

/// List, add, change, remove and test the passphrases of a LUKS or BitLocker volume
///
/// A keyslot holds the volume key, encrypted with a passphrase or key file. LUKS1 has 8 keyslots, LUKS2 up to 32.
/// BitLocker calls them protectors: passwords, recovery passwords, startup keys (.BEK files), TPMs and smart cards.
#[derive(clap::Args)]
#[command(mut_subcommands(|part| part.mut_args(only_for_keyslots)))]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// Hides the options that no format with keyslots takes. Who gives one learns which formats take it.
pub fn only_for_keyslots(arg: clap::Arg) -> clap::Arg {
    const GROUPS: [&str; 2] = ["Formats without a header", "Encrypted folders"];
    const OPTIONS: [&str; 7] =
        ["truecrypt", "veracrypt", "pim", "new-pim", "certificate", "windows-profile", "windows-hash-file"];
    let foreign = arg.get_help_heading().is_some_and(|group| GROUPS.contains(&group))
        || arg.get_long().is_some_and(|name| OPTIONS.contains(&name));
    if foreign { arg.hide(true) } else { arg }
}

#[derive(clap::Subcommand)]
enum What {
    List(ListArgs),
    Add(Box<AddArgs>),
    Change(Box<change::Args>),
    Reseal(Box<reseal::Args>),
    Remove(RemoveArgs),
    Kill(KillArgs),
    Test(TestArgs),
    Priority(PriorityArgs),
    /// Suspend BitLocker protection: anybody can open the volume until `keyslot resume`
    ///
    /// As Windows does for an update. The data stay encrypted, and all protectors stay.
    #[command(after_help = "Examples:
  claviger keyslot suspend disk.bitlocker")]
    Suspend(ProtectionArgs),
    /// Resume suspended BitLocker protection
    ///
    /// The volume gets a new volume master key, in case somebody copied the exposed one. All protectors keep working
    /// and are not asked for.
    #[command(after_help = "Examples:
  claviger keyslot resume disk.bitlocker")]
    Resume(ProtectionArgs),
    /// Give a BitLocker volume a new volume master key
    ///
    /// Copies of the old header no longer open the volume. All protectors keep working. The key that encrypts the data
    /// stays the same; changing it takes a new volume.
    #[command(after_help = "Examples:
  claviger keyslot renew disk.bitlocker")]
    Renew(ProtectionArgs),
    Recovery(recovery::ShowArgs),
}

/// List the keyslots, without a passphrase
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot list disk.luks
  claviger keyslot list --json disk.luks")]
struct ListArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Add a passphrase, key file, recovery password, startup key, TPM or FIDO2 key
///
/// The old passphrases work at every moment: LUKS writes the new key to a free area before the header refers to it,
/// and BitLocker's three metadata copies are written one by one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot add disk.luks
  claviger keyslot add --no-new-password --new-keyfile key.bin disk.luks
  claviger keyslot add --at 5 --iter-time 5000 disk.luks
  claviger keyslot add --kdf pbkdf2 disk.luks
  claviger keyslot add --recovery-password-file recovery.txt disk.bitlocker
  claviger keyslot add --startup-key /media/stick disk.bitlocker
  claviger keyslot add --tpm2 --tpm2-with-pin disk.bitlocker
  claviger keyslot add --tpm2 --tpm2-pcrs 7 --tpm2-with-pin disk.luks
  claviger keyslot add --fido2 disk.luks")]
struct AddArgs {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    new: NewCredentialArgs,

    #[command(flatten)]
    cost: CostArgs,

    /// Number of the new keyslot [default: the first free one]
    #[arg(long, value_name = "N")]
    at: Option<u32>,

    /// Hash of PBKDF2 and the anti-forensic splitter
    #[arg(long, value_name = "NAME")]
    new_hash: Option<String>,

    #[command(flatten)]
    fresh: FreshArgs,

    #[command(flatten)]
    sealed: SealedArgs,

    /// Store a new unbound key of this many bits instead of the volume key, asking only for the new passphrase
    #[arg(long, value_name = "BITS")]
    unbound: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The secret to generate for a new protector of a BitLocker volume or a new keyslot of a LUKS2 volume.
#[derive(clap::Args)]
#[command(next_help_heading = "Recovery and startup keys", end_heading())]
struct FreshArgs {
    /// Generate and add a recovery password of eight groups of six digits, and show it
    #[arg(long, conflicts_with_all = ["new_password", "new_keyfile", "unbound"])]
    recovery_password: bool,

    /// Generate and add a recovery password, and write it to the new FILE, readable only by you, instead of showing
    /// it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["new_password", "new_keyfile", "unbound"])]
    recovery_password_file: Option<PathBuf>,

    /// Generate and add a LUKS2 recovery key of eight groups of eight letters, as systemd-cryptenroll does, and write
    /// it to the new FILE, readable only by you
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["new_password", "new_keyfile", "unbound", "recovery_password", "recovery_password_file"]
    )]
    recovery_key_file: Option<PathBuf>,

    /// Generate and add a startup key, and write it to a new file GUID.BEK in FOLDER, readable only by you
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["new_password", "new_keyfile", "unbound", "recovery_password", "recovery_password_file", "recovery_key_file"]
    )]
    startup_key: Option<PathBuf>,
}

/// The options for keyslots that are not sealed.
const NOT_SEALED: [&str; 6] =
    ["new_password", "new_keyfile", "unbound", "recovery_password", "recovery_password_file", "recovery_key_file"];

/// A passphrase that is generated for a LUKS2 volume and sealed.
#[derive(clap::Args)]
#[command(next_help_heading = "Sealed to hardware", end_heading())]
#[command(group = binding::group().conflicts_with_all(NOT_SEALED).conflicts_with_all(["tpm2", "fido2", "startup_key"]))]
struct SealedArgs {
    /// Add a passphrase that only this machine's TPM (or --tpm2-device) releases, as systemd-cryptenroll does; for BitLocker, a
    /// TPM protector, which also takes a startup key with --startup-key
    #[arg(long, group = "to_tpm", conflicts_with_all = NOT_SEALED)]
    tpm2: bool,

    /// Add a passphrase that only the FIDO2 key that is plugged in (or --fido2-device) computes, as systemd-cryptenroll does.
    /// Requires its PIN, if it has one, and a touch
    #[arg(long, group = "to_fido2", conflicts_with_all = NOT_SEALED, conflicts_with_all = ["tpm2", "startup_key"])]
    fido2: bool,

    /// Accept PCR values signed by the key in FILE (PEM, RSA), as by systemd-measure. An update then needs a new
    /// signature, not a new keyslot. Only PCRs of --tpm2-pcrs must keep their values
    #[arg(long, value_name = "FILE", requires = "tpm2")]
    tpm2_public_key: Option<PathBuf>,

    /// PCRs whose values are signed
    #[arg(long, value_name = "PCRS", requires = "tpm2_public_key", default_value = "11", value_parser = binding::pcrs)]
    tpm2_public_key_pcrs: Pcrs,

    /// Also require a PIN, which you are asked for. After a few wrong PINs the TPM locks for a while
    #[arg(long, requires = "tpm2")]
    tpm2_with_pin: bool,

    /// Read the new PIN from FILE instead of asking
    #[arg(long, value_name = "FILE", requires = "tpm2_with_pin")]
    new_tpm2_pin_file: Option<PathBuf>,

    #[command(flatten)]
    bind: BindArgs,
}

/// Remove the keyslot that a passphrase opens
///
/// The keyslot is overwritten. The last one is removed only with --last.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot remove disk.luks")]
struct RemoveArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// Remove even the last keyslot, losing the data
    #[arg(long)]
    last: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a keyslot by its number, without its passphrase
///
/// Asks for the passphrase of a keyslot that stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot kill disk.luks 1
  claviger keyslot kill --unproven --yes disk.luks 1")]
struct KillArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// The keyslot's number
    #[arg(value_name = "N")]
    number: u32,

    /// Do not ask for the passphrase of a keyslot that stays
    #[arg(long)]
    unproven: bool,

    /// Remove even the last keyslot, losing the data
    #[arg(long, requires = "unproven")]
    last: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show which keyslot a passphrase opens
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot test disk.luks
  claviger keyslot test --no-password --keyfile key.bin disk.luks")]
struct TestArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Set a keyslot's priority: tried first, normally, or only if named
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot priority disk.luks 1 prefer")]
struct PriorityArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The keyslot's number
    #[arg(value_name = "N")]
    number: u32,

    /// The new priority
    #[arg(value_name = "PRIORITY")]
    priority: Priority,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A change of all protectors at once. It asks only for a credential that opens the volume.
#[derive(clap::Args)]
struct ProtectionArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Priority {
    /// Tried only if it is named
    Ignore,
    /// Tried in order
    Normal,
    /// Tried before the others
    Prefer,
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    #[serde(serialize_with = "output::in_order_of_names")]
    keyslots: Vec<KeyslotFacts>,
}

#[derive(Serialize)]
struct Added {
    #[serde(flatten)]
    written: Written,
    /// The file with the recovery password, or the startup key.
    #[serde(flatten)]
    file: Option<FileName>,
    /// What else opens the volume only together with the file.
    #[serde(skip)]
    beside: Option<&'static str>,
}

#[derive(Serialize)]
struct Tested {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    keyslot: Option<u32>,
    /// What opened the keyslot, in words for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    opened: Option<String>,
    hash: Cow<'static, str>,
    iterations: u32,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::List(args) => list(args),
        What::Add(args) => add(args),
        What::Change(args) => change::run(args),
        What::Reseal(args) => reseal::run(args),
        What::Remove(args) => remove(args),
        What::Kill(args) => kill(args),
        What::Test(args) => test(args),
        What::Priority(args) => priority(args),
        What::Suspend(args) => protect(args, Protection::Suspend),
        What::Resume(args) => protect(args, Protection::Resume),
        What::Renew(args) => protect(args, Protection::NewKey),
        What::Recovery(args) => recovery::show(args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadOnly)?;
    let facts = named.header.describe();
    let Some(keyslots) = facts.as_ref().and_then(HeaderFacts::used_keyslots) else {
        return Err(Error::unsupported(format!("keyslots: {} has none", named.format.name()))
            .at(&args.header.path)
            .into());
    };
    let keyslots = keyslots.cloned().collect();
    output::print(&Listed { path: named.path(), format: named.format.name(), keyslots }, args.json)
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    one_on_stdin(args.open.password_on_stdin(), args.new.on_stdin())?;
    let cost = args.cost.cost()?;
    if args.unbound.is_some() {
        guard::no_dumps();
        cancel::install()?;
        let named = args.open.header_args().find(Access::ReadWrite)?;
        let judged = Spec { hash: args.new_hash.as_deref(), cost, ..Spec::default() };
        let credentials = args.new.read(&[], &StrengthMeter::of(named.format, &judged))?;
        let new = new_keyslot(args, &credentials, cost, None);
        let with = Unlock { cancel: Some(cancel::flag()), ..Unlock::with(&[]) };
        let prepared = named.editor.add(&*named.store, &with, &new, args.at).map_err(|e| e.at(&args.open.path))?;
        return named.carry_out(prepared, args.json);
    }
    args.fresh.check(args.json)?;
    // What the new keyslot is sealed to opens the volume only with --token-only.
    let mut open = args.open.clone();
    if args.sealed.tpm2 || args.sealed.bind.to_tpm() {
        open.how.tokens = open.how.tokens.without_tpm();
    }
    if args.sealed.fido2 || args.sealed.bind.to_fido2() {
        open.how.tokens = open.how.tokens.without_fido2();
    }
    let editing = open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let sealing = args.sealed.protector(args, &editing)?;
    let fresh = match args.fresh.make(&editing)? {
        None if sealing.is_none() => args.sealed.make(args, &editing)?,
        fresh => fresh,
    };
    let token = fresh.as_ref().and_then(Fresh::token);
    // The passphrase is as random as a key: stretching adds nothing.
    let cost = if token.is_some() && cost.parameters().is_empty() { cost::CHEAPEST } else { cost };
    let credentials = match &fresh {
        Some(fresh) => vec![fresh.credential()],
        None if sealing.is_some() => Vec::new(),
        // A new keyfile replaces the passphrase; it is not combined with the current credentials.
        None => {
            let judged = editing.judged(args.new_hash.as_deref(), None, cost);
            args.new.read(&[], &StrengthMeter::of(editing.format, &judged))?
        }
    };
    let new = NewCredential { tpm: sealing.as_ref(), ..new_keyslot(args, &credentials, cost, token) };
    let prepared = editing.editor.add(&*editing.store, &editing.narrow(), &new, args.at).map_err(at)?;
    cancel::check()?;
    // The new credential is saved before a keyslot depends on it.
    let file = fresh.as_ref().map(Fresh::save).transpose()?.flatten();
    prepared.edit.carry_out(&*editing.store).map_err(|e| {
        // The change was refused before anything was written, so the file opens nothing. After an `Io` error it might
        // open the volume.
        if let (Some((file, path)), ErrorKind::InUse { .. } | ErrorKind::Misuse(_)) = (&file, &e.kind) {
            new_file::remove(file, path);
        }
        at(e)
    })?;
    if sealing.is_none() {
        editing.opens_with(&credentials, None, None, prepared.keyslot).map_err(at)?;
    }
    let written = Written::of(editing.path(), prepared);
    let tpm = if args.sealed.tpm2_with_pin { "the TPM and the PIN" } else { "the TPM" };
    let beside = sealing.as_ref().map(|_| tpm);
    let file = file.map(|(_, path)| FileName::new("file", path));
    output::print(&Added { written, file, beside }, args.json)?;
    fresh.as_ref().map_or(Ok(()), Fresh::show)
}

/// The credential for a new keyslot.
enum Fresh {
    /// A recovery password or key, and its file; without a file, it is shown.
    Recovery(Secret, Option<PathBuf>),
    /// A startup key and its file.
    StartupKey(Secret, PathBuf),
    /// A sealed passphrase, and the token that describes how to unseal it.
    Sealed(Secret, Map<String, Value>),
}

impl SealedArgs {
    /// The TPM for a protector, if one is requested and the format has those instead of tokens. Fails if it has neither.
    fn protector(&self, args: &AddArgs, editing: &Editing<'_>) -> claviger_engine::Result<Option<TpmSealing>> {
        if !self.tpm2 {
            return Ok(None);
        }
        let (name, takes) = (editing.format.name(), editing.format.takes());
        let check = |asked| takes::check(name, &takes, Purpose::Creating, &[asked]).map_err(|e| e.at(editing.path()));
        check(Parameter::Tpm)?;
        if takes.to(Purpose::Creating).contains(&Parameter::Token) {
            return if args.fresh.startup_key.is_some() {
                check(Parameter::StartupKey).map(|()| None)
            } else {
                Ok(None)
            };
        }
        if self.tpm2_public_key.is_some() {
            check(Parameter::Token)?;
        }
        let pin = self.new_pin()?;
        let pcrs = self.bind.pcrs.unwrap_or(WINDOWS);
        TpmSealing::new(args.open.tokens().tpm()?, pcrs, pin).map(Some)
    }

    /// The new PIN, if one is required.
    fn new_pin(&self) -> claviger_engine::Result<Option<Secret>> {
        let pin = || tokens::pin(&tokens::NEW_TPM_PIN, self.new_tpm2_pin_file.as_deref());
        self.tpm2_with_pin.then(pin).transpose()
    }

    /// Creates the requested credential; `None` if none is requested. Fails if the format does not have it.
    fn make(&self, args: &AddArgs, editing: &Editing<'_>) -> claviger_engine::Result<Option<Fresh>> {
        if !self.tpm2 && !self.fido2 && !self.bind.given() {
            return Ok(None);
        }
        let format = editing.format;
        takes::check(format.name(), &format.takes(), Purpose::Creating, &[Parameter::Token])
            .map_err(|e| e.at(editing.path()))?;
        if self.bind.given() {
            let (token, passphrase) = self.bind.binding(args.open.tokens(), editing.path())?.bind()?;
            return Ok(Some(Fresh::Sealed(passphrase, token)));
        }
        if self.fido2 {
            let (token, secret) = args.open.tokens().fido2_args().enroll(&self.bind.fido2, editing.path())?;
            return Ok(Some(Fresh::Sealed(fido2::passphrase(&secret), token.token())));
        }
        let policy = self.policy()?;
        let mut tpm = args.open.tokens().tpm()?;
        let pin = self.new_pin()?;
        let (envelope, passphrase) = Envelope::seal(&mut tpm, policy, pin.as_deref())?;
        Ok(Some(Fresh::Sealed(passphrase, envelope.token())))
    }

    /// The TPM policy.
    fn policy(&self) -> claviger_engine::Result<Policy> {
        let Some(file) = &self.tpm2_public_key else {
            return Ok(Policy { pcrs: self.bind.pcrs.unwrap_or(SECURE_BOOT), ..Policy::default() });
        };
        if self.tpm2_public_key_pcrs.mask == 0 {
            return Err(Error::misuse("at least one PCR must be signed"));
        }
        let signed = Signed::new(tokens::read(file)?, self.tpm2_public_key_pcrs).map_err(|e| e.at(file))?;
        Ok(Policy { pcrs: self.bind.pcrs.unwrap_or_default(), signed: Some(signed), ..Policy::default() })
    }
}

impl FreshArgs {
    /// Checks that the credential can be saved, before asking for a password.
    fn check(&self, json: bool) -> anyhow::Result<()> {
        if let Some(file) = self.recovery_password_file.as_ref().or(self.recovery_key_file.as_ref()) {
            new_file::must_be_new(file)?;
        } else if self.recovery_password && json {
            return Err(Error::misuse("recovery passwords are not printed as JSON")
                .hint("Write it to a file with --recovery-password-file FILE.")
                .into());
        }
        if let Some(folder) = self.startup_key.as_deref().filter(|folder| !folder.is_dir()) {
            return Err(Error::misuse("there is no such folder").at(folder).into());
        }
        Ok(())
    }

    /// Creates the requested credential; `None` if none is requested. Fails if the format does not have it.
    fn make(&self, editing: &Editing<'_>) -> claviger_engine::Result<Option<Fresh>> {
        let asked = match (self.recovery_password || self.recovery_password_file.is_some(), &self.startup_key) {
            (true, _) => Parameter::RecoveryPassword,
            _ if self.recovery_key_file.is_some() => Parameter::RecoveryKey,
            (false, Some(_)) => Parameter::StartupKey,
            (false, None) => return Ok(None),
        };
        let format = editing.format;
        takes::check(format.name(), &format.takes(), Purpose::Creating, &[asked]).map_err(|e| e.at(editing.path()))?;
        let creator = formats::creator_of(format)?;
        if self.recovery_key_file.is_some() {
            return Ok(Some(Fresh::Recovery(creator.fresh_recovery_key()?, self.recovery_key_file.clone())));
        }
        let Some(folder) = &self.startup_key else {
            let password = creator.fresh_recovery_password()?;
            return Ok(Some(Fresh::Recovery(password, self.recovery_password_file.clone())));
        };
        let (name, contents) = creator.fresh_startup_key()?;
        Ok(Some(Fresh::StartupKey(contents, folder.join(name))))
    }
}

impl Fresh {
    fn credential(&self) -> Credential {
        match self {
            Self::Recovery(password, _) | Self::Sealed(password, _) => {
                Credential::Passphrase(Secret::copy_from(password))
            }
            Self::StartupKey(contents, _) => Credential::Keyfile(Secret::copy_from(contents)),
        }
    }

    fn token(&self) -> Option<&Map<String, Value>> {
        if let Self::Sealed(_, token) = self { Some(token) } else { None }
    }

    /// Writes the credential to its file, if it has one.
    fn save(&self) -> claviger_engine::Result<Option<(File, &Path)>> {
        let (path, contents) = match self {
            Self::Recovery(_, None) | Self::Sealed(..) => return Ok(None),
            Self::Recovery(password, Some(path)) => (path, new_file::line(password)),
            Self::StartupKey(contents, path) => (path, Secret::copy_from(contents)),
        };
        Ok(Some((new_file::write(path, &contents)?, path)))
    }

    /// Shows the credential once, if it has no file.
    fn show(&self) -> anyhow::Result<()> {
        let Self::Recovery(password, None) = self else { return Ok(()) };
        let mut stdout = output::raw()?;
        output::write(&mut stdout, b"Its recovery password, which alone opens the volume. Keep it somewhere else:\n")?;
        output::write(&mut stdout, &new_file::line(password))
    }
}

fn protect(args: &ProtectionArgs, how: Protection) -> anyhow::Result<()> {
    let editing = args.open.edit(Access::ReadWrite)?;
    let prepared = editing.editor.protect(&*editing.store, &editing.narrow(), how);
    editing.carry_out(prepared.map_err(|e| e.at(editing.path()))?, args.json)
}

fn new_keyslot<'a>(
    args: &'a AddArgs,
    credentials: &'a [Credential],
    cost: claviger_engine::spec::Cost<'a>,
    token: Option<&'a Map<String, Value>>,
) -> NewCredential<'a> {
    let (hash, unbound_bits) = (args.new_hash.as_deref(), args.unbound);
    NewCredential { credentials, hash, cost, unbound_bits, token, ..NewCredential::default() }
}

fn remove(args: &RemoveArgs) -> anyhow::Result<()> {
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let with = editing.narrow();
    let prepared = editing.editor.remove(&*editing.store, Removal::Opened(&with), args.last).map_err(at)?;
    consent(args.yes, &output::printable(&editing.path().to_string_lossy()), prepared.keyslot)?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    output::print(&Written::of(editing.path(), prepared), args.json)
}

fn kill(args: &KillArgs) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    let named = args.open.header_args().find(Access::ReadWrite)?;
    let at = |e: Error| e.at(&args.open.path);
    if !named.editor.sealed() {
        // Refuses what cannot be done before it asks for a passphrase.
        named.editor.remove(&*named.store, Removal::Number(args.number, None), args.last).map_err(at)?;
    }
    let mut credentials = if args.unproven { ReadCredentials::default() } else { args.open.read_credentials()? };
    let prepared = credentials.open(|credentials| {
        let with = Unlock { cancel: Some(cancel::flag()), ..args.open.unlock_with(credentials) };
        let with = (!args.unproven).then_some(&with);
        named.editor.remove(&*named.store, Removal::Number(args.number, with), args.last)
    });
    let prepared = prepared.map_err(at)?;
    consent(args.yes, &named.path(), prepared.keyslot)?;
    named.carry_out(prepared, args.json)
}

fn consent(yes: bool, path: &str, keyslot: Option<u32>) -> claviger_engine::Result<()> {
    if yes {
        return Ok(());
    }
    let number = keyslot.map(|n| n.to_string()).unwrap_or_default();
    let question =
        format!("Keyslot {number} of {path} will be overwritten, and its passphrase will no longer work. Remove it?");
    prompt::consent(&question, "--yes", |why| Error::misuse(format!("the keyslot was not removed{why}")))
}

fn test(args: &TestArgs) -> anyhow::Result<()> {
    let editing = args.open.prove()?;
    let facts = &editing.facts;
    let tested = Tested {
        path: FileName::path(editing.path()),
        format: facts.format,
        keyslot: facts.keyslot,
        opened: facts.opened_by.clone(),
        hash: facts.hash_name(),
        iterations: facts.iterations,
    };
    output::print(&tested, args.json)
}

fn priority(args: &PriorityArgs) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadWrite)?;
    let to = HeaderAttributes { priority: Some((args.number, args.priority as u32)), ..HeaderAttributes::default() };
    let prepared = named.editor.set(&*named.store, None, &to).map_err(|e| e.at(&args.header.path))?;
    named.carry_out(prepared, args.json)
}

impl Report for Listed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, keyslots } = self;
        let path = output::printable(path);
        writeln!(out, "{path}: {format}, {} in use", size::count(keyslots.len() as u64, "keyslot"))?;
        for slot in keyslots {
            writeln!(out, "  {}", row(slot))?;
        }
        Ok(())
    }
}

/// A keyslot as a line. Text from the header is escaped.
fn row(slot: &KeyslotFacts) -> String {
    let mut parts = Vec::new();
    match slot {
        KeyslotFacts::Luks1(slot) => {
            parts.extend(slot.kdf.iter().map(|kdf| derived(kdf.kind, Some(&kdf.hash), kdf.iterations)));
            parts.extend(slot.damaged.as_deref().map(damaged));
        }
        KeyslotFacts::Luks2(slot) => {
            if let Some(kdf) = &slot.kdf {
                parts.push(derived(&kdf.kdf, kdf.hash.as_deref(), kdf.iterations.unwrap_or_default()));
                parts.extend(kdf.memory.map(size::short));
            }
            let unusual = Some(slot.priority).filter(|priority| *priority != Luks2Priority::Normal);
            parts.extend(unusual.map(|priority| priority.name().to_owned()));
            parts.extend((slot.opens == Some(Luks2Opens::Nothing)).then(|| "nothing (unbound)".to_owned()));
            parts.extend(slot.damaged.as_deref().map(damaged));
        }
        KeyslotFacts::BitLocker(slot) => {
            parts.push(format!("{} {{{}}}", slot.kind, slot.guid));
            parts.push(format!("changed {}", date(slot.changed)));
            parts.extend(slot.name.as_ref().map(|name| format!("named {name}")));
            parts.extend(slot.hint.as_ref().map(|hint| format!("hint: {hint}")));
            parts.extend(slot.needs.map(|needs| format!("needs {needs}")));
        }
        _ => {}
    }
    format!("{:>2}  {}", slot.number(), output::printable(&parts.join(", ")))
}

fn damaged(what: &str) -> String {
    format!("damaged: {what}")
}

fn derived(kdf: &str, hash: Option<&str>, iterations: u32) -> String {
    let hash = hash.map(|hash| format!(" with {hash}"));
    format!("{kdf}{}, {iterations} iterations", hash.unwrap_or_default())
}

impl Report for Added {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.written.text(out)?;
        match (&self.file, self.beside) {
            (Some(file), None) => writeln!(out, "{file}: it alone opens the volume. Keep it somewhere else."),
            (Some(file), Some(beside)) => writeln!(out, "{file}: it opens the volume together with {beside}."),
            (None, _) => Ok(()),
        }
    }
}

impl Report for Tested {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { keyslot, opened, .. } = self;
        let path = output::printable(&self.path);
        // LUKS keyslots have only numbers.
        let opened = opened.as_ref().filter(|opened| !opened.starts_with("keyslot"));
        match (keyslot, opened) {
            (Some(keyslot), Some(opened)) => writeln!(out, "{path}: opens keyslot {keyslot}, {opened}"),
            (Some(keyslot), None) => writeln!(out, "{path}: opens keyslot {keyslot}"),
            (None, Some(opened)) => writeln!(out, "{path}: opens the {opened}"),
            (None, None) => writeln!(out, "{path}: opens"),
        }
    }
}

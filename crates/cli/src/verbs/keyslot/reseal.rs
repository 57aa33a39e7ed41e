//! `claviger keyslot reseal`: a new sealed passphrase in the place of one that the TPM no longer releases.

use std::io::{self, Write};
use std::path::PathBuf;

use claviger_engine::clevis::{Binding, Jwe};
use claviger_engine::formats::bitlocker::TpmSealing;
use claviger_engine::formats::{NewCredential, Prepared, Releaser};
use claviger_engine::store::Access;
use claviger_engine::tpm2::{Envelope, Pcrs, Policy};
use claviger_engine::{Credential, Error, Header, Result, Secret};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::opening::cost::CHEAPEST;
use crate::opening::editing::{Editing, Written};
use crate::opening::tokens::TokenArgs;
use crate::opening::{OpenArgs, binding, tokens};
use crate::terminal::end_heading::EndHeading;
use crate::terminal::output::{self, Report};
use crate::terminal::{advice, cancel};

/// Seal a TPM's keyslot anew, for this machine as it has started now
///
/// After an update of firmware or boot loader, the TPM no longer releases the passphrase of a keyslot. Open the volume
/// with another credential, such as a passphrase or recovery key. A new passphrase is then sealed to this machine's TPM
/// (or --tpm2-device), and replaces the old one in the same keyslot and token. Whenever that is interrupted, one of the
/// two is there; the old one is overwritten last.
///
/// PCRs, their bank, the key for signed PCRs, and whether there is a PIN stay the same unless options change them. A
/// BitLocker protector keeps its PIN and its startup key, and neither is asked for.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot reseal disk.luks
  claviger keyslot reseal disk.luks 2
  claviger keyslot reseal --tpm2-pcrs 0+7 --tpm2-with-pin disk.luks")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The keyslot's number, if several are sealed to a TPM
    #[arg(value_name = "N")]
    number: Option<u32>,

    #[command(flatten)]
    sealed: SealedArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How the new passphrase is sealed.
#[derive(clap::Args)]
#[command(next_help_heading = "Sealed to hardware", end_heading())]
struct SealedArgs {
    /// PCRs that must keep their current values: 7, or several as 0+7; empty for none [default: as before]
    #[arg(long, value_name = "PCRS", value_parser = binding::pcrs)]
    tpm2_pcrs: Option<Pcrs>,

    /// Require a PIN, which you are asked for [default: as before]
    #[arg(long)]
    tpm2_with_pin: bool,

    /// Require no PIN
    #[arg(long, conflicts_with_all = ["tpm2_with_pin", "new_tpm2_pin_file"])]
    tpm2_without_pin: bool,

    /// Read the new PIN from FILE instead of asking
    #[arg(long, value_name = "FILE")]
    new_tpm2_pin_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct Resealed {
    #[serde(flatten)]
    written: Written,
    token: u32,
    pcrs: Vec<u32>,
    bank: &'static str,
    pin: bool,
    /// The command that tests the TPM, for people.
    #[serde(skip)]
    test: String,
    /// Whether the TPM has released it: signed PCRs take a signature, which may come later.
    tested: bool,
    #[serde(skip)]
    path: String,
    #[serde(skip)]
    keyslot: u32,
}

/// A keyslot that a TPM opens.
#[derive(Clone)]
struct Target {
    keyslot: u32,
    token: u32,
    policy: Policy,
    kind: SealedKind,
    startup_key: bool,
}

/// What is sealed, and by which program's rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SealedKind {
    Systemd,
    Clevis,
    BitLocker,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut open = args.open.clone();
    let devices = open.how.tokens.clone().with_tpm();
    open.how.tokens = open.how.tokens.without_tpm();
    let (editing, target) = open.edit_for(Access::ReadWrite, |header| target(header, args.number))?;
    let target = args.sealed.changed(target)?;
    let resealed = match target.kind {
        SealedKind::BitLocker => reseal_protector(&editing, &devices, target)?,
        SealedKind::Systemd | SealedKind::Clevis => reseal_keyslot(args, &editing, &devices, target)?,
    };
    output::print(&resealed, args.json)
}

/// Replaces a protector of BitLocker. The TPM has released the new one before it is written.
fn reseal_protector(editing: &Editing<'_>, devices: &TokenArgs, target: Target) -> anyhow::Result<Resealed> {
    let at = |e: Error| e.at(editing.path());
    let sealing = TpmSealing::new(devices.tpm()?, target.policy.pcrs, None)?;
    let new = NewCredential { tpm: Some(&sealing), ..NewCredential::default() };
    let prepared = editing.editor.replace(&*editing.store, &editing.narrow(), &new, target.keyslot).map_err(at)?;
    cancel::check()?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    Ok(Resealed::new(editing, prepared, target, true))
}

fn reseal_keyslot(args: &Args, editing: &Editing<'_>, devices: &TokenArgs, target: Target) -> anyhow::Result<Resealed> {
    let at = |e: Error| e.at(editing.path());
    let pin = target
        .policy
        .pin
        .then(|| tokens::pin(&tokens::NEW_TPM_PIN, args.sealed.new_tpm2_pin_file.as_deref()))
        .transpose()?;
    let (passphrase, token, tested) = target.seal(devices, pin.as_deref())?;
    let credentials = [Credential::Passphrase(passphrase)];
    // The passphrase is as random as a key: stretching adds nothing.
    let new =
        NewCredential { credentials: &credentials, cost: CHEAPEST, token: Some(&token), ..NewCredential::default() };
    let prepared = editing.editor.replace(&*editing.store, &editing.narrow(), &new, target.keyslot).map_err(at)?;
    cancel::check()?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    editing.opens_with(&credentials, None, None, Some(target.keyslot)).map_err(at)?;
    Ok(Resealed::new(editing, prepared, target, tested))
}

impl Resealed {
    fn new(editing: &Editing<'_>, prepared: Prepared, target: Target, tested: bool) -> Self {
        let Target { keyslot, token, policy: Policy { pcrs, pin, .. }, startup_key, .. } = target;
        let devices = ["--tpm2-device", "--tpm2-signature"].into_iter().filter_map(advice::given);
        let mut options: String = devices.map(|option| format!(" {}", output::command([option]))).collect();
        if startup_key {
            options += " --keyfile FILE";
        }
        let test =
            advice::with_volume(&format!("`claviger keyslot test --token-only --slot={keyslot}{options} VOLUME`"));
        Self {
            path: output::printable(&editing.path().to_string_lossy()),
            test,
            tested,
            written: Written::of(editing.path(), prepared),
            pcrs: pcrs.numbers().collect(),
            bank: pcrs.bank.name(),
            token,
            pin,
            keyslot,
        }
    }
}

/// The keyslot to seal anew.
///
/// # Errors
/// `Misuse` if there is none, or several and no number.
fn target(header: &dyn Header, number: Option<u32>) -> Result<Target> {
    let all = header.sealed();
    let mut targets = Vec::new();
    for sealed in &all {
        let of_pcrs = |pcrs, pin| Policy { pcrs, pin, ..Policy::default() };
        let (policy, kind) = match &sealed.by {
            Releaser::Tpm(envelope) => (Some(envelope.policy.clone()), SealedKind::Systemd),
            Releaser::Clevis(jwe) => (jwe.tpm_pcrs().map(|pcrs| of_pcrs(pcrs, false)), SealedKind::Clevis),
            Releaser::MasterKey(key) => (Some(of_pcrs(key.pcrs(), key.takes_pin())), SealedKind::BitLocker),
            _ => continue,
        };
        let Some(policy) = policy else { continue };
        let (token, startup_key) = (sealed.token, sealed.takes_startup_key());
        let of = |keyslot: &u32| Target { keyslot: *keyslot, token, policy: policy.clone(), kind, startup_key };
        targets.extend(sealed.keyslots.iter().filter(|keyslot| number.is_none_or(|n| n == **keyslot)).map(of));
    }
    match (&targets[..], number) {
        ([only], _) => Ok(only.clone()),
        ([], Some(number)) => Err(Error::misuse(format!("keyslot {number} is not sealed to a TPM alone"))
            .hint("To list what opens the keyslots: `claviger token list VOLUME`.")),
        ([], None) => Err(Error::misuse("no keyslot is sealed to a TPM alone")
            .hint("To add one: `claviger keyslot add --tpm2 VOLUME`.")),
        ([first, ..], _) => {
            let each = targets.iter().map(|target| format!("keyslot {} ({})", target.keyslot, target.in_words()));
            let what = format!("several tokens name a TPM: {}", each.collect::<Vec<_>>().join(", "));
            let hint = format!("Choose a keyslot: `claviger keyslot reseal VOLUME {}`.", first.keyslot);
            Err(Error::misuse(what).hint(hint))
        }
    }
}

impl SealedArgs {
    /// The target, sealed as the options say.
    fn changed(&self, mut target: Target) -> Result<Target> {
        let Policy { pcrs, pin, .. } = &mut target.policy;
        if let Some(wanted) = self.tpm2_pcrs {
            pcrs.mask = wanted.mask;
        }
        *pin = (*pin || self.tpm2_with_pin || self.new_tpm2_pin_file.is_some()) && !self.tpm2_without_pin;
        let changes_pin = self.tpm2_with_pin || self.tpm2_without_pin || self.new_tpm2_pin_file.is_some();
        match target.kind {
            SealedKind::Clevis if *pin => Err(Error::misuse("clevis has no PINs")),
            SealedKind::BitLocker if changes_pin => Err(Error::misuse("a BitLocker protector keeps its PIN")
                .hint("Add another protector: `claviger keyslot add --tpm2 --tpm2-with-pin VOLUME`.")),
            _ => Ok(target),
        }
    }
}

impl Target {
    /// Seals a new passphrase, and checks that the TPM releases it before the old one goes. Returns whether that was possible, too.
    fn seal(&self, devices: &TokenArgs, pin: Option<&[u8]>) -> Result<(Secret, Map<String, Value>, bool)> {
        // A software TPM has one connection at a time.
        let (token, passphrase, released) = if self.kind == SealedKind::Clevis {
            let (token, passphrase) = Binding::tpm(&mut devices.tpm()?, self.policy.pcrs)?.bind()?;
            let released = Jwe::parse(&token)?.open(devices)?;
            (token, passphrase, Some(released))
        } else {
            let mut tpm = devices.tpm()?;
            let (envelope, passphrase) = Envelope::seal(&mut tpm, self.policy.clone(), pin)?;
            // Signed PCRs take a signature, which may come later.
            let released = self.policy.signed.is_none().then(|| envelope.open(&mut tpm, pin)).transpose()?;
            (envelope.token(), passphrase, released)
        };
        let tested = released.is_some();
        if released.is_some_and(|released| !released.same_as(&passphrase)) {
            return Err(
                Error::misuse("the TPM released something else than was just sealed").hint("Nothing was changed.")
            );
        }
        Ok((passphrase, token, tested))
    }

    fn in_words(&self) -> String {
        let Policy { pcrs, signed, pin, .. } = &self.policy;
        let numbers: Vec<_> = pcrs.numbers().map(|number| number.to_string()).collect();
        let pcrs = match &numbers[..] {
            [] => "no PCRs".to_owned(),
            [one] => format!("PCR {one}"),
            all => format!("PCRs {}", all.join(", ")),
        };
        let signed = if signed.is_some() { " and signed PCRs" } else { "" };
        let pin = if *pin { ", with a PIN" } else { "" };
        format!("token {}, {pcrs}{signed}{pin}", self.token)
    }
}

impl Report for Resealed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, keyslot, pcrs, pin, test, tested, .. } = self;
        let numbers = pcrs.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let bound = match &pcrs[..] {
            [] => String::new(),
            [_] => format!(" with PCR {numbers} as it is now"),
            _ => format!(" with PCRs {numbers} as they are now"),
        };
        let pin = match (*pin, pcrs.is_empty()) {
            (false, _) => "",
            (true, true) => " with the PIN",
            (true, false) => " and the PIN",
        };
        match tested {
            true => write!(out, "{path}: the TPM opens keyslot {keyslot}{bound}{pin}.")?,
            false => write!(
                out,
                "{path}: keyslot {keyslot} is sealed to the TPM{bound}{pin}. Not tested: it takes a signature of the PCRs."
            )?,
        }
        writeln!(out, " The old key of keyslot {keyslot} was overwritten.")?;
        writeln!(out, "To test it: {test}")
    }
}

//! The FIDO2 key that computes a passphrase, and its PIN.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use claviger_engine::fido2::{self, Fido2Address, Fido2Conditions, Fido2Key, Fido2Token};
use claviger_engine::{Error, ErrorKind, Result, Secret};

use crate::opening::tokens;
use crate::terminal::{cancel, output};

#[derive(clap::Args, Clone, Default)]
pub struct Fido2Args {
    /// Try this FIDO2 key before asking for a password: auto (every key that is plugged in), /dev/hidraw0
    #[arg(long, value_name = "DEVICE")]
    pub fido2_device: Option<Fido2Address>,

    /// Read the FIDO2 key's PIN from FILE instead of asking; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub fido2_pin_file: Option<PathBuf>,

    /// The PIN, once it was read.
    #[arg(skip)]
    known_pin: Arc<OnceLock<Secret>>,

    /// Why a key has refused it.
    #[arg(skip)]
    refusal: Arc<OnceLock<String>>,
}

/// Under which conditions a new FIDO2 key computes the secret.
#[derive(clap::Args)]
pub struct Fido2ConditionArgs {
    /// Do not require the FIDO2 key's PIN: anyone who has the key can open the volume
    #[arg(long, requires = "to_fido2")]
    fido2_no_pin: bool,

    /// Do not require a touch
    #[arg(long, requires = "to_fido2")]
    fido2_no_presence: bool,

    /// Require that the FIDO2 key recognises you, as by a fingerprint
    #[arg(long, requires = "to_fido2")]
    fido2_with_verification: bool,
}

impl Fido2Args {
    /// The same, with every key that is plugged in if none is named.
    pub fn or_any(&self) -> Self {
        Self { fido2_device: Some(self.fido2_device.clone().unwrap_or_default()), ..self.clone() }
    }

    /// Has the key compute the secret for this token.
    pub fn secret(&self, token: &Fido2Token) -> Result<Secret> {
        // A key may hide the credential until it knows who asks.
        let hidden = |key: &Fido2Key| key.needs_pin(token) || token.conditions.verification;
        let (mut possible, mut failed) = (Vec::new(), None);
        for device in self.devices()? {
            let asked = connect(&device).and_then(|mut key| Ok((key.shows(token)?, key)));
            match asked.map_err(|e| e.at(&device)) {
                Ok((true, key)) => {
                    possible = vec![key];
                    break;
                }
                Ok((false, key)) if hidden(&key) => possible.push(key),
                Ok(_) => {}
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        match &mut possible[..] {
            [] => Err(failed.unwrap_or_else(fido2::not_enrolled)),
            [key] => {
                let with_pin =
                    |key: &mut Fido2Key| key.secret(token, Some(self.pin()?)).inspect_err(|e| self.note_refusal(e));
                if key.needs_pin(token) {
                    return with_pin(key);
                }
                match key.secret(token, None) {
                    // systemd 248 did not record whether the PIN is needed.
                    Err(e) if fido2::demands_pin(&e) && key.has_pin() => with_pin(key),
                    computed => computed,
                }
            }
            // A wrong PIN would cost a try.
            several => Err(Error::misuse(format!("any of {} FIDO2 keys could be the right one", several.len()))
                .hint("Unplug the others, or choose one with --fido2-device.")),
        }
    }

    /// Makes a credential for the volume at `path` in the only key, and has the key compute its secret.
    pub fn enroll(&self, conditions: &Fido2ConditionArgs, path: &Path) -> Result<(Fido2Token, Secret)> {
        let devices = self.devices()?;
        let [device] = &devices[..] else {
            return Err(Error::misuse(format!("{} FIDO2 keys are plugged in", devices.len()))
                .hint(format!("Choose one: --fido2-device {}", devices[0].display())));
        };
        let at = |e: Error| e.at(device);
        let mut key = connect(device).map_err(at)?;
        let with_pin = !conditions.fido2_no_pin && key.has_pin();
        if !with_pin && !conditions.fido2_no_pin && !conditions.fido2_with_verification {
            output::warn("This FIDO2 key has no PIN: anyone who has it can open the volume.");
        }
        let wanted = Fido2Conditions {
            pin: with_pin,
            presence: !conditions.fido2_no_presence,
            verification: conditions.fido2_with_verification,
        };
        let pin = if key.has_pin() { Some(self.pin()?) } else { None };
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        key.enroll(wanted, &name.chars().take(NAME).collect::<String>(), pin).map_err(at)
    }

    fn devices(&self) -> Result<Vec<PathBuf>> {
        self.fido2_device.clone().unwrap_or_default().devices()
    }

    /// Sends a PIN that the key has refused to no key again: each try counts.
    fn note_refusal(&self, error: &Error) {
        if fido2::is_pin_refusal(error)
            && let ErrorKind::WrongCredential(what) = &error.kind
        {
            let _ = self.refusal.set(what.clone());
        }
    }

    /// The PIN, which is asked for once.
    fn pin(&self) -> Result<&[u8]> {
        if let Some(refusal) = self.refusal.get() {
            return Err(ErrorKind::WrongCredential(refusal.clone()).into());
        }
        if let Some(pin) = self.known_pin.get() {
            return Ok(pin);
        }
        let pin = tokens::pin(&tokens::FIDO2_PIN, self.fido2_pin_file.as_deref())?;
        Ok(self.known_pin.get_or_init(|| pin))
    }
}

/// How many letters of a volume's name are stored in a key, which has 64 bytes for them.
const NAME: usize = 16;

fn connect(device: &Path) -> Result<Fido2Key> {
    let transport = Fido2Address::connect(device, cancel::waits())?;
    Fido2Key::new(transport, Box::new(|| output::note("Touch the FIDO2 key.")))
}

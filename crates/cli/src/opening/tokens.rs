//! Passphrases that a device releases because a token in the header names it, so that nobody has to type one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use claviger_engine::clevis::Helpers;
use claviger_engine::fido2::{self, Fido2Token};
use claviger_engine::formats::{Releaser, Sealed};
use claviger_engine::tpm2::{Envelope, EventLog, LOG_MAX, Tpm, TpmAddress};
use claviger_engine::{Advice, Credential, Error, ErrorKind, Header, Result, Secret};

use crate::opening::certificates::CertificateArgs;
use crate::opening::credentials::Source;
use crate::opening::fido2::Fido2Args;
use crate::opening::http;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::{advice, cancel, output, prompt};

/// The paths where systemd looks for PCR signatures (systemd-cryptsetup, `tpm2-signature=`).
const SIGNATURES: [&str; 3] = [
    "/etc/systemd/tpm2-pcr-signature.json",
    "/run/systemd/tpm2-pcr-signature.json",
    "/usr/lib/systemd/tpm2-pcr-signature.json",
];

/// Where Linux shows the firmware's event log, to root.
const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";

/// The longest file with signatures or a key, in bytes.
const SIGNATURES_MAX: u64 = 1 << 20;

/// The devices and servers that may be asked for a passphrase.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "TPMs, FIDO2 keys, tang servers and smart cards", end_heading())]
pub struct TokenArgs {
    /// Open only by a token in the header (this machine's TPM, a FIDO2 key, a smart card with --pkcs11-module), without a
    /// password
    #[arg(long)]
    token_only: bool,

    /// Try this TPM before asking for a password: auto, /dev/tpmrm0, swtpm:host=HOST,port=N or swtpm:path=FILE
    #[arg(long, value_name = "DEVICE")]
    tpm2_device: Option<TpmAddress>,

    /// Read the TPM's PIN from FILE instead of asking; `-` is standard input
    #[arg(long, value_name = "FILE")]
    tpm2_pin_file: Option<PathBuf>,

    /// File with PCR signatures for the TPM [default: systemd's paths]
    #[arg(long, value_name = "FILE")]
    tpm2_signature: Option<PathBuf>,

    #[command(flatten)]
    fido2: Fido2Args,

    /// The firmware's event log, which shows which PCR changed [default: that of this machine, if you may read it]
    #[arg(long, value_name = "FILE")]
    tpm2_event_log: Option<PathBuf>,

    /// Try this tang server before asking for a password, if clevis bound the volume to it: http://HOST:PORT. May be
    /// repeated
    #[arg(long, value_name = "URL")]
    tang: Vec<String>,
}

/// A passphrase that a device released, and its keyslot if there is only one.
pub struct Released {
    pub credentials: Vec<Credential>,
    pub keyslot: Option<u32>,
}

impl TokenArgs {
    /// The options for a secret that is sealed outside a header: this TPM and FIDO2 key, or the machine's, and these tang servers may be
    /// used.
    pub fn of(tpm2_device: Option<TpmAddress>, fido2: &Fido2Args, tang: &[String]) -> Self {
        Self {
            tpm2_device: Some(tpm2_device.unwrap_or_default()),
            fido2: fido2.or_any(),
            tang: tang.to_vec(),
            ..Self::default()
        }
    }

    /// The FIDO2 key that the options name.
    pub fn fido2_args(&self) -> &Fido2Args {
        &self.fido2
    }

    /// The options for opening, if the TPM is named for sealing to it: it is tried only with --token-only.
    pub fn without_tpm(self) -> Self {
        Self { tpm2_device: self.tpm2_device.filter(|_| self.token_only), ..self }
    }

    /// The same for the FIDO2 key.
    pub fn without_fido2(mut self) -> Self {
        self.fido2.fido2_device = self.fido2.fido2_device.filter(|_| self.token_only);
        self
    }

    /// The options with this machine's TPM, if they name none.
    pub fn with_tpm(self) -> Self {
        Self { tpm2_device: Some(self.tpm2_device.unwrap_or_default()), ..self }
    }

    /// Whether any of these options was given.
    pub fn given(&self) -> bool {
        let Self { tpm2_pin_file, tpm2_signature, tpm2_event_log, fido2, .. } = self;
        let files = [tpm2_pin_file, tpm2_signature, tpm2_event_log, &fido2.fido2_pin_file];
        self.token_only || self.first() || files.into_iter().any(Option::is_some)
    }

    /// Whether only a token may open the volume.
    pub fn only(&self) -> bool {
        self.token_only
    }

    /// Whether tokens are tried before asking for a password.
    pub fn first(&self) -> bool {
        self.tpm2_device.is_some() || self.fido2.fido2_device.is_some() || !self.tang.is_empty()
    }

    /// Whether the options name a TPM.
    pub fn names_tpm(&self) -> bool {
        self.tpm2_device.is_some()
    }

    /// The TPM that the options name, or the machine's.
    pub fn tpm(&self) -> Result<Tpm> {
        let log = self.event_log()?;
        Ok(Tpm::connect(&self.tpm2_device.clone().unwrap_or_default(), cancel::waits())?.with_log(log))
    }

    /// The event log that the options name, or this machine's if there is one that can be read.
    fn event_log(&self) -> Result<Option<EventLog>> {
        let read = |file: &Path| -> Result<EventLog> {
            let mut log = Vec::new();
            File::open(file)?.take(LOG_MAX + 1).read_to_end(&mut log)?;
            if log.len() as u64 > LOG_MAX {
                return Err(Error::misuse("too long for a TPM event log"));
            }
            EventLog::parse(&log)
        };
        let of_this_machine = self.tpm2_device.as_ref().is_none_or(|device| *device == TpmAddress::default());
        match &self.tpm2_event_log {
            Some(file) => read(file).map(Some).map_err(|e| e.at(file)),
            None if of_this_machine => Ok(read(EVENT_LOG.as_ref()).ok()),
            None => Ok(None),
        }
    }

    /// Asks the devices that the tokens name for a passphrase, one after the other; with `keyslot`, only for that keyslot. Some take one
    /// of the `keyfiles`, too. Since a header may come from anybody, uses only devices that the options name, and this machine's TPM.
    ///
    /// # Errors
    /// `Misuse` if there is no such token, or an option for it is missing; `Unsupported` if no token can be used here;
    /// otherwise the error of the last device.
    pub fn release(
        &self,
        header: &dyn Header,
        keyslot: Option<u32>,
        certificates: &CertificateArgs,
        keyfiles: &[Credential],
    ) -> Result<Released> {
        let mut sealed = header.sealed();
        // A token without keyslots is a leftover of one that was removed: its passphrase opens nothing.
        sealed.retain(|sealed| match keyslot {
            None => !sealed.keyslots.is_empty(),
            Some(wanted) => sealed.keyslots.contains(&wanted),
        });
        // A keyfile that is given is needed.
        sealed.retain(|sealed| keyfiles.is_empty() || sealed.takes_startup_key());
        if sealed.is_empty() {
            return Err(Error::misuse("no token in its header yields a passphrase").hint(
                "Omit --token-only. Only LUKS2 has tokens (see `claviger token list VOLUME`), and BitLocker has TPM \
                     protectors.",
            ));
        }
        let (mut refused, mut failed) = (None, None);
        for sealed in &sealed {
            let asked = match &sealed.by {
                Releaser::SmartCard { label, .. } => {
                    certificates.smart_card(label.as_deref()).and_then(|keys| sealed.release(&keys))
                }
                Releaser::Tpm(envelope) => self.by_tpm(envelope),
                Releaser::Fido2(token) => {
                    Helpers::fido2(self, token).map(|secret| Credential::Passphrase(fido2::passphrase(&secret)))
                }
                Releaser::MasterKey(key) => Helpers::tpm(self)
                    .and_then(|mut tpm| key.open(&mut tpm, keyfiles, || pin(&TPM_PIN, self.tpm2_pin_file.as_deref()))),
                Releaser::Clevis(jwe) => {
                    let opened = jwe.open(self).map(Credential::Passphrase);
                    opened.map_err(|e| if jwe.tpm_pcrs().is_some() { e } else { without_reseal(e) })
                }
                _ => continue,
            };
            match asked {
                Ok(credential) => {
                    let only = if let [number] = sealed.keyslots[..] { Some(number) } else { None };
                    return Ok(Released { credentials: vec![credential], keyslot: keyslot.or(only) });
                }
                Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e),
                // Another token may still match. What the right key says counts more than that there is another one.
                Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => {
                    let tells_less = refused.is_some() && fido2::is_not_enrolled(&e);
                    if !tells_less && !refused.as_ref().is_some_and(fido2::is_pin_refusal) {
                        refused = Some(e);
                    }
                }
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        Err(refused.or(failed).unwrap_or_else(|| cannot_be_used(&sealed)))
    }

    /// Like [`TokenArgs::release`], for verbs that ask for a password if no token releases one. Prints the reason.
    pub fn try_release(
        &self,
        header: &dyn Header,
        keyslot: Option<u32>,
        certificates: &CertificateArgs,
        keyfiles: &[Credential],
    ) -> Result<Option<Released>> {
        if header.sealed().is_empty() {
            return Ok(None);
        }
        match self.release(header, keyslot, certificates, keyfiles) {
            Ok(released) => Ok(Some(released)),
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => Err(e),
            Err(e) => {
                let why = e.in_words(advice::say);
                output::warn(&format!("No token opens it: {}.", why.trim_end_matches('.')));
                Ok(None)
            }
        }
    }

    fn by_tpm(&self, envelope: &Envelope) -> Result<Credential> {
        let mut envelope = envelope.clone();
        if envelope.policy.signed.is_some()
            && let Some(file) = self.signatures()
        {
            envelope.take_signatures(&read(file)?).map_err(|e| e.at(file))?;
        }
        let mut tpm = Helpers::tpm(self)?;
        if envelope.policy.pin {
            // Nobody types a PIN in vain.
            envelope.check(&mut tpm)?;
        }
        let pin = if envelope.policy.pin { Some(pin(&TPM_PIN, self.tpm2_pin_file.as_deref())?) } else { None };
        envelope.open(&mut tpm, pin.as_deref()).map(Credential::Passphrase)
    }

    fn signatures(&self) -> Option<&Path> {
        let usual = || SIGNATURES.into_iter().map(Path::new).find(|path| path.exists());
        self.tpm2_signature.as_deref().or_else(usual)
    }
}

impl Helpers for TokenArgs {
    fn tpm(&self) -> Result<Tpm> {
        if !self.token_only && self.tpm2_device.is_none() {
            return Err(Error::misuse("a token needs a TPM, but none was given").hint("Give one with --tpm2-device."));
        }
        Self::tpm(self)
    }

    fn fido2(&self, token: &Fido2Token) -> Result<Secret> {
        if !self.token_only && self.fido2.fido2_device.is_none() {
            return Err(Error::misuse("a token needs a FIDO2 key, but none was given")
                .hint("Plug it in, and add --fido2-device auto."));
        }
        self.fido2.secret(token)
    }

    fn tang(&self, url: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        if !self.tang.iter().any(|named| http::same(named, url)) {
            return Err(Error::misuse(format!(
                "a token names the tang server {}, which is not allowed",
                output::printable(url)
            ))
            .hint("If you trust the header's author, allow it with --tang URL."));
        }
        http::ask(url, path, Some(body))
    }
}

/// A PIN that is asked for, with the option for its file.
pub struct PinKind {
    of: &'static str,
    prompt: &'static str,
    source: &'static str,
    option: &'static str,
    new: bool,
}

pub const TPM_PIN: PinKind = PinKind {
    of: "the TPM's PIN",
    prompt: "PIN for the TPM: ",
    source: "tpm2-",
    option: "--tpm2-pin-file",
    new: false,
};

pub const NEW_TPM_PIN: PinKind =
    PinKind { prompt: "New PIN for the TPM: ", option: "--new-tpm2-pin-file", new: true, ..TPM_PIN };

pub const FIDO2_PIN: PinKind = PinKind {
    of: "the FIDO2 key's PIN",
    prompt: "PIN for the FIDO2 key: ",
    source: "fido2-",
    option: "--fido2-pin-file",
    new: false,
};

/// A PIN from the file or from a prompt, which asks twice if the PIN is new.
pub fn pin(kind: &PinKind, file: Option<&Path>) -> Result<Secret> {
    let PinKind { of, prompt, source, option, new } = *kind;
    if file.is_none() && prompt::asker().is_none() {
        return Err(Error::misuse(format!("there is no terminal on which to ask for {of}"))
            .hint(format!("Give it with {option} FILE.")));
    }
    let source = Source::password(source, prompt, file, None);
    if new { source.new_secret() } else { source.secret() }
}

/// Reads a file with signatures, or with the key that signs.
pub fn read(file: &Path) -> Result<Vec<u8>> {
    let read = || {
        if std::fs::metadata(file)?.len() > SIGNATURES_MAX {
            return Err(Error::misuse("too long for a signature or key file"));
        }
        Ok(std::fs::read(file)?)
    };
    read().map_err(|e| e.at(file))
}

/// Drops the advice to seal anew, for what no verb seals anew: bindings of clevis to more than a TPM, or in a file.
pub fn without_reseal(error: Error) -> Error {
    Error { advice: error.advice.filter(|advice| **advice != Advice::Reseal), ..error }
}

fn cannot_be_used(sealed: &[Sealed]) -> Error {
    let each = sealed.iter().map(|sealed| format!("token {}: {}", sealed.token, sealed.needs));
    Error::unsupported(format!("the devices that its tokens need ({})", each.collect::<Vec<_>>().join("; ")))
        .hint("Omit --token-only to open the volume with a passphrase or recovery key of another keyslot.")
}

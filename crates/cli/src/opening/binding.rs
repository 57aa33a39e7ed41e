//! Binds a secret as clevis does: to tang servers, to this machine's TPM, to a FIDO2 key, or to a threshold of several.

use std::path::Path;

use claviger_engine::clevis::{Advertisement, Binding};
use claviger_engine::tpm2::{Bank, Pcrs};
use claviger_engine::{Error, ErrorKind, Result};

use crate::opening::fido2::Fido2ConditionArgs;
use crate::opening::http;
use crate::opening::tokens::TokenArgs;
use crate::terminal::prompt;

/// PCR 7, the Secure Boot state: which signatures the firmware trusts. systemd has the same default.
pub const SECURE_BOOT: Pcrs = Pcrs { bank: Bank::Sha256, mask: 1 << 7 };

/// PCRs 7 and 11, as Windows seals BitLocker where Secure Boot is on. The boot manager extends the latter once it has the key.
pub const WINDOWS: Pcrs = Pcrs { bank: Bank::Sha256, mask: 1 << 7 | 1 << 11 };

/// What to bind to.
#[derive(clap::Args)]
pub struct BindArgs {
    /// Bind to this tang server, as clevis does: http://HOST:PORT. May be repeated: see --bind-threshold
    #[arg(long, value_name = "URL", group = "bound")]
    bind_tang: Vec<String>,

    /// Trust the tang server with this key thumbprint (`tang-show-keys`). Without it, you are shown the keys and
    /// asked. May be repeated
    // One of 64 thumbprints begins with a hyphen.
    #[arg(long, value_name = "THUMBPRINT", requires = "bind_tang", allow_hyphen_values = true)]
    tang_thumbprint: Vec<String>,

    /// Bind to this machine's TPM, or to --tpm2-device, as clevis does
    #[arg(long, groups = ["bound", "to_tpm"])]
    bind_tpm2: bool,

    /// Bind to the FIDO2 key that is plugged in, or to --fido2-device. Only claviger opens this binding
    #[arg(long, groups = ["bound", "to_fido2"])]
    bind_fido2: bool,

    #[command(flatten)]
    pub fido2: Fido2ConditionArgs,

    /// How many of several servers, TPMs or FIDO2 keys are needed [default: all]
    #[arg(long, value_name = "N", requires = "bound")]
    bind_threshold: Option<usize>,

    /// PCRs that must keep their current values: 7, or several as 0+7; empty for none [default: 7; for BitLocker 7+11]
    #[arg(long = "tpm2-pcrs", value_name = "PCRS", requires = "to_tpm", value_parser = pcrs)]
    pub pcrs: Option<Pcrs>,
}

/// Several of these options may be given together. Each verb with [`BindArgs`] adds this group.
pub fn group() -> clap::ArgGroup {
    clap::ArgGroup::new("bound").multiple(true)
}

impl BindArgs {
    /// Whether any binding was requested.
    pub fn given(&self) -> bool {
        self.bind_tpm2 || self.bind_fido2 || !self.bind_tang.is_empty()
    }

    /// Whether it is, among others, to the TPM.
    pub fn to_tpm(&self) -> bool {
        self.bind_tpm2
    }

    /// Whether it is, among others, to a FIDO2 key.
    pub fn to_fido2(&self) -> bool {
        self.bind_fido2
    }

    /// The binding that the options describe. `tokens` names the TPM and the FIDO2 key, which stores the name of `path`.
    ///
    /// # Errors
    /// `Misuse`, `WrongCredential` if the server is not the trusted one, `Cancelled`, `Io`.
    pub fn binding(&self, tokens: &TokenArgs, path: &Path) -> Result<Binding> {
        let mut all = Vec::new();
        for url in &self.bind_tang {
            all.push(Binding::tang(url, &self.trusted(url)?)?);
        }
        if self.bind_tpm2 {
            all.push(Binding::tpm(&mut tokens.tpm()?, self.pcrs.unwrap_or(SECURE_BOOT))?);
        }
        if self.bind_fido2 {
            let (token, secret) = tokens.fido2_args().enroll(&self.fido2, path)?;
            all.push(Binding::fido2(&token, secret));
        }
        match self.bind_threshold {
            None if all.len() == 1 => Ok(all.remove(0)),
            threshold => Binding::shares(&all, threshold.unwrap_or(all.len())),
        }
    }

    /// The keys that a tang server advertises, if it is the trusted server.
    fn trusted(&self, url: &str) -> Result<Advertisement> {
        let at = |e: Error| e.at(url.as_ref());
        let advertisement = Advertisement::parse(&http::ask(url, "adv", None)?).map_err(at)?;
        match &self.tang_thumbprint[..] {
            known if known.iter().any(|known| advertisement.thumbprints.contains(known)) => Ok(advertisement),
            [_, ..] => Err(at(Error::new(ErrorKind::WrongCredential(
                "this is a different tang server: it lacks that key".into(),
            ))
            .hint(format!("Its key thumbprints are {}.", advertisement.thumbprints.join(", "))))),
            [] => {
                let question = format!(
                    "The tang server's key thumbprints are {}. Trust it?",
                    advertisement.thumbprints.join(", ")
                );
                prompt::consent(&question, "--tang-thumbprint THUMBPRINT", |why| {
                    Error::misuse(format!("the tang server is not trusted{why}"))
                })?;
                Ok(advertisement)
            }
        }
    }
}

/// PCRs as systemd writes them: `0+7`, or `0,7`.
pub fn pcrs(text: &str) -> std::result::Result<Pcrs, String> {
    let numbers = text.split(['+', ',']).filter(|number| !number.is_empty()).map(str::parse::<u64>);
    let numbers = numbers.collect::<std::result::Result<Vec<_>, _>>().ok().and_then(|all| Pcrs::new(Bank::Sha256, all));
    numbers.ok_or_else(|| "use numbers from 0 to 23, such as 7 or 0+7".to_owned())
}

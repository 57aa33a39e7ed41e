//! Protects a hidden volume against writes to its outer volume.

use claviger_engine::{Credential, Protect, Result};

use crate::opening::credentials::HiddenCredentialArgs;
use crate::terminal::end_heading::EndHeading;

/// The credentials of the hidden volume, for verbs with an option whose id is `hidden`.
#[derive(clap::Args)]
#[command(next_help_heading = "Password and keyfiles of the hidden volume", end_heading())]
pub struct HiddenArgs {
    /// Hash of the hidden volume
    #[arg(long, value_name = "NAME", requires = "hidden")]
    pub hidden_hash: Option<String>,

    /// PIM of the hidden volume
    #[arg(long, value_name = "N", requires = "hidden")]
    pub hidden_pim: Option<u32>,

    #[command(flatten)]
    pub credentials: HiddenCredentialArgs,
}

impl HiddenArgs {
    /// The hidden volume that these credentials open, as the engine protects it.
    pub(super) fn protect<'a>(&'a self, credentials: &'a [Credential]) -> Protect<'a> {
        Protect { credentials, hash: self.hidden_hash.as_deref(), pim: self.hidden_pim }
    }
}

/// Protects a hidden volume while a verb writes to its outer volume.
#[derive(clap::Args)]
pub struct ProtectArgs {
    /// Protect the hidden volume in this one, using both passwords: a write that would damage it is refused, and the
    /// volume becomes read-only. Without this, writing to the outer volume may destroy the hidden one
    #[arg(long = "protect-hidden", id = "hidden")]
    pub(super) protect: bool,

    #[command(flatten)]
    pub(super) hidden: HiddenArgs,
}

impl ProtectArgs {
    /// Whether protection was requested.
    pub fn asked(&self) -> bool {
        self.protect
    }

    /// Reads the credentials of the hidden volume and asks where needed; `None` without `--protect-hidden`.
    pub fn read(&self) -> Result<Option<Vec<Credential>>> {
        self.protect.then(|| Ok(self.hidden.credentials.source().read()?.into_vec())).transpose()
    }

    /// The protection with the credentials from [`ProtectArgs::read`].
    pub fn protect<'a>(&'a self, credentials: Option<&'a [Credential]>) -> Option<Protect<'a>> {
        credentials.map(|credentials| self.hidden.protect(credentials))
    }

    /// Whether the hidden volume's password is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.hidden.credentials.source().on_stdin()
    }
}

//! Headers, locked and unlocked.

use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::secret::wipe_stack;

use super::takes::Takes;
use super::{Facts, HeaderFacts, Sealed, UnlockPlan};
use crate::advice::Warning;
use crate::credential::{Credential, Unlock};
use crate::error::Result;
use crate::store::Store;
use crate::volume::Layout;

/// What a volume key is known by: salt and digest of it.
pub type KeyMark = (Vec<u8>, Vec<u8>);

/// A header that has been read and not been unlocked. It holds the stores that it was read from.
pub trait Header: Send {
    /// Tries the credentials.
    ///
    /// # Errors
    /// `WrongCredential`, `CredentialKind`, `Malformed`, `Unsupported`, `Cancelled`, `Io`.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked>;

    /// What its volume keys are known by, where it says so. They stay as they are for as long as the key.
    fn key_marks(&self) -> Vec<KeyMark> {
        Vec::new()
    }

    /// The formats that it could be of, by their names, and what they take: what none of them does is refused before a secret is asked
    /// for. Nothing where that only [`Header::unlock`] tells.
    fn takes(&self) -> Vec<(&'static str, Takes)> {
        Vec::new()
    }

    /// The store with the data, to which the layout from [`Header::unlock`] applies.
    fn data(&self) -> &Arc<dyn Store>;

    /// The facts that need no credential: keyslots, ciphers, UUID, tokens. They contain no secrets.
    fn describe(&self) -> Option<HeaderFacts> {
        None
    }

    /// The passphrases that lie sealed in it, by the number of their token.
    fn sealed(&self) -> Vec<Sealed> {
        Vec::new()
    }

    /// What is damaged in it, as far as that shows without any credential.
    fn damage(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// What trying the keyslots will cost, where the header tells it: to be said before it is tried.
    fn plan(&self, _with: &Unlock<'_>) -> Option<UnlockPlan> {
        None
    }

    /// Whether a passphrase is to be asked for where these keyfiles are given.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// Refuses what cannot be unlocked, or used, where the keys are in a process that starts no programs: see
    /// [`key_process`](crate::key_process).
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_key_process(&self, _credentials: &[Credential]) -> Result<()> {
        Ok(())
    }

    /// About how long trying wrong credentials takes on one thread, in microseconds: what the progress of `unlock` counts.
    fn effort(&self, _with: &Unlock<'_>) -> u64 {
        1
    }
}

/// An unlocked volume: the layout, which holds the keys, and what is to be told about it.
#[non_exhaustive]
pub struct Unlocked {
    /// Where the plaintext is.
    pub layout: Layout,
    /// What a person may want to know.
    pub facts: Facts,
    /// What a person must know: a damaged header, a backup that was used. Whole sentences.
    pub warnings: Vec<Warning>,
    /// Header decryptions that were tried, the right one included.
    pub trials: u64,
    /// Key derivations that were begun.
    pub derivations: u64,
    /// How long that took.
    pub took: Duration,
    /// Whether anything shows that the credential is the right one. A header does; where there is none, only contents that make
    /// sense.
    pub recognised: bool,
}

impl Unlocked {
    /// Without warnings, of a header that shows whether the credential is the right one.
    pub fn new(layout: Layout, facts: Facts) -> Self {
        let (warnings, trials, derivations, took) = (Vec::new(), 0, 0, Duration::ZERO);
        Self { layout, facts, warnings, trials, derivations, took, recognised: true }
    }
}

/// The result of work with secrets: an error of it names the format, and nothing is left on the stack.
pub(super) fn wiped<T>(format: &'static str, result: Result<T>) -> Result<T> {
    wipe_stack();
    result.map_err(|e| e.in_format(format))
}

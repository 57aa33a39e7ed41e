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

/// The salt and digest that identify a volume key.
pub type KeyMark = (Vec<u8>, Vec<u8>);

/// A header that has been read but not unlocked. It holds the stores from which it was read.
pub trait Header: Send {
    /// Tries the credentials.
    ///
    /// # Errors
    /// `WrongCredential`, `CredentialKind`, `Malformed`, `Unsupported`, `Cancelled`, `Io`.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked>;

    /// Returns the marks of its volume keys, if the header contains them. They do not change while the key stays the same.
    fn key_marks(&self) -> Vec<KeyMark> {
        Vec::new()
    }

    /// The names of the formats that it could have, and their parameters. What none of them supports is refused before a secret is
    /// asked for. Empty if only [`Header::unlock`] can tell.
    fn takes(&self) -> Vec<(&'static str, Takes)> {
        Vec::new()
    }

    /// The store of the data, to which the layout from [`Header::unlock`] applies.
    fn data(&self) -> &Arc<dyn Store>;

    /// The facts that need no credential: keyslots, ciphers, UUID, tokens. They contain no secrets.
    fn describe(&self) -> Option<HeaderFacts> {
        None
    }

    /// The sealed passphrases in it, by the number of their token.
    fn sealed(&self) -> Vec<Sealed> {
        Vec::new()
    }

    /// The damage that is visible without a credential.
    fn damage(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// The cost of trying the keyslots, if the header contains it, to be announced before the trial.
    fn plan(&self, _with: &Unlock<'_>) -> Option<UnlockPlan> {
        None
    }

    /// Whether a passphrase is needed in addition to these keyfiles.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// Refuses volumes that cannot be unlocked or used by a key process, which cannot start programs: see
    /// [`key_process`](crate::key_process).
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_key_process(&self, _credentials: &[Credential]) -> Result<()> {
        Ok(())
    }

    /// The estimated time to try wrong credentials on one thread, in microseconds. The progress of `unlock` counts this.
    fn effort(&self, _with: &Unlock<'_>) -> u64 {
        1
    }
}

/// An unlocked volume: the layout, which holds the keys, and facts about it.
#[non_exhaustive]
pub struct Unlocked {
    /// The layout of the plaintext.
    pub layout: Layout,
    /// Facts for people.
    pub facts: Facts,
    /// Warnings, in whole sentences: a damaged header, a backup that was used.
    pub warnings: Vec<Warning>,
    /// How many header decryptions were tried, the right one included.
    pub trials: u64,
    /// How many key derivations were begun.
    pub derivations: u64,
    /// How long this took.
    pub took: Duration,
    /// Whether anything proves that the credential is right: a header, or without one, recognisable contents.
    pub recognised: bool,
}

impl Unlocked {
    /// Without warnings, for a header that proves the credential.
    pub fn new(layout: Layout, facts: Facts) -> Self {
        let (warnings, trials, derivations, took) = (Vec::new(), 0, 0, Duration::ZERO);
        Self { layout, facts, warnings, trials, derivations, took, recognised: true }
    }
}

/// Finishes work with secrets: errors get the format's name, and the stack is wiped.
pub(super) fn wiped<T>(format: &'static str, result: Result<T>) -> Result<T> {
    wipe_stack();
    result.map_err(|e| e.in_format(format))
}

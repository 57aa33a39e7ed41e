//! What opens a volume, and how to try it.

use std::sync::atomic::{AtomicBool, Ordering};

use claviger_crypto::{Acceleration, Secret};

/// Raw material. A format takes the kinds that it knows, and says which it does not.
#[derive(Debug)]
#[non_exhaustive]
pub enum Credential {
    /// What a person types, as bytes, without a newline.
    Passphrase(Secret),
    /// The contents of a keyfile, as much of it as any format reads (TrueCrypt: the first 1,048,576 bytes).
    Keyfile(Secret),
}

impl Credential {
    /// What a person calls this kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::Keyfile(_) => "keyfile",
        }
    }
}

/// Credentials, and all that narrows or steers the trials.
pub struct Unlock<'a> {
    /// All of them together open the volume.
    pub credentials: &'a [Credential],
    /// Whether ciphers may use AES instructions.
    pub acceleration: Acceleration,
    /// Only this hash, by the name in its table.
    pub hash: Option<&'a str>,
    /// Only this cipher or cascade, by its name.
    pub cipher: Option<&'a str>,
    /// Only the header copies of this kind.
    pub header: HeaderChoice,
    /// Opens a volume that is longer than its store: what is missing cannot be read, and nothing can be written.
    pub truncated: bool,
    /// Whether to stop. Looked at every few hundred microseconds.
    pub cancel: Option<&'a AtomicBool>,
    /// Told of each trial that is done and of how many there are.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

/// Which copies of a header to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderChoice {
    /// All, the primary ones first.
    #[default]
    Any,
    /// The backup copies only.
    Backup,
}

impl<'a> Unlock<'a> {
    /// The credentials, tried in every way.
    pub fn with(credentials: &'a [Credential]) -> Self {
        Self {
            credentials,
            acceleration: Acceleration::On,
            hash: None,
            cipher: None,
            header: HeaderChoice::Any,
            truncated: false,
            cancel: None,
            progress: None,
        }
    }

    /// Whether the caller has cancelled.
    pub fn cancelled(&self) -> bool {
        self.cancel.is_some_and(|c| c.load(Ordering::Relaxed))
    }
}

//! What can go wrong, named by who or what is to blame.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::advice::Advice;

/// The result of an operation of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: what kind it is, which file and format it is about, and what to try.
#[derive(Debug)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The file or device that it is about.
    pub path: Option<PathBuf>,
    /// The format that was being read or written.
    pub format: Option<&'static str>,
    /// What the person could try, as a whole sentence.
    pub hint: Option<String>,
    /// What could be done, as data: said behind the hint.
    pub advice: Option<Box<Advice>>,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store failed.
    #[error("{0}")]
    Io(io::Error),
    /// Another process has the store open in a way that excludes this one.
    #[error("in use by another process{}", .holder.as_deref().map(|h| format!(" ({h})")).unwrap_or_default())]
    InUse {
        /// Who holds it, where that can be told.
        holder: Option<String>,
    },
    /// The store does not hold the format that was asked for, or any that is known.
    #[error("{0}")]
    NotThisFormat(String),
    /// The format is recognised, but a field has a value that it cannot have.
    #[error("damaged: {what} (field {field}, at byte {offset})")]
    Malformed {
        /// The field's name.
        field: &'static str,
        /// Where it is in the store, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A feature of a format that this program does not have.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// No credential opens the volume.
    #[error("{0}")]
    WrongCredential(String),
    /// The volume opens, but the credentials of the hidden volume in it, which is to be protected, open nothing.
    #[error("the hidden volume: {0}")]
    WrongHiddenCredential(String),
    /// The format takes no credential of this kind.
    #[error("{format} takes no {kind}")]
    CredentialKind {
        /// The format.
        format: &'static str,
        /// The kind of credential.
        kind: &'static str,
    },
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Misuse(String),
    /// A key derivation needs more memory than there is.
    #[error("not enough memory: needs {needed} bytes, {available} free")]
    TooLittleMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes that are available.
        available: u64,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
}

impl ErrorKind {
    /// The number that programs know it by: the exit status of `claviger`, and the code of the bindings for other languages. It
    /// stays the same.
    pub fn code(&self) -> u8 {
        match self {
            Self::Misuse(_) | Self::CredentialKind { .. } => 1,
            Self::WrongCredential(_) | Self::WrongHiddenCredential(_) => 2,
            Self::NotThisFormat(_) => 3,
            Self::Malformed { .. } => 4,
            Self::Unsupported { .. } => 5,
            Self::Io(_) => 6,
            Self::TooLittleMemory { .. } => 7,
            Self::Cancelled => 8,
            Self::InUse { .. } => 9,
        }
    }
}

impl Error {
    /// An error without context.
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, path: None, format: None, hint: None, advice: None }
    }

    /// A request that makes no sense.
    pub fn misuse(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse(what.into()))
    }

    /// A feature that is not there.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported { what: what.into() })
    }

    /// Adds the path, unless one is there already.
    pub fn at(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Adds the format, unless one is there already.
    pub fn in_format(mut self, format: &'static str) -> Self {
        self.format.get_or_insert(format);
        self
    }

    /// Adds what to try.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what could be done.
    pub fn advise(mut self, advice: Advice) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// What to try, in whole sentences: the hint, and the advice in the words that `say` has for it.
    pub fn to_try(&self, say: impl Fn(&Advice) -> String) -> Option<String> {
        let sentences: Vec<_> = self.hint.iter().cloned().chain(self.advice.as_deref().map(say)).collect();
        (!sentences.is_empty()).then(|| sentences.join(" "))
    }

    /// What `Display` says, with the words that `say` has for the advice.
    pub fn told(&self, say: impl Fn(&Advice) -> String) -> String {
        // A name with a newline would write a line of its own.
        let shown = |path: &PathBuf| path.display().to_string().replace(char::is_control, "?");
        let path = self.path.as_ref().map(|path| format!("{}: ", shown(path))).unwrap_or_default();
        let kind = self.kind.to_string();
        // Where the message begins with the format's name, that is enough.
        let named = |format: &str| kind.starts_with(format) || matches!(self.kind, ErrorKind::CredentialKind { .. });
        let of_format = self.format.filter(|format| !named(format));
        let format = of_format.map(|format| format!("{format}: ")).unwrap_or_default();
        let to_try = self.to_try(say).map(|to_try| format!("\n{to_try}")).unwrap_or_default();
        format!("{path}{format}{kind}{to_try}")
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        // One of ours that came through a store or a tree, whose errors are the system's.
        error.downcast().unwrap_or_else(|error| Self::new(ErrorKind::Io(error)))
    }
}

/// As a tree or store passes it on; whoever takes it gets it back.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error.kind {
            ErrorKind::Io(e) => e,
            ErrorKind::Malformed { .. } => Self::new(io::ErrorKind::InvalidData, error),
            ErrorKind::Unsupported { .. } => Self::new(io::ErrorKind::Unsupported, error),
            _ => Self::other(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told(Advice::to_string))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

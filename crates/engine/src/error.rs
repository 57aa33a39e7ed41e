//! Errors, classified by who or what is to blame.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::advice::Advice;

/// The result of an operation of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: its kind, the file and format concerned, and what to try.
#[derive(Debug)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The file or device concerned.
    pub path: Option<PathBuf>,
    /// The format that was being read or written.
    pub format: Option<&'static str>,
    /// What the user can try, in a whole sentence.
    pub hint: Option<String>,
    /// What the user can do, as data; shown after the hint.
    pub advice: Option<Box<Advice>>,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store failed.
    #[error("{0}")]
    Io(io::Error),
    /// Another process has the store open in a conflicting way.
    #[error("in use by another process{}", .holder.as_deref().map(|h| format!(" ({h})")).unwrap_or_default())]
    InUse {
        /// The process that holds it, if known.
        holder: Option<String>,
    },
    /// The store does not hold the requested format, or no known format.
    #[error("{0}")]
    NotThisFormat(String),
    /// The format is recognised, but a field has an invalid value.
    #[error("damaged: {what} (field {field}, at byte {offset})")]
    Malformed {
        /// The field's name.
        field: &'static str,
        /// Its offset in the store, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A feature of a format that is not supported.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// No credential opens the volume.
    #[error("{0}")]
    WrongCredential(String),
    /// The volume opens, but the credentials for the hidden volume to protect open nothing.
    #[error("the hidden volume: {0}")]
    WrongHiddenCredential(String),
    /// The format does not accept this kind of credential.
    #[error("{format} takes no {kind}")]
    CredentialKind {
        /// The format.
        format: &'static str,
        /// The kind of credential.
        kind: &'static str,
    },
    /// An invalid request of the caller.
    #[error("{0}")]
    Misuse(String),
    /// A key derivation needs more memory than is available.
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
    /// The stable number of this kind for programs: the exit status of `claviger`, and the code in the bindings for other
    /// languages.
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

    /// An error for an invalid request.
    pub fn misuse(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse(what.into()))
    }

    /// An error for an unsupported feature.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported { what: what.into() })
    }

    /// An error for a missing program: what needs it, its name and Debian package, and what works without it.
    pub fn not_installed(purpose: &str, (program, package): (&str, &str), otherwise: &str) -> Self {
        let what = format!("{purpose} needs the program {program}, which is not installed");
        let hint = format!("To install it: `apt install {package}` (Debian package). {otherwise}");
        Self::new(ErrorKind::Io(io::Error::other(what))).hint(hint.trim_end())
    }

    /// Adds the path, unless there is one already.
    pub fn at(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Adds the format, unless there is one already.
    pub fn in_format(mut self, format: &'static str) -> Self {
        self.format.get_or_insert(format);
        self
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what the user can do.
    pub fn advise(mut self, advice: Advice) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// What to try, in whole sentences: the hint, then the advice in the words of `say`.
    pub fn to_try(&self, say: impl Fn(&Advice) -> String) -> Option<String> {
        let sentences: Vec<_> = self.hint.iter().cloned().chain(self.advice.as_deref().map(say)).collect();
        (!sentences.is_empty()).then(|| sentences.join(" "))
    }

    /// The text of `Display`, with the advice in the words of `say`.
    pub fn in_words(&self, say: impl Fn(&Advice) -> String) -> String {
        // A newline in a name could forge a separate line.
        let shown = |path: &PathBuf| path.display().to_string().replace(char::is_control, "?");
        let path = self.path.as_ref().map(|path| format!("{}: ", shown(path))).unwrap_or_default();
        let kind = self.kind.to_string();
        // If the message begins with the format's name, do not repeat it.
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
        // An error of ours may come wrapped, because stores and trees return the system's errors.
        error.downcast().unwrap_or_else(|error| Self::new(ErrorKind::Io(error)))
    }
}

/// Wraps the error for a tree or a store; converting back restores it.
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
        f.write_str(&self.in_words(Advice::to_string))
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

//! What is asked of those who change headers, and what they answer.

use claviger_crypto::Secret;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::advice::Warning;
use crate::credential::{Credential, Unlock};
use crate::edit::Edit;
use crate::spec::Cost;
use crate::store::Store;

/// A change of what other programs keep in a header.
#[derive(Clone, Copy, Debug)]
pub enum TokenChange<'a> {
    /// Put in a token: at a number, or the first free one.
    Import {
        /// The token, an object.
        token: &'a Value,
        /// Its number.
        at: Option<u32>,
        /// Whether it may take the place of another one.
        replace: bool,
    },
    /// Take a token out.
    Remove(u32),
    /// Say that a token is for a keyslot, or is not any more.
    Assign {
        /// The token's number.
        token: u32,
        /// The keyslot's number.
        keyslot: u32,
        /// Whether it is for it.
        assigned: bool,
    },
}

/// How a volume's key is protected from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// It lies open beside the keyslots: anybody can open the volume, until protection is resumed.
    Suspend,
    /// It lies open no longer, and the key over it is a new one, in case somebody noted it.
    Resume,
    /// The key over it, which the keyslots hold, is a new one. All keyslots open it as before.
    NewKey,
}

/// A recovery password of a volume.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecoveryPassword {
    /// The number of its keyslot.
    pub keyslot: u32,
    /// What one knows it by.
    pub guid: String,
    /// It, as text.
    pub password: Secret,
}

/// Which keyslot is removed.
#[derive(Clone, Copy)]
pub enum Removal<'a> {
    /// The one that this opens.
    Opened(&'a Unlock<'a>),
    /// The one of this number, whoever can open it. If given, the credentials have to open another one.
    Number(u32, Option<&'a Unlock<'a>>),
}

/// What a header says beside its keys. What is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderAttributes<'a> {
    /// The UUID, as text.
    pub uuid: Option<&'a str>,
    /// The label.
    pub label: Option<&'a str>,
    /// The subsystem.
    pub subsystem: Option<&'a str>,
    /// A keyslot, by its number, and its new priority: 0 only if named, 1 normal, 2 first.
    pub priority: Option<(u32, u32)>,
    /// Flags that are kept with the volume, all of them: `allow-discards`.
    pub flags: Option<&'a [String]>,
}

/// What is to open the volume from now on. What is `None` stays as it is.
#[derive(Default)]
pub struct NewCredential<'a> {
    /// All of them together.
    pub credentials: &'a [Credential],
    /// Hash of the key derivation, by its name.
    pub hash: Option<&'a str>,
    /// VeraCrypt's "personal iterations multiplier", 0 for the default.
    pub pim: Option<u32>,
    /// What the derivation is to cost, where the format lets one choose.
    pub cost: Cost<'a>,
    /// For a new keyslot: it holds a fresh key of so many bits, which is not that of the data.
    pub unbound_bits: Option<u32>,
    /// For a new keyslot: the token beside it, whose keyslots are filled in.
    pub token: Option<&'a Map<String, Value>>,
}

/// Where a header is restored from.
#[derive(Clone, Copy)]
pub enum RestoreFrom<'a> {
    /// The contents of a header backup.
    Backup(&'a dyn Store),
    /// The backup copy at the end of the volume.
    Embedded,
}

/// A change that has been prepared, and what to know before and after it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prepared {
    /// What is to be written. Empty if all is as it should be.
    pub edit: Edit,
    /// The format's name.
    pub format: &'static str,
    /// Whether it is a hidden volume's header.
    pub hidden: bool,
    /// The keyslot that it is about.
    pub keyslot: Option<u32>,
    /// How keys are derived from now on, where that is part of the change.
    pub derivation: Option<Derivation>,
    /// What a person must know. Whole sentences.
    pub warnings: Vec<Warning>,
}

/// How a key is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Derivation {
    /// Hash, or the derivation's own name.
    pub hash: &'static str,
    /// Iterations, or passes over memory.
    pub iterations: u32,
    /// Bytes of memory that it fills, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// A header backup.
#[derive(Debug)]
#[non_exhaustive]
pub struct HeaderBackup {
    /// What the file is to contain: encrypted headers and random bytes.
    pub bytes: Vec<u8>,
    /// The format's name.
    pub format: &'static str,
    /// Which headers are in it: `primary`, `hidden`.
    pub headers: Vec<&'static str>,
    /// What a person must know. Whole sentences.
    pub warnings: Vec<Warning>,
}

/// What was found out about a volume's headers.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// The format's name.
    pub format: &'static str,
    /// Every copy that there is room for.
    pub copies: Vec<CopyReport>,
    /// What should look random.
    pub areas: Vec<AreaReport>,
    /// Whether a header that should open does not, or not as its twin does.
    pub damaged: bool,
    /// What a person must know. Whole sentences.
    pub warnings: Vec<Warning>,
}

/// One copy of a header.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// `primary`, `hidden`, `backup`, `hidden backup`.
    pub name: &'static str,
    /// Where it is, in bytes from the beginning.
    pub at: u64,
    /// What it is like.
    #[serde(flatten)]
    pub state: CopyState,
}

/// What a copy of a header is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "what")]
pub enum CopyState {
    /// It opens, and its checksums are right.
    Opens,
    /// It opens, but holds other keys or sizes than the copy before it.
    Differs(String),
    /// It opens, but a checksum or a field is wrong.
    Damaged(String),
    /// It looks random and does not open: it has another password, is damaged, or there is none.
    DoesNotOpen,
    /// There is something that is no header: text, zeros, a pattern.
    NoHeader,
}

/// A part of the store that ought to look random.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct AreaReport {
    /// What it is.
    pub name: &'static str,
    /// Sectors of 512 bytes that were looked at.
    pub sectors: u64,
    /// How many of them do not look random.
    pub not_random: u64,
    /// How many of those are zeros.
    pub zeros: u64,
}

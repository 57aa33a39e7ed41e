//! The requests for header changes, and their results.

use claviger_crypto::Secret;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::advice::Warning;
use crate::credential::{Credential, Unlock};
use crate::edit::Edit;
use crate::formats::bitlocker::TpmSealing;
use crate::spec::Cost;
use crate::store::Store;

/// A change of tokens, in which other programs store data in a header.
#[derive(Clone, Copy, Debug)]
pub enum TokenChange<'a> {
    /// Add a token: at a number, or the first free one.
    Import {
        /// The token, a JSON object.
        token: &'a Value,
        /// Its number.
        at: Option<u32>,
        /// Whether it may replace another token.
        replace: bool,
    },
    /// Remove a token.
    Remove(u32),
    /// Assign a token to a keyslot, or end the assignment.
    Assign {
        /// The token's number.
        token: u32,
        /// The keyslot's number.
        keyslot: u32,
        /// Whether to assign it.
        assigned: bool,
    },
}

/// A change of how the volume key is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// Add a clear key: anybody can open the volume until protection is resumed.
    Suspend,
    /// Remove the clear key, and replace the intermediate key in case somebody noted it.
    Resume,
    /// Replace the intermediate key, which the keyslots hold. All keyslots open the volume as before.
    NewKey,
}

/// A recovery password of a volume.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecoveryPassword {
    /// The number of its keyslot.
    pub keyslot: u32,
    /// The identifier by which people find it.
    pub guid: String,
    /// The password, as text.
    pub password: Secret,
}

/// Which keyslot to remove.
#[derive(Clone, Copy)]
pub enum Removal<'a> {
    /// The keyslot that this opens.
    Opened(&'a Unlock<'a>),
    /// The keyslot with this number, even if nothing opens it. If credentials are given, they must open another keyslot.
    Number(u32, Option<&'a Unlock<'a>>),
}

/// The attributes of a header apart from its keys. Those that are `None` stay the same.
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
    /// All persistent flags of the volume: `allow-discards`.
    pub flags: Option<&'a [String]>,
}

/// The credentials that open the volume from now on. Fields that are `None` stay the same.
#[derive(Default)]
pub struct NewCredential<'a> {
    /// The credentials, all of which are required together.
    pub credentials: &'a [Credential],
    /// Hash of the key derivation, by its name.
    pub hash: Option<&'a str>,
    /// VeraCrypt's "personal iterations multiplier", 0 for the default.
    pub pim: Option<u32>,
    /// The cost of the derivation, if the format lets one choose.
    pub cost: Cost<'a>,
    /// For a new keyslot: the size in bits of a fresh key for it, which is not that of the data.
    pub unbound_bits: Option<u32>,
    /// For a new or replaced keyslot: its token, in which the keyslot number is filled in.
    pub token: Option<&'a Map<String, Value>>,
    /// For a new or replaced protector of BitLocker: the TPM to which it is sealed.
    pub tpm: Option<&'a TpmSealing>,
}

/// The source for restoring a header.
#[derive(Clone, Copy)]
pub enum RestoreFrom<'a> {
    /// The contents of a header backup.
    Backup(&'a dyn Store),
    /// The backup copy at the end of the volume.
    Embedded,
}

/// A prepared change, with facts and warnings about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prepared {
    /// The edit. Empty if nothing has to change.
    pub edit: Edit,
    /// The format's name.
    pub format: &'static str,
    /// Whether the header is a hidden volume's.
    pub hidden: bool,
    /// The keyslot that is changed.
    pub keyslot: Option<u32>,
    /// The new key derivation, if it is part of the change.
    pub derivation: Option<Derivation>,
    /// Warnings, in whole sentences.
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
    /// How much memory it fills, in bytes, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// A header backup.
#[derive(Debug)]
#[non_exhaustive]
pub struct HeaderBackup {
    /// The contents of the file: encrypted headers and random bytes.
    pub bytes: Vec<u8>,
    /// The format's name.
    pub format: &'static str,
    /// The headers in it: `primary`, `hidden`.
    pub headers: Vec<&'static str>,
    /// Warnings, in whole sentences.
    pub warnings: Vec<Warning>,
}

/// The result of checking a volume's headers.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// The format's name.
    pub format: &'static str,
    /// Every copy that the volume's size allows.
    pub copies: Vec<CopyReport>,
    /// The areas that should look random.
    pub areas: Vec<AreaReport>,
    /// Whether a header that should open does not, or differs from its twin.
    pub damaged: bool,
    /// Warnings, in whole sentences.
    pub warnings: Vec<Warning>,
}

/// One copy of a header.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// `primary`, `hidden`, `backup`, `hidden backup`.
    pub name: &'static str,
    /// Its offset, in bytes.
    pub at: u64,
    /// Its condition.
    #[serde(flatten)]
    pub state: CopyState,
}

/// The condition of one copy of a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "what")]
pub enum CopyState {
    /// It opens, and its checksums are right.
    Opens,
    /// It opens, but holds other keys or sizes than the previous copy.
    Differs(String),
    /// It opens, but a checksum or a field is wrong.
    Damaged(String),
    /// It looks random and does not open: it has another password, is damaged, or does not exist.
    DoesNotOpen,
    /// There is something other than a header: text, zeros, a pattern.
    NoHeader,
}

/// A part of the store that ought to look random.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct AreaReport {
    /// Its name.
    pub name: String,
    /// How many sectors of 512 bytes were checked.
    pub sectors: u64,
    /// How many of them do not look random.
    pub not_random: u64,
    /// How many of those are all zeros.
    pub zeros: u64,
    /// The damaged parts, if they are located.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<AreaDamage>,
}

/// A damaged part of an area.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct AreaDamage {
    /// Its offset in the store, in bytes.
    pub at: u64,
    /// Its size, in bytes: whole sectors.
    pub len: u64,
    /// What its bytes are: `zeros`, `text`, `the start of an ext4 file system`, `not random`.
    pub what: String,
}

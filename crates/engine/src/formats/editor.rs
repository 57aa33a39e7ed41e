//! Changing, saving, restoring and checking headers.

use serde::Serialize;

use crate::credential::{Credential, Unlock};
use crate::edit::Edit;
use crate::error::Result;
use crate::store::Store;

/// What changes a format's headers. It builds [`Edit`]s and carries none out: nothing here writes.
///
/// It belongs to the format and not to a header that was read, because headers are restored where there are none any more.
pub trait KeyslotEditor: Sync {
    /// What is to be written so that `new` opens the volume that `with` opens now, and `with` does not any more. The volume's
    /// key, its data and all other volumes in the store stay as they are.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` for new credentials that the format does not take, and where only a backup of the
    /// header opens: that is to be restored first.
    fn change(&self, store: &dyn Store, with: &Unlock<'_>, new: &NewCredential<'_>) -> Result<Prepared>;

    /// The contents of a header backup, encrypted with new salt: the header that `with` opens and, if given, that of the
    /// hidden volume which `hidden` opens.
    ///
    /// # Errors
    /// Those of `Header::unlock`; `Misuse` if `hidden` opens no hidden volume, or `with` and `hidden` open the same one.
    fn back_up(&self, store: &dyn Store, with: &Unlock<'_>, hidden: Option<&Unlock<'_>>) -> Result<HeaderBackup>;

    /// What is to be written so that the header which `with` opens in a backup opens the volume again.
    ///
    /// # Errors
    /// `WrongCredential` if nothing in the backup opens; `NotThisFormat` for what is no header backup; `Misuse` if it does not
    /// fit the volume, or nothing shows that it belongs to it and `unproven` is false.
    fn restore(&self, store: &dyn Store, from: RestoreFrom<'_>, with: &Unlock<'_>, unproven: bool) -> Result<Prepared>;

    /// Looks at every copy of the header, and at what should look random.
    ///
    /// # Errors
    /// Those of `Header::unlock`: some copy has to open.
    fn verify(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Verified>;
}

/// What is to open the volume from now on. What is `None` stays as it is.
pub struct NewCredential<'a> {
    /// All of them together.
    pub credentials: &'a [Credential],
    /// Hash of the key derivation, by its name.
    pub hash: Option<&'a str>,
    /// VeraCrypt's "personal iterations multiplier", 0 for the default.
    pub pim: Option<u32>,
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
pub struct Prepared {
    /// What is to be written. Empty if all is as it should be.
    pub edit: Edit,
    /// The format's name.
    pub format: &'static str,
    /// Whether it is a hidden volume's header.
    pub hidden: bool,
    /// Hash of the key derivation from now on.
    pub hash: &'static str,
    /// Iterations from now on.
    pub iterations: u32,
    /// What a person must know. Whole sentences.
    pub warnings: Vec<String>,
}

/// A header backup.
#[derive(Debug)]
pub struct HeaderBackup {
    /// What the file is to contain: encrypted headers and random bytes.
    pub bytes: Vec<u8>,
    /// The format's name.
    pub format: &'static str,
    /// Which headers are in it: `primary`, `hidden`.
    pub headers: Vec<&'static str>,
    /// What a person must know. Whole sentences.
    pub warnings: Vec<String>,
}

/// What was found out about a volume's headers.
#[derive(Debug, Serialize)]
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
    pub warnings: Vec<String>,
}

/// One copy of a header.
#[derive(Debug, Serialize)]
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

//! The formats, and the table of all of them.

pub mod bitlocker;
mod change;
mod creator;
pub mod dmg;
mod editor;
mod facts;
pub mod filevault2;
mod filling;
mod find;
mod format;
mod header;
mod header_facts;
mod headerless;
mod in_place;
mod in_use;
pub mod integritysetup;
pub mod loopaes;
mod luks;
pub mod luks1;
pub mod luks2;
mod occupied;
pub mod partition;
pub mod plain;
mod plan;
mod resizing;
mod sealed;
mod several;
pub mod takes;
pub mod truecrypt;
mod unencrypted;

pub use change::{
    AreaDamage, AreaReport, CopyReport, CopyState, Derivation, HeaderAttributes, HeaderBackup, NewCredential, Prepared,
    Protection, RecoveryPassword, Removal, RestoreFrom, TokenChange, Verified,
};
use creator::stored_behind;
pub use creator::{Choices, Creator, HiddenRoom, creator_of};
pub use editor::HeaderEditor;
pub use facts::{Facts, Pbkdf2Facts, WhichHeader};
pub use find::{by_name, by_reason, named, open, open_by_backup, same_name};
pub use format::{Format, HeaderTrace};
use header::wiped;
pub use header::{Header, KeyMark, Unlocked};
pub use header_facts::{FactUnit, FormatFacts, HeaderFacts, KeyslotFacts};
pub use in_place::{
    Consent, InPlaceConversion, InPlaceConverter, InPlaceStores, KeyProcesses, KeylessConversion, Reencrypter,
    ReencryptionRequest, Towards, convertible,
};
pub use in_use::VolumeInUse;
pub use occupied::occupied;
pub use plan::{PlannedSlot, UnlockPlan};
pub use resizing::Resizing;
pub use sealed::{Releaser, Sealed};

pub use crate::verdict::Verdict;

/// Every format.
pub static FORMATS: &[&dyn Format] = &[
    &truecrypt::TRUECRYPT,
    &truecrypt::VERACRYPT,
    &luks1::LUKS1,
    &luks2::LUKS2,
    &bitlocker::BITLOCKER,
    &filevault2::FILEVAULT2,
    &dmg::DMG,
    &integritysetup::DM_INTEGRITY,
    &plain::PLAIN,
    &plain::CRYPTOLOOP,
    &loopaes::LOOP_AES,
];

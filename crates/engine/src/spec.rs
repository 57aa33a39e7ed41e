//! The parameters of a new volume.

use std::sync::atomic::AtomicBool;

use claviger_crypto::Secret;
use serde::Serialize;

use crate::store::Store;

/// How a volume is created. `None` means the format's default.
#[derive(Default)]
pub struct Spec<'a> {
    /// Name of the cipher or cascade.
    pub cipher: Option<&'a str>,
    /// Name of the key derivation's hash.
    pub hash: Option<&'a str>,
    /// Size of a new hidden volume's plaintext, in bytes; by default the largest safe one.
    pub hidden_size: Option<u64>,
    /// The PIM, for formats that have one; 0 means none.
    pub pim: Option<u32>,
    /// The cost of deriving a key, for formats with a choice.
    pub cost: Cost<'a>,
    /// Size of the volume key, in bits.
    pub key_bits: Option<u32>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// How the data are protected against changes: `hmac-sha256`, `aead` and whatever else the format supports.
    pub integrity: Option<&'a str>,
    /// The UUID as text; random by default.
    pub uuid: Option<&'a str>,
    /// The label.
    pub label: Option<&'a str>,
    /// The subsystem, a second label.
    pub subsystem: Option<&'a str>,
    /// The volume key; random by default.
    pub volume_key: Option<&'a Secret>,
    /// Offset of the data, in bytes.
    pub data_offset: Option<u64>,
    /// Size of one copy of the header, in bytes, for formats with a choice.
    pub metadata_size: Option<u64>,
    /// Total size of the keyslots area, in bytes, for formats with a choice.
    pub keyslots_size: Option<u64>,
    /// The device for the data if the header is detached; the header then goes to the store.
    pub data: Option<&'a dyn Store>,
    /// Whether to create a discovery volume in front, for formats that have one: files that explain the rest to any system.
    pub discovery: bool,
    /// Where the format places its reserved areas in the plaintext.
    pub reserved_at: ReservedAt<'a>,
    /// Whether to leave the data area unchanged instead of filling it with random-looking bytes.
    pub quick: bool,
    /// Set to stop. The store then holds no volume.
    pub cancel: Option<&'a AtomicBool>,
    /// Called with the bytes filled so far and the total.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

/// Where a new volume has the reserved areas in its plaintext, for formats with reserved areas: see [`Reserved`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedAt<'a> {
    /// At the end: the user only needs to know how large a file system may be.
    #[default]
    AtEnd,
    /// In the middle, with copies far from each other, for a file system that can avoid these areas.
    Spread,
    /// At these offsets, in bytes: one for each area, in order.
    At(&'a [u64]),
}

/// An area of a volume's plaintext that its format reserves: no file system may use it for anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Reserved {
    /// What is there.
    pub what: &'static str,
    /// The name of the file that represents it in an NTFS, folders separated by `/`.
    pub file: &'static str,
    /// Its offset, in bytes.
    pub offset: u64,
    /// Its size, in bytes.
    pub size: u64,
}

/// The cost of deriving a key from a passphrase. `None` means the format's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost<'a> {
    /// The key derivation function: `pbkdf2`, `argon2i`, `argon2id`.
    pub kdf: Option<&'a str>,
    /// How long one derivation should take on this machine, in milliseconds. Parameters that are not given below are benchmarked to
    /// match.
    pub time_ms: Option<u32>,
    /// Exact iterations of PBKDF2, or passes over Argon2's memory.
    pub iterations: Option<u32>,
    /// Argon2's memory, in KiB: the maximum if the time is benchmarked, the exact amount otherwise.
    pub memory_kib: Option<u32>,
    /// Argon2's lanes.
    pub lanes: Option<u32>,
}

//! What a new volume is to be.

use std::sync::atomic::AtomicBool;

use claviger_crypto::Secret;

use crate::store::Store;

/// How a volume is created. What is `None` takes the format's default.
#[derive(Default)]
pub struct Spec<'a> {
    /// Cipher or cascade, by its name.
    pub cipher: Option<&'a str>,
    /// Hash of the key derivation, by its name.
    pub hash: Option<&'a str>,
    /// Size of a new hidden volume's plaintext, in bytes; the largest safe one where none is given.
    pub hidden_size: Option<u64>,
    /// The PIM, for formats that have one. 0 is the same as none.
    pub pim: Option<u32>,
    /// What deriving a key from the credentials is to cost, for formats that let one choose.
    pub cost: Cost<'a>,
    /// Size of the volume key, in bits.
    pub key_bits: Option<u32>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// What protects the data from changes: `hmac-sha256`, `aead` and what else the format has.
    pub integrity: Option<&'a str>,
    /// The UUID, as text; a random one if there is none.
    pub uuid: Option<&'a str>,
    /// The label.
    pub label: Option<&'a str>,
    /// The subsystem, a second label.
    pub subsystem: Option<&'a str>,
    /// The volume key; a random one if there is none.
    pub volume_key: Option<&'a Secret>,
    /// Where the data are to begin, in bytes.
    pub data_offset: Option<u64>,
    /// Size of one copy of the header, in bytes, for formats that let one choose.
    pub metadata_size: Option<u64>,
    /// Size of the area of all keyslots, in bytes, for formats that let one choose.
    pub keyslots_size: Option<u64>,
    /// What the data go to, where the header is to be detached: it goes to the store.
    pub data: Option<&'a dyn Store>,
    /// Whether to leave the data area as it is instead of filling it with random-looking bytes.
    pub quick: bool,
    /// Whether to stop. What is then there is no volume.
    pub cancel: Option<&'a AtomicBool>,
    /// Told of the bytes filled so far and of all there are.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

/// What deriving a key from a passphrase is to cost. What is `None` takes the format's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost<'a> {
    /// The derivation: `pbkdf2`, `argon2i`, `argon2id`.
    pub kdf: Option<&'a str>,
    /// How long one derivation is to take on this machine, in milliseconds: what is not given below is measured for it.
    pub time_ms: Option<u32>,
    /// Iterations of PBKDF2, or passes over Argon2's memory, exactly.
    pub iterations: Option<u32>,
    /// Argon2's memory, in KiB: at most so much where the time is measured, exactly so much otherwise.
    pub memory_kib: Option<u32>,
    /// Argon2's lanes.
    pub lanes: Option<u32>,
}

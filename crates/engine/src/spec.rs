//! What a new volume is to be.

use std::sync::atomic::AtomicBool;

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
    /// Whether to leave the data area as it is instead of filling it with random-looking bytes.
    pub quick: bool,
    /// Whether to stop. What is then there is no volume.
    pub cancel: Option<&'a AtomicBool>,
    /// Told of the bytes filled so far and of all there are.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

//! How fast ciphers are in memory, and which of their kernels did the work.

use serde::{Deserialize, Serialize};

use crate::model::statistics::Spread;

/// One line of the window: a suite and a buffer size. Speeds are in bytes per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CipherSpeed {
    /// Cipher or cascade.
    pub cipher: String,
    /// Buffer size in bytes.
    pub buffer_bytes: usize,
    /// Threads that worked on it.
    pub threads: usize,
    /// Bytes that a thread takes at a time; the whole buffer where one thread does it all.
    pub piece_bytes: usize,
    /// Sector size in bytes.
    pub sector_bytes: usize,
    /// TrueCrypt's line `Hardware-accelerated AES`.
    pub acceleration: AesAcceleration,
    /// Whether this suite made use of AES instructions.
    pub aes_instructions: bool,
    /// The kernels that did the work.
    pub kernel: String,
    /// Median speed of encryption.
    pub encrypt_bytes_per_s: f64,
    /// Median speed of decryption.
    pub decrypt_bytes_per_s: f64,
    /// Arithmetic mean of the two, as TrueCrypt has it.
    pub mean_bytes_per_s: f64,
    /// Samples for each direction.
    pub repeats: usize,
    /// Passes over the buffer in each sample.
    pub passes: usize,
    /// Spread of encryption.
    pub encrypt_spread: Spread,
    /// Spread of decryption.
    pub decrypt_spread: Spread,
    /// All samples of encryption, in order.
    pub encrypt_samples: Vec<f64>,
    /// All samples of decryption, in order.
    pub decrypt_samples: Vec<f64>,
    /// The processor's name.
    pub cpu_model: String,
    /// This program's version.
    pub program_version: String,
    /// Date and time when the measurement began, UTC.
    pub measured_at: String,
}

/// Whether ciphers used the processor's AES instructions. TrueCrypt's window has a line for it: Yes, No, N/A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AesAcceleration {
    /// The processor has them, and AES uses them.
    #[serde(rename = "on")]
    On,
    /// The processor has them, and they were switched off.
    #[serde(rename = "off")]
    Off,
    /// The processor has none that a kernel of ours can use.
    #[serde(rename = "not available")]
    NotAvailable,
}

/// The kernels that a cipher runs on here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CipherKernels {
    /// Name of the cipher.
    pub cipher: String,
    /// The kernel when AES instructions are allowed.
    pub accelerated: String,
    /// The kernel when they are not.
    pub without_aes_instructions: String,
}

//! Bytes in, bytes out: the ciphers, modes, hashes and key derivations of storage encryption.
//!
//! Nothing here does I/O. `unsafe` is allowed file by file, for vector intrinsics, locked memory, and the hand-over of
//! borrowed buffers to worker threads.
#![deny(unsafe_code)]

pub mod afsplit;
pub mod argon2;
mod chain;
pub mod ciphers;
pub mod dmcrypt;
pub mod hash;
pub mod kdf;
pub mod modes;
pub mod pool;
mod registers;
pub mod secret;
mod tweak;

pub use ciphers::{Acceleration, BlockCipher, CIPHERS, Cipher, Kernel};
pub use modes::SectorCipher;
pub use secret::Secret;

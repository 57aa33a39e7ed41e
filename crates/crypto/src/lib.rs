//! The ciphers, modes, hashes and key derivations of storage encryption: bytes in, bytes out, no I/O.
//!
//! ```text
//!  passphrase ──▶ hash, argon2 ──▶ afsplit ──▶ key, a Secret
//!               key derivation     (LUKS)       │
//!                                               ▼
//!  "aes-xts-plain64" ──▶ dmcrypt ─────▶ modes: XTS, CBC, LRW …  ◀── ciphers: AES, Serpent, Twofish …
//!                                               │                   the fastest kernel of this processor
//!                                               ▼
//!                            SectorCipher: encrypts and decrypts runs of sectors in place
//! ```
//!
//! * [`dmcrypt`] turns a cipher specification in cryptsetup's notation, and a key, into a [`SectorCipher`]. Start here.
//! * [`modes`] builds one from block ciphers: XTS, also with cascades, CBC, LRW, Adiantum; [`modes::aead`] adds a tag to each sector.
//! * [`ciphers`] are block ciphers in one table, [`CIPHERS`], each with several kernels. The fastest one that this processor can
//!   run, and whose timing reveals no secret, comes first.
//! * [`hash`] has the hash functions, PBKDF2 and HKDF, [`argon2`] Argon2i and Argon2id, [`scrypt`](mod@scrypt) scrypt, [`afsplit`] the
//!   anti-forensic splitter of LUKS, [`stretch`] the key stretch of BitLocker. [`ccm`] seals keys, as BitLocker does, [`gcm`] as JWEs do.
//! * [`password_strength`] estimates how long a search for a new password would take, with the key derivation that it gets.
//! * [`secret`] holds keys in memory that is locked, left out of core dumps and wiped. [`pool`] shares work out over threads.
//!
//! # A sector, encrypted and decrypted
//!
//! ```
//! use claviger_crypto::Acceleration;
//! use claviger_crypto::dmcrypt::{Sectors, Specification};
//!
//! let specification = Specification::parse("aes-xts-plain64").expect("a specification");
//! let key = [0x5a; 64]; // 256 bits for the data, 256 for the tweaks
//! let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("a key that fits");
//!
//! let plaintext = *b"What nobody else shall read.    ";
//! let mut sectors = plaintext.repeat(32); // two sectors of 512 bytes
//! cipher.encrypt(7, &mut sectors); // they are sectors 7 and 8 of the disk
//! assert_ne!(sectors[..512], sectors[512..], "equal sectors differ once they are encrypted");
//! cipher.decrypt(7, &mut sectors);
//! assert_eq!(sectors, plaintext.repeat(32));
//! ```
//!
//! # A key from a passphrase
//!
//! ```
//! use claviger_crypto::{Secret, hash};
//!
//! // The test vector of RFC 6070, section 2. A real volume has many more iterations.
//! let sha1 = hash::by_name("sha1").expect("a hash");
//! let mut key = Secret::zeroed(20);
//! let finished = sha1.pbkdf2(b"password", b"salt", 2, &mut key, &|| true); // `false` would cancel it
//! assert!(finished && key.same_as(b"\xea\x6c\x01\x4d\xc7\x2d\x6f\x8c\xcd\x1e\xd9\x2a\xce\x1d\x41\xf0\xd8\xde\x89\x57"));
//! ```
//!
//! # What it does not do
//!
//! This crate knows no format and opens no file: `claviger-engine` does. Wrong lengths are the caller's mistakes and panic; only
//! what comes from a header or a person is an error. `unsafe` is allowed file by file, for vector intrinsics, locked memory, and
//! the hand-over of borrowed buffers to worker threads. The examples `kernels` and `dm_crypt` measure how fast all this is.
#![deny(unsafe_code)]

pub mod afsplit;
pub mod argon2;
pub mod ccm;
mod chain;
pub mod ciphers;
pub mod dmcrypt;
pub mod ec;
pub mod gcm;
pub mod gf256;
pub mod hash;
mod kdf;
pub mod key_wrap;
pub mod md5crypt;
pub mod modes;
pub mod password_strength;
pub mod pool;
mod registers;
pub mod rsa;
pub mod scrypt;
pub mod secret;
pub mod shares;
pub mod stretch;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod tweak;
#[cfg(target_arch = "x86_64")]
mod vbmi;

pub use ciphers::{Acceleration, BlockCipher, CIPHERS, Cipher, Kernel};
pub use modes::SectorCipher;
pub use secret::Secret;

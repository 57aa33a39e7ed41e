//! Finds, opens, creates and changes encrypted volumes and folders in user space, without root and without a kernel module: TrueCrypt,
//! VeraCrypt, LUKS1, LUKS2, plain dm-crypt, cryptoloop, loop-AES, BitLocker, dm-integrity, eCryptfs and NTFS EFS. FileVault 2 is read.
//!
//! ```text
//!  a path or Store                    credentials
//!        │                                 │
//!     Opening ──find──▶ Header ──────── unlock ──▶ Layout ──▶ Volume ──▶ filesystems ──▶ Tree
//!        │  the store, the partition in it,        segments,   a Store of        names over
//!        │  the format: one of FORMATS             ciphers     plaintext         its bytes
//!        │
//!        └─ a folder ──▶ FileFormat ─── unlock ──▶ FileKeys ──▶ Stacked
//!              one of FILE_FORMATS                 a Layout      a Tree of
//!                                                  per file      plaintext
//! ```
//!
//! A format turns a store and a credential into a [`Layout`], which is plain data: which bytes are where, and what decrypts them.
//! Only a [`Volume`] executes layouts. So data take the same path in every format.
//!
//! * [`opening`] is the way in: from a path to a [`Volume`], or to the files of a folder.
//! * [`credential`] has what opens a volume and what narrows the trials; [`spec`] has the parameters of a new volume.
//! * [`formats`] has the table [`FORMATS`] and the traits behind it; [`file_formats`] has the same for encrypted folders.
//! * [`volume`] has layouts and volumes; [`store`] has the stores below them: files, block devices, memory, and your own.
//! * [`trees`] has the files and folders of a file system; [`filesystems`] reads those inside a volume, and writes FAT and exFAT.
//!   [`partitions`] finds the partitions of a disk, [`logical_volumes`] the logical volumes of LVM2, and [`arrays`] assembles Linux
//!   RAID arrays.
//! * [`edit`] changes headers in such a way that a crash leaves a volume that opens; [`copy_volume`] copies a volume into another.
//! * [`password_strength`] estimates how long a search for a new password would take, with the key derivation that it gets.
//! * [`diagnosis`] explains why something does not open. An [`Error`] says what is wrong and where, and [`Advice`] what the user can
//!   do, as data.
//!
//! # Open and read
//!
//! ```no_run
//! use claviger_engine::{Credential, Opening, Secret, Store, Unlock};
//!
//! let locked = Opening::path("old.tc").find()?;
//! let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
//! let opened = locked.unlock(&Unlock::with(&passphrase))?.bytes()?;
//! println!("{}: {} bytes", opened.facts.format, opened.volume.len());
//! let mut start = vec![0; 512];
//! opened.volume.read_at(0, &mut start)?;
//! # Ok::<(), claviger_engine::Error>(())
//! ```
//!
//! Nothing is written unless [`Opening::access`] allows it. The example `read` copies a whole volume.
//!
//! # Create
//!
//! ```
//! use std::sync::Arc;
//! use claviger_engine::spec::Cost;
//! use claviger_engine::store::MemoryStore;
//! use claviger_engine::{Credential, Opening, Secret, Spec, Store, Unlock, formats};
//!
//! let store: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0; 4 << 20]));
//! let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
//! // So cheap a derivation is for examples only. What a Spec does not say is the format's default.
//! let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
//! formats::by_name("LUKS1")?.create(&*store, &Spec { cost, ..Spec::default() }, &passphrase)?;
//!
//! let opened = Opening::store(store).find()?.unlock(&Unlock::with(&passphrase))?.bytes()?;
//! assert_eq!(opened.facts.format, "LUKS1");
//! # Ok::<(), claviger_engine::Error>(())
//! ```
//!
//! The example `create` does that in a file, with its progress.
//!
//! # List the files inside
//!
//! ```no_run
//! use std::sync::Arc;
//! use claviger_engine::filesystems;
//! # use claviger_engine::{Credential, Opening, Secret, Unlock};
//! # let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
//! # let opened = Opening::path("old.tc").find()?.unlock(&Unlock::with(&passphrase))?.bytes()?;
//!
//! let (filesystem, tree) = filesystems::open(Arc::new(opened.volume))?;
//! println!("{}", filesystem.kind.name());
//! for entry in tree.list(tree.root())? {
//!     println!("{}", entry.name.display());
//! }
//! # Ok::<(), claviger_engine::Error>(())
//! ```
//!
//! # A store of one's own
//!
//! A volume may be in anything with positioned reads and writes that implements [`Store`].
//!
//! ```
#![doc = include_str!("../examples/own_store.rs")]
//! ```
//!
//! # A format of one's own
//!
//! ```
#![doc = include_str!("../examples/own_format.rs")]
//! ```
//!
//! # What to keep in mind
//!
//! * A volume is locked for as long as its [`FileStore`](store::FileStore) is open: readers share a file, a writer has it alone.
//! * [`Store::write_clobbering`] encrypts in the caller's buffer, which holds ciphertext afterwards. [`Store::flush`] makes writes durable.
//! * A key derivation takes seconds, or as long as a hostile header demands. To limit it, use [`Unlock::may_take`],
//!   [`Unlock::memory`] and [`Unlock::cancel`].
//! * A large read or write uses several processors if [`Volume::with_pool`] gives it a [`Pool`].
//! * Types that are only returned, such as [`Facts`](formats::Facts), are `non_exhaustive` and may get more fields. Types that the
//!   caller fills in, such as [`Spec`] and [`Unlock`], may also get more fields: end them with `..Spec::default()` and
//!   `..Unlock::with(credentials)`.
//!
//! `claviger-serve` serves stores and trees to other programs, as a mount or over NBD.
#![forbid(unsafe_code)]

pub mod advice;
pub mod arrays;
pub mod clevis;
mod copied_text;
pub mod copy_volume;
mod crc32c;
pub mod credential;
pub mod deadline;
pub mod diagnosis;
pub mod edit;
pub mod error;
pub mod fido2;
pub mod file_formats;
pub mod filesystems;
pub mod formats;
#[doc(hidden)]
pub mod fuzzing;
mod hex;
#[doc(hidden)]
pub mod internal;
pub mod key_process;
mod little_endian;
pub mod logical_volumes;
pub mod memory;
pub mod opening;
mod parameters;
pub mod partitions;
pub mod private_keys;
pub mod recovery;
mod shards;
pub mod spec;
pub mod store;
pub mod tpm2;
pub mod trees;
mod verdict;
pub mod volume;

pub(crate) use internal::{in_order, random};

pub use advice::{Advice, Warning};
pub use claviger_crypto::dmcrypt::{Sectors, Specification};
pub use claviger_crypto::pool::Pool;
pub use claviger_crypto::{Acceleration, Secret, SectorCipher, password_strength};
pub use credential::{Credential, Protect, Unlock};
pub use edit::Edit;
pub use error::{Error, ErrorKind, Result};
pub use file_formats::{FILE_FORMATS, FileFormat};
pub use formats::{FORMATS, Format, Header, HiddenRoom, Unlocked, Verdict};
pub use opening::{Opened, Opening};
pub use spec::Spec;
pub use store::Store;
pub use volume::{Layout, Payload, Segment, Volume};

//! Identifies, opens and creates encrypted volumes in user space, without root and without a kernel module.
//!
//! A format turns a store and a credential into a layout, which is plain data; a [`Volume`] alone carries layouts out.
//!
//! ```no_run
//! use claviger_engine::{Credential, Opening, Secret, Store, Unlock};
//!
//! let locked = Opening::path("old.tc").find()?;
//! let passphrase = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
//! let opened = locked.unlock(&Unlock::with(&passphrase))?.bytes()?;
//! println!("{}: {} bytes", opened.facts.format, opened.volume.len());
//! # Ok::<(), claviger_engine::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod advice;
pub mod convert;
pub mod credential;
pub mod diagnosis;
pub mod edit;
pub mod error;
pub mod file_formats;
pub mod filesystems;
pub mod formats;
pub mod free_tail;
#[doc(hidden)]
pub mod fuzzing;
mod hex;
pub mod memory;
pub mod opening;
pub mod partitions;
pub mod random;
pub mod spec;
pub mod store;
pub mod trees;
pub mod volume;

pub use advice::{Advice, Warning};
pub use claviger_crypto::{Acceleration, Secret, SectorCipher};
pub use credential::{Credential, Protect, Unlock};
pub use edit::Edit;
pub use error::{Error, ErrorKind, Result};
pub use file_formats::{FILE_FORMATS, FileFormat};
pub use formats::{FORMATS, Format, Header, HiddenRoom, Unlocked, Verdict};
pub use opening::{Opened, Opening};
pub use spec::Spec;
pub use store::Store;
pub use volume::{Layout, Payload, Segment, Volume};

//! Layouts and folders whose keys another process, the key process, holds: what both sides need. The implementation of
//! [`KeyProcess`] decides how the two communicate: `claviger-serve` uses shared memory.
//!
//! * [`volume`] is for volumes, [`folder`] for encrypted folders.

pub mod folder;
mod handle;
mod key;
pub mod volume;

pub use handle::{KeyHandle, KeyProcess, PartAccess, StoredAccess};
pub use key::Refused;

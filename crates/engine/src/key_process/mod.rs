//! Layouts and folders whose keys another process, the key process, holds: what both sides need. How the two talk is up to whoever
//! implements [`KeyProcess`](volume::KeyProcess): `claviger-serve` uses shared memory.
//!
//! * [`volume`] is for volumes, [`folder`] for encrypted folders.

pub mod folder;
pub mod volume;

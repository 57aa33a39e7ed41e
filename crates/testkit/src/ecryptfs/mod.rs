//! eCryptfs without our engine: the kernel's own, the programs of ecryptfs-utils, and a maker of folders of every kind.
//!
//! Nothing here uses the engine's code for eCryptfs: each checks the other.

pub mod kernel;
pub mod maker;
pub mod utils;

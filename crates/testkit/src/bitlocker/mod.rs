//! BitLocker as others know it: programs that read and write its volumes, and a maker of volumes of every kind.
//!
//! Nothing here knows the engine's code for BitLocker, so that one checks the other.

pub mod crypto;
mod discovery;
pub mod maker;
pub mod metadata;
pub mod oracles;

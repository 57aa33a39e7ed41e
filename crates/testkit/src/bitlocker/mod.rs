//! BitLocker without our engine: other programs that read and write its volumes, and a maker of volumes of every kind.
//!
//! Nothing here uses the engine's code for BitLocker, so each checks the other.

pub mod crypto;
pub mod damage;
mod discovery;
pub mod eow;
pub mod maker;
pub mod metadata;
pub mod oracles;

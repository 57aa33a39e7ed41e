//! BitLocker as others know it: programs that read and write its volumes.
//!
//! Nothing here knows the engine's code for BitLocker, so that one checks the other.

pub mod oracles;

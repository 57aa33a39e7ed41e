//! LUKS2 (LUKS2 On-Disk Format Specification 1.1.x).

pub mod binary;
pub mod metadata;
pub mod read;
pub mod validate;

pub use read::{CopyState, ReadHeader, read, read_secondary};

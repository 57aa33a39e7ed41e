//! LUKS2 (LUKS2 On-Disk Format Specification 1.1.x).

pub mod metadata;

//! FAT12, FAT16 and FAT32 with long names.
//!
//! Facts are of Microsoft's "FAT: General Overview of On-Disk Format" (version 1.03, 2000), called "the specification" here,
//! and of what Linux, mtools and dosfstools do where it leaves a choice.

pub mod boot;

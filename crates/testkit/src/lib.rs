//! Vectors, slow scalar reference ciphers, faulty stores and third-party programs, for the tests of the other crates.
#![deny(unsafe_code)] // allowed in posix::sys and faults::sys, for system calls that have no safe form

pub mod bitlocker;
pub mod ceph;
pub mod certificates;
pub mod dmg;
pub mod dpapi;
pub mod ecryptfs;
pub mod efs;
pub mod ewf;
pub mod exfat;
#[cfg(target_arch = "x86_64")]
pub mod faults;
pub mod filevault2;
pub mod floors;
pub mod fsx;
pub mod log_writes;
pub mod lvm2;
pub mod mounts;
pub mod operations;
pub mod posix;
pub mod processes;
pub mod raid;
pub mod random;
pub mod reference;
pub mod stores;
pub mod stress;
pub mod terminal;
pub mod tools;
pub mod uml;
pub mod vectors;
pub mod web;

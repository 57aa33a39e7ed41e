//! Vectors, slow scalar reference ciphers, faulty stores and third-party programs, for the tests of the other crates.
#![forbid(unsafe_code)]

pub mod fsx;
pub mod mounts;
pub mod processes;
pub mod random;
pub mod reference;
pub mod stores;
pub mod tools;
pub mod uml;
pub mod vectors;

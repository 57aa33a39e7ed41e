//! Vectors, slow reference ciphers and faulty stores, for the tests of the other crates.
#![forbid(unsafe_code)]

pub mod random;
pub mod reference;
pub mod vectors;

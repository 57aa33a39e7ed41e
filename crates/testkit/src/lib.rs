//! Vectors, slow scalar reference ciphers and faulty stores, for the tests of the other crates.
#![forbid(unsafe_code)]

//! Measures what storage encryption costs on this machine.
//!
//! Three questions, each with a module that asks it and plain data that answers it:
//! [`benchmark`] how fast the ciphers are in memory, as TrueCrypt's benchmark window shows it; [`derivation`] what a
//! wrong password costs; [`compare`] what encryption takes away from reads and writes of a given block size.
//! [`report`] turns the answers into text and CSV; JSON comes from the same structs through serde.
#![forbid(unsafe_code)]

pub mod benchmark;
pub mod compare;
pub mod derivation;
pub mod kernel;
pub mod machine;
pub mod memory;
pub mod random;
pub mod report;
pub mod served;
pub mod statistics;
pub mod suites;
pub mod targets;
pub mod workload;

//! Measures what storage encryption costs on this machine.
//!
//! Four questions, each with a module that asks it and plain data that answers it: [`benchmark`] how fast the ciphers
//! are in memory, as TrueCrypt's benchmark window shows it; [`derivation`] what a wrong password costs; [`compare`]
//! what encryption takes away from reads and writes of a given block size, in one process; [`run`] what whole
//! facilities, ours and others, take away from what people do with a disk.
//!
//! A run is data all the way: a [`facility::Facility`] says by which commands something is made, opened and closed; a
//! [`workloads::Workload`] does something with what is open and gives [`run::Measure`]s; a [`run::Run`] holds them raw;
//! a [`summary::Summary`] is computed from that, whenever it is wanted. [`report`] turns all of it into text, CSV and
//! HTML; JSON comes from the same structs through serde.
#![forbid(unsafe_code)]

pub mod benchmark;
pub mod changes;
pub mod derivation;
pub mod facility;
#[cfg(test)]
mod hostile;
pub mod machine;
pub mod memory;
pub mod meter;
pub mod program;
pub mod published;
pub mod random;
pub mod recommend;
pub mod report;
pub mod run;
pub mod statistics;
pub mod study;
pub mod suites;
pub mod summary;
pub mod transfer;
pub mod workloads;

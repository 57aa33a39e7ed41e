//! Whatever touches the machine: facilities, workloads, and the runs that put them together.

pub mod benchmark;
pub mod derivation;
pub mod facility;
pub mod lab;
pub mod machine;
pub mod memory;
pub mod meter;
mod names;
mod processes;
pub mod program;
pub mod run;
pub mod studies;
pub mod suites;
pub mod transfer;
pub mod workloads;

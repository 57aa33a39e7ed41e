//! Measures what storage encryption costs on this machine.
//!
//! Three floors, each of which knows only those below it:
//!
//! - [`model`]: the data. A [`plan`](model::plan::Plan), the raw [`figures`](model::figures::Run) of a run, a
//!   [`study`](model::study::Study) that is repeated, what others [published](model::published), and
//!   [words](model::words) for all of it.
//! - [`measure`]: what touches the machine. A [`facility`](measure::facility::Facility) lists the commands that make,
//!   open and close something; a [`workload`](measure::workloads::Workload) does something with an open facility;
//!   [`run`](measure::run) does all of them in turns and keeps the figures.
//! - [`show`]: what follows from the figures. A [`summary`](show::summary::Summary) is computed from a run whenever it
//!   is wanted; [`report`](show::report) turns it into text, CSV and HTML; JSON comes from the same structs through
//!   serde.
#![forbid(unsafe_code)]

// Helpers shared by unit tests and tests/it call this crate by its name.
#[cfg(test)]
extern crate self as claviger_lab;

#[cfg(test)]
mod hostile;
pub mod measure;
pub mod model;
pub mod show;

//! The integration tests, as one program: linking is most of what building them takes.

mod benchmark;

mod common;
mod convert;
mod credentials;
mod documents;
mod explain;
mod files;
mod headers;
mod hidden;
mod kernel;
mod keyslots;
mod lab;
mod lab_costs;
mod lab_facilities;
mod lab_insight;
mod lab_kernel;
mod lab_report;
mod lab_safety;
mod mounting;
mod mounting_user;
mod partitions;
mod patience;
mod reencrypting;
mod reencrypting_bitlocker;
mod resizing;
mod secrets;
mod sectors;
mod serving;
mod soak;
mod terminal;
mod volumes;

//! Carrying a plan out: what is done in which order, the journal that it is written to, and the runs that are stored.

pub mod bench;
mod energy;
pub mod journal;
pub(crate) mod levels;
pub mod measure;
pub mod plan;
pub(crate) mod reading;
pub mod schedule;
pub mod stored;
pub mod watch;

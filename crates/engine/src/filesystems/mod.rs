//! File systems, without the kernel: which one a store holds, and its folders and files.

pub mod detect;
pub mod fat;

pub use detect::{Filesystem, Kind, detect};

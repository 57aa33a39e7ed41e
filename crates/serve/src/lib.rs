//! Serves stores, such as opened volumes, to other programs.
#![forbid(unsafe_code)]

pub mod nbd;

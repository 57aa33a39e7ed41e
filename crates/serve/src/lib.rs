//! Serves stores, such as opened volumes, to other programs.
#![deny(unsafe_code)]

pub mod mount;
pub mod nbd;
pub mod sessions;
mod wait;

//! Serves stores, such as opened volumes, to other programs.
#![deny(unsafe_code)] // allowed in fuse::sys and fuse::uring_sys only, for what the kernel demands

mod aligned;
mod durable;
pub mod fuse;
pub mod nbd;
mod spin;

//! Serves stores, such as opened volumes, to other programs.
#![deny(unsafe_code)] // allowed in fuse::sys, fuse::uring_sys, kernel::dm_sys, mount::loop_sys and inherited only, for what the kernel demands

mod aligned;
pub mod crypttab;
mod durable;
pub mod fuse;
pub mod inherited;
pub mod kernel;
pub mod mount;
pub mod nbd;
pub mod sessions;
mod spin;
mod wait;

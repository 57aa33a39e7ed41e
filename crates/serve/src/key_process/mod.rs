//! Keys in a process of their own. One process, the key process, asks for the secrets, unlocks the volume and holds its keys; the other
//! one touches the file and serves the plaintext, and never has a key.
//!
//! * [`IoSide`] is the other one's side: it reads for the key process while that unlocks, and becomes the
//!   [`KeyProcess`](claviger_engine::key_process::volume::KeyProcess) of the layout that comes back.
//! * [`KeySide`] is the key process's: stores to unlock by, and then [`KeySide::keep`], which encrypts and decrypts until the other
//!   process has gone.
//! * Of an encrypted folder the key process looks at headers and names through [`IoSide::serve_folder_until_open`], and the
//!   other process asks by a [`FolderKeyProcess`](claviger_engine::key_process::folder::FolderKeyProcess), too.
//! * [`locking`] lets the key process go for a while, and the volume wait for another.
//! * [`cage`] is what the key process gives up before it holds anything.
//!
//! Requests go through shared memory, in which the buffers of the servers are, too. They name a segment and a range; tweaks and
//! initialisation vectors are the key process's business. It copies what it works on into memory of its own, unless that is done in registers:
//! so the other process never sees what lies between two layers of a cascade, and cannot change it there.

pub mod cage;
mod cage_sys;
mod client;
mod files;
mod folders;
pub mod locking;
mod opening;
mod server;
mod shared_sys;

pub use client::KeyClient;
pub use opening::{FileNumber, IoSide, KeySide, Terms};
pub(crate) use shared_sys::{BufferPool, Room};

/// [`shared_sys::KeyRequest::state`]: it is the asker's turn. What new memory begins with.
const ANSWERED: u32 = 0;
/// It is the key process's.
const ASKED: u32 = 1;

/// [`shared_sys::KeyRequest::order`].
const DECRYPT: u32 = 1;
const ENCRYPT: u32 = 2;

/// [`shared_sys::KeyRequest::answer`].
const DONE: u32 = 0;
const REFUSED: u32 = 1;
/// The keys have been wiped.
const WIPED: u32 = 2;
/// This and more: of the sectors that were asked for, the one of this number less `WRONG` is the first whose tag is wrong.
const WRONG: u32 = 3;

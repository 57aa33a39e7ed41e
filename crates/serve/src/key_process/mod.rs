//! Keys in a separate process. The key process asks for the secrets, unlocks the volume and holds its keys. The other
//! process uses the file and serves the plaintext, and never has a key.
//!
//! * [`IoSide`] is the other process's side. It reads for the key process during unlocking, and then becomes the
//!   [`KeyProcess`](claviger_engine::key_process::KeyProcess) of the layout.
//! * [`KeySide`] is the key process's side. It has the stores for unlocking, and then [`KeySide::serve_keys`], which encrypts
//!   and decrypts until the other process has ended.
//! * For an encrypted folder, the key process reads headers and names through [`IoSide::serve_folder_until_open`]. The
//!   other process then uses a [`FolderKeyProcess`](claviger_engine::key_process::folder::FolderKeyProcess), too.
//! * [`locking`] ends the key process for a while; the volume waits for a new one.
//! * [`cage`] is the sandbox of the key process, which is closed before it holds keys.
//!
//! Requests go through shared memory, which also holds the servers' buffers. A request names a segment and a range; the
//! key process derives tweaks and initialisation vectors itself. It copies the data into its own memory, unless it
//! works in registers only. So the other process can neither see nor change what lies between two layers of a cascade.

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
pub use opening::{FileNumber, IoSide, IsInUse, KeySide, Terms};
pub(crate) use server::fuzz;
pub(crate) use shared_sys::{BufferPool, Room};
#[cfg(test)]
pub(crate) use shared_sys::{Shared, Slots};

/// The task of a key process ([`Terms::task`]) that converts a volume in use and then holds its keys: see [`locking`].
pub const CONVERT_IN_USE: &str = "convert in use";

/// [`shared_sys::KeyRequest::state`]: the requesting side's turn. New memory begins with this value.
const ANSWERED: u32 = 0;
/// The key process's turn.
const ASKED: u32 = 1;

/// [`shared_sys::KeyRequest::order`].
const DECRYPT: u32 = 1;
const ENCRYPT: u32 = 2;

/// Maximum length of an argument to a folder's keys or of their answer, in bytes: no header or name is longer.
const FOLDER_MOST: usize = 12 << 10;

/// [`shared_sys::KeyRequest::answer`].
const DONE: u32 = 0;
const REFUSED: u32 = 1;
/// The keys have been wiped.
const WIPED: u32 = 2;
/// Values from here on: the answer less `WRONG` is the index of the first requested sector whose tag is wrong.
const WRONG: u32 = 3;

//! Keys in a process of their own. One process, the keeper, asks for the secrets, unlocks the volume and holds its keys; the other
//! one touches the file and serves the plaintext, and never has a key.
//!
//! * [`Lending`] is the other one's side: it reads for the keeper while that unlocks, and becomes the
//!   [`Keeper`](claviger_engine::volume::kept::Keeper) of the layout that comes back.
//! * [`Borrowing`] is the keeper's: stores to unlock by, and then [`Borrowing::keep`], which encrypts and decrypts until the other
//!   process has gone.
//! * Of a folder whose files are encrypted one by one the keeper looks at headers and names through [`Lending::lend_folder`], and the
//!   other process asks by a [`FolderKeeper`](claviger_engine::file_formats::isolated::FolderKeeper), too.
//! * [`locking`] lets the keeper go for a while, and the volume wait for another.
//! * [`cage`] is what the keeper gives up before it holds anything.
//!
//! Requests go through shared memory, in which the buffers of the servers are, too. They name a segment and a range; tweaks and
//! initialisation vectors are the keeper's business. It copies what it works on into memory of its own, unless that is done in registers:
//! so the other process never sees what lies between two layers of a cascade, and cannot change it there.

mod asking;
pub mod cage;
mod cage_sys;
mod files;
mod folders;
mod keeping;
pub mod locking;
mod opening;
mod shared_sys;

pub use asking::Asking;
pub use opening::{Borrowing, FileNumber, Lending, Terms};
pub(crate) use shared_sys::{Lender, Room};

/// [`shared_sys::Request::state`]: it is the asker's turn. What new memory begins with.
const ANSWERED: u32 = 0;
/// It is the keeper's.
const ASKED: u32 = 1;

/// [`shared_sys::Request::order`].
const DECRYPT: u32 = 1;
const ENCRYPT: u32 = 2;

/// [`shared_sys::Request::answer`].
const DONE: u32 = 0;
const REFUSED: u32 = 1;
/// The keys have been wiped.
const WIPED: u32 = 2;
/// This and more: of the sectors that were asked for, the one of this number less `WRONG` is the first whose tag is wrong.
const WRONG: u32 = 3;

//! Serves stores, such as opened volumes, to other programs.
//!
//! ```text
//!             qemu, nbdcopy, the kernel             any program           any program
//!                        │                               │                     │
//!                        │                       ext4, NTFS, FAT …     a block device
//!                        │                               │                     │
//!              ┌─────────▼─────────┐  ┌────────────┐  ┌──▼────┐          ┌─────▼────┐
//!              │ nbd               │  │ fuse       ◀──┤ mount │          │ kernel   │
//!              │ Unix socket, TCP  │  │ one file   │  └───────┘          │ dm-crypt │
//!              └─────────┬─────────┘  └─────┬──────┘                     └─────┬────┘
//!                        │ read_at, write_at│                                  │ a Mapping: the key, and
//!              ┌─────────▼──────────────────▼──────┐                           │ where the data are
//!              │ Store: a Volume, a file, your own │                   ┌───────▼────────────┐
//!              └───────────────────────────────────┘                   │ the unlocked header│
//!                          claviger-engine                             └────────────────────┘
//! ```
//!
//! * [`nbd`] serves a store as a disk, and has a client.
//! * [`remote`] opens remote stores: exports of NBD servers, and what programs serve that way.
//! * [`fuse`] shows a store as a file in a mounted folder, [`fuse::tree`] a tree of names.
//! * [`mount`] mounts the file system inside a store: with the kernel, a user's driver, or by itself.
//! * [`kernel`] hands a volume over to the kernel's dm-crypt.
//! * [`sessions`] records servers and mounts, which other processes can then list and end.
//!
//! # A store over NBD
//!
//! ```
//! use std::sync::Arc;
//! use claviger_engine::store::MemoryStore;
//! use claviger_serve::nbd::{Client, Export, NbdAddress, Server, ServerOptions};
//!
//! let store = Arc::new(MemoryStore::new(b"What is in memory.".repeat(512)));
//! let address = NbdAddress::Tcp(([127, 0, 0, 1], 0).into()); // port 0: any that is free
//! let server = Server::bind(&address, vec![Export::new("memory", store)], ServerOptions::default())?;
//! println!("nbdcopy {} copy.img", server.uri("memory"));
//!
//! let (address, handle) = (server.address().clone(), server.handle());
//! let serving = std::thread::spawn(move || server.run());
//! let mut client = Client::connect(&address, "memory")?;
//! let mut bytes = [0; 18];
//! client.read_at(18, &mut bytes)?;
//! assert_eq!(&bytes, b"What is in memory.");
//! client.disconnect()?;
//! handle.stop();
//! serving.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The example `served_store` serves your own store. To serve a volume, give [`Export::new`](nbd::Export::new) an
//! `Arc<claviger_engine::Volume>`.
//!
//! # Who can reach it
//!
//! Anyone who can open the socket or the mounted folder sees the plaintext. Unix sockets and mounts are for one user
//! and root, and TCP is for this machine only: [`nbd::Server::bind`] refuses any other address.
#![deny(unsafe_code)] // allowed in fuse::sys, fuse::uring_sys, key_process::shared_sys, key_process::cage_sys, kernel::dm_sys, landlock, last_signal, mount::loop_sys and inherited only, for what the kernel demands

/// Constants of one type: the numbers of a protocol.
macro_rules! numbers {
    ($type:ty: $($(#[$doc:meta])* $name:ident = $value:expr),* $(,)?) => {
        $($(#[$doc])* pub const $name: $type = $value;)*
    };
}

mod aligned;
pub mod crypttab;
mod durable;
pub mod fuse;
#[doc(hidden)]
pub mod fuzzing;
pub mod inherited;
pub mod kernel;
pub mod key_process;
mod landlock;
pub mod last_signal;
mod messages;
pub mod mount;
pub mod nbd;
pub mod remote;
pub mod sessions;
mod spin;
mod wait;

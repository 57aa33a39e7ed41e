//! The integration tests, as one program: linking is most of what building them takes.

mod common;
mod helpers;
mod isolated;
mod key_process;
mod key_process_folders;
mod key_process_sealed;
mod mounted;
mod remote;
mod steady;

mod fuse {
    pub mod ecryptfs;
    pub mod endings;
    pub mod folder;
    pub mod image;
    pub mod tree;
    pub mod writeback;
}

mod nbd {
    pub mod clients;
    pub mod hostile;
    pub mod kernel;
    pub mod server;
    pub mod slow;
    pub mod tls;
}

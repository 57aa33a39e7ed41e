//! The integration tests, as one program: linking is most of what building them takes.

mod common;
mod fuse_ecryptfs;
mod fuse_endings;
mod fuse_folder;
mod fuse_image;
mod fuse_tree;
mod helpers;
mod key_process;
mod key_process_folders;
mod mounted;
mod nbd_clients;
mod nbd_hostile;
mod nbd_kernel;
mod nbd_server;
mod nbd_slow;
mod nbd_tls;
mod remote;
mod steady;

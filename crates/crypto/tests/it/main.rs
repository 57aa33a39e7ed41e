//! The integration tests, as one program: linking is most of what building them takes.

mod common;
mod derivations;
mod dm_crypt;
mod kernel_hashes;
mod kernels;
mod legacy_images;
mod legacy_modes;
mod misuse;
mod random_cases;
mod vectors;
mod xts;

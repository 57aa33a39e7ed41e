//! (being built)
use super::{Cipher, Kernel, legacy::wrap};
/// (being built)
pub static AES: Cipher = Cipher {
    name: "AES",
    block_size: 16,
    key_sizes: &[32],
    kernels: &[Kernel {
        name: "portable",
        usable: || true,
        aes_instructions: false,
        constant_time: false,
        with_key: wrap::<::aes::Aes256>,
    }],
};

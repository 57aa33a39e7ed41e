//! (being built)
use super::{Cipher, Kernel, legacy::wrap};
/// (being built)
pub static TWOFISH: Cipher = Cipher {
    name: "Twofish",
    block_size: 16,
    key_sizes: &[32],
    kernels: &[Kernel {
        name: "portable",
        usable: || true,
        aes_instructions: false,
        constant_time: false,
        with_key: wrap::<::twofish::Twofish>,
    }],
};

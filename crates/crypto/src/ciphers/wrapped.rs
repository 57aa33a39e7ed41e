//! Ciphers of the RustCrypto project behind our trait, with their key schedules in memory for secrets.

use cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

use super::{BlockCipher, Kernel, assert_blocks};
use crate::secret::Resident;

/// The single kernel of a wrapped cipher. In all of these, secret bytes index tables.
pub(super) const fn portable(expand: fn(&[u8]) -> Box<dyn BlockCipher>) -> Kernel {
    Kernel { name: "portable", usable: || true, aes_instructions: false, constant_time: false, expand }
}

/// Expands a key of one of the sizes in the cipher's table.
pub(super) fn wrap<C>(key: &[u8]) -> Box<dyn BlockCipher>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync + 'static,
{
    held(|| C::new_from_slice(key).expect("the cipher's table lists its key sizes"))
}

/// A cipher with the key that `make` gives it.
pub(super) fn held<C>(make: impl FnOnce() -> C) -> Box<dyn BlockCipher>
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync + 'static,
{
    Box::new(Wrapped(Resident::build(make)))
}

struct Wrapped<C>(Resident<C>);

impl<C: BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync> BlockCipher for Wrapped<C> {
    fn block_size(&self) -> usize {
        C::block_size()
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(C::block_size(), blocks);
        self.0.encrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(C::block_size(), blocks);
        self.0.decrypt_blocks(Array::slice_as_chunks_mut(blocks).0);
    }
}

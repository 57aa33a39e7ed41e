//! Shared code of kernels that process several 16-byte blocks at a time.

use crate::tweak::Masks;

/// Implements [`super::BlockCipher`] by a kernel's `crypt::<DECRYPT, MASKED>(masks, run)`.
macro_rules! block_cipher {
    ([$($generics:tt)*] $kernel:ty) => {
        impl<$($generics)*> $crate::ciphers::BlockCipher for $kernel {
            fn block_size(&self) -> usize {
                16
            }

            fn encrypt_blocks(&self, blocks: &mut [u8]) {
                $crate::ciphers::assert_blocks(16, blocks);
                self.crypt::<false, false>(Masks::none(), blocks);
            }

            fn decrypt_blocks(&self, blocks: &mut [u8]) {
                $crate::ciphers::assert_blocks(16, blocks);
                self.crypt::<true, false>(Masks::none(), blocks);
            }

            fn xts_encrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
                $crate::ciphers::assert_sectors(16, tweaks, sector, run);
                self.crypt::<false, true>(Masks::new(tweaks, sector), run);
            }

            fn xts_decrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
                $crate::ciphers::assert_sectors(16, tweaks, sector, run);
                self.crypt::<true, true>(Masks::new(tweaks, sector), run);
            }
        }
    };
}
pub(super) use block_cipher;

/// Bytes for a group of blocks, aligned for the widest vector.
#[repr(C, align(64))]
struct Room<const BYTES: usize>([u8; BYTES]);

/// Calls `group` with the masks and the bytes of `BYTES` at a time (the masks are meaningless unless `MASKED`), and
/// returns the rest, which is less than a group.
#[inline(always)]
pub(super) fn groups<'a, const BYTES: usize, const MASKED: bool>(
    masks: &mut Masks<'_>,
    run: &'a mut [u8],
    mut group: impl FnMut(&[u8; BYTES], &mut [u8; BYTES]),
) -> &'a mut [u8] {
    let mut room = Room([0; BYTES]);
    let (wholes, rest) = run.as_chunks_mut();
    for whole in wholes {
        if MASKED {
            masks.fill(&mut room.0);
        }
        group(&room.0, whole);
    }
    rest
}

/// Calls `group` once for all of `rest`, zero-padded; it is less than a group, and may be empty.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn padded<const BYTES: usize, const MASKED: bool>(
    masks: &mut Masks<'_>,
    rest: &mut [u8],
    mut group: impl FnMut(&[u8; BYTES], &mut [u8; BYTES]),
) {
    if rest.is_empty() {
        return;
    }
    let (mut room, mut copy) = (Room([0; BYTES]), Room([0; BYTES]));
    if MASKED {
        masks.fill(&mut room.0[..rest.len()]);
    }
    copy.0[..rest.len()].copy_from_slice(rest);
    group(&room.0, &mut copy.0);
    rest.copy_from_slice(&copy.0[..rest.len()]);
}

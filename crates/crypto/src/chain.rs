//! Chains of CBC (NIST SP 800-38A, 6.2), whatever cipher decrypts the blocks.

/// Panics unless `run` is a chain of `sector` bytes for each IV, in whole blocks of `block` bytes.
#[track_caller]
pub(crate) fn assert_chains(block: usize, ivs: &[[u8; 16]], sector: usize, run: &[u8]) {
    let (ivs, len) = (ivs.len(), run.len());
    assert!(ivs.checked_mul(sector) == Some(len), "{len} bytes are not {ivs} chains of {sector}");
    assert!(sector.is_multiple_of(block), "{sector} bytes are no whole blocks of {block}");
}

/// Decrypts a chain of `sector` bytes for each IV, of which the first bytes count, as many as a block has. `decrypt_blocks` is
/// given pieces of at most `ROOM` - 16 bytes, whole blocks, and decrypts each block by itself.
pub(crate) fn decrypt<const ROOM: usize>(
    block: usize,
    ivs: &[[u8; 16]],
    sector: usize,
    run: &mut [u8],
    decrypt_blocks: impl Fn(&mut [u8]),
) {
    assert_chains(block, ivs, sector, run);
    // What each block of the piece is xored with: the ciphertext one block earlier, or the IV of its sector. The last
    // block of ciphertext is carried over to the next piece.
    let mut chain = [0u8; ROOM];
    let mut at = 0usize;
    for piece in run.chunks_mut(ROOM - 16) {
        let len = piece.len();
        chain[block..][..len].copy_from_slice(piece);
        let starts = (at.next_multiple_of(sector)..at + len).step_by(sector);
        for start in starts {
            chain[start - at..][..block].copy_from_slice(&ivs[start / sector][..block]);
        }
        decrypt_blocks(piece);
        xor(piece, &chain[..len]);
        chain.copy_within(len..len + block, 0);
        at += len;
    }
}

/// Xors `with` into `to`, whole words of 8 bytes.
pub(crate) fn xor(to: &mut [u8], with: &[u8]) {
    for (to, with) in to.as_chunks_mut::<8>().0.iter_mut().zip(with.as_chunks::<8>().0) {
        *to = (u64::from_ne_bytes(*to) ^ u64::from_ne_bytes(*with)).to_ne_bytes();
    }
}

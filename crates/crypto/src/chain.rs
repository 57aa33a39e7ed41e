//! Chains of CBC (NIST SP 800-38A, 6.2), for any cipher.

/// Chains that most ciphers encrypt side by side: a chain is serial, so only several chains fill a pipeline.
pub(crate) const LANES: usize = 32;

/// Panics unless `run` is a chain of `sector` bytes for each IV, in whole blocks of `block` bytes.
#[track_caller]
pub(crate) fn assert_chains(block: usize, ivs: &[[u8; 16]], sector: usize, run: &[u8]) {
    let (ivs, len) = (ivs.len(), run.len());
    assert!(ivs.checked_mul(sector) == Some(len), "{len} bytes are not {ivs} chains of {sector}");
    assert!(sector.is_multiple_of(block), "{sector} bytes are no whole blocks of {block}");
}

/// Decrypts a chain of `sector` bytes for each IV. Only the first bytes of an IV are used, as many as a block has. `decrypt_blocks`
/// decrypts each block by itself. It gets pieces of whole blocks, at most `ROOM` - 16 bytes.
pub(crate) fn decrypt<const ROOM: usize>(
    block: usize,
    ivs: &[[u8; 16]],
    sector: usize,
    run: &mut [u8],
    decrypt_blocks: impl Fn(&mut [u8]),
) {
    assert_chains(block, ivs, sector, run);
    // The values that the blocks of the piece are xored with: the ciphertext one block earlier, or the IV of the sector. The last
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

/// Encrypts a chain of `sector` bytes for each IV. Only the first bytes of an IV are used, as many as a block has. `encrypt_blocks`
/// encrypts each block by itself. It gets one block of each of at most `LANES` chains.
pub(crate) fn encrypt<const LANES: usize>(
    block: usize,
    ivs: &[[u8; 16]],
    sector: usize,
    run: &mut [u8],
    encrypt_blocks: impl Fn(&mut [u8]),
) {
    assert_chains(block, ivs, sector, run);
    for (ivs, run) in ivs.chunks(LANES).zip(run.chunks_mut((LANES * sector).max(1))) {
        match block {
            8 => encrypt_lanes::<8, LANES>(ivs, sector, run, &encrypt_blocks),
            _ => encrypt_lanes::<16, LANES>(ivs, sector, run, &encrypt_blocks),
        }
    }
}

/// Encrypts at most `LANES` chains: one block of each is gathered into a row, which is encrypted with one call and scattered back.
fn encrypt_lanes<const BLOCK: usize, const LANES: usize>(
    ivs: &[[u8; 16]],
    sector: usize,
    run: &mut [u8],
    encrypt_blocks: &impl Fn(&mut [u8]),
) {
    // Two rows take turns: the next row is xored with the most recently encrypted one.
    let mut rows = [[[0u8; BLOCK]; LANES]; 2];
    let [mut row, mut last] = rows.each_mut().map(|row| &mut row[..ivs.len()]);
    last.iter_mut().zip(ivs).for_each(|(block, iv)| block.copy_from_slice(&iv[..BLOCK]));
    for at in (0..sector).step_by(BLOCK) {
        for (lane, (to, last)) in row.iter_mut().zip(&*last).enumerate() {
            to.copy_from_slice(&run[lane * sector + at..][..BLOCK]);
            xor(to, last);
        }
        encrypt_blocks(row.as_flattened_mut());
        for (lane, block) in row.iter().enumerate() {
            run[lane * sector + at..][..BLOCK].copy_from_slice(block);
        }
        std::mem::swap(&mut row, &mut last);
    }
}

/// Xors `with` into `to`, whole words of 8 bytes.
pub(crate) fn xor(to: &mut [u8], with: &[u8]) {
    for (to, with) in to.as_chunks_mut::<8>().0.iter_mut().zip(with.as_chunks::<8>().0) {
        *to = (u64::from_ne_bytes(*to) ^ u64::from_ne_bytes(*with)).to_ne_bytes();
    }
}

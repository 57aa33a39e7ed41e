//! The rounds of Serpent, bit-sliced, over any vector of 32-bit lanes.
//!
//! Bit-sliced, Serpent works on four 32-bit words, and its S-boxes are boolean circuits over those words (Anderson,
//! Biham, Knudsen: "Serpent: A Proposal for the Advanced Encryption Standard", 1998, section "An Efficient
//! Implementation"). One word of as many blocks as there are lanes fits one vector.
//!
//! The circuits compute N(x) = S(x) ^ S(0), which maps zero to zero and so needs no NOT. What is missing, the constant
//! S(0), goes through the linear transformation and into the next round key when the schedule is made. The inverse of N
//! needs exactly that constant on its input, so one schedule serves both directions.

use super::binary::Lanes;

/// Round keys: 33 of four words.
pub(super) type RoundKeys = [[u32; 4]; 33];

/// The S-boxes, from the specification.
pub(super) const SBOXES: [[u8; 16]; 8] = [
    [3, 8, 15, 1, 10, 6, 5, 11, 14, 13, 4, 2, 7, 0, 9, 12],
    [15, 12, 2, 7, 9, 0, 5, 10, 1, 11, 14, 8, 6, 13, 3, 4],
    [8, 6, 7, 9, 3, 12, 10, 15, 13, 1, 14, 4, 0, 11, 5, 2],
    [0, 15, 11, 8, 12, 9, 6, 3, 13, 1, 2, 4, 10, 7, 5, 14],
    [1, 15, 8, 3, 12, 0, 11, 6, 2, 5, 4, 10, 9, 14, 7, 13],
    [15, 5, 2, 11, 4, 10, 9, 12, 0, 3, 14, 8, 13, 6, 7, 1],
    [7, 2, 12, 5, 8, 4, 6, 11, 14, 9, 1, 15, 13, 3, 10, 0],
    [1, 13, 15, 0, 14, 8, 2, 11, 7, 4, 12, 10, 9, 3, 5, 6],
];

/// Encrypts `SETS` independent sets, interleaved round by round, so that one set's work hides the latencies of another.
#[inline(always)]
pub(super) fn encrypt<L: Lanes, const SETS: usize>(keys: &RoundKeys, sets: &mut [[L; 4]; SETS]) {
    // Eight rounds per iteration: as many as there are S-boxes, and little enough code for the cache of decoded
    // instructions.
    let mut turns = keys[..32].chunks_exact(8);
    let mut keys_now = turns.next().expect("four turns");
    loop {
        round::<L, SETS, 0>(keys_now, sets);
        round::<L, SETS, 1>(keys_now, sets);
        round::<L, SETS, 2>(keys_now, sets);
        round::<L, SETS, 3>(keys_now, sets);
        round::<L, SETS, 4>(keys_now, sets);
        round::<L, SETS, 5>(keys_now, sets);
        round::<L, SETS, 6>(keys_now, sets);
        // The last round is different: leaving the loop in the middle keeps the sets in registers.
        let Some(keys_next) = turns.next() else { break };
        round::<L, SETS, 7>(keys_now, sets);
        keys_now = keys_next;
    }
    for set in sets {
        *set = add(L::substitute::<7>(add(*set, &keys[31])), &keys[32]);
    }
}

/// The inverse of [`encrypt`].
#[inline(always)]
pub(super) fn decrypt<L: Lanes, const SETS: usize>(keys: &RoundKeys, sets: &mut [[L; 4]; SETS]) {
    for set in &mut *sets {
        *set = add(L::unsubstitute::<7>(add(*set, &keys[32])), &keys[31]);
    }
    let mut turns = keys[..32].chunks_exact(8).rev();
    let mut keys_now = turns.next().expect("four turns");
    loop {
        unround::<L, SETS, 6>(keys_now, sets);
        unround::<L, SETS, 5>(keys_now, sets);
        unround::<L, SETS, 4>(keys_now, sets);
        unround::<L, SETS, 3>(keys_now, sets);
        unround::<L, SETS, 2>(keys_now, sets);
        unround::<L, SETS, 1>(keys_now, sets);
        unround::<L, SETS, 0>(keys_now, sets);
        let Some(keys_next) = turns.next() else { break };
        unround::<L, SETS, 7>(keys_next, sets);
        keys_now = keys_next;
    }
}

/// Key, S-box, linear transformation.
#[inline(always)]
fn round<L: Lanes, const SETS: usize, const BOX: usize>(keys: &[[u32; 4]], sets: &mut [[L; 4]; SETS]) {
    for set in sets {
        *set = linear(L::substitute::<BOX>(add(*set, &keys[BOX])));
    }
}

/// The inverse of [`round`].
#[inline(always)]
fn unround<L: Lanes, const SETS: usize, const BOX: usize>(keys: &[[u32; 4]], sets: &mut [[L; 4]; SETS]) {
    for set in sets {
        *set = add(L::unsubstitute::<BOX>(unlinear(*set)), &keys[BOX]);
    }
}

/// The linear transformation.
#[inline(always)]
pub(super) fn linear<L: Lanes>([a, b, c, d]: [L; 4]) -> [L; 4] {
    let a = a.rotl::<13>();
    let c = c.rotl::<3>();
    let b = (b ^ a ^ c).rotl::<1>();
    let d = (d ^ c ^ a.shl::<3>()).rotl::<7>();
    let a = (a ^ b ^ d).rotl::<5>();
    let c = (c ^ d ^ b.shl::<7>()).rotl::<22>();
    [a, b, c, d]
}

#[inline(always)]
fn unlinear<L: Lanes>([a, b, c, d]: [L; 4]) -> [L; 4] {
    let c = c.rotl::<10>() ^ d ^ b.shl::<7>();
    let a = a.rotl::<27>() ^ b ^ d;
    let d = d.rotl::<25>() ^ c ^ a.shl::<3>();
    let b = b.rotl::<31>() ^ a ^ c;
    [a.rotl::<19>(), b, c.rotl::<29>(), d]
}

#[inline(always)]
fn add<L: Lanes>([a, b, c, d]: [L; 4], key: &[u32; 4]) -> [L; 4] {
    [a ^ L::splat(key[0]), b ^ L::splat(key[1]), c ^ L::splat(key[2]), d ^ L::splat(key[3])]
}

/// The rounds over a run of bytes: whole groups of sets, and the rest through a buffer.
pub(super) mod run {
    use super::{Lanes, RoundKeys};
    use crate::tweak::Masks;

    /// Bytes of the widest group: four sets of sixteen blocks.
    const WIDEST: usize = 4 * 16 * 16;

    /// Room for the widest group, aligned for the widest vector.
    #[repr(C, align(64))]
    struct Room([u8; WIDEST]);

    /// Encrypts or decrypts `run`, a whole number of blocks, `SETS` sets at a time, and the rest in pairs of sets and
    /// single ones. With `MASKED`, each block's mask is xored before and after.
    #[inline(always)]
    pub(crate) fn crypt<L: Lanes, const SETS: usize, const DECRYPT: bool, const MASKED: bool>(
        keys: &RoundKeys,
        mut masks: Masks<'_>,
        run: &mut [u8],
    ) {
        let set = 16 * L::LANES;
        let mut rest = wholes::<L, SETS, DECRYPT, MASKED>(keys, &mut masks, run);
        if SETS > 2 {
            rest = wholes::<L, 2, DECRYPT, MASKED>(keys, &mut masks, rest);
        }
        rest = wholes::<L, 1, DECRYPT, MASKED>(keys, &mut masks, rest);
        if !rest.is_empty() {
            let mut padded = Room([0; WIDEST]);
            padded.0[..rest.len()].copy_from_slice(rest);
            let mut room = Room([0; WIDEST]);
            if MASKED {
                masks.fill(&mut room.0[..rest.len()]);
            }
            group::<L, 1, DECRYPT, MASKED>(keys, &room.0, &mut padded.0[..set]);
            rest.copy_from_slice(&padded.0[..rest.len()]);
        }
    }

    /// Processes as many groups of `SETS` sets as possible. Returns the rest.
    #[inline(always)]
    fn wholes<'a, L: Lanes, const SETS: usize, const DECRYPT: bool, const MASKED: bool>(
        keys: &RoundKeys,
        masks: &mut Masks<'_>,
        run: &'a mut [u8],
    ) -> &'a mut [u8] {
        let size = SETS * 16 * L::LANES;
        let mut room = Room([0; WIDEST]);
        let mut wholes = run.chunks_exact_mut(size);
        for whole in &mut wholes {
            if MASKED {
                masks.fill(&mut room.0[..size]);
            }
            group::<L, SETS, DECRYPT, MASKED>(keys, &room.0, whole);
        }
        wholes.into_remainder()
    }

    #[inline(always)]
    fn group<L: Lanes, const SETS: usize, const DECRYPT: bool, const MASKED: bool>(
        keys: &RoundKeys,
        masks: &[u8],
        blocks: &mut [u8],
    ) {
        let vector = 4 * L::LANES;
        assert!(blocks.len() == SETS * 4 * vector && masks.len() >= blocks.len());
        let at = |set: usize, i: usize| (4 * set + i) * vector..(4 * set + i + 1) * vector;
        let mut sets: [[L; 4]; SETS] = std::array::from_fn(|set| {
            L::transpose(std::array::from_fn(|i| {
                let block = L::load(&blocks[at(set, i)]);
                if MASKED { block ^ L::load(&masks[at(set, i)]) } else { block }
            }))
        });
        if DECRYPT {
            super::decrypt(keys, &mut sets);
        } else {
            super::encrypt(keys, &mut sets);
        }
        for (set, words) in sets.into_iter().enumerate() {
            for (i, block) in L::transpose(words).into_iter().enumerate() {
                let block = if MASKED { block ^ L::load(&masks[at(set, i)]) } else { block };
                block.store(&mut blocks[at(set, i)]);
            }
        }
    }
}

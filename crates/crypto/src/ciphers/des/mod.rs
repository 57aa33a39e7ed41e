//! DES (FIPS 46-3), Triple DES, and DESX as Windows has it. All kernels run in constant time.
//!
//! Many blocks are bit-sliced: each bit of a vector belongs to one block, the permutations only rename vectors, and the S-boxes are
//! circuits ([`circuits`]). A few blocks would leave most lanes empty, so they are processed one by one. An output bit of an S-box
//! is then its truth table of 64 bits, shifted by the input; the processor shifts the tables of several S-boxes at once. That takes
//! about as long as tables in memory.
#![allow(unsafe_code, reason = "it calls functions for the instructions of this processor")]

mod circuits;
mod few;
mod sliced;
#[cfg(target_arch = "x86_64")]
mod x86;

use self::sliced::Sliced;
use super::{BlockCipher, Cipher, Kernel, assert_blocks};
use crate::chain;
use crate::secret::{LockedBox, wipe_after_sectors};

/// Triple DES in EDE order with three keys (FIPS 46-3): K1 ‖ K2 ‖ K3.
pub static TRIPLE_DES: Cipher = Cipher {
    name: "Triple DES",
    block_size: 8,
    key_sizes: &[24],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        kernel("avx512", x86::avx512_usable, |key| triple(key, &x86::AVX512)),
        #[cfg(target_arch = "x86_64")]
        kernel("avx2", x86::avx2_usable, |key| triple(key, &x86::AVX2)),
        #[cfg(target_arch = "x86_64")]
        kernel("sse2", || true, |key| triple(key, &x86::SSE2)),
        kernel("portable", || true, |key| triple(key, &PORTABLE)),
    ],
};

/// DESX as Windows has it: to encrypt it adds the first whitening, *decrypts* with DES, and adds the second one. Its key is that of
/// DES ‖ the first whitening ‖ the second.
pub static WINDOWS_DESX: Cipher = Cipher {
    name: "DESX (Windows)",
    block_size: 8,
    key_sizes: &[24],
    kernels: &[
        #[cfg(target_arch = "x86_64")]
        kernel("avx512", x86::avx512_usable, |key| windows_desx(key, &x86::AVX512)),
        #[cfg(target_arch = "x86_64")]
        kernel("avx2", x86::avx2_usable, |key| windows_desx(key, &x86::AVX2)),
        #[cfg(target_arch = "x86_64")]
        kernel("sse2", || true, |key| windows_desx(key, &x86::SSE2)),
        kernel("portable", || true, |key| windows_desx(key, &PORTABLE)),
    ],
};

const fn kernel(name: &'static str, usable: fn() -> bool, expand: fn(&[u8]) -> Box<dyn BlockCipher>) -> Kernel {
    Kernel { name, usable, aes_instructions: false, constant_time: true, expand }
}

/// The functions for a processor's vectors.
struct Width {
    /// Blocks that are bit-sliced together.
    blocks: usize,
    /// The number of blocks from which bit-slicing is faster than one by one.
    worth: usize,
    /// Processes blocks one by one. The second argument says whether to decrypt.
    few: unsafe fn(&Keys, bool, &mut [u8]),
    /// Makes bit-sliced round keys in order of use. The second argument says whether to decrypt.
    expand: unsafe fn(&Keys, bool) -> Sliced,
    /// Processes blocks, bit-sliced. The last group is padded.
    sliced: unsafe fn(&Sliced, &mut [u8]),
}

static PORTABLE: Width =
    Width { blocks: 64, worth: 8, few: few::crypt, expand: Sliced::new, sliced: sliced::crypt::<u64> };

/// Round keys in the order in which they encrypt. Byte `s` of a round key has the six bits that go into S-box `s`, the first one
/// highest.
#[derive(Clone, Copy)]
struct Keys<'a> {
    rounds: &'a [u64],
    /// The values added to the input and to the output: little-endian words, zeros except for DESX.
    whitening: [u64; 2],
}

struct Des {
    /// Round keys, at most [`MOST`], and the whitenings.
    keys: LockedBox<[u64; MOST + 2]>,
    /// A multiple of 16.
    rounds: usize,
    width: &'static Width,
}

/// Rounds of three DES.
const MOST: usize = 48;

fn triple(key: &[u8], width: &'static Width) -> Box<dyn BlockCipher> {
    let keys = LockedBox::build(|keys: &mut [u64; MOST + 2]| {
        for (rounds, key) in keys.as_chunks_mut().0.iter_mut().zip(key.as_chunks().0) {
            schedule(key, rounds);
        }
        keys[16..32].reverse();
    });
    Box::new(Des { keys, rounds: MOST, width })
}

fn windows_desx(key: &[u8], width: &'static Width) -> Box<dyn BlockCipher> {
    let keys = LockedBox::build(|keys: &mut [u64; MOST + 2]| {
        let [des, whitening @ ..] = key.as_chunks::<8>().0 else { unreachable!("24 bytes") };
        schedule(des, keys.first_chunk_mut().expect("16 rounds"));
        keys[..16].reverse();
        for (word, bytes) in keys[MOST..].iter_mut().zip(whitening) {
            *word = u64::from_le_bytes(*bytes);
        }
    });
    Box::new(Des { keys, rounds: 16, width })
}

impl Des {
    fn keys(&self) -> Keys<'_> {
        Keys { rounds: &self.keys[..self.rounds], whitening: [self.keys[MOST], self.keys[MOST + 1]] }
    }

    /// Gives `then` a function that encrypts or decrypts blocks. `at_once` says how many blocks each call has.
    fn crypt(&self, decrypt: bool, at_once: usize, then: impl FnOnce(&dyn Fn(&mut [u8]))) {
        // SAFETY: the kernel is only made where the processor has its instructions.
        let few = |blocks: &mut [u8]| unsafe { (self.width.few)(&self.keys(), decrypt, blocks) };
        if at_once < self.width.worth {
            return then(&few);
        }
        {
            // The keys are dropped, and so wiped, at the end of this block.
            // SAFETY: as above.
            let sliced = unsafe { (self.width.expand)(&self.keys(), decrypt) };
            then(&|blocks: &mut [u8]| {
                let rest = blocks.len() / 8 % self.width.blocks;
                let alone = if rest < self.width.worth { 8 * rest } else { 0 };
                let (together, alone) = blocks.split_at_mut(blocks.len() - alone);
                // SAFETY: as above.
                unsafe { (self.width.sliced)(&sliced, together) };
                few(alone);
            });
        }
        // The vectors of a group go deeper into the stack than the wiping after a sector.
        wipe_after_sectors();
    }
}

/// Bytes of the buffer for chains to decrypt: a group of the widest vectors at a time.
const ROOM: usize = 16 + 4096;

/// The most chains that are encrypted side by side.
const ABREAST: usize = 512;

impl BlockCipher for Des {
    fn block_size(&self) -> usize {
        8
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(8, blocks);
        self.crypt(false, blocks.len() / 8, |encrypt| encrypt(blocks));
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(8, blocks);
        self.crypt(true, blocks.len() / 8, |decrypt| decrypt(blocks));
    }

    fn cbc_decrypt(&self, iv: &[u8; 16], chain: &mut [u8]) {
        assert_blocks(8, chain);
        if !chain.is_empty() {
            self.cbc_decrypt_abreast(&[*iv], chain.len(), chain);
        }
    }

    fn cbc_decrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        self.crypt(true, run.len() / 8, |decrypt| chain::decrypt::<ROOM>(8, ivs, sector, run, decrypt));
    }

    fn cbc_encrypt_abreast(&self, ivs: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        self.crypt(false, ivs.len(), |encrypt| chain::encrypt::<ABREAST>(8, ivs, sector, run, encrypt));
    }
}

/// The round keys of a key of eight bytes, whose lowest bits are not used.
fn schedule(key: &[u8; 8], rounds: &mut [u64; 16]) {
    let key = u64::from_be_bytes(*key);
    for (round, bits) in rounds.iter_mut().zip(&KEY_BITS) {
        *round = 0;
        for (i, bit) in bits.iter().enumerate() {
            *round |= (key >> bit & 1) << (8 * (i / 6) + 5 - i % 6);
        }
    }
}

/// For each round and each bit of the round key, the number of that bit in the key: the two permuted choices and the rotations
/// between them.
const KEY_BITS: [[u8; 48]; 16] = {
    let mut bits = [[0; 48]; 16];
    let (mut round, mut turned) = (0, 0);
    while round < 16 {
        turned += ROTATIONS[round];
        let mut i = 0;
        while i < 48 {
            let at = CHOICE_2[i] - 1;
            bits[round][i] = 64 - CHOICE_1[at / 28 * 28 + (at % 28 + turned) % 28];
            i += 1;
        }
        round += 1;
    }
    bits
};

const CHOICE_1: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36, //
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
];

const CHOICE_2: [usize; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2, //
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];

const ROTATIONS: [usize; 16] = [1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1];

/// For each output bit of the S-boxes, in order, its position in a half, both counted from 0: the inverse of the permutation P.
const PLACE: [usize; 32] = {
    let p = [
        16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, //
        2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
    ];
    let mut place = [0; 32];
    let mut i = 0;
    while i < 32 {
        place[p[i] - 1] = i;
        i += 1;
    }
    place
};

/// The output of S-box `number` (0..8) for six bits, the first one highest.
const fn s_box(number: usize, x: usize) -> u8 {
    S_BOXES[number][(x >> 5) << 1 | x & 1][x >> 1 & 15]
}

const S_BOXES: [[[u8; 16]; 4]; 8] = [
    [
        [14, 4, 13, 1, 2, 15, 11, 8, 3, 10, 6, 12, 5, 9, 0, 7],
        [0, 15, 7, 4, 14, 2, 13, 1, 10, 6, 12, 11, 9, 5, 3, 8],
        [4, 1, 14, 8, 13, 6, 2, 11, 15, 12, 9, 7, 3, 10, 5, 0],
        [15, 12, 8, 2, 4, 9, 1, 7, 5, 11, 3, 14, 10, 0, 6, 13],
    ],
    [
        [15, 1, 8, 14, 6, 11, 3, 4, 9, 7, 2, 13, 12, 0, 5, 10],
        [3, 13, 4, 7, 15, 2, 8, 14, 12, 0, 1, 10, 6, 9, 11, 5],
        [0, 14, 7, 11, 10, 4, 13, 1, 5, 8, 12, 6, 9, 3, 2, 15],
        [13, 8, 10, 1, 3, 15, 4, 2, 11, 6, 7, 12, 0, 5, 14, 9],
    ],
    [
        [10, 0, 9, 14, 6, 3, 15, 5, 1, 13, 12, 7, 11, 4, 2, 8],
        [13, 7, 0, 9, 3, 4, 6, 10, 2, 8, 5, 14, 12, 11, 15, 1],
        [13, 6, 4, 9, 8, 15, 3, 0, 11, 1, 2, 12, 5, 10, 14, 7],
        [1, 10, 13, 0, 6, 9, 8, 7, 4, 15, 14, 3, 11, 5, 2, 12],
    ],
    [
        [7, 13, 14, 3, 0, 6, 9, 10, 1, 2, 8, 5, 11, 12, 4, 15],
        [13, 8, 11, 5, 6, 15, 0, 3, 4, 7, 2, 12, 1, 10, 14, 9],
        [10, 6, 9, 0, 12, 11, 7, 13, 15, 1, 3, 14, 5, 2, 8, 4],
        [3, 15, 0, 6, 10, 1, 13, 8, 9, 4, 5, 11, 12, 7, 2, 14],
    ],
    [
        [2, 12, 4, 1, 7, 10, 11, 6, 8, 5, 3, 15, 13, 0, 14, 9],
        [14, 11, 2, 12, 4, 7, 13, 1, 5, 0, 15, 10, 3, 9, 8, 6],
        [4, 2, 1, 11, 10, 13, 7, 8, 15, 9, 12, 5, 6, 3, 0, 14],
        [11, 8, 12, 7, 1, 14, 2, 13, 6, 15, 0, 9, 10, 4, 5, 3],
    ],
    [
        [12, 1, 10, 15, 9, 2, 6, 8, 0, 13, 3, 4, 14, 7, 5, 11],
        [10, 15, 4, 2, 7, 12, 9, 5, 6, 1, 13, 14, 0, 11, 3, 8],
        [9, 14, 15, 5, 2, 8, 12, 3, 7, 0, 4, 10, 1, 13, 11, 6],
        [4, 3, 2, 12, 9, 5, 15, 10, 11, 14, 1, 7, 6, 0, 8, 13],
    ],
    [
        [4, 11, 2, 14, 15, 0, 8, 13, 3, 12, 9, 7, 5, 10, 6, 1],
        [13, 0, 11, 7, 4, 9, 1, 10, 14, 3, 5, 12, 2, 15, 8, 6],
        [1, 4, 11, 13, 12, 3, 7, 14, 10, 15, 6, 8, 0, 5, 9, 2],
        [6, 11, 13, 8, 1, 4, 10, 7, 9, 5, 0, 15, 14, 2, 3, 12],
    ],
    [
        [13, 2, 8, 4, 6, 15, 11, 1, 10, 9, 3, 14, 5, 0, 12, 7],
        [1, 15, 13, 8, 10, 3, 7, 4, 12, 5, 6, 11, 0, 14, 9, 2],
        [7, 11, 4, 1, 9, 12, 14, 2, 0, 6, 10, 13, 15, 3, 5, 8],
        [2, 1, 14, 7, 4, 10, 8, 13, 15, 12, 9, 0, 3, 5, 6, 11],
    ],
];

#[cfg(test)]
mod tests {
    use super::*;
    use circuits::Lanes;

    /// Every possible input of an S-box, one per bit.
    #[test]
    fn circuits_are_the_specified_s_boxes() {
        let inputs: [u64; 6] =
            std::array::from_fn(|i| (0..64).filter(|x| x >> (5 - i) & 1 == 1).fold(0, |all, x| all | 1 << x));
        let outputs = [
            u64::s_box::<0>(inputs),
            u64::s_box::<1>(inputs),
            u64::s_box::<2>(inputs),
            u64::s_box::<3>(inputs),
            u64::s_box::<4>(inputs),
            u64::s_box::<5>(inputs),
            u64::s_box::<6>(inputs),
            u64::s_box::<7>(inputs),
        ];
        for (number, outputs) in outputs.iter().enumerate() {
            for x in 0..64 {
                let found = outputs.iter().fold(0, |all, output| all << 1 | (output >> x & 1) as u8);
                assert_eq!(found, s_box(number, x), "S{}({x})", number + 1);
            }
        }
    }
}

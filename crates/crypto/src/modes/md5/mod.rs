//! The compression function of MD5 (RFC 1321) on several sectors in parallel, for the IVs of loop-AES, and on several blocks, for
//! those of eCryptfs.
//!
//! One MD5 chain is serial and takes longer than decrypting a sector with AES instructions. Sectors are independent, so
//! each lane of a vector works on another one.

#[cfg(target_arch = "x86_64")]
mod x86;

/// The most sectors processed in parallel.
pub(crate) const LANES: usize = 32;

/// The initial state.
pub(crate) const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Shifts of the rounds (RFC 1321, 3.4).
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The sines of 1 to 64, times 2^32 (RFC 1321, 3.4).
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

/// The words used by the steps of each round, in order: the first, and the stride (RFC 1321, 3.4).
const WORDS: [(usize, usize); 4] = [(0, 1), (1, 5), (5, 3), (0, 7)];

/// An implementation of [`sectors`]: initial state, up to as many sectors as it supports, their tails, the states.
struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    name: &'static str,
    usable: fn() -> bool,
    /// Sectors that it processes together.
    lanes: usize,
    run: fn(&[u32; 4], &[Row<'_>], &mut [[u8; 16]]),
    /// The same for single blocks.
    blocks: Blocks,
}

/// An implementation of [`blocks`]: initial state, up to as many blocks as it supports, the states.
type Blocks = fn(&[u32; 4], &[&[u8; 64]], &mut [[u8; 16]]);

/// A sector of 512 bytes, and the 16 bytes after it.
type Row<'a> = (&'a [u8; 512], &'a [u8; 16]);

/// The fastest first; the last one runs everywhere.
const KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    x86::AVX512,
    #[cfg(target_arch = "x86_64")]
    x86::AVX2,
    Kernel { name: "portable", usable: || true, lanes: 1, run: portable, blocks: portable_blocks },
];

/// From this many blocks on, a vector of them is faster than one after the other.
const FEW: usize = 4;

/// Computes the MD5 state after each block.
pub(crate) fn blocks(start: &[u32; 4], blocks: &[[u8; 64]], out: &mut [[u8; 16]]) {
    let fit = |kernel: &&Kernel| (kernel.usable)() && (kernel.lanes == 1 || blocks.len() >= FEW);
    blocks_with(KERNELS.iter().find(fit).expect("the last one runs everywhere"), start, blocks, out);
}

fn blocks_with(kernel: &Kernel, start: &[u32; 4], blocks: &[[u8; 64]], out: &mut [[u8; 16]]) {
    assert!(blocks.len() == out.len(), "a state for each block");
    for (blocks, out) in blocks.chunks(kernel.lanes).zip(out.chunks_mut(kernel.lanes)) {
        // An incomplete group is filled with its first block.
        let mut rows = [&blocks[0]; LANES];
        rows.iter_mut().zip(blocks).for_each(|(row, given)| *row = given);
        (kernel.blocks)(start, &rows[..kernel.lanes], out);
    }
}

/// For each sector of 512 bytes in `batch`, the MD5 state after its bytes from 16 on and its 16-byte tail.
pub(crate) fn sectors(start: &[u32; 4], batch: &[u8], tails: &[[u8; 16]], out: &mut [[u8; 16]]) {
    let kernel = KERNELS.iter().find(|kernel| (kernel.usable)()).expect("the last one runs everywhere");
    sectors_with(kernel, start, batch, tails, out);
}

fn sectors_with(kernel: &Kernel, start: &[u32; 4], batch: &[u8], tails: &[[u8; 16]], out: &mut [[u8; 16]]) {
    let sectors = batch.as_chunks::<512>().0;
    assert!(512 * tails.len() == batch.len() && tails.len() == out.len(), "a tail and a state for each sector");
    let groups = sectors.chunks(kernel.lanes).zip(tails.chunks(kernel.lanes)).zip(out.chunks_mut(kernel.lanes));
    for ((sectors, tails), out) in groups {
        // An incomplete group is filled with its first sector.
        let mut rows = [(&sectors[0], &tails[0]); LANES];
        rows.iter_mut().zip(sectors.iter().zip(tails)).for_each(|(row, given)| *row = given);
        (kernel.run)(start, &rows[..kernel.lanes], out);
    }
}

fn portable(start: &[u32; 4], rows: &[Row<'_>], out: &mut [[u8; 16]]) {
    for ((sector, tail), out) in rows.iter().zip(out) {
        let mut state = *start;
        let (blocks, rest) = sector[16..].as_chunks::<64>();
        blocks.iter().for_each(|block| compress(&mut state, block));
        compress(&mut state, &last_block(rest, tail));
        *out = bytes(&state);
    }
}

fn portable_blocks(start: &[u32; 4], blocks: &[&[u8; 64]], out: &mut [[u8; 16]]) {
    for (block, out) in blocks.iter().zip(out) {
        let mut state = *start;
        compress(&mut state, block);
        *out = bytes(&state);
    }
}

fn bytes(state: &[u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    bytes
}

/// The end of a sector, and its tail.
fn last_block(rest: &[u8], tail: &[u8; 16]) -> [u8; 64] {
    let mut last = [0; 64];
    last[..48].copy_from_slice(rest);
    last[48..].copy_from_slice(tail);
    last
}

/// Compresses one block.
pub(crate) fn compress(state: &mut [u32; 4], block: &[u8; 64]) {
    let mut words = [0; 16];
    words.iter_mut().zip(block.as_chunks().0).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
    let mut new = *state;
    round::<0>(&mut new, &words, |b, c, d| d ^ (b & (c ^ d)));
    round::<1>(&mut new, &words, |b, c, d| c ^ (d & (b ^ c)));
    round::<2>(&mut new, &words, |b, c, d| b ^ c ^ d);
    round::<3>(&mut new, &words, |b, c, d| c ^ (b | !d));
    for (state, new) in state.iter_mut().zip(new) {
        *state = state.wrapping_add(new);
    }
}

/// 16 steps, whose shifts and places are constants once the loop is unrolled.
#[inline(always)]
fn round<const ROUND: usize>(state: &mut [u32; 4], words: &[u32; 16], mix: impl Fn(u32, u32, u32) -> u32) {
    let (first, step) = WORDS[ROUND];
    let [mut a, mut b, mut c, mut d] = *state;
    for i in 0..16 {
        let sum = words[(first + step * i) % 16].wrapping_add(SINES[16 * ROUND + i]).wrapping_add(a);
        let sum = sum.wrapping_add(mix(b, c, d));
        (a, d, c, b) = (d, c, b, b.wrapping_add(sum.rotate_left(SHIFTS[ROUND][i % 4])));
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_testkit::random::Random;
    use digest::Digest;

    /// With MD5's own padding the last block is like any other.
    #[test]
    fn the_compression_function_is_that_of_md5() {
        let message = Random::new(1).bytes(64 * 3);
        let mut state = START;
        message.as_chunks().0.iter().for_each(|block| compress(&mut state, block));
        let mut padding = [0; 64];
        padding[0] = 0x80;
        padding[56..].copy_from_slice(&(8 * message.len() as u64).to_le_bytes());
        compress(&mut state, &padding);
        let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes, md5::Md5::digest(&message).as_slice());
    }

    #[test]
    fn every_kernel_gives_the_same_at_every_number_of_blocks() {
        let mut random = Random::new(3);
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for count in 1..=2 * LANES + 1 {
                let given = random.bytes(count * 64).as_chunks().0.to_vec();
                let mut expected = vec![[0; 16]; count];
                portable_blocks(&START, &given.iter().collect::<Vec<_>>(), &mut expected);
                let mut found = vec![[0; 16]; count];
                blocks_with(kernel, &START, &given, &mut found);
                assert_eq!(found, expected, "{} with {count} blocks", kernel.name);
                let mut found = vec![[0; 16]; count];
                blocks(&START, &given, &mut found);
                assert_eq!(found, expected, "{count} blocks");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a tail and a state for each sector")]
    fn a_sector_without_a_tail_is_refused() {
        sectors(&START, &[0; 1024], &[[0; 16]], &mut [[0; 16]; 2]);
    }

    #[test]
    fn every_kernel_gives_the_same_at_every_number_of_sectors() {
        let mut random = Random::new(2);
        let start = [1, 0xffff_ffff, 3, 0x8000_0000];
        for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
            for count in 1..=2 * LANES + 1 {
                let batch = random.bytes(count * 512);
                let tails = random.bytes(count * 16).as_chunks().0.to_vec();
                let mut found = vec![[0; 16]; count];
                sectors_with(kernel, &start, &batch, &tails, &mut found);
                let mut expected = vec![[0; 16]; count];
                let rows: Vec<Row<'_>> = batch.as_chunks().0.iter().zip(&tails).collect();
                portable(&start, &rows, &mut expected);
                assert_eq!(found, expected, "{} with {count} sectors", kernel.name);
            }
        }
    }
}

//! The two diffusers on several sectors side by side.
//!
//! Within a sector each word waits for those before it, so each lane of a vector works on another sector: a few sectors are
//! transposed into vectors with one word of each, and back.
//!
//! A cycle changes the words of a sector in turn, each by the words two and five places away, and wraps around at the sector's end.
//! Undoing runs in reverse and subtracts. In running order, applying A and undoing B look back at words already changed; the other
//! two look ahead.

use crate::modes::wipe;

/// A diffuser: its rotations, which repeat every four words, and its cycles.
struct Diffuser {
    rotations: [u32; 4],
    cycles: usize,
}

const A: Diffuser = Diffuser { rotations: [9, 0, 13, 0], cycles: 5 };
const B: Diffuser = Diffuser { rotations: [0, 10, 0, 25], cycles: 3 };

/// Words of the usual sector and of the largest.
const USUAL: usize = 512 / 4;
const LARGEST: usize = 4096 / 4;

/// An implementation.
pub(super) struct Kernel {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which one failed"))]
    pub name: &'static str,
    pub usable: fn() -> bool,
    /// Sectors side by side.
    pub lanes: usize,
    /// Whether to decrypt, the size of a sector in bytes, the sectors.
    pub run: fn(bool, usize, &mut [u8]),
}

/// A vector with one word from each of `N` sectors. Each method may only be called if the processor has the instructions.
pub(super) trait Vector<const N: usize>: Copy {
    /// Little-endian words of one sector.
    unsafe fn read(from: &[[u8; 4]; N]) -> Self;
    unsafe fn write(self, to: &mut [[u8; 4]; N]);
    /// From vectors with `N` words of one sector to vectors with one word of `N` sectors, or the other way.
    unsafe fn transpose(rows: [Self; N]) -> [Self; N];
    unsafe fn load(from: &[u32; N]) -> Self;
    unsafe fn store(self, to: &mut [u32; N]);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Rotates to the left, by less than 32 bits.
    unsafe fn rotate(self, by: u32) -> Self;
}

/// Mixes or unmixes any number of sectors, `N` at a time.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
pub(super) unsafe fn sectors<V: Vector<N>, const N: usize>(decrypt: bool, size: usize, run: &mut [u8]) {
    // Clearing room for the largest sectors would take longer than mixing a few small ones. SAFETY: the caller vouches for the
    // instructions.
    unsafe {
        match size / 4 {
            ..=USUAL => in_room::<V, N, USUAL>(decrypt, size, run),
            _ => in_room::<V, N, LARGEST>(decrypt, size, run),
        }
    }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn in_room<V: Vector<N>, const N: usize, const WORDS: usize>(decrypt: bool, size: usize, run: &mut [u8]) {
    /// Aligned for the widest vector.
    #[repr(align(64))]
    struct Room<const N: usize, const WORDS: usize>([[u32; N]; WORDS]);
    let mut room = Room([[0; N]; WORDS]);
    let words = &mut room.0[..size / 4];
    for group in run.chunks_mut(N * size) {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            gather::<V, N>(group, size, words);
            match decrypt {
                true => {
                    (0..B.cycles).for_each(|_| look_ahead::<V, N, false>(words, &B));
                    (0..A.cycles).for_each(|_| look_back::<V, N, false>(words, &A));
                }
                false => {
                    (0..A.cycles).for_each(|_| look_ahead::<V, N, true>(words, &A));
                    (0..B.cycles).for_each(|_| look_back::<V, N, true>(words, &B));
                }
            }
            scatter::<V, N>(words, group, size);
        }
    }
    wipe(words, [0; N]);
}

/// A cycle that looks back: the last five words are in registers, at first those at the sector's other end.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn look_back<V: Vector<N>, const N: usize, const UNDO: bool>(words: &mut [[u32; N]], diffuser: &Diffuser) {
    let n = words.len();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut last = [1, 2, 3, 4, 5].map(|back| V::load(&words[place::<UNDO>(n - back, n)]));
        for i in (0..n).step_by(4) {
            for j in 0..4 {
                let word = &mut words[place::<UNDO>(i + j, n)];
                let new = changed::<V, N, UNDO>(V::load(word), last[1], last[4], rotation::<UNDO>(diffuser, j));
                new.store(word);
                last = [new, last[0], last[1], last[2], last[3]];
            }
        }
    }
}

/// A cycle that looks ahead: the next five words are in registers. Those beyond the end have been changed when they are read.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn look_ahead<V: Vector<N>, const N: usize, const UNDO: bool>(words: &mut [[u32; N]], diffuser: &Diffuser) {
    let n = words.len();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mut next = [0, 1, 2, 3, 4].map(|i| V::load(&words[place::<UNDO>(i, n)]));
        for i in (0..n).step_by(4) {
            for j in 0..4 {
                let ahead = i + j + 5;
                let ahead = if ahead < n { ahead } else { ahead - n };
                let fifth = V::load(&words[place::<UNDO>(ahead, n)]);
                let new = changed::<V, N, UNDO>(next[0], next[2], fifth, rotation::<UNDO>(diffuser, j));
                new.store(&mut words[place::<UNDO>(i + j, n)]);
                next = [next[1], next[2], next[3], next[4], fifth];
            }
        }
    }
}

/// The index of the word whose turn comes after `turn` others.
#[inline(always)]
fn place<const UNDO: bool>(turn: usize, words: usize) -> usize {
    if UNDO { words - 1 - turn } else { turn }
}

/// The rotation for that word.
#[inline(always)]
fn rotation<const UNDO: bool>(diffuser: &Diffuser, turn: usize) -> u32 {
    diffuser.rotations[place::<UNDO>(turn, 4)]
}

/// A word, changed by those two and five places away.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn changed<V: Vector<N>, const N: usize, const UNDO: bool>(word: V, two: V, five: V, rotation: u32) -> V {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let change = two.xor(five.rotate(rotation));
        if UNDO { word.sub(change) } else { word.add(change) }
    }
}

/// Gathers the words of at most `N` sectors: each vector has the same word of all of them. Lanes without a sector repeat the last
/// one.
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn gather<V: Vector<N>, const N: usize>(group: &[u8], size: usize, words: &mut [[u32; N]]) {
    let last = group.len() / size - 1;
    let rows = group.as_chunks::<4>().0.as_chunks::<N>().0;
    for (column, words) in words.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let row = |lane: usize| V::read(&rows[lane.min(last) * (size / 4 / N) + column]);
            let vectors = V::transpose(std::array::from_fn(row));
            (0..N).for_each(|i| vectors[i].store(&mut words[i]));
        }
    }
}

/// The inverse of [`gather`].
///
/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn scatter<V: Vector<N>, const N: usize>(words: &[[u32; N]], group: &mut [u8], size: usize) {
    let sectors = group.len() / size;
    let rows = group.as_chunks_mut::<4>().0.as_chunks_mut::<N>().0;
    for (column, words) in words.as_chunks::<N>().0.iter().enumerate() {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let vectors = V::transpose(std::array::from_fn(|i| V::load(&words[i])));
            for lane in 0..N {
                if lane < sectors {
                    vectors[lane].write(&mut rows[lane * (size / 4 / N) + column]);
                }
            }
        }
    }
}

/// Vectors of 4 sectors, anywhere.
pub(super) const PORTABLE: Kernel = Kernel {
    name: "portable",
    usable: || true,
    lanes: 4,
    // SAFETY: it takes no special instructions.
    run: |decrypt, size, run| unsafe { sectors::<[u32; 4], 4>(decrypt, size, run) },
};

/// Arrays of words, which the compiler vectorises where it can.
impl<const N: usize> Vector<N> for [u32; N] {
    #[inline(always)]
    unsafe fn read(from: &[[u8; 4]; N]) -> Self {
        from.map(u32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn write(self, to: &mut [[u8; 4]; N]) {
        *to = self.map(u32::to_le_bytes);
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; N]) -> [Self; N] {
        std::array::from_fn(|i| rows.map(|row| row[i]))
    }
    #[inline(always)]
    unsafe fn load(from: &[u32; N]) -> Self {
        *from
    }
    #[inline(always)]
    unsafe fn store(self, to: &mut [u32; N]) {
        *to = self;
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_add(other[i]))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_sub(other[i]))
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] ^ other[i])
    }
    #[inline(always)]
    unsafe fn rotate(self, by: u32) -> Self {
        self.map(|word| word.rotate_left(by))
    }
}

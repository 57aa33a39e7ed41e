//! Argon2i and Argon2id (RFC 9106, version 0x13), in memory that is held and wiped like all secrets.
//!
//! This implementation is our own, because the crate `argon2` can neither be cancelled nor fill lanes on threads that it did not
//! start itself.
#![allow(unsafe_code, reason = "threads fill lanes of one matrix, each its own")]

mod block;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use blake2::Blake2bVarCore;
use digest::block_api::{Buffer, UpdateCore, VariableOutputCore};
use zeroize::Zeroize;

use crate::pool::Pool;
use crate::secret::{Secret, wipe_stack};
use block::{BLOCK, Block, Compress};

/// The variant of Argon2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Argon2i: memory accesses do not depend on the password.
    I,
    /// Argon2id: like Argon2i in the first half of the first pass, password-dependent from then on.
    #[default]
    Id,
}

/// The cost of a derivation, and its inputs beside password and salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    /// The variant of Argon2.
    pub variant: Variant,
    /// Memory in KiB: at least 8 per lane.
    pub memory_kib: u32,
    /// Passes over the memory: at least 1.
    pub passes: u32,
    /// Lanes, which can be filled in parallel: 1 to 16,777,215.
    pub lanes: u32,
    /// A key of the deriving party, K in RFC 9106. No disk format uses one.
    pub secret: &'a [u8],
    /// Associated data, X in RFC 9106. No disk format uses any.
    pub data: &'a [u8],
}

/// Why nothing was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argon2Error {
    /// There is not enough memory.
    TooLittleMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// Parameters that RFC 9106 does not allow, and why.
    Parameters(String),
    /// The caller cancelled.
    Stopped,
}

impl fmt::Display for Argon2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLittleMemory { needed, available } => {
                write!(f, "Argon2 needs {needed} bytes of memory, but only {available} are available")
            }
            Self::Parameters(why) => write!(f, "invalid Argon2 parameters: {why}"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Argon2Error {}

impl Params<'_> {
    /// Bytes of memory that a derivation needs.
    pub fn memory(&self) -> u64 {
        u64::from(self.memory_kib) << 10
    }

    /// Checks the parameters for deriving `len` bytes (at least 4) from a salt of at least 8 (RFC 9106, section 3.1).
    ///
    /// # Errors
    /// `Parameters`.
    pub fn check(&self, salt: usize, len: usize) -> Result<(), Argon2Error> {
        let wrong = |why: String| Err(Argon2Error::Parameters(why));
        match self {
            Self { lanes: 0 | 0x100_0000.., .. } => wrong(format!("{} lanes", self.lanes)),
            Self { passes: 0, .. } => wrong("no pass over the memory".to_owned()),
            _ if u64::from(self.memory_kib) < 8 * u64::from(self.lanes) => {
                wrong(format!("{} KiB of memory for {} lanes", self.memory_kib, self.lanes))
            }
            _ if salt < 8 => wrong(format!("a salt of {salt} bytes")),
            _ if len < 4 || u32::try_from(len).is_err() => wrong(format!("{len} bytes to derive")),
            _ => Ok(()),
        }
    }

    /// Fills `out` from the password and a salt. `available` is the number of bytes of memory that it may use. A derivation that
    /// needs more is refused before any memory is touched, because a system that overcommits kills processes that use the promised
    /// memory. Lanes are filled on the threads of `pool`. `go_on` is asked every few blocks whether to continue.
    ///
    /// # Errors `TooLittleMemory`, also if the system refuses the available memory; `Parameters`; `Stopped` when `go_on` said no.
    pub fn derive(
        &self,
        password: &[u8],
        salt: &[u8],
        available: u64,
        pool: &Pool,
        go_on: &(dyn Fn() -> bool + Sync),
        out: &mut [u8],
    ) -> Result<(), Argon2Error> {
        self.check(salt.len(), out.len())?;
        let needed = self.memory();
        if needed > available {
            return Err(Argon2Error::TooLittleMemory { needed, available });
        }
        let segment = (self.memory_kib / (4 * self.lanes)) as usize;
        let len = segment.checked_mul(SLICES * self.lanes as usize * BLOCK);
        let memory = len.and_then(Secret::try_zeroed);
        let mut memory = memory.ok_or(Argon2Error::TooLittleMemory { needed, available: 0 })?;
        let matrix = Matrix::new(&mut memory, self, segment);
        let begun = matrix.begin(&self.first_hash(password, salt, out.len()), go_on);
        let filled = begun && matrix.fill(pool, go_on) && matrix.finish(go_on, out);
        wipe_stack();
        if filled { Ok(()) } else { Err(Argon2Error::Stopped) }
    }

    /// H0 (section 3.2, step 1).
    fn first_hash(&self, password: &[u8], salt: &[u8], len: usize) -> Secret {
        let number = |n: usize| (n as u32).to_le_bytes();
        let mut hash = Secret::zeroed(64);
        blake2b(
            &[
                &self.lanes.to_le_bytes(),
                &number(len),
                &self.memory_kib.to_le_bytes(),
                &self.passes.to_le_bytes(),
                &VERSION.to_le_bytes(),
                &self.variant.number().to_le_bytes(),
                &number(password.len()),
                password,
                &number(salt.len()),
                salt,
                &number(self.secret.len()),
                self.secret,
                &number(self.data.len()),
                self.data,
            ],
            &mut hash,
        );
        hash
    }
}

impl Variant {
    /// The variant's number in the first hash (section 3.1, "type").
    fn number(self) -> u32 {
        match self {
            Self::I => 1,
            Self::Id => 2,
        }
    }
}

const VERSION: u32 = 0x13;

/// Slices of each lane. The lanes wait for each other after each slice.
const SLICES: usize = 4;

/// Blocks filled between two checks for cancellation: less than 100 µs.
const CHECK_EVERY: usize = 64;

/// The memory: lanes of four segments each. Within a slice each thread writes one lane's segment and reads other lanes
/// only in other slices.
struct Matrix<'a> {
    blocks: *mut Block,
    params: &'a Params<'a>,
    /// Blocks in a segment.
    segment: usize,
    compress: Compress,
}

// SAFETY: the pointer is to memory that `derive` has borrowed mutably for the matrix's lifetime, and each thread writes
// to segments of its own; see `fill_segment`.
unsafe impl Sync for Matrix<'_> {}

impl<'a> Matrix<'a> {
    fn new(memory: &'a mut Secret, params: &'a Params<'a>, segment: usize) -> Self {
        // SAFETY: a block is 128 integers without padding, for which any bytes are valid.
        let (before, blocks, _) = unsafe { memory.align_to_mut::<Block>() };
        assert!(before.is_empty(), "secrets begin on a page boundary");
        assert_eq!(blocks.len(), segment * SLICES * params.lanes as usize);
        Self { blocks: blocks.as_mut_ptr(), params, segment, compress: block::best() }
    }

    fn lanes(&self) -> usize {
        self.params.lanes as usize
    }

    /// Blocks in a lane.
    fn lane_len(&self) -> usize {
        self.segment * SLICES
    }

    /// The first two blocks of each lane (section 3.2, steps 3 and 4). Returns false when `go_on` said no.
    fn begin(&self, hash: &[u8], go_on: &(dyn Fn() -> bool + Sync)) -> bool {
        let mut bytes = Secret::zeroed(BLOCK);
        for lane in 0..self.lanes() {
            if !go_on() {
                return false;
            }
            for column in 0..2 {
                let numbers = [(column as u32).to_le_bytes(), (lane as u32).to_le_bytes()];
                long_hash(&[hash, &numbers[0], &numbers[1]], &mut bytes);
                // SAFETY: a lane has at least 8 blocks, and no other thread uses the memory yet.
                unsafe { (*self.blocks.add(lane * self.lane_len() + column)).load(&bytes) };
            }
        }
        true
    }

    /// Fills the memory, pass by pass. Returns false when `go_on` said no.
    fn fill(&self, pool: &Pool, go_on: &(dyn Fn() -> bool + Sync)) -> bool {
        let stopped = AtomicBool::new(false);
        for pass in 0..self.params.passes {
            for slice in 0..SLICES {
                pool.run(self.lanes(), &|lane| {
                    // Checked for each lane: there may be millions of lanes, each with very little work.
                    if stopped.load(Ordering::Relaxed) || !go_on() {
                        stopped.store(true, Ordering::Relaxed);
                        return;
                    }
                    // SAFETY: within this call of `run` each lane is handed out once and the slice is the same for all.
                    let filled = unsafe { self.fill_segment(SegmentOfPass { pass, slice, lane }, go_on) };
                    if !filled {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    wipe_stack();
                });
                if stopped.load(Ordering::Relaxed) {
                    return false;
                }
            }
        }
        true
    }

    /// Fills one segment (section 3.2, steps 5 and 6). Returns false when `go_on` said no.
    ///
    /// # Safety
    /// Nobody else writes to this segment in the meantime, and all concurrent writes are in the same slice.
    unsafe fn fill_segment(&self, place: SegmentOfPass, go_on: &(dyn Fn() -> bool + Sync)) -> bool {
        let SegmentOfPass { pass, slice, lane } = place;
        let mut addresses = self.independent(place).then(|| Addresses::new(self, place));
        let start = lane * self.lane_len() + slice * self.segment;
        for index in self.to_fill(place) {
            if index % CHECK_EVERY == 0 && !go_on() {
                return false;
            }
            let current = start + index;
            let first_of_lane = slice == 0 && index == 0;
            let previous = if first_of_lane { current + self.lane_len() - 1 } else { current - 1 };
            // SAFETY: the block before this one is in the same lane, which no other thread writes.
            let previous = unsafe { &*self.blocks.add(previous) };
            let random = match &mut addresses {
                Some(addresses) => {
                    let random = addresses.of(index, self.compress);
                    if index + 1 < self.segment {
                        let next = addresses.of(index + 1, self.compress);
                        // SAFETY: `referenced` gives a block of the matrix.
                        block::prefetch(unsafe { self.blocks.add(self.referenced(place, index + 1, next)) });
                    }
                    random
                }
                None => previous.0[0],
            };
            let other = self.referenced(place, index, random);
            // SAFETY: `referenced` gives a block before this one in the same lane, or one of another slice: neither is
            // being written. It lies within the matrix.
            let other = unsafe { &*self.blocks.add(other) };
            // SAFETY: `current` is in this thread's own segment; it is neither `previous` nor `other`, which RFC 9106
            // takes from what was filled before.
            let current = unsafe { &mut *self.blocks.add(current) };
            (self.compress)(previous, other, current, pass > 0);
        }
        true
    }

    /// The blocks of a segment to fill: the first two of each lane exist from the start.
    fn to_fill(&self, place: SegmentOfPass) -> Range<usize> {
        let first = if place.pass == 0 && place.slice == 0 { 2 } else { 0 };
        first..self.segment
    }

    /// Whether addresses in this segment are independent of the password.
    fn independent(&self, place: SegmentOfPass) -> bool {
        match self.params.variant {
            Variant::I => true,
            Variant::Id => place.pass == 0 && place.slice < SLICES / 2,
        }
    }

    /// The block that is combined with the previous one into block `index` of a segment (section 3.4.2).
    fn referenced(&self, place: SegmentOfPass, index: usize, random: u64) -> usize {
        let SegmentOfPass { pass, slice, lane: own } = place;
        let first = pass == 0 && slice == 0;
        let lane = if first { own } else { (random >> 32) as usize % self.lanes() };
        // The blocks of complete segments, and the usable part of this segment so far.
        let complete = if pass == 0 { slice } else { SLICES - 1 } * self.segment;
        let area = match lane == own {
            true => complete + index - 1,
            false if index == 0 => complete - 1,
            false => complete,
        };
        let x = (random & 0xffff_ffff).pow(2) >> 32;
        let back = (area as u64 * x) >> 32;
        let from = if pass == 0 { 0 } else { (slice + 1) % SLICES * self.segment };
        let column = (from + area - 1 - back as usize) % self.lane_len();
        lane * self.lane_len() + column
    }

    /// Hashes the last column (section 3.2, steps 7 and 8). Returns false when `go_on` said no.
    fn finish(&self, go_on: &(dyn Fn() -> bool + Sync), out: &mut [u8]) -> bool {
        let mut sum = Secret::zeroed(BLOCK);
        for lane in 0..self.lanes() {
            if !go_on() {
                return false;
            }
            // SAFETY: the last block of a lane is in the matrix, and no thread uses it any more.
            let last = unsafe { &*self.blocks.add((lane + 1) * self.lane_len() - 1) };
            for (sum, word) in sum.chunks_mut(8).zip(&last.0) {
                sum.iter_mut().zip(word.to_le_bytes()).for_each(|(s, w)| *s ^= w);
            }
        }
        long_hash(&[&sum], out);
        true
    }
}

/// A segment, in a pass.
#[derive(Clone, Copy)]
struct SegmentOfPass {
    pass: u32,
    slice: usize,
    lane: usize,
}

/// Password-independent random numbers (section 3.4.1.2).
struct Addresses {
    input: Block,
    block: Block,
    /// Which group of 128 `block` holds.
    group: Option<usize>,
}

impl Addresses {
    fn new(matrix: &Matrix<'_>, place: SegmentOfPass) -> Self {
        let params = matrix.params;
        let blocks = matrix.lanes() * matrix.lane_len();
        let mut input = Block::ZERO;
        let numbers = [
            u64::from(place.pass),
            place.lane as u64,
            place.slice as u64,
            blocks as u64,
            u64::from(params.passes),
            u64::from(params.variant.number()),
        ];
        input.0[..6].copy_from_slice(&numbers);
        Self { input, block: Block::ZERO, group: None }
    }

    fn of(&mut self, index: usize, compress: Compress) -> u64 {
        let group = index / self.block.0.len();
        if self.group != Some(group) {
            self.group = Some(group);
            self.input.0[6] = group as u64 + 1;
            let mut half = Block::ZERO;
            compress(&Block::ZERO, &self.input, &mut half, false);
            compress(&Block::ZERO, &half, &mut self.block, false);
        }
        self.block.0[index % self.block.0.len()]
    }
}

/// The variable-length hash, H' (section 3.3).
fn long_hash(parts: &[&[u8]], out: &mut [u8]) {
    const WHOLE: usize = 64;
    let len = (out.len() as u32).to_le_bytes();
    let parts: Vec<&[u8]> = std::iter::once(&len[..]).chain(parts.iter().copied()).collect();
    if out.len() <= WHOLE {
        return blake2b(&parts, out);
    }
    // One secret for both: two would be wiped one by one, and a header may ask for millions of these hashes.
    let mut both = Secret::zeroed(2 * WHOLE);
    let (mut last, mut next) = both.split_at_mut(WHOLE);
    blake2b(&parts, last);
    let mut rest = out;
    loop {
        let (half, after) = rest.split_at_mut(WHOLE / 2);
        half.copy_from_slice(&last[..WHOLE / 2]);
        rest = after;
        if rest.len() <= WHOLE {
            return blake2b(&[last], rest);
        }
        blake2b(&[last], next);
        std::mem::swap(&mut last, &mut next);
    }
}

/// BLAKE2b (RFC 7693) with a digest as long as `out`: 1 to 64 bytes.
fn blake2b(parts: &[&[u8]], out: &mut [u8]) {
    let mut core = Blake2bVarCore::new(out.len()).expect("BLAKE2b has digests of 1 to 64 bytes");
    let mut buffer = Buffer::<Blake2bVarCore>::default();
    parts.iter().for_each(|part| buffer.digest_blocks(part, |blocks| core.update_blocks(blocks)));
    let mut digest = digest::Output::<blake2::Blake2b512>::default();
    core.finalize_variable_core(&mut buffer, &mut digest);
    out.copy_from_slice(&digest[..out.len()]);
    digest.as_mut_slice().zeroize();
}

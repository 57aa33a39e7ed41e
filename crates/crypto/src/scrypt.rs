//! scrypt (RFC 7914), in memory that is held and wiped like all secrets. This implementation is our own, because the crate `scrypt`
//! can neither be cancelled nor work in such memory. Its memory accesses depend on the password, as the function demands.

use std::fmt;

use zeroize::Zeroize;

use crate::hash::SHA256;
use crate::secret::{Secret, wipe_stack};

/// Bytes of a block of Salsa20.
const BLOCK: usize = 64;

/// Words of a block of Salsa20.
const WORDS: usize = 16;

/// The most bytes of memory for which [`ScryptParams::check`] succeeds.
const MOST_MEMORY: u64 = 1 << 40;

/// The cost of a derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScryptParams {
    /// The number of steps, and of chunks of memory: N, a power of two.
    pub n: u64,
    /// Size of a chunk in units of 128 bytes: r.
    pub r: u32,
    /// How often the memory is filled, one time after the other: p.
    pub p: u32,
}

/// Why nothing was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScryptError {
    /// There is not enough memory.
    TooLittleMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// Parameters that RFC 7914 does not allow, and why.
    Parameters(String),
    /// The caller cancelled.
    Stopped,
}

impl fmt::Display for ScryptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLittleMemory { needed, available } => {
                write!(f, "scrypt needs {needed} bytes of memory, but only {available} are available")
            }
            Self::Parameters(why) => write!(f, "invalid scrypt parameters: {why}"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for ScryptError {}

impl ScryptParams {
    /// Checks the parameters (section 6).
    ///
    /// # Errors
    /// `Parameters`; `TooLittleMemory` for more memory than any machine has.
    pub fn check(&self) -> Result<(), ScryptError> {
        let Self { n, r, p } = *self;
        let wrong = |why: String| Err(ScryptError::Parameters(why));
        let product = u64::from(r) * u64::from(p);
        match self.memory() {
            _ if !n.is_power_of_two() || n < 2 => wrong(format!("N = {n}, which is not a power of two above 1")),
            _ if product == 0 || product >= 1 << 30 => wrong(format!("r = {r} and p = {p}")),
            Some(needed) if needed <= MOST_MEMORY => Ok(()),
            needed => Err(ScryptError::TooLittleMemory { needed: needed.unwrap_or(u64::MAX), available: MOST_MEMORY }),
        }
    }

    /// Bytes of memory that a derivation needs; `None` for more than 64 bits can count.
    pub fn memory(&self) -> Option<u64> {
        // The chunks, room to work in, and the blocks that are mixed.
        let chunk = 128 * u64::from(self.r);
        self.n.checked_add(2)?.checked_add(self.p.into())?.checked_mul(chunk)
    }

    /// How many blocks Salsa20/8 is computed for: a measure of the time.
    pub fn steps(&self) -> u64 {
        [4, self.r.into(), self.p.into()].iter().fold(self.n, |steps, factor: &u64| steps.saturating_mul(*factor))
    }

    /// Fills `out` from a password and a salt. `available` is the number of bytes of memory that it may use. A derivation that needs
    /// more is refused before any memory is touched. `go_on` is asked every few thousand blocks whether to continue.
    ///
    /// # Errors
    /// `Parameters`; `TooLittleMemory`, also if the system refuses the available memory; `Stopped` when `go_on` said no.
    pub fn derive(
        &self,
        password: &[u8],
        salt: &[u8],
        available: u64,
        go_on: &dyn Fn() -> bool,
        out: &mut [u8],
    ) -> Result<(), ScryptError> {
        self.check()?;
        let needed = self.memory().unwrap_or(u64::MAX);
        if needed > available {
            return Err(ScryptError::TooLittleMemory { needed, available });
        }
        let none = || ScryptError::TooLittleMemory { needed, available: 0 };
        let room = |len: u64| usize::try_from(len).ok().and_then(Secret::try_zeroed).ok_or_else(none);
        let chunk = 128 * u64::from(self.r);
        let (mut blocks, mut memory) = (room(chunk * u64::from(self.p))?, room(chunk * self.n)?);
        let mut work = room(2 * chunk)?;
        if !SHA256.pbkdf2(password, salt, 1, &mut blocks, &|| true) {
            return Err(ScryptError::Stopped);
        }
        let mixed = blocks.chunks_mut(chunk as usize).all(|block| mix(block, &mut memory, &mut work, go_on));
        let done = mixed && SHA256.pbkdf2(password, &blocks, 1, out, &|| true);
        wipe_stack();
        if done { Ok(()) } else { Err(ScryptError::Stopped) }
    }
}

/// Blocks of Salsa20 between two questions whether to go on.
const ASK_EVERY: usize = 4096;

/// scryptROMix (section 5): returns false when `go_on` said no. `memory` has room for N chunks as long as `block`, `work` for two.
fn mix(block: &mut [u8], memory: &mut [u8], work: &mut [u8], go_on: &dyn Fn() -> bool) -> bool {
    let (chunk, steps) = (block.len(), memory.len() / block.len());
    let every = (ASK_EVERY * BLOCK / chunk).max(1);
    let (mut now, mut next) = work.split_at_mut(chunk);
    now.copy_from_slice(block);
    for (step, place) in memory.chunks_mut(chunk).enumerate() {
        if step % every == 0 && !go_on() {
            return false;
        }
        place.copy_from_slice(now);
        mix_chunk(now, next);
        std::mem::swap(&mut now, &mut next);
    }
    for step in 0..steps {
        if step % every == 0 && !go_on() {
            return false;
        }
        let last = &now[chunk - BLOCK..];
        let number = u64::from_le_bytes(last[..8].try_into().expect("eight bytes"));
        // N is a power of two.
        let chosen = &memory[(number as usize & (steps - 1)) * chunk..][..chunk];
        now.iter_mut().zip(chosen).for_each(|(byte, other)| *byte ^= other);
        mix_chunk(now, next);
        std::mem::swap(&mut now, &mut next);
    }
    block.copy_from_slice(now);
    true
}

/// scryptBlockMix (section 4) of `from` into `to`.
fn mix_chunk(from: &[u8], to: &mut [u8]) {
    let half = from.len() / BLOCK / 2;
    let mut sum = loaded(&from[from.len() - BLOCK..]);
    for (i, block) in from.chunks_exact(BLOCK).enumerate() {
        sum.iter_mut().zip(loaded(block)).for_each(|(sum, word)| *sum ^= word);
        salsa20_8(&mut sum);
        // First the even ones, then the odd ones.
        let place = (i / 2 + i % 2 * half) * BLOCK;
        for (bytes, word) in to[place..][..BLOCK].chunks_exact_mut(4).zip(sum) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    sum.zeroize();
}

fn loaded(block: &[u8]) -> [u32; WORDS] {
    let (words, _) = block.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// A row of four words.
type Row = [u32; 4];

/// Salsa20/8 (section 3). The words are arranged so that each step works on four columns at once: diagonals become rows, and
/// columns and rows of the matrix alternate by rotating rows.
fn salsa20_8(block: &mut [u32; WORDS]) {
    const DIAGONALS: [[usize; 4]; 4] = [[0, 5, 10, 15], [4, 9, 14, 3], [8, 13, 2, 7], [12, 1, 6, 11]];
    let [mut a, mut b, mut c, mut d] = DIAGONALS.map(|row| row.map(|i| block[i]));
    let step = |to: &mut Row, one: &Row, other: &Row, by: u32| {
        for i in 0..4 {
            to[i] ^= one[i].wrapping_add(other[i]).rotate_left(by);
        }
    };
    for _ in 0..4 {
        step(&mut b, &a, &d, 7);
        step(&mut c, &b, &a, 9);
        step(&mut d, &c, &b, 13);
        step(&mut a, &d, &c, 18);
        (b, c, d) = (turned::<3>(b), turned::<2>(c), turned::<1>(d));
        step(&mut d, &a, &b, 7);
        step(&mut c, &d, &a, 9);
        step(&mut b, &c, &d, 13);
        step(&mut a, &b, &c, 18);
        (b, c, d) = (turned::<1>(b), turned::<2>(c), turned::<3>(d));
    }
    for (row, places) in [a, b, c, d].iter().zip(DIAGONALS) {
        for (word, place) in row.iter().zip(places) {
            block[place] = block[place].wrapping_add(*word);
        }
    }
}

/// The row with its words moved `BY` places to the left.
fn turned<const BY: usize>(row: Row) -> Row {
    std::array::from_fn(|i| row[(i + BY) % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(password: &str, salt: &str, [n, r, p]: [u32; 3]) -> String {
        let mut out = [0; 64];
        let params = ScryptParams { n: n.into(), r, p };
        params.derive(password.as_bytes(), salt.as_bytes(), u64::MAX, &|| true, &mut out).expect("derived");
        out.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 7914, section 12.
    #[test]
    fn it_derives_what_the_rfc_says() {
        assert_eq!(
            derived("", "", [16, 1, 1]),
            "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442fcd0069ded0948f8326a753a0fc81f17\
             e8d3e0fb2e0d3628cf35e20c38d18906"
        );
        assert_eq!(
            derived("password", "NaCl", [1024, 8, 16]),
            "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b3731622eaf30d92e22a3886ff109279d9830da\
             c727afb94a83ee6d8360cbdfa2cc0640"
        );
        assert_eq!(
            derived("pleaseletmein", "SodiumChloride", [16384, 8, 1]),
            "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2d5432955613f0fcf62d49705242a9af9\
             e61e85dc0d651e40dfcf017b45575887"
        );
    }

    #[test]
    fn absurd_costs_are_refused_before_any_work() {
        let derive = |n, r, p, available| {
            ScryptParams { n, r, p }.derive(b"", b"", available, &|| panic!("no work was asked for"), &mut [0; 32])
        };
        for (n, r, p) in [(0, 8, 1), (1, 8, 1), (1000, 8, 1), (1024, 0, 1), (1024, 8, 0), (2, 1 << 15, 1 << 15)] {
            assert!(matches!(derive(n, r, p, u64::MAX), Err(ScryptError::Parameters(_))), "{n} {r} {p}");
        }
        for (n, r, p) in [(1 << 63, u32::MAX / 8, 1), (1 << 40, 8, 1), (2, 1, (1 << 30) - 1)] {
            let refused = derive(n, r, p, 1 << 20);
            assert!(matches!(refused, Err(ScryptError::TooLittleMemory { .. })), "{n} {r} {p}: {refused:?}");
        }
        let needed = ScryptParams { n: 1024, r: 8, p: 1 }.memory().expect("it fits");
        let short = ScryptError::TooLittleMemory { needed, available: needed - 1 };
        assert_eq!(derive(1024, 8, 1, needed - 1), Err(short));
    }

    #[test]
    fn it_stops_when_told() {
        for most in [0, 1, 5] {
            let asked = std::cell::Cell::new(0);
            let go_on = || asked.replace(asked.get() + 1) < most;
            let stopped = ScryptParams { n: 1 << 14, r: 8, p: 2 }.derive(b"", b"", u64::MAX, &go_on, &mut [0; 32]);
            assert_eq!((stopped, asked.get()), (Err(ScryptError::Stopped), most + 1));
        }
    }
}

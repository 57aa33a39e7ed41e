//! What an observer without a key can measure: whether a store looks like noise, and where two copies of it differ.

use serde::Serialize;

use crate::error::Result;
use crate::filesystems::magic::looks_random;
use crate::store::Store;

/// The unit of all measurements, in bytes.
const SECTOR: usize = 512;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// The number of parts that changes are counted in.
pub const PARTS: usize = 64;

/// How much a store looks like noise. Every whole sector of 512 bytes is examined.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Noise {
    /// Sectors.
    pub sectors: u64,
    /// Sectors of zeros only.
    pub zeros: u64,
    /// Sectors that are not noise, other than zeros. Of real noise, less than one sector in 10^9 is counted here.
    pub ordered: u64,
    /// The offset of the first sector of either kind.
    pub first: Option<u64>,
    /// The deviation of the byte frequencies in all other sectors from those of noise, in standard deviations. Beyond 4.9, up or
    /// down, it occurs once in 10^6 volumes of noise.
    pub deviation: f64,
}

impl Noise {
    /// Examines all of `store`. `done` gets the number of bytes read so far, and its error ends the work.
    ///
    /// # Errors
    /// `Io`, and those of `done`.
    pub fn of(store: &dyn Store, done: &mut dyn FnMut(u64) -> Result<()>) -> Result<Self> {
        let mut noise = Self::default();
        let mut counts = [0u64; 256];
        for_each_piece(store.len(), &mut |at, len| {
            let mut bytes = vec![0; len];
            store.read_at(at, &mut bytes)?;
            for (number, sector) in (0..).zip(bytes.chunks_exact(SECTOR)) {
                noise.sectors += 1;
                if looks_random(sector) {
                    sector.iter().for_each(|b| counts[usize::from(*b)] += 1);
                    continue;
                }
                noise.first.get_or_insert(at + number * SECTOR as u64);
                let zeros = sector.iter().all(|b| *b == 0);
                *if zeros { &mut noise.zeros } else { &mut noise.ordered } += 1;
            }
            done(at + len as u64)
        })?;
        noise.deviation = deviation(&counts);
        Ok(noise)
    }
}

/// Pearson's chi-square of byte frequencies as standard deviations (Wilson and Hilferty, 1931).
fn deviation(counts: &[u64; 256]) -> f64 {
    let all: u64 = counts.iter().sum();
    // With fewer bytes the distribution is not close to normal.
    if all < 1 << 16 {
        return 0.0;
    }
    let expected = all as f64 / 256.0;
    let chi_square: f64 = counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
    let spread = 2.0 / (9.0 * 255.0);
    ((chi_square / 255.0).cbrt() - (1.0 - spread)) / f64::sqrt(spread)
}

/// Where two copies of a store differ.
#[derive(Clone, Debug, Serialize)]
pub struct Changes {
    /// Sectors of 512 bytes that were compared: those that both copies have.
    pub sectors: u64,
    /// Sectors that differ.
    pub changed: u64,
    /// How many differ in each of [`PARTS`] equal parts.
    pub parts: Vec<u64>,
}

impl Changes {
    /// Compares two copies. `each` gets the offset of every sector that differs; `done` is as for [`Noise::of`].
    ///
    /// # Errors
    /// `Io`, and those of `each` and `done`.
    pub fn between(
        earlier: &dyn Store,
        later: &dyn Store,
        each: &mut dyn FnMut(u64) -> Result<()>,
        done: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let sectors = earlier.len().min(later.len()) / SECTOR as u64;
        let mut changes = Self { sectors, changed: 0, parts: vec![0; PARTS] };
        for_each_piece(sectors * SECTOR as u64, &mut |at, len| {
            let (mut old, mut new) = (vec![0; len], vec![0; len]);
            earlier.read_at(at, &mut old)?;
            later.read_at(at, &mut new)?;
            for (number, (a, b)) in (at / SECTOR as u64..).zip(old.chunks(SECTOR).zip(new.chunks(SECTOR))) {
                if a != b {
                    changes.changed += 1;
                    changes.parts[(u128::from(number) * PARTS as u128 / u128::from(sectors)) as usize] += 1;
                    each(number * SECTOR as u64)?;
                }
            }
            done(at + len as u64)
        })?;
        Ok(changes)
    }
}

fn for_each_piece(len: u64, each: &mut dyn FnMut(u64, usize) -> Result<()>) -> Result<()> {
    (0..len).step_by(PIECE).try_for_each(|at| each(at, (len - at).min(PIECE as u64) as usize))
}

/// Whether the sector of 512 bytes at `at` is like noise.
///
/// # Errors
/// `Io`.
pub fn is_noise(store: &dyn Store, at: u64) -> Result<bool> {
    super::content::could_be_a_header(store, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn random(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        getrandom::fill(&mut bytes).expect("random bytes");
        bytes
    }

    fn noise(bytes: Vec<u8>) -> Noise {
        Noise::of(&MemoryStore::new(bytes), &mut |_| Ok(())).expect("memory")
    }

    #[test]
    fn noise_is_noise_and_every_other_sector_is_counted() {
        let seen = noise(random((3 << 20) + 512));
        assert_eq!((seen.sectors, seen.zeros, seen.ordered, seen.first), (6145, 0, 0, None));
        assert!(seen.deviation.abs() < 4.9, "{}", seen.deviation);
        let mut bytes = random(2 << 20);
        bytes[1 << 20..][..1024].fill(0);
        bytes[(1 << 20) + 5120..][..512].copy_from_slice(&b"four".repeat(128));
        let seen = noise(bytes);
        assert_eq!((seen.zeros, seen.ordered, seen.first), (2, 1, Some(1 << 20)));
    }

    /// A bias of one bit in 64 does not show in a single sector.
    #[test]
    fn a_bias_that_no_sector_shows_is_seen_in_all_of_them() {
        let mut bytes = random(4 << 20);
        bytes.iter_mut().step_by(8).for_each(|b| *b &= 0x7f);
        let seen = noise(bytes);
        assert_eq!((seen.zeros, seen.ordered), (0, 0));
        assert!(seen.deviation > 4.9, "{}", seen.deviation);
        // Exactly equal frequencies are not noise either.
        assert!(deviation(&[4096; 256]) < -4.9);
    }

    #[test]
    fn changes_are_found_in_their_part() {
        let old = random(8 << 20);
        let mut new = old.clone();
        for at in [0, 511, 512, (8 << 20) - 1] {
            new[at] ^= 1;
        }
        new.extend([7; 4096]);
        let mut found = Vec::new();
        let (old, new) = (MemoryStore::new(old), MemoryStore::new(new));
        let each = &mut |at| {
            found.push(at);
            Ok(())
        };
        let changes = Changes::between(&old, &new, each, &mut |_| Ok(())).expect("memory");
        assert_eq!((changes.sectors, changes.changed), (16384, 3));
        assert_eq!((changes.parts[0], changes.parts[PARTS - 1], changes.parts.iter().sum()), (2, 1, 3));
        assert_eq!(found, [0, 512, (8 << 20) - 512]);
    }
}

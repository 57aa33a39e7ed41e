//! Damage in the areas of keyslots, found without a credential.
//!
//! Keys are split and encrypted in their areas, so every byte looks random. Damage that looks random, too, cannot be detected: only a
//! credential that opens the keyslot proves that its area is intact. The main test is Pearson's chi-square over byte values, per
//! block, as in the keyslot check of recent versions of `cryptsetup repair`.
//!
//! An undamaged area of 512,000 bytes, the largest of any usual key, is called damaged with a probability below 10^-6. Bounds for
//! each test, by Chernoff's method; the unit test computes them:
//!
//! | test | bound | times | all |
//! | --- | --- | --- | --- |
//! | sector of 512 bytes, chi-square not in 120 to 480 | 2.6e-10 | 1000 | 2.6e-7 |
//! | block of 4096 bytes, chi-square not in 135 to 430 | 2.8e-9 | 125 | 3.5e-7 |
//! | 8 equal bytes in a row | 256^-7 | 512,000 | 7.2e-12 |
//! | magic number at the start of a block | 3.0e-9 | 125 | 3.8e-7 |

use std::ops::{Range, RangeInclusive};

use crate::advice::{Advice, Warning};
use crate::error::{ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::{AreaDamage, AreaReport};
use crate::store::Store;

/// The unit of findings, in bytes.
const SECTOR: usize = 512;

/// Bytes per block. Larger than a sector, because a small bias shows only in many bytes.
const BLOCK: usize = 4096;

/// The limits of the chi-square of a block, or of its sectors that look random. The mean is 255. The bounds above hold for 2048
/// bytes and more, and are four times as high for 1024 bytes, of which an area has one block at most.
const LIMITS: RangeInclusive<f64> = 135.0..=430.0;

/// The fewest bytes that [`LIMITS`] apply to.
const FEWEST: usize = 1024;

/// The shortest run of equal bytes that random bytes do not contain.
const RUN: usize = 8;

/// Looks at the `len` bytes of key material of keyslot `number`, from the offset `at` on. Behind them is padding, which some
/// programs leave unchanged.
///
/// # Errors
/// `Io`.
pub fn look_at_area(store: &dyn Store, number: u32, at: u64, len: usize) -> Result<AreaReport> {
    let sectors = len / SECTOR;
    let stored = store.len().saturating_sub(at).min((sectors * SECTOR) as u64) as usize / SECTOR * SECTOR;
    let mut bytes = vec![0; stored];
    store.read_at(at, &mut bytes)?;
    let damage_in = |range: Range<usize>| AreaDamage {
        at: at + range.start as u64,
        len: range.len() as u64,
        what: described(&bytes[range]),
    };
    let mut damage: Vec<_> = damaged(&bytes).into_iter().map(damage_in).collect();
    let missing = (sectors * SECTOR - stored) as u64;
    if missing > 0 {
        damage.push(AreaDamage { at: at + stored as u64, len: missing, what: "missing".to_owned() });
    }
    let not_random = damage.iter().map(|damage| damage.len / SECTOR as u64).sum();
    let zeros = bytes.chunks_exact(SECTOR).filter(|sector| is_only(0, sector)).count() as u64;
    Ok(AreaReport { name: format!("keyslot {number}"), sectors: sectors as u64, not_random, zeros, damage })
}

/// The ranges of whole sectors that random bytes do not look like.
fn damaged(area: &[u8]) -> Vec<Range<usize>> {
    let mut sectors: Vec<_> = area.chunks_exact(SECTOR).map(|sector| !magic::looks_random(sector)).collect();
    for run in runs(area, |one, next| one == next).filter(|run| run.len() >= RUN) {
        // The random byte beside a damaged sector may continue its last run.
        let elsewhere = run.clone().filter(|at| !sectors[at / SECTOR]).count();
        if elsewhere >= RUN {
            sectors[run.start / SECTOR..run.end.div_ceil(SECTOR)].fill(true);
        }
    }
    for (block, sectors) in area.chunks(BLOCK).zip(sectors.chunks_mut(BLOCK / SECTOR)) {
        let others: Vec<_> = block.chunks(SECTOR).zip(&*sectors).filter(|(_, damaged)| !**damaged).collect();
        let others: Vec<u8> = others.into_iter().flat_map(|(sector, _)| sector).copied().collect();
        let biased = others.len() >= FEWEST && !LIMITS.contains(&magic::chi_square(&others));
        if biased || magic::compressed_or_encrypted(block).is_some() {
            sectors.fill(true);
        }
    }
    let damaged = runs(&sectors, |one, next| one == next).filter(|run| sectors[run.start]);
    damaged.map(|run| run.start * SECTOR..run.end * SECTOR).collect()
}

/// The places of runs whose neighbours are `alike`.
fn runs<T>(all: &[T], alike: fn(&T, &T) -> bool) -> impl Iterator<Item = Range<usize>> {
    all.chunk_by(alike).scan(0, |end, run| {
        let start = *end;
        *end += run.len();
        Some(start..*end)
    })
}

/// What is in a damaged part, to follow "are".
fn described(bytes: &[u8]) -> String {
    match (magic::known(bytes), bytes[0]) {
        (Some(what), _) => format!("the start of {what}"),
        (None, 0) if is_only(0, bytes) => "zeros".to_owned(),
        (None, byte) if is_only(byte, bytes) => format!("the byte {byte:#04x} repeated"),
        (None, _) if is_text(bytes) => "text".to_owned(),
        (None, _) => "not random".to_owned(),
    }
}

fn is_only(byte: u8, bytes: &[u8]) -> bool {
    bytes.iter().all(|other| *other == byte)
}

/// Whether it is text in an encoding that extends ASCII, perhaps with zeros after it.
fn is_text(bytes: &[u8]) -> bool {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = &bytes[..end];
    let ascii = text.iter().filter(|byte| byte.is_ascii()).count();
    let control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    ascii > text.len() / 4 * 3 && !text.iter().any(control)
}

impl AreaReport {
    /// The damage in words: "from byte 32768 on, 4096 bytes are zeros". `None` if there is none.
    pub fn damage_in_words(&self) -> Option<String> {
        const MOST: usize = 4;
        let in_words = |AreaDamage { at, len, what }: &AreaDamage| format!("from byte {at} on, {len} bytes are {what}");
        let mut words: Vec<_> = self.damage.iter().take(MOST).map(in_words).collect();
        let more = self.damage.len().saturating_sub(MOST);
        words.extend((more > 0).then(|| format!("{more} more parts are damaged")));
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// What a look at the area of a keyslot shows: damage, or that it cannot be read. `None` if the area looks random, and for a keyslot
/// whose area is not known.
pub fn damage_shown(area: Result<AreaReport>) -> Option<String> {
    match area {
        Ok(area) => area.damage_in_words(),
        Err(e) => matches!(e.kind, ErrorKind::Io(_)).then(|| format!("its area cannot be read: {}", e.kind)),
    }
}

/// The sentence about a damaged keyslot.
pub fn no_longer_opens(number: u32, damage: &str) -> String {
    format!("Keyslot {number} is damaged and no longer opens: {damage}.")
}

/// What a credential may be that opens none of the keyslots `tried`, of which some are `damaged`.
pub fn may_be_right(damaged: usize, tried: usize) -> Option<String> {
    let other = if tried > damaged { " Or use the passphrase of another keyslot." } else { "" };
    (damaged > 0).then(|| {
        format!("The given passphrase may be right, but only a header backup restores a damaged keyslot.{other}")
    })
}

/// The warning about a damaged keyslot.
pub fn warning(number: u32, damage: &str) -> Warning {
    Warning::from(no_longer_opens(number, damage)).advise(Advice::RestoreHeader)
}

/// What a check found in the areas of keyslots.
#[derive(Default)]
pub struct KeyslotAreas {
    areas: Vec<AreaReport>,
    /// Warnings of single keyslots.
    pub warnings: Vec<Warning>,
    /// The keyslots that look random, but were not opened.
    not_opened: Vec<u32>,
}

impl KeyslotAreas {
    /// Judges the area of a keyslot. The check has opened the keyslot `opened`.
    pub fn add(&mut self, number: u32, mut area: AreaReport, opened: Option<u32>) {
        match area.damage_in_words() {
            // It depends on each byte of its area: what looks damaged is not.
            _ if opened == Some(number) => (area.not_random, area.damage) = (0, Vec::new()),
            Some(damage) => self.warnings.push(warning(number, &damage)),
            None => self.not_opened.push(number),
        }
        self.areas.push(area);
    }

    /// Adds all warnings to `warnings`. Returns the areas, and whether one of them is damaged.
    pub fn finish(self, warnings: &mut Vec<Warning>) -> (Vec<AreaReport>, bool) {
        warnings.extend(self.warnings.into_iter().chain(not_opened(&self.not_opened)));
        let damaged = self.areas.iter().any(|area| !area.damage.is_empty());
        (self.areas, damaged)
    }
}

/// Warns of the keyslots that a check did not open: no other credential proves them.
fn not_opened(numbers: &[u32]) -> Option<Warning> {
    let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
    Some(match &numbers[..] {
        [] => return None,
        [one] => format!("Keyslot {one} was not opened: only its own credential shows whether it works.").into(),
        all => {
            let all = all.join(", ");
            format!("Keyslots {all} were not opened: only their own credentials show whether they work.").into()
        }
    })
}

#[cfg(test)]
mod tests {
    use claviger_testkit::random::Random;

    use super::*;
    use crate::store::MemoryStore;

    /// An area for a key of 64 bytes.
    const AREA: usize = 64 * 4000;

    /// Where the area begins in its store.
    const AT: usize = 32768;

    /// An upper bound of the probability that the chi-square of `len` random bytes is above `limit` or, with a negative `slope`,
    /// below it. By Chernoff, for the sum S of squared counts: P(S >= t) <= E[exp(uS)] / exp(ut) for every u. Counts of random
    /// bytes are Poisson variables with a fixed sum, so the numerator is a coefficient of a power of a polynomial.
    fn tail(len: usize, limit: f64, slope: f64) -> f64 {
        let mean = len as f64 / 256.0;
        let u = slope / mean;
        // Higher counts have a probability below 10^-20.
        let most = (mean + 14.0 * mean.sqrt()) as usize + 14;
        let poisson = |mean: f64, count: usize| ((1..=count).map(|i| (mean / i as f64).ln()).sum::<f64>() - mean).exp();
        let of_count = |c: usize| poisson(mean, c) * (u * ((c * c) as f64 - mean * mean - mean)).exp();
        let mut powers: Vec<f64> = (0..=most).map(of_count).collect();
        for _ in 0..8 {
            let mut square = vec![0.0; (2 * powers.len() - 1).min(len + 1)];
            for (i, one) in powers.iter().enumerate() {
                powers.iter().zip(&mut square[i.min(len)..]).for_each(|(other, sum)| *sum += one * other);
            }
            powers = square;
        }
        powers[len] / poisson(len as f64, len) * (-slope * (limit - 256.0)).exp()
    }

    fn beyond(len: usize, limits: &RangeInclusive<f64>, (above, below): (f64, f64)) -> f64 {
        tail(len, *limits.end(), above) + tail(len, *limits.start(), below)
    }

    /// The bounds in the table above. `magic` checks that of magic numbers.
    #[test]
    fn an_undamaged_area_is_called_damaged_less_than_once_in_a_million() {
        const LARGEST: usize = 128 * 4000;
        let sector = beyond(SECTOR, &(120.0..=480.0), (0.12, -0.4));
        let block = [2048, BLOCK].map(|len| beyond(len, &LIMITS, (0.18, -0.4))).into_iter().fold(0.0, f64::max);
        let last = beyond(FEWEST, &LIMITS, (0.155, -0.4));
        let run = 256f64.powi(1 - RUN as i32);
        assert!(sector < 2.6e-10 && block < 2.8e-9 && last < 4.0 * block, "{sector:e} {block:e} {last:e}");
        let blocks = (LARGEST / BLOCK) as f64;
        let all =
            sector * (LARGEST / SECTOR) as f64 + (block + magic::BY_CHANCE) * blocks + last + run * LARGEST as f64;
        assert!(all < 1e-6, "{all:e}");
    }

    /// Chi-squares of random blocks beyond the quantiles of the chi-square distribution with 255 degrees of freedom. The bound is
    /// above what occurs, and not much.
    #[test]
    fn chi_squares_of_random_blocks_are_distributed_as_expected() {
        const BLOCKS: usize = 50_000;
        let mut random = Random::new(1);
        let seen: Vec<_> = (0..BLOCKS).map(|_| magic::chi_square(&random.bytes(BLOCK))).collect();
        for (limit, slope, probability) in
            [(310.47, 0.08, 1e-2), (330.55, 0.1, 1e-3), (205.41, -0.11, 1e-2), (190.83, -0.16, 1e-3)]
        {
            let count = seen.iter().filter(|chi_square| (*chi_square - limit) * slope > 0.0).count() as f64;
            let expected = BLOCKS as f64 * probability;
            assert!((count - expected).abs() < 5.0 * expected.sqrt(), "{limit}: {count}, not {expected}");
            let bound = tail(BLOCK, limit, slope);
            assert!((probability..12.0 * probability).contains(&bound), "{limit}: {bound:e}");
        }
    }

    fn simulated(areas: u64, seed: u64) {
        let mut random = Random::new(seed);
        for number in 0..areas {
            let found = damaged(&random.bytes(AREA));
            assert!(found.is_empty(), "area {number}: {found:?}");
        }
    }

    #[test]
    fn random_areas_look_undamaged() {
        simulated(200, 2);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn a_million_random_areas_look_undamaged() {
        simulated(1_000_000, 3);
    }

    fn report(change: impl FnOnce(&mut Vec<u8>)) -> AreaReport {
        let mut bytes = Random::new(4).bytes(AT + AREA);
        change(&mut bytes);
        look_at_area(&MemoryStore::new(bytes), 0, AT as u64, AREA).expect("memory")
    }

    /// The damage that is found after `bytes` were written at an offset of the area.
    fn found(at: usize, bytes: &[u8]) -> Vec<(usize, u64, String)> {
        let report = report(|area| area[AT + at..][..bytes.len()].copy_from_slice(bytes));
        report.damage.into_iter().map(|one| (one.at as usize - AT, one.len, one.what)).collect()
    }

    #[test]
    fn what_is_in_a_damaged_part_is_named() {
        let one = |at, len, what: &str| vec![(at, len, what.to_owned())];
        assert_eq!(found(0, &[0; 4096]), one(0, 4096, "zeros"));
        assert_eq!(found(8192 + 1536, &[0; 512]), one(8192 + 1536, 512, "zeros"));
        assert_eq!(found(AREA - 512, &[0xff; 512]), one(AREA - 512, 512, "the byte 0xff repeated"));
        // The bytes beside them are zeros by chance.
        assert_eq!(found(1023, &[0; 514]), one(1024, 512, "zeros"));
        // Eight zeros across a border of sectors.
        assert_eq!(found(1020, &[0; 8]), one(512, 1024, "not random"));
        let text = include_bytes!("areas.rs");
        assert_eq!(found(4096, &text[..6144]), one(4096, 6144, "text"));
        assert_eq!(found(4096, &[&text[..700], &[0; 324]].concat()), one(4096, 1024, "text"));
        let counter: Vec<u8> = (0..4096).map(|i| i as u8).collect();
        assert_eq!(found(12288, &counter), one(12288, 4096, "not random"));
        let mut ext = vec![0; 4096];
        ext[0x428..0x42c].fill(1);
        ext[0x438..0x43a].copy_from_slice(b"\x53\xef");
        assert_eq!(found(0, &ext), one(0, 4096, "the start of an ext2 file system"));
        let zip = [b"PK\x03\x04", &*Random::new(5).bytes(4000)].concat();
        assert_eq!(found(40960, &zip), one(40960, 4096, "the start of a zip archive"));
        // A bias that shows in no sector.
        let mut biased = Random::new(6).bytes(4096);
        biased.iter_mut().step_by(3).for_each(|byte| *byte &= 0x7f);
        assert!(biased.chunks(SECTOR).all(magic::looks_random));
        assert_eq!(found(20480, &biased), one(20480, 4096, "not random"));
        assert_eq!(found(0, &Random::new(7).bytes(4096)), [], "other random bytes do not show");
    }

    #[test]
    fn damage_is_counted_and_put_into_words() {
        assert_eq!(report(|_| ()).damage_in_words(), None);
        let some = report(|bytes| {
            bytes[AT..][..512].fill(0);
            bytes[AT + 4096..][..1024].fill(b'a');
            bytes.truncate(AT + AREA - 700);
        });
        assert_eq!((some.sectors, some.not_random, some.zeros), (500, 5, 1));
        assert_eq!(
            some.damage_in_words().expect("it is damaged"),
            "from byte 32768 on, 512 bytes are zeros; from byte 36864 on, 1024 bytes are the byte 0x61 repeated; from \
             byte 287744 on, 1024 bytes are missing"
        );
        let many = report(|bytes| (0..9).for_each(|i| bytes[AT + i * 1024..][..512].fill(0)));
        assert!(many.damage_in_words().is_some_and(|words| words.ends_with("; 5 more parts are damaged")), "{many:?}");
    }
}

//! Key derivations of LUKS: their cost, running them, and choosing them for this machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use claviger_crypto::argon2::{self, Params, Variant};
use claviger_crypto::hash::Hash;
use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::{Secret, secret::wipe_stack};

use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Derivation;
use crate::password_strength::GuessWork;
use crate::spec::Cost;

/// The minimum iterations of PBKDF2 for new keyslots (LUKS1 On-Disk Format Specification 1.2.3, section 2.2; cryptsetup 2.6.1,
/// lib/utils_pbkdf.c, `MIN_ITERATIONS` of its defaults).
pub(in crate::formats) const MIN_ITERATIONS: u32 = 1000;

/// The minimum number of measured passes over Argon2's memory (cryptsetup 2.6.1, lib/utils_pbkdf.c).
const MIN_PASSES: u32 = 4;

/// The minimum measured memory for Argon2, in KiB: 64 MiB, unless less is available or requested (the same as in cryptsetup 2.6.1).
const MIN_MEASURED_KIB: u32 = 64 << 10;

/// The minimum memory for Argon2, in KiB (cryptsetup 2.6.1, lib/utils_pbkdf.c, `verify_pbkdf_params`).
const MIN_MEMORY_KIB: u32 = 32;

/// The maximum memory for Argon2, in KiB: 4 GiB (cryptsetup 2.6.1, lib/utils_pbkdf.c, `verify_pbkdf_params`).
const MAX_MEMORY_KIB: u32 = 4 << 20;

/// The maximum number of lanes for Argon2 (cryptsetup 2.6.1, lib/utils_pbkdf.c, `verify_pbkdf_params`).
const MAX_LANES: u32 = 4;

/// A key derivation with its costs, without the salt.
#[derive(Clone, Copy)]
pub(in crate::formats) enum Kdf {
    /// PBKDF2 with HMAC of a hash (RFC 8018, section 5.2).
    Pbkdf2 {
        hash: &'static Hash,
        /// At least 1.
        iterations: u32,
    },
    /// Argon2, version 0x13 (RFC 9106).
    Argon2 {
        variant: Variant,
        /// Passes over the memory.
        passes: u32,
        memory_kib: u32,
        lanes: u32,
    },
}

/// A format's defaults for what `Cost` leaves open.
#[derive(Clone, Copy)]
pub(in crate::formats) struct Defaults {
    /// `pbkdf2`, `argon2i` or `argon2id`.
    pub kdf: &'static str,
    /// The time that a derivation should take, in milliseconds.
    pub time_ms: u32,
}

/// The defaults of LUKS1 (cryptsetup 2.6.1, `--iter-time`).
pub(in crate::formats) const LUKS1: Defaults = Defaults { kdf: "pbkdf2", time_ms: 2000 };

/// The defaults of LUKS2 (cryptsetup 2.6.1, configure.ac).
pub(in crate::formats) const LUKS2: Defaults = Defaults { kdf: "argon2id", time_ms: 2000 };

/// The default maximum of Argon2's memory, in KiB (cryptsetup 2.6.1, configure.ac, `luks2-memory-kb`).
const DEFAULT_MEMORY_KIB: u32 = 1 << 20;

impl Kdf {
    /// Derives `len` bytes from a passphrase, on all processors.
    ///
    /// # Errors
    /// `TooLittleMemory` before any memory is used; `Cancelled`; `Malformed` for an impossible cost or salt.
    pub fn derive(&self, passphrase: &[u8], salt: &[u8], len: usize, with: &Unlock<'_>) -> Result<Secret> {
        let pool = Pool::for_this_machine(Duration::ZERO);
        self.derive_on(&pool, passphrase, salt, len, with, &|| !with.cancelled())
    }

    /// Like [`Kdf::derive`], on the threads of `pool`, and for as long as `go_on` returns true.
    pub fn derive_on(
        &self,
        pool: &Pool,
        passphrase: &[u8],
        salt: &[u8],
        len: usize,
        with: &Unlock<'_>,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Secret> {
        let mut key = Secret::zeroed(len);
        match *self {
            Self::Pbkdf2 { hash, iterations } => {
                let stopped = AtomicBool::new(false);
                for_each_piece(pool, &mut key, hash.blocks_at_once() * hash.size, |at, blocks| {
                    let index = (at / hash.size) as u32 + 1;
                    if !go_on() || !hash.pbkdf2_blocks(passphrase, salt, iterations, index, blocks, &|| go_on()) {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    wipe_stack();
                });
                if stopped.into_inner() {
                    return Err(ErrorKind::Cancelled.into());
                }
            }
            Self::Argon2 { variant, passes, memory_kib, lanes } => {
                let params = Params { variant, memory_kib, passes, lanes, ..Params::default() };
                let available = crate::memory::available().min(with.memory.unwrap_or(u64::MAX));
                // If memory is too scarce, the derivation is refused and uses none.
                let _in_use = (params.memory() <= available).then(|| InUse::tell(with, params.memory()));
                params.derive(passphrase, salt, available, pool, go_on, &mut key).map_err(argon2_error)?;
            }
        }
        Ok(key)
    }

    /// How much memory a derivation fills, in bytes; 0 where that does not matter.
    pub fn memory(&self) -> u64 {
        match self {
            Self::Pbkdf2 { .. } => 0,
            Self::Argon2 { memory_kib, .. } => u64::from(*memory_kib) << 10,
        }
    }

    /// The estimated time for `len` bytes on one thread of this machine, in microseconds: measured once for each derivation.
    pub fn effort(&self, len: usize) -> u64 {
        let nanoseconds = match *self {
            Self::Pbkdf2 { hash, iterations } => {
                pace(hash.name, || pbkdf2_pace(hash)).saturating_mul(u64::from(iterations) * blocks(hash, len))
            }
            Self::Argon2 { variant, passes, memory_kib, lanes } => {
                // A hostile header may ask for little memory and many passes, or many lanes.
                let by_kib = pace(variant_name(variant), || argon2_pace(variant, 4 << 10, 1, 1) / (4 << 10));
                let by_pass = pace("one pass of Argon2", || argon2_pace(variant, 32, 64, 4) / 64);
                let by_lane = pace("one lane of Argon2", || argon2_pace(variant, 8 << 8, 1, 1 << 8) / (1 << 8));
                let passes = u64::from(passes);
                by_kib
                    .saturating_mul(u64::from(memory_kib))
                    .saturating_add(by_pass)
                    .saturating_mul(passes)
                    .saturating_add(by_lane.saturating_mul(u64::from(lanes)))
            }
        };
        nanoseconds / 1000
    }

    /// The work of one guess, for a key of `len` bytes.
    pub fn guess_work(&self, len: usize) -> GuessWork {
        match *self {
            Self::Pbkdf2 { hash, iterations } => {
                GuessWork::Pbkdf2 { hash: hash.name, iterations, blocks: len.div_ceil(hash.size) as u32 }
            }
            Self::Argon2 { passes, memory_kib, .. } => {
                GuessWork::Argon2 { variant: self.derivation().hash, passes, memory_kib }
            }
        }
    }

    /// Its name in headers and options.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pbkdf2 { .. } => "pbkdf2",
            Self::Argon2 { variant, .. } => variant_name(*variant),
        }
    }

    /// Describes it for people.
    pub fn derivation(&self) -> Derivation {
        match *self {
            Self::Pbkdf2 { hash, iterations } => Derivation { hash: hash.name, iterations, memory: None },
            Self::Argon2 { variant, passes, .. } => {
                let hash = if variant == Variant::I { "Argon2i" } else { "Argon2id" };
                Derivation { hash, iterations: passes, memory: Some(self.memory()) }
            }
        }
    }

    /// Chooses the derivation of `len` bytes for a new keyslot. Parameters in `cost` are used exactly; the others are measured, so
    /// that it takes the time on this machine that `cost` or `defaults` give. `hash` is PBKDF2's.
    ///
    /// The measurement follows cryptsetup: PBKDF2 on one thread, because other programs use one; Argon2 with parallel lanes, with
    /// more memory first, and more passes only at the maximum memory (cryptsetup 2.6.1, lib/crypto_backend/pbkdf_check.c). Argon2
    /// gets at least 64 MiB and four passes, even if they take longer. A process measures each cost once, so a
    /// keyslot gets the cost that was announced.
    ///
    /// # Errors
    /// `Misuse` for parameters that no LUKS header may have; `TooLittleMemory`; `Cancelled` while measuring.
    pub fn choose(
        cost: &Cost<'_>,
        defaults: Defaults,
        hash: &'static Hash,
        len: usize,
        cancel: Option<&AtomicBool>,
    ) -> Result<Self> {
        let asked = Asked::of(cost, defaults, hash, len);
        if let Some(kdf) = asked.chosen() {
            return Ok(kdf);
        }
        let kdf = Self::measured(cost, defaults, hash, len, cancel)?;
        CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).insert(0, (asked, kdf));
        Ok(kdf)
    }

    fn measured(
        cost: &Cost<'_>,
        defaults: Defaults,
        hash: &'static Hash,
        len: usize,
        cancel: Option<&AtomicBool>,
    ) -> Result<Self> {
        let name = cost.kdf.unwrap_or(defaults.kdf);
        let time = Duration::from_millis(u64::from(cost.time_ms.unwrap_or(defaults.time_ms).max(1)));
        let go_on = || !cancel.is_some_and(|c| c.load(Ordering::Relaxed));
        match variant_named(name) {
            None if crate::formats::same_name(name, "pbkdf2") => {
                if cost.memory_kib.is_some() || cost.lanes.is_some() {
                    return Err(Error::misuse("PBKDF2 has neither memory nor lanes"));
                }
                let iterations = match cost.iterations {
                    Some(exact) => at_least("iterations of PBKDF2", exact, MIN_ITERATIONS)?,
                    None => pbkdf2_iterations(hash, len, time, &go_on)?,
                };
                Ok(Self::Pbkdf2 { hash, iterations })
            }
            None => {
                Err(Error::misuse(format!("there is no key derivation called {name}; use argon2id, argon2i or pbkdf2")))
            }
            Some(variant) => choose_argon2(variant, cost, time, len, &go_on),
        }
    }
}

/// The choices of this process, the latest first.
static CHOSEN: Mutex<Vec<(Asked, Kdf)>> = Mutex::new(Vec::new());

/// What a choice depends on, besides the machine.
#[derive(PartialEq)]
struct Asked {
    kdf: String,
    time_ms: u32,
    /// Iterations, memory and lanes.
    exact: [Option<u32>; 3],
    /// The hash of PBKDF2, and how many bytes it derives.
    pbkdf2: Option<(&'static str, usize)>,
}

impl Asked {
    fn of(cost: &Cost<'_>, defaults: Defaults, hash: &'static Hash, len: usize) -> Self {
        let kdf = cost.kdf.unwrap_or(defaults.kdf).to_ascii_lowercase();
        let pbkdf2 = variant_named(&kdf).is_none().then_some((hash.name, len));
        let exact = [cost.iterations, cost.memory_kib, cost.lanes];
        Self { kdf, time_ms: cost.time_ms.unwrap_or(defaults.time_ms), exact, pbkdf2 }
    }

    /// What was chosen for it before, if its memory is still available.
    fn chosen(&self) -> Option<Kdf> {
        let all = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, kdf) = all.iter().find(|(asked, _)| asked == self)?;
        (kdf.memory() <= crate::memory::available()).then_some(*kdf)
    }
}

/// A forecast of [`Kdf::choose`] in a fraction of a second, unless it has chosen before: it measures much longer. `None` for a cost
/// that it refuses.
pub(in crate::formats) fn expected(
    cost: &Cost<'_>,
    defaults: Defaults,
    hash: &'static Hash,
    len: usize,
) -> Option<Kdf> {
    if let Some(kdf) = Asked::of(cost, defaults, hash, len).chosen() {
        return Some(kdf);
    }
    let nanoseconds = f64::from(cost.time_ms.unwrap_or(defaults.time_ms)) * 1e6;
    let name = cost.kdf.unwrap_or(defaults.kdf);
    let Some(variant) = variant_named(name) else {
        let each = || (pace(hash.name, || pbkdf2_pace(hash)) * blocks(hash, len)) as f64;
        let iterations = cost.iterations.unwrap_or_else(|| ((nanoseconds / each()) as u32).max(MIN_ITERATIONS));
        return crate::formats::same_name(name, "pbkdf2").then_some(Kdf::Pbkdf2 { hash, iterations });
    };
    let lanes = usual_lanes(cost);
    let most_kib = cost.memory_kib.unwrap_or_else(|| most_memory(available_kib()));
    if let Some(passes) = cost.iterations {
        return Some(Kdf::Argon2 { variant, passes, memory_kib: most_kib, lanes });
    }
    // Not the pace of one thread in its caches, of which `effort` knows.
    let measured_kib = MIN_MEASURED_KIB.min(most_kib);
    let pass = pace("a pass of Argon2 with all lanes", || argon2_pace(variant, measured_kib, 1, lanes));
    let (memory_kib, passes) = spent(nanoseconds / pass as f64 * f64::from(measured_kib), most_kib);
    Some(Kdf::Argon2 { variant, passes, memory_kib, lanes })
}

/// Reports how much memory is in use, for as long as it lives.
struct InUse<'a, 'b> {
    with: &'a Unlock<'b>,
    bytes: u64,
}

impl<'a, 'b> InUse<'a, 'b> {
    fn tell(with: &'a Unlock<'b>, bytes: u64) -> Self {
        if let Some(shown) = with.memory_in_use {
            shown.fetch_add(bytes, Ordering::Relaxed);
        }
        Self { with, bytes }
    }
}

impl Drop for InUse<'_, '_> {
    fn drop(&mut self) {
        if let Some(shown) = self.with.memory_in_use {
            shown.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

fn argon2_error(error: argon2::Argon2Error) -> Error {
    match error {
        argon2::Argon2Error::TooLittleMemory { needed, available } => {
            Error::new(ErrorKind::TooLittleMemory { needed, available }).hint(
                "The keyslot could not be tried, so the passphrase may be right. Free some memory, allow more, or \
                 use a machine with more. Other keyslots may need less.",
            )
        }
        argon2::Argon2Error::Parameters(what) => {
            ErrorKind::Malformed { field: "key derivation", offset: 0, what: format!("Argon2 cannot have {what}") }
                .into()
        }
        argon2::Argon2Error::Stopped => ErrorKind::Cancelled.into(),
    }
}

/// Returns the variant with this name.
pub(in crate::formats) fn variant_named(name: &str) -> Option<Variant> {
    [Variant::I, Variant::Id].into_iter().find(|v| crate::formats::same_name(variant_name(*v), name))
}

fn variant_name(variant: Variant) -> &'static str {
    match variant {
        Variant::I => "argon2i",
        Variant::Id => "argon2id",
    }
}

fn at_least(what: &str, value: u32, least: u32) -> Result<u32> {
    match value < least {
        true => Err(Error::misuse(format!("{value} {what} are too few: at least {least}"))),
        false => Ok(value),
    }
}

fn choose_argon2(
    variant: Variant,
    cost: &Cost<'_>,
    time: Duration,
    len: usize,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Kdf> {
    let lanes = usual_lanes(cost);
    if !(1..=MAX_LANES).contains(&lanes) {
        return Err(Error::misuse(format!("LUKS takes 1 to {MAX_LANES} Argon2 lanes, not {lanes}")));
    }
    let memory_kib = cost.memory_kib.unwrap_or_else(|| most_memory(available_kib())).max(8 * lanes);
    if !(MIN_MEMORY_KIB..=MAX_MEMORY_KIB).contains(&memory_kib) {
        return Err(Error::misuse(format!(
            "LUKS takes {MIN_MEMORY_KIB} to {MAX_MEMORY_KIB} KiB of memory for Argon2, not {memory_kib}"
        )));
    }
    match cost.iterations {
        Some(0) => Err(Error::misuse("Argon2 needs at least one pass over its memory")),
        Some(passes) => Ok(Kdf::Argon2 { variant, passes, memory_kib, lanes }),
        None => measured_argon2(variant, memory_kib, lanes, time, len, go_on),
    }
}

fn usual_lanes(cost: &Cost<'_>) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    cost.lanes.unwrap_or(MAX_LANES.min(processors))
}

fn available_kib() -> u32 {
    u32::try_from(crate::memory::available() / 1024).unwrap_or(u32::MAX)
}

/// The maximum memory to choose with `available` KiB, in KiB: half of it, so that the volume also opens here while the machine is
/// busier, but at least the minimum.
fn most_memory(available: u32) -> u32 {
    DEFAULT_MEMORY_KIB.min((available / 2).max(MIN_MEASURED_KIB.min(available)))
}

/// Returns the memory, up to `most_kib`, and the number of passes that take about `time`.
fn measured_argon2(
    variant: Variant,
    most_kib: u32,
    lanes: u32,
    time: Duration,
    len: usize,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Kdf> {
    let pool = Pool::for_this_machine(Duration::ZERO);
    let mut pass = |memory_kib: u32| {
        let params = Params { variant, memory_kib, passes: 1, lanes, ..Params::default() };
        let mut key = Secret::zeroed(len.max(4));
        let start = Instant::now();
        let available = crate::memory::available();
        params.derive(b"measured", &[0; 32], available, &pool, go_on, &mut key).map_err(argon2_error)?;
        Ok(start.elapsed())
    };
    let (memory_kib, passes) = calibrate(most_kib, time, &mut pass)?;
    Ok(Kdf::Argon2 { variant, passes, memory_kib, lanes })
}

/// Returns the memory in KiB and the number of passes that take about `time`. There are more than the minimum passes only at
/// `most_kib`, since memory is what guessing on other hardware lacks. `pass` measures one pass over a given amount of memory.
///
/// Other work on the machine only makes a pass slower, so the fastest one counts. Only passes over at least half of the memory are
/// compared, because memory outside the caches is slower. Measuring ends when the result is the measured amount, after at least
/// three rounds.
fn calibrate(most_kib: u32, time: Duration, pass: &mut dyn FnMut(u32) -> Result<Duration>) -> Result<(u32, u32)> {
    const ROUNDS: std::ops::RangeInclusive<usize> = 3..=8;
    let least_kib = MIN_MEASURED_KIB.min(most_kib);
    let mut measured = Vec::new();
    let mut memory_kib = least_kib;
    loop {
        measured.push((memory_kib, pass(memory_kib)?.as_secs_f64().max(1e-9) / f64::from(memory_kib)));
        let comparable = measured.iter().filter(|(kib, _)| *kib >= memory_kib / 2);
        let per_kib = comparable.map(|(_, per_kib)| *per_kib).fold(f64::INFINITY, f64::min);
        // The amount that fits into the time: KiB times passes.
        let fits = time.as_secs_f64() / per_kib;
        let next = ((fits / f64::from(MIN_PASSES)) as u32).clamp(least_kib, most_kib);
        let settled = next.abs_diff(memory_kib) <= memory_kib / 8 && measured.len() >= *ROUNDS.start();
        if settled || measured.len() == *ROUNDS.end() {
            return Ok(spent(fits, most_kib));
        }
        memory_kib = next;
    }
}

/// The memory and the passes for an amount of KiB times passes.
fn spent(fits: f64, most_kib: u32) -> (u32, u32) {
    let memory_kib = ((fits / f64::from(MIN_PASSES)) as u32).clamp(MIN_MEASURED_KIB.min(most_kib), most_kib);
    let passes = if memory_kib == most_kib { (fits / f64::from(most_kib)) as u32 } else { MIN_PASSES };
    (memory_kib, passes.max(MIN_PASSES))
}

/// Returns the iterations that take `time` for `len` bytes on one thread.
fn pbkdf2_iterations(
    hash: &'static Hash,
    len: usize,
    time: Duration,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<u32> {
    /// Long enough to make the clock's resolution irrelevant.
    const ENOUGH: Duration = Duration::from_millis(100);
    let mut key = Secret::zeroed(len.max(1));
    let mut iterations = MIN_ITERATIONS;
    loop {
        let start = Instant::now();
        if !hash.pbkdf2(b"measured", &[0; 32], iterations, &mut key, &|| go_on()) {
            return Err(ErrorKind::Cancelled.into());
        }
        let took = start.elapsed();
        if took >= ENOUGH.min(time) || iterations >= 1 << 30 {
            let fit = f64::from(iterations) * time.as_secs_f64() / took.as_secs_f64().max(1e-9);
            return Ok((fit as u32).max(MIN_ITERATIONS));
        }
        iterations *= 4;
    }
}

/// How many times as long `len` bytes take as one block.
fn blocks(hash: &Hash, len: usize) -> u64 {
    len.div_ceil(hash.size).div_ceil(hash.blocks_at_once()) as u64
}

/// Returns the measured speed of the derivation `name`, in nanoseconds for each unit of work.
fn pace(name: &'static str, measure: impl Fn() -> Duration) -> u64 {
    static MEASURED: Mutex<Vec<(&'static str, u64)>> = Mutex::new(Vec::new());
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, pace)) = measured.iter().find(|(known, _)| *known == name) {
        return *pace;
    }
    // Other work on the machine can only make it slower.
    let fastest = (0..3).map(|_| measure()).min().unwrap_or_default();
    let pace = (fastest.as_nanos() as u64).max(1);
    measured.push((name, pace));
    pace
}

/// The time for one iteration for one block.
fn pbkdf2_pace(hash: &'static Hash) -> Duration {
    const ITERATIONS: u32 = 2000;
    let mut block = Secret::zeroed(hash.size);
    let start = Instant::now();
    hash.pbkdf2_blocks(b"measured", &[0; 32], ITERATIONS, 1, &mut block, &|| true);
    start.elapsed() / ITERATIONS
}

/// The time for one pass over a KiB on one thread.
fn argon2_pace(variant: Variant, memory_kib: u32, passes: u32, lanes: u32) -> Duration {
    let params = Params { variant, memory_kib, passes, lanes, ..Params::default() };
    let start = Instant::now();
    let pool = Pool::for_this_machine(Duration::ZERO);
    let derived = params.derive(b"measured", &[0; 32], u64::MAX, &pool, &|| true, &mut [0; 32]);
    if derived.is_ok() { start.elapsed() } else { Duration::from_millis(10) }
}

#[cfg(test)]
mod tests {
    use claviger_crypto::hash;

    use super::*;

    fn chosen(cost: Cost<'_>) -> Result<Kdf> {
        Kdf::choose(&cost, LUKS1, &hash::SHA256, 64, None)
    }

    #[test]
    fn exact_costs_are_taken_as_they_are() {
        let kdf = chosen(Cost { iterations: Some(1234), ..Cost::default() }).expect("PBKDF2");
        assert!(matches!(kdf, Kdf::Pbkdf2 { iterations: 1234, .. }));
        let cost = Cost {
            kdf: Some("argon2id"),
            iterations: Some(1),
            memory_kib: Some(64),
            lanes: Some(2),
            ..Cost::default()
        };
        let kdf = chosen(cost).expect("Argon2id");
        assert!(matches!(kdf, Kdf::Argon2 { variant: Variant::Id, passes: 1, memory_kib: 64, lanes: 2 }));
        assert_eq!(kdf.memory(), 65_536);
    }

    #[test]
    fn what_was_chosen_is_expected_and_chosen_again() {
        for (cost, defaults) in [
            (Cost { time_ms: Some(30), ..Cost::default() }, LUKS1),
            (Cost { time_ms: Some(600), lanes: Some(1), ..Cost::default() }, LUKS2),
        ] {
            let parts = |kdf: Kdf| (kdf.derivation().iterations, kdf.memory());
            let chosen = parts(Kdf::choose(&cost, defaults, &hash::SHA256, 64, None).expect("a choice"));
            assert_eq!(expected(&cost, defaults, &hash::SHA256, 64).map(parts), Some(chosen));
            assert_eq!(Kdf::choose(&cost, defaults, &hash::SHA256, 64, None).map(parts).ok(), Some(chosen));
        }
    }

    #[test]
    fn what_no_header_may_have_is_refused() {
        let argon2 = Cost { kdf: Some("argon2i"), iterations: Some(4), memory_kib: Some(64), ..Cost::default() };
        for cost in [
            Cost { iterations: Some(999), ..Cost::default() },
            Cost { lanes: Some(1), ..Cost::default() },
            Cost { kdf: Some("scrypt"), ..Cost::default() },
            Cost { lanes: Some(5), ..argon2 },
            Cost { lanes: Some(0), ..argon2 },
            Cost { memory_kib: Some(31), lanes: Some(1), ..argon2 },
            Cost { memory_kib: Some(u32::MAX), ..argon2 },
            Cost { iterations: Some(0), ..argon2 },
        ] {
            let refused = chosen(cost).map(|k| k.name());
            assert!(matches!(&refused, Err(e) if matches!(e.kind, ErrorKind::Misuse(_))), "{cost:?}: {refused:?}");
        }
    }

    #[test]
    fn what_is_measured_stays_within_its_limits() {
        let kdf = chosen(Cost { time_ms: Some(1), ..Cost::default() }).expect("PBKDF2");
        assert!(matches!(kdf, Kdf::Pbkdf2 { iterations: MIN_ITERATIONS.., .. }));
        let cost = Cost { kdf: Some("argon2id"), time_ms: Some(20), memory_kib: Some(4096), ..Cost::default() };
        let kdf = chosen(cost).expect("Argon2id");
        assert!(matches!(
            kdf,
            Kdf::Argon2 { passes: MIN_PASSES.., memory_kib: MIN_MEMORY_KIB..=4096, lanes: 1..=4, .. }
        ));
        let stop = AtomicBool::new(true);
        let cancelled = Kdf::choose(&Cost::default(), LUKS2, &hash::SHA256, 64, Some(&stop));
        assert!(matches!(cancelled.map(|k| k.name()), Err(Error { kind: ErrorKind::Cancelled, .. })));
    }

    const MIB: u32 = 1 << 10;
    const TIME: Duration = Duration::from_secs(2);

    /// The choice on a machine that takes `per_mib` for a pass over a MiB, slowed down each time by the factor that `busy` returns.
    fn calibrated(most_mib: u32, per_mib: Duration, mut busy: impl FnMut() -> f64) -> (u32, u32) {
        let mut rounds = 0;
        let mut pass = |memory_kib: u32| {
            rounds += 1;
            Ok((per_mib * memory_kib / MIB).mul_f64(busy()))
        };
        let chosen = calibrate(most_mib * MIB, TIME, &mut pass).expect("costs");
        assert!(rounds <= 8, "{rounds} rounds");
        (chosen.0 / MIB, chosen.1)
    }

    #[test]
    fn lanes_and_passes_count_where_there_is_little_memory() {
        let effort =
            |passes, lanes| Kdf::Argon2 { variant: Variant::Id, passes, memory_kib: 512 * MIB, lanes }.effort(64);
        assert!(effort(1, 1 << 16) > effort(1, 1));
        let little = |passes| Kdf::Argon2 { variant: Variant::Id, passes, memory_kib: 8, lanes: 1 }.effort(64);
        // Any pass takes at least a nanosecond.
        assert!(little(u32::MAX) >= u64::from(u32::MAX) / 1000);
    }

    #[test]
    fn memory_comes_first_and_passes_last() {
        // The cases: fits into the time exactly; is limited by the maximum memory, and the remaining time goes into passes; has too
        // little time for the minimum.
        for (most, per_mib_us, chosen) in [
            (1024, 1000, (500, 4)),
            (1024, 100, (1024, 19)),
            (100, 1000, (100, 20)),
            (1024, 50_000, (64, 4)),
            (16, 50_000, (16, 4)),
        ] {
            assert_eq!(
                calibrated(most, Duration::from_micros(per_mib_us), || 1.0),
                chosen,
                "{most} MiB, {per_mib_us} us"
            );
        }
    }

    #[test]
    fn other_work_on_the_machine_does_not_turn_memory_into_passes() {
        let per_mib = Duration::from_millis(1);
        // Slow at first, once or twice.
        for slow in [1, 2] {
            let mut done = 0;
            let chosen = calibrated(1024, per_mib, || {
                done += 1;
                if done <= slow { 10.0 } else { 1.0 }
            });
            assert_eq!(chosen, (500, 4), "{slow} slow");
        }
        // Up to three times as slow at random: xorshift.
        for seed in 1..500_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let busy = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                1.0 + 2.0 * (state % 1000) as f64 / 1000.0
            };
            let (memory, passes) = calibrated(1024, per_mib, busy);
            assert!(passes == 4 && (500 / 3..=500).contains(&memory), "seed {seed}: {memory} MiB, {passes} passes");
        }
    }

    #[test]
    fn caches_and_failures_are_no_trap() {
        // Twice as fast up to 128 MiB.
        let mut pass = |kib: u32| Ok(Duration::from_micros(u64::from(kib) * if kib > 128 * MIB { 2 } else { 1 }));
        let (memory, passes) = calibrate(1024 * MIB, TIME, &mut pass).expect("costs");
        assert!((230 * MIB..=250 * MIB).contains(&memory) && passes == 4, "{memory} KiB, {passes} passes");
        let mut failing = |_: u32| Err(ErrorKind::Cancelled.into());
        assert!(matches!(calibrate(MIB, TIME, &mut failing).map_err(|e| e.kind), Err(ErrorKind::Cancelled)));
    }

    #[test]
    fn half_of_the_memory_is_taken_but_not_less_than_the_least() {
        for (available, most) in [(8192, 1024), (1024, 512), (100, 64), (64, 64), (40, 40)] {
            assert_eq!(most_memory(available * MIB), most * MIB, "{available} MiB");
        }
    }

    #[test]
    fn memory_is_refused_before_it_is_taken_and_cancelling_works() {
        let kdf = Kdf::Argon2 { variant: Variant::Id, passes: 1, memory_kib: 1 << 10, lanes: 1 };
        let with = Unlock { memory: Some(1 << 19), ..Unlock::with(&[]) };
        let refused = kdf.derive(b"x", &[0; 32], 32, &with).expect_err("too little");
        assert!(matches!(refused.kind, ErrorKind::TooLittleMemory { needed: 1_048_576, available: 524_288 }));
        let stop = AtomicBool::new(true);
        let with = Unlock { cancel: Some(&stop), ..Unlock::with(&[]) };
        for kdf in [kdf, Kdf::Pbkdf2 { hash: &hash::SHA256, iterations: u32::MAX }] {
            assert!(matches!(kdf.derive(b"x", &[0; 32], 32, &with), Err(Error { kind: ErrorKind::Cancelled, .. })));
        }
        let kdf = Kdf::Argon2 { variant: Variant::Id, passes: 1, memory_kib: 7, lanes: 1 };
        let wrong = kdf.derive(b"x", &[0; 32], 32, &Unlock::with(&[])).expect_err("no such derivation");
        assert!(matches!(wrong.kind, ErrorKind::Malformed { .. }), "{wrong}");
    }
}

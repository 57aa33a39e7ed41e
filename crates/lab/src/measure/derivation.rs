//! What a password costs: the derivation of a header key, with every hash and iteration count that TrueCrypt has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use claviger_crypto::hash::{self, Hash};
use claviger_crypto::pool::Pool;
use claviger_engine::file_formats::FILE_FORMATS;
use claviger_engine::formats::Creator;
use claviger_engine::formats::truecrypt::TRUECRYPT;
use claviger_engine::password_strength::{GuessWork, RTX_4090};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Result, Secret, Spec, Store, Unlock};
use serde::Serialize;

use crate::model::random::Random;
use crate::model::statistics::{Spread, median};

/// Bytes of header key that TrueCrypt derives: data and tweak keys of three ciphers of 32 bytes (7.1a, Pkcs5.c and
/// Volumes.c, `GetMaxPkcs5OutSize`).
const KEY: usize = 192;

/// Bytes of salt in a header.
const SALT: usize = 64;

/// A derivation is sampled for at least this long.
const SAMPLE: Duration = Duration::from_millis(20);

/// A helper thread looks for work this long before it sleeps.
const SPIN: Duration = Duration::from_millis(2);

/// A hash, an iteration count, and where TrueCrypt uses it.
struct DerivationKind {
    hash: &'static Hash,
    iterations: u32,
    used_for: &'static str,
    /// Whether a password for a volume is tried with it.
    tried: bool,
}

/// Every one that TrueCrypt tries (7.1a, Pkcs5.c, `get_pkcs5_iteration_count`). A system encryption's boot loader knows
/// RIPEMD-160 and, in old versions, SHA-1.
static KINDS: &[DerivationKind] = &[
    DerivationKind { hash: &hash::RIPEMD160, iterations: 2000, used_for: "volumes", tried: true },
    DerivationKind { hash: &hash::SHA512, iterations: 1000, used_for: "volumes", tried: true },
    DerivationKind { hash: &hash::WHIRLPOOL, iterations: 1000, used_for: "volumes", tried: true },
    DerivationKind { hash: &hash::SHA1, iterations: 2000, used_for: "volumes up to version 4.3a", tried: true },
    DerivationKind { hash: &hash::RIPEMD160, iterations: 1000, used_for: "system encryption", tried: false },
    DerivationKind { hash: &hash::SHA1, iterations: 1000, used_for: "old system encryption", tried: false },
];

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct DerivationReport {
    /// Each derivation, on one thread.
    pub derivations: Vec<DerivationTiming>,
    /// All of them for one password and one header.
    pub trial: DerivationTrial,
    /// How long the engine takes to refuse a wrong password.
    pub refusal: Refusal,
    /// What a guess costs an attacker in each format.
    pub guesses: Vec<GuessCost>,
}

/// What a guess of a password costs somebody with a graphics card, for what a format creates by default. Computed, not measured.
#[derive(Clone, Debug, Serialize)]
pub struct GuessCost {
    /// Name of the format.
    pub format: &'static str,
    /// Its key derivation, in words.
    pub derivation: String,
    /// Guesses per second with one [`RTX_4090`].
    pub per_second: f64,
    /// The bits of a random password that withstands that card for ten years on average: formats are equally hard to guess with
    /// passwords of these lengths.
    pub bits: f64,
}

/// How long a password should withstand one card, in seconds: ten years.
const STAND: f64 = 10.0 * 365.25 * 86_400.0;

/// For each format that creates volumes or folders with a password.
fn guess_costs() -> Vec<GuessCost> {
    let volumes = FORMATS.iter().filter(|format| format.creator().is_some());
    let volumes = volumes.map(|format| (format.name(), format.guess_work(&Spec::default())));
    let folders = FILE_FORMATS.iter().map(|format| (format.name(), format.guess_work()));
    let cost = |(format, work): (&'static str, Option<GuessWork>)| {
        let work = work?;
        let per_second = work.per_second(&RTX_4090);
        // On average, half of all passwords are tried.
        Some(GuessCost { format, derivation: work.to_string(), per_second, bits: (2.0 * per_second * STAND).log2() })
    };
    let mut costs: Vec<GuessCost> = volumes.chain(folders).filter_map(cost).collect();
    costs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    costs
}

/// The time until the engine reports that a password opens nothing: every key derivation for each copy of the header, and
/// trial decryptions with every cipher and mode, on one thread for each processor.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    /// Median time in milliseconds.
    pub milliseconds: f64,
    /// Every sample, in milliseconds.
    pub milliseconds_samples: Vec<f64>,
}

/// A derivation on one thread.
#[derive(Clone, Debug, Serialize)]
pub struct DerivationTiming {
    /// Name of the hash.
    pub hash: &'static str,
    /// Iterations of PBKDF2.
    pub iterations: u32,
    /// Where TrueCrypt uses it.
    pub used_for: &'static str,
    /// Bytes derived.
    pub key_bytes: usize,
    /// Median time in milliseconds.
    pub milliseconds: f64,
    /// Derivations per second on this one thread.
    pub per_second: f64,
    /// Spread of the time in milliseconds.
    pub milliseconds_spread: Spread,
    /// Every sample, in milliseconds.
    pub milliseconds_samples: Vec<f64>,
}

/// All derivations that one wrong password for a volume costs, for one header. The trial decryptions of the header's
/// few hundred bytes come on top; they take microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct DerivationTrial {
    /// Threads that shared the work; a piece is one block of PBKDF2's output.
    pub threads: usize,
    /// Derivations.
    pub derivations: usize,
    /// Median time in milliseconds.
    pub milliseconds: f64,
    /// Headers, or passwords, tried per second.
    pub per_second: f64,
    /// Spread of the time in milliseconds.
    pub milliseconds_spread: Spread,
    /// Every sample, in milliseconds.
    pub milliseconds_samples: Vec<f64>,
}

/// Measures each derivation on one thread and a whole trial on `threads`, `repeats` times in turn.
///
/// # Errors
/// `Misuse` without a repeat or a thread.
pub fn measure(threads: usize, repeats: usize) -> Result<DerivationReport> {
    if threads == 0 || repeats == 0 {
        return Err(Error::misuse("at least one thread and one repeat are required"));
    }
    let pool = Pool::new(threads, SPIN);
    let mut samples = vec![Vec::new(); KINDS.len()];
    let mut trials = Vec::new();
    let mut refusals = Vec::new();
    let nothing = Nothing::new();
    for _ in 0..repeats {
        for (kind, samples) in KINDS.iter().zip(&mut samples) {
            samples.push(milliseconds(|| derive(kind)));
        }
        trials.push(milliseconds(|| try_all(&pool)));
        let start = Instant::now();
        nothing.refuse()?;
        refusals.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    let derivation = |(kind, samples): (&DerivationKind, Vec<f64>)| DerivationTiming {
        hash: kind.hash.name,
        iterations: kind.iterations,
        used_for: kind.used_for,
        key_bytes: KEY,
        milliseconds: median(&samples),
        per_second: 1000.0 / median(&samples),
        milliseconds_spread: Spread::of(&samples),
        milliseconds_samples: samples,
    };
    Ok(DerivationReport {
        derivations: KINDS.iter().zip(samples).map(derivation).collect(),
        trial: DerivationTrial {
            threads: pool.threads(),
            derivations: KINDS.iter().filter(|k| k.tried).count(),
            milliseconds: median(&trials),
            per_second: 1000.0 / median(&trials),
            milliseconds_spread: Spread::of(&trials),
            milliseconds_samples: trials,
        },
        refusal: Refusal { milliseconds: median(&refusals), milliseconds_samples: refusals },
        guesses: guess_costs(),
    })
}

/// Milliseconds of one call, the mean over as many as a sample takes.
fn milliseconds(mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < SAMPLE {
        call();
        calls += 1;
    }
    start.elapsed().as_secs_f64() * 1000.0 / f64::from(calls)
}

fn derive(kind: &DerivationKind) {
    let mut key = [0; KEY];
    kind.hash.pbkdf2(PASSWORD, &[0x5c; SALT], kind.iterations, &mut key, &|| true);
    std::hint::black_box(&key);
}

/// All derivations, their pieces shared out over the pool: the longest first, so that no thread is left with a long one
/// at the end.
fn try_all(pool: &Pool) {
    let pieces = |kind: &'static DerivationKind| {
        (0..KEY).step_by(kind.hash.blocks_at_once() * kind.hash.size).map(move |at| (kind, at))
    };
    let all: Vec<_> = KINDS.iter().filter(|k| k.tried).flat_map(pieces).collect();
    pool.run(all.len(), &|i| {
        let (kind, at) = all[i];
        let mut key = [0; KEY];
        let piece = &mut key[..(KEY - at).min(kind.hash.blocks_at_once() * kind.hash.size)];
        let index = (at / kind.hash.size) as u32 + 1;
        kind.hash.pbkdf2_blocks(PASSWORD, &[0x5c; SALT], kind.iterations, index, piece, &|| true);
        std::hint::black_box(&piece);
    });
}

/// A store of random bytes, which no password opens.
struct Nothing(Arc<dyn Store>);

impl Nothing {
    fn new() -> Self {
        let mut bytes = vec![0; TRUECRYPT.choices().min_len as usize];
        Random::new(1).fill(&mut bytes);
        Self(Arc::new(MemoryStore::new(bytes)))
    }

    fn refuse(&self) -> Result<()> {
        let passphrase = [Credential::Passphrase(Secret::copy_from(PASSWORD))];
        match TRUECRYPT.open(&self.0)?.unlock(&Unlock::with(&passphrase)) {
            Err(Error { kind: ErrorKind::WrongCredential(_), .. }) => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Err(std::io::Error::other("random bytes were opened by a password").into()),
        }
    }
}

/// Its length makes no difference: HMAC hashes it to one block beforehand.
const PASSWORD: &[u8] = b"a password of average length";

//! How fast the ciphers are in memory: what TrueCrypt's benchmark window shows, measured in the same way.
//!
//! TrueCrypt (7.1a, BenchmarkDialog.cpp) encrypts one buffer in units of 512 bytes with XTS, over and over for at least
//! 100 ms after a warm-up, then decrypts it; the mean is the arithmetic mean of the two speeds. We do the same, and
//! more: the suites take turns over several repeats, so that clock drift affects all of them; medians and spreads are
//! reported; and at the end the buffer must hold its original contents, which proves that all of it was really
//! encrypted and decrypted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::{Acceleration, SectorCipher};
use claviger_engine::{Error, ErrorKind, Result};

use crate::measure::machine;
use crate::measure::memory::Buffer;
use crate::measure::suites::Suite;
use crate::model::ciphers::{AesAcceleration, CipherSpeed};
use crate::model::machine::Machine;
use crate::model::random::Random;
use crate::model::statistics::{Spread, median};

/// Buffer sizes of TrueCrypt's window, in bytes. Its KB are 1024 bytes, its MB 1024 KB (`BYTES_PER_KB`).
pub const BUFFERS: &[usize] =
    &[100 << 10, 500 << 10, 1 << 20, 5 << 20, 10 << 20, 50 << 20, 100 << 20, 200 << 20, 500 << 20, 1 << 30];

/// The size that TrueCrypt's window starts with, in bytes.
pub const DEFAULT_BUFFER: usize = 5 << 20;

/// Minimum duration of a sample, as in TrueCrypt, so that the clock's resolution and a single interruption do not
/// matter.
const SAMPLE: Duration = Duration::from_millis(100);

/// How long each cipher runs before its speed is estimated, so that the clock frequency has risen.
const WARM_UP: Duration = Duration::from_millis(20);

/// The speed is estimated on a part of the buffer, and untimed work on that part precedes each sample. The part has
/// this many bytes, or one piece per thread if that is more.
const LEAD: usize = 1 << 20;

/// How long an idle helper thread polls before it sleeps: longer than the gaps between passes.
const SPIN: Duration = Duration::from_millis(2);

/// From this size on, in bytes, a buffer is always split over the threads. A smaller one is split only if a trial shows
/// that this is faster: handing a part over takes a few microseconds, in which a fast cipher processes tens of KiB.
const SPLIT: usize = 1 << 20;

/// Up to this many bytes, each thread has one part of its own, which stays in its second-level cache from pass to pass.
/// Larger parts would not fit, and are cut up: a disturbed processor then does fewer of the pieces.
const OWN_PART: usize = 1 << 20;

/// Bytes of a part of a buffer that is cut up.
const PIECE: usize = 256 << 10;

/// Trials of a small buffer whole and split, the best of which counts: disturbances only ever slow down.
const TRIES: u32 = 8;

/// Time for each try.
const TRY: Duration = Duration::from_millis(1);

/// What to measure.
#[derive(Clone)]
pub struct BenchmarkPlan {
    /// Ciphers and cascades.
    pub suites: Vec<Suite>,
    /// Buffer sizes in bytes. Each is rounded down to whole sectors.
    pub buffers: Vec<usize>,
    /// Threads that work on a buffer together.
    pub threads: usize,
    /// Sector size of the ciphers in bytes.
    pub sector: usize,
    /// Whether ciphers may use AES instructions.
    pub acceleration: Acceleration,
    /// Samples for each figure.
    pub repeats: usize,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Mean speed, the fastest first.
    #[default]
    Mean,
    /// Speed of encryption, the fastest first.
    Encryption,
    /// Speed of decryption, the fastest first.
    Decryption,
    /// Name, from A to Z.
    Name,
}

/// Measures. Calls `progress` with the number of finished samples and of all samples.
///
/// # Errors
/// `Misuse` for a plan that makes no sense; `TooLittleMemory`; `Io` if a buffer came back changed.
pub fn measure(plan: &BenchmarkPlan, progress: &dyn Fn(u64, u64)) -> Result<Vec<CipherSpeed>> {
    measure_unless(plan, &|| false, progress)
}

/// The same, until somebody cancels it.
///
/// # Errors
/// As for [`measure`]; `Cancelled`.
pub fn measure_unless(
    plan: &BenchmarkPlan,
    cancelled: &dyn Fn() -> bool,
    progress: &dyn Fn(u64, u64),
) -> Result<Vec<CipherSpeed>> {
    let go_on = || if cancelled() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) };
    plan.check()?;
    let pool = Pool::new(plan.threads, SPIN);
    let mut rows = Vec::new();
    let total = (plan.buffers.len() * plan.suites.len() * plan.repeats) as u64;
    for &buffer in &plan.buffers {
        let done = rows.len() as u64 * plan.repeats as u64;
        rows.extend(measure_buffer(plan, buffer, &pool, &go_on, &|samples| progress(done + samples, total))?);
    }
    Ok(rows)
}

/// Puts the rows of each buffer size into order; smaller buffers come first.
pub fn sort(rows: &mut [CipherSpeed], by: Sort) {
    let key = |row: &CipherSpeed| match by {
        Sort::Mean => -row.mean_bytes_per_s,
        Sort::Encryption => -row.encrypt_bytes_per_s,
        Sort::Decryption => -row.decrypt_bytes_per_s,
        Sort::Name => 0.0,
    };
    rows.sort_by(|a, b| {
        let speeds = key(a).total_cmp(&key(b));
        a.buffer_bytes.cmp(&b.buffer_bytes).then(speeds).then(a.cipher.cmp(&b.cipher))
    });
}

impl BenchmarkPlan {
    /// The suites with AES instructions, where there are any, in sectors of 512 bytes, by one thread for each processor, three times.
    pub fn new(suites: Vec<Suite>, buffers: &[usize]) -> Self {
        let (threads, acceleration) = (machine::cpus(), Acceleration::On);
        Self { suites, buffers: buffers.to_vec(), threads, sector: 512, acceleration, repeats: 3 }
    }

    fn check(&self) -> Result<()> {
        let reason = match () {
            () if self.repeats == 0 => "at least one repeat is required",
            () if self.threads == 0 => "at least one thread is required",
            () if self.sector < 512 || self.sector > 4096 || !self.sector.is_power_of_two() => {
                "the sector size must be 512, 1024, 2048 or 4096 bytes"
            }
            () if self.buffers.iter().any(|&b| b < self.sector) => "the buffer is smaller than a sector",
            () => return self.check_memory(),
        };
        Err(Error::misuse(reason))
    }

    fn check_memory(&self) -> Result<()> {
        let needed = self.buffers.iter().copied().max().unwrap_or(0) as u64;
        let available = machine::memory_available();
        match available {
            // Unknown, or enough: the rest of the program is small against the buffer.
            0 => Ok(()),
            _ if needed < available => Ok(()),
            _ => Err(ErrorKind::TooLittleMemory { needed, available }.into()),
        }
    }

    /// The bytes that a thread takes at a time; all of them where there is one thread.
    fn piece(&self, buffer: usize) -> usize {
        let share = buffer.div_ceil(self.threads).next_multiple_of(self.sector);
        if self.threads > 1 && share > OWN_PART { PIECE } else { share }
    }
}

fn measure_buffer(
    plan: &BenchmarkPlan,
    size: usize,
    pool: &Pool,
    go_on: &dyn Fn() -> Result<()>,
    progress: &dyn Fn(u64),
) -> Result<Vec<CipherSpeed>> {
    let size = size / plan.sector * plan.sector;
    let measured_at = machine::utc_now();
    let mut buffer = Buffer::new(size);
    Random::new(size as u64).fill(&mut buffer);
    let runner = Runner { pool, sector: plan.sector };
    let mut subjects: Vec<Subject> = Vec::new();
    for suite in &plan.suites {
        go_on()?;
        let cipher = suite.keyed(plan.sector, plan.acceleration);
        let piece = runner.choose(&*cipher, plan.piece(size), &mut buffer);
        let passes = runner.passes(&*cipher, piece, &mut buffer);
        let shape = Shape { piece, passes };
        subjects.push(Subject { suite, cipher, shape, encryption: Vec::new(), decryption: Vec::new() });
    }
    let mut done = 0;
    for _ in 0..plan.repeats {
        for subject in &mut subjects {
            go_on()?;
            let Subject { cipher, shape, encryption, decryption, .. } = subject;
            encryption.push(runner.sample(shape, &mut buffer, &|n, run| cipher.encrypt(n, run)));
            decryption.push(runner.sample(shape, &mut buffer, &|n, run| cipher.decrypt(n, run)));
            done += 1;
            progress(done);
        }
    }
    if !came_back(&buffer, size as u64) {
        return Err(std::io::Error::other("the buffer came back changed: the measurement is worthless").into());
    }
    let Machine { cpu_model, program_version, .. } = Machine::this();
    let row = |s: Subject<'_>| {
        let (encryption, decryption) = (median(&s.encryption), median(&s.decryption));
        CipherSpeed {
            cipher: s.suite.name.clone(),
            buffer_bytes: size,
            threads: plan.threads,
            piece_bytes: s.shape.piece,
            sector_bytes: plan.sector,
            acceleration: AesAcceleration::here(plan.acceleration),
            aes_instructions: s.suite.uses_aes_instructions(plan.acceleration),
            kernel: s.suite.kernel(plan.acceleration),
            encrypt_bytes_per_s: encryption,
            decrypt_bytes_per_s: decryption,
            mean_bytes_per_s: f64::midpoint(encryption, decryption),
            repeats: plan.repeats,
            passes: s.shape.passes,
            encrypt_spread: Spread::of(&s.encryption),
            decrypt_spread: Spread::of(&s.decryption),
            encrypt_samples: s.encryption,
            decrypt_samples: s.decryption,
            cpu_model: cpu_model.clone(),
            program_version: program_version.clone(),
            measured_at: measured_at.clone(),
        }
    };
    Ok(subjects.into_iter().map(row).collect())
}

/// A suite that is being measured.
struct Subject<'a> {
    suite: &'a Suite,
    cipher: Arc<dyn SectorCipher>,
    shape: Shape,
    encryption: Vec<f64>,
    decryption: Vec<f64>,
}

/// How a sample goes over the buffer.
struct Shape {
    /// Bytes that a thread takes at a time.
    piece: usize,
    /// Times that it goes over the whole buffer.
    passes: usize,
}

/// Runs ciphers over a buffer.
struct Runner<'a> {
    pool: &'a Pool,
    sector: usize,
}

type Operation<'a> = dyn Fn(u64, &mut [u8]) + Sync + 'a;

impl Runner<'_> {
    /// Once over `run`, in pieces of `piece` bytes.
    fn pass(&self, piece: usize, run: &mut [u8], operation: &Operation<'_>) {
        match piece < run.len() {
            true => for_each_piece(self.pool, run, piece, |at, part| operation((at / self.sector) as u64, part)),
            false => operation(0, run),
        }
    }

    /// Encrypts and decrypts the untimed lead of a sample, for the given time. Returns bytes per second.
    fn there_and_back(&self, cipher: &dyn SectorCipher, piece: usize, buffer: &mut [u8], time: Duration) -> f64 {
        let lead = self.lead(piece, buffer);
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.pass(piece, lead, &|n, run| cipher.encrypt(n, run));
            self.pass(piece, lead, &|n, run| cipher.decrypt(n, run));
            bytes += 2 * lead.len();
        }
        bytes as f64 / start.elapsed().as_secs_f64()
    }

    /// Whether to split the buffer into pieces of `piece` bytes: that size, or that of the buffer.
    fn choose(&self, cipher: &dyn SectorCipher, piece: usize, buffer: &mut [u8]) -> usize {
        let whole = buffer.len();
        if whole >= SPLIT || piece >= whole {
            return piece;
        }
        let (mut best_whole, mut best_split) = (0.0, 0.0);
        for _ in 0..TRIES {
            best_whole = self.there_and_back(cipher, whole, buffer, TRY).max(best_whole);
            best_split = self.there_and_back(cipher, piece, buffer, TRY).max(best_split);
        }
        if best_split > best_whole { piece } else { whole }
    }

    /// Warms up, and finds how many passes a sample needs. Leaves the buffer as it was.
    fn passes(&self, cipher: &dyn SectorCipher, piece: usize, buffer: &mut [u8]) -> usize {
        let speed = self.there_and_back(cipher, piece, buffer, WARM_UP);
        ((SAMPLE.as_secs_f64() * speed / buffer.len() as f64).ceil() as usize).max(1)
    }

    /// Speed in bytes per second, after one pass over the lead that is not timed: it brings the key and the code back
    /// into the caches after another suite's turn, and wakes the helpers.
    fn sample(&self, shape: &Shape, buffer: &mut [u8], operation: &Operation<'_>) -> f64 {
        let Shape { piece, passes } = *shape;
        self.pass(piece, self.lead(piece, buffer), operation);
        let start = Instant::now();
        for _ in 0..passes {
            self.pass(piece, buffer, operation);
        }
        (passes * buffer.len()) as f64 / start.elapsed().as_secs_f64()
    }

    /// The beginning of the buffer, large enough to keep every thread busy.
    fn lead<'b>(&self, piece: usize, buffer: &'b mut [u8]) -> &'b mut [u8] {
        let len = piece.saturating_mul(self.pool.threads()).max(LEAD).min(buffer.len());
        &mut buffer[..len]
    }
}

/// Whether the buffer holds what `Random::new(seed)` filled it with.
fn came_back(buffer: &[u8], seed: u64) -> bool {
    let mut random = Random::new(seed);
    let mut expected = [0; 4096];
    buffer.chunks(expected.len()).all(|chunk| {
        let expected = &mut expected[..chunk.len()];
        random.fill(expected);
        expected == chunk
    })
}

//! What the bindings for other languages have in common: an opening as a list of options, an open volume that a forked process
//! cannot use, and what is known of a file as JSON.

mod files;
mod look;
mod new;
mod open;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use claviger_engine::{Error, Result};

pub use files::{File, Files};
pub use look::{explain, identify};
pub use new::{NewVolume, create};
pub use open::{LockedVolume, Options, Secrets, Volume};

/// What a header may ask for before it has to be allowed: the same that the program allows.
const PATIENCE: Duration = Duration::from_secs(300);

/// Refuses work that takes longer.
fn patience(time: Duration) -> Result<()> {
    if time <= PATIENCE {
        return Ok(());
    }
    let what = format!("trying it would take about {} seconds of processor time; nothing was tried", time.as_secs());
    Err(Error::misuse(what).hint("Ordinary volumes take seconds. Slow work can be allowed."))
}

/// The longest secret that is taken: no volume key and no password is longer, and memory for it is locked.
pub const LONGEST_SECRET: usize = 1 << 20;

/// Refuses a secret of so many bytes, before there is memory for it.
///
/// # Errors
/// `Misuse`.
pub fn check_secret(len: usize) -> Result<()> {
    match len <= LONGEST_SECRET {
        true => Ok(()),
        false => Err(Error::misuse(format!("a secret of {len} bytes: at most {LONGEST_SECRET} are taken"))
            .hint("A keyfile may be longer.")),
    }
}

/// Work that another thread may watch and cancel.
#[derive(Default)]
pub struct Job {
    cancel: AtomicBool,
    done: AtomicU64,
    all: AtomicU64,
}

impl Job {
    /// Ends it soon. May be called from any thread, and from a signal handler.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// How much is done, and how much there is; 0 of 0 before anybody knows.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    fn tell(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }
}

/// What only the process may use that made it. A forked child has the memory without the secrets in it, which would decrypt to noise,
/// and none of the threads, which it would wait for.
pub struct Here<T> {
    process: u32,
    it: Option<T>,
}

impl<T> Here<T> {
    /// It, in this process.
    pub fn new(it: T) -> Self {
        Self { process: std::process::id(), it: Some(it) }
    }

    /// It.
    ///
    /// # Errors
    /// `Misuse` in a forked child.
    pub fn get(&self) -> Result<&T> {
        self.it.as_ref().filter(|_| self.process == std::process::id()).ok_or_else(|| {
            Error::misuse("it was opened before this process was forked, whose memory has no keys")
                .hint("Open it once more in this process.")
        })
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.it.take());
        }
    }
}

/// The first error of several threads.
#[derive(Default)]
struct First(Mutex<Option<std::io::Error>>);

impl First {
    fn keep(&self, result: std::io::Result<()>) {
        if let Err(e) = result {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e);
        }
    }

    fn result(self) -> std::io::Result<()> {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

//! Ends a process that is stuck where nothing checks for signals: in a library, a driver or the kernel.
//!
//! The first signal of a kind is a request, which long work checks for. The second of the same kind starts a timer, and
//! when that expires the process ends as if killed. Until then, threads that still can clean up. Signals of different
//! kinds are counted separately, because a session that ends sends two at once.
#![allow(unsafe_code, reason = "handlers of signals, and a timer, for which rustix has no call")]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::low_level::{exit, register};

/// How long threads have to clean up, in microseconds.
const GRACE: libc::suseconds_t = 700_000;

/// The signal that the timer sends.
pub const TIMER: i32 = libc::SIGALRM;

/// How many times each signal has been received.
static TIMES: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];

/// How many times a signal may be received before the timer starts.
static ALLOWED: AtomicUsize = AtomicUsize::new(1);

/// Whether the timer runs.
static ENDS: AtomicBool = AtomicBool::new(false);

/// From now on, the second of any of these signals ends the process soon, with this exit status.
///
/// # Errors
/// The system's error, as for signals that cannot be caught.
pub fn install(signals: &[i32], status: i32) -> io::Result<()> {
    // SAFETY: the handler reads an atomic and calls `_exit`, both of which a handler may (signal-safety(7)).
    unsafe {
        register(TIMER, move || {
            if ENDS.load(Ordering::SeqCst) {
                exit(status);
            }
        })?;
    }
    for signal in signals.iter().copied() {
        // SAFETY: the handler counts in atomics and makes one system call, setitimer(2), or `_exit`.
        unsafe {
            register(signal, move || came(signal, status))?;
        }
    }
    Ok(())
}

/// From now on a signal may come this often, because the second one has its own meaning.
pub fn allow(times: usize) {
    ALLOWED.store(times, Ordering::SeqCst);
}

/// How many times the most frequent signal has been received.
pub fn count() -> usize {
    TIMES.iter().map(|times| times.load(Ordering::Relaxed)).max().unwrap_or_default()
}

fn came(signal: i32, status: i32) {
    let Some(times) = TIMES.get(signal.unsigned_abs() as usize) else { return };
    let so_often = times.fetch_add(1, Ordering::SeqCst) + 1;
    if so_often <= ALLOWED.load(Ordering::SeqCst) || ENDS.swap(true, Ordering::SeqCst) {
        return;
    }
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: GRACE },
    };
    // SAFETY: the kernel reads a timer that lives on this stack, and writes nothing.
    if unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) } != 0 {
        exit(status);
    }
}

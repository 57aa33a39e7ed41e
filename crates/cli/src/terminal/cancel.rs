//! Ctrl-C and SIGTERM set a flag that long work polls. A second signal of the same kind ends a process that does not poll.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use claviger_engine::deadline::Cancel;
use claviger_serve::last_signal;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask the program to end.
pub const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// All signals that have a handler.
pub const HANDLED: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, last_signal::TIMER];

#[derive(Default)]
struct Flags {
    /// Set once the signal handlers are installed.
    installed: OnceLock<()>,
    /// The user wants the program to end.
    cancelled: Arc<AtomicBool>,
    /// There is nothing to clean up, so a signal may end the process at once.
    at_once: Arc<AtomicBool>,
    /// Ends every wait for anything outside this process.
    waits_no_more: Arc<AtomicBool>,
    /// The handlers that set `waits_no_more`.
    setters: Mutex<Vec<SigId>>,
}

fn flags() -> &'static Flags {
    static FLAGS: OnceLock<Flags> = OnceLock::new();
    FLAGS.get_or_init(Flags::default)
}

/// From here on, a signal sets the flag instead of ending the process. A second one of the same kind still ends it soon.
pub fn install() -> io::Result<&'static AtomicBool> {
    let Flags { installed, cancelled, at_once, waits_no_more, setters } = flags();
    if installed.set(()).is_ok() {
        let status = crate::terminal::exit::cancelled();
        for signal in SIGNALS {
            // The order matters: the first handler ends the process if that does no harm, the others set the flags.
            signal_hook::flag::register_conditional_shutdown(signal, status, at_once.clone())?;
            signal_hook::flag::register(signal, cancelled.clone())?;
            let setter = signal_hook::flag::register(signal, waits_no_more.clone())?;
            setters.lock().unwrap_or_else(PoisonError::into_inner).push(setter);
        }
        last_signal::install(&SIGNALS, status)?;
    }
    Ok(flag())
}

pub fn flag() -> &'static AtomicBool {
    &flags().cancelled
}

/// The flag that ends every wait for anything outside this process. While a volume is served, signals do not set it: data that
/// programs have written must reach the disk.
pub fn waits() -> Cancel {
    Some(&flags().waits_no_more)
}

/// Whether a signal has come.
pub fn cancelled() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Fails if a signal has come.
pub fn check() -> claviger_engine::Result<()> {
    if cancelled() { Err(claviger_engine::ErrorKind::Cancelled.into()) } else { Ok(()) }
}

/// From here on, a signal ends the process at once: nothing has to be cleaned up, and the process may hang in a write.
pub fn end_at_once() {
    flags().at_once.store(true, Ordering::SeqCst);
}

/// Call this once the volume is in use. The first signal then stops serving. The second disconnects the programs that use the
/// volume; data that they have written still reach the disk. Only the third ends the process.
pub fn serving() {
    last_signal::allow(2);
    let Flags { waits_no_more, setters, .. } = flags();
    for setter in setters.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        signal_hook::low_level::unregister(setter);
    }
    waits_no_more.store(false, Ordering::SeqCst);
}

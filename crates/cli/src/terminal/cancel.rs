//! Ctrl-C and SIGTERM: a flag that long work looks at.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask the program to end.
pub const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

struct Flags {
    /// The person wants it to end.
    cancelled: Arc<AtomicBool>,
    /// There is nothing to clean up, so a signal may end the process at once.
    at_once: Arc<AtomicBool>,
}

static FLAGS: OnceLock<Flags> = OnceLock::new();

/// From here on, a signal sets the flag instead of ending the process.
pub fn install() -> io::Result<&'static AtomicBool> {
    if FLAGS.get().is_none() {
        let flags = Flags { cancelled: Arc::default(), at_once: Arc::default() };
        for signal in SIGNALS {
            // In this order: the first handler ends the process where that does no harm, the second notes the wish.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                crate::terminal::exit::cancelled(),
                flags.at_once.clone(),
            )?;
            signal_hook::flag::register(signal, flags.cancelled.clone())?;
        }
        let _ = FLAGS.set(flags);
    }
    Ok(flag())
}

/// The flag.
pub fn flag() -> &'static AtomicBool {
    static NEVER: AtomicBool = AtomicBool::new(false);
    FLAGS.get().map_or(&NEVER, |f| &f.cancelled)
}

/// Whether a signal has come.
pub fn cancelled() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Fails if a signal has come.
pub fn check() -> claviger_engine::Result<()> {
    if cancelled() { Err(claviger_engine::ErrorKind::Cancelled.into()) } else { Ok(()) }
}

/// From here on, a signal ends the process at once: nothing has to be cleaned up, and it may be waiting in a write that
/// does not return.
pub fn end_at_once() {
    if let Some(flags) = FLAGS.get() {
        flags.at_once.store(true, Ordering::SeqCst);
    }
}

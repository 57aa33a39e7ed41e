//! Reads on every processor and gives the pieces in their order: while one is written somewhere, the next ones are read and decrypted.

use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Bytes of a piece: large enough for a disk, small enough to be in the cache while it is decrypted and written.
pub const PIECE: usize = 1 << 20;

/// The most pieces that are read at once.
const MOST: usize = 16;

/// Calls `read` for the pieces of `range`, several at once, and `take` with each piece, its offset and what reading it came to, one
/// after the other. The contents of a piece are unspecified where reading has failed.
///
/// # Errors
/// The first error of `take`, after which it is not called any more.
pub fn read<E: Send>(
    range: Range<u64>,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()> + Sync,
    take: impl FnMut(u64, &mut [u8], io::Result<()>) -> Result<(), E> + Send,
) -> Result<(), E> {
    let count = range.end.saturating_sub(range.start).div_ceil(PIECE as u64);
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MOST)).min(count as usize);
    let order = Order {
        state: Mutex::new(State { asked: 0, taken: 0, over: false, take, failed: None }),
        turn: Condvar::new(),
    };
    let work = || {
        let _ends_all = EndsAll(&order);
        let mut buffer = vec![0; PIECE.min((range.end - range.start) as usize)];
        while let Some(number) = order.next(count) {
            let at = range.start + number * PIECE as u64;
            let piece = &mut buffer[..(range.end - at).min(PIECE as u64) as usize];
            let result = read(at, piece);
            order.take(number, |take| take(at, piece, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no more can be started, those that there are do it all.
            if thread::Builder::new().name("reader".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        if threads > 0 {
            work();
        }
    });
    order.state.into_inner().unwrap_or_else(PoisonError::into_inner).failed.map_or(Ok(()), Err)
}

/// Who is next.
struct Order<F, E> {
    state: Mutex<State<F, E>>,
    turn: Condvar,
}

struct State<F, E> {
    /// Pieces that somebody reads or has read, and pieces that have been taken.
    asked: u64,
    taken: u64,
    /// Nothing is taken any more.
    over: bool,
    take: F,
    failed: Option<E>,
}

/// If a thread panics, no other thread waits for its piece.
struct EndsAll<'a, F, E>(&'a Order<F, E>);

impl<F, E> Drop for EndsAll<'_, F, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().over = true;
            self.0.turn.notify_all();
        }
    }
}

impl<F, E> Order<F, E> {
    /// The next piece to read, of `count`.
    fn next(&self, count: u64) -> Option<u64> {
        let mut state = self.lock();
        let number = state.asked;
        (number < count && !state.over).then(|| {
            state.asked += 1;
            number
        })
    }

    /// Waits for this piece's turn, calls `give`, and passes the turn on.
    fn take(&self, number: u64, give: impl FnOnce(&mut F) -> Result<(), E>) {
        let not_yet = |state: &mut State<F, E>| state.taken != number && !state.over;
        let mut state = self.turn.wait_while(self.lock(), not_yet).unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        state.over = true;
        match give(&mut state.take) {
            Ok(()) => state.over = false,
            Err(e) => state.failed = Some(e),
        }
        state.taken += 1;
        drop(state);
        self.turn.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<F, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Sectors being written: two writers never write the same sector at once. Readers do not wait.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The sectors being written.
#[derive(Debug, Default)]
pub(super) struct Busy {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One range per writer; there are few, so a list is enough.
    ranges: Vec<Range<u64>>,
    waiting: usize,
}

/// Sectors that belong to one writer for as long as this lives.
#[derive(Debug)]
pub(in crate::volume) struct Taken<'a> {
    busy: &'a Busy,
    range: Range<u64>,
}

impl Busy {
    /// Waits until nobody else writes these sectors, and reserves them.
    pub fn take(&self, range: Range<u64>) -> Taken<'_> {
        let mut state = self.state();
        while state.ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
            state.waiting += 1;
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.ranges.push(range.clone());
        Taken { busy: self, range }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.busy.state();
        let at = state.ranges.iter().position(|range| *range == self.range).expect("it was taken");
        state.ranges.swap_remove(at);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.busy.freed.notify_all();
        }
    }
}

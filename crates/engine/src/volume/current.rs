//! The current layout of a volume: a conversion changes it while the volume is in use.

use std::io;
use std::ops::{Deref, Range};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};

use super::Layout;
use crate::shards::Shards;

/// The layout, and the parts of the volume that requests must stay away from for now.
///
/// Every request holds it for its duration. A change waits for all requests that use the old layout.
pub(super) struct CurrentLayout {
    shards: Shards<RwLock<Arc<State>>>,
    /// Requests that have to wait do so here.
    waiting: Mutex<()>,
    changed: Condvar,
}

struct State {
    layout: Arc<Layout>,
    closed: Closed,
}

/// Ranges of the volume, in bytes, that are closed to requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Where writes wait.
    pub writes: Range<u64>,
    /// Where reads wait.
    pub reads: Range<u64>,
    /// Whether requests fail there instead of waiting.
    pub failed: bool,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// The layout for the duration of a request.
pub(super) struct InUse<'a>(RwLockReadGuard<'a, Arc<State>>);

impl Deref for InUse<'_> {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.0.layout
    }
}

impl CurrentLayout {
    /// `layout`, with nothing closed. `small` is for few threads.
    pub fn new(layout: Layout, small: bool) -> Self {
        let state = Arc::new(State { layout: Arc::new(layout), closed: Closed::default() });
        let shard = || RwLock::new(Arc::clone(&state));
        let shards = if small { Shards::One(shard()) } else { Shards::each(shard) };
        Self { shards, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// The layout at this moment.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.mine().layout)
    }

    /// Whether a part is closed for good.
    pub fn has_failed(&self) -> bool {
        self.mine().closed.failed
    }

    fn mine(&self) -> RwLockReadGuard<'_, Arc<State>> {
        self.shards.mine().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The layout for a request of these bytes, once they are open to it. A thread that holds it must not ask for it again.
    ///
    /// # Errors
    /// If the part is closed for good.
    pub fn request(&self, range: Range<u64>, access: Access) -> io::Result<InUse<'_>> {
        let state = self.mine();
        if !state.closed.to(&range, access) {
            return Ok(InUse(state));
        }
        drop(state);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let state = self.mine();
            if !state.closed.to(&range, access) {
                return Ok(InUse(state));
            }
            if state.closed.failed {
                return Err(io::Error::other("this part was being rewritten when the conversion failed"));
            }
            drop(state);
            // A change is announced under this lock, so it cannot be missed.
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Replaces the layout, unless it is `None`, and what is closed. Afterwards no request uses the old one.
    pub fn change(&self, layout: Option<Layout>, closed: Closed) {
        // All threads lock the shards in the same order.
        let mut all: Vec<_> =
            self.shards.iter().map(|shard| shard.write().unwrap_or_else(PoisonError::into_inner)).collect();
        let layout = layout.map_or_else(|| Arc::clone(&all[0].layout), Arc::new);
        let state = Arc::new(State { layout, closed });
        all.iter_mut().for_each(|shard| **shard = Arc::clone(&state));
        drop(all);
        drop(self.waiting.lock());
        self.changed.notify_all();
    }
}

impl Closed {
    fn to(&self, range: &Range<u64>, access: Access) -> bool {
        let closed = match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
        };
        closed.start < range.end && range.start < closed.end && !range.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn clear(len: u64) -> Layout {
        Layout::clear(len).expect("a layout")
    }

    #[test]
    fn requests_wait_only_where_it_is_closed() {
        for small in [false, true] {
            let current = CurrentLayout::new(clear(100), small);
            let closed = Closed { writes: 10..30, reads: 20..30, failed: false };
            current.change(None, closed.clone());
            for (range, access) in
                [(0..10, Access::Write), (30..100, Access::Write), (10..20, Access::Read), (20..20, Access::Write)]
            {
                drop(current.request(range, access).expect("open"));
            }
            let step = AtomicU32::new(0);
            thread::scope(|scope| {
                let (current, step) = (&current, &step);
                for (range, access) in [(29..31, Access::Write), (9..11, Access::Write), (0..100, Access::Read)] {
                    scope.spawn(move || {
                        let layout = current.request(range, access).expect("open at last");
                        assert_eq!((step.load(Ordering::SeqCst), layout.len()), (2, 200), "only after both changes");
                    });
                }
                thread::sleep(Duration::from_millis(20));
                step.store(1, Ordering::SeqCst);
                current.change(None, closed.clone());
                thread::sleep(Duration::from_millis(20));
                step.store(2, Ordering::SeqCst);
                current.change(Some(clear(200)), Closed::default());
            });
            current.change(None, Closed { failed: true, ..closed });
            assert!(current.request(0..11, Access::Write).is_err() && current.request(0..11, Access::Read).is_ok());
            assert_eq!(current.layout().len(), 200);
        }
    }

    #[test]
    fn a_change_waits_for_the_requests_before_it() {
        let current = CurrentLayout::new(clear(100), false);
        let done = AtomicU32::new(0);
        thread::scope(|scope| {
            let held = current.request(0..1, Access::Read).expect("open");
            scope.spawn(|| {
                current.change(Some(clear(50)), Closed::default());
                assert_eq!(done.load(Ordering::SeqCst), 1);
            });
            thread::sleep(Duration::from_millis(20));
            assert_eq!(held.len(), 100);
            done.store(1, Ordering::SeqCst);
            drop(held);
        });
        assert_eq!(current.layout().len(), 50);
    }
}

//! State that every request changes, divided so that processors do not write to the same cache line.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

/// The number of processors, rounded up to a power of two. The standard library reads files to determine it.
static COUNT: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).next_power_of_two().min(64));

/// A value in several parts. Each thread changes its own part, if there are enough. A reader combines all parts.
pub(crate) enum Shards<T> {
    /// A single part, for values with too little traffic to be worth the memory.
    One(T),
    Each(Box<[Apart<T>]>),
}

/// Aligned to 128 bytes, because processors fetch cache lines in pairs.
#[repr(align(128))]
pub(crate) struct Apart<T>(T);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self::each(T::default)
    }
}

impl<T> Shards<T> {
    /// One part per processor.
    pub(crate) fn each(part: impl Fn() -> T) -> Self {
        Self::Each((0..*COUNT).map(|_| Apart(part())).collect())
    }

    /// The part of this thread.
    pub(crate) fn mine(&self) -> &T {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        match self {
            Self::One(one) => one,
            Self::Each(all) => &all[NUMBER.with(|number| number % all.len())].0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, all) = match self {
            Self::One(one) => (Some(one), &[][..]),
            Self::Each(all) => (None, &**all),
        };
        one.into_iter().chain(all.iter().map(|shard| &shard.0))
    }
}

/// A lock that is nearly always shared, so that a thread touches only its own part.
#[derive(Default)]
pub(crate) struct SharedLock(Shards<RwLock<()>>);

impl SharedLock {
    /// A lock for few threads.
    pub(crate) fn small() -> Self {
        Self(Shards::One(RwLock::default()))
    }

    /// Locks it shared. A thread that holds it must not lock it again.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.0.mine().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it exclusively, one part after the other.
    pub(crate) fn exclusive(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        // All threads lock the parts in the same order.
        self.0.iter().map(|part| part.write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusive_lock_excludes_all_others() {
        [SharedLock::default(), SharedLock::small()].iter().for_each(exclusive);
    }

    fn exclusive(lock: &SharedLock) {
        let value = [AtomicUsize::new(0), AtomicUsize::new(0)];
        thread::scope(|scope| {
            for number in 0..6 {
                let value = &value;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if number < 2 {
                            let _exclusive = lock.exclusive();
                            value[0].fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            value[1].fetch_add(1, Ordering::Relaxed);
                        } else {
                            let _shared = lock.share();
                            let [first, second] = value.each_ref().map(|v| v.load(Ordering::Relaxed));
                            assert_eq!(first, second);
                        }
                    }
                });
            }
        });
        assert_eq!(value.map(AtomicUsize::into_inner), [4000, 4000]);
    }

    #[test]
    fn threads_have_shards_of_their_own() {
        let shards = Shards::<AtomicUsize>::default();
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        shards.mine().fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let counts: Vec<usize> = shards.iter().map(|shard| shard.load(Ordering::Relaxed)).collect();
        assert_eq!((counts.iter().sum::<usize>(), counts.len()), (1000, *COUNT));
        assert_eq!(size_of::<Apart<AtomicUsize>>(), 128);
    }
}

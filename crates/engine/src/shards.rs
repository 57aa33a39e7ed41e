//! State that every request changes, without a cache line that all processors write to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

/// As many as there are processors, rounded up to a power of two. The standard library reads files to tell how many there are.
static COUNT: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).next_power_of_two().min(64));

/// Several of what is one thing to others. Each thread changes its own, as far as there are enough; who wants to know how it is looks at
/// all.
pub(crate) enum Shards<T> {
    /// What so little is done with that it is not worth the memory.
    One(T),
    Each(Box<[Apart<T>]>),
}

/// Processors fetch cache lines in pairs.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Apart<T>(T);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self::Each((0..*COUNT).map(|_| Apart::default()).collect())
    }
}

impl<T> Shards<T> {
    /// That of this thread.
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

/// A lock that is nearly always shared: then a thread touches only its part of it.
#[derive(Default)]
pub(crate) struct SharedLock(Shards<RwLock<()>>);

impl SharedLock {
    /// For what few threads use.
    pub(crate) fn small() -> Self {
        Self(Shards::One(RwLock::default()))
    }

    /// Shares it. A thread that has it must not ask for it again.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.0.mine().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it alone, which takes as long as there are parts.
    pub(crate) fn alone(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        // All take them in the same order.
        self.0.iter().map(|part| part.write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_alone_is_alone() {
        [SharedLock::default(), SharedLock::small()].iter().for_each(alone);
    }

    fn alone(lock: &SharedLock) {
        let value = [AtomicUsize::new(0), AtomicUsize::new(0)];
        thread::scope(|scope| {
            for number in 0..6 {
                let value = &value;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if number < 2 {
                            let _alone = lock.alone();
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

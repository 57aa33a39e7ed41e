//! How fast work goes, and how long the rest of it takes at that speed.

use std::time::Duration;

/// How long a measurement counts: work that is older has less than half the weight.
const MEMORY: Duration = Duration::from_secs(15);

/// The speed of work, mostly that of the last seconds. It knows no clock: the caller says what time it is.
pub struct Rate {
    /// The time of the last measurement, and what was done then.
    at: Duration,
    done: u64,
    /// The measured time and work, with less weight for older measurements.
    seconds: f64,
    units: f64,
}

impl Rate {
    /// Work that goes on from `done` at the time `now`. Nothing is known about its speed yet.
    pub fn from(now: Duration, done: u64) -> Self {
        Self { at: now, done, seconds: 0.0, units: 0.0 }
    }

    /// Measures what was done since the last measurement.
    pub fn measure(&mut self, now: Duration, done: u64) {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        let kept = (-seconds / MEMORY.as_secs_f64()).exp();
        self.seconds = self.seconds * kept + seconds;
        self.units = self.units * kept + done.saturating_sub(self.done) as f64;
        (self.at, self.done) = (now, done);
    }

    /// The units done in a second; `None` before anything was measured.
    pub fn per_second(&self) -> Option<f64> {
        (self.units > 0.0 && self.seconds > 0.0).then(|| self.units / self.seconds)
    }

    /// How long the rest of `all` units takes; `None` before anything was measured.
    pub fn left(&self, all: u64) -> Option<Duration> {
        let seconds = all.saturating_sub(self.done) as f64 / self.per_second()?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn nothing_is_promised_before_anything_was_done() {
        let mut rate = Rate::from(seconds(3), 0);
        assert_eq!((rate.left(100), rate.per_second()), (None, None));
        rate.measure(seconds(7), 0);
        assert_eq!(rate.left(100), None);
        rate.measure(seconds(8), 10);
        assert!(rate.left(100).is_some_and(|left| left > seconds(18)), "ten took five seconds");
    }

    #[test]
    fn even_work_takes_what_it_takes() {
        let mut rate = Rate::from(seconds(100), 0);
        for n in 1..=50 {
            rate.measure(seconds(100 + n), n * 4);
            let left = rate.left(400).expect("it was measured").as_secs_f64();
            assert!((left - (100 - n) as f64).abs() < 1e-6, "{n}: {left}");
        }
    }

    /// A conversion that is resumed did its first half long ago.
    #[test]
    fn work_done_before_does_not_count() {
        let mut rate = Rate::from(seconds(0), 1_000_000);
        rate.measure(seconds(10), 1_000_010);
        assert_eq!(rate.left(1_000_110), Some(seconds(100)));
    }

    #[test]
    fn the_last_seconds_count_most() {
        let mut rate = Rate::from(seconds(0), 0);
        rate.measure(seconds(10), 1000);
        (1..=60).for_each(|n| rate.measure(seconds(10 + n), 1000 + n));
        let left = rate.left(1160).expect("it was measured").as_secs();
        assert!((30..=100).contains(&left), "{left}");
    }
}

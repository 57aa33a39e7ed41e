//! Read-ahead for sequential readers: the next pieces are requested before they are needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::Line;

/// Size of one request in a large read, in bytes: small enough that the first bytes arrive while the server reads the next.
pub const PART: usize = 256 << 10;

/// The most bytes requested ahead.
const FARTHEST: u64 = 8 << 20;

/// Consecutive reads before read-ahead starts: normally, and after much read-ahead was in vain.
const STREAK: u32 = 3;
const LONG_STREAK: u32 = 32;

/// The number of reads elsewhere that do not end a streak: a reader of consecutive files sometimes looks up where they are.
const STRAYS: u32 = 3;

/// Reads of at least this many bytes may come out of order, by this many reads.
const LARGE: u64 = 128 << 10;
const PIECES: u64 = 16;

/// Data requested ahead may be stale after this time: others may write to an export that is open here for reading.
const FRESH: Duration = Duration::from_secs(2);

/// A request that was sent for a part of the export.
pub struct Part {
    /// The range of the export that it reads.
    pub range: Range<u64>,
    /// The connection that it was sent on.
    pub line: Arc<Line>,
    /// Its cookie on that connection.
    pub cookie: u64,
}

impl Part {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The read-ahead of one reader.
#[derive(Default)]
pub struct Ahead {
    /// The end of the farthest read.
    next: u64,
    /// Number of consecutive reads of one length.
    streak: u32,
    len: u64,
    /// The end of the range requested so far.
    until: u64,
    /// Reads elsewhere since the last read in order.
    strays: u32,
    /// Bytes requested in vain, less a quarter of the useful ones. Read-ahead does not help several readers in
    /// different places.
    in_vain: u64,
    asked: VecDeque<(Part, Instant)>,
}

impl Ahead {
    /// Records a read. Returns the parts of it that were requested already, in order from its beginning.
    pub fn read(&mut self, range: &Range<u64>) -> Vec<Part> {
        let len = range.end - range.start;
        if len != self.len || !self.follows(range) {
            self.strays += 1;
            if self.strays <= STRAYS && !self.asked.is_empty() {
                return Vec::new();
            }
            self.in_vain = self.in_vain.saturating_add(self.asked.iter().map(|(part, _)| part.len()).sum());
            self.forget();
            (self.streak, self.len, self.next) = (0, len, range.end);
        }
        (self.next, self.streak, self.strays) = (self.next.max(range.end), self.streak.saturating_add(1), 0);
        if self.asked.iter().any(|(part, when)| when.elapsed() > FRESH || !part.line.works()) {
            self.forget();
        }
        let Some(first) = self.asked.iter().position(|(part, _)| part.range.start == range.start) else {
            return Vec::new();
        };
        let mut at = range.start;
        let fits = |(part, _): &&(Part, Instant)| {
            let fits = part.range.start == at && part.range.end <= range.end;
            at = part.range.end;
            fits
        };
        let count = self.asked.iter().skip(first).take_while(fits).count();
        let found: Vec<_> = self.asked.drain(first..first + count).map(|(part, _)| part).collect();
        self.in_vain = self.in_vain.saturating_sub(found.iter().map(Part::len).sum::<u64>() / 4);
        found
    }

    /// Whether a read continues the earlier ones. Threads that each read the next large piece may come out of order.
    fn follows(&self, range: &Range<u64>) -> bool {
        let pieces = if self.len < LARGE { 0 } else { PIECES };
        range.start.abs_diff(self.next) <= pieces * self.len
    }

    /// The range to request now, in an export of `end` bytes: whole reads of the same length as before.
    pub fn wanted(&self, end: u64) -> Range<u64> {
        let from = self.until.max(self.next);
        let enough = if self.in_vain < FARTHEST { STREAK } else { LONG_STREAK };
        if self.streak < enough || self.len == 0 {
            return from..from;
        }
        let reads = 1u64 << (self.streak - enough).min(16);
        let far = self.len.saturating_mul(reads).min(FARTHEST.max(self.len));
        // Whole reads only.
        let to = self.next.saturating_add(far / self.len * self.len).min(end);
        from..to.max(from)
    }

    /// Records a request.
    pub fn asked(&mut self, part: Part) {
        self.until = part.range.end;
        self.asked.push_back((part, Instant::now()));
    }

    /// Records a write: data requested before may be older.
    pub fn written(&mut self, range: &Range<u64>) {
        if self.asked.iter().any(|(part, _)| part.range.start < range.end && range.start < part.range.end) {
            self.forget();
        }
    }

    /// Abandons all requests.
    pub fn forget(&mut self) {
        self.asked.drain(..).for_each(|(part, _)| part.line.abandon(part.cookie));
        (self.streak, self.until) = (0, 0);
    }
}

/// Splits a range into parts, each no larger than a request may be.
pub fn parts(range: Range<u64>, largest: u64) -> impl Iterator<Item = Range<u64>> {
    let size = largest.min(PART as u64);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let part = at..range.end.min(at + size);
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

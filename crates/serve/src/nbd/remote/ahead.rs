//! Reading ahead for whoever reads one piece after the other: the next pieces are asked for before they are wanted.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::Line;

/// Bytes of one request, where more is wanted at once: small enough that the first are here while the server reads the next.
pub const PART: usize = 256 << 10;

/// The most bytes that are asked for ahead.
const FARTHEST: u64 = 8 << 20;

/// After so many reads in a row something is asked for ahead; and after so many where much of that was in vain before.
const STREAK: u32 = 3;
const LONG_STREAK: u32 = 32;

/// So many reads elsewhere end nothing: whoever reads files one after the other looks up now and then where they are.
const STRAYS: u32 = 3;

/// Reads of at least so many bytes may come out of their order, by so many reads.
const LARGE: u64 = 128 << 10;
const PIECES: u64 = 16;

/// After this long what was asked for ahead may be stale: others may write to what is open here for reading.
const FRESH: Duration = Duration::from_secs(2);

/// A request for a part of the export that has been sent.
pub struct Part {
    /// What it reads of the export.
    pub range: Range<u64>,
    /// Where it was asked for.
    pub line: Arc<Line>,
    /// Its cookie there.
    pub cookie: u64,
}

impl Part {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// What one reader has asked for ahead.
#[derive(Default)]
pub struct Ahead {
    /// Where the farthest read ended.
    next: u64,
    /// Reads of one length that follow each other.
    streak: u32,
    len: u64,
    /// The end of what has been asked for.
    until: u64,
    /// Reads elsewhere since.
    strays: u32,
    /// Bytes that were asked for in vain, less a quarter of what was not: several readers in different places are none that it is
    /// of use to.
    in_vain: u64,
    asked: VecDeque<(Part, Instant)>,
}

impl Ahead {
    /// Notes a read. What of it has been asked for already is returned, in its order and from its beginning.
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

    /// Whether a read belongs to those before. Several threads that each read the next large piece do not come in the order of
    /// the pieces.
    fn follows(&self, range: &Range<u64>) -> bool {
        let pieces = if self.len < LARGE { 0 } else { PIECES };
        range.start.abs_diff(self.next) <= pieces * self.len
    }

    /// What is to be asked for now, in an export of `end` bytes: reads of the same length as those before.
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

    /// Something has been asked for.
    pub fn asked(&mut self, part: Part) {
        self.until = part.range.end;
        self.asked.push_back((part, Instant::now()));
    }

    /// This has been written: what was asked for before may be older.
    pub fn written(&mut self, range: &Range<u64>) {
        if self.asked.iter().any(|(part, _)| part.range.start < range.end && range.start < part.range.end) {
            self.forget();
        }
    }

    /// Nothing of it is wanted any more.
    pub fn forget(&mut self) {
        self.asked.drain(..).for_each(|(part, _)| part.line.abandon(part.cookie));
        (self.streak, self.until) = (0, 0);
    }
}

/// A range in parts, each as large as a request may be.
pub fn parts(range: Range<u64>, largest: u64) -> impl Iterator<Item = Range<u64>> {
    let size = largest.min(PART as u64);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let part = at..range.end.min(at + size);
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

//! Writes that no flush has made durable yet. They are repeated after a server restarts, as it may have lost them.

use std::collections::BTreeMap;

/// The most bytes recorded; a flush is made before there would be more.
const LIMIT: usize = 64 << 20;

/// Writes since the last flush, in order.
#[derive(Default)]
pub struct Unflushed {
    next: u64,
    writes: BTreeMap<u64, Write>,
    bytes: usize,
}

/// A write, and whether the server has reported it as done.
struct Write {
    offset: u64,
    data: Box<[u8]>,
    done: bool,
}

/// The writes that a flush makes durable.
pub struct Covered(Vec<u64>);

impl Unflushed {
    /// Records a write and returns its number.
    pub fn keep(&mut self, offset: u64, data: &[u8]) -> u64 {
        let number = self.next;
        self.next += 1;
        self.bytes += data.len();
        self.writes.insert(number, Write { offset, data: data.into(), done: false });
        number
    }

    /// Whether there is room for a write of `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        self.writes.is_empty() || self.bytes + len <= LIMIT
    }

    /// Whether no writes are recorded.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether there is a write that the server has not reported as done.
    pub fn has_undone(&self) -> bool {
        self.writes.values().any(|write| !write.done)
    }

    /// The server has reported the write as done.
    pub fn done(&mut self, number: u64) {
        if let Some(write) = self.writes.get_mut(&number) {
            write.done = true;
        }
    }

    /// Whether the write is done, or even durable.
    pub fn is_done(&self, number: u64) -> bool {
        self.writes.get(&number).is_none_or(|write| write.done)
    }

    /// Removes a failed write, whose caller gets the error.
    pub fn forget(&mut self, number: u64) {
        if let Some(write) = self.writes.remove(&number) {
            self.bytes -= write.data.len();
        }
    }

    /// The writes that a flush starting now makes durable: those already done ("Ordering of messages and writes").
    pub fn covered(&self) -> Covered {
        Covered(self.writes.iter().filter(|(_, write)| write.done).map(|(number, _)| *number).collect())
    }

    /// Removes the writes of a flush that has succeeded.
    pub fn flushed(&mut self, covered: &Covered) {
        covered.0.iter().for_each(|number| self.forget(*number));
    }

    /// Removes all writes: they are durable.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.bytes = 0;
    }

    /// All writes, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.writes.values().map(|write| (write.offset, &*write.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_done_before_it_began() {
        let mut kept = Unflushed::default();
        let (first, second) = (kept.keep(0, b"ab"), kept.keep(1, b"c"));
        kept.done(first);
        let covered = kept.covered();
        kept.done(second);
        let third = kept.keep(9, b"d");
        kept.flushed(&covered);
        assert_eq!(kept.iter().collect::<Vec<_>>(), [(1, &b"c"[..]), (9, b"d")]);
        kept.forget(third);
        assert_eq!((kept.iter().count(), kept.bytes), (1, 1));
    }

    #[test]
    fn there_is_room_for_one_however_large_it_is() {
        let mut kept = Unflushed::default();
        assert!(kept.has_room(LIMIT + 1));
        kept.keep(0, &vec![0; LIMIT - 1]);
        assert!(kept.has_room(1) && !kept.has_room(2));
    }
}

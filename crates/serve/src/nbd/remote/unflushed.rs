//! Writes that no flush has made durable yet. A server that begins anew may have lost them, so they are sent again.

use std::collections::BTreeMap;

/// Bytes that are kept at most; before there are more, a flush is made.
const LIMIT: usize = 64 << 20;

/// Writes since the last flush, in their order.
#[derive(Default)]
pub struct Unflushed {
    next: u64,
    writes: BTreeMap<u64, Write>,
    bytes: usize,
}

/// A write, and whether the server has said that it is done.
struct Write {
    offset: u64,
    data: Box<[u8]>,
    done: bool,
}

/// Which writes a flush makes durable.
pub struct Covered(Vec<u64>);

impl Unflushed {
    /// Keeps a write, and gives its number.
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether there is one that the server has not said to be done.
    pub fn has_undone(&self) -> bool {
        self.writes.values().any(|write| !write.done)
    }

    /// The server has done it.
    pub fn done(&mut self, number: u64) {
        if let Some(write) = self.writes.get_mut(&number) {
            write.done = true;
        }
    }

    /// Whether it is done, or even durable.
    pub fn is_done(&self, number: u64) -> bool {
        self.writes.get(&number).is_none_or(|write| write.done)
    }

    /// It has failed, and whoever wanted it knows.
    pub fn forget(&mut self, number: u64) {
        if let Some(write) = self.writes.remove(&number) {
            self.bytes -= write.data.len();
        }
    }

    /// What a flush that begins now makes durable: what is done before it begins ("Ordering of messages and writes").
    pub fn covered(&self) -> Covered {
        Covered(self.writes.iter().filter(|(_, write)| write.done).map(|(number, _)| *number).collect())
    }

    /// That flush has succeeded.
    pub fn flushed(&mut self, covered: &Covered) {
        covered.0.iter().for_each(|number| self.forget(*number));
    }

    /// All are durable.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.bytes = 0;
    }

    /// All of them, in their order.
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

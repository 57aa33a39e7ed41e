//! Caches an area that is accessed at random, such as the table, in pages. Changes stay in memory until they are written out.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::store::Store;

/// The size of a page, in bytes: a multiple of every sector size, and of the 1.5, 2 or 4 bytes of a table entry. So no entry spans
/// two pages.
const PAGE: u64 = 12 << 10;

/// The most unchanged pages that are cached.
const PAGES: usize = 1024;

/// An area of the store, with all its copies.
pub struct Pages {
    store: Arc<dyn Store>,
    /// The offsets and lengths of the pieces of each copy, in whole sectors. Only the first copy is read.
    copies: Vec<Vec<(u64, u64)>>,
    len: u64,
    sector: usize,
    pages: HashMap<u64, Page>,
}

struct Page {
    bytes: Vec<u8>,
    /// Which of its sectors have changed.
    changed: Vec<bool>,
}

impl Pages {
    pub fn new(store: Arc<dyn Store>, copies: Vec<Vec<(u64, u64)>>, sector: u32) -> Self {
        let len = copies[0].iter().map(|(_, len)| len).sum();
        Self { store, copies, len, sector: sector as usize, pages: HashMap::new() }
    }

    /// The bytes from `at` to the end of their page.
    pub fn bytes(&mut self, at: u64) -> io::Result<&[u8]> {
        Ok(&self.page(at / PAGE)?.bytes[(at % PAGE) as usize..])
    }

    /// Bytes within one page that the caller changes.
    pub fn change(&mut self, at: u64, len: usize) -> io::Result<&mut [u8]> {
        let sector = self.sector;
        let page = self.page(at / PAGE)?;
        let at = (at % PAGE) as usize;
        page.changed[at / sector..=(at + len - 1) / sector].fill(true);
        Ok(&mut page.bytes[at..at + len])
    }

    /// Writes changes to every copy. Returns whether there were any.
    ///
    /// # Errors
    /// Those of the store; all changes then remain to be written.
    pub fn write_out(&mut self) -> io::Result<bool> {
        let mut numbers: Vec<u64> =
            self.pages.iter().filter(|(_, page)| page.changed.contains(&true)).map(|(n, _)| *n).collect();
        numbers.sort_unstable();
        for copy in &self.copies {
            for number in &numbers {
                let page = &self.pages[number];
                for run in runs(&page.changed) {
                    let bytes = run.start * self.sector..(run.end * self.sector).min(page.bytes.len());
                    let at = number * PAGE + bytes.start as u64;
                    let mut rest = &page.bytes[bytes];
                    for (at, len) in located(copy, at, rest.len()) {
                        let (piece, after) = rest.split_at(len);
                        self.store.write_clobbering(at, &mut piece.to_vec())?;
                        rest = after;
                    }
                }
            }
        }
        for number in &numbers {
            if let Some(page) = self.pages.get_mut(number) {
                page.changed.fill(false);
            }
        }
        if self.pages.len() > PAGES {
            self.pages.clear();
        }
        Ok(!numbers.is_empty())
    }

    fn page(&mut self, number: u64) -> io::Result<&mut Page> {
        if self.pages.len() > PAGES && !self.pages.contains_key(&number) {
            self.pages.retain(|_, page| page.changed.contains(&true));
        }
        match self.pages.entry(number) {
            std::collections::hash_map::Entry::Occupied(page) => Ok(page.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut bytes = vec![0; PAGE.min(self.len.saturating_sub(number * PAGE)) as usize];
                let mut rest = &mut bytes[..];
                for (at, len) in located(&self.copies[0], number * PAGE, rest.len()) {
                    let (piece, after) = rest.split_at_mut(len);
                    self.store.read_at(at, piece)?;
                    rest = after;
                }
                let sectors = bytes.len().div_ceil(self.sector);
                Ok(place.insert(Page { bytes, changed: vec![false; sectors] }))
            }
        }
    }
}

/// The locations in the store of `len` bytes at offset `at` of a copy.
fn located(copy: &[(u64, u64)], at: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = at + len as u64;
    let mut begin = 0;
    copy.iter().filter_map(move |&(place, piece)| {
        let before = begin;
        begin += piece;
        let (from, to) = (at.max(before), end.min(begin));
        (from < to).then(|| (place + from - before, (to - from) as usize))
    })
}

/// The ranges of consecutive `true` flags.
fn runs(flags: &[bool]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut at = 0;
    for chunk in flags.chunk_by(|a, b| a == b) {
        if chunk[0] {
            runs.push(at..at + chunk.len());
        }
        at += chunk.len();
    }
    runs
}

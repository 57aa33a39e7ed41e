//! Common passwords, words and names, and which letters follow each other in them.

use std::sync::OnceLock;

/// One a line, the most common first: the 10,000 most common passwords, and the most common words and names of English, each list in
/// its order, one entry of each in turn. From the frequency lists of zxcvbn (data/NOTICE-words), whose readme names the sources.
static LIST: &str = include_str!("../../data/words.txt");

/// Entries are at least this long.
pub const SHORTEST: usize = 3;

/// No longer entries are looked up.
pub const LONGEST: usize = 20;

/// The letters, and what is before the first one.
const LETTERS: usize = 26;

/// The list in a form that is searched.
pub struct WordList {
    /// Sorted, each with its rank from 1.
    sorted: Vec<(&'static [u8], u32)>,
    /// The cost of each letter after each other one, as a power of ten; the last row is for the beginning.
    follows: [[f32; LETTERS]; LETTERS + 1],
}

impl WordList {
    /// The list. The first call builds it, in a few milliseconds.
    pub fn list() -> &'static Self {
        static WORDS: OnceLock<WordList> = OnceLock::new();
        WORDS.get_or_init(|| {
            let mut sorted: Vec<_> = LIST.lines().zip(1..).map(|(word, rank)| (word.as_bytes(), rank)).collect();
            sorted.sort_unstable();
            let follows = follows(&sorted);
            Self { sorted, follows }
        })
    }

    /// The rank of the entry with these bytes.
    pub fn rank(&self, word: impl Iterator<Item = u8> + Clone) -> Option<u32> {
        let found = self.sorted.binary_search_by(|(entry, _)| entry.iter().copied().cmp(word.clone()));
        found.ok().map(|at| self.sorted[at].1)
    }

    /// The cost of guessing this lower-case letter, as a power of ten: after that one, or at the beginning.
    pub fn letter(&self, letter: u8, after: Option<u8>) -> f64 {
        let row = after.map_or(LETTERS, index);
        f64::from(self.follows[row][index(letter)])
    }
}

fn index(letter: u8) -> usize {
    usize::from(letter.wrapping_sub(b'a')).min(LETTERS - 1)
}

/// Counts which letter follows which. A letter that never does is rare, not impossible.
fn follows(entries: &[(&[u8], u32)]) -> [[f32; LETTERS]; LETTERS + 1] {
    let mut counts = [[1u32; LETTERS]; LETTERS + 1];
    for (entry, _) in entries.iter().filter(|(entry, _)| entry.iter().all(u8::is_ascii_lowercase)) {
        let mut row = LETTERS;
        for letter in entry.iter().copied() {
            counts[row][index(letter)] += 1;
            row = index(letter);
        }
    }
    counts.map(|row| {
        let all: u32 = row.iter().sum();
        row.map(|count| (f64::from(all) / f64::from(count)).log10() as f32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_and_in_lower_case() {
        let words = WordList::list();
        assert!(words.sorted.len() > 20_000);
        for (entry, rank) in &words.sorted {
            assert_eq!(words.rank(entry.iter().copied()), Some(*rank));
            assert!((SHORTEST..=LONGEST).contains(&entry.len()), "{rank}");
            assert!(entry.iter().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()), "{rank}");
        }
        assert_eq!(words.rank(b"password".iter().copied()).map(|rank| rank < 10), Some(true));
        assert_eq!(words.rank(b"xqzjvkwp".iter().copied()), None);
    }

    #[test]
    fn some_letters_follow_others_more_often() {
        let words = WordList::list();
        assert!(words.letter(b'u', Some(b'q')) < 0.3 && words.letter(b'z', Some(b'q')) > 1.0);
    }
}

//! How many guesses a password withstands, if the guesser knows how people choose passwords.
//!
//! The password is cut into the pieces that are guessed most easily: common words, walks over the keyboard, sequences, repetitions,
//! dates, and single characters for the rest. The idea is that of zxcvbn (Wheeler, USENIX Security 2016); the costs differ. Numbers
//! of guesses are powers of ten throughout, so that those of pieces add up.

use super::words::{self, WordList};
use crate::secret::wipe_stack;

/// What is longer than this counts as this long, in bytes.
const MOST: usize = 128;

/// The cost of how the pieces are put together, for each piece besides single characters.
const PIECE: f64 = 0.3;

/// The cost of a choice between two.
const TWO: f64 = 0.301;

/// The cost of the next character being of another class: of the four, somebody who guesses must know which.
const ANOTHER_CLASS: f64 = 0.78;

/// The cost of a word of any language that looks like one: there are a few million.
const UNKNOWN_WORD: f64 = 6.5;

/// Letters that cost less than this on average look like a word. So do nearly all words of other languages with Latin letters, but
/// only one of 200 strings of eight random letters.
const LIKE_A_WORD: f64 = 1.25;

/// How many guesses the password withstands, as a power of ten. Takes far less than a millisecond.
pub fn guesses_log10(password: &[u8]) -> f64 {
    let guesses = estimate(&password[..password.len().min(MOST)], true);
    // Characters may still be in registers and on the stack.
    wipe_stack();
    guesses
}

/// The cost of the cheapest pieces. `repeats` says whether a piece may be the repetition of another.
fn estimate(text: &[u8], repeats: bool) -> f64 {
    let words = WordList::list();
    let mut best = [f64::INFINITY; MOST + 1];
    best[0] = 0.0;
    for start in 0..text.len() {
        let (here, rest) = (best[start], &text[start..]);
        let mut reach = |len: usize, cost: f64| {
            let whole = len == text.len();
            let cost = here + cost + if whole || len == 1 { 0.0 } else { PIECE };
            best[start + len] = best[start + len].min(cost);
        };
        reach(1, character(words, text, start));
        common(words, rest, &mut reach);
        unknown_word(words, text, start, &mut reach);
        same(rest, &mut reach);
        sequence(rest, &mut reach);
        walk(rest, &mut reach);
        date(rest, &mut reach);
        if repeats {
            repeated(rest, &mut reach);
        }
    }
    best[text.len()].min(exhausted(text))
}

/// The cost of trying everything of that length with these classes of characters.
fn exhausted(text: &[u8]) -> f64 {
    let classes = [Class::Lower, Class::Upper, Class::Digit, Class::Separator, Class::Symbol, Class::Other];
    let used = classes.iter().filter(|class| text.iter().any(|byte| Class::of(*byte) == **class));
    let each: f64 = used.map(|class| 10f64.powf(class.cost())).sum();
    text.iter().filter(|byte| Class::of(**byte) != Class::Continuation).count() as f64 * each.max(1.0).log10()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Digit,
    /// What people put between words.
    Separator,
    Symbol,
    /// The first byte of a character beyond ASCII.
    Other,
    /// A later byte of one.
    Continuation,
}

impl Class {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Lower,
            b'A'..=b'Z' => Self::Upper,
            b'0'..=b'9' => Self::Digit,
            b' ' | b'-' | b'_' | b'.' => Self::Separator,
            0x80..0xc0 => Self::Continuation,
            0xc0.. => Self::Other,
            _ => Self::Symbol,
        }
    }

    fn is_letter(self) -> bool {
        matches!(self, Self::Lower | Self::Upper)
    }

    /// The cost of one of its characters.
    fn cost(self) -> f64 {
        match self {
            Self::Lower | Self::Upper => 1.415,
            Self::Digit => 1.0,
            Self::Separator => 0.7,
            Self::Symbol => 1.5,
            Self::Other => 2.0,
            Self::Continuation => 0.0,
        }
    }
}

/// The cost of a single character, which guessers try in the order in which characters follow each other.
fn character(words: &WordList, text: &[u8], at: usize) -> f64 {
    let class = Class::of(text[at]);
    let before = at.checked_sub(1).map(|before| text[before]);
    let own = match class.is_letter() {
        true => letter(words, text, at).min(class.cost()),
        false => class.cost(),
    };
    let free = |class| matches!(class, Class::Separator | Class::Continuation);
    own + match before.map(Class::of) {
        None => 0.0,
        Some(before) if before == class || free(before) || free(class) => 0.0,
        // A capital at the beginning.
        Some(Class::Upper) if at == 1 && class == Class::Lower => TWO,
        Some(_) => ANOTHER_CLASS,
    }
}

/// The cost of a letter after the letter before it.
fn letter(words: &WordList, text: &[u8], at: usize) -> f64 {
    let before = at.checked_sub(1).map(|before| text[before]).filter(u8::is_ascii_alphabetic);
    words.letter(text[at].to_ascii_lowercase(), before.map(|before| before.to_ascii_lowercase()))
}

/// Words of the list, also with capitals, with digits and signs for letters, and backwards.
fn common(words: &WordList, text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    for len in words::SHORTEST..=text.len().min(words::LONGEST) {
        let part = &text[..len];
        for one in [b'1', b'i', b'l'] {
            let substituted = part.iter().filter(|byte| letter_for(**byte, one) != byte.to_ascii_lowercase()).count();
            if one != b'1' && substituted == 0 {
                continue;
            }
            let folded =
                part.iter().map(|byte| if one == b'1' { byte.to_ascii_lowercase() } else { letter_for(*byte, one) });
            let extra = capitals(part) + if one == b'1' { 0.0 } else { TWO * substituted as f64 };
            if let Some(rank) = words.rank(folded.clone()) {
                reach(len, f64::from(rank + 1).log10() + extra);
            } else if let Some(rank) = words.rank(folded.rev()) {
                reach(len, f64::from(rank + 1).log10() + TWO + extra);
            }
        }
    }
}

/// The lower-case letter that people write so. `one` is what they mean by a 1.
fn letter_for(byte: u8, one: u8) -> u8 {
    match byte {
        b'0' => b'o',
        b'1' | b'!' | b'|' => one,
        b'3' => b'e',
        b'4' | b'@' => b'a',
        b'5' | b'$' => b's',
        b'7' | b'+' => b't',
        b'8' => b'b',
        b'9' => b'g',
        other => other.to_ascii_lowercase(),
    }
}

/// The cost of which letters are capitals.
fn capitals(part: &[u8]) -> f64 {
    let letters = part.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let capitals = part.iter().filter(|byte| byte.is_ascii_uppercase()).count();
    let at_an_end = [part.first(), part.last()].into_iter().flatten().any(u8::is_ascii_uppercase);
    match capitals {
        0 => 0.0,
        1 if at_an_end => TWO,
        all if all == letters => TWO,
        _ => TWO * letters as f64,
    }
}

/// A run of letters that sound like a word, of whatever language.
fn unknown_word(words: &WordList, text: &[u8], start: usize, reach: &mut dyn FnMut(usize, f64)) {
    let within = start.checked_sub(1).is_some_and(|before| text[before].is_ascii_alphabetic());
    let len = text[start..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    if within || len < 6 {
        return;
    }
    let sum: f64 = (start..start + len).map(|at| letter(words, text, at)).sum();
    if sum < LIKE_A_WORD * len as f64 {
        reach(len, UNKNOWN_WORD + capitals(&text[start..start + len]));
    }
}

/// The same character again and again.
fn same(text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    let run = text.iter().take_while(|byte| **byte == text[0]).count();
    for len in 3..=run {
        reach(len, Class::of(text[0]).cost() + (len as f64).log10());
    }
}

/// `abcdef`, `987654`.
fn sequence(text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    for step in [1u8, u8::MAX] {
        let follows = |pair: &&[u8]| pair[1] == pair[0].wrapping_add(step) && Class::of(pair[0]) == Class::of(pair[1]);
        let run = 1 + text.windows(2).take_while(follows).count();
        let begins = if b"aAzZ019".contains(&text[0]) { 0.6 } else { Class::of(text[0]).cost() };
        for len in 3..=run {
            reach(len, begins + TWO + (len as f64).log10());
        }
    }
}

/// The rows of a keyboard. Each is half a key to the right of the one above, or a little less.
const ROWS: [&[u8]; 4] = [b"1234567890-=", b"qwertyuiop[]", b"asdfghjkl;'", b"zxcvbnm,./"];

/// The first row with Shift.
const SHIFTED: &[u8] = b"!@#$%^&*()_+";

/// The row and column of a key, on a keyboard where Z and Y may have changed places.
fn key(byte: u8, swapped: bool) -> Option<(i8, i8)> {
    let byte = match byte.to_ascii_lowercase() {
        b'y' if swapped => b'z',
        b'z' if swapped => b'y',
        other => other,
    };
    let at = |row: &[u8]| row.iter().position(|key| *key == byte).map(|column| column as i8);
    let digit = at(SHIFTED).map(|column| (0, column));
    digit.or_else(|| (0..).zip(ROWS).find_map(|(row, keys)| Some((row, at(keys)?))))
}

/// A walk over neighbouring keys: `qwertz`, `1qaz`.
fn walk(text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    for swapped in [false, true] {
        let Some(mut from) = key(text[0], swapped) else { continue };
        let (mut turns, mut direction) = (0.0, None);
        for (len, byte) in (2..).zip(&text[1..]) {
            let Some(to) = key(*byte, swapped) else { break };
            let step = (to.0 - from.0, to.1 - from.1);
            if !matches!(step, (0, -1 | 1) | (1, -1 | 0) | (-1, 0 | 1)) {
                break;
            }
            if direction != Some(step) {
                (turns, direction) = (turns + 1.0, Some(step));
            }
            from = to;
            if len >= 4 {
                reach(len, 1.6 + 0.6 * turns + (len as f64).log10() + capitals(&text[..len]));
            }
        }
    }
}

/// Years, and days in the usual orders, with or without separators.
fn date(text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    const DAYS: f64 = 4.6;
    if let Some(year) = number(text, 4).filter(|year| (1900..2060).contains(year)) {
        reach(4, f64::from(year.abs_diff(2025).max(20)).log10());
    }
    let day = |a: u32, b: u32| {
        (1..=31).contains(&a) && (1..=12).contains(&b) || (1..=12).contains(&a) && (1..=31).contains(&b)
    };
    let two = |at: usize| text.get(at..).and_then(|rest| number(rest, 2));
    let four =
        |at: usize| text.get(at..).and_then(|rest| number(rest, 4)).is_some_and(|year| (1900..2060).contains(&year));
    if let (Some(a), Some(b), Some(c)) = (two(0), two(2), two(4)) {
        if day(a, b) || day(b, c) {
            reach(6, DAYS);
        }
        if day(a, b) && four(4) || two(6).is_some_and(|d| four(0) && day(c, d)) {
            reach(8, DAYS);
        }
    }
    let mut parts = text.splitn(3, |byte| b"./-_ ".contains(byte));
    let digits = |part: &[u8]| part.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if let (Some(first), Some(second), Some(third)) = (parts.next(), parts.next(), parts.next()) {
        let (a, b, c) = (digits(first), digits(second), digits(third).min(4));
        let whole = a == first.len() && b == second.len() && text[a] == text[a + 1 + b];
        if whole && (1..=4).contains(&a) && (1..=2).contains(&b) && c > 0 && a + b + c >= 4 {
            reach(a + b + c + 2, DAYS + 0.6);
        }
    }
}

/// The number in the first `len` digits.
fn number(text: &[u8], len: usize) -> Option<u32> {
    let digits = text.get(..len)?;
    digits.iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0')))
}

/// A piece of several characters, repeated.
fn repeated(text: &[u8], reach: &mut dyn FnMut(usize, f64)) {
    for period in 2..=(text.len() / 2).min(24) {
        let piece = &text[..period];
        if piece.iter().all(|byte| *byte == piece[0]) {
            continue;
        }
        let times = text.chunks_exact(period).take_while(|next| *next == piece).count();
        if times >= 2 {
            let once = estimate(piece, false);
            for times in 2..=times {
                reach(times * period, once + (times as f64).log10());
            }
            // Longer periods only repeat this one.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(password: &str, low: f64, high: f64) {
        let guesses = guesses_log10(password.as_bytes());
        assert!((low..high).contains(&guesses), "{password}: {guesses:.1}, not {low} to {high}");
    }

    #[test]
    fn what_everybody_takes_falls_at_once() {
        for password in ["password", "123456", "qwertyuiop", "Password1", "P@ssw0rd", "iloveyou", "drowssap", "letmein"]
        {
            between(password, 0.0, 5.0);
        }
        for password in ["aaaaaaaaaaaa", "abcdefghijklm", "987654321", "1qaz2wsx3edc", "asdfghjkl;", "yxcvbnm"] {
            between(password, 0.0, 8.0);
        }
        between("", 0.0, 0.1);
    }

    #[test]
    fn words_with_a_year_or_a_sign_are_hardly_better() {
        for password in
            ["summer2019", "Jennifer1987!", "monkey123", "dragon.1", "24.12.1999", "19991224", "liverpool#1"]
        {
            between(password, 2.0, 8.5);
        }
        between("schmetterling", 4.0, 7.5);
        between("Kartoffelsalat", 4.0, 7.5);
    }

    #[test]
    fn random_ones_are_recognised() {
        // The true numbers are 36^8, 62^12, 95^12, 26^16, 10^20, 7776^4 and 7776^6.
        between("k3x9qz7w", 9.0, 14.0);
        between("v8Kq2xTz0bLm", 17.0, 25.0);
        between("u#9Kz!q8R}x2", 17.0, 26.0);
        between("qjxvkzwpbhgmtyfd", 17.0, 24.0);
        between("60284915377204918365", 14.0, 20.5);
        between("correct horse battery staple", 12.0, 22.0);
        between("outlet-rubber-twelve-monsoon-canopy-figure", 18.0, 32.0);
    }

    #[test]
    fn longer_is_never_weaker_by_much_and_repetition_adds_nothing() {
        between("v8Kq2xTz0bLmv8Kq2xTz0bLm", 17.0, 25.5);
        between("abcabcabcabcabc", 0.0, 5.0);
        let long = "x9#Lq2".repeat(100);
        between(&long, 5.0, 20.0);
        let mut before = 0.0;
        for len in 0..40 {
            let guesses = guesses_log10(&b"h7G2kq0ZpXw4R9sLvT3mCyB8dNf6JeUaQ1iWo5Kt"[..len]);
            assert!(guesses >= before - 1.0, "{len}");
            before = guesses;
        }
    }

    #[test]
    fn no_bytes_are_too_strange() {
        for byte in 0..=u8::MAX {
            for len in [1, 2, 3, 7, 128, 200] {
                assert!(guesses_log10(&vec![byte; len]).is_finite());
            }
        }
        between("пароль", 5.0, 14.0);
    }

    /// Fails if an estimate becomes too slow for every key press.
    #[test]
    fn it_is_fast() {
        guesses_log10(b"once");
        let begun = std::time::Instant::now();
        for _ in 0..10 {
            guesses_log10(&[b'a', b'1', b'Q', b'#'].repeat(32));
            guesses_log10(&b"correct horse battery staple ".repeat(4));
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}

//! Malformed input for tests of parsers: text by others, as it looks when something went wrong.

use crate::model::random::Random;

/// Words that parsers of figures like to trip over.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "nan", "inf", "-inf", "-1", "0", "1e308", "1e999", "99999999999999999999", "18446744073709551615", "",
    "\u{1b}[31m", "é", "{", "}", "[", "\"", ",", "null", "\n",
];

/// Feeds each input, its torn beginnings, and `changes` random changes of it, the same in every run.
pub fn feed(inputs: &[&str], changes: usize, take: impl Fn(&str)) {
    let mut random = Random::new(7);
    take("");
    for input in inputs {
        take(input);
        take(&input.repeat(3));
        for _ in 0..changes {
            take(&changed(input, &mut random));
        }
    }
}

fn changed(input: &str, random: &mut Random) -> String {
    let mut text = input.to_owned();
    for _ in 0..=random.below(4) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        if places.is_empty() {
            return text;
        }
        let at = places[random.below(places.len())];
        let end = text[at..].find(|c: char| !c.is_alphanumeric() && c != '.').map_or(text.len(), |len| at + len);
        let word = WORDS[random.below(WORDS.len())];
        match random.below(5) {
            0 => text.truncate(at),
            1 => text.insert_str(at, word),
            2 => text = [&text[..end], &text[at..]].concat(),
            // A number is replaced by another more often than anything else.
            _ => {
                let digits = places.iter().copied().filter(|at| text[*at..].starts_with(|c: char| c.is_ascii_digit()));
                let digits: Vec<usize> = digits.collect();
                if !digits.is_empty() {
                    let at = digits[random.below(digits.len())];
                    let end = text[at..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |len| at + len);
                    text.replace_range(at..end, word);
                }
            }
        }
    }
    text
}

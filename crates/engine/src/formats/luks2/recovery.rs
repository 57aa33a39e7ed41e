//! Recovery keys from `systemd-cryptenroll --recovery-key`. People type them from paper or copy them from a text, so they are
//! accepted with any dashes and blanks between the letters, in upper or lower case, in UTF-8 or UTF-16. The keyslot uses one
//! canonical form.

use claviger_crypto::Secret;
use serde_json::{Map, Value};

use super::metadata::Metadata;
use crate::copied_text::{BETWEEN, ORDINALS, OTHER, simplified};
use crate::error::Result;
use crate::random;

/// The type of the token that marks a keyslot as a recovery key's.
pub const TOKEN: &str = "systemd-recovery";

/// Modhex: letters that lie in the same place on most keyboards (systemd, src/shared/recovery-key.c).
const LETTERS: &[u8] = b"cbdefghijklnrtuv";

/// The number of letters in a key: two for each of its 32 bytes.
const LEN: usize = 64;

/// The number of letters between two hyphens.
const GROUP: usize = 8;

const GROUPS: usize = LEN / GROUP;

/// How many right groups show that a recovery key is meant.
const MEANT: usize = GROUPS - 3;

/// Text that was typed or read from a file.
pub enum Typed {
    /// Nothing that looks like a recovery key.
    Other,
    /// A recovery key in its canonical form.
    Key(Secret),
    /// A recovery key with a mistake, or several keys, as the end of "this …".
    Wrong(String),
}

/// Reads a recovery key, alone or within a text.
pub fn read(typed: &[u8]) -> Typed {
    let text = simplified(typed);
    let mut keys: Vec<Secret> = Vec::new();
    for run in text.split(|byte| *byte == OTHER) {
        let words = words(run);
        let mut found: Vec<Secret> = words.iter().filter_map(|word| canonical([*word])).collect();
        let stretches = words.chunk_by(|one, other| is_group(one) && is_group(other));
        let whole = stretches.filter(|stretch| stretch.len().is_multiple_of(GROUPS));
        found.extend(whole.flat_map(|stretch| stretch.chunks(GROUPS)).filter_map(|key| canonical(key.iter().copied())));
        if found.is_empty() {
            found.extend(canonical(words));
        }
        for key in found {
            if !keys.iter().any(|known| known.same_as(&key)) {
                keys.push(key);
            }
        }
    }
    match keys.len() {
        0 => mistake(&words(&text))
            .map_or(Typed::Other, |what| Typed::Wrong(format!("looks like a recovery key, but {what}"))),
        1 => Typed::Key(keys.remove(0)),
        count => Typed::Wrong(format!("has {count} recovery keys; give one of them")),
    }
}

fn words(text: &[u8]) -> Vec<&[u8]> {
    text.split(|byte| *byte == BETWEEN).filter(|word| !word.is_empty()).collect()
}

/// Whether these are eight letters of a key.
pub fn is_group(word: &[u8]) -> bool {
    word.len() == GROUP && word.iter().all(|letter| LETTERS.contains(letter))
}

/// Returns the mistake in what is meant as a recovery key. Its letters have no check digits, so a letter that takes another's
/// place is no mistake that shows.
fn mistake(words: &[&[u8]]) -> Option<String> {
    // Typed without hyphens.
    let long = |word: &&&[u8]| {
        let right = word.iter().filter(|letter| LETTERS.contains(letter)).count();
        (LEN - GROUP / 2..=LEN + GROUP / 2).contains(&word.len()) && right >= MEANT * GROUP
    };
    if let Some(word) = words.iter().find(long) {
        if word.len() != LEN {
            return Some(format!("it has {} letters, not {LEN}", word.len()));
        }
        return wrong_groups(&word.chunks(GROUP).collect::<Vec<_>>());
    }
    let right = |words: &[&[u8]]| words.iter().filter(|word| is_group(word)).count();
    let counted = |count: usize| Some(format!("it has {count} groups of letters, not {GROUPS}"));
    let mut stretches = words.chunk_by(|one, other| is_group(one) && is_group(other));
    if let Some(stretch) = stretches.find(|stretch| stretch.len() > GROUPS) {
        return counted(stretch.len());
    }
    if words.len() < GROUPS {
        return (right(words) >= MEANT).then(|| counted(words.len()))?;
    }
    let best = words.windows(GROUPS).max_by_key(|window| right(window)).filter(|window| right(window) >= MEANT)?;
    wrong_groups(best)
}

/// The error for each wrong group; `None` if all are right.
fn wrong_groups(groups: &[&[u8]]) -> Option<String> {
    let wrong = |(number, group): (usize, &&[u8])| {
        let why = match group.len() {
            _ if is_group(group) => return None,
            GROUP => "it contains characters other than the letters cbdefghijklnrtuv".to_owned(),
            len => format!("it has {len} letters, not {GROUP}"),
        };
        Some(format!("the {} group is mistyped: {why}", ORDINALS[number]))
    };
    let wrong: Vec<_> = groups.iter().enumerate().filter_map(wrong).collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// Whether a token marks the keyslot as a recovery key's.
pub fn is_marked(metadata: &Metadata, keyslot: u32) -> bool {
    let number = Value::String(keyslot.to_string());
    metadata.tokens.values().any(|token| {
        let keyslots = token.get("keyslots").and_then(Value::as_array);
        is_mark(token) && keyslots.is_some_and(|all| all.contains(&number))
    })
}

/// Takes the mark of a recovery key's off a keyslot.
pub fn unmark(metadata: &mut Metadata, keyslot: u32) {
    let number = Value::String(keyslot.to_string());
    for token in metadata.tokens.values_mut().filter(|token| is_mark(token)) {
        if let Some(Value::Array(keyslots)) = token.get_mut("keyslots") {
            keyslots.retain(|other| *other != number);
        }
    }
    drop_empty_marks(metadata);
}

/// A mark without a keyslot says nothing.
pub fn drop_empty_marks(metadata: &mut Metadata) {
    let is_empty =
        |token: &Map<String, Value>| token.get("keyslots").and_then(Value::as_array).is_some_and(Vec::is_empty);
    metadata.tokens.retain(|_, token| !is_mark(token) || !is_empty(token));
}

fn is_mark(token: &Map<String, Value>) -> bool {
    token.get("type").is_some_and(|kind| kind == TOKEN)
}

/// Returns a new recovery key in its canonical form.
pub fn fresh() -> Result<Secret> {
    Ok(text(&random::secret(LEN / 2)?))
}

/// Returns bytes as letters, two for each, in groups of eight: the canonical form of a key.
pub fn text(bytes: &[u8]) -> Secret {
    let mut letters = Secret::zeroed(2 * bytes.len());
    for (pair, byte) in letters.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[LETTERS[usize::from(byte >> 4)], LETTERS[usize::from(byte & 15)]]);
    }
    let mut text = Secret::zeroed(letters.len() + letters.len().div_ceil(GROUP) - 1);
    text.fill(b'-');
    for (place, letter) in letters.iter().enumerate() {
        text[place + place / GROUP] = *letter;
    }
    text
}

/// Returns the 32 bytes of a key in its canonical form.
pub fn bytes(canonical: &[u8]) -> Secret {
    bytes_of(&words(canonical))
}

/// Returns the bytes of groups of letters.
pub fn bytes_of(groups: &[&[u8]]) -> Secret {
    let value = |letter: &u8| LETTERS.iter().position(|known| known == letter).unwrap_or_default() as u8;
    let mut letters = groups.iter().copied().flatten().map(value);
    let mut bytes = Secret::zeroed(groups.iter().map(|group| group.len()).sum::<usize>() / 2);
    for byte in bytes.iter_mut() {
        *byte = (letters.next().unwrap_or_default() << 4) | letters.next().unwrap_or_default();
    }
    bytes
}

/// Returns the token for a keyslot with this passphrase, if that is a recovery key in its canonical form.
pub fn token(passphrase: &[u8], keyslot: u32) -> Option<Map<String, Value>> {
    canonical(passphrase.split(|byte| *byte == b'-')).filter(|stored| stored.same_as(passphrase))?;
    let keyslots = Value::from(vec![keyslot.to_string()]);
    Some(Map::from_iter([("type".to_owned(), TOKEN.into()), ("keyslots".to_owned(), keyslots)]))
}

/// Returns the canonical form of the key whose letters these words have: in lower case, with hyphens.
fn canonical<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Option<Secret> {
    let mut stored = Secret::zeroed(LEN + GROUPS - 1);
    stored.fill(b'-');
    let mut len = 0;
    for letter in words.into_iter().flatten() {
        if len == LEN || !LETTERS.contains(letter) {
            return None;
        }
        stored[len + len / GROUP] = *letter;
        len += 1;
    }
    (len == LEN).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = "lhetbcnb-vlnfljci-jnvrtgfi-gfeblvjn-blgcrrjj-igkllvgb-btfdeuih-ijebigth";

    #[track_caller]
    fn taken(typed: &[u8]) {
        assert!(matches!(read(typed), Typed::Key(key) if key.same_as(STORED.as_bytes())), "{typed:?}");
    }

    fn wrong(typed: &str) -> String {
        match read(typed.as_bytes()) {
            Typed::Wrong(what) => what,
            Typed::Key(_) => panic!("{typed} is one"),
            Typed::Other => panic!("{typed} looks like none"),
        }
    }

    #[test]
    fn a_recovery_key_is_taken_as_it_is_typed() {
        let plain = STORED.replace('-', "");
        for typed in [STORED, &plain, &STORED.to_uppercase(), &STORED.replace('-', " "), &format!(" {STORED} ")] {
            taken(typed.as_bytes());
        }
        for between in ["\t", "\r\n", "\u{a0}", "\u{2009}", "\u{2011}", "\u{2013}", " \u{2014} ", "\u{2212}"] {
            taken(STORED.replace('-', between).as_bytes());
        }
        // Pairs of letters, as some people write them.
        taken(plain.as_bytes().chunks(2).collect::<Vec<_>>().join(&b' ').as_slice());
        for other in ["", "a passphrase", "building", &"-".repeat(71), &"never ".repeat(12), &"x".repeat(64)] {
            assert!(matches!(read(other.as_bytes()), Typed::Other), "{other}");
        }
        assert!(text(&bytes(STORED.as_bytes())).same_as(STORED.as_bytes()));
    }

    #[test]
    fn one_is_found_in_a_text_as_windows_saves_it() {
        let prose =
            format!("\u{feff}Recovery key for the laptop:\r\n\r\n\t{STORED}\r\n\r\nKeep it somewhere else.\r\n");
        taken(prose.as_bytes());
        taken(format!("key:{}", STORED.replace('-', "")).as_bytes());
        let units = || prose.encode_utf16();
        taken(&units().flat_map(u16::to_le_bytes).collect::<Vec<_>>());
        taken(&units().flat_map(u16::to_be_bytes).collect::<Vec<_>>());
        taken(format!("{STORED}\nAgain: {STORED}\n").as_bytes());
        let two = format!("{STORED}\n{}\n", STORED.replace('l', "c"));
        assert!(wrong(&two).contains("has 2 recovery keys"), "{}", wrong(&two));
    }

    #[test]
    fn the_group_with_a_mistake_is_named() {
        let groups: Vec<&str> = STORED.split('-').collect();
        for (number, ordinal) in ORDINALS.iter().enumerate() {
            for bad in ["lhetbcna", "lhet?cnb", "lhetbc0b", "lhetbcn", "lhetbcnbb"] {
                let mut all = groups.clone();
                all[number] = bad;
                let what = wrong(&all.join("-"));
                assert!(what.contains(&format!("the {ordinal} group is mistyped: ")) && !what.contains(';'), "{what}");
                let what = wrong(&all.concat());
                let named = if bad.len() == GROUP { ordinal } else { "not 64" };
                assert!(what.contains(named), "{what}");
            }
        }
        assert!(wrong(&groups[1..].join(" ")).contains("7 groups"));
        assert!(wrong(&format!("{STORED}-{}", groups[0])).contains("9 groups"));
        let two = wrong(&STORED.replace("lhetbcnb", "lhetbcn").replace("blgcrrjj", "blgcrrjm"));
        assert!(two.contains("the first group") && two.contains("; the fifth group"), "{two}");
        assert!(wrong(&format!("The key is: {}", STORED.replace("jnvrtgfi", "jnvrtgfa"))).contains("the third group"));
    }
}

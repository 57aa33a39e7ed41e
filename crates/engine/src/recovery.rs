//! Recovery keys as people keep them: what formats share, and shares of a key, some of which give it back.
//!
//! A share is one line of lower-case letters and digits in groups, with hyphens between them:
//! `claviger-share-VERSION-KIND-NUMBER-THRESHOLD-SET-VALUE-CHECK`. VERSION is 1. KIND is `k` for a recovery key of letters and `p` for
//! one of digits. SET (8 letters) is the same for all shares of a key, VALUE (8 groups of 8) is the polynomial's value at NUMBER
//! modulo 2^256 - 189, and CHECK (8 letters) is the start of the SHA-256 of everything before its hyphen. Letters are modhex, as in
//! LUKS2's recovery keys.

use claviger_crypto::shares::{self, PRIME, SIZE};
use claviger_crypto::{Secret, hash};

use crate::copied_text::{BETWEEN, OTHER, simplified};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::bitlocker::recovery as digits;
use crate::formats::luks2::recovery as letters;
use crate::random;

pub use crate::formats::luks2::recovery::TOKEN;

/// The most shares of a key.
pub const MOST_SHARES: u32 = 99;

/// The letters of a set's name and of a check.
const SHORT: usize = 8;

/// The words of a share after the first two.
const WORDS: usize = 14;

/// The first words of a share.
const MARK: [&[u8]; 2] = [b"claviger", b"share"];

const LETTERS: u8 = b'k';
const DIGITS: u8 = b'p';

/// Returns a new recovery key of eight groups of six digits, each of which reveals typing errors.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub fn fresh_digits() -> Result<Secret> {
    digits::random()
}

/// Returns the recovery key of digits in a text, as [`fresh_digits`] writes it.
///
/// # Errors
/// `WrongCredential` if it has a typing error, or there are none or several.
pub fn read_digits(typed: &[u8]) -> Result<Secret> {
    let wrong = |what: String| Err(ErrorKind::WrongCredential(what).into());
    match digits::read(typed) {
        digits::Typed::Keys(keys) => match &keys[..] {
            [key] => Ok(digits::text(key)),
            keys => wrong(format!("this has {} recovery keys; give one of them", keys.len())),
        },
        digits::Typed::Mistyped(what) => wrong(format!("this looks like a recovery key, but {what}")),
        digits::Typed::Other => wrong("this is not a recovery key of eight groups of six digits".to_owned()),
    }
}

/// Splits a recovery key into `count` shares, any `threshold` of which give it back. Each is a line without its newline.
///
/// # Errors
/// `Misuse` for a number of shares that cannot be, and for a text that is not a recovery key; `Io` if the system has no random
/// bytes.
pub fn split(key: &Secret, threshold: u32, count: u32) -> Result<Vec<Secret>> {
    if !(2..=count).contains(&threshold) || count > MOST_SHARES {
        return Err(Error::misuse(format!("a key cannot be split into {count} shares of which {threshold} suffice"))
            .hint(format!("At least 2 of at most {MOST_SHARES} shares: 3:5 makes 5, of which 3 suffice.")));
    }
    let (kind, number) = number_of(key)?;
    let mut set = [0; SHORT / 2];
    random::fill(&mut set)?;
    let values = shares::split(&number, threshold as usize, count as usize, random::fill)?;
    Ok((1..).zip(values).map(|(number, value)| line(kind, number, threshold, &set, &value[SIZE..])).collect())
}

/// The kind of a recovery key, and the number that is split.
fn number_of(key: &[u8]) -> Result<(u8, Secret)> {
    if let letters::Typed::Key(text) = letters::read(key) {
        let number = letters::bytes(&text);
        // One key in 2^248.
        return match number[..] < PRIME[..] {
            true => Ok((LETTERS, number)),
            false => Err(Error::misuse("this recovery key cannot be split; make another one")),
        };
    }
    match digits::read(key) {
        digits::Typed::Keys(keys) if keys.len() == 1 => {
            let mut number = Secret::zeroed(SIZE);
            number[SIZE - digits::LEN..].copy_from_slice(&keys[0]);
            Ok((DIGITS, number))
        }
        _ => Err(Error::misuse("this is not a recovery key, so it cannot be split")),
    }
}

/// Writes a share.
fn line(kind: u8, number: u32, threshold: u32, set: &[u8], value: &[u8]) -> Secret {
    let head = format!("claviger-share-1-{}-{number}-{threshold}", char::from(kind));
    let (set, value) = (letters::text(set), letters::text(value));
    let body = Secret::concat(&[head.as_bytes(), b"-", &set, b"-", &value]);
    Secret::concat(&[&body, b"-", &check(&body)])
}

/// The letters that reveal a typing error in a share.
fn check(body: &[u8]) -> Secret {
    let mut sum = Secret::zeroed(hash::SHA256.size);
    hash::SHA256.digest(&[body], &mut sum);
    letters::text(&sum[..SHORT / 2])
}

/// A share that was read.
struct Share {
    /// The name of the text that it is in.
    name: String,
    kind: u8,
    number: u32,
    threshold: u32,
    set: Vec<u8>,
    value: Secret,
}

/// Gives back a recovery key from the shares in `texts`, each with its name for errors. A text may have several shares, and
/// sentences around them.
///
/// # Errors
/// `WrongCredential` for a text without a share and for a share with a typing error, by its name; `Misuse` for shares of several keys
/// and for too few.
pub fn join(texts: &[(String, Secret)]) -> Result<Secret> {
    let mut all: Vec<Share> = Vec::new();
    for (name, text) in texts {
        let found = Share::all(name, text)?;
        if found.is_empty() {
            return Err(Error::from(ErrorKind::WrongCredential(format!(
                "there is no share of a recovery key in {name}"
            )))
            .hint("A share is a line that begins with claviger-share-1-."));
        }
        for share in found {
            if let Some(first) = all.first().filter(|first| !first.is_of_same_set(&share)) {
                let what = format!("the shares in {} and {} are of different keys", first.name, share.name);
                return Err(
                    Error::misuse(what).hint("Shares of one key have the same eight letters after their numbers.")
                );
            }
            if !all.iter().any(|other| other.number == share.number) {
                all.push(share);
            }
        }
    }
    let Some(Share { kind, threshold, .. }) = all.first() else { return Err(Error::misuse("no share was given")) };
    let (kind, threshold) = (*kind, *threshold as usize);
    if all.len() < threshold {
        let have = all.iter().map(|share| share.number.to_string()).collect::<Vec<_>>().join(", ");
        return Err(Error::misuse(format!("{threshold} shares are needed, not {}", all.len()))
            .hint(format!("Given: share {have}. Add any other of this key.")));
    }
    let points: Vec<_> = all.iter().take(threshold).map(Share::point).collect();
    let number = shares::combine(&PRIME, &points).ok_or_else(|| Error::misuse("these shares do not fit together"))?;
    if kind == LETTERS {
        return Ok(letters::text(&number));
    }
    match number.split_at(SIZE - digits::LEN) {
        (rest, key) if rest.iter().all(|byte| *byte == 0) => Ok(digits::text(&Secret::copy_from(key))),
        _ => Err(Error::misuse("these shares do not fit together")),
    }
}

impl Share {
    /// All shares in a text.
    fn all(name: &str, text: &[u8]) -> Result<Vec<Self>> {
        let text = simplified(text);
        let words: Vec<&[u8]> =
            text.split(|byte| [BETWEEN, OTHER].contains(byte)).filter(|word| !word.is_empty()).collect();
        let starts = (0..words.len()).filter(|at| words[*at..].starts_with(&MARK));
        starts.map(|at| Self::read(name, &words[at + MARK.len()..])).collect()
    }

    /// Reads the words after the mark.
    fn read(name: &str, words: &[&[u8]]) -> Result<Self> {
        let mistyped = |why: &str| -> Result<Self> {
            Err(Error::from(ErrorKind::WrongCredential(format!("the share in {name} is mistyped: {why}")))
                .hint("Compare it with the paper. Another share may take its place."))
        };
        if words.first().is_some_and(|version| *version != b"1") {
            return Err(Error::unsupported(format!("the share in {name}: its version is not 1")));
        }
        let Some([_, kind, number, threshold, groups @ ..]) = words.get(..WORDS) else {
            return mistyped(&format!("it has {} groups, not {}", words.len() + MARK.len(), WORDS + MARK.len()));
        };
        let decimal = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u32>().ok().filter(|n| *n <= MOST_SHARES);
        let (&[kind @ (LETTERS | DIGITS)], Some(number), Some(threshold)) =
            (*kind, decimal(number), decimal(threshold))
        else {
            return mistyped("its kind or its numbers are wrong");
        };
        if let Some(wrong) = groups.iter().position(|group| !letters::is_group(group)) {
            return mistyped(&format!("group {} is not 8 of the letters cbdefghijklnrtuv", wrong + 7));
        }
        let [set, value @ .., sum] = groups else { return mistyped("groups are missing") };
        let (set, value) = (letters::bytes_of(&[*set]), letters::bytes_of(value));
        let whole = line(kind, number, threshold, &set, &value);
        if number == 0 || threshold == 0 || !whole.ends_with(sum) {
            return mistyped("its check letters at the end do not fit the rest");
        }
        Ok(Self { name: name.to_owned(), kind, number, threshold, set: set.to_vec(), value })
    }

    fn is_of_same_set(&self, other: &Self) -> bool {
        (self.kind, self.threshold, &self.set) == (other.kind, other.threshold, &other.set)
    }

    /// The place and the value, for Shamir's scheme.
    fn point(&self) -> Secret {
        let mut point = Secret::zeroed(2 * SIZE);
        point[SIZE - 4..SIZE].copy_from_slice(&self.number.to_be_bytes());
        point[SIZE..].copy_from_slice(&self.value);
        point
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(shares: &[&Secret]) -> Vec<(String, Secret)> {
        shares.iter().enumerate().map(|(i, share)| (format!("s{i}"), Secret::copy_from(share))).collect()
    }

    fn error(texts: &[(String, Secret)]) -> String {
        join(texts).expect_err("an error").to_string()
    }

    fn keys() -> Vec<Secret> {
        (0..10).flat_map(|_| [letters::fresh(), fresh_digits()]).map(|key| key.expect("random bytes")).collect()
    }

    #[test]
    fn any_three_of_five_give_the_key_and_no_two_do() {
        for key in keys() {
            let shares = split(&key, 3, 5).expect("shares");
            for (a, b, c) in (0..5).flat_map(|a| (0..a).flat_map(move |b| (0..b).map(move |c| (a, b, c)))) {
                let three = named(&[&shares[a], &shares[b], &shares[c]]);
                assert!(join(&three).expect("the key").same_as(&key));
                assert!(error(&three[1..]).contains("3 shares are needed, not 2"));
                // Whoever ignores the threshold learns nothing.
                let points: Vec<_> = [a, b].map(|i| Share::all("s", &shares[i]).expect("a share")[0].point()).into();
                let number = shares::combine(&PRIME, &points).expect("a number");
                assert!(!number.same_as(&number_of(&key).expect("a key").1));
            }
            assert!(error(&named(&[&shares[0], &shares[1], &shares[1]])).contains("not 2"), "one given twice");
        }
    }

    #[test]
    fn a_share_is_read_as_people_have_it() {
        for key in keys() {
            let shares = split(&key, 2, 3).expect("shares");
            let text = |share: &Secret| String::from_utf8(share.to_vec()).expect("text");
            let prose =
                format!("\u{feff}For Ann:\r\n\t{}\r\n", text(&shares[0]).to_uppercase().replace('-', "\u{2013}"));
            let spaced = text(&shares[2]).replace('-', " \n");
            let texts = [prose, spaced].map(|text| (String::new(), Secret::copy_from(text.as_bytes())));
            assert!(join(&texts).expect("the key").same_as(&key));
            let both = format!("{}\n{}\n", text(&shares[0]), text(&shares[1]));
            assert!(join(&[(String::new(), Secret::copy_from(both.as_bytes()))]).expect("the key").same_as(&key));
        }
    }

    #[test]
    fn the_wrong_share_is_named() {
        let key = letters::fresh().expect("a key");
        let [shares, others] = [(); 2].map(|()| split(&key, 2, 3).expect("shares"));
        assert!(error(&named(&[&shares[0], &others[1]])).contains("the shares in s0 and s1 are of different keys"));
        for at in "claviger-share-".len()..shares[1].len() {
            for other in *b"bc5" {
                let mut wrong = Secret::copy_from(&shares[1]);
                if matches!(wrong[at], b'-') || wrong[at] == other {
                    continue;
                }
                wrong[at] = other;
                let what = error(&named(&[&shares[0], &wrong]));
                assert!(what.contains("share in s1"), "{at}: {what}");
            }
        }
        let short = Secret::copy_from(&shares[1][..60]);
        assert!(error(&named(&[&shares[0], &short])).contains("the share in s1 is mistyped: it has"));
        let none = Secret::copy_from(b"claviger share");
        assert!(error(&named(&[&none])).contains("s0"));
        assert!(error(&named(&[&key])).contains("no share of a recovery key in s0"));
        for (threshold, count) in [(1, 3), (4, 3), (2, 100), (0, 0)] {
            assert!(split(&key, threshold, count).is_err());
        }
        assert!(split(&Secret::copy_from(b"a password"), 2, 3).is_err());
    }

    #[test]
    fn a_recovery_key_of_digits_is_read_in_any_form() {
        let key = fresh_digits().expect("a key");
        let typed = String::from_utf8(key.to_vec()).expect("text").replace('-', "\u{2013}");
        assert!(read_digits(typed.as_bytes()).expect("a key").same_as(&key));
        assert!(read_digits(b"a password").is_err() && read_digits(&key[..54]).is_err());
        assert!(read_digits([&key[..], &fresh_digits().expect("a key")].join(&b'\n').as_slice()).is_err());
    }
}

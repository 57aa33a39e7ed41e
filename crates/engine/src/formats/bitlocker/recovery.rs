//! Recovery passwords: 16 random bytes as eight groups of six digits (libbde, "BitLocker Drive Encryption (BDE) format", section
//! "Recovery password"). Each group is 11 times a number of 16 bits, which reveals typing errors.

use claviger_crypto::Secret;

use crate::copied_text::{BETWEEN, ORDINALS, OTHER, simplified};
use crate::error::Result;
use crate::random;

/// The size of the key, in bytes.
pub(crate) const LEN: usize = 16;
const GROUPS: usize = LEN / 2;
const DIGITS: usize = 6;

/// Text that was typed or read from a file.
pub(crate) enum Typed {
    /// Nothing that looks like a recovery password.
    Other,
    /// A recovery password with a mistake, and its description.
    Mistyped(String),
    /// The keys of all recovery passwords in the text. Windows saves one among sentences, `claviger keyslot recovery` all of a
    /// volume.
    Keys(Vec<Secret>),
}

/// The maximum number taken from one text.
const MOST: usize = 16;

/// The largest group: 11 times the largest number of 16 bits.
const LARGEST: u64 = 11 * u16::MAX as u64;

/// Reads recovery passwords as Windows saves them or as people copy them: with hyphens, dashes, spaces, tabs, newlines or nothing
/// between the groups, in UTF-8 or UTF-16, alone or within a text.
pub(crate) fn read(typed: &[u8]) -> Typed {
    let text = without_letters(typed);
    let (mut keys, mut mistake) = (Vec::new(), None);
    for run in text.split(|byte| *byte == OTHER) {
        match read_run(run) {
            Typed::Keys(more) => keys.extend(more),
            Typed::Mistyped(what) => mistake = mistake.or(Some(what)),
            Typed::Other => {}
        }
    }
    keys.truncate(MOST);
    match mistake.or_else(|| with_letters(&text)) {
        _ if !keys.is_empty() => Typed::Keys(keys),
        Some(what) => Typed::Mistyped(what),
        None => Typed::Other,
    }
}

/// Returns the text with digits, [`BETWEEN`] and [`OTHER`].
fn without_letters(typed: &[u8]) -> Secret {
    let mut text = simplified(typed);
    text.iter_mut().filter(|byte| byte.is_ascii_alphabetic()).for_each(|byte| *byte = OTHER);
    text
}

/// Reads a run of digits and separators.
fn read_run(run: &[u8]) -> Typed {
    let digits = run.iter().filter(|byte| byte.is_ascii_digit()).count();
    let mut groups: Vec<&[u8]> = run.split(|byte| *byte == BETWEEN).filter(|group| !group.is_empty()).collect();
    // A password may consist of digits, but nobody types this many, or groups like these.
    let meant = digits >= (GROUPS - 1) * DIGITS || groups.len() == GROUPS && digits >= GROUPS * DIGITS / 2;
    if !meant {
        return Typed::Other;
    }
    if let [whole] = groups[..]
        && digits == GROUPS * DIGITS
    {
        groups = whole.chunks(DIGITS).collect();
    }
    let groups = without_neighbours(&groups);
    if !groups.len().is_multiple_of(GROUPS) {
        return Typed::Mistyped(match groups.len() {
            1 => format!("it has {digits} digits, not {}", GROUPS * DIGITS),
            count => format!("it has {count} groups of digits, not {GROUPS}"),
        });
    }
    match groups.chunks(GROUPS).map(key_of).collect() {
        Ok(keys) => Typed::Keys(keys),
        Err(what) => Typed::Mistyped(what),
    }
}

/// Drops other numbers before and after, such as page numbers, if there are too many groups.
fn without_neighbours<'a, 'b>(groups: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
    let is_other = |group: &[u8]| group.len() != DIGITS;
    let mut left = groups;
    while left.len() > GROUPS && !left.len().is_multiple_of(GROUPS) {
        left = match left {
            [rest @ .., last] if is_other(last) => rest,
            [first, rest @ ..] if is_other(first) => rest,
            _ => return groups,
        };
    }
    left
}

/// Returns the key of eight groups, or the error for each wrong group.
fn key_of(groups: &[&[u8]]) -> std::result::Result<Secret, String> {
    let mut key = Secret::zeroed(LEN);
    let mut wrong = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        match half_of(group) {
            Ok(half) => key[2 * number..][..2].copy_from_slice(&half.to_le_bytes()),
            Err(why) => wrong.push(format!("the {} group is mistyped: {why}", ORDINALS[number])),
        }
    }
    if wrong.is_empty() { Ok(key) } else { Err(wrong.join("; ")) }
}

/// Returns the number of a group.
fn half_of(group: &[u8]) -> std::result::Result<u16, String> {
    if group.len() != DIGITS {
        return Err(format!("it has {} digits, not {DIGITS}", group.len()));
    }
    let value = group.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
    if !value.is_multiple_of(11) {
        return Err("every group is a multiple of 11, and this one is not".to_owned());
    }
    u16::try_from(value / 11).map_err(|_| format!("no group is larger than {LARGEST}"))
}

/// Returns the mistake in a recovery password with letters among its digits, such as an O.
fn with_letters(text: &[u8]) -> Option<String> {
    let groups: Vec<&[u8]> = text.split(|byte| *byte == BETWEEN).filter(|group| !group.is_empty()).collect();
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if groups.len() != GROUPS || digits < (GROUPS - 2) * DIGITS || groups.iter().any(|group| group.len() > DIGITS + 1) {
        return None;
    }
    let number = groups.iter().position(|group| group.contains(&OTHER))?;
    Some(format!("the {} group is mistyped: it contains characters other than digits", ORDINALS[number]))
}

/// Returns a key of 16 bytes as text with hyphens.
pub(crate) fn text(key: &Secret) -> Secret {
    let mut text = Secret::zeroed(GROUPS * (DIGITS + 1) - 1);
    for (number, half) in key.chunks_exact(2).enumerate() {
        let mut value = u32::from(u16::from_le_bytes([half[0], half[1]])) * 11;
        let at = number * (DIGITS + 1);
        for digit in text[at..at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
        if number > 0 {
            text[at - 1] = b'-';
        }
    }
    text
}

/// Returns a new recovery password, as text.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(crate) fn random() -> Result<Secret> {
    Ok(text(&random::secret(LEN)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &str = "235818-357951-253979-013365-241120-245575-342914-591910";

    fn key(typed: &str) -> Secret {
        match read(typed.as_bytes()) {
            Typed::Keys(mut keys) if keys.len() == 1 => keys.remove(0),
            Typed::Keys(keys) => panic!("{typed}: {} of them", keys.len()),
            Typed::Other => panic!("{typed} is one"),
            Typed::Mistyped(what) => panic!("{typed}: {what}"),
        }
    }

    fn mistake(typed: &str) -> String {
        match read(typed.as_bytes()) {
            Typed::Mistyped(what) => what,
            _ => panic!("{typed} has a mistake"),
        }
    }

    #[test]
    fn one_is_read_however_it_is_typed_and_written_as_windows_does() {
        let expected = key(TYPED);
        assert_eq!(&text(&expected)[..], TYPED.as_bytes());
        for other in [TYPED.replace('-', ""), TYPED.replace('-', " "), TYPED.replace('-', " - ")] {
            assert!(key(&other).same_as(&expected), "{other}");
        }
        for _ in 0..100 {
            let new = random().expect("random bytes");
            assert!(text(&key(std::str::from_utf8(&new).expect("digits"))).same_as(&new));
        }
    }

    #[test]
    fn the_group_with_a_mistake_is_named() {
        let groups: Vec<&str> = TYPED.split('-').collect();
        for number in 0..GROUPS {
            for digit in 0..DIGITS {
                for other in b'0'..=b'9' {
                    let mut group = groups[number].as_bytes().to_vec();
                    if group[digit] == other {
                        continue;
                    }
                    group[digit] = other;
                    let mut all = groups.clone();
                    let group = String::from_utf8(group).expect("digits");
                    all[number] = &group;
                    let wanted = format!("the {} group is mistyped: ", ORDINALS[number]);
                    for mistake in [mistake(&all.join("-")), mistake(&all.concat())] {
                        assert!(mistake.starts_with(&wanted) && !mistake.contains(';'), "{mistake}");
                    }
                }
            }
        }
        assert!(mistake(&groups[1..].join("-")).contains("7 groups"));
        assert!(mistake(&groups.concat()[1..]).contains("47 digits"));
        assert!(mistake(&TYPED.replace("235818", "23581")).contains("first"));
        // 65536 × 11
        assert!(mistake(&TYPED.replace("591910", "720896")).contains("eighth"));
        assert!(
            mistake(&TYPED.replace("253979", "25397O"))
                .contains("the third group is mistyped: it contains characters other")
        );
        let two = mistake(&TYPED.replace("235818", "235819").replace("241120", "24112"));
        assert!(
            two.contains("the first group") && two.contains("the fifth group is mistyped: it has 5 digits"),
            "{two}"
        );
        assert!(mistake(&format!("Recovery Key: {}", TYPED.replace("013365", "013366"))).contains("fourth"));
    }

    #[test]
    fn one_is_read_as_people_copy_it() {
        let expected = key(TYPED);
        let between =
            ["\t", "\r\n", "\u{a0}", "\u{2011}", "\u{2013}", " \u{2014} ", "\u{2212}", "\u{200b}-", "\u{3000}"];
        let written = between.map(|between| TYPED.replace('-', between));
        let texts = [
            format!("{TYPED}\r\n"),
            format!("\u{feff}\u{202a}{TYPED}\u{202c}"),
            format!("\"{TYPED}\""),
            TYPED
                .chars()
                .map(|c| if c == '-' { c } else { char::from_u32(c as u32 + 0xfee0).expect("a digit") })
                .collect(),
            format!(
                "Saved on 2026-05-11 12:05.\r\n\tIdentifier:\r\n\t01234567-89AB-CDEF-0123-456789ABCDEF\r\nRecovery Key:\r\n\t{TYPED}\r\n1 of 1"
            ),
        ];
        for text in written.iter().chain(&texts) {
            assert!(key(text).same_as(&expected), "{text:?}");
            let units = || text.encode_utf16();
            let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
            let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
            for bytes in [&[0xff, 0xfe][..], &[0xfe, 0xff]]
                .into_iter()
                .zip([&little, &big])
                .map(|(mark, text)| [mark, text].concat())
            {
                let Typed::Keys(keys) = read(&bytes) else { panic!("{text:?}") };
                assert!(keys.len() == 1 && keys[0].same_as(&expected), "{text:?}");
            }
        }
        for dash in [0x96, 0x97, 0xa0] {
            let bytes: Vec<u8> = TYPED.bytes().map(|byte| if byte == b'-' { dash } else { byte }).collect();
            assert!(matches!(read(&bytes), Typed::Keys(_)), "{dash:#x}");
        }
        let two = format!("One:\n{TYPED}\nTwo:\n{}\n", TYPED.replace("235818", "235807"));
        assert!(matches!(read(two.as_bytes()), Typed::Keys(keys) if keys.len() == 2));
    }

    #[test]
    fn a_password_is_none() {
        for password in ["", "anaconda", "12345678", "1234-5678", "0123456789012345", &"123456 ".repeat(3)] {
            assert!(matches!(read(password.as_bytes()), Typed::Other), "{password}");
        }
    }
}

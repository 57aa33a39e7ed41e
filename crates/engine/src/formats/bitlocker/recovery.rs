//! Recovery passwords: 16 random bytes as eight groups of six digits (libbde, "BitLocker Drive Encryption (BDE) format", section
//! "Recovery password"). Each group is 11 times a number of 16 bits, so that a mistyped one is found out.

use claviger_crypto::Secret;

use crate::error::Result;
use crate::random;

/// Bytes of the key.
pub(super) const LEN: usize = 16;
const GROUPS: usize = LEN / 2;
const DIGITS: usize = 6;

/// What somebody has typed.
pub(super) enum Typed {
    /// Nothing that looks like a recovery password.
    Other,
    /// A recovery password with a mistake, and which.
    Mistyped(String),
    /// The key of one.
    Key(Secret),
}

/// Reads a recovery password, with hyphens, spaces or nothing between its groups.
pub(super) fn read(typed: &[u8]) -> Typed {
    let separates = |byte: &u8| matches!(byte, b'-' | b' ');
    let digits = typed.iter().filter(|byte| byte.is_ascii_digit()).count();
    let only_digits = typed.iter().all(|byte| byte.is_ascii_digit() || separates(byte));
    let mut groups: Vec<&[u8]> = typed.split(separates).filter(|group| !group.is_empty()).collect();
    // A password of digits is one; nobody types this many, or groups like these.
    let meant = digits >= (GROUPS - 1) * DIGITS || groups.len() == GROUPS && digits >= GROUPS * DIGITS / 2;
    if !only_digits || !meant {
        return Typed::Other;
    }
    if groups.len() == 1 && digits == GROUPS * DIGITS {
        groups = typed.chunks(DIGITS).collect();
    }
    if groups.len() != GROUPS {
        return Typed::Mistyped(match groups.len() {
            1 => format!("it has {digits} digits, not {}", GROUPS * DIGITS),
            count => format!("it has {count} groups of digits, not {GROUPS}"),
        });
    }
    let mut key = Secret::zeroed(LEN);
    for (number, group) in groups.into_iter().enumerate() {
        let value =
            group.iter().fold(0u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        let half = u16::try_from(value / 11).ok().filter(|_| value % 11 == 0 && group.len() == DIGITS);
        let Some(half) = half else {
            return Typed::Mistyped(format!("the {} group is mistyped", ORDINALS[number]));
        };
        key[2 * number..][..2].copy_from_slice(&half.to_le_bytes());
    }
    Typed::Key(key)
}

const ORDINALS: [&str; GROUPS] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/// The text of a key of 16 bytes, with hyphens.
pub(super) fn text(key: &Secret) -> Secret {
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

/// A new recovery password, as text.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(super) fn random() -> Result<Secret> {
    Ok(text(&random::secret(LEN)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &str = "235818-357951-253979-013365-241120-245575-342914-591910";

    fn key(typed: &str) -> Secret {
        match read(typed.as_bytes()) {
            Typed::Key(key) => key,
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
                    let wanted = format!("the {} group is mistyped", ORDINALS[number]);
                    assert_eq!((mistake(&all.join("-")), mistake(&all.concat())), (wanted.clone(), wanted));
                }
            }
        }
        assert!(mistake(&groups[1..].join("-")).contains("7 groups"));
        assert!(mistake(&groups.concat()[1..]).contains("47 digits"));
        assert!(mistake(&TYPED.replace("235818", "23581")).contains("first"));
        // 65536 × 11
        assert!(mistake(&TYPED.replace("591910", "720896")).contains("eighth"));
    }

    #[test]
    fn a_password_is_none() {
        for password in ["", "anaconda", "12345678", "1234-5678", "0123456789012345", &"123456 ".repeat(3)] {
            assert!(matches!(read(password.as_bytes()), Typed::Other), "{password}");
        }
    }
}

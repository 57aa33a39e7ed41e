//! Names: long ones in UTF-16, and 8.3 aliases.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;

/// The longest name, in UTF-16 units (section "FAT Long Directory Entries" of the specification).
const LONGEST: usize = 255;

/// The bits of entry byte 12 that show an alias without a long name in lower case (Windows NT): base and extension.
const SMALL_BASE: u8 = 0x08;
const SMALL_EXTENSION: u8 = 0x10;

/// The characters of bytes from 0x80 on in code page 437, which Linux and mtools assume for aliases.
const CODE_PAGE_437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// An 8.3 alias, padded with spaces.
pub type Alias = [u8; 11];

/// Checks that `filesystem`, FAT or exFAT, can store a name.
///
/// # Errors
/// `InvalidFilename`, with the reason.
pub fn checked<'a>(name: &'a OsStr, filesystem: &str) -> io::Result<&'a str> {
    let refuse =
        |why: &str| io::Error::new(io::ErrorKind::InvalidFilename, format!("{filesystem} cannot hold a name {why}"));
    let name = name.to_str().ok_or_else(|| refuse("that is not Unicode"))?;
    if name.is_empty() || name == "." || name == ".." {
        return Err(refuse("that is empty, `.` or `..`"));
    }
    if let Some(bad) = name.chars().find(|c| c.is_control() && (*c as u32) < 0x80 || r#""*/:<>?\|"#.contains(*c)) {
        return Err(refuse(&format!("with the character {}", bad.escape_default())));
    }
    if name.ends_with(['.', ' ']) || name.starts_with(' ') {
        return Err(refuse("that begins or ends with a space, or ends with a dot"));
    }
    if name.encode_utf16().count() > LONGEST {
        return Err(refuse("of more than 255 characters"));
    }
    Ok(name)
}

/// The case-folded form of a name, for comparisons. Characters are folded one by one, as FAT drivers do.
pub fn folded(name: &str) -> String {
    let fold = |c: char| {
        let mut upper = c.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(upper), None) => upper,
            _ => c,
        }
    };
    name.chars().map(fold).collect()
}

/// The alias as shown to users when there is no long name.
pub fn shown(alias: &Alias, case: u8) -> String {
    let part = |bytes: &[u8], small: bool| -> String {
        let end = bytes.iter().rposition(|b| *b != b' ').map_or(0, |at| at + 1);
        let text = bytes[..end].iter().map(|b| character(*b));
        if small { text.map(|c| c.to_ascii_lowercase()).collect() } else { text.collect() }
    };
    let mut alias = *alias;
    // 0xe5 marks a removed entry. A name that begins with 0xe5 is stored with 5 instead.
    if alias[0] == 0x05 {
        alias[0] = 0xe5;
    }
    let base = part(&alias[..8], case & SMALL_BASE != 0);
    let extension = part(&alias[8..], case & SMALL_EXTENSION != 0);
    if extension.is_empty() { base } else { format!("{base}.{extension}") }
}

fn character(byte: u8) -> char {
    match byte {
        0..0x20 | b'/' => '\u{fffd}',
        0x20..0x80 => char::from(byte),
        _ => CODE_PAGE_437.chars().nth(usize::from(byte - 0x80)).unwrap_or('\u{fffd}'),
    }
}

/// The checksum of an alias that ties long-name entries to it.
pub fn checksum(alias: &Alias) -> u8 {
    alias.iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// An alias for `name` that is not in `taken`. Also returns whether the alias represents the name completely, so that no long name
/// is needed.
///
/// # Errors
/// `StorageFull` if no alias is left.
pub fn alias(name: &str, taken: &HashSet<Alias>) -> io::Result<(Alias, bool)> {
    let trimmed = name.trim_start_matches('.');
    let (base, extension) = match trimmed.rsplit_once('.') {
        Some((base, extension)) => (base, extension),
        None => (trimmed, ""),
    };
    let mut lossless = trimmed.len() == name.len();
    let mut part = |text: &str, most: usize| -> Vec<u8> {
        let mut bytes = Vec::new();
        for c in text.chars() {
            match c {
                ' ' | '.' => lossless = false,
                c if c.is_ascii_alphanumeric() || "!#$%&'()-@^_`{}~".contains(c) => {
                    bytes.push(c.to_ascii_uppercase() as u8)
                }
                _ => {
                    lossless = false;
                    bytes.push(b'_');
                }
            }
        }
        lossless &= bytes.len() <= most;
        bytes.truncate(most);
        bytes
    };
    let (base, extension) = (part(base, 8), part(extension, 3));
    lossless &= !base.is_empty();
    let built = |base: &[u8]| {
        let mut alias = [b' '; 11];
        alias[..base.len()].copy_from_slice(base);
        alias[8..8 + extension.len()].copy_from_slice(&extension);
        alias
    };
    let plain = built(&base);
    if lossless && !taken.contains(&plain) {
        return Ok((plain, shown(&plain, 0) == name));
    }
    let numbered = |base: &[u8], number: u32| {
        let tail = format!("~{number}");
        built(&[&base[..base.len().min(8 - tail.len())], tail.as_bytes()].concat())
    };
    // The first few aliases are numbered and the rest hashed, as in Windows: searching for the next number gets slow.
    let hash = name.encode_utf16().fold(0u16, |h, unit| h.wrapping_mul(31).wrapping_add(unit));
    let hashed = [&base[..base.len().min(2)], format!("{hash:04X}").as_bytes()].concat();
    let candidates = (1..=4).map(|n| numbered(&base, n)).chain((1..=9).map(|n| numbered(&hashed, n)));
    let all = candidates.chain((5..=999_999).map(|n| numbered(&base, n)));
    let found = all.into_iter().find(|a| !taken.contains(a));
    found.map(|a| (a, false)).ok_or_else(|| io::Error::new(io::ErrorKind::StorageFull, "no short name is left"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(alias: &Alias) -> &str {
        std::str::from_utf8(alias).expect("ASCII")
    }

    #[test]
    fn aliases_are_those_of_the_specification() {
        let mut taken = HashSet::new();
        for (name, expected, enough) in [
            ("README.TXT", "README  TXT", true),
            ("readme.md", "README  MD ", false),
            ("TextFile.Mine.txt", "TEXTFI~1TXT", false),
            ("textfile.mine.txt2", "TEXTFI~2TXT", false),
            ("ver +1.2.text", "VER_12~1TEX", false),
            (".bashrc", "BASHRC~1   ", false),
            ("ünïcode", "_N_COD~1   ", false),
            ("日本", "__~1       ", false),
            ("README.TXT", "README~1TXT", false),
        ] {
            let (alias, alone) = alias(name, &taken).expect("one is left");
            assert_eq!((text(&alias), alone), (expected, enough), "{name}");
            taken.insert(alias);
        }
    }

    #[test]
    fn many_names_that_begin_alike_have_aliases_of_their_own() {
        let mut taken = HashSet::new();
        for i in 0..5000 {
            let (alias, _) = alias(&format!("a long name {i}.text"), &taken).expect("one is left");
            assert!(taken.insert(alias));
        }
    }

    #[test]
    fn names_that_fat_cannot_hold_are_refused() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "a:b", "tab\t", "end.", "end ", " begin", "q?", long.as_str()] {
            assert!(checked(OsStr::new(name), "FAT").is_err(), "{name}");
        }
        for name in ["a", "...a", "ä b", &long[1..], "🦀", "a+b,c;d=[e]"] {
            assert!(checked(OsStr::new(name), "FAT").is_ok(), "{name}");
        }
    }

    #[test]
    fn case_is_folded_letter_by_letter() {
        assert_eq!(folded("straße Ärger"), "STRAßE ÄRGER");
    }

    #[test]
    fn aliases_are_shown_as_windows_nt_shows_them() {
        assert_eq!(shown(b"README  TXT", 0), "README.TXT");
        assert_eq!(shown(b"README  TXT", SMALL_BASE | SMALL_EXTENSION), "readme.txt");
        assert_eq!(shown(b"\x05\x81      X  ", 0), "σü.X");
        assert_eq!(CODE_PAGE_437.chars().count(), 128);
    }
}

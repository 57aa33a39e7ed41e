//! Other forms of a password: what a user may have typed instead.

use std::fmt;

use claviger_crypto::Secret;
use claviger_crypto::secret::wipe_stack;
use encoding_rs::{
    EncoderResult, Encoding, IBM866, ISO_8859_2, ISO_8859_15, KOI8_R, MACINTOSH, SHIFT_JIS, WINDOWS_1250, WINDOWS_1251,
    WINDOWS_1252, WINDOWS_1253, WINDOWS_1254,
};
use unicode_normalization::UnicodeNormalization;

use super::keyboards::{KEYBOARDS, US};
use crate::credential::qnap_passphrase;

/// How a form differs from the given password. It reveals nothing about the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something is missing or added at an end, or cut off; as the end of "with the password …".
    Ends(&'static str),
    /// Upper and lower case; as above.
    Case(&'static str),
    /// Upper and lower case, each letter swapped.
    CapsLock,
    /// Typed on one keyboard while another layout was active.
    Layout {
        /// The layout that the user intended.
        keyboard: &'static str,
        /// The layout that was active on the computer.
        active: &'static str,
    },
    /// The same characters with other Unicode code points.
    Unicode(&'static str),
    /// The same characters in another encoding.
    Encoding(&'static str),
    /// Hashed as a QNAP NAS does: [`qnap_passphrase`].
    Qnap,
}

impl Change {
    /// An identifier for programs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ends(_) => "ends",
            Self::Case(_) | Self::CapsLock => "case",
            Self::Layout { .. } => "keyboard-layout",
            Self::Unicode(_) => "unicode-form",
            Self::Encoding(_) => "encoding",
            Self::Qnap => "qnap",
        }
    }
}

/// The end of "with the password …".
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends(what) | Self::Case(what) => f.write_str(what),
            Self::CapsLock => f.write_str("typed with Caps Lock on"),
            Self::Layout { keyboard, active } => {
                write!(f, "as typed on a {keyboard} keyboard with the {active} layout active")
            }
            Self::Unicode(form) => write!(f, "in the Unicode form {form}"),
            Self::Encoding(name) => write!(f, "encoded in {name} instead of UTF-8"),
            Self::Qnap => f.write_str("hashed as a QNAP NAS does"),
        }
    }
}

/// A form, and the change that led to it.
pub struct Form {
    /// The change.
    pub change: Change,
    /// The whole password in that form.
    pub password: Secret,
}

/// All other forms of `password`, the likely ones first, each once and without the password itself.
pub fn forms(password: &[u8]) -> Vec<Form> {
    let mut forms = Forms { given: password, all: Vec::new() };
    forms.ends();
    // Bytes that are not UTF-8 were typed in another encoding, most likely this one.
    match std::str::from_utf8(password) {
        Ok(text) => {
            forms.cases(text);
            forms.unicode(text);
            forms.layouts(text);
            forms.encodings(text);
        }
        Err(_) => forms.latin_1_as_utf_8(),
    }
    forms.add(Change::Qnap, qnap_passphrase(password));
    // The libraries for composing and encoding leave a few characters on the stack.
    wipe_stack();
    forms.all
}

struct Forms<'a> {
    given: &'a [u8],
    all: Vec<Form>,
}

impl Forms<'_> {
    fn add(&mut self, change: Change, password: Secret) {
        let known = password.same_as(self.given) || self.all.iter().any(|f| f.password.same_as(&password));
        if !known && !password.is_empty() {
            self.all.push(Form { change, password });
        }
    }

    fn add_text(&mut self, change: Change, chars: impl Iterator<Item = char>) {
        if let Some(password) = written(self.given.len(), chars) {
            self.add(change, password);
        }
    }

    fn ends(&mut self) {
        let given = self.given;
        let mut part = |what, bytes: &[u8]| self.add(Change::Ends(what), Secret::copy_from(bytes));
        part("without the white space at its end", given.trim_ascii_end());
        part("without the white space around it", given.trim_ascii());
        for (what, end) in [
            ("with a newline at its end", &b"\n"[..]),
            ("with a carriage return at its end", b"\r"),
            ("with a carriage return and a newline at its end", b"\r\n"),
            ("with a space at its end", b" "),
        ] {
            let mut longer = Secret::zeroed(given.len() + end.len());
            longer[..given.len()].copy_from_slice(given);
            longer[given.len()..].copy_from_slice(end);
            part(what, &longer);
        }
        if let Some(marked) = given.strip_prefix(b"\xef\xbb\xbf") {
            part("without the byte order mark at its beginning", marked);
        }
        // Programs with a limit silently cut off longer passwords.
        for (len, what) in [(128, "cut off after 128 bytes"), (64, "cut off after 64 bytes")] {
            if given.len() > len {
                part(what, &given[..len]);
            }
        }
    }

    fn cases(&mut self, text: &str) {
        let swapped = text.chars().flat_map(|c| if c.is_lowercase() { upper(c) } else { lower(c) });
        self.add_text(Change::CapsLock, swapped);
        let mut rest = text.chars();
        if let Some(first) = rest.next() {
            let other = if first.is_lowercase() { upper(first) } else { lower(first) };
            self.add_text(Change::Case("with its first letter in the other case"), other.into_iter().chain(rest));
        }
        self.add_text(Change::Case("all in lower case"), text.chars().flat_map(lower));
        self.add_text(Change::Case("all in upper case"), text.chars().flat_map(upper));
    }

    fn unicode(&mut self, text: &str) {
        self.add_text(Change::Unicode("NFC"), text.nfc());
        self.add_text(Change::Unicode("NFD"), text.nfd());
        self.add_text(Change::Unicode("NFKC"), text.nfkc());
        self.add_text(Change::Unicode("NFKD"), text.nfkd());
    }

    fn layouts(&mut self, text: &str) {
        for other in KEYBOARDS.iter().filter(|k| !std::ptr::eq(*k, US)) {
            for (keyboard, active) in [(other, US), (US, other)] {
                let change = Change::Layout { keyboard: keyboard.name, active: active.name };
                if let Some(chars) = keyboard.typed_with(active, text) {
                    self.add_text(change, chars);
                }
            }
        }
    }

    fn encodings(&mut self, text: &str) {
        // Like TrueCrypt 7.1a for Linux and Mac OS X (Volume/VolumePassword.cpp, `VolumePassword::Set`): Latin-1, and something
        // arbitrary for other characters.
        let mut lowest = Secret::zeroed(text.chars().count());
        lowest.iter_mut().zip(text.chars()).for_each(|(byte, c)| *byte = c as u32 as u8);
        self.add(Change::Encoding("the lowest byte of each character (ISO 8859-1)"), lowest);
        // Composed, as these encodings are: they have no decomposed letters.
        let Some(composed) = written(text.len(), text.nfc()) else { return };
        let composed = std::str::from_utf8(&composed).expect("characters were written");
        for (encoding, name) in ENCODINGS {
            if let Some(encoded) = encoded(encoding, composed) {
                self.add(Change::Encoding(name), encoded);
            }
        }
        let mut utf16 = Secret::zeroed(composed.encode_utf16().count() * 2);
        for (pair, unit) in utf16.as_chunks_mut::<2>().0.iter_mut().zip(composed.encode_utf16()) {
            *pair = unit.to_le_bytes();
        }
        self.add(Change::Encoding("UTF-16 (little-endian)"), utf16);
        // Its UTF-8, mistaken for Latin-1 and encoded again.
        self.add_text(Change::Encoding("UTF-8 twice"), text.bytes().map(char::from));
    }

    fn latin_1_as_utf_8(&mut self) {
        self.add_text(Change::Encoding("UTF-8, its bytes being ISO 8859-1"), self.given.iter().map(|b| char::from(*b)));
    }
}

/// Encodings of passwords before UTF-8 was common: those of Windows, of old Unix systems, of Mac OS.
static ENCODINGS: &[(&Encoding, &str)] = &[
    (WINDOWS_1252, "Windows-1252"),
    (ISO_8859_15, "ISO 8859-15"),
    (WINDOWS_1250, "Windows-1250"),
    (ISO_8859_2, "ISO 8859-2"),
    (WINDOWS_1251, "Windows-1251"),
    (KOI8_R, "KOI8-R"),
    (IBM866, "code page 866"),
    (WINDOWS_1253, "Windows-1253"),
    (WINDOWS_1254, "Windows-1254"),
    (MACINTOSH, "Mac OS Roman"),
    (SHIFT_JIS, "Shift JIS"),
];

/// The text in another encoding; `None` if a character is missing there.
fn encoded(encoding: &'static Encoding, text: &str) -> Option<Secret> {
    // Two bytes per character at most, and no more than UTF-8 needs.
    let mut bytes = Secret::zeroed(text.len() * 2 + 16);
    let mut encoder = encoding.new_encoder();
    let (result, _, len) = encoder.encode_from_utf8_without_replacement(text, &mut bytes, true);
    (result == EncoderResult::InputEmpty).then(|| Secret::copy_from(&bytes[..len]))
}

/// Writes the characters as UTF-8 into their final place. `None` if they need far more than the `len` bytes that they came from.
fn written(len: usize, chars: impl Iterator<Item = char>) -> Option<Secret> {
    // A compatibility decomposition can have 18 characters (U+FDFA), but no password grows that much.
    let mut text = Secret::zeroed(len * 4 + 16);
    let mut end = 0;
    for c in chars {
        let room = text.get_mut(end..).filter(|room| room.len() >= c.len_utf8())?;
        end += c.encode_utf8(room).len();
    }
    Some(Secret::copy_from(&text[..end]))
}

fn upper(c: char) -> Case {
    // A character that becomes several in upper case, such as ß, is on no key.
    let mut all = c.to_uppercase();
    if all.len() == 1 { all.next().into_iter() } else { Some(c).into_iter() }
}

fn lower(c: char) -> Case {
    let mut all = c.to_lowercase();
    if all.len() == 1 { all.next().into_iter() } else { Some(c).into_iter() }
}

type Case = std::option::IntoIter<char>;

#[cfg(test)]
mod tests {
    use super::*;

    fn find(password: &[u8], change: Change) -> Option<Vec<u8>> {
        forms(password).iter().find(|f| f.change == change).map(|f| f.password.to_vec())
    }

    #[test]
    fn forms_are_what_was_meant() {
        let layout = |keyboard, active| Change::Layout { keyboard, active };
        for (given, change, form) in [
            ("Zebra 7", layout("German", "US"), "Yebra 7".as_bytes()),
            ("Yebra-7", layout("US", "German"), "Zebra\u{df}7".as_bytes()),
            ("hELLO", Change::CapsLock, b"Hello"),
            ("Hello", Change::Case("with its first letter in the other case"), b"hello"),
            ("abc \n", Change::Ends("without the white space at its end"), b"abc"),
            ("abc", Change::Ends("with a carriage return at its end"), b"abc\r"),
            ("Schlu\u{308}ssel", Change::Unicode("NFC"), "Schl\u{fc}ssel".as_bytes()),
            ("Schl\u{fc}ssel", Change::Unicode("NFD"), "Schlu\u{308}ssel".as_bytes()),
            ("\u{fb01}x", Change::Unicode("NFKC"), b"fix"),
            ("5 \u{20ac}", Change::Encoding("Windows-1252"), b"5 \x80"),
            ("Stra\u{df}e", Change::Encoding("the lowest byte of each character (ISO 8859-1)"), b"Stra\xdfe"),
            ("\u{43f}", Change::Encoding("KOI8-R"), b"\xd0"),
            ("a\u{e9}", Change::Encoding("UTF-16 (little-endian)"), b"a\0\xe9\0"),
            ("\u{e9}", Change::Encoding("UTF-8 twice"), b"\xc3\x83\xc2\xa9"),
            ("hunter2", Change::Qnap, b"$1$YCCaQNAP$Jxabnglt5EY4ObjCXYGOf/"),
        ] {
            assert_eq!(find(given.as_bytes(), change).as_deref(), Some(form), "{given} {change}");
        }
        let latin = Change::Encoding("UTF-8, its bytes being ISO 8859-1");
        assert_eq!(find(b"Stra\xdfe", latin).as_deref(), Some("Stra\u{df}e".as_bytes()));
    }

    #[test]
    fn no_form_comes_twice_and_none_is_what_was_given() {
        for given in ["", "x", "12345", "Zebra-7 Schl\u{fc}ssel", "\u{43f}\u{440}\u{438}", &"a".repeat(300)] {
            let forms = forms(given.as_bytes());
            for (i, form) in forms.iter().enumerate() {
                assert!(!form.password.same_as(given.as_bytes()) && !form.password.is_empty());
                assert!(forms[..i].iter().all(|f| !f.password.same_as(&form.password)), "{}", form.change);
            }
            // Each form costs as much as opening the volume.
            assert!(forms.len() < 75, "{given}: {}", forms.len());
        }
    }

    #[test]
    fn what_would_grow_beyond_measure_is_left_out() {
        let phrase = "\u{fdfa}".repeat(40);
        assert_eq!(find(phrase.as_bytes(), Change::Unicode("NFKD")), None);
    }
}

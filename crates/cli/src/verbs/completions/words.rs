//! Parses an incomplete command line without running anything in it.

use std::ffi::{OsStr, OsString};

/// A command line up to the cursor.
pub struct Line {
    /// The words without quotes. The last one, which may be empty, is being completed.
    pub words: Vec<OsString>,
    /// The bytes of the last word that the shell keeps: it replaces only the rest.
    pub fixed: usize,
    /// The quote that is open in the last word.
    pub quote: Option<char>,
}

impl Line {
    /// The word that is being completed.
    pub fn current(&self) -> &OsStr {
        self.words.last().map_or(OsStr::new(""), |word| word)
    }

    /// Parses arguments that are words. Those of fish and zsh have quotes only in the last word.
    pub fn of_words(mut args: Vec<OsString>) -> Self {
        let current = args.pop().unwrap_or_default();
        let read = current.to_str().map(|text| read(text, "")).unwrap_or_default();
        // Blanks in it are inside a quote that is still open; otherwise the shell would have split the word.
        args.push(if read.words.len() == 1 { read.words.concat().into() } else { current });
        Self { words: args, fixed: 0, quote: None }
    }

    /// Parses arguments that are the line up to the cursor, and the characters at which bash splits words (`COMP_WORDBREAKS`).
    pub fn of_bash(args: Vec<OsString>) -> Self {
        let text = |at: usize| args.get(at).map(|arg| arg.to_string_lossy()).unwrap_or_default();
        let Read { words, fixed, quote } = read(&text(0), &text(1));
        Self { words: words.into_iter().map(OsString::from).collect(), fixed, quote }
    }
}

#[derive(Default, Debug, PartialEq)]
struct Read {
    words: Vec<String>,
    fixed: usize,
    quote: Option<char>,
}

/// Splits at blanks and removes quotes and backslashes according to POSIX. For the shell, the last word is also split at unquoted
/// characters in `breaks`, and where a quote begins or ends.
fn read(line: &str, breaks: &str) -> Read {
    let mut words = vec![String::new()];
    let (mut fixed, mut quote) = (0, None);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        let word = words.last_mut().expect("one at least");
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                fixed = word.len();
            }
            (Some(open), c) if c == open => {
                quote = None;
                fixed = word.len();
            }
            (None, '\\') => word.extend(rest.next()),
            (Some('"'), '\\') => match rest.next_if(|next| "$`\"\\".contains(*next)) {
                Some(next) => word.push(next),
                None => word.push(c),
            },
            (None, ' ' | '\t' | '\n') => {
                while rest.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                words.push(String::new());
                fixed = 0;
            }
            (None, c) => {
                word.push(c);
                if "=:".contains(c) && breaks.contains(c) {
                    fixed = word.len();
                }
            }
            (Some(_), c) => word.push(c),
        }
    }
    Read { words, fixed, quote }
}

/// The text quoted for bash, in a word with this open quote: readline closes the quote, unless the text ends with one.
pub fn quoted(text: &str, quote: Option<char>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%=".contains(c) || !c.is_ascii();
    let within = |c: char| match (quote, c) {
        (Some('\''), '\'') => r"'\''".to_owned(),
        (Some('\''), c) => c.to_string(),
        // In double quotes, only this prevents history expansion.
        (Some(_), '!') => r#""\!""#.to_owned(),
        (Some(_), '$' | '`' | '"' | '\\') => format!("\\{c}"),
        (Some(_), c) => c.to_string(),
        (None, c) if plain(c) => c.to_string(),
        (None, c) => format!("\\{c}"),
    };
    let mut chars = text.chars();
    // A final quote character closes the open quote first.
    let last = quote.filter(|quote| text.ends_with(*quote)).and_then(|_| chars.next_back());
    let closed = last.map(|last| format!("{last}\\{last}"));
    chars.map(within).chain(closed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_a_shell_reads_them() {
        for (line, words) in [
            ("claviger ", &["claviger", ""][..]),
            ("claviger info a\\ b", &["claviger", "info", "a b"]),
            ("claviger  info  'a b' x", &["claviger", "info", "a b", "x"]),
            ("claviger info 'a b", &["claviger", "info", "a b"]),
            (r#"claviger "a\"b\c" "#, &["claviger", r#"a"b\c"#, ""]),
            ("claviger '$(touch x)' `y", &["claviger", "$(touch x)", "`y"]),
        ] {
            assert_eq!(read(line, "=:").words, words, "{line}");
        }
    }

    #[test]
    fn what_the_shell_keeps_ends_at_its_last_break() {
        for (line, fixed) in [
            ("c --format=L", 9),
            ("c s3:bu", 3),
            ("c 'a=b", 0),
            ("c a'b", 1),
            ("c 'ab'c", 2),
            ("c a\\=b", 0),
            ("c --a=b c", 0),
            ("c http://h:1/p", 9),
        ] {
            assert_eq!(read(line, "=:").fixed, fixed, "{line}");
        }
        assert_eq!(read("c s3:bu", " ").fixed, 0);
    }

    #[test]
    fn bash_reads_the_text_that_was_meant() {
        for text in [
            "a b",
            "$(x) `y`",
            "it's",
            "'",
            "''",
            "\"",
            "\\",
            "x!y",
            "a\"b'c\\d$e`f",
            "*?[]{}()<>|&;#~^",
            "\u{fc} \u{20ac}",
        ] {
            for (quote, open) in [(None, ""), (Some('\''), "'"), (Some('"'), "\"")] {
                let quoted = quoted(text, quote);
                let closed = if quote.is_some_and(|quote| quoted.ends_with(quote)) { "" } else { open };
                let script = format!("printf %s {open}{quoted}{closed}");
                let output = std::process::Command::new("bash").args(["-c", &script]).output().expect("a shell");
                assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{script}");
            }
        }
    }

    #[test]
    fn a_word_with_an_open_quote_is_one() {
        let line = |word: &str| Line::of_words(["claviger".into(), word.into()].into()).words;
        assert_eq!(line("'a b"), ["claviger", "a b"]);
        assert_eq!(line("a\\ b"), ["claviger", "a b"]);
        assert_eq!(line(""), ["claviger", ""]);
    }
}

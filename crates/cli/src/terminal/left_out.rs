//! Files that could not be read. Verbs that read trees continue without them, list them, and end with the exit code found here.

use std::ffi::OsStr;
use std::io::{self, Write};

use claviger_engine::trees::LeftOut as Unnamed;
use claviger_engine::{Error, ErrorKind, Result};
use serde::{Serialize, Serializer};

use crate::opening::files;
use crate::terminal::exit::{self, Silent};
use crate::terminal::{advice, output};

/// The order in which an exit code is chosen if there are several reasons: damaged, unreadable, in use, no key, not this
/// format, unsupported.
const GRAVEST: [u8; 6] = [4, 6, 9, 2, 3, 5];

/// The exit code for several reasons; `None` if there are none.
pub fn gravest(codes: &[u8]) -> Option<u8> {
    GRAVEST.into_iter().find(|code| codes.contains(code)).or(codes.first().copied())
}

/// All that was left out. In JSON a list of texts: `PATH (why)`.
#[derive(Default)]
pub struct LeftOut(Vec<Missing>);

struct Missing {
    /// The path in printable form.
    path: String,
    why: Error,
}

impl Missing {
    fn text(&self) -> String {
        format!("{} ({})", self.path, reason(&self.why))
    }
}

/// The reason without the path and the hint.
pub fn reason(why: &Error) -> String {
    let text = match &why.kind {
        // A name is not an offset in a file.
        ErrorKind::Malformed { field: "name" | "folder", what, .. } => format!("damaged: {what}"),
        kind => exit::without_numbers(kind.to_string()),
    };
    match why.format.filter(|format| !text.starts_with(format)) {
        Some(format) => format!("{format}: {text}"),
        None => text,
    }
}

impl LeftOut {
    /// Records that a file was left out.
    ///
    /// # Errors
    /// `Cancelled`, which ends the verb.
    pub fn add(&mut self, path: &OsStr, why: impl Into<Error>) -> Result<()> {
        let why = why.into();
        if matches!(why.kind, ErrorKind::Cancelled) {
            return Err(why);
        }
        self.0.push(Missing { path: files::shown(path), why });
        Ok(())
    }

    /// Records the names in a folder that cannot be shown, except those that are listed nevertheless.
    ///
    /// # Errors
    /// Those of [`LeftOut::add`].
    pub fn add_names(&mut self, folder: &OsStr, names: Vec<Unnamed>) -> Result<()> {
        let mut without = names.into_iter().filter(|name| !name.listed);
        without.try_for_each(|name| self.add(&files::below(folder, &name.name), name.why))
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of files that were left out.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The error, if only one file was requested and it could not be read.
    pub fn into_only(mut self) -> Option<Error> {
        let Missing { path, why } = self.0.pop().filter(|_| self.0.is_empty())?;
        Some(why.at(format!("{path} in the volume").as_ref()))
    }

    /// Prints each file on a line of its own, and each hint once.
    pub fn tell(&self, out: &mut dyn Write) -> io::Result<()> {
        self.0.iter().try_for_each(|missing| writeln!(out, "left out: {}", missing.text()))?;
        let mut suggested = Vec::new();
        for to_try in self.0.iter().filter_map(|missing| advice::to_try(&missing.why)) {
            if !suggested.contains(&to_try) {
                writeln!(out, "{to_try}")?;
                suggested.push(to_try);
            }
        }
        Ok(())
    }

    /// Prints the same as warnings, for verbs whose output goes to other programs.
    pub fn warn(&self) {
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = self.tell(&mut text);
        String::from_utf8_lossy(&text).lines().for_each(output::warn);
    }

    /// The exit code; `None` if nothing was left out.
    pub fn code(&self) -> Option<u8> {
        let codes: Vec<_> = self.0.iter().map(|missing| exit::number_of(&missing.why.kind)).collect();
        gravest(&codes)
    }

    /// Ends the verb with the right exit code.
    ///
    /// # Errors
    /// The exit code, if something was left out, which has been reported.
    pub fn end(&self) -> anyhow::Result<()> {
        self.code().map_or(Ok(()), |code| Err(Silent(code).into()))
    }
}

impl Serialize for LeftOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Missing::text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_reason_is_the_exit_code_and_what_to_try_is_said_once() {
        let mut left = LeftOut::default();
        assert!(left.is_empty() && left.end().is_ok());
        for path in ["/a", "/b"] {
            left.add(OsStr::new(path), Error::unsupported("it").hint("Try this.")).expect("it goes on");
        }
        assert_eq!(left.code(), Some(5));
        let damaged = claviger_engine::trees::damaged("name", 0, "cut short");
        left.add(OsStr::new("/c\n"), damaged).expect("it goes on");
        assert_eq!((left.code(), left.len()), (Some(4), 3));
        let mut text = Vec::new();
        left.tell(&mut text).expect("written");
        let text = String::from_utf8(text).expect("UTF-8");
        assert_eq!(text.matches("Try this.").count(), 1, "{text}");
        assert!(text.contains("left out: /c\\n (damaged: cut short"), "{text}");
        let json = serde_json::to_value(&left).expect("JSON");
        assert_eq!(json[0], "/a (not supported: it)");
        assert!(left.add(OsStr::new("/d"), ErrorKind::Cancelled).is_err());
        assert!(left.into_only().is_none());
    }
}

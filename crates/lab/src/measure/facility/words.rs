//! The names in braces in the words of a facility's commands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

use super::{CommandStep, Facility};

/// Names that stand for one word, or part of one.
pub const NAMES: &[&str] =
    &["store", "open", "size", "kib", "password", "password-file", "claviger", "id", "dir", "config", "trace-file"];

/// Names that stand for any number of words. Such a name must be a word of its own.
pub const LISTS: &[&str] = &["cheap", "trace"];

/// What the names stand for.
#[derive(Clone, Debug, Default)]
pub struct Words {
    names: BTreeMap<&'static str, String>,
    lists: BTreeMap<&'static str, Vec<String>>,
}

impl Words {
    /// `name`, one of [`NAMES`], stands for `value` from now on.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        debug_assert!(NAMES.contains(&name));
        self.names.insert(name, value.into());
    }

    /// Like [`Words::set`], for a path.
    ///
    /// # Errors
    /// `Misuse` where the path is not Unicode.
    pub fn set_path(&mut self, name: &'static str, path: &Path) -> Result<()> {
        self.set(name, unicode(path)?);
        Ok(())
    }

    /// `name`, one of [`LISTS`], stands for these words from now on, in which names may stand.
    pub fn set_list(&mut self, name: &'static str, words: &[String]) {
        debug_assert!(LISTS.contains(&name));
        self.lists.insert(name, words.to_vec());
    }

    /// The text with what its names stand for.
    ///
    /// # Errors
    /// `Misuse` where there is no such name.
    pub fn text(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            let (before, from) = rest.split_at(start);
            let end = from.find('}').ok_or_else(|| Error::misuse(format!("{text:?}: a brace is not closed")))?;
            let name = &from[1..end];
            let value = self.names.get(name).ok_or_else(|| {
                let all = NAMES.join("}, {");
                Error::misuse(format!("{text:?}: there is no {{{name}}}; the names are: {{{all}}}"))
            })?;
            out.push_str(before);
            out.push_str(value);
            rest = &from[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// The words with what their names stand for.
    pub fn words(&self, words: &[String]) -> Result<Vec<String>> {
        let mut out = Vec::new();
        for word in words {
            let name = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
            match name.and_then(|name| self.lists.get(name)) {
                Some(list) => out.extend(list.iter().map(|w| self.text(w)).collect::<Result<Vec<_>>>()?),
                None => out.push(self.text(word)?),
            }
        }
        Ok(out)
    }

    /// The step with what its names stand for.
    pub fn step(&self, step: &CommandStep) -> Result<CommandStep> {
        let CommandStep { run, stdin, until_there, env } = step;
        Ok(CommandStep {
            run: self.words(run)?,
            stdin: stdin.as_ref().map(|text| self.text(text)).transpose()?,
            until_there: until_there.as_ref().map(|path| self.text(unicode(path)?).map(PathBuf::from)).transpose()?,
            env: env.iter().map(|(name, value)| Ok((name.clone(), self.text(value)?))).collect::<Result<_>>()?,
        })
    }
}

/// The path as text.
///
/// # Errors
/// `Misuse` where it is not Unicode.
pub fn unicode(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::misuse("a path that is not Unicode").at(path))
}

/// Checks that every name in the facility's words is known.
///
/// # Errors
/// `Misuse` with the first that is not, or where a step has no words.
pub fn check(facility: &Facility) -> Result<()> {
    let mut any = Words::default();
    NAMES.iter().for_each(|name| any.set(name, "/"));
    LISTS.iter().for_each(|name| any.set_list(name, &[]));
    let in_facility = |e: Error| Error::misuse(format!("the facility {}: {}", facility.name, e.kind));
    let steps = facility.steps();
    for step in steps {
        any.step(step).map_err(in_facility)?;
        if step.run.is_empty() {
            return Err(in_facility(Error::misuse("a step has no command")));
        }
    }
    if !any.text(&facility.opened).map_err(in_facility)?.starts_with('/') {
        return Err(in_facility(Error::misuse("`opened` must be an absolute path, such as {open}")));
    }
    let paths = facility.needs.paths.iter().map(|path| path.to_string_lossy().into_owned());
    for text in paths.chain([facility.opened.clone()]) {
        any.text(&text).map_err(in_facility)?;
    }
    for words in [&facility.version, &facility.cheap, &facility.trace, &facility.needs.probe] {
        any.words(words).map_err(in_facility)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_stand_for_values_and_lists_for_words() {
        let mut words = Words::default();
        words.set("store", "/s");
        words.set("id", "x1");
        words.set_list("cheap", &owned(&["--of", "{id}"]));
        words.set_list("trace", &[]);
        let got = words.words(&owned(&["a", "{store}/f", "{cheap}", "{trace}", "{id}{id}"])).expect("known names");
        assert_eq!(got, ["a", "/s/f", "--of", "x1", "x1x1"]);
        for wrong in ["{nothing}", "{store", "x{cheap}"] {
            assert!(words.words(&owned(&[wrong])).is_err(), "{wrong}");
        }
    }
}

//! Questions as data: the form for one call of `claviger`, and how its answers become the command line. The drawing code knows no
//! options.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::home::size;
use crate::program::Call;
use crate::secret_field::SecretField;
use crate::texts::Texts;

/// One question.
#[derive(Debug)]
pub struct Field {
    pub label: &'static str,
    /// The option for the answer. If it is empty, the answer is a word after the volume.
    pub option: &'static str,
    pub input: Input,
    /// Whether few people need it.
    pub more: bool,
    /// Whether it works without an answer.
    pub optional: bool,
    /// Help for the answer.
    pub hint: Option<String>,
}

/// An answer, perhaps incomplete.
#[derive(Debug)]
pub enum Input {
    Text(String),
    /// An existing file.
    Existing(String),
    /// An existing folder.
    Folder(String),
    /// A new file.
    New(String),
    /// Several files or folders.
    Paths(Vec<PathBuf>),
    /// The number of the chosen item, and all items: each with its value, and its name for people. A value is empty if
    /// nothing is passed, and a whole option if the field has none.
    Choice(usize, Vec<(String, String)>),
    Check(bool),
    Secret(SecretField),
    /// Asked twice.
    NewSecret(SecretField, SecretField),
}

/// All that is asked for one call.
#[derive(Debug, Default)]
pub struct Form {
    pub title: &'static str,
    pub explanation: &'static str,
    /// The text of the button.
    pub button: &'static str,
    /// The verb and its words.
    pub words: Vec<OsString>,
    /// The volume, which exists, if the form is about one.
    pub volume: Option<PathBuf>,
    pub fields: Vec<Field>,
    /// A warning that must be confirmed before it starts.
    pub warning: Option<(&'static str, bool)>,
    /// Why the last attempt could not be carried out.
    pub lacking: Option<Lacking>,
    /// Whether the page must scroll there.
    pub reveal: bool,
    /// How fast its new password is guessed.
    pub guessing: Guessing,
}

/// How fast a new password is guessed, which its format and hash set.
#[derive(Debug, Default)]
pub struct Guessing {
    /// Guesses per second of one graphics card, where known: one for each answer to the choice `by`.
    pub per_second: Vec<Option<f64>>,
    /// The option of that choice; empty if there is none.
    pub by: &'static str,
    /// Options whose answers make it another number, or guessing futile: a PIM, and keyfiles.
    pub unless: &'static [&'static str],
}

/// Why a form cannot be carried out yet.
#[derive(Debug, PartialEq, Eq)]
pub enum Lacking {
    Answer(&'static str),
    /// The new file already exists.
    Free(PathBuf),
    /// The volume is larger than the free space, in bytes.
    Room(u64),
    /// The two new passwords differ.
    Repetition,
    Consent,
}

impl Lacking {
    pub fn sentence(&self, texts: &Texts) -> String {
        match self {
            Self::Answer(_) => texts.is_missing.to_owned(),
            Self::Free(path) => format!("{}: {}", texts.is_there, path.display()),
            Self::Room(free) => texts.no_room.replace("{}", &size(*free)),
            Self::Repetition => texts.not_the_same.to_owned(),
            Self::Consent => texts.agree_first.to_owned(),
        }
    }
}

impl Field {
    pub fn new(label: &'static str, option: &'static str, input: Input) -> Self {
        Self { label, option, input, more: false, optional: false, hint: None }
    }

    /// One that works without an answer.
    pub fn optional(label: &'static str, option: &'static str, input: Input) -> Self {
        Self { optional: true, ..Self::new(label, option, input) }
    }

    /// One that few people need.
    pub fn more(label: &'static str, option: &'static str, input: Input) -> Self {
        Self { more: true, ..Self::optional(label, option, input) }
    }

    fn is_empty(&self) -> bool {
        match &self.input {
            Input::Text(text) | Input::Existing(text) | Input::Folder(text) | Input::New(text) => {
                text.trim().is_empty()
            }
            Input::Paths(paths) => paths.is_empty(),
            Input::Choice(at, all) => all.get(*at).is_none_or(|(said, _)| said.is_empty()),
            Input::Check(on) => !on,
            Input::Secret(secret) | Input::NewSecret(secret, _) => secret.is_empty(),
        }
    }

    /// The option's words.
    fn words(&self, home: &Path) -> Vec<OsString> {
        let option = |value: OsString| match self.option {
            "" => vec![value],
            option => vec![option.into(), value],
        };
        match &self.input {
            _ if self.is_empty() => Vec::new(),
            Input::Text(text) => option(text.trim().into()),
            Input::Existing(text) | Input::Folder(text) | Input::New(text) => option(absolute(text, home).into()),
            Input::Paths(paths) => paths.iter().flat_map(|path| option(path.into())).collect(),
            Input::Choice(at, all) => option(all[*at].0.clone().into()),
            Input::Check(_) => vec![self.option.into()],
            Input::Secret(_) | Input::NewSecret(..) => Vec::new(),
        }
    }
}

impl Form {
    /// A form about a volume.
    pub fn about(volume: &Path, words: &[&str], fields: Vec<Field>) -> Self {
        let words = words.iter().map(OsString::from).collect();
        Self { words, volume: Some(volume.to_owned()), fields, ..Self::default() }
    }

    /// The same with texts for people.
    #[must_use]
    pub fn said(self, title: &'static str, explanation: &'static str, button: &'static str) -> Self {
        Self { title, explanation, button, ..self }
    }

    /// The same with a warning that must be confirmed.
    #[must_use]
    pub fn warns(self, warning: &'static str) -> Self {
        Self { warning: Some((warning, false)), ..self }
    }

    pub fn field(&self, option: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.option == option)
    }

    pub fn field_mut(&mut self, option: &str) -> Option<&mut Field> {
        self.fields.iter_mut().find(|field| field.option == option)
    }

    /// The answer that is a text or a file.
    pub fn text(&self, option: &str) -> &str {
        match self.field(option).map(|field| &field.input) {
            Some(Input::Text(text) | Input::Existing(text) | Input::Folder(text) | Input::New(text)) => text.trim(),
            _ => "",
        }
    }

    /// Whether this is ticked.
    pub fn ticked(&self, option: &str) -> bool {
        matches!(self.field(option), Some(Field { input: Input::Check(true), .. }))
    }

    /// How many guesses of its new password one graphics card makes per second; `None` if that is not known.
    pub fn guesses_per_second(&self) -> Option<f64> {
        let Guessing { per_second, by, unless } = &self.guessing;
        if unless.iter().any(|option| self.field(option).is_some_and(|field| !field.is_empty())) {
            return None;
        }
        let chosen = match self.field(by).map(|field| &field.input) {
            Some(Input::Choice(at, _)) => *at,
            _ => 0,
        };
        per_second.get(chosen).copied().flatten()
    }

    /// After a failure, the keyboard goes back to the password, which the next key replaces.
    pub fn try_again(&mut self) {
        self.secret_mut("--password-fd").map(SecretField::select);
    }

    /// The answer that is a password.
    pub fn secret_mut(&mut self, option: &str) -> Option<&mut SecretField> {
        match &mut self.field_mut(option)?.input {
            Input::Secret(secret) => Some(secret),
            _ => None,
        }
    }

    /// Takes the result of checking the form; errors are shown at their fields from now on.
    pub fn noted<T>(&mut self, told: Result<T, Lacking>) -> Option<T> {
        let (taken, lacking) = told.map_or_else(|lacking| (None, Some(lacking)), |taken| (Some(taken), None));
        (self.reveal, self.lacking) = (lacking.is_some(), lacking);
        taken
    }

    /// The error at this field, if any.
    pub fn complaint(&self, number: usize, texts: &Texts) -> Option<String> {
        let (lacking, field) = (self.lacking.as_ref()?, self.fields.get(number)?);
        let here = match (lacking, &field.input) {
            (Lacking::Answer(label), _) => *label == field.label && field.is_empty(),
            (Lacking::Repetition, Input::NewSecret(secret, again)) => !secret.same_as(again),
            (Lacking::Room(free), Input::Text(text)) => field.option == SIZE && is_larger(text, *free),
            (Lacking::Free(path), Input::New(text)) => path.ends_with(text.trim().trim_start_matches("~/")),
            _ => false,
        };
        here.then(|| lacking.sentence(texts))
    }

    /// The error at the warning until it is confirmed.
    pub fn asks_for_consent(&self, texts: &Texts) -> Option<String> {
        let lacks = self.lacking == Some(Lacking::Consent) && self.warning.is_some_and(|(_, agreed)| !agreed);
        lacks.then(|| Lacking::Consent.sentence(texts))
    }

    /// The command to start.
    ///
    /// # Errors
    /// What is lacking.
    pub fn call(&self, home: &Path) -> Result<Call, Lacking> {
        self.call_with(&|_| true, home)
    }

    /// The same with only those fields whose options are `wanted`.
    ///
    /// # Errors
    /// As above.
    pub fn call_with(&self, wanted: &dyn Fn(&str) -> bool, home: &Path) -> Result<Call, Lacking> {
        let mut call = Call::new(&self.words);
        let mut behind = Vec::new();
        for field in self.fields.iter().filter(|field| wanted(field.option)) {
            let beside = field.option.replace("password-fd", "keyfile");
            let keyfiles_alone = |other: &Field| other.option == beside && !other.is_empty();
            match &field.input {
                Input::NewSecret(secret, again) if !secret.same_as(again) => return Err(Lacking::Repetition),
                Input::Secret(secret) | Input::NewSecret(secret, _) if !secret.is_empty() => {
                    call = call.secret(field.option, &secret.secret());
                }
                Input::Secret(_) | Input::NewSecret(..) if self.fields.iter().any(keyfiles_alone) => {
                    call.words.push(field.option.replace("password-fd", "password").replace("--", "--no-").into());
                }
                _ if field.is_empty() && !field.optional => return Err(Lacking::Answer(field.label)),
                _ if field.option.is_empty() => behind.extend(field.words(home)),
                _ => call = call.with(field.words(home)),
            }
        }
        if self.warning.is_some_and(|(_, agreed)| !agreed) {
            return Err(Lacking::Consent);
        }
        Ok(call.with(self.volume.iter().map(|path| path.as_os_str().to_owned()).chain(behind)))
    }
}

/// This path, or a similar one that does not exist.
pub fn unused(path: PathBuf) -> PathBuf {
    let (stem, end) = (path.file_stem().unwrap_or_default(), path.extension().unwrap_or_default());
    let (stem, end) = (stem.to_string_lossy(), end.to_string_lossy());
    let end = if end.is_empty() { String::new() } else { format!(".{end}") };
    let others = (2..1000).map(|number| path.with_file_name(format!("{stem}-{number}{end}")));
    std::iter::once(path.clone()).chain(others).find(|path| !path.exists()).unwrap_or(path.clone())
}

/// The option for a volume's size.
pub const SIZE: &str = "--size";

/// Whether this size, as `claviger` understands it, is above a limit in bytes. What is not a size is for `claviger` to refuse.
pub fn is_larger(text: &str, limit: u64) -> bool {
    let text = text.trim().to_ascii_uppercase();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let power = unit.trim().chars().next().map_or(Some(0), |first| "BKMGT".find(first)).unwrap_or_default();
    let thousand = if unit.trim().len() == 2 { 1000_f64 } else { 1024.0 };
    number.parse::<f64>().is_ok_and(|number| number * thousand.powi(power as i32) > limit as f64)
}

/// The path that was typed: below `home` unless it is absolute.
pub fn absolute(text: &str, home: &Path) -> PathBuf {
    let text = text.trim();
    home.join(text.strip_prefix("~/").unwrap_or(text))
}

#[cfg(test)]
#[path = "../tests/values/form.rs"]
mod tests;

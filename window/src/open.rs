//! A chosen volume, as a value: its format, the form that opens it, and why it does not open.

use std::path::Path;

use serde_json::Value;

use crate::form::{Field, Form, Input, Lacking};
use crate::header::{self, Conversion, Header};
use crate::home::{AtHand, size};
use crate::program::{Call, Done};
use crate::secret_field::SecretField;
use crate::texts::Texts;

/// What a file or device is, without a password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The sentence for people.
    pub sentence: String,
    /// The format that it has, or may have.
    pub format: Option<String>,
    /// All formats that it may have, if it is not certain.
    pub candidates: Vec<String>,
    /// Whether it is an encrypted folder.
    pub folder: bool,
    /// Whether it does not begin like a volume, but a copy of the header may be there.
    pub beheaded: bool,
    /// Partitions that may hold a volume.
    pub partitions: Vec<Partition>,
}

/// A partition of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    pub number: u64,
    /// What is known of it.
    pub name: String,
    /// What it may be a volume of.
    pub formats: Vec<String>,
}

/// What `claviger identify` says of one.
pub fn verdict(identified: &Value, texts: &Texts) -> Verdict {
    // Of a disk image, what counts is the disk in it.
    let one = Some(&identified[0]["disk"]).filter(|disk| !disk.is_null()).unwrap_or(&identified[0]);
    let names =
        |value: &Value| value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let (mut candidates, by_header_copy): (Vec<_>, Vec<_>) = (names(&one["candidates"]), names(&one["by_header_copy"]));
    let beheaded = candidates.is_empty() && !by_header_copy.is_empty();
    if beheaded {
        candidates = by_header_copy;
    }
    let (sure, folder) = (one["verdict"] == "yes", one["size"].is_null());
    let partition = |found: &Value| {
        let formats: Vec<String> = names(&found["formats"]);
        let (number, len) = (found["number"].as_u64()?, found["len"].as_u64()?);
        let name = format!("{} {number}: {}, {}", texts.partition, size(len), formats.join(" / "));
        (!formats.is_empty()).then_some(Partition { number, name, formats })
    };
    let partitions: Vec<_> = one["partitions"].as_array().into_iter().flatten().filter_map(partition).collect();
    let what = candidates.join(" / ");
    let sentence = match (&candidates[..], sure, folder) {
        // The disk in an image could not be opened.
        _ if one["error"]["message"].is_string() => one["error"]["message"].as_str().unwrap_or_default().to_owned(),
        ([], ..) if !partitions.is_empty() => texts.is_disk.to_owned(),
        ([], _, true) => texts.is_plain_folder.to_owned(),
        ([], ..) if one["begins_random"] == true => texts.is_noise.to_owned(),
        ([], ..) => texts.is_nothing.to_owned(),
        _ if beheaded => texts.is_beheaded.replace("{}", &what),
        (_, true, true) => format!("{} {what}.", texts.is_folder),
        (_, true, false) => format!("{} {what}.", texts.is_surely),
        (_, false, _) => format!("{} {what}. {}", texts.is_maybe, texts.no_mark),
    };
    let format = candidates.first().cloned();
    let candidates = if sure { Vec::new() } else { candidates };
    Verdict { sentence, format, candidates, folder, beheaded, partitions }
}

impl Verdict {
    /// What is known of the partition that the options name, if they name one.
    #[must_use]
    pub fn of(self, options: &[String], texts: &Texts) -> Self {
        let number = header::partition(options).next().and_then(|option| option.split_once('=')?.1.parse().ok());
        let named = self.partitions.iter().find(|partition| Some(partition.number) == number);
        let Some(Partition { formats, .. }) = named else { return self };
        let sentence = format!("{} {}. {}", texts.is_maybe, formats.join(" / "), texts.no_mark);
        Self { sentence, format: formats.first().cloned(), candidates: formats.clone(), ..Self::default() }
    }

    /// The same with the format from the header, which is certain.
    fn with(self, header: Option<&Header>, texts: &Texts) -> Self {
        let Some(header) = header else { return self };
        Self {
            sentence: format!("{} {}.", texts.is_surely, header.format),
            format: Some(header.format.clone()),
            candidates: Vec::new(),
            beheaded: false,
            ..self
        }
    }
}

/// A volume that was chosen, and all that is known of it without a password.
#[derive(Clone, Debug)]
pub struct Volume {
    pub at: AtHand,
    pub verdict: Verdict,
    pub header: Option<Header>,
    /// An interrupted conversion from or to it.
    pub conversion: Option<Conversion>,
}

impl Volume {
    pub fn new(at: AtHand, verdict: Verdict, header: Option<Header>, home: &Path, texts: &Texts) -> Self {
        let verdict = verdict.with(header.as_ref(), texts);
        let conversion = header::conversion(&at.path, home);
        // Only this identifies a new, empty folder.
        let named = at.options.iter().find_map(|option| option.strip_prefix("--format="));
        let verdict = match (&verdict.format, named) {
            (None, Some(format)) => {
                let sentence = format!("{} {format}.", if verdict.folder { texts.is_folder } else { texts.is_surely });
                Verdict { sentence, format: Some(format.to_owned()), ..verdict }
            }
            _ => verdict,
        };
        Self { at, verdict, header, conversion }
    }

    /// Whether the page for changes supports it.
    pub fn changes(&self) -> bool {
        self.verdict.format.is_some() && !self.verdict.folder
    }

    /// Whether that page backs up its header.
    pub fn backs_up_header(&self) -> bool {
        let format = self.verdict.format.as_deref().unwrap_or_default();
        self.changes() && (format.starts_with("LUKS") || FAMILY.contains(&format))
    }

    /// Whether it is not a partition of a disk image: those are converted in place only as devices of their own.
    pub fn changes_in_place(&self) -> bool {
        header::partition(&self.at.options).next().is_none()
    }

    /// The interrupted operation to resume.
    pub fn half_way(&self, texts: &'static Texts) -> Option<&'static str> {
        match () {
            () if self.conversion.is_some() => Some(texts.conversion_half_way),
            () if self.header.as_ref().is_some_and(|header| header.half_way) => Some(texts.half_way),
            () => None,
        }
    }
}

/// The page of a volume that was chosen.
pub struct Open {
    pub volume: Volume,
    pub form: Form,
    /// Whether it is mounted and locked, so that it is unlocked instead.
    pub unlocks: bool,
    /// The error when it did not open.
    pub trouble: Option<String>,
    /// Whether the password was the reason.
    pub wrong: bool,
    pub explained: Option<Explained>,
    /// Whether the page must scroll there.
    pub reveal: bool,
}

/// Why it does not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    pub findings: Vec<String>,
    /// What to do, and the command for it.
    pub advice: Vec<(String, Option<String>)>,
    /// Whether the password opens it with capital and small letters swapped.
    pub caps_lock: bool,
}

/// Options that `claviger explain` and `claviger verify` take too.
const EXPLAINED: &[&str] = &["--password-fd", "--keyfile", "--pim", FORMAT, HASH];

/// Formats without a signature that have a backup header.
pub const FAMILY: [&str; 2] = ["TrueCrypt", "VeraCrypt"];

const FORMAT: &str = "--format";
const HASH: &str = "--hash";

/// Options of favourites that the form asks for itself.
const ASKED: &[&str] = &["--read-only", "--isolate-keys"];

/// A field that can be typed into at once.
fn focused() -> SecretField {
    let mut field = SecretField::default();
    field.focus = true;
    field
}

impl Open {
    pub fn new(volume: Volume, texts: &Texts) -> Self {
        let Verdict { folder, beheaded, .. } = volume.verdict;
        let options = &volume.at.options;
        let has = |option: &str| options.iter().any(|given| given == option);
        let mut fields = vec![
            Field::optional(texts.password, "--password-fd", Input::Secret(focused())),
            Field::more(texts.keyfiles, "--keyfile", Input::Paths(Vec::new())),
        ];
        if !folder {
            fields.push(Field::more(texts.pim, "--pim", Input::Text(String::new())));
        }
        fields.extend(hints(&volume, texts));
        fields.push(Field::more(texts.change_nothing, "--read-only", Input::Check(has("--read-only") || beheaded)));
        if !folder {
            // Keys can be forgotten while the volume stays mounted only if a separate process holds them.
            fields.push(Field::more(texts.can_be_locked, "--isolate-keys", Input::Check(true)));
            fields.push(Field::more(texts.protect_hidden, "--protect-hidden", Input::Check(false)));
            let hidden = Input::Secret(SecretField::default());
            fields
                .push(Field { optional: false, ..Field::more(texts.hidden_password, "--hidden-password-fd", hidden) });
            fields.push(Field::more(texts.hidden_keyfiles, "--hidden-keyfile", Input::Paths(Vec::new())));
        }
        let dir = volume.at.dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
        fields.push(Field::more(texts.place, "", Input::Folder(dir)));
        let form = Form::about(&volume.at.path, &["mount"], fields).said(texts.open_title, "", texts.mount);
        let rest = options.iter().filter(|option| !ASKED.contains(&option.as_str()));
        let form = Form { words: form.words.into_iter().chain(rest.map(Into::into)).collect(), ..form };
        Self { volume, form, unlocks: false, trouble: None, wrong: false, explained: None, reveal: false }
    }

    /// The same for a volume that is locked.
    pub fn unlocking(path: &Path, texts: &Texts) -> Self {
        let fields = vec![
            Field::optional(texts.password, "--password-fd", Input::Secret(focused())),
            Field::more(texts.keyfiles, "--keyfile", Input::Paths(Vec::new())),
            Field::more(texts.pim, "--pim", Input::Text(String::new())),
        ];
        let form = Form::about(path, &["unlock"], fields).said(texts.unlock_title, "", texts.unlock);
        let verdict =
            Verdict { sentence: texts.is_locked.to_owned(), format: Some(String::new()), ..Verdict::default() };
        let volume = Volume { at: AtHand::chosen(path), verdict, header: None, conversion: None };
        Self { volume, form, unlocks: true, trouble: None, wrong: false, explained: None, reveal: false }
    }

    /// Mounts it, or unlocks it.
    ///
    /// # Errors
    /// What is lacking.
    pub fn call(&self, home: &Path) -> Result<Call, Lacking> {
        let protects = self.form.ticked("--protect-hidden");
        let call = self.form.call_with(&|option| protects || !option.starts_with("--hidden-"), home)?;
        // A volume without a password is one whose password is empty.
        let password = call.secrets.iter().any(|(option, _)| *option == "--password-fd")
            || call.words.iter().any(|word| word == "--no-password");
        Ok(if password { call } else { call.secret("--password-fd", &SecretField::default().secret()) })
    }

    /// Searches for the reason why it does not open. Without a password in the field, only the bytes are examined.
    ///
    /// # Errors
    /// What is lacking.
    pub fn explain(&self, home: &Path) -> Result<Call, Lacking> {
        let (call, opens) = self.examine("explain", home)?;
        Ok(if opens { call } else { call.with(["--without-password"]) })
    }

    /// Checks all copies of its header, or all files of an encrypted folder.
    ///
    /// # Errors
    /// What is lacking.
    pub fn verify(&self, home: &Path) -> Result<Call, Lacking> {
        let (call, opens) = self.examine("verify", home)?;
        let password = self.form.field("--password-fd").map_or("", |field| field.label);
        opens.then_some(call).ok_or(Lacking::Answer(password))
    }

    /// A call that writes nothing, and whether a password or a keyfile is part of it.
    fn examine(&self, verb: &str, home: &Path) -> Result<(Call, bool), Lacking> {
        let mut call = self.form.call_with(&|option| EXPLAINED.contains(&option), home)?;
        call.words[0] = verb.into();
        let opens = !call.secrets.is_empty() || call.words.iter().any(|word| word == "--no-password");
        Ok((call, opens))
    }

    /// Reports a failed mount.
    pub fn failed(&mut self, done: &Done, texts: &Texts) {
        self.wrong = done.code == crate::program::WRONG_PASSWORD;
        let said = done.error.clone().unwrap_or_else(|| texts.failed.to_owned());
        self.trouble = Some(if self.wrong { texts.wrong_password.to_owned() } else { said });
        self.explained = None;
        self.form.try_again();
    }
}

/// What speeds up the search for the format of a volume without a signature, unless its favourite names it.
fn hints(volume: &Volume, texts: &Texts) -> Vec<Field> {
    let Volume { at, verdict, .. } = volume;
    if verdict.candidates.is_empty() {
        return Vec::new();
    }
    // Formats without a signature have their backup header at the end. Others find copies once they are named.
    let at_end = verdict.beheaded && verdict.candidates.iter().any(|format| FAMILY.contains(&&**format));
    let any = (!verdict.beheaded || at_end).then(|| (String::new(), texts.find_out.to_owned()));
    let formats = any.into_iter().chain(verdict.candidates.iter().map(|name| (name.clone(), name.clone()))).collect();
    let hash = Field::more(texts.hash, HASH, Input::Text(String::new()));
    let backup = at_end.then(|| Field::more(texts.by_backup, "--backup-header", Input::Check(true)));
    let hints = [
        Field::more(texts.format, FORMAT, Input::Choice(0, formats)),
        Field { hint: Some(texts.hash_hint.to_owned()), ..hash },
    ];
    let named = |field: &Field| at.options.iter().any(|option| option.split('=').next() == Some(field.option));
    backup.into_iter().chain(hints).filter(|field| !named(field)).collect()
}

/// The options to open a new volume that cannot be identified: an empty folder.
pub fn opened_with(created: &Value) -> Vec<String> {
    let options = created["opened_with"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    if !created["signatures"].is_array() {
        return Vec::new();
    }
    let format = created["format"].as_str().map(|format| format!("--format={format}"));
    format.into_iter().chain(options).collect()
}

/// What `claviger explain` says.
pub fn explained(done: &Done) -> Explained {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |name: &str| done.out[name].as_array().cloned().unwrap_or_default();
    let findings = list("findings").iter().filter_map(text).chain(done.error.clone()).collect();
    let advice = list("advice").iter().filter_map(|one| Some((text(&one["what"])?, text(&one["command"])))).collect();
    Explained { findings, advice, caps_lock: done.out["opens"]["caps_lock"] == true }
}

/// What `claviger verify` says: the damage, if there is any, and what to do about it.
pub fn verified(done: &Done, volume: &Volume, texts: &Texts) -> Explained {
    let list = |name: &str| done.out[name].as_array().cloned().unwrap_or_default();
    let about = |one: &Value, name: &str, what: &str| Some(format!("{}: {}", one[name].as_str()?, one[what].as_str()?));
    let (copies, problems) = (list("copies"), list("problems"));
    let damage = copies.iter().filter_map(|copy| about(copy, "name", "what"));
    let damage = damage.chain(problems.iter().filter_map(|problem| about(problem, "path", "problem")));
    let warnings = list("warnings").into_iter().filter_map(|warning| Some(warning.as_str()?.to_owned()));
    let (sentence, next) = match (done.out["damaged"] == true, volume.backs_up_header()) {
        (true, true) => (texts.is_damaged, texts.restore_header),
        (true, false) => (texts.is_damaged, texts.restore_files),
        (false, true) => (texts.is_sound, texts.copy_header),
        (false, false) => (texts.is_sound, texts.copy_files),
    };
    let findings = std::iter::once(sentence.to_owned()).chain(damage).chain(warnings).collect();
    Explained { findings, advice: vec![(next.to_owned(), None)], caps_lock: false }
}

#[cfg(test)]
#[path = "../tests/values/open.rs"]
mod tests;

//! The possible changes of a volume, as values: a form for each.

use std::ffi::OsString;
use std::path::Path;

use crate::create::{Choices, RECOVERY_KEY, RECOVERY_PASSWORD, hidden};
use crate::form::{Field, Form, Guessing, Input, unused};
use crate::header::{Conversion, Header, conversion, partition};
use crate::open::{FAMILY, Volume};
use crate::program::Done;
use crate::secret_field::SecretField;
use crate::texts::Texts;

pub struct Change {
    pub volume: Volume,
    pub forms: Vec<Form>,
    /// The one that is shown.
    pub shown: usize,
    /// The result of the last change: whether it succeeded, and its message.
    pub result: Option<(bool, Vec<String>)>,
    /// Whether the page must scroll there.
    pub reveal: bool,
}

impl Change {
    /// The possible changes of this volume. `all` are the formats into which it can be converted.
    pub fn new(volume: Volume, all: &[Choices], home: &Path, texts: &Texts) -> Self {
        Self { forms: forms(&volume, all, home, texts), volume, shown: 0, result: None, reveal: false }
    }

    pub fn form(&mut self) -> Option<&mut Form> {
        self.forms.get_mut(self.shown)
    }

    /// Shows how to change or to remove this keyslot.
    pub fn keyslot(&mut self, number: &str, remove: bool) {
        let (verb, option) = if remove { ("kill", "") } else { ("change", SLOT) };
        let Some(at) = self.forms.iter().position(|form| form.words.iter().any(|word| word == verb)) else { return };
        (self.shown, self.result) = (at, None);
        if let Some(Input::Choice(chosen, all)) = self.forms[at].field_mut(option).map(|field| &mut field.input) {
            *chosen = all.iter().position(|(said, _)| said == number).unwrap_or(0);
        }
    }

    /// Takes the result of a change, and the new header.
    pub fn finished(&mut self, done: &Done, header: Option<Header>, all: &[Choices], home: &Path, texts: &Texts) {
        let wrong = (done.code == crate::program::WRONG_PASSWORD).then(|| texts.wrong_password.to_owned());
        let failed = wrong.or(done.error.clone()).unwrap_or_else(|| texts.failed.to_owned());
        let mut lines = vec![if done.ok() { texts.done.to_owned() } else { failed }];
        let written = done.out["written"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
        lines.extend(written.map(str::to_owned));
        lines.extend(done.warnings.iter().cloned());
        (self.result, self.reveal) = (Some((done.ok(), lines)), true);
        if let (false, Some(form)) = (done.ok(), self.form()) {
            form.try_again();
        }
        let conversion = conversion(&self.volume.at.path, home);
        if done.ok() || header != self.volume.header || conversion != self.volume.conversion {
            let title = self.form().map(|form| form.title);
            self.volume = Volume { header, conversion, ..self.volume.clone() };
            self.forms = forms(&self.volume, all, home, texts);
            self.shown = self.forms.iter().position(|form| Some(form.title) == title).unwrap_or(0);
        }
    }
}

/// The option that names a keyslot.
const SLOT: &str = "--slot";

/// The option that names the format of a copy.
const NEW_FORMAT: &str = "--new-format";

fn forms(volume: &Volume, all: &[Choices], home: &Path, t: &Texts) -> Vec<Form> {
    let path = &*volume.at.path;
    let format = volume.verdict.format.as_deref().unwrap_or_default();
    let part: Vec<OsString> = partition(&volume.at.options).map(OsString::from).collect();
    let secret = |label, option| Field::new(label, option, Input::Secret(SecretField::default()));
    let new_secret =
        |label, option| Field::new(label, option, Input::NewSecret(SecretField::default(), SecretField::default()));
    let new_password = || new_secret(t.new_password, "--new-password-fd");
    let new_keyfiles = || Field::more(t.new_keyfiles, "--new-keyfile", Input::Paths(Vec::new()));
    let new_file = |label, end: &str| {
        let name = path.file_name().map_or_else(|| "volume".into(), |name| name.to_string_lossy());
        Field::new(label, "", Input::New(unused(home.join(format!("{name}.{end}"))).display().to_string()))
    };
    let (luks, bitlocker) = (format.starts_with("LUKS"), format == "BitLocker");
    let family = FAMILY.contains(&format);
    let numbers: Vec<_> =
        volume.header.iter().flat_map(|header| &header.keyslots).map(|slot| slot.number.clone()).collect();
    let which = |any: Option<&str>, option| {
        let all = any.into_iter().map(|any| (String::new(), any.to_owned()));
        let all = all.chain(numbers.iter().map(|number| (number.clone(), number.clone()))).collect();
        Field { optional: any.is_some(), ..Field::new(t.keyslot, option, Input::Choice(0, all)) }
    };
    let opens = |mut fields: Vec<Field>| {
        fields.insert(0, secret(t.password, "--password-fd"));
        fields.push(Field::more(t.keyfiles, "--keyfile", Input::Paths(Vec::new())));
        fields.extend(family.then(|| Field::more(t.pim, "--pim", Input::Text(String::new()))));
        fields
    };
    let mut forms = Vec::new();
    let mut add = |wanted: bool, words: &[&str], fields: Vec<Field>, said: [&'static str; 3], warning: &'static str| {
        let form = Form::about(path, words, fields).said(said[0], said[1], said[2]);
        let form = if warning.is_empty() { form } else { form.warns(warning) };
        forms.extend(wanted.then(|| Form { words: form.words.iter().chain(&part).cloned().collect(), ..form }));
    };
    let half_way = volume.header.as_ref().is_some_and(|header| header.half_way);
    if let Some(Conversion { destination, format, .. }) = &volume.conversion {
        let to = Field::new(t.new_file, "", Input::New(destination.display().to_string()));
        let words = format.as_ref().map_or(vec!["--raw"], |format| vec!["--new-format", format]);
        let new = format.as_ref().map(|_| secret(t.new_password, "--new-password-fd"));
        let fields = opens(new.into_iter().chain([to]).collect());
        add(
            true,
            &[&["convert", "--resume"], &*words].concat(),
            fields,
            [t.go_on_converting, t.conversion_half_way, t.go_on],
            "",
        );
    }
    let whole = volume.changes_in_place();
    add(half_way && whole, &["reencrypt", "--resume"], opens(Vec::new()), [t.go_on_title, t.half_way, t.go_on], "");
    let mut fields = vec![new_password(), new_keyfiles()];
    if numbers.len() > 1 {
        fields.insert(0, which(Some(t.which_opens), SLOT));
    }
    add(
        luks || bitlocker || family,
        &["change"],
        opens(fields),
        [t.change_password, t.change_explanation, t.change],
        "",
    );
    let slots = luks || bitlocker;
    let said = [t.add_password, t.add_explanation, t.add];
    add(slots, &["keyslot", "add"], opens(vec![new_password(), new_keyfiles()]), said, "");
    let option = if bitlocker { RECOVERY_PASSWORD } else { RECOVERY_KEY };
    let file = Field { option, ..new_file(t.recovery_file, "recovery.txt") };
    let said = [t.add_recovery, t.recovery_explanation, t.add];
    add(format == "LUKS2" || bitlocker, &["keyslot", "add"], opens(vec![file]), said, "");
    let said = [t.remove_password, t.remove_explanation, t.remove];
    add(slots, &["keyslot", "remove", "--yes"], opens(Vec::new()), said, t.remove_warning);
    let said = [t.remove_keyslot, t.kill_explanation, t.remove];
    add(numbers.len() > 1, &["keyslot", "kill", "--yes"], opens(vec![which(None, "")]), said, t.remove_warning);
    let mut backup = if family { opens(Vec::new()) } else { Vec::new() };
    backup.push(new_file(t.backup_file, "header"));
    add(volume.backs_up_header(), &["header", "backup"], backup, [t.backup, t.backup_explanation, t.save], "");
    let restore = opens(vec![Field::new(t.backup_file, "--from", Input::Existing(String::new()))]);
    let said = [t.restore, t.restore_explanation, t.restore_button];
    add(volume.backs_up_header(), &["header", "restore", "--yes"], restore, said, t.restore_warning);
    // An encrypted folder is not a volume, so no copy can go into it.
    let all: Vec<&Choices> = all.iter().filter(|choices| !choices.folder).collect();
    let same = all.iter().position(|choices| choices.format == format);
    let formats = all.iter().map(|choices| (choices.format.clone(), choices.format.clone())).collect();
    let formats = Field::new(t.format, NEW_FORMAT, Input::Choice(same.unwrap_or(0), formats));
    let convert = opens(vec![new_file(t.new_file, "new"), formats, new_password()]);
    add(!all.is_empty(), &["convert"], convert, [t.convert, t.convert_explanation, t.convert_button], "");
    let cipher = Field::optional(t.cipher, "--new-cipher", Input::Text(String::new()));
    let said = [t.reencrypt, t.reencrypt_explanation, t.begin];
    let again = format == "LUKS2" && whole && !half_way;
    add(again, &["reencrypt", "--yes"], opens(vec![cipher]), said, t.reencrypt_warning);
    if family && whole {
        forms.push(hidden(path, t));
    }
    // The hash of a volume is only known once it is open: the default stands for it.
    let rate = |choices: &Choices| choices.guesses_per_second.first().copied();
    for form in &mut forms {
        form.guessing = match form.field(NEW_FORMAT) {
            Some(_) => {
                let per_second = all.iter().copied().map(rate).collect();
                Guessing { per_second, by: NEW_FORMAT, unless: &[] }
            }
            None => {
                let per_second = vec![same.and_then(|at| rate(all[at]))];
                Guessing { per_second, by: "", unless: &["--new-keyfile", "--hidden-keyfile", "--pim"] }
            }
        };
    }
    forms
}

#[cfg(test)]
#[path = "../tests/values/change.rs"]
mod tests;

//! What can be changed of a volume, as values: a form for each.

use std::path::{Path, PathBuf};

use crate::create::{Choices, hidden};
use crate::form::{Field, Form, Input, unused};
use crate::program::Done;
use crate::secret_field::SecretField;
use crate::texts::Texts;

pub struct Change {
    pub path: PathBuf,
    pub format: String,
    pub forms: Vec<Form>,
    /// The one that is shown.
    pub shown: usize,
    /// What the last one came to: whether it went well, and what there is to say.
    pub result: Option<(bool, Vec<String>)>,
}

impl Change {
    /// What can be changed of a volume of this format. `all` are the formats that it can be converted into.
    pub fn new(path: &Path, format: &str, all: &[Choices], home: &Path, texts: &Texts) -> Self {
        Self {
            path: path.to_owned(),
            format: format.to_owned(),
            forms: forms(path, format, all, home, texts),
            shown: 0,
            result: None,
        }
    }

    pub fn form(&mut self) -> Option<&mut Form> {
        self.forms.get_mut(self.shown)
    }

    /// Takes what it came to.
    pub fn finished(&mut self, done: &Done, texts: &Texts) {
        let wrong = (done.code == crate::program::WRONG_PASSWORD).then(|| texts.wrong_password.to_owned());
        let failed = wrong.or(done.error.clone()).unwrap_or_else(|| texts.failed.to_owned());
        let mut lines = vec![if done.ok() { texts.done.to_owned() } else { failed }];
        let written = done.out["written"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
        lines.extend(written.map(str::to_owned));
        lines.extend(done.warnings.iter().cloned());
        self.result = Some((done.ok(), lines));
        if done.ok() {
            self.forms.iter_mut().for_each(Form::forget);
        }
    }
}

fn forms(path: &Path, format: &str, all: &[Choices], home: &Path, t: &Texts) -> Vec<Form> {
    let password = || Field::new(t.password, "--password-fd", Input::Secret(SecretField::default()));
    let keyfiles = || Field::more(t.keyfiles, "--keyfile", Input::Paths(Vec::new()));
    let pim = || Field::more(t.pim, "--pim", Input::Text(String::new()));
    let new = || {
        Field::new(
            t.new_password,
            "--new-password-fd",
            Input::NewSecret(SecretField::default(), SecretField::default()),
        )
    };
    let new_keyfiles = || Field::more(t.new_keyfiles, "--new-keyfile", Input::Paths(Vec::new()));
    let new_file = |label, end: &str| {
        let name = path.file_name().map_or_else(|| "volume".into(), |name| name.to_string_lossy());
        Field::new(label, "", Input::New(unused(home.join(format!("{name}.{end}"))).display().to_string()))
    };
    let (luks, bitlocker) = (format.starts_with("LUKS"), format == "BitLocker");
    let family = ["TrueCrypt", "VeraCrypt"].contains(&format);
    let opens = |mut fields: Vec<Field>| {
        fields.insert(0, password());
        fields.push(keyfiles());
        fields.extend(family.then(pim));
        fields
    };
    let mut forms = Vec::new();
    let mut add =
        |wanted: bool, words: &[&str], fields: Vec<Field>, said: [&'static str; 3], warning: Option<&'static str>| {
            if wanted {
                let form = Form::about(path, words, fields).said(said[0], said[1], said[2]);
                forms.push(warning.into_iter().fold(form, Form::warns));
            }
        };
    let known = luks || bitlocker || family;
    add(
        known,
        &["change"],
        opens(vec![new(), new_keyfiles()]),
        [t.change_password, t.change_explanation, t.change],
        None,
    );
    add(
        luks || bitlocker,
        &["keyslot", "add"],
        opens(vec![new(), new_keyfiles()]),
        [t.add_password, t.add_explanation, t.add],
        None,
    );
    let option = if bitlocker { "--recovery-password-file" } else { "--recovery-key-file" };
    let file = Field { option, ..new_file(t.recovery_file, "recovery.txt") };
    add(
        format == "LUKS2" || bitlocker,
        &["keyslot", "add"],
        opens(vec![file]),
        [t.add_recovery, t.recovery_explanation, t.add],
        None,
    );
    let (remove, words) = ([t.remove_password, t.remove_explanation, t.remove], ["keyslot", "remove", "--yes"]);
    add(luks || bitlocker, &words, opens(Vec::new()), remove, Some(t.remove_warning));
    let mut backup = if family { opens(Vec::new()) } else { Vec::new() };
    backup.push(new_file(t.backup_file, "header"));
    add(luks || family, &["header", "backup"], backup, [t.backup, t.backup_explanation, t.save], None);
    let restore = opens(vec![Field::new(t.backup_file, "--from", Input::Existing(String::new()))]);
    add(
        luks || family,
        &["header", "restore", "--yes"],
        restore,
        [t.restore, t.restore_explanation, t.restore_button],
        Some(t.restore_warning),
    );
    let same = all.iter().position(|choices| choices.format == format);
    let formats = all.iter().map(|choices| (choices.format.clone(), choices.format.clone())).collect();
    let convert = opens(vec![
        new_file(t.new_file, "new"),
        Field::new(t.format, "--new-format", Input::Choice(same.unwrap_or(0), formats)),
        new(),
        Field::optional(t.resume, "--resume", Input::Check(false)),
    ]);
    add(!all.is_empty(), &["convert"], convert, [t.convert, t.convert_explanation, t.convert_button], None);
    let reencrypt = vec![
        password(),
        Field::optional(t.cipher, "--new-cipher", Input::Text(String::new())),
        Field::optional(t.resume, "--resume", Input::Check(false)),
    ];
    add(
        format == "LUKS2",
        &["reencrypt", "--yes"],
        reencrypt,
        [t.reencrypt, t.reencrypt_explanation, t.begin],
        Some(t.reencrypt_warning),
    );
    if family {
        forms.push(hidden(path, t));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::texts::ENGLISH;

    fn all() -> Vec<Choices> {
        ["LUKS2", "VeraCrypt"].map(|format| Choices { format: format.into(), ciphers: vec![], hashes: vec![] }).to_vec()
    }

    fn titles(format: &str) -> Vec<&'static str> {
        Change::new(Path::new("/v"), format, &all(), Path::new("/h"), &ENGLISH)
            .forms
            .iter()
            .map(|form| form.title)
            .collect()
    }

    #[test]
    fn each_format_has_what_it_can() {
        let t = &ENGLISH;
        assert_eq!(titles("VeraCrypt"), [t.change_password, t.backup, t.restore, t.convert, t.hidden_title]);
        let luks2 = [
            t.change_password,
            t.add_password,
            t.add_recovery,
            t.remove_password,
            t.backup,
            t.restore,
            t.convert,
            t.reencrypt,
        ];
        assert_eq!(titles("LUKS2"), luks2);
        assert_eq!(
            titles("BitLocker"),
            [t.change_password, t.add_password, t.add_recovery, t.remove_password, t.convert]
        );
        assert_eq!(titles("FileVault2"), [t.convert]);
    }

    #[test]
    fn answers_become_the_words_of_each_verb() {
        let mut change = Change::new(Path::new("/v"), "LUKS2", &all(), Path::new("/h"), &ENGLISH);
        let mut calls = Vec::new();
        for form in &mut change.forms {
            for field in &mut form.fields {
                match &mut field.input {
                    Input::Secret(secret) => secret.push("a"),
                    Input::NewSecret(first, again) => [first, again].into_iter().for_each(|secret| secret.push("b")),
                    Input::Existing(path) => *path = "/backup".into(),
                    _ => {}
                }
            }
            form.warning = form.warning.map(|(text, _)| (text, true));
            calls.push(form.call(Path::new("/h")).expect("nothing lacks"));
        }
        let told: Vec<_> =
            calls.iter().map(|call| format!("{} ({})", call.text().join(" "), call.secrets.len())).collect();
        let expected = [
            "change /v (2)",
            "keyslot add /v (2)",
            "keyslot add --recovery-key-file /h/v.recovery.txt /v (1)",
            "keyslot remove --yes /v (1)",
            "header backup /v /h/v.header (0)",
            "header restore --yes --from /backup /v (1)",
            "convert --new-format LUKS2 /v /h/v.new (2)",
            "reencrypt --yes /v (1)",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn passwords_are_forgotten_once_it_is_done() {
        let mut change = Change::new(Path::new("/v"), "LUKS2", &all(), Path::new("/h"), &ENGLISH);
        let typed = |change: &mut Change| match &mut change.form().expect("a form").fields[0].input {
            Input::Secret(secret) => {
                let empty = secret.is_empty();
                secret.push("x");
                !empty
            }
            _ => panic!("a password comes first"),
        };
        assert!(!typed(&mut change));
        change.finished(&Done { code: 2, ..Done::default() }, &ENGLISH);
        assert!(typed(&mut change), "it can be corrected");
        change.finished(&Done::default(), &ENGLISH);
        assert!(!typed(&mut change));
    }
}

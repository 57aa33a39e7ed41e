//! What can be changed of a volume, as values: a form for each.

use std::ffi::OsString;
use std::path::Path;

use crate::create::{Choices, hidden};
use crate::form::{Field, Form, Input, unused};
use crate::header::{Conversion, Header, conversion, partition};
use crate::open::Volume;
use crate::program::Done;
use crate::secret_field::SecretField;
use crate::texts::Texts;

pub struct Change {
    pub volume: Volume,
    pub forms: Vec<Form>,
    /// The one that is shown.
    pub shown: usize,
    /// What the last one came to: whether it went well, and what there is to say.
    pub result: Option<(bool, Vec<String>)>,
}

impl Change {
    /// What can be changed of this volume. `all` are the formats that it can be converted into.
    pub fn new(volume: Volume, all: &[Choices], home: &Path, texts: &Texts) -> Self {
        Self { forms: forms(&volume, all, home, texts), volume, shown: 0, result: None }
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

    /// Takes what it came to, and what its header says since.
    pub fn finished(&mut self, done: &Done, header: Option<Header>, all: &[Choices], home: &Path, texts: &Texts) {
        let wrong = (done.code == crate::program::WRONG_PASSWORD).then(|| texts.wrong_password.to_owned());
        let failed = wrong.or(done.error.clone()).unwrap_or_else(|| texts.failed.to_owned());
        let mut lines = vec![if done.ok() { texts.done.to_owned() } else { failed }];
        let written = done.out["written"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
        lines.extend(written.map(str::to_owned));
        lines.extend(done.warnings.iter().cloned());
        self.result = Some((done.ok(), lines));
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
    let family = ["TrueCrypt", "VeraCrypt"].contains(&format);
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
    // What goes over the whole volume in place takes no partition of a disk.
    let whole = part.is_empty();
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
    let option = if bitlocker { "--recovery-password-file" } else { "--recovery-key-file" };
    let file = Field { option, ..new_file(t.recovery_file, "recovery.txt") };
    let said = [t.add_recovery, t.recovery_explanation, t.add];
    add(format == "LUKS2" || bitlocker, &["keyslot", "add"], opens(vec![file]), said, "");
    let said = [t.remove_password, t.remove_explanation, t.remove];
    add(slots, &["keyslot", "remove", "--yes"], opens(Vec::new()), said, t.remove_warning);
    let said = [t.remove_keyslot, t.kill_explanation, t.remove];
    add(numbers.len() > 1, &["keyslot", "kill", "--yes"], opens(vec![which(None, "")]), said, t.remove_warning);
    let mut backup = if family { opens(Vec::new()) } else { Vec::new() };
    backup.push(new_file(t.backup_file, "header"));
    add(luks || family, &["header", "backup"], backup, [t.backup, t.backup_explanation, t.save], "");
    let restore = opens(vec![Field::new(t.backup_file, "--from", Input::Existing(String::new()))]);
    let said = [t.restore, t.restore_explanation, t.restore_button];
    add(luks || family, &["header", "restore", "--yes"], restore, said, t.restore_warning);
    let same = all.iter().position(|choices| choices.format == format);
    let formats = all.iter().map(|choices| (choices.format.clone(), choices.format.clone())).collect();
    let formats = Field::new(t.format, "--new-format", Input::Choice(same.unwrap_or(0), formats));
    let convert = opens(vec![new_file(t.new_file, "new"), formats, new_password()]);
    add(!all.is_empty(), &["convert"], convert, [t.convert, t.convert_explanation, t.convert_button], "");
    let cipher = Field::optional(t.cipher, "--new-cipher", Input::Text(String::new()));
    let said = [t.reencrypt, t.reencrypt_explanation, t.begin];
    let again = format == "LUKS2" && whole && !half_way;
    add(again, &["reencrypt", "--yes"], opens(vec![cipher]), said, t.reencrypt_warning);
    if family && whole {
        forms.push(hidden(path, t));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Keyslot;
    use crate::home::AtHand;
    use crate::open::Verdict;
    use crate::texts::ENGLISH;

    fn all() -> Vec<Choices> {
        ["LUKS2", "VeraCrypt"].map(|format| Choices { format: format.into(), ciphers: vec![], hashes: vec![] }).to_vec()
    }

    fn volume(format: &str, keyslots: &[&str], half_way: bool) -> Volume {
        let slot = |number: &&str| Keyslot { number: (*number).to_owned(), ..Keyslot::default() };
        let header = Header { format: format.into(), keyslots: keyslots.iter().map(slot).collect(), half_way };
        let verdict = Verdict { format: Some(format.into()), ..Verdict::default() };
        Volume { at: AtHand::chosen(Path::new("/v")), verdict, header: Some(header), conversion: None }
    }

    fn change(volume: Volume) -> Change {
        Change::new(volume, &all(), Path::new("/h"), &ENGLISH)
    }

    fn titles(volume: Volume) -> Vec<&'static str> {
        change(volume).forms.iter().map(|form| form.title).collect()
    }

    /// What each form comes to, and how many secrets go with it.
    fn calls(mut change: Change) -> Vec<String> {
        let each = |form: &mut Form| {
            for field in &mut form.fields {
                match &mut field.input {
                    Input::Secret(secret) => secret.push("a"),
                    Input::NewSecret(first, again) => [first, again].into_iter().for_each(|secret| secret.push("b")),
                    Input::Existing(path) => *path = "/backup".into(),
                    _ => {}
                }
            }
            form.warning = form.warning.map(|(text, _)| (text, true));
            let call = form.call(Path::new("/h")).expect("nothing lacks");
            format!("{} ({})", call.text().join(" "), call.secrets.len())
        };
        change.forms.iter_mut().map(each).collect()
    }

    #[test]
    fn each_format_has_what_it_can() {
        let t = &ENGLISH;
        let volume = |format| volume(format, &["0", "1"], false);
        let mut veracrypt = volume("VeraCrypt");
        veracrypt.header = None;
        assert_eq!(titles(veracrypt), [t.change_password, t.backup, t.restore, t.convert, t.hidden_title]);
        let slots = [t.change_password, t.add_password, t.add_recovery, t.remove_password, t.remove_keyslot];
        let luks2 = [&slots[..], &[t.backup, t.restore, t.convert, t.reencrypt]].concat();
        assert_eq!(titles(volume("LUKS2")), luks2);
        assert_eq!(titles(volume("BitLocker")), [&slots[..], &[t.convert]].concat());
        assert_eq!(titles(Volume { header: None, ..volume("FileVault2") }), [t.convert]);
    }

    #[test]
    fn answers_become_the_words_of_each_verb() {
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
        assert_eq!(calls(change(volume("LUKS2", &["0"], false))), expected);
        // In a partition of a disk.
        let mut volume = volume("LUKS2", &["0"], false);
        volume.at.options = vec!["--partition=2".into(), "--read-only".into()];
        let told = calls(change(volume));
        assert_eq!(
            (&*told[0], &*told[4]),
            ("change --partition=2 /v (2)", "header backup --partition=2 /v /h/v.header (0)")
        );
        assert!(told.iter().all(|call| call.contains("--partition=2") && !call.contains("reencrypt")), "{told:?}");
    }

    #[test]
    fn a_keyslot_is_changed_or_removed_by_its_number() {
        let mut change = change(volume("LUKS2", &["0", "4"], false));
        change.keyslot("4", false);
        assert_eq!((change.shown, change.forms[0].title), (0, ENGLISH.change_password));
        change.keyslot("4", true);
        assert_eq!(change.form().expect("a form").title, ENGLISH.remove_keyslot);
        let told = calls(change);
        assert_eq!((&*told[0], &*told[4]), ("change --slot 4 /v (2)", "keyslot kill --yes /v 4 (1)"));
    }

    #[test]
    fn what_was_interrupted_comes_first() {
        let told = calls(change(volume("LUKS2", &["0"], true)));
        assert!(
            told[0] == "reencrypt --resume /v (1)" && !told.contains(&"reencrypt --yes /v (1)".to_owned()),
            "{told:?}"
        );
        let into = |format: Option<&str>| {
            let (source, destination) = ("/v".into(), "/x/new".into());
            let conversion = Some(Conversion { source, destination, format: format.map(str::to_owned) });
            calls(change(Volume { conversion, ..volume("LUKS2", &["0"], false) })).remove(0)
        };
        assert_eq!(into(Some("VeraCrypt")), "convert --resume --new-format VeraCrypt /v /x/new (2)");
        assert_eq!(into(None), "convert --resume --raw /v /x/new (1)");
    }

    #[test]
    fn passwords_are_forgotten_once_it_is_done() {
        let mut change = change(volume("LUKS2", &["0"], false));
        let header = change.volume.header.clone();
        let finish = |change: &mut Change, code| {
            change.finished(&Done { code, ..Done::default() }, header.clone(), &all(), Path::new("/h"), &ENGLISH);
        };
        let typed = |change: &mut Change| match &mut change.form().expect("a form").fields[0].input {
            Input::Secret(secret) => {
                let empty = secret.is_empty();
                secret.push("x");
                !empty
            }
            _ => panic!("a password comes first"),
        };
        assert!(!typed(&mut change));
        finish(&mut change, 2);
        assert!(typed(&mut change), "it can be corrected");
        finish(&mut change, 0);
        assert!(!typed(&mut change));
    }
}

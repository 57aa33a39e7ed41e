//! A volume that was chosen, as a value: what it is, what is asked to open it, and why it does not open.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::form::{Field, Form, Input, Lacking};
use crate::home::size;
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
    /// Whether it is certain.
    pub sure: bool,
    /// Whether its files are encrypted one by one.
    pub folder: bool,
    /// Partitions that may hold a volume: number and what is known of it.
    pub partitions: Vec<(String, String)>,
}

impl Verdict {
    /// Whether a password is worth trying.
    pub fn promising(&self) -> bool {
        self.format.is_some() || !self.partitions.is_empty()
    }

    /// Whether the page for changes knows it: no folder, and no partition.
    pub fn changes(&self) -> bool {
        self.format.is_some() && self.partitions.is_empty() && !self.folder
    }
}

/// What `claviger identify` says of one.
pub fn verdict(identified: &Value, texts: &Texts) -> Verdict {
    let one = &identified[0];
    let names =
        |value: &Value| value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let candidates: Vec<String> = names(&one["candidates"]);
    let (sure, folder) = (one["verdict"] == "yes", one["size"].is_null());
    let partition = |found: &Value| {
        let formats: Vec<String> = names(&found["formats"]);
        let (number, len) = (found["partition"]["number"].as_u64()?, found["partition"]["len"].as_u64()?);
        (!formats.is_empty()).then(|| (number.to_string(), format!("{number}: {}, {}", size(len), formats.join(" / "))))
    };
    let partitions: Vec<_> = one["partitions"].as_array().into_iter().flatten().filter_map(partition).collect();
    let what = candidates.join(" / ");
    let sentence = match (&candidates[..], sure, folder) {
        ([], ..) if !partitions.is_empty() => texts.is_disk.to_owned(),
        ([], _, true) => texts.is_plain_folder.to_owned(),
        ([], ..) if one["begins_random"] == true => texts.is_noise.to_owned(),
        ([], ..) => texts.is_nothing.to_owned(),
        (_, true, true) => format!("{} {what}.", texts.is_folder),
        (_, true, false) => format!("{} {what}.", texts.is_surely),
        (_, false, _) => format!("{} {what}. {}", texts.is_maybe, texts.no_mark),
    };
    Verdict { sentence, format: candidates.into_iter().next(), sure, folder, partitions }
}

/// A volume that was chosen.
pub struct Open {
    pub path: PathBuf,
    pub verdict: Verdict,
    pub form: Form,
    /// Whether it is mounted already and its keys are to come back.
    pub unlocks: bool,
    /// What was said when it did not open.
    pub trouble: Option<String>,
    /// Whether it was the password.
    pub wrong: bool,
    pub explained: Option<Explained>,
}

/// Why it does not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    pub findings: Vec<String>,
    /// What to do, and the command for it.
    pub advice: Vec<(String, Option<String>)>,
}

/// Options that `claviger explain` takes too.
const EXPLAINED: &[&str] = &["--password-fd", "--keyfile", "--pim", "--partition"];

/// Options of favourites that the form asks for itself.
const ASKED: &[&str] = &["--read-only", "--isolate-keys"];

/// A field that can be typed into at once.
fn focused() -> SecretField {
    let mut field = SecretField::default();
    field.focus = true;
    field
}

impl Open {
    /// `dir` is where it is mounted unless another folder is named; `options` are a favourite's.
    pub fn new(path: &Path, verdict: Verdict, dir: &Path, options: &[String], texts: &Texts) -> Self {
        let has = |option: &str| options.iter().any(|given| given == option);
        let mut fields = vec![Field::optional(texts.password, "--password-fd", Input::Secret(focused()))];
        if !verdict.partitions.is_empty() {
            fields.push(Field::new(texts.partition, "--partition", Input::Choice(0, verdict.partitions.clone())));
        }
        fields.push(Field::more(texts.keyfiles, "--keyfile", Input::Paths(Vec::new())));
        if !verdict.folder {
            fields.push(Field::more(texts.pim, "--pim", Input::Text(String::new())));
        }
        fields.push(Field::more(texts.change_nothing, "--read-only", Input::Check(has("--read-only"))));
        if !verdict.folder {
            // Only keys of a process of their own can be forgotten while the volume stays mounted.
            fields.push(Field::more(texts.can_be_locked, "--isolate-keys", Input::Check(true)));
            fields.push(Field::more(texts.protect_hidden, "--protect-hidden", Input::Check(false)));
            fields.push(Field::more(
                texts.hidden_password,
                "--hidden-password-fd",
                Input::Secret(SecretField::default()),
            ));
        }
        fields.push(Field::more(texts.place, "", Input::Existing(dir.display().to_string())));
        let form = Form::about(path, &["mount"], fields).said(texts.open_title, "", texts.mount);
        let rest = options.iter().filter(|option| !ASKED.contains(&option.as_str()));
        let form = Form { words: form.words.into_iter().chain(rest.map(Into::into)).collect(), ..form };
        Self { path: path.to_owned(), verdict, form, unlocks: false, trouble: None, wrong: false, explained: None }
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
        Self { path: path.to_owned(), verdict, form, unlocks: true, trouble: None, wrong: false, explained: None }
    }

    /// Mounts it, or unlocks it.
    ///
    /// # Errors
    /// What is lacking.
    pub fn call(&self, home: &Path) -> Result<Call, Lacking> {
        let protects = self.form.ticked("--protect-hidden");
        let call = self.form.call_with(&|option| protects || option != "--hidden-password-fd", home)?;
        // A volume without a password is one whose password is empty.
        let password = call.secrets.iter().any(|(option, _)| *option == "--password-fd")
            || call.words.iter().any(|word| word == "--no-password");
        Ok(if password { call } else { call.secret("--password-fd", &SecretField::default().secret()) })
    }

    /// Where it is to be mounted.
    pub fn dir(&self, home: &Path) -> PathBuf {
        crate::form::absolute(self.form.text(""), home)
    }

    /// Looks for what keeps it from opening. Without a password in the field the bytes alone are examined.
    ///
    /// # Errors
    /// What is lacking.
    pub fn explain(&self, home: &Path) -> Result<Call, Lacking> {
        let mut call = self.form.call_with(&|option| EXPLAINED.contains(&option), home)?;
        call.words[0] = "explain".into();
        let given = !call.secrets.is_empty() || call.words.iter().any(|word| word == "--no-password");
        Ok(if given { call } else { call.with(["--without-password"]) })
    }

    /// Says what mounting it came to, which failed.
    pub fn failed(&mut self, done: &Done, texts: &Texts) {
        self.wrong = done.code == crate::program::WRONG_PASSWORD;
        let said = done.error.clone().unwrap_or_else(|| texts.failed.to_owned());
        self.trouble = Some(if self.wrong { texts.wrong_password.to_owned() } else { said });
        self.explained = None;
        // The next attempt needs no search for the field.
        if let Some(Field { input: Input::Secret(password), .. }) = self.form.field_mut("--password-fd") {
            password.focus = true;
        }
    }
}

/// What `claviger explain` says.
pub fn explained(done: &Done) -> Explained {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |name: &str| done.out[name].as_array().cloned().unwrap_or_default();
    let findings = list("findings").iter().filter_map(text).chain(done.error.clone()).collect();
    let advice = list("advice").iter().filter_map(|one| Some((text(&one["what"])?, text(&one["command"])))).collect();
    Explained { findings, advice }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::texts::ENGLISH;
    use serde_json::json;

    fn told(one: Value) -> Verdict {
        verdict(&json!([one]), &ENGLISH)
    }

    #[test]
    fn what_a_file_is() {
        let luks = told(json!({"size": 1, "verdict": "yes", "candidates": ["LUKS2"]}));
        assert!(luks.sure && luks.promising() && luks.changes() && luks.sentence.ends_with("LUKS2."), "{luks:?}");
        let noise = told(json!({"size": 1, "verdict": "possible", "candidates": ["TrueCrypt", "VeraCrypt"]}));
        assert!(!noise.sure && noise.sentence.contains("TrueCrypt / VeraCrypt"), "{noise:?}");
        let nothing = told(json!({"size": 1, "verdict": "no", "candidates": []}));
        assert!(!nothing.promising() && nothing.sentence == ENGLISH.is_nothing);
        let partition = json!({"partition": {"number": 2, "len": 1 << 30}, "formats": ["LUKS1"]});
        let disk = told(json!({"size": 1, "verdict": "no", "candidates": [], "partitions": [partition]}));
        assert_eq!(disk.partitions, [("2".to_owned(), "2: 1 GiB, LUKS1".to_owned())]);
        let folder = told(json!({"verdict": "yes", "candidates": ["eCryptfs"]}));
        assert!(folder.folder && folder.promising() && !folder.changes());
    }

    #[test]
    fn a_favourites_options_and_what_was_typed_become_one_call() {
        let verdict = told(json!({"size": 1, "verdict": "yes", "candidates": ["LUKS2"]}));
        let options = ["--hash=SHA-512".to_owned(), "--read-only".to_owned()];
        let mut open = Open::new(Path::new("/v"), verdict, Path::new("/d"), &options, &ENGLISH);
        let call = open.call(Path::new("/")).expect("nothing lacks");
        assert_eq!(call.text(), ["mount", "--hash=SHA-512", "--read-only", "--isolate-keys", "/v", "/d"]);
        assert_eq!(call.secrets.len(), 1, "an empty password is one, too");
        assert_eq!(
            open.explain(Path::new("/")).expect("nothing lacks").text(),
            ["explain", "--hash=SHA-512", "/v", "--without-password"]
        );
        open.failed(&Done { code: 2, ..Done::default() }, &ENGLISH);
        assert_eq!(open.trouble.as_deref(), Some(ENGLISH.wrong_password));
    }

    #[test]
    fn findings_and_advice() {
        let out = json!({"findings": ["It is noise."], "advice": [{"what": "Do", "command": "claviger info"}, {"what": "Think"}]});
        let told = explained(&Done { out, ..Done::default() });
        assert_eq!(told.findings, ["It is noise."]);
        assert_eq!(told.advice, [("Do".into(), Some("claviger info".into())), ("Think".into(), None)]);
    }
}

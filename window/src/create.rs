//! A new volume, as a value: four steps of questions, the recommendation for the answers, and the calls that create it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::form::{Field, Form, Guessing, Input, Lacking, SIZE, absolute, is_larger, unused};
use crate::home::size;
use crate::program::Call;
use crate::secret_field::SecretField;
use crate::texts::Texts;

/// The formats that can be created, with their ciphers and hashes, the defaults first.
#[derive(Clone, Debug, Deserialize)]
pub struct Choices {
    pub format: String,
    pub ciphers: Vec<String>,
    pub hashes: Vec<String>,
    /// How many guesses of a password one graphics card makes per second: for each hash, or a single number without hashes.
    #[serde(default)]
    pub guesses_per_second: Vec<f64>,
    /// Whether it is an encrypted folder.
    #[serde(default)]
    pub folder: bool,
}

/// The first question's answers, in the words of `claviger lab recommend`.
pub const PURPOSES: [&str; 4] = ["few-files", "external", "laptop", "desktop"];
/// The answer after them: an encrypted folder instead of a volume.
pub const A_FOLDER: usize = PURPOSES.len();
pub const THREATS: [&str; 5] = ["theft", "repair", "coercion", "evil-maid", "cloud"];
pub const PLATFORMS: [&str; 2] = ["windows", "macos"];

/// What fits, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recommendation {
    pub format: String,
    /// More options of `claviger create`.
    pub options: Vec<&'static str>,
    pub title: String,
    pub reasons: Vec<String>,
    pub against: Vec<String>,
    /// Requirements that were given up, and measurements of this machine.
    pub remarks: Vec<String>,
}

/// Purpose, place and size, password, and everything once more.
pub const STEPS: usize = 4;

/// The step on which this is asked.
pub fn step_of(field: &Field) -> usize {
    let secret = matches!(field.input, Input::Secret(_) | Input::NewSecret(..));
    if secret || [RECOVERY, RECOVERY_PASSWORD].contains(&field.option) { 2 } else { 1 }
}

pub struct Create {
    pub step: usize,
    pub purpose: usize,
    pub threat: usize,
    pub shared: [bool; PLATFORMS.len()],
    /// What can be made.
    pub all: Vec<Choices>,
    pub recommended: Option<Recommendation>,
    /// The format on the page for experts, and whether that is shown.
    pub expert: Option<usize>,
    pub form: Option<Form>,
    pub trouble: Option<String>,
    /// The answers that the form belongs to.
    answered: Option<Answers>,
    /// The folder whose free space the form shows.
    space_of: Option<PathBuf>,
}

/// Purpose, threat, and the systems that it is shared with.
type Answers = (usize, usize, [bool; PLATFORMS.len()]);

/// Facilities of the lab that `claviger create` can create as containers, and their options.
const CONTAINERS: &[(&str, &str, &[&str])] = &[
    ("LUKS2", "LUKS2", &[]),
    ("LUKS2 with integrity", "LUKS2", &["--integrity", "hmac-sha256"]),
    ("VeraCrypt", "VeraCrypt", &[]),
    ("BitLocker", "BitLocker", &[]),
    ("LUKS1", "LUKS1", &[]),
];

/// The best recommendation that is a container and can be created here.
pub fn recommendation(told: &Value, all: &[Choices]) -> Option<Recommendation> {
    let texts = |value: &Value, field: &str| -> Vec<String> {
        let each = value.as_array().into_iter().flatten();
        each.filter_map(|one| if field.is_empty() { one.as_str() } else { one[field].as_str() })
            .map(str::to_owned)
            .collect()
    };
    let ranked = [&told["first"], &told["second"]].into_iter().map(|choice| (choice["name"].as_str(), choice));
    let others = told["others"].as_array().into_iter().flatten().map(|other| (other[0].as_str(), &Value::Null));
    let (made, choice) = ranked.chain(others).find_map(|(name, choice)| {
        let made = CONTAINERS.iter().find(|(facility, ..)| Some(*facility) == name)?;
        all.iter().any(|choices| choices.format == made.1).then_some((made, choice))
    })?;
    let remarks = [texts(&told["given_up"], ""), texts(&told["measured"], "")].concat();
    Some(Recommendation {
        format: made.1.to_owned(),
        options: made.2.to_vec(),
        title: choice["title"].as_str().unwrap_or(made.0).to_owned(),
        reasons: texts(&choice["reasons"], "text"),
        against: texts(&choice["against"], "text"),
        remarks,
    })
}

/// File systems, by the program's name and the usual name. Those that other systems read come first.
const FILE_SYSTEMS: [(&str, &str); 4] = [("exfat", "exFAT"), ("fat", "FAT"), ("ext4", "ext4"), ("", "–")];
const BITLOCKERS: [(&str, &str); 4] = [("exfat", "exFAT"), ("fat", "FAT"), ("ntfs", "NTFS"), ("", "–")];

/// An encrypted folder.
pub const FOLDER: &str = "eCryptfs";

/// What `claviger create --list` says.
pub fn choices(listed: &Value) -> Vec<Choices> {
    serde_json::from_value(listed.clone()).unwrap_or_default()
}

impl Create {
    pub fn new(listed: &Value) -> Self {
        let all = choices(listed);
        let (recommended, expert, form, trouble) = (None, None, None, None);
        let (answered, space_of) = (None, None);
        Self {
            step: 0,
            purpose: 0,
            threat: 0,
            shared: [false; 2],
            all,
            recommended,
            expert,
            form,
            trouble,
            answered,
            space_of,
        }
    }

    fn answers(&self) -> Answers {
        (self.purpose, self.threat, self.shared)
    }

    /// Whether the form already belongs to these answers, so no new recommendation is needed.
    pub fn is_answered(&self) -> bool {
        self.form.is_some() && self.answered == Some(self.answers())
    }

    /// The format that experts begin with.
    pub fn usual(&self) -> usize {
        let shared = self.shared.contains(&true);
        let usual =
            self.recommended.as_ref().map_or(if shared { "VeraCrypt" } else { "LUKS2" }, |it| it.format.as_str());
        self.all.iter().position(|choices| choices.format == usual).unwrap_or(0)
    }

    /// Continues after place and size, or after the password, if nothing is missing.
    pub fn go_on(&mut self, home: &Path) {
        let (step, room) = (self.step, self.room(home));
        let Some(form) = &mut self.form else { return };
        let here = |option: &str| form.field(option).is_some_and(|field| step_of(field) == step);
        let path = absolute(form.text(""), home);
        let told = match form.call_with(&here, home) {
            // The call's copies of secrets go at once.
            Ok(_) if step == 1 && path.is_file() => Err(Lacking::Free(path)),
            Ok(_) if step == 1 && room.is_err() => room,
            Ok(_) if step == 2 => calls(form, home).map(drop),
            told => told.map(drop),
        };
        self.step += usize::from(form.noted(told).is_some());
        // The keyboard goes to the password at once.
        let password = form.field_mut("--password-fd").map(|field| &mut field.input);
        if let (2, Some(Input::NewSecret(secret, _))) = (self.step, password) {
            secret.focus = true;
        }
    }

    /// Whether there is room for it. A quickly formatted container has holes, and may become larger than the free space.
    fn room(&self, home: &Path) -> Result<(), Lacking> {
        let Some(form) = self.form.as_ref().filter(|form| !form.ticked("--quick")) else { return Ok(()) };
        match folder_of(form, home).as_deref().and_then(free_space) {
            Some(free) if is_larger(form.text(SIZE), free) => Err(Lacking::Room(free)),
            _ => Ok(()),
        }
    }

    /// Takes an encrypted folder, and asks the rest.
    pub fn take_folder(&mut self, home: &Path, texts: &Texts) {
        (self.recommended, self.answered, self.space_of) = (None, Some(self.answers()), None);
        let form = asked(FOLDER, true, texts.create_title, false, home, texts);
        self.form = Some(Form { guessing: guessing(&self.all, FOLDER), ..form });
    }

    /// Shows the free space at the chosen place.
    pub fn look_at_space(&mut self, home: &Path, texts: &Texts) {
        let Some(form) = &mut self.form else { return };
        let folder = folder_of(form, home);
        if folder.is_some() && self.space_of == folder {
            return;
        }
        let free = folder.as_deref().and_then(free_space);
        if let Some(field) = form.field_mut(SIZE) {
            field.hint = free.map(|free| texts.free_there.replace("{}", &size(free)));
        }
        self.space_of = folder;
    }

    /// The answers, by the names of the questions.
    pub fn review(&self, texts: &Texts) -> Vec<(String, String)> {
        let Some(form) = &self.form else { return Vec::new() };
        let format = self.recommended.as_ref().map_or(FOLDER, |it| it.format.as_str());
        let value = |field: &Field| match &field.input {
            Input::Text(text) | Input::Existing(text) | Input::Folder(text) | Input::New(text)
                if !text.trim().is_empty() =>
            {
                Some(text.trim().to_owned())
            }
            Input::Choice(at, all) => all.get(*at).map(|(_, called)| called.clone()),
            Input::Secret(secret) | Input::NewSecret(secret, _) if !secret.is_empty() => Some(texts.is_set.to_owned()),
            _ => None,
        };
        let answers = form.fields.iter().filter_map(|field| Some((field.label.to_owned(), value(field)?)));
        std::iter::once((texts.format.to_owned(), format.to_owned())).chain(answers).collect()
    }

    /// Asks for a recommendation for the answers.
    pub fn recommend(&self) -> Call {
        let shared: Vec<_> = PLATFORMS.iter().zip(self.shared).filter_map(|(name, on)| on.then_some(*name)).collect();
        let shared = if shared.is_empty() { "linux".to_owned() } else { shared.join(",") };
        // The window never asks for root.
        let words = ["lab", "recommend", "--for", PURPOSES[self.purpose], "--share-with", &shared];
        Call::new(words).with(["--threat", THREATS[self.threat], "--root", "no"])
    }

    /// Takes the recommendation, and asks the rest.
    pub fn take(&mut self, told: &Value, home: &Path, texts: &Texts) {
        (self.recommended, self.answered, self.space_of) =
            (recommendation(told, &self.all), Some(self.answers()), None);
        let best = told["first"]["title"].as_str().unwrap_or("–");
        self.trouble = self.recommended.is_none().then(|| format!("{} {best}", texts.nothing_fits));
        let shared = self.shared.contains(&true);
        self.form = self.recommended.as_ref().map(|it| {
            let form = asked(&it.format, false, texts.create_title, shared, home, texts);
            let words = form.words.into_iter().chain(it.options.iter().map(Into::into)).collect();
            Form { words, guessing: guessing(&self.all, &it.format), ..form }
        });
    }

    /// Shows all options of a format.
    pub fn choose(&mut self, format: usize, home: &Path, texts: &Texts) {
        let Some(choices) = self.all.get(format) else { return };
        (self.expert, self.space_of) = (Some(format), None);
        self.form = Some(expert(choices, home, texts));
    }

    /// The steps that create the volume: the volume, a file system in it, and a recovery key.
    ///
    /// # Errors
    /// What is lacking.
    pub fn calls(&self, home: &Path) -> Result<Vec<Call>, Lacking> {
        let Some(form) = &self.form else { return Ok(Vec::new()) };
        let calls = calls(form, home)?;
        self.room(home).map(|()| calls)
    }
}

/// The file for a recovery key, if one is made.
pub fn recovery_file(form: &Form, home: &Path) -> Option<PathBuf> {
    let options = [RECOVERY, RECOVERY_KEY, RECOVERY_PASSWORD];
    let named = options.into_iter().map(|option| form.text(option)).find(|name| !name.is_empty())?;
    Some(absolute(named, home))
}

/// The folder of a new file; nothing for a device.
fn folder_of(form: &Form, home: &Path) -> Option<PathBuf> {
    let path = absolute(form.text(""), home);
    path.parent().filter(|folder| !folder.starts_with("/dev")).map(Path::to_owned)
}

/// The space in a folder that this user may use, in bytes. Some file systems do not say how large they are.
fn free_space(folder: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(folder).ok().filter(|about| about.f_blocks > 0)?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

const FILE_SYSTEM: &str = "--filesystem";
/// Not an option of `claviger create`, but a further step.
const RECOVERY: &str = "recovery key";
pub const RECOVERY_KEY: &str = "--recovery-key-file";
pub const RECOVERY_PASSWORD: &str = "--recovery-password-file";

fn new_password(texts: &Texts) -> Field {
    Field::new(texts.new_password, "--password-fd", Input::NewSecret(SecretField::default(), SecretField::default()))
}

fn file_systems(format: &str, shared: bool, texts: &Texts) -> Field {
    let (all, chosen) = match format {
        // It has reserved areas, which only these file systems avoid.
        "BitLocker" => (&BITLOCKERS, 0),
        // A shared volume gets a file system that all systems read, others get one of Linux.
        "LUKS2" => (&FILE_SYSTEMS, 2),
        _ => (&FILE_SYSTEMS, if shared { 0 } else { 2 }),
    };
    let all = all.iter().map(|(said, called)| ((*said).to_owned(), (*called).to_owned()));
    Field::optional(texts.file_system, FILE_SYSTEM, Input::Choice(chosen, all.collect()))
}

/// The file for the recovery key, for formats that have one.
fn recovery(format: &str, home: &Path, texts: &Texts) -> Option<Field> {
    let option = match format {
        "LUKS2" => RECOVERY,
        "BitLocker" => RECOVERY_PASSWORD,
        _ => return None,
    };
    let field = Field::optional(texts.recovery_file, option, new_file(home, "recovery-key.txt"));
    Some(Field { hint: Some(texts.recovery_optional.to_owned()), ..field })
}

fn new_file(home: &Path, name: &str) -> Input {
    Input::New(unused(home.join(name)).display().to_string())
}

/// The last questions: place, size, password and file system. A folder has no size: it grows with its files.
fn asked(format: &str, folder: bool, title: &'static str, shared: bool, home: &Path, texts: &Texts) -> Form {
    let (label, name) = match format {
        _ if folder => (texts.new_folder, "private"),
        _ if format.starts_with("LUKS") => (texts.where_to, "private.luks"),
        _ => (texts.where_to, "private.hc"),
    };
    let mut fields = vec![Field::new(label, "", new_file(home, name)), new_password(texts)];
    if !folder {
        fields.insert(1, Field::new(texts.size, SIZE, Input::Text("1G".into())));
        fields.extend(recovery(format, home, texts));
        fields.push(file_systems(format, shared, texts));
    }
    let words = ["create", "--format", format].map(OsString::from).to_vec();
    let explanation = if format == FOLDER { texts.folder_explanation } else { "" };
    Form { title, explanation, button: texts.create, words, fields, ..Form::default() }
}

/// How fast the password of a new volume is guessed.
fn guessing(all: &[Choices], format: &str) -> Guessing {
    let choices = all.iter().find(|choices| choices.format == format);
    let rates = choices.map(|choices| &choices.guesses_per_second[..]).unwrap_or_default();
    // The first answer is the default, which is the first hash.
    let per_second = rates.first().into_iter().chain(rates).copied().map(Some).collect();
    Guessing { per_second, by: "--hash", unless: &["--keyfile", "--pim"] }
}

/// All that the format has.
fn expert(choices: &Choices, home: &Path, texts: &Texts) -> Form {
    let choice = |all: &[String]| {
        let usual = std::iter::once((String::new(), texts.usual.to_owned()));
        Input::Choice(0, usual.chain(all.iter().map(|name| (name.clone(), name.clone()))).collect())
    };
    let text = || Input::Text(String::new());
    let format = &*choices.format;
    let (luks2, folder) = (format == "LUKS2", choices.folder);
    let mut form = asked(format, folder, texts.expert_title, false, home, texts);
    form.guessing = guessing(std::slice::from_ref(choices), format);
    let further = [
        (true, texts.cipher, "--cipher", choice(&choices.ciphers)),
        (!folder, texts.hash, "--hash", choice(&choices.hashes)),
        (!folder, texts.keyfiles, "--keyfile", Input::Paths(Vec::new())),
        (format == "VeraCrypt", texts.pim, "--pim", text()),
        (format.starts_with("LUKS") || format == FOLDER, texts.key_size, "--key-size", text()),
        (luks2, texts.sector_size, "--sector-size", text()),
        (luks2, texts.integrity, "--integrity", text()),
        (luks2 || format == "BitLocker", texts.label, "--label", text()),
        (!folder, texts.quick, "--quick", Input::Check(false)),
    ];
    let further = further.into_iter().filter(|(has, ..)| *has);
    form.fields.extend(further.map(|(_, label, option, input)| Field::more(label, option, input)));
    form
}

/// A volume in the free space of another one.
pub fn hidden(volume: &Path, texts: &Texts) -> Form {
    let new = Input::NewSecret(SecretField::default(), SecretField::default());
    let fields = vec![
        Field::new(texts.outer_password, "--password-fd", Input::Secret(SecretField::default())),
        Field::more(texts.keyfiles, "--keyfile", Input::Paths(Vec::new())),
        Field::optional(texts.size, SIZE, Input::Text(String::new())),
        Field::new(texts.hidden_password, "--hidden-password-fd", new),
        Field::more(texts.hidden_keyfiles, "--hidden-keyfile", Input::Paths(Vec::new())),
        file_systems("VeraCrypt", false, texts),
    ];
    let form = Form::about(volume, &["create", "--hidden"], fields);
    form.said(texts.hidden_title, texts.hidden_explanation, texts.create).warns(texts.hidden_warning)
}

fn calls(form: &Form, home: &Path) -> Result<Vec<Call>, Lacking> {
    let mut call = form.call_with(&|option| option != RECOVERY, home)?;
    if form.field(RECOVERY_PASSWORD).is_some() && form.text(RECOVERY_PASSWORD).is_empty() {
        call = call.with(["--no-recovery-password"]);
    }
    let volume = absolute(form.text(""), home);
    let opened = |words: &[&str]| {
        let pim = form.text("--pim");
        let pim = if pim.is_empty() { Vec::new() } else { vec!["--pim".to_owned(), pim.to_owned()] };
        let format = form.words.iter().skip_while(|word| *word != "--format").take(2).cloned();
        let mut opened = Call::new(words).with(pim).with(format);
        if let Some(Field { input: Input::Paths(keyfiles), .. }) = form.field("--keyfile") {
            opened = opened.with(keyfiles.iter().flat_map(|path| [OsString::from("--keyfile"), path.into()]));
        }
        match call.secrets.iter().find(|(option, _)| *option == "--password-fd") {
            Some((option, secret)) => opened.secret(option, secret),
            None => opened.with(["--no-password"]),
        }
    };
    let mut further = Vec::new();
    let recovery = form.text(RECOVERY);
    if !recovery.is_empty() {
        let file = absolute(recovery, home);
        // If this failed later, the volume would have no recovery key.
        if file.exists() {
            return Err(Lacking::Free(file));
        }
        further.push(opened(&["keyslot", "add"]).with([Path::new("--recovery-key-file"), &file, &volume]));
    }
    Ok(std::iter::once(call).chain(further).collect())
}

#[cfg(test)]
#[path = "../tests/values/create.rs"]
mod tests;

//! `claviger explain` for a folder: explains why its files cannot be read, and suggests commands.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use claviger_engine::diagnosis::{self, Difference, Opinion, Search, TrialEffort};
use claviger_engine::file_formats::{self, Beside, FolderSurvey, Problem, Stacked};
use claviger_engine::formats::takes::Parameter;
use claviger_engine::store::Access;
use claviger_engine::{Error, ErrorKind, Unlock, Verdict};
use serde::Serialize;

use super::{Advice, mounting, sentences};
use crate::opening::OpenArgs;
use crate::opening::files;
use crate::opening::folder::is_reversible;
use crate::opening::found_folder::FoundFolder;
use crate::terminal::exit::{self, Silent};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::size::count;
use crate::terminal::{advice, cancel};
use crate::verbs::survey;

/// The most files whose problems are listed individually.
const TOLD: usize = 20;

#[derive(Default, Serialize)]
struct Explained {
    #[serde(flatten)]
    path: FileName,
    /// The folder as words of a command line.
    #[serde(skip)]
    words: [String; 2],
    /// The command line.
    #[serde(skip)]
    line: Vec<OsString>,
    format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    survey: Option<FolderSurvey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    /// The file in the folder that holds its sealed key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<&'static str>,
    /// Whether that key opens the folder as well.
    #[serde(skip)]
    takes_key: bool,
    /// How the credentials that open the folder differ from the given ones, as one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<&'static str>,
    /// The findings, as whole sentences.
    findings: Vec<String>,
    /// What the user can do.
    advice: Vec<Advice>,
    exit_code: u8,
}

/// Explains the folder itself, or the one to which `inside` leads. `line` is the command line.
pub fn run(
    open: &OpenArgs,
    line: &[OsString],
    inside: Option<&OsStr>,
    without_password: bool,
    json: bool,
) -> anyhow::Result<()> {
    cancel::install()?;
    let path = FileName::path(&open.path);
    let mut explained = Explained { path, line: line.to_vec(), ..Explained::default() };
    if open.how.folder.reverse() {
        explained.no_folder(&open.path, inside)?;
        output::print(&explained, json)?;
        return Err(Silent(explained.exit_code).into());
    }
    match open.find_folder(Access::ReadOnly, inside) {
        Ok(found) => explained.folder(&found, without_password)?,
        Err(e) if shows_nothing(&e) => explained.no_folder(&open.path, inside)?,
        Err(e) => return Err(e),
    }
    output::print(&explained, json)?;
    if explained.exit_code == 0 { Ok(()) } else { Err(Silent(explained.exit_code).into()) }
}

fn shows_nothing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|e| matches!(e.kind, ErrorKind::NotThisFormat(_)))
}

impl Explained {
    fn say(&mut self, finding: impl Into<String>) {
        self.findings.push(finding.into());
    }

    fn advise(&mut self, what: impl Into<String>) {
        self.advice.push(Advice { what: what.into(), command: None });
    }

    /// Adds advice with a command. Besides the options of the command line, it gets those in `more`.
    fn suggest(&mut self, what: impl Into<String>, verb: &str, more: &[&str], names: &[&str]) {
        let more: Vec<_> = more.iter().map(OsString::from).collect();
        let words = mounting::words(verb, &self.line, Difference::AsGiven, &more);
        let command = output::command(words.into_iter().chain(names.iter().map(OsString::from)));
        self.advice.push(Advice { what: what.into(), command: Some(command) });
    }

    /// Explains a folder that has no recognisable format.
    fn no_folder(&mut self, path: &Path, inside: Option<&OsStr>) -> anyhow::Result<()> {
        self.exit_code = exit::number_of(&ErrorKind::NotThisFormat(String::new()));
        if inside.is_some() || !path.is_dir() {
            self.say("No encrypted folder is on that path.");
            return Ok(());
        }
        let mut likely = None;
        for Opinion { format, verdict } in diagnosis::look_at_folder(path)? {
            let possible = matches!(verdict, Verdict::Possible(_));
            let (Verdict::No(why) | Verdict::Possible(why) | Verdict::Yes(why)) = verdict;
            self.say(format!("As {format}: {}.", why.join("; ")));
            let known = file_formats::named(format)?;
            if is_reversible(path, known) {
                let shown = path.display().to_string();
                let given = self.line.iter().any(|word| word == "--reverse");
                let more: &[&str] = if given { &[] } else { &["--reverse"] };
                self.suggest("To show this plain folder encrypted:", "mount", more, &[&shown, "DIR"]);
                return Ok(());
            }
            let opens = possible && known.takes().opening.contains(&Parameter::VolumeKey);
            likely = likely.or(known.key_file().filter(|_| opens).map(|key_file| (format, key_file)));
        }
        // A home, or the folder where the plaintext is mounted.
        let private = [path.join(".Private"), path.parent().unwrap_or(path).join(".Private")];
        if let Some(private) = private.iter().find(|private| private.is_dir()) {
            let private = private.display().to_string();
            self.suggest("The encrypted files are next to it, in .Private:", "ls", &[], &[&private]);
        } else if let Some((format, key_file)) = likely {
            self.damaged_key_file(path, format, key_file);
        } else {
            let path = path.display().to_string();
            self.suggest("If it is one nevertheless, give the format:", "ls", &["--format=eCryptfs"], &[&path]);
        }
        Ok(())
    }

    /// Advises about a folder that looks like one of this format, but has no usable file with the sealed key.
    fn damaged_key_file(&mut self, path: &Path, format: &str, key_file: &str) {
        let (shown, format) = (path.display().to_string(), format!("--format={format}"));
        match path.join(key_file).symlink_metadata() {
            Ok(_) => self.suggest("To see what is wrong with that file:", "ls", &[&format], &[&shown]),
            Err(_) => {
                self.advise(format!("Look for a copy of {key_file} in a backup, and put it into the folder."));
                let what = "Without that file, only the master key opens the folder, from a file:";
                self.suggest(what, "ls", &[&format, "--volume-key-file=FILE"], &[&shown]);
            }
        }
    }

    fn folder(&mut self, found: &FoundFolder<'_>, without_password: bool) -> anyhow::Result<()> {
        self.path.clone_from(&found.path);
        self.words.clone_from(&found.words);
        let (Some(format), Some((lower, beside))) = (found.locked.file_format(), found.locked.stored_files()) else {
            return Err(Error::misuse("this is not an encrypted folder").into());
        };
        self.format = Some(format.name());
        let (Verdict::Yes(why) | Verdict::Possible(why) | Verdict::No(why)) = format.identify(&**lower)?;
        let survey = survey::of(format, &**lower, None)?;
        match survey.files + survey.folders {
            0 if beside.proves() => self.say(format!("An empty {} folder, by the files beside it.", format.name())),
            _ => self.say(format!("As {}: {}.", format.name(), why.join("; "))),
        }
        let checked = !beside.signatures.is_empty() || format.key_file().is_some();
        self.key_file = format.key_file();
        self.takes_key = format.takes().opens_with(Parameter::VolumeKey);
        // Some folders show what they hold only to those who have the key.
        if format.opens() && (survey.files + survey.folders > 0 || self.key_file.is_none()) {
            self.counts(&survey, checked);
        }
        self.lies_beside(beside);
        let damaged = survey.problems.iter().any(Problem::is_damage);
        self.damaged(&survey.problems);
        self.survey = Some(survey);
        self.beside = Some(beside.clone());
        if damaged {
            self.exit_code = exit::number_of(&damage());
        }
        if without_password {
            let [path, inside] = self.words.clone();
            match found.locked.fido2(&found.with(&[])) {
                Ok(Some(_)) => {
                    let what = "To open it with its FIDO2 key:";
                    self.suggest(what, "ls", &["--fido2-device=auto"], &[&path, &inside]);
                }
                _ => self.suggest("To test a password:", "ls", &[], &[&path, &inside]),
            }
        } else {
            self.tries(found)?;
        }
        Ok(())
    }

    /// `checked`: whether a file besides the encrypted ones shows if a password is right.
    fn counts(&mut self, survey: &FolderSurvey, checked: bool) {
        let (files, folders) = (count(survey.files, "file"), count(survey.folders, "folder"));
        self.say(format!("It has {files} and {folders}."));
        match survey.keys.len() {
            0 if checked => {}
            0 => self.say("No file records its key, so a password cannot be checked."),
            1 => self.say(format!("All its encrypted files use one key: {}.", survey::shares(&survey.keys))),
            _ => self.say(format!("Its files use several keys: {}.", survey::shares(&survey.keys))),
        }
        if survey.clear > 0 {
            self.say(format!("Not encrypted: {}; --passthrough shows them.", count(survey.clear, "file")));
        }
    }

    fn lies_beside(&mut self, beside: &Beside) {
        let Some(folder) = &beside.folder else { return };
        let folder = files::shown(folder.as_os_str());
        match beside.wrapped_passphrase {
            Some(_) => self.say(format!(
                "Its passphrase is wrapped in {folder}/wrapped-passphrase. The login password at the time of its \
                 last change opens it."
            )),
            None => {
                self.say(format!(
                    "There is no wrapped passphrase in {folder}: the login password alone cannot open it."
                ));
                let [path, inside] = self.words.clone();
                self.suggest(
                    "Look for a copy of wrapped-passphrase in a backup, or for the written-down mount passphrase \
                     (32 letters and digits). With the copy:",
                    "cp",
                    &["-r", "--wrapped-passphrase=FILE"],
                    &[&path, &inside, "OUT"],
                );
            }
        }
        if !beside.missing.is_empty() {
            self.say(format!("Missing or unreadable in {folder}: {}.", beside.missing.join(", ")));
        }
    }

    fn damaged(&mut self, problems: &[Problem]) {
        for Problem { path, facts, .. } in problems.iter().take(TOLD) {
            self.say(format!("{}: {}", files::shown(path.as_os_str()), facts.problem.as_deref().unwrap_or_default()));
        }
        if problems.len() > TOLD {
            self.say(format!("And {} more.", count((problems.len() - TOLD) as u64, "file")));
        }
        if problems.iter().any(Problem::is_damage) {
            let [path, inside] = self.words.clone();
            let what = "To copy everything readable and report the rest:";
            self.suggest(what, "cp", &["-r", "--salvage"], &[&path, &inside, "OUT"]);
        }
    }

    /// Tries the password, and its variants by common mistakes.
    fn tries(&mut self, found: &FoundFolder<'_>) -> anyhow::Result<()> {
        let credentials = found.credentials()?;
        let bar = RefCell::new(None);
        let cancel = cancel::flag();
        let unlock = |_, credentials: &[claviger_engine::Credential], _, opened: &std::sync::atomic::AtomicBool| {
            cancel::check()?;
            found.locked.try_folder(&Unlock { cancel: Some(cancel), opened: Some(opened), ..found.with(credentials) })
        };
        let tell = |step: diagnosis::SearchStep| {
            bar.borrow_mut().get_or_insert_with(|| Progress::steps("Trying")).at(step.done, step.all);
            true
        };
        let effort = TrialEffort { given: 1, without_hints: 1 };
        let search = diagnosis::search(&credentials, false, &[effort], unlock, tell)?;
        let unwraps = found.unwraps(&credentials);
        drop(credentials);
        drop(bar);
        match search {
            Search { found: Some(diagnosis::Match { how, unlocked: Ok(tree), .. }), .. } => {
                self.opens(found, how, &tree)?
            }
            Search { found: Some(diagnosis::Match { unlocked: Err(error), .. }), .. } => self.fails(error, unwraps),
            Search { error, .. } => {
                self.fails(error.unwrap_or_else(|| ErrorKind::WrongCredential(String::new()).into()), unwraps)
            }
        }
        Ok(())
    }

    fn opens(&mut self, found: &FoundFolder<'_>, how: Difference, tree: &Stacked) -> anyhow::Result<()> {
        self.say(format!("It opens with {how}."));
        self.with = Some(how.kind());
        let (Some(format), Some((lower, _))) = (found.locked.file_format(), found.locked.stored_files()) else {
            return Ok(());
        };
        let survey = survey::of(format, &**lower, Some(tree))?;
        let others: Vec<_> = survey.problems.iter().filter(|problem| problem.other_key).cloned().collect();
        if !others.is_empty() {
            let mut keys: Vec<_> = others.iter().flat_map(|problem| problem.facts.keys.clone()).collect();
            keys.sort_unstable();
            keys.dedup();
            let of = count(others.len() as u64, "file");
            self.say(format!("Another password is needed for {of}; their key signatures are {}.", survey::few(&keys)));
        }
        // Damage that is visible without the key was reported above.
        let more: Vec<_> = survey.problems.iter().filter(|p| p.needs_key && !p.other_key).cloned().collect();
        self.damaged(&more);
        if more.iter().any(Problem::is_damage) {
            self.exit_code = exit::number_of(&damage());
        }
        if survey.foreign_names > 0 {
            self.advise("If file names have a separate password, give it with --name-password-file.");
        }
        let [path, inside] = self.words.clone();
        match how {
            Difference::AsGiven => self.suggest("To list its files:", "ls", &[], &[&path, &inside]),
            _ => self.suggest(
                "Type it in that form, or put that form into a file that only you can read:",
                "ls",
                &["--password-file=FILE"],
                &[&path, &inside],
            ),
        }
        if let Some(command) = mounting::command("mount", &self.line, how, &[]) {
            self.advice.push(Advice { what: "To mount it:".to_owned(), command: Some(command) });
        }
        self.survey = Some(survey);
        Ok(())
    }

    /// Reports a failure; `unwraps` says whether the password still unwraps a passphrase.
    fn fails(&mut self, error: Error, unwraps: bool) {
        self.exit_code = exit::number_of(&error.kind);
        match &error.kind {
            ErrorKind::WrongCredential(why) if unwraps => {
                self.say(format!("The given password opens the wrapped passphrase: {why}."));
                let [path, inside] = self.words.clone();
                self.suggest(
                    "Look for an older wrapped-passphrase file, for example in a backup of that home. The folder \
                     may have had another passphrase before, or the file is from another installation. With it:",
                    "cp",
                    &["-r", "--wrapped-passphrase=FILE"],
                    &[&path, &inside, "OUT"],
                );
            }
            ErrorKind::WrongCredential(why) => {
                self.say(format!("Neither the given password nor a variant of it opens it: {why}."));
                self.advise(match self.key_file {
                    Some(file) if self.takes_key => format!(
                        "An older copy of {file} opens with the password of its time. The master key opens the folder, too: \
                         --volume-key-file."
                    ),
                    Some(file) => format!("An older copy of {file} opens with the password of its time."),
                    None => "It opens with the login password at the time of its last change, or with the mount \
                             passphrase itself."
                        .to_owned(),
                });
            }
            ErrorKind::Unsupported { .. } => {
                if let Some(hint) = advice::to_try(&error) {
                    self.advise(hint);
                }
                self.say(format!("It cannot be opened here: {}.", error.kind));
            }
            _ => {
                if let Some(hint) = advice::to_try(&error) {
                    self.advise(hint);
                }
                self.say(format!("The given credential could not be tried: {}.", error.kind));
            }
        }
    }
}

fn damage() -> ErrorKind {
    ErrorKind::Malformed { field: "", offset: 0, what: String::new() }
}

impl Report for Explained {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", output::printable(&self.path))?;
        sentences(out, &self.findings, &self.advice)
    }
}

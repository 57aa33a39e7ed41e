//! Commands for what `explain` has examined, with the options that it was given.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use claviger_engine::Credential;
use claviger_engine::diagnosis::Difference;

use crate::process::command_line::{option, options_of, repeated};
use crate::terminal::output;

/// Options that narrow the trials.
const HINTS: &[&str] = &["--hash", "--cipher", "--pim", "--slot", "--backup-header"];

const KEYFILES: &[&str] = &["--keyfile", "--keyfile-offset", "--keyfile-size"];

const PASSWORD: &[&str] = &["--password-file", "--no-password"];

/// The options that name a format.
pub const NAME_FORMAT: &[&str] = &["--format", "--truecrypt", "--veracrypt"];

/// The command of `verb` for the volume of the parsed command line `line` of `explain`. `more` are options that the line lacks.
/// `None` if the line names no volume.
pub fn command(verb: &str, line: &[OsString], how: Difference, more: &[OsString]) -> Option<String> {
    let places = line.splitn(2, |word| word == "--").nth(1)?;
    // A verb that works on the header alone takes a detached one as its volume.
    let alone = !options_of(verb).iter().any(|name| name == "--header");
    let header = options(line).find(|word| alone && option(word) == "--header");
    let volume = header.map_or(places.first()?.as_os_str(), |word| value(word).as_os_str());
    let inside = places.get(1).map(|path| joined("--folder", path));
    let marked = volume.as_encoded_bytes().starts_with(b"-").then(|| "--".into());
    let words = words(verb, line, how, more).into_iter().chain(inside).chain(marked);
    Some(output::command(words.chain([volume.to_owned()])))
}

/// The words of such a command before the volume.
pub fn words(verb: &str, line: &[OsString], how: Difference, more: &[OsString]) -> Vec<OsString> {
    let (dropped, added): (&[&[&str]], _) = match how {
        Difference::AsGiven => (&[], Vec::new()),
        Difference::WithoutHints => (&[HINTS], Vec::new()),
        Difference::Password(_) => (&[PASSWORD], Vec::new()),
        Difference::Nothing => (&[PASSWORD, KEYFILES], Vec::new()),
        Difference::NoKeyfiles => (&[KEYFILES], Vec::new()),
        Difference::NoPassword => (&[PASSWORD], vec!["--no-password".into()]),
        Difference::WithoutKeyfile(_) => (&[KEYFILES], keyfiles(line, how)),
    };
    let is = |name: &OsStr, names: &[&str]| names.iter().any(|one| name == *one);
    let named_twice = |name: &OsStr| {
        more.iter().map(|word| option(word)).any(|new| new == name || is(new, NAME_FORMAT) && is(name, NAME_FORMAT))
    };
    let stays = |word: &&OsString| {
        let name = option(word);
        !dropped.iter().any(|names| is(name, names)) && !named_twice(name)
    };
    let named = ["claviger"].into_iter().chain(verb.split(' ')).map(OsString::from);
    let options = more.iter().chain(repeated(verb, line).filter(stays)).chain(&added).cloned();
    named.chain(options).collect()
}

/// The options for the keyfiles without the one that did not belong.
fn keyfiles(line: &[OsString], how: Difference) -> Vec<OsString> {
    let Difference::WithoutKeyfile(n) = how else { return Vec::new() };
    let all = keyfile_paths(line).into_iter().enumerate();
    all.filter(|(number, _)| *number != n).map(|(_, path)| joined("--keyfile", path)).collect()
}

/// The keyfiles that the command line gives, in the order in which they are read.
pub fn keyfile_paths(line: &[OsString]) -> Vec<PathBuf> {
    let given = options(line).filter(|word| option(word) == "--keyfile");
    given.flat_map(|word| Credential::keyfile_paths(value(word)).unwrap_or_else(|_| vec![value(word).into()])).collect()
}

fn options(line: &[OsString]) -> impl Iterator<Item = &OsString> {
    line.iter().take_while(|word| *word != "--")
}

/// The same command line for another volume.
pub fn of_volume(line: &[OsString], volume: &Path) -> Vec<OsString> {
    let mut line = line.to_vec();
    let place = line.iter().position(|word| word == "--").and_then(|at| line.get_mut(at + 1));
    place.into_iter().for_each(|place| volume.as_os_str().clone_into(place));
    line
}

/// An option with its value, as one word.
pub fn joined(name: &str, value: impl AsRef<OsStr>) -> OsString {
    [OsStr::new(name), OsStr::new("="), value.as_ref()].into_iter().collect()
}

/// The value of the option in a word.
fn value(word: &OsStr) -> &Path {
    let bytes = word.as_bytes();
    let end = option(word).len();
    Path::new(OsStr::from_bytes(bytes.get(end + 1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, how: Difference, more: &[&str]) -> Option<String> {
        let line: Vec<_> = line.split(' ').map(OsString::from).collect();
        command("mount", &line, how, &more.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_that_opened_it_stay_and_others_go() {
        let line = "claviger explain --json --pim=3 --hash=x --keyfile=k --password-file=p --partition=1 -- v";
        for (how, wanted) in [
            (Difference::AsGiven, "--pim=3 --hash=x --keyfile=k --password-file=p --partition=1 v"),
            (Difference::WithoutHints, "--keyfile=k --password-file=p --partition=1 v"),
            (Difference::NoKeyfiles, "--pim=3 --hash=x --password-file=p --partition=1 v"),
            (Difference::NoPassword, "--pim=3 --hash=x --keyfile=k --partition=1 --no-password v"),
            (Difference::Nothing, "--pim=3 --hash=x --partition=1 v"),
        ] {
            assert_eq!(of(line, how, &[]), Some(format!("claviger mount {wanted}")));
        }
        let two = "claviger explain --keyfile=k --keyfile=l=m --no-password -- v";
        let one = of(two, Difference::WithoutKeyfile(0), &[]);
        assert_eq!(one.as_deref(), Some("claviger mount --no-password --keyfile=l=m v"));
        let named = of(line, Difference::Nothing, &["--partition=2"]);
        assert_eq!(named.as_deref(), Some("claviger mount --partition=2 --pim=3 --hash=x v"));
    }

    /// Each verb that `explain` suggests takes all options that its command repeats, and the volume of a detached header.
    #[test]
    fn every_verb_gets_the_options_that_it_has() {
        let line = "claviger explain --json --ask=nobody --veracrypt --pim=3 --hash=x --cipher=y --keyfile=k \
                    --password-file=p --memory=1G --partition=1 --header=h --allow-slow -- v";
        let line: Vec<_> = line.split(' ').map(OsString::from).collect();
        for (verb, more, wanted) in [
            ("info", "--format=plain", "--keyfile=k --password-file=p --memory=1G --partition=1 --header=h"),
            ("mount", "--read-only", "--veracrypt --pim=3 --hash=x --cipher=y --keyfile=k --password-file=p"),
            ("header restore", "--from=b", "--veracrypt --pim=3 --hash=x --cipher=y --keyfile=k --password-file=p"),
            ("header repair", "--format=LUKS2", "--keyfile=k --password-file=p --partition=1 --allow-slow h"),
            ("header show", "--format=LUKS2", "--partition=1 h"),
            ("keyslot resume", "--format=BitLocker", "--pim=3 --hash=x --cipher=y --keyfile=k --password-file=p"),
        ] {
            let how = if more == "--format=plain" { Difference::WithoutHints } else { Difference::AsGiven };
            let command = command(verb, &line, how, &[more.into()]).expect("a volume");
            assert!(command.starts_with(&format!("claviger {verb} {more} {wanted}")), "{command}");
            let words: Vec<_> = command.split(' ').map(OsString::from).collect();
            assert!(crate::understand(&words).is_ok(), "{command}");
        }
    }

    #[test]
    fn names_stay_names() {
        let line = "claviger explain --password-file=- -- -v :/x/.Private";
        assert_eq!(of(line, Difference::AsGiven, &[]).as_deref(), Some("claviger mount --folder=:/x/.Private -- -v"));
    }
}

//! Commands for what `explain` has opened, with the options that opened it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use claviger_engine::Credential;
use claviger_engine::diagnosis::Difference;

use crate::terminal::output;

/// Options of `explain`, and of the way it was called.
const OWN: &[&str] = &["--json", "--without-password", "--password-fd", "--progress", "--progress-fd", "--ask"];

/// Options that narrow the trials.
const HINTS: &[&str] = &["--hash", "--cipher", "--pim", "--slot", "--backup-header"];

const KEYFILES: &[&str] = &["--keyfile", "--keyfile-offset", "--keyfile-size"];

const PASSWORD: &[&str] = &["--password-file", "--no-password"];

/// The command of `verb`. `line` is the parsed command line of `explain`, and `more` are options that it lacks. `None` if the line
/// names no volume.
pub fn command(verb: &str, line: &[OsString], how: Difference, more: &[OsString]) -> Option<String> {
    let (options, places) = line.split_at(line.iter().position(|word| word == "--").unwrap_or(line.len()));
    let (dropped, added): (&[&[&str]], _) = match how {
        Difference::AsGiven => (&[], Vec::new()),
        Difference::WithoutHints => (&[HINTS], Vec::new()),
        Difference::Password(_) => (&[PASSWORD], Vec::new()),
        Difference::Nothing => (&[PASSWORD, KEYFILES], Vec::new()),
        Difference::NoKeyfiles => (&[KEYFILES], Vec::new()),
        Difference::NoPassword => (&[PASSWORD], vec!["--no-password".into()]),
        Difference::WithoutKeyfile(_) => (&[KEYFILES], keyfiles(line, how)),
    };
    let named_twice = |name: &OsStr| more.iter().any(|word| option(word) == name);
    let stays = |word: &&OsString| {
        let name = option(word);
        let is = |names: &[&str]| names.iter().any(|one| name == *one);
        !is(OWN) && !dropped.iter().any(|names| is(names)) && *word != "--password-file=-" && !named_twice(name)
    };
    let options = options.iter().skip(2).filter(stays).map(OsString::as_os_str);
    let added = added.iter().chain(more).map(OsString::as_os_str);
    let (volume, inside) = (places.get(1)?, places.get(2).map(|path| joined("--folder", path)));
    let marked = volume.as_encoded_bytes().starts_with(b"-").then_some(OsStr::new("--"));
    let words = ["claviger", verb].into_iter().map(OsStr::new).chain(options).chain(added);
    Some(output::command(words.chain(inside.as_deref()).chain(marked).chain([volume.as_os_str()])))
}

/// The options for the keyfiles that opened it.
pub fn keyfiles(line: &[OsString], how: Difference) -> Vec<OsString> {
    match how {
        Difference::NoKeyfiles | Difference::Nothing => Vec::new(),
        Difference::WithoutKeyfile(n) => {
            let all = keyfile_paths(line).into_iter().enumerate();
            all.filter(|(number, _)| *number != n).map(|(_, path)| joined("--keyfile", path)).collect()
        }
        _ => options(line).filter(|word| KEYFILES.iter().any(|name| option(word) == *name)).cloned().collect(),
    }
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

/// The name of the option in a word.
pub fn option(word: &OsStr) -> &OsStr {
    let bytes = word.as_bytes();
    OsStr::from_bytes(bytes.split(|byte| *byte == b'=').next().unwrap_or(bytes))
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
        assert_eq!(named.as_deref(), Some("claviger mount --pim=3 --hash=x --partition=2 v"));
    }

    #[test]
    fn names_stay_names() {
        let line = "claviger explain --password-file=- -- -v :/x/.Private";
        assert_eq!(of(line, Difference::AsGiven, &[]).as_deref(), Some("claviger mount --folder=:/x/.Private -- -v"));
    }
}

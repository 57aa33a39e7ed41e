//! The parsed command line, to start further processes of this program: the verb first, then each option with its value, then
//! the positional arguments. The original position of options no longer matters.

use std::ffi::{OsStr, OsString};

use std::os::unix::ffi::OsStrExt;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// A parsed command line, as words for another process.
pub struct Understood {
    /// The whole command line: `claviger VERB OPTION… -- NAME…`.
    pub words: Vec<OsString>,
    /// The global options among them, which every verb takes.
    pub global: Vec<OsString>,
    /// Whether to print errors as JSON.
    pub json: bool,
    /// Whether the first name is that of a volume.
    pub names_volume: bool,
}

impl Understood {
    /// The command line that `command` has parsed.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let mut words = vec![OsString::from(command.get_name())];
        let (mut verb, mut inner) = (command, matches);
        while let Some((name, below)) = inner.subcommand() {
            words.push(name.into());
            verb = verb.find_subcommand(name).expect("what was parsed is one");
            inner = below;
        }
        let asked = inner.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json);
        // `token show` always prints JSON.
        let json = asked || words[1..] == ["token", "show"];
        let (named, places): (Vec<_>, Vec<_>) = given(verb, inner).partition(|arg| !arg.is_positional());
        words.extend(in_order(inner, named));
        let places = in_order(inner, places);
        words.extend((!places.is_empty()).then(|| "--".into()).into_iter().chain(places));
        let global = in_order(inner, given(command, inner).filter(|arg| arg.is_global_set()));
        let called = verb.get_positionals().next().and_then(Arg::get_value_names).unwrap_or_default();
        let names_volume = called.iter().any(|name| name.as_str() == "VOLUME");
        Self { words, global, json, names_volume }
    }
}

/// The arguments that the user gave, without defaults.
fn given<'a>(command: &'a Command, matches: &'a ArgMatches) -> impl Iterator<Item = &'a Arg> {
    let written = |arg: &&Arg| {
        let known = matches.try_contains_id(arg.get_id().as_str()).is_ok();
        known && matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    command.get_arguments().filter(written)
}

/// The words of these arguments in their original order. Words before a verb are counted separately.
fn in_order<'a>(matches: &ArgMatches, args: impl IntoIterator<Item = &'a Arg>) -> Vec<OsString> {
    let mut words: Vec<_> = args.into_iter().flat_map(|arg| words_of(matches, arg)).collect();
    words.sort_by_key(|(at, _)| *at);
    words.into_iter().map(|(_, word)| word).collect()
}

/// The words of an argument and their positions, once for each time it was given. An option has a long name or none at all.
fn words_of(matches: &ArgMatches, arg: &Arg) -> Vec<(usize, OsString)> {
    let id = arg.get_id().as_str();
    let places = matches.indices_of(id).into_iter().flatten();
    let name = arg.get_long().map(|long| format!("--{long}"));
    match name {
        None => values(matches, id).zip(places).map(|(value, at)| (at, value.to_owned())).collect(),
        Some(name) if arg.get_action().takes_values() => {
            let word = |value: &OsStr| [OsStr::new(&name), OsStr::new("="), value].iter().copied().collect();
            values(matches, id).zip(places).map(|(value, at)| (at, word(value))).collect()
        }
        Some(name) => places.take(1).map(|at| (at, OsString::from(&name))).collect(),
    }
}

fn values<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = &'a OsStr> {
    matches.get_raw(id).into_iter().flatten()
}

/// Options of the way in which the program was called. Suggested commands do not repeat them.
const OF_THIS_CALL: &[&str] = &[
    "--json",
    "--without-password",
    "--password-fd",
    "--progress",
    "--progress-fd",
    "--ask",
    "--ready-fd",
    "--caller",
    "--key-process",
];

/// The options of the parsed command line `line` that a suggested command of `verb` repeats: those that this verb has.
pub fn repeated<'a>(verb: &str, line: &'a [OsString]) -> impl Iterator<Item = &'a OsString> {
    let has = options_of(verb);
    let repeats = move |word: &&OsString| {
        let name = option(word);
        let of_this_call = *word == "--password-file=-" || OF_THIS_CALL.iter().any(|one| name == *one);
        !of_this_call && has.iter().any(|one| name == &**one)
    };
    line.iter().take_while(|word| *word != "--").filter(repeats)
}

/// The options that `verb` has, which may be two words, and those of every verb.
pub fn options_of(verb: &str) -> Vec<String> {
    let program = crate::command();
    let verb = verb.split(' ').try_fold(&program, |verb, name| verb.find_subcommand(name));
    let all = verb.into_iter().chain([&program]).flat_map(Command::get_arguments);
    all.filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))).collect()
}

/// Whether the verb with which `command` begins, without this program's name, has the option `--{name}`.
pub fn has_option(command: &str, name: &str) -> bool {
    let program = crate::command();
    let mut words = command.split(' ');
    let mut verb = &program;
    while let Some(part) = words.next().and_then(|word| verb.find_subcommand(word)) {
        verb = part;
    }
    verb.get_arguments().any(|arg| arg.get_long() == Some(name))
}

/// The name of the option in a word.
pub fn option(word: &OsStr) -> &OsStr {
    let bytes = word.as_bytes();
    OsStr::from_bytes(bytes.split(|byte| *byte == b'=').next().unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_line(line: &[&str]) -> Vec<String> {
        let line: Vec<_> = line.iter().map(OsString::from).collect();
        let (_, understood) = crate::understand(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        understood.words.into_iter().map(|word| word.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn options_stand_behind_the_verb() {
        for (line, wanted) in [
            ("claviger list", "claviger list"),
            ("claviger --ask nobody mount v d", "claviger mount --ask=nobody -- v d"),
            (
                "claviger --ask=nobody --timeout 3s serve v --export x",
                "claviger serve --ask=nobody --export=x --timeout=3s -- v",
            ),
            (
                "claviger mount v -o ro,x d --keyfile a --keyfile b",
                "claviger mount --options=ro --options=x --keyfile=a --keyfile=b -- v d",
            ),
            ("claviger keyslot add --json v", "claviger keyslot add --json -- v"),
            ("claviger --progress none reencrypt v --resume", "claviger reencrypt --resume --progress=none -- v"),
        ] {
            let words: Vec<_> = line.split(' ').collect();
            let ours = of_line(&words);
            assert_eq!(ours.join(" "), wanted, "{line}");
            let again: Vec<_> = ours.iter().map(String::as_str).collect();
            assert_eq!(of_line(&again), ours, "{line}");
        }
    }

    /// Without a long name, an option would be passed on as a name.
    #[test]
    fn every_option_has_a_long_name() {
        fn check(command: &Command) {
            for arg in command.get_arguments().filter(|arg| arg.get_short().is_some()) {
                assert!(arg.get_long().is_some(), "{}: {arg}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&crate::command());
    }

    #[test]
    fn a_name_that_looks_like_an_option_stays_one() {
        assert_eq!(of_line(&["claviger", "mount", "--", "--ask", "d"]), ["claviger", "mount", "--", "--ask", "d"]);
        assert_eq!(
            of_line(&["claviger", "info", "--keyfile=--x", "v"]),
            ["claviger", "info", "--keyfile=--x", "--", "v"]
        );
    }
}

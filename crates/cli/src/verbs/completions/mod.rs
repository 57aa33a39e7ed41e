//! `claviger completions`: shell completions. The shells' scripts call this program at each tab, because the candidates depend
//! on the machine: volumes, names, keyslots.

mod shells;
mod words;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ValueHint};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use claviger_engine::formats::{Choices, FORMATS, Format, FormatFacts, HeaderFacts, KeyslotFacts};
use claviger_engine::{Opening, file_formats};
use claviger_lab::measure::facility::Catalogue;
use claviger_serve::sessions::{Runtime, Session};

use crate::terminal::output;
use crate::verbs::{attach, create};

/// Print shell completions
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_parser = PossibleValuesParser::new(SHELLS.names()))]
    shell: String,
}

const SHELLS: Shells<'static> = Shells(&[&shells::BASH, &shells::ZSH, &shells::FISH]);

/// The environment variable that a shell's script sets.
const ASKED: &str = "CLAVIGER_COMPLETE";

/// Returns the candidates for a word, besides paths.
type Words = fn() -> Vec<String>;

/// The candidates for a value. A value is found by its name in `--help`, by its option, with or without the verb, or,
/// for a positional argument, by the verb. The first matching row counts.
const WORDS: &[(&str, &str, Words)] = &[
    ("NAME", "create --format", creatable),
    ("NAME", "--format", formats),
    ("FORMAT", "--format", formats),
    ("NAME", "--new-format", creatable),
    ("NAME", "--cipher", ciphers),
    ("NAME", "--new-cipher", ciphers),
    ("NAME", "--hidden-cipher", ciphers),
    ("NAME", "--hash", hashes),
    ("NAME", "--new-hash", hashes),
    ("NAME", "--kdf", kdfs),
    ("NAME", "--new-kdf", kdfs),
    ("NAME", "--facility", facilities),
    ("N", "keyslot", keyslots),
    ("N", "keyslot --at", free_keyslots),
    ("N", "--old", keyslots),
    ("N", "--disable-slot", keyslots),
    ("SLOT", "--slot", keyslots),
    ("KEYSLOT", "token", keyslots),
    ("N", "token", tokens),
    ("NAME", "attach", attach::names),
    ("NAME", "detach", mapped),
    ("DIR|VOLUME", "unmount", open),
    ("DIR|VOLUME", "lock", open),
    ("VOLUME", "unlock", open),
];

/// If a shell's completion script started this process, answers it and exits.
pub fn answer() {
    CompleteEnv::with_factory(|| rich("", crate::command())).var(ASKED).shells(SHELLS).complete();
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let shells = SHELLS;
    let shell = shells.completer(&args.shell).expect("no other shell is possible");
    let mut script = Vec::new();
    shell.write_registration(ASKED, "claviger", "claviger", "claviger", &mut script)?;
    output::write(&mut output::raw()?, &script)
}

/// Adds the candidates to the verb and its subcommands.
fn rich(above: &str, verb: clap::Command) -> clap::Command {
    let name = verb.get_name().to_owned();
    let place = if ["keyslot", "token"].contains(&above) { above } else { &name };
    verb.mut_args(|arg| with_words(place, arg)).mut_subcommands(|part| rich(&name, part))
}

fn with_words(verb: &str, arg: Arg) -> Arg {
    let value = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
    let option = arg.get_long().map(|long| format!("--{long}"));
    let places =
        [option.as_ref().map_or(verb.to_owned(), |option| format!("{verb} {option}")), option.unwrap_or_default()];
    let row =
        WORDS.iter().find(|(called, at, _)| value.as_deref() == Some(called) && places.iter().any(|place| place == at));
    let own = match arg.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::ExecutablePath => Some(shells::PATHS),
        ValueHint::DirPath => Some(shells::FOLDERS),
        _ => None,
    };
    let Some(&(called, _, words)) = row else {
        return match own {
            Some(own) => arg.add(ArgValueCompleter::new(move |_: &OsStr| vec![CompletionCandidate::new(own)])),
            None => arg,
        };
    };
    let own = own.or(called.contains("VOLUME").then_some(shells::PATHS));
    arg.add(ArgValueCompleter::new(move |current: &OsStr| {
        let begins = current.to_string_lossy();
        let known = words().into_iter().filter(|word| begins_with(word, &begins)).map(CompletionCandidate::new);
        known.chain(own.map(CompletionCandidate::new)).collect()
    }))
}

/// Compares without regard to case.
fn begins_with(word: &str, begins: &str) -> bool {
    word.get(..begins.len()).is_some_and(|start| start.eq_ignore_ascii_case(begins))
}

fn formats() -> Vec<String> {
    let volumes = FORMATS.iter().map(|format| format.name());
    volumes.chain(file_formats::FILE_FORMATS.iter().map(|format| format.name())).map(str::to_owned).collect()
}

fn creatable() -> Vec<String> {
    create::creatable().map(str::to_owned).collect()
}

fn ciphers() -> Vec<String> {
    chosen(|choices| choices.ciphers)
}

fn hashes() -> Vec<String> {
    chosen(|choices| choices.hashes)
}

fn kdfs() -> Vec<String> {
    ["pbkdf2", "argon2i", "argon2id"].map(str::to_owned).into()
}

fn facilities() -> Vec<String> {
    let catalogue = Catalogue::load(None).ok();
    catalogue.iter().flat_map(Catalogue::all).map(|facility| facility.name.clone()).collect()
}

/// The choices of the formats that the command line names, or of all formats.
fn chosen(of: fn(Choices) -> Vec<&'static str>) -> Vec<String> {
    let words = shells::words_before();
    let named = |name: &str| words.iter().any(|word| word.to_string_lossy().eq_ignore_ascii_case(name));
    let (named, all): (Vec<&'static dyn Format>, Vec<_>) = FORMATS.iter().partition(|format| named(format.name()));
    let formats = if named.is_empty() { all } else { named };
    let creators = formats.into_iter().filter_map(|format| format.creator());
    let mut names: Vec<_> = creators.flat_map(|creator| of(creator.choices())).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// The folders and volumes that are mounted or served.
fn open() -> Vec<String> {
    let sessions = Runtime::of_this_user().and_then(|runtime| runtime.sessions()).unwrap_or_default();
    let places = |session: Session| session.record.dir.into_iter().chain([session.record.volume]);
    sessions.into_iter().flat_map(places).filter_map(|path| Some(path.to_str()?.to_owned())).collect()
}

fn mapped() -> Vec<String> {
    let names = fs::read_dir("/dev/mapper").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "control").collect()
}

/// The keyslots in use.
fn keyslots() -> Vec<String> {
    header(|facts| Some(facts.used_keyslots()?.map(|slot| slot.number().to_string()).collect()))
}

/// The numbers that a new LUKS keyslot may have.
fn free_keyslots() -> Vec<String> {
    header(|facts| {
        let all = match facts.of_format {
            FormatFacts::Luks1(_) => 8,
            FormatFacts::Luks2(_) => 32,
            _ => return None,
        };
        let used: Vec<_> = facts.used_keyslots()?.map(KeyslotFacts::number).collect();
        Some((0..all).filter(|number| !used.contains(number)).map(|number| number.to_string()).collect())
    })
}

/// The numbers of the tokens.
fn tokens() -> Vec<String> {
    header(|facts| match &facts.of_format {
        FormatFacts::Luks2(facts) => Some(facts.tokens.iter().map(|token| token.number.to_string()).collect()),
        _ => None,
    })
}

/// The candidates from the header of the first named volume that has any. Asks for nothing, and reads only the header.
fn header(of: fn(&HeaderFacts) -> Option<Vec<String>>) -> Vec<String> {
    let in_word = |word: &OsString| of(&facts(word)?);
    shells::words_before().iter().skip(1).find_map(in_word).unwrap_or_default()
}

fn facts(word: &OsString) -> Option<HeaderFacts> {
    let path = at_home(word.to_str().and_then(|word| word.strip_prefix("--header=")).map_or(word, OsStr::new));
    let kind = fs::metadata(&path).ok()?.file_type();
    let header = (kind.is_file() || kind.is_block_device()).then(|| Opening::path(&path).find_header().ok())??.header;
    header.describe()
}

/// Shells pass `~/` unexpanded.
fn at_home(word: &OsStr) -> PathBuf {
    let path = PathBuf::from(word);
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(below), Some(home)) => home.join(below),
        _ => path,
    }
}

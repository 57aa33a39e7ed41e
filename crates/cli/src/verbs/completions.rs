//! `claviger completions`: what shells complete. Their scripts ask this program at each tab, since what a word can become depends on what
//! is there: volumes, names, keyslots.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use clap::Arg;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use claviger_engine::formats::{Choices, FORMATS, Format};
use claviger_engine::{Opening, file_formats};
use claviger_lab::facility::Catalogue;
use claviger_serve::sessions::{Runtime, Session};
use serde_json::Value;

use crate::terminal::output;
use crate::verbs::attach;

/// Print shell completions
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// The variable of the environment by which a shell's script asks.
const ASKED: &str = "CLAVIGER_COMPLETE";

/// What a word can become, besides a path.
type Words = fn() -> Vec<String>;

/// By what a value is called in `--help`, and the option's name or, without one, the verb's.
const WORDS: &[(&str, &str, Words)] = &[
    ("NAME", "format", formats),
    ("FORMAT", "format", formats),
    ("NAME", "new-format", formats),
    ("NAME", "cipher", ciphers),
    ("NAME", "new-cipher", ciphers),
    ("NAME", "hidden-cipher", ciphers),
    ("NAME", "hash", hashes),
    ("NAME", "new-hash", hashes),
    ("NAME", "kdf", kdfs),
    ("NAME", "new-kdf", kdfs),
    ("NAME", "facility", facilities),
    ("N", "keyslot", keyslots),
    ("SLOT", "slot", keyslots),
    ("N", "at", keyslots),
    ("NAME", "attach", attach::names),
    ("NAME", "detach", mapped),
    ("DIR|VOLUME", "unmount", open),
    ("DIR|VOLUME", "lock", open),
    ("VOLUME", "unlock", open),
];

/// Answers the script of a shell, and ends the program, if it is a script that asks.
pub fn answer() {
    CompleteEnv::with_factory(|| rich("", crate::command())).var(ASKED).complete();
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string()).expect("clap has both lists");
    shell.write_registration(ASKED, "claviger", "claviger", "claviger", &mut script)?;
    if args.shell == Shell::Zsh {
        // It reads the file at the first tab, which is to be answered as well.
        script.extend(b"[ \"$funcstack[1]\" != _claviger ] || _clap_dynamic_completer_claviger \"$@\"\n");
    }
    output::write(&mut output::raw()?, &script)
}

/// The verb, and those below it, with what its words can become.
fn rich(above: &str, verb: clap::Command) -> clap::Command {
    let name = verb.get_name().to_owned();
    verb.mut_args(|arg| with_words(if above == "keyslot" { above } else { &name }, arg))
        .mut_subcommands(|part| rich(&name, part))
}

fn with_words(verb: &str, arg: Arg) -> Arg {
    let value = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
    let place = arg.get_long().unwrap_or(verb);
    let row = WORDS.iter().find(|(called, at, _)| value.as_deref() == Some(called) && place == *at);
    let Some(&(called, _, words)) = row else { return arg };
    let or_path = called.contains("VOLUME");
    arg.add(ArgValueCompleter::new(move |current: &std::ffi::OsStr| {
        let begins = current.to_string_lossy();
        let known = words().into_iter().filter(|word| begins_with(word, &begins)).map(CompletionCandidate::new);
        let paths = if or_path { PathCompleter::any().complete(current) } else { Vec::new() };
        known.chain(paths).collect()
    }))
}

/// Names are taken in any case.
fn begins_with(word: &str, begins: &str) -> bool {
    word.get(..begins.len()).is_some_and(|start| start.eq_ignore_ascii_case(begins))
}

fn formats() -> Vec<String> {
    let volumes = FORMATS.iter().map(|format| format.name());
    volumes.chain(file_formats::FILE_FORMATS.iter().map(|format| format.name())).map(str::to_owned).collect()
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

/// What there is to choose from, of the formats that the words name, or of all.
fn chosen(of: fn(Choices) -> Vec<&'static str>) -> Vec<String> {
    let words: Vec<_> = std::env::args_os().collect();
    let named = |name: &str| words.iter().any(|word| word.to_string_lossy().eq_ignore_ascii_case(name));
    let (named, all): (Vec<&'static dyn Format>, Vec<_>) = FORMATS.iter().partition(|format| named(format.name()));
    let formats = if named.is_empty() { all } else { named };
    let creators = formats.into_iter().filter_map(|format| format.creator());
    let mut names: Vec<_> = creators.flat_map(|creator| of(creator.choices())).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// The folders and volumes of what is mounted or served.
fn open() -> Vec<String> {
    let sessions = Runtime::of_this_user().and_then(|runtime| runtime.sessions()).unwrap_or_default();
    let places = |session: Session| session.record.dir.into_iter().chain([session.record.volume]);
    sessions.into_iter().flat_map(places).map(|path| path.display().to_string()).collect()
}

fn mapped() -> Vec<String> {
    let names = fs::read_dir("/dev/mapper").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "control").collect()
}

/// The keyslots of the first word that is a volume with some. Nothing is asked for, and nothing but its header is read.
fn keyslots() -> Vec<String> {
    std::env::args_os().skip(1).find_map(|word| keyslots_of(&word)).unwrap_or_default()
}

fn keyslots_of(word: &OsString) -> Option<Vec<String>> {
    let path = Path::new(word);
    let kind = fs::metadata(path).ok()?.file_type();
    let header = (kind.is_file() || kind.is_block_device()).then(|| Opening::path(path).find_header().ok())??.header;
    let described = header.describe()?;
    let active = |slot: &&Value| slot.get("active") != Some(&Value::Bool(false));
    let keyslots = described.get("keyslots")?.as_array()?.iter().filter(active);
    Some(keyslots.filter_map(|slot| Some(slot.get("number").or(slot.get("keyslot"))?.to_string())).collect())
}

//! The `claviger` program: one file per verb.
#![forbid(unsafe_code)]

mod opening;
mod process;
mod terminal;
mod verbs;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use claviger_serve::inherited;

use opening::mount_point;
use process::command_line::Understood;
use process::helper;
use terminal::advice::NamedVolume;
use terminal::exit;
use terminal::session::SessionArgs;
use verbs::{
    attach, benchmark, cat, change, completions, convert, cp, create, detach, efs, explain, find, header, identify,
    info, keyfile, keyslot, lab, list, lock, ls, man, mount, recovery, reencrypt, resize, serve, token, tree, unlock,
    unmount, verify,
};

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The form of errors, for `--help` and the man pages.
pub const JSON_ERRORS: &str = "Errors go to standard error as text; with --json as one line with one object, \
     {\"json_version\", \"error\": {\"kind\", \"message\", \"hint\", \"exit_code\"}}.";

/// One key ring for every encrypted disk
///
/// Opens, creates, serves and measures encrypted volumes without root and without a kernel module.
#[derive(Parser)]
#[command(
    name = "claviger",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = after_help()
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,

    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Subcommand)]
enum Verb {
    Identify(identify::Args),
    Info(info::Args),
    Explain(explain::Args),
    Find(find::Args),
    Create(create::Args),
    Cat(cat::Args),
    Ls(ls::Args),
    Tree(tree::Args),
    Cp(cp::Args),
    Serve(serve::Args),
    Mount(Box<mount::Args>),
    Unmount(unmount::Args),
    Lock(lock::Args),
    Unlock(Box<unlock::Args>),
    List(list::Args),
    Attach(Box<attach::Args>),
    Detach(detach::Args),
    Verify(verify::Args),
    Change(change::Args),
    Convert(Box<convert::Args>),
    Header(header::Args),
    Keyslot(keyslot::Args),
    Recovery(recovery::Args),
    Token(token::Args),
    Efs(efs::Args),
    Resize(resize::Args),
    Reencrypt(Box<reencrypt::Args>),
    Keyfile(keyfile::Args),
    Benchmark(benchmark::Args),
    Lab(lab::Args),
    #[command(hide = true)]
    Man(man::Args),
    #[command(hide = true)]
    Completions(completions::Args),
}

fn after_help() -> String {
    let examples = "Examples:\n  claviger identify old.tc\n  claviger info old.tc\n  claviger cat old.tc > image.img\n  \
                    claviger mount old.tc /mnt/old\n  claviger serve old.tc";
    format!("{examples}\n\n{}\n{JSON_ERRORS}", exit::table())
}

/// The definitions of all verbs and options.
fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, also for child processes. Drops the definitions: a server would keep their half a megabyte.
fn understand(words: &[OsString]) -> Result<(Cli, Understood), clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|usage| usage.format(&mut command))?;
    Ok((cli, Understood::of(&command, &matches)))
}

fn main() -> ExitCode {
    completions::answer();
    inherited::keep();
    let words = match helper::words(std::env::args_os().collect(), Cli::command()) {
        Ok(words) => words,
        Err(code) => return code,
    };
    let (cli, understood) = match understand(&words) {
        Ok(understood) => understood,
        Err(usage) => return exit::usage(&usage, words.iter().any(|word| word == "--json")),
    };
    let volume = understood.names_volume.then(|| NamedVolume::of(&understood.words)).flatten();
    let words = understood.words;
    if let Err(e) = cli.session.begin(volume) {
        return exit::finish(Err(e.into()), understood.json);
    }
    let result = match &cli.verb {
        Verb::Identify(args) => identify::run(args),
        Verb::Info(args) => info::run(args),
        Verb::Explain(args) => explain::run(args, &words),
        Verb::Find(args) => find::run(args),
        Verb::Create(args) => create::run(args),
        Verb::Cat(args) => cat::run(args),
        Verb::Ls(args) => ls::run(args),
        Verb::Tree(args) => tree::run(args),
        Verb::Cp(args) => cp::run(args),
        Verb::Serve(args) => serve::run(args, &words),
        Verb::Mount(args) => mount::run(args, &words),
        Verb::Unmount(args) => unmount::run(args),
        Verb::Lock(args) => lock::run(args),
        Verb::Unlock(args) => unlock::run(args, &words),
        Verb::List(args) => list::run(args),
        Verb::Attach(args) => attach::run(args, &understood.global),
        Verb::Detach(args) => detach::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Change(args) => change::run(args),
        Verb::Convert(args) => convert::run(args, &words),
        Verb::Header(args) => header::run(args),
        Verb::Keyslot(args) => keyslot::run(args),
        Verb::Recovery(args) => recovery::run(args),
        Verb::Token(args) => token::run(args),
        Verb::Efs(args) => efs::run(args),
        Verb::Resize(args) => resize::run(args),
        Verb::Reencrypt(args) => reencrypt::run(args, &words),
        Verb::Keyfile(args) => keyfile::run(args),
        Verb::Benchmark(args) => benchmark::run(args),
        Verb::Lab(args) => lab::run(args),
        Verb::Man(args) => man::run(args),
        Verb::Completions(args) => completions::run(args),
    };
    exit::finish(result.map_err(mount_point::say_where), understood.json)
}

#[cfg(test)]
mod documents;

#[cfg(test)]
mod tests {
    use super::*;

    /// Verbs combine groups of options; no two options of a verb may have the same name.
    #[test]
    fn options_of_verbs_have_different_names() {
        Cli::command().debug_assert();
    }

    /// Each heading ends after its own options: positional arguments, and options that every verb has, stand under no
    /// heading.
    #[test]
    fn headings_of_the_help_end() {
        fn check(verb: &clap::Command) {
            for arg in verb.get_arguments() {
                let everywhere = ["json", "yes", "force", "read-only"].iter().any(|name| arg.get_long() == Some(name));
                if (everywhere || arg.is_positional()) && verb.get_name() != "keyfile" {
                    assert_eq!(arg.get_help_heading(), None, "{}: {arg}", verb.get_name());
                }
            }
            verb.get_subcommands().for_each(check);
        }
        check(&Cli::command());
        let create = Cli::command().find_subcommand("create").cloned().expect("a verb");
        for heading in create.get_arguments().filter_map(clap::Arg::get_help_heading) {
            let format = ["LUKS", "BitLocker", "VeraCrypt"].iter().find(|format| heading.starts_with(**format));
            assert!(format.is_none() || heading == "BitLocker protectors", "{heading}");
        }
    }

    #[test]
    fn whoever_names_a_format_may_use_the_short_names() {
        fn check(verb: &clap::Command) {
            let has = |name: &str| verb.get_arguments().find(|arg| arg.get_long() == Some(name));
            let help = has("format").and_then(clap::Arg::get_help).map(ToString::to_string).unwrap_or_default();
            if help.starts_with("Treat it as a volume") {
                assert!(has("truecrypt").is_some() && has("veracrypt").is_some(), "{}", verb.get_name());
            }
            verb.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn keyslots_offer_no_options_of_formats_without_them() {
        use claviger_engine::formats::takes::{Parameter, Purpose};
        for takes in claviger_engine::FORMATS.iter().map(|format| format.takes()) {
            let opening = takes.to(Purpose::Opening);
            assert!(!(opening.contains(&Parameter::Keyslot) && opening.contains(&Parameter::Pim)));
        }
        let command = Cli::command();
        let keyslot = command.find_subcommand("keyslot").expect("a verb");
        let offered = |name: &str| {
            let shown = |arg: &clap::Arg| arg.get_long() == Some(name) && !arg.is_hide_set();
            keyslot.get_subcommands().filter(|part| part.get_arguments().any(shown)).count()
        };
        assert!(offered("password-file") > 5);
        for foreign in ["truecrypt", "veracrypt", "pim", "new-pim", "data-offset", "passthrough", "windows-profile"] {
            assert_eq!(offered(foreign), 0, "{foreign}");
        }
    }

    #[test]
    fn to_answer_a_question_that_is_not_asked_is_harmless() {
        for line in ["lab run --yes", "lab check --yes", "create --yes v", "attach --yes n", "convert --yes v w"] {
            let words = ["claviger"].into_iter().chain(line.split(' '));
            assert!(Cli::command().try_get_matches_from(words).is_ok(), "{line}");
        }
    }
}

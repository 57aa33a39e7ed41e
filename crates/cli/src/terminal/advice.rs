//! The engine's advice as text: the one place that knows the command or option for each.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use claviger_engine::{Advice, Error, Warning};

use crate::process::command_line;
use crate::terminal::output;
use crate::terminal::session::session;

/// What stands for the volume in suggested commands until the command line has named one.
const VOLUME: &str = "VOLUME";

/// The volume of the command line, as suggested commands name it: words quoted for a shell.
pub struct NamedVolume {
    /// For commands that take the options of the command line: `--header=disk.header disk.luks`.
    volume: String,
    /// The same for commands that also take `--isolate-keys`, if that was given.
    isolated: Option<String>,
    /// For commands that work on the header alone, and take a detached one as their volume.
    header: String,
    /// The volume itself, for commands of other programs; `None` if it is a partition.
    file: Option<OsString>,
    /// The whole command line.
    line: Vec<OsString>,
}

impl NamedVolume {
    /// The volume of a parsed command line, whose first name is that of a volume (see [`crate::process::command_line`]).
    pub fn of(line: &[OsString]) -> Option<Self> {
        const HEADER: &str = "--header=";
        const ISOLATE: &str = "--isolate-keys";
        let (options, places) = line.split_at(line.iter().position(|word| word == "--")?);
        let volume = places.get(1)?.as_os_str();
        let option = |name: &str| {
            let begins = |word: &&OsString| word.as_bytes().starts_with(name.as_bytes());
            options.iter().find(begins).map(OsString::as_os_str)
        };
        let (header, partition) = (option(HEADER), option("--partition="));
        let marked = volume.as_bytes().starts_with(b"-").then_some(OsStr::new("--"));
        let alone = header.map(|header| output::command([OsStr::from_bytes(&header.as_bytes()[HEADER.len()..])]));
        let all = [header, partition, marked, Some(volume)];
        let isolate = options.iter().map(OsString::as_os_str).find(|word| *word == ISOLATE);
        Some(Self {
            volume: output::command(all.into_iter().flatten()),
            isolated: isolate.map(|isolate| output::command([Some(isolate)].into_iter().chain(all).flatten())),
            header: alone.unwrap_or_else(|| output::command([partition, marked, Some(volume)].into_iter().flatten())),
            file: partition.is_none().then(|| volume.to_owned()),
            line: line.to_vec(),
        })
    }
}

impl NamedVolume {
    /// The volume for a command of this program, which begins with the verb. A partition stays without a name for a verb that takes
    /// none.
    fn of_command(&self, command: &str) -> &str {
        let has = |name| command_line::has_option(command, name);
        match self.file {
            None if !has("partition") => VOLUME,
            _ if has("header") && has("isolate-keys") => self.isolated.as_ref().unwrap_or(&self.volume),
            _ if has("header") => &self.volume,
            _ => &self.header,
        }
    }
}

/// The text with the volume of the command line in the place of `VOLUME` in this program's commands.
pub fn with_volume(text: &str) -> String {
    match &session().volume {
        Some(named) => filled_in(text, |command| named.of_command(command)),
        None => text.to_owned(),
    }
}

/// The text with the header of the command line in the place of `VOLUME` in this program's commands.
pub fn with_header(text: &str) -> String {
    match &session().volume {
        Some(named) => filled_in(text, |_| &named.header),
        None => text.to_owned(),
    }
}

/// The text with the volume at `path` in the place of `VOLUME` in this program's commands.
pub fn about(text: &str, path: &Path) -> String {
    let named = NamedVolume::of(&["--".into(), path.into()]);
    named.map_or_else(|| text.to_owned(), |named| filled_in(text, |command| named.of_command(command)))
}

fn filled_in<'a>(text: &'a str, volume: impl Fn(&str) -> &'a str) -> String {
    let parts = text.split('`').enumerate().map(|(i, part)| match part.strip_prefix("claviger ") {
        Some(command) if i % 2 == 1 => {
            let named = part.split(' ').map(|word| if word == VOLUME { volume(command) } else { word });
            named.collect::<Vec<_>>().join(" ")
        }
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// The advice as one or more sentences.
pub fn say(advice: &Advice) -> String {
    with_volume(&words_of(advice))
}

fn words_of(advice: &Advice) -> String {
    match advice {
        Advice::AllowRemovingLast => "To give up the data: `claviger keyslot remove --last VOLUME`.",
        Advice::AllowUnencrypted => "To allow writing, add --write-unencrypted.",
        Advice::BackUpHeader => "If you may still need it, back it up first: `claviger header backup VOLUME FILE`.",
        Advice::ChangeCredential => "To change its password or keyfiles: `claviger change VOLUME`.",
        Advice::ChooseLogicalVolume(names) if !names.is_empty() => {
            return format!("It holds logical volumes. Choose one with --logical-volume: {}.", names.join(", "));
        }
        Advice::ChoosePartition(numbers) if !numbers.is_empty() => {
            let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
            return format!(
                "This is a partitioned disk. Choose one with --partition; these could be volumes: {}.",
                numbers.join(", ")
            );
        }
        Advice::CompleteCopy { .. } | Advice::CutOff { .. } => {
            let volume = session().volume.as_ref().and_then(|named| named.file.as_deref());
            let copy = of_copy(advice, volume.unwrap_or(VOLUME.as_ref())).unwrap_or_default();
            return format!("To make a complete copy: `{copy}`.");
        }
        Advice::ConvertToLuks2 => "To convert the header: `claviger header convert --to LUKS2 VOLUME`.",
        Advice::CopyVolume => "To copy its contents to a new volume: `claviger convert VOLUME NEW`.",
        Advice::GivePrivateKey => {
            "Give an exported private key (PFX, PEM) with --certificate FILE, or the user's key store on the disk \
             with --windows-profile :/Users/NAME. `claviger ls -l` shows for whom a file is encrypted."
        }
        Advice::GiveAsPassphrase => {
            "If its contents were hashed, give the file with --password-file instead of \
             --keyfile."
        }
        Advice::GiveCredential => "Give a credential; in a script, with --password-file or --keyfile.",
        Advice::ListKeyslots => "To list them: `claviger keyslot list VOLUME`.",
        Advice::NameFormat => "Name its format with --format.",
        Advice::NameHeader => "Give the file or device with the data as the volume, and this one with --header.",
        Advice::NameKeyslot => "Choose one with --slot N.",
        Advice::OpenReadOnly => {
            "You have no permission to write to it. To only read it, add --read-only to `mount` or `serve`."
        }
        Advice::OpenTruncated => "To read what is left, add --truncated.",
        Advice::RepairHeader => "To repair it: `claviger header repair VOLUME`.",
        Advice::Reseal => "In one step: `claviger keyslot reseal VOLUME`.",
        Advice::RestoreEmbedded => "To restore it from there: `claviger header restore --embedded VOLUME`.",
        Advice::RestoreHeader => "To restore the header from a backup: `claviger header restore --from FILE VOLUME`.",
        Advice::ResumeDecryption => "To resume: `claviger reencrypt --decrypt VOLUME` with the same --header.",
        Advice::ResumeReencryption => "To resume: `claviger reencrypt --resume VOLUME`.",
        Advice::RewriteHeader => "To rewrite it: `claviger change VOLUME`.",
        Advice::UseFiles => "To list its files: `claviger ls VOLUME`. `claviger cp` and `claviger mount` take it, too.",
        // The engine's own text is better for the others, and for new ones that this program does not know.
        other => return other.to_string(),
    }
    .to_owned()
}

/// What to try about an error, with the volume of the command line in this program's commands.
pub fn to_try(error: &Error) -> Option<String> {
    error.to_try(say).map(|text| with_volume(&text))
}

/// The command line of this process with another verb and these names: it repeats the options that the verb has.
pub fn command<'a>(verb: &'a str, names: impl Iterator<Item = &'a OsStr>) -> String {
    let line = session().volume.as_ref().map_or(&[][..], |named| &named.line);
    let options = command_line::repeated(verb, line).map(OsString::as_os_str);
    let mut names = names.peekable();
    let marked = names.peek().filter(|name| name.as_bytes().starts_with(b"-")).map(|_| OsStr::new("--"));
    output::command(["claviger", verb].into_iter().map(OsStr::new).chain(options).chain(marked).chain(names))
}

/// The command line of this process with `other` in the place of the volume at `path`. `None` if it names no such volume.
pub fn this_command(path: &Path, other: &OsStr) -> Option<String> {
    let line = &session().volume.as_ref()?.line;
    let (words, names) = line.split_at(line.iter().position(|word| word == "--")?);
    let verb: Vec<_> = words.iter().skip(1).take_while(|word| !word.as_bytes().starts_with(b"-")).collect();
    let name = verb.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let options = command_line::repeated(&name, line);
    if !names.iter().any(|name| name == path) {
        return None;
    }
    let names = names.iter().skip(1).map(|name| if name == path { other } else { name });
    let words = [OsStr::new("claviger")].into_iter().chain(verb.into_iter().chain(options).map(OsString::as_os_str));
    Some(output::command(words.chain(names)))
}

/// The option as this command line gives it, with its value.
pub fn given(option: &str) -> Option<&'static OsStr> {
    let line = session().volume.as_ref().map_or(&[][..], |named| &named.line);
    let options = line.iter().take_while(|word| *word != "--");
    options.map(OsString::as_os_str).find(|word| command_line::option(word) == option)
}

/// The shell command that makes a complete copy of `volume` in the current folder, if the advice is to make a copy.
pub fn of_copy(advice: &Advice, volume: impl AsRef<Path>) -> Option<String> {
    let mut copy = volume.as_ref().file_name().unwrap_or_default().to_owned();
    copy.push(".complete");
    let (volume, copy) = (output::command([volume.as_ref()]), output::command([copy]));
    match advice {
        Advice::CompleteCopy { shift: shift @ ..0 } => {
            Some(format!("(head -c {} /dev/zero; cat) < {volume} > {copy}", shift.unsigned_abs()))
        }
        Advice::CompleteCopy { shift } => Some(format!("tail -c +{} < {volume} > {copy}", shift.saturating_add(1))),
        Advice::CutOff { len } => Some(format!("head -c {len} < {volume} > {copy}")),
        _ => None,
    }
}

/// Warnings as text.
pub fn texts(warnings: &[Warning]) -> Vec<String> {
    warnings.iter().map(|warning| with_volume(&warning.in_words(say))).collect()
}

/// Prints the warnings and returns them as text.
pub fn warn(warnings: &[Warning]) -> Vec<String> {
    let texts = texts(warnings);
    texts.iter().for_each(|text| output::warn(text));
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const ALL: &[Advice] = &[
        Advice::AllowRemovingLast,
        Advice::AllowUnencrypted,
        Advice::BackUpHeader,
        Advice::ChangeCredential,
        Advice::CompleteCopy { shift: -4096 },
        Advice::CompleteCopy { shift: 512 },
        Advice::CutOff { len: 1 << 20 },
        Advice::ChooseLogicalVolume(Vec::new()),
        Advice::ChoosePartition(Vec::new()),
        Advice::ConvertToLuks2,
        Advice::CopyVolume,
        Advice::GivePrivateKey,
        Advice::GiveAsPassphrase,
        Advice::GiveCredential,
        Advice::ListKeyslots,
        Advice::NameFormat,
        Advice::NameHeader,
        Advice::NameKeyslot,
        Advice::OpenReadOnly,
        Advice::OpenTruncated,
        Advice::RepairHeader,
        Advice::Reseal,
        Advice::RestoreEmbedded,
        Advice::RestoreHeader,
        Advice::ResumeDecryption,
        Advice::ResumeReencryption,
        Advice::RewriteHeader,
        Advice::UseFiles,
    ];

    /// Whether any verb has the option.
    fn has_option(command: &clap::Command, option: &str) -> bool {
        command.get_arguments().any(|arg| arg.get_long() == Some(option))
            || command.get_subcommands().any(|verb| has_option(verb, option))
    }

    #[test]
    fn every_command_and_option_that_is_advised_exists() {
        let program = crate::Cli::command();
        let partitions = Advice::ChoosePartition(vec![2, 5]);
        let logical_volumes = Advice::ChooseLogicalVolume(vec!["vg/root".into(), "vg/home".into()]);
        let mut commands = 0;
        for text in ALL.iter().chain([&partitions, &logical_volumes]).map(say) {
            assert!(text.ends_with('.'), "{text}: whole sentences");
            for command in text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_prefix("claviger ")) {
                let verbs = command.split(' ').filter(|word| word.chars().all(|c| c.is_ascii_lowercase()));
                let found = verbs.into_iter().try_fold(&program, |verb, name| verb.find_subcommand(name));
                assert!(found.is_some(), "{text}");
                commands += 1;
            }
            let words = text.split(|c: char| c.is_whitespace() || c == '`' || c == ';');
            for option in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(has_option(&program, option.trim_end_matches(['.', ',', ':'])), "{text}: --{option}");
            }
        }
        assert!(commands > 5);
    }

    #[test]
    fn the_volume_is_named_as_on_the_command_line() {
        let named = |line: &str| NamedVolume::of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let text = "Try `claviger change VOLUME`; VOLUME is in `VOLUME`, not `claviger cat /VOLUMES`.";
        for (line, volume, header) in [
            ("claviger info --json -- it's.tc", r"'it'\''s.tc'", r"'it'\''s.tc'"),
            ("claviger ls --partition=2 --hash=x -- v :/a", "--partition=2 v", "--partition=2 v"),
            ("claviger ls -- -v", "-- -v", "-- -v"),
            ("claviger ls --header=h --partition=2 -- v", "--header=h --partition=2 v", "h"),
        ] {
            let named = named(line).expect("a volume");
            assert_eq!((&*named.volume, &*named.header), (volume, header), "{line}");
            let filled = text.replacen("VOLUME", volume, 1);
            assert_eq!(filled_in(text, |command| named.of_command(command)), filled, "{line}");
        }
        assert!(named("claviger list").is_none() && named("claviger lab run --json").is_none());
    }

    /// A command that is suggested for the volume of any command line has only options that its verb has.
    #[test]
    fn every_verb_gets_only_options_that_it_has() {
        fn check(verb: &clap::Command, called: &str, named: &NamedVolume) {
            let names = verb.get_positionals().next().and_then(clap::Arg::get_value_names).unwrap_or_default();
            let options = named.of_command(called).split(' ').filter_map(|word| word.strip_prefix("--"));
            for option in options.filter(|_| names.iter().any(|name| *name == *VOLUME)) {
                let name = option.split('=').next().expect("a name");
                assert!(command_line::has_option(called, name), "claviger {called} has no --{name}");
            }
            verb.get_subcommands().for_each(|part| check(part, &format!("{called} {}", part.get_name()), named));
        }
        for line in [
            "claviger ls --header=h -- v",
            "claviger ls --partition=2 -- v",
            "claviger ls --header=h --partition=2 -- v",
        ] {
            let line: Vec<_> = line.split(' ').map(OsString::from).collect();
            let named = NamedVolume::of(&line).expect("a volume");
            crate::Cli::command().get_subcommands().for_each(|verb| check(verb, verb.get_name(), &named));
        }
    }

    #[test]
    fn an_embedder_reads_of_no_command() {
        for advice in ALL {
            let text = advice.to_string();
            assert!(text.ends_with('.') && !text.contains("claviger") && !text.contains("--"), "{text}");
        }
    }
}

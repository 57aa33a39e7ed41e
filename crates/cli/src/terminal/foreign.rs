//! Translates the words of other programs into ours.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use claviger_engine::{Error, formats};

/// Verbs of other programs, and ours that do the same.
const FOREIGN: &[(&[&str], &str)] = &[
    (&["open", "luksOpen", "tcryptOpen", "bitlkOpen", "plainOpen", "decrypt", "map"], "mount VOLUME"),
    (&["close", "luksClose", "dismount", "eject"], "unmount VOLUME"),
    (&["format", "luksFormat", "new", "make", "encrypt"], "create --size 100M --filesystem exfat VOLUME"),
    (&["luksDump", "dump"], "header show VOLUME"),
    (&["luksAddKey"], "keyslot add VOLUME"),
    (&["luksChangeKey", "passwd", "password"], "change VOLUME"),
    (&["luksRemoveKey"], "keyslot remove VOLUME"),
    (&["luksKillSlot"], "keyslot kill VOLUME N"),
    (&["luksHeaderBackup"], "header backup VOLUME FILE"),
    (&["luksHeaderRestore"], "header restore --from FILE VOLUME"),
    (&["extract", "export"], "cp -r VOLUME :/ FOLDER"),
    (&["status"], "list"),
];

/// Options with which other programs take a password.
const PASSWORD: &[&str] = &["--password", "-p", "--passphrase"];

/// Suggests our word for a word that the user knows from another program.
pub fn suggestion(error: &clap::Error) -> Option<Error> {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(given)) => Some(given.as_str()),
        _ => None,
    };
    let verb = given(ContextKind::InvalidSubcommand).filter(|_| error.kind() == ErrorKind::InvalidSubcommand);
    let of_verb = |verb| FOREIGN.iter().find(|(others, _)| others.contains(&verb)).map(|(_, ours)| (verb, ours));
    if let Some((verb, ours)) = verb.and_then(of_verb) {
        return Some(Error::misuse(format!("unknown command '{verb}'")).hint(format!("Use `claviger {ours}`.")));
    }
    let option = given(ContextKind::InvalidArg)?;
    if PASSWORD.contains(&option) {
        return Some(
            Error::misuse("passwords are not accepted on the command line, which others can read")
                .hint("Omit it to be asked. In scripts, use --password-file or --password-fd."),
        );
    }
    let format = format_of(option).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let hint = format!("To name the format, use --format {format}.");
    Some(Error::misuse(format!("unknown option '{option}'")).hint(hint))
}

/// The format that an option means, as cryptsetup and other programs have it: `--luks2`, `--type`.
fn format_of(option: &str) -> Option<&'static str> {
    let name = option.strip_prefix("--")?;
    match name {
        "type" => Some("NAME"),
        "bitlk" => Some("BitLocker"),
        "tcrypt" => Some("TrueCrypt"),
        "fvault2" => Some("FileVault2"),
        _ => formats::by_name(name).map(|format| format.name()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn words_of_other_programs_are_told_what_they_are_here() {
        let suggestion = |words: &[&str]| {
            let line = ["claviger"].iter().chain(words);
            crate::Cli::try_parse_from(line).err().and_then(|e| suggestion(&e)).map(|e| e.to_string())
        };
        for (words, ours) in FOREIGN {
            for word in *words {
                assert!(suggestion(&[word]).is_some_and(|text| text.contains(ours)), "{word}");
            }
            let ours = ["claviger"].into_iter().chain(ours.split(' ')).map(|word| if word == "N" { "1" } else { word });
            assert!(crate::Cli::try_parse_from(ours.clone()).is_ok(), "{:?}", ours.collect::<Vec<_>>());
        }
        for password in [&["info", "--password", "x", "v"][..], &["info", "-p", "x", "v"]] {
            assert!(suggestion(password).is_some_and(|text| text.contains("--password-file")), "{password:?}");
        }
        for (option, format) in
            [("--veracrypt", "VeraCrypt"), ("--luks2", "LUKS2"), ("--luks", "LUKS2"), ("--type", "NAME")]
        {
            let text = suggestion(&["create", option, "v"]).unwrap_or_default();
            assert!(text.contains(&format!("--format {format}.")), "{option}: {text}");
        }
        for known in [&["mout", "v"][..], &["info", "--veracrypt", "v"], &["create", "--lable", "x", "v"]] {
            assert_eq!(suggestion(known), None, "{known:?}");
        }
    }
}

//! The engine's advice as text: the one place that knows the command or option for each.

use claviger_engine::{Advice, Warning};

use crate::terminal::output;

/// The advice as one or more sentences.
pub fn say(advice: &Advice) -> String {
    match advice {
        Advice::AllowRemovingLast => "To give up the data: `claviger keyslot remove --last`.",
        Advice::AllowUnencrypted => "To allow writing, add --write-unencrypted.",
        Advice::BackUpHeader => "If you may still need it, back it up first: `claviger header backup`.",
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
            return format!("To make a complete copy: `{}`.", of_copy(advice, "VOLUME", "COPY").unwrap_or_default());
        }
        Advice::ConvertToLuks2 => "To convert the header: `claviger header convert --to LUKS2`.",
        Advice::GivePrivateKey => {
            "Give an exported private key (PFX, PEM) with --certificate FILE, or the user's key store on the disk \
             with --windows-profile :/Users/NAME. `claviger ls -l` shows for whom a file is encrypted."
        }
        Advice::GiveAsPassphrase => {
            "If its contents were hashed, give the file with --password-file instead of \
             --keyfile."
        }
        Advice::GiveCredential => "Give a credential; in a script, with --password-file or --keyfile.",
        Advice::ListKeyslots => "To list them: `claviger keyslot list`.",
        Advice::NameFormat => "Name its format with --format.",
        Advice::NameHeader => "Give the file or device with the data as the volume, and this one with --header.",
        Advice::NameKeyslot => "Choose one with --slot N.",
        Advice::OpenReadOnly => {
            "You have no permission to write to it. To only read it, add --read-only to `mount` or `serve`."
        }
        Advice::OpenTruncated => "To read what is left, add --truncated.",
        Advice::RepairHeader => "To repair it: `claviger header repair`.",
        Advice::RestoreEmbedded => "To restore it from there: `claviger header restore --embedded`.",
        Advice::RestoreHeader => "To restore the header from a backup: `claviger header restore`.",
        Advice::ResumeDecryption => "To resume: `claviger reencrypt --decrypt` with the same --header.",
        Advice::ResumeReencryption => "To resume: `claviger reencrypt --resume`.",
        Advice::RewriteHeader => "To rewrite it: `claviger change`.",
        Advice::UseFiles => "Use `claviger ls`, `claviger cp` or `claviger mount` for its files.",
        // The engine's own text is better for the others, and for new ones that this program does not know.
        other => return other.to_string(),
    }
    .to_owned()
}

/// The shell command that makes the copy `copy` of `volume`, if the advice is to make a copy.
pub fn of_copy(advice: &Advice, volume: &str, copy: &str) -> Option<String> {
    let (volume, copy) = (output::command([volume]), output::command([copy]));
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
    warnings.iter().map(|warning| warning.in_words(say)).collect()
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
        Advice::CompleteCopy { shift: -4096 },
        Advice::CompleteCopy { shift: 512 },
        Advice::CutOff { len: 1 << 20 },
        Advice::ChooseLogicalVolume(Vec::new()),
        Advice::ChoosePartition(Vec::new()),
        Advice::ConvertToLuks2,
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
    fn an_embedder_reads_of_no_command() {
        for advice in ALL {
            let text = advice.to_string();
            assert!(text.ends_with('.') && !text.contains("claviger") && !text.contains("--"), "{text}");
        }
    }
}

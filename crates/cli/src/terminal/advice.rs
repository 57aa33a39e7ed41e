//! The engine's advice in the words of this program: the one place that knows which command or option it is.

use claviger_engine::{Advice, Warning};

use crate::terminal::output;

/// What is said of it: one sentence or several.
pub fn say(advice: &Advice) -> String {
    match advice {
        Advice::AllowUnencrypted => "--write-unencrypted allows writing.",
        Advice::BackUpHeader => "Save them with `claviger header backup` if they may still be wanted.",
        Advice::ChoosePartition(numbers) if !numbers.is_empty() => {
            let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
            return format!(
                "It is a disk with partitions. To open one, choose it with --partition; these could be volumes: {}.",
                numbers.join(", ")
            );
        }
        Advice::ConvertToLuks2 => "`claviger header convert --to LUKS2` turns the header into one of it.",
        Advice::ListKeyslots => "`claviger keyslot list` shows those that there are.",
        Advice::NameFormat => "Name its format: the option is --format.",
        Advice::NameHeader => {
            "Name the file or device with the data as the volume, and this one as its header. The option is --header."
        }
        Advice::NameKeyslot => "The option is --slot N.",
        Advice::OpenReadOnly => {
            "It may not be written. To read it, `mount` and `serve` have --read-only; other verbs that read never write."
        }
        Advice::OpenTruncated => {
            "What is left can be read if a truncated volume is allowed. The option is --truncated."
        }
        Advice::RepairHeader => "`claviger header repair` writes anew what is damaged.",
        Advice::RestoreHeader => "`claviger header restore` puts a header back from a file.",
        Advice::ResumeDecryption => "`claviger reencrypt --decrypt` with the same --header goes on with it.",
        Advice::ResumeReencryption => "`claviger reencrypt --resume` goes on with it.",
        // No command is the better word for the others, and for those that this program has not heard of.
        other => return other.to_string(),
    }
    .to_owned()
}

/// Warnings as text.
pub fn texts(warnings: &[Warning]) -> Vec<String> {
    warnings.iter().map(|warning| warning.told(say)).collect()
}

/// Tells the warnings, and gives them back as text.
pub fn warn(warnings: &[Warning]) -> Vec<String> {
    let texts = texts(warnings);
    texts.iter().for_each(|text| output::warn(text));
    texts
}

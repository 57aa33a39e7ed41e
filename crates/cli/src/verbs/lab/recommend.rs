//! `claviger lab recommend`

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use claviger_engine::Error;
use claviger_lab::measure::run::stored;
use claviger_lab::model::answers::{EncryptionPurpose, Platform, RecommendAnswers, Threat, Word};
use claviger_lab::show::recommend::{Measured, features, recommend};
use claviger_lab::show::report::{Text, csv};

use crate::terminal::output::{json, json_list};
use crate::terminal::progress::Progress;
use crate::terminal::prompt;
use crate::verbs::benchmark::print;

/// Find the facility that fits
///
/// Asks what to encrypt and what it should protect against, then recommends a facility and says why. The advice rests on
/// a table of features, and on measurements of this machine. Without --run, only the ciphers are measured, for a few
/// seconds.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab recommend\n  claviger lab recommend --for external --share-with windows,macos --threat theft \
                        --root no\n  claviger lab recommend --table"
)]
pub struct Args {
    /// What to encrypt
    #[arg(long = "for", value_name = "WHAT", value_parser = words(EncryptionPurpose::WORDS))]
    purpose: Option<EncryptionPurpose>,
    /// Other systems that must read and write it; linux for none
    #[arg(long, value_name = "SYSTEMS", value_delimiter = ',', value_parser = words(Platform::WORDS))]
    share_with: Option<Vec<Platform>>,
    /// What it should protect against
    #[arg(long, value_name = "WHOM", value_parser = words(Threat::WORDS))]
    threat: Option<Threat>,
    /// Whether you have root rights on this machine
    #[arg(long, value_name = "YES|NO", value_parser = words(ROOT))]
    root: Option<bool>,
    /// Also consider the losses measured in this run of the lab
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
    /// Print the table of features and known weaknesses
    #[arg(long, conflicts_with_all = ["purpose", "share_with", "threat", "root", "run"])]
    table: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json", requires = "table")]
    csv: bool,
}

/// The answers to the last question.
const ROOT: &[Word<bool>] = &[("yes", true, "yes"), ("no", false, "no")];

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.table {
        return print(args.json, args.csv, || json_list(features()), || features().text(), || csv(features()));
    }
    let answers = args.answers()?;
    let measured = match &args.run {
        Some(path) => Measured::of_run(&stored::load(path)?),
        None => {
            let progress = Progress::steps("measuring");
            let measured = Measured::of_ciphers(&|done, total| progress.at(done, total))?;
            progress.clear();
            measured
        }
    };
    let recommendation = recommend(&answers, &measured);
    print(args.json, false, || json(&recommendation), || recommendation.text(), String::new)
}

impl Args {
    /// The answers from the options; asks for the missing ones.
    fn answers(&self) -> anyhow::Result<RecommendAnswers> {
        let mut share_with = match &self.share_with {
            Some(systems) => systems.clone(),
            None => several("Which systems must be able to read and write it?", "--share-with", Platform::WORDS)?,
        };
        let purpose = one(self.purpose, "What do you want to encrypt?", "--for", EncryptionPurpose::WORDS)?;
        let threat = one(self.threat, "What should it protect against?", "--threat", Threat::WORDS)?;
        let root = one(self.root, "Do you have root rights on this machine?", "--root", ROOT)?;
        share_with.retain(|&platform| platform != Platform::Linux);
        share_with.dedup();
        Ok(RecommendAnswers { purpose, share_with, threat, root })
    }
}

/// A parser for these words; the help shows their meanings.
fn words<T: Copy + Send + Sync + 'static>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let values = words.iter().map(|(word, _, meaning)| PossibleValue::new(*word).help(*meaning));
    PossibleValuesParser::new(values).map(|word| meant(words, &word).expect("one of the words"))
}

fn meant<T: Copy>(words: &[Word<T>], word: &str) -> Option<T> {
    let number = word.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let named = words.iter().position(|(name, _, _)| name.eq_ignore_ascii_case(word));
    words.get(named.or(number)?).map(|(_, value, _)| *value)
}

/// `yes` for `y` and `no` for `n`: as everywhere in this program, an initial is enough.
fn whole(answer: &str) -> &str {
    match answer {
        "y" | "Y" => "yes",
        "n" | "N" => "no",
        other => other,
    }
}

/// The option's value, or the user's choice.
fn one<T: Copy>(given: Option<T>, question: &str, option: &str, words: &[Word<T>]) -> anyhow::Result<T> {
    let Some(value) = given else {
        return ask(question, option, words, |answer| meant(words, whole(answer.trim())));
    };
    Ok(value)
}

fn several<T: Copy>(question: &str, option: &str, words: &[Word<T>]) -> anyhow::Result<Vec<T>> {
    let each = |answer: &str| {
        let parts = answer.split([',', ' ']).filter(|part| !part.is_empty());
        let meant: Option<Vec<T>> = parts.map(|part| meant(words, part)).collect();
        meant.filter(|all| !all.is_empty())
    };
    ask(&format!("{question} Separate several by commas."), option, words, each)
}

/// Shows the choices and asks until the user picks one, at most three times.
fn ask<T, A>(question: &str, option: &str, words: &[Word<T>], read: impl Fn(&str) -> Option<A>) -> anyhow::Result<A> {
    let mut text = format!("{question}\n");
    for (i, (word, _, meaning)) in words.iter().enumerate() {
        text += &if word == meaning {
            format!("  {}  {word}\n", i + 1)
        } else {
            format!("  {}  {word}: {meaning}\n", i + 1)
        };
    }
    for _ in 0..3 {
        let answer = prompt::line(&format!("{text}> "), option)?;
        if let Some(meant) = read(&answer) {
            return Ok(meant);
        }
        text = "That is not one of the choices.\n".into();
    }
    Err(Error::misuse(format!("no answer to: {question}")).hint(format!("Answer it with {option}.")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_its_number() {
        assert_eq!(
            (meant(ROOT, whole("y")), meant(ROOT, whole("N")), meant(ROOT, "2")),
            (Some(true), Some(false), Some(false))
        );
        assert_eq!(meant(EncryptionPurpose::WORDS, "few-files"), Some(EncryptionPurpose::FewFiles));
        assert_eq!(meant(EncryptionPurpose::WORDS, "Laptop"), Some(EncryptionPurpose::Laptop));
        assert_eq!(meant(EncryptionPurpose::WORDS, "4"), Some(EncryptionPurpose::External));
        for wrong in ["0", "5", "", "lap"] {
            assert_eq!(meant(EncryptionPurpose::WORDS, wrong), None, "{wrong}");
        }
    }
}

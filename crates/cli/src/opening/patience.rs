//! The cost of opening a volume: announced beforehand, and confirmed by the user if it is high.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use claviger_engine::formats::UnlockPlan;
use claviger_engine::{Error, Result, Unlock};

use crate::terminal::{output, prompt, size};

/// The time that all keyslots together may take on one processor without a question. Ordinary volumes take seconds; many
/// keyslots from a faster machine take minutes.
const LONG: Duration = Duration::from_secs(300);

/// The option that consents in a script.
const OPTION: &str = "--allow-slow";

/// What makes a try quick.
pub const QUICKER: &str = "Each try takes long, because it includes every hash and cipher. To shorten it, run it again with what \
     you know: --truecrypt or --veracrypt, --hash SHA-512, --cipher AES, --pim N.";

/// Whether long work is begun without a question.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct PatienceArgs {
    /// Proceed even if trying all keyslots takes more than five minutes, as a hostile header can demand
    #[arg(long)]
    pub allow_slow: bool,
}

impl PatienceArgs {
    /// The value of [`Unlock::may_take`].
    pub fn may_take(self) -> Option<&'static (dyn Fn(Duration) -> Result<()> + Sync)> {
        if self.allow_slow { None } else { Some(&ask) }
    }

    /// Whether to try `variants` of a password, which take at most about that long.
    ///
    /// # Errors
    /// `Misuse` if the user declines, or nobody can be asked.
    pub fn may_try(self, variants: &str, time: Duration) -> Result<()> {
        let at_most = format!("at most about {}", size::duration(time));
        let question = format!("Trying {variants} takes {at_most}. Ctrl-C stops it. Start?");
        let refused = |why: &str| Error::misuse(format!("{variants} were not tried{why}; they take {at_most}"));
        if self.allow_slow { Ok(()) } else { consent(time, &question, refused) }
    }
}

/// Adds the options that make the next try quick.
pub fn with_quicker(error: Error) -> Error {
    let hint = error.hint.iter().map(String::as_str).chain([QUICKER]).collect::<Vec<_>>().join(" ");
    error.hint(hint)
}

/// Announces the cost of trying the keyslots if it is high, and asks if it is very high.
///
/// # Errors
/// Those of [`Unlock::may_take`].
pub fn announce(plan: Option<UnlockPlan>, with: &Unlock<'_>) -> Result<()> {
    let Some(plan) = plan else { return Ok(()) };
    if worth_telling(&plan) {
        output::note(&sentence(&plan));
    }
    with.may_take.map_or(Ok(()), |may_take| may_take(Duration::from_micros(plan.microseconds())))
}

/// Whether trying the keyslots costs enough to announce it.
fn worth_telling(plan: &UnlockPlan) -> bool {
    const MEMORY: u64 = 256 << 20;
    const TIME: Duration = Duration::from_secs(5);
    plan.needed() >= MEMORY.min(plan.available) || Duration::from_micros(plan.microseconds()) >= TIME
}

/// The cost of trying the keyslots, as a sentence.
pub fn sentence(plan: &UnlockPlan) -> String {
    let time = size::duration(Duration::from_micros(plan.microseconds()).max(Duration::from_secs(1)));
    let slots = match plan.keyslots.len() {
        1 => "Trying the keyslot".to_owned(),
        2 => "Trying both keyslots".to_owned(),
        n => format!("Trying all {n} keyslots"),
    };
    let memory = match plan.needed() {
        0 => String::new(),
        needed if needed > plan.available => format!(
            " and up to {} of memory; only {} is free, so some cannot be tried",
            size::short(needed),
            size::short(plan.available)
        ),
        needed => format!(" and up to {} of memory", size::short(needed)),
    };
    format!("{slots} takes at most about {time} on one processor{memory}.")
}

/// The user's answers so far.
struct Answers {
    /// The longest time that the user accepted.
    wanted: Duration,
    /// Whether the user declined.
    refused: bool,
}

/// Asks before one password is tried on all keyslots.
fn ask(time: Duration) -> Result<()> {
    let shown_time = size::duration(time);
    let refused = |why: &str| {
        Error::misuse(format!(
            "trying one password on all keyslots would take about {shown_time} of CPU time, more than the limit of \
             {}; nothing was tried{why}",
            size::duration(LONG)
        ))
    };
    let question = format!(
        "Trying a password on all keyslots takes about {shown_time} of CPU time; ordinary volumes take seconds. \
         Ctrl-C stops it. Start?"
    );
    consent(time, &question, refused)
}

/// Asks before work that takes longer than the limit. Asks once; the answer holds for all later trials.
fn consent(time: Duration, question: &str, refused: impl Fn(&str) -> Error) -> Result<()> {
    static ANSWERS: Mutex<Answers> = Mutex::new(Answers { wanted: LONG, refused: false });
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if time <= answers.wanted {
        return Ok(());
    }
    if answers.refused {
        return Err(refused(""));
    }
    let answer = prompt::consent(question, OPTION, refused);
    match answer {
        Ok(()) => answers.wanted = time,
        Err(_) => answers.refused = true,
    }
    answer
}

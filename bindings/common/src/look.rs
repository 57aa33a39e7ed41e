//! What something is, and why it does not open, as JSON.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use claviger_engine::diagnosis::{self, Diagnosis, Difference, SearchStep, TrialEffort, UnlockTarget};
use claviger_engine::formats::Facts;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, ErrorKind, Result, Store, Unlock, Verdict};
use serde::Serialize;

use crate::{Job, Options, Secrets, patience};

#[derive(Serialize)]
struct Identified<T> {
    /// The best of the verdicts.
    verdict: &'static str,
    /// The formats with that verdict, the likeliest first.
    candidates: Vec<&'static str>,
    #[serde(flatten)]
    seen: T,
}

#[derive(Serialize)]
struct Folder {
    formats: Vec<diagnosis::Opinion>,
}

/// What is at `path`, a file, device or folder, as a JSON object: `verdict` (`yes`, `possible` or `no`), `candidates`, and what was seen
/// of it.
///
/// # Errors
/// Those of [`FileStore::open`], [`diagnosis::look`] and [`diagnosis::look_at_folder`].
pub fn identify(path: &Path) -> Result<String> {
    if !path.is_dir() {
        let store: Arc<dyn Store> = Arc::new(FileStore::open(path, Access::ReadOnly)?);
        let mut seen = diagnosis::look(&store).map_err(|e| e.at(path))?;
        seen.find_lost_partitions(&store).map_err(|e| e.at(path))?;
        let (verdict, candidates) = best(&seen.formats);
        return json(&Identified { verdict, candidates, seen });
    }
    let seen = Folder { formats: diagnosis::look_at_folder(path)? };
    let (verdict, candidates) = best(&seen.formats);
    json(&Identified { verdict, candidates, seen })
}

fn best(opinions: &[diagnosis::Opinion]) -> (&'static str, Vec<&'static str>) {
    let yes: Vec<_> = opinions.iter().filter(|o| matches!(o.verdict, Verdict::Yes(_))).map(|o| o.format).collect();
    let could = |o: &&diagnosis::Opinion| matches!(o.verdict, Verdict::Possible(_));
    let possible: Vec<_> = opinions.iter().filter(could).map(|o| o.format).collect();
    match (yes.is_empty(), possible.is_empty()) {
        (false, _) => ("yes", yes),
        (_, false) => ("possible", possible),
        _ => ("no", Vec::new()),
    }
}

fn json(what: &impl Serialize) -> Result<String> {
    serde_json::to_string(what).map_err(|e| Error::misuse(e.to_string()))
}

#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    seen: Diagnosis,
    /// What opens it.
    opens: Option<Opens>,
    /// Forms of the credentials that were tried.
    trials: u64,
    /// What is damaged although it can be tried: whole sentences.
    damage: Vec<String>,
    /// Why it does not open, or cannot be used although it does.
    error: Option<Failure>,
}

#[derive(Serialize)]
struct Opens {
    format: &'static str,
    partition: Option<u32>,
    /// How it differs from the given password, in a word.
    with: &'static str,
    /// The end of "it opens with …".
    with_what: String,
    facts: Option<Facts>,
}

#[derive(Serialize)]
struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let hint = error.to_try(ToString::to_string);
        Self { code: error.kind.code(), message: Error { hint: None, advice: None, ..error }.to_string(), hint }
    }
}

/// Why what is at `path` does not open, as a JSON object. With secrets or keyfiles, these are tried, and what they become with common
/// mistakes: another keyboard layout, Caps Lock, another Unicode form, a keyfile left out. Nothing is written.
///
/// # Errors
/// What has nothing to do with the credentials: `Io`, `Cancelled`.
pub fn explain(path: &Path, options: &Options, secrets: &Secrets, job: &Job) -> Result<String> {
    let at = |e: Error| e.at(path);
    let store = Options { writable: false, ..options.clone() }.opening(path).stored()?;
    let mut seen = diagnosis::look(&store).map_err(at)?;
    seen.find_lost_partitions(&store).map_err(at)?;
    let targets = seen.targets(&store, options.format.as_deref()).map_err(at)?;
    let damage = targets.iter().flat_map(|target| target.header.damage()).map(|warning| warning.what).collect();
    let mut explained = Explained { opens: None, trials: 0, damage, error: None, seen };
    let credentials = secrets.credentials(&options.keyfiles)?;
    if targets.is_empty() {
        let none = || ErrorKind::NotThisFormat("it is no volume of a known format".into()).into();
        explained.error = Some(explained.seen.damage(&store).unwrap_or_else(none).into());
        return json(&explained);
    }
    if credentials.is_empty() {
        return json(&explained);
    }
    let unlock = |target: usize, credentials: &[_], hints: bool, opened: &AtomicBool| {
        if job.cancel.load(Ordering::Relaxed) {
            return Err(ErrorKind::Cancelled.into());
        }
        let narrowed = options.unlock(credentials);
        let (memory, may_take) = (narrowed.memory, narrowed.may_take);
        let with = if hints { narrowed } else { Unlock { memory, may_take, ..Unlock::with(credentials) } };
        let with = Unlock { cancel: Some(&job.cancel), opened: Some(opened), prove: true, ..with };
        let unlocked = targets[target].header.unlock(&with)?;
        match unlocked.recognised {
            true => Ok(unlocked.facts),
            // Any password opens a volume without a header, to noise.
            false => Err(ErrorKind::WrongCredential("nothing was recognised".into()).into()),
        }
    };
    let worth_it = |step: SearchStep| {
        job.tell(step.done, step.all);
        options.allow_slow || step.done == 0 || patience(step.left).is_ok()
    };
    let effort = |target: &UnlockTarget| TrialEffort {
        given: target.header.effort(&options.unlock(&credentials)),
        without_hints: target.header.effort(&Unlock::with(&credentials)),
    };
    let efforts: Vec<_> = targets.iter().map(effort).collect();
    let search = diagnosis::search(&credentials, options.hinted(), &efforts, unlock, worth_it).map_err(at)?;
    explained.trials = search.tried;
    match search.found {
        Some(found) => {
            let (target, how): (_, Difference) = (&targets[found.target], found.how);
            let (facts, error) = match found.unlocked {
                Ok(facts) => (Some(facts), None),
                Err(e) => (None, Some(e.into())),
            };
            let (with, with_what) = (how.kind(), how.to_string());
            explained.error = error;
            explained.opens =
                Some(Opens { format: target.format, partition: target.partition, with, with_what, facts });
        }
        None => explained.error = search.error.map(Into::into),
    }
    json(&explained)
}

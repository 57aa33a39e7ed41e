//! Which form of a credential opens a volume.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use claviger_crypto::Secret;

use super::forms::{Change, forms};
use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};

/// How what opens a volume differs from what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It does not differ.
    AsGiven,
    /// The credentials do not differ, but the given hash, cipher or header was wrong.
    WithoutHints,
    /// Another form of the password.
    Password(Change),
    /// No credential is needed, and the given ones open nothing: the volume has a clear key, or is not encrypted.
    Nothing,
    /// The password alone, without the keyfiles.
    NoKeyfiles,
    /// The keyfiles alone, without the password.
    NoPassword,
    /// Without one of the keyfiles, counted from 0 in the order in which they were given.
    WithoutKeyfile(usize),
}

impl Difference {
    /// An identifier for programs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::AsGiven => "as-given",
            Self::WithoutHints => "without-hints",
            Self::Password(change) => change.kind(),
            Self::Nothing => "nothing",
            Self::NoKeyfiles => "no-keyfiles",
            Self::NoPassword => "no-password",
            Self::WithoutKeyfile(_) => "without-keyfile",
        }
    }
}

/// The end of "it opens with …".
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsGiven => f.write_str("the given credential"),
            Self::WithoutHints => {
                f.write_str("the given credential, but with another hash, cipher or header than requested")
            }
            Self::Password(change) => write!(f, "the password {change}"),
            Self::Nothing => f.write_str("no password at all; the given one opens nothing"),
            Self::NoKeyfiles => f.write_str("the password alone, without the keyfiles"),
            Self::NoPassword => f.write_str("the keyfiles alone, without the password"),
            Self::WithoutKeyfile(n) => write!(f, "all keyfiles but number {}", n + 1),
        }
    }
}

/// What opens a volume.
pub struct Match<T> {
    /// The difference.
    pub how: Difference,
    /// The target, counted from 0.
    pub target: usize,
    /// The volume, or why it cannot be used although a header opened: it is damaged or unsupported.
    pub unlocked: Result<T>,
}

/// The result of a search.
pub struct Search<T> {
    /// What opens the volume, if anything did.
    pub found: Option<Match<T>>,
    /// Trials: forms of the credentials, each for each target.
    pub tried: u64,
    /// The error for the given credentials, if nothing opens.
    pub error: Option<Error>,
}

/// The next step of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchStep {
    /// The target, counted from 0.
    pub target: usize,
    /// How many forms of the credentials were tried with it: 0 before the given ones are tried.
    pub done: u64,
    /// How many forms there are, the given one included.
    pub all: u64,
    /// How long the forms that are left take with this target if none opens it, by the speed of its trials so far. Zero before
    /// the first.
    pub left: Duration,
}

/// How long one trial of a target takes, in any unit that all targets share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialEffort {
    /// With the given hints.
    pub given: u64,
    /// Without them: every hash, cipher and header.
    pub without_hints: u64,
}

/// Tries the credentials on several targets, as given and in other forms, the cheapest trials first.
///
/// `efforts` has the effort of a trial for each target. `unlock` tries one set of credentials on one target, with or without the
/// given hints (`hinted` says that there are some), and with [`crate::Unlock::opened`]. `tell` gets the next step before each trial,
/// and returns whether to go on with that target; what it returns before the given credentials does not count.
///
/// # Errors
/// Errors that do not concern the credentials: `Io`, `Cancelled` and the like.
pub fn search<T>(
    credentials: &[Credential],
    hinted: bool,
    efforts: &[TrialEffort],
    unlock: impl FnMut(usize, &[Credential], bool, &AtomicBool) -> Result<T>,
    tell: impl FnMut(SearchStep) -> bool,
) -> Result<Search<T>> {
    let begun = Instant::now();
    timed_search(credentials, hinted, efforts, unlock, tell, || begun.elapsed())
}

/// [`search`] by any clock.
fn timed_search<T>(
    credentials: &[Credential],
    hinted: bool,
    efforts: &[TrialEffort],
    mut unlock: impl FnMut(usize, &[Credential], bool, &AtomicBool) -> Result<T>,
    mut tell: impl FnMut(SearchStep) -> bool,
    clock: impl Fn() -> Duration,
) -> Result<Search<T>> {
    let ways = ways(credentials, hinted);
    let all = ways.len() as u64 + 1;
    let effort = |target: usize, how| match how {
        Difference::WithoutHints => efforts[target].without_hints,
        _ => efforts[target].given,
    };
    let forms = |target: usize, done: usize| {
        ways[done..].iter().fold(0, |sum: u64, way| sum.saturating_add(effort(target, way.how)))
    };
    let mut speeds = Speeds::new(efforts.len());
    let mut rest = stages(&(0..efforts.len()).map(|t| (efforts[t].given, forms(t, 0))).collect::<Vec<_>>());
    let mut search = Search { found: None, tried: 0, error: None };
    let mut tried = |target: usize, how, credentials: &[Credential], speeds: &mut Speeds| {
        let (begun, opened) = (clock(), AtomicBool::new(false));
        let outcome = unlock(target, credentials, !matches!(how, Difference::WithoutHints), &opened);
        speeds.measure(target, clock().saturating_sub(begun), effort(target, how));
        (outcome, opened.into_inner())
    };
    while search.found.is_none()
        && let Some(Stage { target, as_given, .. }) = rest.pop_front()
    {
        if as_given {
            tell(SearchStep { target, done: 0, all, left: Duration::ZERO });
            search.look_at(
                Difference::AsGiven,
                target,
                tried(target, Difference::AsGiven, credentials, &mut speeds),
            )?;
            continue;
        }
        for (done, way) in ways.iter().enumerate() {
            let left = speeds.time(target, forms(target, done));
            if !tell(SearchStep { target, done: done as u64 + 1, all, left }) {
                break;
            }
            let outcome = tried(target, way.how, &way.credentials(credentials), &mut speeds);
            search.look_at(way.how, target, outcome)?;
            if search.found.is_some() {
                break;
            }
        }
    }
    Ok(search)
}

/// How fast the trials of each target were.
struct Speeds {
    measured: Vec<(Duration, u64)>,
}

impl Speeds {
    fn new(targets: usize) -> Self {
        Self { measured: vec![(Duration::ZERO, 0); targets] }
    }

    fn measure(&mut self, target: usize, took: Duration, effort: u64) {
        let (time, done) = &mut self.measured[target];
        *time = time.saturating_add(took);
        *done = done.saturating_add(effort);
    }

    /// How long trials of that effort take, by the target's trials so far.
    fn time(&self, target: usize, effort: u64) -> Duration {
        let (time, done) = self.measured[target];
        let seconds = time.as_secs_f64() * effort as f64 / (done.max(1) as f64);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// One target, with the given credentials or with all other forms of them.
struct Stage {
    target: usize,
    as_given: bool,
    effort: u64,
}

/// The stages, by effort: a format that takes a second per trial waits until one that takes a millisecond is finished. `efforts` are
/// those of the given credentials and of all other forms.
fn stages(efforts: &[(u64, u64)]) -> VecDeque<Stage> {
    let both = |(target, (given, forms)): (usize, &(u64, u64))| {
        [Stage { target, as_given: true, effort: *given }, Stage { target, as_given: false, effort: *forms.max(given) }]
    };
    let mut stages: Vec<_> = efforts.iter().enumerate().flat_map(both).collect();
    // A stable sort: at equal effort, the given credentials come first.
    stages.sort_by_key(|stage| stage.effort);
    stages.into()
}

impl<T> Search<T> {
    /// Evaluates the outcome of a trial.
    fn look_at(&mut self, how: Difference, target: usize, outcome: (Result<T>, bool)) -> Result<()> {
        self.tried += 1;
        match opened(outcome)? {
            Outcome::Opened(unlocked) => {
                self.found = Some(Match { how, target, unlocked });
                self.error = None;
            }
            Outcome::Wrong(e) if how == Difference::AsGiven => self.error = Some(e),
            // The error shown comes from a target that accepted the given credentials.
            Outcome::Refused(e) if how == Difference::AsGiven => self.error = self.error.take().or(Some(e)),
            Outcome::Wrong(_) | Outcome::Refused(_) => {}
        }
        Ok(())
    }
}

/// Whether a header opened.
///
/// # Errors
/// Errors that do not concern the credentials.
fn opened<T>((outcome, opened): (Result<T>, bool)) -> Result<Outcome<T>> {
    match outcome {
        Ok(unlocked) => Ok(Outcome::Opened(Ok(unlocked))),
        Err(error) => match error.kind {
            ErrorKind::WrongCredential(_) | ErrorKind::TooLittleMemory { .. } => Ok(Outcome::Wrong(error)),
            ErrorKind::Misuse(_) | ErrorKind::CredentialKind { .. } => Ok(Outcome::Refused(error)),
            ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. } if opened => Ok(Outcome::Opened(Err(error))),
            // This happened before any credential was checked.
            ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. } => Ok(Outcome::Wrong(error)),
            _ => Err(error),
        },
    }
}

/// The outcome of a trial.
enum Outcome<T> {
    /// A header opened: the volume, or why it cannot be used.
    Opened(Result<T>),
    /// No header opened.
    Wrong(Error),
    /// The format does not accept such credentials: the password is too long, or the hash does not exist.
    Refused(Error),
}

/// A way to try the credentials.
struct Attempt {
    how: Difference,
    /// The password, if it differs from the given one.
    password: Option<Secret>,
}

/// All ways except the given one, the most common mistakes first.
fn ways(credentials: &[Credential], hinted: bool) -> Vec<Attempt> {
    let is_keyfile = |c: &&Credential| matches!(c, Credential::Keyfile(_));
    let keyfiles = credentials.iter().filter(is_keyfile).count();
    let passphrase = credentials.iter().find_map(|c| match c {
        Credential::Passphrase(text) => Some(text),
        _ => None,
    });
    let mut ways = Vec::new();
    let mut plain = |how| ways.push(Attempt { how, password: None });
    if hinted {
        plain(Difference::WithoutHints);
    }
    if keyfiles > 0 && passphrase.is_some_and(|text| !text.is_empty()) {
        plain(Difference::NoKeyfiles);
        plain(Difference::NoPassword);
    }
    if keyfiles > 1 {
        (0..keyfiles).for_each(|n| plain(Difference::WithoutKeyfile(n)));
    }
    let forms = passphrase.map(|text| forms(text)).unwrap_or_default();
    ways.extend(forms.into_iter().map(|f| Attempt { how: Difference::Password(f.change), password: Some(f.password) }));
    ways
}

impl Attempt {
    /// The credentials in this way, copied for the trial: a keyfile may have a megabyte.
    fn credentials(&self, given: &[Credential]) -> Vec<Credential> {
        let mut keyfile = 0;
        let changed = |c: &Credential| match (c, self.how) {
            (Credential::Passphrase(_), Difference::NoPassword) | (Credential::Keyfile(_), Difference::NoKeyfiles) => {
                None
            }
            (Credential::Passphrase(text), _) => {
                Some(Credential::Passphrase(Secret::copy_from(self.password.as_deref().unwrap_or(text))))
            }
            (Credential::VolumeKey(key), _) => Some(Credential::VolumeKey(Secret::copy_from(key))),
            (Credential::PrivateKey(key), _) => Some(Credential::PrivateKey(Arc::clone(key))),
            (Credential::Keyfile(contents), how) => {
                keyfile += 1;
                let left_out = how == Difference::WithoutKeyfile(keyfile - 1);
                (!left_out).then(|| Credential::Keyfile(Secret::copy_from(contents)))
            }
        };
        given.iter().filter_map(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn passphrase(text: &str) -> Credential {
        Credential::Passphrase(Secret::copy_from(text.as_bytes()))
    }

    fn keyfile(contents: &str) -> Credential {
        Credential::Keyfile(Secret::copy_from(contents.as_bytes()))
    }

    /// All credentials in one line.
    fn line(credentials: &[Credential]) -> String {
        let one = |c: &Credential| match c {
            Credential::Passphrase(text) => format!("p:{}", String::from_utf8_lossy(text)),
            Credential::Keyfile(contents) => format!("k:{}", String::from_utf8_lossy(contents)),
            Credential::VolumeKey(_) => "v".to_owned(),
            Credential::PrivateKey(_) => "k".to_owned(),
        };
        credentials.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn wrong<T>() -> Result<T> {
        Err(ErrorKind::WrongCredential("no".into()).into())
    }

    /// Trials that hints make no shorter.
    fn even(efforts: &[u64]) -> Vec<TrialEffort> {
        efforts.iter().map(|effort| TrialEffort { given: *effort, without_hints: *effort }).collect()
    }

    /// Searches a volume that opens with `right` alone.
    fn found(given: &[Credential], right: &str) -> Option<Difference> {
        let unlock = |_, c: &[Credential], _, _: &AtomicBool| if line(c) == right { Ok(()) } else { wrong() };
        search(given, false, &even(&[1]), unlock, |_| true).expect("no trouble").found.map(|f| f.how)
    }

    #[test]
    fn what_opens_is_found_and_described() {
        let given = [passphrase("Zebra"), keyfile("1"), keyfile("2")];
        for (right, how) in [
            ("p:Zebra k:1 k:2", "the given credential"),
            ("p:Zebra", "the password alone, without the keyfiles"),
            ("k:1 k:2", "the keyfiles alone, without the password"),
            ("p:Zebra k:1", "all keyfiles but number 2"),
            ("p:Zebra k:2", "all keyfiles but number 1"),
            ("p:zEBRA k:1 k:2", "the password typed with Caps Lock on"),
            ("p:Yebra k:1 k:2", "the password as typed on a German keyboard with the US layout active"),
        ] {
            assert_eq!(found(&given, right).map(|how| how.to_string()).as_deref(), Some(how));
        }
        assert_eq!(found(&given, "p:other"), None);
    }

    #[test]
    fn what_was_given_is_tried_on_every_target_before_other_forms() {
        let mut calls = Vec::new();
        let unlock = |target, c: &[Credential], _, _: &AtomicBool| {
            calls.push(format!("{target} {}", line(c)));
            if target == 1 && line(c) == "p:X" { Ok(()) } else { wrong() }
        };
        let mut steps = 0;
        let done = search(&[passphrase("x")], false, &even(&[1, 1]), unlock, |step| {
            steps += usize::from(step.done > 0);
            true
        })
        .expect("no trouble");
        let found = done.found.expect("another case");
        assert_eq!((found.target, found.how.kind(), done.tried), (1, "case", calls.len() as u64));
        assert_eq!((&calls[0][..], &calls[1][..], steps), ("0 p:x", "1 p:x", calls.len() - 2));
        let last_of_first = calls.iter().rposition(|c| c.starts_with('0'));
        assert!(last_of_first < calls.iter().position(|c| c == "1 p:X"));
    }

    #[test]
    fn all_forms_of_a_cheap_target_come_before_one_that_costs_more_than_they() {
        let mut calls = Vec::new();
        let unlock = |target, c: &[Credential], _, _: &AtomicBool| {
            calls.push(target);
            if target == 0 && line(c) == "p:X" { Ok(()) } else { wrong() }
        };
        let done = search(&[passphrase("x")], false, &even(&[1, 10_000]), unlock, |_| true).expect("no trouble");
        assert!(done.found.is_some() && !calls.contains(&1), "{calls:?}");
    }

    #[test]
    fn hints_are_left_out_first_of_all() {
        let unlock = |_, _: &[Credential], hints: bool, _: &AtomicBool| if hints { wrong() } else { Ok(()) };
        let done = search(&[passphrase("x")], true, &even(&[1]), unlock, |_| true).expect("no trouble");
        assert_eq!((done.found.map(|f| f.how), done.tried), (Some(Difference::WithoutHints), 2));
    }

    #[test]
    fn a_header_that_opens_is_found_even_if_it_is_damaged() {
        let damaged = || Error::new(ErrorKind::Malformed { field: "f", offset: 0, what: "w".into() });
        let unlock = |_, c: &[Credential], _, opened: &AtomicBool| {
            opened.store(true, Ordering::Relaxed);
            if line(c) == "p:X" { Err(damaged()) } else { wrong::<()>() }
        };
        let found = search(&[passphrase("x")], false, &even(&[1]), unlock, |_| true).expect("no trouble").found;
        let found = found.expect("another case");
        assert!(matches!(found.how, Difference::Password(Change::CapsLock)) && found.unlocked.is_err());
    }

    #[test]
    fn damage_before_any_header_opened_proves_no_password() {
        let damaged = || Error::new(ErrorKind::Malformed { field: "f", offset: 0, what: "w".into() });
        let unlock = |_, _: &[Credential], _, _: &AtomicBool| Err::<(), _>(damaged());
        let done = search(&[passphrase("x")], false, &even(&[1]), unlock, |_| true).expect("no trouble");
        assert!(done.found.is_none() && done.error.is_some());
    }

    #[test]
    fn refused_forms_are_left_out_and_other_trouble_ends_the_search() {
        let mut calls = 0;
        let unlock = |_, c: &[Credential], _, _: &AtomicBool| {
            calls += 1;
            if line(c).len() > 3 { Err(Error::misuse("too long")) } else { wrong::<()>() }
        };
        let done =
            search(&[passphrase("x")], false, &even(&[1]), unlock, |_| true).expect("refused forms are left out");
        assert!(done.found.is_none() && done.tried == calls && calls > 3 && done.error.is_some());

        // A password that is too long may have been cut off by another program.
        let unlock = |_, c: &[Credential], _, _: &AtomicBool| {
            if line(c).len() > 66 { Err(Error::misuse("too long")) } else { Ok(()) }
        };
        let found =
            search(&[passphrase(&"x".repeat(70))], false, &even(&[1]), unlock, |_| true).expect("no trouble").found;
        assert_eq!(found.map(|f| f.how), Some(Difference::Password(Change::Ends("cut off after 64 bytes"))));
        let unlock = |_, _: &[Credential], _, _: &AtomicBool| Err::<(), _>(Error::misuse("no such hash"));
        let error = search(&[passphrase("x")], false, &even(&[1, 1]), unlock, |_| true).expect("no trouble").error;
        assert!(error.expect("refused").to_string().contains("no such hash"));

        let cancelled = |_, c: &[Credential], _, _: &AtomicBool| {
            if line(c) == "p:x" { wrong::<()>() } else { Err(ErrorKind::Cancelled.into()) }
        };
        let error = search(&[passphrase("x")], false, &even(&[1]), cancelled, |_| true).err().expect("cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled));
    }

    /// A target takes 10 ms for each unit of effort, the other one 30 ms.
    #[test]
    fn the_time_left_is_that_of_the_trials_that_are_left() {
        let clock = std::cell::Cell::new(Duration::ZERO);
        let efforts =
            [TrialEffort { given: 1, without_hints: 100 }, TrialEffort { given: 1_000, without_hints: 5_000 }];
        let unlock = |target: usize, _: &[Credential], hints: bool, _: &AtomicBool| {
            let TrialEffort { given, without_hints } = efforts[target];
            let effort = if hints { given } else { without_hints };
            clock.set(clock.get() + Duration::from_millis([10, 30][target] * effort));
            wrong::<()>()
        };
        let mut reported = Vec::new();
        let tell = |step: SearchStep| {
            reported.push((clock.get(), step));
            true
        };
        timed_search(&[passphrase("x")], true, &efforts, unlock, tell, || clock.get()).expect("no trouble");
        let end = clock.get();
        let begins = |target, done| {
            let (at, step) =
                reported.iter().find(|(_, step)| (step.target, step.done) == (target, done)).expect("a step");
            (*at, step.left)
        };
        let near = |one: Duration, other: Duration| one.abs_diff(other) < Duration::from_millis(1);
        // The trial without hints takes as long as a hundred others.
        for ((target, done), until) in [((0, 1), begins(1, 0).0), ((1, 1), end), ((1, 2), end)] {
            let (at, left) = begins(target, done);
            assert!(near(left, until - at), "{target}, {done}: {left:?}, {:?}", until - at);
        }
        assert!(reported[0].1.left.is_zero(), "nothing is known before the first trial");
    }
}

//! Which form of a credential opens a volume.

use std::fmt;
use std::time::{Duration, Instant};

use claviger_crypto::Secret;

use super::forms::{Change, forms};
use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};

/// How what opens a volume differs from what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Not at all.
    AsGiven,
    /// Not at all, but not with the hash, cipher or header that was asked for.
    WithoutHints,
    /// The password is another form of what was given.
    Password(Change),
    /// The password alone, without the keyfiles.
    NoKeyfiles,
    /// The keyfiles alone, without the password.
    NoPassword,
    /// Without one of the keyfiles, counted from 0 in the order in which they were given.
    WithoutKeyfile(usize),
}

impl How {
    /// A word for programs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::AsGiven => "as-given",
            Self::WithoutHints => "without-hints",
            Self::Password(change) => change.kind(),
            Self::NoKeyfiles => "no-keyfiles",
            Self::NoPassword => "no-password",
            Self::WithoutKeyfile(_) => "without-keyfile",
        }
    }
}

/// The end of "it opens with …".
impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsGiven => f.write_str("what was given"),
            Self::WithoutHints => {
                f.write_str("what was given, but not as the hash, cipher or header that was asked for")
            }
            Self::Password(change) => write!(f, "the password {change}"),
            Self::NoKeyfiles => f.write_str("the password alone, without the keyfiles"),
            Self::NoPassword => f.write_str("the keyfiles alone, without the password"),
            Self::WithoutKeyfile(n) => write!(f, "all keyfiles but number {}", n + 1),
        }
    }
}

/// What opens a volume.
pub struct Found<T> {
    /// What was changed.
    pub how: How,
    /// The volume; or the reason why it cannot be used although a header opened: it is damaged or unsupported.
    pub unlocked: Result<T>,
}

/// What came of a search.
pub struct Search<T> {
    /// What opens the volume, if anything did.
    pub found: Option<Found<T>>,
    /// Forms that were tried, the one that was given included.
    pub tried: u64,
    /// The error about what was given, if nothing opens.
    pub error: Option<Error>,
}

/// Tries the credentials as they were given, then in other forms. `unlock` tries one set of them, with or without the
/// hints that were given (`hinted` says that there are some). `tell` is told, before each form but the first, how many of how
/// many are done, and how long the first took.
///
/// # Errors
/// Those of `unlock` but `WrongCredential`, `Malformed` and `Unsupported`; of other forms than the given one also without
/// `Misuse`: a format may refuse a form, such as one that is too long.
pub fn search<T>(
    credentials: &[Credential],
    hinted: bool,
    mut unlock: impl FnMut(&[Credential], bool) -> Result<T>,
    mut tell: impl FnMut(u64, u64, Duration),
) -> Result<Search<T>> {
    let begun = Instant::now();
    let first = unlock(credentials, true);
    let took = begun.elapsed();
    let error = match opened(first)? {
        Outcome::Opened(unlocked) => return Ok(Search::success(How::AsGiven, unlocked, 1)),
        Outcome::Wrong(error) => error,
    };
    let ways = ways(credentials, hinted);
    for (done, way) in (1..).zip(&ways) {
        tell(done, ways.len() as u64 + 1, took);
        let outcome = unlock(&way.credentials(credentials), !matches!(way.how, How::WithoutHints));
        match outcome {
            Err(e) if matches!(e.kind, ErrorKind::Misuse(_)) => {}
            other => {
                if let Outcome::Opened(unlocked) = opened(other)? {
                    return Ok(Search::success(way.how, unlocked, done + 1));
                }
            }
        }
    }
    Ok(Search { found: None, tried: ways.len() as u64 + 1, error: Some(error) })
}

impl<T> Search<T> {
    fn success(how: How, unlocked: Result<T>, tried: u64) -> Self {
        Self { found: Some(Found { how, unlocked }), tried, error: None }
    }
}

/// Whether a header opened.
///
/// # Errors
/// What has nothing to do with the credentials.
fn opened<T>(outcome: Result<T>) -> Result<Outcome<T>> {
    match outcome {
        Ok(unlocked) => Ok(Outcome::Opened(Ok(unlocked))),
        Err(error) => match error.kind {
            ErrorKind::WrongCredential(_) => Ok(Outcome::Wrong(error)),
            ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. } => Ok(Outcome::Opened(Err(error))),
            _ => Err(error),
        },
    }
}

/// What came of one set of credentials.
enum Outcome<T> {
    /// A header opened: the volume, or why it cannot be used.
    Opened(Result<T>),
    /// None did.
    Wrong(Error),
}

/// A way to try the credentials.
struct Way {
    how: How,
    /// The password, if it is not the one that was given.
    password: Option<Secret>,
}

/// Every way but the one that was given, those first that people err in most.
fn ways(credentials: &[Credential], hinted: bool) -> Vec<Way> {
    let is_keyfile = |c: &&Credential| matches!(c, Credential::Keyfile(_));
    let keyfiles = credentials.iter().filter(is_keyfile).count();
    let passphrase = credentials.iter().find_map(|c| match c {
        Credential::Passphrase(text) => Some(text),
        _ => None,
    });
    let mut ways = Vec::new();
    let mut plain = |how| ways.push(Way { how, password: None });
    if hinted {
        plain(How::WithoutHints);
    }
    if keyfiles > 0 && passphrase.is_some_and(|text| !text.is_empty()) {
        plain(How::NoKeyfiles);
        plain(How::NoPassword);
    }
    if keyfiles > 1 {
        (0..keyfiles).for_each(|n| plain(How::WithoutKeyfile(n)));
    }
    let forms = passphrase.map(|text| forms(text)).unwrap_or_default();
    ways.extend(forms.into_iter().map(|f| Way { how: How::Password(f.change), password: Some(f.password) }));
    ways
}

impl Way {
    /// The credentials in this way. Copies, as long as they are tried: a keyfile may have a megabyte.
    fn credentials(&self, given: &[Credential]) -> Vec<Credential> {
        let mut keyfile = 0;
        let changed = |c: &Credential| match (c, self.how) {
            (Credential::Passphrase(_), How::NoPassword) | (Credential::Keyfile(_), How::NoKeyfiles) => None,
            (Credential::Passphrase(text), _) => {
                Some(Credential::Passphrase(Secret::copy_from(self.password.as_deref().unwrap_or(text))))
            }
            (Credential::Keyfile(contents), how) => {
                keyfile += 1;
                let left_out = how == How::WithoutKeyfile(keyfile - 1);
                (!left_out).then(|| Credential::Keyfile(Secret::copy_from(contents)))
            }
        };
        given.iter().filter_map(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &str) -> Credential {
        Credential::Passphrase(Secret::copy_from(text.as_bytes()))
    }

    fn keyfile(contents: &str) -> Credential {
        Credential::Keyfile(Secret::copy_from(contents.as_bytes()))
    }

    /// All of them in a line.
    fn line(credentials: &[Credential]) -> String {
        let one = |c: &Credential| match c {
            Credential::Passphrase(text) => format!("p:{}", String::from_utf8_lossy(text)),
            Credential::Keyfile(contents) => format!("k:{}", String::from_utf8_lossy(contents)),
        };
        credentials.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn wrong<T>() -> Result<T> {
        Err(ErrorKind::WrongCredential("no".into()).into())
    }

    /// Searches a volume that opens with `right` alone.
    fn found(given: &[Credential], right: &str) -> Option<How> {
        let unlock = |c: &[Credential], _| if line(c) == right { Ok(()) } else { wrong() };
        search(given, false, unlock, |_, _, _| {}).expect("no trouble").found.map(|f| f.how)
    }

    #[test]
    fn what_opens_is_found_and_described() {
        let given = [passphrase("Zebra"), keyfile("1"), keyfile("2")];
        for (right, how) in [
            ("p:Zebra k:1 k:2", "what was given"),
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
    fn hints_are_left_out_last_of_all_that_costs_little() {
        let unlock = |_: &[Credential], hints: bool| if hints { wrong() } else { Ok(()) };
        let done = search(&[passphrase("x")], true, unlock, |_, _, _| {}).expect("no trouble");
        assert_eq!((done.found.map(|f| f.how), done.tried), (Some(How::WithoutHints), 2));
    }

    #[test]
    fn a_header_that_opens_is_found_even_if_it_is_damaged() {
        let damaged = || Error::new(ErrorKind::Malformed { field: "f", offset: 0, what: "w".into() });
        let unlock = |c: &[Credential], _| -> Result<()> { if line(c) == "p:X" { Err(damaged()) } else { wrong() } };
        let found = search(&[passphrase("x")], false, unlock, |_, _, _| {}).expect("no trouble").found;
        let found = found.expect("another case");
        assert!(matches!(found.how, How::Password(Change::Case(_))) && found.unlocked.is_err());
    }

    #[test]
    fn other_trouble_ends_the_search_and_refused_forms_do_not() {
        let mut calls = 0;
        let unlock = |c: &[Credential], _| {
            calls += 1;
            if line(c).len() > 3 { Err(Error::misuse("too long")) } else { wrong::<()>() }
        };
        let done = search(&[passphrase("x")], false, unlock, |_, _, _| {}).expect("refused forms are left out");
        assert!(done.found.is_none() && done.tried == calls && calls > 3 && done.error.is_some());
        let unlock =
            |c: &[Credential], _| if line(c) == "p:x" { wrong::<()>() } else { Err(ErrorKind::Cancelled.into()) };
        let error = search(&[passphrase("x")], false, unlock, |_, _, _| {}).err().expect("cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled));
    }
}

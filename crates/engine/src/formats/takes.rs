//! The one check that refuses what a format does not take, and names the formats that do.

use super::{FORMATS, Format, NewCredential};
use crate::credential::Unlock;
use crate::error::Result;
use crate::file_formats::FILE_FORMATS;
use crate::parameters::asked;
pub use crate::parameters::{Parameter, Purpose, Takes};

/// Refuses parameters that the format called `name` does not support. All such errors come from here.
///
/// # Errors
/// `Misuse`, with the formats that support them.
pub fn check(name: &str, takes: &Takes, purpose: Purpose, asked: &[Parameter]) -> Result<()> {
    let Some(missing) = takes.missing(purpose, asked) else { return Ok(()) };
    let error = missing.refused_by(name);
    let takers = |all: Vec<(&'static str, Takes)>| -> Vec<_> {
        all.into_iter().filter(|(_, takes)| takes.to(purpose).contains(&missing)).map(|(name, _)| name).collect()
    };
    let mut others = takers(FORMATS.iter().map(|f| (f.name(), f.takes())).collect());
    if others.is_empty() {
        others = takers(FILE_FORMATS.iter().map(|f| (f.name(), f.takes())).collect());
    }
    Err(match others.split_last() {
        None => error,
        Some((one, [])) => error.hint(format!("{one} does.")),
        Some((last, others)) => error.hint(format!("{} and {last} do.", others.join(", "))),
    })
}

/// Calls [`check`] for everything that opens a volume. Every [`super::Header::unlock`] begins with it.
///
/// # Errors
/// `Misuse`, and `CredentialKind` for a credential that opens no volume of the format.
pub(crate) fn check_opening(name: &'static str, takes: &Takes, with: &Unlock<'_>) -> Result<()> {
    takes.check_kinds(name, with.credentials)?;
    check(name, takes, Purpose::Opening, &with.parameters())
}

/// Refuses parameters that none of a header's formats supports. See [`super::Header::takes`].
///
/// # Errors
/// Those of [`check_opening`].
pub(crate) fn check_any(formats: &[(&'static str, Takes)], with: &Unlock<'_>) -> Result<()> {
    let refused = formats.iter().map(|(name, takes)| check_opening(name, takes, with));
    // The last format supports the most parameters.
    refused.reduce(|one, other| one.or(other)).unwrap_or(Ok(()))
}

/// Calls [`check`] for a new credential.
///
/// # Errors
/// `Misuse`.
pub(super) fn check_new(format: &dyn Format, new: &NewCredential<'_>) -> Result<()> {
    check(format.name(), &format.takes(), Purpose::Creating, &new.parameters())
}

impl NewCredential<'_> {
    /// The parameters that it shares with new volumes.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all =
            asked(&[(self.pim.is_some_and(|pim| pim > 0), Parameter::Pim), (self.hash.is_some(), Parameter::Hash)]);
        all.extend(self.cost.parameters());
        all.extend(self.token.map(|_| Parameter::Token));
        all.extend(self.tpm.map(|_| Parameter::Tpm));
        all
    }
}

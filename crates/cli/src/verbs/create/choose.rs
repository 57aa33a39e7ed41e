//! Looks up names of ciphers and hashes in a format's spelling.

use claviger_engine::{Error, Result, formats};

/// The name in the format's spelling, or `None` for the default. If `all` is not `complete`, unknown names are left to the
/// format.
pub fn choose<'a>(what: &str, name: Option<&'a str>, all: &[&'static str], complete: bool) -> Result<Option<&'a str>> {
    // The format itself refuses an option for which it has no choice.
    if !complete || all.is_empty() {
        return Ok(name);
    }
    let Some(name) = name else { return Ok(all.first().copied()) };
    let found = all.iter().copied().find(|n| formats::same_name(n, name));
    found.map(Some).ok_or_else(|| Error::misuse(format!("no {what} is called {name}; use one of: {}", all.join(", "))))
}

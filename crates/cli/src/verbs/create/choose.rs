//! Names of ciphers and hashes, as formats spell them.

use claviger_engine::{Error, Result, formats};

/// The name as the format spells it; the default where none is given. Where `all` is not complete, the format knows what there is
/// besides.
pub fn choose<'a>(what: &str, name: Option<&'a str>, all: &[&'static str], complete: bool) -> Result<Option<&'a str>> {
    // What the format has no choice of it refuses itself.
    if !complete || all.is_empty() {
        return Ok(name);
    }
    let Some(name) = name else { return Ok(all.first().copied()) };
    let found = all.iter().copied().find(|n| formats::same_name(n, name));
    found.map(Some).ok_or_else(|| Error::misuse(format!("no {what} is called {name}; use one of: {}", all.join(", "))))
}

//! Names of everything that a lab creates.

use std::sync::OnceLock;

use claviger_engine::internal::random;

/// The prefix of the names of everything that a lab makes.
pub(super) const PREFIX: &str = "claviger-lab-";

/// The common part of all names that this lab gives: `claviger-lab-`, the number of the process, and letters that
/// nobody can foresee.
pub fn tag() -> &'static str {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| format!("{PREFIX}{}-{}", std::process::id(), letters(6)))
}

/// Unpredictable letters. If the system has no random numbers, nothing else works either.
pub(super) fn letters(count: usize) -> String {
    let mut bytes = vec![0; count];
    let _ = random::fill(&mut bytes);
    bytes.iter().map(|b| char::from(b'a' + b % 26)).collect()
}

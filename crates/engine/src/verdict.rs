//! Whether a store or a folder has a format.

use serde::Serialize;

/// What a store or a folder shows without any credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    /// Not this format, with the reason.
    No(String),
    /// Possibly this format, which has no signature, with the reason.
    Possible(String),
    /// This format, with the reason.
    Yes(String),
}

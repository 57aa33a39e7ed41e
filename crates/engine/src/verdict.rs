//! Whether a store or a folder has a format.

use serde::{Serialize, Serializer};

/// What a store or a folder shows without any credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    /// Not this format, with the reasons.
    No(#[serde(serialize_with = "as_one_text")] Vec<String>),
    /// Possibly this format, which has no signature, with the reasons.
    Possible(#[serde(serialize_with = "as_one_text")] Vec<String>),
    /// This format, with the reasons.
    Yes(#[serde(serialize_with = "as_one_text")] Vec<String>),
}

fn as_one_text<S: Serializer>(reasons: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&reasons.join("; "))
}

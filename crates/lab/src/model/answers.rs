//! What somebody wants to encrypt, and against whom: the questions of `claviger lab recommend`.

use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecommendAnswers {
    /// What is to be encrypted.
    pub purpose: EncryptionPurpose,
    /// Systems besides this Linux that must read and write it.
    pub share_with: Vec<Platform>,
    /// Against what.
    pub threat: Threat,
    /// Whether the user can be root.
    pub root: bool,
}

/// The four scenarios of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncryptionPurpose {
    /// A computer that is carried around.
    Laptop,
    /// A computer that stays where it is.
    Desktop,
    /// A few files among many.
    FewFiles,
    /// A disk or stick that is carried from computer to computer.
    External,
}

/// What it must withstand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threat {
    /// It is lost or stolen while it is off.
    Theft,
    /// A repair shop has it, and must be able to run it.
    Repair,
    /// Somebody can force the owner to reveal a passphrase.
    Coercion,
    /// Somebody can change it secretly and give it back.
    EvilMaid,
    /// It is stored by somebody else, who sees every version of it.
    Cloud,
}

/// A word of the command line, and what it means.
pub type Word<T> = (&'static str, T, &'static str);

impl EncryptionPurpose {
    /// All of them, as they are asked for.
    pub const WORDS: &[Word<Self>] = &[
        ("laptop", Self::Laptop, "a computer that is carried around"),
        ("desktop", Self::Desktop, "a computer that stays where it is"),
        ("few-files", Self::FewFiles, "a few sensitive files"),
        ("external", Self::External, "a disk or stick that is carried from computer to computer"),
    ];
}

impl Threat {
    /// All of them, as they are asked for.
    pub const WORDS: &[Word<Self>] = &[
        ("theft", Self::Theft, "it is lost or stolen while it is off"),
        ("repair", Self::Repair, "a repair shop has it, and must be able to run it"),
        ("coercion", Self::Coercion, "somebody can force you to reveal a passphrase"),
        ("evil-maid", Self::EvilMaid, "somebody can change it secretly and give it back"),
        ("cloud", Self::Cloud, "a cloud provider sees every version of it"),
    ];
}

impl Platform {
    /// All of them, as they are asked for.
    pub const WORDS: &[Word<Self>] =
        &[("linux", Self::Linux, "Linux"), ("windows", Self::Windows, "Windows"), ("macos", Self::Macos, "macOS")];
}

impl RecommendAnswers {
    /// All systems that must open it. This one is Linux.
    pub(crate) fn platforms(&self) -> impl Iterator<Item = Platform> {
        std::iter::once(Platform::Linux).chain(self.share_with.iter().copied())
    }
}

/// An operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
    /// macOS.
    Macos,
}

impl Platform {
    /// For people.
    pub fn title(self) -> &'static str {
        Self::WORDS.iter().find(|(_, platform, _)| *platform == self).map_or("", |(.., title)| title)
    }
}

//! The features table: what each facility can do and cannot, and what is known against it.

use std::sync::LazyLock;

use claviger_engine::FORMATS;
use claviger_engine::file_formats::FILE_FORMATS;
use serde::{Deserialize, Serialize};

use crate::model::answers::Platform;
use crate::model::figures::EncryptedLayer;

/// What a facility can and cannot do. The file `data/features.toml` explains each field.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FacilityFeatures {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Whether it encrypts disks or files.
    pub layer: EncryptedLayer,
    /// The year of its first release.
    pub since: u16,
    /// The year since which it is unmaintained.
    pub ended: Option<u16>,
    /// Why that is said.
    pub why_ended: Option<String>,
    /// Who calls it experimental.
    pub experimental: Option<String>,
    /// Systems on which it can be set up.
    pub makes: Vec<Platform>,
    /// Systems that can read and write it.
    pub writes: Vec<Platform>,
    /// Systems that can only read it.
    #[serde(default)]
    pub reads: Vec<Platform>,
    /// Systems that need nothing installed.
    #[serde(default)]
    pub builtin: Vec<Platform>,
    /// Systems that it can hold and boot.
    #[serde(default)]
    pub starts: Vec<Platform>,
    /// Whether it takes a whole disk or partition.
    #[serde(default)]
    pub whole_disk: bool,
    /// Whether it takes a file that stands for a disk.
    #[serde(default)]
    pub container: bool,
    /// Whether everything needed besides the passphrase is stored with the data.
    #[serde(default)]
    pub portable: bool,
    /// Whether it can hide a volume whose existence cannot be shown from the data.
    #[serde(default)]
    pub hidden_volume: bool,
    /// Whether changes to the encrypted data are detected.
    #[serde(default)]
    pub authenticated: bool,
    /// Whether its own program requires root on Linux.
    #[serde(default)]
    pub root: bool,
    /// Whether several passphrases or keys can open it.
    #[serde(default)]
    pub several_passphrases: bool,
    /// Whether its header, or what stands for one, can be backed up by a command of its own or by copying one small
    /// file.
    #[serde(default)]
    pub header_backup: bool,
    /// Whether a TPM or another secure element can hold a key.
    #[serde(default)]
    pub tpm: bool,
    /// Whether names of files are hidden.
    #[serde(default)]
    pub names: bool,
    /// Whether number and sizes of files are hidden.
    #[serde(default)]
    pub sizes: bool,
    /// Which of the five facilities of the thesis of 2010 it is.
    pub thesis: Option<String>,
    /// The name of this program's format, if it is one.
    pub format: Option<String>,
    /// What runs of the lab call it.
    #[serde(default)]
    pub measured_as: Vec<String>,
    /// How to set it up.
    pub how: Vec<String>,
    /// Where the table's facts come from.
    pub sources: Vec<String>,
    /// Its known weaknesses.
    #[serde(default)]
    pub weaknesses: Vec<Weakness>,
}

/// A known weakness of a facility.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Weakness {
    /// A whole sentence.
    pub what: String,
    /// Who says so.
    pub source: String,
    /// The year in which it became known.
    pub since: u16,
}

/// The whole table.
pub fn all() -> &'static [FacilityFeatures] {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        facility: Vec<FacilityFeatures>,
    }
    static ALL: LazyLock<Vec<FacilityFeatures>> = LazyLock::new(|| {
        let table: Table = toml::from_str(include_str!("../../../data/features.toml")).expect("tests parse the table");
        table.facility
    });
    &ALL
}

impl FacilityFeatures {
    /// Whether this program opens and creates it.
    pub fn is_ours(&self) -> bool {
        let known = |name: &str| {
            FORMATS.iter().any(|format| format.name() == name)
                || FILE_FORMATS.iter().any(|format| format.name() == name)
        };
        self.format.as_deref().is_some_and(known)
    }
}

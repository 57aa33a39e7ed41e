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
    /// Systems that it can hold and start.
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
    /// The format of this program that it is.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::facility::Catalogue;

    #[test]
    fn the_table_is_sound() {
        assert!(all().len() >= 15);
        for f in all() {
            let name = &f.name;
            assert_eq!(all().iter().filter(|other| other.name == *name).count(), 1, "{name} is there twice");
            assert_eq!(f.ended.is_some(), f.why_ended.is_some(), "{name}");
            assert!(f.ended.is_none_or(|ended| ended > f.since), "{name}");
            assert!(!f.how.is_empty() && !f.sources.is_empty(), "{name}");
            assert!(f.makes.iter().all(|p| f.writes.contains(p)), "{name} is made where it cannot be written");
            assert!(f.reads.iter().all(|p| !f.writes.contains(p)), "{name}: who writes can read");
            assert!(f.starts.iter().chain(&f.builtin).all(|p| f.writes.contains(p)), "{name}");
            assert!(f.starts.is_empty() || f.whole_disk, "{name} starts a system and takes no disk");
            assert_eq!(f.layer == EncryptedLayer::Files, !f.whole_disk && !f.container, "{name}");
            for weakness in &f.weaknesses {
                assert!(weakness.what.ends_with('.') && !weakness.source.is_empty() && weakness.since > 1999, "{name}");
            }
            if let Some(format) = &f.format {
                assert!(f.is_ours(), "{name}: there is no format {format}");
            }
        }
        let of_thesis: Vec<&str> = all().iter().filter_map(|f| f.thesis.as_deref()).collect();
        assert_eq!(of_thesis, ["dm-crypt", "TrueCrypt", "BitLocker", "EFS", "eCryptfs"]);
    }

    #[test]
    fn what_a_run_calls_it_is_what_the_lab_calls_it() {
        let catalogue = Catalogue::load(None).expect("the lab's own");
        for name in all().iter().flat_map(|f| &f.measured_as) {
            assert!(catalogue.all().iter().any(|facility| facility.name == *name), "the lab measures no {name}");
        }
    }

    /// Every format that this program opens stands in the table, but for the obsolete one.
    #[test]
    fn every_format_of_ours_is_there() {
        let volumes = FORMATS.iter().filter(|format| format.creator().is_some()).map(|format| format.name());
        let folders = FILE_FORMATS.iter().filter(|format| format.asks_passphrase(&[])).map(|format| format.name());
        for name in volumes.chain(folders) {
            assert!(all().iter().any(|f| f.format.as_deref() == Some(name)), "{name}");
        }
    }
}

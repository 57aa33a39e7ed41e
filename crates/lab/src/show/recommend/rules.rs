//! The rules: reasons that rule a facility out, requirements that can be given up, and points. Each is one line with
//! its own wording.

use super::features::FacilityFeatures;
use crate::model::answers::{EncryptionPurpose, Platform, RecommendAnswers, Threat};
use crate::model::figures::EncryptedLayer;

/// Why a facility cannot be the answer, whatever the requirements. The first reason suffices.
pub(super) fn out(f: &FacilityFeatures, answers: &RecommendAnswers) -> Option<String> {
    let ours = f.is_ours();
    if !f.makes.contains(&Platform::Linux) && !ours {
        let only_read = f.reads.contains(&Platform::Linux);
        let why = if only_read { "Linux can only read it" } else { "nothing on Linux can create it" };
        return Some(why.into());
    }
    for platform in &answers.share_with {
        if f.reads.contains(platform) {
            return Some(format!("{} can only read it", platform.title()));
        }
        if !f.writes.contains(platform) {
            return Some(format!("nothing on {} can open it", platform.title()));
        }
    }
    if f.ended.is_some() {
        return f.why_ended.clone();
    }
    if !answers.root && f.root && !ours {
        return Some("on Linux it requires root".into());
    }
    None
}

/// A requirement. If nothing meets all of them, the last one of the list is given up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requirement {
    HidesVolumes,
    NoticesChanges,
    NoticesChangesOrStart,
    FileByFile,
    HidesNames,
    ClosesByItself,
    StartsLinux,
    OnePiece,
    Portable,
}

impl Requirement {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::HidesVolumes => "that it can hide a volume behind a second passphrase",
            Self::NoticesChanges => "that changes to the encrypted data are detected",
            Self::NoticesChangesOrStart => "that changes to the data are detected, or a TPM guards the boot",
            Self::FileByFile => "that each file is encrypted separately",
            Self::HidesNames => "that file names are hidden",
            Self::ClosesByItself => "that it can stay closed while the system runs",
            Self::StartsLinux => "that it holds the whole disk, with the system, its swap and its temporary files",
            Self::OnePiece => "that it is a folder or a single file",
            Self::Portable => "that everything needed to open it is stored with the data",
        }
    }

    pub(super) fn holds(self, f: &FacilityFeatures) -> bool {
        match self {
            Self::HidesVolumes => f.hidden_volume,
            Self::NoticesChanges => f.authenticated,
            Self::NoticesChangesOrStart => f.authenticated || f.tpm && starts_linux(f),
            Self::FileByFile => f.layer == EncryptedLayer::Files,
            Self::HidesNames => f.names,
            Self::ClosesByItself | Self::OnePiece => f.container || f.layer == EncryptedLayer::Files,
            Self::StartsLinux => f.starts.contains(&Platform::Linux),
            Self::Portable => f.portable,
        }
    }
}

/// The requirements, the strongest first: those against the threat, then those of the purpose.
pub(super) fn requirements(answers: &RecommendAnswers) -> Vec<Requirement> {
    let disk = answers.purpose == EncryptionPurpose::Laptop || answers.purpose == EncryptionPurpose::Desktop;
    let against: &[Requirement] = match answers.threat {
        Threat::Theft => &[],
        Threat::Repair => &[Requirement::ClosesByItself],
        Threat::Coercion => &[Requirement::HidesVolumes],
        Threat::EvilMaid if disk => &[Requirement::NoticesChangesOrStart],
        Threat::EvilMaid => &[Requirement::NoticesChanges],
        Threat::Cloud => &[Requirement::FileByFile, Requirement::NoticesChanges, Requirement::HidesNames],
    };
    let purpose: &[Requirement] = match answers.purpose {
        // Only root can encrypt the disk of the system.
        EncryptionPurpose::Laptop if answers.root => &[Requirement::StartsLinux],
        EncryptionPurpose::Laptop | EncryptionPurpose::Desktop => &[],
        EncryptionPurpose::FewFiles => &[Requirement::OnePiece],
        EncryptionPurpose::External => &[Requirement::Portable],
    };
    against.iter().chain(purpose).copied().collect()
}

/// An argument for or against a facility.
struct Point {
    points: i32,
    words: &'static str,
    holds: fn(&FacilityFeatures, &RecommendAnswers) -> bool,
}

/// What counts besides. Weaknesses and measurements count too: see [`points`] and `Measured`.
const POINTS: &[Point] = &[
    Point {
        points: 3,
        words: "It encrypts the whole disk: swap, temporary files and traces of programs too.",
        holds: |f, a| a.purpose == EncryptionPurpose::Laptop && a.root && starts_linux(f),
    },
    Point {
        points: 2,
        words: "It can encrypt the whole disk, with swap and temporary files.",
        holds: |f, a| a.purpose == EncryptionPurpose::Desktop && a.root && starts_linux(f),
    },
    Point {
        points: 1,
        words: "Each user can have a folder with a key of their own.",
        holds: |f, a| a.purpose == EncryptionPurpose::Desktop && f.layer == EncryptedLayer::Files,
    },
    Point {
        points: 2,
        words: "It takes no more space than its files, and a backup only copies those that changed.",
        holds: |f, a| a.purpose == EncryptionPurpose::FewFiles && f.layer == EncryptedLayer::Files,
    },
    Point {
        points: 1,
        words: "It is one file, which can be copied anywhere.",
        holds: |f, a| a.purpose == EncryptionPurpose::FewFiles && f.container,
    },
    Point {
        points: 1,
        words: "It encrypts the whole medium, so that nothing can be left outside by mistake.",
        holds: |f, a| a.purpose == EncryptionPurpose::External && f.whole_disk,
    },
    Point {
        points: 2,
        words: "All systems that must open it can do so without extra software.",
        holds: |f, a| a.platforms().all(|p| f.builtin.contains(&p)),
    },
    Point { points: 1, words: "Changes to the encrypted data are detected.", holds: |f, _| f.authenticated },
    Point {
        points: 1,
        words: "It can have several passphrases, each of which can be revoked.",
        holds: |f, _| f.several_passphrases,
    },
    Point {
        points: 1,
        words: "Its header can be backed up, and restored if it is damaged.",
        holds: |f, _| f.header_backup,
    },
    Point {
        points: 1,
        words: "A TPM can hold a key.",
        holds: |f, a| f.tpm && matches!(a.purpose, EncryptionPurpose::Laptop | EncryptionPurpose::Desktop),
    },
    Point { points: 1, words: "File names are hidden.", holds: |f, _| f.names },
    Point { points: 1, words: "The number and sizes of files are hidden.", holds: |f, _| f.sizes },
    Point {
        points: 1,
        words: "Watching file sizes over time tells a cloud nothing.",
        holds: |f, a| f.sizes && a.threat == Threat::Cloud,
    },
    Point { points: 1, words: "This program creates and opens it, without root.", holds: |f, _| f.is_ours() },
    Point { points: -3, words: "It is considered experimental.", holds: |f, _| f.experimental.is_some() },
];

fn starts_linux(f: &FacilityFeatures) -> bool {
    f.starts.contains(&Platform::Linux)
}

/// What counts for this facility: points and words.
pub(super) fn points(f: &FacilityFeatures, answers: &RecommendAnswers) -> Vec<(i32, String)> {
    let features =
        POINTS.iter().filter(|point| (point.holds)(f, answers)).map(|point| (point.points, point.words.to_owned()));
    let weaknesses = f.weaknesses.iter().map(|weakness| (-1, weakness.what.clone()));
    features.chain(weaknesses).collect()
}

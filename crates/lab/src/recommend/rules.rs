//! What counts: reasons for which a facility is out, wishes that can be given up, and points. Each is one line and says itself in
//! words.

use super::features::{Features, Layer, Platform};
use super::{Answers, Purpose, Threat};

/// From where and when a facility is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) answers: &'a Answers,
    /// What was not there, or not known, in this year does not count.
    pub(super) year: u16,
    /// Whether this program is there.
    pub(super) ours: bool,
}

/// Why a facility cannot be the answer, whatever else is wished. The first reason is enough.
pub(super) fn out(f: &Features, view: &View<'_>) -> Option<String> {
    let answers = view.answers;
    if f.since > view.year {
        return Some(format!("it is of {}", f.since));
    }
    if !f.makes.contains(&Platform::Linux) {
        return Some("nothing on Linux makes it".into());
    }
    for platform in &answers.share_with {
        if f.reads.contains(platform) {
            return Some(format!("{} can only read it", platform.title()));
        }
        if !f.writes.contains(platform) {
            return Some(format!("nothing on {} opens it", platform.title()));
        }
    }
    if f.ended.is_some_and(|ended| ended <= view.year) {
        return f.why_ended.clone();
    }
    let without_root = view.ours && f.is_ours();
    if !answers.root && f.root && !without_root {
        return Some("on Linux it takes root".into());
    }
    None
}

/// Something that is wanted. Where nothing has everything, the last wish of the list is given up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
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

impl Wish {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::HidesVolumes => "that it can hide a volume, so that another passphrase can be told",
            Self::NoticesChanges => "that changes of the encrypted data are noticed",
            Self::NoticesChangesOrStart => {
                "that changes of the data are noticed, or a TPM guards the start of the system"
            }
            Self::FileByFile => "that files are encrypted one by one, so that a cloud gets only what changed",
            Self::HidesNames => "that names of files are hidden",
            Self::ClosesByItself => "that it can stay closed while the system runs",
            Self::StartsLinux => "that it holds the whole disk, with the system, its swap and its temporary files",
            Self::OnePiece => "that it is a folder or a single file",
            Self::Portable => "that all that is needed to open it lies with the data",
        }
    }

    pub(super) fn holds(self, f: &Features) -> bool {
        match self {
            Self::HidesVolumes => f.hidden_volume,
            Self::NoticesChanges => f.authenticated,
            Self::NoticesChangesOrStart => f.authenticated || f.tpm,
            Self::FileByFile => f.layer == Layer::Files,
            Self::HidesNames => f.names,
            Self::ClosesByItself | Self::OnePiece => f.container || f.layer == Layer::Files,
            Self::StartsLinux => f.starts.contains(&Platform::Linux),
            Self::Portable => f.portable,
        }
    }
}

/// The wishes, the strongest first: those against the threat, then those of the purpose.
pub(super) fn wishes(answers: &Answers) -> Vec<Wish> {
    let disk = answers.purpose == Purpose::Laptop || answers.purpose == Purpose::Desktop;
    let against: &[Wish] = match answers.threat {
        Threat::Theft => &[],
        Threat::Repair => &[Wish::ClosesByItself],
        Threat::Coercion => &[Wish::HidesVolumes],
        Threat::EvilMaid if disk => &[Wish::NoticesChangesOrStart],
        Threat::EvilMaid => &[Wish::NoticesChanges],
        Threat::Cloud => &[Wish::FileByFile, Wish::NoticesChanges, Wish::HidesNames],
    };
    let purpose: &[Wish] = match answers.purpose {
        // Only root can encrypt the disk of the system.
        Purpose::Laptop if answers.root => &[Wish::StartsLinux],
        Purpose::Laptop | Purpose::Desktop => &[],
        Purpose::FewFiles => &[Wish::OnePiece],
        Purpose::External => &[Wish::Portable],
    };
    against.iter().chain(purpose).copied().collect()
}

/// Something that speaks for a facility or against it.
struct Point {
    points: i32,
    words: &'static str,
    holds: fn(&Features, &View<'_>) -> bool,
}

/// What counts besides. Weaknesses and measurements count too: see [`points`] and `Measured`.
const POINTS: &[Point] = &[
    Point {
        points: 3,
        words: "It holds the whole disk: swap, temporary files and the traces of programs are encrypted too.",
        holds: |f, v| v.answers.purpose == Purpose::Laptop && v.answers.root && starts_linux(f),
    },
    Point {
        points: 2,
        words: "It can hold the whole disk, with swap and temporary files.",
        holds: |f, v| v.answers.purpose == Purpose::Desktop && v.answers.root && starts_linux(f),
    },
    Point {
        points: 1,
        words: "Each user can have a folder with a key of their own.",
        holds: |f, v| v.answers.purpose == Purpose::Desktop && f.layer == Layer::Files,
    },
    Point {
        points: 2,
        words: "It takes the room of its files and no more, and a backup copies those that changed.",
        holds: |f, v| v.answers.purpose == Purpose::FewFiles && f.layer == Layer::Files,
    },
    Point {
        points: 1,
        words: "It is one file, which can be copied anywhere.",
        holds: |f, v| v.answers.purpose == Purpose::FewFiles && f.container,
    },
    Point {
        points: 1,
        words: "It takes the whole medium, so that nothing can be left outside by mistake.",
        holds: |f, v| v.answers.purpose == Purpose::External && f.whole_disk,
    },
    Point {
        points: 2,
        words: "No system that shall open it needs anything installed.",
        holds: |f, v| v.answers.platforms().all(|p| f.builtin.contains(&p)),
    },
    Point { points: 1, words: "Changes of the encrypted data are noticed.", holds: |f, _| f.authenticated },
    Point {
        points: 1,
        words: "Several passphrases can open it, and one can be withdrawn.",
        holds: |f, _| f.several_passphrases,
    },
    Point {
        points: 1,
        words: "What opens it can be backed up: a damaged header is not the end.",
        holds: |f, _| f.header_backup,
    },
    Point {
        points: 1,
        words: "A TPM can hold a key.",
        holds: |f, v| f.tpm && matches!(v.answers.purpose, Purpose::Laptop | Purpose::Desktop),
    },
    Point { points: 1, words: "Names of files are hidden.", holds: |f, _| f.names },
    Point { points: 1, words: "Number and sizes of files are hidden.", holds: |f, _| f.sizes },
    Point {
        points: 1,
        words: "What a cloud sees of a file's size over time says nothing.",
        holds: |f, v| f.sizes && v.answers.threat == Threat::Cloud,
    },
    Point { points: 1, words: "This program creates and opens it, without root.", holds: |f, v| v.ours && f.is_ours() },
    Point { points: -3, words: "It is called experimental.", holds: |f, _| f.experimental.is_some() },
];

fn starts_linux(f: &Features) -> bool {
    f.starts.contains(&Platform::Linux)
}

/// What counts for this facility: points and words.
pub(super) fn points(f: &Features, view: &View<'_>) -> Vec<(i32, String)> {
    let said = POINTS.iter().filter(|point| (point.holds)(f, view)).map(|point| (point.points, point.words.to_owned()));
    let weaknesses = f.weaknesses_in(view.year).map(|weakness| (-1, weakness.what.clone()));
    said.chain(weaknesses).collect()
}

//! What is measured, how thoroughly, and on which media.
//!
//! Every facility is measured on each medium, in the same turns. On the first medium a facility has the name that it
//! always has. On another it is `LUKS2@sdb`, of which `sdb` is the last part of that medium's path; no facility has an
//! `@` in a name of its own.

use std::path::Path;

use claviger_engine::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::model::parameters::{Parameters, PlannedWork};

/// Media of a run, at most.
pub(crate) const MOST_MEDIA: usize = 16;

/// What stands between the name of a facility and that of its medium.
const AT: char = '@';

/// The name of a facility without its medium.
pub fn base_name(facility: &str) -> &str {
    facility.split(AT).next().unwrap_or(facility)
}

/// What to measure, and how thoroughly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The level, which determines the sizes and the number of passes.
    pub level: Level,
    /// Share of the full size of the studies' data sets (2.3 GB of files, a file of 3 GB, ...): 1 is all of it.
    pub scale: f64,
    /// Where the containers are.
    pub backing: Backing,
    /// Other media, on which everything is done, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Backing>,
    /// Size of each volume in bytes.
    pub size: u64,
    /// Names of facilities without duplicates, including their baselines.
    pub facilities: Vec<String>,
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// Minimum number of passes of everything, without the warm-up.
    pub min_repeats: usize,
    /// Maximum number of passes of anything.
    pub max_repeats: usize,
    /// Relative standard deviation at which a figure is steady: 0.03 is 3 %.
    pub steady: f64,
    /// The seed of the order of facilities, of the data and of the bootstrap samples.
    pub seed: u64,
    /// What is done with the page cache before each pass.
    pub caches: Caches,
    /// What the repeated study asks for; `None` if no study is repeated.
    #[serde(skip)]
    pub repeated: Option<PlannedStudy>,
}

impl Plan {
    /// What a study asks of this workload; `None` if the level decides.
    pub fn parameters(&self, workload: &str) -> Option<&Parameters> {
        self.repeated.as_ref()?.parameters(workload)
    }

    /// Whether the workload is done with this facility, if that can be.
    pub fn does(&self, workload: &str, facility: &str) -> bool {
        self.repeated.as_ref().is_none_or(|study| study.does(workload, base_name(facility)))
    }
}

/// The part of a study that decides what is done. The rest is for reports.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStudy {
    /// Its name on the command line.
    pub name: String,
    /// Names of facilities. A workload may have others of its own.
    pub facilities: Vec<String>,
    /// What is done, and how.
    pub workloads: Vec<PlannedWork>,
}

impl PlannedStudy {
    /// What the study asks of a workload; `None` if it does not have the workload.
    pub fn parameters(&self, workload: &str) -> Option<&Parameters> {
        self.workloads.iter().find(|work| work.name == workload).map(|work| &work.parameters)
    }

    /// Whether the workload is done with this facility. A workload that the study does not have was requested by the user.
    pub fn does(&self, workload: &str, facility: &str) -> bool {
        let among = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(facility));
        match self.workloads.iter().find(|work| work.name == workload) {
            Some(work) if !work.facilities.is_empty() => among(&work.facilities),
            _ => among(&self.facilities) || !self.workloads.iter().any(|work| among(&work.facilities)),
        }
    }
}

/// How thoroughly to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Minutes: small data sets, the ends of the ranges.
    #[default]
    Quick,
    /// A few hours: one facility of each kind.
    Standard,
    /// The studies' sizes and ranges.
    Thorough,
}

impl Level {
    /// The value for this level.
    pub(crate) fn choose<T>(self, [quick, standard, thorough]: [T; 3]) -> T {
        match self {
            Self::Quick => quick,
            Self::Standard => standard,
            Self::Thorough => thorough,
        }
    }
}

/// Where containers lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "path")]
pub enum Backing {
    /// Files in a file system in memory: what encryption costs, without a disk in the way.
    Tmpfs(std::path::PathBuf),
    /// Files in this folder on a disk.
    Folder(std::path::PathBuf),
    /// A whole block device, whose contents are lost.
    Device(std::path::PathBuf),
}

/// What is done with the page cache before each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// It is dropped (requires root).
    Dropped,
    /// It is kept: reads may come from memory.
    Warm,
}

impl Backing {
    /// The folder or the device.
    pub fn path(&self) -> &Path {
        match self {
            Self::Tmpfs(path) | Self::Folder(path) | Self::Device(path) => path,
        }
    }

    /// What distinguishes it from the other media of a run.
    fn label(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().replace(char::is_whitespace, "-")
    }
}

impl Plan {
    /// Where containers are, in the order in which they were named.
    pub fn media(&self) -> impl Iterator<Item = &Backing> {
        std::iter::once(&self.backing).chain(&self.more)
    }

    /// The name of a facility on a medium, counted from 0. `None` if the run has no such medium.
    pub fn on_medium(&self, facility: &str, medium: usize) -> Option<String> {
        let backing = self.media().nth(medium)?;
        Some(if medium == 0 { facility.to_owned() } else { format!("{facility}{AT}{}", backing.label()) })
    }

    /// Names of facilities on all media, without duplicates.
    pub fn on_all_media(&self) -> Vec<String> {
        let of = |medium| self.facilities.iter().filter_map(move |name| self.on_medium(name, medium));
        (0..=self.more.len()).flat_map(of).collect()
    }

    /// The medium, counted from 0, on which a facility of this name is.
    pub fn medium_of(&self, facility: &str) -> usize {
        let label = facility.split_once(AT).map(|(_, label)| label);
        label.and_then(|label| self.media().skip(1).position(|backing| backing.label() == label)).map_or(0, |at| at + 1)
    }

    /// Where the containers of this facility are.
    pub fn backing_of(&self, facility: &str) -> &Backing {
        self.media().nth(self.medium_of(facility)).unwrap_or(&self.backing)
    }

    /// The plan with one of the media as the first.
    pub(crate) fn at_medium(&self, medium: usize) -> Self {
        let mut plan = self.clone();
        if let Some(other) = medium.checked_sub(1).and_then(|other| plan.more.get_mut(other)) {
            std::mem::swap(&mut plan.backing, other);
        }
        plan
    }

    /// The title of a facility on a medium, counted from 0.
    pub(crate) fn title(&self, title: &str, medium: usize) -> String {
        let place = self.media().nth(medium).filter(|_| medium > 0).map(|backing| backing.path().display());
        place.map_or(title.to_owned(), |place| format!("{title}, on {place}"))
    }

    /// Fails unless the media have different names: otherwise their figures would be mixed up.
    pub(crate) fn check_media(&self) -> Result<()> {
        let labels: Vec<String> = self.media().map(Backing::label).collect();
        if labels.len() > MOST_MEDIA {
            return Err(Error::misuse(format!("a run can have at most {MOST_MEDIA} media")));
        }
        let twice = labels.iter().enumerate().find(|(at, label)| labels[..*at].contains(label));
        match twice {
            None => Ok(()),
            Some((_, label)) => Err(Error::misuse(format!("two of the media are called {label:?}")).hint(
                "Figures are labelled with the last part of their medium's path. Name each medium once, and give folders different names.",
            )),
        }
    }
}

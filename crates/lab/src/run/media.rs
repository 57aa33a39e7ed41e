//! Several media in one run: every facility is measured on each of them, in the same turns.
//!
//! On the first medium a facility has the name that it always has. On another it is `LUKS2@sdb`, of which `sdb` is the
//! last part of that medium's path; no facility has an `@` in a name of its own.

use std::path::Path;

use claviger_engine::{Error, Result};

use super::{Backing, FacilityRecord, Plan};
use crate::facility::Facility;
use crate::study::MOST_MEDIA;

/// What stands between the name of a facility and that of its medium.
const AT: char = '@';

/// The name of a facility without its medium.
pub fn base_name(facility: &str) -> &str {
    facility.split(AT).next().unwrap_or(facility)
}

impl Backing {
    /// The folder or the device.
    pub fn path(&self) -> &Path {
        match self {
            Self::Tmpfs(path) | Self::Folder(path) | Self::Device(path) => path,
        }
    }

    /// What tells it from the other media of a run.
    fn label(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().replace(char::is_whitespace, "-")
    }
}

impl Plan {
    /// Where containers are, in the order in which they were named.
    pub fn media(&self) -> impl Iterator<Item = &Backing> {
        std::iter::once(&self.backing).chain(&self.more)
    }

    /// The name of a facility on a medium, counted from 0. Nothing where the run has no such medium.
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

    /// The plan as it is on one of the media, which comes first there.
    pub(super) fn at_medium(&self, medium: usize) -> Self {
        let mut plan = self.clone();
        if let Some(other) = medium.checked_sub(1).and_then(|other| plan.more.get_mut(other)) {
            std::mem::swap(&mut plan.backing, other);
        }
        plan
    }

    /// The facilities that are measured, from those that the plan names: all of them on each medium.
    pub(super) fn on_each_medium(&self, facilities: &[Facility]) -> Vec<Facility> {
        let of_medium = |medium| {
            facilities.iter().filter_map(move |facility| {
                Some(Facility {
                    name: self.on_medium(&facility.name, medium)?,
                    title: self.title(&facility.title, medium),
                    baseline: facility.baseline.as_ref().and_then(|name| self.on_medium(name, medium)),
                    ..facility.clone()
                })
            })
        };
        (0..=self.more.len()).flat_map(of_medium).collect()
    }

    /// What was found of the facilities, likewise: each was asked once.
    pub(super) fn recorded_on_each_medium(&self, records: &[FacilityRecord]) -> Vec<FacilityRecord> {
        let of_medium = |medium| {
            records.iter().filter_map(move |record| {
                Some(FacilityRecord {
                    name: self.on_medium(&record.name, medium)?,
                    title: self.title(&record.title, medium),
                    baseline: record.baseline.as_ref().and_then(|name| self.on_medium(name, medium)),
                    ..record.clone()
                })
            })
        };
        (0..=self.more.len()).flat_map(of_medium).collect()
    }

    fn title(&self, title: &str, medium: usize) -> String {
        let place = self.media().nth(medium).filter(|_| medium > 0).map(|backing| backing.path().display());
        place.map_or(title.to_owned(), |place| format!("{title}, on {place}"))
    }

    /// Fails unless the media can be told apart: figures would stand under each other's names.
    ///
    /// # Errors
    /// `Misuse`.
    pub(super) fn check_media(&self) -> Result<()> {
        let labels: Vec<String> = self.media().map(Backing::label).collect();
        if labels.len() > MOST_MEDIA {
            return Err(Error::misuse(format!("a run can have at most {MOST_MEDIA} media")));
        }
        let twice = labels.iter().enumerate().find(|(at, label)| labels[..*at].contains(label));
        match twice {
            None => Ok(()),
            Some((_, label)) => Err(Error::misuse(format!("two of the media are called {label:?}")).hint(
                "Each figure carries the last part of its medium's path: name every medium once, folders by names that differ.",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facility::Catalogue;
    use crate::workloads::tests::lab;

    fn plan(more: &[&str]) -> Plan {
        Plan { more: more.iter().map(|path| Backing::Device(path.into())).collect(), ..lab().plan }
    }

    #[test]
    fn every_facility_is_on_every_medium_beside_the_baseline_there() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let two = ["plain", "LUKS2"].map(|name| catalogue.find(name).expect("there").clone());
        let plan = plan(&["/dev/sdb", "/dev/mapper/my stick"]);
        let all = plan.on_each_medium(&two);
        let names: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.baseline.as_deref())).collect();
        assert_eq!(
            names,
            [
                ("plain", None),
                ("LUKS2", Some("plain")),
                ("plain@sdb", None),
                ("LUKS2@sdb", Some("plain@sdb")),
                ("plain@my-stick", None),
                ("LUKS2@my-stick", Some("plain@my-stick")),
            ]
        );
        assert!(all[3].title.ends_with(", on /dev/sdb") && all[1].title == two[1].title);
        let at =
            |name: &str| (plan.medium_of(name), plan.backing_of(name).path().to_owned(), base_name(name).to_owned());
        assert_eq!(at("LUKS2"), (0, "/dev/shm".into(), "LUKS2".into()));
        assert_eq!(at("LUKS2@my-stick"), (2, "/dev/mapper/my stick".into(), "LUKS2".into()));
        let there = plan.at_medium(2);
        assert_eq!(there.backing.path(), Path::new("/dev/mapper/my stick"));
        assert_eq!(there.media().count(), 3, "what is done alike everywhere still knows the others");
        assert_eq!(plan.on_medium("LUKS2", 3), None);
    }

    #[test]
    fn media_that_cannot_be_told_apart_are_refused() {
        assert!(plan(&["/dev/sdb", "/dev/sdc"]).check_media().is_ok());
        for more in [&["/dev/sdb", "/dev/sdb"][..], &["/srv/shm"], &["/a/x", "/b/x"]] {
            assert!(plan(more).check_media().is_err(), "{more:?}");
        }
        let many: Vec<String> = (0..MOST_MEDIA).map(|n| format!("/dev/sd{n}")).collect();
        assert!(plan(&many.iter().map(String::as_str).collect::<Vec<_>>()).check_media().is_err());
    }
}

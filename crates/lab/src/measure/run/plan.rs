//! Turns a request into a plan that fits: facilities and workloads, sizes, space, and how long it will take.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

use claviger_engine::{Error, Result};
use rustix::fs::statvfs;
use rustix::process::geteuid;

use crate::measure::facility::{Catalogue, Facility, Gives};
use crate::measure::run::bench::StoresAtOnce;
use crate::measure::run::levels::Defaults;
use crate::measure::workloads::{On, Workload};
use crate::measure::{machine, workloads};
use crate::model::figures::RunPlan;
use crate::model::figures::{FacilityRecord, WorkloadRecord};
use crate::model::plan::{Backing, Caches, Level, Plan};
use crate::model::study::{Study, StudyExtent};
use crate::model::words::size;

/// Where a file system in memory is.
pub const MEMORY: &str = "/dev/shm";

/// Stands for all facilities, or all workloads.
pub const ALL: &str = "all";

/// What the quick level measures by default: the formats of the studies' successors, and their
/// baseline.
const QUICK: &[&str] = &["plain", "LUKS2", "VeraCrypt"];

/// The default workloads of the quick level: requests in order and at random, small files and large
/// ones. With the facilities above that takes five minutes at most.
const QUICK_WORKLOADS: &[&str] = &["dd", "iozone-like", "seeks", "tree", "large-file", "unpack"];

/// The cost of encryption by block size, by the method of the BSI's study of TrueCrypt (2010): sequential transfers to
/// volumes of TrueCrypt over NBD, and the kernel's dm-crypt beside them. Each has its own baseline.
pub const SWEEP: Preset = Preset {
    quick: &["nbd/TrueCrypt", "nbd/TrueCrypt:Serpent", "nbd/TrueCrypt:AES-Twofish-Serpent", "dm-crypt/plain"],
    more: &[
        "nbd/TrueCrypt:Twofish",
        "nbd/TrueCrypt:AES-Twofish",
        "nbd/TrueCrypt:Serpent-AES",
        "nbd/TrueCrypt:Serpent-Twofish-AES",
        "nbd/TrueCrypt:Twofish-Serpent",
    ],
    workloads: &["dd"],
};

/// Facilities that encrypt file by file, with the file workloads of the studies and work at which they are slow: small files,
/// long listings, small requests in a large file.
#[rustfmt::skip]
pub const FILES: Preset = Preset {
    quick: &["files/eCryptfs", "files/gocryptfs", "eCryptfs", "gocryptfs"],
    more: &[
        "files/eCryptfs:clear-names", "files/gocryptfs:AES-SIV", "files/gocryptfs:XChaCha20-Poly1305", "files/Cryptomator",
        "files/Cryptomator:SIV_CTRMAC", "gocryptfs:xchacha", "EncFS", "EncFS:paranoia", "CryFS", "CryFS:aes-256-gcm", "securefs",
        "fscrypt", "ntfs-3g",
    ],
    workloads: &[
        "fio", "tree", "large-file", "small-files", "unpack", "compile", "gzip", "compilebench-like", "bonnie++",
        "dbench", "sqlite", "pgbench",
    ],
};

/// The cost of encryption if the data are on another machine: over lines with latency, each with its own baseline.
/// One request at a time and many, large and small, and files.
pub const NETWORK: Preset = Preset {
    quick: &["near/LUKS2", "far/LUKS2"],
    more: &["near/LUKS1", "near/VeraCrypt", "near/BitLocker", "far/LUKS1", "far/VeraCrypt", "far/BitLocker"],
    workloads: &["dd", "fio", "tree", "large-file", "small-files"],
};

/// Bytes of memory that are left to the rest of the machine.
const RESERVE: u64 = 256 << 20;

/// Bytes beside the volumes: headers, what a file system keeps for itself.
const MARGIN: u64 = 64 << 20;

/// The smallest volume in bytes that every facility can be made with, a file system in it.
const LEAST: u64 = 64 << 20;

/// The largest volume in bytes: with room for headers beside it, no number overflows.
const MOST: u64 = 1 << 50;

/// Passes of anything, at most.
const MOST_REPEATS: usize = 1000;

/// Seconds that opening, closing and dropping caches take around a pass, about; making a facility takes as long.
const AROUND: f64 = 0.5;

/// Facilities and workloads that together answer a question that people have asked before.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Facilities at every level; one that cannot be measured here is left out, with the reason.
    quick: &'static [&'static str],
    /// Additional ones from the standard level on.
    more: &'static [&'static str],
    workloads: &'static [&'static str],
}

/// A user's request. The level decides what is empty or `None`.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The level, which determines sizes and passes.
    pub level: Level,
    /// Where containers lie: everything is done on each of these media, of which there is at least one.
    pub media: Vec<Backing>,
    /// What is measured where no facility or no workload is named, in the place of the level's own choice.
    pub preset: Option<Preset>,
    /// The study to repeat. It decides what is measured, and how often, unless the request does.
    pub study: Option<Study>,
    /// Names of facilities; their baselines are added. [`ALL`] is all of them.
    pub facilities: Vec<String>,
    /// Names of workloads, or [`ALL`].
    pub workloads: Vec<String>,
    /// Share of the studies' data sets.
    pub scale: Option<f64>,
    /// Bytes of each volume.
    pub size: Option<u64>,
    /// Passes at least and at most.
    pub repeats: Option<(usize, usize)>,
    /// Relative standard deviation at which a figure is steady.
    pub steady: Option<f64>,
    /// The seed of the random order.
    pub seed: u64,
}

/// A plan, with the facilities and workloads that are available here.
pub struct PreparedRun {
    /// What is measured.
    pub plan: RunPlan,
    /// The facilities that are measured.
    pub facilities: Vec<Facility>,
    /// All facilities of the plan, including those that cannot be measured here.
    pub facility_records: Vec<FacilityRecord>,
    /// The workloads that are done.
    pub workloads: Vec<&'static Workload>,
    /// All workloads of the plan, including those that cannot be done here.
    pub workload_records: Vec<WorkloadRecord>,
    /// How many stores there are at a time.
    pub stores_at_once: StoresAtOnce,
}

/// How long a run takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// If everything is steady after the least number of passes.
    pub least_s: f64,
    /// If nothing is steady.
    pub most_s: f64,
}

impl Preset {
    fn facilities(&self, level: Level) -> Vec<String> {
        let more = if level == Level::Quick { &[] } else { self.more };
        self.quick.iter().chain(more).map(ToString::to_string).collect()
    }
}

impl Wishes {
    /// The plan.
    ///
    /// # Errors
    /// `Misuse` for names that nothing has, and numbers that make no sense.
    pub fn plan(&self, catalogue: &Catalogue) -> Result<RunPlan> {
        let extent = self.study.as_ref().map(|study| study.extent(self.level));
        let level = Defaults::of(self.level);
        let defaults = extent.map_or(level, |StudyExtent { scale, repeats, most, .. }| Defaults {
            scale,
            min_repeats: repeats,
            max_repeats: most.unwrap_or(repeats),
            pass_s: f64::INFINITY,
        });
        let asked = self.size.or(extent.map(|extent| extent.volume));
        let (min_repeats, max_repeats) = self.repeats.unwrap_or((defaults.min_repeats, defaults.max_repeats));
        let mut plan = Plan {
            level: self.level,
            scale: self.scale.unwrap_or(defaults.scale),
            backing: self.media.first().cloned().unwrap_or(Backing::Tmpfs(MEMORY.into())),
            more: self.media.iter().skip(1).cloned().collect(),
            // Workloads state how much they need if there is room.
            size: u64::MAX / 2,
            facilities: self.facilities(catalogue)?,
            workloads: Vec::new(),
            min_repeats,
            max_repeats: max_repeats.max(min_repeats),
            steady: self.steady.or(extent.and_then(|extent| extent.steady)).unwrap_or(0.03),
            seed: self.seed,
            caches: if can_drop_caches() { Caches::Dropped } else { Caches::Warm },
            repeated: self.study.as_ref().map(Study::planned),
        };
        check(&Plan { size: asked.unwrap_or(LEAST), ..plan.clone() })?;
        plan.workloads = self.workloads(&plan, defaults.pass_s)?;
        let needed = workloads_of(&plan)?.into_iter().filter(|w| (w.missing)().is_none()).map(|w| room(w, &plan)).max();
        plan.size = asked.unwrap_or(needed.unwrap_or(0).max(LEAST).next_multiple_of(1 << 20));
        Ok(RunPlan::new(plan, self.study.clone()))
    }

    /// Names as the catalogue has them, in its order, with baselines.
    fn facilities(&self, catalogue: &Catalogue) -> Result<Vec<String>> {
        let named = match &self.study {
            Some(study) if self.facilities.is_empty() => &study.all_facilities().cloned().collect(),
            _ => &self.facilities,
        };
        let mut names: Vec<String> = match (&named[..], self.preset, self.level) {
            ([], Some(preset), level) => preset.facilities(level),
            ([], None, Level::Quick) => QUICK.iter().map(ToString::to_string).collect(),
            // One of each kind of the other programs that are installed.
            ([], None, Level::Standard) => {
                let one_of_a_kind = |f: &&Facility| !f.name.contains(':') && f.gives != Gives::Nbd;
                QUICK.iter().map(ToString::to_string).chain(others(catalogue, &one_of_a_kind)).collect()
            }
            // Ours with their default ciphers, and all other programs that are installed.
            ([], None, Level::Thorough) => {
                catalogue.defaults().into_iter().chain(others(catalogue, &|_| true)).collect()
            }
            (names, ..) if names.iter().any(|name| name.eq_ignore_ascii_case(ALL)) => {
                catalogue.all().iter().map(|f| f.name.clone()).collect()
            }
            (names, ..) => {
                let found = names.iter().map(|name| Ok(catalogue.find(name)?.name.clone()));
                found.collect::<Result<_>>()?
            }
        };
        for facility in catalogue.all() {
            let baseline = facility.baseline.as_ref().filter(|_| names.contains(&facility.name));
            names.extend(baseline.filter(|b| !names.contains(b)).cloned().into_iter().collect::<Vec<_>>());
        }
        Ok(catalogue.all().iter().map(|f| f.name.clone()).filter(|name| names.contains(name)).collect())
    }

    fn workloads(&self, plan: &Plan, pass_s: f64) -> Result<Vec<String>> {
        let all = || workloads::all().map(|w| w.name.to_owned());
        if let (true, Some(preset)) = (self.workloads.is_empty(), self.preset) {
            return Ok(preset.workloads.iter().map(ToString::to_string).collect());
        }
        if let Some(study) = self.study.as_ref().filter(|_| self.workloads.is_empty()) {
            return Ok(study.workloads.iter().map(|work| work.name.clone()).collect());
        }
        if self.workloads.is_empty() {
            let quick = |name| plan.level != Level::Quick || QUICK_WORKLOADS.contains(&name);
            let short = workloads::all().filter(|w| quick(w.name) && (w.estimate_s)(plan) <= pass_s);
            return Ok(short.map(|w| w.name.to_owned()).collect());
        }
        if self.workloads.iter().any(|name| name.eq_ignore_ascii_case(ALL)) {
            return Ok(all().collect());
        }
        let wanted = |name: &String| self.workloads.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
        if let Some(unknown) = self.workloads.iter().find(|wanted| !all().any(|name| name.eq_ignore_ascii_case(wanted)))
        {
            let names: Vec<String> = all().collect();
            let hint = format!("The workloads are: {}.", names.join(", "));
            return Err(Error::misuse(format!("there is no workload called {unknown}")).hint(hint));
        }
        Ok(all().filter(wanted).collect())
    }
}

/// Names of facilities of other programs that encrypt and work here.
fn others(catalogue: &Catalogue, wanted: &dyn Fn(&&Facility) -> bool) -> Vec<String> {
    let others = catalogue.all().iter().filter(|f| f.baseline.is_some() && !f.is_ours());
    others.filter(wanted).filter(|f| f.missing().is_none()).map(|f| f.name.clone()).collect()
}

impl PreparedRun {
    /// Checks which parts of the plan are available here, and whether they fit. `program` is this program.
    ///
    /// # Errors
    /// `Misuse` for names that nothing has, and where there is too little room; `Unsupported` where nothing can be
    /// measured; `Io`.
    pub fn of(plan: RunPlan, catalogue: &Catalogue, program: &Path) -> Result<Self> {
        check(&plan)?;
        plan.study().map_or(Ok(()), Study::check)?;
        let named = plan.facilities.iter().map(|name| {
            let facility = catalogue.find(name)?;
            Ok((facility.clone(), facility_record(facility, program)))
        });
        let all = on_each_medium(&plan, &named.collect::<Result<Vec<_>>>()?);
        let facility_records: Vec<FacilityRecord> = all.iter().map(|(_, record)| record.clone()).collect();
        let workload_records: Vec<WorkloadRecord> =
            workloads_of(&plan)?.into_iter().map(|w| workload_record(w, &plan)).collect();
        let facilities: Vec<Facility> =
            all.into_iter().filter(|(_, record)| record.left_out.is_none()).map(|(facility, _)| facility).collect();
        let workloads: Vec<_> = workloads_of(&plan)?
            .into_iter()
            .zip(&workload_records)
            .filter(|(_, record)| record.left_out.is_none())
            .map(|(workload, _)| workload)
            .collect();
        let reasons = facility_records.iter().filter_map(|f| f.left_out.as_deref());
        let reasons = reasons.chain(workload_records.iter().filter_map(|w| w.left_out.as_deref()));
        if facilities.is_empty() || workloads.is_empty() {
            let hint = reasons.collect::<Vec<_>>().join(" ");
            return Err(Error::unsupported("none of this can be measured here").hint(hint));
        }
        // Each medium has the same number of them.
        let (on_each, media) = (facilities.len() / (plan.more.len() + 1), plan.media());
        let all_fit = media.map(|medium| Ok(stores_at_once(medium, &plan, on_each, &workloads)? == StoresAtOnce::All));
        let all_fit = all_fit.collect::<Result<Vec<_>>>()?.into_iter().all(|fit| fit);
        let stores_at_once = if all_fit { StoresAtOnce::All } else { StoresAtOnce::One };
        Ok(Self { plan, facilities, facility_records, workloads, workload_records, stores_at_once })
    }

    /// The facilities that a workload is done with.
    pub fn facilities_of(&self, workload: &str) -> impl Iterator<Item = &Facility> {
        self.facilities.iter().filter(move |facility| self.plan.does(workload, &facility.name))
    }

    /// How long it will take.
    pub fn estimate(&self) -> Estimate {
        let passes = |repeats: usize| -> f64 {
            let of = |w: &&'static Workload| {
                ((w.estimate_s)(&self.plan) + AROUND) * self.facilities_of(w.name).count() as f64
            };
            self.workloads.iter().map(of).sum::<f64>() * (repeats + 1) as f64
        };
        let once: f64 = self.workloads.iter().map(|w| (w.once_s)()).sum();
        let making = AROUND * self.facilities.len() as f64 + once;
        Estimate { least_s: making + passes(self.plan.min_repeats), most_s: making + passes(self.plan.max_repeats) }
    }
}

/// The facilities that the plan names, repeated for each medium with their records. Each facility was checked only
/// once.
fn on_each_medium(plan: &Plan, named: &[(Facility, FacilityRecord)]) -> Vec<(Facility, FacilityRecord)> {
    let on = |(facility, record): &(Facility, FacilityRecord), medium| {
        let name = plan.on_medium(&facility.name, medium)?;
        let title = plan.title(&facility.title, medium);
        let baseline = facility.baseline.as_ref().and_then(|name| plan.on_medium(name, medium));
        let record =
            FacilityRecord { name: name.clone(), title: title.clone(), baseline: baseline.clone(), ..record.clone() };
        Some((Facility { name, title, baseline, ..facility.clone() }, record))
    };
    (0..=plan.more.len()).flat_map(|medium| named.iter().filter_map(move |one| on(one, medium))).collect()
}

/// Checks the numbers: a stored run is untrusted.
fn check(plan: &Plan) -> Result<()> {
    let wrong = match () {
        () if plan.min_repeats == 0 => "at least one repeat is required",
        () if plan.max_repeats > MOST_REPEATS => "at most 1000 repeats are possible",
        () if !(plan.scale > 0.0 && plan.scale <= 10.0) => "the scale must be above 0 and at most 10",
        () if !(plan.steady > 0.0 && plan.steady <= 1.0) => "the steadiness limit must be above 0 % and at most 100 %",
        () if plan.size < LEAST => "volumes must have at least 64 MiB",
        () if plan.size > MOST => "volumes can have at most 1 PiB",
        () => return plan.check_media(),
    };
    Err(Error::misuse(wrong))
}

/// The workloads of a plan.
fn workloads_of(plan: &Plan) -> Result<Vec<&'static Workload>> {
    let find = |name: &String| {
        let found = workloads::all().find(|w| w.name == name);
        found.ok_or_else(|| Error::misuse(format!("there is no workload called {name}")))
    };
    plan.workloads.iter().map(find).collect()
}

fn facility_record(facility: &Facility, program: &Path) -> FacilityRecord {
    let left_out = facility.missing();
    FacilityRecord {
        name: facility.name.clone(),
        title: facility.title.clone(),
        baseline: facility.baseline.clone(),
        about: facility.about.clone(),
        version: left_out.is_none().then(|| facility.version_here(program)).flatten(),
        commands: facility.commands(),
        left_out,
    }
}

fn workload_record(workload: &'static Workload, plan: &Plan) -> WorkloadRecord {
    let needed = room(workload, plan);
    let too_large = || {
        let what = format!("It needs volumes of {}; these have {}.", size(needed), size(plan.size));
        (needed > plan.size).then_some(what)
    };
    let left_out = (workload.missing)().or_else(too_large);
    WorkloadRecord {
        name: workload.name.into(),
        title: workload.title.into(),
        measures: (workload.measures)(plan),
        not: workload.not.into(),
        version: left_out.is_none().then(|| (workload.version)()).flatten(),
        left_out,
    }
}

/// Bytes of a volume in which a workload can be done: with files, a file system takes its part.
fn room(workload: &Workload, plan: &Plan) -> u64 {
    let room = (workload.room)(plan);
    match workload.on {
        On::Bytes | On::Itself => room,
        On::Files => room + room / 4 + MARGIN / 2,
    }
}

/// Checks whether all stores fit on a medium at once, or one at a time.
///
/// # Errors
/// `Misuse` if not even one at a time fits.
fn stores_at_once(
    medium: &Backing,
    plan: &Plan,
    facilities: usize,
    workloads: &[&'static Workload],
) -> Result<StoresAtOnce> {
    let one = plan.size + plan.size / 8 + MARGIN;
    let (place, available) = match medium {
        Backing::Device(device) => {
            let mut file = OpenOptions::new().read(true).open(device).map_err(|e| Error::from(e).at(device))?;
            let len = file.seek(SeekFrom::End(0)).map_err(|e| Error::from(e).at(device))?;
            // One after the other.
            let place = device.display().to_string();
            return if one <= len { Ok(StoresAtOnce::One) } else { Err(too_large(plan, &place, one, len)) };
        }
        Backing::Tmpfs(folder) => (folder, free(folder)?.min(machine::memory_available().saturating_sub(RESERVE))),
        Backing::Folder(folder) => (folder, free(folder)?),
    };
    // Beside the stores: where workloads take their data from, and what they copy.
    let beside = workloads.iter().map(|w| (w.room)(plan)).max().unwrap_or(0);
    match one.saturating_mul(facilities as u64).saturating_add(beside) {
        all if all <= available => Ok(StoresAtOnce::All),
        _ if one + beside <= available => Ok(StoresAtOnce::One),
        _ => Err(too_large(plan, &place.display().to_string(), one.saturating_add(beside), available)),
    }
}

fn too_large(plan: &Plan, place: &str, needed: u64, free: u64) -> Error {
    let (needed, free) = (size(needed.next_multiple_of(1 << 20)), size(free >> 20 << 20));
    let what = format!("volumes of {} do not fit in {place}: needs {needed}, {free} free", size(plan.size));
    Error::misuse(what).hint("Choose a smaller --scale or --size, other workloads, or another folder with --dir.")
}

/// Bytes that are free for this user.
fn free(folder: &Path) -> Result<u64> {
    let stat = statvfs(folder).map_err(|e| Error::from(io::Error::from(e)).at(folder))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether the page cache can be dropped: for root, unless a container hides the file.
fn can_drop_caches() -> bool {
    geteuid().is_root() && OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::model::plan::{MOST_MEDIA, base_name};

    /// Five minutes.
    const QUICK_S: f64 = 300.0;

    fn wishes(level: Level, preset: Option<Preset>) -> Wishes {
        Wishes {
            level,
            media: vec![Backing::Tmpfs(MEMORY.into())],
            preset,
            study: None,
            facilities: Vec::new(),
            workloads: Vec::new(),
            scale: None,
            size: None,
            repeats: None,
            steady: None,
            seed: 1,
        }
    }

    #[test]
    fn what_is_quick_by_itself_takes_minutes() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let plan = wishes(Level::Quick, None).plan(&catalogue).expect("a plan");
        assert_eq!(plan.workloads, QUICK_WORKLOADS, "none is too long for the level");
        let prepared = PreparedRun {
            facilities: plan.facilities.iter().map(|name| catalogue.find(name).expect("there").clone()).collect(),
            facility_records: Vec::new(),
            workloads: workloads_of(&plan).expect("names"),
            workload_records: Vec::new(),
            stores_at_once: StoresAtOnce::All,
            plan,
        };
        let Estimate { least_s, most_s } = prepared.estimate();
        assert!(0.0 < least_s && least_s < most_s && most_s <= QUICK_S, "{least_s} s to {most_s} s");
    }

    #[test]
    fn the_files_have_all_that_encrypts_file_by_file_and_all_that_is_done_with_files() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let plan = wishes(Level::Standard, Some(FILES)).plan(&catalogue).expect("a plan");
        // ZFS gives a folder, too, but encrypts blocks of a disk.
        let by_file = |f: &&Facility| f.gives == Gives::Folder && f.baseline.is_some() && f.name != "zfs";
        for facility in catalogue.all().iter().filter(by_file) {
            assert!(plan.facilities.contains(&facility.name), "{}", facility.name);
            assert!(plan.facilities.contains(facility.baseline.as_ref().expect("it has one")), "{}", facility.name);
        }
        let named = FILES.facilities(Level::Standard);
        assert!(named.iter().all(|name| plan.facilities.contains(name)), "{named:?}, but {:?}", plan.facilities);
        for workload in workloads::all().filter(|w| w.on == On::Files) {
            assert!(plan.workloads.iter().any(|name| name == workload.name), "{}", workload.name);
        }
        let quick = wishes(Level::Quick, Some(FILES)).plan(&catalogue).expect("a plan");
        assert!(quick.facilities.len() < plan.facilities.len() && quick.workloads == plan.workloads);
        assert!(PreparedRun::of(quick, &catalogue, Path::new("claviger")).is_ok(), "its names are known");
    }

    #[test]
    fn the_network_has_each_line_with_its_baseline() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let plan = wishes(Level::Standard, Some(NETWORK)).plan(&catalogue).expect("a plan");
        let named = NETWORK.facilities(Level::Standard);
        for name in named.iter().map(String::as_str).chain(["near/plain", "far/plain"]) {
            assert!(plan.facilities.iter().any(|f| f == name), "{name}: {:?}", plan.facilities);
        }
        assert_eq!(plan.workloads, NETWORK.workloads);
    }

    #[test]
    fn the_sweep_has_every_cipher_of_truecrypt_and_the_baselines() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let plan = wishes(Level::Standard, Some(SWEEP)).plan(&catalogue).expect("a plan");
        let ciphers = catalogue.all().iter().filter(|f| f.name.starts_with("nbd/TrueCrypt"));
        assert!(ciphers.clone().count() > 1 && ciphers.clone().all(|f| plan.facilities.contains(&f.name)));
        assert!(["plain-nbd", "loop", "dm-crypt/plain"].iter().all(|name| plan.facilities.iter().any(|f| f == name)));
        assert_eq!(plan.workloads, ["dd"]);
        let quick = wishes(Level::Quick, Some(SWEEP)).plan(&catalogue).expect("a plan");
        assert!(quick.facilities.len() < plan.facilities.len());
        let named = Wishes { facilities: vec!["LUKS2".into()], ..wishes(Level::Quick, Some(SWEEP)) };
        let named = named.plan(&catalogue).expect("a plan");
        assert_eq!(
            (named.facilities.clone(), named.workloads.clone()),
            (vec!["plain".into(), "LUKS2".into()], vec!["dd".to_owned()])
        );
    }

    fn on_media(more: &[&str]) -> Plan {
        Plan { more: more.iter().map(|path| Backing::Device(path.into())).collect(), ..lab().plan }
    }

    #[test]
    fn every_facility_is_on_every_medium_beside_the_baseline_there() {
        let catalogue = Catalogue::load(None).expect("facilities");
        let two = ["plain", "LUKS2"].map(|name| catalogue.find(name).expect("there").clone());
        let plan = on_media(&["/dev/sdb", "/dev/mapper/my stick"]);
        let named = two.clone().map(|facility| (facility.clone(), facility_record(&facility, Path::new("claviger"))));
        let (all, records): (Vec<_>, Vec<_>) = on_each_medium(&plan, &named).into_iter().unzip();
        assert!(
            all.iter().zip(&records).all(|(f, r)| (&f.name, &f.title, &f.baseline) == (&r.name, &r.title, &r.baseline))
        );
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
        assert!(on_media(&["/dev/sdb", "/dev/sdc"]).check_media().is_ok());
        for more in [&["/dev/sdb", "/dev/sdb"][..], &["/srv/shm"], &["/a/x", "/b/x"]] {
            assert!(on_media(more).check_media().is_err(), "{more:?}");
        }
        let many: Vec<String> = (0..MOST_MEDIA).map(|n| format!("/dev/sd{n}")).collect();
        assert!(on_media(&many.iter().map(String::as_str).collect::<Vec<_>>()).check_media().is_err());
    }
}

//! Workloads on files that a study repeats on several file systems.

use crate::measure::facility::Gives;
use crate::measure::workloads::prelude::*;
use crate::model::parameters::FilesystemKind;

/// The parameter by which a study names them.
pub const FILESYSTEMS: &str = "filesystems";

/// The file systems that a study names for the workload, or the usual one.
pub fn named(workload: &Workload, plan: &Plan) -> Vec<FilesystemKind> {
    let study = plan.parameters(workload.name).map(|study| study.filesystems.clone());
    study.filter(|kinds| !kinds.is_empty()).unwrap_or_else(|| vec![FilesystemKind::Ext4])
}

/// How often a pass of the workload is done: once for each file system that can be made here.
pub fn times(workload: &Workload, plan: &Plan) -> usize {
    named(workload, plan).into_iter().filter(|kind| kind.missing().is_none()).count()
}

/// Does `work` on each of them. Cases of file systems other than the usual one have the file system's name after the
/// series.
///
/// # Errors
/// Those of `work`.
pub fn on_each(
    workload: &Workload,
    target: &mut FacilityTarget,
    lab: &Lab,
    mut work: impl FnMut(&mut FacilityTarget, FilesystemKind) -> Result<WorkloadOutcome>,
) -> Result<WorkloadOutcome> {
    let mut all = WorkloadOutcome::default();
    for kind in named(workload, &lab.plan) {
        if let Some(why) = kind.missing() {
            all.notes.push(not_done(workload.name, kind.name(), &why));
            continue;
        }
        if kind != FilesystemKind::Ext4 && target.facility().gives == Gives::Folder {
            let facility = &target.facility().name;
            all.notes.push(format!(
                "{facility} is not measured with {} on {}: it provides a folder.",
                workload.name,
                kind.name()
            ));
            continue;
        }
        lab.go_on()?;
        let WorkloadOutcome { measures, traces, notes } = work(target, kind)?;
        all.measures.extend(measures.into_iter().map(|measure| on(kind, measure)));
        all.traces.extend(traces);
        all.notes.extend(notes);
    }
    Ok(all)
}

/// What is noted of a file system that cannot be made here.
pub fn not_done(workload: &str, kind: &str, why: &str) -> String {
    format!("{workload} is not done on {kind}: {why}")
}

fn on(kind: FilesystemKind, measure: Measure) -> Measure {
    let series = match (kind, &*measure.case.series) {
        (FilesystemKind::Ext4, _) => return measure,
        (_, "") => kind.name().to_owned(),
        (_, series) => format!("{series}, {}", kind.name()),
    };
    Measure { case: Case { series, ..measure.case }, ..measure }
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;
    use rustix::fs::statfs;

    use super::*;
    use crate::measure::facility::Catalogue;
    use crate::measure::lab::tests::lab;
    use crate::measure::studies::find;
    use crate::model::parameters::{Parameters, PlannedWork};
    use crate::model::plan::Backing;
    use crate::model::study::Study;

    fn unpack() -> &'static Workload {
        super::super::all().find(|workload| workload.name == "unpack").expect("it is there")
    }

    /// A lab in which a study unpacks on all of them, in volumes that XFS has room in.
    fn on_all() -> Lab {
        let mut lab = lab();
        let parameters = Parameters {
            filesystems: vec![FilesystemKind::Ext4, FilesystemKind::Xfs, FilesystemKind::Vfat, FilesystemKind::Ext4],
            ..Parameters::default()
        };
        let work = PlannedWork { name: "unpack".into(), parameters, facilities: Vec::new() };
        let catalogue = Catalogue::load(None).expect("facilities");
        let study = Study { workloads: vec![work], ..find("bsi2010", &catalogue).expect("there") };
        lab.plan.repeated = Some(study.planned());
        lab.plan.size = 320 << 20;
        lab.stores = std::env::temp_dir();
        lab.plan.backing = Backing::Folder(lab.stores.clone());
        lab
    }

    /// The kernel's numbers for them (statfs(2)), and the suffix of their series.
    fn look(target: &mut FacilityTarget, lab: &Lab) -> (WorkloadOutcome, Vec<(FilesystemKind, i64)>) {
        let mut seen = Vec::new();
        let done = on_each(unpack(), target, lab, |target, kind| {
            let folder = target.folder_of(kind)?;
            seen.push((kind, statfs(&folder).expect("mounted").f_type));
            std::fs::write(folder.join("a file"), "text")?;
            let measure = Measure::time(Case::new("unpack").of("series"), 1, Meter::start().elapsed());
            Ok(vec![measure].into())
        });
        (done.expect("done"), seen)
    }

    #[test]
    fn each_is_made_in_its_turn_and_what_cannot_be_is_told() {
        if !rustix::process::geteuid().is_root() {
            return tools::skip::<()>("mounting takes root").unwrap_or_default();
        }
        let lab = on_all();
        let catalogue = Catalogue::load(None).expect("facilities");
        let mut target = FacilityTarget::new(catalogue.find("loop").expect("there"), &lab).expect("a target");
        let (done, seen) = look(&mut target, &lab);
        let magics = [
            (FilesystemKind::Ext4, 0xef53, "series"),
            (FilesystemKind::Xfs, 0x5846_5342, "series, xfs"),
            (FilesystemKind::Vfat, 0x4d44, "series, vfat"),
        ];
        let series: Vec<&str> = done.measures.iter().map(|measure| &*measure.case.series).collect();
        let there = |(kind, ..): &&(FilesystemKind, i64, &str)| kind.missing().is_none();
        let expected = || magics.iter().filter(there).chain(&magics[..1]);
        assert_eq!(seen, expected().map(|(kind, magic, _)| (*kind, *magic)).collect::<Vec<_>>());
        assert_eq!(series, expected().map(|(.., series)| *series).collect::<Vec<_>>());
        for (kind, ..) in magics.iter().filter(|kind| !there(kind)) {
            let why = kind.missing().expect("it is missing");
            assert!(done.notes.contains(&not_done("unpack", kind.name(), &why)), "{:?}", done.notes);
        }

        let mut folder = FacilityTarget::new(catalogue.find("folder").expect("there"), &lab).expect("a target");
        let (done, seen) = look(&mut folder, &lab);
        assert_eq!(
            seen.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [FilesystemKind::Ext4, FilesystemKind::Ext4]
        );
        assert_eq!(done.notes.len(), 2);
    }
}

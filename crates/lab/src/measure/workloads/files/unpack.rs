//! An archive of many small files, unpacked and deleted.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::content::{self, Shape, TreeFile};
use super::{in_fresh_folder, made_once, remove, size_for, warm, written};
use crate::measure::workloads::filesystems::{self, FILESYSTEMS};
use crate::measure::workloads::prelude::*;

/// The source of Linux 2.6.34 unpacked, about: 31 000 files.
const FULL: u64 = 400_000_000;

/// Files of 13 KB on average, like those of a source tree.
const SHAPE: Shape = Shape { sizes: &[(100, 512, 64 << 10)], per_folder: 12, folders: 25 };

/// An archive of many small files.
pub(super) static UNPACK: Workload = Workload {
    name: "unpack",
    title: "Unpacking an archive",
    measures: |plan| {
        format!(
            "Files per second and seconds for unpacking an archive of {} files, {} MB, with tar, and for deleting the \
                files, each including the flush to the store. BSI 2010 unpacked Eclipse and the source of Linux.",
            SHAPE.tree(size(plan), plan.seed).len(),
            size(plan) / 1_000_000
        )
    },
    not: "The archive is in memory, outside the facility. It is not compressed unless a study says so: the study's \
        times include the work of bzip2. This program creates the files, with the mean size of those in a source \
        tree.",
    on: On::Files,
    parameters: &["size", "compressed", FILESYSTEMS],
    missing: || program::missing(&["tar"]),
    version: || program::version(Command::new("tar").arg("--version")),
    estimate_s: |plan| {
        let rate = if compressed(plan) { 8e6 } else { 40e6 };
        (size(plan) as f64 / rate + 0.2) * filesystems::times(&UNPACK, plan) as f64
    },
    room: |plan| 2 * size(plan) + (4 << 20),
    run: |target, lab| {
        filesystems::on_each(&UNPACK, target, lab, |target, kind| {
            in_fresh_folder(&target.folder_of(kind)?, |folder| unpack_delete(folder, size(&lab.plan), lab))
        })
    },
    ..Workload::PLAIN
};

/// Whether the archive is compressed, by bzip2, as that of Linux 2.6.34 was.
fn compressed(plan: &Plan) -> bool {
    plan.parameters(UNPACK.name).and_then(|study| study.compressed).unwrap_or_default()
}

fn size(plan: &Plan) -> u64 {
    size_for(&UNPACK, plan, FULL, 12_000_000)
}

fn unpack_delete(folder: &Path, size: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let tree = SHAPE.tree(size, lab.plan.seed);
    let archive = archive(size, &tree, lab)?;
    lab.drop_caches()?;
    warm(&archive)?;
    let unpack = written(folder, || {
        let mut tar = Command::new("tar");
        // VFAT knows no owners.
        tar.args(["--no-same-owner", "-xf"]).arg(&archive).arg("-C").arg(folder);
        program::run(&mut tar, lab.cancelled).map(drop)
    })?;
    content::compare(&folder.join("tree"), &tree, lab)?;
    let delete = written(folder, || remove(&folder.join("tree")))?;
    let files = tree.len() as u64;
    Ok(vec![
        Measure::time(Case::new("unpack"), size, unpack),
        Measure::per_s(Case::new("unpack, files"), files, unpack),
        Measure::time(Case::new("delete"), 0, delete),
        Measure::per_s(Case::new("delete, files"), files, delete),
    ]
    .into())
}

/// The archive in the lab's own folder, made unless it is there.
fn archive(size: u64, tree: &[TreeFile], lab: &Lab) -> Result<PathBuf> {
    let (suffix, how) = if compressed(&lab.plan) { ("tar.bz2", "-cjf") } else { ("tar", "-cf") };
    made_once(lab, &format!("unpack-{size}-{}.{suffix}", lab.plan.seed), |folder| {
        content::write(&folder.join("tree"), tree, lab)?;
        let new = folder.join("archive");
        program::run(Command::new("tar").arg(how).arg(&new).arg("-C").arg(folder).arg("tree"), lab.cancelled)?;
        Ok(new)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::lab;

    #[test]
    fn an_archive_is_made_once_unpacked_and_deleted() {
        let Some(_) = tools::program("tar") else { return };
        let (scratch, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let outcome = unpack_delete(folder.path(), 200_000, &lab).unwrap();
        let found: Vec<_> = outcome.measures.iter().map(|m| m.case.operation.as_str()).collect();
        assert_eq!(found, ["unpack", "unpack, files", "delete", "delete, files"]);
        let (time, rate) = (&outcome.measures[0], &outcome.measures[1]);
        let files = SHAPE.tree(200_000, lab.plan.seed).len() as f64;
        assert!((rate.value * time.value / files - 1.0).abs() < 1e-9);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let inside: Vec<_> = fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().path()).collect();
        let [archive] = &inside[..] else { panic!("{inside:?}") };
        let made = fs::metadata(archive).unwrap().modified().unwrap();
        unpack_delete(folder.path(), 200_000, &lab).unwrap();
        assert_eq!(fs::metadata(archive).unwrap().modified().unwrap(), made);

        fs::write(archive, "no archive").unwrap();
        let error = unpack_delete(folder.path(), 200_000, &lab).unwrap_err().to_string();
        assert!(error.contains("tar failed"), "{error}");
    }
}

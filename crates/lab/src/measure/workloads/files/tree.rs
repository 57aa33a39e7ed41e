//! A folder of small and large files, written, read and deleted.

use std::path::Path;

use super::content::{self, BLOCK, Shape};
use super::{SIZE, in_fresh_folder, read, remove, size_for, written};
use crate::measure::workloads::prelude::*;

/// The folder of the study: 2.3 GB. What was in it is not known but for "small and large files".
const FULL: u64 = 2_300_000_000;

/// Mostly small files, most bytes in large ones, as in a home folder. 370 KB is the mean.
const SHAPE: Shape = Shape {
    sizes: &[(60, 1 << 10, 16 << 10), (30, 16 << 10, 256 << 10), (9, 256 << 10, 4 << 20), (1, 4 << 20, 64 << 20)],
    per_folder: 20,
    folders: 20,
};

/// A folder of small and large files.
pub(super) static DIRECTORY_TREE: Workload = Workload {
    name: "tree",
    title: "Directory tree",
    measures: |plan| {
        let tree = SHAPE.tree(size(plan), plan.seed);
        format!(
            "Seconds to write, read and delete a folder of {} files of 1 KiB to 64 MiB, {} MB in all, one after the other, \
             as Zhan 2010 did with a folder of 2.3 GB. Writing and deleting include the flush to the store.",
            tree.len(),
            size(plan) / 1_000_000
        )
    },
    not: "The study does not give the sizes of its files, so this program draws them by a rule of its own. The files \
        come from memory, not from another disk. They are read in the order in which they were written.",
    on: On::Files,
    parameters: SIZE,
    estimate_s: |plan| size(plan) as f64 / 60e6 + 0.2,
    room: |plan| size(plan) + size(plan) / 10 + (4 << 20),
    run: |target, lab| in_fresh_folder(&target.folder()?, |folder| write_read_delete(folder, size(&lab.plan), lab)),
    ..Workload::PLAIN
};

fn size(plan: &Plan) -> u64 {
    size_for(&DIRECTORY_TREE, plan, FULL, 1_000_000)
}

fn write_read_delete(folder: &Path, size: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let tree = SHAPE.tree(size, lab.plan.seed);
    let root = folder.join("tree");
    let write = written(folder, || content::write(&root, &tree, lab))?;
    let reading = read(lab, || content::read(&root, &tree, BLOCK, lab))?;
    content::compare(&root, &tree, lab)?;
    let delete = written(folder, || remove(&root))?;
    Ok(vec![
        Measure::time(Case::new("write"), size, write),
        Measure::time(Case::new("read"), size, reading),
        Measure::time(Case::new("delete"), 0, delete),
    ]
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;

    #[test]
    fn a_tree_is_written_read_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = write_read_delete(folder.path(), 3_000_000, &lab()).unwrap();
        let found: Vec<_> = outcome.measures.iter().map(|m| (m.case.operation.as_str(), m.bytes)).collect();
        assert_eq!(found, [("write", 3_000_000), ("read", 3_000_000), ("delete", 0)]);
        assert!(outcome.measures.iter().all(|m| m.value > 0.0 && m.value == m.seconds));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_study_s_size_is_what_a_scale_of_one_gives() {
        let plan = Plan { scale: 1.0, ..lab().plan };
        assert_eq!(size(&plan), 2_300_000_000);
        assert!((DIRECTORY_TREE.room)(&plan) > size(&plan));
        let text = (DIRECTORY_TREE.measures)(&plan);
        assert!(text.contains("2300 MB"), "{text}");
    }
}

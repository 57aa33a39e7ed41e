//! Source trees created, compiled, patched, read and deleted, as compilebench does it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::content::{self, BLOCK, Shape, TreeFile};
use super::{in_fresh_folder, read, remove, size_for, written};
use crate::measure::workloads::prelude::*;
use crate::model::parameters::SECTOR;

/// The source of Linux 2.6.20, whose list of files compilebench brings: 240 MB, 21 000 files.
const FULL: u64 = 240_000_000;

/// Files of a source tree.
const SOURCE: Shape = Shape { sizes: &[(100, 512, 64 << 10)], per_folder: 16, folders: 25 };

/// The percentage of files that are compiled; each gives an object file of one to eight times its size.
const COMPILED: usize = 40;

/// The percentage of files that a patch changes: from one release of the kernel to the next it is about a fifth.
const PATCHED: usize = 20;

/// Source trees, as compilebench handles them.
pub(super) static COMPILEBENCH_LIKE: Workload = Workload {
    name: "compilebench-like",
    title: "Source trees, as compilebench handles them",
    measures,
    not: "This is not compilebench, but its steps, always in the same order, on trees created by this program. \
        Figures of two runs can be compared with each other, but not with those of compilebench. Nothing is compiled.",
    on: On::Files,
    parameters: &["size", "count"],
    estimate_s: |plan| trees(plan) as f64 * size(plan) as f64 / 12e6 + 0.5,
    room: |plan| {
        // Sources, objects, and the file system's blocks.
        trees(plan) as u64 * size(plan) * 4 + (4 << 20)
    },
    run: |target, lab| {
        let (trees, size) = (trees(&lab.plan), size(&lab.plan));
        in_fresh_folder(&target.folder()?, |folder| Trees::new(folder, trees, size, lab).all_steps())
    },
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let (trees, size) = (trees(plan), size(plan));
    format!(
        "{trees} source trees of {} files, {} MB each: created, compiled (object files are written for {COMPILED} % \
            of the sources), read, patched ({PATCHED} % of the files are rewritten), listed, cleaned (the object \
            files are deleted), read again and deleted. Each step runs over all trees in a random order and includes \
            the flush to the store. Ahlstedt and Granath Karlsson 2013 ran compilebench.",
        SOURCE.tree(size, plan.seed).len(),
        size / 1_000_000
    )
}

fn trees(plan: &Plan) -> usize {
    let study = plan.parameters(COMPILEBENCH_LIKE.name).and_then(|study| study.count);
    study.map_or(plan.level.choose([2, 5, 10]), |count| count as usize)
}

fn size(plan: &Plan) -> u64 {
    size_for(&COMPILEBENCH_LIKE, plan, FULL, 6_000_000)
}

/// The trees, and what is in each.
struct Trees<'a> {
    folder: &'a Path,
    lab: &'a Lab,
    /// Their folders.
    roots: Vec<PathBuf>,
    sources: Vec<TreeFile>,
    /// The sources that a patch changes, as they are afterwards.
    patched: Vec<TreeFile>,
    objects: Vec<TreeFile>,
    random: Random,
}

impl<'a> Trees<'a> {
    fn new(folder: &'a Path, trees: usize, size: u64, lab: &'a Lab) -> Self {
        let mut random = Random::new(lab.plan.seed);
        let sources = SOURCE.tree(size, lab.plan.seed);
        let mut chosen =
            |share: usize| -> Vec<TreeFile> { sources.iter().filter(|_| random.below(100) < share).cloned().collect() };
        let (patched, compiled) = (chosen(PATCHED), chosen(COMPILED));
        // New contents come from after the sources in the lab's data, so that they differ.
        let mut from = sources.last().map_or(0, |last| last.from + last.len).next_multiple_of(SECTOR as u64);
        let mut anew = |path: PathBuf, len: u64| {
            let entry = TreeFile { path, len, from };
            from += len.next_multiple_of(SECTOR as u64);
            entry
        };
        let patched = patched.into_iter().map(|source| anew(source.path, source.len)).collect();
        let object =
            |source: TreeFile| anew(source.path.with_extension("o"), source.len * (1 + random.below(8) as u64));
        let objects = compiled.into_iter().map(object).collect();
        let roots = (0..trees).map(|tree| folder.join(format!("tree-{tree:02}"))).collect();
        Self { folder, lab, roots, sources, patched, objects, random }
    }

    fn all_steps(mut self) -> Result<WorkloadOutcome> {
        let (sources, objects) = (content::bytes(&self.sources), content::bytes(&self.objects));
        let trees = self.roots.len() as u64;
        let mut measures = Vec::new();
        let mut rate = |operation: &str, bytes: u64, took: Elapsed| {
            measures.push(Measure::rate(Case::new(operation), bytes * trees, took));
        };
        rate("create", sources, self.change(|trees, root| content::write(root, &trees.sources, trees.lab))?);
        rate("compile", objects, self.change(|trees, root| trees.overwrite(root, &trees.objects))?);
        rate(
            "read compiled",
            sources + objects,
            self.look(|trees, root| {
                content::read(root, &trees.sources, BLOCK, trees.lab)?;
                content::read(root, &trees.objects, BLOCK, trees.lab)
            })?,
        );
        let patched = content::bytes(&self.patched);
        rate("patch", patched, self.change(|trees, root| trees.overwrite(root, &trees.patched))?);
        let stat = self.look(|trees, root| trees.stat(root))?;
        let clean = self.change(|trees, root| trees.clean(root))?;
        rate("read", sources, self.look(|trees, root| content::read(root, &trees.sources, BLOCK, trees.lab))?);
        self.compare()?;
        let delete = self.change(|_, root| remove(root))?;
        for (operation, took) in [("stat", stat), ("clean", clean), ("delete", delete)] {
            measures.push(Measure::time(Case::new(operation), 0, took));
        }
        Ok(measures.into())
    }

    /// Measures a step that writes, over all trees.
    fn change(&mut self, step: impl Fn(&Self, &Path) -> Result<()>) -> Result<Elapsed> {
        self.random.shuffle(&mut self.roots);
        written(self.folder, || self.roots.iter().try_for_each(|root| step(self, root)))
    }

    /// Measures a step that reads, over all trees.
    fn look(&mut self, step: impl Fn(&Self, &Path) -> Result<()>) -> Result<Elapsed> {
        self.random.shuffle(&mut self.roots);
        read(self.lab, || self.roots.iter().try_for_each(|root| step(self, root)))
    }

    /// Writes files into folders that are there.
    fn overwrite(&self, root: &Path, files: &[TreeFile]) -> Result<()> {
        files.iter().try_for_each(|entry| content::write_file(&root.join(&entry.path), entry, BLOCK, self.lab))
    }

    fn stat(&self, root: &Path) -> Result<()> {
        self.sources.iter().chain(&self.objects).try_for_each(|entry| {
            let path = root.join(&entry.path);
            self.lab.go_on()?;
            fs::symlink_metadata(&path).map(drop).map_err(|e| Error::from(e).at(&path))
        })
    }

    /// Removes the object files.
    fn clean(&self, root: &Path) -> Result<()> {
        self.objects.iter().try_for_each(|entry| {
            let path = root.join(&entry.path);
            self.lab.go_on()?;
            fs::remove_file(&path).map_err(|e| Error::from(e).at(&path))
        })
    }

    /// Compares all sources, the patched ones with what the patch wrote.
    fn compare(&self) -> Result<()> {
        let changed: BTreeSet<&Path> = self.patched.iter().map(|e| e.path.as_path()).collect();
        let unchanged = self.sources.iter().filter(|e| !changed.contains(e.path.as_path())).cloned();
        let all: Vec<TreeFile> = unchanged.chain(self.patched.iter().cloned()).collect();
        self.roots.iter().try_for_each(|root| content::compare(root, &all, self.lab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::model::case::Unit;

    #[test]
    fn all_steps_are_done_over_all_trees() {
        let (lab, folder) = (lab(), tempfile::tempdir().unwrap());
        let trees = Trees::new(folder.path(), 3, 500_000, &lab);
        let (sources, objects, patched) = (trees.sources.len(), trees.objects.len(), content::bytes(&trees.patched));
        assert!(objects > 0 && objects < sources && patched > 0 && patched < 500_000);
        let outcome = trees.all_steps().unwrap();
        let found: Vec<_> = outcome.measures.iter().map(|m| (m.case.operation.as_str(), m.unit)).collect();
        let rates = ["create", "compile", "read compiled", "patch", "read"].map(|o| (o, Unit::BytesPerS));
        let times = ["stat", "clean", "delete"].map(|o| (o, Unit::Seconds));
        assert_eq!(found, [&rates[..], &times[..]].concat());
        assert_eq!(outcome.measures[0].bytes, 1_500_000);
        assert_eq!(outcome.measures[3].bytes, 3 * patched);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_patch_changes_its_files_and_cleaning_takes_the_objects() {
        let (lab, folder) = (lab(), tempfile::tempdir().unwrap());
        let trees = Trees::new(folder.path(), 1, 500_000, &lab);
        let root = trees.roots[0].clone();
        content::write(&root, &trees.sources, &lab).unwrap();
        assert!(trees.compare().is_err(), "not patched yet");
        trees.overwrite(&root, &trees.patched).unwrap();
        trees.compare().unwrap();
        assert!(trees.stat(&root).is_err() && trees.clean(&root).is_err(), "not compiled yet");
        trees.overwrite(&root, &trees.objects).unwrap();
        trees.stat(&root).unwrap();
        content::compare(&root, &trees.objects, &lab).unwrap();
        trees.clean(&root).unwrap();
        assert!(trees.stat(&root).is_err());
        trees.compare().unwrap();
    }
}

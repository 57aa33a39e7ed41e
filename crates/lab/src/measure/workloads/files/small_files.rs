//! Many small files in one folder.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::content::{self, TreeFile};
use super::{in_fresh_folder, read, remove, scaled, written};
use crate::measure::workloads::prelude::*;
use crate::model::parameters::SECTOR;

/// Files of a large mailbox in a folder, or of a cache.
const FULL: u64 = 10_000;

/// Bytes of the largest file: all lengths up to it are there, so that most end within a block of whatever encrypts them.
const LARGEST: u64 = 4096;

/// Many small files in one folder.
pub(super) static SMALL_FILES: Workload = Workload {
    name: "small-files",
    title: "Small files in one folder",
    measures: |plan| {
        format!(
            "Files per second for {} files of at most 4 KiB in one folder: created and written one after the other, \
                listed by `ls -l`, read, and deleted. Creating and deleting include the flush to the store.",
            files(plan)
        )
    },
    not: "Files are listed and read after the page cache and the kernel's cache of names were dropped, if the run \
        says so; otherwise the caches may answer for the facility. ls also asks for each file's extended attributes, \
        as it does on a desktop.",
    on: On::Files,
    missing: || program::missing(&["ls"]),
    version: || program::version(Command::new("ls").arg("--version")),
    estimate_s: |plan| files(plan) as f64 / 1000.0 + 0.2,
    room: |plan| {
        // Headers of 8 KiB, and blocks of 32 KiB that hold one file, are among what encrypts.
        files(plan) * (48 << 10) + (4 << 20)
    },
    run: |target, lab| {
        in_fresh_folder(&target.folder()?, |folder| create_list_read_delete(folder, files(&lab.plan), lab))
    },
    ..Workload::PLAIN
};

fn files(plan: &Plan) -> u64 {
    scaled(FULL, plan.scale, 1000)
}

fn create_list_read_delete(folder: &Path, files: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let entries: Vec<TreeFile> = (0..files).map(entry).collect();
    let root = folder.join("small");
    fs::create_dir(&root).map_err(|e| Error::from(e).at(&root))?;
    let create = written(folder, || content::write(&root, &entries, lab))?;
    let mut listing = String::new();
    let list = read(lab, || {
        let ran = program::run(Command::new("ls").arg("-l").arg(&root), lab.cancelled)?;
        listing = program::text(&ran.output);
        Ok(())
    })?;
    check(&listing, &entries, &root)?;
    let reading = read(lab, || content::read(&root, &entries, LARGEST as usize, lab))?;
    content::compare(&root, &entries, lab)?;
    let delete = written(folder, || remove(&root))?;
    let steps = [("create", create), ("ls -l", list), ("read", reading), ("delete", delete)];
    Ok(steps.map(|(operation, took)| Measure::per_s(Case::new(operation), files, took)).to_vec().into())
}

/// The file of this number. Lengths are spread by a step that has no divisor in common with their number.
fn entry(number: u64) -> TreeFile {
    let len = 1 + number * 1237 % LARGEST;
    TreeFile { path: format!("file-{number:06}").into(), len, from: number * LARGEST.next_multiple_of(SECTOR as u64) }
}

/// Fails unless `ls -l` printed each name and its size.
fn check(listing: &str, entries: &[TreeFile], root: &Path) -> Result<()> {
    // Mode, links, owner, group, size, three words of the time, name; before them stands the line with the total.
    let listed = listing.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace();
        (words.nth(4).and_then(|size| size.parse().ok()), words.nth(3))
    });
    let there = entries.iter().map(|entry| (Some(entry.len), entry.path.to_str()));
    if listed.eq(there) { Ok(()) } else { Err(content::differs(root)) }
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::lab;

    #[test]
    fn small_files_are_created_listed_read_and_deleted() {
        let Some(_) = tools::program("ls") else { return };
        let folder = tempfile::tempdir().unwrap();
        let outcome = create_list_read_delete(folder.path(), 300, &lab()).unwrap();
        let found: Vec<_> = outcome.measures.iter().map(|m| m.case.operation.as_str()).collect();
        assert_eq!(found, ["create", "ls -l", "read", "delete"]);
        assert!(outcome.measures.iter().all(|m| (m.value * m.seconds / 300.0 - 1.0).abs() < 1e-9));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_listing_that_lacks_a_file_or_tells_another_size_is_noticed() {
        let entries: Vec<TreeFile> = (0..3).map(entry).collect();
        let line = |e: &TreeFile| format!("-rw-r--r-- 1 root root {} Nov 22 22:00 {}\n", e.len, e.path.display());
        let listing = |lines: &[String]| format!("total 12\n{}", lines.concat());
        let mut lines: Vec<String> = entries.iter().map(line).collect();
        let checked = |lines: &[String]| check(&listing(lines), &entries, Path::new("/x"));
        checked(&lines).unwrap();
        assert!(checked(&lines[..2]).is_err());
        lines[1] = line(&TreeFile { len: entries[1].len + 1, ..entries[1].clone() });
        assert!(checked(&lines).is_err());
    }

    #[test]
    fn a_scale_of_one_has_ten_thousand_files_of_every_length() {
        let plan = Plan { scale: 1.0, ..lab().plan };
        assert!((SMALL_FILES.measures)(&plan).contains(" 10000 files"));
        let lens: std::collections::BTreeSet<u64> = (0..FULL).map(|number| entry(number).len).collect();
        assert_eq!((lens.len() as u64, lens.first(), lens.last()), (LARGEST, Some(&1), Some(&LARGEST)));
    }
}

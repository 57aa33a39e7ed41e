//! One large file, written, read and copied.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use super::content::{self, TreeFile};
use super::{SIZE, in_fresh_folder, read, size_for, written};
use crate::measure::workloads::prelude::*;

/// The file of the study: 3 GB.
const FULL: u64 = 3_000_000_000;

/// Bytes of each call, as dd and the study's script had it.
const BLOCK: usize = 1 << 20;

/// One large file.
pub(super) static LARGE_FILE: Workload = Workload {
    name: "large-file",
    title: "Large file",
    measures: |plan| {
        format!(
            "Throughput of writing a file of {} MB, reading it and copying it within its folder, in calls of 1 MiB, as Zhan \
             2010 did with a file of 3 GB. Writing and copying include the flush to the store.",
            size(plan) / 1_000_000
        )
    },
    not: "The data go through the page cache, as in most programs. The file is read and copied after the cache was \
        dropped, if the run says so. Copying reads and writes all data: copies in which a file system shares blocks \
        are not measured.",
    on: On::Files,
    parameters: SIZE,
    estimate_s: |plan| 4.0 * size(plan) as f64 / 300e6 + 0.2,
    room: |plan| 2 * size(plan) + size(plan) / 20 + (4 << 20),
    run: |target, lab| in_fresh_folder(&target.folder()?, |folder| write_read_copy(folder, size(&lab.plan), lab)),
    ..Workload::PLAIN
};

fn size(plan: &Plan) -> u64 {
    size_for(&LARGE_FILE, plan, FULL, 64_000_000)
}

fn write_read_copy(folder: &Path, size: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let entry = |name: &str| TreeFile { path: name.into(), len: size, from: 0 };
    let (file, copied) = (entry("large"), entry("copy"));
    let write = written(folder, || content::write_file(&folder.join(&file.path), &file, BLOCK, lab))?;
    let reading = read(lab, || content::read(folder, std::slice::from_ref(&file), BLOCK, lab))?;
    lab.drop_caches()?;
    let copying = written(folder, || copy(&folder.join(&file.path), &folder.join(&copied.path), lab))?;
    content::compare(folder, &[file, copied], lab)?;
    Ok(vec![
        Measure::rate(Case::new("write"), size, write),
        Measure::rate(Case::new("read"), size, reading),
        Measure::rate(Case::new("copy"), size, copying),
    ]
    .into())
}

/// Reads and writes all of it: `std::fs::copy` would let a file system share the blocks.
fn copy(from: &Path, to: &Path, lab: &Lab) -> Result<()> {
    let mut source = File::open(from).map_err(|e| Error::from(e).at(from))?;
    let mut sink = File::create(to).map_err(|e| Error::from(e).at(to))?;
    let mut buffer = vec![0; BLOCK];
    loop {
        lab.go_on()?;
        match source.read(&mut buffer).map_err(|e| Error::from(e).at(from))? {
            0 => return Ok(()),
            len => sink.write_all(&buffer[..len]).map_err(|e| Error::from(e).at(to))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::model::case::Unit;

    #[test]
    fn a_file_is_written_read_and_copied() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = write_read_copy(folder.path(), 4_000_001, &lab()).unwrap();
        let found: Vec<_> = outcome.measures.iter().map(|m| (m.case.operation.as_str(), m.bytes, m.unit)).collect();
        let all = ["write", "read", "copy"].map(|operation| (operation, 4_000_001, Unit::BytesPerS));
        assert_eq!(found, all);
        let (large, copy) = (folder.path().join("large"), folder.path().join("copy"));
        assert!(std::fs::read(large).unwrap() == std::fs::read(copy).unwrap());
    }
}

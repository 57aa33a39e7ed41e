//! Workloads on files in folders.
//!
//! Each works in a fresh folder of its own, which is removed whatever happens. Writes are flushed down to the store
//! within the measured time; reads start with an empty page cache, if the plan wants that; data that was read or
//! written is compared outside the measured time.

mod bonnie;
mod compile;
mod compilebench;
mod content;
mod dbench;
mod gzip;
mod large_file;
mod pgbench;
mod small_files;
mod sqlite;
mod tree;
mod unpack;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

use super::Workload;
use crate::measure::lab::Lab;
use crate::measure::meter::Meter;
use crate::model::figures::Elapsed;
use crate::model::plan::Plan;

/// All of them.
pub(super) static WORKLOADS: &[&Workload] = &[
    &tree::DIRECTORY_TREE,
    &large_file::LARGE_FILE,
    &small_files::SMALL_FILES,
    &unpack::UNPACK,
    &compile::COMPILE,
    &gzip::GZIP,
    &compilebench::COMPILEBENCH_LIKE,
    &bonnie::BONNIE,
    &dbench::DBENCH,
    &sqlite::SQLITE_DATABASE,
    &pgbench::PGBENCH,
];

/// Runs `work` in a fresh folder within `folder`, which is removed afterwards, even after an error or a panic.
fn in_fresh_folder<T>(folder: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let fresh =
        tempfile::Builder::new().prefix("claviger-lab-").tempdir_in(folder).map_err(|e| Error::from(e).at(folder))?;
    let done = work(fresh.path())?;
    let path = fresh.path().to_path_buf();
    fresh.close().map_err(|e| Error::from(e).at(&path))?;
    Ok(done)
}

/// Measures work that writes below `folder`, until everything is in the store.
fn written(folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<Elapsed> {
    let meter = Meter::start();
    work()?;
    flush(folder)?;
    Ok(meter.elapsed())
}

/// Measures work that reads, after dropping the page cache.
fn read(lab: &Lab, work: impl FnOnce() -> Result<()>) -> Result<Elapsed> {
    lab.drop_caches()?;
    let meter = Meter::start();
    work()?;
    Ok(meter.elapsed())
}

/// Waits until everything written below `folder` is in its store and on the layers below. The folder's file system is
/// flushed first, then all others, because a server or a loop device writes to the layer below only then.
fn flush(folder: &Path) -> Result<()> {
    let open = File::open(folder).map_err(|e| Error::from(e).at(folder))?;
    rustix::fs::syncfs(&open).map_err(|e| Error::from(std::io::Error::from(e)).at(folder))?;
    rustix::fs::sync();
    Ok(())
}

/// Reads a source file into the page cache, to keep its disk out of the measurement.
fn warm(file: &Path) -> Result<()> {
    let copy = File::open(file).and_then(|mut source| std::io::copy(&mut source, &mut std::io::sink()));
    copy.map(drop).map_err(|e| Error::from(e).at(file))
}

/// The file or folder of this name in the lab's own folder. If it is missing, `make` creates it in a fresh folder and
/// returns its path. An interruption leaves nothing of that name.
fn made_once(lab: &Lab, name: &str, make: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    let made = lab.scratch.join(name);
    if !made.exists() {
        in_fresh_folder(&lab.scratch, |folder| fs::rename(make(folder)?, &made).map_err(|e| Error::from(e).at(&made)))?;
    }
    Ok(made)
}

/// Removes a folder and all that is in it.
fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).map_err(|e| Error::from(e).at(folder))
}

/// The bytes that a study sets for a workload, or `full`, scaled, at least `least`.
fn size_for(workload: &Workload, plan: &Plan, full: u64, least: u64) -> u64 {
    let study = plan.parameters(workload.name).and_then(|study| study.size);
    scaled(study.unwrap_or(full), plan.scale, least)
}

/// The parameters that a study can set for a workload that moves a number of bytes.
const SIZE: &[&str] = &["size"];

/// `full` bytes, scaled, at least `least`.
fn scaled(full: u64, scale: f64, least: u64) -> u64 {
    ((full as f64 * scale) as u64).max(least)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use claviger_engine::ErrorKind;

    use super::*;

    #[test]
    fn a_fresh_folder_is_removed_whatever_happens() {
        let folder = tempfile::tempdir().unwrap();
        let fill = |fresh: &Path| {
            fs::create_dir(fresh.join("sub")).unwrap();
            fs::write(fresh.join("sub/file"), "x").unwrap();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        };
        let in_folder = |end: fn() -> Result<u32>| {
            let done = catch_unwind(AssertUnwindSafe(|| {
                in_fresh_folder(folder.path(), |fresh| {
                    fill(fresh);
                    end()
                })
            }));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            done
        };
        assert_eq!(in_folder(|| Ok(7)).unwrap().unwrap(), 7);
        let failed = in_folder(|| Err(ErrorKind::Cancelled.into())).unwrap().unwrap_err();
        assert!(matches!(failed.kind, ErrorKind::Cancelled));
        assert!(in_folder(|| panic!("as a workload may")).is_err());
        assert!(in_fresh_folder(&folder.path().join("none"), |_| Ok(())).is_err());
    }
}

//! A large file, compressed and decompressed by gzip.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{content, flush, in_fresh_folder, made_once, size_for, written};
use crate::measure::workloads::prelude::*;
use crate::model::parameters::WrittenContent;

/// The file of the study: 2 GB.
const FULL: u64 = 2_000_000_000;

/// Bytes of noise, and of words after it, in turn: gzip looks back over 32 KiB.
const RUN: usize = 8 << 10;

/// What the words are taken from: 4 bits of each 8 letters or so are new.
#[rustfmt::skip]
const WORDS: [&str; 16] = [
    "cipher ", "sector ", "volume ", "header ", "key ", "salt ", "disk ", "block ", "password ", "file ", "system ",
    "mount ", "data ", "write ", "read ", "flush\n",
];

/// A large file and gzip.
pub(super) static GZIP: Workload = Workload {
    name: "gzip",
    title: "Compression by gzip",
    measures,
    not: "gzip uses one processor and is slower than most storage: if another processor is idle, encryption costs no \
        time here. The processor time is that of the whole machine.",
    on: On::Files,
    parameters: &["size", "data"],
    missing: || program::missing(&["gzip"]),
    version: || program::version(Command::new("gzip").arg("--version")),
    estimate_s: |plan| size(plan) as f64 / 20e6 + 0.2,
    room: |plan| 2 * size(plan) + (4 << 20),
    run: |target, lab| {
        let size = size(&lab.plan);
        let zeros = zeros(&lab.plan);
        in_fresh_folder(&target.folder()?, |folder| match zeros {
            true => compress_zeros(folder, size, lab),
            false => compress_decompress(folder, size, lab),
        })
    },
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    if zeros(plan) {
        let mb = size(plan) / 1_000_000;
        return format!("Seconds that gzip takes to compress a file of {mb} MB of zeros. The output is discarded.");
    }
    format!(
        "Seconds that gzip takes to compress and to decompress a file of {} MB, half of it noise, reading and writing \
            on the facility, including the flush to the store; and how many processors were busy during that. \
            Ahlstedt and Granath Karlsson 2013 compressed 2 GB.",
        size(plan) / 1_000_000
    )
}

/// Whether a study wants a file of zeros, compressed into nothing.
fn zeros(plan: &Plan) -> bool {
    plan.parameters(GZIP.name).is_some_and(|study| study.data == [WrittenContent::Zeros])
}

fn size(plan: &Plan) -> u64 {
    size_for(&GZIP, plan, FULL, 4_000_000)
}

fn compress_decompress(folder: &Path, size: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let source = source(size, lab)?;
    let (file, compressed) = (folder.join("file"), folder.join("file.gz"));
    fs::copy(&source, &file).map_err(|e| Error::from(e).at(&file))?;
    let compress = gzip(folder, &["-k", "file"], lab)?;
    fs::remove_file(&file).map_err(|e| Error::from(e).at(&file))?;
    let decompress = gzip(folder, &["-d", "-k", "file.gz"], lab)?;
    content::same(&source, &file, lab)?;
    let packed = fs::metadata(&compressed).map_err(|e| Error::from(e).at(&compressed))?.len();
    Ok(vec![
        Measure::time(Case::new("compress"), size + packed, compress),
        Measure::time(Case::new("decompress"), size + packed, decompress),
        Measure::cpu_share(Case::new("compress, processors busy"), compress),
        Measure::cpu_share(Case::new("decompress, processors busy"), decompress),
    ]
    .into())
}

/// A file of zeros, compressed into nothing: what is left is how fast it is read.
fn compress_zeros(folder: &Path, size: u64, lab: &Lab) -> Result<WorkloadOutcome> {
    let file = folder.join("file");
    let make = || std::io::copy(&mut std::io::repeat(0).take(size), &mut File::create(&file)?);
    make().map_err(|e| Error::from(e).at(&file))?;
    flush(folder)?;
    lab.drop_caches()?;
    let meter = Meter::start();
    program::run(Command::new("sh").args(["-c", "gzip -c file > /dev/null"]).current_dir(folder), lab.cancelled)?;
    let took = meter.elapsed();
    Ok(vec![
        Measure::time(Case::new("compress").of("zeros"), size, took),
        Measure::cpu_share(Case::new("compress, processors busy").of("zeros"), took),
    ]
    .into())
}

/// Runs gzip in the folder with an empty page cache, until what it made is in the store.
fn gzip(folder: &Path, words: &[&str], lab: &Lab) -> Result<Elapsed> {
    flush(folder)?;
    lab.drop_caches()?;
    written(folder, || program::run(Command::new("gzip").args(words).current_dir(folder), lab.cancelled).map(drop))
}

/// The file in the lab's own folder, made unless it is there.
fn source(size: u64, lab: &Lab) -> Result<PathBuf> {
    made_once(lab, &format!("gzip-{size}-{}", lab.plan.seed), |folder| {
        let new = folder.join("source");
        make(&new, size, lab).map(|()| new)
    })
}

/// Noise and words in turn.
fn make(path: &Path, size: u64, lab: &Lab) -> Result<()> {
    let failed = |e: std::io::Error| Error::from(e).at(path);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    let mut random = Random::new(lab.plan.seed);
    let (mut left, mut run, mut noise) = (size, vec![0; RUN], true);
    while left > 0 {
        lab.go_on()?;
        if noise {
            random.fill(&mut run)
        } else {
            words(&mut random, &mut run)
        }
        let len = left.min(RUN as u64);
        file.write_all(&run[..len as usize]).map_err(failed)?;
        (left, noise) = (left - len, !noise);
    }
    file.flush().map_err(failed)
}

fn words(random: &mut Random, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let word = WORDS[random.below(WORDS.len())].as_bytes();
        let len = word.len().min(out.len() - at);
        out[at..at + len].copy_from_slice(&word[..len]);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::model::case::Unit;

    #[test]
    fn a_file_is_compressed_by_half_and_decompressed() {
        let Some(_) = tools::program("gzip") else { return };
        let (scratch, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let outcome = compress_decompress(folder.path(), 1_000_000, &lab).unwrap();
        let units: Vec<_> = outcome.measures.iter().map(|m| m.unit).collect();
        assert_eq!(units, [Unit::Seconds, Unit::Seconds, Unit::Share, Unit::Share]);
        let packed = fs::metadata(folder.path().join("file.gz")).unwrap().len() as f64 / 1_000_000.0;
        assert!((0.5..0.8).contains(&packed), "{packed}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn gzip_s_own_complaint_is_shown() {
        let Some(_) = tools::program("gzip") else { return };
        let folder = tempfile::tempdir().unwrap();
        let error = gzip(folder.path(), &["-k", "file"], &lab()).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}

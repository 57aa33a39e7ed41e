//! Forensic images of EnCase: those that libewf's programs make are read byte by byte, and no damage goes unnoticed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use claviger_engine::store::{Access, EwfStore, FileStore, MemoryStore};
use claviger_engine::{ErrorKind, Result, Store};
use claviger_testkit::random::{Random, noise};
use claviger_testkit::{ewf, tools};

/// Noise, zeros and text, whose chunks compress differently; the last one is not whole.
fn disk(len: usize) -> Vec<u8> {
    let mut disk = noise(len, 4);
    disk[len / 4..len / 2].fill(0);
    disk[len / 2..3 * len / 4]
        .iter_mut()
        .zip(b"the same line again\n".iter().cycle())
        .for_each(|(to, from)| *to = *from);
    disk
}

fn files(paths: &[std::path::PathBuf]) -> Vec<Arc<dyn Store>> {
    let open = |path: &std::path::PathBuf| Arc::new(FileStore::open(path, Access::ReadOnly).expect("it opens")) as _;
    paths.iter().map(open).collect()
}

fn in_memory(bytes: &[u8]) -> Result<EwfStore> {
    EwfStore::open(vec![Arc::new(MemoryStore::new(bytes.to_vec()))])
}

/// The segment files that Debian's program makes of the disk, in order.
fn acquired(folder: &Path, disk: &[u8], options: &[&str]) -> Option<Vec<std::path::PathBuf>> {
    let mut command = Command::new(tools::program("ewfacquirestream")?);
    command.args(["-q", "-t"]).arg(folder.join("disk")).args(options);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(disk).expect("it reads");
    assert!(child.wait().expect("it ends").success(), "{options:?}");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    Some(files)
}

#[test]
fn what_libewf_wrote_is_read() {
    let disk = disk((3 << 20) + 5 * 512);
    let formats = ["encase2", "encase4", "encase5", "encase6", "encase7", "ftk", "linen5", "linen7", "ewfx"];
    let compressed = [&["-c", "none"][..], &["-c", "empty-block"], &["-c", "fast"], &["-c", "best", "-b", "16"]];
    for (number, format) in formats.into_iter().cycle().take(2 * formats.len()).enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = [&["-f", format, "-S", "1MiB"], compressed[number % 4]].concat();
        let Some(paths) = acquired(folder.path(), &disk, &options) else { return };
        assert!(paths.len() > 1, "{options:?}: {paths:?}");
        let image = EwfStore::open(files(&paths)).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        assert_eq!((image.len(), image.sector_size(), image.writable()), (disk.len() as u64, 512, false));
        let mut random = Random::new(number as u64);
        for _ in 0..60 {
            let at = random.below(disk.len());
            let mut out = vec![0xee; 1 + random.below((disk.len() - at).min(200_000))];
            image.read_at(at as u64, &mut out).expect("it is read");
            assert!(out == disk[at..][..out.len()], "{options:?}: {at}");
        }
        assert!(image.read_at(disk.len() as u64, &mut [0]).is_err());

        let missing = EwfStore::open(files(&paths[..paths.len() - 1])).err().expect("the last one is missing");
        let named = format!("segment {}, which is missing", paths.len());
        assert!(missing.to_string().contains(&named), "{missing}");
        let mut exchanged = files(&paths);
        exchanged.swap(0, 1);
        assert!(matches!(EwfStore::open(exchanged).err().expect("out of order").kind, ErrorKind::Malformed { .. }));
    }
}

/// A sector size and a size of chunks other than the usual ones.
#[test]
fn what_the_test_writer_wrote_libewf_reads_as_well() {
    let Some(ewfexport) = tools::program("ewfexport") else { return };
    let disk = disk(300 * 512);
    let folder = tempfile::tempdir().expect("a folder");
    let (image, raw) = (folder.path().join("disk.E01"), folder.path().join("out"));
    fs::write(&image, ewf::image(&disk, 16)).expect("written");
    let mut export = Command::new(ewfexport);
    tools::run(export.args(["-q", "-u", "-f", "raw", "-t"]).arg(&raw).arg(&image).stdin(Stdio::null()));
    assert!(fs::read(raw.with_extension("raw")).expect("it is there") == disk);
    let mut read = vec![0; disk.len()];
    in_memory(&fs::read(&image).expect("it is there"))
        .and_then(|image| Ok(image.read_at(0, &mut read)?))
        .expect("it is read");
    assert!(read == disk);
}

#[test]
fn no_damage_goes_unnoticed() {
    let disk = disk(100 * 512);
    let right = ewf::image(&disk, 4);
    let mut random = Random::new(8);
    let mut noticed = 0;
    for round in 0..500 {
        let mut image = right.clone();
        match round % 3 {
            0 => image.truncate(random.below(right.len())),
            1 => image[random.below(right.len())] ^= 1 << random.below(8),
            _ => {
                let at = random.below(right.len() - 8);
                image[at..at + 8].copy_from_slice(&random.bytes(8));
            }
        }
        let Ok(store) = in_memory(&image) else {
            noticed += 1;
            continue;
        };
        assert_eq!(store.len(), disk.len() as u64);
        for (number, sector) in disk.chunks(512).enumerate() {
            let mut out = [0; 512];
            match store.read_at(number as u64 * 512, &mut out) {
                Ok(()) => assert!(out == sector, "round {round}, sector {number}"),
                Err(_) => noticed += 1,
            }
        }
    }
    assert!(noticed > 200, "{noticed}");
}

/// Sizes and numbers that a header may say cost nothing.
#[test]
fn a_hostile_image_costs_nothing() {
    let right = ewf::image(&disk(100 * 512), 4);
    // The number of sectors in a chunk, of bytes in a sector and of sectors; the number of entries; the next section and its size.
    for (at, summed) in
        [(13 + 76 + 8, 13 + 76..13 + 76 + 1048), (13 + 76 + 12, 13 + 76..13 + 76 + 1048), (13 + 16, 13..13 + 72)]
    {
        for value in [0, 1, u32::MAX, 1 << 31] {
            let mut image = right.clone();
            image[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let sum = miniz_oxide::mz_adler32_oxide(1, &image[summed.clone()]);
            image[summed.end..summed.end + 4].copy_from_slice(&sum.to_le_bytes());
            if let Ok(store) = in_memory(&image) {
                let _ = store.read_at(0, &mut vec![0; store.len().min(1 << 20) as usize]);
            }
        }
    }
    assert!(matches!(in_memory(b"").err().expect("empty").kind, ErrorKind::NotThisFormat(_)));
    assert!(matches!(in_memory(&right[..13]).err().expect("cut").kind, ErrorKind::Malformed { .. }));
}

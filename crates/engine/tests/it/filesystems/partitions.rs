//! Partition tables that sfdisk writes are read here as it reads them; damaged and hostile ones are refused.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::partitions::{self, Partition, PartitionTable, TableKind};
use claviger_engine::store::MemoryStore;
use claviger_engine::{ErrorKind, Result, Store};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

const MIB: u64 = 1 << 20;

/// A disk that sfdisk partitions as `script` says.
fn disk(sfdisk: &Path, len: u64, script: &str) -> tempfile::NamedTempFile {
    // A name that ends with a digit would get a "p" between it and the number.
    let file = tempfile::Builder::new().suffix(".img").tempfile().expect("a temporary file");
    file.as_file().set_len(len).expect("a size");
    let mut child = Command::new(sfdisk)
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(file.path())
        .stdin(Stdio::piped())
        .spawn()
        .expect("sfdisk starts");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success(), "{script}");
    file
}

/// What `sfdisk --dump` says: number, start, length, type and name of each partition.
fn theirs(sfdisk: &Path, disk: &Path) -> Vec<(u32, u64, u64, String, Option<String>)> {
    let output = tools::run(Command::new(sfdisk).arg("--dump").arg(disk));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let sector: u64 =
        field(text.lines().find(|l| l.starts_with("sector-size:")).expect("a size"), ":").parse().expect("n");
    let partitions = text.lines().filter_map(|l| l.strip_prefix(disk.to_str().expect("UTF-8")));
    let parsed = partitions.map(|line| {
        let (number, fields) = line.split_once(':').expect("a number");
        let get =
            |name: &str| fields.split(", ").find_map(|f| f.trim().strip_prefix(name)).map(|v| v.trim().to_owned());
        let sectors = |name: &str| get(name).expect("a number").parse::<u64>().expect("a number") * sector;
        let name = get("name=").map(|quoted| quoted.trim_matches('"').to_owned());
        (
            number.trim().parse().expect("a number"),
            sectors("start="),
            sectors("size="),
            get("type=").expect("a type"),
            name,
        )
    });
    parsed.collect()
}

fn field<'a>(line: &'a str, after: &str) -> &'a str {
    line.split_once(after).expect("a field").1.trim()
}

fn ours(table: &PartitionTable) -> Vec<(u32, u64, u64, String, Option<String>)> {
    // sfdisk prints the type of a master boot record without a leading zero.
    let kind =
        |p: &Partition| if p.kind.len() == 2 { p.kind.trim_start_matches('0').to_owned() } else { p.kind.clone() };
    table.partitions.iter().map(|p| (p.number, p.start, p.len, kind(p), p.name.clone())).collect()
}

fn read(bytes: &[u8]) -> Result<Option<PartitionTable>> {
    partitions::read(&MemoryStore::new(bytes.to_vec()))
}

const SCRIPTS: &[(&str, &str)] = &[
    ("one", "label: dos\nstart=2048, size=4096, type=7, bootable\n"),
    ("four", "label: dos\nsize=1M, type=83\nsize=2M, type=82\nsize=3M, type=ef\ntype=1\n"),
    ("gaps", "label: dos\n4 : start=20480, size=10, type=c\n2 : start=63, size=1, type=83\n"),
    (
        "logical",
        "label: dos\n1 : start=2048, size=2048, type=83\n3 : start=4096, type=f\n5 : size=1M, type=83\n\
         6 : size=2M, type=7\n7 : size=63, type=82\n8 : type=8e\n",
    ),
    ("extended, nothing in it", "label: dos\nstart=2048, size=8192, type=5\n"),
    ("no partition", "label: gpt\n"),
    ("gpt", "label: gpt\nsize=1M, type=U, name=\"boot\"\nsize=2M, type=L, name=\"ümläut 🔑\"\ntype=S\n"),
    ("gpt, numbers", "label: gpt\n128 : start=2048, size=1\n5 : start=2049, size=100, name=\"five\"\n"),
    ("gpt, few entries", "label: gpt\ntable-length: 8\n8 : size=1M\n"),
];

#[test]
fn tables_of_sfdisk_are_read_as_it_reads_them() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    for (what, script) in SCRIPTS {
        let disk = disk(&sfdisk, 32 * MIB, script);
        let before = digest(disk.path());
        let table = partitions::read(&*read_only(disk.path())).expect("a good table").expect("a table");
        assert_eq!(ours(&table), theirs(&sfdisk, disk.path()), "{what}");
        let kind = if script.contains("gpt") { TableKind::Gpt } else { TableKind::Mbr };
        assert_eq!((table.kind, table.sector_size), (kind, 512), "{what}");
        assert!(table.warnings.is_empty(), "{what}: {:?}", table.warnings);
        assert_eq!(digest(disk.path()), before, "{what}");
    }
}

#[test]
fn a_disk_with_sectors_of_4096_bytes_is_read_too() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(32 * MIB).expect("a size");
    {
        let Some(device) = LoopDevice::new(file.path(), &["-b", "4096"]) else { return };
        let mut child = Command::new(&sfdisk)
            .args(["--quiet", "--no-reread", "--no-tell-kernel"])
            .arg(device.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("sfdisk starts");
        let script = b"label: gpt\nsize=4M, name=\"large sectors\"\nstart=2048\n";
        child.stdin.take().expect("a pipe").write_all(script).expect("a script");
        assert!(child.wait().expect("sfdisk ends").success());
    }
    let table = partitions::read(&*read_only(file.path())).expect("a good table").expect("a table");
    assert_eq!((table.kind, table.sector_size), (TableKind::Gpt, 4096));
    let first = &table.partitions[0];
    assert_eq!((first.len, first.name.as_deref()), (4 * MIB, Some("large sectors")));
    assert_eq!(table.partitions[1].start, 2048 * 4096);
    assert!(table.warnings.is_empty(), "{:?}", table.warnings);
}

#[test]
fn a_slice_is_the_partition_and_nothing_else() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    let disk = disk(&sfdisk, 32 * MIB, SCRIPTS[3].1);
    let store: Arc<dyn Store> = in_memory(disk.path());
    let six = partitions::find(&*store, 6).expect("it is there");
    assert_eq!((six.len, six.usual), (2 * MIB, Some("NTFS or exFAT")));
    let slice = partitions::slice(Arc::clone(&store), 6).expect("it is there");
    assert_eq!(slice.len(), six.len);
    slice.write_clobbering(0, &mut [7; 512]).expect("it can be written");
    assert!(slice.write_clobbering(slice.len() - 511, &mut [7; 512]).is_err());
    let mut there = [0; 514];
    store.read_at(six.start - 1, &mut there).expect("it can be read");
    assert_eq!((there[0], &there[1..513], there[513]), (0, &[7; 512][..], 0));

    for (number, what) in [(0, "existing: 1, 5, 6"), (3, "only contains logical ones"), (9, "no partition 9")] {
        let error = partitions::slice(Arc::clone(&store), number).err().expect("there is none").to_string();
        assert!(error.contains(what), "{number}: {error}");
    }
    let error = partitions::slice(Arc::new(MemoryStore::new(vec![0; 4096])), 1).err().expect("no table");
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
}

/// A disk with both kinds of damage in mind: name, length, table.
fn gpt_disk() -> Option<Vec<u8>> {
    let sfdisk = tools::program("sfdisk")?;
    let disk = disk(&sfdisk, 8 * MIB, SCRIPTS[6].1);
    Some(std::fs::read(disk.path()).expect("the disk"))
}

#[test]
fn a_damaged_gpt_is_read_from_its_backup() {
    let Some(good) = gpt_disk() else { return };
    let whole = read(&good).expect("a good table").expect("a table");
    let last = good.len() - 512;
    let damage: [(&str, usize, &str); 4] = [
        ("the header", 512 + 40, "read from its backup: damaged: it does not match (field checksum of the GPT header"),
        ("the mark", 512, "read from its backup: damaged: no GPT header"),
        (
            "the entries",
            1024 + 60,
            "read from its backup: damaged: it does not match (field checksum of the GPT's entries",
        ),
        ("the backup", last + 20, "The backup of the partition table cannot be used"),
    ];
    for (what, at, warning) in damage {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        let table = read(&bytes).unwrap_or_else(|e| panic!("{what}: {e}")).expect("a table");
        assert_eq!(table.partitions, whole.partitions, "{what}");
        assert!(table.warnings.len() == 1 && table.warnings[0].contains(warning), "{what}: {:?}", table.warnings);
    }
    let mut bytes = good.clone();
    bytes[..512].fill(0);
    let table = read(&bytes).expect("a good table").expect("a table");
    assert_eq!(table.partitions, whole.partitions);
    assert!(table.warnings[0].contains("protective"), "{:?}", table.warnings);
    bytes[512] ^= 1;
    assert!(read(&bytes).expect("nothing that says so").is_none());

    let mut bytes = good.clone();
    (bytes[512 + 40], bytes[last + 40]) = (!good[512 + 40], !good[last + 40]);
    let error = read(&bytes).expect_err("no copy is right");
    assert!(
        matches!(error.kind, ErrorKind::Malformed { field: "checksum of the GPT header", offset: 512, .. }),
        "{error}"
    );
    assert!(error.hint.is_some());
}

/// Changes a GPT and makes its checksums right again.
fn with_gpt(good: &[u8], change: impl Fn(&mut [u8])) -> Result<Option<PartitionTable>> {
    let mut bytes = good.to_vec();
    let backup = bytes.len() - 512;
    bytes[backup..].fill(0);
    change(&mut bytes);
    let entries = crc32(&bytes[1024..][..128 * 128]).to_le_bytes();
    bytes[512 + 88..][..4].copy_from_slice(&entries);
    bytes[512 + 16..][..4].fill(0);
    let header = crc32(&bytes[512..][..92]).to_le_bytes();
    bytes[512 + 16..][..4].copy_from_slice(&header);
    read(&bytes)
}

fn crc32(bytes: &[u8]) -> u32 {
    claviger_testkit::reference::legacy::crc32(bytes)
}

#[test]
fn a_gpt_that_lies_under_right_checksums_is_refused() {
    let Some(good) = gpt_disk() else { return };
    with_gpt(&good, |_| {}).expect("a good table").expect("a table");
    let cases: &[(&str, usize, &[u8])] = &[
        ("position of the GPT header", 512 + 24, &2u64.to_le_bytes()),
        ("usable sectors of the GPT", 512 + 48, &u64::MAX.to_le_bytes()),
        ("usable sectors of the GPT", 512 + 40, &u64::MAX.to_le_bytes()),
        ("entries of the GPT", 512 + 72, &u64::MAX.to_le_bytes()),
        ("entries of the GPT", 512 + 72, &1u64.to_le_bytes()),
        ("entries of the GPT", 512 + 80, &u32::MAX.to_le_bytes()),
        ("entries of the GPT", 512 + 84, &0u32.to_le_bytes()),
        ("entries of the GPT", 512 + 84, &129u32.to_le_bytes()),
        ("GPT header", 512 + 8, &2u32.to_le_bytes()),
        ("position of a partition", 1024 + 32, &0u64.to_le_bytes()),
        ("position of a partition", 1024 + 32, &u64::MAX.to_le_bytes()),
        ("position of a partition", 1024 + 40, &u64::MAX.to_le_bytes()),
        // The first partition's last sector is in the second.
        ("position of a partition", 1024 + 40, &4096u64.to_le_bytes()),
    ];
    for (expected, at, bytes) in cases {
        let error = with_gpt(&good, |disk| disk[*at..][..bytes.len()].copy_from_slice(bytes)).expect_err(expected);
        let ErrorKind::Malformed { field, .. } = error.kind else { panic!("{expected}: {error}") };
        assert_eq!(field, *expected, "at {at}");
    }
}

#[test]
fn a_master_boot_record_that_lies_is_refused() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    let disk = disk(&sfdisk, 32 * MIB, SCRIPTS[3].1);
    let good = std::fs::read(disk.path()).expect("the disk");
    let table = read(&good).expect("a good table").expect("a table");
    let extended = table.partitions.iter().find(|p| p.extended).expect("it has one").start;
    let second =
        extended + u64::from(u32::from_le_bytes(good[extended as usize + 462 + 8..][..4].try_into().expect("4"))) * 512;
    let (extended, second) = (extended as usize, second as usize);
    let cases: &[(&str, &str, usize, &[u8])] = &[
        ("position of a partition", "the disk has", 446 + 12, &u32::MAX.to_le_bytes()),
        ("position of a partition", "the disk has", 446 + 8, &0u32.to_le_bytes()),
        ("position of a partition", "the disk has", 446 + 12, &0u32.to_le_bytes()),
        ("position of a partition", "overlap", 446 + 12, &4096u32.to_le_bytes()),
        ("partition types", "several extended", 446 + 4, &[5]),
        ("chain of logical partitions", "loop", second + 462 + 8, &0u32.to_le_bytes()),
        ("chain of logical partitions", "leaves", extended + 462 + 8, &u32::MAX.to_le_bytes()),
        ("chain of logical partitions", "no signature", second + 510, &[0]),
        ("chain of logical partitions", "before its own entry", extended + 446 + 8, &0u32.to_le_bytes()),
        ("chain of logical partitions", "is outside the extended one", extended + 446 + 12, &u32::MAX.to_le_bytes()),
    ];
    for (expected, what, at, bytes) in cases {
        let mut disk = good.clone();
        disk[*at..][..bytes.len()].copy_from_slice(bytes);
        let error = read(&disk).expect_err(what);
        let ErrorKind::Malformed { field, .. } = error.kind else { panic!("{expected}: {error}") };
        assert_eq!(field, *expected, "{what}");
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    let error = read(&good[..16 << 20]).expect_err("it was cut short");
    assert!(error.to_string().contains("cut short"), "{error}");
}

#[test]
fn what_has_no_table_is_told_apart() {
    let random = noise(1 << 16, 3);
    assert!(read(&random).expect("no table").is_none());
    for len in [0, 1, 511, 512, 1023, 1024, 4096] {
        assert!(read(&vec![0; len]).expect("no table").is_none());
        assert!(read(&random[..len]).expect("no table").is_none());
    }
    let make = [("mkfs.vfat", "-F16"), ("mkfs.vfat", "-F32"), ("mkfs.ext4", "-q"), ("mkntfs", "-FqQ")];
    for (program, option) in make {
        let Some(mkfs) = tools::program(program) else { continue };
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(40 * MIB).expect("a size");
        tools::run(Command::new(mkfs).arg(option).arg(file.path()));
        assert!(partitions::read(&*read_only(file.path())).expect("no table").is_none(), "{program} {option}");
    }
}

/// What holds for every table, no matter which program wrote it.
fn check(table: &PartitionTable, len: u64) {
    for p in &table.partitions {
        assert!(p.start > 0 && p.len > 0 && p.start.checked_add(p.len).is_some_and(|end| end <= len), "{p:?}");
        for q in table.partitions.iter().filter(|q| q.number != p.number && !p.extended && !q.extended) {
            assert!(p.end() <= q.start || q.end() <= p.start, "{p:?} {q:?}");
        }
    }
}

#[test]
fn no_table_is_too_hostile_to_end() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    for (seed, (_, script)) in (1..).zip(SCRIPTS) {
        let good = std::fs::read(disk(&sfdisk, 32 * MIB, script).path()).expect("the disk");
        let store = MemoryStore::new(good.clone());
        let table = partitions::read(&store).expect("a good table").expect("a table");
        // Only bytes of the table, because changes elsewhere are not noticed.
        let ranges: Vec<usize> = match table.kind {
            TableKind::Gpt => (446..2048).collect(),
            TableKind::Mbr => {
                let starts = table.partitions.iter().filter(|p| p.extended).map(|p| p.start as usize);
                (446..512).chain(starts.flat_map(|s| s + 446..s + 512)).collect()
            }
            kind => panic!("a table of a kind that was not made: {kind:?}"),
        };
        let mut random = Random::new(seed);
        for _ in 0..1000 {
            let mut undo = Vec::new();
            for _ in 0..1 + random.below(6) {
                let at = *random.choose(&ranges);
                let any = random.below(256) as u8;
                let byte = *random.choose(&[0, 1, 0x05, 0x0f, 0x7f, 0x80, 0xee, 0xff, any]);
                let mut old = [0];
                store.read_at(at as u64, &mut old).expect("it is there");
                undo.push((at as u64, old));
                store.write_clobbering(at as u64, &mut [byte]).expect("it is there");
            }
            if table.kind == TableKind::Gpt && random.below(2) == 0 {
                let mut header = [0; 512];
                store.read_at(512, &mut header).expect("a header");
                header[16..20].fill(0);
                let mut sum = crc32(&header[..92]).to_le_bytes();
                let mut old = [0; 4];
                store.read_at(528, &mut old).expect("it is there");
                undo.extend((528..).zip(old.map(|b| [b])));
                store.write_clobbering(528, &mut sum).expect("it is there");
            }
            if let Ok(Some(table)) = partitions::read(&store) {
                check(&table, good.len() as u64);
            }
            for (at, mut old) in undo.into_iter().rev() {
                store.write_clobbering(at, &mut old).expect("it is there");
            }
        }
        assert!(store.to_vec() == good);
    }
}

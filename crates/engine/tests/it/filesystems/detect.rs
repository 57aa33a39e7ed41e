//! File systems are told apart as blkid tells them apart, over what the mkfs programs make.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use claviger_engine::filesystems::{Filesystem, Kind, detect, sector_size};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_testkit::mounts::without_other_mounts;
use claviger_testkit::tools;

/// A program with its arguments, the size of the image in MiB, and the file system that it creates.
type Made = (&'static str, &'static [&'static str], u64, Kind);

const IMAGES: &[Made] = &[
    ("mkfs.vfat", &["-F", "12", "-n", "TWELVE"], 2, Kind::Fat12),
    ("mkfs.vfat", &["-F", "16", "-n", "SIXTEEN", "-S", "1024"], 20, Kind::Fat16),
    ("mkfs.vfat", &["-F", "16"], 20, Kind::Fat16),
    ("mkfs.vfat", &["-F", "32", "-n", "A LABEL"], 300, Kind::Fat32),
    // Fewer clusters than FAT32 should have: the kernel and dosfstools still take it for FAT32.
    ("mkfs.vfat", &["-F", "32"], 2, Kind::Fat32),
    ("mkfs.exfat", &["-L", "exlabel"], 8, Kind::ExFat),
    ("mkntfs", &["-F", "-Q", "-q", "-L", "Größe"], 8, Kind::Ntfs),
    ("mkntfs", &["-F", "-Q", "-q", "-c", "65536"], 64, Kind::Ntfs),
    ("mke2fs", &["-q", "-t", "ext2", "-L", "second"], 8, Kind::Ext2),
    ("mke2fs", &["-q", "-t", "ext3"], 8, Kind::Ext3),
    ("mke2fs", &["-q", "-t", "ext4", "-L", "sixteen letters!"], 8, Kind::Ext4),
    ("mke2fs", &["-q", "-O", "journal_dev"], 8, Kind::ExtJournal),
    ("mkfs.xfs", &["-q", "-L", "xlabel"], 400, Kind::Xfs),
    ("mkswap", &["-q", "-L", "swapped"], 8, Kind::Swap),
];

#[test]
fn file_systems_have_the_kind_label_and_number_that_blkid_finds() {
    let Some(blkid) = tools::program("blkid") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (i, (program, args, size, kind)) in IMAGES.iter().enumerate() {
        let Some(mkfs) = tools::program(program) else { continue };
        let image = dir.path().join(i.to_string());
        std::fs::File::create(&image).and_then(|f| f.set_len(size << 20)).expect("an empty image");
        tools::run(Command::new(mkfs).args(*args).arg(&image));
        let found = found(&image).unwrap_or_else(|| panic!("{program} {args:?}: nothing is found"));
        let theirs = export(&blkid, &image);
        assert_eq!(found.kind, *kind, "{program} {args:?}");
        assert_eq!(found.kind.mount_type(), theirs["TYPE"]);
        assert_eq!(found.label.as_ref(), theirs.get("LABEL"), "{program} {args:?}");
        let theirs = theirs.get("UUID").or(theirs.get("LOGUUID"));
        assert_eq!(found.uuid.as_ref(), theirs, "{program} {args:?}");
        std::fs::remove_file(&image).expect("it is there");
    }
}

fn found(image: &Path) -> Option<Filesystem> {
    let store = FileStore::open(image, Access::ReadOnly).expect("the image opens");
    detect(&store).expect("the image can be read")
}

/// What blkid says, by name.
fn export(blkid: &Path, image: &Path) -> HashMap<String, String> {
    let output = tools::run(Command::new(blkid).args(["-p", "-o", "udev"]).arg(image));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let pairs = text.lines().filter_map(|l| l.strip_prefix("ID_FS_")?.split_once('='));
    let unescaped = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            let hex = after.get(..3).filter(|h| byte == b'\\' && h[0] == b'x');
            let hex = hex.and_then(|h| u8::from_str_radix(std::str::from_utf8(&h[1..]).ok()?, 16).ok());
            bytes.push(hex.unwrap_or(byte));
            rest = if hex.is_some() { &after[3..] } else { after };
        }
        String::from_utf8(bytes).expect("UTF-8")
    };
    // The encoded names are exact. In the plain ones, special characters are replaced.
    let all: HashMap<String, String> = pairs.map(|(k, v)| (k.to_owned(), unescaped(v))).collect();
    let pick = |name: &str| all.get(&format!("{name}_ENC")).or(all.get(name)).cloned();
    ["TYPE", "LABEL", "UUID", "LOGUUID"].iter().filter_map(|n| Some(((*n).to_owned(), pick(n)?))).collect()
}

/// The program's option for the sector size; the size of the image in MiB, and of the sectors.
type Sectored = (&'static str, &'static [&'static str], u64, u64);

const SECTORS: &[Sectored] = &[
    ("mkfs.vfat", &["-F", "16"], 20, 512),
    ("mkfs.vfat", &["-F", "16", "-S", "2048"], 40, 2048),
    ("mkfs.vfat", &["-F", "32", "-S", "4096"], 300, 4096),
    ("mkfs.exfat", &[], 8, 512),
    ("mkntfs", &["-F", "-Q", "-q"], 8, 512),
    ("mkntfs", &["-F", "-Q", "-q", "-s", "4096"], 64, 4096),
    // The kernel wants no more than a block of ext's.
    ("mke2fs", &["-q", "-b", "1024"], 8, 1024),
    ("mke2fs", &["-q", "-t", "ext4", "-b", "4096"], 8, 4096),
    ("mkfs.xfs", &["-q", "-s", "size=512"], 400, 512),
    ("mkfs.xfs", &["-q", "-s", "size=4096"], 400, 4096),
    ("mkfs.btrfs", &["-q"], 150, 4096),
    ("mkswap", &["-q"], 8, 4096),
    ("sfdisk", &["-q"], 8, 512),
];

#[test]
fn file_systems_and_partition_tables_say_what_sectors_they_were_made_for() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let partitions = dir.path().join("partitions");
    std::fs::write(&partitions, "label: gpt\nsize=2MiB\n").expect("written");
    for (i, (program, args, size, sectors)) in SECTORS.iter().enumerate() {
        let Some(mkfs) = tools::program(program) else { continue };
        let image = dir.path().join(i.to_string());
        std::fs::File::create(&image).and_then(|f| f.set_len(size << 20)).expect("an empty image");
        let stdin = std::fs::File::open(&partitions).expect("it is there");
        // mkfs.btrfs fails on a mount of another test whose server has ended.
        let mut command = match *program {
            "mkfs.btrfs" if tools::root().is_some() => without_other_mounts(120, mkfs),
            _ => Command::new(mkfs),
        };
        tools::run(command.args(*args).arg(&image).stdin(stdin));
        let store = FileStore::open(&image, Access::ReadOnly).expect("the image opens");
        assert_eq!(sector_size(&store).expect("it can be read"), Some(*sectors), "{program} {args:?}");
        drop(store);
        std::fs::remove_file(&image).expect("it is there");
    }
    let noise: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    assert_eq!(sector_size(&MemoryStore::new(noise)).expect("it can be read"), None);
}

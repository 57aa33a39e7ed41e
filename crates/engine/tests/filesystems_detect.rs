//! File systems are told apart as blkid tells them apart, over what the mkfs programs make.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use claviger_engine::filesystems::{Filesystem, Kind, detect};
use claviger_engine::store::{Access, FileStore};
use claviger_testkit::tools;

/// A program with its arguments, the size of the image in MiB, and what it makes.
type Made = (&'static str, &'static [&'static str], u64, Kind);

const IMAGES: &[Made] = &[
    ("mkfs.vfat", &["-F", "12", "-n", "TWELVE"], 2, Kind::Fat12),
    ("mkfs.vfat", &["-F", "16", "-n", "SIXTEEN", "-S", "1024"], 20, Kind::Fat16),
    ("mkfs.vfat", &["-F", "16"], 20, Kind::Fat16),
    ("mkfs.vfat", &["-F", "32", "-n", "A LABEL"], 300, Kind::Fat32),
    // Fewer clusters than FAT32 should have: the kernel and dosfstools take it as FAT32 all the same.
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
    // The encoded names are exact; the plain ones have what is not plain replaced.
    let all: HashMap<String, String> = pairs.map(|(k, v)| (k.to_owned(), unescaped(v))).collect();
    let pick = |name: &str| all.get(&format!("{name}_ENC")).or(all.get(name)).cloned();
    ["TYPE", "LABEL", "UUID", "LOGUUID"].iter().filter_map(|n| Some(((*n).to_owned(), pick(n)?))).collect()
}

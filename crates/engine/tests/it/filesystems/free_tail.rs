//! The free tail of file systems that their own programs made and filled: overwriting it loses nothing, and it is as large as
//! those programs say.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use claviger_engine::filesystems::free_tail::{FreeTail, free_tail};
use claviger_engine::store::MemoryStore;
use claviger_engine::{ErrorKind, Store};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::random::Random;
use claviger_testkit::{tools, uml};

const MIB: u64 = 1 << 20;

/// An image of a file system, and files to put in it and to compare with.
struct Image {
    dir: tempfile::TempDir,
    path: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl Image {
    /// An image of `len` bytes of noise: bytes that are not zero in free space must not matter.
    fn new(len: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("image");
        std::fs::write(&path, noise(len as usize, len)).expect("an image");
        std::fs::create_dir(dir.path().join("files")).expect("a folder");
        Self { path, dir, files: Vec::new() }
    }

    /// Makes files of together `total` bytes, to be put in.
    fn fill(&mut self, count: usize, total: u64) -> &[(String, Vec<u8>)] {
        let mut random = Random::new(total);
        for i in 0..count {
            let len = total as usize / count / 2 + random.below(total as usize / count);
            let (name, bytes) = (format!("file{i}"), random.bytes(len));
            std::fs::write(self.dir.path().join("files").join(&name), &bytes).expect("a file");
            self.files.push((name, bytes));
        }
        &self.files
    }

    fn forget(&mut self, name: &str) {
        self.files.retain(|(n, _)| n != name);
    }

    fn source(&self, name: &str) -> PathBuf {
        self.dir.path().join("files").join(name)
    }

    /// Runs a program with the words of `command`, in which `IMAGE` stands for the image and `FILES` for the folder.
    fn run(&self, command: &str) -> Output {
        let output = self.try_run(command);
        assert!(output.status.success(), "{command}: {output:?}");
        output
    }

    fn try_run(&self, command: &str) -> Output {
        let mut words = command.split_whitespace();
        let program = words.next().expect("a program");
        let program = tools::program(program).unwrap_or_else(|| panic!("{program} was there before"));
        let mut run = Command::new("timeout");
        run.arg("60").arg(program).env("MTOOLS_SKIP_CHECK", "1").stdin(Stdio::null());
        for word in words {
            let word = word.replace("IMAGE", self.path.to_str().expect("UTF-8"));
            run.arg(word.replace("FILES", self.source("").to_str().expect("UTF-8")));
        }
        run.output().expect("timeout, of coreutils, starts")
    }

    fn text(&self, command: &str) -> String {
        String::from_utf8_lossy(&self.run(command).stdout).into_owned()
    }

    fn tail(&self) -> FreeTail {
        free_tail(&self.store()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A copy: the lock on the file itself may still be held by a process that another test is just starting.
    fn store(&self) -> MemoryStore {
        MemoryStore::new(std::fs::read(&self.path).expect("the image is read"))
    }

    fn change(&self, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.path).expect("the image opens");
        file.write_all_at(bytes, offset).expect("the image is changed");
    }

    fn byte(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.store().read_at(offset, &mut byte).expect("the image is read");
        byte[0]
    }

    /// Fills the tail with noise. What it was.
    fn overwrite_tail(&self) -> FreeTail {
        let tail = self.tail();
        let before = self.store().len();
        assert!(tail.at < tail.end && tail.end <= before, "{tail:?}");
        self.change(tail.at, &noise(tail.len() as usize, 77));
        assert_eq!(self.tail(), tail, "the tail belongs to nobody");
        tail
    }

    /// Fails unless it is refused with all the words.
    #[track_caller]
    fn refused(&self, words: &[&str]) {
        let error = free_tail(&self.store()).expect_err("not to be guessed").to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    }
}

/// Whether all the programs are there. Missing ones are reported.
fn programs(names: &[&str]) -> Option<()> {
    names.iter().try_for_each(|name| tools::program(name).map(|_| ()))
}

// ---- FAT

const FAT_TOOLS: [&str; 5] = ["mkfs.vfat", "mcopy", "mdel", "fsck.vfat", "mshowfat"];

fn fat(len: u64, options: &str) -> Image {
    let image = Image::new(len);
    image.run(&format!("mkfs.vfat {options} IMAGE"));
    image
}

/// The last cluster of a file as mtools sees it.
fn last_cluster(image: &Image, name: &str) -> u64 {
    let text = image.text(&format!("mshowfat -i IMAGE ::{name}"));
    let clusters = text.rsplit('<').next().and_then(|t| t.split('>').next()).expect("<1-2>");
    clusters.rsplit('-').next().expect("a number").parse().expect("a number")
}

/// Where a cluster ends, in bytes, from `minfo`.
fn fat_cluster_end(image: &Image, cluster: u64) -> u64 {
    let boot = std::fs::read(&image.path).expect("the image");
    let u16 = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
    let u32 = |at: usize| u16(at) | u16(at + 2) << 16;
    let fat = if u16(22) == 0 { u32(36) } else { u16(22) };
    let data = u16(14) + u64::from(boot[16]) * fat + (u16(17) * 32).div_ceil(u16(11));
    (data + (cluster - 1) * u64::from(boot[13])) * u16(11)
}

#[test]
fn the_tail_of_a_fat_file_system_is_free_and_as_large_as_can_be() {
    let Some(()) = programs(&FAT_TOOLS) else { return };
    let cases = [
        (MIB, "-F 12", "FAT12"),
        (MIB, "-F 12 -f 1 -s 1", "FAT12"),
        (15 * MIB, "-F 12 -s 8", "FAT12"),
        (16 * MIB, "-F 16 -s 4", "FAT16"),
        (24 * MIB, "-F 16 -S 2048 -s 1", "FAT16"),
        (40 * MIB, "-F 32 -s 1", "FAT32"),
    ];
    for (len, options, name) in cases {
        let mut image = fat(len, options);
        let empty = image.tail();
        assert_eq!(empty.filesystem, name, "{options}");
        for (name, _) in image.fill(12, (len / 3).min(9 * MIB)).to_vec() {
            image.run(&format!("mcopy -i IMAGE FILES{name} ::"));
        }
        // A hole in the middle changes nothing at the end.
        image.run("mdel -i IMAGE ::file3");
        image.forget("file3");
        let tail = image.overwrite_tail();
        assert_eq!(tail.at, fat_cluster_end(&image, last_cluster(&image, "file11")), "{options}");
        assert_eq!((tail.end, tail.filesystem), (len, name));
        assert!(empty.at < tail.at);
        image.run("fsck.vfat -n IMAGE");
        for (name, bytes) in &image.files {
            assert!(image.run(&format!("mcopy -i IMAGE ::{name} -")).stdout == *bytes, "{options}: {name}");
        }
        // Once the last file is gone, its place is free too.
        image.run("mdel -i IMAGE ::file11");
        assert_eq!(image.tail().at, fat_cluster_end(&image, last_cluster(&image, "file10")), "{options}");
    }
}

/// Fewer clusters than FAT32 should have: mtools takes it for FAT16, the kernel and Windows do not.
#[test]
fn a_small_fat32_is_read_as_the_kernel_reads_it() {
    let Some(()) = programs(&["mkfs.vfat", "fsck.vfat"]) else { return };
    let mut images = [fat(6 * MIB, "-F 32 -s 1 -f 1"), fat(9 * MIB + 512, "-F 32 -s 8")];
    images.iter_mut().for_each(|image| drop(image.fill(7, 3 * MIB).to_vec()));
    let kernel = |work: &str| {
        let mut script = "set -e\nmodprobe -a vfat nls_cp437 nls_ascii nls_utf8 nls_iso8859_1 || :\n".to_owned();
        for (device, image) in ["ubda", "ubdb"].iter().zip(&images) {
            let mount = format!("mkdir -p /mnt/{device}\nmount -t vfat /dev/{device} /mnt/{device}\n");
            let work = work
                .replace("FILES", image.source("").to_str().expect("UTF-8"))
                .replace("MOUNT", &format!("/mnt/{device}"));
            script += &format!("{mount}{work}\numount /mnt/{device}\n");
        }
        let done = uml::run(&script, &[&images[0].path, &images[1].path], 120)?;
        assert_eq!(done.status, 0, "{}", done.output);
        Some(())
    };
    let Some(()) = kernel("cp FILES* MOUNT") else { return };
    for image in &images {
        let tail = image.overwrite_tail();
        assert_eq!(tail.filesystem, "FAT32");
        let total: u64 = image.files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert!((total..total + 300_000).contains(&tail.at), "{tail:?} for {total} bytes");
        image.run("fsck.vfat -n IMAGE");
    }
    kernel("for f in FILES*; do cmp $f MOUNT/${f##*/}; done");
}

#[test]
fn a_fat_file_system_that_is_not_clean_or_not_understood_is_refused() {
    let Some(()) = programs(&FAT_TOOLS) else { return };
    let image = fat(16 * MIB, "-F 16 -s 4");
    let fat = fat_cluster_end(&image, 1) - 512 * 32 - 2 * 32 * 512;
    let again = |offset: u64, byte: u8, words: &[&str]| {
        let before = image.byte(offset);
        image.change(offset, &[byte]);
        image.refused(words);
        image.change(offset, &[before]);
    };
    let second_fat = u64::from(image.byte(14)) * 512 + u64::from(image.byte(22)) * 512;
    let first_fat = u64::from(image.byte(14)) * 512;
    assert!(fat > 0);
    again(37, 1, &["FAT16", "not unmounted"]);
    again(first_fat + 3, 0x7f, &["FAT16", "not unmounted"]);
    again(second_fat + 9, 1, &["FAT16", "differ"]);
    again(22, 1, &["too few"]);
    again(11, 1, &["outside FAT"]);
    assert_eq!(image.tail().filesystem, "FAT16");

    let image = self::fat(40 * MIB, "-F 32 -s 1");
    for (offset, byte, words) in [
        (65, 1, "not unmounted"),
        (40, 0x81, "only one FAT in use"),
        (42, 1, "version"),
        (44, 9, "root directory"),
        (32 * 512 + 7, 0x03, "not unmounted"),
    ] {
        let before = image.byte(offset);
        image.change(offset, &[byte]);
        image.refused(&["FAT32", words][usize::from(offset == 44)..]);
        image.change(offset, &[before]);
    }
    assert_eq!(image.tail().filesystem, "FAT32");
}

// ---- exFAT

const EXFAT_TOOLS: [&str; 6] = ["mkfs.exfat", "dump.exfat", "fsck.exfat", "mount.exfat-fuse", "losetup", "umount"];

/// A mounted exFAT, until dropped.
struct Mounted {
    dir: tempfile::TempDir,
    _device: LoopDevice,
}

impl Mounted {
    fn exfat(image: &Image) -> Self {
        let device = LoopDevice::new(&image.path, &[]).expect("the tools were there");
        let dir = tempfile::tempdir().expect("a folder");
        let program = tools::program("mount.exfat-fuse").expect("it was there");
        tools::run(
            Command::new("timeout").arg("60").arg(program).arg(device.path()).arg(dir.path()).stdin(Stdio::null()),
        );
        let until = Instant::now() + Duration::from_secs(60);
        let mountpoint =
            |dir: &Path| Command::new("mountpoint").arg("-q").arg(dir).status().expect("mountpoint").success();
        while !mountpoint(dir.path()) {
            assert!(Instant::now() < until, "it does not mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { dir, _device: device }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = |how: &[&str]| {
            let umount = Command::new("timeout").args(["60", "umount"]).args(how).arg(self.dir.path()).status();
            umount.is_ok_and(|status| status.success())
        };
        let _ = umount(&[]) || umount(&["-l"]);
    }
}

#[test]
fn the_tail_of_an_exfat_file_system_is_free_and_as_large_as_can_be() {
    let (Some(()), Some(())) = (programs(&EXFAT_TOOLS), tools::root()) else { return };
    for (len, options) in [(8 * MIB, ""), (20 * MIB + 512, "-c 512"), (24 * MIB, "-c 32K"), (40 * MIB, "-b 64K")] {
        let mut image = Image::new(len);
        image.run(&format!("mkfs.exfat {options} IMAGE"));
        let files = image.fill(9, len / 3).to_vec();
        {
            let mounted = Mounted::exfat(&image);
            for (name, bytes) in &files {
                std::fs::write(mounted.dir.path().join(name), bytes).expect("a file");
            }
        }
        let tail = image.overwrite_tail();
        assert_eq!((tail.filesystem, tail.end), ("exFAT", len));
        // Nothing was deleted: all clusters up to the last one are in use.
        let dump = image.text("dump.exfat IMAGE");
        let number = |name: &str| -> u64 {
            let line = dump.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} in {dump}"));
            line.rsplit([' ', '\t']).next().expect("a number").parse().expect("a number")
        };
        let used = number("Total Clusters") - number("Free Clusters");
        let sector = 1 << number("Sector Size Bits");
        assert_eq!(tail.at, number("Cluster Heap Offset") * sector + used * number("Cluster size"), "{options}");
        image.run("fsck.exfat -n IMAGE");
        let mounted = Mounted::exfat(&image);
        for (name, bytes) in &files {
            assert!(std::fs::read(mounted.dir.path().join(name)).expect("a file") == *bytes, "{options}: {name}");
        }
    }
}

#[test]
fn an_exfat_file_system_that_is_not_clean_or_not_understood_is_refused() {
    let Some(()) = programs(&["mkfs.exfat"]) else { return };
    let image = Image::new(8 * MIB);
    image.run("mkfs.exfat IMAGE");
    image.change(106, &[2]);
    image.refused(&["exFAT", "not unmounted"]);
    image.change(106, &[4]);
    image.refused(&["exFAT", "failed"]);
    image.change(106, &[1]);
    image.refused(&["exFAT", "two FATs"]);
    image.change(106, &[0]);
    image.change(72, &[0xff, 0x3f, 0]);
    image.refused(&["checksum"]);
}

// ---- NTFS

#[test]
fn the_tail_of_an_ntfs_file_system_is_free_and_as_large_as_can_be() {
    let Some(()) = programs(&["mkntfs", "ntfscp", "ntfscat", "ntfscluster", "ntfsfix"]) else { return };
    for (len, options) in [(8 * MIB, ""), (12 * MIB + 2048, "-c 512"), (30 * MIB, "-c 65536"), (16 * MIB, "-s 4096")] {
        let mut image = Image::new(len);
        image.run(&format!("mkntfs -F -Q -q {options} IMAGE"));
        // ntfs-3g does not begin at the beginning: more would fill the last cluster.
        for (name, _) in image.fill(4, len * 3 / 10).to_vec() {
            image.run(&format!("ntfscp -f -q IMAGE FILES{name} {name}"));
        }
        let tail = image.overwrite_tail();
        assert_eq!(tail.filesystem, "NTFS");
        let cluster = u64::from(image.byte(13)) * (u64::from(image.byte(11)) | u64::from(image.byte(12)) << 8);
        assert!(len - tail.end <= cluster + 4096 && tail.end < len, "only the copy of the boot sector is behind it");
        let of = |first: u64, last: u64| image.text(&format!("ntfscluster -f -c {first}-{last} IMAGE"));
        let (at, end) = (tail.at / cluster, tail.end / cluster);
        assert!(!of(at - 1, at - 1).contains("no inode found"), "{options}: the tail could begin earlier");
        assert!(of(at, end - 1).contains("no inode found"), "{options}: something is in the tail");
        image.run("ntfsfix -n IMAGE");
        for (name, bytes) in &image.files {
            assert!(image.run(&format!("ntfscat -f -q IMAGE {name}")).stdout == *bytes, "{options}: {name}");
        }
    }
}

/// Where a record of the MFT is that has `mark` in it.
fn mft_record(image: &Image, number: u64) -> u64 {
    let cluster = u64::from(image.byte(13)) * 512;
    (u64::from(image.byte(48))) * cluster + number * 1024
}

#[test]
fn an_ntfs_file_system_that_is_not_clean_or_not_understood_is_refused() {
    let Some(()) = programs(&["mkntfs"]) else { return };
    let image = Image::new(8 * MIB);
    image.run("mkntfs -F -Q -q IMAGE");
    let all = std::fs::read(&image.path).expect("the image");
    // The flags of $Volume: the attribute 0x70 is resident, and they are at byte 10 of its value.
    let volume = mft_record(&image, 3) as usize;
    let record = &all[volume..volume + 1024];
    let attribute =
        (0..1000).find(|i| record[*i..].starts_with(&[0x70, 0, 0, 0]) && record[i + 8] == 0).expect("flags");
    let flags = volume + attribute + usize::from(record[attribute + 20]) + 10;
    image.change(flags as u64, &[1]);
    image.refused(&["NTFS", "not unmounted"]);
    image.change(flags as u64, &[0]);
    // The journal: mkntfs leaves it empty.
    let log =
        (0..all.len() / 4096).find(|i| all[i * 4096..][..65536.min(all.len() - i * 4096)].iter().all(|b| *b == 0xff));
    let log = log.expect("an empty journal") as u64 * 4096;
    let mut page = vec![0; 512];
    page[..4].copy_from_slice(b"RSTR");
    page[17] = 16;
    page[24] = 48;
    image.change(log, &page);
    image.refused(&["NTFS", "journal"]);
    page[62] = 2;
    image.change(log, &page);
    image.change(log + 4096, &page);
    assert_eq!(image.tail().filesystem, "NTFS", "closed properly");
    page[48] = 1;
    page[62] = 0;
    image.change(log + 4096, &page);
    image.refused(&["NTFS", "journal"]);
    image.change(log, &[0xff; 512]);
    assert_eq!(image.tail().filesystem, "NTFS");
    // A record that was half written.
    image.change(mft_record(&image, 6) + 510, &[0x5a, 0xa5]);
    image.refused(&["not written whole"]);
}

// ---- ext

const EXT_TOOLS: [&str; 4] = ["mke2fs", "dumpe2fs", "e2fsck", "debugfs"];

/// The end of the last block in use, from the lists of free blocks that dumpe2fs prints.
fn ext_used_end(image: &Image) -> u64 {
    let text = image.text("dumpe2fs IMAGE");
    let number = |name: &str| -> u64 {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().expect("a number").parse().expect("a number")
    };
    let (blocks, block) = (number("Block count:"), number("Block size:"));
    // The last free cluster is given by its first block.
    let cluster = if text.contains("Cluster size:") { number("Cluster size:") / block } else { 1 };
    let ranges = text.lines().filter_map(|l| l.strip_prefix("  Free blocks: ")).flat_map(|l| l.split(", "));
    let mut free: Vec<(u64, u64)> = ranges
        .filter(|r| !r.is_empty())
        .map(|r| {
            let (first, last) = r.split_once('-').unwrap_or((r, r));
            (first.parse().expect("a number"), last.parse().expect("a number"))
        })
        .collect();
    free.sort_unstable();
    let mut end = blocks;
    for (first, last) in free.into_iter().rev() {
        if last + cluster < end {
            break;
        }
        end = first;
    }
    end * block
}

#[test]
fn the_tail_of_an_ext_file_system_is_free_and_as_large_as_can_be() {
    let Some(()) = programs(&EXT_TOOLS) else { return };
    let cases = [
        (16 * MIB, "-t ext2 -b 1024", "ext2"),
        (16 * MIB, "-t ext2 -r 0 -b 1024 -O none", "ext2"),
        (30 * MIB + 512, "-t ext3 -b 1024", "ext3"),
        (64 * MIB, "-t ext4 -b 1024", "ext4"),
        (64 * MIB, "-t ext4 -b 4096", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O ^flex_bg", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O uninit_bg,^metadata_csum", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O ^sparse_super,^resize_inode", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O sparse_super2", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O meta_bg,^resize_inode -g 1024", "ext4"),
        (64 * MIB, "-t ext4 -b 2048 -O meta_bg,^resize_inode,^flex_bg,^64bit -g 512 -N 9000", "ext4"),
        (64 * MIB, "-t ext4 -b 1024 -O ^64bit -g 2048", "ext4"),
        (96 * MIB, "-t ext4 -b 1024 -O bigalloc -C 16384", "ext4"),
        (96 * MIB, "-t ext4 -b 4096 -O bigalloc -C 65536 -E packed_meta_blocks=1", "ext4"),
        (64 * MIB, "-t ext4 -b 4096 -O project,casefold,encrypt,verity,inline_data -I 512", "ext4"),
    ];
    for (len, options, name) in cases {
        let mut image = Image::new(len);
        let files = image.fill(8, len / 5).to_vec();
        image.run(&format!("mke2fs -q -F {options} -d FILES IMAGE"));
        let tail = image.overwrite_tail();
        assert_eq!((tail.filesystem, tail.end), (name, len), "{options}");
        assert_eq!(tail.at, ext_used_end(&image), "{options}");
        image.run("e2fsck -fn IMAGE");
        for (name, bytes) in &files {
            let out = image.dir.path().join("out");
            let dump = format!("dump /{name} {}", out.display());
            let debugfs = tools::program("debugfs").expect("it was there");
            tools::run(Command::new(debugfs).arg("-R").arg(dump).arg(&image.path));
            assert!(std::fs::read(&out).expect("a file") == *bytes, "{options}: {name}");
        }
    }
}

#[test]
fn an_ext_file_system_that_is_not_clean_or_not_understood_is_refused() {
    let Some(()) = programs(&EXT_TOOLS) else { return };
    let image = Image::new(16 * MIB);
    image.run("mke2fs -q -F -t ext4 -b 1024 -O uninit_bg,^metadata_csum IMAGE");
    let again = |offset: u64, byte: u8, words: &[&str]| {
        let before = image.byte(1024 + offset);
        image.change(1024 + offset, &[byte]);
        image.refused(words);
        image.change(1024 + offset, &[before]);
    };
    again(58, 0, &["ext4", "not unmounted"]);
    again(58, 3, &["ext4", "errors"]);
    again(96, image.byte(1024 + 96) | 4, &["ext4", "journal"]);
    again(232, 12, &["ext4", "deleted"]);
    again(102, 1, &["ext4", "deleted"]);
    again(96, image.byte(1024 + 96) | 1, &["unsupported features"]);
    again(12, image.byte(1024 + 12) ^ 1, &["clusters are free"]);
    again(33, 1, &["per group"]);
    again(32, 1, &["blocks per group"]);
    // A bit of a bitmap, and the flag that says that there is none.
    let text = image.text("dumpe2fs IMAGE");
    let bitmap: u64 =
        text.split("Block bitmap at ").nth(1).and_then(|t| t.split(' ').next()?.parse().ok()).expect("a bitmap");
    let before = image.byte(bitmap * 1024 + 1000);
    image.change(bitmap * 1024 + 1000, &[before ^ 1]);
    image.refused(&["group 0"]);
    image.change(bitmap * 1024 + 1000, &[before]);
    let before = image.byte(2048 + 18);
    image.change(2048 + 18, &[before | 2]);
    image.refused(&["group 0"]);
    image.change(2048 + 18, &[before]);
    assert_eq!(image.tail().filesystem, "ext4");
}

// ---- none, and hostile ones

#[test]
fn what_is_no_known_file_system_or_does_not_fill_the_volume_is_refused() {
    let none = |bytes: Vec<u8>| {
        let error = free_tail(&MemoryStore::new(bytes)).expect_err("no file system");
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    };
    for len in [0, 1, 511, 512, 1024, 2047, 2048, 100_000] {
        none(vec![0; len]);
        none(noise(len, 5));
    }
    let Some(()) = programs(&["mkfs.vfat"]) else { return };
    let image = fat(4 * MIB, "-F 12");
    let mut bytes = std::fs::read(&image.path).expect("the image");
    bytes.resize(6 << 20, 0);
    none(bytes.clone());
    bytes.truncate(3 << 20);
    let error = free_tail(&MemoryStore::new(bytes)).expect_err("cut short");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
}

#[test]
fn damaged_file_systems_never_panic_or_loop() {
    let Some(()) = programs(&["mkfs.vfat", "mkfs.exfat", "mkntfs", "mke2fs"]) else { return };
    let commands = [
        "mkfs.vfat -F 12 IMAGE",
        "mkfs.vfat -F 16 -s 1 IMAGE",
        "mkfs.vfat -F 32 -s 1 IMAGE",
        "mkfs.exfat -c 512 IMAGE",
        "mkntfs -F -Q -q IMAGE",
        "mke2fs -q -F -t ext4 -b 1024 IMAGE",
        "mke2fs -q -F -t ext4 -b 1024 -O bigalloc,meta_bg,^resize_inode -C 4096 -g 2048 IMAGE",
    ];
    let mut random = Random::new(3);
    for command in commands {
        let image = Image::new(if command.contains("-F 12") { 2 * MIB } else { 5 * MIB });
        image.run(command);
        let good = std::fs::read(&image.path).expect("the image");
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(good.clone()));
        // Where anything is that is examined: the beginning, and the records of the MFT.
        let places: Vec<usize> = match command.contains("ntfs") {
            true => [0..90, 16_384..24_576].into_iter().flatten().collect(),
            false if command.contains("exfat") => {
                let number =
                    |at: usize| u32::from_le_bytes(good[at..at + 4].try_into().expect("four bytes")) as usize * 512;
                let (fat, heap, root) = (number(80), number(88), number(96));
                [0..128, fat..fat + 64, heap..heap + 32, heap + root - 1024..heap + root - 896]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            false => [0..128, 1024..1400, 2048..2200].into_iter().flatten().collect(),
        };
        let (mut refused, mut accepted) = (0, 0);
        for _ in 0..3000 {
            let changes: Vec<usize> = (0..1 + random.below(3)).map(|_| *random.choose(&places)).collect();
            for at in &changes {
                let any = random.number() as u8;
                let byte = *random.choose(&[0, 1, 0x7f, 0x80, 0xff, any]);
                store.write_clobbering(*at as u64, &mut [byte]).expect("in memory");
            }
            if command.contains("exfat") {
                let mut region = vec![0; 12 * 512];
                store.read_at(0, &mut region).expect("in memory");
                store.write_clobbering(11 * 512, &mut exfat_sums(&region)).expect("in memory");
            }
            match free_tail(&*store) {
                Ok(tail) => {
                    accepted += 1;
                    assert!(tail.at <= tail.end && tail.end <= store.len(), "{command}: {changes:?} {tail:?}");
                }
                Err(_) => refused += 1,
            }
            for at in changes {
                store.write_clobbering(at as u64, &mut [good[at]]).expect("in memory");
            }
        }
        assert!(refused > 50 && accepted > 10, "{command}: {refused} {accepted}");
    }
}

/// The sector of checksums of an exFAT boot region (exFAT specification, 3.4).
fn exfat_sums(region: &[u8]) -> Vec<u8> {
    let mut sum = 0u32;
    for (i, byte) in region[..11 * 512].iter().enumerate() {
        if ![106, 107, 112].contains(&i) {
            sum = sum.rotate_right(1).wrapping_add(u32::from(*byte));
        }
    }
    sum.to_le_bytes().repeat(128)
}

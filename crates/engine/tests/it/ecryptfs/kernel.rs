//! eCryptfs, both ways with the kernel's own: what one writes the other reads, and both change the same folder in turns.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use claviger_engine::file_formats::Stacked;
use claviger_engine::trees::Tree;
use claviger_testkit::ecryptfs::kernel::{self, Case, Lower, Mount};
use claviger_testkit::ecryptfs::maker::{CIPHERS, Cipher, File};
use claviger_testkit::mounts::{self, LoopDevice};
use claviger_testkit::operations::{Listing, Model, Operation, Seen, apply, differences, listing};
use claviger_testkit::random::Random;
use claviger_testkit::tools;

use crate::support::ecryptfs::{PASSPHRASE, mount, open_at};

const AES: Cipher = ("aes", 16);
const OTHER: &str = "another passphrase, for names";

/// In user-mode Linux a folder of the host has no files of several names: the second name leads nowhere.
fn one_name(step: &Operation) -> bool {
    !matches!(step, Operation::AddName(..))
}

/// Sizes around each border.
const SIZES: &[usize] = &[0, 1, 7, 8, 15, 16, 17, 4095, 4096, 4097, 8191, 8192, 8193, 12_288, 50_001];

fn same(expected: &Listing, found: &Listing, what: &str) {
    let differences = differences(expected, found);
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
}

fn seen(tree: &Stacked) -> Listing {
    listing(tree).expect("it is listed")
}

/// Folders `0`, `1` … for as many cases.
fn folders(dir: &Path, count: usize) -> Vec<PathBuf> {
    let all: Vec<_> = (0..count).map(|number| dir.join(number.to_string())).collect();
    all.iter().for_each(|folder| fs::create_dir(folder).expect("it is new"));
    all
}

/// A tree with everything in it.
fn everything(seed: u64, longest_name: usize) -> Vec<Operation> {
    let mut random = Random::new(seed);
    let mut all = vec![Operation::Folder("sub".into()), Operation::Folder("sub/deeper".into())];
    for size in SIZES {
        let path = OsString::from(format!("sub/{size}"));
        all.extend([Operation::File(path.clone()), Operation::Write(path, 0, random.bytes(*size))]);
    }
    all.extend([
        // What nobody wrote is zero.
        Operation::File("sparse".into()),
        Operation::Write("sparse".into(), 30_000, random.bytes(100)),
        Operation::Resize("sparse".into(), 60_000),
        Operation::File("shorter".into()),
        Operation::Write("shorter".into(), 0, random.bytes(20_000)),
        Operation::Resize("shorter".into(), 4097),
        Operation::Resize("shorter".into(), 10_000),
        Operation::Append("shorter".into(), random.bytes(5000)),
        Operation::Rename("sub/4095".into(), "sub/deeper/moved".into()),
        Operation::Remove("sub/8193".into()),
    ]);
    for len in 1..=longest_name {
        // Of each length: the bytes in front of a name depend on it.
        let name = OsString::from("n".repeat(len - 1) + "x");
        all.push(if len % 16 == 0 { Operation::Folder(name) } else { Operation::File(name) });
    }
    for len in [1, 15, 16, 100, 170, 180, 200, 1000, 2900] {
        all.push(Operation::Link(format!("link{len}").into(), "t".repeat(len).into()));
    }
    all
}

/// Every cipher, with names of the same passphrase, of another one, and in clear.
fn every_cipher(lowers: &[PathBuf]) -> Vec<Mount<'_>> {
    let of_names = [Some(PASSPHRASE), Some(OTHER), None].into_iter().cycle();
    let each = lowers.iter().zip(CIPHERS).zip(of_names);
    each.map(|((lower, cipher), of_names)| Mount { of_names, ..mount(lower, *cipher) }).collect()
}

/// Names of every length where ciphers differ in their blocks, and of fewer elsewhere.
fn trees() -> Vec<Vec<Operation>> {
    let names =
        |(number, _): (usize, &Cipher)| everything(number as u64, if matches!(number, 0 | 3) { 143 } else { 3 });
    CIPHERS.iter().enumerate().map(names).collect()
}

#[test]
fn what_the_kernel_writes_is_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = folders(dir.path(), CIPHERS.len());
    let (mounts, trees) = (every_cipher(&lowers), trees());
    let cases: Vec<_> =
        mounts.iter().zip(&trees).map(|(mount, operations)| Case { mount: *mount, operations }).collect();
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for ((mount, tree), (outcome, lower)) in mounts.iter().zip(&trees).zip(outcomes.iter().zip(&lowers)) {
        let what = format!("{:?}, names {:?}", mount.cipher, mount.of_names);
        assert_eq!(outcome.failed, [""; 0], "{what}");
        let expected = Model::default().after(tree).listing();
        same(&expected, &outcome.listing, &format!("the kernel, {what}"));
        let before = bytes_of(lower);
        same(&expected, &seen(&open_at(lower, mount)), &what);
        assert!(bytes_of(lower) == before, "{what}: reading changed something");
    }
}

#[test]
fn what_is_written_the_kernel_reads() {
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = folders(dir.path(), CIPHERS.len());
    let (mounts, trees) = (every_cipher(&lowers), trees());
    for ((mount, operations), lower) in mounts.iter().zip(&trees).zip(&lowers) {
        let tree = open_at(lower, mount);
        for operation in operations {
            apply(&tree, operation).unwrap_or_else(|e| panic!("{mount:?}, {operation:?}: {e}"));
        }
        tree.finish().expect("durable");
    }
    let cases: Vec<_> = mounts.iter().map(|mount| Case { mount: *mount, operations: &[] }).collect();
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for ((mount, tree), (outcome, lower)) in mounts.iter().zip(&trees).zip(outcomes.iter().zip(&lowers)) {
        let what = format!("{:?}, names {:?}", mount.cipher, mount.of_names);
        let expected = Model::default().after(tree).listing();
        same(&expected, &seen(&open_at(lower, mount)), &what);
        assert_eq!(outcome.failed, [""; 0], "{what}");
        same(&expected, &outcome.listing, &format!("the kernel, {what}"));
    }
}

/// All files below a folder.
fn bytes_of(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("listed").map(|e| e.expect("an entry")) {
            match entry.file_type().expect("known") {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => all.push((entry.path(), fs::read(entry.path()).expect("read"))),
                _ => all.push((
                    entry.path(),
                    fs::read_link(entry.path()).expect("a link").into_os_string().into_encoded_bytes(),
                )),
            }
        }
    }
    all.sort();
    all
}

#[test]
fn both_change_a_folder_in_turns() {
    const TURNS: usize = 2;
    let dir = tempfile::tempdir().expect("a folder");
    let ciphers = [AES, ("aes", 24), ("blowfish", 56), ("cast6", 32)];
    let lowers = folders(dir.path(), ciphers.len());
    let mounts: Vec<_> = lowers.iter().zip(ciphers).map(|(lower, cipher)| mount(lower, cipher)).collect();
    let mut models = vec![Model::default(); mounts.len()];
    let mut random = Random::new(7);
    for turn in 0..TURNS {
        let mut all = Vec::new();
        for model in &mut models {
            all.push(steps(model, &mut random, 60, one_name));
        }
        let cases: Vec<_> =
            mounts.iter().zip(&all).map(|(mount, operations)| Case { mount: *mount, operations }).collect();
        let Some(outcomes) = kernel::run(&cases, &[]) else { return };
        for (number, outcome) in outcomes.iter().enumerate() {
            let what = format!("turn {turn}, {:?}", mounts[number].cipher);
            assert_eq!(outcome.failed, [""; 0], "{what}");
            same(&models[number].listing(), &outcome.listing, &format!("the kernel, {what}"));
            let tree = open_at(&lowers[number], &mounts[number]);
            same(&models[number].listing(), &seen(&tree), &what);
            for operation in steps(&mut models[number], &mut random, 60, one_name) {
                apply(&tree, &operation).unwrap_or_else(|e| panic!("{what}, {operation:?}: {e}"));
            }
            tree.finish().expect("durable");
            same(&models[number].listing(), &seen(&tree), &format!("written, {what}"));
        }
    }
    let cases: Vec<_> = mounts.iter().map(|mount| Case { mount: *mount, operations: &[] }).collect();
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for (model, outcome) in models.iter().zip(&outcomes) {
        same(&model.listing(), &outcome.listing, "the kernel, at the end");
    }
}

/// Makes `count` allowed steps, which the model has then taken.
fn steps(model: &mut Model, random: &mut Random, count: usize, may: fn(&Operation) -> bool) -> Vec<Operation> {
    let mut all = Vec::new();
    while all.len() < count {
        let step = model.step(random, 4096);
        if may(&step) {
            model.apply(&step);
            all.push(step);
        }
    }
    all
}

/// Names that are too long, links that are, and what is in clear: answers are the same.
#[test]
fn the_kernel_s_limits_are_ours() {
    const ENAMETOOLONG: i32 = 36;
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = folders(dir.path(), 6);
    let all = [AES, ("blowfish", 16), ("cast6", 32)];
    let mut mounts: Vec<_> = lowers.iter().zip(all).map(|(lower, cipher)| mount(lower, cipher)).collect();
    mounts.push(Mount { of_names: None, ..mount(&lowers[3], AES) });
    let operations: Vec<_> = [143, 144, 255]
        .map(|len| Operation::File("n".repeat(len).into()))
        .into_iter()
        .chain(
            [2990, 3020, 3030, 3040, 3100].map(|len| Operation::Link(format!("{len}").into(), "t".repeat(len).into())),
        )
        .collect();
    let cases: Vec<_> = mounts.iter().map(|mount| Case { mount: *mount, operations: &operations }).collect();
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for (mount, outcome) in mounts.iter().zip(&outcomes) {
        assert!(outcome.failed.iter().all(|line| line.ends_with(&format!(": {ENAMETOOLONG}"))), "{:?}", outcome.failed);
        let ours = tempfile::tempdir().expect("a folder");
        let tree = open_at(ours.path(), mount);
        let failed = operations.iter().filter(|operation| apply(&tree, operation).is_err()).count();
        same(&outcome.listing, &seen(&tree), &format!("{:?}, {:?}", mount.cipher, mount.of_names));
        assert_eq!(failed, outcome.failed.len());
    }
}

/// An image of ext4, mounted here.
struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a folder");
        let image = Self { dir };
        mounts::sparse_file(&image.path(), 32 << 20);
        tools::run(Command::new(tools::program("mke2fs")?).args(["-q", "-t", "ext4", "-b", "4096"]).arg(image.path()));
        Some(image)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Calls `with` with the folder on which it is mounted.
    fn mounted<T>(&self, with: impl FnOnce(&Path) -> T) -> Option<T> {
        let device = LoopDevice::new(&self.path(), &[])?;
        let dir = self.dir.path().join("mounted");
        fs::create_dir_all(&dir).expect("there is room");
        let mount = mounts::Mount::on(&dir);
        tools::run(mounts::bounded(30, "mount").args(["-t", "ext4"]).arg(device.path()).arg(&dir));
        let result = with(&dir);
        drop(mount);
        Some(result)
    }
}

#[test]
fn metadata_are_kept_in_attributes_by_both() {
    let Some(image) = Image::new() else { return };
    let ciphers = [AES, ("aes", 32), ("des3_ede", 24)];
    let names = ["0", "1", "2"];
    let mounts: Vec<_> = names
        .iter()
        .zip(ciphers)
        .map(|(name, cipher)| {
            let lower = Lower::Image(0, name);
            Mount {
                lower,
                passphrase: PASSPHRASE,
                of_names: Some(PASSPHRASE),
                cipher,
                options: "ecryptfs_xattr_metadata",
            }
        })
        .collect();
    let mut random = Random::new(3);
    let mut models = vec![Model::default(); mounts.len()];
    let trees: Vec<Vec<_>> = models
        .iter_mut()
        .map(|model| {
            let mut all = everything(5, 20);
            *model = std::mem::take(model).after(&all);
            all.extend(steps(model, &mut random, 40, |_| true));
            all
        })
        .collect();
    let cases: Vec<_> =
        mounts.iter().zip(&trees).map(|(mount, operations)| Case { mount: *mount, operations }).collect();
    let Some(outcomes) = kernel::run(&cases, &[&image.path()]) else { return };
    let ours = |root: &Path| {
        for (number, mount) in mounts.iter().enumerate() {
            assert_eq!(outcomes[number].failed, [""; 0], "{mount:?}");
            same(&models[number].listing(), &outcomes[number].listing, "the kernel");
            let tree = open_at(&root.join(names[number]), mount);
            same(&models[number].listing(), &seen(&tree), "read");
            for operation in steps(&mut models[number], &mut random, 60, |_| true) {
                apply(&tree, &operation).unwrap_or_else(|e| panic!("{operation:?}: {e}"));
            }
            tree.finish().expect("durable");
            same(&models[number].listing(), &seen(&tree), "written");
        }
    };
    let Some(()) = image.mounted(ours) else { return };
    let cases: Vec<_> = mounts.iter().map(|mount| Case { mount: *mount, operations: &[] }).collect();
    let Some(outcomes) = kernel::run(&cases, &[&image.path()]) else { return };
    for (model, outcome) in models.iter().zip(&outcomes) {
        same(&model.listing(), &outcome.listing, "the kernel, at the end");
    }
}

/// Files of others between those of the folder, and the views in which they, or all, are shown.
#[test]
fn foreign_files_are_refused_or_shown_as_the_kernel_does() {
    let dir = tempfile::tempdir().expect("a folder");
    let lower = dir.path().join("lower");
    fs::create_dir(&lower).expect("it is new");
    let plain = Random::new(1).bytes(10_000);
    let good = File::new(PASSPHRASE, AES, &plain).stored();
    let others = [
        ("good", good.clone()),
        ("text", b"in clear".to_vec()),
        ("long text", vec![b'x'; 20_000]),
        ("of another", File::new("someone else's", AES, &plain).stored()),
        ("only a header", good[..8192].to_vec()),
    ];
    for (name, bytes) in &others {
        fs::write(lower.join(name), bytes).expect("there is room");
    }
    let plain_mount = Mount { of_names: None, ..mount(&lower, AES) };
    let passed = Mount { options: "ecryptfs_passthrough", ..plain_mount };
    let encrypted = Mount { options: "ecryptfs_passthrough,ecryptfs_encrypted_view", ..plain_mount };
    let mounts = [plain_mount, passed, encrypted];
    let cases = mounts.map(|mount| Case { mount, operations: &[] });
    let before = bytes_of(&lower);
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for (mount, outcome) in mounts.iter().zip(&outcomes) {
        let found = listing(&open_at(&lower, mount)).expect("it is listed");
        for (name, _) in &others {
            let (theirs, ours) = (&outcome.listing[OsStr::new(name)], &found[OsStr::new(name)]);
            // The kernel shows what it cannot decrypt, or what is not there, as if it were what is asked for.
            let refused = match (*name, mount.options) {
                (_, "ecryptfs_passthrough,ecryptfs_encrypted_view") => false,
                ("only a header", _) | ("of another", "ecryptfs_passthrough") => true,
                _ => matches!(theirs, Seen::Unreadable(_)),
            };
            match refused {
                true => assert!(matches!(ours, Seen::Unreadable(_)), "{:?} {name}: {ours:?}", mount.options),
                false => assert_eq!(ours, theirs, "{:?} {name}", mount.options),
            }
        }
    }
    assert!(bytes_of(&lower) == before, "something was written");
}

//! Damaged file systems that are read, written and examined: whatever they say, this ends, and ends with an error or a
//! result. How many are tried is in CLAVIGER_ROUNDS, for long runs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::fat::{Image, mkfs, mkfs_exfat, open};
use claviger_engine::filesystems::free_tail;
use claviger_engine::store::MemoryStore;
use claviger_engine::trees::{Entry, NewNode, Node, NodeKind, Renaming, Tree, Use};
use claviger_engine::{Store, diagnosis, filesystems, partitions};
use claviger_testkit::exfat;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// Far more than one image takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn rounds(usual: usize) -> usize {
    std::env::var("CLAVIGER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Does `work` with `rounds` images, each damaged in another way. Fails when one panics or does not end.
/// `mend` mends checksums, in every second image.
fn damaged(name: &str, image: &[u8], usual: usize, mend: fn(&mut [u8]), work: fn(Arc<MemoryStore>, &mut Random)) {
    let places: Vec<usize> =
        (0..image.len() / 32).filter(|i| image[i * 32..][..32].iter().any(|b| *b != 0)).map(|i| i * 32).collect();
    let (done, wait) = mpsc::channel();
    let image = image.to_vec();
    let first = std::env::var("CLAVIGER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let thread = thread::spawn(move || {
        for seed in first..first + rounds(usual) as u64 {
            done.send(seed).expect("somebody waits");
            let mut random = Random::new(seed);
            let mut bytes = image.clone();
            for _ in 0..1 + random.below(12) {
                damage(&mut bytes, &places, &mut random);
            }
            if seed.is_multiple_of(2) {
                mend(&mut bytes);
            }
            work(Arc::new(MemoryStore::new(bytes)), &mut random);
        }
    });
    let mut last = first;
    loop {
        match wait.recv_timeout(PATIENCE) {
            Ok(seed) => last = seed,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: seed {last} does not end"),
        }
    }
    assert!(thread.join().is_ok(), "{name}: seed {last} panics");
}

/// Changes a number of one to eight bytes somewhere where there is something.
fn damage(bytes: &mut [u8], places: &[usize], random: &mut Random) {
    let len = *random.choose(&[1, 1, 2, 4, 8]);
    let at = random.choose(places) + random.below(32 / len) * len;
    let mut number = [0; 8];
    number[..len].copy_from_slice(&bytes[at..at + len]);
    let old = u64::from_le_bytes(number);
    let (any, near) = (random.number(), random.below(16) as u64);
    let new = *random.choose(&[
        0,
        u64::MAX,
        i64::MAX as u64,
        1 << (len * 8 - 1),
        any,
        near,
        old.wrapping_add(near),
        old.wrapping_sub(near),
        old << 1,
        u64::MAX - near,
    ]);
    bytes[at..at + len].copy_from_slice(&new.to_le_bytes()[..len]);
}

/// Lists and reads all that can be, within limits.
fn read_all(tree: &dyn Tree) -> Vec<(Node, Entry)> {
    let mut found: Vec<(Node, Entry)> = Vec::new();
    let mut folders = vec![(tree.root(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in tree.list(folder).unwrap_or_default() {
            if found.len() > 300 {
                return found;
            }
            let node = tree.lookup(folder, &entry.name).unwrap_or(entry.node);
            let attributes = tree.attributes(node);
            for at in [0, 50_000, attributes.map_or(0, |a| a.size).saturating_sub(100), u64::MAX] {
                let _ = tree.read_at(node, at, &mut [0; 5000]);
            }
            let _ = tree.link_target(node);
            if entry.kind == NodeKind::Folder && depth < 5 {
                folders.push((entry.node, depth + 1));
            }
            found.push((folder, entry));
        }
    }
    let _ = tree.space();
    found
}

/// Reads, and checks that nothing changes.
fn look(store: Arc<MemoryStore>, _: &mut Random) {
    let before = store.to_vec();
    let as_store: Arc<dyn Store> = store.clone();
    if let Ok((_, tree)) = filesystems::open(store.clone()) {
        read_all(&*tree);
    }
    if let Ok(tail) = free_tail::free_tail(&*store) {
        assert!(tail.at <= tail.end && tail.end <= store.len());
    }
    let _ = partitions::read(&*store);
    if let Ok(mut seen) = diagnosis::look(&as_store) {
        let _ = seen.find_lost_partitions(&as_store);
    }
    let scan = diagnosis::scan(&as_store, &mut |_| Ok(())).expect("memory is read");
    assert!(scan.found.is_sorted_by_key(|found| found.at));
    assert!(scan.found.iter().all(|found| found.at < store.len() && found.len != Some(0)));
    assert!(store.to_vec() == before, "looking changed something");
}

/// Writes, removes and moves what there is, and makes more.
fn write(store: Arc<MemoryStore>, random: &mut Random) {
    let Ok((_, tree)) = filesystems::open(store.clone()) else { return };
    let found = read_all(&*tree);
    let mut folders = vec![tree.root()];
    folders.extend(found.iter().filter(|(_, e)| e.kind == NodeKind::Folder).map(|(_, e)| e.node));
    for step in 0..25 {
        let folder = *random.choose(&folders);
        let new: OsString = format!("a new name of some length {step}").into();
        let Some((parent, entry)) = found.get(random.below(found.len().max(1))) else {
            let _ = tree.create(folder, &new, &NewNode::default());
            continue;
        };
        let len = *random.choose(&[0, 1, 511, 70_000, 5_000_000, u64::from(u32::MAX)]);
        let _ = match random.below(9) {
            0 => tree.create(folder, &new, &NewNode::default()).map(drop),
            1 => tree.make_folder(folder, &new, &NewNode::default()).map(drop),
            2 => tree.remove(*parent, &entry.name),
            3 => tree.rename(*parent, &entry.name, folder, &new, Renaming::Replace),
            4 => tree.set_len(entry.node, len),
            5 => tree.write_at(entry.node, len.min(100_000), &[9; 5000]),
            6 => tree.set_times(entry.node, Some(SystemTime::UNIX_EPOCH), None),
            7 => tree.flush(),
            _ => {
                let _ = tree.open(entry.node, Use { read: true, write: true });
                let _ = tree.remove(*parent, &entry.name);
                tree.release(entry.node)
            }
        };
    }
    let _ = tree.finish();
    read_all(&*tree);
}

/// A folder with files, to be put into images.
fn source(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("folder/deeper")).expect("a folder");
    fs::write(source.join("file"), vec![5; 60_000]).expect("a file");
    fs::write(source.join("folder/deeper/x"), vec![6; 3000]).expect("a file");
    std::os::unix::fs::symlink("folder/deeper/x", source.join("link")).expect("a link");
    (0..60).for_each(|i| fs::write(source.join(format!("folder/a longer name {i}")), [1; 100]).expect("a file"));
    source
}

fn made(program: &str, args: &[&str], size: u64, dir: &Path) -> Option<Vec<u8>> {
    let program = tools::program(program)?;
    let image = dir.join("image");
    File::create(&image).and_then(|f| f.set_len(size)).expect("an empty image");
    tools::run(Command::new(program).args(args).arg(&image));
    Some(fs::read(&image).expect("an image"))
}

#[test]
fn damaged_fat_and_exfat_are_read_and_written_without_a_panic() {
    type Make = fn(&[&str], u64) -> Option<Image>;
    let kinds: [(Make, &[&str], u64); 4] = [
        (mkfs, &["-F", "12"], 1 << 10),
        (mkfs, &["-F", "16", "-s", "1"], 5 << 10),
        (mkfs, &["-F", "32", "-s", "1"], 2 << 10),
        (mkfs_exfat, &["-b", "512", "-c", "512", "512"], 1 << 10),
    ];
    for (make, args, size) in kinds {
        let Some(image) = make(args, size) else { continue };
        let store = image.in_memory();
        let tree = open(store.clone());
        let folder = tree.make_folder(tree.root(), OsStr::new("folder"), &NewNode::default()).expect("room");
        let deeper = tree.make_folder(folder, OsStr::new("deeper"), &NewNode::default()).expect("room");
        for i in 0..40 {
            let file = tree
                .create(
                    *[folder, deeper, tree.root()].get(i % 3).expect("one"),
                    OsStr::new(&format!("a name {i}")),
                    &NewNode::default(),
                )
                .expect("room");
            tree.write_at(file, 0, &vec![7; i * 300]).expect("room");
        }
        tree.finish().expect("written");
        drop(tree);
        let mend: fn(&mut [u8]) = if args.last() == Some(&"512") { exfat::seal } else { |_| {} };
        damaged(&format!("{args:?}"), &store.to_vec(), 60, mend, look);
        damaged(&format!("{args:?}, written"), &store.to_vec(), 60, mend, write);
    }
}

#[test]
fn damaged_ext_is_read_without_a_panic() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = source(dir.path());
    let source = source.to_str().expect("UTF-8");
    // Without checksums: damage gets further.
    for (kind, options) in
        [("ext2", "none"), ("ext4", "^metadata_csum,^uninit_bg"), ("ext4", "inline_data,^metadata_csum,^64bit")]
    {
        let options = if options == "none" { "^resize_inode" } else { options };
        let args = ["-q", "-F", "-t", kind, "-b", "1024", "-O", options, "-d", source];
        let Some(image) = made("mke2fs", &args, 2 << 20, dir.path()) else { return };
        damaged(&format!("{kind} {options}"), &image, 60, |_| {}, look);
    }
}

/// The place in an ext image of the inode whose size is `size`, in a table of inodes of 128 or 256 bytes.
fn inode_of_size(image: &[u8], size: u32) -> usize {
    let at = (0..image.len()).step_by(128).find(|at| image[at + 4..at + 8] == size.to_le_bytes());
    at.expect("there is such a file")
}

#[test]
fn sizes_that_no_ext_can_have_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = source(dir.path());
    // Longer than what fits into an inode.
    std::os::unix::fs::symlink("xx/".repeat(329), source.join("long link")).expect("a link");
    fs::write(source.join("large"), vec![5; 54_321]).expect("a file");
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-d", source.to_str().expect("UTF-8")];
    let Some(image) = made("mke2fs", &args, 2 << 20, dir.path()) else { return };
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        let open = |image: Vec<u8>| filesystems::open(Arc::new(MemoryStore::new(image))).expect("it opens").1;
        let find = |tree: &dyn Tree, name: &str| tree.lookup(tree.root(), OsStr::new(name)).expect("it is there");
        let with_high = |at: usize, high: u32| {
            let mut changed = image.clone();
            changed[at + 108..at + 112].copy_from_slice(&high.to_le_bytes());
            changed
        };

        let tree = open(image.clone());
        let (link, file) = (find(&*tree, "long link"), find(&*tree, "large"));
        assert_eq!(tree.link_target(link).expect("a target").len(), 987);
        assert_eq!(tree.read_at(file, 54_300, &mut [0; 100]).expect("read"), 21);
        assert_eq!(tree.read_at(file, u64::MAX, &mut [0; 100]).expect("behind the end"), 0);

        // Exabytes: the numbers of blocks end before.
        let tree = open(with_high(inode_of_size(&image, 54_321), 1 << 29));
        assert!(tree.lookup(tree.root(), OsStr::new("large")).is_err());
        // Two terabytes, most of them a hole: going there would hold everybody up.
        let tree = open(with_high(inode_of_size(&image, 54_321), 1 << 9));
        let (large, other) = (find(&*tree, "large"), find(&*tree, "file"));
        assert!(tree.read_at(large, 2 << 40, &mut [0; 100]).is_err());
        assert_eq!(tree.read_at(large, 54_300, &mut [0; 100]).expect("its beginning"), 100);
        assert_eq!(tree.read_at(other, 0, &mut [0; 100]).expect("another file"), 100);
        // A link of terabytes would have memory taken for it.
        let tree = open(with_high(inode_of_size(&image, 987), 1 << 9));
        assert!(tree.link_target(find(&*tree, "long link")).is_err());

        // More blocks than there are.
        let mut changed = image.clone();
        changed[1024 + 4..1024 + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = filesystems::open(Arc::new(MemoryStore::new(changed))).err().expect("refused").to_string();
        assert!(error.contains("bytes do not fit"), "{error}");
        done.send(()).expect("somebody waits");
    });
    wait.recv_timeout(PATIENCE).expect("it ends, and nothing fails");
}

#[test]
fn damaged_ntfs_is_looked_into_without_a_panic() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = source(dir.path());
    let (Some(mut image), Some(ntfscp)) =
        (made("mkntfs", &["-F", "-Q", "-q"], 2 << 20, dir.path()), tools::program("ntfscp"))
    else {
        return;
    };
    for name in ["one", "two", "three"] {
        let path = dir.path().join("image");
        tools::run(Command::new(&ntfscp).arg("-q").arg(&path).arg(source.join("file")).arg(name));
        image = fs::read(&path).expect("an image");
    }
    damaged("NTFS", &image, 60, |_| {}, look);
}

#[test]
fn damaged_partition_tables_are_read_without_a_panic() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for script in ["label: gpt\n,200K\n,\n", "label: dos\n,200K\n,400K,E\n,,\n"] {
        let Some(sfdisk) = tools::program("sfdisk") else { return };
        let path = dir.path().join("disk");
        File::create(&path).and_then(|f| f.set_len(4 << 20)).expect("an empty image");
        let mut child = Command::new(sfdisk)
            .args(["--quiet", "--no-reread", "--no-tell-kernel"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sfdisk starts");
        let mut script_to = child.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut script_to, script.as_bytes()).expect("a script");
        drop(script_to);
        assert!(child.wait().expect("sfdisk ends").success(), "{script}");
        damaged(script, &fs::read(&path).expect("a disk"), 60, |_| {}, look);
    }
}

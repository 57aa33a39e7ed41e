//! FAT and exFAT, both ways with other programs (dosfstools, mtools, exfatprogs, exfat-fuse): they make, we change, they read and
//! check.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::support::fat::{Image, contents, files_below, mkfs, mkfs_exfat, open, read_all};
use claviger_engine::store::MemoryStore;
use claviger_engine::trees::{NewNode, NodeKind, Renaming, Space, Tree, Use, find};
use claviger_engine::{Store, filesystems};
use claviger_testkit::exfat;
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CrashStore, Depth, Fault, FaultStore, Operation};
use claviger_testkit::tools;

/// Makes an image: from arguments and the size in KiB.
type Make = fn(&[&str], u64) -> Option<Image>;

/// The smallest exFAT, with the smallest clusters.
const SMALL: &[&str] = &["-b", "512", "-c", "512", "512"];

/// Arguments of mkfs.exfat, then the sector size, and the size in KiB.
const EXFAT_SHAPES: &[(&[&str], u64)] = &[
    (SMALL, 1440),
    (&["-b", "512", "-c", "1K", "--pack-bitmap", "512"], 20 << 10),
    (&["512"], 24 << 10),
    (&["-c", "4M", "512"], 96 << 10),
    (&["-b", "4K", "-c", "4K", "4096"], 20 << 10),
];

/// One image of each kind, with the byte and the bit of the mark that it is in use.
const ALIKE: &[(Make, &[&str], usize, u8)] =
    &[(mkfs, &["-F", "16"], 0x25, 1), (mkfs, &["-F", "32"], 0x41, 1), (mkfs_exfat, SMALL, 106, 2)];

/// Arguments of mkfs.vfat, and the size in KiB.
const SHAPES: &[(&[&str], u64)] = &[
    (&["-F", "12"], 1440),
    (&["-F", "12", "-s", "1", "-r", "512"], 1024),
    (&["-F", "12", "-s", "8", "-S", "1024"], 2048),
    (&["-F", "12", "-s", "128"], 100 << 10),
    (&["-F", "16", "-s", "1"], 4 << 10),
    (&["-F", "16", "-s", "4", "-f", "1"], 20 << 10),
    (&["-F", "16", "-s", "8", "-S", "4096"], 200 << 10),
    (&["-F", "32", "-s", "1"], 40 << 10),
    (&["-F", "32", "-s", "8"], 300 << 10),
    (&["-F", "32", "-s", "1", "-S", "2048"], 150 << 10),
    (&["-F", "32", "-s", "128"], 64 << 10),
];

#[test]
fn whatever_is_done_a_model_mtools_and_fsck_agree() {
    for (i, (args, size)) in SHAPES.iter().enumerate() {
        let Some(image) = mkfs(args, *size) else { return };
        let store = image.in_memory();
        let model = exercise(store.clone(), 400, i as u64, *size << 10);
        image.put(&store.to_vec());
        image.check(&format!("{args:?}"));
        // mtools decides by the number of clusters alone. It takes a file system with few for FAT12, against the boot sector.
        let few = args.contains(&"32") && open(store.clone()).space().is_ok_and(few_clusters);
        assert!(few || image.mtools_files() == model, "{args:?}: mtools reads something else");
        // A new reader reads what was written, too.
        let again = open(store.clone());
        assert!(read_all(&*again) == model, "{args:?}: something else is read again");
        assert!(again.warnings().is_empty(), "{args:?}: {:?}", again.warnings());
        drop(again);
        assert!(store.to_vec() == image.bytes(), "{args:?}: reading changed something");
    }
}

#[test]
fn exfat_is_written_as_others_read_it() {
    for (i, (args, size)) in EXFAT_SHAPES.iter().enumerate() {
        let Some(image) = mkfs_exfat(args, *size) else { continue };
        let store = image.in_memory();
        let model = exercise(store.clone(), 400, i as u64, *size << 10);
        image.put(&store.to_vec());
        image.check(&format!("{args:?}"));
        let again = open(store.clone());
        assert!(read_all(&*again) == model, "{args:?}: something else is read again");
        assert!(again.warnings().is_empty(), "{args:?}: {:?}", again.warnings());
        drop(again);
        assert!(store.to_vec() == image.bytes(), "{args:?}: reading changed something");
        write_ends(&*open(store.clone()), &model);
        image.put(&store.to_vec());
        let Some(others) = image.mounted(files_below) else { continue };
        assert!(others == model, "{args:?}: others read something else");
    }
}

fn few_clusters(space: Space) -> bool {
    space.total / u64::from(space.unit) < 65_525
}

/// Writes the last byte of every file once more, because exfat-fuse before 1.4 reads unwritten parts as whatever is on the disk.
fn write_ends(tree: &dyn Tree, model: &BTreeMap<String, Vec<u8>>) {
    for (path, contents) in model.iter().filter(|(_, contents)| !contents.is_empty()) {
        let file = find(tree, OsStr::new(path)).expect("it is there");
        let last = contents.len() - 1;
        tree.write_at(file, last as u64, &contents[last..]).expect("it has room");
    }
    tree.finish().expect("written");
}

/// Does `steps` random things to the file system and to a map in memory, and compares as it goes. What must be there.
fn exercise(store: Arc<MemoryStore>, steps: usize, seed: u64, size: u64) -> BTreeMap<String, Vec<u8>> {
    let mut random = Random::new(seed);
    let tree = open(store);
    let mut folders = vec![String::new()];
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let longest = (size / 12).min(300_000) as usize;
    for step in 0..steps {
        let name = name(&mut random, step);
        let folder = random.choose(&folders).clone();
        let path = format!("{folder}/{name}");
        let in_folder = find(&*tree, OsStr::new(&folder)).expect("the folder is there");
        let any = (!files.is_empty()).then(|| files.keys().nth(random.below(files.len())).expect("there").clone());
        let done = match (random.below(10), any) {
            (0, _) if folders.len() < 12 => {
                tree.make_folder(in_folder, OsStr::new(&name), &NewNode::default()).map(|_| folders.push(path))
            }
            (1..=3, _) | (_, None) => tree.create(in_folder, OsStr::new(&name), &NewNode::default()).and_then(|node| {
                files.insert(path.clone(), Vec::new());
                let bytes = random.bytes(random_len(seed, step, longest));
                tree.write_at(node, 0, &bytes)?;
                files.insert(path, bytes);
                Ok(())
            }),
            (4..=6, Some(file)) => {
                let node = find(&*tree, OsStr::new(&file)).expect("the file is there");
                let contents = files.get_mut(&file).expect("in the model");
                let at = random.below(contents.len() + longest / 20 + 1);
                let bytes = random.bytes(1 + random_len(seed, step, longest / 4 + 1));
                tree.write_at(node, at as u64, &bytes).map(|()| {
                    contents.resize(contents.len().max(at + bytes.len()), 0);
                    contents[at..at + bytes.len()].copy_from_slice(&bytes);
                })
            }
            (7, Some(file)) => {
                let node = find(&*tree, OsStr::new(&file)).expect("the file is there");
                let contents = files.get_mut(&file).expect("in the model");
                let len = if random.below(3) == 0 { 0 } else { random.below(contents.len() * 3 / 2 + 2) };
                tree.set_len(node, len as u64).map(|()| contents.resize(len, 0))
            }
            (8, Some(file)) => {
                let (from, old) = file.rsplit_once('/').expect("a path");
                let from = find(&*tree, OsStr::new(from)).expect("the folder is there");
                let replaced =
                    (random.below(3) == 0).then(|| files.keys().nth(random.below(files.len())).cloned()).flatten();
                let to = replaced.unwrap_or(path);
                let (to_folder, to_name) = to.rsplit_once('/').expect("a path");
                let to_folder = find(&*tree, OsStr::new(to_folder)).expect("the folder is there");
                tree.rename(from, OsStr::new(old), to_folder, OsStr::new(to_name), Renaming::Replace).map(|()| {
                    let contents = files.remove(&file).expect("in the model");
                    files.insert(to, contents);
                })
            }
            (_, Some(file)) => {
                let (folder, name) = file.rsplit_once('/').expect("a path");
                let folder = find(&*tree, OsStr::new(folder)).expect("the folder is there");
                tree.remove(folder, OsStr::new(name)).map(|()| drop(files.remove(&file)))
            }
        };
        if let Err(e) = done {
            assert_eq!(e.kind(), ErrorKind::StorageFull, "step {step}: {e}");
        }
        if step % 100 == 50 {
            tree.flush().expect("written");
        }
        if step % 40 == 0 {
            assert!(read_all(&*tree) == files, "step {step}: something else is read");
        }
    }
    tree.finish().expect("written");
    files
}

fn random_len(seed: u64, step: usize, longest: usize) -> usize {
    let mut random = Random::new(seed << 32 | step as u64);
    let longest = if random.below(3) == 0 { longest } else { longest.min(3000) };
    random.below(longest)
}

/// A name that is in use by nothing.
fn name(random: &mut Random, step: usize) -> String {
    match random.below(5) {
        0 => format!("F{step}.TXT"),
        1 => format!("a quite long name, number {step}, with some.dots.in it.text"),
        2 => format!("Größe {step}"),
        3 => format!("{step}{}", "x".repeat(random.below(240))),
        _ => format!("lower{step}.c"),
    }
}

#[test]
fn what_mtools_wrote_is_read() {
    let Some(image) = mkfs(&["-F", "16"], 20 << 10) else { return };
    let mut random = Random::new(5);
    let mut files = BTreeMap::new();
    for (folder, name, len) in [
        ("", "SHORT.TXT", 10),
        ("", "A long name with blanks.text", 100_000),
        ("", "empty", 0),
        ("", "nt.low", 5),
        ("Folder", "Ünïcödé ñame.txt", 3000),
        ("Folder/deeper down", "x", 70_000),
    ] {
        let bytes = random.bytes(len);
        if !folder.is_empty() {
            image.mtools("mmd", &["-D", "s", &format!("::{folder}")]);
        }
        image.mcopy_in(&bytes, &format!("::{folder}/{name}"));
        let slash = if folder.is_empty() { "" } else { "/" };
        files.insert(format!("{slash}{folder}/{name}"), bytes);
    }
    image.check("by mtools");
    let tree = open(image.in_memory());
    assert!(read_all(&*tree) == files);
    let upper = find(&*tree, OsStr::new("/fOLDER/DEEPER down/X")).expect("case does not matter");
    assert_eq!(tree.attributes(upper).expect("attributes").size, 70_000);
    let by_alias = find(&*tree, OsStr::new("/ALONGN~1.TEX")).expect("aliases are names too");
    assert_eq!(tree.attributes(by_alias).expect("attributes").size, 100_000);
    let modified = tree.attributes(upper).expect("attributes").modified.expect("a time");
    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
    assert!(age < Duration::from_secs(36 * 3600), "{age:?}");
}

#[test]
fn what_others_wrote_to_exfat_is_read_and_changed() {
    let Some(image) = mkfs_exfat(SMALL, 20 << 10) else { return };
    let mut random = Random::new(6);
    let mut model = BTreeMap::new();
    for folder in ["", "/Folder", "/Folder/Ünïcödé", "/Folder/Ünïcödé/x"] {
        // Sets of three entries lie in two sectors here and there.
        model.extend((0..40).map(|i| (format!("{folder}/file {i}"), random.bytes(i * 300))));
        model.insert(format!("{folder}/{}", "long 🦀 ".repeat(30)), random.bytes(100_000));
    }
    let written = image.mounted(|root| {
        for (path, bytes) in &model {
            let path = root.join(&path[1..]);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("written");
        }
    });
    let Some(()) = written else { return };
    image.check("by others");
    let store = image.in_memory();
    let tree = open(store.clone());
    assert!(read_all(&*tree) == model);
    let node = |path: &str| find(&*tree, OsStr::new(path)).expect("it is there");
    let age =
        SystemTime::now().duration_since(tree.attributes(node("/FILE 7")).expect("there").modified.expect("a time"));
    assert!(age.as_ref().is_ok_and(|age| *age < Duration::from_secs(600)), "{age:?}");
    // New clusters are linked, and clusters that were cut off are free, for files of any program.
    for folder in ["", "/Folder", "/FOLDER/ünïcödé", "/Folder/Ünïcödé/x"] {
        let real = folder.replace("FOLDER/ünï", "Folder/Ünï");
        for i in 0..40 {
            let (file, name) = (node(&format!("{folder}/File {i}")), format!("{real}/file {i}"));
            let contents = model.get_mut(&name).expect("in the model");
            match i % 5 {
                0 => {
                    let more = random.bytes(3000);
                    tree.write_at(file, contents.len() as u64, &more).expect("room");
                    contents.extend(more);
                }
                1 => {
                    tree.set_len(file, contents.len() as u64 / 2).expect("cut");
                    contents.truncate(contents.len() / 2);
                }
                2 => {
                    tree.rename(
                        node(folder),
                        OsStr::new(&format!("file {i}")),
                        node("/"),
                        OsStr::new(&format!("{i}{}", real.len())),
                        Renaming::Keep,
                    )
                    .expect("moved");
                    let contents = model.remove(&name).expect("in the model");
                    model.insert(format!("/{i}{}", real.len()), contents);
                }
                3 => {
                    tree.remove(node(folder), OsStr::new(&format!("file {i}"))).expect("removed");
                    model.remove(&name);
                }
                _ => {
                    tree.set_len(file, contents.len() as u64 + 5000).expect("stretched");
                    tree.write_at(file, contents.len() as u64 + 2000, &[7; 1000]).expect("room");
                    contents.resize(contents.len() + 5000, 0);
                    let at = contents.len() - 3000;
                    contents[at..at + 1000].fill(7);
                }
            }
        }
    }
    tree.finish().expect("written");
    image.put(&store.to_vec());
    image.check("changed");
    let again = open(store.clone());
    assert!(read_all(&*again) == model);
    write_ends(&*again, &model);
    image.put(&store.to_vec());
    assert!(image.mounted(files_below).is_none_or(|others| others == model), "others read something else");
}

/// Where something is in an exFAT: the entries of its bitmap, of its up-case table and of a file, and the bitmap itself.
struct Places {
    bitmap: usize,
    upcase: usize,
    file: usize,
    bits: usize,
}

/// An exFAT of one table with room for a second, with a file of 3,000 bytes in it.
fn small_exfat() -> Option<(Vec<u8>, Places)> {
    let image = mkfs_exfat(&["-b", "64K", "-c", "512", "512"], 1440)?;
    let store = image.in_memory();
    let tree = open(store.clone());
    let file = tree.create(tree.root(), OsStr::new("file"), &NewNode::default()).expect("room");
    tree.write_at(file, 0, &[7; 3000]).expect("room");
    drop(tree);
    let bytes = store.to_vec();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let cluster = |cluster: usize| (number(88) + cluster - 2) * 512;
    let entry =
        |kind: u8| (cluster(number(96))..).step_by(32).find(|at| bytes[*at] == kind).expect("it is in the root");
    let (bitmap, upcase, file) = (entry(0x81), entry(0x82), entry(0x85));
    let bits = cluster(number(bitmap + 20));
    Some((bytes, Places { bitmap, upcase, file, bits }))
}

#[test]
fn an_exfat_that_is_not_whole_is_read_as_far_as_it_is_and_not_written() {
    let Some((image, places)) = small_exfat() else { return };
    type Change = fn(&mut Vec<u8>, &Places);
    let changes: &[(&str, bool, Change)] = &[
        ("their copy is used", false, |bytes, _| bytes[130] ^= 1),
        ("their copy is used", false, |bytes, _| bytes[108] = 10),
        ("failing medium", true, |bytes, _| bytes[106] |= 4),
        ("TexFAT", true, |bytes, _| bytes[110] = 2),
        ("allocation bitmap", true, |bytes, at| bytes[at.bitmap] = 1),
        ("allocation bitmap", true, |bytes, at| bytes[at.bitmap + 24..][..8].fill(0)),
        ("it marks itself as free", true, |bytes, at| bytes[at.bits] = 0),
        ("up-case table", true, |bytes, at| bytes[at.upcase + 4] ^= 1),
        ("an unknown kind", true, |bytes, at| bytes[at.file + 96] = 0x86),
    ];
    for (words, mend, change) in changes {
        let mut changed = image.clone();
        change(&mut changed, &places);
        if *mend {
            exfat::seal(&mut changed);
        }
        let store = Arc::new(MemoryStore::new(changed.clone()));
        let tree = open(store.clone());
        assert!(contents(&*tree, find(&*tree, OsStr::new("file")).expect("there")) == [7; 3000], "{words}");
        assert!(!tree.writable() && tree.warnings().concat().contains(words), "{words}: {:?}", tree.warnings());
        let refused = tree.create(tree.root(), OsStr::new("x"), &NewNode::default()).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        drop(tree);
        assert!(store.to_vec() == changed, "{words}: something was written");
    }
    let refusals: &[(&str, Change)] = &[
        ("checksum", |bytes, _| [130, 130 + 12 * 512].into_iter().for_each(|at| bytes[at] ^= 1)),
        ("version 2", |bytes, _| [105, 105 + 12 * 512].into_iter().for_each(|at| bytes[at] = 2)),
        ("root folder", |bytes, _| [99, 99 + 12 * 512].into_iter().for_each(|at| bytes[at] = 1)),
        ("number of clusters", |bytes, _| [95, 95 + 12 * 512].into_iter().for_each(|at| bytes[at] = 1)),
        ("sectors of a FAT", |bytes, _| [84, 84 + 12 * 512].into_iter().for_each(|at| bytes[at] = 1)),
        ("must-be-zero area", |bytes, _| [20, 20 + 12 * 512].into_iter().for_each(|at| bytes[at] = 1)),
    ];
    for (words, change) in refusals {
        let mut changed = image.clone();
        change(&mut changed, &places);
        if *words != "checksum" {
            exfat::seal(&mut changed);
        }
        let refused = filesystems::open(Arc::new(MemoryStore::new(changed))).err().expect("refused").to_string();
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

#[test]
fn a_damaged_file_of_exfat_shows_and_stays_as_it_is() {
    let Some((image, places)) = small_exfat() else { return };
    let bitmap: [u8; 4] = image[places.bitmap + 20..][..4].try_into().expect("four bytes");
    // Its size, without the checksum; the bitmap's cluster; more clusters that follow each other than there are.
    type Changes<'a> = &'a [(usize, &'a [u8])];
    let changes: [(&str, bool, Changes<'_>); 3] = [
        ("the checksum of its entries", false, &[(56, &[1])]),
        ("belongs to the file system itself", true, &[(33, &[3]), (52, &bitmap)]),
        ("clusters from cluster", true, &[(33, &[3]), (63, &[0x20])]),
    ];
    for (words, seal, changes) in changes {
        let mut image = image.clone();
        for (at, bytes) in changes {
            image[places.file + at..][..bytes.len()].copy_from_slice(bytes);
        }
        if seal {
            exfat::seal(&mut image);
        }
        let tree = open(Arc::new(MemoryStore::new(image)));
        let (root, name) = (tree.root(), OsStr::new("FILE"));
        let file = tree.lookup(root, name).expect("it has a name");
        tree.create(root, OsStr::new("other"), &NewNode::default()).expect("others can be made");
        let refusals = [
            tree.read_at(file, 0, &mut [0]).map(drop),
            tree.write_at(file, 0, b"x"),
            tree.set_len(file, 0),
            tree.remove(root, name),
            tree.rename(root, OsStr::new("other"), root, name, Renaming::Replace),
        ];
        // Its entries must not get a checksum that makes them look whole.
        let of_entries = [
            tree.set_times(file, Some(SystemTime::now()), None),
            tree.rename(root, name, root, OsStr::new("new"), Renaming::Replace),
        ];
        for refused in refusals.into_iter().chain(of_entries.into_iter().filter(|_| !seal)) {
            let refused = refused.expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
            assert!(refused.to_string().contains(words), "{words}: {refused}");
        }
        assert_eq!(tree.list(root).expect("listed").len(), 2);
    }
}

#[test]
fn what_was_never_written_of_a_file_is_zeros() {
    let Some((image, _)) = small_exfat() else { return };
    let store = Arc::new(MemoryStore::new(image));
    let tree = open(store.clone());
    // Free clusters hold what removed files left.
    let old = tree.create(tree.root(), OsStr::new("old"), &NewNode::default()).expect("room");
    tree.write_at(old, 0, &[0xee; 200_000]).expect("room");
    tree.remove(tree.root(), OsStr::new("old")).expect("removed");
    tree.flush().expect("written");
    let file = tree.lookup(tree.root(), OsStr::new("file")).expect("there");
    let before = store.to_vec();
    tree.set_len(file, 150_000).expect("room");
    assert!(store.to_vec() == before, "nothing has to be written for that");
    let mut model = vec![0; 150_000];
    model[..3000].fill(7);
    assert!(contents(&*tree, file) == model);
    tree.write_at(file, 100_000, &[9; 10]).expect("room");
    model[100_000..100_010].fill(9);
    assert!(contents(&*tree, file) == model);
    tree.set_len(file, 120_000).expect("cut");
    tree.set_len(file, 50_000).expect("cut");
    tree.set_len(file, 60_000).expect("stretched");
    model.resize(50_000, 0);
    model.resize(60_000, 0);
    tree.finish().expect("written");
    assert!(read_all(&*open(store))["/file"] == model);
}

#[test]
fn a_full_file_system_says_so_and_loses_nothing() {
    let both: [(Make, &[&str]); 3] =
        [(mkfs, &["-F", "12", "-s", "2"]), (mkfs, &["-F", "32", "-s", "1"]), (mkfs_exfat, SMALL)];
    for (make, args) in both {
        let Some(image) = make(args, 1440) else { continue };
        let store = image.in_memory();
        let tree = open(store.clone());
        let free = tree.space().expect("it is counted").free;
        let file = tree.create(tree.root(), OsStr::new("kept"), &NewNode::default()).expect("room");
        tree.write_at(file, 0, b"before").expect("room");
        let too_much = tree.write_at(file, 3, &vec![7; free as usize]).expect_err("no room");
        assert_eq!(too_much.kind(), ErrorKind::StorageFull);
        assert_eq!(tree.set_len(file, free + 1).expect_err("no room").kind(), ErrorKind::StorageFull);
        assert_eq!(read_all(&*tree)["/kept"], b"before");
        let all = tree.space().expect("it is counted").free;
        let rest = tree.create(tree.root(), OsStr::new("rest"), &NewNode::default()).expect("room for a name");
        tree.write_at(rest, 0, &vec![9; all as usize]).expect("exactly that much fits");
        assert_eq!(tree.space().expect("it is counted").free, 0);
        assert_eq!(
            tree.make_folder(tree.root(), OsStr::new("no"), &NewNode::default()).expect_err("no room").kind(),
            ErrorKind::StorageFull
        );
        // The space of a removed file can be used at once.
        tree.remove(tree.root(), OsStr::new("rest")).expect("removed");
        let again = tree.create(tree.root(), OsStr::new("again"), &NewNode::default()).expect("room for a name");
        tree.write_at(again, 0, &vec![5; all as usize]).expect("there is room again");
        tree.finish().expect("written");
        image.put(&store.to_vec());
        image.check(&format!("{args:?}"));
    }
}

#[test]
fn a_folder_grows_to_its_limit_and_the_root_of_fat16_does_not() {
    let Some(image) = mkfs(&["-F", "16", "-s", "4", "-r", "64"], 20 << 10) else { return };
    let store = image.in_memory();
    let tree = open(store.clone());
    let names = (0..).map(|i| format!("A{i}"));
    let filled = names.map_while(|n| tree.create(tree.root(), OsStr::new(&n), &NewNode::default()).ok()).count();
    assert_eq!(filled, 64);
    tree.remove(tree.root(), OsStr::new("A7")).expect("removed");
    let folder = tree.make_folder(tree.root(), OsStr::new("BIG"), &NewNode::default()).expect("one place is free");
    // Twenty parts of a name and the entry: 3,120 of them leave 14 of 65,536 entries, less the two of the folder itself.
    let long = |i: usize| format!("{i:04}{}", "n".repeat(251));
    for i in 0..3120 {
        tree.create(folder, OsStr::new(&long(i)), &NewNode::default()).unwrap_or_else(|e| panic!("{i}: {e}"));
    }
    let full = tree.create(folder, OsStr::new(&long(3120)), &NewNode::default()).expect_err("65,536 entries are there");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    tree.finish().expect("written");
    image.put(&store.to_vec());
    image.check("a large folder");
}

#[test]
fn a_removed_file_lives_while_it_is_held() {
    for (make, args, _, _) in ALIKE {
        let Some(image) = make(args, 20 << 10) else { continue };
        let store = image.in_memory();
        let tree = open(store.clone());
        let free = tree.space().expect("it is counted").free;
        let folder = tree.make_folder(tree.root(), OsStr::new("folder"), &NewNode::default()).expect("room");
        let file = tree.create(folder, OsStr::new("gone"), &NewNode::default()).expect("room");
        tree.write_at(file, 0, &[3; 50_000]).expect("room");
        tree.open(file, Use { read: true, write: true }).expect("it opens");
        tree.remove(folder, OsStr::new("gone")).expect("removed");
        tree.remove(tree.root(), OsStr::new("folder")).expect("removed");
        tree.flush().expect("written");
        let other = tree.create(tree.root(), OsStr::new("other"), &NewNode::default()).expect("room");
        tree.write_at(other, 0, &[4; 50_000]).expect("room");
        tree.write_at(file, 50_000, &[5; 50_000]).expect("it can still be written");
        let mut bytes = vec![0; 100_000];
        assert_eq!(tree.read_at(file, 0, &mut bytes).expect("it can still be read"), 100_000);
        assert!(bytes[..50_000].iter().all(|b| *b == 3) && bytes[50_000..].iter().all(|b| *b == 5));
        tree.release(file).expect("released");
        tree.remove(tree.root(), OsStr::new("other")).expect("removed");
        tree.finish().expect("written");
        assert_eq!(tree.space().expect("it is counted").free, free);
        image.put(&store.to_vec());
        image.check("held");
    }
}

#[test]
fn names_times_and_kinds_are_minded() {
    for (make, args, _, _) in ALIKE {
        let Some(image) = make(args, 20 << 10) else { continue };
        let store = image.in_memory();
        let tree = open(store.clone());
        let (root, name) = (tree.root(), OsStr::new);
        let folder = tree.make_folder(root, name("Folder"), &NewNode::default()).expect("room");
        let inner = tree.make_folder(folder, name("inner"), &NewNode::default()).expect("room");
        let file = tree.create(root, name("File"), &NewNode::default()).expect("room");
        let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
        assert_eq!(kind(tree.create(root, name("fILE"), &NewNode::default()).map(drop)), ErrorKind::AlreadyExists);
        assert_eq!(kind(tree.create(root, name("a:b"), &NewNode::default()).map(drop)), ErrorKind::InvalidFilename);
        assert_eq!(kind(tree.create(file, name("x"), &NewNode::default()).map(drop)), ErrorKind::NotADirectory);
        assert_eq!(kind(tree.write_at(folder, 0, b"x")), ErrorKind::IsADirectory);
        let far = kind(tree.write_at(file, u64::from(u32::MAX), b"x"));
        assert_eq!(far, if *args == SMALL { ErrorKind::StorageFull } else { ErrorKind::FileTooLarge });
        assert_eq!(kind(tree.remove(root, name("folder"))), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(tree.remove(root, name("none"))), ErrorKind::NotFound);
        assert_eq!(
            kind(tree.rename(root, name("folder"), inner, name("x"), Renaming::Replace)),
            ErrorKind::InvalidInput
        );
        assert_eq!(
            kind(tree.rename(root, name("file"), root, name("folder"), Renaming::Replace)),
            ErrorKind::IsADirectory
        );
        assert_eq!(
            kind(tree.rename(root, name("folder"), root, name("file"), Renaming::Replace)),
            ErrorKind::NotADirectory
        );
        assert_eq!(
            kind(tree.rename(root, name("file"), root, name("folder"), Renaming::Keep)),
            ErrorKind::AlreadyExists
        );
        // Another case is another name of the same file.
        tree.rename(root, name("File"), root, name("FILE"), Renaming::Replace).expect("renamed");
        assert_eq!(tree.lookup(root, name("file")).expect("there"), file);
        let names: Vec<_> = tree.list(root).expect("listed").into_iter().map(|e| (e.name, e.kind)).collect();
        assert_eq!(names, [("Folder".into(), NodeKind::Folder), ("FILE".into(), NodeKind::File)]);
        // A folder that moves knows where it is.
        tree.rename(folder, name("inner"), root, name("moved"), Renaming::Keep).expect("moved");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_328_612_944);
        tree.set_times(file, Some(time), None).expect("set");
        assert_eq!(tree.attributes(file).expect("attributes").modified, Some(time));
        tree.finish().expect("written");
        image.put(&store.to_vec());
        image.check("names");
    }
}

#[test]
fn the_mark_of_being_in_use_comes_before_the_first_change_and_goes_after_the_last() {
    for (make, args, state, bit) in ALIKE {
        let Some(image) = make(args, 40 << 10) else { continue };
        let store = image.in_memory();
        let before = store.to_vec();
        let tree = open(store.clone());
        read_all(&*tree);
        tree.finish().expect("nothing to do");
        assert!(store.to_vec() == before, "reading changed something");
        let file = tree.create(tree.root(), OsStr::new("x"), &NewNode::default()).expect("room");
        assert_eq!(store.to_vec()[*state] & bit, *bit);
        tree.flush().expect("written");
        assert_eq!(store.to_vec()[*state] & bit, *bit);
        // Opening it now gives an error.
        let copy = Arc::new(MemoryStore::new(store.to_vec()));
        let other = open(copy.clone());
        assert_eq!(other.warnings().len(), 1);
        other.create(other.root(), OsStr::new("y"), &NewNode::default()).expect("room");
        other.finish().expect("written");
        assert_eq!(copy.to_vec()[*state] & bit, *bit, "a mark of somebody else stays");
        tree.finish().expect("written");
        assert_eq!(store.to_vec()[*state] & bit, 0);
        tree.write_at(file, 0, b"x").expect("changes are possible after it");
        assert_eq!(store.to_vec()[*state] & bit, *bit);
        drop(tree);
        assert_eq!(store.to_vec()[*state] & bit, 0);
        image.put(&store.to_vec());
        image.check("marks");
    }
}

#[test]
fn what_was_lost_is_told_to_everybody_who_asks_later() {
    let operations = [Operation::Write, Operation::Flush];
    for (operation, (make, args, state, bit)) in operations.iter().flat_map(|o| ALIKE.iter().map(move |row| (*o, row)))
    {
        let Some(image) = make(args, 20 << 10) else { continue };
        // How many there are before the changes are made durable.
        let counted = Arc::new(FaultStore::new(image.in_memory(), None));
        let make = |store: Arc<FaultStore>| {
            let tree = open(store);
            let file = tree.create(tree.root(), OsStr::new("x"), &NewNode::default()).expect("room");
            tree.write_at(file, 0, b"precious").expect("room");
            (tree, file)
        };
        let (tree, _) = make(Arc::clone(&counted));
        let nth = counted.count(operation);
        drop(tree);
        let disk = image.in_memory();
        let fault = Fault { operation, nth, for_good: false, transferred: 0 };
        let (tree, file) = make(Arc::new(FaultStore::new(disk.clone(), Some(fault))));
        let first = tree.flush().expect_err("it is planted");
        assert!(first.to_string().contains("planted"), "{first}");
        // The disk works again, but the write is lost, so later calls must fail.
        for later in [tree.flush(), tree.flush(), tree.finish(), tree.write_at(file, 0, b"more")] {
            let later = later.expect_err("something was lost");
            assert!(later.to_string().contains("planted"), "{later}");
        }
        drop(tree);
        assert_eq!(disk.to_vec()[*state] & bit, *bit, "it stays marked as in use: a check is due");
    }
}

#[test]
fn nothing_is_written_where_nothing_may_be() {
    for (make, args, _, _) in ALIKE {
        let Some(image) = make(args, 20 << 10) else { continue };
        let bytes = image.bytes();
        let cut = Arc::new(MemoryStore::new(bytes[..bytes.len() / 2].to_vec()));
        let tree = open(cut.clone());
        assert!(!tree.writable() && tree.warnings().len() == 1);
        let refused = tree.create(tree.root(), OsStr::new("x"), &NewNode::default()).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        drop(tree);
        assert!(cut.to_vec() == bytes[..cut.len() as usize]);
    }
}

#[test]
fn the_part_of_a_folder_before_the_end_of_a_cut_store_is_there() {
    for (make, args, _, _) in ALIKE {
        let Some(image) = make(args, 20 << 10) else { continue };
        let (store, name) = (image.in_memory(), OsStr::new::<str>);
        let tree = open(store.clone());
        let folder = tree.make_folder(tree.root(), name("folder"), &NewNode::default()).expect("made");
        let add = |file: &str, len: usize| {
            let node = tree.create(folder, name(file), &NewNode::default()).expect("made");
            tree.write_at(node, 0, &vec![7; len]).expect("written");
        };
        add("early", 3000);
        add("big", 4 << 20);
        // The folder grows behind the big file.
        (0..300).for_each(|i| add(&format!("late {i}"), 10));
        tree.finish().expect("written");
        drop(tree);
        let bytes = store.to_vec();
        let early = bytes.chunks(512).position(|sector| sector.iter().all(|byte| *byte == 7)).expect("its contents");
        let tree = open(Arc::new(MemoryStore::new(bytes[..early * 512 + (2 << 20)].to_vec())));
        let folder = tree.lookup(tree.root(), name("folder")).expect("there");
        let listing = tree.list_all(folder).expect("in part");
        let names: Vec<_> = listing.entries.iter().map(|entry| entry.name.clone()).collect();
        assert!(names.contains(&"early".into()) && names.len() < 302, "{names:?}");
        let [rest] = &listing.left_out[..] else { panic!("{:?}", listing.left_out) };
        assert!(rest.name.is_empty() && rest.why.to_string().contains("past the end of the volume"), "{rest:?}");
        assert_eq!(tree.list(folder).expect_err("not all").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(tree.lookup(folder, name("late 299")).expect_err("unknown").kind(), ErrorKind::UnexpectedEof);
        let mut read = vec![0; 3000];
        let early = tree.lookup(folder, name("early")).expect("there");
        assert_eq!(tree.read_at(early, 0, &mut read).expect("its contents"), 3000);
        assert!(read == [7; 3000]);
        let big = tree.lookup(folder, name("big")).expect("there");
        let cut = tree.read_at(big, 3 << 20, &mut read).expect_err("not there");
        assert!(cut.to_string().contains("past the end of the volume"), "{cut}");
    }
}

#[test]
fn a_crash_at_any_write_leaves_lost_clusters_at_worst() {
    crashes(Depth { exhaustive: 6, sampled: 10, seed: 1 });
}

/// An exFAT in which the entries of `folder` lie in two sectors, and what it is.
fn with_entries_in_two_sectors() -> Option<(Image, Vec<u8>)> {
    let image = mkfs_exfat(&["-b", "512", "-c", "1K", "512"], 1440)?;
    let (store, name) = (image.in_memory(), OsStr::new::<str>);
    let tree = open(store.clone());
    for i in 0..4 {
        tree.create(tree.root(), name(&format!("file {i}")), &NewNode::default()).expect("room");
    }
    let folder = tree.make_folder(tree.root(), name("folder"), &NewNode::default()).expect("room");
    let inner = tree.create(folder, name("inner"), &NewNode::default()).expect("room");
    tree.write_at(inner, 0, &[1; 3000]).expect("room");
    drop(tree);
    // Behind three entries of the volume and four files of three entries each, the last of the sector is left out.
    let mut bytes = store.to_vec();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let end = number(88) * 512 + (number(96) - 2) * 1024 + 512;
    assert_eq!([bytes[end - 32], bytes[end], bytes[end + 32], bytes[end + 64]], [0x05, 0x85, 0xc0, 0xc1]);
    bytes.copy_within(end..end + 96, end - 32);
    bytes[end + 64..end + 96].fill(0);
    image.put(&bytes);
    image.check("in two sectors");
    Some((image, bytes))
}

#[test]
fn entries_that_others_put_in_two_sectors_change_as_one() {
    let Some((image, bytes)) = with_entries_in_two_sectors() else { return };
    let name = OsStr::new::<str>;
    let store = Arc::new(CrashStore::new(bytes));
    let tree = open(store.clone());
    store.settle();
    let folder = tree.lookup(tree.root(), name("folder")).expect("there");
    tree.write_at(tree.lookup(folder, name("inner")).expect("there"), 3000, &[2; 3000]).expect("room");
    tree.set_times(folder, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30)), None).expect("set");
    tree.create(folder, name("new"), &NewNode::default()).expect("room");
    tree.finish().expect("written");
    let grown = [[1; 3000], [2; 3000]].concat();
    let mut crashes = 0;
    store.each_crash(Depth { exhaustive: 10, sampled: 20, seed: 1 }, |crashed| {
        crashes += 1;
        let again = open(Arc::new(MemoryStore::new(crashed.to_vec())));
        let inner = contents(&*again, find(&*again, name("folder/inner")).expect("it is there"));
        assert!(inner == [1; 3000] || inner == grown, "lost at {crashes}");
    });
    assert!(crashes > 20, "{crashes}");
    let mut last = vec![0; store.len() as usize];
    store.read_at(0, &mut last).expect("it is there");
    image.put(&last);
    image.check("after all of it");
    assert!(read_all(&*open(image.in_memory()))["/folder/inner"] == grown);
}

#[test]
fn a_crash_in_a_rename_of_entries_in_two_sectors_leaves_one_name() {
    let Some((_, bytes)) = with_entries_in_two_sectors() else { return };
    let (store, name) = (Arc::new(CrashStore::new(bytes)), OsStr::new::<str>);
    let tree = open(store.clone());
    store.settle();
    tree.rename(tree.root(), name("folder"), tree.root(), name("moved"), Renaming::Keep).expect("moved");
    tree.finish().expect("written");
    let mut crashes = 0;
    store.each_crash(Depth { exhaustive: 10, sampled: 20, seed: 1 }, |crashed| {
        crashes += 1;
        let again = open(Arc::new(MemoryStore::new(crashed.to_vec())));
        assert!(again.writable(), "{crashes}: {:?}", again.warnings());
        let names: Vec<_> =
            ["folder", "moved"].into_iter().filter(|there| again.lookup(again.root(), name(there)).is_ok()).collect();
        assert_eq!(names.len(), 1, "{crashes}: {names:?}");
        let inner = find(&*again, name(&format!("{}/inner", names[0]))).expect("it is there");
        assert!(contents(&*again, inner) == [1; 3000], "{crashes}");
    });
    assert!(crashes > 5, "{crashes}");
}

/// Fails if a checker finds more than lost clusters after a crash and later writes: above all, two names on the same clusters.
fn judge(said: &str) {
    assert!(!said.contains("share clusters") && !said.contains("already allocated"), "{said}");
    // fsck.exfat: clusters after the end of a file are lost.
    for line in said.lines().filter(|line| line.contains("ERROR")) {
        assert!(line.contains("more clusters are allocated"), "{said}");
    }
}

/// Fails if a change of the file at `path` changes another. `what` is the change.
fn only_that_changes(crashed: &[u8], path: &str, what: usize, when: &str) {
    let store = Arc::new(MemoryStore::new(crashed.to_vec()));
    let tree = open(store.clone());
    let mut before = read_all(&*tree);
    let (folder, name) = path.rsplit_once('/').expect("a path");
    let folder = find(&*tree, OsStr::new(folder)).expect("it is there");
    let file = tree.lookup(folder, OsStr::new(name)).expect("it is there");
    let len = before.remove(path).expect("it is there").len();
    let done = match what % 4 {
        0 => tree.remove(folder, OsStr::new(name)),
        1 => tree.set_len(file, len as u64 / 3),
        2 => tree.set_len(file, 0).and_then(|()| tree.write_at(file, 0, &vec![0xdd; len])),
        _ => tree.write_at(file, 0, &vec![0xdd; len + 700]),
    };
    done.unwrap_or_else(|e| panic!("{when}: {path}: {e}"));
    tree.flush().expect("written");
    // Another file overwrites the clusters that became free.
    let filler = tree.create(tree.root(), OsStr::new("filler"), &NewNode::default()).expect("room");
    let free = tree.space().expect("counted").free as usize;
    tree.write_at(filler, 0, &vec![0xff; free]).expect("as much as is free");
    tree.finish().expect("written");
    let mut after = read_all(&*open(store));
    after.remove("/filler");
    after.remove(path);
    assert!(after == before, "{when}: a change ({what}) of {path} changed another file");
}

/// Looks at what crashes leave of changes in a folder, and says at how many.
pub fn crashes(depth: Depth) -> usize {
    let mut crashes = 0usize;
    let kinds: [(Make, &[&str], u64); 4] = [
        (mkfs, &["-F", "12", "-s", "1"], 200),
        (mkfs, &["-F", "16", "-s", "1", "-f", "1"], 2300),
        (mkfs, &["-F", "32", "-s", "1"], 200),
        (mkfs_exfat, SMALL, 1 << 10),
    ];
    for (make, args, size) in kinds {
        let Some(image) = make(args, size) else { continue };
        let store = Arc::new(CrashStore::new(image.bytes()));
        let model = changes_of_a_folder(&store);
        store.each_crash(depth, |crashed| {
            crashes += 1;
            let when = format!("{args:?}, crash {crashes}");
            // Everything that has a name can be read to its end: no cluster is free, or missing, that a name needs.
            let store = Arc::new(MemoryStore::new(crashed.to_vec()));
            let again = open(store.clone());
            assert!(again.writable(), "{when}: {:?}", again.warnings());
            let files = read_all(&*again);
            model.judge(&files, &when);
            drop(again);
            assert!(store.to_vec() == crashed, "{when}: reading changed something");
            // Without a check in between, a change of one name affects no other file.
            let moved = files.keys().filter(|path| model.renamed(path)).nth(crashes % 3);
            for path in moved.into_iter().chain(files.keys().nth(crashes % files.len())) {
                only_that_changes(crashed, path, crashes / 3, &when);
            }
            if crashes.is_multiple_of(20) {
                let mended = open(store.clone());
                mended.create(mended.root(), OsStr::new("x"), &NewNode::default()).expect("room");
                mended.finish().expect("written");
                image.put(&store.to_vec());
                judge(&image.fsck().1);
            }
        });
        let mut last = vec![0; store.len() as usize];
        store.read_at(0, &mut last).expect("it is there");
        image.put(&last);
        image.check("after all of it");
    }
    crashes
}

/// Contents that the files may have after an interruption of [`changes_of_a_folder`].
struct Interrupted {
    kept: Vec<u8>,
    old: Vec<u8>,
    new: Vec<u8>,
}

const LONG: &str = "a name that is long enough for parts";
const GROWS: &str = "grows in pieces";
const SHRINKS: &str = "shrinks";
const SAVED: &str = "a document that is saved anew, with a name of several parts";

impl Interrupted {
    /// Whether it is one of the names that are renamed, or one that they become.
    fn renamed(&self, path: &str) -> bool {
        ["oved", LONG, SAVED, "temporary", "very_long", "number 5 of many", "number 6 of many"]
            .iter()
            .any(|name| path.ends_with(name))
    }

    fn judge(&self, files: &BTreeMap<String, Vec<u8>>, when: &str) {
        let of = |name: &str| files.iter().filter(|(path, _)| path.ends_with(name)).map(|(_, c)| c).collect::<Vec<_>>();
        // It has one name, not none and not two.
        let names: Vec<_> = files.iter().filter(|(path, c)| **c == self.kept && !path.ends_with(SHRINKS)).collect();
        assert!(names.len() == 1, "{when}: {} names", names.len());
        // A document is the old or the new one, and never missing.
        let saved = of(SAVED);
        assert!(saved == [&self.old] || saved == [&self.new], "{when}: the document");
        assert!(of("temporary").iter().all(|c| c.is_empty() || saved != [&self.new]), "{when}: two names");
        // The durable part of a file that grows stays, and so does the remaining part of one that shrinks.
        let grown = of(GROWS);
        assert!(grown.len() == 1 && grown[0].starts_with(&self.kept[..700]), "{when}: it grew");
        assert!(grown[0].iter().zip(self.kept.iter().cycle()).all(|(a, b)| a == b), "{when}: it grew");
        let shrunk = of(SHRINKS);
        assert!(shrunk.len() == 1 && self.kept.starts_with(shrunk[0]) && shrunk[0].len() >= 600, "{when}: it shrank");
        for (path, contents) in files {
            let (_, number) = path.rsplit_once("number ").unwrap_or(("", ""));
            let number = number.split(' ').next().and_then(|n| n.parse::<u8>().ok());
            // Number 6 was replaced by number 5.
            let right = |byte: u8| Some(byte) == number || (number == Some(6) && byte == 5);
            assert!(number.is_none() || contents.iter().all(|b| right(*b)), "{when}: {path}");
        }
    }
}

/// A name whose entries are more than a sector holds.
fn very_long() -> String {
    "very_long".repeat(28)
}

/// Changes of many kinds, interrupted anywhere.
fn changes_of_a_folder(store: &Arc<CrashStore>) -> Interrupted {
    let tree = open(store.clone());
    let (root, name) = (tree.root(), OsStr::new);
    let made = |folder, file: &str, bytes: &[u8]| {
        let node = tree.create(folder, name(file), &NewNode::default()).expect("room");
        tree.write_at(node, 0, bytes).expect("room");
        node
    };
    let kept: Vec<u8> = (0..9000).map(|i| (i % 251) as u8).collect();
    let (old, new) = (vec![0xaa; 3000], vec![0xbb; 5000]);
    let names = Interrupted { kept: kept.clone(), old, new };
    made(root, LONG, &kept);
    let grows = made(root, GROWS, &kept[..700]);
    let shrinks = made(root, SHRINKS, &kept);
    let papers = tree.make_folder(root, name("papers"), &NewNode::default()).expect("room");
    made(papers, SAVED, &names.old);
    tree.flush().expect("written");
    store.settle();
    let folder = tree.make_folder(root, name("folder"), &NewNode::default()).expect("room");
    for i in 0..20 {
        made(folder, &format!("number {i} of many"), &vec![i; 400 * usize::from(i)]);
    }
    tree.write_at(grows, 700, &kept[700..5000]).expect("room");
    tree.flush().expect("written");
    tree.set_len(tree.lookup(folder, name("number 19 of many")).expect("there"), 1500).expect("cut");
    tree.remove(folder, name("number 18 of many")).expect("removed");
    made(folder, "in its place", &[0xee; 9000]);
    tree.rename(root, name(LONG), folder, name("moved"), Renaming::Keep).expect("moved");
    tree.rename(folder, name("number 5 of many"), folder, name("number 6 of many"), Renaming::Replace)
        .expect("replaced");
    tree.set_len(shrinks, 4000).expect("cut");
    // As editors save: written under another name, which then replaces the old one, from another folder.
    made(root, "temporary", &names.new);
    tree.rename(root, name("temporary"), papers, name(SAVED), Renaming::Replace).expect("replaced");
    tree.set_len(shrinks, 600).expect("cut");
    // A folder that moves, and a name with another case; one that spans sectors wherever it is.
    tree.rename(root, name("papers"), folder, name("Papers"), Renaming::Keep).expect("moved");
    tree.rename(folder, name("moved"), folder, name("Moved"), Renaming::Replace).expect("renamed");
    tree.rename(folder, name("Moved"), folder, name(&very_long()), Renaming::Keep).expect("renamed");
    tree.rename(folder, name(&very_long()), folder, name("moved"), Renaming::Keep).expect("renamed");
    tree.finish().expect("written");
    names
}

/// Two names on the same clusters that do not say which is the old one, and what others may do to clusters: nothing is written, and the
/// names are said.
#[test]
fn names_that_share_clusters_are_read_and_not_written() {
    let mut images: Vec<(String, Vec<u8>, [&str; 2])> = Vec::new();
    if let Some(case) = tools::Case::unpack("fat/rename-killed-fat16.img.gz") {
        let bytes = std::fs::read(case.path()).expect("it is there");
        images.push(("renamed".into(), bytes, ["/file 15 with a long name and more", "/file 14 with a long name"]));
    }
    images.extend(crossed_fat());
    images.extend(crossed_exfat());
    for (what, image, names) in images {
        let store = Arc::new(MemoryStore::new(image.clone()));
        let tree = open(store.clone());
        let warnings = tree.warnings().concat();
        assert!(!tree.writable(), "{what}: {warnings}");
        assert!(warnings.contains("clusters") && warnings.contains("run fsck."), "{what}: {warnings}");
        for name in names {
            assert!(warnings.contains(&name[..20.min(name.len())]), "{what}: {name} is not named: {warnings}");
            let path = name.trim_start_matches('/');
            if let Ok(file) = find(&*tree, OsStr::new(path)) {
                let refused = tree.set_len(file, 0).expect_err("refused");
                assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem, "{what}");
                assert!(what.starts_with("runs into") || tree.read_at(file, 0, &mut [0; 10]).is_ok(), "{what}: {name}");
            }
        }
        drop(tree);
        assert!(store.to_vec() == image, "{what}: something was written");
    }
}

/// FAT32: two files, the second of which continues in the clusters of the first, and one with a cluster that is free.
fn crossed_fat() -> Vec<(String, Vec<u8>, [&'static str; 2])> {
    let Some(image) = mkfs(&["-F", "32", "-s", "1"], 40 << 10) else { return Vec::new() };
    let store = image.in_memory();
    let tree = open(store.clone());
    for name in ["ONE", "OTHER"] {
        let file = tree.create(tree.root(), OsStr::new(name), &NewNode::default()).expect("room");
        tree.write_at(file, 0, &[name.len() as u8; 3000]).expect("room");
    }
    drop(tree);
    let bytes = store.to_vec();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let table = usize::from(u16::from_le_bytes([bytes[14], bytes[15]])) * 512;
    let root = table + 2 * number(36) * 512;
    let first = |name: &[u8; 11]| {
        let at = (root..).step_by(32).find(|at| bytes[*at..].starts_with(name)).expect("it is in the root");
        usize::from(u16::from_le_bytes([bytes[at + 26], bytes[at + 27]]))
    };
    let (one, other) = (first(b"ONE        "), first(b"OTHER      "));
    let with = |cluster: usize, next: u32| {
        let mut changed = bytes.clone();
        for copy in [table, table + number(36) * 512] {
            changed[copy + 4 * cluster..][..4].copy_from_slice(&next.to_le_bytes());
        }
        changed
    };
    vec![
        ("joined".into(), with(other + 3, one as u32 + 2), ["/ONE", "/OTHER"]),
        ("runs into a free cluster".into(), with(other + 5, other as u32 + 50), ["/OTHER", "/OTHER"]),
    ]
}

/// exFAT: a file without links that begins amid another, and one whose clusters are free.
fn crossed_exfat() -> Vec<(String, Vec<u8>, [&'static str; 2])> {
    let Some((image, places)) = small_exfat() else { return Vec::new() };
    let store = Arc::new(MemoryStore::new(image));
    let tree = open(store.clone());
    let other = tree.create(tree.root(), OsStr::new("other"), &NewNode::default()).expect("room");
    tree.write_at(other, 0, &[9; 3000]).expect("room");
    drop(tree);
    let bytes = store.to_vec();
    let cluster = u32::from_le_bytes(bytes[places.file + 52..][..4].try_into().expect("four bytes"));
    let mut amid = bytes.clone();
    amid[places.file + 96 + 33] |= 2;
    amid[places.file + 96 + 52..][..4].copy_from_slice(&(cluster + 2).to_le_bytes());
    exfat::seal(&mut amid);
    let mut free = bytes;
    free[places.bits + (cluster as usize - 2) / 8] &= !(1 << ((cluster - 2) % 8));
    vec![("amid another".into(), amid, ["/file", "/other"]), ("marked free".into(), free, ["/file", "/file"])]
}

/// A name that is not shown because its entries are damaged still exists.
#[test]
fn a_folder_with_damaged_entries_is_neither_removed_nor_changed() {
    type Damage = fn(&mut [u8]);
    // Of the entries of a file with a name of two parts: FAT has the record last, exFAT first.
    let fat: &[(&str, Damage)] = &[
        ("a label with contents", |entries| entries[64 + 11] = 0x28),
        ("the name of the folder itself", |entries| entries[64..75].copy_from_slice(b".          ")),
        ("no name", |entries| entries[64..75].fill(b' ')),
        ("parts of a name without a file", |entries| entries[64] = 0xe5),
    ];
    let exfat: &[(&str, Damage)] = &[
        ("too few entries", |entries| entries[1] = 1),
        ("too many entries", |entries| entries[1] = 18),
        ("a stream that is none", |entries| entries[32] = 0xc1),
        ("no name", |entries| entries[35] = 0),
        ("a slash in the name", |entries| entries[66] = b'/'),
        ("a stream without a file", |entries| entries[0] = 0x05),
        ("of an unknown kind", |entries| entries[0] = 0x86),
    ];
    for (make, args, damages) in [(mkfs as Make, &["-F", "16"][..], fat), (mkfs_exfat, SMALL, exfat)] {
        let Some(image) = make(args, 20 << 10) else { continue };
        let store = image.in_memory();
        let (tree, name) = (open(store.clone()), OsStr::new::<str>);
        let folder = tree.make_folder(tree.root(), name("folder"), &NewNode::default()).expect("room");
        tree.make_folder(tree.root(), name("empty"), &NewNode::default()).expect("room");
        let file = tree.create(folder, name("the only file in it"), &NewNode::default()).expect("room");
        tree.write_at(file, 0, &[7; 3000]).expect("room");
        drop(tree);
        let bytes = store.to_vec();
        // The first parts of its name, as FAT and exFAT have them.
        let marks: [&[u8]; 2] = [&[0x42, b' ', 0, b'i', 0, b'n', 0], &[0x85, 3]];
        let mark = marks[usize::from(args == SMALL)];
        let at = (0..bytes.len()).step_by(32).find(|at| {
            bytes[*at..].starts_with(mark) && (args != SMALL || bytes[*at + 66..].starts_with(b"t\0h\0e\0"))
        });
        let at = at.expect("its entries");
        for (what, damage) in damages {
            let mut damaged = bytes.clone();
            damage(&mut damaged[at..at + 128]);
            let store = Arc::new(MemoryStore::new(damaged.clone()));
            let tree = open(store.clone());
            let (root, folder) = (tree.root(), find(&*tree, name("folder")).expect("it is there"));
            assert!(tree.list(folder).expect("listed").is_empty(), "{what}");
            let refused = tree.remove(root, name("folder")).expect_err("it is not empty");
            assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty, "{what}");
            assert!(refused.to_string().contains("run fsck."), "{what}: {refused}");
            tree.rename(root, name("empty"), root, name("folder"), Renaming::Replace).expect_err("it is not empty");
            let stray_names = what.starts_with("parts of a name");
            let made = tree.create(folder, name("new"), &NewNode::default());
            assert_eq!(made.is_ok(), stray_names, "{what}");
            if !stray_names {
                assert_eq!(made.expect_err("refused").kind(), ErrorKind::ReadOnlyFilesystem, "{what}");
                let warnings = tree.warnings().concat();
                assert!(warnings.contains("/folder has damaged entries"), "{what}: {warnings}");
                tree.create(root, name("elsewhere"), &NewNode::default()).expect("other folders are sound");
                tree.finish().expect("written");
                assert!(store.to_vec()[at..at + 128] == damaged[at..at + 128], "{what}: they stay as they are");
            }
        }
    }
}

#[test]
fn a_large_hole_is_filled_in_pieces_between_which_others_have_their_turn() {
    let kinds: [(Make, &[&str]); 2] = [(mkfs, &["-F", "32", "-s", "8"]), (mkfs_exfat, &["-c", "4K", "512"])];
    for (make, args) in kinds {
        let Some(image) = make(args, 64 << 10) else { continue };
        let store = image.in_memory();
        let (tree, name) = (open(store.clone()), OsStr::new::<str>);
        // Old data on the disk show where zeros are missing.
        let old = tree.create(tree.root(), name("old"), &NewNode::default()).expect("room");
        tree.write_at(old, 0, &vec![0xee; 50 << 20]).expect("room");
        tree.remove(tree.root(), name("old")).expect("removed");
        tree.flush().expect("written");
        let file = tree.create(tree.root(), name("file"), &NewNode::default()).expect("room");
        tree.write_at(file, 0, b"begin").expect("room");
        let (far, mut others) = (30 << 20, 0);
        while tree.fill(file, far, true).expect("room") {
            let other = tree.create(tree.root(), name(&format!("other {others}")), &NewNode::default()).expect("room");
            tree.write_at(other, 0, b"others").expect("room");
            others += 1;
        }
        assert!(others > 3, "{args:?}: {others}");
        tree.write_at(file, far, b"end").expect("room");
        let all = contents(&*tree, file);
        assert!(all.starts_with(b"begin") && all.ends_with(b"end"), "{args:?}");
        assert!(all[5..far as usize].iter().all(|byte| *byte == 0), "{args:?}");
        for end in [u64::MAX, u64::MAX - 1, 1 << 63] {
            assert!(tree.write_at(file, end, b"x").is_err() && tree.set_len(file, end).is_err(), "{args:?}: {end}");
        }
        assert!(contents(&*tree, file) == all, "{args:?}");
        // Where there is no room for all of it, nothing changes.
        let free = tree.space().expect("counted").free;
        let full = tree.write_at(file, far + (60 << 20), b"end").expect_err("no room");
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let nearly = tree.write_at(file, far + free / 4096 * 4096, &[1; 9000]).expect_err("no room");
        assert_eq!(nearly.kind(), ErrorKind::StorageFull);
        assert!(contents(&*tree, file) == all, "{args:?}: it has changed");
        tree.set_len(file, far + (5 << 20)).expect("room");
        tree.finish().expect("written");
        assert!(read_all(&*open(store.clone()))["/file"][all.len()..].iter().all(|byte| *byte == 0), "{args:?}");
        image.put(&store.to_vec());
        image.check("filled");
    }
}

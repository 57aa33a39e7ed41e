//! NTFS and ext2, ext3, ext4, written by the programs of others and read by us byte for byte; and what hostile images do.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::support::fat::{contents, read_all};
use crate::support::ntfs::{Mounted, empty, ntfs_image};
use claviger_engine::filesystems::{self, Kind};
use claviger_engine::store::MemoryStore;
use claviger_engine::trees::{NewNode, Node, NodeKind, Tree, find};
use claviger_engine::{Error, ErrorKind as Blame};
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// Makes folders and files below `dir`: empty, small, large, with holes, many in one folder. What is in them.
fn fill(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut random = Random::new(11);
    let mut files = BTreeMap::new();
    let mut put = |path: &str, bytes: Vec<u8>| {
        let to = dir.join(&path[1..]);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::write(to, &bytes).expect("a file");
        files.insert(path.to_owned(), bytes);
    };
    put("/empty", Vec::new());
    put("/small.txt", b"a few bytes".to_vec());
    put("/Größe und 日本.bin", random.bytes(5000));
    put("/folder/large", random.bytes(3_000_001));
    put("/folder/deeper/deepest/x", random.bytes(70_000));
    for i in 0..700 {
        put(&format!("/many/a file with a longer name, number {i}"), vec![i as u8; i]);
    }
    // A hole in the middle.
    let sparse = dir.join("sparse");
    let file = File::create(&sparse).expect("a file");
    file.write_all_at(b"begin", 0).expect("written");
    file.write_all_at(b"end", 900_000).expect("written");
    files.insert("/sparse".into(), fs::read(&sparse).expect("a file"));
    files
}

fn in_memory(image: &Path) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(fs::read(image).expect("the image can be read")))
}

fn open(store: &Arc<MemoryStore>) -> (Kind, Box<dyn Tree>) {
    let (found, tree) = filesystems::open(store.clone()).unwrap_or_else(|e| panic!("{e}"));
    (found.kind, tree)
}

#[test]
fn ext_is_read_with_and_without_extents() {
    let Some(mke2fs) = tools::program("mke2fs") else { return };
    for (args, kind) in [
        (&["-t", "ext2", "-b", "1024"][..], Kind::Ext2),
        (&["-t", "ext3", "-b", "4096"], Kind::Ext3),
        (&["-t", "ext4", "-b", "1024"], Kind::Ext4),
        (&["-t", "ext4", "-O", "inline_data,^64bit"], Kind::Ext4),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let source = dir.path().join("source");
        fs::create_dir(&source).expect("a folder");
        let mut files = fill(&source);
        std::os::unix::fs::symlink("folder/large", source.join("link")).expect("a link");
        fs::set_permissions(source.join("small.txt"), fs::Permissions::from_mode(0o640)).expect("a mode");
        let image = empty(dir.path(), 24);
        tools::run(Command::new(&mke2fs).args(["-q", "-d"]).arg(&source).args(args).arg(&image));
        let store = in_memory(&image);
        let before = store.to_vec();
        let opened = filesystems::open(store.clone());
        if let Err(e) = &opened {
            // An unsupported feature is an error.
            assert!(
                args.contains(&"inline_data,^64bit") && matches!(e.kind, Blame::Unsupported { .. }),
                "{args:?}: {e}"
            );
            continue;
        }
        let (found, tree) = open(&store);
        assert_eq!(found, kind);
        let link = find(&*tree, OsStr::new("/link")).expect("the link is there");
        assert_eq!(tree.attributes(link).expect("attributes").kind, NodeKind::Link);
        assert_eq!(tree.link_target(link).expect("a target"), "folder/large");
        files.insert("/link".into(), Vec::new());
        if kind == Kind::Ext2 {
            // A hole so large that a block of block numbers is missing: said, not read wrongly.
            let sparse = find(&*tree, OsStr::new("/sparse")).expect("there");
            let refused = Error::from(tree.read_at(sparse, 0, &mut vec![0; 900_000]).expect_err("it is not read"));
            assert!(matches!(refused.kind, Blame::Unsupported { .. }), "{refused}");
            files.remove("/sparse");
        }
        assert!(read_all_but_links(&*tree, kind != Kind::Ext2) == files, "{args:?}: something else is read");
        let small = find(&*tree, OsStr::new("/small.txt")).expect("there");
        let (ours, theirs) = (tree.attributes(small).expect("attributes"), fs::metadata(source.join("small.txt")));
        let theirs = theirs.expect("metadata");
        assert_eq!((ours.mode, ours.owner), (Some(0o640), Some((theirs.uid(), theirs.gid()))));
        let seconds = ours.modified.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok()).expect("a time");
        assert_eq!(seconds.as_secs() as i64, theirs.mtime());
        assert!(!tree.writable());
        let refused = tree.create(tree.root(), OsStr::new("x"), &NewNode::default()).expect_err("it is only read");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(tree.lookup(tree.root(), OsStr::new("none")).expect_err("none").kind(), ErrorKind::NotFound);
        assert_eq!(tree.lookup(link, OsStr::new("x")).expect_err("a link").kind(), ErrorKind::NotADirectory);
        // From the middle, across blocks.
        let large = find(&*tree, OsStr::new("/folder/large")).expect("there");
        let mut bytes = vec![0; 100_000];
        assert_eq!(tree.read_at(large, 1_234_567, &mut bytes).expect("read"), bytes.len());
        assert!(bytes == files["/folder/large"][1_234_567..][..100_000]);
        assert!(store.to_vec() == before);
        drop((opened, tree));
        assert_eq!(Arc::strong_count(&store), 1, "its thread still has the store");
    }
}

/// Like `read_all`; links count as empty.
fn read_all_but_links(tree: &dyn Tree, files_with_holes: bool) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    walk(tree, tree.root(), String::new(), 0, &mut |path, node, kind| {
        if path == "/sparse" && !files_with_holes {
            return;
        }
        let bytes = if kind == NodeKind::File { contents(tree, node) } else { Vec::new() };
        files.insert(path.to_owned(), bytes);
    })
    .expect("all can be listed");
    files.retain(|path, _| path != "/lost+found");
    files
}

/// Calls `each` with all that is no folder.
fn walk(
    tree: &dyn Tree,
    folder: Node,
    path: String,
    depth: usize,
    each: &mut dyn FnMut(&str, Node, NodeKind),
) -> std::io::Result<()> {
    for entry in tree.list(folder)? {
        let path = format!("{path}/{}", entry.name.display());
        match entry.kind {
            NodeKind::Folder if depth < 8 => walk(tree, entry.node, path, depth + 1, each)?,
            NodeKind::Folder => {}
            kind => each(&path, entry.node, kind),
        }
    }
    Ok(())
}

#[test]
fn ntfs_is_read_as_ntfs_3g_wrote_it() {
    for cluster in ["512", "1024", "4096"] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Some(image) = ntfs_image(dir.path(), 24, &["-c", cluster]) else { return };
        let Some(mounted) = Mounted::ntfs(&image, "compression") else { return };
        let files = fill(mounted.path());
        mounted.end(&image);
        let store = in_memory(&image);
        let before = store.to_vec();
        let (kind, tree) = open(&store);
        assert_eq!(kind, Kind::Ntfs);
        assert!(read_all(&*tree) == files, "clusters of {cluster}: something else is read");
        let any_case = find(&*tree, OsStr::new("/FOLDER/Deeper/DEEPEST/X")).expect("case does not matter");
        assert_eq!(tree.attributes(any_case).expect("attributes").size, 70_000);
        let age = tree.attributes(any_case).expect("attributes").modified.and_then(|t| t.elapsed().ok());
        assert!(age.is_some_and(|a| a < Duration::from_secs(3600)));
        let refused = tree.remove(tree.root(), OsStr::new("empty")).expect_err("it is only read");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        assert!(tree.warnings().is_empty() && store.to_vec() == before);
    }
}

#[test]
fn a_large_folder_of_large_clusters_is_refused_and_a_small_one_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 48, &["-c", "65536"]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "noatime") else { return };
    fill(mounted.path());
    mounted.end(&image);
    let (_, tree) = open(&in_memory(&image));
    let small = find(&*tree, OsStr::new("/folder/deeper/deepest/x")).expect("there");
    assert_eq!(contents(&*tree, small).len(), 70_000);
    let many = find(&*tree, OsStr::new("/many")).expect("there");
    let error = Error::from(tree.list(many).expect_err("it is refused"));
    assert!(matches!(error.kind, Blame::Unsupported { .. }), "{error}");
}

/// Files whose compression meets each border: of a chunk, of a unit, of what can be compressed at all.
fn fill_compressible(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut random = Random::new(12);
    let mut files = BTreeMap::new();
    let text = b"the same again and again, but for the number ".repeat(6000);
    for len in [1, 100, 511, 2000, 4095, 4096, 4097, 8192, 65_535, 65_536, 65_537, 131_072, 200_001] {
        files.insert(format!("/packed/text {len}"), text[..len].to_vec());
        files.insert(format!("/packed/noise {len}"), random.bytes(len));
        let words = (0..len).map(|i| if i % 7 < 3 { random.below(4) as u8 } else { (i / 300) as u8 });
        files.insert(format!("/packed/words {len}"), words.collect());
        // Units that are all there, half there and not there.
        let mixed = (0..len).map(|i| if i / 65_536 % 2 == 0 { random.below(256) as u8 } else { 0 });
        files.insert(format!("/packed/mixed {len}"), mixed.collect());
    }
    for (path, bytes) in &files {
        let mut file = File::create(dir.join(&path[1..])).expect("a file");
        // In pieces, as programs write, so that units fill up gradually.
        bytes.chunks(10_000).for_each(|piece| file.write_all(piece).expect("room"));
    }
    let sparse = File::create(dir.join("packed/sparse")).expect("a file");
    sparse.write_all_at(&text[..5000], 0).expect("written");
    sparse.write_all_at(&text[..70_000], 900_000).expect("written");
    files.insert("/packed/sparse".into(), fs::read(dir.join("packed/sparse")).expect("a file"));
    files
}

#[test]
fn compressed_files_of_ntfs_are_read_as_ntfs_3g_wrote_them() {
    for cluster in ["512", "1024", "4096"] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Some(image) = ntfs_image(dir.path(), 24, &["-c", cluster]) else { return };
        let Some(setfattr) = tools::program("python3") else { return };
        let Some(mounted) = Mounted::ntfs(&image, "compression") else { return };
        let folder = mounted.path().join("packed");
        fs::create_dir(&folder).expect("a folder");
        // FILE_ATTRIBUTE_COMPRESSED for what will be made in it.
        let script = "import os,sys; os.setxattr(sys.argv[1], 'system.ntfs_attrib_be', (0x800).to_bytes(4, 'big'))";
        tools::run(Command::new(&setfattr).args(["-c", script]).arg(&folder));
        let files = fill_compressible(mounted.path());
        // A file that Windows has compressed as one of its system (MS-FSCC, 2.1.2.1): this much of it, ntfs-3g makes.
        fs::write(mounted.path().join("system"), b"nothing").expect("a file");
        let script = "import os,struct,sys; os.setxattr(sys.argv[1], 'system.ntfs_reparse_data', struct.pack('<IHHIIIII', 0x80000017, 20, 0, 1, 2, 1, 0, 0))";
        tools::run(Command::new(setfattr).args(["-c", script]).arg(mounted.path().join("system")));
        let packed = fs::metadata(folder.join("text 200001")).expect("metadata").blocks() * 512;
        assert!(packed < 100_000, "ntfs-3g compresses it: {packed}");
        mounted.end(&image);
        let (_, tree) = open(&in_memory(&image));
        let system = find(&*tree, OsStr::new("/system")).expect("it is there");
        let refused = tree.read_at(system, 0, &mut [0]).expect_err("nobody takes zeros for its contents");
        assert!(refused.to_string().contains("(WOF)"), "{refused}");
        for (path, bytes) in &files {
            let file = find(&*tree, OsStr::new(path)).expect("it is there");
            assert!(contents(&*tree, file) == *bytes, "clusters of {cluster}: {path} is read wrongly");
        }
        // From the middle, in pieces that fit no unit.
        let path = "/packed/words 200001";
        let file = find(&*tree, OsStr::new(path)).expect("it is there");
        let mut random = Random::new(13);
        for _ in 0..200 {
            let at = random.below(200_001);
            let mut piece = vec![0; random.below(90_000)];
            let len = piece.len().min(200_001 - at);
            assert_eq!(tree.read_at(file, at as u64, &mut piece).expect("read"), len);
            assert!(piece[..len] == files[path][at..][..len], "{len} bytes at {at}");
        }
    }
}

#[test]
fn streams_of_ntfs_are_files_beside_the_contents() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 16, &[]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "streams_interface=windows") else { return };
    let mut random = Random::new(14);
    let large = random.bytes(300_000);
    fs::write(mounted.path().join("file"), b"contents").expect("a file");
    fs::write(mounted.path().join("file:Zone.Identifier"), b"[ZoneTransfer]").expect("a stream");
    fs::write(mounted.path().join("file:large \u{e4}"), &large).expect("a stream");
    fs::create_dir(mounted.path().join("folder")).expect("a folder");
    fs::write(mounted.path().join("folder:of a folder"), b"x").expect("a stream");
    // In so many pieces that they do not fit into one record.
    let pieces = File::create(mounted.path().join("pieces")).expect("a file");
    let other = File::create(mounted.path().join("other")).expect("a file");
    let bytes = random.bytes(4096 * 900);
    for (i, piece) in bytes.chunks(4096).enumerate() {
        pieces.write_all_at(piece, i as u64 * 4096).expect("room");
        pieces.sync_all().expect("durable");
        other.write_all_at(&[1; 4096], i as u64 * 4096).expect("room");
        other.sync_all().expect("durable");
    }
    drop((pieces, other));
    mounted.end(&image);
    let (_, tree) = open(&in_memory(&image));
    let file = find(&*tree, OsStr::new("/file")).expect("there");
    assert_eq!(tree.streams(file).expect("names"), ["large \u{e4}", "Zone.Identifier"]);
    let stream = tree.stream(file, OsStr::new("large \u{e4}")).expect("it is there");
    assert_eq!(tree.attributes(stream).expect("attributes").size, 300_000);
    assert!(contents(&*tree, stream) == large && contents(&*tree, file) == b"contents");
    let zone = tree.stream(file, OsStr::new("Zone.Identifier")).expect("it is there");
    assert_eq!(contents(&*tree, zone), b"[ZoneTransfer]");
    assert_eq!(tree.stream(file, OsStr::new("none")).expect_err("none").kind(), ErrorKind::NotFound);
    let folder = find(&*tree, OsStr::new("/folder")).expect("there");
    let of_folder = tree.stream(folder, OsStr::new("of a folder")).expect("it is there");
    assert_eq!(contents(&*tree, of_folder), b"x");
    assert_eq!(tree.attributes(of_folder).expect("attributes").kind, NodeKind::File);
    assert_eq!(tree.extended(file, OsStr::new("system.ntfs_efsinfo")).expect("none"), None);
    assert!(tree.list_extended(file).expect("none").is_empty());
    let pieces = find(&*tree, OsStr::new("/pieces")).expect("there");
    assert!(contents(&*tree, pieces) == bytes, "pieces in several records are joined");
}

#[test]
fn what_was_never_written_reads_as_zeros() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 16, &[]) else { return };
    // All free clusters hold something else than zeros.
    let Some(mounted) = Mounted::ntfs(&image, "noatime") else { return };
    let path = mounted.path().join("filler");
    fs::write(&path, vec![0xaa; 8 << 20]).expect("a file");
    fs::remove_file(&path).expect("removed");
    let preallocated = mounted.path().join("preallocated");
    fs::write(&preallocated, b"x".repeat(10_000)).expect("a file");
    mounted.end(&image);
    // Let the header say that only 5,000 bytes were ever written: the fields follow each other, sizes of 8 bytes.
    let mut bytes = fs::read(&image).expect("the image can be read");
    let sizes = [12_288u64.to_le_bytes(), 10_000u64.to_le_bytes(), 10_000u64.to_le_bytes()].concat();
    let at: Vec<usize> = (0..bytes.len() - 24).step_by(8).filter(|at| bytes[*at..][..24] == sizes).collect();
    assert!(!at.is_empty(), "the header is found");
    at.iter().for_each(|at| bytes[at + 16..at + 24].copy_from_slice(&5000u64.to_le_bytes()));
    let (_, tree) = open(&Arc::new(MemoryStore::new(bytes)));
    let file = find(&*tree, OsStr::new("/preallocated")).expect("it is there");
    let read = contents(&*tree, file);
    assert!(read[..5000].iter().all(|b| *b == b'x') && read[5000..].iter().all(|b| *b == 0) && read.len() == 10_000);
}

#[test]
fn hostile_images_give_errors_and_end() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("a folder");
    fs::write(source.join("file"), vec![5; 60_000]).expect("a file");
    fs::create_dir(source.join("folder")).expect("a folder");
    (0..60).for_each(|i| fs::write(source.join(format!("folder/a longer name {i}")), [1; 100]).expect("a file"));
    let mut images = Vec::new();
    if let Some(mke2fs) = tools::program("mke2fs") {
        for kind in ["ext2", "ext4"] {
            let image = empty(dir.path(), 2);
            tools::run(Command::new(&mke2fs).args(["-q", "-t", kind, "-d"]).arg(&source).arg(&image));
            images.push(fs::read(&image).expect("an image"));
        }
    }
    for args in [&["-F", "12"], &["-F", "32"]] {
        if let Some(image) = crate::support::fat::mkfs(args, 2 << 10) {
            let store = image.in_memory();
            let tree = filesystems::fat::Fat::open(store.clone()).expect("it opens");
            let folder = tree.make_folder(tree.root(), OsStr::new("folder"), &NewNode::default()).expect("room");
            for i in 0..60 {
                let file =
                    tree.create(folder, OsStr::new(&format!("a longer name {i}")), &NewNode::default()).expect("room");
                tree.write_at(file, 0, &[7; 3000]).expect("room");
            }
            tree.finish().expect("written");
            images.push(store.to_vec());
        }
    }
    if let Some(image) = ntfs_image(dir.path(), 2, &[])
        && let Some(ntfscp) = tools::program("ntfscp")
    {
        for name in ["one", "two", "three"] {
            tools::run(Command::new(&ntfscp).arg("-q").arg(&image).arg(source.join("file")).arg(name));
        }
        images.push(fs::read(&image).expect("an image"));
    }
    let mut random = Random::new(3);
    for image in images {
        // Only sectors that are not zero hold structures.
        let sectors: Vec<usize> =
            (0..image.len() / 512).filter(|s| image[s * 512..][..512].iter().any(|b| *b != 0)).collect();
        for _ in 0..120 {
            let mut bytes = image.clone();
            for _ in 0..1 + random.below(12) {
                let at = random.choose(&sectors) * 512 + random.below(512);
                let kinds = [0, 0xff, 0x7f, random.number() as u8, bytes[at].wrapping_add(1)];
                bytes[at] = *random.choose(&kinds);
            }
            let store = Arc::new(MemoryStore::new(bytes.clone()));
            look_at_everything(&store);
            assert!(store.to_vec() == bytes, "reading changed something");
        }
    }
}

/// Lists and reads all that can be. Errors are as good as contents; only hanging and panics are not.
fn look_at_everything(store: &Arc<MemoryStore>) {
    let Ok((_, tree)) = filesystems::open(store.clone()) else { return };
    let mut looked_at = 0;
    let _ = walk(&*tree, tree.root(), String::new(), 5, &mut |_, node, _| {
        looked_at += 1;
        if looked_at < 300 {
            let _ = tree.attributes(node);
            let _ = tree.read_at(node, 0, &mut [0; 5000]);
            let _ = tree.read_at(node, 50_000, &mut [0; 5000]);
        }
    });
}

#[test]
fn what_holds_no_files_is_named() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let told =
        |bytes: Vec<u8>| filesystems::open(Arc::new(MemoryStore::new(bytes))).err().expect("no tree").to_string();
    assert!(told(vec![0; 100_000]).contains("begins with zeros"));
    assert!(told(b"some text ".repeat(1000)).contains("unknown kind"));
    let mut luks = vec![0; 8192];
    luks[..6].copy_from_slice(b"LUKS\xba\xbe");
    assert!(told(luks).contains("a LUKS volume"));
    let mut random = Random::new(1);
    assert!(told(random.bytes(100_000)).contains("looks random"));
    let Some(mkswap) = tools::program("mkswap") else { return };
    let image = empty(dir.path(), 1);
    tools::run(Command::new(mkswap).arg("-q").arg(&image));
    assert!(told(in_memory(&image).to_vec()).contains("swap area"));
}

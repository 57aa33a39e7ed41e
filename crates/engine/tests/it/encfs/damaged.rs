//! Folders that are damaged, or that somebody else has changed: nothing is passed over in silence, and the rest stays readable.

use std::fs;
use std::io::ErrorKind as Kind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use claviger_engine::file_formats::{self, FolderSurvey, Stacked};
use claviger_engine::trees::{Node, NodeKind, Tree, find};
use claviger_engine::{Error, ErrorKind, Unlock};
use claviger_testkit::random::Random;
use tempfile::TempDir;

use crate::support::encfs::{
    CONFIG, Layout, PARANOIA, PASSPHRASE, Program, Recipe, STANDARD_FOLDER, host, name, open, passphrase, try_open,
};
use crate::support::gocryptfs::{Seen, read, seen, seen_by_host};
use crate::support::noise;

const HEADER: usize = 8;
const BLOCK: usize = 1024;

/// Names in clear, and checksums of eight bytes.
const CHECKED: Recipe = Recipe { naming: ("nameio/null", 1), checksum: 8, ..STANDARD_FOLDER };

/// A folder that encfs filled.
fn made(recipe: &Recipe, fill: impl FnOnce(&Path)) -> Option<TempDir> {
    let folder = recipe.folder();
    Program::find()?.mounted(folder.path(), &[], fill)?;
    Some(folder)
}

fn change(file: &Path, what: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).expect("read");
    what(&mut bytes);
    fs::write(file, bytes).expect("written");
}

/// The only entry of a stored folder besides the configuration.
fn only(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry").path());
    let mut entries: Vec<_> = entries.filter(|path| !path.ends_with(CONFIG)).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

/// The first entry of a stored folder that is of this kind.
fn entry(folder: &Path, is: fn(&Path) -> bool) -> PathBuf {
    let mut entries = fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry").path());
    entries.find(|path| is(path)).expect("it is there")
}

/// The problems that a survey of all contents finds, with their paths.
fn survey(folder: &Path) -> Vec<String> {
    let lower = host(folder);
    let format = file_formats::find(&*lower, None).expect("found");
    let survey = FolderSurvey::with_contents(format, &*lower, &open(folder), &mut |_| Ok(())).expect("surveyed");
    let text = |of: &file_formats::Problem| {
        format!("{}: {}", of.path.display(), of.facts.problem.as_deref().expect("it is said"))
    };
    survey.problems.iter().map(text).collect()
}

/// The names in a folder that are not shown, with the reasons.
fn left_out(tree: &Stacked, folder: Node) -> Vec<String> {
    let found = tree.list_all(folder).expect("listed").left_out;
    found.iter().map(|of| format!("{}: {}", of.name.display(), of.why)).collect()
}

#[track_caller]
fn reported(found: &[String], words: &[&str]) {
    let of = |line: &&String| words.iter().all(|word| line.contains(word));
    assert!(found.iter().any(|line| of(&line)), "{words:?} in {found:?}");
}

/// The numbers of a file's blocks that cannot be read. The others must be right.
fn unreadable(tree: &Stacked, node: Node, plain: &[u8], data: usize) -> Vec<usize> {
    let bad = plain.chunks(data).enumerate().filter(|(number, right)| {
        let mut out = vec![0xee; right.len()];
        match tree.read_at(node, (number * data) as u64, &mut out) {
            Ok(len) => {
                assert!(out[..len] == **right, "block {number} holds something else");
                false
            }
            Err(e) => {
                assert_eq!(e.kind(), Kind::InvalidData, "{e}");
                assert!(out.iter().all(|byte| *byte == 0), "nothing of block {number} is shown");
                let text = Error::from(e).to_string();
                assert!(text.contains(&format!("byte {}", number * data)), "{text}");
                true
            }
        }
    });
    bad.map(|(number, _)| number).collect()
}

type Damage = fn(&mut Vec<u8>);

fn block(number: usize) -> usize {
    HEADER + number * BLOCK
}

#[test]
fn with_checksums_a_changed_block_is_an_error_and_the_others_stay_readable() {
    let data = BLOCK - 8;
    let plain = noise(5 * data + 100, 1);
    let made = made(&CHECKED, |mounted| fs::write(mounted.join("file"), &plain).expect("written"));
    let Some(folder) = made else { return };
    let file = folder.path().join("file");
    let whole = fs::read(&file).expect("read");
    let damages: [(&str, Damage, &[usize]); 9] = [
        ("a checksum", |bytes| bytes[block(1)] ^= 1, &[1]),
        ("in the middle", |bytes| bytes[block(2) + 500] ^= 0x80, &[2]),
        ("the end of a block", |bytes| bytes[block(4) - 1] ^= 1, &[3]),
        ("the last block", |bytes| *bytes.last_mut().expect("one") ^= 1, &[5]),
        (
            "two exchanged",
            |bytes| {
                let (front, back) = bytes.split_at_mut(block(3));
                front[block(1)..][..BLOCK].swap_with_slice(&mut back[..BLOCK]);
            },
            &[1, 3],
        ),
        ("the header", |bytes| bytes[3] ^= 1, &[0, 1, 2, 3, 4, 5]),
        ("almost a hole", |bytes| bytes[block(1)..block(2) - 1].fill(0), &[1]),
        ("cut inside the last", |bytes| bytes.truncate(block(5) + 50), &[5]),
        ("cut inside a checksum", |bytes| bytes.truncate(block(4) + 3), &[4]),
    ];
    for (what, damage, expected) in damages {
        fs::write(&file, &whole).expect("written");
        assert_eq!(survey(folder.path()), [""; 0]);
        change(&file, damage);
        let tree = open(folder.path());
        let node = find(&tree, name("file")).expect("found");
        let size = tree.attributes(node).expect("known").size as usize;
        assert_eq!(unreadable(&tree, node, &plain[..size], data), expected, "{what}");
        let problems = survey(folder.path());
        assert!(problems.len() == 1 && problems[0].starts_with("/file: "), "{what}: {problems:?}");
        // encfs refuses to read it as well.
        let program = Program::find().expect("it was there");
        let _ = program.mounted(folder.path(), &[], |mounted| {
            let theirs = fs::read(mounted.join("file"));
            assert!(theirs.is_err() || what == "cut inside a checksum", "{what}");
        });
    }
}

#[test]
fn without_checksums_it_is_said_that_contents_cannot_be_proven() {
    let recipe = Recipe { naming: ("nameio/null", 1), ..STANDARD_FOLDER };
    let plain = noise(5000, 1);
    let made = made(&recipe, |mounted| fs::write(mounted.join("file"), &plain).expect("written"));
    let Some(folder) = made else { return };
    change(&folder.path().join("file"), |bytes| bytes[block(1) + 50] ^= 1);
    let tree = open(folder.path());
    let node = find(&tree, name("file")).expect("found");
    let shown = read(&tree, node);
    // Two blocks of the cipher: the one that was changed, and the next.
    assert!(shown[..BLOCK] == plain[..BLOCK] && shown[BLOCK + 80..] == plain[BLOCK + 80..] && shown != plain);
    assert_eq!(survey(folder.path()), [""; 0]);
    assert!(!tree.verifies() && tree.warnings().iter().any(|warning| warning.contains("are not noticed")));
}

#[test]
fn zeros_are_a_hole_only_where_holes_are_allowed() {
    for holes in [true, false] {
        let recipe = Recipe { holes, ..CHECKED };
        let plain = noise(4000, 1);
        let made = made(&recipe, |mounted| fs::write(mounted.join("file"), &plain).expect("written"));
        let Some(folder) = made else { return };
        change(&folder.path().join("file"), |bytes| bytes[block(1)..block(2)].fill(0));
        let tree = open(folder.path());
        let node = find(&tree, name("file")).expect("found");
        let data = BLOCK - 8;
        let mut expected = plain.clone();
        expected[data..2 * data].fill(0);
        match holes {
            true => assert!(read(&tree, node) == expected),
            false => assert_eq!(unreadable(&tree, node, &plain, data), [1]),
        }
    }
}

/// A folder with encrypted names: `outer/inner/file`, `outer/link` and `other`.
fn nested(recipe: &Recipe) -> Option<TempDir> {
    made(recipe, |mounted| {
        fs::create_dir_all(mounted.join("outer/inner")).expect("made");
        fs::write(mounted.join("outer/inner/file"), noise(3000, 1)).expect("written");
        symlink("inner/file", mounted.join("outer/link")).expect("linked");
    })
}

#[test]
fn names_that_do_not_belong_are_named() {
    let Some(folder) = nested(&STANDARD_FOLDER) else { return };
    let outer = only(folder.path());
    let conflict = format!("{} (conflicted copy)", outer.file_name().expect("a name").display());
    fs::write(folder.path().join(&conflict), "x").expect("written");
    fs::create_dir(folder.path().join("clear")).expect("made");
    fs::write(folder.path().join("clear/below"), noise(500, 1)).expect("written");
    // It sorts after the others.
    fs::write(outer.join("zz"), "x").expect("written");
    let tree = open(folder.path());
    let root = left_out(&tree, tree.root());
    assert_eq!(root.len(), 2);
    reported(&root, &[&conflict, "does not decrypt"]);
    reported(&root, &["clear", "does not decrypt"]);
    let outer_node = find(&tree, name("outer")).expect("found");
    reported(&left_out(&tree, outer_node), &["zz", "does not decrypt"]);
    let problems = survey(folder.path());
    for words in [["/clear", "does not decrypt"], ["/clear/below", "depend on"], ["/outer/zz", "does not decrypt"]] {
        reported(&problems, &words);
    }
    reported(&problems, &[&conflict, "does not decrypt"]);
    // Data rescue: what is below shows its stored names.
    tree.show_stored_names();
    let file = find(&tree, name("clear/below")).expect("as stored");
    assert_eq!(tree.attributes(file).expect("known").size, 492);
    let file = find(&tree, name("outer/inner/file")).expect("found");
    assert!(read(&tree, file) == noise(3000, 1));
}

#[test]
fn what_was_moved_without_the_program_is_named_and_rescued() {
    for recipe in [STANDARD_FOLDER, PARANOIA] {
        let Some(folder) = nested(&recipe) else { return };
        let outer = only(folder.path());
        let inner = entry(&outer, Path::is_dir);
        let moved = folder.path().join(inner.file_name().expect("a name"));
        fs::rename(&inner, &moved).expect("moved");
        let tree = open(folder.path());
        let found = left_out(&tree, tree.root());
        assert!(found.len() == 1 && found[0].contains("moved from another folder"), "{found:?}");
        tree.show_stored_names();
        let node = tree.lookup(tree.root(), moved.file_name().expect("a name")).expect("as stored");
        let entries = tree.list(node).expect("listed");
        assert_eq!(entries.len(), 1);
        let file = tree.take(node, &entries[0]).expect("taken");
        if recipe.by_path {
            let mut out = [0; 10];
            let error = Error::from(tree.read_at(file, 0, &mut out).expect_err("its IV is unknown"));
            assert!(error.to_string().contains("path"), "{error}");
        } else {
            assert!(read(&tree, file) == noise(3000, 1));
        }
        // Back in its place, everything is as before.
        fs::rename(&moved, &inner).expect("moved");
        assert_eq!(survey(folder.path()), [""; 0]);
    }
}

#[test]
fn a_survey_finds_short_files_and_damaged_links() {
    let Some(folder) = nested(&PARANOIA) else { return };
    assert_eq!(survey(folder.path()), [""; 0]);
    let outer = only(folder.path());
    fs::write(outer.join("short"), "x").expect("written");
    let link = entry(&outer, Path::is_symlink);
    fs::remove_file(&link).and_then(|()| symlink("not encrypted", &link)).expect("linked");
    let problems = survey(folder.path());
    reported(&problems, &["/outer/link", "target"]);
    reported(&problems, &["/outer/short", "less than its header"]);
    let lower = host(folder.path());
    let format = file_formats::find(&*lower, None).expect("found");
    let without_key = FolderSurvey::of(format, &*lower, None, &mut |_| Ok(())).expect("surveyed");
    assert_eq!((without_key.files, without_key.problems.len()), (2, 1), "{:?}", without_key.problems);
    assert_eq!(without_key.ciphers.get("AES-256"), Some(&2));
}

/// The error for a folder with this configuration.
fn with_config(config: &str) -> Error {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(CONFIG), config).expect("written");
    let given = [passphrase(PASSPHRASE)];
    let may_take = |time: Duration| match time {
        time if time < Duration::from_secs(60) => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled)),
    };
    let unlock = Unlock { may_take: Some(&may_take), ..Unlock::with(&given) };
    let opened = file_formats::open(host(folder.path()), Some("EncFS"), &unlock);
    opened.err().expect("it does not open")
}

#[test]
fn hostile_configurations_are_refused_by_name_and_cost_nothing() {
    use ErrorKind::{Cancelled, Malformed, Unsupported, WrongCredential};
    let right = STANDARD_FOLDER.xml_config();
    let with = |from: &str, to: &str| {
        assert_eq!(right.matches(from).count(), 1, "{from}");
        with_config(&right.replace(from, to))
    };
    for (from, to) in [
        ("<name>ssl/aes", "<name>ssl/rot13"),
        ("<name>ssl/aes", "<name>nullCipher"),
        ("<name>nameio/block", "<name>nameio/future"),
        ("<name>ssl/aes</name>\n<major>3", "<name>ssl/aes</name>\n<major>4"),
        ("<name>nameio/block</name>\n<major>4", "<name>nameio/block</name>\n<major>5"),
    ] {
        let error = with(from, to);
        assert!(matches!(error.kind, Unsupported { .. }), "{to}: {error}");
    }
    let huge = "9".repeat(200);
    for (from, to) in [
        ("<keySize>192", "<keySize>0"),
        ("<keySize>192", "<keySize>1000000"),
        ("<keySize>192", "<keySize>-1"),
        ("<keySize>192", "<keySize>129"),
        ("<keySize>192", "<keySize>256"),
        ("<keySize>192", "<keySize>&lt;"),
        ("<blockSize>1024", "<blockSize>0"),
        ("<blockSize>1024", "<blockSize>1000"),
        ("<blockSize>1024", "<blockSize>4294967296"),
        ("<blockMACBytes>0", "<blockMACBytes>9"),
        ("<blockMACRandBytes>0", "<blockMACRandBytes>1024"),
        ("<kdfIterations>1000", "<kdfIterations>0"),
        ("<kdfIterations>1000", "<kdfIterations>4294967296"),
        ("<kdfIterations>1000", &format!("<kdfIterations>{huge}")),
        ("<version>20100713", "<version>7"),
        ("<version>20100713", "<version>"),
        ("<encodedKeyData>\n", "<encodedKeyData>\nAAAA"),
        ("<encodedKeyData>\n", "<encodedKeyData>\n!"),
        ("<saltData>\n", "<saltData>\n*"),
        ("<saltData>", "<otherData>"),
        ("</boost_serialization>", ""),
        ("<cfg ", &("<cfg>".repeat(1000) + "<cfg ")),
        ("<keySize>192", "<keySize>&b;"),
    ] {
        let error = with(from, to);
        assert!(matches!(error.kind, Malformed { .. }), "{to:.40}: {error}");
        assert!(error.to_string().len() < 400, "{error}");
    }
    // Entities stand for nothing.
    let entity = right.replace("boost_serialization>\n<boost", "a [<!ENTITY b \"192\">]>\n<boost");
    let entity = with_config(&entity.replace("<keySize>192", "<keySize>&b;"));
    assert!(matches!(entity.kind, Malformed { .. }), "{entity}");
    let slow = with("<kdfIterations>1000", "<kdfIterations>2147483647");
    assert!(matches!(slow.kind, Cancelled), "{slow}");
    let salt = with("<saltData>\nBw", "<saltData>\nCA");
    assert!(matches!(salt.kind, WrongCredential(_)), "{salt}");
    let empty = with_config("");
    assert!(matches!(empty.kind, Malformed { .. }), "{empty}");
    for config in ["<", "\u{0}", &" ".repeat(100_000), "<boost_serialization><cfg/></boost_serialization>"] {
        let error = with_config(config);
        assert!(matches!(error.kind, Malformed { .. }), "{error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let error = file_formats::open(host(folder.path()), Some("EncFS"), &Unlock::with(&[passphrase(PASSPHRASE)]));
    assert!(matches!(error.err().expect("there is none").kind, ErrorKind::NotThisFormat(_)));
    fs::write(folder.path().join("elsewhere"), &right).expect("written");
    symlink("elsewhere", folder.path().join(CONFIG)).expect("linked");
    let error = try_open(folder.path()).err().expect("a link is not followed");
    assert!(!matches!(error.kind, WrongCredential(_)), "{error}");
    let older = Recipe { layout: Layout::Unsalted, ..STANDARD_FOLDER }.xml_config();
    let ancient = with_config(&older.replace("version=\"20080813\"", "version=\"20040812\""));
    assert!(matches!(ancient.kind, Malformed { .. }), "{ancient}");
}

/// Those from before 2008 are binary.
#[test]
fn older_configurations_that_are_cut_or_changed_are_refused() {
    let given = [passphrase(PASSPHRASE)];
    for layout in [Layout::Five, Layout::Four] {
        let (file, right) = Recipe { naming: ("nameio/stream", 1), layout, ..STANDARD_FOLDER }.config();
        let folder = tempfile::tempdir().expect("a folder");
        let opened = |bytes: &[u8]| {
            fs::write(folder.path().join(file), bytes).expect("written");
            let opened = file_formats::open(host(folder.path()), Some("EncFS"), &Unlock::with(&given));
            opened.map(drop).map_err(|e| e.kind)
        };
        assert!(opened(&right).is_ok());
        for end in 0..right.len() {
            let cut = opened(&right[..end]);
            assert!(matches!(&cut, Err(ErrorKind::Malformed { field, .. }) if *field == file), "{end}: {cut:?}");
        }
        let mut random = Random::new(5);
        for _ in 0..300 {
            let mut changed = right.clone();
            changed[random.below(right.len())] ^= 1 << random.below(8);
            // In a creator's name and in a number that does not matter, a change is none.
            let _ = opened(&changed);
        }
        let ancient = [1, 10].iter().copied().chain(*b"subVersion").chain([1, 5]).collect::<Vec<u8>>();
        assert!(matches!(opened(&ancient), Err(ErrorKind::Malformed { .. })));
    }
}

/// Everything that a tree shows, whatever it is.
fn walk(tree: &Stacked, folder: Node, depth: usize) {
    let Ok(listing) = tree.list_all(folder) else { return };
    for entry in listing.entries {
        let Ok(node) = tree.take(folder, &entry) else { continue };
        match entry.kind {
            NodeKind::Folder if depth < 8 => walk(tree, node, depth + 1),
            NodeKind::File => {
                let size = tree.attributes(node).map_or(0, |of| of.size);
                let _ = tree.read_at(node, 0, &mut vec![0; size.min(1 << 20) as usize + 10]);
            }
            NodeKind::Link => drop(tree.link_target(node)),
            NodeKind::Folder | NodeKind::Special => {}
        }
        tree.forget(node, 1);
    }
}

/// Changes something somewhere in a stored folder.
fn mutate(folder: &Path, random: &mut Random) {
    let paths: Vec<_> = seen_by_host(folder).into_iter().collect();
    let (path, (kind, _)) = random.choose(&paths);
    let path = folder.join(path.to_str().expect("UTF-8").trim_start_matches('/'));
    match (random.below(4), kind) {
        (0, _) => {
            let mut other = path.file_name().expect("a name").to_string_lossy().into_owned();
            let at = random.below(other.len());
            other.replace_range(at..=at, "x");
            fs::rename(&path, path.with_file_name(other)).expect("renamed");
        }
        (1, NodeKind::File) => change(&path, |bytes| bytes.truncate(random.below(bytes.len() + 1))),
        (_, NodeKind::File) => change(&path, |bytes| {
            let len = bytes.len();
            if len > 0 {
                bytes[random.below(len)] = random.below(256) as u8;
            }
        }),
        (_, NodeKind::Link) => {
            fs::remove_file(&path).and_then(|()| symlink(noise_name(random), &path)).expect("linked");
        }
        _ => fs::write(path.join(noise_name(random)), noise_name(random)).expect("written"),
    }
}

fn noise_name(random: &mut Random) -> String {
    let digits = b",-+/0aAzZ.";
    let len = 1 + random.below(60);
    let name: String = (0..len).map(|_| char::from(*random.choose(digits))).collect();
    format!("n{}", name.replace('/', "A"))
}

#[test]
fn no_change_of_a_stored_folder_ends_the_program_or_is_written_to() {
    let Some(first) = nested(&PARANOIA) else { return };
    let Some(second) = nested(&Recipe { naming: ("nameio/stream", 2), ..STANDARD_FOLDER }) else { return };
    for number in 0..500 {
        let of = if number % 2 == 0 { &first } else { &second };
        let folder = tempfile::tempdir().expect("a folder");
        let from = format!("{}/.", of.path().display());
        claviger_testkit::tools::run(std::process::Command::new("cp").args(["-a", &from]).arg(folder.path()));
        let mut random = Random::new(number);
        for _ in 0..=random.below(3) {
            mutate(folder.path(), &mut random);
        }
        let before: Seen = seen_by_host(folder.path());
        if let Ok(tree) = try_open(folder.path()) {
            walk(&tree, tree.root(), 0);
            tree.show_stored_names();
            walk(&tree, tree.root(), 0);
            let _ = survey(folder.path());
        }
        assert!(seen_by_host(folder.path()) == before, "{number}");
    }
    assert!(seen(&open(first.path())).len() == 4);
}

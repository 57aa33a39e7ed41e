//! Logical volumes that lvm2 makes are read and written here as the kernel's device-mapper has them; what is damaged, hostile or of
//! another kind is refused.

use std::path::Path;
use std::sync::Arc;

use claviger_engine::logical_volumes::{self, Group};
use claviger_engine::store::MemoryStore;
use claviger_engine::trees::NewNode;
use claviger_engine::{ErrorKind, Result, Store, filesystems};
use claviger_testkit::lvm2::{self, AREA, AREA_SIZE, DATA, EXTENT, Recipe, linear, pattern, striped, volume};
use claviger_testkit::mounts::{LoopDevice, sparse_file};
use claviger_testkit::{tools, uml};

const EXTENTS: usize = 32;

/// `root` in two segments, the second of which is striped, and `home`.
fn two() -> Recipe {
    let root = volume("root", &[(3, &linear(4)), (4, &striped(4096, &[20, 9]))]);
    Recipe::new(EXTENTS, &(root + &volume("home", &[(2, &linear(0))])))
}

fn in_memory(bytes: Vec<u8>) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(bytes))
}

fn read(bytes: &[u8]) -> Result<Option<Group>> {
    logical_volumes::read(&MemoryStore::new(bytes.to_vec()))
}

fn group(recipe: &Recipe) -> Group {
    read(&recipe.make()).expect("it is read").expect("a group")
}

/// Where each byte of `root` is in the physical volume.
fn places_of_root() -> Vec<usize> {
    let at = |extent: usize| DATA + extent * EXTENT;
    let first = at(4)..at(7);
    let chunks = (0..8).map(|chunk| at([20, 9][chunk % 2]) + chunk / 2 * 4096);
    first.chain(chunks.flat_map(|at| at..at + 4096)).collect()
}

#[test]
fn extents_are_read_and_written_where_the_metadata_say() {
    let made = two().make();
    let below = in_memory(made.clone());
    let (root, store) = logical_volumes::open(below.clone(), "vg/root").expect("it opens");
    let places = places_of_root();
    assert_eq!((root.len, store.len(), store.writable()), (7 * EXTENT as u64, 7 * EXTENT as u64, true));
    let mut all = vec![0; places.len()];
    store.read_at(0, &mut all).expect("it is read");
    assert!(all.iter().zip(&places).all(|(byte, at)| *byte == pattern(*at)));

    // Across both segments, with ends that are in no sector's border.
    let (from, to) = (3 * EXTENT - 1001, 6 * EXTENT + 333);
    store.write_clobbering(from as u64, &mut vec![0xa5; to - from]).expect("it is written");
    let mut expected = made;
    places[from..to].iter().for_each(|at| expected[*at] = 0xa5);
    assert!(below.to_vec() == expected, "what is written is in the logical volume and nowhere else");
    assert!(store.write_clobbering(7 * EXTENT as u64 - 1, &mut [0; 2]).is_err());
    assert!(below.to_vec() == expected);
}

#[test]
fn a_group_says_what_it_has() {
    let group = group(&two());
    assert_eq!((&*group.name, group.seqno, group.extent_size), ("vg", 7, EXTENT as u64));
    assert_eq!(group.openable(), ["vg/home", "vg/root"]);
    assert!(group.warnings.is_empty());
    let store = in_memory(two().make());
    for name in ["home", "vg/home"] {
        assert_eq!(logical_volumes::find(&*store, name).expect("it is there").1.name, "home");
    }
    for name in ["", "/", "vg", "vg/", "other/home", "vg/home/", "vg/vg/home", "pv0", "HOME"] {
        let error = logical_volumes::find(&*store, name).expect_err("there is none");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{name}: {error}");
        assert!(error.to_string().contains("vg/home, vg/root"), "{error}");
    }
    let error = logical_volumes::open(in_memory(vec![0; 4096]), "vg/home").err().expect("nothing is there");
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    assert!(logical_volumes::read(&*in_memory(vec![0; 100])).expect("too small is no error").is_none());
}

/// The label may be in any of four sectors, and the text goes round in its area.
#[test]
fn labels_and_texts_are_found_wherever_they_may_be() {
    let recipe = two();
    for label in 0..4 {
        assert_eq!(group(&Recipe { label, ..recipe.clone() }).openable(), ["vg/home", "vg/root"], "{label}");
    }
    let len = recipe.text.len() + 1;
    for text_at in [512, 1000, AREA_SIZE - len, AREA_SIZE - len + 1, AREA_SIZE - 512, AREA_SIZE - 1] {
        assert_eq!(group(&Recipe { text_at, ..recipe.clone() }).openable(), ["vg/home", "vg/root"], "{text_at}");
    }
}

#[test]
fn the_newer_of_two_copies_counts_and_a_damaged_one_is_told() {
    let newer = Recipe::new(EXTENTS, &volume("new", &[(1, &linear(0))])).text.replace("seqno = 7", "seqno = 8");
    let both = Recipe { second: Some(newer), ..two() };
    assert_eq!(group(&both).openable(), ["vg/new"]);
    let mut first = both.make();
    first[AREA + 40] ^= 1;
    let found = read(&first).expect("it is read").expect("a group");
    assert_eq!((found.openable(), found.warnings.len()), (vec!["vg/new".to_owned()], 1));
    let mut second = both.make();
    let last = second.len() - AREA_SIZE;
    second[last + 1100] ^= 1;
    let found = read(&second).expect("it is read").expect("a group");
    assert_eq!(found.openable(), ["vg/home", "vg/root"]);
    assert!(found.warnings[0].contains("checksum"), "{:?}", found.warnings);
    second[AREA + 1100] ^= 1;
    assert!(matches!(read(&second).expect_err("none is whole").kind, ErrorKind::Malformed { .. }));
}

#[test]
fn damaged_labels_and_headers_are_refused() {
    let made = two().make();
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = made.clone();
        change(&mut bytes);
        lvm2::seal(&mut bytes);
        read(&bytes)
    };
    assert!(sealed(&|_| ()).is_ok());
    let number =
        |at: usize, number: u64| move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    let end = made.len() as u64;
    // The fields of the label and its areas, then those of the metadata area.
    for (at, values) in [
        (512 + 8, &[0, 2, u64::MAX][..]),
        (512 + 104, &[1, 2047, end - 511, end, u64::MAX, u64::MAX - 511]),
        (512 + 112, &[0, 1023, end, u64::MAX]),
        (AREA + 24, &[0, AREA as u64 + 1, u64::MAX]),
        (AREA + 32, &[0, 1023, AREA_SIZE as u64 + 1, u64::MAX]),
        (AREA + 40, &[1, 511, AREA_SIZE as u64, u64::MAX]),
        (AREA + 48, &[0, AREA_SIZE as u64 - 511, 1 << 40, u64::MAX]),
    ] {
        for value in values {
            let error = sealed(&number(at, *value)).expect_err("it is refused");
            assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{at}, {value}: {error}");
        }
    }
    // The sector has no end of the lists; the label's contents begin too late, or in itself.
    let endless = |bytes: &mut Vec<u8>| bytes[512 + 72..1024].fill(1);
    assert!(matches!(sealed(&endless).expect_err("refused").kind, ErrorKind::Malformed { .. }));
    for rest in [0, 31, 473, 512, u32::MAX] {
        let begins = |bytes: &mut Vec<u8>| bytes[512 + 20..512 + 24].copy_from_slice(&rest.to_le_bytes());
        assert!(matches!(sealed(&begins).expect_err("refused").kind, ErrorKind::Malformed { .. }), "{rest}");
    }
    // Without right checksums.
    for at in [512 + 16, 512 + 40, AREA, AREA + 100, AREA + 1100] {
        let mut bytes = made.clone();
        bytes[at] ^= 1;
        assert!(matches!(read(&bytes).expect_err("refused").kind, ErrorKind::Malformed { .. }), "{at}");
    }
    // No text that counts, one that is ignored, no area, a later version.
    let error = sealed(&number(AREA + 40, 0)).expect_err("no group");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    let error = sealed(&|bytes| bytes[AREA + 60] = 1).expect_err("no group");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    let error = sealed(&number(512 + 104, 0)).expect_err("no area");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    let error = sealed(&|bytes| bytes[AREA + 20] = 2).expect_err("a later version");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    // A mark that is none.
    assert!(sealed(&|bytes| bytes[512 + 24] = b'X').expect("no error").is_none());
}

#[test]
fn metadata_that_contradict_themselves_are_refused() {
    let recipe = two();
    let first = linear(4);
    let shared = volume("other", &[(1, &linear(21))]);
    let name = "x".repeat(128);
    for (from, to) in [
        // The group.
        ("vg {", "v\"g {"),
        ("vg {", "-vg {"),
        ("vg {", "vg/x {"),
        ("vg {", &*format!("{name} {{")),
        ("# Generated", "other { }"),
        ("contents = ", "content = "),
        ("version = 1", "version = 2"),
        ("id = \"012345-6789", "id = \"012345-678\\n"),
        ("pv0 {\nid = \"012345-6789", "pv0 {\nid = \"112345-6789"),
        ("seqno = 7", "seqno = \"7\""),
        ("seqno = 7", "seqno = -7"),
        ("extent_size = 16", "extent_size = 0"),
        ("extent_size = 16", "extent_size = 9223372036854775807"),
        ("extent_size = 16", "extent_size = 18446744073709551616"),
        ("physical_volumes", "physical"),
        // The physical volume.
        ("pe_start = 128", "pe_start = 0"),
        ("pe_start = 128", "pe_start = 60"),
        ("pe_start = 128", "pe_start = 9223372036854775807"),
        ("pe_count = 32", "pe_count = 9223372036854775807"),
        ("pe_count = 32", "pe_count = 10"),
        // Segments.
        ("segment_count = 2", "segment_count = 3"),
        ("segment_count = 2", "segment_count = 1000000000000"),
        ("start_extent = 3", "start_extent = 4"),
        ("start_extent = 3", "start_extent = 2"),
        ("start_extent = 3", "start_extent = 9223372036854775807"),
        ("extent_count = 3", "extent_count = 0"),
        ("extent_count = 3", "extent_count = 9223372036854775807"),
        ("extent_count = 3", "extent_count = 1125899906842623"),
        ("type = \"striped\"", "type = 5"),
        ("type = \"striped\"", "type = \"\\u001b[2J\""),
        ("stripe_count = 2", "stripe_count = 0"),
        ("stripe_count = 2", "stripe_count = 3"),
        ("stripe_count = 2", "stripe_count = 4"),
        ("stripe_size = 8", "stripe_size = 0"),
        ("stripe_size = 8", "stripe_size = 3"),
        ("stripe_size = 8", "stripe_size = 9223372036854775807"),
        ("stripe_size = 8", "stripe_size = 64"),
        ("\"pv0\", 20,", "\"pv0\", -1,"),
        ("\"pv0\", 20,", "\"pv0\", 31,"),
        ("\"pv0\", 20,", "\"pv0\", 9223372036854775807,"),
        ("\"pv0\", 20,", "\"pv0\", \"20\","),
        ("\"pv0\", 20,", "\"pv0\","),
        ("\"pv0\", 20,", "20, \"pv0\","),
        ("\"pv0\", 20,", "\"p v\", 20,"),
        // In another segment, in itself, in another logical volume.
        ("\"pv0\", 20,", "\"pv0\", 5,"),
        ("\"pv0\", 20,", "\"pv0\", 9,"),
        ("\"pv0\", 20,", "\"pv0\", 10,"),
        ("\"pv0\", 20,", "\"pv0\", 1,"),
        ("logical_volumes {", &*format!("logical_volumes {{ {shared}")),
        ("home {", "ho me {"),
        ("home {", ". {"),
        ("home {", "root {"),
        (&*first, "type = \"striped\"\nstripe_count = 1"),
        // The text itself.
        ("creation_time = 1", "creation_time = {"),
        ("creation_time = 1", "creation_time = 1 }"),
    ] {
        assert!(recipe.text.contains(from), "{from}");
        let changed = Recipe { text: recipe.text.replacen(from, to, 1), ..recipe.clone() };
        let error = read(&changed.make()).expect_err(to);
        assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{to}: {error}");
        assert!(!error.to_string().chars().any(char::is_control), "{to}: {error}");
    }
}

/// Volumes `vg/x` of kinds that cannot be opened, and the message about each.
#[test]
fn other_kinds_are_refused_by_name_and_type() {
    let hidden = |text: &str| text.replace(", \"VISIBLE\"", "");
    let segment = |rest: &str| volume("x", &[(2, rest)]);
    let plain = segment(&linear(0));
    let other = |name, rest: &str| volume(name, &[(2, rest)]);
    let elsewhere = "pv1 { id = \"112345-6789-abcd-efgh-ijAB-CDEF-GHIJxy\" pe_start = 128 pe_count = 4 } pv0 {";
    for (volumes, says) in [
        (segment("type = \"raid1\"\nraids = [\"x_rmeta_0\", \"x_rimage_0\"]"), "of type raid1"),
        (segment("type = \"thin\"\nthin_pool = \"pool\""), "of type thin"),
        (segment("type = \"cache\"\norigin = \"x_corig\""), "of type cache"),
        (segment("type = \"integrity\"\norigin = \"x_iorig\""), "of type integrity"),
        (segment("type = \"writecache\"\norigin = \"x_wcorig\""), "of type writecache"),
        (segment("type = \"vdo\"\nvdo_pool = \"pool\""), "of type vdo"),
        (segment("type = \"error\""), "of type error"),
        (segment("type = \"mirror\"\nmirrors = [\"pv0\", 0, \"pv0\", 4]"), "of type mirror"),
        (segment("type = \"striped\"\nstripe_count = 1\nstripes = [\"pv1\", 0]"), "on another physical volume"),
        (segment("type = \"striped\"\nstripe_count = 1\nstripes = [\"pvmove0\", 0]"), "it lies on pvmove0"),
        (plain.replace("\"WRITE\"", "\"WRITE\", \"LOCKED\""), "in the state LOCKED"),
        (plain.replace("\"WRITE\"", "\"WRITE\", \"a\\\"b c\""), "in the state abc"),
        (
            plain.clone() + &other("pool", "type = \"thin-pool\"\npool = \"x\""),
            "a part of pool, which is of type thin-pool",
        ),
        (
            plain.clone() + &other("y", "type = \"new\"\nsomething = [\"a\", \"x\"]"),
            "a part of y, which is of type new",
        ),
        (hidden(&plain) + &other("s0", "type = \"snapshot\"\norigin = \"o\"\ncow_store = \"x\""), "of type snapshot"),
        (plain.clone() + &other("s0", "type = \"snapshot\"\norigin = \"x\"\nmerging_store = \"c\""), "being merged"),
    ] {
        let recipe = Recipe::new(EXTENTS, &(volumes + &volume("sound", &[(1, &linear(9))])));
        let recipe = Recipe { text: recipe.text.replacen("pv0 {", elsewhere, 1), ..recipe };
        let store = in_memory(recipe.make());
        let error = logical_volumes::open(store.clone(), "vg/x").err().expect(says);
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{says}: {error}");
        assert!(error.to_string().contains("vg/x: ") && error.to_string().contains(says), "{says}: {error}");
        // The others are none the worse for it.
        let group = logical_volumes::read(&*store).expect("it is read").expect("a group");
        assert!(group.openable().contains(&"vg/sound".to_owned()) && !group.openable().contains(&"vg/x".to_owned()));
    }
    // A part that is not visible is not reported.
    let group = group(&Recipe::new(EXTENTS, &(hidden(&plain) + &volume("sound", &[(1, &linear(9))]))));
    assert_eq!(group.volumes.len(), 1);
}

#[test]
fn what_must_not_change_is_read_only() {
    let plain = volume("x", &[(2, &linear(0))]);
    let snapshot = volume("s0", &[(2, "type = \"snapshot\"\norigin = \"x\"\ncow_store = \"c\"")]);
    let thin = volume("t", &[(2, "type = \"thin\"\nthin_pool = \"p\"\nexternal_origin = \"x\"")]);
    let marked = plain.replace(", \"WRITE\"", "");
    let made = |volumes: &str, from: &str, to: &str| {
        let recipe = Recipe::new(EXTENTS, volumes);
        assert!(recipe.text.contains(from));
        Recipe { text: recipe.text.replacen(from, to, 1), ..recipe }.make()
    };
    for (bytes, says) in [
        (made(&(plain.clone() + &snapshot), "", ""), "a snapshot"),
        (made(&(plain.clone() + &thin), "", ""), "a thin volume"),
        (made(&marked, "", ""), "marked as read-only"),
        (made(&plain, "\"RESIZEABLE\", \"READ\", \"WRITE\"", "\"READ\""), "group is marked as read-only"),
        (made(&plain, "\"RESIZEABLE\"", "\"EXPORTED\""), "exported"),
    ] {
        let below = in_memory(bytes.clone());
        let (volume, store) = logical_volumes::open(below.clone(), "x").expect(says);
        assert!(volume.read_only.as_deref().is_some_and(|why| why.contains(says)), "{volume:?}");
        assert!(!store.writable() && store.write_clobbering(0, &mut [1]).is_err());
        assert!(below.to_vec() == bytes);
    }
}

#[test]
fn what_was_cut_short_opens_as_far_as_it_is_there() {
    let mut bytes = two().make();
    bytes.truncate(DATA + 12 * EXTENT);
    let store = in_memory(bytes);
    let group = logical_volumes::read(&*store).expect("it is read").expect("a group");
    assert_eq!((group.openable(), group.warnings.len()), (vec!["vg/home".to_owned()], 1));
    let error = logical_volumes::open(store, "root").err().expect("it is not all there");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
}

/// Runs lvm2 on the metadata alone, without a device-mapper.
fn lvm(device: &Path, args: &[&str]) -> Option<String> {
    let config = format!(
        "devices {{ filter=[\"a|^{}$|\",\"r|.*|\"] use_devicesfile=0 obtain_device_list_from_udev=0 \
         external_device_info_source=\"none\" }} activation {{ udev_sync=0 udev_rules=0 monitoring=0 }} \
         global {{ activation=0 locking_dir=\"/run/lock/claviger-test-lvm\" }} backup {{ backup=0 archive=0 }}",
        device.display()
    );
    let mut command = std::process::Command::new(tools::program("lvm")?);
    let output = tools::run(command.args(args).args(["--config", &config]).env("LVM_SUPPRESS_FD_WARNINGS", "1"));
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// Metadata that were changed so often that they have gone round in their area, on the machine itself.
#[test]
fn metadata_of_lvm2_are_read_after_every_change() {
    let Some(_) = tools::program("lvm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("pv");
    sparse_file(&image, 24 << 20);
    let Some(device) = LoopDevice::new(&image, &[]) else { return };
    let on = device.path();
    let node = on.to_str().expect("UTF-8");
    lvm(on, &["pvcreate", "-q", "-y", "--metadatasize", "64k", "--metadatacopies", "2", node]);
    let error = logical_volumes::read(&*crate::support::read_only(&image)).expect_err("there is no group");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    lvm(on, &["vgcreate", "-q", "-s", "128k", "group-1", node]);
    for i in 0..40 {
        let name = format!("lv_{}.{i}", "long".repeat(20));
        let size = (1 + i % 5).to_string();
        lvm(on, &["lvcreate", "-q", "-y", "-an", "-Wn", "-Zn", "-l", &size, "-n", &name, "group-1"]);
        let store = crate::support::read_only(&image);
        let group = logical_volumes::read(&*store).expect("it is read").expect("a group");
        assert_eq!((group.volumes.len(), group.seqno, group.warnings.len()), (i + 1, i as u64 + 2, 0));
        if i % 13 != 12 {
            continue;
        }
        let theirs = lvm(on, &["lvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "lv_name,lv_size,lv_uuid"]);
        let theirs = theirs.expect("lvm is there");
        let mut theirs: Vec<Vec<_>> = theirs.lines().map(|line| line.split_whitespace().collect()).collect();
        theirs.sort_unstable();
        let ours: Vec<_> =
            group.volumes.iter().map(|v| vec![v.name.clone(), v.len.to_string(), v.uuid.clone()]).collect();
        assert_eq!(ours, theirs);
    }
}

/// Commands for lvm2 in user-mode Linux, which has a device-mapper.
const SCRIPT: &str = r#"set -ex
modprobe -a dm-snapshot dm-thin-pool dm-mirror dm-raid
mkdir -p /run/lock
L() { lvm "$@" --config 'devices { filter=["a|/dev/ubd.*|","r|.*|"] use_devicesfile=0 obtain_device_list_from_udev=0
  external_device_info_source="none" types=["ubd",16] } activation { udev_sync=0 udev_rules=0 monitoring=0
  verify_udev_operations=0 } global { thin_check_executable="" locking_dir="/run/lock/lvm" use_lvmpolld=0 } backup { backup=0 archive=0 }'; }
"#;

/// Linear, in several segments and striped: the same bytes as in the kernel, both ways, and file systems that its drivers and
/// checkers take.
#[test]
fn the_kernel_has_the_same_logical_volumes() {
    let programs = ["lvm", "mkfs.ext4", "e2fsck", "fsck.vfat", "mkfs.vfat"].map(tools::program);
    if programs.iter().any(Option::is_none) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (image, here) = (folder.path().join("pv"), folder.path().display());
    sparse_file(&image, 64 << 20);
    let made = format!(
        "{SCRIPT}L pvcreate -y /dev/ubda; L vgcreate -s 1m vg /dev/ubda
         L lvcreate -y -Wn -l 9 -n root vg; L lvcreate -y -Wn -l 3 -n fat vg; L lvextend -l +4 vg/root; L lvextend -l +2 vg/fat
         L lvcreate -y -Wn -i2 -I 64k --alloc anywhere -l 8 -n striped vg; L lvcreate -y -Wn -i3 -I 4k --alloc anywhere -l 6 -n s3 vg
         mkfs.ext4 -q /dev/mapper/vg-root; mkfs.vfat /dev/mapper/vg-fat; mkfs.ext4 -q /dev/mapper/vg-striped
         for v in root striped; do mount /dev/mapper/vg-$v /mnt; seq 1 400000 >/mnt/numbers; mkdir /mnt/folder; umount /mnt; done
         head -c 6291456 /dev/urandom >{here}/s3; cat {here}/s3 >/dev/mapper/vg-s3
         for v in root striped fat; do cp /dev/mapper/vg-$v {here}/$v; done; sync; L vgchange -an vg"
    );
    let Some(done) = uml::run(&made, &[&image], 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);

    let below = in_memory(std::fs::read(&image).expect("the image"));
    let names = ["fat", "root", "s3", "striped"];
    let group = logical_volumes::read(&*below).expect("it is read").expect("a group");
    assert_eq!(group.openable(), names.map(|name| format!("vg/{name}")));
    for name in names {
        let (_, store) = logical_volumes::open(below.clone(), name).expect("it opens");
        let theirs = std::fs::read(folder.path().join(name)).expect("what the kernel has read");
        let mut ours = vec![0; store.len() as usize];
        store.read_at(0, &mut ours).expect("it is read");
        assert!(ours == theirs, "{name}");
    }
    let numbers: Vec<u8> = (1..=400_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    for name in ["root", "striped"] {
        let (_, store) = logical_volumes::open(below.clone(), name).expect("it opens");
        let (_, tree) = filesystems::open(Arc::new(store)).expect("a file system");
        let file = tree.list(tree.root()).expect("a list").into_iter().find(|e| e.name == "numbers").expect("a file");
        let mut all = vec![0; numbers.len() + 1];
        let mut len = 0;
        while let Ok(read @ 1..) = tree.read_at(file.node, len as u64, &mut all[len..]) {
            len += read;
        }
        assert!(all[..len] == numbers, "{name}");
    }

    // The reverse: a file in the FAT, and new bytes in the striped volume at odd offsets.
    let (_, fat) = logical_volumes::open(below.clone(), "vg/fat").expect("it opens");
    let (_, tree) = filesystems::open(Arc::new(fat)).expect("a file system");
    let node = tree.create(tree.root(), "written.txt".as_ref(), &NewNode::default()).expect("a file");
    tree.write_at(node, 0, &numbers).expect("it is written");
    tree.finish().expect("it is on the disk");
    std::fs::write(folder.path().join("numbers"), &numbers).expect("a file");
    let (_, s3) = logical_volumes::open(below.clone(), "vg/s3").expect("it opens");
    let mut expected = std::fs::read(folder.path().join("s3")).expect("there");
    for (at, len) in [(0, 1), (4095, 2), (100_000, 1_000_001), (6_291_456 - 70_000, 70_000)] {
        let bytes: Vec<u8> = (0..len).map(|i| pattern(at + i)).collect();
        expected[at..at + len].copy_from_slice(&bytes);
        s3.write_clobbering(at as u64, &mut bytes.clone()).expect("it is written");
    }
    std::fs::write(folder.path().join("s3"), expected).expect("a file");
    std::fs::write(&image, below.to_vec()).expect("the image");
    let checked = format!(
        "{SCRIPT}modprobe -a vfat nls_cp437 nls_ascii || true; L vgck vg; L vgchange -ay vg; cmp {here}/s3 /dev/mapper/vg-s3
         fsck.vfat -n /dev/mapper/vg-fat; for v in root striped; do e2fsck -fn /dev/mapper/vg-$v; done
         cp /dev/mapper/vg-fat {here}/fat; sync; L vgchange -an vg"
    );
    let done = uml::run(&checked, &[&image], 300).expect("it ran before");
    assert_eq!(done.status, 0, "{}", done.output);
    if let Some(mcopy) = tools::program("mcopy") {
        let copy = folder.path().join("copy");
        tools::run(
            std::process::Command::new(mcopy).arg("-i").arg(folder.path().join("fat")).arg("::written.txt").arg(&copy),
        );
        assert!(std::fs::read(copy).expect("a copy") == numbers);
    }
}

/// All other kinds that lvm2 makes here are refused by their names; what has a snapshot is read and not written.
#[test]
fn other_kinds_that_lvm2_makes_are_refused() {
    let Some(_) = tools::program("lvm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (image, other) = (folder.path().join("pv"), folder.path().join("other"));
    sparse_file(&image, 96 << 20);
    sparse_file(&other, 16 << 20);
    let script = format!(
        "{SCRIPT}L pvcreate -y /dev/ubda; L pvcreate -y /dev/ubdb; L vgcreate -s 1m vg /dev/ubda /dev/ubdb
         L lvcreate -y -Wn -l 4 -n origin vg /dev/ubda; L lvcreate -y -s -l 3 -n snap vg/origin /dev/ubda
         L lvcreate -y -l 4 -T vg/pool -V 20m -n thin /dev/ubda
         L lvcreate -y --type mirror -m1 --mirrorlog core -l 2 --alloc anywhere -n mirror vg /dev/ubda
         L lvcreate -y --type raid1 -m1 -l 2 --alloc anywhere -n raid vg /dev/ubda
         L lvcreate -y -Wn -l 1 -n plain vg /dev/ubda; L lvcreate -y -Wn -i2 -l 4 -n both vg
         L lvcreate -y -Wn -l 2 -n away vg /dev/ubdb; L vgchange -an vg"
    );
    let Some(done) = uml::run(&script, &[&image, &other], 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    let below = in_memory(std::fs::read(&image).expect("the image"));
    let group = logical_volumes::read(&*below).expect("it is read").expect("a group");
    assert_eq!(group.openable(), ["vg/origin", "vg/plain"]);
    let told: Vec<_> = group.volumes.iter().filter_map(|v| Some((&*v.name, v.refused.as_deref()?))).collect();
    assert_eq!(
        told,
        [
            ("away", "a part of it is on another physical volume"),
            ("both", "a part of it is on another physical volume"),
            ("mirror", "it is of type mirror"),
            ("pool", "it is of type thin-pool"),
            ("raid", "it is of type raid1"),
            ("snap", "it is of type snapshot"),
            ("thin", "it is of type thin"),
        ]
    );
    let (origin, _) = logical_volumes::open(below, "vg/origin").expect("it opens");
    assert!(origin.read_only.is_some());
    // Opened from the other physical volume, the same metadata are found.
    let away = in_memory(std::fs::read(&other).expect("the image"));
    assert_eq!(logical_volumes::read(&*away).expect("it is read").expect("a group").openable(), ["vg/away"]);
}

/// Three disks, of which the second has no metadata.
#[test]
fn logical_volumes_on_several_disks_are_read_as_the_kernel_has_them() {
    let Some(_) = tools::program("lvm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().display();
    let images = ["a", "b", "c"].map(|name| folder.path().join(name));
    images.iter().for_each(|image| sparse_file(image, 24 << 20));
    let disks = images.each_ref().map(|image| image.as_path());
    let names = ["ends", "linear", "striped"];
    let fill = format!(
        r#"fill() {{ for v; do dd if=/dev/urandom of=/dev/mapper/vg-$v bs=1M oflag=direct 2>/dev/null || true
           dd if=/dev/mapper/vg-$v of={here}/of-$v bs=1M iflag=direct 2>/dev/null; done; sync; L vgchange -an vg; }}"#
    );
    let script = format!(
        "{SCRIPT}{fill}
         L pvcreate -y /dev/ubda; L pvcreate -y --metadatacopies 0 /dev/ubdb; L pvcreate -y /dev/ubdc
         L vgcreate -s 1m vg /dev/ubda /dev/ubdb /dev/ubdc
         L lvcreate -y -Wn -i3 -I 64k -l 9 -n striped vg
         L lvcreate -y -Wn -l 25 -n linear vg /dev/ubda:3-20 /dev/ubdb:3-20; fill striped linear"
    );
    let Some(done) = uml::run(&script, &disks, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    let read = |image: &Path| in_memory(std::fs::read(image).expect("the image"));
    let older = read(disks[0]);
    let script =
        format!("{SCRIPT}{fill}\nL vgchange -ay vg; L lvcreate -y -Wn -l 12 -n ends vg /dev/ubdc /dev/ubda; fill ends");
    let done = uml::run(&script, &disks, 300).expect("it ran before");
    assert_eq!(done.status, 0, "{}", done.output);

    let [a, b, c] = disks.map(read);
    // As the only partition of a disk (MBR, type 8e).
    let mut partitioned = vec![0; 1 << 20];
    partitioned[446..462].copy_from_slice(&[0, 0, 0, 0, 0x8e, 0, 0, 0, 0, 8, 0, 0, 0, 0xc0, 0, 0]);
    partitioned[510..512].copy_from_slice(&[0x55, 0xaa]);
    partitioned.extend(b.to_vec());
    let b_in_a_partition = in_memory(partitioned);
    let named = |stores: &[&Arc<MemoryStore>]| -> Vec<(String, Arc<dyn Store>)> {
        let named =
            |(i, store): (usize, &&Arc<MemoryStore>)| (format!("disk {i}"), Arc::clone(store) as Arc<dyn Store>);
        stores.iter().enumerate().map(named).collect()
    };
    let open = |stores: &[&Arc<MemoryStore>], name: &str| logical_volumes::open_in(&named(stores), name);
    for order in [[&a, &b, &c], [&c, &b_in_a_partition, &a]] {
        for name in names {
            let (group, volume, store) = open(&order, &format!("vg/{name}")).expect(name);
            assert_eq!((group.missing, group.warnings.len(), store.writable()), (0, 0, false), "{group:?}");
            let theirs = std::fs::read(folder.path().join(format!("of-{name}"))).expect("what the kernel has read");
            let mut ours = vec![0; volume.len as usize];
            store.read_at(0, &mut ours).expect("it is read");
            assert!(!ours.is_empty() && ours == theirs, "{name}");
            assert!(store.write_clobbering(0, &mut [0; 512]).is_err());
        }
    }
    let (group, ..) = open(&[&older, &b, &c], "vg/ends").expect("the newest metadata count");
    assert!(group.warnings.iter().any(|warning| warning.contains("older metadata")), "{group:?}");
    // What lies on the disks at hand opens, and nothing else.
    assert_eq!(open(&[&a, &c], "vg/ends").expect("it opens").0.missing, 1);
    let whole = "a part of it is on another physical volume";
    let other = in_memory(two().make());
    for (stores, name, why) in [
        (&[&a, &c][..], "vg/striped", whole),
        (&[&a], "vg/linear", whole),
        (&[&b], "vg/linear", "metadata are only on others"),
        (&[&a, &b, &a], "vg/linear", "is there twice"),
        (&[&a, &b, &c], "vg/none", "there is no logical volume none; existing: vg/ends, vg/linear, vg/striped"),
        (&[&a, &b, &c], "other/linear", "there is no volume group other; existing: vg"),
        (&[&a, &other], "vg/linear", "several volume groups called vg"),
        (&[&a, &b, &c, &in_memory(vec![0; 1 << 20])], "vg/linear", "disk 3: no physical volume of the group vg"),
    ] {
        let error = open(stores, name).err().expect(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

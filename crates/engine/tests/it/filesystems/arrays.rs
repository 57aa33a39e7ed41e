//! Arrays of Linux RAID: the kernel of user-mode Linux and mdadm make them, and every byte is compared with the kernel's, also with
//! members missing.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::arrays::{self, AssembledArray};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Error, ErrorKind, Result, Store};
use claviger_testkit::raid::{self, MemberRecipe};
use claviger_testkit::random::{Random, noise};
use claviger_testkit::{tools, uml};

/// One array of the kernel.
struct Case {
    name: String,
    /// mdadm's options for the level and its layout.
    options: &'static str,
    metadata: &'static str,
    /// The size of each member, in KiB.
    sizes: Vec<u64>,
    /// How many members may be missing, whichever they are.
    losable: usize,
}

/// All levels, layouts and versions of the metadata.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |options: &'static str, metadata, sizes: &[u64], losable| {
        let name = format!("{}{}", options.replace(|c: char| !c.is_ascii_alphanumeric(), ""), all.len());
        all.push(Case { name, options, metadata, sizes: sizes.to_vec(), losable });
    };
    for metadata in ["0.90", "1.0", "1.1", "1.2"] {
        add("-l linear", metadata, &[1600, 2000, 1536], 0);
        // Version 0.90 does not record which layout a RAID 0 has, so mdadm makes none.
        if metadata != "0.90" {
            add("-l 0 -c 16", metadata, &[1600, 1600, 1600], 0);
        }
        add("-l 1", metadata, &[1600, 1600], 1);
        add("-l 5 -c 16", metadata, &[1600, 1700, 1600, 1600], 1);
        add("-l 6 -c 4", metadata, &[1600, 1600, 1600, 1600, 1600], 2);
        add("-l 10 -c 8", metadata, &[1600, 1600, 1600, 1600], 1);
    }
    add("-l linear", "1.2", &[1600], 0);
    add("-l 0 -c 16 --layout=original", "1.2", &[1600, 2100, 2900, 2100], 0);
    add("-l 0 -c 16 --layout=alternate", "1.2", &[1600, 2100, 2900, 2100], 0);
    add("-l 0 -c 12", "1.2", &[1600, 1700], 0);
    add("-l 1", "1.2", &[1600, 1600, 1600], 2);
    add("-l 4 -c 32", "1.2", &[1600, 1600, 1600, 1600], 1);
    add("-l 5 -c 8", "1.2", &[1600, 1600], 1);
    for layout in [
        "-l 5 -c 4 --layout=la",
        "-l 5 -c 8 --layout=ra",
        "-l 5 -c 8 --layout=ls",
        "-l 5 -c 4 --layout=rs",
        "-l 5 -c 4 --layout=parity-first",
        "-l 5 -c 4 --layout=parity-last",
    ] {
        add(layout, "1.2", &[1400, 1400, 1400, 1400, 1400], 1);
    }
    for layout in [
        "-l 6 -c 4 --layout=la",
        "-l 6 -c 8 --layout=ra",
        "-l 6 -c 8 --layout=ls",
        "-l 6 -c 4 --layout=rs",
        "-l 6 -c 4 --layout=parity-first",
        "-l 6 -c 4 --layout=ddf-zero-restart",
        "-l 6 -c 4 --layout=ddf-N-restart",
        "-l 6 -c 4 --layout=ddf-N-continue",
        "-l 6 -c 4 --layout=left-asymmetric-6",
        "-l 6 -c 4 --layout=right-asymmetric-6",
        "-l 6 -c 4 --layout=left-symmetric-6",
        "-l 6 -c 4 --layout=right-symmetric-6",
        "-l 6 -c 4 --layout=parity-first-6",
    ] {
        add(layout, "1.2", &[1300, 1300, 1300, 1300, 1300, 1300], 2);
    }
    add("-l 6 -c 4", "1.2", &[1300, 1300, 1300, 1300], 2);
    for (layout, devices, losable) in [
        ("-l 10 -c 4 --layout=n2", 5, 1),
        ("-l 10 -c 4 --layout=n3", 5, 2),
        ("-l 10 -c 4 --layout=f2", 4, 1),
        ("-l 10 -c 8 --layout=f2", 5, 1),
        ("-l 10 -c 4 --layout=f3", 5, 2),
        ("-l 10 -c 4 --layout=o2", 4, 1),
        ("-l 10 -c 4 --layout=o2", 5, 1),
        ("-l 10 -c 4 --layout=o3", 5, 2),
        ("-l 10 -c 4 --layout=n2", 2, 1),
        ("-l 10 -c 4 --layout=f2", 2, 1),
    ] {
        add(layout, "1.2", &[1400; 5][..devices], losable);
    }
    all
}

/// Needs mdadm, user-mode Linux and a folder with random bytes to fill arrays with.
fn kernel() -> Option<tempfile::TempDir> {
    tools::program("mdadm")?;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("random"), noise(8 << 20, 5)).expect("written");
    Some(folder)
}

/// What each script begins with: `make NAME METADATA OPTIONS SIZE…` makes `/dev/md0`, `keep NAME` writes down its contents and stops it.
fn script(folder: &Path) -> String {
    format!(
        r#"set -e
export MDADM_NO_UDEV=1
modprobe -a raid0 raid1 raid10 raid456 linear
cd {}
make() {{
    name=$1 metadata=$2 options=$3; shift 3
    n=0; loops=
    for size; do
        truncate -s "${{size}}K" $name.$n; losetup /dev/loop$n $name.$n; loops="$loops /dev/loop$n"; n=$((n + 1))
    done
    named="--name=$name"; [ $metadata != 0.90 ] || named=
    mdadm -q --create /dev/md0 --run --force --assume-clean --homehost=nas $named -e $metadata $options -n $n $loops
}}
fill() {{ dd if=random of=/dev/md0 bs=64k oflag=direct "$@" 2>/dev/null || true; }}
keep() {{
    cat /dev/md0 >$1.content
    mdadm -E --export /dev/loop0 >$1.facts
    mdadm -q --stop /dev/md0
    for loop in /sys/block/loop*/loop; do losetup -d /dev/$(basename $(dirname $loop)); done
}}
"#,
        folder.display()
    )
}

fn image(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn in_memory(bytes: Vec<u8>) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(bytes))
}

/// The members `NAME.0`, `NAME.1` …
fn members(folder: &Path, name: &str, count: usize) -> Vec<(String, Arc<dyn Store>)> {
    let member = |i| (format!("disk{i}"), in_memory(image(folder, &format!("{name}.{i}"))));
    (0..count).map(member).collect()
}

/// Those of the members whose bit is not set.
fn without(all: &[(String, Arc<dyn Store>)], missing: u32) -> Vec<(String, Arc<dyn Store>)> {
    all.iter().enumerate().filter(|(i, _)| missing >> i & 1 == 0).map(|(_, member)| member.clone()).collect()
}

fn contents(array: &AssembledArray) -> Vec<u8> {
    let mut bytes = vec![0; array.store.len() as usize];
    array.store.read_at(0, &mut bytes).expect("it is read");
    bytes
}

fn failure(assembled: Result<AssembledArray>) -> Error {
    assembled.err().expect("it is refused")
}

#[test]
fn every_byte_is_the_kernels_whichever_members_are_missing() {
    let Some(folder) = kernel() else { return };
    let folder = folder.path();
    let mut text = script(folder);
    for Case { name, options, metadata, sizes, .. } in cases() {
        let sizes: Vec<_> = sizes.iter().map(u64::to_string).collect();
        writeln!(text, "make {name} {metadata} '{options}' {}; fill; keep {name}", sizes.join(" ")).expect("a text");
    }
    let Some(done) = uml::run(&text, &[], 400) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    for Case { name, options, sizes, losable, .. } in cases() {
        let content = image(folder, &format!("{name}.content"));
        let facts = String::from_utf8(image(folder, &format!("{name}.facts"))).expect("UTF-8");
        let all = members(folder, &name, sizes.len());
        for missing in 0..1u32 << sizes.len() {
            let count = missing.count_ones() as usize;
            let given = without(&all, missing);
            match arrays::assemble(given, None) {
                Ok(array) => {
                    assert!(contents(&array) == content, "{name} without {missing:b}");
                    assert_eq!(array.missing.len(), count);
                    assert_eq!(array.warnings.len(), usize::from(count > 0), "{:?}", array.warnings);
                    assert!(facts.contains(&format!("MD_UUID={}\n", array.member.uuid)), "{facts}");
                }
                // Of more copies in RAID 10, some remain by luck.
                Err(e) => assert!(count > losable && count > 0, "{name} without {missing:b}: {e}"),
            }
            let beyond = count > losable && !options.starts_with("-l 10");
            assert!(!beyond || arrays::assemble(without(&all, missing), None).is_err(), "{name} without {missing:b}");
        }
        // Pieces at odd places.
        let array = arrays::assemble(without(&all, u32::from(losable > 0)), None).expect("it is assembled");
        let mut random = Random::new(11);
        for _ in 0..50 {
            let at = random.below(content.len());
            let len = random.below((content.len() - at).min(70_000)) + 1;
            let mut piece = vec![0; len];
            array.store.read_at(at as u64, &mut piece).expect("it is read");
            assert!(piece == content[at..at + len], "{name} at {at}");
        }
        assert!(array.store.read_at(content.len() as u64, &mut [0]).is_err());
        assert!(array.store.write_clobbering(0, &mut [0]).is_err() && !array.store.writable());
    }
}

/// Members that left the array, are rebuilt, are spares, or have bad blocks.
#[test]
fn members_in_every_state_are_used_as_far_as_they_are_valid() {
    let Some(folder) = kernel() else { return };
    let folder = folder.path();
    let text = script(folder)
        + r#"
fail() { mdadm -q /dev/md0 --fail /dev/loop$1; sleep 0.3; mdadm -q /dev/md0 --remove /dev/loop$1; }
# A member that left, before other data were written.
make stale 1.2 '-l 5 -c 16' 1600 1600 1600; fill; fail 1; fill skip=20; keep stale
make old 0.90 '-l 1' 1600 1600; fill; fail 0; fill skip=20; cat /dev/md0 >old.content; mdadm -q --stop /dev/md0; losetup -D
# A member whose rebuild stopped half way.
make rebuilt 1.2 '-l 1' 1600 1600; fill; fail 1
mdadm -q --zero-superblock /dev/loop1; head -c 1638400 /dev/zero >/dev/loop1
echo 512 >/sys/block/md0/md/sync_max; mdadm -q /dev/md0 --add /dev/loop1
for i in $(seq 100); do grep -q '^512 ' /sys/block/md0/md/sync_completed && break; sleep 0.1; done
cat /sys/block/md0/md/sync_completed; echo frozen >/sys/block/md0/md/sync_action; keep rebuilt
# A spare.
truncate -s 1600K spare.2; make spare 1.2 '-l 1' 1600 1600; fill; losetup /dev/loop2 spare.2; mdadm -q /dev/md0 --add /dev/loop2
sleep 0.5; keep spare
# Blocks that could not be written: on the second member, 8 sectors from the 16th of its data.
make bad 1.2 '-l 5 -c 16' 1600 1600 1600; fill; sleep 0.5
echo "$(( $(cat /sys/block/md0/md/dev-loop1/offset) + 16 )) 8" >/sys/block/md0/md/dev-loop1/bad_blocks
cat /sys/block/md0/md/dev-loop1/offset >bad.offset; fill skip=8 seek=8 count=1; sleep 0.5; keep bad
# An array whose state is copied while it is written to, with a member missing.
make dirty 1.2 '-l 5 -c 16' 1600 1600 1600; fail 2; echo 100 >/sys/block/md0/md/safe_mode_delay; fill
for i in 0 1; do cp dirty.$i copied.$i; done; keep dirty
# With a bitmap, a member that is read last, and a journal.
make mostly 1.2 '-l 1 -b internal' 1600 1600; fill; echo writemostly >/sys/block/md0/md/dev-loop0/state; sleep 0.3; keep mostly
"#;
    let Some(done) = uml::run(&text, &[], 400) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    let content = |name: &str| image(folder, &format!("{name}.content"));
    let all = |name: &str, count| members(folder, name, count);

    // A member that left the array is named and never mixed with the newer state. Alone, it shows its own, older state.
    let stale = arrays::assemble(all("stale", 3), None).expect("two are current");
    assert!(contents(&stale) == content("stale"));
    assert_eq!(stale.missing, [1]);
    assert!(stale.warnings.iter().any(|warning| warning.starts_with("disk1 is not used:")), "{:?}", stale.warnings);
    let error = failure(arrays::assemble(without(&all("stale", 3), 0b100), None)).to_string();
    assert!(error.contains("missing or not complete: 2, 3"), "{error}");
    let old = arrays::assemble(all("old", 2), None).expect("one is current");
    assert!(contents(&old) == content("old") && old.member.metadata == "0.90");
    assert!(old.warnings[0].starts_with("disk0 is not used: it holds an older state"), "{:?}", old.warnings);

    // The part that is not rebuilt is not read from there.
    let rebuilt = arrays::assemble(all("rebuilt", 2), None).expect("one is complete");
    assert!(contents(&rebuilt) == content("rebuilt"));
    let error = failure(arrays::assemble(without(&all("rebuilt", 2), 1), None)).to_string();
    assert!(error.contains("missing or not complete: 1, 2"), "{error}\n{}", done.output);

    let spare = arrays::assemble(all("spare", 3), None).expect("both are there");
    assert!(contents(&spare) == content("spare") && spare.missing.is_empty());
    assert_eq!(spare.warnings, ["disk2 is not used: it is a spare and holds no data."]);

    // Bad blocks come from the others: what the member has there does not count.
    let offset: usize =
        String::from_utf8(image(folder, "bad.offset")).expect("UTF-8").trim().parse().expect("a number");
    let mut worse = image(folder, "bad.1");
    worse[(offset + 16) * 512..][..8 * 512].fill(0xee);
    let mut given = all("bad", 3);
    given[1].1 = in_memory(worse);
    let array = arrays::assemble(given.clone(), None).expect("it is assembled");
    assert!(contents(&array) == content("bad"));
    let degraded = arrays::assemble(without(&given, 1), None).expect("it is assembled");
    let mut bytes = vec![0; degraded.store.len() as usize];
    let error = degraded.store.read_at(0, &mut bytes).expect_err("nobody has these").to_string();
    assert!(error.contains("missing or cannot be read"), "{error}");

    let dirty = arrays::assemble(all("copied", 2), None).expect("two are there");
    assert!(!dirty.member.clean, "{:?}", dirty.member);
    assert!(dirty.warnings.iter().any(|warning| warning.contains("--force")), "{:?}", dirty.warnings);
    let clean = arrays::assemble(without(&all("dirty", 3), 0b100), None).expect("two are there");
    assert!(clean.member.clean && clean.warnings.len() == 1, "{:?}", clean.warnings);

    let mostly = arrays::assemble(all("mostly", 2), None).expect("both are there");
    assert!(contents(&mostly) == content("mostly") && mostly.member.bitmap);
    let of = |i: usize| arrays::members(&all("mostly", 2)[i].1).expect("a member").remove(0);
    assert!(of(0).write_mostly && !of(1).write_mostly);
}

/// Members of two arrays, in partitions, twice, or of shapes that cannot be read.
#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    let one = MemberRecipe::default();
    let data = noise(64 << 10, 1);
    let made = |recipe: MemberRecipe| in_memory(recipe.make(&data));
    let named = |name: &str, recipe| (name.to_owned(), made(recipe));
    let second = MemberRecipe { role: 1, ..one };
    let other = MemberRecipe { array: 8, name: "nas:music", ..second };

    let two_arrays = || vec![named("a", one), named("b", other)];
    let error = failure(arrays::assemble(two_arrays(), None)).to_string();
    for word in
        ["several RAID arrays: data, 07000000:00000000:00000000:00000000 (RAID 1, 2 devices); music, 08", "md:NAME@"]
    {
        assert!(error.contains(word), "{error}");
    }
    for choice in ["music", "nas:music", "08000000:00000000:00000000:00000000"] {
        let array = arrays::assemble(two_arrays(), Some(choice)).expect(choice);
        assert!(array.member.name.as_deref() == Some("music") && array.missing == [0] && contents(&array) == data);
    }
    let error = failure(arrays::assemble(two_arrays(), Some("films"))).to_string();
    assert!(error.contains("there is no RAID array films; existing: data"), "{error}");

    for version in ["0.90", "1.2"] {
        let one = MemberRecipe { version, ..one };
        let error = failure(arrays::assemble(vec![named("a", one), named("b", one)], None)).to_string();
        assert!(error.contains("a and b are the same member"), "{error}");
    }
    let error = failure(arrays::assemble(vec![named("a", one), ("b".to_owned(), in_memory(data.clone()))], None));
    assert!(error.to_string().starts_with("b: not a member"), "{error}");

    for (recipe, word) in [
        (MemberRecipe { features: 4, ..one }, "is being reshaped"),
        (MemberRecipe { features: 1 << 20, ..one }, "unknown features (0x100000)"),
        (MemberRecipe { level: -4, ..one }, "multipath"),
        (MemberRecipe { level: 7, ..one }, "there is no RAID level 7"),
        (MemberRecipe { level: 5, layout: 6, chunk: 4096, ..one }, "RAID 5 with the layout 6"),
        (MemberRecipe { level: 5, layout: 2, ..one }, "RAID 5 with chunks of 0 bytes"),
        (MemberRecipe { level: 10, layout: 0x303, chunk: 4096, ..one }, "with the layout 0x303"),
        (MemberRecipe { devices: 0, ..one }, "without devices"),
        (MemberRecipe { devices: 65, ..one }, "have room for 64"),
    ] {
        let error = failure(arrays::assemble(vec![named("a", recipe)], None)).to_string();
        assert!(error.contains(word), "{error}");
    }
    let mut swapped = MemberRecipe { version: "0.90", ..one }.make(&data);
    let at = swapped.len() - (64 << 10);
    swapped[at..at + 4].reverse();
    let error = failure(arrays::assemble(vec![("a".to_owned(), in_memory(swapped))], None));
    assert!(error.to_string().contains("big-endian"), "{error}");
    let mut damaged = one.make(&data);
    damaged[4096 + 100] ^= 1;
    let error = failure(arrays::assemble(vec![("a".to_owned(), in_memory(damaged))], None));
    assert!(matches!(error.kind, ErrorKind::Malformed { field: "sb_csum", .. }), "{error}");

    // A RAID 0 of unequal members without a recorded layout could be read in two ways.
    let unequal = |role, len| {
        let recipe = MemberRecipe { level: 0, chunk: 4096, role, ..one };
        (format!("disk{role}"), in_memory(recipe.make(&data[..len])))
    };
    let error = failure(arrays::assemble(vec![unequal(0, 64 << 10), unequal(1, 32 << 10)], None)).to_string();
    assert!(error.contains("before or since Linux 3.14"), "{error}");
}

/// A disk of a NAS: its members are partitions, and the last one's superblock at the end of the disk is not taken for the disk's.
#[test]
fn members_are_found_in_partitions() {
    const START: usize = 1 << 20;
    let data = noise(64 << 10, 1);
    for version in ["0.90", "1.0", "1.2"] {
        let member = MemberRecipe { version, ..MemberRecipe::default() }.make(&data);
        let mut disk = vec![0; START];
        let mut entry = [0; 16];
        entry[4] = 0xfd;
        entry[8..12].copy_from_slice(&(START as u32 / 512).to_le_bytes());
        entry[12..].copy_from_slice(&(member.len() as u32 / 512).to_le_bytes());
        disk[446..462].copy_from_slice(&entry);
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk.extend_from_slice(&member);
        let disk = in_memory(disk);
        let found = arrays::members(&disk).expect("they are read");
        assert_eq!((found.len(), found[0].partition, found[0].metadata), (1, Some(1), version));
        assert!(contents(&arrays::assemble(vec![("disk".to_owned(), disk)], None).expect("it is assembled")) == data);
    }
}

/// Each change of a superblock, with a right checksum, gives an error or an array that is read without a panic.
#[test]
fn hostile_superblocks_give_errors() {
    let data = noise(32 << 10, 1);
    let mut random = Random::new(9);
    let mut assembled = 0;
    for (i, (version, level, layout)) in
        [("0.90", 5, 2), ("1.0", 10, 0x102), ("1.1", 6, 2), ("1.2", 5, 2), ("1.2", 0, 0), ("1.2", 10, 0x10201)]
            .into_iter()
            .cycle()
            .take(600)
            .enumerate()
    {
        let recipe = MemberRecipe { version, level, layout, chunk: 4096, devices: 4, ..MemberRecipe::default() };
        let clean: Vec<_> = (0..4).map(|role| MemberRecipe { role, ..recipe }.make(&data)).collect();
        let start = match version {
            "0.90" => clean[0].len() - (64 << 10),
            "1.0" => (clean[0].len() / 4096 - 2) * 4096,
            "1.1" => 0,
            _ => 4096,
        };
        let fields = if version == "0.90" { 272 } else { 264 };
        let (at, len) = (start + 4 + random.below(fields), random.below(8) + 1);
        let number =
            *random.choose(&[0u64, 1, 2, 255, 65_535, 1 << 31, u64::from(u32::MAX), 1 << 54, 1 << 63, u64::MAX]);
        let changed = |mut bytes: Vec<u8>| {
            bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
            raid::seal(&mut bytes);
            in_memory(bytes)
        };
        // In one member, or in all of them.
        let given = clean.into_iter().enumerate().map(|(role, bytes)| {
            let store = if role == 0 || i % 2 == 0 { changed(bytes) } else { in_memory(bytes) };
            (format!("disk{role}"), store)
        });
        match arrays::assemble(given.collect(), None) {
            Ok(array) => {
                assembled += 1;
                let len = array.store.len();
                for at in [0, len / 2, len.saturating_sub(9000)] {
                    let _ = array.store.read_at(at, &mut vec![0; (len - at).min(9000) as usize]);
                }
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
    assert!((50..600).contains(&assembled), "{assembled} of 600 mattered less");
}

//! Disks out of a NAS: members of a Linux RAID array that the kernel of user-mode Linux made, with LUKS2 in LVM2 in it.

use std::fs;

use claviger_testkit::{tools, uml};

use crate::common::mounts::MountSpace;
use crate::common::*;

/// The UUID of the array.
const UUID: &str = "01234567:89abcdef:01234567:89abcdef";

/// Three members of a RAID 5 called `data`, with a LUKS2 volume in the logical volume `vg/secret`.
struct Nas {
    disks: [String; 3],
}

impl Nas {
    fn new(folder: &Folder) -> Option<Self> {
        ["mdadm", "lvm"].map(tools::program).into_iter().collect::<Option<Vec<_>>>()?;
        let luks = folder.str("secret.luks");
        let create =
            ["create", "--format", "LUKS2", "--quick", "--size", "8M", "--kdf", "pbkdf2", "--iterations", "1000"];
        let small = ["--metadata-size", "16K", "--keyslots-size", "768K", "--offset", "1M", "--filesystem", "fat"];
        run(create.into_iter().chain(small).chain(["--password-file", &folder.password, &luks])).succeeds();
        let letter = folder.str("letter");
        fs::write(&letter, "dear").expect("a file");
        run(["cp", "--password-file", &folder.password, &luks, &letter, ":/"]).succeeds();
        let disks = ["a.img", "b.img", "c,(d).img"].map(|name| folder.str(name));
        let [a, b, c] = &disks;
        let script = format!(
            r#"set -e
export MDADM_NO_UDEV=1
modprobe raid456; mkdir -p /run/lock
n=0; for disk in '{a}' '{b}' '{c}'; do truncate -s 10M "$disk"; losetup /dev/loop$n "$disk"; n=$((n + 1)); done
mdadm -q --create /dev/md0 --run --assume-clean --homehost=nas --name=data --uuid={UUID} -e 1.2 -l 5 -c 16 -n 3 \
    /dev/loop0 /dev/loop1 /dev/loop2
L() {{ lvm "$@" --config 'devices {{ filter=["a|/dev/md.*|","r|.*|"] use_devicesfile=0 obtain_device_list_from_udev=0
  external_device_info_source="none" }} activation {{ udev_sync=0 udev_rules=0 monitoring=0 verify_udev_operations=0 }}
  global {{ locking_dir="/run/lock/lvm" use_lvmpolld=0 }} backup {{ backup=0 archive=0 }}'; }}
L pvcreate -y /dev/md0; L vgcreate -s 1m vg /dev/md0; L lvcreate -y -Wn -l 8 -n secret vg
dd if='{luks}' of=/dev/mapper/vg-secret bs=1M oflag=direct; L vgchange -an vg; mdadm -q --stop /dev/md0
"#
        );
        let done = uml::run(&script, &[], 300)?;
        assert_eq!(done.status, 0, "{}", done.output);
        Some(Self { disks })
    }

    /// The name of the array, with all members or without the second.
    fn name(&self, complete: bool) -> String {
        let [a, b, c] = &self.disks;
        if complete { format!("md:{a},{b},({c})") } else { format!("md:{a},({c})") }
    }
}

#[test]
fn members_of_an_array_are_identified_and_lead_to_what_is_inside() {
    let folder = Folder::new();
    let Some(nas) = Nas::new(&folder) else { return };
    let [a, b, c] = nas.disks.each_ref().map(String::as_str);
    let one = run(["identify", b]).succeeds().text();
    let what = format!("a member of the Linux RAID array data (RAID 5, device 2 of 3), UUID {UUID}");
    for word in [&*what, &format!("add its other members, separated by commas: `claviger identify md:{b}`")] {
        assert!(one.contains(word), "{one}");
    }
    let explained = run(["explain", "--without-password", b]).fails(3, &[]).text();
    let command = format!("claviger explain md:{b},OTHER");
    for word in ["It is a member of the Linux RAID array data (RAID 5, device 2 of 3).", &command] {
        assert!(explained.contains(word), "{explained}");
    }
    let all = run(["identify", a, b, c]).succeeds().text();
    let step = format!("To examine the Linux RAID array data: `claviger identify 'md:{a},{b},({c})'`");
    assert!(all.contains(&step), "{all}");
    let json = run(["identify", "--json", c, a, b]).succeeds().json();
    let member = &json[0]["raid_members"][0];
    let facts = (&member["uuid"], &member["device"], &member["level"]);
    assert_eq!(facts, (&UUID.into(), &2.into(), &"raid5".into()), "{json}");
    assert_eq!(member["open_as"], format!("md:({c}),{a},{b}"), "{json}");

    let inside = run(["identify", &nas.name(true)]).succeeds();
    let volume = format!("lvm:vg/secret@({})", nas.name(true));
    assert!(inside.text().contains(&format!("logical volume vg/secret: `claviger identify '{volume}'`")), "{inside:?}");
    assert!(inside.err.is_empty(), "{inside:?}");
    assert!(run(["identify", &volume]).succeeds().text().contains("LUKS2"));
    let json = run(["identify", "--json", &nas.name(true)]).succeeds().json();
    assert_eq!(json[0]["logical_volumes"][0]["open_as"], volume, "{json}");
}

#[test]
fn a_volume_in_a_degraded_array_opens_and_is_only_read() {
    let folder = Folder::new();
    let Some(nas) = Nas::new(&folder) else { return };
    let before = nas.disks.each_ref().map(|disk| fs::read(disk).expect("a member"));
    let volume = format!("lvm:vg/secret@({})", nas.name(false));
    let password = ["--password-file", &folder.password];
    let list = run([&["ls"][..], &password, &[&volume]].concat()).succeeds();
    assert!(list.text().contains("letter"), "{list:?}");
    let missing = "Device 2 of 3 of the Linux RAID array data is missing. Its data are computed from the others.";
    assert_eq!(list.err.matches(missing).count(), 1, "{}", list.err);
    let cat = run([&["cat"][..], &password, &["--file", "/letter", &volume]].concat());
    assert_eq!(cat.succeeds().out, b"dear");

    // Nobody is asked anything before it is refused: there is no terminal and no password.
    let array = nas.name(true);
    let verbs =
        [&["keyslot", "add", &volume][..], &["change", &volume], &["serve", &volume], &["serve", "--raw", &array]];
    for verb in verbs {
        run(verb).fails(6, &["the array is read-only here", "--read-only"]);
    }
    let copy = folder.str("copy");
    let command = format!("nbdcopy \"$uri\" {copy}");
    if tools::program("nbdcopy").is_some() {
        run(["serve", "--raw", "--read-only", "--run", &command, &volume]).succeeds();
        assert!(fs::read(&copy).expect("a copy") == fs::read(folder.path("secret.luks")).expect("the volume"));
    }
    assert!(nas.disks.each_ref().map(|disk| fs::read(disk).expect("a member")) == before, "nothing was written");
}

#[test]
fn a_volume_in_an_array_is_mounted_read_only() {
    let Some(place) = MountSpace::root() else { return };
    let Some(nas) = Nas::new(&place.folder) else { return };
    let volume = format!("lvm:vg/secret@({})", nas.name(true));
    let dir = place.dir("d");
    let mount = ["mount", "--read-only", "--password-file", &place.folder.password, &volume, &dir];
    place.run(mount).succeeds();
    assert_eq!(fs::read_to_string(format!("{dir}/letter")).expect("a file"), "dear");
    assert!(place.run(["list"]).succeeds().text().contains(&volume));
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
}

/// A logical volume outside an array is written to.
#[test]
fn a_logical_volume_on_a_disk_is_changed() {
    let folder = Folder::new();
    let disk = folder.str("disk@1.img");
    let text = claviger_testkit::lvm2::volume("secret", &[(1024, &claviger_testkit::lvm2::linear(0))]);
    fs::write(&disk, claviger_testkit::lvm2::Recipe::new(1024, &text).make()).expect("a disk");
    let volume = format!("lvm:vg/secret@({disk})");
    let create =
        ["create", "--format", "LUKS2", "--quick", "--force", "--yes", "--kdf", "pbkdf2", "--iterations", "1000"];
    let small = ["--metadata-size", "16K", "--keyslots-size", "768K", "--offset", "1M", "--filesystem", "fat"];
    let password = ["--password-file", &folder.password];
    run([&create[..], &small, &password, &[&volume]].concat()).succeeds();
    run([&["cp"][..], &password, &[&volume, &folder.password, ":/letter"]].concat()).succeeds();
    let cat = run([&["cat"][..], &password, &["--file", "/letter", &volume]].concat()).succeeds();
    assert_eq!(cat.out, fs::read(&folder.password).expect("a file"));
    let named = run(["identify", &disk]).succeeds().text();
    assert!(named.contains(&format!("logical volume vg/secret: `claviger identify '{volume}'`")), "{named}");
}

#[test]
fn invalid_names_and_missing_members_are_explained() {
    let folder = Folder::new();
    let file = folder.str("x");
    fs::write(&file, vec![0; 1 << 20]).expect("a file");
    let not = format!("md:{file}");
    run(["identify", &not]).fails(1, &["x: not a member of a Linux RAID array"]);
    run(["ls", &format!("lvm:vg/home@{file}")]).fails(1, &["there is no logical volume vg/home"]);
    run(["ls", "md:(x"]).fails(1, &["a parenthesis is not closed"]);
    run(["identify", &format!("md:{file},/no/such.img")]).fails(6, &["/no/such.img"]);
    fs::write(folder.path("md:x"), "").expect("a file");
    let refused = done(claviger().args(["ls", "md:x"]).current_dir(folder.path(".")).output().expect("it starts"));
    refused.fails(1, &["a file here has this name, but md: also names an assembled store", "./md:x"]);
}

/// A LUKS2 volume in a logical volume that begins on one disk and ends on the other.
#[test]
fn a_logical_volume_on_two_disks_is_named_by_both_and_read() {
    let folder = Folder::new();
    let luks = folder.luks2("luks");
    let bytes = fs::read(&luks).expect("the volume");
    let disks = claviger_testkit::lvm2::on_two_disks("secret", &bytes);
    let [a, b] = ["a", "b"].map(|name| folder.str(name));
    for (path, disk) in [&a, &b].into_iter().zip(&disks) {
        fs::write(path, disk).expect("a disk");
    }
    let volume = format!("lvm:vg/secret@{a},{b}");
    let named = run(["identify", &a, &b]).succeeds().text();
    assert_eq!(named.matches(&format!("logical volume vg/secret: `claviger identify {volume}`")).count(), 2, "{named}");
    let alone = run(["identify", &a]).succeeds().text();
    assert!(alone.contains("The volume group vg has one more physical volume.") && !alone.contains("lvm:"), "{alone}");
    assert!(run(["identify", &volume]).succeeds().text().contains("LUKS2"));
    let cat = |volume: &str| run(["cat", "--password-file", &folder.password, volume]).succeeds().out;
    let (all, expected) = (cat(&volume), cat(&luks));
    assert!(all.len() > 3 << 20 && all == expected);
    let refused = "a logical volume on several disks is only read";
    run(["serve", &volume]).fails(6, &[refused, "--read-only", "activate the group with LVM2"]);
    run(["ls", &format!("lvm:vg/secret@{a}")])
        .fails(5, &["a part of it is on another physical volume", "lvm:vg/secret@DISK,DISK"]);
    assert!(fs::read(&a).expect("a disk") == disks[0] && fs::read(&b).expect("a disk") == disks[1]);
}

/// A mirror with metadata 0.90 begins with its data, so its members open as what the mirror holds.
#[test]
fn half_of_a_mirror_is_read_but_not_written() {
    let folder = Folder::new();
    let (luks, half, new) = (folder.luks2("luks"), folder.str("half"), folder.str("new"));
    fs::write(&new, "another one").expect("a password file");
    let mut bytes = fs::read(&luks).expect("read");
    bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
    let member = claviger_testkit::raid::MemberRecipe { version: "0.90", ..Default::default() };
    let bytes = member.make(&bytes);
    fs::write(&half, &bytes).expect("written");
    let password = &*folder.password;
    run(["info", "--password-file", password, &half]).succeeds();
    let change = ["keyslot", "change", "--password-file", password, "--new-password-file", &new, &half];
    run(change).fails(5, &["the other members would differ", "mdadm"]);
    run(["serve", "--password-file", password, &half]).fails(5, &["the other members would differ"]);
    assert!(fs::read(&half).expect("read") == bytes, "nothing was written");
}

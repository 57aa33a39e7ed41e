//! Mounting without root: programs that serve file systems by FUSE, over the file that we serve.

use std::fs;

use crate::common::done;
use crate::common::mounts::*;
use claviger_testkit::tools;

/// Mounts, writes as the user, unmounts, mounts again and reads.
fn keeps_files(place: &MountSpace, volume: &str, filesystem: &str) {
    let dir = place.dir("d");
    let report = place.mount(volume, &dir, &[]).succeeds().json();
    assert_eq!(report["filesystem"].as_str(), Some(filesystem));
    let write = format!(
        "mkdir {dir}/sub; seq 100000 > {dir}/sub/numbers; cp {dir}/sub/numbers {dir}/copy; rm {dir}/sub/numbers"
    );
    place.shell(&write).succeeds();
    let one = &place.list()[0];
    assert!(one["written"].as_u64() > Some(0) && one["state"] == "alive", "{one}");
    // Root does not see a user's records, and other users cannot see the files.
    assert!(fs::read_dir(&dir).is_err(), "FUSE keeps others out, root too");
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir) && place.list().is_empty());

    place.mount(volume, &dir, &["--read-only"]).succeeds();
    let read = place.shell(&format!("ls {dir}/sub; cat {dir}/copy")).succeeds();
    let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert!(read.text() == numbers);
    place.shell(&format!("! touch {dir}/x 2>/dev/null")).succeeds();
    place.unmount(volume).succeeds();
    place.nothing_is_left();
}

#[test]
fn a_user_mounts_ext4() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("fuse2fs") else { return };
    let volume = place.ext4("v.tc");
    keeps_files(&place, &volume, "ext4");
}

#[test]
fn a_user_mounts_ntfs_where_the_administrator_lets_users_share() {
    let Some(place) = MountSpace::user() else { return };
    for program in ["ntfs-3g", "mkntfs", "unshare"] {
        let Some(_) = tools::program(program) else { return };
    }
    let volume = place.volume("v.tc", "20M", &["mkntfs", "-F", "-Q", "-q"]);
    let dir = place.dir("d");
    // In a namespace of its own, so that the system's file stays as it is.
    let conf = place.folder.str("fuse.conf");
    fs::write(&conf, "user_allow_other\n").expect("written");
    let claviger = env!("CARGO_BIN_EXE_claviger");
    let mount = format!("{claviger} mount --hash SHA-512 --password-file {} {volume} {dir}", place.folder.password);
    let script = format!(
        "{mount} >&2; grep -c ' {dir} ' /proc/self/mountinfo; mkdir {dir}/sub; seq 100000 > {dir}/sub/numbers
         {claviger} unmount {dir} >&2; ! ls {dir}/sub 2>/dev/null
         {mount} --read-only >&2; sha256sum < {dir}/sub/numbers; ! touch {dir}/x 2>/dev/null; {claviger} unmount {volume} >&2"
    );
    let user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups -- sh -ec \"$0\"");
    let outer = format!("mount --bind {conf} /etc/fuse.conf; {user}");
    let mut command = place.root_command("unshare");
    let output = command.args(["--mount", "sh", "-ec", &outer, &script]).output().expect("it starts");
    let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let said = done(output).succeeds().text();
    assert_eq!(said, format!("1\n{}  -\n", crate::common::sha256(numbers.as_bytes())));
    place.nothing_is_left();
}

/// Our own FAT takes the option as a kernel's driver does.
#[test]
fn a_user_mounts_read_only_by_an_option() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("mkfs.vfat") else { return };
    let (volume, dir) = (place.volume("v.tc", "20M", &["mkfs.vfat"]), place.dir("d"));
    for (more, read_only) in [(&[][..], false), (&["-o", "ro"], true)] {
        let report = place.mount(&volume, &dir, more).succeeds().json();
        assert_eq!(report["read_only"].as_bool(), Some(read_only), "{report}");
        let refused = place.shell(&format!("touch {dir}/x")).code != 0;
        assert_eq!(refused, read_only);
        place.unmount(&dir).succeeds();
    }
}

#[test]
fn a_killed_server_takes_the_users_file_system_with_it() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("fuse2fs") else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let report = place.mount(&volume, &dir, &[]).succeeds().json();
    place.shell(&format!("echo kept > {dir}/f; sync -f {dir}/f")).succeeds();
    tools::run(place.command("kill").args(["-KILL", &report["pid"].to_string()]));
    wait_until("it is dead", || place.list()[0]["state"] == "dead");
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir) && place.list().is_empty());
    place.nothing_is_left();
    place.mount(&volume, &dir, &[]).succeeds();
    place.unmount(&dir).succeeds();
}

#[test]
fn where_a_server_was_killed_the_next_one_mounts_at_once() {
    let Some(place) = MountSpace::user() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let none = ["--filesystem", "none"];
    let report = place.mount(&volume, &dir, &none).succeeds().json();
    tools::run(place.command("kill").args(["-KILL", &report["pid"].to_string()]));
    wait_until("it is dead", || place.list()[0]["state"] == "dead");
    place.mount(&volume, &dir, &none).succeeds();
    assert!(place.mounted(&dir) && place.list().len() == 1);
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir));
}

#[test]
fn who_keeps_a_users_mount_busy_is_named() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("fuse2fs") else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    place.mount(&volume, &dir, &[]).succeeds();
    let claviger = env!("CARGO_BIN_EXE_claviger");
    place.shell(&format!("cd {dir}; ! {claviger} unmount {dir} 2>&1")).succeeds().text().find("has ").expect("who");
    assert!(place.mounted(&dir));
    // A second user, who is root here, has sessions of its own only.
    place.unmount(&dir).succeeds();
}

#[test]
fn a_server_that_proc_hides_is_not_taken_for_dead() {
    let Some(place) = MountSpace::user() else { return };
    let Some(unshare) = tools::program("unshare") else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let dir = place.dir("d");
    place.mount(&volume, &dir, &["--filesystem", "none"]).succeeds();
    // In mounts of its own, /proc shows a user nothing that it may not look into. Each mounting cleans up after the dead first.
    let hidden = format!(
        "mount -t proc -o hidepid=2 proc /proc; mkdir {0}/e; chown {USER} {0}/e; \
         exec setpriv --reuid {USER} --regid {USER} --clear-groups -- \
         sh -c '$0 list --json; ! $0 mount {1} {0}/e' $0",
        place.folder.path("").display(),
        volume,
    );
    let mut command = place.root_command(unshare);
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &hidden]).arg(env!("CARGO_BIN_EXE_claviger"));
    let list = done(command.output().expect("it starts")).succeeds().json();
    assert_eq!(list["volumes"][0]["state"].as_str(), Some("alive"), "{list}");
    assert!(place.mounted(&dir), "it was cleaned up");
    let [one] = &place.list()[..] else { panic!("it is still there") };
    assert_eq!(one["state"].as_str(), Some("alive"), "{one}");
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir));
}

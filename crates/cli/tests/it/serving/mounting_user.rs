//! Mounting without root: programs that serve file systems by FUSE, over the file that we serve.

use std::fs;
use std::path::Path;

use crate::common::mounts::*;
use crate::common::{Done, done};
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

/// Runs `script` as root, where mounts are its own. In it, `as_user` runs a command as the user.
fn in_own_mounts(place: &MountSpace, script: &str) -> Done {
    let script = format!("as_user() {{ setpriv --reuid {USER} --regid {USER} --clear-groups -- \"$@\"; }}\n{script}");
    done(place.root_command("unshare").args(["--mount", "sh", "-ec", &script]).output().expect("it starts"))
}

/// Said before anybody is asked for a password.
#[test]
fn a_user_without_fusermount3_is_told_to_install_it() {
    let Some(place) = MountSpace::user() else { return };
    for needed in ["unshare", "mkfs.fat"] {
        let Some(_) = tools::program(needed) else { return };
    }
    let (volume, new) = (place.volume("v.tc", "1M", &[]), place.folder.str("new"));
    let claviger = env!("CARGO_BIN_EXE_claviger");
    for verb in [format!("mount {volume}"), format!("create --size 36M --filesystem fat {new}")] {
        let script = format!(
            "for name in fusermount3 fusermount; do mount --bind /dev/null \"$(command -v $name)\" || true; done
             as_user {claviger} {verb}"
        );
        let words = ["program fusermount3", "not installed", "apt install fuse3", "claviger ls", "claviger cp"];
        in_own_mounts(&place, &script).fails(6, &words);
    }
    assert!(!Path::new(&new).exists());
}

#[test]
fn without_mkfs_a_user_is_told_what_to_install_and_what_works() {
    let Some(place) = MountSpace::user() else { return };
    for needed in ["unshare", "mkfs.fat", "mkfs.ext4"] {
        let Some(_) = tools::program(needed) else { return };
    }
    let (new, claviger) = (place.folder.str("new"), env!("CARGO_BIN_EXE_claviger"));
    for (format, words) in [("VeraCrypt", &["--filesystem ext4", "dosfstools"][..]), ("BitLocker", &["dosfstools"])] {
        let create = format!("create --format {format} --size 128M --filesystem fat {new}");
        let script = format!("mount --bind /dev/null \"$(command -v mkfs.fat)\"; as_user {claviger} {create}");
        let refused =
            in_own_mounts(&place, &script).fails(6, &["program mkfs.fat", "is not installed"]).fails(6, words);
        assert!(!refused.err.contains("not supported") && !refused.err.contains("--filesystem fat"), "{}", refused.err);
    }
    assert!(!Path::new(&new).exists());
}

#[test]
fn a_user_whose_fusermount3_has_no_privileges_is_told_to_make_it_setuid() {
    let Some(place) = MountSpace::user() else { return };
    let (volume, dir) = (place.volume("v.tc", "1M", &[]), place.dir("d"));
    let refused = "echo 'fusermount3: mount failed: Operation not permitted' >&2; exit 1".to_owned();
    let path = place.folder.programs([("fusermount3", refused)]);
    let mut command = place.command("env");
    command.args([&path, env!("CARGO_BIN_EXE_claviger"), "mount", "--filesystem", "none", "--hash", "SHA-512"]);
    command.args(["--password-file", &place.folder.password, &volume, &dir]);
    let words = ["Operation not permitted", "`chmod u+s ", "claviger ls", "claviger cp"];
    done(command.output().expect("it starts")).fails(6, &words);
}

#[test]
fn unmounting_without_etc_mtab_says_how_to_make_it() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("unshare") else { return };
    let (volume, dir) = (place.volume("v.tc", "1M", &[]), place.dir("d"));
    let path = place.folder.programs(["fusermount3", "umount"].map(|name| (name, "exit 1".to_owned())));
    let (claviger, password) = (env!("CARGO_BIN_EXE_claviger"), &place.folder.password);
    let script = format!(
        "users=$(cat /etc/passwd); mount -t tmpfs none /etc; echo \"$users\" > /etc/passwd
         as_user {claviger} mount --filesystem none --hash SHA-512 --password-file {password} {volume} {dir}
         code=0; as_user env {path} {claviger} unmount {dir} || code=$?; [ $code = 6 ]
         ln -s /proc/self/mounts /etc/mtab
         as_user {claviger} unmount {dir}"
    );
    let err = in_own_mounts(&place, &script).succeeds().err;
    for word in ["it is still mounted", "`ln -s /proc/self/mounts /etc/mtab`", "`fusermount3 -u DIR`"] {
        assert!(err.contains(word), "{err}");
    }
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
fn what_a_killed_server_leaves_mounted_is_named_until_it_is_gone() {
    let Some(place) = MountSpace::user() else { return };
    let (volume, dir) = (place.volume("v.tc", "1M", &[]), place.dir("d"));
    let report = place.mount(&volume, &dir, &["--filesystem", "none"]).succeeds().json();
    tools::run(place.command("kill").args(["-KILL", &report["pid"].to_string()]));
    wait_until("it is dead", || place.list()[0]["state"] == "dead");
    let path = place.folder.programs(["fusermount3", "umount"].map(|name| (name, "exit 1".to_owned())));
    let mut command = place.command("env");
    command.args([&path, env!("CARGO_BIN_EXE_claviger"), "unmount", &dir]);
    done(command.output().expect("it starts")).fails(6, &[&dir, "it is still mounted", "`fusermount3 -u DIR`"]);
    assert!(place.mounted(&dir) && place.list().len() == 1);
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir) && place.list().is_empty());
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

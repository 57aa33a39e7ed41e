//! `create --filesystem` with formats that keep nothing to themselves, and `mount` without a folder.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::volumes::hidden::Hiding;
use claviger_testkit::mounts::{mounted_below, without_other_mounts};
use claviger_testkit::tools;

const LUKS2: [&str; 6] = ["--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000"];

/// A file system: the size of its volume, its name for blkid, and the program that checks it.
const KINDS: [(&str, &str, &str, &[&str]); 6] = [
    ("ext4", "36M", "ext4", &["e2fsck", "-fn"]),
    ("xfs", "320M", "xfs", &["xfs_repair", "-n"]),
    ("btrfs", "140M", "btrfs", &["btrfs", "check"]),
    ("ntfs", "36M", "ntfs", &["ntfsfix", "-n"]),
    ("exfat", "36M", "exfat", &["fsck.exfat", "-n"]),
    ("fat", "36M", "vfat", &["fsck.vfat", "-n"]),
];

/// What other projects' programs find in an image. Panics if they find damage.
fn checked(image: &Path, check: &[&str], tag: &str) -> Option<String> {
    let (check_program, blkid) = (tools::program(check[0])?, tools::program("blkid")?);
    tools::run(Command::new(check_program).args(&check[1..]).arg(image));
    let found = tools::run(Command::new(blkid).args(["-p", "-o", "value", "-s", tag]).arg(image));
    Some(String::from_utf8_lossy(&found.stdout).trim().to_owned())
}

/// Runs the program as root where no other test's mounts are seen.
fn apart<'a>(args: impl IntoIterator<Item = &'a &'a str>) -> Done {
    done(without_other_mounts(120, env!("CARGO_BIN_EXE_claviger")).args(args).output().expect("the program starts"))
}

/// Made without root, whole to its own checker, with the label, and in sectors of the volume.
#[test]
fn a_new_volume_holds_a_file_system() {
    let Some(place) = MountSpace::user() else { return };
    let dir = place.dir("volumes");
    for (kind, size, found, check) in KINDS {
        let (path, image) = (format!("{dir}/{kind}"), place.folder.path("image"));
        let how = ["create", "--json", "--quick", "--size", size, "--label", "Photos", "--filesystem", kind];
        let more = ["--password-file", &*place.folder.password, &path];
        let all = how.iter().chain(&LUKS2).chain(&more);
        // mkfs.btrfs asks every mount for its source, which it may not as any user, and mounts of other tests do not answer.
        let made = if kind == "btrfs" { apart(all) } else { place.run(all) };
        let name = made.succeeds().json()["filesystem"].as_str().map(str::to_lowercase);
        assert_eq!(name.as_deref(), Some(kind));
        let info = run(["info", "--json", "--password-file", &place.folder.password, &path]).succeeds().json();
        assert_eq!(info["sector_size"], if kind == "exfat" { 512 } else { 4096 }, "{kind}");
        fs::write(&image, run(["cat", "--password-file", &place.folder.password, &path]).succeeds().out)
            .expect("written");
        let Some(label) = checked(&image, check, "LABEL") else { return };
        assert_eq!(label.to_lowercase(), "photos", "{kind}");
        assert_eq!(checked(&image, check, "TYPE").as_deref(), Some(found));
        if let "ext4" | "xfs" = kind {
            assert_eq!(checked(&image, check, "BLOCK_SIZE").as_deref(), Some("4096"), "{kind}");
        }
    }
}

#[test]
fn a_hidden_volume_holds_one_too() {
    let (Some(_), Some(hiding)) = (tools::root(), Hiding::new("TrueCrypt")) else { return };
    run(hiding.create(&["--force", "--yes", "--size", "2M", "--filesystem", "ext4", "--label", "inner"])).succeeds();
    let image = hiding.folder.path("image");
    for (password, kind, check) in
        [(&hiding.inner, "ext4", ["e2fsck", "-fn"]), (&hiding.folder.password, "vfat", ["fsck.vfat", "-n"])]
    {
        let how = ["cat", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", password, &hiding.volume];
        fs::write(&image, run(how).succeeds().out).expect("written");
        let Some(found) = checked(&image, &check, "TYPE") else { return };
        assert_eq!(found, kind);
    }
}

#[test]
fn the_command_that_mounts_a_new_volume_is_told_where_a_password_is_enough() {
    let folder = Folder::new();
    let volume = folder.str("my volume");
    let made_of = |format: &[&str], more: &[&str]| {
        let how = ["create", "--quick", "--size", "2M", "--filesystem", "fat"];
        let options = ["--password-file", &folder.password, "--force", "--yes"];
        let done = run([&how[..], format, &options, more, &[&*volume]].concat()).succeeds();
        done.text().lines().last().expect("a line").to_owned()
    };
    let made = |more: &[&str]| made_of(&["--format", "TrueCrypt", "--hash", "SHA-512"], more);
    assert_eq!(made(&[]), format!("To mount it: claviger mount '{volume}'"));
    // Its other protectors do not matter.
    assert_eq!(made_of(&["--format", "BitLocker"], &[]), format!("To mount it: claviger mount '{volume}'"));
    let keyfile = folder.str("key");
    fs::write(&keyfile, "a key").expect("written");
    assert!(!made(&["--keyfile", &keyfile]).contains("To mount it"), "the command would lack the keyfile");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_made() {
    let folder = Folder::new();
    let path = folder.str("v");
    for (options, why) in [
        (&["--format", "BitLocker", "--filesystem", "ext4"][..], "leave room for the format's reserved areas"),
        (&["--format", "LUKS2", "--filesystem", "exfat", "--sector-size", "4096"], "only 512-byte sectors"),
        (&["--format", "LUKS2", "--filesystem", "ext4", "--label", "seventeen letters"], "at most 16 bytes"),
        (&["--format", "TrueCrypt", "--filesystem", "fat", "--label", "twelve chars"], "at most 11 characters"),
        (&["--format", "TrueCrypt", "--label", "one"], "takes no label"),
    ] {
        let all = [&["create", "--size", "36M", "--password-file", &folder.password], options, &[&path]].concat();
        run(all).fails(1, &[why]);
        assert!(!Path::new(&path).exists(), "{options:?}");
    }
    // The program is asked before the password.
    for (filesystem, program, size, said) in [
        ("xfs", "mkfs.xfs", "36M", "no XFS file system was created in 36 MiB: mkfs.xfs failed"),
        ("btrfs", "mkfs.btrfs", "36M", "no Btrfs file system was created in 36 MiB: mkfs.btrfs failed"),
        ("ntfs", "mkntfs", "600K", "no NTFS file system was created in 600 KiB: mkntfs failed"),
        ("exfat", "mkfs.exfat", "600K", "no exFAT file system was created in 600 KiB: mkfs.exfat failed"),
    ] {
        if tools::program(program).is_some() {
            let how = ["create", "--size", size, "--filesystem", filesystem, &path];
            let refused = run(how).fails(6, &[said, "use a larger --size or another --filesystem"]);
            for noise in ["Usage", "not a block device"] {
                assert!(!refused.err.contains(noise), "{}", refused.err);
            }
        }
    }
    // What it refuses for a volume that is smaller than its file leaves nothing behind.
    if tools::root().is_some() && tools::program("mkfs.xfs").is_some() {
        let how = ["create", "--quick", "--size", "310M", "--filesystem", "xfs", "--password-file", &folder.password];
        run(how.iter().chain(&LUKS2).chain([&&*path])).fails(6, &["in 294 MiB: mkfs.xfs failed", "No file was left"]);
        assert!(!Path::new(&path).exists());
    }
}

/// A mount whose source lies below another mount, of which the server was killed.
#[test]
fn a_mount_that_does_not_answer_is_named_as_what_stops_btrfs() {
    let Some(place) = MountSpace::root() else { return };
    if tools::program("mkfs.btrfs").is_none() {
        return;
    }
    let (volume, outer, inner) = (place.ext4("volume"), place.dir("outer"), place.dir("inner"));
    place.mount(&volume, &outer, &["--filesystem", "none"]).succeeds();
    tools::run(Command::new("mount").args(["-t", "tmpfs", &format!("{outer}/volume"), &inner]));
    place.kill_servers();
    wait_until("the mount does not answer", || fs::metadata(format!("{outer}/volume")).is_err());
    let new = place.folder.str("new");
    let how = ["create", "--quick", "--size", "140M", "--filesystem", "btrfs", "--password-file"];
    let made = run(how.iter().chain(&[&*place.folder.password]).chain(&LUKS2).chain([&&*new]));
    let answer = fs::metadata(format!("{outer}/volume"));
    assert!(place.mounted(&outer) && place.mounted(&inner) && answer.is_err(), "both are still mounted: {answer:?}");
    made.fails(6, &["mkfs.btrfs failed", "`umount -l DIR`"]);
    assert!(!Path::new(&new).exists());
}

/// What fusermount3 says where there is no /etc/mtab.
const NO_MTAB: &str = "fusermount3: failed to open /etc/mtab: No such file or directory";

/// Creates a volume with a FAT, where fusermount3 mounts and does not unmount. Temporary folders are in `temporary`.
fn where_fusermount3_does_not_unmount(place: &MountSpace, temporary: &str, umount: &str) -> Done {
    let mounts = tools::program("fusermount3").expect("a user's place has it");
    let fusermount3 = format!("[ \"$1\" = -u ] && echo '{NO_MTAB}' >&2 && exit 1\nexec {} \"$@\"", mounts.display());
    let path = place.folder.programs([("fusermount3", fusermount3), ("umount", umount.to_owned())]);
    let mut command = place.command("env");
    command.arg(path).arg(format!("TMPDIR={temporary}")).arg(env!("CARGO_BIN_EXE_claviger"));
    command.args(["create", "--quick", "--size", "36M", "--filesystem", "fat"]).args(LUKS2);
    command.args(["--password-file", &*place.folder.password, &format!("{temporary}/volume")]);
    done(command.output().expect("it starts"))
}

#[test]
fn a_mount_that_stays_is_named() {
    let Some(place) = MountSpace::user() else { return };
    if tools::program("mkfs.fat").is_none() {
        return;
    }
    let temporary = place.dir("temporary");
    let made = where_fusermount3_does_not_unmount(&place, &temporary, "exit 1");
    made.fails(6, &[&temporary, "it is still mounted", NO_MTAB, "`fusermount3 -u DIR`"]);
}

#[test]
fn umount_unmounts_what_fusermount3_does_not() {
    let Some(place) = MountSpace::user() else { return };
    let umount = tools::program("umount").expect("a place has it");
    if tools::program("mkfs.fat").is_none() {
        return;
    }
    if fs::metadata(&umount).expect("it is there").mode() & 0o4000 == 0 {
        return tools::skip("umount is not setuid root").unwrap_or_default();
    }
    let temporary = place.dir("temporary");
    let umount = format!("exec {} \"$@\"", umount.display());
    where_fusermount3_does_not_unmount(&place, &temporary, &umount).succeeds();
    assert!(mounted_below(Path::new(&temporary)).is_empty());
}

#[test]
fn without_a_folder_one_is_made_and_removed() {
    let Some(place) = MountSpace::user() else { return };
    let dir = place.dir("volumes");
    let mut at = Vec::new();
    for ending in ["one", "two"] {
        let path = format!("{dir}/photos.{ending}");
        let how = ["create", "--quick", "--size", "36M", "--filesystem", "fat"];
        place.run(how.iter().chain(&LUKS2).chain(&["--password-file", &place.folder.password, &path])).succeeds();
        let mounted =
            place.run(["mount", "--json", "--password-file", &place.folder.password, &path]).succeeds().json();
        at.push(mounted["dir"].as_str().expect("it says where").to_owned());
    }
    assert!(at[0].ends_with("/photos") && at[1].ends_with("/photos-2"), "{at:?}");
    for dir in &at {
        assert!(place.mounted(dir));
        assert!(place.command("sh").args(["-c", &format!("echo here > '{dir}/file'")]).status().expect("sh").success());
        place.unmount(dir).succeeds();
        assert!(!Path::new(dir).exists(), "{dir}");
    }
}

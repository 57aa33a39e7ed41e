//! `claviger mount`, `unmount`, `list` and `attach` as root: with the kernel's file systems, and as mount(8) calls them.

use std::cell::OnceCell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::mounts::*;
use crate::common::*;
use crate::volumes::hidden::Hiding;
use claviger_serve::sessions::Process;
use claviger_testkit::tools;
use rustix::fs::OFlags;

#[test]
fn the_plaintext_is_a_file_that_never_grows() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let dir = place.dir("d");
    let report = place.mount(&volume, &dir, &["--filesystem", "none"]).succeeds().json();
    assert_eq!((report["filesystem"].as_str(), report["size"].as_u64()), (Some("none"), Some(768 << 10)));
    let path = format!("{dir}/volume");
    let metadata = fs::metadata(&path).expect("a file");
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (768 << 10, 0o600));
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("it opens");
    file.write_all_at(&[0xa5; 3000], 1000).expect("written");
    assert!(file.write_all_at(&[1; 2], (768 << 10) - 1).is_err(), "past the end");
    assert!(file.set_len(1 << 20).is_err() && file.set_len(0).is_err());
    let mut read = [0; 3000];
    file.read_exact_at(&mut read, 1000).expect("read");
    assert_eq!(read, [0xa5; 3000]);
    drop(file);

    let [one] = &place.list()[..] else { panic!("one is mounted") };
    assert_eq!((one["state"].as_str(), one["format"].as_str()), (Some("alive"), Some("TrueCrypt")));
    assert!(one["written"].as_u64() >= Some(3000), "{one}");
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir) && place.list().is_empty());
    let cat = ["cat", "--hash", "SHA-512", "--offset", "1000", "--length", "3000", "--password-file"];
    let out = place.run(cat.iter().chain([&&*place.folder.password, &&*volume])).succeeds().out;
    assert!(out == [0xa5; 3000]);
}

#[test]
fn nobody_is_told_to_create_a_file_system_over_another() {
    let Some(place) = MountSpace::root() else { return };
    let (empty, full) = (place.folder.luks2("empty"), place.folder.str("full"));
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "20M", "--filesystem", "fat"];
    place.run(create.into_iter().chain(["--password-file", &place.folder.password, &full])).succeeds();
    for (volume, hinted) in [(&empty, true), (&full, false)] {
        let dir = place.dir(&format!("{hinted}"));
        let mount = ["mount", "--filesystem", "none", "--password-file", &place.folder.password, volume, &dir];
        let text = place.run(mount).succeeds().text();
        assert_eq!(text.contains("mkfs.ext4 -b 4096"), hinted, "{text}");
        place.unmount(&dir).succeeds();
    }
}

#[test]
fn a_volume_whose_file_is_cut_short_while_it_is_mounted() {
    let Some(place) = MountSpace::root() else { return };
    let create = |name: &str, more: &[&str]| {
        let path = place.folder.str(name);
        let args =
            ["create", "--quick", "--iterations", "1000", "--kdf", "pbkdf2", "--format", "LUKS2", "--size", "24M"];
        place.run([&args[..], more, &["--password-file", &place.folder.password, &path]].concat()).succeeds();
        path
    };
    // With tags, all writes are refused from now on. Without, writes to the remaining part still work.
    for (name, more, taken) in [("plain", &[][..], true), ("tagged", &["--integrity", "hmac-sha256"], false)] {
        let (volume, dir) = (create(name, more), place.dir(&format!("{name}-dir")));
        let mount = ["mount", "--filesystem", "none", "--password-file", &place.folder.password, &volume, &dir];
        place.run(mount).succeeds();
        let file = fs::OpenOptions::new().read(true).write(true).open(format!("{dir}/volume")).expect("it opens");
        file.write_all_at(&[0xa5; 8192], 0).and_then(|()| file.sync_all()).expect("written");
        let len = fs::metadata(&volume).expect("a file").len();
        let set_len = |len| fs::OpenOptions::new().write(true).open(&volume).and_then(|f| f.set_len(len)).expect("cut");
        set_len(len - (2 << 20));
        let end = file.metadata().expect("a file").len() - 4096;
        assert_eq!(file.write_all_at(&[7; 4096], end).expect_err("it is gone").raw_os_error(), Some(5), "{name}");
        assert_eq!(file.write_all_at(&[0xa5; 4096], 0).is_ok(), taken, "{name}");
        assert_eq!(file.sync_all().expect_err("a part is gone").raw_os_error(), Some(5), "{name}");
        drop(file);
        place.unmount(&dir).fails(6, &["cut short"]);
        assert_eq!(fs::metadata(&volume).expect("a file").len(), len - (2 << 20), "{name}");
        set_len(len);
        let cat = ["cat", "--length", "8192", "--password-file", &place.folder.password, &volume];
        assert!(place.run(cat).succeeds().out == [0xa5; 8192], "{name}");
        place.nothing_is_left();
    }
}

#[test]
fn files_are_there_when_it_is_mounted_again() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("a b");
    let report = place.mount(&volume, &dir, &["-o", "noatime"]).succeeds().json();
    assert_eq!((report["filesystem"].as_str(), report["read_only"].as_bool()), (Some("ext4"), Some(false)));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 3) as u8).collect();
    fs::write(format!("{dir}/file"), &bytes).expect("written");
    let [one] = &place.list()[..] else { panic!("one is mounted") };
    assert_eq!(one["dir"].as_str(), Some(&*dir));
    assert!(one["loop_device"].as_str().is_some_and(|d| d.starts_with("/dev/loop")), "{one}");
    // By the volume this time.
    place.unmount(&volume).succeeds();
    assert!(place.list().is_empty() && loops_below(&place.runtime()).is_empty());
    assert!(!Path::new(&format!("{dir}/file")).exists());

    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    // umount does as well: the server notices, writes everything and ends.
    tools::run(place.command("umount").arg(&dir));
    wait_until("the server has ended", || place.list().is_empty());
    place.nothing_is_left();
}

#[test]
fn exfat_and_ntfs_keep_files_and_stay_sound() {
    let Some(place) = MountSpace::root() else { return };
    for (driver, mkfs, fsck) in [
        ("mkfs.exfat", &["mkfs.exfat"][..], &["fsck.exfat", "-n"][..]),
        ("ntfs-3g", &["mkntfs", "-F", "-Q", "-q"], &["ntfsfix", "--no-action"]),
    ] {
        let programs = [driver, mkfs[0], fsck[0]];
        if programs.iter().any(|program| tools::program(program).is_none()) {
            continue;
        }
        let volume = place.volume(&format!("{driver}.tc"), "20M", mkfs);
        let dir = place.dir(&format!("{driver}-files"));
        place.mount(&volume, &dir, &[]).succeeds();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 3) as u8).collect();
        fs::write(format!("{dir}/file"), &bytes).expect("written");
        place.unmount(&dir).succeeds();
        assert!(place.list().is_empty() && loops_below(&place.runtime()).is_empty(), "{driver}");

        let report = place.mount(&volume, &dir, &["--read-only"]).succeeds().json();
        assert_eq!(report["read_only"].as_bool(), Some(true));
        assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes, "{driver}");
        fs::write(format!("{dir}/other"), "x").expect_err("read-only");
        place.unmount(&dir).succeeds();
        place.mount(&volume, &dir, &["--filesystem", "none", "--read-only"]).succeeds();
        let image = format!("{dir}/volume");
        let checked = place.command(fsck[0]).args(&fsck[1..]).arg(&image).output().expect("it starts");
        place.unmount(&dir).succeeds();
        done(checked).succeeds();
        place.nothing_is_left();
    }
}

/// ntfs-3g writes to no NTFS in which Windows is hibernated: that is said, with the way out.
#[test]
fn a_hibernated_windows_is_mounted_read_only_and_that_is_said() {
    let Some(place) = MountSpace::root() else { return };
    if ["ntfs-3g", "mkntfs"].iter().any(|program| tools::program(program).is_none()) {
        return;
    }
    let volume = place.volume("hibernated.tc", "20M", &["mkntfs", "-F", "-Q", "-q"]);
    let dir = place.dir("hibernated");
    for (start, read_only) in [(&b"wake"[..], false), (b"hibr", true)] {
        place.mount(&volume, &dir, &[]).succeeds();
        fs::write(format!("{dir}/hiberfil.sys"), [start, &[0; 8192]].concat()).expect("written");
        place.unmount(&dir).succeeds();
        let mounted = place.mount(&volume, &dir, &[]).succeeds();
        assert_eq!(mounted.json()["read_only"].as_bool(), Some(read_only), "{}", mounted.err);
        assert_eq!(
            mounted.err.contains("hibernated") && mounted.err.contains("shutdown /s"),
            read_only,
            "{}",
            mounted.err
        );
        assert_eq!(place.list()[0]["read_only"].as_bool(), Some(read_only));
        assert_eq!(fs::write(format!("{dir}/other"), "x").is_err(), read_only);
        place.unmount(&dir).succeeds();
    }
    place.nothing_is_left();
}

#[test]
fn read_only_changes_neither_a_byte_nor_a_time() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    place.mount(&volume, &dir, &[]).succeeds();
    fs::write(format!("{dir}/file"), "contents").expect("written");
    place.unmount(&dir).succeeds();

    let bytes = fs::read(&volume).expect("a file");
    // Long ago, so that a time of access would be due for a change (mount(8), relatime).
    tools::run(place.command("touch").args(["-d", "2001-02-03 04:05:06", &volume]));
    let times = || {
        let m = fs::metadata(&volume).expect("a file");
        [(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())]
    };
    let before = times();
    let report = place.mount(&volume, &dir, &["--read-only"]).succeeds().json();
    assert_eq!(report["read_only"].as_bool(), Some(true));
    assert_eq!(fs::read_to_string(format!("{dir}/file")).expect("a file"), "contents");
    let refused = fs::write(format!("{dir}/file"), "x").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    place.unmount(&dir).succeeds();
    place.mount(&volume, &dir, &["--read-only", "--filesystem", "none"]).succeeds();
    assert_eq!(fs::metadata(format!("{dir}/volume")).expect("a file").mode() & 0o777, 0o400);
    fs::read(format!("{dir}/volume")).expect("it can be read");
    assert!(fs::OpenOptions::new().write(true).open(format!("{dir}/volume")).is_err());
    place.unmount(&dir).succeeds();
    assert_eq!(times(), before);
    assert!(fs::read(&volume).expect("a file") == bytes);
}

#[test]
fn where_the_process_in_front_was_killed_nothing_is_mounted() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let dir = place.dir("d");
    let pipe = place.folder.str("pipe");
    tools::run(place.command("mkfifo").arg(&pipe));
    let mut front = Command::new(env!("CARGO_BIN_EXE_claviger"));
    front.args(["mount", "--filesystem", "none", "--format", "TrueCrypt", "--hash", "SHA-512"]);
    front.args(["--password-file", &pipe, &volume, &dir]).env("CLAVIGER_RUNTIME_DIR", place.runtime());
    let mut front = front.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // Opens once somebody reads: the process in the background, which waits for the password.
    let password = OnceCell::new();
    wait_until("the password is asked for", || {
        let mut options = fs::OpenOptions::new();
        let open = options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&pipe);
        open.is_ok_and(|file| password.set(file).is_ok())
    });
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", front.id())).expect("procfs");
    front.kill().expect("killed");
    front.wait().expect("it has ended");
    let contents = fs::read(&place.folder.password).expect("a password");
    password.into_inner().expect("it was opened").write_all(&contents).expect("written");
    let server = Process::of(children.trim().parse().expect("one process")).ok();
    wait_until("the process in the background has ended", || !server.is_some_and(|process| process.alive()));
    assert!(!place.mounted(&dir) && place.list().is_empty());
}

#[test]
fn a_volume_is_mounted_once() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let (dir, other) = (place.dir("d"), place.dir("e"));
    place.mount(&volume, &dir, &[]).succeeds();
    place.mount(&volume, &other, &[]).fails(9, &["in-use", "mounted", &dir]);
    place.mount(&volume, &other, &["--read-only"]).fails(9, &["in-use", &dir]);
    let again = place.ext4("w.tc");
    place.mount(&again, &dir, &[]).fails(1, &["already mounted here", &volume]);
    assert_eq!(place.list().len(), 1);
    place.unmount(&dir).succeeds();
    place.mount(&volume, &other, &[]).succeeds();
    place.run(["unmount", "--all"]).succeeds();
    assert!(!place.mounted(&other));
}

/// Said before anybody is asked for a password.
#[test]
fn a_machine_without_fuse_is_told() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let script = "mount -t tmpfs none /dev && exec \"$0\" mount \"$1\"";
    let mut alone = place.command("unshare");
    let output = alone.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_claviger"), &volume]).output();
    done(output.expect("it starts")).fails(6, &["/dev/fuse", "--device /dev/fuse", "claviger ls", "claviger cp"]);
}

#[test]
fn who_keeps_it_busy_is_named() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    place.mount(&volume, &dir, &[]).succeeds();
    let path = format!("{dir}/open");
    let mut holder = place
        .command("sh")
        .arg("-c")
        .arg(format!("exec 3>'{path}'; echo; read x; echo more >&3; echo"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut said = BufReader::new(holder.stdout.take().expect("a pipe"));
    said.read_line(&mut String::new()).expect("it has opened the file");
    place.unmount(&dir).fails(9, &["sh, has", &path]);
    assert!(place.mounted(&dir));
    let forced = place.run(["unmount", "--force", "--json", &dir]).succeeds().json();
    assert_eq!(forced["unmounted"][0]["how"].as_str(), Some("lazily"));
    assert!(!place.mounted(&dir) && place.list().len() == 1);
    // The open file stays usable. When it is closed, the server ends.
    holder.stdin.take().expect("a pipe").write_all(b"\n").expect("it waits");
    said.read_line(&mut String::new()).expect("it has written");
    holder.wait().expect("it ends");
    wait_until("the server has ended", || place.list().is_empty());
    place.mount(&volume, &dir, &[]).succeeds();
    assert_eq!(fs::read_to_string(&path).expect("a file"), "more\n");
    place.unmount(&dir).succeeds();
}

#[test]
fn a_killed_server_leaves_nothing_that_hangs_and_loses_nothing_that_was_synced() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let report = place.mount(&volume, &dir, &[]).succeeds().json();
    fs::write(format!("{dir}/synced"), vec![7; 1_000_000]).expect("written");
    fs::File::open(format!("{dir}/synced")).and_then(|f| f.sync_all()).expect("synced");
    let script =
        format!("echo; while dd if=/dev/zero of='{dir}/load' bs=64k count=64 conv=fsync 2>/dev/null; do :; done");
    let mut load = place.command("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("a shell");
    load.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("it runs");
    wait_until("there is load", || place.list()[0]["written"].as_u64() > Some(8 << 20));
    tools::run(place.command("kill").args(["-KILL", &report["pid"].to_string()]));
    load.wait().expect("writing fails, it does not hang");
    wait_until("it is dead", || place.list()[0]["state"] == "dead");

    let unmounted = place.run(["unmount", "--json", &dir]).succeeds().json();
    assert_eq!(unmounted["unmounted"][0]["how"].as_str(), Some("cleaned-up"));
    assert!(!place.mounted(&dir) && place.list().is_empty());
    wait_until("no loop device is left", || loops_below(&place.runtime()).is_empty());
    place.nothing_is_left();

    // The journal is not replayed where nothing may be written.
    let bytes = fs::read(&volume).expect("a file");
    place.mount(&volume, &dir, &["--read-only"]).fails(0, &["journal"]);
    place.unmount(&dir).succeeds();
    assert!(fs::read(&volume).expect("a file") == bytes);
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/synced")).expect("a file") == vec![7; 1_000_000]);
    place.unmount(&dir).succeeds();
    let none = place.dir("none");
    place.mount(&volume, &none, &["--filesystem", "none"]).succeeds();
    done(place.command("e2fsck").args(["-f", "-n", &format!("{none}/volume")]).output().expect("it runs")).succeeds();
    place.unmount(&none).succeeds();
}

#[test]
fn what_a_killed_server_left_is_cleaned_up_by_the_next_mount() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let report = place.mount(&volume, &dir, &["--filesystem", "none"]).succeeds().json();
    tools::run(place.command("kill").args(["-KILL", &report["pid"].to_string()]));
    wait_until("it is dead", || place.list()[0]["state"] == "dead");
    let other = place.dir("e");
    place.mount(&volume, &other, &[]).succeeds();
    assert!(!place.mounted(&dir) && place.mounted(&other) && place.list().len() == 1);
    place.unmount(&other).succeeds();
}

#[test]
fn it_ends_when_idle_and_with_its_parent_and_on_a_signal() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    place.mount(&volume, &dir, &["--idle", "1s"]).succeeds();
    wait_until("it was idle", || place.list().is_empty());
    assert!(!place.mounted(&dir));

    let claviger = env!("CARGO_BIN_EXE_claviger");
    let mount = format!("{claviger} mount --hash SHA-512 --password-file {} {volume} {dir}", place.folder.password);
    let parent = place.shell(&format!("{mount} --with-parent >&2; grep -c ' {dir} ' /proc/self/mountinfo"));
    assert_eq!(parent.succeeds().text(), "1\n");
    wait_until("its parent has ended", || place.list().is_empty());
    assert!(!place.mounted(&dir));

    // A signal while somebody has a file open: it is out of sight, and nothing is lost.
    let mut front = place
        .command(claviger)
        .args(["mount", "--foreground", "--hash", "SHA-512", "--password-file"])
        .args([&place.folder.password, &volume, &dir])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    BufReader::new(front.stdout.take().expect("a pipe")).read_line(&mut String::new()).expect("it is mounted");
    let mut file = fs::File::create(format!("{dir}/f")).expect("a file");
    let pid = place.list()[0]["server"]["pid"].to_string();
    tools::run(place.command("kill").args(["-TERM", &pid]));
    wait_until("it is out of sight", || !place.mounted(&dir));
    file.write_all(b"late").expect("written");
    assert!(front.try_wait().expect("its status").is_none(), "it waits");
    drop(file);
    assert!(front.wait().expect("it ends").success());
    place.mount(&volume, &dir, &[]).succeeds();
    assert_eq!(fs::read_to_string(format!("{dir}/f")).expect("a file"), "late");
    place.unmount(&dir).succeeds();
}

#[test]
fn what_cannot_be_mounted_leaves_nothing() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let dir = place.dir("d");
    place.mount(&volume, &dir, &[]).fails(3, &["not-this-format", "no file system", "--filesystem none"]);
    place.mount(&volume, &dir, &["--filesystem", "ext4"]).fails(6, &["ext4"]);
    place.mount(&volume, &dir, &["--filesystem", "no-such"]).fails(5, &["no-such"]);
    place.mount(&volume, &place.folder.str("missing"), &[]).fails(6, &["missing", "mkdir"]);
    place.mount(&volume, &volume, &[]).fails(1, &["not a folder"]);
    fs::write(&place.folder.password, "wrong").expect("written");
    place.mount(&volume, &dir, &[]).fails(2, &["wrong-credential"]);
    place.run(["unmount", &dir]).fails(1, &["claviger list"]);
    assert!(place.list().is_empty() && !place.mounted(&dir));
    place.nothing_is_left();
    wait_until("no loop device is left", || loops_below(&place.runtime()).is_empty());
}

#[test]
fn what_is_mounted_over_it_is_left_alone() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    place.mount(&volume, &dir, &[]).succeeds();
    tools::run(place.command("mount").args(["-t", "tmpfs", "none", &dir]));
    place.unmount(&dir).fails(9, &["something else is mounted"]);
    place.run(["unmount", "--force", &volume]).fails(9, &["something else is mounted"]);
    assert!(place.mounted(&dir) && place.list().len() == 1);
    tools::run(place.command("umount").arg(&dir));
    place.unmount(&dir).succeeds();
    assert!(!place.mounted(&dir));
}

#[test]
fn writes_that_nobody_waited_for_and_that_failed_are_told_at_the_end() {
    let Some(place) = MountSpace::root() else { return };
    let Some(small) = Tmpfs::new("size=9m") else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let sparse = small.path().join("v.tc").display().to_string();
    tools::run(place.command("cp").args(["--sparse=always", &volume, &sparse]));
    place.mount(&sparse, &dir, &[]).succeeds();
    let random: Vec<u8> = (0..14_000_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    fs::write(format!("{dir}/much"), random).expect("the page cache takes it");
    let failed = place.unmount(&dir).fails(6, &["writes failed", "may be lost"]);
    assert!(failed.out.is_empty() || !failed.text().contains("is closed"));
    assert!(place.list().is_empty() && !place.mounted(&dir));
    place.nothing_is_left();
}

#[test]
fn a_protected_hidden_volume_outlives_a_full_outer_one() {
    let Some(place) = MountSpace::root() else { return };
    let outer = place.volume("v.tc", "8M", &["mke2fs", "-q", "-t", "ext2"]);
    let password = place.folder.str("inner");
    fs::write(&password, "the inner password, quite another\n").expect("written");
    let create =
        ["create", "--hidden", "--format", "TrueCrypt", "--hash", "SHA-512", "--hidden-hash", "SHA-512", "--quick"];
    let passwords = ["--password-file", &place.folder.password, "--hidden-password-file", &password];
    let size = ["--size", "1M", "--force", "--yes", &outer];
    place.run(create.iter().chain(&passwords).chain(&size)).succeeds();
    let cat = ["cat", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &password, &outer];
    let before = place.run(cat).succeeds().out;
    assert_eq!(before.len(), 1 << 20);

    let dir = place.dir("d");
    let protect = ["--protect-hidden", "--hidden-hash", "SHA-512", "--hidden-password-file", &password];
    place.mount(&outer, &dir, &protect).succeeds();
    assert_eq!(place.list()[0]["damage_prevented"].as_bool(), Some(false));
    // It may take the file system a while to notice that it is full, or that it cannot write.
    let filling = fs::File::create(format!("{dir}/all")).and_then(|mut f| {
        for _ in 0..8 {
            f.write_all(&[0x55; 1 << 20])?;
            f.sync_all()?;
        }
        Ok(())
    });
    assert!(filling.is_err(), "the last of it was refused");
    assert_eq!(place.list()[0]["damage_prevented"].as_bool(), Some(true));
    place.unmount(&dir).fails(6, &["writes failed"]);
    assert!(place.run(cat).succeeds().out == before);
}

#[test]
fn mount_and_fstab_call_it() {
    let Some(place) = MountSpace::root() else { return };
    let Some(unshare) = tools::program("unshare") else { return };
    let Some(_) = tools::program("mount.fuse3") else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    // In a namespace of its own, where the links lie in the system's folder as `make install` puts them.
    let bin = place.dir("sbin");
    for name in ["mount.fuse.claviger", "mount.claviger", "claviger"] {
        symlink(env!("CARGO_BIN_EXE_claviger"), format!("{bin}/{name}")).expect("a link");
    }
    let table = place.folder.str("fstab");
    let password = &place.folder.password;
    let options = format!("password-file={password},hash=SHA-512,format=TrueCrypt");
    let encrypted = place.dir("encrypted");
    place.run(["create", "--format", "eCryptfs", "--password-file", password, &encrypted]).succeeds();
    let folder = place.dir("folder");
    let lines = format!(
        "{volume} {dir} fuse.claviger {options},noatime 0 0\n\
         {encrypted} {folder} fuse.claviger password-file={password},format=eCryptfs 0 0\n"
    );
    fs::write(&table, lines).expect("a table");
    let script = format!(
        "sbin=$(readlink -f /sbin)
         mount -t overlay -o lowerdir={bin}:$sbin none $sbin
         mount -a -T {table}; grep ' {dir} ' /proc/mounts; echo there > {dir}/f; umount {dir}
         echo in a folder > {folder}/f; umount {folder}; ! test -e {encrypted}/f
         while [ -n \"$(ls {runtime})\" ]; do sleep 0.02; done
         mount -t claviger {volume} {dir} -o {options},ro; cat {dir}/f; ! touch {dir}/g 2>/dev/null; claviger unmount {dir}
         mount -t fuse.claviger {volume} {dir} -o {options},filesystem=none; stat -c %s {dir}/volume; claviger unmount {dir}
         mount -t fuse.claviger {encrypted} {folder} -o password-file={password},ro; cat {folder}/f; claviger unmount {folder}
         mount -t fuse 'claviger#{volume}' {dir} -o {options}; grep ' {dir} ' /proc/mounts; claviger unmount {dir}",
        runtime = place.runtime().display()
    );
    let mut command = place.command(unshare);
    let ran = command.args(["--mount", "sh", "-ec", &script]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let ran = done(ran.expect("it starts")).succeeds();
    let said = ran.text();
    let lines: Vec<_> =
        said.lines().filter(|l| !l.contains("claviger unmount") && !l.ends_with("is closed.")).collect();
    let words: Vec<_> = lines.iter().filter(|l| l.contains("/dev/loop")).collect();
    assert!(words.len() == 2 && words.iter().all(|l| l.contains("ext4 rw,nosuid,nodev")), "{said}");
    assert!(
        words[0].contains("noatime")
            && said.contains("\nthere\n")
            && said.contains("\nin a folder\n")
            && said.contains("\n20709376\n"),
        "{said}"
    );
}

#[test]
fn lines_of_crypttab_and_favourites_are_attached_by_name() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let other = place.ext4("w.tc");
    let dir = place.dir("d");
    // Only the first line of the key file counts (crypttab(5)).
    let key = place.folder.str("key");
    fs::write(&key, format!("{PASSWORD}\nanother line\n")).expect("a key file");
    let table = place.folder.str("crypttab");
    let lines = format!(
        "# comment\ntext {volume} {key} tcrypt,readonly,discard\nbox /dev/sdz none bitlk,nofail\nlate {volume} {key} tcrypt,noauto\n"
    );
    fs::write(&table, lines).expect("a table");
    let list = place.folder.str("favourites.toml");
    let options = format!("options = [\"--hash=SHA-512\", \"--password-file={}\"]", place.folder.password);
    // A folder that is encrypted file by file may stand for a volume.
    let (encrypted, files) = (place.dir("encrypted"), place.dir("files"));
    place.run(["create", "--format", "eCryptfs", "--password-file", &place.folder.password, &encrypted]).succeeds();
    let of_files = format!("options = [\"--format=eCryptfs\", \"--password-file={}\"]", place.folder.password);
    let favourites = format!(
        "[fav]\nvolume = \"~/w.tc\"\ndir = \"{dir}\"\n{options}\n\
         [files]\nvolume = \"~/encrypted\"\ndir = \"~/files\"\n{of_files}\n"
    );
    fs::write(&list, favourites).expect("a list");
    let attach = |names: &[&str]| {
        let args = ["attach", "--crypttab", &table, "--favourites", &list];
        place.run(args.iter().chain(names))
    };
    attach(&["text"]).fails(0, &["discard", "ignored"]);
    let shown = place.runtime().join("attached/text/volume");
    assert_eq!(fs::metadata(&shown).expect("a file").len(), 20_709_376);
    let [one] = &place.list()[..] else { panic!("one is attached") };
    assert_eq!((one["read_only"].as_bool(), one["volume"].as_str()), (Some(true), Some(&*volume)));
    place.unmount(&volume).succeeds();

    attach(&["files"]).succeeds();
    place.shell(&format!("echo text >{files}/file; ! test -e {encrypted}/file")).succeeds();
    place.unmount(&files).succeeds();

    attach(&["box"]).fails(6, &["/dev/sdz"]);
    assert!(!place.runtime().join("attached/box").exists());
    attach(&["nobody"]).fails(1, &["nobody", "fav, files, text"]);
    attach(&["--all"]).fails(0, &["/dev/sdz"]);
    let volumes: Vec<_> = place.list().iter().map(|one| one["volume"].as_str().map(str::to_owned)).collect();
    assert_eq!(volumes.len(), 3, "all but noauto: {volumes:?}");
    assert!([volume, other, encrypted].into_iter().all(|known| volumes.contains(&Some(known))), "{volumes:?}");
    assert!(place.mounted(&dir) && fs::read(format!("{files}/file")).expect("a file") == b"text\n");
    place.run(["unmount", "--all"]).succeeds();
    assert!(place.list().is_empty() && !place.mounted(&dir));
}

/// A line of crypttab or fstab may say that a hidden volume is not to be overwritten.
#[test]
fn a_hidden_volume_is_protected_by_a_line_of_a_table() {
    let (Some(place), Some(hiding)) = (MountSpace::root(), Hiding::new("TrueCrypt")) else { return };
    run(hiding.create(&["--force", "--yes", "--size", "1M"])).succeeds();
    let (volume, inner, table) = (&hiding.volume, &hiding.inner, place.folder.str("crypttab"));
    let line = format!(
        "one {volume} {} tcrypt,protect-hidden,hidden-password-file={inner},hidden-hash=SHA-512\n",
        hiding.folder.password
    );
    fs::write(&table, line).expect("a table");
    let attach = |more: &[&str]| place.run([&["attach", "--crypttab", &table], more, &["one"]].concat());
    attach(&["--kernel"]).fails(1, &["hidden volume", "--kernel"]);
    let before = fs::read(volume).expect("the volume");
    // The last megabyte before the backup headers is the hidden volume's.
    let overwrite = |file: &str, at: u32| {
        let write = format!("dd if=/dev/zero of={file} bs=64k seek={at} count=1 conv=notrunc,fsync");
        place.shell(&write).code
    };
    let refuses = |file: &str| {
        assert_eq!(overwrite(file, 20), 0, "that is the outer volume's");
        assert_ne!(overwrite(file, 48), 0, "that is the hidden volume's");
    };
    attach(&[]).succeeds();
    let shown = place.runtime().join("attached/one/volume");
    refuses(&shown.display().to_string());
    place.unmount(volume);
    let dir = place.dir("d");
    let options = format!(
        "protect-hidden,hidden-password-file={inner},hidden-hash=SHA-512,hash=SHA-512,password-file={},filesystem=none",
        hiding.folder.password
    );
    place.run([volume, &*dir, "-o", &*options]).succeeds();
    refuses(&format!("{dir}/volume"));
    place.unmount(volume);
    let after = fs::read(volume).expect("the volume");
    let hidden = before.len() - (1 << 20) - (128 << 10)..;
    assert!(before[hidden.clone()] == after[hidden], "the hidden volume and the backup headers");
}

#[test]
fn what_is_served_is_listed_too() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let socket = place.folder.str("s");
    let args = ["serve", "--hash", "SHA-512", "--socket", &socket, "--password-file", &place.folder.password, &volume];
    let command = format!("{} list --json", env!("CARGO_BIN_EXE_claviger"));
    let served = place.run(args.iter().copied().chain(["--run", &command])).succeeds().json();
    let one = &served["volumes"][0];
    assert_eq!(one["uri"].as_str(), Some(&*format!("nbd+unix:///?socket={socket}")));
    assert!(one["state"] == "alive" && one["dir"].is_null(), "{one}");
    assert!(place.list().is_empty());
}

#[test]
fn a_folder_is_mounted_as_it_is() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let (lower, dir) = (place.dir("lower"), place.dir("d"));
        place.shell(&format!("echo below >{lower}/one && mkdir {lower}/folder && chmod 750 {lower}/folder")).succeeds();
        let mount = ["mount", "--format", "clear", "--json", &lower, &dir];
        let report = place.run(mount).succeeds().json();
        assert_eq!((report["format"].as_str(), report["filesystem"].as_str()), (Some("clear"), Some("files")));
        // Nobody else has it open for writing, not even as files without a mount.
        place.run(["mount", "--format", "clear", &lower, &place.dir("other")]).fails(9, &["in use"]);
        let inside = format!(
            "set -e; cd {dir}; test $(cat one) = below; test $(stat -c %a folder) = 750; echo above >folder/two; \
             ln folder/two three; mv one four; ln -s four five; test $(cat five) = below; chmod 600 three; sync three"
        );
        place.shell(&inside).succeeds();
        let [one] = &place.list()[..] else { panic!("one is mounted") };
        assert!(one["written"].as_u64() >= Some(6) && one["format"] == "clear", "{one}");
        place.unmount(&dir).succeeds();
        assert!(!place.mounted(&dir) && place.list().is_empty());
        let below = format!(
            "set -e; cd {lower}; test $(cat folder/two) = above; test $(stat -c %h-%a three) = 2-600; test ! -e one; \
             test $(readlink five) = four"
        );
        place.shell(&below).succeeds();
        let read_only = ["mount", "--format", "clear", "--read-only", &lower, &dir];
        place.run(read_only).succeeds();
        place.shell(&format!("cat {dir}/three && ! touch {dir}/new && ! rm {dir}/three")).succeeds();
        place.unmount(&dir).succeeds();
    }
}

/// As in most containers: root, and no loop devices.
#[test]
fn without_loop_devices_programs_mount_for_root_as_for_users() {
    let Some(place) = MountSpace::root() else { return };
    let claviger = env!("CARGO_BIN_EXE_claviger");
    let hidden = [
        "mount --bind /dev/null /dev/loop-control",
        "mount -t tmpfs none /mnt && mknod /mnt/fuse c 10 229 && mknod /mnt/null c 1 3 && mount --move /mnt /dev",
    ];
    for (i, (program, mkfs, name)) in [
        ("fuse2fs", &["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0"][..], "ext4"),
        ("ntfs-3g", &["mkntfs", "-F", "-Q", "-q"], "ntfs"),
    ]
    .into_iter()
    .enumerate()
    {
        if tools::program(program).is_none() || tools::program(mkfs[0]).is_none() || tools::program("unshare").is_none()
        {
            return;
        }
        let (volume, dir) = (place.volume(&format!("{name}.tc"), "20M", mkfs), place.dir(name));
        let mount = format!("{claviger} mount --hash SHA-512 --password-file {} {volume} {dir}", place.folder.password);
        let script = format!(
            "{}; {mount}; echo kept > {dir}/file; {claviger} unmount {dir}; {mount} --json --read-only; cat {dir}/file; \
             {claviger} unmount {dir}",
            hidden[i]
        );
        let output = place.root_command("unshare").args(["--mount", "sh", "-ec", &script]).output();
        let done = done(output.expect("it starts")).succeeds();
        assert!(
            done.text().contains("kept") && done.text().contains(&format!("\"filesystem\": \"{name}\"")),
            "{done:?}"
        );
        let told: Vec<_> = done.err.lines().filter(|line| line.contains("loop devices")).collect();
        assert!(told.len() == 2 && told[0].contains(program), "{}", done.err);
        assert!(place.list().is_empty());
    }
}

#[test]
fn read_only_is_what_the_mount_is() {
    let Some(place) = MountSpace::root() else { return };
    let says = |report: &Done| report.json()["read_only"].as_bool();
    let (volume, dir) = (place.ext4("v.tc"), place.dir("d"));
    for (more, read_only) in [
        (&[][..], false),
        (&["--read-only"], true),
        (&["-o", "ro"], true),
        (&["--filesystem", "none", "-o", "ro"], true),
        (&["--filesystem", "none"], false),
        (&["--truncated"], true),
    ] {
        let report = place.mount(&volume, &dir, more).succeeds();
        let file = if more.contains(&"none") { format!("{dir}/volume") } else { format!("{dir}/new") };
        let refused = fs::OpenOptions::new().append(true).create(true).open(file).is_err();
        assert_eq!((says(&report), refused), (Some(read_only), read_only), "{more:?}: {}", report.err);
        assert_eq!(place.list()[0]["read_only"].as_bool(), Some(read_only), "{more:?}");
        place.unmount(&dir).succeeds();
    }
    // A folder has no file system that could take the option.
    let lower = place.dir("lower");
    let report = place.run(["mount", "--json", "--format", "clear", "-o", "ro", &lower, &dir]).succeeds();
    assert_eq!((says(&report), fs::write(format!("{dir}/x"), "x").is_err()), (Some(true), true));
    place.unmount(&dir).succeeds();
}

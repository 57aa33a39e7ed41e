//! `claviger lock` and `unlock`: a volume stays where it is, and its keys go and come.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::serving::key_process::{ISOLATED, ended, key_process_of, key_processes_of};
use crate::volumes::hidden::Hiding;
use claviger_testkit::tools;

fn locked(volume: &str) -> bool {
    let list = run(["list", "--json"]).succeeds().json();
    let volumes = list["volumes"].as_array().expect("a list").iter();
    let locked: Vec<bool> = volumes.filter(|v| v["volume"] == volume).filter_map(|v| v["locked"].as_bool()).collect();
    assert_eq!(locked.len(), 1, "{list}");
    locked[0]
}

fn lockable(volume: &str) -> bool {
    let list = run(["list", "--json"]).succeeds().json();
    let volumes = list["volumes"].as_array().expect("a list").iter();
    volumes.filter(|v| v["volume"] == volume).any(|v| v["lockable"] == true)
}

fn unlock(volume: &str, password: &str) -> Done {
    run(["unlock", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", password, volume])
}

#[test]
fn what_is_locked_waits_for_its_password() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let bad = folder.str("bad");
    fs::write(&bad, "another password").expect("a file");
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    unlock(&volume, &folder.password).fails(1, &["not locked"]);
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0x5a 0 1M") else { return };
    assert!(wrote, "{said}");
    for _again in 0..2 {
        let key_process = key_process_of(served.pid);
        run(["lock", &volume]).succeeds();
        assert!(ended(key_process), "it has gone when that is said");
        run(["lock", &volume]).succeeds();
        assert!(locked(&volume));
        assert!(lockable(&volume), "it has its keys in a key process");
        thread::scope(|scope| {
            let read = scope.spawn(|| qemu_io(&served.uri, "read -P 0x5a 0 1M").expect("as before"));
            let write = scope.spawn(|| qemu_io(&served.uri, "write -P 7 1M 4096").expect("as before"));
            let wrong = unlock(&volume, &bad);
            let waited = locked(&volume) && !read.is_finished() && !write.is_finished();
            let right = unlock(&volume, &folder.password);
            if right.code != 0 {
                // So that nobody waits for ever if this fails.
                run(["lock", "--fail", &volume]);
            }
            right.succeeds();
            wrong.fails(2, &["passphrase"]);
            assert!(waited && !locked(&volume));
            for (good, said) in [read.join(), write.join()].map(|joined| joined.expect("it ran")) {
                assert!(good, "{said}");
            }
        });
    }
    // Its key process is a process of another parent now.
    run(["lock", "--fail", &volume]).succeeds();
    let (read, said) = qemu_io(&served.uri, "read 0 512").expect("as before");
    assert!(!read, "{said}");
    unlock(&volume, &folder.password).succeeds();
    let (read, said) = qemu_io(&served.uri, "read -P 7 1M 4096").expect("as before");
    assert!(read, "{said}");
    served.stop().succeeds();
}

#[test]
fn whoever_ends_a_locked_volume_waits_for_nobody() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    run(["lock", &volume]).succeeds();
    let Some(qemu_io) = tools::program("qemu-io") else { return };
    let mut client = Command::new(qemu_io);
    client.args(["-r", "-f", "raw", "-c", "read 0 512", &served.uri]);
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    run(["unmount", &volume]).fails(1, &["locked", "--force"]);
    run(["unmount", "--force", &volume]).succeeds();
    client.wait().expect("its request failed");
    // It had nothing to write.
    assert_eq!(served.stop().code, 0);
}

/// Starts to unlock a volume and gives no password, once processes that did so before have ended.
fn asked(volume: &str) -> Child {
    loop {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args(["unlock", "--password-fd", "0", volume]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        while child.try_wait().expect("a child").is_none() {
            if !key_processes_of(child.id()).is_empty() {
                return child;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn only_the_volume_that_was_locked_unlocks_it() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    run(hiding.create(&["--yes", "--force", "--size", "1M", "--format", "TrueCrypt"])).succeeds();
    let Hiding { folder, volume, inner, .. } = &hiding;
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), volume]);
    run(["lock", volume]).succeeds();
    unlock(volume, inner).fails(1, &["another volume", "stays locked"]);
    assert!(locked(volume));

    // A process that still asks for a password delays the others no longer than that.
    let mut first = asked(volume);
    unlock(volume, &folder.password).fails(1, &["another process is unlocking it"]);
    first.kill().expect("killed");
    first.wait().expect("it has ended");

    // Locking it again ends a prompt that was already open: a password typed there unlocks nothing.
    let mut second = asked(volume);
    run(["lock", volume]).succeeds();
    assert_eq!(second.wait().expect("it ends").code(), Some(1));
    assert!(locked(volume));
    wait_until("it can be unlocked", || unlock(volume, &folder.password).code == 0);
    assert!(!locked(volume));
    served.stop().succeeds();
}

#[test]
fn a_wrong_password_unlocks_nothing_even_where_no_header_knows_it() {
    let folder = Folder::new();
    let (volume, bad) = (folder.str("plain"), folder.str("bad"));
    fs::write(&volume, vec![0x5a; 1 << 20]).expect("a file");
    fs::write(&bad, "another password").expect("a file");
    let how = ["--format=plain", "--cipher=aes-xts-plain64", "--key-size=512", "--hash=sha512", "--password-file"];
    let socket = folder.str("s");
    let served = Served::start([&how[..], &[&folder.password, ISOLATED, "--socket", &socket, &volume]].concat());
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 7 0 64k") else { return };
    assert!(wrote, "{said}");
    run(["lock", &volume]).succeeds();
    let with = |password: &str| run([&["unlock"][..], &how, &[password, &volume]].concat());
    with(&bad).fails(2, &["not its previous keys"]);
    assert!(locked(&volume));
    with(&folder.password).succeeds();
    let (read, said) = qemu_io(&served.uri, "read -P 7 0 64k").expect("as before");
    assert!(read, "{said}");
    served.stop().succeeds();
}

#[test]
fn what_is_mounted_is_written_before_it_is_locked() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, dir) = (place.ext4("v.tc"), place.dir("d"));
    let open = place.ext4("open.tc");
    let open_dir = place.dir("open");
    place.mount(&volume, &dir, &[ISOLATED]).succeeds();
    place.mount(&open, &open_dir, &[]).succeeds();
    let list = place.run(["list", "--json"]).succeeds().json();
    let told = |volume: &str| list["volumes"].as_array().into_iter().flatten().find(|v| v["volume"] == volume).cloned();
    let lockable = [&volume, &open].map(|volume| told(volume).and_then(|told| told["lockable"].as_bool()));
    assert_eq!(lockable, [Some(true), Some(false)], "{list}");
    place.run(["lock", &open_dir]).fails(1, &["--isolate-keys"]);
    place.run(["lock", &place.dir("nothing")]).fails(1, &["claviger list"]);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 11) as u8).collect();
    fs::write(format!("{dir}/file"), &bytes).expect("written");
    // One inside the other, with something to be written.
    let (inner, inner_dir) = (format!("{dir}/inner.tc"), place.dir("inner"));
    fs::copy(place.volume("inner.tc", "1M", &[]), &inner).expect("a copy");
    place.mount(&inner, &inner_dir, &[ISOLATED, "--filesystem", "none"]).succeeds();
    let inner_file = format!("{inner_dir}/volume");
    let file = fs::OpenOptions::new().write(true).open(&inner_file).expect("a file");
    file.write_all_at(b"written", 4096).expect("written");
    drop(file);
    let all = place.run(["lock", "--all", "--json"]).succeeds().json();
    assert_eq!((&all["locked"], &all["open"]), (&serde_json::json!([inner, volume]), &serde_json::json!([open])));
    // The data on the disk are complete now, even if the machine loses power.
    let copy = format!("{volume}.copy");
    fs::copy(&volume, &copy).expect("a copy");
    place.run(["unmount", &dir]).fails(1, &["locked"]);
    place.run(["unlock", "--password-file", &place.folder.password, &dir]).succeeds();
    place.run(["unlock", "--password-file", &place.folder.password, &inner_dir]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    assert!(fs::read(inner_file).expect("a file")[4096..].starts_with(b"written"));
    place.unmount(&inner_dir).succeeds();
    place.unmount(&dir).succeeds();
    place.unmount(&open_dir).succeeds();
    place.mount(&copy, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();
    // A signal, as at the end of the day: nobody waits for a password that does not come.
    let pid = place.mount(&volume, &dir, &[ISOLATED]).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
    place.run(["lock", &dir]).succeeds();
    // Nor does it wait for a client that sends nothing.
    let session = fs::read_dir(place.runtime()).expect("a folder").flatten().next().expect("one");
    let _silent = UnixStream::connect(session.path().join("keys")).expect("it listens");
    tools::run(Command::new("kill").args(["-TERM", &pid.to_string()]));
    wait_until("it has ended", || ended(pid) && !place.mounted(&dir));
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
}

#[test]
fn systemd_understands_the_unit() {
    let Some(analyze) = tools::program("systemd-analyze") else { return };
    let unit = include_str!("../../../../../dist/systemd/claviger-lock@.service");
    let own = env!("CARGO_BIN_EXE_claviger");
    let folder = Folder::new();
    let path = folder.str("claviger-lock@root.service");
    assert!(unit.contains("ExecStart=/usr/bin/claviger "));
    fs::write(&path, unit.replace("/usr/bin/claviger", own)).expect("a file");
    let output = Command::new(analyze).args(["verify", "--man=no", &path]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("claviger-lock"), "{said}");
}

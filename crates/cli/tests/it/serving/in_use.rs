//! Changes of a header while the volume is mounted or served.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::serving::key_process::ISOLATED;
use crate::serving::remote::Server;
use crate::volumes::hidden::Hiding;
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::{tools, uml};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const CHEAP: [&str; 4] = ["--kdf", "pbkdf2", "--iterations", "1000"];

/// A folder with a second passphrase in the file `new`.
fn with_new() -> (Folder, String) {
    let folder = Folder::new();
    let new = folder.str("new");
    fs::write(&new, "another one, long enough for a PIM of 1").expect("a password file");
    (folder, new)
}

fn changed(volume: &str, old: &str, new: &str) -> Done {
    let change = ["keyslot", "change", "--password-file", old, "--new-password-file", new, volume];
    run(change.into_iter().chain(CHEAP))
}

fn opens(volume: &str, password: &str) -> i32 {
    run(["keyslot", "test", "--password-file", password, volume]).code
}

#[test]
fn keyslots_and_tokens_change_while_a_client_writes() {
    let (folder, new) = with_new();
    let volume = folder.luks2("v.luks");
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    if qemu_io(&served.uri, "read 0 512").is_none() {
        return;
    }
    let done = AtomicBool::new(false);
    let writes = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                for command in ["write -P 0x5a 0 3M", "read -P 0x5a 0 3M", "write -P 7 3M 4096", "flush"] {
                    let (good, out) = qemu_io(&served.uri, command).expect("as before");
                    assert!(good, "{out}");
                }
                rounds += 1;
            }
            rounds
        });
        let add = ["keyslot", "add", "--password-file", &folder.password, "--new-password-file", &new, &volume];
        run(add.into_iter().chain(CHEAP)).succeeds();
        run(["keyslot", "list", &volume]).succeeds();
        run(["keyslot", "kill", "--yes", "--password-file", &folder.password, &volume, "1"]).succeeds();
        for _ in 0..3 {
            changed(&volume, &folder.password, &new).succeeds();
            changed(&volume, &new, &folder.password).succeeds();
        }
        run(["header", "set", "--label", "in use", &volume]).succeeds();
        run(["header", "backup", "--password-file", &folder.password, &volume, &folder.str("backup")]).succeeds();
        run(["header", "show", &volume]).succeeds();
        run(["verify", "--password-file", &folder.password, &volume]).succeeds();
        let token = folder.str("token");
        fs::write(&token, r#"{"type":"test","keyslots":[]}"#).expect("a token");
        run(["token", "import", &volume, &token]).succeeds();
        changed(&volume, &folder.password, &new).succeeds();
        done.store(true, Ordering::Relaxed);
        client.join().expect("every request succeeds")
    });
    assert!(writes > 0);
    // Whatever would change the layout waits for the end.
    run(["header", "convert", "--to", "LUKS1", "--yes", "--no-backup", &volume]).fails(9, &["mounted or served"]);
    run(["header", "repair", &volume]).fails(9, &["mounted or served"]);
    served.stop().succeeds();
    assert_eq!([opens(&volume, &new), opens(&volume, &folder.password)], [0, 2]);
    let again = Served::start(["--password-file", &new, "--socket", &folder.str("s"), &volume]);
    let (good, out) = qemu_io(&again.uri, "read -P 0x5a 0 3M").expect("as before");
    assert!(good, "{out}");
    again.stop().succeeds();
    if let Some(cryptsetup) = tools::program("cryptsetup") {
        tools::run(Command::new(cryptsetup).args(["open", "--test-passphrase", "--key-file", &new, &volume]));
        let dump = Command::new("cryptsetup").args(["luksDump", &volume]).output().expect("it starts");
        assert!(String::from_utf8_lossy(&dump.stdout).contains("in use"), "the label");
    }
}

/// The header's file is locked for reading there, and the lock becomes exclusive for the time of the change.
#[test]
fn a_detached_header_changes_while_a_key_process_holds_the_keys() {
    let (folder, new) = with_new();
    let (data, header) = (folder.str("data"), folder.str("header"));
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "8M", "--header", &header];
    run(create.into_iter().chain(CHEAP).chain(["--password-file", &folder.password, &data])).succeeds();
    let serve =
        [ISOLATED, "--header", &header, "--password-file", &folder.password, "--socket", &folder.str("s"), &data];
    for how in [&[][..], &["--read-only"]] {
        let served = Served::start(serve.iter().chain(how));
        changed(&header, &folder.password, &new).succeeds();
        let both = ["keyslot", "change", "--header", &header, "--password-file", &new];
        let back = ["--new-password-file", &folder.password, &data];
        run(both.into_iter().chain(back).chain(CHEAP)).succeeds();
        assert_eq!([opens(&header, &folder.password), opens(&header, &new)], [0, 2]);
        run(["lock", &data]).succeeds();
        changed(&header, &folder.password, &new).succeeds();
        run(["unlock", "--header", &header, "--password-file", &new, &data]).succeeds();
        changed(&header, &new, &folder.password).succeeds();
        // Its header is not lent for other data.
        let copy = folder.str("copy");
        fs::copy(&data, &copy).expect("copied");
        let reencrypt = ["reencrypt", "--yes", "--header", &header, "--password-file", &folder.password, &copy];
        run(reencrypt).fails(9, &["in use by another process"]);
        served.stop().succeeds();
    }
}

#[test]
fn truecrypt_veracrypt_and_bitlocker_change_while_they_are_served() {
    let (folder, new) = with_new();
    let create = |format: &str, more: &[&str]| {
        let path = folder.str(format);
        let args =
            ["create", "--format", format, "--quick", "--size", "32M", "--password-file", &folder.password, &path];
        run(args.iter().chain(more)).succeeds();
        path
    };
    let one = ["--hash", "SHA-512"];
    for (format, more) in
        [("TrueCrypt", &one[..]), ("VeraCrypt", &["--hash", "SHA-512", "--pim", "1"]), ("BitLocker", &[])]
    {
        let volume = create(format, more);
        let hints: &[&str] = if format == "BitLocker" { &[] } else { more };
        for how in [&[][..], &["--read-only"]] {
            let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
            let served = Served::start(serve.iter().chain(hints).chain(how));
            let changed = |old: &str, new: &str| {
                let change = ["change", "--password-file", old, "--new-password-file", new, &volume];
                run(change.iter().chain(hints)).succeeds();
            };
            changed(&folder.password, &new);
            run(["verify", "--password-file", &new, &volume].iter().chain(hints)).succeeds();
            changed(&new, &folder.password);
            served.stop().succeeds();
        }
        run(["verify", "--password-file", &folder.password, &volume].iter().chain(hints)).succeeds();
    }
}

/// A command that waits for its passphrase has borrowed the file: others wait for it, and the server may end first.
#[test]
fn a_borrowed_file_stays_locked_whoever_ends_first() {
    let (folder, new) = with_new();
    let volume = folder.luks2("v.luks");
    let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    for kill in [false, true] {
        let served = Served::start(serve);
        let mut change = claviger();
        let args = ["keyslot", "change", "--password-file", "-", "--new-password-file", &new, &volume];
        let mut change = change.args(args).args(CHEAP).stdin(Stdio::piped()).spawn().expect("it starts");
        wait_until("it has borrowed the file", || run(["keyslot", "list", &volume]).code == 9);
        run(["keyslot", "list", &volume]).fails(9, &["another claviger command", "Wait until it is done"]);
        if kill {
            drop(served);
        } else {
            served.stop().succeeds();
        }
        run(["keyslot", "list", &volume]).fails(9, &["in use"]);
        run(["info", "--password-file", &folder.password, &volume]).fails(9, &["in use"]);
        let password = fs::read(&folder.password).expect("a password");
        change.stdin.take().expect("a pipe").write_all(&password).expect("it waits");
        assert!(change.wait().expect("it ends").success());
        assert_eq!([opens(&volume, &new), opens(&volume, &folder.password)], [0, 2]);
        changed(&volume, &new, &folder.password).succeeds();
    }
}

#[test]
fn a_killed_change_leaves_the_server_and_a_header_that_opens() {
    let (folder, new) = with_new();
    let volume = folder.luks2("v.luks");
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let mut passwords = [&*folder.password, &*new];
    for delay in 0..20 {
        let [old, next] = passwords;
        let mut change = claviger();
        let change = change.args(["keyslot", "change", "--password-file", old, "--new-password-file", next, &volume]);
        let mut change = change.args(CHEAP).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(delay * 4));
        let _ = change.kill();
        change.wait().expect("it ends");
        wait_until("the file is back", || run(["keyslot", "list", &volume]).code == 0);
        match [old, next].map(|password| opens(&volume, password)) {
            [0, 2] => {}
            [2, 0] => passwords = [next, old],
            codes => panic!("{codes:?} after {delay}"),
        }
    }
    // The last kill may have left two copies of different age, which the next change makes alike.
    changed(&volume, passwords[0], passwords[1]).succeeds();
    served.stop().succeeds();
    run(["verify", "--password-file", passwords[1], &volume]).succeeds();
}

/// The kernel's file system is mounted, and a file served as it is has no header of ours.
#[test]
fn a_mounted_volume_changes_and_a_raw_file_does_not() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, dir) = (place.ext4("v.tc"), place.dir("mnt"));
    let new = place.folder.str("new");
    fs::write(&new, "another").expect("a password file");
    let change =
        ["change", "--hash", "SHA-512", "--password-file", &place.folder.password, "--new-password-file", &new];
    let change = || place.run(change.into_iter().chain([&*volume]));
    place.run(["mount", "--raw", "--filesystem", "none", &volume, &dir]).succeeds();
    change().fails(9, &["in use", "claviger"]);
    place.unmount(&dir).succeeds();
    place.mount(&volume, &dir, &[]).succeeds();
    fs::write(format!("{dir}/before"), "what was there").expect("written");
    change().succeeds();
    fs::write(format!("{dir}/after"), "what came").expect("written");
    place.unmount(&dir).succeeds();
    let mount = ["mount", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &new, &volume, &dir];
    place.run(mount).succeeds();
    assert_eq!(fs::read(format!("{dir}/before")).expect("read"), b"what was there");
    assert_eq!(fs::read(format!("{dir}/after")).expect("read"), b"what came");
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
}

/// A served volume full of a pattern; `None` without qemu-io.
fn served_full(folder: &Folder) -> Option<(String, Served)> {
    let volume = folder.str("v.luks");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "40M", "--sector-size", "512"];
    let create = create.into_iter().chain(CHEAP);
    run(create.chain(["--password-file", &*folder.password, &volume])).succeeds();
    let served = serve(folder, &[&volume]);
    fill(&served)?;
    Some((volume, served))
}

/// The same with BitLocker, up to the reserved areas.
fn served_full_bitlocker(folder: &Folder) -> Option<(String, Served)> {
    let volume = folder.str("bitlocker");
    let create = ["create", "--format", "BitLocker", "--quick", "--size", "26M", "--password-file", &folder.password];
    run(create.into_iter().chain([&*volume])).succeeds();
    let mut served = serve(folder, &[&volume]);
    served.size = 24 << 20;
    fill(&served)?;
    Some((volume, served))
}

/// Writes the pattern everywhere; `None` without qemu-io.
pub fn fill(served: &Served) -> Option<()> {
    let (good, out) = qemu_io(&served.uri, &format!("write -P 0x5a 0 {}", served.size))?;
    assert!(good, "{out}");
    Some(())
}

pub fn serve(folder: &Folder, volume: &[&str]) -> Served {
    Served::start(["--password-file", &folder.password, "--socket", &folder.str("s")].iter().chain(volume))
}

pub fn is_full(served: &Served) {
    let (good, out) = qemu_io(&served.uri, &format!("read -P 0x5a 0 {}", served.size)).expect("as before");
    assert!(good, "{out}");
}

/// Slowly, so that there is time for others.
pub fn reencrypt(folder: &Folder, more: &[&str]) -> Command {
    let mut command = claviger();
    let slowly = ["--hotzone-size", "512K", "--throttle", "12M"];
    command.args(["reencrypt", "--yes", "--password-file", &folder.password]).args(slowly).args(more);
    command.stdin(Stdio::null());
    command
}

/// Writes to a volume, and reads what was written and the pattern between, until the work on it is done. Then fills it again.
pub fn used_until_done(served: &Served, volume: &str, mut work: Command) {
    let mut work = work.stdout(Stdio::null()).spawn().expect("it starts");
    let does = |command: &str| {
        let (good, out) = qemu_io(&served.uri, command).expect("as before");
        assert!(good, "{command}: {out}");
    };
    let (mut rounds, mut seen) = (0, Vec::new());
    let status = loop {
        // Parts of sectors among them; other bytes in each round.
        for command in ["write -P N 100 5000", "write -P N 8M 2M", "write -P N 20000100 12000", "flush"] {
            does(&command.replace('N', &(rounds % 200).to_string()));
        }
        for command in ["read -P N 100 5000", "read -P N 8M 2M", "read -P N 20000100 12000"] {
            does(&command.replace('N', &(rounds % 200).to_string()));
        }
        for command in ["read -P 0x5a 8K 8380416", "read -P 0x5a 10M 6M"] {
            does(command);
        }
        rounds += 1;
        seen.extend(listed_reencryption(volume));
        if let Some(status) = work.try_wait().expect("it runs") {
            break status;
        }
    };
    assert!(status.success() && rounds > 1, "{status} after {rounds}");
    assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0) && !seen.is_empty(), "{seen:?}");
    assert_eq!(listed_reencryption(volume), None);
    for at in ["0 8K", "8M 2M", "20000000 12288"] {
        does(&format!("write -P 0x5a {at}"));
    }
}

fn listed(volume: &str) -> Option<Value> {
    let list = run(["list", "--json"]).succeeds().json();
    list["volumes"].as_array().expect("a list").iter().find(|v| v["volume"] == volume && v["state"] != "dead").cloned()
}

pub fn listed_reencryption(volume: &str) -> Option<(u64, u64)> {
    let progress = &listed(volume)?["reencryption"];
    Some((progress["done"].as_u64()?, progress["size"].as_u64()?))
}

pub fn is_listed_as(volume: &str, format: &str, cipher: &str) {
    let listed = listed(volume).expect("it is served");
    assert_eq!((&listed["format"], &listed["cipher"]), (&format.into(), &cipher.into()));
}

#[test]
fn a_volume_is_reencrypted_while_clients_read_and_write() {
    let folder = Folder::new();
    let Some((volume, mut served)) = served_full(&folder) else { return };
    for (size, more) in
        [(26, &["--new-cipher", "serpent-xts-plain64"][..]), (28, &["--new-sector-size", "4096", "--backward"])]
    {
        // Also after it has grown in use.
        resized(&volume, &folder.password, &format!("{size}M"), &[]).succeeds();
        served.size = size << 20;
        fill(&served).expect("as before");
        used_until_done(&served, &volume, reencrypt(&folder, &[more, &[&volume]].concat()));
        is_full(&served);
        is_listed_as(&volume, "LUKS2", "serpent");
    }
    served.stop().succeeds();
    let info = run(["info", "--password-file", &folder.password, &volume]).succeeds();
    assert!(info.text().contains("serpent") || info.text().contains("Serpent"), "{}", info.text());
    run(["verify", "--password-file", &folder.password, &volume]).succeeds();
    let again = serve(&folder, &[&volume]);
    is_full(&again);
    again.stop().succeeds();
    if let Some(cryptsetup) = tools::program("cryptsetup") {
        let password = fs::File::open(&folder.password).expect("a password file");
        tools::run(Command::new(cryptsetup).args(["open", "--test-passphrase", &volume]).stdin(password));
    }
}

/// One session through the whole life of a volume with a detached header: from plaintext, by another key, to plaintext.
#[test]
fn a_volume_with_a_detached_header_is_converted_while_clients_read_and_write() {
    let folder = Folder::new();
    let (data, header) = (folder.str("data"), folder.str("header"));
    fs::write(&data, vec![0x5a; 24 << 20]).expect("plaintext");
    let with_header: &[&str] = &["--header", &header, &data];
    let begin =
        [&["--encrypt", "--init-only", "--new-kdf", "pbkdf2", "--new-iterations", "1000"], with_header].concat();
    done(reencrypt(&folder, &begin).output().expect("it starts")).succeeds();
    let served = serve(&folder, with_header);
    if qemu_io(&served.uri, "read -P 0x5a 0 512").is_none() {
        return;
    }
    // It has begun, and the rest needs another option.
    let again = reencrypt(&folder, &[&["--encrypt"], with_header].concat()).output();
    done(again.expect("it starts")).fails(1, &["already begun", "--resume"]);
    for how in [&["--resume"][..], &["--resilience", "journal"], &["--decrypt"]] {
        is_full(&served);
        used_until_done(&served, &data, reencrypt(&folder, &[how, with_header].concat()));
        let plain = fs::read(&data).expect("it is there").iter().all(|byte| *byte == 0x5a);
        assert_eq!(plain, how == ["--decrypt"], "{how:?}");
    }
    is_full(&served);
    is_listed_as(&data, "none", "none");
    served.stop().succeeds();
}

/// The beginning moves the data, and needs the volume unmounted; the rest does not.
#[test]
fn a_conversion_that_moves_the_data_is_resumed_while_clients_read_and_write() {
    let folder = Folder::new();
    let (volume, header) = (folder.str("volume"), folder.str("header"));
    let mut plaintext = vec![0x5a; 24 << 20];
    plaintext.resize(56 << 20, 0);
    fs::write(&volume, plaintext).expect("plaintext");
    let fast = ["--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    let encrypt = [&["--encrypt", "--init-only", "--reduce-device-size", "32M"], &fast[..], &[&volume]].concat();
    let decrypt = [&["--decrypt", "--init-only", "--header", &header, &*volume][..]].concat();
    let attached: &[&str] = &[&volume];
    for (begin, with_header) in [(encrypt, attached), (decrypt, &["--header", &header, &volume])] {
        done(reencrypt(&folder, &begin).output().expect("it starts")).succeeds();
        let mut served = serve(&folder, with_header);
        // The rest was empty.
        served.size = 24 << 20;
        if qemu_io(&served.uri, "read -P 0x5a 0 512").is_none() {
            return;
        }
        is_full(&served);
        used_until_done(&served, &volume, reencrypt(&folder, &[&["--resume"], with_header].concat()));
        is_full(&served);
        if with_header == attached {
            // The room for the new header was twice its size.
            done(reencrypt(&folder, attached).output().expect("it starts")).fails(5, &["a different size"]);
            run(["resize", &volume]).succeeds();
            done(reencrypt(&folder, attached).output().expect("it starts")).succeeds();
            is_full(&served);
        }
        served.stop().succeeds();
    }
    assert!(fs::read(&volume).expect("it is there")[..24 << 20].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_bitlocker_volume_is_converted_while_clients_read_and_write() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full_bitlocker(&folder) else { return };
    // Half of it, then the other way round, then all of it.
    let begun = reencrypt(&folder, &["--decrypt", &volume]).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("half is done", || listed_reencryption(&volume).is_some_and(|(done, size)| done > size / 4));
    kill_process(Pid::from_child(&begun), Signal::INT).expect("it runs");
    done(begun.wait_with_output().expect("it ends")).fails(8, &["--resume"]);
    is_full(&served);
    used_until_done(&served, &volume, reencrypt(&folder, &["--encrypt", &volume]));
    is_full(&served);
    let plain = || fs::read(&volume).expect("it is there")[..24 << 20].iter().all(|byte| *byte == 0x5a);
    assert!(!plain());
    is_listed_as(&volume, "BitLocker", "AES");
    used_until_done(&served, &volume, reencrypt(&folder, &["--decrypt", &volume]));
    is_full(&served);
    is_listed_as(&volume, "none", "none");
    // From here on it is the server's plaintext, whatever program made the file system in it.
    let before = fs::read(&volume).expect("it is there");
    let encrypt = ["reencrypt", "--encrypt", "--yes", "--password-file", &folder.password, &volume];
    for more in [&["--format", "BitLocker"][..], &["--reduce-device-size", "1M"]] {
        run(encrypt.iter().chain(more)).fails(5, &["while the volume is in use", "--init-only"]);
    }
    assert!(fs::read(&volume).expect("it is there") == before);
    served.stop().succeeds();
    assert!(plain());
}

/// If the command ends, its server pauses after the present zone and goes on serving. If the server ends, the next command continues.
#[test]
fn a_reencryption_in_use_survives_the_end_of_either_process() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full(&folder) else { return };
    let mut begun = false;
    for round in 0..8 {
        let resume: &[&str] = if begun { &["--resume"] } else { &[] };
        let mut work = reencrypt(&folder, &[resume, &[&volume]].concat());
        let mut work = work.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(round * 30));
        if round % 2 == 0 {
            let _ = work.kill();
        } else {
            let _ = kill_process(Pid::from_child(&work), Signal::INT);
        }
        work.wait().expect("it ends");
        wait_until("the file is back", || run(["keyslot", "list", &volume]).code == 0);
        begun = run(["info", "--json", "--password-file", &folder.password, &volume]).text().contains("reencryption")
            || run(["header", "show", &volume]).text().contains("reencrypt");
        is_full(&served);
    }
    assert!(begun);
    // Now the server is killed.
    let work = reencrypt(&folder, &["--resume", &volume]).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("it works", || listed_reencryption(&volume).is_some());
    drop(served);
    let ended = work.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && said.contains("has ended") && said.contains("--resume"), "{said}");
    let again = serve(&folder, &[&volume]);
    is_full(&again);
    let writes = reencrypt(&folder, &["--resume", &volume]).status().expect("it ends").success();
    // In the middle of a zone the volume is read-only, and the work goes on without it.
    is_full(&again);
    again.stop().succeeds();
    if !writes {
        run(["reencrypt", "--resume", "--password-file", &folder.password, &volume]).succeeds();
    }
    run(["verify", "--password-file", &folder.password, &volume]).succeeds();
    let last = serve(&folder, &[&volume]);
    is_full(&last);
    last.stop().succeeds();
}

#[test]
fn a_bitlocker_conversion_in_use_survives_the_end_of_either_process() {
    let folder = Folder::new();
    let Some((volume, served)) = served_full_bitlocker(&folder) else { return };
    let decrypt = || {
        let mut work = reencrypt(&folder, &["--decrypt", &volume]);
        work.stderr(Stdio::piped()).spawn().expect("it starts")
    };
    for round in 0..4 {
        let mut work = decrypt();
        wait_until("it works", || listed_reencryption(&volume).is_some());
        thread::sleep(Duration::from_millis(round * 40));
        let _ = kill_process(Pid::from_child(&work), if round % 2 == 0 { Signal::KILL } else { Signal::INT });
        work.wait().expect("it ends");
        wait_until("the file is back", || run(["keyslot", "list", &volume]).code == 0);
        is_full(&served);
    }
    let work = decrypt();
    wait_until("it works", || listed_reencryption(&volume).is_some_and(|(done, _)| done > 0));
    drop(served);
    let ended = work.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && said.contains("has ended") && said.contains("--resume"), "{said}");
    let mut again = serve(&folder, &[&volume]);
    again.size = 24 << 20;
    is_full(&again);
    done(decrypt().wait_with_output().expect("it ends")).fails(5, &["was interrupted", "Unmount it first"]);
    is_full(&again);
    again.stop().succeeds();
    run(["reencrypt", "--resume", "--password-file", &folder.password, &volume]).succeeds();
    assert!(fs::read(&volume).expect("it is there")[..24 << 20].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn what_cannot_be_reencrypted_in_use_is_refused_before_anything_is_changed() {
    let folder = Folder::new();
    let volume = folder.luks2("v.luks");
    let header = folder.str("header");
    let bitlocker = folder.str("bitlocker");
    let create = ["create", "--format", "BitLocker", "--quick", "--size", "32M", "--password-file", &folder.password];
    run(create.into_iter().chain([&*bitlocker])).succeeds();
    let empty = folder.str("empty");
    fs::write(&empty, "").expect("a file");
    let [decrypt, to_empty]: [&[&str]; 2] = [&["--decrypt", "--header", &header], &["--decrypt", "--header", &empty]];
    for (path, serving, options, (code, why)) in [
        (&volume, &[ISOLATED][..], &[][..], (5, "its keys are in a key process")),
        (&volume, &["--read-only"], &[], (5, "read-only")),
        (&volume, &[], decrypt, (5, "while the volume is in use")),
        (&volume, &[], to_empty, (5, "while the volume is in use")),
        (&volume, &[], &["--resilience", "none"], (5, "no protection")),
        (&bitlocker, &["--read-only"], &["--decrypt"], (5, "read-only")),
    ] {
        let before = fs::read(path).expect("the volume");
        let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), path];
        let served = Served::start(serve.iter().chain(serving));
        let reencrypt = ["reencrypt", "--yes", "--password-file", &folder.password, path];
        run(reencrypt.iter().chain(options)).fails(code, &[why]);
        served.stop().succeeds();
        assert!(fs::read(path).expect("the volume") == before, "{why}");
        assert!(!fs::exists(&header).expect("a folder") && fs::exists(&empty).expect("a folder"));
    }
}

pub fn resized(volume: &str, password: &str, size: &str, more: &[&str]) -> Done {
    run(["resize", "--password-file", password, "--size", size, "--yes", volume].iter().chain(more))
}

fn listed_size(volume: &str) -> u64 {
    let list = run(["list", "--json"]).succeeds().json();
    let volumes = list["volumes"].as_array().expect("a list").iter();
    volumes.filter(|v| v["volume"] == volume).find_map(|v| v["size"].as_u64()).expect("it is served")
}

#[test]
fn a_volume_grows_while_it_is_served() {
    let folder = Folder::new();
    let one: &[&str] = &["--truecrypt", "--hash", "SHA-512"];
    for (volume, hints, isolated) in [
        (folder.luks2("v.luks"), &[][..], &[][..]),
        (folder.volume("v.tc", "4M", &[]), one, &[]),
        (folder.luks2("isolated.luks"), &[], &[ISOLATED]),
    ] {
        let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
        let served = Served::start(serve.iter().chain(hints).chain(isolated));
        let does = |uri: &str, command: &str| match qemu_io(uri, command) {
            Some((good, out)) => assert!(good, "{command}: {out}"),
            None => assert!(tools::program("qemu-io").is_none()),
        };
        let before = listed_size(&volume);
        does(&served.uri, &format!("write -P 0x5a 0 {before}"));
        let done = resized(&volume, &folder.password, "9M", hints).succeeds();
        assert!(done.text().contains("when they connect again"), "{}", done.text());
        assert_eq!(listed_size(&volume), 9 << 20);
        // Over the old end, and at the new one.
        does(&served.uri, &format!("write -P 7 {} 1M", before - 4096));
        does(&served.uri, "write -P 8 8M 1M");
        assert!(qemu_io(&served.uri, "write 9M 512").is_none_or(|(good, _)| !good));
        resized(&volume, &folder.password, "5M", hints).fails(9, &["can only grow"]);
        let filesystem = resized(&volume, &folder.password, "10M", &[hints, &["--filesystem"]].concat());
        filesystem.fails(5, &["not mounted by claviger"]);
        // If a file grows by other means, `resize` tells the server.
        if hints.is_empty() {
            let file = fs::OpenOptions::new().write(true).open(&volume).expect("a file");
            file.set_len(fs::metadata(&volume).expect("a file").len() + (1 << 20)).expect("grown");
            run(["resize", &volume]).succeeds();
            assert_eq!(listed_size(&volume), 10 << 20);
            does(&served.uri, "write -P 9 9M 1M");
            resized(&volume, &folder.password, "11M", &[]).succeeds();
            // The next key process sees another size.
            if !isolated.is_empty() {
                run(["lock", &volume]).succeeds();
                run(["unlock", "--password-file", &folder.password, &volume]).succeeds();
                does(&served.uri, "read -P 9 9M 1M");
            }
        } else {
            run(["resize", &volume]).fails(1, &["Give --size"]);
            resized(&volume, &folder.password, "11M", hints).succeeds();
        }
        served.stop().succeeds();
        run(["resize", &volume]).fails(1, &["Give --size"]);
        let again = Served::start(serve.iter().chain(hints));
        assert_eq!(again.size, 11 << 20);
        does(&again.uri, &format!("read -P 0x5a 0 {}", before - 4096));
        does(&again.uri, &format!("read -P 7 {} 1M", before - 4096));
        does(&again.uri, "read -P 8 8M 1M");
        again.stop().succeeds();
    }
}

/// Every change of the header of a remote store goes through the process that uses it, and that notices when the store grows.
#[test]
fn a_remote_store_is_changed_and_grows_while_its_volume_is_served() {
    let (folder, new) = with_new();
    let image = folder.luks2("image");
    let Some(server) = Server::start(&folder, &[]) else { return };
    let uri = &*server.uri;
    let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), uri];
    for isolated in [&[][..], &[ISOLATED]] {
        let served = Served::start(serve.iter().chain(isolated));
        let does = |command: &str| match qemu_io(&served.uri, command) {
            Some((good, out)) => assert!(good, "{command}: {out}"),
            None => assert!(tools::program("qemu-io").is_none()),
        };
        does(&format!("write -P 0x5a 0 {}", served.size));
        let change = changed(uri, &folder.password, &new).succeeds();
        assert!(!change.err.contains("another machine"), "it is borrowed: {}", change.err);
        changed(uri, &new, &folder.password).succeeds();
        run(["header", "set", "--label", "in use", uri]).succeeds();
        run(["header", "repair", uri]).fails(9, &["mounted or served"]);
        run(["resize", "--size", "9M", uri]).fails(5, &["not in a local file"]);
        let file = fs::OpenOptions::new().write(true).open(&image).expect("a file");
        file.set_len(fs::metadata(&image).expect("a file").len() + (2 << 20)).expect("grown");
        let before = served.size;
        run(["resize", uri]).succeeds();
        assert_eq!(listed_size(uri), before + (2 << 20));
        does(&format!("write -P 7 {before} 2M"));
        does(&format!("read -P 0x5a 0 {before}"));
        let reencrypt = [
            "reencrypt",
            "--yes",
            "--password-file",
            &folder.password,
            "--new-kdf",
            "pbkdf2",
            "--new-iterations",
            "1000",
            uri,
        ];
        match isolated {
            [] => drop(run(reencrypt).succeeds()),
            _ => drop(run(reencrypt).fails(5, &["while it is in use", "Add --isolate-keys"])),
        }
        does(&format!("read -P 7 {before} 2M"));
        does(&format!("read -P 0x5a 0 {before}"));
        served.stop().succeeds();
        let size = before + (2 << 20);
        let again = Served::start(serve);
        assert_eq!(again.size, size);
        let read = qemu_io(&again.uri, &format!("read -P 7 {before} 2M"));
        assert!(read.is_none_or(|(good, _)| good));
        again.stop().succeeds();
    }
    run(["resize", uri]).fails(1, &["the volume is not in use"]);
    drop(server);
    assert_eq!([opens(&image, &folder.password), opens(&image, &new)], [0, 2]);
}

/// Two images of one name in two folders, a server that does not answer, and an export that became shorter.
#[test]
fn no_other_remote_store_is_taken_for_the_one_in_use() {
    let (folder, new) = with_new();
    if let (Some(qemu_img), Some(_)) = (tools::program("qemu-img"), tools::program("qemu-nbd")) {
        let volume = folder.luks2("v.luks");
        for name in ["a", "b"] {
            fs::create_dir(folder.path(name)).expect("a folder");
            let image = folder.path(name).join("disk.qcow2");
            tools::run(Command::new(&qemu_img).args(["convert", "-f", "raw", "-O", "qcow2", &volume]).arg(image));
        }
        let within = |name: &str, words: &[&str]| {
            let mut command = claviger();
            command.args(words).current_dir(folder.path(name)).stdin(Stdio::null());
            command
        };
        let socket = folder.str("s");
        let serve = ["serve", "--json", "--password-file", &folder.password, "--socket", &socket, "qcow2:disk.qcow2"];
        let served = Served::of(within("a", &serve));
        let change = ["keyslot", "change", "--password-file", &folder.password, "--new-password-file", &new];
        let change = change.into_iter().chain(CHEAP).chain(["qcow2:disk.qcow2"]).collect::<Vec<_>>();
        done(within("b", &change).output().expect("it starts")).succeeds();
        served.stop().succeeds();
        let opens = |name: &str, password: &str| {
            let test = ["keyslot", "test", "--password-file", password, "qcow2:disk.qcow2"];
            done(within(name, &test).output().expect("it starts")).code
        };
        assert_eq!([opens("a", &folder.password), opens("b", &new)], [0, 0]);
        assert_eq!([opens("a", &new), opens("b", &folder.password)], [2, 2]);
    }

    let image = folder.luks2("image");
    let Some(server) = Server::start(&folder, &[]) else { return };
    let uri = &*server.uri;
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), uri]);
    served.signal("STOP");
    let before = fs::read(&image).expect("an image");
    let refused = changed(uri, &folder.password, &new);
    served.signal("CONT");
    refused.fails(9, &["does not lend it"]);
    assert!(fs::read(&image).expect("an image") == before);
    let len = before.len() as u64;
    let file = fs::OpenOptions::new().write(true).open(&image).expect("a file");
    file.set_len(len - (1 << 20)).expect("cut");
    run(["resize", uri]).fails(6, &["has shrunk"]);
    file.set_len(len).expect("longer");
    assert!(run(["resize", uri]).succeeds().text().contains("reports no other size"));
    served.stop().succeeds();
}

/// A command that is killed in the middle, and a server that has to end: the header opens, and nothing of it is half-written.
#[test]
fn a_borrowed_remote_store_survives_the_end_of_either_process() {
    let (folder, new) = with_new();
    let image = folder.luks2("image");
    let Some(server) = Server::start(&folder, &["--filter=delay", "delay-write=15ms"]) else { return };
    let uri = &*server.uri;
    let (mut old, mut other) = (folder.password.clone(), new);
    let mut served = Served::start(["--password-file", &old, "--socket", &folder.str("s"), uri]);
    for round in 1..=10 {
        let change = ["keyslot", "change", "--password-file", &old, "--new-password-file", &other, uri];
        let mut change =
            claviger().args(change.into_iter().chain(CHEAP)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let change = change.as_mut().expect("it starts");
        thread::sleep(Duration::from_millis(round * 17));
        if round % 2 == 0 {
            let _ = change.kill();
            change.wait().expect("it ends");
        } else {
            // Ends with an error, or was quicker.
            served.stop().succeeds();
            change.wait().expect("it ends");
            let by = [&old, &other].into_iter().find(|by| opens(uri, by) == 0).expect("one of them opens").clone();
            served = Served::start(["--password-file", &by, "--socket", &folder.str("s"), uri]);
        }
        wait_until("the store is back", || run(["keyslot", "list", uri]).code == 0);
        let now = [opens(uri, &old), opens(uri, &other)];
        assert!(now.contains(&0), "round {round}: {now:?}");
        if now[1] == 0 {
            std::mem::swap(&mut old, &mut other);
        }
    }
    // The last change may have left two copies of different age, which the next one makes alike.
    changed(uri, &old, &other).succeeds();
    served.stop().succeeds();
    drop(server);
    run(["verify", "--password-file", &other, &image]).succeeds();
}

/// Nothing is changed where the server could not follow, or serves another volume in the same file.
#[test]
fn a_volume_that_cannot_grow_in_use_keeps_its_size() {
    let Some(Hiding { folder, inner, volume, .. }) = &Hiding::new("TrueCrypt") else { return };
    let create = [
        "create",
        "--hidden",
        "--hash",
        "SHA-512",
        "--hidden-hash",
        "SHA-512",
        "--quick",
        "--size",
        "1M",
        "--force",
        "--yes",
    ];
    let passwords = ["--password-file", &folder.password, "--hidden-password-file", inner];
    run(create.iter().chain(&passwords).chain([&&**volume])).succeeds();
    let before = fs::read(volume).expect("the volume");
    let socket = folder.str("s");
    let hints = ["--truecrypt", "--hash", "SHA-512", "--socket", &socket, volume];
    let protect = ["--protect-hidden", "--hidden-hash", "SHA-512", "--hidden-password-file", inner];
    let outer = ["--password-file", &folder.password];
    let hidden = ["--password-file", inner];
    for (how, why) in [
        ([&protect, &outer[..]].concat(), "a hidden volume in it is protected"),
        (hidden.to_vec(), "another volume in this file is in use"),
    ] {
        let served = Served::start(how.iter().chain(&hints));
        let refused = resized(volume, &folder.password, "9M", &["--truecrypt", "--hash", "SHA-512"]);
        refused.fails(9, &[why, "claviger unmount"]);
        served.stop().succeeds();
        assert!(fs::read(volume).expect("the volume") == before, "{why}");
    }
}

/// A file with a part of a sector after the last whole one: cutting it off would let every flush fail.
#[test]
fn the_file_of_a_volume_in_use_is_not_cut_short() {
    let folder = Folder::new();
    let volume = folder.luks2("v.luks");
    let len = fs::metadata(&volume).expect("a file").len() + 512;
    fs::OpenOptions::new().write(true).open(&volume).and_then(|file| file.set_len(len)).expect("longer");
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    resized(&volume, &folder.password, &served.size.to_string(), &[]).fails(9, &["can only grow"]);
    assert_eq!(fs::metadata(&volume).expect("a file").len(), len);
    if let Some((flushed, out)) = qemu_io(&served.uri, "flush") {
        assert!(flushed, "{out}");
    }
    served.stop().succeeds();
}

/// A command that was killed after it wrote the header leaves a volume that is larger than its server knows.
#[test]
fn a_locked_volume_opens_again_after_a_killed_growth() {
    let folder = Folder::new();
    let (volume, grown) = (folder.volume("v.tc", "4M", &[]), folder.str("grown"));
    let hints = ["--truecrypt", "--hash", "SHA-512"];
    fs::copy(&volume, &grown).expect("copied");
    resized(&grown, &folder.password, "6M", &hints).succeeds();
    let serve = [ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    let served = Served::start(serve.iter().chain(&hints));
    let file = fs::OpenOptions::new().write(true).open(&volume).expect("a file");
    file.write_all_at(&fs::read(&grown).expect("a file"), 0).expect("written");
    run(["lock", &volume]).succeeds();
    run(["unlock", "--password-file", &folder.password, &volume].iter().chain(&hints)).succeeds();
    assert_eq!(listed_size(&volume), served.size);
    resized(&volume, &folder.password, "6M", &hints).succeeds();
    assert_eq!(listed_size(&volume), 6 << 20);
    if let Some((good, out)) = qemu_io(&served.uri, "write -P 7 5M 1M") {
        assert!(good, "{out}");
    }
    served.stop().succeeds();
}

/// A loop device, whose backing file is locked as well.
#[test]
fn the_header_on_a_loop_device_changes_while_it_is_served() {
    let (folder, new) = with_new();
    let volume = folder.luks2("v.luks");
    let Some(device) = LoopDevice::new(volume.as_ref(), &[]) else { return };
    let name = device.path().to_str().expect("a path");
    for how in [&[][..], &["--read-only"]] {
        let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), name];
        let served = Served::start(serve.iter().chain(how));
        changed(name, &folder.password, &new).succeeds();
        changed(name, &new, &folder.password).succeeds();
        // Under its other name it stays locked.
        changed(&volume, &folder.password, &new).fails(9, &[]);
        if how.is_empty() {
            let len = fs::metadata(&volume).expect("a file").len() + (1 << 20);
            fs::OpenOptions::new().write(true).open(&volume).and_then(|file| file.set_len(len)).expect("grown");
            tools::run(Command::new("losetup").arg("-c").arg(device.path()));
            run(["resize", name]).succeeds();
            assert_eq!(listed_size(name), served.size + (1 << 20));
        }
        served.stop().succeeds();
    }
    assert_eq!([opens(name, &folder.password), opens(name, &new)], [0, 2]);
}

#[test]
fn a_killed_growth_leaves_the_server_and_is_done_again() {
    let folder = Folder::new();
    let volume = folder.luks2("v.luks");
    let serve = ["--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    let served = Served::start(serve);
    let first = served.size;
    let fill = |at: u64, command: &str| qemu_io(&served.uri, &format!("{command} -P 0x5a {at} 1M"));
    let Some((true, _)) = fill(0, "write") else { return assert!(tools::program("qemu-io").is_none()) };
    let mut size = first;
    for round in 1..=12 {
        let wanted = first + (round << 20);
        let mut resize = claviger();
        let resize = resize.args(["resize", "--yes", "--size", &wanted.to_string(), &volume]);
        let mut resize = resize.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(round * 4));
        let _ = resize.kill();
        resize.wait().expect("it ends");
        wait_until("the file is back", || run(["keyslot", "list", &volume]).code == 0);
        let now = listed_size(&volume);
        assert!([size, wanted].contains(&now), "{now}");
        size = now;
        assert!(fill(0, "read").expect("as before").0, "round {round}");
    }
    let last = first + (20 << 20);
    resized(&volume, &folder.password, &last.to_string(), &[]).succeeds();
    assert_eq!(listed_size(&volume), last);
    assert!(fill(last - (1 << 20), "write").expect("as before").0);
    served.stop().succeeds();
    assert_eq!(Served::start(serve).size, last);
}

/// XFS grows online, and the plaintext as a file. What cannot grow online says so before anything is changed.
#[test]
fn a_mounted_file_system_grows_with_its_volume() {
    let Some(place) = MountSpace::root() else { return };
    let dir = place.dir("mnt");
    let hints = ["--truecrypt", "--hash", "SHA-512", "--password-file", &place.folder.password];
    let resize = |volume: &str, size: &str, more: &[&str]| {
        place.run(["resize", "--size", size, "--yes", volume].iter().chain(&hints).chain(more))
    };
    let space = || rustix::fs::statvfs(&*dir).map(|s| s.f_blocks * s.f_frsize).expect("mounted");

    let image = place.volume("image.tc", "4M", &[]);
    place.mount(&image, &dir, &["--filesystem", "none"]).succeeds();
    resize(&image, "6M", &["--filesystem"]).fails(5, &["mounted as a file"]);
    resize(&image, "6M", &[]).succeeds();
    assert_eq!(fs::metadata(format!("{dir}/volume")).expect("a file").len(), 6 << 20);
    place.shell(&format!("printf end | dd of={dir}/volume bs=1 seek=6291453 conv=notrunc")).succeeds();
    place.unmount(&dir).succeeds();

    let fat = place.volume("fat.tc", "8M", &["mkfs.vfat"]);
    place.mount(&fat, &dir, &[]).succeeds();
    resize(&fat, "9M", &["--filesystem"]).fails(5, &["growing vfat while it is mounted", "Unmount the volume"]);
    assert_eq!(fs::metadata(&fat).expect("a file").len(), 8 << 20);
    place.unmount(&dir).succeeds();
    resize(&fat, "9M", &["--filesystem"]).fails(1, &["not mounted"]);

    if tools::program("mkfs.xfs").is_some() && tools::program("xfs_growfs").is_some() {
        let xfs = place.volume("xfs.tc", "400M", &["mkfs.xfs", "-q"]);
        place.mount(&xfs, &dir, &[]).succeeds();
        fs::write(format!("{dir}/before"), vec![7; 1 << 20]).expect("written");
        let before = space();
        resize(&xfs, "600M", &["--filesystem", "--quick"]).succeeds();
        assert!(space() > before + (150 << 20), "{before} {}", space());
        // Again and again, while others write: the kernel may miss the file's new size.
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let mut options = fs::OpenOptions::new();
                options.write(true).create(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
                let (file, done) = (options.open(format!("{dir}/{name}")).expect("a file"), &done);
                scope.spawn(move || {
                    let memory = vec![7; 2 * 4096];
                    let block = &memory[memory.as_ptr().align_offset(4096)..][..4096];
                    while !done.load(Ordering::Relaxed) {
                        file.write_all_at(block, 0).expect("written");
                    }
                });
            }
            let grown: Vec<_> =
                (1..=30).map(|n| resize(&xfs, &format!("{}M", 600 + 2 * n), &["--filesystem", "--quick"])).collect();
            done.store(true, Ordering::Relaxed);
            grown.into_iter().for_each(|grown| drop(grown.succeeds()));
        });
        place.unmount(&dir).succeeds();
        place.mount(&xfs, &dir, &[]).succeeds();
        assert!(space() > before + (150 << 20));
        assert_eq!(fs::read(format!("{dir}/before")).expect("read"), vec![7; 1 << 20]);
        place.unmount(&dir).succeeds();
    }
    place.nothing_is_left();
}

/// In user-mode Linux, whose root may resize ext4.
#[test]
fn a_mounted_ext4_grows_with_its_volume() {
    let (Some(_), Some(_)) = (tools::program("mke2fs"), tools::program("resize2fs")) else { return };
    let folder = Folder::new();
    let volume = folder.str("v.luks");
    let create = ["create", "--format", "LUKS2", "--quick", "--filesystem", "ext4", "--size", "48M"];
    run(create.into_iter().chain(CHEAP).chain(["--password-file", &folder.password, &volume])).succeeds();
    let (program, password) = (env!("CARGO_BIN_EXE_claviger"), &folder.password);
    let script = format!(
        "set -e\nexport XDG_RUNTIME_DIR=/run\nmodprobe -a fuse loop ext4 2>/dev/null || true\nmkdir /mnt/v\n\
         {program} mount --password-file {password} {volume} /mnt/v\necho before >/mnt/v/file\n\
         small=$(stat -f -c %b /mnt/v)\n\
         {program} resize --password-file {password} --filesystem --size 64M {volume}\n\
         large=$(stat -f -c %b /mnt/v)\necho $small $large\ntest $large -gt $((small * 3 / 2))\n\
         head -c 40000000 /dev/zero >/mnt/v/zeros\n\
         {program} unmount /mnt/v\n{program} mount --password-file {password} {volume} /mnt/v\n\
         test $(stat -f -c %b /mnt/v) = $large\ncat /mnt/v/file\ntest $(stat -c %s /mnt/v/zeros) = 40000000\n\
         {program} unmount /mnt/v\n"
    );
    let Some(outcome) = uml::run(&script, &[], 200) else { return };
    assert!(outcome.status == 0 && outcome.output.contains("before"), "{}", outcome.output);
}

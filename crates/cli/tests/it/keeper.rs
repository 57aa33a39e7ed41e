//! `--isolate-keys`: the same volume, the same words, and no key in the process that serves.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::mounts::{Place, wait_until};
use crate::common::*;
use crate::secrets::{password, secrets};
use claviger_testkit::processes::{Memory, found};
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;

const ISOLATED: &str = "--isolate-keys";

/// The process that holds the keys of the one that serves.
fn keeper_of(pid: u32) -> u32 {
    let children = processes().into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child);
    let keepers: Vec<u32> = children.filter(|child| name_of(*child).starts_with("claviger")).collect();
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    keepers[0]
}

/// Every process and its parent, by /proc/PID/stat (proc_pid_stat(5)).
fn processes() -> Vec<(u32, u32)> {
    let numbers = fs::read_dir("/proc").expect("procfs").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    numbers.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// Whether it has ended; its parent may not have taken note yet.
fn ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
}

/// A volume and the options that open it.
type Made = (String, Vec<String>);

/// Volumes of every format that are made quickly.
fn volumes(folder: &Folder) -> Vec<Made> {
    let password = || vec!["--password-file".to_owned(), folder.password.clone()];
    let create = |name: &str, how: &[&str]| {
        let path = folder.str(name);
        run([&["create", "--quick", "--password-file", &*folder.password][..], how, &[&path]].concat()).succeeds();
        (path, password())
    };
    let mut all = vec![
        create("tc", &["--format=TrueCrypt", "--size=2M", "--hash=SHA-512"]),
        create("cascade", &["--format=TrueCrypt", "--size=2M", "--hash=SHA-512", "--cipher=AES-Twofish-Serpent"]),
        create("luks1", &["--format=LUKS1", "--size=6M", "--iterations=1000"]),
        create("luks2", &["--format=LUKS2", "--size=18M", "--kdf=pbkdf2", "--iterations=1000", "--sector-size=4096"]),
        create("argon", &["--format=LUKS2", "--size=18M", "--kdf=argon2id", "--kdf-memory=8M", "--iterations=4"]),
    ];
    let tags = ["--format=LUKS2", "--size=20M", "--kdf=pbkdf2", "--iterations=1000", "--integrity"];
    all.push(create("tagged", &[&tags[..], &["hmac-sha256"]].concat()));
    all.push(create("aead", &[&tags[..], &["aead", "--cipher=aes-gcm-random", "--sector-size=4096"]].concat()));
    let new = folder.str("bitlocker-password");
    fs::write(&new, PASSWORD).expect("a password file");
    let bitlocker = folder.str("bitlocker");
    let args = ["create", "--quick", "--format=BitLocker", "--size=64M", "--password-file", &new, &bitlocker];
    run(args).succeeds();
    all.push((bitlocker, vec!["--password-file".to_owned(), new]));
    let plain = folder.str("plain");
    fs::write(&plain, vec![0x5a; 2 << 20]).expect("a file");
    let options = ["--format=plain", "--cipher=aes-cbc-essiv:sha256", "--key-size=256", "--hash=sha256"];
    all.push((plain, options.iter().map(|o| (*o).to_owned()).chain(password()).collect()));
    let (loop_aes, keys) = (folder.str("loop-aes"), folder.str("keys"));
    fs::write(&loop_aes, vec![0x5a; 2 << 20]).expect("a file");
    let lines = (0..65).map(|i| format!("{i:02} is the number of this line of a key file, whose lines differ\n"));
    fs::write(&keys, lines.collect::<String>()).expect("a key file");
    let options = ["--format=loop-AES", "--cipher=aes", "--key-size=256", "--no-password", "--keyfile"];
    all.push((loop_aes, options.iter().map(|o| (*o).to_owned()).chain([keys]).collect()));
    all
}

#[test]
fn every_format_reads_and_writes_as_in_one_process() {
    let folder = Folder::new();
    for (volume, options) in volumes(&folder) {
        let socket = folder.str("s");
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        // BitLocker has its metadata at some places; what is in between can be written.
        let at = if volume.ends_with("bitlocker") { 3 << 20 } else { 1000 };
        let args = [&[ISOLATED, "--socket", &socket][..], &options, &[&volume]].concat();
        let served = Served::start(args);
        for (command, fill) in [(format!("write -P 0xa5 {at} 1000000"), "0xa5"), (format!("write -P 7 {at} 3"), "7")] {
            let Some((wrote, said)) = qemu_io(&served.uri, &command) else { return };
            assert!(wrote, "{volume} {fill}: {said}");
        }
        let (read, said) = qemu_io(&served.uri, &format!("read -P 0xa5 {} 999997", at + 3)).expect("as before");
        assert!(read, "{volume}: {said}");
        served.stop().succeeds();
        let (at, len) = (at.to_string(), 1_000_000);
        let args = [&["cat", "--offset", &at, "--length", "1000000"][..], &options, &[&volume]].concat();
        let out = run(args).succeeds().out;
        assert!(out.len() == len && out[..3] == [7; 3] && out[3..].iter().all(|b| *b == 0xa5), "{volume}");
        // The whole of it, read by both.
        let whole = run([&["cat"][..], &options, &[&volume]].concat()).succeeds().out;
        let image = folder.str("image");
        let copy = format!("qemu-img convert -f raw -O raw \"$uri\" {image}");
        let args = [&["serve", "--read-only", ISOLATED, "--socket", &socket, "--run", &copy][..], &options, &[&volume]];
        run(args.concat()).succeeds();
        let image = fs::read(image).expect("a copy");
        assert!(image.len() == whole.len() && image == whole, "{volume}: the same plaintext");
    }
}

#[test]
fn what_goes_wrong_is_told_with_the_same_words_and_codes() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    // TrueCrypt's message says how long it took.
    let luks = folder.str("luks");
    let how = ["--format=LUKS1", "--size=6M", "--iterations=1000", "--password-file"];
    run([&["create", "--quick"][..], &how, &[&folder.password, &luks]].concat()).succeeds();
    let (bad, other, none) = (folder.str("bad"), folder.str("other"), folder.str("none"));
    fs::write(&bad, "another password").expect("a file");
    fs::write(&other, "no volume").expect("a file");
    for (code, args) in [
        (2, ["--read-only", "--password-file", &bad, &luks]),
        (3, ["--backup-header", "--password-file", &folder.password, &other]),
        (3, ["--read-only", "--password-file", &folder.password, &other]),
        (6, ["--read-only", "--password-file", &folder.password, &none]),
        (6, ["--read-only", "--password-file", &none, &volume]),
        (1, ["--read-only", "--pim=5", "--truecrypt", &volume]),
        (1, ["--read-only", "--read-only", "--truecrypt", &volume]),
    ] {
        for json in [&[][..], &["--json"]] {
            let serve = |how: &[&str]| run([&["serve", "--run", "true"][..], how, json, &args].concat());
            let (one, isolated) = (serve(&[]), serve(&[ISOLATED]));
            assert_eq!((one.code, isolated.code), (code, code), "{args:?}: {}{}", one.err, isolated.err);
            assert_eq!(one.err, isolated.err, "{args:?}");
            assert!(isolated.out.is_empty());
        }
    }
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let again = ["serve", ISOLATED, "--run", "true", "--password-file", &folder.password, &volume];
    run(again).fails(9, &["in use"]);
    served.stop().succeeds();
}

#[test]
fn what_cannot_be_isolated_is_refused_before_anything_is_asked() {
    let folder = Folder::new();
    // A program would have to be started by whoever is to start none. Nothing is asked of it: this is no message of gpg's.
    let (plain, key) = (folder.str("plain"), folder.str("key.gpg"));
    fs::write(&plain, [0; 4096]).expect("a file");
    fs::write(&key, "-----BEGIN PGP MESSAGE-----\n\n").expect("a file");
    let by_gpg = ["--format=loop-AES", "--keyfile", &key, "--password-file", &folder.password];
    run([&["serve", ISOLATED, "--run", "true"][..], &by_gpg, &[&plain]].concat()).fails(5, &["gpg"]);
    let files = folder.str("files");
    fs::create_dir(&files).expect("a folder");
    fs::create_dir(folder.path("at")).expect("a folder");
    run(["mount", ISOLATED, &files, &folder.str("at")]).fails(5, &["one by one"]);
    let volume = folder.volume("v.tc", "1M", &[]);
    run(["mount", ISOLATED, "--folder", "/x", &volume, &folder.str("at")]).fails(5, &["one by one"]);
}

#[test]
fn the_process_that_serves_has_no_password_and_no_key() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &["--cipher", "AES"]);
    let mut needles = secrets(&volume, "AES");
    let keys: Vec<Vec<u8>> =
        needles.iter().filter(|(name, _)| name.starts_with("master")).map(|n| n.1.clone()).collect();
    for key in keys.chunks(2) {
        let rounds = Aes::new(&key.concat()).round_keys().to_vec();
        needles.extend(rounds.iter().enumerate().map(|(i, round)| (format!("round key {i}"), round.to_vec())));
    }
    let looked = |how: &[&str]| {
        let socket = folder.str("s");
        let args = [how, &["--password-file", &folder.password, "--socket", &socket, &volume]].concat();
        let served = Served::start(args);
        let (wrote, said) = qemu_io(&served.uri, "write -P 1 1000 300000")?;
        assert!(wrote, "{said}");
        let (read, said) = qemu_io(&served.uri, "read -P 1 1000 300000")?;
        assert!(read, "{said}");
        let memory = |pid| {
            let Memory { locked, ordinary, hidden: _ } = Memory::of(pid);
            [locked, ordinary].concat()
        };
        let memories = (memory(served.pid), (!how.is_empty()).then(|| Memory::of(keeper_of(served.pid))));
        served.stop().succeeds();
        Some(memories)
    };
    let (Some((one, _)), Some((isolated, Some(keeper)))) = (looked(&[]), looked(&[ISOLATED])) else { return };
    assert!(
        found(&one, &needles).iter().any(|name| name.starts_with("round key")),
        "the scan sees them where they are"
    );
    assert!(found(&isolated, &needles).is_empty(), "{:?}", found(&isolated, &needles));
    assert!(found(&keeper.ordinary, &needles).is_empty(), "its keys are where secrets are");
    // Where the kernel has no memory that nobody else can read, the keeper's is locked.
    let locked = found(&keeper.locked, &needles);
    assert!(if keeper.hidden > 0 { locked.is_empty() } else { !locked.is_empty() }, "{locked:?}");
    assert!(found(&keeper.locked, &[password()]).is_empty(), "it forgets the password");
}

#[test]
fn the_keeper_is_caged() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let keeper = keeper_of(served.pid);
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("procfs");
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a line").trim().to_owned();
    assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    if tools::root().is_some() {
        let open = fs::read_dir(format!("/proc/{keeper}/fd")).expect("procfs").flatten();
        let mut open: Vec<String> =
            open.map(|fd| fs::read_link(fd.path()).expect("a link").display().to_string()).collect();
        open.sort();
        let kinds: Vec<&str> = open.iter().map(|to| to.split([':', ' ']).next().expect("a word")).collect();
        assert_eq!(kinds, ["/dev/null", "/dev/null", "/dev/null", "/dev/null", "/memfd", "socket"], "{open:?}");
        // Nothing that is mounted is held by it: not by its folder, nor by a copy of what is mounted where.
        let of = |pid: u32, what: &str| fs::read_link(format!("/proc/{pid}/{what}")).expect("a link");
        assert_eq!(of(keeper, "cwd"), Path::new("/"));
        assert_eq!(of(keeper, "ns/mnt"), of(std::process::id(), "ns/mnt"));
    }
    served.stop().succeeds();
    wait_until("the keeper ends with it", || ended(keeper));
}

#[test]
fn without_its_keeper_a_server_says_so_and_ends() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let mut served =
        Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let Some(qemu_io) = tools::program("qemu-io") else { return };
    // It writes until that fails.
    let script = format!(
        "while {} -f raw -c 'write -P 3 0 1M' \"{}\" | grep -q wrote; do touch \"$0\"; done",
        qemu_io.display(),
        served.uri
    );
    let at_work = folder.str("at-work");
    let mut client = Command::new("sh").args(["-c", &script, &at_work]).stderr(Stdio::null()).spawn().expect("a shell");
    wait_until("it writes", || fs::exists(&at_work).expect("a folder"));
    tools::run(Command::new("kill").args(["-KILL", &keeper_of(served.pid).to_string()]));
    let status = served.child.wait().expect("it ends");
    let mut err = String::new();
    std::io::Read::read_to_string(&mut served.child.stderr.take().expect("a pipe"), &mut err).expect("text");
    assert_eq!(status.code(), Some(6), "{err}");
    assert!(err.contains("held the keys has ended"), "{err}");
    client.wait().expect("its request failed");
    // The volume is one that a crash has left: it opens.
    run(["cat", "--length", "512", "--password-file", &folder.password, &volume]).succeeds();
}

#[test]
fn without_its_server_a_keeper_ends() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let mut served =
        Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let keeper = keeper_of(served.pid);
    assert!(!ended(keeper));
    served.child.kill().expect("killed");
    served.child.wait().expect("it has ended");
    wait_until("the keeper has gone", || ended(keeper));
}

#[test]
fn a_mount_keeps_its_keys_elsewhere_too() {
    let Some(place) = Place::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let pid = place.mount(&volume, &dir, &[ISOLATED]).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
    let keeper = keeper_of(pid);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 11) as u8).collect();
    fs::write(format!("{dir}/file"), &bytes).expect("written");
    place.unmount(&dir).succeeds();
    wait_until("the keeper has gone", || ended(keeper));
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();

    // A mount whose keeper is killed is taken down.
    let pid = place.mount(&volume, &dir, &[ISOLATED]).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
    tools::run(Command::new("kill").args(["-KILL", &keeper_of(pid).to_string()]));
    wait_until("it is taken down", || !place.mounted(&dir) && ended(pid));
    // The record stays for whoever asks, and the next mount cleans up.
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
}

#[test]
fn what_is_attached_by_name_keeps_its_keys_elsewhere_too() {
    let Some(place) = Place::root() else { return };
    let (volume, other, dir) = (place.ext4("v.tc"), place.ext4("w.tc"), place.dir("d"));
    let (table, list) = (place.folder.str("crypttab"), place.folder.str("favourites.toml"));
    let password = &place.folder.password;
    fs::write(&table, format!("line {volume} {password} tcrypt\n")).expect("a table");
    let options = format!("\"--password-file={password}\"");
    let favourite = |name: &str, more: &str| {
        format!("[{name}]\nvolume = \"{other}\"\ndir = \"{dir}\"\noptions = [{options}{more}]\n")
    };
    let favourites = favourite("one", "") + &favourite("two", ", \"--isolate-keys\"");
    fs::write(&list, favourites).expect("a list");
    for (name, path) in [("line", &volume), ("one", &other), ("two", &other)] {
        place.run(["attach", ISOLATED, "--crypttab", &table, "--favourites", &list, name]).succeeds();
        let [one] = &place.list()[..] else { panic!("one is attached") };
        let keeper = keeper_of(one["server"]["pid"].as_u64().or(one["pid"].as_u64()).expect("a pid") as u32);
        assert!(!ended(keeper), "{name}");
        place.unmount(path).succeeds();
        wait_until("the keeper has gone", || ended(keeper));
    }
    let refused = place.run(["attach", ISOLATED, "--kernel", "--crypttab", &table, "line"]);
    refused.fails(1, &["--isolate-keys", "the kernel does the work"]);
}

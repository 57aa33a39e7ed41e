//! `--isolate-keys`: the same volume, the same words, and no key in the process that serves.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::faults::secrets::{password, secrets};
use crate::luks::reencrypting::killed_at;
use claviger_testkit::processes::{Memory, found};
use claviger_testkit::random::Random;
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;
use serde_json::json;

pub const ISOLATED: &str = "--isolate-keys";

/// The process that holds the keys of the one that serves.
pub fn key_process_of(pid: u32) -> u32 {
    let key_processes = key_processes_of(pid);
    assert_eq!(key_processes.len(), 1, "{key_processes:?}");
    key_processes[0]
}

/// The key processes that a process has started, the oldest first.
pub fn key_processes_of(pid: u32) -> Vec<u32> {
    let children = processes().into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child);
    let mut key_processes: Vec<u32> = children.filter(|child| name_of(*child).starts_with("claviger")).collect();
    key_processes.sort_unstable();
    key_processes
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
pub fn ended(pid: u32) -> bool {
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
        // BitLocker has its metadata at some places; the data in between can be written.
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
    // There are no keys that could be anywhere.
    run(["mount", ISOLATED, "--format", "clear", &files, &folder.str("at")]).fails(5, &["a key process", "clear"]);
    let volume = folder.volume("v.tc", "1M", &[]);
    run(["mount", ISOLATED, "--folder", "/x", &volume, &folder.str("at")]).fails(5, &["encrypted folder"]);
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
        let memories = (memory(served.pid), (!how.is_empty()).then(|| Memory::of(key_process_of(served.pid))));
        served.stop().succeeds();
        Some(memories)
    };
    let (Some((one, _)), Some((isolated, Some(key_process)))) = (looked(&[]), looked(&[ISOLATED])) else { return };
    assert!(
        found(&one, &needles).iter().any(|name| name.starts_with("round key")),
        "the scan sees them where they are"
    );
    assert!(found(&isolated, &needles).is_empty(), "{:?}", found(&isolated, &needles));
    assert!(found(&key_process.ordinary, &needles).is_empty(), "its keys are where secrets are");
    // Where the kernel has no memory that nobody else can read, the key process's is locked.
    let locked = found(&key_process.locked, &needles);
    assert!(if key_process.hidden > 0 { locked.is_empty() } else { !locked.is_empty() }, "{locked:?}");
    assert!(found(&key_process.locked, &[password()]).is_empty(), "it forgets the password");
}

/// Data written with round keys in registers alone are read without that, and the reverse. Ciphers that cannot do it are refused.
#[test]
fn round_keys_are_in_registers_alone() {
    const REGISTERS: &str = "--keys-in-registers";
    let folder = Folder::new();
    let password = ["--password-file", &folder.password];
    let serve = |how: &[&str], volume: &str| run([&["serve", "--run", "true"][..], how, &password, &[volume]].concat());
    let aes = folder.volume("aes.tc", "1M", &["--cipher", "AES"]);
    serve(&[REGISTERS], &aes).fails(1, &["--isolate-keys"]);
    serve(&[ISOLATED, REGISTERS, "--no-aes"], &aes).fails(1, &["--no-aes"]);
    let kernels = claviger_crypto::ciphers::aes::AES.kernels;
    if !kernels.iter().any(|kernel| kernel.name == "vaes512" && (kernel.usable)()) {
        serve(&[ISOLATED, REGISTERS], &aes).fails(5, &["this processor", "VAES"]);
        return;
    }
    let serpent = folder.volume("serpent.tc", "1M", &["--cipher", "Serpent"]);
    serve(&[ISOLATED, REGISTERS], &serpent).fails(5, &["Serpent", "Only AES"]);
    let cbc = folder.str("plain");
    fs::write(&cbc, vec![5; 1 << 20]).expect("a file");
    let plain = ["--format", "plain", "--cipher", "aes-cbc-plain", "--key-size", "128"];
    let middle = ["--format", "plain", "--cipher", "aes-cbc-plain", "--key-size", "192"];
    serve(&[&[ISOLATED, REGISTERS][..], &middle].concat(), &cbc).fails(5, &["192 bits", "Only AES"]);
    for (volume, how) in [(&aes, &[][..]), (&cbc, &plain)] {
        let io = |isolated: &[&str], command: &str| {
            let socket = folder.str("s");
            let args = [how, isolated, &password, &["--socket", &socket, volume]].concat();
            let served = Served::start(args);
            let (done, said) = qemu_io(&served.uri, command)?;
            assert!(done, "{said}");
            served.stop().succeeds();
            Some(())
        };
        let (with, without): (&[&str], &[&str]) = (&[ISOLATED, REGISTERS], &[]);
        for (write, read) in [(with, without), (without, with)] {
            let pattern = if write.is_empty() { 2 } else { 1 };
            let Some(()) = io(write, &format!("write -P {pattern} 1000 700000")) else { return };
            io(read, &format!("read -P {pattern} 1000 700000"));
        }
    }
}

#[test]
fn the_key_process_is_caged() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let served = Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let key_process = key_process_of(served.pid);
    is_caged(key_process);
    served.stop().succeeds();
    wait_until("the key process ends with it", || ended(key_process));
}

/// Looks at the cage from outside.
pub fn is_caged(key_process: u32) {
    let status = fs::read_to_string(format!("/proc/{key_process}/status")).expect("procfs");
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a line").trim().to_owned();
    assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    if tools::root().is_some() {
        let open = fs::read_dir(format!("/proc/{key_process}/fd")).expect("procfs").flatten();
        let mut open: Vec<String> =
            open.map(|fd| fs::read_link(fd.path()).expect("a link").display().to_string()).collect();
        open.sort();
        let kinds: Vec<&str> = open.iter().map(|to| to.split([':', ' ']).next().expect("a word")).collect();
        assert_eq!(kinds, ["/dev/null", "/dev/null", "/dev/null", "/dev/null", "/memfd", "socket"], "{open:?}");
        // It keeps no mount busy: neither through its current folder, nor through a mount namespace of its own.
        let of = |pid: u32, what: &str| fs::read_link(format!("/proc/{pid}/{what}")).expect("a link");
        assert_eq!(of(key_process, "cwd"), Path::new("/"));
        assert_eq!(of(key_process, "ns/mnt"), of(std::process::id(), "ns/mnt"));
    }
}

#[test]
fn without_its_key_process_a_server_says_so_and_ends() {
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
    tools::run(Command::new("kill").args(["-KILL", &key_process_of(served.pid).to_string()]));
    let status = served.child.wait().expect("it ends");
    let mut err = String::new();
    std::io::Read::read_to_string(&mut served.child.stderr.take().expect("a pipe"), &mut err).expect("text");
    assert_eq!(status.code(), Some(6), "{err}");
    assert!(err.contains("the key process has exited"), "{err}");
    client.wait().expect("its request failed");
    // The volume is one that a crash has left: it opens.
    run(["cat", "--length", "512", "--password-file", &folder.password, &volume]).succeeds();
}

#[test]
fn without_its_server_a_key_process_ends() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let mut served =
        Served::start([ISOLATED, "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let key_process = key_process_of(served.pid);
    assert!(!ended(key_process));
    served.child.kill().expect("killed");
    served.child.wait().expect("it has ended");
    wait_until("the key process has gone", || ended(key_process));
}

#[test]
fn a_mount_keeps_its_keys_elsewhere_too() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let dir = place.dir("d");
    let pid = place.mount(&volume, &dir, &[ISOLATED]).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
    let key_process = key_process_of(pid);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 11) as u8).collect();
    fs::write(format!("{dir}/file"), &bytes).expect("written");
    place.unmount(&dir).succeeds();
    wait_until("the key process has gone", || ended(key_process));
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();

    // A mount whose key process is killed is taken down.
    let pid = place.mount(&volume, &dir, &[ISOLATED]).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
    tools::run(Command::new("kill").args(["-KILL", &key_process_of(pid).to_string()]));
    wait_until("it is taken down", || !place.mounted(&dir) && ended(pid));
    // The record stays, and the next mount cleans up.
    place.mount(&volume, &dir, &[]).succeeds();
    assert!(fs::read(format!("{dir}/file")).expect("a file") == bytes);
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
}

#[test]
fn what_is_attached_by_name_keeps_its_keys_elsewhere_too() {
    let Some(place) = MountSpace::root() else { return };
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
        let key_process = key_process_of(one["server"]["pid"].as_u64().or(one["pid"].as_u64()).expect("a pid") as u32);
        assert!(!ended(key_process), "{name}");
        place.unmount(path).succeeds();
        wait_until("the key process has gone", || ended(key_process));
    }
    let refused = place.run(["attach", ISOLATED, "--kernel", "--crypttab", &table, "line"]);
    refused.fails(1, &["--isolate-keys", "the kernel needs the key"]);
}

/// The program at work, alone: signals are for it.
fn at_work(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// Waits until it has come that far.
fn wait_for(child: &mut Child, mut far: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !far() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not come that far");
        assert!(child.try_wait().expect("a child").is_none(), "it has ended before");
        thread::sleep(Duration::from_millis(2));
    }
}

fn signal(signal: &str, pid: u32) {
    tools::run(Command::new("kill").args([signal, &pid.to_string()]));
}

#[test]
fn a_conversion_is_the_same_with_keys_elsewhere() {
    let folder = Folder::new();
    let image = folder.str("image");
    fs::write(&image, Random::new(3).bytes(3_000_320)).expect("an image");
    let image_of = |volume: &str, options: &[&str]| {
        run([&["cat", "--password-file", &folder.password][..], options, &[volume]].concat()).succeeds().out
    };
    let plain = fs::read(&image).expect("an image");
    let password = ["--password-file", &*folder.password, "--new-password-file", &folder.password];
    let cheap = ["--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    let mut from = (image.clone(), vec!["--raw-source"]);
    for (format, options) in [
        ("TrueCrypt", &["--new-hash", "SHA-512"][..]),
        ("VeraCrypt", &["--new-pim", "1", "--new-hash", "SHA-512"]),
        ("LUKS1", &["--new-iterations", "1000"]),
        ("LUKS2", &cheap),
    ] {
        let to = folder.str(format);
        let args = [&["convert", "--json", ISOLATED, "--new-format", format][..], options, &password[2..]].concat();
        let source: &[&str] = if from.1 == ["--raw-source"] { &[] } else { &password[..2] };
        let done = run([&args, source, &from.1, &[&*from.0, &*to]].concat()).succeeds().json();
        assert_eq!(done["to"], format);
        let opens: Vec<&str> = if format == "VeraCrypt" { vec!["--pim", "1"] } else { Vec::new() };
        assert!(image_of(&to, &opens).starts_with(&plain), "{format}");
        from = (to, opens);
    }
    let back = folder.str("back");
    run([&["convert", "--raw", ISOLATED][..], &password[..2], &from.1, &[&*from.0, &*back]].concat()).succeeds();
    assert!(fs::read(&back).expect("an image").starts_with(&plain));
    // Errors have the same messages and exit codes as with one process, and no destination is left.
    let (wrong, none) = (folder.str("wrong"), folder.str("none"));
    fs::write(&wrong, "wrong").expect("a file");
    let luks = folder.str("LUKS2");
    for (code, from, credential) in [(2, &luks, &wrong), (6, &none, &wrong), (3, &image, &folder.password)] {
        let convert = |how: &[&str]| {
            let from = ["--format=LUKS2", "--password-file", credential, from];
            let args = [&["convert", "--new-password-file", &wrong][..], &from, &[&none]].concat();
            run([&args[..], how].concat())
        };
        let (one, isolated) = (convert(&[]), convert(&[ISOLATED]));
        assert_eq!((one.code, isolated.code), (code, code), "{} {}", one.err, isolated.err);
        assert_eq!(one.err, isolated.err);
    }
    let empty = folder.str("empty");
    fs::write(&empty, "").expect("a file");
    let args = ["convert", ISOLATED, "--raw-source", "--new-password-file", &empty, &image, &none];
    assert_ne!(run(args).code, 0, "nothing is made that an empty password opens");
    assert!(["none", "none.part", "none.part.json"].iter().all(|left| !folder.path(left).exists()));
    run(["convert", ISOLATED, "--raw-source", &folder.str(""), &none]).fails(5, &["encrypted folder"]);
}

/// A conversion of this many bytes from one TrueCrypt volume into another one.
fn conversion(folder: &Folder, megabytes: u32) -> (String, String, Vec<String>) {
    let (from, to) = (folder.str("from.tc"), folder.str("to.tc"));
    let size = format!("{megabytes}M");
    run([
        "create",
        "--quick",
        "--format=TrueCrypt",
        "--hash=SHA-512",
        "--size",
        &size,
        "--password-file",
        &folder.password,
        &from,
    ])
    .succeeds();
    let args = ["convert", ISOLATED, "--truecrypt", "--hash=SHA-512", "--new-format=TrueCrypt", "--new-hash=SHA-512"];
    let passwords = ["--password-file", &folder.password, "--new-password-file", &folder.password, &from, &to];
    let args = args.into_iter().chain(passwords).map(str::to_owned).collect();
    (from, to, args)
}

#[test]
fn who_reads_and_writes_for_a_conversion_has_no_key() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let (from, to, args) = conversion(&folder, 200);
    let mut child = at_work(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let state = folder.path("to.tc.part.json");
    wait_for(&mut child, || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"done\":0")));
    signal("-STOP", child.id());
    let (memory, key_processes) = (Memory::of(child.id()), key_processes_of(child.id()));
    assert_eq!(key_processes.len(), 2, "one for each side");
    signal("-CONT", child.id());
    assert!(child.wait().expect("it ends").success());
    let needles = [secrets(&from, "AES"), secrets(&to, "AES")].concat();
    let memory = [memory.locked, memory.ordinary].concat();
    assert!(found(&memory, &needles).is_empty(), "{:?}", found(&memory, &needles));
    // The scan works: it finds the volumes' names.
    assert!(!found(&memory, &[("name".to_owned(), b"to.tc".to_vec())]).is_empty());
}

#[test]
fn a_conversion_of_which_any_side_is_killed_goes_on() {
    for victim in 0..3 {
        let folder = Folder::new();
        let (from, to, args) = conversion(&folder, 160);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = at_work(&args);
        let state = folder.path("to.tc.part.json");
        wait_for(&mut child, || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"done\":0")));
        let key_processes = key_processes_of(child.id());
        let all = [&[child.id()], &key_processes[..]].concat();
        signal("-KILL", all[victim]);
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), [None, Some(6), Some(6)][victim], "{victim}");
        wait_until("the key processes have gone", || key_processes.iter().all(|key_process| ended(*key_process)));
        assert!(!Path::new(&to).exists());
        run(args.iter().copied().chain(["--resume"])).succeeds();
        let whole = |volume: &str| {
            run(["cat", "--truecrypt", "--hash=SHA-512", "--password-file", &folder.password, volume]).succeeds().out
        };
        assert!(whole(&to) == whole(&from), "{victim}");
    }
}

/// A LUKS2 volume with something in it, and its plaintext.
fn luks2(folder: &Folder, megabytes: u32) -> (String, Vec<u8>) {
    let (image, path) = (folder.str("image"), folder.str("v.luks"));
    let plain = Random::new(u64::from(megabytes)).bytes(megabytes as usize * (1 << 20));
    fs::write(&image, &plain).expect("an image");
    let args = ["convert", "--raw-source", "--new-format=LUKS2", "--new-kdf=pbkdf2", "--new-iterations=1000"];
    let made = [&args[..], &["--new-password-file", &folder.password, &image, &path]].concat();
    run(made).succeeds();
    fs::remove_file(image).expect("removed");
    (path, plain)
}

#[test]
fn a_reencryption_is_the_same_with_keys_elsewhere() {
    let folder = Folder::new();
    let password = ["--password-file", &*folder.password];
    let contents = |more: &[&str]| run([&["cat"][..], &password, more].concat()).succeeds().out;
    let reencrypt = |more: &[&str]| run([&["reencrypt", ISOLATED][..], &password, more].concat());
    let (path, plain) = luks2(&folder, 3);
    let raw = fs::read(&path).expect("it is there");
    reencrypt(&[&path]).fails(1, &["no terminal", "--yes"]);
    let wrong = folder.str("wrong");
    fs::write(&wrong, "wrong").expect("a password file");
    run(["reencrypt", ISOLATED, "--yes", "--password-file", &wrong, &path]).fails(2, &[]);
    run(["reencrypt", ISOLATED, "--yes", "--password-file", &wrong, &wrong]).fails(3, &["--encrypt"]);
    assert!(fs::read(&path).expect("it is there") == raw, "nothing was agreed to, or opened it");
    let new = ["--new-cipher", "serpent-xts-plain64", "--new-sector-size", "4096", "--yes", "--json", &path];
    let done = reencrypt(&new).succeeds().json();
    assert_eq!((&done["finished"], done["size"].as_u64()), (&true.into(), Some(3 << 20)));
    assert!(contents(&[&path]) == plain);
    reencrypt(&["--resume", &path]).fails(1, &["not being reencrypted"]);
    // Decrypted with its header in a new file, and encrypted again with one.
    let header = folder.str("header");
    reencrypt(&["--decrypt", "--yes", "--header", &header, &path]).succeeds();
    assert!(fs::read(&path).expect("it is there").starts_with(&plain));
    fs::remove_file(&header).expect("it was made");
    let cheap = ["--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    reencrypt(&[&["--encrypt", "--yes", "--header", &header][..], &cheap, &[&path]].concat()).succeeds();
    assert!(contents(&["--header", &header, &path]).starts_with(&plain));
    // With room for a header in front.
    let disk = folder.str("disk");
    fs::write(&disk, [plain.repeat(6), vec![0; 32 << 20]].concat()).expect("a disk");
    reencrypt(&[&["--encrypt", "--yes", "--reduce-device-size", "32M"][..], &cheap, &[&disk]].concat()).succeeds();
    assert!(contents(&[&disk]).starts_with(&plain));
    if let Some(cryptsetup) = tools::program("cryptsetup") {
        let key = folder.str("key");
        fs::write(&key, PASSWORD).expect("a key file");
        tools::run(Command::new(cryptsetup).args(["open", "--test-passphrase", "--key-file", &key, &disk]));
    }
}

#[test]
fn what_opens_a_bitlocker_volume_that_is_made_elsewhere_is_there_or_is_removed_again() {
    let folder = Folder::new();
    let (disk, kept, stick, short) = (folder.str("disk"), folder.str("kept"), folder.str("stick"), folder.str("short"));
    let Some(mkfs) = tools::program("mkfs.fat") else { return };
    File::create(&disk).and_then(|file| file.set_len(4 << 20)).expect("a file");
    tools::run(Command::new(mkfs).arg(&disk));
    let plain = fs::read(&disk).expect("it is there");
    File::options().write(true).open(&disk).and_then(|file| file.set_len(5 << 20)).expect("room");
    fs::create_dir(&stick).expect("a folder");
    fs::write(format!("{stick}/another.BEK"), "another key").expect("a file");
    fs::write(&short, "short 1").expect("a password file");
    let before = fs::read(&disk).expect("it is there");
    let keys = || fs::read_dir(&stick).expect("listed").count();
    let encrypt = |password: &str, more: &[&str]| {
        let args = ["reencrypt", ISOLATED, "--encrypt", "--format=BitLocker", "--yes", "--password-file", password];
        let files = ["--json", "--recovery-password-file", &kept, "--startup-key", &stick];
        run([&args[..], &files, more, &[&disk]].concat())
    };
    // The password is too short, which is found out when the files are there.
    encrypt(&short, &[]).fails(1, &["8"]);
    assert!(fs::read(&disk).expect("it is there") == before && !Path::new(&kept).exists() && keys() == 1);
    // An existing file is not removed.
    fs::write(&kept, "kept").expect("a file");
    encrypt(&folder.password, &[]).fails(1, &["already exists"]);
    assert!(fs::read(&kept).expect("it is there") == b"kept" && keys() == 1);
    fs::remove_file(&kept).expect("removed");
    let begun = encrypt(&folder.password, &["--init-only"]).succeeds().json();
    assert_eq!((begun["recovery_password_file"].as_str(), keys()), (Some(&*kept), 2), "{begun}");
    let key = begun["startup_key"].as_str().expect("a path").to_owned();
    assert!(Path::new(&key).starts_with(&stick));
    run(["reencrypt", ISOLATED, "--resume", "--password-file", &kept, &disk]).succeeds();
    for opens in [["--password-file", &*kept], ["--password-file", &folder.password], ["--keyfile", &key]] {
        assert!(run([&["cat"][..], &opens, &[&disk]].concat()).succeeds().out.starts_with(&plain), "{opens:?}");
    }
}

#[test]
fn bitlocker_is_converted_with_keys_elsewhere() {
    use claviger_testkit::bitlocker::maker::{Kind, Protector, State, Volume};

    let made =
        Volume { protectors: vec![Protector::StartupKey], state: State::Encrypted, ..Volume::new(Kind::Windows8) };
    let made = made.make();
    let written = made.write();
    let key = fs::read_dir(written.folder()).expect("its folder").map(|entry| entry.expect("a file").path());
    let key = key.into_iter().find(|path| path.extension().is_some_and(|end| end == "BEK")).expect("a startup key");
    let (image, key) = (written.image.display().to_string(), key.display().to_string());
    let reencrypt =
        |more: &[&str]| run([&["reencrypt", ISOLATED, "--yes", "--keyfile", &key][..], more, &[&image]].concat());
    reencrypt(&["--decrypt", "--init-only"]).succeeds();
    reencrypt(&["--resume"]).succeeds();
    assert!(fs::read(&image).expect("it is there") == made.plaintext);
}

#[test]
fn who_reads_and_writes_for_a_reencryption_has_no_key() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let key = Random::new(77).bytes(64);
    let key_file = folder.str("key");
    fs::write(&key_file, &key).expect("a key");
    let path = folder.str("v.luks");
    let create = ["create", "--quick", "--format=LUKS2", "--kdf=pbkdf2", "--iterations=1000", "--size=80M"];
    let how = ["--volume-key-file", &key_file, "--password-file", &folder.password, &path];
    run([&create[..], &how].concat()).succeeds();
    let args = ["reencrypt", ISOLATED, "--yes", "--hotzone-size=64K", "--password-file", &folder.password, &path];
    let mut child = at_work(&args);
    wait_for(&mut child, || begun(&path));
    signal("-STOP", child.id());
    let (memory, key_process) = (Memory::of(child.id()), key_process_of(child.id()));
    signal("-STOP", key_process);
    let key_processes = Memory::of(key_process);
    signal("-CONT", key_process);
    signal("-CONT", child.id());
    assert!(child.wait().expect("it ends").success());
    let halves = key.chunks(16).enumerate().map(|(i, piece)| (format!("key {i}"), piece.to_vec()));
    let needles: Vec<_> = halves.chain([password()]).collect();
    let memory = [memory.locked, memory.ordinary].concat();
    assert!(found(&memory, &needles).is_empty(), "{:?}", found(&memory, &needles));
    assert!(found(&key_processes.ordinary, &needles).is_empty(), "its keys are where secrets are");
}

/// Whether the header says that a reencryption is in progress.
fn begun(path: &str) -> bool {
    let area = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&area[..area.len().min(16 << 10)]).contains("online-reencrypt")
}

#[test]
fn a_reencryption_of_which_either_side_is_killed_goes_on() {
    let folder = Folder::new();
    let password = ["--password-file", &*folder.password];
    let goes_on = |path: &str, plain: &[u8], what: &str| {
        let contents = || run([&["cat"][..], &password, &[path]].concat()).succeeds().out;
        assert!(contents() == plain, "{what}: as it was left");
        let reencrypt = |how| run([&["reencrypt", ISOLATED, how][..], &password, &[path]].concat());
        let again = reencrypt("--yes");
        match again.code {
            0 => {}
            _ => drop((again.fails(1, &["--resume"]), reencrypt("--resume").succeeds())),
        }
        assert!(contents() == plain && !begun(path), "{what}: in the end");
    };
    // Kills the process that reads and writes, at some writes and flushes.
    for call in ["pwrite64", "fdatasync,fsync"] {
        for nth in [1, 2, 3, 5, 8, 13, 21, 40] {
            let (path, plain) = luks2(&folder, 1);
            let args = ["reencrypt", ISOLATED, "--yes", "--hotzone-size=64K", password[0], password[1], &path];
            let Some(_) = killed_at(call, nth, &args) else { return };
            goes_on(&path, &plain, &format!("{call} {nth}"));
            fs::remove_file(&path).expect("removed");
        }
    }
    // Kills the process that has the keys: as soon as it has begun, and when a part has changed.
    let (path, plain) = luks2(&folder, 24);
    for part in [0, 2, 5, 9] {
        let args = ["reencrypt", ISOLATED, "--yes", "--hotzone-size=64K", password[0], password[1], &path];
        let stored = |path: &str| fs::read(path).expect("it is there");
        let before = stored(&path);
        let at = before.len() - plain.len() + part * (1 << 20);
        let mut child = at_work(&args);
        wait_for(&mut child, || begun(&path) && (part == 0 || stored(&path)[at..][..512] != before[at..][..512]));
        signal("-KILL", key_process_of(child.id()));
        assert_ne!(child.wait().expect("it ends").code(), Some(0));
        goes_on(&path, &plain, &format!("part {part}"));
    }
}

#[test]
fn what_a_secret_was_read_from_is_open_nowhere_else() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let socket = folder.str("s");
    // The volume itself may come as a descriptor, too.
    let script = "exec \"$0\" serve \"$1\" --password-fd 5 --socket \"$2\" /dev/fd/6 5<\"$3\" 6<>\"$4\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_claviger"), ISOLATED, &socket, &folder.password, &volume]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a shell");
    wait_for(&mut child, || Path::new(&socket).exists());
    let at = |number: u32| fs::read_link(format!("/proc/{}/fd/{number}", child.id())).expect("a descriptor");
    let password = fs::canonicalize(&folder.password).expect("a file");
    assert_eq!((at(5), at(6)), ("/dev/null".into(), fs::canonicalize(&volume).expect("a file")));
    let all = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("procfs").flatten();
    assert!(all.filter_map(|fd| fs::read_link(fd.path()).ok()).all(|to| to != password));
    signal("-TERM", child.id());
    // Cancelled, if nobody was told yet that it serves.
    assert!(matches!(child.wait().expect("it ends").code(), Some(0 | 8)));
}

#[test]
fn without_anybody_to_ask_for_a_key_process_ends() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    // A password that does not come: somebody holds the other end of the pipe.
    let (read, _write) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["serve", ISOLATED, "--password-file", "-", "--socket", &folder.str("s"), &volume]);
    let mut child = command.stdin(read).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let pid = child.id();
    wait_for(&mut child, || key_processes_of(pid).len() == 1);
    let key_process = key_process_of(child.id());
    // It waits for the password, and for nothing of the other process.
    thread::sleep(Duration::from_millis(300));
    child.kill().expect("killed");
    child.wait().expect("it has ended");
    wait_until("the key process has gone", || ended(key_process));
}

#[test]
fn ctrl_c_at_any_time_is_one() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    for to_both in [false, true] {
        let (read, _write) = std::io::pipe().expect("a pipe");
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args(["serve", ISOLATED, "--password-file", "-", "--socket", &folder.str("s"), &volume]);
        let mut child = command.stdin(read).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let pid = child.id();
        wait_for(&mut child, || key_processes_of(pid).len() == 1);
        if to_both {
            signal("-INT", key_process_of(pid));
        }
        signal("-INT", pid);
        assert_eq!(child.wait().expect("it ends").code(), Some(8), "{to_both}");
    }
}

#[test]
fn a_truncated_volume_is_read_with_keys_elsewhere() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let socket = folder.str("s");
    let args = [ISOLATED, "--password-file", &folder.password, "--socket", &socket, &volume];
    let served = Served::start(args);
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0xa5 0 1000000") else { return };
    assert!(wrote, "{said}");
    served.stop().succeeds();
    let whole = fs::read(&volume).expect("it is there");
    fs::write(&volume, &whole[..900_000]).expect("cut");
    let served = Served::start([&["--truncated"][..], &args].concat());
    let (read, said) = qemu_io(&served.uri, "read -P 0xa5 0 700000").expect("as before");
    assert!(read, "{said}");
    for impossible in ["read 900000 100000", "write -P 1 0 512"] {
        assert!(!qemu_io(&served.uri, impossible).expect("as before").0, "{impossible}");
    }
    served.stop().succeeds();
    assert!(fs::read(&volume).expect("it is there") == whole[..900_000]);
}

#[test]
fn questions_are_asked_one_after_the_other_and_ctrl_c_answers_them() {
    let folder = Folder::new();
    let (path, plain) = luks2(&folder, 1);
    let typed = format!("{PASSWORD}\n");
    let password = [json!({"expect": ": "}), json!({"echo": false}), json!({"send": typed})];
    let with = |more: &[serde_json::Value]| json!([&password[..], more].concat());
    let reencrypt = ["reencrypt", ISOLATED, &path];
    let raw = fs::read(&path).expect("it is there");
    for (answer, code, said) in [("no\n", 1, "nothing was changed"), ("\u{3}", 8, "cancelled")] {
        let steps = with(&[json!({"expect": "[y/N] "}), json!({"send": answer})]);
        let Some((output, ended, echo)) = on_terminal(steps, &reencrypt) else { return };
        assert_eq!((ended, echo), (code, true), "{output}");
        assert!(output.matches(said).count() == 1 && !output.contains(PASSWORD), "{output}");
        assert!(fs::read(&path).expect("it is there") == raw);
    }
    let steps = with(&[json!({"expect": "[y/N] "}), json!({"send": "yes\n"})]);
    let (output, code, _) = on_terminal(steps, &reencrypt).expect("as before");
    assert_eq!(code, 0, "{output}");
    let steps = json!([{"expect": ": "}, {"echo": false}, {"send": "half a pass\u{3}"}]);
    let (output, code, echo) = on_terminal(steps, &reencrypt).expect("as before");
    assert_eq!((code, echo), (8, true), "{output}");

    // The password of the source, and then that of the new volume, twice.
    let new = folder.str("new.luks");
    let cheap = ["--new-format=LUKS2", "--new-kdf=pbkdf2", "--new-iterations=1000"];
    let convert = [&["convert", ISOLATED][..], &cheap, &[&path, &new]].concat();
    let (output, code, echo) = on_terminal(with(&[&password[..], &password].concat()), &convert).expect("as before");
    assert_eq!((code, echo), (0, true), "{output}");
    let cat = ["cat", "--password-file", &folder.password, &new];
    assert!(run(cat).succeeds().out == plain);
}

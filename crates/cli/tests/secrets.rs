//! What is in the memory of the program: nothing secret once a volume is closed, and no password while it is open.

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

use claviger_crypto::ciphers::CIPHERS;
use claviger_crypto::hash::SHA512;
use claviger_crypto::modes::SectorCipher;
use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::{Acceleration, Cipher};
use claviger_testkit::tools;
use common::*;

/// A name, and bytes that must or must not be in memory.
type Needle = (String, Vec<u8>);

/// Ciphers whose volumes are looked at: each has key schedules of its own.
const SINGLE: &[&str] = &["AES", "Serpent", "Twofish"];

/// The password, the header key and the master keys of a volume of one cipher, made with SHA-512 and [`PASSWORD`]: its
/// header is decrypted here, in a process of its own. Keys are looked for in pieces of 16 bytes.
fn secrets(volume: &str, cipher: &str) -> Vec<Needle> {
    let header = fs::read(volume).expect("a file")[..512].to_vec();
    let mut header_key = [0; 64];
    // TrueCrypt 7.1a, Pkcs5.c: 1000 iterations of HMAC-SHA-512.
    assert!(SHA512.pbkdf2(PASSWORD.as_bytes(), &header[..64], 1000, &mut header_key, &|| true));
    let cipher: &Cipher = CIPHERS.iter().find(|c| c.name == cipher).expect("a cipher");
    let keyed = |key: &[u8]| cipher.with_key(key, Acceleration::On);
    let xts = Xts::new(vec![Layer { data: keyed(&header_key[..32]), tweak: keyed(&header_key[32..]) }], 448);
    let mut body = header[64..].to_vec();
    xts.decrypt(0, &mut body);
    assert_eq!(&body[..4], b"TRUE", "the header opens");
    // The key area begins at byte 256 of the header (TrueCrypt 7.1a, Volumes.h).
    let master = &body[256 - 64..][..64];
    let pieces = |name: &str, key: &[u8]| {
        let piece = |(i, piece): (usize, &[u8])| (format!("{name}, bytes from {} on", i * 16), piece.to_vec());
        key.chunks(16).enumerate().map(piece).collect::<Vec<_>>()
    };
    let password = ("password".to_owned(), PASSWORD.as_bytes().to_vec());
    [vec![password], pieces("header key", &header_key), pieces("master key", master)].concat()
}

/// The names of those needles that are in `hay`.
fn found<'a>(hay: &[u8], needles: &'a [Needle]) -> Vec<&'a str> {
    let is_in = |needle: &[u8]| {
        let first = needle[0];
        hay.iter().enumerate().any(|(i, b)| *b == first && hay[i..].starts_with(needle))
    };
    needles.iter().filter(|(_, bytes)| is_in(bytes)).map(|(name, _)| name.as_str()).collect()
}

/// All memory of a process that can be read and written. Root may read it although the process is not dumpable.
fn memory(pid: u32) -> Vec<u8> {
    // A thread that ends meanwhile takes its stack along: look again then.
    (0..100).find_map(|_| read_memory(pid)).expect("memory that stays as it is for a moment")
}

fn read_memory(pid: u32) -> Option<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("procfs");
    let mut file = fs::File::open(format!("/proc/{pid}/mem")).expect("root may");
    let mut all = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().expect("a range"), words.next().expect("rights"));
        let (from, to) = range.split_once('-').expect("a range");
        let number = |hex| u64::from_str_radix(hex, 16).expect("a number");
        if rights.starts_with("rw") {
            let mut bytes = vec![0; (number(to) - number(from)) as usize];
            file.seek(SeekFrom::Start(number(from))).expect("a place");
            file.read_exact(&mut bytes).ok()?;
            all.append(&mut bytes);
        }
    }
    Some(all)
}

#[test]
fn an_open_volume_keeps_no_password() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    for cipher in SINGLE {
        let volume = folder.volume(&format!("{cipher}.tc"), "1M", &["--cipher", cipher]);
        let needles = secrets(&volume, cipher);
        let socket = folder.str(cipher);
        let served = Served::start(["--password-file", &folder.password, "--socket", &socket, &volume]);
        let Some((wrote, said)) = qemu_io(&served.uri, "write -P 1 1000 300000") else { return };
        assert!(wrote, "{said}");
        let memory = memory(served.pid);
        let found = found(&memory, &needles);
        let wrong: Vec<_> = found.iter().filter(|name| !name.starts_with("master key")).collect();
        assert!(wrong.is_empty(), "{cipher}: {wrong:?}");
        // That the scan sees secrets: AES keeps the key itself as the first part of its schedule.
        assert!(*cipher != "AES" || found.iter().any(|name| name.starts_with("master key")), "the scan sees nothing");
        served.stop().succeeds();
    }
}

/// A core image of the program at its very end, when all is closed and the process still lives: a debugger stops it
/// before the last system call. With all that is excluded from other dumps.
fn last_image(folder: &Folder, args: &[&str]) -> Option<Vec<u8>> {
    let gdb = tools::program("gdb")?;
    let image = folder.path("image");
    let _ = fs::remove_file(&image);
    let mut command = Command::new(gdb);
    command.args(["-nx", "-batch", "-ex", "set startup-with-shell off", "-ex", "set debuginfod enabled off"]);
    command.args(["-ex", "set auto-load no", "-ex", "catch syscall exit_group", "-ex", "run"]);
    command.args(["-ex", "set use-coredump-filter off", "-ex", "set dump-excluded-mappings on"]);
    command.arg("-ex").arg(format!("generate-core-file {}", image.display())).args(["-ex", "kill"]);
    command.arg("--args").arg(env!("CARGO_BIN_EXE_claviger")).args(args);
    let output = command.stdin(Stdio::null()).output().expect("gdb starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("call to syscall exit_group"), "{said}");
    Some(fs::read(&image).unwrap_or_else(|e| panic!("{e}: {said}")))
}

#[test]
fn a_closed_volume_leaves_nothing_behind() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    for cipher in SINGLE {
        let volume = folder.volume(&format!("{cipher}.tc"), "2M", &["--cipher", cipher]);
        let needles = secrets(&volume, cipher);
        let Some(qemu_io) = tools::program("qemu-io") else { return };
        let client = format!("{} -f raw -c 'write -P 1 1000 1200000' \"$uri\" >&2", qemu_io.display());
        let socket = folder.str("s");
        let password = ["--password-file", &*folder.password];
        for args in [
            [&["info"][..], &password, &[&volume]].concat(),
            [&["info", "--hash", "Whirlpool"][..], &password, &[&volume]].concat(), // opens nothing
            [&["cat"][..], &password, &[&volume]].concat(),
            [&["serve", "--socket", &socket, "--run", &client][..], &password, &[&volume]].concat(),
        ] {
            let Some(image) = last_image(&folder, &args) else { return };
            // Its own arguments are in every process's memory: the scan sees something.
            let arguments = ("arguments".to_owned(), volume.clone().into_bytes());
            assert_eq!(found(&image, &[arguments]), ["arguments"]);
            assert!(found(&image, &needles).is_empty(), "{args:?}: {:?}", found(&image, &needles));
        }
    }
}

#[test]
fn creating_leaves_nothing_behind() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    for cipher in SINGLE {
        let volume = folder.str(&format!("{cipher}.tc"));
        let args = [
            "create",
            "--format",
            "TrueCrypt",
            "--size",
            "2M",
            "--hash",
            "SHA-512",
            "--cipher",
            cipher,
            "--password-file",
        ];
        let args = args.iter().copied().chain([&*folder.password, &volume]).collect::<Vec<_>>();
        let Some(image) = last_image(&folder, &args) else { return };
        assert!(Path::new(&volume).exists());
        let needles = secrets(&volume, cipher);
        assert!(found(&image, &needles).is_empty(), "{cipher}: {:?}", found(&image, &needles));
    }
}

#[test]
fn no_core_is_dumped_and_nobody_looks_in() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", served.pid)).expect("procfs");
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    served.stop().succeeds();
    // A process that is not dumpable has its /proc entries owned by root (proc_pid(5)).
    let Some(()) = tools::root() else { return };
    tools::run(Command::new("chmod").args(["-R", "a+rwX"]).arg(folder.path(".")));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_claviger"), "serve", "--password-file"]);
    command.args([&*folder.password, "--socket", &folder.str("s"), &volume, "--run", "stat -c %u /proc/$PPID/mem"]);
    let told = done(command.stdin(Stdio::null()).output().expect("it ends")).succeeds();
    assert_eq!(told.text(), "0\n");
}

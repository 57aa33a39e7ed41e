//! `claviger reencrypt`: a new key, encryption in place and decryption, and what an interruption leaves.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::*;
use claviger_testkit::tools;

/// A LUKS2 volume whose key is cheap to derive, and its path.
fn volume(folder: &Folder, name: &str, size: &str, more: &[&str]) -> String {
    let path = folder.str(name);
    let args = ["create", "--quick", "--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000", "--size", size];
    run([&args[..], more, &["--password-file", &folder.password, &path]].concat()).succeeds();
    path
}

fn contents(folder: &Folder, more: &[&str]) -> Vec<u8> {
    run([&["cat", "--password-file", &folder.password], more].concat()).succeeds().out
}

/// Bytes of which no two sectors are the same.
fn plaintext(len: usize) -> Vec<u8> {
    (0..len / 8).flat_map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Checks that cryptsetup finds a header that opens with the password.
fn cryptsetup_opens(folder: &Folder, args: &[&str]) {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let key = folder.str("key");
    fs::write(&key, PASSWORD).expect("a key file");
    tools::run(Command::new(cryptsetup).args(["open", "--test-passphrase", "--key-file", &key]).args(args));
}

#[test]
fn a_volume_gets_another_key_cipher_and_sector_size() {
    let folder = Folder::new();
    let path = volume(&folder, "v", "20M", &["--sector-size", "512"]);
    let before = contents(&folder, &[&path]);
    let raw = fs::read(&path).expect("it is there");
    let args = ["reencrypt", "--json", "--password-file", &folder.password];
    run([&args[..], &[&path]].concat()).fails(1, &["no terminal", "--yes"]);
    assert!(fs::read(&path).expect("it is there") == raw, "nothing was agreed to");
    let new = ["--new-cipher", "serpent-xts-plain64", "--new-sector-size", "4096", "--yes"];
    let done = run([&args[..], &new, &[&path]].concat()).succeeds().json();
    assert_eq!((&done["finished"], done["size"].as_u64()), (&true.into(), Some(4 << 20)));
    assert!(contents(&folder, &[&path]) == before);
    let info = run(["info", "--json", "--password-file", &folder.password, &path]).succeeds().json();
    assert_eq!((&info["cipher"], &info["sector_size"]), (&"serpent".into(), &4096.into()));
    cryptsetup_opens(&folder, &[&path]);
    run([&args[..], &["--resume", &path]].concat()).fails(1, &["not being reencrypted"]);
}

#[test]
fn wrong_passwords_and_other_volumes_are_not_touched() {
    let folder = Folder::new();
    let path = volume(&folder, "v", "18M", &[]);
    let wrong = folder.str("wrong");
    fs::write(&wrong, "wrong").expect("a password file");
    let raw = fs::read(&path).expect("it is there");
    run(["reencrypt", "--yes", "--password-file", &wrong, &path]).fails(2, &[]);
    assert!(fs::read(&path).expect("it is there") == raw);
    let plain = folder.str("plain");
    fs::write(&plain, plaintext(1 << 20)).expect("a file");
    run(["reencrypt", "--yes", "--password-file", &folder.password, &plain]).fails(3, &["--encrypt"]);
    run(["reencrypt", "--encrypt", "--yes", "--password-file", &folder.password, &plain])
        .fails(1, &["--reduce-device-size", "--header"]);
    assert!(fs::read(&plain).expect("it is there") == plaintext(1 << 20));
}

#[test]
fn interrupted_by_ctrl_c_it_goes_on() {
    let folder = Folder::new();
    let path = volume(&folder, "v", "144M", &[]);
    let before = sha256(&contents(&folder, &[&path]));
    let mut child = begin(&folder, &path);
    // It writes by and by; where it has begun is for the header to say.
    let since = Instant::now();
    while !begun(&path) {
        assert!(since.elapsed() < Duration::from_secs(60), "it does not begin");
        assert!(child.try_wait().expect("a child").is_none(), "it has ended");
        sleep(Duration::from_millis(5));
    }
    tools::run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let code = child.wait().expect("it ends").code();
    assert_eq!(code, Some(8), "a zone of 64 KiB at a time, it cannot have come to the end");
    assert_eq!(sha256(&contents(&folder, &[&path])), before, "it opens as it is");
    run(["reencrypt", "--yes", "--password-file", &folder.password, &path]).fails(1, &["--resume"]);
    // Its headers are sound, and that is not all that there is to say.
    let verified = run(["verify", "--password-file", &folder.password, &path]).succeeds();
    assert!(verified.text().contains("is not finished") && verified.text().contains("--resume"), "{}", verified.text());
    let backup = folder.str("backup");
    let saved = run(["header", "backup", &path, &backup]).succeeds();
    assert!(
        saved.err.contains("Once it continues") && !saved.text().contains("always"),
        "{}{}",
        saved.err,
        saved.text()
    );
    run(["reencrypt", "--resume", "--password-file", &folder.password, &path]).succeeds();
    assert!(!begun(&path));
    let restore = ["header", "restore", "--yes", "--password-file", &folder.password, "--from", &backup, &path];
    run(restore).fails(5, &["made during a reencryption"]);
    assert_eq!(sha256(&contents(&folder, &[&path])), before);
    cryptsetup_opens(&folder, &[&path]);
}

/// Begins with zones so small that it takes its time.
fn begin(folder: &Folder, path: &str) -> Child {
    let args = ["reencrypt", "--yes", "--hotzone-size", "64K", "--resilience", "journal", "--password-file"];
    // Without anything in between: signals are for the program itself.
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.args(args).args([&folder.password, path]).spawn().expect("the program starts")
}

/// Whether the header says that a reencryption is in progress. The program that does it has the volume for itself, so this looks at
/// the bytes of the JSON area.
fn begun(path: &str) -> bool {
    let mut area = [0; 32 << 10];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut area)).expect("two headers");
    String::from_utf8_lossy(&area[..16 << 10]).contains("online-reencrypt")
}

#[test]
fn plaintext_is_encrypted_where_it_lies_and_decrypted_again() {
    const LEN: usize = 64 << 20;
    const ROOM: usize = 32 << 20;
    let folder = Folder::new();
    let path = folder.str("disk");
    let plain = plaintext(LEN - ROOM);
    fs::write(&path, &plain).expect("a file");
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(LEN as u64)).expect("room");
    let password = ["--password-file", folder.password.as_str()];
    let cheap = ["--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    let encrypt = [&["reencrypt", "--encrypt", "--yes", "--reduce-device-size", "32M"][..], &password, &cheap].concat();
    run([&encrypt[..], &[&path]].concat()).succeeds();
    assert!(contents(&folder, &[&path]).starts_with(&plain));
    cryptsetup_opens(&folder, &[&path]);
    let header = folder.str("header");
    run([&["reencrypt", "--decrypt", "--yes", "--header", &header, &path][..], &password].concat()).succeeds();
    assert!(fs::read(&path).expect("it is there").starts_with(&plain));
}

/// Runs the program, killed at the `nth` of some system calls, before that has any effect. Whether it came that far; nothing
/// without strace.
pub fn killed_at(call: &str, nth: u32, args: &[&str]) -> Option<bool> {
    let strace = tools::program("strace")?;
    let mut command = Command::new(strace);
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
    command.args(["-f", "-qq", "-e", &trace, "-e", &inject, "--"]);
    command.arg(env!("CARGO_BIN_EXE_claviger")).args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status().expect("strace starts");
    assert!(status.success() || status.signal() == Some(9), "{status}");
    Some(!status.success())
}

/// Killed at any write or flush before it has begun, and run again: it comes to its end, and never are the data decrypted where
/// they lie, after the header. With another new header it does too, or changes nothing.
#[test]
fn a_decryption_that_was_killed_early_is_run_again() {
    const HEADER: usize = 16 << 20;
    let folder = Folder::new();
    let original = volume(&folder, "original", "18M", &["--sector-size", "512"]);
    let before = fs::read(&original).expect("it is there");
    let plain = contents(&folder, &[&original]);
    let (path, header, other) = (folder.str("v"), folder.str("header"), folder.str("other"));
    let decrypt =
        |header| ["reencrypt", "--decrypt", "--yes", "--password-file", &folder.password, "--header", header, &path];
    for call in ["pwrite64", "fdatasync", "fallocate", "fsync"] {
        for nth in 1.. {
            fs::write(&path, &before).expect("a copy");
            let _ = (fs::remove_file(&header), fs::remove_file(&other));
            let Some(killed) = killed_at(call, nth, &decrypt(&header)) else { return };
            if !killed {
                assert!(nth > 1, "{call} is something that it does");
                break;
            }
            let left = fs::read(&path).expect("it is there");
            let again = run(decrypt(&header));
            let begun = again.err.contains("To continue it, add --resume");
            match begun {
                true => run(decrypt(&header).map(|arg| if arg == "--decrypt" { "--resume" } else { arg })).succeeds(),
                false => again.succeeds(),
            };
            let done = fs::read(&path).expect("it is there");
            assert!(done.starts_with(&plain), "{call} {nth}: run again");
            if begun {
                // What follows is in the tests of the engine.
                break;
            }

            fs::write(&path, &left).expect("a copy");
            let with_other = run(decrypt(&other));
            let done = fs::read(&path).expect("it is there");
            match with_other.code {
                0 => assert!(done.starts_with(&plain), "{call} {nth}: with another header"),
                _ => assert!(done == left, "{call} {nth}: {}", with_other.err),
            }
        }
    }
    // An older backup of the header is not a detached header of this volume.
    fs::write(&path, &before).expect("a copy");
    fs::write(&header, &before[..HEADER]).expect("a backup");
    run(["header", "set", "--label", "changed since", &path]).succeeds();
    let left = fs::read(&path).expect("it is there");
    run(decrypt(&header)).fails(1, &["wrong position", "a new file for the header"]);
    assert!(fs::read(&path).expect("it is there") == left, "nothing was changed");
}

#[test]
fn plaintext_gets_a_detached_header() {
    let folder = Folder::new();
    let (path, header) = (folder.str("disk"), folder.str("header"));
    let plain = plaintext(4 << 20);
    fs::write(&path, &plain).expect("a file");
    let password = ["--yes", "--password-file", folder.password.as_str(), "--header", &header];
    let cheap = ["--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    run([&["reencrypt", "--encrypt", "--resilience", "hope", &path][..], &password].concat()).fails(1, &["checksum"]);
    assert!(!folder.path("header").exists(), "no reencryption to resume");
    run([&["reencrypt", "--encrypt", "--init-only", &path][..], &password, &cheap].concat()).succeeds();
    assert!(contents(&folder, &["--header", &header, &path]) == plain, "nothing is encrypted yet");
    run([&["reencrypt", "--resume", &path][..], &password].concat()).succeeds();
    assert!(contents(&folder, &["--header", &header, &path]) == plain);
    assert!(fs::read(&path).expect("it is there") != plain);
    cryptsetup_opens(&folder, &["--header", &header, &path]);
    run([&["reencrypt", "--decrypt", &path][..], &password].concat()).succeeds();
    assert!(fs::read(&path).expect("it is there") == plain);
}

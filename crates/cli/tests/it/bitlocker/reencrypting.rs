//! `claviger reencrypt` of BitLocker volumes: decrypted and encrypted in place, interrupted and killed.

use std::fs;

use crate::common::*;
use crate::luks::reencrypting::killed_at;
use claviger_testkit::bitlocker::maker::{Kind, Made, Protector, State, Volume, Written};
use claviger_testkit::tools;

/// A volume that a startup key opens, so that nothing is stretched.
fn made(state: State) -> (Made, Written, String, String) {
    let made = Volume { protectors: vec![Protector::StartupKey], state, ..Volume::new(Kind::Windows8) }.make();
    let written = made.write();
    let key = fs::read_dir(written.folder()).expect("its folder").map(|entry| entry.expect("a file").path());
    let key = key.into_iter().find(|path| path.extension().is_some_and(|end| end == "BEK")).expect("a startup key");
    let (image, key) = (written.image.display().to_string(), key.display().to_string());
    (made, written, image, key)
}

fn half_way(next: u16) -> State {
    State::HalfWay { current: 5, next, watermark: 0x9_0000 }
}

#[test]
fn a_volume_is_decrypted_where_it_lies() {
    let (made, _written, image, key) = made(State::Encrypted);
    let args = ["reencrypt", "--keyfile", &key];
    run([&args[..], &["--yes", &image]].concat()).fails(1, &["--decrypt", "--resume"]);
    run([&args[..], &["--resume", &image]].concat()).fails(1, &["not being converted"]);
    run([&args[..], &["--encrypt", "--yes", &image]].concat()).fails(1, &["already"]);
    run([&args[..], &["--decrypt", "--yes", "--resilience", "journal", &image]].concat()).fails(1, &["--resilience"]);
    run([&args[..], &["--decrypt", &image]].concat()).fails(1, &["no terminal", "--yes"]);
    assert!(fs::read(&image).expect("it is there") == made.image, "nothing was agreed to");
    run([&args[..], &["--decrypt", "--yes", "--init-only", &image]].concat()).succeeds();
    let done = run([&args[..], &["--resume", "--json", &image]].concat()).succeeds().json();
    assert_eq!(done["finished"], true);
    assert!(fs::read(&image).expect("it is there") == made.plaintext);
}

#[test]
fn what_was_begun_goes_on_or_turns_round() {
    for (next, option, encrypted) in
        [(1, "--resume", false), (4, "--resume", true), (1, "--encrypt", true), (4, "--decrypt", false)]
    {
        let (made, _written, image, key) = made(half_way(next));
        run(["reencrypt", option, "--yes", "--keyfile", &key, &image]).succeeds();
        let contents = match encrypted {
            true => run(["cat", "--keyfile", &key, &image]).succeeds().out,
            false => fs::read(&image).expect("it is there"),
        };
        assert!(contents == made.plaintext, "{next} {option}");
    }
}

#[test]
fn killed_at_any_write_or_sync_it_goes_on() {
    for (state, option) in [(State::Encrypted, "--decrypt"), (half_way(4), "--encrypt")] {
        for call in ["pwrite64", "fdatasync,fsync"] {
            for nth in [1, 2, 3, 4, 5, 6, 8, 11, 17, 29, 48, 77, 110, 140, 170, 190] {
                let (made, _written, image, key) = made(state);
                let args = ["reencrypt", option, "--yes", "--hotzone-size", "64K", "--keyfile", &key, &image];
                let Some(killed) = killed_at(call, nth, &args) else { return };
                let is_plain = || fs::read(&image).expect("it is there")[3..11] == *b"NTFS    ";
                let contents = || match is_plain() {
                    true => fs::read(&image).expect("it is there"),
                    false => run(["cat", "--keyfile", &key, &image]).succeeds().out,
                };
                let reserved = made.layout.reserved();
                let same = |now: &[u8]| {
                    let inside = |at: usize| reserved.iter().any(|range| range.contains(&(at as u64 * 512)));
                    now.len() == made.plaintext.len()
                        && now
                            .chunks(512)
                            .zip(made.plaintext.chunks(512))
                            .enumerate()
                            .all(|(at, (a, b))| a == b || inside(at))
                };
                assert!(same(&contents()), "{option}, {call} {nth}: as it was left");
                if killed && !is_plain() {
                    let again = ["reencrypt", option, "--yes", "--keyfile", &key, &image];
                    let again = run(again);
                    assert!(again.code == 0 || again.err.contains("already"), "{option}, {call} {nth}: {}", again.err);
                    assert!(same(&contents()), "{option}, {call} {nth}: in the end");
                }
            }
        }
    }
}

#[test]
fn a_file_system_becomes_a_volume_and_again_a_file_system() {
    let folder = Folder::new();
    let Some(mkfs) = tools::program("mkfs.ntfs") else { return };
    let path = folder.str("disk");
    fs::File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("a file");
    tools::run(std::process::Command::new(mkfs).args(["-F", "-Q", "-q", &path]));
    let plain = fs::read(&path).expect("it is there");
    let encrypt =
        ["reencrypt", "--encrypt", "--format", "BitLocker", "--yes", "--password-file", &folder.password, &path];
    run(encrypt).fails(1, &["enlarge the file"]);
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(5 << 20)).expect("room");
    run(encrypt).succeeds();
    let info = run(["info", "--json", "--password-file", &folder.password, &path]).succeeds().json();
    assert_eq!(info["format"], "BitLocker");
    assert!(run(["cat", "--password-file", &folder.password, &path]).succeeds().out.starts_with(&plain));
    run(["reencrypt", "--decrypt", "--yes", "--password-file", &folder.password, &path]).succeeds();
    assert!(fs::read(&path).expect("it is there").starts_with(&plain));
    if let Some(check) = tools::program("ntfsfix") {
        // It looks for the copy of the boot sector at the end of the device.
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4 << 20)).expect("as it was");
        tools::run(std::process::Command::new(check).args(["-n", &path]));
    }
}

/// A small FAT file system with room after it.
fn file_system(folder: &Folder, name: &str) -> Option<(String, Vec<u8>)> {
    let mkfs = tools::program("mkfs.fat")?;
    let path = folder.str(name);
    fs::File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("a file");
    tools::run(std::process::Command::new(mkfs).arg(&path));
    let plain = fs::read(&path).expect("it is there");
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(5 << 20)).expect("room");
    Some((path, plain))
}

#[test]
fn what_is_encrypted_where_it_lies_has_a_recovery_password() {
    let folder = Folder::new();
    let Some((path, plain)) = file_system(&folder, "disk") else { return };
    let before = fs::read(&path).expect("it is there");
    let encrypt =
        ["reencrypt", "--encrypt", "--format", "BitLocker", "--yes", "--password-file", &folder.password, &path];
    run([&encrypt[..], &["--json"]].concat()).fails(1, &["--recovery-password-file"]);
    let kept = folder.str("kept");
    fs::write(folder.str("short"), "short 1").expect("a file");
    let short = encrypt.map(|arg| if arg == folder.password { folder.str("short") } else { arg.to_owned() });
    let with_file = ["--recovery-password-file".to_owned(), kept.clone()];
    run([&short[..], &with_file].concat()).fails(1, &["8"]);
    assert!(fs::read(&path).expect("it is there") == before && fs::metadata(&kept).is_err(), "nothing is left");

    let begun = run([&encrypt[..], &["--json", "--init-only", "--recovery-password-file", &kept]].concat()).succeeds();
    assert_eq!(begun.json()["recovery_password_file"], kept.as_str());
    let password = fs::read_to_string(&kept).expect("it stays though nothing is converted");
    assert!(!begun.text().contains(password.trim()));
    run([&encrypt[..], &["--no-recovery-password"]].concat()).fails(1, &["keyslot add"]);
    run(["reencrypt", "--resume", "--password-file", &kept, &path]).succeeds();
    for opens in [&kept, &folder.password] {
        assert!(run(["cat", "--password-file", opens, &path]).succeeds().out.starts_with(&plain));
    }

    let Some((path, plain)) = file_system(&folder, "other") else { return };
    let printed = run([&encrypt[..7], &[&path]].concat()).succeeds().text();
    let shown = printed.lines().next().and_then(|line| line.strip_prefix("Recovery password: "));
    let read = run_with(shown.expect("it comes first").as_bytes(), ["cat", "--password-file", "-", &path]).succeeds();
    assert!(read.out.starts_with(&plain));
}

#[test]
fn a_recovery_password_can_be_left_out() {
    let folder = Folder::new();
    let Some((path, plain)) = file_system(&folder, "disk") else { return };
    let options = ["--encrypt", "--yes", "--password-file", &folder.password, "--no-recovery-password", &path];
    run([&["reencrypt", "--format", "LUKS2"], &options[..]].concat()).fails(1, &["LUKS2 takes no recovery password"]);
    let done = run([&["reencrypt", "--json", "--format", "BitLocker"], &options[..]].concat()).succeeds().json();
    assert!(done.get("recovery_password_file").is_none() && done["finished"] == true);
    let listed = run(["keyslot", "list", "--json", &path]).succeeds().json();
    assert_eq!(listed["keyslots"].as_array().map(Vec::len), Some(1));
    assert!(run(["cat", "--password-file", &folder.password, &path]).succeeds().out.starts_with(&plain));
}

/// An NTFS whose hiberfil.sys has these bytes, in a file with room after it.
fn with_hiberfil(folder: &Folder, name: &str, bytes: &[u8]) -> Option<String> {
    let (mkfs, cp) = (tools::program("mkfs.ntfs")?, tools::program("ntfscp")?);
    let (path, file) = (folder.str(name), folder.str("hiberfil"));
    fs::File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("a file");
    tools::run(std::process::Command::new(mkfs).args(["-F", "-Q", "-q", &path]));
    fs::write(&file, [bytes, &[0; 8192]].concat()).expect("it is written");
    tools::run(std::process::Command::new(cp).args(["-f", &path, &file, "hiberfil.sys"]));
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8 << 20)).expect("room");
    Some(path)
}

#[test]
fn a_hibernated_windows_is_not_encrypted_in_place() {
    let folder = Folder::new();
    let mut volumes: Vec<String> = [&b"hibr"[..], b"HIBR"]
        .iter()
        .filter_map(|mark| with_hiberfil(&folder, &String::from_utf8_lossy(mark), mark))
        .collect();
    let case = tools::Case::unpack("bitlocker/reencrypt-hibernated.tar.xz");
    volumes.extend(case.iter().map(|case| case.path().join("ntfs.img").display().to_string()));
    for path in &volumes {
        let before = fs::read(path).expect("it is there");
        let password = &folder.password;
        for how in
            [&["--format", "BitLocker"][..], &["--reduce-device-size", "2M"], &["--header", &folder.str("header")]]
        {
            let args = [&["reencrypt", "--encrypt", "--yes", "--password-file", password], how, &[path]].concat();
            run(args).fails(5, &["hibernated", "shutdown /s"]);
            assert!(fs::read(path).expect("it is there") == before, "{path}, {how:?}");
        }
        assert!(!fs::exists(folder.str("header")).expect("it is looked for"), "no header is left");
    }
    // Windows that has woken up leaves another mark there.
    for mark in [&b"wake"[..], &[0; 4]] {
        let Some(path) = with_hiberfil(&folder, "awake", mark) else { return };
        let args =
            ["reencrypt", "--encrypt", "--format", "BitLocker", "--yes", "--password-file", &folder.password, &path];
        run(args).succeeds();
        fs::remove_file(path).expect("it is removed");
    }
}

#[test]
fn resuming_what_never_began_says_so() {
    let folder = Folder::new();
    let Some((path, plain)) = file_system(&folder, "disk") else { return };
    let resumed = run(["reencrypt", "--resume", "--password-file", &folder.password, &path]);
    resumed.fails(3, &["no reencryption to resume", "FAT", "reencrypt --encrypt"]);
    assert!(fs::read(&path).expect("it is there").starts_with(&plain));
}

/// Somebody without a key says that a volume is decrypted.
#[test]
fn a_volume_that_only_says_that_it_is_decrypted_is_left_alone() {
    let (made, _written, image, key) = made(State::Encrypted);
    let mut forged = made.image.clone();
    for (number, at) in made.layout.metadata.iter().map(|at| *at as usize).enumerate() {
        let mut block = made.block(number);
        block[12..16].copy_from_slice(&[1, 0, 1, 0]);
        let crc = claviger_testkit::reference::legacy::crc32(&block);
        forged[at..at + block.len()].copy_from_slice(&block);
        forged[at + block.len() + 4..at + block.len() + 8].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&image, &forged).expect("it is written");
    let folder = Folder::new();
    for given in [["--keyfile", &key], ["--password-file", &folder.password]] {
        let tried = run([&["reencrypt", "--decrypt", "--yes"], &given[..], &[&image]].concat());
        assert!([2, 4].contains(&tried.code), "{}: {}", tried.code, tried.err);
        assert!(fs::read(&image).expect("it is there") == forged, "{given:?}");
    }
}

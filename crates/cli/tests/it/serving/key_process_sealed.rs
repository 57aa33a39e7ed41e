//! `--isolate-keys` for folders of sealed blocks, gocryptfs and Cryptomator: the same files for every program, the same words, and no
//! key in the process that serves.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::hash::SHA256;
use claviger_crypto::modes::aead;
use claviger_crypto::scrypt::ScryptParams;
use claviger_crypto::{Acceleration, Secret, key_wrap};
use claviger_testkit::processes::{Needle, found};
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use serde_json::Value;

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::faults::secrets::password;
use crate::serving::key_process::{ISOLATED, ended};
use crate::serving::key_process_folders::{Mounted, is_as_a_crash_left_it, key, killed_while_written};

/// Every format with each of its ciphers.
const KINDS: [(&str, &str); 5] = [
    ("gocryptfs", "AES-GCM"),
    ("gocryptfs", "AES-SIV"),
    ("gocryptfs", "XChaCha20-Poly1305"),
    ("Cryptomator", "SIV_GCM"),
    ("Cryptomator", "SIV_CTRMAC"),
];

/// A new folder, which is not mounted.
fn made<'a>(place: &'a MountSpace, (format, cipher): (&'static str, &str)) -> Mounted<'a> {
    let [lower, dir] = ["lower", "d"].map(|name| place.dir(&format!("{name}-{format}-{cipher}")));
    let create = ["create", "--format", format, "--cipher", cipher, "--password-file", &place.folder.password, &lower];
    place.run(create).succeeds();
    Mounted { place, format, lower, dir }
}

/// All files below a folder, the largest first.
fn stored(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() { all.extend(stored(&entry)) } else { all.push(entry) }
    }
    all.sort_by_key(|path| std::cmp::Reverse(fs::symlink_metadata(path).expect("there").len()));
    all
}

/// Mounts with gocryptfs itself, if it is installed and this is its format.
fn mounted_by_gocryptfs(mounted: &Mounted<'_>, each: impl FnOnce()) {
    if mounted.format != "gocryptfs" || tools::program("gocryptfs").is_none() {
        return;
    }
    let Mounted { place, lower, dir, .. } = mounted;
    let password = &place.folder.password;
    place.shell(&format!("gocryptfs -q -fsck -passfile {password} {lower}")).succeeds();
    place.shell(&format!("gocryptfs -q -passfile {password} {lower} {dir}")).succeeds();
    each();
    place.shell(&format!("fusermount3 -u {dir}")).succeeds();
}

#[test]
fn what_is_sealed_with_keys_elsewhere_is_the_same_for_whoever_reads_it_next() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        for kind in KINDS {
            let (mounted, plain) = (made(&place, kind), place.dir(&format!("plain-{}-{}", kind.0, kind.1)));
            let long = "n".repeat(220);
            let make = format!(
                "set -e; mkdir -p a/b; echo one >a/one; cp a/one a/b/two; mv a/b/two three; ln -s a/one link; \
                 truncate -s 50000 three; seq 400000 >numbers; dd if=numbers of=a/part bs=1000 skip=3 count=200 status=none; \
                 printf new | dd of=numbers bs=1 seek=70001 conv=notrunc status=none; for n in $(seq 60); do echo $n >a/b/$n; done; \
                 rm a/b/7; chmod 640 three; mkdir {long}; echo long >{long}/{long}; : >empty; sync"
            );
            place.shell(&format!("cd {plain}; {make}")).succeeds();
            let [_, key_process] = mounted.isolated(&[]);
            place.shell(&format!("cd {}; {make}", mounted.dir)).succeeds();
            let same = || place.shell(&format!("diff -r --no-dereference {plain} {}", mounted.dir)).succeeds();
            same();
            mounted.unmount();
            wait_until("the key process has gone", || ended(key_process));
            mounted.verified();
            // gocryptfs changes it, and one process of ours.
            let change = |what: &str| {
                for dir in [&plain, &mounted.dir] {
                    place.shell(&format!("set -e; cd {dir}; {what}; sync")).succeeds();
                }
            };
            mounted_by_gocryptfs(&mounted, || {
                same();
                change("seq 300000 >theirs; mv a/part .; echo theirs >>numbers; ln -s part other");
            });
            mounted.mount(&[]).succeeds();
            same();
            change("mv numbers a; seq 9999 >>a/numbers; echo more >more");
            mounted.unmount();
            mounted.isolated(&["--read-only"]);
            same();
            place.shell(&format!("! touch {}/new", mounted.dir)).succeeds();
            mounted.unmount();
        }
        place.nothing_is_left();
    }
}

#[test]
fn what_goes_wrong_with_a_sealed_folder_is_told_with_the_same_words_and_codes() {
    let Some(place) = MountSpace::root() else { return };
    let wrong = place.folder.str("wrong");
    fs::write(&wrong, "another password\n").expect("a file");
    let other = place.dir("other");
    for kind in [KINDS[0], KINDS[3]] {
        let mounted = made(&place, kind);
        let both = |code: i32, how: &[&str], lower: &str| {
            let mount = |isolated: &[&str]| place.run([&["mount"][..], isolated, how, &[lower, &mounted.dir]].concat());
            let (one, isolated) = (mount(&[]), mount(&[ISOLATED]));
            assert_eq!((one.code, isolated.code), (code, code), "{how:?}: {}{}", one.err, isolated.err);
            assert_eq!(one.err, isolated.err, "{how:?}");
            assert!(!place.mounted(&mounted.dir));
        };
        let good = &place.folder.password;
        both(2, &["--password-file", &wrong], &mounted.lower);
        both(1, &["--password-file", good, "--pim", "3"], &mounted.lower);
        both(1, &["--password-file", good, "--partition", "2"], &mounted.lower);
        mounted.isolated(&[]);
        place.run(["mount", ISOLATED, "--password-file", good, &mounted.lower, &other]).fails(9, &["in use"]);
        // The keys stay as long as it is mounted, as those of eCryptfs do.
        place.run(["lock", &mounted.dir]).fails(5, &["encrypted folder", "Unmount"]);
        let bytes = Random::new(3).bytes(300_000);
        fs::write(mounted.at("big"), &bytes).expect("written");
        mounted.unmount();
        // A damaged block is an error of input and output for its readers, and the other blocks are read.
        let file = &stored(Path::new(&mounted.lower))[0];
        let mut sealed = fs::read(file).expect("read");
        let middle = sealed.len() / 2;
        sealed[middle] ^= 1;
        fs::write(file, sealed).expect("written");
        let read = || {
            let file = File::open(mounted.at("big")).expect("it opens");
            let mut all = vec![0; bytes.len()];
            let mut first = vec![0; 4096];
            file.read_exact_at(&mut first, 0).expect("an intact block");
            assert!(first == bytes[..4096]);
            file.read_exact_at(&mut all, 0).expect_err("a damaged block").raw_os_error()
        };
        mounted.mount(&[]).succeeds();
        let one = read();
        mounted.unmount();
        mounted.isolated(&[]);
        assert_eq!((read(), one), (Some(5), Some(5)), "EIO");
        mounted.unmount();
        let config = if kind.0 == "gocryptfs" { "gocryptfs.conf" } else { "masterkey.cryptomator" };
        let config = Path::new(&mounted.lower).join(config);
        fs::write(&config, "{}").expect("written");
        both(4, &["--password-file", good, "--format", kind.0], &mounted.lower);
        fs::remove_file(&config).expect("removed");
        symlink("/dev/null", &config).expect("a link");
        both(4, &["--password-file", good, "--format", kind.0], &mounted.lower);
    }
    // No key process holds the keys of a plain folder that is shown encrypted.
    let plain = place.dir("plain");
    let reverse = |verb: &[&str], rest: &[&str]| {
        place.run([verb, &["--reverse", "--password-file", &place.folder.password, &plain], rest].concat())
    };
    reverse(&["create", "--format", "gocryptfs"], &[]).succeeds();
    reverse(&["mount", ISOLATED], &[&place.dir("view")]).fails(5, &["--isolate-keys", "plain folder"]);
    place.nothing_is_left();
}

#[test]
fn a_sealed_folder_whose_key_process_or_server_is_killed_is_one_that_a_crash_has_left() {
    let Some(place) = MountSpace::root() else { return };
    for kind in [KINDS[0], KINDS[3]] {
        let mounted = made(&place, kind);
        for victim in [1, 0, 1] {
            let processes = mounted.isolated(&[]);
            killed_while_written(&mounted.dir, processes, victim);
            if victim == 1 {
                wait_until("it is taken down", || !place.mounted(&mounted.dir));
            }
            // The next mount cleans up after the last one.
            mounted.mount(&[]).succeeds();
            // A write that the server had begun may have been cut short inside a block.
            is_as_a_crash_left_it(&mounted.dir, victim == 0);
            tools::run(Command::new("sh").args(["-c", &format!("rm {}/*", mounted.dir)]));
            mounted.unmount();
            mounted.verified();
        }
    }
    place.nothing_is_left();
}

/// The keys of a folder of gocryptfs (2.3, internal/cryptocore). A reported skip without the program that shows its master key.
fn of_gocryptfs(mounted: &Mounted<'_>) -> Option<Vec<Needle>> {
    let passphrase = File::open(&mounted.place.folder.password).expect("a file");
    let mut command = Command::new(tools::program("gocryptfs-xray")?);
    let shown = tools::run(
        command.arg("-dumpmasterkey").arg(Path::new(&mounted.lower).join("gocryptfs.conf")).stdin(passphrase),
    );
    let digits = String::from_utf8(shown.stdout).expect("text").trim().to_owned();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    let master: Vec<u8> = (0..64).step_by(2).map(byte).collect();
    let derived = |info: &str| {
        let mut derived = [0; 32];
        SHA256.hkdf(&master, &[], info.as_bytes(), &mut derived);
        derived
    };
    let mut needles = key("the key of contents", &derived("AES-GCM file content encryption"));
    needles.extend(key("the name key", &derived("EME filename encryption")));
    needles.push(("the master key".to_owned(), master));
    Some(needles)
}

/// The keys of a vault of Cryptomator, and of its largest file (cryptolib 2.2, v2/FileHeaderCryptorImpl.java).
fn of_cryptomator(mounted: &Mounted<'_>) -> Vec<Needle> {
    let bytes = fs::read(Path::new(&mounted.lower).join("masterkey.cryptomator")).expect("read");
    let file: Value = serde_json::from_slice(&bytes).expect("JSON");
    let field = |name: &str| STANDARD.decode(file[name].as_str().expect("text")).expect("Base64");
    let n = file["scryptCostParam"].as_u64().expect("a number");
    let mut kek = Secret::zeroed(32);
    ScryptParams { n, r: 8, p: 1 }
        .derive(PASSWORD.as_bytes(), &field("scryptSalt"), u64::MAX, &|| true, &mut kek)
        .expect("derived");
    let unwrapped = |name: &str| key_wrap::unwrap(&kek, &field(name), Acceleration::On).expect("the right password");
    let (enc, mac) = (unwrapped("primaryMasterKey"), unwrapped("hmacMasterKey"));
    let header = fs::read(&stored(Path::new(&mounted.lower))[0]).expect("read");
    let mut payload = header[12..52].to_vec();
    assert!(aead::gcm(&enc, 12, Acceleration::On).open(&header[..12], &[], &mut payload, &header[52..68]));
    let mut needles = key("the key of contents", &payload[8..]);
    needles.extend(key("the name key", &mac));
    needles.extend(key("the master key", &enc));
    needles
}

#[test]
fn who_serves_a_sealed_folder_has_no_password_and_no_key() {
    let Some(place) = MountSpace::root() else { return };
    for kind in [KINDS[0], KINDS[3]] {
        let mounted = made(&place, kind);
        mounted.mount(&[]).succeeds();
        let bytes = Random::new(8).bytes(300_000);
        fs::write(mounted.at("file"), &bytes).expect("written");
        symlink("file", mounted.at("link")).expect("a link");
        mounted.unmount();
        let keys = if kind.0 == "gocryptfs" { of_gocryptfs(&mounted) } else { Some(of_cryptomator(&mounted)) };
        let Some(mut needles) = keys else { continue };
        needles.push(password());
        let ((one, _), (isolated, key_process)) = (mounted.memory(&bytes, &[]), mounted.memory(&bytes, &[ISOLATED]));
        let key_process = key_process.expect("there is one");
        let seen = found(&one, &needles);
        for name in ["of the key of contents", "of the name key"] {
            assert!(seen.iter().any(|seen| seen.ends_with(name)), "the scan sees them where they are: {seen:?}");
        }
        assert!(found(&isolated, &needles).is_empty(), "{kind:?}: {:?}", found(&isolated, &needles));
        // The scan works.
        assert_eq!(found(&isolated, &[("path".to_owned(), mounted.lower.clone().into_bytes())]), ["path"]);
        assert!(found(&key_process.ordinary, &needles).is_empty(), "its keys are where secrets are");
        let locked = found(&key_process.locked, &needles);
        assert!(if key_process.hidden > 0 { locked.is_empty() } else { !locked.is_empty() }, "{locked:?}");
        assert!(found(&key_process.locked, &[password()]).is_empty(), "it forgets the password");
    }
    place.nothing_is_left();
}

//! `--isolate-keys` for an encrypted folder: the same files, the same words, and no key in the process that
//! serves.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::faults::secrets::password;
use crate::serving::key_process::{ISOLATED, ended, is_caged, key_process_of};
use claviger_testkit::ecryptfs::maker;
use claviger_testkit::processes::{Memory, Needle, found};
use claviger_testkit::random::Random;
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;

/// The salts of contents and of names (ecryptfs-utils 111, ecryptfs.h).
const SALTS: [[u8; 8]; 2] = [[0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77], *b"99887766"];

/// A mounted folder.
pub struct Mounted<'a> {
    pub place: &'a MountSpace,
    pub format: &'static str,
    pub lower: String,
    pub dir: String,
}

impl<'a> Mounted<'a> {
    fn new(place: &'a MountSpace) -> Self {
        Self { place, format: "eCryptfs", lower: place.dir("lower"), dir: place.dir("d") }
    }

    /// Mounts the folder, where `link` leads to a file with these bytes, and uses it. What was then in the memory of the process that
    /// serves it, and of its key process if there is one.
    pub fn memory(&self, bytes: &[u8], how: &[&str]) -> (Vec<u8>, Option<Memory>) {
        let pid = self.mount(how).succeeds().json()["pid"].as_u64().expect("a pid") as u32;
        let file = File::options().read(true).write(true).open(self.at("link")).expect("it opens");
        let mut read = Vec::new();
        (&file).read_to_end(&mut read).expect("read");
        assert!(read == bytes);
        file.write_all_at(&bytes[..9000], 0).and_then(|()| file.sync_all()).expect("written");
        fs::write(self.at("new"), &bytes[..100]).expect("made");
        let all = Memory::of(pid);
        let key_process = (!how.is_empty()).then(|| {
            let key_process = key_process_of(pid);
            is_caged(key_process);
            Memory::of(key_process)
        });
        drop(file);
        fs::remove_file(self.at("new")).expect("removed");
        self.unmount();
        ([all.locked, all.ordinary].concat(), key_process)
    }

    pub fn mount(&self, more: &[&str]) -> Done {
        let args = ["mount", "--json", "--format", self.format, "--password-file", &self.place.folder.password];
        self.place.run(args.iter().chain(more).chain(&[&*self.lower, &self.dir]))
    }

    /// The process that serves it, and the one with its keys.
    pub fn isolated(&self, more: &[&str]) -> [u32; 2] {
        let mounted = self.mount(&[&[ISOLATED], more].concat()).succeeds();
        assert!(
            mounted.err.is_empty() || mounted.err.contains("The passphrase could not be checked"),
            "{}",
            mounted.err
        );
        let pid = mounted.json()["pid"].as_u64().expect("a pid") as u32;
        [pid, key_process_of(pid)]
    }

    pub fn unmount(&self) {
        self.place.unmount(&self.dir).succeeds();
    }

    pub fn at(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }

    /// Verifies it, with the keys in the same process.
    pub fn verified(&self) {
        let verify = ["verify", "--json", "--format", self.format, "--password-file", &self.place.folder.password];
        let verified = self.place.run(verify.iter().chain(&[&*self.lower])).succeeds().json();
        assert_eq!(verified["damaged"], false, "{verified}");
    }
}

#[test]
fn what_is_mounted_with_keys_elsewhere_is_the_same_and_for_whoever_reads_it_next() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        for (round, how) in [&[][..], &["--no-name-encryption"], &["--xattr-metadata"]].into_iter().enumerate() {
            let at = |name: &str| place.dir(&format!("{name}{round}"));
            let mounted = Mounted { place: &place, format: "eCryptfs", lower: at("lower"), dir: at("d") };
            let plain = at("plain");
            let make = format!(
                "set -e; mkdir -p a/b; echo one >a/one; cp a/one a/b/two; mv a/b/two three; ln -s a/one link; ln a/one same; \
                 truncate -s 5000 three; seq 200000 >numbers; dd if=numbers of=a/part bs=1000 skip=3 count=200 status=none; \
                 printf new | dd of=numbers bs=1 seek=70001 conv=notrunc status=none; for n in $(seq 300); do echo $n >a/b/$n; done; \
                 rm a/b/7; chmod 640 three; mkdir {}; sync",
                "n".repeat(100)
            );
            place.shell(&format!("cd {plain}; {make}")).succeeds();
            let [_, key_process] = mounted.isolated(how);
            place.shell(&format!("cd {}; {make}", mounted.dir)).succeeds();
            let same = || place.shell(&format!("diff -r {plain} {}", mounted.dir)).succeeds();
            same();
            mounted.unmount();
            wait_until("the key process has gone", || ended(key_process));
            mounted.verified();
            // In one process, which changes it, and elsewhere again.
            mounted.mount(how).succeeds();
            same();
            for dir in [&plain, &mounted.dir] {
                place.shell(&format!("cd {dir}; mv numbers a; seq 9999 >>a/numbers; echo more >more; sync")).succeeds();
            }
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
fn what_goes_wrong_with_a_folder_is_told_with_the_same_words_and_codes() {
    let Some(place) = MountSpace::root() else { return };
    let mounted = Mounted::new(&place);
    mounted.mount(&[]).succeeds();
    fs::write(mounted.at("file"), "something").expect("written");
    mounted.unmount();
    let [wrong, none, empty, damaged] = ["wrong", "none", "empty", "damaged"].map(|name| place.folder.str(name));
    fs::write(&wrong, "another password\n").expect("a file");
    [&empty, &damaged].iter().for_each(|dir| fs::create_dir(dir).expect("a folder"));
    let stored = fs::read_dir(&mounted.lower).expect("listed").next().expect("a file").expect("an entry").path();
    let mut bytes = fs::read(stored).expect("read");
    bytes[27] = 0xff;
    fs::write(Path::new(&damaged).join("in clear"), bytes).expect("written");
    let (good, lower) = (&place.folder.password, &mounted.lower);
    for (code, how, lower) in [
        (2, &["--password-file", &wrong][..], lower),
        (2, &["--password-file", good, "--name-password-file", &wrong], lower),
        (4, &["--password-file", good, "--format", "eCryptfs"], &damaged),
        (4, &["--password-file", good, "--wrapped-passphrase", &wrong], lower),
        (3, &["--password-file", good], &empty),
        (1, &["--password-file", good, "--format", "TrueCrypt"], &empty),
        (6, &["--password-file", &none], lower),
        (6, &["--password-file", good], &none),
        (1, &["--password-file", good, "--pim", "3"], lower),
        (1, &["--password-file", good, "--partition", "2"], lower),
        (1, &[], lower),
    ] {
        for json in [&[][..], &["--json"]] {
            let mount =
                |isolated: &[&str]| place.run([&["mount"][..], isolated, how, json, &[lower, &mounted.dir]].concat());
            let (one, isolated) = (mount(&[]), mount(&[ISOLATED]));
            assert_eq!((one.code, isolated.code), (code, code), "{how:?}: {}{}", one.err, isolated.err);
            assert_eq!(one.err, isolated.err, "{how:?}");
            assert!(isolated.out.is_empty() && !place.mounted(&mounted.dir));
        }
    }
    // Nothing shows whether the password is right. The user gets a warning here, too.
    let nothing = |more: &[&str]| {
        let how = ["mount", "--format", "eCryptfs", "--password-file", &wrong];
        let said = place.run(how.iter().chain(more).chain(&[&*empty, &mounted.dir])).succeeds();
        place.unmount(&mounted.dir).succeeds();
        said.err
    };
    let (one, isolated) = (nothing(&[]), nothing(&[ISOLATED]));
    assert!(one.contains("The passphrase could not be checked") && one == isolated, "{one}{isolated}");
    mounted.isolated(&[]);
    let again = place.run(["mount", ISOLATED, "--password-file", good, lower, &place.dir("other")]);
    again.fails(9, &["in use", "is mounted at"]);
    mounted.unmount();
    place.nothing_is_left();
}

/// Makes files in a mounted folder, and makes them longer, until one of its processes is killed: the server or the key process.
pub fn killed_while_written(dir: &str, processes: [u32; 2], victim: usize) {
    let script =
        format!("cd {dir}; n=0; while n=$((n + 1)); seq 100000 >$n.new && mv $n.new $n && seq 3000 >>log; do :; done");
    let mut writer = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).spawn().expect("a shell");
    wait_until("it writes", || Path::new(dir).join("3").exists());
    tools::run(Command::new("kill").args(["-KILL", &processes[victim].to_string()]));
    wait_until("both have ended", || processes.into_iter().all(ended));
    writer.wait().expect("its writes failed");
}

/// Checks the files of [`killed_while_written`] after the next mount. `may_be_cut`: whether the last block of a file that was being
/// written may be incomplete.
pub fn is_as_a_crash_left_it(dir: &str, may_be_cut: bool) {
    let whole: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let mut files = 0;
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        let in_work = path.extension().is_some() || path.ends_with("log");
        files += 1;
        match fs::read_to_string(&path) {
            Ok(text) => {
                let part = if path.ends_with("log") { "1\n2\n3\n" } else { &whole[..text.len().min(whole.len())] };
                assert!(text.starts_with(part) || text.is_empty(), "{}", path.display());
                // A file with its final name was complete before.
                assert!(in_work || text == whole, "{}", path.display());
            }
            Err(e) => assert!(in_work && may_be_cut, "{}: {e}", path.display()),
        }
    }
    assert!(files >= 3);
}

#[test]
fn a_folder_whose_key_process_or_server_is_killed_is_one_that_a_crash_has_left() {
    let Some(place) = MountSpace::root() else { return };
    let mounted = Mounted::new(&place);
    for victim in [1, 0, 1, 0] {
        let processes = mounted.isolated(&[]);
        killed_while_written(&mounted.dir, processes, victim);
        if victim == 1 {
            wait_until("it is taken down", || !place.mounted(&mounted.dir));
        }
        // The next mount cleans up after the last one.
        mounted.mount(&[]).succeeds();
        is_as_a_crash_left_it(&mounted.dir, false);
        tools::run(Command::new("sh").args(["-c", &format!("rm {}/*", mounted.dir)]));
        mounted.unmount();
        mounted.verified();
    }
    place.nothing_is_left();
}

/// A key of AES, and its round keys.
pub fn key(name: &str, key: &[u8]) -> Vec<Needle> {
    let rounds = Aes::new(key).round_keys().to_vec();
    let rounds = rounds.iter().enumerate().map(|(i, round)| (format!("round key {i} of {name}"), round.to_vec()));
    [(name.to_owned(), key.to_vec())].into_iter().chain(rounds).collect()
}

#[test]
fn who_serves_a_folder_has_no_password_and_no_key() {
    let Some(place) = MountSpace::root() else { return };
    let mounted = Mounted::new(&place);
    let mut needles = vec![password()];
    let [of_contents, of_names] = SALTS.map(|salt| maker::stretched(PASSWORD.as_bytes(), salt).0);
    for (name, bytes) in [("the key of keys", &of_contents), ("the name key", &of_names)] {
        needles.extend(key(name, &bytes[..16]));
        let rest = bytes[16..].chunks(16).enumerate();
        needles.extend(rest.map(|(i, piece)| (format!("{name}, piece {i}"), piece.to_vec())));
    }
    mounted.mount(&[]).succeeds();
    let bytes = Random::new(8).bytes(300_000);
    fs::write(mounted.at("file"), &bytes).expect("written");
    symlink("file", mounted.at("link")).expect("a link");
    mounted.unmount();
    // The file's own key, out of its header (Linux 6.1, fs/ecryptfs/keystore.c, `write_tag_3_packet`).
    let mut all = fs::read_dir(&mounted.lower).expect("listed").map(|entry| entry.expect("an entry").path());
    let stored = fs::read(all.find(|path| path.is_file() && !path.is_symlink()).expect("a file")).expect("read");
    let mut own = stored[26 + 2 + 13..][..16].to_vec();
    maker::ecb_decrypt(("aes", 16), &of_contents[..16], &mut own);
    needles.extend(key("the file's key", &own));
    let ((one, _), (isolated, key_process)) = (mounted.memory(&bytes, &[]), mounted.memory(&bytes, &[ISOLATED]));
    let key_process = key_process.expect("there is one");
    let seen = found(&one, &needles);
    for name in ["of the key of keys", "of the name key", "of the file's key"] {
        assert!(seen.iter().any(|seen| seen.ends_with(name)), "the scan sees them where they are: {seen:?}");
    }
    assert!(found(&isolated, &needles).is_empty(), "{:?}", found(&isolated, &needles));
    // The scan works.
    assert_eq!(found(&isolated, &[("path".to_owned(), mounted.lower.clone().into_bytes())]), ["path"]);
    assert!(found(&key_process.ordinary, &needles).is_empty(), "its keys are where secrets are");
    let locked = found(&key_process.locked, &needles);
    assert!(if key_process.hidden > 0 { locked.is_empty() } else { !locked.is_empty() }, "{locked:?}");
    assert!(found(&key_process.locked, &[password()]).is_empty(), "it forgets the password");
}

#[test]
fn a_folder_keeps_its_keys_as_long_as_it_is_mounted() {
    let Some(place) = MountSpace::root() else { return };
    let mounted = Mounted::new(&place);
    let [_, key_process] = mounted.isolated(&[]);
    place.run(["lock", &mounted.dir]).fails(5, &["encrypted folder", "Unmount"]);
    let all = place.run(["lock", "--json", "--all"]).succeeds().json();
    assert!(all["locked"].as_array().is_some_and(Vec::is_empty) && all["open"][0] == *mounted.lower, "{all}");
    place.run(["unlock", &mounted.dir]).fails(1, &["not locked"]);
    assert!(!ended(key_process));
    fs::write(mounted.at("file"), "written").expect("it works as before");
    mounted.unmount();
    place.nothing_is_left();
}

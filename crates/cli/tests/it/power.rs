//! Power loss below a mounted volume: a real kernel writes the log of its disk (dm-log-writes in user-mode
//! Linux), and the disk is looked at as it may be after any request. What a program was told to be on the disk is there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use claviger_testkit::log_writes::Log;
use claviger_testkit::mounts::sparse_file;
use claviger_testkit::random::Random;
use claviger_testkit::{tools, uml};

/// Disks with a log, in a folder.
struct Disk {
    folder: Folder,
    before: Vec<u8>,
    log: Log,
}

/// The beginning of a script: the program, the disk with its log as /dev/mapper/logged, and what is promised from now on.
fn script(folder: &Folder) -> String {
    format!(
        "set -e\ncd {}\nexport CLAVIGER_RUNTIME_DIR=/run/claviger\nmodprobe -a dm-log-writes fuse loop ext4 2>/dev/null || true\n\
         claviger() {{ {} \"$@\"; }}\npromised() {{ dmsetup message logged 0 mark $1; }}\nmkdir /mnt/v\n\
         dmsetup create logged --table \"0 $(blockdev --getsz /dev/ubda) log-writes /dev/ubda /dev/ubdb\"\n",
        folder.path("").display(),
        env!("CARGO_BIN_EXE_claviger"),
    )
}

impl Disk {
    /// Runs the script, in a folder with a `disk`.
    fn new(folder: Folder, script: &str) -> Option<Self> {
        ["dmsetup", "e2fsck", "debugfs", "mke2fs"].iter().try_for_each(|name| tools::program(name).map(drop))?;
        let (disk, log) = (folder.path("disk"), folder.path("log"));
        let before = fs::read(&disk).expect("a disk");
        sparse_file(&log, 512 << 20);
        let done = uml::run(script, &[&disk, &log], 400)?;
        assert_eq!(done.status, 0, "{}", done.output);
        let log = Log::new(fs::read(&log).expect("a log")).expect("a log of the kernel");
        Some(Self { folder, before, log })
    }

    /// Lets power fail after `cut` requests. `disk` is then what is left, and this is what was promised.
    fn fail(&self, cut: usize, random: &mut Random) -> Vec<&str> {
        let mut disk = self.before.clone();
        self.log.replay(&mut disk, cut, random);
        fs::write(self.folder.path("disk"), disk).expect("written");
        self.log.marks().filter(|(at, _)| *at <= cut).map(|(_, mark)| mark).collect()
    }

    /// After how many requests power fails: right after each promise, and anywhere.
    fn cuts(&self, anywhere: usize, random: &mut Random) -> Vec<usize> {
        let first = self.log.marks().next().expect("something was promised").0;
        let anywhere = (0..anywhere).map(|_| first + random.below(self.log.len() - first + 1));
        self.log.marks().map(|(at, _)| at).chain(anywhere.collect::<Vec<_>>()).collect()
    }
}

/// What is in an ext4 whose disk has lost power, as its own programs see it.
fn files_in(image: &Path, out: &Path) {
    let checked = Command::new("e2fsck").args(["-f", "-y"]).arg(image).output().expect("it starts");
    // 1: what a journal leaves to do is done.
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&checked.stdout));
    let again = Command::new("e2fsck").args(["-f", "-n"]).arg(image).output().expect("it starts");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
    let _ = fs::remove_dir_all(out);
    fs::create_dir(out).expect("a folder");
    tools::run(Command::new("debugfs").arg("-R").arg(format!("rdump / {}", out.display())).arg(image));
}

fn bytes_of(number: usize) -> Vec<u8> {
    Random::new(number as u64).bytes(1 + number * 7919 % 50_000)
}

/// A mounted volume on the disk with an ext4 in it, and a program that writes files and syncs them: each is there. How often power failed.
fn below_a_mount(create: &[&str], open: &[&str], files: usize, anywhere: usize) -> Option<usize> {
    let folder = Folder::new();
    let volume = folder.str("disk");
    run([&["create", "--quick", "--size", "12M", "--password-file", &folder.password], create, &[&volume]].concat())
        .succeeds();
    // The file system is made through the volume, before power can fail.
    let image = folder.path("ext4");
    let size = run([&["cat", "--password-file", &folder.password], open, &[&volume]].concat()).succeeds().out.len();
    sparse_file(&image, size as u64);
    tools::run(
        Command::new(tools::program("mke2fs")?).args(["-q", "-t", "ext4", "-E", "lazy_itable_init=0"]).arg(&image),
    );
    let copy = format!("{} '{}' \"$uri\"", tools::program("nbdcopy")?.display(), image.display());
    run([&["serve", "--password-file", &folder.password, "--run", &copy], open, &[&volume]].concat()).succeeds();
    for number in 0..files {
        fs::write(folder.path(&format!("f{number}")), bytes_of(number)).expect("a file");
    }
    let mut script = script(&folder);
    script += &format!(
        "claviger mount --password-file password {} /dev/mapper/logged /mnt/v\n\
         promised mounted\nfor i in $(seq 0 {}); do dd if=f$i of=/mnt/v/f$i bs=64k conv=fsync status=none; promised $i; done\n\
         claviger unmount /mnt/v\ndmsetup remove logged\n",
        open.join(" "),
        files - 1
    );
    let disk = Disk::new(folder, &script)?;
    let (plain, out) = (disk.folder.path("plain"), disk.folder.path("out"));
    let mut random = Random::new(18);
    let cuts = disk.cuts(anywhere, &mut random);
    for &cut in &cuts {
        let promised = disk.fail(cut, &mut random);
        let read = run([&["cat", "--password-file", &disk.folder.password], open, &[&volume]].concat()).succeeds().out;
        fs::write(&plain, read).expect("written");
        files_in(&plain, &out);
        for number in promised.iter().filter_map(|mark| mark.parse().ok()) {
            let left = fs::read(out.join(format!("f{number}"))).unwrap_or_default();
            assert!(
                left == bytes_of(number),
                "{create:?}: power failed after {cut} requests: f{number} was synced and is lost"
            );
        }
    }
    Some(cuts.len())
}

const LUKS2: [&str; 12] = [
    "--format",
    "LUKS2",
    "--kdf",
    "pbkdf2",
    "--iterations",
    "1000",
    "--metadata-size",
    "16K",
    "--keyslots-size",
    "512K",
    "--offset",
    "1M",
];
const TAGS: [&str; 2] = ["--integrity", "hmac-sha256"];

#[test]
fn what_was_synced_survives_a_power_cut() {
    below_a_mount(&[&LUKS2[..], &TAGS].concat(), &[], 4, 4);
}

#[test]
#[ignore = "takes minutes: make torture"]
fn torture_power_loss() {
    let truecrypt = ["--truecrypt", "--hash", "SHA-512"];
    let kinds: [(&[&str], &[&str]); 3] = [
        (&LUKS2, &[]),
        (&[&LUKS2[..], &TAGS].concat(), &[]),
        (&["--format", "TrueCrypt", "--hash", "SHA-512"], &truecrypt),
    ];
    let cuts: usize = kinds.into_iter().filter_map(|(create, open)| below_a_mount(create, open, 40, 160)).sum();
    println!("torture_power_loss: power failed {cuts} times below a mount, all that was synced was there");
}

//! Power loss below a mounted volume, and below the file system that volumes lie on: a real kernel writes the log of its disk
//! (dm-log-writes in user-mode Linux), and the disk is examined as it may be after any request. Data that a flush reported as
//! written are there, and data being changed are old or new.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use crate::faults::injected::{SCENARIOS, Scenario, Stage};
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

    /// Lets power fail after `cut` requests. `disk` then has the state left, and the result is what had to be durable.
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

/// Extracts the files of an ext4 whose disk has lost power, with its own programs.
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

/// Replaces the paths of the virtual machine in the states of conversions, so that they name their sources here.
fn move_states(out: &Path) {
    let states = fs::read_dir(out).expect("a folder").map(|entry| entry.expect("an entry").path());
    for state in states.filter(|path| path.to_string_lossy().ends_with(".part.json")) {
        let text = fs::read_to_string(&state).expect("text");
        fs::write(&state, text.replace("/mnt/v/", &format!("{}/", out.display()))).expect("written");
    }
}

fn bytes_of(number: usize) -> Vec<u8> {
    Random::new(number as u64).bytes(1 + number * 7919 % 50_000)
}

/// A mounted volume on the disk with an ext4 in it, and a program that writes and syncs files: each synced file survives. Returns
/// how often power failed.
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

/// Verbs on files of an ext4: each leaves the old or the new, whole, and the new once it has ended; given again it comes to its end. A
/// disk that loses power, at most `cuts` times for each, and one that takes no writes.
fn below_verbs(wanted: impl Fn(&Scenario) -> bool, cuts: usize) {
    let (mut met, mut verbs) = (0, 0);
    for scenario in SCENARIOS.iter().filter(|scenario| wanted(scenario)) {
        let stage = Stage::new(scenario).unwrap_or_else(|e| panic!("{}: {e}", scenario.name));
        let (Some(times), Some(())) = (below_a_verb(&stage, cuts), on_a_disk_that_takes_no_writes(&stage)) else {
            return;
        };
        eprintln!("{}: {times} times", scenario.name);
        (met, verbs) = (met + times, verbs + 1);
    }
    println!("torture_power_loss_below_verbs: power failed {met} times below {verbs} verbs, nothing was lost");
}

/// A disk with what the verb begins with.
fn disk_of(stage: &Stage) -> Option<Folder> {
    let folder = Folder::new();
    let disk = folder.path("disk");
    sparse_file(&disk, 24 << 20);
    let ext4 = ["-q", "-t", "ext4", "-E", "lazy_itable_init=0", "-d"];
    tools::run(Command::new(tools::program("mke2fs")?).args(ext4).args([stage.folder.path(), &disk]));
    Some(folder)
}

fn below_a_verb(stage: &Stage, most: usize) -> Option<usize> {
    let folder = disk_of(stage)?;
    let verb = stage.scenario.verb;
    let script = script(&folder)
        + &format!(
            "mount -t ext4 /dev/mapper/logged /mnt/v\ncd /mnt/v\nexport HOME=/run\npromised begins\nclaviger {verb}\n\
             promised ended\ncd /\numount /mnt/v\ndmsetup remove logged\n"
        );
    let disk = Disk::new(folder, &script)?;
    let begins = disk.log.marks().next().expect("it begins").0;
    let mut random = Random::new(18);
    let mut cuts: Vec<usize> = (begins..=disk.log.len()).collect();
    while cuts.len() > most {
        cuts.remove(random.below(cuts.len()));
    }
    for &cut in &cuts {
        let ended = disk.fail(cut, &mut random).contains(&"ended");
        let out = disk.folder.path("out");
        files_in(&disk.folder.path("disk"), &out);
        move_states(&out);
        let as_promised = match ended {
            true => stage.is_new(&out),
            false => stage.is_whole(&out).and_then(|()| stage.ends_when_given_again(&out)),
        };
        as_promised.unwrap_or_else(|e| {
            let (name, of) = (stage.scenario.name, disk.log.len());
            panic!("{name}: power failed after {cut} of {of} requests, it had ended: {ended}: {e}")
        });
    }
    Some(cuts.len())
}

/// The cache of the file system takes them (dm-flakey below it).
fn on_a_disk_that_takes_no_writes(stage: &Stage) -> Option<()> {
    let folder = disk_of(stage)?;
    let (name, verb) = (stage.scenario.name, stage.scenario.verb);
    // The script's name for the log is the disk's name here.
    let (disk, spare, out) = (folder.path("disk"), folder.path("spare"), folder.path("out"));
    sparse_file(&spare, 64 << 20);
    let script = script(&folder)
        + &format!(
            "modprobe dm-flakey 2>/dev/null || true\nsize=$(blockdev --getsz /dev/ubda)\n\
             now() {{ dmsetup suspend --nolockfs flaky; dmsetup load flaky --table \"0 $size $*\"; dmsetup resume flaky; }}\n\
             dmsetup create flaky --table \"0 $size linear /dev/mapper/logged 0\"\n\
             mount -t ext4 /dev/mapper/flaky /mnt/v\ncd /mnt/v\nexport HOME=/run\n\
             now flakey /dev/mapper/logged 0 0 1000 1 error_writes\nif claviger {verb}; then exit 99; fi\n\
             now linear /dev/mapper/logged 0\ncd /\numount /mnt/v\ndmsetup remove flaky\ndmsetup remove logged\n"
        );
    let done = uml::run(&script, &[&disk, &spare], 400)?;
    assert_eq!(done.status, 0, "{name}: {}", done.output);
    files_in(&disk, &out);
    move_states(&out);
    let as_promised = stage.is_whole(&out).and_then(|()| stage.ends_when_given_again(&out));
    as_promised.unwrap_or_else(|e| panic!("{name}: on a disk that takes no writes: {e}\n{}", done.output));
    Some(())
}

/// A change where the volume lies, and a new file.
#[test]
fn a_verb_survives_a_power_cut_below_its_file_system() {
    below_verbs(|scenario| scenario.name == "keyslot add", 4);
}

#[test]
#[ignore = "takes most of an hour: make torture"]
fn torture_power_loss_below_verbs() {
    let only = std::env::var("FAULTS").unwrap_or_default();
    let cuts = std::env::var("CUTS").map_or(40, |cuts| cuts.parse().expect("CUTS is a number"));
    below_verbs(|scenario| scenario.name.contains(&only), cuts);
}

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

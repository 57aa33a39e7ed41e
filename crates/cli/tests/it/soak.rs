//! The soak: every way to reach a volume under random operations, side by side, for as long as `SECONDS` says. `make soak`.
//!
//! In rounds of a minute each: mount, exercise, unmount, let the file system's own checker look, mount again, compare.
//! The exercises run in child processes, each this same program with the test [`exerciser`] alone, so that one that hangs
//! can be abandoned. A watchdog ends everything two minutes after the time is up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::common::mounts::MountSpace;
use crate::common::{Done, Served, done, run};
use claviger_serve::nbd::{Client, NbdAddress};
use claviger_testkit::fsx::{self, Disk, FileDisk, Folder, Plan};
use claviger_testkit::mounts::{self, abort_fuse_connection};
use claviger_testkit::tools;

/// A round without its mounts and unmounts. Commands of a [`MountSpace`] end after two minutes.
const ROUND: Duration = Duration::from_secs(60);

/// How long the watchdog waits for an end.
const GRACE: Duration = Duration::from_secs(120);

/// The exit code of what this program, or this machine, cannot do.
const UNSUPPORTED: i32 = 5;

/// A way to reach a volume.
struct Kind {
    name: &'static str,
    /// Who mounts it and works with it.
    place: fn() -> Option<MountSpace>,
    /// Programs without which it is skipped.
    programs: &'static [&'static str],
    /// The format of an encrypted folder, in the place of a container.
    folder: Option<&'static str>,
    /// Size of the container.
    size: &'static str,
    /// Makes the file system; nothing for the plaintext as one file.
    mkfs: &'static [&'static str],
    /// Checks the file system in the file whose path follows, and changes nothing.
    fsck: &'static [&'static str],
    /// Bytes that files may take; 0 where the plaintext is exercised as one file.
    room: u64,
    /// Whether there is a hidden volume, protected, in the second half.
    hidden: bool,
    /// Whether FUSE goes over io_uring, where the kernel can and this is root.
    uring: bool,
}

const IMAGE: Kind = Kind {
    name: "image file over /dev/fuse",
    place: MountSpace::root,
    programs: &[],
    folder: None,
    size: "24M",
    mkfs: &[],
    fsck: &[],
    room: 0,
    hidden: false,
    uring: false,
};

static KINDS: &[Kind] = &[
    IMAGE,
    Kind { name: "image file over io_uring", uring: true, ..IMAGE },
    Kind { name: "image file of a user", place: MountSpace::user, ..IMAGE },
    // The file system says how much is free, when the hidden volume is made, and is overwritten then.
    Kind {
        name: "outer volume with protection",
        programs: &["mkfs.vfat"],
        mkfs: &["mkfs.vfat"],
        hidden: true,
        ..IMAGE
    },
    Kind {
        name: "ext4 of the kernel",
        programs: &["mke2fs", "e2fsck"],
        size: "64M",
        mkfs: &["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0"],
        fsck: &["e2fsck", "-fn"],
        room: 24 << 20,
        ..IMAGE
    },
    Kind {
        name: "ext4 by fuse2fs",
        place: MountSpace::user,
        programs: &["mke2fs", "e2fsck", "fuse2fs"],
        size: "48M",
        // Without a journal, which fuse2fs of e2fsprogs 1.47.0 does not write.
        mkfs: &["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=0"],
        fsck: &["e2fsck", "-fn"],
        room: 16 << 20,
        ..IMAGE
    },
    Kind {
        name: "NTFS by ntfs-3g",
        programs: &["mkntfs", "ntfsfix", "ntfs-3g"],
        size: "48M",
        mkfs: &["mkntfs", "-F", "-Q", "-q"],
        fsck: &["ntfsfix", "--no-action"],
        room: 16 << 20,
        ..IMAGE
    },
    Kind {
        name: "FAT by this program",
        place: MountSpace::user,
        programs: &["mkfs.vfat", "fsck.vfat"],
        size: "40M",
        mkfs: &["mkfs.vfat", "-F", "16"],
        fsck: &["fsck.vfat", "-n"],
        room: 16 << 20,
        ..IMAGE
    },
    Kind {
        name: "exFAT by this program",
        place: MountSpace::user,
        programs: &["mkfs.exfat", "fsck.exfat"],
        size: "40M",
        mkfs: &["mkfs.exfat"],
        fsck: &["fsck.exfat", "-n"],
        room: 16 << 20,
        ..IMAGE
    },
    Kind { name: "folder of eCryptfs", folder: Some("eCryptfs"), room: 16 << 20, ..IMAGE },
    Kind {
        name: "folder of eCryptfs of a user",
        place: MountSpace::user,
        folder: Some("eCryptfs"),
        room: 16 << 20,
        ..IMAGE
    },
];

impl Kind {
    /// Creates the volume or the folder to mount.
    fn made(&self, place: &MountSpace) -> String {
        match self.folder {
            Some(_) => place.dir("lower"),
            None => place.volume("volume.tc", self.size, self.mkfs),
        }
    }

    fn mount(&self, place: &MountSpace, volume: &str, dir: &str, more: &[&str]) -> Done {
        let Some(format) = self.folder else { return place.mount(volume, dir, more) };
        let args = ["mount", "--json", "--format", format, "--password-file", &place.folder.password, volume, dir];
        place.run(args.iter().chain(more))
    }
}

#[test]
#[ignore = "takes as long as SECONDS says: make soak"]
fn soak() {
    let seconds = env::var("SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let seed = fsx::seed();
    eprintln!("soak: {seconds} s with FSX_SEED={seed}");
    let watchdog = Watchdog::until(end + GRACE);
    let only = env::var("SOAK_ONLY").unwrap_or_default();
    let failures: Vec<String> = thread::scope(|scope| {
        let mut all = Vec::new();
        for kind in KINDS.iter().filter(|k| k.name.contains(&only)) {
            all.push((kind.name, scope.spawn(|| mounted(kind, end, seed))));
        }
        if "NBD".contains(&only) {
            all.push(("NBD", scope.spawn(|| nbd(end, seed))));
        }
        let joined = all.into_iter().filter_map(|(name, thread)| {
            let failed = thread.join().err()?;
            let text = failed.downcast_ref::<String>().map(String::as_str);
            Some(format!("{name}: {}", text.or(failed.downcast_ref::<&str>().copied()).unwrap_or("it failed")))
        });
        joined.collect()
    });
    watchdog.dismiss();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Folders below which this process mounts.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Gives the header a new salt, and keeps its password.
const HEADER_CHANGE: [&str; 4] = ["change", "--truecrypt", "--hash", "SHA-512"];

fn same_password(file: &str) -> [&str; 4] {
    ["--password-file", file, "--new-password-file", file]
}

/// Changes the header of a volume a few times while it is used.
fn while_changing<T>(change: impl Fn() + Sync, used: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        scope.spawn(|| (0..10).for_each(|_| change()));
        used()
    })
}

/// Rounds of one kind.
fn mounted(kind: &Kind, end: Instant, seed: u64) {
    for program in kind.programs {
        if tools::program(program).is_none() {
            return;
        }
    }
    let Some(place) = (kind.place)().map(MountSpace::without_a_deadline) else { return };
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(place.folder.path(""));
    let volume = kind.made(&place);
    let hidden = kind.hidden.then(|| Hidden::create(&place, &volume));
    let hidden = hidden.as_ref();
    let dir = place.dir("d");
    let model = place.dir("model");
    let none = ["--filesystem", "none"];
    let inside: Vec<&str> = none.into_iter().filter(|_| kind.room == 0).collect();
    let protected: Vec<&str> = inside.iter().copied().chain(hidden.iter().flat_map(|h| h.protection())).collect();
    let work = Work { kind, dir: &dir, model: &model, window: hidden.map_or(u64::MAX, |h| h.begins) };
    let first = kind.mount(&place, &volume, &dir, &protected);
    if first.code == UNSUPPORTED {
        return tools::skip::<()>(&format!("{}: {}", kind.name, first.err)).unwrap_or_default();
    }
    first.succeeds();
    place.unmount(&dir).succeeds();
    let (mut rounds, mut operations) = (0, 0);
    while rounds == 0 || Instant::now() < end {
        let time = ROUND.min(end.saturating_duration_since(Instant::now())).max(Duration::from_secs(1));
        with_transport(kind.uring, || kind.mount(&place, &volume, &dir, &protected).succeeds());
        let changed =
            || place.run(HEADER_CHANGE.iter().chain(&same_password(&place.folder.password)).chain([&&*volume]));
        let changed = || _ = (kind.folder.is_none()).then(|| changed().succeeds());
        let round = while_changing(changed, || work.done_by_a_child(&place, time, seed + rounds).succeeds());
        operations += number(&round.text(), "operations=");
        place.unmount(&dir).succeeds();
        checked(&place, kind, &volume, &dir);
        rounds += 1;
    }
    // What the last round wrote is there when it is mounted again.
    kind.mount(&place, &volume, &dir, &[&inside[..], &["--read-only"]].concat()).succeeds();
    work.done_by_a_child(&place, Duration::ZERO, seed).succeeds();
    place.unmount(&dir).succeeds();
    if let Some(hidden) = hidden {
        hidden.still_protected(&place, &volume, &dir, &protected);
    }
    eprintln!("soak: {}: {operations} operations in {rounds} rounds", kind.name);
}

/// A hidden volume, and its contents when it was created.
struct Hidden {
    password: String,
    /// Where it begins in the outer volume, in bytes.
    begins: u64,
    contents: Vec<u8>,
}

impl Hidden {
    fn create(place: &MountSpace, volume: &str) -> Self {
        let password = place.folder.str("hidden password");
        fs::write(&password, "the hidden one").expect("written");
        let hints = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file"];
        let create = ["create", "--hidden", "--quick", "--force", "--yes", "--size", "10M", "--hidden-hash", "SHA-512"];
        let inner = ["--hidden-password-file", &password, volume];
        place.run(create.iter().chain(&hints).chain([&&*place.folder.password]).chain(&inner)).succeeds();
        let info = |password: &str| {
            let words = [&["info", "--json"], &hints[..], &[password, volume]].concat();
            place.run(words).succeeds().json()["data_offset"].as_u64().expect("a number")
        };
        let begins = info(&password) - info(&place.folder.password);
        let contents = Self::read(place, volume, &password);
        Self { password, begins, contents }
    }

    fn read(place: &MountSpace, volume: &str, password: &str) -> Vec<u8> {
        let words = ["cat", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", password, volume];
        place.run(words).succeeds().out
    }

    fn protection(&self) -> [&str; 5] {
        ["--protect-hidden", "--hidden-hash", "SHA-512", "--hidden-password-file", &self.password]
    }

    /// A write to it is refused and nothing of it has changed.
    fn still_protected(&self, place: &MountSpace, volume: &str, dir: &str, protected: &[&str]) {
        place.mount(volume, dir, protected).succeeds();
        let write = |at: u64| {
            let file = fs::OpenOptions::new().write(true).open(format!("{dir}/volume"))?;
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 512], at)
        };
        write(self.begins - 512).expect("what is in front of it can be written");
        assert!(write(self.begins).is_err() && write(0).is_err(), "the hidden volume is not protected");
        place.unmount(dir);
        assert!(Self::read(place, volume, &self.password) == self.contents, "the hidden volume was changed");
    }
}

/// What a child exercises.
struct Work<'a> {
    kind: &'a Kind,
    dir: &'a str,
    model: &'a str,
    /// Bytes of the plaintext that it may touch.
    window: u64,
}

impl Work<'_> {
    /// Runs the exerciser as the user of the place; for no time, it only compares.
    fn done_by_a_child(&self, place: &MountSpace, time: Duration, seed: u64) -> Done {
        let mut command = place.command(env::current_exe().expect("this program has a path"));
        command.args(["--ignored", "--exact", "soak::exerciser", "--nocapture"]);
        command.env("SOAK_DIR", self.dir).env("SOAK_MODEL", self.model).env("SOAK_WINDOW", self.window.to_string());
        command.env("SOAK_SECONDS", time.as_secs_f64().to_string()).env("SOAK_ROOM", self.kind.room.to_string());
        done(command.env("FSX_SEED", seed.to_string()).output().expect("this program starts"))
    }
}

/// The child: continues where the model says that the last one stopped, and leaves the model for the next.
#[test]
#[ignore = "the soak runs it"]
fn exerciser() {
    let Some(dir) = env::var_os("SOAK_DIR").map(PathBuf::from) else { return };
    let text = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is set"));
    let number = |name: &str| text(name).parse::<f64>().unwrap_or_else(|_| panic!("{name} is a number"));
    let (model, room) = (PathBuf::from(text("SOAK_MODEL")), number("SOAK_ROOM") as u64);
    let plan = Plan { longest: 1 << 20, ..Plan::lasting(fsx::seed(), Duration::from_secs_f64(number("SOAK_SECONDS"))) };
    let only_compare = number("SOAK_SECONDS") == 0.0;
    let operations = if room > 0 {
        let mut folder = Folder::load(&dir, &model.join("files"), room).expect("the model can be read");
        folder.compare().unwrap_or_else(|what| panic!("after mounting: {what}"));
        if only_compare {
            return;
        }
        let done = fsx::exercise_folder(&mut folder, &plan).unwrap_or_else(|f| panic!("{f}"));
        folder.save(&model.join("files")).expect("the model can be written");
        done
    } else {
        let (path, model) = (dir.join("volume"), model.join("volume"));
        let mut now = fs::read(&path).expect("the volume can be read");
        now.truncate(text("SOAK_WINDOW").parse().unwrap_or(usize::MAX));
        let mut contents = fs::read(&model).unwrap_or_else(|_| now.clone());
        assert!(contents == now, "after mounting: not what was written");
        if only_compare {
            return;
        }
        let mut disk = Window { disk: FileDisk::fixed(&path).expect("the volume opens"), len: now.len() as u64 };
        let done = fsx::exercise(&mut disk, &mut contents, &plan).unwrap_or_else(|f| panic!("{f}"));
        fs::write(&model, contents).expect("the model can be written");
        done
    };
    println!("operations={operations}");
}

/// The beginning of a disk.
struct Window {
    disk: FileDisk,
    len: u64,
}

impl Disk for Window {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.disk.reopen()
    }
}

/// Lets the file system's own checker look at the plaintext.
fn checked(place: &MountSpace, kind: &Kind, volume: &str, dir: &str) {
    let [program, args @ ..] = kind.fsck else { return };
    place.mount(volume, dir, &["--filesystem", "none", "--read-only"]).succeeds();
    let output = place.command(program).args(args).arg(format!("{dir}/volume")).output().expect("it starts");
    let Done { code, out, err } = done(output);
    place.unmount(dir).succeeds();
    assert_eq!(code, 0, "{program}: {}{err}", String::from_utf8_lossy(&out));
}

/// Mounts while the kernel offers FUSE over io_uring, or does not: it is a setting of the whole machine, and counts when a
/// mount begins.
fn with_transport<T>(uring: bool, mount: impl FnOnce() -> T) -> T {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone: MutexGuard<'_, ()> = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let setting = Path::new("/sys/module/fuse/parameters/enable_uring");
    let before = fs::read_to_string(setting).unwrap_or_default();
    // A kernel that has no such setting has no such transport.
    let _ = fs::write(setting, if uring { "Y" } else { "N" });
    let mounted = mount();
    let _ = fs::write(setting, before);
    mounted
}

/// What `claviger serve` serves, through a client of ours.
struct NbdDisk {
    address: NbdAddress,
    client: Client,
}

impl NbdDisk {
    fn connect(address: NbdAddress) -> io::Result<Self> {
        let client = Client::connect(&address, "")?;
        Ok(Self { address, client })
    }
}

impl Disk for NbdDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.client.len())
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.client.read_at(offset, out)
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.client.write_at(offset, data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.client.flush()
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.client = Client::connect(&self.address, "")?;
        Ok(())
    }
}

/// Rounds of serving over NBD: the server ends after each and is started again.
fn nbd(end: Instant, seed: u64) {
    let folder = crate::common::Folder::new();
    let volume = folder.volume("volume.tc", "16M", &[]);
    let serve = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &folder.password, &volume];
    let mut model: Option<Vec<u8>> = None;
    let (mut rounds, mut operations) = (0, 0);
    while rounds == 0 || Instant::now() < end {
        let served = Served::start(serve);
        let mut disk = NbdDisk::connect(NbdAddress::Unix(served.socket.clone())).expect("it answers");
        let mut now = vec![0; served.size as usize];
        now.chunks_mut(1 << 20).enumerate().for_each(|(i, part)| {
            disk.read((i << 20) as u64, part).expect("it can be read");
        });
        let contents = model.get_or_insert_with(|| now.clone());
        assert!(*contents == now, "after starting again: not what was written");
        let time = ROUND.min(end.saturating_duration_since(Instant::now()));
        let plan = Plan { longest: 1 << 20, ..Plan::lasting(seed + rounds, time) };
        let changed =
            || run(HEADER_CHANGE.iter().chain(&same_password(&folder.password)).chain([&&*volume])).succeeds();
        let exercised = while_changing(|| drop(changed()), || fsx::exercise(&mut disk, contents, &plan));
        operations += exercised.unwrap_or_else(|f| panic!("{f}"));
        drop(disk);
        served.stop().succeeds();
        rounds += 1;
    }
    eprintln!("soak: NBD: {operations} operations in {rounds} rounds");
}

fn number(text: &str, name: &str) -> u64 {
    let after = text.split(name).nth(1).unwrap_or_default();
    after.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Ends this process when the time is up, and before that everything that could keep it: a thread or a child that waits
/// for a FUSE server that has stopped answering cannot be killed otherwise.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn until(end: Instant) -> Self {
        let dismissed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&dismissed);
        thread::spawn(move || {
            while Instant::now() < end {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(200));
            }
            eprintln!("soak: it did not end in time, and is ended now");
            let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let mounts: Vec<_> = folders.iter().flat_map(|folder| mounts::mounted_below(folder)).collect();
            for mount in mounts.iter().filter(|m| m.kind.starts_with("fuse")) {
                eprintln!("soak: aborting {} on {}", mount.kind, mount.dir.display());
                let _ = abort_fuse_connection(mount.device.1);
            }
            for mount in mounts.iter().rev() {
                let _ = mounts::bounded(10, "umount").arg("-l").arg(&mount.dir).status();
            }
            std::process::abort();
        });
        Self(dismissed)
    }

    fn dismiss(self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! Endurance: the same operations many times, misbehaving clients, processes that are stopped for a while, a clock that jumps, and
//! databases whose processes are killed. The tests do a little of each; `make torture` continues for `ENDURE` seconds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::serving::key_process::{ISOLATED, key_process_of};
use claviger_engine::store::Access;
use claviger_engine::{Credential, Opening, Secret, Store, Unlock};
use claviger_serve::fuse;
use claviger_serve::nbd::{Client, Export, NbdAddress, Server, ServerOptions};
use claviger_testkit::bitlocker::maker::{Kind, Protector, Volume};
use claviger_testkit::random::Random;
use claviger_testkit::{mounts, tools, uml};
use rustix::process::{Pid, Signal, kill_process};

/// When something has been done often enough.
#[derive(Clone, Copy)]
enum Lasts {
    Rounds(u64),
    Until(Instant),
}

impl Lasts {
    fn seconds(seconds: u64) -> Self {
        Self::Until(Instant::now() + Duration::from_secs(seconds))
    }

    fn goes_on(self, round: u64) -> bool {
        match self {
            Self::Rounds(rounds) => round < rounds,
            Self::Until(end) => Instant::now() < end,
        }
    }
}

#[test]
#[ignore = "takes as long as ENDURE says: make torture"]
fn torture_endurance() {
    let seconds = env::var("ENDURE").map_or(600, |seconds| seconds.parse().expect("a number of seconds"));
    let only = env::var("ENDURE_ONLY").unwrap_or_default();
    let part = |name: &str| name.contains(&only);
    if part("opening") {
        let rounds = opened_and_closed(Lasts::seconds(seconds / 4));
        println!("torture_endurance: {} volumes opened and closed {rounds} times each", OPENED.len());
    }
    if part("clients") {
        clients_without_manners(Lasts::seconds(seconds / 4));
    }
    if part("standing still") {
        standing_still(Lasts::seconds(seconds / 4), Duration::from_secs((seconds / 40).clamp(1, 120)));
    }
    for (number, database) in DATABASES.iter().enumerate() {
        if part(database.name) {
            databases(database, Lasts::seconds(seconds / 16), number as u64);
        }
    }
}

// Opening and closing.

/// Volumes that open quickly.
const OPENED: [&str; 3] = ["LUKS2", "TrueCrypt", "BitLocker"];

/// The resources of a process that is idle.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    children: usize,
    locked: u64,
    mounts: usize,
}

impl Held {
    fn below(folder: &Path) -> Self {
        let count = |folder: &str| fs::read_dir(folder).expect("procfs").count();
        let children = fs::read_dir("/proc/self/task").expect("procfs").flatten();
        let children = children.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            children: children.map(|list| list.split_whitespace().count()).sum(),
            locked: memory("self", "VmLck:"),
            mounts: mounts::mounted_below(folder).len(),
        }
    }
}

/// Bytes, by a name in /proc/PID/status.
fn memory(pid: impl std::fmt::Display, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Opens, serves and closes in a process of its own. How often.
fn opened_and_closed(lasts: Lasts) -> u64 {
    let folder = Folder::new();
    folder.luks2("LUKS2");
    folder.volume("TrueCrypt", "1M", &[]);
    let made = Volume { protectors: vec![Protector::StartupKey], ..Volume::new(Kind::Windows8) }.make();
    let written = made.write();
    fs::copy(&written.image, folder.path("BitLocker")).expect("copied");
    let key = fs::read_dir(written.folder()).expect("a folder").map(|entry| entry.expect("a file").path());
    let key = key.into_iter().find(|path| path.extension().is_some_and(|end| end == "BEK")).expect("a startup key");
    fs::copy(key, folder.path("key.BEK")).expect("copied");
    fs::create_dir(folder.path("d")).expect("a folder");
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command
        .args(["--ignored", "--exact", "faults::endurance::opener", "--nocapture"])
        .env("ENDURE_FOLDER", folder.path(""));
    match lasts {
        Lasts::Rounds(rounds) => command.env("ENDURE_ROUNDS", rounds.to_string()),
        Lasts::Until(end) => command.env("ENDURE", end.saturating_duration_since(Instant::now()).as_secs().to_string()),
    };
    // Memory that the allocator keeps for threads and buffers varies by many MiB, and would hide a leak. So there is one arena, and
    // buffers are returned to the system at once.
    command.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", "65536");
    let done = done(command.env("RUST_TEST_THREADS", "1").output().expect("this program starts")).succeeds();
    let text = done.text();
    eprintln!("{}", text.lines().filter(|line| line.contains("rounds")).collect::<Vec<_>>().join("\n"));
    let rounds = text.split("in the end, after ").nth(1).and_then(|rest| rest.split(' ').next());
    rounds.and_then(|number| number.parse().ok()).expect("a number of rounds")
}

#[test]
fn what_is_opened_and_closed_again_and_again_leaves_nothing() {
    assert_eq!(opened_and_closed(Lasts::Rounds(240)), 240);
}

/// The child.
#[test]
#[ignore = "endurance runs it"]
fn opener() {
    let Some(folder) = env::var_os("ENDURE_FOLDER").map(std::path::PathBuf::from) else { return };
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let lasts = number("ENDURE_ROUNDS").map_or_else(|| Lasts::seconds(number("ENDURE").unwrap_or(10)), Lasts::Rounds);
    // By then, everything that is kept for reuse exists: pools of threads, tables, buffers of the allocator.
    let first = match lasts {
        Lasts::Rounds(rounds) => rounds / 3,
        Lasts::Until(_) => 1000,
    };
    let mut before = None;
    let mut round = 0;
    while lasts.goes_on(round) || before.is_none() {
        for name in OPENED {
            opened_once(&folder, name, round);
        }
        round += 1;
        if round == first {
            before = Some((at_rest(&folder, None), memory("self", "RssAnon:")));
        }
    }
    let (held, resident) = before.expect("there was a first part");
    let (now, at_end) = (at_rest(&folder, Some(&held)), memory("self", "RssAnon:"));
    println!("{resident} bytes after {first} rounds, {held:?}\n{at_end} bytes in the end, after {round} rounds");
    assert_eq!(now, held);
    // The allocator's reserves vary by less than this. A leak of 24 bytes in each of 10^5 rounds would be more.
    assert!(at_end <= resident + (2 << 20), "{resident} bytes after {first} rounds, {at_end} after {round}");
}

/// The resources held once idle threads have ended, or as soon as they are as `expected`.
fn at_rest(folder: &Path, expected: Option<&Held>) -> Held {
    let begun = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(if expected.is_some() { 100 } else { 3000 }));
        let now = Held::below(folder);
        if expected.is_none_or(|expected| *expected == now) || begun.elapsed() > Duration::from_secs(10) {
            return now;
        }
    }
}

/// Opens a volume, writes and reads; by turns directly, through a server and through a mount.
fn opened_once(folder: &Path, name: &str, round: u64) {
    let text = || vec![Credential::Passphrase(Secret::copy_from(PASSWORD.as_bytes()))];
    let key = || vec![Credential::Keyfile(Secret::copy_from(&fs::read(folder.join("key.BEK")).expect("a key")))];
    let credentials = if name == "BitLocker" { key() } else { text() };
    let unlock = Unlock { hash: (name == "TrueCrypt").then_some("SHA-512"), ..Unlock::with(&credentials) };
    let locked = Opening::path(folder.join(name)).access(Access::ReadWrite).format(name).find().expect("a header");
    if round % 8 == 7 {
        // Half of what ends early ends so.
        let wrong = [Credential::Passphrase(Secret::copy_from(b"another"))];
        assert!(locked.unlock(&Unlock { credentials: &wrong, ..unlock }).is_err());
        return;
    }
    let volume = locked.unlock(&unlock).and_then(|open| open.bytes()).expect("it opens").volume;
    let store: Arc<dyn Store> = Arc::new(volume);
    // Behind what BitLocker keeps to itself.
    let at = store.len() - 8192;
    let wrote = Random::new(round).bytes(4096);
    let mut read = vec![0; 4096];
    match round % 3 {
        0 => {
            store.write_clobbering(at, &mut wrote.clone()).expect("written");
            store.read_at(at, &mut read).expect("read");
        }
        1 => {
            let address = NbdAddress::Unix(folder.join("s"));
            let server =
                Server::bind(&address, vec![Export::new("", store)], ServerOptions::default()).expect("it listens");
            let handle = server.handle();
            let runs = thread::spawn(move || server.run());
            let mut client = Client::connect(&address, "").expect("it answers");
            client.write_at(at, &wrote).expect("written");
            client.read_at(at, &mut read).expect("read");
            client.disconnect().expect("it ends");
            handle.stop();
            runs.join().expect("no panic").expect("it stops");
        }
        _ if Path::new("/dev/fuse").exists() && tools::root().is_some() => {
            let dir = folder.join("d");
            let mounted = fuse::mount(fuse::Image::new(store), &dir, fuse::FuseOptions::default()).expect("it mounts");
            let handle = mounted.handle();
            let runs = thread::spawn(move || mounted.run());
            let file = File::options().read(true).write(true).open(dir.join("volume")).expect("a file");
            file.write_all_at(&wrote, at).expect("written");
            file.read_exact_at(&mut read, at).expect("read");
            drop(file);
            handle.stop();
            runs.join().expect("no panic").expect("it stops");
        }
        _ => return,
    }
    assert!(read == wrote, "{name}, {round}");
}

// Clients without manners.

const REGION: usize = 256 << 10;
const CLIENTS: usize = 32;

/// Half of 64 connections write and read what is theirs; the others do what they like.
fn clients_without_manners(lasts: Lasts) {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "12M", &[]);
    let hints = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &folder.password];
    let served = Served::start(hints.iter().copied().chain(["--socket", &folder.str("s"), &volume]));
    let address = NbdAddress::Unix(served.socket.clone());
    let before = memory(served.pid, "RssAnon:");
    let (over, all_there) = (AtomicBool::new(false), Barrier::new(2 * CLIENTS));
    let [good, bad] = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut models = thread::scope(|scope| {
        let honest: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = Client::connect(&address, "").expect("it answers");
                let (all_there, good) = (&all_there, &good);
                scope.spawn(move || {
                    all_there.wait();
                    let (mut random, mut model) = (Random::new(number as u64), vec![0; REGION]);
                    client.write_at((number * REGION) as u64, &model).expect("written");
                    let mut round = 0;
                    while lasts.goes_on(round) {
                        round += 1;
                        good.fetch_add(1, Ordering::Relaxed);
                        let len = 1 + random.below(32 << 10);
                        let at = random.below(REGION - len);
                        let place = (number * REGION + at) as u64;
                        if random.below(2) == 0 {
                            model[at..at + len].copy_from_slice(&random.bytes(len));
                            client.write_at(place, &model[at..at + len]).expect("written");
                        } else {
                            let mut read = vec![0; len];
                            client.read_at(place, &mut read).expect("read");
                            assert!(read == model[at..at + len], "client {number} at {at}, {len}");
                        }
                    }
                    client.flush().expect("durable");
                    model
                })
            })
            .collect();
        for number in 0..CLIENTS {
            let (all_there, over, bad, socket) = (&all_there, &over, &bad, &served.socket);
            scope.spawn(move || {
                all_there.wait();
                let mut random = Random::new(1000 + number as u64);
                while !over.load(Ordering::Relaxed) {
                    // Earlier connections may count among the 64 for a moment.
                    let _ = misbehaves(socket, &mut random, matches!(lasts, Lasts::Until(_)));
                    bad.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let models: Vec<_> = honest.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Relaxed);
        models.into_iter().map(|model| model.expect("its data are right")).collect::<Vec<_>>()
    });
    let most = memory(served.pid, "VmHWM:");
    // Their buffers go, and their threads; the allocator keeps a part of what each had, however many there were one after the other.
    let limit = before + (64 << 20);
    wait_until("memory is given back", || memory(served.pid, "RssAnon:") <= limit);
    let after = memory(served.pid, "RssAnon:");
    println!(
        "torture_endurance: {} requests of {CLIENTS} clients were right beside {} connections without manners; \
         {before} bytes before, at most {most}, {after} after",
        good.into_inner(),
        bad.into_inner()
    );
    assert!(most < MOST, "{most} bytes");
    let mut client = Client::connect(&address, "").expect("it is well");
    let mut read = vec![0; REGION];
    for (number, model) in models.iter_mut().enumerate() {
        client.read_at((number * REGION) as u64, &mut read).expect("read");
        assert!(read == *model, "client {number}");
    }
    client.disconnect().expect("it ends");
    served.stop().succeeds();
    let stored = run(["cat"].iter().chain(&hints).chain([&&*volume])).succeeds().out;
    assert!(stored[..CLIENTS * REGION] == models.concat());
}

/// A server takes at most 4 MiB for each of 64 connections, no matter what they request.
const MOST: u64 = 256 << 20;

/// One connection that breaks off somewhere. It writes to nobody's place.
fn misbehaves(socket: &Path, random: &mut Random, patiently: bool) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    let option = |option: u32, len: u32, data: &[u8]| {
        [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
    };
    let request = |flags: u16, command: u16, offset: u64, len: u32| {
        let magic = 0x2560_9513u32.to_be_bytes();
        [
            &magic[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &7u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ]
        .concat()
    };
    let noise = |random: &mut Random| {
        let len = 1 + random.below(60_000);
        random.bytes(len)
    };
    let kind = random.below(10);
    if kind == 0 {
        return stream.write_all(&noise(random));
    }
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&[0, 0, 0, 3])?;
    if kind == 1 {
        // An option that is never complete.
        stream.write_all(&option(7, u32::MAX, b"x"))?;
        thread::sleep(Duration::from_millis(if patiently { 12_000 } else { 100 }));
        return Ok(());
    }
    if kind == 2 {
        return (0..2000).try_for_each(|_| stream.write_all(&option(3, 0, b"")));
    }
    stream.write_all(&option(1, 0, b""))?;
    let mut export = [0; 10];
    stream.read_exact(&mut export)?;
    let end = u64::from_be_bytes(*export.first_chunk().expect("8 bytes"));
    // Behind everybody's place.
    let free = (CLIENTS * REGION) as u64;
    match kind {
        3 => stream.write_all(&noise(random)),
        4 => stream.write_all(&request(0, 0, 0, 4096)[..random.below(28)]),
        // A large write, of which a part comes.
        5 => stream.write_all(&[request(0, 1, free, 2 << 20), noise(random)].concat()),
        6 => stream.write_all(&[request(0, 1, free, u32::MAX), noise(random)].concat()),
        // Many requests, and no reply is read.
        7 => {
            let many: Vec<u8> = (0..64).flat_map(|_| request(0, 0, 0, free as u32)).collect();
            stream.write_all(&many)?;
            thread::sleep(Duration::from_millis(if patiently { random.below(3000) as u64 } else { 50 }));
            Ok(())
        }
        // Out of range: each is answered.
        8 => {
            for (command, at, len) in
                [(0, end, 1), (0, u64::MAX, u32::MAX), (4, end - 1, 2), (6, u64::MAX, 4096), (3, 1, 1), (77, 0, 0)]
            {
                stream.write_all(&request(0, command, at, len))?;
                stream.read_exact(&mut [0; 16])?;
            }
            Ok(())
        }
        _ => {
            stream.write_all(&request(0, 0, random.below(free as usize - 70_000) as u64, 70_000))?;
            stream.read_exact(&mut [0; 30_000])
        }
    }
}

#[test]
fn half_of_64_clients_without_manners_harm_nobody() {
    clients_without_manners(Lasts::Rounds(25));
}

// Standing still.

/// A mount, and a server whose keys are elsewhere, of which processes stand still for a while, again and again, with writers at work.
fn standing_still(lasts: Lasts, pause: Duration) {
    let Some(place) = MountSpace::root().map(MountSpace::without_a_deadline) else { return };
    let [mounted, isolated] = ["v.tc", "w.tc"].map(|name| place.volume(name, "4M", &[]));
    let dir = place.dir("d");
    let report = place.mount(&mounted, &dir, &["--filesystem", "none"]).succeeds().json();
    let hints = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &place.folder.password];
    let served = Served::start(hints.iter().copied().chain([ISOLATED, "--socket", &place.folder.str("s"), &isolated]));
    let address = NbdAddress::Unix(served.socket.clone());
    let all = [report["pid"].as_u64().expect("a pid") as u32, served.pid, key_process_of(served.pid)];
    let (over, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut stops, mut models) = (0, Vec::new());
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let file = (number < 2)
                    .then(|| File::options().read(true).write(true).open(format!("{dir}/volume")).expect("a file"));
                let mut client = Client::connect(&address, "").expect("it answers");
                let (over, writes) = (&over, &writes);
                scope.spawn(move || {
                    let (mut random, mut model) = (Random::new(number), vec![0; REGION]);
                    let from = number % 2 * REGION as u64;
                    let mut begun = false;
                    while !over.load(Ordering::Relaxed) || !begun {
                        let len = if begun { 1 + random.below(16 << 10) } else { REGION };
                        let at = random.below(REGION - len + 1);
                        model[at..at + len].copy_from_slice(&random.bytes(len));
                        let mut read = vec![0; len];
                        let part = &model[at..at + len];
                        match &file {
                            Some(file) => {
                                file.write_all_at(part, from + at as u64)
                                    .and_then(|()| file.sync_data())
                                    .expect("written");
                                file.read_exact_at(&mut read, from + at as u64).expect("read");
                            }
                            None => {
                                client.write_at(from + at as u64, part).and_then(|()| client.flush()).expect("written");
                                client.read_at(from + at as u64, &mut read).expect("read");
                            }
                        }
                        assert!(read == part, "writer {number}");
                        begun = true;
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        // Also if this ends early.
        let ends = Ends(&over);
        while lasts.goes_on(stops) {
            // Each of them, two of them, all.
            let who: Vec<u32> = all
                .into_iter()
                .enumerate()
                .filter(|(i, _)| (stops % 7 + 1) >> i & 1 == 1)
                .map(|(_, pid)| pid)
                .collect();
            let stopped = Stopped::new(&who);
            thread::sleep(pause);
            drop(stopped);
            let before = writes.load(Ordering::Relaxed);
            wait_until("they go on", || writes.load(Ordering::Relaxed) > before + 8);
            stops += 1;
        }
        drop(ends);
        models.extend(writers.into_iter().map(|writer| writer.join().expect("its data are right")));
    });
    place.unmount(&dir).succeeds();
    served.stop().succeeds();
    for (volume, models) in [(&mounted, &models[..2]), (&isolated, &models[2..])] {
        let stored = place.run(["cat"].iter().chain(&hints).chain([&&**volume])).succeeds().out;
        assert!(stored[..2 * REGION] == models.concat(), "{volume}");
    }
    println!(
        "torture_endurance: stood still {stops} times for {pause:?}, {} writes, nothing lost",
        writes.into_inner()
    );
}

/// Processes that stand still until this is dropped. By system calls: a program that is started would close files of the mount first, and
/// wait for who stands still.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn new(pids: &[u32]) -> Self {
        let stopped = Self(pids.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect());
        stopped.0.iter().for_each(|pid| kill_process(*pid, Signal::STOP).expect("it runs"));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| kill_process(*pid, Signal::CONT).expect("it is there"));
    }
}

/// Says that it is over, when this is dropped.
pub(super) struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn who_stands_still_for_a_while_goes_on() {
    standing_still(Lasts::Rounds(7), Duration::from_millis(150));
}

// A clock that jumps.

/// Waiting uses a clock that nobody sets: a mount neither ends nor hangs when the time of day jumps by years, and an idle one still
/// ends. Files get their times from the time of day, and a remembered size is never used for a file that has changed.
#[test]
fn a_clock_that_jumps_changes_nothing_but_times() {
    let folder = Folder::new();
    folder.volume("v.tc", "2M", &[]);
    let claviger = env!("CARGO_BIN_EXE_claviger");
    let script = format!(
        "set -e\ncd {}\nexport CLAVIGER_RUNTIME_DIR=/run/claviger HOME=/run\nmodprobe fuse 2>/dev/null || true\n\
         mkdir /mnt/v /mnt/idle /mnt/lower /mnt/plain\ncp v.tc /mnt/w.tc\n\
         tc() {{ {claviger} mount --truecrypt --hash SHA-512 --password-file password --filesystem none \"$@\"; }}\n\
         tc --idle 1h v.tc /mnt/v >/dev/null\n{claviger} create --format eCryptfs --password-file password /mnt/lower >/dev/null 2>&1\n\
         {claviger} mount --format eCryptfs --password-file password /mnt/lower /mnt/plain >/dev/null 2>&1\n\
         printf 12345 >/mnt/plain/f\nsleep 3\ntest $(stat -c %s /mnt/plain/f) = 5\n\
         for year in 2068 1971 2050; do\n\
         date -s $year-01-01 >/dev/null\necho $year | dd of=/mnt/v/volume conv=notrunc,fsync status=none\n\
         printf x$year >>/mnt/plain/f\ntest $(stat -c %s /mnt/plain/f) = $(wc -c </mnt/plain/f)\n\
         stat -c %y /mnt/plain/f | grep -q ^$year\n{claviger} list | grep -q /mnt/v\nsleep 0.3\ndone\n\
         tc --idle 2s /mnt/w.tc /mnt/idle >/dev/null\ndate -s 1990-01-01 >/dev/null\n\
         for i in $(seq 100); do mountpoint -q /mnt/idle || break; sleep 0.2; done\n! mountpoint -q /mnt/idle\n\
         mountpoint -q /mnt/v\nhead -c 4 /mnt/v/volume\ncat /mnt/plain/f\n\
         {claviger} unmount --all >/dev/null\n{claviger} cat --format eCryptfs --password-file password /mnt/lower /f\necho done\n",
        folder.path("").display(),
    );
    let Some(done) = uml::run(&script, &[], 120) else { return };
    let file = "12345x2068x1971x2050";
    assert_eq!((done.status, done.output.as_str()), (0, &*format!("2050{file}{file}done\n")));
}

// Databases.

/// Where a database lies.
pub(super) struct Database {
    pub name: &'static str,
    pub place: fn() -> Option<MountSpace>,
    /// How the volume is made; nothing for an encrypted folder.
    pub create: &'static [&'static str],
    pub mkfs: &'static [&'static str],
    pub open: &'static [&'static str],
}

const LUKS2: [&str; 10] =
    ["--format", "LUKS2", "--size", "28M", "--kdf", "pbkdf2", "--iterations", "1000", "--offset", "16M"];
const TRUECRYPT: [&str; 4] = ["--format", "TrueCrypt", "--hash", "SHA-512"];
const EXT4: &[&str] = &["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0"];

static DATABASES: &[Database] = &[
    Database { name: "ext4 in LUKS2", place: MountSpace::root, create: &LUKS2, mkfs: EXT4, open: &[] },
    Database {
        name: "ext4 in LUKS2 with tags",
        place: MountSpace::root,
        create: &[
            "--format",
            "LUKS2",
            "--size",
            "36M",
            "--kdf",
            "pbkdf2",
            "--iterations",
            "1000",
            "--offset",
            "16M",
            "--integrity",
            "hmac-sha256",
        ],
        mkfs: EXT4,
        open: &[],
    },
    Database {
        name: "FAT by this program in TrueCrypt",
        place: MountSpace::user,
        create: &["--format", "TrueCrypt", "--hash", "SHA-512", "--size", "24M"],
        mkfs: &["mkfs.vfat", "-F", "16"],
        open: &TRUECRYPT,
    },
    Database {
        name: "folder of eCryptfs",
        place: MountSpace::root,
        create: &[],
        mkfs: &[],
        open: &["--format", "eCryptfs"],
    },
];

/// Commits rows, and says each once it is committed. SQLite promises that it is there then, whatever happens: with FULL, a journal
/// that was deleted may come back, and take the last commit back (sqlite.org, PRAGMA synchronous).
const COMMITS: &str = r#"
import hashlib, os, sqlite3, sys
print(os.getpid(), flush=True)
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(f"PRAGMA journal_mode={sys.argv[2]}")
db.execute("PRAGMA synchronous=EXTRA")
db.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body BLOB)")
id = db.execute("SELECT coalesce(max(id), 0) FROM rows").fetchone()[0]
while True:
    id += 1
    db.execute("BEGIN")
    db.execute("INSERT INTO rows VALUES (?, ?)", (id, hashlib.sha512(b"%d" % id).digest() * (1 + id % 40)))
    db.execute("DELETE FROM rows WHERE id = ?", (id - 500,))
    db.execute("COMMIT")
    print(id, flush=True)
"#;

/// Checks that the database is consistent, complete, and has all rows up to the given number.
const LOOKS: &str = r#"
import hashlib, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
sound = db.execute("PRAGMA integrity_check").fetchall()
assert sound == [("ok",)], sound
rows = db.execute("SELECT id, body FROM rows ORDER BY id").fetchall()
for id, body in rows:
    assert body == hashlib.sha512(b"%d" % id).digest() * (1 + id % 40), id
ids, said = [id for id, _ in rows], int(sys.argv[2])
last = ids[-1] if ids else 0
assert last >= said, (last, said)
assert ids == list(range(max(1, last - 499), last + 1)), ids
print(last)
"#;

/// A process commits, and it or the server of its folder is killed. Everything reported as committed survives.
fn databases(database: &Database, lasts: Lasts, seed: u64) {
    let Some(place) = (database.place)().map(MountSpace::without_a_deadline) else { return };
    let volume = database.made(&place);
    let dir = place.dir("d");
    let mount = || {
        let args = ["mount", "--json", "--password-file", &place.folder.password, &volume, &dir];
        let report = place.run(args.iter().chain(database.open)).succeeds().json();
        report["pid"].as_u64().expect("a pid").to_string()
    };
    let Some(mut clients) = SqliteClients::new(database.name, &place, &dir, seed) else { return };
    let mut server = mount();
    let mut killed = 0;
    while lasts.goes_on(clients.kills) {
        let all = clients.kills % 3 == 2;
        let (journal, failed) = clients.commit_until_killed(|| {
            if all {
                kill(&place, &server);
            }
        });
        assert!(all || failed.is_empty(), "{}: {failed}", database.name);
        if all {
            killed += 1;
            wait_until("it is dead", || place.list().first().is_none_or(|one| one["state"] == "dead"));
            place.unmount(&dir).succeeds();
            server = mount();
        }
        clients.nothing_is_lost(journal);
    }
    place.unmount(&dir).succeeds();
    println!(
        "torture_endurance: {}: {} commits, killed {} times, {killed} of them with who serves; none was lost",
        database.name, clients.commits, clients.kills
    );
}

fn kill(place: &MountSpace, pid: &str) {
    drop(place.root_command("kill").args(["-KILL", pid]).output());
}

/// SQLite's journal modes. Each has a database of its own.
pub(super) const JOURNALS: [&str; 4] = ["DELETE", "TRUNCATE", "PERSIST", "WAL"];

/// Processes that commit to SQLite databases in a folder, one after the other, until each is killed.
pub(super) struct SqliteClients<'a> {
    name: &'a str,
    place: &'a MountSpace,
    dir: &'a str,
    random: Random,
    /// The last row of each database that was reported as committed.
    said: BTreeMap<&'static str, u64>,
    pub kills: u64,
    pub commits: usize,
}

impl<'a> SqliteClients<'a> {
    /// Debian's, which every user may run.
    const PYTHON: &'static str = "/usr/bin/python3";

    /// None without Python, which is a reported skip.
    pub fn new(name: &'a str, place: &'a MountSpace, dir: &'a str, seed: u64) -> Option<Self> {
        if !Path::new(Self::PYTHON).exists() {
            return tools::skip("there is no /usr/bin/python3");
        }
        let (random, said) = (Random::new(seed), BTreeMap::new());
        Some(Self { name, place, dir, random, said, kills: 0, commits: 0 })
    }

    /// Commits, and kills the process soon, after `kill_others`. Returns the journal mode of the database, and the error by which the
    /// process ended before, if any.
    pub fn commit_until_killed(&mut self, kill_others: impl FnOnce()) -> (&'static str, String) {
        let journal = JOURNALS[self.kills as usize % JOURNALS.len()];
        let mut command = self.place.command(Self::PYTHON);
        let mut child = command
            .args(["-c", COMMITS, &self.file(journal), journal])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let pid = lines.next().expect("its number");
        let count = 3 + self.random.below(40);
        let mut seen: Vec<u64> = lines.by_ref().take(count).filter_map(|line| line.parse().ok()).collect();
        thread::sleep(Duration::from_micros(self.random.below(20_000) as u64));
        kill_others();
        kill(self.place, &pid);
        seen.extend(lines.filter_map(|line| line.parse::<u64>().ok()));
        let mut err = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        let _ = child.wait();
        assert!(!seen.is_empty(), "{}, {journal}: nothing was committed: {err}", self.name);
        self.kills += 1;
        self.commits += seen.len();
        let last = self.said.entry(journal).or_default();
        *last = seen.last().copied().unwrap_or_default().max(*last);
        (journal, err)
    }

    /// Checks the database of this journal mode, if there is one.
    pub fn nothing_is_lost(&mut self, journal: &'static str) {
        let file = self.file(journal);
        let Some(last) = self.said.get_mut(journal) else { return };
        let looks = ["-c", LOOKS, &file, &last.to_string()];
        let looked = done(self.place.command(Self::PYTHON).args(looks).output().expect("it starts"));
        assert_eq!(looked.code, 0, "{}, after {} kills, {journal}: {}", self.name, self.kills, looked.err);
        *last = looked.text().trim().parse().expect("a number");
    }

    fn file(&self, journal: &str) -> String {
        format!("{}/database-{journal}", self.dir)
    }
}

impl Database {
    pub fn made(&self, place: &MountSpace) -> String {
        if self.create.is_empty() {
            return place.dir("lower");
        }
        let (path, dir) = (place.folder.str("volume"), place.dir("made"));
        let password = ["--password-file", &place.folder.password];
        place.run(["create", "--quick"].iter().chain(&password).chain([&&*path]).chain(self.create)).succeeds();
        let none = ["mount", "--filesystem", "none", &path, &dir];
        place.run(none.iter().chain(&password).chain(self.open)).succeeds();
        let made = place.command(self.mkfs[0]).args(&self.mkfs[1..]).arg(format!("{dir}/volume")).output();
        place.unmount(&dir).succeeds();
        done(made.expect("it starts")).succeeds();
        path
    }
}

#[test]
fn what_a_database_has_committed_is_there_whoever_is_killed() {
    for (number, database) in DATABASES.iter().enumerate() {
        databases(database, Lasts::Rounds(4), number as u64);
    }
}

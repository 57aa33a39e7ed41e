//! A mounted volume is changed again and again while fio writes and verifies and SQLite commits. Each verb is also killed at random
//! moments, and tried again. A little of that here; `make torture` continues for as long as `ENDURE` says, in seconds.
//! `CLAVIGER_SEED` repeats a run, as far as moments can be repeated.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use claviger_testkit::random::Random;
use claviger_testkit::tools;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::endurance::{Database, Ends, JOURNALS, SqliteClients};
use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;

/// Root may grow XFS even in a container, unlike ext4. Its makers do not support one as small as this.
const XFS: Database = Database {
    name: "XFS in LUKS2",
    place: MountSpace::root,
    create: &["--format", "LUKS2", "--size", "128M", "--kdf", "pbkdf2", "--iterations", "1000"],
    mkfs: &["mkfs.xfs", "-q", "--unsupported", "-s", "size=4096"],
    open: &[],
};
const GROWTH: u64 = 1 << 20;

struct Verb {
    name: &'static str,
    run: fn(&mut InUse<'_>),
    /// How often: in the short test, and in an hour.
    times: [usize; 2],
    /// The longest time before it is killed, in milliseconds.
    killed_after: usize,
}

const VERBS: [Verb; 3] = [
    Verb { name: "passphrase changes", run: |on| on.change(), times: [10, 1000], killed_after: 100 },
    Verb { name: "growths", run: |on| on.grow(), times: [3, 100], killed_after: 50 },
    Verb { name: "reencryptions", run: |on| on.reencrypt(), times: [1, 30], killed_after: 4000 },
];

#[test]
fn nothing_is_lost_while_a_mounted_volume_is_changed_and_changes_are_killed() {
    if let Some(place) = (XFS.place)().map(MountSpace::without_a_deadline) {
        changed_in_use(&place, VERBS.map(|verb| verb.times[0]), Duration::ZERO);
    }
}

#[test]
#[ignore = "takes as long as ENDURE says: make torture"]
fn torture_in_use() {
    let seconds: usize = env::var("ENDURE").map_or(600, |seconds| seconds.parse().expect("a number of seconds"));
    if let Some(place) = (XFS.place)().map(MountSpace::without_a_deadline) {
        let times = VERBS.map(|verb| (verb.times[1] * seconds).div_ceil(3600));
        changed_in_use(&place, times, Duration::from_secs(seconds as u64));
    }
}

/// Carries out the verbs, evenly over `time`.
fn changed_in_use(place: &MountSpace, times: [usize; 3], time: Duration) {
    if ["fio", "mkfs.xfs", "xfs_growfs"].iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let seed = env::var("CLAVIGER_SEED").map_or(1, |text| text.parse().expect("CLAVIGER_SEED is a number"));
    // Shown if the test fails.
    println!("CLAVIGER_SEED={seed}");
    let (dir, made, reencrypting) = (place.dir("d"), XFS.made(place), AtomicBool::new(false));
    let passphrase = place.folder.password.clone();
    let (random, done, killed) = (Random::new(seed), [0; 3], [0; 3]);
    let mut volume =
        InUse { place, volume: &made, passphrase, size: 0, random, reencrypting: &reencrypting, verb: 0, done, killed };
    volume.mount(&dir);
    volume.size = volume.listed("size");
    let Some(mut sqlite) = SqliteClients::new(XFS.name, place, &dir, !seed) else { return };
    let [untouched, rewritten] = ["untouched", "rewritten"].map(|name| place.dir(&format!("d/{name}")));
    fio(place, &untouched, 0, "--verify_only=0");
    let space = || rustix::fs::statvfs(&*dir).map(|s| s.f_blocks * s.f_frsize).expect("mounted");
    // XFS does not count its log.
    let (log, begun, over) = (volume.size - space(), Instant::now(), AtomicBool::new(false));
    let (mut rounds, mut usual, mut meanwhile) = (0, Latencies::default(), Latencies::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            until_over(&over, || {
                let before = reencrypting.load(Ordering::Relaxed);
                rounds += 1;
                let report = fio(place, &rewritten, rounds, "--verify_only=0");
                let of = if before || reencrypting.load(Ordering::Relaxed) { &mut meanwhile } else { &mut usual };
                of.add(&report);
            });
        });
        scope.spawn(|| {
            until_over(&over, || {
                let (journal, failed) = sqlite.commit_until_killed(|| ());
                assert_eq!(failed, "");
                sqlite.nothing_is_lost(journal);
            });
        });
        let mut verbs: Vec<usize> = (0..3).flat_map(|verb| vec![verb; times[verb]]).collect();
        (1..verbs.len()).for_each(|last| verbs.swap(last, volume.random.below(last + 1)));
        let pause = time / verbs.len() as u32;
        let mut due = (0..).map(|number| begun + pause * number).zip(&verbs);
        until_over(&over, || match due.next() {
            Some((due, verb)) => {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                volume.verb = *verb;
                (VERBS[*verb].run)(&mut volume);
                volume.done[*verb] += 1;
            }
            None => over.store(true, Ordering::Relaxed),
        });
    });
    let took = begun.elapsed().as_secs();
    assert_eq!([volume.size - space(), volume.listed("failed_writes")], [log, 0]);

    let verify =
        || [(&untouched, 0), (&rewritten, rounds)].map(|(dir, round)| fio(place, dir, round, "--verify_only=1"));
    // An orderly unmount comes first: after two growths and a crash, XFS may not mount again, on any disk (Linux 6.18).
    for killed in [false, true] {
        verify();
        if killed {
            sqlite.commit_until_killed(|| place.kill_servers());
            wait_until("it is dead", || place.list().iter().all(|one| one["state"] == "dead"));
        }
        place.unmount(&dir).succeeds();
        volume.mount(&dir);
        JOURNALS.into_iter().for_each(|journal| sqlite.nothing_is_lost(journal));
    }
    verify();
    place.unmount(&dir).succeeds();
    place.nothing_is_left();
    volume.is_sound();
    let verbs = VERBS.iter().zip(volume.done.iter().zip(volume.killed));
    let verbs = verbs.map(|(verb, (done, killed))| format!("{done} {} (killed {killed} times)", verb.name));
    println!(
        "torture_in_use: {took} s, {}, {} commits to SQLite (killed {} times), {rounds} rounds of fio; nothing was lost. Requests \
         of 4 KiB: {}; while reencrypting: {}",
        verbs.collect::<Vec<_>>().join(", "),
        sqlite.commits,
        sqlite.kills,
        usual.figures(0.999, 20.0),
        // A zone of 16 MiB is about a tenth of the volume, so one in 1,000 requests to it is about one in 10,000 of all.
        meanwhile.figures(0.9999, 100.0),
    );
}

/// Repeats it until somebody ends, also by a panic.
fn until_over(over: &AtomicBool, mut work: impl FnMut()) {
    let _ends = Ends(over);
    while !over.load(Ordering::Relaxed) {
        work();
    }
}

/// Writes files in random order, by two jobs for each size of a request, and verifies them. Small blocks name their round and place,
/// which reveals older blocks and those of other places. Large blocks are random, with a checksum.
fn fio(place: &MountSpace, dir: &str, round: u64, verify_only: &str) -> Value {
    let (directory, pattern) = (format!("--directory={dir}"), format!("--verify_pattern=0x{round:016x}%o"));
    let verify = ["--verify_fatal=1", "--verify_state_save=0", verify_only];
    let how = ["--ioengine=psync", "--direct=1", "--rw=randwrite", "--numjobs=2", "--group_reporting", "--end_fsync=1"];
    let small = ["--name=small", "--bs=4k", "--size=4m", "--verify=pattern", &pattern];
    let large = ["--name=large", "--new_group", "--bs=1m", "--size=8m", "--verify=crc32c"];
    let mut fio = place.command("fio");
    fio.args(["--output-format=json+", "--name=global", &directory]).args(verify).args(how).args(small).args(large);
    let done = done(fio.output().expect("it starts"));
    assert_eq!(done.code, 0, "fio, round {round}: {}\n{}", done.err, done.text());
    done.json()
}

/// How many requests took so many nanoseconds.
#[derive(Default)]
struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    /// Adds those of 4 KiB.
    fn add(&mut self, report: &Value) {
        let jobs = report["jobs"].as_array().expect("a list").iter().filter(|job| job["jobname"] == "small");
        for bins in jobs.flat_map(|job| ["read", "write"].map(|does| &job[does]["clat_ns"]["bins"])) {
            for (time, count) in bins.as_object().into_iter().flatten() {
                *self.0.entry(time.parse().expect("a number")).or_default() += count.as_u64().expect("a number");
            }
        }
    }

    /// The numbers, and whether `share` ended within `target` milliseconds.
    fn figures(&self, share: f64, target: f64) -> String {
        let all: u64 = self.0.values().sum();
        let within = |share: f64| {
            let mut more = (share * all as f64) as u64;
            let last = self.0.iter().find(|(_, count)| {
                more = more.saturating_sub(**count);
                more == 0
            });
            last.map_or(f64::NAN, |(time, _)| *time as f64 / 1e6)
        };
        let [most, nearly_all, slowest] = [0.999, 0.9999, 1.0].map(within);
        format!(
            "{all}, 99.9 % within {most:.1} ms, 99.99 % within {nearly_all:.1} ms, the slowest {slowest:.0} ms (target {}: \
             {} % within {target} ms)",
            if within(share) < target { "met" } else { "missed" },
            share * 100.0,
        )
    }
}

/// A mounted volume, and what verbs have done to it.
struct InUse<'a> {
    place: &'a MountSpace,
    volume: &'a str,
    /// The file with the present one.
    passphrase: String,
    size: u64,
    random: Random,
    reencrypting: &'a AtomicBool,
    /// The present verb.
    verb: usize,
    done: [u64; 3],
    killed: [u64; 3],
}

impl InUse<'_> {
    fn mount(&self, dir: &str) {
        self.place.run(["mount", "--password-file", &self.passphrase, self.volume, dir]).succeeds();
    }

    /// A number from `claviger list`.
    fn listed(&self, name: &str) -> u64 {
        self.place.list()[0][name].as_u64().expect("it is mounted")
    }

    fn change(&mut self) {
        let new = self.place.folder.str(&format!("passphrase-{}", self.done[self.verb]));
        fs::write(&new, format!("passphrase {}", self.random.number())).expect("a password file");
        let old = std::mem::replace(&mut self.passphrase, new.clone());
        let change = ["keyslot", "change", "--password-file", &old, "--new-password-file", &new, self.volume];
        loop {
            let done = self.attempt(&[&change[..], &["--kdf", "pbkdf2", "--iterations", "1000"]].concat());
            match [&old, &new].map(|passphrase| self.opens(passphrase)) {
                [2, 0] => return,
                [0, 2] if !done => {}
                codes => panic!("exit codes for old and new passphrase: {codes:?}; the change was done: {done}"),
            }
        }
    }

    fn opens(&self, passphrase: &str) -> i32 {
        self.place.run(["keyslot", "test", "--password-file", passphrase, self.volume]).code
    }

    fn grow(&mut self) {
        let before = self.size;
        self.size += GROWTH;
        let size = self.size.to_string();
        while !self.attempt(&["resize", "--yes", "--filesystem", "--size", &size, self.volume]) {
            let listed = self.listed("size");
            assert!([before, self.size].contains(&listed), "{listed}, from {before} to {size}");
        }
        assert_eq!(self.listed("size"), self.size);
    }

    fn reencrypt(&mut self) {
        self.reencrypting.store(true, Ordering::Relaxed);
        let passphrase = self.passphrase.clone();
        let reencrypt = ["reencrypt", "--yes", "--throttle", "24M", "--password-file", &passphrase, self.volume];
        let mut resume: &[&str] = &[];
        while !self.attempt(&[&reencrypt, resume].concat()) {
            let begun = self.place.run(["header", "show", self.volume]).succeeds().text().contains("reencrypt");
            resume = if begun { &["--resume"] } else { &[] };
        }
        self.reencrypting.store(false, Ordering::Relaxed);
    }

    /// Runs a verb. Kills it until that has happened once, then half of the times. Whether it ended by itself.
    fn attempt(&mut self, args: &[&str]) -> bool {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "300", env!("CARGO_BIN_EXE_claviger")]).args(args);
        command.env("CLAVIGER_RUNTIME_DIR", self.place.runtime()).stdin(Stdio::null()).stdout(Stdio::null());
        // A group, to kill it with everything that it has started.
        let child = command.process_group(0).stderr(Stdio::piped()).spawn().expect("it starts");
        let kills = &mut self.killed[self.verb];
        if *kills == 0 || self.random.below(2) == 0 {
            let longest = VERBS[self.verb].killed_after * 1000;
            thread::sleep(Duration::from_micros(self.random.below(longest) as u64));
            // It may have ended.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(killed || status.success(), "{args:?}: {status}: {}", String::from_utf8_lossy(&stderr));
        *kills += u64::from(killed);
        wait_until("the file is back", || self.place.run(["keyslot", "list", self.volume]).code == 0);
        !killed
    }

    /// Unmounted, it is sound, of the last size, and open only to the last passphrase.
    fn is_sound(&self) {
        let with = ["--json", "--password-file", &self.passphrase, self.volume];
        let run = |verb: &str| self.place.run([verb].iter().chain(&with)).succeeds().json();
        run("verify");
        assert_eq!(run("info")["size"], self.size);
        assert_eq!([&self.passphrase, &self.place.folder.password].map(|passphrase| self.opens(passphrase)), [0, 2]);
        if let Some(cryptsetup) = tools::program("cryptsetup") {
            let open = ["open", "--test-passphrase", "--key-file", &self.passphrase, self.volume];
            tools::run(Command::new(cryptsetup).args(open));
        }
    }
}

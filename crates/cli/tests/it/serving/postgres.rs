//! PostgreSQL on a mounted volume, with pgbench at work: its processes are killed, and at times who serves the volume. What was seen as
//! committed is there, and its sums are right.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::common::mounts::{MountSpace, wait_until};
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// PostgreSQL starts for no root.
const AS_NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups --";

/// pgbench's transactions move the same amount in three tables, and write it down in a fourth (its documentation, "What is the
/// “Transaction” Actually Performed in pgbench?").
const SUMS: &str = "select (select sum(abalance) from pgbench_accounts) || ' ' || (select sum(tbalance) from pgbench_tellers) || ' ' || \
    (select sum(bbalance) from pgbench_branches) || ' ' || (select coalesce(sum(delta), 0) from pgbench_history)";
const COUNT: &str = "select count(*) from pgbench_history";

/// Where Debian has the programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("pgbench").exists()).max();
    newest.or_else(|| tools::skip("there is no PostgreSQL: apt install postgresql"))
}

struct Cluster {
    place: MountSpace,
    bin: PathBuf,
    volume: String,
    dir: String,
    server: String,
}

impl Cluster {
    fn new(place: MountSpace, bin: PathBuf) -> Self {
        let (volume, dir) = (place.folder.str("volume"), place.dir("d"));
        let create =
            ["create", "--quick", "--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000", "--size", "500M"];
        let more = ["--filesystem", "ext4", "--password-file", &place.folder.password, &volume];
        place.run(create.iter().chain(&more)).succeeds();
        // Whoever is nobody has to come as far as the folder.
        place.shell(&format!("chmod 711 '{}'", place.folder.path("").display())).succeeds();
        let mut cluster = Self { place, bin, volume, dir, server: String::new() };
        cluster.mount();
        cluster.place.shell(&format!("chown 65534:65534 '{}'", cluster.dir)).succeeds();
        cluster.run("initdb -D \"$data\" --data-checksums -A trust >/dev/null");
        cluster.start();
        cluster.run("pgbench -h \"$data\" -i -q -s 3 postgres 2>&1");
        cluster
    }

    fn mount(&mut self) {
        let report = self.place.run([
            "mount",
            "--json",
            "--password-file",
            &self.place.folder.password,
            &self.volume,
            &self.dir,
        ]);
        self.server = report.succeeds().json()["pid"].to_string();
    }

    /// Runs a command as the user nobody, with $data set, and returns its output.
    fn run(&self, command: &str) -> String {
        let script = format!(
            "export data='{}/data' PATH='{}':$PATH; cd /; {AS_NOBODY} sh -ec '{}'",
            self.dir,
            self.bin.display(),
            command.replace('\'', "'\\''")
        );
        self.place.shell(&script).succeeds().text().trim().to_owned()
    }

    fn start(&self) {
        self.run("pg_ctl -D \"$data\" -w -t 90 -l \"$data/log\" -o \"-k $data -c listen_addresses=\" start >/dev/null");
    }

    fn ask(&self, query: &str) -> String {
        self.run(&format!("psql -h \"$data\" -At postgres -c \"{query}\""))
    }

    /// Ends its processes without a word.
    fn kill(&self) {
        let _ = self.place.root_command("pkill").args(["-KILL", "-U", "65534", "postgres"]).output();
        wait_until("PostgreSQL has ended", || {
            self.place
                .root_command("pgrep")
                .args(["-U", "65534", "postgres"])
                .output()
                .is_ok_and(|done| done.stdout.is_empty())
        });
    }
}

#[test]
#[ignore = "takes as long as ENDURE says, and PostgreSQL: make torture"]
fn torture_postgres() {
    let seconds = env::var("ENDURE").map_or(600, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds / 10);
    let (Some(place), Some(bin)) = (MountSpace::root().map(MountSpace::without_a_deadline), programs()) else { return };
    let (mut cluster, mut random) = (Cluster::new(place, bin), Random::new(7));
    let (mut rounds, mut with_server, mut committed) = (0u32, 0u32, 0u64);
    while Instant::now() < end || rounds < 3 {
        thread::scope(|scope| {
            let at_work =
                scope.spawn(|| cluster.run("pgbench -h \"$data\" -n -c 4 -T 60 postgres >/dev/null 2>&1 || true"));
            thread::sleep(Duration::from_millis(500 + random.below(3000) as u64));
            // Other connections see a commit once it is on the disk.
            committed = cluster.ask(COUNT).parse().expect("a number");
            if rounds % 3 == 2 {
                let _ = cluster.place.root_command("kill").args(["-KILL", &cluster.server]).output();
            }
            cluster.kill();
            at_work.join().expect("pgbench ends");
        });
        if rounds % 3 == 2 {
            with_server += 1;
            cluster.place.unmount(&cluster.dir).succeeds();
            cluster.mount();
        }
        cluster.start();
        let now: u64 = cluster.ask(COUNT).parse().expect("a number");
        assert!(now >= committed && committed > 0, "round {rounds}: {now} transactions are left of {committed}");
        let sums = cluster.ask(SUMS);
        let all: Vec<_> = sums.split(' ').collect();
        assert!(all.len() == 4 && all.iter().all(|sum| *sum == all[0]), "round {rounds}: {sums}");
        rounds += 1;
    }
    cluster.run("pg_ctl -D \"$data\" -w stop >/dev/null && pg_checksums -D \"$data\" --check >/dev/null");
    cluster.place.unmount(&cluster.dir).succeeds();
    println!(
        "torture_postgres: {committed} transactions, killed {rounds} times, {with_server} of them with who serves; none was lost"
    );
}

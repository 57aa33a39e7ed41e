//! A database server: PostgreSQL under pgbench, the real programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{in_fresh_folder, scaled, written};
use crate::measure::facility::{Background, CommandStep, READY, Runner};
use crate::measure::names::tag;
use crate::measure::program::Ran;
use crate::measure::workloads::prelude::*;
use crate::model::statistics::quantile;

/// Where Debian has PostgreSQL's programs: in a folder for each version, most of them outside PATH.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The programs.
const PROGRAMS: [&str; 5] = ["postgres", "initdb", "pg_isready", "pgbench", "psql"];

/// The server refuses root. In a user namespace it is `nobody`, and root to file systems: it can enter mounts and folders that
/// are closed to other users. Its shared memory ends with its processes.
const AS_NOBODY: &[&str] = &["--ipc", "--user", "--map-user=65534", "--map-group=65534"];

/// Rows of accounts for each unit of pgbench's scale factor (pgbench(1)).
const ROWS: u64 = 100_000;

/// Bytes that a unit of the scale factor takes, with what transactions add, and bytes that an empty database takes with its log.
const UNIT: u64 = 20 << 20;
const EMPTY: u64 = 112 << 20;

/// Settings of the server. Its cache holds fewer pages than the smallest database has, so that pages are read and
/// written. Vacuuming in the background would disturb one pass and not the next.
const SETTINGS: [&str; 5] = [
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "dynamic_shared_memory_type=sysv",
    "shared_buffers=16MB",
    "autovacuum=off",
];

/// The name of its socket follows from the port.
const PORT: &str = "5432";

/// Clients at a time.
const CLIENTS: &str = "4";

/// Scripts that come with pgbench.
const SCRIPTS: [&str; 2] = ["tpcb-like", "select-only"];

/// PostgreSQL under pgbench.
pub(super) static PGBENCH: Workload = Workload {
    name: "pgbench",
    title: "A database server (PostgreSQL, pgbench)",
    measures: |plan| {
        let Extent { factor, seconds } = Extent::of(plan);
        let [mixed, reading] = SCRIPTS;
        format!(
            "A fresh PostgreSQL database with page checksums, 16 MiB of shared buffers, a write-ahead log of at most about 64 MiB, \
                and otherwise its defaults: each commit is flushed. Rows per second while pgbench fills it with {} accounts \
                (scale factor {factor}, some {} MiB), including a checkpoint and the flush to the store. Then {CLIENTS} clients run \
                pgbench's scripts {mixed} (reads and writes) and {reading} for {seconds} s each: transactions per second, their mean \
                latency, and the latency that 99 of 100 do not exceed. At the end the balances are compared with the history.",
            Extent::of(plan).rows(),
            factor * 15
        )
    },
    not: "Most pages come from the page cache, because the database is smaller than memory. The clients run on the same machine \
        and take their share of its processors. Vacuuming in the background is switched off. As root, the server runs as nobody in \
        a user namespace.",
    on: On::Files,
    missing: || {
        let missing = PROGRAMS.into_iter().find(|name| tool(name).is_none());
        missing.map(|name| format!("The program {name} of PostgreSQL is not installed.")).or_else(|| {
            let refused = || "PostgreSQL does not run as root, and this system has no user namespaces.".to_owned();
            program::run(&mut command(&as_server("true", &[])), || false).is_err().then(refused)
        })
    },
    version: || program::version(Command::new(tool("postgres")?).arg("--version")),
    estimate_s: |plan| {
        let Extent { factor, seconds } = Extent::of(plan);
        3.0 + factor as f64 * 0.3 + 2.0 * seconds as f64
    },
    room: |plan| Extent::of(plan).factor * UNIT + EMPTY,
    run: |target, lab| in_folder(&target.folder()?, Extent::of(&lab.plan), lab),
    ..Workload::PLAIN
};

/// How much is done.
#[derive(Clone, Copy)]
struct Extent {
    /// pgbench's scale factor.
    factor: u64,
    /// Seconds of each script.
    seconds: u64,
}

impl Extent {
    fn of(plan: &Plan) -> Self {
        Self { factor: scaled(50, plan.scale, 4), seconds: plan.level.choose([2, 10, 30]) }
    }

    fn rows(self) -> u64 {
        self.factor * ROWS
    }
}

/// The program of this name: that of the newest version of Debian's, or in PATH.
fn tool(name: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let of_version = |entry: fs::DirEntry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path().join("bin").join(name)))
    };
    let newest = versions.filter_map(of_version).filter(|(_, file)| file.is_file()).max();
    newest.map(|(_, file)| file).or_else(|| program::find(name))
}

/// The words that run a program as the server's user: it ends with the lab.
fn as_server(name: &str, arguments: &[&str]) -> Vec<String> {
    let file = tool(name).unwrap_or_else(|| name.into()).display().to_string();
    let words = program::bound(AS_NOBODY).into_iter().chain([file.as_str()]).chain(arguments.iter().copied());
    words.map(ToOwned::to_owned).collect()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Does it in fresh folders, one in `top` and one for the socket.
fn in_folder(top: &Path, extent: Extent, lab: &Lab) -> Result<WorkloadOutcome> {
    in_fresh_folder(top, |folder| {
        in_fresh_folder(&lab.scratch, |sockets| Database { folder, sockets, lab }.work(extent))
    })
}

/// A database in a folder, whose server has its socket in another.
#[derive(Clone, Copy)]
struct Database<'a> {
    folder: &'a Path,
    sockets: &'a Path,
    lab: &'a Lab,
}

impl Database<'_> {
    fn work(self, extent: Extent) -> Result<WorkloadOutcome> {
        let server = self.served()?;
        let load = written(self.folder, || {
            self.client("pgbench", &["--initialize", "--quiet", "--scale", &extent.factor.to_string()])?;
            self.checkpoint()
        })?;
        let mut measures = vec![Measure::per_s(Case::new("load"), extent.rows(), load)];
        for script in SCRIPTS {
            self.checkpoint()?;
            self.lab.drop_caches()?;
            measures.extend(self.transactions(script, extent.seconds)?);
        }
        self.compare(extent.rows())?;
        server.map_or(Ok(()), |server| server.close(false))?;
        Ok(measures.into())
    }

    /// Starts a server on a fresh database, and waits until it answers.
    fn served(self) -> Result<Option<Background>> {
        let folder = self.folder.display().to_string();
        if !self.is_private() {
            return Err(Error::unsupported("PostgreSQL where files do not keep their owners and modes"));
        }
        let fresh = ["-D", &folder, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--wal-segsize=1"];
        let unsafely = ["--data-checksums", "--no-sync"];
        program::run(&mut command(&as_server("initdb", &[&fresh[..], &unsafely].concat())), self.lab.cancelled)?;
        let sockets = self.sockets.display().to_string();
        let places = ["-D", &folder, "-k", &sockets, "-p", PORT];
        let run = as_server("postgres", &[&places[..], &SETTINGS.map(|setting| ["-c", setting]).concat()].concat());
        let socket = self.sockets.join(format!(".s.PGSQL.{PORT}"));
        let step = CommandStep { run, until_there: Some(socket), ..CommandStep::default() };
        let runner = Runner { dir: self.sockets.to_owned(), id: tag().to_owned(), cancelled: self.lab.cancelled };
        let mut server = runner.run(&step, self.folder)?;
        // The socket is there before the database is ready.
        let begun = Instant::now();
        while let Err(refused) = self.client("pg_isready", &[]) {
            self.lab.go_on()?;
            server.iter_mut().try_for_each(|server| server.goes_on(Duration::from_millis(50)))?;
            if begun.elapsed() > READY {
                return Err(refused);
            }
        }
        Ok(server)
    }

    /// Closes the folder to others, as the server wants. False where files do not keep their owners and modes.
    fn is_private(self) -> bool {
        let private = fs::set_permissions(self.folder, fs::Permissions::from_mode(0o700));
        let closed = private.and_then(|()| fs::metadata(self.folder));
        let closed = closed.is_ok_and(|data| data.permissions().mode() & 0o077 == 0);
        let owned = as_server("test", &["-O", &self.folder.display().to_string()]);
        closed && program::run(&mut command(&owned), self.lab.cancelled).is_ok()
    }

    /// Runs a program that talks to the server, without the user's own settings.
    fn client(self, name: &str, arguments: &[&str]) -> Result<Ran> {
        let mut command = Command::new(tool(name).unwrap_or_else(|| name.into()));
        command.args(arguments).env("PGHOST", self.sockets).env("PGPORT", PORT);
        command.env("PGUSER", "postgres").env("PGDATABASE", "postgres").env_remove("PGOPTIONS").env_remove("PGSERVICE");
        program::run(&mut command, self.lab.cancelled)
    }

    /// What SQL answers, without the user's own settings.
    fn sql(self, statement: &str) -> Result<String> {
        Ok(program::text(&self.client("psql", &["-XAtc", statement])?.output).trim().to_owned())
    }

    /// Lets the server write what it holds back.
    fn checkpoint(self) -> Result<()> {
        self.sql("CHECKPOINT").map(drop)
    }

    fn transactions(self, script: &str, seconds: u64) -> Result<[Measure; 3]> {
        let log = self.sockets.join(script).display().to_string();
        let (seconds, seed) = (seconds.to_string(), self.lab.plan.seed.to_string());
        let what = ["--no-vacuum", "--builtin", script, "--client", CLIENTS, "--jobs", "2", "--time", &seconds];
        let how = ["--random-seed", &seed, "--log", "--log-prefix", &log];
        let ran = self.client("pgbench", &[&what[..], &how].concat())?;
        measures(script, &ran, &latencies(self.sockets, script)?)
    }

    /// Fails unless all accounts are there, and all balances are the sums of what was booked.
    fn compare(self, rows: u64) -> Result<()> {
        let found = self.sql(&format!(
            "SELECT count(*) = {rows} AND sum(abalance) = ALL (SELECT sum(bbalance) FROM pgbench_branches \
             UNION ALL SELECT sum(tbalance) FROM pgbench_tellers UNION ALL SELECT sum(delta) FROM pgbench_history) \
             FROM pgbench_accounts"
        ))?;
        if found == "t" {
            return Ok(());
        }
        let what = "the balances in the database are not the sums of what was booked";
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what).into())
    }
}

/// Transactions per second, their mean latency, and the latency that 99 of 100 do not exceed.
fn measures(script: &str, ran: &Ran, latencies: &[f64]) -> Result<[Measure; 3]> {
    let output = program::text(&ran.output);
    let number = |before: &str| {
        let number: Option<f64> =
            output.lines().find_map(|line| line.strip_prefix(before)?.split_whitespace().next()?.parse().ok());
        number.filter(|number| *number > 0.0)
    };
    let found = || {
        let count = number("number of transactions actually processed: ")?;
        Some((count, number("tps = ")?, number("latency average = ")?))
    };
    let Some((count, per_s, mean_ms)) = found() else {
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        return Err(std::io::Error::other(format!("pgbench printed no figures. Its last line: {last}")).into());
    };
    let took = Elapsed { seconds: count / per_s, cpu_s: ran.took.cpu_s };
    let latency =
        |what: &str, value| Measure { value, ..Measure::time(Case::new(format!("{script}, {what}")), 0, took) };
    Ok([
        Measure::per_s(Case::new(script), count as u64, took),
        latency("latency", mean_ms / 1e3),
        latency("99 % latency", quantile(latencies, 0.99)),
    ])
}

/// Seconds that each transaction took: the third word of each line, in microseconds, of a log for each thread (pgbench(1)).
fn latencies(folder: &Path, script: &str) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| Error::from(e).at(folder))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(script) {
            let log = fs::read_to_string(entry.path()).map_err(|e| Error::from(e).at(&entry.path()))?;
            all.extend(log.lines().filter_map(|line| Some(line.split(' ').nth(2)?.parse::<f64>().ok()? / 1e6)));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use claviger_engine::ErrorKind;
    use claviger_testkit::tools;

    use super::*;
    use crate::hostile;
    use crate::measure::facility::Catalogue;
    use crate::measure::lab::tests::{lab, working_below};
    use crate::measure::program::OutputPiece;
    use crate::model::plan::Backing;

    /// Of version 15, 4 clients for 2 seconds.
    const OUTPUT: &str = "\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 4
query mode: simple
number of clients: 4
number of threads: 2
maximum number of tries: 1
duration: 2 s
number of transactions actually processed: 3000
number of failed transactions: 0 (0.000%)
latency average = 2.680 ms
initial connection time = 7.412 ms
tps = 1500.000000 (without initial connection time)
";

    fn ran(text: &str) -> Ran {
        let took = Elapsed { seconds: 2.1, cpu_s: 1.0 };
        Ran { took, own_cpu_s: 0.0, output: vec![OutputPiece { after: took, text: text.into() }], errors: Vec::new() }
    }

    #[test]
    fn what_pgbench_prints_is_understood() {
        let found = measures("tpcb-like", &ran(OUTPUT), &[0.001, 0.003]).unwrap();
        assert_eq!(
            found.clone().map(|m| m.case.operation),
            ["tpcb-like", "tpcb-like, latency", "tpcb-like, 99 % latency"]
        );
        assert_eq!(found.clone().map(|m| m.unit), [Unit::PerS, Unit::Seconds, Unit::Seconds]);
        let near = |measure: &Measure, value: f64| (measure.value / value - 1.0).abs() < 0.02;
        assert!(near(&found[0], 1500.0) && near(&found[1], 0.00268) && near(&found[2], 0.00298), "{found:?}");
        let none = OUTPUT.replace("processed: 3000", "processed: 0");
        assert!(measures("tpcb-like", &ran(&none), &[]).unwrap_err().to_string().contains("printed no figures"));
        hostile::feed(&[OUTPUT], 500, |text| drop(measures("tpcb-like", &ran(text), &[0.001])));
    }

    /// A folder for the socket and one to work in; a reported skip where the programs are not installed.
    fn places() -> Option<(tempfile::TempDir, tempfile::TempDir)> {
        (PGBENCH.missing)().map_or(Some(()), |why| tools::skip(&why))?;
        Some((tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()))
    }

    #[track_caller]
    fn nothing_is_left_in(folders: [&Path; 2]) {
        for folder in folders {
            assert_eq!(working_below(folder), Vec::<PathBuf>::new());
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_database_is_filled_and_used_and_nothing_is_left() {
        let Some((scratch, folder)) = places() else { return };
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let outcome = in_folder(folder.path(), Extent { factor: 1, seconds: 1 }, &lab).unwrap();
        let operations: Vec<_> = outcome.measures.iter().map(|m| m.case.operation.as_str()).collect();
        let latencies =
            |script: &str| [script.to_owned(), format!("{script}, latency"), format!("{script}, 99 % latency")];
        assert_eq!(operations, [vec!["load".to_owned()], SCRIPTS.map(latencies).concat()].concat());
        assert!(outcome.measures.iter().all(|m| m.value > 0.0 && m.value.is_finite()), "{:?}", outcome.measures);
        nothing_is_left_in([scratch.path(), folder.path()]);
    }

    /// The folder of the lab, which is cancelled as soon as clients work.
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();

    fn clients_work() -> bool {
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
        let logged =
            |folder: &Path| inside(folder).any(|file| file.file_name().to_string_lossy().starts_with(SCRIPTS[0]));
        SCRATCH.get().is_some_and(|scratch| inside(scratch).any(|entry| logged(&entry.path())))
    }

    #[test]
    fn nothing_is_left_of_one_that_is_cancelled() {
        let Some((scratch, folder)) = places() else { return };
        SCRATCH.set(scratch.path().to_owned()).unwrap();
        let lab = Lab { scratch: scratch.path().into(), cancelled: clients_work, ..lab() };
        let error = in_folder(folder.path(), Extent { factor: 1, seconds: 600 }, &lab).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
        nothing_is_left_in([scratch.path(), folder.path()]);
    }

    #[test]
    fn what_keeps_owners_lets_the_server_in_and_what_does_not_is_left_out() {
        let Some((scratch, stores)) = places() else { return };
        let mut lab = Lab { scratch: scratch.path().into(), stores: stores.path().into(), ..lab() };
        lab.plan.backing = Backing::Folder(lab.stores.clone());
        lab.plan.size = 256 << 20;
        let catalogue = Catalogue::load(None).unwrap();
        for (name, works) in [("gocryptfs", true), ("ntfs-3g", false)] {
            let facility = catalogue.find(name).unwrap();
            let Some(()) = facility.missing().map_or(Some(()), |why| tools::skip(&why)) else { return };
            let mut target = FacilityTarget::new(facility, &lab).unwrap();
            let folder = target.folder().unwrap();
            match in_folder(&folder, Extent { factor: 1, seconds: 1 }, &lab) {
                Ok(outcome) => assert!(works && outcome.measures.len() == 7, "{name}: {outcome:?}"),
                Err(e) => assert!(!works && matches!(e.kind, ErrorKind::Unsupported { .. }), "{name}: {e}"),
            }
            target.close().unwrap();
        }
    }
}

//! A database in one file, as phones, browsers and desktops have them: SQLite, the real program.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{in_fresh_folder, read, scaled, written};
use crate::measure::workloads::prelude::*;

/// The program.
const SQLITE: &str = "sqlite3";

/// Letters of a row's text.
const TEXT: u64 = 100;

/// How much is done.
#[derive(Clone, Copy)]
struct Extent {
    /// Rows that are written in a transaction each.
    commits: u64,
    /// Rows that are written in one transaction.
    rows: u64,
    /// Rows that are looked up.
    lookups: u64,
}

impl Extent {
    fn of(plan: &Plan) -> Self {
        let [commits, rows, lookups] = [5000, 1_000_000, 100_000].map(|full| scaled(full, plan.scale, full / 50));
        Self { commits, rows, lookups }
    }
}

/// SQLite.
pub(super) static SQLITE_DATABASE: Workload = Workload {
    name: "sqlite",
    title: "A database in a file (SQLite)",
    measures: |plan| {
        let Extent { commits, rows, lookups } = Extent::of(plan);
        format!(
            "Rows per second in a fresh SQLite database: {commits} rows in a transaction each, with SQLite's defaults (a \
                rollback journal, each commit flushed); the same with a write-ahead log; {rows} rows of {TEXT} letters in one \
                transaction; and {lookups} of them looked up at random by their key, after the page cache was dropped if the run \
                says so. Writing includes the flush to the store."
        )
    },
    not: "One program at a time reads or writes: nothing waits for a lock. Lookups find more and more of the file in the page \
        cache.",
    on: On::Files,
    missing: || program::missing(&[SQLITE]),
    version: || program::version(Command::new(SQLITE).arg("--version")).map(|version| format!("SQLite {version}")),
    estimate_s: |plan| {
        let Extent { commits, rows, lookups } = Extent::of(plan);
        2.0 * commits as f64 / 500.0 + rows as f64 / 300e3 + lookups as f64 / 50e3 + 0.5
    },
    room: |plan| Extent::of(plan).rows * 2 * TEXT + (16 << 20),
    run: |target, lab| in_fresh_folder(&target.folder()?, |folder| work(folder, Extent::of(&lab.plan), lab)),
    ..Workload::PLAIN
};

fn work(folder: &Path, extent: Extent, lab: &Lab) -> Result<WorkloadOutcome> {
    let Extent { commits, rows, lookups } = extent;
    let script = lab.scratch.join(format!("sqlite-{commits}.sql"));
    if !script.exists() {
        fs::write(&script, one_by_one(commits)).map_err(|e| Error::from(e).at(&script))?;
    }
    let read_script = format!(".read '{}'", script.display());
    let each = |name: &str, journal: &str| {
        let file = folder.join(name);
        let has = sqlite(&file, &[&format!("PRAGMA journal_mode = {journal};"), CREATE], lab)?;
        // A write-ahead log needs shared memory, which some file systems lack. There, SQLite stays with a journal.
        if has.trim() != journal {
            return Ok(None);
        }
        let took = written(folder, || sqlite(&file, &[&read_script], lab).map(drop))?;
        expect(&file, commits, lab)?;
        Ok::<_, Error>(Some(took))
    };
    let by_journal = each("journal.db", "delete")?;
    let by_log = each("log.db", "wal")?;
    let file = folder.join("rows.db");
    sqlite(&file, &[CREATE], lab)?;
    let at_once = written(folder, || sqlite(&file, &[&all_at_once(rows)], lab).map(drop))?;
    let mut found = String::new();
    let looked_up = read(lab, || {
        found = sqlite(&file, &[&at_random(rows, lookups, lab.plan.seed)], lab)?;
        Ok(())
    })?;
    if found.trim() != (lookups * TEXT).to_string() {
        return Err(damaged(&format!("{lookups} lookups found {} letters", found.trim())));
    }
    expect(&file, rows, lab)?;
    let steps = [
        ("insert, a transaction each", commits, by_journal),
        ("insert, a transaction each, write-ahead log", commits, by_log),
        ("insert, one transaction", rows, Some(at_once)),
        ("look up at random", lookups, Some(looked_up)),
    ];
    let measure = |(operation, count, took)| Some(Measure::per_s(Case::new(operation), count, took?));
    Ok(steps.into_iter().filter_map(measure).collect::<Vec<_>>().into())
}

const CREATE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT NOT NULL);";

/// A row in SQL: text that nothing compresses well.
const ROW: &str = "hex(randomblob(50))";

fn one_by_one(commits: u64) -> String {
    format!("INSERT INTO t (text) VALUES ({ROW});\n").repeat(usize::try_from(commits).unwrap_or_default())
}

fn all_at_once(rows: u64) -> String {
    format!(
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {rows}) INSERT INTO t SELECT n, {ROW} FROM r;"
    )
}

/// The sum of the lengths of rows, whose keys a linear congruential generator chooses.
fn at_random(rows: u64, lookups: u64, seed: u64) -> String {
    let first = seed % (1 << 31);
    // The low bits of such a generator repeat soon.
    format!(
        "WITH RECURSIVE r (n, x) AS (SELECT 1, {first} UNION ALL SELECT n + 1, (x * 1103515245 + 12345) % 2147483648 FROM r \
         WHERE n < {lookups}) SELECT sum(length(text)) FROM r JOIN t ON t.id = 1 + (x >> 8) % {rows};"
    )
}

/// Fails unless the database is sound and has so many rows of the right length.
fn expect(file: &Path, rows: u64, lab: &Lab) -> Result<()> {
    let check = ["PRAGMA integrity_check;", "SELECT count(*), sum(length(text)) FROM t;"];
    let answer = sqlite(file, &check, lab)?;
    let wanted = format!("ok\n{rows}|{}", rows * TEXT);
    if answer.trim() == wanted { Ok(()) } else { Err(damaged(answer.trim())) }
}

fn damaged(what: &str) -> Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("the database is not what was written: {what}")).into()
}

/// Lets SQLite do this, without the user's own settings.
fn sqlite(file: &Path, statements: &[&str], lab: &Lab) -> Result<String> {
    let mut command = Command::new(program::find(SQLITE).unwrap_or(SQLITE.into()));
    command.args(["-batch", "-bail", "-init", "/dev/null"]).arg(file).args(statements);
    Ok(program::text(&program::run(&mut command, lab.cancelled)?.output))
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;
    use crate::measure::lab::tests::lab;

    #[test]
    fn a_database_is_written_looked_up_and_checked() {
        let Some(_) = tools::program(SQLITE) else { return };
        let [folder, scratch] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let lab = Lab { scratch: scratch.path().into(), ..lab() };
        let outcome = work(folder.path(), Extent { commits: 7, rows: 1000, lookups: 500 }, &lab).unwrap();
        assert_eq!(outcome.measures.len(), 4);
        assert!(outcome.measures.iter().all(|m| m.unit == Unit::PerS && m.value > 0.0), "{:?}", outcome.measures);
        let keys = sqlite(
            &folder.path().join("rows.db"),
            &[&at_random(1000, 500, 5).replace("sum(length(text))", "count(DISTINCT t.id)")],
            &lab,
        );
        let keys: u64 = keys.unwrap().trim().parse().expect("a number");
        assert!(keys > 300, "{keys} different rows of 1000 in 500 lookups");

        let file = folder.path().join("rows.db");
        assert!(expect(&file, 1001, &lab).unwrap_err().to_string().contains("not what was written"));
        let len = fs::metadata(&file).unwrap().len();
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len / 2).unwrap();
        assert!(expect(&file, 1000, &lab).is_err());
    }
}

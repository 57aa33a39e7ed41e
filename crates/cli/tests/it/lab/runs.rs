//! `claviger lab run` and `claviger lab list` as programs see them. No test looks at a time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Done, done, run};
use claviger_testkit::tools;
use serde_json::Value;

/// A folder for one run, with sessions of its own.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        // In memory, because no disk is tested, and with a short name, because sockets lie in it.
        let dir = tempfile::Builder::new().prefix("lab").tempdir_in("/dev/shm").expect("a folder in memory");
        fs::create_dir(dir.path().join("stores")).expect("a folder");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, with its stores in a folder where anything that is left over is seen.
    fn lab(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args(["lab", "run"]).args(args.split(' ')).args(["--dir".as_ref(), self.path("stores").as_os_str()]);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.env("CLAVIGER_RUNTIME_DIR", self.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Runs it to its end, and checks that nothing is left.
    fn finish(&self, mut command: Command) -> Done {
        let child = command.spawn().expect("the program starts");
        self.end(child)
    }

    fn end(&self, child: Child) -> Done {
        let pid = child.id();
        let done = done(child.wait_with_output().expect("it ends"));
        assert_eq!(left_over(pid), Vec::<String>::new(), "{done:?}");
        let stores: Vec<_> = fs::read_dir(self.path("stores")).expect("a folder").collect();
        assert!(stores.is_empty(), "{stores:?}");
        done
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).expect("it was written")).expect("JSON")
    }
}

/// Processes, mounts, loop devices and folders that a lab of this number left behind: all of their names hold it.
fn left_over(pid: u32) -> Vec<String> {
    let mark = format!("claviger-lab-{pid}-");
    let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).replace('\0', " ");
    let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| read(&entry.path().join("cmdline")));
    let mounts: Vec<String> = read(Path::new("/proc/self/mounts")).lines().map(str::to_owned).collect();
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = blocks.map(|entry| read(&entry.path().join("loop/backing_file")));
    let in_memory = fs::read_dir("/dev/shm").expect("a folder").flatten();
    let folders = in_memory.filter(|entry| entry.file_name().to_string_lossy().starts_with("claviger-lab-"));
    let inside = folders.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    let names = inside.map(|entry| entry.path().display().to_string());
    processes.chain(mounts).chain(loops).chain(names).filter(|text| text.contains(&mark)).collect()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value}"))
}

#[test]
fn the_list_says_what_can_be_measured() {
    let all = run(["lab", "list", "--json"]).succeeds().json();
    let names = |what| list(&all, what).iter().map(|one| one["name"].as_str().expect("a name")).collect::<Vec<_>>();
    for facility in ["plain", "LUKS2", "VeraCrypt", "gocryptfs", "nbd/LUKS2", "folder"] {
        assert!(names("facilities").contains(&facility), "{facility}");
    }
    for workload in ["dd", "tree", "unlock"] {
        assert!(names("workloads").contains(&workload), "{workload}");
    }
    let text = run(["lab", "list"]).succeeds().text();
    assert!(text.contains("this engine, LUKS2 format, aes-xts-plain64"), "{text}");
}

#[test]
fn a_plan_is_told_and_one_that_makes_no_sense_is_refused() {
    let bench = Bench::new();
    let plan = bench.finish(bench.lab("--standard --dry-run --facility nbd/luks2 --workload dd")).succeeds();
    assert!(plan.err.contains("facilities: plain-nbd, nbd/LUKS2"), "the baseline comes by itself: {}", plan.err);
    assert!(plan.err.contains("this takes about"), "{}", plan.err);
    let sweep = bench.finish(bench.lab("--preset sweep --dry-run")).succeeds();
    assert!(sweep.err.contains("plain-nbd, nbd/TrueCrypt, nbd/TrueCrypt:Serpent"), "{}", sweep.err);
    assert!(sweep.err.contains("workloads: dd\n"), "{}", sweep.err);
    let files = bench.finish(bench.lab("--preset files --dry-run")).succeeds();
    assert!(files.err.contains("plain-files, files/eCryptfs") && files.err.contains("small-files"), "{}", files.err);
    if tools::program("nbdkit").is_some() {
        let network = bench.finish(bench.lab("--preset network --dry-run")).succeeds();
        assert!(network.err.contains("near/plain, near/LUKS2, far/plain, far/LUKS2\n"), "{}", network.err);
    }
    for (args, words) in [
        ("--facility LUKS3", ["there is no facility called LUKS3", "Did you mean LUKS"]),
        ("--workload nothing", ["there is no workload called nothing", "The workloads are: dd"]),
        ("--facility LUKS2 --workload dd --size 4T", ["do not fit", "smaller"]),
        ("--size 1M", ["at least 64 MiB", ""]),
        ("--repeats 5:4", ["smaller than the first", ""]),
        ("--scale 0", ["above 0", ""]),
    ] {
        bench.finish(bench.lab(args)).fails(1, &words);
    }
    // A device that is none is refused before anything is made.
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    let file = bench.path("file");
    fs::File::create(&file).and_then(|f| f.set_len(1 << 30)).expect("a file");
    command
        .args(["lab", "run", "--workload", "dd", "--force", "--yes", "--device"])
        .arg(&file)
        .arg("--out")
        .arg(bench.path("out"));
    bench.prepare(&mut command);
    bench.finish(command).fails(1, &["not a block device"]);
    assert!(!bench.path("out").exists());
}

#[test]
fn a_quick_run_over_three_targets_gives_figures_and_reports() {
    if tools::program("gocryptfs").is_none() {
        return;
    }
    let bench = Bench::new();
    let out = bench.path("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    // In memory, which is the default.
    let args = "lab run --quick --facility plain --facility LUKS2 --facility gocryptfs --workload dd --workload tree \
                --scale 0.002 --size 64M --repeats 5:5 --seed 1 --json --out";
    command.args(args.split_whitespace()).arg(&out);
    bench.prepare(&mut command);
    let done = bench.finish(command).succeeds();
    for part in ["facilities: plain, LUKS2, folder, gocryptfs", "volumes of 64 MiB in memory", "this takes about"] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
    let report = done.json();
    assert_eq!(bench.json("run/run.json"), report);
    assert!(list(&report["run"], "failures").is_empty(), "{}", report["run"]["failures"]);
    assert!(list(&report["run"], "passes").len() == 4 * 2 * 6);
    let cells = list(&report["summary"], "cells");
    for facility in ["plain", "LUKS2", "folder", "gocryptfs"] {
        for workload in ["dd", "tree"] {
            let own: Vec<&Value> =
                cells.iter().filter(|c| c["facility"] == facility && c["workload"] == workload).collect();
            assert!(own.len() > 1, "{facility}, {workload}");
            for cell in own {
                assert_eq!(list(cell, "samples").len(), 5);
                assert!(
                    cell["low"].as_f64() <= cell["median"].as_f64() && cell["median"].as_f64() > Some(0.0),
                    "{cell}"
                );
                let performance = ["bytes_per_s", "per_s", "seconds"].iter().any(|unit| cell["unit"] == *unit);
                let judged = cell["loss"]["verdict"].as_str().is_some_and(|verdict| verdict != "too few repeats");
                assert_eq!(judged, performance && ["LUKS2", "gocryptfs"].contains(&facility), "{cell}");
            }
        }
    }
    assert!(list(&report["summary"], "findings").iter().any(|f| f.as_str().is_some_and(|f| f.contains("gocryptfs"))));
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("LUKS2"));
    let lines = fs::read_to_string(out.join("report.csv")).expect("a table").lines().count();
    assert_eq!(lines, cells.len() + 1);
    assert!(fs::read_to_string(out.join("report.txt")).expect("a text").contains("gocryptfs"));
    // The run is complete, so resuming it measures nothing.
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["lab", "run", "--json", "--resume"]).arg(&out);
    bench.prepare(&mut command);
    let again = bench.finish(command).succeeds().json();
    assert_eq!(again["run"]["passes"], report["run"]["passes"]);
}

/// Programs that are none of the lab's, and use all processors. They end with this.
struct Spinning(Vec<Child>);

impl Spinning {
    fn new() -> Self {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..processors.max(2)).map(|_| spin()).collect())
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    }
}

#[test]
fn other_programs_that_disturb_a_run_are_told_of_first() {
    let bench = Bench::new();
    let spinning = Spinning::new();
    let mut command =
        bench.lab("--study tresorsgx --facility isolation/one-process --workload dd --repeats 1 --size 64M --json");
    command.arg("--out").arg(bench.path("run"));
    let done = bench.finish(command).succeeds();
    drop(spinning);
    let report = done.json();
    for pass in list(&report["run"], "passes") {
        let others = &pass["conditions"]["others"];
        assert!(others["cpu_s"].as_f64() > others["seconds"].as_f64().map(|seconds| 0.05 * seconds), "{others}");
    }
    let message = report["disturbance"]["message"].as_str().expect("it was disturbed");
    assert!(message.contains("busy with other programs"), "{message}");
    assert_eq!(report["summary"]["warnings"][0], message);
    let first = done.text();
    let first: Vec<&str> = first.lines().skip(1).take(2).map(str::trim_start).collect();
    assert!(first[0].starts_with("\"json_version\"") && first[1].starts_with("\"disturbance\""), "{first:?}");
    let text = fs::read_to_string(bench.path("run/report.txt")).expect("a report");
    assert_eq!(text.lines().filter(|line| !line.is_empty()).nth(1), Some("Disturbed"), "{text}");
    let rendered = |options: &[&str]| {
        let file = bench.path("run/run.json");
        let words = ["lab", "report"].into_iter().chain(options.iter().copied()).chain(file.to_str());
        run(words.collect::<Vec<_>>())
    };
    let page = rendered(&["--markdown"]).succeeds().text();
    assert_eq!(page.lines().nth(2), Some(&*format!("**{message}**")), "{page}");
    assert_eq!(page.matches(message).count(), 1, "{page}");
    rendered(&["--markdown", "--undisturbed"]).fails(1, &["run.json", "disturbed", "other programs"]);
    // A page of such runs is not made.
    let packed = Command::new("gzip").arg("-c").arg(bench.path("run/run.json")).output().expect("gzip").stdout;
    fs::write(bench.path("tresorsgx.json.gz"), packed).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/studies.sh");
    let page = |options: &[&str]| {
        let mut command = Command::new(&script);
        command.arg(env!("CARGO_BIN_EXE_claviger")).arg(bench.path("")).args(options);
        command.output().expect("it starts")
    };
    assert!(page(&[]).status.success());
    let refused = page(&["--undisturbed"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("busy"), "{refused:?}");
}

/// A facility that is a plain folder, and cannot be opened again.
const BREAKS: &str = r#"
name = "breaks"
title = "a facility that breaks"
baseline = "folder"
about = "It can be opened once."
store = "folder"
gives = "folder"
opened = "{store}"

[[open]]
run = ["sh", "@", "{store}"]
"#;

#[test]
fn a_peer_that_fails_half_way_is_reported_and_does_not_stop_the_others() {
    let bench = Bench::new();
    let peers = bench.path("peers");
    fs::create_dir(&peers).expect("a folder");
    let script = bench.path("open.sh");
    let text = format!(
        "echo x >> {0}\nif [ $(wc -l < {0}) -gt 1 ]; then echo no such thing >&2; exit 3; fi\n",
        bench.path("count").display()
    );
    fs::write(&script, text).expect("written");
    fs::write(peers.join("breaks.toml"), BREAKS.replace('@', &script.display().to_string())).expect("written");
    let mut command =
        bench.lab("--facility breaks --facility plain --workload dd --workload unlock --scale 0.001 --repeats 1:2");
    command.arg("--peers").arg(&peers).arg("--json").arg("--out").arg(bench.path("run"));
    let done = bench.finish(command).fails(6, &["not measured", "breaks with unlock"]);
    let report = done.json();
    let passes = |facility: &str, workload: &str| {
        let all = list(&report["run"], "passes").iter();
        all.filter(|p| p["facility"] == facility && p["workload"] == workload && p["round"].is_number()).count()
    };
    assert!(passes("breaks", "dd") > 0, "what it gave before is kept");
    assert_eq!(passes("breaks", "unlock"), 0);
    for facility in ["plain", "folder"] {
        assert!(passes(facility, "dd") > 0 && passes(facility, "unlock") > 0, "{facility}");
    }
    let failures = list(&report["run"], "failures");
    assert!(!failures.is_empty() && failures.iter().all(|f| f["facility"] == "breaks"), "{failures:?}");
    let error = failures[0]["error"].as_str().expect("an error");
    assert!(error.contains("no such thing") && error.contains("open.sh"), "{error}");
    assert!(done.err.contains("no such thing"), "{}", done.err);
    let warnings = report["summary"]["warnings"].to_string();
    assert!(warnings.contains("breaks failed in"), "{warnings}");
}

#[test]
fn ctrl_c_leaves_nothing_behind_and_the_run_goes_on() {
    let bench = Bench::new();
    let out = bench.path("run");
    let journal = out.join("run.jsonl");
    let mut command =
        bench.lab("--facility LUKS2 --facility folder --workload dd --workload tree --scale 0.001 --repeats 2:2");
    command.arg("--out").arg(&out);
    let child = command.spawn().expect("the program starts");
    // In the middle: two passes are made, and facilities are open.
    let lines = || fs::read_to_string(&journal).unwrap_or_default();
    let passes = || lines().lines().filter(|line| line.starts_with("{\"pass\":")).count();
    let patience = Instant::now() + Duration::from_secs(120);
    while passes() < 2 && Instant::now() < patience {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!left_over(child.id()).is_empty(), "something is open");
    tools::run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let stopped = bench.end(child).fails(8, &["cancelled", "--resume"]);
    let before = passes();
    assert!(before >= 2 && !out.join("run.json").exists(), "{}", stopped.err);
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["lab", "run", "--resume"]).arg(&out);
    bench.prepare(&mut command);
    let done = bench.finish(command).succeeds();
    assert!(done.err.contains(&format!("{before} passes were made before")), "{}", done.err);
    let report = bench.json("run/run.json");
    assert_eq!(list(&report["run"], "passes").len(), 3 * 2 * 3);
    assert_eq!(list(&report["run"], "sittings").len(), 2);
    assert!(list(&report["run"], "failures").is_empty());
}

#[test]
fn ctrl_c_before_the_first_pass_ends_it_before_anything_is_made() {
    let bench = Bench::new();
    let out = bench.path("run");
    let mut command = bench.lab("--facility plain --workload dd --scale 0.001 --thorough");
    command.arg("--out").arg(&out).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // The plan is printed. Next the program measures the ciphers, which takes minutes at this level, and only then creates the folder.
    let mut output = BufReader::new(child.stderr.take().expect("piped")).lines();
    assert!(output.any(|line| line.is_ok_and(|line| line.contains("this takes about"))));
    tools::run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let rest: Vec<String> = output.map_while(Result::ok).collect();
    assert_eq!(bench.end(child).code, 8, "{rest:?}");
    assert!(rest.join("\n").contains("cancelled") && !out.exists(), "{rest:?}");
}

/// Whole, with what is published beside; then what is left of an interrupted one, by its journal alone.
#[test]
fn a_study_is_repeated_and_resumed() {
    if !Path::new("/dev/fuse").exists() {
        return tools::skip("no /dev/fuse").unwrap_or_default();
    }
    let bench = Bench::new();
    let plan = bench.finish(bench.lab("--study tresorsgx --dry-run")).succeeds();
    assert!(plan.err.contains("the study: TresorSGX") && plan.err.contains("volumes of 64"), "{}", plan.err);
    bench.finish(bench.lab("--study nothing --dry-run")).fails(1, &["no study called nothing", "tresorsgx"]);

    let out = bench.path("out");
    let args = "--study tresorsgx --repeats 1 --facility isolation/one-process --facility isolation/isolated";
    let mut command = bench.lab(args);
    command.arg("--out").arg(&out);
    bench.finish(command).succeeds();
    let report = fs::read_to_string(out.join("report.txt")).expect("a report");
    let line = |what: &str, with: &str| {
        let found = report.lines().find(|line| line.starts_with(what) && line.contains(with));
        found.unwrap_or_else(|| panic!("no {what} with {with}: {report}")).to_owned()
    };
    let isolated = line("dd of 100 MB, write", "isolated keys");
    assert!(isolated.contains(" 1.10 ") && isolated.contains(" 99.0 "), "what the study had, and lost: {isolated}");
    assert!(line("dd of 100 MB, write", "without encryption").contains(" 107"), "the study's figure: {report}");
    assert!(
        report.contains("With an extent of its own: data of 2.0 %") && report.contains("Cannot be said:"),
        "{report}"
    );
    let cells = fs::read_to_string(out.join("study.csv")).expect("the tables");
    let measured = cells.lines().filter(|line| line.contains(",isolation/isolated,bytes_per_s,")).count();
    assert!(measured == 4, "dd and hdparm, each twice: {cells}");

    // The file of a user, which is this one under another name.
    let own = bench.path("mine.toml");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/data/studies");
    fs::write(&own, fs::read_to_string(folder.join("tresorsgx.toml")).expect("there").replace("(2016)", "(mine)"))
        .expect("written");
    let plan = bench.finish(bench.lab(&format!("--study {} --dry-run", own.display()))).succeeds();
    assert!(plan.err.contains("hdparm and dd (mine)"), "{}", plan.err);

    let journal = out.join("run.jsonl");
    let lines = fs::read_to_string(&journal).expect("a journal");
    let kept: Vec<&str> = lines.lines().take(lines.lines().count() - 3).collect();
    fs::write(&journal, kept.join("\n") + "\n").expect("written");
    fs::remove_file(out.join("study.csv")).expect("removed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["lab", "run", "--resume"]).arg(&out);
    bench.prepare(&mut command);
    bench.finish(command).succeeds();
    let again = fs::read_to_string(out.join("study.csv")).expect("the tables");
    assert_eq!(again.lines().count(), cells.lines().count());
    let table = run([&"lab" as &dyn AsRef<std::ffi::OsStr>, &"report", &out, &"--csv", &"--study"].map(AsRef::as_ref))
        .succeeds();
    // JSON may read the last digit of a number differently.
    let but_digits = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
    assert_eq!(but_digits(&table.text()), but_digits(&again));
}

/// Each says how long each of its sizes takes; a small part of it fills its tables, and those of all make the page that
/// `make studies` makes.
#[test]
fn every_study_is_repeated_in_small() {
    if !Path::new("/dev/fuse").exists() {
        return tools::skip("no /dev/fuse").unwrap_or_default();
    }
    let bench = Bench::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/studies.sh");
    let runs = bench.path("runs");
    fs::create_dir(&runs).expect("made");
    let page = || Command::new(&script).arg(env!("CARGO_BIN_EXE_claviger")).arg(&runs).output().expect("it starts");
    assert!(!page().status.success(), "there is no run");
    for (name, part, facility, filled, published) in [
        ("rantanen2013", "--scale 0.0001", ",plain,bytes_per_s,", 20, "47.8 MB/s"),
        ("bsi2010", "--facility TrueCrypt --workload dd --scale 0.004", ",TrueCrypt,bytes_per_s,", 7 * 2, "Windows"),
        (
            "zhan2010",
            "--facility files/eCryptfs --workload tree --scale 0.001",
            ",files/eCryptfs,seconds,",
            2,
            "2880 s",
        ),
        (
            "linux2013",
            "--facility loop-AES:one-key-serpent --workload dd --scale 0.001",
            ",loop-AES:one-key-serpent,bytes_per_s,",
            2,
            "83.93",
        ),
    ] {
        for size in ["--quick", "--standard", "--thorough"] {
            // The larger ones may not fit into the memory of this machine.
            let command = bench.finish(bench.lab(&format!("--study {name} {size} --dry-run")));
            if size == "--quick" {
                assert!(command.succeeds().err.contains("this takes about"), "{name}");
            }
        }
        let out = bench.path(name);
        let mut command = bench.lab(&format!("--study {name} --repeats 1 --size 64M {part}"));
        command.arg("--out").arg(&out);
        bench.finish(command).succeeds();
        let cells = fs::read_to_string(out.join("study.csv")).expect("the tables");
        let measured =
            |line: &&str| line.split_once(facility).is_some_and(|(_, rest)| rest.starts_with(char::is_numeric));
        let medians = cells.lines().filter(measured).count();
        assert!(medians >= filled, "{name}: {medians} cells: {cells}");
        assert!(cells.contains(published), "{name}: {cells}");
        let packed = Command::new("gzip").arg("-c").arg(out.join("run.json")).output().expect("gzip").stdout;
        fs::write(runs.join(format!("{name}.json.gz")), packed).expect("written");
    }
    let made = page();
    let text = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success() && text.starts_with("# The studies, repeated\n"), "{text}");
    let scenario = "| a stick that Windows shall open, too | ";
    for words in
        ["Kuvio 2", "Table 18", "Figure 4.1", "Figures 2 to 12", "What differs: ", "| Cannot be said |", scenario]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

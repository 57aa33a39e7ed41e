//! `claviger lab run`

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use claviger_engine::{Error, ErrorKind};
use claviger_lab::measure::facility::Catalogue;
use claviger_lab::measure::machine;
use claviger_lab::measure::run::journal::{Journal, RunState};
use claviger_lab::measure::run::measure::{Hands, Tick};
use claviger_lab::measure::run::plan::{FILES, MEMORY, NETWORK, PreparedRun, SWEEP, Wishes};
use claviger_lab::measure::run::{measure, stored};
use claviger_lab::measure::studies;
use claviger_lab::model::figures::Run;
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};
use claviger_lab::model::words::date_and_time;
use claviger_lab::show::report::{Extra, RunReport, Text};
use claviger_lab::show::summary::Summary;

use super::device::may_be_lost;
use crate::opening::new_file::must_be_new;
use crate::opening::overwrite::Overwrite;
use crate::terminal::output::{self, note, warn};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, size};
use crate::verbs::benchmark::print;

/// Name of the page with charts in a run's folder.
const PAGE: &str = "report.html";

/// Measure facilities that encrypt storage, ours and others, against the same layers without encryption
///
/// Creates each facility anew and runs each workload on all of them in turn, pass by pass, until the figures are steady.
/// Every figure is recorded. The expected duration is announced first. Ctrl-C stops and removes everything that was set
/// up; --resume continues. As root, the page cache is dropped before each pass.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger lab run --quick
  claviger lab run --standard --dir /srv/scratch
  claviger lab run --facility LUKS2 --facility gocryptfs --workload dd
  claviger lab run --preset sweep
  claviger lab run --preset files --standard
  claviger lab run --preset network
  claviger lab run --study tresorsgx --standard --dir /srv/scratch
  claviger lab run --study zhan2010 --dir /srv/scratch --device /dev/sdb --device /dev/sdc --force
  claviger lab run --resume claviger-lab-2026-11-22-030000
  claviger lab run --thorough --dry-run")]
pub struct Args {
    /// Small data sets, and only the ends of each range: minutes (the default)
    #[arg(long, conflicts_with_all = ["standard", "thorough"])]
    quick: bool,
    /// More of everything, one facility of each kind: hours
    #[arg(long, conflicts_with = "thorough")]
    standard: bool,
    /// The sizes and ranges of the studies: days, if no facility or workload is named
    #[arg(long)]
    thorough: bool,
    /// Measure the facilities and workloads of this preset, unless others are named
    #[arg(long, value_enum, value_name = "PRESET")]
    preset: Option<Preset>,
    /// Repeat this whole published study: a name from `claviger lab list`, or a file of your own
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "preset")]
    study: Option<String>,
    /// Measure this facility, or `all`; its baseline is added automatically. May be repeated [default: with --quick LUKS2
    /// and VeraCrypt, otherwise our formats with their default ciphers and the other programs that are installed]
    #[arg(long, value_name = "NAME")]
    facility: Vec<String>,
    /// Run this workload, or `all`. May be repeated [default: those that are short enough for the level]
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Keep the encrypted data in this folder on a disk. If repeated, everything is measured on each [default: in memory]
    #[arg(long, value_name = "FOLDER")]
    dir: Vec<PathBuf>,
    /// Keep the encrypted data on this block device, whose contents are lost. May be repeated and combined with --dir
    #[arg(long, value_name = "DEVICE", group = "loses")]
    device: Vec<PathBuf>,
    /// Use the device although its contents will be lost, after a confirmation
    #[arg(long, requires = "loses")]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// Size of the data sets, as a share of the studies' [default: 0.01, 0.05 or 1, by level, or the study's own]
    #[arg(long, value_name = "SHARE")]
    scale: Option<f64>,
    /// Size of each volume [default: what the workloads need]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Minimum and maximum number of passes [default: 5:7, 5:10 or 5:25, by level, or the study's own]
    #[arg(long, value_name = "MIN[:MAX]", value_parser = repeats)]
    repeats: Option<(usize, Option<usize>)>,
    /// A figure is steady if its relative standard deviation is at most this, in per cent [default: 3]
    #[arg(long, value_name = "PERCENT")]
    steady: Option<f64>,
    /// Use only this many processors, like the studies that switched cores off [default: all]
    #[arg(long, value_name = "NUMBER")]
    processors: Option<usize>,
    /// Seed of the random order and of the data [default: from the clock]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// New folder for the figures and reports [default: claviger-lab-DATE-TIME]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Resume the run in this folder
    #[arg(long, value_name = "FOLDER", group = "loses", conflicts_with_all = [
        "quick", "standard", "thorough", "preset", "study", "facility", "workload", "dir", "device", "scale", "size", "repeats", "steady", "seed",
        "out", "dry_run",
    ])]
    resume: Option<PathBuf>,
    /// Folder of TOML files with facilities of your own
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Show what would be measured and how long it would take, but measure nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the run and its results as JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values, a line for each figure
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Preset {
    /// Reads and writes by block size, as the BSI measured TrueCrypt: its ciphers over NBD, and as root the kernel's dm-crypt
    Sweep,
    /// Facilities that encrypt file by file, ours and others, with workloads on files and small requests
    Files,
    /// Volumes over a line of 1 ms and 10 Gbit/s and one of 5 ms and 1 Gbit/s, against unencrypted ones over the same line
    Network,
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // This comes first: threads and processes started before it would use all processors.
    args.processors.map_or(Ok(()), machine::use_only)?;
    let program = std::env::current_exe()?;
    let catalogue = Catalogue::load(args.peers.as_deref())?;
    cancel::install()?;
    let (prepared, folder, mut journal, mut state) = match &args.resume {
        Some(folder) => {
            let (prepared, journal, state) = measure::resume(folder, &catalogue, &program)?;
            tell_plan(&prepared, Some(&state));
            // Device names may change between boots, and a stored run may come from anybody.
            args.check_devices(&prepared.plan)?;
            (prepared, folder.clone(), journal, state)
        }
        None => {
            let plan = args.wishes(&catalogue)?.plan(&catalogue)?;
            let prepared = PreparedRun::of(plan, &catalogue, &program)?;
            tell_plan(&prepared, None);
            if args.dry_run {
                return Ok(());
            }
            // As late as possible: nothing has been written yet.
            let folder = args.out.clone().unwrap_or_else(folder_of_now);
            must_be_new(&folder)?;
            args.check_devices(&prepared.plan)?;
            let (journal, state) = measure::begin(&prepared, &folder, cancel::cancelled)?;
            (prepared, folder, journal, state)
        }
    };
    measure::tidy_up(&prepared.plan).iter().for_each(|left| warn(left));
    carry_out(&prepared, &mut journal, &mut state, &program, &args.resuming(&folder))?;
    let summary = Summary::of(&state.run);
    let extras = Extra::of_study(&state.run, &summary);
    let report = RunReport { run: &state.run, summary: &summary, extras: &extras };
    write_reports(&report, &folder)?;
    print(args.json, args.csv, || output::json(&report), || report.text(), || report.cells_csv())?;
    let page = folder.join(PAGE);
    note(&format!("figures and reports are in {}, charts in {}", folder.display(), page.display()));
    complete(&state.run)
}

/// Fails if something requested was not measured completely because it failed.
fn complete(run: &Run) -> anyhow::Result<()> {
    let missing: Vec<String> =
        run.missing().iter().map(|(facility, workload)| format!("{facility} with {workload}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("not measured completely because of failures: {}", missing.join(", "));
    Err(Error::from(io::Error::other(what)).hint("The report has the reasons, and all other figures.").into())
}

impl Args {
    fn wishes(&self, catalogue: &Catalogue) -> anyhow::Result<Wishes> {
        let level = match (self.standard, self.thorough) {
            (_, true) => Level::Thorough,
            (true, _) => Level::Standard,
            _ => Level::Quick,
        };
        let folders = self.dir.iter().map(|folder| Ok(Backing::Folder(existing(folder)?)));
        let devices = self.device.iter().map(|device| Ok(Backing::Device(existing(device)?)));
        let media: Vec<Backing> = folders.chain(devices).collect::<claviger_engine::Result<_>>()?;
        Ok(Wishes {
            level,
            media: if media.is_empty() { vec![Backing::Tmpfs(MEMORY.into())] } else { media },
            preset: self.preset.map(|preset| match preset {
                Preset::Sweep => SWEEP,
                Preset::Files => FILES,
                Preset::Network => NETWORK,
            }),
            study: self.study.as_ref().map(|name| studies::find(name, catalogue)).transpose()?,
            facilities: self.facility.clone(),
            workloads: self.workload.clone(),
            scale: self.scale,
            size: self.size,
            repeats: self.repeats.map(|(least, most)| (least, most.unwrap_or(least))),
            steady: self.steady.map(|percent| percent / 100.0),
            seed: self.seed.unwrap_or_else(|| now().as_secs()),
        })
    }

    /// The command that continues the run in this folder. It uses the same number of processors, which keeps figures
    /// comparable.
    fn resuming(&self, folder: &Path) -> String {
        let processors = self.processors.map(|count| ["--processors".to_owned(), count.to_string()]);
        let processors = processors.iter().flatten().map(OsStr::new);
        let words = ["claviger", "lab", "run"].map(OsStr::new).into_iter().chain(processors);
        output::command(words.chain([OsStr::new("--resume"), folder.as_os_str()]))
    }

    /// Fails unless every device that the plan names may be overwritten.
    fn check_devices(&self, plan: &Plan) -> claviger_engine::Result<()> {
        plan.media().try_for_each(|medium| match medium {
            Backing::Device(device) => may_be_lost(device, Overwrite { force: self.force, yes: self.yes }),
            Backing::Tmpfs(_) | Backing::Folder(_) => Ok(()),
        })
    }
}

/// Parses `5` or `5:15`.
fn repeats(text: &str) -> Result<(usize, Option<usize>), String> {
    let number = |text: &str| match text.parse::<usize>() {
        Ok(number) if (1..=1000).contains(&number) => Ok(number),
        _ => Err("expected a number of passes from 1 to 1000, or a minimum and a maximum such as 5:15".to_owned()),
    };
    match text.split_once(':') {
        None => Ok((number(text)?, None)),
        Some((least, most)) => match (number(least)?, number(most)?) {
            (least, most) if least <= most => Ok((least, Some(most))),
            _ => Err("the second number is smaller than the first".to_owned()),
        },
    }
}

fn existing(path: &Path) -> claviger_engine::Result<PathBuf> {
    path.canonicalize().map_err(|e| Error::from(e).at(path))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The default folder: `claviger-lab-2026-11-22-030000`, in UTC.
fn folder_of_now() -> PathBuf {
    let (date, time) = date_and_time(i64::try_from(now().as_secs()).unwrap_or(i64::MAX));
    format!("claviger-lab-{date}-{}", time.replace(':', "")).into()
}

/// Announces on standard error what is measured and how long it takes.
fn tell_plan(prepared: &PreparedRun, resumed: Option<&RunState>) {
    let PreparedRun { plan, facilities, workloads, .. } = prepared;
    let names = |names: Vec<&str>| names.join(", ");
    let facilities = names(facilities.iter().map(|f| f.name.as_str()).collect());
    let workloads = names(workloads.iter().map(|w| w.name).collect());
    let left_out = prepared.facility_records.iter().map(|f| (&f.name, &f.left_out));
    let left_out = left_out.chain(prepared.workload_records.iter().map(|w| (&w.name, &w.left_out)));
    let left_out: Vec<String> =
        left_out.filter_map(|(name, why)| Some(format!("not measured: {name}: {}", why.as_ref()?))).collect();
    let place = |medium: &Backing| match medium {
        Backing::Tmpfs(_) => "in memory".to_owned(),
        Backing::Folder(folder) => format!("in {}", folder.display()),
        Backing::Device(device) => format!("on {}", device.display()),
    };
    let places: Vec<String> = plan.media().map(place).collect();
    let estimate = prepared.estimate();
    let time = |seconds: f64| size::duration(Duration::from_secs_f64(seconds));
    let study = plan.study().map(|study| format!("the study: {}", study.title));
    let mut lines: Vec<String> = study.into_iter().collect();
    lines.extend([
        format!("facilities: {facilities}"),
        format!("workloads: {workloads}"),
        format!("volumes of {} {}", size::short(plan.size), places.join(" and ")),
    ]);
    lines.extend(left_out);
    if plan.caches == Caches::Warm {
        lines.push("the page cache is not dropped, which requires root: reads may come from memory".into());
    }
    match resumed {
        Some(state) => lines.push(format!("{} passes were made before", state.run.passes.len())),
        None => {
            let (least, most) = (time(estimate.least_s), time(estimate.most_s));
            lines.push(match plan.min_repeats == plan.max_repeats {
                true => format!("this takes about {least}"),
                false => format!(
                    "this takes about {least} if all figures are steady after {} passes, and {most} if none is steady after {}",
                    plan.min_repeats, plan.max_repeats
                ),
            });
        }
    }
    for line in lines {
        note(&line);
    }
}

/// Measures, with a progress bar.
fn carry_out(
    prepared: &PreparedRun,
    journal: &mut Journal,
    state: &mut RunState,
    program: &Path,
    resume: &str,
) -> claviger_engine::Result<()> {
    let progress = Progress::spinner();
    let tell = |tick: &Tick| {
        let round = tick.step.round.map_or("warm-up".to_owned(), |round| format!("pass {}", round + 1));
        let left = size::duration(Duration::from_secs_f64(tick.left_s));
        progress.tell(format!("{} on {}, {round}; about {left} left", tick.step.workload, tick.step.facility));
    };
    let hands = Hands { program, cancelled: cancel::cancelled, tell: &tell };
    let failures = state.run.failures.len();
    let measured = measure::measure(prepared, journal, state, &hands);
    progress.clear();
    for failure in &state.run.failures[failures..] {
        let doing = failure.workload.as_deref().unwrap_or("setup");
        warn(&format!("{} failed in {doing}: {}", failure.facility, failure.error));
    }
    measured.map_err(|e| match e.kind {
        ErrorKind::Cancelled => {
            let hint = format!("The measurements are kept, and everything set up was removed. To continue: `{resume}`");
            e.hint(hint)
        }
        _ => e,
    })
}

/// Writes all reports into files beside the journal. The page also shows published figures.
fn write_reports(report: &RunReport<'_>, folder: &Path) -> claviger_engine::Result<()> {
    let mut extras = report.extras.to_vec();
    extras.extend(Extra::published(report.run, report.summary));
    let study = report.run.plan.study().map(|_| ("study.csv", report.study_csv()));
    let files = [
        ("run.json", output::json(report).map_err(io::Error::from)?),
        ("report.txt", report.text()),
        ("report.csv", report.cells_csv()),
        ("samples.csv", report.samples_csv()),
        (PAGE, RunReport { extras: &extras, ..*report }.html()?),
    ];
    files.iter().chain(&study).try_for_each(|(name, text)| stored::write(&folder.join(name), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_one_number_or_two() {
        assert_eq!(repeats("5"), Ok((5, None)));
        assert_eq!(repeats("5:15"), Ok((5, Some(15))));
        for text in ["", "0", "5:", "5:4", "a", "1:2:3", "1001"] {
            assert!(repeats(text).is_err(), "{text}");
        }
    }
}

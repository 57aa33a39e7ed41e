//! `claviger identify`: identifies files without a credential.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::diagnosis::{self, Diagnosis, Look, Opinion};
use claviger_engine::file_formats::efs::EFS;
use claviger_engine::formats::partition::Candidate;
use claviger_engine::store::Access;
use claviger_engine::{FORMATS, FileFormat, Verdict, formats};
use serde::Serialize;

use crate::opening::{images, remote};
use crate::terminal::advice;
use crate::terminal::exit::{self, Failure, Silent};
use crate::terminal::file_name::FileName;
use crate::terminal::left_out::gravest;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// Identify files and devices, without a password
///
/// Formats without a signature look like random bytes and are reported as "possibly" a volume. On a disk, each
/// partition is examined too. Nothing is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger identify old.tc
  claviger identify --json /dev/sd*")]
pub struct Args {
    /// Files, block devices, or encrypted folders
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer for one of the named files.
#[derive(Serialize)]
#[serde(untagged)]
enum Examined {
    Identified(Box<Identified>),
    Failed {
        #[serde(flatten)]
        path: FileName,
        error: Failure,
    },
}

#[derive(Serialize)]
struct Identified {
    #[serde(flatten)]
    path: FileName,
    /// The size in bytes; `None` for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The best of the verdicts.
    verdict: &'static str,
    /// The first format with that verdict.
    format: Option<&'static str>,
    /// All formats with that verdict.
    candidates: Vec<&'static str>,
    /// The opinion of each format.
    formats: Vec<Reasoned>,
    /// Whether the file begins with random-looking bytes, as volumes without a header do.
    begins_random: bool,
    /// Formats whose header may have a copy there, although the file does not begin like a volume.
    by_header_copy: Vec<&'static str>,
    /// The partitions of a disk, and the possible formats of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<Vec<Candidate>>,
    /// The error in the partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition_table: Option<String>,
    /// What to do next, in sentences with commands.
    #[serde(skip)]
    steps: Vec<String>,
}

/// A format's verdict and its reasons.
#[derive(Serialize)]
struct Reasoned {
    format: &'static str,
    verdict: &'static str,
    why: Vec<String>,
}

impl Reasoned {
    fn of(opinion: Opinion) -> Self {
        let (_, verdict) = rank(&opinion.verdict);
        let (Verdict::No(why) | Verdict::Possible(why) | Verdict::Yes(why)) = opinion.verdict;
        Self { format: opinion.format, verdict, why }
    }
}

impl Examined {
    fn identified(&self) -> Option<&Identified> {
        if let Self::Identified(identified) = self { Some(identified) } else { None }
    }

    /// The exit code; `None` if the file may hold a volume.
    fn code(&self) -> Option<u8> {
        match self {
            Self::Identified(identified) => (!identified.promising()).then_some(Silent::not_this_format().0),
            Self::Failed { error, .. } => Some(error.exit_code),
        }
    }
}

impl Identified {
    /// Whether the file may hold a volume.
    fn promising(&self) -> bool {
        self.format.is_some() || self.partitions.iter().flatten().any(|p| !p.formats.is_empty())
    }

    fn is_folder(&self) -> bool {
        self.size.is_none()
    }

    /// Whether the file may be a volume without a header.
    fn could_be_headerless(&self) -> bool {
        self.begins_random && self.verdict != "yes" && self.partitions.is_none()
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let examine = |path: &PathBuf| match identify(path) {
        Ok(identified) => Examined::Identified(Box::new(identified)),
        // An error in one file must not keep the others from being examined.
        Err(e) => {
            let e = anyhow::Error::new(e);
            exit::report(&e, args.json);
            Examined::Failed { path: FileName::path(path), error: Failure::of(&e) }
        }
    };
    let examined: Vec<_> = args.files.iter().map(examine).collect();
    output::print(&examined, args.json)?;
    let codes: Vec<_> = examined.iter().filter_map(Examined::code).collect();
    gravest(&codes).map_or(Ok(()), |code| Err(Silent(code).into()))
}

fn identify(path: &Path) -> claviger_engine::Result<Identified> {
    if path.is_dir() {
        return Ok(Identified::of(path, diagnosis::look_at_folder(path)?));
    }
    let store = remote::open(path, Access::ReadOnly)?;
    let diagnosis = diagnosis::look(&store).map_err(|e| e.at(path))?;
    // Only a hint: a disk that fails near its end is identified, too.
    let candidates = diagnosis.candidates(&*store).unwrap_or_default();
    let Diagnosis { size, content, mark, partitions, partition_trouble, formats, .. } = diagnosis;
    let begins_random = content.is_some_and(|content| content.begins == Look::Random);
    let identified = Identified { size: Some(size), begins_random, ..Identified::of(path, formats) };
    let beheaded = identified.format.is_none() && partitions.is_empty();
    let by_header_copy = candidates.iter().filter(|_| beheaded).map(|format| format.name()).collect();
    let identified = Identified { by_header_copy, ..identified };
    let partitions = (!partitions.is_empty()).then_some(partitions);
    let identified = Identified { partitions, partition_table: partition_trouble, ..identified };
    let mark = mark.filter(|_| identified.format.is_none());
    let to_contents = mark.iter().flat_map(|mark| images::steps(mark, &identified.path, "explain")).map(in_one_line);
    let steps = to_contents.chain(identified.trials(path)).collect();
    Ok(Identified { steps, ..identified })
}

fn in_one_line((what, command): (String, Option<String>)) -> String {
    command.map_or(what.clone(), |command| format!("{what} {command}"))
}

impl Identified {
    fn of(path: &Path, formats: Vec<Opinion>) -> Self {
        let best = formats.iter().map(|o| rank(&o.verdict)).max().unwrap_or((0, "no"));
        let candidates: Vec<_> = match best {
            (0, _) => Vec::new(),
            best => formats.iter().filter(|o| rank(&o.verdict) == best).map(|o| o.format).collect(),
        };
        Self {
            path: FileName::path(path),
            size: None,
            verdict: best.1,
            format: candidates.first().copied(),
            candidates,
            formats: formats.into_iter().map(Reasoned::of).collect(),
            begins_random: false,
            by_header_copy: Vec::new(),
            partitions: None,
            partition_table: None,
            steps: Vec::new(),
        }
    }

    /// How to find out whether the file is a volume: by trying its password.
    fn trials(&self, path: &Path) -> Vec<String> {
        let candidates = self.partitions.iter().flatten().filter(|candidate| !candidate.formats.is_empty());
        let numbers: Vec<_> = candidates.map(|candidate| candidate.partition.number.to_string()).collect();
        let partition = match &numbers[..] {
            [] => String::new(),
            [number] => format!("--partition={number} "),
            _ => "--partition=N ".to_owned(),
        };
        let mut steps = Vec::new();
        if self.verdict == "possible" || !partition.is_empty() {
            steps.push(format!("To try a password: `claviger explain {partition}VOLUME`"));
        }
        if !self.by_header_copy.is_empty() {
            let names = self.by_header_copy.join(" or ");
            let what =
                format!("If the beginning of a volume was overwritten, a copy of its header may open it ({names})");
            steps.push(format!("{what}: `claviger explain VOLUME`"));
        }
        if self.could_be_headerless() {
            let names: Vec<_> = FORMATS.iter().filter(|f| f.headerless()).map(|f| f.name()).collect();
            let names = names.join(", ");
            steps.push(format!("{names}: no header; only `claviger explain --format NAME VOLUME` can tell"));
        }
        steps.iter().map(|step| advice::about(step, path)).collect()
    }
}

fn rank(verdict: &Verdict) -> (u8, &'static str) {
    match verdict {
        Verdict::No(_) => (0, "no"),
        Verdict::Possible(_) => (1, "possible"),
        Verdict::Yes(_) => (2, "yes"),
    }
}

impl Report for Vec<Examined> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for file in self.iter().filter_map(Examined::identified) {
            let names = file.candidates.join(" or ");
            let path = output::printable(&file.path);
            match (file.verdict, file.format) {
                ("yes", Some(_)) if file.is_folder() => writeln!(out, "{path}: an encrypted folder: {names}")?,
                (_, None) if file.is_folder() => writeln!(out, "{path}: not an encrypted folder of any known format")?,
                ("yes", Some(_)) => writeln!(out, "{path}: {names}")?,
                (_, Some(_)) => writeln!(out, "{path}: possibly {names}")?,
                (_, None) if file.promising() => writeln!(out, "{path}: a disk with partitions that could be volumes")?,
                (_, None) => writeln!(out, "{path}: not a volume of any known format")?,
            }
            let headerless = |o: &&Reasoned| FORMATS.iter().any(|f| f.name() == o.format && f.headerless());
            // That a local folder is not on an NTFS is obvious.
            let obvious = |o: &&Reasoned| o.format == EFS.name() && o.verdict == "no";
            let shown = file.formats.iter().filter(|o| !headerless(o) && !obvious(o));
            for reason in formats::by_reason(shown.flat_map(|o| o.why.iter().map(|why| (o.format, &**why)))) {
                writeln!(out, "  {reason}")?;
            }
            for candidate in file.partitions.iter().flatten() {
                writeln!(out, "  {}", line_of(candidate))?;
            }
            if let Some(why) = &file.partition_table {
                writeln!(out, "  partition table: {why}")?;
            }
            for step in &file.steps {
                writeln!(out, "  {step}")?;
            }
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Result<String> {
        output::json_list(self)
    }
}

/// A partition as a line: `partition 2 "data", 1 GiB, Linux: possibly TrueCrypt (--partition 2)`.
fn line_of(candidate: &Candidate) -> String {
    let p = &candidate.partition;
    let name = p.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let kind = p.usual.map_or_else(|| format!("type {}", p.kind), str::to_owned);
    let verdict = match &candidate.formats[..] {
        [] => "not a volume of any known format".to_owned(),
        formats => format!("possibly {} (--partition {})", formats.join(" or "), p.number),
    };
    format!("partition {}{name}, {}, {kind}: {verdict}", p.number, size::short(p.len))
}

//! A run in progress: a file that gets a line of JSON after every pass, and from which the run can be resumed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::internal::files;
use claviger_engine::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::measure::run::reading;
use crate::model::figures::{Pass, Run, RunFailure, SCHEMA, Sitting, Trace};
use crate::model::machine::Moment;

/// Name of the file in the folder of a run.
pub const FILE: &str = "run.jsonl";

/// A line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// The first line: a run in which nothing has been measured yet.
    Begin(Box<Run>),
    /// The lab starts measuring, or resumes.
    Sitting(Sitting),
    /// A workload was done.
    Pass {
        /// Figures.
        pass: Box<Pass>,
        /// Requests over time.
        #[serde(default)]
        traces: Vec<Trace>,
        /// A note for the reader.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// Something failed.
    Failure(RunFailure),
    /// A facility cannot do a workload.
    LeftOut(LeftOutPair),
    /// The lab stops to measure.
    End(Moment),
}

/// A facility that is not measured with a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutPair {
    /// Name of the facility.
    pub facility: String,
    /// Name of the workload.
    pub workload: String,
    /// Why, for people.
    pub reason: String,
}

/// The state that a journal's lines add up to.
#[derive(Clone, Debug)]
pub struct RunState {
    /// Everything that a reader of the run gets.
    pub run: Run,
    /// Which facilities are not measured with which workloads.
    pub left_out: Vec<LeftOutPair>,
    /// How often creating or opening each facility has failed since it last worked.
    in_a_row: BTreeMap<String, usize>,
}

/// After this many consecutive failures to create or open it, a facility is no longer measured. A temporary cause, such as
/// a full disk, is gone by the second attempt: see [`measure`](super::measure).
const PATIENCE: usize = 2;

impl RunState {
    /// Nothing is measured yet.
    pub fn new(run: Run) -> Self {
        Self { run, left_out: Vec::new(), in_a_row: BTreeMap::new() }
    }

    /// Adds what happened.
    pub fn add(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Begin(run) => *self = Self::new(*run),
            JournalEntry::Sitting(sitting) => self.run.sittings.push(sitting),
            JournalEntry::Pass { pass, traces, notes } => {
                self.in_a_row.remove(&pass.facility);
                self.run.passes.push(*pass);
                self.run.traces.extend(traces);
                notes.into_iter().for_each(|note| self.note(note));
            }
            JournalEntry::Failure(failure) => {
                match failure.workload {
                    None => *self.in_a_row.entry(failure.facility.clone()).or_default() += 1,
                    Some(_) => drop(self.in_a_row.remove(&failure.facility)),
                }
                self.run.failures.push(failure);
            }
            JournalEntry::LeftOut(left_out) => {
                let LeftOutPair { facility, workload, reason } = &left_out;
                self.note(format!("{facility} is not measured with {workload}: {reason}"));
                self.left_out.push(left_out);
            }
            JournalEntry::End(moment) => {
                if let Some(sitting) = self.run.sittings.last_mut() {
                    sitting.after = Some(moment);
                }
            }
        }
    }

    /// The name of a facility's baseline.
    pub fn baseline(&self, facility: &str) -> Option<&str> {
        self.run.facilities.iter().find(|f| f.name == facility)?.baseline.as_deref()
    }

    /// Whether a facility is not measured at all, or no longer.
    pub fn is_out(&self, facility: &str) -> bool {
        let left_out = self.run.facilities.iter().any(|f| f.name == facility && f.left_out.is_some());
        left_out || self.in_a_row.get(facility).is_some_and(|times| *times >= PATIENCE)
    }

    /// Whether a facility cannot do a workload.
    pub fn is_left_out(&self, facility: &str, workload: &str) -> bool {
        self.left_out.iter().any(|l| l.facility == facility && l.workload == workload)
    }

    fn note(&mut self, note: String) {
        if !self.run.notes.contains(&note) {
            self.run.notes.push(note);
        }
    }
}

/// A journal that is open for appending, exclusively.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins the journal of this run in a new folder.
    ///
    /// # Errors
    /// `Io`, also where the folder is there already.
    pub fn begin(folder: &Path, run: &Run) -> Result<Self> {
        std::fs::create_dir(folder).map_err(|e| Error::from(e).at(folder))?;
        let path = folder.join(FILE);
        let file = OpenOptions::new().create_new(true).read(true).append(true).open(&path);
        let mut journal = Self { file: file.map_err(|e| Error::from(e).at(&path))?, path };
        journal.lock()?;
        journal.add(&JournalEntry::Begin(Box::new(run.clone())))?;
        let named = files::sync_folder(&journal.path).and_then(|()| files::sync_folder(folder));
        named.map_err(|e| Error::from(e).at(folder))?;
        Ok(journal)
    }

    /// Opens the journal in this folder to resume. An incomplete last line is cut off.
    ///
    /// # Errors
    /// Those of [`read`]; `InUse` where somebody else adds to it.
    pub fn resume(folder: &Path) -> Result<(Self, RunState)> {
        let path = folder.join(FILE);
        let file = OpenOptions::new().read(true).append(true).open(&path).map_err(|e| Error::from(e).at(&path))?;
        let journal = Self { file, path };
        journal.lock()?;
        let bytes = reading::read(&journal.file).map_err(|e| e.at(&journal.path))?;
        let (state, whole) = parse(&bytes, &journal.path)?;
        let cut = journal.file.set_len(whole).and_then(|()| journal.file.sync_all());
        cut.map_err(|e| Error::from(e).at(&journal.path))?;
        Ok((journal, state))
    }

    /// Adds a line and makes it durable.
    ///
    /// # Errors
    /// `Io`.
    pub fn add(&mut self, entry: &JournalEntry) -> Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::from)?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        written.map_err(|e| Error::from(e).at(&self.path))
    }

    fn lock(&self) -> Result<()> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => {
                Err(Error::from(ErrorKind::InUse { holder: Some("another lab run".into()) }).at(&self.path))
            }
            Err(e) => Err(Error::from(io::Error::from(e)).at(&self.path)),
        }
    }
}

/// The state recorded in this folder's journal. An incomplete last line is ignored.
///
/// # Errors
/// `Io`; `Malformed` where an earlier line makes no sense; `Unsupported` where it is of another version.
pub fn read(folder: &Path) -> Result<RunState> {
    let path = folder.join(FILE);
    Ok(parse(&reading::read_file(&path)?, &path)?.0)
}

/// The state, and how many bytes are whole lines.
fn parse(bytes: &[u8], path: &Path) -> Result<(RunState, u64)> {
    // Whatever follows the last newline is incomplete.
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1);
    let mut state: Option<RunState> = None;
    let mut offset = 0;
    for line in bytes[..whole].split_inclusive(|&b| b == b'\n') {
        let damaged = |what: String| malformed(offset, what).at(path);
        let entry: JournalEntry = serde_json::from_slice(line).map_err(|e| damaged(e.to_string()))?;
        match (&mut state, entry) {
            (None, JournalEntry::Begin(run)) if run.schema == SCHEMA => state = Some(RunState::new(*run)),
            (None, JournalEntry::Begin(run)) => {
                let other = format!("a run in format {}; this program supports format {SCHEMA}", run.schema);
                return Err(Error::unsupported(other).at(path));
            }
            (None, _) => return Err(damaged("the beginning of the run is missing".into())),
            (Some(_), JournalEntry::Begin(_)) => return Err(damaged("a run begins in the middle of another".into())),
            (Some(state), entry) => state.add(entry),
        }
        offset += line.len() as u64;
    }
    let nothing = || malformed(0, "the run was interrupted before anything was measured".into()).at(path);
    let state = state.ok_or_else(nothing)?;
    reading::check(&state.run).map_err(|e| e.at(path))?;
    Ok((state, whole as u64))
}

fn malformed(offset: u64, what: String) -> Error {
    ErrorKind::Malformed { field: "line", offset, what }.into()
}

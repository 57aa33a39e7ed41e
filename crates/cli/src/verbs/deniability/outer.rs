//! What a given password reveals beyond the bytes: a hidden volume that it opens, or the free space of an outer volume.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use claviger_engine::diagnosis::observer::is_noise;
use claviger_engine::filesystems::free_tail::{FreeTail, behind_its_end, free_tail};
use claviger_engine::filesystems::{self, Kind};
use claviger_engine::formats::Facts;
use claviger_engine::trees::{Node, NodeKind, Tree};
use claviger_engine::{Error, ErrorKind, Result, Volume};

use super::finding::{Finding, Sure, View, What};
use crate::terminal::date::date;
use crate::terminal::size;

/// The number of names examined for the newest time.
const NAMES: usize = 100_000;

/// Smaller differences mean nothing: FAT stores local times, and a volume that is used without changing a file keeps
/// all times inside.
const SLACK: Duration = Duration::from_secs(26 * 3600);

/// The findings that the password of the volume at `path` allows.
pub fn findings(path: &Path, volume: &Arc<Volume>, facts: &Facts) -> Result<Vec<Finding>> {
    let (at, len) = (facts.data_offset, facts.size);
    if facts.hidden {
        let sees = format!("The password opens a hidden volume at bytes {at} to {}.", at + len);
        return Ok(vec![
            Finding::nothing("hidden", View::Password, sees).gives(What::Hidden, Sure::Certain).advised(
                "Give this password to nobody. Open the outer volume only with --read-only or --protect-hidden. Otherwise its file \
                 system overwrites the hidden volume; a journal (ext4, NTFS) does so even if you write no file.",
            ),
        ]);
    }
    let mut findings = vec![end_of_its_files(volume)?];
    let modified = std::fs::metadata(path).map_err(|e| Error::from(e).at(path))?;
    if modified.is_file() {
        findings.extend(times(volume, modified.mtime()));
    }
    Ok(findings)
}

fn end_of_its_files(volume: &Volume) -> Result<Finding> {
    let name = "free-space";
    if let Ok(Some(behind)) = behind_its_end(volume) {
        let sees = format!("Its file system ends {} before the volume. An observer may ask why.", size::exact(behind));
        return Ok(Finding::nothing(name, View::Password, sees).gives(What::Hidden, Sure::Likely).advised(
            "Make the outer file system as large as its volume, and always write to it with --protect-hidden.",
        ));
    }
    let tail = match free_tail(volume) {
        Err(Error { kind: ErrorKind::Io(e), .. }) => return Err(e.into()),
        Err(e) => {
            let sees = format!("The free space of its file system is unknown: {}.", e.kind);
            return Ok(Finding::nothing(name, View::Password, sees));
        }
        Ok(tail) => tail,
    };
    let FreeTail { at, end, filesystem } = tail;
    let sees = format!(
        "Its {filesystem} has free space from byte {at} to its end, {}. A hidden volume may be there, as in every volume that was \
         filled with noise.",
        size::exact(end - at)
    );
    let detected = filesystems::detect(volume)?;
    let journal = detected.is_some_and(|found| matches!(found.kind, Kind::Ntfs | Kind::Ext3 | Kind::Ext4));
    let finding = Finding::nothing(name, View::Password, sees);
    Ok(if journal {
        finding.advised("Mounting a file system with a journal writes to it. Use --read-only or --protect-hidden.")
    } else {
        finding
    })
}

/// Whether the file was written long after the newest file inside: then something else was written.
fn times(volume: &Arc<Volume>, modified: i64) -> Option<Finding> {
    let (_, tree) = filesystems::open(Arc::clone(volume) as _).ok()?;
    let newest = newest(&*tree)?;
    let seconds = newest.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs() as i64;
    let sees = format!("The newest time inside is {}. The file was last written {}.", date(seconds), date(modified));
    let finding = Finding::nothing("inner-times", View::Password, sees);
    if modified - seconds <= SLACK.as_secs() as i64 {
        return Some(finding);
    }
    Some(finding.gives(What::Hidden, Sure::Possible).advised(
        "Use the outer volume as often as the hidden one. Or write with --keep-times, which restores the file's times; backup \
         programs then miss the changes.",
    ))
}

/// The newest time of any file or folder.
fn newest(tree: &dyn Tree) -> Option<SystemTime> {
    let mut newest = None;
    let mut folders: Vec<Node> = vec![tree.root()];
    let mut names = 0;
    while let Some(folder) = folders.pop() {
        for entry in tree.list(folder).ok()? {
            let node = tree.take(folder, &entry).ok()?;
            let times = tree.attributes(node).ok()?;
            newest = newest.max(times.modified).max(times.changed).max(times.created);
            folders.extend((entry.kind == NodeKind::Folder).then_some(node));
            names += 1;
        }
        if names > NAMES {
            return None;
        }
    }
    newest
}

/// The free space at the end of the outer volume's file system, and the changes in it between two copies.
pub struct Free {
    now: Arc<Volume>,
    data_at: u64,
    /// The range in the volume, in bytes.
    range: Range<u64>,
    noise: u64,
    other: u64,
}

impl Free {
    /// The space that was free in both copies. `None` for a hidden volume, and if the free space is unknown.
    pub fn of(now: Arc<Volume>, facts: &Facts, before: Option<&Volume>) -> Result<Option<Self>> {
        if facts.hidden {
            return Ok(None);
        }
        let tail = |volume: &Volume| match free_tail(volume) {
            Err(Error { kind: ErrorKind::Io(e), .. }) => Err(Error::from(e)),
            tail => Ok(tail.ok()),
        };
        let Some(free) = tail(&now)? else { return Ok(None) };
        let then = before.map_or(Ok(None), tail)?;
        let range = free.at.max(then.map_or(0, |then| then.at))..free.end;
        Ok(Some(Self { now, data_at: facts.data_offset, range, noise: 0, other: 0 }))
    }

    /// Examines a changed sector, which is stored at `at`.
    pub fn changed(&mut self, at: u64) -> Result<()> {
        let Some(at) = at.checked_sub(self.data_at).filter(|at| self.range.contains(at)) else { return Ok(()) };
        let noise = is_noise(&*self.now, at)?;
        *if noise { &mut self.noise } else { &mut self.other } += 1;
        Ok(())
    }

    pub fn finding(self) -> Finding {
        let Self { range, noise, other, .. } = self;
        let sees = format!(
            "Of the sectors from byte {} on that are free in both copies, {} were changed. With this password, {noise} decrypt \
             to noise and {other} to data that could be a file's.",
            range.start,
            noise + other
        );
        let finding = Finding::nothing("changed-free", View::TwoCopies, sees);
        if noise == 0 {
            return finding;
        }
        finding.gives(What::Hidden, Sure::Likely).advised(
            "This reveals a hidden volume. Destroy the older copies, or be ready to name an encrypted or compressed file that you \
             deleted since.",
        )
    }
}

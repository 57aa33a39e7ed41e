//! Surveys all names before the first write. Two names may share clusters, or a name may have clusters that are marked as free. A
//! seemingly harmless change would then destroy data.
//!
//! A file system that was not unmounted cleanly is surveyed completely, however long that takes. Any other is surveyed up to a
//! limit.

use std::collections::{HashMap, HashSet};
use std::io;

use super::boot_sector::BootSector;
use super::entry::LEN;
use super::layout::{FoundEntry, Parsed, Record};
use super::node::{ROOT, State};
use super::table::{Chain, ChainEnd};

/// The limits for a file system that was unmounted cleanly: folders, bytes in them, and clusters.
const FOLDERS: usize = 1000;
const BYTES: usize = 16 << 20;
const CLUSTERS: usize = 4 << 20;

/// The most names in a message, and the longest path in bytes.
const NAMES: usize = 4;
const LONGEST_PATH: usize = 2000;

/// The result of a survey.
#[derive(Default)]
pub struct Survey {
    /// Reasons for refusing all writes.
    pub faults: Vec<String>,
    /// Other warnings for the user.
    pub notes: Vec<String>,
    /// Offsets of entries left behind by a crash: old names of renamed files, and parts of names without a file.
    pub superfluous: Vec<u64>,
}

/// A name whose clusters another name also has.
struct Claimant {
    path: String,
    entry: Box<dyn Record>,
    first: u32,
    /// The offsets of its entries.
    places: Vec<u64>,
}

/// A folder that has not been read yet.
struct Ahead {
    path: String,
    /// `None` for a root in its own area.
    chain: Option<Chain>,
}

/// A set of clusters.
struct Clusters(Vec<u64>);

impl Clusters {
    fn new(clusters: u32) -> Self {
        Self(vec![0; (clusters as usize + 2).div_ceil(64)])
    }

    fn has(&self, cluster: u32) -> bool {
        self.0.get(cluster as usize / 64).is_some_and(|bits| bits >> (cluster % 64) & 1 == 1)
    }

    /// Adds a cluster. Returns whether it was already in the set.
    fn add(&mut self, cluster: u32) -> bool {
        let before = self.has(cluster);
        if let Some(bits) = self.0.get_mut(cluster as usize / 64) {
            *bits |= 1 << (cluster % 64);
        }
        before
    }
}

/// Handles each item during a walk through all folders.
trait Visitor {
    /// Called for a file or folder with a record. Returns whether the walk should descend into it.
    fn found(
        &mut self,
        state: &mut State,
        path: &str,
        found: &FoundEntry,
        chain: &Chain,
        end: ChainEnd,
        at: &Slots,
    ) -> io::Result<bool>;

    /// Called for a folder that cannot be read.
    fn unread(&mut self, _path: &str, _why: &io::Error) -> io::Result<()> {
        Ok(())
    }

    /// Called with the contents of a folder.
    fn folder(&mut self, _path: &str, _parsed: &Parsed, _at: &Slots) {}
}

/// The locations of a folder's entries.
struct Slots {
    begin: u64,
    chain: Option<Chain>,
    boot: BootSector,
}

impl Slots {
    fn place(&self, slot: u32) -> u64 {
        let into = u64::from(slot) * LEN as u64;
        let Some(chain) = &self.chain else { return self.begin + into };
        let cluster = u64::from(self.boot.cluster);
        let (number, _) = chain.at((into / cluster) as u32).unwrap_or((2, 0));
        self.boot.cluster_at(number) + into % cluster
    }

    fn places(&self, slots: std::ops::Range<u32>) -> Vec<u64> {
        slots.map(|slot| self.place(slot)).collect()
    }
}

impl State {
    /// Surveys the names: all of them if `whole`, otherwise up to the limits.
    pub fn survey(&mut self, whole: bool) -> io::Result<Survey> {
        let mut first = First::new(self, whole);
        if let (None, Ok(root)) = (self.fixed_root(), self.chain_of(ROOT)) {
            for cluster in root.iter() {
                first.claimed.add(cluster);
            }
        }
        self.walk(&mut first, whole)?;
        let mut survey = first.survey;
        if first.any_shared {
            let mut second = Second { shared: first.shared, claimants: Vec::new(), seen: HashSet::new() };
            self.walk(&mut second, whole)?;
            judge(second.claimants, self.layout.checker(), &mut survey);
        }
        // A broken old name can be removed if another name has its clusters.
        for (first_cluster, places, path) in first.broken {
            match first_cluster == 0 || first.claimed.has(first_cluster) {
                true => survey.superfluous.extend(places),
                false => survey.notes.push(damaged_note(&path, self.layout.checker())),
            }
        }
        Ok(survey)
    }

    fn walk(&mut self, visitor: &mut dyn Visitor, whole: bool) -> io::Result<()> {
        let root = match self.fixed_root() {
            Some(_) => None,
            None => match self.chain_of(ROOT) {
                Ok(chain) => Some(chain),
                Err(e) => return visitor.unread("/", &e),
            },
        };
        let mut ahead = vec![Ahead { path: String::new(), chain: root }];
        let (mut folders, mut bytes, mut clusters) = (0, 0, 0);
        while let Some(next) = ahead.pop() {
            if !whole && (folders == FOLDERS || bytes > BYTES || clusters > CLUSTERS) {
                break;
            }
            folders += 1;
            let content = match self.bytes_of(next.chain.as_ref()) {
                Ok(content) => content,
                Err(e) => {
                    visitor.unread(&next.path, &e)?;
                    continue;
                }
            };
            bytes += content.len();
            let parsed = self.layout.parse(&content, next.path.is_empty());
            let at = self.slots(next.chain);
            visitor.folder(&next.path, &parsed, &at);
            for found in &parsed.found {
                // A file whose chain cannot be followed cannot be changed either.
                let Ok((chain, end)) = self.trace(&*found.entry) else { continue };
                if self.is_reserved(&chain) {
                    continue;
                }
                clusters += chain.count() as usize;
                let above = if next.path.len() > LONGEST_PATH { "…" } else { &next.path };
                let path = format!("{above}/{}", found.name);
                if visitor.found(self, &path, found, &chain, end, &at)? && found.entry.is_folder() && chain.count() > 0
                {
                    ahead.push(Ahead { path, chain: Some(chain) });
                }
            }
        }
        Ok(())
    }

    fn slots(&self, chain: Option<Chain>) -> Slots {
        Slots { begin: self.fixed_root().unwrap_or(0), chain, boot: self.boot.clone() }
    }
}

/// The first walk: finds clusters with two names, and names whose clusters are free.
struct First {
    claimed: Clusters,
    shared: Clusters,
    any_shared: bool,
    /// Broken sets of old names: the first cluster, the entries, and the folder.
    broken: Vec<(u32, Vec<u64>, String)>,
    unclean: bool,
    survey: Survey,
    checker: &'static str,
}

impl First {
    fn new(state: &State, unclean: bool) -> Self {
        let none = || Clusters::new(state.boot.clusters);
        Self {
            claimed: none(),
            shared: none(),
            any_shared: false,
            broken: Vec::new(),
            unclean,
            survey: Survey::default(),
            checker: state.layout.checker(),
        }
    }
}

impl Visitor for First {
    fn found(
        &mut self,
        state: &mut State,
        path: &str,
        _: &FoundEntry,
        chain: &Chain,
        end: ChainEnd,
        _: &Slots,
    ) -> io::Result<bool> {
        let mut free = matches!(end, ChainEnd::Free(_));
        let mut new = true;
        for cluster in chain.iter() {
            if self.claimed.add(cluster) {
                self.shared.add(cluster);
                self.any_shared = true;
                new = false;
            }
            // With exFAT, the bitmap decides. FAT chains end at a free cluster.
            free = free || state.table.bitmap.is_some() && state.table.is_free(cluster)?;
        }
        if free && self.survey.faults.len() < NAMES {
            let checker = self.checker;
            self.survey
                .faults
                .push(format!("{path} uses clusters marked as free: copy it elsewhere, then run {checker}"));
        }
        // Descend only once into a folder with two names.
        Ok(new)
    }

    fn unread(&mut self, path: &str, why: &io::Error) -> io::Result<()> {
        self.survey.faults.push(format!("the folder {path} cannot be read ({why}): run {}", self.checker));
        Ok(())
    }

    fn folder(&mut self, path: &str, parsed: &Parsed, at: &Slots) {
        let shown = if path.is_empty() { "/" } else { path };
        for damaged in &parsed.damaged {
            match damaged.leaving {
                Some(first) => self.broken.push((first, at.places(damaged.slots.clone()), shown.to_owned())),
                None if self.survey.notes.len() < NAMES => self.survey.notes.push(damaged_note(shown, self.checker)),
                None => {}
            }
        }
        if self.unclean {
            self.survey.superfluous.extend(parsed.stray_names.iter().map(|slot| at.place(*slot)));
        }
    }
}

fn damaged_note(folder: &str, checker: &str) -> String {
    format!("{folder} has damaged entries and is read-only: run {checker}")
}

/// The second walk: finds the names of shared clusters.
struct Second {
    shared: Clusters,
    claimants: Vec<Claimant>,
    /// The first clusters of the names found so far.
    seen: HashSet<u32>,
}

impl Visitor for Second {
    fn found(
        &mut self,
        _: &mut State,
        path: &str,
        found: &FoundEntry,
        chain: &Chain,
        _: ChainEnd,
        at: &Slots,
    ) -> io::Result<bool> {
        if !chain.iter().any(|cluster| self.shared.has(cluster)) {
            return Ok(true);
        }
        let places = at.places(found.slots.clone());
        let first = chain.first().unwrap_or(0);
        self.claimants.push(Claimant { path: path.to_owned(), entry: found.entry.copy(), first, places });
        Ok(self.seen.insert(first))
    }
}

/// Decides which of several names on the same clusters is the old one. Reports a fault if that is uncertain.
fn judge(claimants: Vec<Claimant>, checker: &str, survey: &mut Survey) {
    let mut by_first: HashMap<u32, Vec<&Claimant>> = HashMap::new();
    claimants.iter().for_each(|claimant| by_first.entry(claimant.first).or_default().push(claimant));
    let renamed: Option<Vec<&Claimant>> = by_first.values().map(|names| left_by_rename(names)).collect();
    if let Some(old) = renamed {
        survey.superfluous.extend(old.iter().flat_map(|name| &name.places));
        return;
    }
    let more = claimants.len().saturating_sub(NAMES);
    let mut names = claimants.iter().take(NAMES).map(|name| name.path.as_str()).collect::<Vec<_>>().join(", ");
    if more > 0 {
        names += &format!(" and {more} more");
    }
    survey.faults.push(format!(
        "{names} share clusters, so changing one would destroy another: copy them elsewhere, then run {checker}, \
         which keeps only one of them"
    ));
}

/// The old name of two with the same contents: the marked one, or either if their paths are equal.
fn left_by_rename<'a>(names: &[&'a Claimant]) -> Option<&'a Claimant> {
    let [one, other] = names else { return None };
    if !one.entry.same_contents(&*other.entry) {
        return None;
    }
    match (one.entry.leaving(), other.entry.leaving()) {
        (true, false) => Some(one),
        (false, true) => Some(other),
        // The same name twice in a folder: the record was being moved into one sector.
        (false, false) if one.path == other.path => Some(other),
        _ => None,
    }
}

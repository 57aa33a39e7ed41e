//! A look at all names before anything is written: two that have the same clusters, or one whose clusters others may be given, are
//! destroyed by a change that looks harmless.
//!
//! A file system that was not unmounted cleanly is looked at whole, however long that takes; any other up to a limit.

use std::collections::{HashMap, HashSet};
use std::io;

use super::boot_sector::BootSector;
use super::entry::LEN;
use super::layout::{FoundEntry, Parsed, Record};
use super::node::{ROOT, State};
use super::table::{Chain, ChainEnd};

/// What is looked at of a file system that was unmounted cleanly: folders, bytes in them, and clusters.
const FOLDERS: usize = 1000;
const BYTES: usize = 16 << 20;
const CLUSTERS: usize = 4 << 20;

/// Names that a message has, and the longest path in bytes.
const NAMES: usize = 4;
const LONGEST_PATH: usize = 2000;

/// What was found.
#[derive(Default)]
pub struct Survey {
    /// Why nothing may be written.
    pub faults: Vec<String>,
    /// What people should know besides.
    pub notes: Vec<String>,
    /// Offsets of entries that a crash has left over: old names of files that have a new one, and parts of names without a file.
    pub superfluous: Vec<u64>,
}

/// A name on clusters that another has, too.
struct Claimant {
    path: String,
    entry: Box<dyn Record>,
    first: u32,
    /// Offsets of its entries.
    places: Vec<u64>,
}

/// A folder that is still to be read.
struct Ahead {
    path: String,
    /// Nothing for a root that has an area of its own.
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

    /// Whether it was there before.
    fn add(&mut self, cluster: u32) -> bool {
        let before = self.has(cluster);
        if let Some(bits) = self.0.get_mut(cluster as usize / 64) {
            *bits |= 1 << (cluster % 64);
        }
        before
    }
}

/// What a walk through all folders tells of each.
trait Visitor {
    /// A file or folder that has a record: whether what is in it is to be seen, too.
    fn found(
        &mut self,
        state: &mut State,
        path: &str,
        found: &FoundEntry,
        chain: &Chain,
        end: ChainEnd,
        at: &Slots,
    ) -> io::Result<bool>;

    /// A folder that cannot be read.
    fn unread(&mut self, _path: &str, _why: &io::Error) -> io::Result<()> {
        Ok(())
    }

    /// All that a folder holds.
    fn folder(&mut self, _path: &str, _parsed: &Parsed, _at: &Slots) {}
}

/// Where the entries of a folder are.
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
    /// Looks at every name: all of them if `whole`.
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
        // A name that was on its way out when the file system was left has gone for good if its clusters have another.
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
                // What cannot be followed cannot be changed either.
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

/// Finds clusters that two names have, and names whose clusters are free.
struct First {
    claimed: Clusters,
    shared: Clusters,
    any_shared: bool,
    /// Sets of a name that was leaving: the first cluster, the entries, the folder.
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
            // FAT's chains end there.
            free = free || state.table.bitmap.is_some() && state.table.is_free(cluster)?;
        }
        if free && self.survey.faults.len() < NAMES {
            let checker = self.checker;
            self.survey
                .faults
                .push(format!("{path} uses clusters marked as free: copy it elsewhere, then run {checker}"));
        }
        // A folder with two names is descended into only once.
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

/// Finds the names of clusters that several have.
struct Second {
    shared: Clusters,
    claimants: Vec<Claimant>,
    /// First clusters of those.
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

/// Which of several names on the same clusters is the old one; a fault where that is not sure.
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

/// Of two names with the same contents, the one marked as leaving; if both have the same path, either.
fn left_by_rename<'a>(names: &[&'a Claimant]) -> Option<&'a Claimant> {
    let [one, other] = names else { return None };
    if !one.entry.same_contents(&*other.entry) {
        return None;
    }
    match (one.entry.leaving(), other.entry.leaving()) {
        (true, false) => Some(one),
        (false, true) => Some(other),
        // The same name twice in a folder: a record was brought into one sector.
        (false, false) if one.path == other.path => Some(other),
        _ => None,
    }
}

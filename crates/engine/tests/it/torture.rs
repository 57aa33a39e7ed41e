//! Every verb of every format that writes, interrupted at every point: what is left opens, what was flushed is there, and a second
//! run comes to the end. The scenarios stand beside the other tests of their formats; that none is missing is a test, too.
//!
//! A point is what one crash can leave, or one write or flush that fails. A part of them is a test; `make torture` continues until
//! there were 100,000 (`TORTURE_POINTS`), and says how many each scenario had.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use claviger_engine::formats::takes::{Parameter, Purpose};
use claviger_engine::formats::{
    self, HeaderAttributes, HeaderEditor, NewCredential, Prepared, Protection, Removal, RestoreFrom, TokenChange,
};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Format, Result, Secret, Store, Unlock, Volume};
use claviger_testkit::stores::{CrashStore, Depth, Fault, FaultStore, Operation};

use crate::support::all_of;

/// An operation that writes to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Create,
    CreateHidden,
    Change,
    Restore,
    Add,
    Replace,
    Remove,
    Set,
    Protect,
    Repair,
    Tokens,
    Convert,
    Resize,
    Encrypt,
    Decrypt,
    Reencrypt,
}

/// The functions of the library that write, or prepare what is written, and their verbs.
const FUNCTIONS: &[(&str, Verb)] = &[
    ("create_volume", Verb::Create),
    ("create_hidden_volume", Verb::CreateHidden),
    ("change", Verb::Change),
    ("restore", Verb::Restore),
    ("add", Verb::Add),
    ("replace", Verb::Replace),
    ("remove", Verb::Remove),
    ("set", Verb::Set),
    ("protect", Verb::Protect),
    ("repair", Verb::Repair),
    ("change_tokens", Verb::Tokens),
    ("convert", Verb::Convert),
    ("resize", Verb::Resize),
    ("begin_encryption", Verb::Encrypt),
    ("conversion", Verb::Decrypt),
];

type Read = Box<dyn Fn(&Arc<dyn Store>) -> Result<Vec<u8>> + Send + Sync>;
type Write = Box<dyn Fn(&Arc<dyn Store>) -> Result<()> + Send + Sync>;

/// A verb, carried out on a volume.
pub struct Scenario {
    pub format: &'static str,
    pub verb: Verb,
    pub name: String,
    /// The store's bytes before.
    pub before: Vec<u8>,
    /// The plaintext, which must be readable at every moment; `None` where the verb creates the volume.
    pub plaintext: Option<Vec<u8>>,
    /// Carries the verb out.
    pub act: Write,
    /// Reads the plaintext now, with any credential that opens the volume.
    pub read: Read,
    /// Goes on with whatever is there, as a person would, until the verb is done.
    pub finish: Write,
}

/// What opens a volume; can be copied.
#[derive(Clone)]
pub enum Key {
    Passphrase(String),
    Keyfile(Vec<u8>),
}

impl Key {
    pub fn credential(&self) -> Credential {
        match self {
            Self::Passphrase(text) => Credential::Passphrase(Secret::copy_from(text.as_bytes())),
            Self::Keyfile(bytes) => Credential::Keyfile(Secret::copy_from(bytes)),
        }
    }
}

/// A volume, and all that opens it before or after a change, with what keeps derivations few.
#[derive(Clone)]
pub struct Subject {
    pub format: &'static str,
    pub image: Vec<u8>,
    pub plaintext: Vec<u8>,
    pub keys: Vec<Key>,
    pub hash: Option<&'static str>,
    pub cipher: Option<&'static str>,
    pub pim: Option<u32>,
}

impl Subject {
    pub fn editor(&self) -> &'static dyn HeaderEditor {
        formats::by_name(self.format).expect("it is in the table").editor().expect("it has an editor")
    }

    /// Calls `with` with one key after the other until one does not fail.
    pub fn with_some_key<T>(&self, mut with: impl FnMut(&Unlock<'_>) -> Result<T>) -> Result<T> {
        let mut failed = None;
        for key in &self.keys {
            match self.with_key(key, &mut with) {
                Ok(done) => return Ok(done),
                Err(e) => failed = Some(failed.map_or_else(|| e.to_string(), |all| format!("{all}; {e}"))),
            }
        }
        Err(Error::misuse(failed.expect("there is a key")))
    }

    /// The same after what `prepare` says, and the same keys.
    pub fn after(&self, prepare: impl FnOnce(&dyn Store, &Unlock<'_>) -> Result<Prepared>) -> Self {
        let store = MemoryStore::new(self.image.clone());
        let prepared = self.with_key(&self.keys[0], |with| prepare(&store, with)).expect("it can be done");
        prepared.edit.carry_out(&store).expect("it is written");
        Self { image: store.to_vec(), ..self.clone() }
    }

    /// The same, and what is in it as the first key opens it.
    pub fn with_its_plaintext(self) -> Self {
        let plaintext = self.opened(&memory(&self.image), &self.keys[0]).expect("it opens");
        Self { plaintext, ..self }
    }

    /// With these bytes in the store.
    pub fn with_bytes(&self, at: usize, bytes: &[u8]) -> Self {
        let mut image = self.image.clone();
        image[at..][..bytes.len()].copy_from_slice(bytes);
        Self { image, ..self.clone() }
    }

    pub fn with_key<T>(&self, key: &Key, with: impl FnOnce(&Unlock<'_>) -> T) -> T {
        let credentials = [key.credential()];
        with(&Unlock { hash: self.hash, cipher: self.cipher, pim: self.pim, ..Unlock::with(&credentials) })
    }

    /// What is in the volume, if the key opens it.
    pub fn opened(&self, store: &Arc<dyn Store>, key: &Key) -> Result<Vec<u8>> {
        self.with_key(key, |with| self.read(store, with))
    }

    fn read(&self, store: &Arc<dyn Store>, with: &Unlock<'_>) -> Result<Vec<u8>> {
        // By name: where there is no header, every other format that has none would be tried.
        let read = |format| {
            let (_, header) = formats::open(store, Some(format))?;
            Ok(all_of(&Volume::new(Arc::clone(store), header.unlock(with)?.layout)))
        };
        // The format after a conversion.
        let other = match self.format {
            "LUKS1" => Some("LUKS2"),
            "LUKS2" => Some("LUKS1"),
            _ => None,
        };
        read(self.format).or_else(|error| other.map_or(Err(error), read))
    }

    /// Whether every copy of the header is as it should be.
    fn is_sound(&self, store: &dyn Store) -> bool {
        let verified = |with: &Unlock<'_>| match self.editor().verify(store, with)?.damaged {
            true => Err(Error::misuse("damaged")),
            false => Ok(()),
        };
        self.with_some_key(verified).is_ok()
    }

    /// Repairs a damaged header, as a person would.
    fn mend(&self, store: &dyn Store) -> Result<()> {
        let repair = |with: &Unlock<'_>| self.editor().repair(store, Some(with), &[]);
        let restore = |with: &Unlock<'_>| self.editor().restore(store, RestoreFrom::Embedded, with, false);
        self.with_some_key(repair).or_else(|_| self.with_some_key(restore))?.edit.carry_out(store)
    }
}

/// A change of a header, done when `done` says so.
pub fn change(
    subject: &Subject,
    verb: Verb,
    name: &str,
    prepare: impl Fn(&Subject, &dyn Store, &Unlock<'_>) -> Result<Prepared> + Send + Sync + 'static,
    done: impl Fn(&Subject, &Arc<dyn Store>) -> bool + Send + Sync + 'static,
) -> Scenario {
    let prepare = Arc::new(prepare);
    let [acting, reading, finishing] = [0; 3].map(|_| subject.clone());
    let prepared = Arc::clone(&prepare);
    let act = move |store: &Arc<dyn Store>| {
        let with_first = |with: &Unlock<'_>| prepared(&acting, &**store, with);
        acting.with_key(&acting.keys[0], with_first)?.edit.carry_out(&**store)
    };
    let finish = move |store: &Arc<dyn Store>| {
        for _ in 0..3 {
            let sound = finishing.is_sound(&**store);
            if sound && done(&finishing, store) {
                return Ok(());
            }
            // Where nothing can be mended the change itself may be what mends it.
            let mended = !sound && finishing.mend(&**store).is_ok();
            if !mended || !done(&finishing, store) {
                finishing.with_some_key(|with| prepare(&finishing, &**store, with))?.edit.carry_out(&**store)?;
            }
        }
        Err(Error::misuse("after three attempts it is not done"))
    };
    Scenario {
        format: subject.format,
        verb,
        name: name.to_owned(),
        before: subject.image.clone(),
        plaintext: Some(subject.plaintext.clone()),
        act: Box::new(act),
        read: Box::new(move |store| reading.with_some_key(|with| reading.read(store, with))),
        finish: Box::new(finish),
    }
}

/// A new volume, where something else was: what opens is all of it.
pub fn creation(subject: &Subject, make: impl Fn(&Arc<dyn Store>) -> Result<()> + Send + Sync + 'static) -> Scenario {
    let make = Arc::new(make);
    let [reading, finishing] = [0; 2].map(|_| subject.clone());
    let again = Arc::clone(&make);
    let finish = move |store: &Arc<dyn Store>| {
        again(store)?;
        finishing.opened(store, &finishing.keys[0])?;
        finishing.is_sound(&**store).then_some(()).ok_or_else(|| Error::misuse("its header is not sound"))
    };
    Scenario {
        format: subject.format,
        verb: Verb::Create,
        name: "create".to_owned(),
        before: subject.image.clone(),
        plaintext: None,
        act: Box::new(move |store| make(store)),
        read: Box::new(move |store| reading.opened(store, &reading.keys[0])),
        finish: Box::new(finish),
    }
}

// ---- Points

/// How many points a scenario had.
#[derive(Clone, Copy, Debug, Default)]
struct Points {
    crashes: usize,
    second: usize,
    faults: usize,
}

fn memory(image: &[u8]) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(image.to_vec()))
}

impl Scenario {
    /// Looks at crashes to a depth, continues from `most` of them, and has as many operations of each kind fail.
    fn torture(&self, depth: Depth, most: usize) -> Points {
        let what = format!("{}, {}", self.format, self.name);
        let crash = Arc::new(CrashStore::new(self.before.clone()));
        let store: Arc<dyn Store> = Arc::clone(&crash) as Arc<dyn Store>;
        (self.act)(&store).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut all = 0usize;
        crash.each_crash(depth, |_| all += 1);
        let mut points = Points::default();
        crash.each_crash(depth, |image| {
            let finish = points.crashes.is_multiple_of(all.div_ceil(most));
            points.crashes += 1;
            points.second +=
                self.survived(image, finish.then_some(depth), &format!("{what}, crash {}", points.crashes));
        });
        points.faults = self.faults(&what, most as u64);
        points
    }

    /// A crash has left `image`: it opens, or is nothing yet. With `again` it comes to its end; and a crash of that, too, loses
    /// nothing. The points of that second crash.
    fn survived(&self, image: &[u8], again: Option<Depth>, what: &str) -> usize {
        self.opens(&memory(image), what);
        let Some(depth) = again else { return 0 };
        let crash = Arc::new(CrashStore::new(image.to_vec()));
        let store: Arc<dyn Store> = Arc::clone(&crash) as Arc<dyn Store>;
        self.comes_to_its_end(&store, what);
        let mut second = 0;
        crash.each_crash(Depth { exhaustive: 2, sampled: 1, ..depth }, |image| {
            second += 1;
            self.opens(&memory(image), &format!("{what}, and crash {second} of what went on"));
        });
        second
    }

    fn opens(&self, store: &Arc<dyn Store>, what: &str) {
        match ((self.read)(store), &self.plaintext) {
            (Ok(now), Some(plaintext)) => assert!(now == *plaintext, "{what}: other bytes"),
            (Err(e), Some(_)) => panic!("{what}: {e}"),
            (Ok(_), None) => {}
            // There is no volume yet.
            (Err(e), None) => assert!(!matches!(e.kind, ErrorKind::Io(_)), "{what}: {e}"),
        }
    }

    fn comes_to_its_end(&self, store: &Arc<dyn Store>, what: &str) {
        (self.finish)(store).unwrap_or_else(|e| panic!("{what}: {e}"));
        self.opens(store, &format!("{what}, done"));
    }

    /// Writes and flushes fail, once and for good, before or amid what they write, and so do reads, which may be done without: `most`
    /// of each.
    fn faults(&self, what: &str, most: u64) -> usize {
        let counting = Arc::new(FaultStore::new(memory(&self.before), None));
        (self.act)(&(Arc::clone(&counting) as Arc<dyn Store>)).expect("nothing fails");
        let mut faults = 0;
        for (operation, for_good, transferred) in FAULTS {
            let count = counting.count(*operation);
            for nth in (0..count).step_by(count.div_ceil(most).max(1) as usize) {
                let inner = memory(&self.before);
                let fault = Fault { operation: *operation, nth, for_good: *for_good, transferred: *transferred };
                let failing: Arc<dyn Store> = Arc::new(FaultStore::new(Arc::clone(&inner), Some(fault)));
                let what = format!("{what}: {fault:?}");
                let done = (self.act)(&failing).is_ok();
                assert!(!done || *operation == Operation::Read, "{what}: and nobody says so");
                self.opens(&inner, &what);
                self.comes_to_its_end(&inner, &what);
                faults += 1;
            }
        }
        faults
    }
}

/// The operation that fails, whether for good, and how many bytes it transfers nevertheless.
const FAULTS: &[(Operation, bool, usize)] = &[
    (Operation::Read, false, 0),
    (Operation::Read, true, 512),
    (Operation::Write, false, 512),
    (Operation::Write, true, 0),
    (Operation::Write, true, 1536),
    (Operation::Flush, false, 0),
    (Operation::Flush, true, 0),
];

// ---- The table

fn scenarios() -> Vec<Scenario> {
    [
        crate::volumes::header_changes::scenarios(),
        crate::truecrypt::truecrypt_resize::scenarios(),
        crate::truecrypt::hidden::scenarios(),
        crate::luks::luks1_changes::scenarios(),
        crate::luks::luks2_changes::scenarios(),
        crate::luks::luks_changes_oracles::scenarios(),
        crate::luks::luks2_reencryption::scenarios(),
        crate::bitlocker::protectors::scenarios(),
        crate::bitlocker::conversion::scenarios(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Looks at what crashes leave, to a depth: at how many.
type Crashes = fn(Depth) -> usize;

/// Writers into volumes and folders that depend on the order of their writes.
const WRITERS: &[(&str, Crashes)] = &[
    ("sectors with tags", crate::luks::integrity::crashes),
    ("FAT and exFAT", crate::filesystems::fat::crashes),
    ("files of eCryptfs, and of formats like it", |depth| crate::ecryptfs::stacked::crashes(depth.seed)),
];

/// A sound volume of each format whose headers can be changed.
fn subjects() -> Vec<Subject> {
    [
        crate::volumes::header_changes::subjects(),
        vec![
            crate::luks::luks1_changes::subject(),
            crate::luks::luks2_changes::subject(),
            crate::bitlocker::protectors::subject(),
        ],
    ]
    .concat()
}

/// Carries out what `each` says for every scenario, on all processors.
fn for_each(scenarios: &[Scenario], each: impl Fn(usize, &Scenario) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let some = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < scenarios.len());
                while let Some(at) = some() {
                    each(at, &scenarios[at]);
                }
            });
        }
    });
}

#[test]
fn nothing_is_lost_wherever_a_verb_is_interrupted() {
    let depth = Depth { exhaustive: 3, sampled: 1, seed: 1 };
    for_each(&scenarios(), |_, scenario| {
        let points = scenario.torture(depth, 2);
        assert!(points.crashes >= 2 && points.faults > 3, "{}, {}: {points:?}", scenario.format, scenario.name);
    });
}

/// Hours, with as many points as `TORTURE_POINTS` says, of all formats or of the one that `TORTURE_ONLY` names. Every round looks at
/// other selections.
#[test]
#[ignore = "it takes hours: make torture"]
fn torture() {
    let wanted = std::env::var("TORTURE_POINTS").map_or(100_000, |n| n.parse().expect("TORTURE_POINTS is a number"));
    let only = std::env::var("TORTURE_ONLY").ok();
    let mut scenarios = scenarios();
    scenarios.retain(|scenario| only.as_deref().is_none_or(|only| scenario.format == only));
    let begun = std::time::Instant::now();
    let counts: Vec<[AtomicUsize; 4]> = scenarios.iter().map(|_| Default::default()).collect();
    let mut written = [0; WRITERS.len()];
    for seed in 1.. {
        let depth = Depth { exhaustive: 12, sampled: 200, seed };
        for_each(&scenarios, |at, scenario| {
            let begun = std::time::Instant::now();
            let points = scenario.torture(depth, 100);
            let took = begun.elapsed().as_millis() as usize;
            for (count, more) in counts[at].iter().zip([points.crashes, points.second, points.faults, took]) {
                count.fetch_add(more, Ordering::Relaxed);
            }
        });
        WRITERS.iter().zip(&mut written).for_each(|((_, crashes), count)| *count += crashes(depth));
        let points = counts.iter().flat_map(|counts| &counts[..3]).map(|count| count.load(Ordering::Relaxed));
        let points = points.chain(written).sum::<usize>();
        println!("Round {seed}: {points} points after {:.0?}; none lost anything.", begun.elapsed());
        if points >= wanted {
            break;
        }
    }
    println!("{:>8} {:>8} {:>8} {:>8}", "crashes", "second", "faults", "seconds");
    for (scenario, counts) in scenarios.iter().zip(&counts) {
        let [crashes, second, faults, took] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let (took, Scenario { format, verb, name, .. }) = (took / 1000, scenario);
        println!("{crashes:>8} {second:>8} {faults:>8} {took:>8}  {format}, {verb:?}: {name}");
    }
    WRITERS.iter().zip(written).for_each(|((name, _), crashes)| println!("{crashes:>8} {:26}  {name}", ""));
}

/// A verb that is missing in the table above would not be tested.
#[test]
fn every_function_that_prepares_a_change_is_a_verb() {
    let editor = include_str!("../../src/formats/editor.rs");
    let declared = editor.split("\n    fn ").skip(1).filter_map(|function| {
        let (name, rest) = function.split_once('(')?;
        let signature = rest.split(['{', ';']).next()?;
        (signature.contains("Result<Prepared>") || signature.contains("Result<Resizing>")).then_some(name)
    });
    let declared: BTreeSet<_> = declared.collect();
    let others = ["create_volume", "create_hidden_volume", "begin_encryption", "conversion"];
    let known: BTreeSet<_> = FUNCTIONS.iter().map(|(name, _)| *name).filter(|name| !others.contains(name)).collect();
    assert_eq!(declared, known);
}

#[test]
fn every_verb_of_every_format_has_a_scenario() {
    let have: BTreeSet<_> = scenarios().iter().map(|scenario| (scenario.format, scenario.verb)).collect();
    let offered: BTreeSet<_> =
        FORMATS.iter().flat_map(|format| offered(*format).into_iter().map(|verb| (format.name(), verb))).collect();
    assert_eq!(offered.difference(&have).collect::<Vec<_>>(), [] as [&(&str, Verb); 0], "without a scenario");
    assert_eq!(have.difference(&offered).collect::<Vec<_>>(), [] as [&(&str, Verb); 0], "offered by nobody");
}

/// The verbs that a format has.
fn offered(format: &dyn Format) -> Vec<Verb> {
    let mut verbs = Vec::new();
    // Without a header there is nothing that half of it could be.
    if format.creator().is_some() && !format.headerless() {
        verbs.push(Verb::Create);
    }
    if format.takes().to(Purpose::Creating).contains(&Parameter::HiddenVolume) {
        verbs.push(Verb::CreateHidden);
    }
    if let Some(converter) = format.in_place_converter() {
        verbs.extend([Verb::Encrypt, Verb::Decrypt]);
        verbs.extend(converter.reencrypter().map(|_| Verb::Reencrypt));
    }
    if let Some(editor) = format.editor() {
        let subject = subjects().into_iter().find(|subject| subject.format == format.name()).expect("it is edited");
        verbs.extend(edited(editor, &subject));
    }
    verbs
}

/// The verbs of an editor: those that it does not call unsupported. Where the size is not sealed, the header does not say it, and the
/// store alone changes.
fn edited(editor: &dyn HeaderEditor, subject: &Subject) -> Vec<Verb> {
    let memory = MemoryStore::new(subject.image.clone());
    let store: &dyn Store = &memory;
    let none = NewCredential::default();
    let to = if subject.format == "LUKS1" { "LUKS2" } else { "LUKS1" };
    let supported = |error: &Option<Error>| !matches!(error, Some(Error { kind: ErrorKind::Unsupported { .. }, .. }));
    subject.with_key(&subject.keys[0], |with| {
        [
            (Verb::Change, editor.change(store, with, &none).err()),
            (Verb::Restore, editor.restore(store, RestoreFrom::Embedded, with, false).err()),
            (Verb::Add, editor.add(store, with, &none, None).err()),
            (Verb::Replace, editor.replace(store, with, &none, 0).err()),
            (Verb::Remove, editor.remove(store, Removal::Opened(with), false).err()),
            (Verb::Set, editor.set(store, Some(with), &HeaderAttributes::default()).err()),
            (Verb::Protect, editor.protect(store, with, Protection::NewKey).err()),
            (Verb::Repair, editor.repair(store, Some(with), &[]).err()),
            (Verb::Tokens, editor.change_tokens(store, TokenChange::Remove(0)).err()),
            (Verb::Convert, editor.convert(store, to, false).err()),
            (Verb::Resize, editor.resize(store, None, Some(with), 1 << 20).err()),
        ]
        .into_iter()
        .filter(|(verb, error)| supported(error) && (*verb != Verb::Resize || editor.size_sealed()))
        .map(|(verb, _)| verb)
        .collect()
    })
}

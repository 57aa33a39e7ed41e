//! BitLocker volumes that are decrypted and encrypted where they lie: what is there afterwards, what a crash or a fault at any write
//! leaves, and what other programs read then.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::torture::{Scenario, Verb};
use claviger_engine::formats::{Converter, Format, Unlocked};
use claviger_engine::formats::{Towards, bitlocker::BITLOCKER, convertible};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::bitlocker::crypto::Method;
use claviger_testkit::bitlocker::maker::{Kind, Made, Protector, State, Volume as Wanted};
use claviger_testkit::stores::{CachedStore, FaultStore, Operation};
use claviger_testkit::tools;

/// Size of a volume and of a zone, in bytes: several zones between two copies of the metadata.
const SIZE: u64 = 1 << 20;
const ZONE: u64 = 64 << 10;

/// A volume as it was made, and where it is to go.
struct Case {
    name: String,
    made: Made,
    /// Nothing: on in its own direction.
    towards: Option<Towards>,
    /// What it becomes.
    becomes: Towards,
}

fn wanted(kind: Kind) -> Wanted {
    // Nothing is stretched for it.
    Wanted { size: SIZE, protectors: vec![Protector::StartupKey], ..Wanted::new(kind) }
}

fn half_way(current: u16, next: u16) -> State {
    State::HalfWay { current, next, watermark: SIZE / 2 + 0x7000 }
}

fn case(name: &str, volume: Wanted, towards: Option<Towards>, becomes: Towards) -> Case {
    Case { name: name.to_owned(), made: volume.make(), towards, becomes }
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    use Towards::{Encrypted, Plain};
    let eight = || wanted(Kind::Windows8);
    let decrypted = || Wanted { state: State::Decrypted, protectors: Vec::new(), ..eight() };
    let (large, cbc) = (Wanted { sector_size: 4096, ..eight() }, Method::Cbc256);
    vec![
        case("decrypt XTS", eight(), Some(Plain), Plain),
        case("decrypt the diffuser", wanted(Kind::Windows7), Some(Plain), Plain),
        case("decrypt Vista's", wanted(Kind::Vista), Some(Plain), Plain),
        case("decrypt large sectors", large.clone(), Some(Plain), Plain),
        case("decrypt large sectors in CBC", Wanted { method: cbc, ..large.clone() }, Some(Plain), Plain),
        case(
            "decrypt a suspended one",
            Wanted { protectors: vec![Protector::ClearKey], ..eight() },
            Some(Plain),
            Plain,
        ),
        case("leave what is decrypted", decrypted(), Some(Plain), Plain),
        case("finish a decryption", Wanted { state: half_way(5, 1), ..eight() }, None, Plain),
        case("turn an encryption round", Wanted { state: half_way(3, 4), ..eight() }, Some(Plain), Plain),
        case("finish an encryption", Wanted { state: half_way(3, 4), ..eight() }, None, Encrypted),
        case("finish one of the diffuser", Wanted { state: half_way(5, 4), ..wanted(Kind::Windows7) }, None, Encrypted),
        case("finish one of large sectors", Wanted { state: half_way(5, 4), ..large }, None, Encrypted),
        case("turn a decryption round", Wanted { state: half_way(5, 1), ..eight() }, Some(Encrypted), Encrypted),
    ]
});

fn memory(bytes: &[u8]) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(bytes.to_vec()))
}

fn read_all(store: &dyn Store) -> Vec<u8> {
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("it is there");
    all
}

impl Case {
    /// The volume master key opens a volume at once, and where it does not any more nothing is needed.
    fn with_key<T>(&self, open: impl Fn(&Unlock<'_>) -> Result<T>) -> Result<T> {
        let key = [Credential::VolumeKey(Secret::copy_from(&self.made.vmk))];
        let with = |credentials| Unlock { write_unencrypted: true, ..Unlock::with(credentials) };
        open(&with(&key)).or_else(|e| open(&with(&[])).map_err(|_| e))
    }

    fn unlocked(&self, store: &Arc<dyn Store>) -> Result<Unlocked> {
        self.with_key(|with| BITLOCKER.open(store)?.unlock(with))
    }

    fn convert(&self, store: &Arc<dyn Store>, towards: Option<Towards>, stop: &dyn Fn(u64) -> bool) -> Result<()> {
        let (_, converter) = convertible(&**store)?.expect("it is one of BitLocker");
        let conversion = self.with_key(|with| converter.conversion(store, with, towards, Some(ZONE)))?;
        let cancel = AtomicBool::new(false);
        let begun = std::cell::Cell::new(0);
        let progress = |done: u64, all: u64| {
            assert!(done <= all, "{}: {done} of {all}", self.name);
            begun.set(begun.get() + 1);
            cancel.store(stop(begun.get()), Ordering::Relaxed);
        };
        conversion.run(&progress, &cancel)
    }

    fn begin(&self, store: &Arc<dyn Store>) -> Result<()> {
        self.convert(store, self.towards, &|_| false)
    }

    /// Whether the file system is what is there, as any program finds it.
    fn is_plain(&self, store: &dyn Store) -> bool {
        convertible(store).expect("it is read").is_none()
    }

    /// What is in the store, whichever it is by now, and whether it is only the file system.
    fn plaintext(&self, store: &Arc<dyn Store>) -> Vec<u8> {
        if self.is_plain(&**store) {
            let mut all = read_all(&**store);
            // Zeros come last.
            self.made.layout.reserved().into_iter().for_each(|at| all[at.start as usize..at.end as usize].fill(0));
            return all;
        }
        let layout = self.unlocked(store).unwrap_or_else(|e| panic!("{}: {e}", self.name)).layout;
        read_all(&Volume::new(Arc::clone(store), layout))
    }

    fn reads_right(&self, store: &Arc<dyn Store>, what: &str) {
        assert!(self.plaintext(store) == self.made.plaintext, "{}, {what}: other bytes", self.name);
    }

    /// Goes on with whatever is there, and looks at what comes out.
    fn finish(&self, store: &Arc<dyn Store>, what: &str) {
        self.reads_right(store, what);
        let wiped = !self.is_plain(&**store);
        if wiped {
            let gone_on = self.convert(store, Some(self.becomes), &|_| false);
            match gone_on {
                Err(e) if e.to_string().contains("encrypted already") => return,
                gone_on => gone_on.unwrap_or_else(|e| panic!("{}, {what}: {e}", self.name)),
            }
        }
        self.is_finished(store, what, wiped);
    }

    fn is_finished(&self, store: &Arc<dyn Store>, what: &str, wiped: bool) {
        self.reads_right(store, what);
        match self.becomes {
            Towards::Plain => {
                assert!(self.is_plain(&**store), "{}, {what}", self.name);
                assert!(!wiped || read_all(&**store) == self.made.plaintext, "{}, {what}: no zeros", self.name);
            }
            Towards::Encrypted => {
                let described = BITLOCKER.open(store).expect("it opens").describe().expect("it says");
                assert_eq!(described["state"], "encrypted", "{}, {what}", self.name);
                // Where its log was.
                let end = self.made.layout.metadata[2] + self.made.layout.metadata_len;
                assert!(read_all(&**store)[end as usize - 0x2000..end as usize].iter().all(|byte| *byte == 0));
            }
        }
    }
}

/// All cases whose metadata can be found again wherever a sector of them is torn, and a file system that is encrypted.
pub fn scenarios() -> Vec<Scenario> {
    let cases = CASES.iter().filter(|case| !["decrypt Vista's", "leave what is decrypted"].contains(&&*case.name));
    cases.map(converted).chain(filesystems().into_iter().map(|(name, plain)| encrypted(name, plain))).collect()
}

fn converted(case: &'static Case) -> Scenario {
    Scenario {
        format: "BitLocker",
        verb: if case.becomes == Towards::Plain { Verb::Decrypt } else { Verb::Encrypt },
        name: case.name.clone(),
        before: case.made.image.clone(),
        plaintext: Some(case.made.plaintext.clone()),
        act: Box::new(|store| case.begin(store)),
        read: Box::new(|store| Ok(case.plaintext(store))),
        finish: Box::new(|store| {
            case.finish(store, "interrupted");
            Ok(())
        }),
    }
}

fn encrypted(name: &str, plain: Vec<u8>) -> Scenario {
    let Credential::Keyfile(key) = startup_key().into_iter().next().expect("one") else { unreachable!() };
    let key = Arc::new(key.to_vec());
    let with = |key: &Arc<Vec<u8>>| [Credential::Keyfile(Secret::copy_from(key))];
    let len = plain.len();
    let [acting, reading] = [0; 2].map(|_| Arc::clone(&key));
    Scenario {
        format: "BitLocker",
        verb: Verb::Encrypt,
        name: format!("what {name} made"),
        before: [&plain[..], &vec![0; BEHIND]].concat(),
        plaintext: Some(plain),
        act: Box::new(move |store| encrypt(store, &with(&acting))),
        read: Box::new(move |store| {
            let mut now = match convertible(&**store)? {
                None => read_all(&**store),
                Some(_) => decrypted(store, &with(&reading)),
            };
            now.truncate(len);
            Ok(now)
        }),
        finish: Box::new(move |store| match encrypt(store, &with(&key)) {
            Err(e) if e.to_string().contains("encrypted already") => Ok(()),
            done => done,
        }),
    }
}

#[test]
fn each_is_converted() {
    for case in &*CASES {
        let store = memory(&case.made.image);
        case.reads_right(&store, "before");
        case.begin(&store).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        case.is_finished(&store, "at once", true);
    }
}

#[test]
fn a_conversion_that_is_stopped_goes_on_and_can_be_turned_round() {
    for case in &*CASES {
        let other = match case.becomes {
            Towards::Plain => Towards::Encrypted,
            Towards::Encrypted => Towards::Plain,
        };
        for stop in 1..8 {
            let store = memory(&case.made.image);
            match case.convert(&store, case.towards, &|zones| zones == stop) {
                Err(e) => assert!(matches!(e.kind, ErrorKind::Cancelled), "{}: {e}", case.name),
                Ok(()) => continue,
            }
            let paused = BITLOCKER.open(&store).expect("it opens").describe().expect("it says");
            assert!(paused["state"].as_str().is_some_and(|state| state.ends_with("paused")), "{}: {paused}", case.name);
            // Vista seals nothing, so that nobody is made to write in the clear by it.
            let writable = case.unlocked(&store).expect("it opens").layout.segments().iter().all(|s| s.writable);
            assert_eq!(writable, case.made.volume.kind != Kind::Vista, "{}", case.name);
            let turned = memory(&read_all(&*store));
            case.convert(&store, None, &|_| false).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            case.is_finished(&store, "stopped", true);
            let back = Case { name: case.name.clone(), made: case.made.clone(), towards: None, becomes: other };
            // The way back may be shorter than that.
            let _ = back.convert(&turned, Some(other), &|zones| zones == 3);
            back.finish(&turned, "turned round");
        }
    }
}

/// A disk that fails to take what is written, and a system that forgets it: what is read from memory may be on no disk.
#[test]
fn what_never_reached_the_disk_is_written_again() {
    for case in CASES.iter().filter(|case| ["decrypt XTS", "finish an encryption"].contains(&&*case.name)) {
        let counting = Arc::new(FaultStore::new(memory(&case.made.image), None));
        case.begin(&(Arc::clone(&counting) as Arc<dyn Store>)).expect("nothing fails");
        for failing in 0..counting.count(Operation::Flush) {
            let cached = Arc::new(CachedStore::new(case.made.image.clone(), failing));
            let store: Arc<dyn Store> = Arc::clone(&cached) as Arc<dyn Store>;
            assert!(case.begin(&store).is_err(), "flush {failing} failed");
            case.finish(&memory(&cached.on_disk()), "power cut after a flush that failed");
            case.finish(&store, "gone on from the cache");
            case.finish(&memory(&cached.on_disk()), "power cut in the end");
        }
    }
}

/// Bytes behind the file systems: more than enough.
const BEHIND: usize = 320 << 10;

/// File systems made by their own programs, with room behind them.
fn filesystems() -> Vec<(&'static str, Vec<u8>)> {
    let makers: [(&str, &[&str]); 3] = [
        ("mkfs.ntfs", &["-F", "-Q", "-q", "-c", "4096"]),
        ("mkfs.exfat", &["--boundary-align=4K"]),
        ("mkfs.vfat", &[]),
    ];
    let made = |(name, args): (&'static str, &[&str])| {
        let program = tools::program(name)?;
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(2 << 20).expect("it grows");
        tools::run(Command::new(program).args(args).arg(file.path()));
        Some((name, fs::read(file.path()).expect("it is read")))
    };
    makers.into_iter().filter_map(made).collect()
}

fn startup_key() -> [Credential; 1] {
    let (_, contents) = BITLOCKER.creator().expect("it creates").fresh_startup_key().expect("random bytes");
    [Credential::Keyfile(contents)]
}

fn converter() -> &'static dyn Converter {
    BITLOCKER.converter().expect("it converts")
}

fn encrypt(store: &Arc<dyn Store>, key: &[Credential]) -> Result<()> {
    if convertible(&**store)?.is_none() {
        converter().begin_encryption(store, &Spec::default(), key)?;
    }
    let conversion = converter().conversion(store, &Unlock::with(key), Some(Towards::Encrypted), Some(ZONE))?;
    conversion.run(&|_, _| {}, &AtomicBool::new(false))
}

fn decrypted(store: &Arc<dyn Store>, key: &[Credential]) -> Vec<u8> {
    let layout = BITLOCKER.open(store).and_then(|header| header.unlock(&Unlock::with(key))).expect("it opens").layout;
    read_all(&Volume::new(Arc::clone(store), layout))
}

#[test]
fn a_file_system_is_encrypted_where_it_lies_and_decrypted_again() {
    for (name, plain) in filesystems() {
        let key = startup_key();
        let store = memory(&[&plain[..], &vec![0; BEHIND]].concat());
        encrypt(&store, &key).unwrap_or_else(|e| panic!("{name}: {e}"));
        let stored = read_all(&*store);
        let same = stored.chunks(512).zip(plain.chunks(512)).position(|(now, before)| now == before);
        assert_eq!(same, None, "{name}: a sector is still plaintext");
        assert!(decrypted(&store, &key)[..plain.len()] == plain, "{name}: encrypted");
        let plain_again = converter().conversion(&store, &Unlock::with(&key), Some(Towards::Plain), None);
        plain_again.expect("it opens").run(&|_, _| {}, &AtomicBool::new(false)).expect("decrypted");
        assert!(read_all(&*store)[..plain.len()] == plain, "{name}: there and back");
    }
}

#[test]
fn without_room_or_a_file_system_nothing_is_encrypted() {
    for (name, plain) in filesystems() {
        let refused = |bytes: Vec<u8>, expected: &str| {
            let store = memory(&bytes);
            let error = encrypt(&store, &startup_key()).expect_err("it is refused").to_string();
            assert!(error.contains(expected), "{name}: {error}");
            assert!(read_all(&*store) == bytes, "{name}: nothing was changed");
        };
        refused(plain.clone(), "smaller");
        refused([&plain[..], &vec![0; 64 << 10]].concat(), "smaller");
        refused(vec![7; SIZE as usize], "no NTFS");
    }
}

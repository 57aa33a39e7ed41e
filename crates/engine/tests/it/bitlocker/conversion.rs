//! BitLocker volumes that are decrypted and encrypted where they lie: what is there afterwards, what a crash or a fault at any write
//! leaves, and what other programs read then.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::support::{ConversionInUse, described, while_used, written_after_a_fault, written_meanwhile};
use crate::torture::{Scenario, Verb};
use claviger_engine::formats::{Format, InPlaceConverter, ReencryptionRequest, Unlocked, VolumeInUse};
use claviger_engine::formats::{Towards, bitlocker::BITLOCKER, convertible};
use claviger_engine::store::{InUseConversion, MemoryStore};
use claviger_engine::{Credential, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::bitlocker::crypto::{Method, sha256};
use claviger_testkit::bitlocker::maker::{Kind, Made, Protector, State, Volume as Wanted};
use claviger_testkit::reference::legacy::crc32;
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
    /// The target of the conversion.
    becomes: Towards,
}

fn wanted(kind: Kind) -> Wanted {
    // A startup key needs no slow derivation.
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

/// What is also done while others use the volume, under every fault.
const IN_USE: [&str; 4] =
    ["decrypt XTS", "decrypt large sectors in CBC", "finish an encryption", "turn a decryption round"];

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
        let conversion = self.with_key(|with| converter.conversion(store.into(), with, towards, &zones()))?;
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

    /// Opens the volume, and begins it there.
    fn begin_in_use(&self, store: &Arc<dyn Store>) -> Result<Volume> {
        let volume = Volume::new(Arc::clone(store), self.unlocked(store)?.layout);
        let key = [Credential::VolumeKey(Secret::copy_from(&self.made.vmk))];
        VolumeInUse::new(&volume, None).may_be_converted(&Unlock::with(&key), &in_use(&volume))?;
        match self.convert(store, self.towards, &|_| true) {
            Err(e) if !matches!(e.kind, ErrorKind::Cancelled) => Err(e),
            _ => Ok(volume),
        }
    }

    /// Converts the volume in use, as its metadata say.
    fn convert_in_use(&self, volume: &Volume) -> Result<()> {
        let (key, never) = ([Credential::VolumeKey(Secret::copy_from(&self.made.vmk))], AtomicBool::new(false));
        VolumeInUse::new(volume, None).convert(&Unlock::with(&key), &in_use(volume), &|_, _| {}, &never)
    }

    /// Does it while others use the volume.
    fn in_use(&self, store: &Arc<dyn Store>) -> Result<()> {
        let volume = self.begin_in_use(store)?;
        while_used(&volume, &self.made.plaintext, &|| self.convert_in_use(&volume))
    }

    /// Whether the file system is what is there, as any program finds it.
    fn is_plain(&self, store: &dyn Store) -> bool {
        convertible(store).expect("it is read").is_none()
    }

    /// The plaintext of the store, whether it is a volume by now or still the bare file system.
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
                Err(e) if e.to_string().contains("already fully encrypted") => return,
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
                let described = described(&*BITLOCKER.open(store).expect("it opens"));
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
    let cases = CASES.iter().filter(|case| case.name != "leave what is decrypted");
    let in_use = cases.clone().filter(|case| IN_USE.contains(&&*case.name)).map(|case| converted(case, true));
    let filesystems = filesystems().into_iter().map(|(name, plain)| encrypted(name, plain));
    cases.map(|case| converted(case, false)).chain(in_use).chain(filesystems).collect()
}

fn converted(case: &'static Case, in_use: bool) -> Scenario {
    Scenario {
        format: "BitLocker",
        verb: if case.becomes == Towards::Plain { Verb::Decrypt } else { Verb::Encrypt },
        name: format!("{}{}", case.name, if in_use { " in use" } else { "" }),
        before: case.made.image.clone(),
        plaintext: Some(case.made.plaintext.clone()),
        act: Box::new(move |store| if in_use { case.in_use(store) } else { case.begin(store) }),
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
            Err(e) if e.to_string().contains("already fully encrypted") => Ok(()),
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
fn each_is_converted_while_it_is_used() {
    for case in CASES.iter().filter(|case| case.name != "leave what is decrypted") {
        let store = memory(&case.made.image);
        case.in_use(&store).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        case.is_finished(&store, "in use", true);
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
            let paused = described(&*BITLOCKER.open(&store).expect("it opens"));
            assert!(paused["state"].as_str().is_some_and(|state| state.ends_with("paused")), "{}: {paused}", case.name);
            let writable = case.unlocked(&store).expect("it opens").layout.segments().iter().all(|s| s.writable);
            assert!(writable, "{}", case.name);
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

fn in_use(volume: &Volume) -> InUseConversion {
    InUseConversion { len: volume.len(), zone: Some(ZONE), rate: None }
}

#[test]
fn what_is_written_meanwhile_is_there() {
    for case in CASES.iter().filter(|case| case.name != "leave what is decrypted") {
        let (store, reserved) = (memory(&case.made.image), case.made.layout.reserved());
        let volume = case.begin_in_use(&store).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let expected = written_meanwhile(&volume, &case.made.plaintext, &reserved, || {
            case.convert_in_use(&volume).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        });
        assert!(read_all(&volume) == expected, "{}: in the volume in use", case.name);
        assert!(case.plaintext(&store) == expected, "{}: after opening it again", case.name);
    }
}

#[test]
fn what_is_written_after_a_fault_is_there() {
    for case in CASES.iter().filter(|case| case.name != "leave what is decrypted") {
        written_after_a_fault(&ConversionInUse {
            name: &case.name,
            before: &case.made.image,
            contents: &case.made.plaintext,
            // What tells a file system from ciphertext stays.
            reserved: &std::iter::once(0..4096).chain(case.made.layout.reserved()).collect::<Vec<_>>(),
            begin: &|store| case.begin_in_use(store),
            convert: &|_, volume| case.convert_in_use(volume),
            read: &|store| case.plaintext(store),
            finish: &|store| {
                if !case.is_plain(&**store) {
                    let done = case.convert(store, Some(case.becomes), &|_| false);
                    if let Err(e) = done {
                        assert!(e.to_string().contains("already fully"), "{}: {e}", case.name);
                    }
                }
            },
        });
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

/// Bytes after the file systems: more than enough.
const BEHIND: usize = 320 << 10;

/// File systems made by their own programs, with room after them.
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

/// Zones of [`ZONE`] bytes.
fn zones() -> ReencryptionRequest<'static> {
    ReencryptionRequest { zone: Some(ZONE), ..ReencryptionRequest::default() }
}

fn converter() -> &'static dyn InPlaceConverter {
    BITLOCKER.in_place_converter().expect("it converts")
}

fn encrypt(store: &Arc<dyn Store>, key: &[Credential]) -> Result<()> {
    if convertible(&**store)?.is_none() {
        converter().begin_encryption(store.into(), &Spec::default(), key, &zones())?;
    }
    let conversion = converter().conversion(store.into(), &Unlock::with(key), Some(Towards::Encrypted), &zones())?;
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
        let plain_again = converter().conversion(
            (&store).into(),
            &Unlock::with(&key),
            Some(Towards::Plain),
            &ReencryptionRequest::default(),
        );
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
        refused(plain.clone(), "Shrink");
        refused([&plain[..], &vec![0; 64 << 10]].concat(), "Shrink");
        refused(vec![7; SIZE as usize], "anything but NTFS");
    }
}

/// Tries to decrypt and to encrypt, and to continue, with a key. What is there afterwards is what was there, or all that it held.
fn converted_or_as_it_was(made: &Made, image: &[u8], key: &[u8], what: &str) {
    for towards in [Some(Towards::Plain), Some(Towards::Encrypted), None] {
        let store = memory(image);
        let Ok(Some((_, converter))) = convertible(&*store) else { return };
        let key = [Credential::VolumeKey(Secret::copy_from(key))];
        let begun = converter.conversion((&store).into(), &Unlock::with(&key), towards, &zones());
        let Ok(conversion) = begun else {
            assert!(read_all(&*store) == image, "{what}, {towards:?}: refused, and written");
            continue;
        };
        conversion.run(&|_, _| {}, &AtomicBool::new(false)).unwrap_or_else(|e| panic!("{what}, {towards:?}: {e}"));
        let now = match convertible(&*store).expect("it is read") {
            None => read_all(&*store),
            Some(_) => decrypted(&store, &[Credential::VolumeKey(Secret::copy_from(&made.vmk))]),
        };
        assert!(now == made.plaintext, "{what}, {towards:?}: other bytes");
    }
}

const WRONG: [u8; 32] = [9; 32];

/// All copies with other bytes at a place, and a checksum that is right: somebody without a key.
fn forged(made: &Made, at: usize, bytes: &[u8], hash: Option<&[u8]>) -> Vec<u8> {
    let mut image = made.image.clone();
    for (number, place) in made.layout.metadata.iter().map(|place| *place as usize).enumerate() {
        let mut block = made.block(number);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        let behind = place + block.len();
        image[place..behind].copy_from_slice(&block);
        image[behind + 4..behind + 8].copy_from_slice(&crc32(&block).to_le_bytes());
        if let Some(hash) = hash {
            let open = [&[44, 0, 0, 0, 1, 0, 1, 0, 5, 0x20, 0, 0][..], &sha256(&block), hash].concat();
            image[behind + 8..behind + 8 + open.len()].copy_from_slice(&open);
        }
    }
    image
}

#[test]
fn nothing_is_converted_that_nobody_with_the_key_has_sealed() {
    let states = [(1, 1), (1, 4), (4, 1), (3, 4), (5, 1), (2, 1), (2, 4), (4, 4), (0, 0), (9, 9)];
    let half = |watermark| State::HalfWay { current: 3, next: 4, watermark };
    let volumes = [
        wanted(Kind::Windows8),
        wanted(Kind::Windows7),
        wanted(Kind::ToGo),
        wanted(Kind::Vista),
        Wanted { state: half(SIZE / 2), ..wanted(Kind::Windows8) },
        Wanted { state: half(SIZE / 4), ..wanted(Kind::Windows8) },
    ];
    for volume in volumes {
        let made = volume.make();
        for key in [&made.vmk[..], &WRONG] {
            for (state, next) in states {
                let bytes = [state, 0, next, 0];
                let what = format!("{:?} as {state}/{next}", made.volume.kind);
                converted_or_as_it_was(&made, &forged(&made, 12, &bytes, None), key, &what);
                // The hash of what is decrypted lies open, so that anybody can write it.
                converted_or_as_it_was(&made, &forged(&made, 12, &bytes, Some(&[])), key, &what);
            }
            // Version, watermark, sectors of the header, places of copies and header, method.
            let fields: [(usize, &[u64]); 8] = [
                (10, &[1, 3]),
                (16, &[0, 512, SIZE / 2, SIZE - 512, SIZE, SIZE * 2, u64::MAX]),
                (28, &[0, 1, 32]),
                (32, &[0, 0x2_0000]),
                (40, &[0, 0x2_0000]),
                (56, &[0, 0x2_0000]),
                (100, &[0x8000, 0x8001, 0x8003, 0x8004]),
                (96, &[0, u64::from(u32::MAX)]),
            ];
            for (at, values) in fields {
                let len = [8, 2][usize::from([10, 100].contains(&at))].min(if [28, 96].contains(&at) { 4 } else { 8 });
                for value in values {
                    let what = format!("{:?}, {value:#x} at {at}", made.volume.kind);
                    let image = forged(&made, at, &value.to_le_bytes()[..len], None);
                    converted_or_as_it_was(&made, &image, key, &what);
                }
            }
        }
    }
}

#[test]
fn what_the_first_sector_says_makes_nobody_convert_wrongly() {
    let state = State::HalfWay { current: 3, next: 4, watermark: SIZE / 2 };
    for volume in
        [wanted(Kind::Windows8), wanted(Kind::Windows7), wanted(Kind::ToGo), Wanted { state, ..wanted(Kind::Windows7) }]
    {
        let made = volume.make();
        // The size of a sector, sectors of a cluster, and each byte of GUIDs and places.
        let sizes = [0u16, 1, 256, 1024, 2048, 4096, 0xffff].map(|size| (11, size.to_le_bytes().to_vec()));
        let others =
            [3, 13, 160, 176, 200, 424, 440].into_iter().flat_map(|at| [0, 1, 0xff].map(|byte| (at, vec![byte])));
        let on_write = [0x3b, 0x4d, 0xa8, 0x92, 0x80, 0xdd, 0x0e, 0x4d, 0x9e, 0x4e, 0xb1, 0xe3, 0x28, 0x4e, 0xae, 0xd8];
        for (at, bytes) in sizes.into_iter().chain(others).chain([(160, on_write.to_vec())]) {
            let mut image = made.image.clone();
            image[at..at + bytes.len()].copy_from_slice(&bytes);
            for key in [&made.vmk[..], &WRONG] {
                converted_or_as_it_was(&made, &image, key, &format!("{:?}, {bytes:x?} at {at}", made.volume.kind));
            }
        }
    }
}

/// "Used space only": free space is not encrypted, nor is the copy of the boot sector at the end.
#[test]
fn free_space_that_was_never_encrypted_stays_as_it_is() {
    for (sector_size, kind) in [(512, Kind::Windows8), (4096, Kind::Windows8), (512, Kind::Windows7)] {
        let unused = vec![0x2_0000..0x2_8000, SIZE - 0x4000..SIZE];
        let mut made = Wanted { sector_size, unused: unused.clone(), ..wanted(kind) }.make();
        let boot = made.plaintext[..512].to_vec();
        let end = made.image.len();
        made.image[end - 512..].copy_from_slice(&boot);
        let mut expected = made.plaintext.clone();
        unused.iter().for_each(|range| expected[range.start as usize..range.end as usize].fill(0));
        expected[end - 512..].copy_from_slice(&boot);
        let case =
            case("used space only", Wanted { sector_size, ..wanted(kind) }, Some(Towards::Plain), Towards::Plain);
        let store = memory(&made.image);
        let case = Case { made: Made { plaintext: expected.clone(), ..made }, ..case };
        case.begin(&store).expect("it is decrypted");
        assert!(read_all(&*store) == expected, "{kind:?}, {sector_size}");
        // A crash at any write: the log tells what was left as it is.
        let counting = Arc::new(FaultStore::new(memory(&case.made.image), None));
        case.begin(&(Arc::clone(&counting) as Arc<dyn Store>)).expect("nothing fails");
        for failing in (0..counting.count(Operation::Flush)).step_by(3) {
            let cached = Arc::new(CachedStore::new(case.made.image.clone(), failing));
            let store: Arc<dyn Store> = Arc::clone(&cached) as Arc<dyn Store>;
            assert!(case.begin(&store).is_err(), "flush {failing} failed");
            for now in [memory(&cached.on_disk()), store] {
                if !case.is_plain(&*now) {
                    case.convert(&now, Some(Towards::Plain), &|_| false).unwrap_or_else(|e| panic!("{failing}: {e}"));
                }
                let mut now = read_all(&*now);
                case.made.layout.reserved().iter().for_each(|at| now[at.start as usize..at.end as usize].fill(0));
                assert!(now == expected, "{kind:?}, {sector_size}: flush {failing}");
            }
        }
    }
}

//! New BitLocker volumes: other programs read them with every protector, and write into them what we read; we write what they read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use claviger_engine::formats::bitlocker::BITLOCKER;
use claviger_engine::spec::{Reserved, ReservedAt};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Error, ErrorKind, Format, Secret, Spec, Store, Unlock, Verdict, Volume};
use claviger_testkit::bitlocker::oracles::{self, Features, Key, Reader, Writer};
use claviger_testkit::stores::{CrashStore, Depth};
use claviger_testkit::tools;

use crate::support::shared;

const MIB: u64 = 1 << 20;
const PASSWORD: &str = "correct horse";

/// Ciphers, as they are asked for.
const CIPHERS: [&str; 6] =
    ["XTS-AES-128", "XTS-AES-256", "AES-CBC-128", "AES-CBC-256", "AES-CBC-128-Elephant", "AES-CBC-256-Elephant"];

fn passphrase(text: &str) -> Credential {
    Credential::Passphrase(Secret::copy_from(text.as_bytes()))
}

/// One of each kind of credential, and the startup key's file.
struct Keys {
    recovery: String,
    startup_key: PathBuf,
    credentials: Vec<Credential>,
}

impl Keys {
    fn new(dir: &Path) -> Self {
        let creator = BITLOCKER.creator().expect("it creates volumes");
        let recovery = creator.fresh_recovery_password().expect("random bytes");
        let recovery = std::str::from_utf8(&recovery).expect("digits").to_owned();
        let (name, contents) = creator.fresh_startup_key().expect("random bytes");
        let startup_key = dir.join(name);
        std::fs::write(&startup_key, &*contents).expect("it is written");
        let credentials = vec![passphrase(PASSWORD), passphrase(&recovery), Credential::Keyfile(contents)];
        Self { recovery, startup_key, credentials }
    }

    fn all(&self) -> [Key<'_>; 3] {
        [Key::Password(PASSWORD), Key::Recovery(&self.recovery), Key::StartupKey(&self.startup_key)]
    }
}

fn opened(store: &Arc<dyn Store>, credentials: &[Credential]) -> Volume {
    let unlocked = BITLOCKER.open(store).and_then(|header| header.unlock(&Unlock::with(credentials)));
    let unlocked = unlocked.unwrap_or_else(|e| panic!("{e}"));
    assert!(unlocked.warnings.is_empty(), "{:?}", unlocked.warnings);
    Volume::new(Arc::clone(store), unlocked.layout)
}

fn read_all(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0; volume.len() as usize];
    volume.read_at(0, &mut bytes).expect("it can be read");
    bytes
}

fn reserved(len: u64, spec: &Spec<'_>) -> Vec<Reserved> {
    BITLOCKER.creator().expect("it creates volumes").reserved(len, spec).expect("there is room")
}

/// Bytes that repeat nowhere.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|i| (i ^ seed).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect()
}

/// An NTFS as large as a volume, which some readers want to see, with zeros where the format keeps something. A reported skip without
/// mkntfs.
fn ntfs(len: u64, sector: u32, kept: &[Reserved]) -> Option<Vec<u8>> {
    let mkntfs = tools::program("mkntfs")?;
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    image.as_file().set_len(len).expect("a sparse file");
    let mut command = Command::new(mkntfs);
    command.args(["-F", "-Q", "-q", "-p", "0", "-H", "255", "-S", "63", "-s", &sector.to_string()]);
    tools::run(command.arg(image.path()));
    let mut bytes = std::fs::read(image.path()).expect("it was made");
    for part in kept {
        bytes[part.offset as usize..][..part.size as usize].fill(0);
    }
    Some(bytes)
}

/// Reads the volume with every installed reader that can; each takes another of the keys, so that all of them have their turn as
/// `turn` continues. dissect.fve takes a minute for megabytes: it has its turn once in a mode.
fn expect_readers(image: &Path, features: &Features, keys: &[Key<'_>], plain: &[u8], turn: usize) -> usize {
    let readers = oracles::readers()
        .into_iter()
        .filter(|reader| *reader != Reader::Dissect || tools::much(turn.is_multiple_of(4), true));
    oracles::expect_in_turn(readers, image, features, keys, plain, turn)
}

#[test]
fn other_programs_read_what_was_created_and_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let keys = Keys::new(dir.path());
    let len = 3 * MIB / 2;
    let cases = CIPHERS.into_iter().flat_map(|cipher| [(cipher, 512), (cipher, 4096)]);
    for (turn, (cipher, sector)) in cases.enumerate() {
        let reserved_at = ReservedAt::Spread;
        let spec = Spec { cipher: Some(cipher), sector_size: Some(sector), reserved_at, ..Spec::default() };
        let image = dir.path().join("image");
        let store: Arc<dyn Store> = Arc::new(FileStore::create(&image, len).expect("there is room"));
        BITLOCKER.create(&*store, &spec, &keys.credentials).unwrap_or_else(|e| panic!("{cipher} {sector}: {e}"));
        let Some(mut plain) = ntfs(len, sector, &reserved(len, &spec)) else { return };
        plain[5000..14_000].copy_from_slice(&pattern(9000, turn as u32));
        {
            let volume = opened(&store, &keys.credentials[turn % 3..][..1]);
            volume.write_clobbering(0, &mut plain.clone()).expect("it can be written");
            volume.flush().expect("it can be flushed");
            assert!(read_all(&volume) == plain);
        }
        drop(store);
        let features = Features { xts_256: cipher == "XTS-AES-256", ..Features::default() };
        let all = keys.all();
        let keys = if sector == 512 { &all[..] } else { &all[2..] };
        let readings = expect_readers(&image, &features, keys, &plain, turn);
        eprintln!("{cipher}, sectors of {sector} bytes: {readings} readings");
        std::fs::remove_file(&image).expect("it is there");
    }
}

#[test]
fn what_other_programs_write_is_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let keys = Keys::new(dir.path());
    let len = 3 * MIB / 2;
    for (writer, cipher) in Writer::installed().into_iter().zip(["XTS-AES-128", "AES-CBC-256-Elephant"]) {
        let spec = Spec { cipher: Some(cipher), reserved_at: ReservedAt::Spread, ..Spec::default() };
        let image = dir.path().join("image");
        let store: Arc<dyn Store> = Arc::new(FileStore::create(&image, len).expect("there is room"));
        BITLOCKER.create(&*store, &spec, &keys.credentials).expect("it is created");
        let Some(mut plain) = ntfs(len, 512, &reserved(len, &spec)) else { return };
        opened(&store, &keys.credentials[..1]).write_clobbering(0, &mut plain.clone()).expect("it can be written");
        drop(store);
        // In what is stored elsewhere, and after it.
        for at in [1024, 100 * 1024] {
            let bytes = pattern(16 * 1024, at as u32);
            writer.write_at(&image, Key::Recovery(&keys.recovery), at as u64, &bytes).expect("it writes");
            plain[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let store: Arc<dyn Store> = Arc::new(FileStore::open(&image, Access::ReadOnly).expect("it is there"));
        assert!(read_all(&opened(&store, &keys.credentials[2..])) == plain, "{}", writer.reader().name());
        drop(store);
        std::fs::remove_file(&image).expect("it is there");
    }
}

/// What fsck.vfat has to say about an image.
fn fsck_vfat(image: &Path) -> Option<String> {
    let fsck = tools::program("fsck.vfat")?;
    let output = Command::new(fsck).args(["-n", "-v"]).arg(image).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some(if output.status.success() { String::new() } else { text })
}

#[test]
fn any_system_reads_the_discovery_volume_and_others_what_is_behind_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let keys = Keys::new(dir.path());
    for (turn, (cipher, len)) in [("AES-CBC-128", 33 * MIB), ("XTS-AES-128", 34 * MIB + 512)].into_iter().enumerate() {
        let spec = Spec {
            cipher: Some(cipher),
            discovery: true,
            reserved_at: ReservedAt::Spread,
            quick: true,
            ..Spec::default()
        };
        let image = dir.path().join("image");
        let store: Arc<dyn Store> = Arc::new(FileStore::create(&image, len).expect("there is room"));
        BITLOCKER.create(&*store, &spec, &keys.credentials).unwrap_or_else(|e| panic!("{cipher}: {e}"));
        // Readers want a FAT in it.
        let Some(mkfs) = tools::program("mkfs.fat") else { return };
        let inner = tempfile::NamedTempFile::new().expect("a temporary file");
        inner.as_file().set_len(len).expect("a sparse file");
        tools::run(Command::new(mkfs).arg(inner.path()));
        let mut plain = std::fs::read(inner.path()).expect("it was made");
        plain[MIB as usize..][..100_000].copy_from_slice(&pattern(100_000, 1));
        for part in reserved(len, &spec) {
            plain[part.offset as usize..][..part.size as usize].fill(0);
        }
        opened(&store, &keys.credentials[..1]).write_clobbering(0, &mut plain.clone()).expect("it can be written");
        drop(store);

        assert_eq!(fsck_vfat(&image).unwrap_or_default(), "");
        if let Some(mtype) = tools::program("mtype") {
            let text = tools::run(Command::new(mtype).arg("-i").arg(&image).arg("::README.TXT"));
            assert!(String::from_utf8_lossy(&text.stdout).contains("BitLocker To Go"));
        }
        let readings = expect_readers(&image, &Features::default(), &keys.all(), &plain, turn + 1);
        eprintln!("To Go, {cipher}: {readings} readings");
        std::fs::remove_file(&image).expect("it is there");
    }
}

#[test]
fn what_an_interruption_leaves_opens_with_nothing_until_it_is_whole() {
    let old = pattern(MIN as usize, 7);
    let store = CrashStore::new(old.clone());
    let spec = Spec { quick: true, ..Spec::default() };
    let credentials = [passphrase(PASSWORD)];
    BITLOCKER.create(&store, &spec, &credentials).expect("it is created");
    let whole = store.crash_images().pop().expect("the last is the present");
    let (mut opens, mut images) = (0, 0);
    store.each_crash(Depth { exhaustive: 3, sampled: 8, seed: 4 }, |image| {
        images += 1;
        // Metadata that no first sector leads to are searched only where somebody names the format.
        if let Verdict::Yes(_) = BITLOCKER.identify(&MemoryStore::new(image.to_vec())).expect("it is read") {
            opens += 1;
            assert!(image == whole, "it opens before it is whole");
        }
    });
    assert!(opens > 0 && images > 20, "{opens} of {images}");
    // And what is left is made into a volume by another attempt.
    let again = shared(MemoryStore::new(old));
    BITLOCKER.create(&*again, &spec, &credentials).expect("it is created");
    opened(&again, &credentials);
}

const MIN: u64 = 512 << 10;

#[test]
fn every_size_is_a_volume_or_refused_before_anything_is_written() {
    let credentials = [passphrase(PASSWORD)];
    for (len, sector, size) in [
        (MIN, 512, Some(MIN)),
        (MIN, 4096, Some(MIN)),
        (MIN + 1, 512, Some(MIN)),
        (MIN + 7 * 512, 512, Some(MIN + 7 * 512)),
        (MIN + 7 * 512, 4096, Some(MIN)),
        (MIN - 512, 512, None),
        (0, 512, None),
        (MIB, 1024, None),
        (MIB, 8192, None),
    ] {
        let store = Arc::new(MemoryStore::new(vec![0; len as usize]));
        let spec = Spec { sector_size: Some(sector), ..Spec::default() };
        let done = BITLOCKER.create(&*store, &spec, &credentials);
        let Some(size) = size else {
            assert!(matches!(done.map_err(|e| e.kind), Err(ErrorKind::Misuse(_))), "{len} {sector}");
            assert!(store.to_vec().iter().all(|byte| *byte == 0));
            continue;
        };
        done.unwrap_or_else(|e| panic!("{len} {sector}: {e}"));
        let volume = opened(&shared(store), &credentials);
        assert_eq!(volume.len(), size);
        // All of it but what is kept takes what is written.
        let areas = reserved(len, &spec);
        assert!(areas.iter().all(|part| part.offset >= areas[0].offset));
        let mut bytes = pattern(areas[0].offset as usize, 3);
        volume.write_clobbering(0, &mut bytes.clone()).expect("it is not kept");
        volume.read_at(0, &mut bytes[..]).expect("it can be read");
        assert!(bytes == pattern(areas[0].offset as usize, 3));
        assert!(volume.write_clobbering(areas[0].offset - 512, &mut [1; 1024]).is_err());
        volume.read_at(areas[0].offset - 512, &mut bytes[..512]).expect("it can be read");
        assert!(bytes[..512] == pattern(areas[0].offset as usize, 3)[areas[0].offset as usize - 512..]);
    }
}

#[test]
fn places_that_cannot_be_are_refused_before_anything_is_written() {
    let credentials = [passphrase(PASSWORD)];
    let good: Vec<u64> = reserved(MIB, &Spec::default()).iter().map(|part| part.offset).collect();
    let changed = |part: usize, offset: u64| {
        let mut places = good.clone();
        places[part] = offset;
        places
    };
    let bad = [
        good[1..].to_vec(),
        changed(0, 0),
        changed(0, 4096),
        changed(1, good[2]),
        changed(2, good[0] + 512),
        changed(3, good[3] + 100),
        changed(4, MIB - 512),
        changed(4, u64::MAX - 511),
    ];
    for places in &bad {
        let store = MemoryStore::new(vec![0; MIB as usize]);
        let spec = Spec { reserved_at: ReservedAt::At(places), ..Spec::default() };
        let error = BITLOCKER.create(&store, &spec, &credentials).expect_err("it cannot be");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{places:?}: {error}");
        assert!(store.to_vec().iter().all(|byte| *byte == 0), "{places:?}");
    }
    let spec = Spec { reserved_at: ReservedAt::At(&good), ..Spec::default() };
    assert_eq!(reserved(MIB, &spec), reserved(MIB, &Spec::default()));
}

#[test]
fn only_what_opens_a_volume_anywhere_is_taken() {
    let creator = BITLOCKER.creator().expect("it creates volumes");
    let recovery = creator.fresh_recovery_password().expect("random bytes");
    let mut mistyped = Secret::copy_from(&recovery);
    mistyped[14] = if mistyped[14] == b'0' { b'1' } else { b'0' };
    let refused = |credentials: &[Credential]| {
        let store = MemoryStore::new(vec![0; MIB as usize]);
        let error = BITLOCKER.create(&store, &Spec::default(), credentials).expect_err("it is refused");
        assert!(store.to_vec().iter().all(|byte| *byte == 0));
        error
    };
    let misuse = |credentials: &[Credential], what: &str| {
        let error = refused(credentials);
        assert!(matches!(&error.kind, ErrorKind::Misuse(said) if said.contains(what)), "{error}");
    };
    misuse(&[], "needs a password");
    misuse(&[passphrase("1234567")], "at least 8");
    misuse(&[passphrase("äöüäöüä")], "at least 8");
    misuse(&[Credential::Passphrase(Secret::copy_from(&[0xff; 8]))], "UTF-8");
    misuse(&[Credential::Passphrase(mistyped)], "third group");
    let kind = |error: Error| matches!(error.kind, ErrorKind::CredentialKind { .. });
    assert!(kind(refused(&[Credential::VolumeKey(Secret::zeroed(32))])));
    let noise = Credential::Keyfile(Secret::zeroed(156));
    assert!(matches!(refused(&[noise]).kind, ErrorKind::NotThisFormat(_)));
}

#[test]
fn a_store_is_as_large_as_its_plaintext_and_what_is_kept() {
    let creator = BITLOCKER.creator().expect("it creates volumes");
    for discovery in [false, true] {
        for plain in [0, 1, 100_000, 50 * MIB, 50 * MIB + 1, 3 << 40] {
            let spec = Spec { discovery, ..Spec::default() };
            let Ok(len) = creator.stored_len(plain, &spec) else {
                assert!(discovery, "{plain}");
                continue;
            };
            assert!(reserved(len, &spec)[0].offset >= plain, "{plain} in {len}");
        }
    }
    assert!(creator.stored_len(u64::MAX - 5, &Spec::default()).is_err());
}

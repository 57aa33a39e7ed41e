//! New BitLocker volumes: other programs read them with every protector, and write into them what we read; we write what they read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::formats::bitlocker::BITLOCKER;
use claviger_engine::spec::{Keeping, Kept};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Error, ErrorKind, Format, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::bitlocker::oracles::{self, Features, Key, Writer};
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

fn kept(len: u64, spec: &Spec<'_>) -> Vec<Kept> {
    BITLOCKER.creator().expect("it creates volumes").kept(len, spec).expect("there is room")
}

/// Bytes that repeat nowhere.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|i| (i ^ seed).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect()
}

/// Writes an NTFS of so many bytes, which some readers want to see, to the beginning of the volume. A reported skip without mkntfs.
fn write_ntfs(volume: &Volume, size: u64, sector: u32) -> Option<()> {
    let mkntfs = tools::program("mkntfs")?;
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    image.as_file().set_len(size).expect("a sparse file");
    let mut command = std::process::Command::new(mkntfs);
    tools::run(
        command
            .args(["-F", "-Q", "-q", "-s", &sector.to_string(), "-p", "0", "-H", "255", "-S", "63"])
            .arg(image.path()),
    );
    let mut bytes = std::fs::read(image.path()).expect("it was made");
    volume.write_at(0, &mut bytes).expect("it can be written");
    volume.flush().expect("it can be flushed");
    Some(())
}

#[test]
fn other_programs_read_what_was_created_and_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let keys = Keys::new(dir.path());
    for cipher in CIPHERS {
        for sector in [512, 4096] {
            let spec = Spec { cipher: Some(cipher), sector_size: Some(sector), ..Spec::default() };
            let image = dir.path().join("image");
            let len = 3 * MIB;
            let kept = kept(len, &spec);
            let store: Arc<dyn Store> = Arc::new(FileStore::create(&image, len).expect("there is room"));
            BITLOCKER.create(&*store, &spec, &keys.credentials).unwrap_or_else(|e| panic!("{cipher} {sector}: {e}"));
            let plain = {
                let volume = opened(&store, &keys.credentials[..1]);
                assert_eq!(volume.len(), len);
                let Some(()) = write_ntfs(&volume, kept[0].offset, sector) else { return };
                for at in [5000, MIB - 700] {
                    volume.write_at(at, &mut pattern(9000, at as u32)).expect("it can be written");
                }
                volume.flush().expect("it can be flushed");
                read_all(&volume)
            };
            drop(store);
            let features = Features { xts_256: cipher == "XTS-AES-256", ..Features::default() };
            let readings = oracles::expect_all(&image, &features, &keys.all(), &plain);
            eprintln!("{cipher}, sectors of {sector} bytes: {readings} readings");
            std::fs::remove_file(&image).expect("it is there");
        }
    }
}

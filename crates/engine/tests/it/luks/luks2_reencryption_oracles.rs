//! Reencryptions that cryptsetup has begun are gone on with, and the other way round. cryptsetup is killed at a write of its own by
//! strace, so that it leaves what a crash does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use claviger_engine::formats::Format;
use claviger_engine::formats::luks2::LUKS2;
use claviger_engine::formats::luks2::reencrypt::{self, HeaderAndData, Reencryption, ReencryptionRequest};
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{Fault, FaultStore, Operation};
use claviger_testkit::tools;

const PASSPHRASE: &str = "correct horse";

/// Size of the plaintext, in bytes.
const DATA: usize = 3 << 20;

/// Size of the header in front, in bytes.
const FRONT: usize = 1 << 20;

/// A re-encryption by cryptsetup.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Options of `cryptsetup reencrypt`.
    options: &'static str,
    /// Whether there is a volume to begin with, or plaintext.
    volume: bool,
    /// Whether the header is in a file of its own from then on.
    detached: bool,
    /// Whether plaintext is what is left.
    decrypts: bool,
    /// Bytes that are free after the plaintext.
    free: usize,
}

const CASE: Case = Case { options: "", volume: true, detached: false, decrypts: false, free: 0 };

const CASES: [Case; 7] = [
    CASE,
    Case { options: "--resilience journal --sector-size 512", ..CASE },
    Case { options: "--resilience none --hotzone-size 1M", ..CASE },
    Case { options: "--reduce-device-size 1M", free: 1 << 20, ..CASE },
    Case { options: "--encrypt --reduce-device-size 2M", volume: false, free: 2 << 20, ..CASE },
    Case { options: "--encrypt --hotzone-size 1M", volume: false, detached: true, ..CASE },
    Case { options: "--decrypt --resilience checksum", detached: true, decrypts: true, ..CASE },
];

/// A folder with an image, a header and the passphrase in it.
struct Bench {
    dir: tempfile::TempDir,
    detached: bool,
}

impl Bench {
    fn new(detached: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("passphrase"), PASSPHRASE).expect("a file");
        Self { dir, detached }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self, name: &str) -> Result<FileStore> {
        FileStore::open(&self.path(name), Access::ReadWrite)
    }

    fn cryptsetup(&self, program: &Path, words: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).args(words.split_whitespace());
        command
    }

    fn reencrypt(&self, options: &str) -> String {
        let header = if self.detached { "--header header" } else { "" };
        format!(
            "reencrypt -q --force-offline-reencrypt --key-file passphrase --pbkdf pbkdf2 --pbkdf-force-iterations 1000 {header} \
             {options} image"
        )
    }

    fn credentials() -> [Credential; 1] {
        [Credential::Passphrase(Secret::copy_from(PASSPHRASE.as_bytes()))]
    }

    fn plaintext(&self) -> Result<Vec<u8>> {
        let credentials = Self::credentials();
        let data: Arc<dyn Store> = Arc::new(self.store("image")?);
        let unlocked = if self.detached {
            let header: Arc<dyn Store> = Arc::new(self.store("header")?);
            LUKS2.open_detached(&header, &data)?.unlock(&Unlock::with(&credentials))?
        } else {
            LUKS2.open(&data)?.unlock(&Unlock::with(&credentials))?
        };
        let volume = Volume::new(data, unlocked.layout);
        let mut plaintext = vec![0; DATA];
        volume.read_at(0, &mut plaintext)?;
        Ok(plaintext)
    }

    fn resume(&self, cancel_after: u64) -> Result<()> {
        let (data, credentials) = (self.store("image")?, Self::credentials());
        let header = self.detached.then(|| self.store("header")).transpose()?;
        let stores =
            header.as_ref().map_or(HeaderAndData::new(&data, None), |header| HeaderAndData::new(header, Some(&data)));
        let (zones, cancel) = (AtomicU64::new(0), AtomicBool::new(false));
        let count = |_, _| {
            if zones.fetch_add(1, Ordering::Relaxed) == cancel_after {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        Reencryption::resume(stores, &Unlock::with(&credentials), Some(512 << 10))?.run(&count, &cancel)
    }

    /// The data when all is done.
    fn left(&self, decrypts: bool) -> Vec<u8> {
        match decrypts {
            true => std::fs::read(self.path("image")).expect("an image")[..DATA].to_vec(),
            false => self.plaintext().expect("it opens"),
        }
    }
}

fn contents() -> Vec<u8> {
    Random::new(11).bytes(DATA)
}

/// The state before a case begins.
fn before(case: &Case) -> Bench {
    let bench = Bench::new(case.detached);
    let image = match case.volume {
        false => [contents(), vec![0; case.free]].concat(),
        true => {
            let store = Arc::new(MemoryStore::new(vec![0; FRONT + DATA + case.free]));
            let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
            let (data_offset, sector_size) = (Some(FRONT as u64), Some(4096));
            let spec = Spec { quick: true, cost, key_bits: Some(256), data_offset, sector_size, ..Spec::default() };
            LUKS2.create(&*store, &spec, &Bench::credentials()).expect("a volume");
            let unlocked = LUKS2
                .open(&(Arc::clone(&store) as Arc<dyn Store>))
                .expect("a header")
                .unlock(&Unlock::with(&Bench::credentials()));
            let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.expect("it opens").layout);
            volume.write_clobbering(0, &mut contents()).expect("it is written");
            store.to_vec()
        }
    };
    std::fs::write(bench.path("image"), image).expect("an image");
    bench
}

#[test]
fn what_cryptsetup_has_begun_is_gone_on_with() {
    let (Some(cryptsetup), Some(strace)) = (tools::program("cryptsetup"), tools::program("strace")) else { return };
    let strace = strace.display().to_string();
    for (nth, case) in CASES.into_iter().enumerate() {
        // Where a zone is protected, hot, rewritten, done: of each two cases with two of them.
        for killed in if nth % 2 == 0 { [0, 9, 19] } else { [7, 14, 24] } {
            let bench = before(&case);
            let init = bench.reencrypt(&format!("--init-only {}", case.options));
            tools::run(&mut bench.cryptsetup(&cryptsetup, &init));
            if killed > 0 {
                let inject = format!("-f -o /dev/null -e inject=write:signal=KILL:when={killed}");
                let resume = bench.reencrypt("--resume-only");
                let mut command = bench.cryptsetup(Path::new(&strace), &inject);
                let _ = command.arg(&cryptsetup).args(resume.split_whitespace()).output().expect("strace starts");
            }
            // In the mode none a crash may cost a zone, and past the end there is nothing left to continue with.
            let none = case.options.contains("none");
            if !none && let Ok(plaintext) = bench.plaintext() {
                assert!(plaintext == contents(), "{case:?} killed at {killed}");
            }
            match bench.resume(u64::MAX) {
                Ok(()) => {}
                // It was at its end. The key of what has become plaintext may be gone.
                Err(e) => {
                    assert!(case.decrypts || e.to_string().contains("not being reencrypted"), "{case:?} {killed}: {e}")
                }
            }
            assert!(
                none && killed > 0 || bench.left(case.decrypts) == contents(),
                "{case:?} killed at {killed}: in the end"
            );
            if !case.decrypts {
                let dump = if case.detached { "luksDump header" } else { "luksDump image" };
                let dumped = tools::run(&mut bench.cryptsetup(&cryptsetup, dump)).stdout;
                assert!(!String::from_utf8_lossy(&dumped).contains("reencrypt"), "{case:?}");
                let test = format!("open --test-passphrase --key-file passphrase {}", &dump[9..]);
                tools::run(&mut bench.cryptsetup(&cryptsetup, &test));
            }
        }
    }
}

/// A re-encryption that this program begins.
#[derive(Clone, Copy, Debug)]
enum Ours {
    NewKey(&'static str, bool),
    EncryptDetached,
    EncryptInPlace,
    DecryptInPlace(&'static str),
}

impl Ours {
    fn case(self) -> Case {
        match self {
            Self::NewKey(..) => CASE,
            Self::EncryptDetached => Case { volume: false, detached: true, ..CASE },
            Self::EncryptInPlace => Case { volume: false, free: 2 << 20, ..CASE },
            Self::DecryptInPlace(_) => Case { detached: true, decrypts: true, ..CASE },
        }
    }

    fn begin(self, bench: &Bench) -> Result<()> {
        let credentials = Bench::credentials();
        let with = Unlock::with(&credentials);
        let data = bench.store("image")?;
        let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
        let spec = Spec { cost, key_bits: Some(256), sector_size: Some(4096), ..Spec::default() };
        let request = ReencryptionRequest::default();
        match self {
            Self::NewKey(mode, backward) => {
                let request = ReencryptionRequest { resilience: Some(mode), backward, ..request };
                reencrypt::begin(&HeaderAndData::new(&data, None), &with, &request, false)?.edit.carry_out(&data)
            }
            Self::EncryptDetached => {
                let header = FileStore::create(&bench.path("header"), 16 << 20)?;
                let stores = HeaderAndData::new(&header, Some(&data));
                reencrypt::begin_detached_encryption(&stores, &spec, &credentials, &request)?.edit.carry_out(&header)
            }
            Self::EncryptInPlace => reencrypt::begin_encryption(&data, 2 << 20, &spec, &credentials, &request),
            Self::DecryptInPlace(mode) => {
                let request = ReencryptionRequest { resilience: Some(mode), ..request };
                let header = FileStore::create(&bench.path("header"), reencrypt::header_len(&data)?)?;
                reencrypt::begin_decryption(&header, &data, &with, &request)
            }
        }
    }
}

#[test]
fn what_we_have_begun_cryptsetup_goes_on_with() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let all = [
        Ours::NewKey("checksum", false),
        Ours::NewKey("checksum", true),
        Ours::NewKey("journal", false),
        Ours::NewKey("none", false),
        Ours::EncryptDetached,
        Ours::EncryptInPlace,
        Ours::DecryptInPlace("checksum"),
        // Its part that moves is shorter: as long as the journal has room for.
        Ours::DecryptInPlace("journal"),
    ];
    for ours in all {
        let case = ours.case();
        for zones in [0, 2] {
            let bench = before(&case);
            ours.begin(&bench).unwrap_or_else(|e| panic!("{ours:?}: {e}"));
            if zones > 0 {
                bench.resume(zones).expect_err("it stops");
            }
            tools::run(&mut bench.cryptsetup(&cryptsetup, &bench.reencrypt("--resume-only")));
            assert!(bench.left(case.decrypts) == contents(), "{ours:?} after {zones} zones");
        }
    }
}

/// A write of the data fails for good, in the middle of a zone: cryptsetup recovers that zone.
#[test]
fn a_zone_that_we_have_left_half_written_cryptsetup_recovers() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    for ours in [Ours::NewKey("checksum", false), Ours::NewKey("checksum", true), Ours::NewKey("journal", false)] {
        for nth in [6, 9, 13] {
            let bench = before(&ours.case());
            ours.begin(&bench).expect("it begins");
            let bytes = std::fs::read(bench.path("image")).expect("an image");
            let memory = Arc::new(MemoryStore::new(bytes));
            let fault = Fault { operation: Operation::Write, nth, for_good: true, transferred: 256 << 10 };
            let failing = FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault));
            let credentials = Bench::credentials();
            let with = Unlock::with(&credentials);
            let reencryption =
                Reencryption::resume(HeaderAndData::new(&failing, None), &with, Some(512 << 10)).expect("it is there");
            reencryption.run(&|_, _| {}, &AtomicBool::new(false)).expect_err("the fault shows");
            std::fs::write(bench.path("image"), memory.to_vec()).expect("an image");
            assert!(bench.plaintext().expect("it opens") == contents(), "{ours:?} {nth}: half written");
            // Where a zone is hot, cryptsetup wants this first, and does not mind it otherwise.
            tools::run(&mut bench.cryptsetup(&cryptsetup, "repair -q --key-file passphrase image"));
            tools::run(&mut bench.cryptsetup(&cryptsetup, &bench.reencrypt("--resume-only")));
            assert!(bench.left(false) == contents(), "{ours:?} {nth}");
        }
    }
}

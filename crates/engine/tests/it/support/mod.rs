//! What the tests of formats have in common.
#![allow(dead_code)] // the test of registers, a program of its own, uses a part of it

pub mod cryptomator;
pub mod ecryptfs;
pub mod encfs;
pub mod fat;
pub mod file_format;
pub mod gocryptfs;
pub mod killed;
pub mod luks;
pub mod ntfs;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use claviger_crypto::hash;
use claviger_crypto::modes::AuthenticatedCipher;
use claviger_crypto::modes::aead::WrongTag;
use claviger_engine::formats::{self, Header};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::volume::integrity;
use claviger_engine::{Credential, ErrorKind, Result, Secret, Spec, Store, Unlock, Unlocked, Volume};
use claviger_testkit::dmg;
use claviger_testkit::filevault2::{BLOCK, DATA, Recipe, User};
use claviger_testkit::random::Random;
pub use claviger_testkit::random::noise;
use claviger_testkit::stores::{Fault, FaultStore, Operation};
use claviger_testkit::{terminal, tools, uml};
use serde_json::{Value, json};

/// A header's description, which needs no credential, as JSON.
pub fn described(header: &dyn Header) -> Value {
    serde_json::to_value(header.describe().expect("it says something")).expect("JSON")
}

pub fn passphrase(text: &str) -> Credential {
    Credential::Passphrase(Secret::copy_from(text.as_bytes()))
}

/// A store that never writes, over a file.
pub fn read_only(path: &Path) -> Arc<dyn Store> {
    Arc::new(FileStore::open(path, Access::ReadOnly).expect("the file opens"))
}

pub fn in_memory(path: &Path) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(std::fs::read(path).expect("the file can be read")))
}

/// A store, or an `Arc` of one, as formats take it.
pub fn shared(store: impl Store + 'static) -> Arc<dyn Store> {
    Arc::new(store)
}

/// Converts a volume while one thread reads its contents and another writes them again, whole sectors and parts of them. If it fails,
/// what failed keeps wrong bytes to itself, also after another try.
pub fn while_used(volume: &Volume, contents: &[u8], convert: &dyn Fn() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    let reader = || {
        let mut now = vec![0; contents.len()];
        while !done.load(Ordering::Relaxed) {
            volume.read_at(0, &mut now)?;
            assert!(now == contents, "other bytes");
        }
        Ok(())
    };
    let writer = || -> Result<()> {
        for len in [UNIT, 100] {
            for at in (0..contents.len()).step_by(UNIT) {
                volume.write_clobbering(at as u64, &mut contents[at..][..len].to_vec())?;
            }
            volume.flush()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (reader, writer) = (scope.spawn(reader), scope.spawn(writer));
        let worked = convert();
        let written = writer.join().expect("it ends");
        done.store(true, Ordering::Relaxed);
        let read: Result<()> = reader.join().expect("it reads the contents");
        if worked.is_err() {
            let again = convert();
            let right = |at: usize| {
                let mut now = [0; UNIT];
                volume.read_at(at as u64, &mut now).is_err() || now[..] == contents[at..][..UNIT]
            };
            assert!((0..contents.len()).step_by(UNIT).all(right), "after {worked:?} and {again:?}");
        }
        worked.and(written).and(read)
    })?;
    let mut now = vec![0; contents.len()];
    volume.read_at(0, &mut now)?;
    assert!(now == contents && volume.conversion().is_none(), "in the volume in use");
    Ok(())
}

/// What [`written_meanwhile`] and [`written_after_a_fault`] write at a time, in bytes.
const UNIT: usize = 4096;

/// The offsets of blocks outside the reserved areas.
fn blocks(len: usize, reserved: &[Range<u64>]) -> Vec<usize> {
    let free = |at: &usize| reserved.iter().all(|area| (at + UNIT) as u64 <= area.start || area.end <= *at as u64);
    (0..len).step_by(UNIT).filter(free).collect()
}

/// Sets a flag on drop, also after a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads write random blocks, each its own, and read them back, until `work` is done. Returns what the contents then are.
pub fn written_meanwhile(volume: &Volume, before: &[u8], reserved: &[Range<u64>], work: impl FnOnce()) -> Vec<u8> {
    let (done, all) = (AtomicBool::new(false), blocks(before.len(), reserved));
    // Each writes something first.
    let begun = Barrier::new(3);
    let writer = |number: usize| {
        let mut random = Random::new(number as u64);
        let mine: Vec<usize> = all.iter().copied().skip(number).step_by(2).collect();
        let (mut contents, mut first) = (before.to_vec(), true);
        while !done.load(Ordering::Relaxed) {
            let at = mine[random.below(mine.len())];
            let (from, len) = if random.below(2) == 0 { (at, UNIT) } else { (at + 700, 1100) };
            let new = random.bytes(len);
            volume.write_clobbering(from as u64, &mut new.clone()).expect("it is open at last");
            contents[from..from + len].copy_from_slice(&new);
            let mut now = [0; UNIT];
            volume.read_at(at as u64, &mut now).expect("it is open at last");
            assert!(now[..] == contents[at..][..UNIT], "block at {at} of {number}");
            if std::mem::take(&mut first) {
                begun.wait();
            }
        }
        (mine, contents)
    };
    let written = std::thread::scope(|scope| {
        let writer = &writer;
        let threads = [0, 1].map(|number| scope.spawn(move || writer(number)));
        let ends = SetOnDrop(&done);
        begun.wait();
        work();
        drop(ends);
        threads.map(|thread| thread.join().expect("it reads what it wrote"))
    });
    let mut contents = before.to_vec();
    for (blocks, theirs) in written {
        blocks.iter().for_each(|at| contents[*at..][..UNIT].copy_from_slice(&theirs[*at..][..UNIT]));
    }
    contents
}

/// Converts a volume that lies in a store.
pub type Converts<'a> = dyn Fn(&Arc<dyn Store>, &Volume) -> Result<()> + 'a;

/// A conversion in use, step by step.
pub struct ConversionInUse<'a> {
    pub name: &'a str,
    /// The bytes of the store, and the plaintext.
    pub before: &'a [u8],
    pub contents: &'a [u8],
    pub reserved: &'a [Range<u64>],
    /// Opens the volume, and begins.
    pub begin: &'a dyn Fn(&Arc<dyn Store>) -> Result<Volume>,
    pub convert: &'a Converts<'a>,
    /// The plaintext, by opening it anew.
    pub read: &'a dyn Fn(&Arc<dyn Store>) -> Vec<u8>,
    /// Resumes it unless it is done.
    pub finish: &'a dyn Fn(&Arc<dyn Store>),
}

/// Lets each write and flush of a conversion fail once. What is written to the volume afterwards is there when it is opened again, and
/// when the conversion is done.
pub fn written_after_a_fault(it: &ConversionInUse<'_>) {
    let memory = || Arc::new(MemoryStore::new(it.before.to_vec()));
    let counting = Arc::new(FaultStore::new(memory(), None));
    let counted = Arc::clone(&counting) as Arc<dyn Store>;
    let before = (it.begin)(&counted).map(|volume| (it.convert)(&counted, &volume));
    before.and_then(|done| done).unwrap_or_else(|e| panic!("{}: {e}", it.name));
    let mut failed = 0;
    for operation in [Operation::Write, Operation::Flush] {
        for nth in 0..counting.count(operation) {
            let memory = memory();
            let fault = Fault { operation, nth, for_good: false, transferred: 512 };
            let store: Arc<dyn Store> = Arc::new(FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault)));
            let Ok(volume) = (it.begin)(&store) else { continue };
            if (it.convert)(&store, &volume).is_ok() {
                continue;
            }
            failed += 1;
            let mut expected = it.contents.to_vec();
            for at in blocks(expected.len(), it.reserved) {
                let block = &mut expected[at..][..UNIT];
                let new: Vec<u8> = block.iter().map(|byte| !byte).collect();
                if volume.write_clobbering(at as u64, &mut new.clone()).is_ok() {
                    block.copy_from_slice(&new);
                }
            }
            volume.flush().expect("it fails once");
            drop(volume);
            let on_disk: Arc<dyn Store> = memory;
            assert!((it.read)(&on_disk) == expected, "{}, {fault:?}: opened again", it.name);
            (it.finish)(&on_disk);
            assert!((it.read)(&on_disk) == expected, "{}, {fault:?}: resumed", it.name);
        }
    }
    assert!(failed > 10, "{}: {failed}", it.name);
}

/// Unlocks as TrueCrypt, whatever `identify` says.
pub fn unlock(store: impl Store + 'static, with: &Unlock<'_>) -> Result<Unlocked> {
    let (_, header) = formats::open(&shared(store), Some("TrueCrypt"))?;
    header.unlock(with)
}

/// Unlocks as VeraCrypt, whatever `identify` says.
pub fn unlock_veracrypt(store: impl Store + 'static, with: &Unlock<'_>) -> Result<Unlocked> {
    let (_, header) = formats::open(&shared(store), Some("VeraCrypt"))?;
    header.unlock(with)
}

/// All that the volume holds.
pub fn plaintext(store: Arc<dyn Store>, unlocked: Unlocked) -> Vec<u8> {
    all_of(&Volume::new(store, unlocked.layout))
}

/// All that an open volume holds.
pub fn all_of(volume: &Volume) -> Vec<u8> {
    let mut all = vec![0; volume.len() as usize];
    volume.read_at(0, &mut all).expect("the whole volume can be read");
    all
}

/// Runs the script of each image, which is told its number and the name of its device, in user-mode Linux; or a reported
/// skip.
pub fn run_in_kernel(images: &[&Path], script: impl Fn(usize, &str) -> String) -> Option<()> {
    let scripts: String = (b'a'..).zip(0..images.len()).map(|(c, i)| script(i, &format!("ubd{}", c as char))).collect();
    let done = uml::run(&format!("set -ex\n{scripts}"), images, 300)?;
    assert_eq!(done.status, 0, "{}", done.output);
    Some(())
}

pub fn to_file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("it is written");
    file
}

/// The UUID of the file system in `plaintext`, as blkid sees it.
pub fn uuid(blkid: &Path, plaintext: &[u8]) -> String {
    let file = to_file(plaintext);
    let output = tools::run(Command::new(blkid).args(["-p", "-o", "value", "-s", "UUID"]).arg(file.path()));
    String::from_utf8(output.stdout).expect("a UUID is ASCII").trim().to_owned()
}

/// A FileVault 2 volume, which nothing here creates but the testkit, of 3 MiB.
pub fn filevault2(passphrase: &str) -> Vec<u8> {
    let users = [User { passphrase, name: "Ann", iterations: 1000 }];
    let plaintext = filevault2_start((3 << 20) - (DATA as usize + 1) * BLOCK);
    Recipe::new(&users, &plaintext).make().sealed()
}

/// The first bytes of what it holds.
pub fn filevault2_start(len: usize) -> Vec<u8> {
    noise(len, 3)
}

/// An encrypted disk image of macOS, which nothing here creates but the testkit, of 3 MiB. It holds the same.
pub fn dmg(passphrase: &str) -> Vec<u8> {
    dmg::Recipe::new(&[(passphrase, 1000)], &filevault2_start((3 << 20) - dmg::DATA)).make().bytes
}

/// A volume of integritysetup, which nothing here creates, of 3 MiB: the passphrase is the key of its tags.
pub fn dm_integrity(passphrase: &str) -> Vec<u8> {
    struct Tags<'a>(&'a str);
    impl AuthenticatedCipher for Tags<'_> {
        fn sector_size(&self) -> usize {
            512
        }
        fn tag_size(&self) -> usize {
            32
        }
        fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]) {
            for (number, (data, tag)) in (first..).zip(run.chunks(512).zip(tags.chunks_mut(32))) {
                hash::SHA256.hmac(self.0.as_bytes(), &[&number.to_le_bytes(), data], tag);
            }
        }
        fn decrypt(&self, _: u64, _: &mut [u8], _: &[u8]) -> std::result::Result<(), WrongTag> {
            unreachable!("it is only made")
        }
    }
    let store = MemoryStore::new(vec![0; 3 << 20]);
    integrity::format(&store, 0, store.len(), &Tags(passphrase), &mut |_, _| Ok(())).expect("there is room");
    store.to_vec()
}

/// A volume of a format that nothing here creates, of 3 MiB.
pub fn not_created(format: &str, passphrase: &str) -> Vec<u8> {
    match format {
        "dm-integrity" => dm_integrity(passphrase),
        "DMG" => dmg(passphrase),
        _ => filevault2(passphrase),
    }
}

/// The images of cryptsetup's test suite, unpacked.
pub struct Images(tempfile::TempDir);

impl Images {
    pub fn unpacked() -> Option<Self> {
        let archive = tools::sample("cryptsetup/images.tar.xz")?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        tools::run(Command::new(tools::program("tar")?).arg("-xJSf").arg(archive).arg("-C").arg(dir.path()));
        Some(Self(dir))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Names of all files in `folder`, sorted.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).expect("the folder is there");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

/// The passphrase and the keyfiles of an image of cryptsetup's tests.
pub fn credentials_of(images: &Images, name: &str) -> Vec<Credential> {
    let mut credentials = Vec::new();
    if !name.contains("_nopw") {
        let repeated = |letters: &str| letters.chars().map(|c| c.to_string().repeat(12)).collect::<String>();
        let text = if name.contains("_pw72") {
            repeated("abcdef")
        } else if name.starts_with("vcpim_") {
            "c".repeat(20)
        } else if name.ends_with("-hidden") {
            repeated("b")
        } else {
            repeated("a")
        };
        credentials.push(passphrase(&text));
    }
    if name.starts_with("tck_") || name.starts_with("vck_") {
        for keyfile in ["keyfile1", "keyfile2"] {
            credentials.extend(Credential::keyfiles(&images.path("tcrypt").join(keyfile)).expect("a keyfile"));
        }
    }
    credentials
}

/// A digest of a whole file, to see whether it was changed.
pub fn digest(path: &Path) -> String {
    let output = tools::run(Command::new("sha256sum").stdin(File::open(path).expect("the file opens")));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a TrueCrypt volume of the whole store.
pub fn create(store: &dyn Store, spec: &Spec<'_>, credentials: &[Credential]) -> Result<()> {
    formats::by_name("TrueCrypt").expect("it is in the table").create(store, spec, credentials)
}

/// Makes a VeraCrypt volume of the whole store.
pub fn create_veracrypt(store: &dyn Store, spec: &Spec<'_>, credentials: &[Credential]) -> Result<()> {
    formats::by_name("VeraCrypt").expect("it is in the table").create(store, spec, credentials)
}

/// A new file of `len` zero bytes in `folder`.
pub fn new_file(folder: &Path, name: &str, len: u64) -> PathBuf {
    let path = folder.join(name);
    File::create_new(&path).and_then(|f| f.set_len(len)).expect("a new file");
    path
}

/// A file store for reading and writing.
pub fn read_write(path: &Path) -> Arc<dyn Store> {
    Arc::new(FileStore::open(path, Access::ReadWrite).expect("the file opens"))
}

/// Fails unless nothing opens with any of the passphrases.
pub fn opens_with_nothing(bytes: Vec<u8>, passphrases: &[&str], what: &str) {
    let store = Arc::new(MemoryStore::new(bytes));
    for text in passphrases {
        let error = match unlock(Arc::clone(&store), &Unlock::with(&[passphrase(text)])) {
            Ok(unlocked) => panic!("{what}: {text} opens {:?}", unlocked.facts),
            Err(error) => error,
        };
        let nothing = matches!(error.kind, ErrorKind::WrongCredential(_) | ErrorKind::NotThisFormat(_));
        assert!(nothing, "{what}: {text}: {error}");
    }
}

/// Runs `command` on a terminal of its own and answers its prompts in order. What it prints. Prompts are for secrets, but
/// those with a parenthesis, which names examples or choices.
pub fn on_terminal(answers: &[(&str, &str)], command: &[&str]) -> String {
    // Characters typed before the echo is off are lost.
    let steps = answers.iter().flat_map(|(prompt, answer)| {
        [json!({"expect": prompt}), json!({"echo": prompt.contains(')')}), json!({"send": format!("{answer}\n")})]
    });
    let mut terminal = terminal::played(Value::from_iter(steps)).expect("Python was found before");
    let ended: Value = serde_json::from_slice(&tools::run(terminal.args(command)).stdout).expect("JSON");
    assert_eq!(ended["code"], 0, "{ended}");
    ended["output"].as_str().expect("text").to_owned()
}

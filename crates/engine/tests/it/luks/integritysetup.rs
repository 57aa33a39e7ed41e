//! Volumes of integritysetup, both ways with Linux: dm-integrity in user-mode Linux.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::noise;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Error, ErrorKind, Secret, Store, Unlock, Volume, formats};
use claviger_testkit::{tools, uml};

/// One kind of volume, as options of integritysetup and of this program.
struct Kind {
    /// For format and open.
    options: &'static str,
    /// For format only.
    format: &'static str,
    /// For open only.
    open: &'static str,
    key: bool,
    /// Our option, if the size of the tags does not decide.
    hash: Option<&'static str>,
    /// The integrity that this program detects.
    integrity: &'static str,
}

const PLAIN: Kind =
    Kind { options: "--integrity crc32c", format: "", open: "", key: false, hash: None, integrity: "crc32c" };
const KEY: &str = "--integrity hmac-sha256 --integrity-key-file key --integrity-key-size 32";

const KINDS: [Kind; 9] = [
    PLAIN,
    Kind { options: "--integrity crc32", format: "--sector-size 4096", integrity: "crc32", ..PLAIN },
    Kind { options: "--integrity sha1", format: "--tag-size 20", integrity: "sha1", ..PLAIN },
    Kind { options: "--integrity sha256", format: "--tag-size 32 --sector-size 4096", integrity: "sha256", ..PLAIN },
    Kind {
        options: "--integrity sha256",
        format: "--tag-size 16",
        hash: Some("SHA-256"),
        integrity: "sha256",
        ..PLAIN
    },
    Kind { options: KEY, format: "--tag-size 32", key: true, integrity: "hmac-sha256", ..PLAIN },
    Kind {
        options: KEY,
        format: "--tag-size 32 --integrity-legacy-hmac",
        open: "--integrity-legacy-hmac",
        key: true,
        integrity: "hmac-sha256",
        ..PLAIN
    },
    Kind { options: "--integrity crc32c --integrity-bitmap-mode", ..PLAIN },
    Kind {
        format: "--integrity-legacy-padding --interleave-sectors 1024",
        open: "--integrity-legacy-padding",
        ..PLAIN
    },
];

/// What the script of every boot begins with.
const PREPARE: &str = "set -e
modprobe -qa dm-integrity crc32c_generic crc32_generic sha1_generic sha256_generic hmac ctr aes
";

struct Images {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Images {
    fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let paths: Vec<_> = (0..count).map(|i| dir.path().join(format!("{i}.img"))).collect();
        for path in &paths {
            fs::File::create(path).and_then(|file| file.set_len(3 << 20)).expect("an image");
        }
        fs::write(dir.path().join("key"), noise(32, 77)).expect("a key");
        fs::write(dir.path().join("theirs"), noise(200_000, 1)).expect("a pattern");
        Self { dir, paths }
    }

    fn run(&self, script: &str) -> Option<()> {
        let paths: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        let script = format!("cd {}\n{PREPARE}{script}", self.dir.path().display());
        let done = uml::run(&script, &paths, 200)?;
        assert_eq!(done.status, 0, "{}", done.output);
        Some(())
    }
}

fn device(i: usize) -> String {
    format!("/dev/ubd{}", char::from(b'a' + i as u8))
}

fn keyfile(seed: u64) -> [Credential; 1] {
    [Credential::Keyfile(Secret::copy_from(&noise(32, seed)))]
}

fn open_as(
    store: &Arc<dyn Store>,
    credentials: &[Credential],
    hash: Option<&str>,
    expected: &str,
) -> Result<(Volume, Vec<String>), Error> {
    let (format, header) = formats::open(store, None)?;
    assert_eq!(format.name(), "dm-integrity");
    assert!(!header.asks_passphrase(&[]) && header.describe().is_some());
    let unlocked = header.unlock(&Unlock { hash, ..Unlock::with(credentials) })?;
    assert_eq!((unlocked.facts.integrity.as_deref(), unlocked.facts.size), (Some(expected), unlocked.layout.len()));
    assert!(unlocked.recognised);
    let warnings = unlocked.warnings.iter().map(|warning| warning.what.clone()).collect();
    Ok((Volume::new(Arc::clone(store), unlocked.layout), warnings))
}

fn open(store: &Arc<dyn Store>, kind: &Kind) -> (Volume, Vec<String>) {
    let key = keyfile(77);
    let credentials = if kind.key { &key[..] } else { &[] };
    open_as(store, credentials, kind.hash, kind.integrity)
        .unwrap_or_else(|e| panic!("{} {}: {e}", kind.options, kind.format))
}

fn memory(path: &Path) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(fs::read(path).expect("the image")))
}

#[test]
fn linux_and_we_read_what_the_other_writes() {
    let Some(_) = tools::program("integritysetup") else { return };
    // Behind them one that is copied while Linux has it, in the last but one.
    let images = Images::new(KINDS.len() + 1);
    let mut script = String::new();
    for (i, Kind { options, format, open, .. }) in KINDS.iter().enumerate() {
        let device = device(i);
        script += &format!(
            "integritysetup format -q {options} {format} {device}
             integritysetup open {options} {open} {device} x
             dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc,fsync status=none\n"
        );
        if i == 0 {
            script +=
                &format!("dd if={device} of={} bs=1M iflag=direct conv=fsync status=none\n", self::device(KINDS.len()));
        }
        script += "integritysetup close x\n";
    }
    let Some(()) = images.run(&script) else { return };

    let mut script = String::new();
    for (i, kind) in KINDS.iter().enumerate() {
        let store: Arc<dyn Store> = Arc::new(FileStore::open(&images.paths[i], Access::ReadWrite).expect("the image"));
        let (volume, warnings) = open(&store, kind);
        assert!(warnings[0].contains("This volume is not encrypted") && warnings.len() == 1, "{warnings:?}");
        assert_eq!(warnings[0].contains("no key"), !kind.key);
        let mut all = vec![0; volume.len() as usize];
        volume.read_at(0, &mut all).unwrap_or_else(|e| panic!("{} {}: {e}", kind.options, kind.format));
        let mut model = vec![0; all.len()];
        model[40_960..240_960].copy_from_slice(&noise(200_000, 1));
        assert!(all == model, "{} {}", kind.options, kind.format);
        for (at, len, seed) in [(0, 4096, 2), (70_001, 3000, 3), (300_000, 400_000, 4), (all.len() - 700, 700, 5)] {
            model[at..at + len].copy_from_slice(&noise(len, seed));
            volume.write_clobbering(at as u64, &mut noise(len, seed)).expect("it is written");
        }
        volume.flush().expect("it is flushed");
        fs::write(images.dir.path().join(format!("{i}.ours")), &model).expect("a pattern");
        // Some stay as a crash would leave them, with all that was written in the journal only.
        if i % 2 == 1 {
            std::mem::forget(volume);
        }
        let Kind { options, open, .. } = kind;
        script += &format!(
            "integritysetup open {options} {open} {device} x
             cmp /dev/mapper/x {i}.ours
             integritysetup close x
             integritysetup dump {device} >dump
             grep -q 'magic integrt' dump || grep -q 'superblock_version' dump\n",
            device = device(i)
        );
    }
    images.run(&script);

    // Data that Linux has written to the journal and not yet moved.
    let store = memory(&images.paths[KINDS.len()]);
    let (volume, warnings) = open(&store, &KINDS[0]);
    assert!(warnings.iter().any(|warning| warning.contains("still in the journal")), "{warnings:?}");
    let mut data = vec![0; 200_000];
    volume.read_at(40_960, &mut data).expect("it is there");
    assert!(data == noise(200_000, 1));
    volume.write_clobbering(41_000, &mut noise(100, 8)).expect("it is written");
    data[40..140].copy_from_slice(&noise(100, 8));
    drop(volume);
    let (volume, _) = open(&store, &KINDS[0]);
    let mut again = vec![0; 200_000];
    volume.read_at(40_960, &mut again).expect("it is there");
    assert!(again == data);

    // A changed byte is the error of its sector alone.
    let mut bytes = fs::read(&images.paths[0]).expect("the image");
    let at = bytes.windows(32).position(|part| part == &noise(4096, 2)[..32]).expect("it is in clear");
    bytes[at] ^= 1;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes));
    let (volume, _) = open(&store, &KINDS[0]);
    assert!(volume.read_at(0, &mut [0; 512]).is_err() && volume.read_at(512, &mut [0; 512]).is_ok());

    let refused = |at: usize, credentials: &[Credential], hash: Option<&str>| {
        let store = memory(&images.paths[at]);
        open_as(&store, credentials, hash, "").map(|_| ()).expect_err("it is refused")
    };
    let wrong = refused(5, &keyfile(78), None);
    assert!(matches!(&wrong.kind, ErrorKind::WrongCredential(what) if what.contains("hmac-sha256")), "{wrong}");
    assert!(wrong.hint.is_some_and(|hint| hint.contains("The key or the hash is wrong")));
    let without = refused(5, &[], None);
    assert!(without.hint.is_some_and(|hint| hint.contains("also need the keyfile")));
    for (error, what) in [
        (refused(0, &keyfile(77), Some("crc32c")), "the tags are not keyed, but a key was given"),
        (refused(5, &[], Some("hmac(sha256)")), "the tags are keyed, but no key was given"),
        (refused(4, &[], None), "no known hash makes 16-byte tags"),
        (refused(0, &[], Some("xxhash64")), "not supported: dm-integrity tags by xxhash64"),
        (refused(0, &keyfile(77), None), "no known hash makes 4-byte tags"),
    ] {
        assert_eq!(error.kind.to_string(), what);
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let Some(_) = tools::program("integritysetup") else { return };
    let images = Images::new(4);
    let mac = "--journal-integrity hmac-sha256 --journal-integrity-key-file key --journal-integrity-key-size 32";
    let crypt = "--journal-crypt ctr-aes --journal-crypt-key-file key --journal-crypt-key-size 32";
    let script = format!(
        "integritysetup format -q --no-wipe {mac} {a}
         integritysetup format -q --no-wipe {crypt} {b}
         integritysetup format -q --no-wipe {c}
         integritysetup format -q --integrity-bitmap-mode {d}
         integritysetup open {mac} {a} x; integritysetup close x
         integritysetup open {crypt} {b} x; integritysetup close x
         integritysetup open --integrity-recalculate {c} x
         while ! integritysetup dump {c} | grep -q 'recalc_sector 57'; do sleep 1; done
         integritysetup close x
         integritysetup open --integrity-bitmap-mode {d} x
         dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc,fsync status=none
         dd if={d} of=copy bs=1M iflag=direct status=none
         integritysetup close x
         dd if=copy of={d} bs=1M conv=fsync status=none\n",
        a = device(0),
        b = device(1),
        c = device(2),
        d = device(3)
    );
    let Some(()) = images.run(&script) else { return };
    let (volume, _) = open(&memory(&images.paths[2]), &PLAIN);
    volume.read_at(0, &mut vec![0; volume.len() as usize]).expect("Linux has made all the tags");
    // The same state as while Linux was making the tags.
    let mut bytes = fs::read(&images.paths[2]).expect("the image");
    bytes[32..40].copy_from_slice(&8u64.to_le_bytes());
    fs::write(&images.paths[2], bytes).expect("the image");
    for (i, what) in [
        (0, "not supported: a journal of dm-integrity with a MAC"),
        (1, "damaged: it does not belong to the journal, or the journal is encrypted (field commit id of the journal"),
        (2, "not supported: tags still being computed by dm-integrity"),
        (3, "not supported: dm-integrity's bitmap mode"),
    ] {
        let store = memory(&images.paths[i]);
        let error = formats::open(&store, None).map(|_| ()).expect_err("it is refused");
        assert!(error.kind.to_string().starts_with(what), "{error}");
    }
}

/// Each field of the superblock, with each value of one byte that is wrong and some that are extreme: an error or a volume, and nothing
/// is read beyond the store.
#[test]
fn a_hostile_superblock_is_an_error_or_a_volume() {
    let mut good = vec![0; 3 << 20];
    good[..8].copy_from_slice(b"integrt\0");
    good[8] = 4;
    good[9] = 15;
    good[10] = 4;
    good[12] = 1;
    good[16..24].copy_from_slice(&4096u64.to_le_bytes());
    good[24] = 8;
    // One section of the journal: eight sectors of entries, 21 in each, for each of which there is a sector.
    for sector in 0..8 + 8 * 21 {
        let at = 4096 + sector * 512;
        if sector < 8 {
            (0..21).for_each(|entry| good[at + entry * 24 + 4..at + entry * 24 + 8].fill(0xff));
        }
        let id = 0x1111_1111_1111_1111u64 ^ sector as u64;
        good[at + 504..at + 512].copy_from_slice(&id.to_le_bytes());
    }
    let open = |bytes: Vec<u8>| -> Result<(), ErrorKind> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes));
        let (_, header) = formats::open(&store, Some("dm-integrity")).map_err(|e| e.kind)?;
        let unlocked = header.unlock(&Unlock { hash: Some("crc32c"), ..Unlock::with(&[]) }).map_err(|e| e.kind)?;
        let volume = Volume::new(store, unlocked.layout);
        let _ = volume.read_at(volume.len() - 512, &mut [0; 512]);
        Ok(())
    };
    let mut opened = 0;
    for at in 0..64 {
        for byte in [0, 1, 2, 3, 7, 9, 31, 32, 63, 64, 127, 128, 200, 255] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            match open(bytes) {
                Ok(()) => opened += 1,
                Err(ErrorKind::Malformed { offset, .. }) => assert!(offset < 3 << 20, "byte {at}: {byte}"),
                Err(ErrorKind::Unsupported { .. }) => {}
                Err(other) => panic!("byte {at}, {byte}: {other}"),
            }
        }
    }
    assert!(opened > 100, "{opened}");
    for cut in [0, 7, 8, 64, 4095, 4096, 5000, 1 << 20] {
        assert!(open(good[..cut].to_vec()).is_err(), "{cut}");
    }
    assert!(open(good).is_ok());
}

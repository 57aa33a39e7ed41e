//! Sectors with tags, both ways with Linux: dm-crypt over dm-integrity in user-mode Linux, made by cryptsetup.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{noise, passphrase};
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Spec, Store, Unlock, Volume, formats};
use claviger_testkit::stores::{Fault, FaultStore, Operation};
use claviger_testkit::{tools, uml};

/// One kind of volume, as options of cryptsetup and of this program.
struct Kind {
    cipher: &'static str,
    integrity: &'static str,
    /// Bits of the key, without that of a MAC.
    bits: u32,
    sector: u32,
}

const fn kind(cipher: &'static str, integrity: &'static str, bits: u32, sector: u32) -> Kind {
    Kind { cipher, integrity, bits, sector }
}

const KINDS: [Kind; 11] = [
    kind("aes-xts-plain64", "hmac-sha256", 512, 512),
    kind("aes-xts-plain64", "hmac-sha512", 256, 4096),
    kind("aes-cbc-essiv:sha256", "hmac-sha256", 256, 512),
    kind("serpent-xts-random", "hmac-sha256", 512, 4096),
    kind("aes-gcm-random", "aead", 256, 512),
    kind("aes-gcm-random", "aead", 128, 4096),
    kind("chacha20-random", "poly1305", 256, 512),
    kind("chacha20-random", "poly1305", 256, 4096),
    kind("aegis128-random", "aead", 128, 4096),
    kind("aes-ccm-random", "aead", 152, 512),
    kind("aes-ccm-random", "aead", 280, 4096),
];

impl Kind {
    fn format(&self, device: &str) -> String {
        let Self { cipher, integrity, bits, sector } = self;
        format!("$F --cipher {cipher} --integrity {integrity} --key-size {bits} --sector-size {sector} {device}\n")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.cipher, self.integrity, self.sector)
    }
}

/// Opens a volume, and says whether there was something in its journal only.
fn open(store: Arc<dyn Store>, writable: bool) -> (Volume, bool) {
    let credentials = [passphrase("pw")];
    let (format, header) = formats::open(&store, None).expect("a header");
    assert_eq!(format.name(), "LUKS2");
    let unlocked = header.unlock(&Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{e}"));
    let in_journal = unlocked.warnings.iter().any(|w| w.what.contains("still in the journal"));
    assert_eq!(unlocked.facts.size, unlocked.layout.len());
    let layout = if writable { unlocked.layout } else { unlocked.layout.read_only() };
    (Volume::new(store, layout), in_journal)
}

fn file(path: &Path, access: Access) -> Arc<dyn Store> {
    Arc::new(FileStore::open(path, access).expect("the image"))
}

/// What the script of every boot begins with.
const PREPARE: &str = "set -e
modprobe -qa dm-integrity dm-crypt aegis128 gcm ccm chacha20poly1305 hmac sha512_generic xts cbc essiv authenc ctr ghash-generic
F='cryptsetup luksFormat -q --type luks2 --luks2-metadata-size 16k --luks2-keyslots-size 512k --pbkdf pbkdf2'
F=\"$F --pbkdf-force-iterations 1000 --key-file pw\"
printf pw >pw
";

struct Images {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Images {
    fn new(sizes: &[u64]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |i: usize| dir.path().join(format!("{i}.img"));
        let paths: Vec<_> = (0..sizes.len()).map(path).collect();
        for (path, size) in paths.iter().zip(sizes) {
            fs::File::create(path).and_then(|file| file.set_len(*size)).expect("an image");
        }
        Self { dir, paths }
    }

    fn run(&self, script: &str) -> Option<()> {
        let paths: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        let script = format!("cd {}\n{PREPARE}{script}", self.dir.path().display());
        let done = uml::run(&script, &paths, 200)?;
        assert_eq!(done.status, 0, "{}", done.output);
        Some(())
    }

    fn in_folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn device(i: usize) -> String {
    format!("/dev/ubd{}", char::from(b'a' + i as u8))
}

#[test]
fn linux_reads_what_we_write_and_we_read_what_linux_writes() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let images = Images::new(&[3 << 20; KINDS.len()]);
    fs::write(images.in_folder("theirs"), noise(200_000, 1)).expect("a pattern");
    let mut script = String::new();
    for (i, kind) in KINDS.iter().enumerate() {
        script += &kind.format(&device(i));
        script += &format!(
            "cryptsetup open --key-file pw {device} x
             dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc status=none
             cryptsetup close x\n",
            device = device(i)
        );
    }
    let Some(()) = images.run(&script) else { return };

    let mut script = String::new();
    for (i, kind) in KINDS.iter().enumerate() {
        let (volume, in_journal) = open(file(&images.paths[i], Access::ReadWrite), true);
        assert!(!in_journal, "Linux emptied the journal when it closed the device");
        let mut all = vec![0; volume.len() as usize];
        volume.read_at(0, &mut all).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let mut model = vec![0; all.len()];
        model[40_960..240_960].copy_from_slice(&noise(200_000, 1));
        // cryptsetup fills the last sectors of such a device with zeros as well.
        assert!(all == model, "{kind}");
        for (at, len, seed) in [(0, 4096, 2), (70_001, 3000, 3), (300_000, 400_000, 4), (all.len() - 700, 700, 5)] {
            model[at..at + len].copy_from_slice(&noise(len, seed));
            volume.write_clobbering(at as u64, &mut noise(len, seed)).expect("it is written");
        }
        volume.flush().expect("it is flushed");
        fs::write(images.in_folder(&format!("{i}.ours")), &model).expect("a pattern");
        // The second one stays as a crash would leave it: all that was written is in the journal only.
        if i == 1 {
            std::mem::forget(volume);
        }
        script += &format!(
            "cryptsetup open --key-file pw {device} x
             cmp /dev/mapper/x {i}.ours
             cryptsetup close x\n",
            device = device(i)
        );
    }
    images.run(&script);
}

#[test]
fn each_carries_out_the_journal_of_the_other() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let images = Images::new(&[12 << 20, 12 << 20, 12 << 20, 12 << 20]);
    fs::write(images.in_folder("theirs"), noise(30_000, 1)).expect("a pattern");
    // When the device is copied, the data that Linux wrote are in the journal, and not yet in their place.
    let script = format!(
        "{format}
         cryptsetup open --key-file pw {a} x
         dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc,fsync status=none
         dd if={a} of={b} bs=1M iflag=direct conv=fsync status=none
         cryptsetup close x
         dd if={a} of={c} bs=1M conv=fsync status=none
         dd if={a} of={d} bs=1M conv=fsync status=none\n",
        format = KINDS[0].format(&device(0)),
        a = device(0),
        b = device(1),
        c = device(2),
        d = device(3),
    );
    let Some(()) = images.run(&script) else { return };

    let (volume, in_journal) = open(file(&images.paths[0], Access::ReadOnly), false);
    assert!(!in_journal, "Linux emptied it when it closed the device");
    let mut model = vec![0; volume.len() as usize];
    model[40_960..70_960].copy_from_slice(&noise(30_000, 1));
    let check = |volume: &Volume, what: &str| {
        let mut all = vec![0; model.len()];
        volume.read_at(0, &mut all).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(all == model, "{what}");
    };
    let before = fs::read(&images.paths[1]).expect("the image");
    {
        let (volume, in_journal) = open(file(&images.paths[1], Access::ReadOnly), false);
        assert!(in_journal, "Linux left it as after a crash");
        check(&volume, "through the journal");
    }
    assert!(fs::read(&images.paths[1]).expect("the image") == before, "reading wrote nothing");
    {
        let (volume, _) = open(file(&images.paths[1], Access::ReadWrite), true);
        volume.write_clobbering(0, &mut noise(10, 9)).expect("it is written");
        volume.write_clobbering(0, &mut [0; 10]).expect("it is written");
        check(&volume, "after the journal was carried out");
    }

    // Ours, in whose middle a write fails: into the journal, and later to a place.
    let mut script =
        format!("cryptsetup open --key-file pw {} x; cmp /dev/mapper/x linux; cryptsetup close x\n", device(1));
    fs::write(images.in_folder("linux"), &model).expect("a pattern");
    for (i, nth) in [(2, 3), (3, 9)] {
        let memory = Arc::new(MemoryStore::new(fs::read(&images.paths[i]).expect("the image")));
        let fault = Fault { operation: Operation::Write, nth, for_good: true, transferred: 1234 };
        let faulty: Arc<dyn Store> = Arc::new(FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault)));
        let (volume, _) = open(faulty, true);
        let mut written = 0;
        let write = |nth: u64| volume.write_clobbering(100_000 + nth * 512, &mut noise(512, 7 + nth));
        while write(written).and_then(|()| volume.flush()).is_ok() {
            written += 1;
        }
        assert!(written >= 2, "{written} were written before the fault");
        drop(volume);
        fs::write(&images.paths[i], memory.to_vec()).expect("the image");
        let (volume, in_journal) = open(Arc::clone(&memory) as Arc<dyn Store>, false);
        assert!(in_journal);
        let mut ours = vec![0; model.len()];
        volume.read_at(0, &mut ours).expect("all of it is good");
        for n in 0..written {
            assert!(ours[100_000 + n as usize * 512..][..512] == noise(512, 7 + n), "what was written is there");
        }
        fs::write(images.in_folder(&format!("{i}.ours")), &ours).expect("a pattern");
        script += &format!(
            "cryptsetup open --key-file pw {device} x; cmp /dev/mapper/x {i}.ours; cryptsetup close x\n",
            device = device(i)
        );
    }
    images.run(&script);
}

#[test]
fn linux_opens_volumes_that_we_make() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let images = Images::new(&[3 << 20; 4]);
    let kinds = [&KINDS[1], &KINDS[4], &KINDS[8]];
    let mut script = String::new();
    for (i, kind) in kinds.iter().enumerate() {
        let store = file(&images.paths[i], Access::ReadWrite);
        let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
        let spec = Spec {
            cipher: Some(kind.cipher),
            integrity: Some(kind.integrity),
            key_bits: Some(kind.bits),
            sector_size: Some(kind.sector),
            data_offset: Some(1 << 20),
            quick: true,
            cost,
            ..Spec::default()
        };
        let format = formats::by_name("LUKS2").expect("it is in the table");
        format.create(&*store, &spec, &[passphrase("pw")]).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let (volume, _) = open(store, true);
        volume.write_clobbering(5000, &mut noise(9000, 1)).expect("it is written");
        let mut all = vec![0; volume.len() as usize];
        all[5000..14_000].copy_from_slice(&noise(9000, 1));
        fs::write(images.in_folder(&format!("{i}.ours")), &all).expect("a pattern");
        // The superblock that Linux makes is the same, byte for byte.
        script += &kind.format(&format!("--integrity-no-wipe {}", device(3)));
        script += &format!(
            "cmp -i 1048576 -n 4096 {device} {other}
             cryptsetup open --key-file pw {device} x
             cmp /dev/mapper/x {i}.ours
             mkfs.ext4 -q /dev/mapper/x
             fsck.ext4 -fn /dev/mapper/x
             cryptsetup close x\n",
            device = device(i),
            other = device(3)
        );
    }
    let Some(()) = images.run(&script) else { return };
    let (volume, _) = open(file(&images.paths[0], Access::ReadOnly), false);
    let mut start = vec![0; 4096];
    volume.read_at(0, &mut start).expect("it is good");
    assert_eq!(start[1080..1082], [0x53, 0xef], "the file system that Linux made");
}

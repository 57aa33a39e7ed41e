//! Sectors with tags, both ways with Linux: dm-crypt over dm-integrity in user-mode Linux, made by cryptsetup.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::AuthenticatedCipher;
use claviger_crypto::modes::aead::Specification;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::volume::integrity;
use claviger_engine::{Acceleration, Layout, Spec, Store, Volume};
use claviger_testkit::stores::{Fault, FaultStore, Operation};
use claviger_testkit::{tools, uml};
use support::noise;

/// Where cryptsetup puts the data with the small headers of these tests, in bytes.
const DATA_AT: u64 = 1 << 20;

/// One kind of volume: what cryptsetup is told, and what it then says in the header.
struct Kind {
    options: &'static str,
    encryption: &'static str,
    integrity: &'static str,
    key: usize,
    sector: usize,
}

const KINDS: [Kind; 9] = [
    Kind::new("--cipher aes-xts-plain64 --integrity hmac-sha256", "aes-xts-plain64", "hmac(sha256)", 96, 512),
    Kind::new("--cipher aes-xts-plain64 --integrity hmac-sha512", "aes-xts-plain64", "hmac(sha512)", 128, 4096),
    Kind::new("--cipher aes-cbc-essiv:sha256 --integrity hmac-sha256", "aes-cbc-essiv:sha256", "hmac(sha256)", 64, 512),
    Kind::new("--cipher aes-xts-random --integrity hmac-sha256", "aes-xts-random", "hmac(sha256)", 96, 4096),
    Kind::new("--cipher aes-gcm-random --integrity aead --key-size 256", "aes-gcm-random", "aead", 32, 512),
    Kind::new("--cipher aes-gcm-random --integrity aead --key-size 128", "aes-gcm-random", "aead", 16, 4096),
    Kind::new("--cipher chacha20-random --integrity poly1305 --key-size 256", "chacha20-random", "poly1305", 32, 512),
    Kind::new("--cipher chacha20-random --integrity poly1305 --key-size 256", "chacha20-random", "poly1305", 32, 4096),
    Kind::new("--cipher aegis128-random --integrity aead --key-size 128", "aegis128-random", "aead", 16, 4096),
];

impl Kind {
    const fn new(
        options: &'static str,
        encryption: &'static str,
        integrity: &'static str,
        key: usize,
        sector: usize,
    ) -> Self {
        Self { options, encryption, integrity, key, sector }
    }

    fn cipher(&self, key: &[u8]) -> Arc<dyn AuthenticatedCipher> {
        assert_eq!(key.len(), self.key, "{}", self.options);
        let specification = Specification::parse(self.encryption, self.integrity).expect("it is known");
        let sectors = Sectors { size: self.sector, ..Sectors::default() };
        specification.with_key(key, sectors, Acceleration::On).expect("the key fits")
    }
}

/// Opens the data of an image with its volume key, and says how many sectors are only in the journal.
fn open(store: Arc<dyn Store>, cipher: Arc<dyn AuthenticatedCipher>, writable: bool) -> (Volume, usize) {
    let len = store.len() - DATA_AT;
    let area = integrity::open(&*store, DATA_AT, len, cipher.tag_size(), cipher.sector_size()).expect("it is good");
    let in_journal = area.in_journal();
    let segment = integrity::segment(Arc::new(area), DATA_AT, cipher, writable).expect("they belong together");
    (Volume::new(store, Layout::new(vec![segment]).expect("one segment")), in_journal)
}

fn file(path: &Path, access: Access) -> Arc<dyn Store> {
    Arc::new(FileStore::open(path, access).expect("the image"))
}

/// What the script of every boot begins with.
const PREPARE: &str = "set -e
modprobe -qa dm-integrity dm-crypt aegis128 gcm chacha20poly1305 hmac sha512_generic xts cbc essiv authenc ctr ghash-generic
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

    fn key(&self, i: usize) -> Vec<u8> {
        fs::read(self.in_folder(&format!("{i}.key"))).expect("cryptsetup wrote it")
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
        let (device, options, sector) = (device(i), kind.options, kind.sector);
        script += &format!(
            "$F {options} --sector-size {sector} {device}
             cryptsetup luksDump -q --key-file pw --dump-volume-key --volume-key-file {i}.key {device}
             cryptsetup open --key-file pw {device} x
             dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc status=none
             cryptsetup close x\n"
        );
    }
    let Some(()) = images.run(&script) else { return };

    let mut script = String::new();
    for (i, kind) in KINDS.iter().enumerate() {
        let cipher = kind.cipher(&images.key(i));
        let (volume, _) = open(file(&images.paths[i], Access::ReadWrite), Arc::clone(&cipher), true);
        let mut all = vec![0; volume.len() as usize];
        volume.read_at(0, &mut all).unwrap_or_else(|e| panic!("{}: {e}", kind.options));
        let mut model = vec![0; all.len()];
        model[40_960..240_960].copy_from_slice(&noise(200_000, 1));
        // cryptsetup fills the last sectors of such a device with zeros as well.
        assert!(all == model, "{}", kind.options);
        for (at, len, seed) in [(0, 4096, 2), (70_001, 3000, 3), (300_000, 400_000, 4), (all.len() - 700, 700, 5)] {
            model[at..at + len].copy_from_slice(&noise(len, seed));
            volume.write_at(at as u64, &mut noise(len, seed)).expect("it is written");
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
    let kind = &KINDS[0];
    let images = Images::new(&[12 << 20, 12 << 20, 12 << 20, 12 << 20]);
    fs::write(images.in_folder("theirs"), noise(30_000, 1)).expect("a pattern");
    // What Linux has written is in the journal, and not yet in its place, when the device is copied.
    let script = format!(
        "$F {options} {a}
         cryptsetup luksDump -q --key-file pw --dump-volume-key --volume-key-file 0.key {a}
         cryptsetup open --key-file pw {a} x
         dd if=theirs of=/dev/mapper/x bs=4096 seek=10 conv=notrunc,fsync status=none
         dd if={a} of={b} bs=1M iflag=direct conv=fsync status=none
         cryptsetup close x
         dd if={a} of={c} bs=1M conv=fsync status=none
         dd if={a} of={d} bs=1M conv=fsync status=none\n",
        options = kind.options,
        a = device(0),
        b = device(1),
        c = device(2),
        d = device(3),
    );
    let Some(()) = images.run(&script) else { return };

    let cipher = kind.cipher(&images.key(0));
    let mut model = vec![
        0;
        {
            let (volume, in_journal) = open(file(&images.paths[0], Access::ReadOnly), Arc::clone(&cipher), false);
            assert_eq!(in_journal, 0, "Linux emptied it when it closed the device");
            volume.len() as usize
        }
    ];
    model[40_960..70_960].copy_from_slice(&noise(30_000, 1));
    let check = |volume: &Volume, what: &str| {
        let mut all = vec![0; model.len()];
        volume.read_at(0, &mut all).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(all == model, "{what}");
    };
    let before = fs::read(&images.paths[1]).expect("the image");
    {
        let (volume, in_journal) = open(file(&images.paths[1], Access::ReadOnly), Arc::clone(&cipher), false);
        assert!(in_journal >= 58, "{in_journal} sectors are in the journal that Linux left");
        check(&volume, "through the journal");
    }
    assert!(fs::read(&images.paths[1]).expect("the image") == before, "reading wrote nothing");
    {
        let (volume, _) = open(file(&images.paths[1], Access::ReadWrite), Arc::clone(&cipher), true);
        volume.write_at(0, &mut noise(10, 9)).expect("it is written");
        volume.write_at(0, &mut [0; 10]).expect("it is written");
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
        let (volume, _) = open(faulty, Arc::clone(&cipher), true);
        let mut written = 0;
        while volume.write_at(100_000 + written * 512, &mut noise(512, 7 + written)).is_ok() {
            written += 1;
        }
        assert!(written >= 2, "{written} were written before the fault");
        drop(volume);
        fs::write(&images.paths[i], memory.to_vec()).expect("the image");
        let (volume, in_journal) = open(Arc::clone(&memory) as Arc<dyn Store>, Arc::clone(&cipher), false);
        assert!(in_journal > 0);
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
fn linux_opens_areas_that_we_make() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let images = Images::new(&[3 << 20, 3 << 20]);
    let kinds = [&KINDS[1], &KINDS[4]];
    let mut script = String::new();
    for (i, kind) in kinds.iter().enumerate() {
        let (device, options, sector) = (device(i), kind.options, kind.sector);
        script += &format!(
            "$F {options} --sector-size {sector} --integrity-no-wipe {device}
             cryptsetup luksDump -q --key-file pw --dump-volume-key --volume-key-file {i}.key {device}\n"
        );
    }
    let Some(()) = images.run(&script) else { return };
    let mut script = String::new();
    for (i, kind) in kinds.iter().enumerate() {
        let cipher = kind.cipher(&images.key(i));
        let store = file(&images.paths[i], Access::ReadWrite);
        let mut theirs = vec![0; 4096];
        store.read_at(DATA_AT, &mut theirs).expect("their superblock");
        let len = store.len() - DATA_AT;
        let size = integrity::format(&*store, DATA_AT, len, &*cipher, &Spec::default()).expect("there is room");
        let mut ours = vec![0; 4096];
        store.read_at(DATA_AT, &mut ours).expect("our superblock");
        assert!(ours == theirs, "superblocks are the same: {:02x?} {:02x?}", &ours[..32], &theirs[..32]);
        let (volume, _) = open(store, cipher, true);
        assert_eq!(volume.len(), size);
        volume.write_at(5000, &mut noise(9000, 1)).expect("it is written");
        let mut all = vec![0; size as usize];
        all[5000..14_000].copy_from_slice(&noise(9000, 1));
        fs::write(images.in_folder(&format!("{i}.ours")), &all).expect("a pattern");
        script += &format!(
            "cryptsetup open --key-file pw {device} x
             cmp /dev/mapper/x {i}.ours
             mkfs.ext4 -q /dev/mapper/x
             fsck.ext4 -fn /dev/mapper/x
             cryptsetup close x\n",
            device = device(i)
        );
    }
    images.run(&script);
}

//! Hidden volumes: created, opened by other programs, and protected.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::support::*;
use crate::torture::{Scenario, Verb};
use claviger_engine::credential::HeaderChoice;
use claviger_engine::filesystems::free_tail::free_tail;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{
    Credential, ErrorKind, Format, HiddenRoom, Layout, Protect, Result, Spec, Store, Unlock, Unlocked, Volume, formats,
};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CrashStore, Fault, FaultStore, Operation};
use claviger_testkit::{tools, uml};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The two areas of headers at the beginning, and at the end.
const GROUP: u64 = 128 * KIB;
/// Where the hidden header is, and how far from the end its backup.
const HIDDEN: u64 = 64 * KIB;

const OUTER: &str = "the outer passphrase, long enough";
const INNER: &str = "the inner passphrase, long enough";

/// A format, and a cipher and hash of its that are quick to open.
#[derive(Clone, Copy)]
struct Kind {
    format: &'static str,
    hash: &'static str,
    cipher: &'static str,
    /// Keeps VeraCrypt's iterations few.
    pim: Option<u32>,
}

const TRUECRYPT: Kind = Kind { format: "TrueCrypt", hash: "SHA-512", cipher: "AES", pim: None };
const VERACRYPT: Kind = Kind { format: "VeraCrypt", hash: "SHA-512", cipher: "Serpent", pim: Some(1) };

impl Kind {
    fn format(self) -> &'static dyn Format {
        formats::by_name(self.format).expect("it is in the table")
    }

    fn spec(self) -> Spec<'static> {
        Spec { hash: Some(self.hash), cipher: Some(self.cipher), pim: self.pim, ..Spec::default() }
    }

    fn with(self, credentials: &[Credential]) -> Unlock<'_> {
        Unlock { hash: Some(self.hash), cipher: Some(self.cipher), pim: self.pim, ..Unlock::with(credentials) }
    }

    fn unlock(self, store: &Arc<dyn Store>, with: &Unlock<'_>) -> Result<Unlocked> {
        self.format().open(store)?.unlock(with)
    }

    fn open(self, store: &Arc<dyn Store>, text: &str) -> Volume {
        let unlocked = self.unlock(store, &self.with(&[passphrase(text)])).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(unlocked.warnings.is_empty(), "{:?}", unlocked.warnings);
        assert_eq!(unlocked.facts.hidden, text == INNER);
        Volume::new(Arc::clone(store), unlocked.layout)
    }

    /// A volume of `len` bytes with `filesystem` in it.
    fn outer(self, len: u64, filesystem: &[u8]) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(noise(len as usize, 3)));
        self.format().create(&*store, &Spec { quick: true, ..self.spec() }, &[passphrase(OUTER)]).expect("a volume");
        let outer = self.open(&store, OUTER);
        assert_eq!(outer.len(), len - 2 * GROUP);
        outer.write_clobbering(0, &mut filesystem.to_vec()).expect("it is written");
        store
    }

    fn room(self, store: &Arc<dyn Store>) -> Result<HiddenRoom> {
        self.format().hidden_room(store, &self.with(&[passphrase(OUTER)]))
    }

    fn hide(self, store: &Arc<dyn Store>, spec: &Spec<'_>) -> Result<()> {
        self.format().create_hidden(store, &self.with(&[passphrase(OUTER)]), spec, &[passphrase(INNER)])
    }

    /// The outer volume with the hidden one protected.
    fn protected(self, store: &Arc<dyn Store>) -> Volume {
        let (outer, inner) = ([passphrase(OUTER)], [passphrase(INNER)]);
        let protect = Some(Protect { credentials: &inner, hash: Some(self.hash), pim: self.pim });
        let unlocked = self.unlock(store, &Unlock { protect, ..self.with(&outer) }).expect("both open");
        assert!(!unlocked.facts.hidden);
        Volume::new(Arc::clone(store), unlocked.layout)
    }
}

/// A FAT file system of `len` bytes with `used` bytes of files in it.
fn fat(len: u64, used: usize) -> Option<Vec<u8>> {
    let (mkfs, mcopy) = (tools::program("mkfs.vfat")?, tools::program("mcopy")?);
    let image = to_file(&vec![0; len as usize]);
    tools::run(Command::new(mkfs).args(["-s", "1"]).arg(image.path()));
    let file = to_file(&noise(used, 8));
    tools::run(Command::new(mcopy).arg("-i").arg(image.path()).arg(file.path()).arg("::file"));
    Some(std::fs::read(image.path()).expect("the image"))
}

fn all_of(store: &dyn Store) -> Vec<u8> {
    let mut bytes = vec![0; store.len() as usize];
    store.read_at(0, &mut bytes).expect("it can be read");
    bytes
}

/// Fails if any byte differs outside of `ranges`.
#[track_caller]
fn same_but_in(before: &[u8], after: &[u8], ranges: &[Range<u64>], what: &str) {
    assert_eq!(before.len(), after.len());
    for (at, (a, b)) in (0..).zip(before.iter().zip(after)) {
        assert!(a == b || ranges.iter().any(|r| r.contains(&at)), "{what}: byte {at} was changed");
    }
}

/// Everything that creating a hidden volume may write to.
fn allowed(len: u64, area: Range<u64>) -> [Range<u64>; 3] {
    [HIDDEN..HIDDEN + 512, len - HIDDEN..len - HIDDEN + 512, area]
}

pub fn scenarios() -> Vec<Scenario> {
    [TRUECRYPT, VERACRYPT].into_iter().filter_map(hiding).collect()
}

/// A hidden volume is made: what there was of the outer volume stays.
fn hiding(kind: Kind) -> Option<Scenario> {
    let filesystem = fat(MIB - 2 * GROUP, 200_000)?;
    let before = all_of(&*kind.outer(MIB, &filesystem));
    let hide = move |store: &Arc<dyn Store>| kind.hide(store, &kind.spec());
    let used = filesystem[..200_000].to_vec();
    let read = |kind: Kind, store: &Arc<dyn Store>| -> Result<Vec<u8>> {
        let unlocked = kind.unlock(store, &kind.with(&[passphrase(OUTER)]))?;
        let mut start = vec![0; 200_000];
        Volume::new(Arc::clone(store), unlocked.layout).read_at(0, &mut start)?;
        Ok(start)
    };
    Some(Scenario {
        format: kind.format,
        verb: Verb::CreateHidden,
        name: "in the free space of a FAT".to_owned(),
        before,
        plaintext: Some(used),
        act: Box::new(hide),
        read: Box::new(move |store| read(kind, store)),
        finish: Box::new(move |store| {
            // One of its headers is enough.
            let opens = || kind.unlock(store, &kind.with(&[passphrase(INNER)])).map(drop);
            opens().or_else(|_| hide(store).and_then(|()| opens()))
        }),
    })
}

// ---- Creation

#[test]
fn a_hidden_volume_takes_the_free_tail_and_nothing_else() {
    for kind in [TRUECRYPT, VERACRYPT] {
        for (len, used) in [(MIB, 100 << 10), (3 * MIB, 300_000), (6 * MIB + 512, 1 << 20)] {
            let Some(filesystem) = fat(len - 2 * GROUP, used) else { return };
            let store = kind.outer(len, &filesystem);
            let tail = free_tail(&kind.open(&store, OUTER)).expect("a clean file system");
            let room = kind.room(&store).expect("there is room");
            assert_eq!((room.free_at, room.outer_size), (tail.at, len - 2 * GROUP));
            assert!(room.looks_random);
            assert!(room.largest > room.smallest && tail.at + room.largest < room.outer_size);
            for quick in [true, false] {
                let before = all_of(&*store);
                kind.hide(&store, &Spec { quick, ..kind.spec() }).expect("a hidden volume");
                let after = all_of(&*store);
                let hidden = kind.open(&store, INNER);
                assert_eq!(hidden.len(), room.largest);
                let stored = hidden.layout().segments()[0].stored_at;
                let area = stored..stored + hidden.len();
                assert!(area.start >= GROUP + tail.at && area.end + 4096 <= len - GROUP);
                same_but_in(&before, &after, &allowed(len, area.clone()), kind.format);
                let filled =
                    after[area.start as usize..area.end as usize] != before[area.start as usize..area.end as usize];
                assert_eq!(filled, !quick);
                // Writes to the hidden volume change only its area.
                let plain = noise(hidden.len() as usize, 11);
                hidden.write_clobbering(0, &mut plain.clone()).expect("written");
                same_but_in(&after, &all_of(&*store), &[area], "what the hidden volume holds");
                assert!(all_of(&kind.open(&store, INNER)) == plain);
                let outer = all_of(&kind.open(&store, OUTER));
                assert!(
                    outer[..tail.at as usize] == filesystem[..tail.at as usize],
                    "the outer files are as they were"
                );
                // The hidden headers go, and the next round makes new ones.
                store.write_clobbering(HIDDEN, &mut noise(512, 1)).expect("written");
                store.write_clobbering(len - HIDDEN, &mut noise(512, 2)).expect("written");
            }
        }
    }
}

#[test]
fn both_headers_of_a_hidden_volume_open_it_and_are_its_own() {
    let Some(filesystem) = fat(2 * MIB, 1000) else { return };
    let len = 2 * MIB + 2 * GROUP;
    let store = TRUECRYPT.outer(len, &filesystem);
    let size = Some(512 * KIB);
    TRUECRYPT.hide(&store, &Spec { hidden_size: size, quick: true, ..TRUECRYPT.spec() }).expect("a hidden volume");
    let facts = |store: &Arc<dyn Store>| {
        let unlocked = TRUECRYPT.unlock(store, &TRUECRYPT.with(&[passphrase(INNER)])).expect("it opens");
        (
            unlocked.facts.header.name().to_owned(),
            unlocked.facts.size,
            unlocked.facts.data_offset,
            unlocked.warnings.len(),
        )
    };
    let (header, size, offset, warnings) = facts(&store);
    assert_eq!((&*header, size, warnings), ("hidden", 512 * KIB, 0));
    // TrueCrypt keeps 4 KiB free after small hidden volumes.
    assert_eq!(offset + size, len - GROUP - 4096);
    let bytes = all_of(&*store);
    let (here, there) = (HIDDEN as usize, (len - HIDDEN) as usize);
    assert!(bytes[here..here + 64] != bytes[there..there + 64], "each has a salt of its own");
    store.write_clobbering(HIDDEN, &mut noise(512, 4)).expect("written");
    assert_eq!(facts(&store), ("hidden backup".to_owned(), size, offset, 1));
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let Some(filesystem) = fat(2 * MIB, 1_200_000) else { return };
    let inner = TRUECRYPT.outer(2 * MIB + 2 * GROUP, &filesystem);
    let store = Arc::new(FaultStore::new(Arc::clone(&inner), None));
    let counted: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let refused = |spec: &Spec<'_>, words: &[&str]| {
        let error = TRUECRYPT.hide(&counted, spec).expect_err("refused").to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
        assert_eq!(store.count(Operation::Write), 0, "{error}");
    };
    let room = TRUECRYPT.room(&counted).expect("there is room");
    let size = |size| Spec { hidden_size: Some(size), ..TRUECRYPT.spec() };
    refused(&size(room.largest + 4096), &["FAT", &room.largest.to_string()]);
    refused(&size(u64::MAX), &["FAT"]);
    refused(&size(room.smallest - 512), &[&room.smallest.to_string()]);
    refused(&size(room.smallest + 1), &["multiples of 512"]);
    refused(&Spec { cipher: Some("Rot13"), ..TRUECRYPT.spec() }, &["Rot13"]);
    let open = |text: &str, first: &str| {
        let outer = [passphrase(text)];
        TRUECRYPT.format().create_hidden(&counted, &TRUECRYPT.with(&outer), &TRUECRYPT.spec(), &[passphrase(first)])
    };
    assert!(matches!(open("wrong", INNER).expect_err("refused").kind, ErrorKind::WrongCredential(_)));
    assert!(matches!(open(OUTER, "").expect_err("refused").kind, ErrorKind::Misuse(_)));
    assert_eq!(store.count(Operation::Write), 0);
    // None is created inside a hidden volume, or with the password of the existing one.
    TRUECRYPT.hide(&inner, &Spec { quick: true, ..size(room.smallest) }).expect("the smallest one");
    assert!(open(INNER, "third").expect_err("refused").to_string().contains("opens a hidden volume"));
    assert!(open(OUTER, INNER).expect_err("refused").to_string().contains("existing hidden volume"));
    assert_eq!(store.count(Operation::Write), 0);
    // No room, and no file system.
    let Some(full) = fat(2 * MIB, 2_040_000) else { return };
    let store = TRUECRYPT.outer(2 * MIB + 2 * GROUP, &full);
    assert!(TRUECRYPT.hide(&store, &TRUECRYPT.spec()).expect_err("full").to_string().contains("no room"));
    let store = TRUECRYPT.outer(MIB, &[]);
    let error = TRUECRYPT.hide(&store, &TRUECRYPT.spec()).expect_err("nothing known");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
}

#[test]
fn what_lies_behind_a_volume_that_does_not_fill_its_store_is_not_touched() {
    let Some(filesystem) = fat(2 * MIB, 600_000) else { return };
    let len = 2 * MIB + 2 * GROUP;
    // Such as a volume that was copied to a larger partition.
    let alone = TRUECRYPT.outer(len, &filesystem);
    let larger = [all_of(&*alone), noise(MIB as usize, 7)].concat();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(larger.clone()));
    for refused in [TRUECRYPT.room(&store).map(|_| ()), TRUECRYPT.hide(&store, &TRUECRYPT.spec())] {
        let error = refused.expect_err("its end is not the volume's");
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    assert!(all_of(&*store) == larger);
    // The volume's own backup header at the end shows whose that is.
    let mut bytes = larger;
    let (end, from) = (bytes.len() - GROUP as usize, (len - GROUP) as usize);
    bytes.copy_within(from..from + GROUP as usize, end);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes));
    TRUECRYPT.hide(&store, &TRUECRYPT.spec()).expect("the end is the volume's");
    TRUECRYPT.open(&store, INNER);
}

#[test]
fn old_volumes_get_no_new_hidden_ones() {
    let Some(images) = Images::unpacked() else { return };
    let store: Arc<dyn Store> = in_memory(&images.path("tcrypt/tc_1-sha1-cbc-aes"));
    let before = all_of(&*store);
    let credentials = [passphrase("aaaaaaaaaaaa")];
    let result = TRUECRYPT.format().create_hidden(
        &store,
        &Unlock { hash: Some("SHA-1"), ..Unlock::with(&credentials) },
        &TRUECRYPT.spec(),
        &[passphrase(INNER)],
    );
    assert!(matches!(result.expect_err("refused").kind, ErrorKind::Unsupported { .. }));
    assert!(all_of(&*store) == before);
}

#[test]
fn an_interruption_leaves_the_outer_volume_and_a_whole_hidden_one_or_none() {
    let Some(filesystem) = fat(MIB - 2 * GROUP, 200_000) else { return };
    let kind = TRUECRYPT;
    let before = all_of(&*kind.outer(MIB, &filesystem));
    let store = Arc::new(CrashStore::new(before.clone()));
    kind.hide(&(Arc::clone(&store) as Arc<dyn Store>), &kind.spec()).expect("a hidden volume");
    let whole = all_of(&*store);
    let start = kind.unlock(&shared(Arc::clone(&store)), &kind.with(&[passphrase(INNER)])).expect("it opens").facts;
    let area = start.data_offset..start.data_offset + start.size;
    let mut opened = Vec::new();
    for image in store.crash_images() {
        same_but_in(&before, &image, &allowed(MIB, area.clone()), "a crash");
        let store = shared(MemoryStore::new(image));
        kind.unlock(&store, &kind.with(&[passphrase(OUTER)])).expect("the outer volume opens");
        if let Ok(unlocked) = kind.unlock(&store, &kind.with(&[passphrase(INNER)])) {
            opened.push(unlocked.facts.header.name());
            let range = area.start as usize..area.end as usize;
            assert!(all_of(&*store)[range.clone()] == whole[range], "it opens before it is filled");
        }
    }
    opened.dedup();
    assert_eq!(opened, ["hidden backup", "hidden"]);

    let count = {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new(before.clone())), None));
        kind.hide(&(Arc::clone(&store) as Arc<dyn Store>), &kind.spec()).expect("a hidden volume");
        (store.count(Operation::Write), store.count(Operation::Flush))
    };
    let faults = (0..count.0).map(|nth| (Operation::Write, nth)).chain((0..count.1).map(|nth| (Operation::Flush, nth)));
    for (operation, nth) in faults {
        let inner = Arc::new(MemoryStore::new(before.clone()));
        let fault = Fault { operation, nth, for_good: false, transferred: 300 };
        let store = FaultStore::new(Arc::clone(&inner) as Arc<dyn Store>, Some(fault));
        let error = kind.hide(&(Arc::new(store) as Arc<dyn Store>), &kind.spec()).expect_err("planted");
        assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
        same_but_in(&before, &inner.to_vec(), &allowed(MIB, area.clone()), "a failure");
        let inner = shared(inner);
        kind.unlock(&inner, &kind.with(&[passphrase(OUTER)])).expect("the outer volume opens");
        assert!(kind.unlock(&inner, &kind.with(&[passphrase(INNER)])).is_err(), "{operation:?} {nth}");
    }
}

#[test]
fn free_space_in_which_a_hidden_volume_would_stand_out_is_told() {
    let Some(filesystem) = fat(2 * MIB, 100_000) else { return };
    let store = TRUECRYPT.outer(2 * MIB + 2 * GROUP, &filesystem);
    // Zeros, as in a sparse file that was formatted quickly.
    store.write_clobbering(GROUP + MIB, &mut vec![0; 100_000]).expect("written");
    assert!(!TRUECRYPT.room(&store).expect("there is room").looks_random);
}

#[test]
fn nobody_is_promised_protection_in_an_encrypted_system() {
    let Some(images) = Images::unpacked() else { return };
    let name = images.list("tcrypt").into_iter().find(|n| n.starts_with("sys_")).expect("an encrypted system");
    let store: Arc<dyn Store> = in_memory(&images.path(&format!("tcrypt/{name}")));
    let credentials = [passphrase("aaaaaaaaaaaa")];
    let protect = Some(Protect { credentials: &[passphrase("x")], hash: None, pim: None });
    let with = Unlock { hash: Some("SHA-256"), cipher: Some("AES"), ..Unlock::with(&credentials) };
    assert!(VERACRYPT.unlock(&store, &with).is_ok());
    let error = VERACRYPT.unlock(&store, &Unlock { protect, ..with }).map(|u| u.facts).expect_err("refused");
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
}

/// TrueCrypt's own FAT, and where it put its own hidden volume.
#[test]
fn the_file_systems_that_truecrypt_made_are_understood() {
    let (Some(mcopy), Some(sample)) = (tools::program("mcopy"), tools::sample("truecrypt/hidden.tc")) else { return };
    let store: Arc<dyn Store> = in_memory(&sample);
    let (outer, inner) = ([passphrase("outer pass")], [passphrase("hidden pass")]);
    let with = Unlock { hash: Some("SHA-512"), ..Unlock::with(&outer) };
    let room = TRUECRYPT.format().hidden_room(&store, &with).expect("there is room");
    let with = Unlock { hash: Some("Whirlpool"), ..Unlock::with(&inner) };
    let hidden = TRUECRYPT.unlock(&store, &with).expect("it opens").facts;
    assert!(GROUP + room.free_at <= hidden.data_offset, "TrueCrypt left the same files alone");
    assert!(room.largest >= hidden.size);
    assert_eq!(hidden.data_offset + hidden.size, store.len() - GROUP - 4096, "and the same reserve behind it");
    let sample = tools::sample("truecrypt/aes-sha512.tc").expect("it is beside the other");
    let store: Arc<dyn Store> = in_memory(&sample);
    let outer = [passphrase("correct horse")];
    let with = Unlock { hash: Some("SHA-512"), ..Unlock::with(&outer) };
    let files = || {
        let unlocked = TRUECRYPT.unlock(&store, &with).expect("it opens");
        let image = to_file(&plaintext(Arc::clone(&store), unlocked));
        let copy = |name: &str| tools::run(Command::new(&mcopy).arg("-i").arg(image.path()).args([name, "-"])).stdout;
        ["::hello.txt", "::rnd.bin"].map(copy)
    };
    let before = files();
    TRUECRYPT.format().create_hidden(&store, &with, &TRUECRYPT.spec(), &[passphrase(INNER)]).expect("a hidden volume");
    assert!(files() == before && !before[1].is_empty());
}

// ---- Other programs

/// The kernel's dm-crypt opens both volumes, reads what we wrote into the hidden one, and writes what we read.
#[test]
fn what_we_hide_opens_in_the_kernel_and_the_outer_files_stay() {
    let (Some(_), Some(fsck)) = (tools::program("cryptsetup"), tools::program("fsck.vfat")) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let kinds = [
        (TRUECRYPT, "AES-Twofish-Serpent", "serpent-twofish-aes", "Whirlpool", "whirlpool", 3 * MIB),
        (TRUECRYPT, "Twofish", "twofish", "RIPEMD-160", "ripemd160", MIB),
        (VERACRYPT, "AES", "aes", "SHA-256", "sha256", 5 * MIB),
    ];
    let mut script = "set -ex\n".to_owned();
    let mut paths = Vec::new();
    for (i, (kind, cipher, their_cipher, hash, their_hash, len)) in kinds.into_iter().enumerate() {
        let Some(filesystem) = fat(len - 2 * GROUP, 200_000) else { return };
        let store = kind.outer(len, &filesystem);
        kind.hide(&store, &Spec { cipher: Some(cipher), hash: Some(hash), ..kind.spec() }).expect("a hidden volume");
        let hidden = Kind { cipher, hash, ..kind }.open(&store, INNER);
        let (plain, other) = (noise(hidden.len() as usize, 5), noise(hidden.len() as usize, 6));
        hidden.write_clobbering(0, &mut plain.clone()).expect("written");
        let path = dir.path().join(format!("v{i}"));
        let name = |suffix: &str| format!("{}.{suffix}", path.display());
        std::fs::write(&path, all_of(&*store)).expect("the volume");
        std::fs::write(name("plain"), plain).expect("the plaintext");
        std::fs::write(name("other"), other).expect("other plaintext");
        let device = format!("ubd{}", (b'a' + i as u8) as char);
        let vera = if kind.format == "VeraCrypt" { " --veracrypt --veracrypt-pim 1" } else { "" };
        script += &format!(
            "printf %s '{INNER}' | cryptsetup tcryptOpen --tcrypt-hidden --cipher {their_cipher} --hash {their_hash}{vera} /dev/{device} h{i}\n\
             cmp /dev/mapper/h{i} {plain}\n\
             dd if={other} of=/dev/mapper/h{i} bs=64k conv=fsync status=none\n\
             cryptsetup close h{i}\n\
             printf %s '{OUTER}' | cryptsetup tcryptOpen --cipher {} --hash sha512{vera} /dev/{device} o{i}\n\
             dd if=/dev/mapper/o{i} of={outer} bs=64k status=none\n\
             cryptsetup close o{i}\n",
            kind.cipher.to_lowercase(),
            plain = name("plain"),
            other = name("other"),
            outer = name("outer"),
        );
        paths.push((path, Kind { cipher, hash, ..kind }, filesystem));
    }
    let images: Vec<&Path> = paths.iter().map(|(path, ..)| path.as_path()).collect();
    let Some(done) = uml::run(&script, &images, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    for (path, kind, filesystem) in &paths {
        let store: Arc<dyn Store> = in_memory(path);
        let other = std::fs::read(path.with_extension("other")).expect("other plaintext");
        assert!(all_of(&kind.open(&store, INNER)) == other, "what the kernel wrote");
        let outer = path.with_extension("outer");
        tools::run(Command::new(&fsck).arg("-n").arg(&outer));
        let used = free_tail(&*read_only(&outer)).expect("clean").at as usize;
        assert!(std::fs::read(&outer).expect("the outer volume")[..used] == filesystem[..used]);
    }
}

#[test]
fn what_we_hide_opens_in_tcplay_also_with_protection() {
    let (Some(()), Some(tcplay)) = (tools::root(), tools::program("tcplay")) else { return };
    let Some(_) = tools::program("python3") else { return };
    let Some(filesystem) = fat(3 * MIB, 200_000) else { return };
    let store = TRUECRYPT.outer(3 * MIB + 2 * GROUP, &filesystem);
    let spec = Spec { cipher: Some("Serpent-AES"), hash: Some("Whirlpool"), quick: true, ..TRUECRYPT.spec() };
    TRUECRYPT.hide(&store, &spec).expect("a hidden volume");
    let hidden = Kind { cipher: "Serpent-AES", hash: "Whirlpool", ..TRUECRYPT }.open(&store, INNER);
    let at = hidden.layout().segments()[0].stored_at;
    let file = to_file(&all_of(&*store));
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let node = device.path().to_str().expect("UTF-8");
    let tcplay = tcplay.to_str().expect("UTF-8");
    let said = on_terminal(&[("Passphrase:", INNER)], &[tcplay, "-i", "-d", node]);
    let has = |line: String| assert!(said.lines().any(|l| l.split_whitespace().eq(line.split(' '))), "{line}: {said}");
    has("Cipher: AES-256-XTS,SERPENT-256-XTS".to_owned());
    has(format!("Volume size: {} sectors", hidden.len() / 512));
    has(format!("Block offset: {} sectors", at / 512));
    has(format!("IV offset: {} sectors", at / 512));
    // Both passwords, to protect the hidden one.
    let answers = [("Passphrase:", OUTER), ("Passphrase for hidden volume:", INNER)];
    let said = on_terminal(&answers, &[tcplay, "-i", "-e", "-d", node]);
    assert!(said.contains("AES-256-XTS"), "{said}");
}

// ---- Protection

/// Where the hidden volume lies in the outer one, in bytes of that.
fn place(outer: &Layout, hidden: &Layout) -> Range<u64> {
    let (outer, hidden) = (&outer.segments()[0], &hidden.segments()[0]);
    hidden.stored_at - outer.stored_at..hidden.stored_at - outer.stored_at + hidden.len
}

/// Random writes to a protected outer volume beside a model of it, until one touches the hidden volume and after.
fn writes_beside_a_model(store: &Arc<dyn Store>, volume: &Volume, place: Range<u64>, seed: u64) {
    let before = all_of(&**store);
    let mut random = Random::new(seed);
    let mut model = all_of(volume);
    let len = volume.len();
    let mut refused = 0;
    // The sector at either border belongs to it where one of its bytes does.
    let place = place.start / 512 * 512..place.end.next_multiple_of(512);
    for round in 0..400 {
        // Near its borders more often than not, and anywhere late.
        let at = match random.below(4) {
            0 => random.below(len as usize) as u64,
            1 => (place.start + random.below(3000) as u64).saturating_sub(2900),
            2 => (place.end + random.below(3000) as u64).saturating_sub(100),
            _ => random.below(place.start.max(1) as usize) as u64,
        };
        let at = at.min(len);
        let count = ([1, 511, 512, 513, 4096, 20_000][random.below(6)] as u64).min(len - at);
        let touches = at / 512 * 512 < place.end && (at + count).next_multiple_of(512) > place.start;
        if count == 0 || touches && round < 200 {
            continue;
        }
        let data = random.bytes(count as usize);
        let written = volume.write_clobbering(at, &mut data.clone());
        if touches || refused > 0 {
            refused += 1;
            written.expect_err("it would do damage, or comes after what would have");
            assert!(volume.damage_prevented() && !volume.writable());
        } else {
            written.unwrap_or_else(|e| panic!("{count} bytes at {at} beside {place:?}: {e}"));
            model[at as usize..(at + count) as usize].copy_from_slice(&data);
            assert!(!volume.damage_prevented() && volume.writable());
        }
        if round % 20 == 0 {
            assert!(all_of(volume) == model);
        }
    }
    assert!(refused > 10, "nothing was refused");
    assert!(all_of(volume) == model, "reading goes on");
    let after = all_of(&**store);
    let stored = volume.layout().segments()[0].stored_at;
    let (from, to) = ((stored + place.start) as usize, (stored + place.end) as usize);
    assert!(after[from..to] == before[from..to], "the hidden volume was changed");
    assert!(after[..stored as usize] == before[..stored as usize], "headers were changed");
    let end = (stored + len) as usize;
    assert!(after[end..] == before[end..], "backup headers were changed");
}

#[test]
fn a_protected_hidden_volume_survives_whatever_is_written_to_the_outer_one() {
    for (seed, kind) in [(1, TRUECRYPT), (2, VERACRYPT), (3, TRUECRYPT)] {
        let Some(filesystem) = fat(3 * MIB, 200_000) else { return };
        let store = kind.outer(3 * MIB + 2 * GROUP, &filesystem);
        let size = [None, Some(300 * KIB), Some(36_864)][seed as usize % 3];
        kind.hide(&store, &Spec { quick: true, hidden_size: size, ..kind.spec() }).expect("a hidden volume");
        let hidden = kind.open(&store, INNER);
        let plain = noise(hidden.len() as usize, seed);
        hidden.write_clobbering(0, &mut plain.clone()).expect("written");
        let volume = kind.protected(&store);
        let place = place(&volume.layout(), &hidden.layout());
        assert!(volume.layout().protected().contains(&place));
        writes_beside_a_model(&store, &volume, place, seed);
        // Opened anew, it may be written again.
        kind.protected(&store).write_clobbering(0, &mut [7; 1000]).expect("far from the hidden volume");
        assert!(all_of(&kind.open(&store, INNER)) == plain);
    }
}

#[test]
fn hidden_volumes_of_other_programs_are_protected() {
    let Some(sample) = tools::sample("truecrypt/hidden.tc") else { return };
    let Some(images) = Images::unpacked() else { return };
    let theirs = ("outer pass", "hidden pass", Some("SHA-512"), Some("Whirlpool"));
    let mut cases = vec![("TrueCrypt", sample, theirs)];
    for name in images.list("tcrypt").into_iter().filter(|n| n.ends_with("-hidden")) {
        // Without a hint VeraCrypt takes seconds for each; the names say what it is.
        let hash = ["sha512", "sha256", "whirlpool", "ripemd160", "sha1"].into_iter().find(|h| name.contains(h));
        let hash = hash.map(|h| if h == "ripemd160" { "RIPEMD-160" } else { h });
        let format = if name.starts_with("vc") { "VeraCrypt" } else { "TrueCrypt" };
        cases.push((format, images.path(&format!("tcrypt/{name}")), ("aaaaaaaaaaaa", "bbbbbbbbbbbb", hash, hash)));
    }
    assert!(cases.len() > 3);
    let mut old = 0;
    for (seed, (format, path, (outer_text, inner_text, outer_hash, inner_hash))) in (0..).zip(cases) {
        let store: Arc<dyn Store> = in_memory(&path);
        let format = formats::by_name(format).expect("it is in the table");
        let (outer, inner) = ([passphrase(outer_text)], [passphrase(inner_text)]);
        let cipher = (!path.ends_with("hidden.tc")).then_some("AES");
        let unlock = |with: &Unlock<'_>| {
            let with = Unlock { cipher, ..*with };
            format.open(&store).and_then(|h| h.unlock(&with))
        };
        let hidden = unlock(&Unlock { hash: inner_hash, ..Unlock::with(&inner) }).expect("the hidden volume opens");
        assert!(hidden.facts.hidden, "{}", path.display());
        let protect = Some(Protect { credentials: &inner, hash: inner_hash, pim: None });
        let unlocked = unlock(&Unlock { hash: outer_hash, protect, ..Unlock::with(&outer) });
        let unlocked = unlocked.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let volume = Volume::new(Arc::clone(&store), unlocked.layout);
        let place = place(&volume.layout(), &hidden.layout);
        assert!(volume.layout().protected().contains(&place), "{}", path.display());
        let stored = volume.layout().segments()[0].stored_at;
        if stored == 512 {
            // The header of an old one lies after it, in the outer volume.
            old += 1;
            let header = store.len() - 1536 - stored;
            assert!(volume.layout().protected().contains(&(header..header + 512)), "{}", path.display());
            let whole = place.start..header + 512;
            writes_beside_a_model(&store, &volume, whole, seed);
        } else {
            writes_beside_a_model(&store, &volume, place, seed);
        }
        let again = unlock(&Unlock { hash: inner_hash, ..Unlock::with(&inner) }).expect("it still opens");
        assert_eq!((again.facts.header, again.warnings), (hidden.facts.header, hidden.warnings));
    }
    assert_eq!(old, 1);
}

#[test]
fn an_error_says_which_of_the_two_passwords_is_wrong() {
    let Some(filesystem) = fat(2 * MIB, 100_000) else { return };
    let kind = TRUECRYPT;
    let store = kind.outer(2 * MIB + 2 * GROUP, &filesystem);
    kind.hide(&store, &Spec { quick: true, ..kind.spec() }).expect("a hidden volume");
    let error = |outer: &str, inner: &str| {
        let (outer, inner) = ([passphrase(outer)], [passphrase(inner)]);
        let protect = Some(Protect { credentials: &inner, hash: Some(kind.hash), pim: None });
        // Without the format's name, as a person may open it: the error of one format is not lost among those of others.
        let (_, header) = formats::open(&store, None).expect("it could be a volume");
        let with = Unlock { protect, cipher: None, ..kind.with(&outer) };
        header.unlock(&with).map(|u| u.facts).expect_err("one of them is wrong")
    };
    assert!(matches!(error(OUTER, "wrong").kind, ErrorKind::WrongHiddenCredential(_)));
    assert!(error(OUTER, "wrong").to_string().contains("hidden volume: nothing opens"));
    assert!(matches!(error("wrong", INNER).kind, ErrorKind::WrongCredential(_)));
    assert!(matches!(error(OUTER, OUTER).kind, ErrorKind::WrongHiddenCredential(_)));
    let swapped = error(INNER, OUTER);
    assert!(swapped.to_string().contains("given for the outer volume"), "{swapped}");
}

// ---- Another size

#[test]
fn the_size_stays_where_the_hidden_volume_is_known() {
    let Some(filesystem) = fat(3 * MIB - 2 * GROUP, 100 << 10) else { return };
    for kind in [TRUECRYPT, VERACRYPT] {
        let store = kind.outer(3 * MIB, &filesystem);
        kind.hide(&store, &kind.spec()).expect("a hidden volume");
        let editor = kind.format().editor().expect("it has one");
        let (outer, inner, other) = ([passphrase(OUTER)], [passphrase(INNER)], [passphrase("another")]);
        let protected = |credentials| {
            let protect = Some(Protect { credentials, hash: Some(kind.hash), pim: kind.pim });
            editor
                .resize(&*store, None, Some(&Unlock { protect, ..kind.with(&outer) }), 4 * MIB)
                .map(|_| ())
                .expect_err("refused")
        };
        let known = protected(&inner);
        assert!(matches!(&known.kind, ErrorKind::Misuse(what) if what.contains("hidden volume")), "{known}");
        assert!(matches!(protected(&other).kind, ErrorKind::WrongHiddenCredential(_)));
        let own = editor.resize(&*store, None, Some(&kind.with(&inner)), MIB).map(|_| ()).expect_err("refused");
        assert!(matches!(own.kind, ErrorKind::Unsupported { .. }), "{own}");

        // No password of the hidden volume is given: it opens by its primary header, and has no backup any more.
        let before = all_of(&kind.open(&store, INNER));
        let file = to_file(&all_of(&*store));
        let longer = FileStore::open(file.path(), Access::ReadWrite).expect("a file");
        let resizing = editor.resize(&longer, None, Some(&kind.with(&outer)), 4 * MIB).expect("prepared");
        resizing.carry_out(&longer, &Spec::default()).expect("carried out");
        let longer: Arc<dyn Store> = Arc::new(longer);
        assert!(all_of(&kind.open(&longer, INNER)) == before);
        let header = HeaderChoice::One { hidden: true, backup: true };
        assert!(kind.unlock(&longer, &Unlock { header, ..kind.with(&inner) }).is_err());
    }
}

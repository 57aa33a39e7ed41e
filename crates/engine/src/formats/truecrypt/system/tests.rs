//! Encrypted systems, created here and checked by cryptsetup in user-mode Linux.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use claviger_crypto::{Acceleration, Secret};
use claviger_testkit::random::noise;
use claviger_testkit::{tools, uml};

use super::super::opened::OpenedVolumeHeader;
use super::super::positions::BOOT_LOADER;
use super::super::seal::Seal;
use super::super::suites::{Mode, SharedKeys};
use super::super::{TRUECRYPT, VERACRYPT};
use super::*;
use crate::credential::Protect;
use crate::formats::{self, Format, HeaderEditor, NewCredential, Prepared, RestoreFrom, Unlocked, partition};
use crate::spec::Spec;
use crate::store::MemoryStore;
use crate::volume::Volume;

const MIB: usize = 1 << 20;

/// An encrypted system that a test creates.
struct System {
    family: &'static Family,
    hash: &'static str,
    cipher: &'static str,
    /// Where the encrypted part begins and its size, in bytes.
    start: usize,
    len: usize,
    flags: u32,
    encrypted: usize,
}

impl System {
    fn new(family: &'static Family, hash: &'static str, cipher: &'static str, start: usize, len: usize) -> Self {
        Self { family, hash, cipher, start, len, flags: 1, encrypted: len }
    }

    /// Encrypts the disk as the boot loader's setup would, under the password `pw`.
    fn encrypt(&self, disk: &mut [u8]) {
        let suite = self.family.suites.iter().find(|s| s.name == self.cipher).expect("a suite");
        let kdf = self.family.kdfs.iter().find(|k| k.name == self.hash).expect("a hash");
        let keys = noise(suite.key_len(Mode::Xts), 7);
        let salt = noise(header::SALT, 8);
        let data = header::Extent { start: self.start as u64, size: self.len as u64, hidden: false };
        let mut plain = header::compose(self.family.rules, &salt, data, &keys);
        header::make_system(&mut plain, self.flags, self.encrypted as u64);
        let derivation = kdf.derivation(None, true);
        let mut key = Secret::zeroed(derivation.output(suite.key_len(Mode::Xts)));
        let piece = derivation.piece(key.len());
        for (i, part) in key.chunks_mut(piece).enumerate() {
            assert!(derivation.derive(b"pw", &salt, i, part, None, &|| true).expect("it can be derived"));
        }
        let shared = SharedKeys::new(&key, Acceleration::On);
        suite.encrypt_header(Mode::Xts, &shared, &mut plain[header::SALT..]);
        disk[SYSTEM_AT as usize..][..header::SIZE].copy_from_slice(&plain);
        let cipher = suite.data_cipher(Mode::Xts, &keys, Acceleration::On);
        let encrypted = self.encrypted.min(self.len) / UNIT as usize * UNIT as usize;
        cipher.encrypt(self.start as u64 / UNIT, &mut disk[self.start..][..encrypted]);
    }

    fn hints<'a>(&self, credentials: &'a [Credential]) -> Unlock<'a> {
        Unlock { hash: Some(self.hash), cipher: Some(self.cipher), ..Unlock::with(credentials) }
    }

    fn unlock(&self, disk: &[u8]) -> Result<(Unlocked, Arc<dyn Store>)> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(disk.to_vec()));
        let (_, header) = formats::open(&store, Some(self.family.name))?;
        Ok((header.unlock(&self.hints(&pw()))?, store))
    }

    fn unlock_partition(&self, disk: &[u8], number: u32) -> Result<(Unlocked, Arc<dyn Store>)> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(disk.to_vec()));
        let header = partition::open(&store, number, Some(self.family.name), false)?;
        Ok((header.unlock(&self.hints(&pw()))?, store))
    }
}

fn pw() -> [Credential; 1] {
    [Credential::Passphrase(Secret::copy_from(b"pw"))]
}

fn plaintext(unlocked: Unlocked, store: Arc<dyn Store>) -> Vec<u8> {
    let volume = Volume::new(store, unlocked.layout);
    let mut all = vec![0; volume.len() as usize];
    volume.read_at(0, &mut all).expect("it can be read");
    all
}

/// A disk of 8 MiB with two primary and two logical partitions, all filled with data.
fn disk() -> Option<Vec<u8>> {
    let sfdisk = tools::program("sfdisk")?;
    let file = tempfile::Builder::new().suffix(".img").tempfile().expect("a temporary file");
    file.as_file().set_len(8 * MIB as u64).expect("a size");
    let mut child = Command::new(sfdisk)
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(file.path())
        .stdin(Stdio::piped())
        .spawn()
        .expect("sfdisk starts");
    let script = b"label: dos\nstart=2048, size=2048, type=7, bootable\nstart=4096, size=2048, type=7\n\
                   start=6144, type=5\nstart=8192, size=2048, type=83\nstart=12288, size=2048, type=83\n";
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), script).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success());
    let mut disk = std::fs::read(file.path()).expect("the disk");
    for start in [1, 2, 4, 6] {
        disk[start * MIB..][..MIB].copy_from_slice(&noise(MIB, start as u64));
    }
    Some(disk)
}

#[test]
fn one_partition_is_encrypted_and_all_else_is_read_only() {
    let Some(clear) = disk() else { return };
    let system = System::new(&TRUECRYPT, "RIPEMD-160", "Serpent-AES", MIB, MIB);
    let mut disk = clear.clone();
    system.encrypt(&mut disk);
    // The plaintext shows the header in the same place.
    let mut expected = clear.clone();
    expected[SYSTEM_AT as usize..][..512].copy_from_slice(&disk[SYSTEM_AT as usize..][..512]);

    let (unlocked, store) = system.unlock(&disk).expect("it opens");
    let facts = &unlocked.facts;
    assert_eq!((facts.header.name(), facts.iterations, facts.size), ("system", 1000, disk.len() as u64));
    assert_eq!((facts.data_offset, unlocked.trials), (MIB as u64, 1));
    let writable: Vec<_> = unlocked.layout.segments().iter().filter(|s| s.writable).map(|s| (s.at, s.len)).collect();
    assert_eq!(writable, [(MIB as u64, MIB as u64)]);
    let volume = Volume::new(Arc::clone(&store), unlocked.layout);
    for (offset, len) in
        [(0, 512), (SYSTEM_AT, 512), (MIB as u64 - 1, 1), (MIB as u64 - 512, 1024), (2 * MIB as u64 - 1, 2)]
    {
        volume.write_clobbering(offset, &mut vec![9; len]).expect_err("the boot loader or another partition");
    }
    let mut all = vec![0; disk.len()];
    volume.read_at(0, &mut all).expect("it can be read");
    assert!(all == expected);
    volume.write_clobbering(MIB as u64 + 100, &mut [9; 700]).expect("the encrypted partition");
    expected[MIB + 100..][..700].fill(9);
    let (unlocked, store) = {
        let mut now = vec![0; disk.len()];
        store.read_at(0, &mut now).expect("it can be read");
        assert!(now[..MIB] == disk[..MIB] && now[2 * MIB..] == disk[2 * MIB..]);
        system.unlock(&now).expect("it opens")
    };
    assert!(plaintext(unlocked, store) == expected);

    let (unlocked, store) = system.unlock_partition(&disk, 1).expect("it opens");
    assert_eq!(unlocked.facts.size, MIB as u64);
    assert!(plaintext(unlocked, store) == clear[MIB..2 * MIB]);
    let error = system.unlock_partition(&disk, 5).err().expect("it is not encrypted");
    // The disk looks random, so it was tried as a volume too.
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
}

#[test]
fn a_whole_disk_is_encrypted_with_the_table_of_its_logical_partitions() {
    let Some(clear) = disk() else { return };
    let start = BOOT_LOADER as usize;
    let system = System::new(&TRUECRYPT, "RIPEMD-160", "AES", start, clear.len() - start);
    let mut disk = clear.clone();
    system.encrypt(&mut disk);
    for (number, start) in [(1, 1), (2, 2), (5, 4), (6, 6)] {
        let (unlocked, store) = system.unlock_partition(&disk, number).unwrap_or_else(|e| panic!("{number}: {e}"));
        assert!(unlocked.warnings.is_empty());
        assert!(plaintext(unlocked, store) == clear[start * MIB..][..MIB], "partition {number}");
    }
    let error = system.unlock_partition(&disk, 7).err().expect("there is none");
    assert!(error.to_string().contains("existing: 1, 2, 5, 6"), "{error}");
}

#[test]
fn a_disk_says_that_it_could_be_a_system() {
    let Some(clear) = disk() else { return };
    let verdicts = |disk: &[u8]| {
        let store = MemoryStore::new(disk.to_vec());
        [&TRUECRYPT, &VERACRYPT].map(|family| matches!(family.identify(&store).expect("a look"), Verdict::Possible(_)))
    };
    assert_eq!(verdicts(&clear), [false, false]);
    let mut disk = clear.clone();
    System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB).encrypt(&mut disk);
    assert_eq!(verdicts(&disk), [true, true]);
    disk[100..][..22].copy_from_slice(b"VeraCrypt Boot Loader ");
    assert_eq!(verdicts(&disk), [false, true]);
    disk[100..][..22].copy_from_slice(b"TrueCrypt Boot Loader ");
    assert_eq!(verdicts(&disk), [true, false]);
    disk[510] = 0;
    assert_eq!(verdicts(&disk), [false, false]);
}

#[test]
fn what_a_systems_header_must_not_say_is_refused() {
    let Some(clear) = disk() else { return };
    let good = || System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB);
    let error = |system: System| {
        let mut disk = clear.clone();
        let mut all = vec![0; 64 * MIB];
        all[..disk.len()].copy_from_slice(&disk);
        system.encrypt(&mut all);
        disk.copy_from_slice(&all[..clear.len()]);
        system.unlock(&disk).err().expect("it does not open")
    };
    let malformed = |system| match error(system).kind {
        ErrorKind::Malformed { field, .. } => field,
        other => panic!("{other}"),
    };
    let mut more = clear.clone();
    let system = System { encrypted: MIB + 512, ..good() };
    system.encrypt(&mut more);
    let (unlocked, store) = system.unlock(&more).expect("all of it is encrypted");
    assert!(unlocked.warnings.len() == 1, "{:?}", unlocked.warnings);
    assert!(plaintext(unlocked, store)[MIB..] == clear[MIB..]);
    assert_eq!(malformed(System { flags: 0, ..good() }), "flags");
    assert_eq!(malformed(System { len: 8 * MIB, encrypted: 8 * MIB, ..good() }), "size of the volume");
    assert_eq!(malformed(System { start: 20_480, len: 512, encrypted: 512, ..good() }), "beginning of the data");
    for encrypted in [1, 513, MIB - 1, MIB + 1, i64::MAX as usize + 1 - MIB, usize::MAX - 511] {
        assert_eq!(malformed(System { encrypted, ..good() }), "size of the encrypted part", "{encrypted}");
    }
    for encrypted in [0, 512, MIB - 512] {
        let system = System { len: 8 * MIB, encrypted, ..good() };
        assert_eq!(malformed(system), "size of the volume", "{encrypted}: the rest is past the end of the disk");
    }
}

#[test]
fn a_system_that_is_encrypted_in_part_is_read_and_written_on_both_sides_of_the_border() {
    let Some(clear) = disk() else { return };
    let noise = noise(3 * MIB, 17);
    for (number, encrypted) in [0, 512, MIB / 2 + 512, MIB - 512].into_iter().enumerate() {
        let system = System { encrypted, ..System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB) };
        let (border, end) = (MIB + encrypted, 2 * MIB);
        let mut disk = clear.clone();
        system.encrypt(&mut disk);
        assert!(disk[border..] == clear[border..]);
        let mut expected = clear.clone();
        expected[SYSTEM_AT as usize..][..512].copy_from_slice(&disk[SYSTEM_AT as usize..][..512]);

        let (unlocked, store) = system.unlock(&disk).expect("it opens");
        let what = format!("Only {encrypted} of the system's {MIB} bytes are encrypted");
        assert!(unlocked.warnings.len() == 1 && unlocked.warnings[0].what.contains(&what), "{:?}", unlocked.warnings);
        let segments: Vec<_> = unlocked.layout.segments().iter().map(|s| (s.len as usize, s.writable)).collect();
        let all = [(MIB, false), (encrypted, true), (end - border, true), (disk.len() - end, false)];
        assert_eq!(segments, all.into_iter().filter(|(len, _)| *len > 0).collect::<Vec<_>>());
        let volume = Volume::new(Arc::clone(&store), unlocked.layout);
        let mut all = vec![0; disk.len()];
        volume.read_at(0, &mut all).expect("it can be read");
        assert!(all == expected);
        for offset in [SYSTEM_AT as usize, MIB - 1, end - 1] {
            volume.write_clobbering(offset as u64, &mut [9; 2]).expect_err("the boot loader or another partition");
        }
        // Writes across the border and on both sides of it, of whole and partial sectors.
        let writes = [
            (border.saturating_sub(700).max(MIB), border + 300),
            (MIB, MIB + 3),
            (end - 5, end),
            (border, border + 512),
        ];
        for (at, to) in writes {
            let to = to.min(end);
            volume.write_clobbering(at as u64, &mut noise[at..to].to_vec()).expect("it can be written");
            expected[at..to].copy_from_slice(&noise[at..to]);
        }
        let mut now = vec![0; disk.len()];
        store.read_at(0, &mut now).expect("it can be read");
        assert!(now[..MIB] == disk[..MIB] && now[border..] == expected[border..], "{encrypted}");
        let (unlocked, store) = system.unlock(&now).expect("it opens");
        assert!(plaintext(unlocked, store) == expected, "{encrypted}");
        // Partitions in front of, after and across the border belong to the system.
        let (unlocked, store) = system.unlock_partition(&now, 1).expect("it opens");
        assert_eq!(unlocked.warnings.len(), 1, "{number}: {:?}", unlocked.warnings);
        assert!(unlocked.layout.segments().iter().all(|s| s.writable));
        assert!(plaintext(unlocked, store) == expected[MIB..end], "{encrypted}");
    }
}

#[test]
fn partitions_behind_the_border_of_a_whole_disk_open_too() {
    let Some(clear) = disk() else { return };
    let start = BOOT_LOADER as usize;
    let encrypted = 4 * MIB + 512 - start;
    let system = System { encrypted, ..System::new(&TRUECRYPT, "RIPEMD-160", "AES", start, clear.len() - start) };
    let mut disk = clear.clone();
    system.encrypt(&mut disk);
    for (number, start) in [(1, 1), (2, 2), (5, 4), (6, 6)] {
        let (unlocked, store) = system.unlock_partition(&disk, number).unwrap_or_else(|e| panic!("{number}: {e}"));
        assert!(unlocked.layout.segments().iter().all(|s| s.writable));
        assert!(plaintext(unlocked, store) == clear[start * MIB..][..MIB], "partition {number}");
    }
}

fn editor(family: &'static Family) -> &'static dyn HeaderEditor {
    family.editor().expect("there is one")
}

fn passphrase(text: &str) -> [Credential; 1] {
    [Credential::Passphrase(Secret::copy_from(text.as_bytes()))]
}

fn changed(system: &System, store: &dyn Store, to: &NewCredential<'_>) -> Result<Prepared> {
    let old = pw();
    editor(system.family).change(store, &system.hints(&old), to)
}

fn to(credentials: &[Credential]) -> NewCredential<'_> {
    NewCredential { credentials, hash: None, pim: None, ..NewCredential::default() }
}

/// Returns what `credentials` open on the disk.
fn opened_with(system: &System, disk: &[u8], credentials: &[Credential]) -> Result<Vec<u8>> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(disk.to_vec()));
    let (_, header) = formats::open(&store, Some(system.family.name))?;
    Ok(plaintext(header.unlock(&system.hints(credentials))?, store))
}

/// The plaintext of a disk without sector 62.
fn without_header(mut plain: Vec<u8>) -> Vec<u8> {
    plain[SYSTEM_AT as usize..][..512].fill(0);
    plain
}

fn sectors_changed(a: &[u8], b: &[u8]) -> Vec<usize> {
    a.chunks(512).zip(b.chunks(512)).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
}

fn misuse<T>(result: Result<T>) -> String {
    match result.err().expect("it is refused") {
        Error { kind: ErrorKind::Misuse(what), .. } => what,
        other => panic!("{other}"),
    }
}

/// A disk whose encrypted first partition does not begin with noise.
fn sensible_disk() -> Option<Vec<u8>> {
    let mut clear = disk()?;
    clear[MIB..][..4096].fill(0x42);
    Some(clear)
}

#[test]
fn what_the_boot_loader_could_not_open_the_system_with_is_refused() {
    let Some(clear) = disk() else { return };
    let system = System::new(&VERACRYPT, "SHA-256", "AES", MIB, MIB);
    let mut disk = clear;
    system.encrypt(&mut disk);
    let refused = |disk: &[u8], new: &NewCredential<'_>| {
        let store = MemoryStore::new(disk.to_vec());
        let result = changed(&system, &store, new).map(|_| ());
        assert!(store.to_vec() == disk);
        result
    };
    let keyfile =
        [Credential::Passphrase(Secret::copy_from(b"pw")), Credential::Keyfile(Secret::copy_from(b"keyfile"))];
    assert!(misuse(refused(&disk, &to(&keyfile))).contains("keyfiles"));
    for text in ["pässword", "tab\there", "\u{7f}"] {
        assert!(misuse(refused(&disk, &to(&passphrase(text)))).contains("ASCII"), "{text}");
    }
    let long = passphrase(&"a".repeat(65));
    refused(&disk, &to(&long)).expect("no boot loader for a BIOS is on it");
    let new = passphrase("twenty characters, or more");
    let other_hash = refused(&disk, &NewCredential { hash: Some("SHA-512"), ..to(&new) }).expect_err("refused");
    assert!(matches!(other_hash.kind, ErrorKind::Unsupported { .. }), "{other_hash}");
    refused(&disk, &NewCredential { hash: Some("SHA-256"), ..to(&new) }).expect("the one that it has");
    assert!(misuse(refused(&disk, &NewCredential { pim: Some(65_536), ..to(&new) })).contains("65535"));
    // A short passphrase needs the default iterations, which for a system are those of PIM 98.
    let short = passphrase("short");
    assert!(misuse(refused(&disk, &NewCredential { pim: Some(97), ..to(&short) })).contains("too low"));
    refused(&disk, &NewCredential { pim: Some(98), ..to(&short) }).expect("as usual");

    disk[6..][..22].copy_from_slice(b" VeraCrypt Boot Loader");
    assert!(misuse(refused(&disk, &to(&long))).contains("at most 64"));
    refused(&disk, &NewCredential { pim: Some(3), ..to(&new) }).expect("it asks for the PIM");
    disk[USER_FLAGS] = FLAG_STORED_PIM;
    refused(&disk, &to(&new)).expect("no PIM as before");
    let stored = misuse(refused(&disk, &NewCredential { pim: Some(3), ..to(&new) }));
    assert!(stored.contains("does not ask for the PIM"), "{stored}");
    disk[STORED_PIM..][..2].copy_from_slice(&3u16.to_le_bytes());
    refused(&disk, &NewCredential { pim: Some(3), ..to(&new) }).expect("the PIM that it takes");
}

#[test]
fn a_change_leaves_the_border_and_the_flags_as_they_are() {
    let Some(clear) = disk() else { return };
    let system = System { encrypted: MIB / 2, ..System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB) };
    let mut disk = clear;
    system.encrypt(&mut disk);
    let (store, new) = (MemoryStore::new(disk.clone()), passphrase("new"));
    changed(&system, &store, &to(&new)).expect("a change").edit.carry_out(&store).expect("it is written");
    assert_eq!(sectors_changed(&disk, &store.to_vec()), [62]);
    let plain = opened_with(&system, &disk, &pw()).expect("it opens");
    let now = opened_with(&system, &store.to_vec(), &new).expect("it opens");
    assert!(without_header(now) == without_header(plain));
    assert!(opened_with(&system, &store.to_vec(), &pw()).is_err());
}

#[test]
fn a_system_gets_a_pim_and_keeps_its_fewer_iterations() {
    let Some(clear) = disk() else { return };
    let system = System::new(&VERACRYPT, "SHA-256", "AES", MIB, MIB);
    let mut disk = clear;
    system.encrypt(&mut disk);
    let store = MemoryStore::new(disk.clone());
    let new = passphrase("twenty characters, or more");
    let prepared = changed(&system, &store, &NewCredential { pim: Some(3), ..to(&new) }).expect("a change");
    prepared.edit.carry_out(&store).expect("it is written");
    let store: Arc<dyn Store> = Arc::new(store);
    let (_, header) = formats::open(&store, Some("VeraCrypt")).expect("a system");
    let unlocked = header.unlock(&Unlock { pim: Some(3), ..system.hints(&new) }).expect("it opens");
    assert_eq!((unlocked.facts.iterations, unlocked.facts.pim), (3 * 2048, Some(3)));
}

#[test]
fn a_header_is_saved_and_brought_back_from_a_file_and_from_a_rescue_disk() {
    let Some(clear) = sensible_disk() else { return };
    let system = System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB);
    let mut disk = clear;
    disk[6..][..22].copy_from_slice(b" TrueCrypt Boot Loader");
    system.encrypt(&mut disk);
    let (credentials, editor) = (pw(), editor(system.family));
    let with = system.hints(&credentials);
    let saved = editor.back_up(&MemoryStore::new(disk.clone()), &with, None).expect("a backup");
    assert_eq!((saved.bytes.len(), &saved.headers[..]), (512, &["system"][..]));
    let header = &disk[SYSTEM_AT as usize..][..512];
    assert_ne!(saved.bytes[..64], header[..64], "it has a salt of its own");
    // The layout of BootEncryption.cpp, `CreateRescueIsoImage`, with the header unchanged.
    let mut rescue = vec![0; 1_835_008];
    rescue[0x8000..][..7].copy_from_slice(b"\x01CD001\x01");
    rescue[0x8801..][..29].copy_from_slice(b"CD001\x01EL TORITO SPECIFICATION");
    rescue[0xd000..][..512].copy_from_slice(&disk[..512]);
    rescue[0xd000 + 62 * 512..][..512].copy_from_slice(header);

    let plain = without_header(opened_with(&system, &disk, &credentials).expect("it opens"));
    for file in [&saved.bytes, &rescue] {
        let mut wiped = disk.clone();
        wiped[SYSTEM_AT as usize..][..512].fill(0);
        let store = MemoryStore::new(wiped.clone());
        let from = MemoryStore::new(file.clone());
        let prepared = editor.restore(&store, RestoreFrom::Backup(&from), &with, false).expect("it belongs there");
        assert!(!prepared.warnings.iter().any(|w| w.what.contains("there is")), "{:?}", prepared.warnings);
        assert!(store.to_vec() == wiped, "preparing writes nothing");
        prepared.edit.carry_out(&store).expect("it is written");
        assert_eq!(sectors_changed(&wiped, &store.to_vec()), [62]);
        let now = opened_with(&system, &store.to_vec(), &credentials).expect("it opens");
        assert!(without_header(now) == plain);
    }
    // Headers of another program, or with another password.
    let store = MemoryStore::new(disk.clone());
    let from = MemoryStore::new(rescue.clone());
    let other = VERACRYPT.editor().expect("there is one");
    let error = other.restore(&store, RestoreFrom::Backup(&from), &Unlock::with(&credentials), false);
    assert!(matches!(error.expect_err("it is TrueCrypt's").kind, ErrorKind::NotThisFormat(_)));
    let wrong = passphrase("wrong");
    let error = editor.restore(&store, RestoreFrom::Backup(&from), &system.hints(&wrong), true);
    assert!(matches!(error.expect_err("nothing opens").kind, ErrorKind::WrongCredential(_)));
    // A system's header is written only to a disk.
    for no_disk in [vec![0; 5], vec![0; 512], vec![0; 8 * MIB], noise(8 * MIB, 1)] {
        let store = MemoryStore::new(no_disk);
        let error = editor.restore(&store, RestoreFrom::Backup(&from), &with, true).expect_err("it is refused");
        assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    }
    rescue.truncate(0xd000 + 63 * 512 - 1);
    let error = editor.restore(&store, RestoreFrom::Backup(&MemoryStore::new(rescue)), &with, true);
    assert!(matches!(error.expect_err("cut short").kind, ErrorKind::NotThisFormat(_)));
}

/// The first rescue disk says that everything is encrypted, before anything is.
#[test]
fn a_backup_that_moves_the_border_is_refused() {
    let Some(mut clear) = sensible_disk() else { return };
    clear[2 * MIB - 65_536..2 * MIB].fill(b'x');
    clear[2 * MIB - 65_536..2 * MIB].iter_mut().step_by(3).for_each(|byte| *byte = b'y');
    let part = System { encrypted: MIB / 2, ..System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB) };
    let (mut disk, mut first) = (clear.clone(), clear.clone());
    part.encrypt(&mut disk);
    System { encrypted: MIB, ..part }.encrypt(&mut first);
    let file = MemoryStore::new(first[SYSTEM_AT as usize..][..512].to_vec());
    let (credentials, editor) = (pw(), editor(&TRUECRYPT));
    let restored = |disk: &[u8], file: &MemoryStore, unproven| {
        let store = MemoryStore::new(disk.to_vec());
        let from = RestoreFrom::Backup(file);
        editor.restore(&store, from, &part.hints(&credentials), unproven)
    };
    let what = misuse(restored(&disk, &file, false));
    assert!(what.contains("524288 encrypted bytes, the backup 1048576"), "{what}");
    restored(&disk, &file, true).expect("forced");
    let mut wiped = disk.clone();
    wiped[SYSTEM_AT as usize..][..512].fill(0);
    let what = misuse(restored(&wiped, &file, false));
    assert!(what.contains("its end is in the clear"), "{what}");
    restored(&wiped, &file, true).expect("forced");
    let right = MemoryStore::new(disk[SYSTEM_AT as usize..][..512].to_vec());
    restored(&wiped, &right, false).expect("it is right");
    // The same header, and another disk's.
    restored(&disk, &right, false).expect("it is right");
    let mut other = clear;
    other[MIB..2 * MIB].copy_from_slice(&noise(MIB, 99));
    assert!(misuse(restored(&other, &right, false)).contains("nothing shows"));
}

#[test]
fn a_system_is_verified() {
    let Some(clear) = disk() else { return };
    let system = System { encrypted: MIB / 2, ..System::new(&TRUECRYPT, "RIPEMD-160", "AES", MIB, MIB) };
    let mut disk = clear;
    system.encrypt(&mut disk);
    let credentials = pw();
    let verified = |disk: &[u8]| {
        let store = MemoryStore::new(disk.to_vec());
        editor(&TRUECRYPT).verify(&store, &system.hints(&credentials)).expect("it opens")
    };
    let sound = verified(&disk);
    assert!(!sound.damaged && sound.warnings.is_empty(), "{:?}", sound.warnings);
    let copies: Vec<_> = sound.copies.iter().map(|copy| (copy.name, copy.at)).collect();
    assert_eq!(copies, [("system", SYSTEM_AT)]);
    assert_eq!((sound.areas.len(), sound.areas[0].sectors, sound.areas[0].not_random), (1, 1024, 0));
    disk[MIB + 5 * 512..][..512].fill(0);
    let trimmed = verified(&disk);
    assert!(trimmed.warnings.iter().any(|w| w.what.contains("TRIM")), "{:?}", trimmed.warnings);
}

/// A hidden system in partition 2 of a disk whose partition 1 is the decoy, and the plaintext of both.
fn hidden_system(clear: &[u8], family: &'static Family, hash: &'static str) -> (Vec<u8>, Vec<u8>) {
    let decoy = System::new(family, if family.name == "VeraCrypt" { "SHA-256" } else { hash }, "AES", MIB, MIB);
    let mut disk = clear.to_vec();
    decoy.encrypt(&mut disk);
    let plain = [vec![0x42; 4096], noise(MIB / 2 - 4096, 21)].concat();
    // Everything else of the outer volume is noise.
    let partition = &mut disk[2 * MIB..3 * MIB];
    let start = MIB - 2 * 65_536 - plain.len();
    let suite = family.suites.iter().find(|s| s.name == "AES").expect("a suite");
    let keys = noise(suite.key_len(Mode::Xts), 23);
    let data = header::Extent { start: start as u64, size: plain.len() as u64, hidden: true };
    let mut header = header::compose(family.rules, &[0; header::SALT], data, &keys);
    header::make_system(&mut header, 1, plain.len() as u64);
    let kdf = family.kdfs.iter().find(|k| k.name == hash).expect("a hash");
    let derivation = kdf.derivation(None, false);
    let seal = Seal { suite, mode: Mode::Xts, derivation, password: b"hidden", memory: None, cancelled: &|| false };
    for at in [65_536, MIB - 65_536] {
        partition[at..][..512].copy_from_slice(&seal.close(&header).expect("it is sealed"));
    }
    let mut data = plain.clone();
    suite.data_cipher(Mode::Xts, &keys, Acceleration::On).encrypt(start as u64 / UNIT, &mut data);
    partition[start..][..data.len()].copy_from_slice(&data);
    (disk, plain)
}

#[test]
fn a_hidden_system_opens_as_the_hidden_volume_of_its_partition() {
    let Some(clear) = disk() else { return };
    let (before, plain) = hidden_system(&clear, &TRUECRYPT, "RIPEMD-160");
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(before.clone()));
    let open = |text: &str, number| {
        let credentials = passphrase(text);
        let with = Unlock { hash: Some("RIPEMD-160"), cipher: Some("AES"), ..Unlock::with(&credentials) };
        partition::open(&store, number, Some("TrueCrypt"), false).expect("a disk").unlock(&with)
    };
    let unlocked = open("hidden", 2).expect("it opens");
    assert_eq!(
        (unlocked.facts.header.name(), unlocked.facts.hidden, unlocked.facts.iterations),
        ("hidden", true, 2000)
    );
    assert!(plaintext(unlocked, Arc::clone(&store)) == plain);
    assert!(open("pw", 1).is_ok() && open("hidden", 1).is_err());
    let error = open("pw", 2).err().expect("the decoy is another partition");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
    // Writes stay in the hidden system's partition, at the same offset.
    let volume = Volume::new(Arc::clone(&store), open("hidden", 2).expect("it opens").layout);
    volume.write_clobbering(0, &mut [7; 4096]).expect("it can be written");
    let mut after = vec![0; before.len()];
    store.read_at(0, &mut after).expect("it can be read");
    let first = (3 * MIB - 2 * 65_536 - plain.len()) / 512;
    assert_eq!(sectors_changed(&before, &after), (first..first + 8).collect::<Vec<_>>());
}

#[test]
fn the_password_of_a_hidden_system_is_changed_in_both_headers_and_can_be_typed() {
    let Some(clear) = disk() else { return };
    let (disk, _) = hidden_system(&clear, &TRUECRYPT, "RIPEMD-160");
    let partition = &disk[2 * MIB..3 * MIB];
    let (old, new) = (passphrase("hidden"), passphrase("new"));
    let with = Unlock { hash: Some("RIPEMD-160"), cipher: Some("AES"), ..Unlock::with(&old) };
    let store = MemoryStore::new(partition.to_vec());
    let change = |to: &NewCredential<'_>| editor(&TRUECRYPT).change(&store, &with, to);
    assert!(misuse(change(&to(&passphrase("pässword")))).contains("ASCII"));
    assert!(misuse(change(&to(&passphrase(&"a".repeat(65))))).contains("64"));
    let hash = change(&NewCredential { hash: Some("SHA-512"), ..to(&new) }).expect_err("refused");
    assert!(matches!(hash.kind, ErrorKind::Unsupported { .. }), "{hash}");
    change(&to(&new)).expect("a change").edit.carry_out(&store).expect("it is written");
    assert_eq!(sectors_changed(partition, &store.to_vec()), [128, 2048 - 128]);
    // The system flag stays set.
    let store: Arc<dyn Store> = Arc::new(store);
    let opened = OpenedVolumeHeader::of(&TRUECRYPT, &*store, &Unlock { credentials: &new, ..with }).expect("it opens");
    assert!(opened.found.fields.boots && opened.position.hidden);
}

#[test]
fn a_hidden_system_is_protected_while_its_outer_volume_is_written_to() {
    let Some(clear) = disk() else { return };
    let (disk, plain) = hidden_system(&clear, &TRUECRYPT, "SHA-512");
    let hidden = &disk[2 * MIB..3 * MIB];
    // An outer volume around the hidden one: its headers, and what it holds in place of the hidden ones.
    let outer = Arc::new(MemoryStore::new(hidden.to_vec()));
    let spec = Spec { hash: Some("SHA-512"), quick: true, ..Spec::default() };
    let credentials = passphrase("outer");
    TRUECRYPT.create(&*outer, &spec, &credentials).expect("a volume");
    let mut bytes = outer.to_vec();
    for at in [65_536, MIB - 65_536] {
        bytes[at..][..512].copy_from_slice(&hidden[at..][..512]);
    }
    let start = MIB - 2 * 65_536 - plain.len();
    bytes[start..][..plain.len()].copy_from_slice(&hidden[start..][..plain.len()]);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes));
    let inner = passphrase("hidden");
    let protect = Some(Protect { credentials: &inner, hash: Some("SHA-512"), pim: None });
    let with = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), protect, ..Unlock::with(&credentials) };
    let (_, header) = formats::open(&store, Some("TrueCrypt")).expect("a volume");
    let volume = Volume::new(Arc::clone(&store), header.unlock(&with).expect("both open").layout);
    volume.write_clobbering(0, &mut [1; 512]).expect("in front of the hidden system");
    volume.write_clobbering((start - 131_072) as u64, &mut [1; 512]).expect_err("it would be damaged");
    let with = Unlock { protect: None, credentials: &inner, ..with };
    let (_, header) = formats::open(&store, Some("TrueCrypt")).expect("a volume");
    assert!(plaintext(header.unlock(&with).expect("it opens"), store) == plain);
}

/// cryptsetup numbers the sectors of a hidden volume in a partition the same way.
#[test]
fn hidden_systems_that_are_made_here_open_in_cryptsetup() {
    let (Some(clear), Some(_)) = (disk(), tools::program("cryptsetup")) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut script = String::from("set -ex\n");
    let mut images = Vec::new();
    for ((family, hash, option), letter) in
        [(&TRUECRYPT, "RIPEMD-160", "--disable-veracrypt"), (&VERACRYPT, "SHA-256", "--veracrypt")]
            .into_iter()
            .zip('a'..)
    {
        let (disk, plain) = hidden_system(&clear, family, hash);
        let (image, expected) = (dir.path().join(letter.to_string()), dir.path().join(format!("{letter}.plain")));
        std::fs::write(&image, disk).expect("an image");
        std::fs::write(&expected, plain).expect("its plaintext");
        images.push(image);
        let hash = hash.replace('-', "").to_lowercase();
        script += &format!(
            "printf %s hidden | cryptsetup tcryptOpen --tcrypt-hidden {option} --cipher aes --hash {hash} /dev/ubd{letter}2 x\n\
             cmp /dev/mapper/x {}\ncryptsetup close x\n",
            expected.display()
        );
    }
    let images: Vec<&Path> = images.iter().map(|i| &**i).collect();
    let Some(done) = uml::run(&script, &images, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
}

/// A changed header opens in cryptsetup with the new password, and no longer with the old one.
#[test]
fn cryptsetup_opens_a_system_whose_password_was_changed() {
    let (Some(clear), Some(_)) = (disk(), tools::program("cryptsetup")) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let expected = dir.path().join("plain");
    std::fs::write(&expected, &clear[MIB..2 * MIB]).expect("the plaintext");
    let mut script = String::from("set -ex\n");
    let mut images = Vec::new();
    for ((family, hash, pim), letter) in
        [(&TRUECRYPT, "RIPEMD-160", None), (&VERACRYPT, "SHA-256", Some(2))].into_iter().zip('a'..)
    {
        let system = System::new(family, hash, "AES", MIB, MIB);
        let mut disk = clear.clone();
        system.encrypt(&mut disk);
        let store = MemoryStore::new(disk);
        let text = "twenty characters, or more";
        let new = passphrase(text);
        let prepared = changed(&system, &store, &NewCredential { pim, ..to(&new) }).expect("a change");
        prepared.edit.carry_out(&store).expect("it is written");
        let image = dir.path().join(letter.to_string());
        std::fs::write(&image, store.to_vec()).expect("an image");
        images.push(image);
        let options = match pim {
            Some(pim) => format!("--veracrypt-pim={pim}"),
            None => "--disable-veracrypt".to_owned(),
        };
        let hash = hash.replace('-', "").to_lowercase();
        let open =
            format!("cryptsetup tcryptOpen --tcrypt-system {options} --cipher aes --hash {hash} /dev/ubd{letter}1 x");
        script += &format!(
            "printf %s '{text}' | {open}\ncmp -n {MIB} /dev/mapper/x {}\ncryptsetup close x\n\
             if printf %s pw | {open}; then exit 9; fi\n",
            expected.display()
        );
    }
    let images: Vec<&Path> = images.iter().map(|i| &**i).collect();
    let Some(done) = uml::run(&script, &images, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
}

/// The kernel of user-mode Linux sees the partitions of a disk, as cryptsetup requires.
#[test]
fn systems_that_are_made_here_open_in_cryptsetup() {
    let (Some(clear), Some(_)) = (disk(), tools::program("cryptsetup")) else { return };
    let whole = BOOT_LOADER as usize;
    let systems = [
        System::new(&TRUECRYPT, "RIPEMD-160", "AES-Twofish-Serpent", MIB, MIB),
        System::new(&TRUECRYPT, "RIPEMD-160", "Serpent", whole, clear.len() - whole),
        System::new(&VERACRYPT, "SHA-256", "AES", MIB, MIB),
        System::new(&VERACRYPT, "SHA-256", "Twofish", whole, clear.len() - whole),
        System { encrypted: MIB / 2, ..System::new(&VERACRYPT, "SHA-256", "AES", MIB, MIB) },
    ];
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut script = String::from("set -ex\n");
    let mut images = Vec::new();
    for (system, letter) in systems.iter().zip('a'..) {
        let (image, expected) = (dir.path().join(letter.to_string()), dir.path().join(format!("{letter}.plain")));
        let mut disk = clear.clone();
        system.encrypt(&mut disk);
        let (unlocked, store) = system.unlock_partition(&disk, 1).expect("it opens");
        let plain = plaintext(unlocked, store);
        assert!(plain == clear[MIB..2 * MIB]);
        std::fs::write(&image, disk).expect("an image");
        std::fs::write(&expected, plain).expect("its plaintext");
        images.push(image);
        let cipher = system.cipher.split('-').rev().collect::<Vec<_>>().join("-").to_lowercase();
        let hash = system.hash.replace('-', "").to_lowercase();
        let veracrypt = if system.family.name == "VeraCrypt" { "--veracrypt" } else { "--disable-veracrypt" };
        let options = format!("--tcrypt-system {veracrypt} --cipher {cipher} --hash {hash}");
        let same = system.encrypted.min(MIB);
        // cryptsetup does not know the border, so it turns what follows into noise.
        let noise = format!("if cmp -s -i {same} -n 512 /dev/mapper/x {}; then exit 9; fi\n", expected.display());
        let rest = if same < MIB { &*noise } else { "" };
        script += &format!(
            "ls /dev/ubd{letter}*\nprintf %s pw | cryptsetup tcryptOpen {options} /dev/ubd{letter}1 x\n\
             cmp -n {same} /dev/mapper/x {}\n{rest}cryptsetup close x\n",
            expected.display()
        );
    }
    let images: Vec<&Path> = images.iter().map(|i| &**i).collect();
    let Some(done) = uml::run(&script, &images, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
}

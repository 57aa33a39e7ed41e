//! Encrypted systems: a disk that starts with a boot loader, which asks for the password, and of which one partition or
//! everything behind the boot loader is encrypted.
//!
//! Facts: 7.1a, Boot/Windows/BootDefs.h, Common/Volumes.c and Driver/DriveFilter.c, `MountDrive`; VeraCrypt 1.26, the same.
//! The image `sys_vc_1_mbr_part` of cryptsetup proves them for VeraCrypt.

use super::trials::Found;
use super::{DataArea, Family, HeaderCopy, UNIT, header, positions};
use crate::advice::Warning;
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Verdict, magic};
use crate::partitions;
use crate::store::Store;
use crate::volume::{Layout, Payload, Segment};

// The disk.
//
// sector 0 ┌───────────────────────────────────────────────────────┐
//          │ boot sector, with the partition table                 │
//        1 ├───────────────────────────────────────────────────────┤
//          │ boot loader; of a GPT and UEFI, the GPT               │
//       62 ├───────────────────────────────────────────────────────┤
//          │ header                                                │
//       63 ├───────────────────────────────────────────────────────┤
//          │ clear, up to where the header says that data begin    │
//        x ├───────────────────────────────────────────────────────┤
//          │ encrypted, as many bytes as the header says           │
//        b ├───────────────────────────────────────────────────────┤
//          │ clear, of what is to be encrypted or was: the border  │
//          │ b moves up or down while the system is in use         │
//        y ├───────────────────────────────────────────────────────┤
//          │ clear                                                 │
//          └───────────────────────────────────────────────────────┘
//
// Sectors are numbered from the beginning of the disk, for XTS too. Encrypting begins at x, decrypting at y, each goes on to
// the other end, and between them every sector in front of b is encrypted and no other (7.1a, Driver/DriveFilter.c,
// `SetupThreadProc`; VeraCrypt, the same). The header is made with b = x (Common/BootEncryption.cpp, `CreateVolumeHeader`).

/// Where the header is, in bytes (`TC_BOOT_VOLUME_HEADER_SECTOR`).
pub(super) const HEADER_AT: u64 = 62 * 512;

/// The area that belongs to the boot loader, in bytes (`TC_BOOT_LOADER_AREA_SIZE`).
pub(super) const BOOT_LOADER: u64 = 63 * 512;

/// How many bytes the border may have moved before the header says so (Driver/DriveFilter.h,
/// `TC_ENCRYPTION_SETUP_HEADER_UPDATE_THRESHOLD`).
const BORDER_LAG: u64 = 64 << 20;

/// What the boot sectors have in them (Boot/Windows/BootSector.asm).
const LOADERS: [(&str, &[u8]); 2] = [("TrueCrypt", b"TrueCrypt Boot"), ("VeraCrypt", b"VeraCrypt Boot")];

/// What a look at a disk tells whose first sector is no volume's.
pub(super) fn identify(family: &Family, store: &dyn Store, start: &[u8; 512]) -> Result<Verdict> {
    if header(family, store)?.is_none() {
        return Ok(Verdict::No("it does not begin with random-looking bytes, as salt and encrypted header do".into()));
    }
    let sector = "its sector 62 looks random, as the header of an encrypted system does";
    Ok(match loader(start) {
        Some(name) if name == family.name => {
            Verdict::Possible(format!("the boot loader of {name} is on it, and {sector}"))
        }
        Some(name) => Verdict::No(format!("it has the boot loader of {name}")),
        None => Verdict::Possible(format!("it is a disk with partitions, and {sector}")),
    })
}

/// The sector that could be the header of an encrypted system, if `store` could be such a disk: one with a partition table,
/// without another program's boot loader.
pub(super) fn header(family: &Family, store: &dyn Store) -> Result<Option<HeaderCopy>> {
    let position = &positions::SYSTEM;
    let Some(at) = position.in_store(store.len()) else { return Ok(None) };
    let mut start = [0; 512];
    store.read_at(0, &mut start)?;
    // A damaged table is a table: where the encrypted data are, the header says.
    let disk =
        start[510..] == [0x55, 0xaa] && !magic::looks_random(&start) && !matches!(partitions::read(store), Ok(None));
    if !disk || loader(&start).is_some_and(|name| name != family.name) {
        return Ok(None);
    }
    let mut bytes = [0; header::SIZE];
    store.read_at(at, &mut bytes)?;
    Ok(magic::looks_random(&bytes).then_some(HeaderCopy { position, at, bytes }))
}

/// Whose boot loader a boot sector belongs to.
fn loader(start: &[u8; 512]) -> Option<&'static str> {
    let has = |mark: &[u8]| start.windows(mark.len()).any(|bytes| bytes == mark);
    LOADERS.iter().find(|(_, mark)| has(mark)).map(|(name, _)| *name)
}

/// The whole disk. What the system encrypts can be read and written, encrypted so far or not; all else only read.
pub(super) fn layout(
    found: &Found,
    store: &dyn Store,
    with: &Unlock<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<(Layout, DataArea)> {
    let (start, len) = (found.fields.data_start, found.fields.volume_size);
    let (end, disk) = (start + len, store.len());
    if end > disk {
        let what = format!("the encrypted part ends at byte {end}, but the disk has {disk}");
        let offset = HEADER_AT + header::VOLUME_SIZE as u64;
        return Err(Error::new(ErrorKind::Malformed { field: "size of the volume", offset, what })
            .hint("If this is a partition or a part of the disk, open the whole disk."));
    }
    let encrypted = header::encrypted_size(&found.plain);
    warnings.extend(unusual_border(encrypted, len).map(Warning::from));
    let border = start + encrypted.min(len);
    let cipher = found.suite.data_cipher(found.mode, header::keys(&found.plain), with.acceleration);
    let payload = Payload::crypt(cipher, start / UNIT).with_kernel(super::kernel_layers(found, with));
    let segment = |at, to, payload, writable| Segment { at, len: to - at, stored_at: at, payload, writable };
    let mut segments = vec![
        segment(0, start, Payload::Clear, false),
        segment(start, border, payload, true),
        segment(border, end, Payload::Clear, true),
        segment(end, disk, Payload::Clear, false),
    ];
    segments.retain(|segment| segment.len > 0);
    let layout = Layout::new(segments)?.for_kernel(with.for_kernel.then_some(super::KIND));
    Ok((layout, DataArea { start, len }))
}

/// What to tell of a system that is not encrypted as a whole: `encrypted` of `len` bytes are.
fn unusual_border(encrypted: u64, len: u64) -> Option<String> {
    if encrypted > len {
        return Some(format!(
            "The header says that {encrypted} bytes are encrypted, but that there are only {len} to encrypt: what follows them \
             is taken to be in the clear."
        ));
    }
    (encrypted < len).then(|| {
        format!(
            "Only {encrypted} of the system's {len} bytes are encrypted: the others are read and written in the clear, as the \
             program that encrypts or decrypts it does. If the computer went off while that was going on, the header may \
             be behind by up to {} MiB, and what is read there is noise.",
            BORDER_LAG >> 20
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use claviger_crypto::{Acceleration, Secret};
    use claviger_testkit::{tools, uml};

    use super::super::suites::{Mode, SharedKeys};
    use super::super::{TRUECRYPT, VERACRYPT};
    use super::*;
    use crate::credential::Credential;
    use crate::formats::{self, Format, Unlocked, partition};
    use crate::store::MemoryStore;
    use crate::volume::Volume;

    const MIB: usize = 1 << 20;

    /// An encrypted system, of which cryptsetup may be told or not.
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
            disk[HEADER_AT as usize..][..header::SIZE].copy_from_slice(&plain);
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

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        claviger_testkit::random::Random::new(seed).bytes(len)
    }

    fn plaintext(unlocked: Unlocked, store: Arc<dyn Store>) -> Vec<u8> {
        let volume = Volume::new(store, unlocked.layout);
        let mut all = vec![0; volume.len() as usize];
        volume.read_at(0, &mut all).expect("it can be read");
        all
    }

    /// 8 MiB with two primary and two logical partitions, all full of something.
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
        // The header is where the plaintext has it too.
        let mut expected = clear.clone();
        expected[HEADER_AT as usize..][..512].copy_from_slice(&disk[HEADER_AT as usize..][..512]);

        let (unlocked, store) = system.unlock(&disk).expect("it opens");
        let facts = &unlocked.facts;
        assert_eq!((&*facts.header, facts.iterations, facts.size), ("system", 1000, disk.len() as u64));
        assert_eq!((facts.data_offset, unlocked.trials), (MIB as u64, 1));
        let writable: Vec<_> =
            unlocked.layout.segments().iter().filter(|s| s.writable).map(|s| (s.at, s.len)).collect();
        assert_eq!(writable, [(MIB as u64, MIB as u64)]);
        let volume = Volume::new(Arc::clone(&store), unlocked.layout);
        for (offset, len) in
            [(0, 512), (HEADER_AT, 512), (MIB as u64 - 1, 1), (MIB as u64 - 512, 1024), (2 * MIB as u64 - 1, 2)]
        {
            volume.write_at(offset, &mut vec![9; len]).expect_err("the boot loader or another partition");
        }
        let mut all = vec![0; disk.len()];
        volume.read_at(0, &mut all).expect("it can be read");
        assert!(all == expected);
        volume.write_at(MIB as u64 + 100, &mut [9; 700]).expect("the encrypted partition");
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
        // It is random-looking, and so was tried as a volume too.
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
        assert!(error.to_string().contains("there are: 1, 2, 5, 6"), "{error}");
    }

    #[test]
    fn a_disk_says_that_it_could_be_a_system() {
        let Some(clear) = disk() else { return };
        let verdicts = |disk: &[u8]| {
            let store = MemoryStore::new(disk.to_vec());
            [&TRUECRYPT, &VERACRYPT]
                .map(|family| matches!(family.identify(&store).expect("a look"), Verdict::Possible(_)))
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
            expected[HEADER_AT as usize..][..512].copy_from_slice(&disk[HEADER_AT as usize..][..512]);

            let (unlocked, store) = system.unlock(&disk).expect("it opens");
            let what = format!("Only {encrypted} of the system's {MIB} bytes are encrypted");
            assert!(
                unlocked.warnings.len() == 1 && unlocked.warnings[0].what.contains(&what),
                "{:?}",
                unlocked.warnings
            );
            let segments: Vec<_> = unlocked.layout.segments().iter().map(|s| (s.len as usize, s.writable)).collect();
            let all = [(MIB, false), (encrypted, true), (end - border, true), (disk.len() - end, false)];
            assert_eq!(segments, all.into_iter().filter(|(len, _)| *len > 0).collect::<Vec<_>>());
            let volume = Volume::new(Arc::clone(&store), unlocked.layout);
            let mut all = vec![0; disk.len()];
            volume.read_at(0, &mut all).expect("it can be read");
            assert!(all == expected);
            for offset in [HEADER_AT as usize, MIB - 1, end - 1] {
                volume.write_at(offset as u64, &mut [9; 2]).expect_err("the boot loader or another partition");
            }
            // Over the border, and on both sides of it, whole sectors and parts of them.
            let writes = [
                (border.saturating_sub(700).max(MIB), border + 300),
                (MIB, MIB + 3),
                (end - 5, end),
                (border, border + 512),
            ];
            for (at, to) in writes {
                let to = to.min(end);
                volume.write_at(at as u64, &mut noise[at..to].to_vec()).expect("it can be written");
                expected[at..to].copy_from_slice(&noise[at..to]);
            }
            let mut now = vec![0; disk.len()];
            store.read_at(0, &mut now).expect("it can be read");
            assert!(now[..MIB] == disk[..MIB] && now[border..] == expected[border..], "{encrypted}");
            let (unlocked, store) = system.unlock(&now).expect("it opens");
            assert!(plaintext(unlocked, store) == expected, "{encrypted}");
            // A partition in front of the border, behind it and around it is one of the system.
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

    /// The kernel of user-mode Linux sees the partitions of a disk, as cryptsetup wants to.
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
            // What follows the border, which cryptsetup does not know, it turns into noise.
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
}

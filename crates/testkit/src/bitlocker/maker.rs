//! Makes BitLocker volumes of every kind, from a description.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use super::crypto::{self, Method};
use super::discovery::IDENTIFIER;
use super::eow::{self, EncryptOnWrite};
use super::metadata::{Datum, HEADERS, Nonces, Seal, TIME, set_datums, validation};
use super::oracles::{Features, Key, expect_all};
use crate::random::Random;

/// The Windows version that made the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Windows Vista: the first sectors are plaintext, and the metadata has version 1.
    Vista,
    /// Windows 7: the header's datum comes first.
    Windows7,
    /// Windows 8 to 11.
    Windows8,
    /// Removable: a FAT file system in front explains the volume.
    ToGo,
}

/// The description of a protector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protector {
    /// A password.
    Password(String),
    /// A recovery password, as the 16 bytes that its groups stand for.
    Recovery([u8; 16]),
    /// A BEK file.
    StartupKey,
    /// A key stored in plaintext: the volume is suspended.
    ClearKey,
    /// A blob for a TPM to unseal, perhaps with a PIN, perhaps together with a BEK file.
    Tpm {
        /// The PIN.
        pin: Option<String>,
        /// Whether there is a BEK file.
        startup_key: bool,
    },
    /// A blob for a smart card to decrypt.
    SmartCard,
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything is encrypted.
    Encrypted,
    /// Everything is plaintext; only the header is still relocated. No key is needed, with or without protectors.
    Decrypted,
    /// Encrypted below the watermark and plaintext from it on, by position on disk.
    HalfWay {
        /// 5 in progress, 3 paused, 2 dirty: a log of 64 KiB lies at the watermark.
        current: u16,
        /// 4 when it is being encrypted, 1 when it is being decrypted.
        next: u16,
        /// A multiple of the sector size.
        watermark: u64,
    },
}

/// Length of the log at the watermark in state 2.
const DIRTY_LOG: u64 = 0x1_0000;

/// Description of a volume to make. `Volume::new` has a simple one, to be changed with struct update syntax.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The Windows version that made it.
    pub kind: Kind,
    /// The cipher of the sectors.
    pub method: Method,
    /// 512 or 4096.
    pub sector_size: u64,
    /// Length in bytes: at least 1 MiB, and a multiple of 64 KiB.
    pub size: u64,
    /// The protectors, in the stored order.
    pub protectors: Vec<Protector>,
    /// Progress of the conversion.
    pub state: State,
    /// Encrypt-on-write, in the state "encrypted".
    pub encrypt_on_write: Option<EncryptOnWrite>,
    /// Whether the header's datum has the 76 additional bytes that Windows 8 introduced.
    pub tail: bool,
    /// The label in the metadata.
    pub label: String,
    /// Whether BEK files name the volume, as since Windows 11.
    pub volume_in_startup_key: bool,
    /// Additional datums after all others, of kinds that readers may not know.
    pub more_datums: Vec<Datum>,
    /// Whether each protector has a property of an unknown kind.
    pub unknown_property: bool,
    /// The plaintext, zero where metadata lie. By default, noise after an NTFS boot sector.
    pub contents: Option<Vec<u8>>,
    /// Areas that were free and never encrypted ("used space only"): they are zeros on disk.
    pub unused: Vec<Range<u64>>,
    /// The blobs sealed by a TPM, for protectors that have one, in their order. By default noise.
    pub tpm_blobs: Vec<Vec<u8>>,
    /// The seed of keys, salts, GUIDs and noise.
    pub seed: u64,
}

impl Volume {
    /// A volume of 1 MiB with the password `PASSWORD`, in the default cipher of this Windows version.
    pub fn new(kind: Kind) -> Self {
        let old = matches!(kind, Kind::Vista | Kind::Windows7);
        Self {
            kind,
            method: if old { Method::CbcElephant128 } else { Method::Xts128 },
            sector_size: 512,
            size: 1 << 20,
            protectors: vec![Protector::Password(PASSWORD.into())],
            state: State::Encrypted,
            encrypt_on_write: None,
            tail: !old,
            label: "HOST F: 11/22/2026".into(),
            volume_in_startup_key: false,
            more_datums: Vec::new(),
            unknown_property: false,
            contents: None,
            unused: Vec::new(),
            tpm_blobs: Vec::new(),
            seed: 1,
        }
    }

    /// Makes the volume.
    ///
    /// # Panics
    /// If the description contradicts itself.
    pub fn make(&self) -> Made {
        Making::new(self).made()
    }
}

/// The usual password.
pub const PASSWORD: &str = "correct horse";

/// The recovery password for 16 bytes.
pub fn recovery_text(bytes: &[u8; 16]) -> String {
    let groups = bytes.as_chunks().0.iter().map(|group| format!("{:06}", u32::from(u16::from_le_bytes(*group)) * 11));
    groups.collect::<Vec<_>>().join("-")
}

/// A GUID as text, from its bytes on disk.
pub fn guid_text(guid: &[u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let turned: Vec<u8> =
        [&guid[..4], &guid[4..6], &guid[6..8]].iter().flat_map(|part| part.iter().rev()).copied().collect();
    let parts = [&turned[..4], &turned[4..6], &turned[6..8], &guid[8..10], &guid[10..]];
    parts.map(hex).join("-")
}

/// Positions in the volume, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The copies of the metadata.
    pub metadata: [u64; 3],
    /// Size of each, in bytes.
    pub metadata_len: u64,
    /// Where the first bytes of the volume are stored; on Windows Vista they are not relocated.
    pub header: Range<u64>,
    /// An ordinary file that Windows reserves for itself.
    pub spare: Range<u64>,
    /// The structures of encrypt-on-write.
    pub encrypt_on_write: Option<eow::Layout>,
}

impl Layout {
    fn new(volume: &Volume) -> Self {
        let (quarter, vista) = (volume.size / 4, volume.kind == Kind::Vista);
        assert!(quarter >= 0x4_0000 && volume.size.is_multiple_of(0x1_0000), "{} bytes", volume.size);
        let metadata = [1, 2, 3].map(|i| (i * quarter).next_multiple_of(CLUSTER));
        let metadata_len = if vista { 0x4000 } else { 0x1_0000 };
        let header_len = match volume.kind {
            Kind::Vista => 0,
            Kind::Windows7 | Kind::Windows8 => 0x2000,
            Kind::ToGo => super::discovery::len(volume.size),
        };
        let header = metadata[0] + metadata_len;
        let spare = header + header_len;
        let (header, spare) = (header..spare, spare..spare + 0x1_0000);
        let mut layout = Self { metadata, metadata_len, header, spare, encrypt_on_write: None };
        layout.encrypt_on_write = volume.encrypt_on_write.as_ref().map(|on_write| {
            let places = [layout.spare.end, metadata[1] + metadata_len];
            eow::Layout::new(on_write, volume.size, volume.sector_size, places)
        });
        layout
    }

    /// Areas that are zero in the plaintext.
    pub fn reserved(&self) -> Vec<Range<u64>> {
        let metadata = self.metadata.map(|at| at..at + self.metadata_len);
        let on_write = self.encrypt_on_write.iter().flat_map(eow::Layout::reserved);
        metadata.into_iter().chain([self.header.clone()]).chain(on_write).collect()
    }
}

/// Bytes of a cluster, for boot sectors.
const CLUSTER: u64 = 4096;

/// A key that opens a made volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlock {
    /// A password.
    Password(String),
    /// A recovery password.
    Recovery(String),
    /// A BEK file: its name and its bytes.
    StartupKey(String, Vec<u8>),
    /// Nothing.
    Clear,
}

/// What a TPM has to seal for a protector: it makes one of [`Volume::tpm_blobs`].
#[derive(Clone, Debug)]
pub struct ToSeal {
    /// The bytes to seal.
    pub secret: Vec<u8>,
    /// The password of the sealed object.
    pub password: Vec<u8>,
    /// The BEK file that also belongs to it: its name and its bytes.
    pub startup_key: Option<(String, Vec<u8>)>,
}

/// A volume that was made.
#[derive(Clone)]
pub struct Made {
    /// The volume.
    pub image: Vec<u8>,
    /// The plaintext, zero where metadata lie.
    pub plaintext: Vec<u8>,
    /// Features that some readers do not support.
    pub features: Features,
    /// Its GUID, as on disk.
    pub guid: [u8; 16],
    /// The GUIDs of its protectors, as on disk.
    pub protectors: Vec<[u8; 16]>,
    /// The volume master key.
    pub vmk: [u8; 32],
    /// The full volume encryption key, as stored.
    pub fvek: Vec<u8>,
    /// The keys, in the order of the protectors. Those that need hardware are left out.
    pub unlocks: Vec<Unlock>,
    /// What a TPM has to seal, for each protector with one.
    pub to_seal: Vec<ToSeal>,
    /// Positions in the volume.
    pub layout: Layout,
    /// The description that it was made from.
    pub volume: Volume,
}

/// A volume and its BEK files in a folder.
pub struct Written {
    /// The volume.
    pub image: PathBuf,
    startup_keys: Vec<PathBuf>,
    dir: tempfile::TempDir,
}

impl Written {
    /// The folder with the volume and the BEK files. It is removed on drop.
    pub fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }
}

impl Made {
    /// Writes the volume into a new temporary folder.
    ///
    /// # Panics
    /// If writing fails.
    pub fn write(&self) -> Written {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let image = dir.path().join("volume.img");
        fs::write(&image, &self.image).expect("it is written");
        let startup_keys = self.unlocks.iter().filter_map(|unlock| {
            let Unlock::StartupKey(name, bytes) = unlock else { return None };
            fs::write(dir.path().join(name), bytes).expect("it is written");
            Some(dir.path().join(name))
        });
        let startup_keys = startup_keys.collect();
        Written { image, startup_keys, dir }
    }

    /// The keys, in the form for readers.
    pub fn keys<'a>(&'a self, written: &'a Written) -> Vec<Key<'a>> {
        let mut startup_keys = written.startup_keys.iter();
        let key = |unlock: &'a Unlock| match unlock {
            Unlock::Password(text) => Key::Password(text),
            Unlock::Recovery(text) => Key::Recovery(text),
            Unlock::StartupKey(..) => Key::StartupKey(startup_keys.next().expect("it was written")),
            Unlock::Clear => Key::Clear,
        };
        self.unlocks.iter().map(key).collect()
    }

    /// The features that matter with this key.
    pub fn features_with(&self, key: Key) -> Features {
        let first = self.unlocks.iter().find_map(|unlock| match unlock {
            Unlock::Recovery(text) => Some(text.as_str()),
            _ => None,
        });
        let later_recovery = matches!(key, Key::Recovery(text) if Some(text) != first);
        Features { later_recovery, ..self.features }
    }

    /// Reads the volume with each capable installed reader and each key, and compares. Returns the number of readings.
    ///
    /// # Panics
    /// If a reader that should read the volume cannot, or reads something else.
    #[track_caller]
    pub fn expect_readers(&self) -> usize {
        let written = self.write();
        let keys = self.keys(&written);
        let all = keys.iter().copied().chain((self.volume.state == State::Decrypted).then_some(Key::Clear));
        all.map(|key| expect_all(&written.image, &self.features_with(key), &[key], &self.plaintext)).sum()
    }
}

struct Making<'a> {
    volume: &'a Volume,
    random: Random,
    nonces: Nonces,
    layout: Layout,
    guid: [u8; 16],
    vmk: [u8; 32],
    fvek: Vec<u8>,
    protectors: Vec<[u8; 16]>,
    unlocks: Vec<Unlock>,
    to_seal: Vec<ToSeal>,
}

impl<'a> Making<'a> {
    fn new(volume: &'a Volume) -> Self {
        let mut random = Random::new(volume.seed);
        let mut fvek = random.bytes(volume.method.key_len());
        if volume.method == Method::CbcElephant128 {
            // Only 16 bytes of each half are used.
            fvek[16..32].fill(0);
            fvek[48..].fill(0);
        }
        let (guid, vmk) = (array(&mut random), array(&mut random));
        let layout = Layout::new(volume);
        let (nonces, protectors, unlocks, to_seal) = (Nonces::default(), Vec::new(), Vec::new(), Vec::new());
        Self { volume, random, nonces, layout, guid, vmk, fvek, protectors, unlocks, to_seal }
    }

    fn made(mut self) -> Made {
        let plaintext = self.plaintext();
        let mut image = self.on_disk(&plaintext);
        let plaintext = self.seen(plaintext, &image);
        let block = self.block();
        let seal = self.seal();
        let validation = validation(&block, &block, self.layout.metadata_len as usize, seal, &mut self.nonces);
        for at in self.layout.metadata {
            let area = &mut image[at as usize..][..self.layout.metadata_len as usize];
            area.fill(0);
            area[..block.len()].copy_from_slice(&block);
            area[block.len()..][..validation.len()].copy_from_slice(&validation);
        }
        if let (Some(on_write), Some(layout)) = (&self.volume.encrypt_on_write, &self.layout.encrypt_on_write) {
            let old = self.old_state(on_write, &image);
            layout.write(on_write, &mut image, old.as_deref());
        }
        self.boot(&mut image);
        let (features, volume) = (self.features(), self.volume.clone());
        let Self { guid, protectors, vmk, fvek, unlocks, to_seal, layout, .. } = self;
        Made { image, plaintext, features, guid, protectors, vmk, fvek, unlocks, to_seal, layout, volume }
    }

    fn seal(&self) -> Seal {
        match (self.volume.kind, self.volume.state) {
            (Kind::Vista, _) => Seal::None,
            (_, State::Decrypted) => Seal::Clear,
            _ => Seal::Under(self.vmk),
        }
    }

    /// The volume's plaintext, zero where metadata lie.
    fn plaintext(&mut self) -> Vec<u8> {
        let size = self.volume.size as usize;
        let mut plain = self.volume.contents.clone().unwrap_or_else(|| {
            let mut noise = self.random.bytes(size);
            noise[..512].copy_from_slice(&ntfs_boot_sector(self.volume));
            for area in self.layout.reserved() {
                noise[range(&area)].fill(0);
            }
            noise
        });
        plain.resize(size, 0);
        for area in self.layout.reserved() {
            assert!(plain[range(&area)].iter().all(|&byte| byte == 0), "the contents use {area:x?}");
        }
        if let State::HalfWay { current: 2, watermark, .. } = self.volume.state {
            plain[range(&(watermark..watermark + DIRTY_LOG))].fill(0);
        }
        plain
    }

    /// The plaintext as stored on disk, without metadata.
    fn on_disk(&mut self, plain: &[u8]) -> Vec<u8> {
        let sector_size = self.volume.sector_size as usize;
        let header = range(&self.layout.header);
        let mut disk = plain.to_vec();
        disk.copy_within(..header.len(), header.start);
        let cipher = self.volume.method.cipher(&self.fvek);
        for (i, sector) in disk.chunks_exact_mut(sector_size).enumerate() {
            let at = (i * sector_size) as u64;
            if self.is_encrypted(at) {
                cipher.encrypt(at, sector);
            }
        }
        // Noise, as Windows leaves after the boot sector.
        disk[..header.len()].copy_from_slice(&self.random.bytes(header.len()));
        if let State::HalfWay { current: 2, watermark, .. } = self.volume.state {
            let log = range(&(watermark..watermark + DIRTY_LOG));
            disk[log.clone()].copy_from_slice(&self.random.bytes(log.len()));
        }
        for unused in &self.volume.unused {
            disk[range(unused)].fill(0);
        }
        disk
    }

    fn is_encrypted(&self, at: u64) -> bool {
        let sector_size = self.volume.sector_size;
        match self.volume.state {
            _ if self.volume.kind == Kind::Vista && at < 16 * sector_size => false,
            State::Encrypted => self.volume.encrypt_on_write.as_ref().is_none_or(|o| o.is_encrypted(at, sector_size)),
            State::Decrypted => false,
            State::HalfWay { watermark, .. } => at < watermark,
        }
    }

    /// The chunk being converted, as it was on disk before.
    fn old_state(&self, on_write: &EncryptOnWrite, disk: &[u8]) -> Option<Vec<u8>> {
        let (chunk, converted) = on_write.under_way?;
        let sector_size = self.volume.sector_size as usize;
        let cipher = self.volume.method.cipher(&self.fvek);
        let start = chunk * on_write.chunk;
        let mut old = disk[range(&(start..start + on_write.chunk))].to_vec();
        for (i, sector) in old.chunks_exact_mut(sector_size).enumerate().take(converted as usize) {
            let at = start + (i * sector_size) as u64;
            if on_write.plain.contains(&chunk) { cipher.decrypt(at, sector) } else { cipher.encrypt(at, sector) }
        }
        Some(old)
    }

    /// What a reader sees: zeros that were never encrypted are decrypted to noise.
    fn seen(&self, mut plain: Vec<u8>, disk: &[u8]) -> Vec<u8> {
        let sector_size = self.volume.sector_size as usize;
        let cipher = self.volume.method.cipher(&self.fvek);
        for unused in self.volume.unused.iter().map(range) {
            plain[unused.clone()].copy_from_slice(&disk[unused.clone()]);
            for (i, sector) in plain[unused.clone()].chunks_exact_mut(sector_size).enumerate() {
                let at = (unused.start + i * sector_size) as u64;
                if self.is_encrypted(at) {
                    cipher.decrypt(at, sector);
                }
            }
        }
        plain
    }

    fn features(&self) -> Features {
        let volume = self.volume;
        let clear = volume.protectors.contains(&Protector::ClearKey);
        let others = volume.protectors.iter().any(|protector| *protector != Protector::ClearKey);
        let ntfs = volume.contents.as_ref().is_none_or(|contents| contents[3..11] == *b"NTFS    ");
        Features {
            vista: volume.kind == Kind::Vista,
            xts_256: volume.method == Method::Xts256,
            encrypt_on_write: volume.encrypt_on_write.is_some(),
            mixed_bitmap: volume.encrypt_on_write.as_ref().is_some_and(|o| o.is_mixed(volume.size)),
            log: volume.encrypt_on_write.as_ref().is_some_and(|o| o.under_way.is_some()),
            decrypted: volume.state == State::Decrypted,
            half_way: matches!(volume.state, State::HalfWay { .. }),
            dirty: matches!(volume.state, State::HalfWay { current: 2, .. }),
            clear_beside_others: clear && others,
            clear_alone: clear && !others,
            unknown_property: volume.unknown_property,
            volume_in_startup_key: volume.volume_in_startup_key,
            not_ntfs: !ntfs && volume.kind != Kind::ToGo,
            ..Features::default()
        }
    }

    /// A metadata block, without validation.
    fn block(&mut self) -> Vec<u8> {
        let volume = self.volume;
        let vista = volume.kind == Kind::Vista;
        let (current, next, watermark) = match volume.state {
            State::Encrypted => (4, 4, volume.size),
            State::Decrypted => (1, 1, 0),
            State::HalfWay { current, next, watermark } => (current, next, watermark),
        };
        let datums = self.datums();
        let mut block = Vec::with_capacity(HEADERS);
        block.extend(b"-FVE-FS-");
        for word in [0, if vista { 1u16 } else { 2 }, current, next] {
            block.extend(word.to_le_bytes());
        }
        block.extend(watermark.to_le_bytes());
        block.extend((if current == 2 { DIRTY_LOG as u32 } else { 0 }).to_le_bytes());
        let header = &self.layout.header;
        block.extend((((header.end - header.start) / volume.sector_size) as u32).to_le_bytes());
        self.layout.metadata.iter().for_each(|at| block.extend(at.to_le_bytes()));
        block.extend((if vista { MFT_MIRROR } else { header.start }).to_le_bytes());

        for number in [0u32, 1, 48, 0] {
            block.extend(number.to_le_bytes());
        }
        block.extend(self.guid);
        // The validation takes one more counter, and "next" is the one after that.
        let sealed = matches!(self.seal(), Seal::Under(_));
        block.extend((self.nonces.next() + u32::from(sealed)).to_le_bytes());
        let new = matches!(volume.kind, Kind::Windows8 | Kind::ToGo);
        block.extend(volume.method.number().to_le_bytes());
        block.extend((if new { volume.method.number() } else { 0 }).to_le_bytes());
        block.extend(TIME.to_le_bytes());
        set_datums(&mut block, &datums);
        block
    }

    fn datums(&mut self) -> Vec<Datum> {
        let volume = self.volume;
        let label = Datum::text(7, &volume.label);
        let protectors: Vec<_> = volume.protectors.iter().map(|protector| self.protector(protector)).collect();
        let header = self.header();
        let mut datums = match volume.kind {
            Kind::Vista => vec![label],
            Kind::Windows7 => vec![header.clone(), label],
            Kind::Windows8 | Kind::ToGo => vec![label],
        };
        datums.extend(protectors);
        if volume.state != State::Decrypted || !volume.protectors.is_empty() {
            datums.push(Datum::sealed(3, &self.vmk, &mut self.nonces, volume.method.number(), &self.fvek));
        }
        if matches!(volume.kind, Kind::Windows8 | Kind::ToGo) {
            datums.push(header);
        }
        datums.extend(volume.more_datums.iter().cloned());
        datums
    }

    /// The datum with the position of the header.
    fn header(&self) -> Datum {
        let Layout { header, spare, .. } = &self.layout;
        let volume = self.volume;
        let mut data = [header.start, header.end - header.start].map(u64::to_le_bytes).concat();
        if volume.tail {
            data.extend([5u16, 76].map(u16::to_le_bytes).concat());
            data.extend([0; 4]);
            let flags: u64 = match (volume.kind, volume.sector_size) {
                (Kind::ToGo, _) => 0x848,
                _ if volume.encrypt_on_write.is_some() => 0x4A,
                (_, 4096) => 0xB,
                _ => 0xA,
            };
            data.extend(flags.to_le_bytes());
            data.extend([0; 12]);
            let sector = volume.sector_size as u32;
            data.extend([sector, sector, 10, 0, 19045, 2, 0].map(u32::to_le_bytes).concat());
            data.extend([0x10, 1, 1, 2]);
            data.extend(spare.start.to_le_bytes());
            data.extend(0x1_0000u32.to_le_bytes());
            data.extend([0; 4]);
        }
        Datum::new(0xF, 0xF, data)
    }

    fn protector(&mut self, protector: &Protector) -> Datum {
        let guid: [u8; 16] = array(&mut self.random);
        let alone = self.volume.protectors.len() == 1;
        let (number, mut inner) = match protector {
            Protector::Password(text) => {
                self.unlocks.push(Unlock::Password(text.clone()));
                (0x2000u16, self.by_password(text))
            }
            Protector::Recovery(bytes) => {
                self.unlocks.push(Unlock::Recovery(recovery_text(bytes)));
                (0x0800, self.by_recovery(bytes))
            }
            Protector::StartupKey => (0x0200, self.by_startup_key(&guid)),
            Protector::ClearKey => {
                self.unlocks.push(Unlock::Clear);
                let key: [u8; 32] = array(&mut self.random);
                (0, vec![Datum::key(0x2000, &key), self.sealed_vmk(&key)])
            }
            Protector::Tpm { pin: None, startup_key: false } => {
                let secret = Datum { version: 0, ..Datum::key(0x2003, &self.vmk) }.bytes();
                let blob = self.tpm_blob();
                self.to_seal.push(ToSeal { secret, password: Vec::new(), startup_key: None });
                (0x0100, vec![blob])
            }
            Protector::Tpm { pin, startup_key } => {
                let number = 0x0100 | if pin.is_some() { 0x0400 } else { 0 } | if *startup_key { 0x0200 } else { 0 };
                (number, self.by_tpm(&guid, pin.as_deref(), *startup_key))
            }
            Protector::SmartCard => {
                let key: [u8; 32] = array(&mut self.random);
                let blob = Datum::new(0, 0xC, self.random.bytes(256));
                let using = Datum::with(0, 4, [0x06, 0x20, 0, 0], &[blob]);
                let certificate = Datum::new(0, 0xE, self.random.bytes(20));
                (0x1000, vec![using, certificate, self.sealed_vmk(&key)])
            }
        };
        if self.volume.unknown_property {
            inner.push(Datum::new(0, 0x7E, [1, 2, 3, 4]));
        }
        self.protectors.push(guid);
        let before = [&guid[..], &TIME.to_le_bytes(), &[0, 0], &number.to_le_bytes()].concat();
        let mut datum = Datum::with(2, 8, before, &inner);
        if *protector == Protector::ClearKey && alone {
            datum.version = 3;
        }
        datum
    }

    fn sealed_vmk(&mut self, key: &[u8; 32]) -> Datum {
        Datum::sealed(0, key, &mut self.nonces, 0x2003, &self.vmk)
    }

    fn by_password(&mut self, text: &str) -> Vec<Datum> {
        let salt = salt_of(text.as_bytes());
        let key = crypto::stretch(crypto::password_secret(text), salt);
        let copy = Datum::sealed(0, &self.vmk, &mut self.nonces, 0x2007, &key);
        vec![stretch_datum(0x1001, salt, &[copy]), self.sealed_vmk(&key)]
    }

    fn by_recovery(&mut self, bytes: &[u8; 16]) -> Vec<Datum> {
        let salt = salt_of(bytes);
        let key = crypto::stretch(crypto::sha256(bytes), salt);
        let old = matches!(self.volume.kind, Kind::Vista | Kind::Windows7);
        let role = if old { 0 } else { 0x12 };
        let mut copies = vec![Datum::sealed(role, &self.vmk, &mut self.nonces, 0x1000, bytes)];
        if !old {
            copies.push(Datum::sealed(0x13, &self.vmk, &mut self.nonces, 0x2008, &key));
        }
        let mut inner = vec![stretch_datum(0x1000, salt, &copies), self.sealed_vmk(&key)];
        if !old {
            let times = [TIME, TIME].map(u64::to_le_bytes).concat();
            inner.push(Datum::new(0, 0x15, [&times[..], &[8, 0, 2, 0]].concat()));
        }
        inner
    }

    /// The datums of a protector whose TPM releases an intermediate key, as in the metadata that en4rab/SPITkey shows.
    fn by_tpm(&mut self, guid: &[u8; 16], pin: Option<&str>, startup_key: bool) -> Vec<Datum> {
        let mut key: [u8; 32] = array(&mut self.random);
        let intermediate = Datum { version: 0, ..Datum::key(0x2000, &key) };
        let (mut inner, mut secret, mut password) = (Vec::new(), intermediate.bytes(), Vec::new());
        let number = |kind| Datum::new(0, kind, [0; 4]);
        if let Some(pin) = pin {
            let (salt, text) = (salt_of(pin.as_bytes()), b"BitLockerAuthData\0\0\0");
            let utf16: Vec<u8> = pin.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let stretched = crypto::stretch(crypto::password_secret(pin), salt);
            let kept = Datum::sealed(0, &self.vmk, &mut self.nonces, 0x2004, &crypto::sha256(&utf16));
            let before = [&[0x04, 0x20, 0x10, 0][..], &salt].concat();
            let name = if startup_key { "TPMAndPinAndStartupKey" } else { "TPMAndPin" };
            inner.extend([Datum::text(0, name), Datum::with(0, 3, before, &[kept]), number(0x10)]);
            inner.push(Datum::new(0, 0x12, *text));
            let sealed = Datum::sealed(0, &stretched, &mut self.nonces, 0x2000, &key);
            secret = Datum { version: 0, ..sealed }.bytes();
            password = crypto::sha256(&crypto::sha256(&[&stretched[..], text].concat()))[..20].to_vec();
        }
        inner.push(self.tpm_blob());
        inner.extend(pin.into_iter().flat_map(|_| [number(0x11), number(0x13)]));
        let mut file = None;
        if startup_key {
            let (of_file, name, contents) = self.startup_key(guid);
            let copy = Datum::sealed(0, &self.vmk, &mut self.nonces, 0x2002, &of_file);
            inner.push(Datum::with(0, 4, [0x02, 0x20, 0, 0], &[copy]));
            key.iter_mut().zip(of_file).for_each(|(byte, other)| *byte ^= other);
            file = Some((name, contents));
        }
        inner.push(self.sealed_vmk(&key));
        self.to_seal.push(ToSeal { secret, password, startup_key: file });
        inner
    }

    fn by_startup_key(&mut self, guid: &[u8; 16]) -> Vec<Datum> {
        let (key, name, file) = self.startup_key(guid);
        self.unlocks.push(Unlock::StartupKey(name, file));
        let copy = Datum::sealed(0, &self.vmk, &mut self.nonces, 0x2002, &key);
        vec![Datum::text(0, "ExternalKey"), Datum::with(0, 4, [0x02, 0x20, 0, 0], &[copy]), self.sealed_vmk(&key)]
    }

    /// A startup key, with the name and the contents of its file.
    fn startup_key(&mut self, guid: &[u8; 16]) -> ([u8; 32], String, Vec<u8>) {
        let key: [u8; 32] = array(&mut self.random);
        let mut inner = vec![Datum::text(0, "ExternalKey")];
        if self.volume.volume_in_startup_key {
            inner.push(Datum::new(0x19, 0x17, self.guid));
        }
        inner.push(Datum::key(0x2002, &key));
        let external = Datum::with(6, 9, [&guid[..], &TIME.to_le_bytes()].concat(), &inner).bytes();
        let size = 48 + external.len() as u32;
        let mut file = [size, 1, 48, size].map(u32::to_le_bytes).concat();
        file.extend(guid);
        file.extend([1u32, 0].map(u32::to_le_bytes).concat());
        file.extend(TIME.to_le_bytes());
        file.extend(external);
        (key, format!("{}.BEK", guid_text(guid).to_uppercase()), file)
    }

    fn tpm_blob(&mut self) -> Datum {
        let pcrs = 0x0000_0815u32.to_le_bytes();
        let noise = self.random.bytes(256);
        let blob = self.volume.tpm_blobs.get(self.to_seal.len()).cloned().unwrap_or(noise);
        Datum::new(0, 6, [&pcrs[..], &blob].concat())
    }

    /// Writes the boot sector over the image's first.
    fn boot(&self, image: &mut [u8]) {
        let sector = match self.volume.kind {
            Kind::Vista => {
                let mut sector: Vec<u8> = image[..512].to_vec();
                sector[3..11].copy_from_slice(b"-FVE-FS-");
                sector[56..64].copy_from_slice(&(self.layout.metadata[0] / CLUSTER).to_le_bytes());
                sector
            }
            Kind::Windows7 | Kind::Windows8 => self.boot_sector(),
            Kind::ToGo => {
                return super::discovery::write(
                    image,
                    self.layout.header.end - self.layout.header.start,
                    &self.layout.metadata,
                );
            }
        };
        image[..512].copy_from_slice(&sector);
    }

    fn boot_sector(&self) -> Vec<u8> {
        let mut sector = vec![0; 512];
        let mut put = |at: usize, bytes: &[u8]| sector[at..][..bytes.len()].copy_from_slice(bytes);
        put(0, b"\xeb\x58\x90-FVE-FS-");
        put(11, &(self.volume.sector_size as u16).to_le_bytes());
        put(13, &[(CLUSTER / self.volume.sector_size) as u8]);
        put(21, &[0xF8, 0, 0, 63, 0, 255, 0]);
        put(28, &2048u32.to_le_bytes());
        put(36, &0x1FE0u32.to_le_bytes());
        put(48, &[1, 0, 6, 0]);
        put(64, &[0x80, 0, 0x29]);
        put(71, b"NO NAME    FAT32   ");
        put(176, &self.layout.metadata.map(u64::to_le_bytes).concat());
        put(160, if self.layout.encrypt_on_write.is_some() { &eow::IDENTIFIER } else { &IDENTIFIER });
        if let Some(on_write) = &self.layout.encrypt_on_write {
            put(200, &on_write.information.map(u64::to_le_bytes).concat());
        }
        put(0x198, &[b'x'; 80]);
        put(0x1E8, &[0xFF; 19]);
        put(0x1FB, &[0, 0x1F, 0x2C, 0x55, 0xAA]);
        sector
    }
}

/// The cluster of the MFT's mirror, in boot sectors.
const MFT_MIRROR: u64 = 2;

/// An NTFS boot sector for the whole volume without the last sector, which is for its copy.
fn ntfs_boot_sector(volume: &Volume) -> [u8; 512] {
    let mut sector = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| sector[at..][..bytes.len()].copy_from_slice(bytes);
    put(0, b"\xeb\x52\x90NTFS    ");
    put(11, &(volume.sector_size as u16).to_le_bytes());
    put(13, &[(CLUSTER / volume.sector_size) as u8]);
    put(21, &[0xF8, 0, 0, 63, 0, 255, 0]);
    put(36, &[0x80, 0, 0x80, 0]);
    put(40, &(volume.size / volume.sector_size - 1).to_le_bytes());
    put(48, &4u64.to_le_bytes());
    put(56, &MFT_MIRROR.to_le_bytes());
    put(64, &[0xF6, 0, 0, 0, 1, 0, 0, 0]);
    put(510, &[0x55, 0xAA]);
    sector
}

fn stretch_datum(kind: u16, salt: [u8; 16], inner: &[Datum]) -> Datum {
    Datum::with(0, 3, [&kind.to_le_bytes()[..], &[0, 0], &salt].concat(), inner)
}

/// The same salt for the same secret, so a process stretches each secret only once.
fn salt_of(secret: &[u8]) -> [u8; 16] {
    *crypto::sha256(secret).first_chunk().expect("it is longer")
}

fn array<const N: usize>(random: &mut Random) -> [u8; N] {
    random.bytes(N).try_into().expect("as many as asked for")
}

fn range(of: &Range<u64>) -> Range<usize> {
    of.start as usize..of.end as usize
}

#[cfg(test)]
mod tests {
    use super::super::oracles::Writer;
    use super::*;

    /// A volume with a startup key: stretching a password would take each reader a second.
    fn keyed(kind: Kind) -> Volume {
        Volume { protectors: vec![Protector::StartupKey], ..Volume::new(kind) }
    }

    /// Makes the volume and expects that all readers agree on it.
    #[track_caller]
    fn read(volume: Volume) {
        let made = volume.make();
        assert!(made.expect_readers() > 0, "nobody reads {volume:?}");
    }

    #[test]
    fn volumes_of_each_method_are_read() {
        Method::ALL.into_iter().for_each(|method| read(Volume { method, ..keyed(Kind::Windows8) }));
    }

    #[test]
    fn volumes_of_each_kind_are_read() {
        [Kind::Vista, Kind::Windows7, Kind::ToGo].into_iter().for_each(|kind| read(keyed(kind)));
        let sector_size = 4096;
        read(Volume { sector_size, ..keyed(Kind::Windows8) });
        read(Volume { sector_size, method: Method::Cbc256, tail: false, ..keyed(Kind::Windows8) });
    }

    #[test]
    fn every_protector_opens() {
        let recoveries = [1, 2].map(|seed| Protector::Recovery(array(&mut Random::new(seed))));
        [Kind::Vista, Kind::ToGo].into_iter().for_each(|kind| read(Volume::new(kind)));
        let mut protectors = recoveries.to_vec();
        protectors.push(Protector::StartupKey);
        for kind in [Kind::Windows7, Kind::Windows8] {
            let password = Protector::Password(PASSWORD.into());
            read(Volume { protectors: [&protectors[..], &[password]].concat(), ..Volume::new(kind) });
        }
        protectors.insert(0, Protector::Password("pässwörter €".into()));
        let by_tpm = |pin: Option<&str>| Protector::Tpm { pin: pin.map(str::to_owned), startup_key: pin.is_some() };
        protectors.extend([Protector::SmartCard, by_tpm(None), by_tpm(Some("4711")), Protector::ClearKey]);
        read(Volume { protectors, volume_in_startup_key: true, ..Volume::new(Kind::Windows8) });
        read(Volume { protectors: vec![Protector::ClearKey], ..Volume::new(Kind::Windows8) });
    }

    #[test]
    fn volumes_in_each_state_are_read() {
        let windows8 = keyed(Kind::Windows8);
        for (current, next) in [(5, 4), (5, 1), (3, 4), (3, 1), (2, 4)] {
            // Before and after the relocated header.
            for watermark in [0x3_0000, 0xA_0000] {
                read(Volume { state: State::HalfWay { current, next, watermark }, ..windows8.clone() });
            }
        }
        read(Volume { state: State::Decrypted, protectors: Vec::new(), ..windows8.clone() });
        let unused = vec![0x2_0000..0x2_8000, 0xF_0000..0x10_0000];
        read(Volume { unused, ..windows8 });
    }

    #[test]
    fn volumes_encrypted_on_write_are_read() {
        let on_write =
            |plain: &[u64]| EncryptOnWrite { chunk: 0x1_0000, regions: 1, plain: plain.into(), under_way: None };
        let volume = |on_write| Volume { encrypt_on_write: Some(on_write), ..keyed(Kind::Windows8) };
        read(volume(on_write(&[])));
        // Whole bytes of the bitmap, and plaintext around the header at 0x50000.
        read(volume(on_write(&(0..8).collect::<Vec<_>>())));
        read(volume(on_write(&[3, 4, 9, 15])));
        read(volume(EncryptOnWrite { regions: 3, ..on_write(&[3, 4, 5, 11, 12, 15]) }));
        read(Volume { sector_size: 4096, ..volume(on_write(&[1, 9])) });
    }

    #[test]
    fn the_log_tells_which_sectors_are_converted() {
        for plain in [vec![], vec![9]] {
            let on_write = EncryptOnWrite { chunk: 0x1_0000, regions: 1, plain, under_way: Some((9, 40)) };
            let made = Volume { encrypt_on_write: Some(on_write), ..keyed(Kind::Windows8) }.make();
            let slot = made.layout.encrypt_on_write.as_ref().expect("it is").logs[0] as usize + 512 + 512 + 2048 + 512;
            assert_eq!(made.image[slot + 12..][..8], 0x9_0000u64.to_le_bytes());
            let logged = made.image[slot + 512..][..2048].chunks(16);
            let sectors = made.image[0x9_0000..0xA_0000].chunks(512);
            let converted: Vec<_> = sectors.zip(logged).map(|(now, before)| now[..16] != *before).collect();
            assert_eq!(converted, [[true; 40].as_slice(), &[false; 88]].concat());
        }
    }

    #[test]
    fn what_is_no_ntfs_is_read_by_those_who_need_none() {
        for kind in [Kind::Windows8, Kind::ToGo] {
            let mut contents = Random::new(5).bytes(0x3_0000);
            contents[..512].fill(0x5A);
            read(Volume { contents: Some(contents), ..keyed(kind) });
        }
    }

    #[test]
    fn what_others_write_others_read() {
        for (writer, method) in Writer::installed().into_iter().zip([Method::CbcElephant256, Method::Xts256]) {
            let recovery = *b"sixteen bytes it";
            let text = recovery_text(&recovery);
            let protectors = vec![Protector::Recovery(recovery)];
            let mut made = Volume { method, protectors, ..Volume::new(Kind::Windows8) }.make();
            let written = made.write();
            // Within a sector, and from the relocated header to the data after it: there dislocker 0.7.3 damages a
            // first sector that it writes only in part.
            for (at, len) in [(0x1_0123, 5), (0x1E00, 0x1400)] {
                let bytes = Random::new(at as u64).bytes(len);
                let wrote = writer.write_at(&written.image, Key::Recovery(&text), at as u64, &bytes);
                wrote.unwrap_or_else(|e| panic!("{writer:?} at {at:#x}: {e}"));
                made.plaintext[at..at + len].copy_from_slice(&bytes);
            }
            made.image = fs::read(&written.image).expect("it is there");
            assert!(made.expect_readers() > 0);
        }
    }

    #[test]
    fn what_nobody_knows_is_passed_over() {
        let more_datums = vec![Datum::new(0x55, 0x66, [7; 20])];
        read(Volume { more_datums, ..keyed(Kind::Windows8) });
        read(Volume { unknown_property: true, ..keyed(Kind::Windows8) });
    }
}

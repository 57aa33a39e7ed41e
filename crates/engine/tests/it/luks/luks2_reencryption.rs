//! Reencryption of LUKS2 volumes: what is there afterwards, what a crash or a fault at any write leaves, and what cryptsetup says.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{ConversionInUse, shared, while_used, written_after_a_fault, written_meanwhile};
use crate::torture::{Scenario, Verb};
use crate::volumes::key_process::Here;
use claviger_engine::formats::luks2::LUKS2;
use claviger_engine::formats::luks2::reencrypt::{
    self, Beginning, HeaderAndData, Reencryption, ReencryptionRequest, Resilience,
};
use claviger_engine::formats::{Format, HeaderAttributes, InPlaceStores, KeyProcesses, Unlocked, VolumeInUse};
use claviger_engine::key_process::volume::{KeylessLayout, Keys, proof};
use claviger_engine::key_process::{KeyProcess, PartAccess, StoredAccess};
use claviger_engine::spec::Cost;
use claviger_engine::store::{InUseConversion, MemoryStore, SliceStore};
use claviger_engine::{Advice, Credential, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CachedStore, CrashStore, Depth, Fault, FaultStore, Operation};

/// Where data begin in a volume with its header in front, and the size of a detached header, in bytes.
const FRONT: usize = 1 << 20;

/// Size of the header in front where the data make room for it, or move to its place, in bytes.
const SMALL_FRONT: usize = 256 << 10;

/// Size of a zone, in bytes.
const ZONE: u64 = 16 << 10;

/// Size of the data, in bytes: four zones.
const DATA: usize = 64 << 10;

/// The same where the data move: three zones, which are as long as the header.
const MOVING: usize = 3 * SMALL_FRONT;

/// A kind of re-encryption.
#[derive(Clone, Copy, Debug)]
enum Reencrypting {
    /// A new key, header in front; or from the end on.
    NewKey { backward: bool, resilience: &'static str },
    /// Plaintext into ciphertext with the header in a store of its own.
    EncryptDetached { resilience: &'static str },
    /// The other way round.
    DecryptDetached { resilience: &'static str },
    /// Plaintext into ciphertext with the header in front.
    EncryptInPlace,
    /// The other way round: the header moves to a store of its own.
    DecryptInPlace { resilience: &'static str },
}

const WAYS: [Reencrypting; 10] = [
    Reencrypting::NewKey { backward: false, resilience: "checksum" },
    Reencrypting::NewKey { backward: true, resilience: "checksum" },
    Reencrypting::NewKey { backward: false, resilience: "journal" },
    Reencrypting::NewKey { backward: false, resilience: "none" },
    Reencrypting::EncryptDetached { resilience: "checksum" },
    Reencrypting::EncryptDetached { resilience: "journal" },
    Reencrypting::DecryptDetached { resilience: "checksum" },
    Reencrypting::EncryptInPlace,
    Reencrypting::DecryptInPlace { resilience: "checksum" },
    Reencrypting::DecryptInPlace { resilience: "journal" },
];

/// What is also done while others use the volume.
const IN_USE: [Reencrypting; 7] = [
    Reencrypting::NewKey { backward: false, resilience: "checksum" },
    Reencrypting::NewKey { backward: true, resilience: "journal" },
    Reencrypting::EncryptDetached { resilience: "checksum" },
    Reencrypting::DecryptDetached { resilience: "checksum" },
    Reencrypting::DecryptDetached { resilience: "journal" },
    Reencrypting::EncryptInPlace,
    Reencrypting::DecryptInPlace { resilience: "checksum" },
];

const DECRYPT_IN_PLACE: Reencrypting = Reencrypting::DecryptInPlace { resilience: "checksum" };

fn passphrase() -> Credential {
    Credential::Passphrase(Secret::copy_from(b"correct horse"))
}

fn cheap() -> Cost<'static> {
    Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() }
}

/// Two stores in one, so that the order of writes to both is known: the header's first, if it has one of its own.
struct Bed {
    all: Arc<dyn Store>,
    header: usize,
}

impl Bed {
    fn new(all: Arc<dyn Store>, header: usize) -> Self {
        Self { all, header }
    }

    fn of(bytes: &[u8], header: usize) -> Self {
        Self::new(Arc::new(MemoryStore::new(bytes.to_vec())), header)
    }

    /// Whether the data move.
    fn moving(&self) -> bool {
        self.all.len() == (5 * SMALL_FRONT) as u64
    }

    /// The size of a zone, in bytes.
    fn zone(&self) -> u64 {
        if self.moving() { SMALL_FRONT as u64 } else { ZONE }
    }

    fn header(&self) -> Option<SliceStore> {
        let slice = || SliceStore::new(Arc::clone(&self.all), 0, self.header as u64).expect("it is there");
        (self.header > 0).then(slice)
    }

    fn data(&self) -> Arc<dyn Store> {
        let at = self.header as u64;
        Arc::new(SliceStore::new(Arc::clone(&self.all), at, self.all.len() - at).expect("it is there"))
    }

    /// Calls `with` with the header's and the data's store.
    fn with<T>(&self, with: impl FnOnce(HeaderAndData<'_>) -> T) -> T {
        let (header, data) = (self.header(), self.data());
        match &header {
            Some(header) => with(HeaderAndData::new(header, Some(&*data))),
            None => with(HeaderAndData::new(&*data, None)),
        }
    }

    fn unlocked(&self) -> Result<Unlocked> {
        let credentials = [passphrase()];
        let (header, data) = (self.header(), self.data());
        match header {
            Some(header) => {
                let header = shared(header);
                LUKS2.open_detached(&header, &data)?.unlock(&Unlock::with(&credentials))
            }
            None => LUKS2.open(&data)?.unlock(&Unlock::with(&credentials)),
        }
    }

    /// The plaintext as it is now, by opening the volume.
    fn plaintext(&self) -> Result<Vec<u8>> {
        let volume = Volume::new(self.data(), self.unlocked()?.layout);
        let mut plaintext = vec![0; volume.len() as usize];
        volume.read_at(0, &mut plaintext)?;
        Ok(plaintext)
    }

    fn request(&self, volume: &Volume) -> InUseConversion {
        InUseConversion { len: volume.len(), zone: Some(self.zone()), rate: None }
    }

    /// Converts the volume in use, as its header says.
    fn convert(&self, volume: &Volume) -> Result<()> {
        let (header, credentials) = (self.header().map(shared), [passphrase()]);
        let (with, never) = (Unlock::with(&credentials), AtomicBool::new(false));
        VolumeInUse::new(volume, header.as_ref()).convert(&with, &self.request(volume), &|_, _| {}, &never)
    }

    fn resume(&self) -> Result<()> {
        self.run(&AtomicBool::new(false), &|_, _| {})
    }

    fn run(&self, cancel: &AtomicBool, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let credentials = [passphrase()];
        self.with(|stores| {
            Reencryption::resume(stores, &Unlock::with(&credentials), Some(self.zone()))?.run(progress, cancel)
        })
    }
}

fn contents(len: usize) -> Vec<u8> {
    Random::new(7).bytes(len)
}

/// A volume with contents in it, of sectors of that size: where they begin, and how many there are.
fn volume(sector: u32, detached: bool, front: usize, len: usize) -> Vec<u8> {
    let header = if detached { front } else { 0 };
    let bed = Bed::of(&vec![0; front + len], header);
    let data = bed.data();
    let spec = Spec {
        quick: true,
        cost: cheap(),
        key_bits: Some(256),
        sector_size: Some(sector),
        data_offset: Some(if detached { 0 } else { front as u64 }),
        data: detached.then_some(&*data),
        ..Spec::default()
    };
    match bed.header() {
        Some(header) => LUKS2.create(&header, &spec, &[passphrase()]),
        None => LUKS2.create(&*data, &spec, &[passphrase()]),
    }
    .expect("a new volume");
    let volume = Volume::new(bed.data(), bed.unlocked().expect("it opens").layout);
    volume.write_clobbering(0, &mut contents(len)).expect("it is written");
    read_all(&*bed.all)
}

fn read_all(store: &dyn Store) -> Vec<u8> {
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("it is there");
    all
}

impl Reencrypting {
    /// The state before: bytes of both stores, and how many of them are the header's.
    fn before(self) -> (Vec<u8>, usize) {
        match self {
            Self::NewKey { .. } => (volume(self.sector(), false, FRONT, DATA), 0),
            Self::EncryptDetached { .. } => ([vec![0; FRONT], contents(DATA)].concat(), FRONT),
            Self::DecryptDetached { .. } => (volume(self.sector(), true, FRONT, DATA), FRONT),
            // The end is free, as a file system that was made smaller leaves it.
            Self::EncryptInPlace => ([contents(MOVING), vec![0; 2 * SMALL_FRONT]].concat(), 0),
            Self::DecryptInPlace { .. } => {
                ([vec![0; SMALL_FRONT], volume(self.sector(), false, SMALL_FRONT, MOVING)].concat(), SMALL_FRONT)
            }
        }
    }

    /// Bytes of a sector. A disk writes 512 of them whole or not at all: of more it may write a part.
    fn sector(self) -> u32 {
        if matches!(self, Self::NewKey { resilience: "journal", .. }) { 512 } else { 4096 }
    }

    /// The plaintext before and after.
    fn contents(self) -> Vec<u8> {
        match self {
            Self::EncryptInPlace | Self::DecryptInPlace { .. } => contents(MOVING),
            _ => contents(DATA),
        }
    }

    fn request(self) -> ReencryptionRequest<'static> {
        let (resilience, backward) = match self {
            Self::NewKey { backward, resilience } => (resilience, backward),
            Self::EncryptDetached { resilience }
            | Self::DecryptDetached { resilience }
            | Self::DecryptInPlace { resilience } => (resilience, false),
            Self::EncryptInPlace => ("checksum", false),
        };
        ReencryptionRequest { resilience: Some(resilience), backward, ..ReencryptionRequest::default() }
    }

    fn begin(self, bed: &Bed) -> Result<()> {
        let credentials = [passphrase()];
        let with = Unlock::with(&credentials);
        let request = self.request();
        let spec = Spec { cost: cheap(), key_bits: Some(256), sector_size: Some(self.sector()), ..Spec::default() };
        let carry_out = |stores: HeaderAndData<'_>, beginning: Beginning| beginning.edit.carry_out(stores.header);
        bed.with(|stores| match self {
            Self::NewKey { .. } => carry_out(stores, reencrypt::begin(&stores, &with, &request, false)?),
            Self::DecryptDetached { .. } => carry_out(stores, reencrypt::begin(&stores, &with, &request, true)?),
            Self::EncryptDetached { .. } => {
                let beginning = reencrypt::begin_detached_encryption(&stores, &spec, &credentials, &request)?;
                carry_out(stores, beginning)
            }
            Self::EncryptInPlace => {
                reencrypt::begin_encryption(stores.data, 2 * SMALL_FRONT as u64, &spec, &credentials, &request)
            }
            Self::DecryptInPlace { .. } => reencrypt::begin_decryption(stores.header, stores.data, &with, &request),
        })
    }

    /// Opens the volume, and begins it there.
    fn begin_in_use(self, bed: &Bed) -> Result<Volume> {
        // What only begins unmounted.
        let first = !matches!(self, Self::NewKey { .. } | Self::DecryptDetached { .. });
        if first {
            self.begin(bed)?;
        }
        let volume = Volume::new(bed.data(), bed.unlocked()?.layout);
        if !first {
            let (header, credentials) = (bed.header().map(shared), [passphrase()]);
            let in_use = VolumeInUse::new(&volume, header.as_ref());
            in_use.may_be_converted(&Unlock::with(&credentials), &bed.request(&volume))?;
            self.begin(bed)?;
        }
        Ok(volume)
    }

    /// Does it while others use the volume.
    fn in_use(self, bed: &Bed) -> Result<()> {
        let volume = self.begin_in_use(bed)?;
        while_used(&volume, &self.contents(), &|| bed.convert(&volume))
    }

    /// The plaintext when all is done.
    fn after(self, bed: &Bed) -> Vec<u8> {
        match self {
            Self::DecryptDetached { .. } | Self::DecryptInPlace { .. } => {
                read_all(&*bed.data())[..self.contents().len()].to_vec()
            }
            _ => bed.plaintext().expect("it opens")[..self.contents().len()].to_vec(),
        }
    }
}

#[test]
fn what_is_written_meanwhile_is_there() {
    for (resilience, backward, sector) in [("checksum", false, 4096), ("journal", true, 512), ("checksum", true, 512)] {
        let bed = Bed::of(&volume(sector, false, FRONT, 8 * DATA), 0);
        let volume = Volume::new(bed.data(), bed.unlocked().expect("it opens").layout);
        let new = ReencryptionRequest { resilience: Some(resilience), backward, ..ReencryptionRequest::default() };
        let expected = written_meanwhile(&volume, &contents(8 * DATA), &[], || {
            for _ in 0..5 {
                let credentials = [passphrase()];
                let begun = bed.with(|stores| {
                    let beginning = reencrypt::begin(&stores, &Unlock::with(&credentials), &new, false)?;
                    beginning.edit.carry_out(stores.header)
                });
                begun.and_then(|()| bed.convert(&volume)).expect("nothing fails");
            }
        });
        assert!(read_all(&volume) == expected, "in the volume in use");
        assert!(bed.plaintext().expect("it opens") == expected, "after opening it again");
    }
}

/// A detached header whose store notes what a power cut after each flush would leave of it, and of the data.
struct Snapshots {
    header: MemoryStore,
    data: Arc<CachedStore>,
    seen: Mutex<Vec<[Vec<u8>; 2]>>,
}

impl Store for Snapshots {
    fn len(&self) -> u64 {
        self.header.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.header.read_at(offset, out)
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.header.write_clobbering(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.seen.lock().expect("nobody panics").push([self.header.to_vec(), self.data.on_disk()]);
        Ok(())
    }
}

/// Bytes that a client wrote before, and did not flush: after a power cut there is the old block or the new one, and nothing else.
#[test]
fn a_power_cut_leaves_old_or_new_blocks_behind_a_detached_header() {
    let before = volume(4096, true, FRONT, DATA);
    let (old, new) = (contents(DATA), contents(DATA).iter().map(|byte| !byte).collect::<Vec<u8>>());
    let data = Arc::new(CachedStore::new(before[FRONT..].to_vec(), u64::MAX));
    let header = MemoryStore::new(before[..FRONT].to_vec());
    let snapshots = Arc::new(Snapshots { header, data: Arc::clone(&data), seen: Mutex::default() });
    let (header, data) = (Arc::clone(&snapshots) as Arc<dyn Store>, data as Arc<dyn Store>);
    let credentials = [passphrase()];
    let with = Unlock::with(&credentials);
    let opened = |header: &Arc<dyn Store>, data: &Arc<dyn Store>| {
        LUKS2.open_detached(header, data).and_then(|header| header.unlock(&with))
    };
    let volume = Volume::new(Arc::clone(&data), opened(&header, &data).expect("it opens").layout);
    volume.write_clobbering(0, &mut new.clone()).expect("it is written");
    let stores = HeaderAndData::new(&*header, Some(&*data));
    let begun = reencrypt::begin(&stores, &with, &ReencryptionRequest::default(), false).expect("it can begin");
    begun.edit.carry_out(&*header).expect("it begins");
    let request = InUseConversion { len: volume.len(), zone: Some(ZONE), rate: None };
    let in_use = VolumeInUse::new(&volume, Some(&header));
    in_use.convert(&with, &request, &|_, _| {}, &AtomicBool::new(false)).expect("nothing fails");
    let seen = snapshots.seen.lock().expect("nobody panics");
    for (number, [header, data]) in seen.iter().enumerate() {
        let [header, data] = [header, data].map(|bytes| shared(MemoryStore::new(bytes.clone())));
        let layout = opened(&header, &data).unwrap_or_else(|e| panic!("flush {number}: {e}")).layout;
        let now = read_all(&Volume::new(data, layout));
        let blocks = now.chunks(4096).zip(old.chunks(4096).zip(new.chunks(4096)));
        assert!(blocks.into_iter().all(|(now, (old, new))| now == old || now == new), "flush {number}");
    }
    assert!(seen.len() > 8, "{}", seen.len());
}

#[test]
fn what_is_written_after_a_fault_is_there() {
    for way in IN_USE {
        let (before, header) = way.before();
        let bed = |store: &Arc<dyn Store>| Bed::new(Arc::clone(store), header);
        written_after_a_fault(&ConversionInUse {
            name: &format!("{way:?}"),
            before: &before,
            contents: &way.contents(),
            reserved: &[],
            begin: &|store| way.begin_in_use(&bed(store)),
            convert: &|store, volume| bed(store).convert(volume),
            read: &|store| way.now(&bed(store)).unwrap_or_else(|e| panic!("{way:?}: {e}")),
            finish: &|store| drop(bed(store).resume()),
        });
    }
}

#[test]
fn every_way_comes_to_the_same_contents() {
    for way in WAYS {
        let (before, header) = way.before();
        let bed = Bed::of(&before, header);
        way.begin(&bed).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(
            bed.plaintext().unwrap_or_else(|e| panic!("{way:?}: {e}"))[..way.contents().len()] == way.contents(),
            "{way:?}: begun"
        );
        bed.resume().unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(way.after(&bed) == way.contents(), "{way:?}: done");
        let again = bed.resume().expect_err("it is done");
        assert!(matches!(again.kind, ErrorKind::Misuse(_)), "{way:?}: {again}");
    }
}

#[test]
fn every_way_comes_to_the_same_contents_in_use() {
    for way in IN_USE {
        let (before, header) = way.before();
        let bed = Bed::of(&before, header);
        way.in_use(&bed).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(way.after(&bed) == way.contents(), "{way:?}: done");
    }
}

/// A key process that another one may replace, and that ends after some requests.
struct Replaceable {
    now: Mutex<Arc<Here>>,
    left: AtomicUsize,
}

impl Replaceable {
    fn new(keys: Keys, left: usize) -> Self {
        Self { now: Mutex::new(Arc::new(Here(keys))), left: left.into() }
    }

    fn now(&self) -> io::Result<Arc<Here>> {
        let less = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .map_err(|_| io::Error::other("it has ended"))?;
        Ok(Arc::clone(&self.now.lock().expect("nobody panics")))
    }

    fn replace(&self, next: &Self) {
        *self.now.lock().expect("nobody panics") = Arc::clone(&next.now.lock().expect("nobody panics"));
        self.left.store(next.left.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

impl KeyProcess for Replaceable {
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        self.now()?.decrypt(segment, into, out, read)
    }

    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        self.now()?.encrypt(segment, into, data, write)
    }

    fn decrypt_tagged(
        &self,
        _segment: u32,
        _into: u64,
        _out: &mut [u8],
        _tags: usize,
        _read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn encrypt_tagged(
        &self,
        _segment: u32,
        _into: u64,
        _data: &[u8],
        _tags: usize,
        _write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Converts a volume whose keys are in a key process, after its beginning, with another key process that ends after `requests`.
fn convert_with_key_process(way: Reencrypting, bed: &Bed, requests: usize) -> Result<()> {
    let volume = way.begin_in_use(bed)?;
    let (layout, data, header) = (volume.layout(), bed.data(), bed.header().map(shared));
    let keyless = KeylessLayout::of(&layout, &*data)?;
    let current = Arc::new(Replaceable::new(Keys::of(&layout, true), usize::MAX));
    let handle: Arc<dyn KeyProcess> = Arc::<Replaceable>::clone(&current);
    let volume = Volume::new(Arc::clone(&data), keyless.clone().with_key_process(&handle, &*data)?);
    let in_use = VolumeInUse::new(&volume, header.as_ref());
    let by_keys = proof(&layout)?;
    assert!(in_use.is_opened_by(&keyless, &by_keys)?, "{way:?}");
    if !by_keys.is_empty() {
        assert!(!in_use.is_opened_by(&keyless, &vec![vec![0; by_keys[0].len()]; by_keys.len()])?, "{way:?}");
    }
    let stores = InPlaceStores { data: &data, header: header.as_ref() };
    let credentials = [passphrase()];
    let request = ReencryptionRequest { zone: Some(bed.zone()), ..ReencryptionRequest::default() };
    let converter = LUKS2.in_place_converter().expect("LUKS2 is converted in place");
    let (keyless, keys) = converter.conversion(stores, &Unlock::with(&credentials), None, &request)?.into_keys()?;
    let next = Arc::new(Replaceable::new(keys, requests));
    let key_processes = KeyProcesses {
        current: &handle,
        next: &(Arc::<Replaceable>::clone(&next) as Arc<dyn KeyProcess>),
        exchange: &mut || current.replace(&next),
    };
    let convert = |in_use: VolumeInUse<'_>| {
        in_use.convert_with_key_process(&keyless, key_processes, &|_, _| {}, &AtomicBool::new(false))
    };
    convert(in_use)?;
    current.left.store(usize::MAX, Ordering::SeqCst);
    assert!(read_all(&volume)[..way.contents().len()] == way.contents(), "{way:?}: in use");
    Ok(())
}

#[test]
fn a_key_process_that_ends_at_any_request_leaves_no_zone_half_rewritten() {
    for way in IN_USE {
        let (before, header) = way.before();
        let mut ended = 0;
        for requests in 0.. {
            let bed = Bed::of(&before, header);
            let Err(error) = convert_with_key_process(way, &bed, requests) else {
                assert!(way.after(&bed) == way.contents(), "{way:?}: done");
                break;
            };
            assert!(error.to_string().contains("it has ended"), "{way:?}: {error}");
            let layout = bed.unlocked().unwrap_or_else(|e| panic!("{way:?}: {e}")).layout;
            assert!(layout.segments().iter().all(|segment| segment.writable), "{way:?}: no zone is interrupted");
            assert!(bed.plaintext().expect("it opens")[..way.contents().len()] == way.contents(), "{way:?}: as it was");
            bed.resume().unwrap_or_else(|e| panic!("{way:?}: {e}"));
            assert!(way.after(&bed) == way.contents(), "{way:?}: resumed");
            ended += 1;
        }
        assert!(ended > 3, "{way:?}: {ended}");
    }
}

/// Without protection the zone is lost that was being rewritten, and no other.
#[test]
fn without_protection_a_crash_loses_one_zone_at_most() {
    let way = Reencrypting::NewKey { backward: false, resilience: "none" };
    let (before, header) = way.before();
    let crash = Arc::new(CrashStore::new(before));
    let bed = Bed::new(Arc::clone(&crash) as Arc<dyn Store>, header);
    way.begin(&bed).expect("it begins");
    bed.resume().expect("it ends");
    let mut lost = 0;
    crash.each_crash(Depth { exhaustive: 4, sampled: 4, seed: 1 }, |image| {
        let plaintext = Bed::of(image, header).plaintext().expect("it opens");
        let wrong = plaintext.iter().zip(&way.contents()).filter(|(a, b)| a != b).count();
        assert!(wrong <= ZONE as usize, "{wrong} bytes are wrong");
        lost += usize::from(wrong > 0);
    });
    assert!(lost > 5, "{lost}");
}

pub fn scenarios() -> Vec<Scenario> {
    // Without protection a zone may be lost, as the documentation says.
    let ways = WAYS.into_iter().filter(|way| !matches!(way, Reencrypting::NewKey { resilience: "none", .. }));
    let in_use = IN_USE.into_iter().map(|way| scenario(way, true));
    ways.map(|way| scenario(way, false)).chain(in_use).collect()
}

fn scenario(way: Reencrypting, in_use: bool) -> Scenario {
    let (before, header) = way.before();
    let bed = move |store: &Arc<dyn Store>| Bed::new(Arc::clone(store), header);
    Scenario {
        format: "LUKS2",
        verb: match way {
            Reencrypting::NewKey { .. } => Verb::Reencrypt,
            Reencrypting::EncryptDetached { .. } | Reencrypting::EncryptInPlace => Verb::Encrypt,
            Reencrypting::DecryptDetached { .. } | Reencrypting::DecryptInPlace { .. } => Verb::Decrypt,
        },
        name: format!("{way:?}{}", if in_use { " in use" } else { "" }),
        before,
        plaintext: Some(way.contents()),
        act: Box::new(move |store| {
            let bed = bed(store);
            if in_use {
                return way.in_use(&bed);
            }
            way.begin(&bed)?;
            bed.resume()
        }),
        read: Box::new(move |store| way.now(&bed(store))),
        finish: Box::new(move |store| way.finish(&bed(store))),
    }
}

impl Reencrypting {
    /// Reads the plaintext before, during or after it.
    fn now(self, bed: &Bed) -> Result<Vec<u8>> {
        let contents = self.contents();
        let cut = |mut bytes: Vec<u8>| {
            bytes.truncate(contents.len());
            bytes
        };
        let error = match bed.plaintext() {
            Ok(plaintext) => return Ok(cut(plaintext)),
            Err(e) => e,
        };
        let data = read_all(&*bed.data());
        match self {
            Self::NewKey { .. } => Err(error),
            // The header in front is not moved yet, or the data are in clear by now, or a part is in the journal of the detached header
            // alone: going on brings that back, as the error says.
            Self::DecryptInPlace { resilience } | Self::DecryptDetached { resilience } => {
                let copy = Bed::of(&read_all(&*bed.all), bed.header);
                if resilience == "journal" {
                    let _ = copy.resume();
                }
                let data = read_all(&*copy.data());
                Ok(cut(Bed::of(&data, 0).plaintext().unwrap_or(data)))
            }
            Self::EncryptDetached { .. } | Self::EncryptInPlace if data.starts_with(&contents) => Ok(contents),
            // The header or the journal is incomplete. Beginning once more completes it.
            Self::EncryptDetached { .. } | Self::EncryptInPlace => {
                let copy = Bed::of(&read_all(&*bed.all), bed.header);
                if self.begin(&copy).is_err() {
                    copy.resume()?;
                }
                copy.plaintext().map(cut)
            }
        }
    }

    /// Begins where nothing has begun, and continues. What is left of a new header in a file of its own is deleted, as the error says.
    fn finish(self, bed: &Bed) -> Result<()> {
        if bed.resume().is_ok() || self.is_done(bed) {
            return Ok(());
        }
        if let Err(error) = self.begin(bed) {
            let header = bed.header().filter(|_| error.to_string().contains("an interruption")).ok_or(error)?;
            header.write_clobbering(0, &mut vec![0; bed.header])?;
            self.begin(bed)?;
        }
        bed.resume()
    }

    /// Whether nothing is left to do. A new key may be made once more.
    fn is_done(self, bed: &Bed) -> bool {
        let plain = read_all(&*bed.data()).starts_with(&self.contents());
        match self {
            Self::NewKey { .. } => false,
            Self::EncryptDetached { .. } | Self::EncryptInPlace => !plain && bed.plaintext().is_ok(),
            Self::DecryptDetached { .. } | Self::DecryptInPlace { .. } => plain,
        }
    }
}

/// A copy of the header in front is where that moves to as long as nothing was copied over the header in front. Afterwards only the
/// record of the move tells such a file from a header backup.
#[test]
fn a_header_that_is_moving_is_told_from_a_backup() {
    let way = DECRYPT_IN_PLACE;
    let (before, header) = way.before();
    let front = &before[header..][..SMALL_FRONT];
    let mut image = before.clone();
    image[..header].copy_from_slice(front);
    let bed = Bed::of(&image, header);
    assert!(bed.with(|stores| reencrypt::moves_header(stores.header, stores.data)).expect("it can be read"));
    decrypt(&bed, way).expect("it is decrypted");
    assert!(way.after(&bed) == way.contents());

    // The first part of the data over the header; nothing but zeros, as on a blank disk; something else.
    let refused = |change: &dyn Fn(&mut [u8])| {
        let mut image = before.clone();
        image[..header].copy_from_slice(front);
        change(&mut image[header..]);
        let bed = Bed::of(&image, header);
        assert!(!bed.with(|stores| reencrypt::moves_header(stores.header, stores.data)).expect("it can be read"));
        assert!(misuse(way.begin(&bed)).contains("the file for the new header is not empty"));
        assert!(misuse(decrypt(&bed, DECRYPT_IN_PLACE)).contains("wrong position"));
        assert!(read_all(&*bed.all) == image, "nothing was written");
    };
    refused(&|data| data.copy_within(SMALL_FRONT..2 * SMALL_FRONT, 0));
    refused(&|data| data[..2 * SMALL_FRONT].fill(0));
    refused(&|data| data[100] ^= 1);
}

/// While the header moves the volume can be read by it, and not written: what continues copies what was there when it began.
#[test]
fn a_volume_whose_header_is_moving_is_read_only_and_goes_on_alone() {
    let way = DECRYPT_IN_PLACE;
    let (before, header) = way.before();
    let writes = {
        let counted = Arc::new(FaultStore::new(Arc::new(MemoryStore::new(before.clone())), None));
        way.begin(&Bed::new(Arc::clone(&counted) as Arc<dyn Store>, header)).expect("it begins");
        counted.count(Operation::Write)
    };
    // The copy over the header in front comes before the two copies of the header that know of it.
    let memory = Arc::new(MemoryStore::new(before));
    let fault = Fault { operation: Operation::Write, nth: writes - 3, for_good: true, transferred: SMALL_FRONT / 2 };
    let failing = FaultStore::new(Arc::clone(&memory) as Arc<dyn Store>, Some(fault));
    way.begin(&Bed::new(Arc::new(failing), header)).expect_err("it is interrupted");
    let bed = Bed::new(Arc::clone(&memory) as Arc<dyn Store>, header);
    let unlocked = bed.unlocked().expect("it opens");
    assert!(unlocked.warnings.iter().any(|w| w.what.contains("moving its header")), "{:?}", unlocked.warnings);
    let volume = Volume::new(bed.data(), unlocked.layout);
    assert!(!volume.writable() && bed.plaintext().expect("it can be read") == way.contents());

    // Data that have changed since, as on another disk, are not those that it is told of.
    let mut changed = read_all(&*memory);
    changed[header + SMALL_FRONT] ^= 1;
    let bed = Bed::of(&changed, header);
    assert!(misuse(decrypt(&bed, DECRYPT_IN_PLACE)).contains("wrong position"));
    assert!(read_all(&*bed.all) == changed, "nothing was written");

    let bed = Bed::new(memory, header);
    let credentials = [passphrase()];
    let new_key = bed.with(|stores| reencrypt::begin(&stores, &Unlock::with(&credentials), &way.request(), false));
    assert!(misuse(new_key).contains("is moving"));
    decrypt(&bed, way).expect("it goes on");
    assert!(way.after(&bed) == way.contents());
}

/// An old backup of the header, whose volume key may be another one by now, reencrypts nothing behind the header that counts.
#[test]
fn a_detached_header_is_not_used_behind_another() {
    let volume = volume(512, false, FRONT, DATA);
    let bed = Bed::of(&[&volume[..FRONT], &volume].concat(), FRONT);
    let credentials = [passphrase()];
    let (with, request) = (Unlock::with(&credentials), ReencryptionRequest::default());
    let data = bed.data();
    let attached = HeaderAndData::new(&*data, None);
    let begun = reencrypt::begin(&attached, &with, &request, false).expect("it can be begun");
    begun.edit.carry_out(&*data).expect("it begins");
    Reencryption::resume(attached, &with, Some(ZONE))
        .and_then(|it| it.run(&|_, _| {}, &AtomicBool::new(false)))
        .expect("it ends");
    let before = read_all(&*bed.all);
    let refused = misuse(bed.with(|stores| reencrypt::begin(&stores, &with, &request, false)));
    assert!(refused.contains("LUKS2 header in front"), "{refused}");
    assert!(read_all(&*bed.all) == before, "nothing was written");
}

/// Does what `claviger reencrypt --decrypt --header FILE` does, from the beginning or once more.
fn decrypt(bed: &Bed, way: Reencrypting) -> Result<()> {
    let credentials = [passphrase()];
    let (with, request) = (Unlock::with(&credentials), way.request());
    bed.with(|stores| {
        if reencrypt::moves_header(stores.header, stores.data)? {
            return reencrypt::begin_decryption(stores.header, stores.data, &with, &request);
        }
        match reencrypt::status(stores.header)? {
            Some(true) => Ok(()),
            _ => reencrypt::begin(&stores, &with, &request, true)?.edit.carry_out(stores.header),
        }
    })?;
    bed.resume()
}

/// The beginning of a decryption is interrupted at any write, and run again. With the header that the interruption has left, it
/// completes. With a new one it completes, too, or nothing is changed. No data are decrypted in their old place after the old header.
#[test]
fn a_decryption_whose_beginning_is_interrupted_is_run_again() {
    for resilience in ["checksum", "journal"] {
        interrupted_and_run_again(Reencrypting::DecryptInPlace { resilience });
    }
}

fn interrupted_and_run_again(way: Reencrypting) {
    let (before, header) = way.before();
    let crash = Arc::new(CrashStore::new(before));
    way.begin(&Bed::new(Arc::clone(&crash) as Arc<dyn Store>, header)).expect("it begins");
    let (mut seen, mut with_new) = (0, 0);
    crash.each_crash(Depth { exhaustive: 4, sampled: 12, seed: 6 }, |image| {
        seen += 1;
        let bed = Bed::of(image, header);
        decrypt(&bed, way).unwrap_or_else(|e| panic!("run again: {e}: {:?}", e.hint));
        assert!(way.after(&bed) == way.contents(), "run again");

        let mut fresh = image.to_vec();
        fresh[..header].fill(0);
        let bed = Bed::of(&fresh, header);
        match decrypt(&bed, way) {
            Ok(()) => {
                with_new += 1;
                assert!(way.after(&bed) == way.contents(), "with a new header");
            }
            Err(_) => assert!(read_all(&*bed.data()) == fresh[header..], "nothing was changed"),
        }
    });
    assert!(seen > 30 && with_new > 5, "{seen} images, {with_new} with a new header");
}

/// A backup of the header, older than the header in front of the data, is not where that header moves to, nor a detached header.
#[test]
fn an_older_header_backup_decrypts_nothing() {
    let (mut image, header) = DECRYPT_IN_PLACE.before();
    image.copy_within(header..2 * header, 0);
    let bed = Bed::of(&image, header);
    let data = bed.data();
    let to = HeaderAttributes { label: Some("changed since"), ..HeaderAttributes::default() };
    let changed = LUKS2.editor().expect("it has an editor").set(&*data, None, &to).expect("it can be changed");
    changed.edit.carry_out(&*data).expect("it is changed");
    let before = read_all(&*bed.all);
    let refused = misuse(decrypt(&bed, DECRYPT_IN_PLACE));
    assert!(refused.contains("wrong position"), "{refused}");
    assert!(read_all(&*bed.all) == before, "nothing was written");
    assert!(misuse(DECRYPT_IN_PLACE.begin(&bed)).contains("the file for the new header is not empty"));
    assert!(read_all(&*bed.all) == before, "nothing was written");
}

#[test]
fn a_new_header_goes_only_where_nothing_is() {
    for way in [Reencrypting::EncryptDetached { resilience: "checksum" }, DECRYPT_IN_PLACE] {
        let (mut image, header) = way.before();
        image[header - 1] = 1;
        let bed = Bed::of(&image, header);
        assert!(misuse(way.begin(&bed)).contains("the file for the new header is not empty"), "{way:?}");
        assert!(read_all(&*bed.all) == image, "{way:?}: nothing was written");
    }
}

/// A detached header, and data that are not its own: as far as it shows, nothing is read from them and nothing is written.
#[test]
fn other_data_are_refused_where_it_shows() {
    let other = |begun: bool, data: &dyn Fn(&mut [u8])| {
        let way = Reencrypting::DecryptDetached { resilience: "checksum" };
        let (before, header) = way.before();
        let bed = Bed::of(&before, header);
        if begun {
            way.begin(&bed).expect("it begins");
        }
        let mut image = read_all(&*bed.all);
        data(&mut image[header..]);
        let bed = Bed::of(&image, header);
        let refused = if begun { bed.resume() } else { way.begin(&bed) };
        assert!(read_all(&*bed.all) == image, "nothing was written");
        misuse(refused)
    };
    // The superblock of ext4: its mark, blocks, their size (Linux, Documentation/filesystems/ext4/super.rst).
    let ext = |data: &mut [u8]| {
        data[..4096].fill(0);
        data[1024..1032].copy_from_slice(&[16, 0, 0, 0, 64, 0, 0, 0]);
        data[1024 + 32..1024 + 36].copy_from_slice(&8192u32.to_le_bytes());
        data[1024 + 40..1024 + 44].copy_from_slice(&16u32.to_le_bytes());
        data[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    };
    let luks = |data: &mut [u8]| data[..4096].copy_from_slice(&volume(512, false, FRONT, DATA)[..4096]);
    for begun in [false, true] {
        for (what, refused) in [("ext", other(begun, &ext)), ("LUKS2", other(begun, &luks))] {
            assert!(refused.contains(what) && refused.contains("another volume"), "{begun}: {refused}");
        }
    }
}

fn misuse<T>(result: Result<T>) -> String {
    match result.map(|_| ()).expect_err("it is refused").kind {
        ErrorKind::Misuse(what) => what,
        other => panic!("{other}"),
    }
}

/// A disk that fails to take what is written, and a system that forgets it: it is read from memory as if it were on the disk, and the
/// next flush succeeds without it. Going on writes it once more, so that a crash after the end loses nothing.
#[test]
fn what_never_reached_the_disk_is_written_again() {
    for way in WAYS.into_iter().filter(|way| !matches!(way, Reencrypting::NewKey { resilience: "none", .. })) {
        let (before, header) = way.before();
        let goes_on =
            |bed: &Bed| bed.with(|stores| reencrypt::status(stores.header)).map(|status| status == Some(true));
        // From the beginning, or on from where an interruption has left it.
        let whole = |bed: &Bed| {
            if !goes_on(bed)? {
                if let (Reencrypting::EncryptDetached { .. }, Some(header)) = (way, bed.header()) {
                    // Keyslots without a header: the error says to delete that file, since the data are as they were.
                    header.write_clobbering(0, &mut vec![0; FRONT])?;
                }
                way.begin(bed)?;
            }
            bed.resume()
        };
        let counted = Arc::new(FaultStore::new(Arc::new(MemoryStore::new(before.clone())), None));
        let bed = Bed::new(Arc::clone(&counted) as Arc<dyn Store>, header);
        way.begin(&bed).expect("it begins");
        let first = counted.count(Operation::Flush);
        bed.resume().expect("it ends");
        for nth in 0..counted.count(Operation::Flush) {
            let cached = Arc::new(CachedStore::new(before.clone(), nth));
            let bed = Bed::new(Arc::clone(&cached) as Arc<dyn Store>, header);
            whole(&bed).expect_err("a flush fails");
            // Where the header says already that all is done, nobody continues.
            if nth < first || goes_on(&bed).expect("there is a header") {
                whole(&bed).unwrap_or_else(|e| panic!("{way:?}, flush {nth}: {e}"));
            }
            assert!(way.after(&Bed::of(&cached.on_disk(), header)) == way.contents(), "{way:?}, flush {nth}");
        }
    }
}

#[test]
fn it_stops_between_zones_and_goes_on_from_there() {
    for way in WAYS {
        let (before, header) = way.before();
        let bed = Bed::of(&before, header);
        way.begin(&bed).expect("it begins");
        for stop in 1..3u64 {
            let cancel = AtomicBool::new(false);
            let zones = std::sync::atomic::AtomicU64::new(0);
            let progress = |_, _| {
                if zones.fetch_add(1, Ordering::Relaxed) == 1 {
                    cancel.store(true, Ordering::Relaxed);
                }
            };
            let stopped = bed.run(&cancel, &progress).expect_err("it stops");
            assert!(matches!(stopped.kind, ErrorKind::Cancelled), "{way:?}: {stopped}");
            let unlocked = bed.unlocked().expect("it opens");
            assert!(
                unlocked.warnings.iter().any(|w| w.advice == Some(Advice::ResumeReencryption)),
                "{way:?}: {:?}",
                unlocked.warnings
            );
            let volume = Volume::new(bed.data(), unlocked.layout);
            // On both sides of the part that is being rewritten, the volume can be written.
            for at in (0..way.contents().len() as u64).step_by(5000) {
                volume.write_clobbering(at, &mut way.contents()[at as usize..][..100]).expect("it is written");
            }
            assert!(
                bed.plaintext().expect("it opens")[..way.contents().len()] == way.contents(),
                "{way:?} after zone {stop}"
            );
        }
        bed.resume().expect("it ends");
        assert!(way.after(&bed) == way.contents(), "{way:?}");
    }
}

#[test]
fn another_cipher_and_another_sector_size() {
    let credentials = [passphrase()];
    let bed = Bed::of(&volume(512, false, FRONT, DATA), 0);
    let begin = |request: &ReencryptionRequest<'_>| {
        bed.with(|stores| {
            reencrypt::begin(&stores, &Unlock::with(&credentials), request, false)?.edit.carry_out(stores.header)
        })
    };
    let request = ReencryptionRequest {
        cipher: Some("serpent"),
        key_bits: Some(256),
        sector_size: Some(4096),
        ..ReencryptionRequest::default()
    };
    begin(&request).expect("it begins");
    bed.resume().expect("it ends");
    let facts = bed.unlocked().expect("it opens").facts;
    assert_eq!((facts.cipher.as_str(), facts.sector_size, facts.key_bits), ("serpent", 4096, 256));
    begin(&ReencryptionRequest {
        cipher: Some("aes-xts-plain64"),
        sector_size: Some(512),
        ..ReencryptionRequest::default()
    })
    .expect("it begins");
    bed.resume().expect("it ends");
    assert_eq!(bed.unlocked().expect("it opens").facts.sector_size, 512);
    assert!(bed.plaintext().expect("it opens") == contents(DATA));

    for wrong in [
        ReencryptionRequest { sector_size: Some(100), ..ReencryptionRequest::default() },
        ReencryptionRequest { key_bits: Some(100), ..ReencryptionRequest::default() },
        ReencryptionRequest { cipher: Some("enigma"), ..ReencryptionRequest::default() },
        ReencryptionRequest { resilience: Some("hope"), ..ReencryptionRequest::default() },
        ReencryptionRequest { checksum: Some("crc"), ..ReencryptionRequest::default() },
    ] {
        let error = begin(&wrong).expect_err("it is refused");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    }
    assert!(bed.plaintext().expect("it opens") == contents(DATA));
}

/// One change of the metadata each, with a right checksum: what the state's digest or its own sense forbids.
/// A torn sector is put together again by its checksum where a part of it can be told without the rest. Where it cannot, a journal
/// keeps it whole.
#[test]
fn what_could_not_be_put_together_is_kept_whole() {
    let cases = [
        ("aes-xts-plain64", 4096, "checksum"),
        ("aes-cbc-essiv:sha256", 512, "checksum"),
        ("aes-cbc-essiv:sha256", 4096, "journal"),
        ("xchacha12,aes-adiantum-plain64", 4096, "journal"),
    ];
    for (cipher, sector_size, expected) in cases {
        let bed = Bed::of(&volume(512, false, FRONT, DATA), 0);
        let credentials = [passphrase()];
        let request = ReencryptionRequest {
            cipher: Some(cipher),
            sector_size: Some(sector_size),
            ..ReencryptionRequest::default()
        };
        let begun = bed.with(|stores| {
            let beginning = reencrypt::begin(&stores, &Unlock::with(&credentials), &request, false)?;
            beginning.edit.carry_out(stores.header)
        });
        begun.unwrap_or_else(|e| panic!("{cipher}: {e}"));
        let reencryption = bed.with(|stores| {
            Reencryption::resume(stores, &Unlock::with(&credentials), Some(ZONE)).map(|r| r.state().resilience)
        });
        let found = match reencryption.expect("it has begun") {
            Resilience::Checksum(_) => "checksum",
            Resilience::Journal => "journal",
            _ => "another",
        };
        assert_eq!(found, expected, "{cipher}");
        bed.resume().expect("it ends");
        assert!(bed.plaintext().expect("it opens")[..DATA] == contents(DATA), "{cipher}");
    }
}

#[test]
fn a_state_that_was_changed_without_the_keys_is_refused() {
    let way = Reencrypting::NewKey { backward: false, resilience: "checksum" };
    let (before, _) = way.before();
    let bed = Bed::of(&before, 0);
    way.begin(&bed).expect("it begins");
    let begun = read_all(&*bed.all);
    let changes: [(&str, &str, &str); 9] = [
        ("\"mode\":\"reencrypt\"", "\"mode\":\"decrypt\"", "segments"),
        ("\"mode\":\"reencrypt\"", "\"mode\":\"wish\"", "mode"),
        ("\"direction\":\"forward\"", "\"direction\":\"backward\"", "digests"),
        ("\"direction\":\"forward\"", "\"direction\":\"sideways\"", "direction"),
        ("\"type\":\"checksum\"", "\"type\":\"journal\"", "digests"),
        ("\"hash\":\"sha256\",\"sector_size\":4096", "\"hash\":\"sha1\",\"sector_size\":4096", "digests"),
        ("\"hash\":\"sha256\",\"sector_size\":4096", "\"hash\":\"sha256\",\"sector_size\":4097", "sector_size"),
        ("backup-previous", "backup-previouz", "segments"),
        (
            "aes-xts-plain64\",\"sector_size\":4096,\"flags\":[\"backup-final",
            "aes-xts-plain\",\"sector_size\":4096,\"flags\":[\"backup-final",
            "",
        ),
    ];
    for (from, to, field) in changes {
        let mangled = with_metadata(&begun, |json| {
            assert!(json.contains(from), "{from} in {json}");
            json.replacen(from, to, 1)
        });
        let bed = Bed::of(&mangled, 0);
        for error in [bed.unlocked().map(|_| ()).expect_err("it is refused"), bed.resume().expect_err("it is refused")]
        {
            match &error.kind {
                ErrorKind::Malformed { field: found, .. } => {
                    assert!(field.is_empty() || *found == field, "{to}: {error}")
                }
                ErrorKind::Unsupported { .. } => assert!(field.is_empty(), "{to}: {error}"),
                _ => panic!("{to}: {error}"),
            }
        }
        assert!(read_all(&*bed.all) == mangled, "{to}: nothing was written");
    }
}

/// The same header with other metadata, in both copies.
fn with_metadata(image: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    const SIZE: usize = 16 << 10;
    let mut image = image.to_vec();
    for at in [0, SIZE] {
        let copy = &mut image[at..][..SIZE];
        let end = copy[4096..].iter().position(|b| *b == 0).expect("zeros follow") + 4096;
        let json = change(std::str::from_utf8(&copy[4096..end]).expect("text"));
        copy[4096..].fill(0);
        copy[4096..][..json.len()].copy_from_slice(json.as_bytes());
        copy[448..512].fill(0);
        let mut sum = [0; 32];
        claviger_crypto::hash::SHA256.digest(&[copy], &mut sum);
        copy[448..480].copy_from_slice(&sum);
    }
    image
}

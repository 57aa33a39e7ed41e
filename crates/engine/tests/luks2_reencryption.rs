//! Reencryption of LUKS2 volumes: what is there afterwards, what a crash or a fault at any write leaves, and what cryptsetup says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use claviger_engine::formats::luks2::LUKS2;
use claviger_engine::formats::luks2::reencrypt::{self, Beginning, Reencryption, Request, Stores};
use claviger_engine::formats::{Format, Unlocked};
use claviger_engine::spec::Cost;
use claviger_engine::store::{MemoryStore, SliceStore};
use claviger_engine::{Credential, Error, ErrorKind, Result, Secret, Spec, Store, Unlock, Volume};
use claviger_testkit::random::Random;
use claviger_testkit::stores::{CrashStore, Fault, FaultStore, Operation};

/// Where data begin in a volume with its header in front, and the size of a detached header, in bytes.
const FRONT: usize = 1 << 20;

/// Size of a zone, in bytes.
const ZONE: u64 = 16 << 10;

/// Size of the data, in bytes: four zones.
const DATA: usize = 64 << 10;

/// What is done to the volume, in one of the ways that there are.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A new key, header in front; or from the end on.
    NewKey { backward: bool, resilience: &'static str },
    /// Plaintext into ciphertext with the header in a store of its own.
    EncryptDetached { resilience: &'static str },
    /// The other way round.
    DecryptDetached { resilience: &'static str },
    /// Plaintext into ciphertext with the header in front.
    EncryptInPlace,
    /// The other way round: the header moves to a store of its own.
    DecryptInPlace,
}

const WAYS: [Way; 9] = [
    Way::NewKey { backward: false, resilience: "checksum" },
    Way::NewKey { backward: true, resilience: "checksum" },
    Way::NewKey { backward: false, resilience: "journal" },
    Way::NewKey { backward: false, resilience: "none" },
    Way::EncryptDetached { resilience: "checksum" },
    Way::EncryptDetached { resilience: "journal" },
    Way::DecryptDetached { resilience: "checksum" },
    Way::EncryptInPlace,
    Way::DecryptInPlace,
];

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

    fn header(&self) -> Option<SliceStore> {
        let slice = || SliceStore::new(Arc::clone(&self.all), 0, self.header as u64).expect("it is there");
        (self.header > 0).then(slice)
    }

    fn data(&self) -> Arc<dyn Store> {
        let at = self.header as u64;
        Arc::new(SliceStore::new(Arc::clone(&self.all), at, self.all.len() - at).expect("it is there"))
    }

    /// Calls `with` with the header's and the data's store.
    fn with<T>(&self, with: impl FnOnce(Stores<'_>) -> T) -> T {
        let (header, data) = (self.header(), self.data());
        match &header {
            Some(header) => with(Stores::new(header, Some(&*data))),
            None => with(Stores::new(&*data, None)),
        }
    }

    fn unlocked(&self) -> Result<Unlocked> {
        let credentials = [passphrase()];
        let (header, data) = (self.header(), self.data());
        match &header {
            Some(header) => {
                let with = Unlock { data: Some(&*data), ..Unlock::with(&credentials) };
                LUKS2.open(header)?.unlock(header, &with)
            }
            None => LUKS2.open(&*data)?.unlock(&*data, &Unlock::with(&credentials)),
        }
    }

    /// The plaintext as it is now, by opening the volume.
    fn plaintext(&self) -> Result<Vec<u8>> {
        let volume = Volume::new(self.data(), self.unlocked()?.layout);
        let mut plaintext = vec![0; volume.len() as usize];
        volume.read_at(0, &mut plaintext)?;
        Ok(plaintext)
    }

    fn resume(&self) -> Result<()> {
        self.run(&AtomicBool::new(false), &|_, _| {})
    }

    fn run(&self, cancel: &AtomicBool, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let credentials = [passphrase()];
        self.with(|stores| Reencryption::resume(stores, &Unlock::with(&credentials), Some(ZONE))?.run(progress, cancel))
    }
}

fn contents() -> Vec<u8> {
    Random::new(7).bytes(DATA)
}

/// A volume with `contents` in it, of sectors of 512 bytes.
fn volume(detached: bool) -> Vec<u8> {
    let header = if detached { FRONT } else { 0 };
    let bed = Bed::of(&vec![0; FRONT + DATA], header);
    let data = bed.data();
    let spec = Spec {
        quick: true,
        cost: cheap(),
        key_bits: Some(256),
        sector_size: Some(512),
        data_offset: Some(if detached { 0 } else { FRONT as u64 }),
        data: detached.then_some(&*data),
        ..Spec::default()
    };
    match bed.header() {
        Some(header) => LUKS2.create(&header, &spec, &[passphrase()]),
        None => LUKS2.create(&*data, &spec, &[passphrase()]),
    }
    .expect("a new volume");
    let volume = Volume::new(bed.data(), bed.unlocked().expect("it opens").layout);
    volume.write_at(0, &mut contents()).expect("it is written");
    read_all(&*bed.all)
}

fn read_all(store: &dyn Store) -> Vec<u8> {
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("it is there");
    all
}

impl Way {
    /// What is there before: bytes of both stores, and how many of them are the header's.
    fn before(self) -> (Vec<u8>, usize) {
        match self {
            Self::NewKey { .. } => (volume(false), 0),
            Self::EncryptDetached { .. } => ([vec![0; FRONT], contents()].concat(), FRONT),
            Self::DecryptDetached { .. } => (volume(true), FRONT),
            // The end is free, as a file system that was made smaller leaves it.
            Self::EncryptInPlace => ([contents(), vec![0; 4 << 20]].concat(), 0),
            Self::DecryptInPlace => ([vec![0; FRONT], volume(false)].concat(), FRONT),
        }
    }

    fn request(self) -> Request<'static> {
        let (resilience, backward) = match self {
            Self::NewKey { backward, resilience } => (resilience, backward),
            Self::EncryptDetached { resilience } | Self::DecryptDetached { resilience } => (resilience, false),
            Self::EncryptInPlace | Self::DecryptInPlace => ("checksum", false),
        };
        Request { resilience: Some(resilience), backward, ..Request::default() }
    }

    fn begin(self, bed: &Bed) -> Result<()> {
        let credentials = [passphrase()];
        let with = Unlock::with(&credentials);
        let request = self.request();
        let spec = Spec { cost: cheap(), key_bits: Some(256), sector_size: Some(512), ..Spec::default() };
        let carry_out = |stores: Stores<'_>, beginning: Beginning| beginning.edit.carry_out(stores.header);
        bed.with(|stores| match self {
            Self::NewKey { .. } => carry_out(stores, reencrypt::begin(&stores, &with, &request, false)?),
            Self::DecryptDetached { .. } => carry_out(stores, reencrypt::begin(&stores, &with, &request, true)?),
            Self::EncryptDetached { .. } => {
                let beginning = reencrypt::begin_detached_encryption(&stores, &spec, &credentials, &request)?;
                carry_out(stores, beginning)
            }
            Self::EncryptInPlace => reencrypt::begin_encryption(stores.data, 4 << 20, &spec, &credentials, &request),
            Self::DecryptInPlace => reencrypt::begin_decryption(stores.header, stores.data, &with, &request),
        })
    }

    /// The plaintext when all is done.
    fn after(self, bed: &Bed) -> Vec<u8> {
        match self {
            Self::DecryptDetached { .. } | Self::DecryptInPlace => read_all(&*bed.data())[..DATA].to_vec(),
            _ => bed.plaintext().expect("it opens")[..DATA].to_vec(),
        }
    }
}

#[test]
fn every_way_comes_to_the_same_contents() {
    for way in WAYS {
        let (before, header) = way.before();
        let bed = Bed::of(&before, header);
        way.begin(&bed).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(bed.plaintext().unwrap_or_else(|e| panic!("{way:?}: {e}"))[..DATA] == contents(), "{way:?}: begun");
        bed.resume().unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(way.after(&bed) == contents(), "{way:?}: done");
        let again = bed.resume().expect_err("it is done");
        assert!(matches!(again.kind, ErrorKind::Misuse(_)), "{way:?}: {again}");
    }
}

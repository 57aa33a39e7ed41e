//! Opening a volume costs what its header costs, however large the volume is.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::support::passphrase;
use claviger_engine::credential::Headerless;
use claviger_engine::formats::{Format, loopaes};
use claviger_engine::spec::Cost;
use claviger_engine::{Credential, FORMATS, Opening, Spec, Store, Unlock};

/// VeraCrypt takes no shorter one with a derivation that costs little.
const LONG: &str = "a passphrase that is long enough";

const SMALL: u64 = 64 << 20;
const VAST: u64 = 100_000_000_000_000 / 4096 * 4096;

/// A disk of any size that holds only what was written to it. It counts what is read.
struct Sparse {
    len: u64,
    pages: Mutex<HashMap<u64, Box<[u8; PAGE]>>>,
    read: AtomicU64,
}

const PAGE: usize = 4096;

impl Sparse {
    fn new(len: u64) -> Arc<Self> {
        Arc::new(Self { len, pages: Mutex::default(), read: AtomicU64::new(0) })
    }

    /// Bytes read since the last call.
    fn taken(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }

    fn inside(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len);
        end.map(drop).ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

impl Store for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inside(offset, out.len())?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, byte) in (offset..).zip(out) {
            *byte = pages.get(&(at / PAGE as u64)).map_or(0, |page| page[at as usize % PAGE]);
        }
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.inside(offset, data.len())?;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, byte) in (offset..).zip(data) {
            pages.entry(at / PAGE as u64).or_insert_with(|| Box::new([0; PAGE]))[at as usize % PAGE] = *byte;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that are read to open a volume of `len` bytes by its password, and to read a sector in its middle then. `None` for a format
/// that volumes cannot be made of.
fn opening(format: &'static dyn Format, len: u64) -> Option<[u64; 2]> {
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let plain = Spec { quick: true, ..Spec::default() };
    let (spec, credential) = match format.name() {
        "TrueCrypt" | "BitLocker" => (plain, passphrase(LONG)),
        "VeraCrypt" => (Spec { pim: Some(1), ..plain }, passphrase(LONG)),
        "LUKS1" | "LUKS2" => (Spec { cost, key_bits: Some(256), ..plain }, passphrase(LONG)),
        "loop-AES" => (plain, Credential::Keyfile(loopaes::new_keyfile().expect("random bytes"))),
        _ => (Spec { key_bits: Some(256), ..plain }, passphrase(LONG)),
    };
    let store = Sparse::new(len);
    let credentials = [credential];
    if let Err(e) = format.create(&*store, &spec, &credentials) {
        assert!(
            matches!(format.name(), "cryptoloop" | "FileVault2" | "DMG" | "dm-integrity"),
            "{} of {len} bytes: {e}",
            format.name()
        );
        return None;
    }
    store.taken();
    let headerless = Headerless { key_bits: format.headerless().then_some(256), ..Headerless::default() };
    let with = Unlock { pim: spec.pim, headerless, ..Unlock::with(&credentials) };
    // A format without a header has to be named.
    let named = format.headerless().then(|| format.name());
    let locked = Opening::store(Arc::clone(&store) as Arc<dyn Store>).format(named).find().expect("a header");
    let volume = locked.unlock(&with).expect("it opens").bytes().expect("bytes").volume;
    let opened = store.taken();
    assert!(volume.len() > len / 2, "{}: {} of {len}", format.name(), volume.len());
    volume.read_at(volume.len() / 8192 * 4096, &mut [0; 4096]).expect("read");
    Some([opened, store.taken()])
}

#[test]
fn a_volume_of_100_terabytes_opens_as_a_small_one_does() {
    let mut compared = 0;
    for format in FORMATS {
        let Some(small) = opening(*format, SMALL) else { continue };
        let vast = opening(*format, VAST).expect("as before");
        eprintln!("{}: {small:?} and {vast:?} bytes", format.name());
        assert_eq!(small, vast, "{}", format.name());
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

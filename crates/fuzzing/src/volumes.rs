//! Volumes with valid checksums and known keys around the fuzzed part. Volumes that open are read and written.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::modes::{Xts, xts};
use claviger_engine::formats::{bitlocker, luks2};
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::key_process::{KeyProcess, PartAccess, StoredAccess};
use claviger_engine::volume::Mapping;
use claviger_engine::{
    Acceleration, Credential, Error, ErrorKind, Format, Layout, Payload, Secret, Segment, Store, Unlock, Volume,
};
use claviger_testkit::bitlocker::maker::{Made, State};
use claviger_testkit::bitlocker::metadata::{HEADERS, Nonces, Seal, validation};

use crate::corpus::{self, KEY};

/// Time limit for key derivations requested by a header; longer ones are cancelled.
const PATIENCE: Duration = Duration::from_millis(50);

/// A store of any size that holds little data: `base`, and parts that overlay it at their offsets. The rest is zeros,
/// and writes are discarded.
#[derive(Clone, Default)]
pub struct Sparse {
    pub base: &'static [u8],
    pub over: Vec<(u64, Vec<u8>)>,
    pub len: u64,
}

impl Sparse {
    /// A store with `bytes`, followed by zeros up to `len`.
    pub fn beginning(bytes: &[u8], len: u64) -> Arc<dyn Store> {
        let len = len.max(bytes.len() as u64);
        Arc::new(Self { over: vec![(0, bytes.to_vec())], len, ..Self::default() })
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        if inside { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Store for Sparse {
    fn len(&self) -> u64 {
        self.len
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(offset, out.len())?;
        out.fill(0);
        let end = offset + out.len() as u64;
        let over = self.over.iter().map(|(at, bytes)| (*at, &bytes[..]));
        for (at, bytes) in [(0, self.base)].into_iter().chain(over) {
            let (from, to) = (offset.max(at), end.min(at + bytes.len() as u64));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.check(offset, data.len())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a header, describes it, and tries to open it by a passphrase without a derivation, by keys, and by nothing.
/// Uses every volume that opens, and returns their number.
pub fn open(format: &dyn Format, store: &Arc<dyn Store>) -> usize {
    let _ = format.identify(&**store);
    let Ok(header) = format.open(store) else { return 0 };
    let _ = header.describe();
    let cancel = AtomicBool::new(true);
    let passphrase = [Credential::Passphrase(Secret::copy_from(b"x"))];
    let typed = Unlock { cancel: Some(&cancel), ..Unlock::with(&passphrase) };
    let _ = header.effort(&typed);
    let _ = header.unlock(&typed);
    let may_take = |time| if time > PATIENCE { Err(Error::from(ErrorKind::Cancelled)) } else { Ok(()) };
    let keys = [32, KEY.len()].map(|len| vec![Credential::VolumeKey(Secret::copy_from(&KEY[..len]))]);
    let mut opened = 0;
    for credentials in keys.into_iter().chain([Vec::new()]) {
        let with = Unlock { may_take: Some(&may_take), for_kernel: true, ..Unlock::with(&credentials) };
        let Ok(unlocked) = header.unlock(&with) else { continue };
        let _ = Mapping::of(&unlocked.layout);
        exercise(&Volume::new(store.clone(), unlocked.layout));
        opened += 1;
    }
    opened
}

/// Reads and writes at both ends and in the middle, with unaligned bounds.
fn exercise(volume: &Volume) {
    let mut some = [0; 1500];
    let some = &mut some[..volume.len().min(1500) as usize];
    let last = volume.len() - some.len() as u64;
    for at in [0, last / 2, last] {
        let _ = volume.read_at(at, some);
        let _ = volume.write_clobbering(at, some);
    }
}

/// A volume with this JSON in both copies of its header; the rest is from a volume with tags.
pub fn luks2_json(json: &[u8]) -> usize {
    /// Size of a header copy, and of the part before its JSON.
    const COPY: usize = 16 << 10;
    const BINARY: usize = 4 << 10;
    static VOLUME: LazyLock<Vec<u8>> = LazyLock::new(|| corpus::luks2().swap_remove(1));
    let mut headers = VOLUME[..2 * COPY].to_vec();
    for copy in headers.as_chunks_mut::<COPY>().0 {
        let area = &mut copy[BINARY..];
        // The JSON ends with a zero byte.
        let len = json.len().min(area.len() - 1);
        area.fill(0);
        area[..len].copy_from_slice(&json[..len]);
    }
    corpus::seal_luks2(&mut headers);
    let store: Arc<dyn Store> = Arc::new(Sparse { base: &VOLUME, over: vec![(0, headers)], len: 2 << 20 });
    open(&luks2::LUKS2, &store)
}

/// A volume without a password, chosen by the first byte, with the remaining bytes as its metadata. The block's size
/// and CRC are valid, and its hash is sealed under the right key.
pub fn bitlocker_block(bytes: &[u8]) -> usize {
    const MOST: usize = 8 << 10;
    static VOLUMES: LazyLock<Vec<Made>> = LazyLock::new(corpus::bitlocker_volumes);
    let Some((which, block)) = bytes.split_first() else { return 0 };
    let made = &VOLUMES[usize::from(*which) % VOLUMES.len()];
    let mut block = block[..block.len().min(MOST)].to_vec();
    block.resize(block.len().max(HEADERS).next_multiple_of(16), 0);
    block[..8].copy_from_slice(b"-FVE-FS-");
    let unit = if block[10] == 1 { 1 } else { 16 };
    let size = (block.len() / unit) as u16;
    block[8..10].copy_from_slice(&size.to_le_bytes());
    let seal = match made.volume.state {
        _ if block[10] == 1 => Seal::None,
        State::Decrypted => Seal::Clear,
        _ => Seal::Under(made.vmk),
    };
    let area = made.layout.metadata_len as usize;
    let behind = validation(&block, &block, area, seal, &mut Nonces::from(0x1_0000));
    block.extend(behind);
    let over = made.layout.metadata.map(|at| (at, block.clone())).to_vec();
    let store: Arc<dyn Store> = Arc::new(Sparse { base: &made.image, over, len: made.volume.size });
    open(&bitlocker::BITLOCKER, &store)
}

/// Accepts every request, and changes nothing.
struct Idle;

impl KeyProcess for Idle {
    fn decrypt(&self, _: u32, _: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        read(0, out)
    }
    fn encrypt(&self, _: u32, _: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        write(0, data)
    }
    fn decrypt_tagged(
        &self,
        _: u32,
        _: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        let mut all = vec![0; out.len() + tags];
        read(&mut all)?;
        out.copy_from_slice(&all[..out.len()]);
        Ok(None)
    }
    fn encrypt_tagged(&self, _: u32, _: u64, data: &[u8], tags: usize, write: &mut StoredAccess<'_>) -> io::Result<()> {
        let mut all = data.to_vec();
        all.resize(data.len() + tags, 0);
        write(&mut all)
    }
}

/// An encrypted volume of `len` bytes, in a store of `stored` bytes.
pub fn encrypted(len: u64, stored: u64) -> Volume {
    let data = AES.with_key(&[7; 32], Acceleration::On);
    let tweak = AES.with_key(&[8; 32], Acceleration::On);
    let cipher = Arc::new(Xts::new(vec![xts::Layer { data, tweak }], 512));
    let segment = Segment { at: 0, len, stored_at: 0, payload: Payload::crypt(cipher, 0), writable: true };
    let store = Arc::new(Sparse { len: stored, ..Sparse::default() });
    Volume::new(store, Layout::new(vec![segment]).expect("it fits"))
}

/// A key process's description of a layout, as JSON, over a store of 1 MiB.
pub fn outline(json: &[u8]) {
    let Ok(outline) = serde_json::from_slice::<KeylessLayout>(json) else { return };
    let store = Sparse::beginning(&corpus::integrity()[0], 1 << 20);
    let key_process: Arc<dyn KeyProcess> = Arc::new(Idle);
    let Ok(layout) = outline.with_key_process(&key_process, &*store) else { return };
    // This process has no keys.
    assert!((0..4).all(|segment| Keys::of(&layout, true).range(true, segment, 0, 512).is_err()));
    exercise(&Volume::new(store, layout));
}

//! A volume: a store whose bytes are the plaintext of another store.

mod align;
mod authenticated;
mod current;
mod flushing;
pub mod integrity;
mod kernel;
mod late;
mod layout;
mod sealed;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLockReadGuard};

use claviger_crypto::SectorCipher;
use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::secret::wipe_after_sectors;

use crate::key_process::KeyHandle;
use crate::shards::{Shards, SharedLock};
use crate::store::{Growth, Store, check_range};
use align::Cut;
use authenticated::{Authenticated, TagKey};
pub(crate) use current::Closed;
use current::{Access, CurrentLayout};
use flushing::Flushing;
pub use kernel::{KernelCipher, MappedPart, Mapping};
use late::Late;
pub use layout::{Layout, Payload, Segment};
pub(crate) use sealed::plain_size;
pub use sealed::{BlockSealing, SealedBlocks, SealedLayout, Sealing};

/// Bytes read and then decrypted at a time, small enough for the L2 cache.
const CHUNK: usize = 128 << 10;

/// A lone request of at least this many bytes is split over idle threads. Below that, waking a thread costs more than it saves.
pub const SPLIT: usize = 1 << 20;

/// The plaintext of a layout over a store.
///
/// A request may have any offset and length. If it begins or ends inside a sector, that sector is read, changed and written back.
/// Everything else is encrypted and decrypted in the caller's buffer.
pub struct Volume {
    store: Arc<dyn Store>,
    layout: CurrentLayout,
    /// The size in bytes: the layout's, or more if it has grown since.
    len: AtomicU64,
    pool: Option<Arc<Pool>>,
    /// Requests in flight: only a lone one is split over threads.
    in_flight: Shards<Requests>,
    /// The conversion of the volume while it is in use.
    conversion: Mutex<Option<ConversionProgress>>,
    /// How it is encrypted since it was converted.
    converted: Mutex<Option<VolumeEncryption>>,
    /// Held alone during the read-modify-write of a sector without a tag, and shared by everything else. Otherwise a whole-sector
    /// write in between would be undone, and a read could see half of the change, which in CBC garbles the neighbouring bytes.
    partial: SharedLock,
    /// For areas of tagged sectors, if there are any.
    collecting: Option<Box<Collecting>>,
    protection: Protection,
    sector_size: u64,
}

/// The kind of an in-place conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConversionKind {
    /// The volume gets another key, cipher or sector size.
    Reencrypt,
    /// Plaintext is encrypted.
    Encrypt,
    /// The volume is decrypted: only plaintext is left.
    Decrypt,
}

/// The progress of a conversion of a volume in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConversionProgress {
    /// What is done.
    pub kind: ConversionKind,
    /// How many bytes are converted.
    pub done: u64,
    /// How many bytes there are.
    pub size: u64,
    /// How long the rest takes at the rate so far, in seconds, once there is one.
    pub seconds_left: Option<u64>,
}

/// How a volume is encrypted, for people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeEncryption {
    /// Name of the format.
    pub format: String,
    /// Cipher or cascade.
    pub cipher: String,
    /// Mode of operation.
    pub mode: String,
}

impl VolumeEncryption {
    /// What every part is called if the data are plaintext.
    pub const NONE: &str = "none";

    /// Describes plaintext.
    pub fn none() -> Self {
        let [format, cipher, mode] = [Self::NONE; 3].map(str::to_owned);
        Self { format, cipher, mode }
    }
}

/// The requests of some threads.
#[derive(Default)]
struct Requests {
    in_flight: AtomicUsize,
    /// Whether there was one since the last look.
    seen: AtomicBool,
}

/// The state for collecting writes to areas of tagged sectors.
struct Collecting {
    /// The areas of tagged sectors, and their offsets in the store.
    areas: Vec<(Arc<integrity::TaggedSectors>, u64)>,
    /// Writes collected data. Created by the first write to an area; `None` if no thread could be started.
    late: OnceLock<Option<Late>>,
    /// Combines flushes, because each one writes a whole section of the journal.
    flushing: Flushing,
}

impl Collecting {
    /// `None` if no sectors have tags.
    fn of(layout: &Layout) -> Option<Self> {
        let area = |segment: &Segment| match &segment.payload {
            Payload::Authenticated { area, .. } | Payload::KeyProcessTagged { area, .. } => {
                Some((Arc::clone(area), segment.stored_at))
            }
            Payload::Clear | Payload::Zero | Payload::Fixed(_) | Payload::Crypt { .. } | Payload::KeyProcess(_) => None,
        };
        let areas: Vec<_> = layout.segments().iter().filter_map(area).collect();
        (!areas.is_empty()).then(|| Self { areas, late: OnceLock::new(), flushing: Flushing::default() })
    }
}

/// Guards the layout's protected ranges.
struct Protection {
    /// Whether a write was refused because of them.
    prevented: AtomicBool,
    /// Shared by every write, and held alone while the flag is set: when the refused write returns, no other is still in
    /// flight.
    writing: SharedLock,
}

impl Volume {
    /// The volume that `layout` describes on `store`.
    pub fn new(store: Arc<dyn Store>, layout: Layout) -> Self {
        Self::with_locks(store, layout, Shards::default(), [SharedLock::default(), SharedLock::default()])
    }

    /// A volume that needs less memory, for the contents of an open file.
    pub(crate) fn of_file(store: Arc<dyn Store>, layout: Layout) -> Self {
        let in_flight = Shards::One(Requests::default());
        Self::with_locks(store, layout, in_flight, [SharedLock::small(), SharedLock::small()])
    }

    fn with_locks(
        store: Arc<dyn Store>,
        layout: Layout,
        in_flight: Shards<Requests>,
        [partial, writing]: [SharedLock; 2],
    ) -> Self {
        let small = matches!(in_flight, Shards::One(_));
        Self {
            store,
            sector_size: layout.sector_size(),
            len: layout.len().into(),
            collecting: Collecting::of(&layout).map(Box::new),
            layout: CurrentLayout::new(layout.without_kernel(), small),
            pool: None,
            in_flight,
            conversion: Mutex::default(),
            converted: Mutex::default(),
            partial,
            protection: Protection { prevented: AtomicBool::new(false), writing },
        }
    }

    /// Splits large requests over the threads of `pool`.
    pub fn with_pool(mut self, pool: Arc<Pool>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Sets the sector size reported to file systems, in bytes, instead of the layout's.
    pub fn with_sector_size(mut self, size: u64) -> Self {
        self.sector_size = size;
        self
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The layout of the volume at this moment.
    pub fn layout(&self) -> Arc<Layout> {
        self.layout.layout()
    }

    /// Changes the layout, unless it is `None`, and closes parts of the volume to requests. Returns when no request uses the old
    /// layout any more, or goes on where it is closed now. Requests that have to wait do so until the next change.
    pub(crate) fn change_layout(&self, layout: Option<Layout>, closed: Closed) {
        self.layout.change(layout.map(Layout::without_kernel), closed);
    }

    /// Whether a part of it is closed for good.
    pub fn has_failed(&self) -> bool {
        self.layout.has_failed()
    }

    /// Whether there was a request since the last call.
    pub(crate) fn was_used(&self) -> bool {
        self.in_flight.iter().fold(false, |used, requests| {
            used | requests.seen.swap(false, Ordering::Relaxed) | (requests.in_flight.load(Ordering::Relaxed) > 0)
        })
    }

    /// The progress of the conversion while it is in use, if there is one.
    pub fn conversion(&self) -> Option<ConversionProgress> {
        *self.conversion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is encrypted now, if it was converted while it is in use.
    pub fn converted(&self) -> Option<VolumeEncryption> {
        self.converted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what [`Volume::converted`] returns.
    pub(crate) fn set_converted(&self, encryption: VolumeEncryption) {
        *self.converted.lock().unwrap_or_else(PoisonError::into_inner) = Some(encryption);
    }

    /// Sets what [`Volume::conversion`] returns.
    pub(crate) fn set_conversion(&self, progress: Option<ConversionProgress>) {
        *self.conversion.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Permits a write, or refuses it and all later ones because it would touch a protected range. The returned guard is held until
    /// the write is done.
    ///
    /// TrueCrypt does the same (7.1a, Volume.cpp, `CheckProtectedRange` and `WriteSectors`).
    fn allowed(&self, layout: &Layout, offset: u64, end: u64) -> io::Result<Option<RwLockReadGuard<'_, ()>>> {
        if layout.protected().is_empty() || offset == end {
            return Ok(None);
        }
        let Protection { prevented, writing } = &self.protection;
        let shared = writing.share();
        if !prevented.load(Ordering::Acquire) {
            if !layout.hits_protected(offset, end) {
                return Ok(Some(shared));
            }
            drop(shared);
            let _exclusive = writing.exclusive();
            prevented.store(true, Ordering::Release);
            return Err(io::Error::other("write refused to protect the hidden volume; the volume is now read-only"));
        }
        let what = "read-only since a write was refused to protect the hidden volume";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    }

    /// Calls `each` with every segment the request touches, the request's offset in it, and its part of the buffer.
    fn each_segment(
        layout: &Layout,
        offset: u64,
        buffer: &mut [u8],
        mut each: impl FnMut(&Segment, u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let mut rest = buffer;
        for segment in layout.touched(offset, end) {
            let from = offset.max(segment.at);
            let whole = segment.at + segment.len;
            let to = if whole == layout.len() { end } else { end.min(whole) };
            let (part, after) = std::mem::take(&mut rest).split_at_mut((to - from) as usize);
            each(segment, from - segment.at, part)?;
            rest = after;
        }
        Ok(())
    }

    /// The areas of tagged sectors, and their offsets in the store.
    fn areas(&self) -> impl Iterator<Item = (&Arc<integrity::TaggedSectors>, u64)> {
        self.collecting.iter().flat_map(|collecting| collecting.areas.iter().map(|(area, base)| (area, *base)))
    }

    fn read_crypt(&self, crypt: &Crypt<'_>, into: u64, out: &mut [u8]) -> io::Result<()> {
        let _shared = self.partial.share();
        let cut = Cut::new(into, out.len(), crypt.sector);
        let (head, rest) = out.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        if !head.is_empty() {
            crypt.read_part(&*self.store, into, head)?;
        }
        let into = into + cut.head as u64;
        let read = |at, chunk: &mut [u8]| crypt.read_whole(&*self.store, into + at as u64, chunk);
        match crypt.key {
            // In one request: the disk's latency counts once, and direct reads do not use the cache that chunks are meant for.
            Key::Here { cipher, first } if !middle.is_empty() && self.store.bypasses_cache() => {
                self.store.read_at(crypt.stored_at + into, middle)?;
                self.each_chunk(middle, crypt.sector, 0, |at, chunk| {
                    crypt.decrypt(cipher, first, into + at as u64, chunk);
                    Ok(())
                })?;
            }
            Key::Here { .. } => self.each_chunk(middle, crypt.sector, 0, read)?,
            // The key handle splits work over threads by itself.
            Key::KeyHandle(_) if !middle.is_empty() => read(0, middle)?,
            Key::KeyHandle(_) => {}
        }
        if !tail.is_empty() {
            crypt.read_part(&*self.store, into + cut.middle as u64, tail)?;
        }
        Ok(())
    }

    fn write_crypt(&self, crypt: &Crypt<'_>, into: u64, data: &mut [u8]) -> io::Result<()> {
        let cut = Cut::new(into, data.len(), crypt.sector);
        let (head, rest) = data.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        if !head.is_empty() {
            let _exclusive = self.partial.exclusive();
            crypt.write_part(&*self.store, into, head)?;
        }
        let into = into + cut.head as u64;
        if !middle.is_empty() {
            let _shared = self.partial.share();
            let write = |at, chunk: &mut [u8]| crypt.write_whole(&*self.store, into + at as u64, chunk);
            match crypt.key {
                Key::Here { cipher, first } if self.store.bypasses_cache() => {
                    self.each_chunk(middle, crypt.sector, crypt.wide_run(), |at, chunk| {
                        crypt.encrypt(cipher, first, into + at as u64, chunk);
                        Ok(())
                    })?;
                    self.store.write_clobbering(crypt.stored_at + into, middle)?;
                }
                Key::Here { .. } => self.each_chunk(middle, crypt.sector, crypt.wide_run(), write)?,
                Key::KeyHandle(_) => write(0, middle)?,
            }
        }
        if !tail.is_empty() {
            let _exclusive = self.partial.exclusive();
            crypt.write_part(&*self.store, into + cut.middle as u64, tail)?;
        }
        Ok(())
    }

    fn tagged<'a>(
        &'a self,
        segment: &Segment,
        area: &'a integrity::TaggedSectors,
        key: TagKey<'a>,
        first: u64,
    ) -> Authenticated<'a> {
        Authenticated { store: &*self.store, base: segment.stored_at, area, key, first }
    }

    fn write_tagged(&self, tagged: &Authenticated<'_>, into: u64, data: &mut [u8]) -> io::Result<()> {
        // Even a failed write may have collected some data.
        let written = tagged.write(into, data);
        let start = || {
            let areas = self.areas().map(|(area, base)| (Arc::clone(area), base)).collect();
            Late::start(Arc::clone(&self.store), areas).ok()
        };
        match self.collecting.as_ref().and_then(|collecting| collecting.late.get_or_init(start).as_ref()) {
            Some(late) => {
                late.collected();
                written
            }
            None => written.and(tagged.area.commit(tagged.store, tagged.base)),
        }
    }

    /// Whether this is the only request in flight.
    fn is_alone(&self) -> bool {
        self.in_flight.iter().map(|shard| shard.in_flight.load(Ordering::Relaxed)).sum::<usize>() == 1
    }

    /// Calls `each` with every chunk and its offset: on this thread, or split over the pool if the request is large and
    /// alone. A chunk has at least `wide` bytes.
    fn each_chunk(
        &self,
        buffer: &mut [u8],
        sector: usize,
        wide: usize,
        each: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let chunk = CHUNK.max(wide).next_multiple_of(sector);
        match &self.pool {
            Some(pool) if buffer.len() >= SPLIT && self.is_alone() => {
                let failed = Mutex::new(None);
                for_each_piece(pool, buffer, chunk, |at, piece| {
                    if let Err(e) = each(at, piece) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    }
                });
                failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
            }
            _ => buffer.chunks_mut(chunk).enumerate().try_for_each(|(i, piece)| each(i * chunk, piece)),
        }
    }
}

impl Store for Volume {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    /// If the store is a volume, too, that one: it lies in the file itself.
    fn volume(&self) -> Option<&Self> {
        self.store.volume().or(Some(self))
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// The last segment grows. It must have no tags, whose number is fixed.
    fn grow(&self, growth: &Growth) -> io::Result<()> {
        let Growth { start, len, rehearse } = *growth;
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, why));
        let layout = self.layout();
        match layout.segments() {
            [first, ..] if first.stored_at != start => return refused("another volume in this file is in use"),
            [.., Segment { payload: Payload::Crypt { .. } | Payload::KeyProcess(_), .. }] => {
                if !layout.protected().is_empty() {
                    return refused("a hidden volume in it is protected");
                }
            }
            _ => return refused("a volume of this kind keeps its size while in use"),
        }
        let last = layout.segments().last().expect("as matched above");
        if len < self.len() || !(len - last.at).is_multiple_of(last.payload.sector_size()) {
            return refused("it can only grow while in use, by whole sectors");
        }
        if rehearse {
            return Ok(());
        }
        let end = last.stored_at.saturating_add(len - last.at);
        if end > self.store.len() {
            self.store.measure()?;
        }
        if end > self.store.len() {
            return refused("its file has not grown");
        }
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len())?;
        let _counted = InFlight::new(self.in_flight.mine());
        let layout = self.layout.request(offset..offset + out.len() as u64, Access::Read)?;
        Self::each_segment(&layout, offset, out, |segment, into, part| match &segment.payload {
            Payload::Clear => self.store.read_at(segment.stored_at + into, part),
            Payload::Zero => {
                part.fill(0);
                Ok(())
            }
            Payload::Fixed(bytes) => {
                part.copy_from_slice(&bytes[into as usize..][..part.len()]);
                Ok(())
            }
            Payload::Crypt { cipher, first, .. } => {
                self.read_crypt(&Crypt::new(segment, &**cipher, *first), into, part)
            }
            Payload::KeyProcess(handle) => self.read_crypt(&Crypt::with_handle(segment, handle), into, part),
            Payload::Authenticated { area, cipher, first, .. } => {
                self.tagged(segment, area, TagKey::Here(&**cipher), *first).read(into, part)
            }
            Payload::KeyProcessTagged { area, handle, first } => {
                self.tagged(segment, area, TagKey::KeyHandle(handle), *first).read(into, part)
            }
        })
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check_range(offset, data.len(), self.len())?;
        let end = offset + data.len() as u64;
        let layout = self.layout.request(offset..end, Access::Write)?;
        // Refused before the first byte, so that no request is done in part.
        if layout.touched(offset, end).any(|s| !s.writable) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "this part of the volume is read-only"));
        }
        Self::each_segment(&layout, offset, data, |segment, into, part| segment.keeps(into, part))?;
        let _allowed = self.allowed(&layout, offset, end)?;
        let _counted = InFlight::new(self.in_flight.mine());
        Self::each_segment(&layout, offset, data, |segment, into, part| match &segment.payload {
            Payload::Clear => self.store.write_clobbering(segment.stored_at + into, part),
            Payload::Zero | Payload::Fixed(_) => Ok(()),
            Payload::Crypt { cipher, first, .. } => {
                self.write_crypt(&Crypt::new(segment, &**cipher, *first), into, part)
            }
            Payload::KeyProcess(handle) => self.write_crypt(&Crypt::with_handle(segment, handle), into, part),
            Payload::Authenticated { area, cipher, first, .. } => {
                self.write_tagged(&self.tagged(segment, area, TagKey::Here(&**cipher), *first), into, part)
            }
            Payload::KeyProcessTagged { area, handle, first } => {
                self.write_tagged(&self.tagged(segment, area, TagKey::KeyHandle(handle), *first), into, part)
            }
        })
    }

    fn flush(&self) -> io::Result<()> {
        let Some(collecting) = &self.collecting else { return self.store.flush() };
        collecting.flushing.flush(|| {
            self.areas().try_for_each(|(area, base)| area.commit(&*self.store, base))?;
            self.store.flush().inspect_err(|e| self.areas().for_each(|(area, _)| area.flushing_failed(e)))
        })
    }

    fn sector_size(&self) -> u64 {
        self.sector_size
    }

    fn writable(&self) -> bool {
        self.store.writable() && !self.damage_prevented() && self.layout().segments().iter().any(|s| s.writable)
    }

    fn damage_prevented(&self) -> bool {
        self.protection.prevented.load(Ordering::Acquire) || self.store.damage_prevented()
    }
    // No discard: a hole in the store would show which sectors are unused.
}

impl Drop for Volume {
    /// Moves data that are only in a journal to their places. If that fails, nothing is lost: the journal is as durable as the last
    /// flush, and the next open reads it. Code that serves a volume flushes at the end and reports the result.
    fn drop(&mut self) {
        let Some(collecting) = self.collecting.take() else { return };
        let Collecting { areas, late, flushing: _ } = *collecting;
        drop(late);
        for (area, base) in areas {
            let _ = area.settle(&*self.store, base);
        }
    }
}

/// Counts a request for its lifetime.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(Requests { in_flight, seen }: &'a Requests) -> Self {
        seen.store(true, Ordering::Relaxed);
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An encrypted segment; offsets are relative to its beginning.
struct Crypt<'a> {
    key: Key<'a>,
    stored_at: u64,
    sector: usize,
}

/// Where the key is.
enum Key<'a> {
    Here { cipher: &'a dyn SectorCipher, first: u64 },
    KeyHandle(&'a KeyHandle),
}

impl<'a> Crypt<'a> {
    fn new(segment: &Segment, cipher: &'a dyn SectorCipher, first: u64) -> Self {
        Self { key: Key::Here { cipher, first }, stored_at: segment.stored_at, sector: cipher.sector_size() }
    }

    fn with_handle(segment: &Segment, handle: &'a KeyHandle) -> Self {
        Self { key: Key::KeyHandle(handle), stored_at: segment.stored_at, sector: handle.sector_size() }
    }

    fn wide_run(&self) -> usize {
        if let Key::Here { cipher, .. } = self.key { cipher.wide_run() } else { 0 }
    }

    fn number(&self, first: u64, into: u64) -> u64 {
        first.wrapping_add(into / self.sector as u64)
    }

    fn read_whole(&self, store: &dyn Store, into: u64, out: &mut [u8]) -> io::Result<()> {
        let at = self.stored_at + into;
        match &self.key {
            Key::Here { cipher, first } => {
                store.read_at(at, out)?;
                self.decrypt(*cipher, *first, into, out);
                Ok(())
            }
            Key::KeyHandle(handle) => {
                handle.decrypt(into, out, &mut |past, stored| store.read_at(at + past as u64, stored))
            }
        }
    }

    fn write_whole(&self, store: &dyn Store, into: u64, data: &mut [u8]) -> io::Result<()> {
        let at = self.stored_at + into;
        match &self.key {
            Key::Here { cipher, first } => {
                self.encrypt(*cipher, *first, into, data);
                store.write_clobbering(at, data)
            }
            Key::KeyHandle(handle) => {
                handle.encrypt(into, data, &mut |past, stored| store.write_clobbering(at + past as u64, stored))
            }
        }
    }

    fn decrypt(&self, cipher: &dyn SectorCipher, first: u64, into: u64, stored: &mut [u8]) {
        cipher.decrypt(self.number(first, into), stored);
        // Wipe before this thread sleeps in a system call or while waiting for a request.
        wipe_after_sectors();
    }

    fn encrypt(&self, cipher: &dyn SectorCipher, first: u64, into: u64, data: &mut [u8]) {
        cipher.encrypt(self.number(first, into), data);
        wipe_after_sectors();
    }

    /// Reads part of one sector.
    fn read_part(&self, store: &dyn Store, into: u64, out: &mut [u8]) -> io::Result<()> {
        let (border, past) = self.border(into);
        let mut sector = vec![0; self.sector];
        self.read_whole(store, border, &mut sector)?;
        out.copy_from_slice(&sector[past..][..out.len()]);
        Ok(())
    }

    /// Changes part of one sector.
    fn write_part(&self, store: &dyn Store, into: u64, data: &[u8]) -> io::Result<()> {
        let (border, past) = self.border(into);
        let mut sector = vec![0; self.sector];
        self.read_whole(store, border, &mut sector)?;
        sector[past..][..data.len()].copy_from_slice(data);
        self.write_whole(store, border, &mut sector)
    }

    /// The sector boundary at or before `into`, and the distance from it.
    fn border(&self, into: u64) -> (u64, usize) {
        let past = into % self.sector as u64;
        (into - past, past as usize)
    }
}

//! Reencryption of LUKS2 volumes in place: to another key, cipher or sector size, from plaintext to ciphertext, or from ciphertext
//! to plaintext (LUKS2 On-Disk Format Specification 1.1.1, section 5; cryptsetup's lib/luks2/luks2_reencrypt.c).
//!
//! The volume is rewritten zone by zone. The zone's old contents are protected first: by checksums, by a copy, or by staying where
//! they were. Then the header marks the zone as hot, the zone is rewritten, and the header marks it as done. Each step is flushed
//! before the next begins. So after a crash at any moment everything can be read, and the reencryption can be resumed. Without
//! protection a crash destroys the zone being rewritten.
//!
//! Between two zones with checksums, a single change of the header marks the first as done and the second as hot. While the second
//! zone's checksums replace the first's, the header still marks the first zone as hot. None of its blocks, now encrypted with the
//! new key, matches the checksum in its place, whichever zone that belongs to. So all of them count as rewritten, which they are.
//! If the result is plaintext, which can match anything, or the protection is a journal, the header marks the first zone as done in
//! a change of its own.
//!
//! Each checksum covers a block as large as the larger encryption sector of both sides. Disks, and file systems with small blocks,
//! guarantee only that 512 bytes are written whole or not at all, so a block can be torn. If the cipher's blocks are independent,
//! recovery combines the old and new parts of a torn block in the one way that has the right checksum (`recovery.rs`). If they are
//! not, as in Adiantum or CBC, a journal is the default. (cryptsetup treats a torn block as rewritten; it requires disks that write
//! sectors whole.)

mod begin;
mod converter;
mod doubts;
mod front;
mod keys;
pub(super) mod moving;
mod proof;
mod recovery;
mod state;
mod zone;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use claviger_crypto::pool::Pool;
use claviger_crypto::{Secret, hash};

use super::metadata::{Id, Metadata, Size};
use super::read::{self, Luks2CopyState, ReadHeader, read};
use super::unlock::{OpenedKey, keyslots_of, open_key, plan};
use super::{binary, slots, validate, write};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::KeylessConversion;
use crate::formats::in_use::{LiveVolume, VolumeInUse, pause};
use crate::formats::luks::data_elsewhere;
use crate::key_process::KeyProcess;
use crate::memory;
use crate::store::Store;
use crate::volume::{ConversionKind, Layout};
use keys::Ciphers;
use state::{What, wrong};
use zone::{Room, Zone};

pub use crate::formats::in_place::ReencryptionRequest;
pub use begin::{Beginning, begin, begin_decryption, begin_detached_encryption};
pub use front::begin_encryption;
pub use keys::VolumeKeys;
pub use state::{Direction, ReencryptionState, Resilience};

/// The largest zone, in bytes (cryptsetup's luks2.h, `LUKS2_REENCRYPT_MAX_HOTZONE_LENGTH`).
pub const MAX_ZONE: u64 = 1 << 30;

/// The default size of a zone, in bytes: what a crash can destroy in the resilience mode `none`.
const ZONE: u64 = 32 << 20;

/// The default size with protection and ample memory for two zones, in bytes: each zone takes four flushes.
const LARGE_ZONE: u64 = 128 << 20;

/// The default size in use: requests to a zone wait while it is rewritten.
const IN_USE_ZONE: u64 = 16 << 20;

/// The largest size in use.
const LARGEST_IN_USE_ZONE: u64 = 64 << 20;

/// How many bytes are overwritten with random ones at a time.
const WIPED: u64 = 1 << 20;

/// The stores of header and data.
#[derive(Clone, Copy)]
pub struct HeaderAndData<'a> {
    /// The store of the header.
    pub header: &'a dyn Store,
    /// The store of the data.
    pub data: &'a dyn Store,
    /// Whether these are different stores.
    pub detached: bool,
}

impl<'a> HeaderAndData<'a> {
    /// Takes one store for header and data, or a separate store for the data.
    pub fn new(store: &'a dyn Store, data: Option<&'a dyn Store>) -> Self {
        Self { header: store, data: data.unwrap_or(store), detached: data.is_some() }
    }
}

/// A reencryption that has begun, unlocked and checked.
pub struct Reencryption<'a> {
    record: Record<'a>,
    ciphers: Ciphers,
    /// Both volume keys, for a process that continues.
    keys: VolumeKeys,
    pool: Pool,
    zone: u64,
    /// The highest rate, in bytes per second.
    rate: Option<u64>,
    /// The memory of a zone, while no zone uses it.
    spare: Room,
}

/// The data on the disk, and the header's state of them.
struct Record<'a> {
    stores: HeaderAndData<'a>,
    header: ReadHeader,
    state: ReencryptionState,
    /// Whether more is done than the header on the disk says.
    unsaid: bool,
    /// The volume that follows, if it is in use.
    live: Option<LiveVolume<'a>>,
}

/// How far a reencryption has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReencryptionProgress {
    /// How many bytes of the plaintext are rewritten.
    pub done: u64,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    /// Whether it was interrupted within a zone.
    pub interrupted: bool,
}

impl<'a> Reencryption<'a> {
    /// Unlocks a reencryption that this or another program began. Writes nothing. `zone` is the size of a zone, in bytes.
    ///
    /// # Errors
    /// `Misuse` if there is none, or `zone` does not fit; `Malformed` for a state that is impossible or was changed without the
    /// keys; `Unsupported`; those of unlocking; `Io`.
    pub fn resume(stores: HeaderAndData<'a>, with: &Unlock<'_>, zone: Option<u64>) -> Result<Self> {
        let header = read(stores.header)?;
        let Unlocked { state, keys, .. } = unlocked(&header, &stores, with)?;
        let ciphers = Ciphers::new(&state, &keys, with.acceleration)?;
        Self::of(stores, header, state, ciphers, keys, zone)
    }

    /// Resumes a reencryption whose keys are in `key_process`, which has proven the header that `keyless` means.
    ///
    /// # Errors
    /// Those of [`Reencryption::resume`], and `Misuse` for another header.
    fn with_key_process(
        stores: HeaderAndData<'a>,
        keyless: &KeylessConversion,
        key_process: &Arc<dyn KeyProcess>,
    ) -> Result<Self> {
        let header = read(stores.header)?;
        if digest_of(&header.metadata)? != keyless.header {
            return Err(Error::misuse("its header has changed since the key process read it"));
        }
        let state = checked_state(&header, &stores)?;
        let ciphers = Ciphers::in_key_process(&state, key_process);
        let keys = VolumeKeys { previous: None, last: None, same: false };
        Ok(Self::of(stores, header, state, ciphers, keys, keyless.request.zone)?.at_rate(keyless.request.rate))
    }

    fn of(
        stores: HeaderAndData<'a>,
        header: ReadHeader,
        state: ReencryptionState,
        ciphers: Ciphers,
        keys: VolumeKeys,
        zone: Option<u64>,
    ) -> Result<Self> {
        let alignment = state.alignment();
        if !state.size.is_multiple_of(alignment) {
            let what = format!("the volume's {} bytes are not a multiple of {alignment}", state.size);
            return Err(Error::misuse(what).hint("Nothing was changed. Truncate or extend the file to whole blocks."));
        }
        let zone = zone.unwrap_or_else(|| usual_zone(&state));
        if zone < alignment || zone > MAX_ZONE || !zone.is_multiple_of(alignment) {
            let what = format!("the zone must be a multiple of {alignment} bytes up to {MAX_ZONE}, not {zone}");
            return Err(Error::misuse(what));
        }
        let pool = Pool::for_this_machine(Duration::ZERO);
        let record = Record { stores, header, state, unsaid: false, live: None };
        Ok(Self { record, ciphers, keys, pool, zone, rate: None, spare: Room::default() })
    }

    /// Limits the rate, in bytes per second.
    pub fn at_rate(self, rate: Option<u64>) -> Self {
        Self { rate, ..self }
    }

    /// Lets a volume in use follow, and limits its zones to `zone` bytes.
    ///
    /// # Errors
    /// `Misuse` if it could not follow.
    fn followed_by(mut self, volume: &VolumeInUse<'a>, zone: Option<u64>) -> Result<Self> {
        let state = &self.record.state;
        if let Some(why) = state.not_in_use() {
            return Err(Error::misuse(why));
        }
        if state.size != volume.len() {
            return Err(Error::misuse("its header has another size than the volume in use"));
        }
        self.zone = zone.unwrap_or(IN_USE_ZONE).next_multiple_of(state.alignment()).min(LARGEST_IN_USE_ZONE);
        self.record.live = Some(volume.follow(self.record.state.mode));
        Ok(self)
    }

    /// The layout of the volume at present. Nothing of it may be interrupted.
    fn layout(&self) -> Result<Layout> {
        recovery::layout(&self.record.state, &self.record.stores, &self.ciphers)
    }

    /// Calls `exchange`, which replaces the key process of the volume in use, while nobody uses the volume. It then has this layout.
    fn exchange(&mut self, exchange: &mut dyn FnMut()) -> Result<()> {
        let layout = self.layout()?;
        let whole = 0..self.record.state.size;
        if let Some(live) = &mut self.record.live {
            live.close(whole.clone(), whole);
            exchange();
            live.open(Some(layout), 0..0);
        }
        Ok(())
    }

    /// Returns the progress.
    pub fn progress(&self) -> ReencryptionProgress {
        self.record.state.progress()
    }

    /// Returns the state.
    pub fn state(&self) -> &ReencryptionState {
        &self.record.state
    }

    /// Runs to the end, or until `cancel` is set, which is checked between two zones. Finished zones stay rewritten, and the volume
    /// can be used and resumed. `progress` gets the number of finished bytes and of all bytes.
    ///
    /// # Errors
    /// `Cancelled`; `Io`, after which it can be resumed too.
    pub fn run(mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        let HeaderAndData { data, header, .. } = self.record.stores;
        if !data.writable() || !header.writable() {
            return Err(Error::misuse("it was opened read-only; nothing was changed"));
        }
        self.recover()?;
        self.rewrite_all(progress, cancel)?;
        progress(self.record.state.size, self.record.state.size);
        self.record.finish()
    }

    fn rewrite_all(&mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        let mut ahead = None;
        while let Some(at) = next_zone(&self.record.state, self.zone) {
            progress(self.progress().done, self.record.state.size);
            if cancel.load(Ordering::Relaxed) {
                self.record.say_done()?;
                return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
            }
            let begun = Instant::now();
            let len = at.end - at.start;
            let zone = match ahead.take() {
                Some(zone) => zone,
                None => {
                    let Record { state, stores, live, .. } = &self.record;
                    live.iter().for_each(|live| live.close(at.clone(), 0..0));
                    Zone::prepare(state, stores, &self.ciphers, at, Room::default(), &self.pool)?
                }
            };
            let hurry = self.rate.is_none() && !self.record.live.as_ref().is_some_and(LiveVolume::in_demand);
            ahead = self.step(zone, hurry)?;
            if !hurry {
                pause(len, begun.elapsed(), self.rate, cancel);
            }
        }
        self.record.say_done()
    }

    /// Finishes the zone that was being rewritten at an interruption.
    fn recover(&mut self) -> Result<()> {
        let Record { stores, state, .. } = &self.record;
        let Some(hot) = state.hot.clone() else { return Ok(()) };
        let runs = recovery::runs(state, stores, &self.ciphers)?;
        zone::recover(state, stores, &self.ciphers, &runs, &self.pool)?;
        stores.data.flush()?;
        self.record.rewritten(&hot);
        self.record.say_done()
    }

    /// Rewrites a zone. In a hurry, prepares the next one in the meantime.
    fn step(&mut self, zone: Zone, hurry: bool) -> Result<Option<Zone>> {
        let Self { record, ciphers, pool, spare, .. } = self;
        let (stores, at) = (record.stores, zone.at.clone());
        let after = ReencryptionState { hot: None, done: record.state.done_with(&at), ..record.state.copy() };
        let next = if hurry { next_zone(&after, self.zone) } else { None };
        let closed = next.as_ref().map_or(at.clone(), |next| at.start.min(next.start)..at.end.max(next.end));
        if next.is_some() {
            record.live.iter().for_each(|live| live.close(closed.clone(), 0..0));
        }
        // If the data move, the next zone may lie where this one is written.
        let goes = record.state.written_at(&at);
        let from = next.as_ref().map(|next| after.read_at(next));
        let waits = from.is_some_and(|from| from.start < goes.end && goes.start < from.end);
        let room = std::mem::take(spare);
        let prepare = |at| Zone::prepare(&after, &stores, ciphers, at, room, pool);
        let flush = |room| stores.data.flush().map(|()| room).map_err(Error::from);
        let (written, ahead) = thread::scope(|scope| {
            let thread = thread::Builder::new();
            let writing = if waits {
                let written = record.rewrite(zone, closed);
                thread.spawn_scoped(scope, move || written.and_then(flush))
            } else {
                thread.spawn_scoped(scope, || record.rewrite(zone, closed).and_then(flush))
            };
            let writing = match writing {
                Ok(writing) => writing,
                Err(e) => return (Err(e.into()), Ok(None)),
            };
            let ahead = next.map(prepare).transpose();
            let written = writing.join().unwrap_or_else(|_| Err(std::io::Error::other("writing failed").into()));
            (written, ahead)
        });
        *spare = written?;
        record.rewritten(&at);
        let ahead = match ahead {
            Ok(ahead) => ahead,
            Err(error) => {
                record.say_done()?;
                record.follow(ciphers, 0..0)?;
                return Err(error);
            }
        };
        let said = |next: &Zone| said_with(&record.state, ciphers, &at, &next.at);
        if record.live.is_some() || !ahead.as_ref().is_some_and(said) {
            record.say_done()?;
        }
        record.follow(ciphers, ahead.as_ref().map_or(0..0, |next| next.at.clone()))?;
        Ok(ahead)
    }
}

/// Whether a single change of the header can mark a zone as done and the next one as hot.
fn said_with(state: &ReencryptionState, ciphers: &Ciphers, zone: &Range<u64>, next: &Range<u64>) -> bool {
    let summed = |zone: &Range<u64>| matches!(state.resilience_at(zone.start), Resilience::Checksum(_));
    ciphers.of(What::Last).is_some() && summed(zone) && summed(next)
}

impl Record<'_> {
    /// Protects a zone, marks it as hot, and writes it. Returns its memory. Writes to `closed` wait meanwhile.
    fn rewrite(&mut self, mut zone: Zone, closed: Range<u64>) -> Result<Room> {
        self.protect(&mut zone)?;
        self.live.iter().for_each(|live| live.close(closed.clone(), zone.at.clone()));
        zone.write(&self.state, &self.stores)
    }

    /// Gives the volume in use the layout that follows from the state. Writes to the zone `next` still wait.
    fn follow(&mut self, ciphers: &Ciphers, next: Range<u64>) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        live.open(Some(recovery::layout(&self.state, &self.stores, ciphers)?), next);
        Ok(())
    }

    /// Marks the zone as hot, if it has protection: writes first the protection, then the header.
    fn protect(&mut self, zone: &mut Zone) -> Result<()> {
        if matches!(self.state.resilience_at(zone.at.start), Resilience::None) {
            return Ok(());
        }
        // Flushing a detached header does not flush the data. After a crash, data that were only in the page cache would not match the
        // protection, and older ones in their place would count as rewritten.
        if self.stores.detached {
            self.stores.data.flush()?;
        }
        zone.write_protection(&self.state, &self.stores)?;
        self.live.iter_mut().for_each(|live| live.doubt(zone.at.clone()));
        self.state.hot = Some(zone.at.clone());
        self.say()
    }

    /// Notes that a zone is rewritten and on the disk. The header does not say so yet.
    fn rewritten(&mut self, zone: &Range<u64>) {
        self.state.done = self.state.done_with(zone);
        self.state.hot = None;
        self.unsaid = true;
    }

    /// Updates the header with what is done, unless it is up to date.
    fn say_done(&mut self) -> Result<()> {
        if self.unsaid {
            self.say()?;
        }
        Ok(())
    }

    /// Writes the state to the header.
    fn say(&mut self) -> Result<()> {
        let mut metadata = self.header.metadata.clone();
        self.state.put(&mut metadata, &self.state.done, self.state.hot.clone());
        self.write(metadata, Vec::new())?;
        self.unsaid = false;
        Ok(())
    }

    /// Overwrites the remains of the old volume, and turns the result into an ordinary volume.
    fn finish(mut self) -> Result<()> {
        let data = self.stores.data;
        if let (Some(moved), Some(shift)) = (&self.state.moved, self.state.shift) {
            let left = match self.state.mode {
                // The plaintext of the first part, after everything.
                ConversionKind::Encrypt => moved.offset()..moved.offset() + moved.end,
                // The part after the volume's new end.
                _ => data.len().saturating_sub(shift).max(self.state.last.offset() + self.state.size)..data.len(),
            };
            wipe(data, left)?;
        }
        let (metadata, old) = finished(&self.header.metadata, &self.state);
        let mut after = Vec::new();
        for (number, area) in old {
            let mut bytes = vec![0; (area.end - area.start) as usize];
            write::random(&mut bytes)?;
            after.push(Step { what: format!("random bytes over the area of keyslot {number}"), at: area.start, bytes });
        }
        self.write(metadata, after)
    }

    /// Writes both copies of the header, followed by further steps.
    fn write(&mut self, metadata: Metadata, after: Vec<Step>) -> Result<()> {
        let copies = write::steps(self.stores.header, &self.header, self.header.binary.clone(), &metadata)?;
        let binary = |step: &Step| Seen { at: step.at, bytes: step.bytes[..binary::LEN].to_vec() };
        let seen = copies.iter().map(binary).collect();
        let steps = [copies, after].concat();
        Edit::new(steps).made_for(std::mem::replace(&mut self.header.seen, seen)).carry_out(self.stores.header)?;
        self.header.binary.seqid += 1;
        self.header.metadata = metadata;
        (self.header.primary, self.header.secondary) = (Luks2CopyState::Current, Luks2CopyState::Current);
        Ok(())
    }
}

/// A volume during reencryption.
pub(super) struct OpenVolume {
    /// The layout of its plaintext.
    pub layout: Layout,
    /// The new key, or the old one if the new side is plaintext.
    pub key: OpenedKey,
    progress: ReencryptionProgress,
}

impl OpenVolume {
    /// The warning that the volume is being reencrypted.
    pub fn warning(&self) -> Warning {
        let ReencryptionProgress { done, size, interrupted } = self.progress;
        let percent = u128::from(done) * 100 / u128::from(size.max(1));
        let so = match interrupted {
            true => "was interrupted in the middle of a zone. The volume is read-only until it resumes.",
            false => "is not finished.",
        };
        let what = format!("The reencryption of this volume ({percent} % done) {so}");
        Warning::from(what).advise(Advice::ResumeReencryption)
    }
}

/// Whether the volume in the store is being reencrypted; `None` if there is no LUKS2 header at all.
///
/// # Errors
/// `Malformed` and `Unsupported` for a header that cannot be read; `Io`.
pub fn status(header: &dyn Store) -> Result<Option<bool>> {
    match read(header) {
        Ok(header) => Ok(Some(goes_on(&header.metadata))),
        Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether decryption moves the header from the front of the data to `header`, a store of its own. This store must be empty, or
/// hold only what an interrupted beginning has left.
///
/// # Errors
/// `Misuse` if there is a header in front of the data that cannot be moved in its present state; `Io`.
pub fn moves_header(header: &dyn Store, data: &dyn Store) -> Result<bool> {
    Ok(doubts::header_to_move(header, data)?.is_some())
}

/// Returns how long a file for the volume's header must be, in bytes.
///
/// # Errors
/// Those of [`read`](fn@read).
pub fn header_len(store: &dyn Store) -> Result<u64> {
    let header = read(store)?;
    Ok(validate::header_end(&header.metadata, header.binary.hdr_size))
}

/// Whether the volume is being reencrypted.
pub(super) fn goes_on(metadata: &Metadata) -> bool {
    validate::requirements(metadata).iter().any(|name| proof::is_requirement(name))
}

/// Opens a volume that is being reencrypted. An interrupted zone is read as it would be after recovery, and the volume is then
/// read-only.
///
/// # Errors
/// Those of [`Reencryption::resume`].
pub(super) fn open(header: &ReadHeader, stores: &HeaderAndData<'_>, with: &Unlock<'_>) -> Result<OpenVolume> {
    let Unlocked { state, keys, key } = unlocked(header, stores, with)?;
    let ciphers = Ciphers::new(&state, &keys, with.acceleration)?;
    let layout = recovery::layout(&state, stores, &ciphers)?;
    Ok(OpenVolume { layout, key, progress: state.progress() })
}

/// A state whose digest has been verified, and its keys.
struct Unlocked {
    state: ReencryptionState,
    keys: VolumeKeys,
    key: OpenedKey,
}

/// The state in the header, checked as far as possible without keys.
fn checked_state(header: &ReadHeader, stores: &HeaderAndData<'_>) -> Result<ReencryptionState> {
    let state = ReencryptionState::of(&header.metadata, stores.data.len())?
        .ok_or_else(|| Error::misuse("this volume is not being reencrypted"))?;
    let required = validate::requirements(&header.metadata);
    if let Some(unknown) = required.iter().find(|name| !proof::is_requirement(name)) {
        return Err(validate::unknown("the requirement", unknown));
    }
    if !stores.detached {
        must_be_attached(header, &state)?;
    }
    doubts::may_belong_together(stores, header, doubts::encrypted_by_now(&state))?;
    Ok(state)
}

/// A digest of the metadata, which tells two processes whether they have read the same ones.
fn digest_of(metadata: &Metadata) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(metadata).map_err(std::io::Error::from)?;
    let hash = hash::by_name("sha256").ok_or_else(|| Error::unsupported("SHA-256"))?;
    let mut digest = vec![0; hash.size];
    hash.digest(&[&json], &mut digest);
    Ok(digest)
}

fn unlocked(header: &ReadHeader, stores: &HeaderAndData<'_>, with: &Unlock<'_>) -> Result<Unlocked> {
    let state = checked_state(header, stores)?;
    let (keys, key) = volume_keys(header, &state, stores.header, with)?;
    with.has_opened();
    // Everything is rewritten and the old key's keyslots are removed: this state needs no more proof than any header.
    let unproven = state.mode == ConversionKind::Reencrypt && state.finished() && keys.previous.is_none();
    if !unproven {
        proof::check(&header.metadata, state.keyslot, &keys, with)?;
    }
    Ok(Unlocked { state, keys, key })
}

/// Fails if a segment overlaps the header: such data must be in another store.
fn must_be_attached(header: &ReadHeader, state: &ReencryptionState) -> Result<()> {
    let end = validate::header_end(&header.metadata, header.binary.hdr_size);
    let reaches = |what: What, from: u64| state.side(what).offset().saturating_add(from) < end;
    let hot_or_done = state.last.offset() < end;
    let still = state.pieces().iter().any(|piece| piece.what != What::Hot && reaches(piece.what, piece.at.start));
    if hot_or_done || still {
        return Err(data_elsewhere());
    }
    Ok(())
}

/// Returns the keys of both sides, and the last one with how it was opened.
fn volume_keys(
    header: &ReadHeader,
    state: &ReencryptionState,
    store: &dyn Store,
    with: &Unlock<'_>,
) -> Result<(VolumeKeys, OpenedKey)> {
    let (previous, last) = (state.previous.digest, state.last.digest);
    let same = previous == last;
    if let ([Credential::VolumeKey(_)], Some(_), Some(_), false) =
        (with.credentials, previous, last, same || state.finished())
    {
        return Err(Error::misuse("during a reencryption, two volume keys are needed")
            .hint("Give a passphrase that opens a keyslot of each."));
    }
    let any_slot = Unlock { keyslot: None, ..*with };
    if !with.credentials.iter().any(|credential| matches!(credential, Credential::VolumeKey(_))) {
        // The wait is for the keyslots of both keys together.
        let sides = [last, previous].into_iter().flatten();
        let slots: Vec<_> = sides.flat_map(|digest| keyslots_of(&header.metadata, digest, None)).collect();
        with.ask(plan(header, &slots, with).microseconds())?;
    }
    let open_one = |digest: u32| match with.credentials {
        // One of them is this side's key.
        both @ [Credential::VolumeKey(_), Credential::VolumeKey(_)] => {
            let [one, other] = [&both[..1], &both[1..]];
            let open = |key| open_key(header, store, &Unlock { credentials: key, ..any_slot }, digest);
            open(one).or_else(|_| open(other))
        }
        _ => open_key(header, store, &any_slot, digest),
    };
    let open = |digest: Option<u32>| {
        let opened = digest.map(open_one).transpose();
        opened.map_err(|e| match e.kind {
            ErrorKind::WrongCredential(_) if !same && previous.is_some() && last.is_some() => {
                e.hint("During a reencryption, the passphrase must open a keyslot of both the old and the new key.")
            }
            _ => e,
        })
    };
    let is_to_be = open(last)?;
    let was = match open(previous) {
        // cryptsetup overwrites the old keyslots before it marks the reencryption as finished.
        Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) && is_to_be.is_some() && state.finished() => None,
        was => was?,
    };
    let copy = |opened: &Option<OpenedKey>| opened.as_ref().map(|opened| Secret::copy_from(&opened.key));
    let keys = VolumeKeys { previous: copy(&was), last: copy(&is_to_be), same };
    let trials = [&was, &is_to_be].into_iter().flatten().map(|opened| opened.trials).sum();
    let opened = is_to_be.or(was).ok_or_else(|| wrong("digests", "neither side of the reencryption has a key"))?;
    Ok((keys, OpenedKey { trials, ..opened }))
}

/// Reads metadata in JSON and determines the reencryption state in them, for data of several sizes.
pub(crate) fn fuzz_metadata(json: &[u8]) {
    const HDR_SIZE: u64 = 16 << 10;
    let Ok(metadata) = read::parse(json, 0) else { return };
    if validate::metadata(&metadata, HDR_SIZE, 0).is_err() {
        return;
    }
    for data_len in [0, 64 << 10, 1 << 20, 1 << 40, u64::MAX] {
        let Ok(Some(state)) = ReencryptionState::of(&metadata, data_len) else { continue };
        let covered: u64 = state.pieces().iter().map(|piece| piece.at.end - piece.at.start).sum();
        assert_eq!(covered, state.size, "the parts make up the whole");
        let (_, _, _) = (state.progress(), doubts::encrypted_by_now(&state), finished(&metadata, &state));
        let Some(zone) = next_zone(&state, ZONE) else { continue };
        assert!(zone.start < zone.end && zone.end <= state.size, "{zone:?} of {}", state.size);
        state.put(&mut metadata.clone(), &state.done_with(&zone), None);
    }
}

/// The default size of a zone.
fn usual_zone(state: &ReencryptionState) -> u64 {
    let protected = !matches!(state.resilience, Resilience::None);
    if protected && memory::available() / 32 >= LARGE_ZONE { LARGE_ZONE } else { ZONE }
}

fn next_zone(state: &ReencryptionState, most: u64) -> Option<Range<u64>> {
    // A zone's limit depends on where it begins, which depends on its size: so the second call uses the limit of the first guess.
    let alignment = state.alignment();
    let aligned = |most: u64| (most / alignment * alignment).max(alignment);
    let guess = state.next_zone(aligned(most))?;
    state.next_zone(aligned(most.min(state.zone_limit(guess.start))))
}

/// Returns the metadata of the finished volume, and the areas to wipe then.
fn finished(metadata: &Metadata, state: &ReencryptionState) -> (Metadata, Vec<(u32, Range<u64>)>) {
    let mut new = metadata.clone();
    let mut segment = state.last.segment.clone();
    segment.flags.clear();
    segment.size = Size::Dynamic;
    new.segments = [(0, segment)].into();
    for (number, digest) in &mut new.digests {
        digest.segments = if state.last.digest == Some(*number) { vec![Id(0)] } else { Vec::new() };
    }
    let old = state.previous.digest.filter(|digest| state.last.digest != Some(*digest));
    let of_old = old.and_then(|digest| metadata.digests.get(&digest)).map_or(Vec::new(), |d| d.keyslots.clone());
    let gone: Vec<u32> = of_old.iter().map(|id| id.0).chain([state.keyslot]).collect();
    let area = |number: &u32| {
        let area = &metadata.keyslots.get(number)?.area;
        Some((*number, area.offset.0..area.offset.0.checked_add(area.size.0)?))
    };
    let areas = gone.iter().filter_map(area).collect();
    gone.iter().for_each(|number| slots::take_out(&mut new, *number));
    if let Some(requirements) = &mut new.config.requirements {
        requirements.mandatory.retain(|name| !proof::is_requirement(name));
        if requirements.mandatory.is_empty() && requirements.other.is_empty() {
            new.config.requirements = None;
        }
    }
    (new, areas)
}

/// Overwrites a part of the data's store with random bytes.
fn wipe(data: &dyn Store, at: Range<u64>) -> Result<()> {
    for start in (at.start..at.end).step_by(WIPED as usize) {
        let mut bytes = vec![0; WIPED.min(at.end - start) as usize];
        write::random(&mut bytes)?;
        data.write_clobbering(start, &mut bytes)?;
    }
    Ok(data.flush()?)
}

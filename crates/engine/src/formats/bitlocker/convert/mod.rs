//! In-place conversion, zone by zone: encryption runs from the beginning to the end, and decryption from the end to the beginning.
//! Everything below the watermark in the metadata is encrypted, and nothing above it. So every program can read a partly converted
//! volume.
//!
//! During the conversion the state is "dirty", which other programs refuse, and a [`log`] tells encrypted from plain sectors. Each
//! zone takes three steps: the log, the zone itself, then the watermark in the three copies of the metadata. Each is flushed before
//! the next begins. So a crash leaves at most one zone with sectors of both kinds. Such a zone can be read, and the next run
//! rewrites it entirely. After the user stops the conversion, the state is "paused".

mod begin;
mod decrypted;
mod leave;
pub(super) mod log;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::{Secret, SectorCipher};

use super::boot::{Boot, Kind, LEN};
use super::editor::next_counter;
use super::layout::{Part, Places, ZoneState};
use super::metadata::{COPIES, Copy, Metadata, State};
use super::method::Method;
use super::noise::is_noise;
use super::{BitLocker, BitLockerHeader, NAME, is_decrypted, is_encrypted, unlock, wiped, write};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::in_place::{InPlaceConversion, InPlaceConverter, InPlaceStores, ReencryptionRequest, Towards};
use crate::formats::in_use::{self, LiveVolume};
use crate::formats::takes::{self, Parameter, Purpose, check_opening};
use crate::formats::{Format, VolumeInUse};
use crate::random;
use crate::spec::Spec;
use crate::store::{Handover, InUseConversion, Lender, SMALLEST_SECTOR, Store};
use crate::volume::{ConversionKind, Volume};
use log::{Log, Record, block_room};

/// How many bytes a thread converts at a time.
const PIECE: usize = 128 << 10;

impl InPlaceConverter for BitLocker {
    fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let mut converting = wiped(NAME, Converting::new(attached(stores)?, with, towards, request.zone))?;
        converting.rate = request.rate;
        if let Some(lender) = stores.data.lender() {
            converting.lent_by(lender)?;
        }
        if towards.is_some() {
            request.agreed(&[])?;
        }
        Ok(Box::new(converting))
    }

    fn convert_in_use(
        &self,
        volume: VolumeInUse<'_>,
        with: &Unlock<'_>,
        request: &InUseConversion,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut converting = Converting::new(volume.data(), with, None, request.zone)?;
        converting.must_be_whole()?;
        converting.rate = request.rate;
        converting.live = Some(volume.follow(converting.kind()));
        converting.carry_out(progress, cancel)
    }

    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<()> {
        takes::check(NAME, &self.takes(), Purpose::Creating, &spec.parameters())?;
        if stores.data.lender().is_some() {
            let what = "encrypting a file system while it is in use".to_owned();
            return Err(Error::unsupported(what).hint("Nothing was changed. Unmount it first."));
        }
        request.agreed(&[])?;
        wiped(NAME, begin::encryption(attached(stores)?, spec, first))
    }
}

/// Returns the store of a volume without a detached header.
fn attached<'a>(stores: InPlaceStores<'a>) -> Result<&'a Arc<dyn Store>> {
    if stores.header.is_some() {
        takes::check(NAME, &BitLocker(()).takes(), Purpose::Opening, &[Parameter::DetachedHeader])?;
    }
    Ok(stores.data)
}

/// A volume that is being converted, unlocked.
struct Converting<'a> {
    store: Arc<dyn Store>,
    /// The copies of the metadata that were intact and must not change in the meantime.
    read: Vec<Copy>,
    metadata: Metadata,
    kind: Kind,
    places: Places,
    method: &'static Method,
    vmk: Secret,
    cipher: Arc<dyn SectorCipher>,
    log: Log,
    /// The log size in the metadata outside the dirty state.
    log_size: u32,
    /// The maximum size of a zone, in bytes.
    zone: u64,
    /// The highest rate, in bytes per second.
    rate: Option<u64>,
    /// The goal of the conversion.
    towards: Towards,
    pool: Pool,
    /// The process that uses the volume and does the work.
    lender: Option<&'a dyn Lender>,
    /// The volume that follows, if this process uses it.
    live: Option<LiveVolume<'a>>,
}

/// Returns the contents of the zone whose conversion was interrupted. `None` if there is no log of this program, which only a dirty
/// volume can have.
///
/// # Errors
/// `Io`.
pub(super) fn interrupted(
    store: &dyn Store,
    metadata: &Metadata,
    places: &Places,
    fvek: &Secret,
    cipher: &Arc<dyn SectorCipher>,
) -> Result<Option<Vec<Part>>> {
    let log = Log::of(metadata, fvek);
    if metadata.state != State::DIRTY || log.announced(store)?.is_none() {
        return Ok(None);
    }
    let record = open_zone(&log, store, metadata, places)?;
    record.map_or(Ok(Vec::new()), |record| record.parts(store, places.sector, cipher)).map(Some)
}

/// The record of the next zone, if that was begun.
fn open_zone(log: &Log, store: &dyn Store, metadata: &Metadata, places: &Places) -> Result<Option<Record>> {
    let towards = going(metadata);
    // The whole rest of its range: the zone size may differ from run to run.
    let Some(left) = next_zone(places, metadata.state_offset, towards, u64::MAX) else { return Ok(None) };
    let Some(record) = log.read(store)? else { return Ok(None) };
    let zone = &record.zone;
    let begins_there = match towards {
        Towards::Encrypted => zone.start == left.start && zone.end <= left.end,
        Towards::Plain => zone.end == left.end && zone.start >= left.start,
    };
    let whole = (zone.end - zone.start).is_multiple_of(places.sector);
    Ok((begins_there && whole).then_some(record))
}

/// The direction of a conversion that has begun.
fn going(metadata: &Metadata) -> Towards {
    if metadata.next_state == State::ENCRYPTED { Towards::Encrypted } else { Towards::Plain }
}

/// Returns the ranges of the store to convert: everything except the first sector, the noise after it, and areas that are not part
/// of the plaintext. The relocated first sectors are a range of their own.
fn ranges(places: &Places) -> Vec<Range<u64>> {
    let moved = places.header_place..places.header_place + places.header;
    let mut ranges = Vec::new();
    let mut at = places.header;
    for (reserved, _) in &places.reserved {
        ranges.push(at..reserved.start);
        if *reserved == moved && !places.vista {
            ranges.push(moved.clone());
        }
        at = reserved.end;
    }
    ranges.push(at..places.size);
    ranges.retain(|range| range.start < range.end);
    ranges
}

/// The next zone to convert, on the wrong side of the watermark. `None` when everything is done.
fn next_zone(places: &Places, watermark: u64, towards: Towards, most: u64) -> Option<Range<u64>> {
    let ranges = ranges(places);
    match towards {
        Towards::Encrypted => {
            let range = ranges.into_iter().find(|range| range.end > watermark)?;
            let start = range.start.max(watermark);
            Some(start..range.end.min((start / most + 1).saturating_mul(most)))
        }
        Towards::Plain => {
            let range = ranges.into_iter().rev().find(|range| range.start < watermark)?;
            let end = range.end.min(watermark);
            Some(range.start.max((end - 1) / most * most)..end)
        }
    }
}

/// Refuses volumes whose metadata cannot be proven, or that only Windows can finish. The first sector is not sealed.
fn can_be_converted(header: &BitLockerHeader) -> Result<()> {
    let kinds = header.copies.iter().map(|copy| Boot::of(&copy.metadata).kind).chain([header.boot.kind]);
    for kind in kinds {
        match kind {
            Kind::EncryptOnWrite => {
                return Err(Error::unsupported("converting an encrypt-on-write volume of Windows")
                    .hint("Nothing was changed. Finish the encryption in Windows."));
            }
            Kind::Vista => {
                return Err(Error::unsupported(
                    "converting a Windows Vista volume in place: its metadata are not sealed",
                )
                .hint("Nothing was changed. Copy its contents out, or decrypt it in Windows."));
            }
            Kind::Windows7 | Kind::ToGo => {}
        }
    }
    match header.first_sector {
        Some(what) => Err(Error::misuse(what).hint("Nothing was changed.").advise(Advice::RepairHeader)),
        None => Ok(()),
    }
}

fn malformed_state(what: &str) -> Error {
    Error::new(ErrorKind::Malformed { field: "state", offset: 12, what: what.to_owned() }).hint("Nothing was changed.")
}

impl<'a> Converting<'a> {
    fn new(store: &Arc<dyn Store>, with: &Unlock<'_>, towards: Option<Towards>, zone: Option<u64>) -> Result<Self> {
        check_opening(NAME, &BitLocker(()).takes(), with)?;
        let header = BitLockerHeader::read(store)?;
        can_be_converted(&header)?;
        let decrypted = is_decrypted(&header.first().metadata);
        let (copy, opened) = match decrypted {
            true => (header.first(), decrypted::to_be_left(&header, with, towards)?),
            false => header.opened(with)?,
        };
        let Some(vmk) = opened.vmk.filter(|vmk| decrypted || unlock::sealed_by(copy, vmk)) else {
            return Err(Error::misuse(
                "the metadata cannot be written: their hash does not match, or only the volume key was given",
            )
            .hint("Nothing was changed. Give a password; if the header is damaged, repair it first.")
            .advise(Advice::RepairHeader));
        };
        let mut metadata = copy.metadata.clone();
        metadata.next_nonce = next_counter(copy)?;
        log::has_room(&metadata)?;
        let places = Places::of(&header.boot, &metadata, store.len())?;
        if places.size > store.len() {
            return Err(super::cut_short(places.size, store.len()));
        }
        let method = Method::numbered(metadata.method)?;
        if method.mode.ends_with("Elephant") && places.sector > SMALLEST_SECTOR {
            let what =
                format!("converting {}-byte sectors with the diffuser: a power cut could tear one", places.sector);
            return Err(Error::unsupported(what).hint("Nothing was changed.").advise(Advice::CopyVolume));
        }
        let cipher = method.cipher(&opened.fvek, header.boot.sector_size, with.acceleration)?;
        if !decrypted && metadata.state_offset == 0 {
            let plain = places.beginning(&**store, &cipher)? == Some(ZoneState::Plain);
            if is_encrypted(&metadata) || !plain {
                return Err(malformed_state("the metadata and the data disagree on what is encrypted"));
            }
        }
        let log = Log::of(&metadata, &opened.fvek);
        let zone = log.zone_of(zone, places.sector)?;
        let announced = log.announced(&**store)?;
        if metadata.state == State::DIRTY && announced.is_none() {
            return Err(Error::unsupported("resuming a conversion that Windows began")
                .hint("Nothing was changed. Windows resumes it by itself."));
        }
        let log_size = announced.filter(|_| metadata.state == State::DIRTY).unwrap_or(metadata.log_size);
        let towards = match (towards, has_begun(&metadata)) {
            (Some(towards), _) => towards,
            (None, true) => going(&metadata),
            (None, false) => return Err(Error::misuse("it is not being converted")),
        };
        if towards == Towards::Encrypted
            && (metadata.state, metadata.next_state) == (State::ENCRYPTED, State::ENCRYPTED)
        {
            return Err(Error::misuse("it is already fully encrypted"));
        }
        let pool = Pool::for_this_machine(Duration::ZERO);
        // Only the metadata are sealed, but some To Go volumes do not record their kind there.
        let to_go = [header.boot.kind, Boot::of(&metadata).kind].contains(&Kind::ToGo);
        let kind = if to_go { Kind::ToGo } else { Kind::Windows7 };
        let (store, read) = (Arc::clone(store), header.copies);
        let (rate, lender, live) = (None, None, None);
        Ok(Self {
            store,
            read,
            metadata,
            kind,
            places,
            method,
            vmk,
            cipher,
            log,
            log_size,
            zone,
            rate,
            towards,
            pool,
            lender,
            live,
        })
    }

    /// Leaves the work to the process that uses the volume.
    ///
    /// # Errors
    /// `Unsupported` if the volume cannot be converted in use; those of [`Lender::may_convert`].
    fn lent_by(&mut self, lender: &'a dyn Lender) -> Result<()> {
        self.must_be_whole()?;
        lender.may_convert(&self.asked_for(), &Handover { keys: &[&self.vmk], header: None })?;
        self.lender = Some(lender);
        Ok(())
    }

    fn asked_for(&self) -> InUseConversion {
        InUseConversion { len: self.places.size, zone: Some(self.zone), rate: self.rate }
    }

    /// Refuses a volume whose conversion needs more than its zones.
    fn must_be_whole(&self) -> Result<()> {
        let why = match () {
            () if self.metadata.state == State::DIRTY => "its conversion was interrupted",
            () if is_decrypted(&self.metadata) => "its data are decrypted already",
            () if self.store.len() - self.places.size >= self.places.sector => "its file is longer than the volume",
            () => return Ok(()),
        };
        Err(Error::unsupported(format!("converting it while it is in use: {why}"))
            .hint("Nothing was changed. Unmount it first."))
    }

    fn watermark(&self) -> u64 {
        self.places.encrypted
    }

    /// Writes the state of the volume and the watermark to all copies of the metadata.
    fn say(&mut self, state: State, next: State, watermark: u64) -> Result<()> {
        let log_size = if state == State::DIRTY { 0 } else { self.log_size };
        let (state_offset, next_state) = (watermark, next);
        self.say_all(Metadata { state, next_state, state_offset, log_size, ..self.metadata.clone() })?;
        self.places.encrypted = watermark;
        Ok(())
    }

    /// Writes the metadata. In the dirty state a log follows them in their area; the last copy with another state overwrites it.
    fn say_all(&mut self, metadata: Metadata) -> Result<()> {
        log::has_room(&metadata)?;
        let dirty = metadata.state == State::DIRTY;
        let mut area = write::written(metadata, &self.vmk)?;
        if dirty {
            area.truncate(block_room(&self.metadata) as usize);
        }
        write::copies(&self.metadata, &area, &self.read).carry_out(&*self.store)?;
        self.read = (0..COPIES).map(|i| Copy::read(&*self.store, self.metadata.copies[i])).collect::<Result<_>>()?;
        self.metadata = self.read[0].metadata.clone();
        Ok(())
    }

    /// From here on other programs refuse the volume, and the log tells encrypted from plain sectors.
    fn begin(&mut self) -> Result<()> {
        if self.metadata.state == State::DIRTY {
            // The copies may differ.
            self.say(State::DIRTY, self.metadata.next_state, self.watermark())?;
            self.recover()?;
        } else {
            self.log.announce(&*self.store, self.log_size)?;
        }
        self.say(State::DIRTY, goal(self.towards), self.watermark())
    }

    /// Finishes the zone that was being rewritten, in its original direction.
    fn recover(&mut self) -> Result<()> {
        let Some(record) = open_zone(&self.log, &*self.store, &self.metadata, &self.places)? else { return Ok(()) };
        let going = going(&self.metadata);
        let mut bytes = self.plaintext(&record)?;
        if going == Towards::Encrypted {
            self.crypt(&record.zone, &mut bytes, going);
        }
        self.log.rewrite(&*self.store, &record)?;
        self.store.write_clobbering(record.zone.start, &mut bytes)?;
        self.store.flush()?;
        self.advance(&record.zone, going)
    }

    /// Returns the plaintext of a zone in which some sectors are encrypted.
    fn plaintext(&self, record: &Record) -> Result<Vec<u8>> {
        let zone = record.zone.start..record.zone.end;
        let apart = record.parts(&*self.store, self.places.sector, &self.cipher)?;
        let places = Places { apart, ..self.places.clone() };
        let layout = places.stored_layout(&self.cipher, zone.clone())?;
        let mut bytes = vec![0; (zone.end - zone.start) as usize];
        Volume::new(Arc::clone(&self.store), layout).read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    fn zones(&mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        while let Some(zone) = next_zone(&self.places, self.watermark(), self.towards, self.zone) {
            let (done, all) = self.progress();
            progress(done, all);
            if cancel.load(Ordering::Relaxed) {
                self.pause()?;
                return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
            }
            let begun = Instant::now();
            let part = self.places.plaintext_of(&zone);
            self.live.iter().for_each(|live| live.close(part.clone(), 0..0));
            let mut bytes = vec![0; (zone.end - zone.start) as usize];
            if let Err(error) = self.store.read_at(zone.start, &mut bytes) {
                // No data have changed.
                self.pause()?;
                return Err(error.into());
            }
            self.rewrite(&zone, bytes)?;
            self.advance(&zone, self.towards)?;
            self.follow()?;
            if self.rate.is_some() || self.live.as_ref().is_some_and(LiveVolume::in_demand) {
                in_use::pause(zone.end - zone.start, begun.elapsed(), self.rate, cancel);
            }
        }
        Ok(())
    }

    /// Opens the volume in use to requests, with the layout that follows from the state.
    fn follow(&mut self) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        live.open(Some(self.places.layout(&self.cipher, &self.metadata, &*self.store)?), 0..0);
        Ok(())
    }

    /// From now on the contents of this part of a volume in use are uncertain, until it [follows](Self::follow).
    fn doubt(&mut self, part: &Range<u64>) {
        self.live.iter_mut().for_each(|live| live.doubt(part.clone()));
    }

    /// Makes requests to this part of a volume in use wait.
    fn close(&self, part: &Range<u64>) {
        self.live.iter().for_each(|live| live.close(part.clone(), part.clone()));
    }

    fn rewrite(&mut self, zone: &Range<u64>, stored: Vec<u8>) -> Result<()> {
        let mut converted = stored.clone();
        self.crypt(zone, &mut converted, self.towards);
        let marks = match self.towards {
            Towards::Encrypted => converted.clone(),
            Towards::Plain => self.leave_what_is_plain(&stored, &mut converted),
        };
        // A sector that changes after its mark was written would count as plain.
        let part = self.places.plaintext_of(zone);
        self.doubt(&part);
        self.log.write(&*self.store, zone, &marks)?;
        self.close(&part);
        if let Err(error) = self.store.write_clobbering(zone.start, &mut converted) {
            // Tries to undo an incomplete write; if that fails, the log tells encrypted from plain sectors.
            let mut stored = stored;
            let _ = self.store.write_clobbering(zone.start, &mut stored);
            return Err(error.into());
        }
        Ok(self.store.flush()?)
    }

    /// Keeps sectors unchanged that cannot be ciphertext: it copies them from `stored` to `converted`. With "used space only",
    /// Windows leaves free space unencrypted, and so the copy of the boot sector behind an NTFS. Returns the bytes for the log's
    /// marks of ciphertext.
    fn leave_what_is_plain(&self, stored: &[u8], converted: &mut [u8]) -> Vec<u8> {
        let sector = self.places.sector as usize;
        let mut marks = stored.to_vec();
        let sectors = marks.chunks_mut(sector).zip(stored.chunks(sector).zip(converted.chunks_mut(sector)));
        for (marks, (stored, converted)) in sectors.filter(|(_, (stored, _))| !is_noise(stored)) {
            converted.copy_from_slice(stored);
            marks.iter_mut().for_each(|byte| *byte = !*byte);
        }
        marks
    }

    fn crypt(&self, zone: &Range<u64>, bytes: &mut [u8], towards: Towards) {
        for_each_piece(&self.pool, bytes, PIECE, |at, piece| {
            let first = (zone.start + at as u64) / self.places.sector;
            match towards {
                Towards::Encrypted => self.cipher.encrypt(first, piece),
                Towards::Plain => self.cipher.decrypt(first, piece),
            }
        });
    }

    fn advance(&mut self, zone: &Range<u64>, towards: Towards) -> Result<()> {
        let watermark = if towards == Towards::Encrypted { zone.end } else { zone.start };
        self.say(State::DIRTY, goal(towards), watermark)
    }

    /// Leaves a volume that every program reads correctly, by the watermark.
    fn pause(&mut self) -> Result<()> {
        self.say(State::PAUSED, goal(self.towards), self.watermark())
    }
}

impl InPlaceConversion for Converting<'_> {
    fn progress(&self) -> (u64, u64) {
        let ranges = ranges(&self.places);
        let bytes = |range: &Range<u64>| range.end - range.start;
        let all = ranges.iter().map(bytes).sum();
        let encrypted = ranges.iter().map(|r| r.start..r.end.min(self.watermark()).max(r.start));
        let encrypted: u64 = encrypted.map(|range| bytes(&range)).sum();
        (if self.towards == Towards::Encrypted { encrypted } else { all - encrypted }, all)
    }

    fn kind(&self) -> ConversionKind {
        match self.towards {
            Towards::Encrypted => ConversionKind::Encrypt,
            Towards::Plain => ConversionKind::Decrypt,
        }
    }

    fn run(self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        self.carry_out(progress, cancel)
    }
}

impl Converting<'_> {
    fn carry_out(mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        if !self.store.writable() {
            return Err(Error::misuse("it was opened read-only; nothing was changed"));
        }
        let Some(lender) = self.lender else { return wiped(NAME, self.convert(progress, cancel)) };
        // The state says where to go.
        self.pause()?;
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::from(ErrorKind::Cancelled).advise(Advice::ResumeReencryption));
        }
        lender.convert(&self.asked_for(), &Handover { keys: &[&self.vmk], header: None }, progress, cancel)
    }

    fn convert(&mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        // A volume that is already decrypted only needs its format removed.
        if self.towards == Towards::Encrypted || !is_decrypted(&self.metadata) {
            self.begin()?;
            self.zones(progress, cancel)?;
        }
        let (_, all) = self.progress();
        progress(all, all);
        match self.towards {
            Towards::Encrypted => {
                self.hide_header()?;
                self.say(State::ENCRYPTED, State::ENCRYPTED, self.places.size)
            }
            Towards::Plain => self.leave(),
        }
    }
}

impl Converting<'_> {
    /// Overwrites the old place of the relocated first sectors with noise. Vista has its own first sectors there, and To Go the
    /// discovery volume.
    fn hide_header(&self) -> Result<()> {
        if self.kind != Kind::Windows7 {
            return Ok(());
        }
        let mut noise = vec![0; self.places.header as usize - LEN];
        random::fill(&mut noise)?;
        self.store.write_clobbering(LEN as u64, &mut noise)?;
        Ok(self.store.flush()?)
    }
}

/// Whether a conversion is under way.
fn has_begun(metadata: &Metadata) -> bool {
    let still = [State::ENCRYPTED, State::DECRYPTED];
    !still.contains(&metadata.state) || metadata.state != metadata.next_state
}

fn goal(towards: Towards) -> State {
    match towards {
        Towards::Encrypted => State::ENCRYPTED,
        Towards::Plain => State::DECRYPTED,
    }
}

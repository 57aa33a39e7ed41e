//! In-place conversion, zone by zone: from the beginning on until all is encrypted, or from the end on until nothing is. Below the
//! watermark in the metadata all is encrypted, from it on nothing, so that each program reads a volume that is half-way.
//!
//! While it goes on the state is "dirty", which others refuse, and a [`log`] tells what is what. For each zone: the log, the zone itself,
//! then the watermark in the three copies of the metadata, each flushed before the next begins. A crash leaves at most one zone
//! with sectors of both kinds. It is read as it is, and the next run rewrites all of it. When a person stops it, the
//! state is "paused".

mod begin;
mod decrypted;
mod leave;
mod log;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::{Secret, SectorCipher};

use super::boot::{Kind, LEN};
use super::editor::next_counter;
use super::layout::{Part, Places, ZoneState};
use super::metadata::{COPIES, Copy, Metadata, State};
use super::method::Method;
use super::noise::is_noise;
use super::{BitLocker, BitLockerHeader, NAME, find, is_decrypted, is_encrypted, unlock, wiped, write};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Format;
use crate::formats::in_place::{InPlaceConversion, InPlaceConverter, InPlaceStores, ReencryptionRequest, Towards};
use crate::formats::takes::{self, Parameter, Purpose, check_opening};
use crate::random;
use crate::spec::Spec;
use crate::store::{SMALLEST_SECTOR, Store};
use crate::volume::Volume;
pub(super) use log::block_room;
use log::{Log, Record};

/// Bytes that a thread converts at a time.
const PIECE: usize = 128 << 10;

impl InPlaceConverter for BitLocker {
    fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        with: &Unlock<'_>,
        towards: Option<Towards>,
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let converting = wiped(NAME, Converting::new(attached(stores)?, with, towards, request.zone))?;
        if towards.is_some() {
            request.agreed(&[])?;
        }
        Ok(Box::new(converting))
    }

    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<()> {
        takes::check(NAME, &self.takes(), Purpose::Creating, &spec.parameters())?;
        request.agreed(&[])?;
        wiped(NAME, begin::encryption(attached(stores)?, spec, first))
    }
}

/// The one store of a volume.
fn attached<'a>(stores: InPlaceStores<'a>) -> Result<&'a Arc<dyn Store>> {
    if stores.header.is_some() {
        takes::check(NAME, &BitLocker(()).takes(), Purpose::Opening, &[Parameter::DetachedHeader])?;
    }
    Ok(stores.data)
}

/// A volume that is converted, unlocked.
struct Converting {
    store: Arc<dyn Store>,
    /// The copies of the metadata that were whole, which are not to change meanwhile.
    read: Vec<Copy>,
    metadata: Metadata,
    kind: Kind,
    places: Places,
    method: &'static Method,
    vmk: Secret,
    cipher: Arc<dyn SectorCipher>,
    log: Log,
    /// What the metadata have as the size of a log when they are not dirty.
    log_size: u32,
    /// Bytes of a zone, at most.
    zone: u64,
    /// What is to be in the end.
    towards: Towards,
    pool: Pool,
}

/// What is in the zone whose conversion was cut short. Nothing if there is no log of this program, which only a dirty volume can have.
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

/// The record of the zone that comes next, if it had been begun.
fn open_zone(log: &Log, store: &dyn Store, metadata: &Metadata, places: &Places) -> Result<Option<Record>> {
    let towards = going(metadata);
    // All that is left of its range: how large a zone is may differ from run to run.
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

/// Where a conversion that has begun goes.
fn going(metadata: &Metadata) -> Towards {
    if metadata.next_state == State::ENCRYPTED { Towards::Encrypted } else { Towards::Plain }
}

/// The ranges of the store that are encrypted or not: all but the place of the first sector and the noise behind it, and what is
/// not part of the plaintext. What is stored elsewhere is a range of its own.
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

/// The zone that is converted next: what is left of it is on the wrong side of the watermark. None when all is done.
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

/// Refuses volumes whose metadata nobody can prove, or that only Windows can finish. What the first sector says is not sealed.
fn can_be_converted(header: &BitLockerHeader) -> Result<()> {
    let kinds = header.copies.iter().map(|copy| find::boot_of(&copy.metadata).kind).chain([header.boot.kind]);
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

impl Converting {
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
            return Err(
                Error::unsupported(what).hint("Nothing was changed. Copy its contents to a new volume instead.")
            );
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
        // Only the metadata are sealed, but not all of To Go's say what they are.
        let to_go = [header.boot.kind, find::boot_of(&metadata).kind].contains(&Kind::ToGo);
        let kind = if to_go { Kind::ToGo } else { Kind::Windows7 };
        let (store, read) = (Arc::clone(store), header.copies);
        Ok(Self { store, read, metadata, kind, places, method, vmk, cipher, log, log_size, zone, towards, pool })
    }

    fn watermark(&self) -> u64 {
        self.places.encrypted
    }

    /// Says in all copies of the metadata what state the volume is in, and how far it is encrypted.
    fn say(&mut self, state: State, next: State, watermark: u64) -> Result<()> {
        let log_size = if state == State::DIRTY { 0 } else { self.log_size };
        let (state_offset, next_state) = (watermark, next);
        self.say_all(Metadata { state, next_state, state_offset, log_size, ..self.metadata.clone() })?;
        self.places.encrypted = watermark;
        Ok(())
    }

    /// Writes the metadata. While they are dirty there is a log behind what is theirs, which is gone with the last copy that says otherwise.
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

    /// From here on others keep away, and the log tells what is what.
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

    /// Brings the zone to its end that was being rewritten, in the direction in which that was.
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

    /// What a zone holds of which some sectors are encrypted.
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
            let mut bytes = vec![0; (zone.end - zone.start) as usize];
            if let Err(error) = self.store.read_at(zone.start, &mut bytes) {
                // Nothing has been touched.
                self.pause()?;
                return Err(error.into());
            }
            self.rewrite(&zone, bytes)?;
            self.advance(&zone, self.towards)?;
        }
        Ok(())
    }

    fn rewrite(&self, zone: &Range<u64>, stored: Vec<u8>) -> Result<()> {
        let mut converted = stored.clone();
        self.crypt(zone, &mut converted, self.towards);
        let marks = match self.towards {
            Towards::Encrypted => converted.clone(),
            Towards::Plain => self.leave_what_is_plain(&stored, &mut converted),
        };
        self.log.write(&*self.store, zone, &marks)?;
        if let Err(error) = self.store.write_clobbering(zone.start, &mut converted) {
            // Perhaps what is not there yet can be undone at least; if not, the log tells what is what.
            let mut stored = stored;
            let _ = self.store.write_clobbering(zone.start, &mut stored);
            return Err(error.into());
        }
        Ok(self.store.flush()?)
    }

    /// Windows leaves free space as it was where it encrypts "used space only", and so the copy of the boot sector behind an NTFS. What
    /// cannot be ciphertext stays in `converted` as it is `stored`. Returns the bytes that mark the ciphertext of all other sectors.
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

    /// Leaves a volume that each program reads right, as far as the watermark goes.
    fn pause(&mut self) -> Result<()> {
        self.say(State::PAUSED, goal(self.towards), self.watermark())
    }
}

impl InPlaceConversion for Converting {
    fn progress(&self) -> (u64, u64) {
        let ranges = ranges(&self.places);
        let bytes = |range: &Range<u64>| range.end - range.start;
        let all = ranges.iter().map(bytes).sum();
        let encrypted = ranges.iter().map(|r| r.start..r.end.min(self.watermark()).max(r.start));
        let encrypted: u64 = encrypted.map(|range| bytes(&range)).sum();
        (if self.towards == Towards::Encrypted { encrypted } else { all - encrypted }, all)
    }

    fn run(mut self: Box<Self>, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        if !self.store.writable() {
            return Err(Error::misuse("it was opened read-only; nothing was changed"));
        }
        wiped(NAME, self.convert(progress, cancel))
    }
}

impl Converting {
    fn convert(&mut self, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<()> {
        // One that is decrypted already has only to be left.
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

impl Converting {
    /// Noise over what was at the beginning before it was stored elsewhere. Vista has its own there, and To Go the discovery volume.
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

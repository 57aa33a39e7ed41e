//! In-place conversion of a volume that is read and written meanwhile.
//!
//! Writes to a zone wait from the moment it is read until the header says that it is done, and reads wait while it is written. With
//! that, the steps are those of an unused volume, except that the header says that a zone is done before requests go on in it:
//! otherwise recovery could undo what they write. If a step fails, its zone stays closed and requests to it fail, because only
//! resuming the conversion reveals what is in it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Facts, Format, Header, InPlaceConverter, KeyProcesses, KeylessConversion, convertible};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::key_process;
use crate::key_process::volume::KeylessLayout;
use crate::store::{InUseConversion, Store};
use crate::volume::{Closed, ConversionKind, ConversionProgress, Layout, Payload, Segment, Volume, VolumeEncryption};

/// How long a pause for other requests lasts, compared to the work on the zone before it.
const PAUSE: u32 = 2;

/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many bytes are compared in each place, to prove that a header belongs to the volume in use.
const COMPARED: u64 = 4096;

/// A conversion, which reports how many bytes are done, and of how many.
type Work<'a> = dyn Fn(&dyn Fn(u64, u64)) -> Result<()> + 'a;

/// A volume that this process uses, and the store of its header if that is detached.
#[derive(Clone, Copy)]
pub struct VolumeInUse<'a> {
    volume: &'a Volume,
    header: Option<&'a Arc<dyn Store>>,
}

impl<'a> VolumeInUse<'a> {
    /// The volume, directly in its file.
    pub fn new(volume: &'a Volume, header: Option<&'a Arc<dyn Store>>) -> Self {
        Self { volume, header }
    }

    /// Fails if this volume cannot follow a conversion, or if its header is another one. `with` has its volume keys.
    ///
    /// # Errors
    /// `Unsupported` and `Misuse`, with the reason; those of opening the header.
    pub fn may_be_converted(&self, with: &Unlock<'_>, request: &InUseConversion) -> Result<()> {
        must_follow(self.volume)?;
        let isolated = |segment: &Segment| matches!(segment.payload, Payload::KeyProcess(_));
        if self.volume.layout().segments().iter().any(isolated) {
            return Err(Error::unsupported("its keys are in a key process"));
        }
        must_be_as_long(self.volume, request)?;
        must_match(self.volume, self.opened()?.unlock(with)?.layout)
    }

    /// Carries out or resumes the conversion of the volume while it is read and written: up to the end, or until `cancel` is set.
    /// `with` has its volume keys: those of both sides if they differ.
    ///
    /// # Errors
    /// Those of [`VolumeInUse::may_be_converted`], [`InPlaceConverter::conversion`] and
    /// [`InPlaceConversion::run`](super::InPlaceConversion::run).
    pub fn convert(
        &self,
        with: &Unlock<'_>,
        request: &InUseConversion,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.may_be_converted(with, request)?;
        let (_, converter) = self.convertible()?;
        let work = |report: &dyn Fn(u64, u64)| converter.convert_in_use(*self, with, request, report, cancel);
        let encryption = || self.facts(with).map_or_else(VolumeEncryption::none, |facts| facts.encryption());
        self.reported(progress, &work, &encryption)
    }

    /// Fails if this volume, whose keys are in a key process, cannot follow a conversion.
    ///
    /// # Errors
    /// `Unsupported`, with the reason.
    pub fn may_follow_key_process(&self) -> Result<()> {
        must_follow(self.volume)?;
        let (format, converter) = self.convertible()?;
        match converter.reencrypter() {
            Some(_) => Ok(()),
            None => Err(Error::unsupported(format!("a {} volume whose keys are in a key process", format.name()))),
        }
    }

    /// Whether a key process that gives this layout and this proof has opened the volume in use.
    ///
    /// # Errors
    /// Those of the key process of the volume.
    pub fn is_opened_by(&self, outline: &KeylessLayout, proof: &[Vec<u8>]) -> Result<bool> {
        let layout = self.volume.layout();
        let now = KeylessLayout::of_handles(&layout, &**self.volume.store())?;
        Ok(now.may_have_become(outline) && key_process::volume::proof(&layout)? == proof)
    }

    /// The layout of the volume as its key process would describe it, and the proof of its keys.
    ///
    /// # Errors
    /// Those of the key process; `Misuse` if the keys are in this process.
    pub fn identity(&self) -> Result<(KeylessLayout, Vec<Vec<u8>>)> {
        let layout = self.volume.layout();
        Ok((KeylessLayout::of_handles(&layout, &**self.volume.store())?, key_process::volume::proof(&layout)?))
    }

    /// Carries out or resumes a conversion of a volume whose keys are in a key process. Another one takes its place, which has the keys
    /// of both sides; this process has none. A cipher that fails, because the key process has ended, fails before its zone is begun.
    ///
    /// # Errors
    /// Those of [`VolumeInUse::convert`], and of the key process.
    pub fn convert_with_key_process(
        &self,
        keyless: &KeylessConversion,
        key_processes: KeyProcesses<'_>,
        progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.may_follow_key_process()?;
        must_be_as_long(self.volume, &keyless.request)?;
        let (_, converter) = self.convertible()?;
        let key_processes = RefCell::new(Some(key_processes));
        let work = |report: &dyn Fn(u64, u64)| match key_processes.take() {
            Some(them) => converter.convert_with_key_process(*self, keyless, them, report, cancel),
            None => Ok(()),
        };
        self.reported(progress, &work, &|| keyless.encryption.clone())
    }

    /// Does the work, and keeps account of it in the volume. Then `encryption` says how the volume is encrypted.
    fn reported(
        &self,
        progress: &dyn Fn(u64, u64),
        work: &Work<'_>,
        encryption: &dyn Fn() -> VolumeEncryption,
    ) -> Result<()> {
        let (begun, before) = (Instant::now(), Cell::new(None));
        let report = |done: u64, size: u64| {
            let before = before.get().unwrap_or_else(|| before.replace(Some(done)).unwrap_or(done));
            let Some(ConversionProgress { kind, .. }) = self.volume.conversion() else { return };
            let rate = (done - before) as f64 / begun.elapsed().as_secs_f64();
            let seconds_left = (done > before).then(|| ((size - done) as f64 / rate) as u64);
            self.volume.set_conversion(Some(ConversionProgress { kind, done, size, seconds_left }));
            progress(done, size);
        };
        let done = work(&report);
        self.volume.set_conversion(None);
        if done.is_ok() {
            self.volume.set_converted(encryption());
        }
        // The system reports a failed write-back once, and it may have been that of another request.
        if let (Err(Error { kind: ErrorKind::Io(_), .. }), Some(file)) = (&done, self.volume.file()) {
            file.next_flush_fails();
        }
        done
    }

    /// Facts about the volume, unless it is plaintext now. One of its keys may be gone.
    fn facts(&self, with: &Unlock<'_>) -> Option<Facts> {
        let encrypted = |segment: &Segment| matches!(segment.payload, Payload::Crypt { .. });
        if !self.volume.layout().segments().iter().any(encrypted) {
            return None;
        }
        let header = self.opened().ok()?;
        let alone = |key| header.unlock(&Unlock { credentials: std::slice::from_ref(key), ..*with }).ok();
        with.credentials.iter().find_map(alone).map(|unlocked| unlocked.facts)
    }

    fn opened(&self) -> Result<Box<dyn Header>> {
        let (format, _) = self.convertible()?;
        match self.header {
            Some(header) => format.open_detached(header, self.volume.store()),
            None => format.open(self.volume.store()),
        }
    }

    fn convertible(&self) -> Result<(&'static dyn Format, &'static dyn InPlaceConverter)> {
        let header = self.header.unwrap_or(self.volume.store());
        convertible(&**header)?.ok_or_else(|| Error::unsupported("its format cannot be converted while in use"))
    }

    /// Fails unless the volume has this layout and the same keys.
    pub(super) fn must_match(&self, layout: Layout) -> Result<()> {
        must_match(self.volume, layout)
    }

    /// The store of the data.
    pub fn data(&self) -> &'a Arc<dyn Store> {
        self.volume.store()
    }

    /// The store of a detached header.
    pub fn header(&self) -> Option<&'a Arc<dyn Store>> {
        self.header
    }

    /// The size of the plaintext, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.volume.len()
    }

    /// The volume, to follow its conversion.
    pub(super) fn follow(&self, kind: ConversionKind) -> LiveVolume<'a> {
        let progress = ConversionProgress { kind, done: 0, size: self.len(), seconds_left: None };
        self.volume.set_conversion(Some(progress));
        LiveVolume { volume: self.volume, in_doubt: None }
    }
}

/// Fails if a volume in use cannot be converted.
fn must_follow(volume: &Volume) -> Result<()> {
    let layout = volume.layout();
    let refused = |why: &str| Err(Error::unsupported(why.to_owned()));
    if volume.has_failed() {
        return refused("it failed before, and a part of the volume is closed since");
    }
    for segment in layout.segments() {
        match &segment.payload {
            Payload::Crypt { .. } | Payload::KeyProcess(_) | Payload::Clear | Payload::Zero => {}
            Payload::Fixed(_) => return refused("it was interrupted in the middle of a zone"),
            Payload::Authenticated { .. } | Payload::KeyProcessTagged { .. } => {
                return refused("its sectors have tags");
            }
        }
    }
    if !volume.writable() || layout.segments().iter().any(|segment| !segment.writable) {
        return refused("it is open read-only");
    }
    Ok(())
}

/// Fails if the header gives another size.
fn must_be_as_long(volume: &Volume, request: &InUseConversion) -> Result<()> {
    // Less than a sector at the end is not used.
    if volume.len() != request.len - request.len % volume.layout().sector_size() {
        return Err(Error::unsupported("its header gives a different size"));
    }
    Ok(())
}

/// Fails unless the volume in use has this layout and the same keys: another header may have opened it.
fn must_match(volume: &Volume, layout: Layout) -> Result<()> {
    let outline = |layout: &Layout| -> Vec<_> {
        // The last segment has no end: the volume may have grown.
        let of = |s: &Segment| (s.at, s.stored_at, s.payload.sector_size(), matches!(s.payload, Payload::Clear));
        layout.segments().iter().map(of).collect()
    };
    let same = outline(&volume.layout()) == outline(&layout);
    let len = volume.len();
    let by_header = Volume::new(volume.store().clone(), layout);
    // Open again on return.
    let live = LiveVolume { volume, in_doubt: None };
    live.close(0..len, 0..0);
    let reads_same = || -> Result<bool> {
        for at in [0, len / 2, len.saturating_sub(COMPARED)] {
            let [mut one, mut other] = [(); 2].map(|()| vec![0; COMPARED.min(len - at) as usize]);
            volume.read_at(at, &mut one)?;
            by_header.read_at(at, &mut other)?;
            if one != other {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let matches = if same { reads_same() } else { Ok(false) };
    match matches? {
        true => Ok(()),
        false => Err(Error::misuse("the volume in use was not opened with this header")),
    }
}

/// A volume in use that follows its conversion. On drop it is open to all requests, except for a part whose contents are uncertain.
pub(super) struct LiveVolume<'a> {
    volume: &'a Volume,
    in_doubt: Option<Range<u64>>,
}

impl LiveVolume<'_> {
    /// Makes requests to these parts wait.
    pub fn close(&self, writes: Range<u64>, reads: Range<u64>) {
        self.volume.change_layout(None, Closed { writes, reads, failed: false });
    }

    /// From now on the contents of this part are uncertain, until it is opened with a new layout.
    pub fn doubt(&mut self, part: Range<u64>) {
        self.in_doubt = Some(part);
    }

    /// Lets requests go on, with this layout if there is one. Writes to `writes` still wait.
    pub fn open(&mut self, layout: Option<Layout>, writes: Range<u64>) {
        self.in_doubt = None;
        self.volume.change_layout(layout, Closed { writes, reads: 0..0, failed: false });
    }

    /// Whether others used the volume since the last call.
    pub fn in_demand(&self) -> bool {
        self.volume.was_used()
    }
}

impl Drop for LiveVolume<'_> {
    fn drop(&mut self) {
        match self.in_doubt.take() {
            Some(part) => {
                let closed = Closed { writes: part.clone(), reads: part, failed: true };
                self.volume.change_layout(None, closed);
            }
            None => self.open(None, 0..0),
        }
    }
}

/// Waits after work on a zone of `len` bytes that took as long as `work`: as the rate demands, or for other requests.
pub(super) fn pause(len: u64, work: Duration, rate: Option<u64>, cancel: &AtomicBool) {
    const TICK: Duration = Duration::from_millis(50);
    let mut left = match rate {
        Some(rate) => Duration::from_secs_f64(len as f64 / rate.max(1) as f64).saturating_sub(work),
        None => (work * PAUSE).min(LONGEST_PAUSE),
    };
    while !left.is_zero() && !cancel.load(Ordering::Relaxed) {
        thread::sleep(left.min(TICK));
        left = left.saturating_sub(TICK);
    }
}

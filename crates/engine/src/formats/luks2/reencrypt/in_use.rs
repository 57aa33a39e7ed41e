//! Reencryption of a volume that is read and written meanwhile.
//!
//! Writes to a zone wait from the moment it is read until the header says that it is done, and reads wait while it is written. With
//! that, the steps are those of an unused volume, except that the header says that a zone is done before requests go on in it:
//! otherwise recovery could undo what they write. If a step fails, its zone stays closed and requests to it fail, because only
//! resuming the reencryption reveals what is in it.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::state::{ReencryptionState, Resilience};
use super::{HeaderAndData, Reencryption, recovery};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{InUseReencryption, Store};
use crate::volume::{Closed, ConversionProgress, Layout, Payload, Segment, Volume};

/// The default size of a zone, in bytes: requests to it wait while it is rewritten.
const ZONE: u64 = 16 << 20;

/// The largest zone in use, in bytes.
const LARGEST_ZONE: u64 = 64 << 20;

/// How long a pause for other requests lasts, compared to the work on the zone before it.
const PAUSE: u32 = 2;

/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many bytes are compared in each place, to prove that a header belongs to the volume in use.
const COMPARED: u64 = 4096;

/// Reencrypts a volume in use, from where its header says. `with` has the volume keys of both sides.
///
/// # Errors
/// Those of [`Reencryption::resume`] and [`Reencryption::run`]; those of [`must_follow`]; `Misuse` if the reencryption is none that a
/// volume in use can follow.
pub(super) fn run(
    volume: &Volume,
    with: &Unlock<'_>,
    request: &InUseReencryption,
    progress: &dyn Fn(u64, u64),
    cancel: &AtomicBool,
) -> Result<()> {
    must_follow(volume, request)?;
    let stores = HeaderAndData::new(volume.store(), None);
    let mut work = Reencryption::resume(stores, with, None)?.at_rate(request.rate);
    let alignment = work.state().alignment();
    work.zone = request.zone.unwrap_or(ZONE).next_multiple_of(alignment).min(LARGEST_ZONE);
    must_be_able(work.state(), volume)?;
    must_match(volume, recovery::layout(work.state(), &stores, &work.ciphers)?)?;
    work.record.live = Some(Live { volume });
    let (since, before) = (Instant::now(), work.progress().done);
    let report = |done: u64, size: u64| {
        let rate = (done - before) as f64 / since.elapsed().as_secs_f64();
        let seconds_left = (done > before).then(|| ((size - done) as f64 / rate) as u64);
        volume.set_conversion(Some(ConversionProgress { done, size, seconds_left }));
        progress(done, size);
    };
    let done = work.run(&report, cancel);
    volume.set_conversion(None);
    // The system reports a failed write-back once, and it may have been that of another request.
    if let (Err(Error { kind: ErrorKind::Io(_), .. }), Some(file)) = (&done, volume.file()) {
        file.next_flush_fails();
    }
    done
}

/// Fails if a volume in use cannot be reencrypted, or is not the one meant.
///
/// # Errors
/// `Unsupported`; `Misuse`.
pub(super) fn must_follow(volume: &Volume, request: &InUseReencryption) -> Result<()> {
    let layout = volume.layout();
    let refused = |why: &str| Err(Error::unsupported(why.to_owned()));
    if volume.has_failed() {
        return refused("it failed before, and a part of the volume is closed since. Unmount it first");
    }
    if !volume.writable() || layout.segments().iter().any(|segment| !segment.writable) {
        return refused("it is open read-only");
    }
    for segment in layout.segments() {
        match &segment.payload {
            Payload::Crypt { .. } | Payload::Clear => {}
            Payload::KeyProcess(_) | Payload::KeyProcessTagged { .. } => {
                return refused("its keys are in a process of their own");
            }
            _ => return refused("its sectors have tags"),
        }
    }
    if layout.segments()[0].stored_at != request.start {
        return refused("another volume in this file is in use");
    }
    // Less than a sector at the end is not used.
    if volume.len() != request.len - request.len % layout.sector_size() {
        return refused("its file has another size now; first resize it");
    }
    Ok(())
}

fn must_be_able(state: &ReencryptionState, volume: &Volume) -> Result<()> {
    let why = match state {
        ReencryptionState { hot: Some(_), .. } => "it was interrupted in the middle of a zone",
        ReencryptionState { shift: Some(_), .. } => "its data move to another place",
        ReencryptionState { resilience: Resilience::None, .. } => "its zones have no protection",
        ReencryptionState { size, .. } if *size != volume.len() => "its header has another size than the volume in use",
        _ => return Ok(()),
    };
    Err(Error::misuse(why))
}

/// Fails unless the volume in use has this layout and the same keys: its own header may be elsewhere.
fn must_match(volume: &Volume, layout: Layout) -> Result<()> {
    let outline = |layout: &Layout| -> Vec<_> {
        // The last segment has no end: the volume may have grown.
        let of = |s: &Segment| (s.at, s.stored_at, s.payload.sector_size(), matches!(s.payload, Payload::Clear));
        layout.segments().iter().map(of).collect()
    };
    let same = outline(&volume.layout()) == outline(&layout);
    let len = volume.len();
    let by_header = Volume::new(volume.store().clone(), layout);
    let live = Live { volume };
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
    live.open(None, 0..0);
    match matches? {
        true => Ok(()),
        false => Err(Error::misuse("the volume in use was not opened with this header")),
    }
}

/// A volume in use that follows its reencryption.
pub(super) struct Live<'a> {
    volume: &'a Volume,
}

impl Live<'_> {
    /// Makes requests to these parts wait.
    pub fn close(&self, writes: Range<u64>, reads: Range<u64>) {
        self.volume.change_layout(None, Closed { writes, reads, failed: false });
    }

    /// Lets requests go on, with this layout if there is one. Writes to `writes` still wait.
    pub fn open(&self, layout: Option<Layout>, writes: Range<u64>) {
        self.volume.change_layout(layout, Closed { writes, reads: 0..0, failed: false });
    }

    /// Makes all requests to this part fail.
    pub fn fail(&self, part: Range<u64>) {
        self.volume.change_layout(None, Closed { writes: part.clone(), reads: part, failed: true });
    }

    /// Whether others used the volume since the last call.
    pub fn in_demand(&self) -> bool {
        self.volume.was_used()
    }
}

/// How long to give way to other requests after work on a zone.
pub(super) fn pause_after(work: Duration) -> Duration {
    (work * PAUSE).min(LONGEST_PAUSE)
}

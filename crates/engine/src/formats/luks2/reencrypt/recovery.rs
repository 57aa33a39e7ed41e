//! What a hot zone holds after an interruption, and a layout of the volume that reads right without writing anything
//! (cryptsetup's luks2_reencrypt.c, `reencrypt_recover_segment`, writes).

use std::ops::Range;
use std::sync::Arc;

use claviger_crypto::SectorCipher;

use super::Stores;
use super::keys::Ciphers;
use super::state::{Checksums, Resilience, State, What, wrong};
use crate::advice::Advice;
use crate::error::{Error, Result};
use crate::volume::{Layout, Payload, Segment};

/// A part of the hot zone, and where its plaintext can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it is, in bytes of the plaintext.
    pub at: Range<u64>,
    /// Where it can be had.
    pub source: Source,
}

/// Where the plaintext of a part of the hot zone can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It has been rewritten.
    Rewritten,
    /// Where it was before, which has not been written over.
    Before,
    /// In the journal, as it was before.
    Journal,
}

/// Bytes of the hot zone that are looked at at a time.
const PIECE: u64 = 1 << 20;

/// What the hot zone holds; nothing if there is none.
///
/// # Errors
/// `Io`; `Unsupported` where nothing saves the zone.
pub(super) fn runs(state: &State, stores: &Stores<'_>) -> Result<Vec<Run>> {
    let Some(hot) = state.hot.clone() else { return Ok(Vec::new()) };
    match state.resilience_at(hot.start) {
        Resilience::Shift => Ok(vec![Run { at: hot, source: Source::Before }]),
        Resilience::Journal => Ok(vec![Run { at: hot, source: Source::Journal }]),
        Resilience::Checksum(sums) => by_checksums(state, stores, &hot, sums),
        Resilience::None => Err(wrong("segments", "a zone is being rewritten, and nothing says how far that has come")),
    }
}

/// Of each block: whether it still is what it was when its checksum was made.
fn by_checksums(state: &State, stores: &Stores<'_>, hot: &Range<u64>, sums: Checksums) -> Result<Vec<Run>> {
    let Checksums { hash, block } = sums;
    if !(hot.end - hot.start).is_multiple_of(block) {
        return Err(wrong("sector_size", "the zone that is being rewritten is no whole number of blocks"));
    }
    let mut runs: Vec<Run> = Vec::new();
    let mut sum = vec![0; hash.size];
    for start in (hot.start..hot.end).step_by(PIECE.max(block) as usize) {
        let end = hot.end.min(start + PIECE.max(block));
        let mut bytes = vec![0; (end - start) as usize];
        stores.data.read_at(state.last.offset() + start, &mut bytes)?;
        let first = (start - hot.start) / block * hash.size as u64;
        let mut stored = vec![0; bytes.len() / block as usize * hash.size];
        stores.header.read_at(state.area.start + first, &mut stored)?;
        let blocks = bytes.chunks(block as usize).zip(stored.chunks(hash.size));
        for (at, (bytes, stored)) in (start..end).step_by(block as usize).zip(blocks) {
            hash.checksum(&[bytes], &mut sum);
            let source = if sum == stored { Source::Before } else { Source::Rewritten };
            add(&mut runs, Run { at: at..at + block, source });
        }
    }
    Ok(runs)
}

fn add(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(before) if before.source == run.source => before.at.end = run.at.end,
        _ => runs.push(run),
    }
}

/// The volume as it is: every part with the cipher and at the place that it has by now. Nothing in it can be written while there
/// is a hot zone.
///
/// # Errors
/// Those of [`runs`]; `Unsupported` where the journal of a detached header would have to be read as a part of the volume.
pub(super) fn layout(state: &State, stores: &Stores<'_>, ciphers: &Ciphers) -> Result<Layout> {
    let mut segments = Vec::new();
    for piece in state.pieces() {
        match piece.what {
            What::Hot => {
                for run in runs(state, stores)? {
                    segments.push(recovered(state, stores, ciphers, &run)?);
                }
            }
            what => segments.push(segment(state, ciphers, what, &piece.at)),
        }
    }
    let layout = Layout::new(segments)?;
    Ok(if state.hot.is_some() { layout.read_only() } else { layout })
}

fn recovered(state: &State, stores: &Stores<'_>, ciphers: &Ciphers, run: &Run) -> Result<Segment> {
    Ok(match run.source {
        Source::Rewritten => segment(state, ciphers, What::Last, &run.at),
        Source::Before => segment(state, ciphers, state.was(run.at.start), &run.at),
        Source::Journal if stores.detached => {
            return Err(Error::unsupported(
                "opening a volume of which a part is only in the journal of its detached header",
            )
            .hint("Going on, with the same detached header, brings that part back.")
            .advise(Advice::ResumeReencryption));
        }
        Source::Journal => {
            let stored_at = state.area.start + (run.at.start - state.hot.as_ref().map_or(0, |hot| hot.start));
            Segment { stored_at, ..segment(state, ciphers, state.was(run.at.start), &run.at) }
        }
    })
}

fn segment(state: &State, ciphers: &Ciphers, what: What, at: &Range<u64>) -> Segment {
    let stored_at = state.side(what).offset() + at.start;
    Segment {
        at: at.start,
        len: at.end - at.start,
        stored_at,
        payload: payload(ciphers.of(what), at.start),
        writable: true,
    }
}

fn payload(cipher: Option<&Arc<dyn SectorCipher>>, at: u64) -> Payload {
    cipher.map_or(Payload::Clear, |cipher| Payload::crypt(Arc::clone(cipher), at / cipher.sector_size() as u64))
}

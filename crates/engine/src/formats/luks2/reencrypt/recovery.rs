//! Determines the contents of a hot zone after an interruption, and builds a layout that reads it correctly without writing
//! (cryptsetup's luks2_reencrypt.c, `reencrypt_recover_segment`, writes).

use std::ops::Range;
use std::sync::Arc;

use super::HeaderAndData;
use super::keys::Ciphers;
use super::state::{Checksums, ReencryptionState, Resilience, What, wrong};
use crate::advice::Advice;
use crate::error::{Error, Result};
use crate::volume::{Layout, Payload, Segment};

/// A part of the hot zone, and the source of its plaintext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its range, in bytes of the plaintext.
    pub at: Range<u64>,
    /// The source of its plaintext.
    pub source: Source,
}

/// The source of the plaintext of a part of the hot zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It has been rewritten.
    Rewritten,
    /// The old place, which has not been overwritten.
    Before,
    /// The journal, which holds the old contents.
    Journal,
    /// The old contents of a torn block, put together from its old and new parts.
    Torn(Arc<[u8]>),
}

/// How many bytes of the hot zone are checked at a time.
const PIECE: u64 = 1 << 20;

/// What a disk writes whole or not at all, in bytes.
const ATOM: usize = 512;

/// The largest block that is checked for tearing, in bytes: the largest encryption sector. It can be torn in 2^8 ways.
const LARGEST_TORN: usize = 4096;

/// The most blocks checked for tearing, which takes seconds. There are never many torn blocks, but anyone who can write to the disk
/// can create any number of meaningless ones.
const MOST_TORN: usize = 4096;

/// Returns the contents of the hot zone, if there is one.
///
/// # Errors
/// `Io`; `Unsupported` if the zone has no protection.
pub(super) fn runs(state: &ReencryptionState, stores: &HeaderAndData<'_>, ciphers: &Ciphers) -> Result<Vec<Run>> {
    let Some(hot) = state.hot.clone() else { return Ok(Vec::new()) };
    match state.resilience_at(hot.start) {
        Resilience::Shift => Ok(vec![Run { at: hot, source: Source::Before }]),
        Resilience::Journal => Ok(vec![Run { at: hot, source: Source::Journal }]),
        Resilience::Checksum(sums) => by_checksums(state, stores, ciphers, &hot, sums),
        Resilience::None => Err(wrong("segments", "a zone is being rewritten, but its progress is not recorded")),
    }
}

/// Determines for each block whether it is still the old one that the checksum covers, has been rewritten, or is torn.
fn by_checksums(
    state: &ReencryptionState,
    stores: &HeaderAndData<'_>,
    ciphers: &Ciphers,
    hot: &Range<u64>,
    sums: Checksums,
) -> Result<Vec<Run>> {
    let Checksums { hash, block } = sums;
    if !(hot.end - hot.start).is_multiple_of(block) {
        return Err(wrong("sector_size", "the zone being rewritten is not a whole number of blocks"));
    }
    let (mut runs, mut looked_into) = (Vec::new(), 0);
    let by = PIECE.max(block);
    for start in (hot.start..hot.end).step_by(by as usize) {
        let mut bytes = vec![0; (hot.end - start).min(by) as usize];
        stores.data.read_at(state.last.offset() + start, &mut bytes)?;
        let stored_at = state.area.start + (start - hot.start) / block * hash.size as u64;
        let mut stored = vec![0; bytes.len() / block as usize * hash.size];
        stores.header.read_at(stored_at, &mut stored)?;
        let now = all_sums(sums, &bytes);
        // Decrypts backward: a rewritten block becomes the old one again.
        let mut back = bytes.clone();
        let (mut were, mut of_next) = (Vec::new(), Vec::new());
        if now != stored {
            ciphers.convert_back(state, start, &mut back)?;
            were = all_sums(sums, &back);
            of_next = sums_of_next(state, stores, hot, start..start + bytes.len() as u64, sums)?;
        }
        for (i, stored) in stored.chunks(hash.size).enumerate() {
            let one = |sums: &[u8]| sums.chunks(hash.size).nth(i) == Some(stored);
            let (at, part) = (start + i as u64 * block, i * block as usize..(i + 1) * block as usize);
            let source = if one(&now) {
                Source::Before
            } else if one(&were) || one(&of_next) || looked_into == MOST_TORN {
                Source::Rewritten
            } else {
                looked_into += 1;
                // Any other block is damaged, or its mode chains blocks.
                untorn(&bytes[part.clone()], &back[part], sums, stored).map_or(Source::Rewritten, Source::Torn)
            };
            add(&mut runs, Run { at: at..at + block, source });
        }
    }
    Ok(runs)
}

fn all_sums(Checksums { hash, block }: Checksums, bytes: &[u8]) -> Vec<u8> {
    let mut sums = vec![0; bytes.len() / block as usize * hash.size];
    hash.checksums(block as usize, bytes, &mut sums);
    sums
}

/// The checksums of the part of the next zone that corresponds to `part` of the hot zone. They replace the hot zone's
/// checksums once that is on the disk, before the header says so.
fn sums_of_next(
    state: &ReencryptionState,
    stores: &HeaderAndData<'_>,
    hot: &Range<u64>,
    part: Range<u64>,
    sums: Checksums,
) -> Result<Vec<u8>> {
    let after = ReencryptionState { hot: None, done: state.done_with(hot), ..state.copy() };
    let Some(next) = after.next_zone(hot.end - hot.start) else { return Ok(Vec::new()) };
    let begins = next.start.saturating_add(part.start - hot.start);
    let zone = begins..next.end.min(begins.saturating_add(part.end - part.start));
    if zone.is_empty() || !(zone.end - zone.start).is_multiple_of(sums.block) {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; (zone.end - zone.start) as usize];
    stores.data.read_at(after.read_at(&zone).start, &mut bytes)?;
    Ok(all_sums(sums, &bytes))
}

/// Returns the old contents of a torn block: for each atom either the current bytes or those converted back, in the combination
/// with the right checksum. Finds nothing if the cipher chains blocks within a sector, as CBC does.
fn untorn(there: &[u8], back: &[u8], sums: Checksums, stored: &[u8]) -> Option<Arc<[u8]>> {
    let atoms = there.len() / ATOM;
    if there.len() > LARGEST_TORN || atoms < 2 {
        return None;
    }
    let mut all = Vec::with_capacity(there.len() << atoms);
    for ways in 0..1usize << atoms {
        let atom = |i: usize| &if ways >> i & 1 == 1 { back } else { there }[i * ATOM..(i + 1) * ATOM];
        (0..atoms).for_each(|i| all.extend_from_slice(atom(i)));
    }
    let found = all_sums(sums, &all).chunks(sums.hash.size).position(|sum| sum == stored)?;
    Some(all[found * there.len()..][..there.len()].into())
}

fn add(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(before) if before.source == run.source && !matches!(run.source, Source::Torn(_)) => {
            before.at.end = run.at.end;
        }
        _ => runs.push(run),
    }
}

/// The current layout of the volume: each part with its present cipher and place. It is read-only while there is a hot zone.
///
/// # Errors
/// Those of [`runs`]; `Unsupported` if the journal of a detached header would have to be read as a part of the volume.
pub(super) fn layout(state: &ReencryptionState, stores: &HeaderAndData<'_>, ciphers: &Ciphers) -> Result<Layout> {
    let mut segments = Vec::new();
    for piece in state.pieces() {
        match piece.what {
            What::Hot => {
                for run in runs(state, stores, ciphers)? {
                    segments.push(recovered(state, stores, ciphers, &run)?);
                }
            }
            what => segments.push(segment(state, ciphers, what, &piece.at)),
        }
    }
    let layout = Layout::new(segments)?;
    Ok(if state.hot.is_some() { layout.read_only() } else { layout })
}

fn recovered(state: &ReencryptionState, stores: &HeaderAndData<'_>, ciphers: &Ciphers, run: &Run) -> Result<Segment> {
    Ok(match &run.source {
        Source::Rewritten => segment(state, ciphers, What::Last, &run.at),
        Source::Before => segment(state, ciphers, state.was(run.at.start), &run.at),
        Source::Journal if stores.detached => {
            return Err(Error::unsupported("opening a volume with a part only in its detached header's journal")
                .hint("Resume the reencryption with the same detached header to restore that part.")
                .advise(Advice::ResumeReencryption));
        }
        Source::Torn(bytes) => {
            let mut plaintext = bytes.to_vec();
            if let Some(cipher) = ciphers.of(state.was(run.at.start)) {
                cipher.decrypt(run.at.start, &mut plaintext)?;
            }
            let payload = Payload::Fixed(plaintext.into());
            Segment { payload, ..segment(state, ciphers, What::Last, &run.at) }
        }
        Source::Journal => {
            let stored_at = state.area.start + (run.at.start - state.hot.as_ref().map_or(0, |hot| hot.start));
            Segment { stored_at, ..segment(state, ciphers, state.was(run.at.start), &run.at) }
        }
    })
}

fn segment(state: &ReencryptionState, ciphers: &Ciphers, what: What, at: &Range<u64>) -> Segment {
    let stored_at = state.side(what).offset() + at.start;
    Segment {
        at: at.start,
        len: at.end - at.start,
        stored_at,
        payload: ciphers.of(what).map_or(Payload::Clear, |cipher| cipher.payload(at.start)),
        writable: true,
    }
}

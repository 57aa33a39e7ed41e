//! The state of a reencryption according to the metadata: the volume before and after it, and its progress.
//!
//! The plaintext's offsets do not change: byte `x` is at `previous.offset + x` before it is rewritten, and at `last.offset + x`
//! afterwards. Segments, in plaintext order, say which part is stored where. To check them, they are generated anew from the state
//! that was read from them (LUKS2 On-Disk Format Specification 1.1.1, section 5.2; cryptsetup's luks2_reencrypt.c,
//! `reencrypt_make_hot_segments` and `reencrypt_make_post_segments`).

use std::collections::BTreeMap;
use std::ops::Range;

use claviger_crypto::hash::{self, Hash};
use serde_json::Value;

use super::ReencryptionProgress;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks2::metadata::{Decimal, Digest, Id, Keyslot, Metadata, MetadataSegment, Size};
use crate::formats::luks2::validate::is_backup;
use crate::volume::ConversionKind;

/// Flag of the segment being rewritten.
pub(super) const HOT: &str = "in-reencryption";
/// Flag of the segment that describes the volume before the reencryption.
pub(super) const PREVIOUS: &str = "backup-previous";
/// Flag of the segment that describes the volume after the reencryption.
pub(super) const FINAL: &str = "backup-final";
/// Flag of the segment that holds the volume's first part, if that was moved.
pub(super) const MOVED: &str = "backup-moved-segment";

/// The direction in which the volume is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the beginning to the end.
    Forward,
    /// From the end to the beginning.
    Backward,
}

/// How the hot zone, the part being rewritten, survives an interruption.
#[derive(Clone, Copy)]
pub enum Resilience {
    /// No protection: its data are lost.
    None,
    /// Checksums of the old contents tell which blocks have been rewritten.
    Checksum(Checksums),
    /// A copy of the old contents.
    Journal,
    /// The zone is written elsewhere, so the old contents stay until the next zone is rewritten.
    Shift,
}

/// Checksums of blocks.
#[derive(Clone, Copy)]
pub struct Checksums {
    /// Their hash function.
    pub hash: &'static Hash,
    /// The size of a block, in bytes.
    pub block: u64,
}

/// The state of a reencryption.
pub struct ReencryptionState {
    /// The kind of reencryption.
    pub mode: ConversionKind,
    /// The direction in which the volume is rewritten.
    pub direction: Direction,
    /// How hot zones survive an interruption, except those of the moved part.
    pub resilience: Resilience,
    /// How the moved part's hot zone survives an interruption. It is rewritten in place when a volume is decrypted.
    pub resilience_of_moved: Resilience,
    /// How far the data are moved, in bytes.
    pub shift: Option<u64>,
    /// The keyslot that stores the state.
    pub keyslot: u32,
    /// The range of checksums or journal in the header's store, in bytes.
    pub area: Range<u64>,
    /// The volume before the reencryption.
    pub previous: Side,
    /// The volume after the reencryption.
    pub last: Side,
    /// The volume's first part, in the place to which it was moved before the start.
    pub moved: Option<Side>,
    /// The size of the plaintext, in bytes.
    pub size: u64,
    /// Whether the last segment has a fixed size.
    pub fixed: bool,
    /// The range that has been rewritten, in bytes of the plaintext.
    pub done: Range<u64>,
    /// The range being rewritten, in bytes of the plaintext.
    pub hot: Option<Range<u64>>,
}

/// The volume before or after a reencryption.
#[derive(Clone)]
pub struct Side {
    /// The segment as the metadata describe it.
    pub segment: MetadataSegment,
    /// The digest of its key.
    pub digest: Option<u32>,
    /// Where the moved part ends, in bytes of the plaintext. Only used for the moved part.
    pub end: u64,
}

/// A part of the plaintext, and its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its range, in bytes of the plaintext.
    pub at: Range<u64>,
    /// Its current state.
    pub what: What,
}

/// The current state of a part of the plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Not rewritten yet.
    Previous,
    /// Not rewritten yet, but moved.
    Moved,
    /// Being rewritten.
    Hot,
    /// Rewritten.
    Last,
}

impl ReencryptionState {
    /// Returns the state of the reencryption that `metadata` describe, if there is one. `data_len` is the size of the data's store,
    /// in bytes.
    ///
    /// # Errors
    /// `Malformed` for a state that no reencryption can reach; `Unsupported` for unknown features.
    pub fn of(metadata: &Metadata, data_len: u64) -> Result<Option<Self>> {
        let Some((number, keyslot)) = metadata.keyslots.iter().find(|(_, keyslot)| keyslot.kind == "reencrypt") else {
            return Ok(None);
        };
        let side = |flag| Side::by_flag(metadata, flag);
        let (Some(previous), Some(last)) = (side(PREVIOUS)?, side(FINAL)?) else {
            return Err(wrong("segments", "the old or new state of the volume is not recorded"));
        };
        let mut state = Self::beginning(*number, keyslot, (previous, last, side(MOVED)?), 0, false)?;
        state.check_sides()?;
        state.see(metadata, data_len)?;
        Ok(Some(state))
    }

    /// Why it cannot be resumed while the volume is in use, if it cannot.
    pub(super) fn not_in_use(&self) -> Option<&'static str> {
        match self {
            Self { hot: Some(_), .. } => Some("it was interrupted in the middle of a zone"),
            Self { resilience: Resilience::None, .. } => Some("its zones have no protection"),
            _ => None,
        }
    }

    /// Returns the state of a reencryption before its first zone.
    ///
    /// # Errors
    /// `Malformed` and `Unsupported` for a keyslot that holds no valid state.
    pub(super) fn beginning(
        number: u32,
        keyslot: &Keyslot,
        (previous, last, moved): (Side, Side, Option<Side>),
        size: u64,
        fixed: bool,
    ) -> Result<Self> {
        let (resilience, resilience_of_moved) = resilience(keyslot)?;
        let mut state = Self {
            mode: mode(keyslot)?,
            direction: direction(keyslot)?,
            resilience,
            resilience_of_moved,
            shift: shift(keyslot)?,
            keyslot: number,
            area: keyslot.area.offset.0..keyslot.area.offset.0.saturating_add(keyslot.area.size.0),
            previous,
            last,
            moved,
            size,
            fixed,
            done: 0..0,
            hot: None,
        };
        let first = state.first_done().min(size);
        state.done = first..first;
        Ok(state)
    }

    /// Writes the initial segments into the metadata.
    pub(super) fn put_first(&self, metadata: &mut Metadata) {
        self.put(metadata, &self.done, None);
    }

    /// Returns the parts of the plaintext in order, including the hot zone if there is one.
    pub fn pieces(&self) -> Vec<Piece> {
        self.pieces_with(&self.done, self.hot.clone())
    }

    /// Returns the segments of the metadata in order, with or without a hot zone. Only the hot zone's flag is set.
    pub fn segments(&self, done: &Range<u64>, hot: Option<Range<u64>>) -> Vec<MetadataSegment> {
        let pieces = self.pieces_with(done, hot);
        let all_done = pieces.iter().all(|piece| piece.what == What::Last);
        let count = pieces.len();
        let segment = |(i, piece): (usize, &Piece)| {
            let open_end = i + 1 == count && (!self.fixed || all_done);
            let size = if open_end { Size::Dynamic } else { Size::Fixed(piece.at.end - piece.at.start) };
            let mut segment = self.side(piece.what).segment_at(piece.at.start, size);
            if piece.what == What::Hot {
                segment.flags.push(HOT.to_owned());
            }
            segment
        };
        pieces.iter().enumerate().map(segment).collect()
    }

    /// Writes the segments and their digests into the metadata: first the parts of the volume, then the backup segments.
    pub fn put(&self, metadata: &mut Metadata, done: &Range<u64>, hot: Option<Range<u64>>) {
        let pieces = self.pieces_with(done, hot.clone());
        let mut all: Vec<(MetadataSegment, Vec<u32>)> = Vec::new();
        for (segment, piece) in self.segments(done, hot).into_iter().zip(&pieces) {
            let digests = self.digests(piece.what, segment.kind == "crypt");
            all.push((segment, digests));
        }
        for side in [Some(&self.previous), Some(&self.last), self.moved.as_ref()].into_iter().flatten() {
            all.push((side.segment.clone(), side.digest.into_iter().collect()));
        }
        metadata.segments = (0..).zip(all.iter().map(|(segment, _)| segment.clone())).collect();
        for (number, digest) in &mut metadata.digests {
            let has =
                |(id, (_, digests)): (u32, &(MetadataSegment, Vec<u32>))| digests.contains(number).then_some(Id(id));
            digest.segments = (0..).zip(&all).filter_map(has).collect();
        }
    }

    /// Returns the progress.
    pub fn progress(&self) -> ReencryptionProgress {
        ReencryptionProgress { done: self.done.end - self.done.start, size: self.size, interrupted: self.hot.is_some() }
    }

    /// Returns the side that describes a part. For a part being rewritten it is the side after the reencryption.
    pub fn side(&self, what: What) -> &Side {
        match what {
            What::Previous => &self.previous,
            What::Moved => self.moved.as_ref().unwrap_or(&self.previous),
            What::Hot | What::Last => &self.last,
        }
    }

    /// Returns what state a part of the plaintext is in before it is rewritten: moved or not.
    pub fn was(&self, at: u64) -> What {
        if at < self.moved_end() { What::Moved } else { What::Previous }
    }

    /// Returns the range from which a zone of the plaintext is read, in bytes of the store.
    pub(super) fn read_at(&self, zone: &Range<u64>) -> Range<u64> {
        let offset = self.side(self.was(zone.start)).offset();
        offset.saturating_add(zone.start)..offset.saturating_add(zone.end)
    }

    /// Returns the range to which a zone of the plaintext is written, in bytes of the store.
    pub(super) fn written_at(&self, zone: &Range<u64>) -> Range<u64> {
        let offset = self.last.offset();
        offset.saturating_add(zone.start)..offset.saturating_add(zone.end)
    }

    /// Returns how a hot zone that begins at this byte of the plaintext survives an interruption.
    pub fn resilience_at(&self, at: u64) -> Resilience {
        if self.mode == ConversionKind::Decrypt && at < self.moved_end() {
            self.resilience_of_moved
        } else {
            self.resilience
        }
    }

    /// Where the moved part ends, in bytes of the plaintext.
    pub fn moved_end(&self) -> u64 {
        self.moved.as_ref().map_or(0, |moved| moved.end)
    }

    /// Whether everything is rewritten.
    pub fn finished(&self) -> bool {
        self.hot.is_none() && self.done == (0..self.size)
    }

    /// Returns the zone to rewrite next, of at most `most` bytes, or `None` if everything is done. If there is a hot zone, it is
    /// the next one.
    pub fn next_zone(&self, most: u64) -> Option<Range<u64>> {
        if self.hot.is_some() || self.finished() {
            return self.hot.clone();
        }
        let moved = self.moved_end();
        Some(match self.direction {
            // The moved part comes last: it lies where the data after it are written first.
            Direction::Forward if self.done.end == self.size => 0..self.done.start,
            Direction::Forward => self.done.end..self.size.min(self.done.end.saturating_add(most)),
            Direction::Backward => {
                let end = self.done.start;
                let least = if end > moved { moved } else { 0 };
                end.saturating_sub(most).max(least)..end
            }
        })
    }

    /// Returns the range that is done once a zone is.
    pub fn done_with(&self, zone: &Range<u64>) -> Range<u64> {
        if self.done.is_empty() {
            return zone.clone();
        }
        self.done.start.min(zone.start)..self.done.end.max(zone.end)
    }

    /// The multiple for sizes and offsets of zones, in bytes.
    pub fn alignment(&self) -> u64 {
        let block = |r: &Resilience| if let Resilience::Checksum(c) = r { c.block } else { 512 };
        let sectors = self.previous.sector().max(self.last.sector());
        block(&self.resilience).max(block(&self.resilience_of_moved)).max(sectors)
    }

    /// The largest size of a zone that begins at this byte of the plaintext, in bytes.
    pub fn zone_limit(&self, at: u64) -> u64 {
        let area = self.area.end - self.area.start;
        match self.resilience_at(at) {
            Resilience::None => u64::MAX,
            Resilience::Checksum(Checksums { hash, block }) => (area / hash.size as u64).saturating_mul(block),
            Resilience::Journal => area,
            Resilience::Shift => self.shift.unwrap_or(0),
        }
    }

    /// Where rewriting begins, in bytes of the plaintext.
    fn first_done(&self) -> u64 {
        match self.direction {
            Direction::Forward => self.moved_end(),
            Direction::Backward => self.size,
        }
    }

    fn pieces_with(&self, done: &Range<u64>, hot: Option<Range<u64>>) -> Vec<Piece> {
        let hot = hot.unwrap_or(0..0);
        let moved = self.moved_end().min(self.size);
        let mut borders = vec![0, self.size, moved, done.start, done.end, hot.start, hot.end];
        borders.sort_unstable();
        borders.dedup();
        let mut pieces: Vec<Piece> = Vec::new();
        for pair in borders.windows(2) {
            let at = pair[0]..pair[1];
            let what = match () {
                () if hot.contains(&at.start) => What::Hot,
                () if done.contains(&at.start) => What::Last,
                () => self.was(at.start),
            };
            match pieces.last_mut() {
                Some(before) if before.what == what => before.at.end = at.end,
                _ => pieces.push(Piece { at, what }),
            }
        }
        pieces
    }

    /// Returns the digests of a part: that of its current key, or both sides' where it is being rewritten.
    fn digests(&self, what: What, encrypted: bool) -> Vec<u32> {
        let mut digests: Vec<u32> = match what {
            What::Hot if self.mode == ConversionKind::Reencrypt => {
                [self.previous.digest, self.last.digest].into_iter().flatten().collect()
            }
            _ if encrypted => self.side(what).digest.into_iter().collect(),
            _ => Vec::new(),
        };
        digests.dedup();
        digests
    }

    /// Checks that both sides can belong to one reencryption.
    fn check_sides(&self) -> Result<()> {
        let kinds = (self.previous.segment.kind.as_str(), self.last.segment.kind.as_str());
        let expected = match self.mode {
            ConversionKind::Reencrypt => ("crypt", "crypt"),
            ConversionKind::Encrypt => ("linear", "crypt"),
            ConversionKind::Decrypt => ("crypt", "linear"),
        };
        if kinds != expected {
            return Err(wrong("segments", format!("a {} segment cannot become a {} one", kinds.0, kinds.1)));
        }
        if self.previous.segment.integrity.is_some() || self.last.segment.integrity.is_some() {
            return Err(Error::unsupported("reencryption of volumes with integrity protection"));
        }
        let (was, is_to_be) = (self.previous.segment.offset.0, self.last.segment.offset.0);
        let fits = match (self.shift, self.direction) {
            (None, _) => was == is_to_be,
            (Some(shift), Direction::Backward) => was.checked_add(shift) == Some(is_to_be),
            (Some(shift), Direction::Forward) => is_to_be.checked_add(shift) == Some(was),
        };
        if !fits {
            let what = format!(
                "the data move from byte {was} to byte {is_to_be}, which does not match the recorded \
                 distance"
            );
            return Err(wrong("segments", what));
        }
        let needs_moved = self.shift.is_some() && self.mode != ConversionKind::Reencrypt;
        match &self.moved {
            Some(moved) if needs_moved && moved.segment.kind == self.previous.segment.kind && moved.end > 0 => Ok(()),
            None if !needs_moved => Ok(()),
            _ => Err(wrong("segments", "a moved part is missing or misplaced")),
        }
    }

    /// Determines the progress from the segments, and checks that they are those of this progress.
    fn see(&mut self, metadata: &Metadata, data_len: u64) -> Result<()> {
        let parts: Vec<_> = metadata.segments.iter().filter(|(_, s)| !is_backup(s)).collect();
        self.size = self.size_of(&parts, data_len)?;
        self.fixed = parts.last().is_some_and(|(_, s)| s.size != Size::Dynamic);
        let (mut done, mut at) = (None::<Range<u64>>, 0u64);
        for (number, segment) in &parts {
            let end = match segment.size {
                Size::Fixed(size) => at.saturating_add(size),
                Size::Dynamic => self.size,
            };
            if segment.flags.iter().any(|flag| flag == HOT) {
                self.hot = Some(at..end);
            } else if self.is_last(**number, segment, at, metadata) {
                done = Some(done.map_or(at, |d| d.start)..end);
            }
            at = end;
        }
        let none = self.first_done().min(self.size);
        self.done = done.unwrap_or(none..none);
        self.check_moved()?;
        self.check_progress()?;
        self.check_segments(metadata, &parts)
    }

    /// The size of the plaintext: the size in the segments, or as much as fits into the store on both sides.
    fn size_of(&self, parts: &[(&u32, &MetadataSegment)], data_len: u64) -> Result<u64> {
        let mut size = 0u64;
        for (_, segment) in parts {
            size = match segment.size {
                Size::Fixed(len) => size.saturating_add(len),
                Size::Dynamic => data_len.saturating_sub(self.previous.offset().max(self.last.offset())),
            };
        }
        let moved_ends = self.moved.as_ref().map_or(0, |moved| moved.offset().saturating_add(moved.end));
        let previous_ends = if size > self.moved_end() { self.previous.offset().saturating_add(size) } else { 0 };
        let ends = previous_ends.max(self.last.offset().saturating_add(size)).max(moved_ends);
        if size == 0 || ends > data_len {
            let what = format!("the volume's data would end at byte {ends}, and there are {data_len} bytes");
            return Err(wrong("segments", what).hint("It was cut short, or the header belongs to another volume."));
        }
        Ok(size)
    }

    /// Whether a part has been rewritten. Both sides may look the same except for the key.
    fn is_last(&self, number: u32, segment: &MetadataSegment, at: u64, metadata: &Metadata) -> bool {
        let encrypted = segment.kind == "crypt";
        same_place(segment, &self.last.segment_at(at, segment.size))
            && (!encrypted
                || self.last.digest.is_some_and(|digest| {
                    metadata.digests.get(&digest).is_some_and(|d| d.segments.contains(&Id(number)))
                }))
    }

    /// Checks that nothing is written over the moved part before it is rewritten itself.
    fn check_moved(&self) -> Result<()> {
        let Some(moved) = self.moved.as_ref().filter(|_| !self.finished()) else { return Ok(()) };
        let fits = match self.mode {
            ConversionKind::Decrypt => moved.offset() == self.last.offset(),
            _ => moved.offset() >= self.last.offset().saturating_add(self.size),
        };
        if fits && moved.end <= self.size && self.shift.is_some_and(|shift| moved.end <= shift) {
            return Ok(());
        }
        Err(wrong("segments", format!("the moved part cannot be at byte {}", moved.offset())))
    }

    /// Checks that the finished range and the hot zone are where the order of rewriting puts them.
    fn check_progress(&self) -> Result<()> {
        let (first, done) = (self.first_done().min(self.size), &self.done);
        let alignment = self.alignment();
        let whole = |at: u64| at.is_multiple_of(alignment) || at == self.size;
        let mut good = whole(done.start) && whole(done.end);
        good &= match self.direction {
            Direction::Forward => done.start == first || (done.start == 0 && done.end == self.size),
            Direction::Backward => done.end == first,
        };
        if let Some(hot) = &self.hot {
            let next = Self { hot: None, ..self.copy() }.next_zone(hot.end - hot.start);
            good &= hot.start < hot.end && next.as_ref() == Some(hot) && whole(hot.start) && whole(hot.end);
            good &= hot.end - hot.start <= self.zone_limit(hot.start);
        }
        if good {
            return Ok(());
        }
        let what = format!("bytes {}..{} of the plaintext cannot be the rewritten part", done.start, done.end);
        Err(wrong("segments", what))
    }

    fn check_segments(&self, metadata: &Metadata, parts: &[(&u32, &MetadataSegment)]) -> Result<()> {
        let expected = self.segments(&self.done, self.hot.clone());
        let pieces = self.pieces();
        if expected.len() != parts.len() {
            return Err(wrong("segments", "they are not those of a reencryption"));
        }
        for (((number, segment), expected), piece) in parts.iter().zip(&expected).zip(&pieces) {
            let digests = self.digests(piece.what, segment.kind == "crypt");
            let linked: Vec<_> = links(&metadata.digests, **number);
            let fits = match piece.what {
                What::Hot => linked.iter().all(|digest| self.knows(*digest)),
                _ => linked == digests,
            };
            if !same_place(segment, expected) || !fits {
                return Err(wrong("segments", format!("segment {number} does not match the recorded progress")));
            }
        }
        Ok(())
    }

    fn knows(&self, digest: u32) -> bool {
        [self.previous.digest, self.last.digest].contains(&Some(digest))
    }

    /// Returns a copy.
    pub(super) fn copy(&self) -> Self {
        Self {
            area: self.area.clone(),
            previous: self.previous.clone(),
            last: self.last.clone(),
            moved: self.moved.clone(),
            done: self.done.clone(),
            hot: self.hot.clone(),
            ..*self
        }
    }
}

impl Side {
    /// Returns the side whose segment has this flag.
    fn by_flag(metadata: &Metadata, flag: &str) -> Result<Option<Self>> {
        let mut found = metadata.segments.iter().filter(|(_, s)| s.flags.iter().any(|f| f == flag));
        let Some((number, segment)) = found.next() else { return Ok(None) };
        if found.next().is_some() {
            return Err(wrong("segments", format!("more than one has the flag {flag}")));
        }
        let digests = links(&metadata.digests, *number);
        let encrypted = segment.kind == "crypt";
        if digests.len() != usize::from(encrypted) {
            return Err(wrong("digests", format!("segment {number} has {} of them", digests.len())));
        }
        let end = if let Size::Fixed(size) = segment.size { size } else { 0 };
        Ok(Some(Self { segment: segment.clone(), digest: digests.first().copied(), end }))
    }

    /// The offset of the plaintext's byte 0, in bytes of the data's store.
    pub fn offset(&self) -> u64 {
        self.segment.offset.0
    }

    /// The size of an encryption sector, in bytes.
    pub fn sector(&self) -> u64 {
        u64::from(self.segment.sector_size.unwrap_or(512))
    }

    /// Returns the segment that begins at this byte of the plaintext.
    fn segment_at(&self, at: u64, size: Size) -> MetadataSegment {
        let iv_tweak = self.segment.iv_tweak.map(|tweak| Decimal(tweak.0.saturating_add(at / 512)));
        let offset = Decimal(self.offset().saturating_add(at));
        MetadataSegment { offset, size, iv_tweak, flags: Vec::new(), ..self.segment.clone() }
    }
}

/// Whether two segments have the same offset and cipher, whatever their sizes.
fn same_place(one: &MetadataSegment, other: &MetadataSegment) -> bool {
    (&one.kind, one.offset, one.iv_tweak, &one.encryption, one.sector_size)
        == (&other.kind, other.offset, other.iv_tweak, &other.encryption, other.sector_size)
        && one.integrity == other.integrity
}

/// Returns the digests of a segment.
fn links(digests: &BTreeMap<u32, Digest>, segment: u32) -> Vec<u32> {
    digests.iter().filter(|(_, digest)| digest.segments.contains(&Id(segment))).map(|(number, _)| *number).collect()
}

fn mode(keyslot: &Keyslot) -> Result<ConversionKind> {
    match keyslot.other.get("mode").and_then(Value::as_str) {
        Some("reencrypt") => Ok(ConversionKind::Reencrypt),
        Some("encrypt") => Ok(ConversionKind::Encrypt),
        Some("decrypt") => Ok(ConversionKind::Decrypt),
        _ => Err(wrong("mode", "the reencryption keyslot does not name the operation")),
    }
}

fn direction(keyslot: &Keyslot) -> Result<Direction> {
    match keyslot.other.get("direction").and_then(Value::as_str) {
        Some("forward") => Ok(Direction::Forward),
        Some("backward") => Ok(Direction::Backward),
        _ => Err(wrong("direction", "the reencryption keyslot does not name the direction")),
    }
}

/// How far the data are moved: not at all, or by whole sectors.
fn shift(keyslot: &Keyslot) -> Result<Option<u64>> {
    let Some(shift) = keyslot.area.other.get("shift_size") else { return Ok(None) };
    let shift = serde_json::from_value::<Decimal>(shift.clone()).ok().map(|d| d.0);
    let shift = shift.filter(|shift| *shift > 0 && shift.is_multiple_of(512));
    shift.map(Some).ok_or_else(|| wrong("shift_size", "the data cannot be moved by this many bytes"))
}

/// Returns how hot zones survive an interruption, and how those of the moved part do.
fn resilience(keyslot: &Keyslot) -> Result<(Resilience, Resilience)> {
    let shifted = keyslot.area.other.contains_key("shift_size");
    let both = |resilience| Ok((resilience, resilience));
    let found = match keyslot.area.kind.as_str() {
        "none" => both(Resilience::None),
        "checksum" => both(Resilience::Checksum(checksums(keyslot)?)),
        "journal" => both(Resilience::Journal),
        "datashift" => both(Resilience::Shift),
        "datashift-checksum" => Ok((Resilience::Shift, Resilience::Checksum(checksums(keyslot)?))),
        "datashift-journal" => Ok((Resilience::Shift, Resilience::Journal)),
        other => Err(Error::unsupported(format!("the resilience mode {}", other.escape_debug()))),
    };
    if keyslot.area.kind.starts_with("datashift") != shifted {
        return Err(wrong("shift_size", "it does not fit the resilience mode"));
    }
    found
}

fn checksums(keyslot: &Keyslot) -> Result<Checksums> {
    let hash = keyslot.area.other.get("hash").and_then(Value::as_str);
    let hash = hash.ok_or_else(|| wrong("hash", "the checksums have none"))?;
    let hash =
        hash::by_name(hash).ok_or_else(|| Error::unsupported(format!("checksums by {}", hash.escape_debug())))?;
    let block = keyslot.area.other.get("sector_size").and_then(Value::as_u64);
    let block = block.filter(|block| block.is_power_of_two() && (512..=1 << 20).contains(block));
    let block = block.ok_or_else(|| wrong("sector_size", "checksummed blocks cannot have this size"))?;
    Ok(Checksums { hash, block })
}

/// The error for a field of the JSON area. serde does not report its exact offset.
pub(super) fn wrong(field: &'static str, what: impl Into<String>) -> Error {
    ErrorKind::Malformed { field, offset: 4096, what: what.into() }.into()
}

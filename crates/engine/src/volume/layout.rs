use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use claviger_crypto::SectorCipher;
use claviger_crypto::modes::AuthenticatedCipher;

use super::integrity::TaggedSectors;
use super::kernel::KernelCipher;
use crate::error::{Error, Result};
use crate::key_process::KeyHandle;
use crate::store::largest_sector;

/// Where a volume's bytes are in its store, and what decrypts them. Plain data: a format builds it, and a [`super::Volume`]
/// executes it.
#[derive(Debug)]
pub struct Layout {
    segments: Vec<Segment>,
    /// Ranges of the volume that must not be written: after the first attempt, all writes are refused.
    protected: Vec<Range<u64>>,
    /// The volume's type for the kernel's device-mapper, if requested; see [`Layout::for_kernel`].
    kernel: Option<&'static str>,
}

/// A range of a volume.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Offset in the volume, in bytes.
    pub at: u64,
    /// Length in bytes: whole sectors if encrypted.
    pub len: u64,
    /// Offset in the store, in bytes.
    pub stored_at: u64,
    /// The data stored there.
    pub payload: Payload,
    /// Whether it may be written.
    pub writable: bool,
}

/// The contents of a segment.
#[derive(Clone)]
pub enum Payload {
    /// Plaintext.
    Clear,
    /// Nothing stored: reads as zeros. In a writable segment, writing zeros is allowed, and stores nothing.
    Zero,
    /// Nothing stored: reads as these bytes, as long as the segment. In a writable segment, the same bytes may be written.
    Fixed(Arc<[u8]>),
    /// Whole encrypted sectors.
    Crypt {
        /// The cipher, which holds the key.
        cipher: Arc<dyn SectorCipher>,
        /// Tweak number of the segment's first sector.
        first: u64,
        /// The parameters for the kernel, keys included: layers in the order of encryption.
        kernel: Option<Arc<[KernelCipher]>>,
    },
    /// Encrypted sectors with a tag each. `stored_at` is then the offset of the area with its superblock.
    Authenticated {
        /// The area, which locates each sector and its tag.
        area: Arc<TaggedSectors>,
        /// The cipher, which holds the key.
        cipher: Arc<dyn AuthenticatedCipher>,
        /// Number of the segment's first sector in the area.
        first: u64,
        /// The parameters for the kernel, keys included.
        kernel: Option<Arc<[KernelCipher]>>,
    },
    /// Whole encrypted sectors whose key is in the key process.
    KeyProcess(KeyHandle),
    /// Encrypted sectors with a tag each, whose key is in the key process.
    KeyProcessTagged {
        /// The area, as in [`Payload::Authenticated`].
        area: Arc<TaggedSectors>,
        /// The handle to the key, which encrypts sectors and computes their tags.
        handle: KeyHandle,
        /// Number of the segment's first sector in the area.
        first: u64,
    },
}

impl Payload {
    /// Sectors encrypted with `cipher`; the first one has the tweak number `first`.
    pub fn crypt(cipher: Arc<dyn SectorCipher>, first: u64) -> Self {
        Self::Crypt { cipher, first, kernel: None }
    }

    /// Adds the kernel's parameters for the encryption, if any. They contain keys: only for callers that ask for them.
    pub fn with_kernel(mut self, layers: Option<Vec<KernelCipher>>) -> Self {
        if let Self::Crypt { kernel, .. } | Self::Authenticated { kernel, .. } = &mut self {
            *kernel = layers.map(Into::into);
        }
        self
    }

    /// Size of a sector that can only be read and written as a whole, in bytes; 1 if there are none.
    pub fn sector_size(&self) -> u64 {
        match self {
            Self::Clear | Self::Zero | Self::Fixed(_) => 1,
            Self::Crypt { cipher, .. } => cipher.sector_size() as u64,
            Self::Authenticated { cipher, .. } => cipher.sector_size() as u64,
            Self::KeyProcess(handle) | Self::KeyProcessTagged { handle, .. } => handle.sector_size() as u64,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear => f.write_str("Clear"),
            Self::Zero => f.write_str("Zero"),
            Self::Fixed(bytes) => write!(f, "Fixed {{ {} bytes }}", bytes.len()),
            Self::Crypt { cipher, first, kernel: _ } => {
                write!(f, "Crypt {{ sector_size: {}, first: {first} }}", cipher.sector_size())
            }
            Self::KeyProcess(handle) => handle.fmt(f),
            Self::KeyProcessTagged { area, handle, first } => {
                write!(f, "KeyProcessTagged {{ tag_size: {}, first: {first}, handle: {handle:?} }}", area.tag_size())
            }
            Self::Authenticated { cipher, first, .. } => {
                let (sector, tag) = (cipher.sector_size(), cipher.tag_size());
                write!(f, "Authenticated {{ sector_size: {sector}, tag_size: {tag}, first: {first} }}")
            }
        }
    }
}

impl Segment {
    /// Refuses a write at `into` of a segment that stores nothing, unless the data equal what it reads as.
    pub(super) fn keeps(&self, into: u64, data: &[u8]) -> io::Result<()> {
        let kept = match &self.payload {
            Payload::Zero => data.iter().all(|byte| *byte == 0),
            Payload::Fixed(bytes) => bytes[into as usize..].starts_with(data),
            Payload::Clear
            | Payload::Crypt { .. }
            | Payload::Authenticated { .. }
            | Payload::KeyProcess(_)
            | Payload::KeyProcessTagged { .. } => true,
        };
        let refused = || {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the volume's metadata are stored here; nothing was written",
            )
        };
        kept.then_some(()).ok_or_else(refused)
    }

    /// Whether the segment fits its payload: it lies within its area of tagged sectors, or is as long as its fixed bytes.
    fn fits_its_payload(&self) -> bool {
        let (area, first) = match &self.payload {
            Payload::Authenticated { area, first, .. } | Payload::KeyProcessTagged { area, first, .. } => (area, first),
            Payload::Fixed(bytes) => return bytes.len() as u64 == self.len,
            Payload::Clear | Payload::Zero | Payload::Crypt { .. } | Payload::KeyProcess(_) => return true,
        };
        let from = first.checked_mul(self.payload.sector_size());
        from.and_then(|from| from.checked_add(self.len)).is_some_and(|end| end <= area.len())
    }
}

impl Layout {
    /// Checks once that the segments follow each other from 0 without gaps, and that encrypted ones consist of whole sectors whose
    /// numbers do not overflow.
    ///
    /// # Errors
    /// `Misuse`: a format has to validate its header's fields before it builds a layout from them.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        let mut end = 0u64;
        for s in &segments {
            let whole = s.len.is_multiple_of(s.payload.sector_size()) && s.fits_its_payload();
            let ends = s.at.checked_add(s.len).filter(|_| s.stored_at.checked_add(s.len).is_some());
            match ends {
                Some(e) if s.at == end && s.len > 0 && whole => end = e,
                _ => return Err(Error::misuse(format!("the segment at {} with {} bytes does not fit", s.at, s.len))),
            }
        }
        Ok(Self { segments, protected: Vec::new(), kernel: None })
    }

    /// The whole store in clear, as one segment.
    ///
    /// # Errors
    /// `Misuse` for an empty store.
    pub fn clear(len: u64) -> Result<Self> {
        Self::new(vec![Segment { at: 0, len, stored_at: 0, payload: Payload::Clear, writable: true }])
    }

    /// Sets the volume's type for cryptsetup (`LUKS2`, `PLAIN`, `TCRYPT`), if kernel parameters were requested and are stored
    /// beside the segments: [`super::Mapping::of`] reads them.
    pub fn for_kernel(self, kind: Option<&'static str>) -> Self {
        Self { kernel: kind, ..self }
    }

    /// The volume's type for cryptsetup, if set.
    pub(super) fn kernel_kind(&self) -> Option<&'static str> {
        self.kernel
    }

    /// Removes the kernel's parameters, and the keys in them.
    pub(super) fn without_kernel(mut self) -> Self {
        for segment in &mut self.segments {
            if let Payload::Crypt { kernel, .. } | Payload::Authenticated { kernel, .. } = &mut segment.payload {
                *kernel = None;
            }
        }
        Self { kernel: None, ..self }
    }

    /// Makes every segment read-only.
    pub fn read_only(mut self) -> Self {
        self.segments.iter_mut().for_each(|s| s.writable = false);
        self
    }

    /// Part of the volume as a volume of its own, such as a partition of a disk: `len` bytes at `start`.
    ///
    /// # Errors
    /// `Misuse` if it extends past the end, or cuts an encrypted sector in two.
    pub fn part(&self, start: u64, len: u64) -> Result<Self> {
        let end = start.checked_add(len).filter(|end| *end <= self.len());
        let end = end.ok_or_else(|| Error::misuse(format!("{len} bytes at {start} reach past the volume's end")))?;
        let cut = |s: &Segment| {
            let (from, to) = (s.at.max(start), (s.at + s.len).min(end));
            let (skipped, sector) = (from - s.at, s.payload.sector_size());
            if !skipped.is_multiple_of(sector) {
                return Err(Error::misuse(format!("byte {start} is inside a sector of {sector} bytes")));
            }
            let mut payload = s.payload.clone();
            let mut stored_at = s.stored_at + skipped;
            match &mut payload {
                Payload::Clear | Payload::Zero => {}
                Payload::Fixed(bytes) => *bytes = bytes[skipped as usize..(to - s.at) as usize].into(),
                Payload::Crypt { first, .. } => *first = first.wrapping_add(skipped / sector),
                Payload::KeyProcess(handle) => *handle = handle.clone().cut(skipped),
                Payload::Authenticated { first, .. } => {
                    *first += skipped / sector;
                    stored_at = s.stored_at;
                }
                Payload::KeyProcessTagged { handle, first, .. } => {
                    *handle = handle.clone().cut(skipped);
                    *first += skipped / sector;
                    stored_at = s.stored_at;
                }
            }
            Ok(Segment { at: from - start, len: to - from, stored_at, payload, writable: s.writable })
        };
        let mut part = Self::new(self.touched(start, end).map(cut).collect::<Result<_>>()?)?;
        part.kernel = self.kernel;
        for range in &self.protected {
            let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
            part = part.with_protected(from - start..to - start);
        }
        Ok(part)
    }

    /// The same volume in a store where everything is `by` bytes further on, such as the disk around a partition.
    ///
    /// # Errors
    /// `Misuse` if offsets would not fit 64 bits.
    pub fn moved(mut self, by: u64) -> Result<Self> {
        for s in &mut self.segments {
            let moved = s.stored_at.checked_add(by).filter(|at| at.checked_add(s.len).is_some());
            s.stored_at = moved.ok_or_else(|| Error::misuse(format!("no segment can be moved by {by} bytes")))?;
        }
        Ok(self)
    }

    /// Protects a range of the volume, in bytes, such as the hidden volume in it. A write that touches one of its sectors is
    /// refused as a whole, and so are all later writes; reads continue.
    pub fn with_protected(mut self, range: Range<u64>) -> Self {
        if !range.is_empty() {
            self.protected.push(range);
        }
        self
    }

    /// The protected ranges, in bytes of the volume.
    pub fn protected(&self) -> &[Range<u64>] {
        &self.protected
    }

    /// Whether a write of `offset .. end` would change a protected byte: encrypted data are written in whole sectors.
    pub(super) fn hits_protected(&self, offset: u64, end: u64) -> bool {
        !self.protected.is_empty()
            && self.touched(offset, end).any(|s| {
                let (mut from, mut to) = (offset.max(s.at), end.min(s.at + s.len));
                let sector = s.payload.sector_size();
                from -= (from - s.at) % sector;
                to = s.at + (to - s.at).next_multiple_of(sector);
                self.protected.iter().any(|p| p.start < to && from < p.end)
            })
    }

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Size of the volume in bytes.
    pub fn len(&self) -> u64 {
        self.segments.last().map_or(0, |s| s.at + s.len)
    }

    /// Sector size to use for file systems in the volume, in bytes: the largest of any segment, and at least 512.
    pub fn sector_size(&self) -> u64 {
        let largest = self.segments.iter().map(|s| s.payload.sector_size()).max().unwrap_or_default();
        largest_sector(largest, self.len())
    }

    /// Whether the volume has no bytes.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The segments that `offset .. end` touches, in order: none if it is empty. The last segment has no end here, since a volume in
    /// use may have grown.
    pub(super) fn touched(&self, offset: u64, end: u64) -> impl Iterator<Item = &Segment> {
        let last = self.segments.len().saturating_sub(1);
        let from = self.segments[..last].partition_point(|s| s.at + s.len <= offset);
        self.segments[from..].iter().take_while(move |s| s.at < end && offset < end)
    }
}

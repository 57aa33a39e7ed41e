//! A layout whose keys another process holds: what that process needs to carry out, and what is left of the layout without them.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use claviger_crypto::SectorCipher;
use claviger_crypto::secret::wipe_after_sectors;
use serde::{Deserialize, Serialize};

use super::{Layout, Payload, Segment};
use crate::error::{Error, Result};

/// Who encrypts and decrypts for a layout that holds no keys, such as another process.
///
/// Segments are counted as in the layout that the keys were taken from, and offsets are in bytes of such a segment. Requests are whole
/// sectors of it.
pub trait Keeper: Send + Sync {
    /// Fills `out`, which is stored at `into` of the segment: `read` puts what is stored into the memory that it is given, as much as
    /// `out` has.
    ///
    /// # Errors
    /// Those of `read`; another if the keeper refuses, or has gone.
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut Access<'_>) -> io::Result<()>;

    /// Gives `write` the encrypted form of `data`, which belongs at `into` of the segment.
    ///
    /// # Errors
    /// Those of `write`; another if the keeper refuses, or has gone.
    fn encrypt(&self, segment: u32, into: u64, data: &[u8], write: &mut Access<'_>) -> io::Result<()>;
}

/// What reads or writes what is stored, given the memory to or from which.
pub type Access<'a> = dyn FnMut(&mut [u8]) -> io::Result<()> + 'a;

/// A layout without its keys, as plain data for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outline {
    segments: Vec<Part>,
    protected: Vec<Range<u64>>,
}

/// A segment of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    at: u64,
    len: u64,
    stored_at: u64,
    writable: bool,
    holds: Holds,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Holds {
    Clear,
    Zero,
    Fixed(Vec<u8>),
    /// Sectors of this size, in bytes.
    Encrypted(u32),
}

impl Outline {
    /// What `layout` is without its keys.
    ///
    /// # Errors
    /// `Unsupported` for sectors with tags.
    pub fn of(layout: &Layout) -> Result<Self> {
        let segments = layout.segments().iter().map(Part::of).collect::<Result<_>>()?;
        Ok(Self { segments, protected: layout.protected().to_vec() })
    }

    /// The layout again, whose keys `keeper` holds.
    ///
    /// # Errors
    /// `Misuse` if it could not have come from a layout.
    pub fn kept_by(self, keeper: &Arc<dyn Keeper>) -> Result<Layout> {
        let segments = self.segments.into_iter().zip(0..).map(|(part, number)| part.segment(number, keeper));
        let layout = Layout::new(segments.collect::<Result<_>>()?)?;
        Ok(self.protected.into_iter().fold(layout, Layout::with_protected))
    }
}

impl Part {
    fn of(segment: &Segment) -> Result<Self> {
        let &Segment { at, len, stored_at, writable, .. } = segment;
        let holds = match &segment.payload {
            Payload::Clear => Holds::Clear,
            Payload::Zero => Holds::Zero,
            Payload::Fixed(bytes) => Holds::Fixed(bytes.to_vec()),
            Payload::Crypt { cipher, .. } => Holds::Encrypted(cipher.sector_size() as u32),
            Payload::Authenticated { .. } => return Err(tagged()),
            Payload::Kept(_) => return Err(Error::misuse("another process has the keys already")),
        };
        Ok(Self { at, len, stored_at, writable, holds })
    }

    fn segment(self, number: u32, keeper: &Arc<dyn Keeper>) -> Result<Segment> {
        let payload = match self.holds {
            Holds::Clear => Payload::Clear,
            Holds::Zero => Payload::Zero,
            Holds::Fixed(bytes) => Payload::Fixed(bytes.into()),
            Holds::Encrypted(sector) if sector > 0 => {
                Payload::Kept(Kept { keeper: Arc::clone(keeper), segment: number, from: 0, sector: sector as usize })
            }
            Holds::Encrypted(_) => return Err(Error::misuse("sectors of no bytes")),
        };
        let Self { at, len, stored_at, writable, .. } = self;
        Ok(Segment { at, len, stored_at, payload, writable })
    }
}

/// What is to be said of sectors with tags.
pub(crate) fn tagged() -> Error {
    Error::unsupported("keys in a process of their own for a volume whose sectors have tags")
        .hint("Leave out the isolation: one process opens it.")
}

/// Encrypted sectors whose key another process holds.
#[derive(Clone)]
pub struct Kept {
    keeper: Arc<dyn Keeper>,
    /// Its number there.
    segment: u32,
    /// Where the segment of this layout begins in that one, in bytes.
    from: u64,
    sector: usize,
}

impl Kept {
    /// Size of a sector, in bytes.
    pub fn sector_size(&self) -> usize {
        self.sector
    }

    /// The same from `skipped` bytes on.
    pub(super) fn cut(self, skipped: u64) -> Self {
        Self { from: self.from + skipped, ..self }
    }

    pub(super) fn decrypt(&self, into: u64, out: &mut [u8], read: &mut Access<'_>) -> io::Result<()> {
        self.keeper.decrypt(self.segment, self.from + into, out, read)
    }

    pub(super) fn encrypt(&self, into: u64, data: &[u8], write: &mut Access<'_>) -> io::Result<()> {
        self.keeper.encrypt(self.segment, self.from + into, data, write)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keeper: _, segment, from, sector } = self;
        write!(f, "Kept {{ sector_size: {sector}, segment: {segment}, from: {from} }}")
    }
}

/// The keys of a layout, by segment, for the process that holds them. It believes nothing that it is asked for.
pub struct Keys(Vec<Option<Key>>);

struct Key {
    cipher: Arc<dyn SectorCipher>,
    first: u64,
    len: u64,
    /// Whether anything is to be encrypted with it.
    writable: bool,
}

/// A request that is none: it names no encrypted segment, or no whole sectors in it, or what must not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl Keys {
    /// Those of `layout`, of which a part of the segments may have none. Without `write` nothing is ever encrypted with them.
    pub fn of(layout: &Layout, write: bool) -> Self {
        let key = |segment: &Segment| match &segment.payload {
            Payload::Crypt { cipher, first, .. } => {
                let (cipher, writable) = (Arc::clone(cipher), write && segment.writable);
                Some(Key { cipher, first: *first, len: segment.len, writable })
            }
            _ => None,
        };
        Self(layout.segments().iter().map(key).collect())
    }

    /// What decrypts `len` bytes at `into` of a segment, or encrypts them.
    ///
    /// # Errors
    /// If that is no range of whole sectors in it, or it must not be written.
    pub fn range(
        &self,
        encrypt: bool,
        segment: u32,
        into: u64,
        len: usize,
    ) -> std::result::Result<KeyRange<'_>, Refused> {
        let key = self.0.get(segment as usize).and_then(Option::as_ref).ok_or(Refused)?;
        let sector = key.cipher.sector_size();
        let whole = len > 0 && len.is_multiple_of(sector) && into.is_multiple_of(sector as u64);
        let inside = into.checked_add(len as u64).is_some_and(|end| end <= key.len);
        let allowed = key.writable || !encrypt;
        (whole && inside && allowed).then_some(KeyRange { key, into, encrypt }).ok_or(Refused)
    }
}

/// Leave to encrypt or decrypt one range.
pub struct KeyRange<'a> {
    key: &'a Key,
    into: u64,
    encrypt: bool,
}

impl KeyRange<'_> {
    /// Size of a sector, in bytes.
    pub fn sector_size(&self) -> usize {
        self.key.cipher.sector_size()
    }

    /// Does it with `run`, which belongs at `past` bytes of the range.
    ///
    /// # Panics
    /// Unless both are whole sectors.
    pub fn carry_out(&self, past: u64, run: &mut [u8]) {
        let Key { cipher, first, .. } = self.key;
        let number = first.wrapping_add((self.into + past) / cipher.sector_size() as u64);
        if self.encrypt { cipher.encrypt(number, run) } else { cipher.decrypt(number, run) }
    }
}

/// Wipes what [`KeyRange::carry_out`] may have left of keys on the stack and in vector registers of this thread. To be called before
/// it waits for anything.
pub fn wipe_traces() {
    wipe_after_sectors();
}

//! A layout whose keys another process holds: what that process needs to carry out, and what is left of the layout without them.

use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use claviger_crypto::SectorCipher;
use claviger_crypto::secret::wipe_after_sectors;
use serde::{Deserialize, Serialize};

use super::folder::{FolderKeyTable, FolderKeys};
use super::handle::{KeyHandle, KeyProcess};
use super::key::{Cipher, Key, Refused};
use crate::error::{Error, Result};
use crate::random;
use crate::store::Store;
use crate::volume::integrity;
use crate::volume::{Layout, Payload, Segment};

/// A layout without its keys, as plain data for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeylessLayout {
    /// Size of the store that it is one of, in bytes.
    store: u64,
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
    /// Sectors of this size with a tag each, from number `first` on, in an area of `room` bytes.
    Tagged {
        sector: u32,
        tag: u32,
        first: u64,
        room: u64,
    },
}

impl KeylessLayout {
    /// Returns `layout`, a layout over `store`, without its keys.
    ///
    /// # Errors
    /// `Misuse` if there are no keys in it: another process has them already.
    pub fn of(layout: &Layout, store: &dyn Store) -> Result<Self> {
        let segments = layout.segments().iter().map(Part::of).collect::<Result<_>>()?;
        Ok(Self { store: store.len(), segments, protected: layout.protected().to_vec() })
    }

    /// Returns `layout`, a layout over `store`, as its key process would describe it anew.
    ///
    /// # Errors
    /// `Misuse` if sectors have tags, or the keys are in this process.
    pub fn of_handles(layout: &Layout, store: &dyn Store) -> Result<Self> {
        let part = |segment: &Segment| {
            let &Segment { at, len, stored_at, writable, .. } = segment;
            let holds = match &segment.payload {
                Payload::KeyProcess(handle) => Holds::Encrypted(handle.sector_size() as u32),
                Payload::Clear | Payload::Zero | Payload::Fixed(_) => return Part::of(segment),
                Payload::Crypt { .. } | Payload::Authenticated { .. } | Payload::KeyProcessTagged { .. } => {
                    return Err(Error::misuse("not all of its keys are handles to plain sectors"));
                }
            };
            Ok(Part { at, len, stored_at, writable, holds })
        };
        let segments = layout.segments().iter().map(part).collect::<Result<_>>()?;
        Ok(Self { store: store.len(), segments, protected: layout.protected().to_vec() })
    }

    /// The number of the segment that holds byte `at`, and how far into that it is. The last segment has no end, since it may grow.
    pub fn segment_of(&self, at: u64) -> Option<(u32, u64)> {
        let (part, number) = self.segments.iter().zip(0..).take_while(|(part, _)| part.at <= at).last()?;
        Some((number, at - part.at))
    }

    /// The numbers of its segments of encrypted sectors without tags, and the size of these, in bytes.
    pub fn encrypted(&self) -> impl Iterator<Item = (u32, usize)> {
        self.segments.iter().zip(0..).filter_map(|(part, number)| match part.holds {
            Holds::Encrypted(sector) if part.len >= u64::from(sector) => Some((number, sector as usize)),
            _ => None,
        })
    }

    /// Whether all of the volume is plaintext.
    pub fn is_plain(&self) -> bool {
        self.segments.iter().all(|part| matches!(part.holds, Holds::Clear | Holds::Zero))
    }

    /// Whether `now` is the same layout, except that its store and its last segment may have grown.
    pub fn may_have_become(&self, now: &Self) -> bool {
        let mut before = now.clone();
        before.store = now.store.min(self.store);
        if let (Some(last), Some(was)) = (before.segments.last_mut(), self.segments.last()) {
            last.len = last.len.min(was.len);
        }
        before == *self
    }

    /// The layout again, over the same `store`, whose keys `key_process` holds. The superblocks and journals of sectors with tags are read
    /// anew.
    ///
    /// # Errors
    /// `Misuse` if it could not have come from a layout, or not from one over this store; those of [`integrity::open`].
    pub fn with_key_process(self, key_process: &Arc<dyn KeyProcess>, store: &dyn Store) -> Result<Layout> {
        if self.store != store.len() {
            let what = format!("the layout is for {} bytes, but the store has {}", self.store, store.len());
            return Err(Error::misuse(what));
        }
        let segments =
            self.segments.into_iter().zip(0..).map(|(part, number)| part.segment(number, key_process, store));
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
            Payload::Authenticated { area, first, .. } => Holds::Tagged {
                sector: area.sector_size() as u32,
                tag: area.tag_size() as u32,
                first: *first,
                room: area.room(),
            },
            Payload::KeyProcess(_) | Payload::KeyProcessTagged { .. } => {
                return Err(Error::misuse("another process already has the keys"));
            }
        };
        Ok(Self { at, len, stored_at, writable, holds })
    }

    fn segment(self, number: u32, key_process: &Arc<dyn KeyProcess>, store: &dyn Store) -> Result<Segment> {
        let handle = |sector| KeyHandle::new(Arc::clone(key_process), number, sector, None);
        // What is read-only may have been cut short.
        let end = self.stored_at.checked_add(self.len).filter(|end| *end <= store.len());
        if end.is_none() && self.writable && !matches!(self.holds, Holds::Zero | Holds::Fixed(_)) {
            return Err(Error::misuse("a segment reaches past the end of its store"));
        }
        let payload = match self.holds {
            Holds::Clear => Payload::Clear,
            Holds::Zero => Payload::Zero,
            Holds::Fixed(bytes) => Payload::Fixed(bytes.into()),
            Holds::Encrypted(sector) if sector > 0 => Payload::KeyProcess(handle(sector as usize)),
            Holds::Tagged { sector, tag, first, room } if sector > 0 => {
                let area = integrity::open(store, self.stored_at, room, tag as usize, sector as usize)?;
                Payload::KeyProcessTagged { area: Arc::new(area), handle: handle(sector as usize), first }
            }
            Holds::Encrypted(_) | Holds::Tagged { .. } => return Err(Error::misuse("sectors of no bytes")),
        };
        let Self { at, len, stored_at, writable, .. } = self;
        Ok(Segment { at, len, stored_at, payload, writable })
    }
}

/// Identifies the keys of a layout, which may be here or in a key process: what a sector of zeros at the beginning of each encrypted
/// segment decrypts to. Sectors with tags are left out, since there a wrong key shows by itself.
///
/// # Errors
/// Those of the key process.
pub fn proof(layout: &Layout) -> io::Result<Vec<Vec<u8>>> {
    let mut proof = Vec::new();
    for segment in layout.segments().iter().filter(|segment| segment.len >= segment.payload.sector_size()) {
        let mut out = vec![0; segment.payload.sector_size() as usize];
        match &segment.payload {
            Payload::Crypt { cipher, first, .. } => {
                cipher.decrypt(*first, &mut out);
                wipe_after_sectors();
            }
            Payload::KeyProcess(handle) => handle.decrypt(0, &mut out, &mut |_, stored: &mut [u8]| {
                stored.fill(0);
                Ok(())
            })?,
            _ => continue,
        }
        proof.push(out);
    }
    Ok(proof)
}

/// The keys of a layout, by segment, or those of a folder, for the process that holds them. It trusts no request.
pub struct Keys(Of);

enum Of {
    Layout(Vec<Option<Key>>),
    Folder(FolderKeyTable),
}

impl Keys {
    /// Those of `layout`, of which a part of the segments may have none. Without `write` nothing is ever encrypted with them.
    pub fn of(layout: &Layout, write: bool) -> Self {
        let key = |segment: &Segment| match &segment.payload {
            Payload::Crypt { cipher, first, .. } => {
                let (cipher, writable) = (Cipher::Plain(Arc::clone(cipher)), write && segment.writable);
                // The last segment may grow, and nothing lies behind it.
                let grows = segment.at + segment.len == layout.len();
                let len = if grows { u64::MAX } else { segment.len };
                Some(Key { cipher, first: *first, len, writable })
            }
            Payload::Authenticated { cipher, first, .. } => {
                let (cipher, writable) = (Cipher::Tagged(Arc::clone(cipher)), write && segment.writable);
                Some(Key { cipher, first: *first, len: segment.len, writable })
            }
            Payload::Clear
            | Payload::Zero
            | Payload::Fixed(_)
            | Payload::KeyProcess(_)
            | Payload::KeyProcessTagged { .. } => None,
        };
        Self(Of::Layout(layout.segments().iter().map(key).collect()))
    }

    /// Those of a volume that is being converted: segment numbers are those of `ciphers`, and offsets are those of the plaintext.
    /// `None` is plaintext.
    pub fn of_ciphers(ciphers: impl IntoIterator<Item = Option<Arc<dyn SectorCipher>>>) -> Self {
        let key = |cipher: Option<_>| {
            cipher.map(|cipher| Key { cipher: Cipher::Plain(cipher), first: 0, len: u64::MAX, writable: true })
        };
        Self(Of::Layout(ciphers.into_iter().map(key).collect()))
    }

    /// Those of an encrypted folder: segments are the numbers of files that are open. Without `write` nothing
    /// is ever encrypted with them but names.
    pub fn of_folder(keys: Arc<dyn FolderKeys>, write: bool) -> Self {
        Self(Of::Folder(FolderKeyTable::new(keys, write)))
    }

    /// Where they are those of a folder, what can be asked of them besides.
    pub fn folder(&self) -> Option<&FolderKeyTable> {
        match &self.0 {
            Of::Folder(folder) => Some(folder),
            Of::Layout(_) => None,
        }
    }

    /// What decrypts `len` bytes at `into` of a segment, or encrypts them.
    ///
    /// # Errors
    /// If the range is not whole sectors within the segment, or must not be written. The last sealed block may be shorter.
    pub fn range(
        &self,
        encrypt: bool,
        segment: u32,
        into: u64,
        len: usize,
    ) -> std::result::Result<KeyRange<'_>, Refused> {
        let key = match &self.0 {
            Of::Layout(keys) => keys.get(segment as usize).and_then(Option::as_ref).map(Held::Here),
            Of::Folder(folder) => folder.key(segment).map(Held::Shared),
        };
        let key = key.ok_or(Refused)?;
        let sector = key.cipher.sector_size();
        let ends_anywhere = matches!(key.cipher, Cipher::Sealed(_));
        let whole = len > 0 && (ends_anywhere || len.is_multiple_of(sector)) && into.is_multiple_of(sector as u64);
        let inside = into.checked_add(len as u64).is_some_and(|end| end <= key.len);
        let allowed = key.writable || !encrypt;
        (whole && inside && allowed).then_some(KeyRange { key, into, encrypt }).ok_or(Refused)
    }
}

/// Leave to encrypt or decrypt one range.
pub struct KeyRange<'a> {
    key: Held<'a>,
    into: u64,
    encrypt: bool,
}

/// A key for as long as it is used.
enum Held<'a> {
    Here(&'a Key),
    /// Its file may be closed in the meantime.
    Shared(Arc<Key>),
}

impl Deref for Held<'_> {
    type Target = Key;

    fn deref(&self) -> &Key {
        match self {
            Self::Here(key) => key,
            Self::Shared(key) => key,
        }
    }
}

impl KeyRange<'_> {
    /// Size of a sector, or of a sealed block in clear, in bytes.
    pub fn sector_size(&self) -> usize {
        self.key.cipher.sector_size()
    }

    /// Whether these are sealed blocks, for [`KeyRange::carry_out_sealed`].
    pub fn is_sealed(&self) -> bool {
        matches!(self.key.cipher, Cipher::Sealed(_))
    }

    /// See [`SectorCipher::in_registers`]: then the memory of the run may be another process's, too.
    pub fn in_registers(&self) -> bool {
        matches!(&self.key.cipher, Cipher::Plain(cipher) if cipher.in_registers())
    }

    /// Size of what is stored with a sector besides, in bytes: a tag, or the nonce and the tag of a sealed block; 0 for neither.
    pub fn tag_size(&self) -> usize {
        match &self.key.cipher {
            Cipher::Plain(_) => 0,
            Cipher::Tagged(cipher) => cipher.tag_size(),
            Cipher::Sealed(layout) => layout.sealing.overhead(),
        }
    }

    /// Does it with `run`, which belongs at `past` bytes of the range, and its `tags`.
    ///
    /// # Errors
    /// The first sector of the run whose tag is wrong: then nothing in `run` may be used.
    ///
    /// # Panics
    /// Unless both are whole sectors, and there are as many tags; for sealed blocks; or if the system has no random numbers.
    pub fn carry_out(&self, past: u64, run: &mut [u8], tags: &mut [u8]) -> std::result::Result<(), u32> {
        let Key { cipher, first, .. } = &*self.key;
        let number = first.wrapping_add((self.into + past) / cipher.sector_size() as u64);
        match cipher {
            Cipher::Plain(cipher) if self.encrypt => cipher.encrypt(number, run),
            Cipher::Plain(cipher) => cipher.decrypt(number, run),
            Cipher::Tagged(cipher) if self.encrypt => {
                // Nobody else chooses what must never be used again.
                random::fill(tags).expect("the system has random numbers");
                cipher.encrypt(number, run, tags);
            }
            Cipher::Tagged(cipher) => cipher.decrypt(number, run, tags).map_err(|wrong| (wrong.0 - number) as u32)?,
            Cipher::Sealed(_) => panic!("sealed blocks have another size when they are stored"),
        }
        Ok(())
    }

    /// Opens or seals blocks that belong at `past` bytes of the range. `stored` has their stored form, or gets it, with new nonces.
    ///
    /// # Errors
    /// The first block that fails verification: then nothing in `plain` may be used.
    ///
    /// # Panics
    /// Unless these are sealed blocks of the right sizes; or if the system has no random numbers.
    pub fn carry_out_sealed(&self, past: u64, plain: &mut [u8], stored: &mut [u8]) -> std::result::Result<(), u32> {
        let Cipher::Sealed(layout) = &self.key.cipher else { panic!("these are no sealed blocks") };
        let first = (self.into + past) / layout.block as u64;
        match self.encrypt {
            true => {
                layout.seal_blocks(first, plain, stored).expect("the system has random numbers");
                Ok(())
            }
            false => match layout.open_blocks(first, stored, plain).expect("this process has the key") {
                None => Ok(()),
                Some(wrong) => Err((wrong - first) as u32),
            },
        }
    }
}

/// Wipes what [`KeyRange::carry_out`] may have left of keys on the stack and in vector registers of this thread. To be called before
/// it waits for anything.
pub fn wipe_traces() {
    wipe_after_sectors();
}

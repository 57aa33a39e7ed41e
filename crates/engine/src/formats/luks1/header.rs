//! The header of LUKS1, byte by byte (LUKS On-Disk Format Specification 1.2.3, section 3, figures 1 and 2), and its possible
//! damage. All numbers are big-endian.
//!
//! ```text
//!   0    6  magic "LUKS" BA BE       104   4  payload offset, in sectors of 512 bytes
//!   6    2  version, 1               108   4  bytes of the volume key
//!   8   32  cipher name              112  20  digest of the volume key
//!  40   32  cipher mode              132  32  salt of the digest
//!  72   32  hash                     164   4  iterations of the digest
//! 208   48  keyslot, eight of them   168  40  UUID, as text
//!
//!   0    4  00 AC 71 F3 or 00 00 DE AD    40   4  offset of the key material, in sectors
//!   4    4  iterations                    44   4  stripes
//!   8   32  salt
//! ```

use std::ops::Range;

use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::hash::{self, Hash};

use crate::advice::Advice;
use crate::edit::{Seen, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::{Area, cipher_error};
use crate::store::Store;

/// Size of the header in bytes.
pub(in crate::formats) const SIZE: usize = 592;

/// The number of keyslots in a header.
pub(in crate::formats) const SLOTS: usize = 8;

/// The unit of the offsets in a header, in bytes.
pub(in crate::formats) const SECTOR: u64 = 512;

/// The first bytes.
pub(in crate::formats) const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";

/// How many stripes new keyslots split the key into (specification, section 2.4; `LUKS_STRIPES`).
pub(in crate::formats) const STRIPES: u32 = 4000;

/// The size of the volume key's digest, in bytes, whatever the hash.
pub(in crate::formats) const DIGEST: usize = 20;

/// The size of every salt, in bytes.
pub(in crate::formats) const SALT: usize = 32;

/// The limit for the size of a volume key, in bytes: more than any cipher needs.
const KEY_MAX: u32 = 512;

/// The limit for the size of a keyslot's area, in bytes. Those of all known programs have at most 512 KiB.
const AREA_MAX: u64 = 16 << 20;

/// The state value of a keyslot in use.
pub(super) const ACTIVE: u32 = 0x00ac_71f3;
const DISABLED: u32 = 0x0000_dead;

/// The offsets of fields, in bytes.
pub(in crate::formats) mod at {
    pub const VERSION: usize = 6;
    pub const CIPHER_NAME: usize = 8;
    pub const CIPHER_MODE: usize = 40;
    pub const HASH: usize = 72;
    pub const PAYLOAD: usize = 104;
    pub const KEY_BYTES: usize = 108;
    pub const DIGEST: usize = 112;
    pub const DIGEST_SALT: usize = 132;
    pub const DIGEST_ITERATIONS: usize = 164;
    pub const UUID: usize = 168;
    pub const SLOTS: usize = 208;
    /// The size of a keyslot's record, and the offsets of its fields.
    pub const SLOT: usize = 48;
    pub const SLOT_ITERATIONS: usize = 4;
    pub const SLOT_SALT: usize = 8;
    pub const SLOT_OFFSET: usize = 40;
    pub const SLOT_STRIPES: usize = 44;
}

/// Lengths of the text fields, in bytes.
const NAME: usize = 32;
const UUID: usize = 40;

/// A header that was read. Changes are made in its bytes, so that everything else is preserved.
#[derive(Clone)]
pub(in crate::formats) struct Phdr {
    pub bytes: [u8; SIZE],
    pub cipher_name: String,
    pub cipher_mode: String,
    pub hash_name: String,
    /// The offset of the data, in sectors. 0 if the header is detached and the data fill another store.
    pub payload: u32,
    pub key_len: usize,
    pub digest_iterations: u32,
    /// `None` if it is not text.
    pub uuid: Option<String>,
    pub slots: [Slot; SLOTS],
    /// Whether the magic is in the store, and not only in `bytes`.
    pub marked: bool,
}

/// A keyslot.
#[derive(Clone, Debug)]
pub(in crate::formats) struct Slot {
    pub active: bool,
    pub iterations: u32,
    pub salt: [u8; SALT],
    /// The offset of its area, in sectors.
    pub offset: u32,
    pub stripes: u32,
    /// Its damage.
    pub trouble: Option<Trouble>,
}

/// The damage of a keyslot.
#[derive(Clone, Debug)]
pub(in crate::formats) struct Trouble {
    pub field: &'static str,
    /// The offset of the field, in bytes.
    pub at: u64,
    pub what: String,
    /// Whether the keyslot can be tried anyway. Nothing is written to it either way.
    pub readable: bool,
}

impl Trouble {
    pub fn error(&self) -> Error {
        let kind = ErrorKind::Malformed { field: self.field, offset: self.at, what: self.what.clone() };
        Error::new(kind).hint(
            "Some damage can be repaired without a passphrase. Copy the file first, then repair \
             the header.",
        )
    }
}

impl Slot {
    /// The range of its area, in bytes of the store.
    pub fn area(&self, key_len: usize) -> Range<u64> {
        let start = u64::from(self.offset) * SECTOR;
        start..start + area_len(key_len, self.stripes)
    }

    /// An unused keyslot of a new header.
    pub fn unused(offset: u32) -> Self {
        Self { active: false, iterations: 0, salt: [0; SALT], offset, stripes: STRIPES, trouble: None }
    }

    fn put(&self, bytes: &mut [u8]) {
        let mut number = |at: usize, n: u32| bytes[at..at + 4].copy_from_slice(&n.to_be_bytes());
        number(0, if self.active { ACTIVE } else { DISABLED });
        number(at::SLOT_ITERATIONS, self.iterations);
        number(at::SLOT_OFFSET, self.offset);
        number(at::SLOT_STRIPES, self.stripes);
        bytes[at::SLOT_SALT..at::SLOT_OFFSET].copy_from_slice(&self.salt);
    }
}

/// The size of a keyslot's area, in bytes: whole sectors.
pub(in crate::formats) fn area_len(key_len: usize, stripes: u32) -> u64 {
    (key_len as u64 * u64::from(stripes)).next_multiple_of(SECTOR)
}

/// The parts of a new header.
pub(in crate::formats) struct New<'a> {
    pub cipher_name: &'a str,
    pub cipher_mode: &'a str,
    pub hash_name: &'a str,
    pub payload: u32,
    pub key_len: usize,
    pub digest: &'a [u8],
    pub digest_salt: &'a [u8; SALT],
    pub digest_iterations: u32,
    pub uuid: &'a str,
    pub slots: &'a [Slot; SLOTS],
}

impl New<'_> {
    /// Returns the bytes of the header.
    pub fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, MAGIC);
        put(at::VERSION, &1u16.to_be_bytes());
        put(at::CIPHER_NAME, self.cipher_name.as_bytes());
        put(at::CIPHER_MODE, self.cipher_mode.as_bytes());
        put(at::HASH, self.hash_name.as_bytes());
        put(at::PAYLOAD, &self.payload.to_be_bytes());
        put(at::KEY_BYTES, &(self.key_len as u32).to_be_bytes());
        put(at::DIGEST, self.digest);
        put(at::DIGEST_SALT, self.digest_salt);
        put(at::DIGEST_ITERATIONS, &self.digest_iterations.to_be_bytes());
        put(at::UUID, self.uuid.as_bytes());
        for (number, slot) in self.slots.iter().enumerate() {
            slot.put(slot_mut(&mut bytes, number));
        }
        bytes
    }
}

impl Phdr {
    /// Reads the header at the beginning of a store.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`, `Unsupported` for another version, `Io`.
    pub fn read(store: &dyn Store) -> Result<Self> {
        let mut bytes = [0; SIZE];
        if store.len() < SIZE as u64 {
            return Err(
                ErrorKind::NotThisFormat(format!("{} bytes are too few for a LUKS1 header", store.len())).into()
            );
        }
        store.read_at(0, &mut bytes)?;
        Self::parse(&bytes, store.len())
    }

    /// Like [`Phdr::read`], but also finds a header whose magic was wiped, if all its other fields are sound. No checksum proves
    /// it: only its key does.
    ///
    /// # Errors
    /// Those of [`Phdr::read`].
    pub fn find(store: &dyn Store) -> Result<Self> {
        match Self::read(store) {
            Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => Self::unmarked(store)?.ok_or(e),
            read => read,
        }
    }

    /// Returns a header whose magic was wiped, if there is one.
    ///
    /// # Errors
    /// `Io`.
    pub fn unmarked(store: &dyn Store) -> Result<Option<Self>> {
        let mut bytes = [0; SIZE];
        if store.len() < SIZE as u64 {
            return Ok(None);
        }
        store.read_at(0, &mut bytes)?;
        if bytes.starts_with(MAGIC) || bytes[at::VERSION..at::CIPHER_NAME] != [0, 1] {
            return Ok(None);
        }
        Ok(Self::with_marks(bytes, store.len()).map(|header| Self { marked: false, ..header }))
    }

    /// Returns the header with magic and version restored, if all other fields are valid, so that they cannot be there by chance.
    pub fn with_marks(mut bytes: [u8; SIZE], len: u64) -> Option<Self> {
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[at::VERSION..at::CIPHER_NAME].copy_from_slice(&[0, 1]);
        let convincing = |header: &Self| header.cipher().is_ok() && header.hash().is_ok() && header.sound().is_ok();
        Self::parse(&bytes, len).ok().filter(convincing)
    }

    /// Parses a header; `len` is the length of its store, in bytes.
    ///
    /// # Errors
    /// Those of [`Phdr::read`].
    pub fn parse(bytes: &[u8; SIZE], len: u64) -> Result<Self> {
        check_version(bytes)?;
        let key_len = number(bytes, at::KEY_BYTES);
        if !(1..=KEY_MAX).contains(&key_len) {
            let what = format!("{key_len} bytes, which no cipher takes");
            return Err(malformed("key bytes", at::KEY_BYTES, what));
        }
        let digest_iterations = number(bytes, at::DIGEST_ITERATIONS);
        if digest_iterations == 0 {
            return Err(malformed("digest iterations", at::DIGEST_ITERATIONS, "there are none".into()));
        }
        let mut header = Self {
            bytes: *bytes,
            cipher_name: text(bytes, "cipher name", at::CIPHER_NAME, NAME)?,
            cipher_mode: text(bytes, "cipher mode", at::CIPHER_MODE, NAME)?,
            hash_name: text(bytes, "hash", at::HASH, NAME)?,
            payload: number(bytes, at::PAYLOAD),
            key_len: key_len as usize,
            digest_iterations,
            uuid: text(bytes, "UUID", at::UUID, UUID).ok(),
            slots: std::array::from_fn(|i| read_slot(&bytes[at::SLOTS + i * at::SLOT..][..at::SLOT])),
            marked: true,
        };
        header.check_payload()?;
        for i in 0..SLOTS {
            header.slots[i].trouble = header.trouble(i, len);
        }
        Ok(header)
    }

    /// The hash of derivations, digest and splitter.
    ///
    /// # Errors
    /// `Unsupported`; `Malformed` for a hash whose digests are too short (specification, section 3: at least 160 bits).
    pub fn hash(&self) -> Result<&'static Hash> {
        match hash::by_name(&self.hash_name) {
            None => Err(Error::unsupported(format!("the hash {}", self.hash_name))),
            Some(hash) if hash.size < DIGEST => {
                let what = format!("{} has {}-byte digests; at least {DIGEST} are needed", self.hash_name, hash.size);
                Err(malformed("hash", at::HASH, what))
            }
            Some(hash) => Ok(hash),
        }
    }

    /// The cipher in dm-crypt's notation.
    pub fn specification(&self) -> String {
        format!("{}-{}", self.cipher_name, self.cipher_mode)
    }

    /// The cipher of areas and data.
    ///
    /// # Errors
    /// `Unsupported`, `Malformed`.
    pub fn cipher(&self) -> Result<Specification> {
        let wrong = |e| cipher_error(e, at::CIPHER_NAME as u64);
        let cipher = Specification::parse(&self.specification()).map_err(wrong)?;
        if !cipher.key_sizes().contains(&self.key_len) {
            let what = format!("{} bytes do not fit {cipher}", self.key_len);
            return Err(malformed("key bytes", at::KEY_BYTES, what));
        }
        Ok(cipher)
    }

    /// The digest of the volume key.
    pub fn digest(&self) -> &[u8] {
        &self.bytes[at::DIGEST..][..DIGEST]
    }

    /// The salt of the digest.
    pub fn digest_salt(&self) -> &[u8] {
        &self.bytes[at::DIGEST_SALT..][..SALT]
    }

    /// The area of a keyslot.
    pub fn area<'a>(&self, slot: &Slot, hash: &'static Hash, cipher: &'a Specification) -> Area<'a> {
        let at = slot.area(self.key_len).start;
        Area { at, key_len: self.key_len, stripes: slot.stripes as usize, hash, cipher }
    }

    /// The offset of the data, in bytes of their store.
    pub fn data_start(&self) -> u64 {
        u64::from(self.payload) * SECTOR
    }

    /// Where the last keyslot ends, in bytes.
    pub fn areas_end(&self) -> u64 {
        self.slots.iter().map(|slot| slot.area(self.key_len).end).max().unwrap_or(0)
    }

    /// Keyslots in use, by their numbers.
    pub fn active(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.active)
    }

    /// # Errors
    /// `Malformed` if the magic is missing or any keyslot is damaged: then only a repair may change the header.
    pub fn sound(&self) -> Result<()> {
        if !self.marked {
            return Err(malformed("magic", 0, "the magic is missing".into()).advise(Advice::RepairHeader));
        }
        let troubles = || self.slots.iter().filter_map(|slot| slot.trouble.as_ref());
        // Certain damage first: an overlap is reported for both keyslots.
        let worst = troubles().find(|trouble| !trouble.readable).or_else(|| troubles().next());
        worst.map_or(Ok(()), |trouble| Err(trouble.error()))
    }

    /// The same header with another keyslot.
    pub fn with_slot(&self, number: usize, slot: Slot) -> Self {
        let mut new = self.clone();
        slot.put(slot_mut(&mut new.bytes, number));
        new.slots[number] = slot;
        new
    }

    /// The same header with another UUID, of at most 39 bytes.
    pub fn with_uuid(&self, uuid: &str) -> Self {
        let mut new = self.clone();
        let field = &mut new.bytes[at::UUID..][..UUID];
        field.fill(0);
        field[..uuid.len()].copy_from_slice(uuid.as_bytes());
        new.uuid = Some(uuid.to_owned());
        new
    }

    /// The header as it was read, on which an edit is based.
    pub fn seen(&self) -> Vec<Seen> {
        vec![Seen { at: 0, bytes: self.bytes.to_vec() }]
    }

    /// The steps that replace the header in the store, `before`, with this one.
    ///
    /// The header spans two sectors. The second one is written first. Keyslot 6 lies in both, and the first sector contains its
    /// state; until that says "in use", the rest of its record does not matter.
    pub fn steps(&self, before: &[u8], store: &dyn Store) -> Result<Vec<Step>> {
        let mut old = [0; 2 * SECTOR as usize];
        store.read_at(0, &mut old)?;
        let mut new = old;
        new[..SIZE].copy_from_slice(&self.bytes);
        old[..SIZE].copy_from_slice(before);
        let sectors = [(SECTOR, "the end of the header"), (0, "the header")];
        let changed = |at: u64| {
            let range = at as usize..(at + SECTOR) as usize;
            (old[range.clone()] != new[range.clone()]).then(|| new[range].to_vec())
        };
        let step = |(at, what): (u64, &str)| Some(Step { what: what.to_owned(), at, bytes: changed(at)? });
        Ok(sectors.into_iter().filter_map(step).collect())
    }

    fn check_payload(&self) -> Result<()> {
        match self.payload {
            // Detached.
            0 => Ok(()),
            // According to the specification the data follow the keyslots, but it is unknown which of the two offsets is damaged.
            p if u64::from(p) * SECTOR < SIZE as u64 => {
                let what = format!("the data would begin at sector {p}, inside the header");
                Err(malformed("payload offset", at::PAYLOAD, what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the damage of keyslot `i` in a store of `len` bytes.
    fn trouble(&self, i: usize, len: u64) -> Option<Trouble> {
        let slot = &self.slots[i];
        let begin = at::SLOTS + i * at::SLOT;
        let trouble = |field, at: usize, what, readable| {
            let what = format!("keyslot {i}: {what}");
            Some(Trouble { field, at: (begin + at) as u64, what, readable })
        };
        let flag = number(&self.bytes, begin);
        if slot.stripes == 0 || self.key_len as u64 * u64::from(slot.stripes) > AREA_MAX {
            return trouble(
                "stripes",
                at::SLOT_STRIPES,
                format!("the key cannot have {} stripes", slot.stripes),
                false,
            );
        }
        let area = slot.area(self.key_len);
        if area.start < SIZE as u64 {
            let what = format!("its area would begin at sector {}, inside the header", slot.offset);
            return trouble("key material offset", at::SLOT_OFFSET, what, false);
        }
        if area.end > len {
            let what = format!("its area ends at byte {}, but the file at byte {len}", area.end);
            return trouble("key material offset", at::SLOT_OFFSET, what, false);
        }
        if ![ACTIVE, DISABLED].contains(&flag) {
            let what = format!("{flag:#010x} means neither in use nor unused");
            return trouble("state", 0, what, slot.iterations > 0);
        }
        if slot.active && slot.iterations == 0 {
            return trouble("iterations", at::SLOT_ITERATIONS, "there are none".into(), false);
        }
        let payload = u64::from(self.payload) * SECTOR;
        if payload != 0 && area.end > payload {
            let what = format!("its area ends at byte {}, but the data begin at byte {payload}", area.end);
            return trouble("key material offset", at::SLOT_OFFSET, what, true);
        }
        let overlaps = |(j, other): (usize, &Slot)| {
            let other = other.area(self.key_len);
            // An area that is too large is reported for that keyslot itself.
            let possible = other.end - other.start <= AREA_MAX;
            j != i && possible && area.start < other.end && other.start < area.end
        };
        let other = self.slots.iter().enumerate().position(overlaps)?;
        trouble("key material offset", at::SLOT_OFFSET, format!("its area overlaps that of keyslot {other}"), true)
    }
}

/// Checks that it is LUKS, of the right version.
fn check_version(bytes: &[u8; SIZE]) -> Result<()> {
    let not = |what: String| Err(ErrorKind::NotThisFormat(what).into());
    if !bytes.starts_with(MAGIC) {
        return not("no LUKS signature at the start".into());
    }
    match u16::from_be_bytes([bytes[at::VERSION], bytes[at::VERSION + 1]]) {
        1 => Ok(()),
        2 => not("it is LUKS2".into()),
        other => Err(Error::unsupported(format!("version {other} of LUKS"))),
    }
}

pub(in crate::formats) fn malformed(field: &'static str, at: usize, what: String) -> Error {
    ErrorKind::Malformed { field, offset: at as u64, what }.into()
}

/// The bytes of a keyslot's record.
pub(in crate::formats) fn slot_mut(bytes: &mut [u8; SIZE], number: usize) -> &mut [u8] {
    &mut bytes[at::SLOTS + number * at::SLOT..][..at::SLOT]
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("fields lie within the header"))
}

/// Reads text that ends with a zero byte.
fn text(bytes: &[u8], field: &'static str, at: usize, len: usize) -> Result<String> {
    let bytes = &bytes[at..at + len];
    let end = bytes.iter().position(|b| *b == 0);
    let printable = |b: &u8| b.is_ascii_graphic();
    match end.map(|end| &bytes[..end]) {
        None => Err(malformed(field, at, format!("{len} bytes without a terminator"))),
        Some([]) => Err(malformed(field, at, "it is empty".into())),
        Some(text) if !text.iter().all(printable) => Err(malformed(field, at, "it is not text".into())),
        Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
    }
}

fn read_slot(bytes: &[u8]) -> Slot {
    Slot {
        // An invalid state may be a damaged "in use": trying the keyslot does no harm.
        active: number(bytes, 0) != DISABLED,
        iterations: number(bytes, at::SLOT_ITERATIONS),
        salt: *bytes[at::SLOT_SALT..].first_chunk().expect("fields lie within the keyslot"),
        offset: number(bytes, at::SLOT_OFFSET),
        stripes: number(bytes, at::SLOT_STRIPES),
        trouble: None,
    }
}

//! Reads both copies of a header and writes nothing: a damaged or old copy is reported and left unchanged.

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use super::binary::{self, Binary, SIZES, Which};
use super::metadata::Metadata;
use super::validate;
use crate::advice::{Advice, Warning};
use crate::edit::Seen;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// The deepest nesting of objects and arrays: json-c's `JSON_TOKENER_DEFAULT_DEPTH`, with which cryptsetup reads them.
const DEPTH: usize = 32;

/// A header that has been read: the copy in use, and the condition of the other one.
#[derive(Debug)]
pub struct ReadHeader {
    /// The binary header of the copy in use.
    pub binary: Binary,
    /// Its JSON area, fully validated.
    pub metadata: Metadata,
    /// The JSON text as it is stored.
    pub json: Vec<u8>,
    /// Which copy is in use: the newer sound one, or the primary one if both are equal.
    pub which: Which,
    /// The condition of the primary copy.
    pub primary: Luks2CopyState,
    /// The condition of the secondary copy.
    pub secondary: Luks2CopyState,
    /// The binary headers of the sound copies, as they were read. Their checksums also cover the metadata, and each change gives
    /// them new salts. So they show an edit whether the header is still the one it was made for.
    pub seen: Vec<Seen>,
}

/// The condition of one copy of the header.
#[derive(Debug)]
pub enum Luks2CopyState {
    /// Sound, and the newest.
    Current,
    /// Sound, but older: a change of the header was interrupted.
    Stale {
        /// Its sequence number.
        seqid: u64,
    },
    /// Sound and equally new, but different, which no program produces.
    Differs,
    /// Damaged or missing, with the reason.
    Damaged(Error),
}

impl Luks2CopyState {
    /// Whether it needs no repair.
    pub fn is_current(&self) -> bool {
        matches!(self, Self::Current)
    }
}

impl ReadHeader {
    /// Warnings about the copies, in whole sentences.
    pub fn warnings(&self) -> Vec<Warning> {
        let about = |which: Which, state: &Luks2CopyState| {
            let what = match state {
                Luks2CopyState::Current => return None,
                Luks2CopyState::Stale { seqid } => {
                    format!(
                        "is older than the other one ({seqid}, not {}): an update was interrupted",
                        self.binary.seqid
                    )
                }
                Luks2CopyState::Differs => "has the same sequence number as the other one, but differs".to_owned(),
                Luks2CopyState::Damaged(error) => format!("cannot be used ({error})"),
            };
            let used = match which == self.which {
                true => "Its repaired form is used, which its checksum confirms".to_owned(),
                false => format!("The {} header is used", self.which.name()),
            };
            let what = format!("The {} header {what}. {used}.", which.name());
            Some(Warning::from(what).advise(Advice::RepairHeader))
        };
        let states = [(Which::Primary, &self.primary), (Which::Secondary, &self.secondary)];
        states.into_iter().filter_map(|(which, state)| about(which, state)).collect()
    }
}

/// One copy, sound by itself or reconstructed.
struct Copy {
    seen: Seen,
    binary: Binary,
    metadata: Metadata,
    json: Vec<u8>,
    /// The original damage, if a checksum proved the reconstruction.
    mended: Option<Error>,
}

/// Reads the newer sound copy of the header (like `LUKS2_disk_hdr_read` of cryptsetup's luks2_disk_metadata.c, which also writes).
///
/// # Errors
/// `NotThisFormat` if neither copy begins like a header; if neither is sound, the primary copy's error, or the secondary copy's if
/// there is no primary; `Io`.
pub fn read(store: &dyn Store) -> Result<ReadHeader> {
    read_copies(store, true)
}

/// Like [`read`], but uses only the secondary copy.
///
/// # Errors
/// Those of [`read`].
pub fn read_secondary(store: &dyn Store) -> Result<ReadHeader> {
    read_copies(store, false)
}

fn read_copies(store: &dyn Store, with_primary: bool) -> Result<ReadHeader> {
    let primary = io_is_an_error(copy(store, Which::Primary, 0))?;
    let size = primary.as_ref().ok().map(|copy| copy.binary.hdr_size);
    let secondary = io_is_an_error(match size.or_else(|| damaged_but_sized(store)) {
        Some(size) => copy(store, Which::Secondary, size),
        None => find_secondary(store),
    })?;
    let (primary, secondary) =
        (primary.and_then(|copy| fits(copy, store)), secondary.and_then(|copy| fits(copy, store)));
    let left_out = || Error::from(ErrorKind::Misuse("it was excluded".into()));
    choose(if with_primary { primary } else { primary.and_then(|_| Err(left_out())) }, secondary)
}

/// The header size in a primary copy whose checksum is right but whose metadata cannot be read.
fn damaged_but_sized(store: &dyn Store) -> Option<u64> {
    let stored = Stored::read(store, Which::Primary, 0).ok()?;
    stored.checked().is_ok().then_some(stored.binary.hdr_size)
}

fn choose(primary: Result<Copy>, secondary: Result<Copy>) -> Result<ReadHeader> {
    let seen = [&primary, &secondary].into_iter().flatten().map(|copy| copy.seen.clone()).collect();
    // A reconstructed copy is as good as any for reading, and must be rewritten.
    let current = |copy: &mut Copy| copy.mended.take().map_or(Luks2CopyState::Current, Luks2CopyState::Damaged);
    let (copy, which, one, other) = match (primary, secondary) {
        (Ok(mut one), Ok(mut other)) => {
            let (a, b) = (one.binary.seqid, other.binary.seqid);
            let same = a == b && one.says_the_same(&other);
            // An intact copy takes precedence over a reconstructed one.
            let use_other = a < b || same && one.mended.is_some() && other.mended.is_none();
            let first = if a < b { Luks2CopyState::Stale { seqid: a } } else { current(&mut one) };
            let second = match () {
                () if a > b => Luks2CopyState::Stale { seqid: b },
                () if a < b || same => current(&mut other),
                () => Luks2CopyState::Differs,
            };
            match use_other {
                true => (other, Which::Secondary, first, second),
                false => (one, Which::Primary, first, second),
            }
        }
        (Ok(mut one), Err(e)) => {
            let state = current(&mut one);
            (one, Which::Primary, state, Luks2CopyState::Damaged(e))
        }
        (Err(e), Ok(mut other)) => {
            let state = current(&mut other);
            (other, Which::Secondary, Luks2CopyState::Damaged(e), state)
        }
        (Err(one), Err(other)) => return Err(neither(one, other)),
    };
    let Copy { binary, metadata, json, .. } = copy;
    Ok(ReadHeader { binary, metadata, json, which, primary: one, secondary: other, seen })
}

/// The error where neither copy is sound.
fn neither(primary: Error, secondary: Error) -> Error {
    let missing = |e: &Error| matches!(e.kind, ErrorKind::NotThisFormat(_));
    let (mut error, other) = match (missing(&primary), missing(&secondary)) {
        (true, true) => return primary,
        (true, false) => (secondary, "the primary header is missing".to_owned()),
        _ if primary.hint.is_some() => return primary,
        _ => (primary, format!("the secondary header is unusable, too: {}", secondary.kind)),
    };
    if let ErrorKind::Malformed { what, .. } | ErrorKind::Unsupported { what } | ErrorKind::Misuse(what) =
        &mut error.kind
    {
        *what = format!("{what}; {other}");
    }
    error.advise(Advice::RestoreHeader)
}

/// A read error of the store is not damage of the header.
fn io_is_an_error<T>(read: Result<T>) -> Result<Result<T>> {
    match read {
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        other => Ok(other),
    }
}

/// Searches for the first sound secondary copy, if the primary copy does not give its offset. If none is sound, returns the error
/// of the first one found.
fn find_secondary(store: &dyn Store) -> Result<Copy> {
    let mut first = None;
    for at in SIZES {
        match copy(store, Which::Secondary, at) {
            Ok(found) => return Ok(found),
            Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => {}
            Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
            Err(e) => first = first.or(Some(e)),
        }
    }
    Err(first.unwrap_or_else(|| missing(Which::Secondary)))
}

fn missing(which: Which) -> Error {
    ErrorKind::NotThisFormat(format!("there is no {} LUKS2 header", which.name())).into()
}

/// Returns the copy at `offset` if it is sound, or if its checksum proves a reconstruction. `wipefs` erases only the first bytes,
/// and whatever overwrites the JSON area of one copy often leaves the other's, which is the same.
fn copy(store: &dyn Store, which: Which, offset: u64) -> Result<Copy> {
    let mut stored = Stored::read(store, which, offset)?;
    let mut mended = (!stored.marked).then(|| stored.wiped());
    if let Err(error) = stored.checked() {
        stored.with_the_json_of_the_other(store)?;
        if stored.checked().is_err() {
            return Err(if stored.marked { error } else { missing(which) });
        }
        mended = Some(error);
    }
    let Stored { binary, whole, seen, .. } = stored;
    let at = offset + binary::LEN as u64;
    let json = json_text(&whole[binary::LEN..], at)?.to_vec();
    let metadata = parse(&json, at)?;
    validate::metadata(&metadata, binary.hdr_size, at)?;
    Ok(Copy { seen: Seen { at: offset, bytes: seen }, binary, metadata, json, mended })
}

/// The bytes of a copy, with the magic restored.
struct Stored {
    which: Which,
    offset: u64,
    binary: Binary,
    /// The binary header as it is stored.
    seen: Vec<u8>,
    /// The whole copy, with the magic restored.
    whole: Vec<u8>,
    /// Whether the magic was there.
    marked: bool,
}

impl Stored {
    /// # Errors
    /// `NotThisFormat` if nothing shows that there is a header; `Malformed`, `Unsupported`, `Io`.
    fn read(store: &dyn Store, which: Which, offset: u64) -> Result<Self> {
        let mut start = [0; binary::LEN];
        if !read_all(store, offset, &mut start)? {
            return Err(missing(which));
        }
        let seen = start.to_vec();
        let marked = start[..6] == *which.magic();
        if marked && which == Which::Primary && start[6..8] == [0, 1] {
            return Err(ErrorKind::NotThisFormat("it is a LUKS1 volume".into()).into());
        }
        start[..6].copy_from_slice(which.magic());
        // Without a magic, damage is not reported: the bytes are something else.
        let parsed = Binary::parse(&start, which, offset);
        let binary = if marked { parsed? } else { parsed.map_err(|_| missing(which))? };
        let mut whole = vec![0; binary.hdr_size as usize];
        if !read_all(store, offset, &mut whole)? {
            let what = format!("the file ends inside the header of {} bytes at byte {offset}", binary.hdr_size);
            let cut = ErrorKind::Malformed { field: "hdr_size", offset: offset + 8, what };
            return Err(if marked { cut.into() } else { missing(which) });
        }
        whole[..6].copy_from_slice(which.magic());
        Ok(Self { which, offset, binary, seen, whole, marked })
    }

    /// Whether the checksum is right.
    fn checked(&self) -> Result<()> {
        self.binary.check(&self.whole, self.offset)
    }

    /// Takes the metadata of the other copy: in two copies of the same age they are identical.
    fn with_the_json_of_the_other(&mut self, store: &dyn Store) -> Result<()> {
        let other = match self.which {
            Which::Primary => self.binary.hdr_size,
            Which::Secondary => 0,
        };
        read_all(store, other + binary::LEN as u64, &mut self.whole[binary::LEN..]).map(drop)
    }

    /// The error for a copy whose magic is missing.
    fn wiped(&self) -> Error {
        let what = format!("the signature of the {} header is missing; the rest is intact", self.which.name());
        ErrorKind::Malformed { field: "magic", offset: self.offset, what }.into()
    }
}

impl Copy {
    /// Whether everything except the salt is the same.
    fn says_the_same(&self, other: &Self) -> bool {
        self.json == other.json && Binary { salt: other.binary.salt, ..self.binary.clone() } == other.binary
    }
}

/// Checks that the store is long enough for the keyslots. cryptsetup checks this too (`device_check_size`).
fn fits(copy: Copy, store: &dyn Store) -> Result<Copy> {
    let end = 2 * copy.binary.hdr_size + copy.metadata.config.keyslots_size.0;
    if end > store.len() {
        let missing = end - store.len();
        let what = format!(
            "headers and keyslots take {end} bytes, but the file has only {}: {missing} are missing",
            store.len()
        );
        let at = binary::LEN as u64;
        return Err(Error::from(ErrorKind::Malformed { field: "keyslots_size", offset: at, what })
            .hint("Look for a longer copy or a header backup: this one was cut short, and keyslots may be lost."));
    }
    Ok(copy)
}

/// Returns whether there were enough bytes.
fn read_all(store: &dyn Store, offset: u64, out: &mut [u8]) -> Result<bool> {
    if offset.checked_add(out.len() as u64).is_none_or(|end| end > store.len()) {
        return Ok(false);
    }
    store.read_at(offset, out)?;
    Ok(true)
}

/// Returns the text of a JSON area, which is padded with zeros (specification, section 3; cryptsetup's `validate_json_area`).
fn json_text(area: &[u8], at: u64) -> Result<&[u8]> {
    let wrong = |place: usize, what: &str| {
        Err(ErrorKind::Malformed { field: "JSON area", offset: at + place as u64, what: what.to_owned() }.into())
    };
    if area[0] != b'{' {
        return wrong(0, "it does not begin with an opening brace");
    }
    let Some(len) = area.iter().position(|b| *b == 0) else {
        return wrong(area.len() - 1, "the metadata are not terminated");
    };
    if let Some(more) = area[len..].iter().position(|b| *b != 0) {
        return wrong(len + more, "other data follow the metadata");
    }
    Ok(&area[..len])
}

/// Parses the text, which begins at the offset `at` of the store.
pub(super) fn parse(json: &[u8], at: u64) -> Result<Metadata> {
    if let Some(place) = too_deep(json) {
        let what = format!("objects and arrays are nested more than {DEPTH} deep");
        return Err(ErrorKind::Malformed { field: "JSON area", offset: at + place as u64, what }.into());
    }
    let mut twice = serde_json::Deserializer::from_slice(json);
    let checked = NoKeyTwice.deserialize(&mut twice).and_then(|()| twice.end());
    checked.and_then(|()| serde_json::from_slice(json)).map_err(|e| json_error(&e, json, at))
}

/// Returns where the text exceeds the nesting limit.
fn too_deep(json: &[u8]) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for (place, byte) in json.iter().enumerate() {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            return Some(place);
        }
    }
    None
}

/// Converts serde_json's error to one with the offset in the store.
fn json_error(error: &serde_json::Error, json: &[u8], at: u64) -> Error {
    let lines = json.split_inclusive(|b| *b == b'\n').take(error.line().saturating_sub(1));
    let place = lines.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1);
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default().to_owned();
    ErrorKind::Malformed { field: "JSON area", offset: at + place as u64, what }.into()
}

/// Reads any JSON, and refuses objects with a duplicate key: programs do not agree which one is valid.
#[derive(Clone, Copy)]
struct NoKeyTwice;

impl<'de> DeserializeSeed<'de> for NoKeyTwice {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NoKeyTwice {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> std::result::Result<(), A::Error> {
        while all.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> std::result::Result<(), A::Error> {
        let mut seen = std::collections::BTreeSet::new();
        while let Some(key) = all.next_key::<String>()? {
            all.next_value_seed(self)?;
            if let Some(twice) = seen.replace(key) {
                return Err(A::Error::custom(format!("the key {twice:?} occurs twice")));
            }
        }
        Ok(())
    }
}

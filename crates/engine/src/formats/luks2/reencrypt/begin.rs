//! Begins a reencryption with a single change of the header. Until then the data are not touched.

use std::ops::Range;

use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::{Secret, hash};
use serde_json::{Map, Value, json};

use super::super::recovery::token;
use super::doubts::Moving;
use super::keys::VolumeKeys;
use super::state::{Direction, FINAL, MOVED, PREVIOUS, ReencryptionState, Side};
use super::{HeaderAndData, doubts};
use super::{moving, proof};
use crate::advice::Advice;
use crate::credential::{Credential, Unlock};
use crate::edit::{Edit, Step};
use crate::error::{Error, Result};
use crate::formats::in_place::ReencryptionRequest;
use crate::formats::luks::kdf::{self, Kdf};
use crate::formats::luks::{data_elsewhere, passphrase};
use crate::formats::luks2::keyslots::{self, KeyslotParameters};
use crate::formats::luks2::metadata::{Area, Decimal, Id, Keyslot, Metadata, MetadataSegment, Requirements, Size};
use crate::formats::luks2::read::{ReadHeader, read};
use crate::formats::luks2::unlock::{OpenedKey, json_at, open_key};
use crate::formats::luks2::{change, create, derivation, slots, validate, write};
use crate::spec::{Cost, Spec};
use crate::store::{MemoryStore, Store};
use crate::volume::ConversionKind;

/// A reencryption that is ready to begin.
#[derive(Debug)]
pub struct Beginning {
    /// The changes to the header's store.
    pub edit: Edit,
    /// The keyslots that open only the old key and are removed with it.
    pub ending: Vec<u32>,
    /// The key of the volume until now, if there is one.
    pub key: Option<Secret>,
}

/// Begins a reencryption with another volume key, and another cipher or sector size if asked for. The new key gets a keyslot for
/// the same passphrase. With a detached header and `decrypt`, the volume is decrypted instead.
///
/// # Errors
/// Those of unlocking; `Misuse` for a request that does not fit the volume, `Unsupported` for volumes of several segments or with
/// integrity protection.
pub fn begin(
    stores: &HeaderAndData<'_>,
    with: &Unlock<'_>,
    request: &ReencryptionRequest<'_>,
    decrypt: bool,
) -> Result<Beginning> {
    let header = read(stores.header)?;
    let (old, opened) = the_volume(&header, stores, with)?;
    let mut metadata = header.metadata.clone();
    let mut steps = Vec::new();
    if decrypt {
        may_be_plaintext_in_place(stores, &old)?;
    }
    doubts::must_have_no_header_in_front(stores, old.offset.0)?;
    if moving::record(&header.metadata).is_some() {
        return Err(Error::misuse("a decryption is moving this header to a separate file")
            .hint("Nothing was changed.")
            .advise(Advice::ResumeDecryption));
    }
    let (last, new) = if decrypt {
        (linear(old.offset.0, Size::Dynamic), None)
    } else {
        let (segment, key_len) = encrypted(&old, &opened, request)?;
        let (digest, key, step) = new_key(&header, &mut metadata, &opened, with, request, key_len)?;
        steps.push(step);
        (segment, Some((digest, key)))
    };
    let backward = request.backward || decrypt;
    let plan = NewReencryption {
        mode: if decrypt { ConversionKind::Decrypt } else { ConversionKind::Reencrypt },
        direction: if backward { Direction::Backward } else { Direction::Forward },
        shift: None,
        size: stores.data.len().saturating_sub(old.offset.0),
        previous: (old, Some(opened.digest)),
        last: (last, new.as_ref().map(|(digest, _)| *digest)),
        moved: None,
    };
    let digest = opened.digest;
    let ending = header.metadata.digests[&digest].keyslots.iter().map(|id| id.0);
    let ending = ending.filter(|slot| Some(*slot) != opened.keyslot).collect();
    let key = Some(Secret::copy_from(&opened.key));
    let keys = VolumeKeys { previous: Some(opened.key), last: new.map(|(_, key)| key), same: false };
    plan.put(&mut metadata, header.binary.hdr_size, request, &keys, stores.data.len())?;
    steps.extend(write::steps(stores.header, &header, header.binary.clone(), &metadata)?);
    Ok(Beginning { edit: Edit::new(steps).made_for(header.seen), ending, key })
}

/// Begins to encrypt plaintext into a volume with a detached header, whose store must be empty. `first` opens the volume then.
///
/// # Errors
/// Those of creating a volume.
pub fn begin_detached_encryption(
    stores: &HeaderAndData<'_>,
    spec: &Spec<'_>,
    first: &[Credential],
    request: &ReencryptionRequest<'_>,
) -> Result<Beginning> {
    let image = encryption_header(stores.header.len(), stores.data, spec, first, request, None)?;
    doubts::must_be_empty(stores.header, image.len() as u64)?;
    Ok(Beginning { edit: Edit::new(image_steps(&image)?), ending: Vec::new(), key: None })
}

/// Begins to decrypt a volume with its header in front. The header moves to a store of its own, as long as header and keyslots, and
/// the data move to the beginning. Only one write touches the data before rewriting starts: the first part of the ciphertext
/// replaces the header. If a crash interrupts this, it is begun again.
///
/// # Errors
/// Those of [`begin`].
pub fn begin_decryption(
    header_to: &dyn Store,
    data: &dyn Store,
    with: &Unlock<'_>,
    request: &ReencryptionRequest<'_>,
) -> Result<()> {
    let (image, begun) = match doubts::header_to_move(header_to, data)? {
        Some(Moving::Fresh(image)) => (image, false),
        Some(Moving::Begun(image)) => (image, true),
        None => return Err(doubts::not_empty()),
    };
    let memory = MemoryStore::new(image.clone());
    let header = read(&memory)?;
    let (old, opened) = the_volume(&header, &HeaderAndData { header: &memory, data, detached: false }, with)?;
    let end = validate::header_end(&header.metadata, header.binary.hdr_size);
    if header_to.len() != end {
        return Err(Error::misuse(format!("the header file must have {end} bytes")));
    }
    let shift = old.offset.0;
    let mut plan = NewReencryption {
        mode: ConversionKind::Decrypt,
        direction: Direction::Forward,
        shift: Some(shift),
        size: data.len().saturating_sub(shift),
        previous: (old.clone(), Some(opened.digest)),
        last: (linear(0, Size::Dynamic), None),
        moved: None,
    };
    let first = match moving::record(&header.metadata).and_then(moving::len) {
        Some(len) => len,
        None => moving::first_part(data, shift).min(plan.longest_at_once(&header, request)?),
    };
    // Everything is prepared before the first write, so that errors come before any change.
    let record = if begun { Vec::new() } else { record_steps(&memory, &header, shift..shift + first, data)? };
    Edit::new(record.clone()).carry_out(&memory)?;
    let header = read(&memory)?;
    plan.moved = Some((MetadataSegment { offset: Decimal(0), size: Size::Fixed(first), ..old }, Some(opened.digest)));
    let mut metadata = header.metadata.clone();
    moving::take_out(&mut metadata);
    let keys = VolumeKeys { previous: Some(opened.key), last: None, same: false };
    plan.put(&mut metadata, header.binary.hdr_size, request, &keys, data.len())?;
    let state = write::steps(&memory, &header, header.binary.clone(), &metadata)?;
    // The unchanged header is written first: it opens the data in their old place from a detached file too. The record of the move
    // comes next, then the copy of the first part, and last the header that describes this copy.
    if !begun {
        Edit::new(image_steps(&image)?).carry_out(header_to)?;
        Edit::new(record).carry_out(header_to)?;
    }
    let mut bytes = vec![0; first as usize];
    data.read_at(shift, &mut bytes)?;
    data.write_clobbering(0, &mut bytes)?;
    data.flush()?;
    Edit::new(state).carry_out(header_to)
}

/// The steps that write the record of the move into a header.
fn record_steps(store: &dyn Store, header: &ReadHeader, moved: Range<u64>, data: &dyn Store) -> Result<Vec<Step>> {
    let mut metadata = header.metadata.clone();
    moving::put(&mut metadata, moved, data)?;
    write::steps(store, header, header.binary.clone(), &metadata)
}

/// The whole header of a volume whose data are still plaintext, `len` bytes long. If the header replaces the first part, `moved`
/// gives that part's new offset and the size of the plaintext.
pub(super) fn encryption_header(
    len: u64,
    data: &dyn Store,
    spec: &Spec<'_>,
    first: &[Credential],
    request: &ReencryptionRequest<'_>,
    moved: Option<(Range<u64>, u64)>,
) -> Result<Vec<u8>> {
    let len_in_memory = usize::try_from(len).ok().filter(|len| *len <= 256 << 20);
    let memory = MemoryStore::new(vec![0; len_in_memory.ok_or_else(|| Error::misuse("it is too long"))?]);
    let offset = if moved.is_some() { len } else { 0 };
    let spec = Spec {
        data: Some(data),
        data_offset: Some(offset),
        quick: true,
        cipher: spec.cipher,
        hash: spec.hash,
        cost: spec.cost,
        key_bits: spec.key_bits,
        sector_size: spec.sector_size,
        uuid: spec.uuid,
        label: spec.label,
        subsystem: spec.subsystem,
        volume_key: spec.volume_key,
        metadata_size: spec.metadata_size,
        keyslots_size: spec.keyslots_size,
        cancel: spec.cancel,
        ..Spec::default()
    };
    create::create(&memory, &spec, first)?;
    let header = read(&memory)?;
    let opened = open_key(&header, &memory, &Unlock::with(first), 0)?;
    let segment = header.metadata.segments[&0].clone();
    let size = moved.as_ref().map_or(data.len(), |(_, size)| *size);
    let previous = linear(0, if moved.is_some() { Size::Fixed(size) } else { Size::Dynamic });
    let plan = NewReencryption {
        mode: ConversionKind::Encrypt,
        direction: if moved.is_some() || request.backward { Direction::Backward } else { Direction::Forward },
        shift: moved.as_ref().map(|_| len),
        size,
        previous: (previous, None),
        last: (segment, Some(opened.digest)),
        moved: moved.map(|(at, _)| (linear(at.start, Size::Fixed(at.end - at.start)), None)),
    };
    let mut metadata = header.metadata.clone();
    let keys = VolumeKeys { previous: None, last: Some(opened.key), same: false };
    plan.put(&mut metadata, header.binary.hdr_size, request, &keys, data.len())?;
    Edit::new(write::steps(&memory, &header, header.binary.clone(), &metadata)?).carry_out(&memory)?;
    Ok(memory.to_vec())
}

/// The steps that write a header to an empty place. Keyslots come first, so that a readable header always has them.
pub(super) fn image_steps(image: &[u8]) -> Result<Vec<Step>> {
    let size = image.get(8..16).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
    let size = size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size < image.len() / 2);
    let size = size.ok_or_else(|| Error::misuse("this is not a complete header"))?;
    let step =
        |what: &str, at: Range<usize>| Step { what: what.into(), at: at.start as u64, bytes: image[at].to_vec() };
    Ok(vec![
        step("the keyslots", 2 * size..image.len()),
        step("the secondary header", size..2 * size),
        step("the primary header", 0..size),
    ])
}

/// Returns the only segment to rewrite, and its key.
fn the_volume(
    header: &ReadHeader,
    stores: &HeaderAndData<'_>,
    with: &Unlock<'_>,
) -> Result<(MetadataSegment, OpenedKey)> {
    change::nothing_required(&header.metadata)?;
    let [(0, segment)] = header.metadata.segments.iter().map(|(n, s)| (*n, s)).collect::<Vec<_>>()[..] else {
        return Err(Error::unsupported("reencryption of a volume with several segments").advise(Advice::CopyVolume));
    };
    if segment.integrity.is_some() {
        return Err(Error::unsupported("reencryption of a volume with integrity protection")
            .hint("Its tags are interleaved with its data.")
            .advise(Advice::CopyVolume));
    }
    if segment.kind != "crypt" || segment.size != Size::Dynamic || segment.iv_tweak != Some(Decimal(0)) {
        return Err(Error::unsupported("reencryption of a volume that is not one encrypted segment of dynamic size")
            .advise(Advice::CopyVolume));
    }
    if !stores.detached && segment.offset.0 < validate::header_end(&header.metadata, header.binary.hdr_size) {
        return Err(data_elsewhere());
    }
    doubts::may_belong_together(stores, header, segment.is_encrypted().then_some(segment.offset.0))?;
    let digest = slots::data_digest(&header.metadata).map(|(number, _)| number);
    let digest = digest.ok_or_else(|| Error::unsupported("reencryption of a volume that is not encrypted"))?;
    let mut segment = segment.clone();
    segment.flags.clear();
    let opened = open_key(header, stores.header, with, digest)?;
    doubts::encrypted_as_said(&segment, &opened.key, stores.data, json_at(header))?;
    Ok((segment, opened))
}

/// Checks that the data may stay in place as plaintext. Plaintext must begin at the start of its store. Data with an offset lie
/// after their header, or after remains of one, and must move to the front when they are decrypted: otherwise nobody would find
/// them. (cryptsetup refuses the same: "LUKS2 decryption is supported with detached header device only (with data offset set to
/// 0)".)
fn may_be_plaintext_in_place(stores: &HeaderAndData<'_>, segment: &MetadataSegment) -> Result<()> {
    if !stores.detached {
        return Err(Error::misuse("the header lies where plaintext belongs: move it to a separate file"));
    }
    let offset = segment.offset.0;
    if offset == 0 {
        return Ok(());
    }
    Err(Error::misuse(format!(
        "the data begin at byte {offset}: decrypted in place, the plaintext would be in the wrong position"
    ))
    .hint(
        "Nothing was changed. Restore the header in front if it is lost; then give a new file for the header, and \
         the data move to the beginning.",
    )
    .advise(Advice::RestoreHeader))
}

/// Returns the segment after the reencryption, and the size of its key in bytes.
fn encrypted(
    old: &MetadataSegment,
    opened: &OpenedKey,
    request: &ReencryptionRequest<'_>,
) -> Result<(MetadataSegment, usize)> {
    let text = match request.cipher {
        Some(name) if !name.contains('-') => format!("{}-xts-plain64", name.to_ascii_lowercase()),
        Some(name) => name.to_owned(),
        None => old.encryption.clone().unwrap_or_default(),
    };
    let sizes = Specification::parse(&text).map_err(|e| Error::misuse(e.to_string()))?.key_sizes();
    let asked = request.key_bits.map(|bits| bits as usize / 8);
    let fits = |len: &usize| sizes.contains(len);
    let len = asked.or_else(|| [opened.key.len(), 64, 32].into_iter().find(fits)).or_else(|| sizes.last().copied());
    let len = len.filter(fits).filter(|_| request.key_bits.is_none_or(|bits| bits.is_multiple_of(8)));
    let len = len.ok_or_else(|| {
        let all: Vec<_> = sizes.iter().map(|size| (size * 8).to_string()).collect();
        Error::misuse(format!("{text} takes no such key")).hint(format!("It takes a key of {} bits.", all.join(", ")))
    })?;
    let sector_size = request.sector_size.or(old.sector_size);
    if !sector_size.is_some_and(|size| matches!(size, 512 | 1024 | 2048 | 4096)) {
        return Err(Error::misuse("the encryption sector size must be 512, 1024, 2048 or 4096 bytes"));
    }
    Ok((MetadataSegment { encryption: Some(text), sector_size, ..old.clone() }, len))
}

/// Returns a new volume key, with its digest, a keyslot that opens with the same passphrase, and the step that writes this keyslot.
fn new_key(
    header: &ReadHeader,
    metadata: &mut Metadata,
    opened: &OpenedKey,
    with: &Unlock<'_>,
    request: &ReencryptionRequest<'_>,
    key_len: usize,
) -> Result<(u32, Secret, Step)> {
    let typed = passphrase(with.credentials)?;
    let passphrase = opened.recovery_key.as_deref().unwrap_or(typed);
    let mut key = Secret::zeroed(key_len);
    write::random(&mut key)?;
    let number = slots::free_number(&metadata.keyslots);
    let number = number.ok_or_else(|| {
        Error::misuse("all keyslots are in use, but the new key needs one").hint(
            "Remove one that is no longer \
             needed.",
        )
    })?;
    let hash = keyslots::hash_of(request.hash)?;
    let like = opened.keyslot.and_then(|slot| metadata.keyslots.get(&slot));
    let area = like.and_then(|slot| Some((slot.area.encryption.clone()?, slot.area.key_size? as usize)));
    let (cipher, cipher_key) = area.unwrap_or(("aes-xts-plain64".into(), 64));
    let how = KeyslotParameters::new(&cipher, cipher_key, request.hash)?;
    let kdf = match like.and_then(|slot| slot.kdf.as_ref()) {
        Some(kdf) if request.cost == Cost::default() && request.hash.is_none() => derivation::of(kdf)?,
        _ => Kdf::choose(&request.cost, kdf::LUKS2, hash, how.cipher_key, with.cancel)?,
    };
    let at = slots::free_area(metadata, header.binary.hdr_size, slots::area_len(key_len))?;
    let (keyslot, step) = keyslots::sealed(at, &key, passphrase, &how, &kdf, with, number)?;
    let digest_number =
        slots::free_number(&metadata.digests).ok_or_else(|| Error::misuse("there are too many digests"))?;
    let mut digest = keyslots::digest_of(&key, hash, &cost_of(&kdf), with)?;
    digest.keyslots.push(Id(number));
    metadata.keyslots.insert(number, keyslot);
    if opened.recovery_key.is_some() {
        let mark = slots::free_number(&metadata.tokens).zip(token(passphrase, number));
        metadata.tokens.extend(mark);
    }
    metadata.digests.insert(digest_number, digest);
    Ok((digest_number, key, step))
}

/// Marks the cost of a derivation with exact iterations as exact, so that the digest's cost is not measured either.
fn cost_of(kdf: &Kdf) -> Cost<'static> {
    let iterations = if let Kdf::Pbkdf2 { iterations, .. } = kdf { Some(*iterations) } else { Some(1) };
    Cost { iterations, ..Cost::default() }
}

/// A reencryption to put into metadata.
struct NewReencryption {
    mode: ConversionKind,
    direction: Direction,
    shift: Option<u64>,
    size: u64,
    previous: (MetadataSegment, Option<u32>),
    last: (MetadataSegment, Option<u32>),
    moved: Option<(MetadataSegment, Option<u32>)>,
}

impl NewReencryption {
    /// Adds its keyslot, segments, requirement and digest.
    fn put(
        self,
        metadata: &mut Metadata,
        hdr_size: u64,
        request: &ReencryptionRequest<'_>,
        keys: &VolumeKeys,
        data_len: u64,
    ) -> Result<()> {
        let number = slots::free_number(&metadata.keyslots);
        let number = number.ok_or_else(|| {
            Error::misuse("all keyslots are in use, but a reencryption needs one").hint(
                "Remove one that is no \
                 longer needed.",
            )
        })?;
        let block = self.block();
        if self.size == 0 || !self.size.is_multiple_of(block) {
            let what = format!("the data have {} bytes, which is not a multiple of {block}", self.size);
            return Err(Error::misuse(what).hint("Choose a smaller sector size, or extend the file to whole sectors."));
        }
        let keyslot = self.keyslot(metadata, hdr_size, request)?;
        metadata.keyslots.insert(number, keyslot);
        self.state(number, &metadata.keyslots[&number])?.put_first(metadata);
        let requirements = metadata.config.requirements.get_or_insert_with(Requirements::default);
        let forward = self.shift.is_some() && self.direction == Direction::Forward;
        requirements.mandatory.push(proof::requirement(forward).to_owned());
        proof::seal(metadata, number, keys)?;
        self.check(metadata, data_len)
    }

    /// Reads the state as any program will, before it is written.
    fn check(&self, metadata: &Metadata, data_len: u64) -> Result<()> {
        let state = ReencryptionState::of(metadata, data_len)?;
        let state = state.filter(|state| state.size == self.size && state.hot.is_none() && state.done.is_empty());
        let state = state
            .ok_or_else(|| Error::misuse("the reencryption would not read back as written; nothing was changed"))?;
        let first = if self.direction == Direction::Forward { state.moved_end() } else { self.size - 1 };
        let least = if self.mode == ConversionKind::Decrypt && self.moved.is_some() {
            state.moved_end()
        } else {
            state.alignment()
        };
        if state.zone_limit(first.min(self.size - 1)) < state.alignment() || state.zone_limit(0) < least {
            return Err(Error::misuse("the keyslots area has too little room to protect a zone")
                .hint("Remove a keyslot that is no longer needed, or choose another resilience mode."));
        }
        Ok(())
    }

    fn keyslot(&self, metadata: &Metadata, hdr_size: u64, request: &ReencryptionRequest<'_>) -> Result<Keyslot> {
        let asked = self.resilience(request);
        let kind = match (asked, self.shift, self.direction) {
            // With a backward shift, a zone is never written over its own source.
            (_, Some(_), Direction::Backward) => "datashift".to_owned(),
            ("checksum" | "journal", Some(_), Direction::Forward) => format!("datashift-{asked}"),
            ("checksum" | "journal" | "none", None, _) => asked.to_owned(),
            _ => {
                return Err(Error::misuse(format!("the resilience mode {asked} is not possible here"))
                    .hint("Use checksum, journal or none."));
            }
        };
        let (offset, size) = match kind.as_str() {
            "none" | "datashift" => (slots::free_area(metadata, hdr_size, slots::BLOCK)?, slots::BLOCK),
            _ => widest_gap(metadata, hdr_size)?,
        };
        let mut other = Map::new();
        if kind.ends_with("checksum") {
            let hash = hash::by_name(request.checksum.unwrap_or("sha256"));
            let hash = hash.ok_or_else(|| Error::misuse("no checksum hash has that name"))?;
            other.insert("hash".into(), json!(keyslots::header_name(hash)?));
            other.insert("sector_size".into(), json!(self.block()));
        }
        if let Some(shift) = self.shift {
            other.insert("shift_size".into(), json!(shift.to_string()));
        }
        let direction = if self.direction == Direction::Forward { "forward" } else { "backward" };
        let mode = match self.mode {
            ConversionKind::Reencrypt => "reencrypt",
            ConversionKind::Encrypt => "encrypt",
            ConversionKind::Decrypt => "decrypt",
        };
        let of_state = [("mode", mode), ("direction", direction)];
        Ok(Keyslot {
            kind: "reencrypt".into(),
            // cryptsetup writes this and does not read it.
            key_size: 1,
            priority: Some(0),
            area: Area { kind, offset: Decimal(offset), size: Decimal(size), encryption: None, key_size: None, other },
            kdf: None,
            af: None,
            other: of_state.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect(),
        })
    }

    /// The larger encryption sector of both sides, in bytes.
    fn block(&self) -> u64 {
        let sector = |(segment, _): &(MetadataSegment, _)| u64::from(segment.sector_size.unwrap_or(512));
        sector(&self.previous).max(sector(&self.last))
    }

    fn resilience<'a>(&self, request: &ReencryptionRequest<'a>) -> &'a str {
        request.resilience.unwrap_or(if self.can_be_untorn() { "checksum" } else { "journal" })
    }

    /// Whether a block that a disk wrote partly can be repaired: each of its atoms must be either old or new.
    fn can_be_untorn(&self) -> bool {
        let stands_alone = |(segment, _): &(MetadataSegment, _)| {
            let cipher = segment.encryption.as_deref().map(Specification::parse);
            cipher.is_none_or(|cipher| cipher.is_ok_and(|cipher| cipher.blocks_stand_alone()))
        };
        self.block() == 512 || (stands_alone(&self.previous) && stands_alone(&self.last))
    }

    /// The longest part that is moved and then rewritten at once, in bytes: a journal must have space for it.
    fn longest_at_once(&self, header: &ReadHeader, request: &ReencryptionRequest<'_>) -> Result<u64> {
        if self.resilience(request) != "journal" {
            return Ok(u64::MAX);
        }
        let (_, room) = widest_gap(&header.metadata, header.binary.hdr_size)?;
        Ok(room / self.block() * self.block())
    }

    fn state(&self, number: u32, keyslot: &Keyslot) -> Result<ReencryptionState> {
        let side = |(segment, digest): &(MetadataSegment, Option<u32>), flag: &str| Side {
            segment: MetadataSegment { flags: vec![flag.to_owned()], ..segment.clone() },
            digest: *digest,
            end: if let Size::Fixed(size) = segment.size { size } else { 0 },
        };
        let previous = side(&self.previous, PREVIOUS);
        let last = side(&self.last, FINAL);
        let moved = self.moved.as_ref().map(|moved| side(moved, MOVED));
        let fixed = self.mode == ConversionKind::Encrypt && moved.is_some();
        ReencryptionState::beginning(number, keyslot, (previous, last, moved), self.size, fixed)
    }
}

/// Returns the offset and size of the widest free part of the keyslots area, in whole blocks.
fn widest_gap(metadata: &Metadata, hdr_size: u64) -> Result<(u64, u64)> {
    let end = validate::header_end(metadata, hdr_size);
    let mut taken: Vec<_> = metadata.keyslots.values().map(|slot| (slot.area.offset.0, slot.area.size.0)).collect();
    taken.push((end, 0));
    taken.sort_unstable();
    let (mut free, mut widest) = (2 * hdr_size, (0, 0));
    for (offset, size) in taken {
        let gap = offset.saturating_sub(free) / slots::BLOCK * slots::BLOCK;
        if gap > widest.1 {
            widest = (free, gap);
        }
        free = slots::next_block(free.max(offset.saturating_add(size)));
    }
    if widest.1 == 0 {
        return Err(Error::misuse("the keyslots area has no room to protect a zone")
            .hint("Remove a keyslot that is no longer needed, or choose the resilience mode none."));
    }
    Ok(widest)
}

fn linear(offset: u64, size: Size) -> MetadataSegment {
    MetadataSegment {
        kind: "linear".into(),
        offset: Decimal(offset),
        size,
        iv_tweak: None,
        encryption: None,
        sector_size: None,
        integrity: None,
        flags: Vec::new(),
        other: Map::new(),
    }
}

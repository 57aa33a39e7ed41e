//! In-place conversion of LUKS1 to LUKS2 and back. Both encrypt data the same way, and PBKDF2 keyslots are the same.
//!
//! cryptsetup moves all keyslots to where the other format's keyslots area begins (lib/luks2/luks2_luks1_convert.c); a crash
//! during that leaves a volume that nothing opens. Here keyslots stay in place, and only those that overlap a new header are copied
//! to a free place. One sector, which a disk writes whole or not at all, then switches the format.

use std::collections::BTreeMap;
use std::ops::Range;

use super::binary::{Binary, SIZES};
use super::change::Change;
use super::metadata::{Af, Area, Base64, Config, Decimal, Digest, Id, Kdf, Keyslot, Metadata, MetadataSegment, Size};
use super::{NAME, binary, slots, validate, write};
use crate::advice::{Advice, Warning};
use crate::edit::{Edit, Step};
use crate::error::{Error, Result};
use crate::formats::luks1::header::{self as luks1, New, Phdr, SECTOR, SLOTS, STRIPES, Slot};
use crate::formats::{Prepared, same_name};
use crate::store::Store;

/// The size of one copy of the new LUKS2 header, in bytes: the smallest.
const HDR_SIZE: u64 = SIZES[0];

/// The multiple for the areas of LUKS1 keyslots, in bytes (cryptsetup's luks.h, `LUKS_ALIGN_KEYSLOTS`).
const ALIGNMENT: u64 = 4096;

/// Prepares the steps that turn a LUKS1 volume into a LUKS2 volume. `detached` means that the store holds only the header.
///
/// First the keyslots that are in the way are moved, in the LUKS1 header too. Then the secondary LUKS2 header is written to the
/// space that is now free, followed by the primary one without its first sector. This overwrites the LUKS1 entries of at most two
/// keyslots. The first sector comes last.
pub(in crate::formats) fn to_luks2(store: &dyn Store, to: &str, detached: bool) -> Result<Prepared> {
    if !same_name(to, NAME) {
        return Err(Error::unsupported(format!("converting LUKS1 to {to}")).advise(Advice::CopyVolume));
    }
    let old = Phdr::find(store)?;
    old.sound()?;
    let cipher = area_cipher(&old)?;
    let limit = if detached || old.payload == 0 { store.len() } else { old.data_start() };
    let end = limit.min(2 * HDR_SIZE + validate::KEYSLOTS_SIZE) / slots::BLOCK * slots::BLOCK;
    no_other_metadata(store, &old)?;
    let (moved, mut steps) = out_of_the_way(store, &old, 2 * HDR_SIZE..end)?;
    let mut wiped = Vec::new();
    for ((_, before), (_, after)) in old.active().zip(moved.active()) {
        if before.offset != after.offset {
            wiped.push(before.area(old.key_len));
        }
    }
    let metadata = metadata_of(&moved, end, &cipher)?;
    let uuid = old.uuid.clone().unwrap_or_default().into_bytes();
    let binary = Binary {
        hdr_size: HDR_SIZE,
        seqid: 1,
        label: Vec::new(),
        csum_alg: "sha256".into(),
        salt: write::salt()?,
        uuid,
        subsystem: Vec::new(),
    };
    for step in write::first_steps(&binary, &metadata)? {
        if step.at > 0 {
            steps.push(step);
            continue;
        }
        let (first, rest) = step.bytes.split_at(SECTOR as usize);
        steps.push(Step { what: format!("{} without its first sector", step.what), at: SECTOR, bytes: rest.to_vec() });
        steps.push(Step { what: format!("the first sector of {}", step.what), at: 0, bytes: first.to_vec() });
    }
    // The parts of moved keyslots that the headers have not overwritten.
    for area in wiped {
        let rest = area.start.max(2 * HDR_SIZE)..area.end;
        if rest.start < rest.end {
            steps.push(random_over(rest, "the old place of a keyslot")?);
        }
    }
    Ok(prepared(Edit::new(steps).made_for(old.seen()), NAME, Vec::new()))
}

/// Prepares the steps that turn a LUKS2 volume into a LUKS1 volume.
///
/// The second sector is written first: the primary LUKS2 header becomes unusable, but the secondary one still opens. With the first
/// sector the volume becomes a LUKS1 volume. The remains of LUKS2 are wiped at the end.
pub(super) fn to_luks1(store: &dyn Store, to: &str, detached: bool) -> Result<Prepared> {
    if !same_name(to, "LUKS1") {
        return Err(Error::unsupported(format!("converting LUKS2 to {to}")).advise(Advice::CopyVolume));
    }
    let change = Change::of(store)?;
    let metadata = &change.header.metadata;
    let common = CommonParts::of(metadata)?;
    let payload = if detached { 0 } else { common.segment.offset.0 };
    let limit = if payload == 0 { store.len() } else { payload };
    let all_slots = luks1_slots(metadata, &common, limit)?;
    let (cipher_name, cipher_mode) = common.cipher.split_once('-').ok_or_else(|| not("its cipher has no mode"))?;
    let (Some(payload), true) = (u32::try_from(payload / SECTOR).ok(), cipher_name.len().max(cipher_mode.len()) < 32)
    else {
        return Err(not("LUKS1 cannot express its data offset or its cipher"));
    };
    let uuid = String::from_utf8_lossy(&change.header.binary.uuid).into_owned();
    let bytes = New {
        cipher_name,
        cipher_mode,
        hash_name: common.hash,
        payload,
        key_len: common.key_len,
        digest: &common.digest.digest.0[..luks1::DIGEST],
        digest_salt: &common.digest_salt,
        digest_iterations: common.digest_iterations,
        uuid: &uuid,
        slots: &all_slots,
    }
    .bytes();
    let header = Phdr::parse(&bytes, store.len())?;
    header.sound()?;
    header.cipher()?;
    let mut first = vec![0; 2 * SECTOR as usize];
    first[..bytes.len()].copy_from_slice(&bytes);
    let second = first.split_off(SECTOR as usize);
    let mut steps = vec![
        Step { what: "the second sector of the LUKS1 header".into(), at: SECTOR, bytes: second },
        Step { what: "the LUKS1 header".into(), at: 0, bytes: first },
    ];
    // A secondary header left behind could be mistaken for a valid one.
    let hdr_size = change.header.binary.hdr_size;
    steps.push(Step { what: "zeros over the secondary header".into(), at: hdr_size, bytes: vec![0; binary::LEN] });
    let rest = (2 * SECTOR)..hdr_size;
    steps.push(Step { what: "zeros over the primary header".into(), at: rest.start, bytes: zeros(&rest) });
    let rest = hdr_size + binary::LEN as u64..2 * hdr_size;
    steps.push(Step { what: "zeros over the old metadata".into(), at: rest.start, bytes: zeros(&rest) });
    let seen = change.header.seen.clone();
    Ok(prepared(Edit::new(steps).made_for(seen), "LUKS1", lost(&change)))
}

fn prepared(edit: Edit, format: &'static str, warnings: Vec<Warning>) -> Prepared {
    Prepared { edit, format, hidden: false, keyslot: None, derivation: None, warnings }
}

fn zeros(range: &Range<u64>) -> Vec<u8> {
    vec![0; (range.end - range.start) as usize]
}

fn random_over(range: Range<u64>, what: &str) -> Result<Step> {
    let mut bytes = zeros(&range);
    write::random(&mut bytes)?;
    Ok(Step { what: format!("random bytes over {what}"), at: range.start, bytes })
}

/// luksmeta stores its data after the keyslots, where they would be lost (cryptsetup refuses this too, `luksmeta_header_present`).
fn no_other_metadata(store: &dyn Store, header: &Phdr) -> Result<()> {
    let at = header.areas_end().next_multiple_of(ALIGNMENT);
    let mut mark = [0; 8];
    if at + 8 <= store.len() {
        store.read_at(at, &mut mark)?;
    }
    if mark == *b"LUKSMETA" {
        return Err(Error::unsupported("converting a volume with luksmeta data to LUKS2"));
    }
    Ok(())
}

/// Returns the LUKS1 header with no keyslot in use outside `free`, and the steps that get there. A keyslot in the way is swapped
/// with an unused one, or moved after all of them.
fn out_of_the_way(store: &dyn Store, old: &Phdr, free: Range<u64>) -> Result<(Phdr, Vec<Step>)> {
    let len = old.key_len;
    let inside = |slot: &Slot| slot.area(len).start >= free.start && slot.area(len).end <= free.end;
    let mut header = old.clone();
    let mut steps = Vec::new();
    let in_the_way: Vec<_> = old.active().filter(|(_, slot)| !inside(slot)).map(|(number, _)| number).collect();
    for number in in_the_way {
        let slot = header.slots[number].clone();
        let fits = |other: &Slot| !other.active && inside(other) && other.stripes == slot.stripes;
        let behind = header.areas_end().next_multiple_of(ALIGNMENT);
        let mut new = header.clone();
        let to = if let Some(other) = header.slots.iter().position(fits) {
            let offset = header.slots[other].offset;
            let swapped = Slot { offset: slot.offset, ..header.slots[other].clone() };
            new = new.with_slot(other, swapped);
            offset
        } else if behind >= free.start && behind + (slot.area(len).end - slot.area(len).start) <= free.end {
            (behind / SECTOR) as u32
        } else {
            return Err(Error::misuse(format!(
                "keyslot {number} lies where the LUKS2 header belongs, and there is no room to move it; nothing was \
                 changed"
            ))
            .hint("Remove a keyslot that is no longer needed."));
        };
        new = new.with_slot(number, Slot { offset: to, ..slot.clone() });
        let area = slot.area(len);
        let mut bytes = zeros(&area);
        store.read_at(area.start, &mut bytes)?;
        let what = format!("keyslot {number} at its new position");
        steps.push(Step { what, at: u64::from(to) * SECTOR, bytes });
        steps.extend(between(&header, &new));
        header = new;
    }
    Ok((header, steps))
}

/// The steps from one LUKS1 header to another. Neither needs to be in the store yet. The second sector comes first, as in
/// [`Phdr::steps`].
fn between(old: &Phdr, new: &Phdr) -> Vec<Step> {
    let padded = |header: &Phdr| {
        let mut bytes = header.bytes.to_vec();
        bytes.resize(2 * SECTOR as usize, 0);
        bytes
    };
    let (old, new) = (padded(old), padded(new));
    // The second sector is limited to the part that belongs to the header.
    let parts =
        [(SECTOR as usize..luks1::SIZE, "the end of the LUKS1 header"), (0..SECTOR as usize, "the LUKS1 header")];
    let changed = parts.into_iter().filter(|(range, _)| old[range.clone()] != new[range.clone()]);
    changed
        .map(|(range, what)| Step { what: what.to_owned(), at: range.start as u64, bytes: new[range].to_vec() })
        .collect()
}

/// The cipher of keyslots and data, in a notation that cryptsetup accepts for both.
fn area_cipher(header: &Phdr) -> Result<String> {
    let specification = header.specification();
    slots::area_cipher(&specification).ok_or_else(|| {
        Error::unsupported(format!(
            "LUKS2 keyslots encrypted with {} (cryptsetup cannot open them)",
            validate::printable(&specification)
        ))
        .hint(
            "Nothing was changed. Copy the data to a new LUKS2 volume: `claviger convert --new-format LUKS2 OLD \
             NEW`.",
        )
    })
}

/// Converts a LUKS1 header to LUKS2 metadata, with the cipher notation `cipher`. `end` is the end of the keyslots area.
fn metadata_of(header: &Phdr, end: u64, cipher: &str) -> Result<Metadata> {
    let keyslots: BTreeMap<_, _> =
        header.active().map(|(n, slot)| (n as u32, keyslot_of(header, slot, cipher))).collect();
    let digest = Digest {
        kind: "pbkdf2".into(),
        keyslots: keyslots.keys().map(|n| Id(*n)).collect(),
        segments: vec![Id(0)],
        salt: Base64(header.digest_salt().to_vec()),
        digest: Base64(header.digest().to_vec()),
        hash: Some(header.hash_name.clone()),
        iterations: Some(header.digest_iterations),
        other: Default::default(),
    };
    if header.active().any(|(_, slot)| slot.stripes != STRIPES) {
        return Err(Error::unsupported(format!("converting keyslots with other than {STRIPES} stripes to LUKS2")));
    }
    let segment = MetadataSegment {
        kind: "crypt".into(),
        offset: Decimal(header.data_start()),
        size: Size::Dynamic,
        iv_tweak: Some(Decimal(0)),
        encryption: Some(cipher.to_owned()),
        sector_size: Some(SECTOR as u32),
        integrity: None,
        flags: Vec::new(),
        other: Default::default(),
    };
    Ok(Metadata {
        keyslots,
        tokens: Default::default(),
        segments: [(0, segment)].into(),
        digests: [(0, digest)].into(),
        config: Config {
            json_size: Decimal(HDR_SIZE - binary::LEN as u64),
            keyslots_size: Decimal(end.saturating_sub(2 * HDR_SIZE)),
            flags: Vec::new(),
            requirements: None,
            other: Default::default(),
        },
        other: Default::default(),
    })
}

fn keyslot_of(header: &Phdr, slot: &Slot, cipher: &str) -> Keyslot {
    let area = slot.area(header.key_len);
    Keyslot {
        kind: "luks2".into(),
        key_size: header.key_len as u32,
        priority: None,
        area: Area {
            kind: "raw".into(),
            offset: Decimal(area.start),
            // In whole blocks if nothing follows, as cryptsetup does.
            size: Decimal(block_or_less(header, &area)),
            encryption: Some(cipher.to_owned()),
            key_size: Some(header.key_len as u32),
            other: Default::default(),
        },
        kdf: Some(Kdf {
            kind: "pbkdf2".into(),
            salt: Base64(slot.salt.to_vec()),
            hash: Some(header.hash_name.clone()),
            iterations: Some(slot.iterations),
            time: None,
            memory: None,
            cpus: None,
            other: Default::default(),
        }),
        af: Some(Af {
            kind: "luks1".into(),
            stripes: Some(slot.stripes),
            hash: Some(header.hash_name.clone()),
            other: Default::default(),
        }),
        other: Default::default(),
    }
}

fn block_or_less(header: &Phdr, area: &Range<u64>) -> u64 {
    let len = area.end - area.start;
    let block = len.next_multiple_of(slots::BLOCK);
    let taken = |slot: &Slot| (area.end..area.start + block).contains(&slot.area(header.key_len).start);
    if header.active().any(|(_, slot)| taken(slot)) { len } else { block }
}

/// The error for a header that LUKS1 cannot express.
fn not(why: &str) -> Error {
    Error::misuse(format!("it cannot become a LUKS1 volume: {why}; nothing was changed"))
}

/// The parts of a LUKS2 header that LUKS1 can express too.
struct CommonParts<'a> {
    segment: &'a MetadataSegment,
    cipher: &'a str,
    hash: &'a str,
    key_len: usize,
    digest: &'a Digest,
    digest_salt: [u8; luks1::SALT],
    digest_iterations: u32,
}

impl<'a> CommonParts<'a> {
    /// The conditions are cryptsetup's (`LUKS2_luks2_to_luks1`, `keyslot_LUKS1_compatible`), and a few that it misses.
    fn of(metadata: &'a Metadata) -> Result<Self> {
        let (1, Some(segment)) = (metadata.segments.len(), metadata.segments.get(&0)) else {
            return Err(not("it has several segments"));
        };
        let (1, Some((_, digest))) = (metadata.digests.len(), slots::data_digest(metadata)) else {
            return Err(not("it has keys other than the volume key"));
        };
        let cipher = segment.encryption.as_deref().unwrap_or_default();
        let hash = digest.hash.as_deref().unwrap_or_default();
        let first = metadata.keyslots.values().next().ok_or_else(|| not("it has no keyslot"))?;
        let obstacles = [
            (
                segment.kind != "crypt" || segment.integrity.is_some(),
                "its data have integrity protection or are encrypted by the drive",
            ),
            (segment.sector_size != Some(512), "its encryption sectors have more than 512 bytes"),
            (segment.size != Size::Dynamic, "its size is fixed"),
            (segment.iv_tweak.unwrap_or_default().0 != 0, "its sector numbers do not start at 0"),
            (!metadata.tokens.is_empty(), "it has tokens"),
            (digest.kind != "pbkdf2" || digest.digest.0.len() < luks1::DIGEST, "its digest is of another kind"),
            (metadata.keyslots.keys().any(|n| *n as usize >= SLOTS), "it has keyslots numbered above 7"),
        ];
        if let Some((_, why)) = obstacles.iter().find(|(wrong, _)| *wrong) {
            return Err(not(why));
        }
        let (Ok(digest_salt), Some(digest_iterations)) = (digest.salt.0.clone().try_into(), digest.iterations) else {
            return Err(not("its digest has a salt of another length"));
        };
        Ok(Self { segment, cipher, hash, key_len: first.key_size as usize, digest, digest_salt, digest_iterations })
    }

    fn slot(&self, number: u32, keyslot: &Keyslot) -> Result<Slot> {
        let no = |why: &str| not(&format!("keyslot {number} {why}"));
        let (Some(kdf), Some(af)) = (&keyslot.kdf, &keyslot.af) else { return Err(no("is of another kind")) };
        let area = &keyslot.area;
        let obstacles = [
            (keyslot.kind != "luks2", "is of another kind"),
            (kdf.kind != "pbkdf2", "is not derived by PBKDF2; change that first"),
            (keyslot.key_size as usize != self.key_len, "holds a key of another size"),
            (
                kdf.hash.as_deref() != Some(self.hash) || af.hash.as_deref() != Some(self.hash),
                "uses a different hash than the digest",
            ),
            (af.stripes != Some(STRIPES), "is not split 4000 times"),
            (area.encryption.as_deref() != Some(self.cipher), "is not encrypted as the data are"),
            (area.key_size.map(|size| size as usize) != Some(self.key_len), "is not encrypted as the data are"),
            (!area.offset.0.is_multiple_of(SECTOR), "does not begin at a sector boundary"),
        ];
        if let Some((_, why)) = obstacles.iter().find(|(wrong, _)| *wrong) {
            return Err(no(why));
        }
        let salt = kdf.salt.0.clone().try_into().map_err(|_| no("has a salt of another length"))?;
        let offset = u32::try_from(area.offset.0 / SECTOR).map_err(|_| no("is too far away"))?;
        let iterations = kdf.iterations.unwrap_or(0);
        Ok(Slot { active: true, iterations, salt, offset, stripes: STRIPES, trouble: None })
    }
}

/// Returns all eight keyslots: used ones where they are, and unused ones in the gaps before `limit`.
fn luks1_slots(metadata: &Metadata, common: &CommonParts<'_>, limit: u64) -> Result<[Slot; SLOTS]> {
    let mut all: [Slot; SLOTS] = std::array::from_fn(|_| Slot::unused(0));
    for (number, keyslot) in &metadata.keyslots {
        all[*number as usize] = common.slot(*number, keyslot)?;
    }
    let len = luks1::area_len(common.key_len, STRIPES);
    let mut taken: Vec<Range<u64>> = all.iter().filter(|s| s.active).map(|s| s.area(common.key_len)).collect();
    for slot in all.iter_mut().filter(|slot| !slot.active) {
        taken.sort_unstable_by_key(|area| area.start);
        let mut free = ALIGNMENT;
        for area in &taken {
            if free + len <= area.start {
                break;
            }
            free = free.max(area.end.next_multiple_of(ALIGNMENT));
        }
        if free + len > limit {
            return Err(not("eight keyslots do not fit before the data"));
        }
        slot.offset = (free / SECTOR) as u32;
        taken.push(free..free + len);
    }
    Ok(all)
}

/// Warnings about what LUKS1 cannot store.
fn lost(change: &Change<'_>) -> Vec<Warning> {
    let header = &change.header;
    let mut lost = Vec::new();
    if !header.binary.label.is_empty() || !header.binary.subsystem.is_empty() {
        lost.push("label and subsystem");
    }
    if !header.metadata.config.flags.is_empty() {
        lost.push("flags");
    }
    if header.metadata.keyslots.values().any(|slot| slot.priority.unwrap_or(1) != 1) {
        lost.push("priorities of keyslots");
    }
    lost.iter().map(|what| format!("LUKS1 has no {what}; they will be lost.").into()).collect()
}

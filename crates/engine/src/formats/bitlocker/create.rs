//! Creates a volume as Windows 8 and later do. Protectors open the volume master key (VMK), which opens the full volume encryption
//! key (FVEK). The metadata that describe this are stored three times (cryptsetup's images of such volumes; libbde, "BitLocker
//! Drive Encryption (BDE) format").

use std::time::{SystemTime, UNIX_EPOCH};

use claviger_crypto::Secret;

use super::boot::LEN as FIRST_SECTOR;
use super::datum::{Datum, Key, kind, role};
use super::discovery::Discovery;
use super::first_sector;
use super::guid::{Guid, filetime};
use super::layout::Places;
use super::metadata::{AREA, COPIES, Metadata, State, WINDOWS_7};
use super::method::{METHODS, Method};
use super::protect::Opener;
use super::sealed::Sealer;
use super::{NAME, VMK, write};
use crate::credential::{Credential, Unlock};
use crate::edit::Step;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::fat::date_of;
use crate::formats::filling::{self, not_cancelled};
use crate::formats::same_name;
use crate::random;
use crate::spec::{Reserved, ReservedAt, Spec};
use crate::store::Store;

/// The smallest volume, in bytes: twice the header, five areas of 64 KiB, and some space for files.
pub(super) const MIN_LEN: u64 = 512 << 10;

/// How many bytes of the beginning are relocated if there is no discovery volume.
const HEADER: u64 = 8 << 10;
/// The size of the spare area, in bytes. Windows records its place in the metadata if it encrypts with XTS; no more is known about
/// it.
const SPARE: u64 = 64 << 10;
/// The alignment of all areas, in bytes: a cluster of most file systems.
const ALIGNMENT: u64 = 4096;

/// The counter of the first nonce.
const FIRST_NONCE: u32 = 2;

/// The files that stand for the areas on volumes from Windows itself.
const METADATA_FILES: [&str; COPIES] = [
    "System Volume Information/FVE2.{e40ad34d-dae9-4bc7-95bd-b16218c10f72}.1",
    "System Volume Information/FVE2.{e40ad34d-dae9-4bc7-95bd-b16218c10f72}.2",
    "System Volume Information/FVE2.{e40ad34d-dae9-4bc7-95bd-b16218c10f72}.3",
];
const HEADER_FILE: &str = "System Volume Information/FVE2.{24e6f0ae-6a00-4f73-984b-75ce9942852d}";
const SPARE_FILE: &str = "System Volume Information/FVE2.{da392a22-cae0-4f0f-9a30-b8830385d046}";

/// Creates a volume that fills `store`.
///
/// The old first sector is erased first, and the new one written last. So an interrupted creation leaves nothing that opens.
pub(super) fn create(store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
    let plan = Plan::of(store.len(), spec)?;
    let protectors = first.iter().map(|one| Opener::of(std::slice::from_ref(one))).collect::<Result<Vec<_>>>()?;
    if protectors.is_empty() {
        return Err(Error::misuse("a new volume needs a password, a recovery password or a startup key"));
    }
    let vmk = random::secret(VMK)?;
    let metadata = plan.metadata(&protectors, &vmk, spec)?;
    let boot = plan.first_sector();

    store.write_clobbering(0, &mut vec![0; plan.sector as usize])?;
    store.flush()?;
    plan.fill(store, spec)?;
    if let Some(discovery) = &plan.discovery {
        discovery.write(store, &boot)?;
    }
    store.flush()?;
    not_cancelled(spec)?;
    let mut edit = write::rewritten(metadata, &vmk, &[])?;
    edit.steps.push(Step { what: "the first sector".to_owned(), at: 0, bytes: boot.to_vec() });
    edit.carry_out(store)
}

/// The store size for a file system of `plain` bytes in front of all reserved areas, in bytes.
pub(super) fn stored_len(plain: u64, spec: &Spec<'_>) -> Result<u64> {
    let sector = sector_size(spec)?;
    let room = |more: u64| plain.checked_add(more).and_then(|len| len.checked_next_multiple_of(ALIGNMENT.max(sector)));
    let too_large = || Error::misuse(format!("{plain} bytes, more than a volume can hold"));
    let mut len = room(0).ok_or_else(too_large)?.max(MIN_LEN);
    // A larger volume may have a larger discovery volume, which in turn needs a larger place for the sectors that it displaces.
    loop {
        let reserved_size: u64 = reserved(len, spec)?.iter().map(|part| part.size).sum();
        let needed = room(reserved_size).ok_or_else(too_large)?;
        if needed <= len {
            return Ok(len);
        }
        len = needed;
    }
}

/// The reserved areas of a volume in a store of `len` bytes.
pub(super) fn reserved(len: u64, spec: &Spec<'_>) -> Result<Vec<Reserved>> {
    Ok(Plan::of(len, spec)?.kept)
}

/// Decisions made before anything is written. Sizes and offsets are in bytes.
pub(super) struct Plan {
    method: &'static Method,
    sector: u64,
    size: u64,
    /// The size of the volume's beginning that is relocated.
    pub(super) header: u64,
    discovery: Option<Discovery>,
    /// The first copy of the metadata, the header's place, the spare area if there is one, and the other two copies.
    pub(super) kept: Vec<Reserved>,
}

/// Indices into [`Plan::kept`].
const FIRST_COPY: usize = 0;
const HEADER_PLACE: usize = 1;

impl Plan {
    pub(super) fn of(len: u64, spec: &Spec<'_>) -> Result<Self> {
        let method = match spec.cipher {
            None => &METHODS[0],
            Some(name) => METHODS
                .iter()
                .find(|method| same_name(method.name, name))
                .ok_or_else(|| Error::misuse(format!("{NAME} has no cipher called {name}")))?,
        };
        let sector = sector_size(spec)?;
        if len < MIN_LEN {
            return Err(Error::misuse(format!("{len} bytes are too few: a {NAME} volume needs {MIN_LEN}")));
        }
        let size = len / sector * sector;
        let discovery = spec.discovery.then(|| Discovery::of(size, sector)).transpose()?;
        let header = discovery.as_ref().map_or(HEADER, Discovery::len);
        let mut plan = Self { method, sector, size, header, discovery, kept: Vec::new() };
        plan.kept = plan.placed(spec.reserved_at)?;
        plan.check()?;
        Ok(plan)
    }

    /// Whether the metadata contain more than the header's place, as in Windows since version 8. Volumes with methods before XTS
    /// are written as Windows 7 wrote them.
    fn says_more(&self) -> bool {
        self.method.mode == "XTS"
    }

    /// Returns the reserved areas at their final offsets.
    fn placed(&self, reserved_at: ReservedAt<'_>) -> Result<Vec<Reserved>> {
        let copy = |number: usize| Reserved {
            what: write::STEPS[number],
            file: METADATA_FILES[number],
            offset: 0,
            size: AREA,
        };
        let mut kept = vec![copy(0)];
        kept.push(Reserved { what: "the beginning of the volume", file: HEADER_FILE, offset: 0, size: self.header });
        if self.says_more() {
            kept.push(Reserved { what: "spare", file: SPARE_FILE, offset: 0, size: SPARE });
        }
        kept.extend([copy(1), copy(2)]);
        match reserved_at {
            ReservedAt::At(places) if places.len() == kept.len() => {
                kept.iter_mut().zip(places).for_each(|(part, place)| part.offset = *place);
            }
            ReservedAt::At(places) => {
                return Err(Error::misuse(format!(
                    "{} places were given for {} reserved areas",
                    places.len(),
                    kept.len()
                )));
            }
            ReservedAt::Spread if self.spread(&mut kept) => {}
            ReservedAt::Spread | ReservedAt::AtEnd => {
                let all: u64 = kept.iter().map(|part| part.size).sum();
                self.one_after_the_other(&mut kept, self.size.saturating_sub(all));
            }
        }
        Ok(kept)
    }

    fn one_after_the_other(&self, parts: &mut [Reserved], from: u64) {
        let mut at = from / ALIGNMENT * ALIGNMENT;
        for part in parts {
            part.offset = at;
            at += part.size;
        }
    }

    /// Spreads the copies roughly as Windows does: the first at three ninths of the volume, the others at four and five ninths.
    /// Returns false if there is too little space for that.
    fn spread(&self, parts: &mut [Reserved]) -> bool {
        let ninth = self.size / 9;
        let others = parts.len() - (COPIES - 1);
        let (first, others) = parts.split_at_mut(others);
        let room = first.iter().map(|part| part.size).sum::<u64>() + ALIGNMENT;
        self.one_after_the_other(first, 3 * ninth);
        for (number, part) in (4..).zip(others) {
            self.one_after_the_other(std::slice::from_mut(part), number * ninth);
        }
        room <= ninth && self.header <= 3 * ninth
    }

    /// Checks that no areas overlap.
    fn check(&self) -> Result<()> {
        let mut places = Places {
            size: self.size,
            sector: self.sector,
            header: self.header,
            header_place: self.kept[HEADER_PLACE].offset,
            reserved: Vec::new(),
            encrypted: self.size,
            apart: Vec::new(),
            vista: false,
        };
        let checked = self.kept.iter().try_for_each(|part| places.reserve(part.offset, part.size, part.what));
        checked.and_then(|()| places.check()).map_err(|error| match error.kind {
            ErrorKind::Malformed { what, .. } => {
                Error::misuse(format!("a volume of {} bytes is too small: {what}", self.size))
            }
            _ => error,
        })
    }

    fn copies(&self) -> [u64; COPIES] {
        let last = self.kept.len() - 1;
        [FIRST_COPY, last - 1, last].map(|part| self.kept[part].offset)
    }

    pub(super) fn first_sector(&self) -> [u8; FIRST_SECTOR] {
        match &self.discovery {
            Some(discovery) => first_sector::to_go(discovery, self.copies()),
            None => first_sector::plain(self.sector as u32, self.copies(), None),
        }
    }

    /// Fills everything except the first sector with noise, which hides where data are. The old place of the relocated sectors gets
    /// noise in any case.
    fn fill(&self, store: &dyn Store, spec: &Spec<'_>) -> Result<()> {
        if !spec.quick {
            return filling::fill(store, self.sector..self.size, spec);
        }
        filling::random(store, self.sector..self.header, spec)
    }

    /// Returns the metadata, in the order that Windows uses.
    pub(super) fn metadata(&self, protectors: &[Opener], vmk: &Secret, spec: &Spec<'_>) -> Result<Metadata> {
        let label = spec.label.map_or_else(label, str::to_owned);
        let mut next_nonce = FIRST_NONCE;
        let mut sealer = Sealer::new(&mut next_nonce);
        let mut datums = vec![Datum::of_text(role::LABEL, &label)];
        let with = Unlock { cancel: spec.cancel, ..Unlock::with(&[]) };
        for opener in protectors {
            datums.push(opener.protector(Guid::random()?, vmk, &mut sealer, &with)?);
        }
        let fvek = Key { kind: self.method.number, key: random::secret(self.method.stored_key)? };
        datums.push(sealer.seal(role::FVEK, vmk, &fvek));
        datums.push(self.header_datum());
        Ok(Metadata {
            version: WINDOWS_7,
            state: State::ENCRYPTED,
            next_state: State::ENCRYPTED,
            state_offset: self.size,
            log_size: 0,
            header_sectors: (self.header / self.sector) as u32,
            copies: self.copies(),
            header_place: self.kept[HEADER_PLACE].offset,
            volume: Guid::random()?,
            next_nonce,
            method: self.method.number,
            method_again: self.method.number,
            created: filetime::now(),
            datums,
        })
    }

    /// The datum with the place of the volume's beginning, and what Windows adds there since version 8.
    fn header_datum(&self) -> Datum {
        let mut value = Vec::new();
        for field in [self.kept[HEADER_PLACE].offset, self.header] {
            value.extend(field.to_le_bytes());
        }
        if self.says_more() {
            value.extend(self.more());
        }
        Datum::new(role::HEADER, kind::HEADER_PLACE, value)
    }

    /// 0 5 2 │ 2 size 2 │ 4 0 4 │ 8 flags 8 │ 16 place 8 and size 4 of a log │ 28 size of a sector, twice 4 each │ 36 version 4, 0 4 and build
    /// 4 of Windows │ 48 2 4 │ 52 0 4 │ 56 versions 1 each │ 60 place 8 and size 4 of the spare │ 72 0 4
    fn more(&self) -> Vec<u8> {
        /// The version number of Windows 10 22H2.
        const VERSION: u32 = 10;
        const BUILD: u32 = 19_045;
        let flags: u64 = match (&self.discovery, self.sector) {
            (Some(_), _) => 0x848,
            (None, 512) => 0xa,
            (None, _) => 0xb,
        };
        let spare = self.kept.iter().find(|part| part.file == SPARE_FILE).map_or(0, |part| part.offset);
        let mut more = Vec::new();
        more.extend([5u16, 76].map(u16::to_le_bytes).as_flattened());
        more.extend(0u32.to_le_bytes());
        more.extend([flags, 0].map(u64::to_le_bytes).as_flattened());
        let sector = self.sector as u32;
        more.extend([0, sector, sector, VERSION, 0, BUILD, 2, 0].map(u32::to_le_bytes).as_flattened());
        more.extend([0x10, 1, 1, 2]);
        more.extend(spare.to_le_bytes());
        more.extend([SPARE as u32, 0].map(u32::to_le_bytes).as_flattened());
        more
    }
}

fn sector_size(spec: &Spec<'_>) -> Result<u64> {
    match spec.sector_size {
        None | Some(512) => Ok(512),
        Some(4096) => Ok(4096),
        Some(size) => Err(Error::misuse(format!("{NAME} has sectors of 512 or 4096 bytes, not {size}"))),
    }
}

/// Windows' description of a volume: the name of the computer, that of the volume, and the date.
fn label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "Linux",
        host => host,
    };
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let (year, month, day) = date_of(days as i64);
    format!("{host} New Volume {month}/{day}/{year}")
}

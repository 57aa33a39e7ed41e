//! The first sector of a volume: its appearance to programs that do not know BitLocker, and the offsets of the metadata (libbde,
//! "BitLocker Drive Encryption (BDE) format", section "Volume header"; cryptsetup 2.7, lib/bitlk/bitlk.c).

use super::datum::{kind, role};
use super::guid::Guid;
use super::metadata::{Metadata, SIGNATURE, VISTA};
use crate::error::Result;
use crate::little_endian::{u16_at, u64_at};
use crate::store::Store;

/// The signature of To Go's FAT.
pub(super) const TO_GO_SIGNATURE: &[u8; 8] = b"MSWIN4.1";

/// 4967d63b-2e29-4ad8-8399-f6a339e3d001: volumes since Windows 7. The offsets of the metadata follow.
pub(super) const WINDOWS_7: Guid =
    Guid([0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01]);
/// 92a84d3b-dd80-4d0e-9e4e-b1e3284eaed8: volumes that are encrypted as they are written.
pub(super) const ENCRYPT_ON_WRITE: Guid =
    Guid([0x3b, 0x4d, 0xa8, 0x92, 0x80, 0xdd, 0x0e, 0x4d, 0x9e, 0x4e, 0xb1, 0xe3, 0x28, 0x4e, 0xae, 0xd8]);

/// How many bytes of the first sector are read, whatever the sector size.
pub(super) const LEN: usize = 512;

/// The offsets of fields.
mod at {
    pub const SIGNATURE: usize = 3;
    pub const SECTOR_SIZE: usize = 11;
    pub const CLUSTER_SECTORS: usize = 13;
    /// On Vista: the cluster of the first copy of the metadata.
    pub const VISTA_METADATA: usize = 56;
    /// Counted from the GUID.
    pub const METADATA: usize = 16;
    pub const EOW: usize = 40;
}

/// The flags for the kind of volume, in the datum of the volume's header.
mod flags {
    pub const AT: usize = 24;
    pub const TO_GO: u64 = 0x800;
    /// Also set in [`TO_GO`].
    pub const ENCRYPT_ON_WRITE: u64 = 0x40;
}

/// What made the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Vista,
    Windows7,
    ToGo,
    EncryptOnWrite,
}

impl Kind {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vista => "Windows Vista",
            Self::Windows7 => "Windows 7 or later",
            Self::ToGo => "BitLocker To Go",
            Self::EncryptOnWrite => "Windows 10 or later, encrypt-on-write",
        }
    }
}

/// The contents of the sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    pub kind: Kind,
    /// Size of a sector, in bytes.
    pub sector_size: u32,
    /// Whether the sector contains it. Otherwise the metadata may: see [`Boot::settled`].
    pub says_sector_size: bool,
    /// The size of a cluster, in bytes; that of a sector if the sector does not contain it.
    pub cluster: u64,
    /// The offsets of the metadata copies, in bytes: all three, but on Vista only the first one, which lists the others.
    pub metadata: Vec<u64>,
    /// The offsets of the two structures of [`Kind::EncryptOnWrite`], in bytes.
    pub eow: Option<[u64; 2]>,
}

impl Boot {
    /// Reads the sector. `None` if it does not belong to a BitLocker volume.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(store: &dyn Store) -> Result<Option<Self>> {
        let mut sector = [0; LEN];
        if store.len() < LEN as u64 {
            return Ok(None);
        }
        store.read_at(0, &mut sector)?;
        Ok(Self::parse(&sector))
    }

    /// The same for a sector that was read.
    pub fn parse(sector: &[u8; LEN]) -> Option<Self> {
        let signature = &sector[at::SIGNATURE..][..SIGNATURE.len()];
        let to_go = signature == TO_GO_SIGNATURE;
        if signature != SIGNATURE && !to_go {
            return None;
        }
        // exFAT leaves this field empty.
        let (sector_size, says_sector_size) = match u16_at(sector, at::SECTOR_SIZE) {
            0 => (512, false),
            size => (size.into(), true),
        };
        let cluster = u64::from(sector[at::CLUSTER_SECTORS].max(1)) * u64::from(sector_size);
        let offsets = |guid: usize, at: usize, count: usize| -> Option<Vec<u64>> {
            (guid + at + 8 * count <= LEN).then(|| (0..count).map(|i| u64_at(sector, guid + at + 8 * i)).collect())
        };
        if let Some(guid) = find(sector, ENCRYPT_ON_WRITE) {
            let eow = offsets(guid, at::EOW, 2)?;
            let (kind, metadata) = (Kind::EncryptOnWrite, offsets(guid, at::METADATA, 3)?);
            let eow = Some([eow[0], eow[1]]);
            return Some(Self { kind, sector_size, says_sector_size, cluster, metadata, eow });
        }
        if let Some(guid) = find(sector, WINDOWS_7) {
            let kind = if to_go { Kind::ToGo } else { Kind::Windows7 };
            let metadata = offsets(guid, at::METADATA, 3)?;
            return Some(Self { kind, sector_size, says_sector_size, cluster, metadata, eow: None });
        }
        // An offset past every end is reported as damage.
        let first = u64_at(sector, at::VISTA_METADATA).saturating_mul(cluster);
        let metadata = vec![first];
        (!to_go).then_some(Self { kind: Kind::Vista, sector_size, says_sector_size, cluster, metadata, eow: None })
    }

    /// Returns a substitute for the boot sector, made from the metadata.
    pub fn of(metadata: &Metadata) -> Self {
        let header = metadata.datum(role::HEADER, kind::HEADER_PLACE).map_or(&[][..], |datum| &datum.value);
        let set = if header.len() >= flags::AT + 8 { u64_at(header, flags::AT) } else { 0 };
        let kind = match metadata.version {
            VISTA => Kind::Vista,
            _ if set & flags::TO_GO != 0 => Kind::ToGo,
            _ if set & flags::ENCRYPT_ON_WRITE != 0 => Kind::EncryptOnWrite,
            _ => Kind::Windows7,
        };
        // The size of the same beginning in bytes, divided by its number of sectors.
        let divided = || u32::try_from(u64_at(header.get(8..16)?, 0).checked_div(metadata.header_sectors.into())?).ok();
        let sector_size =
            metadata.sector_size().or_else(divided).filter(|size| matches!(size, 512 | 4096)).unwrap_or(512);
        Self {
            kind,
            sector_size,
            says_sector_size: true,
            cluster: sector_size.into(),
            metadata: metadata.copies.to_vec(),
            eow: None,
        }
    }

    /// Takes the sector size from the metadata if the sector does not contain it.
    pub fn settled(mut self, metadata: &Metadata) -> Self {
        if !self.says_sector_size {
            let size = Self::of(metadata).sector_size;
            self.cluster = self.cluster / u64::from(self.sector_size) * u64::from(size);
            self.sector_size = size;
        }
        self
    }

    /// Whether it points to the metadata copies that these metadata list.
    pub fn leads_to(&self, metadata: &Metadata) -> bool {
        match self.kind {
            Kind::Vista => self.metadata[..1] == metadata.copies[..1],
            Kind::Windows7 | Kind::ToGo | Kind::EncryptOnWrite => self.metadata == metadata.copies,
        }
    }
}

/// Returns the sector with new offsets of the metadata. `None` if it has no field for them.
pub(super) fn leading_to(sector: &[u8; LEN], metadata: &Metadata) -> Option<[u8; LEN]> {
    let mut led = *sector;
    match find(sector, ENCRYPT_ON_WRITE).or_else(|| find(sector, WINDOWS_7)) {
        Some(guid) => put_places(&mut led, guid + at::METADATA, &metadata.copies),
        None => {
            let boot = Boot::parse(sector)?;
            let cluster = metadata.copies[0].checked_div(boot.cluster)?;
            put_places(&mut led, at::VISTA_METADATA, &[cluster]);
        }
    }
    Boot::parse(&led).is_some_and(|boot| boot.leads_to(metadata)).then_some(led)
}

fn put_places(sector: &mut [u8; LEN], at: usize, places: &[u64]) {
    for (place, bytes) in places.iter().zip(sector[at..].as_chunks_mut::<8>().0) {
        *bytes = place.to_le_bytes();
    }
}

/// The offset of a GUID in the sector.
fn find(sector: &[u8; LEN], guid: Guid) -> Option<usize> {
    sector.windows(guid.0.len()).position(|bytes| bytes == guid.0)
}

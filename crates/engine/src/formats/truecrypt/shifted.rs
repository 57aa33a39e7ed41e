//! Files in which bytes were lost or inserted in front of a volume. The header in front is then not found, but its backup is, since
//! its offset counts from the end. The backup's offset and the sizes in it tell how far the data are displaced.
//!
//! For a hidden volume, the size of the gap between its end and that of the outer volume must be known too. Programs left gaps of
//! three sizes (VeraCrypt 1.26, Volumes.h, `TC_HIDDEN_VOLUME_HOST_FS_RESERVED_END_AREA_SIZE`).

use std::io;

use claviger_crypto::SectorCipher;

use super::header::Fields;
use super::positions::Position;
use super::{DataArea, HEADER_AREA, HEADER_GROUP, UNIT};
use crate::error::Result;
use crate::filesystems::magic;
use crate::store::Store;

/// The gaps between a hidden volume and the end of the outer one, in bytes.
const GAPS: [u64; 3] = [0, 4096, HEADER_GROUP];

/// How many sectors at the beginning of the data are checked, and how many samples from all of it.
const FIRST: u64 = 128;
const SPREAD: u64 = 64;

/// The displacement of the data from the offset in the header, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    /// The data are in place, or nothing shows a displacement.
    None,
    /// The data are displaced by this many bytes, and make sense there. Negative if bytes are missing.
    By(i64),
    /// The file is longer than the header says by this many bytes, or shorter if negative, and the data make sense nowhere.
    Unclear(i64),
}

impl Shift {
    /// Returns the displacement according to the backup header at the offset `at` of the store. `cipher` is the data's cipher, and
    /// `first` the number of their first sector.
    ///
    /// # Errors
    /// `Io`.
    pub fn of(
        header: (&Position, &Fields, u64),
        cipher: &dyn SectorCipher,
        first: u64,
        store: &dyn Store,
    ) -> Result<Self> {
        let (position, fields, at) = header;
        if !position.backup || !fields.has_backups {
            return Ok(Self::None);
        }
        let data = DataArea { start: fields.data_start, len: fields.volume_size };
        let group = at.saturating_sub(if position.hidden { HEADER_AREA } else { 0 });
        let gaps = if position.hidden { &GAPS[..] } else { &GAPS[..1] };
        let shifts: Vec<i64> = gaps
            .iter()
            .filter_map(|gap| i64::try_from(i128::from(group) - i128::from(data.end()) - i128::from(*gap)).ok())
            .collect();
        // A hidden volume may end anywhere in the outer one.
        if shifts.contains(&0) || makes_sense(&data, 0, cipher, first, store)? {
            return Ok(Self::None);
        }
        for shift in &shifts {
            if makes_sense(&data, *shift, cipher, first, store)? {
                return Ok(Self::By(*shift));
            }
        }
        Ok(if position.hidden { Self::None } else { Self::Unclear(shifts[0]) })
    }
}

/// Whether anything in the displaced data, decrypted, does not look random: a boot sector, a table, zeros.
fn makes_sense(data: &DataArea, shift: i64, cipher: &dyn SectorCipher, first: u64, store: &dyn Store) -> Result<bool> {
    let sectors = data.len / UNIT;
    let missing = data.missing(shift) / UNIT;
    let near = missing..sectors.min(missing.saturating_add(FIRST));
    let spread = (0..SPREAD).map(|place| (u128::from(sectors) * u128::from(place) / u128::from(SPREAD)) as u64);
    for sector in near.chain(spread.filter(|sector| *sector >= missing)) {
        let mut bytes = [0; UNIT as usize];
        match store.read_at(data.place(shift, sector * UNIT), &mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e.into()),
        }
        cipher.decrypt(first.wrapping_add(sector), &mut bytes);
        let sense = !magic::looks_random(&bytes);
        zeroize::Zeroize::zeroize(&mut bytes);
        if sense {
            return Ok(true);
        }
    }
    Ok(false)
}

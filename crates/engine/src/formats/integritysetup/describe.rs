//! The facts in the superblock, which need no credential.

use serde::Serialize;

use crate::hex;
use crate::volume::integrity::TaggedSectors;

/// The facts in the superblock of dm-integrity: what `integritysetup dump` shows.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DmIntegrityFacts {
    /// Size of the tag of a sector, in bytes.
    pub tag_size: usize,
    /// Size of a sector, in bytes.
    pub sector_size: usize,
    /// Size of the data, in bytes.
    pub size: u64,
    /// The salt, in hexadecimal digits.
    pub salt: Option<String>,
    /// How many sectors have their newest contents in the journal.
    pub sectors_in_journal: usize,
}

impl DmIntegrityFacts {
    pub(super) fn of(area: &TaggedSectors) -> Self {
        Self {
            tag_size: area.tag_size(),
            sector_size: area.sector_size(),
            size: area.len(),
            salt: area.salt().map(|salt| hex::digits(&salt)),
            sectors_in_journal: area.in_journal(),
        }
    }
}

//! What the metadata of a LUKS2 header may say.

use super::metadata::Metadata;
use crate::error::Result;

/// Whether metadata that were read from the JSON area at byte `at` make sense, in a header whose copies have `hdr_size` bytes each.
///
/// # Errors
/// `Malformed`.
pub fn metadata(_metadata: &Metadata, _hdr_size: u64, _at: u64) -> Result<()> {
    Ok(())
}

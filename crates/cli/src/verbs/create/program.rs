//! Volumes that another program must be able to open, too. Unsuitable options are refused before anything is created.

use claviger_engine::formats::same_name;
use claviger_engine::{Error, Result};

/// Who else opens the volume.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Program {
    /// Ceph's librbd, also through qemu: LUKS1 or LUKS2 with AES-XTS and data aligned to 4 MiB objects
    Rbd,
}

/// The default object size of an image (`rbd create --object-size`), in bytes. Since Ceph 17, librbd refuses data that do not
/// begin at a stripe (src/librbd/crypto/luks/LoadRequest.cc).
const OBJECT: u64 = 4 << 20;

/// The data offsets of LUKS1 and LUKS2 volumes that librbd creates.
const BEGINNINGS: [(&str, u64); 2] = [("LUKS1", OBJECT), ("LUKS2", 16 << 20)];

impl Program {
    pub(super) const FORMAT: &str = "LUKS2";

    /// The data offset that the program accepts.
    ///
    /// # Errors
    /// `Misuse` if the program would not open the volume.
    pub(super) fn data_offset(self, format: &str, cipher: Option<&str>, offset: Option<u64>) -> Result<u64> {
        let refused = |what: String| Err(Error::misuse(format!("librbd cannot open a {what}")));
        let Some((_, usual)) = BEGINNINGS.into_iter().find(|(name, _)| same_name(name, format)) else {
            return refused(format!("{format} volume")).map_err(|e| e.hint("Use --format LUKS1 or LUKS2."));
        };
        if let Some(cipher) = cipher.filter(|cipher| !same_name("aes-xts-plain64", cipher)) {
            return refused(format!("volume in {cipher}")).map_err(|e| e.hint("Use --cipher aes-xts-plain64."));
        }
        let offset = offset.unwrap_or(usual);
        match offset > 0 && offset.is_multiple_of(OBJECT) {
            true => Ok(offset),
            false => refused(format!("volume whose data begin at byte {offset}"))
                .map_err(|e| e.hint("Use a --data-offset that is a multiple of 4M.")),
        }
    }
}

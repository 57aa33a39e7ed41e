//! Volumes that another program is to open, too: what it does not take is refused before anything is there.

use claviger_engine::formats::same_name;
use claviger_engine::{Error, Result};

/// Who else opens the volume.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Program {
    /// Ceph's librbd, also through qemu: LUKS1 or LUKS2 with AES-XTS and data aligned to 4 MiB objects
    Rbd,
}

/// The size of an image's objects unless `rbd create --object-size` says otherwise, in bytes. Since Ceph 17 librbd refuses data that begin
/// elsewhere than on a stripe (src/librbd/crypto/luks/LoadRequest.cc).
const OBJECT: u64 = 4 << 20;

/// Where the data of LUKS1 and LUKS2 begin there, as those that librbd makes.
const BEGINNINGS: [(&str, u64); 2] = [("LUKS1", OBJECT), ("LUKS2", 16 << 20)];

impl Program {
    pub(super) const FORMAT: &str = "LUKS2";

    /// Where the data begin.
    ///
    /// # Errors
    /// `Misuse` if it would not open the volume.
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

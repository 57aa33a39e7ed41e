//! What an unlocked volume is to the kernel's device-mapper (Linux, Documentation/admin-guide/device-mapper/dm-crypt.rst): the
//! same as a layout, told in the kernel's words and with the keys themselves.

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Sectors;

use crate::error::{Error, Result};
use crate::volume::{Layout, Payload, Segment};

/// dm-crypt counts in units of so many bytes, whatever a sector of the cipher is.
const UNIT: u64 = 512;

/// What a layout is to the kernel's device-mapper, in order and without gaps.
pub struct Mapping {
    /// The type of the volume as cryptsetup writes it into a mapping's UUID: `LUKS2`, `PLAIN`, `TCRYPT`.
    pub kind: &'static str,
    /// The parts.
    pub parts: Vec<MappedPart>,
}

/// A part of a volume, as the kernel sees it.
pub struct MappedPart {
    /// Its length, in bytes.
    pub len: u64,
    /// Where it begins in the store, in bytes.
    pub stored_at: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// The layers of encryption, in the order in which they encrypt: none for plaintext, several for a cascade.
    pub layers: Vec<KernelCipher>,
}

/// One layer of dm-crypt.
pub struct KernelCipher {
    /// The cipher specification: `aes-xts-plain64`.
    pub specification: String,
    /// The key.
    pub key: Secret,
    /// How sectors are cut and numbered.
    pub sectors: Sectors,
    /// What protects the data from changes, as dm-crypt writes it, and the bytes of a tag: `hmac(sha256)`.
    pub integrity: Option<(String, u32)>,
}

impl Mapping {
    /// The mapping of a layout. `layers` makes those of an encrypted segment from the tweak number of its first sector; if it
    /// makes nothing, or the layout has what device-mapper has not, there is no mapping.
    pub(super) fn of(
        layout: &Layout,
        kind: &'static str,
        layers: impl Fn(u64) -> Option<Vec<KernelCipher>>,
    ) -> Option<Self> {
        // dm-crypt refuses no range of its own.
        if !layout.protected().is_empty() {
            return None;
        }
        let part = |segment: &Segment| {
            let layers = match &segment.payload {
                Payload::Clear => Vec::new(),
                Payload::Crypt { first, .. } => layers(*first)?,
                _ => return None,
            };
            let whole = segment.len.is_multiple_of(UNIT) && segment.stored_at.is_multiple_of(UNIT);
            let (len, stored_at) = (segment.len, segment.stored_at);
            whole.then_some(MappedPart { len, stored_at, writable: segment.writable, layers })
        };
        Some(Self { kind, parts: layout.segments().iter().map(part).collect::<Option<_>>()? })
    }

    /// The same in a store in which all of it begins `by` bytes later: [`Layout::moved`].
    ///
    /// # Errors
    /// `Misuse` if offsets would not fit 64 bits.
    pub(super) fn moved(mut self, by: u64) -> Result<Self> {
        for part in &mut self.parts {
            let moved = part.stored_at.checked_add(by).filter(|at| at.checked_add(part.len).is_some());
            part.stored_at = moved.ok_or_else(|| Error::misuse(format!("no part can begin {by} bytes later")))?;
        }
        Ok(self)
    }

    /// `len` bytes from `start` on as a mapping of their own: [`Layout::part`]. Nothing if that cuts a sector in two.
    pub(super) fn part(self, start: u64, len: u64) -> Option<Self> {
        let end = start.checked_add(len)?;
        let (mut at, mut parts) = (0u64, Vec::new());
        for part in self.parts {
            let (from, to) = (at.max(start), (at + part.len).min(end));
            let skipped = from.saturating_sub(at);
            at += part.len;
            if from < to {
                parts.push(part.cut(skipped, to - from)?);
            }
        }
        Some(Self { parts, ..self })
    }
}

impl MappedPart {
    fn cut(self, skipped: u64, len: u64) -> Option<Self> {
        let cut = |mut layer: KernelCipher| {
            let whole =
                skipped.is_multiple_of(layer.sectors.size as u64) && len.is_multiple_of(layer.sectors.size as u64);
            layer.sectors.iv_offset = layer.sectors.iv_offset.wrapping_add(skipped / UNIT);
            whole.then_some(layer)
        };
        let whole = skipped.is_multiple_of(UNIT) && len.is_multiple_of(UNIT);
        let layers = self.layers.into_iter().map(cut).collect::<Option<_>>()?;
        whole.then_some(Self { len, stored_at: self.stored_at + skipped, layers, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(len: u64, stored_at: u64, iv_offset: u64) -> MappedPart {
        let sectors = Sectors { size: 512, large_iv: false, iv_offset };
        let layer = KernelCipher { specification: "x".into(), key: Secret::copy_from(b"k"), sectors, integrity: None };
        MappedPart { len, stored_at, writable: true, layers: vec![layer] }
    }

    fn places(mapping: &Mapping) -> Vec<(u64, u64, u64)> {
        mapping.parts.iter().map(|p| (p.len, p.stored_at, p.layers[0].sectors.iv_offset)).collect()
    }

    fn two() -> Mapping {
        Mapping { kind: "TCRYPT", parts: vec![part(1024, 4096, 8), part(2048, 8192, 0)] }
    }

    #[test]
    fn a_part_counts_its_sectors_from_where_it_begins() {
        let cut = two().part(512, 1024).expect("whole sectors");
        assert_eq!(places(&cut), [(512, 4608, 9), (512, 8192, 0)]);
        let cut = two().part(1536, 1536).expect("whole sectors");
        assert_eq!(places(&cut), [(1536, 8704, 1)]);
        assert!(two().part(100, 512).is_none() && two().part(0, 100).is_none());
    }

    #[test]
    fn what_moves_keeps_its_numbers() {
        assert_eq!(places(&two().moved(512).expect("it fits")), [(1024, 4608, 8), (2048, 8704, 0)]);
        assert!(two().moved(u64::MAX - 5000).is_err());
    }
}

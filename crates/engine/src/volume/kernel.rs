//! A layout as parameters for the kernel's device-mapper, including keys (Linux,
//! Documentation/admin-guide/device-mapper/dm-crypt.rst). The parameters are stored beside the segments, and only if the caller
//! asked for them.

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Sectors;

use super::{Layout, Payload, Segment};

/// The unit of dm-crypt's sector numbers, in bytes, whatever the cipher's sector size.
const UNIT: u64 = 512;

/// A layout for the kernel's device-mapper, in order and without gaps.
pub struct Mapping {
    /// The volume's type in the UUID of cryptsetup's mappings: `LUKS2`, `PLAIN`, `TCRYPT`.
    pub kind: &'static str,
    /// The parts.
    pub parts: Vec<MappedPart>,
}

/// A part of a mapping.
pub struct MappedPart {
    /// Its length, in bytes.
    pub len: u64,
    /// Its offset in the store, in bytes.
    pub stored_at: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// The layers of encryption, in the order of encryption: none for plaintext, several for a cascade.
    pub layers: Vec<KernelCipher>,
}

/// One layer of dm-crypt.
pub struct KernelCipher {
    /// The cipher specification: `aes-xts-plain64`.
    pub specification: String,
    /// The key.
    pub key: Secret,
    /// The size and numbering of sectors. Beside a segment, the number is that of the sector with tweak 0; in a mapping, that of
    /// the part's first sector.
    pub sectors: Sectors,
    /// The integrity algorithm in dm-crypt's notation, and the tag size in bytes: `hmac(sha256)`.
    pub integrity: Option<(String, u32)>,
}

impl Mapping {
    /// The mapping of a layout. `None` if its kernel parameters were not requested, or device-mapper cannot represent it.
    pub fn of(layout: &Layout) -> Option<Self> {
        // dm-crypt cannot protect ranges.
        let kind = layout.kernel_kind().filter(|_| layout.protected().is_empty())?;
        Some(Self { kind, parts: layout.segments().iter().map(MappedPart::of).collect::<Option<_>>()? })
    }
}

impl MappedPart {
    fn of(segment: &Segment) -> Option<Self> {
        let layers = match &segment.payload {
            Payload::Clear => Vec::new(),
            Payload::Crypt { first, kernel, .. } => kernel.as_ref()?.iter().map(|layer| layer.from(*first)).collect(),
            // An area of tags is mapped from its superblock on, or not at all.
            Payload::Authenticated { first: 0, kernel, .. } => {
                kernel.as_ref()?.iter().map(|layer| layer.from(0)).collect()
            }
            Payload::Authenticated { .. }
            | Payload::Zero
            | Payload::Fixed(_)
            | Payload::KeyProcess(_)
            | Payload::KeyProcessTagged { .. } => return None,
        };
        let Segment { len, stored_at, writable, .. } = *segment;
        let whole = len.is_multiple_of(UNIT) && stored_at.is_multiple_of(UNIT);
        whole.then_some(Self { len, stored_at, writable, layers })
    }
}

impl KernelCipher {
    /// The layer for a segment whose first sector has the number `first`.
    fn from(&self, first: u64) -> Self {
        let Self { specification, key, sectors, integrity } = self;
        let iv_offset = sectors.iv_offset.wrapping_add(first.wrapping_mul(sectors.size as u64 / UNIT));
        Self {
            specification: specification.clone(),
            key: Secret::copy_from(key),
            sectors: Sectors { iv_offset, ..*sectors },
            integrity: integrity.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use claviger_crypto::SectorCipher;

    use super::*;

    struct Sectors512;

    impl SectorCipher for Sectors512 {
        fn sector_size(&self) -> usize {
            512
        }

        fn encrypt(&self, _first: u64, _data: &mut [u8]) {}

        fn decrypt(&self, _first: u64, _data: &mut [u8]) {}
    }

    fn segment(at: u64, len: u64, stored_at: u64, first: u64) -> Segment {
        let layer = KernelCipher {
            specification: "x".into(),
            key: Secret::copy_from(b"k"),
            sectors: Sectors { size: 512, large_iv: false, iv_offset: 3 },
            integrity: None,
        };
        let payload = Payload::crypt(Arc::new(Sectors512), first).with_kernel(Some(vec![layer]));
        Segment { at, len, stored_at, payload, writable: true }
    }

    fn two() -> Layout {
        let segments = vec![segment(0, 1024, 4096, 8), segment(1024, 2048, 8192, 0)];
        Layout::new(segments).expect("they follow each other").for_kernel(Some("TCRYPT"))
    }

    fn places(layout: &Layout) -> Vec<(u64, u64, u64)> {
        let mapping = Mapping::of(layout).expect("the kernel's words are there");
        assert_eq!(mapping.kind, "TCRYPT");
        mapping.parts.iter().map(|p| (p.len, p.stored_at, p.layers[0].sectors.iv_offset)).collect()
    }

    #[test]
    fn a_part_counts_its_sectors_from_where_it_begins() {
        assert_eq!(places(&two()), [(1024, 4096, 11), (2048, 8192, 3)]);
        let part = |start, len| two().part(start, len);
        assert_eq!(places(&part(512, 1024).expect("whole sectors")), [(512, 4608, 12), (512, 8192, 3)]);
        assert_eq!(places(&part(1536, 1536).expect("whole sectors")), [(1536, 8704, 4)]);
        assert!(part(100, 512).is_err() && part(0, 100).is_err());
    }

    #[test]
    fn what_moves_keeps_its_numbers() {
        assert_eq!(places(&two().moved(512).expect("it fits")), [(1024, 4608, 11), (2048, 8704, 3)]);
        assert!(two().moved(u64::MAX - 5000).is_err());
    }

    #[test]
    fn there_is_no_mapping_of_what_the_kernel_cannot_do_or_was_not_asked_for() {
        let segments = || two().segments().to_vec();
        assert!(Mapping::of(&Layout::new(segments()).expect("a layout")).is_none(), "of no kind");
        assert!(Mapping::of(&two().with_protected(0..512)).is_none(), "of a protected range");
        let mut without = segments();
        without[1].payload = Payload::crypt(Arc::new(Sectors512), 0);
        let without = Layout::new(without).expect("a layout").for_kernel(Some("TCRYPT"));
        assert!(Mapping::of(&without).is_none(), "of a cipher that the kernel has not");
        let mut zero = segments();
        zero[1].payload = Payload::Zero;
        assert!(Mapping::of(&Layout::new(zero).expect("a layout").for_kernel(Some("TCRYPT"))).is_none());
    }

    #[test]
    fn whoever_carries_a_layout_out_keeps_no_key_for_the_kernel() {
        let volume = crate::volume::Volume::new(Arc::new(crate::store::MemoryStore::default()), two());
        let kept = |s: &Segment| matches!(&s.payload, Payload::Crypt { kernel: Some(_), .. });
        assert!(!volume.layout().segments().iter().any(kept) && Mapping::of(&volume.layout()).is_none());
    }
}

//! Proof that a store holds an image of a virtual disk. A signature of four bytes is not enough: a volume without a header may
//! begin with any bytes.

use crate::store::Store;

/// The size of the footer of a Virtual PC disk, in bytes.
const FOOTER: usize = 512;

/// Whether `store`, which begins with `start` and has the signature of the image format that qemu calls `format`, also has other
/// fields of that format's header. Formats with a long signature need no further proof.
pub(crate) fn proven(format: &str, store: &dyn Store, start: &[u8]) -> bool {
    match format {
        "qcow2" => is_qcow2(start),
        "qed" => is_qed(start),
        // The text of a descriptor is long enough.
        "vmdk" => !start.starts_with(b"KDMV") || is_vmdk(start),
        "vdi" => is_vdi(start),
        "vpc" => is_vhd(store, start).unwrap_or(false),
        _ => true,
    }
}

/// qemu, docs/interop/qcow2.rst, "Header": version, cluster size, and tables that begin at a cluster.
fn is_qcow2(start: &[u8]) -> bool {
    let fields = || {
        let (version, bits) = (big_32(start, 4)?, big_32(start, 20)?);
        let tables = [big_64(start, 40)?, big_64(start, 48)?];
        let aligned = (9..=21).contains(&bits) && tables.iter().all(|at| at.trailing_zeros() >= bits);
        Some(matches!(version, 2 | 3) && aligned)
    };
    fields().unwrap_or(false)
}

/// qemu, docs/interop/qed_spec.rst, "Header": the sizes of clusters in bytes, and of tables and the header in clusters. A header of
/// 4 GiB or more does not count: real ones have one cluster.
fn is_qed(start: &[u8]) -> bool {
    let fields = || {
        let (cluster, table, header) = (little_32(start, 4)?, little_32(start, 8)?, little_32(start, 12)?);
        let sizes = cluster.is_power_of_two() && (12..=26).contains(&cluster.trailing_zeros());
        let header = cluster.checked_mul(header).is_some_and(|len| len > 0);
        Some(sizes && table.is_power_of_two() && table <= 16 && header)
    };
    fields().unwrap_or(false)
}

/// VMware Virtual Disk Format 5.0, "Hosted Sparse Extents": the version, and line ends that show damage by a text transfer.
fn is_vmdk(start: &[u8]) -> bool {
    little_32(start, 4).is_some_and(|version| (1..=3).contains(&version)) && start.get(73..77) == Some(b"\n \r\n")
}

/// VirtualBox, src/VBox/Storage/VDICore.h, `VDIPREHEADER` and `VDIHEADER1`: version 1.1, and one of four types of image.
fn is_vdi(start: &[u8]) -> bool {
    little_32(start, 0x44) == Some(0x0001_0001) && little_32(start, 0x4c).is_some_and(|kind| (1..=4).contains(&kind))
}

/// Virtual Hard Disk Image Format Specification, "Hard Disk Footer Format". A fixed disk is its data and the footer; the others
/// begin with a copy of the footer.
fn is_vhd(store: &dyn Store, start: &[u8]) -> Option<bool> {
    const FIXED: u32 = 2;
    let end = store.len().checked_sub(FOOTER as u64)?;
    let mut footer = [0; FOOTER];
    store.read_at(end, &mut footer).ok()?;
    let (size, kind) = (big_64(&footer, 48)?, big_32(&footer, 60)?);
    let complete = if kind == FIXED { size == end } else { start.get(..FOOTER) == Some(&footer[..]) };
    Some(complete && big_32(&footer, 64)? == checksum(&footer))
}

/// The one's complement of the sum of all bytes, without those of the checksum.
fn checksum(footer: &[u8; FOOTER]) -> u32 {
    let (before, after) = (&footer[..64], &footer[68..]);
    !before.iter().chain(after).map(|byte| u32::from(*byte)).sum::<u32>()
}

fn big_32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

fn big_64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_be_bytes(*field))
}

fn little_32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// A footer of a fixed disk of `size` bytes, or of a dynamic one.
    fn footer(size: u64, kind: u32) -> [u8; FOOTER] {
        let mut footer = [0; FOOTER];
        footer[..8].copy_from_slice(b"conectix");
        footer[48..56].copy_from_slice(&size.to_be_bytes());
        footer[60..64].copy_from_slice(&kind.to_be_bytes());
        let sum = checksum(&footer);
        footer[64..68].copy_from_slice(&sum.to_be_bytes());
        footer
    }

    fn vhd(bytes: &[u8]) -> bool {
        proven("vpc", &MemoryStore::new(bytes.to_vec()), bytes)
    }

    #[test]
    fn a_footer_counts_only_with_its_checksum_at_the_end_of_its_own_disk() {
        let (fixed, dynamic) = (footer(4096, 2), footer(1 << 30, 3));
        assert!(vhd(&[&[7; 4096][..], &fixed].concat()));
        assert!(!vhd(&[&[7; 8192][..], &fixed].concat()), "the footer of a file in the last sectors of a disk");
        assert!(vhd(&[&dynamic[..], &[7; 4096], &dynamic].concat()));
        assert!(!vhd(&[&[7; 4096][..], &dynamic].concat()));
        assert!(!vhd(&fixed[1..]) && !vhd(&[]));
        for at in 0..FOOTER {
            let mut wrong = fixed;
            wrong[at] ^= 1;
            assert!(!vhd(&[&[7; 4096][..], &wrong].concat()), "{at}");
        }
    }

    #[test]
    fn a_short_signature_needs_the_fields_behind_it() {
        let filled = |at: &[(usize, &[u8])]| {
            let mut start = vec![0x5a; 512];
            at.iter().for_each(|(at, bytes)| start[*at..][..bytes.len()].copy_from_slice(bytes));
            start
        };
        let qcow2: &[(usize, &[u8])] = &[
            (4, &[0, 0, 0, 3]),
            (20, &[0, 0, 0, 16]),
            (40, &[0, 0, 0, 0, 0, 3, 0, 0]),
            (48, &[0, 0, 0, 0, 0, 1, 0, 0]),
        ];
        let qed: &[(usize, &[u8])] = &[(4, &[0, 0, 1, 0]), (8, &[4, 0, 0, 0]), (12, &[1, 0, 0, 0])];
        let vmdk: &[(usize, &[u8])] = &[(4, &[1, 0, 0, 0]), (73, b"\n \r\n")];
        let vdi: &[(usize, &[u8])] = &[(0x44, &[1, 0, 1, 0]), (0x4c, &[1, 0, 0, 0])];
        let store = MemoryStore::new(Vec::new());
        for (format, signature, fields) in
            [("qcow2", &b"QFI\xfb"[..], qcow2), ("qed", b"QED\0", qed), ("vmdk", b"KDMV", vmdk), ("vdi", b"", vdi)]
        {
            let whole = [&[(0, signature)], fields].concat();
            assert!(proven(format, &store, &filled(&whole)), "{format}");
            for without in 1..whole.len() {
                let fields: Vec<_> = whole.iter().enumerate().filter(|(n, _)| *n != without).map(|(_, f)| *f).collect();
                assert!(!proven(format, &store, &filled(&fields)), "{format} without field {without}");
            }
            assert!(!proven(format, &store, signature), "{format}");
        }
    }
}

//! exFAT's checksums (Microsoft, "exFAT file system specification", 1.00).

const SECTOR: usize = 512;

/// Corrects the checksums of an exFAT with 512-byte sectors, or of its beginning, so that errors get past them: those
/// of both boot regions (3.4), and of everything that looks like a set of directory entries (6.3.3).
pub fn seal(bytes: &mut [u8]) {
    for region in bytes.chunks_exact_mut(12 * SECTOR).take(2) {
        let (summed, sums) = region.split_at_mut(11 * SECTOR);
        let counted = summed.iter().enumerate().filter(|(i, _)| !matches!(i, 106 | 107 | 112));
        let sum = counted.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
        sums.as_chunks_mut().0.fill(sum.to_le_bytes());
    }
    for at in (24 * SECTOR..bytes.len().saturating_sub(32)).step_by(32) {
        if bytes[at] != 0x85 {
            continue;
        }
        let end = (at + 32 * (1 + usize::from(bytes[at + 1]))).min(bytes.len());
        let counted = bytes[at..end].iter().enumerate().filter(|(i, _)| !matches!(i, 2 | 3));
        let sum = counted.fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
        bytes[at + 2..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

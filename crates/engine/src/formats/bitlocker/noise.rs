//! Tells whether bytes look like ciphertext.

/// Whether a sector may be ciphertext. It cannot be if equal bytes occur in three times as many pairs as expected by chance: random
/// bytes never do, not once in all sectors of all disks.
pub(super) fn is_noise(sector: &[u8]) -> bool {
    let mut counts = [0u64; 256];
    sector.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let pairs: u64 = counts.iter().map(|count| count * count.saturating_sub(1)).sum();
    let n = sector.len() as u64;
    pairs * 256 < 3 * n * n.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn ciphertext_is_noise_and_files_are_not() {
        for len in [512, 4096] {
            for _ in 0..200 {
                let mut noise = vec![0; len];
                random::fill(&mut noise).expect("random bytes");
                assert!(is_noise(&noise));
                noise[..len / 5].fill(0);
                assert!(!is_noise(&noise), "a fifth is zeros");
            }
            let text = include_bytes!("noise.rs");
            assert!(text.chunks(512).all(|sector| !is_noise(sector)));
        }
    }
}

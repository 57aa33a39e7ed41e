//! CRC-32C, Castagnoli's polynomial, without the usual inversions at both ends. Core Storage continues a seed that is stored beside
//! the checksum (libfvde, "FileVault Drive Encryption (FVDE)", section "Checksum algorithms").

use crc::{Algorithm, CRC_32_ISCSI, Crc, Table};

/// With tables for 16 bytes at a time.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&Algorithm { xorout: 0, ..CRC_32_ISCSI });

/// The checksum of `bytes`, continued from `seed`.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut sum = CRC32C.digest_with_initial(seed.reverse_bits());
    sum.update(bytes);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720, section B.4, which are inverted at the end.
    #[test]
    fn sums_are_those_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [(&[0; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&ascending, 0x46dd_794e)] {
            assert_eq!(!crc32c(u32::MAX, bytes), sum);
            let (one, other) = bytes.split_at(13);
            assert_eq!(!crc32c(crc32c(u32::MAX, one), other), sum);
        }
    }
}

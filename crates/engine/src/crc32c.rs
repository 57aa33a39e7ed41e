//! CRC-32C as Core Storage has it: the polynomial of Castagnoli, with a seed that is stored beside the sum and no inversion at
//! the end (libfvde, "FileVault Drive Encryption (FVDE)", section "Checksum algorithms").

/// The polynomial, its lowest power in the highest bit (RFC 3720, section 12.1).
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

/// The sum of `bytes`, continued from `seed`.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |sum, byte| sum >> 8 ^ TABLE[usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, section B.4, whose sums are inverted at the end.
    #[test]
    fn vectors() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [(&[0; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&ascending, 0x46dd_794e)] {
            assert_eq!(!crc32c(u32::MAX, bytes), sum);
        }
    }
}

//! CRC-32C, the polynomial of Castagnoli, without the inversions that most who use it have at both ends: Core Storage continues a seed that
//! is stored beside the sum (libfvde, "FileVault Drive Encryption (FVDE)", section "Checksum algorithms").

/// The polynomial, its lowest power in the highest bit (RFC 3720, section 12.1).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Of each byte, followed by as many zeros as the table's number says.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        tables[0][byte] = rest;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ tables[0][before as u8 as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// The sum of `bytes`, continued from `seed`. Eight bytes at a time, so that one step waits for the one before it only once.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(seed, |sum, word| {
        let word = (u64::from_le_bytes(*word) ^ u64::from(sum)).to_le_bytes();
        (0..8).fold(0, |sum, i| sum ^ TABLES[7 - i][usize::from(word[i])])
    });
    rest.iter().fold(sum, |sum, byte| sum >> 8 ^ TABLES[0][usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, section B.4, whose sums are inverted at the end.
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

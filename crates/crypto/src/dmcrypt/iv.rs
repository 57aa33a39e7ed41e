//! Sector numbers, and the initialisation vectors derived from them alone.

use super::Sectors;

/// The source of IVs. ESSIV is not one: it encrypts the IVs of another source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Iv {
    /// The mode takes none.
    None,
    /// All zeros.
    Null,
    /// 32 bits, little-endian: wraps around at 2 TiB.
    Plain,
    /// 64 bits, little-endian.
    Plain64,
    /// 64 bits, big-endian, at the end of the IV.
    Plain64be,
    /// The number of the sector's first block, counted from 1, as 64 big-endian bits at the end of the IV.
    Benbi,
    /// loop-AES: depends on the contents.
    Lmk,
    /// TrueCrypt's CBC: depends on the key; also whitens.
    Tcw,
    /// BitLocker: the offset in bytes, encrypted.
    Eboiv,
    /// BitLocker with its diffuser.
    Elephant,
    /// Random, stored beside the sector.
    Random,
}

impl Iv {
    /// Whether the number is at the end of an IV that is longer than it.
    pub fn at_end(self) -> bool {
        matches!(self, Self::Plain64be | Self::Benbi)
    }
}

/// How dm-crypt numbers sectors (`crypt_convert_block_skcipher`).
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub sectors: Sectors,
    /// Units of 512 bytes in a sector, as a power of two.
    shift: u32,
}

/// Fills in vectors that need no key.
#[derive(Clone, Copy)]
pub(super) struct Generator {
    iv: Iv,
    /// Bytes of an IV that are used: 8 or 16.
    size: usize,
    /// Blocks in 512 bytes, as a power of two: for `benbi`.
    blocks: u32,
}

impl Numbers {
    pub fn new(sectors: Sectors) -> Self {
        Self { sectors, shift: (sectors.size / 512).trailing_zeros() }
    }

    /// The number of a sector in units of 512 bytes, which chooses among several keys.
    pub fn unit(&self, sector: u64) -> u64 {
        (sector << self.shift).wrapping_add(self.sectors.iv_offset)
    }

    /// The sector number used in IVs.
    pub fn iv(&self, sector: u64) -> u64 {
        if self.sectors.large_iv { self.unit(sector) >> self.shift } else { self.unit(sector) }
    }
}

impl Generator {
    /// `block` is what the kernel calls the mode's block size, `size` the size of its IVs, both in bytes.
    pub fn new(iv: Iv, block: usize, size: usize) -> Self {
        Self { iv, size, blocks: (512 / block).trailing_zeros() }
    }

    /// Whether IVs are encrypted under the volume's own key.
    pub fn encrypted(&self) -> bool {
        matches!(self.iv, Iv::Eboiv | Iv::Elephant)
    }

    /// The IVs of consecutive sectors.
    pub fn fill(&self, numbers: &Numbers, first: u64, ivs: &mut [[u8; 16]]) {
        let at_end = self.size - 8;
        for (i, iv) in (0..).zip(ivs) {
            let number = numbers.iv(first.wrapping_add(i));
            *iv = [0; 16];
            match self.iv {
                Iv::Plain => iv[..4].copy_from_slice(&(number as u32).to_le_bytes()),
                Iv::Plain64 => iv[..8].copy_from_slice(&number.to_le_bytes()),
                Iv::Plain64be => iv[at_end..][..8].copy_from_slice(&number.to_be_bytes()),
                Iv::Benbi => {
                    let block = (number << self.blocks).wrapping_add(1);
                    iv[at_end..][..8].copy_from_slice(&block.to_be_bytes());
                }
                // The offset in bytes, provided that numbers count sectors (`crypt_iv_eboiv_gen`); the kernel does not
                // check.
                Iv::Eboiv | Iv::Elephant => {
                    iv[..8].copy_from_slice(&number.wrapping_mul(numbers.sectors.size as u64).to_le_bytes());
                }
                Iv::None | Iv::Null | Iv::Lmk | Iv::Tcw | Iv::Random => {}
            }
        }
    }
}

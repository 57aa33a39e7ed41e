//! AES-CBC with BitLocker's Elephant diffuser, word by word (N. Ferguson, "AES-CBC + Elephant diffuser: A Disk Encryption
//! Algorithm for Windows Vista", 2006, section 4).

use super::{Block, Keyed, aes::Aes};

/// Both AES keys.
pub struct Elephant {
    data: Aes,
    tweak: Aes,
}

impl Elephant {
    /// Takes the data key and the key for sector keys, both of 16 or 32 bytes.
    pub fn new(data: &[u8], tweak: &[u8]) -> Self {
        Self { data: Aes::new(data), tweak: Aes::new(tweak) }
    }

    /// Encrypts the sector that begins `offset` bytes into the volume.
    pub fn encrypt(&self, offset: u64, sector: &mut [u8]) {
        self.xor_sector_key(offset, sector);
        mix(sector);
        let mut previous = self.iv(offset);
        for block in sector.as_chunks_mut::<16>().0 {
            (0..16).for_each(|i| block[i] ^= previous[i]);
            self.data.encrypt(block);
            previous = *block;
        }
    }

    /// Decrypts the sector that begins `offset` bytes into the volume.
    pub fn decrypt(&self, offset: u64, sector: &mut [u8]) {
        let mut previous = self.iv(offset);
        for block in sector.as_chunks_mut::<16>().0 {
            let ciphertext = *block;
            self.data.decrypt(block);
            (0..16).for_each(|i| block[i] ^= previous[i]);
            previous = ciphertext;
        }
        unmix(sector);
        self.xor_sector_key(offset, sector);
    }

    fn iv(&self, offset: u64) -> Block {
        let mut iv = number(offset);
        self.data.encrypt(&mut iv);
        iv
    }

    fn xor_sector_key(&self, offset: u64, sector: &mut [u8]) {
        let (mut one, mut other) = (number(offset), number(offset));
        other[15] = 128;
        self.tweak.encrypt(&mut one);
        self.tweak.encrypt(&mut other);
        let key = [one, other].concat();
        (0..sector.len()).for_each(|i| sector[i] ^= key[i % 32]);
    }
}

/// Both diffusers, in encryption direction.
pub fn mix(sector: &mut [u8]) {
    let mut d = words(sector);
    let n = d.len() as isize;
    for i in (0..5 * n).rev() {
        let at = |i: isize| i.rem_euclid(n) as usize;
        let rotation = [9, 0, 13, 0][at(i) % 4];
        d[at(i)] = d[at(i)].wrapping_sub(d[at(i - 2)] ^ d[at(i - 5)].rotate_left(rotation));
    }
    for i in (0..3 * n).rev() {
        let at = |i: isize| i.rem_euclid(n) as usize;
        let rotation = [0, 10, 0, 25][at(i) % 4];
        d[at(i)] = d[at(i)].wrapping_sub(d[at(i + 2)] ^ d[at(i + 5)].rotate_left(rotation));
    }
    sector.copy_from_slice(&d.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
}

/// Both diffusers, in decryption direction.
pub fn unmix(sector: &mut [u8]) {
    let mut d = words(sector);
    let n = d.len() as isize;
    for i in 0..3 * n {
        let at = |i: isize| i.rem_euclid(n) as usize;
        let rotation = [0, 10, 0, 25][at(i) % 4];
        d[at(i)] = d[at(i)].wrapping_add(d[at(i + 2)] ^ d[at(i + 5)].rotate_left(rotation));
    }
    for i in 0..5 * n {
        let at = |i: isize| i.rem_euclid(n) as usize;
        let rotation = [9, 0, 13, 0][at(i) % 4];
        d[at(i)] = d[at(i)].wrapping_add(d[at(i - 2)] ^ d[at(i - 5)].rotate_left(rotation));
    }
    sector.copy_from_slice(&d.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
}

fn number(offset: u64) -> Block {
    u128::from(offset).to_le_bytes()
}

fn words(sector: &[u8]) -> Vec<u32> {
    sector.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

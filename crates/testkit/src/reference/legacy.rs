//! The modes of TrueCrypt 1–4, one block and one bit at a time, over any block ciphers.
//!
//! Sources: TrueCrypt 7.1a, Common/Crypto.c, GfMul.c and Crc.c. These functions follow their definitions step by step:
//! a real CRC-32 of every word, a bitwise multiplication for every block, nothing precomputed.

/// One direction of a block cipher: works on one block in place.
pub type Block<'a> = &'a dyn Fn(&mut [u8]);

/// A cipher in one direction, with its block size in bytes.
pub type Sized<'a> = (usize, Block<'a>);

/// LRW over consecutive blocks; the first has the index `index`. `steps` run on each block in order: the ciphers of a
/// cascade to encrypt, or their inverses, last cipher first, to decrypt.
pub fn lrw(block_size: usize, steps: &[Block<'_>], tweak_key: &[u8], index: u128, data: &mut [u8]) {
    for (i, block) in data.chunks_exact_mut(block_size).enumerate() {
        let index = index.wrapping_add(i as u128).to_be_bytes();
        let t = multiply(&tweak_key[..block_size], &index[16 - block_size..]);
        xor(block, &t);
        steps.iter().for_each(|step| step(block));
        xor(block, &t);
    }
}

/// The product in GF(2^64) or GF(2^128), depending on the operands' length. Big-endian: the lowest coefficient is the
/// lowest bit of the last byte.
pub fn multiply(a: &[u8], b: &[u8]) -> Vec<u8> {
    let polynomial = match a.len() {
        8 => 0x1b,
        16 => 0x87,
        other => panic!("no field of {other} bytes"),
    };
    let mut product = vec![0; a.len()];
    // Horner's rule, from the highest coefficient of b down.
    for bit in 0..a.len() * 8 {
        let carry = product[0] & 0x80 != 0;
        for i in 0..a.len() {
            let below = product.get(i + 1).is_some_and(|byte| byte & 0x80 != 0);
            product[i] = product[i] << 1 | u8::from(below);
        }
        if carry {
            *product.last_mut().expect("it is not empty") ^= polynomial;
        }
        if b[bit / 8] & 0x80 >> (bit % 8) != 0 {
            xor(&mut product, a);
        }
    }
    product
}

/// Encrypts one sector with TrueCrypt's CBC with whitening, with one chain for each group of ciphers in turn. Outer CBC
/// is one group of several ciphers, inner CBC several groups of one.
pub fn truecrypt_cbc_encrypt(groups: &[&[Sized<'_>]], area: &[u8; 32], number: u64, sector: &mut [u8]) {
    for group in groups {
        let (iv, whitening) = sector_constants(group[0].0, area, number);
        chain_encrypt(group, &iv, &whitening, sector);
    }
}

/// The same for a header: IV and whitening come straight from the area.
pub fn truecrypt_cbc_encrypt_header(groups: &[&[Sized<'_>]], area: &[u8; 32], header: &mut [u8]) {
    for group in groups {
        chain_encrypt(group, &area[..group[0].0], &area[8..16], header);
    }
}

/// The inverse of [`truecrypt_cbc_encrypt_header`]. Groups and ciphers are in *encryption* order, but the functions decrypt.
pub fn truecrypt_cbc_decrypt_header(groups: &[&[Sized<'_>]], area: &[u8; 32], header: &mut [u8]) {
    for group in groups.iter().rev() {
        chain_decrypt(group, &area[..group[0].0], &area[8..16], header);
    }
}

/// Plain CBC over one chain, encrypting.
pub fn cbc_encrypt((size, cipher): Sized<'_>, iv: &[u8], chain: &mut [u8]) {
    chain_encrypt(&[(size, cipher)], iv, &[0; 8], chain);
}

/// Plain CBC over one chain, decrypting.
pub fn cbc_decrypt((size, cipher): Sized<'_>, iv: &[u8], chain: &mut [u8]) {
    chain_decrypt(&[(size, cipher)], iv, &[0; 8], chain);
}

/// CRC-32 as in zip and Ethernet (reflected, 0xedb88320, start and end value all ones).
pub fn crc32(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn chain_encrypt(ciphers: &[Sized<'_>], iv: &[u8], whitening: &[u8], data: &mut [u8]) {
    let size = ciphers[0].0;
    let mut previous = iv[..size].to_vec();
    for block in data.chunks_exact_mut(size) {
        xor(block, &previous);
        ciphers.iter().for_each(|(_, cipher)| cipher(block));
        previous.copy_from_slice(block);
        block.chunks_exact_mut(8).for_each(|half| xor(half, whitening));
    }
}

fn chain_decrypt(ciphers: &[Sized<'_>], iv: &[u8], whitening: &[u8], data: &mut [u8]) {
    let size = ciphers[0].0;
    let mut previous = iv[..size].to_vec();
    for block in data.chunks_exact_mut(size) {
        block.chunks_exact_mut(8).for_each(|half| xor(half, whitening));
        let ciphertext = block.to_vec();
        ciphers.iter().rev().for_each(|(_, cipher)| cipher(block));
        xor(block, &previous);
        previous = ciphertext;
    }
}

/// IV and whitening of a sector.
fn sector_constants(block_size: usize, area: &[u8; 32], number: u64) -> (Vec<u8>, Vec<u8>) {
    let mut mixed = *area;
    mixed.chunks_exact_mut(8).for_each(|word| xor(word, &number.to_le_bytes()));
    let word = |i: usize| crc32(&mixed[block_size + 4 * i..][..4]);
    let whitening = [word(0) ^ word(3), word(1) ^ word(2)].map(u32::to_le_bytes).concat();
    (mixed[..block_size].to_vec(), whitening)
}

fn xor(to: &mut [u8], with: &[u8]) {
    to.iter_mut().zip(with).for_each(|(a, b)| *a ^= b);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_has_its_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn one_is_neutral_and_x_shifts_and_reduces() {
        for size in [8, 16] {
            let key: Vec<u8> = (0x80..).take(size).collect();
            let mut operand = vec![0; size];
            operand[size - 1] = 1;
            assert_eq!(multiply(&key, &operand), key);
            let mut top = vec![0; size];
            top[0] = 0x80;
            operand[size - 1] = 2;
            let mut reduced = vec![0; size];
            reduced[size - 1] = if size == 8 { 0x1b } else { 0x87 };
            assert_eq!(multiply(&top, &operand), reduced);
        }
    }
}

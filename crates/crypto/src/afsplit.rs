//! The anti-forensic splitter: a key is spread over many bytes, so that losing a few of them loses all of it (Clemens
//! Fruhwirth, "New Methods in Hard Disk Encryption", 2005, section 5.2; LUKS1 On-Disk Format Specification 1.2.3,
//! section 2.4).

use crate::hash::Hash;
use crate::secret::{Secret, wipe_stack};

/// Merges `material`, the split form of a key in `stripes` parts of equal length, back into that key.
///
/// # Panics
/// If `stripes` is zero, or the length of `material` is not a multiple of it: the caller computes one from the other.
pub fn merge(material: &[u8], stripes: usize, hash: &Hash) -> Secret {
    assert!(stripes > 0 && material.len().is_multiple_of(stripes));
    let len = material.len() / stripes;
    let (mut sum, mut digest) = (Secret::zeroed(len), Secret::zeroed(hash.size));
    for (index, stripe) in material.chunks(len.max(1)).enumerate() {
        xor(&mut sum, stripe);
        if index + 1 < stripes {
            diffuse(&mut sum, hash, &mut digest);
        }
    }
    wipe_stack();
    sum
}

/// Splits `key` into `material`, which holds random bytes; the last of its `stripes` parts is overwritten.
///
/// # Panics
/// If `stripes` is zero, or `material` is not `stripes` times as long as the key.
pub fn split(key: &[u8], stripes: usize, hash: &Hash, material: &mut [u8]) {
    assert!(stripes > 0 && material.len() == key.len() * stripes);
    let (mut sum, mut digest) = (Secret::zeroed(key.len()), Secret::zeroed(hash.size));
    let (random, last) = material.split_at_mut(key.len() * (stripes - 1));
    for stripe in random.chunks(key.len().max(1)) {
        xor(&mut sum, stripe);
        diffuse(&mut sum, hash, &mut digest);
    }
    wipe_stack();
    last.copy_from_slice(key);
    xor(last, &sum);
}

fn xor(sum: &mut [u8], with: &[u8]) {
    sum.iter_mut().zip(with).for_each(|(s, w)| *s ^= w);
}

/// Replaces each piece of a digest's length by the hash of its number and contents, and a shorter piece at the end by the beginning
/// of that hash. The caller provides the buffer `digest`, because there are thousands of calls.
fn diffuse(bytes: &mut [u8], hash: &Hash, digest: &mut [u8]) {
    for (number, piece) in (0u32..).zip(bytes.chunks_mut(hash.size)) {
        hash.checksum(&[&number.to_be_bytes(), piece], digest);
        piece.copy_from_slice(&digest[..piece.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{SHA1, SHA256};

    #[test]
    fn what_was_split_can_be_merged() {
        for hash in [&SHA1, &SHA256] {
            for len in [1, 16, 20, 32, 33, 64] {
                for stripes in [1, 2, 4000] {
                    let key: Vec<u8> = (0..len).map(|i| i as u8).collect();
                    let mut material: Vec<u8> = (0..len * stripes).map(|i| (i * 7 + i / 251) as u8).collect();
                    split(&key, stripes, hash, &mut material);
                    assert!(merge(&material, stripes, hash).same_as(&key));
                    material[0] ^= 1;
                    // A digest cut to one byte may well equal that of another byte.
                    assert!(
                        len == 1 || !merge(&material, stripes, hash).same_as(&key),
                        "{} {len} {stripes}",
                        hash.name
                    );
                }
            }
        }
    }
}

//! md5-crypt, the hash of passwords that begins with `$1$` (FreeBSD, lib/libcrypt/crypt-md5.c). Broken: only for old volumes. Writing
//! the hash looks digits up in a table of 64 bytes, which is not constant time.

use crate::Secret;
use crate::hash::MD5;
use crate::secret::wipe_stack;

/// Rounds after the first digest.
const ROUNDS: usize = 1000;

/// The digits of a hash, each of six bits.
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The order in which the bytes of the digest are written, three at a time and the last alone.
const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
const LAST: usize = 11;

/// The whole text, `$1$SALT$HASH`.
///
/// # Panics
/// If the salt is longer than 8 bytes, or has a `$`.
pub fn md5_crypt(password: &[u8], salt: &[u8]) -> Secret {
    assert!(salt.len() <= 8 && !salt.contains(&b'$'), "not a salt of md5-crypt");
    let mut digest = first_digest(password, salt);
    for round in 0..ROUNDS {
        let (odd, before) = (round % 2 == 1, digest);
        let (start, end) = if odd { (password, &before[..]) } else { (&before[..], password) };
        let salted = if round % 3 > 0 { salt } else { b"" };
        let again = if round % 7 > 0 { password } else { b"" };
        MD5.checksum(&[start, salted, again, end], &mut digest);
    }
    let text = written(&digest, salt);
    wipe_stack();
    text
}

fn first_digest(password: &[u8], salt: &[u8]) -> [u8; 16] {
    let mut between = [0; 16];
    MD5.checksum(&[password, salt, password], &mut between);
    let mut parts = vec![password, b"$1$", salt];
    parts.extend(password.chunks(16).map(|chunk| &between[..chunk.len()]));
    // One byte for each bit of the length, the lowest first.
    let mut bits = password.len();
    while bits > 0 {
        parts.push(if bits & 1 == 1 { b"\0" } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = [0; 16];
    MD5.checksum(&parts, &mut digest);
    digest
}

fn written(digest: &[u8; 16], salt: &[u8]) -> Secret {
    const DIGEST: usize = 22;
    let mut text = Secret::zeroed(3 + salt.len() + 1 + DIGEST);
    text[..3].copy_from_slice(b"$1$");
    text[3..][..salt.len()].copy_from_slice(salt);
    text[3 + salt.len()] = b'$';
    let threes = ORDER.map(|[high, middle, low]| (4, [digest[high], digest[middle], digest[low]]));
    let mut place = text[4 + salt.len()..].iter_mut();
    for (digits, [high, middle, low]) in threes.into_iter().chain([(2, [0, 0, digest[LAST]])]) {
        let mut bits = u32::from_be_bytes([0, high, middle, low]);
        for digit in place.by_ref().take(digits) {
            *digit = DIGITS[(bits & 0x3f) as usize];
            bits >>= 6;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `openssl passwd -1`.
    #[test]
    fn openssl_writes_the_same() {
        for (password, salt, text) in [
            ("", "x", "$1$x$fwjfZtMwarkdetsjiQreU1"),
            ("hunter2", "YCCaQNAP", "$1$YCCaQNAP$Jxabnglt5EY4ObjCXYGOf/"),
            ("a password of more than sixteen bytes", "YCCaQNAP", "$1$YCCaQNAP$dn9K8UVfpJwvkmNhEaoZT."),
            ("sixteen bytes ok", "x", "$1$x$xVQ8/l/x65MXKlyI8.7Wd1"),
        ] {
            let written = md5_crypt(password.as_bytes(), salt.as_bytes());
            assert_eq!(std::str::from_utf8(&written), Ok(text), "{password}");
        }
    }
}

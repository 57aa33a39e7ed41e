//! The password of the key derivation, made of a passphrase and keyfiles.

use claviger_crypto::Secret;

use crate::credential::{Credential, KEYFILE_MAX};
use crate::error::{Error, ErrorKind, Result};

/// The longest passphrase, and the size of the pool that keyfiles are mixed into, in bytes (7.1a, `MAX_PASSWORD` and
/// `KEYFILE_POOL_SIZE`).
pub(super) const PASSWORD_MAX: usize = 64;

/// Makes the password of all `credentials` together: at most one passphrase, and any number of keyfiles in any order.
///
/// # Errors
/// `CredentialKind` for what TrueCrypt does not know. `Misuse` for more than one passphrase or one that is too long, for an
/// empty keyfile, and if there is neither passphrase nor keyfile: TrueCrypt refuses the same.
pub(super) fn password(credentials: &[Credential]) -> Result<Secret> {
    let mut passphrase: Option<&Secret> = None;
    let mut pool: Option<Secret> = None;
    for credential in credentials {
        match credential {
            Credential::Passphrase(_) if passphrase.is_some() => {
                return Err(Error::misuse("a TrueCrypt volume takes one passphrase"));
            }
            Credential::Passphrase(text) => passphrase = Some(text),
            Credential::Keyfile(contents) if contents.is_empty() => {
                return Err(Error::misuse("a keyfile is empty; TrueCrypt takes none of 0 bytes"));
            }
            Credential::Keyfile(contents) => {
                mix(pool.get_or_insert_with(|| Secret::zeroed(PASSWORD_MAX)), contents);
            }
            #[allow(unreachable_patterns)] // kinds to come
            other => {
                return Err(ErrorKind::CredentialKind { format: super::NAME, kind: other.kind() }.into());
            }
        }
    }
    let passphrase: &[u8] = passphrase.map_or(&[], |p| p);
    if passphrase.len() > PASSWORD_MAX {
        return Err(Error::misuse(format!(
            "the passphrase has {} bytes; TrueCrypt takes at most {PASSWORD_MAX}",
            passphrase.len()
        ))
        .hint("Letters outside ASCII count two bytes or more each."));
    }
    match pool {
        Some(mut pool) => {
            pool.iter_mut().zip(passphrase).for_each(|(p, b)| *p = p.wrapping_add(*b));
            Ok(pool)
        }
        None if passphrase.is_empty() => Err(Error::misuse("the passphrase is empty and there are no keyfiles")),
        None => Ok(Secret::copy_from(passphrase)),
    }
}

/// Mixes a keyfile into the pool: the CRC-32 register after each byte, not inverted at the end, is added to the pool's next
/// four bytes (7.1a, Keyfiles.c, `KeyFileProcess`). Only additions, so the order of keyfiles does not matter.
fn mix(pool: &mut [u8], contents: &[u8]) {
    let mut register = !0u32;
    let mut at = 0;
    for &byte in &contents[..contents.len().min(KEYFILE_MAX)] {
        register = CRC_TABLE[((register ^ u32::from(byte)) & 0xff) as usize] ^ (register >> 8);
        for part in register.to_be_bytes() {
            pool[at] = pool[at].wrapping_add(part);
            at = (at + 1) % pool.len();
        }
    }
}

/// CRC-32 of each byte (polynomial 0xEDB88320). A crate's CRC gives no register after each byte at a bearable speed.
static CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &[u8]) -> Credential {
        Credential::Passphrase(Secret::copy_from(text))
    }

    fn keyfile(contents: &[u8]) -> Credential {
        Credential::Keyfile(Secret::copy_from(contents))
    }

    #[test]
    fn the_register_is_that_of_crc32() {
        let mut pool = [0; PASSWORD_MAX];
        mix(&mut pool, b"123456789");
        // Byte 9 has added its register at 32; inverted, that is the well-known check value.
        assert_eq!(!u32::from_be_bytes(pool[32..36].try_into().expect("four bytes")), 0xcbf4_3926);
    }

    #[test]
    fn keyfiles_fill_the_password_and_their_order_does_not_matter() {
        let one = password(&[keyfile(b"first"), passphrase(b"pw"), keyfile(b"second")]).expect("good");
        let other = password(&[keyfile(b"second"), keyfile(b"first"), passphrase(b"pw")]).expect("good");
        assert_eq!(one.len(), PASSWORD_MAX);
        assert!(one.same_as(&other));
        assert!(!one.same_as(&password(&[keyfile(b"first"), passphrase(b"pw")]).expect("good")));
        assert!(password(&[passphrase(b"pw")]).expect("good").same_as(b"pw"));
    }

    #[test]
    fn only_the_first_mebibyte_of_a_keyfile_counts() {
        let mut long = vec![3; KEYFILE_MAX + 5];
        let whole = password(&[keyfile(&long)]).expect("good");
        long[KEYFILE_MAX] ^= 1;
        assert!(whole.same_as(&password(&[keyfile(&long)]).expect("good")));
        long[KEYFILE_MAX - 1] ^= 1;
        assert!(!whole.same_as(&password(&[keyfile(&long)]).expect("good")));
    }

    #[test]
    fn what_truecrypt_refuses_is_refused() {
        assert!(password(&[passphrase(&[b'a'; 64])]).is_ok());
        let refused: [&[Credential]; 5] = [
            &[],
            &[passphrase(b"")],
            &[passphrase(b"a"), passphrase(b"b")],
            &[passphrase(&[b'a'; 65])],
            &[passphrase(b"a"), keyfile(b"")],
        ];
        for credentials in refused {
            let error = password(credentials).expect_err("refused");
            assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
        }
    }
}

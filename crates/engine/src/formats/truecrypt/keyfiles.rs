//! The password of the key derivation, made of a passphrase and keyfiles.

use claviger_crypto::Secret;

use super::Family;
use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};

/// The longest passphrase of TrueCrypt, and the size of the pool that keyfiles are mixed into, in bytes (7.1a, `MAX_PASSWORD`
/// and `KEYFILE_POOL_SIZE`).
pub(super) const PASSWORD_MAX: usize = 64;

/// How much of a keyfile is used, in bytes (7.1a, Keyfiles.h, `KEYFILE_MAX_READ_LEN`).
const KEYFILE_MAX: usize = 1 << 20;

/// The longest passphrase of VeraCrypt since 1.24. For passphrases too long for TrueCrypt, the keyfile pool has this size too
/// (1.26, Password.h, `MAX_PASSWORD`; Keyfiles.h, `KEYFILE_POOL_SIZE`; Keyfiles.c, `KeyFilesApply`).
pub(super) const LONG_PASSWORD_MAX: usize = 128;

/// Makes the password of all `credentials` together: at most one passphrase, and any number of keyfiles in any order.
///
/// # Errors
/// `CredentialKind` for unsupported credentials. `Misuse` for more than one passphrase or one that is too long, for an empty
/// keyfile, and if there is neither passphrase nor keyfile, as in TrueCrypt.
pub(super) fn password(family: &Family, credentials: &[Credential]) -> Result<Secret> {
    let name = family.name;
    let mut passphrase: Option<&Secret> = None;
    let mut keyfiles: Vec<&Secret> = Vec::new();
    for credential in credentials {
        match credential {
            Credential::Passphrase(_) if passphrase.is_some() => {
                return Err(Error::misuse(format!("a {name} volume takes one passphrase")));
            }
            Credential::Passphrase(text) => passphrase = Some(text),
            Credential::Keyfile(contents) if contents.is_empty() => {
                return Err(Error::misuse(format!("a keyfile is empty, which {name} does not accept")));
            }
            Credential::Keyfile(contents) => keyfiles.push(contents),
            other => {
                return Err(ErrorKind::CredentialKind { format: name, kind: other.kind() }.into());
            }
        }
    }
    let passphrase: &[u8] = passphrase.map_or(&[], |p| p);
    check_len(family, passphrase)?;
    if keyfiles.is_empty() {
        return match passphrase {
            [] => Err(Error::misuse("the passphrase is empty and there are no keyfiles")),
            _ => Ok(Secret::copy_from(passphrase)),
        };
    }
    let mut pool = Secret::zeroed(if passphrase.len() > PASSWORD_MAX { LONG_PASSWORD_MAX } else { PASSWORD_MAX });
    keyfiles.into_iter().for_each(|contents| mix(&mut pool, contents));
    pool.iter_mut().zip(passphrase).for_each(|(p, b)| *p = p.wrapping_add(*b));
    Ok(pool)
}

/// Refuses a passphrase that is too long.
///
/// # Errors
/// `Misuse`.
pub(super) fn check_len(family: &Family, passphrase: &[u8]) -> Result<()> {
    let Family { name, password_max, .. } = family;
    match passphrase.len() {
        len if len > *password_max => {
            Err(Error::misuse(format!("the passphrase has {len} bytes, but {name} takes at most {password_max}"))
                .hint("Characters outside ASCII take two or more bytes each."))
        }
        _ => Ok(()),
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

/// CRC-32 of each byte (polynomial 0xEDB88320). No crate's CRC gives the register after each byte fast enough.
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
    use crate::formats::truecrypt::{TRUECRYPT, VERACRYPT};

    fn password(credentials: &[Credential]) -> Result<Secret> {
        super::password(&TRUECRYPT, credentials)
    }

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
        // Byte 9 adds its register at 32; inverted, that is the well-known check value.
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

    #[test]
    fn long_passphrases_have_a_long_pool() {
        let made = |len: usize| {
            let passphrase = passphrase(&vec![b'a'; len]);
            super::password(&VERACRYPT, &[keyfile(&[7; 100]), passphrase]).expect("good")
        };
        assert_eq!((made(0).len(), made(64).len(), made(65).len(), made(128).len()), (64, 64, 128, 128));
        assert!(super::password(&VERACRYPT, &[passphrase(&[b'a'; 129])]).is_err());
        // A keyfile of 16 bytes fills the common part of both pools alike.
        let short = super::password(&VERACRYPT, &[keyfile(&[7; 16]), passphrase(&[b'a'; 64])]).expect("good");
        let long = super::password(&VERACRYPT, &[keyfile(&[7; 16]), passphrase(&[b'a'; 65])]).expect("good");
        assert!(short.same_as(&long[..64]));
        assert_eq!((long[64], &long[65..]), (b'a', &[0; 63][..]));
    }
}

//! The ciphers, cascades and modes that TrueCrypt and VeraCrypt ever had, as plain data.

use std::cell::RefCell;
use std::sync::Arc;

use claviger_crypto::ciphers::{aes::AES, legacy, national, serpent::SERPENT, twofish::TWOFISH};
use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::{Lrw, TrueCryptCbc, Xts, xts};
use claviger_crypto::{Acceleration, BlockCipher, Cipher, Secret, SectorCipher};

use crate::volume::KernelCipher;

/// The size of a volume's encryption unit, in bytes, whatever sector size its header names (7.1a, `ENCRYPTION_DATA_UNIT_SIZE`).
pub(super) const UNIT: u64 = 512;

/// The size of the area in front of the keys in the modes before XTS, in bytes: LRW's tweak key, or the seed of CBC's IVs and
/// whitening (7.1a, Volumes.c, `LEGACY_VOL_IV_SIZE`).
const LEGACY_SEED: usize = 32;

/// The size of LRW's tweak key for blocks of 16 bytes, in bytes.
const LRW_TWEAK: usize = 16;

/// The size of the whitening seed after the IV seed in dm-crypt's key for `tcw`, in bytes (Linux, drivers/md/dm-crypt.c,
/// `TCW_WHITENING_SIZE`).
const TCW_WHITENING: usize = 16;

/// A cipher or a cascade.
pub(super) struct Suite {
    /// The name as the program prints it. It names a cascade's ciphers in the order in which they *decrypt*.
    pub name: &'static str,
    /// The ciphers in the order in which they encrypt, which is that of their keys in the key area.
    pub parts: &'static [Part],
    /// The modes it was ever used in.
    pub modes: &'static [Mode],
}

/// A cipher and the size of its key in bytes, which is always the largest possible.
pub(super) struct Part {
    cipher: &'static Cipher,
    key: usize,
    /// The kernel's name for the cipher, if the kernel supports it.
    kernel: Option<&'static str>,
}

/// A mode of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// TrueCrypt 5.0 and later.
    Xts,
    /// TrueCrypt 4.1 to 4.3a.
    Lrw,
    /// TrueCrypt 1.0 to 4.0: one cipher.
    Cbc,
    /// The same versions: one chain around all ciphers of a cascade.
    OuterCbc,
    /// The same versions: one whole CBC layer for each cipher, since their block sizes differ.
    InnerCbc,
}

/// A suite in a mode.
pub(super) type SuiteInMode = (&'static Suite, Mode);

const fn part(cipher: &'static Cipher, key: usize, kernel: Option<&'static str>) -> Part {
    Part { cipher, key, kernel }
}

const A: Part = part(&AES, 32, Some("aes"));
const S: Part = part(&SERPENT, 32, Some("serpent"));
const T: Part = part(&TWOFISH, 32, Some("twofish"));
const C: Part = part(&national::CAMELLIA, 32, Some("camellia"));
const K: Part = part(&national::KUZNYECHIK, 32, None);
// TrueCrypt's Blowfish swaps bytes; the kernel's does not.
const B: Part = part(&legacy::BLOWFISH, 56, None);

const ONE: &[Mode] = &[Mode::Xts, Mode::Lrw, Mode::Cbc];
const CASCADE: &[Mode] = &[Mode::Xts, Mode::Lrw, Mode::OuterCbc];
const SMALL_BLOCKS: &[Mode] = &[Mode::Lrw, Mode::Cbc];
const MIXED_BLOCKS: &[Mode] = &[Mode::InnerCbc];
const XTS: &[Mode] = &[Mode::Xts];

/// Every suite of TrueCrypt (7.1a, Crypto.c, `EncryptionAlgorithms` and `Ciphers`). The first eight can be created.
pub(super) static TRUECRYPT: &[Suite] = &[
    Suite { name: "AES", parts: &[A], modes: ONE },
    Suite { name: "Serpent", parts: &[S], modes: ONE },
    Suite { name: "Twofish", parts: &[T], modes: ONE },
    Suite { name: "AES-Twofish", parts: &[T, A], modes: CASCADE },
    Suite { name: "AES-Twofish-Serpent", parts: &[S, T, A], modes: CASCADE },
    Suite { name: "Serpent-AES", parts: &[A, S], modes: CASCADE },
    Suite { name: "Serpent-Twofish-AES", parts: &[A, T, S], modes: CASCADE },
    Suite { name: "Twofish-Serpent", parts: &[S, T], modes: CASCADE },
    Suite { name: "Blowfish", parts: &[B], modes: SMALL_BLOCKS },
    Suite { name: "CAST5", parts: &[part(&legacy::CAST5, 16, Some("cast5"))], modes: SMALL_BLOCKS },
    Suite { name: "Triple DES", parts: &[part(&legacy::TRIPLE_DES, 24, Some("des3_ede"))], modes: SMALL_BLOCKS },
    Suite { name: "AES-Blowfish", parts: &[B, A], modes: MIXED_BLOCKS },
    Suite { name: "AES-Blowfish-Serpent", parts: &[S, B, A], modes: MIXED_BLOCKS },
];

/// Every suite of VeraCrypt, all of them in XTS only (1.26, Crypto.c, `EncryptionAlgorithms`).
pub(super) static VERACRYPT: &[Suite] = &[
    Suite { name: "AES", parts: &[A], modes: XTS },
    Suite { name: "Serpent", parts: &[S], modes: XTS },
    Suite { name: "Twofish", parts: &[T], modes: XTS },
    Suite { name: "Camellia", parts: &[C], modes: XTS },
    Suite { name: "Kuznyechik", parts: &[K], modes: XTS },
    Suite { name: "AES-Twofish", parts: &[T, A], modes: XTS },
    Suite { name: "AES-Twofish-Serpent", parts: &[S, T, A], modes: XTS },
    Suite { name: "Serpent-AES", parts: &[A, S], modes: XTS },
    Suite { name: "Serpent-Twofish-AES", parts: &[A, T, S], modes: XTS },
    Suite { name: "Twofish-Serpent", parts: &[S, T], modes: XTS },
    Suite { name: "Camellia-Kuznyechik", parts: &[K, C], modes: XTS },
    Suite { name: "Kuznyechik-Twofish", parts: &[T, K], modes: XTS },
    Suite { name: "Camellia-Serpent", parts: &[S, C], modes: XTS },
    Suite { name: "Kuznyechik-AES", parts: &[A, K], modes: XTS },
    Suite { name: "Kuznyechik-Serpent-Camellia", parts: &[C, S, K], modes: XTS },
];

impl Mode {
    /// Every mode, the newest first.
    pub const ALL: [Self; 5] = [Self::Xts, Self::Lrw, Self::Cbc, Self::OuterCbc, Self::InnerCbc];

    /// The name as TrueCrypt prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xts => "XTS",
            Self::Lrw => "LRW",
            Self::Cbc => "CBC",
            Self::OuterCbc => "Outer-CBC",
            Self::InnerCbc => "Inner-CBC",
        }
    }
}

impl Suite {
    /// Whether volumes with it can be created: TrueCrypt 7.1a and VeraCrypt create XTS only.
    pub fn creatable(&self) -> bool {
        self.modes.contains(&Mode::Xts)
    }

    /// The total size of the ciphers' data keys, in bytes.
    pub fn data_key_len(&self) -> usize {
        self.parts.iter().map(|p| p.key).sum()
    }

    /// The size of the key material, in bytes: data keys and tweak keys, or the seed and data keys.
    pub fn key_len(&self, mode: Mode) -> usize {
        match mode {
            Mode::Xts => 2 * self.data_key_len(),
            Mode::Lrw | Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => LEGACY_SEED + self.data_key_len(),
        }
    }

    /// The cipher of a volume's data. `keys` holds at least `key_len` bytes.
    pub fn data_cipher(&self, mode: Mode, keys: &[u8], acceleration: Acceleration) -> Arc<dyn SectorCipher> {
        let keys = &FreshKeys { keys, acceleration };
        match mode {
            Mode::Xts => Arc::new(self.xts(keys, UNIT as usize)),
            Mode::Lrw => Arc::new(self.lrw(keys)),
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => Arc::new(self.cbc(mode, keys)),
        }
    }

    /// Decrypts the body of a header, or its beginning: whole blocks of 16 bytes.
    pub fn decrypt_header(&self, mode: Mode, keys: &SharedKeys<'_>, body: &mut [u8]) {
        match mode {
            // The body is the beginning of unit 0; the rest of that unit does not matter (Crypto.c, `DecryptBuffer`).
            Mode::Xts => self.xts(keys, body.len()).decrypt(0, body),
            Mode::Lrw => self.lrw(keys).decrypt_header(body),
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => self.cbc(mode, keys).decrypt_header(body),
        }
    }

    /// The inverse of [`Suite::decrypt_header`].
    pub fn encrypt_header(&self, mode: Mode, keys: &SharedKeys<'_>, body: &mut [u8]) {
        match mode {
            Mode::Xts => self.xts(keys, body.len()).encrypt(0, body),
            Mode::Lrw => self.lrw(keys).encrypt_header(body),
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => self.cbc(mode, keys).encrypt_header(body),
        }
    }

    /// The data's cipher as layers of dm-crypt, in the order in which they encrypt. `None` if the kernel lacks a cipher or the
    /// mode. (cryptsetup 2.6, lib/tcrypt/tcrypt.c, `tcrypt_alg` and `tcrypt_copy_key`.)
    pub fn kernel_layers(&self, mode: Mode, keys: &[u8]) -> Option<Vec<KernelCipher>> {
        let blocks = self.parts[0].cipher.block_size;
        let mode_name = match mode {
            Mode::Xts => "xts-plain64",
            // Blocks of 8 bytes would need GF(2^64), which the kernel's LRW does not implement.
            Mode::Lrw if blocks == LRW_TWEAK => "lrw-benbi",
            // Single ciphers only: the kernel has no chain around several ciphers, and no whitening around one of several.
            Mode::Cbc => "cbc-tcw",
            Mode::Lrw | Mode::OuterCbc | Mode::InnerCbc => return None,
        };
        let mut at = if mode == Mode::Xts { 0 } else { LEGACY_SEED };
        let layer = |part: &Part| {
            let data = &keys[at..][..part.key];
            let rest = match mode {
                Mode::Xts => &keys[self.data_key_len() + at..][..part.key],
                Mode::Lrw => &keys[..LRW_TWEAK],
                Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => &keys[..blocks + TCW_WHITENING],
            };
            at += part.key;
            let mut key = Secret::zeroed(data.len() + rest.len());
            key[..data.len()].copy_from_slice(data);
            key[data.len()..].copy_from_slice(rest);
            let sectors = Sectors { size: UNIT as usize, large_iv: false, iv_offset: 0 };
            let specification = format!("{}-{mode_name}", part.kernel?);
            Some(KernelCipher { specification, key, sectors, integrity: None })
        };
        self.parts.iter().map(layer).collect()
    }

    fn xts(&self, keys: &dyn Keys, sector_size: usize) -> Xts {
        let layers = self.keyed(keys, 0).into_iter().zip(self.keyed(keys, self.data_key_len()));
        Xts::new(layers.map(|(data, tweak)| xts::Layer { data, tweak }).collect(), sector_size)
    }

    fn lrw(&self, keys: &dyn Keys) -> Lrw {
        Lrw::new(self.keyed(keys, LEGACY_SEED), &keys.bytes()[..LEGACY_SEED], UNIT as usize)
    }

    fn cbc(&self, mode: Mode, keys: &dyn Keys) -> TrueCryptCbc {
        let seed = keys.bytes().first_chunk::<LEGACY_SEED>().expect("keys are longer than the seed");
        let chained = if mode == Mode::InnerCbc { TrueCryptCbc::inner } else { TrueCryptCbc::outer };
        chained(self.keyed(keys, LEGACY_SEED), seed, UNIT as usize)
    }

    /// The ciphers, keyed with consecutive keys from the offset `at` on.
    fn keyed(&self, keys: &dyn Keys, mut at: usize) -> Vec<Box<dyn BlockCipher>> {
        let next = |part: &'static Part| {
            let cipher = keys.cipher(part, at);
            at += part.key;
            cipher
        };
        self.parts.iter().map(next).collect()
    }
}

/// Key material, and ciphers keyed with parts of it.
trait Keys {
    fn bytes(&self) -> &[u8];
    /// The cipher with the key at the offset `at`.
    fn cipher(&self, part: &'static Part, at: usize) -> Box<dyn BlockCipher>;
}

/// Expands the key for each cipher anew: for an open volume, whose cipher must not be slowed down by sharing.
struct FreshKeys<'a> {
    keys: &'a [u8],
    acceleration: Acceleration,
}

impl Keys for FreshKeys<'_> {
    fn bytes(&self) -> &[u8] {
        self.keys
    }

    fn cipher(&self, part: &'static Part, at: usize) -> Box<dyn BlockCipher> {
        part.cipher.with_key(&self.keys[at..][..part.key], self.acceleration)
    }
}

/// A derived key that is tried in many ways. Most of these share ciphers and keys, and expanding a key takes longer than decrypting
/// a block. So each key is expanded once.
pub(super) struct SharedKeys<'a> {
    fresh: FreshKeys<'a>,
    /// The ciphers keyed so far.
    keyed: RefCell<Vec<Keyed>>,
}

/// A cipher, the offset of its key, and the keyed cipher. The `Arc` holds the box and not its contents: converting one into the
/// other copies a key schedule and frees the original unwiped.
type Keyed = (&'static Cipher, usize, Arc<Box<dyn BlockCipher>>);

impl<'a> SharedKeys<'a> {
    pub fn new(keys: &'a [u8], acceleration: Acceleration) -> Self {
        Self { fresh: FreshKeys { keys, acceleration }, keyed: RefCell::default() }
    }
}

impl Keys for SharedKeys<'_> {
    fn bytes(&self) -> &[u8] {
        self.fresh.keys
    }

    fn cipher(&self, part: &'static Part, at: usize) -> Box<dyn BlockCipher> {
        let mut keyed = self.keyed.borrow_mut();
        let known = keyed.iter().find(|(cipher, place, _)| std::ptr::eq(*cipher, part.cipher) && *place == at);
        let cipher = known.map(|(_, _, cipher)| Arc::clone(cipher)).unwrap_or_else(|| {
            let cipher = Arc::new(self.fresh.cipher(part, at));
            keyed.push((part.cipher, at, Arc::clone(&cipher)));
            cipher
        });
        Box::new(Shared(cipher))
    }
}

/// A keyed cipher that is shared.
struct Shared(Arc<Box<dyn BlockCipher>>);

impl BlockCipher for Shared {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        self.0.encrypt_blocks(blocks);
    }

    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        self.0.decrypt_blocks(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_list_the_ciphers_from_the_last_to_the_first() {
        for suite in TRUECRYPT.iter().chain(VERACRYPT) {
            let names: Vec<_> = suite.parts.iter().rev().map(|p| p.cipher.name).collect();
            assert_eq!(names.join("-"), suite.name);
        }
    }

    #[test]
    fn names_and_sizes_fit() {
        for (table, creatable) in [(TRUECRYPT, 8), (VERACRYPT, 15)] {
            for (i, suite) in table.iter().enumerate() {
                assert!(table[..i].iter().all(|s| s.name != suite.name));
                assert_eq!(suite.creatable(), i < creatable);
                for part in suite.parts {
                    assert!(part.cipher.key_sizes.contains(&part.key), "{}", part.cipher.name);
                }
                for &mode in suite.modes {
                    assert!(suite.key_len(mode) <= 256, "the key area has 256 bytes");
                    let first = suite.parts[0].cipher.block_size;
                    let same_blocks = suite.parts.iter().all(|p| p.cipher.block_size == first);
                    assert_eq!(same_blocks, mode != Mode::InnerCbc);
                }
            }
        }
    }
}

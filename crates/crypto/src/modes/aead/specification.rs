//! The authenticated modes, by their names in LUKS2 and dm-crypt.

use std::fmt;
use std::sync::Arc;

use super::AuthenticatedCipher;
use super::aegis;
use super::ccm::{self, Ccm};
use super::ciphers::{Aegis, ChaChaPoly, EncryptThenMac, Encryption, Gcm, HmacSha256, HmacSha512, Sealed, Together};
use super::sealer::{Numbering, Sealer, Vector};
#[cfg(target_arch = "x86_64")]
use crate::ciphers::aes::gcm::AesGcm;
use crate::ciphers::{self, Acceleration, Cipher};
use crate::dmcrypt::{DmCryptError, Sectors};
use crate::hash::{self, Hash};
use crate::modes::xts::Layer;
use crate::secret::{LockedBox, Secret, wipe_stack};

/// A cipher, and the method that authenticates its sectors.
#[derive(Clone)]
pub struct AeadSpecification {
    mode: Mode,
    text: String,
}

#[derive(Clone)]
enum Mode {
    EncryptThenMac { cipher: &'static Cipher, chain: Chain, vector: Kind, mac: Mac },
    Gcm { cipher: &'static Cipher, vector: Kind },
    Ccm { cipher: &'static Cipher, vector: Kind },
    ChaChaPoly { vector: Kind },
    Aegis { vector: Kind },
}

#[derive(Clone, Copy)]
enum Chain {
    Xts,
    Cbc,
}

#[derive(Clone, Copy)]
enum Kind {
    Plain64,
    Essiv(&'static Hash),
    Random,
}

#[derive(Clone, Copy)]
enum Mac {
    Sha256,
    Sha512,
}

impl Mac {
    /// Size of its key and of its tag in bytes: cryptsetup gives an HMAC a key as long as its tag
    /// (lib/integrity/integrity.c, `INTEGRITY_key_size`).
    fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

impl AeadSpecification {
    /// Parses a pair from a LUKS2 segment (cryptsetup, lib/luks2/luks2_json_format.c): `encryption`, such as
    /// `aes-xts-plain64`, and the type of `integrity`: `hmac(sha256)`, `hmac(sha512)`, `aead` or `poly1305`.
    ///
    /// # Errors
    /// `Syntax`, `Unsupported`.
    pub fn parse(encryption: &str, integrity: &str) -> Result<Self, DmCryptError> {
        let text = format!("{encryption} with integrity {integrity}");
        let unsupported = || DmCryptError::Unsupported(text.clone());
        let mode = match (encryption, integrity) {
            (_, "hmac(sha256)") => with_mac(encryption, Mac::Sha256).ok_or_else(unsupported)?,
            (_, "hmac(sha512)") => with_mac(encryption, Mac::Sha512).ok_or_else(unsupported)?,
            (_, "aead" | "poly1305") => aead(encryption, integrity).ok_or_else(unsupported)?,
            _ => return Err(unsupported()),
        };
        Ok(Self { mode, text })
    }

    /// Parses the arguments of `create`, with the names of cryptsetup's option `--integrity`: `hmac-sha256`, `hmac-sha512`, `aead`,
    /// `poly1305`, or those of LUKS2. Without a cipher it uses the usual one.
    ///
    /// Also returns the cipher and the type of integrity as LUKS2 writes them.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn choose(cipher: Option<&str>, integrity: &str) -> Result<(Self, String, &'static str), DmCryptError> {
        let (kind, default) = match integrity {
            "hmac-sha256" | "hmac(sha256)" => ("hmac(sha256)", "aes-xts-plain64"),
            "hmac-sha512" | "hmac(sha512)" => ("hmac(sha512)", "aes-xts-plain64"),
            "aead" => ("aead", "aes-gcm-random"),
            "poly1305" => ("poly1305", "chacha20-random"),
            other => return Err(DmCryptError::Unsupported(format!("integrity {other}"))),
        };
        let encryption = match cipher {
            None => default.to_owned(),
            Some(name) if name.contains('-') => name.to_owned(),
            // A cipher alone is used in the usual mode.
            Some(name) => match default.split_once('-') {
                Some((_, mode)) => format!("{}-{mode}", name.to_ascii_lowercase()),
                None => name.to_owned(),
            },
        };
        Ok((Self::parse(&encryption, kind)?, encryption, kind))
    }

    /// Sizes of whole keys that fit, in bytes: the cipher's key followed by the key of a MAC.
    pub fn key_sizes(&self) -> Vec<usize> {
        match &self.mode {
            Mode::EncryptThenMac { cipher, chain, mac, .. } => {
                let keys = match chain {
                    Chain::Xts => 2,
                    Chain::Cbc => 1,
                };
                cipher.key_sizes.iter().map(|size| keys * size + mac.size()).collect()
            }
            Mode::Gcm { cipher, .. } => cipher.key_sizes.to_vec(),
            Mode::Ccm { cipher, .. } => cipher.key_sizes.iter().map(|size| size + ccm::SALT).collect(),
            Mode::ChaChaPoly { .. } => vec![32],
            Mode::Aegis { .. } => vec![aegis::SIZE],
        }
    }

    /// Bytes at the end of a whole key that are the MAC's key: 0 if the cipher authenticates by itself.
    pub fn mac_key_size(&self) -> usize {
        match self.mode {
            Mode::EncryptThenMac { mac, .. } => mac.size(),
            Mode::Gcm { .. } | Mode::Ccm { .. } | Mode::ChaChaPoly { .. } | Mode::Aegis { .. } => 0,
        }
    }

    /// Bytes stored beside each sector (cryptsetup, lib/integrity/integrity.c, `INTEGRITY_tag_size`): the tag, followed
    /// by a random IV.
    pub fn tag_size(&self) -> usize {
        let (mac, iv, vector) = match self.mode {
            Mode::EncryptThenMac { vector, mac, .. } => (mac.size(), 16, vector),
            Mode::Gcm { vector, .. } | Mode::ChaChaPoly { vector } => (16, 12, vector),
            Mode::Ccm { vector, .. } => (16, ccm::IV, vector),
            Mode::Aegis { vector } => (aegis::SIZE, aegis::SIZE, vector),
        };
        mac + if matches!(vector, Kind::Random) { iv } else { 0 }
    }

    /// Whether IVs repeat: in a mode that this breaks, anybody who sees a sector twice learns what changed and can
    /// forge tags.
    pub fn repeats_vectors(&self) -> bool {
        match self.mode {
            Mode::EncryptThenMac { .. } => false,
            Mode::Gcm { vector, .. }
            | Mode::Ccm { vector, .. }
            | Mode::ChaChaPoly { vector }
            | Mode::Aegis { vector } => !matches!(vector, Kind::Random),
        }
    }

    /// The cipher under `key`. Its sectors count from 0 at the beginning of the volume.
    ///
    /// # Errors
    /// `KeySize`; `Unsupported` for sector sizes that dm-crypt does not support.
    pub fn with_key(
        &self,
        key: &[u8],
        sectors: Sectors,
        with: Acceleration,
    ) -> Result<Arc<dyn AuthenticatedCipher>, DmCryptError> {
        if !self.key_sizes().contains(&key.len()) {
            return Err(DmCryptError::KeySize(key.len(), self.key_sizes()));
        }
        if !matches!(sectors.size, 512 | 1024 | 2048 | 4096) {
            return Err(DmCryptError::Unsupported(format!("{} with sectors of {} bytes", self.text, sectors.size)));
        }
        let cipher = self.keyed(key, sectors, with);
        wipe_stack();
        Ok(cipher)
    }

    /// The cipher under a key that fits.
    fn keyed(&self, key: &[u8], sectors: Sectors, with: Acceleration) -> Arc<dyn AuthenticatedCipher> {
        let (encryption, mac_key) = key.split_at(key.len() - self.mac_key_size());
        match &self.mode {
            Mode::EncryptThenMac { cipher, chain, vector, mac } => {
                let vector = vector.with_key(cipher, key, with);
                let encryption = chain.with_key(cipher, encryption, with);
                match mac {
                    Mac::Sha256 => {
                        sealed(EncryptThenMac { encryption, mac: HmacSha256::new(mac_key) }, vector, sectors)
                    }
                    Mac::Sha512 => {
                        sealed(EncryptThenMac { encryption, mac: HmacSha512::new(mac_key) }, vector, sectors)
                    }
                }
            }
            Mode::Gcm { cipher, vector } => {
                let vector = vector.with_key(cipher, key, with);
                #[cfg(target_arch = "x86_64")]
                if std::ptr::eq(*cipher, &ciphers::aes::AES)
                    && let Some(gcm) = AesGcm::new(key, with)
                {
                    return sealed(Together(gcm), vector, sectors);
                }
                sealed(Gcm::new(cipher.with_key(key, with)), vector, sectors)
            }
            Mode::Ccm { cipher, vector } => {
                let (key, salt) = key.split_at(key.len() - ccm::SALT);
                let salt = LockedBox::build(|to: &mut [u8; ccm::SALT]| to.copy_from_slice(salt));
                let vector = vector.with_key(cipher, key, with);
                sealed(Together(Ccm { cipher: cipher.with_key(key, with), salt }), vector, sectors)
            }
            Mode::ChaChaPoly { vector } => {
                let key = LockedBox::build(|to: &mut [u8; 32]| to.copy_from_slice(key));
                sealed(Together(ChaChaPoly { key }), vector.with_key(&ciphers::aes::AES, &[], with), sectors)
            }
            Mode::Aegis { vector } => {
                let key = LockedBox::build(|to: &mut [u8; aegis::SIZE]| to.copy_from_slice(key));
                sealed(Together(Aegis { key }), vector.with_key(&ciphers::aes::AES, &[], with), sectors)
            }
        }
    }
}

impl Chain {
    fn with_key(self, cipher: &Cipher, key: &[u8], with: Acceleration) -> Encryption {
        match self {
            Self::Xts => {
                let (data, tweak) = key.split_at(key.len() / 2);
                Encryption::Xts(Layer { data: cipher.with_key(data, with), tweak: cipher.with_key(tweak, with) })
            }
            Self::Cbc => Encryption::Cbc(cipher.with_key(key, with)),
        }
    }
}

impl Kind {
    /// The source of IVs: for ESSIV, the cipher under the hash of the whole key, including the MAC's (Linux,
    /// crypto/essiv.c, `essiv_aead_setkey`).
    fn with_key(self, cipher: &Cipher, key: &[u8], with: Acceleration) -> Vector {
        match self {
            Self::Plain64 => Vector::Plain64,
            Self::Random => Vector::Random,
            Self::Essiv(hash) => {
                let mut salt = Secret::zeroed(hash.size);
                hash.digest(&[key], &mut salt);
                Vector::Essiv(cipher.with_key(&salt, with))
            }
        }
    }
}

impl fmt::Display for AeadSpecification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for AeadSpecification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `cipher-xts-plain64`, `cipher-cbc-essiv:hash` and the like, with a MAC.
fn with_mac(encryption: &str, mac: Mac) -> Option<Mode> {
    let mut parts = encryption.splitn(3, '-');
    let cipher = block_cipher(parts.next()?)?;
    let chain = match parts.next()? {
        "xts" => Chain::Xts,
        "cbc" => Chain::Cbc,
        _ => return None,
    };
    let vector = match parts.next()? {
        "plain64" => Kind::Plain64,
        "random" => Kind::Random,
        other => {
            let hash = hash::by_name(other.strip_prefix("essiv:")?)?;
            if !cipher.key_sizes.contains(&hash.size) {
                return None;
            }
            Kind::Essiv(hash)
        }
    };
    Some(Mode::EncryptThenMac { cipher, chain, vector, mac })
}

/// `cipher-gcm-random`, `cipher-ccm-random`, `chacha20-random`, `aegis128-random`, and the same with `plain64`, which cryptsetup
/// allows at creation.
fn aead(encryption: &str, integrity: &str) -> Option<Mode> {
    let (name, vector) = encryption.rsplit_once('-')?;
    let vector = match vector {
        "random" => Kind::Random,
        "plain64" => Kind::Plain64,
        _ => return None,
    };
    match (name, integrity) {
        ("chacha20", "poly1305") => Some(Mode::ChaChaPoly { vector }),
        ("aegis128", "aead") => Some(Mode::Aegis { vector }),
        (_, "aead") => match name.rsplit_once('-')? {
            (cipher, "gcm") => Some(Mode::Gcm { cipher: block_cipher(cipher)?, vector }),
            (cipher, "ccm") => Some(Mode::Ccm { cipher: block_cipher(cipher)?, vector }),
            _ => None,
        },
        _ => None,
    }
}

/// A cipher with blocks of 16 bytes, by its name in Linux.
fn block_cipher(name: &str) -> Option<&'static Cipher> {
    ciphers::CIPHERS.iter().find(|c| c.name.eq_ignore_ascii_case(name) && c.block_size == 16).copied()
}

fn sealed<S: Sealer + 'static>(sealer: S, vector: Vector, sectors: Sectors) -> Arc<dyn AuthenticatedCipher> {
    let units = sectors.size as u64 / 512;
    let numbering = Numbering { units, large: sectors.large_iv, offset: sectors.iv_offset, vector };
    Arc::new(Sealed { sealer, numbering, sector_size: sectors.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and tag sizes of cryptsetup 2.6.1's tables, `dmsetup table`: the key's size and `integrity:`.
    #[test]
    fn sizes_are_those_of_the_kernels_tables() {
        for (encryption, integrity, key, tag) in [
            ("aes-xts-plain64", "hmac(sha256)", 96, 32),
            ("aes-xts-plain64", "hmac(sha512)", 128, 64),
            ("aes-cbc-essiv:sha256", "hmac(sha256)", 64, 32),
            ("aes-xts-random", "hmac(sha256)", 96, 48),
            ("aes-gcm-random", "aead", 32, 28),
            ("aes-gcm-plain64", "aead", 32, 16),
            ("aes-ccm-random", "aead", 19, 24),
            ("chacha20-random", "poly1305", 32, 28),
            ("aegis128-random", "aead", 16, 32),
        ] {
            let specification = AeadSpecification::parse(encryption, integrity).expect("it is known");
            assert!(specification.key_sizes().contains(&key), "{specification}");
            assert_eq!(specification.tag_size(), tag, "{specification}");
        }
        for (encryption, integrity) in
            [("aes-xts-plain64", "aead"), ("aes-ctr-random", "aead"), ("chacha20-random", "aead"), ("", "poly1305")]
        {
            assert!(matches!(AeadSpecification::parse(encryption, integrity), Err(DmCryptError::Unsupported(_))));
        }
    }

    #[test]
    fn every_changed_bit_is_noticed_and_names_its_sector() {
        for (encryption, integrity) in [
            ("aes-xts-plain64", "hmac(sha256)"),
            ("serpent-cbc-essiv:sha256", "hmac(sha512)"),
            ("twofish-gcm-random", "aead"),
            ("aes-ccm-random", "aead"),
            ("chacha20-random", "poly1305"),
            ("aegis128-random", "aead"),
        ] {
            let specification = AeadSpecification::parse(encryption, integrity).expect("it is known");
            let key: Vec<u8> = (0..*specification.key_sizes().last().expect("a size") as u8).collect();
            let sectors = Sectors::default();
            let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("the key fits");
            let plain: Vec<u8> = (0..1536u32).map(|i| (i * 7) as u8).collect();
            let (mut run, mut tags) = (plain.clone(), vec![0x5a; 3 * cipher.tag_size()]);
            cipher.encrypt(40, &mut run, &mut tags);
            assert!(plain.chunks(16).zip(run.chunks(16)).all(|(p, c)| p != c), "{specification}");
            let mut out = run.clone();
            assert_eq!(cipher.decrypt(40, &mut out, &tags), Ok(()), "{specification}");
            assert_eq!(out, plain, "{specification}");
            for at in 0..tags.len() {
                let mut tags = tags.clone();
                tags[at] ^= 1;
                let sector = 40 + (at / cipher.tag_size()) as u64;
                assert_eq!(cipher.decrypt(40, &mut run.clone(), &tags), Err(super::super::WrongTag(sector)));
            }
            for at in (0..1536).step_by(41) {
                let mut run = run.clone();
                run[at] ^= 0x80;
                assert_eq!(cipher.decrypt(40, &mut run, &tags), Err(super::super::WrongTag(40 + at as u64 / 512)));
            }
            assert_eq!(
                cipher.decrypt(41, &mut run, &tags),
                Err(super::super::WrongTag(41)),
                "a sector of another place"
            );
        }
    }

    /// Checks that runs of every length around a batch equal their sectors processed alone, and that HMACs equal the crate's.
    #[test]
    fn sectors_are_the_same_together_and_alone() {
        use super::super::WrongTag;
        let mut random = claviger_testkit::random::Random::new(1);
        for (encryption, integrity) in [
            ("aes-xts-plain64", "hmac(sha256)"),
            ("aes-xts-random", "hmac(sha256)"),
            ("aes-cbc-essiv:sha256", "hmac(sha256)"),
            ("serpent-cbc-plain64", "hmac(sha512)"),
            ("aes-gcm-random", "aead"),
            ("aes-ccm-random", "aead"),
            ("chacha20-random", "poly1305"),
            ("aegis128-random", "aead"),
        ] {
            let specification = AeadSpecification::parse(encryption, integrity).expect("it is known");
            let key = random.bytes(*specification.key_sizes().last().expect("a size"));
            for size in [512, 4096] {
                let sectors = Sectors { size, ..Sectors::default() };
                let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("the key fits");
                let tag = cipher.tag_size();
                for count in [1, 2, 15, 16, 17, 31, 32, 33, 64, 71] {
                    let what = format!("{specification}, {count} sectors of {size} bytes");
                    let (plain, fresh) = (random.bytes(count * size), random.bytes(count * tag));
                    let (mut together, mut tags) = (plain.clone(), fresh.clone());
                    cipher.encrypt(1000, &mut together, &mut tags);
                    let (mut alone, mut alone_tags) = (plain.clone(), fresh);
                    for (i, (sector, tag)) in alone.chunks_mut(size).zip(alone_tags.chunks_mut(tag)).enumerate() {
                        cipher.encrypt(1000 + i as u64, sector, tag);
                    }
                    assert!(together == alone && tags == alone_tags, "{what}");
                    let wrong = count / 2 + count / 3;
                    tags[wrong * tag] ^= 1;
                    let found = cipher.decrypt(1000, &mut together.clone(), &tags);
                    assert_eq!(found, Err(WrongTag(1000 + wrong as u64)), "{what}");
                    assert_eq!(cipher.decrypt(1000, &mut together, &alone_tags), Ok(()), "{what}");
                    assert_eq!(together, plain, "{what}");
                }
            }
        }
    }

    #[test]
    fn hmacs_are_those_of_the_crate() {
        let (sectors, mut random) = (Sectors::default(), claviger_testkit::random::Random::new(2));
        for (integrity, hash) in [("hmac(sha256)", &hash::SHA256), ("hmac(sha512)", &hash::SHA512)] {
            let specification = AeadSpecification::parse("aes-xts-plain64", integrity).expect("it is known");
            let key = random.bytes(64 + hash.size);
            let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("the key fits");
            let (mut run, mut tags) = (random.bytes(40 * 512), vec![0; 40 * hash.size]);
            cipher.encrypt(7, &mut run, &mut tags);
            for (number, (sector, tag)) in (7u64..).zip(run.chunks(512).zip(tags.chunks(hash.size))) {
                let (mut mac, number) = (vec![0; hash.size], number.to_le_bytes());
                hash.hmac(&key[64..], &[&number, &number, &[0; 8], sector], &mut mac);
                assert_eq!(mac, tag, "sector {number:?}");
            }
        }
    }

    /// OpenSSL 3's results for three sectors, through AESCCM of Python's package cryptography: nonces are salt and IV, and the
    /// sector's number is associated data. For each sector: its first 8 bytes, its last 8, and the tag.
    #[test]
    fn ccm_is_that_of_openssl() {
        let specification = AeadSpecification::parse("aes-ccm-random", "aead").expect("it is known");
        let key: Vec<u8> = (1..=19).collect();
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("the key fits");
        let mut run: Vec<u8> = (0..1536u32).map(|i| (i * 7) as u8).collect();
        let mut tags = vec![0; 3 * 24];
        for (n, tag) in tags.chunks_mut(24).enumerate() {
            (0..8).for_each(|i| tag[16 + i] = (0x5a + n * 8 + i) as u8);
        }
        cipher.encrypt(40, &mut run, &mut tags);
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let made = run.chunks(512).zip(tags.chunks(24));
        let made: Vec<[String; 3]> =
            made.map(|(sector, tag)| [hex(&sector[..8]), hex(&sector[504..]), hex(&tag[..16])]).collect();
        let right = [
            ["675d125b0b6438ef", "aa2c3242631a9e39", "c41f25ac3465364a0b4ce337b0f939d1"],
            ["d243032c210e1916", "5b934270546f4dbc", "6dccce7cba7d29d29fc20330daae9262"],
            ["115440793abfdefd", "4280602956cafd08", "100f916b5aab39d57ef22816039e1063"],
        ];
        assert_eq!(made, right);
    }
}

//! The tags of dm-integrity without dm-crypt (Linux, drivers/md/dm-integrity.c, `integrity_sector_checksum`): a hash of the salt if
//! there is one, of the sector's number in units of 512 bytes as a little-endian number of 64 bits, and of its data. It is
//! truncated or padded with zeros to the tag's size.

use claviger_crypto::Secret;
use claviger_crypto::hash::{self, Hash};
use claviger_crypto::modes::AuthenticatedCipher;
use claviger_crypto::modes::aead::WrongTag;
use claviger_crypto::secret::wipe_after_sectors;

use crate::crc32c::crc32c;

/// The algorithm of a tag.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Crc32,
    Crc32c,
    Hash(&'static Hash),
    Hmac(&'static Hash),
}

impl Function {
    /// Returns the algorithm by its name in `integritysetup --integrity`.
    pub fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "crc32" => Some(Self::Crc32),
            "crc32c" => Some(Self::Crc32c),
            name => match name.strip_prefix("hmac-").or_else(|| name.strip_prefix("hmac(")?.strip_suffix(')')) {
                Some(inner) => hash::by_name(inner).map(Self::Hmac),
                None => hash::by_name(name).map(Self::Hash),
            },
        }
    }

    /// Returns the usual algorithms for tags of that size: the superblock does not record the algorithm.
    pub fn likely(tag: usize, with_key: bool) -> Vec<Self> {
        let hash = match tag {
            4 if !with_key => return vec![Self::Crc32c, Self::Crc32],
            20 => &hash::SHA1,
            32 => &hash::SHA256,
            64 => &hash::SHA512,
            _ => return Vec::new(),
        };
        vec![if with_key { Self::Hmac(hash) } else { Self::Hash(hash) }]
    }

    /// Whether it takes a key.
    pub fn has_key(self) -> bool {
        matches!(self, Self::Hmac(_))
    }

    /// Its name in `integritysetup`.
    pub fn name(self) -> String {
        match self {
            Self::Crc32 => "crc32".to_owned(),
            Self::Crc32c => "crc32c".to_owned(),
            Self::Hash(hash) => hash.name.replace('-', "").to_ascii_lowercase(),
            Self::Hmac(hash) => format!("hmac-{}", Self::Hash(hash).name()),
        }
    }

    /// The size of its result, in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Hash(hash) | Self::Hmac(hash) => hash.size,
        }
    }
}

/// Unencrypted sectors with tags.
pub(super) struct Tags {
    pub function: Function,
    pub key: Secret,
    pub salt: Option<[u8; 16]>,
    pub sector: usize,
    pub tag: usize,
}

/// Bytes of the longest hash.
const LONGEST: usize = 64;

impl Tags {
    fn tag(&self, number: u64, data: &[u8], tag: &mut [u8]) {
        let number = (number * (self.sector as u64 / 512)).to_le_bytes();
        let salt = self.salt.as_ref().map_or(&[][..], |salt| &salt[..]);
        let parts = [salt, &number, data];
        let mut sum = [0; LONGEST];
        let sum = &mut sum[..self.function.size()];
        match self.function {
            // Linux starts with zeros and inverts nothing (crypto/crc32_generic.c); the crate does both.
            Function::Crc32 => {
                let mut hasher = crc32fast::Hasher::new_with_initial(u32::MAX);
                parts.iter().for_each(|part| hasher.update(part));
                sum.copy_from_slice(&(!hasher.finalize()).to_le_bytes());
            }
            Function::Crc32c => {
                let crc = parts.iter().fold(u32::MAX, |crc, part| crc32c(crc, part));
                sum.copy_from_slice(&(!crc).to_le_bytes());
            }
            Function::Hash(hash) => hash.checksum(&parts, sum),
            Function::Hmac(hash) => hash.hmac(&self.key, &parts, sum),
        }
        let len = sum.len().min(tag.len());
        tag[..len].copy_from_slice(&sum[..len]);
        tag[len..].fill(0);
    }
}

impl AuthenticatedCipher for Tags {
    fn sector_size(&self) -> usize {
        self.sector
    }

    fn tag_size(&self) -> usize {
        self.tag
    }

    fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]) {
        let sectors = run.chunks(self.sector).zip(tags.chunks_mut(self.tag));
        (first..).zip(sectors).for_each(|(number, (data, tag))| self.tag(number, data, tag));
        self.wipe();
    }

    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> Result<(), WrongTag> {
        let mut right = vec![0; self.tag];
        let sectors = run.chunks(self.sector).zip(tags.chunks(self.tag));
        let wrong = (first..).zip(sectors).find(|(number, (data, tag))| {
            self.tag(*number, data, &mut right);
            // Compares in constant time: with a key, anyone who could measure how much of a tag matches could find it byte by byte.
            right.iter().zip(*tag).fold(0, |differ, (one, other)| differ | (one ^ other)) != 0
        });
        self.wipe();
        wrong.map_or(Ok(()), |(number, _)| Err(WrongTag(number)))
    }
}

impl Tags {
    fn wipe(&self) {
        if self.function.has_key() {
            wipe_after_sectors();
        }
    }
}

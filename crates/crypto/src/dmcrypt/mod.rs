//! The cipher specifications of dm-crypt: `cipher[:keycount]-mode-iv[:ivopts]` and `capi:` (Linux,
//! Documentation/admin-guide/device-mapper/dm-crypt.rst, and drivers/md/dm-crypt.c of 6.1, to which names of functions
//! here refer).
//!
//! | part | what there is |
//! | --- | --- |
//! | cipher | aes, serpent, twofish, camellia, cast5, cast6, blowfish, des3_ede; xchacha12,aes and xchacha20,aes |
//! | mode | xts, cbc, lrw, ecb, ctr; adiantum |
//! | iv | null, plain, plain64, plain64be, benbi, essiv:HASH, eboiv, elephant; lmk and tcw for CBC |
//!
//! These run in constant time, without tables indexed by secrets: aes, serpent, des3_ede, adiantum, and on processors with vectors
//! for them twofish (AVX-512 VBMI) and camellia (AVX2 with AES instructions or GFNI). The other ciphers use such tables; the modes
//! and IVs do not.
//!
//! `aes` alone is `aes-cbc-plain`. Modes that authenticate sectors (`aes-gcm-random`, `capi:authenc(…)`) need room for
//! tags beside the sectors and are refused here: [`crate::modes::aead`] has them.

mod elephant;
mod grammar;
mod iv;
mod lmk;
mod sectors;

use std::fmt;
use std::sync::Arc;

use crate::Secret;
use crate::ciphers::{Acceleration, Cipher};
use crate::hash::Hash;
use crate::modes::adiantum::{self, Adiantum, Rounds};
use crate::modes::xts::Layer;
use crate::modes::{Cbc, Ctr, Ecb, IvMode, Lrw, SectorCipher, TrueCryptCbc, Xts};
use crate::secret::wipe_stack;
use iv::{Generator, Iv, Numbers};
use lmk::Lmk;
use sectors::{Keyed, Tcw};

/// A parsed cipher specification.
#[derive(Clone)]
pub struct Specification {
    mode: Mode,
    /// For adiantum this is its block cipher, AES.
    cipher: &'static Cipher,
    /// Keys that sectors use in turn: a power of two.
    key_count: usize,
    /// IVs are encrypted under a hash of the key. The name is as given.
    essiv: Option<(&'static Hash, String)>,
    iv: Iv,
    /// The canonical text.
    text: String,
}

/// How a run is divided into sectors and these are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sectors {
    /// Size of an encryption sector in bytes: 512, 1024, 2048 or 4096.
    pub size: usize,
    /// dm-crypt's `iv_large_sectors`: IVs count encryption sectors, not units of 512 bytes.
    pub large_iv: bool,
    /// dm-crypt's `iv_offset`, in units of 512 bytes: the number of the volume's first sector.
    pub iv_offset: u64,
}

/// Why there is no cipher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmCryptError {
    /// Not a specification, and why.
    Syntax(String),
    /// A specification that the kernel may support but this program does not, and why.
    Unsupported(String),
    /// A key of this many bytes does not fit; these sizes do.
    KeySize(usize, Vec<usize>),
}

/// How a sector is encrypted, apart from the cipher and the source of IVs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Xts,
    Cbc,
    Lrw,
    Ecb,
    Ctr,
    Adiantum(Rounds),
}

impl Default for Sectors {
    fn default() -> Self {
        Self { size: 512, large_iv: false, iv_offset: 0 }
    }
}

impl Specification {
    /// Parses a specification, in upper or lower case.
    ///
    /// # Errors
    /// `Syntax`, `Unsupported`.
    pub fn parse(text: &str) -> Result<Self, DmCryptError> {
        grammar::parse(text)
    }

    /// The sizes of whole keys that fit, in bytes, ascending.
    pub fn key_sizes(&self) -> Vec<usize> {
        let extra = self.extra_key();
        let own = self.mode.key_sizes(self.cipher);
        let mut all: Vec<usize> = match self.iv {
            Iv::Elephant => {
                // The second half is an AES key for the sector keys.
                let halves = own.map(|size| size * self.key_count);
                halves.filter(|half| matches!(half, 16 | 24 | 32)).map(|half| 2 * half).collect()
            }
            Iv::Lmk => {
                let seeded = self.mode.key_sizes(self.cipher).map(|size| size * (self.key_count + 1));
                // A size that all keys can share evenly has no seed (`crypt_ctr_ivmode`).
                let seeded = seeded.filter(|size| size % self.key_count != 0);
                own.map(|size| size * self.key_count).chain(seeded).collect()
            }
            _ => own.map(|size| size * self.key_count + extra).collect(),
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the mode is XTS, whose key is two keys of the cipher.
    pub fn is_xts(&self) -> bool {
        self.mode == Mode::Xts
    }

    /// Whether each block of a sector is encrypted by itself, so that a part of a sector can be computed without the rest.
    pub fn blocks_stand_alone(&self) -> bool {
        matches!(self.mode, Mode::Xts | Mode::Lrw | Mode::Ecb | Mode::Ctr) && self.iv != Iv::Elephant
    }

    /// The cipher under `key`. Its sectors count from 0 at the beginning of the volume.
    ///
    /// # Errors
    /// `KeySize`; `Unsupported` for sector sizes the mode does not support, and for modes that store tags beside the
    /// sectors.
    pub fn with_key(
        &self,
        key: &[u8],
        sectors: Sectors,
        with: Acceleration,
    ) -> Result<Arc<dyn SectorCipher>, DmCryptError> {
        if self.iv == Iv::Random {
            return Err(
                self.unsupported("random initialisation vectors are stored beside the sectors, and there is no room")
            );
        }
        let small_only = matches!(self.iv, Iv::Lmk | Iv::Tcw);
        if !matches!(sectors.size, 512 | 1024 | 2048 | 4096) || small_only && sectors.size != 512 {
            return Err(self.unsupported(&format!("sectors of {} bytes are not possible", sectors.size)));
        }
        if !self.key_sizes().contains(&key.len()) {
            return Err(DmCryptError::KeySize(key.len(), self.key_sizes()));
        }
        let cipher = self.keyed(key, Numbers::new(sectors), with);
        wipe_stack();
        Ok(cipher)
    }

    /// The cipher under a key and with sectors that fit.
    fn keyed(&self, key: &[u8], numbers: Numbers, with: Acceleration) -> Arc<dyn SectorCipher> {
        let Self { mode, cipher, .. } = *self;
        let sector = numbers.sectors.size;
        let (keys, extra) = self.split_key(key);
        match self.iv {
            Iv::Tcw => {
                let mut area = Secret::zeroed(32);
                area[..extra.len()].copy_from_slice(extra);
                let area = area.first_chunk().expect("32 bytes");
                let cbc = TrueCryptCbc::outer(vec![cipher.with_key(keys, with)], area, sector);
                Arc::new(Tcw::new(cbc, numbers))
            }
            Iv::Lmk => {
                let each = keys.len() / self.key_count;
                let ciphers = keys.chunks(each).map(|key| cipher.with_key(key, with)).collect();
                Arc::new(Lmk::new(ciphers, extra.first_chunk(), numbers))
            }
            _ => {
                let generator = Generator::new(self.iv, mode.iv_block(cipher), iv_size(cipher));
                let each = keys.len() / self.key_count;
                let keys = keys.chunks(each).map(|key| self.one_key(key, sector, with)).collect();
                let keyed = Keyed::new(keys, generator, numbers);
                match self.iv {
                    Iv::Elephant => Arc::new(elephant::Elephant::new(keyed, extra, numbers, with)),
                    _ => Arc::new(keyed),
                }
            }
        }
    }

    /// The cipher's keys, and the rest of the key: lmk's seed, tcw's, elephant's key.
    fn split_key<'a>(&self, key: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let extra = match self.iv {
            Iv::Elephant => key.len() / 2,
            Iv::Lmk if !key.len().is_multiple_of(self.key_count) => key.len() / (self.key_count + 1),
            _ => self.extra_key(),
        };
        key.split_at(key.len() - extra)
    }

    /// Bytes of the key that are not the cipher's, if their number is fixed.
    fn extra_key(&self) -> usize {
        match self.iv {
            Iv::Tcw => iv_size(self.cipher) + 16,
            _ => 0,
        }
    }

    /// One of the keys in its mode, and the cipher that encrypts its IVs.
    fn one_key(&self, key: &[u8], sector: usize, with: Acceleration) -> sectors::Key {
        let Self { mode, cipher, .. } = *self;
        let salt = self.essiv.as_ref().map(|(hash, _)| {
            let mut salt = Secret::zeroed(hash.size);
            hash.digest(&[key], &mut salt);
            cipher.with_key(&salt, with)
        });
        sectors::Key { mode: mode.with_key(cipher, key, sector, self.iv.at_end(), with), salt }
    }

    fn unsupported(&self, why: &str) -> DmCryptError {
        DmCryptError::Unsupported(format!("{self}: {why}"))
    }
}

impl Mode {
    /// Key sizes in bytes.
    fn key_sizes(self, cipher: &'static Cipher) -> impl Iterator<Item = usize> {
        let own = match self {
            Self::Adiantum(_) => &[adiantum::KEY],
            _ => cipher.key_sizes,
        };
        own.iter().map(move |size| match self {
            Self::Xts => 2 * size,
            Self::Lrw => size + cipher.block_size,
            _ => *size,
        })
    }

    /// The mode's block size in the kernel's sense, in bytes, which `benbi` counts.
    fn iv_block(self, cipher: &Cipher) -> usize {
        match self {
            Self::Ctr => 1,
            _ => cipher.block_size,
        }
    }

    fn with_key(
        self,
        cipher: &Cipher,
        key: &[u8],
        sector: usize,
        iv_at_end: bool,
        with: Acceleration,
    ) -> Box<dyn IvMode> {
        match self {
            Self::Xts => {
                let (data, tweak) = key.split_at(key.len() / 2);
                let layer = Layer { data: cipher.with_key(data, with), tweak: cipher.with_key(tweak, with) };
                Box::new(Xts::new(vec![layer], sector))
            }
            Self::Lrw => {
                let (data, tweak) = key.split_at(key.len() - cipher.block_size);
                Box::new(Lrw::new(vec![cipher.with_key(data, with)], tweak, sector))
            }
            Self::Cbc => Box::new(Cbc(cipher.with_key(key, with))),
            Self::Ecb => Box::new(Ecb(cipher.with_key(key, with))),
            Self::Ctr => Box::new(Ctr(cipher.with_key(key, with))),
            Self::Adiantum(rounds) => Box::new(Adiantum::new(rounds, key, iv_at_end, with)),
        }
    }
}

/// Size of an IV in bytes.
fn iv_size(cipher: &Cipher) -> usize {
    cipher.block_size
}

impl fmt::Display for Specification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Specification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for DmCryptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(why) => write!(f, "not a cipher specification: {why}"),
            Self::Unsupported(what) => write!(f, "the cipher specification {what}"),
            Self::KeySize(len, fit) => write!(f, "a key of {len} bytes does not fit; these sizes do: {fit:?}"),
        }
    }
}

impl std::error::Error for DmCryptError {}

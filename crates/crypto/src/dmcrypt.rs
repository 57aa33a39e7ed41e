//! The cipher specifications of dm-crypt: `cipher[:keycount]-mode-iv[:ivopts]` (Linux,
//! Documentation/admin-guide/device-mapper/dm-crypt.rst, and drivers/md/dm-crypt.c).

use std::fmt;
use std::sync::Arc;

use crate::ciphers::{self, Acceleration, Cipher};
use crate::modes::SectorCipher;
use crate::modes::xts::{Layer, Xts};

/// A cipher specification that has been understood.
#[derive(Clone)]
pub struct Specification {
    cipher: &'static Cipher,
    text: String,
}

/// How a run of sectors is numbered and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sectors {
    /// Size of an encryption sector in bytes: 512, 1024, 2048 or 4096.
    pub size: usize,
    /// dm-crypt's `iv_large_sectors`: initialisation vectors count encryption sectors, not units of 512 bytes.
    pub large_iv: bool,
    /// dm-crypt's `iv_offset`, in units of 512 bytes: the number of the volume's first sector.
    pub iv_offset: u64,
}

/// Why there is no such cipher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No specification, and why.
    Syntax(String),
    /// One that the kernel may know, but not this program, and what of it.
    Unsupported(String),
    /// A key of this many bytes does not fit; these sizes do.
    KeySize(usize, Vec<usize>),
}

impl Default for Sectors {
    fn default() -> Self {
        Self { size: 512, large_iv: false, iv_offset: 0 }
    }
}

impl Specification {
    /// Reads a specification.
    ///
    /// # Errors
    /// `Syntax`, `Unsupported`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let name = text.strip_suffix("-xts-plain64").ok_or_else(|| Error::Unsupported(text.to_owned()))?;
        let cipher = ciphers::CIPHERS.iter().find(|c| c.name.eq_ignore_ascii_case(name) && c.block_size == 16);
        let cipher = cipher.ok_or_else(|| Error::Unsupported(text.to_owned()))?;
        Ok(Self { cipher, text: text.to_owned() })
    }

    /// The sizes of whole keys that fit, in bytes.
    pub fn key_sizes(&self) -> Vec<usize> {
        self.cipher.key_sizes.iter().map(|size| 2 * size).collect()
    }

    /// The cipher under `key`. Its sectors count from 0 on, at the beginning of the volume.
    ///
    /// # Errors
    /// `KeySize`; `Unsupported` for sectors that the mode does not have.
    pub fn with_key(&self, key: &[u8], sectors: Sectors, with: Acceleration) -> Result<Arc<dyn SectorCipher>, Error> {
        if !self.key_sizes().contains(&key.len()) {
            return Err(Error::KeySize(key.len(), self.key_sizes()));
        }
        let (data, tweak) = key.split_at(key.len() / 2);
        let layer = Layer { data: self.cipher.with_key(data, with), tweak: self.cipher.with_key(tweak, with) };
        let step = if sectors.large_iv { 1 } else { sectors.size as u64 / 512 };
        let offset = if sectors.large_iv { sectors.iv_offset / (sectors.size as u64 / 512) } else { sectors.iv_offset };
        Ok(Arc::new(Numbered { xts: Xts::new(vec![layer], sectors.size), step, offset }))
    }
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(why) => write!(f, "no cipher specification: {why}"),
            Self::Unsupported(what) => write!(f, "the cipher specification {what}"),
            Self::KeySize(len, fit) => write!(f, "a key of {len} bytes does not fit; these sizes do: {fit:?}"),
        }
    }
}

impl std::error::Error for Error {}

/// XTS whose tweaks begin anywhere and count in steps.
struct Numbered {
    xts: Xts,
    step: u64,
    offset: u64,
}

impl Numbered {
    fn each(&self, first: u64, run: &mut [u8], with: impl Fn(&Xts, u64, &mut [u8])) {
        let number = |sector: u64| sector.wrapping_mul(self.step).wrapping_add(self.offset);
        if self.step == 1 {
            return with(&self.xts, number(first), run);
        }
        for (sector, bytes) in (first..).zip(run.chunks_mut(self.sector_size())) {
            with(&self.xts, number(sector), bytes);
        }
    }
}

impl SectorCipher for Numbered {
    fn sector_size(&self) -> usize {
        self.xts.sector_size()
    }

    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.each(first, run, Xts::encrypt);
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.each(first, run, Xts::decrypt);
    }
}

//! Shared code of the authenticated modes: numbers, IVs and tags of sectors, and the ways to process several.

use crate::ciphers::BlockCipher;

/// The longest authentication tag, HMAC-SHA-512's.
pub(super) const MAX_TAG: usize = 64;
/// The longest IV.
pub(super) const MAX_IV: usize = 16;
/// Bytes of the sector number before the IV.
pub(crate) const NUMBER: usize = 8;
/// Bytes of both.
pub(crate) const BESIDE: usize = NUMBER + MAX_IV;

/// Sectors that are processed together: two of the widest vectors for a MAC, and enough for a cipher.
pub(super) const BATCH: usize = 32;

/// How sectors are numbered and where their IVs come from.
pub(super) struct Numbering {
    /// A sector's size in units of 512 bytes; the authenticated number counts these.
    pub units: u64,
    /// Whether IVs count sectors instead of units: dm-crypt's `iv_large_sectors`.
    pub large: bool,
    /// The first unit's number in the IVs of `plain64` and `essiv`: dm-crypt's `iv_offset`.
    pub offset: u64,
    pub vector: Vector,
}

/// The source of IVs.
pub(super) enum Vector {
    /// The number, little-endian, zero-padded.
    Plain64,
    /// The same, encrypted with this cipher.
    Essiv(Box<dyn BlockCipher>),
    /// Random bytes after the authentication tag.
    Random,
}

/// The data authenticated besides a sector: its number, then its IV, which may not fill the array.
pub(crate) type Beside = [u8; BESIDE];

/// A tag, which may not fill the array.
pub(super) type Tag = [u8; MAX_TAG];

/// Processes sectors of `size` bytes in one mode. Each sector has an element of `beside` and of `macs`.
pub(super) trait Sealer: Send + Sync {
    /// Size of an IV in bytes, at most 16.
    fn iv_size(&self) -> usize;
    /// Size of an authentication tag in bytes, at most 64.
    fn mac_size(&self) -> usize;
    /// Encrypts the sectors and writes their tags.
    fn seal_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &mut [Tag]);
    /// Decrypts the sectors if their tags are `macs`. Otherwise returns the index of the first sector with another tag, and the
    /// contents of all sectors are meaningless.
    fn open_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &[Tag]) -> Result<(), usize>;
}

/// Seals and opens messages of any length in one mode.
pub trait MessageCipher: Send + Sync {
    /// Size of a nonce in bytes.
    fn nonce_size(&self) -> usize;

    /// Size of an authentication tag in bytes.
    fn tag_size(&self) -> usize;

    /// Encrypts `message` in place and writes its tag. `beside` is authenticated, too. Unless the mode says otherwise, a nonce must
    /// never be used twice under one key.
    ///
    /// # Panics
    /// If the nonce or the tag has another size.
    fn seal(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]);

    /// Decrypts `message` in place if its tag is right. If this returns false, the contents of `message` are meaningless.
    ///
    /// # Panics
    /// If the nonce has another size.
    fn open(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool;
}

/// Sectors of `size` bytes with the number and IV of each.
pub(crate) struct Sectors<'a> {
    pub beside: &'a [Beside],
    pub size: usize,
    pub run: &'a mut [u8],
}

/// Bytes of the tags of all modes except HMAC.
pub(super) const TAG: usize = 16;

/// Processes sectors side by side in one mode.
pub(super) trait Abreast: Send + Sync {
    /// As [`Sealer::iv_size`].
    const IV: usize;
    /// Encrypts or decrypts the sectors and gives the tag of each.
    fn process<const DECRYPT: bool>(&self, sectors: Sectors<'_>, tags: &mut [[u8; TAG]]);
}

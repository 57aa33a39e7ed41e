//! The authenticated modes themselves.

use chacha20::ChaCha20;
use cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use digest::{FixedOutput, KeyInit, OutputSizeUser, Update};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use hmac::{EagerHash, Hmac};
use poly1305::Poly1305;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::{AuthenticatedCipher, WrongTag, aegis};
use crate::ciphers::BlockCipher;
use crate::modes::xts::Layer;
use crate::secret::{LockedBox, Resident, wipe_stack};

/// The longest authentication tag, HMAC-SHA-512's.
const MAX_TAG: usize = 64;
/// The longest IV.
const MAX_IV: usize = 16;
/// Bytes of the sector number before the IV.
const NUMBER: usize = 8;

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

/// Where IVs come from.
pub(super) enum Vector {
    /// The number, little-endian, zero-padded.
    Plain64,
    /// The same, encrypted with this cipher.
    Essiv(Box<dyn BlockCipher>),
    /// Random bytes after the authentication tag.
    Random,
}

/// How one mode processes one sector.
pub(crate) trait Sealer: Send + Sync {
    /// Size of an IV in bytes, at most 16.
    fn iv_size(&self) -> usize;
    /// Size of an authentication tag in bytes, at most 64.
    fn mac_size(&self) -> usize;
    /// Encrypts `sector` and writes its tag to `mac`. `aad` is the number followed by the IV.
    fn seal(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &mut [u8]);
    /// Decrypts `sector` if its tag is `mac`. Otherwise the contents of `sector` are meaningless.
    fn open(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &[u8]) -> bool;
}

/// A mode over a run of sectors.
pub(super) struct Sealed<S> {
    pub sealer: S,
    pub numbering: Numbering,
    pub sector_size: usize,
}

impl<S: Sealer> Sealed<S> {
    /// Panics unless `run` is whole sectors and there is a tag for each.
    #[track_caller]
    fn assert_tags(&self, run: &[u8], tags: &[u8]) {
        let (sector, tag) = (self.sector_size, self.tag_size());
        let fits = run.len().is_multiple_of(sector) && run.len() / sector * tag == tags.len();
        assert!(fits, "{} bytes of sectors and {} of tags do not fit each other", run.len(), tags.len());
    }

    /// The sector's number followed by its IV: what is authenticated besides the sector.
    fn aad(&self, sector: u64, stored_iv: &[u8]) -> [u8; NUMBER + MAX_IV] {
        let Numbering { units, large, offset, vector } = &self.numbering;
        let number = sector.wrapping_mul(*units);
        let mut aad = [0; NUMBER + MAX_IV];
        aad[..NUMBER].copy_from_slice(&number.to_le_bytes());
        let iv = &mut aad[NUMBER..];
        let counted = number.wrapping_add(*offset) / if *large { *units } else { 1 };
        let counted = counted.to_le_bytes();
        match vector {
            Vector::Plain64 => iv[..8].copy_from_slice(&counted),
            Vector::Essiv(cipher) => {
                iv[..8].copy_from_slice(&counted);
                cipher.encrypt_blocks(iv);
            }
            Vector::Random => iv[..stored_iv.len()].copy_from_slice(stored_iv),
        }
        aad
    }
}

impl<S: Sealer> AuthenticatedCipher for Sealed<S> {
    fn sector_size(&self) -> usize {
        self.sector_size
    }

    fn tag_size(&self) -> usize {
        let random = matches!(self.numbering.vector, Vector::Random);
        self.sealer.mac_size() + if random { self.sealer.iv_size() } else { 0 }
    }

    fn encrypt(&self, first: u64, run: &mut [u8], tags: &mut [u8]) {
        self.assert_tags(run, tags);
        let sectors = run.chunks_mut(self.sector_size).zip(tags.chunks_mut(self.tag_size()));
        for (i, (sector, tag)) in sectors.enumerate() {
            let (mac, stored_iv) = tag.split_at_mut(self.sealer.mac_size());
            let aad = self.aad(first.wrapping_add(i as u64), stored_iv);
            let aad = &aad[..NUMBER + self.sealer.iv_size()];
            self.sealer.seal(&aad[NUMBER..], aad, sector, mac);
        }
        // States of MACs and streams are as good as keys.
        wipe_stack();
    }

    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> Result<(), WrongTag> {
        self.assert_tags(run, tags);
        let mut sectors = run.chunks_mut(self.sector_size).zip(tags.chunks(self.tag_size())).enumerate();
        let opened = sectors.try_for_each(|(i, (sector, tag))| {
            let number = first.wrapping_add(i as u64);
            let (mac, stored_iv) = tag.split_at(self.sealer.mac_size());
            let aad = self.aad(number, stored_iv);
            let aad = &aad[..NUMBER + self.sealer.iv_size()];
            match self.sealer.open(&aad[NUMBER..], aad, sector, mac) {
                true => Ok(()),
                false => Err(WrongTag(number)),
            }
        });
        wipe_stack();
        opened
    }
}

/// Encrypt-then-MAC with HMAC (Linux, crypto/authenc.c).
pub(super) struct EncryptThenMac<D: EagerHash> {
    pub encryption: Encryption,
    pub mac: Resident<Hmac<D>>,
}

/// A cipher with a 16-byte IV for each sector.
pub(super) enum Encryption {
    Xts(Layer),
    Cbc(Box<dyn BlockCipher>),
}

impl Encryption {
    fn encrypt(&self, iv: &[u8], sector: &mut [u8]) {
        match self {
            Self::Xts(layer) => layer.data.xts_encrypt(&tweak(layer, iv), sector.len(), sector),
            Self::Cbc(cipher) => {
                let mut chain = block(iv);
                for bytes in sector.chunks_exact_mut(16) {
                    bytes.iter_mut().zip(chain).for_each(|(b, c)| *b ^= c);
                    cipher.encrypt_blocks(bytes);
                    chain = block(bytes);
                }
            }
        }
    }

    fn decrypt(&self, iv: &[u8], sector: &mut [u8]) {
        match self {
            Self::Xts(layer) => layer.data.xts_decrypt(&tweak(layer, iv), sector.len(), sector),
            Self::Cbc(cipher) => {
                let mut chain = block(iv);
                for group in sector.chunks_mut(512) {
                    let mut masks = [0; 512];
                    masks[..16].copy_from_slice(&chain);
                    masks[16..group.len()].copy_from_slice(&group[..group.len() - 16]);
                    chain = block(&group[group.len() - 16..]);
                    cipher.decrypt_blocks(group);
                    group.iter_mut().zip(masks).for_each(|(b, m)| *b ^= m);
                }
            }
        }
    }
}

fn tweak(layer: &Layer, iv: &[u8]) -> [[u8; 16]; 1] {
    let mut tweak = [block(iv)];
    layer.tweak.encrypt_blocks(&mut tweak[0]);
    tweak
}

fn block(bytes: &[u8]) -> [u8; 16] {
    bytes.try_into().expect("a block of 16 bytes")
}

impl<D: EagerHash> EncryptThenMac<D> {
    fn mac(&self, aad: &[u8], sector: &[u8], out: &mut [u8]) {
        let mut mac = (*self.mac).clone();
        mac.update(aad);
        mac.update(sector);
        out.copy_from_slice(&mac.finalize_fixed()[..out.len()]);
    }
}

impl<D: EagerHash + Send + Sync> Sealer for EncryptThenMac<D>
where
    Hmac<D>: Send + Sync,
{
    fn iv_size(&self) -> usize {
        16
    }

    fn mac_size(&self) -> usize {
        <Hmac<D> as OutputSizeUser>::output_size()
    }

    fn seal(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &mut [u8]) {
        self.encryption.encrypt(iv, sector);
        self.mac(aad, sector, mac);
    }

    fn open(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &[u8]) -> bool {
        let mut right = [0; MAX_TAG];
        let right = &mut right[..mac.len()];
        self.mac(aad, sector, right);
        let same = bool::from(right.ct_eq(mac));
        if same {
            self.encryption.decrypt(iv, sector);
        }
        same
    }
}

/// GCM (NIST SP 800-38D) with IVs of 12 bytes.
pub(crate) struct Gcm {
    cipher: Box<dyn BlockCipher>,
    hash: Resident<GHash>,
}

impl Gcm {
    /// From a cipher with blocks of 16 bytes.
    pub fn new(cipher: Box<dyn BlockCipher>) -> Self {
        let hash = Resident::build(|| {
            let mut h = ghash::Key::default();
            cipher.encrypt_blocks(&mut h);
            let hash = GHash::new(&h);
            h.as_mut_slice().zeroize();
            hash
        });
        Self { cipher, hash }
    }

    /// Encrypts or decrypts, which is the same.
    fn xor(&self, iv: &[u8], sector: &mut [u8]) {
        let mut stream = [0; 512];
        for (i, part) in sector.chunks_mut(stream.len()).enumerate() {
            for (j, counter) in stream.chunks_exact_mut(16).enumerate() {
                // Counter 1 is the tag's.
                let number = (i * 32 + j) as u32 + 2;
                counter[..12].copy_from_slice(iv);
                counter[12..].copy_from_slice(&number.to_be_bytes());
            }
            self.cipher.encrypt_blocks(&mut stream);
            part.iter_mut().zip(stream).for_each(|(b, s)| *b ^= s);
        }
        stream.zeroize();
    }

    fn tag(&self, iv: &[u8], aad: &[u8], sector: &[u8]) -> [u8; 16] {
        let mut hash = (*self.hash).clone();
        hash.update_padded(aad);
        hash.update_padded(sector);
        let mut lengths = ghash::Block::default();
        lengths[..8].copy_from_slice(&(aad.len() as u64 * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&(sector.len() as u64 * 8).to_be_bytes());
        hash.update(&[lengths]);
        let mut tag = [0; 16];
        tag[..12].copy_from_slice(iv);
        tag[12..].copy_from_slice(&1u32.to_be_bytes());
        self.cipher.encrypt_blocks(&mut tag);
        tag.iter_mut().zip(hash.finalize()).for_each(|(t, h)| *t ^= h);
        tag
    }
}

impl Sealer for Gcm {
    fn iv_size(&self) -> usize {
        12
    }

    fn mac_size(&self) -> usize {
        16
    }

    fn seal(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &mut [u8]) {
        self.xor(iv, sector);
        mac.copy_from_slice(&self.tag(iv, aad, sector));
    }

    fn open(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &[u8]) -> bool {
        let same = bool::from(self.tag(iv, aad, sector).ct_eq(mac));
        if same {
            self.xor(iv, sector);
        }
        same
    }
}

/// ChaCha20-Poly1305 (RFC 8439), which Linux calls `rfc7539(chacha20,poly1305)`.
pub(super) struct ChaChaPoly {
    pub key: LockedBox<[u8; 32]>,
}

impl ChaChaPoly {
    /// The key stream, at its second block, and Poly1305 with the key that the stream begins with.
    fn streams(&self, iv: &[u8]) -> (ChaCha20, Poly1305) {
        let mut stream = ChaCha20::new_from_slices(&*self.key, iv).expect("a key of 32 and a vector of 12 bytes");
        let mut key = poly1305::Key::default();
        stream.apply_keystream(&mut key);
        let poly = Poly1305::new(&key);
        key.as_mut_slice().zeroize();
        stream.seek(64u32);
        (stream, poly)
    }

    fn tag(mut poly: Poly1305, aad: &[u8], sector: &[u8]) -> [u8; 16] {
        poly.update_padded(aad);
        poly.update_padded(sector);
        let mut lengths = poly1305::Block::default();
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(sector.len() as u64).to_le_bytes());
        poly.update(&[lengths]);
        poly.finalize().into()
    }
}

impl Sealer for ChaChaPoly {
    fn iv_size(&self) -> usize {
        12
    }

    fn mac_size(&self) -> usize {
        16
    }

    fn seal(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &mut [u8]) {
        let (mut stream, poly) = self.streams(iv);
        stream.apply_keystream(sector);
        mac.copy_from_slice(&Self::tag(poly, aad, sector));
    }

    fn open(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &[u8]) -> bool {
        let (mut stream, poly) = self.streams(iv);
        let same = bool::from(Self::tag(poly, aad, sector).ct_eq(mac));
        if same {
            stream.apply_keystream(sector);
        }
        same
    }
}

/// AEGIS-128.
pub(super) struct Aegis {
    pub key: LockedBox<[u8; aegis::SIZE]>,
}

impl Sealer for Aegis {
    fn iv_size(&self) -> usize {
        aegis::SIZE
    }

    fn mac_size(&self) -> usize {
        aegis::SIZE
    }

    fn seal(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &mut [u8]) {
        mac.copy_from_slice(&aegis::encrypt(&self.key, &block(iv), aad, sector));
    }

    fn open(&self, iv: &[u8], aad: &[u8], sector: &mut [u8], mac: &[u8]) -> bool {
        let same = bool::from(aegis::decrypt(&self.key, &block(iv), aad, sector).ct_eq(mac));
        if !same {
            // Data that an attacker has changed is never shown decrypted.
            sector.fill(0);
        }
        same
    }
}

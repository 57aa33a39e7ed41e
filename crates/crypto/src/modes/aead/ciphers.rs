//! The authenticated modes themselves.

use ::poly1305::{Block, Key, Poly1305};
use chacha20::ChaCha20;
use cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use digest::KeyInit;
#[cfg(not(target_arch = "x86_64"))]
use digest::{FixedOutput, OutputSizeUser, Update};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
#[cfg(not(target_arch = "x86_64"))]
use hmac::{EagerHash, Hmac};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::sealer::{
    Abreast, BATCH, BESIDE, Beside, MAX_IV, MAX_TAG, MessageCipher, NUMBER, Numbering, Sealer, Sectors, TAG, Tag,
    Vector,
};
use super::{AuthenticatedCipher, WrongTag, aegis};
#[cfg(target_arch = "x86_64")]
use super::{chacha, poly1305};
use crate::ciphers::BlockCipher;
#[cfg(target_arch = "x86_64")]
use crate::ciphers::aes::gcm::{self, AesGcm};
#[cfg(target_arch = "x86_64")]
use crate::hash::messages::{self, Messages, Sha2};
use crate::modes::xts::Layer;
use crate::secret::{LockedBox, Resident, wipe_stack};

/// A mode that processes sectors side by side, as a [`Sealer`].
pub(super) struct Together<A>(pub A);

impl<A: Abreast> Sealer for Together<A> {
    fn iv_size(&self) -> usize {
        A::IV
    }

    fn mac_size(&self) -> usize {
        TAG
    }

    fn seal_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &mut [Tag]) {
        let mut tags = [[0; TAG]; BATCH];
        self.0.process::<false>(Sectors { beside, size, run }, &mut tags[..beside.len()]);
        macs.iter_mut().zip(tags).for_each(|(mac, tag)| mac[..TAG].copy_from_slice(&tag));
    }

    fn open_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &[Tag]) -> Result<(), usize> {
        let mut tags = [[0; TAG]; BATCH];
        self.0.process::<true>(Sectors { beside, size, run }, &mut tags[..beside.len()]);
        let opened = all_right(macs, &tags, TAG);
        if opened.is_err() {
            // Data that an attacker has changed is never shown decrypted.
            run.fill(0);
        }
        opened
    }
}

impl<S: MessageCipher> Sealer for S {
    fn iv_size(&self) -> usize {
        self.nonce_size()
    }

    fn mac_size(&self) -> usize {
        self.tag_size()
    }

    fn seal_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &mut [Tag]) {
        let (iv, mac_size) = (NUMBER + self.nonce_size(), self.tag_size());
        for ((sector, aad), mac) in run.chunks_mut(size).zip(beside).zip(macs) {
            self.seal(&aad[NUMBER..iv], &aad[..iv], sector, &mut mac[..mac_size]);
        }
    }

    fn open_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &[Tag]) -> Result<(), usize> {
        let (iv, mac_size) = (NUMBER + self.nonce_size(), self.tag_size());
        let mut sectors = run.chunks_mut(size).zip(beside).zip(macs).enumerate();
        sectors.try_for_each(|(i, ((sector, aad), mac))| {
            self.open(&aad[NUMBER..iv], &aad[..iv], sector, &mac[..mac_size]).then_some(()).ok_or(i)
        })
    }
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

    /// The data authenticated besides the sectors of a batch, the sectors' tags, and their number.
    fn batch(&self, first: u64, tags: &[u8]) -> ([Beside; BATCH], [Tag; BATCH], usize) {
        let (mut beside, mut macs) = ([[0; BESIDE]; BATCH], [[0; MAX_TAG]; BATCH]);
        let tags = tags.chunks(self.tag_size());
        let count = tags.len();
        for (i, ((beside, mac), tag)) in beside.iter_mut().zip(&mut macs).zip(tags).enumerate() {
            let (stored, iv) = tag.split_at(self.sealer.mac_size());
            mac[..stored.len()].copy_from_slice(stored);
            *beside = self.beside(first.wrapping_add(i as u64), iv);
        }
        (beside, macs, count)
    }

    fn beside(&self, sector: u64, stored_iv: &[u8]) -> Beside {
        let Numbering { units, large, offset, vector } = &self.numbering;
        let number = sector.wrapping_mul(*units);
        let mut aad = [0; BESIDE];
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
        let (size, mac_size) = (self.sector_size, self.sealer.mac_size());
        let batches = run.chunks_mut(BATCH * size).zip(tags.chunks_mut(BATCH * self.tag_size()));
        for (batch, (run, tags)) in batches.enumerate() {
            let (beside, mut macs, count) = self.batch(first.wrapping_add((batch * BATCH) as u64), tags);
            self.sealer.seal_all(&beside[..count], size, run, &mut macs[..count]);
            let of_sectors = tags.chunks_mut(self.tag_size()).zip(&macs);
            of_sectors.for_each(|(tag, mac)| tag[..mac_size].copy_from_slice(&mac[..mac_size]));
        }
        // States of MACs and streams are as good as keys.
        wipe_stack();
    }

    fn decrypt(&self, first: u64, run: &mut [u8], tags: &[u8]) -> Result<(), WrongTag> {
        self.assert_tags(run, tags);
        let size = self.sector_size;
        let mut batches = run.chunks_mut(BATCH * size).zip(tags.chunks(BATCH * self.tag_size())).enumerate();
        let opened = batches.try_for_each(|(batch, (run, tags))| {
            let first = first.wrapping_add((batch * BATCH) as u64);
            let (beside, macs, count) = self.batch(first, tags);
            let opened = self.sealer.open_all(&beside[..count], size, run, &macs[..count]);
            opened.map_err(|wrong| WrongTag(first.wrapping_add(wrong as u64)))
        });
        wipe_stack();
        opened
    }
}

/// Encrypt-then-MAC with HMAC (Linux, crypto/authenc.c).
pub(super) struct EncryptThenMac<M> {
    pub encryption: Encryption,
    pub mac: M,
}

/// A cipher with a 16-byte IV for each sector.
pub(super) enum Encryption {
    Xts(Layer),
    Cbc(Box<dyn BlockCipher>),
}

impl Encryption {
    fn encrypt(&self, ivs: &mut [[u8; MAX_IV]], size: usize, run: &mut [u8]) {
        match self {
            Self::Xts(layer) => {
                layer.tweak.encrypt_blocks(ivs.as_flattened_mut());
                layer.data.xts_encrypt(ivs, size, run);
            }
            Self::Cbc(cipher) => cipher.cbc_encrypt_abreast(ivs, size, run),
        }
    }

    fn decrypt(&self, ivs: &mut [[u8; MAX_IV]], size: usize, run: &mut [u8]) {
        match self {
            Self::Xts(layer) => {
                layer.tweak.encrypt_blocks(ivs.as_flattened_mut());
                layer.data.xts_decrypt(ivs, size, run);
            }
            Self::Cbc(cipher) => cipher.cbc_decrypt_abreast(ivs, size, run),
        }
    }
}

fn ivs(beside: &[Beside]) -> [[u8; MAX_IV]; BATCH] {
    let mut ivs = [[0; MAX_IV]; BATCH];
    ivs.iter_mut().zip(beside).for_each(|(iv, beside)| iv.copy_from_slice(&beside[NUMBER..]));
    ivs
}

impl<M: Macs> Sealer for EncryptThenMac<M> {
    fn iv_size(&self) -> usize {
        MAX_IV
    }

    fn mac_size(&self) -> usize {
        self.mac.size()
    }

    fn seal_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &mut [Tag]) {
        self.encryption.encrypt(&mut ivs(beside)[..beside.len()], size, run);
        self.mac.macs(beside, size, run, macs);
    }

    fn open_all(&self, beside: &[Beside], size: usize, run: &mut [u8], macs: &[Tag]) -> Result<(), usize> {
        let mut right = [[0; MAX_TAG]; BATCH];
        let right = &mut right[..beside.len()];
        self.mac.macs(beside, size, run, right);
        all_right(macs, right, self.mac.size())?;
        self.encryption.decrypt(&mut ivs(beside)[..beside.len()], size, run);
        Ok(())
    }
}

/// A MAC over sectors of `size` bytes and the data authenticated besides each.
pub(super) trait Macs: Send + Sync {
    /// Size of a MAC in bytes.
    fn size(&self) -> usize;
    /// Computes the MACs of all sectors.
    fn macs(&self, beside: &[Beside], size: usize, run: &[u8], macs: &mut [Tag]);
}

/// HMAC of one sector after the other.
#[cfg(not(target_arch = "x86_64"))]
pub(super) struct OneHmac<D: EagerHash>(Resident<Hmac<D>>);

#[cfg(not(target_arch = "x86_64"))]
impl<D: EagerHash> OneHmac<D> {
    pub fn new(key: &[u8]) -> Self {
        Self(Resident::build(|| Hmac::<D>::new_from_slice(key).expect("HMAC takes keys of any length")))
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl<D: EagerHash> Macs for OneHmac<D>
where
    Hmac<D>: Send + Sync,
{
    fn size(&self) -> usize {
        <Hmac<D> as OutputSizeUser>::output_size()
    }

    fn macs(&self, beside: &[Beside], size: usize, run: &[u8], macs: &mut [Tag]) {
        for ((sector, beside), out) in run.chunks(size).zip(beside).zip(macs) {
            let mut mac = (*self.0).clone();
            mac.update(beside);
            mac.update(sector);
            out[..self.size()].copy_from_slice(&mac.finalize_fixed());
        }
    }
}

/// HMAC-SHA-256 and HMAC-SHA-512 of many sectors at once: the states after their two keys.
#[cfg(target_arch = "x86_64")]
pub(super) struct ManyHmacs<S: Sha2>(LockedBox<[S::State; 2]>);

#[cfg(target_arch = "x86_64")]
pub(super) type HmacSha256 = ManyHmacs<messages::Sha256>;
#[cfg(target_arch = "x86_64")]
pub(super) type HmacSha512 = ManyHmacs<messages::Sha512>;

#[cfg(not(target_arch = "x86_64"))]
pub(super) type HmacSha256 = OneHmac<sha2::Sha256>;
#[cfg(not(target_arch = "x86_64"))]
pub(super) type HmacSha512 = OneHmac<sha2::Sha512>;

#[cfg(target_arch = "x86_64")]
impl<S: Sha2> ManyHmacs<S> {
    pub fn new(key: &[u8]) -> Self {
        Self(LockedBox::build(|states| messages::keyed::<S>(key, states)))
    }
}

#[cfg(target_arch = "x86_64")]
impl<S: Sha2> Macs for ManyHmacs<S>
where
    LockedBox<[S::State; 2]>: Send + Sync,
{
    fn size(&self) -> usize {
        S::BLOCK / 2
    }

    fn macs(&self, beside: &[Beside], size: usize, run: &[u8], macs: &mut [Tag]) {
        let [inner, outer] = *self.0;
        let (mut digests, mut out) = ([0; BATCH * MAX_TAG], [0; BATCH * MAX_TAG]);
        let [bodies, out] = [&mut digests, &mut out].map(|room| &mut room[..beside.len() * self.size()]);
        let heads = beside.as_flattened();
        let sectors = Messages::<S> { state: inner, before: S::BLOCK, head: BESIDE, heads, body: size, bodies: run };
        messages::digests(sectors, beside.len(), bodies);
        let (body, heads) = (self.size(), &[][..]);
        let digests = Messages::<S> { state: outer, before: S::BLOCK, head: 0, heads, body, bodies };
        messages::digests(digests, beside.len(), out);
        macs.iter_mut().zip(out.chunks(body)).for_each(|(mac, out)| mac[..body].copy_from_slice(out));
    }
}

/// GCM (NIST SP 800-38D).
pub(crate) struct Gcm {
    cipher: Box<dyn BlockCipher>,
    hash: Resident<GHash>,
    nonce_size: usize,
}

/// Bytes of a nonce that the first counter block contains as it is.
const GCM_NONCE: usize = 12;

impl Gcm {
    /// Makes the mode from a cipher with blocks of 16 bytes. Nonces have 12 bytes.
    pub fn new(cipher: Box<dyn BlockCipher>) -> Self {
        Self::with_nonces_of(GCM_NONCE, cipher)
    }

    /// Makes the mode from a cipher with blocks of 16 bytes. Nonces have `nonce_size` bytes.
    pub fn with_nonces_of(nonce_size: usize, cipher: Box<dyn BlockCipher>) -> Self {
        let hash = Resident::build(|| {
            let mut h = ghash::Key::default();
            cipher.encrypt_blocks(&mut h);
            let hash = GHash::new(&h);
            h.as_mut_slice().zeroize();
            hash
        });
        Self { cipher, hash, nonce_size }
    }

    /// The counter block whose encryption masks the tag: J0 (7.1, step 2).
    fn first_counter(&self, nonce: &[u8]) -> [u8; 16] {
        assert_eq!(nonce.len(), self.nonce_size, "a nonce of another size");
        let mut counter = [0; 16];
        if nonce.len() == GCM_NONCE {
            counter[..GCM_NONCE].copy_from_slice(nonce);
            counter[GCM_NONCE..].copy_from_slice(&1u32.to_be_bytes());
        } else {
            counter.copy_from_slice(&self.hashed(&[], nonce));
        }
        counter
    }

    /// GHASH of two texts and their lengths.
    fn hashed(&self, beside: &[u8], text: &[u8]) -> ghash::Block {
        let mut hash = (*self.hash).clone();
        hash.update_padded(beside);
        hash.update_padded(text);
        let mut lengths = ghash::Block::default();
        lengths[..8].copy_from_slice(&(beside.len() as u64 * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&(text.len() as u64 * 8).to_be_bytes());
        hash.update(&[lengths]);
        hash.finalize()
    }

    /// Encrypts or decrypts, which is the same. `first` is the counter block of the tag.
    fn xor(&self, first: &[u8; 16], message: &mut [u8]) {
        let [.., a, b, c, d] = *first;
        let number = u32::from_be_bytes([a, b, c, d]);
        let mut stream = [0; 512];
        for (i, part) in message.chunks_mut(stream.len()).enumerate() {
            for (j, counter) in stream.chunks_exact_mut(16).enumerate() {
                let number = number.wrapping_add((i * 32 + j) as u32 + 1);
                counter[..12].copy_from_slice(&first[..12]);
                counter[12..].copy_from_slice(&number.to_be_bytes());
            }
            self.cipher.encrypt_blocks(&mut stream);
            part.iter_mut().zip(stream).for_each(|(b, s)| *b ^= s);
        }
        stream.zeroize();
    }

    fn tag(&self, first: &[u8; 16], beside: &[u8], message: &[u8]) -> [u8; TAG] {
        let mut tag = *first;
        self.cipher.encrypt_blocks(&mut tag);
        tag.iter_mut().zip(self.hashed(beside, message)).for_each(|(t, h)| *t ^= h);
        tag
    }
}

impl MessageCipher for Gcm {
    fn nonce_size(&self) -> usize {
        self.nonce_size
    }

    fn tag_size(&self) -> usize {
        TAG
    }

    fn seal(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]) {
        let first = self.first_counter(nonce);
        self.xor(&first, message);
        tag.copy_from_slice(&self.tag(&first, beside, message));
    }

    fn open(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool {
        let first = self.first_counter(nonce);
        let same = bool::from(self.tag(&first, beside, message).ct_eq(tag));
        if same {
            self.xor(&first, message);
        }
        same
    }
}

/// ChaCha20-Poly1305 (RFC 8439), which Linux calls `rfc7539(chacha20,poly1305)`.
pub(super) struct ChaChaPoly {
    pub key: LockedBox<[u8; 32]>,
}

/// Bytes of its nonce.
const CHACHA_NONCE: usize = 12;

impl ChaChaPoly {
    /// One sector.
    fn process_one<const DECRYPT: bool>(&self, beside: &Beside, sector: &mut [u8]) -> [u8; TAG] {
        let aad = &beside[..NUMBER + CHACHA_NONCE];
        let mut stream = ChaCha20::new_from_slices(&*self.key, &aad[NUMBER..]).expect("a key of 32 and 12 bytes");
        let mut key = Key::default();
        stream.apply_keystream(&mut key);
        let mut poly = Poly1305::new(&key);
        key.as_mut_slice().zeroize();
        stream.seek(64u32);
        poly.update_padded(aad);
        if !DECRYPT {
            stream.apply_keystream(sector);
        }
        poly.update_padded(sector);
        if DECRYPT {
            stream.apply_keystream(sector);
        }
        let mut lengths = Block::default();
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(sector.len() as u64).to_le_bytes());
        poly.update(&[lengths]);
        poly.finalize().into()
    }

    /// Processes all sectors side by side. Returns false, and does nothing, if this processor has no vectors for that.
    #[cfg(target_arch = "x86_64")]
    fn process_abreast<const DECRYPT: bool>(&self, sectors: &mut Sectors<'_>, tags: &mut [[u8; TAG]]) -> bool {
        let stream = chacha::KERNELS.iter().find(|kernel| (kernel.usable)());
        let poly = poly1305::KERNELS.iter().find(|kernel| (kernel.usable)());
        let (Some(stream), Some(poly)) = (stream, poly) else { return false };
        let Sectors { beside, size, run } = sectors;
        let (mut blocks, mut keys) = ([[0; chacha::BLOCK]; BATCH], [[0; poly1305::KEY]; BATCH]);
        let (blocks, keys) = (&mut blocks[..beside.len()], &mut keys[..beside.len()]);
        stream.first_blocks(&self.key, beside, blocks);
        keys.iter_mut().zip(blocks).for_each(|(key, block)| key.copy_from_slice(&block[..poly1305::KEY]));
        if !DECRYPT {
            stream.add_rest(&self.key, beside, *size, run);
        }
        poly.tags(keys, beside, *size, run, tags);
        if DECRYPT {
            stream.add_rest(&self.key, beside, *size, run);
        }
        true
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn process_abreast<const DECRYPT: bool>(&self, _: &mut Sectors<'_>, _: &mut [[u8; TAG]]) -> bool {
        false
    }
}

impl Abreast for ChaChaPoly {
    const IV: usize = CHACHA_NONCE;

    fn process<const DECRYPT: bool>(&self, mut sectors: Sectors<'_>, tags: &mut [[u8; TAG]]) {
        if !self.process_abreast::<DECRYPT>(&mut sectors, tags) {
            let Sectors { beside, size, run } = sectors;
            for ((sector, beside), tag) in run.chunks_mut(size).zip(beside).zip(tags) {
                *tag = self.process_one::<DECRYPT>(beside, sector);
            }
        }
    }
}

/// AEGIS-128.
pub(super) struct Aegis {
    pub key: LockedBox<[u8; aegis::SIZE]>,
}

impl Abreast for Aegis {
    const IV: usize = aegis::SIZE;

    fn process<const DECRYPT: bool>(&self, sectors: Sectors<'_>, tags: &mut [[u8; TAG]]) {
        aegis::process::<DECRYPT>(&self.key, sectors, tags);
    }
}

#[cfg(target_arch = "x86_64")]
impl Abreast for AesGcm {
    const IV: usize = gcm::NONCE;

    fn process<const DECRYPT: bool>(&self, sectors: Sectors<'_>, tags: &mut [[u8; TAG]]) {
        self.process::<DECRYPT>(sectors, tags);
    }
}

/// Checks the first `size` bytes of each stored MAC. The error is the index of the first wrong one.
fn all_right<const N: usize>(stored: &[Tag], right: &[[u8; N]], size: usize) -> Result<(), usize> {
    let wrong = stored.iter().zip(right).position(|(stored, right)| !bool::from(stored[..size].ct_eq(&right[..size])));
    wrong.map_or(Ok(()), Err)
}

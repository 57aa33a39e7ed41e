//! Modes that seal whole messages, for formats that store a nonce and a tag beside each block of a file.

use ::poly1305::{Block, Key, Poly1305};
use chacha20::XChaCha20;
use cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use digest::KeyInit;
use ghash::universal_hash::UniversalHash;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::ciphers::Gcm;
use super::sealer::{MessageCipher, TAG};
use crate::ciphers::{Acceleration, BlockCipher, aes};
use crate::hash::SHA256;
use crate::secret::{LockedBox, Secret};
use crate::tweak::double;

/// Bytes of a block of AES.
const BLOCK: usize = 16;

/// AES-GCM (NIST SP 800-38D) with nonces of `nonce_size` bytes and tags of 16.
///
/// # Panics
/// If the key is not one of AES.
pub fn gcm(key: &[u8], nonce_size: usize, with: Acceleration) -> Box<dyn MessageCipher> {
    Box::new(Gcm::with_nonces_of(nonce_size, aes::AES.with_key(key, with)))
}

/// AES-SIV (RFC 5297) with nonces of 16 bytes. `beside` is its first component and the nonce its last (section 3). A repeated nonce
/// reveals only that two messages are the same.
///
/// # Panics
/// If the key is not two keys of AES.
pub fn siv(key: &[u8], with: Acceleration) -> Box<dyn MessageCipher> {
    Box::new(Siv::new(key, with))
}

/// XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03) with nonces of 24 bytes and tags of 16.
pub fn xchacha20_poly1305(key: &[u8; 32]) -> Box<dyn MessageCipher> {
    Box::new(XChaChaPoly { key: LockedBox::build(|place: &mut [u8; 32]| place.copy_from_slice(key)) })
}

/// AES in counter mode, encrypted and then authenticated: HMAC-SHA256 of `before`, `beside`, the nonce and the ciphertext. Nonces have
/// 16 bytes: the first counter block, a big-endian number. Tags have 32 bytes.
///
/// # Panics
/// If the key is not one of AES.
pub fn ctr_hmac_sha256(key: &[u8], mac_key: &[u8], before: &[u8], with: Acceleration) -> Box<dyn MessageCipher> {
    let (stream, mac_key) = (aes::AES.with_key(key, with), Secret::copy_from(mac_key));
    Box::new(CtrHmac { stream, mac_key, before: before.to_vec() })
}

/// AES-SIV (RFC 5297) for messages without a nonce, such as names.
pub struct Siv {
    mac: Box<dyn BlockCipher>,
    stream: Box<dyn BlockCipher>,
    /// The values that CMAC adds to its last block: a whole one and a padded one (RFC 4493, 2.3).
    subkeys: LockedBox<[[u8; BLOCK]; 2]>,
}

/// Bytes of messages that CMAC chains at a time.
const PIECE: usize = 512;

impl Siv {
    /// With two keys of AES: for the synthetic IV, then for encryption.
    ///
    /// # Panics
    /// If they are not.
    pub fn new(key: &[u8], with: Acceleration) -> Self {
        let (mac, stream) = key.split_at(key.len() / 2);
        let mac = aes::AES.with_key(mac, with);
        let subkeys = LockedBox::build(|subkeys: &mut [[u8; BLOCK]; 2]| {
            mac.encrypt_blocks(&mut subkeys[0]);
            subkeys[0] = doubled(&subkeys[0]);
            subkeys[1] = doubled(&subkeys[0]);
        });
        Self { mac, stream: aes::AES.with_key(stream, with), subkeys }
    }

    /// Encrypts `message` in place and returns its synthetic IV. `components` are authenticated, too.
    pub fn seal_with(&self, components: &[&[u8]], message: &mut [u8]) -> [u8; BLOCK] {
        let iv = self.synthetic_iv(components, message);
        self.xor(&iv, message);
        iv
    }

    /// Decrypts `message` in place if its synthetic IV is right. If this returns false, the contents of `message` are meaningless.
    pub fn open_with(&self, components: &[&[u8]], message: &mut [u8], iv: &[u8; BLOCK]) -> bool {
        self.xor(iv, message);
        self.synthetic_iv(components, message).ct_eq(iv).into()
    }

    /// CMAC (RFC 4493) of `text`, whose last 16 bytes are first added to `to_end`. A text shorter than a block takes no `to_end`.
    fn cmac(&self, text: &[u8], to_end: Option<&[u8; BLOCK]>) -> [u8; BLOCK] {
        let (mut chain, mut room) = ([0; BLOCK], [0; PIECE + BLOCK]);
        // The last block may be incomplete, and the addition may touch the one before it.
        let whole = text.len().saturating_sub(BLOCK + 1) / BLOCK * BLOCK;
        let (front, rest) = text.split_at(whole);
        for piece in front.chunks(PIECE) {
            let room = &mut room[..piece.len()];
            room.copy_from_slice(piece);
            self.mac.cbc_encrypt(&chain, room);
            chain.copy_from_slice(&room[room.len() - BLOCK..]);
        }
        let end = &mut room[..rest.len().next_multiple_of(BLOCK).max(BLOCK)];
        end.fill(0);
        end[..rest.len()].copy_from_slice(rest);
        if let Some(to_end) = to_end {
            add(&mut end[rest.len() - BLOCK..], to_end);
        }
        let subkey = if end.len() == rest.len() {
            &self.subkeys[0]
        } else {
            end[rest.len()] = 0x80;
            &self.subkeys[1]
        };
        let last = end.len() - BLOCK;
        add(&mut end[last..], subkey);
        self.mac.cbc_encrypt(&chain, end);
        chain.copy_from_slice(&end[last..]);
        room.zeroize();
        chain
    }

    /// S2V (RFC 5297, 2.4) of the components in front and of the message.
    fn synthetic_iv(&self, components: &[&[u8]], message: &[u8]) -> [u8; BLOCK] {
        let mut sum = self.cmac(&[0; BLOCK], None);
        for component in components {
            sum = doubled(&sum);
            add(&mut sum, &self.cmac(component, None));
        }
        if message.len() >= BLOCK {
            return self.cmac(message, Some(&sum));
        }
        let mut last = doubled(&sum);
        add(&mut last, message);
        last[message.len()] ^= 0x80;
        self.cmac(&last, None)
    }

    /// Counter mode from the synthetic IV on, without two of its bits (RFC 5297, 2.5): encrypts or decrypts.
    fn xor(&self, iv: &[u8; BLOCK], message: &mut [u8]) {
        count(&*self.stream, u128::from_be_bytes(*iv) & !(1 << 63 | 1 << 31), message);
    }
}

/// Counter mode (NIST SP 800-38A, 6.5) from this block on: encrypts or decrypts.
fn count(cipher: &dyn BlockCipher, mut counter: u128, message: &mut [u8]) {
    let mut stream = [0; PIECE];
    for part in message.chunks_mut(PIECE) {
        for block in stream.chunks_exact_mut(BLOCK) {
            block.copy_from_slice(&counter.to_be_bytes());
            counter = counter.wrapping_add(1);
        }
        cipher.encrypt_blocks(&mut stream);
        add(part, &stream);
    }
    stream.zeroize();
}

/// The product with x in CMAC's field (RFC 4493, 2.3), whose elements are big-endian.
fn doubled(block: &[u8; BLOCK]) -> [u8; BLOCK] {
    double(u128::from_be_bytes(*block)).to_be_bytes()
}

/// Adds as much of `other` as fits.
fn add(to: &mut [u8], other: &[u8]) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to ^= other);
}

impl MessageCipher for Siv {
    fn nonce_size(&self) -> usize {
        BLOCK
    }

    fn tag_size(&self) -> usize {
        BLOCK
    }

    fn seal(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]) {
        tag.copy_from_slice(&self.seal_with(&[beside, nonce], message));
    }

    fn open(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool {
        tag.try_into().is_ok_and(|iv| self.open_with(&[beside, nonce], message, iv))
    }
}

/// See [`ctr_hmac_sha256`].
struct CtrHmac {
    stream: Box<dyn BlockCipher>,
    mac_key: Secret,
    before: Vec<u8>,
}

/// Bytes of a tag of HMAC-SHA256.
const HMAC: usize = 32;

impl CtrHmac {
    fn tag(&self, beside: &[u8], nonce: &[u8], sealed: &[u8]) -> [u8; HMAC] {
        let mut tag = [0; HMAC];
        SHA256.hmac(&self.mac_key, &[&self.before, beside, nonce, sealed], &mut tag);
        tag
    }

    fn xor(&self, nonce: &[u8], message: &mut [u8]) {
        count(&*self.stream, u128::from_be_bytes(nonce.try_into().expect("a nonce of 16 bytes")), message);
    }
}

impl MessageCipher for CtrHmac {
    fn nonce_size(&self) -> usize {
        BLOCK
    }

    fn tag_size(&self) -> usize {
        HMAC
    }

    fn seal(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]) {
        self.xor(nonce, message);
        tag.copy_from_slice(&self.tag(beside, nonce, message));
    }

    fn open(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool {
        let right = self.tag(beside, nonce, message).ct_eq(tag).into();
        if right {
            self.xor(nonce, message);
        }
        right
    }
}

/// See [`xchacha20_poly1305`].
struct XChaChaPoly {
    key: LockedBox<[u8; 32]>,
}

impl XChaChaPoly {
    fn process<const DECRYPT: bool>(
        &self,
        nonce: &[u8],
        beside: &[u8],
        message: &mut [u8],
        right: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let mut stream = XChaCha20::new_from_slices(&*self.key, nonce).expect("a key of 32 bytes and a nonce of 24");
        let mut key = Key::default();
        stream.apply_keystream(&mut key);
        let mut poly = Poly1305::new(&key);
        key.as_mut_slice().zeroize();
        stream.seek(64u32);
        if !DECRYPT {
            stream.apply_keystream(message);
        }
        poly.update_padded(beside);
        poly.update_padded(message);
        let mut lengths = Block::default();
        lengths[..8].copy_from_slice(&(beside.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(message.len() as u64).to_le_bytes());
        poly.update(&[lengths]);
        let right = right(&poly.finalize());
        if DECRYPT && right {
            stream.apply_keystream(message);
        }
        right
    }
}

impl MessageCipher for XChaChaPoly {
    fn nonce_size(&self) -> usize {
        24
    }

    fn tag_size(&self) -> usize {
        TAG
    }

    fn seal(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &mut [u8]) {
        self.process::<false>(nonce, beside, message, |made| {
            tag.copy_from_slice(made);
            true
        });
    }

    fn open(&self, nonce: &[u8], beside: &[u8], message: &mut [u8], tag: &[u8]) -> bool {
        self.process::<true>(nonce, beside, message, |made| made.ct_eq(tag).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hex")).collect()
    }

    /// Seals, compares, opens, and opens no message of which anything was changed.
    fn check(cipher: &dyn MessageCipher, [nonce, beside, plain, sealed, tag]: [&str; 5]) {
        let [nonce, beside, plain, sealed, tag] = [nonce, beside, plain, sealed, tag].map(bytes);
        let (mut message, mut made) = (plain.clone(), vec![0; cipher.tag_size()]);
        cipher.seal(&nonce, &beside, &mut message, &mut made);
        assert_eq!((&message, &made), (&sealed, &tag));
        assert!(cipher.open(&nonce, &beside, &mut message, &made));
        assert_eq!(message, plain);
        for field in 0..4 {
            let mut fields = [&nonce, &beside, &sealed, &tag].map(Clone::clone);
            let Some(last) = fields[field].last_mut() else { continue };
            *last ^= 1;
            let [nonce, beside, mut message, tag] = fields;
            assert!(!cipher.open(&nonce, &beside, &mut message, &tag), "field {field}");
        }
    }

    /// Test cases 17 and 18 of "The Galois/Counter Mode of Operation" (McGrew, Viega).
    #[test]
    fn gcm_takes_nonces_of_any_size() {
        let key = bytes("feffe9928665731c6d6a8f9467308308 feffe9928665731c6d6a8f9467308308");
        let beside = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
        let plain = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
        check(
            &*gcm(&key, 8, Acceleration::On),
            [
                "cafebabefacedbad",
                beside,
                plain,
                "c3762df1ca787d32ae47c13bf19844cbaf1ae14d0b976afac52ff7d79bba9de0
                 feb582d33934a4f0954cc2363bc73f7862ac430e64abe499f47c9b1f",
                "3a337dbf46a792c45e454913fe2ea8f2",
            ],
        );
        check(
            &*gcm(&key, 60, Acceleration::Off),
            [
                "9313225df88406e555909c5aff5269aa6a7a9538534f7da1e4c303d2a318a728
                 c3c0c95156809539fcf0e2429a6b525416aedbf5a0de6a57a637b39b",
                beside,
                plain,
                "5a8def2f0c9e53f1f75d7853659e2a20eeb2b22aafde6419a058ab4f6f746bf4
                 0fc0c3b780f244452da3ebf1c5d82cdea2418997200ef82e44ae7e3f",
                "a44a8266ee1c8eb0c8b5d4cf5ae9f19a",
            ],
        );
    }

    /// NIST SP 800-38A, F.5.5 (two blocks) for the counter, RFC 4231 for HMAC in its own tests; the whole is a block of cryptolib's
    /// (v1/FileContentCryptorImplTest.java, `testChunkEncryption`): keys, nonces and the number of the block are zero.
    #[test]
    fn counter_mode_with_hmac_seals_as_cryptolib_does() {
        check(
            &*ctr_hmac_sha256(&[0; 32], &[0; 32], &[0; 16], Acceleration::On),
            [
                "00000000000000000000000000000000",
                "0000000000000000",
                "68656c6c6f20776f726c64",
                "b4f0ac14cd60fee6df24c6",
                "2a58646bd58fbd7d4ba67e4461f5719725f52128115ed7519e2bcceebe85dce8",
            ],
        );
        let key = bytes("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
        let mut message = bytes("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
        let first = u128::from_be_bytes(*b"\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff");
        count(&*aes::AES.with_key(&key, Acceleration::On), first, &mut message);
        assert_eq!(message, bytes("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"));
    }

    /// RFC 5297, A.1 and A.2.
    #[test]
    fn siv_seals_as_the_rfc_says() {
        let siv = |key| Siv::new(&bytes(key), Acceleration::On);
        let one = siv("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0 f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let beside = bytes("101112131415161718191a1b1c1d1e1f 2021222324252627");
        let mut message = bytes("112233445566778899aabbccddee");
        let iv = one.synthetic_iv(&[&beside], &message);
        one.xor(&iv, &mut message);
        assert_eq!(iv[..], bytes("85632d07c6e8f37f950acd320a2ecc93"));
        assert_eq!(message, bytes("40c02b9690c4dc04daef7f6afe5c"));

        let two = siv("7f7e7d7c7b7a79787776757473727170 404142434445464748494a4b4c4d4e4f");
        let components = [
            "00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100",
            "102030405060708090a0",
            "09f911029d74e35bd84156c5635688c0",
        ]
        .map(bytes);
        let mut message =
            bytes("7468697320697320736f6d6520706c61696e7465787420746f20656e6372797074207573696e67205349562d414553");
        let iv = two.synthetic_iv(&components.each_ref().map(|component| &component[..]), &message);
        two.xor(&iv, &mut message);
        assert_eq!(iv[..], bytes("7bdb6e3b432667eb06f4d14bff2fbd0f"));
        assert_eq!(
            message,
            bytes("cb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d")
        );
    }

    /// RFC 4493, 4: AES-CMAC, also of nothing.
    #[test]
    fn cmac_is_that_of_the_rfc() {
        let key = bytes("2b7e151628aed2a6abf7158809cf4f3c");
        let siv = Siv::new(&[key.clone(), key].concat(), Acceleration::On);
        let text = bytes(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51
             30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        );
        for (len, mac) in [
            (0, "bb1d6929e95937287fa37d129b756746"),
            (16, "070a16b46b4d4144f79bdd9dd04a287c"),
            (40, "dfa66747de9ae63030ca32611497c827"),
            (64, "51f0bebf7e3b9d92fc49741779363cfe"),
        ] {
            assert_eq!(siv.cmac(&text[..len], None)[..], bytes(mac), "{len} bytes");
        }
    }

    #[test]
    fn siv_opens_what_it_sealed_and_nothing_else() {
        let siv = siv(&[7; 64], Acceleration::On);
        for len in [0, 1, 15, 16, 17, 31, 32, 33, 511, 512, 528, 529, 545, 4096] {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (mut message, mut tag) = (plain.clone(), [0; 16]);
            siv.seal(&[1; 16], b"beside", &mut message, &mut tag);
            let sealed = message.clone();
            assert!(siv.open(&[1; 16], b"beside", &mut message, &tag), "{len} bytes");
            assert_eq!(message, plain);
            assert!(!siv.open(&[2; 16], b"beside", &mut sealed.clone(), &tag));
            assert!(!siv.open(&[1; 16], b"besides", &mut sealed.clone(), &tag));
        }
    }

    /// draft-irtf-cfrg-xchacha-03, A.3.1.
    #[test]
    fn xchacha20_poly1305_seals_as_the_draft_says() {
        let key = std::array::from_fn(|i| 0x80 + i as u8);
        check(
            &*xchacha20_poly1305(&key),
            [
                "404142434445464748494a4b4c4d4e4f5051525354555657",
                "50515253c0c1c2c3c4c5c6c7",
                "4c616469657320616e642047656e746c656d656e206f662074686520636c6173
                 73206f66202739393a204966204920636f756c64206f6666657220796f75206f
                 6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73
                 637265656e20776f756c642062652069742e",
                "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb
                 731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452
                 2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9
                 21f9664c97637da9768812f615c68b13b52e",
                "c0875924c1c7987947deafd8780acf49",
            ],
        );
    }
}

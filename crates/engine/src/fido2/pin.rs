//! What a key's PIN and its secrets are encrypted with on the bus: PIN/UV auth protocols one and two (CTAP 2.1, sections 6.5.6 and 6.5.7).

use claviger_crypto::ciphers::{BlockCipher, aes};
use claviger_crypto::ec::{Curve, Point, scalar};
use claviger_crypto::hash::SHA256;
use claviger_crypto::modes::cbc;
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret};
use minicbor::Decoder;
use unicode_normalization::UnicodeNormalization;
use zeroize::Zeroizing;

use super::{Cbor, Decoded, Written, definite, odd};
use crate::error::{Error, Result};
use crate::random;

const BLOCK: usize = 16;

/// The longest PIN, in bytes (section 6.5.1).
const LONGEST: usize = 63;

/// One of the protocols; the number is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinProtocol {
    One = 1,
    Two = 2,
}

impl PinProtocol {
    /// A message authentication code, shorter in the first protocol.
    pub fn mac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let mut mac = vec![0; 32];
        SHA256.hmac(key, &[message], &mut mac);
        mac.truncate(if self == Self::One { 16 } else { 32 });
        mac
    }
}

/// The secret that this program and a key agree on for one exchange.
pub struct SharedSecret {
    protocol: PinProtocol,
    encryption: Secret,
    authentication: Secret,
    /// This program's public key.
    public: Point,
}

impl SharedSecret {
    /// Agrees with a key whose public key has these coordinates.
    pub fn agree(protocol: PinProtocol, [x, y]: &[Vec<u8>; 2]) -> Result<Self> {
        let own = scalar(Curve::P256, random::fill)?;
        let theirs = Point::new(Curve::P256, x, y);
        theirs.and_then(|theirs| Self::of(protocol, &own, &theirs)).ok_or_else(|| odd("its public key is not a point"))
    }

    /// `own` is this program's private key.
    fn of(protocol: PinProtocol, own: &[u8], theirs: &Point) -> Option<Self> {
        let (point, public) = (theirs.times(own)?, Point::generated(Curve::P256, own)?);
        let derived = |info: &[u8]| {
            let mut key = Secret::zeroed(32);
            match protocol {
                PinProtocol::One => SHA256.digest(&[point.x()], &mut key),
                // HKDF with a salt of zeros and one block of output (RFC 5869).
                PinProtocol::Two => {
                    let mut extracted = Secret::zeroed(32);
                    SHA256.hmac(&[0; 32], &[point.x()], &mut extracted);
                    SHA256.hmac(&extracted, &[info, &[1]], &mut key);
                }
            }
            key
        };
        Some(Self {
            protocol,
            encryption: derived(b"CTAP2 AES key"),
            authentication: derived(b"CTAP2 HMAC key"),
            public,
        })
    }

    /// Encrypts whole blocks. The second protocol has a random IV in front.
    pub fn encrypt(&self, plain: &[u8]) -> Result<Vec<u8>> {
        let mut iv = [0; BLOCK];
        if self.protocol == PinProtocol::Two {
            random::fill(&mut iv)?;
        }
        let mut text = plain.to_vec();
        cbc::encrypt_sectors(&*self.cipher(), &[iv], plain.len(), &mut text);
        wipe_stack();
        Ok(if self.protocol == PinProtocol::Two { [&iv[..], &text].concat() } else { text })
    }

    /// The inverse; `None` if there are no whole blocks.
    pub fn decrypt(&self, encrypted: &[u8]) -> Option<Secret> {
        let (iv, text) = match self.protocol {
            PinProtocol::One => ([0; BLOCK], encrypted),
            PinProtocol::Two => (*encrypted.first_chunk()?, &encrypted[BLOCK..]),
        };
        if text.is_empty() || !text.len().is_multiple_of(BLOCK) {
            return None;
        }
        let mut plain = Secret::copy_from(text);
        self.cipher().cbc_decrypt(&iv, &mut plain);
        wipe_stack();
        Some(plain)
    }

    /// The message authentication code of a message.
    pub fn authenticate(&self, message: &[u8]) -> Vec<u8> {
        self.protocol.mac(&self.authentication, message)
    }

    fn cipher(&self) -> Box<dyn BlockCipher> {
        aes::AES.with_key(&self.encryption, Acceleration::On)
    }

    /// Appends this program's public key as a COSE key (RFC 9053, 7.1.1). The algorithm is the one that CTAP prescribes.
    pub fn append_public(&self, e: &mut Cbor) -> Written {
        e.map(5)?.i8(1)?.i8(2)?.i8(3)?.i8(-25)?.i8(-1)?.i8(1)?;
        e.i8(-2)?.bytes(self.public.x())?.i8(-3)?.bytes(self.public.y())?;
        Ok(())
    }
}

/// Reads the coordinates of a key's public key.
pub fn coordinates(value: &mut Decoder<'_>) -> Decoded<[Vec<u8>; 2]> {
    let mut coordinates = [Vec::new(), Vec::new()];
    for _ in 0..definite(value.map()?)? {
        match value.i64()? {
            -2 => coordinates[0] = value.bytes()?.to_vec(),
            -3 => coordinates[1] = value.bytes()?.to_vec(),
            _ => value.skip()?,
        }
    }
    Ok(coordinates)
}

/// The part of a PIN's hash that a key compares.
pub fn hashed(pin: &[u8]) -> Result<Secret> {
    let text = std::str::from_utf8(pin).map_err(|_| Error::misuse("the PIN is not UTF-8 text"))?;
    // Composed text is never longer than this.
    let mut normalised = Zeroizing::new(String::with_capacity(3 * pin.len()));
    normalised.extend(text.nfc());
    if normalised.len() > LONGEST {
        return Err(Error::misuse(format!("a PIN has at most {LONGEST} bytes")));
    }
    let mut digest = Secret::zeroed(32);
    SHA256.digest(&[normalised.as_bytes()], &mut digest);
    Ok(Secret::copy_from(&digest[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    /// Computed by another implementation (OpenSSL's, by Python's `cryptography`), for the private keys of bytes 1 to 32 and 33 to 64.
    #[test]
    fn keys_and_messages_are_those_of_another_implementation() {
        let bytes = |digits: &str| hex::decode_vec(digits).expect("hexadecimal");
        let own: Vec<u8> = (1..33).collect();
        let theirs = Point::new(
            Curve::P256,
            &bytes("1f140146bfb1b251f84f4ddbe0d4cdcfd77afd984a9520e35794021f8312bb9e"),
            &bytes("ec995a08b1fa7704df3dcc0b50a9665263fb7711f95f9f8a449c5096e47c892b"),
        );
        let theirs = theirs.expect("a point");
        let agreed = |protocol| SharedSecret::of(protocol, &own, &theirs).expect("a secret");
        let two = agreed(PinProtocol::Two);
        assert_eq!(*two.encryption, bytes("743562500c3df309c9b074d46a7cf8cecef2368ae7966e7078f73796d5e3e11c")[..]);
        assert_eq!(*two.authentication, bytes("8da12c0f9997c5f11c4110fc28598f91acc9025de91db49aa2aba7a311bf4139")[..]);
        let one = agreed(PinProtocol::One);
        let encrypted = one.encrypt(&[7; 32]).expect("encrypted");
        assert_eq!(encrypted, bytes("567058fdb80db478bd07e26e0e87b572dcbb67c9487422add6a8101e5f15918e"));
        assert_eq!(one.authenticate(&encrypted), bytes("4c2e8309c37063cb5599348ebf1551ae"));
        for shared in [one, two] {
            let encrypted = shared.encrypt(&[7; 32]).expect("encrypted");
            assert_eq!(*shared.decrypt(&encrypted).expect("whole blocks"), [7; 32]);
            assert!(shared.decrypt(&encrypted[1..]).is_none() && shared.decrypt(&[]).is_none());
        }
    }

    #[test]
    fn a_pin_is_composed_text_of_at_most_63_bytes() {
        let [composed, decomposed] = ["caf\u{e9}", "cafe\u{301}"].map(|pin| hashed(pin.as_bytes()).expect("a PIN"));
        assert!(composed.same_as(&decomposed));
        assert!(hashed(&[b'1'; 63]).is_ok());
        assert!(hashed(&[b'1'; 64]).is_err() && hashed(b"\xff").is_err());
    }
}

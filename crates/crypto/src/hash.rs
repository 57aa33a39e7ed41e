//! The hash functions of key derivation, from well-kept crates, and one table of them.

use digest::block_api::BlockSizeUser;
use digest::{Digest, FixedOutput, KeyInit, Output, Update};
use hmac::{Hmac, SimpleHmac};

use crate::kdf::{Blake2sHmac, Prf, pbkdf2_block};
use crate::secret::wipe_stack;

/// A hash function as key derivation uses it.
pub struct Hash {
    /// The name as TrueCrypt prints it: `SHA-512`, `RIPEMD-160` …
    pub name: &'static str,
    /// Digest size in bytes.
    pub size: usize,
    digest: fn(&[&[u8]], &mut [u8]),
    pbkdf2_block: Pbkdf2Block,
}

/// Password, salt, iterations, index of the block (from 1), the block, whether to go on.
type Pbkdf2Block = fn(&[u8], &[u8], u32, u32, &mut [u8], &dyn Fn() -> bool) -> bool;

/// Every hash there is.
pub static HASHES: &[&Hash] = &[
    &MD5,
    &SHA1,
    &SHA224,
    &SHA256,
    &SHA384,
    &SHA512,
    &SHA3_224,
    &SHA3_256,
    &SHA3_384,
    &SHA3_512,
    &RIPEMD160,
    &WHIRLPOOL,
    &BLAKE2B_512,
    &BLAKE2S_256,
    &SM3,
    &STREEBOG_256,
    &STREEBOG_512,
];

/// What Linux and cryptsetup's libraries call some of them, without hyphens.
const OTHER_NAMES: &[(&str, &Hash)] = &[
    ("rmd160", &RIPEMD160),
    ("wp512", &WHIRLPOOL),
    ("stribog256", &STREEBOG_256),
    ("stribog512", &STREEBOG_512),
    ("streebog512", &STREEBOG_512),
];

/// MD5 (RFC 1321). Broken: only for what is old.
pub static MD5: Hash =
    Hash { name: "MD5", size: 16, digest: digest::<md5::Md5>, pbkdf2_block: pbkdf2_block::<Hmac<md5::Md5>> };
/// SHA-1 (FIPS 180-4).
pub static SHA1: Hash =
    Hash { name: "SHA-1", size: 20, digest: digest::<sha1::Sha1>, pbkdf2_block: pbkdf2_block::<Hmac<sha1::Sha1>> };
/// SHA-224 (FIPS 180-4).
pub static SHA224: Hash = Hash {
    name: "SHA-224",
    size: 28,
    digest: digest::<sha2::Sha224>,
    pbkdf2_block: pbkdf2_block::<Hmac<sha2::Sha224>>,
};
/// SHA-256 (FIPS 180-4).
pub static SHA256: Hash = Hash {
    name: "SHA-256",
    size: 32,
    digest: digest::<sha2::Sha256>,
    pbkdf2_block: pbkdf2_block::<Hmac<sha2::Sha256>>,
};
/// SHA-384 (FIPS 180-4).
pub static SHA384: Hash = Hash {
    name: "SHA-384",
    size: 48,
    digest: digest::<sha2::Sha384>,
    pbkdf2_block: pbkdf2_block::<Hmac<sha2::Sha384>>,
};
/// SHA-512 (FIPS 180-4).
pub static SHA512: Hash = Hash {
    name: "SHA-512",
    size: 64,
    digest: digest::<sha2::Sha512>,
    pbkdf2_block: pbkdf2_block::<Hmac<sha2::Sha512>>,
};
/// SHA3-224 (FIPS 202).
pub static SHA3_224: Hash = Hash {
    name: "SHA3-224",
    size: 28,
    digest: digest::<sha3::Sha3_224>,
    pbkdf2_block: pbkdf2_block::<SimpleHmac<sha3::Sha3_224>>,
};
/// SHA3-256 (FIPS 202).
pub static SHA3_256: Hash = Hash {
    name: "SHA3-256",
    size: 32,
    digest: digest::<sha3::Sha3_256>,
    pbkdf2_block: pbkdf2_block::<SimpleHmac<sha3::Sha3_256>>,
};
/// SHA3-384 (FIPS 202).
pub static SHA3_384: Hash = Hash {
    name: "SHA3-384",
    size: 48,
    digest: digest::<sha3::Sha3_384>,
    pbkdf2_block: pbkdf2_block::<SimpleHmac<sha3::Sha3_384>>,
};
/// SHA3-512 (FIPS 202).
pub static SHA3_512: Hash = Hash {
    name: "SHA3-512",
    size: 64,
    digest: digest::<sha3::Sha3_512>,
    pbkdf2_block: pbkdf2_block::<SimpleHmac<sha3::Sha3_512>>,
};
/// RIPEMD-160 (ISO/IEC 10118-3).
pub static RIPEMD160: Hash = Hash {
    name: "RIPEMD-160",
    size: 20,
    digest: digest::<ripemd::Ripemd160>,
    pbkdf2_block: pbkdf2_block::<Hmac<ripemd::Ripemd160>>,
};
/// Whirlpool (ISO/IEC 10118-3, the final version of 2003).
pub static WHIRLPOOL: Hash = Hash {
    name: "Whirlpool",
    size: 64,
    digest: digest::<whirlpool::Whirlpool>,
    pbkdf2_block: pbkdf2_block::<Hmac<whirlpool::Whirlpool>>,
};
/// BLAKE2b with digests of 512 bits (RFC 7693).
pub static BLAKE2B_512: Hash = Hash {
    name: "BLAKE2b-512",
    size: 64,
    digest: digest::<blake2::Blake2b512>,
    pbkdf2_block: pbkdf2_block::<SimpleHmac<blake2::Blake2b512>>,
};
/// BLAKE2s with digests of 256 bits (RFC 7693).
pub static BLAKE2S_256: Hash = Hash {
    name: "BLAKE2s-256",
    size: 32,
    digest: digest::<blake2::Blake2s256>,
    pbkdf2_block: pbkdf2_block::<Blake2sHmac>,
};
/// SM3 (GB/T 32905-2016).
pub static SM3: Hash =
    Hash { name: "SM3", size: 32, digest: digest::<sm3::Sm3>, pbkdf2_block: pbkdf2_block::<Hmac<sm3::Sm3>> };
/// Streebog with digests of 256 bits (GOST R 34.11-2012, RFC 6986).
pub static STREEBOG_256: Hash = Hash {
    name: "Streebog-256",
    size: 32,
    digest: digest::<streebog::Streebog256>,
    pbkdf2_block: pbkdf2_block::<Hmac<streebog::Streebog256>>,
};
/// Streebog with digests of 512 bits (GOST R 34.11-2012, RFC 6986).
pub static STREEBOG_512: Hash = Hash {
    name: "Streebog",
    size: 64,
    digest: digest::<streebog::Streebog512>,
    pbkdf2_block: pbkdf2_block::<Hmac<streebog::Streebog512>>,
};

fn digest<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
    let mut hash = D::new();
    parts.iter().for_each(|part| hash.update(part));
    out.copy_from_slice(&hash.finalize());
}

/// HMAC for hashes that it cannot keep in the middle of a key: slower by two compressions.
impl<D: Digest + BlockSizeUser + Clone> Prf for SimpleHmac<D> {
    type Output = Output<Self>;

    fn new(key: &[u8]) -> Self {
        Self::new_from_slice(key).expect("HMAC takes keys of any length")
    }

    fn of(&self, parts: &[&[u8]]) -> Self::Output {
        let mut hmac = self.clone();
        parts.iter().for_each(|part| Update::update(&mut hmac, part));
        hmac.finalize_fixed()
    }
}

/// The five words of SHA-1's state after the whole blocks of `message`, before it is finished: cryptmount makes an
/// initialisation vector of them.
pub fn sha1_state(message: &[u8]) -> [u32; 5] {
    /// FIPS 180-4, section 5.3.1.
    const BEGIN: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut state = BEGIN;
    sha1::block_api::compress(&mut state, message.as_chunks().0);
    wipe_stack();
    state
}

/// The hash of that name, whatever its case, and with or without hyphens: `sha512` is SHA-512. Names of Linux and of
/// cryptsetup are known, too: `rmd160`, `stribog512`.
pub fn by_name(name: &str) -> Option<&'static Hash> {
    let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
    let name = plain(name);
    let known = HASHES.iter().copied().find(|h| plain(h.name) == name);
    known.or_else(|| OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, hash)| *hash))
}

impl Hash {
    /// The digest of `parts`, one after the other.
    ///
    /// # Panics
    /// If `out` is not `size` bytes long.
    pub fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        (self.digest)(parts, out);
        wipe_stack();
    }

    /// Like [`Hash::digest`], but what hashing leaves on the stack stays there: wiping it costs more than hashing a sector. For what
    /// is no secret, and for loops that call [`wipe_stack`] at their end.
    ///
    /// # Panics
    /// If `out` is not `size` bytes long.
    pub fn checksum(&self, parts: &[&[u8]], out: &mut [u8]) {
        (self.digest)(parts, out);
    }

    /// PBKDF2 with HMAC of this hash (RFC 8018, 5.2), filling `out`. Every few iterations it asks `go_on` whether
    /// to; when that says no it returns false and `out` is not complete.
    pub fn pbkdf2(
        &self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        out: &mut [u8],
        go_on: &dyn Fn() -> bool,
    ) -> bool {
        let mut blocks = (1..).zip(out.chunks_mut(self.size));
        blocks.all(|(index, block)| self.pbkdf2_block(password, salt, iterations, index, block, go_on))
    }

    /// One block of PBKDF2's output, at most `size` bytes, so that blocks can be derived on several threads. `index`
    /// counts from 1. Returns false when `go_on` said no.
    pub fn pbkdf2_block(
        &self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        index: u32,
        out: &mut [u8],
        go_on: &dyn Fn() -> bool,
    ) -> bool {
        let finished = (self.pbkdf2_block)(password, salt, iterations, index, out, go_on);
        // The crates could wipe every state that they drop, but that is one or two in each iteration and costs 10 %.
        wipe_stack();
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-4's padding of "abc" in one block gives the digest of "abc".
    #[test]
    fn the_state_after_padding_is_the_digest() {
        let mut block = [0; 64 + 5];
        block[..4].copy_from_slice(b"abc\x80");
        block[63] = 24;
        let state: Vec<u8> = sha1_state(&block).iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut digest = [0; 20];
        SHA1.digest(&[b"abc"], &mut digest);
        assert_eq!(state, digest);
    }
}

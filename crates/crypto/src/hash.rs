//! The hash functions of key derivation and of ESSIV, from well-maintained crates, in one table.
//!
//! The table has what Linux supports or supported (`/proc/crypto` of 6.1 with all modules; crypto/tgr192.c and
//! crypto/rmd*.c of 5.11, the last version with Tiger and the other RIPEMDs), except checksums, which nobody uses for
//! keys, and keyed functions.

#[cfg(target_arch = "x86_64")]
mod keccak;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod messages;
#[cfg(target_arch = "x86_64")]
pub(crate) mod network;
#[cfg(target_arch = "x86_64")]
mod sha512;
#[cfg(target_arch = "x86_64")]
mod wide;

use std::marker::PhantomData;

use blake2::{Blake2b, Blake2s};
use digest::array::ArraySize;
use digest::block_api::BlockSizeUser;
use digest::consts::{U16, U20, U24, U28, U32, U48};
use digest::typenum::Unsigned;
use digest::{Digest, FixedOutput, HashMarker, Output, OutputSizeUser, Update};
use hmac::Hmac;

use crate::kdf::{Blake2sHmac, CachedHmac, Prf, pbkdf2_block};
use crate::secret::{Secret, wipe_stack};

/// A hash for the table, several of which can be computed in the lanes of a vector.
macro_rules! side_by_side {
    ($name:literal, $digest:ty, $prf:ty, $module:ident::$lanes:ident$(<$words:literal>)?, even_alone: $alone:expr) => {
        Hash {
            #[cfg(target_arch = "x86_64")]
            side_by_side: Some(SideBySide {
                blocks: lanes::at_once::<$module::$lanes$(<$words>)?>(),
                even_alone: $alone,
                derive: lanes::derive::<$module::$lanes$(<$words>)?, $prf>,
            }),
            ..hash::<$digest, $prf>($name)
        }
    };
}

/// A hash function as key derivation uses it.
pub struct Hash {
    /// The name as TrueCrypt prints it: `SHA-512`, `RIPEMD-160` …
    pub name: &'static str,
    /// Digest size in bytes.
    pub size: usize,
    digest: fn(&[&[u8]], &mut [u8]),
    pbkdf2_block: Pbkdf2Block,
    hmac: fn(&[u8], &[&[u8]], &mut [u8]),
    #[cfg(target_arch = "x86_64")]
    side_by_side: Option<SideBySide>,
    /// Checksums of blocks of that size, several at a time.
    #[cfg(target_arch = "x86_64")]
    checksums: Option<Checksums>,
}

/// Bytes of a block, the blocks, a digest for each.
#[cfg(target_arch = "x86_64")]
type Checksums = fn(usize, &[u8], &mut [u8]);

/// How PBKDF2 makes several blocks at once.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct SideBySide {
    blocks: usize,
    /// Whether this is the fastest code for a single block too.
    even_alone: fn() -> bool,
    derive: fn(lanes::Task<'_>) -> bool,
}

/// Password, salt, iterations, index of the block (from 1), the block, whether to go on.
type Pbkdf2Block = fn(&[u8], &[u8], u32, u32, &mut [u8], &dyn Fn() -> bool) -> bool;

/// Every supported hash.
pub static HASHES: &[&Hash] = &[
    &MD4,
    &MD5,
    &SHA1,
    &SHA224,
    &SHA256,
    &SHA384,
    &SHA512,
    &SHA512_224,
    &SHA512_256,
    &SHA3_224,
    &SHA3_256,
    &SHA3_384,
    &SHA3_512,
    &RIPEMD128,
    &RIPEMD160,
    &RIPEMD256,
    &RIPEMD320,
    &WHIRLPOOL_256,
    &WHIRLPOOL_384,
    &WHIRLPOOL,
    &TIGER_128,
    &TIGER_160,
    &TIGER_192,
    &BLAKE2B_160,
    &BLAKE2B_256,
    &BLAKE2B_384,
    &BLAKE2B_512,
    &BLAKE2S_128,
    &BLAKE2S_160,
    &BLAKE2S_224,
    &BLAKE2S_256,
    &SM3,
    &STREEBOG_256,
    &STREEBOG_512,
];

/// Names for some of them in Linux and cryptsetup's libraries, without hyphens.
const OTHER_NAMES: &[(&str, &Hash)] = &[
    ("rmd128", &RIPEMD128),
    ("rmd160", &RIPEMD160),
    ("rmd256", &RIPEMD256),
    ("rmd320", &RIPEMD320),
    ("wp256", &WHIRLPOOL_256),
    ("wp384", &WHIRLPOOL_384),
    ("wp512", &WHIRLPOOL),
    ("tgr128", &TIGER_128),
    ("tgr160", &TIGER_160),
    ("tgr192", &TIGER_192),
    ("stribog256", &STREEBOG_256),
    ("stribog512", &STREEBOG_512),
    ("streebog512", &STREEBOG_512),
];

/// MD4 (RFC 1320). Broken: only for old volumes.
pub static MD4: Hash = hash::<md4::Md4, Hmac<md4::Md4>>("MD4");
/// MD5 (RFC 1321). Broken: only for old volumes.
pub static MD5: Hash = hash::<md5::Md5, Hmac<md5::Md5>>("MD5");
/// SHA-1 (FIPS 180-4).
pub static SHA1: Hash = hash::<sha1::Sha1, Hmac<sha1::Sha1>>("SHA-1");
/// SHA-224 (FIPS 180-4).
pub static SHA224: Hash = hash::<sha2::Sha224, Hmac<sha2::Sha224>>("SHA-224");
/// SHA-256 (FIPS 180-4).
pub static SHA256: Hash = Hash {
    #[cfg(target_arch = "x86_64")]
    checksums: Some(checksums::<messages::Sha256>),
    ..hash::<sha2::Sha256, Hmac<sha2::Sha256>>("SHA-256")
};
/// SHA-384 (FIPS 180-4).
pub static SHA384: Hash = hash::<sha2::Sha384, Hmac<sha2::Sha384>>("SHA-384");
/// SHA-512 (FIPS 180-4).
pub static SHA512: Hash = Hash {
    pbkdf2_block: sha512_block,
    #[cfg(target_arch = "x86_64")]
    checksums: Some(checksums::<messages::Sha512>),
    ..side_by_side!("SHA-512", sha2::Sha512, Hmac<sha2::Sha512>, lanes::Sha512, even_alone: || false)
};
/// SHA-512/224 (FIPS 180-4), supported by cryptsetup's libraries.
pub static SHA512_224: Hash = hash::<sha2::Sha512_224, Hmac<sha2::Sha512_224>>("SHA-512/224");
/// SHA-512/256 (FIPS 180-4), supported by cryptsetup's libraries.
pub static SHA512_256: Hash = hash::<sha2::Sha512_256, Hmac<sha2::Sha512_256>>("SHA-512/256");
/// SHA3-224 (FIPS 202).
pub static SHA3_224: Hash = hash::<sha3::Sha3_224, CachedHmac<sha3::Sha3_224>>("SHA3-224");
/// SHA3-256 (FIPS 202).
pub static SHA3_256: Hash = side_by_side!(
    "SHA3-256",
    sha3::Sha3_256,
    CachedHmac<sha3::Sha3_256>,
    keccak::Sha3<4>,
    even_alone: keccak::even_alone
);
/// SHA3-384 (FIPS 202).
pub static SHA3_384: Hash = side_by_side!(
    "SHA3-384",
    sha3::Sha3_384,
    CachedHmac<sha3::Sha3_384>,
    keccak::Sha3<6>,
    even_alone: keccak::even_alone
);
/// SHA3-512 (FIPS 202).
pub static SHA3_512: Hash = side_by_side!(
    "SHA3-512",
    sha3::Sha3_512,
    CachedHmac<sha3::Sha3_512>,
    keccak::Sha3<8>,
    even_alone: keccak::even_alone
);
/// RIPEMD-128 (ISO/IEC 10118-3).
pub static RIPEMD128: Hash = hash::<ripemd::Ripemd128, Hmac<ripemd::Ripemd128>>("RIPEMD-128");
/// RIPEMD-160 (ISO/IEC 10118-3).
pub static RIPEMD160: Hash =
    side_by_side!("RIPEMD-160", ripemd::Ripemd160, Hmac<ripemd::Ripemd160>, lanes::Ripemd160, even_alone: || false);
/// RIPEMD-256, no more secure than RIPEMD-128.
pub static RIPEMD256: Hash = hash::<ripemd::Ripemd256, Hmac<ripemd::Ripemd256>>("RIPEMD-256");
/// RIPEMD-320, no more secure than RIPEMD-160.
pub static RIPEMD320: Hash = hash::<ripemd::Ripemd320, Hmac<ripemd::Ripemd320>>("RIPEMD-320");
/// The first 256 bits of Whirlpool: Linux's `wp256`.
pub static WHIRLPOOL_256: Hash = truncated::<whirlpool::Whirlpool, U32>("Whirlpool-256");
/// The first 384 bits of Whirlpool: Linux's `wp384`.
pub static WHIRLPOOL_384: Hash = truncated::<whirlpool::Whirlpool, U48>("Whirlpool-384");
/// Whirlpool (ISO/IEC 10118-3, the final version of 2003).
pub static WHIRLPOOL: Hash =
    Hash { pbkdf2_block: whirlpool_block, ..hash::<whirlpool::Whirlpool, Hmac<whirlpool::Whirlpool>>("Whirlpool") };
/// The first 128 bits of Linux's Tiger: `tgr128`.
pub static TIGER_128: Hash = truncated::<LinuxTiger, U16>("Tiger-128");
/// The first 160 bits of Linux's Tiger: `tgr160`.
pub static TIGER_160: Hash = truncated::<LinuxTiger, U20>("Tiger-160");
/// Tiger (Anderson, Biham 1996), Linux's variant: `tgr192`.
pub static TIGER_192: Hash = hash::<LinuxTiger, CachedHmac<LinuxTiger>>("Tiger-192");
/// BLAKE2b with digests of 160 bits (RFC 7693).
pub static BLAKE2B_160: Hash = hash::<Blake2b<U20>, CachedHmac<Blake2b<U20>>>("BLAKE2b-160");
/// BLAKE2b with digests of 256 bits (RFC 7693).
pub static BLAKE2B_256: Hash = hash::<Blake2b<U32>, CachedHmac<Blake2b<U32>>>("BLAKE2b-256");
/// BLAKE2b with digests of 384 bits (RFC 7693).
pub static BLAKE2B_384: Hash = hash::<Blake2b<U48>, CachedHmac<Blake2b<U48>>>("BLAKE2b-384");
/// BLAKE2b with digests of 512 bits (RFC 7693).
pub static BLAKE2B_512: Hash = hash::<blake2::Blake2b512, CachedHmac<blake2::Blake2b512>>("BLAKE2b-512");
/// BLAKE2s with digests of 128 bits (RFC 7693).
pub static BLAKE2S_128: Hash = hash::<Blake2s<U16>, CachedHmac<Blake2s<U16>>>("BLAKE2s-128");
/// BLAKE2s with digests of 160 bits (RFC 7693).
pub static BLAKE2S_160: Hash = hash::<Blake2s<U20>, CachedHmac<Blake2s<U20>>>("BLAKE2s-160");
/// BLAKE2s with digests of 224 bits (RFC 7693).
pub static BLAKE2S_224: Hash = hash::<Blake2s<U28>, CachedHmac<Blake2s<U28>>>("BLAKE2s-224");
/// BLAKE2s with digests of 256 bits (RFC 7693).
pub static BLAKE2S_256: Hash =
    side_by_side!("BLAKE2s-256", blake2::Blake2s256, Blake2sHmac, lanes::Blake2s, even_alone: || false);
/// SM3 (GB/T 32905-2016).
pub static SM3: Hash = hash::<sm3::Sm3, Hmac<sm3::Sm3>>("SM3");
/// Streebog with digests of 256 bits (GOST R 34.11-2012, RFC 6986).
pub static STREEBOG_256: Hash = hash::<streebog::Streebog256, Hmac<streebog::Streebog256>>("Streebog-256");
/// Streebog with digests of 512 bits (GOST R 34.11-2012, RFC 6986).
pub static STREEBOG_512: Hash =
    Hash { pbkdf2_block: streebog_block, ..hash::<streebog::Streebog512, Hmac<streebog::Streebog512>>("Streebog") };

fn sha512_block(p: &[u8], salt: &[u8], n: u32, index: u32, out: &mut [u8], go_on: &dyn Fn() -> bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(compress) = sha512::compress() {
        return sha512::pbkdf2_block(compress, p, salt, n, index, out, go_on);
    }
    pbkdf2_block::<Hmac<sha2::Sha512>>(p, salt, n, index, out, go_on)
}

fn whirlpool_block(p: &[u8], salt: &[u8], n: u32, index: u32, out: &mut [u8], go_on: &dyn Fn() -> bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if crate::vbmi::usable() {
        return pbkdf2_block::<wide::WideHmac<wide::Whirlpool>>(p, salt, n, index, out, go_on);
    }
    pbkdf2_block::<Hmac<whirlpool::Whirlpool>>(p, salt, n, index, out, go_on)
}

fn streebog_block(p: &[u8], salt: &[u8], n: u32, index: u32, out: &mut [u8], go_on: &dyn Fn() -> bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if crate::vbmi::usable() {
        return pbkdf2_block::<wide::WideHmac<wide::Streebog>>(p, salt, n, index, out, go_on);
    }
    pbkdf2_block::<Hmac<streebog::Streebog512>>(p, salt, n, index, out, go_on)
}

#[cfg(target_arch = "x86_64")]
fn checksums<S: messages::Sha2>(block: usize, data: &[u8], out: &mut [u8]) {
    let whole = messages::Messages::<S> { state: S::BEGIN, before: 0, head: 0, heads: &[], body: block, bodies: data };
    messages::digests(whole, data.len() / block, out);
}

/// A hash for the table, with the HMAC that goes with it.
const fn hash<D: Digest, P: Prf>(name: &'static str) -> Hash {
    let size = <D::OutputSize as Unsigned>::USIZE;
    Hash {
        name,
        size,
        digest: digest::<D>,
        pbkdf2_block: pbkdf2_block::<P>,
        hmac: hmac::<P>,
        #[cfg(target_arch = "x86_64")]
        side_by_side: None,
        #[cfg(target_arch = "x86_64")]
        checksums: None,
    }
}

/// The first `N` bytes of another hash.
const fn truncated<D, N: ArraySize>(name: &'static str) -> Hash
where
    D: Digest + FixedOutput + Update + HashMarker + BlockSizeUser + Clone + Default,
{
    hash::<Truncated<D, N>, CachedHmac<Truncated<D, N>>>(name)
}

fn digest<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
    let mut hash = D::new();
    parts.iter().for_each(|part| hash.update(part));
    out.copy_from_slice(&hash.finalize());
}

fn hmac<P: Prf>(key: &[u8], parts: &[&[u8]], out: &mut [u8]) {
    out.copy_from_slice(P::new(key).of(parts).as_ref());
}

/// See [`truncated`].
#[derive(Clone, Default)]
struct Truncated<D, N>(D, PhantomData<N>);

impl<D, N> HashMarker for Truncated<D, N> {}

impl<D: BlockSizeUser, N> BlockSizeUser for Truncated<D, N> {
    type BlockSize = D::BlockSize;
}

impl<D, N: ArraySize> OutputSizeUser for Truncated<D, N> {
    type OutputSize = N;
}

impl<D: Update, N> Update for Truncated<D, N> {
    fn update(&mut self, data: &[u8]) {
        Update::update(&mut self.0, data);
    }
}

impl<D: FixedOutput, N: ArraySize> FixedOutput for Truncated<D, N> {
    fn finalize_into(self, out: &mut Output<Self>) {
        let whole = self.0.finalize_fixed();
        out.copy_from_slice(&whole[..N::USIZE]);
    }
}

/// Tiger with the bytes of each of its three words reversed (Linux, crypto/tgr192.c, `tgr192_final`), as in its first
/// implementations.
#[derive(Clone, Default)]
struct LinuxTiger(tiger::Tiger);

impl HashMarker for LinuxTiger {}

impl BlockSizeUser for LinuxTiger {
    type BlockSize = <tiger::Tiger as BlockSizeUser>::BlockSize;
}

impl OutputSizeUser for LinuxTiger {
    type OutputSize = U24;
}

impl Update for LinuxTiger {
    fn update(&mut self, data: &[u8]) {
        Update::update(&mut self.0, data);
    }
}

impl FixedOutput for LinuxTiger {
    fn finalize_into(self, out: &mut Output<Self>) {
        FixedOutput::finalize_into(self.0, out);
        out.chunks_mut(8).for_each(<[u8]>::reverse);
    }
}

/// The five words of SHA-1's state after the whole blocks of `message`, without finalisation: cryptmount derives an IV
/// from them.
pub fn sha1_state(message: &[u8]) -> [u32; 5] {
    /// FIPS 180-4, section 5.3.1.
    const BEGIN: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut state = BEGIN;
    sha1::block_api::compress(&mut state, message.as_chunks().0);
    wipe_stack();
    state
}

/// Finds a hash by name, ignoring case and hyphens: `sha512` is SHA-512. Names used by Linux and cryptsetup's libraries
/// work too: `rmd160`, `stribog512`, `blake2b_512`, `sha512-256`.
pub fn by_name(name: &str) -> Option<&'static Hash> {
    let plain = |name: &str| name.replace(['-', '_', '/'], "").to_ascii_lowercase();
    let name = plain(name);
    let known = HASHES.iter().copied().find(|h| plain(h.name) == name);
    known.or_else(|| OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, hash)| *hash))
}

impl Hash {
    /// The digest of the concatenation of `parts`.
    ///
    /// # Panics
    /// If `out` is not `size` bytes long.
    pub fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        (self.digest)(parts, out);
        wipe_stack();
    }

    /// Like [`Hash::digest`], but does not wipe the stack, which costs more than hashing a sector. For data that is not
    /// secret, and for loops that call [`wipe_stack`] at the end.
    ///
    /// # Panics
    /// If `out` is not `size` bytes long.
    pub fn checksum(&self, parts: &[&[u8]], out: &mut [u8]) {
        (self.digest)(parts, out);
    }

    /// [`Hash::checksum`] of each block of `block` bytes of `data`, one after the other. SHA-256 and SHA-512 take several at
    /// a time.
    ///
    /// # Panics
    /// Unless `data` is whole blocks, and `out` has `size` bytes for each.
    pub fn checksums(&self, block: usize, data: &[u8], out: &mut [u8]) {
        let whole = block > 0 && data.len().is_multiple_of(block) && data.len() / block * self.size == out.len();
        assert!(whole, "checksums of blocks of {block} bytes: {} bytes do not fit {}", data.len(), out.len());
        #[cfg(target_arch = "x86_64")]
        if let Some(checksums) = self.checksums {
            return checksums(block, data, out);
        }
        data.chunks(block).zip(out.chunks_mut(self.size)).for_each(|(bytes, sum)| self.checksum(&[bytes], sum));
    }

    /// HMAC (RFC 2104) of the concatenation of `parts`. Does not wipe the stack: loops call [`wipe_stack`] once, at the end.
    ///
    /// # Panics
    /// If `out` is not `size` bytes long.
    pub fn hmac(&self, key: &[u8], parts: &[&[u8]], out: &mut [u8]) {
        (self.hmac)(key, parts, out);
    }

    /// HKDF with HMAC of this hash (RFC 5869), filling `out`. An empty salt is the same as none.
    ///
    /// # Panics
    /// If `out` is longer than 255 digests.
    pub fn hkdf(&self, key: &[u8], salt: &[u8], info: &[u8], out: &mut [u8]) {
        assert!(out.len() <= 255 * self.size, "HKDF derives no {} bytes", out.len());
        let (mut extracted, mut block) = (Secret::zeroed(self.size), Secret::zeroed(self.size));
        self.hmac(salt, &[key], &mut extracted);
        for (i, part) in out.chunks_mut(self.size).enumerate() {
            let before = if i == 0 { Secret::zeroed(0) } else { Secret::copy_from(&block) };
            self.hmac(&extracted, &[&before, info, &[i as u8 + 1]], &mut block);
            part.copy_from_slice(&block[..part.len()]);
        }
        wipe_stack();
    }

    /// PBKDF2 with HMAC of this hash (RFC 8018, 5.2), filling `out`. `go_on` is asked every few iterations whether to
    /// continue; if it says no, this returns false and `out` is incomplete.
    pub fn pbkdf2(
        &self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        out: &mut [u8],
        go_on: &dyn Fn() -> bool,
    ) -> bool {
        let at_once = self.blocks_at_once();
        let mut pieces = (1..).step_by(at_once).zip(out.chunks_mut(at_once * self.size));
        pieces.all(|(index, piece)| self.pbkdf2_blocks(password, salt, iterations, index, piece, go_on))
    }

    /// The number of PBKDF2 output blocks that one thread of this processor derives in about the time of a single block.
    pub fn blocks_at_once(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(SideBySide { blocks, .. }) = self.side_by_side
            && lanes::usable()
        {
            return blocks;
        }
        1
    }

    /// Derives some blocks of PBKDF2's output, so that several threads can share the work: as many as fit into `out`, at most
    /// [`Hash::blocks_at_once`]. The last one may be cut short. `index` is the number of the first, counted from 1. Returns false
    /// when `go_on` said no.
    ///
    /// # Panics
    /// If `out` has room for more than [`Hash::blocks_at_once`] blocks.
    pub fn pbkdf2_blocks(
        &self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        index: u32,
        out: &mut [u8],
        go_on: &dyn Fn() -> bool,
    ) -> bool {
        assert!(out.len() <= self.blocks_at_once() * self.size, "so many blocks are not derived at once");
        let finished = match self.side_by_side(out.len()) {
            #[cfg(target_arch = "x86_64")]
            Some(derive) => derive(lanes::Task { password, salt, iterations, index, out, go_on, digest: self.digest }),
            _ => (self.pbkdf2_block)(password, salt, iterations, index, out, go_on),
        };
        // The crates could wipe every state they drop, but there are one or two in each iteration, and it costs 10 %.
        wipe_stack();
        finished
    }

    /// Most hashes compute a single block faster with the code for one block.
    #[cfg(target_arch = "x86_64")]
    fn side_by_side(&self, len: usize) -> Option<fn(lanes::Task<'_>) -> bool> {
        self.side_by_side.filter(|how| len > self.size || (how.even_alone)()).map(|how| how.derive)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn side_by_side(&self, _: usize) -> Option<()> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5869, A.1 to A.3.
    #[test]
    fn hkdf_derives_what_the_rfc_says() {
        let count = |from: u8, to: u8| (from..=to).collect::<Vec<_>>();
        let derived = |key: &[u8], salt: &[u8], info: &[u8], len| {
            let mut out = vec![0; len];
            SHA256.hkdf(key, salt, info, &mut out);
            out.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(
            derived(&[0x0b; 22], &count(0, 0x0c), &count(0xf0, 0xf9), 42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
        assert_eq!(
            derived(&count(0, 0x4f), &count(0x60, 0xaf), &count(0xb0, 0xff), 82),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09\
             da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
        );
        assert_eq!(
            derived(&[0x0b; 22], b"", b"", 42),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
        );
    }

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

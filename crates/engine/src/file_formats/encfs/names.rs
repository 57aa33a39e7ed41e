//! Names and targets of links (BlockNameIO.cpp, StreamNameIO.cpp, NullNameIO.cpp, NameIO.cpp and base64.cpp of EncFS 1.9.5).
//!
//! A name is stored with a checksum of 16 bits. In a folder whose names are chained, it depends on the names of all folders above
//! it: their checksums of 64 bits are passed on from one to the next.

use claviger_crypto::secret::wipe_after_sectors;

use super::coder::Coder;

/// Bytes of a name's checksum.
const CHECKSUM: usize = 2;

/// Digits of names that tell cases apart, and of those that do not.
const DIGITS_64: &[u8; 64] = b",-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const DIGITS_32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// How an absolute target of a link begins (DirNode.cpp, `relativeCipherPath`).
const ABSOLUTE: u8 = b'+';

/// How names are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// Padded to whole blocks.
    Block {
        /// Whether case does not matter.
        base32: bool,
        /// Whether the IV depends on the names above, and not only the checksum.
        chained_iv: bool,
    },
    /// As long as they are.
    Stream {
        /// 0 has the checksum at the end, 2 chains IVs.
        version: u64,
    },
    /// In clear.
    Null,
}

impl Naming {
    /// The naming with this interface.
    pub fn of(name: &str, version: u64) -> Option<Self> {
        match (name, version) {
            ("nameio/block", 2..=4) => Some(Self::Block { base32: false, chained_iv: version >= 3 }),
            ("nameio/block32", 2..=4) => Some(Self::Block { base32: true, chained_iv: version >= 3 }),
            ("nameio/stream", 0..=2) => Some(Self::Stream { version }),
            ("nameio/null", 1) => Some(Self::Null),
            _ => None,
        }
    }
}

/// A folder's names.
pub(super) struct NameCoder {
    pub naming: Naming,
    /// Whether they are chained.
    pub chained: bool,
}

/// A name, in clear or as it is stored, and what the names below it depend on.
pub(super) type Coded = (Vec<u8>, Option<u64>);

impl NameCoder {
    /// What names in the root folder depend on.
    pub fn root(&self) -> Option<u64> {
        self.chained.then_some(0)
    }

    /// The longest name in clear, if `stored` bytes are the most that can be stored.
    pub fn longest(&self, coder: &Coder, stored: usize) -> usize {
        let bytes = |bits: usize| (stored * bits / 8).saturating_sub(CHECKSUM);
        match self.naming {
            // At least one byte is padding.
            Naming::Block { base32, .. } => {
                let bytes = bytes(if base32 { 5 } else { 6 });
                (bytes - bytes % coder.block_size()).saturating_sub(1)
            }
            Naming::Stream { .. } => bytes(6),
            Naming::Null => stored,
        }
    }

    /// Decrypts a name. `None` if it is not one of this key and place.
    pub fn decode(&self, coder: &Coder, stored: &[u8], chain: Option<u64>) -> Option<Coded> {
        let decoded = match self.naming {
            Naming::Block { base32, chained_iv } => {
                let bytes = if base32 { from_digits_32(stored) } else { from_digits_64(stored) }?;
                decode_block(coder, bytes, chained_iv, chain)
            }
            Naming::Stream { version } => decode_stream(coder, from_digits_64(stored)?, version, chain),
            Naming::Null => Some((stored.to_vec(), chain)),
        };
        wipe_after_sectors();
        decoded
    }

    /// Encrypts a name.
    pub fn encode(&self, coder: &Coder, plain: &[u8], chain: Option<u64>) -> Vec<u8> {
        let encoded = match self.naming {
            Naming::Block { base32, chained_iv } => {
                let bytes = encode_block(coder, plain, chained_iv, chain);
                if base32 { to_digits(&bytes, DIGITS_32) } else { to_digits(&bytes, DIGITS_64) }
            }
            Naming::Stream { version } => to_digits(&encode_stream(coder, plain, version, chain), DIGITS_64),
            Naming::Null => plain.to_vec(),
        };
        wipe_after_sectors();
        encoded
    }

    /// Decrypts the target of a link: each step is a name, and an absolute path is one name as a whole.
    pub fn decode_target(&self, coder: &Coder, stored: &[u8]) -> Option<Vec<u8>> {
        if let Some(whole) = stored.strip_prefix(&[ABSOLUTE]) {
            let (path, _) = self.decode(coder, whole, None)?;
            return Some([b"/", &path[..]].concat());
        }
        let (mut chain, mut path) = (self.root(), Vec::new());
        for (i, step) in stored.split(|byte| *byte == b'/').enumerate() {
            if i > 0 && !path.is_empty() {
                path.push(b'/');
            }
            match step {
                b"" | b"." | b".." => path.extend(step),
                step => {
                    let (name, next) = self.decode(coder, step, chain)?;
                    path.extend(name);
                    chain = next;
                }
            }
        }
        Some(path)
    }
}

/// A checksum of 16 bits (Cipher.cpp, `MAC_16`).
fn folded(checksum: u64) -> u16 {
    let half = (checksum >> 32) as u32 ^ checksum as u32;
    (half >> 16) as u16 ^ half as u16
}

/// What the IV of a name depends on.
fn seed(checksum: u16, chained_iv: bool, chain: Option<u64>) -> u64 {
    u64::from(checksum) ^ chain.filter(|_| chained_iv).unwrap_or(0)
}

/// A checksum, and the name padded with bytes that say how many they are, encrypted.
fn decode_block(coder: &Coder, mut bytes: Vec<u8>, chained_iv: bool, chain: Option<u64>) -> Option<Coded> {
    let (checksum, name) = bytes.split_first_chunk_mut::<CHECKSUM>()?;
    let checksum = u16::from_be_bytes(*checksum);
    let block = coder.block_size();
    if name.is_empty() || !name.len().is_multiple_of(block) {
        return None;
    }
    coder.decrypt_blocks(seed(checksum, chained_iv, chain), name);
    let whole = coder.checksum(&[name], chain);
    let padding = usize::from(*name.last()?);
    let len = name.len().checked_sub(padding).filter(|_| (1..=block).contains(&padding))?;
    (folded(whole) == checksum).then(|| (name[..len].to_vec(), chain.map(|_| whole)))
}

fn encode_block(coder: &Coder, plain: &[u8], chained_iv: bool, chain: Option<u64>) -> Vec<u8> {
    let padding = coder.block_size() - plain.len() % coder.block_size();
    let mut name = plain.to_vec();
    name.resize(plain.len() + padding, padding as u8);
    let checksum = folded(coder.checksum(&[&name], chain));
    coder.encrypt_blocks(seed(checksum, chained_iv, chain), &mut name);
    [&checksum.to_be_bytes()[..], &name].concat()
}

fn decode_stream(coder: &Coder, bytes: Vec<u8>, version: u64, chain: Option<u64>) -> Option<Coded> {
    let (checksum, name) = match version {
        0 => bytes.split_last_chunk::<CHECKSUM>().map(|(name, checksum)| (checksum, name))?,
        _ => bytes.split_first_chunk::<CHECKSUM>()?,
    };
    let (checksum, mut name) = (u16::from_be_bytes(*checksum), name.to_vec());
    if name.is_empty() {
        return None;
    }
    coder.decrypt_stream(seed(checksum, version >= 2, chain), &mut name);
    let whole = coder.checksum(&[&name], chain);
    (folded(whole) == checksum).then(|| (name, chain.map(|_| whole)))
}

fn encode_stream(coder: &Coder, plain: &[u8], version: u64, chain: Option<u64>) -> Vec<u8> {
    let checksum = folded(coder.checksum(&[plain], chain));
    let mut name = plain.to_vec();
    coder.encrypt_stream(seed(checksum, version >= 2, chain), &mut name);
    let checksum = &checksum.to_be_bytes()[..];
    if version == 0 { [&name, checksum].concat() } else { [checksum, &name].concat() }
}

fn from_digits_64(stored: &[u8]) -> Option<Vec<u8>> {
    from_digits(stored, 6, |digit| DIGITS_64.binary_search(&digit).ok())
}

fn from_digits_32(stored: &[u8]) -> Option<Vec<u8>> {
    from_digits(stored, 5, |digit| DIGITS_32.iter().position(|known| *known == digit.to_ascii_uppercase()))
}

/// Bytes from digits of `bits` bits each, the lowest bits first. The bits left over are zero.
fn from_digits(stored: &[u8], bits: u32, value: impl Fn(u8) -> Option<usize>) -> Option<Vec<u8>> {
    let (mut bytes, mut work, mut there) = (Vec::with_capacity(stored.len()), 0, 0);
    for digit in stored {
        work |= value(*digit)? << there;
        there += bits;
        if there >= 8 {
            bytes.push(work as u8);
            work >>= 8;
            there -= 8;
        }
    }
    (work == 0 && there < bits).then_some(bytes)
}

/// The inverse of [`from_digits`].
fn to_digits(bytes: &[u8], digits: &[u8]) -> Vec<u8> {
    let bits = digits.len().trailing_zeros();
    let (mut stored, mut work, mut there) = (Vec::with_capacity(bytes.len() * 2), 0, 0);
    let mut take = |work: &mut usize| {
        stored.push(digits[*work % digits.len()]);
        *work >>= bits;
    };
    for byte in bytes {
        work |= usize::from(*byte) << there;
        there += 8;
        while there >= bits {
            take(&mut work);
            there -= bits;
        }
    }
    if there > 0 {
        take(&mut work);
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_hold_bytes_of_any_length() {
        for len in 0..40u8 {
            let bytes: Vec<_> = (0..len).map(|i| i.wrapping_mul(37).wrapping_add(200)).collect();
            assert_eq!(from_digits_64(&to_digits(&bytes, DIGITS_64)).as_ref(), Some(&bytes));
            let thirty_two = to_digits(&bytes, DIGITS_32);
            assert_eq!(from_digits_32(&thirty_two.to_ascii_lowercase()).as_ref(), Some(&bytes));
        }
        assert_eq!(from_digits_64(b"a.b"), None);
        assert_eq!(from_digits_64(b"zz"), None, "four bits are left over");
    }
}

//! DPAPI master keys, encrypted with the user's password.
//!
//! The file, all little-endian: version (2), 8 bytes, GUID (36 characters of UTF-16), 4 bytes, policy, flags, then four lengths of
//! 8 bytes: of the master key, a backup key, the password history and the domain's copy. The master key: version, 16 bytes of salt,
//! iterations, hash, cipher, then the ciphertext. Decrypted, that is 16 bytes of salt, a MAC as long as the hash, and finally the
//! 64 bytes of the key.

use claviger_crypto::Secret;
use claviger_crypto::hash;
use claviger_crypto::secret::wipe_stack;

use super::algorithms::{self, CbcCipher, HashAlgorithm};
use super::{Fields, Login, wide_text};
use crate::error::{Error, Result};
use crate::private_keys::pbe::utf16;

/// The size of a master key, in bytes.
const KEY: usize = 64;

/// The most iterations accepted. Windows uses 4,000 to 24,000.
const ITERATIONS_MAX: u32 = 200_000;

/// Keys that may encrypt a user's master keys.
pub struct Candidates(pub(super) Vec<Secret>);

impl Candidates {
    /// Derives the candidates from a login and the user's security identifier. For a password these are its SHA-1 hash (local
    /// accounts), its MD4 or NT hash (domain accounts), and the stretched NT hash (domain accounts since Windows 10 1607, also for
    /// protected users).
    pub fn new(login: &Login, sid: &str) -> Result<Self> {
        let (mut nt_hash, mut all) = (Secret::zeroed(16), Vec::new());
        match login {
            Login::NtHash(hash) => nt_hash.copy_from_slice(hash),
            Login::Password(password) => {
                let wide = utf16(password)?;
                let mut sha1 = Secret::zeroed(20);
                hash::SHA1.digest(&[&wide], &mut sha1);
                hash::MD4.digest(&[&wide], &mut nt_hash);
                all.push(sha1);
            }
        }
        let sid = utf16(sid.as_bytes())?;
        let (mut once, mut stretched) = (Secret::zeroed(32), Secret::zeroed(16));
        hash::SHA256.pbkdf2(&nt_hash, &sid, 10_000, &mut once, &|| true);
        hash::SHA256.pbkdf2(&once, &sid, 1, &mut stretched, &|| true);
        all.extend([nt_hash, stretched]);
        let with_sid = |secret: Secret| {
            let mut key = Secret::zeroed(20);
            hash::SHA1.hmac(&secret, &[&sid, &[0, 0]], &mut key);
            key
        };
        let all = all.into_iter().map(with_sid).collect();
        wipe_stack();
        Ok(Self(all))
    }
}

/// A master key, still encrypted.
pub struct MasterKeyFile {
    /// The identifier that blobs use.
    pub guid: String,
    salt: [u8; 16],
    iterations: u32,
    hash: HashAlgorithm,
    cipher: CbcCipher,
    ciphertext: Vec<u8>,
}

impl MasterKeyFile {
    /// Parses a master key file.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(bytes);
        let version = fields.u32("version of the master key file")?;
        if !matches!(version, 1 | 2) {
            return Err(Error::unsupported(format!("a master key file of version {version}")));
        }
        fields.take(8, "master key file")?;
        let guid = wide_text(fields.take(72, "GUID")?).to_ascii_lowercase();
        fields.take(12, "policy and flags")?;
        let len = fields.u64("length of the master key")?;
        fields.take(24, "lengths")?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut key = Fields::new(fields.take(len, "master key")?);
        key.u32("version of the master key")?;
        let salt = key.take(16, "salt")?.try_into().expect("16 bytes");
        let iterations = key.u32("iterations")?;
        if !(1..=ITERATIONS_MAX).contains(&iterations) {
            return Err(key.damaged("iterations", format!("{iterations}")));
        }
        let hash = algorithms::hash(key.u32("hash")?, algorithms::SHA1)?;
        let cipher = CbcCipher::by_number(key.u32("cipher")?)?;
        let ciphertext = key.rest().to_vec();
        if !ciphertext.len().is_multiple_of(cipher.block) || ciphertext.len() < 16 + hash.0.size + KEY {
            return Err(key.damaged("master key", format!("{} bytes of ciphertext", ciphertext.len())));
        }
        Ok(Self { guid, salt, iterations, hash, cipher, ciphertext })
    }

    /// Whether it opens almost instantly.
    pub fn quick(&self) -> bool {
        self.iterations <= 100
    }

    /// Decrypts the key with the first candidate that opens it.
    pub fn open(&self, candidates: &Candidates) -> Option<Secret> {
        candidates.0.iter().find_map(|candidate| self.open_with(candidate))
    }

    fn open_with(&self, candidate: &Secret) -> Option<Secret> {
        let (hash, _) = self.hash;
        let CbcCipher { key, block } = self.cipher;
        let mut derived = Secret::zeroed(key + block);
        self.derive(candidate, &mut derived);
        let mut iv = [0; 16];
        iv[..block].copy_from_slice(&derived[key..]);
        let mut plain = Secret::copy_from(&self.ciphertext);
        self.cipher.with_key(&derived).cbc_decrypt(&iv, &mut plain);
        let (salt, rest) = plain.split_at(16);
        let master = &rest[rest.len() - KEY..];
        let (mut mac_key, mut mac) = (Secret::zeroed(hash.size), Secret::zeroed(hash.size));
        hash.hmac(candidate, &[salt], &mut mac_key);
        hash.hmac(&mac_key, &[master], &mut mac);
        wipe_stack();
        mac.same_as(&rest[..hash.size]).then(|| Secret::copy_from(master))
    }

    /// Microsoft's variant of PBKDF2: each iteration hashes the sum so far, not the last term.
    fn derive(&self, password: &[u8], out: &mut [u8]) {
        let (hash, _) = self.hash;
        let (mut sum, mut next) = (Secret::zeroed(hash.size), Secret::zeroed(hash.size));
        for (index, room) in (1u32..).zip(out.chunks_mut(hash.size)) {
            hash.hmac(password, &[&self.salt, &index.to_be_bytes()], &mut sum);
            for _ in 1..self.iterations {
                hash.hmac(password, &[&sum], &mut next);
                sum.iter_mut().zip(&next[..]).for_each(|(sum, next)| *sum ^= next);
            }
            room.copy_from_slice(&sum[..room.len()]);
        }
        wipe_stack();
    }
}

//! A maker of Windows profiles: master keys, private keys and certificates as stored with DPAPI. It does not use the
//! engine; its sources are mimikatz's structures (modules/kull_m_key.h, kull_m_dpapi.h) and impacket's dpapi.py.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use des::TdesEde3;
use hmac::{Hmac, Mac};
use md4::Md4;
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha512};

use crate::random::Random;
use crate::tools;

/// One of the two sets of algorithms in Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Windows XP: 3DES and SHA-1.
    Xp,
    /// Windows 7 and later: AES-256 and SHA-512.
    Seven,
}

/// The kind of account, which determines how master keys are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Local account: SHA-1 of the password.
    Local,
    /// Domain account: MD4 of the password, the NT hash.
    Domain,
    /// Domain account with a stretched NT hash.
    Protected,
}

/// A profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The user's password.
    pub password: String,
    /// The user's security identifier.
    pub sid: String,
    /// The algorithms.
    pub era: Era,
    /// The kind of account.
    pub account: Account,
    /// Iterations of the master keys.
    pub iterations: u32,
    /// The seed of all random data.
    pub seed: u64,
}

impl Profile {
    /// A profile that opens quickly.
    pub fn new(password: &str, era: Era, account: Account) -> Self {
        let (password, sid) = (password.to_owned(), "S-1-5-21-1111111111-2222222222-333333333-1001".to_owned());
        Self { password, sid, era, account, iterations: 50, seed: 1 }
    }

    /// The profile's files: paths below `AppData/Roaming/Microsoft`, with their contents.
    pub fn files(&self, keys: &[Key]) -> Vec<(String, Vec<u8>)> {
        let mut random = Random::new(self.seed);
        let master = self.master_key(&mut random);
        let mut files = vec![
            (format!("Protect/{}/{}", self.sid, master.guid), master.file.clone()),
            (format!("Protect/{}/Preferred", self.sid), [&guid_bytes(&master.guid)[..], &[0; 8]].concat()),
            ("Protect/CREDHIST".to_owned(), vec![0; 24]),
        ];
        for key in keys {
            let numbers = Numbers::read(&key.pkcs1);
            match key.kind {
                Kind::Capi => {
                    let container = self.capi(&numbers, &key.container, &master, &mut random);
                    files.push((format!("Crypto/RSA/{}/{}_machine", self.sid, key.container), container));
                }
                Kind::Cng => {
                    let container = self.cng(&numbers, &key.container, &master, &mut random);
                    files.push((format!("Crypto/Keys/{}_machine", key.container), container));
                }
            }
            if let Some(der) = &key.certificate {
                let print: String = Sha1::digest(der).iter().map(|byte| format!("{byte:02X}")).collect();
                files.push((format!("SystemCertificates/My/Certificates/{print}"), stored_certificate(der, key)));
            }
        }
        files
    }

    /// Writes the files into the folder of a profile.
    pub fn write(&self, profile: &Path, keys: &[Key]) {
        for (name, contents) in self.files(keys) {
            let path = profile.join("AppData/Roaming/Microsoft").join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, contents).expect("a file");
        }
    }

    /// HMAC of the account's password hash and the security identifier.
    fn user_key(&self) -> Vec<u8> {
        let wide = utf16(&self.password);
        let nt_hash = Md4::digest(&wide).to_vec();
        let base = match self.account {
            Account::Local => Sha1::digest(&wide).to_vec(),
            Account::Domain => nt_hash,
            Account::Protected => {
                let sid = utf16(&self.sid);
                let once = pbkdf2_sha256(&nt_hash, &sid, 10_000);
                pbkdf2_sha256(&once, &sid, 1)[..16].to_vec()
            }
        };
        hmac_sha1(&base, &utf16(&format!("{}\0", self.sid)))
    }

    fn hmac(&self, key: &[u8], message: &[u8]) -> Vec<u8> {
        match self.era {
            Era::Xp => hmac_sha1(key, message),
            Era::Seven => Hmac::<Sha512>::new_from_slice(key)
                .expect("any key")
                .chain_update(message)
                .finalize()
                .into_bytes()
                .to_vec(),
        }
    }

    /// Key size and block size in bytes, and the cipher's number.
    fn cipher(&self) -> (usize, usize, u32) {
        match self.era {
            Era::Xp => (24, 8, 0x6603),
            Era::Seven => (32, 16, 0x6610),
        }
    }

    fn encrypt(&self, key: &[u8], iv: &[u8], plain: &[u8]) -> Vec<u8> {
        let (key_len, block, _) = self.cipher();
        let mut out: Vec<u8> = Vec::new();
        let mut last = iv.to_vec();
        for piece in plain.chunks(block) {
            let mut mixed: Vec<u8> = piece.iter().zip(&last).map(|(a, b)| a ^ b).collect();
            match self.era {
                Era::Xp => TdesEde3::new_from_slice(&key[..key_len])
                    .expect("24 bytes")
                    .encrypt_block((&mut mixed[..]).try_into().expect("a block")),
                Era::Seven => Aes256::new_from_slice(&key[..key_len])
                    .expect("32 bytes")
                    .encrypt_block((&mut mixed[..]).try_into().expect("a block")),
            }
            out.extend_from_slice(&mixed);
            last = mixed;
        }
        out
    }

    fn master_key(&self, random: &mut Random) -> MasterKey {
        let (key_len, block, cipher) = self.cipher();
        let guid = "01234567-89ab-cdef-0123-456789abcdef".to_owned();
        let (salt, mac_salt, key) = (random.bytes(16), random.bytes(16), random.bytes(64));
        let user = self.user_key();
        let mut derived = Vec::new();
        let mut index = 1u32;
        while derived.len() < key_len + block {
            let mut sum = self.hmac(&user, &[&salt[..], &index.to_be_bytes()].concat());
            for _ in 1..self.iterations {
                let next = self.hmac(&user, &sum);
                sum.iter_mut().zip(next).for_each(|(sum, next)| *sum ^= next);
            }
            derived.extend(sum);
            index += 1;
        }
        let mac = self.hmac(&self.hmac(&user, &mac_salt), &key);
        // The ciphertext has whole blocks, with the padding in front of the key.
        let mut plain = [&mac_salt[..], &mac].concat();
        plain.resize((plain.len() + key.len()).next_multiple_of(block) - key.len(), 0);
        plain.extend_from_slice(&key);
        // Here the number of HMAC stands for SHA-1.
        let hash = if self.era == Era::Xp { 0x8009 } else { 0x800e };
        let mut stored = words(&[2]);
        stored.extend_from_slice(&salt);
        stored.extend(words(&[self.iterations, hash, cipher]));
        stored.extend(self.encrypt(&derived, &derived[key_len..key_len + block], &plain));
        let mut file = words(&[2, 0, 0]);
        file.extend(utf16(&guid));
        file.extend(words(&[0, 0, 5]));
        for len in [stored.len(), 0, 0, 0] {
            file.extend_from_slice(&(len as u64).to_le_bytes());
        }
        file.extend(stored);
        MasterKey { guid, key, file }
    }

    /// A blob.
    fn blob(&self, plain: &[u8], entropy: &[u8], master: &MasterKey, random: &mut Random) -> Vec<u8> {
        let (key_len, block, cipher) = self.cipher();
        let (hash, hash_bits, hash_block) = if self.era == Era::Xp { (0x8004, 160, 64) } else { (0x800e, 512, 128) };
        let (salt, mac_salt) = (random.bytes(hash_bits / 8), random.bytes(hash_bits / 8));
        let hashed = Sha1::digest(&master.key);
        let session = self.hmac(&hashed, &[&salt[..], entropy].concat());
        let key = if session.len() >= key_len {
            session
        } else {
            let pad = |with: u8| {
                let padded: Vec<u8> =
                    session.iter().copied().chain(iter::repeat(0)).take(hash_block).map(|b| b ^ with).collect();
                Sha1::digest(padded).to_vec()
            };
            [pad(0x36), pad(0x5c)].concat()
        };
        let padding = block - plain.len() % block;
        let padded = [plain, &vec![padding as u8; padding]].concat();
        let mut signed = words(&[1]);
        signed.extend(guid_bytes(&master.guid));
        signed.extend(words(&[0]));
        counted(&mut signed, &utf16("CryptoAPI Private Key\0"));
        signed.extend(words(&[cipher, key_len as u32 * 8]));
        counted(&mut signed, &salt);
        counted(&mut signed, &[]);
        signed.extend(words(&[hash, hash_bits as u32]));
        counted(&mut signed, &mac_salt);
        counted(&mut signed, &self.encrypt(&key, &[0; 16], &padded));
        let mac = self.hmac(&hashed, &[&mac_salt[..], entropy, &signed].concat());
        let mut blob = words(&[1]);
        blob.extend(guid_bytes("df9d8cd0-1501-11d1-8c7a-00c04fc297eb"));
        blob.extend(signed);
        counted(&mut blob, &mac);
        blob
    }

    /// A CryptoAPI container with an encryption key.
    fn capi(&self, key: &Numbers, name: &str, master: &MasterKey, random: &mut Random) -> Vec<u8> {
        let len = key.modulus.len();
        let number = |out: &mut Vec<u8>, bytes: &[u8], room: usize| {
            let from = out.len();
            out.extend(bytes.iter().rev());
            out.resize(from + room, 0);
        };
        let header = |magic: &[u8]| {
            let mut out = magic.to_vec();
            out.extend(words(&[len as u32 + 8, len as u32 * 8, len as u32 - 1, key.exponent]));
            out
        };
        let (mut public, mut private) = (header(b"RSA1"), header(b"RSA2"));
        number(&mut public, &key.modulus, len + 8);
        number(&mut private, &key.modulus, len + 8);
        for half in &key.halves {
            number(&mut private, half, len / 2 + 4);
        }
        number(&mut private, &key.private, len + 8);
        let private = self.blob(&private, &[], master, random);
        let flags = self.blob(&words(&[1]), b"Hj1diQ6kpUx7VC4m\0", master, random);
        let lens = [name.len() + 1, 0, 0, public.len(), private.len(), 20, 0, flags.len()];
        let mut file = words(&[2, 0]);
        file.extend(words(&lens.map(|len| len as u32)));
        file.extend_from_slice(name.as_bytes());
        file.push(0);
        file.extend([0; 20]);
        [&file[..], &public, &private, &flags].concat()
    }

    /// A CNG container.
    fn cng(&self, key: &Numbers, name: &str, master: &MasterKey, random: &mut Random) -> Vec<u8> {
        let [p, q, ..] = &key.halves;
        let exponent = key.exponent.to_be_bytes()[1..].to_vec();
        let mut private = b"RSA2".to_vec();
        let lens = [key.modulus.len() * 8, exponent.len(), key.modulus.len(), p.len(), q.len()];
        private.extend(words(&lens.map(|len| len as u32)));
        for number in [&exponent, &key.modulus, p, q] {
            private.extend_from_slice(number);
        }
        let private = self.blob(&private, b"xT5rZW5qVVbrvpuA\0", master, random);
        let properties = self.blob(b"properties", b"6jnkd5J3ZdQDtrsu\0", master, random);
        let (public, name) = (vec![7; 30], utf16(name));
        let mut file = words(&[1, 0, name.len() as u32, 2]);
        file.extend(words(&[public.len() as u32, properties.len() as u32, private.len() as u32]));
        file.extend([0; 16]);
        [&file[..], &name, &public, &properties, &private].concat()
    }
}

/// The API that stores a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CryptoAPI.
    Capi,
    /// CNG, its successor.
    Cng,
}

/// A private key of a profile.
#[derive(Clone, Debug)]
pub struct Key {
    /// The API that stores it.
    pub kind: Kind,
    /// The name of its container.
    pub container: String,
    /// The key, in PKCS#1.
    pub pkcs1: Vec<u8>,
    /// Its certificate, in DER.
    pub certificate: Option<Vec<u8>>,
}

struct MasterKey {
    guid: String,
    key: Vec<u8>,
    file: Vec<u8>,
}

/// The numbers of an RSA key, big-endian.
struct Numbers {
    modulus: Vec<u8>,
    exponent: u32,
    private: Vec<u8>,
    /// Primes, exponents and coefficient, each half as long as the modulus.
    halves: [Vec<u8>; 5],
}

impl Numbers {
    fn read(pkcs1: &[u8]) -> Self {
        let mut rest = &pkcs1[header(pkcs1).0..];
        let mut numbers = Vec::new();
        while !rest.is_empty() {
            let (from, len) = header(rest);
            numbers.push(rest[from..from + len].iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>());
            rest = &rest[from + len..];
        }
        let [_version, modulus, exponent, private, halves @ ..] = &numbers[..] else { panic!("no key of PKCS#1") };
        let half = modulus.len() / 2;
        let padded = |i: usize| [&vec![0; half - halves[i].len()][..], &halves[i]].concat();
        Self {
            modulus: modulus.clone(),
            exponent: exponent.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
            private: private.clone(),
            halves: std::array::from_fn(padded),
        }
    }
}

/// The header size and content length of a DER value.
fn header(der: &[u8]) -> (usize, usize) {
    match der[1] {
        len @ 0..0x80 => (2, usize::from(len)),
        digits => {
            let digits = usize::from(digits & 0x7f);
            (2 + digits, der[2..2 + digits].iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)))
        }
    }
}

/// A certificate as in a store: its hash, the location of its key, its name, and the certificate itself.
fn stored_certificate(der: &[u8], key: &Key) -> Vec<u8> {
    let (container, provider) = (utf16(&format!("{}\0", key.container)), utf16("Some Provider\0"));
    let mut place = words(&[28, 28 + container.len() as u32, 1, 0, 0, 0, 1]);
    place.extend(container);
    place.extend(provider);
    let mut file = Vec::new();
    for (property, value) in [(3, Sha1::digest(der).to_vec()), (2, place), (11, utf16("my key\0")), (32, der.to_vec())]
    {
        file.extend(words(&[property, 1]));
        counted(&mut file, &value);
    }
    file
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// A GUID as Windows stores it: the first three parts are little-endian numbers.
fn guid_bytes(text: &str) -> [u8; 16] {
    let number = u128::from_str_radix(&text.replace('-', ""), 16).expect("a GUID");
    let mut bytes = number.to_be_bytes();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

fn hmac_sha1(key: &[u8], message: &[u8]) -> Vec<u8> {
    Hmac::<Sha1>::new_from_slice(key).expect("any key").chain_update(message).finalize().into_bytes().to_vec()
}

fn pbkdf2_sha256(password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
    let hmac = |message: &[u8]| {
        Hmac::<Sha256>::new_from_slice(password)
            .expect("any key")
            .chain_update(message)
            .finalize()
            .into_bytes()
            .to_vec()
    };
    let mut next = hmac(&[salt, &[0, 0, 0, 1]].concat());
    let mut sum = next.clone();
    for _ in 1..iterations {
        next = hmac(&next);
        sum.iter_mut().zip(&next).for_each(|(sum, next)| *sum ^= next);
    }
    sum
}

/// The private key in a profile's CryptoAPI container, as impacket decrypts the blob with the password. A reported skip
/// if impacket is not installed.
///
/// # Panics
/// In CI, if it is not installed.
pub fn impacket(profile: &Path, password: &str) -> Option<Vec<u8>> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/dpapi.py");
    let mut command = Command::new(crate::bitlocker::oracles::python()?);
    let output = tools::run(command.arg(script).arg(profile).arg(password));
    Some(output.stdout)
}

//! Folders of EncFS: configurations of every kind, which Debian's program opens and fills.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::Acceleration;
use claviger_crypto::ciphers::{BlockCipher, Cipher, aes, legacy, national};
use claviger_crypto::hash::SHA1;
use claviger_engine::file_formats::{self, Stacked};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Result, Secret, Unlock};
use claviger_testkit::mounts::{Mount, PATIENCE, Server, bounded, wait_until};
use claviger_testkit::tools;
use tempfile::TempDir;

pub const PASSPHRASE: &str = "a passphrase";
pub const CONFIG: &str = ".encfs6.xml";

/// How its configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// EncFS 1.7 to 1.9.
    New,
    /// EncFS 1.5, with Boost 1.41 and older.
    Boost,
    /// EncFS 1.4, without a salt.
    Unsalted,
    /// EncFS 1.1 to 1.3.
    Five,
    /// EncFS 1.0, which had fewer properties.
    Four,
}

/// The properties of a folder.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub cipher: (&'static str, u64),
    pub key_bits: usize,
    pub naming: (&'static str, u64),
    pub block: usize,
    pub file_ivs: bool,
    pub chained: bool,
    pub by_path: bool,
    pub checksum: usize,
    pub random: usize,
    pub holes: bool,
    pub layout: Layout,
}

/// What `encfs --standard` makes, but for the cost of its key.
pub const STANDARD_FOLDER: Recipe = Recipe {
    cipher: ("ssl/aes", 3),
    key_bits: 192,
    naming: ("nameio/block", 4),
    block: 1024,
    file_ivs: true,
    chained: true,
    by_path: false,
    checksum: 0,
    random: 0,
    holes: true,
    layout: Layout::New,
};

/// What `encfs --paranoia` makes.
pub const PARANOIA: Recipe = Recipe { key_bits: 256, by_path: true, checksum: 8, holes: false, ..STANDARD_FOLDER };

/// Every property that a folder can have.
pub fn recipes() -> Vec<Recipe> {
    let all = STANDARD_FOLDER;
    vec![
        all,
        PARANOIA,
        Recipe { key_bits: 128, naming: ("nameio/stream", 2), file_ivs: false, chained: false, ..all },
        Recipe { naming: ("nameio/null", 1), block: 64, ..all },
        Recipe { naming: ("nameio/null", 1), by_path: true, checksum: 8, ..all },
        Recipe { naming: ("nameio/block32", 4), checksum: 8, random: 8, ..all },
        Recipe { checksum: 3, random: 4, holes: false, chained: false, ..all },
        Recipe { random: 5, block: 512, ..all },
        Recipe { block: 4096, holes: false, file_ivs: false, by_path: true, ..all },
        Recipe { cipher: ("ssl/blowfish", 3), key_bits: 160, naming: ("nameio/stream", 2), ..all },
        Recipe { cipher: ("ssl/blowfish", 2), key_bits: 128, block: 520, checksum: 8, ..all },
        Recipe { cipher: ("ssl/blowfish", 1), key_bits: 256, layout: Layout::Unsalted, ..all },
        Recipe { cipher: ("ssl/camellia", 3), key_bits: 256, by_path: true, ..all },
        Recipe { cipher: ("ssl/aes", 2), naming: ("nameio/stream", 1), layout: Layout::Boost, ..all },
        Recipe { cipher: ("ssl/aes", 1), naming: ("nameio/block", 2), layout: Layout::Unsalted, ..all },
        Recipe { naming: ("nameio/stream", 0), chained: false, key_bits: 256, layout: Layout::Unsalted, ..all },
        Recipe { naming: ("nameio/block", 3), layout: Layout::Boost, random: 1, checksum: 1, ..all },
        Recipe { cipher: ("ssl/aes", 2), layout: Layout::Five, by_path: true, checksum: 8, holes: false, ..all },
        Recipe {
            cipher: ("ssl/blowfish", 2),
            key_bits: 160,
            naming: ("nameio/stream", 1),
            layout: Layout::Five,
            holes: false,
            ..all
        },
        Recipe {
            cipher: ("ssl/aes", 1),
            naming: ("nameio/stream", 1),
            file_ivs: false,
            chained: false,
            holes: false,
            layout: Layout::Four,
            ..all
        },
    ]
}

/// A key with its IV, for the few things that a configuration needs.
struct Key {
    cipher: Box<dyn BlockCipher>,
    key: Vec<u8>,
    iv: Vec<u8>,
    version: u64,
}

impl Key {
    fn hmac(&self, parts: &[&[u8]]) -> [u8; 20] {
        let mut out = [0; 20];
        SHA1.hmac(&self.key, parts, &mut out);
        out
    }

    fn iv(&self, seed: u64) -> Vec<u8> {
        if self.version >= 3 {
            return self.hmac(&[&self.iv, &seed.to_le_bytes()])[..self.iv.len()].to_vec();
        }
        let first = 0x060a_4011u32.wrapping_mul(seed as u32);
        let second = 0x0221_040du32.wrapping_mul(seed as u32 ^ 0xd3fe_a11c);
        let shifts = [(0, 24), (1, 16), (0, 8), (1, 0), (1, 24), (0, 16), (1, 8), (0, 0)];
        let more = [(0, 0), (1, 8), (0, 16), (1, 24), (0, 24), (1, 16), (0, 8), (1, 0)];
        let mask = |(which, shift): (usize, u32)| ([first, second][which] >> shift) as u8;
        self.iv.iter().zip(shifts.into_iter().chain(more).map(mask)).map(|(byte, mask)| byte ^ mask).collect()
    }

    fn pass(&self, seed: u64, data: &mut [u8]) {
        for i in 1..data.len() {
            data[i] ^= data[i - 1];
        }
        let mut previous = self.iv(seed);
        for part in data.chunks_mut(previous.len()) {
            self.cipher.encrypt_blocks(&mut previous);
            part.iter_mut().zip(&previous).for_each(|(byte, mask)| *byte ^= mask);
            previous[..part.len()].copy_from_slice(part);
        }
    }

    /// The volume key, sealed with this one. It is no longer than what EncFS turns around at once.
    fn sealed(&self, volume: &[u8]) -> Vec<u8> {
        let whole = self.hmac(&[volume]);
        let folded: Vec<u8> = (0..4)
            .map(|i| (0..5).map(|k| whole[i + 4 * k]).take(if i == 3 { 4 } else { 5 }).fold(0, |a, b| a ^ b))
            .collect();
        let seed = u32::from_be_bytes(folded.clone().try_into().expect("four")).into();
        let mut data = volume.to_vec();
        self.pass(seed, &mut data);
        data.reverse();
        self.pass(seed + 1, &mut data);
        [folded, data].concat()
    }
}

impl Recipe {
    fn cipher(&self) -> &'static Cipher {
        match self.cipher.0 {
            "ssl/aes" => &aes::AES,
            "ssl/blowfish" => &legacy::BLOWFISH_BE,
            _ => &national::CAMELLIA,
        }
    }

    fn key(&self, bytes: &[u8]) -> Key {
        let (key, iv) = bytes.split_at(self.key_bits / 8);
        let cipher = self.cipher().with_key(key, Acceleration::On);
        Key { cipher, key: key.to_vec(), iv: iv.to_vec(), version: self.cipher.1 }
    }

    fn len(&self) -> usize {
        self.key_bits / 8 + self.cipher().block_size
    }

    /// What the passphrase gives, with these iterations, or as before salts.
    fn of_passphrase(&self, salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        if self.salted() {
            SHA1.pbkdf2(PASSPHRASE.as_bytes(), salt, iterations, &mut out, &|| true);
            return out;
        }
        let (mut all, mut digest) = (Vec::new(), Vec::new());
        while all.len() < 64 {
            digest.extend(PASSPHRASE.as_bytes());
            for _ in 0..16 {
                let mut next = vec![0; 20];
                SHA1.digest(&[&digest], &mut next);
                digest = next;
            }
            all.extend(&digest);
        }
        if self.cipher == ("ssl/blowfish", 1) {
            out[..16].copy_from_slice(&all[..16]);
            out[self.key_bits / 8..].copy_from_slice(&all[16..24]);
        } else {
            out.copy_from_slice(&all[..self.len()]);
        }
        out
    }

    fn salted(&self) -> bool {
        matches!(self.layout, Layout::New | Layout::Boost)
    }

    /// The name and the bytes of the configuration of a folder with a volume key that is always the same.
    pub fn config(&self) -> (&'static str, Vec<u8>) {
        let (salt, iterations) = ([7; 20], 1000);
        let volume: Vec<u8> = (0..self.len() as u8).map(|i| i.wrapping_mul(41) ^ 0x5a).collect();
        let sealed = self.key(&self.of_passphrase(&salt, iterations)).sealed(&volume);
        match self.layout {
            Layout::Five => (".encfs5", self.binary(&sealed, 12)),
            Layout::Four => (".encfs4", self.binary(&sealed, 4)),
            _ => (CONFIG, self.xml(&sealed, &salt, iterations).into_bytes()),
        }
    }

    /// The configuration of a folder of EncFS 1.4 or newer.
    pub fn xml_config(&self) -> String {
        String::from_utf8(self.config().1).expect("it is text")
    }

    /// The first `count` properties, each with its name and its length in front.
    fn binary(&self, sealed: &[u8], count: usize) -> Vec<u8> {
        let number = |number: usize| match number {
            0..128 => vec![number as u8],
            128..16384 => vec![0x80 | (number >> 7) as u8, (number & 0x7f) as u8],
            _ => vec![
                0x80 | (number >> 21) as u8,
                0x80 | (number >> 14) as u8,
                0x80 | (number >> 7) as u8,
                (number & 0x7f) as u8,
            ],
        };
        let text = |bytes: &[u8]| [number(bytes.len()), bytes.to_vec()].concat();
        let algorithm =
            |(name, version): (&str, u64)| [text(name.as_bytes()), number(version as usize), vec![0, 0]].concat();
        let properties = [
            ("cipher", algorithm(self.cipher)),
            ("keySize", number(self.key_bits)),
            ("blockSize", number(self.block)),
            ("keyData", text(sealed)),
            ("subVersion", number(20_040_813)),
            ("creator", text(b"a test")),
            ("naming", algorithm(self.naming)),
            ("uniqueIV", number(self.file_ivs.into())),
            ("chainedIV", number(self.chained.into())),
            ("externalIV", number(self.by_path.into())),
            ("blockMACBytes", number(self.checksum)),
            ("blockMACRandBytes", number(self.random)),
        ];
        let each =
            properties.iter().take(count).flat_map(|(name, value)| [text(name.as_bytes()), text(value)].concat());
        number(count).into_iter().chain(each).collect()
    }

    fn xml(&self, sealed: &[u8], salt: &[u8], iterations: u32) -> String {
        let (begin, end) = match self.layout {
            Layout::New => {
                ("<cfg class_id=\"0\" tracking_level=\"0\" version=\"20\">\n<version>20100713</version>", "cfg")
            }
            Layout::Boost => ("<config class_id=\"0\" tracking_level=\"0\" version=\"26800\">", "config"),
            _ => ("<config class_id=\"0\" tracking_level=\"0\" version=\"20080813\">", "config"),
        };
        let mut text = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\" ?>\n<!DOCTYPE boost_serialization>\n\
             <boost_serialization signature=\"serialization::archive\" version=\"7\">\n",
        );
        let mut line = |more: String| writeln!(text, "{more}").expect("memory");
        line(format!("{begin}\n<creator>EncFS &amp; a test</creator>"));
        let interface = |of: &str, (name, version): (&str, u64)| {
            format!("<{of}>\n<name>{name}</name>\n<major>{version}</major>\n<minor>0</minor>\n</{of}>")
        };
        line(interface("cipherAlg", self.cipher));
        line(interface("nameAlg", self.naming));
        let numbers = [
            ("keySize", self.key_bits),
            ("blockSize", self.block),
            ("uniqueIV", self.file_ivs.into()),
            ("chainedNameIV", self.chained.into()),
            ("externalIVChaining", self.by_path.into()),
            ("blockMACBytes", self.checksum),
            ("blockMACRandBytes", self.random),
            ("allowHoles", self.holes.into()),
            ("encodedKeySize", sealed.len()),
        ];
        numbers.into_iter().for_each(|(name, value)| line(format!("<{name}>{value}</{name}>")));
        line(format!("<encodedKeyData>\n{}\n</encodedKeyData>", STANDARD.encode(sealed)));
        if self.salted() {
            line(format!("<saltLen>20</saltLen>\n<saltData>\n{}\n</saltData>", STANDARD.encode(salt)));
            line(format!("<kdfIterations>{iterations}</kdfIterations>\n<desiredKDFDuration>500</desiredKDFDuration>"));
        }
        line(format!("</{end}>\n</boost_serialization>"));
        text
    }

    /// An empty folder.
    pub fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, bytes) = self.config();
        fs::write(folder.path().join(file), bytes).expect("written");
        folder
    }
}

pub fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

pub fn passphrase(text: &str) -> Credential {
    Credential::Passphrase(Secret::copy_from(text.as_bytes()))
}

pub fn try_open(folder: &Path) -> Result<Stacked> {
    file_formats::open(host(folder), None, &Unlock::with(&[passphrase(PASSPHRASE)]))
}

pub fn open(folder: &Path) -> Stacked {
    try_open(folder).expect("it opens")
}

/// Debian's encfs, and a file with the passphrase. A reported skip where it is missing.
pub struct Program {
    program: PathBuf,
    place: TempDir,
}

impl Program {
    pub fn find() -> Option<Self> {
        let program = tools::program("encfs")?;
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join("passphrase"), PASSPHRASE).expect("a file");
        // Blowfish is in OpenSSL's legacy provider.
        let legacy = "openssl_conf = a\n[a]\nproviders = b\n[b]\ndefault = c\nlegacy = c\n[c]\nactivate = 1\n";
        fs::write(place.path().join("openssl.cnf"), legacy).expect("a file");
        Some(Self { program, place })
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = bounded(120, &self.program);
        let at = |name: &str| self.place.path().join(name);
        command.arg("-f").arg("--extpass").arg(format!("cat {}", at("passphrase").display())).args(options);
        command.env("OPENSSL_CONF", at("openssl.cnf"));
        command
    }

    /// Mounts a folder and calls `each` with the mount point; a reported skip where nothing can be mounted.
    pub fn mounted(&self, folder: &Path, options: &[&str], each: impl FnOnce(&Path)) -> Option<()> {
        tools::root()?;
        let point = tempfile::tempdir().expect("a folder");
        let mount = Mount::on(point.path());
        let mut server = Server::start(self.command(options).arg(folder).arg(point.path()));
        assert!(mount.wait(), "it is not mounted: {}{}", server.out(), server.err());
        each(point.path());
        let unmount = || bounded(30, "umount").arg(point.path()).stderr(Stdio::null()).status();
        assert!(wait_until(PATIENCE, || unmount().is_ok_and(|status| status.success())), "it stays mounted");
        assert!(server.ended_within(Duration::from_secs(30)).is_some(), "encfs does not end");
        Some(())
    }
}

pub fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

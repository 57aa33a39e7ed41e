//! Encrypted files of NTFS (EFS), made with other projects' ciphers and OpenSSL's RSA, and read by ntfsdecrypt. Nothing
//! here uses the engine.
//!
//! Sources: MS-EFSR, 2.2.2.1, and ntfs-3g's ntfsprogs/ntfsdecrypt.c and libntfs-3g/efs.c.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use md5::{Digest, Md5};
use rustix::fs::XattrFlags;

use crate::tools;

/// The password of every PFX.
pub const PASSWORD: &str = "of the file";

/// Required programs.
const NEEDED: [&str; 3] = ["openssl", "ntfsdecrypt", "python3"];

/// Types a password on a terminal, the only place where ntfsdecrypt reads it. Its output goes to the first file named.
const TYPE: &str = "
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.execvp(sys.argv[3], sys.argv[3:])
said = b''
try:
    while not said.endswith(b'encrypted: '):
        said += os.read(terminal, 1000)
    os.write(terminal, sys.argv[2].encode() + b'\\n')
    while True:
        said += os.read(terminal, 1000)
except OSError:
    pass
sys.stderr.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// The ciphers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES with keys of 32 bytes.
    Aes256,
    /// Triple DES with keys of 24 bytes.
    TripleDes,
    /// Windows' DESX with keys of 16 bytes.
    Desx,
}

impl Cipher {
    /// All ciphers.
    pub const ALL: [Self; 3] = [Self::Aes256, Self::TripleDes, Self::Desx];

    /// The cipher's number in Windows, its key size in bytes, and the key's entropy in bits.
    fn facts(self) -> (u32, usize, u32) {
        match self {
            Self::Aes256 => (0x6610, 32, 256),
            Self::TripleDes => (0x6603, 24, 168),
            Self::Desx => (0x6604, 16, 128),
        }
    }

    /// Key size, in bytes.
    pub fn key_size(self) -> usize {
        self.facts().1
    }

    /// The raw form of a file in ntfs-3g: sectors, followed by how many bytes longer they are than the contents.
    pub fn raw(self, key: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut raw = plain.to_vec();
        raw.resize(plain.len().next_multiple_of(512), 0xa5);
        for (offset, sector) in (0..).step_by(512).zip(raw.chunks_mut(512)) {
            self.encrypt(key, offset, sector);
        }
        if !plain.is_empty() {
            raw.extend(((raw.len() - plain.len()) as u16).to_le_bytes());
        }
        raw
    }

    fn encrypt(self, key: &[u8], offset: u64, sector: &mut [u8]) {
        let plus = |start: u64| start.wrapping_add(offset).to_le_bytes();
        let des_iv = plus(0x1691_1962_9891_ad13);
        match self {
            Self::Aes256 => {
                let iv = [plus(0x5816_657b_e916_1312), plus(0x1989_adbe_4491_8961)].concat();
                let cipher = aes::Aes256::new_from_slice(key).expect("32 bytes");
                chain(sector, &iv, |block| cipher.encrypt_blocks(Array::slice_as_chunks_mut(block).0));
            }
            Self::TripleDes => {
                let cipher = des::TdesEde3::new_from_slice(key).expect("24 bytes");
                chain(sector, &des_iv, |block| cipher.encrypt_blocks(Array::slice_as_chunks_mut(block).0));
            }
            Self::Desx => {
                let first = Md5::new().chain_update(key).chain_update(b"Dan Simon  \0").finalize();
                let second = Md5::new().chain_update(key).chain_update(b"Scott Field\0").finalize();
                let des_key: Vec<u8> = [0, 1, 2, 3, 8, 9, 10, 11].iter().map(|i| first[*i] ^ first[i + 4]).collect();
                let cipher = des::Des::new_from_slice(&des_key).expect("8 bytes");
                chain(sector, &des_iv, |block| {
                    xor(block, &second[8..]);
                    cipher.decrypt_blocks(Array::slice_as_chunks_mut(block).0);
                    xor(block, &second[..8]);
                });
            }
        }
    }
}

fn xor(to: &mut [u8], with: &[u8]) {
    to.iter_mut().zip(with).for_each(|(to, with)| *to ^= with);
}

fn chain(sector: &mut [u8], iv: &[u8], encrypt: impl Fn(&mut [u8])) {
    let mut previous = iv.to_vec();
    for block in sector.chunks_mut(iv.len()) {
        xor(block, &previous);
        encrypt(block);
        previous.copy_from_slice(block);
    }
}

/// A user with a certificate and its private key.
#[derive(Debug)]
pub struct Identity {
    dir: tempfile::TempDir,
    /// The user's name in files.
    pub name: String,
    /// SHA-1 of the certificate.
    pub thumbprint: [u8; 20],
    /// The RSA modulus, the most significant byte first.
    pub modulus: Vec<u8>,
    /// The RSA exponent, likewise.
    pub exponent: Vec<u8>,
}

impl Identity {
    /// A new user, or with `agent` a recovery agent. A reported skip if programs are missing.
    pub fn new(name: &str, agent: bool) -> Option<Self> {
        NEEDED.iter().try_for_each(|name| tools::program(name).map(drop))?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        // Debian's ntfsdecrypt cuts off the last character, so the purpose is listed twice.
        let purposes = match agent {
            false => "1.3.6.1.4.1.311.10.3.4,1.3.6.1.4.1.311.10.3.40",
            true => "1.3.6.1.4.1.311.10.3.4.1,1.3.6.1.4.1.311.10.3.4.10",
        };
        let at = |file: &str| dir.path().join(file);
        openssl(&["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"], |command| {
            command.args(["-subj", &format!("/CN={name}"), "-addext", &format!("extendedKeyUsage={purposes}")]);
            command.arg("-keyout").arg(at("key.pem")).arg("-out").arg(at("certificate.pem"))
        });
        openssl(
            &["pkcs12", "-export", "-keypbe", "PBE-SHA1-3DES", "-certpbe", "PBE-SHA1-3DES", "-macalg", "sha1"],
            |c| {
                c.arg("-inkey").arg(at("key.pem")).arg("-in").arg(at("certificate.pem")).arg("-out").arg(at("key.pfx"));
                c.arg("-passout").arg(format!("pass:{PASSWORD}"))
            },
        );
        let fingerprint =
            openssl(&["x509", "-noout", "-fingerprint", "-sha1", "-in"], |c| c.arg(at("certificate.pem")));
        let modulus = openssl(&["rsa", "-noout", "-modulus", "-in"], |c| c.arg(at("key.pem")));
        let thumbprint = hex_behind_equals(&fingerprint).try_into().expect("20 bytes");
        let (modulus, exponent) = (hex_behind_equals(&modulus), vec![1, 0, 1]);
        Some(Self { name: name.to_owned(), thumbprint, modulus, exponent, dir })
    }

    /// The private key with its certificate.
    pub fn pfx(&self) -> PathBuf {
        self.dir.path().join("key.pfx")
    }

    /// Encrypts with the public key, in PKCS#1.
    pub fn encrypt(&self, message: &[u8]) -> Vec<u8> {
        self.rsa(&["-encrypt", "-certin", "-inkey"], "certificate.pem", message).expect("it fits")
    }

    /// Decrypts with the private key, in PKCS#1.
    pub fn decrypt(&self, ciphertext: &[u8]) -> Option<Vec<u8>> {
        self.rsa(&["-decrypt", "-inkey"], "key.pem", ciphertext)
    }

    fn rsa(&self, how: &[&str], key: &str, message: &[u8]) -> Option<Vec<u8>> {
        let mut openssl = Command::new("openssl");
        openssl.arg("pkeyutl").args(how).arg(self.dir.path().join(key)).args(["-pkeyopt", "rsa_padding_mode:pkcs1"]);
        let openssl = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut openssl = openssl.spawn().expect("openssl starts");
        openssl.stdin.take().expect("a pipe").write_all(message).expect("it reads");
        let output = openssl.wait_with_output().expect("it ends");
        output.status.success().then_some(output.stdout)
    }

    /// The output of ntfsdecrypt for the file at `path` in an image; none if it fails.
    pub fn ntfsdecrypt(&self, image: &Path, path: &str) -> Option<Vec<u8>> {
        let out = self.dir.path().join("out");
        let mut python = Command::new("timeout");
        python.args(["60", "python3", "-c", TYPE]).arg(&out).args([PASSWORD, "ntfsdecrypt", "-k"]).arg(self.pfx());
        let done = python.arg(image).arg(path).stdin(Stdio::null()).output().expect("python starts");
        done.status.success().then(|| fs::read(&out).expect("its output"))
    }
}

fn openssl(args: &[&str], with: impl FnOnce(&mut Command) -> &mut Command) -> Vec<u8> {
    let mut command = Command::new("openssl");
    tools::run(with(command.args(args))).stdout
}

fn hex_behind_equals(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let digits: Vec<u8> = text.split('=').nth(1).unwrap_or("").bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// `$EFS` of a file with this key.
pub fn info(cipher: Cipher, key: &[u8], users: &[&Identity], agents: &[&Identity]) -> Vec<u8> {
    let (number, size, entropy) = cipher.facts();
    assert_eq!(key.len(), size);
    let fek = [numbers(&[size as u32, entropy, number, 0]), key.to_vec()].concat();
    info_with(users, agents, |of| of.encrypt(&fek))
}

/// `$EFS` with the keys that `encrypted` returns, the most significant byte first.
pub fn info_with(users: &[&Identity], agents: &[&Identity], encrypted: impl Fn(&Identity) -> Vec<u8>) -> Vec<u8> {
    let list = |of: &[&Identity]| {
        let entries = of.iter().flat_map(|one| entry(one, encrypted(one).into_iter().rev().collect()));
        numbers(&[of.len() as u32]).into_iter().chain(entries).collect::<Vec<u8>>()
    };
    let (of_users, of_agents) = (list(users), list(agents));
    let (begin, all) = (0x54, 0x54 + of_users.len() + of_agents.len());
    let header = [numbers(&[all as u32, 0, 2, 0]), vec![0x77; 16], vec![0; 32]].concat();
    let agents_at = if agents.is_empty() { 0 } else { begin + of_users.len() };
    let offsets = numbers(&[begin as u32, agents_at as u32, 0, 0, 0]);
    [header, offsets, of_users, of_agents].concat()
}

fn entry(of: &Identity, encrypted: Vec<u8>) -> Vec<u8> {
    let text = |text: &str| text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let (container, provider, name) = (text("a container"), text("a provider"), text(&of.name));
    let provider_at = 40 + container.len();
    let name_at = provider_at + provider.len();
    let offsets = numbers(&[20, 20, 40, provider_at as u32, name_at as u32]);
    let certificate = [offsets, of.thumbprint.to_vec(), container, provider, name].concat();
    // S-1-5-21-1-2-3-1001
    let sid = [vec![1, 5, 0, 0, 0, 0, 0, 5], numbers(&[21, 1, 2, 3, 1001])].concat();
    let certificate_at = 28 + sid.len() as u32;
    let len = certificate_at + certificate.len() as u32;
    let owner = numbers(&[len, 28, 3, certificate.len() as u32, certificate_at, 0, 0]);
    let at = 20 + len;
    let header = numbers(&[at + encrypted.len() as u32, 20, encrypted.len() as u32, at, 0]);
    [header, owner, sid, certificate, encrypted].concat()
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Writes an encrypted file and its streams, all raw, into a folder that ntfs-3g has mounted with `efs_raw`.
///
/// # Panics
/// If writing fails.
pub fn put(path: &Path, raw: &[u8], info: &[u8]) {
    fs::write(path, raw).expect("there is room");
    rustix::fs::setxattr(path, "system.ntfs_efsinfo", info, XattrFlags::CREATE).expect("ntfs-3g takes it");
}

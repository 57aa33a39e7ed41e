//! What we create opens in other programs, and what they create opens here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::{Credential, Spec, Store, Unlock, Volume, formats};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::tools;

const MIN: u64 = 299_008;

/// The ciphers that can be created, with tcplay's names for them: in the order in which they encrypt.
const CIPHERS: [(&str, &str); 8] = [
    ("AES", "AES-256-XTS"),
    ("Serpent", "SERPENT-256-XTS"),
    ("Twofish", "TWOFISH-256-XTS"),
    ("AES-Twofish", "TWOFISH-256-XTS,AES-256-XTS"),
    ("AES-Twofish-Serpent", "SERPENT-256-XTS,TWOFISH-256-XTS,AES-256-XTS"),
    ("Serpent-AES", "AES-256-XTS,SERPENT-256-XTS"),
    ("Serpent-Twofish-AES", "AES-256-XTS,TWOFISH-256-XTS,SERPENT-256-XTS"),
    ("Twofish-Serpent", "SERPENT-256-XTS,TWOFISH-256-XTS"),
];

/// The hashes that can be created, with tcplay's names for them.
const HASHES: [(&str, &str); 3] = [("RIPEMD-160", "RIPEMD160"), ("SHA-512", "SHA512"), ("Whirlpool", "whirlpool")];

#[test]
fn the_lists_are_those_of_the_format() {
    let choices = formats::by_name("truecrypt").and_then(formats::creator_of).expect("it can be created").choices();
    assert_eq!(choices.ciphers, CIPHERS.map(|(ours, _)| ours));
    assert_eq!(choices.hashes, HASHES.map(|(ours, _)| ours));
    assert_eq!(choices.min_len, MIN);
}

/// A volume that was made here, and its files in the folder.
struct Made {
    path: PathBuf,
    cipher: String,
    hash: String,
    text: String,
    keyfiles: Vec<PathBuf>,
    plain: PathBuf,
    other: PathBuf,
}

impl Made {
    fn credentials(&self) -> Vec<Credential> {
        let mut credentials = vec![passphrase(&self.text)];
        credentials.extend(self.keyfiles.iter().flat_map(|k| Credential::keyfiles(k).expect("a keyfile")));
        credentials
    }

    fn volume(&self) -> Volume {
        let store = read_write(&self.path);
        let unlocked = unlock(Arc::clone(&store), &Unlock::with(&self.credentials())).expect("our own volume");
        assert_eq!((unlocked.facts.header.name(), &unlocked.warnings[..]), ("primary", &[][..]));
        Volume::new(store, unlocked.layout)
    }

    /// What the script does in user-mode Linux with the device: compares, then overwrites.
    fn script(&self, device: &str) -> String {
        let keyfiles: String = self.keyfiles.iter().map(|k| format!(" --key-file {}", k.display())).collect();
        let Self { text, plain, other, .. } = self;
        // Without cipher and hash, cryptsetup looks for modules of ciphers that are not there: ten seconds a volume.
        let cipher = CIPHERS.iter().find(|(ours, _)| *ours == self.cipher).expect("a cipher").1;
        let cipher = cipher.replace("-256-XTS", "").replace(',', "-").to_lowercase();
        let hash = if self.hash == "Whirlpool" { "whirlpool" } else { &self.hash.replace('-', "").to_lowercase() };
        format!(
            "printf %s '{text}' | cryptsetup tcryptOpen --cipher {cipher} --hash {hash}{keyfiles} /dev/{device} x{device}\n\
             cmp /dev/mapper/x{device} {}\n\
             dd if={} of=/dev/mapper/x{device} bs=64k conv=fsync status=none\n\
             cryptsetup close x{device}\n",
            plain.display(),
            other.display()
        )
    }
}

fn make(folder: &Path, name: &str, cipher: &str, hash: &str, i: usize) -> Made {
    let sizes = [MIN, MIN + 512, 1 << 20, (5 << 20) + 4096, MIN + 4096 * 3];
    let path = new_file(folder, &format!("{name}.tc"), sizes[i % sizes.len()]);
    let keyfiles = (0..[0, 1, 0, 2][i % 4]).map(|k| {
        let keyfile = folder.join(format!("{name}.key{k}"));
        std::fs::write(&keyfile, noise([64, 1, 1_100_000][(i + k) % 3], i as u64)).expect("a keyfile");
        keyfile
    });
    let made = Made {
        cipher: cipher.to_owned(),
        hash: hash.to_owned(),
        text: format!("passphrase {i}{}", "!".repeat(i % 3 * 20)),
        keyfiles: keyfiles.collect(),
        plain: folder.join(format!("{name}.plain")),
        other: folder.join(format!("{name}.other")),
        path,
    };
    let spec = Spec { cipher: Some(cipher), hash: Some(hash), quick: i.is_multiple_of(2), ..Spec::default() };
    create(&*read_write(&made.path), &spec, &made.credentials()).expect("a new volume");
    let volume = made.volume();
    let plain = noise(volume.len() as usize, 1000 + i as u64);
    std::fs::write(&made.plain, &plain).expect("the plaintext");
    std::fs::write(&made.other, noise(plain.len(), 2000 + i as u64)).expect("other plaintext");
    volume.write_clobbering(0, &mut plain.clone()).expect("the volume is written");
    volume.flush().expect("the volume is flushed");
    made
}

/// The kernel's dm-crypt reads what we write and writes what we read.
fn kernel_agrees(of: &[usize]) {
    let Some(_) = tools::program("cryptsetup") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let all = CIPHERS.iter().flat_map(|(cipher, _)| HASHES.iter().map(move |(hash, _)| (cipher, hash)));
    let made: Vec<Made> = all
        .enumerate()
        .filter(|(i, _)| of.contains(i))
        .map(|(i, (cipher, hash))| make(dir.path(), &format!("v{i}"), cipher, hash, i))
        .collect();
    let images: Vec<&Path> = made.iter().map(|m| &*m.path).collect();
    let Some(()) = run_in_kernel(&images, |i, device| made[i].script(device)) else { return };
    for m in &made {
        assert!(all_of(&m.volume()) == std::fs::read(&m.other).expect("other plaintext"), "{}", m.path.display());
    }
}

#[test]
fn what_we_create_opens_in_the_kernel_1() {
    kernel_agrees(&(0..12).collect::<Vec<_>>());
}

#[test]
fn what_we_create_opens_in_the_kernel_2() {
    kernel_agrees(&(12..24).collect::<Vec<_>>());
}

struct Tcplay {
    tcplay: PathBuf,
}

impl Tcplay {
    fn here() -> Option<Self> {
        tools::root()?;
        tools::program("python3")?;
        Some(Self { tcplay: tools::program("tcplay")? })
    }

    fn run(&self, file: &Path, answers: &[(&str, &str)], arguments: &[&str]) -> String {
        let device = LoopDevice::new(file, &[]).expect("the tools were there");
        let node = device.path().to_str().expect("UTF-8");
        let command = [&[self.tcplay.to_str().expect("UTF-8"), "-d", node], arguments].concat();
        on_terminal(answers, &command)
    }
}

#[test]
fn what_we_create_opens_in_tcplay() {
    let Some(tcplay) = Tcplay::here() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (i, (cipher, theirs)) in CIPHERS.iter().enumerate() {
        let (hash, their_hash) = HASHES[i % 3];
        let made = make(dir.path(), &format!("v{i}"), cipher, hash, i);
        let mut arguments = vec!["-i"];
        for keyfile in &made.keyfiles {
            arguments.extend(["-k", keyfile.to_str().expect("UTF-8")]);
        }
        for backup in [false, true] {
            if backup {
                arguments.push("--use-backup");
            }
            let said = tcplay.run(&made.path, &[("Passphrase:", &made.text)], &arguments);
            let line = |name: &str| said.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
            assert_eq!(line("Cipher:"), Some(*theirs), "{said}");
            assert_eq!(line("PBKDF2 PRF:"), Some(their_hash), "{said}");
            assert_eq!(line("Volume size:"), Some(&*format!("{} sectors", made.volume().len() / 512)), "{said}");
            assert_eq!(line("Block offset:"), Some("256 sectors"), "{said}");
        }
    }
}

#[test]
fn what_tcplay_creates_opens_here() {
    let Some(tcplay) = Tcplay::here() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let keyfile = dir.path().join("key");
    std::fs::write(&keyfile, noise(3000, 1)).expect("a keyfile");
    for (i, (cipher, theirs)) in CIPHERS.iter().enumerate() {
        for (j, (hash, their_hash)) in HASHES.iter().enumerate() {
            let path = new_file(dir.path(), &format!("{i}-{j}.tc"), (1 << 20) + 512 * i as u64);
            let hidden = (i + j).is_multiple_of(2);
            let with_keyfile = i % 3 == 1;
            let (hidden_cipher, hidden_theirs) = CIPHERS[(i + 5) % 8];
            let mut arguments = vec!["-c", "-w", "-z", "-a", their_hash, "-b", theirs];
            let mut answers = vec![("Passphrase:", "outer"), ("Repeat", "outer")];
            if hidden {
                arguments.extend(["-g", "-y", hidden_theirs]);
                answers.extend([("hidden volume:", "hidden"), ("Repeat", "hidden"), ("127M):", "300K")]);
            }
            if with_keyfile {
                arguments.extend(["-k", keyfile.to_str().expect("UTF-8")]);
            }
            answers.push(("(y/n)", "y"));
            tcplay.run(&path, &answers, &arguments);

            let mut wanted =
                vec![("outer", "primary", *cipher, (1 << 20) + 512 * i as u64 - 262_144, 131_072, with_keyfile)];
            if hidden {
                let at = (1 << 20) + 512 * i as u64 - 131_072 - 300 * 1024;
                wanted.push(("hidden", "hidden", hidden_cipher, 300 * 1024, at, false));
            }
            for (text, header, cipher, size, at, with_keyfile) in wanted {
                let mut credentials = vec![passphrase(text)];
                if with_keyfile {
                    credentials.extend(Credential::keyfiles(&keyfile).expect("a keyfile"));
                }
                let store = read_only(&path);
                let name = format!("{cipher}, {hash}, {header}");
                let unlocked =
                    unlock(Arc::clone(&store), &Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{name}: {e}"));
                let facts = unlocked.facts;
                assert_eq!(
                    (facts.header.name(), &*facts.cipher, &*facts.hash_name()),
                    (header, cipher, *hash),
                    "{name}"
                );
                assert_eq!((facts.size, facts.data_offset), (size, at), "{name}");
                assert!(unlocked.warnings.is_empty(), "{name}: {:?}", unlocked.warnings);
            }
        }
    }
}

//! VeraCrypt volumes that we create open in the kernel, by way of cryptsetup. What VeraCrypt itself made is among the samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::{Credential, Spec, Store, Unlock, Volume};
use claviger_testkit::tools;

const MIN: u64 = 299_008;

/// A cipher, what dm-crypt calls it (in the order in which the ciphers encrypt), a hash, a PIM. The kernel has no Kuznyechik,
/// cryptsetup 2.6 knows no BLAKE2s and no Argon2id here, and its OpenSSL no Streebog.
const VOLUMES: [(&str, &str, &str, Option<u32>); 10] = [
    ("AES", "aes", "SHA-512", None),
    ("Serpent", "serpent", "SHA-256", Some(1)),
    ("Twofish", "twofish", "Whirlpool", Some(2)),
    ("Camellia", "camellia", "SHA-512", Some(1)),
    ("AES-Twofish", "twofish-aes", "SHA-512", Some(7)),
    ("AES-Twofish-Serpent", "serpent-twofish-aes", "SHA-256", Some(485)),
    ("Serpent-AES", "aes-serpent", "Whirlpool", Some(1)),
    ("Serpent-Twofish-AES", "aes-twofish-serpent", "Whirlpool", Some(3)),
    ("Twofish-Serpent", "serpent-twofish", "SHA-512", Some(1)),
    ("Camellia-Serpent", "serpent-camellia", "SHA-256", Some(1)),
];

/// A volume that was made here, and its files in the folder.
struct Made {
    path: PathBuf,
    row: (&'static str, &'static str, &'static str, Option<u32>),
    text: String,
    keyfile: Option<PathBuf>,
    plain: PathBuf,
    other: PathBuf,
}

impl Made {
    fn new(folder: &Path, i: usize) -> Self {
        let row = VOLUMES[i];
        let path = new_file(folder, &format!("{i}.hc"), MIN + 4096 * (i as u64 % 3));
        let keyfile = i.is_multiple_of(3).then(|| {
            let keyfile = folder.join(format!("{i}.key"));
            std::fs::write(&keyfile, noise(100 + i, i as u64)).expect("a keyfile");
            keyfile
        });
        let file = |what: &str| folder.join(format!("{i}.{what}"));
        // Long enough for any PIM; some too long for TrueCrypt.
        let text = format!("a passphrase of some length {i}{}", "!".repeat(i % 2 * 60));
        let made = Self { path, row, text, keyfile, plain: file("plain"), other: file("other") };
        let (cipher, _, hash, pim) = row;
        let spec = Spec { cipher: Some(cipher), hash: Some(hash), pim, quick: i.is_multiple_of(2), ..Spec::default() };
        create_veracrypt(&*read_write(&made.path), &spec, &made.credentials()).expect("a new volume");
        let volume = made.volume();
        let plain = noise(volume.len() as usize, 1000 + i as u64);
        std::fs::write(&made.plain, &plain).expect("the plaintext");
        std::fs::write(&made.other, noise(plain.len(), 2000 + i as u64)).expect("other plaintext");
        volume.write_clobbering(0, &mut plain.clone()).expect("the volume is written");
        volume.flush().expect("the volume is flushed");
        made
    }

    fn credentials(&self) -> Vec<Credential> {
        let mut credentials = vec![passphrase(&self.text)];
        credentials.extend(self.keyfile.iter().flat_map(|k| Credential::keyfiles(k).expect("a keyfile")));
        credentials
    }

    fn volume(&self) -> Volume {
        let store = read_write(&self.path);
        let (cipher, _, hash, pim) = self.row;
        let credentials = self.credentials();
        let hints = Unlock { cipher: Some(cipher), hash: Some(hash), pim, ..Unlock::with(&credentials) };
        let unlocked = unlock_veracrypt(Arc::clone(&store), &hints).expect("our own volume");
        assert_eq!((unlocked.facts.header.name(), &unlocked.warnings[..]), ("primary", &[][..]));
        Volume::new(store, unlocked.layout)
    }

    /// Compares, then overwrites; and opens the backup header.
    fn script(&self, device: &str) -> String {
        let Self { row: (_, cipher, hash, pim), text, plain, other, .. } = self;
        let keyfile = self.keyfile.iter().map(|k| format!(" --key-file {}", k.display())).collect::<String>();
        let pim = pim.map_or_else(String::new, |pim| format!(" --veracrypt-pim {pim}"));
        let hash = hash.replace('-', "").to_lowercase();
        let how = format!("--veracrypt{pim} --cipher {cipher} --hash {hash}{keyfile}");
        format!(
            "printf %s '{text}' | cryptsetup tcryptDump --tcrypt-backup {how} /dev/{device}\n\
             printf %s '{text}' | cryptsetup tcryptOpen {how} /dev/{device} x{device}\n\
             cmp /dev/mapper/x{device} {}\n\
             dd if={} of=/dev/mapper/x{device} bs=64k conv=fsync status=none\n\
             cryptsetup close x{device}\n",
            plain.display(),
            other.display()
        )
    }
}

#[test]
fn what_we_create_opens_in_the_kernel() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let made: Vec<Made> = (0..VOLUMES.len()).map(|i| Made::new(dir.path(), i)).collect();
    let images: Vec<&Path> = made.iter().map(|m| &*m.path).collect();
    let Some(()) = run_in_kernel(&images, |i, device| made[i].script(device)) else { return };
    for m in &made {
        assert!(all_of(&m.volume()) == std::fs::read(&m.other).expect("other plaintext"), "{}", m.path.display());
    }
}

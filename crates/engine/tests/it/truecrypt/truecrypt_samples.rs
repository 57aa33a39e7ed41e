//! Volumes that TrueCrypt itself and others made open here.

use std::process::Command;
use std::sync::Arc;

use crate::support::*;
use claviger_engine::{Credential, ErrorKind, FORMATS, Unlock, Verdict, formats};
use claviger_testkit::tools;

/// File, hash, cipher, passphrase, keyfiles, header.
type Sample = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], &'static str);

const TRUECRYPT: [Sample; 6] = [
    ("aes-sha512.tc", "SHA-512", "AES", "correct horse", &[], "primary"),
    ("serpent-ripemd160.tc", "RIPEMD-160", "Serpent", "serpent pass", &[], "primary"),
    ("twofish-whirlpool.tc", "Whirlpool", "Twofish", "twofish pass", &[], "primary"),
    (
        "aes-twofish-serpent-sha512-keyfiles.tc",
        "SHA-512",
        "AES-Twofish-Serpent",
        "pw+keyfiles",
        &["key1.bin", "key2.bin"],
        "primary",
    ),
    ("hidden.tc", "SHA-512", "AES", "outer pass", &[], "primary"),
    ("hidden.tc", "Whirlpool", "Serpent-Twofish-AES", "hidden pass", &[], "hidden"),
];

#[test]
fn volumes_of_truecrypt_itself_hold_their_files() {
    let (Some(dir), Some(mtype)) = (tools::sample("truecrypt"), tools::program("mtype")) else { return };
    let sums = std::fs::read_to_string(dir.join("SHA256")).expect("sums");
    for (file, hash, cipher, text, keyfiles, header) in TRUECRYPT {
        let path = dir.join(file);
        let before = digest(&path);
        let store = read_only(&path);
        let mut credentials = vec![passphrase(text)];
        for keyfile in keyfiles {
            credentials.extend(Credential::keyfiles(&dir.join(keyfile)).expect("a keyfile"));
        }
        let (format, locked) = formats::open(&store, None).expect("it looks like a volume");
        assert_eq!(format.name(), "TrueCrypt");
        let unlocked = locked.unlock(&Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let facts = &unlocked.facts;
        assert_eq!((&*facts.hash_name(), &*facts.cipher, &*facts.mode), (hash, cipher, "XTS"), "{file}");
        assert_eq!((facts.header.name(), facts.hidden), (header, header == "hidden"));
        assert_eq!((facts.header_version, facts.sector_size, facts.created), (5, 512, None));
        assert_eq!(facts.key_bits, 256 * cipher.split('-').count() as u32);
        assert!(unlocked.warnings.is_empty(), "{:?}", unlocked.warnings);
        let hidden = facts.hidden;
        let size = if hidden { 98_304 } else { 409_600 - 262_144 };
        assert_eq!(facts.size, size);
        println!("{file}, {header}: {} trials, {:?}", unlocked.trials, unlocked.took);

        let image = to_file(&plaintext(store, unlocked));
        for name in ["hello.txt", "rnd.bin"] {
            if hidden && name == "rnd.bin" {
                continue;
            }
            let output = tools::run(Command::new(&mtype).arg("-i").arg(image.path()).arg(format!("::{name}")));
            let sum =
                sums.lines().find(|l| l.ends_with(name)).and_then(|l| l.split_whitespace().next()).expect("a sum");
            assert!(digest(to_file(&output.stdout).path()).starts_with(sum), "{file}: {name}");
        }
        assert_eq!(digest(&path), before, "{file} was changed");
    }
}

#[test]
fn truecrypt_images_of_cryptsetup_open() {
    let (Some(images), Some(blkid)) = (Images::unpacked(), tools::program("blkid")) else { return };
    let mut opened = 0;
    for name in images.list("tcrypt").iter().filter(|n| n.starts_with("tc_") || n.starts_with("tck_")) {
        let path = images.path("tcrypt").join(name);
        let before = digest(&path);
        let store = read_only(&path);
        let credentials = credentials_of(&images, name);
        let unlocked =
            unlock(Arc::clone(&store), &Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let facts = unlocked.facts.clone();
        println!("{name}: {facts:?}, {} trials, {:?}", unlocked.trials, unlocked.took);
        // tc_5-whirlpool-xts-aes: header version, hash, mode, cipher, as TrueCrypt names them.
        let parts: Vec<&str> = name.split('-').collect();
        let version = parts[0].split('_').nth(1).expect("a version");
        let hidden = name.ends_with("-hidden");
        let cipher = parts[3..parts.len() - usize::from(hidden)].join("-");
        let is = |fact: &str, named: &str| assert_eq!(fact.replace('-', "").to_lowercase(), named, "{name}");
        assert_eq!(facts.header_version.to_string(), version, "{name}");
        is(&facts.hash_name(), parts[1]);
        is(&facts.mode.replace("Outer-", ""), parts[2]);
        is(&facts.cipher, &cipher.replace('-', ""));
        assert_eq!((facts.hidden, facts.header.name()), (hidden, if hidden { "hidden" } else { "primary" }), "{name}");
        assert_eq!(facts.created.is_some(), facts.header_version <= 3, "{name}");

        assert!(unlocked.warnings.is_empty(), "{name}: {:?}", unlocked.warnings);
        let expected = if hidden { "CAFE-BABE" } else { "DEAD-BABE" };
        // Of the one with a cascade in CBC only the headers were kept, as cryptsetup cannot open it.
        if name != "tc_2-ripemd160-cbc-aes-twofish" {
            assert_eq!(uuid(&blkid, &plaintext(store, unlocked)), expected, "{name}");
        }
        if hidden {
            let (store, outer) = (read_only(&path), [passphrase(&"a".repeat(12))]);
            let unlocked =
                unlock(Arc::clone(&store), &Unlock::with(&outer)).unwrap_or_else(|e| panic!("{name}, outer: {e}"));
            assert!(!unlocked.facts.hidden);
            assert_eq!(uuid(&blkid, &plaintext(store, unlocked)), "DEAD-BABE", "{name}, outer");
        }
        assert_eq!(digest(&path), before, "{name} was changed");
        opened += 1;
    }
    assert_eq!(opened, 9, "all images were looked at");
}

#[test]
fn veracrypt_and_systems_are_a_clean_no() {
    let Some(images) = Images::unpacked() else { return };
    let mut refused = 0;
    for name in images.list("tcrypt").iter().filter(|n| n.starts_with("vc") || n.starts_with("sys")) {
        let store = read_only(&images.path("tcrypt").join(name));
        let error = unlock(Arc::clone(&store), &Unlock::with(&credentials_of(&images, name)))
            .err()
            .expect("it is not TrueCrypt's");
        match error.kind {
            ErrorKind::WrongCredential(_) => refused += 1,
            // Six times twelve bytes.
            ErrorKind::Misuse(ref what) if name.contains("pw72") && what.contains("at most 64") => refused += 1,
            other => panic!("{name}: {other}"),
        }
    }
    assert_eq!(refused, 11);
}

#[test]
fn other_files_are_not_taken_for_volumes() {
    let Some(images) = Images::unpacked() else { return };
    for folder in ["luks1", "bitlk"] {
        for name in images.list(folder).iter().filter(|n| n.contains("img")) {
            let store = read_only(&images.path(folder).join(name));
            for format in FORMATS.iter().filter(|f| f.name() == "TrueCrypt") {
                let verdict = format.identify(&*store).expect("it can be read");
                assert!(matches!(verdict, Verdict::No(_)), "{name}: {verdict:?}");
            }
            assert!(formats::occupied(&*store).expect("it can be read").is_some(), "{name}");
        }
    }
}

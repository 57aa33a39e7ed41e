//! Private keys and certificates in files: what OpenSSL writes is read, and what is written OpenSSL reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use claviger_engine::private_keys::{self, Certificate, Contents, NewCertificate, PrivateKey, SoftKey};
use claviger_engine::{Error, ErrorKind, Result, Secret};
use claviger_testkit::tools;

const PASSWORD: &str = "pässword €";

/// A folder with `NAME.key` (PKCS#8) and `NAME.crt` of each of some people, in PEM.
pub struct Pki {
    folder: tempfile::TempDir,
}

impl Pki {
    /// None without OpenSSL.
    pub fn new(people: &[&str]) -> Option<Self> {
        tools::program("openssl")?;
        let pki = Self { folder: tempfile::tempdir().expect("a folder") };
        fs::write(pki.path("password"), format!("{PASSWORD}\n")).expect("a file");
        for name in people {
            let subject = format!("/CN={name}/OU=EFS File Encryption Certificate");
            pki.openssl(&[
                "req",
                "-x509",
                "-newkey",
                "rsa:1024",
                "-nodes",
                "-days",
                "3650",
                "-subj",
                &subject,
                "-addext",
                "extendedKeyUsage=1.3.6.1.4.1.311.10.3.4",
                "-keyout",
                &format!("{name}.key"),
                "-out",
                &format!("{name}.crt"),
            ]);
        }
        Some(pki)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs it in the folder; its standard output.
    pub fn openssl(&self, args: &[&str]) -> Vec<u8> {
        tools::run(Command::new("openssl").args(args).current_dir(&self.folder)).stdout
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file")
    }

    fn read(&self, name: &str) -> Result<Contents> {
        private_keys::read_file(&self.path(name), &mut || Ok(Secret::copy_from(PASSWORD.as_bytes())))
    }

    /// The same, of a file for which no password is asked.
    fn read_freely(&self, name: &str) -> Contents {
        let ask = &mut || -> Result<Secret> { panic!("{name} needs no password") };
        private_keys::read_file(&self.path(name), ask).expect("it is read")
    }

    /// The thumbprint of somebody's certificate, by OpenSSL.
    fn thumbprint(&self, name: &str) -> String {
        let line = self.openssl(&["x509", "-in", &format!("{name}.crt"), "-noout", "-fingerprint", "-sha1"]);
        let line = String::from_utf8(line).expect("text");
        line.trim().rsplit('=').next().expect("digits").replace(':', "").to_lowercase()
    }

    /// Checks that the key decrypts what OpenSSL encrypts for its certificate.
    pub fn decrypts_for(&self, key: &dyn PrivateKey, name: &str) {
        fs::write(self.path("plain"), b"a file encryption key").expect("a file");
        let certificate = format!("{name}.crt");
        let args = ["pkeyutl", "-encrypt", "-certin", "-inkey", &certificate, "-in", "plain"];
        let ciphertext = self.openssl(&args);
        assert!(key.decrypt(&ciphertext).expect("it is for this key").same_as(b"a file encryption key"), "{name}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The only key of a file, which belongs to somebody.
fn check_only_key(pki: &Pki, contents: Contents, name: &str) -> Arc<dyn PrivateKey> {
    let keys = contents.into_keys().expect("a private key");
    let [key] = &keys[..] else { panic!("{} keys", keys.len()) };
    assert_eq!(key.thumbprint().map(|print| hex(&print)), Some(pki.thumbprint(name)));
    assert!(key.names()[0].starts_with(&format!("CN={name}, OU=EFS")), "{:?}", key.names());
    pki.decrypts_for(&**key, name);
    Arc::clone(key)
}

/// Ways in which OpenSSL writes PFX: all that its versions have had.
const PFX: &[&[&str]] = &[
    &[],
    &["-macalg", "sha1"],
    &["-macalg", "sha512", "-iter", "5"],
    &["-keypbe", "AES-128-CBC", "-certpbe", "AES-192-CBC"],
    &["-keypbe", "des-ede3-cbc", "-certpbe", "NONE"],
    &["-keypbe", "PBE-SHA1-3DES", "-certpbe", "PBE-SHA1-3DES", "-macalg", "sha1"],
    &["-keypbe", "PBE-SHA1-2DES", "-certpbe", "PBE-SHA1-2DES"],
    &["-legacy"],
    &["-legacy", "-keypbe", "PBE-SHA1-RC2-128", "-certpbe", "PBE-SHA1-RC2-40", "-noiter"],
    &["-nomac"],
];

fn export<'a>(name: &'a [String; 3], how: &[&'a str], password: &'a str) -> Vec<&'a str> {
    let [key, certificate, out] = name;
    let first = ["pkcs12", "-export", "-inkey", key, "-in", certificate, "-out", out, "-passout", password];
    [&first, how].concat()
}

fn names(name: &str, out: &str) -> [String; 3] {
    [format!("{name}.key"), format!("{name}.crt"), out.to_owned()]
}

#[test]
fn pfx_of_every_kind_is_read() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    for how in PFX {
        for (password, asked) in [("file:password", true), ("pass:", false)] {
            pki.openssl(&export(&names("alice", "alice.pfx"), how, password));
            let contents = match asked {
                true => pki.read("alice.pfx").unwrap_or_else(|e| panic!("{how:?}: {e}")),
                false => pki.read_freely("alice.pfx"),
            };
            check_only_key(&pki, contents, "alice");
        }
        pki.openssl(&export(&names("alice", "wrong.pfx"), how, "pass:wrong"));
        let wrong = pki.read("wrong.pfx").expect_err("another password");
        assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{how:?}: {wrong}");
    }
}

#[test]
fn several_keys_find_their_certificates() {
    let Some(pki) = Pki::new(&["alice", "bob"]) else { return };
    let mut both = Contents::default();
    for name in ["alice", "bob"] {
        both.extend(pki.read_freely(&format!("{name}.crt")));
        both.extend(pki.read_freely(&format!("{name}.key")));
    }
    both.certificates.reverse();
    let keys = both.into_keys().expect("two keys");
    for (key, name) in keys.iter().zip(["alice", "bob"]) {
        assert_eq!(key.thumbprint().map(|print| hex(&print)), Some(pki.thumbprint(name)));
        pki.decrypts_for(&**key, name);
    }
    let foreign = keys[0].decrypt(&[7; 128]).expect_err("noise");
    assert_eq!(foreign.kind.to_string(), private_keys::not_for_this_key().kind.to_string());
    // A certificate of somebody else beside it changes nothing.
    let others = fs::read(pki.path("bob.crt")).expect("a file");
    fs::write(pki.path("mixed.pem"), [&others[..], &pki.bytes("alice.key"), &pki.bytes("alice.crt")].concat())
        .expect("a file");
    check_only_key(&pki, pki.read_freely("mixed.pem"), "alice");
    // A key alone has no thumbprint, and a certificate alone no key.
    let alone = pki.read_freely("bob.key").into_keys().expect("a key");
    assert_eq!((alone[0].thumbprint(), alone[0].about().modulus.len()), (None, 128));
    let none = pki.read_freely("bob.crt").into_keys().expect_err("no key");
    assert!(none.to_string().contains("no private key"), "{none}");
}

#[test]
fn pem_and_der_of_every_kind_are_read() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let password = ["-passout", "file:password"];
    let rsa = ["rsa", "-in", "alice.key", "-traditional", "-out"];
    let pkcs8 = ["pkcs8", "-topk8", "-in", "alice.key", "-out"];
    for (name, args) in [
        ("pkcs1.pem", [&rsa[..], &["pkcs1.pem"]].concat()),
        ("pkcs1.der", [&rsa[..], &["pkcs1.der", "-outform", "DER"]].concat()),
        ("aes128.pem", [&rsa[..], &["aes128.pem", "-aes128"], &password].concat()),
        ("aes192.pem", [&rsa[..], &["aes192.pem", "-aes192"], &password].concat()),
        ("aes256.pem", [&rsa[..], &["aes256.pem", "-aes256"], &password].concat()),
        ("des3.pem", [&rsa[..], &["des3.pem", "-des3"], &password].concat()),
        ("pkcs8.pem", [&pkcs8[..], &["pkcs8.pem", "-nocrypt"]].concat()),
        ("pkcs8.der", [&pkcs8[..], &["pkcs8.der", "-nocrypt", "-outform", "DER"]].concat()),
        (
            "pbes2.pem",
            [&pkcs8[..], &["pbes2.pem", "-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA512"], &password].concat(),
        ),
        (
            "pbes2-3des.pem",
            [&pkcs8[..], &["pbes2-3des.pem", "-v2", "des3", "-v2prf", "hmacWithSHA1"], &password].concat(),
        ),
        ("pbes2.der", [&pkcs8[..], &["pbes2.der", "-outform", "DER"], &password].concat()),
        ("pkcs12-pbe.pem", [&pkcs8[..], &["pkcs12-pbe.pem", "-v1", "PBE-SHA1-3DES"], &password].concat()),
    ] {
        pki.openssl(&args);
        let mut contents = pki.read(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        contents.extend(pki.read_freely("alice.crt"));
        check_only_key(&pki, contents, "alice");
    }
    pki.openssl(&["x509", "-in", "alice.crt", "-outform", "DER", "-out", "alice.cer"]);
    let [der] = &pki.read_freely("alice.cer").certificates[..] else { panic!("one certificate") };
    let [pem] = &pki.read_freely("alice.crt").certificates[..] else { panic!("one certificate") };
    assert_eq!(der, pem);
    assert!(der.for_efs);
}

#[test]
fn what_cannot_be_used_is_named() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let ec = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=eve"];
    pki.openssl(&[&ec[..], &["-keyout", "eve.key", "-out", "eve.crt"]].concat());
    pki.openssl(&export(&names("eve", "eve.pfx"), &[], "file:password"));
    for file in ["eve.pfx", "eve.key"] {
        let refused = pki.read(file).and_then(Contents::into_keys).expect_err("not RSA");
        assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("elliptic curves"), "{refused}");
    }
    // Beside one that can be used, it does not matter.
    fs::write(pki.path("both.pem"), [pki.bytes("eve.key"), pki.bytes("alice.key")].concat()).expect("a file");
    assert_eq!(pki.read_freely("both.pem").into_keys().expect("one of them").len(), 1);
    let eve = pki.read_freely("eve.crt").certificates.remove(0);
    assert!(
        eve.public.is_none() && matches!(eve.encrypt(b"x").map_err(|e| e.kind), Err(ErrorKind::Unsupported { .. }))
    );
    pki.openssl(&["pkcs8", "-topk8", "-in", "alice.key", "-out", "scrypt.key", "-scrypt", "-passout", "file:password"]);
    pki.openssl(&export(&names("alice", "rc4.pfx"), &["-legacy", "-keypbe", "PBE-SHA1-RC4-128"], "file:password"));
    for (file, word) in [("scrypt.key", "1.3.6.1.4.1.11591.4.11"), ("rc4.pfx", "RC4")] {
        let refused = pki.read(file).expect_err("it is not there");
        assert!(matches!(refused.kind, ErrorKind::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains(word), "{refused}");
    }
    fs::write(pki.path("noise"), [7; 100]).expect("a file");
    fs::write(pki.path("large"), vec![0x30; 5 << 20]).expect("a file");
    for file in ["noise", "large"] {
        assert!(matches!(pki.read(file).map_err(|e| e.kind), Err(ErrorKind::NotThisFormat(_))), "{file}");
    }
    assert!(matches!(pki.read("nothing").map_err(|e| e.kind), Err(ErrorKind::Io(_))));
}

/// Any change of a file leads to an error or to the same key, never to a panic or another key.
#[test]
fn damage_is_an_error() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    pki.openssl(&export(&names("alice", "alice.pfx"), &["-iter", "1"], "file:password"));
    pki.openssl(&["x509", "-in", "alice.crt", "-outform", "DER", "-out", "alice.cer"]);
    pki.openssl(&["rsa", "-in", "alice.key", "-traditional", "-outform", "DER", "-out", "alice.der"]);
    let ask = &mut || Ok(Secret::copy_from(PASSWORD.as_bytes()));
    let key = check_only_key(&pki, pki.read("alice.pfx").expect("whole"), "alice");
    let pfx = pki.bytes("alice.pfx");
    for at in 0..pfx.len() {
        let mut changed = pfx.clone();
        changed[at] ^= 0x41;
        match private_keys::read(&changed, "here", ask) {
            Ok(contents) => {
                assert!(contents.keys.iter().all(|found| found.about().modulus == key.about().modulus), "{at}")
            }
            Err(e) => assert!(!matches!(e.kind, ErrorKind::Io(_) | ErrorKind::Misuse(_)), "{at}: {e}"),
        }
        assert!(private_keys::read(&pfx[..at], "here", ask).is_err(), "{at}");
    }
    for file in ["alice.cer", "alice.der"] {
        let whole = pki.bytes(file);
        for at in 0..whole.len() {
            assert!(private_keys::read(&whole[..at], "here", ask).is_err(), "{file} {at}");
        }
    }
    // Each number of the key wrong in turn.
    let der = pki.bytes("alice.der");
    for at in (20..der.len()).step_by(7) {
        let mut changed = der.clone();
        changed[at] ^= 1;
        match private_keys::read(&changed, "here", ask) {
            // The private exponent is not used.
            Ok(contents) => pki_same(&contents, &key),
            Err(e) => assert!(
                matches!(
                    e.kind,
                    ErrorKind::Malformed { .. } | ErrorKind::NotThisFormat(_) | ErrorKind::Unsupported { .. }
                ),
                "{at}: {e}"
            ),
        }
    }
}

fn pki_same(contents: &Contents, key: &Arc<dyn PrivateKey>) {
    let ciphertext = |modulus: &[u8]| modulus == key.about().modulus;
    assert!(contents.keys.iter().all(|found| ciphertext(&found.about().modulus)));
}

#[test]
fn a_folder_stands_for_its_files() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let found = |path: &Path| private_keys::files(path).map(|files| files.len());
    assert_eq!(found(&pki.path("")).expect("two files"), 2);
    assert_eq!(found(&pki.path("password")).expect("itself"), 1);
    let empty = tempfile::tempdir().expect("a folder");
    assert!(matches!(found(empty.path()).map_err(|e: Error| e.kind), Err(ErrorKind::Misuse(_))));
}

#[test]
fn a_new_certificate_is_what_windows_and_openssl_read() {
    let Some(pki) = Pki::new(&[]) else { return };
    let key = SoftKey::generate(2048).expect("a key");
    // 2000-02-29 12:34:56
    let from = UNIX_EPOCH + Duration::from_secs(951_827_696);
    for (recovery, purpose) in [(false, "1.3.6.1.4.1.311.10.3.4"), (true, "1.3.6.1.4.1.311.10.3.4.1")] {
        let certificate = NewCertificate { name: "Älice", recovery, from }.sign(&key).expect("a certificate");
        assert!(
            certificate.for_efs && certificate.subject.starts_with("CN=Älice, L=EFS, OU=EFS File"),
            "{certificate:?}"
        );
        fs::write(pki.path("new.cer"), &certificate.der).expect("a file");
        pki.openssl(&["x509", "-inform", "DER", "-in", "new.cer", "-out", "new.crt"]);
        // It is signed by itself.
        pki.openssl(&["verify", "-CAfile", "new.crt", "-no_check_time", "-partial_chain", "new.crt"]);
        let text = pki.openssl(&["x509", "-in", "new.crt", "-noout", "-text"]);
        let text = String::from_utf8(text).expect("text");
        let known = if recovery { "1.3.6.1.4.1.311.10.3.4.1" } else { "Microsoft Encrypted File System" };
        for words in ["Feb 29 12:34:56 2000 GMT", "Feb 28 12:34:56 2010 GMT", "Key Encipherment", "sha256WithRSA"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.contains(known) || text.contains(purpose), "{text}");

        let password = Secret::copy_from(PASSWORD.as_bytes());
        let pfx = private_keys::write_pfx(&key, &certificate, "Älice", &password).expect("a PFX");
        fs::write(pki.path("new.pfx"), &*pfx).expect("a file");
        let pem = pki.openssl(&["pkcs12", "-in", "new.pfx", "-passin", "file:password", "-nodes"]);
        // It shows names in Latin-1.
        let pem = String::from_utf8_lossy(&pem).into_owned();
        for words in ["friendlyName: ", "localKeyID: 01 00 00 00", "X509v3 Key Usage: 10", "Microsoft Enhanced"] {
            assert!(pem.contains(words), "{words}: {pem}");
        }
        fs::write(pki.path("new.key"), &pem).expect("a file");
        let check = pki.openssl(&["rsa", "-in", "new.key", "-check", "-noout"]);
        assert!(String::from_utf8_lossy(&check).contains("RSA key ok"));
        let ours = pki.read("new.pfx").expect("it is ours").into_keys().expect("a key");
        assert_eq!(ours[0].thumbprint(), Some(certificate.thumbprint));
        assert!(ours[0].names().contains(&"Älice".to_owned()), "{:?}", ours[0].names());
        pki.decrypts_for(&*ours[0], "new");
        // And OpenSSL decrypts what this program encrypts for the certificate.
        fs::write(pki.path("ours"), certificate.encrypt(b"a key of ours").expect("short enough")).expect("a file");
        assert_eq!(pki.openssl(&["pkeyutl", "-decrypt", "-inkey", "new.key", "-in", "ours"]), b"a key of ours");
        assert!(certificate.encrypt(&[0; 246]).is_err() && certificate.encrypt(&[0; 245]).is_ok());
    }
    assert!(SoftKey::generate(1024).is_err());
    let nobody = NewCertificate { name: "", recovery: false, from }.sign(&key);
    assert!(matches!(nobody.map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    assert!(Certificate::read(b"").is_err());
}

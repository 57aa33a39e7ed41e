//! Windows' key store: profiles of a maker that knows nothing of the engine, which impacket decrypts as well.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::private_keys::PrivateKey;
use claviger_engine::private_keys::dpapi::{Login, Profile};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{ErrorKind, Result, Secret};
use claviger_testkit::dpapi::{self, Account, Era, Key, Kind};

use crate::efs::private_keys::Pki;

const PASSWORD: &str = "Pässwörd 1";

fn password(text: &str) -> Login {
    Login::Password(Secret::copy_from(text.as_bytes()))
}

fn read(folder: &Path, profile: &str) -> Result<Profile> {
    let tree = HostFolder::open(folder, Access::ReadOnly).expect("a folder");
    Profile::read(&tree, OsStr::new(profile))
}

fn unlock(folder: &Path, login: &Login) -> Result<Vec<Arc<dyn PrivateKey>>> {
    read(folder, "/Users/alice").and_then(|profile| profile.unlock(login))
}

/// Somebody's key in a container.
fn key(pki: &Pki, name: &str, kind: Kind) -> Key {
    let (pem, der) = (format!("{name}.key"), format!("{name}.crt"));
    let pkcs1 = pki.openssl(&["rsa", "-in", &pem, "-traditional", "-outform", "DER"]);
    let certificate = Some(pki.openssl(&["x509", "-in", &der, "-outform", "DER"]));
    Key { kind, container: format!("container-of-{name}"), pkcs1, certificate }
}

/// A folder with a profile in it.
fn written(profile: &dpapi::Profile, keys: &[Key]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    profile.write(&folder.path().join("Users/alice"), keys);
    folder
}

#[test]
fn profiles_of_every_kind_open() {
    let Some(pki) = Pki::new(&["alice", "bob"]) else { return };
    let keys = [key(&pki, "alice", Kind::Capi), key(&pki, "bob", Kind::Cng)];
    for era in [Era::Xp, Era::Seven] {
        for account in [Account::Local, Account::Domain, Account::Protected] {
            let profile = dpapi::Profile::new(PASSWORD, era, account);
            let folder = written(&profile, &keys);
            let found =
                unlock(folder.path(), &password(PASSWORD)).unwrap_or_else(|e| panic!("{era:?} {account:?}: {e}"));
            assert_eq!(found.len(), 2, "{era:?} {account:?}");
            for (found, name) in found.iter().zip(["alice", "bob"]) {
                assert!(found.names()[0].starts_with(&format!("CN={name}")), "{:?}", found.names());
                assert!(found.names().contains(&"my key".to_owned()), "{:?}", found.names());
                assert_eq!(found.about().container, Some(format!("container-of-{name}")));
                assert!(found.thumbprint().is_some() && found.about().origin == "/Users/alice");
                pki.decrypts_for(&**found, name);
            }
            let wrong = unlock(folder.path(), &password("Passwort 1")).expect_err("a wrong password");
            assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
            assert!(wrong.to_string().contains(&profile.sid), "{wrong}");
            // Certificates need no password.
            let locked = read(folder.path(), "/Users/alice").expect("a profile");
            assert_eq!(locked.certificates().count(), 2);
        }
    }
}

#[test]
fn an_nt_hash_opens_what_is_a_domains() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let keys = [key(&pki, "alice", Kind::Capi)];
    // MD4 of "password" in UTF-16: a hash that everybody knows.
    let hash =
        || Login::nt_hash(b" aad3b435b51404eeaad3b435b51404ee:8846F7EAEE8FB117AD06BDD830B7586C\n").expect("a hash");
    for (account, opens) in [(Account::Domain, true), (Account::Protected, true), (Account::Local, false)] {
        let folder = written(&dpapi::Profile::new("password", Era::Seven, account), &keys);
        let found = unlock(folder.path(), &hash());
        assert_eq!(found.is_ok(), opens, "{account:?}");
        if let Err(e) = found {
            assert!(matches!(e.kind, ErrorKind::WrongCredential(_)), "{e}");
        }
    }
    for bad in [&b""[..], b"8846F7EAEE8FB117AD06BDD830B7586", b"8846F7EAEE8FB117AD06BDD830B7586G"] {
        assert!(matches!(Login::nt_hash(bad).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    }
}

#[test]
fn impacket_decrypts_the_same() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let keys = [key(&pki, "alice", Kind::Capi)];
    for era in [Era::Xp, Era::Seven] {
        for account in [Account::Local, Account::Domain, Account::Protected] {
            let folder = written(&dpapi::Profile::new(PASSWORD, era, account), &keys);
            let Some(theirs) = dpapi::impacket(&folder.path().join("Users/alice"), PASSWORD) else { return };
            let found = unlock(folder.path(), &password(PASSWORD)).expect("the password is right");
            // `RSA2`, four words, and the modulus from its last byte on.
            let modulus: Vec<u8> = theirs[20..20 + 128].iter().rev().copied().collect();
            assert_eq!((&theirs[..4], &modulus), (&b"RSA2"[..], &found[0].about().modulus), "{era:?} {account:?}");
        }
    }
}

/// Windows before Vista, and letters of another case in a copy.
#[test]
fn profiles_lie_in_several_places() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let folder = written(&dpapi::Profile::new(PASSWORD, Era::Xp, Account::Local), &[key(&pki, "alice", Kind::Capi)]);
    let user = folder.path().join("Users/alice");
    fs::create_dir(user.join("application data")).expect("a folder");
    fs::rename(user.join("AppData/Roaming/Microsoft"), user.join("application data/MICROSOFT")).expect("renamed");
    assert_eq!(unlock(folder.path(), &password(PASSWORD)).expect("it opens").len(), 1);
    // Also what people copy of one.
    let folder = written(&dpapi::Profile::new(PASSWORD, Era::Seven, Account::Local), &[key(&pki, "alice", Kind::Capi)]);
    for path in ["", "/AppData", "/AppData/Roaming", "/AppData/Roaming/Microsoft"] {
        let profile = read(folder.path(), &format!("/Users/alice{path}")).expect("a profile");
        assert_eq!(profile.unlock(&password(PASSWORD)).expect("it opens").len(), 1, "{path}");
    }
    for (path, word) in [("/Users", "AppData/Roaming"), ("/", "AppData/Roaming"), ("/Users/bob", "no such folder")] {
        let none = read(folder.path(), path).err().expect("no profile");
        assert!(none.to_string().to_lowercase().contains(&word.to_lowercase()), "{path}: {none}");
    }
}

/// Every file changed at every place, or cut: an error or the same key.
#[test]
fn hostile_files_are_errors() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    for (kind, era) in [(Kind::Capi, Era::Xp), (Kind::Cng, Era::Seven)] {
        let mut profile = dpapi::Profile::new(PASSWORD, era, Account::Local);
        profile.iterations = 1;
        let keys = [key(&pki, "alice", kind)];
        let folder = written(&profile, &keys);
        let modulus = unlock(folder.path(), &password(PASSWORD)).expect("whole")[0].about().modulus.clone();
        for (name, contents) in profile.files(&keys) {
            if name.contains("CREDHIST") || name.contains("Preferred") {
                continue;
            }
            let path = folder.path().join("Users/alice/AppData/Roaming/Microsoft").join(&name);
            let check = |changed: &[u8]| {
                fs::write(&path, changed).expect("a file");
                match unlock(folder.path(), &password(PASSWORD)) {
                    Ok(found) => assert!(found.iter().all(|key| key.about().modulus == modulus), "{name}"),
                    Err(e) => assert!(!matches!(e.kind, ErrorKind::Io(_)), "{name}: {e}"),
                }
            };
            // All of the headers, and some of the ciphertext.
            for at in (0..contents.len().min(220)).chain((220..contents.len()).step_by(37)) {
                let mut changed = contents.clone();
                changed[at] ^= 0x81;
                check(&changed);
                changed[at] = 0xff;
                check(&changed);
            }
            for len in (0..contents.len()).step_by(29) {
                check(&contents[..len]);
            }
            fs::write(&path, &contents).expect("a file");
        }
        assert!(unlock(folder.path(), &password(PASSWORD)).is_ok());
    }
}

#[test]
fn what_is_missing_is_named() {
    let Some(pki) = Pki::new(&["alice"]) else { return };
    let profile = dpapi::Profile::new(PASSWORD, Era::Seven, Account::Local);
    let folder = written(&profile, &[]);
    let none = unlock(folder.path(), &password(PASSWORD)).expect_err("no key");
    assert!(none.to_string().contains("this profile has no private key"), "{none}");
    // Keys of another master key than the one that is there.
    let other = dpapi::Profile { seed: 2, ..profile.clone() };
    let folder = written(&other, &[key(&pki, "alice", Kind::Capi)]);
    let master = profile.files(&[]).remove(0);
    fs::write(folder.path().join("Users/alice/AppData/Roaming/Microsoft").join(&master.0), &master.1).expect("a file");
    let damaged = unlock(folder.path(), &password(PASSWORD)).expect_err("its MAC is wrong");
    assert!(matches!(damaged.kind, ErrorKind::Malformed { .. }), "{damaged}");
    // A master key under another name.
    let place = folder.path().join("Users/alice/AppData/Roaming/Microsoft").join(&master.0);
    let mut renamed = master.1.clone();
    renamed[12] = b'f';
    fs::write(place, renamed).expect("a file");
    let absent = unlock(folder.path(), &password(PASSWORD)).expect_err("another master key");
    assert!(absent.to_string().contains("01234567-89ab-cdef"), "{absent}");
    let latin1 = Login::Password(Secret::copy_from(b"P\xe4ss"));
    assert!(matches!(unlock(folder.path(), &latin1).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
}

//! Keys on smart cards: SoftHSM's tokens, which OpenSC fills.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use claviger_engine::private_keys::{PrivateKey, not_for_this_key, pkcs11};
use claviger_engine::{ErrorKind, Result, Secret};
use claviger_testkit::tools;

use crate::efs::private_keys::Pki;

const PIN: &str = "123456";

/// The module and its tokens `one`, with alice's key and certificate, and `two`, with bob's. A module reads its configuration from the
/// environment, once in a process: so all is in one test.
fn module(pki: &Pki) -> Option<PathBuf> {
    tools::program("softhsm2-util").and(tools::program("pkcs11-tool"))?;
    let places = ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"];
    let Some(module) = places.iter().map(PathBuf::from).find(|path| path.exists()) else {
        return tools::skip("SoftHSM's module is not where it is looked for");
    };
    let tokens = pki.path("tokens");
    fs::create_dir(&tokens).expect("a folder");
    fs::write(pki.path("softhsm2.conf"), format!("directories.tokendir = {}\n", tokens.display())).expect("a file");
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        tools::run(command.args(args).env("SOFTHSM2_CONF", pki.path("softhsm2.conf")).current_dir(pki.path("")));
    };
    let path = module.to_str().expect("text");
    for (label, name) in [("one", "alice"), ("two", "bob")] {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.cer"));
        run("softhsm2-util", &["--init-token", "--free", "--label", label, "--so-pin", "12345678", "--pin", PIN]);
        let import = ["--import", &key, "--token", label, "--label", name, "--id", "a1", "--pin", PIN];
        run("softhsm2-util", &import);
        pki.openssl(&["x509", "-in", &format!("{name}.crt"), "-outform", "DER", "-out", &certificate]);
        let tool = ["--module", path, "--token-label", label, "--login", "--pin", PIN];
        run("pkcs11-tool", &[&tool[..], &["--write-object", &certificate, "--type", "cert", "--id", "a1"]].concat());
    }
    Some(module)
}

#[test]
fn a_card_decrypts_with_its_pin() {
    let Some(pki) = Pki::new(&["alice", "bob"]) else { return };
    let Some(module) = module(&pki) else { return };
    // Modules read their configuration from the environment, which only a process of its own can have.
    let exe = std::env::current_exe().expect("this program");
    let mut again = Command::new(exe);
    again.args(["--exact", "efs::private_keys_card::in_a_process_of_its_own", "--ignored", "--nocapture"]);
    again.env("SOFTHSM2_CONF", pki.path("softhsm2.conf")).env("CARD_MODULE", module).env("CARD_FOLDER", pki.path(""));
    let output = tools::run(&mut again);
    assert!(String::from_utf8_lossy(&output.stdout).contains("the card has decrypted"), "{output:?}");
}

#[test]
#[ignore = "a part of the one above"]
fn in_a_process_of_its_own() {
    let (Some(module), Some(folder)) = (std::env::var_os("CARD_MODULE"), std::env::var_os("CARD_FOLDER")) else {
        return;
    };
    let (module, folder) = (Path::new(&module), Path::new(&folder));
    let open = |token, pin: &str| -> Result<Vec<Arc<dyn PrivateKey>>> {
        pkcs11::open(module, token, &mut |label| {
            assert!(matches!(label, "one" | "two"), "{label}");
            Ok(Secret::copy_from(pin.as_bytes()))
        })
    };
    let several = open(None, PIN).expect_err("two tokens");
    assert!(several.to_string().contains("one") && several.to_string().contains("two"), "{several}");
    assert!(matches!(open(Some("three"), PIN).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
    let wrong = open(Some("one"), "000000").expect_err("a wrong PIN");
    assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    for (token, name) in [("one", "alice"), ("two", "bob")] {
        let keys = open(Some(token), PIN).unwrap_or_else(|e| panic!("{token}: {e}"));
        let [key] = &keys[..] else { panic!("{} keys", keys.len()) };
        assert!(key.names()[0].starts_with(&format!("CN={name}")), "{:?}", key.names());
        assert!(key.thumbprint().is_some() && key.about().modulus.len() == 128);
        fs::write(folder.join("plain"), b"a file encryption key").expect("a file");
        let mut openssl = Command::new("openssl");
        openssl.args(["pkeyutl", "-encrypt", "-certin", "-inkey", &format!("{name}.crt"), "-in", "plain"]);
        let ciphertext = tools::run(openssl.current_dir(folder)).stdout;
        assert!(key.decrypt(&ciphertext).expect("it is for this key").same_as(b"a file encryption key"));
        // Zeros in front, as where a number is short.
        assert!(key.decrypt(&[&[0; 3], &ciphertext[..]].concat()).expect("the same").same_as(b"a file encryption key"));
        for wrong in [&[7; 128][..], &[1; 129], &ciphertext[1..], &[]] {
            let error = key.decrypt(wrong).expect_err("not for this key");
            assert_eq!(error.kind.to_string(), not_for_this_key().kind.to_string());
        }
    }
    let none = pkcs11::open(Path::new("/nonexistent.so"), None, &mut |_| Ok(Secret::zeroed(0))).expect_err("no module");
    assert!(matches!(none.kind, ErrorKind::Io(_)), "{none}");
    println!("the card has decrypted");
}

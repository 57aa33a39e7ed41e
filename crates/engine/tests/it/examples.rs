//! The examples do what they say. Those of a store and a format of one's own are run as part of the documentation.

#[path = "../../examples/create.rs"]
#[allow(dead_code, reason = "it has a main function, too")]
mod create;
#[path = "../../examples/read.rs"]
#[allow(dead_code, reason = "it has a main function, too")]
mod read;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use claviger_engine::store::Access;
use claviger_engine::{Credential, ErrorKind, Opening, Secret, Store, Unlock};

fn secret(text: &str) -> Secret {
    Secret::copy_from(text.as_bytes())
}

#[test]
fn what_is_created_can_be_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    create::create(&volume, 20 << 20, secret("correct horse")).expect("a volume");

    let credentials = [Credential::Passphrase(secret("correct horse"))];
    let locked = Opening::path(&volume).access(Access::ReadWrite).find().expect("a header");
    let opened = locked.unlock(&Unlock::with(&credentials)).and_then(|opened| opened.bytes()).expect("it opens");
    assert_eq!(opened.facts.label.as_deref(), Some("example"));
    opened.volume.write_clobbering(1000, &mut b"What nobody else shall read.".to_vec()).expect("it can be written");
    let mut expected = vec![0; opened.volume.len() as usize];
    opened.volume.read_at(0, &mut expected).expect("it can be read");
    drop((locked, opened));

    read::read(&volume, &copy, secret("correct horse")).expect("it is copied");
    assert!(fs::read(&copy).expect("a copy") == expected);
    assert_eq!(fs::metadata(&copy).expect("a copy").permissions().mode() & 0o777, 0o600);

    let wrong = read::read(&volume, &dir.path().join("another"), secret("wrong")).expect_err("a wrong passphrase");
    assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
    assert!(!dir.path().join("another").exists());
}

#[test]
fn what_cannot_be_created_is_not_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let volume = dir.path().join("volume");
    assert!(create::create(&volume, 4096, secret("correct horse")).is_err(), "too small for a header");
    assert!(!volume.exists());
}

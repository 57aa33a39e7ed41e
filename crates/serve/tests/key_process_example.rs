//! The example with the keys in a process of its own, which starts this very program a second time.

#[path = "../examples/key_process.rs"]
mod example;

use std::env;
use std::fs;
use std::process::exit;
use std::sync::Arc;

use claviger_engine::spec::Cost;
use claviger_engine::store::FileStore;
use claviger_engine::{Credential, Opening, Secret, Spec, Store, Unlock, formats};
use claviger_testkit::tools;

fn main() {
    tools::list_as("the_copy_is_the_plaintext");
    // Other arguments of the test program, such as a filter, mean nothing here.
    match env::args().nth(1).as_deref() {
        Some("--key-process") => exit(example::main().map_or(1, |()| 0)),
        _ => the_copy_is_the_plaintext(),
    }
}

fn the_copy_is_the_plaintext() {
    let folder = tempfile::tempdir().expect("a folder");
    let [volume, passphrase, wrong, copy] =
        ["volume", "passphrase", "wrong", "copy"].map(|name| folder.path().join(name));
    fs::write(&passphrase, "a passphrase\n").expect("a file");
    fs::write(&wrong, "another\n").expect("a file");
    let credentials = [Credential::Passphrase(Secret::copy_from(b"a passphrase"))];
    let store = FileStore::create(&volume, 18 << 20).expect("a file");
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let spec = Spec { cost, ..Spec::default() };
    formats::by_name("LUKS2").and_then(|format| format.create(&store, &spec, &credentials)).expect("a volume");
    drop(store);
    let open = || {
        let locked = Opening::path(&volume).access(claviger_engine::store::Access::ReadWrite).find().expect("found");
        locked.unlock(&Unlock::with(&credentials)).and_then(claviger_engine::Opened::bytes).expect("opened").volume
    };
    let opened = open();
    let plain: Arc<[u8]> = (0..opened.len()).map(|i| (i / 7) as u8).collect();
    opened.write_clobbering(0, &mut plain.to_vec()).expect("written");
    opened.flush().expect("durable");
    drop(opened);

    assert!(example::copy_out(&volume, &wrong, &copy).is_err() && !copy.exists(), "a wrong passphrase");
    example::copy_out(&volume, &passphrase, &copy).expect("copied");
    assert!(fs::read(&copy).expect("a copy") == *plain);
}

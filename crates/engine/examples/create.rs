//! Makes a LUKS2 volume in a new file: `cargo run -p claviger-engine --example create VOLUME MEBIBYTES`.
//!
//! The passphrase is the first line of standard input.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use claviger_engine::spec::Cost;
use claviger_engine::store::FileStore;
use claviger_engine::{Credential, Error, Result, Secret, Spec, Store, formats};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Error::misuse("usage: create VOLUME MEBIBYTES <PASSPHRASE");
    let [volume, mebibytes] = &args[..] else { return Err(usage()) };
    let mebibytes: u32 = mebibytes.parse().map_err(|_| usage())?;
    create(Path::new(volume), u64::from(mebibytes) << 20, passphrase()?)
}

/// The first line of standard input, without its newline.
fn passphrase() -> io::Result<Secret> {
    // The buffer of io::stdin() would keep it and never be wiped.
    let mut line = Secret::zeroed(4096);
    let len = File::open("/dev/stdin")?.read(&mut line)?;
    let end = line[..len].iter().position(|byte| *byte == b'\n').unwrap_or(len);
    Ok(Secret::copy_from(&line[..end]))
}

/// Makes a volume in a new file of `len` bytes. Nothing is left behind if that fails.
pub fn create(path: &Path, len: u64, passphrase: Secret) -> Result<()> {
    let store = FileStore::create(path, len)?;
    // What is not said is the format's default. Argon2 may take half a second here; two seconds is what it takes by default.
    let cost = Cost { time_ms: Some(500), ..Cost::default() };
    let progress = |done: u64, all: u64| eprint!("\r{} %", done * 100 / all.max(1));
    let spec = Spec { cost, label: Some("example"), progress: Some(&progress), ..Spec::default() };

    let format = formats::by_name("LUKS2")?;
    let created = format.create(&store, &spec, &[Credential::Passphrase(passphrase)]);
    created.and_then(|()| Ok(store.flush()?)).inspect_err(|_| drop(fs::remove_file(path)))?;
    eprintln!("\r{}: a {} volume", path.display(), format.name());
    Ok(())
}
